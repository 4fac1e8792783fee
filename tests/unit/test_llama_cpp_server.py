# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The launcher of llama.cpp with the real engine, real GGUF models and a real DFlash drafter."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support import small_wheels
from support.process_unit import ProcessUnit, free_port

from ansible_collections.gpufleet.dflash.plugins.module_utils._engine_probe import ask, generate
from ansible_collections.gpufleet.dflash.plugins.module_utils._health import wait_until_healthy
from ansible_collections.gpufleet.dflash.plugins.module_utils._health_spec import HealthSpec, Unhealthy
from ansible_collections.gpufleet.dflash.plugins.module_utils._throughput import Probe, Target, measure

CHECKOUT = Path(__file__).parents[2]
LAUNCHER = CHECKOUT / "roles" / "sglang_dflash" / "files" / "dflash_llama_cpp_server.py"
MODULE = "dflash_llama_cpp_server"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models")
    tool = str(CHECKOUT / "tools" / "make_tiny_dflash.py")
    subprocess.run([sys.executable, tool, str(directory), "--broken-draft", "--truncated"], check=True)
    return directory


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a venv that holds xllamacpp and the launcher, as the role builds it."""
    venv = small_wheels.make_venv(tmp_path_factory.mktemp("engine") / "venv", "xllamacpp")
    shutil.copy(LAUNCHER, small_wheels.site_packages(venv))
    return venv / "bin" / "python"


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def check() -> Run:
    """Runs the launcher with --check, in a Python that has no engine."""

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(LAUNCHER), "--check", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    return run


def unit(engine: Path, log: Path, port: int, *arguments: str | Path) -> ProcessUnit:
    command = [str(engine), "-m", MODULE, "--port", str(port), *map(str, arguments)]
    # Without buffering from the outside: the launcher itself must not hold its lines back.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return ProcessUnit(command, log, {**environment, "DFLASH_RELEASE": "r-1"})


def spec(port: int, **change: object) -> HealthSpec:
    return HealthSpec.from_mapping(
        {"unit": "u.service", "url": f"http://127.0.0.1:{port}", "protocol": "llama_cpp", "timeout": 60,
         "stable": 0.5, "release": "r-1", **change}
    )  # fmt: skip


def test_all_drafts_are_accepted_and_sigterm_ends_it_cleanly(engine: Path, models: Path, tmp_path: Path) -> None:
    port = free_port()
    arguments = (
        "--model",
        models / "target.gguf",
        "--draft-model",
        models / "draft.gguf",
        "--model-alias",
        "tiny",
    )
    with unit(engine, tmp_path / "log", port, *arguments, "--parallel", "2") as process:
        report = wait_until_healthy(spec(port, min_accept_length=7, model="tiny"), systemd=process)
        process.kill(signal.SIGTERM)
        assert process.process.wait(timeout=10) == 0
    generation = report.generation
    assert generation is not None
    assert (generation["completion_tokens"], generation["text"]) == (64, "." * 64)
    assert (generation["drafted"], generation["accept_length"]) == (55, 7.875)
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines.count(f"{MODULE}: ready: http://127.0.0.1:{port}") == 1
    assert f"{MODULE}: stopping" in lines


def test_the_answer_is_the_same_without_the_drafter(engine: Path, models: Path, tmp_path: Path) -> None:
    port = free_port()
    with unit(engine, tmp_path / "log", port, "--model", models / "target.gguf") as process:
        report = wait_until_healthy(spec(port, speculative=False), systemd=process)
        assert report.generation is not None
        assert (report.generation["text"], report.generation["drafted"]) == ("." * 64, None)
        with pytest.raises(Unhealthy, match="speculation is off"):
            wait_until_healthy(spec(port), systemd=process)


def test_fewer_draft_tokens_shorten_the_accepted_runs(engine: Path, models: Path, tmp_path: Path) -> None:
    port = free_port()
    arguments = (
        "--model",
        models / "target.gguf",
        "--draft-model",
        models / "draft.gguf",
        "--draft-tokens",
        "3",
    )
    with unit(engine, tmp_path / "log", port, *arguments) as process:
        wait_until_healthy(spec(port, generate=False), systemd=process)
        generation = generate(f"http://127.0.0.1:{port}", "llama_cpp", "x", 64, 30)
    assert generation.accept_length is not None and 3 < generation.accept_length <= 4


def test_speed_and_accept_length_are_measured(engine: Path, models: Path, tmp_path: Path) -> None:
    port = free_port()
    arguments = ("--model", models / "target.gguf", "--draft-model", models / "draft.gguf", "--parallel", "2")
    target = Target(f"http://127.0.0.1:{port}", "llama_cpp", "tiny")
    with unit(engine, tmp_path / "log", port, *arguments, "--model-alias", "tiny") as process:
        wait_until_healthy(spec(port, generate=False), systemd=process)
        alone = measure(target, Probe(requests=4, tokens=64, seconds=0.2))
        together = measure(target, Probe(requests=4, tokens=32, concurrency=2, seconds=0))
    assert alone.accept_length == 7.875
    assert alone.tokens == 4 * 64 * len(alone.rounds) and alone.tokens_per_second > 0
    assert together.tokens == 128 and together.accept_length is not None and together.accept_length > 6


def test_a_drafter_that_does_not_fit_dies_at_its_first_request_and_is_named(
    engine: Path, models: Path, tmp_path: Path
) -> None:
    port = free_port()
    arguments = ("--model", models / "target.gguf", "--draft-model", models / "broken-draft.gguf")
    with unit(engine, tmp_path / "log", port, *arguments) as process:
        begin = time.monotonic()
        with pytest.raises(Unhealthy) as caught:
            wait_until_healthy(spec(port), systemd=process)
        assert time.monotonic() - begin < 10
    report = caught.value.report
    assert "HTTP 200" in [item["event"] for item in report.timeline]
    assert (report.cause, report.signal) == ("draft-mismatch", "SIGABRT")
    assert "while it generated" in report.message


@pytest.mark.parametrize(("model", "cause"), [("truncated.gguf", "model-damaged"), ("absent.gguf", "model-missing")])
def test_a_bad_model_ends_the_engine_with_a_named_cause(
    engine: Path, models: Path, tmp_path: Path, model: str, cause: str
) -> None:
    port = free_port()
    process = unit(engine, tmp_path / "log", port, "--model", models / model)
    with process, pytest.raises(Unhealthy) as caught:
        wait_until_healthy(spec(port), systemd=process)
    assert (caught.value.report.cause, caught.value.report.exit_status) == (cause, 1)
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_a_taken_port_ends_the_engine_with_a_named_cause(engine: Path, models: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        process = unit(engine, tmp_path / "log", port, "--model", models / "target.gguf")
        with process, pytest.raises(Unhealthy) as caught:
            wait_until_healthy(spec(port), systemd=process)
    assert caught.value.report.cause == "port-in-use"


def test_missing_libraries_are_told_in_the_loaders_words_before_anything_is_served(
    engine: Path, models: Path, tmp_path: Path
) -> None:
    port = free_port()
    required = [
        "--require-library=libabsent.so.13",
        "--require-library=libc.so.6",
        "--require-library=libgone.so.1",
    ]
    with unit(engine, tmp_path / "log", port, "--model", models / "target.gguf", *required) as process:
        assert process.process.wait(timeout=30) == 1
    assert (tmp_path / "log").read_text().splitlines() == [
        f"{MODULE}: a required library cannot be loaded: {soname}: cannot open shared object file: "
        "No such file or directory"
        for soname in ("libabsent.so.13", "libgone.so.1")
    ]


def test_a_present_library_is_loaded_into_the_serving_process(engine: Path, models: Path, tmp_path: Path) -> None:
    port = free_port()
    required = "--require-library=libutil.so.1"
    with unit(engine, tmp_path / "log", port, "--model", models / "target.gguf", required) as process:
        wait_until_healthy(spec(port, generate=False), systemd=process)
        assert "libutil.so.1" in Path(f"/proc/{process.process.pid}/maps").read_text()


def test_the_engine_listens_on_loopback_alone_by_default(engine: Path, models: Path, tmp_path: Path) -> None:
    port = free_port()
    with unit(engine, tmp_path / "log", port, "--model", models / "target.gguf") as process:
        wait_until_healthy(spec(port, generate=False), systemd=process)
        assert ask(f"http://127.0.0.2:{port}/health", timeout=2).reason == "connection refused"


def test_a_check_of_a_fitting_pair_finds_nothing(check: Run, models: Path) -> None:
    done = check("--model", models / "target.gguf", "--draft-model", models / "draft.gguf", "--port", "30001")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("model", "draft", "sentences"),
    [
        ("target", "broken-draft", ["it reads layers [4] of a target that has layers 0 to 3"]),
        ("truncated", "draft", ["it is cut short: tensor 'blk.3.ffn_down.weight' ends at byte 734880"]),
        ("target", "target", ["its architecture is 'qwen3', not 'dflash'"]),
        ("draft", "draft", ["this is a DFlash drafter: give it as --draft-model"]),
        ("absent", "absent-too", ["absent.gguf: No such file or directory", "absent-too.gguf: No such file"]),
    ],
)
def test_a_check_says_one_sentence_for_each_mistake(
    check: Run, models: Path, model: str, draft: str, sentences: list[str]
) -> None:
    done = check(
        "--model", models / f"{model}.gguf", "--draft-model", models / f"{draft}.gguf", "--port", "30001"
    )  # fmt: skip
    assert done.returncode == 2
    found = done.stderr.splitlines()
    assert len(found) == len(sentences)
    for sentence, line in zip(sentences, found):
        assert sentence in line and line.startswith(f"{MODULE}: --")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port", "0"], "--port: 0 is not between 1 and 65535"),
        (["--port", "http"], "--port: 'http' is not a whole number"),
        (["--port", "1", "--host", "gpu-1"], "'gpu-1' is not an IP address"),
        (["--port", "1", "--api-key", "x"], "unrecognized arguments: --api-key"),
        ([], "required: --port"),
    ],
)
def test_wrong_arguments_are_refused(check: Run, models: Path, arguments: list[str], words: str) -> None:
    done = check("--model", models / "target.gguf", *arguments)
    assert done.returncode == 2
    assert words in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("narrow", "words"),
    [
        (True, "its hidden width is 32, the target's is 64"),
        (False, "its mask token 263 is outside the target's vocabulary of 263 tokens"),
    ],
)
def test_a_drafter_of_another_model_is_told_apart(
    check: Run, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, narrow: bool, words: str
) -> None:
    """llama.cpp aborts on both: on the first while it loads, on the second at its first request."""
    monkeypatch.syspath_prepend(str(CHECKOUT / "tools"))
    import make_tiny_dflash as maker

    if narrow:
        monkeypatch.setattr(maker, "WIDTH", 32)
    else:
        monkeypatch.setattr(maker, "TOKENS", [*maker.TOKENS[:-1], "zz", maker.TOKENS[-1]])
    maker.write_drafter(tmp_path / "other.gguf")
    done = check("--model", models / "target.gguf", "--draft-model", tmp_path / "other.gguf", "--port", "1")
    assert done.returncode == 2 and words in done.stderr


def test_damaged_headers_give_sentences_and_never_a_traceback(
    check: Run, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(LAUNCHER.parent))
    import dflash_llama_cpp_server as launcher

    whole = (models / "draft.gguf").read_bytes()
    chance = random.Random(1)
    refused = 0
    for _ in range(1500):
        damaged = bytearray(whole[: chance.randrange(len(whole))] if chance.random() < 0.5 else whole)
        for _ in range(chance.randrange(1, 12)):
            if damaged:
                damaged[chance.randrange(min(len(damaged), 9000))] = chance.randrange(256)
        path = tmp_path / "damaged.gguf"
        path.write_bytes(damaged)
        try:
            launcher.read_header(str(path))
        except launcher.GgufError:
            refused += 1
    assert refused > 700
    path.write_bytes(b"GGUF" + b"\x03\0\0\0" + b"\xff" * 16)
    assert "more than its 24 bytes can hold" in check("--model", path, "--port", "1").stderr


def test_a_key_of_a_file_is_asked_for_and_shown_nowhere(engine: Path, models: Path, tmp_path: Path) -> None:
    port, keys = free_port(), tmp_path / "server.yaml"
    keys.write_text('{"api-key": "sk-0123456789abcdef"}')
    with unit(engine, tmp_path / "log", port, "--model", models / "target.gguf", "--config", keys) as process:
        report = wait_until_healthy(spec(port, speculative=False, api_key_file=str(keys)), systemd=process)
        assert report.generation is not None and report.generation["completion_tokens"] == 64
        assert ask(f"http://127.0.0.1:{port}/v1/models", key="sk-wrong").status in (200, 401)
        with pytest.raises(Unhealthy, match="HTTP 401"):
            wait_until_healthy(spec(port, speculative=False), systemd=process)
        assert b"sk-0123" not in Path(f"/proc/{process.process.pid}/cmdline").read_bytes()
    assert "sk-0123" not in (tmp_path / "log").read_text()


def test_a_file_without_a_key_ends_the_start(engine: Path, models: Path, tmp_path: Path) -> None:
    keys = tmp_path / "server.yaml"
    keys.write_text("api-key: sk-0123456789abcdef")
    with unit(engine, tmp_path / "log", free_port(), "--model", models / "target.gguf", "--config", keys) as process:
        assert process.process.wait(timeout=30) == 1
    log = (tmp_path / "log").read_text()
    assert f"no api-key can be read from {keys}" in log
    assert "sk-0123" not in log
