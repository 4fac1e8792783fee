# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What ``import cupy`` loads. Private to the collection."""

from __future__ import annotations

from collections.abc import Iterator

from ansible_collections.gpufleet.dflash.plugins.module_utils._attempt import Attempt, dlopen
from ansible_collections.gpufleet.dflash.plugins.module_utils._elf import ElfError, read_object
from ansible_collections.gpufleet.dflash.plugins.module_utils._importer import Importer
from ansible_collections.gpufleet.dflash.plugins.module_utils._loader import Process
from ansible_collections.gpufleet.dflash.plugins.module_utils._plan_pathfinder import Pathfinder

# Its parts below one import; the second has the bindings of the CUDA libraries.
_PACKAGES = frozenset({"cupy", "cupy_backends", "cupyx"})


def import_cupy(process: Process, importer: Importer, name: str) -> Iterator[Attempt]:
    """What cuda-pathfinder loads for cuTENSOR, and CuPy's own extension modules, as far as statements name them.

    Modules written in Cython import more of their kind without a statement; those need nothing but the C and C++
    runtimes. The bindings of cuBLAS and the like are imported on first use, or by a module such as cupy.cublas, each
    after cuda-pathfinder has loaded its library.
    """
    pathfinder = Pathfinder(process, importer, name)
    # _environment._preload_library('cutensor'): what cuTENSOR depends on comes first, whether or not it is there.
    yield from pathfinder.load("cutensor")
    for reached in importer.follow(name, also=_PACKAGES):
        for soname in _needed(reached.target):
            library = pathfinder.name_of(soname)
            if library is not None:
                yield from pathfinder.load(library)
        attempt = dlopen(process, name, reached.target, fatal=reached.required)
        # A binding that may fail, as cuTENSOR's, is one that CuPy does without.
        if attempt.error is None or reached.required:
            yield attempt


def _needed(path: str) -> tuple[str, ...]:
    try:
        return tuple(read_object(path).needed)
    except (ElfError, OSError):
        return ()
