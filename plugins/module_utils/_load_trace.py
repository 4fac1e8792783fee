# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""By which rule the loader found each file, from what it prints with LD_DEBUG=files,libs.

Private to the collection. LD_DEBUG_OUTPUT is of no use under a sandbox, which may leave no directory that both
sides see: the lines come with standard error and are taken out of it. Source: elf/dl-load.c of glibc.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

LD_DEBUG = "files,libs"
# Longer lines are no names of files: they are passed on as the output that they are.
_LONGEST_LINE = 65536
# _dl_debug_vdprintf begins each line with the process, ten columns wide, be it in the middle of another's line.
_LINE = re.compile(rb"(.*?)(?=[ \d]{10}:\t) *\d+:\t(.*)\Z", re.DOTALL)
_ASKED = re.compile(r"file=(.+?) \[\d+\];  (?:needed by|dynamically loaded by) (.+?) \[\d+\]")
_SEARCHED = re.compile(r"find library=(.+?) \[\d+\]; searching")
_DIRECTORIES = re.compile(r" search path=.*\t\t\((.+)\)")
_TRIED = re.compile(r"  trying file=(.+)")
_FOUND = re.compile(r"file=(.+?) \[\d+\];  generating link map")
_ORIGINS = (
    ("RUNPATH", "runpath"),
    ("RPATH", "rpath"),
    ("LD_LIBRARY_PATH", "ld_library_path"),
    ("system search path", "default"),
)


@dataclass(frozen=True)
class Found:
    """The rule (rpath, ld_library_path, runpath, cache, default or path) and the object that asked."""

    rule: str
    needed_by: str | None


@dataclass
class Trace:
    """Reads the loader's lines out of a stream of bytes; ``found`` is by the path as the loader spells it."""

    found: dict[str, Found] = field(default_factory=dict)
    rest: bytes = b""
    _askers: dict[str, str] = field(default_factory=dict)
    _rule: str = ""
    _tried: str = ""
    _wanted: str = ""

    def take(self, data: bytes) -> bytes:
        """Take a piece of standard error; return what of it is not the loader's."""
        *lines, self.rest = (self.rest + data).split(b"\n")
        passed = b""
        if len(self.rest) > _LONGEST_LINE:
            passed, self.rest = self.rest, b""
        others = []
        for line in lines:
            match = _LINE.match(line)
            if match is None:
                others.append(line + b"\n")
            else:
                others.append(match.group(1))
                self._read(match.group(2).decode("utf-8", "surrogateescape"))
        return b"".join(others) + passed

    def by_real_path(self) -> dict[str, Found]:
        """Return the same by the real paths, as the kernel lists what is mapped."""
        return {os.path.realpath(path): found for path, found in self.found.items()}

    def _read(self, text: str) -> None:
        if match := _ASKED.match(text):
            self._askers[match.group(1)] = match.group(2)
        elif match := _SEARCHED.match(text):
            self._wanted, self._rule, self._tried = match.group(1), "", ""
        elif match := _DIRECTORIES.match(text):
            self._rule = next((rule for words, rule in _ORIGINS if match.group(1).startswith(words)), "default")
        elif text.startswith(" search cache="):
            self._rule = "cache"
        elif match := _TRIED.match(text):
            self._tried = match.group(1)
        elif match := _FOUND.match(text):
            name = match.group(1)
            searched = "/" not in name and name == self._wanted and self._tried
            path = self._tried if searched else name
            self.found.setdefault(path, Found(self._rule if searched else "path", self._askers.get(name)))
