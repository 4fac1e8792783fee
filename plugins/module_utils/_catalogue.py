# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which distribution provides which CUDA library, and where it puts it. Private to the collection.

A soname alone does not tell the CUDA major: CUDA 13's cuSPARSE is ``libcusparse.so.12``, and cuDNN, NCCL,
cuRAND, cuFile, NVSHMEM and cuSPARSELt keep one soname for CUDA 12 and 13. So the table is by distribution,
never by a digit in a name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Wheel:
    """One distribution of CUDA libraries: CUDA major, directory below site-packages, sonames in it."""

    distribution: str
    cuda: int
    directory: str
    sonames: tuple[str, ...]


# CUDA 12 gives each component a directory of its own. CUDA 13 drops the suffix from the names of the
# toolkit's components and puts them all into nvidia/cu13/lib; what is released apart from the toolkit stays
# where it was.
WHEELS: tuple[Wheel, ...] = (
    Wheel(
        "nvidia-cublas-cu12",
        12,
        "nvidia/cublas/lib",
        ("libcublas.so.12", "libcublasLt.so.12", "libnvblas.so.12"),
    ),
    Wheel("nvidia-cuda-cupti-cu12", 12, "nvidia/cuda_cupti/lib", ("libcupti.so.12",)),
    Wheel("nvidia-cuda-nvrtc-cu12", 12, "nvidia/cuda_nvrtc/lib", ("libnvrtc.so.12", "libnvrtc-builtins.so.12")),
    Wheel("nvidia-cuda-runtime-cu12", 12, "nvidia/cuda_runtime/lib", ("libcudart.so.12",)),
    Wheel("nvidia-cudnn-cu12", 12, "nvidia/cudnn/lib", ("libcudnn.so.9",)),
    Wheel("nvidia-cufft-cu12", 12, "nvidia/cufft/lib", ("libcufft.so.11", "libcufftw.so.11")),
    Wheel("nvidia-cufile-cu12", 12, "nvidia/cufile/lib", ("libcufile.so.0", "libcufile_rdma.so.1")),
    Wheel("nvidia-curand-cu12", 12, "nvidia/curand/lib", ("libcurand.so.10",)),
    Wheel("nvidia-cusolver-cu12", 12, "nvidia/cusolver/lib", ("libcusolver.so.11", "libcusolverMg.so.11")),
    Wheel("nvidia-cusparse-cu12", 12, "nvidia/cusparse/lib", ("libcusparse.so.12",)),
    Wheel("nvidia-cusparselt-cu12", 12, "nvidia/cusparselt/lib", ("libcusparseLt.so.0",)),
    Wheel("nvidia-nccl-cu12", 12, "nvidia/nccl/lib", ("libnccl.so.2",)),
    Wheel("nvidia-nvjitlink-cu12", 12, "nvidia/nvjitlink/lib", ("libnvJitLink.so.12",)),
    Wheel("nvidia-nvjpeg-cu12", 12, "nvidia/nvjpeg/lib", ("libnvjpeg.so.12",)),
    Wheel("nvidia-nvshmem-cu12", 12, "nvidia/nvshmem/lib", ("libnvshmem_host.so.3",)),
    Wheel("nvidia-nvtx-cu12", 12, "nvidia/nvtx/lib", ("libnvToolsExt.so.1",)),
    Wheel("nvidia-cublas", 13, "nvidia/cu13/lib", ("libcublas.so.13", "libcublasLt.so.13", "libnvblas.so.13")),
    Wheel("nvidia-cuda-cupti", 13, "nvidia/cu13/lib", ("libcupti.so.13",)),
    Wheel("nvidia-cuda-nvrtc", 13, "nvidia/cu13/lib", ("libnvrtc.so.13", "libnvrtc-builtins.so.13")),
    Wheel("nvidia-cuda-runtime", 13, "nvidia/cu13/lib", ("libcudart.so.13",)),
    Wheel("nvidia-cudnn-cu13", 13, "nvidia/cudnn/lib", ("libcudnn.so.9",)),
    Wheel("nvidia-cufft", 13, "nvidia/cu13/lib", ("libcufft.so.12", "libcufftw.so.12")),
    Wheel("nvidia-cufile", 13, "nvidia/cu13/lib", ("libcufile.so.0", "libcufile_rdma.so.1")),
    Wheel("nvidia-curand", 13, "nvidia/cu13/lib", ("libcurand.so.10",)),
    Wheel("nvidia-cusolver", 13, "nvidia/cu13/lib", ("libcusolver.so.12", "libcusolverMg.so.12")),
    Wheel("nvidia-cusparse", 13, "nvidia/cu13/lib", ("libcusparse.so.12",)),
    Wheel("nvidia-cusparselt-cu13", 13, "nvidia/cusparselt/lib", ("libcusparseLt.so.0",)),
    Wheel("nvidia-nccl-cu13", 13, "nvidia/nccl/lib", ("libnccl.so.2",)),
    Wheel("nvidia-nvjitlink", 13, "nvidia/cu13/lib", ("libnvJitLink.so.13",)),
    Wheel("nvidia-nvjpeg", 13, "nvidia/cu13/lib", ("libnvjpeg.so.13",)),
    Wheel("nvidia-nvshmem-cu13", 13, "nvidia/nvshmem/lib", ("libnvshmem_host.so.3",)),
    Wheel("nvidia-nvtx", 13, "nvidia/cu13/lib", ("libnvtx3interop.so.1",)),
)

_BY_DISTRIBUTION: dict[str, Wheel] = {wheel.distribution: wheel for wheel in WHEELS}
_CUDNN_SUBLIBRARY = re.compile(r"libcudnn_\w+\.so\.9$")

# Oldest driver branch that runs a CUDA major: CUDA Compatibility, "Minor Version Compatibility".
DRIVER_FLOORS: dict[int, int] = {11: 450, 12: 525, 13: 580}

# Installed by the NVIDIA driver; no wheel may bring them.
DRIVER_LIBRARIES: frozenset[str] = frozenset(
    {
        "libcuda.so.1",
        "libcudadebugger.so.1",
        "libnvcuvid.so.1",
        "libnvidia-encode.so.1",
        "libnvidia-ml.so.1",
        "libnvidia-nvvm.so.4",
        "libnvidia-ptxjitcompiler.so.1",
    }
)

# Operating-system libraries that CUDA objects need, by the name of their Debian and Ubuntu package.
SYSTEM_PACKAGES: dict[str, str] = {
    "libgomp.so.1": "libgomp1",
    "libibverbs.so.1": "libibverbs1",
    "libmlx5.so.1": "ibverbs-providers",
    "libnuma.so.1": "libnuma1",
    "libnl-3.so.200": "libnl-3-200",
    "librdmacm.so.1": "librdmacm1",
    "libstdc++.so.6": "libstdc++6",
}


def normalise(name: str) -> str:
    """Return a distribution's name as the index compares it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def wheel_of(distribution: str) -> Wheel | None:
    """The catalogue's entry for a distribution by its normalised name, or None."""
    return _BY_DISTRIBUTION.get(distribution)


def cuda_major_of(distribution: str) -> int | None:
    """The CUDA major of a distribution of CUDA libraries, by its normalised name; None for anything else."""
    wheel = wheel_of(distribution)
    if wheel is not None:
        return wheel.cuda
    suffix = re.fullmatch(r"nvidia-.+-cu(\d\d)", distribution)
    return int(suffix.group(1)) if suffix else None


def distributions_of(soname: str, cuda: int | None = None) -> list[str]:
    """Distributions that provide a soname, sorted by name; only those of one CUDA major when it is given.

    ``libnvrtc-builtins.so.13.0`` carries the toolkit's minor version: it is looked up by its major.
    """
    if _CUDNN_SUBLIBRARY.match(soname):
        soname = "libcudnn.so.9"
    for name in (soname, soname.rpartition(".")[0]):
        found = [w.distribution for w in WHEELS if name in w.sonames and cuda in (None, w.cuda)]
        if found:
            return sorted(found)
    return []


def distributions_of_library(library: str, cuda: int | None) -> list[str]:
    """Distributions that provide a library in any version, as ``libcudart``, for one CUDA major or for all."""
    return sorted(
        wheel.distribution
        for wheel in WHEELS
        if cuda in (None, wheel.cuda) and any(soname.split(".so")[0] == library for soname in wheel.sonames)
    )


def library_directories(distributions: Mapping[str, str]) -> list[str]:
    """Directories below site-packages that LD_LIBRARY_PATH needs for these {name: version}, sorted.

    The prediction of ``_wheels.library_path`` for an environment that is not built yet. Distributions without
    CUDA libraries add nothing, nor do NVIDIA's 0.0.x placeholders (``nvidia-cublas-cu13==0.0.1``), which
    install no library.
    """
    directories = set()
    for name, version in distributions.items():
        wheel = wheel_of(normalise(name))
        if wheel is not None and not version.startswith("0.0."):
            directories.add(wheel.directory)
    return sorted(directories)
