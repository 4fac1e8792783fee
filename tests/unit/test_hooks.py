# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hooks: real commands and a real HTTP server."""

from __future__ import annotations

import base64
import http.server
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.dflash.plugins.module_utils._hooks import Hook, HookError, hooks_of, run_hooks


class Balancer(http.server.BaseHTTPRequestHandler):
    seen: list[str] = []
    authorization: list[str] = []

    def do_POST(self) -> None:
        Balancer.seen.append(f"{self.command} {self.path}")
        Balancer.authorization.append(self.headers.get("Authorization", ""))
        self.send_response(503 if "refuse" in self.path else 204)
        self.end_headers()

    do_PUT = do_POST  # noqa: N815 - the name that the server looks for

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def balancer() -> Iterator[str]:
    Balancer.seen, Balancer.authorization = [], []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Balancer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_hooks_run_in_order_and_are_told(tmp_path: Path, balancer: str) -> None:
    said: list[str] = []
    given = [{"command": ["touch", f"{tmp_path}/drained"]}, {"url": f"{balancer}/leave?host=a", "method": "PUT"}]
    run_hooks(hooks_of({"pre_stop": given}, "pre_stop"), "pre_stop", said.append)
    assert (tmp_path / "drained").exists()
    assert Balancer.seen == ["PUT /leave?host=a"]
    assert said == [f"pre_stop: touch {tmp_path}/drained", f"pre_stop: PUT {balancer}/leave?host=a"]


def test_the_first_failure_ends_it(tmp_path: Path, balancer: str) -> None:
    given = [{"url": f"{balancer}/refuse"}, {"command": ["touch", f"{tmp_path}/never"]}]
    with pytest.raises(HookError, match=r"POST http.*/refuse: HTTP 503"):
        run_hooks(hooks_of({"pre_stop": given}, "pre_stop"), "pre_stop", lambda line: None)
    assert not (tmp_path / "never").exists()
    run_hooks([Hook.of({"url": f"{balancer}/refuse", "status": 503})], "pre_stop", lambda line: None)


@pytest.mark.parametrize(
    ("hook", "words"),
    [
        ({"command": ["sh", "-c", "echo no such pool >&2; exit 3"]}, "exit status 3: no such pool"),
        ({"command": ["/no/such/program"]}, "No such file"),
        ({"command": ["sleep", "30"], "timeout": 0.2}, "was not done in 0.2 s"),
        ({"url": "http://127.0.0.1:9/"}, "refused"),
    ],
)
def test_a_failure_says_why(hook: dict[str, Any], words: str) -> None:
    with pytest.raises(HookError, match=words):
        Hook.of(hook).run()


@pytest.mark.parametrize(
    ("hook", "words"),
    [
        ({}, "either command or url"),
        ({"command": ["a"], "url": "http://b/"}, "either command or url"),
        ({"command": "rm -rf /"}, "is a list of words"),
        ({"url": "file:///etc/passwd"}, "not an address"),
        ({"url": "http://b/", "timeout": "soon"}, "are numbers"),
        ({"shell": "a"}, "unknown key of a hook: shell"),
        ({"command": ["a\0b"]}, "has a NUL in it"),
        ({"url": "http://[::1/"}, "not an address"),
        ({"url": "http://b:port/"}, "not an address"),
        ({"url": "http://b/", "method": "GET /\r\nX:"}, "not a method of HTTP"),
        ({"url": "http://b/", "timeout": "nan"}, "out of range"),
        ({"url": "http://b/", "timeout": -1}, "out of range"),
        ({"url": "http://b/", "timeout": 1e300}, "out of range"),
    ],
)
def test_what_is_no_hook_is_one_clear_error(hook: dict[str, Any], words: str) -> None:
    with pytest.raises(HookError, match=words):
        Hook.of(hook)
    with pytest.raises(HookError, match="is a list of hooks"):
        hooks_of({"pre_stop": hook or "x"}, "pre_stop")


def test_what_an_address_carries_is_told_to_its_host_and_to_nobody_else(balancer: str) -> None:
    said: list[str] = []
    address = balancer.replace("://", "://r0bot:s3cret%21@") + "/leave?token=t0ken"
    run_hooks([Hook.of({"url": address})], "pre_stop", said.append)
    assert Balancer.seen == ["POST /leave?token=t0ken"]
    assert Balancer.authorization == ["Basic " + base64.b64encode(b"r0bot:s3cret!").decode()]
    with pytest.raises(HookError) as failed:
        Hook.of({"url": address.replace("leave", "refuse")}).run()
    for wrong in ({"url": address, "timeout": "soon"}, {"url": address, "command": ["a"]}, {"command": address}):
        with pytest.raises(HookError) as refused:
            Hook.of(wrong)
        said.append(str(refused.value))
    for text in (*said, str(failed.value)):
        assert not [secret for secret in ("s3cret", "t0ken") if secret in text]


def test_an_answer_that_is_no_http_is_a_failure_like_any_other() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _peer = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"go away\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(HookError, match="go away"):
            Hook.of({"url": f"http://127.0.0.1:{server.getsockname()[1]}/"}).run()
        thread.join()


def test_what_a_command_leaves_in_the_background_is_not_waited_for(tmp_path: Path) -> None:
    begun = time.monotonic()
    Hook.of({"command": ["sh", "-c", f"sleep 5 & echo $! > {tmp_path}/pid"], "timeout": 4}).run()
    assert time.monotonic() - begun < 3
    os.kill(int((tmp_path / "pid").read_text()), 15)
