# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Let an engine judge its arguments before anything that runs is touched. Private to the collection."""

from __future__ import annotations

import grp
import os
import pwd
import re
import subprocess
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.gpufleet.dflash.plugins.module_utils._causes import redact
from ansible_collections.gpufleet.dflash.plugins.module_utils._release import ReleaseError
from ansible_collections.gpufleet.dflash.plugins.module_utils._unit import (
    UnitEnvironment,
    UnitError,
    parse_unit_file,
    process_environment,
)

_LIMIT = 300  # seconds; importing a large engine alone takes a minute on a busy host


def validate_arguments(command: list[str], text: str, unit: str) -> None:
    """Run a command as the user and in the environment of a unit's text; raises ReleaseError when it objects."""
    if not command:
        return
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, unit)
        Path(path).write_text(text, encoding="utf-8")
        try:
            service = parse_unit_file(path)
        except UnitError as error:
            raise ReleaseError(str(error)) from error
    with tempfile.TemporaryDirectory(prefix="dflash-validate-") as scratch:
        _run(
            command, service, unit, _in_scratch(text, process_environment(service, uuid.uuid4().hex), scratch), scratch
        )


def _in_scratch(text: str, environment: Mapping[str, str], scratch: str) -> dict[str, str]:
    """Return the environment with a unit's state and cache directories replaced: systemd makes those at its start."""
    places = {}
    for directive, root in (("StateDirectory", "/var/lib"), ("CacheDirectory", "/var/cache")):
        for line in re.findall(rf"^{directive}=(.+)$", text, re.MULTILINE):
            places.update({os.path.join(root, name): os.path.join(scratch, directive, name) for name in line.split()})
    moved = {}
    for name, value in environment.items():
        place = next((place for place in places if value == place or value.startswith(place + "/")), None)
        moved[name] = places[place] + value[len(place) :] if place else value
    return {**moved, "PYTHONDONTWRITEBYTECODE": "1"}


def _run(command: list[str], service: UnitEnvironment, unit: str, environment: Mapping[str, str], scratch: str) -> None:
    identity = _identity(service)
    if identity:
        os.chown(scratch, identity["user"], identity["group"])
    try:
        process = subprocess.run(
            command,
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT,
            check=False,
            **identity,
        )
    except subprocess.TimeoutExpired as error:
        raise ReleaseError(
            f"the engine did not judge its arguments within {_LIMIT} s: {unit}: look at the host's load"
        ) from error
    except OSError as error:
        raise ReleaseError(
            f"the engine cannot be run as user {service.user}: {error.filename or command[0]}: {error.strerror}"
        ) from error
    if process.returncode:
        words = redact(_objection(command, process.stderr or process.stdout)) or f"exit status {process.returncode}"
        raise ReleaseError(f"the engine refuses its arguments, and nothing was touched: {unit}: {words}")


def _objection(command: list[str], printed: str) -> str:
    """What the engine objects to: from its own line on, without usage and the warnings of what it imports."""
    lines = [line for line in printed.splitlines() if line.strip()]
    names = {re.escape(os.path.basename(word).removesuffix(".py")) for word in command[:3]} if command else set()
    own = re.compile(rf"(?:{'|'.join(sorted(names))})(?:\.py)?: ")
    first = next((number for number, line in enumerate(lines) if own.match(line)), max(0, len(lines) - 10))
    return "\n".join(lines[first:][:10])


def user_exists(text: str) -> bool:
    """Whether the user that a unit's text names exists on this host yet."""
    for line in text.splitlines():
        if line.startswith("User="):
            try:
                pwd.getpwnam(line.partition("=")[2])
            except KeyError:
                return False
    return True


def _identity(service: UnitEnvironment) -> dict[str, Any]:
    if service.user is None or os.geteuid() != 0:
        return {}
    try:
        account = pwd.getpwnam(service.user)
        group = grp.getgrnam(service.group).gr_gid if service.group else account.pw_gid
        further = [grp.getgrnam(name).gr_gid for name in service.supplementary_groups]
    except KeyError as error:
        raise ReleaseError(f"the unit's user or group does not exist: {service.name}: {error}: create it") from error
    groups = {*os.getgrouplist(service.user, group), *further}
    return {"user": account.pw_uid, "group": group, "extra_groups": sorted(groups), "umask": service.umask}
