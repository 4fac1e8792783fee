# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""glibc's search for one library. Private to the collection.

Follows elf/dl-load.c of glibc (open_path, fillin_rpath, _dl_dst_substitute, _dl_map_object) rule by rule;
each surprising rule is named where it is applied, and the tests run all of it against the real linker.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field

from ansible_collections.gpufleet.dflash.plugins.module_utils._elf import DF_1_NODEFLIB, ElfObject
from ansible_collections.gpufleet.dflash.plugins.module_utils._ld_candidate import (
    Candidate,
    CandidateFiles,
    Refused,
    SearchError,
    Skipped,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._ld_system import System

_TOKEN = re.compile(r"\$(?:\{(ORIGIN|PLATFORM|LIB)\}|(ORIGIN|PLATFORM|LIB)(?![A-Za-z0-9_]))")


class NotFound(SearchError):  # noqa: N818
    """No place has the library."""


@dataclass(eq=False)
class LinkMap:
    """One object in a process, as ld.so keeps it.

    ``name`` is the path it was found by ("" for the program). ``loader`` is the object whose DT_NEEDED loaded
    it first: it decides whose RPATH is inherited, and is None after dlopen.
    """

    name: str
    object: ElfObject
    identity: tuple[int, int]
    origin: str
    loader: LinkMap | None = None
    is_program: bool = False
    search_paths: dict[str, list[str]] = field(default_factory=dict, repr=False)


class Search:
    """Finds libraries for one process. ``hidden`` holds real paths that are to be treated as absent."""

    def __init__(self, system: System, *, cwd: str, secure: bool, hidden: Container[str]) -> None:
        self.files = CandidateFiles(system, cwd, hidden)
        self._system = system
        self._secure = secure
        self._library_path: list[str] = []
        self._subdirectories: dict[str, list[str]] = {}
        # As in C it outlives a search: one that tries no file at all reports what an earlier one left.
        self.errno = 0

    def set_library_path(self, program: LinkMap, value: str) -> None:
        """Take LD_LIBRARY_PATH. Its tokens are the program's, and it separates with semicolons too."""
        self._library_path = self._directories(program, value, ":;") if value else []

    def find(self, name: str, requester: LinkMap, program: LinkMap, *, preload: bool = False) -> Candidate:
        """Return what the linker takes for ``name`` when ``requester`` needs it. Raises NotFound, Refused."""
        attempt = _Attempt(self, setuid_only=preload and self._secure)
        if "/" in name:
            candidate = self._find_path(name, requester, attempt)
        else:
            candidate = self._find_name(name, requester, program, attempt)
        if candidate is None:
            raise attempt.failure(name)
        return candidate

    def _find_path(self, name: str, requester: LinkMap, attempt: _Attempt) -> Candidate | None:
        path = self.expand(requester, name)
        return attempt.open(path, "path") if path else None

    def _find_name(self, name: str, requester: LinkMap, program: LinkMap, attempt: _Attempt) -> Candidate | None:
        for rule, directories in self._search_paths(requester, program):
            candidate = attempt.search(directories, name, rule)
            if candidate:
                return candidate
        no_default = bool(requester.object.flags_1 & DF_1_NODEFLIB)
        cached = None if attempt.setuid_only else self._system.cache.lookup(name)
        if cached and not (no_default and cached.startswith(self._system.default_dirs)):
            candidate = attempt.open(cached, "cache")
            if candidate:
                return candidate
        return None if no_default else attempt.search(self._system.default_dirs, name, "default")

    def _search_paths(self, requester: LinkMap, program: LinkMap) -> Iterator[tuple[str, list[str]]]:
        # An object with a RUNPATH, even an empty one, is cut off from every RPATH.
        if requester.object.runpath is None:
            chain = list(_loader_chain(requester))
            if program not in chain:
                chain.append(program)
            for link_map in chain:
                yield "rpath", self._search_path(link_map, "rpath")
        yield "ld_library_path", self._library_path
        yield "runpath", self._search_path(requester, "runpath")

    def _search_path(self, link_map: LinkMap, tag: str) -> list[str]:
        directories = link_map.search_paths.get(tag)
        if directories is None:
            value = link_map.object.runpath
            if tag == "rpath":
                value = link_map.object.rpath if value is None else None
            directories = self._directories(link_map, value, ":") if value else []
            link_map.search_paths[tag] = directories
        return directories

    def _directories(self, link_map: LinkMap, value: str, separators: str) -> list[str]:
        """Split a search path. An empty element is the current directory; one whose tokens have no value is
        dropped.
        """
        directories: dict[str, None] = {}
        for element in re.split(f"[{separators}]", value):
            directory = element
            if element:
                directory = self.expand(link_map, element)
                if not directory:
                    continue
                directory = directory.rstrip("/") + "/"
            directories[directory] = None
        return list(directories)

    def expand(self, link_map: LinkMap, text: str) -> str:
        """Replace $ORIGIN, $LIB and $PLATFORM; returns "" where the linker would drop the text."""
        if "$" not in text:
            return text
        values = {"ORIGIN": link_map.origin, "LIB": self._system.lib, "PLATFORM": self._system.platform}
        uses_origin = False
        for match in _TOKEN.finditer(text):
            if "ORIGIN" in match[0]:
                uses_origin = True
                if self._secure and (match.start() or text[match.end() : match.end() + 1] not in ("", "/")):
                    return ""
        expanded = _TOKEN.sub(lambda match: values[match[1] or match[2]], text)
        if uses_origin and self._secure and link_map.is_program and not self._is_trusted(expanded):
            return ""
        return expanded

    def expand_needed(self, link_map: LinkMap, name: str) -> str:
        """Return a DT_NEEDED name with its tokens replaced; raises Refused where the linker refuses them."""
        if not _TOKEN.search(name):
            return name
        if self._secure:
            raise Refused(name, "DST not allowed in SUID/SGID programs")
        expanded = self.expand(link_map, name)
        if not expanded:
            raise Refused(name, "empty dynamic string token substitution")
        return expanded

    def _is_trusted(self, path: str) -> bool:
        return (os.path.normpath(path) + "/").startswith(self._system.default_dirs)

    def existing_subdirectories(self, directory: str) -> list[str]:
        """Return the prefixes below ``directory``, with its name, that are directories.

        The linker asks once and remembers. It never asks for a relative directory: that one counts as
        existing.
        """
        if not directory.startswith("/"):
            return [directory + prefix for prefix in self._system.subdirectories]
        known = self._subdirectories.get(directory)
        if known is None:
            prefixes = [directory + prefix for prefix in self._system.subdirectories]
            known = self._subdirectories[directory] = [prefix for prefix in prefixes if self._is_directory(prefix)]
        return known

    def _is_directory(self, path: str) -> bool:
        try:
            return stat.S_ISDIR(os.stat(path).st_mode)
        except OSError as error:
            self.errno = error.errno or errno.ENOENT
            return False


class _Attempt:
    """One search, which remembers whether a file of the other class was seen."""

    def __init__(self, search: Search, *, setuid_only: bool) -> None:
        self.setuid_only = setuid_only
        self._search = search
        self._other_class = False

    def open(self, path: str, rule: str) -> Candidate | None:
        try:
            candidate = self._search.files.open(path, rule)
        except Skipped as reason:
            self._search.errno = reason.errno
            self._other_class = self._other_class or reason.other_class
            return None
        self._search.errno = 0
        if self.setuid_only and rule != "path" and not candidate.setuid:
            self._search.errno = errno.ENOENT
            return None
        return candidate

    def search(self, directories: Sequence[str], name: str, rule: str) -> Candidate | None:
        for directory in directories:
            prefixes = self._search.existing_subdirectories(directory)
            for prefix in prefixes:
                candidate = self.open(prefix + name, rule)
                if candidate:
                    return candidate
            # Only an absent or unreadable file lets the list go on; a symlink loop, say, ends this list.
            if prefixes and self._search.errno not in (errno.ENOENT, errno.EACCES):
                return None
        return None

    def failure(self, name: str) -> NotFound:
        if self._other_class:
            return NotFound(name, "wrong ELF class: ELFCLASS32")
        return NotFound(name, "cannot open shared object file", self._search.errno)


def _loader_chain(link_map: LinkMap | None) -> Iterator[LinkMap]:
    while link_map is not None:
        yield link_map
        link_map = link_map.loader
