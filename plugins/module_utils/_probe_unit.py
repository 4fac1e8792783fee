# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The probe as the process of a transient unit that has another unit's settings. Private to the collection.

systemd reads a drop-in of a unit that it has never seen without a daemon-reload, which would take the GPUs from
containers (NVIDIA/nvidia-container-toolkit#48). The drop-in is removed as soon as the process runs; the unit
removes itself, and ends by its own time limit if nobody is left to end it. No secret is in a file, an argument or
the journal: the environment is in a memory file of this process, which systemd opens through /proc.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from ansible_collections.gpufleet.dflash.plugins.module_utils._probe_request import (
    BOOTSTRAP,
    MARK,
    ProbeRequest,
    command_line_of,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._sandbox import (
    Sandbox,
    SandboxError,
    absent_directories,
    environment_text,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._systemd import BOOTED, Systemd, SystemdError

# How long after the limit of the load the unit ends by itself, in seconds.
_GRACE = 10
_PREFIX = "gpufleetcheck"
_STRAY_SECONDS = 600
# What `systemd-run --wait` says last, in the forms of systemd 240 to 257.
_RESULT = re.compile(r"Finished with result: (?P<result>[\w-]+)\n")
_STATUS = re.compile(r"Main processes terminated with: code=(?P<code>\w+)[/,] ?status=(?:\d+/)?(?P<status>\w+)")
_RUNNING = re.compile(r"\ARunning as unit: \S+\n")
# multiprocessing's helper ends by itself, just after the process that it serves.
_PASSING = "multiprocessing.resource_tracker"


class TransientUnit:
    """The probe in a transient unit; used with C(with). Raises SandboxError when systemd does not make it."""

    def __init__(self, request: ProbeRequest, channel: socket.socket) -> None:
        if request.sandbox is None:
            raise ValueError("a transient unit needs a sandbox")
        program = shutil.which("systemd-run", path=os.environ.get("PATH", "") + ":/usr/bin:/bin")
        if program is None:
            raise SandboxError("systemd-run is missing on this host")
        self._result = ""
        self._left: list[str] = []
        self._name = f"{_PREFIX}{request.invocation}.service"
        self._drop_in = Path(BOOTED, f"{self._name}.d")
        self._made = absent_directories(request.sandbox.directories)
        self._memory = os.memfd_create("environment")
        with os.fdopen(os.dup(self._memory), "wb") as stream:
            variables = {**request.environment, "PYTHONDONTWRITEBYTECODE": "1"}
            stream.write(environment_text(variables).encode("utf-8"))
        _remove_strays()
        try:
            self._write_drop_in(request.sandbox, request.timeout)
            self._process = subprocess.Popen(
                [
                    *(program, "--pipe", "--wait", "--collect", f"--unit={self._name}"),
                    # The default would write the probe's command line into the journal.
                    *("--description=Check of shared libraries by gpufleet.dflash", "--"),
                    *(word.replace("$", "$$") for word in request.command),
                    *("-c", BOOTSTRAP),
                ],
                stdin=channel.fileno(),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C", "SYSTEMD_COLORS": "0"},
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            self._remove_traces()
            raise SandboxError(f"systemd cannot be asked for a process: {error}") from None
        if self._process.stdout is None or self._process.stderr is None:
            raise ValueError("the probe's output has to be piped")
        self.stdout, self.stderr = self._process.stdout, self._process.stderr

    def __enter__(self) -> TransientUnit:
        return self

    def __exit__(self, *_error: object) -> None:
        self.end_everything()
        self.stdout.close()
        self.stderr.close()
        self._remove_traces()

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def abort(self) -> None:
        for pid in self._members():
            if BOOTSTRAP in _raw_command_line(pid):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGABRT)

    def at_the_end(self) -> None:
        """Note what the probe leaves behind: systemd kills it together with the probe."""
        others = [pid for pid in self._members() if BOOTSTRAP not in _raw_command_line(pid)]
        lines = (command_line_of(pid) for pid in others)
        self._left += [line for line in lines if line and _PASSING not in line]

    def wait(self, seconds: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def end_everything(self) -> list[str]:
        for _round in range(40):
            if self.has_ended():
                break
            for pid in self._members():
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            self.wait(0.1)
        if not self.has_ended():
            # Stuck in a driver: systemd goes on trying, and we do not wait for it.
            self._process.kill()
            self.wait(1)
        return self._left

    def ending(self, stderr: str) -> tuple[str, int, str]:
        """Return how it ended (exited or killed), the number, and what the probe printed.

        Raises SandboxError when systemd has not started it.
        """
        *_earlier, last = [None, *_RESULT.finditer(stderr)]
        if last is None:
            words = _RUNNING.sub("", stderr).strip()
            raise SandboxError(f"systemd-run: {words or 'no answer'}")
        printed, said = stderr[: last.start()], stderr[last.start() :]
        match = _STATUS.search(said)
        self._result = last.group("result")
        code, status = (match.group("code"), match.group("status")) if match else ("", "")
        if code in ("killed", "dumped"):
            return "killed", int(getattr(signal, f"SIG{status}", 0)), _RUNNING.sub("", printed)
        return "exited", int(status) if status.isdigit() else 0, _RUNNING.sub("", printed)

    def account(self, started: bool) -> str:
        """Return systemd's name for the result, and what it wrote in the journal about a unit that did not start."""
        lines: list[str] = []
        if not started:
            with contextlib.suppress(SystemdError):
                lines = [line.replace(f"{self._name}: ", "") for line in Systemd().journal(self._name)]
        return "\n".join([self._result, *(line for line in lines if line.startswith("Failed"))])

    def _members(self) -> list[int]:
        """Return the live processes of the unit's control group."""
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(OSError):
                    if f"/{self._name}" in Path(f"/proc/{entry}/cgroup").read_text():
                        found.append(int(entry))
        return found

    def _write_drop_in(self, sandbox: Sandbox, timeout: float) -> None:
        self._drop_in.mkdir(mode=0o700)
        lines = [
            *("[Service]", *sandbox.lines),
            f"Environment={MARK}=1",
            f"EnvironmentFile=/proc/{os.getpid()}/fd/{self._memory}",
            f"RuntimeMaxSec={timeout + _GRACE:.3f}",
            *("TimeoutStopSec=2", "LimitCORE=0:infinity", "OOMScoreAdjust=1000", "RuntimeDirectoryPreserve=yes", ""),
        ]
        path = self._drop_in / "check.conf"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write("\n".join(lines).encode("utf-8", "surrogateescape"))

    def forget_settings(self) -> None:
        """Remove the drop-in and the environment; the process that runs has them."""
        shutil.rmtree(self._drop_in, ignore_errors=True)
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1

    def _remove_traces(self) -> None:
        self.forget_settings()
        for path in self._made:
            with contextlib.suppress(OSError):
                os.rmdir(path)


def _remove_strays() -> None:
    """Remove the drop-ins of checks that were killed in the moment in which there is one."""
    for path in Path(BOOTED).glob(f"{_PREFIX}*.service.d"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _STRAY_SECONDS:
                shutil.rmtree(path, ignore_errors=True)


def _raw_command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace")
    return ""
