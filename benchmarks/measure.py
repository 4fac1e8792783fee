# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure processes: the best of several runs, because a machine that does other things can only be slower."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
CACHE = CHECKOUT / ".cache" / "bench"
_LAUNCHER = Path(__file__).with_name("launch.py")
_DROP_CACHES = Path("/proc/sys/vm/drop_caches")


@dataclass(frozen=True)
class Taken:
    """What a process took: seconds of wall clock and of CPU, bytes of peak memory, read from disk, and read at all."""

    wall: float
    cpu: float
    rss: int
    read_from_disk: int
    read: int


class CommandError(Exception):
    """A measured command ended with an error; the text has its last words."""


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of what is measured: as a host has it, with the collection importable and compiled once."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LD_", "ANSIBLE_"))}
    paths = {
        "PYTHONPATH": f"{CHECKOUT / '.collections'}:{CHECKOUT}",
        "PYTHONPYCACHEPREFIX": str(CACHE / "bytecode"),
        "LC_ALL": "C.UTF-8",
    }
    return {**kept, **paths, **(extra or {})}


def run(
    command: Sequence[str], output: Path | None = None, statuses: Sequence[int] = (0,), cold: bool = False
) -> Taken:
    """Run a command once, its standard output into a file or nowhere. Raises CommandError."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "taken.json")
        if cold:
            drop_caches()
        with open(output or os.devnull, "wb") as stream, open(Path(folder, "errors"), "w+b") as errors:
            launched = [sys.executable, "-I", "-S", str(_LAUNCHER), str(result), *command]
            done = subprocess.run(launched, env=environment(), stdout=stream, stderr=errors, check=False)
            errors.seek(0)
            words = errors.read().decode(errors="replace").strip()
        if done.returncode not in statuses:
            raise CommandError(f"{' '.join(command)}: status {done.returncode}: {words[-2000:]}")
        return Taken(**json.loads(result.read_text()))


def best(
    command: Sequence[str],
    times: int = 7,
    output: Path | None = None,
    statuses: Sequence[int] = (0,),
    cold: bool = False,
) -> Taken:
    """The least of each that several runs took; the first, which warms caches, is not counted unless ``cold``."""
    if not cold:
        run(command, output, statuses)
    return least([run(command, output, statuses, cold) for _number in range(times)])


def least(runs: Sequence[Taken]) -> Taken:
    """Each quantity's minimum."""
    return Taken(
        wall=min(taken.wall for taken in runs),
        cpu=min(taken.cpu for taken in runs),
        rss=min(taken.rss for taken in runs),
        read_from_disk=min(taken.read_from_disk for taken in runs),
        read=min(taken.read for taken in runs),
    )


def can_drop_caches() -> bool:
    """Whether the page cache can be emptied here: that needs root, and a kernel that is not shared."""
    return os.access(_DROP_CACHES, os.W_OK)


def drop_caches() -> None:
    """Empty the page cache, so that everything is read from the disk again."""
    os.sync()
    _DROP_CACHES.write_text("3\n")
