# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host does before a service stops and after it serves again, such as leaving a load balancer.

Private to the collection. A hook is a command or an HTTP request of the host itself, so that it happens as well when a
switch goes back while the controller is away.
"""

from __future__ import annotations

import base64
import http.client
import os
import re
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Callable
from urllib.parse import unquote, urlsplit, urlunsplit

from ansible_collections.gpufleet.dflash.plugins.module_utils._causes import redact

_LIMIT = 60.0  # seconds, unless a hook says otherwise
_LONGEST = 86400.0
_KEYS = {"command", "url", "method", "status", "timeout"}
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class HookError(Exception):
    """A hook that cannot be used or that failed; the text says what, where and what to do."""


@dataclass(frozen=True)
class Hook:
    """A command (words, no shell) or a request. ``timeout`` in seconds; ``status``: the HTTP status that is success."""

    command: tuple[str, ...] = ()
    url: str = ""
    method: str = "POST"
    status: int = 0  # 0: any 2xx
    timeout: float = _LIMIT

    @classmethod
    def of(cls, mapping: Mapping[str, Any]) -> Hook:
        """Return the hook that a mapping describes. Raises HookError."""
        unknown = sorted(set(mapping) - _KEYS)
        if unknown:
            raise HookError(f"unknown key of a hook: {unknown[0]}: known are {', '.join(sorted(_KEYS))}")
        command = mapping.get("command") or []
        if isinstance(command, str) or not all(isinstance(word, (str, int, float)) for word in command):
            raise HookError(
                f"the command of a hook is a list of words: {_shown(command)}: for a shell, begin with [sh, -c, ...]"
            )
        if any("\0" in str(word) for word in command):
            raise HookError(f"a word of a hook's command has a NUL in it: {_shown(command)}: take it out")
        url = str(mapping.get("url") or "")
        if bool(command) == bool(url):
            raise HookError(f"a hook has either command or url: {_shown(dict(mapping))}: give one of them")
        if url and not _is_address(url):
            raise HookError(f"not an address: {redact(url)}: give http://HOST:PORT/PATH")
        try:
            timeout, status = float(mapping.get("timeout") or _LIMIT), int(mapping.get("status") or 0)
        except (TypeError, ValueError, OverflowError):
            raise HookError(
                f"timeout and status of a hook are numbers: {_shown(dict(mapping))}: correct them"
            ) from None
        if not 0 < timeout <= _LONGEST:
            raise HookError(f"the timeout of a hook is out of range: {timeout:g}: give up to {_LONGEST:.0f} seconds")
        method = str(mapping.get("method") or "POST").upper()
        if not re.fullmatch("[A-Z]+", method):
            raise HookError(f"not a method of HTTP: {method!r}: give one like POST")
        return cls(tuple(str(word) for word in command), url, method, status, timeout)

    @property
    def words(self) -> str:
        """The hook for people."""
        return f"{self.method} {self.url}" if self.url else " ".join(self.command)

    def run(self) -> None:
        """Carry it out. Raises HookError with the reason."""
        reason = self._request() if self.url else self._execute()
        if reason:
            raise HookError(f"{redact(self.words)}: {redact(reason)}")

    def _execute(self) -> str | None:
        try:
            # Files, for a pipe stays open as long as anything that the command left in the background.
            with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
                done = subprocess.run(
                    self.command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=errors,
                    timeout=self.timeout,
                    check=False,
                )
                lines = _last_lines(errors) or _last_lines(output)
        except subprocess.TimeoutExpired:
            return f"was not done in {self.timeout:g} s"
        except OSError as error:
            return error.strerror or str(error)
        if not done.returncode:
            return None
        return f"exit status {done.returncode}" + (f": {lines[-1]}" if lines else "")

    def _request(self) -> str | None:
        parts = urlsplit(self.url)
        user, at, place = parts.netloc.rpartition("@")
        try:
            request = urllib.request.Request(
                urlunsplit(parts._replace(netloc=place)),
                method=self.method,
                data=b"" if self.method == "POST" else None,
            )
            if at:
                name, _colon, password = user.partition(":")
                token = base64.b64encode(f"{unquote(name)}:{unquote(password)}".encode()).decode()
                request.add_unredirected_header("Authorization", f"Basic {token}")
            with _OPENER.open(request, timeout=self.timeout) as response:
                status = response.status
        except urllib.error.HTTPError as error:
            status = error.code
        except (OSError, http.client.HTTPException, ValueError) as error:
            return str(getattr(error, "reason", error)) or type(error).__name__
        good = status == self.status if self.status else 200 <= status < 300
        return None if good else f"HTTP {status}"


def without_secrets(given: Any) -> Any:
    """What was given as hooks, as it may be shown."""
    if isinstance(given, Mapping):
        return {key: without_secrets(value) for key, value in given.items()}
    if isinstance(given, (list, tuple)):
        return [without_secrets(value) for value in given]
    return redact(given) if isinstance(given, str) else given


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return (
            parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 80) > 0 and url.isprintable()
        )
    except ValueError:
        return False


def _shown(given: Any) -> str:
    return redact(repr(given))


def _last_lines(stream: BinaryIO) -> list[str]:
    stream.seek(max(0, stream.seek(0, os.SEEK_END) - 4096))
    return [line.strip() for line in stream.read().decode("utf-8", "replace").splitlines() if line.strip()]


def hooks_of(description: Mapping[str, Any], moment: str) -> list[Hook]:
    """Return the hooks of ``pre_stop`` or ``post_start``. Raises HookError."""
    given = description.get(moment) or []
    if isinstance(given, (str, Mapping)) or not all(isinstance(item, Mapping) for item in given):
        raise HookError(f"{moment} is a list of hooks, each with command or url: correct it")
    return [Hook.of(item) for item in given]


def run_hooks(hooks: Sequence[Hook], moment: str, progress: Callable[[str], None]) -> None:
    """Carry out hooks in order; the first that fails ends it. Raises HookError."""
    for hook in hooks:
        progress(f"{moment}: {redact(hook.words)}")
        hook.run()
