# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What cuda_wheel_facts would predict for a check's process, and how the mapped files differ from it.

Private to the collection.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.gpufleet.dflash.plugins.module_utils import _judge_combinations, _judge_loading
from ansible_collections.gpufleet.dflash.plugins.module_utils._attempt import Attempt
from ansible_collections.gpufleet.dflash.plugins.module_utils._findings import Facts
from ansible_collections.gpufleet.dflash.plugins.module_utils._integrity import Integrity
from ansible_collections.gpufleet.dflash.plugins.module_utils._ld_system import System, UnsupportedLoader
from ansible_collections.gpufleet.dflash.plugins.module_utils._loader import LoadedObject
from ansible_collections.gpufleet.dflash.plugins.module_utils._mapped import Library, Owners, cuda_libraries
from ansible_collections.gpufleet.dflash.plugins.module_utils._plan_torch import torch_cuda_in
from ansible_collections.gpufleet.dflash.plugins.module_utils._repair import Repair
from ansible_collections.gpufleet.dflash.plugins.module_utils._requirements import unmet_requirements
from ansible_collections.gpufleet.dflash.plugins.module_utils._search_paths import python_path
from ansible_collections.gpufleet.dflash.plugins.module_utils._simulation import Simulation
from ansible_collections.gpufleet.dflash.plugins.module_utils._venv import Venv, VenvError
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheels import Installed


@dataclass
class Prediction:
    """What the plan tries and what is loaded after it; ``failure`` says why there is no prediction."""

    venv: Venv
    attempts: list[Attempt] = field(default_factory=list)
    loaded: list[LoadedObject] = field(default_factory=list)
    failure: str | None = None

    def differences(self, mapped: Sequence[Library], owners: Owners) -> list[dict[str, Any]] | None:
        """How the mapped CUDA libraries differ from it; None where nothing could be predicted."""
        return None if self.failure is not None else list(_differences(self.loaded, mapped, owners))

    def judged(self, installed: Installed, mapped: Sequence[Library]) -> list[dict[str, Any]]:
        """The problems of what is mapped together, and of preloads that stopped."""
        return combined(self.venv, installed, self.attempts, mapped)


def predict(
    venv: Venv, environment: Mapping[str, str], directory: str, imports: Sequence[str], dlopen: Sequence[str]
) -> Prediction:
    """Predict the process of a check, executing nothing."""
    try:
        simulation = Simulation(
            venv=venv,
            system=System.of_host(venv.python),
            environment=environment,
            directory=directory,
            import_path=tuple(dict.fromkeys((*python_path(environment, directory), *venv.import_path))),
            imports=imports,
            load=dlopen,
        )
        outcome = simulation.run()
    except (UnsupportedLoader, VenvError, OSError) as error:
        return Prediction(venv, failure=str(error))
    return Prediction(venv, outcome.attempts, outcome.loaded)


def _differences(loaded: Sequence[LoadedObject], mapped: Sequence[Library], owners: Owners) -> Iterator[dict[str, Any]]:
    """Each CUDA library that is not mapped as predicted: unexpected-origin, not-loaded or not-predicted."""
    by_path = {os.path.realpath(item.path): item for item in loaded}
    predicted = {library.path: by_path[library.path] for library in cuda_libraries(owners, list(by_path), {})}
    identities = {_identity(path) for path in predicted} - {None}
    real = {library.path for library in mapped}
    mapped_identities = {_identity(path) for path in real} - {None}
    # One file may be mapped by another of its hard links.
    missing = {p: item for p, item in predicted.items() if p not in real and _identity(p) not in mapped_identities}
    for library in mapped:
        if library.path in predicted or _identity(library.path) in identities:
            continue
        twins = [path for path, item in missing.items() if library.name in (os.path.basename(path), item.soname)]
        for path in twins[:1]:
            item = missing.pop(path)
            yield _difference("unexpected-origin", item.soname or library.name, library.path, item)
        if not twins:
            yield _difference("not-predicted", library.name, library.path, None)
    for item in missing.values():
        yield _difference("not-loaded", item.soname or os.path.basename(item.path), None, item)


def _difference(kind: str, soname: str, path: str | None, predicted: LoadedObject | None) -> dict[str, Any]:
    return {
        "difference": kind,
        "soname": soname,
        "path": path,
        "predicted": predicted.path if predicted else None,
        "rule": predicted.rule if predicted else None,
    }


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def combined(
    venv: Venv, installed: Installed, attempts: Sequence[Attempt], mapped: Sequence[Library]
) -> list[dict[str, Any]]:
    """Two CUDA majors in the process, and preloads that stopped: judged as cuda_wheel_facts does, but as seen."""
    names = {library.name for library in mapped}
    stopped = [
        attempt
        for attempt in attempts
        if attempt.stops and attempt.error and not all(os.path.basename(path) in names for path in attempt.unreached)
    ]
    loaded = [LoadedObject(item.path, item.path, item.name, "loaded", None) for item in mapped]
    facts = Facts(
        venv=venv,
        installed=installed,
        objects={},
        attempts=stopped,
        absent_modules=[],
        loaded=loaded,
        integrity=Integrity(),
        unmet=unmet_requirements(installed.distributions, venv.version) if stopped else [],
        ld_library_path="",
        unit=None,
        torch_cuda=torch_cuda_in(venv.import_path),
    )
    repair = Repair(venv, installed)
    found = [*_judge_combinations.mixed_majors(facts, repair), *_judge_loading.preload_stops(facts, repair)]
    return [problem.as_dict() for problem in found]
