# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a switch decides; what it does is told by the molecule scenario rollback, on booted hosts."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from ansible_collections.gpufleet.dflash.plugins.module_utils._history import (
    ACTIVATING,
    FAILED,
    VERIFIED,
    Event,
    History,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._switch import process_age
from ansible_collections.gpufleet.dflash.plugins.module_utils._switch_plan import (
    Observed,
    choose_previous,
    plan_switch,
)

A, B, C = "a" * 16, "b" * 16, "c" * 16
SETTLED = Observed(installed=A, running=A, enabled=True, serving=True)


@pytest.mark.parametrize(
    ("observed", "verified", "reasons"),
    [
        pytest.param(SETTLED, True, [], id="nothing to do"),
        pytest.param(SETTLED._replace(serving=None), True, [], id="not asked yet"),
        pytest.param(SETTLED._replace(serving=False), True, ["it runs but does not serve"], id="hung"),
        pytest.param(SETTLED, False, ["it is not verified"], id="an interrupted run switched and did not verify"),
        pytest.param(
            SETTLED._replace(running=B), True, [f"the running process is of {B}"], id="a restart that is owed"
        ),
        pytest.param(SETTLED._replace(running=None), True, ["it does not run"], id="stopped by hand"),
        pytest.param(SETTLED._replace(pristine=False), True, ["the unit was changed by hand"], id="edited"),
        pytest.param(SETTLED._replace(enabled=False), True, ["it would not start at boot"], id="disabled by hand"),
        pytest.param(
            Observed(installed=B, running=B, enabled=True, serving=None),
            False,
            [f"the unit is of {B}", f"the running process is of {B}", "it is not verified"],
            id="another release",
        ),
        pytest.param(
            Observed(installed=None, running=None, enabled=False, serving=None),
            False,
            [
                "the unit is of no release",
                "it does not run",
                "it would not start at boot",
                "it is not verified",
            ],
            id="a fresh host",
        ),
    ],
)
def test_a_plan_says_why(observed: Observed, verified: bool, reasons: list[str]) -> None:
    plan = plan_switch(A, verified, observed)
    assert list(plan.reasons) == reasons
    assert plan.changed == bool(reasons)


def history_of(tmp_path: Path, *events: Event) -> History:
    history = History(str(tmp_path / "history.jsonl"))
    for event in events:
        history.add(event)
    return History(history.path)


def good(release: str, rollback: bool = False) -> list[Event]:
    return [Event(ACTIVATING, release, rollback=rollback), Event(VERIFIED, release, rollback=rollback)]


def bad(release: str, rollback: bool = False) -> list[Event]:
    return [
        Event(ACTIVATING, release, rollback=rollback),
        Event(FAILED, release, rollback=rollback, reason="it died"),
    ]


@pytest.mark.parametrize(
    ("events", "installed", "expected"),
    [
        pytest.param([], None, None, id="nothing was ever deployed"),
        pytest.param(good(A), A, None, id="only one release"),
        pytest.param(good(A) + good(B), B, A, id="two releases"),
        pytest.param(good(A) + good(B) + good(C), C, B, id="the one before, not the oldest"),
        pytest.param(good(A) + good(B) + good(A, rollback=True), A, A, id="gone back already: stay"),
        pytest.param(good(A) + good(B) + good(A, rollback=True) + good(C), C, A, id="after a new deploy, back again"),
        pytest.param(good(A) + good(B) + bad(C) + good(B, rollback=True), B, B, id="went back by itself: stay"),
        pytest.param(good(A) + good(B) + [Event(ACTIVATING, C)], C, B, id="an interrupted switch"),
        pytest.param(
            good(A) + good(B) + good(C) + [Event(ACTIVATING, B, rollback=True)], B, B, id="a way back that was cut off"
        ),
        pytest.param(
            good(A) + good(B) + [Event(ACTIVATING, A, rollback=True)], B, A, id="cut off before the unit was replaced"
        ),
        pytest.param(
            good(A) + good(B) + good(C) + bad(B, rollback=True) + good(C, rollback=True),
            C,
            A,
            id="a way back that failed and was undone: not a place to stay",
        ),
        pytest.param(good(A) + good(B) + bad(A), B, None, id="what failed last is no way back"),
        pytest.param(good(A) + good(B) + good(C) + bad(B), C, A, id="the newest that did not fail since"),
    ],
)
def test_the_way_back(tmp_path: Path, events: list[Event], installed: str | None, expected: str | None) -> None:
    assert choose_previous(history_of(tmp_path, *events), installed, lambda release: True) == expected


def test_a_release_that_is_gone_is_no_way_back(tmp_path: Path) -> None:
    history = history_of(tmp_path, *good(A), *good(B), *good(C))
    assert choose_previous(history, C, lambda release: release != B) == A


def test_history_survives_a_line_that_a_crash_tore(tmp_path: Path) -> None:
    history = history_of(tmp_path, *good(A))
    with Path(history.path).open("a") as stream:
        stream.write('{"event": "verif')
    again = History(history.path)
    assert again.is_verified(A)
    again.add(Event(FAILED, A, reason="died"))
    assert not History(history.path).is_verified(A)
    lines = Path(history.path).read_text().splitlines()
    assert len(lines) == 4
    assert json.loads(lines[-1])["event"] == FAILED


@pytest.mark.parametrize(
    "line", ["null", "[]", "7", '{"event": 1, "release": "x"}', '{"event": "verified"}', "\x00\xff"]
)
def test_history_passes_over_what_is_not_an_event(tmp_path: Path, line: str) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(line + "\n")
    assert History(str(path)).events == []


def test_history_is_one_json_object_a_line_with_a_time(tmp_path: Path) -> None:
    history = history_of(tmp_path, Event(VERIFIED, A, generation="/g", accept_length=7.9))
    (line,) = Path(history.path).read_text().splitlines()
    values = json.loads(line)
    assert values.pop("time").endswith("Z")
    assert values == {"event": "verified", "release": A, "generation": "/g", "accept_length": 7.9}


def test_the_age_of_a_process_counts_from_its_start() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        time.sleep(0.5)
        age = process_age(process.pid)
        process.kill()
    assert 0.3 < age < 30
    assert process_age(os.getpid()) > age
    assert process_age(0) == 0
