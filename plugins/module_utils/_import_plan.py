# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What importing a module makes the dynamic linker load, in order. Private to the collection.

A plan is carried out against a simulated process, because it depends on what has happened so far: torch
preloads only when its first library came with a CUDA runtime, and stops silently at the first library that it
does not find.
"""

from __future__ import annotations

import ast
import glob
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from ansible_collections.gpufleet.dflash.plugins.module_utils._loader import LoadError, Process

_SOURCE_LIMIT = 4 * 1024 * 1024


@dataclass(frozen=True)
class Attempt:
    """One dlopen of the plan: for which module (or ``load``), of what, and the loader's error if it failed.

    ``fatal`` is False where Python goes on as if nothing had happened (torch's preloads).
    """

    module: str
    target: str
    error: LoadError | None
    fatal: bool = True


def import_module(process: Process, name: str, import_path: Sequence[str], version: str) -> list[Attempt] | None:
    """Carry out the dlopens of ``import name``. ``version`` is the venv's Python, as in 3.11.2.

    None when the import path holds no such module.
    """
    importer = _Importer(import_path, version)
    if not importer.exists(name):
        return None
    return list(RECIPES.get(name, _own_extension_modules)(process, importer, name))


def load_file(process: Process, target: str) -> Attempt:
    """dlopen a library as ``ctypes.CDLL`` does: by path when the name has a slash, else by search."""
    return _dlopen(process, "load", target)


def _dlopen(process: Process, module: str, target: str, fatal: bool = True) -> Attempt:
    try:
        process.dlopen(target)
    except LoadError as error:
        return Attempt(module, target, error, fatal)
    return Attempt(module, target, None, fatal)


# --- torch --------------------------------------------------------------------------------------------------


def torch_preloads(source: str) -> list[tuple[str, str, bool]]:
    """torch's own preload table, from the text of torch/__init__.py: (folder, pattern, required), in order.

    torch 2.0 to 2.8 keep a dict, later releases a list of pairs; both are in ``_preload_cuda_deps``. Empty
    where there is none.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    function = next(
        (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "_preload_cuda_deps"),
        None,
    )
    if function is None:
        return []
    table: list[tuple[str, str, bool]] = []
    for node in ast.walk(function):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            table += [(folder, pattern, True) for folder, pattern in _string_pairs(node.value)]
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and len(node.args) == 2 and any(word.arg == "required" for word in node.keywords):
            table += [
                (folder, pattern, False)
                for folder, pattern in _string_pairs(ast.List(elts=[ast.Tuple(elts=node.args)]))
            ]
    return table


def _string_pairs(node: ast.expr) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Dict):
        pairs = list(zip(node.keys, node.values))
    elif isinstance(node, (ast.List, ast.Tuple)):
        pairs = [(e.elts[0], e.elts[1]) for e in node.elts if isinstance(e, ast.Tuple) and len(e.elts) == 2]
    else:
        pairs = []
    for left, right in pairs:
        folder, pattern = getattr(left, "value", None), getattr(right, "value", None)
        if isinstance(folder, str) and isinstance(pattern, str) and pattern.startswith("lib"):
            yield folder, pattern


def torch_cuda_version(torch_package: str) -> str | None:
    """The CUDA version that torch was built for (``13.0``), None for a CPU build. Reads torch/version.py."""
    try:
        text = _read(os.path.join(torch_package, "version.py"))
    except (OSError, ValueError):
        return None
    found = re.search(r"^cuda\b[^=\n]*=\s*['\"]([\d.]+)['\"]", text, re.MULTILINE)
    return found.group(1) if found else None


def _import_torch(process: Process, importer: _Importer, name: str) -> Iterator[Attempt]:
    """torch/__init__.py, ``_load_global_deps`` and then ``torch._C``."""
    package = importer.package(name)
    if package is None:
        return
    source = _read(os.path.join(package, "__init__.py"))
    global_deps = os.path.join(package, "lib", "libtorch_global_deps.so")
    if os.path.exists(global_deps):
        first = _dlopen(process, name, global_deps)
        table = torch_preloads(source)
        cuda = torch_cuda_version(package) or ""
        if first.error is None:
            yield first
            if any("libcudart.so" in loaded.path for loaded in process.loaded):
                yield from _preload(process, name, table, cuda, importer, quietly=True)
        elif any(pattern.split(".", 1)[0] in first.error.message for _folder, pattern, _required in table):
            preloads = list(_preload(process, name, table, cuda, importer, quietly=False))
            yield from preloads
            yield _dlopen(process, name, global_deps)
        else:
            yield first
    for extension in importer.extension_files(os.path.join(package, "_C")):
        yield _dlopen(process, name, extension)


def _preload(
    process: Process,
    module: str,
    table: Sequence[tuple[str, str, bool]],
    cuda: str,
    importer: _Importer,
    quietly: bool,
) -> Iterator[Attempt]:
    for folder, pattern, required in table:
        candidate = _preload_candidate(folder, pattern, cuda.split(".")[0], importer.import_path)
        if candidate is None:
            if required:
                return
            continue
        attempt = _dlopen(process, module, candidate, fatal=not quietly)
        yield attempt
        if attempt.error is not None:
            return


def _preload_candidate(folder: str, pattern: str, major: str, import_path: Sequence[str]) -> str | None:
    """torch's ``_get_cuda_dep_paths``: the first entry of the import path with a match decides."""
    for entry in import_path:
        directories = [os.path.join(entry, "nvidia", folder, "lib")]
        if major:
            directories.append(os.path.join(entry, "nvidia", f"cu{major}", "lib"))
        directories.append(os.path.join(entry, folder, "lib"))
        for directory in directories:
            # Unsorted on purpose: torch takes glob's first match, which is the order of the directory.
            found = glob.glob(os.path.join(glob.escape(directory), pattern))
            if found:
                return found[0]
    return None


# --- any other module ---------------------------------------------------------------------------------------


def _own_extension_modules(process: Process, importer: _Importer, name: str) -> Iterator[Attempt]:
    """The extension modules that the module's files import, in order, as far as ``import`` statements tell.

    A package that imports none of its extension modules by a statement chooses them at run time: all count
    then.
    """
    followed = importer.follow(name)
    for extension, required in followed or [(path, True) for path in importer.all_extensions(name)]:
        yield _dlopen(process, name, extension, fatal=required)


class _Importer:
    """Finds modules as Python's path finder does, without executing any."""

    def __init__(self, import_path: Sequence[str], version: str) -> None:
        self.import_path = tuple(import_path)
        digits = "".join(version.split(".")[:2])
        self._suffixes = (f".cpython-{digits}-{os.uname().machine}-linux-gnu.so", ".abi3.so", ".so")

    def package(self, name: str) -> str | None:
        """Directory of a regular package."""
        stems = (os.path.join(entry, name) for entry in self.import_path)
        return next((stem for stem in stems if os.path.isfile(os.path.join(stem, "__init__.py"))), None)

    def extension_files(self, stem: str) -> list[str]:
        """The extension module at this path without suffix: one file, or none."""
        return [stem + suffix for suffix in self._suffixes if os.path.isfile(stem + suffix)][:1]

    def exists(self, name: str) -> bool:
        return any(
            os.path.isdir(stem) or os.path.isfile(stem + ".py") or self.extension_files(stem)
            for stem in (os.path.join(entry, *name.split(".")) for entry in self.import_path)
        )

    def all_extensions(self, name: str) -> list[str]:
        found = []
        for entry in self.import_path:
            for directory, folders, files in os.walk(os.path.join(entry, *name.split("."))):
                folders[:] = sorted(folder for folder in folders if folder not in ("tests", "test", "__pycache__"))
                found += [os.path.join(directory, file) for file in sorted(files) if self._is_extension(file)]
        return found

    def _is_extension(self, file: str) -> bool:
        # lib*.so are libraries that extension modules need, not modules.
        return (
            file.endswith(self._suffixes)
            and not file.startswith("lib")
            and ".cpython-" not in file.replace(self._suffixes[0], "")
        )

    def follow(self, name: str) -> list[tuple[str, bool]]:
        """Extension modules of the package that importing ``name`` reaches, and whether it must have them."""
        extensions: list[tuple[str, bool]] = []
        seen: set[str] = set()
        top = name.split(".")[0]

        def visit(module: str, required: bool) -> None:
            if module in seen or module.split(".")[0] != top:
                return
            seen.add(module)
            parent = module.rpartition(".")[0]
            if parent:
                visit(parent, required)
            for entry in self.import_path:
                # Python's order of preference: package, extension module, source.
                stem = os.path.join(entry, *module.split("."))
                package = os.path.join(stem, "__init__.py")
                if os.path.isfile(package):
                    break
                extension = self.extension_files(stem)
                if extension:
                    extensions.extend((path, required) for path in extension)
                    return
                if os.path.isfile(stem + ".py"):
                    break
            else:
                return
            source = package if os.path.isfile(package) else stem + ".py"
            for target, always in _imported(source, module, is_package=source == package):
                visit(target, required and always)

        visit(name, True)
        return extensions


def _imported(source: str, module: str, is_package: bool) -> list[tuple[str, bool]]:
    """Modules that a source file imports when it is itself imported, and whether a failure ends that import.

    Functions' bodies do not run then; an import below ``try`` with ``except ImportError`` may fail.
    """
    try:
        tree = ast.parse(_read(source))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return []
    package = module.split(".") if is_package else module.split(".")[:-1]
    found: list[tuple[str, bool]] = []
    todo: list[tuple[ast.AST, bool]] = [(node, True) for node in reversed(tree.body)]
    while todo:
        node, required = todo.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) or _only_for_types(node):
            continue
        if isinstance(node, ast.Import):
            found += [(alias.name, required) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            kept = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join(kept + ([node.module] if node.module else []))
            found += [(name, required) for name in (base, *(f"{base}.{alias.name}" for alias in node.names))]
        else:
            required = required and not _forgives(node)
            todo += [(child, required) for child in reversed(list(ast.iter_child_nodes(node)))]
    return [(name, required) for name, required in found if name]


def _forgives(node: ast.AST) -> bool:
    """Whether the statement goes on after a failed import inside it."""
    if not isinstance(node, ast.Try):
        return False
    caught = " ".join("Exception" if handler.type is None else ast.dump(handler.type) for handler in node.handlers)
    return any(name in caught for name in ("ImportError", "ModuleNotFoundError", "OSError", "Exception")) and not any(
        isinstance(inner, ast.Raise) for handler in node.handlers for inner in ast.walk(handler)
    )


def _only_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def _read(path: str) -> str:
    with Path(path).open(encoding="utf-8", errors="replace") as stream:
        return stream.read(_SOURCE_LIMIT)


RECIPES: Mapping[str, Callable[[Process, _Importer, str], Iterator[Attempt]]] = {"torch": _import_torch}
