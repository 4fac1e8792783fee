# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Start SGLang's own server, unmodified: the engine sglang of gpufleet.dflash.

Runs inside a virtual environment that holds the package sglang, with the arguments of C(sglang.launch_server):
C(python -m dflash_sglang_server --model-path M --port 30001). It adds what the server lacks as a service: a port that
somebody holds and a model that is not there end the start at once, where SGLang finds out after the model is loaded,
and API keys appear neither in the log of the start nor in the answer of /server_info.

With C(--check), which must come first, the arguments are judged by SGLang's own parser and nothing is served.

Exit status: that of the server; 1 for a port that is held; 2 for arguments that are refused.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import io
import json
import os
import runpy
import socket
import sys
from typing import Any

PROGRAM = "dflash_sglang_server"
ENGINE = "sglang.launch_server"

SECRETS = ("api_key", "admin_api_key", "ssl_keyfile_password")
HIDDEN = "(hidden)"
# As argparse has them, the older spellings included.
MODELS = {
    "--model-path": "model",
    "--model": "model",
    "--speculative-draft-model-path": "draft model",
    "--speculative-draft-model": "draft model",
}


def say(message: str) -> None:
    print(f"{PROGRAM}: {message}", file=sys.stderr, flush=True)


def value_of(arguments: list[str], option: str) -> str | None:
    """Return the last value of an option, written C(--a b) or C(--a=b); None when it is not there."""
    found = None
    for position, argument in enumerate(arguments):
        if argument == option and position + 1 < len(arguments):
            found = arguments[position + 1]
        elif argument.startswith(option + "="):
            found = argument.partition("=")[2]
    return found


def model_findings(arguments: list[str]) -> list[str]:
    """Name each model that is a path of this host and holds no model."""
    found = []
    for option, what in MODELS.items():
        path = value_of(arguments, option)
        # Anything else is a name that the engine fetches, or an address.
        if path is None or not path.startswith(("/", "./", "../")):
            continue
        if not os.path.isdir(path) and not os.path.isfile(path):
            found.append(f"the {what} is not there: {path}: copy it to this host, or correct {option}")
        elif os.path.isdir(path) and not os.path.isfile(os.path.join(path, "config.json")):
            found.append(f"the {what} has no config.json: {path}: {option} needs the folder that holds it")
        elif not os.access(os.path.join(path, "config.json") if os.path.isdir(path) else path, os.R_OK):
            found.append(f"the {what} cannot be read by this user: {path}: correct its owner or mode")
    return found


def held(host: str, port: int) -> str | None:
    """Return why a port cannot be listened on, in words; None when it can."""
    try:
        for family, kind, protocol, _name, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind, protocol) as probe:
                # As the server does: connections that linger from the one before are no obstacle.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return f"port {port} of {host} is held by another process"
        return f"{host}:{port} cannot be listened on: {error.strerror or error}"
    return None


def refusal(arguments: list[str]) -> str | None:
    """Let SGLang's own parser judge the arguments; return its words when it refuses them."""
    from sglang.srt.server_args import prepare_server_args

    usage = io.StringIO()
    try:
        # argparse prints hundreds of lines of usage before its one sentence.
        with contextlib.redirect_stderr(usage):
            prepare_server_args(arguments).check_server_args()
    except SystemExit as end:
        words = usage.getvalue().rpartition("error: ")[2].strip()
        return words or f"the parser ended with status {end.code}"
    except Exception as error:  # the parser raises whatever its checks raise
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return lines[0] if lines else type(error).__name__
    return None


def hide_keys() -> None:
    """Keep API keys out of SGLang's log of its start and out of what /server_info answers."""
    from sglang.srt import server_args
    from sglang.srt.entrypoints import http_server

    shown = server_args.ServerArgs.__repr__

    def representation(self: Any) -> str:
        without = copy.copy(self)
        for name in SECRETS:
            if getattr(without, name, None):
                without.__dict__[name] = HIDDEN
        return shown(without)

    server_args.ServerArgs.__repr__ = representation
    http_server.app.add_middleware(HideKeys)


class HideKeys:
    """ASGI middleware: /server_info tells all of the server's arguments to whoever has one of its keys."""

    PATHS = ("/server_info", "/get_server_info")

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"].rstrip("/") not in self.PATHS:
            await self._app(scope, receive, send)
            return
        started: dict[str, Any] = {}
        body = bytearray()

        async def hold_back(message: Any) -> None:
            if message["type"] == "http.response.start":
                started.update(message)
                return
            body.extend(message.get("body", b""))
            if not message.get("more_body"):
                text = hidden_body(bytes(body))
                headers = [(name, value) for name, value in started["headers"] if name.lower() != b"content-length"]
                await send({**started, "headers": [*headers, (b"content-length", str(len(text)).encode())]})
                await send({"type": "http.response.body", "body": text})

        await self._app(scope, receive, hold_back)


def hidden_body(body: bytes) -> bytes:
    """Return a JSON text with the values of secrets replaced; what is not JSON holds no server arguments."""
    try:
        return json.dumps(without_secrets(json.loads(body))).encode()
    except ValueError:
        return body


def without_secrets(value: Any) -> Any:
    """Return a JSON value with the secrets in it replaced, however deep they are."""
    if isinstance(value, dict):
        return {key: HIDDEN if key in SECRETS and part else without_secrets(part) for key, part in value.items()}
    return [without_secrets(part) for part in value] if isinstance(value, list) else value


def serve(arguments: list[str]) -> int:
    """Run SGLang's server; returns only where it is not even begun."""
    port = value_of(arguments, "--port") or "30000"
    reason = held(value_of(arguments, "--host") or "127.0.0.1", int(port)) if port.isdecimal() else None
    mistakes = [reason] if reason else model_findings(arguments)
    for mistake in mistakes:
        say(mistake)
    if mistakes:
        return 1 if reason else 2
    hide_keys()
    sys.argv[1:] = arguments
    # As `python -m` runs it: SGLang's own processes are made from the name of the main module.
    runpy.run_module(ENGINE, run_name="__main__", alter_sys=True)
    return 0


def check(arguments: list[str]) -> int:
    """Judge arguments; prints one sentence for each mistake."""
    mistakes = model_findings(arguments)
    if not mistakes:
        mistakes = [words for words in [refusal(arguments)] if words]
    for mistake in mistakes:
        say(mistake)
    return 2 if mistakes else 0


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["--check"]:
        return check(arguments[1:])
    return serve(arguments)


if __name__ == "__main__":
    sys.exit(main())
