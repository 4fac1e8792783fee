# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the objects that a list names, one a line, with the collection's own reader."""

from __future__ import annotations

import sys

from ansible_collections.gpufleet.dflash.plugins.module_utils._elf import read_object

with open(sys.argv[1], encoding="utf-8") as stream:
    for line in stream:
        read_object(line.rstrip("\n"))
