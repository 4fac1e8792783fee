# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which distribution provides which CUDA library, and where it puts it. Private to the collection.

A soname alone does not tell the CUDA major: CUDA 13's cuSPARSE is ``libcusparse.so.12``, and cuDNN, NCCL,
cuRAND, cuFile, NVSHMEM and cuSPARSELt keep one soname for CUDA 12 and 13. So the table is by distribution,
never by a digit in a name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from ansible_collections.gpufleet.dflash.plugins.module_utils._catalogue_data import PROVIDED, TOOLKITS


class Wheel(NamedTuple):
    """A distribution's CUDA libraries in one directory.

    ``directory`` is below site-packages; ``sonames`` maps each to the oldest and the newest version that was found
    to have it.
    """

    distribution: str
    cuda: int
    directory: str
    sonames: Mapping[str, tuple[str, str]]


def _major_by_name(distribution: str) -> int:
    """CUDA 13 drops the suffix from the names of the toolkit's components."""
    suffix = re.search(r"-cu(\d\d)$", distribution)
    return int(suffix.group(1)) if suffix else 13


# CUDA 11 and 12 give each component a directory of its own. CUDA 13 puts the toolkit's components into
# nvidia/cu13/lib; what is released apart from the toolkit stays where it was.
WHEELS: tuple[Wheel, ...] = tuple(
    Wheel(distribution, _major_by_name(distribution), directory, sonames)
    for (distribution, directory), sonames in PROVIDED.items()
)

# The row of a distribution that LD_LIBRARY_PATH is about: a compiler's private directories come after it.
_BY_DISTRIBUTION: dict[str, Wheel] = {
    wheel.distribution: wheel for wheel in sorted(WHEELS, key=lambda wheel: os.path.basename(wheel.directory) == "lib")
}

# Sonames with CUDA's major and minor version, of which every release has another.
_MINOR_VERSIONED = re.compile(r"lib(nvrtc-builtins|cupti)\.so\.\d+\.\d+$")

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

    ``libnvrtc-builtins.so.13.0`` carries the toolkit's minor version: one that was not read is looked up by its
    neighbours.
    """
    exact = {w.distribution for w in WHEELS if soname in w.sonames and cuda in (None, w.cuda)}
    if exact or not _MINOR_VERSIONED.match(soname):
        return sorted(exact)
    family = soname.rpartition(".")[0] + "."
    return sorted(
        {w.distribution for w in WHEELS if cuda in (None, w.cuda) and any(s.startswith(family) for s in w.sonames)}
    )


def distributions_of_library(library: str, cuda: int | None) -> list[str]:
    """Distributions that provide a library in any version, as ``libcudart``, for one CUDA major or for all."""
    return sorted(
        {
            wheel.distribution
            for wheel in WHEELS
            if cuda in (None, wheel.cuda) and any(soname.split(".so")[0] == library for soname in wheel.sonames)
        }
    )


def real_name(distribution: str) -> str:
    """The distribution that has the libraries, for the name of a placeholder.

    ``nvidia-cusparse-cu13==0.0.1`` and its like are empty: CUDA 13's toolkit has no suffixed names.
    """
    plain = distribution[: -len("-cu13")] if distribution.endswith("-cu13") else distribution
    return plain if wheel_of(distribution) is None and wheel_of(plain) is not None else distribution


def toolkit_of(distributions: Mapping[str, str]) -> str | None:
    """The CUDA toolkit, as ``12.8``, that most of these {name: version} belong to; None when none does."""
    fitting = {
        toolkit: sum(versions.get(name) == version for name, version in distributions.items())
        for toolkit, versions in TOOLKITS.items()
    }
    best = max(fitting, key=lambda toolkit: fitting[toolkit])
    return best if fitting[best] else None


def version_of(distribution: str, soname: str | None, toolkit: str | None) -> str | None:
    """The version of a distribution to install for a soname: the toolkit's own if it has it, else the newest that does.

    None where no version was read that is known to provide it.
    """
    ranges = _ranges(distribution, soname) if soname is not None else []
    version = TOOLKITS.get(toolkit or "", {}).get(distribution)
    # A later version may have dropped the library: nvidia-nvtx-cu12 12.9 has no libnvToolsExt.so.1.
    if version is not None and (not ranges or _within(version, ranges)):
        return version
    return ranges[0][1] if ranges else None


def may_have(distribution: str, version: str, soname: str) -> bool:
    """Whether this version lies between the oldest and the newest that are known to have the library."""
    return _within(version, _ranges(distribution, soname))


def _ranges(distribution: str, soname: str) -> list[tuple[str, str]]:
    return [w.sonames[soname] for w in WHEELS if w.distribution == distribution and soname in w.sonames]


def _within(version: str, ranges: list[tuple[str, str]]) -> bool:
    return any(_ordered(oldest) <= _ordered(version) <= _ordered(newest) for oldest, newest in ranges)


def library_directories(distributions: Mapping[str, str]) -> list[str]:
    """Directories below site-packages that LD_LIBRARY_PATH needs for these {name: version}, sorted.

    The prediction of ``_wheels.library_path`` for an environment that is not built yet. Distributions without
    CUDA libraries add nothing, nor do NVIDIA's 0.0.x placeholders (``nvidia-cublas-cu13==0.0.1``), which
    install no library.
    """
    directories = set()
    for name, version in distributions.items():
        rows = [w for w in WHEELS if w.distribution == normalise(name) and os.path.basename(w.directory) == "lib"]
        if rows and not version.startswith("0.0."):
            directories.add(_row_of(rows, version).directory)
    return sorted(directories)


def _row_of(rows: list[Wheel], version: str) -> Wheel:
    """The row for a version: nvidia-cusparselt-cu13 moved its library between 0.8 and 0.10."""
    older = [row for row in rows if min(map(_ordered, _oldest(row))) <= _ordered(version)]
    return max(older or rows, key=lambda row: min(map(_ordered, _oldest(row))))


def _oldest(row: Wheel) -> list[str]:
    return [oldest for oldest, _newest in row.sonames.values()]


def _ordered(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]
