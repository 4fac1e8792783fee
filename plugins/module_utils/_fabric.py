# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fabric manager, without which GPUs behind NVSwitches refuse CUDA. Private to the collection.

Source: "Fabric Manager for NVIDIA NVSwitch Systems User Guide".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ansible_collections.gpufleet.dflash.plugins.module_utils._command import is_program, run_bounded
from ansible_collections.gpufleet.dflash.plugins.module_utils._host_files import HostFiles
from ansible_collections.gpufleet.dflash.plugins.module_utils._host_kernel import KernelFacts
from ansible_collections.gpufleet.dflash.plugins.module_utils._nvidia_smi import SmiGpu
from ansible_collections.gpufleet.dflash.plugins.module_utils._systemd import parse_show

SERVICE = "nvidia-fabricmanager.service"
_PROGRAMS = ("/usr/bin/nv-fabricmanager", "/usr/sbin/nv-fabricmanager", "/usr/local/bin/nv-fabricmanager")
_VERSION = re.compile(r"version is\s*:\s*(\d{3,}\.\d+(?:\.\d+)?)", re.I)
_BOOTED = "/run/systemd/system"


@dataclass(frozen=True)
class FabricFacts:
    """``needed``: the GPUs are behind NVSwitches, as the bus or the driver tells.

    ``service`` is systemd's word for the service's state (``active``, ``failed``, ``not-found``), None where
    systemd cannot be asked. ``version`` is the installed program's.
    """

    needed: bool
    nvswitches: int
    service: str | None = None
    running: bool = False
    version: str | None = None


def read_fabric(files: HostFiles, kernel: KernelFacts, gpus: Sequence[SmiGpu]) -> FabricFacts:
    """Look at the fabric manager where there is a fabric."""
    needed = bool(kernel.nvswitches) or any(gpu.fabric_state for gpu in gpus)
    if not needed:
        return FabricFacts(False, 0)
    return FabricFacts(True, len(kernel.nvswitches), _service(files), _runs(files), _version(files))


def _service(files: HostFiles) -> str | None:
    program = files.path("/usr/bin/systemctl")
    if not files.exists(_BOOTED) or not is_program(program):
        return None
    answer = run_bounded([program, "show", "--property=LoadState,ActiveState", SERVICE], timeout=10.0)
    if answer.status != 0:
        return None
    state = parse_show(SERVICE, answer.output)
    return "not-found" if state.load_state == "not-found" else state.active_state or None


def _runs(files: HostFiles) -> bool:
    """Whether a process of that name runs, whoever started it; the kernel cuts names to 15 letters."""
    return any(files.word(f"/proc/{pid}/comm") == "nv-fabricmanage" for pid in files.names("/proc") if pid.isdigit())


def _version(files: HostFiles) -> str | None:
    for path in _PROGRAMS:
        program = files.path(path)
        if is_program(program):
            answer = run_bounded([program, "--version"], timeout=5.0)
            match = _VERSION.search(answer.output + answer.errors)
            return match[1] if match else None
    return None
