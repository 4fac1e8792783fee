# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a library check costs beyond the import itself: one row, `name measured limit ok` (or `over`).

python benchmarks/check_overhead.py [VENV [MODULE]]

The default is a new venv without packages and the module `json`. CPU time is measured, and the best of several runs
counts: what else the machine does is not the check's.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

LIMIT = 0.5  # seconds
ROUNDS = 5
MODULE_UTILS = Path(__file__).resolve().parents[1] / "plugins" / "module_utils"
PACKAGE = "ansible_collections/gpufleet/dflash/plugins/module_utils"
_CHECK = """
import json, sys
from ansible_collections.gpufleet.dflash.plugins.module_utils._library_check import CheckRequest, check
result = check(CheckRequest(sys.argv[1], imports=(sys.argv[2],)))
print(json.dumps([result["ok"], [entry["message"] for entry in result["problems"]]]))
"""


def cpu() -> float:
    """Seconds of CPU of all processes that we have started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def bare(directory: str, module: str) -> float:
    """Seconds of an interpreter that does nothing but the import."""
    start = cpu()
    command = [f"{directory}/bin/python", "-B", "-c", f"import {module}"]
    subprocess.run(command, cwd="/", env={"PATH": os.defpath}, check=True)
    return cpu() - start


def pack(path: str) -> None:
    """Put the code into an archive, as Ansible sends it: nothing in it is compiled."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        parts = PACKAGE.split("/")
        for count in range(1, len(parts) + 1):
            archive.writestr("/".join([*parts[:count], "__init__.py"]), "")
        for source in MODULE_UTILS.glob("_*.py"):
            if source.name != "__init__.py":
                archive.write(source, f"{PACKAGE}/{source.name}")


def checked(directory: str, module: str, archive: str) -> float:
    """Seconds of a process that checks the same import, in the way in which Ansible runs a module."""
    start = cpu()
    command = [sys.executable, "-B", "-c", _CHECK, directory, module]
    environment = {"PATH": os.defpath, "PYTHONPATH": archive}
    done = subprocess.run(command, cwd="/", env=environment, stdout=subprocess.PIPE, check=True)
    ok, messages = json.loads(done.stdout)
    if not ok:
        raise SystemExit(f"cannot measure: {directory}: {module}: {messages[:1]}")
    return cpu() - start


def measure(directory: str, module: str, archive: str) -> float:
    """Seconds that the check costs beyond the import, by the best of alternate runs."""
    pairs = [(bare(directory, module), checked(directory, module, archive)) for _round in range(ROUNDS)]
    return max(0.0, min(pair[1] for pair in pairs) - min(pair[0] for pair in pairs))


def main() -> int:
    """Print the row; 1 when the check costs more than it may."""
    with tempfile.TemporaryDirectory() as temporary:
        directory = sys.argv[1] if len(sys.argv) > 1 else f"{temporary}/venv"
        module = sys.argv[2] if len(sys.argv) > 2 else "json"
        if len(sys.argv) < 2:
            venv.create(directory)
        pack(f"{temporary}/collection.zip")
        seconds = measure(directory, module, f"{temporary}/collection.zip")
    verdict = "ok" if seconds <= LIMIT else "over"
    print(f"library check of {module}, beyond the import  {seconds:.2f} s  {LIMIT:.2f} s  {verdict}")
    return 0 if verdict == "ok" else 1


if __name__ == "__main__":
    sys.exit(main())
