# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge a host's NVIDIA driver: is it there, new enough, of one piece. Private to the collection."""

from __future__ import annotations

from collections.abc import Iterator

from ansible_collections.gpufleet.dflash.plugins.module_utils._catalogue import DRIVER_FLOORS
from ansible_collections.gpufleet.dflash.plugins.module_utils._driver_library import DriverLibrary
from ansible_collections.gpufleet.dflash.plugins.module_utils._findings import Problem
from ansible_collections.gpufleet.dflash.plugins.module_utils._host_gather import HostFacts

# The forward-compatibility package runs on data-centre GPUs only ("CUDA Compatibility").
_CONSUMER = ("GeForce", "TITAN")
_RELOAD = (
    "reboot; or stop everything that uses the GPUs, then modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia && "
    "nvidia-smi"
)


def module_missing(facts: HostFacts) -> Iterator[Problem]:
    """GPUs on the bus and no kernel driver of NVIDIA's for them."""
    kernel = facts.kernel
    if kernel.version is not None or not kernel.usable_on_bus or facts.surroundings.kind == "wsl":
        return
    count = len(kernel.usable_on_bus)
    what = f"{count} NVIDIA GPU{'' if count == 1 else 's'} on the PCI bus"
    drivers = sorted({device.driver for device in kernel.usable_on_bus if device.driver})
    if facts.confined:
        message, fix = (
            f"this container sees {what} of its host, and not the host's NVIDIA driver",
            "start the container with the NVIDIA runtime (docker: --gpus all), or load the driver on the host",
        )
    elif "nouveau" in drivers:
        message, fix = (
            f"{what} under the kernel's own driver nouveau: CUDA needs NVIDIA's",
            "install the NVIDIA driver, blacklist nouveau in /etc/modprobe.d, rebuild the initramfs and reboot",
        )
    elif kernel.release in kernel.built_for:
        message, fix = (
            f"{what}, and the NVIDIA driver is installed for this kernel, but not loaded",
            "modprobe nvidia; where that fails, `dmesg | grep -i -e nvidia -e NVRM` tells why (Secure Boot refuses "
            "modules without a signature that it knows)",
        )
    elif kernel.built_for:
        message, fix = (
            f"{what}, and the NVIDIA driver was built for another kernel ({kernel.built_for[-1]}) than the running "
            f"{kernel.release}",
            f"dkms autoinstall -k {kernel.release} (needs that kernel's headers), or boot {kernel.built_for[-1]}",
        )
    else:
        message, fix = (
            f"{what}, and no NVIDIA driver is loaded",
            f"install the NVIDIA driver{_at_least(facts)} and reboot",
        )
    yield Problem(
        "driver-missing",
        message,
        fix,
        paths=tuple(f"/sys/bus/pci/devices/{device.address}" for device in kernel.usable_on_bus),
        evidence=f"/proc/driver/nvidia/version is not there; kernel driver of the GPUs: {', '.join(drivers) or 'none'}",
    )


def library_missing(facts: HostFacts) -> Iterator[Problem]:
    """The kernel's part of the driver is loaded, and the service does not find the other one."""
    library = facts.library
    if facts.kernel.version is None or library.path is not None or facts.glibc is None:
        return
    if library.elsewhere:
        directory = library.elsewhere[0].rpartition("/")[0]
        message = (
            f"{library.soname} is in {directory}, where the loader does not look: CUDA finds no driver in "
            f"{facts.circumstances.whose}"
        )
        fix = f"echo {directory} > /etc/ld.so.conf.d/nvidia.conf && ldconfig; or put {directory} into LD_LIBRARY_PATH"
    else:
        message = f"the kernel module of driver {facts.kernel.version} is loaded, and {library.soname} is not installed"
        fix = (
            "start the container with the NVIDIA runtime and NVIDIA_DRIVER_CAPABILITIES=compute,utility"
            if facts.confined
            else f"install the compute libraries of driver {facts.kernel.version} (Debian: libcuda1, Ubuntu: "
            f"libnvidia-compute-{_branch(facts.kernel.version)}), never a stub from a CUDA toolkit"
        )
    yield Problem(
        "driver-missing",
        message,
        fix,
        soname=library.soname,
        paths=library.elsewhere,
        evidence=library.words,
    )


def stub_library(facts: HostFacts) -> Iterator[Problem]:
    """A toolkit's stub is found first: it loads, and every function of it fails (pytorch/tensorpipe#294)."""
    for library in (facts.library, facts.management):
        if not library.is_stub or not _concerns(facts):
            continue
        yield Problem(
            "stub-driver",
            f"{library.soname} is a stub that a CUDA toolkit brings for linking ({library.path}), not the driver",
            _remove_from_path(facts, library),
            object=library.file,
            soname=library.soname,
            paths=(library.path or "",),
            evidence=f"found by {library.rule}, {library.size} bytes, no driver version in its name",
        )


def versions_differ(facts: HostFacts) -> Iterator[Problem]:
    """Kernel module and libraries of two drivers: NVML and CUDA refuse (NVIDIA/nvidia-docker#1256)."""
    running = facts.kernel.version
    if running is None:
        return
    for library in (facts.library, facts.management):
        if library.version in (None, running) or library.is_stub or library.is_compat:
            continue
        yield Problem(
            "driver-mismatch",
            f"the loaded kernel module is of driver {running}, and {library.soname} of driver {library.version}: the "
            "driver was updated, and the old module still runs",
            "restart the container with the host's libraries" if facts.confined else _RELOAD,
            object=library.file,
            soname=library.soname,
            paths=(library.path or "",),
            evidence=f"/proc/driver/nvidia/version: {running}; {library.file} found by {library.rule}",
        )
        return
    if "version mismatch" in facts.smi.failure:
        yield Problem(
            "driver-mismatch",
            f"nvidia-smi finds libraries of another driver than the loaded kernel module's {running}",
            _RELOAD,
            object=facts.smi.path,
            evidence=facts.smi.failure,
        )


def compat_library(facts: HostFacts) -> Iterator[Problem]:
    """cuda-compat where it does not work: on GeForce, or older than the driver (NVIDIA/nvidia-docker#1515)."""
    library, running = facts.library, facts.kernel.version
    if running is None or not library.is_compat or library.is_stub:
        return
    names = [gpu.name for gpu in facts.smi.gpus if gpu.name] + [gpu.name for gpu in facts.kernel.gpus if gpu.name]
    consumer = next((name for name in names if any(word in name for word in _CONSUMER)), None)
    if consumer:
        why = f"works on data-centre GPUs only, and this host has a {consumer}"
    elif library.version and _numbers(library.version) < _numbers(running):
        why = f"is of driver {library.version}, older than the loaded {running}"
    else:
        return
    yield Problem(
        "driver-mismatch",
        f"libcuda.so.1 comes from the forward-compatibility package ({library.path}), which {why}",
        _remove_from_path(facts, library),
        object=library.file,
        soname=library.soname,
        paths=(library.path or "",),
        evidence=f"found by {library.rule}; /proc/driver/nvidia/version: {running}",
    )


def too_old(facts: HostFacts) -> Iterator[Problem]:
    """The driver is older than the first branch for the wheels' CUDA major (modelscope/FunASR#2973)."""
    running, major = facts.kernel.version, facts.cuda_major
    floor = DRIVER_FLOORS.get(major or 0)
    if running is None or floor is None or major is None:
        return
    version = running
    if facts.library.is_compat and facts.library.version and not list(compat_library(facts)):
        version = facts.library.version
    if _branch(version) >= floor:
        return
    whose = f"the wheels of {facts.request.venv} are" if facts.request.venv else "what is to run is"
    yield Problem(
        "driver-too-old",
        f"driver {version} is too old: {whose} for CUDA {major}, which needs driver {floor} or newer",
        f"install driver {floor} or newer and reboot, or use wheels for {_older(version)}",
        evidence=f"/proc/driver/nvidia/version: {running}" + (f"; CUDA {facts.smi.cuda}" if facts.smi.cuda else ""),
    )


def _concerns(facts: HostFacts) -> bool:
    """A stub on a host without a GPU harms nobody; build hosts have one on purpose."""
    return facts.has_gpu and facts.surroundings.kind != "wsl"


def _remove_from_path(facts: HostFacts, library: DriverLibrary) -> str:
    directory = (library.path or "").rpartition("/")[0]
    if library.rule == "ld_library_path":
        return f"take {directory} out of LD_LIBRARY_PATH in {facts.circumstances.whose}"
    if library.rule == "cache":
        return f"take {directory} out of /etc/ld.so.conf.d and run ldconfig"
    return f"remove {library.path} from {directory}, or put the driver's directory before it"


def _at_least(facts: HostFacts) -> str:
    floor = DRIVER_FLOORS.get(facts.cuda_major or 0)
    return f" ({floor} or newer for CUDA {facts.cuda_major})" if floor else ""


def _older(version: str) -> str:
    majors = [major for major, floor in DRIVER_FLOORS.items() if floor <= _branch(version)]
    return f"CUDA {max(majors)}" if majors else "an older CUDA"


def _branch(version: str) -> int:
    return _numbers(version)[0]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
