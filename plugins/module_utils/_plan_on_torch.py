# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What packages on top of torch load: flashinfer and vllm. Private to the collection."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ansible_collections.gpufleet.dflash.plugins.module_utils._attempt import Attempt, dlopen
from ansible_collections.gpufleet.dflash.plugins.module_utils._importer import Importer
from ansible_collections.gpufleet.dflash.plugins.module_utils._loader import Process
from ansible_collections.gpufleet.dflash.plugins.module_utils._plan_torch import import_torch_once, torch_cuda_version


def import_flashinfer(process: Process, importer: Importer, name: str) -> Iterator[Attempt]:
    """torch, and the binding of Apache TVM that its kernels are called through.

    The kernels themselves come later, one file each: from flashinfer-jit-cache, or compiled on first use; those of
    flashinfer-cubin are code for the GPU that no loader sees. Its thousand sources are not worth following.
    """
    if importer.package(name) is None:
        return
    yield from import_torch_once(process, importer)
    binding = importer.package("tvm_ffi")
    if binding is not None:
        library = os.path.join(binding, "lib", "libtvm_ffi.so")
        # tvm_ffi opens its library by path before the extension module that needs it.
        if importer.is_file(library):
            yield dlopen(process, name, library, exception="OSError")
        for extension in importer.extension_files(os.path.join(binding, "core")):
            yield dlopen(process, name, extension)


def import_vllm(process: Process, importer: Importer, name: str) -> Iterator[Attempt]:
    """torch, and what vLLM imports when it finds that it runs on CUDA: its operations, in vllm.platforms.cuda.

    ``import vllm`` alone loads torch; the platform is looked for as soon as anything is done with it.
    """
    if importer.package(name) is None:
        return
    yield from import_torch_once(process, importer)
    torch = importer.package("torch")
    modules = [name]
    if torch is not None and torch_cuda_version(torch) is not None:
        modules.append(f"{name}.platforms.cuda")
    for reached in dict.fromkeys(each for module in modules for each in importer.follow(module)):
        yield dlopen(process, name, reached.target, fatal=reached.required)
