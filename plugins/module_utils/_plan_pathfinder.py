# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What cuda-pathfinder's ``load_nvidia_dynamic_lib`` loads. Private to the collection."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from typing import NamedTuple

from ansible_collections.gpufleet.dflash.plugins.module_utils._attempt import Attempt, dlopen
from ansible_collections.gpufleet.dflash.plugins.module_utils._importer import Importer, read_source
from ansible_collections.gpufleet.dflash.plugins.module_utils._loader import Process

_TABLE = "cuda/pathfinder/_dynamic_libs/descriptor_catalog.py"


class Library(NamedTuple):
    """One row of cuda-pathfinder's table: where it looks for a library, and what it loads before it."""

    sonames: tuple[str, ...]
    directories: tuple[str, ...]
    dependencies: tuple[str, ...]


class Pathfinder:
    """cuda-pathfinder as it is installed, for one process and one module that asks it."""

    def __init__(self, process: Process, importer: Importer, module: str) -> None:
        self._process = process
        self._importer = importer
        self._module = module
        self._asked: dict[str, bool] = {}
        self.table = _read_table(importer)

    def load(self, name: str) -> Iterator[Attempt]:
        """Load a library by cuda-pathfinder's name for it, as ``cublas``: its wheel's file, else what the loader
        finds, after its dependencies. What is not found is no attempt: its callers do without, or fail by themselves.
        """
        library = self.table.get(name)
        if library is None or name in self._asked:
            return
        self._asked[name] = False
        file = self._in_wheels(library)
        for dependency in library.dependencies:
            yield from self.load(dependency)
            if not self._asked.get(dependency):
                return
        for target in [file] if file else library.sonames:
            attempt = dlopen(self._process, self._module, target, fatal=False, exception="OSError")
            if attempt.error is None or file:
                self._asked[name] = attempt.error is None
                yield attempt
                return

    def name_of(self, soname: str) -> str | None:
        """cuda-pathfinder's name for a soname, if it has one."""
        return next((name for name, library in self.table.items() if soname in library.sonames), None)

    def _in_wheels(self, library: Library) -> str | None:
        for directory in library.directories:
            for entry in self._importer.import_path:
                for soname in library.sonames:
                    path = os.path.join(entry, directory, soname)
                    if self._importer.is_file(path):
                        return path
        return None


def _read_table(importer: Importer) -> dict[str, Library]:
    """The descriptors in the source of the installed cuda-pathfinder; empty where they are written otherwise."""
    for entry in importer.import_path:
        path = os.path.join(entry, _TABLE)
        if not importer.is_file(path):
            continue
        try:
            tree = ast.parse(read_source(path))
        except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
            return {}
        rows = (node.keywords for node in ast.walk(tree) if isinstance(node, ast.Call) and node.keywords)
        return {name: library for keywords in rows for name, library in _row(keywords)}
    return {}


def _row(keywords: list[ast.keyword]) -> Iterator[tuple[str, Library]]:
    values = {word.arg: word.value for word in keywords}
    name = values.get("name")
    if isinstance(name, ast.Constant) and isinstance(name.value, str) and "linux_sonames" in values:
        columns = (_strings(values.get(key)) for key in ("linux_sonames", "site_packages_linux", "dependencies"))
        yield name.value, Library(*columns)


def _strings(node: ast.expr | None) -> tuple[str, ...]:
    elements = node.elts if isinstance(node, (ast.Tuple, ast.List)) else []
    return tuple(e.value for e in elements if isinstance(e, ast.Constant) and isinstance(e.value, str))
