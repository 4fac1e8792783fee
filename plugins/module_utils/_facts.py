# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a venv's files to its facts, its problems and the module's result. Private to the collection."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.gpufleet.dflash.plugins.module_utils import _catalogue, _problems
from ansible_collections.gpufleet.dflash.plugins.module_utils._elf import (
    ElfError,
    ElfObject,
    read_object,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._findings import Facts, verdict
from ansible_collections.gpufleet.dflash.plugins.module_utils._import_plan import (
    Attempt,
    import_module,
    load_file,
    torch_cuda_version,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._integrity import (
    check_files,
    unowned_files,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._ld_system import System
from ansible_collections.gpufleet.dflash.plugins.module_utils._loader import LoadError, Process
from ansible_collections.gpufleet.dflash.plugins.module_utils._manifest import declared_overlays
from ansible_collections.gpufleet.dflash.plugins.module_utils._requirements import unmet_requirements
from ansible_collections.gpufleet.dflash.plugins.module_utils._unit import process_environment, read_unit
from ansible_collections.gpufleet.dflash.plugins.module_utils._venv import Venv, VenvError, open_venv
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheels import (
    Installed,
    library_path,
    read_installed,
    sha256_of,
)

# An overlay larger than this is listed without its digest: hashing it would make the facts slow.
_OVERLAY_HASH_LIMIT = 16 * 1024 * 1024


@dataclass(frozen=True)
class Request:
    """What to read and under which circumstances, as the module's options say."""

    venv: str
    imports: Sequence[str] = ("torch",)
    load: Sequence[str] = ()
    ld_library_path: Sequence[str] | None = None
    unit: str | None = None
    verify: str = "size"


def gather(request: Request, system: System | None = None) -> Facts:
    """Read what the judges need, executing nothing. Raises VenvError, UnitError, UnsupportedLoader.

    ``system`` stands in for this host's loader and its cache.
    """
    venv = open_venv(request.venv)
    environment, directory = _circumstances(request)
    installed = read_installed(venv.import_path)
    process = _start(venv, system or System.of_host(venv.python), environment, directory)
    attempts: list[Attempt] = []
    absent: list[str] = []
    for name in request.imports:
        plan = import_module(process, name, venv.import_path, venv.version)
        attempts += plan or []
        absent += [name] if plan is None else []
    attempts += [load_file(process, target) for target in request.load]
    return Facts(
        venv=venv,
        installed=installed,
        objects=_read_objects(installed),
        attempts=attempts,
        absent_modules=absent,
        loaded=list(process.loaded),
        integrity=check_files(installed, request.verify),
        unmet=unmet_requirements(installed.distributions, venv.version),
        ld_library_path=environment.get("LD_LIBRARY_PATH", ""),
        unit=request.unit,
        torch_cuda=_torch_cuda(venv),
        declared=declared_overlays(venv.path, venv.site_packages[0]),
    )


def _circumstances(request: Request) -> tuple[dict[str, str], str]:
    """The environment and the working directory that the process would have."""
    environment: dict[str, str] = {}
    directory = "/"
    if request.unit is not None:
        unit = read_unit(request.unit)
        environment = process_environment(unit, "")
        directory = unit.working_directory or "/"
    if request.ld_library_path is not None:
        environment["LD_LIBRARY_PATH"] = ":".join(request.ld_library_path)
    return environment, directory


def _start(venv: Venv, system: System, environment: Mapping[str, str], directory: str) -> Process:
    process = Process(system, environment=environment, cwd=directory)
    try:
        process.start(venv.python)
    except (LoadError, ElfError) as error:
        raise VenvError(
            f"the venv's interpreter cannot start: {venv.python}: {error}: install that Python or build the venv anew"
        ) from None
    return process


def _read_objects(installed: Installed) -> dict[str, ElfObject]:
    """Every owned shared object that can be read, by path.

    What cannot be read is no finding by itself: linker scripts are text named like libraries, some packages
    ship broken objects for their tests. The checks of files and the loader tell when it matters.
    """
    objects: dict[str, ElfObject] = {}
    for path in installed.libraries():
        with contextlib.suppress(ElfError, OSError):
            objects[path] = read_object(path)
    return objects


def _torch_cuda(venv: Venv) -> str | None:
    for directory in venv.import_path:
        package = os.path.join(directory, "torch")
        if os.path.isfile(os.path.join(package, "__init__.py")):
            return torch_cuda_version(package)
    return None


# --- the result ---------------------------------------------------------------------------------------------


def result(facts: Facts, detail: str) -> dict[str, Any]:
    """What the module returns for this venv: ``summary`` has CUDA's objects only, ``full`` every object."""
    problems = _problems.judge(facts)
    return {
        "python": {"version": facts.venv.version, "executable": facts.venv.python},
        "distributions": facts.installed.versions,
        "cuda": _cuda(facts),
        "library_path": library_path(facts.installed),
        "providers": _providers(facts, detail),
        "resolution": _resolution(facts, detail),
        "overlays": _overlays(facts),
        "problems": [problem.as_dict() for problem in problems],
        "verdict": verdict(problems),
    }


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
        {"path": path, "distribution": None, "change": "added", "sha256": _digest(path)}
        for path in unowned_files(facts.installed, facts.venv.site_packages)
    ]
    overlays += [
        {"path": path, "distribution": None, "change": "added", "sha256": _digest(path)}
        for path in facts.declared
        if not facts.owners(path) and path not in {overlay["path"] for overlay in overlays}
    ]
    overlays += [
        {
            "path": altered.path,
            "distribution": altered.distribution.name,
            "change": "altered",
            "sha256": _digest(altered.path),
        }
        for altered in facts.integrity.altered
    ]
    for overlay in overlays:
        overlay["declared"] = facts.declared.get(str(overlay["path"])) == overlay["sha256"]
    return sorted(overlays, key=lambda overlay: str(overlay["path"]))


def _digest(path: str) -> str | None:
    try:
        return sha256_of(path) if os.path.getsize(path) <= _OVERLAY_HASH_LIMIT else None
    except OSError:
        return None
