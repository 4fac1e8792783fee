# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A LocalIndex behind HTTP, as public and private indexes are: PEP 691, ranges, passwords, connections that break."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from support.local_index import LocalIndex


class HttpIndex(LocalIndex):
    """The wheels of a folder, served by a thread of the test."""

    def __init__(self, folder: Path, credentials: str = "") -> None:
        super().__init__(folder)
        self.credentials = credentials
        self.yanked: dict[str, str] = {}  # file name: reason
        self.sent: Counter[str] = Counter()  # bytes of bodies, by file name
        self.seconds_a_chunk = 0.0
        self.cut_after: int | None = None  # bytes after which the next long answers break off
        self.port = 0

    @property
    def url(self) -> str:
        """Address, with the credentials that it asks for."""
        at = f"{self.credentials}@" if self.credentials else ""
        return f"http://{at}127.0.0.1:{self.port}/simple"

    @contextmanager
    def serving(self) -> Iterator[HttpIndex]:
        """Serve until the end of the block."""
        self.folder.mkdir(parents=True, exist_ok=True)
        index = self

        class Handler(_Handler):
            served = index

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    served: HttpIndex
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        wanted = "Basic " + base64.b64encode(self.served.credentials.encode()).decode()
        if self.served.credentials and self.headers.get("Authorization") != wanted:
            self._answer(401, b"", {"WWW-Authenticate": 'Basic realm="index"'})
            return
        parts = [part for part in self.path.split("/") if part]
        if len(parts) == 2 and parts[0] == "simple":
            self._page(parts[1])
        elif len(parts) == 3 and parts[0] == "files":
            self._file(self.served.folder / parts[1] / parts[2])
        else:
            self._answer(404, b"")

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *arguments: object) -> None:
        """Keep the output of the tests for the tests."""

    def _page(self, project: str) -> None:
        wheels = sorted((self.served.folder / project).glob("*.whl"))
        if not wheels:
            self._answer(404, b"")
            return
        files = [
            {
                "filename": wheel.name,
                "url": f"/files/{project}/{wheel.name}",
                "hashes": {"sha256": hashlib.sha256(wheel.read_bytes()).hexdigest()},
                "size": wheel.stat().st_size,
                "yanked": self.served.yanked.get(wheel.name, False),
            }
            for wheel in wheels
        ]
        page = {"meta": {"api-version": "1.1"}, "name": project, "versions": [], "files": files}
        self._answer(200, json.dumps(page).encode(), {"Content-Type": "application/vnd.pypi.simple.v1+json"})

    def _file(self, path: Path) -> None:
        data = path.read_bytes()
        match = re.match(r"bytes=(\d*)-(\d*)$", self.headers.get("Range", ""))
        if not match:
            self._answer(200, data, name=path.name)
            return
        first, last = match[1], match[2]
        start = int(first) if first else max(0, len(data) - int(last))
        end = min(int(last), len(data) - 1) if first and last else len(data) - 1
        if start > end:
            self._answer(416, b"")
            return
        self._answer(206, data[start : end + 1], {"Content-Range": f"bytes {start}-{end}/{len(data)}"}, name=path.name)

    def _answer(self, status: int, data: bytes, headers: dict[str, str] | None = None, name: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Accept-Ranges", "bytes")
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        for start in range(0, len(data), 1 << 16):
            if name and self.served.cut_after is not None and start >= self.served.cut_after:
                self.close_connection = True
                return
            chunk = data[start : start + (1 << 16)]
            try:
                self.wfile.write(chunk)
            except OSError:
                self.close_connection = True
                return
            if name:
                self.served.sent[name] += len(chunk)
                time.sleep(self.served.seconds_a_chunk)
