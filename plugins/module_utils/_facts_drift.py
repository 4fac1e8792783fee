# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The difference between the facts of two venvs, and what it means for loading. Private to the collection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.gpufleet.dflash.plugins.module_utils._versions import fulfils_pin, local_tag

# In the order in which a summary tells them.
KINDS = ("missing", "version", "tag", "payload", "overlay", "added", "loading", "python")
# What venvs are made with: that the reference lacks it says nothing.
_SEEDED = frozenset({"pip", "setuptools", "wheel"})


class FactsError(Exception):
    """What was given are not the facts of one venv; the text says what to give."""


def facts_of_one(given: Any, what: str) -> Mapping[str, Any]:
    """The facts of one venv, from those facts, from a module's result, or from ``cuda_wheels`` with one venv."""
    if isinstance(given, Mapping):
        if isinstance(given.get("distributions"), Mapping):
            return given
        venvs = given.get("venvs", given)
        if isinstance(venvs, Mapping) and venvs and all(_is_facts(facts) for facts in venvs.values()):
            if len(venvs) == 1:
                return next(iter(venvs.values()), {})
            raise FactsError(f"{what} has several venvs: {', '.join(map(str, venvs))}: choose one, as venvs['/path']")
    raise FactsError(f"{what} are not facts of a venv: give what cuda_wheel_facts returns in venvs['/path']")


def _is_facts(facts: Any) -> bool:
    return isinstance(facts, Mapping) and isinstance(facts.get("distributions"), Mapping)


def drift(here: Mapping[str, Any], reference: Mapping[str, Any]) -> dict[str, Any]:
    """What is otherwise here than in the reference, by kind, each with its meaning; ``summary`` is one line."""
    found: dict[str, Any] = {kind: [] for kind in KINDS}
    mine, wanted = here["distributions"], reference["distributions"]
    found["python"] = _python(here, reference)
    for name in sorted(set(wanted) - set(mine)):
        meaning = _libraries(name, here, reference) or f"what imports {name} fails here"
        found["missing"].append({"name": name, "reference": wanted[name], "meaning": meaning})
    for name in sorted(set(mine) - set(wanted) - _SEEDED):
        meaning = _extra_libraries(name, here, reference) or "it brings no CUDA library"
        found["added"].append({"name": name, "here": mine[name], "meaning": meaning})
    found["overlay"] = _overlays(here, reference)
    patched = {row["distribution"] for row in found["overlay"]}
    for name in sorted(set(mine) & set(wanted)):
        if mine[name] == wanted[name] or _same_version(mine[name], wanted[name]):
            if name not in patched and _differ(name, here, reference):
                found["payload"].append(
                    {"name": name, "version": mine[name], "meaning": _other_files(name, here, reference)}
                )
            continue
        kind = "tag" if _same_version(_public(mine[name]), _public(wanted[name])) else "version"
        meaning = _libraries(name, here, reference)
        if not meaning and kind == "tag":
            built = [local_tag(version) or "no tag" for version in (mine[name], wanted[name])]
            meaning = f"another build of one version: {built[0]} here, {built[1]} in the reference"
        found[kind].append(
            {"name": name, "here": mine[name], "reference": wanted[name], "meaning": meaning or "its modules differ"}
        )
    found["loading"] = _loading(here, reference)
    found["same"] = not any(found[kind] for kind in KINDS)
    found["summary"] = _summary(found)
    return found


def _python(here: Mapping[str, Any], reference: Mapping[str, Any]) -> list[dict[str, Any]]:
    mine, wanted = ((facts.get("python") or {}).get("version") for facts in (here, reference))
    if not mine or not wanted or mine == wanted:
        return []
    abi = str(mine).split(".")[:2] != str(wanted).split(".")[:2]
    meaning = "extension modules are other files" if abi else "the same extension modules fit"
    return [{"here": mine, "reference": wanted, "meaning": meaning}]


def _same_version(one: str, other: str) -> bool:
    return fulfils_pin(one, other) and fulfils_pin(other, one)


def _public(version: str) -> str:
    return version.partition("+")[0]


def _providers(facts: Mapping[str, Any]) -> dict[str, list[str]]:
    """{soname: distributions that provide it}."""
    return {
        soname: sorted({str(row["distribution"]) for row in rows})
        for soname, rows in (facts.get("providers") or {}).items()
    }


def _pin(name: str, facts: Mapping[str, Any]) -> str:
    version = facts["distributions"].get(name)
    return f"{name} {version}" if version else name


def _pins(names: Iterable[str], facts: Mapping[str, Any]) -> str:
    return " and ".join(_pin(name, facts) for name in names)


def _libraries(name: str, here: Mapping[str, Any], reference: Mapping[str, Any]) -> str:
    """What differs about the libraries that the reference has from a distribution; empty when it has none."""
    mine = _providers(here)
    lines = []
    for soname, names in sorted(_providers(reference).items()):
        if name not in names:
            continue
        has_it = f"the reference has it from {_pin(name, reference)}"
        if soname not in mine:
            lines.append(f"{soname} is missing here; {has_it}")
        elif _pins(mine[soname], here) != _pins(names, reference):
            lines.append(f"{soname} comes from {_pins(mine[soname], here)} here; {has_it}")
    return _joined(lines)


def _extra_libraries(name: str, here: Mapping[str, Any], reference: Mapping[str, Any]) -> str:
    """What a distribution that the reference lacks brings."""
    wanted = _providers(reference)
    lines = []
    for soname, names in sorted(_providers(here).items()):
        if name in names and soname in wanted:
            lines.append(
                f"{soname} is here from {_pins(names, here)}; in the reference from {_pins(wanted[soname], reference)}"
            )
        elif name in names:
            lines.append(f"{soname} is here from {_pin(name, here)}; the reference has no such library")
    return _joined(lines)


def _joined(lines: list[str]) -> str:
    more = [f"and {len(lines) - 3} more libraries"] if len(lines) > 3 else []
    return "; ".join(lines[:3] + more)


def _differ(name: str, here: Mapping[str, Any], reference: Mapping[str, Any]) -> bool:
    mine, wanted = ((facts.get("payloads") or {}).get(name) for facts in (here, reference))
    return mine is not None and wanted is not None and mine != wanted


def _other_files(name: str, here: Mapping[str, Any], reference: Mapping[str, Any]) -> str:
    """Why files of one version differ, as far as the facts tell."""
    for facts, where in ((here, "here"), (reference, "in the reference")):
        for problem in facts.get("problems") or []:
            if (
                problem["kind"] in ("clobbered-file", "missing-payload", "altered-file")
                and name in problem["distributions"]
            ):
                return f"{where}: {problem['message']}"
    kinds = [((facts.get("sources") or {}).get(name) or {"kind": "index"})["kind"] for facts in (here, reference)]
    if kinds[0] != kinds[1]:
        return f"other files under one version: from {kinds[0]} here, from {kinds[1]} in the reference"
    return "other files under one version: another build, or another platform's wheel"


def _overlays(here: Mapping[str, Any], reference: Mapping[str, Any]) -> list[dict[str, Any]]:
    mine, wanted = (_overlays_of(facts) for facts in (here, reference))
    found = []
    for path in sorted({*mine, *wanted}):
        one, other = mine.get(path), wanted.get(path)
        if one and other and one["sha256"] == other["sha256"]:
            continue
        owner = (one or other or {}).get("distribution")
        plain = f"the file of {owner}" if owner else "no such file"
        if one and other:
            change, meaning = "altered", "it is patched here and in the reference, not in the same way"
        elif one:
            change, meaning = "added", f"it is patched here; the reference has {plain}"
        else:
            change, meaning = "missing", f"the reference has it patched; here is {plain}"
        found.append(
            {
                "path": path,
                "change": change,
                "distribution": owner,
                "here": one and one["sha256"],
                "reference": other and other["sha256"],
                "meaning": f"{path}: {meaning}",
            }
        )
    return found


def _overlays_of(facts: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """{path below site-packages: overlay}."""
    found = {}
    for overlay in facts.get("overlays") or []:
        path = str(overlay["path"])
        for root in facts.get("site_packages") or []:
            if path.startswith(f"{root}/"):
                path = path[len(root) + 1 :]
        found[path] = overlay
    return found


def _loading(here: Mapping[str, Any], reference: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Libraries that the import plan takes from elsewhere than in the reference."""
    mine, wanted = (
        {row["soname"]: row for row in facts.get("resolution") or [] if not row["soname"].startswith("libcuda.so")}
        for facts in (here, reference)
    )
    found = []
    for soname in sorted(set(mine) & set(wanted)):
        owners = mine[soname]["distribution"], wanted[soname]["distribution"]
        if owners[0] != owners[1]:
            places = [
                owner or f"the host itself ({row['path']})"
                for owner, row in zip(owners, (mine[soname], wanted[soname]))
            ]
            found.append(
                {
                    "soname": soname,
                    "here": mine[soname]["path"],
                    "reference": wanted[soname]["path"],
                    "meaning": f"{soname} is loaded from {places[0]} here, from {places[1]} in the reference",
                }
            )
    return found


def _summary(found: Mapping[str, Any]) -> str:
    if found["same"]:
        return "the same as the reference"
    counts = [f"{len(found[kind])} {kind}" for kind in KINDS if found[kind]]
    rows: list[Mapping[str, Any]] = [row for kind in KINDS for row in found[kind]]
    # What a library is about says more than that some module is missing.
    first = min(rows, key=lambda row: ".so" not in row["meaning"])
    subject = first.get("name") or first.get("path") or first.get("soname") or "Python"
    meaning = str(first.get("meaning", ""))
    shown = meaning if meaning.startswith(str(subject)) else f"{subject}: {meaning}"
    return f"{', '.join(counts)}: {shown}"
