# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A real process that answers like a unit of systemd: the health check's view of a host without systemd.

State and journal come from the process itself: its PID, exit status, signal and output.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from ansible_collections.gpufleet.dflash.plugins.module_utils._systemd import Systemd, UnitState


def free_port() -> int:
    """A TCP port of the loopback interface that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ProcessUnit(Systemd):
    """Runs a command as systemd runs a main process; used with C(with), which ends the process."""

    def __init__(
        self,
        command: list[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        restart: bool = False,
    ) -> None:
        super().__init__()
        self.command = command
        self.log = log
        self.environment = environment
        self.restarts = restart
        self.n_restarts = 0
        self.died_at: float | None = None

    def __enter__(self) -> ProcessUnit:
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def show(self, unit: str) -> UnitState:
        status = self.process.poll()
        invocation = f"{self.n_restarts:032x}"
        if status is None:
            return UnitState(
                unit, "loaded", "active", "running", "success", n_restarts=self.n_restarts,
                main_pid=self.process.pid, invocation_id=invocation,
            )  # fmt: skip
        self.died_at = self.died_at or time.monotonic()
        if self.restarts:
            self.n_restarts += 1
            self._begin()
            return self.show(unit)
        code, number = (2, -status) if status < 0 else (1, status)
        return UnitState(
            unit, "loaded", "failed", "failed", "signal" if status < 0 else "exit-code", code, number,
            self.n_restarts, 0, invocation,
        )  # fmt: skip

    def journal(self, unit: str, invocation_id: str = "", lines: int = 40) -> list[str]:
        return self.log.read_text(errors="replace").splitlines()[-lines:]

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the main process."""
        self.process.send_signal(number)

    def _begin(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment
            )
