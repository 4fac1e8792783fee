# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a probe came to its end, in words: crash, hang, exit, or no start at all.

Private to the collection.
"""

from __future__ import annotations

import os
import re
import signal
from typing import Any

from ansible_collections.gpufleet.dflash.plugins.module_utils._load_errors import (
    Place,
    Problem,
    access_fix,
    problem,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._probe_request import ProbeOutcome

# How much of the interpreter's last words is evidence, in characters.
TAIL = 4000

# What systemd calls the step that fails: the word in `systemctl status` and the exit status there.
_STEPS = {"GROUP": 216, "USER": 217, "CHDIR": 200, "EXEC": 203, "LIMITS": 205}

_STANDARD_LIBRARY = r"/lib/python3\.\d+/(?!site-packages/|dist-packages/)"

_CRASH_FIXES = {
    "SIGILL": "the code uses instructions that this CPU lacks: use a wheel built for it",
    "SIGBUS": "a library that was cut short ends like this: compare files with cuda_wheel_facts, verify: hash",
    "SIGKILL": "look for the OOM killer in the kernel's log: journalctl -k",
    "SIGSYS": "a system-call filter ended it: look at SystemCallFilter= in the unit",
}
_MIXED_VERSIONS = "versions that do not belong together end like this: install them from one lock; see stderr"


def attempt_of(kind: str, name: str) -> str:
    """Return what was tried, as messages name it."""
    if kind == "torch":
        return "looking for GPUs with torch"
    return f"`import {name}`" if kind == "import" else f"dlopen of {name}"


def untried(outcome: ProbeOutcome, suspect: tuple[str, str] | None, item: tuple[str, str]) -> str:
    """Return why there is no answer for an item."""
    if item == suspect:
        return _how(outcome)
    if suspect is None:
        return "not tried: the interpreter did not get that far"
    return f"not tried: the interpreter ended in {attempt_of(*suspect)}"


def _how(outcome: ProbeOutcome) -> str:
    if outcome.end == "killed":
        try:
            name = signal.Signals(outcome.status).name
        except ValueError:
            name = f"signal {outcome.status}"
        return f"the interpreter was killed by {name}"
    if outcome.end == "timeout":
        return "still not loaded at the time limit"
    return f"the interpreter exited with status {outcome.status}, without an exception"


def death(outcome: ProbeOutcome, place: Place, suspect: tuple[str, str] | None, timeout: float) -> Problem | None:
    """Return the problem of a probe that did not reach its end; ``suspect`` is what it was loading."""
    if outcome.end == "finished":
        return None
    if outcome.end == "not-started":
        return _not_started(place, next(e for e in outcome.events if e["event"] == "setup"))
    frame = _frame(outcome.stderr)
    at = f" at {frame[0]}:{frame[1]}" if frame else ""
    evidence = outcome.stderr[-TAIL:] or outcome.stdout[-TAIL:]
    if suspect is None:
        started = any(event["event"] == "interpreter" for event in outcome.events)
        when = "ends before it loads anything" if started else "does not start"
        if any(event["event"] == "done" for event in outcome.events):
            when = "ends after it has loaded what was asked for"
        return problem(
            "interpreter-died",
            f"Python {when} in {place.venv}: {_how(outcome)}",
            f"read stderr, and look at PYTHONHOME, PYTHONPATH and LD_PRELOAD in {place.whose}",
            object=f"{place.venv}/bin/python",
            evidence=evidence,
        )
    attempt = attempt_of(*suspect)
    if outcome.end == "timeout":
        return problem(
            "load-timeout",
            f"{attempt} hangs: it was not done after {timeout:g} s{at}",
            "see where it waits in stderr (network, lock, device); if it is only slow, raise timeout",
            paths=[frame[0]] if frame else [],
            evidence=evidence,
        )
    signal_name = _how(outcome).rpartition(" ")[2]
    return problem(
        "interpreter-died",
        f"{attempt} ends the interpreter{at}: {_how(outcome)}",
        _CRASH_FIXES.get(signal_name, _MIXED_VERSIONS),
        paths=[frame[0]] if frame else [],
        evidence=evidence,
    )


def _frame(stderr: str) -> tuple[str, str] | None:
    """Return file and line of the innermost frame that faulthandler printed, of the code that was loaded.

    A frame of the standard library says how it died, not what died: it counts only when there is no other.
    """
    frames = re.findall(r'File "([^"<]+)", line (\d+) in ', stderr)
    loaded = [frame for frame in frames if not re.search(_STANDARD_LIBRARY, frame[0])]
    return next(iter(loaded or frames), None)


def _not_started(place: Place, event: dict[str, Any]) -> Problem:
    step, what, reason = event["step"], event["subject"], event["reason"]
    status = f"the service would fail with status {_STEPS[step]}/{step}"
    barrier = event.get("blocked") or (what if reason == "Permission denied" else None)
    if barrier:
        verb = "enter" if os.path.isdir(barrier) else "read or run"
        goal = "the working directory" if step == "CHDIR" else f"{place.venv}/bin/python"
        message = f"user {place.user} cannot {verb} {barrier}, which is on the way to {goal}: {status}"
        fix = access_fix(place.user, barrier, "rx")
        return problem("access-denied", message, fix, paths=[barrier], evidence=f"{what}: {reason}")
    if step == "CHDIR":
        fix = f"create {what} for user {place.user}, or change WorkingDirectory= in {place.whose}"
        return problem("access-denied", f"cannot change to {what}: {reason}: {status}", fix, paths=[what])
    fix = f"look at {what} as root, and build the venv anew if its interpreter is gone"
    return problem("interpreter-died", f"cannot start {what}: {reason}: {status}", fix, object=what)
