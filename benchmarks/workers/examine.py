# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gather and judge a venv several times; prints the least seconds of CPU that it took, without starting Python."""

from __future__ import annotations

import sys
import time

from ansible_collections.gpufleet.dflash.plugins.module_utils._facts import Request, gather, result

seconds = []
for _number in range(int(sys.argv[2])):
    began = time.process_time()
    result(gather(Request(sys.argv[1])), "summary")
    seconds.append(time.process_time() - began)
print(min(seconds))
