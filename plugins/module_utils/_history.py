# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What ran on an instance, when, and whether it was verified. Private to the collection.

history.jsonl is the one source: each change of the service is written before it is made and its outcome after, so that
what a killed run or a power cut left behind can be told.
"""

from __future__ import annotations

import calendar
import json
import math
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from ansible_collections.gpufleet.dflash.plugins.module_utils._files import append_line, read_regular

ACTIVATING = "activating"
VERIFIED = "verified"
FAILED = "failed"

_TIME = "%Y-%m-%dT%H:%M:%SZ"


class Event(NamedTuple):
    """One line of the history."""

    event: str  # ACTIVATING, VERIFIED or FAILED
    release: str
    time: str = ""  # UTC, ISO 8601
    generation: str = ""
    rollback: bool = False  # made by going back, by a person or after a failed verification
    reason: str = ""
    accept_length: float | None = None  # mean accepted tokens a verification step
    tokens_per_second: float | None = None
    probe: dict[str, Any] | None = None  # how tokens_per_second was measured, see _throughput.Probe

    @property
    def seconds(self) -> float | None:
        """The time as seconds since 1970; None for what is no time."""
        try:
            return float(calendar.timegm(time.strptime(self.time, _TIME)))
        except ValueError:
            return None


class History:
    """The history of one instance, oldest event first."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.events: list[Event] = []
        try:
            text = read_regular(path).decode("utf-8", errors="replace")
        except FileNotFoundError:
            return
        for line in text.splitlines():
            event = _read_event(line)
            if event:
                self.events.append(event)

    def add(self, event: Event) -> None:
        """Append an event; it is on disk on return."""
        event = event._replace(time=time.strftime(_TIME, time.gmtime()))
        values = {name: value for name, value in event._asdict().items() if value not in ("", None, False)}
        append_line(self.path, json.dumps(values, sort_keys=True))
        self.events.append(event)

    def is_verified(self, release: str) -> bool:
        """Whether the last outcome of a release was a passed verification."""
        outcomes = [event.event for event in self.events if event.release == release and event.event != ACTIVATING]
        return outcomes[-1:] == [VERIFIED]

    def last_verified(self) -> Event | None:
        """The last verification that passed."""
        return next((event for event in reversed(self.events) if event.event == VERIFIED), None)

    def measured_before(self, release: str, probe: Mapping[str, Any]) -> Event | None:
        """The last verification of another release that was measured in the same way."""
        return next(
            (
                event
                for event in reversed(self.events)
                if event.event == VERIFIED
                and event.release != release
                and event.tokens_per_second
                and event.probe == dict(probe)
            ),
            None,
        )

    def ever_verified(self) -> list[str]:
        """Releases that were verified once, whatever became of them, the one verified last first."""
        return list(dict.fromkeys(event.release for event in reversed(self.events) if event.event == VERIFIED))

    def verified_releases(self) -> list[str]:
        """Releases whose last outcome was good, the one verified last first."""
        return [release for release in self.ever_verified() if self.is_verified(release)]


def _read_event(line: str) -> Event | None:
    """Return the event of a line; None for a line torn by a crash or written by somebody else."""
    try:
        values: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if (
        not isinstance(values, dict)
        or not isinstance(values.get("event"), str)
        or not isinstance(values.get("release"), str)
    ):
        return None
    usable = {name: values[name] for name in Event._fields if name in values and _fits(name, values[name])}
    return Event(**usable)


def _fits(name: str, value: Any) -> bool:
    """Whether a value can be what it is said to be; others would surprise whoever calculates with it."""
    if name in ("accept_length", "tokens_per_second"):
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    kind = {"probe": dict, "rollback": bool}.get(name, str)
    return isinstance(value, kind)
