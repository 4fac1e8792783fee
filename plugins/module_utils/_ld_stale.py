# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What ldconfig would change for a plan: names that /etc/ld.so.cache does not lead to. Private to the collection.

The loader never looks into the directories of /etc/ld.so.conf itself. It reads the cache that ldconfig made of them,
passes over an entry whose file is gone, and then tries its default directories (_dl_map_object of glibc). Which name
ldconfig gives a file is in search_dir of its elf/ldconfig.c.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ansible_collections.gpufleet.dflash.plugins.module_utils._attempt import Attempt
from ansible_collections.gpufleet.dflash.plugins.module_utils._elf import ElfError, read_object
from ansible_collections.gpufleet.dflash.plugins.module_utils._ld_system import System
from ansible_collections.gpufleet.dflash.plugins.module_utils._loader import Process, Resolution
from ansible_collections.gpufleet.dflash.plugins.module_utils._paths import read_start

_LIMIT = 1024 * 1024
# Files that include one another.
_DEPTH = 8
_LIBRARY = re.compile(r"lib.*\.so")


@dataclass(frozen=True)
class Stale:
    """A name of the plan that gets another file once ldconfig has run.

    ``file`` is the one that it gets then, ``loaded`` the one that it gets now and ``listed`` the one that the cache
    has for it; None for none.
    """

    soname: str
    file: str
    loaded: str | None
    listed: str | None
    needed_by: str | None


def stale_names(system: System, attempts: Iterable[Attempt], process: Process) -> list[Stale]:
    """What the plan does not find, or finds in a default directory, because the cache is not up to date.

    Nothing is said of what the cache leads to: an entry that works is no worse for its age.
    """
    if system.ld_so_conf is None:
        return []
    found: dict[str, Stale] = {}
    for soname, needed_by, resolution in _not_cached(attempts, process.resolutions):
        listed = system.cache.lookup(soname)
        if soname in found or "/" in soname or listed is not None and os.path.exists(listed):
            continue
        loaded = resolution.object.path if resolution else None
        file = _listed_next(soname, loaded, system)
        if file is not None:
            found[soname] = Stale(soname, file, loaded, listed, needed_by)
    return list(found.values())


def _not_cached(
    attempts: Iterable[Attempt], resolutions: Iterable[Resolution]
) -> Iterator[tuple[str, str | None, Resolution | None]]:
    for attempt in attempts:
        for missing in attempt.error.missing if attempt.error else ():
            if "cannot open shared object file" in missing.message:
                yield missing.soname, next(iter(missing.needed_by), None), None
    for resolution in resolutions:
        if resolution.rule == "default":
            yield resolution.soname, resolution.needed_by, resolution


def _listed_next(soname: str, loaded: str | None, system: System) -> str | None:
    """The file that ldconfig would list first for a name, None where that is the one that is loaded."""
    default = [directory.rstrip("/") for directory in system.default_dirs]
    # ldconfig takes the default directories after those of its configuration.
    for directory in dict.fromkeys([*configured_directories(system.ld_so_conf or ""), *default]):
        if loaded is not None and os.path.realpath(directory) == os.path.realpath(os.path.dirname(loaded)):
            return None
        # The loader looked there by itself, and had a reason to refuse it.
        if directory in default and os.path.lexists(os.path.join(directory, soname)):
            continue
        file = named_by_ldconfig(directory, soname, system.machine)
        if file is not None and (loaded is None or not os.path.samefile(file, loaded)):
            return file
    return None


def configured_directories(configuration: str, depth: int = 0) -> list[str]:
    """The directories that /etc/ld.so.conf names, in its order, with what it includes."""
    try:
        lines = read_start(configuration, _LIMIT).splitlines()
    except OSError:
        return []
    found: list[str] = []
    for line in lines:
        line = line.partition("#")[0].strip()
        words = line.split()
        if words[:1] == ["include"]:
            for pattern in words[1:] if depth < _DEPTH else ():
                pattern = os.path.join(os.path.dirname(configuration), pattern)
                for file in sorted(glob.glob(pattern)):
                    found += configured_directories(file, depth + 1)
        elif words[:1] != ["hwcap"]:
            # What follows an equal sign was the kind of libraries, and has no meaning any more.
            found.append(line.partition("=")[0].rstrip().rstrip("/"))
    return [directory for directory in dict.fromkeys(found) if directory.startswith("/")]


def named_by_ldconfig(directory: str, soname: str, machine: int) -> str | None:
    """The file of a directory that ldconfig would list by this name, which a link to it need not have yet."""
    stem = soname.partition(".so")[0]
    try:
        names = [name for name in os.listdir(directory) if name.startswith(stem) and _LIBRARY.match(name)]
    except OSError:
        return None
    fitting = [name for name in names if _name_of(os.path.join(directory, name), machine) == soname]
    newest = max(fitting, key=lambda name: (name == soname, _numbers(name)), default=None)
    return os.path.join(directory, newest) if newest else None


def _name_of(path: str, machine: int) -> str | None:
    """The name that ldconfig gives a file: its soname, else its own name; a link for the compiler keeps its name."""
    try:
        found = read_object(path)
    except (ElfError, OSError):
        return None
    if (found.bits, found.machine) != (64, machine):
        return None
    name = os.path.basename(path)
    if not found.soname or name.endswith(".so") and os.path.islink(path) and found.soname.startswith(name):
        return name
    return found.soname


def _numbers(name: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", name)]
