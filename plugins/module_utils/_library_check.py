# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Load modules and libraries of a venv as a service will, and say what came of it.

Private to the collection. A request becomes a probe's request (who, where, with which environment), the
probe's reports become results, and what failed becomes problems.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.gpufleet.dflash.plugins.module_utils import _catalogue, _unit
from ansible_collections.gpufleet.dflash.plugins.module_utils._load_errors import (
    Failure,
    Place,
    Problem,
    explain,
    holders_of,
    problem,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._probe_end import (
    TAIL,
    attempt_of,
    death,
    untried,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._probe_process import (
    Identity,
    ProbeOutcome,
    ProbeRequest,
    run_probe,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._systemd_defaults import base_environment
from ansible_collections.gpufleet.dflash.plugins.module_utils._systemd_syntax import split_all, valid_name
from ansible_collections.gpufleet.dflash.plugins.module_utils._venv import Venv, open_venv
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheels import Installed, read_installed

# Names of CUDA's libraries; the driver's are among them. Broad words would match libcurl and libncurses.
_CUDA_LIBRARY = re.compile(
    r"lib(cuda|cudart|cudnn|cublas|cufft|cufile|curand|cusolver|cusparse|cupti|nccl|nvrtc|nvjitlink|nvjpeg|nvtx"
    r"|nvtoolsext|nvshmem|nvblas|nvcuvid|nvidia-|cudadebugger)[\w.-]*\.so",
    re.IGNORECASE,
)
_DRIVER_LIBRARY = re.compile(r"lib(cuda|nvidia-[\w-]+|nvcuvid|cudadebugger)\.so(\.|\Z)")
# An account of a unit with DynamicUser= exists only while the unit runs; this one has as few rights.
_DYNAMIC_USER = "nobody"


class CheckError(Exception):
    """The check cannot be made; the text says what is wrong, where, and what to do."""


@dataclass(frozen=True)
class CheckRequest:
    """What to load in which venv, and as which process: that of ``unit``, or the one that the rest describes.

    ``environment`` is what the process gets besides what systemd gives every process; ``timeout`` in seconds.
    """

    venv: str
    imports: Sequence[str] = ()
    dlopen: Sequence[str] = ()
    unit: str | None = None
    environment: Mapping[str, Any] | None = None
    user: str | None = None
    group: str | None = None
    working_directory: str | None = None
    timeout: float = 300


@dataclass(frozen=True)
class _Subject:
    """Everything that the judgement of an outcome refers to."""

    request: CheckRequest
    venv: Venv
    installed: Installed
    place: Place
    working_directory: str


def check(request: CheckRequest) -> dict[str, Any]:
    """Load everything and return the module's result.

    Raises CheckError, UnitError or VenvError when the request itself is impossible; whatever the probed code
    does is a result.
    """
    venv = open_venv(request.venv)
    if request.timeout <= 0:
        raise CheckError(f"timeout must be more than 0 seconds, not {request.timeout:g}")
    if not request.imports and not request.dlopen:
        raise CheckError("there is nothing to load: give imports, dlopen, or both")
    probe, user, whose, unit = _probe_request(request, venv)
    place = Place(
        venv=venv.path,
        installed=read_installed(venv.import_path),
        library_path=tuple(filter(None, re.split("[:;]", probe.environment.get("LD_LIBRARY_PATH", "")))),
        whose=whose,
        user=user,
    )
    subject = _Subject(request, venv, place.installed, place, probe.working_directory)
    outcome = run_probe(probe)
    result = _result(subject, outcome)
    result["user"] = user
    result["ld_library_path"] = list(place.library_path)
    if unit is not None:
        result["unit"] = {"name": unit.name, "path": unit.path, "drop_ins": list(unit.drop_ins)}
        result["problems"] += [_unit_note(unit, note) for note in unit.notes]
    return result


def summary(request: CheckRequest, result: Mapping[str, Any]) -> str:
    """Return one message for a result that is not ok: what, where, why, and what to do."""
    loads = [*result["imports"], *result["dlopen"]]
    failed = [entry.get("name") or entry["soname"] for entry in loads if not entry["ok"]]
    what = f"cannot load {', '.join(failed)}" if failed else "the interpreter did not reach its end"
    where = f"in {request.venv} as user {result['user']}"
    if request.unit is not None:
        where += f" (unit {result['unit']['name']})"
    errors = [entry for entry in result["problems"] if entry["severity"] == "error"]
    causes = "; ".join(f"{entry['message']}: {entry['fix']}" for entry in errors[:3])
    more = f"; and {len(errors) - 3} more in `problems`" if len(errors) > 3 else ""
    return f"{what}: {where}: {causes}{more}"


def _unit_note(unit: _unit.UnitEnvironment, note: str) -> Problem:
    return problem(
        "environment-malformed",
        f"{note} ({unit.name})",
        f"correct it in {unit.path} or its drop-ins",
    )


def _probe_request(request: CheckRequest, venv: Venv) -> tuple[ProbeRequest, str, str, _unit.UnitEnvironment | None]:
    """Return the probe's request, the user's name, who sets the environment, and the unit."""
    invocation = uuid.uuid4().hex
    plain = ProbeRequest(
        python=f"{venv.path}/bin/python",
        imports=request.imports,
        dlopen=request.dlopen,
        environment={},
        invocation=invocation,
        timeout=request.timeout,
    )
    if request.unit is None:
        user = request.user or _caller()
        environment = {**base_environment(user, invocation), **_texts(request.environment or {})}
        plain = replace(
            plain,
            environment=environment,
            identity=identity_of(user, request.group, ()) if request.user or request.group else None,
            working_directory=request.working_directory or "/",
        )
        return plain, user, "the environment", None
    unit = _unit.read_unit(request.unit)
    user = unit.user or "root"
    if unit.dynamic_user and not _exists(user if unit.user else ""):
        user = _DYNAMIC_USER
    process = replace(
        plain,
        environment=_unit.process_environment(unit, invocation),
        identity=identity_of(user, unit.group, unit.supplementary_groups),
        working_directory=unit.working_directory or "/",
        working_directory_optional=unit.working_directory_optional,
        current_directory_on_path=_starts_a_module(unit.exec_start),
        umask=unit.umask,
        limits=unit.limits,
    )
    return process, user, f"unit {unit.name}", unit


def _texts(environment: Mapping[str, Any]) -> dict[str, str]:
    """Return variables as text; raises CheckError for what is not a variable."""
    for name, value in environment.items():
        if not valid_name(name):
            raise CheckError(f"not the name of an environment variable: environment: {name!r}: correct it")
        # YAML reads yes, on and null as no text at all; what the author meant is anybody's guess.
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise CheckError(f"not a text: environment: {name}: {value!r}: put the value into quotes")
        if "\0" in str(value):
            raise CheckError(f"a value cannot hold a NUL character: environment: {name}: take it out")
    return {name: str(value) for name, value in environment.items()}


def _starts_a_module(command: str) -> bool:
    """Tell whether a command is `python -m` or `python -c`, which search the current directory first."""
    words = split_all([command], [])
    if not words or not os.path.basename(words[0]).startswith("python"):
        return False
    for word in words[1:]:
        if not word.startswith("-") or word in ("-I", "-P"):
            return False
        if word in ("-m", "-c"):
            return True
    return False


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def identity_of(user: str | None, group: str | None, more_groups: Sequence[str]) -> Identity | None:
    """Return the numbers of a user as systemd resolves them; None when that is who we are already.

    Raises CheckError for an unknown account, or when we may not become that user.
    """
    try:
        entry = pwd.getpwuid(int(user)) if user and user.isdigit() else pwd.getpwnam(user or "root")
    except KeyError:
        raise CheckError(
            f"there is no user {user} on this host: create the account before the check, or correct the name"
        ) from None
    gid = _group(group) if group else entry.pw_gid
    if os.geteuid() != 0:
        if entry.pw_uid == os.geteuid():
            return None
        me = pwd.getpwuid(os.geteuid()).pw_name
        raise CheckError(f"user {me} cannot run the check as user {entry.pw_name}: set become: true on the task")
    groups = {*os.getgrouplist(entry.pw_name, gid), *(_group(name) for name in more_groups)}
    return Identity(entry.pw_uid, gid, tuple(sorted(groups)))


def _caller() -> str:
    """Return our own account; a container's user may have a number and no name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _group(name: str) -> int:
    try:
        return int(name) if name.isdigit() else grp.getgrnam(name).gr_gid
    except KeyError:
        raise CheckError(f"there is no group {name} on this host: create it, or correct the name") from None


def _result(subject: _Subject, outcome: ProbeOutcome) -> dict[str, Any]:
    done = {(event["kind"], event["name"]): event for event in outcome.events if event["event"] == "done"}
    begun = [(event["kind"], event["name"]) for event in outcome.events if event["event"] == "begin"]
    suspect = next((key for key in reversed(begun) if key not in done), None)
    died = death(outcome, subject.place, suspect, subject.request.timeout)
    problems = [died] if died else []
    entries: dict[str, list[dict[str, Any]]] = {"import": [], "dlopen": []}
    for kind, names in (("import", subject.request.imports), ("dlopen", subject.request.dlopen)):
        for name in names:
            event = done.get((kind, name))
            entry = _entry(kind, name, event)
            if event is None:
                entry["error"] = untried(outcome, suspect, (kind, name))
            elif not event["ok"]:
                problems += explain(_failure(kind, name, event), subject.place)
            entries[kind].append(entry)
    for entry in entries["dlopen"]:
        entry["distribution"] = _owner(subject.installed, entry["path"])[0]
    mapped: list[str] = next((event["paths"] for event in outcome.events if event["event"] == "maps"), [])
    libraries = list(_libraries(subject, mapped))
    problems += _unexpected(subject, entries["import"], libraries)
    interpreter = next((event for event in outcome.events if event["event"] == "interpreter"), {})
    everything = [*entries["import"], *entries["dlopen"]]
    return {
        "ok": died is None and all(entry["ok"] for entry in everything),
        "end": {"how": outcome.end, "status": outcome.status},
        "interpreter": {key: interpreter.get(key) for key in ("version", "prefix", "base_prefix")},
        "imports": entries["import"],
        "dlopen": entries["dlopen"],
        "libraries": libraries,
        "processes_left": outcome.left,
        "stdout": outcome.stdout[-TAIL:],
        "stderr": outcome.stderr[-TAIL:],
        "problems": _merged(problems),
    }


def _entry(kind: str, name: str, event: dict[str, Any] | None) -> dict[str, Any]:
    entry: dict[str, Any] = {"name" if kind == "import" else "soname": name}
    event = event or {"ok": False}
    error = event.get("error")
    entry["ok"] = bool(event["ok"])
    entry["path"] = event.get("path")
    if kind == "import":
        entry["version"] = event.get("version")
    entry["seconds"] = event.get("seconds")
    entry["error_type"] = error["type"] if error else None
    entry["error"] = error["message"] if error else None
    return entry


def _failure(kind: str, name: str, event: dict[str, Any]) -> Failure:
    error = event["error"]
    return Failure(attempt_of(kind, name), "\n".join(error["chain"]), error["path"], event.get("blocked", ()))


def _owner(installed: Installed, path: str | None) -> tuple[str | None, str | None]:
    """Return name and version of the distribution that owns a file, by the given path or the real one."""
    if not path:
        return None, None
    owners = installed.owners(path) or installed.owners(os.path.realpath(path)) or _linked(installed).get(path, [])
    return (owners[0].name, owners[0].version) if owners else (None, None)


def _linked(installed: Installed) -> dict[str, list[Any]]:
    """Return the owners by the real path: installers may link a venv's files to their cache."""
    return {os.path.realpath(path): owners for path, owners in installed.libraries().items() if os.path.islink(path)}


def _libraries(subject: _Subject, mapped: Sequence[str]) -> Iterator[dict[str, Any]]:
    for path in mapped:
        name, version = _owner(subject.installed, path)
        nvidia = name is not None and (name.startswith("nvidia-") or _catalogue.wheel_of(name) is not None)
        if nvidia or _CUDA_LIBRARY.match(os.path.basename(path)):
            yield {"path": path, "distribution": name, "version": version}


def _unexpected(
    subject: _Subject, imports: Sequence[dict[str, Any]], libraries: Sequence[dict[str, Any]]
) -> Iterator[Problem]:
    inside = tuple(os.path.realpath(p) + "/" for p in (subject.venv.path, *subject.venv.import_path))
    base = os.path.dirname(os.path.dirname(subject.venv.python)) + "/lib"
    for entry in imports:
        path = entry["path"]
        if path and not os.path.realpath(path).startswith((*inside, base)):
            yield problem(
                "resolved-outside-venv",
                f"module {entry['name']} comes from {path}, not from {subject.venv.path}",
                f"look at PYTHONPATH in {subject.place.whose} and into {subject.working_directory}",
                paths=[path],
            )
    names: dict[str, list[str]] = {}
    for library in libraries:
        path = library["path"]
        soname = os.path.basename(path)
        names.setdefault(soname, []).append(path)
        if library["distribution"] is None and not path.startswith(inside) and not _DRIVER_LIBRARY.match(soname):
            yield problem(
                "resolved-outside-venv",
                f"{soname} comes from this host ({path}), not from a wheel: another host may not have it",
                _inward(soname, subject),
                soname=soname,
                distributions=_catalogue.distributions_of(soname),
                paths=[path],
            )
    for soname, paths in names.items():
        if len(paths) > 1:
            yield problem(
                "duplicate-soname",
                f"two files named {soname} are in one process: {' and '.join(paths)}",
                "remove one: two copies of one CUDA library do not share their state",
                soname=soname,
                paths=paths,
            )


def _inward(soname: str, subject: _Subject) -> str:
    """Return how to make the loader take a library from the venv."""
    directories = [os.path.dirname(path) for path in holders_of(subject.installed, soname) if os.path.exists(path)]
    if directories and directories[0] not in subject.place.library_path:
        return f"add {directories[0]} to LD_LIBRARY_PATH in {subject.place.whose}"
    if directories:
        return f"put {directories[0]} before other directories in LD_LIBRARY_PATH in {subject.place.whose}"
    names = " or ".join(_catalogue.distributions_of(soname)) or "the distribution that provides it"
    return f"add {names} to the lock and build the environment anew"


def _merged(problems: Sequence[Problem]) -> list[Problem]:
    """Return the problems, errors first; one that several loads run into is listed once."""
    kept: dict[tuple[Any, ...], Problem] = {}
    for entry in sorted(problems, key=lambda one: one["severity"] != "error"):
        where = tuple(entry["paths"]) if entry["kind"] == "access-denied" else entry["message"]
        key = (entry["kind"], entry["soname"] or where)
        kept.setdefault(key, entry)
    return list(kept.values())
