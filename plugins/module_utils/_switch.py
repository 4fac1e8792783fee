# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Switch an instance to a release, verify it, and go back by itself when it does not serve. Private to the collection.

One transaction on the host: between the moment the old service is stopped and the moment a verified one runs, nothing
depends on the controller.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from pathlib import Path
from typing import Callable
from urllib.parse import urlsplit

from ansible_collections.gpufleet.dflash.plugins.module_utils._files import (
    exclusive,
    link_atomically,
    write_atomically,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._gate import CAUSES, Gate, examine, target_of
from ansible_collections.gpufleet.dflash.plugins.module_utils._health import release_of, wait_until_healthy
from ansible_collections.gpufleet.dflash.plugins.module_utils._health_spec import HealthReport, Unhealthy
from ansible_collections.gpufleet.dflash.plugins.module_utils._history import (
    ACTIVATING,
    FAILED,
    VERIFIED,
    Event,
    History,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._hooks import HookError, hooks_of, run_hooks
from ansible_collections.gpufleet.dflash.plugins.module_utils._listener import Listeners
from ansible_collections.gpufleet.dflash.plugins.module_utils._manifest import is_generation
from ansible_collections.gpufleet.dflash.plugins.module_utils._release import (
    Instance,
    Release,
    ReleaseError,
    health_spec,
    is_staged,
    read_release,
    release_of_unit,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._switch_plan import (
    Observed,
    Plan,
    choose_previous,
    plan_switch,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._systemd import Systemd, SystemdError
from ansible_collections.gpufleet.dflash.plugins.module_utils._validate import validate_arguments

Progress = Callable[[str], None]

_TOLD_LINES = 6  # of the journal, in the message of a failure; the result has more
_NOT_HELPED_BY_A_RESTART = ("drafts-rejected", "no-drafts")  # causes of the health check


class SwitchError(Exception):
    """The wanted release does not serve; the text tells both stories: what failed, and what runs now."""

    def __init__(self, message: str, failed: HealthReport | None, restored: HealthReport | None = None) -> None:
        super().__init__(message)
        self.failed = failed
        self.restored = restored


class _UnannouncedError(Exception):
    """A release that serves, and whose hooks after the start failed."""


class Switch:
    """The changes of one instance's service."""

    def __init__(
        self, instance: Instance, progress: Progress, systemd: Systemd | None = None, gate: Gate | None = None
    ) -> None:
        self.instance = instance
        self.gate = gate or Gate()
        self.progress = progress
        self.systemd = systemd or Systemd()
        self.history = History(instance.history_path)

    def observe(self) -> Observed:
        """Return what the host has now, without asking the service."""
        state = self.systemd.show(self.instance.unit)
        text = self.instance.installed_unit()
        installed = release_of_unit(text)
        staged = self.instance.staged_unit(installed) if installed else None
        return Observed(
            installed=installed,
            running=release_of(state.main_pid) if state.main_pid else None,
            enabled=state.unit_file_state == "enabled",
            pristine=staged in (None, text) and not state.need_daemon_reload,
        )

    def plan(self, release: str) -> tuple[Plan, HealthReport | None]:
        """Return what switching to a release would do; where nothing is to do, also proof that it serves.

        Raises SwitchError where the release runs as it should and drafts too little: starting the same again would
        disturb its users and help nobody.
        """
        observed = self.observe()
        verified = self.history.is_verified(release)
        plan = plan_switch(release, verified, observed)
        if plan.changed or not is_staged(self.instance, release):
            return plan, None
        try:
            report = self._verify(read_release(self.instance, release), started=False)
        except Unhealthy as error:
            if error.report.cause in _NOT_HELPED_BY_A_RESTART:
                raise SwitchError(
                    f"{error}\nIt was left running: a restart does not change that.", error.report
                ) from error
            return plan_switch(release, verified, observed._replace(serving=False)), error.report
        return plan, report

    def previous(self) -> str:
        """Return the release that a rollback goes to; raises ReleaseError when there is none."""
        installed = release_of_unit(self.instance.installed_unit())
        release = choose_previous(self.history, installed, self._usable)
        if release is None:
            raise ReleaseError(
                f"nothing to go back to: {self.instance.folder}: "
                "no other release that was verified is whole; deploy one, or name one (sglang_dflash_release)"
            )
        return release

    def validate(self, release: str) -> None:
        """Find what would fail after the old service has stopped: a port that is held, arguments that are refused.

        Raises ReleaseError; nothing has been touched then.
        """
        if self.observe().running != release:
            wanted = read_release(self.instance, release)
            self._refuse_held_port(wanted)
            validate_arguments(wanted.validate, wanted.unit, self.instance.unit)

    def _refuse_held_port(self, release: Release) -> None:
        address = urlsplit(health_spec(self.instance, release).url)
        main_pid = self.systemd.show(self.instance.unit).main_pid
        holder = Listeners(address.hostname or "", address.port or 0).find(main_pid)
        if holder is None or holder.ours or (holder.pid and self._belongs(holder.pid)):
            return
        if holder.pid is None and main_pid and self._port_of_running() == address.port:
            return  # it may not be looked into, as in a container: what runs serves on that port, so it is that
        who = f"{holder.command} (PID {holder.pid})" if holder.pid else "another process"
        raise ReleaseError(
            f"port {address.port} is held by {who}: {self.instance.unit}, and nothing was touched: "
            "stop that process, or give the instance another port"
        )

    def _port_of_running(self) -> int | None:
        running = self.observe().running
        try:
            return urlsplit(health_spec(self.instance, read_release(self.instance, running or "")).url).port
        except ReleaseError:
            return None

    def _belongs(self, pid: int) -> bool:
        """Whether a process is one of the unit's, such as what a main process left that has just died."""
        try:
            return f"/{self.instance.unit}" in Path(f"/proc/{pid}/cgroup").read_text()
        except OSError:
            return True  # it has gone meanwhile, and the port with it

    def activate(self, release: str, rollback: bool = False) -> HealthReport:
        """Make an instance run a release and return the proof that it serves.

        Raises SwitchError after going back to the release verified last; ReleaseError, SystemdError or OSError before
        anything is touched.
        """
        with exclusive(self.instance.lock_path, lambda who: self.progress(f"waiting for {who} on this instance")):
            # Another run may have done it while this one waited.
            self.history = History(self.instance.history_path)
            plan, report = self.plan(release)
            if report and not plan.changed:
                return report
            wanted = read_release(self.instance, release)
            self.validate(release)
            self.systemd.timeout = max(self.systemd.timeout, 60 + max(map(stop_timeout, self._units(wanted))))
            event = Event(ACTIVATING, release, generation=wanted.generation, rollback=rollback)
            before = self._standing()
            self.history.add(event)
            try:
                if not is_generation(wanted.generation):  # old ones may be removed just now; see _prune
                    raise ReleaseError(f"its generation was removed meanwhile: {wanted.generation}: deploy again")
                return self._settle(wanted, rollback) or self._start_and_verify(wanted, rollback)
            except _UnannouncedError as error:
                self._note(event._replace(event=FAILED, reason=str(error)))
                raise SwitchError(
                    f"release {release} serves, but {error}\nIt was left running; run again to announce it.", None
                ) from error
            except Exception as error:  # whatever it is: the service has been touched, so the way back comes first
                if not isinstance(error, Unhealthy) and self._standing() == before:
                    raise SwitchError(
                        f"{_story(release, error)}\nNothing was touched: what ran goes on.", None
                    ) from error
                self._note(event._replace(event=FAILED, reason=_words(error)))
                raise self._go_back(release, _story(release, error), _report_of(error)) from error

    def _standing(self) -> tuple[str, int, str] | None:
        """What a switch changes: the unit's text, and which process runs; None when it cannot be told."""
        try:
            state = self.systemd.show(self.instance.unit)
            return self.instance.installed_unit(), state.main_pid, self.observe().running or ""
        except (SystemdError, OSError):
            return None

    def _units(self, wanted: Release) -> list[str]:
        return [wanted.unit, self.instance.installed_unit()]

    def _go_back(self, release: str, story: str, failed: HealthReport | None) -> SwitchError:
        """Put back the release that was verified last; return what to tell."""
        # Rather one that failed since than none: what once served may serve again.
        known = [*self.history.verified_releases(), *self.history.ever_verified()]
        fallback = next((name for name in known if name != release and self._usable(name)), None)
        if fallback is None:
            if any(event.event == VERIFIED for event in self.history.events):
                return SwitchError(f"{story}\nNo other verified release is whole, so it is left as it is.", failed)
            return SwitchError(f"{story}\nNo release was ever verified here, so {self._remove()}.", failed)
        event = Event(ACTIVATING, fallback, rollback=True)
        try:
            previous = read_release(self.instance, fallback)
            self._note(event._replace(generation=previous.generation))
            restored = self._start_and_verify(previous, rollback=True, only_if_needed=True)
        except Exception as error:
            if isinstance(error, Unhealthy):  # a full disk says nothing about the release
                self._note(event._replace(event=FAILED, reason=_words(error)))
            return SwitchError(
                f"{story}\nGoing back failed too: {_story(fallback, error)}\n{self._what_runs()}", failed
            )
        return SwitchError(
            f"{story}\nRelease {fallback} was put back and verified: it serves with PID {restored.main_pid}.",
            failed,
            restored,
        )

    def _what_runs(self) -> str:
        try:
            running = self.observe().running
        except (SystemdError, OSError) as error:
            return f"What runs now cannot be told: {_words(error)}"
        return f"The process that runs now is of release {running}." if running else "Nothing serves now."

    def _settle(self, release: Release, rollback: bool) -> HealthReport | None:
        """Verify a release that runs already, as after an interrupted run, without disturbing it.

        Returns None where only a restart helps: another release runs, or this one was verified and has stopped serving.
        """
        observed = self.observe()
        verified = self.history.is_verified(release.id)
        in_place = (observed.installed, observed.running, observed.pristine) == (release.id, release.id, True)
        if not in_place or (verified and observed.enabled):
            return None
        self.systemd.enable(self.instance.unit)
        try:
            return self._record(release, rollback, self._measure(release, rollback, self._verify(release)))
        except Unhealthy as error:
            if error.report.cause in CAUSES:
                raise
            return None

    def _start_and_verify(self, release: Release, rollback: bool, only_if_needed: bool = False) -> HealthReport:
        instance, systemd = self.instance, self.systemd
        self._leave(release, forgiving=only_if_needed)
        self.progress(f"{'going back to' if rollback else 'starting'} release {release.id}")
        write_atomically(instance.unit_path, release.unit.encode())
        systemd.daemon_reload()
        systemd.enable(instance.unit)
        if not (only_if_needed and self.observe().running == release.id):
            systemd.reset_failed(instance.unit)
            # A unit that does not even start is told by the health check, with the cause and the journal.
            with contextlib.suppress(SystemdError):
                systemd.restart(instance.unit)
        return self._record(release, rollback, self._measure(release, rollback, self._verify(release)))

    def _measure(self, release: Release, rollback: bool, report: HealthReport) -> HealthReport:
        """Add how fast a release is; raise Unhealthy for a new one that is too slow."""
        spec = health_spec(self.instance, release)
        return examine(
            self.gate, report, spec, target_of(spec, release), self.history, not rollback, self.progress,
            look_again=lambda: self._verify(release, started=False),
        )  # fmt: skip

    def _record(self, release: Release, rollback: bool, report: HealthReport) -> HealthReport:
        """Announce and note a verified release. What serves is not taken back because of either."""
        try:
            run_hooks(hooks_of(release.hooks, "post_start"), "post_start", self.progress)
        except HookError as error:
            # Not verified then: the next run tries again, without a restart.
            raise _UnannouncedError(f"post_start failed: {error}") from error
        numbers = report.throughput or {}
        accepted = numbers.get("accept_length") or (report.generation or {}).get("accept_length")
        rate, probe = numbers.get("tokens_per_second"), numbers.get("probe")
        self._note(Event(VERIFIED, release.id, "", release.generation, rollback, "", accepted, rate, probe))
        with contextlib.suppress(OSError):  # a link for people
            link_atomically(self.instance.release_folder(release.id), os.path.join(self.instance.folder, "current"))
        return report

    def _leave(self, release: Release, forgiving: bool) -> None:
        """Say that the service is about to stop, where it runs; on the way back that may fail, as it must go on."""
        if not self.systemd.show(self.instance.unit).main_pid:
            return
        try:
            run_hooks(hooks_of(release.hooks, "pre_stop"), "pre_stop", self.progress)
        except HookError as error:
            if not forgiving:
                raise
            self.progress(f"pre_stop failed: {error}")

    def _note(self, event: Event) -> None:
        """Add to the history where it can be; once the service is touched, a full disk must not decide its fate."""
        try:
            self.history.add(event)
        except OSError as error:
            self.history.events.append(event)
            self.progress(f"history.jsonl cannot be written: {error.strerror}")

    def _verify(self, release: Release, started: bool = True) -> HealthReport:
        spec = health_spec(self.instance, release)
        if not started and process_age(self.systemd.show(self.instance.unit).main_pid) > spec.stable:
            # It has shown for longer than that already that it stays up.
            spec = dataclasses.replace(spec, stable=0.0)
        return wait_until_healthy(spec, systemd=self.systemd, progress=self.progress)

    def _remove(self) -> str:
        """Take away a unit that never served; return what was done, in words."""
        unit, left = self.instance.unit, []
        steps: list[tuple[str, Callable[[], None]]] = [
            ("stop", lambda: self.systemd.stop(unit)),
            ("disable", lambda: self.systemd.disable(unit)),
            ("remove", lambda: os.unlink(self.instance.unit_path)),
            ("forget", self.systemd.daemon_reload),
        ]
        for what, action in steps:
            try:
                action()
            except FileNotFoundError:
                continue
            except (SystemdError, OSError) as error:
                left.append(f"{what}: {_words(error)}")
        with contextlib.suppress(SystemdError):
            self.systemd.reset_failed(unit)
        return "the unit was stopped and removed" + (f", as far as that went ({'; '.join(left)})" if left else "")

    def _usable(self, release: str) -> bool:
        try:
            read_release(self.instance, release)
        except ReleaseError:
            return False
        return True


def stop_timeout(unit: str) -> float:
    """Return the seconds that a unit of ours may take to stop."""
    found = re.search(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    return float(found.group(1)) if found else 90.0


def process_age(pid: int) -> float:
    """Return the seconds since a process was started; 0 when there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        uptime = float(Path("/proc/uptime").read_text().split()[0])
    except OSError:
        return 0.0
    return max(0.0, uptime - int(fields[19]) / os.sysconf("SC_CLK_TCK"))  # proc(5): field 22, starttime


def _report_of(error: Exception) -> HealthReport | None:
    return error.report if isinstance(error, Unhealthy) else None


def _words(error: Exception) -> str:
    """An error in words: those of this collection's own are sentences, others need their name."""
    if isinstance(error, (Unhealthy, SystemdError, ReleaseError, HookError, _UnannouncedError)):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror + (f": {error.filename}" if error.filename else "")
    return f"{type(error).__name__}: {error}"


def _story(release: str, error: Exception) -> str:
    report = _report_of(error)
    lines = [f"release {release} did not become healthy: {_words(error)}"]
    if report and report.fix:
        lines.append(f"  fix: {report.fix}")
    lines += [f"  journal: {line}" for line in (report.journal if report else [])[-_TOLD_LINES:]]
    return "\n".join(lines)
