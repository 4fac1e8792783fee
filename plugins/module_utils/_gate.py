# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a new release is fast enough: measured, and compared with the release that was verified last.

This module is private to the collection: it can change at any time.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Callable

from ansible_collections.gpufleet.dflash.plugins.module_utils._health_spec import HealthReport, HealthSpec, Unhealthy
from ansible_collections.gpufleet.dflash.plugins.module_utils._history import Event, History
from ansible_collections.gpufleet.dflash.plugins.module_utils._release import Release
from ansible_collections.gpufleet.dflash.plugins.module_utils._throughput import (
    Measurement,
    MeasurementError,
    Probe,
    Target,
    measure,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._watch import Verdict

_LIBRARY_PATH = re.compile(r'^Environment="?LD_LIBRARY_PATH=([^"\n]*)', re.MULTILINE)
_USER = re.compile(r"^User=(\S+)$", re.MULTILINE)

# What these say of a release, a restart does not change.
CAUSES = ("slower-than-before", "probe-failed")

Progress = Callable[[str], None]
Measure = Callable[[Target, Probe, bool], Measurement]


@dataclass(frozen=True)
class Gate:
    """How a release is measured, and by how many percent it may be slower than the one before; 0: by any."""

    probe: Probe = field(default_factory=lambda: Probe(requests=0))
    max_regression: float = 0.0

    @classmethod
    def from_options(cls, probe: Mapping[str, Any] | None, max_regression: float | None) -> Gate:
        """Return the gate of a module's options; without a probe it measures nothing. ValueError names mistakes."""
        limit = 0.0 if max_regression is None else max_regression
        if not math.isfinite(limit) or not 0 <= limit < 100:
            raise ValueError(f"max_regression: {limit:g}: give percent, 0 (off) to below 100")
        return cls(Probe(requests=0) if probe is None else Probe.from_mapping(probe), limit)


def examine(
    gate: Gate,
    report: HealthReport,
    spec: HealthSpec,
    target: Target,
    history: History,
    binding: bool,
    progress: Progress,
    look_again: Callable[[], object],
    measure_with: Measure = measure,
) -> HealthReport:
    """Return the report of a healthy release with its throughput; raise Unhealthy where it is too slow.

    C(look_again) raises Unhealthy where the service does not serve any more. C(binding): whether the release is judged.
    One that was verified here before is not, nor is a way back: going back must always be possible, also from a release
    that was faster.
    """
    release = spec.release or ""
    if not gate.probe.wanted:
        return report
    progress(f"{report.unit}: measuring tokens per second")
    binding = binding and gate.max_regression > 0 and release not in history.ever_verified()
    baseline = history.measured_before(release, gate.probe.to_mapping()) if binding else None
    try:
        found = measure_with(target, gate.probe, True)
        if baseline and _slower(found, baseline, gate.max_regression):
            # A neighbour's noise passes; a slow release stays slow.
            progress(f"{report.unit}: {found.tokens_per_second:g} tokens/s, slower than before: measuring again")
            again = measure_with(target, gate.probe, True)
            found = max(found, again, key=lambda one: one.tokens_per_second)
    except (MeasurementError, OSError) as error:
        look_again()  # where the service has died of it, that is the story
        if binding:
            raise _failed(report, probe_failed(report.unit, str(error))) from error
        progress(f"{report.unit}: not measured: {error}")
        return report
    numbers = {**found.to_mapping(), "probe": gate.probe.to_mapping()}
    if baseline:
        numbers["baseline"] = {
            "release": baseline.release,
            "tokens_per_second": baseline.tokens_per_second,
            "accept_length": baseline.accept_length,
        }
    report = dataclasses.replace(report, throughput=numbers)
    progress(f"{report.unit}: {_words(found.tokens_per_second, found.accept_length)}")
    if baseline and _slower(found, baseline, gate.max_regression):
        raise _failed(report, slower_than_before(report.unit, found, baseline, gate.max_regression))
    return report


def target_of(spec: HealthSpec, release: Release) -> Target:
    """Return a release as something to be measured."""
    path, user = _LIBRARY_PATH.search(release.unit), _USER.search(release.unit)
    return Target(
        spec.url,
        spec.protocol,
        spec.model,
        spec.api_key_file,
        os.path.join(release.generation, "bin", "python"),
        path.group(1) if path else "",
        user.group(1) if user else "",
    )


def slower_than_before(unit: str, found: Measurement, baseline: Event, limit: float) -> Verdict:
    """Return what is wrong with a release that is too slow; both numbers are in it."""
    before = baseline.tokens_per_second or 0.0
    return Verdict(
        "slower-than-before",
        f"{unit} is {_drop(found, baseline):.0f} % slower than release {baseline.release}: "
        f"{_words(found.tokens_per_second, found.accept_length)}, before "
        f"{_words(before, baseline.accept_length)}; {limit:g} % are allowed, and it was measured twice",
        "compare drafter, draft_tokens, attention backends and versions of the two releases; if the new speed is "
        "meant, raise sglang_dflash_max_regression for one deploy",
    )


def probe_failed(unit: str, words: str) -> Verdict:
    """Return what is wrong with a release that cannot be measured."""
    return Verdict(
        "probe-failed",
        f"{unit} is healthy, and its throughput cannot be measured: {words}",
        "correct sglang_dflash_probe, or set sglang_dflash_max_regression to 0",
    )


def _slower(found: Measurement, baseline: Event, limit: float) -> bool:
    return _drop(found, baseline) > limit


def _drop(found: Measurement, baseline: Event) -> float:
    before = baseline.tokens_per_second or 0.0
    return 100.0 * (1 - found.tokens_per_second / before) if before > 0 else 0.0


def _words(rate: float, accept_length: float | None) -> str:
    return f"{rate:g} tokens/s" + (f", accept length {accept_length:.2f}" if accept_length else "")


def _failed(report: HealthReport, verdict: Verdict) -> Unhealthy:
    return Unhealthy(
        dataclasses.replace(report, healthy=False, cause=verdict.cause, message=verdict.message, fix=verdict.fix)
    )
