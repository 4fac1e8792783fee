# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find Python modules from their files, executing none. Private to the collection."""

from __future__ import annotations

import ast
import glob
import itertools
import os
import sys
from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

from ansible_collections.gpufleet.dflash.plugins.module_utils._paths import is_hidden, read_start

# No source has as much; its syntax tree takes two hundred times the memory.
_SOURCE_LIMIT = 1024 * 1024
# Twenty times as many as torch has. A package may be a link, and lead anywhere.
_MOST_DIRECTORIES = 20_000
# A package without extension modules of its own is followed only for the packages that it imports first.
_SOURCES_WITHOUT_EXTENSIONS = 100
# Written in C: interpreters have them inside, or in files of lib-dynload. os.path is another module's second name.
_COMPILED_IN = frozenset(
    (
        *("array", "atexit", "binascii", "builtins", "cmath", "errno", "faulthandler", "fcntl", "gc", "grp"),
        *("itertools", "marshal", "math", "mmap", "posix", "pwd", "pyexpat", "readline", "resource", "select", "sys"),
        *("syslog", "termios", "time", "unicodedata", "zlib", "os.path", *sys.builtin_module_names),
    )
)
# An import that fails raises one of these.
_FORGIVEN = ("ImportError", "ModuleNotFoundError", "OSError", "Exception")


class Reached(NamedTuple):
    """What an import statement leads to: an extension module's file, or a module for another plan.

    ``required``: whether the import fails without it.
    """

    target: str
    required: bool
    is_module: bool = False


class Importer:
    """Finds modules as Python's path finder does, without executing any."""

    def __init__(
        self,
        import_path: Sequence[str],
        version: str,
        environment: Mapping[str, str],
        hidden: Container[str],
        standard_library: Sequence[str] = (),
    ) -> None:
        self.import_path = tuple(import_path)
        self._standard_library = tuple(standard_library)
        self.environment = environment
        self._hidden = hidden
        digits = "".join(version.split(".")[:2])
        self._suffixes = (f".cpython-{digits}-{os.uname().machine}-linux-gnu.so", ".abi3.so", ".so")

    def package(self, name: str) -> str | None:
        """Directory of a regular package."""
        stems = (os.path.join(entry, name) for entry in self.import_path)
        return next((stem for stem in stems if self.is_file(os.path.join(stem, "__init__.py"))), None)

    def extension_files(self, stem: str) -> list[str]:
        """The extension module at this path without suffix: one file, or none."""
        return [stem + suffix for suffix in self._suffixes if self.is_file(stem + suffix)][:1]

    def is_file(self, path: str) -> bool:
        """Whether there is such a file, hidden ones left out."""
        return os.path.isfile(path) and not is_hidden(path, self._hidden)

    def matches(self, directory: str, pattern: str) -> list[str]:
        """What ``glob.glob`` finds in a directory, in its order, which is that of the directory."""
        found = glob.glob(os.path.join(glob.escape(directory), pattern))
        return [path for path in found if not is_hidden(path, self._hidden)]

    def exists(self, name: str) -> bool:
        """Whether ``import name`` finds a package, a namespace package, a source file or an extension module."""
        return self.is_standard(name) or any(
            self._is_package(stem) or self.is_file(stem + ".py") or self.extension_files(stem)
            for stem in (os.path.join(entry, *name.split(".")) for entry in self.import_path)
        )

    def is_standard(self, name: str) -> bool:
        """Whether the standard library of the base interpreter has the module, or the interpreter itself."""
        if not self._standard_library:
            return False
        stems = (os.path.join(entry, *name.split(".")) for entry in self._standard_library)
        return name in _COMPILED_IN or any(
            self.is_file(os.path.join(stem, "__init__.py")) or self.is_file(stem + ".py") or self.extension_files(stem)
            for stem in stems
        )

    def _is_package(self, stem: str) -> bool:
        """Whether the directory is there: installers remove one together with its last file."""
        if not self._hidden:
            return os.path.isdir(stem)
        return any(
            self.is_file(os.path.join(directory, file))
            for directory, _folders, files in os.walk(stem)
            for file in files
            if not file.endswith(".pyc")
        )

    def all_extensions(self, name: str) -> list[str]:
        """Every file below the package that looks like an extension module."""
        found = []
        for entry in self.import_path:
            walk = os.walk(os.path.join(entry, *name.split(".")))
            for directory, folders, files in itertools.islice(walk, _MOST_DIRECTORIES):
                folders[:] = sorted(folder for folder in folders if folder not in ("tests", "test", "__pycache__"))
                extensions = (os.path.join(directory, file) for file in sorted(files) if self._is_extension(file))
                found += [path for path in extensions if self.is_file(path)]
        return found

    def _is_extension(self, file: str) -> bool:
        # lib*.so are libraries that extension modules need, not modules.
        return (
            file.endswith(self._suffixes)
            and not file.startswith("lib")
            and ".cpython-" not in file.replace(self._suffixes[0], "")
        )

    def follow(self, name: str, also: Container[str] = (), plans: Container[str] = ()) -> list[Reached]:
        """What importing ``name`` reaches by import statements, in order.

        Statements are followed within the package, within the packages of ``also``, and within the standard library
        when it is one of its modules. Modules of ``plans`` that another package's statement imports are reached as
        modules.
        """
        walk = _Walk(self, name, also, plans)
        walk.visit(name, True)
        return walk.reached

    def find(self, module: str, *, standard: bool) -> tuple[str | None, bool]:
        """The file of a module and whether it is a package's; (None, False) where there is none."""
        for entry in (*self._standard_library, *self.import_path) if standard else self.import_path:
            # Python's order of preference: package, extension module, source.
            stem = os.path.join(entry, *module.split("."))
            package = os.path.join(stem, "__init__.py")
            if self.is_file(package):
                return package, True
            for path in (*self.extension_files(stem), stem + ".py"):
                if self.is_file(path):
                    return path, False
        return None, False


class _Walk:
    """One walk along import statements, depth first, as Python executes them."""

    def __init__(self, importer: Importer, name: str, also: Container[str], plans: Container[str]) -> None:
        self.reached: list[Reached] = []
        self._importer = importer
        self._top = name.split(".")[0]
        self._also = also
        self._plans = plans
        self._standard = importer.is_standard(name)
        self._seen: set[str] = set()
        self._sources_left = sys.maxsize if importer.all_extensions(self._top) else _SOURCES_WITHOUT_EXTENSIONS

    def visit(self, module: str, required: bool) -> None:
        """Go where importing a module leads. ``required``: whether the walk's own import fails without it."""
        root = module.split(".")[0]
        planned = root != self._top and root in self._plans
        name = root if planned else module
        if name in self._seen or not (planned or self._follows(root)):
            return
        self._seen.add(name)
        if planned:
            self.reached.append(Reached(root, required, is_module=True))
            return
        parent = module.rpartition(".")[0]
        if parent:
            self.visit(parent, required)
        file, is_package = self._importer.find(module, standard=self._standard)
        if file is not None and not file.endswith(".py"):
            self.reached.append(Reached(file, required))
        elif file is not None and self._sources_left > 0:
            self._sources_left -= 1
            for target, always in _imported(file, module, is_package):
                self.visit(target, required and always)

    def _follows(self, root: str) -> bool:
        return root == self._top or root in self._also or (self._standard and self._importer.is_standard(root))


def _imported(source: str, module: str, is_package: bool) -> list[tuple[str, bool]]:
    """Modules that a source file imports when it is itself imported, and whether a failure ends that import.

    Functions' bodies do not run then; an import below ``try`` with ``except ImportError`` may fail.
    """
    try:
        tree = ast.parse(read_source(source))
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
    if isinstance(node, ast.With):
        managers = " ".join(ast.dump(item.context_expr) for item in node.items)
        return "'suppress'" in managers and any(f"'{name}'" in managers for name in _FORGIVEN)
    if not isinstance(node, ast.Try):
        return False
    caught = " ".join("Exception" if handler.type is None else ast.dump(handler.type) for handler in node.handlers)
    return any(name in caught for name in _FORGIVEN) and not any(
        isinstance(inner, ast.Raise) for handler in node.handlers for inner in ast.walk(handler)
    )


def _only_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def read_source(path: str) -> str:
    """A source file's text, up to a limit that no honest one reaches. Raises OSError."""
    return read_start(path, _SOURCE_LIMIT)
