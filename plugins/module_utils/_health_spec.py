# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an instance must do to count as healthy, and how a wait for that ended.

This module is private to the collection: it can change at any time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any
from urllib.parse import urlsplit

from ansible_collections.gpufleet.dflash.plugins.module_utils._engine_probe import PROTOCOLS


@dataclass(frozen=True)
class HealthSpec:
    """What an instance must do to count as healthy. Times are seconds.

    C(release): the value that DFLASH_RELEASE must have in the main process's environment; None: any.
    C(stall): how long an instance that does not serve may show no sign of life, see _liveness.
    C(api_key_file): where the key that the engine asks for stands, see _engine_probe.read_key; None: it asks for none.
    """

    unit: str
    url: str
    path: str = "/health"
    protocol: str = "sglang"
    timeout: float = 1800.0
    stall: float = 300.0
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
            (not 0 < self.stall < math.inf, "stall", "give seconds above 0"),
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
                ("stall", float),
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
    C(orphans): processes of an engine that nobody owns any more, see _orphans. C(throughput): see _throughput.
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
    orphans: list[dict[str, Any]] = field(default_factory=list)
    throughput: dict[str, Any] | None = None

    def to_mapping(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return asdict(self)


class Unhealthy(Exception):  # noqa: N818 - a finding about the instance, not an error of ours
    """The instance does not serve. C(report) holds cause, message, fix, exit status, journal and timeline."""

    def __init__(self, report: HealthReport) -> None:
        super().__init__(report.message)
        self.report = report
