# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which requirements of the installed distributions are not met, extras followed. Private to the collection.

``pip check`` and ``uv pip check`` ignore extras (pypa/pip#4086), and torch pins its CUDA 13 libraries behind
``cuda-toolkit[cublas,cudart,...]``: they call an environment without cuFFT complete.

With ``packaging`` on the target (or the copy inside pip) versions and markers are judged as PEP 440 and PEP
508 say. Without either, only what needs no judgement is: a requirement without a marker, or whose marker is
one comparison of ``extra``, ``sys_platform`` or ``platform_system``; its name must be installed, and ``==``
with a complete version must be equal.
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple

from ansible_collections.gpufleet.dflash.plugins.module_utils._catalogue import normalise
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheels import Distribution

_DEMAND = re.compile(r"[^\s\[(<>=!~]+\s*(?:\[([^\]]*)\])?\s*\(?([^()]*)\)?")


class Unmet(NamedTuple):
    """A requirement that is not met. ``installed`` is the version that is there instead, None for none."""

    required_by: tuple[Distribution, ...]
    requirement: str
    name: str
    installed: str | None


class _Requirement(NamedTuple):
    text: str
    name: str
    extras: tuple[str, ...]
    applies: Callable[[str], bool]
    allows: Callable[[str], bool]


_Parser = Callable[[str, Mapping[str, str]], "_Requirement | None"]


def unmet_requirements(
    distributions: Sequence[Distribution], python_version: str, parse: _Parser | None = None
) -> list[Unmet]:
    """Follow every requirement of everything installed, through the extras that requirements ask for."""
    parse = parse or _parser()
    environment = marker_environment(python_version)
    installed = {distribution.name: distribution for distribution in reversed(distributions)}
    texts = {name: _by_extra(distribution.requires) for name, distribution in installed.items()}
    parsed: dict[tuple[str, str], list[_Requirement]] = {}

    def requirements(name: str, extra: str) -> list[_Requirement]:
        if (name, extra) not in parsed:
            honest = (text for text in texts[name].get(extra, ()) if len(text) <= _LONGEST)
            found = (parse(text, environment) for text in honest)
            parsed[name, extra] = [requirement for requirement in found if requirement is not None]
        return parsed[name, extra]

    unmet: dict[tuple[str, str], list[Distribution]] = {}
    todo = [(name, "") for name in sorted(installed)]
    seen = set(todo)
    while todo:
        name, extra = todo.pop()
        for wanted in (*requirements(name, ""), *(requirements(name, extra) if extra else ())):
            # What applies without the extra was judged when the distribution itself was.
            if not _applies(wanted, extra) or (extra and _applies(wanted, "")):
                continue
            provider = installed.get(wanted.name)
            if provider is None or not wanted.allows(provider.version):
                requirers = unmet.setdefault((wanted.name, wanted.text), [])
                if installed[name] not in requirers:
                    requirers.append(installed[name])
            if provider is not None:
                asked = [(provider.name, choice) for choice in wanted.extras]
                new = [pair for pair in asked if pair not in seen]
                seen.update(new)
                todo += new
    return [
        Unmet(tuple(requirers), text, name, installed[name].version if name in installed else None)
        for (name, text), requirers in sorted(unmet.items(), key=lambda item: item[0])
    ]


def _applies(requirement: _Requirement, extra: str) -> bool:
    try:
        return requirement.applies(extra)
    except (ValueError, RecursionError):  # packaging's UndefinedComparison: nobody can say whether it applies
        return False


# Markers of many alternatives have some hundred characters.
_LONGEST = 10_000
_ONE_EXTRA = re.compile(r"\bextra\s*==\s*['\"]([^'\"]+)['\"]")
_ALTERNATIVE = re.compile(r"\bor\b")


def _by_extra(requirements: Sequence[str]) -> dict[str, list[str]]:
    """Requirements by the extra without which they cannot apply, empty where the marker does not tell at a glance.

    Parsing costs more than all else here, and nine of ten requirements belong to extras that nobody asks for.
    """
    found: dict[str, list[str]] = {}
    for text in requirements:
        marker = text.partition(";")[2]
        extras = _ONE_EXTRA.findall(marker)
        only = normalise(extras[0]) if len(extras) == 1 and not _ALTERNATIVE.search(marker) else ""
        found.setdefault(only, []).append(text)
    return found


def marker_environment(python_version: str) -> dict[str, str]:
    """PEP 508's variables for the venv's Python on this host (the module may run under another Python)."""
    return {
        "implementation_name": "cpython",
        "implementation_version": python_version,
        "os_name": "posix",
        "platform_machine": platform.machine(),
        "platform_release": platform.release(),
        "platform_system": platform.system(),
        "platform_version": platform.version(),
        "platform_python_implementation": "CPython",
        "python_full_version": python_version,
        "python_version": ".".join(python_version.split(".")[:2]),
        "sys_platform": sys.platform,
    }


def _parser() -> _Parser:
    try:
        from packaging import requirements, utils, version
    except ImportError:
        try:
            from pip._vendor.packaging import requirements, utils, version  # type: ignore[no-redef]
        except ImportError:
            return parse_plainly
    return lambda text, environment: _parse_fully((requirements, utils, version), text, environment)


def _parse_fully(packaging: Any, text: str, environment: Mapping[str, str]) -> _Requirement | None:
    requirements, utils, version = packaging
    try:
        parsed = requirements.Requirement(text)
    except requirements.InvalidRequirement:
        return None

    def applies(extra: str) -> bool:
        return (
            parsed.marker is None
            and not extra
            or (parsed.marker is not None and parsed.marker.evaluate({**environment, "extra": extra}))
        )

    def allows(installed: str) -> bool:
        try:
            found = version.Version(installed)
        except version.InvalidVersion:  # nothing can be said about what PEP 440 does not know
            return True
        return not parsed.specifier or parsed.specifier.contains(found, prereleases=True)

    extras = tuple(sorted(normalise(extra) for extra in parsed.extras))
    asked = f"[{','.join(sorted(parsed.extras))}]" if parsed.extras else ""
    shown = f"{parsed.name}{asked}{parsed.specifier}"
    return _Requirement(shown, utils.canonicalize_name(parsed.name), extras, applies, allows)


_PLAIN = re.compile(r"([A-Za-z0-9][\w.-]*)\s*(?:\[([\w\s,.-]*)\])?\s*\(?([^;()]*)\)?\s*(?:;(.*))?$")
_MARKER = re.compile(r"\(?\s*(extra|sys_platform|platform_system)\s*==\s*['\"]([^'\"]*)['\"]\s*\)?$")


def marker_applies(marker: str, environment: Mapping[str, str]) -> bool | None:
    """Whether a lock's marker holds; None where it cannot be told, as without ``packaging``."""
    requirement = _parser()(f"anything ; {marker}", environment)
    try:
        return None if requirement is None else requirement.applies("")
    except ValueError:  # packaging's UndefinedComparison, as for os_name ~= "posix"
        return None


def parse_plainly(text: str, environment: Mapping[str, str]) -> _Requirement | None:
    """The fallback without ``packaging``: None for what it cannot judge with certainty."""
    matched = _PLAIN.match(text.strip())
    if not matched:
        return None
    name, extras, specifier, marker = matched.groups()
    specifier = specifier.strip()
    condition = _MARKER.match(marker.strip()) if marker else None
    if marker and not condition or "@" in specifier:
        return None

    def applies(extra: str) -> bool:
        if condition is None:
            return not extra
        variable, value = condition.groups()
        return (normalise(value) == extra) if variable == "extra" else environment[variable] == value

    exact = re.fullmatch(r"==\s*(\d+(?:\.\d+)*)", specifier)

    def allows(version: str) -> bool:
        # PEP 440: a pin without a local tag also accepts a version that has one, and 1.0 is 1.0.0.
        public = version.partition("+")[0]
        plain = re.fullmatch(r"\d+(?:\.\d+)*", public)
        return exact is None or plain is None or _release(exact.group(1)) == _release(public)

    wanted = tuple(sorted(normalise(extra) for extra in (extras or "").split(",") if extra.strip()))
    shown = f"{name}{'[' + extras + ']' if extras else ''}{specifier}"
    return _Requirement(shown, normalise(name), tuple(w.strip() for w in wanted), applies, allows)


def _release(version: str) -> str:
    return re.sub(r"(\.0)+$", "", version)


def demand(name: str, unmet: Sequence[Unmet]) -> str:
    """The requirement that meets all unmet ones of a distribution: one asks for any version, another for just one."""
    extras: dict[str, None] = {}
    specifiers: dict[str, None] = {}
    for found in unmet:
        parts = _DEMAND.fullmatch(found.requirement) if found.name == name else None
        if parts:
            extras.update((extra.strip(), None) for extra in (parts[1] or "").split(",") if extra.strip())
            specifiers.update((each.strip(), None) for each in parts[2].split(",") if each.strip())
    # An exact version needs no bounds, and two of them cannot both be met.
    exact = [specifier for specifier in specifiers if specifier.startswith("==")]
    asked = f"[{','.join(extras)}]" if extras else ""
    return f"{name}{asked}{','.join(exact[:1] or specifiers)}"
