# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two running instances measured side by side: which one is faster, by how much, and how sure that is.

This module is private to the collection: it can change at any time.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple

from ansible_collections.gpufleet.dflash.plugins.module_utils._gate import target_of
from ansible_collections.gpufleet.dflash.plugins.module_utils._health import release_of
from ansible_collections.gpufleet.dflash.plugins.module_utils._privilege import NEEDS_ROOT, may_read_environment
from ansible_collections.gpufleet.dflash.plugins.module_utils._release import (
    Instance,
    Release,
    ReleaseError,
    health_spec,
    instances_below,
    read_release,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._systemd import Systemd
from ansible_collections.gpufleet.dflash.plugins.module_utils._throughput import Measurement, Probe, Target, measure

ROUNDS = (2, 100)

Measure = Callable[[Target, Probe, bool], Measurement]


class Contestant(NamedTuple):
    """An instance, and the release that it runs."""

    instance: Instance
    release: Release
    target: Target


def contestant(root: str, name: str, systemd: Systemd) -> Contestant:
    """Return an instance that runs; raises ReleaseError for one that does not."""
    instance = Instance.named(root, name)
    if not os.path.isdir(instance.folder):
        there = ", ".join(instances_below(instance.root)) or "no instance"
        raise ReleaseError(f"{name}: never deployed on this host; there is {there}: name two of these")
    pid = systemd.show(instance.unit).main_pid
    if pid and not may_read_environment(pid):
        raise ReleaseError(f"which release {instance.unit} runs cannot be told: {NEEDS_ROOT}")
    running = release_of(pid) if pid else None
    if running is None:
        raise ReleaseError(f"{instance.unit} does not run: start it: comparing starts and stops nothing")
    release = read_release(instance, running)
    return Contestant(instance, release, target_of(health_spec(instance, release), release))


def compare(
    first: Contestant, second: Contestant, probe: Probe, rounds: int, measure_with: Measure = measure
) -> dict[str, Any]:
    """Measure two instances in turns and return both, and the ratio of the second to the first.

    Turns alternate their order (ABBA), so that a host that gets slower or faster meanwhile favours neither. Raises
    MeasurementError.
    """
    found: dict[str, list[Measurement]] = {one.instance.name: [] for one in (first, second)}
    for number in range(rounds):
        for one in (first, second) if number % 2 == 0 else (second, first):
            found[one.instance.name].append(measure_with(one.target, probe, number == 0))
    a, b = (found[one.instance.name] for one in (first, second))
    ratios = [late.tokens_per_second / early.tokens_per_second for early, late in zip(a, b)]
    return {
        "instances": [_summary(one, found[one.instance.name]) for one in (first, second)],
        "probe": probe.to_mapping(),
        "rounds": rounds,
        "ratio": _spread(ratios, 4),
    }


def _summary(one: Contestant, found: Sequence[Measurement]) -> dict[str, Any]:
    lengths = [each.accept_length for each in found if each.accept_length]
    return {
        "name": one.instance.name,
        "release": one.release.id,
        "generation": one.release.generation,
        "engine": one.release.engine,
        "speculative": bool(one.release.health.get("speculative", True)),
        "tokens_per_second": _spread([each.tokens_per_second for each in found], 1),
        "accept_length": round(statistics.fmean(lengths), 3) if lengths else None,
        "measured": [each.tokens_per_second for each in found],
    }


def _spread(values: Sequence[float], digits: int) -> Mapping[str, float]:
    return {
        "median": round(statistics.median(values), digits),
        "low": round(min(values), digits),
        "high": round(max(values), digits),
    }
