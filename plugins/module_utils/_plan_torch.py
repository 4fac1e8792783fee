# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What ``import torch`` loads: its preloads, in its order, and then its extension module. Private to the collection."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ansible_collections.gpufleet.dflash.plugins.module_utils._attempt import Attempt, dlopen
from ansible_collections.gpufleet.dflash.plugins.module_utils._importer import Importer, read_source
from ansible_collections.gpufleet.dflash.plugins.module_utils._loader import LoadError, Process

# To the next line that begins at the margin; the signature's closing parenthesis is one of its own.
_PRELOAD_FUNCTION = re.compile(r"^def _preload_cuda_deps\b.*?(?=^[^\s)#]|\Z)", re.MULTILINE | re.DOTALL)


def torch_preloads(source: str) -> list[tuple[str, str, bool]]:
    """torch's own preload table, from the text of torch/__init__.py: (folder, pattern, required), in order.

    torch 2.0 to 2.8 keep a dict, later releases a list of pairs; both are in ``_preload_cuda_deps``. Empty
    where there is none.
    """
    # Parsing all of torch/__init__.py would take six megabytes, as much as the records of a whole venv.
    own_text = _PRELOAD_FUNCTION.search(source)
    tree = (_parsed(own_text.group()) or _parsed(source)) if own_text else None
    if tree is None:
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


def _parsed(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


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
        text = read_source(os.path.join(torch_package, "version.py"))
    except (OSError, ValueError):
        return None
    found = re.search(r"^cuda\b[^=\n]*=\s*['\"]([\d.]+)['\"]", text, re.MULTILINE)
    return found.group(1) if found else None


def torch_cuda_in(import_path: Sequence[str]) -> str | None:
    """The same of the torch that an import finds; None where there is none."""
    packages = (os.path.join(directory, "torch") for directory in import_path)
    torch = next((path for path in packages if os.path.isfile(os.path.join(path, "__init__.py"))), None)
    return torch_cuda_version(torch) if torch else None


def is_built_without_gpu(torch_package: str) -> bool:
    """Whether this torch is for CPUs only: torch/version.py names neither CUDA nor ROCm nor XPU."""
    try:
        text = read_source(os.path.join(torch_package, "version.py"))
    except (OSError, ValueError):
        return False
    values = dict(re.findall(r"^(cuda|hip|xpu)\b[^=\n]*=\s*(.+?)\s*$", text, re.MULTILINE))
    return "cuda" in values and set(values.values()) == {"None"}


def import_torch(process: Process, importer: Importer, name: str) -> Iterator[Attempt]:
    """torch/__init__.py, ``_load_global_deps`` and then ``torch._C``."""
    package = importer.package(name)
    if package is None:
        return
    global_deps = os.path.join(package, "lib", "libtorch_global_deps.so")
    if importer.is_file(global_deps):
        yield from _load_global_deps(_Preloads(process, importer, name, package), global_deps)
    for extension in importer.extension_files(os.path.join(package, "_C")):
        yield dlopen(process, name, extension)


def import_torch_once(process: Process, importer: Importer) -> Iterator[Attempt]:
    """What ``import torch`` loads where another package imports it, unless the process has imported it."""
    package = importer.package("torch")
    if package is not None and not any(loaded.path.startswith(package + "/") for loaded in process.loaded):
        yield from import_torch(process, importer, "torch")


def _load_global_deps(preloads: _Preloads, global_deps: str) -> Iterator[Attempt]:
    first = preloads.dlopen(global_deps, fatal=True, exception="OSError", rtld_global=True)
    if first.error is None:
        yield first
        if any("libcudart.so" in loaded.path for loaded in preloads.process.loaded):
            yield from preloads.carry_out(None)
    elif any(pattern.split(".", 1)[0] in first.error.message for _folder, pattern, _required in preloads.table):
        attempts = list(preloads.carry_out(first.error))
        yield from attempts
        yield preloads.dlopen(global_deps, fatal=True, exception="OSError", rtld_global=True)
    else:
        yield first


class _Preloads:
    """torch's ``_preload_cuda_deps`` of one installed torch."""

    def __init__(self, process: Process, importer: Importer, module: str, package: str) -> None:
        self.process = process
        self.table = torch_preloads(read_source(os.path.join(package, "__init__.py")))
        self._importer = importer
        self._module = module
        self._major = (torch_cuda_version(package) or "").split(".")[0]

    def dlopen(self, path: str, *, fatal: bool, exception: str, rtld_global: bool = False) -> Attempt:
        return dlopen(self.process, self._module, path, fatal=fatal, exception=exception, rtld_global=rtld_global)

    def carry_out(self, cause: LoadError | None) -> Iterator[Attempt]:
        """Load what the table says. Without a ``cause``, an error that torch wants to cure, the first failure ends
        it and torch says nothing.
        """
        quietly = cause is None
        for position, (folder, pattern, required) in enumerate(self.table):
            candidate = self._candidate(folder, pattern)
            if candidate is None:
                if not required:
                    continue
                # torch's own words are longer: they end with the whole sys.path.
                message = f"{pattern} not found in the system path [...]"
                error = LoadError(message, pattern, cause.missing if cause else [])
                attempt = Attempt(self._module, pattern, error, not quietly, "ValueError")
            else:
                attempt = self.dlopen(candidate, fatal=not quietly, exception="OSError")
            if attempt.error is None:
                yield attempt
                continue
            rest = self.table[position + 1 :]
            found = [path for folder, pattern, _required in rest if (path := self._candidate(folder, pattern))]
            # A torch whose CUDA is the host's own finds nothing of its table here, and that is in order.
            if candidate is None and quietly and not found and not self._anything_before(position):
                return
            yield replace(attempt, stops=quietly, unreached=tuple(found) if quietly else ())
            return

    def _anything_before(self, position: int) -> bool:
        return any(self._candidate(folder, pattern) for folder, pattern, _required in self.table[:position])

    def _candidate(self, folder: str, pattern: str) -> str | None:
        """torch's ``_get_cuda_dep_paths``: the first entry of the import path with a match decides."""
        for entry in self._importer.import_path:
            directories = [os.path.join(entry, "nvidia", folder, "lib")]
            if self._major:
                directories.append(os.path.join(entry, "nvidia", f"cu{self._major}", "lib"))
            directories.append(os.path.join(entry, folder, "lib"))
            for directory in directories:
                # Unsorted on purpose: torch takes glob's first match, which is the order of the directory.
                found = self._importer.matches(directory, pattern)
                if found:
                    return found[0]
        return None
