# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge the device nodes through which a service reaches its GPUs. Private to the collection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ansible_collections.gpufleet.dflash.plugins.module_utils._device_nodes import DeviceNode
from ansible_collections.gpufleet.dflash.plugins.module_utils._findings import Problem
from ansible_collections.gpufleet.dflash.plugins.module_utils._host_gather import HostFacts

_MAKE = "nvidia-modprobe -c0 -u"
_AT_BOOT = f"{_MAKE}, now and at every boot before the service (ExecStartPre=+/usr/bin/{_MAKE})"


def nodes_missing(facts: HostFacts) -> Iterator[Problem]:
    """Nodes that CUDA opens and that are not there (pytorch/pytorch#141863)."""
    absent = [node for node in facts.nodes if node.needed and node.major is None]
    uvm = [node for node in absent if node.path == "/dev/nvidia-uvm"]
    damaged = [node for node in absent if node.present]
    if not absent or (facts.nodes_on_demand and not damaged):
        return
    names = ", ".join(node.path for node in absent)
    verb = "is" if len(absent) == 1 else "are"
    if damaged:
        message = f"{damaged[0].path} is there and is no character device"
        fix = f"rm {damaged[0].path}, then {_MAKE}"
    elif facts.confined:
        message = f"{names} {verb} not in this container"
        fix = (
            "start the container with the NVIDIA runtime; LXC: bind the nodes with lxc.mount.entry (or dev0: in "
            f"Proxmox), and run {_MAKE} on the host at boot, before the container"
        )
    else:
        message = f"{names} {verb} missing, and nothing makes {'it' if len(absent) == 1 else 'them'} on demand"
        fix = _AT_BOOT
        if uvm and len(absent) == 1:
            message += ": nvidia-smi works, and CUDA says that there is no GPU"
    yield Problem(
        "device-node-missing",
        message,
        fix,
        paths=tuple(node.path for node in absent),
        evidence=_majors(facts),
    )


def nodes_stale(facts: HostFacts) -> Iterator[Problem]:
    """Nodes with the number of another driver, after a boot or a reload of nvidia_uvm (NVIDIA/enroot#106)."""
    stale = [node for node in facts.nodes if node.needed and node.stale]
    if not stale:
        return
    first = stale[0]
    fix = f"rm {' '.join(node.path for node in stale)} && {_MAKE}"
    if facts.confined:
        fix = (
            f"on the container's host, allow major {first.expected} in place of {first.major} (LXC: "
            f"lxc.cgroup2.devices.allow: c {first.expected}:* rwm), bind the host's node, and restart the container"
        )
    yield Problem(
        "device-node-missing",
        f"{first.path} has major {first.major}, and its driver has {first.expected} since it was loaded: the node "
        "leads nowhere",
        fix,
        paths=tuple(node.path for node in stale),
        evidence=_majors(facts),
    )


def nodes_refused(facts: HostFacts) -> Iterator[Problem]:
    """Nodes that are right and cannot be opened: the device rule of a cgroup, or a driver that fails."""
    refused = [node for node in facts.nodes if node.error in ("EPERM", "ENXIO", "ENODEV")]
    if not refused:
        return
    first = refused[0]
    names = ", ".join(node.path for node in refused)
    if first.error == "EPERM":
        message = f"{names}: opening is refused (EPERM) although the node is right: a cgroup's device rule forbids it"
        fix = (
            f"on the container's host, allow major {first.major} (LXC: lxc.cgroup2.devices.allow: c {first.major}:* "
            "rwm; docker: --device) and restart the container"
            if facts.confined
            else f"allow {first.path} in DeviceAllow= of the slice or unit that this session runs in"
        )
    else:
        message = f"{names}: no driver answers behind the node ({first.error})"
        fix = f"modprobe nvidia nvidia_uvm, then {_MAKE}; `dmesg | grep NVRM` tells why a GPU did not start"
    yield Problem(
        "device-node-missing", message, fix, paths=tuple(node.path for node in refused), evidence=_majors(facts)
    )


def nodes_forbidden(facts: HostFacts) -> Iterator[Problem]:
    """Nodes that the service's account or unit keeps it from."""
    forbidden = [node for node in facts.nodes if node.needed and node.major is not None and not node.allowed]
    if not forbidden:
        return
    names = ", ".join(node.path for node in forbidden)
    circumstances = facts.circumstances
    if circumstances.private_devices:
        message, fix = (
            f"PrivateDevices=yes of {circumstances.whose} hides {names} from the service",
            "remove PrivateDevices= from the unit; ProtectHome=, ProtectSystem= and the like do no harm",
        )
    elif circumstances.device_rules is not None and _open_to_account(facts, forbidden):
        message, fix = (
            f"{circumstances.whose} allows the service some devices only, and not {names}",
            f"add {' '.join(_rules(facts, forbidden))} to the unit",
        )
    else:
        account = circumstances.account
        first = forbidden[0]
        message = (
            f"user {account.name if account else ''} may not read and write {names}: mode {first.mode or 0:04o}, "
            f"owner {first.uid}:{first.gid}"
        )
        fix = f"SupplementaryGroups= with group {first.gid} in the unit, or the module option NVreg_DeviceFileMode=0666"
    yield Problem(
        "access-denied",
        message,
        fix,
        paths=tuple(node.path for node in forbidden),
        evidence=f"checked for {circumstances.whose}",
    )


def _open_to_account(facts: HostFacts, nodes: Sequence[DeviceNode]) -> bool:
    account = facts.circumstances.account
    return account is None or all(account.may(node.mode or 0, node.uid or 0, node.gid or 0) for node in nodes)


def _rules(facts: HostFacts, nodes: Sequence[DeviceNode]) -> list[str]:
    """DeviceAllow= by the driver's name: it outlives a change of the number."""
    ours = [(name, number) for name, number in facts.kernel.majors.items() if name.startswith("nvidia")]
    names = {number: name for name, number in reversed(ours)}
    wanted = [f"char-{names[node.major]}" if node.major in names else node.path for node in nodes]
    return [f"DeviceAllow={name} rw" for name in dict.fromkeys(wanted)]


def _majors(facts: HostFacts) -> str:
    listed = [f"{number} {name}" for name, number in facts.kernel.majors.items() if name.startswith("nvidia")]
    return f"/proc/devices: {', '.join(listed) or 'nothing of nvidia'}"
