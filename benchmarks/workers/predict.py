# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Predict what importing modules loads in a venv: VENV MODULES LD_LIBRARY_PATH. Prints JSON."""

from __future__ import annotations

import json
import sys
import time

began = time.perf_counter()
from ansible_collections.gpufleet.dflash.plugins.module_utils._ld_system import System
from ansible_collections.gpufleet.dflash.plugins.module_utils._simulation import Simulation
from ansible_collections.gpufleet.dflash.plugins.module_utils._venv import open_venv

path, modules, library_path = sys.argv[1:]
venv = open_venv(path)
outcome = Simulation(
    venv=venv,
    system=System.of_host(venv.python),
    environment={"LD_LIBRARY_PATH": library_path} if library_path else {},
    directory="/",
    import_path=venv.import_path,
    imports=modules.split(","),
    load=(),
).run()
print(
    json.dumps(
        {
            "loaded": [loaded.path for loaded in outcome.loaded],
            "opened": [attempt.target for attempt in outcome.attempts],
            "seconds": time.perf_counter() - began,
        }
    )
)
