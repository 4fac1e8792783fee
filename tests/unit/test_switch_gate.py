# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The switch when releases differ in speed: engines are real processes, measured over HTTP; systemd is pretended."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.process_unit import free_port
from test_switch_transaction import Host

from ansible_collections.gpufleet.dflash.plugins.module_utils._engine_probe import ask
from ansible_collections.gpufleet.dflash.plugins.module_utils._exports import Exports, recorded
from ansible_collections.gpufleet.dflash.plugins.module_utils._gate import Gate
from ansible_collections.gpufleet.dflash.plugins.module_utils._history import FAILED, VERIFIED
from ansible_collections.gpufleet.dflash.plugins.module_utils._release import ReleaseError, release_of_unit
from ansible_collections.gpufleet.dflash.plugins.module_utils._release_states import _beside
from ansible_collections.gpufleet.dflash.plugins.module_utils._remove import leftovers, remove_instance
from ansible_collections.gpufleet.dflash.plugins.module_utils._switch import Switch, SwitchError
from ansible_collections.gpufleet.dflash.plugins.module_utils._throughput import Probe

ENGINE = Path(__file__).parents[1] / "support" / "pretend_engine.py"
PROBE = Probe(requests=2, tokens=40, seconds=0)
GATE = Gate(PROBE, 40)


class EngineHost(Host):
    """A host whose service is a real engine of the speed that its release has."""

    process: subprocess.Popen[bytes] | None = None

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, monkeypatch)
        self.engines: dict[str, tuple[int, int]] = {}
        self.told: list[str] = []

    def release(self, speed: int) -> str:
        """Stage a release that generates so many tokens a second."""
        port = free_port()
        release = self.stage(f"engine-{speed}", port)
        self.engines[release] = port, speed
        return release

    def stop_engine(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None

    def restart(self, unit: str) -> None:
        super().restart(unit)
        self.stop_engine()
        port, speed = self.engines[release_of_unit(self.instance.installed_unit()) or ""]
        command = [sys.executable, str(ENGINE), str(port), "0", "0", "0", f"speed:{speed}"]
        self.process = subprocess.Popen(command)
        deadline = time.monotonic() + 30
        while ask(f"http://127.0.0.1:{port}/health", timeout=1).status != 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def activate(self, release: str, rollback: bool = False, gate: Gate = GATE) -> Any:
        return Switch(self.instance, self.told.append, self, gate).activate(release, rollback)

    def history(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in Path(self.instance.history_path).read_text().splitlines()]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineHost]:
    found = EngineHost(tmp_path, monkeypatch)
    yield found
    found.stop_engine()


def test_numbers_of_a_first_release_are_recorded_and_not_judged(host: EngineHost) -> None:
    report = host.activate(host.release(50))
    assert 20 < report.throughput["tokens_per_second"] <= 50
    assert "baseline" not in report.throughput
    last = host.history()[-1]
    assert (last["event"], last["accept_length"], last["probe"]) == (VERIFIED, 4.0, PROBE.to_mapping())
    assert last["tokens_per_second"] == report.throughput["tokens_per_second"]


def test_a_slower_release_is_taken_back_within_the_transaction(host: EngineHost) -> None:
    fast, slow = host.release(200), host.release(40)
    host.activate(fast)
    with pytest.raises(SwitchError, match=f"slower than release {fast}: .* tokens/s.*before .* tokens/s") as caught:
        host.activate(slow)
    assert f"Release {fast} was put back and verified" in str(caught.value)
    assert host.running == fast
    assert caught.value.failed is not None and caught.value.failed.cause == "slower-than-before"
    assert host.outcomes() == [(VERIFIED, fast), (FAILED, slow), (VERIFIED, fast)]
    assert any(line.endswith("measuring again") for line in host.told)


def test_going_back_to_a_slower_release_is_never_blocked(host: EngineHost) -> None:
    slow, fast = host.release(40), host.release(200)
    host.activate(slow)
    host.activate(fast)
    assert host.activate(slow, rollback=True).healthy
    assert host.running == slow
    assert host.history()[-1]["tokens_per_second"] <= 40, "it is measured all the same"


def test_deploying_a_slower_release_again_that_was_verified_before_is_not_blocked(host: EngineHost) -> None:
    slow, fast = host.release(40), host.release(200)
    host.activate(slow)
    host.activate(fast)
    assert host.activate(slow).healthy
    assert host.running == slow


def test_a_slower_release_passes_where_the_limit_is_off(host: EngineHost) -> None:
    fast, slow = host.release(200), host.release(40)
    host.activate(fast)
    assert host.activate(slow, gate=Gate(PROBE, 0)).healthy
    assert host.running == slow


def test_a_slow_release_of_an_interrupted_run_is_taken_back_without_another_restart(host: EngineHost) -> None:
    fast, slow = host.release(200), host.release(40)
    host.activate(fast)
    text = host.instance.staged_unit(slow)
    assert text is not None
    Path(host.instance.unit_path).write_text(text)
    host.restart("")
    before = host.restarts
    with pytest.raises(SwitchError, match="was put back and verified"):
        host.activate(slow)
    assert (host.running, host.restarts) == (fast, before + 1)


def test_an_instance_that_is_removed_takes_its_files_for_prometheus_along(host: EngineHost, tmp_path: Path) -> None:
    (tmp_path / "textfiles").mkdir()
    host.activate(host.release(200))
    (written,) = Exports(textfile_dir=str(tmp_path / "textfiles")).refresh(host.instance)
    assert "dflash_tokens_per_second{" in Path(written).read_text()
    assert recorded(host.instance) == [written]
    assert written in leftovers(host.instance, host, str(tmp_path))
    remove_instance(host.instance, host, lambda line: None, str(tmp_path))
    assert not Path(written).exists()
    assert leftovers(host.instance, host, str(tmp_path)) == []


OPTIONS = {"probe": {"requests": -1}, "max_regression": 20.0, "textfile_dir": "/nonexistent", "scrape_dir": None}


@pytest.mark.parametrize("wrong", ["probe", "textfile_dir"])
def test_a_mistake_in_what_is_beside_the_point_stops_a_deploy_and_no_way_back(host: EngineHost, wrong: str) -> None:
    options = {**dict.fromkeys(OPTIONS), wrong: OPTIONS[wrong]}
    with pytest.raises(ReleaseError, match=r"probe\.requests|no such folder"):
        _beside(options, rollback=False)
    gate, exports, (warning,) = _beside(options, rollback=True)
    assert (gate.probe.wanted, exports is None) == (False, wrong == "textfile_dir")
    assert "probe.requests" in warning or "no such folder" in warning
