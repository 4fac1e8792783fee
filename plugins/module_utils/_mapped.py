# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The CUDA libraries that a process has mapped: whose they are, and what of it is wrong.

Private to the collection.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.gpufleet.dflash.plugins.module_utils import _catalogue
from ansible_collections.gpufleet.dflash.plugins.module_utils._load_errors import (
    Place,
    Problem,
    holders_of,
    problem,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._load_trace import Found
from ansible_collections.gpufleet.dflash.plugins.module_utils._venv import Venv
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheels import Distribution, Installed

# Names of CUDA's libraries; the driver's are among them. Broad words would match libcurl and libncurses.
_CUDA_LIBRARY = re.compile(
    r"lib(cuda|cudart|cudnn|cublas|cufft|cufile|curand|cusolver|cusparse|cupti|nccl|nvrtc|nvjitlink|nvjpeg|nvtx"
    r"|nvtoolsext|nvshmem|nvblas|nvcuvid|nvidia-|cudadebugger)[\w.-]*\.so",
    re.IGNORECASE,
)
# Modules of Python, which no plan of imports foresees all of; what they need is the loader's business again.
_EXTENSION_MODULE = re.compile(r"[^.]+\.(?:cpython-\d+[\w-]*|abi3)\.so\Z")
_DRIVER_LIBRARY = re.compile(r"lib(cuda|nvidia-[\w-]+|nvcuvid|cudadebugger)\.so(\.|\Z)")


@dataclass(frozen=True)
class Library:
    """One mapped file in the kernel's spelling, and its first owner; ``found`` is what the loader's trace says."""

    path: str
    owners: tuple[Distribution, ...]
    found: Found | None = None

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    @property
    def is_the_drivers(self) -> bool:
        return _DRIVER_LIBRARY.match(self.name) is not None

    def as_dict(self) -> dict[str, str | None]:
        """The library as the module returns it."""
        return {
            "path": self.path,
            "distribution": self.owners[0].name if self.owners else None,
            "version": self.owners[0].version if self.owners else None,
            "rule": self.found.rule if self.found else None,
            "needed_by": self.found.needed_by if self.found else None,
        }


class Owners:
    """Who owns a file, by the path that it was asked for by or the real one."""

    def __init__(self, installed: Installed) -> None:
        self._installed = installed
        self._linked: dict[str, list[Distribution]] | None = None

    def of(self, path: str | None) -> list[Distribution]:
        """Return the distributions that own a file; installers may link a venv's files to their cache."""
        if not path:
            return []
        found = self._installed.owners(path) or self._installed.owners(os.path.realpath(path))
        return found or self._links().get(path, [])

    def _links(self) -> dict[str, list[Distribution]]:
        if self._linked is None:
            libraries = self._installed.libraries().items()
            self._linked = {os.path.realpath(path): owners for path, owners in libraries if os.path.islink(path)}
        return self._linked


def cuda_libraries(owners: Owners, paths: Sequence[str], trace: Mapping[str, Found]) -> list[Library]:
    """Return those of the mapped libraries that are CUDA's, or come from NVIDIA's distributions."""
    found = []
    for path in paths:
        if _EXTENSION_MODULE.match(os.path.basename(path)):
            continue
        owned = owners.of(path)
        nvidia = owned and (owned[0].name.startswith("nvidia-") or _catalogue.wheel_of(owned[0].name) is not None)
        if nvidia or _CUDA_LIBRARY.match(os.path.basename(path)):
            found.append(Library(path, tuple(owned), trace.get(path)))
    return found


def inside_of(venv: Venv) -> tuple[str, ...]:
    """Return the real directories, with a slash at the end, that count as the venv's own."""
    return tuple(os.path.realpath(path) + "/" for path in (venv.path, *venv.import_path))


def is_outside(library: Library, inside: tuple[str, ...]) -> bool:
    """Tell whether a library is this host's: the driver's has to be, and a wheel's may be a link elsewhere."""
    return not (library.owners or library.path.startswith(inside) or library.is_the_drivers)


def outside(libraries: Sequence[Library], venv: Venv, place: Place) -> Iterator[Problem]:
    """Libraries that the process took from this host."""
    inside = inside_of(venv)
    for library in libraries:
        if is_outside(library, inside):
            yield problem(
                "resolved-outside-venv",
                f"{library.name} comes from this host ({library.path}), not from a wheel: another host may not have it",
                inward(library.name, place),
                soname=library.name,
                distributions=_catalogue.distributions_of(library.name),
                paths=[library.path],
                evidence=f"found by {library.found.rule}" if library.found else "",
            )


def duplicates(libraries: Sequence[Library]) -> Iterator[Problem]:
    """Two files of one name in one process."""
    names: dict[str, list[str]] = {}
    for library in libraries:
        names.setdefault(library.name, []).append(library.path)
    for name, paths in names.items():
        if len(paths) > 1:
            yield problem(
                "duplicate-soname",
                f"two files named {name} are in one process: {' and '.join(paths)}",
                "remove one: two copies of one CUDA library do not share their state",
                soname=name,
                paths=paths,
            )


def foreign_modules(
    imports: Sequence[dict[str, object]], venv: Venv, place: Place, working_directory: str
) -> Iterator[Problem]:
    """Imported modules that are neither the venv's nor its interpreter's."""
    base = os.path.dirname(os.path.dirname(venv.python)) + "/lib"
    for entry in imports:
        path = entry["path"]
        if isinstance(path, str) and not os.path.realpath(path).startswith((*inside_of(venv), base)):
            yield problem(
                "resolved-outside-venv",
                f"module {entry['name']} comes from {path}, not from {venv.path}",
                f"look at PYTHONPATH in {place.whose} and into {working_directory}",
                paths=[path],
            )


def inward(soname: str, place: Place) -> str:
    """Return how to make the loader take a library from the venv."""
    directories = [os.path.dirname(path) for path in holders_of(place.installed, soname) if os.path.exists(path)]
    if directories and directories[0] not in place.library_path:
        return f"add {directories[0]} to LD_LIBRARY_PATH in {place.whose}"
    if directories:
        return f"put {directories[0]} before other directories in LD_LIBRARY_PATH in {place.whose}"
    names = " or ".join(_catalogue.distributions_of(soname)) or "the distribution that provides it"
    return f"add {names} to the lock and build the environment anew"
