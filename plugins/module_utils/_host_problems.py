# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge a host's facts: every problem, its evidence and a fix. Private to the collection.

A host without an NVIDIA GPU has no problem, and neither has one that is in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Callable

from ansible_collections.gpufleet.dflash.plugins.module_utils import (
    _judge_devices,
    _judge_driver,
    _judge_gpus,
    _judge_surroundings,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._findings import Problem
from ansible_collections.gpufleet.dflash.plugins.module_utils._host_gather import HostFacts

# In the order of cause and effect: of two errors the first is the one to repair first.
_JUDGES: tuple[Callable[[HostFacts], Iterator[Problem]], ...] = (
    _judge_driver.module_missing,
    _judge_driver.library_missing,
    _judge_driver.stub_library,
    _judge_driver.versions_differ,
    _judge_driver.compat_library,
    _judge_driver.too_old,
    _judge_devices.nodes_missing,
    _judge_devices.nodes_stale,
    _judge_devices.nodes_refused,
    _judge_devices.nodes_forbidden,
    _judge_gpus.fabric,
    _judge_gpus.smi_fails,
    _judge_gpus.gpus_missing,
    _judge_gpus.gpus_unusable,
    _judge_gpus.gpu_faults,
    _judge_gpus.xids,
    _judge_surroundings.hidden_gpus,
    _judge_surroundings.cuda_home,
    _judge_surroundings.unit_notes,
    _judge_surroundings.toolchain,
    _judge_surroundings.small_shm,
    _judge_surroundings.low_memlock,
)


def judge_host(facts: HostFacts) -> list[Problem]:
    """Every problem of the host, errors first."""
    found = [problem for judge_one in _JUDGES for problem in judge_one(facts)]
    return sorted(found, key=lambda problem: problem.level != "error")
