# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What ``import onnxruntime`` loads. Private to the collection."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ansible_collections.gpufleet.dflash.plugins.module_utils._attempt import Attempt, dlopen
from ansible_collections.gpufleet.dflash.plugins.module_utils._importer import Importer
from ansible_collections.gpufleet.dflash.plugins.module_utils._loader import Process


def import_onnxruntime(process: Process, importer: Importer, name: str) -> Iterator[Attempt]:
    """Its binding, which opens the part that all execution providers share.

    The CUDA provider is opened with the first session that asks for it. It has no search path of its own: a program
    has imported torch or called ``onnxruntime.preload_dlls()`` by then, or falls back to the CPU with a line in its
    log. What the import does not load is not judged here; ``load`` can name the provider.
    """
    package = importer.package(name)
    if package is None:
        return
    capi = os.path.join(package, "capi")
    for binding in importer.extension_files(os.path.join(capi, "onnxruntime_pybind11_state")):
        attempt = dlopen(process, name, binding)
        yield attempt
        shared = os.path.join(capi, "libonnxruntime_providers_shared.so")
        if attempt.error is None and importer.is_file(shared):
            yield dlopen(process, name, shared, fatal=False)
