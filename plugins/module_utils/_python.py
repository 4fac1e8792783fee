# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fail with one sentence on a Python that is too old. Private to the collection.

Each module imports this before anything else of the collection, which an older Python cannot even import. What is
written here must run on 3.8, which ansible-core 2.19 still accepts on hosts.
"""

from __future__ import annotations

import json
import sys

OLDEST = (3, 9)

if sys.version_info < OLDEST:
    _wanted, _present = (".".join(str(number) for number in version) for version in (OLDEST, sys.version_info[:3]))
    _words = f"needs Python {_wanted} or newer on the host, this is {_present}: set ansible_python_interpreter"
    # AnsibleModule, which would say it, is not there yet.
    sys.stdout.write(json.dumps({"failed": True, "msg": _words}) + "\n")
    raise SystemExit(1)
