# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What of a unit makes the sandbox of its process, as text for a transient unit. Private to the collection.

The text is the unit's own and systemd parses it, so that every directive means what it means for the service,
whatever this systemd knows or ignores. Left out is what starts, stops, watches and logs the service, and what would
touch it while it runs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.gpufleet.dflash.plugins.module_utils._systemd import BOOTED
from ansible_collections.gpufleet.dflash.plugins.module_utils._systemd_syntax import specifiers
from ansible_collections.gpufleet.dflash.plugins.module_utils._unit import UnitEnvironment

# Environment= and EnvironmentFile= are applied too, but their values are handed over where nobody can read them.
# Slice= is left out because a slice's memory limit would make the running service the victim of the probe; the
# kernel is to kill the probe first. A RuntimeDirectory= would be removed under the running service.
_LEFT_OUT = re.compile(
    r"(Exec(Start|StartPre|StartPost|Condition|Reload|ReloadPost|Stop|StopPost)|Type|ExitType|Restart\w*|Success\w+"
    r"|RemainAfterExit|GuessMainPID|PIDFile|BusName|NotifyAccess|Sockets|FileDescriptorStore\w+|OpenFile|NonBlocking"
    r"|RootDirectoryStartOnly|USBFunction\w+|Timeout\w+|RuntimeMaxSec|RuntimeRandomizedExtraSec|Watchdog\w+"
    r"|Kill\w+|RestartKillSignal|FinalKillSignal|ReloadSignal|SendSIG\w+|Standard\w+|TTY\w+|Utmp\w+|Syslog\w+"
    r"|Log(Level|Extra|Rate|Filter|Namespace)\w*|Environment|EnvironmentFile|Slice|Delegate\w*|OOMPolicy"
    r"|OOMScoreAdjust|LimitCORE|RuntimeDirectoryPreserve)\Z"
)
# What these stand for depends on the unit's name, which is another here. The others are systemd's to expand; that
# of the credentials (%d) has to be, because they are the transient unit's.
_NAME_SPECIFIERS = "nNpPiIjJfyY"
MANAGED_VARIABLES = (
    "RUNTIME_DIRECTORY",
    "STATE_DIRECTORY",
    "CACHE_DIRECTORY",
    "LOGS_DIRECTORY",
    "CONFIGURATION_DIRECTORY",
)
_DYNAMIC_NAME = re.compile(r"[a-z_][a-z0-9_-]{0,30}\Z")


class SandboxError(Exception):
    """systemd cannot make the process; the text says why."""


@dataclass(frozen=True)
class Sandbox:
    """The lines of [Service] for a transient unit, and the directories that systemd makes for it."""

    lines: tuple[str, ...]
    directories: tuple[str, ...]


def why_none(unit: UnitEnvironment) -> str | None:
    """Return why a process like the unit's cannot be made by systemd here; None when it can."""
    if not os.path.isdir(BOOTED):
        return f"systemd does not run here ({BOOTED} is missing)"
    try:
        with open("/proc/1/comm", encoding="utf-8", errors="replace") as stream:
            first = stream.read().strip()
    except OSError:
        first = ""
    if first != "systemd":
        return f"process 1 is {first or 'hidden'}, not systemd"
    if os.geteuid() != 0:
        return "only root can ask systemd for a process: set become: true on the task"
    if re.match(r"[-@:!|]*\+", unit.exec_start):
        return "its ExecStart= begins with +, which runs outside the sandbox"
    return None


def sandbox_of(unit: UnitEnvironment) -> Sandbox:
    """Return the sandbox of a unit's main process."""
    known = specifiers(unit.name, unit.path)
    lines = [
        f"{key}={_own_name(value, known)}"
        for key, value in unit.settings
        if not _LEFT_OUT.match(key) and not _continues(value)
    ]
    if unit.dynamic_user and not unit.user:
        name = known["p"]
        if _DYNAMIC_NAME.match(name):
            # The account that systemd makes up for the unit itself: another would take its directories over.
            lines.append(f"User={name}")
        else:
            lines = [line for line in lines if not re.match(r"(Runtime|State|Cache|Logs)Directory=", line)]
    values = (unit.environment.get(variable, "") for variable in MANAGED_VARIABLES)
    return Sandbox(tuple(lines), tuple(path for value in values for path in value.split(":") if path))


def _own_name(value: str, known: Mapping[str, str]) -> str:
    """Replace the specifiers that are about the unit's name."""

    def replacement(match: re.Match[str]) -> str:
        letter = match.group(1)
        return known[letter].replace("%", "%%") if letter in _NAME_SPECIFIERS else match.group(0)

    return re.sub(r"%(.)", replacement, value, flags=re.DOTALL)


def _continues(value: str) -> bool:
    """Tell whether a line would go on in the next one."""
    return (len(value) - len(value.rstrip("\\"))) % 2 == 1


def environment_text(environment: Mapping[str, str]) -> str:
    """Return variables in the form of an environment file: systemd.exec(5), EnvironmentFile=."""
    quoted = ((name, re.sub(r'([\\"`$])', r"\\\1", value)) for name, value in environment.items())
    return "".join(f'{name}="{value}"\n' for name, value in quoted)


def absent_directories(paths: Sequence[str]) -> list[str]:
    """Return the directories, with those above them, that do not exist yet, the deepest first."""
    absent = set()
    for path in paths:
        while path not in ("", "/") and not os.path.lexists(path):
            absent.add(path)
            path = os.path.dirname(path)
    return sorted(absent, key=len, reverse=True)
