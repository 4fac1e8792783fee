# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The probe's reports, the end of its output, and the loader's trace among it. Private to the collection."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import time
from typing import IO, Any

from ansible_collections.gpufleet.dflash.plugins.module_utils._load_trace import Trace
from ansible_collections.gpufleet.dflash.plugins.module_utils._probe_report import is_report

# What is kept of standard output and of standard error, from the end.
OUTPUT_BYTES = 16384
# Longest single report; the list of mapped files of a large engine is a tenth of this.
_REPORT_BYTES = 4 << 20
_MOST_REPORTS = 10_000


class Streams:
    """Collects what the probe reports and prints; ``trace`` is what the loader prints with LD_DEBUG, where asked."""

    def __init__(self, channel: socket.socket, stdout: IO[bytes], stderr: IO[bytes], secret: str, traced: bool) -> None:
        self.events: list[dict[str, Any]] = []
        self.finished = False
        self.trace = Trace() if traced else None
        self._channel = channel
        self._secret = secret.encode("ascii")
        self._to_send = b""
        self._report = channel.fileno()
        self._stdout, self._stderr = stdout.fileno(), stderr.fileno()
        self._tails = {self._stdout: b"", self._stderr: b""}
        self._partial = b""
        self._selector = selectors.DefaultSelector()
        for descriptor in (self._report, *self._tails):
            os.set_blocking(descriptor, False)
            self._selector.register(descriptor, selectors.EVENT_READ)

    def send(self, data: bytes) -> None:
        """Send this while reading; a peer that never reads must not hold us up."""
        self._to_send += data
        self._selector.modify(self._report, selectors.EVENT_READ | selectors.EVENT_WRITE)

    @property
    def sent(self) -> bool:
        """Whether everything is sent, or cannot be."""
        return not self._to_send

    def read(self, seconds: float) -> bool:
        """Take what arrives within so many seconds; False when nothing did."""
        ready = self._selector.select(seconds) if self._selector.get_map() else []
        for key, mask in ready:
            if mask & selectors.EVENT_WRITE:
                self._send_some()
            if mask & selectors.EVENT_READ:
                self._take(key.fd)
        if not ready and not self._selector.get_map():
            time.sleep(seconds)
        return bool(ready)

    def output(self) -> tuple[str, str]:
        """Return the end of standard output and of standard error."""
        texts = [self._tails[stream].decode("utf-8", "replace") for stream in (self._stdout, self._stderr)]
        if self.trace is not None:
            texts[1] += self.trace.rest.decode("utf-8", "replace")
        return texts[0], texts[1]

    def close(self) -> None:
        self._selector.close()

    def _send_some(self) -> None:
        try:
            self._to_send = self._to_send[self._channel.send(self._to_send) :]
        except BlockingIOError:
            return
        except OSError:
            self._to_send = b""
        if not self._to_send:
            self._selector.modify(self._report, selectors.EVENT_READ)

    def _take(self, descriptor: int) -> None:
        try:
            data = os.read(descriptor, 65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(descriptor)
            if descriptor == self._report:
                self._to_send = b""
        elif descriptor == self._report:
            self._take_report(data)
        else:
            if descriptor == self._stderr and self.trace is not None:
                data = self.trace.take(data)
            self._tails[descriptor] = (self._tails[descriptor] + data)[-OUTPUT_BYTES:]

    def _take_report(self, data: bytes) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        self._partial = self._partial[-_REPORT_BYTES:]
        for line in lines:
            # The probed code can write to any descriptor: only what carries the secret is a report.
            if not line.startswith(self._secret):
                continue
            with contextlib.suppress(ValueError):
                event = json.loads(line[len(self._secret) :])
                if is_report(event) and len(self.events) < _MOST_REPORTS:
                    self.events.append(event)
                    self.finished = self.finished or event["event"] == "end"
