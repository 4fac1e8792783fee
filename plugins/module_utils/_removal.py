# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What uninstalling distributions would delete and break. Private to the collection.

pip and uv delete every path of a distribution's RECORD inside the environment, whoever else records it too
(pypa/pip#12313, astral-sh/uv#10564). Nothing is deleted here: the plan is predicted again without the files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ansible_collections.gpufleet.dflash.plugins.module_utils._attempt import Attempt
from ansible_collections.gpufleet.dflash.plugins.module_utils._catalogue import normalise
from ansible_collections.gpufleet.dflash.plugins.module_utils._paths import is_hidden
from ansible_collections.gpufleet.dflash.plugins.module_utils._requirements import Unmet, unmet_requirements
from ansible_collections.gpufleet.dflash.plugins.module_utils._simulation import Outcome, Simulation
from ansible_collections.gpufleet.dflash.plugins.module_utils._venv import Venv
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheels import Distribution, Installed


class Failure(NamedTuple):
    """A module or a library of the plan that fails once files are gone: what, and what Python would say.

    ``curable`` tells that forcing back the distributions that stay brings it back.
    """

    target: str
    words: str
    soname: str | None
    object: str | None
    curable: bool


@dataclass
class Removal:
    """What would become of the venv. ``losses`` are the files of those that stay, by their name."""

    going: list[Distribution]
    not_installed: list[str]
    deleted: frozenset[str]
    losses: dict[str, list[str]] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    unmet: list[Unmet] = field(default_factory=list)

    def as_dict(self) -> dict[str, object]:
        """The part of the module's result."""
        return {
            "distributions": [distribution.name for distribution in self.going],
            "not_installed": self.not_installed,
            "files": {name: len(paths) for name, paths in self.losses.items()},
            "failures": [{"target": failure.target, "words": failure.words} for failure in self.failures],
            "requirements": [
                {"requirement": unmet.requirement, "required_by": [owner.name for owner in unmet.required_by]}
                for unmet in self.unmet
            ],
        }


def foresee(names: Iterable[str], venv: Venv, installed: Installed, simulation: Simulation, before: Outcome) -> Removal:
    """Predict ``pip uninstall names``. ``before`` is the plan's outcome as things are."""
    wanted = list(dict.fromkeys(normalise(name) for name in names))
    going = _found(wanted, venv, installed)
    present = {distribution.name for distribution in going}
    deleted, alone = _deleted(going, venv, installed)
    removal = Removal(going, [name for name in wanted if name not in present], deleted)
    if not going:
        return removal
    for path in sorted(deleted - alone):
        for owner in installed.owners(path):
            if owner not in going:
                removal.losses.setdefault(owner.name, []).append(path)
    removal.losses = dict(sorted(removal.losses.items()))
    removal.failures = _failures(simulation, before, deleted, alone)
    removal.unmet = _newly_unmet(installed, going, venv)
    return removal


def _found(names: Sequence[str], venv: Venv, installed: Installed) -> list[Distribution]:
    """The copies that an installer removes: the first of each name in the venv itself, never the base's."""
    found: dict[str, Distribution] = {}
    for distribution in installed.distributions:
        if distribution.name in names and distribution.site_packages in venv.site_packages:
            found.setdefault(distribution.name, distribution)
    return [found[name] for name in names if name in found]


def _deleted(going: Sequence[Distribution], venv: Venv, installed: Installed) -> tuple[frozenset[str], frozenset[str]]:
    """Existing files that the uninstall deletes, and those of them that nobody else owns.

    Byte-compiled files are left out: Python makes them again.
    """
    inside = os.path.realpath(venv.path) + "/"
    deleted = {
        row.path
        for distribution in going
        for row in distribution.files
        if row.path.startswith(inside) and not row.path.endswith(".pyc") and os.path.lexists(row.path)
    }
    alone = {path for path in deleted if all(owner in going for owner in installed.owners(path))}
    return frozenset(deleted), frozenset(alone)


def _failures(simulation: Simulation, before: Outcome, deleted: frozenset[str], alone: frozenset[str]) -> list[Failure]:
    """What fails after the uninstall and works before it: the first failure of each module, each library of load."""
    after = simulation.run(deleted)
    lasting = _broken(before, simulation.run(alone), alone)
    return [
        Failure(target, attempt_words, soname, user, target not in lasting)
        for target, (attempt_words, soname, user) in _broken(before, after, deleted).items()
    ]


def _broken(before: Outcome, after: Outcome, hidden: frozenset[str]) -> dict[str, tuple[str, str | None, str | None]]:
    """{module or library: (Python's words, soname, the object that needs it)} of what broke between two outcomes."""
    broken: dict[str, tuple[str, str | None, str | None]] = {}
    for name in after.absent_modules:
        if name not in before.absent_modules:
            broken[name] = (f"ModuleNotFoundError: No module named '{name}'", None, None)
    failed_before = {(attempt.module, attempt.target) for attempt in before.attempts if attempt.error}
    for attempt in after.attempts:
        if attempt.error and attempt.fatal and (attempt.module, attempt.target) not in failed_before:
            missing = next(iter(attempt.error.missing), None)
            needer = next(iter(missing.needed_by), None) if missing else None
            words = (attempt.words, missing.soname if missing else None, needer)
            broken.setdefault(_subject(attempt), words)
    for attempt in before.attempts:
        # A deleted extension module is no dlopen that fails: Python does not even find the module.
        if attempt.module != "load" and attempt.fatal and not attempt.error and is_hidden(attempt.target, hidden):
            broken.setdefault(attempt.module, (f"ImportError: {attempt.target} is gone", None, attempt.target))
    return broken


def _subject(attempt: Attempt) -> str:
    return attempt.target if attempt.module == "load" else attempt.module


def _newly_unmet(installed: Installed, going: Sequence[Distribution], venv: Venv) -> list[Unmet]:
    """Requirements of those that stay which the uninstall leaves unmet."""
    known = {(unmet.name, unmet.requirement) for unmet in unmet_requirements(installed.distributions, venv.version)}
    staying = [distribution for distribution in installed.distributions if distribution not in going]
    return [
        unmet for unmet in unmet_requirements(staying, venv.version) if (unmet.name, unmet.requirement) not in known
    ]
