# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge what surrounds the GPUs of a service: memory, limits, variables, compilers. Private to the collection."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ansible_collections.gpufleet.dflash.plugins.module_utils._findings import Problem
from ansible_collections.gpufleet.dflash.plugins.module_utils._host_gather import HostFacts

_MIB = 1024 * 1024
# NCCL's own advice for containers (NVIDIA/nccl#290); docker gives 64 MiB.
_SHM_SIZE = 1024 * _MIB
_SHM_FREE = 256 * _MIB
_HIDING = ("", "-1", "NoDevFiles", "void", "none")


def small_shm(facts: HostFacts) -> Iterator[Problem]:
    """Processes of several GPUs exchange data in /dev/shm."""
    shared = facts.surroundings.shared_memory
    if facts.gpu_count < 2:
        return
    if shared.size < _SHM_SIZE:
        size = f"has {shared.size // _MIB} MiB" if shared.mounted else "is not there"
        message = f"/dev/shm {size}, and {facts.gpu_count} GPUs exchange data in it: NCCL needs 1 GiB"
        fix = "mount -o remount,size=8G /dev/shm, and in /etc/fstab"
        if facts.confined:
            fix = "start the container with --shm-size=8g or --ipc=host (Kubernetes: an emptyDir of medium Memory)"
    elif shared.free < _SHM_FREE:
        message = f"/dev/shm is full: {shared.free // _MIB} of {shared.size // _MIB} MiB are free"
        fix = "find what is left over (ls -l /dev/shm) and remove it"
        if shared.nccl_segments:
            message += f", and {shared.nccl_segments} segments of NCCL are in it"
            fix = "rm /dev/shm/nccl-* while no service uses the GPUs: NCCL leaves them behind when it is killed"
    else:
        return
    yield Problem("small-shm", message, fix, paths=("/dev/shm",), evidence=f"{shared.size} bytes, {shared.free} free")


def low_memlock(facts: HostFacts) -> Iterator[Problem]:
    """RDMA locks its buffers in memory; a service of root's may lock what it likes."""
    circumstances, limit = facts.circumstances, facts.surroundings.memlock
    if circumstances.unit is None or not facts.has_gpu or not facts.surroundings.rdma_devices:
        return
    root = circumstances.account is not None and circumstances.account.uid == 0
    if root or limit[0] == -1 or limit[0] >= facts.surroundings.memory > 0:
        return
    yield Problem(
        "low-memlock",
        f"{circumstances.whose} may lock {_size(limit[0])} of memory, and this host has RDMA devices, through which "
        "NCCL needs as much as it sends",
        "LimitMEMLOCK=infinity in the unit",
        paths=tuple(f"/sys/class/infiniband/{name}" for name in facts.surroundings.rdma_devices),
        evidence=f"LimitMEMLOCK of {facts.surroundings.memlock_of}: {limit[0]} bytes",
    )


def hidden_gpus(facts: HostFacts) -> Iterator[Problem]:
    """CUDA_VISIBLE_DEVICES that leaves nothing to see, or asks for GPUs that there are not."""
    value = facts.circumstances.environment.get("CUDA_VISIBLE_DEVICES")
    if value is None or not facts.gpu_count:
        return
    entries = [entry.strip() for entry in value.split(",")]
    first = entries[0]
    if first in _HIDING:
        message = f"CUDA_VISIBLE_DEVICES in {facts.circumstances.whose} hides all GPUs"
    else:
        absent = [entry for entry in entries if entry.isdigit() and int(entry) >= facts.gpu_count]
        if not absent:
            return
        message = (
            f"CUDA_VISIBLE_DEVICES in {facts.circumstances.whose} asks for GPU {absent[0]}, and the last is "
            f"{facts.gpu_count - 1}: CUDA hides it and all after it"
        )
    yield Problem(
        "environment-malformed",
        message,
        "correct the Environment= line of the unit" if facts.circumstances.unit else "correct the variable",
        evidence=f"CUDA_VISIBLE_DEVICES={value}",
        severity="error" if first in _HIDING or not _sees_any(entries, facts.gpu_count) else "",
    )


def _sees_any(entries: list[str], count: int) -> bool:
    """CUDA takes the entries up to the first that is no GPU."""
    return not entries[0].isdigit() or int(entries[0]) < count


def cuda_home(facts: HostFacts) -> Iterator[Problem]:
    """CUDA_HOME with a trap in it (vllm-project/vllm#36077)."""
    tools, circumstances = facts.toolchain, facts.circumstances
    if tools.cuda_home_from not in ("CUDA_HOME", "CUDA_PATH") or tools.cuda_home is None:
        return
    home, variable = tools.cuda_home, tools.cuda_home_from
    reason = None
    if ":" in home:
        reason = "has a colon in it: it is one directory, not a list"
    elif not home.startswith("/"):
        reason = "is a relative path"
    elif not os.path.isdir(home):
        reason = "is not a directory"
    elif facts.cuda_major is not None and tools.cuda and int(tools.cuda.split(".")[0]) != facts.cuda_major:
        reason = f"is CUDA {tools.cuda}, and the wheels are for CUDA {facts.cuda_major}: compiled kernels do not fit"
    if reason is None:
        return
    yield Problem(
        "environment-malformed",
        f"{variable}={home} in {circumstances.whose} {reason}",
        f"correct {variable} in {circumstances.unit or 'the environment'}, or leave it out",
        paths=(home,),
        evidence=f"{variable}={home}",
    )


def unit_notes(facts: HostFacts) -> Iterator[Problem]:
    """Lines of the unit that systemd ignores."""
    for message, fix in facts.circumstances.ignored:
        yield Problem("environment-malformed", message, fix)


def toolchain(facts: HostFacts) -> Iterator[Problem]:
    """Compilers that the wheels call at run time and the service does not find (flashinfer-ai/flashinfer#1919)."""
    tools, circumstances = facts.toolchain, facts.circumstances
    if circumstances.unit is None or facts.venv is None or not facts.has_gpu:
        return
    missing = {}
    if "flashinfer-python" in facts.wheels and "flashinfer-jit-cache" not in facts.wheels:
        if tools.nvcc is None:
            missing["nvcc"] = "flashinfer-python compiles kernels with nvcc"
        if tools.ninja is None:
            missing["ninja"] = "flashinfer-python compiles kernels with ninja"
        if tools.cxx is None:
            missing["g++"] = "nvcc needs a C++ compiler"
    if "triton" in facts.wheels:
        if tools.cc is None:
            missing["gcc"] = "triton compiles its launchers with a C compiler"
        if tools.python_h is None:
            missing["Python.h"] = "triton compiles against it"
    if not missing:
        return
    names = list(missing)
    yield Problem(
        "toolchain-missing",
        f"{circumstances.whose} does not find {_listed(names)}: {'; '.join(missing.values())}",
        _get(facts, names),
        distributions=tuple(name for name in ("flashinfer-python", "triton") if name in facts.wheels),
        evidence=f"PATH={tools.path}; CUDA_HOME: {tools.cuda_home or 'none'}",
    )


def _get(facts: HostFacts, names: list[str]) -> str:
    """What to install or set, tool by tool."""
    steps = []
    bin_directory = os.path.join(facts.venv.path, "bin") if facts.venv else ""
    if "ninja" in names and bin_directory and os.access(os.path.join(bin_directory, "ninja"), os.X_OK):
        steps.append(f"put {bin_directory} into PATH of the unit, which has ninja")
        names = [name for name in names if name != "ninja"]
    packages = {"gcc": "gcc", "g++": "g++", "ninja": "ninja-build", "Python.h": _headers(facts)}
    wanted = [packages[name] for name in names if name in packages]
    if wanted:
        steps.append(f"apt-get install {' '.join(wanted)} (Debian, Ubuntu)")
    if "nvcc" in names:
        toolkit = f"CUDA {facts.cuda_major} toolkit" if facts.cuda_major else "CUDA toolkit"
        steps.append(f"install the {toolkit} and set CUDA_HOME in the unit, or install flashinfer-jit-cache")
    return "; ".join(steps)


def _headers(facts: HostFacts) -> str:
    return f"python{facts.venv.feature_version}-dev" if facts.venv else "python3-dev"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _size(count: int) -> str:
    return f"{count // _MIB} MiB" if count >= _MIB else f"{count // 1024} KiB"
