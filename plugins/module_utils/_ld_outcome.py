# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the prediction of a process says: what is loaded and why, and what cannot be. Private to the collection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ansible_collections.gpufleet.dflash.plugins.module_utils._symbol_scope import Undefined


@dataclass(frozen=True)
class LoadedObject:
    """One mapped file.

    ``path`` is absolute and spelled as the search found it; ``name`` is the linker's own spelling, which may
    be relative. ``rule`` says how it was found first: rpath, ld_library_path, runpath, cache, default, path
    (requested with a slash) or preload. ``needed_by`` is the path of the object that asked first, None for
    the program.
    """

    path: str
    name: str
    soname: str | None
    rule: str
    needed_by: str | None


@dataclass(frozen=True)
class Resolution:
    """One request for a library and what became of it; ``rule`` is ``loaded`` where the object was there
    already.
    """

    soname: str
    object: LoadedObject
    rule: str
    needed_by: str | None


@dataclass(frozen=True)
class Missing:
    """One library that could not be loaded: the paths of all objects that need it, and the linker's words
    about it.
    """

    soname: str
    needed_by: list[str]
    message: str


@dataclass(frozen=True)
class MissingVersion:
    """A symbol version that the object at ``needed_by`` wants of a loaded library, which does not define it."""

    version: str
    soname: str
    path: str
    needed_by: str
    message: str


class LoadError(Exception):
    """The program does not start or the dlopen fails.

    ``message`` is the linker's own text, which names the first fault only; all of the closure's are in ``missing``
    (libraries), or where all libraries are there in ``versions``, or else in ``undefined`` (symbols).
    ``scope`` has the loaded files, {soname: path}, that were to define those symbols.
    """

    def __init__(
        self,
        message: str,
        soname: str,
        missing: list[Missing],
        *,
        versions: Iterable[MissingVersion] = (),
        undefined: Iterable[Undefined] = (),
        scope: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.soname = soname
        self.missing = missing
        self.versions = tuple(versions)
        self.undefined = tuple(undefined)
        self.scope = scope or {}
