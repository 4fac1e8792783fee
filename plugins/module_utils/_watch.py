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
    """One look, C(at) seconds after the wait began. C(answer): the latest, None before the first."""

    at: float
    unit: UnitState
    answer: Answer | None = None
    listener: Listener | None = None


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
    C(timeline): what changed, as {"at": seconds, "event": text}.
    """

    unit: str
    port: int
    stable: float
    timeline: list[dict[str, Any]] = field(default_factory=list)
    invocation_id: str = ""
    _restarts: int | None = None
    _main_pid: int = 0
    _situation: dict[str, str] = field(default_factory=dict)
    _since: dict[str, float] = field(default_factory=dict)

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
            return Verdict("restarted", f"{self.unit} died", died=True, aftermath=" and was restarted")
        self.invocation_id = self.invocation_id or unit.invocation_id
        self._main_pid = self._main_pid or unit.main_pid
        if unit.active_state == "failed" or unit.sub_state.startswith("auto-restart"):
            return Verdict("died", f"{self.unit} died", died=True)
        if unit.active_state == "deactivating":
            return Verdict("stopping", f"{self.unit} is being stopped", died=True)
        if unit.active_state == "inactive" and not unit.job:
            # systemd forgets how a unit ended as soon as nobody refers to it any more.
            if unit.exec_main_code or self._main_pid:
                return Verdict("died", f"{self.unit} ended", died=True)
            return Verdict("not-running", f"{self.unit} is not running", f"start it: systemctl start {self.unit}")
        return None

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
