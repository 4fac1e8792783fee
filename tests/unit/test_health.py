# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The wait for health with real processes on real ports, and its plain values."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.process_unit import ProcessUnit, free_port

from ansible_collections.gpufleet.dflash.plugins.module_utils import _health, _watch
from ansible_collections.gpufleet.dflash.plugins.module_utils._engine_probe import PROTOCOLS, ask
from ansible_collections.gpufleet.dflash.plugins.module_utils._health import Clock, wait_until_healthy
from ansible_collections.gpufleet.dflash.plugins.module_utils._health_spec import HealthReport, HealthSpec, Unhealthy
from ansible_collections.gpufleet.dflash.plugins.module_utils._listener import Listeners, listening
from ansible_collections.gpufleet.dflash.plugins.module_utils._liveness import members, title
from ansible_collections.gpufleet.dflash.plugins.module_utils._systemd import SystemdError, UnitState

ENGINE = str(Path(__file__).parents[1] / "support" / "pretend_engine.py")

SPEC = {"unit": "u.service", "url": "http://127.0.0.1:30001"}


def test_a_spec_survives_the_way_through_plain_values() -> None:
    spec = HealthSpec.from_mapping(
        {**SPEC, "protocol": "llama_cpp", "timeout": "20", "min_accept_length": 2, "release": None}
    )
    assert (spec.timeout, spec.min_accept_length, spec.stable, spec.release) == (20.0, 2.0, 2.0, None)
    assert HealthSpec.from_mapping(spec.to_mapping()) == spec


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"unit": "*"}, r"unusable value: unit: '\*': give the name of one systemd unit"),
        ({"unit": "sglang-dflash-[ab].service"}, "unusable value: unit: "),
        ({"url": "127.0.0.1:30001"}, "unusable value: url: .*: give http://HOST:PORT"),
        ({"url": "http://127.0.0.1"}, "url"),
        ({"url": "http://127.0.0.1:99999999"}, "url"),
        ({"url": "file:///etc/passwd"}, "url"),
        ({"protocol": "vllm"}, "protocol: 'vllm': give one of llama_cpp, sglang"),
        ({"path": "health"}, "path"),
        ({"timeout": "soon"}, "timeout: 'soon': give a number"),
        ({"timeout": 0}, "timeout"),
        ({"stable": -1}, "stable"),
        ({"max_tokens": 1}, "max_tokens"),
        ({"unit": "--all"}, "unit"),
        ({"speed": 3}, "unknown key: speed"),
    ],
)
def test_an_unusable_spec_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        HealthSpec.from_mapping({**SPEC, **change})


def test_a_spec_needs_unit_and_url() -> None:
    with pytest.raises(ValueError, match="missing key: url"):
        HealthSpec.from_mapping({"unit": "u.service"})


SGLANG_ANSWER = {
    "text": " four, five",
    "meta_info": {
        "completion_tokens": 64, "spec_accept_length": 6.4,
        "spec_accept_rate": 0.4, "spec_verify_ct": 10, "e2e_latency": 1.5,
    },
}  # fmt: skip


def test_sglang_tells_of_its_drafts() -> None:
    generation = PROTOCOLS["sglang"].read(SGLANG_ANSWER, 2.0)
    assert (generation.drafted, generation.accept_length, generation.completion_tokens) == (10, 6.4, 64)
    assert generation.to_mapping()["tokens_per_second"] == 32.0


@pytest.mark.parametrize(
    ("tokens", "drafted", "accepted", "length"),
    [(64, 55, 55, 7.875), (16, 13, 13, 7.5), (64, 413, 0, 1.0), (64, None, 0, None)],
    ids=["all accepted", "a short answer", "none accepted", "no speculation"],
)
def test_llama_cpp_tells_of_its_drafts(tokens: int, drafted: int | None, accepted: int, length: float | None) -> None:
    timings = {} if drafted is None else {"draft_n": drafted, "draft_n_accepted": accepted}
    answer = {
        "choices": [{"message": {"content": "."}}],
        "usage": {"completion_tokens": tokens},
        "timings": timings,
    }
    generation = PROTOCOLS["llama_cpp"].read(answer, 1.0)
    assert (generation.drafted, generation.accept_length) == (drafted, length)


def service(
    tmp_path: Path,
    port: int,
    listens: float = 0.2,
    ready: float = 0.2,
    dies: float = 0,
    how: str = "well",
    restart: bool = False,
) -> ProcessUnit:
    command = [sys.executable, ENGINE, *map(str, (port, listens, ready, dies, how))]
    return ProcessUnit(command, tmp_path / "log", {"DFLASH_RELEASE": "r-1"}, restart)


def spec(port: int, **change: Any) -> HealthSpec:
    return HealthSpec(
        **{"unit": "u.service", "url": f"http://127.0.0.1:{port}", "timeout": 20, "stable": 0.6, **change}
    )


def failure(unit: ProcessUnit, wanted: HealthSpec) -> HealthReport:
    with pytest.raises(Unhealthy) as caught:
        wait_until_healthy(wanted, systemd=unit)
    assert str(caught.value) == caught.value.report.message
    assert not caught.value.report.healthy
    return caught.value.report


@pytest.fixture
def port() -> int:
    return free_port()


def events(report: HealthReport) -> list[str]:
    return [item["event"] for item in report.timeline]


def test_a_service_that_loads_and_serves_is_healthy(tmp_path: Path, port: int) -> None:
    told: list[str] = []
    with service(tmp_path, port, listens=0.8, ready=1.6) as unit:
        report = wait_until_healthy(
            spec(port, release="r-1", min_accept_length=3.9), systemd=unit, progress=told.append
        )
    assert report.healthy and report.cause == "healthy"
    assert events(report) == [
        "unit active/running", "connection refused", "HTTP 503", "HTTP 200", "asking for tokens", "healthy",
    ]  # fmt: skip
    assert report.generation is not None and report.generation["accept_length"] == 4.0
    assert len(told) == 6 and told[2].startswith("u.service: ") and told[2].endswith("HTTP 503")


@pytest.mark.parametrize("restart", [False, True], ids=["stays dead", "is restarted"])
@pytest.mark.parametrize(("ready", "dies"), [(60, 1.2), (0.1, 1.0)], ids=["while it loads", "while it proves stable"])
def test_a_death_is_reported_at_once_with_its_cause(
    tmp_path: Path, port: int, ready: float, dies: float, restart: bool
) -> None:
    with service(tmp_path, port, ready=ready, dies=dies, restart=restart) as unit:
        begin = time.monotonic()
        report = failure(unit, spec(port, stable=5))
        took = time.monotonic() - begin
    assert took < dies + 2.0
    assert report.cause == "missing-library"
    assert "missing library: libcublas.so.13" in report.message
    if not restart:
        assert report.exit_status == 3 and "exit status 3" in report.message
    assert ("and was restarted" in report.message) == restart
    assert "libcublas.so.13" in report.journal[-1]
    assert "s3cr3t" not in str(report.to_mapping())


def test_a_death_is_noticed_while_a_health_request_hangs(tmp_path: Path, port: int) -> None:
    with service(tmp_path, port, dies=1.5, how="hangs") as unit:
        begin = time.monotonic()
        report = failure(unit, spec(port))
        assert time.monotonic() - begin < 3.5
    assert report.exit_status == 3


def test_a_kill_is_reported_with_the_name_of_the_signal(tmp_path: Path, port: int) -> None:
    with service(tmp_path, port, ready=60) as unit:
        threading.Timer(0.8, unit.kill, [signal.SIGKILL]).start()
        report = failure(unit, spec(port))
    assert (report.signal, report.exit_status) == ("SIGKILL", None)
    assert "by SIGKILL" in report.message


@pytest.mark.parametrize(
    ("how", "cause", "words"),
    [
        ("dies-generating", "exited", "exit status 4 while it generated"),
        ("refuses", "generation-failed", "HTTP 500: CUDA error: an illegal memory access"),
        ("silent", "generation-failed", "the completion is empty"),
        ("plain", "no-drafts", "speculation is off"),
        ("rejects", "drafts-rejected", "accept length 1.00, not above 1.00"),
    ],
)
def test_health_without_tokens_is_not_enough(tmp_path: Path, port: int, how: str, cause: str, words: str) -> None:
    with service(tmp_path, port, how=how) as unit:
        report = failure(unit, spec(port))
    assert report.cause == cause
    assert words in report.message


def test_a_service_without_speculation_need_not_draft(tmp_path: Path, port: int) -> None:
    with service(tmp_path, port, how="plain") as unit:
        report = wait_until_healthy(spec(port, speculative=False), systemd=unit)
    assert report.generation is not None and report.generation["drafted"] is None


def test_tokens_are_not_asked_for_unless_wanted(tmp_path: Path, port: int) -> None:
    with service(tmp_path, port, how="dies-generating") as unit:
        assert wait_until_healthy(spec(port, generate=False), systemd=unit).generation is None


def test_another_release_than_the_wanted_one_is_not_healthy(tmp_path: Path, port: int) -> None:
    with service(tmp_path, port) as unit:
        report = failure(unit, spec(port, release="r-2"))
    assert report.cause == "wrong-release" and "runs release r-1, not r-2" in report.message


def test_a_release_that_could_not_be_read_is_no_reason_for_a_restart(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_health, "release_of", lambda pid: None)
    monkeypatch.setattr(_health, "may_read_environment", lambda pid: False)
    monkeypatch.setattr(_health, "lacks_root", lambda: True)
    with service(tmp_path, port) as unit:
        report = failure(unit, spec(port, release="r-2"))
    assert report.cause == "release-unreadable"
    assert "could not be read without root" in report.message and "restart" not in report.message + report.fix
    assert "leave become on" in report.fix


def test_a_service_that_never_gets_ready_is_given_up(tmp_path: Path, port: int) -> None:
    with service(tmp_path, port, ready=600) as unit:
        report = failure(unit, spec(port, timeout=1.5))
    assert report.cause == "timeout"
    assert "HTTP 503" in report.message and "not ready" not in report.message
    assert report.main_pid == unit.process.pid


def test_a_service_that_does_nothing_is_given_up_long_before_the_time_out(tmp_path: Path, port: int) -> None:
    with ProcessUnit(["/bin/sleep", "60"], tmp_path / "log") as unit:
        begin = time.monotonic()
        report = failure(unit, spec(port, timeout=600, stall=1.5))
        assert time.monotonic() - begin < 15
    assert report.cause == "stalled"
    assert "no CPU time" in report.message


def test_a_stopped_service_is_named_with_the_way_to_go_on(tmp_path: Path, port: int) -> None:
    with service(tmp_path, port, ready=600) as unit:
        threading.Timer(0.5, unit.kill, [signal.SIGSTOP]).start()
        report = failure(unit, spec(port, timeout=600, stall=2))
        assert f"kill -CONT {unit.process.pid}" in report.fix
    assert report.cause == "stalled"


WORKS = "import time, sys\nwhile True:\n    sum(range(200000)); time.sleep(0.05)"
SPEAKS = "import time\nfor i in range(1000):\n    print(f'layer {i}', flush=True); time.sleep(0.3)"


@pytest.mark.parametrize("program", [WORKS, SPEAKS], ids=["computes", "writes"])
def test_a_service_that_works_is_waited_for(tmp_path: Path, port: int, program: str) -> None:
    with ProcessUnit([sys.executable, "-c", program], tmp_path / "log") as unit:
        report = failure(unit, spec(port, timeout=6, stall=2))
    assert report.cause == "timeout"


def test_a_hung_scheduler_is_named(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As SGLang's, whose health says so after 20 seconds; here after less than one."""
    monkeypatch.setattr(_health, "SLOW_ANSWER", 0.7)
    monkeypatch.setattr(_watch, "SLOW_ANSWER", 0.7)
    with service(tmp_path, port, how="hung") as unit:
        report = failure(unit, spec(port, timeout=600))
        for pid in members(unit.show("u.service")):
            if pid != unit.process.pid:
                os.kill(pid, signal.SIGKILL)
    assert report.cause == "scheduler-hung"
    assert "(sglang::scheduler)" in report.message and "kill -CONT" in report.fix


@pytest.fixture
def orphan() -> Iterator[int]:
    """A process that calls itself a scheduler and whose parent has died."""
    script = "(exec -a sglang::scheduler_TP7 sleep 60) >/dev/null 2>&1 & echo $!"
    pid = int(subprocess.run(["bash", "-c", script], capture_output=True, check=True).stdout)
    while not title(pid).startswith("sglang::"):
        time.sleep(0.05)
    if int(Path(f"/proc/{pid}/stat").read_text().split()[3]) != 1:
        os.kill(pid, signal.SIGKILL)
        pytest.skip("somebody else than PID 1 adopts orphans here")
    yield pid
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.", "orphaned-process"),
        ("ModuleNotFoundError: No module named 'sgl_kernel'", "module-missing"),
    ],
    ids=["it lacks what an orphan holds", "it lacks something else"],
)
def test_what_a_dead_server_left_is_named_and_blamed_for_what_it_holds(
    tmp_path: Path, port: int, orphan: int, words: str, cause: str
) -> None:
    program = f"import sys; sys.exit({words!r})"
    with ProcessUnit([sys.executable, "-c", program], tmp_path / "log") as unit:
        report = failure(unit, spec(port))
    assert report.cause == cause
    assert orphan in [one["pid"] for one in report.orphans]
    if cause == "orphaned-process":
        assert "too little free memory" in report.message and f"{orphan} (sglang::scheduler_TP7)" in report.message
        assert f"kill -9 {orphan}" in report.fix


def test_progress_has_the_last_line_of_the_log_without_keys(tmp_path: Path, port: int) -> None:
    program = (
        "import time\nprint('Loading safetensors checkpoint shards:  40% api_key=abcdef', flush=True)\ntime.sleep(60)"
    )
    told: list[str] = []
    with ProcessUnit([sys.executable, "-c", program], tmp_path / "log") as unit, pytest.raises(Unhealthy):
        wait_until_healthy(spec(port, timeout=4), systemd=unit, progress=told.append, heartbeat=0.5)
    assert any(": 40 %: Loading safetensors checkpoint shards:  40% api_key=********" in line for line in told), told
    assert "abcdef" not in str(told)


class FastClock(Clock):
    """Time that passes thirty times as fast."""

    def monotonic(self) -> float:
        return super().monotonic() * 30

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds / 30)


def test_a_long_wait_tells_now_and_then_what_it_sees(tmp_path: Path, port: int) -> None:
    told: list[str] = []
    with service(tmp_path, port, ready=600) as unit, pytest.raises(Unhealthy):
        slow = spec(port, timeout=90)
        wait_until_healthy(slow, systemd=unit, clock=FastClock(), progress=told.append)
    still = [line for line in told if line.endswith("s: still unit active/running, HTTP 503")]
    assert 2 <= len(still) <= 6


class Reexecuting(ProcessUnit):
    """Answers nobody for a while, as systemd while it executes itself; C(silent): the looks that fail."""

    silent = range(2, 5)
    looks = 0

    def show(self, unit: str) -> UnitState:
        self.looks += 1
        if self.looks in self.silent:
            raise SystemdError("systemctl show u.service: Connection reset by peer")
        return super().show(unit)


def test_a_systemd_that_is_away_for_a_moment_does_no_harm(tmp_path: Path, port: int) -> None:
    well = service(tmp_path, port)
    with Reexecuting(well.command, well.log) as unit:
        assert wait_until_healthy(spec(port), systemd=unit).healthy
    assert unit.looks > 5


def test_a_systemd_that_stays_away_is_an_error(tmp_path: Path, port: int) -> None:
    well = service(tmp_path, port)
    with Reexecuting(well.command, well.log) as unit, pytest.raises(SystemdError, match="Connection reset"):
        unit.silent = range(2, 10**9)
        wait_until_healthy(spec(port, timeout=900), systemd=unit, clock=FastClock())


@pytest.fixture
def squatter(tmp_path: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that answers 200 to everything on the service's port."""
    command = [sys.executable, ENGINE, str(port), "0", "0", "0", "well"]
    with subprocess.Popen(command) as process:
        while ask(f"http://127.0.0.1:{port}/health", timeout=1).status != 200:
            time.sleep(0.05)
        yield process
        process.kill()


def test_a_healthy_stranger_on_the_port_is_not_the_service(
    tmp_path: Path, port: int, squatter: subprocess.Popen[bytes]
) -> None:
    with ProcessUnit(["/bin/sleep", "60"], tmp_path / "log") as unit:
        begin = time.monotonic()
        report = failure(unit, spec(port, stable=5))
    assert time.monotonic() - begin < 3
    assert report.cause == "port-in-use"
    assert f"port {port} is held by process {squatter.pid} (python" in report.message


def test_the_owner_of_a_port_is_found_by_address(tmp_path: Path, port: int) -> None:
    with service(tmp_path, port, listens=0) as unit:
        while ask(f"http://127.0.0.1:{port}/health", timeout=1).status != 200:
            time.sleep(0.05)
        mine = Listeners("127.0.0.1", port).find(unit.process.pid)
        assert mine is not None and mine.ours is True and mine.pid == unit.process.pid
        theirs = Listeners("localhost", port).find(1)
        assert theirs is not None and theirs.ours is False
        assert Listeners("127.0.0.2", port).find(unit.process.pid) is None


def test_a_wildcard_listener_counts_for_every_address() -> None:
    with socket.create_server(("", 0)) as server:
        found = Listeners("127.0.0.1", server.getsockname()[1]).find(0)
    assert found is not None and found.ours is False


def test_the_kernels_table_is_read_for_both_families() -> None:
    table = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 0100007F:7531 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 4711 1\n"
        "   1: 0100007F:7531 0100007F:D2F0 01 00000000:00000000 00:00000000 00000000 0 0 4712 1\n"
        "   2: 0000000000000000FFFF00000100007F:7532 00000000000000000000000000000000:0000"
        " 0A 0:0 00:0 0 0 0 4713 1\n"
    )
    assert list(listening(table)) == [("127.0.0.1", 30001, 4711), ("127.0.0.1", 30002, 4713)]
