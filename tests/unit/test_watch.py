# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a course of looks at unit, port and HTTP answers means."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from ansible_collections.gpufleet.dflash.plugins.module_utils._engine_probe import Answer
from ansible_collections.gpufleet.dflash.plugins.module_utils._listener import Listener
from ansible_collections.gpufleet.dflash.plugins.module_utils._systemd import UnitState
from ansible_collections.gpufleet.dflash.plugins.module_utils._watch import Observation, Verdict, Watch

RUNS = UnitState("u.service", "loaded", "active", "running", "success", main_pid=10, invocation_id="a")
OURS, STRANGER, UNKNOWN = Listener(10, "python", True), Listener(99, "nginx", False), Listener(None, "", None)


def look(at: float, answer: int | str | None = None, listener: Listener | None = None, **unit: Any) -> Observation:
    """An observation; C(answer) is a status, or the reason why there is none."""
    status, reason = (answer, "") if isinstance(answer, int) else (None, answer or "")
    got = None if answer is None else Answer(status, reason, 0.01)
    if listener is None and answer == 200:
        listener = OURS
    return Observation(at, dataclasses.replace(RUNS, **unit), got, listener)


def late(at: float, seconds: float = 20.06, **seen: Any) -> Observation:
    """An observation of an answer 503 that took a while."""
    return Observation(at, RUNS, Answer(503, "", seconds), OURS, **seen)


REFUSED = "connection refused"
RESTARTING: dict[str, Any] = {"active_state": "activating", "sub_state": "auto-restart", "main_pid": 0}
DEAD: dict[str, Any] = {"active_state": "inactive", "sub_state": "dead", "main_pid": 0}
START = look(0, REFUSED)

# Looks in order, and the cause that the last of them must yield; none of the others may yield any.
COURSES = {
    "refused, 503, 200 and stable": (
        [START, look(30, REFUSED), look(31, 503), look(36, 200), look(38, 200)], "serving",
    ),
    "not stable for long enough": ([START, look(36, 200), look(37.9, 200)], None),
    "an answer lost starts the stable time again": (
        [START, look(5, 200), look(6, 503), look(7, 200), look(8.9, 200)], None,
    ),
    "a model that loads for half an hour": ([look(at, REFUSED) for at in range(0, 1800, 60)], None),
    "failed": ([START, look(1, REFUSED, active_state="failed", sub_state="failed", main_pid=0)], "died"),
    "waiting for its restart": ([START, look(1, REFUSED, **RESTARTING)], "died"),
    "queued for its restart, as newer systemd says": (
        [START, look(1, REFUSED, **{**RESTARTING, "sub_state": "auto-restart-queued"})], "died",
    ),
    "restarted between two looks": (
        [START, look(1, REFUSED, n_restarts=1, main_pid=11, invocation_id="b")], "restarted",
    ),
    "started again by somebody": ([START, look(1, REFUSED, main_pid=11, invocation_id="b")], "restarted"),
    "another main process": ([START, look(1, REFUSED, main_pid=11)], "restarted"),
    "dead before the first look": ([look(0, **RESTARTING)], "died"),
    "dead while it proved stable": ([START, look(5, 200), look(6, 200, **RESTARTING)], "died"),
    "dead while a request waits for its answer": ([look(0), look(9), look(9.5, **RESTARTING)], "died"),
    "restarts of last week": ([look(0, 200, n_restarts=7), look(2, 200, n_restarts=7)], "serving"),
    "ended by itself": ([START, look(1, REFUSED, exec_main_code=1, **DEAD)], "died"),
    "ended by itself and forgotten by systemd": ([START, look(1, REFUSED, **DEAD)], "died"),
    "never started": ([look(0, REFUSED, **DEAD, invocation_id="")], "not-running"),
    "about to be started": ([look(0, REFUSED, **DEAD, invocation_id="", job=5)], None),
    "being stopped": (
        [START, look(1, REFUSED, active_state="deactivating", sub_state="stop-sigterm")], "stopping",
    ),
    "no such unit": ([look(0, load_state="not-found", **DEAD)], "unit-missing"),
    "masked": ([look(0, load_state="masked", **DEAD)], "unit-unusable"),
    "a unit with a mistake": ([look(0, load_state="bad-setting", **DEAD)], "unit-unusable"),
    "preparing": ([look(0, REFUSED, active_state="activating", sub_state="start-pre")], None),
    "200 from a stranger while the unit loads": (
        [look(0, 200, STRANGER), look(1, 200, STRANGER)], "port-in-use",
    ),
    "a stranger that accepts and says nothing": (
        [look(0, None, STRANGER), look(1, None, STRANGER)], "port-in-use",
    ),
    "the predecessor lets go of the port": (
        [look(0, 200, STRANGER), look(0.5, REFUSED), look(3, 200), look(5, 200)], "serving",
    ),
    "200 counts from when the port is ours": (
        [look(0, 200, STRANGER), look(0.5, 200), look(2.4, 200)], None,
    ),
    "an owner that may not be seen, unit active": (
        [look(0, 200, UNKNOWN), look(2, 200, UNKNOWN)], "serving",
    ),
    "200 before the unit is active": (
        [look(0, 200, UNKNOWN, active_state="activating", sub_state="start"),
         look(9, 200, UNKNOWN, active_state="activating", sub_state="start")], None,
    ),
    "a wrong path": ([look(0, 404), look(1, 404)], "wrong-path"),
    "a path behind a key": ([look(0, 401), look(1, 401)], "unauthorized"),
    "404 for a moment": ([look(0, 404), look(0.5, 200), look(2.5, 200)], "serving"),
    "500 may pass": ([look(0, 500), look(60, 500)], None),
    "three late answers 503": ([late(20), late(40), late(60)], "scheduler-hung"),
    "one late answer 503, as of a compilation": ([late(20), late(40)], None),
    "late answers 503 with a good one between them": ([late(20), late(40), look(41, 200), late(61), late(81)], None),
    "one late answer 503 and a stopped process": ([late(20, suspended=("12 (sglang::scheduler)",))], "scheduler-hung"),
    "no sign of life while it loads": (
        [START, Observation(100, RUNS, Answer(None, REFUSED, 0.1), None, 99.0),
         Observation(301, RUNS, Answer(None, REFUSED, 0.1), None, 300.0)], "stalled",
    ),
    "no sign of life before the first answer": ([Observation(301, RUNS, None, OURS, 300.0)], "stalled"),
    "nothing to do, and serving": ([look(0, 200), Observation(2, RUNS, Answer(200, "", 0.1), OURS, 900.0)], "serving"),
}  # fmt: skip


@pytest.mark.parametrize(("looks", "cause"), COURSES.values(), ids=COURSES.keys())
def test_a_course_of_looks_leads_to(looks: list[Observation], cause: str | None) -> None:
    watch = Watch("u.service", 30001, stable=2.0)
    *earlier, last = [watch.observe(seen) for seen in looks]
    assert earlier == [None] * len(earlier)
    assert (last.cause if last else None) == cause
    assert bool(last and last.serving) == (cause == "serving")


def test_the_timeline_holds_changes_only() -> None:
    watch = Watch("u.service", 30001, stable=2.0)
    for at in range(30):
        watch.observe(look(at, REFUSED if at < 20 else 503))
    assert watch.timeline == [
        {"at": 0, "event": "unit active/running"},
        {"at": 0, "event": REFUSED},
        {"at": 20, "event": "HTTP 503"},
    ]  # fmt: skip
    assert watch.situation == "unit active/running, HTTP 503"


@pytest.mark.parametrize(("restarts", "words"), [(0, ""), (1, ""), (4, " (restarts by systemd so far: 4)")])
def test_a_crash_loop_is_counted(restarts: int, words: str) -> None:
    verdict = Watch("u.service", 30001, stable=2.0).observe(look(0, **RESTARTING, n_restarts=restarts))
    assert verdict is not None
    assert verdict.aftermath == words


def test_the_same_late_answer_counts_once() -> None:
    watch = Watch("u.service", 30001, stable=2.0)
    seen = late(20)
    assert [watch.observe(dataclasses.replace(seen, at=20 + number / 2)) for number in range(30)] == [None] * 30


def test_a_stopped_process_is_named_with_the_way_to_go_on() -> None:
    verdict = Watch("u.service", 30001, stable=2.0).observe(late(20, suspended=("12 (sglang::scheduler)",)))
    assert verdict is not None
    assert "stopped by a signal: 12 (sglang::scheduler)" in verdict.message
    assert "kill -CONT 12" in verdict.fix


def test_a_stranger_is_named() -> None:
    watch = Watch("u.service", 30001, stable=2.0)
    watch.observe(look(0, 200, STRANGER))
    verdict = watch.observe(look(1, 200, STRANGER))
    assert verdict == Verdict(
        "port-in-use",
        "port 30001 is held by process 99 (nginx), which is not of u.service",
        "stop that process, or give the instance another port",
    )
