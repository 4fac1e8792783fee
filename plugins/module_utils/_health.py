# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wait until an instance serves, watching its HTTP answers, its unit and the owner of its port together.

This module is private to the collection: it can change at any time.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Callable
from urllib.parse import urlsplit

from ansible_collections.gpufleet.dflash.plugins.module_utils._causes import (
    Ending,
    by_pattern,
    ending,
    explain,
    redact,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._engine_probe import (
    PROTOCOLS,
    Answer,
    Generation,
    GenerationError,
    ask,
    generate,
    read_key,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._listener import Listeners
from ansible_collections.gpufleet.dflash.plugins.module_utils._systemd import Systemd, SystemdError, UnitState
from ansible_collections.gpufleet.dflash.plugins.module_utils._watch import Observation, Verdict, Watch

POLL = 0.5  # seconds between two looks at the unit: a death is reported well within two seconds
HEARTBEAT = 15.0  # seconds between two progress lines that say nothing new
JOURNAL_LINES = 40
# When a request breaks, systemd learns of the process's death a moment later than the client does.
GRACE = 2.0
SHORTEST_GENERATION = 60.0
SYSTEMD_ABSENCE = 20.0
RELEASE_VARIABLE = "DFLASH_RELEASE"


@dataclass(frozen=True)
class HealthSpec:
    """What an instance must do to count as healthy. Times are seconds.

    C(release): the value that DFLASH_RELEASE must have in the main process's environment; None: any.
    C(api_key_file): where the key that the engine asks for stands, see _engine_probe.read_key; None: it asks for none.
    """

    unit: str
    url: str
    path: str = "/health"
    protocol: str = "sglang"
    timeout: float = 1800.0
    stable: float = 2.0
    generate: bool = True
    speculative: bool = True
    min_accept_length: float = 1.0
    model: str = "default"
    max_tokens: int = 64
    release: str | None = None
    api_key_file: str | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        try:
            usable = parts.scheme == "http" and bool(parts.hostname) and bool(parts.port)
        except ValueError:
            usable = False
        for wrong, key, remedy in (
            # systemctl would take a pattern for every unit that it matches.
            (not re.match(r"[\w:.@\\][\w:.@\\-]*\Z", self.unit, re.ASCII), "unit", "give the name of one systemd unit"),
            (not usable, "url", "give http://HOST:PORT"),
            (not self.path.startswith("/"), "path", "give a path that starts with /"),
            (self.protocol not in PROTOCOLS, "protocol", f"give one of {', '.join(sorted(PROTOCOLS))}"),
            (not math.isfinite(self.min_accept_length), "min_accept_length", "give a number"),
            (not 0 < self.timeout < math.inf, "timeout", "give seconds above 0"),
            (not 0 <= self.stable < math.inf, "stable", "give seconds, 0 or more"),
            (
                self.max_tokens < 2,
                "max_tokens",
                "give 2 or more: the first token of a completion is never drafted",
            ),
        ):
            if wrong:
                raise ValueError(f"unusable value: {key}: {getattr(self, key)!r}: {remedy}")

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> HealthSpec:
        """Return the spec that C(mapping) describes; ValueError names an unknown, missing or unusable key."""
        known = {item.name for item in fields(cls)}
        unknown, missing = sorted(set(mapping) - known), sorted({"unit", "url"} - set(mapping))
        if unknown:
            raise ValueError(f"unknown key: {unknown[0]}: remove it; known are {', '.join(sorted(known))}")
        if missing:
            raise ValueError(f"missing key: {missing[0]}: give it")
        given = {key: value for key, value in mapping.items() if value is not None}
        try:
            for key, kind in (
                ("timeout", float),
                ("stable", float),
                ("min_accept_length", float),
                ("max_tokens", int),
            ):
                if key in given:
                    given[key] = kind(given[key])
        except (TypeError, ValueError):
            raise ValueError(f"unusable value: {key}: {given[key]!r}: give a number") from None
        return cls(**given)

    def to_mapping(self) -> dict[str, Any]:
        """Return the spec as plain values that from_mapping reads."""
        return asdict(self)


@dataclass
class HealthReport:
    """How the wait ended. C(cause) is a stable name, C(message) one sentence; C(journal) has no secrets.

    C(exit_status) and C(signal) say how the main process ended, if it did; C(result) is systemd's.
    """

    unit: str
    healthy: bool = False
    cause: str = ""
    message: str = ""
    fix: str = ""
    exit_status: int | None = None
    signal: str | None = None
    result: str = ""
    seconds: float = 0.0
    main_pid: int = 0
    n_restarts: int = 0
    invocation_id: str = ""
    journal: list[str] = field(default_factory=list)
    timeline: list[dict[str, Any]] = field(default_factory=list)
    generation: dict[str, Any] | None = None

    def to_mapping(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return asdict(self)


class Unhealthy(Exception):  # noqa: N818 - a finding about the instance, not an error of ours
    """The instance does not serve. C(report) holds cause, message, fix, exit status, journal and timeline."""

    def __init__(self, report: HealthReport) -> None:
        super().__init__(report.message)
        self.report = report


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
        self, spec: HealthSpec, systemd: Systemd, clock: Clock, progress: Callable[[str], None] | None
    ) -> None:
        self.spec = spec
        self.systemd = systemd
        self.clock = clock
        self.progress = progress
        self.begin = clock.monotonic()
        self.watch = Watch(unit=spec.unit, port=urlsplit(spec.url).port or 0, stable=spec.stable)
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
        verdict = self.watch.observe(Observation(self.elapsed, state, answer, self.listeners.find(state.main_pid)))
        self._tell()
        return verdict

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
        broken_at: float | None = None
        while True:
            thread.join(POLL / 2)
            verdict = self.look(None)
            if verdict:
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
        return Unhealthy(report)

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
        if self.progress is None or not news and now < self._told_at + HEARTBEAT:
            return
        self._told_at = now
        for event in [item["event"] for item in news] or [f"still {self.watch.situation}"]:
            self.progress(f"{self.spec.unit}: {self.elapsed:.0f} s: {event}")


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
) -> HealthReport:
    """Return a report once the instance serves and, if asked to, generates; raise Unhealthy once it cannot.

    SystemdError: systemd is absent. C(progress) gets a line for each change, and a few while nothing changes.
    """
    wait = _Wait(spec, systemd or Systemd(), clock or Clock(), progress)
    wait.until_serving()
    wait.check_release()
    completion = None
    if spec.generate:
        completion = wait.generation()
        fault = wait.judge(completion)
        if fault:
            raise wait.failed(fault, completion)
    return wait.healthy(completion)
