# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a host's files to its facts. Private to the collection."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from ansible_collections.gpufleet.dflash.plugins.module_utils._catalogue import cuda_major_of
from ansible_collections.gpufleet.dflash.plugins.module_utils._circumstances import Circumstances, circumstances_of
from ansible_collections.gpufleet.dflash.plugins.module_utils._device_nodes import (
    DeviceNode,
    made_on_demand,
    read_nodes,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._driver_library import DriverLibrary, find_libraries
from ansible_collections.gpufleet.dflash.plugins.module_utils._fabric import FabricFacts, read_fabric
from ansible_collections.gpufleet.dflash.plugins.module_utils._host_files import HostFiles
from ansible_collections.gpufleet.dflash.plugins.module_utils._host_kernel import KernelFacts, read_kernel
from ansible_collections.gpufleet.dflash.plugins.module_utils._import_plan import torch_cuda_version
from ansible_collections.gpufleet.dflash.plugins.module_utils._kernel_log import KernelLog, read_kernel_log
from ansible_collections.gpufleet.dflash.plugins.module_utils._ld_system import System, UnsupportedLoader
from ansible_collections.gpufleet.dflash.plugins.module_utils._nvidia_smi import TIMEOUT, SmiFacts, ask_smi
from ansible_collections.gpufleet.dflash.plugins.module_utils._surroundings import Surroundings, read_surroundings
from ansible_collections.gpufleet.dflash.plugins.module_utils._toolchain import Toolchain, read_toolchain
from ansible_collections.gpufleet.dflash.plugins.module_utils._venv import Venv, open_venv
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheels import read_installed


@dataclass(frozen=True)
class HostRequest:
    """What to look at, as the module's options say.

    ``environment`` is what a service without a unit has besides what systemd gives it. ``smi_timeout`` in seconds.
    """

    unit: str | None = None
    venv: str | None = None
    cuda_major: int | None = None
    gpus_expected: int | None = None
    environment: Mapping[str, str] | None = None
    smi_timeout: float = TIMEOUT


@dataclass(frozen=True)
class HostFacts:
    """Everything that the judges of a host read. ``glibc`` is None where the loader is not glibc's.

    ``wheels`` are the venv's distributions with their versions.
    """

    request: HostRequest
    circumstances: Circumstances
    kernel: KernelFacts
    smi: SmiFacts
    library: DriverLibrary
    management: DriverLibrary
    nodes: tuple[DeviceNode, ...]
    nodes_on_demand: bool
    fabric: FabricFacts
    log: KernelLog
    surroundings: Surroundings
    toolchain: Toolchain
    glibc: str | None
    cuda_major: int | None
    wheels: Mapping[str, str]
    venv: Venv | None

    @property
    def confined(self) -> bool:
        """Whether this is a container, which may see more of the host's hardware than it may use."""
        return self.surroundings.kind == "container"

    @property
    def has_gpu(self) -> bool:
        """Whether the host has an NVIDIA GPU, or a driver that is loaded."""
        return self.kernel.has_nvidia_hardware or self.kernel.version is not None or bool(self.smi.gpus)

    @property
    def gpu_count(self) -> int:
        """How many GPUs the driver offers, by its best source."""
        if self.smi.answered:
            return len(self.smi.gpus)
        return len(self.kernel.gpus) if self.kernel.version else 0


def gather_host(request: HostRequest, files: HostFiles | None = None, system: System | None = None) -> HostFacts:
    """Read everything. Raises VenvError and UnitError for options that name nothing usable.

    ``files`` and ``system`` stand in for this host's files and loader.
    """
    files = files or HostFiles()
    circumstances = circumstances_of(request.unit, request.environment)
    venv = open_venv(request.venv) if request.venv else None
    wheels = read_installed(venv.import_path).versions if venv else {}
    kernel = read_kernel(files)
    surroundings = read_surroundings(files, circumstances)
    # Where there is no driver there is nobody to ask; a virtual machine's driver for Windows has no kernel module.
    asked = kernel.has_nvidia_hardware or kernel.version is not None or surroundings.kind == "wsl"
    smi = ask_smi(files, request.smi_timeout) if asked else SmiFacts(None)
    python = venv.python if venv else os.path.realpath(sys.executable)
    library, management, glibc = _libraries(files, circumstances, python, system)
    return HostFacts(
        request=request,
        circumstances=circumstances,
        kernel=kernel,
        smi=smi,
        library=library,
        management=management,
        nodes=read_nodes(
            files, kernel, circumstances, confined=surroundings.kind == "container", proven=_opened_by(smi)
        ),
        nodes_on_demand=surroundings.kind != "container" and made_on_demand(files, circumstances),
        fabric=read_fabric(files, kernel, smi.gpus),
        log=read_kernel_log(files) if asked else KernelLog(None),
        surroundings=surroundings,
        toolchain=read_toolchain(circumstances, venv),
        glibc=glibc,
        cuda_major=request.cuda_major or _cuda_major(venv, wheels),
        wheels=wheels,
        venv=venv,
    )


def _opened_by(smi: SmiFacts) -> set[str]:
    """The nodes that nvidia-smi has used, if it answered."""
    numbers = [gpu.minor for gpu in smi.gpus if gpu.minor is not None and not gpu.lost]
    return {"/dev/nvidiactl", *(f"/dev/nvidia{number}" for number in numbers)} if smi.answered else set()


def _libraries(
    files: HostFiles, circumstances: Circumstances, python: str, system: System | None
) -> tuple[DriverLibrary, DriverLibrary, str | None]:
    try:
        system = system or System.of_host(python)
    except (UnsupportedLoader, OSError) as error:
        absent = DriverLibrary("libcuda.so.1", words=str(error))
        return absent, DriverLibrary("libnvidia-ml.so.1", words=str(error)), None
    library, management = find_libraries(files, circumstances, python, system)
    return library, management, ".".join(str(part) for part in system.version)


def _cuda_major(venv: Venv | None, wheels: Mapping[str, str]) -> int | None:
    """The CUDA major that the venv's wheels need: torch's, else the newest of the others'."""
    for directory in venv.import_path if venv else ():
        torch = os.path.join(directory, "torch")
        if os.path.isfile(os.path.join(torch, "__init__.py")):
            version = torch_cuda_version(torch)
            return int(version.split(".")[0]) if version else None
    majors = {major for name in wheels if (major := cuda_major_of(name))}
    return max(majors, default=None)
