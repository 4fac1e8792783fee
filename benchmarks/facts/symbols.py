# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Undefined symbols of all that ``import torch`` loads, against the linker itself and pyelftools."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

from benchmarks.measure import CACHE, CHECKOUT, Taken, best, run
from benchmarks.rows import Row, Session, shown
from benchmarks.venvs import site_packages, tools

_OVER_LDD, _OVER_PYELFTOOLS = 4.0, 0.05
_WORKERS = CHECKOUT / "benchmarks" / "workers"


def measure(session: Session) -> Iterator[Row]:
    """Ratios of CPU time, Python's start included."""
    if session.quick or not (CHECKOUT / "plugins" / "module_utils" / "_symbol_scope.py").exists():
        return
    predicted, listed = CACHE / "predicted.json", CACHE / "closure.txt"
    run([sys.executable, str(_WORKERS / "predict.py"), str(session.venv), "torch", ""], predicted)
    loaded = json.loads(predicted.read_text())["loaded"]
    listed.write_text("".join(f"{path}\n" for path in loaded))
    (root,) = (site_packages(session.venv) / "torch").glob("_C.*.so")
    own = best([sys.executable, "-S", str(_WORKERS / "check_symbols.py"), str(listed)], session.repeats)
    ldd = best(["ldd", "-r", str(root)], session.repeats)
    python = str(tools() / "bin" / "python")
    pyelftools = best([python, str(_WORKERS / "symbols_pyelftools.py"), str(listed)], 2)
    note = f"{len(loaded)} objects"
    yield Row("symbols: CPU over ldd -r", own.cpu / ldd.cpu, _OVER_LDD, "x", note)
    yield Row("symbols: CPU over pyelftools' iter_symbols", own.cpu / pyelftools.cpu, _OVER_PYELFTOOLS, "x", note)
    session.tables[f"Undefined symbols of import torch ({len(loaded)} objects)"] = [
        ["tool", "does", "CPU", "peak memory"],
        _cells("cuda_wheel_facts", "looks all up", own),
        _cells("ldd -r", "looks all up, loading the extension module", ldd),
        _cells("pyelftools", "reads names only", pyelftools),
    ]


def _cells(name: str, does: str, taken: Taken) -> list[str]:
    return [name, does, shown(taken.cpu, "s"), shown(float(taken.rss), "B")]
