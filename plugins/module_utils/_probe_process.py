# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the probe as a service's process would run, and survive whatever it does.

Private to the collection. The probe can crash, hang, fork, exit or flood its output; its end is always
reported, and nothing that it started stays behind. Its text travels in an anonymous file, not on disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

from ansible_collections.gpufleet.dflash.plugins.module_utils import _library_probe

# What is kept of standard output and of standard error, from the end.
OUTPUT_BYTES = 16384
# Longest single report; the list of mapped files of a large engine is a tenth of this.
_REPORT_BYTES = 4 << 20
# How long a hanging interpreter gets to print where it hangs.
_LAST_WORDS_SECONDS = 1.0
_BOOTSTRAP = (
    "import os, sys; fd = int(sys.argv[1]); text = os.pread(fd, 1 << 20, 0); os.close(fd); "
    "exec(compile(text, '<string>', 'exec'))"
)


@dataclass(frozen=True)
class Identity:
    """Numeric user, group and supplementary groups of a process."""

    uid: int
    gid: int
    groups: tuple[int, ...]


@dataclass(frozen=True)
class ProbeRequest:
    """What to load and as what kind of process; ``timeout`` in seconds. No ``identity``: as the caller."""

    python: str
    imports: Sequence[str]
    dlopen: Sequence[str]
    environment: Mapping[str, str]
    invocation: str
    timeout: float
    identity: Identity | None = None
    working_directory: str = "/"
    working_directory_optional: bool = False
    current_directory_on_path: bool = False
    umask: int = 0o022
    limits: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass
class ProbeOutcome:
    """How a probe ended: ``end`` is finished, exited, killed, timeout or not-started; ``status`` its number.

    ``events`` are the probe's reports in order, ``stdout`` and ``stderr`` the end of its output, ``left`` the
    command lines of processes that outlived it (they have been killed).
    """

    end: str
    status: int
    events: list[dict[str, Any]]
    stdout: str
    stderr: str
    left: list[str]


def run_probe(request: ProbeRequest) -> ProbeOutcome:
    """Run the probe once; raises nothing for what the probed code does."""
    with contextlib.ExitStack() as stack:
        source = _anonymous_file(stack, "probe", _probe_source())
        order = {
            "imports": list(request.imports),
            "dlopen": list(request.dlopen),
            "current_directory_on_path": request.current_directory_on_path,
        }
        asked = _anonymous_file(stack, "request", json.dumps(order).encode("utf-8"))
        report_read, report_write = os.pipe()
        stack.callback(os.close, report_read)
        try:
            # -u: what is printed before a crash is worth having. The module's own process has one thread.
            process = subprocess.Popen(
                [request.python, "-B", "-u", "-c", _BOOTSTRAP, str(source), str(asked), str(report_write)],
                env={
                    **request.environment,
                    "INVOCATION_ID": request.invocation,
                    "PYTHONDONTWRITEBYTECODE": "1",
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(source, asked, report_write),
                cwd="/",
                start_new_session=True,
                preexec_fn=_preparation(request, report_write),
            )
        except (OSError, subprocess.SubprocessError) as error:
            events = [_exec_failure(request, error)]
            return ProbeOutcome("not-started", 0, events, "", "", [])
        finally:
            os.close(report_write)
        try:
            return _supervise(process, report_read, request)
        finally:
            # Not `with process`, which waits: a process stuck in a driver cannot be killed.
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


def _probe_source() -> bytes:
    # Through the loader, because Ansible runs modules from a zip archive.
    spec = _library_probe.__spec__
    loader: Any = spec.loader if spec else None
    return str(loader.get_source(_library_probe.__name__)).encode("utf-8")


def _anonymous_file(stack: contextlib.ExitStack, name: str, content: bytes) -> int:
    descriptor = os.memfd_create(name)
    stack.callback(os.close, descriptor)
    while content:
        content = content[os.write(descriptor, content) :]
    return descriptor


def _preparation(request: ProbeRequest, report: int) -> Callable[[], None]:
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
            step, subject = "EXEC", request.python
            blocked = _library_probe.first_blocked(subject)
            if blocked is not None:
                subject = blocked
                raise PermissionError(13, "Permission denied")
        except OSError as error:
            failure = {"event": "setup", "step": step, "subject": subject, "reason": error.strerror}
            if step == "CHDIR":
                failure["blocked"] = _library_probe.first_blocked(subject)
            os.write(report, json.dumps(failure).encode("utf-8") + b"\n")
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


class _Streams:
    """Collects the probe's reports and the end of its output."""

    def __init__(self, process: subprocess.Popen[bytes], report: int) -> None:
        if process.stdout is None or process.stderr is None:
            raise ValueError("the probe's output has to be piped")
        self.events: list[dict[str, Any]] = []
        self.finished = False
        self._tails = {process.stdout.fileno(): b"", process.stderr.fileno(): b""}
        self._stdout, self._stderr = self._tails
        self._report = report
        self._partial = b""
        self._selector = selectors.DefaultSelector()
        for descriptor in (report, *self._tails):
            os.set_blocking(descriptor, False)
            self._selector.register(descriptor, selectors.EVENT_READ)

    def read(self, seconds: float) -> bool:
        """Take what arrives within so many seconds; False when nothing did."""
        ready = self._selector.select(seconds) if self._selector.get_map() else []
        for key, _mask in ready:
            data = os.read(key.fd, 65536)
            if not data:
                self._selector.unregister(key.fd)
            elif key.fd == self._report:
                self._take_report(data)
            else:
                self._tails[key.fd] = (self._tails[key.fd] + data)[-OUTPUT_BYTES:]
        if not ready and not self._selector.get_map():
            time.sleep(seconds)
        return bool(ready)

    def _take_report(self, data: bytes) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        self._partial = self._partial[-_REPORT_BYTES:]
        for line in lines:
            # The probed code can write to any descriptor: only what has the form of a report counts.
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict) and isinstance(event.get("event"), str):
                    self.events.append(event)
                    self.finished = self.finished or event["event"] == "end"

    def output(self) -> tuple[str, str]:
        texts = [self._tails[stream].decode("utf-8", "replace") for stream in (self._stdout, self._stderr)]
        return texts[0], texts[1]

    def close(self) -> None:
        self._selector.close()


def _supervise(process: subprocess.Popen[bytes], report: int, request: ProbeRequest) -> ProbeOutcome:
    streams = _Streams(process, report)
    deadline = time.monotonic() + request.timeout
    end = ""
    while not end:
        # Not until the pipes close: a daemon that the probed code leaves behind may hold them for ever.
        streams.read(min(0.05, max(0.0, deadline - time.monotonic())))
        if streams.finished:
            end = "finished"
        elif process.poll() is not None:
            end = "gone"
        elif time.monotonic() >= deadline:
            end = "timeout"
    if end == "timeout":
        process.send_signal(signal.SIGABRT)
        last_words = time.monotonic() + _LAST_WORDS_SECONDS
        while time.monotonic() < last_words and process.poll() is None:
            streams.read(0.05)
    elif end == "finished":
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LAST_WORDS_SECONDS)
    for _chunk in range(1000):
        if not streams.read(0):
            break
    left = list(_end_everything(process, request.invocation))
    streams.close()
    stdout, stderr = streams.output()
    code = process.returncode if process.returncode is not None else 0
    if end == "gone":
        end = "killed" if code < 0 else "exited"
        if any(event["event"] == "setup" for event in streams.events):
            end = "not-started"
        elif streams.finished:
            end = "finished"
    return ProbeOutcome(end, abs(code), streams.events, stdout, stderr, left)


def _end_everything(process: subprocess.Popen[bytes], invocation: str) -> Iterator[str]:
    """Kill the probe and all that it started; yield the command lines of the others."""
    seen: set[int] = {process.pid}
    for _round in range(20):
        others = [pid for pid in _members(process.pid, invocation) if pid != process.pid]
        for pid in others:
            if pid not in seen:
                seen.add(pid)
                yield _command_line(pid)
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


def _members(session: int, invocation: str) -> list[int]:
    """Return the live processes of a session, and those that carry its INVOCATION_ID wherever they fled."""
    marker = f"INVOCATION_ID={invocation}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            with contextlib.suppress(OSError):
                state, session_of = _state(entry)
                if state != "Z" and (session_of == session or marker in Path(f"/proc/{entry}/environ").read_bytes()):
                    found.append(int(entry))
    return found


def _state(pid: str) -> tuple[str, int]:
    # The command name stands in parentheses and may hold anything, parentheses included.
    fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return fields[0], int(fields[3])


def _command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
        return " ".join("-c ..." if word == _BOOTSTRAP else word for word in words if word)[:200]
    return ""
