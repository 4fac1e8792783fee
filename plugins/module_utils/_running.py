# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a running service, or any process, has mapped: does it still run what is on disk?

Private to the collection. Nothing is loaded and nothing is started: it is safe beside a loaded GPU.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.gpufleet.dflash.plugins.module_utils import _unit
from ansible_collections.gpufleet.dflash.plugins.module_utils._check_request import CheckError
from ansible_collections.gpufleet.dflash.plugins.module_utils._load_errors import Place, Problem, problem
from ansible_collections.gpufleet.dflash.plugins.module_utils._mapped import (
    Owners,
    cuda_libraries,
    duplicates,
    inside_of,
    outside,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._prediction import combined
from ansible_collections.gpufleet.dflash.plugins.module_utils._privilege import NEEDS_ROOT
from ansible_collections.gpufleet.dflash.plugins.module_utils._probe_request import command_line_of
from ansible_collections.gpufleet.dflash.plugins.module_utils._process_maps import (
    Mapping,
    descendants,
    mapped_by,
    members_of_group,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._systemd import Systemd, SystemdError
from ansible_collections.gpufleet.dflash.plugins.module_utils._venv import Venv, VenvError, open_venv
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheels import is_shared_object, read_installed

# Directories of the operating system: what is replaced there, an upgrade has replaced.
_SYSTEM = ("/usr/", "/lib/", "/lib64/", "/opt/")
_LISTED = 20


@dataclass(frozen=True)
class _Stale:
    """A mapped file that a restart would exchange: replaced, deleted, or of another environment."""

    path: str
    reason: str
    pids: tuple[int, ...]

    def as_dict(self) -> dict[str, Any]:
        return {"path": _text(self.path), "reason": self.reason, "pids": list(self.pids)}


def check_running(venv: str | None, unit: str | None, pid: int | None) -> dict[str, Any]:
    """Return what the processes of a unit, or a process and its descendants, have mapped.

    ``venv`` is what they should run from; by default that of the first process. Raises CheckError, UnitError or
    VenvError.
    """
    name, pids = _processes(unit, pid)
    mappings: list[Mapping] = []
    for member in pids:
        try:
            mappings += mapped_by(member)
        except PermissionError:
            raise CheckError(
                f"cannot read what process {member} has mapped: permission denied: {NEEDS_ROOT}, or set become: true "
                "on the task"
            ) from None
    if not mappings:
        raise CheckError(f"{name} has ended: there is nothing to look at")
    environment = open_venv(venv) if venv else _environment_of(pids)
    return _result(name, pids, mappings, environment)


def _processes(unit: str | None, pid: int | None) -> tuple[str, list[int]]:
    if pid is not None:
        if pid < 1 or not os.path.isdir(f"/proc/{pid}"):
            raise CheckError(f"there is no process {pid}: pid: give that of a running process")
        return f"process {pid}", descendants(pid)
    if unit is None:
        raise CheckError("running needs a unit or a pid: give one of them")
    unit_name = os.path.basename(unit) if unit.startswith("/") else unit
    unit_name = unit_name if "." in unit_name else f"{unit_name}.service"
    try:
        state = Systemd().show(unit_name)
    except SystemdError as error:
        raise CheckError(str(error)) from None
    if state.load_state == "not-found":
        raise _unit.UnitError(f"there is no such unit: {unit_name}: check the name with `systemctl list-units --all`")
    pids = members_of_group(state.control_group) if state.control_group else []
    if not state.main_pid or not pids:
        raise CheckError(f"{unit_name} does not run ({state.active_state}): start it, or leave out running")
    return unit_name, [state.main_pid, *(member for member in pids if member != state.main_pid)]


def _environment_of(pids: Sequence[int]) -> Venv | None:
    """Return the venv of the first process that was started from one."""
    for pid in pids:
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as stream:
                program = os.fsdecode(stream.read(65536).split(b"\0")[0])
        except OSError:
            continue
        directory = os.path.dirname(os.path.dirname(program))
        if program.startswith("/") and os.path.isfile(f"{directory}/pyvenv.cfg"):
            try:
                return open_venv(directory)
            except VenvError:
                continue
    return None


def _result(name: str, pids: Sequence[int], mappings: Sequence[Mapping], venv: Venv | None) -> dict[str, Any]:
    installed = read_installed(venv.import_path if venv else ())
    owners = Owners(installed)
    stale = _stale(mappings, venv, owners)
    paths = sorted({mapping.path for mapping in mappings if mapping.state == "same"})
    libraries = cuda_libraries(owners, [path for path in paths if is_shared_object(path)], {})
    place = Place(venv.path if venv else "", installed, (), name, "")
    problems = [_judged(name, stale)] if stale else []
    if venv is not None:
        others = {entry.path for entry in stale}
        inside = [library for library in libraries if library.path not in others]
        problems += [*outside(inside, venv, place), *duplicates(libraries)]
        problems += combined(venv, installed, (), libraries)
    return {
        "ok": True,
        "restart_needed": bool(stale),
        "venv": venv.path if venv else None,
        "processes": [{"pid": pid, "command": command_line_of(pid)} for pid in pids],
        "stale": [entry.as_dict() for entry in stale],
        "libraries": [library.as_dict() for library in libraries],
        "problems": problems,
    }


def _stale(mappings: Sequence[Mapping], venv: Venv | None, owners: Owners) -> list[_Stale]:
    inside = inside_of(venv) if venv else ()
    base = (os.path.dirname(os.path.dirname(venv.python)) + "/",) if venv else ()
    found: dict[tuple[str, str], list[int]] = {}
    for mapping in mappings:
        path = mapping.path
        reason = mapping.state if _matters(path, (*inside, *base, *_SYSTEM), owners, venv) else "same"
        if reason == "same" and venv is not None and is_shared_object(path) and not path.startswith(inside):
            reason = "other-environment" if not owners.of(path) and _other_environment(path) else "same"
        if reason != "same":
            found.setdefault((path, reason), []).append(mapping.pid)
    return [_Stale(path, reason, tuple(sorted(set(pids)))) for (path, reason), pids in sorted(found.items())]


def _matters(path: str, places: tuple[str, ...], owners: Owners, venv: Venv | None) -> bool:
    """Tell whether a file is code that an installation brought: compilers delete what they have generated."""
    if venv is not None and path == venv.python:
        return True
    return is_shared_object(path) and (path.startswith(places) or bool(cuda_libraries(owners, [path], {})))


def _other_environment(path: str) -> bool:
    """Tell whether a file lies in a virtual environment."""
    directory = os.path.dirname(path)
    while directory not in ("", "/"):
        if os.path.isfile(f"{directory}/pyvenv.cfg"):
            return True
        directory = os.path.dirname(directory)
    return False


_REASONS = {
    "replaced": "replaced on disk",
    "deleted": "deleted from the disk",
    "other-environment": "of another environment",
}


def _judged(name: str, stale: Sequence[_Stale]) -> Problem:
    counts = {reason: sum(entry.reason == reason for entry in stale) for reason in _REASONS}
    parts = [f"{count} {_REASONS[reason]}" for reason, count in counts.items() if count]
    first = stale[0]
    pids = sorted({pid for entry in stale for pid in entry.pids})
    how = f"systemctl restart {name}" if name.endswith(".service") else f"restart {name}"
    return problem(
        "stale-map",
        f"{name} runs code that is not what is installed: of its mapped files {' and '.join(parts)}, such as "
        f"{_text(first.path)}",
        f"{how}: until then it runs the old files, and what it loads next may not fit them",
        paths=[_text(entry.path) for entry in stale[:_LISTED]],
        evidence=f"processes {', '.join(str(pid) for pid in pids[:_LISTED])}; {len(stale)} files",
    )


def _text(path: str) -> str:
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
