# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Predict what glibc's dynamic linker maps into a process, in which order and why. Private to the collection.

Nothing is executed. A ``Process`` is started and then told each dlopen that the program would make; it
follows _dl_map_object_deps, dl_open_worker and _dl_check_map_versions of glibc (elf/dl-deps.c, dl-open.c,
dl-version.c), and with ``symbols`` the lookups of its relocations. DT_AUXILIARY, DT_FILTER, LD_AUDIT and dlmopen
are not followed.
"""

from __future__ import annotations

import collections
import os
import re
from collections.abc import Iterable, Mapping

from ansible_collections.gpufleet.dflash.plugins.module_utils._elf import ElfError, read_object
from ansible_collections.gpufleet.dflash.plugins.module_utils._ld_candidate import (
    Candidate,
    SearchError,
    verify_mappable,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._ld_outcome import (
    LoadedObject,
    LoadError,
    Missing,
    MissingVersion,
    Resolution,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._ld_relocation import relocation_order
from ansible_collections.gpufleet.dflash.plugins.module_utils._ld_search import LinkMap, Search
from ansible_collections.gpufleet.dflash.plugins.module_utils._ld_system import System, UnsupportedLoader
from ansible_collections.gpufleet.dflash.plugins.module_utils._symbol_scope import (
    ScopeMember,
    SymbolTables,
    Undefined,
)

__all__ = [
    "LoadError",
    "LoadedObject",
    "Missing",
    "MissingVersion",
    "Process",
    "Resolution",
    "SymbolTables",
    "System",
    "Undefined",
    "UnsupportedLoader",
]


class Process:
    """One predicted process.

    ``environment`` is the program's; ``secure`` predicts a setuid program or one with file capabilities;
    ``hidden`` holds real paths to treat as absent, to ask what removing them would break. With ``symbols`` a
    symbol that nothing defines makes loading fail, as it does for RTLD_NOW. ``loaded`` is in
    load order: the program, its libraries and the dynamic linker, without the kernel's vdso. ``resolutions``
    has each request that succeeded, ``ignored_preloads`` the linker's complaints about LD_PRELOAD.
    """

    def __init__(
        self,
        system: System,
        *,
        environment: Mapping[str, str],
        cwd: str,
        secure: bool = False,
        hidden: Iterable[str] = (),
        symbols: SymbolTables | None = None,
    ) -> None:
        self.resolutions: list[Resolution] = []
        self.ignored_preloads: list[str] = []
        self._system = system
        self._environment = environment
        self._secure = secure
        # getcwd() gives the linker a path without links
        self._search = Search(system, cwd=os.path.realpath(cwd), secure=secure, hidden=frozenset(hidden))
        self._symbols = symbols
        self._started = False
        # What every object may take symbols from, before what it was opened with.
        self._global_scope: dict[LinkMap, None] = {}
        self._loaded: dict[LinkMap, LoadedObject] = {}  # in the order of the linker's list
        # Every name that a map was requested by or has itself; of two maps the earlier one keeps a name.
        self._by_name: dict[str, LinkMap] = {}
        self._by_identity: dict[tuple[int, int], LinkMap] = {}

    @property
    def loaded(self) -> list[LoadedObject]:
        return list(self._loaded.values())

    def chdir(self, directory: str) -> None:
        """Predict the program changing its directory, which relative search paths follow."""
        self._search.files.cwd = os.path.realpath(directory)

    def start(self, executable: str) -> LoadedObject:
        """Load ``executable`` and all that it needs. Raises LoadError; ElfError or OSError where it is no
        usable program.
        """
        # Its $ORIGIN comes from /proc/self/exe: a venv's python has that of the interpreter it links to.
        path = os.path.realpath(self._search.files.absolute(executable))
        self._program = program = self._add_started("", path, None)
        if (program.object.bits, program.object.machine) != (64, self._system.machine):
            raise ElfError(path, "is a program for another kind of machine than this system's")
        library_path = "" if self._secure else self._environment.get("LD_LIBRARY_PATH", "")
        self._search.set_library_path(program, library_path)
        interpreter = program.object.interpreter
        linker = self._add_started(interpreter, interpreter, path) if interpreter else None
        closure = self._load_closure([program, *self._preload()])
        self._check_versions(closure)
        if linker in closure:
            self._move_after(linker, closure[closure.index(linker) - 1])
        self._global_scope = dict.fromkeys(closure)
        now = bool(self._environment.get("LD_BIND_NOW"))
        self._check_symbols([each for each in reversed(self._loaded) if each is not linker], [], lazily=not now)
        self._started = True
        return self._loaded[program]

    def dlopen(self, name: str, caller: str | LoadedObject | None = None, *, rtld_global: bool = False) -> LoadedObject:
        """Load ``name`` as if the code of ``caller`` (a loaded path; default: the program) called dlopen, with
        RTLD_NOW. Raises LoadError.

        ``rtld_global`` (RTLD_GLOBAL) lets what is loaded later take symbols from it. A failed dlopen leaves nothing
        mapped that was not there before.
        """
        requester = self._find_loaded(caller)
        maps, resolutions = len(self._loaded), len(self.resolutions)
        try:
            opened = self._open(name, requester)
            closure = self._load_closure([opened])
            self._check_versions(closure)
            self._check_symbols(relocation_order(closure, list(self._loaded)[maps:], self._needs), closure)
        except LoadError:
            # Only maps are undone: a name that an older object was requested by meanwhile stays with it, as
            # in glibc.
            self._unload_after(maps)
            del self.resolutions[resolutions:]
            raise
        if rtld_global:
            self._global_scope.update(dict.fromkeys(closure))
        return self._loaded[opened]

    def locate(self, name: str, caller: str | LoadedObject) -> tuple[str, str] | None:
        """The file that dlopen would take, and by which rule, without loading it; None where there is none."""
        try:
            candidate = self._search.find(name, self._find_loaded(caller), self._program)
        except SearchError:
            return None
        return self._search.files.absolute(candidate.path), candidate.rule

    def is_loaded(self, name: str, caller: str | LoadedObject | None = None) -> LoadedObject | None:
        """Return what dlopen with RTLD_NOLOAD gives: the object that ``name`` means if it is mapped already,
        else None.

        Raises LoadError where no such file is found at all.
        """
        requester = self._find_loaded(caller)
        link_map = self._by_name.get(name)
        if link_map is None:
            try:
                candidate = self._search.find(name, requester, self._program)
            except SearchError as error:
                raise self._not_opened(name, requester, error) from None
            link_map = self._by_identity.get(candidate.identity)
        return self._loaded[link_map] if link_map else None

    def _add_started(self, name: str, path: str, needed_by: str | None) -> LinkMap:
        """Add what the kernel maps: the program, whose name is empty, and its linker."""
        elf_object = read_object(path)
        status = os.stat(path)
        identity = (status.st_dev, status.st_ino)
        link_map = LinkMap(name, elf_object, identity, os.path.dirname(path), is_program=needed_by is None)
        self._add(link_map, LoadedObject(path, name, elf_object.soname, "path", needed_by))
        return link_map

    def _add(self, link_map: LinkMap, loaded: LoadedObject) -> None:
        self._loaded[link_map] = loaded
        self._by_identity.setdefault(link_map.identity, link_map)
        self._by_name.setdefault(link_map.name, link_map)
        if loaded.soname is not None:
            self._by_name.setdefault(loaded.soname, link_map)

    def _unload_after(self, count: int) -> None:
        for link_map in list(self._loaded)[count:]:
            del self._loaded[link_map]
        self._by_name = {name: each for name, each in self._by_name.items() if each in self._loaded}
        self._by_identity = {key: each for key, each in self._by_identity.items() if each in self._loaded}

    def _move_after(self, link_map: LinkMap, predecessor: LinkMap) -> None:
        moved = self._loaded.pop(link_map)
        order = {}
        for other, loaded in self._loaded.items():
            order[other] = loaded
            if other is predecessor:
                order[link_map] = moved
        self._loaded = order

    def _preload(self) -> list[LinkMap]:
        """Load LD_PRELOAD and /etc/ld.so.preload. What cannot be loaded is ignored; what it needs is not."""
        names = [name for name in re.split("[ :]", self._environment.get("LD_PRELOAD", "")) if name]
        if self._secure:
            names = [name for name in names if "/" not in name]
        preloaded = []
        for source, wanted in (("LD_PRELOAD", names), ("/etc/ld.so.preload", self._system.preload)):
            for name in wanted:
                try:
                    preloaded.append(self._request(name, self._program, self._program, preload=True))
                except SearchError as error:
                    why = f"cannot be preloaded ({error.reason}): ignored."
                    self.ignored_preloads.append(f"ERROR: ld.so: object '{name}' from {source} {why}")
        return preloaded

    def _open(self, name: str, requester: LinkMap) -> LinkMap:
        try:
            return self._request(name, requester, None)
        except SearchError as error:
            raise self._not_opened(name, requester, error) from None

    def _not_opened(self, name: str, requester: LinkMap, error: SearchError) -> LoadError:
        return LoadError(str(error), name, [Missing(name, [self._loaded[requester].path], str(error))])

    def _load_closure(self, roots: list[LinkMap]) -> list[LinkMap]:
        """Load what ``roots`` need, breadth first, and return all of it in that order.

        The linker stops at the first library that it cannot load; this goes on, so that LoadError can name
        all of them.
        """
        closure: list[LinkMap] = []
        queue = collections.deque(dict.fromkeys(roots))
        members = set(queue)
        missing: dict[str, Missing] = {}
        while queue:
            link_map = queue.popleft()
            closure.append(link_map)
            for name in link_map.object.needed:
                try:
                    dependency = self._request(self._search.expand_needed(link_map, name), link_map, link_map)
                except SearchError as error:
                    needed_by = missing.setdefault(name, Missing(name, [], str(error))).needed_by
                    needed_by.append(self._loaded[link_map].path)
                    continue
                if dependency not in members:
                    members.add(dependency)
                    queue.append(dependency)
        if missing:
            first = next(iter(missing.values()))
            raise LoadError(first.message, first.soname, list(missing.values()))
        return closure

    def _request(self, name: str, requester: LinkMap, loader: LinkMap | None, *, preload: bool = False) -> LinkMap:
        """Do _dl_map_object: return the map that ``name`` means to ``requester``, a new one if need be.
        Raises SearchError.
        """
        link_map = self._by_name.get(name)
        rule = "loaded"
        if link_map is None:
            candidate = self._search.find(name, requester, self._program, preload=preload)
            link_map = self._by_identity.get(candidate.identity)
            if link_map is None:
                rule = "preload" if preload else candidate.rule
                link_map = self._map(name, candidate, requester, loader, rule)
        self._by_name.setdefault(name, link_map)
        loaded = self._loaded[link_map]
        self.resolutions.append(Resolution(name, loaded, rule, self._loaded[requester].path))
        return link_map

    def _map(self, name: str, candidate: Candidate, requester: LinkMap, loader: LinkMap | None, rule: str) -> LinkMap:
        verify_mappable(name, candidate.object, by_dlopen=self._started)
        path = self._search.files.absolute(candidate.path)
        origin = path.rpartition("/")[0] or "/"
        elf_object = candidate.object
        link_map = LinkMap(candidate.path, elf_object, candidate.identity, origin, loader)
        needed_by = self._loaded[requester].path
        self._add(link_map, LoadedObject(path, candidate.path, elf_object.soname, rule, needed_by))
        return link_map

    def _check_versions(self, closure: list[LinkMap]) -> None:
        """Raise LoadError for the symbol versions that needed files do not define."""
        faults = []
        for link_map in closure:
            for file, versions in link_map.object.version_needs.items():
                provider = self._by_name.get(file)
                # An object without any version information satisfies all versions.
                if provider is None or not provider.object.version_defs:
                    continue
                path, needed_by = self._loaded[provider].path, self._loaded[link_map].path
                faults += [
                    MissingVersion(version, file, path, needed_by, self._version_message(link_map, provider, version))
                    for version, weak in versions
                    if not weak and version not in provider.object.version_defs
                ]
        if faults:
            raise LoadError(faults[0].message, faults[0].soname, [], versions=faults)

    def _version_message(self, link_map: LinkMap, provider: LinkMap, version: str) -> str:
        user, file = (each.name or self._loaded[each].path for each in (link_map, provider))
        return f"{file}: version `{version}' not found (required by {user})"

    def _check_symbols(self, new: list[LinkMap], local_scope: list[LinkMap], *, lazily: bool = False) -> None:
        """Raise LoadError for symbols that nothing defines in the global scope and in the opened object's own."""
        if self._symbols is None or not new:
            return
        scope = dict.fromkeys((*self._global_scope, *local_scope))
        undefined = self._symbols.undefined(
            [self._member(each) for each in new], [self._member(each) for each in scope], lazily=lazily
        )
        if undefined:
            names = {self._loaded[each].path: each.name for each in new}
            first = undefined[0]
            files = {each.object.soname or os.path.basename(each.name): self._loaded[each].path for each in scope}
            message = f"{names[first.path] or first.path}: {first.words}"
            raise LoadError(message, os.path.basename(first.path), [], undefined=undefined, scope=files)

    def _member(self, link_map: LinkMap) -> ScopeMember:
        return ScopeMember(link_map.identity, self._loaded[link_map].path)

    def _needs(self, link_map: LinkMap) -> list[LinkMap]:
        return [self._by_name[self._search.expand_needed(link_map, name)] for name in link_map.object.needed]

    def _find_loaded(self, caller: str | LoadedObject | None) -> LinkMap:
        if caller is None:
            return self._program
        path = caller if isinstance(caller, str) else caller.path
        for link_map, loaded in self._loaded.items():
            if path in (loaded.path, link_map.name):
                return link_map
        real = os.path.realpath(path)
        for link_map, loaded in self._loaded.items():
            if os.path.realpath(loaded.path) == real:
                return link_map
        raise ValueError(f"{path}: is not loaded, so it cannot call dlopen")
