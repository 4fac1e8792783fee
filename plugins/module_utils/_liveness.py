# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a service that does not serve yet is at work: its log, its CPU time, its memory.

A model of hundreds of gigabytes may load for an hour, and a process that waits for a lock waits for ever; a clock
cannot tell them apart. This module is private to the collection: it can change at any time.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.gpufleet.dflash.plugins.module_utils._systemd import UnitState

CGROUPS = Path("/sys/fs/cgroup")
# Part of one core that counts as work: timers and the answers to health requests stay well below it.
BUSY = 0.01
# Weights that are mapped from a network file system cost little CPU time, and show as memory.
GROWTH = 1 << 20

# Lines that the health requests themselves bring forth.
_OWN = re.compile(r'"GET /\S* HTTP/|\bGET /(?:v1/)?health\b|Health check failed\. Server')
_BY_SYSTEMD = re.compile(r"(Starting|Started|Stopping|Stopped) ")
_PERCENT = re.compile(r"(?i)\b(?:load|captur|compil|download|prefetch)\w*\b.*?(?<![\d.])(\d{1,3})(?:\.\d+)?\s?%")
_STOPPED = "Tt"  # proc(5): stopped by a signal, or by a tracer
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Vitals:
    """What a service has used and said until one moment; None where this host does not tell."""

    cpu: float | None = None  # seconds
    memory: int | None = None  # bytes
    lines: tuple[str, ...] = ()  # the last ones of its log, without what health requests cause


def read_vitals(state: UnitState, log: Sequence[str], cgroups: Path = CGROUPS, proc: Path = Path("/proc")) -> Vitals:
    """Return the vitals of a unit, from its control group or, without one, from its processes."""
    lines = tuple(line for line in log if line.strip() and not _OWN.search(line))
    group = cgroups / state.control_group.lstrip("/") if state.control_group.strip("/") else None
    if group is not None:
        try:
            rows = (group / "cpu.stat").read_text().splitlines()
            used = dict(row.split(" ", 1) for row in rows if " " in row)
            return Vitals(int(used["usage_usec"]) / 1e6, _number(group / "memory.current"), lines)
        except (OSError, KeyError, ValueError):
            pass  # version 1, or the group has gone
    pids = members(state, cgroups, proc)
    times = [_stat(pid, proc) for pid in pids]
    ticks = [int(row[11]) + int(row[12]) for row in times if row]  # proc(5): utime and stime
    pages = [int(row[21]) for row in times if row]
    return Vitals(
        sum(ticks) / _TICKS if ticks else None, sum(pages) * os.sysconf("SC_PAGE_SIZE") if pages else None, lines
    )


def members(state: UnitState, cgroups: Path = CGROUPS, proc: Path = Path("/proc")) -> list[int]:
    """Return the processes of a unit: those of its control group, or else its main process and its descendants."""
    if state.control_group.strip("/"):
        for base in (cgroups, cgroups / "systemd"):
            try:
                listed = (base / state.control_group.lstrip("/") / "cgroup.procs").read_text()
            except OSError:
                continue
            return [int(word) for word in listed.split()]
    if not state.main_pid:
        return []
    found, parents = [state.main_pid], _parents(proc)
    for pid in found:  # grows while it is walked: children after their parents
        found += [child for child, parent in parents.items() if parent == pid and child not in found]
    return found


def suspended(pids: Sequence[int], proc: Path = Path("/proc")) -> list[int]:
    """Return those of the processes that are stopped, by SIGSTOP or a debugger."""
    rows = {pid: _stat(pid, proc) for pid in pids}
    return [pid for pid, row in rows.items() if row and row[0] in _STOPPED]


def title(pid: int, proc: Path = Path("/proc")) -> str:
    """Return how a process calls itself, such as C(sglang::scheduler_TP0); empty when it is gone."""
    try:
        words = (proc / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return words[0].decode("utf-8", "replace").strip()


def progress_of(lines: Sequence[str]) -> str:
    """Return how far a load has come, such as C(40 %), from the last line that tells it; empty when none does."""
    for line in reversed(lines):
        found = _PERCENT.search(line)
        if found and int(found[1]) <= 100:
            return f"{int(found[1])} %"
    return ""


def last_words(lines: Sequence[str]) -> str:
    """Return the last line that the service itself wrote, rather not the quoted code that Python adds to a warning."""
    own = [line for line in lines if not _BY_SYSTEMD.match(line)]
    whole = [line for line in own if not line[0].isspace()]
    return next(reversed(whole or own), "").strip()


@dataclass
class Liveness:
    """Takes vitals in order and tells since when there has been no sign of life."""

    alive_at: float | None = None
    _at: float = 0.0
    _seen: Vitals = field(default_factory=Vitals)

    def observe(self, at: float, vitals: Vitals) -> None:
        """Take one look, C(at) seconds after the wait began."""
        if self.alive_at is None or self._shows_life(at - self._at, vitals):
            self.alive_at = at
        self._at, self._seen = at, vitals

    def quiet_for(self, at: float) -> float:
        """Return the seconds since the last sign of life; 0 before the first look."""
        return 0.0 if self.alive_at is None else at - self.alive_at

    def _shows_life(self, seconds: float, vitals: Vitals) -> bool:
        before = self._seen
        if vitals.lines and vitals.lines != before.lines:
            return True
        if vitals.cpu is None and vitals.memory is None:
            return True  # nothing can be told here: then only the time-out counts
        busy = vitals.cpu is not None and before.cpu is not None and abs(vitals.cpu - before.cpu) > BUSY * seconds
        grown = vitals.memory is not None and before.memory is not None and vitals.memory > before.memory + GROWTH
        return busy or grown


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _stat(pid: int, proc: Path) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; empty when the process is gone."""
    try:
        fields = (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
    return fields if len(fields) > 21 else []


def _parents(proc: Path) -> dict[int, int]:
    found = {}
    for entry in proc.iterdir():
        if entry.name.isdigit():
            row = _stat(int(entry.name), proc)
            if row:
                found[int(entry.name)] = int(row[1])
    return found
