# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the probe as a service's process would run, and survive whatever it does.

Private to the collection. The probe can crash, hang, fork, exit or flood its output; its end is always
reported, and nothing that it started stays behind. Its text travels through a socket that is its standard input,
the one descriptor that systemd, too, hands to a process; the reports come back the same way.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any, Callable

from ansible_collections.gpufleet.dflash.plugins.module_utils import _library_probe
from ansible_collections.gpufleet.dflash.plugins.module_utils._probe_request import (
    BOOTSTRAP,
    MARK,
    Identity,
    ProbeOutcome,
    ProbeRequest,
    command_line_of,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._probe_streams import Streams
from ansible_collections.gpufleet.dflash.plugins.module_utils._probe_unit import TransientUnit
from ansible_collections.gpufleet.dflash.plugins.module_utils._process_maps import descendants
from ansible_collections.gpufleet.dflash.plugins.module_utils._sandbox import SandboxError

__all__ = ["Identity", "ProbeOutcome", "ProbeRequest", "run_probe"]

# How long a hanging interpreter gets to print where it hangs.
_LAST_WORDS_SECONDS = 1.0
_PR_SET_CHILD_SUBREAPER = 36


def run_probe(request: ProbeRequest, meanwhile: Callable[[], None] = lambda: None) -> ProbeOutcome:
    """Run the probe once; raises nothing for what the probed code does.

    ``meanwhile`` is called while it loads. Raises SandboxError where systemd cannot be had for ``request.sandbox``.
    """
    deadline = time.monotonic() + request.timeout
    secret = secrets.token_hex(16)
    ours, theirs = socket.socketpair()
    with ours:
        try:
            with theirs:
                process = _start(request, theirs, secret)
        except (OSError, subprocess.SubprocessError) as error:
            return ProbeOutcome("not-started", 0, [_exec_failure(request, error)], "", "", [])
        with process:
            return _supervise(process, ours, request, deadline, secret, meanwhile)


def _start(request: ProbeRequest, channel: socket.socket, secret: str) -> _Direct | TransientUnit:
    if request.sandbox is not None:
        return TransientUnit(request, channel)
    return _Direct(request, channel, secret)


class _Direct:
    """The probe as our own child; used with C(with), which closes its pipes."""

    def __init__(self, request: ProbeRequest, channel: socket.socket, secret: str) -> None:
        self._request = request
        environment = {**request.environment, "INVOCATION_ID": request.invocation, "PYTHONDONTWRITEBYTECODE": "1"}
        _adopt_orphans()
        self._before = frozenset(descendants(os.getpid()))
        self._process = subprocess.Popen(
            [*request.command, "-c", BOOTSTRAP],
            env=environment,
            stdin=channel.fileno(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            start_new_session=True,
            # The module's own process has one thread.
            preexec_fn=_preparation(request, secret),
        )
        if self._process.stdout is None or self._process.stderr is None:
            raise ValueError("the probe's output has to be piped")
        self.stdout, self.stderr = self._process.stdout, self._process.stderr

    def __enter__(self) -> _Direct:
        return self

    def __exit__(self, *_error: object) -> None:
        # Not `with process`, which waits: a process stuck in a driver cannot be killed.
        self.stdout.close()
        self.stderr.close()

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def abort(self) -> None:
        self._process.send_signal(signal.SIGABRT)

    def forget_settings(self) -> None:
        """Nothing: a child has no settings elsewhere."""

    def at_the_end(self) -> None:
        """Nothing: what the probe leaves is found after its end."""

    def wait(self, seconds: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def end_everything(self) -> list[str]:
        return list(_end_everything(self._process, self._request.invocation, self._before))

    def ending(self, stderr: str) -> tuple[str, int, str]:
        """Return how it ended (exited or killed), the number, and what it printed."""
        code = self._process.returncode or 0
        return ("killed" if code < 0 else "exited"), abs(code), stderr

    def account(self, started: bool) -> str:
        """Return nothing: there is nobody else to ask."""
        return ""


def _preparation(request: ProbeRequest, secret: str) -> Callable[[], None]:
    """Return what the child does between fork and exec: systemd's steps in systemd's order."""

    def prepare() -> None:
        step, subject = "LIMITS", ""
        try:
            _set_limits(request.limits)
            if request.identity is not None:
                step, subject = "GROUP", str(request.identity.gid)
                os.setgroups(request.identity.groups)
                os.setgid(request.identity.gid)
                step, subject = "USER", str(request.identity.uid)
                os.setuid(request.identity.uid)
            os.umask(request.umask)
            step, subject = "CHDIR", request.working_directory
            try:
                os.chdir(subject)
            except OSError:
                if not request.working_directory_optional:
                    raise
            step = "EXEC"
            for program in (request.python, request.command[0]):
                subject = _library_probe.first_blocked(program) or program
                if subject != program or not os.access(program, os.R_OK | os.X_OK):
                    raise PermissionError(13, "Permission denied")
        except OSError as error:
            failure = {"event": "setup", "step": step, "subject": subject, "reason": error.strerror}
            if step == "CHDIR":
                failure["blocked"] = _library_probe.first_blocked(subject)
            os.write(0, f"{secret}{json.dumps(failure)}\n".encode())
            os._exit(200)

    return prepare


def _set_limits(limits: Mapping[str, tuple[int, int]]) -> None:
    # A crash of the probe must not leave a core file in the service's directory.
    for name, (soft, hard) in {**limits, "LimitCORE": (0, resource.RLIM_INFINITY)}.items():
        number = getattr(resource, "RLIMIT_" + name[len("Limit") :], None)
        if number is None:
            continue
        ceiling = resource.getrlimit(number)[1]
        try:
            resource.setrlimit(number, (soft, hard))
        except (ValueError, OSError):
            # As systemd does where it may not raise a limit: as close as is allowed.
            resource.setrlimit(number, (_lower(soft, ceiling), _lower(hard, ceiling)))


def _lower(wanted: int, ceiling: int) -> int:
    if ceiling == resource.RLIM_INFINITY:
        return wanted
    return ceiling if wanted == resource.RLIM_INFINITY else min(wanted, ceiling)


def _exec_failure(request: ProbeRequest, error: Exception) -> dict[str, Any]:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return {"event": "setup", "step": "EXEC", "subject": request.python, "reason": reason}


def _supervise(
    process: _Direct | TransientUnit,
    channel: socket.socket,
    request: ProbeRequest,
    deadline: float,
    secret: str,
    meanwhile: Callable[[], None],
) -> ProbeOutcome:
    order = {
        "text": _probe_source(),
        "secret": secret,
        "mark": MARK,
        "imports": list(request.imports),
        "dlopen": list(request.dlopen),
        "current_directory_on_path": request.current_directory_on_path,
    }
    with contextlib.closing(Streams(channel, process.stdout, process.stderr, secret, request.trace)) as streams:
        streams.send(json.dumps(order).encode("ascii") + b"\n")
        while not streams.sent and not process.has_ended() and time.monotonic() < deadline:
            streams.read(0.01)
        meanwhile()
        end = ""
        while not end:
            # Not until the pipes close: a daemon that the probed code leaves behind may hold them for ever.
            streams.read(min(0.05, max(0.0, deadline - time.monotonic())))
            if streams.events:
                process.forget_settings()
            if streams.finished:
                end = "finished"
            elif process.has_ended():
                end = "gone"
            elif time.monotonic() >= deadline:
                end = "timeout"
        if end == "timeout":
            process.abort()
            last_words = time.monotonic() + _LAST_WORDS_SECONDS
            while time.monotonic() < last_words and not process.has_ended():
                streams.read(0.05)
        elif end == "finished":
            process.at_the_end()
            with contextlib.suppress(OSError):
                channel.send(b".")
            process.wait(_LAST_WORDS_SECONDS)
        left = process.end_everything()
        for _chunk in range(1000):
            if not streams.read(0):
                break
        stdout, stderr = streams.output()
    how, status, stderr = process.ending(stderr)
    starts = [event for event in streams.events if event["event"] == "interpreter"]
    if request.sandbox is not None and starts and not starts[0].get("marked"):
        raise SandboxError("this systemd does not apply settings to a transient unit")
    words = process.account(bool(starts))
    if end == "gone":
        end = how
        if any(event["event"] == "setup" for event in streams.events):
            end = "not-started"
        elif streams.finished:
            end = "finished"
    return ProbeOutcome(end, status, streams.events, stdout, stderr, left, streams.trace, words)


def _probe_source() -> str:
    # Through the loader, because Ansible runs modules from a zip archive.
    spec = _library_probe.__spec__
    loader: Any = spec.loader if spec else None
    return str(loader.get_source(_library_probe.__name__))


def _adopt_orphans() -> None:
    """Become the parent of what the probe leaves behind, in place of process 1: prctl(2), PR_SET_CHILD_SUBREAPER."""
    # A Python without ctypes finds all but those that leave their session and drop their environment.
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_everything(process: subprocess.Popen[bytes], invocation: str, before: Container[int]) -> Iterator[str]:
    """Kill the probe and all that it started; yield the command lines of the others. ``before`` are not its own."""
    seen: set[int] = {process.pid}
    for _round in range(20):
        others = [pid for pid in _members(process.pid, invocation, before) if pid != process.pid]
        for pid in others:
            if pid not in seen:
                seen.add(pid)
                yield command_line_of(pid)
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if process.poll() is None:
            with contextlib.suppress(OSError):
                process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.5)
        elif not others:
            return
        else:
            time.sleep(0.02)


def _members(session: int, invocation: str, before: Container[int]) -> list[int]:
    """Return the live processes of a session, and those that carry its INVOCATION_ID or descend from us wherever
    they fled.
    """
    marker = f"INVOCATION_ID={invocation}".encode()
    ours = {pid for pid in descendants(os.getpid()) if pid not in before}
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            with contextlib.suppress(OSError):
                state, session_of = _state(entry)
                mine = int(entry) in ours or session_of == session
                if state != "Z" and (mine or marker in Path(f"/proc/{entry}/environ").read_bytes()):
                    found.append(int(entry))
    return found


def _state(pid: str) -> tuple[str, int]:
    # The command name stands in parentheses and may hold anything, parentheses included.
    fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return fields[0], int(fields[3])
