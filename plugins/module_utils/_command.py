# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a command that may hang, or print without end, and come back in time. Private to the collection."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import stat
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# nvidia-smi prints about 30 KiB a GPU.
OUTPUT_LIMIT = 16 * 1024 * 1024
# What stands between the end of a killed process and a process that the kernel does not let go.
_GRACE = 1.0


@dataclass(frozen=True)
class Finished:
    """How a command ended. ``status`` is None when it did not end in time, printed too much, or could not start;
    ``failure`` then says so in words. A negative status is the signal that ended it.
    """

    status: int | None
    output: str
    errors: str
    failure: str = ""


def is_program(path: str) -> bool:
    """Whether this is an executable file that nobody but root, or we ourselves, could have put something else into."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return False
    ours = status.st_uid in (0, os.geteuid()) and not status.st_mode & stat.S_IWOTH
    return stat.S_ISREG(status.st_mode) and ours and os.access(path, os.X_OK)


def run_bounded(
    command: Sequence[str], timeout: float, environment: Mapping[str, str] | None = None, limit: int = OUTPUT_LIMIT
) -> Finished:
    """Run a command with nothing of our own environment, for at most ``timeout`` seconds."""
    variables = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", **(environment or {})}
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=variables,
            cwd="/",
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return Finished(None, "", "", f"cannot be run: {reason}")
    received, failure = _receive(process, time.monotonic() + timeout, limit)
    if failure == "late":
        failure = f"gives no answer within {timeout:g} seconds"
    status = _end(process, at_once=bool(failure))
    output, errors = (data.decode("utf-8", errors="replace") for data in received)
    return Finished(None if failure else status, output, errors, failure)


def _receive(process: subprocess.Popen[bytes], deadline: float, limit: int) -> tuple[list[bytes], str]:
    """What the process printed to its two streams until it closed both, and why that was cut short."""
    received = [bytearray(), bytearray()]
    with selectors.DefaultSelector() as selector:
        for index, stream in enumerate((process.stdout, process.stderr)):
            if stream is not None:
                selector.register(stream, selectors.EVENT_READ, index)
        while selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                return [bytes(data) for data in received], "late"
            for key, _events in selector.select(left):
                chunk = os.read(key.fd, 65536)
                received[key.data] += chunk
                if not chunk:
                    selector.unregister(key.fileobj)
            if sum(map(len, received)) > limit:
                return [bytes(data) for data in received], f"prints more than {limit // (1024 * 1024)} MiB"
    return [bytes(data) for data in received], ""


def _end(process: subprocess.Popen[bytes], at_once: bool) -> int | None:
    """The exit status. A process that hangs in the driver cannot be killed: it is left behind then."""
    status = None
    for kill in (True,) if at_once else (False, True):
        if kill:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = process.wait(timeout=_GRACE)
            break
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    return status
