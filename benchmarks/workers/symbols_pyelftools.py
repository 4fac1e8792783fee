# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the dynamic symbols of the objects that a list names with pyelftools, without looking anything up."""

from __future__ import annotations

import sys
from collections import deque

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

with open(sys.argv[1], encoding="utf-8") as stream:
    for line in stream:
        with open(line.rstrip("\n"), "rb") as file:
            for section in ELFFile(file).iter_sections("SHT_DYNSYM"):
                if isinstance(section, SymbolTableSection):
                    deque(section.iter_symbols(), maxlen=0)
