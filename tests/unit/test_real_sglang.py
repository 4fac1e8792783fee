# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Unmodified SGLang 0.5.11 under systemd, deployed, broken and mended as a fleet does it.

One host for all tests, in their order: each leaves a service behind that serves. See support.sglang_host.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support import playbook
from support.booted_host import INSTANCE, UNIT
from support.sglang_host import KEYS, LIMIT, PORT, TINY, TRUNCATED, SglangHost, booted, instance, second_lock

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="this host has a driver of its own"),
]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SglangHost]:
    with booted(tmp_path_factory.mktemp("sglang")) as machine:
        yield machine


@pytest.fixture(scope="module")
def deployed(host: SglangHost) -> SglangHost:
    """The host after the first deploy, whose output has to keep the keys to itself."""
    done = host.told("deploy_dflash.yml")
    assert done.returncode == 0, done.stdout[-8000:]
    assert "TASK [" in done.stdout and "sglang_release" in done.stdout
    assert not [name for name, key in KEYS.items() if key in done.stdout]
    return host


@pytest.fixture
def in_background() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(max_workers=2) as pool:
        yield pool


def test_a_deploy_serves_and_a_second_one_changes_nothing(deployed: SglangHost) -> None:
    assert deployed.serves()
    pid = deployed.pid
    again = deployed.play("deploy_dflash.yml")
    assert again.status == 0, again.failures
    assert again.changes == []
    calls = [step for step in again.steps if step.action not in playbook.CONTROLLER_ONLY]
    assert 5 <= len(calls) <= 12, [step.task for step in calls]
    assert deployed.pid == pid


def test_the_keys_are_asked_for_and_stand_in_one_file_alone(deployed: SglangHost) -> None:
    settings = f"{INSTANCE}/releases/{deployed.release}/server.yaml"
    assert deployed.ask("/v1/models", key="").status == 401
    assert deployed.ask("/v1/models", key="another").status == 401
    assert deployed.ask("/v1/models").status == 200
    for path in ("/server_info", "/get_server_info"):
        told = deployed.ask(path)
        assert told.status == 200 and json.loads(told.text)["model_path"] == TINY
        assert json.loads(told.text)["api_key"] == "(hidden)"
        assert not [name for name, key in KEYS.items() if key in told.text]
    # SGLang logs all of its arguments at its start.
    assert "admin_api_key='(hidden)'" in deployed.run(f"journalctl --no-pager --output=cat --unit {UNIT}")
    assert deployed.files_with(list(KEYS.values())) == [settings]
    assert deployed.run(f"stat --format='%a %U' {settings}") == "400 dflash"


def test_verify_finds_nothing_wrong(deployed: SglangHost) -> None:
    before = (deployed.pid, deployed.history())
    done = deployed.told("verify_dflash.yml")
    assert done.returncode == 0, done.stdout[-8000:]
    assert f"tiny: {UNIT} serves http://127.0.0.1:{PORT}, release {deployed.release}" in done.stdout
    assert not [name for name, key in KEYS.items() if key in done.stdout]
    assert (deployed.pid, deployed.history()) == before


def test_what_is_loaded_under_the_unit_is_what_was_predicted(deployed: SglangHost) -> None:
    venv = deployed.history()[-1]["generation"]
    options = {"venv": venv, "unit": UNIT}
    loaded = deployed.module("cuda_library_check", imports=["torch", "sgl_kernel"], trace=True, **options)
    assert loaded["ok"] is True and loaded["sandbox"] is True, loaded
    assert loaded["differences"] == []
    assert loaded["problems"] == []
    rules = {Path(library["path"]).name: library["rule"] for library in loaded["libraries"]}
    assert rules["libcudart.so.13"] == "rpath", rules
    running = deployed.module("cuda_library_check", running=True, **options)
    assert running["restart_needed"] is False and running["problems"] == [], running
    # The service has mapped these, and each from the same file.
    paths = {library["path"] for library in running["libraries"]}
    assert {library["path"] for library in loaded["libraries"]} <= paths


def test_a_scheduler_that_is_killed_ends_the_unit_which_comes_back(
    deployed: SglangHost, in_background: ThreadPoolExecutor
) -> None:
    pid, restarts = deployed.pid, int(deployed.unit_property("NRestarts"))
    since = deployed.run("date +%s")
    # It has to stay up for minutes, so it is watched when the scheduler dies.
    watching = in_background.submit(deployed.health, stable=180, timeout=LIMIT)
    log = f"journalctl --no-pager --output=cat --unit {UNIT} --since=@{since}"
    deployed.wait_for(lambda: "GET /health" in deployed.run(log))
    deployed.run(f"kill -KILL {deployed.scheduler}")
    deployed.wait_for(lambda: deployed.pid != pid, limit=30)
    report = watching.result()
    assert report["healthy"] is False and report["cause"] != "timeout", report
    assert report["signal"] == "SIGKILL" and report["seconds"] < 60, report
    assert "SIGKILL" in report["msg"] and report["journal"] and report["fix"], report
    deployed.wait_until_serving()
    assert int(deployed.unit_property("NRestarts")) == restarts + 1
    assert deployed.unit_property("ActiveState") == "active"


def test_a_scheduler_that_hangs_is_told_from_one_that_loads(deployed: SglangHost) -> None:
    pid, scheduler = deployed.pid, deployed.scheduler
    deployed.run(f"kill -STOP {scheduler}")
    try:
        report = deployed.health(timeout=45)
    finally:
        deployed.run(f"kill -CONT {scheduler}")
    assert report["healthy"] is False, report
    assert "HTTP 503" in report["msg"] and "hangs" in report["msg"] + report["fix"], report
    assert 15 < report["seconds"] < 120, report
    deployed.wait_until_serving()
    assert deployed.pid == pid


def test_a_port_that_is_held_is_refused_before_anything_stops(deployed: SglangHost) -> None:
    pid = deployed.pid
    deployed.run("systemd-run --quiet --unit=squatter /usr/bin/python3 -m http.server 30002 --bind 127.0.0.1")
    run = deployed.play("deploy_dflash.yml", sglang_dflash_instances=[instance(port=30002)])
    deployed.run("systemctl stop squatter")
    assert run.status != 0
    assert "port 30002 is held by python3 (PID " in run.failures[0], run.failures
    assert "nothing was touched" in run.failures[0]
    assert deployed.pid == pid and deployed.serves()


MISTAKES = {
    "flag": (
        instance(arguments=[*instance()["arguments"], "--no-such-flag"]),
        "unrecognized arguments: --no-such-flag",
    ),
    "model": (
        instance(model="/srv/models/nowhere"),
        "the model is not there: /srv/models/nowhere: copy it to this host, or correct --model-path",
    ),
    "drafter": (
        instance(draft_model="/srv/models/nowhere"),
        "the draft model is not there: /srv/models/nowhere",
    ),
    "attention": (
        instance(
            draft_model=TINY,
            arguments=[*instance()["arguments"], "--enable-dp-attention", "--dp-size", "2", "--tp-size", "2"],
        ),
        "does not support dp attention",
    ),
}


def test_arguments_that_the_engine_refuses_are_told_in_a_sentence_each(deployed: SglangHost) -> None:
    before = (deployed.pid, deployed.run("ls /etc/systemd/system /opt/dflash/instances"))
    wrong = [
        {**values, "name": name, "port": 30010 + number}
        for number, (name, (values, _words)) in enumerate(MISTAKES.items())
    ]
    run = deployed.play("deploy_dflash.yml", sglang_dflash_instances=wrong, sglang_dflash_secrets={})
    assert run.status != 0
    told = [failure for failure in run.failures if "refuses its arguments" in failure]
    assert len(told) == len(MISTAKES), run.failures
    for failure, (name, (_values, words)) in zip(told, MISTAKES.items()):
        assert failure.startswith("the engine refuses its arguments, and nothing was touched: "), failure
        assert f"sglang-dflash-{name}.service: dflash_sglang_server: " in failure
        assert words in failure
        assert len(failure.splitlines()) == 1
    assert (deployed.pid, deployed.run("ls /etc/systemd/system /opt/dflash/instances")) == before
    assert deployed.serves()


def test_flags_of_dflash_are_those_of_this_version_and_its_parser_takes_them(deployed: SglangHost) -> None:
    before = (deployed.pid, deployed.history(), deployed.run(f"ls {INSTANCE}/releases"))
    drafting = instance(draft_model=TINY, draft_tokens=8, draft_window=64)
    check = deployed.play("deploy_dflash.yml", "--check", sglang_dflash_instances=[drafting])
    assert check.status == 0, check.failures
    (staged,) = [step for step in check.changes if "Stage what each instance" in step.task]
    unit = staged.diff["after"]
    assert f"--speculative-draft-model-path {TINY} --speculative-algorithm DFLASH" in unit
    assert "--speculative-num-draft-tokens 8 --speculative-dflash-draft-window-size 64" in unit
    assert (deployed.pid, deployed.history(), deployed.run(f"ls {INSTANCE}/releases")) == before


def test_a_request_in_flight_is_finished_when_the_service_is_restarted(
    deployed: SglangHost, in_background: ThreadPoolExecutor
) -> None:
    pid = deployed.pid
    answer: Future[Any] = in_background.submit(deployed.generate, 400, LIMIT)
    running = "sglang:num_running_reqs"
    deployed.wait_for(lambda: _gauge(deployed, running) >= 1)
    restarted = threading.Thread(target=deployed.run, args=(f"systemctl restart {UNIT}",))
    restarted.start()
    deployed.wait_for(lambda: deployed.unit_property("ActiveState") == "deactivating")
    assert not answer.done(), "the request has to be in flight when SIGTERM comes"
    reply = answer.result()
    assert reply.status == 200, reply
    assert json.loads(reply.text)["meta_info"]["completion_tokens"] == 400
    restarted.join()
    deployed.wait_until_serving()
    assert deployed.pid != pid
    assert deployed.unit_property("Result") == "success"


def _gauge(host: SglangHost, name: str) -> float:
    lines = host.ask("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name + "{"))


def test_a_release_that_dies_while_it_loads_its_model_is_taken_back(deployed: SglangHost) -> None:
    before = (deployed.release, deployed.pid)
    run = deployed.play("deploy_dflash.yml", sglang_dflash_instances=[instance(model=TRUNCATED)])
    assert run.status != 0
    (failure,) = run.failures
    assert "a model file is damaged or cut short" in failure, failure
    assert f"Release {before[0]} was put back and verified: it serves with PID {deployed.pid}" in failure
    (result,) = run.failed_results
    assert result["failed_health"]["cause"] == "model-damaged"
    assert result["restored_health"]["healthy"] is True
    assert deployed.release == before[0] and deployed.pid != before[1]
    events = [(event["event"], event["release"] == before[0]) for event in deployed.history()[-4:]]
    assert events == [("activating", False), ("failed", False), ("activating", True), ("verified", True)]
    assert deployed.serves()


def test_it_is_back_after_a_reboot(deployed: SglangHost) -> None:
    release = deployed.release
    deployed.restart()
    deployed.wait_until_serving()
    assert deployed.release == release


def test_another_lock_is_another_generation_and_the_way_back_is_one_command(deployed: SglangHost) -> None:
    old, first = deployed.release, deployed.history()[-1]["generation"]
    upgraded = deployed.play("deploy_dflash.yml", cuda_runtime_lock=str(second_lock(deployed.folder)))
    assert upgraded.status == 0, upgraded.failures
    assert [step.action for step in upgraded.changes] == ["venv_generation", "sglang_release", "sglang_release"]
    second = deployed.history()[-1]["generation"]
    assert second != first and deployed.release != old and deployed.serves()
    site = "lib/python3.11/site-packages"
    assert deployed.run(f"ls -d {first}/{site}/tabulate-*").endswith("tabulate-0.10.0.dist-info")
    assert deployed.run(f"ls -d {second}/{site}/tabulate-*").endswith("tabulate-0.9.0.dist-info")

    back = deployed.play("rollback_dflash.yml")
    assert back.status == 0, back.failures
    assert deployed.release == old and deployed.history()[-1]["generation"] == first
    assert deployed.serves()
    kept = deployed.run(f"ls {INSTANCE}/releases/*/server.yaml").split()
    assert sorted(deployed.files_with(list(KEYS.values()))) == sorted(kept)
