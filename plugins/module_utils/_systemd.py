# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Units and journal of this host's systemd, through systemctl and journalctl.

This module is private to the collection: it can change at any time.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# sd_booted(3): the directory exists exactly when systemd is the init system.
BOOTED = "/run/systemd/system"
QUERY = 30.0  # seconds for a question, which waits for no service

# With these statuses systemd itself ends a process that it could not set up (systemd.exec(5)).
SETUP_FAILURES = {
    200: "CHDIR", 202: "FDS", 203: "EXEC", 205: "LIMITS", 206: "OOM_ADJUST", 207: "SIGNAL_MASK", 208: "STDIN",
    209: "STDOUT", 210: "CHROOT", 214: "SETSCHEDULER", 215: "CPUAFFINITY", 216: "GROUP", 217: "USER",
    218: "CAPABILITIES", 219: "CGROUP", 222: "STDERR", 224: "PAM", 225: "NETWORK", 226: "NAMESPACE",
    227: "NO_NEW_PRIVILEGES", 228: "SECCOMP", 232: "ADDRESS_FAMILIES", 233: "RUNTIME_DIRECTORY",
    238: "STATE_DIRECTORY", 239: "CACHE_DIRECTORY", 240: "LOGS_DIRECTORY", 241: "CONFIGURATION_DIRECTORY",
    242: "NUMA_POLICY", 243: "CREDENTIALS",
}  # fmt: skip


class SystemdError(Exception):
    """systemd is absent or refused; the text says what was asked, where, and its answer."""


@dataclass(frozen=True)
class UnitState:
    """What C(systemctl show) says about a unit at one moment; the names are systemd's own."""

    unit: str
    load_state: str = ""
    active_state: str = ""
    sub_state: str = ""
    result: str = ""
    exec_main_code: int = 0
    exec_main_status: int = 0
    n_restarts: int = 0
    main_pid: int = 0
    invocation_id: str = ""
    control_group: str = ""
    fragment_path: str = ""
    unit_file_state: str = ""
    need_daemon_reload: bool = False
    job: int = 0

    @property
    def signal(self) -> str | None:
        """The name of the signal that ended the main process, or None."""
        # CLD_KILLED and CLD_DUMPED of waitid(2)
        return signal_name(self.exec_main_status) if self.exec_main_code in (2, 3) else None

    @property
    def exit_status(self) -> int | None:
        """The exit status of the main process that ended, or None when it runs, never ran or was killed."""
        return self.exec_main_status if self.exec_main_code == 1 else None  # CLD_EXITED


PROPERTIES = {
    "LoadState": "load_state",
    "ActiveState": "active_state",
    "SubState": "sub_state",
    "Result": "result",
    "ExecMainCode": "exec_main_code",
    "ExecMainStatus": "exec_main_status",
    "NRestarts": "n_restarts",
    "MainPID": "main_pid",
    "InvocationID": "invocation_id",
    "ControlGroup": "control_group",
    "FragmentPath": "fragment_path",
    "UnitFileState": "unit_file_state",
    "NeedDaemonReload": "need_daemon_reload",
    "Job": "job",
}
NUMBERS = {"exec_main_code", "exec_main_status", "n_restarts", "main_pid", "job"}


def signal_name(number: int) -> str:
    """Return C(SIGKILL) for 9, and C(signal 99) for a number that this host has no name for."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def parse_show(unit: str, text: str) -> UnitState:
    """Return the state that C(systemctl show) printed; what this systemd does not know keeps its default."""
    values: dict[str, Any] = {}
    for line in text.splitlines():
        name, separator, value = line.partition("=")
        field = PROPERTIES.get(name)
        if not separator or field is None:
            continue
        if field in NUMBERS:
            values[field] = int(value) if value.isdigit() else 0
        elif field == "need_daemon_reload":
            values[field] = value == "yes"
        else:
            values[field] = value
    return UnitState(unit, **values)


def parse_journal(text: str) -> list[tuple[str, str]]:
    """Return (invocation, line) from C(journalctl --output=json), oldest first; other rows are ignored."""
    lines = []
    for row in text.splitlines():
        entry = _json_object(row)
        message = entry.get("MESSAGE")
        if isinstance(message, list):  # a message that is not clean UTF-8 comes as a list of bytes
            raw = bytes(byte & 0xFF for byte in message if isinstance(byte, int))
            message = raw.decode("utf-8", "replace")
        if isinstance(message, str):
            invocation = str(entry.get("INVOCATION_ID") or entry.get("_SYSTEMD_INVOCATION_ID") or "")
            lines += [(invocation, part) for part in message.splitlines()]
    return lines


def _json_object(row: str) -> dict[str, Any]:
    try:
        entry = json.loads(row)
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}


class Systemd:
    """This host's systemd. Every method raises SystemdError when systemd is absent or refuses."""

    def __init__(self, timeout: float = 900.0) -> None:
        """C(timeout): seconds that one call may take; stopping waits until a service has drained."""
        self.timeout = timeout

    def show(self, unit: str) -> UnitState:
        """Return the state of a unit; an unknown one has the load state C(not-found)."""
        names = ",".join(PROPERTIES)
        return parse_show(unit, self._systemctl("show", f"--property={names}", "--", unit, timeout=QUERY))

    def daemon_reload(self) -> None:
        """Make systemd read the unit files again."""
        self._systemctl("daemon-reload")

    def enable(self, unit: str) -> None:
        """Start the unit at boot from now on."""
        self._systemctl("enable", "--quiet", "--", unit)

    def disable(self, unit: str) -> None:
        """Do not start the unit at boot any more."""
        self._systemctl("disable", "--quiet", "--", unit)

    def start(self, unit: str) -> None:
        """Start the unit and wait for the outcome that its Type promises."""
        self._systemctl("start", "--", unit)

    def restart(self, unit: str) -> None:
        """Stop the unit if it runs, wait until it is gone, and start it."""
        self._systemctl("restart", "--", unit)

    def stop(self, unit: str) -> None:
        """Stop the unit and wait until it is gone."""
        self._systemctl("stop", "--", unit)

    def reset_failed(self, unit: str) -> None:
        """Forget a failure and the count of restarts; a unit that is not loaded has neither."""
        if self.show(unit).load_state != "not-found":
            self._systemctl("reset-failed", "--", unit)

    def journal(self, unit: str, invocation_id: str = "", lines: int = 40) -> list[str]:
        """Return the last lines by the unit, and by systemd about it, in an invocation (default: the last).

        Empty when nothing was written or the journal may not be read.
        """
        # What a process wrote just before its death may still be on its way to the journal.
        self._call("journalctl", "--sync", timeout=QUERY, check=False)
        selection = ["--unit", unit]
        if invocation_id:
            selection = [f"_SYSTEMD_INVOCATION_ID={invocation_id}", "+", f"INVOCATION_ID={invocation_id}"]
        fields = "MESSAGE,INVOCATION_ID,_SYSTEMD_INVOCATION_ID"
        options = ["--quiet", "--no-pager", "--output=json", f"--output-fields={fields}", f"--lines={lines}"]
        entries = parse_journal(self._call("journalctl", *options, *selection, timeout=QUERY, check=False))
        last = next((invocation for invocation, _line in reversed(entries) if invocation), "")
        return [line for invocation, line in entries if invocation in ("", invocation_id or last)][-lines:]

    def _systemctl(self, *arguments: str, timeout: float | None = None) -> str:
        if not Path(BOOTED).is_dir():
            raise SystemdError(
                f"systemd does not run on this host: {BOOTED} is missing: use a host that systemd booted"
            )
        return self._call("systemctl", "--no-pager", "--no-ask-password", *arguments, timeout=timeout or self.timeout)

    def _call(self, program: str, *arguments: str, timeout: float, check: bool = True) -> str:
        asked = " ".join([program, *(word for word in arguments if not word.startswith("--"))])
        path = shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/bin:/bin")
        if path is None:
            raise SystemdError(f"{program} is missing on this host: it is part of systemd: install systemd")
        try:
            done = subprocess.run(
                [path, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout,
                env={**os.environ, "LC_ALL": "C", "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": ""},
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise SystemdError(f"{asked}: no answer within {timeout:g} seconds") from error
        except OSError as error:
            raise SystemdError(f"{path} cannot be run: {error.strerror}") from error
        if check and done.returncode:
            words = done.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
            raise SystemdError(f"{asked}: {words or f'exit status {done.returncode}'}")
        return done.stdout.decode("utf-8", "replace")
