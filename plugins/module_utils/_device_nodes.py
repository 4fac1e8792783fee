# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The device nodes that CUDA opens. Private to the collection.

Which there are: NVIDIA's driver README, "Device nodes"; who makes them: nvidia-modprobe(1). The number of
nvidia-uvm is given out when the module is loaded, and may be another after a boot.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ansible_collections.gpufleet.dflash.plugins.module_utils._circumstances import Circumstances, words_of
from ansible_collections.gpufleet.dflash.plugins.module_utils._host_files import HostFiles
from ansible_collections.gpufleet.dflash.plugins.module_utils._host_kernel import KernelFacts

# Fixed since the first driver; /proc/devices calls it nvidia-frontend up to driver 550 or so, nvidia later.
_NVIDIA_MAJOR = 195
_MODPROBE = ("/usr/bin/nvidia-modprobe", "/usr/sbin/nvidia-modprobe")


@dataclass(frozen=True)
class DeviceNode:
    """One node. ``major`` and ``minor`` are None where there is no character device of that name.

    ``expected`` is the major of its driver in /proc/devices, None while that is not loaded. ``needed`` tells that
    CUDA does not work without it. ``error`` is what opening it says (``EPERM``), empty when it works or was not
    tried. ``allowed`` is False when the mode keeps the service's account out, or its unit hides the device.
    """

    path: str
    needed: bool
    present: bool
    major: int | None = None
    minor: int | None = None
    expected: int | None = None
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    error: str = ""
    allowed: bool = True

    @property
    def stale(self) -> bool:
        """Whether the node has the number of another driver."""
        return self.major is not None and self.expected is not None and self.major != self.expected


def read_nodes(
    files: HostFiles,
    kernel: KernelFacts,
    circumstances: Circumstances,
    *,
    confined: bool,
    proven: Container[str] = (),
) -> tuple[DeviceNode, ...]:
    """The nodes that there are and those that CUDA needs; none without a loaded driver and a GPU for it.

    ``confined``: in a container the nodes of some GPUs only may be there. ``proven`` are nodes that are known to
    open; opening one starts its GPU, which takes seconds where the driver does not keep it started.
    """
    nodes_there = any(re.match(r"nvidia\d+\Z", name) for name in files.names("/dev"))
    if kernel.version is None or kernel.tegra or not (kernel.has_nvidia_hardware or nodes_there):
        return ()
    uvm = kernel.majors.get("nvidia-uvm")
    gpus = kernel.majors.get("nvidia-frontend", kernel.majors.get("nvidia", _NVIDIA_MAJOR))
    caps = kernel.majors.get("nvidia-caps")
    wanted: dict[str, tuple[bool, int | None]] = {"/dev/nvidiactl": (True, gpus)}
    present = [f"/dev/{name}" for name in files.names("/dev") if re.match(r"nvidia\d+\Z", name)]
    listed = [f"/dev/nvidia{gpu.minor}" for gpu in kernel.gpus if gpu.minor is not None]
    for path in dict.fromkeys((*present, *listed)):
        wanted[path] = (path in listed and not confined, gpus)
    if confined and not present:
        wanted[listed[0] if listed else "/dev/nvidia0"] = (True, gpus)
    wanted["/dev/nvidia-uvm"] = (True, uvm)
    for path, major in (("/dev/nvidia-uvm-tools", uvm), ("/dev/nvidia-modeset", gpus)):
        if files.exists(path):
            wanted[path] = (False, major)
    for name in files.names("/dev/nvidia-caps"):
        wanted[f"/dev/nvidia-caps/{name}"] = (False, caps)
    nodes = (
        _node(files, path, major, needed=needed, attempt=needed and path not in proven)
        for path, (needed, major) in wanted.items()
    )
    return tuple(_judged_for(node, circumstances, kernel.majors) for node in nodes)


def made_on_demand(files: HostFiles, circumstances: Circumstances) -> bool:
    """Whether libcuda can make missing nodes: it runs nvidia-modprobe, which needs its setuid bit."""
    account = circumstances.account
    if account is not None and account.uid == 0:
        usable = stat.S_IXUSR
    elif circumstances.new_privileges:
        usable = stat.S_ISUID
    else:
        return False
    for path in _MODPROBE:
        try:
            status = os.stat(files.path(path))
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode) and status.st_mode & usable:
            return True
    return False


def _node(files: HostFiles, path: str, expected: int | None, *, needed: bool, attempt: bool) -> DeviceNode:
    try:
        status = os.stat(files.path(path))
    except OSError:
        return DeviceNode(path, needed, files.exists(path), expected=expected)
    if not stat.S_ISCHR(status.st_mode):
        return DeviceNode(path, needed, True, expected=expected)
    major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
    return DeviceNode(
        path=path,
        needed=needed,
        present=True,
        major=major,
        minor=minor,
        expected=expected,
        mode=stat.S_IMODE(status.st_mode),
        uid=status.st_uid,
        gid=status.st_gid,
        error=_open_error(files.path(path)) if attempt and major == expected else "",
    )


def _open_error(path: str) -> str:
    """What the kernel says to opening a node of the driver: a cgroup's device rule cannot be read, only met."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error.errno))
    return ""


def _judged_for(node: DeviceNode, circumstances: Circumstances, majors: Mapping[str, int]) -> DeviceNode:
    if node.major is None or node.mode is None or node.uid is None or node.gid is None:
        return node
    account = circumstances.account
    allowed = account is None or account.may(node.mode, node.uid, node.gid)
    if circumstances.device_rules is not None:
        allowed = allowed and any(_matches(rule, node, majors) for rule in circumstances.device_rules)
    if circumstances.private_devices:
        allowed = False
    return DeviceNode(**{**node.__dict__, "allowed": allowed})


def _matches(rule: str, node: DeviceNode, majors: Mapping[str, int]) -> bool:
    """Whether one DeviceAllow= lets a process read and write the node (systemd.resource-control(5))."""
    words = words_of(rule)
    if not words or len(words) > 1 and not {"r", "w"} <= set(words[1]):
        return False
    if not words[0].startswith("char-"):
        return os.path.normpath(words[0]) == node.path
    return any(number == node.major for name, number in _named(words[0][len("char-") :], majors))


def _named(pattern: str, majors: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    for name, number in majors.items():
        if fnmatchcase(name, pattern) or pattern == str(number):
            yield name, number
