# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What ``import cupy`` loads. Private to the collection."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ansible_collections.gpufleet.dflash.plugins.module_utils import _catalogue
from ansible_collections.gpufleet.dflash.plugins.module_utils._attempt import Attempt, dlopen
from ansible_collections.gpufleet.dflash.plugins.module_utils._elf import ElfError, read_object
from ansible_collections.gpufleet.dflash.plugins.module_utils._importer import Importer
from ansible_collections.gpufleet.dflash.plugins.module_utils._loader import Process

# Its parts below one import; the second has the bindings of the CUDA libraries.
_PACKAGES = frozenset({"cupy", "cupy_backends", "cupyx"})
_CUTENSOR = "libcutensor.so.2"


def import_cupy(process: Process, importer: Importer, name: str) -> Iterator[Attempt]:
    """cuTENSOR, if it is installed, and CuPy's own extension modules, as far as statements name them.

    Modules written in Cython import more of their kind without a statement; those need nothing but the C and C++
    runtimes. The bindings of cuBLAS and the like are imported on first use, or by a module such as cupy.cublas, each
    after cuda-pathfinder has loaded its library from a wheel.
    """
    cutensor = _installed(importer, _CUTENSOR)
    if cutensor is not None:
        yield dlopen(process, name, cutensor, fatal=False, exception="OSError")
    for reached in importer.follow(name, also=_PACKAGES):
        # The binding is tried whether or not there is a cuTENSOR, and without one it is unavailable.
        if os.path.basename(reached.target).startswith("cutensor.") and cutensor is None:
            continue
        for soname in _needed(reached.target):
            library = _installed(importer, soname)
            if library is not None:
                yield dlopen(process, name, library, fatal=False, exception="OSError")
        yield dlopen(process, name, reached.target, fatal=reached.required)


def _needed(path: str) -> tuple[str, ...]:
    try:
        return tuple(read_object(path).needed)
    except (ElfError, OSError):
        return ()


def _installed(importer: Importer, soname: str) -> str | None:
    """The wheel's file that cuda-pathfinder finds for a soname: it looks into site-packages first."""
    directories = dict.fromkeys(wheel.directory for wheel in _catalogue.WHEELS if soname in wheel.sonames)
    for entry in importer.import_path:
        for directory in directories:
            path = os.path.join(entry, directory, soname)
            if importer.is_file(path):
                return path
    return None
