# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading every object of a venv, against readelf and pyelftools on the same files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import CACHE, CHECKOUT, Taken, best
from benchmarks.rows import Row, Session, shown
from benchmarks.venvs import tools

_OVER_READELF, _OVER_PYELFTOOLS = 2.5, 0.1
_WORKERS = CHECKOUT / "benchmarks" / "workers"


def measure(session: Session) -> Iterator[Row]:
    """Ratios of CPU time, Python's start included."""
    objects = _objects([Path("/usr/lib")] if session.quick else [session.venv])
    listed = CACHE / "objects.txt"
    listed.write_text("".join(f"{path}\n" for path in objects))
    own = best([sys.executable, "-S", str(_WORKERS / "read_own.py"), str(listed)], session.repeats)
    readelf = best(["xargs", "-a", str(listed), "readelf", "-dW"], session.repeats)
    versions = best(["xargs", "-a", str(listed), "readelf", "-dVW"], 3)
    python = str(tools() / "bin" / "python")
    pyelftools = best([python, str(_WORKERS / "read_pyelftools.py"), str(listed)], 3)
    where = "/usr/lib" if session.quick else "the venv"
    note = f"{len(objects)} objects of {where}"
    yield Row("elf: CPU over xargs readelf -dW", own.cpu / readelf.cpu, _OVER_READELF, "x", note)
    yield Row("elf: CPU over pyelftools", own.cpu / pyelftools.cpu, _OVER_PYELFTOOLS, "x", note)
    session.series["readers"] = {
        "cuda_wheel_facts": own.cpu,
        "readelf -dW": readelf.cpu,
        "readelf -dVW": versions.cpu,
        "pyelftools": pyelftools.cpu,
    }
    session.tables[f"Reading {len(objects)} objects ({_size(objects)}) of {where}, warm"] = [
        ["reader", "reads", "wall", "CPU", "peak memory", "read"],
        _cells("cuda_wheel_facts", "dynamic section, needed and defined versions", own),
        _cells("readelf -dW, one process", "dynamic section", readelf),
        _cells("readelf -dVW, one process", "dynamic section, needed and defined versions", versions),
        _cells("pyelftools", "dynamic section", pyelftools),
    ]


def _objects(roots: list[Path]) -> list[Path]:
    found = []
    for root in roots:
        for path in sorted(root.rglob("*.so*")):
            if not path.is_symlink() and path.is_file() and _is_elf(path):
                found.append(path)
    return found


def _is_elf(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(4) == b"\x7fELF"


def _size(paths: list[Path]) -> str:
    return f"{sum(path.stat().st_size for path in paths) / 1e9:.1f} GB"


def _cells(name: str, reads: str, taken: Taken) -> list[str]:
    seconds = [shown(amount, "s") for amount in (taken.wall, taken.cpu)]
    return [name, reads, *seconds, *(shown(float(amount), "B") for amount in (taken.rss, taken.read))]
