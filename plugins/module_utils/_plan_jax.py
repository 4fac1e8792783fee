# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What ``import jax`` and its first use of a GPU load. Private to the collection."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator

from ansible_collections.gpufleet.dflash.plugins.module_utils import _catalogue
from ansible_collections.gpufleet.dflash.plugins.module_utils._attempt import Attempt, dlopen
from ansible_collections.gpufleet.dflash.plugins.module_utils._importer import Importer, read_source
from ansible_collections.gpufleet.dflash.plugins.module_utils._loader import LoadError, Process

# jax's own order of preference.
_PLUGINS = {13: "jax_cuda13_plugin", 12: "jax_cuda12_plugin"}
# What jax's first look for devices asks for its version, by the names in its own checks.
_CHECKED = {
    "CUDA": "libcudart",
    "cuDNN": "libcudnn",
    "cuFFT": "libcufft",
    "cuPTI": "libcupti",
    "cuBLAS": "libcublas",
    "cuSPARSE": "libcusparse",
}


def import_jax(process: Process, importer: Importer, name: str) -> Iterator[Attempt]:
    """jaxlib's core, the CUDA plugin's extension modules, and what the plugin loads when jax looks for devices."""
    if importer.package(name) is None:
        return
    jaxlib = importer.package("jaxlib")
    for stem in ("cpu_feature_guard", "_jax", "xla_extension") if jaxlib else ():
        for extension in importer.extension_files(os.path.join(jaxlib or "", stem)):
            yield dlopen(process, name, extension)
    for plugin in _PLUGINS.values():
        package = importer.package(plugin)
        # A plugin that does not load is one that jax does without.
        for extension in sorted(importer.matches(package, "*.so")) if package else ():
            if not os.path.basename(extension).startswith(("lib", "_mosaic")):
                yield dlopen(process, name, extension, fatal=False)
    for cuda in _PLUGINS:
        yield from import_jax_plugin(process, importer, f"jax_plugins.xla_cuda{cuda}")


def import_jax_plugin(process: Process, importer: Importer, name: str) -> Iterator[Attempt]:
    """``initialize()`` of jax_plugins.xla_cuda12 or 13: NVIDIA's libraries from their wheels, then the plugin."""
    package = importer.package(name.replace(".", "/"))
    if package is None:
        return
    cuda = int(name[-2:])
    loads, checked = _tables(os.path.join(package, "__init__.py"))
    for module, library in loads:
        directory = _namespace(importer, f"nvidia/{module}")
        path = os.path.join(directory, "lib", library) if directory else ""
        # What is not there, or does not load, is left to the search of the plugin itself.
        if path and importer.is_file(path):
            attempt = dlopen(process, name, path, fatal=False, exception="OSError")
            if attempt.error is None or not _fits(library, cuda, checked):
                yield attempt
    plugin = os.path.join(package, "xla_cuda_plugin.so")
    extensions = importer.package(_PLUGINS[cuda])
    for versions in importer.extension_files(os.path.join(extensions, "_versions")) if extensions else ():
        yield dlopen(process, name, versions)
        for library in dict.fromkeys(library for _module, library in loads if _fits(library, cuda, checked)):
            yield _open_from(process, name, library, versions)
    if importer.is_file(plugin):
        yield dlopen(process, name, plugin, exception="RuntimeError")


def _open_from(process: Process, name: str, library: str, caller: str) -> Attempt:
    """What a check of versions does: open a library by its soname, with the caller's search path."""
    try:
        process.dlopen(library, caller)
    except LoadError as error:
        return Attempt(name, library, error, True, "RuntimeError")
    return Attempt(name, library, None, True, "RuntimeError")


def _fits(library: str, cuda: int, checked: set[str]) -> bool:
    """Whether a library is one whose version the plugin for this CUDA major asks for."""
    return library.split(".so")[0] in checked and bool(_catalogue.distributions_of(library, cuda))


def _namespace(importer: Importer, path: str) -> str | None:
    """The first directory of a namespace package, as ``nvidia.cu13.__path__[0]``."""
    found = (os.path.join(entry, path) for entry in importer.import_path)
    return next((directory for directory in found if os.path.isdir(directory)), None)


def _tables(source: str) -> tuple[list[tuple[str, str]], set[str]]:
    """From the plugin's source: what it loads as (module of nvidia, library), in order, and what it checks."""
    try:
        tree = ast.parse(read_source(source))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return [], set()
    loads: list[tuple[str, str]] = []
    checked: set[str] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        words = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
        if node.func.id == "_load" and len(node.args) == 2 and isinstance(node.args[1], ast.List):
            names = [element.value for element in node.args[1].elts if isinstance(element, ast.Constant)]
            loads += [(str(word), str(library)) for word in words for library in names]
        elif node.func.id == "_version_check" and words:
            checked.add(_CHECKED.get(str(words[0]), ""))
    return loads, checked - {""}
