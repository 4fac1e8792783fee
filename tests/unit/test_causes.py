# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a service died, from its last words, and that no secret is among them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.gpufleet.dflash.plugins.module_utils._causes import Ending, ending, explain, redact
from ansible_collections.gpufleet.dflash.plugins.module_utils._systemd import parse_journal

FIXTURES = Path(__file__).parents[1] / "fixtures"
LAST_WORDS = [
    tuple(row.split("\t")) for row in (FIXTURES / "last_words.tsv").read_text().splitlines() if not row.startswith("#")
]


@pytest.mark.parametrize(("name", "mentions", "line"), LAST_WORDS)
def test_last_words_name_a_cause(name: str, mentions: str, line: str) -> None:
    cause = explain(["loading", line, "u.service: Main process exited, code=exited, status=1/FAILURE"], Ending(1))
    assert cause.name == name
    assert mentions in cause.message
    assert cause.fix


# The last lines of unmodified SGLang 0.5.11 that was started in these ways, on a CPU.
SGLANG_LOGS = {
    "unknown-flag": ("bad-argument", "--speculative-dflash-nope 1"),
    "missing-model": ("model-missing", "/srv/models/Qwen3-8B"),
    "dflash-without-drafter": ("draft-missing", "not given"),
    "truncated-safetensors": ("model-damaged", "cut short"),
    "no-libcuda": ("driver-missing", "libcuda.so.1"),
    "wrong-library-path": ("undefined-symbol", "common_ops.abi3.so"),
    "busy-port": ("port-in-use", "port"),
    "busy-port-launcher": ("port-in-use", "port"),
    "scheduler-killed": ("scheduler-died", "exit code -9"),
    "scheduler-stopped": ("exited", "503 Service Unavailable"),
}


@pytest.mark.parametrize("log", SGLANG_LOGS)
@pytest.mark.parametrize("end", [Ending(1), Ending(None, "SIGKILL", "signal")], ids=["status 1", "SIGKILL"])
def test_the_log_of_a_real_sglang_names_its_cause(log: str, end: Ending) -> None:
    lines = (FIXTURES / "sglang_logs" / f"{log}.txt").read_text().splitlines()
    name, mentions = SGLANG_LOGS[log]
    if log == "scheduler-stopped" and end.signal:
        name, mentions = "killed", "killed"  # a stopped scheduler says nothing: how it ended does
    cause = explain(lines, end)
    assert (cause.name, mentions in cause.message) == (name, True), cause


def test_every_log_is_of_a_known_cause() -> None:
    assert {path.stem for path in (FIXTURES / "sglang_logs").glob("*.txt")} == set(SGLANG_LOGS)


def test_ordinary_lines_name_no_cause() -> None:
    lines = [
        "0.00 W llama_context: n_ctx_seq (4096) > n_ctx_train (2048) -- possible training context overflow",
        "Starting u.service...", "Started u.service.", "INFO: loading weights took 3 s, 0 errors",
    ]  # fmt: skip
    assert explain(lines, Ending(7)).name == "exited"


@pytest.mark.parametrize(
    ("fixture", "invocation", "end", "cause"),
    [
        ("exit-3", "7fa8cc59bf764cd4a883b6644b83faa6", Ending(3, None, "exit-code"), "missing-library"),
        ("missing-binary", "", Ending(203, None, "exit-code"), "exec-failed"),
        ("nouser", "", Ending(217, None, "exit-code"), "setup-failed"),
        (
            "assertion",
            "2a70593b90ef4436abc8adefd97268d8",
            Ending(None, "SIGABRT", "signal"),
            "draft-mismatch",
        ),
    ],
)
def test_the_journal_of_a_dead_unit_tells_how_and_why(fixture: str, invocation: str, end: Ending, cause: str) -> None:
    entries = parse_journal((FIXTURES / "systemd" / f"journal-{fixture}.jsonl").read_text())
    lines = [line for of, line in entries if invocation in ("", of)]
    assert ending(lines) == end
    assert explain(lines, end).name == cause


@pytest.mark.parametrize(
    ("end", "cause"),
    [
        (Ending(None, "SIGKILL", "oom-kill"), "out-of-memory"),
        (Ending(None, "SIGKILL", "signal"), "killed"),
        (Ending(None, "SIGILL", "core-dump"), "illegal-instruction"),
        (Ending(None, "SIGSYS", "core-dump"), "forbidden-call"),
        (Ending(None, "SIGTERM", "timeout"), "unit-timeout"),
        (Ending(226, None, "exit-code"), "setup-failed"),
        (Ending(9, None, "exit-code"), "exited"),
    ],
)
def test_without_words_the_way_of_ending_names_the_cause(end: Ending, cause: str) -> None:
    assert explain([], end).name == cause


@pytest.mark.parametrize("end", [Ending(), Ending(0, None, "success")], ids=["unknown", "status 0"])
def test_an_ending_that_systemd_does_not_mention_counted_as_success(end: Ending) -> None:
    lines = [
        "Started u.service.",
        "u.service: Scheduled restart job, restart counter is at 1.",
        "Stopped u.service.",
    ]
    assert explain(lines, end).name == "ended-cleanly"


def test_a_stop_that_somebody_asked_for_is_no_failure_of_the_engine() -> None:
    lines = [
        "Stopping u.service...",
        "KeyboardInterrupt: ",
        "u.service: Deactivated successfully.",
        "Stopped u.service.",
    ]
    assert explain(lines, Ending()).name == "stopped-by-request"


def test_the_kernel_is_believed_before_the_last_words() -> None:
    assert explain(["ValueError: something earlier"], Ending(None, "SIGKILL", "oom-kill")).name == "out-of-memory"


SECRET = "s3cr3t-V4lue"


@pytest.mark.parametrize(
    "text",
    [
        f"ServerArgs(model_path='/m', api_key='{SECRET}', admin_api_key='{SECRET}', port=30001)",
        f'{{"api_key": "{SECRET}", "port": 1}}',
        f"api-key: {SECRET}",
        f"python -m sglang.launch_server --api-key {SECRET} --port 1",
        f"argv=['--admin-api-key', '{SECRET}']",
        f"--api-key={SECRET}",
        f"Authorization: Bearer {SECRET}",
        f"HF_TOKEN={SECRET}",
        f"OPENAI_API_KEY={SECRET} python x",
        f"proxy http://user:{SECRET}@proxy:3128/",
        f"password={SECRET}; user=x",
    ],
)
def test_secrets_do_not_pass(text: str) -> None:
    clean = redact(text)
    assert SECRET not in clean and "********" in clean


@pytest.mark.parametrize(
    "text",
    [
        "max_total_tokens=8192, n_tokens = 87, mask_token_id=262, api_key=None",
        "tokenizer: Qwen2Tokenizer, 0.03 s per token: fine",
        "listening on http://127.0.0.1:30001",
    ],
)
def test_what_is_no_secret_stays_readable(text: str) -> None:
    assert redact(text) == text


def test_a_line_without_end_is_cut() -> None:
    assert len(redact("x" * 1_000_000)) < 3000
