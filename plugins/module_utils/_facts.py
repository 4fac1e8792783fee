# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a venv's facts to the module's result. Private to the collection."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpufleet.dflash.plugins.module_utils import _catalogue, _problems
from ansible_collections.gpufleet.dflash.plugins.module_utils._fat_binary import Architectures
from ansible_collections.gpufleet.dflash.plugins.module_utils._findings import Facts, Problem, verdict
from ansible_collections.gpufleet.dflash.plugins.module_utils._gather import Request, gather
from ansible_collections.gpufleet.dflash.plugins.module_utils._integrity import unowned_files
from ansible_collections.gpufleet.dflash.plugins.module_utils._payload import payloads, sources
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheels import library_path, sha256_of

__all__ = ["Request", "damaged", "gather", "result", "summary_line", "summary_of_many"]

# An overlay larger than this is listed without its digest unless all files are hashed: that would make the facts slow.
_OVERLAY_HASH_LIMIT = 16 * 1024 * 1024
# How many venvs the one line about many names, besides the worst.
_VENVS_NAMED = 5


def result(facts: Facts, detail: str) -> dict[str, Any]:
    """What the module returns for this venv: ``summary`` has CUDA's objects only, ``full`` every object."""
    problems = _problems.judge(facts)
    overlays = _overlays(facts)
    altered = {overlay["path"]: overlay["sha256"] for overlay in overlays if overlay["change"] == "altered"}
    return {
        "python": {"version": facts.venv.version, "executable": facts.venv.python},
        "site_packages": [os.path.realpath(directory) for directory in facts.venv.site_packages],
        "distributions": facts.installed.versions,
        "sources": sources(facts.installed),
        "payloads": payloads(facts.installed, facts.integrity, altered),
        "cuda": _cuda(facts),
        "library_path": library_path(facts.installed),
        "providers": _providers(facts, detail),
        "resolution": _resolution(facts, detail),
        "overlays": overlays,
        **_deep(facts, detail),
        "lock": facts.drift.as_dict() if facts.drift else None,
        "removal": facts.removal.as_dict() if facts.removal else None,
        "problems": [problem.as_dict() for problem in problems],
        "verdict": verdict(problems),
    }


def damaged(venv: str, reason: str) -> dict[str, Any]:
    """The result for what looks like a venv and cannot be used as one."""
    problem = Problem(
        "environment-malformed",
        reason,
        "build it anew, or remove it if nothing uses it",
        object=os.path.join(venv, "pyvenv.cfg"),
        paths=(venv,),
        severity="error",
    )
    return {
        "python": {"version": None, "executable": None},
        "site_packages": [],
        "distributions": {},
        "sources": {},
        "payloads": {},
        "cuda": {"majors": [], "torch": None, "torch_cuda": None, "driver_floor": None},
        "library_path": [],
        "providers": {},
        "resolution": [],
        "overlays": [],
        "architectures": None,
        "dlopens": None,
        "lock": None,
        "removal": None,
        "problems": [problem.as_dict()],
        "verdict": "error",
    }


def summary_of_many(venvs: Mapping[str, Mapping[str, Any]]) -> str:
    """One line for people about what ``discover`` found."""
    if not venvs:
        return "no virtual environment found"
    bad = {path: facts for path, facts in venvs.items() if facts["verdict"] != "ok"}
    if not bad:
        return f"ok: {len(venvs)} virtual environments, nothing wrong"
    path = min(bad, key=lambda path: (bad[path]["verdict"] != "error", path))
    others = [each for each in sorted(bad) if each != path]
    more = f" and {len(others) - _VENVS_NAMED} more" if len(others) > _VENVS_NAMED else ""
    also = f"; also {', '.join(others[:_VENVS_NAMED])}{more}" if others else ""
    return f"{len(bad)} of {len(venvs)} virtual environments have problems: {path}: {summary_line(bad[path])}{also}"


def summary_line(facts_of_venv: Mapping[str, Any]) -> str:
    """One line for people: the verdict and the first problem."""
    problems = facts_of_venv["problems"]
    if not problems:
        return f"ok: {len(facts_of_venv['distributions'])} distributions, nothing wrong"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{facts_of_venv['verdict']}: {problems[0]['message']}{more}"


def _cuda(facts: Facts) -> dict[str, Any]:
    versions = facts.installed.versions
    majors = sorted({major for name in versions if (major := _catalogue.cuda_major_of(name))})
    newest = facts.cuda_major or (majors[-1] if majors else None)
    return {
        "majors": majors,
        "torch": versions.get("torch"),
        "torch_cuda": facts.torch_cuda,
        "driver_floor": _catalogue.DRIVER_FLOORS.get(newest) if newest else None,
    }


def _providers(facts: Facts, detail: str) -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = {}
    for path, read in sorted(facts.objects.items()):
        for owner in facts.owners(path):
            if read.soname and (detail == "full" or _catalogue.cuda_major_of(owner.name)):
                found.setdefault(read.soname, []).append({"distribution": owner.name, "path": path})
    return dict(sorted(found.items()))


def _resolution(facts: Facts, detail: str) -> list[dict[str, Any]]:
    resolution = []
    for loaded in facts.loaded:
        owners = facts.owners(loaded.path)
        soname = loaded.soname or os.path.basename(loaded.path)
        relevant = owners or _catalogue.distributions_of(soname) or soname in _catalogue.DRIVER_LIBRARIES
        if detail == "full" or relevant:
            resolution.append(
                {
                    "soname": soname,
                    "path": loaded.path,
                    "distribution": owners[0].name if owners else None,
                    "rule": loaded.rule,
                    "needed_by": facts.needer(loaded),
                }
            )
    return resolution


def _overlays(facts: Facts) -> list[dict[str, Any]]:
    """Files laid over installed packages: added ones, and those whose content is not the recorded one."""
    overlays: list[dict[str, Any]] = [
        {"path": path, "distribution": None, "change": "added", "sha256": _digest(path, facts.hashed)}
        for path in unowned_files(facts.installed, facts.venv.site_packages)
    ]
    overlays += [
        {"path": path, "distribution": None, "change": "added", "sha256": _digest(path, facts.hashed)}
        for path in facts.declared
        if not facts.owners(path) and path not in {overlay["path"] for overlay in overlays}
    ]
    overlays += [
        {
            "path": altered.path,
            "distribution": altered.distribution.name,
            "change": "altered",
            "sha256": _digest(altered.path, facts.hashed),
        }
        for altered in facts.integrity.altered
    ]
    for overlay in overlays:
        # A large one that is not what was declared is a problem of its own.
        expected = facts.declared.get(str(overlay["path"]))
        overlay["declared"] = expected is not None and overlay["sha256"] in (None, expected)
    return sorted(overlays, key=lambda overlay: str(overlay["path"]))


def _deep(facts: Facts, detail: str) -> dict[str, Any]:
    """Device code and names for dlopen: by distribution, or by object where every object is wanted."""
    if facts.deep is None:
        return {"architectures": None, "dlopens": None}
    compiled = facts.deep.architectures
    if detail == "full":
        return {
            "architectures": {path: each.as_dict() for path, each in sorted(compiled.items())},
            "dlopens": dict(sorted(facts.deep.dlopens.items())),
        }
    architectures: dict[str, Architectures] = {}
    for path, each in sorted(compiled.items()):
        for owner in facts.owners(path):
            so_far = architectures.get(owner.name)
            architectures[owner.name] = so_far | each if so_far else each
    dlopens: dict[str, set[str]] = {}
    for path, names in facts.deep.dlopens.items():
        for owner in facts.owners(path):
            if _catalogue.cuda_major_of(owner.name):
                dlopens.setdefault(owner.name, set()).update(names)
    return {
        "architectures": {name: each.as_dict() for name, each in sorted(architectures.items())},
        "dlopens": {name: sorted(found) for name, found in sorted(dlopens.items())},
    }


def _digest(path: str, whatever_size: bool) -> str | None:
    try:
        return sha256_of(path) if whatever_size or os.path.getsize(path) <= _OVERLAY_HASH_LIMIT else None
    except OSError:
        return None
