# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a library check costs beyond the import itself: one row, `name measured limit ok` (or `over`).

python benchmarks/check_overhead.py [VENV [MODULE]]

The default is a new venv without packages and the module `json`. Needs the collection on ANSIBLE_COLLECTIONS_PATH, or
PYTHONPATH=.collections. The best of several runs of each counts: what the machine does besides is not the check's.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / ".collections"))

from ansible_collections.gpufleet.dflash.plugins.module_utils._library_check import CheckRequest, check

LIMIT = 0.5  # seconds
ROUNDS = 5


def bare(directory: str, module: str) -> float:
    """Seconds of an interpreter that does nothing but the import."""
    start = time.perf_counter()
    subprocess.run(
        [f"{directory}/bin/python", "-B", "-c", f"import {module}"], cwd="/", env={"PATH": "/usr/bin:/bin"}, check=True
    )
    return time.perf_counter() - start


def checked(directory: str, module: str) -> float:
    """Seconds of the check of the same import; what it asks torch about GPUs is a part of the check."""
    start = time.perf_counter()
    result = check(CheckRequest(directory, imports=(module,)))
    seconds = time.perf_counter() - start
    if not result["ok"]:
        raise SystemExit(f"cannot measure: {directory}: {module}: {result['problems'][0]['message']}")
    return seconds


def measure(directory: str, module: str) -> float:
    """Seconds that the check costs beyond the import, by the best of alternate runs."""
    pairs = [(bare(directory, module), checked(directory, module)) for _round in range(ROUNDS)]
    return max(0.0, min(pair[1] for pair in pairs) - min(pair[0] for pair in pairs))


def main() -> int:
    """Print the row; 1 when the check costs more than it may."""
    with tempfile.TemporaryDirectory() as temporary:
        directory = sys.argv[1] if len(sys.argv) > 1 else f"{temporary}/venv"
        module = sys.argv[2] if len(sys.argv) > 2 else "json"
        if len(sys.argv) < 2:
            venv.create(directory)
        seconds = measure(directory, module)
    verdict = "ok" if seconds <= LIMIT else "over"
    print(f"library check of {module}, beyond the import  {seconds:.2f} s  {LIMIT:.2f} s  {verdict}")
    return 0 if verdict == "ok" else 1


if __name__ == "__main__":
    sys.exit(main())
