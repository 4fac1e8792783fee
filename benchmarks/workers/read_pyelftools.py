# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read PT_DYNAMIC of the objects that a list names with pyelftools: less than the own reader, no versions."""

from __future__ import annotations

import sys

from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile

with open(sys.argv[1], encoding="utf-8") as stream:
    for line in stream:
        with open(line.rstrip("\n"), "rb") as file:
            for segment in ELFFile(file).iter_segments():
                if isinstance(segment, DynamicSegment):
                    for tag in segment.iter_tags():
                        getattr(tag, "needed", None)
