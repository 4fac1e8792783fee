# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a host's facts to the module's result. Private to the collection."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ansible_collections.gpufleet.dflash.plugins.module_utils._catalogue import DRIVER_FLOORS
from ansible_collections.gpufleet.dflash.plugins.module_utils._device_nodes import DeviceNode
from ansible_collections.gpufleet.dflash.plugins.module_utils._findings import verdict
from ansible_collections.gpufleet.dflash.plugins.module_utils._host_gather import HostFacts
from ansible_collections.gpufleet.dflash.plugins.module_utils._host_problems import judge_host
from ansible_collections.gpufleet.dflash.plugins.module_utils._nvidia_smi import SmiGpu


def host_result(facts: HostFacts) -> dict[str, Any]:
    """What the module returns for this host."""
    problems = judge_host(facts)
    surroundings = facts.surroundings
    return {
        "system": {
            "name": surroundings.system,
            "kernel": surroundings.kernel,
            "glibc": facts.glibc,
            "virtualisation": surroundings.kind,
            "platform": surroundings.platform,
            "numa_nodes": surroundings.numa_nodes,
            "memory": surroundings.memory,
        },
        "driver": _driver(facts),
        "gpus": _gpus(facts),
        "device_nodes": [_node(node) for node in facts.nodes],
        "fabric_manager": asdict(facts.fabric),
        "nvidia_smi": {
            "path": facts.smi.path,
            "answered": facts.smi.answered,
            "error": facts.smi.failure or None,
        },
        "kernel_log": facts.log.source,
        "shm": asdict(surroundings.shared_memory),
        "memlock": {
            "soft": surroundings.memlock[0],
            "hard": surroundings.memlock[1],
            "of": surroundings.memlock_of,
        },
        "rdma_devices": list(surroundings.rdma_devices),
        "toolchain": asdict(facts.toolchain),
        "unit": facts.circumstances.unit,
        "problems": [problem.as_dict() for problem in problems],
        "verdict": verdict(problems),
    }


def host_summary(host: Mapping[str, Any]) -> str:
    """One line for people: the verdict and the first problem, or what there is."""
    problems = host["problems"]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        return f"{host['verdict']}: {problems[0]['message']}{more}"
    gpus = host["gpus"]
    if not gpus or not host["driver"]["version"]:
        return "ok: no NVIDIA GPU" if not gpus else f"ok: no NVIDIA GPU but what virtual machines have ({len(gpus)})"
    names = sorted({gpu["name"] or "unknown" for gpu in gpus})
    return f"ok: {len(gpus)} x {' and '.join(names)}, driver {host['driver']['version']}, nothing wrong"


def _driver(facts: HostFacts) -> dict[str, Any]:
    major = facts.cuda_major
    return {
        "version": facts.kernel.version or facts.smi.driver,
        "kernel_module": facts.kernel.flavour,
        "built_for": list(facts.kernel.built_for),
        "cuda": facts.smi.cuda,
        "library": facts.library.version,
        "library_path": facts.library.path,
        "library_rule": facts.library.rule,
        "management_library": facts.management.version,
        "management_library_path": facts.management.path,
        "cuda_needed": major,
        "floor": DRIVER_FLOORS.get(major) if major else None,
    }


def _gpus(facts: HostFacts) -> list[dict[str, Any]]:
    """Every GPU that nvidia-smi, the kernel driver or the bus knows, in the driver's order."""
    smi = {gpu.address: gpu for gpu in facts.smi.gpus}
    driver = {gpu.address: gpu for gpu in facts.kernel.gpus}
    bus = {device.address: device for device in facts.kernel.gpus_on_bus}
    xids: dict[str, list[dict[str, Any]]] = {}
    for xid in facts.log.xids:
        xids.setdefault(xid.address, []).append({"number": xid.number, "count": xid.count, "text": xid.text})
    found = []
    for address in dict.fromkeys((*smi, *driver, *bus)):
        told, listed, device = smi.get(address, SmiGpu(address, -1)), driver.get(address), bus.get(address)
        found.append(
            {
                "index": told.index if address in smi else None,
                "address": address,
                "name": told.name or (listed.name if listed else None),
                "uuid": told.uuid or (listed.uuid if listed else None),
                "minor": told.minor if told.minor is not None else listed.minor if listed else None,
                "compute_capability": told.compute_capability,
                "memory": told.memory,
                "kernel_driver": device.driver or None if device else None,
                "numa_node": device.numa_node if device else None,
                "persistence_mode": told.persistence,
                "compute_mode": told.compute_mode,
                "mig": {"enabled": told.mig, "instances": told.instances},
                "ecc": {
                    "enabled": told.ecc,
                    "uncorrected": told.uncorrected,
                    "remapping_pending": told.remapping_pending,
                    "remapping_failure": told.remapping_failure,
                    "retirement_pending": told.retirement_pending,
                    "repair_pending": told.repair_pending,
                },
                "recovery_action": told.recovery_action,
                "reset_required": told.reset_required,
                "fabric": {"state": told.fabric_state, "status": told.fabric_status},
                "slowdowns": list(told.slowdowns),
                "xids": xids.get(address, []),
            }
        )
    return found


def _node(node: DeviceNode) -> dict[str, Any]:
    return {
        "path": node.path,
        "needed": node.needed,
        "present": node.present,
        "major": node.major,
        "minor": node.minor,
        "expected_major": node.expected,
        "mode": None if node.mode is None else f"{node.mode:04o}",
        "uid": node.uid,
        "gid": node.gid,
        "allowed": node.allowed,
        "error": f"{node.error}: {os.strerror(getattr(errno, node.error, 0))}" if node.error else None,
    }
