# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Judge symbols and symbol versions that a loaded library does not define. Private to the collection."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ansible_collections.gpufleet.dflash.plugins.module_utils import _catalogue
from ansible_collections.gpufleet.dflash.plugins.module_utils._demangle import qualified_name, readable
from ansible_collections.gpufleet.dflash.plugins.module_utils._findings import Facts, Problem
from ansible_collections.gpufleet.dflash.plugins.module_utils._loader import Undefined
from ansible_collections.gpufleet.dflash.plugins.module_utils._paths import canonical
from ansible_collections.gpufleet.dflash.plugins.module_utils._repair import Repair

_TOO_OLD = {"GLIBC": "glibc-too-old", "GLIBCXX": "libstdcxx-too-old", "CXXABI": "libstdcxx-too-old"}
_TORCH_NAMESPACES = frozenset({"c10", "at", "torch", "caffe2"})
_SYMBOLS_LISTED = 5
_NVJITLINK = re.compile(r"__nvJitLink\w+?_(\d+)_(\d+)$")

# Whose a C symbol is, by its beginning, where the reference itself does not say: the first that fits.
_OWNERS = (
    (re.compile(r"p?nccl[A-Z]"), "libnccl.so"),
    (re.compile(r"cublasLt[A-Z]"), "libcublasLt.so"),
    (re.compile(r"cublas[A-Z]"), "libcublas.so"),
    (re.compile(r"cudnn[A-Z]"), "libcudnn"),
    (re.compile(r"cusparseLt[A-Z]"), "libcusparseLt.so"),
    (re.compile(r"cusparse[A-Z]"), "libcusparse.so"),
    (re.compile(r"cusolver[A-Z]"), "libcusolver.so"),
    (re.compile(r"cufft[A-Z]"), "libcufft.so"),
    (re.compile(r"curand[A-Z]"), "libcurand.so"),
    (re.compile(r"cupti[A-Z]"), "libcupti.so"),
    (re.compile(r"nvrtc[A-Z]"), "libnvrtc.so"),
    (re.compile(r"(__)?nvJitLink[A-Z]"), "libnvJitLink.so"),
    (re.compile(r"nvshmem\w"), "libnvshmem_host.so"),
    (re.compile(r"(__)?cuda[A-Z]"), "libcudart.so"),
    (re.compile(r"cu[A-Z]"), "libcuda.so"),
)


@dataclass
class _Lack:
    """What one object wants and does not get, with the loaded files that were to define it."""

    path: str
    words: str
    scope: Mapping[str, str]
    symbols: list[Undefined] = field(default_factory=list)
    required: bool = False


@dataclass
class _OldLibrary:
    """Versions that one loaded library does not define."""

    path: str
    words: str
    soname: str
    versions: list[str] = field(default_factory=list)
    needers: list[str] = field(default_factory=list)
    required: bool = False


def missing_versions(facts: Facts, repair: Repair) -> Iterator[Problem]:
    """Each library that lacks a version of symbols, which the loader checks before anything runs."""
    found: dict[tuple[str, str], _OldLibrary] = {}
    for attempt in facts.attempts:
        for each in attempt.error.versions if attempt.error else ():
            kind = _TOO_OLD.get(each.version.split("_")[0], "undefined-symbol")
            old = found.setdefault((kind, each.path), _OldLibrary(each.path, each.message, each.soname))
            old.versions += [each.version] if each.version not in old.versions else []
            old.needers += [each.needed_by] if each.needed_by not in old.needers else []
            old.required = old.required or attempt.fatal
    for (kind, _path), old in found.items():
        yield _missing_version(facts, repair, kind, old)


def _missing_version(facts: Facts, repair: Repair, kind: str, old: _OldLibrary) -> Problem:
    newest = max(old.versions, key=_numbers)
    first = os.path.basename(old.needers[0])
    more = f" and {len(old.needers) - 1} more" if len(old.needers) > 1 else ""
    owners = [owner for path in old.needers for owner in facts.owners(path)]
    pins = ", ".join(dict.fromkeys(owner.pin for owner in owners)) or first
    if kind == "undefined-symbol":
        fix = _matching(facts, repair, old.needers[0], old.path)
    elif kind == "glibc-too-old":
        fix = f"use a newer operating system, or for {pins} a release that was built for an older one"
    elif _is_shadow(facts, old.path):
        directory = os.path.dirname(old.path)
        fix = f"take {directory} out of LD_LIBRARY_PATH, so that the system's {old.soname} is found"
    else:
        fix = f"use a newer operating system (or its newer {old.soname}), or for {pins} a release for an older one"
    return Problem(
        kind,
        f"{first}{more} need{'' if more else 's'} {newest}, and {old.path} does not have it: it is older than that "
        "file expects",
        fix,
        object=old.needers[0],
        soname=old.soname,
        distributions=tuple(dict.fromkeys(owner.name for owner in owners)),
        paths=(old.path, *old.needers),
        evidence=old.words,
        severity="" if old.required else "warning",
    )


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:8]]


def _is_shadow(facts: Facts, path: str) -> bool:
    """Whether LD_LIBRARY_PATH is what leads to this file."""
    directory = os.path.dirname(os.path.realpath(path))
    return any(directory == os.path.realpath(entry) for entry in re.split("[:;]", facts.ld_library_path) if entry)


def undefined_symbols(facts: Facts, repair: Repair) -> Iterator[Problem]:
    """Each object of the plan with symbols that nothing it is loaded with defines."""
    lacks: dict[str, _Lack] = {}
    for attempt in facts.attempts:
        for each in attempt.error.undefined if attempt.error else ():
            words = f"{each.path}: {each.words}"
            lack = lacks.setdefault(each.path, _Lack(each.path, words, attempt.error.scope if attempt.error else {}))
            lack.symbols += [each] if each not in lack.symbols else []
            lack.required = lack.required or attempt.fatal
    for lack in lacks.values():
        yield _undefined(facts, repair, lack)


def _undefined(facts: Facts, repair: Repair, lack: _Lack) -> Problem:
    owners = facts.owners(lack.path)
    soname, provider = _expected(facts, lack)
    message, fix = _verdict(facts, repair, lack, soname, provider)
    count = len(lack.symbols)
    whose = f" of {owners[0].pin}" if owners else ""
    where = f"{soname} does not define" if soname else "no library that is loaded with it defines"
    symbols = f"{count} symbols that {where}, such as" if count > 1 else f"a symbol that {where},"
    others = [owner.name for owner in facts.owners(provider)] if provider else []
    listed = [f"{each.symbol}" for each in lack.symbols[:_SYMBOLS_LISTED]]
    return Problem(
        "undefined-symbol",
        f"{os.path.basename(lack.path)}{whose} needs {symbols} {readable(lack.symbols[0].symbol)}: {message}",
        fix,
        object=lack.path,
        soname=soname,
        distributions=tuple(dict.fromkeys([owner.name for owner in owners] + others)),
        paths=(lack.path, *([provider] if provider else [])),
        evidence=lack.words
        + (f" ({count} in all: {', '.join(listed)}{', ...' if count > 5 else ''})" if count > 1 else ""),
        severity="" if lack.required else "warning",
    )


def _expected(facts: Facts, lack: _Lack) -> tuple[str | None, str | None]:
    """Soname and file of the library that was to define the first symbol, as far as its name or version tells."""
    first = lack.symbols[0]
    if first.version and ".so" in first.version:
        path = lack.scope.get(first.version)
        return first.version, canonical(path) if path else None
    for pattern, prefix in _OWNERS:
        if pattern.match(first.symbol):
            found = ((name, canonical(path)) for name, path in lack.scope.items() if name.startswith(prefix))
            return next(found, (None, None))
    return None, None


def _is_torch(symbol: str) -> bool:
    return (qualified_name(symbol) or [""])[0] in _TORCH_NAMESPACES


def _verdict(facts: Facts, repair: Repair, lack: _Lack, soname: str | None, provider: str | None) -> tuple[str, str]:
    """Why, as the end of a sentence, and the fix."""
    owners = [owner.name for owner in facts.owners(lack.path)]
    torch = facts.installed.versions.get("torch")
    if torch and "torch" not in owners and any(_is_torch(each.symbol) for each in lack.symbols):
        return f"it was built for another torch than {torch}", repair.other_torch(facts.owners(lack.path), facts.unmet)
    if soname in _catalogue.DRIVER_LIBRARIES:
        return (
            f"the NVIDIA driver, whose {provider} is loaded, is older than it expects",
            "install a newer NVIDIA driver, or a release of the wheel for this one",
        )
    if soname and provider:
        holders = facts.owners(provider)
        numbered = _NVJITLINK.match(lack.symbols[0].symbol)
        if numbered and holders:
            # Each of its functions carries the release that brought it.
            wanted = f"{numbered[1]}.{numbered[2]}"
            return (
                f"{holders[0].pin} is older than the {wanted} that it was built with",
                repair.add([f"{holders[0].name}>={wanted}"]),
            )
        comes = f"{provider} comes from {holders[0].pin}" if holders else f"{provider} is this host's own"
        return f"{comes}, which is another version than it was built with", _matching(
            facts, repair, lack.path, provider
        )
    return "it was built for another version of what it uses", _matching(facts, repair, lack.path, None)


def _matching(facts: Facts, repair: Repair, user: str, provider: str | None) -> str:
    """How a library gets the neighbour that it was built with."""
    if provider and _is_shadow(facts, provider) and not facts.owners(provider):
        return f"take {os.path.dirname(provider)} out of LD_LIBRARY_PATH, so that the copy of the wheel is found"
    users = facts.owners(user)
    return repair.matching(users, facts.owners(provider) if provider else [], facts.unmet)


def unreadable_symbols(facts: Facts, repair: Repair) -> Iterator[Problem]:
    """Objects of the plan whose symbols cannot be read, so that nothing is known of what they need."""
    for path, reason in facts.deep.damaged.items() if facts.deep else ():
        owners = facts.owners(path)
        yield Problem(
            "altered-file",
            f"the symbols of {os.path.basename(path)} cannot be read ({reason}): the file is damaged",
            repair.reinstall(owners, altered=True) if owners else "install the package that it belongs to again",
            object=path,
            distributions=tuple(owner.name for owner in owners),
            paths=(path,),
            evidence=f"{path}: {reason}",
        )
