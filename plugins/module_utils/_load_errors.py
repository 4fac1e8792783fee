# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the loader's own words mean: from the text of a failed load to a problem with its fix.

Private to the collection. The texts are those of glibc's elf/dl-load.c, elf/dl-lookup.c and elf/dl-version.c,
of Python's import system, and of torch's preloading.
"""

from __future__ import annotations

import functools
import os
import pwd
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Callable

from ansible_collections.gpufleet.dflash.plugins.module_utils import _catalogue
from ansible_collections.gpufleet.dflash.plugins.module_utils._kinds import KINDS
from ansible_collections.gpufleet.dflash.plugins.module_utils._printable import printable, shell_word
from ansible_collections.gpufleet.dflash.plugins.module_utils._provider import providers, requirement
from ansible_collections.gpufleet.dflash.plugins.module_utils._requirements import Unmet, unmet_requirements
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheels import Distribution, Installed

Problem = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """Where the load was tried: what a message must name, and what a fix can refer to.

    ``whose`` names the unit or the environment option; ``user`` is the account the probe ran as. ``python_version``
    and ``torch_cuda`` are the venv's, and tell which versions belong into it.
    """

    venv: str
    installed: Installed
    library_path: tuple[str, ...]
    whose: str
    user: str
    python_version: str = ""
    torch_cuda: str | None = None

    @functools.cached_property
    def unmet(self) -> list[Unmet]:
        """The requirements that the venv does not meet."""
        return unmet_requirements(self.installed.distributions, self.python_version) if self.python_version else []

    @property
    def cuda_major(self) -> int | None:
        """The CUDA major that torch was built for."""
        return int(self.torch_cuda.split(".")[0]) if self.torch_cuda else None

    def owners(self, path: str) -> list[Distribution]:
        """Distributions that own a file, by this path or its real one."""
        return self.installed.owners(path) or self.installed.owners(os.path.realpath(path))


@dataclass(frozen=True)
class Failure:
    """One failed load: what was tried, the words of every error in the chain, and what was in the way."""

    attempt: str
    words: str
    path: str | None
    blocked: Sequence[str]


def problem(kind: str, message: str, fix: str, **rest: Any) -> Problem:
    """Return a finding in the form that every module of the collection uses."""
    return {
        "kind": kind,
        "severity": KINDS[kind],
        "message": printable(message),
        "object": rest.get("object"),
        "soname": rest.get("soname"),
        "distributions": list(rest.get("distributions", ())),
        "paths": list(rest.get("paths", ())),
        "evidence": printable(rest.get("evidence", "")),
        "fix": printable(fix),
    }


def explain(failure: Failure, place: Place) -> list[Problem]:
    """Return the problems that a failed load shows: one a cause, at least one."""
    found = [rule(match, failure, place) for pattern, rule in _RULES for match in re.finditer(pattern, failure.words)]
    # What was tried after the cause (a second place, another name) failed because of it.
    causes = [entry for entry in found if entry["kind"] != "import-failed"]
    found = causes or found
    if not found or (failure.blocked and all(entry["kind"] == "import-failed" for entry in found)):
        found = list(_blocked(failure, place)) or found or [_unknown(failure, place)]
    return list({(entry["kind"], entry["soname"], entry["message"]): entry for entry in found}.values())


def _blocked(failure: Failure, place: Place) -> Iterator[Problem]:
    for path in failure.blocked:
        yield _access_denied(path, failure, place)


def access_fix(user: str, path: str, mode: str) -> str:
    """Return how a user gets access to a path; never by opening somebody's home directory."""
    if any(path == entry.pw_dir for entry in pwd.getpwall() if entry.pw_dir != "/"):
        return f"keep the venv, its interpreter and what they use outside {path}, which is a home directory"
    return f"give user {user} access (chmod o+{mode} {shell_word(path)}), or change the owner or the group"


def _access_denied(path: str, failure: Failure, place: Place) -> Problem:
    verb, mode = ("enter", "rx") if os.path.isdir(path) else ("read", "r")
    return problem(
        "access-denied",
        f"user {place.user} cannot {verb} {path}, so {failure.attempt} fails",
        access_fix(place.user, path, mode),
        object=failure.path,
        paths=[path],
        evidence=failure.words,
    )


def _missing(match: re.Match[str], failure: Failure, place: Place) -> Problem:
    name = match.group("name")
    soname = name.rpartition("/")[2].replace(".*[0-9]", "")
    if soname in _catalogue.DRIVER_LIBRARIES:
        return problem(
            "driver-missing",
            f"{soname} of the NVIDIA driver is not where the loader looks: {failure.attempt} needs it",
            "install the NVIDIA driver (580 or newer for CUDA 13) or start the container with its runtime; "
            "no Python wheel brings this library",
            object=failure.path,
            soname=soname,
            evidence=failure.words,
        )
    if "/" in name:
        return problem(
            "missing-library",
            f"there is no file {name}, which {failure.attempt} loads by its path",
            "correct the path, or install what the file belongs to",
            object=failure.path,
            soname=soname,
            paths=[name],
            evidence=failure.words,
        )
    holders = holders_of(place.installed, soname)
    message, fix, paths = _whereabouts(soname, holders, failure, place)
    named = [owner.name for owner in holders.values()] or providers(place, soname, _needing(failure))
    return problem(
        "missing-library",
        message,
        fix,
        object=failure.path,
        soname=soname,
        distributions=sorted(set(named)),
        paths=paths,
        evidence=failure.words,
    )


def holders_of(installed: Installed, soname: str) -> dict[str, Distribution]:
    """Return the recorded paths of a library and who owns each; `libx.so` stands for `libx.so.N`."""
    found = {}
    for path, owners in installed.libraries().items():
        name = path.rpartition("/")[2]
        if name == soname or (soname.endswith(".so") and name.startswith(soname + ".")):
            found[path] = owners[0]
    return found


def _whereabouts(
    soname: str, holders: dict[str, Distribution], failure: Failure, place: Place
) -> tuple[str, str, list[str]]:
    needs = "" if failure.attempt == f"dlopen of {soname}" else f": {failure.attempt} needs it"
    for path in holders:
        barrier = next((entry for entry in failure.blocked if f"{path}/".startswith(f"{entry}/")), None)
        if barrier is not None:
            denied = _access_denied(barrier, failure, place)
            return denied["message"], denied["fix"], [path]
    here = [path for path in holders if os.path.exists(path)]
    rejected = next((path for path in here if os.path.dirname(path) in place.library_path), None)
    if rejected is not None:
        return (
            f"the loader rejects {rejected} (of {holders[rejected].pin}){needs}",
            "look at the file's architecture and mode (readelf -h, ls -l), or build the environment anew",
            [rejected],
        )
    if here:
        owner = holders[here[0]]
        return (
            f"{soname} is installed (by {owner.pin}) where the loader does not look{needs}",
            f"add {os.path.dirname(here[0])} to LD_LIBRARY_PATH in {place.whose}",
            here,
        )
    if holders:
        path, owner = next(iter(holders.items()))
        python = shell_word(f"{place.venv}/bin/python")
        return (
            f"{soname} is gone although {owner.pin}, which records {path}, counts as installed{needs}",
            "build the environment anew, or reinstall it by force: "
            f"uv pip install --python {python} --reinstall --no-deps {shell_word(owner.pin)}",
            [path],
        )
    known = soname if not soname.endswith(".so") else None
    wanted = [requirement(place, name, known) for name in providers(place, soname, _needing(failure))]
    package = _catalogue.SYSTEM_PACKAGES.get(soname)
    names = {entry.split("==")[0] for entry in wanted}
    unfit = [d for d in place.installed.distributions if known and d.name in names]
    if unfit and wanted:
        return (
            f"{soname} is in no file of the installed {unfit[0].pin}{needs}",
            f"change the lock to {' or '.join(wanted)} and build the environment anew",
            [],
        )
    if wanted:
        return (
            f"{soname} is not installed{needs}",
            f"add {' or '.join(wanted)} to the lock and build the environment anew",
            [],
        )
    if package:
        return f"{soname} of the operating system is not installed{needs}", f"apt install {package}", []
    return (
        f"{soname} is nowhere in the venv nor where the loader looks{needs}",
        "find out which package provides it and add that to the lock, or its directory to LD_LIBRARY_PATH",
        [],
    )


def _needing(failure: Failure) -> list[str]:
    return [failure.path] if failure.path else []


def _denied(match: re.Match[str], failure: Failure, place: Place) -> Problem:
    path = match.group("name")
    return _access_denied(next(iter(failure.blocked), path), failure, place)


def _undefined_symbol(match: re.Match[str], failure: Failure, place: Place) -> Problem:
    symbol, version, needing = match.group("symbol"), match.group("version"), match.group("object")
    owners = place.installed.owners(os.path.realpath(needing)) if needing else []
    provider = f" in {version}" if version else ""
    return problem(
        "undefined-symbol",
        f"{needing or failure.attempt} needs the symbol {symbol}, which no loaded library has{provider}: "
        "it was built for another version of what it uses",
        "install versions that belong together (one lock), and look in `libraries` for a copy from elsewhere",
        object=needing or failure.path,
        soname=version if version and ".so" in version else None,
        distributions=[owner.name for owner in owners],
        evidence=failure.words,
    )


def _version_missing(match: re.Match[str], failure: Failure, place: Place) -> Problem:
    name, version, needing = match.group("name"), match.group("version"), match.group("object")
    owners = place.installed.owners(os.path.realpath(needing))
    kind = {"GLIBC": "glibc-too-old", "GLIBCXX": "libstdcxx-too-old", "CXXABI": "libstdcxx-too-old"}
    return problem(
        kind.get(version.split("_")[0], "undefined-symbol"),
        f"{needing} needs {version}, and {name} does not have it: it is older than the wheel expects",
        "use a newer operating system, or a wheel built for an older one",
        object=needing,
        soname=name.rpartition("/")[2],
        distributions=[owner.name for owner in owners],
        paths=[name],
        evidence=failure.words,
    )


def _damaged(match: re.Match[str], failure: Failure, place: Place) -> Problem:
    path = match.group("name")
    owners = place.installed.owners(os.path.realpath(path))
    pins = " ".join(owner.pin for owner in owners)
    return problem(
        "altered-file",
        f"{path} is no library for this host ({match.group('what')}): {failure.attempt} needs it",
        f"build the environment anew from its lock{', or reinstall by force: ' + pins if pins else ''}",
        object=failure.path,
        soname=path.rpartition("/")[2],
        distributions=[owner.name for owner in owners],
        paths=[path],
        evidence=failure.words,
    )


def _not_mapped(match: re.Match[str], failure: Failure, place: Place) -> Problem:
    path = match.group("name")
    return problem(
        "access-denied",
        f"the kernel does not let {path} be executed ({match.group('what')}), so {failure.attempt} fails",
        "look for a noexec mount (findmnt -T), or NoExecPaths= and MemoryDenyWriteExecute= in the unit",
        object=failure.path,
        soname=path.rpartition("/")[2],
        paths=[path],
        evidence=failure.words,
    )


def _missing_module(match: re.Match[str], failure: Failure, place: Place) -> Problem:
    name = match.group("name")
    return problem(
        "import-failed",
        f"there is no Python module {name} in {place.venv}: {failure.attempt} needs it",
        f"add the distribution of {name} to the lock and build the environment anew, or correct the name",
        object=failure.path,
        evidence=failure.words,
    )


def _unknown(failure: Failure, place: Place) -> Problem:
    first = failure.words.split("\n", 1)[0]
    return problem(
        "import-failed",
        f"{failure.attempt} fails in {place.venv}: {first}",
        f"run it by hand as user {place.user} to see the whole traceback",
        object=failure.path,
        evidence=failure.words,
    )


_OBJECT = r"[^\s:'\"()]+"
_MAPPING_FAILURES = (
    r"failed to map segment from shared object|cannot enable executable stack[^\n]*"
    r"|cannot apply additional memory protection after relocation|cannot change memory protections"
    r"|cannot make segment writable for relocation"
)
_DAMAGES = (
    r"invalid ELF header|file too short|wrong ELF class: \w+|ELF file's phentsize[^\n]*"
    r"|ELF file version[^\n]*|cannot read file data[^\n]*|only ET_DYN and ET_EXEC can be loaded"
    r"|cannot open shared object file: Exec format error"
)
_RULES: tuple[tuple[str, Callable[[re.Match[str], Failure, Place], Problem]], ...] = (
    (rf"(?P<name>{_OBJECT}): cannot open shared object file: No such file or directory", _missing),
    # torch's own search for a library that it preloads; not an ImportError but a ValueError.
    (r"(?P<name>lib\S+\.so\S*) not found in the system path", _missing),
    (rf"(?P<name>{_OBJECT}): cannot open shared object file: Permission denied", _denied),
    (r"PermissionError: \[Errno 13\] [^:]+: '(?P<name>[^']+)'", _denied),
    (
        rf"(?:(?P<object>{_OBJECT}): )?undefined symbol: (?P<symbol>[^\s,]+)(?:, version (?P<version>\S+))?",
        _undefined_symbol,
    ),
    (
        rf"(?P<name>{_OBJECT}): version `(?P<version>[^']+)' not found \(required by (?P<object>[^)]+)\)",
        _version_missing,
    ),
    (rf"(?P<name>{_OBJECT}): (?P<what>{_DAMAGES})", _damaged),
    (rf"(?P<name>{_OBJECT}): (?P<what>{_MAPPING_FAILURES})", _not_mapped),
    (r"No module named '(?P<name>[\w.]+)'", _missing_module),
)
