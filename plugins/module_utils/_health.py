# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wait until an instance serves, watching its HTTP answers, its unit and the owner of its port together.

This module is private to the collection: it can change at any time.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Callable
from urllib.parse import urlsplit

from ansible_collections.gpufleet.dflash.plugins.module_utils._causes import (
    Ending,
    by_pattern,
    ending,
    explain,
    redact,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._engine_probe import (
    Answer,
    Generation,
    GenerationError,
    ask,
    generate,
    read_key,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._health_spec import HealthReport, HealthSpec, Unhealthy
from ansible_collections.gpufleet.dflash.plugins.module_utils._listener import Listeners
from ansible_collections.gpufleet.dflash.plugins.module_utils._liveness import (
    Liveness,
    Vitals,
    last_words,
    members,
    progress_of,
    read_vitals,
    suspended,
    title,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._orphans import Orphan, find_orphans, remedy
from ansible_collections.gpufleet.dflash.plugins.module_utils._privilege import (
    NEEDS_ROOT,
    lacks_root,
    may_read_environment,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._systemd import Systemd, SystemdError, UnitState
from ansible_collections.gpufleet.dflash.plugins.module_utils._watch import (
    SLOW_ANSWER,
    Observation,
    Verdict,
    Watch,
)

POLL = 0.5  # seconds between two looks at the unit: a death is reported well within two seconds
HEARTBEAT = 15.0  # seconds between two progress lines that say nothing new
VITALS = 5.0  # seconds between two looks at log, CPU time and memory
JOURNAL_LINES = 40
LAST_LINES = 5
TOLD_WIDTH = 100  # characters of a line of the log in a line of progress
# When a request breaks, systemd learns of the process's death a moment later than the client does.
GRACE = 2.0
SHORTEST_GENERATION = 60.0
SYSTEMD_ABSENCE = 20.0
RELEASE_VARIABLE = "DFLASH_RELEASE"
# What an instance complains of when another engine's leftovers hold the GPU or the port.
HELD_BY_ORPHANS = ("gpu-out-of-memory", "port-in-use", "timeout", "stalled")


class Clock:
    """The host's time, replaceable in tests."""

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class _Prober:
    """Asks for health in a thread of its own: one answer may take 30 seconds, noticing a death must not."""

    def __init__(self, url: str) -> None:
        self.latest: Answer | None = None
        self._url = url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> _Prober:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.latest = ask(self._url)
            self._stop.wait(POLL)


class _Wait:
    """One wait for one instance: looks, tells progress, and turns a verdict into a report."""

    def __init__(
        self,
        spec: HealthSpec,
        systemd: Systemd,
        clock: Clock,
        progress: Callable[[str], None] | None,
        heartbeat: float,
    ) -> None:
        self.spec = spec
        self.systemd = systemd
        self.clock = clock
        self.progress = progress
        self.begin = clock.monotonic()
        self.heartbeat = heartbeat
        self.watch = Watch(unit=spec.unit, port=urlsplit(spec.url).port or 0, stable=spec.stable, stall=spec.stall)
        self.liveness = Liveness()
        self.vitals = Vitals()
        self._vitals_at = -VITALS
        self.listeners = Listeners(urlsplit(spec.url).hostname or "", urlsplit(spec.url).port or 0)
        self._told = 0
        self._told_at = self.begin
        self._last_state: UnitState | None = None
        self._looked_at = 0.0

    @property
    def elapsed(self) -> float:
        return self.clock.monotonic() - self.begin

    def look(self, answer: Answer | None) -> Verdict | None:
        """Look once at unit, port and the latest answer."""
        try:
            state = self.systemd.show(self.spec.unit)
        except SystemdError:
            # systemd answers nobody while it executes itself again (an upgrade does that to a whole fleet).
            if self._last_state is None or self.elapsed > self._looked_at + SYSTEMD_ABSENCE:
                raise
            return None
        self._last_state, self._looked_at = state, self.elapsed
        quiet, stopped = self._examine(state), self._suspended(state, answer)
        holder = self.listeners.find(state.main_pid)
        verdict = self.watch.observe(Observation(self.elapsed, state, answer, holder, quiet, stopped))
        self._tell()
        return verdict

    def _examine(self, state: UnitState) -> float:
        """Look for signs of life, not at every look; return the seconds since the last one."""
        if state.main_pid and self.elapsed >= self._vitals_at + min(VITALS, self.spec.stall / 3, self.heartbeat):
            self._vitals_at = self.elapsed
            try:
                log = self.systemd.journal(self.spec.unit, state.invocation_id, LAST_LINES)
            except SystemdError:
                log = []
            self.vitals = read_vitals(state, log)
            self.liveness.observe(self.elapsed, self.vitals)
        return self.liveness.quiet_for(self.elapsed)

    def _suspended(self, state: UnitState, answer: Answer | None) -> tuple[str, ...]:
        """Return the unit's processes that a signal has stopped, once answers or silence give reason to look."""
        slow = answer is not None and answer.status == 503 and answer.seconds >= SLOW_ANSWER
        if not slow and self.liveness.quiet_for(self.elapsed) < self.spec.stall:
            return ()
        return tuple(f"{pid} ({title(pid)})" for pid in suspended(members(state)))

    def until_serving(self) -> None:
        with _Prober(self.spec.url.rstrip("/") + self.spec.path) as prober:
            while True:
                verdict = self.look(prober.latest)
                if verdict and verdict.serving:
                    return
                if verdict:
                    raise self._unhealthy(verdict)
                if self.elapsed > self.spec.timeout:
                    raise self._unhealthy(self.watch.timed_out(self.spec.timeout))
                self.clock.sleep(POLL)

    def check_release(self) -> None:
        """Raise unless the main process was started by the release that the spec names."""
        wanted = self.spec.release
        state = self._last_state
        if wanted is None or state is None:
            return
        running = release_of(state.main_pid)
        if running is None and not may_read_environment(state.main_pid):
            raise self._unhealthy(
                Verdict(
                    "release-unreadable",
                    f"which release {self.spec.unit} runs cannot be told: /proc/{state.main_pid}/environ could not be "
                    f"read{' without root' if lacks_root() else ''}",
                    NEEDS_ROOT if lacks_root() else "let root look into that process, which this container forbids",
                )
            )
        if running != wanted:
            raise self._unhealthy(
                Verdict(
                    "wrong-release",
                    f"{self.spec.unit} runs release {running or 'unknown'}, not {wanted}",
                    "restart the unit, and look for a drop-in that overrides its environment",
                )
            )

    def generation(self) -> Generation:
        """Ask for tokens while the unit stays under watch."""
        spec = self.spec
        outcome: list[Generation | GenerationError] = []
        timeout = max(SHORTEST_GENERATION, spec.timeout - self.elapsed)

        def work() -> None:
            try:
                key = read_key(spec.api_key_file) if spec.api_key_file else None
                outcome.append(generate(spec.url, spec.protocol, spec.model, spec.max_tokens, timeout, key))
            except GenerationError as error:
                outcome.append(error)
            except (OSError, ValueError) as error:
                outcome.append(GenerationError(f"the API key cannot be read: {spec.api_key_file}: {error}"))

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self.watch.note(self.elapsed, "asking for tokens")
        # A scheduler that hangs now would make the request wait for the whole time-out; its health tells in 20 seconds.
        with _Prober(self.spec.url.rstrip("/") + self.spec.path) as prober:
            return self._completion(thread, outcome, prober)

    def _completion(
        self, thread: threading.Thread, outcome: list[Generation | GenerationError], prober: _Prober
    ) -> Generation:
        broken_at: float | None = None
        while True:
            thread.join(POLL / 2)
            verdict = self.look(prober.latest)
            if verdict and not verdict.serving:
                raise self._unhealthy(verdict, during=" while it generated")
            if outcome and isinstance(outcome[0], Generation):
                return outcome[0]
            if outcome and broken_at is None:
                broken_at = self.elapsed
            if broken_at is not None and self.elapsed > broken_at + GRACE:
                raise self._unhealthy(
                    Verdict(
                        "generation-failed",
                        f"no tokens come out: {outcome[0]}",
                        "read the journal's last lines",
                    )
                )

    def judge(self, generation: Generation) -> Verdict | None:
        """Return what is wrong with the drafts of a speculative instance, or None."""
        floor = self.spec.min_accept_length
        if not self.spec.speculative:
            return None
        if not generation.drafted:
            return Verdict(
                "no-drafts",
                f"{self.spec.unit} generates, but nothing was drafted: speculation is off",
                "check the speculative arguments and the draft model of the instance",
            )
        length = generation.accept_length or 0.0
        if length <= floor:
            return Verdict(
                "drafts-rejected",
                f"{self.spec.unit} accepts too few drafts: accept length {length:.2f}, not above {floor:.2f}",
                "check that the draft model was trained for this model and revision; a min_accept_length above the "
                "number of draft tokens can never be reached",
            )
        return None

    def healthy(self, generation: Generation | None) -> HealthReport:
        report = self._report(Verdict("healthy", f"{self.spec.unit} serves {self.spec.url}", ""))
        report.healthy = True
        report.generation = generation.to_mapping() if generation else None
        return report

    def failed(self, verdict: Verdict, generation: Generation | None = None) -> Unhealthy:
        failure = self._unhealthy(verdict)
        failure.report.generation = generation.to_mapping() if generation else None
        return failure

    def _report(self, verdict: Verdict) -> HealthReport:
        state = self._last_state or UnitState(self.spec.unit)
        self.watch.note(self.elapsed, verdict.cause)
        self._tell()
        return HealthReport(
            unit=self.spec.unit,
            cause=verdict.cause,
            message=redact(verdict.message),
            fix=verdict.fix,
            result=state.result,
            seconds=round(self.elapsed, 3),
            main_pid=state.main_pid,
            n_restarts=state.n_restarts,
            invocation_id=state.invocation_id,
            timeline=list(self.watch.timeline),
        )

    def _unhealthy(self, verdict: Verdict, during: str = "") -> Unhealthy:
        report = self._report(verdict)
        # The invocation that died explains it, not the one that systemd has started since.
        report.invocation_id = self.watch.invocation_id or report.invocation_id
        try:
            lines = self.systemd.journal(self.spec.unit, report.invocation_id, JOURNAL_LINES)
        except SystemdError as error:
            lines = [f"(the journal cannot be read: {error})"]
        report.journal = [redact(line) for line in lines]
        if verdict.died:
            end = self._ending(lines)
            report.exit_status, report.signal, report.result = end.exit_status, end.signal, end.result
            cause = explain(lines, end)
            report.cause, report.fix = cause.name, cause.fix
            report.message = redact(f"{verdict.message}{end.words}{during}{verdict.aftermath}: {cause.message}")
        elif verdict.ask_journal:
            hint = by_pattern(lines)
            if hint:
                report.message = redact(f"{verdict.message}: {hint.message}")
                report.fix = hint.fix
        self._blame_orphans(report)
        return Unhealthy(report)

    def _blame_orphans(self, report: HealthReport) -> None:
        """Name what a dead server left behind; it is the cause where it holds what the instance lacks."""
        orphans = find_orphans(members(self._last_state) if self._last_state else ())
        report.orphans = [orphan.to_mapping() for orphan in orphans]
        if orphans and report.cause in HELD_BY_ORPHANS:
            verdict = _orphaned(report.message, orphans)
            report.cause, report.message, report.fix = verdict.cause, verdict.message, verdict.fix

    def _ending(self, lines: list[str]) -> Ending:
        """Return how the main process ended, from the journal or, where it may not be read, from the unit."""
        state, end = self._last_state or UnitState(self.spec.unit), ending(lines)
        if end.exit_status is None and end.signal is None:
            return Ending(state.exit_status, state.signal, end.result or state.result)
        return replace(end, result=end.result or state.result)

    def _tell(self) -> None:
        news = self.watch.timeline[self._told :]
        self._told = len(self.watch.timeline)
        now = self.clock.monotonic()
        if self.progress is None or not news and now < self._told_at + self.heartbeat:
            return
        self._told_at = now
        for event in [item["event"] for item in news] or [f"still {self.watch.situation}{self._said()}"]:
            self.progress(f"{self.spec.unit}: {self.elapsed:.0f} s: {event}")

    def _said(self) -> str:
        """Return how far the load has come and what the service said last, to be appended."""
        words = redact(last_words(self.vitals.lines))
        words = words if len(words) <= TOLD_WIDTH else words[: TOLD_WIDTH - 3] + "..."
        quiet = self.liveness.quiet_for(self.elapsed)
        silent = f"nothing happens for {quiet:.0f} s" if quiet > max(30.0, self.spec.stall / 4) else ""
        parts = [part for part in (progress_of(self.vitals.lines), silent, words) if part]
        return "".join(f": {part}" for part in parts)


def _orphaned(message: str, orphans: list[Orphan]) -> Verdict:
    named = ", ".join(orphan.words for orphan in orphans)
    return Verdict("orphaned-process", f"{message}; a server that died left {named}", remedy(orphans))


def release_of(pid: int) -> str | None:
    """Return the DFLASH_RELEASE that the process was started with, or None; reading it needs root."""
    try:
        block = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    prefix = f"{RELEASE_VARIABLE}=".encode()
    return next((row[len(prefix) :].decode() for row in block.split(b"\0") if row.startswith(prefix)), None)


def wait_until_healthy(
    spec: HealthSpec,
    *,
    systemd: Systemd | None = None,
    clock: Clock | None = None,
    progress: Callable[[str], None] | None = None,
    heartbeat: float = HEARTBEAT,
) -> HealthReport:
    """Return a report once the instance serves and, if asked to, generates; raise Unhealthy once it cannot.

    SystemdError: systemd is absent. C(progress) gets a line for each change, and one each C(heartbeat) seconds while
    nothing changes.
    """
    wait = _Wait(spec, systemd or Systemd(), clock or Clock(), progress, heartbeat)
    wait.until_serving()
    wait.check_release()
    completion = None
    if spec.generate:
        completion = wait.generation()
        fault = wait.judge(completion)
        if fault:
            raise wait.failed(fault, completion)
    return wait.healthy(completion)
