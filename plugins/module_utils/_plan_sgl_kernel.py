# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What ``import sgl_kernel`` loads: it chooses by the GPU, and asks CUDA_HOME afterwards. Private to the collection.

Its objects have no RPATH: they live off what torch has loaded before (sgl-project/sglang#18203).
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from ansible_collections.gpufleet.dflash.plugins.module_utils._attempt import Attempt, dlopen
from ansible_collections.gpufleet.dflash.plugins.module_utils._importer import Importer, read_source
from ansible_collections.gpufleet.dflash.plugins.module_utils._loader import Process
from ansible_collections.gpufleet.dflash.plugins.module_utils._plan_torch import import_torch_once, torch_cuda_version

# Of NVIDIA's data-centre GPUs these have compute capability 9.0 exactly; the driver names the model in /proc.
_HOPPER = re.compile(r"\b(H100|H200|H800|H20|GH200)\b")
_GPUS = "/proc/driver/nvidia/gpus"
_HEADLINE = "[sgl_kernel] CRITICAL: Could not load any common_ops library! ... "


def import_sgl_kernel(process: Process, importer: Importer, name: str) -> Iterator[Attempt]:
    """torch, the operations for the host's GPU, the rest of the package, and CUDA_HOME's libcudart."""
    package = importer.package(name)
    if package is None:
        return
    yield from import_torch_once(process, importer)
    torch = importer.package("torch")
    operations = _operations(importer, package, _HOPPER.search(_first_gpu()) is not None)
    # Each failure is swallowed while another place is left to try.
    going_on = not operations
    for position, path in enumerate(operations):
        attempt = dlopen(process, name, path, fatal=position == len(operations) - 1)
        yield attempt if attempt.error is None else _with_headline(attempt)
        if attempt.error is None:
            going_on = True
            break
    # An import that has failed gets no further; the others are tried all the same, to tell what they miss.
    if going_on and torch is not None and torch_cuda_version(torch) is not None:
        yield from _preload_runtime(process, importer, name, package)
    for reached in importer.follow(name):
        if reached.target not in operations:
            yield dlopen(process, name, reached.target, fatal=reached.required)


def _with_headline(attempt: Attempt) -> Attempt:
    return Attempt(attempt.module, attempt.target, attempt.error, attempt.fatal, f"ImportError: {_HEADLINE}ImportError")


def _first_gpu() -> str:
    """What the driver says of the first GPU; empty without one: sgl_kernel then takes what other GPUs take."""
    try:
        gpus = sorted(os.listdir(_GPUS))
        return Path(_GPUS, gpus[0], "information").read_text(encoding="utf-8", errors="replace") if gpus else ""
    except OSError:
        return ""


def _operations(importer: Importer, package: str, hopper: bool) -> list[str]:
    """The files that are tried in turn, which earlier releases have beside their sources."""
    directories = (os.path.join(package, "sm90" if hopper else "sm100"), package)
    found = [[path for path in importer.matches(each, "common_ops.*") if ".so" in path][:1] for each in directories]
    return [path for paths in found for path in paths]


def _preload_runtime(process: Process, importer: Importer, name: str, package: str) -> Iterator[Attempt]:
    """CUDA_HOME's libcudart, loaded after the operations: a second runtime beside the wheel's."""
    try:
        source = read_source(os.path.join(package, "load_utils.py"))
    except OSError:
        return
    for directory in ("lib", "lib64"):
        place = os.path.join(_cuda_home(importer), directory)
        if os.path.isdir(place):
            break
    else:
        return
    # Releases differ in which majors they look for, and in the order.
    for soname in dict.fromkeys(re.findall(r"libcudart\.so\.\d+", source)):
        path = os.path.realpath(os.path.join(place, soname))
        if os.path.exists(path):
            yield dlopen(process, name, path, exception="OSError", rtld_global=True)
            return


def _cuda_home(importer: Importer) -> str:
    home = importer.environment.get("CUDA_HOME") or importer.environment.get("CUDA_PATH")
    if home:
        return home
    nvcc = shutil.which("nvcc", path=importer.environment.get("PATH", os.defpath))
    return os.path.dirname(os.path.dirname(nvcc)) if nvcc else "/usr/local/cuda"
