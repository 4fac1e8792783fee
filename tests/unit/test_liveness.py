# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Signs of life of a service, from its control group, its processes and its log; and what dead servers leave behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ansible_collections.gpufleet.dflash.plugins.module_utils._liveness import (
    Liveness,
    Vitals,
    last_words,
    members,
    progress_of,
    read_vitals,
    suspended,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._orphans import find_orphans, remedy
from ansible_collections.gpufleet.dflash.plugins.module_utils._systemd import UnitState

GROUP = "/system.slice/u.service"


def unit(pid: int = 0, group: str = "") -> UnitState:
    return UnitState("u.service", "loaded", "active", "running", main_pid=pid, control_group=group)


@pytest.fixture
def cgroups(tmp_path: Path) -> Path:
    folder = tmp_path / GROUP.lstrip("/")
    folder.mkdir(parents=True)
    (folder / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\n")
    (folder / "memory.current").write_text("1048576\n")
    (folder / "cgroup.procs").write_text("11\n12\n")
    return tmp_path


def test_a_control_group_tells_cpu_time_memory_and_processes(cgroups: Path) -> None:
    assert read_vitals(unit(11, GROUP), ["Loading"], cgroups) == Vitals(2.5, 1048576, ("Loading",))
    assert members(unit(11, GROUP), cgroups) == [11, 12]


def test_without_a_control_group_processes_and_their_children_tell(tmp_path: Path) -> None:
    child = "import time; sum(range(10**7)); time.sleep(60)"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen([sys.executable, "-c", program], start_new_session=True) as process:
        deadline = time.monotonic() + 30
        while (read_vitals(unit(process.pid), []).cpu or 0) < 0.1 or len(members(unit(process.pid))) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        vitals = read_vitals(unit(process.pid, "/no/such.service"), [])
        pid = members(unit(process.pid))[1]
        assert vitals.memory is not None and vitals.memory > 1 << 20
        assert suspended([process.pid, pid]) == []
        os.kill(pid, signal.SIGSTOP)
        while not suspended([process.pid, pid]):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert suspended([process.pid, pid]) == [pid]
        os.killpg(process.pid, signal.SIGKILL)


def test_what_health_requests_bring_forth_is_no_sign_of_life() -> None:
    log = [
        '[2026-11-30 21:18:14] INFO:     127.0.0.1:34474 - "GET /health HTTP/1.1" 503 Service Unavailable',
        "[2026-11-30 21:18:34] Health check failed. Server couldn't get a response from detokenizer for last 20 s",
        "",
    ]
    assert read_vitals(unit(), log).lines == ()


@pytest.mark.parametrize(
    ("vitals", "alive"),
    [
        (Vitals(10.0, 1000, ("a",)), False),
        (Vitals(10.04, 1000, ("a",)), False),
        (Vitals(10.06, 1000, ("a",)), True),
        (Vitals(10.0, 1000 + (2 << 20), ("a",)), True),
        (Vitals(10.0, 1000, ("a", "b")), True),
        (Vitals(10.0, 1000, ()), False),
        (Vitals(None, None, ("a",)), True),
    ],
    ids=["nothing", "timers", "CPU time", "memory", "a line", "a journal that was rotated", "nothing can be seen"],
)
def test_signs_of_life(vitals: Vitals, alive: bool) -> None:
    life = Liveness()
    assert life.quiet_for(7.0) == 0.0
    life.observe(0.0, Vitals(10.0, 1000, ("a",)))
    life.observe(5.0, vitals)
    assert life.quiet_for(6.0) == (1.0 if alive else 6.0)


@pytest.mark.parametrize(
    ("line", "percent"),
    [
        ("Loading safetensors checkpoint shards:  40% Completed | 2/5 [00:02<00:03,  1.05it/s]", "40 %"),
        ("Multi-thread loading shards: 100% Completed | 4/4 [00:09<00:00]", "100 %"),
        ("Capturing batches (bs=8 avail_mem=20.1 GB):  37%|###7      | 3/8", "37 %"),
        ("[2026-11-30 21:19:36] KV Cache is allocated. #tokens: 4096, K size: 0.00 GB", ""),
        ("mem usage 93% of the host", ""),
    ],
)
def test_the_progress_of_a_load_is_read(line: str, percent: str) -> None:
    assert progress_of(["Load weight begin. avail mem=20.50 GB", line]) == percent


def test_the_last_words_are_the_services_own() -> None:
    assert last_words(["Loading", "Started u.service - SGLang."]) == "Loading"


def test_a_lines_own_code_is_not_its_last_words() -> None:
    assert last_words(["fla/utils.py:223: UserWarning: roll back to CPU.", "  warnings.warn("]).endswith("to CPU.")
    assert last_words(["  indented"]) == "indented"
    assert last_words([]) == ""


def test_a_real_process_whose_parent_has_died_is_found() -> None:
    begun = subprocess.run(
        ["bash", "-c", "(exec -a sglang::scheduler_TP9 sleep 60) >/dev/null 2>&1 & echo $!"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    pid = int(begun.stdout)
    try:
        deadline = time.monotonic() + 10
        while Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0] != b"sglang::scheduler_TP9":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        if Path(f"/proc/{pid}/stat").read_text().split()[3] != "1":
            pytest.skip("somebody else than PID 1 adopts orphans here")
        assert [one.name for one in find_orphans() if one.pid == pid] == ["sglang::scheduler_TP9"]
        assert [one for one in find_orphans(ours=[pid]) if one.pid == pid] == []
    finally:
        os.kill(pid, signal.SIGKILL)


def process(proc: Path, pid: int, parent: int, title: str, group: str = "/user.slice/session-3.scope") -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "cmdline").write_bytes(title.encode() + b"\0" * 40)
    (folder / "stat").write_text(f"{pid} (sglang::schedul) S {parent} {pid} {pid} 0 -1 0 " + "0 " * 40)
    (folder / "cgroup").write_text(f"0::{group}\n")


def test_a_scheduler_without_a_server_is_an_orphan_and_one_with_a_server_is_none(tmp_path: Path) -> None:
    process(tmp_path, 1, 0, "/sbin/init")
    process(tmp_path, 50, 1, "/usr/bin/python3")
    process(tmp_path, 51, 50, "sglang::scheduler_TP0")
    process(tmp_path, 60, 1, "sglang::scheduler_TP0")
    process(tmp_path, 61, 1, "sglang::detokenizer")
    process(tmp_path, 62, 1, "sglang::scheduler_TP1", "/system.slice/u.service")
    process(tmp_path, 70, 1, "/lib/systemd/systemd")
    process(tmp_path, 71, 70, "sglang::scheduler_TP0")
    found = find_orphans(ours=[62], proc=tmp_path)
    assert [(one.pid, one.name, one.unit) for one in found] == [
        (60, "sglang::scheduler_TP0", "session-3.scope"),
        (61, "sglang::detokenizer", "session-3.scope"),
        (71, "sglang::scheduler_TP0", "session-3.scope"),
    ]
    assert "kill -9 60 61 71" in remedy(found)
