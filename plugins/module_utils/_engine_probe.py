# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Questions to an engine over HTTP: does it serve, and do tokens come out.

This module is private to the collection: it can change at any time.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Callable

from ansible_collections.gpufleet.dflash.plugins.module_utils._files import read_regular

# SGLang answers for a hung scheduler after 20 seconds: a shorter wait could not tell hung from slow.
HEALTH_TIMEOUT = 30.0
LONGEST_ANSWER = 4 << 20
PROMPT = "Count from one to one hundred: one, two, three,"

# The engine is asked directly: a proxy of the environment would answer 403 or 503 in its stead.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Answer:
    """How one request ended: an HTTP status, or None and the reason why there is none. C(seconds) it took."""

    status: int | None
    reason: str
    seconds: float
    body: bytes = b""

    @property
    def summary(self) -> str:
        """What happened in a word or two, the same for the same outcome."""
        return f"HTTP {self.status}" if self.status is not None else self.reason


def read_key(path: str) -> str | None:
    """Return the API key of a file: the whole text, or C(api-key) of an engine's configuration as JSON.

    None when that has none. Raises OSError, and ValueError for what can be no key.
    """
    text = read_regular(path, limit=65536).decode("utf-8").strip()
    if text.startswith("{"):
        found = json.loads(text).get("api-key")
        return None if found is None else str(found)
    if not text or not text.isprintable():
        raise ValueError("it holds no key of one line")
    return text


def ask(
    url: str, payload: Mapping[str, Any] | None = None, timeout: float = HEALTH_TIMEOUT, key: str | None = None
) -> Answer:
    """Return the answer to a GET, or to a POST of C(payload) as JSON; no failure raises."""
    begin = time.monotonic()
    data = None if payload is None else json.dumps(payload).encode()
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    request = urllib.request.Request(url, data=data, headers=headers)
    status, reason, body = None, "", b""
    try:
        with _OPENER.open(request, timeout=timeout) as response:
            body = response.read(LONGEST_ANSWER)
            status = response.status
    except urllib.error.HTTPError as error:
        status = error.code
        with contextlib.suppress(OSError, http.client.HTTPException):
            body = error.read(LONGEST_ANSWER)
    except OSError as error:  # URLError is one
        reason = _reason(error)
    except (http.client.HTTPException, ValueError) as error:
        reason = f"no HTTP answer ({type(error).__name__})"
    return Answer(status, reason, time.monotonic() - begin, body)


def _reason(error: BaseException) -> str:
    cause = getattr(error, "reason", error)
    for kind, words in (
        (ConnectionRefusedError, "connection refused"),
        (TimeoutError, "no answer in time"),
        (ConnectionError, "connection broken"),
    ):
        if isinstance(cause, kind):
            return words
    return str(cause) or type(cause).__name__


@dataclass(frozen=True)
class Generation:
    """One completion: its text and tokens, and how its drafts fared.

    C(drafted) counts verifications (SGLang) or drafted tokens (llama.cpp); None without speculation.
    C(accept_length) is the mean number of tokens that one verification by the target yielded, at least 1.
    """

    text: str
    completion_tokens: int
    seconds: float
    drafted: int | None = None
    accept_length: float | None = None

    def to_mapping(self) -> dict[str, Any]:
        rate = self.completion_tokens / self.seconds if self.seconds > 0 else 0.0
        return {**asdict(self), "seconds": round(self.seconds, 3), "tokens_per_second": round(rate, 1)}


@dataclass(frozen=True)
class Protocol:
    """How an engine is asked for tokens and how its answer reads."""

    path: str
    request: Callable[[str, int, str], dict[str, Any]]
    read: Callable[[dict[str, Any], float], Generation]


def _sglang_request(model: str, tokens: int, prompt: str) -> dict[str, Any]:
    return {
        "text": prompt,
        "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True},
    }


def _sglang_read(answer: dict[str, Any], seconds: float) -> Generation:
    meta = answer["meta_info"]
    drafted = meta.get("spec_verify_ct")
    length = meta.get("spec_accept_length")
    tokens = int(meta["completion_tokens"])
    if length is None and drafted:
        length = tokens / drafted
    return Generation(str(answer["text"]), tokens, seconds, drafted, length)


def _llama_cpp_request(model: str, tokens: int, prompt: str) -> dict[str, Any]:
    message = {"role": "user", "content": prompt}
    return {"model": model, "messages": [message], "temperature": 0, "max_tokens": tokens, "ignore_eos": True}


def _llama_cpp_read(answer: dict[str, Any], seconds: float) -> Generation:
    message = answer["choices"][0]["message"]
    text = str(message.get("content") or message.get("reasoning_content") or "")
    timings = answer.get("timings", {})
    drafted, accepted = timings.get("draft_n"), timings.get("draft_n_accepted", 0)
    tokens = int(answer["usage"]["completion_tokens"])
    length = None
    if drafted is not None:
        # The first token comes from the prompt; every later step yields one token and the drafts it accepted.
        steps = tokens - 1 - accepted
        length = round((tokens - 1) / steps, 3) if steps > 0 else 1.0
    return Generation(text, tokens, seconds, drafted, length)


PROTOCOLS = {
    "sglang": Protocol("/generate", _sglang_request, _sglang_read),
    "llama_cpp": Protocol("/v1/chat/completions", _llama_cpp_request, _llama_cpp_read),
}


class GenerationError(Exception):
    """No completion came back; the text says what did."""


def generate(
    url: str,
    protocol: str,
    model: str,
    tokens: int,
    timeout: float,
    key: str | None = None,
    prompt: str = PROMPT,
) -> Generation:
    """Return the engine's completion of a short prompt; raise GenerationError when there is none."""
    speaks = PROTOCOLS[protocol]
    answer = ask(url.rstrip("/") + speaks.path, speaks.request(model, tokens, prompt), timeout, key)
    if answer.status != 200:
        words = answer.body[:300].decode("utf-8", "replace").strip()
        raise GenerationError(f"POST {speaks.path}: {answer.summary}{': ' + words if words else ''}")
    try:
        completion = speaks.read(json.loads(answer.body), answer.seconds)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise GenerationError(
            f"POST {speaks.path}: not an answer of the protocol {protocol} ({type(error).__name__}: {error})"
        ) from error
    if completion.completion_tokens < 1 or not completion.text:
        raise GenerationError(f"POST {speaks.path}: the completion is empty ({completion.completion_tokens} tokens)")
    return completion
