# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the kernel tells about NVIDIA devices and their driver, from /proc and /sys. Private to the collection.

Formats: "NVIDIA Accelerated Linux Graphics Driver README", chapter "The /proc File System Interface", and the
kernel's Documentation/ABI/testing/sysfs-bus-pci.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ansible_collections.gpufleet.dflash.plugins.module_utils._host_files import HostFiles

_NVIDIA = "0x10de"
_PCI = "/sys/bus/pci/devices"
# PCI base class 03 is a display controller (VGA or 3D); NVSwitch is a bridge of the kind "other".
_GPU_CLASS = "0x03"
_NVSWITCH_CLASS = "0x0680"
_VERSION = re.compile(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b")
_MODULE_FILES = re.compile(r"nvidia(-current)?\.ko(\.(xz|zst|gz))?\Z")
# Where distributions, DKMS and NVIDIA's installer put the module below /lib/modules/<release>.
_MODULE_DIRECTORIES = (
    "updates/dkms",
    "extra",
    "extra/nvidia",
    "weak-updates/nvidia",
    "kernel/drivers/video",
    "kernel/nvidia",
    "kernel/nvidia-*",
    "updates",
    "misc",
    "video",
)


@dataclass(frozen=True)
class PciDevice:
    """One NVIDIA device on the bus. ``driver`` is the kernel driver that has it, empty for none."""

    address: str
    driver: str
    numa_node: int | None


@dataclass(frozen=True)
class DriverGpu:
    """One GPU as the loaded kernel driver lists it."""

    address: str
    name: str | None
    uuid: str | None
    minor: int | None


@dataclass(frozen=True)
class KernelFacts:
    """``version`` is that of the loaded kernel module, ``flavour`` open or proprietary; None when none is loaded.

    ``majors`` are the character devices of /proc/devices. ``built_for`` are the kernels that a module file of the
    driver lies on disk for.
    """

    release: str
    version: str | None
    flavour: str | None
    modules: frozenset[str]
    gpus_on_bus: tuple[PciDevice, ...]
    nvswitches: tuple[PciDevice, ...]
    gpus: tuple[DriverGpu, ...]
    majors: Mapping[str, int]
    parameters: Mapping[str, str] = field(default_factory=dict)
    built_for: tuple[str, ...] = ()
    # NVIDIA's own processors (Jetson): the GPU is on no bus and has other device nodes.
    tegra: bool = False

    @property
    def has_nvidia_hardware(self) -> bool:
        """Whether there is a GPU that this host may use: those that a virtual machine has taken do not count."""
        return bool(self.usable_on_bus) or bool(self.gpus)

    @property
    def usable_on_bus(self) -> tuple[PciDevice, ...]:
        """The GPUs that are not handed through to a virtual machine."""
        return tuple(device for device in self.gpus_on_bus if not device.driver.startswith("vfio"))


def read_kernel(files: HostFiles) -> KernelFacts:
    """Read it all; what is not there is empty."""
    version, flavour = _loaded_version(files)
    devices = list(_pci_devices(files))
    release = files.word("/proc/sys/kernel/osrelease")
    return KernelFacts(
        release=release,
        version=version,
        flavour=flavour,
        modules=_modules(files),
        gpus_on_bus=tuple(device for kind, device in devices if kind.startswith(_GPU_CLASS)),
        nvswitches=tuple(device for kind, device in devices if kind.startswith(_NVSWITCH_CLASS)),
        gpus=tuple(_driver_gpus(files)),
        majors=_majors(files),
        parameters=_pairs(files.text("/proc/driver/nvidia/params") or ""),
        tegra="tegra" in (files.text("/proc/device-tree/compatible") or ""),
        built_for=tuple(name for name in files.names("/lib/modules") if _has_module(files, name)),
    )


def driver_version(files: HostFiles | None = None) -> str | None:
    """The version of the loaded driver, if it alone decides which CUDA runs here; None when nothing is loaded.

    It is None as well where the forward-compatibility package lies: with it older drivers do, and which service has
    it in its search path is not known before there is a service.
    """
    files = files or HostFiles()
    if any(
        name.startswith("cuda") and files.exists(f"/usr/local/{name}/compat/libcuda.so.1")
        for name in files.names("/usr/local")
    ):
        return None
    return _loaded_version(files)[0]


def address_of(text: str) -> str:
    """A PCI address as the kernel spells it: nvidia-smi has a domain of eight digits, the log no function."""
    match = re.match(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.([0-7]))?\Z", text.strip())
    if match is None:
        return text.strip().lower()
    domain = int(match[1] or "0", 16)
    return f"{domain:04x}:{match[2]}:{match[3]}.{match[4] or '0'}".lower()


def _loaded_version(files: HostFiles) -> tuple[str | None, str | None]:
    """Version and flavour of the loaded kernel module."""
    text = files.text("/proc/driver/nvidia/version")
    line = next((row for row in (text or "").splitlines() if "NVRM version" in row), "")
    match = _VERSION.search(line)
    version = match[1] if match else _sys_version(files)
    return version, None if version is None else "open" if "Open Kernel Module" in line else "proprietary"


def _sys_version(files: HostFiles) -> str | None:
    """A container may hide /proc/driver/nvidia; a module of that name without a version is not NVIDIA's."""
    match = _VERSION.match(files.word("/sys/module/nvidia/version"))
    return match[1] if match else None


def _pci_devices(files: HostFiles) -> list[tuple[str, PciDevice]]:
    found = []
    for name in files.names(_PCI):
        if files.word(f"{_PCI}/{name}/vendor").lower() != _NVIDIA:
            continue
        node = files.word(f"{_PCI}/{name}/numa_node")
        device = PciDevice(
            address=address_of(name),
            driver=files.target(f"{_PCI}/{name}/driver"),
            # -1 says that the firmware does not tell.
            numa_node=int(node) if node.isdigit() else None,
        )
        found.append((files.word(f"{_PCI}/{name}/class").lower(), device))
    return found


def _driver_gpus(files: HostFiles) -> list[DriverGpu]:
    found = []
    for name in files.names("/proc/driver/nvidia/gpus"):
        pairs = _pairs(files.text(f"/proc/driver/nvidia/gpus/{name}/information") or "")
        minor = pairs.get("Device Minor", "")
        uuid = pairs.get("GPU UUID")
        # The driver writes question marks until it has started the GPU for the first time.
        known = uuid if uuid and "?" not in uuid else None
        found.append(DriverGpu(address_of(name), pairs.get("Model"), known, int(minor) if minor.isdigit() else None))
    return found


def _pairs(text: str) -> dict[str, str]:
    rows = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, colon, value in rows if colon and key.strip()}


def _majors(files: HostFiles) -> dict[str, int]:
    """{name: major} of the character devices; a name may come with several majors, the first counts."""
    majors: dict[str, int] = {}
    text = (files.text("/proc/devices") or "").partition("Block devices:")[0]
    for line in text.splitlines():
        number, _space, name = line.strip().partition(" ")
        if number.isdigit() and name:
            majors.setdefault(name.strip(), int(number))
    return majors


def _modules(files: HostFiles) -> frozenset[str]:
    text = files.text("/proc/modules") or ""
    return frozenset(line.split(" ")[0] for line in text.splitlines() if line)


def _has_module(files: HostFiles, release: str) -> bool:
    for directory in _MODULE_DIRECTORIES:
        parent, _slash, last = directory.rpartition("/")
        base = f"/lib/modules/{release}/{parent}".rstrip("/")
        wanted = [last] if "*" not in last else [n for n in files.names(base) if n.startswith(last.rstrip("*"))]
        if any(_MODULE_FILES.match(name) for each in wanted for name in files.names(f"{base}/{each}")):
            return True
    return False
