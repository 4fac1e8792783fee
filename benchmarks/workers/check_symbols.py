# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Look up every undefined symbol of the objects that a list names in all of them; prints how many are not defined."""

from __future__ import annotations

import os
import sys

from ansible_collections.gpufleet.dflash.plugins.module_utils._symbol_scope import ScopeMember, SymbolTables

with open(sys.argv[1], encoding="utf-8") as stream:
    paths = stream.read().splitlines()
statuses = [(path, os.stat(path)) for path in paths]
scope = [ScopeMember((status.st_dev, status.st_ino), path) for path, status in statuses]
print(len(SymbolTables().undefined(scope, scope)))
