# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How fast an engine generates, and how well it drafts: a probe of a few requests, or the engine's own benchmark.

This module is private to the collection: it can change at any time.
"""

from __future__ import annotations

import json
import math
import os
import pwd
import subprocess
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from typing import Any
from urllib.parse import urlsplit

from ansible_collections.gpufleet.dflash.plugins.module_utils._causes import redact
from ansible_collections.gpufleet.dflash.plugins.module_utils._engine_probe import (
    Generation,
    GenerationError,
    ask,
    generate,
    read_key,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._files import read_regular

BUILTIN = "builtin"
SGLANG = "sglang"
LIMITS = {"requests": 1000, "tokens": 8192, "concurrency": 256}
REQUEST_TIMEOUT = 300.0
BENCHMARK_TIMEOUT = 1800.0
INPUT_TOKENS = 32  # of each request of the engine's own benchmark

# Kinds of text that drafters find easy and hard. They are part of what a probe is: other prompts are another probe.
PROMPTS = (
    "Count from one to one hundred: one, two, three,",
    "Write a Python function that returns the prime numbers below n, with a docstring and a test.",
    "Natalia sold 48 clips in April, and half as many in May. How many did she sell altogether? Think step by step.",
    "Explain to a new colleague why a service is drained before it is stopped.",
)


@dataclass(frozen=True)
class Probe:
    """What is asked for: C(requests) completions of C(tokens) tokens a round, C(concurrency) at once.

    Rounds are repeated until C(seconds) have passed; the fastest one counts, as whatever disturbs only slows.
    C(bench): BUILTIN, or SGLANG for C(sglang.bench_serving) with random token ids.
    """

    bench: str = BUILTIN
    requests: int = 4
    tokens: int = 64
    concurrency: int = 1
    seconds: float = 3.0

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Probe:
        """Return the probe that C(mapping) describes; ValueError names what cannot be used."""
        known = {item.name for item in fields(cls)}
        unknown = sorted(set(mapping) - known)
        if unknown:
            raise ValueError(f"probe: unknown key: {unknown[0]}: known are {', '.join(sorted(known))}")
        values = {name: value for name, value in mapping.items() if value is not None}
        if values.get("bench", BUILTIN) not in (BUILTIN, SGLANG):
            raise ValueError(f"probe.bench: {values['bench']!r}: give {BUILTIN} or {SGLANG}")
        for name, limit in LIMITS.items():
            values[name] = _whole(name, values.get(name, getattr(cls, name)))
            if not (1 if name != "requests" else 0) <= values[name] <= limit:
                raise ValueError(f"probe.{name}: {values[name]}: give a number up to {limit}")
        if values["tokens"] < 2:
            raise ValueError("probe.tokens: give 2 or more: the first token of a completion is never drafted")
        try:
            values["seconds"] = float(values.get("seconds", cls.seconds))
        except (TypeError, ValueError):
            raise ValueError(f"probe.seconds: {values['seconds']!r}: give a number") from None
        if not 0 <= values["seconds"] <= 3600:
            raise ValueError(f"probe.seconds: {values['seconds']}: give 0 to 3600")
        return cls(**values)

    @property
    def wanted(self) -> bool:
        """Whether anything is to be measured."""
        return self.requests > 0

    def to_mapping(self) -> dict[str, Any]:
        """Return the probe as plain values; two measurements can be compared when these are the same."""
        return asdict(self)


def _whole(name: str, value: Any) -> int:
    try:
        number = int(str(value))
    except ValueError:
        raise ValueError(f"probe.{name}: {value!r}: give a whole number") from None
    return number


@dataclass(frozen=True)
class Target:
    """An engine that can be measured.

    For its own benchmark: C(python), the interpreter of its generation; C(library_path), its LD_LIBRARY_PATH; C(user),
    whom it runs as.
    """

    url: str
    protocol: str
    model: str = "default"
    api_key_file: str | None = None
    python: str = ""
    library_path: str = ""
    user: str = ""


@dataclass(frozen=True)
class Measurement:
    """Tokens a second over all requests of the fastest round, and the mean accept length over all rounds.

    C(accept_length) is None without speculation. C(rounds) are the tokens a second of each round.
    """

    tokens_per_second: float
    accept_length: float | None
    tokens: int
    seconds: float
    rounds: tuple[float, ...] = ()

    def to_mapping(self) -> dict[str, Any]:
        slowest = min(self.rounds, default=self.tokens_per_second)
        return {**asdict(self), "rounds": len(self.rounds), "slowest": slowest}


class MeasurementError(Exception):
    """Nothing could be measured; the text says why."""


def measure(target: Target, probe: Probe, warm: bool = True) -> Measurement:
    """Return how fast an engine is; raise MeasurementError when it does not let itself be measured.

    C(warm): ask once before anything counts, so that neither a cold cache nor a first compilation does.
    """
    try:
        key = read_key(target.api_key_file) if target.api_key_file else None
    except (OSError, ValueError) as error:
        raise MeasurementError(f"the API key cannot be read: {target.api_key_file}: {error}") from error
    if probe.bench == SGLANG:
        return _bench_serving(target, probe, key)
    try:
        if warm:
            _round(target, probe, key)
        return _rounds(target, probe, key)
    except GenerationError as error:
        raise MeasurementError(str(error)) from error


def _rounds(target: Target, probe: Probe, key: str | None) -> Measurement:
    begin = time.monotonic()
    rates: list[float] = []
    everything: list[Generation] = []
    while not rates or time.monotonic() < begin + probe.seconds:
        started = time.monotonic()
        completions = _round(target, probe, key)
        took = max(time.monotonic() - started, 1e-6)
        rates.append(round(sum(each.completion_tokens for each in completions) / took, 1))
        everything += completions
    tokens = sum(each.completion_tokens for each in everything)
    return Measurement(max(rates), _accept_length(everything), tokens, round(time.monotonic() - begin, 3), tuple(rates))


def _round(target: Target, probe: Probe, key: str | None) -> list[Generation]:
    def one(number: int) -> Generation:
        prompt = PROMPTS[number % len(PROMPTS)]
        return generate(target.url, target.protocol, target.model, probe.tokens, REQUEST_TIMEOUT, key, prompt)

    if probe.concurrency == 1:
        return [one(number) for number in range(probe.requests)]
    with ThreadPoolExecutor(max_workers=probe.concurrency) as pool:
        return list(pool.map(one, range(probe.requests)))


def _accept_length(completions: list[Generation]) -> float | None:
    """Return the tokens by verification over all completions; long ones count for more."""
    told = [(each.completion_tokens, each.accept_length) for each in completions if each.accept_length]
    steps = sum(tokens / length for tokens, length in told if length)
    return round(sum(tokens for tokens, _length in told) / steps, 3) if steps else None


def _bench_serving(target: Target, probe: Probe, key: str | None) -> Measurement:
    """Run the engine's own benchmark in its generation. The key is in the environment, not among the arguments."""
    if not target.python or not os.access(target.python, os.X_OK):
        raise MeasurementError(f"no Python to run sglang.bench_serving with: {target.python or 'no generation given'}")
    address = urlsplit(target.url)
    tokenizer = _tokenizer(target, key)
    with tempfile.TemporaryDirectory(prefix="dflash-bench-") as folder:
        output = os.path.join(folder, "out.jsonl")
        command = [
            target.python, "-m", "sglang.bench_serving", "--backend", "sglang",
            "--base-url", f"http://{address.netloc}", "--model", target.model,
            "--tokenizer", tokenizer, "--dataset-name", "random-ids",
            "--num-prompts", str(probe.requests), "--random-input-len", str(INPUT_TOKENS),
            "--random-output-len", str(probe.tokens), "--random-range-ratio", "1",
            "--max-concurrency", str(probe.concurrency), "--seed", "1", "--output-file", output,
        ]  # fmt: skip
        # Its own HOME: the benchmark has no business in root's caches. Nothing is downloaded.
        environment = {
            "PATH": f"{os.path.dirname(target.python)}:/usr/bin:/bin", "HOME": folder, "TMPDIR": folder,
            "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "",
            "LD_LIBRARY_PATH": target.library_path,
            **({"OPENAI_API_KEY": key, "API_KEY": key} if key else {}),
        }  # fmt: skip
        begin = time.monotonic()
        try:
            done = subprocess.run(
                command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True,
                timeout=BENCHMARK_TIMEOUT, check=False, **_as_user(target.user, folder),
            )  # fmt: skip
        except (OSError, KeyError, subprocess.TimeoutExpired) as error:
            raise MeasurementError(f"sglang.bench_serving cannot be run: {error}") from error
        if done.returncode:
            said = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines()
            words = redact(said[-1]) if said else "it said nothing"
            raise MeasurementError(f"sglang.bench_serving ended with status {done.returncode}: {words}")
        try:
            # The file also holds the server's own arguments, keys included: only the numbers leave this place.
            return read_benchmark(read_regular(output).decode("utf-8"), time.monotonic() - begin)
        except (OSError, UnicodeDecodeError) as error:
            raise MeasurementError(f"sglang.bench_serving left no result: {error}") from error


def _tokenizer(target: Target, key: str | None) -> str:
    """Return where the tokenizer is, by the engine's own account: the name of a model is no path."""
    answer = ask(target.url.rstrip("/") + "/model_info", key=key)
    try:
        told = json.loads(answer.body)
        return str(told.get("tokenizer_path") or told["model_path"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MeasurementError(f"GET /model_info: {answer.summary}: it names no tokenizer") from error


def _as_user(user: str, folder: str) -> dict[str, Any]:
    """Return the arguments of subprocess that make a child another user, who gets the folder; root needs no engine."""
    if not user or os.geteuid() != 0:
        return {}
    account = pwd.getpwnam(user)
    os.chown(folder, account.pw_uid, account.pw_gid)
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def read_benchmark(text: str, seconds: float) -> Measurement:
    """Return what C(sglang.bench_serving) wrote with --output-file."""
    lines = text.strip().splitlines()
    try:
        result = json.loads(lines[-1])
        rate = float(result["output_throughput"])
        tokens = int(result["total_output_tokens"])
        length = result.get("accept_length")
        accepted = None if length is None else round(float(length), 3)
    except (ValueError, IndexError, KeyError, TypeError) as error:
        raise MeasurementError(f"sglang.bench_serving wrote no numbers ({type(error).__name__}: {error})") from error
    if not math.isfinite(rate) or rate <= 0 or tokens <= 0:
        raise MeasurementError(f"sglang.bench_serving measured {rate} tokens/s over {tokens} tokens")
    return Measurement(round(rate, 1), accepted, tokens, round(seconds, 3), (round(rate, 1),))
