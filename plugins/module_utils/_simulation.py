# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Carry out a service's imports and loads in a predicted process. Private to the collection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.gpufleet.dflash.plugins.module_utils._attempt import Attempt
from ansible_collections.gpufleet.dflash.plugins.module_utils._elf import ElfError
from ansible_collections.gpufleet.dflash.plugins.module_utils._import_plan import import_module, load_file
from ansible_collections.gpufleet.dflash.plugins.module_utils._ld_system import System
from ansible_collections.gpufleet.dflash.plugins.module_utils._loader import (
    LoadedObject,
    LoadError,
    Process,
    SymbolTables,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._venv import Venv, VenvError


@dataclass(frozen=True)
class Outcome:
    """What the plan tried, which of its modules are not there, what is loaded after it, in load order, and the
    process at that time.
    """

    attempts: list[Attempt]
    absent_modules: list[str]
    loaded: list[LoadedObject]
    process: Process


@dataclass(frozen=True)
class Simulation:
    """A service's process and its plan: ``imports``, then ``load``, in its environment and working directory."""

    venv: Venv
    system: System
    environment: Mapping[str, str]
    directory: str
    import_path: Sequence[str]
    imports: Sequence[str]
    load: Sequence[str]
    # With these, loading fails for undefined symbols too; they are read once for all runs.
    symbols: SymbolTables | None = None

    def run(self, hidden: frozenset[str] = frozenset()) -> Outcome:
        """Predict it, with ``hidden`` canonical paths treated as absent. Raises VenvError when Python cannot start."""
        process = self._start(hidden)
        attempts: list[Attempt] = []
        absent: list[str] = []
        for name in self.imports:
            plan = import_module(
                process,
                name,
                self.import_path,
                self.venv.version,
                environment=self.environment,
                hidden=hidden,
                standard_library=self.venv.standard_library,
            )
            attempts += plan or []
            absent += [name] if plan is None else []
        attempts += [load_file(process, target) for target in self.load]
        return Outcome(attempts, absent, list(process.loaded), process)

    def _start(self, hidden: frozenset[str]) -> Process:
        process = Process(
            self.system, environment=self.environment, cwd=self.directory, hidden=hidden, symbols=self.symbols
        )
        try:
            process.start(self.venv.python)
        except (LoadError, ElfError) as error:
            raise VenvError(
                f"the venv's interpreter cannot start: {self.venv.python}: {error}: "
                "install that Python or build the venv anew"
            ) from None
        return process
