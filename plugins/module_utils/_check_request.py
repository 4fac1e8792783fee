# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a task's options to the process that the probe is to be. Private to the collection."""

from __future__ import annotations

import grp
import os
import pwd
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.gpufleet.dflash.plugins.module_utils import _unit
from ansible_collections.gpufleet.dflash.plugins.module_utils._elf import ElfError, read_object
from ansible_collections.gpufleet.dflash.plugins.module_utils._load_trace import LD_DEBUG
from ansible_collections.gpufleet.dflash.plugins.module_utils._loader import System, UnsupportedLoader
from ansible_collections.gpufleet.dflash.plugins.module_utils._probe_request import Identity, ProbeRequest
from ansible_collections.gpufleet.dflash.plugins.module_utils._sandbox import (
    MANAGED_VARIABLES,
    sandbox_of,
    why_none,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._systemd_defaults import base_environment
from ansible_collections.gpufleet.dflash.plugins.module_utils._systemd_syntax import split_all, valid_name
from ansible_collections.gpufleet.dflash.plugins.module_utils._venv import Venv

# An account of a unit with DynamicUser= exists only while the unit runs; this one has as few rights.
_DYNAMIC_USER = "nobody"
# The first ld.so that can be told under which name the program shall know itself.
_FIRST_WITH_ARGV0 = (2, 33)


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
    sandbox: bool = True
    trace: bool = False
    clean_host: bool = False
    require_cuda: bool = False
    device_count: int | None = None


@dataclass(frozen=True)
class Subject:
    """The process that is asked for: the probe's request, its account, who sets its environment, and the unit.

    ``environment`` is the whole environment, whoever gives it. ``unsandboxed`` says why a unit's sandbox is not
    applied; None when it is, or when there is none.
    """

    probe: ProbeRequest
    user: str
    whose: str
    unit: _unit.UnitEnvironment | None
    environment: Mapping[str, str]
    unsandboxed: str | None = None

    def without_sandbox(self, reason: str) -> Subject:
        """Return the same process as our own child."""
        probe = replace(self.probe, sandbox=None, environment=_traced(self.probe, self.environment))
        return replace(self, probe=probe, unsandboxed=reason)


def validate(request: CheckRequest) -> None:
    """Raise CheckError for what cannot be meant."""
    if not request.venv:
        raise CheckError("venv is missing: give the directory that holds bin/python")
    # Not `<= 0`: nan is no number of seconds, and no comparison with it is true.
    if not 0 < request.timeout < 1e7:
        raise CheckError(f"timeout must be more than 0 seconds, not {request.timeout:g}: timeout: correct it")
    if not request.imports and not request.dlopen:
        raise CheckError("there is nothing to load: give imports, dlopen, or both")
    for option, names in (("imports", request.imports), ("dlopen", request.dlopen)):
        for name in names:
            if not name.strip() or "\0" in name:
                raise CheckError(f"not the name of anything: {option}: {name!r}: correct it or take it out")
    for option in ("venv", "unit", "user", "group", "working_directory"):
        value = getattr(request, option)
        if value is not None and (not value or "\0" in value):
            raise CheckError(f"not a usable value: {option}: {value!r}: correct it or leave it out")
    if request.device_count is not None and request.device_count < 0:
        raise CheckError(f"a number of GPUs cannot be negative: device_count: {request.device_count}: correct it")
    if (request.require_cuda or request.device_count is not None) and "torch" not in request.imports:
        raise CheckError("require_cuda and device_count ask torch: imports: add torch to it")


def subject_of(request: CheckRequest, venv: Venv) -> Subject:
    """Return the process that a request asks for. Raises CheckError, UnitError."""
    invocation = uuid.uuid4().hex
    python = f"{venv.path}/bin/python"
    plain = ProbeRequest(
        python=python,
        # -u: what is printed before a crash is worth having.
        command=(python, "-B", "-u"),
        imports=request.imports,
        dlopen=request.dlopen,
        environment={},
        invocation=invocation,
        timeout=request.timeout,
        trace=request.trace,
    )
    if request.unit is None:
        user = request.user or _caller()
        environment = {**base_environment(user, invocation), **_texts(request.environment or {})}
        plain = replace(
            plain,
            environment=_traced(plain, environment),
            identity=identity_of(user, request.group, ()) if request.user or request.group else None,
            working_directory=request.working_directory or "/",
        )
        return Subject(plain, user, "the environment", None, environment)
    unit = _unit.read_unit(request.unit)
    return _subject_of_unit(plain, unit, request.sandbox)


def _subject_of_unit(plain: ProbeRequest, unit: _unit.UnitEnvironment, wanted: bool) -> Subject:
    reason = why_none(unit) if wanted else "sandbox: false was asked for"
    user = unit.user or "root"
    identity = None
    if unit.dynamic_user and not _exists(user if unit.user else ""):
        user = _DYNAMIC_USER if reason else unit.user or "a dynamic user"
    if reason or not unit.dynamic_user:
        identity = identity_of(user, unit.group, unit.supplementary_groups)
    environment = _unit.process_environment(unit, plain.invocation)
    given: Mapping[str, str] = environment
    if reason is None:
        # systemd adds the rest itself.
        given = {name: value for name, value in unit.environment.items() if name not in MANAGED_VARIABLES}
    probe = replace(
        plain,
        environment=_traced(plain, given),
        identity=identity,
        working_directory=unit.working_directory or "/",
        working_directory_optional=unit.working_directory_optional,
        current_directory_on_path=_starts_a_module(unit.exec_start),
        umask=unit.umask,
        limits=unit.limits,
        sandbox=None if reason else sandbox_of(unit),
    )
    return Subject(probe, user, f"unit {unit.name}", unit, environment, reason)


def on_a_clean_host(probe: ProbeRequest, venv: Venv) -> ProbeRequest:
    """Return the same probe with a loader that ignores ld.so.cache. Raises CheckError."""
    try:
        interpreter = read_object(venv.python).interpreter
        version = System.of_host(venv.python, use_cache=False).version
    except (ElfError, UnsupportedLoader, OSError) as error:
        raise CheckError(f"clean_host needs glibc's loader: {venv.python}: {error}: leave it out") from None
    if interpreter is None or version < _FIRST_WITH_ARGV0:
        found = ".".join(str(part) for part in version)
        raise CheckError(f"clean_host needs glibc 2.33 or newer: this host has {found}: leave it out")
    start = (interpreter, "--inhibit-cache", "--argv0", probe.python, venv.python)
    return replace(probe, command=(*start, *probe.command[1:]), invocation=uuid.uuid4().hex, trace=False)


def _traced(probe: ProbeRequest, environment: Mapping[str, str]) -> dict[str, str]:
    return {**environment, "LD_DEBUG": LD_DEBUG} if probe.trace else dict(environment)


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
        entry = pwd.getpwuid(int(user)) if user and _is_number(user) else pwd.getpwnam(user or "root")
    except (KeyError, OverflowError):
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


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _caller() -> str:
    """Return our own account; a container's user may have a number and no name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _group(name: str) -> int:
    # A number needs no entry, but it has to be one: the last is the kernel's word for none.
    if _is_number(name) and int(name) < (1 << 32) - 1:
        return int(name)
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise CheckError(f"there is no group {name} on this host: create it, or correct the name") from None
