# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a switch would do, from what is recorded and observed alone. Private to the collection."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

from ansible_collections.gpufleet.dflash.plugins.module_utils._history import (
    ACTIVATING,
    FAILED,
    VERIFIED,
    History,
)


class Observed(NamedTuple):
    """What a host has now."""

    installed: str | None  # the release that the unit file belongs to
    running: str | None  # the release that the main process was started from
    enabled: bool
    pristine: bool = True  # the unit is the staged text, and systemd has read it
    serving: bool | None = None  # None: not asked


class Plan(NamedTuple):
    """What a switch will do; check mode shows it, a run carries it out."""

    release: str
    reasons: tuple[str, ...]  # empty: nothing to do

    @property
    def changed(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.reasons)


def plan_switch(release: str, verified: bool, observed: Observed) -> Plan:
    """Return why an instance has to be switched to a release, from what is recorded and observed alone."""
    reasons = []
    if observed.installed != release:
        reasons.append(f"the unit is of {observed.installed or 'no release'}")
    elif not observed.pristine:
        reasons.append("the unit was changed by hand")
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

    An instance that has been taken back stays where it is: going back twice is going back once. A way back that was
    cut off is gone on with. One that failed and was undone is not a place to stay.
    """
    events = history.events
    if events and events[-1].event == ACTIVATING and events[-1].rollback and usable(events[-1].release):
        return events[-1].release
    verified = [index for index, event in enumerate(events) if event.event == VERIFIED]
    if verified:
        last = events[verified[-1]]
        undone = any(e.event == FAILED and e.rollback for e in events[max(0, verified[-1] - 2) : verified[-1]])
        if last.rollback and last.release == installed and not undone:
            return installed
    candidates = (release for release in history.verified_releases() if release != installed)
    return next((release for release in candidates if usable(release)), None)


def describe(plan: Plan, observed: Observed, verified: Callable[[str], bool]) -> dict[str, Any]:
    """Return the diff of a plan; what runs before is verified when its own last verification passed."""
    running = observed.running or "none"
    before = {"release": running, "verified": "true" if observed.running and verified(observed.running) else "false"}
    after = {"release": plan.release, "verified": "true"}
    if before == after:  # the release stays, and something else about it is put right
        before["to be put right"] = "; ".join(plan.reasons)
    return {"before": _lines(before), "after": _lines(after)}


def _lines(values: dict[str, str]) -> str:
    return "".join(f"{name}: {value}\n" for name, value in values.items())
