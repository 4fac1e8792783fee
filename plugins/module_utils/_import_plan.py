# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What importing a module makes the dynamic linker load, in order. Private to the collection.

A plan is carried out against a simulated process, because it depends on what has happened so far: torch
preloads only when its first library came with a CUDA runtime, and stops silently at the first library that it
does not find.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Callable

from ansible_collections.gpufleet.dflash.plugins.module_utils._attempt import Attempt, dlopen
from ansible_collections.gpufleet.dflash.plugins.module_utils._importer import Importer
from ansible_collections.gpufleet.dflash.plugins.module_utils._loader import Process
from ansible_collections.gpufleet.dflash.plugins.module_utils._plan_cupy import import_cupy
from ansible_collections.gpufleet.dflash.plugins.module_utils._plan_jax import import_jax, import_jax_plugin
from ansible_collections.gpufleet.dflash.plugins.module_utils._plan_on_torch import import_flashinfer, import_vllm
from ansible_collections.gpufleet.dflash.plugins.module_utils._plan_onnxruntime import import_onnxruntime
from ansible_collections.gpufleet.dflash.plugins.module_utils._plan_sgl_kernel import import_sgl_kernel
from ansible_collections.gpufleet.dflash.plugins.module_utils._plan_torch import (
    import_torch,
    import_torch_once,
    is_built_without_gpu,
    torch_cuda_version,
    torch_preloads,
)

__all__ = ["Attempt", "import_module", "is_built_without_gpu", "load_file", "torch_cuda_version", "torch_preloads"]


def import_module(
    process: Process,
    name: str,
    import_path: Sequence[str],
    version: str,
    *,
    environment: Mapping[str, str] | None = None,
    hidden: Container[str] = frozenset(),
    standard_library: Sequence[str] = (),
) -> list[Attempt] | None:
    """Carry out the dlopens of ``import name``. ``version`` is the venv's Python, as in 3.11.2.

    ``hidden`` are paths to treat as absent, those that the process was given; ``standard_library`` the directories of
    the base interpreter's. None when there is no such module.
    """
    importer = Importer(import_path, version, environment or {}, hidden, standard_library)
    if not importer.exists(name):
        return None
    return list(_recipe(name)(process, importer, name))


def _recipe(name: str) -> Callable[[Process, Importer, str], Iterator[Attempt]]:
    top = name.split(".")[0]
    return RECIPES.get(name) or _RECIPES_OF_SUBMODULES.get(top, own_extension_modules)


def load_file(process: Process, target: str) -> Attempt:
    """dlopen a library as ``ctypes.CDLL`` does: by path when the name has a slash, else by search."""
    return dlopen(process, "load", target, exception="OSError")


def own_extension_modules(process: Process, importer: Importer, name: str) -> Iterator[Attempt]:
    """The extension modules that the module's files import, in order, as far as ``import`` statements tell, and
    torch where they import it first.

    A package that imports none of its extension modules by a statement chooses them at run time: all count
    then.
    """
    followed = importer.follow(name, plans=_FOLLOWED_INTO)
    for reached in followed:
        if reached.is_module:
            for attempt in import_torch_once(process, importer):
                yield replace(attempt, fatal=attempt.fatal and reached.required)
        else:
            yield dlopen(process, name, reached.target, fatal=reached.required)
    if all(reached.is_module for reached in followed):
        for path in importer.all_extensions(name):
            yield dlopen(process, name, path)


# Packages whose own loads decide what the extension modules of those that import them find.
_FOLLOWED_INTO = frozenset({"torch"})

RECIPES: Mapping[str, Callable[[Process, Importer, str], Iterator[Attempt]]] = {
    "torch": import_torch,
    "sgl_kernel": import_sgl_kernel,
    "flashinfer": import_flashinfer,
    "vllm": import_vllm,
    "jax": import_jax,
    "jax_plugins.xla_cuda12": import_jax_plugin,
    "jax_plugins.xla_cuda13": import_jax_plugin,
    "cupy": import_cupy,
    "onnxruntime": import_onnxruntime,
}

_RECIPES_OF_SUBMODULES = {"cupy": import_cupy, "cupyx": import_cupy}
