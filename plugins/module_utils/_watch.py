# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a sequence of looks at a unit, its port and its HTTP answers means: decisions without any I/O.

This module is private to the collection: it can change at any time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ansible_collections.gpufleet.dflash.plugins.module_utils._engine_probe import Answer
from ansible_collections.gpufleet.dflash.plugins.module_utils._listener import Listener
from ansible_collections.gpufleet.dflash.plugins.module_utils._systemd import UnitState

# A wrong answer must last this long: at the moment of a start or stop one look can mix two processes.
PERSISTENT = 1.0
# SGLang answers 503 at once while it starts, and only after 20 seconds (SGLANG_HEALTH_CHECK_TIMEOUT) when its scheduler
# says nothing. A compilation in the middle of a request may do that once; not this often in a row.
SLOW_ANSWER = 15.0
SLOW_ANSWERS = 3
# Answers that no amount of waiting turns into 200.
REFUSALS = {
    401: (
        "unauthorized",
        "the health path asks for a key",
        "give a path that needs none: SGLang serves /health without",
    ),
    403: ("unauthorized", "the health path is forbidden", "give a path that the engine serves without a key"),
    404: ("wrong-path", "the health path does not exist", "give the engine's health path, usually /health"),
    405: (
        "wrong-path",
        "the health path does not take GET",
        "give the engine's health path, usually /health",
    ),
}


@dataclass(frozen=True)
class Observation:
    """One look, C(at) seconds after the wait began. C(answer): the latest, None before the first.

    C(quiet): seconds without a sign of life. C(suspended): processes of the unit that a signal has stopped, as
    "PID (name)".
    """

    at: float
    unit: UnitState
    answer: Answer | None = None
    listener: Listener | None = None
    quiet: float = 0.0
    suspended: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """A decision.

    C(serving): the instance serves. C(died): the main process ended, so its last words tell the cause.
    C(ask_journal): it lives, and its words may explain why it is of no use.
    """

    cause: str
    message: str
    fix: str = ""
    serving: bool = False
    died: bool = False
    ask_journal: bool = False
    aftermath: str = ""


@dataclass
class Watch:
    """Takes looks in order and decides as soon as they allow it.

    C(stable): seconds that the instance must answer 200 with the same main process to count as serving.
    C(stall): seconds without any sign of life that are too many for an instance that does not serve.
    C(timeline): what changed, as {"at": seconds, "event": text}.
    """

    unit: str
    port: int
    stable: float
    stall: float = 300.0
    timeline: list[dict[str, Any]] = field(default_factory=list)
    invocation_id: str = ""
    _restarts: int | None = None
    _main_pid: int = 0
    _situation: dict[str, str] = field(default_factory=dict)
    _since: dict[str, float] = field(default_factory=dict)
    _slow: list[Answer] = field(default_factory=list)

    @property
    def situation(self) -> str:
        """What was last seen, for a progress line."""
        return ", ".join(self._situation.values()) or "waiting"

    def note(self, at: float, event: str) -> None:
        """Add an event to the timeline."""
        self.timeline.append({"at": round(at, 2), "event": event})

    def observe(self, seen: Observation) -> Verdict | None:
        """Return the decision that this look completes, or None to go on."""
        self._follow(seen.at, "unit", f"unit {seen.unit.active_state}/{seen.unit.sub_state}")
        dead = self._judge_unit(seen.unit)
        if dead:
            return dead
        stranger = seen.listener is not None and seen.listener.ours is False
        if self._lasts("stranger", stranger, seen.at, PERSISTENT) and seen.listener:
            who = f"process {seen.listener.pid} ({seen.listener.command})"
            return Verdict(
                "port-in-use",
                f"port {self.port} is held by {who}, which is not of {self.unit}",
                "stop that process, or give the instance another port",
            )
        hung = self._judge_scheduler(seen)
        if hung:
            return hung
        if seen.quiet >= self.stall and (seen.answer is None or seen.answer.status != 200):
            stopped = f"; stopped by a signal: {', '.join(seen.suspended)}" if seen.suspended else ""
            return Verdict(
                "stalled",
                f"{self.unit} does nothing: for {seen.quiet:.0f} seconds no line in its log, no CPU time and no more "
                f"memory{stopped}",
                self._revive(
                    seen,
                    "see what it waits for: a lock in a cache directory, a network, another rank; "
                    "py-spy dump --pid of its processes shows where; restart it",
                ),
                ask_journal=True,
            )
        if seen.answer is None:
            return None
        self._follow(seen.at, "answer", seen.answer.summary)
        refusal = REFUSALS.get(seen.answer.status or 0)
        if self._lasts("refusal", refusal is not None and not stranger, seen.at, PERSISTENT) and refusal:
            cause, message, fix = refusal
            return Verdict(cause, f"{self.unit}: {message} (HTTP {seen.answer.status})", fix)
        serves = seen.answer.status == 200 and not stranger and seen.unit.active_state == "active"
        if self._lasts("serving", serves, seen.at, self.stable):
            return Verdict("serving", f"{self.unit} serves", serving=True)
        return None

    def timed_out(self, timeout: float) -> Verdict:
        """Return the decision when the time is up without another."""
        fix = "it is alive: raise the time-out if the model still loads"
        if self._situation.get("answer") == "HTTP 503":
            fix = "it answers but never gets ready: its scheduler hangs or its warm-up fails; read the journal"
        message = f"{self.unit} does not serve after {timeout:.0f} seconds: {self.situation}"
        return Verdict("timeout", message, fix, ask_journal=True)

    def _judge_unit(self, unit: UnitState) -> Verdict | None:
        if unit.load_state not in ("loaded", ""):
            return Verdict(
                "unit-missing" if unit.load_state == "not-found" else "unit-unusable",
                f"the unit {self.unit} is {unit.load_state}",
                f"check its file: systemctl status {self.unit}; run daemon-reload after changing it",
            )
        if self._restarts is None:
            self._restarts = unit.n_restarts
        restarted = (
            unit.n_restarts > self._restarts
            or bool(self.invocation_id) and unit.invocation_id not in ("", self.invocation_id)
            or bool(self._main_pid) and unit.main_pid not in (0, self._main_pid)
        )  # fmt: skip
        if restarted:
            return Verdict("restarted", f"{self.unit} died", died=True, aftermath=" and was restarted" + _loop(unit))
        self.invocation_id = self.invocation_id or unit.invocation_id
        self._main_pid = self._main_pid or unit.main_pid
        if unit.active_state == "failed" or unit.sub_state.startswith("auto-restart"):
            return Verdict("died", f"{self.unit} died", died=True, aftermath=_loop(unit))
        if unit.active_state == "deactivating":
            return Verdict("stopping", f"{self.unit} is being stopped", died=True)
        if unit.active_state == "inactive" and not unit.job:
            # systemd forgets how a unit ended as soon as nobody refers to it any more.
            if unit.exec_main_code or self._main_pid:
                return Verdict("died", f"{self.unit} ended", died=True)
            return Verdict("not-running", f"{self.unit} is not running", f"start it: systemctl start {self.unit}")
        return None

    def _judge_scheduler(self, seen: Observation) -> Verdict | None:
        """Return a verdict for an engine whose server answers in the place of a scheduler that does not."""
        answer = seen.answer
        if answer is None or answer.status != 503 or answer.seconds < SLOW_ANSWER:
            if answer is not None:
                self._slow.clear()
            return None
        # The same answer is looked at until the next one has come.
        if all(answer is not known for known in self._slow):
            self._slow.append(answer)
        if len(self._slow) < SLOW_ANSWERS and not seen.suspended:
            return None
        stopped = f": stopped by a signal: {', '.join(seen.suspended)}" if seen.suspended else ""
        return Verdict(
            "scheduler-hung",
            f"{self.unit} answers HTTP 503 after {answer.seconds:.0f} seconds, so its scheduler hangs{stopped}",
            self._revive(seen, "restart it; py-spy dump --pid of the scheduler shows where it hangs"),
            ask_journal=True,
        )

    def _revive(self, seen: Observation, otherwise: str) -> str:
        if not seen.suspended:
            return otherwise
        pids = " ".join(process.partition(" ")[0] for process in seen.suspended)
        return f"find out who stopped it, a debugger or profiler; kill -CONT {pids} lets it go on, or restart it"

    def _follow(self, at: float, subject: str, state: str) -> None:
        if self._situation.get(subject) != state:
            self._situation[subject] = state
            self.note(at, state)

    def _lasts(self, subject: str, true: bool, at: float, seconds: float) -> bool:
        """Return whether the subject has been true for at least this long."""
        if not true:
            self._since.pop(subject, None)
            return False
        return at - self._since.setdefault(subject, at) >= seconds


def _loop(unit: UnitState) -> str:
    """Return words for a crash loop, to be appended; empty for a first death."""
    return f" (restarts by systemd so far: {unit.n_restarts})" if unit.n_restarts > 1 else ""
