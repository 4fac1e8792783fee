# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Examine the venvs that a call of cuda_wheel_facts names or finds. Private to the collection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ansible_collections.gpufleet.dflash.plugins.module_utils._compute_capability import (
    CapabilityError,
    capabilities_of,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._discovery import find_venvs
from ansible_collections.gpufleet.dflash.plugins.module_utils._facts import (
    damaged,
    result,
    summary_line,
    summary_of_many,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._gather import Request, gather
from ansible_collections.gpufleet.dflash.plugins.module_utils._ld_system import UnsupportedLoader
from ansible_collections.gpufleet.dflash.plugins.module_utils._lock import LockEntry, LockError, read_lock
from ansible_collections.gpufleet.dflash.plugins.module_utils._unit import UnitError
from ansible_collections.gpufleet.dflash.plugins.module_utils._venv import VenvError

_DEFAULT_IMPORTS = ("torch",)


class ExaminationError(Exception):
    """What was asked for cannot be done; the text says what is wrong, where, and what to do."""


class Examination(NamedTuple):
    """The facts by venv, all their problems, one line for people, and what could not be looked at."""

    venvs: dict[str, dict[str, Any]]
    problems: list[dict[str, Any]]
    summary: str
    notes: list[str]


def examine_all(options: Mapping[str, Any]) -> Examination:
    """Examine ``venv``, or every venv below ``discover``. Raises ExaminationError."""
    _refuse_nul(options)
    discovered = find_venvs(options["discover"]) if options["discover"] is not None else None
    paths = [options["venv"]] if discovered is None else discovered.venvs
    venvs = {}
    try:
        lock = _lock(options)
        for path in paths:
            venvs[path] = _examine(path, options, lock, alone=discovered is None)
    except (VenvError, UnitError, LockError, CapabilityError, UnsupportedLoader, OSError) as error:
        raise ExaminationError(str(error)) from error
    # Each problem says whose it is: a list of several venvs' problems is of no use without.
    for path, facts in venvs.items():
        facts["problems"] = [{"venv": path, **problem} for problem in facts["problems"]]
    problems = [problem for facts in venvs.values() for problem in facts["problems"]]
    return Examination(
        venvs,
        sorted(problems, key=lambda problem: problem["severity"] != "error"),
        summary_line(venvs[options["venv"]]) if discovered is None else summary_of_many(venvs),
        [*(discovered.notes if discovered else []), *_not_installed(venvs)],
    )


def _examine(path: str, options: Mapping[str, Any], lock: tuple[LockEntry, ...] | None, alone: bool) -> dict[str, Any]:
    request = Request(
        venv=path,
        imports=_DEFAULT_IMPORTS if options["imports"] is None else options["imports"],
        load=options["load"],
        ld_library_path=options["ld_library_path"],
        unit=options["unit"],
        verify=options["verify"],
        without=options["without"],
        lock=lock,
        # torch is what most ask about: where nobody named it, and it is not there, nobody misses it.
        modules_expected=alone and options["imports"] is not None,
        deep=options["deep"],
        capabilities=None
        if options["compute_capabilities"] is None
        else capabilities_of(options["compute_capabilities"]),
    )
    if alone:
        return result(gather(request), options["detail"])
    try:
        return result(gather(request), options["detail"])
    except (VenvError, UnsupportedLoader, OSError) as error:
        # One venv that cannot be read is its own problem and nobody else's.
        return damaged(path, str(error))


def _not_installed(venvs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Names of ``without`` that no examined venv has: a slip of the pen, more often than not."""
    removals = [facts["removal"] for facts in venvs.values() if facts["removal"]]
    absent = [set(removal["not_installed"]) for removal in removals]
    names = sorted(set.intersection(*absent)) if absent else []
    return [f"{name} is not installed: without: nothing would be uninstalled by that name" for name in names]


def _refuse_nul(options: Mapping[str, Any]) -> None:
    """No path, name or variable can hold a NUL character; the system calls would say so less clearly."""
    for name, value in options.items():
        texts = value if isinstance(value, list) else [value]
        if name != "lock_content" and any("\0" in text for text in texts if isinstance(text, str)):
            raise ExaminationError(f"a NUL character: {name}: take it out")


def _lock(options: Mapping[str, Any]) -> tuple[LockEntry, ...] | None:
    if options["lock_content"] is None:
        if options["lock"] is not None:
            raise ExaminationError(
                f"the lock was not read: {options['lock']}: call the module as gpufleet.dflash.cuda_wheel_facts, "
                "so that its action plugin reads it on the controller"
            )
        return None
    return read_lock(options["lock_content"], options["lock"] or "lock")
