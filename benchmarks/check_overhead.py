# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a library check costs beyond the import itself."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Iterator

from benchmarks.measure import CHECKOUT
from benchmarks.rows import Row, Session

_LIMIT = 0.5  # seconds
_MODULE_UTILS = CHECKOUT / "plugins" / "module_utils"
_PACKAGE = "ansible_collections/gpufleet/dflash/plugins/module_utils"
_CHECK = """
import sys
from ansible_collections.gpufleet.dflash.plugins.module_utils._library_check import CheckRequest, check
result = check(CheckRequest(sys.argv[1], imports=(sys.argv[2],)))
sys.exit(str(result["problems"]) if not result["ok"] else 0)
"""


def measure(session: Session) -> Iterator[Row]:
    """Yield the row: CPU of a check of ``import json`` in a new venv, less that of an interpreter that imports it."""
    with tempfile.TemporaryDirectory() as folder:
        directory, archive = f"{folder}/venv", f"{folder}/collection.zip"
        venv.create(directory)
        _pack(archive)
        # In turns, so that a machine that is busy for a while slows both.
        pairs = [(_bare(directory), _checked(directory, archive)) for _round in range(session.repeats)]
    seconds = max(0.0, min(pair[1] for pair in pairs) - min(pair[0] for pair in pairs))
    yield Row(
        "library check, CPU beyond the import", seconds, _LIMIT, "s", "the code compiled anew, as Ansible sends it"
    )


def _cpu() -> float:
    """Seconds of CPU of all processes that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _pack(path: str) -> None:
    """Put the code into an archive, as Ansible sends it: nothing in it is compiled."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        parts = _PACKAGE.split("/")
        for count in range(1, len(parts) + 1):
            archive.writestr("/".join([*parts[:count], "__init__.py"]), "")
        for source in _MODULE_UTILS.glob("_*.py"):
            if source.name != "__init__.py":
                archive.write(source, f"{_PACKAGE}/{source.name}")


def _bare(directory: str) -> float:
    start = _cpu()
    command = [f"{directory}/bin/python", "-B", "-c", "import json"]
    subprocess.run(command, cwd="/", env={"PATH": os.defpath}, check=True)
    return _cpu() - start


def _checked(directory: str, archive: str) -> float:
    start = _cpu()
    command = [sys.executable, "-B", "-c", _CHECK, directory, "json"]
    subprocess.run(command, cwd="/", env={"PATH": os.defpath, "PYTHONPATH": archive}, check=True)
    return _cpu() - start
