# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the cost grows with the venv: synthetic ones, from small to larger than any that is known."""

from __future__ import annotations

import math
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.measure import CACHE, CHECKOUT, run
from benchmarks.rows import Row, Session
from benchmarks.venvs import synthetic

_EXPONENT = 1.15
_FILES = (1_000, 3_000, 10_000, 30_000, 100_000)
_OBJECTS = (50, 150, 500, 1_000, 2_000)
# While one quantity grows, the other stays here.
_FEW_OBJECTS, _FILES_OF_OBJECTS = 1, 2_000
_REPEATS = 5


def measure(session: Session) -> Iterator[Row]:
    """The exponent of time in the number of files, and of objects: 1 is linear."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        empty = _seconds(Path(folder, "empty"), 1, 1)
        by_files = [_seconds(Path(folder, f"files{count}"), count, _FEW_OBJECTS) - empty for count in _FILES]
        bare = _seconds(Path(folder, "bare"), _FILES_OF_OBJECTS, 1)
        by_objects = [_seconds(Path(folder, f"objects{count}"), _FILES_OF_OBJECTS, count) - bare for count in _OBJECTS]
    session.series["growth"] = {
        "files": {"counts": list(_FILES), "seconds": by_files},
        "objects": {"counts": list(_OBJECTS), "seconds": by_objects},
    }
    for what, counts, seconds in (("RECORD rows", _FILES, by_files), ("objects", _OBJECTS, by_objects)):
        yield Row(
            f"growth: exponent, {counts[0]:,} to {counts[-1]:,} {what}",
            exponent(counts, seconds),
            _EXPONENT,
            "",
            f"CPU {seconds[0]:.3f} s to {seconds[-1]:.3f} s",
        )
    session.tables["Growth: CPU seconds beyond an empty venv"] = [
        ["files", *(f"{count:,}" for count in _FILES)],
        ["seconds", *(f"{taken:.3f}" for taken in by_files)],
        ["objects", *(f"{count:,}" for count in _OBJECTS)],
        ["seconds", *(f"{taken:.3f}" for taken in by_objects)],
    ]


def exponent(counts: Sequence[int], seconds: Sequence[float]) -> float:
    """The slope of the least-squares line through the logarithms."""
    xs = [math.log(count) for count in counts]
    ys = [math.log(max(taken, 1e-6)) for taken in seconds]
    x_mean, y_mean = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys)) / sum((x - x_mean) ** 2 for x in xs)


def _seconds(path: Path, files: int, objects: int) -> float:
    """CPU of examining such a venv, the least of several times in one process."""
    synthetic(path, files, objects)
    output = CACHE / "seconds.txt"
    worker = CHECKOUT / "benchmarks" / "workers" / "examine.py"
    run([sys.executable, str(worker), str(path), str(_REPEATS)], output)
    shutil.rmtree(path)
    return float(output.read_text())
