# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host offers besides its GPUs: shared memory, limits, operating system. Private to the collection."""

from __future__ import annotations

import os
import re
import resource
from dataclasses import dataclass

from ansible_collections.gpufleet.dflash.plugins.module_utils._circumstances import Circumstances
from ansible_collections.gpufleet.dflash.plugins.module_utils._host_files import HostFiles
from ansible_collections.gpufleet.dflash.plugins.module_utils._unit import manager_limit

# systemd-system.conf(5), DefaultLimitMEMLOCK=.
_SYSTEMD_MEMLOCK = 8 * 1024 * 1024
_CONTAINER_FILES = {"/.dockerenv": "docker", "/run/.containerenv": "podman"}
# docker.service is the daemon on the host, docker/<id> and docker-<id>.scope are containers of it.
_CGROUP = re.compile(r"/(lxc|docker|kubepods)(?:\.slice)?/|/(docker|libpod|crio|cri-containerd)-[0-9a-f]{12,}")
# What firmware calls itself in a virtual machine, in /sys/class/dmi/id/sys_vendor or product_name.
_MACHINES = re.compile(
    r"QEMU|KVM|VMware|VirtualBox|Xen|Microsoft Corporation Virtual|Amazon EC2|Google Compute|OpenStack|Firecracker",
    re.I,
)


@dataclass(frozen=True)
class SharedMemory:
    """/dev/shm in bytes, and how many segments NCCL has left in it. ``mounted`` tells that it is memory at all."""

    size: int
    free: int
    mounted: bool
    nccl_segments: int


@dataclass(frozen=True)
class Surroundings:
    """``memlock`` is (soft, hard) in bytes, -1 for no limit, and ``memlock_of`` whose it is.

    ``kind`` is ``container``, ``vm``, ``wsl`` or ``none``, ``platform`` its name.
    """

    kernel: str
    system: str
    kind: str
    platform: str
    numa_nodes: int
    memory: int
    shared_memory: SharedMemory
    memlock: tuple[int, int]
    memlock_of: str
    rdma_devices: tuple[str, ...]


def read_surroundings(files: HostFiles, circumstances: Circumstances) -> Surroundings:
    """Read it all; what is not there is empty or 0."""
    kind, platform = virtualisation(files)
    memlock, of = _memlock(circumstances)
    nodes = [name for name in files.names("/sys/devices/system/node") if re.match(r"node\d+\Z", name)]
    return Surroundings(
        kernel=files.word("/proc/sys/kernel/osrelease"),
        system=_system(files),
        kind=kind,
        platform=platform,
        numa_nodes=len(nodes),
        memory=_memory(files),
        shared_memory=_shared_memory(files),
        memlock=memlock,
        memlock_of=of,
        rdma_devices=tuple(files.names("/sys/class/infiniband")),
    )


def virtualisation(files: HostFiles) -> tuple[str, str]:
    """What this host runs in: (kind, name)."""
    release = files.word("/proc/sys/kernel/osrelease").lower()
    if "microsoft" in release:
        return "wsl", "WSL"
    container = files.word("/run/systemd/container") or _container_variable(files)
    if not container:
        container = next((name for path, name in _CONTAINER_FILES.items() if files.exists(path)), "")
    if not container:
        match = _CGROUP.search(files.text("/proc/self/cgroup") or "")
        container = (match[1] or match[2]) if match else ""
    if container:
        return "container", container
    firmware = " ".join(files.word(f"/sys/class/dmi/id/{name}") for name in ("sys_vendor", "product_name"))
    match = _MACHINES.search(firmware)
    if match:
        return "vm", match[0]
    hypervisor = re.search(r"^flags\b.*\bhypervisor\b", files.text("/proc/cpuinfo") or "", re.M)
    return ("vm", "") if hypervisor else ("none", "")


def _container_variable(files: HostFiles) -> str:
    """Container managers tell the first process by a variable; root alone may read it."""
    for variable in (files.text("/proc/1/environ", 65536) or "").split("\0"):
        name, _equals, value = variable.partition("=")
        if name == "container":
            return value
    return ""


def _system(files: HostFiles) -> str:
    text = files.text("/etc/os-release") or files.text("/usr/lib/os-release") or ""
    match = re.search(r"^PRETTY_NAME=[\"']?(.*?)[\"']?$", text, re.M)
    return match[1] if match else ""


def _memory(files: HostFiles) -> int:
    match = re.search(r"^MemTotal:\s+(\d+) kB", files.text("/proc/meminfo") or "", re.M)
    return int(match[1]) * 1024 if match else 0


def _shared_memory(files: HostFiles) -> SharedMemory:
    path = files.path("/dev/shm")
    segments = sum(1 for name in files.names("/dev/shm") if name.startswith("nccl-"))
    try:
        found = os.statvfs(path)
        return SharedMemory(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize, True, segments)
    except OSError:
        return SharedMemory(0, 0, False, segments)


def _memlock(circumstances: Circumstances) -> tuple[tuple[int, int], str]:
    """The limit and whose it is: the unit's, systemd's for units that set none, or that of this process."""
    if circumstances.unit is None:
        soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        return (soft, hard), "this process"
    if circumstances.memlock is not None:
        return circumstances.memlock, circumstances.whose
    return manager_limit("MEMLOCK") or (_SYSTEMD_MEMLOCK, _SYSTEMD_MEMLOCK), "systemd's default"
