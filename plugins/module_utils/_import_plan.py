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
from typing import Callable

from ansible_collections.gpufleet.dflash.plugins.module_utils._attempt import Attempt, dlopen
from ansible_collections.gpufleet.dflash.plugins.module_utils._importer import Importer
from ansible_collections.gpufleet.dflash.plugins.module_utils._loader import Process
from ansible_collections.gpufleet.dflash.plugins.module_utils._plan_sgl_kernel import import_sgl_kernel
from ansible_collections.gpufleet.dflash.plugins.module_utils._plan_torch import (
    import_torch,
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
) -> list[Attempt] | None:
    """Carry out the dlopens of ``import name``. ``version`` is the venv's Python, as in 3.11.2.

    ``hidden`` are paths to treat as absent, those that the process was given. None when the import path holds no
    such module.
    """
    importer = Importer(import_path, version, environment or {}, hidden)
    if not importer.exists(name):
        return None
    return list(RECIPES.get(name, own_extension_modules)(process, importer, name))


def load_file(process: Process, target: str) -> Attempt:
    """dlopen a library as ``ctypes.CDLL`` does: by path when the name has a slash, else by search."""
    return dlopen(process, "load", target, exception="OSError")


def own_extension_modules(process: Process, importer: Importer, name: str) -> Iterator[Attempt]:
    """The extension modules that the module's files import, in order, as far as ``import`` statements tell.

    A package that imports none of its extension modules by a statement chooses them at run time: all count
    then.
    """
    followed = importer.follow(name)
    for extension, required in followed or [(path, True) for path in importer.all_extensions(name)]:
        yield dlopen(process, name, extension, fatal=required)


RECIPES: Mapping[str, Callable[[Process, Importer, str], Iterator[Attempt]]] = {
    "torch": import_torch,
    "sgl_kernel": import_sgl_kernel,
}
