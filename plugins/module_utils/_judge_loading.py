# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge what the loader finds and does not find. Private to the collection."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ansible_collections.gpufleet.dflash.plugins.module_utils import _catalogue
from ansible_collections.gpufleet.dflash.plugins.module_utils._catalogue import cuda_major_of
from ansible_collections.gpufleet.dflash.plugins.module_utils._findings import Facts, Problem
from ansible_collections.gpufleet.dflash.plugins.module_utils._provider import providers, requirement
from ansible_collections.gpufleet.dflash.plugins.module_utils._repair import Repair
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheels import Distribution

_UNKNOWN_PRELOAD = "find out which distribution provides it for this torch, and install that"


@dataclass
class _Want:
    """One soname that cannot be loaded: who needs it, and the loader's words."""

    soname: str
    words: str
    objects: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    required: bool = False

    @property
    def severity(self) -> str:
        """A library that only optional imports need is a warning."""
        return "" if self.required else "warning"

    @property
    def needers(self) -> str:
        """Who needs it, as the rest of a sentence."""
        names = [os.path.basename(path) for path in self.objects]
        if not names:
            asking = (
                "the list of libraries to load names it" if name == "load" else f"importing {name} loads it"
                for name in self.modules
            )
            return f", and {' and '.join(asking)}"
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return f", and {names[0]}{more} need{'' if more else 's'} it"


def missing_libraries(facts: Facts, repair: Repair) -> Iterator[Problem]:
    """Each library of the plan that the loader does not find, with every object that needs it."""
    for want in _wants(facts):
        if want.soname in _catalogue.DRIVER_LIBRARIES:
            yield _driver_missing(want)
        else:
            yield _missing_library(facts, repair, want)


def _wants(facts: Facts) -> list[_Want]:
    wants: dict[str, _Want] = {}
    for attempt in facts.attempts:
        # A preload that found no file is judged as what it is, the end of a list.
        if attempt.error is None or (attempt.stops and not attempt.error.missing):
            continue
        # All libraries are there; what they lack has judges of its own.
        if attempt.error.versions or attempt.error.undefined:
            continue
        missing = [(m.soname, m.needed_by, m.message) for m in attempt.error.missing]
        for soname, needed_by, message in missing or [(attempt.target, [], attempt.error.message)]:
            want = wants.setdefault(soname, _Want(soname, message))
            # What the plan itself opens is opened by the interpreter, which does not "need" it.
            want.objects += [p for p in needed_by if p not in want.objects and p != facts.venv.python]
            want.modules += [attempt.module] if attempt.module not in want.modules else []
            want.required = want.required or attempt.fatal
    return list(wants.values())


def _driver_missing(want: _Want) -> Problem:
    return Problem(
        "driver-missing",
        f"{want.soname} comes with the NVIDIA driver, and this host's loader does not find it; no wheel is at fault",
        "install the NVIDIA driver (in a container: start it with the NVIDIA runtime), or put the directory "
        f"that holds {want.soname} into LD_LIBRARY_PATH; never a stub from a CUDA toolkit",
        object=next(iter(want.objects), None),
        soname=want.soname,
        paths=tuple(want.objects),
        evidence=want.words,
        severity=want.severity,
    )


def _missing_library(facts: Facts, repair: Repair, want: _Want) -> Problem:
    here = _copies(facts, want.soname, want.objects)
    names = list(dict.fromkeys(owner.name for path in here for owner in facts.owners(path)))
    if here:
        message = f"{want.soname} is installed ({', '.join(names)}) where the loader does not look{want.needers}"
        fix = _make_findable(here[0], names)
    else:
        names = _providers(facts, want.soname, want.objects)
        gutted = [d for d in facts.installed.distributions if d.name in names]
        if gutted and any(os.path.exists(path) for path in _files_named(facts, want.soname, want.objects)):
            message = f"{want.soname} of {gutted[0].pin} cannot be loaded{want.needers}: {want.words}"
            fix = repair.reinstall(gutted, altered=True)
        elif gutted and not _recorded(facts, want.soname, want.objects):
            message, fix = _another_version(facts, repair, want, gutted[0])
        elif gutted:
            message = f"{want.soname} is gone, although {gutted[0].pin} counts as installed{want.needers}"
            fix = repair.reinstall(gutted)
        elif names:
            wanted = [requirement(facts, name, want.soname) for name in names]
            message = f"{want.soname} is missing{want.needers}; {' or '.join(wanted)} provides it"
            fix = repair.add(wanted)
        else:
            message, fix = _unknown(want)
    return Problem(
        "missing-library",
        message,
        fix,
        object=next(iter(want.objects), None),
        soname=want.soname,
        distributions=tuple(names),
        paths=tuple(want.objects),
        evidence=want.words,
        severity=want.severity,
    )


def _another_version(facts: Facts, repair: Repair, want: _Want, installed: Distribution) -> tuple[str, str]:
    """Message and fix for a library that other versions of an installed distribution have."""
    if _catalogue.may_have(installed.name, installed.version, want.soname):
        return (
            f"{want.soname} is missing{want.needers}; {installed.pin} provides it, and its RECORD does not list it",
            repair.reinstall([installed]),
        )
    wanted = [
        f"{name}=={version}"
        for name in sorted(_catalogue.distributions_of(want.soname), key=lambda name: name != installed.name)
        if (version := _catalogue.version_of(name, want.soname, None))
    ]
    if not wanted:
        return _unknown(want)
    return (
        f"{want.soname} is missing{want.needers}; the installed {installed.pin} does not have it, "
        f"{' or '.join(wanted)} does",
        repair.add(wanted[:1]),
    )


def _unknown(want: _Want) -> tuple[str, str]:
    """Message and fix for what is in no distribution that we know."""
    if "/" in want.soname:
        return (
            f"{want.soname} cannot be loaded: {want.words}",
            "correct the path, or reinstall the distribution that owns the file",
        )
    package = _catalogue.SYSTEM_PACKAGES.get(want.soname)
    if package:
        return (
            f"{want.soname}, a library of the operating system, is missing{want.needers}",
            f"install the package that provides it (Debian and Ubuntu: apt-get install {package})",
        )
    return (
        f"{want.soname} is missing{want.needers}; no distribution that we know provides it",
        "find out which package provides it, and install that or leave out the module that needs it",
    )


def _files_named(facts: Facts, soname: str, needers: Sequence[str]) -> list[str]:
    named = [path for path in facts.installed.libraries() if os.path.basename(path) == soname]
    return _for_all(facts, soname, named, needers)


def _copies(facts: Facts, soname: str, needers: Sequence[str]) -> list[str]:
    """Files of the venv that would be this library, other than those that ask for it."""
    found = [
        path
        for path, read in facts.objects.items()
        if soname in (read.soname, os.path.basename(path)) and path not in needers and path != soname
    ]
    return _for_all(facts, soname, found, needers)


def _for_all(facts: Facts, soname: str, paths: Sequence[str], needers: Sequence[str]) -> list[str]:
    """Leave out what others bundle for themselves, such as triton's libcupti, where a wheel of NVIDIA provides it."""
    if not _catalogue.distributions_of(soname):
        return list(paths)
    own = {owner.name for path in needers for owner in facts.owners(path)}
    return [
        path for path in paths if any(cuda_major_of(owner.name) or owner.name in own for owner in facts.owners(path))
    ]


def _make_findable(path: str, owners: Sequence[str]) -> str:
    if any(cuda_major_of(name) for name in owners):
        directory = os.path.dirname(path)
        return f"put {directory} first in LD_LIBRARY_PATH (library_path of cuda_wheel_facts lists all that it needs)"
    # torch/lib and its like are meant to be loaded by their own package, with its preloads.
    return f"import the package of {' or '.join(owners)} first, which loads {path}"


def _providers(facts: Facts, soname: str, objects: Sequence[str]) -> list[str]:
    """Distributions that provide a soname: those that record such a file, else those that are known to."""
    return _recorded(facts, soname, objects) or providers(facts, soname, objects)


def _recorded(facts: Facts, soname: str, objects: Sequence[str]) -> list[str]:
    """Distributions that record a file of this name, whether it is there or not."""
    files = _files_named(facts, soname, objects)
    return sorted({owner.name for path in files for owner in facts.installed.owners(path)})


def preload_stops(facts: Facts, repair: Repair) -> Iterator[Problem]:
    """torch gives up preloading at the first library that it misses, and says nothing (pytorch/pytorch#144433)."""
    for attempt in facts.attempts:
        if not attempt.stops or attempt.error is None:
            continue
        library = os.path.basename(attempt.target).split(".so")[0]
        names = _catalogue.distributions_of_library(library, facts.cuda_major)
        recording = {
            owner.name
            for path, owners in facts.installed.libraries().items()
            for owner in owners
            if os.path.basename(path).split(".so")[0] == library
        }
        installed = [d for d in facts.installed.distributions if d.name in names and d.name in recording]
        count = len(attempt.unreached)
        yield Problem(
            "preload-stops",
            f"importing {attempt.module} stops preloading at {library} without a word: {count} "
            f"librar{'y' if count == 1 else 'ies'} after it {'is' if count == 1 else 'are'} not preloaded, and a later "
            "error may name one of those",
            repair.reinstall(installed)
            if installed
            else repair.add([requirement(facts, name, None) for name in names])
            if names
            else _UNKNOWN_PRELOAD,
            object=attempt.target if "/" in attempt.target else None,
            distributions=tuple(names),
            paths=attempt.unreached,
            evidence=attempt.words,
        )


def outside_venv(facts: Facts, repair: Repair) -> Iterator[Problem]:
    """Libraries that a wheel provides elsewhere, or even here, taken from the host (NVIDIA/cuvs#2299)."""
    inside = [os.path.realpath(directory) + "/" for directory in (facts.venv.path, *facts.venv.import_path)]
    for loaded in facts.loaded:
        soname = loaded.soname or os.path.basename(loaded.path)
        real = os.path.realpath(loaded.path)
        if real.startswith(tuple(inside)) or facts.owners(loaded.path):
            continue
        names = [name for name in _providers(facts, soname, []) if cuda_major_of(name)]
        copies = _copies(facts, soname, [])
        if not names:
            continue
        wanted = [requirement(facts, name, soname) for name in names]
        if copies and loaded.rule == "ld_library_path":
            kind = "shadowed-library"
            message = f"{soname} of {' or '.join(names)} is not used: LD_LIBRARY_PATH finds {loaded.path} first"
        else:
            kind = "resolved-outside-venv"
            message = f"{soname} comes from this host ({loaded.path}), not from a wheel; another host may not have it"
        skipped = _skipped(facts, soname)
        fix = _make_findable(copies[0], names) if copies else repair.add(wanted)
        if skipped and not copies:
            fix = repair.reinstall(skipped, altered=True)
        yield Problem(
            kind,
            message,
            fix,
            object=facts.needer(loaded),
            soname=soname,
            distributions=tuple(names),
            paths=(loaded.path, *copies) if kind == "shadowed-library" else (loaded.path,),
            evidence=f"found by {loaded.rule}",
        )


def _skipped(facts: Facts, soname: str) -> list[Distribution]:
    """Distributions whose own file of this name is there and is no library: the loader looks further without a word."""
    damaged = [p for p in _files_named(facts, soname, []) if os.path.exists(p) and p not in facts.objects]
    return list(dict.fromkeys(owner for path in damaged for owner in facts.installed.owners(path)))
