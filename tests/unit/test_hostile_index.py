# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Indexes that lie, break off, or want the controller's files: over real sockets."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import socket
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.dflash.plugins.module_utils._recipe import inspect_interpreter
from ansible_collections.gpufleet.dflash.plugins.plugin_utils import _index
from ansible_collections.gpufleet.dflash.plugins.plugin_utils._controller_files import HashedFile
from ansible_collections.gpufleet.dflash.plugins.plugin_utils._index import Indexes, IndexFile, PackageIndexError
from ansible_collections.gpufleet.dflash.plugins.plugin_utils._lock_check import Checked, Pin, Target, check
from ansible_collections.gpufleet.dflash.plugins.plugin_utils._wheelhouse import WheelhouseError, fetch

Answers = dict[str, "bytes | Callable[[socket.socket], None]"]


class Server:
    """Says, byte for byte, what a test wants said; remembers the requests."""

    def __init__(self, answers: Answers) -> None:
        self.answers, self.asked = answers, list[str]()
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.netloc = f"127.0.0.1:{self.socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _peer = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            request = b""
            while b"\r\n\r\n" not in request:
                data = connection.recv(65536)
                if not data:
                    return
                request += data
            self.asked.append(request.decode())
            answer = self.answers.get(request.split()[1].decode(), page(b"", 404))
            if callable(answer):
                answer(connection)
            else:
                connection.sendall(answer)


@pytest.fixture
def server() -> Iterator[Server]:
    served = Server({})
    yield served
    served.socket.close()


def page(body: bytes, status: int = 200, kind: str = "text/html", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Type: {kind}", "Connection: close"]
    if "Content_Length" not in headers:
        lines.append(f"Content-Length: {len(body)}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def listing(*files: dict[str, Any]) -> bytes:
    return page(json.dumps({"files": files}).encode(), kind="application/vnd.pypi.simple.v1+json")


def wheel() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("thing.py", "VALUE = 1\n")
    return stream.getvalue()


WHEEL = wheel()
DIGEST = hashlib.sha256(WHEEL).hexdigest()
NAME = "thing-1.0-py3-none-any.whl"
PIN = Pin("thing", "1.0", (f"sha256:{DIGEST}",))


def judge(server: Server, cache: Path) -> Checked:
    target = Target(inspect_interpreter(sys.executable)._asdict())
    return check([PIN], target, Indexes([f"http://{server.netloc}/simple"]), str(cache), None)


def bring(server: Server, file: IndexFile, cache: Path) -> list[HashedFile]:
    indexes = Indexes([f"http://{server.netloc}/simple"])
    return fetch({"thing==1.0": (file, PIN.hashes)}, indexes, str(cache), lambda line: None)


def drip(text: bytes) -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 X\r\nContent-Type: text/html\r\nContent-Length: 100000\r\n\r\n")
        for _number in range(200):
            connection.sendall(text)
            time.sleep(0.1)

    return answer


@pytest.mark.parametrize(
    "answer",
    [
        b"\x16\x03\x01 this is no HTTP\r\n\r\n",
        page(b"", 302, Location="file:///etc/passwd"),
        page(b"", 302, Location="/simple/thing/"),
        page(b'{"files": 7}', kind="application/json"),
        page(b"[" * 100_000, kind="application/json"),
        page(b"<a href='http://[::1/thing-1.0-py3-none-any.whl'>x</a>"),
        page(b'{"files": [{"filename": "a", "url": "http://[::1/a"}]}', kind="application/json"),
        page(b"5\r\nabc", Transfer_Encoding="chunked", Content_Length="9"),
        b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc",
        b"HTTP/1.1 200 X\r\n" + b"A: " + b"x" * 70_000 + b"\r\n\r\n",
        drip(b" "),
        drip(b""),
    ],
)
def test_an_index_that_cannot_be_understood_is_said_and_holds_up_nothing(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    for name, value in (("_TIMEOUT", 1.0), ("_PAUSE", 0.0), ("_PAGE_SECONDS", 2.0)):
        monkeypatch.setattr(_index, name, value, raising=False)
    server.answers["/simple/thing/"] = answer
    begun = time.monotonic()
    judged = judge(server, tmp_path)
    assert judged.skipped or judged.errors
    assert time.monotonic() - begun < 8


@pytest.mark.parametrize("url", ["nothing", "http://[::1", "http://127.0.0.1:port/simple", "http://a b/"])
def test_what_is_no_address_is_one_error(tmp_path: Path, url: str) -> None:
    with pytest.raises(PackageIndexError):
        Indexes([url]).files("thing")


@pytest.mark.parametrize(
    "name",
    [
        "thing-1.0-1/../../../../escaped-py3-none-any.whl",
        "thing-1.0-py3./../../../../../escaped-none-any.whl",
        "thing-1.0-1\0-py3-none-any.whl",
    ],
)
@pytest.mark.parametrize("form", ["json", "html"])
def test_a_file_name_never_leaves_its_folder(server: Server, tmp_path: Path, name: str, form: str) -> None:
    server.answers["/f"] = page(b"x" * 9, Content_Length="999")
    if form == "json":
        server.answers["/simple/thing/"] = listing({"filename": name, "url": "/f", "size": 999})
    else:
        spelled = name.replace("/", "%2F").replace("\0", "%00")
        server.answers["/simple/thing/"] = page(f"<a href='/f/{spelled}'>x</a>".encode())
        server.answers[f"/f/{spelled}"] = server.answers["/f"]
    cache = tmp_path / "a" / "b" / "c"
    judged = judge(server, cache)
    for file in judged.files.values():
        with contextlib.suppress(WheelhouseError, ValueError):
            bring(server, file, cache)
    assert "no index has a wheel of thing==1.0" in judged.errors[0]
    assert [path for path in tmp_path.rglob("*escaped*") if cache not in path.parents] == []


@pytest.mark.parametrize("scheme", ["file", "ftp", "data"])
def test_a_remote_index_names_no_file_of_the_controller(server: Server, tmp_path: Path, scheme: str) -> None:
    secret = tmp_path / NAME
    secret.write_bytes(WHEEL)
    url = {"file": secret.as_uri(), "ftp": f"ftp://{server.netloc}/x", "data": "data:,x"}[scheme]
    server.answers["/simple/thing/"] = listing({"filename": NAME, "url": url, "hashes": {"sha256": DIGEST}})
    judged = judge(server, tmp_path)
    assert not judged.wheels
    (file,) = judged.files.values()
    with pytest.raises(WheelhouseError, match="names no address of the web"):
        bring(server, file, tmp_path)


def test_a_file_that_never_ends_does_not_fill_the_disk(server: Server, tmp_path: Path) -> None:
    def endless(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 X\r\nConnection: close\r\n\r\n")
        for _number in range(64):
            connection.sendall(b"x" * (1 << 20))

    server.answers["/f"] = endless
    file = IndexFile(NAME, f"http://{server.netloc}/f", PIN.hashes, 1000, None, None)
    with pytest.raises(WheelhouseError, match="larger than the index says"):
        bring(server, file, tmp_path)
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 4 << 20


@pytest.mark.parametrize(
    "answer",
    [
        b"\x16\x03\x01 this is no HTTP\r\n\r\n",
        page(WHEEL, Content_Length="many"),
        b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc",
    ],
)
def test_a_broken_answer_for_a_file_is_one_error(server: Server, tmp_path: Path, answer: bytes) -> None:
    server.answers["/f"] = answer
    file = IndexFile(NAME, f"http://{server.netloc}/f", PIN.hashes, None, None, None)
    with contextlib.suppress(WheelhouseError):
        assert bring(server, file, tmp_path)[0].sha256 == DIGEST


@pytest.mark.parametrize("total", ["0", "1000", "99999999999999999999999", "18446744073709551615"])
def test_an_archive_whose_size_is_a_lie_is_not_looked_into(server: Server, tmp_path: Path, total: str) -> None:
    server.answers["/f"] = page(WHEEL, 206, Content_Range=f"bytes 0-1/{total}")
    server.answers["/simple/thing/"] = listing({"filename": NAME, "url": "/f", "hashes": {"sha256": DIGEST}})
    assert "thing-1.0" in judge(server, tmp_path).skipped


def test_metadata_that_unpacks_to_gigabytes_or_not_at_all_is_no_end_of_it(server: Server, tmp_path: Path) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("torch-1.0.dist-info/METADATA", b"A: b\n" * (10 << 20))
    whole = stream.getvalue()
    torn = bytearray(whole)
    torn[60:80] = b"\xff" * 20
    target = Target(inspect_interpreter(sys.executable)._asdict())
    for data in (whole, bytes(torn)):
        digest = hashlib.sha256(data).hexdigest()
        name = "torch-1.0-py3-none-any.whl"
        server.answers["/simple/torch/"] = listing({"filename": name, "url": "/f", "hashes": {"sha256": digest}})
        server.answers["/f"] = page(data)
        pin = Pin("torch", "1.0", (f"sha256:{digest}",))
        judged = check([pin], target, Indexes([f"http://{server.netloc}/simple"]), str(tmp_path), None)
        assert "torch-1.0" in judged.skipped


def test_a_password_goes_to_its_own_index_and_not_without_tls(server: Server, tmp_path: Path) -> None:
    server.answers["/one/thing/"] = listing({"filename": NAME, "url": "/one/f"})
    server.answers["/two/thing/"] = listing({"filename": NAME, "url": "/f"})
    indexes = Indexes([f"http://a:first@{server.netloc}/one", f"http://b:second@{server.netloc}/two"])
    indexes.files("thing")
    sent = [request.partition("Authorization: ")[2].split("\r\n")[0] for request in server.asked]
    assert [text[-8:] for text in sent] == ["YTpmaXJzdA=="[-8:], "YjpzZWNvbmQ="[-8:]]
    server.asked.clear()
    secure = Indexes([f"https://a:first@{server.netloc}/one"])
    plain = IndexFile(NAME, f"http://{server.netloc}/f", (), None, None, None)
    with contextlib.suppress(PackageIndexError):
        secure.open(plain)
    assert server.asked
    assert "Authorization" not in server.asked[0]


@pytest.mark.parametrize("there", [WHEEL, WHEEL + b"more", b"other" * 100])
def test_what_an_earlier_run_left_never_stands_in_the_way(server: Server, tmp_path: Path, there: bytes) -> None:
    def answer(connection: socket.socket) -> None:
        ranged = f"bytes={len(there)}-" in server.asked[-1]
        connection.sendall(page(b"", 416) if ranged else page(WHEEL))

    server.answers["/f"] = answer
    partial = tmp_path / "wheels" / DIGEST / f"{NAME}.part"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(there)
    file = IndexFile(NAME, f"http://{server.netloc}/f", PIN.hashes, None, None, None)
    assert Path(bring(server, file, tmp_path)[0].path).read_bytes() == WHEEL
