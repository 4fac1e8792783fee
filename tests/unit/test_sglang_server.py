# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The launcher of SGLang, as far as it goes without SGLang; with it, in test_real_sglang.py."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

LAUNCHER = Path(__file__).parents[2] / "roles" / "sglang_dflash" / "files" / "dflash_sglang_server.py"


@pytest.fixture(scope="module")
def launcher() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dflash_sglang_server", LAUNCHER)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(LAUNCHER), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("option", ["--model-path", "--speculative-draft-model-path"])
@pytest.mark.parametrize("check", [["--check"], []], ids=["check", "start"])
def test_a_model_that_is_not_there_is_named_before_the_engine_is_imported(
    tmp_path: Path, option: str, check: list[str]
) -> None:
    done = run(*check, option, tmp_path / "nothing", "--port", "1")
    assert (done.returncode, done.stdout) == (2, "")
    what = "draft model" if "draft" in option else "model"
    where = f"{tmp_path}/nothing: copy it to this host, or correct {option}"
    assert done.stderr == f"dflash_sglang_server: the {what} is not there: {where}\n"


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    done = run("--check", f"--model-path={tmp_path}")
    assert done.returncode == 2
    assert f"the model has no config.json: {tmp_path}" in done.stderr


def test_the_name_of_a_model_elsewhere_is_left_to_the_engine(launcher: ModuleType) -> None:
    assert (
        launcher.model_findings(["--model-path", "Qwen/Qwen3-8B", "--speculative-draft-model-path", "s3://b/d"]) == []
    )


def test_a_held_port_ends_the_start_before_anything_is_loaded() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        done = run("--model-path", "Qwen/Qwen3-8B", "--port", str(port))
    assert done.returncode == 1
    assert done.stderr == f"dflash_sglang_server: port {port} of 127.0.0.1 is held by another process\n"


def test_a_port_in_the_shadow_of_an_earlier_connection_is_free(launcher: ModuleType) -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _address = server.accept()
            accepted.close()  # the side that closes first is the one whose port lingers
    assert launcher.held("127.0.0.1", port) is None


def test_an_address_that_is_not_this_hosts_is_named(launcher: ModuleType) -> None:
    assert "192.0.2.1:80 cannot be listened on" in launcher.held("192.0.2.1", 80)


def test_secrets_are_hidden_however_deep_they_are(launcher: ModuleType) -> None:
    answer = {
        "api_key": "sk-1",
        "admin_api_key": None,
        "internal_states": [{"server_args": {"admin_api_key": "sk-2", "port": 1}}],
    }
    hidden = json.loads(launcher.hidden_body(json.dumps(answer).encode()))
    assert hidden == {
        "api_key": "(hidden)",
        "admin_api_key": None,
        "internal_states": [{"server_args": {"admin_api_key": "(hidden)", "port": 1}}],
    }
    assert launcher.hidden_body(b"Internal Server Error") == b"Internal Server Error"


@pytest.mark.parametrize(("path", "shown"), [("/server_info", "(hidden)"), ("/generate", "sk-1")])
def test_the_middleware_touches_only_what_tells_the_arguments(launcher: ModuleType, path: str, shown: str) -> None:
    body = json.dumps({"api_key": "sk-1"}).encode()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"application/json"), (b"Content-Length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body[:5], "more_body": True})
        await send({"type": "http.response.body", "body": body[5:]})

    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(launcher.HideKeys(app)({"type": "http", "path": path}, None, send))
    text = b"".join(message.get("body", b"") for message in sent)
    assert json.loads(text) == {"api_key": shown}
    headers = {name.lower(): value for name, value in sent[0]["headers"]}
    assert int(headers[b"content-length"]) == len(text)


def test_an_unreadable_model_is_named(launcher: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "config.json").chmod(0)
    if os.geteuid() == 0:
        pytest.skip("root reads everything")
    assert "cannot be read by this user" in launcher.model_findings(["--model", str(tmp_path)])[0]
