# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a problem is, and the facts behind it. Private to the collection."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from ansible_collections.gpufleet.dflash.plugins.module_utils._catalogue import cuda_major_of
from ansible_collections.gpufleet.dflash.plugins.module_utils._deep import DeepFacts
from ansible_collections.gpufleet.dflash.plugins.module_utils._drift import Drift
from ansible_collections.gpufleet.dflash.plugins.module_utils._elf import ElfObject
from ansible_collections.gpufleet.dflash.plugins.module_utils._import_plan import Attempt
from ansible_collections.gpufleet.dflash.plugins.module_utils._integrity import Integrity
from ansible_collections.gpufleet.dflash.plugins.module_utils._kinds import KINDS
from ansible_collections.gpufleet.dflash.plugins.module_utils._ld_stale import Stale
from ansible_collections.gpufleet.dflash.plugins.module_utils._loader import LoadedObject
from ansible_collections.gpufleet.dflash.plugins.module_utils._printable import printable
from ansible_collections.gpufleet.dflash.plugins.module_utils._removal import Removal
from ansible_collections.gpufleet.dflash.plugins.module_utils._requirements import Unmet
from ansible_collections.gpufleet.dflash.plugins.module_utils._search_paths import WeakElement
from ansible_collections.gpufleet.dflash.plugins.module_utils._venv import Venv
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheels import Distribution, Installed

# Paths of a problem beyond this many are counted in its evidence, not listed: a gutted torch misses ten
# thousand files.
PATHS_LISTED = 20


@dataclass(frozen=True)
class Problem:
    """One finding. ``message`` is one sentence; ``fix`` is what to type or change."""

    kind: str
    message: str
    fix: str
    object: str | None = None
    soname: str | None = None
    distributions: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    evidence: str = ""
    severity: str = field(default="")

    @property
    def level(self) -> str:
        """``error`` or ``warning``: the kind's own, unless the judge knew better."""
        return self.severity or KINDS[self.kind]

    def as_dict(self) -> dict[str, Any]:
        """The problem as the module returns it."""
        found = asdict(self)
        found.update({key: printable(found[key]) for key in ("message", "fix", "evidence")})
        found["severity"] = self.level
        found["distributions"] = list(self.distributions)
        found["paths"] = list(self.paths[:PATHS_LISTED])
        return found


@dataclass
class Facts:
    """What the judges read: one venv, its files, and what the import plan loads."""

    venv: Venv
    installed: Installed
    objects: dict[str, ElfObject]
    attempts: list[Attempt]
    absent_modules: list[str]
    loaded: list[LoadedObject]
    integrity: Integrity
    unmet: list[Unmet]
    ld_library_path: str
    unit: str | None
    torch_cuda: str | None
    # {path: SHA-256} of the files that a generation's recipe laid over its packages on purpose.
    declared: dict[str, str] = field(default_factory=dict)
    # Every file is compared by its content, however large it is.
    hashed: bool = False
    # Where Python looks for modules: PYTHONPATH and the venv's own import path.
    import_path: tuple[str, ...] = ()
    # torch is there and was built for no GPU at all.
    torch_without_cuda: bool = False
    weak_library_path: list[WeakElement] = field(default_factory=list)
    weak_run_paths: list[WeakElement] = field(default_factory=list)
    stale_names: list[Stale] = field(default_factory=list)
    unowned_libraries: list[str] = field(default_factory=list)
    drift: Drift | None = None
    removal: Removal | None = None
    # Whether a module of the plan that is not installed is a fault: not when venvs of all kinds are looked at.
    modules_expected: bool = True
    deep: DeepFacts | None = None
    # What systemd ignores in the unit: a sentence, and what to do.
    unit_ignored: tuple[tuple[str, str], ...] = ()

    def owners(self, path: str) -> list[Distribution]:
        """Distributions that own a file, by the path that the loader used or the real one."""
        return self.installed.owners(path) or self.installed.owners(os.path.realpath(path))

    def needer(self, loaded: LoadedObject) -> str | None:
        """The object that needed another; None for what the plan itself loads, through the interpreter."""
        return None if loaded.needed_by == self.venv.python else loaded.needed_by

    def major_beside(self, names: Iterable[str]) -> int | None:
        """The CUDA major of the venv without these distributions: torch's, else the others' only one."""
        others = {cuda_major_of(name) for name in self.installed.versions if name not in names} - {None}
        return self.cuda_major or (others.pop() if len(others) == 1 else None)

    @property
    def cuda_major(self) -> int | None:
        """The CUDA major that torch was built for, None where there is no CUDA torch."""
        return int(self.torch_cuda.split(".")[0]) if self.torch_cuda else None


def verdict(problems: Iterable[Problem]) -> str:
    """The worst severity: ``ok``, ``warning`` or ``error``."""
    severities = {problem.level for problem in problems}
    return next((level for level in ("error", "warning") if level in severities), "ok")
