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
from pathlib import Path
from typing import Any, Callable, NamedTuple

from ansible_collections.gpufleet.dflash.plugins.module_utils._files import (
    exclusive,
    link_atomically,
    write_atomically,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._health import (
    HealthReport,
    HealthSpec,
    Unhealthy,
    release_of,
    wait_until_healthy,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._history import (
    ACTIVATING,
    FAILED,
    VERIFIED,
    Event,
    History,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._release import (
    Instance,
    Release,
    ReleaseError,
    is_staged,
    read_release,
    release_of_unit,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._systemd import Systemd, SystemdError

Progress = Callable[[str], None]


_TOLD_LINES = 6  # of the journal, in the message of a failure; the result has more


class Observed(NamedTuple):
    """What a host has now."""

    installed: str | None  # the release that the unit file belongs to
    running: str | None  # the release that the main process was started from
    enabled: bool
    serving: bool | None  # None: not asked


class Plan(NamedTuple):
    """What a switch will do; check mode shows it, a run carries it out."""

    release: str
    reasons: tuple[str, ...]  # empty: nothing to do

    @property
    def changed(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.reasons)


class SwitchError(Exception):
    """The wanted release does not serve; the text tells both stories: what failed, and what runs now."""

    def __init__(self, message: str, failed: HealthReport | None, restored: HealthReport | None) -> None:
        super().__init__(message)
        self.failed = failed
        self.restored = restored


def plan_switch(release: str, verified: bool, observed: Observed) -> Plan:
    """Return why an instance has to be switched to a release, from what is recorded and observed alone."""
    reasons = []
    if observed.installed != release:
        reasons.append(f"the unit is of {observed.installed or 'no release'}")
    if observed.running != release:
        reasons.append(f"the running process is of {observed.running}" if observed.running else "it does not run")
    if not observed.enabled:
        reasons.append("it would not start at boot")
    if not verified:
        reasons.append("it is not verified")
    if not reasons and observed.serving is False:
        reasons.append("it runs but does not serve")
    return Plan(release, tuple(reasons))


def choose_previous(history: History, installed: str | None, usable: Callable[[str], bool]) -> str | None:
    """Return the release to go back to; None when there is none.

    An instance that has been taken back stays where it is: going back twice is going back once.
    """
    last = history.last_verified()
    if last and last.rollback and last.release == installed:
        return installed
    candidates = (release for release in history.verified_releases() if release != installed)
    return next((release for release in candidates if usable(release)), None)


class Switch:
    """The changes of one instance's service."""

    def __init__(self, instance: Instance, progress: Progress, systemd: Systemd | None = None) -> None:
        self.instance = instance
        self.progress = progress
        self.systemd = systemd or Systemd()
        self.history = History(instance.history_path)

    def observe(self) -> Observed:
        """Return what the host has now, without asking the service."""
        state = self.systemd.show(self.instance.unit)
        return Observed(
            installed=release_of_unit(self.instance.installed_unit()),
            running=release_of(state.main_pid) if state.main_pid else None,
            enabled=state.unit_file_state == "enabled",
            serving=None,
        )

    def plan(self, release: str) -> tuple[Plan, HealthReport | None]:
        """Return what switching to a release would do; where nothing is to do, also proof that it serves."""
        observed = self.observe()
        verified = self.history.is_verified(release)
        plan = plan_switch(release, verified, observed)
        if plan.changed or not is_staged(self.instance, release):
            return plan, None
        try:
            report = self._verify(read_release(self.instance, release), started=False)
        except Unhealthy as error:
            return plan_switch(release, verified, observed._replace(serving=False)), error.report
        return plan, report

    def previous(self) -> str:
        """Return the release that a rollback goes to; raises ReleaseError when there is none."""
        installed = release_of_unit(self.instance.installed_unit())
        release = choose_previous(self.history, installed, self._usable)
        if release is None:
            raise ReleaseError(
                f"nothing to go back to: {self.instance.folder}: "
                "no other release that was verified is whole; deploy one, or name one with the option release"
            )
        return release

    def activate(self, release: str, rollback: bool = False) -> HealthReport:
        """Make an instance run a release and return the proof that it serves.

        Raises SwitchError after going back to the release verified last, or ReleaseError before anything is touched.
        """
        with exclusive(self.instance.lock_path, lambda: self.progress("waiting for another change of this instance")):
            self.history = History(self.instance.history_path)
            wanted = read_release(self.instance, release)
            fallback = next((r for r in self.history.verified_releases() if r != release and self._usable(r)), None)
            try:
                return self._settle(wanted, rollback) or self._start_and_verify(wanted, rollback)
            except (Unhealthy, SystemdError, OSError) as error:
                self.history.add(
                    Event(FAILED, release, generation=wanted.generation, rollback=rollback, reason=str(error))
                )
                raise self._go_back(fallback, _story(release, error), _report_of(error)) from error

    def _go_back(self, fallback: str | None, story: str, failed: HealthReport | None) -> SwitchError:
        """Put back the release that was verified last; return what to tell."""
        if fallback is None:
            self._remove()
            return SwitchError(
                f"{story}\nNo earlier release was verified here, so the unit is stopped and removed.",
                failed,
                None,
            )
        try:
            restored = self._start_and_verify(read_release(self.instance, fallback), rollback=True)
        except (Unhealthy, SystemdError, OSError, ReleaseError) as error:
            self.history.add(Event(FAILED, fallback, reason=str(error), rollback=True))
            return SwitchError(
                f"{story}\nGoing back failed too, nothing serves now: {_story(fallback, error)}",
                failed,
                None,
            )
        return SwitchError(
            f"{story}\nRelease {fallback} was put back and verified: it serves with PID {restored.main_pid}.",
            failed,
            restored,
        )

    def _settle(self, release: Release, rollback: bool) -> HealthReport | None:
        """Verify a release that runs already, as after an interrupted run, without disturbing it.

        Returns None where only a restart helps: another release runs, or this one was verified and has stopped serving.
        """
        observed = self.observe()
        verified = self.history.is_verified(release.id)
        if (observed.installed, observed.running) != (release.id, release.id) or (verified and observed.enabled):
            return None
        self.systemd.enable(self.instance.unit)
        try:
            return self._record(release, rollback, self._verify(release))
        except Unhealthy:
            return None

    def _start_and_verify(self, release: Release, rollback: bool) -> HealthReport:
        instance, systemd = self.instance, self.systemd
        self.progress(f"{'going back to' if rollback else 'starting'} release {release.id}")
        self.history.add(Event(ACTIVATING, release.id, generation=release.generation, rollback=rollback))
        write_atomically(instance.unit_path, release.unit.encode())
        systemd.daemon_reload()
        systemd.enable(instance.unit)
        systemd.reset_failed(instance.unit)
        # A unit that does not even start is told by the health check, with the cause and the journal.
        with contextlib.suppress(SystemdError):
            systemd.restart(instance.unit)
        return self._record(release, rollback, self._verify(release))

    def _record(self, release: Release, rollback: bool, report: HealthReport) -> HealthReport:
        accepted = (report.generation or {}).get("accept_length")
        self.history.add(
            Event(VERIFIED, release.id, generation=release.generation, rollback=rollback, accept_length=accepted)
        )
        folder = self.instance.release_folder(release.id)
        link_atomically(folder, os.path.join(self.instance.folder, "current"))
        return report

    def _verify(self, release: Release, started: bool = True) -> HealthReport:
        spec = HealthSpec.from_mapping({**release.health, "unit": self.instance.unit, "release": release.id})
        if not started and process_age(self.systemd.show(self.instance.unit).main_pid) > spec.stable:
            # It has shown for longer than that already that it stays up.
            spec = dataclasses.replace(spec, stable=0.0)
        return wait_until_healthy(spec, systemd=self.systemd, progress=self.progress)

    def _remove(self) -> None:
        """Take away a unit that never served."""
        with contextlib.suppress(SystemdError):
            self.systemd.stop(self.instance.unit)
            self.systemd.disable(self.instance.unit)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.instance.unit_path)
        with contextlib.suppress(SystemdError):
            self.systemd.daemon_reload()
            self.systemd.reset_failed(self.instance.unit)

    def _usable(self, release: str) -> bool:
        try:
            read_release(self.instance, release)
        except ReleaseError:
            return False
        return True


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


def _story(release: str, error: Exception) -> str:
    report = _report_of(error)
    lines = [f"release {release} did not become healthy: {error}"]
    if report and report.fix:
        lines.append(f"  fix: {report.fix}")
    lines += [f"  journal: {line}" for line in (report.journal if report else [])[-_TOLD_LINES:]]
    return "\n".join(lines)


def describe(plan: Plan, observed: Observed) -> dict[str, Any]:
    """Return the diff of a plan."""
    running = observed.running or "none"
    return {
        "before": f"release: {running}\nverified: {'false' if plan.reasons else 'true'}\n",
        "after": f"release: {plan.release}\nverified: true\n",
    }
