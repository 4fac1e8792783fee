# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Directories of a search path that somebody else could put a library into. Private to the collection."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from ansible_collections.gpufleet.dflash.plugins.module_utils._elf import ElfError, read_object
from ansible_collections.gpufleet.dflash.plugins.module_utils._loader import LoadedObject

_ORIGIN = re.compile(r"\$(?:ORIGIN(?![A-Za-z0-9_])|\{ORIGIN\})")


class WeakElement(NamedTuple):
    """One element of a search path. ``object`` is the file whose RPATH or RUNPATH it is in, None for
    LD_LIBRARY_PATH; ``reason`` completes "the search path ...".
    """

    variable: str
    value: str
    element: str
    directory: str
    reason: str
    object: str | None = None


def weak_library_path(environment: Mapping[str, str], cwd: str) -> list[WeakElement]:
    """The elements of LD_LIBRARY_PATH that depend on the current directory, or that everybody may write to."""
    value = environment.get("LD_LIBRARY_PATH", "")
    found = []
    for element in re.split("[:;]", value) if value else ():
        directory = os.path.join(cwd, element)
        writable = None if element.startswith("$") else _writable(directory)
        if not element:
            reason = "has an empty element, which means the current directory"
        elif not element.startswith(("/", "$")):
            reason = f"has a relative element, {element}, which depends on the current directory"
        elif writable:
            reason = f"names {element}, and everybody may write to {writable}"
        else:
            continue
        found.append(WeakElement("LD_LIBRARY_PATH", value, element, directory, reason))
    return found


def weak_run_paths(loaded: Iterable[LoadedObject], cwd: str) -> Iterator[WeakElement]:
    """The elements of the loaded objects' RPATH and RUNPATH that everybody may write to.

    NVIDIA ships objects whose RUNPATH ends with an empty element: that is the service's own directory, and no
    danger while only the service may write there.
    """
    seen: set[str] = set()
    for each in loaded:
        if each.path in seen:
            continue
        seen.add(each.path)
        try:
            found = read_object(each.path)
        except (ElfError, OSError):
            continue
        variable = "RPATH" if found.runpath is None else "RUNPATH"
        value = (found.rpath if found.runpath is None else found.runpath) or ""
        for element in value.split(":") if value else ():
            expanded = os.path.dirname(each.path).join(_ORIGIN.split(element))
            if "$" in expanded:
                continue
            directory = os.path.normpath(os.path.join(cwd, expanded))
            writable = _writable(directory)
            if writable:
                what = f"names {element or 'the current directory'}, and everybody may write to {writable}"
                yield WeakElement(variable, value, element, directory, what, each.path)


def _writable(directory: str) -> str | None:
    """The directory, or the one that it would be made in where it does not exist, if everybody may write there."""
    while True:
        try:
            mode = os.stat(directory).st_mode
        except (FileNotFoundError, NotADirectoryError):
            parent = os.path.dirname(directory.rstrip("/"))
            if parent in ("", directory):
                return None
            directory = parent
            continue
        except OSError:
            return None
        return directory if stat.S_ISDIR(mode) and mode & stat.S_IWOTH else None


def python_path(environment: Mapping[str, str], directory: str) -> list[str]:
    """The directories of PYTHONPATH, which Python searches first."""
    entries = environment.get("PYTHONPATH", "").split(":") if environment.get("PYTHONPATH") else []
    paths = [os.path.normpath(os.path.join(directory, entry)) for entry in entries]
    return [path for path in paths if os.path.isdir(path)]
