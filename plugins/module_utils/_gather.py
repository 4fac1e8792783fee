# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a venv's files to its facts. Private to the collection."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass

from ansible_collections.gpufleet.dflash.plugins.module_utils._compute_capability import host_capabilities
from ansible_collections.gpufleet.dflash.plugins.module_utils._deep import DeepFacts, look_deep
from ansible_collections.gpufleet.dflash.plugins.module_utils._drift import compare
from ansible_collections.gpufleet.dflash.plugins.module_utils._elf import ElfError, ElfObject, read_object
from ansible_collections.gpufleet.dflash.plugins.module_utils._findings import Facts
from ansible_collections.gpufleet.dflash.plugins.module_utils._import_plan import (
    is_built_without_gpu,
    torch_cuda_version,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._integrity import (
    check_files,
    unowned_libraries,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._ld_stale import stale_names
from ansible_collections.gpufleet.dflash.plugins.module_utils._ld_system import System
from ansible_collections.gpufleet.dflash.plugins.module_utils._lock import LockEntry
from ansible_collections.gpufleet.dflash.plugins.module_utils._manifest import declared_overlays
from ansible_collections.gpufleet.dflash.plugins.module_utils._removal import foresee
from ansible_collections.gpufleet.dflash.plugins.module_utils._requirements import unmet_requirements
from ansible_collections.gpufleet.dflash.plugins.module_utils._search_paths import (
    python_path,
    weak_library_path,
    weak_run_paths,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._simulation import Outcome, Simulation
from ansible_collections.gpufleet.dflash.plugins.module_utils._symbol_scope import SymbolTables
from ansible_collections.gpufleet.dflash.plugins.module_utils._unit import ignored_lines, process_environment, read_unit
from ansible_collections.gpufleet.dflash.plugins.module_utils._venv import open_venv
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheels import Installed, read_installed


@dataclass(frozen=True)
class Request:
    """What to read and under which circumstances, as the module's options say.

    ``modules_expected``: whether a module of ``imports`` that is not there is a problem.
    """

    venv: str
    imports: Sequence[str] = ("torch",)
    load: Sequence[str] = ()
    ld_library_path: Sequence[str] | None = None
    unit: str | None = None
    verify: str = "size"
    without: Sequence[str] = ()
    lock: Sequence[LockEntry] | None = None
    modules_expected: bool = True
    # ``deep``: undefined symbols, device code and names for dlopen. ``capabilities`` are those of the GPUs, times
    # ten; None asks the driver.
    deep: bool = False
    capabilities: Sequence[int] | None = None


def gather(request: Request, system: System | None = None) -> Facts:
    """Read what the judges need, executing nothing. Raises VenvError, UnitError, UnsupportedLoader.

    ``system`` stands in for this host's loader and its cache.
    """
    venv = open_venv(request.venv)
    environment, directory, ignored = _circumstances(request)
    import_path = tuple(dict.fromkeys((*python_path(environment, directory), *venv.import_path)))
    installed = read_installed(venv.import_path)
    simulation = Simulation(
        venv=venv,
        system=system or System.of_host(venv.python),
        environment=environment,
        directory=directory,
        import_path=import_path,
        imports=request.imports,
        load=request.load,
        symbols=SymbolTables() if request.deep else None,
    )
    outcome = simulation.run()
    torch = _package("torch", import_path)
    objects = _read_objects(installed)
    return Facts(
        venv=venv,
        installed=installed,
        objects=objects,
        attempts=outcome.attempts,
        absent_modules=outcome.absent_modules,
        loaded=outcome.loaded,
        integrity=check_files(installed, request.verify),
        unmet=unmet_requirements(installed.distributions, venv.version),
        ld_library_path=environment.get("LD_LIBRARY_PATH", ""),
        unit=request.unit,
        torch_cuda=torch_cuda_version(torch) if torch else None,
        declared=declared_overlays(venv.path, venv.site_packages[0]),
        hashed=request.verify == "hash",
        import_path=import_path,
        torch_without_cuda=is_built_without_gpu(torch) if torch else False,
        weak_library_path=weak_library_path(environment, directory),
        weak_run_paths=list(weak_run_paths(outcome.loaded, directory)),
        stale_names=stale_names(simulation.system, outcome.attempts, outcome.process),
        unowned_libraries=unowned_libraries(installed, venv.site_packages),
        drift=None
        if request.lock is None
        else compare(request.lock, installed.distributions, venv.site_packages, venv.version),
        removal=foresee(request.without, venv, installed, simulation, outcome) if request.without else None,
        modules_expected=request.modules_expected,
        deep=_look_deep(request, objects, installed, outcome, simulation.symbols) if simulation.symbols else None,
        unit_ignored=ignored,
    )


def _look_deep(
    request: Request, objects: dict[str, ElfObject], installed: Installed, outcome: Outcome, symbols: SymbolTables
) -> DeepFacts:
    deep = look_deep(objects, installed, outcome.process)
    deep.capabilities = host_capabilities() if request.capabilities is None else request.capabilities
    deep.damaged = symbols.damaged
    return deep


def _circumstances(request: Request) -> tuple[dict[str, str], str, tuple[tuple[str, str], ...]]:
    """The environment and working directory that the process would have, and what systemd ignores in its unit."""
    environment: dict[str, str] = {}
    directory = "/"
    ignored: tuple[tuple[str, str], ...] = ()
    if request.unit is not None:
        unit = read_unit(request.unit)
        environment = process_environment(unit, "")
        directory = unit.working_directory or "/"
        ignored = ignored_lines(unit)
    if request.ld_library_path is not None:
        environment["LD_LIBRARY_PATH"] = ":".join(request.ld_library_path)
    return environment, directory, ignored


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


def _package(name: str, import_path: Sequence[str]) -> str | None:
    """Directory of a regular package."""
    found = (os.path.join(directory, name) for directory in import_path)
    return next((path for path in found if os.path.isfile(os.path.join(path, "__init__.py"))), None)
