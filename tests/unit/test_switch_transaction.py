# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The switch when the host itself fails: full disks, read-only folders, a systemd that refuses.

What a booted host can be made to do is told by the molecule scenario rollback. Here files and history are real, and
systemd and the service are pretended, so that they can fail at any point.
"""

from __future__ import annotations

import errno
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.dflash.plugins.module_utils import _release, _switch
from ansible_collections.gpufleet.dflash.plugins.module_utils._health_spec import HealthReport, HealthSpec, Unhealthy
from ansible_collections.gpufleet.dflash.plugins.module_utils._history import FAILED, VERIFIED, History
from ansible_collections.gpufleet.dflash.plugins.module_utils._release import (
    Instance,
    Release,
    ReleaseError,
    make_release,
    stage,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._remove import leftovers, remove_instance
from ansible_collections.gpufleet.dflash.plugins.module_utils._switch import Switch, SwitchError
from ansible_collections.gpufleet.dflash.plugins.module_utils._systemd import Systemd, SystemdError, UnitState

UNIT = "[Service]\nEnvironment=DFLASH_RELEASE=@release@\nTimeoutStopSec=5\nExecStart=/bin/{program}\n"
UNHEALTHY = HealthReport(unit="u", cause="exited", message="it died", fix="mend it", journal=["last words"])


class Host(Systemd):
    """A host with one instance: a pretended systemd, and a service whose health a test decides."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        (folder / "units").mkdir()
        monkeypatch.setattr(_release, "UNIT_FOLDER", str(folder / "units"))
        monkeypatch.setattr(_switch, "release_of", lambda pid: self.running)
        monkeypatch.setattr(_switch, "wait_until_healthy", self.verify)
        self.instance = Instance.named(str(folder / "dflash"), "tiny")
        self.generation = folder / "dflash" / "venvs" / "g"
        (self.generation / ".dflash").mkdir(parents=True)
        manifest = {"id": "g", "created": 1.0, "distributions": {}, "overlays": {}, "library_directories": []}
        (self.generation / ".dflash" / "generation.json").write_text(json.dumps(manifest))
        self.running: str | None = None
        self.enabled = False
        self.restarts = 0
        self.failures: dict[str, Exception] = {}  # by what is done: "restart", "daemon_reload", or a release's name

    def verify(self, spec: HealthSpec, **_options: Any) -> HealthReport:
        assert spec.release is not None
        if spec.release in self.failures:
            raise self.failures[spec.release]
        if self.running != spec.release:
            raise Unhealthy(UNHEALTHY)
        return HealthReport(unit=spec.unit, healthy=True, main_pid=7, generation={"accept_length": 5.0})

    def show(self, unit: str) -> UnitState:
        state = "enabled" if self.enabled else "disabled"
        return UnitState(unit, main_pid=7 if self.running else 0, unit_file_state=state)

    def _do(self, what: str) -> None:
        if what in self.failures:
            raise self.failures[what]

    def daemon_reload(self) -> None:
        self._do("daemon_reload")

    def reset_failed(self, unit: str) -> None:
        self._do("reset_failed")

    def enable(self, unit: str) -> None:
        self._do("enable")
        self.enabled = True

    def disable(self, unit: str) -> None:
        self._do("disable")
        self.enabled = False

    def stop(self, unit: str) -> None:
        self._do("stop")
        self.running = None

    def restart(self, unit: str) -> None:
        self._do("restart")
        self.restarts += 1
        self.running = _release.release_of_unit(self.instance.installed_unit())

    def stage(self, program: str, port: int = 1, hooks: dict[str, Any] | None = None) -> str:
        release: Release = make_release(
            UNIT.format(program=program),
            str(self.generation),
            "llama_cpp",
            {"url": f"http://127.0.0.1:{port}"},
            hooks=hooks,
        )
        stage(self.instance, release)
        return release.id

    def switch(self) -> Switch:
        return Switch(self.instance, lambda line: None, self)

    def outcomes(self) -> list[tuple[str, str]]:
        events = History(self.instance.history_path).events
        return [(event.event, event.release) for event in events if event.event in (VERIFIED, FAILED)]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


@pytest.fixture
def old(host: Host) -> str:
    """A release that serves, verified."""
    release = host.stage("old")
    host.switch().activate(release)
    host.restarts = 0
    return release


def test_a_new_release_is_verified_and_recorded(host: Host, old: str) -> None:
    new = host.stage("new")
    assert host.switch().activate(new).healthy
    assert host.running == new
    assert host.outcomes() == [(VERIFIED, old), (VERIFIED, new)]


@pytest.mark.parametrize(
    "failure",
    [
        Unhealthy(UNHEALTHY),
        SystemdError("systemctl: no answer"),
        OSError(errno.EIO, "Input/output error", "/somewhere"),
        KeyError("surprise"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
    ],
    ids=lambda failure: type(failure).__name__,
)
def test_whatever_fails_after_the_switch_the_old_release_is_put_back(host: Host, old: str, failure: Exception) -> None:
    new = host.stage("new")
    host.failures[new] = failure
    with pytest.raises(SwitchError, match=f"Release {old} was put back and verified: it serves with PID 7") as caught:
        host.switch().activate(new)
    assert host.running == old
    assert f"release {new} did not become healthy" in str(caught.value)
    assert caught.value.restored is not None
    assert host.outcomes() == [(VERIFIED, old), (FAILED, new), (VERIFIED, old)]


def test_a_full_disk_does_not_stop_the_way_back(host: Host, old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    new = host.stage("new")
    host.failures[new] = Unhealthy(UNHEALTHY)
    switch = host.switch()
    add, calls = History.add, []

    def add_once(history: History, event: Any) -> None:
        calls.append(event)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "No space left on device", history.path)
        add(history, event)

    monkeypatch.setattr(History, "add", add_once)
    with pytest.raises(SwitchError, match="was put back and verified"):
        switch.activate(new)
    assert host.running == old


def test_a_disk_that_is_full_from_the_start_touches_nothing(
    host: Host, old: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(history: History, event: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", history.path)

    monkeypatch.setattr(History, "add", full)
    with pytest.raises(OSError, match="No space left"):
        host.switch().activate(host.stage("new"))
    assert (host.running, host.restarts) == (old, 0)


def test_a_failure_before_the_restart_leaves_the_old_process_alone(host: Host, old: str) -> None:
    new = host.stage("new")
    host.failures["reset_failed"] = SystemdError("systemctl: refused")
    with pytest.raises(SwitchError, match="was put back and verified"):
        host.switch().activate(new)
    assert (host.running, host.restarts) == (old, 0)
    assert _release.release_of_unit(host.instance.installed_unit()) == old


@pytest.mark.parametrize("rollback", [False, True], ids=["deploy", "rollback"])
def test_a_unit_folder_that_cannot_be_written_touches_and_condemns_nothing(
    host: Host, old: str, rollback: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = host.stage("new")

    def read_only(path: str, content: bytes, mode: int = 0o644) -> None:
        raise OSError(errno.EROFS, "Read-only file system", path)

    with monkeypatch.context() as patch:
        patch.setattr(_switch, "write_atomically", read_only)
        with pytest.raises(SwitchError, match="Nothing was touched: what ran goes on"):
            host.switch().activate(new, rollback)
    assert (host.running, host.restarts) == (old, 0)
    assert host.outcomes() == [(VERIFIED, old)]
    host.failures[new] = Unhealthy(UNHEALTHY)
    with pytest.raises(SwitchError, match=f"Release {old} was put back"):
        host.switch().activate(new)


def test_what_once_served_is_a_way_back_when_nothing_better_is(host: Host, old: str) -> None:
    second = host.stage("second")
    host.switch().activate(second)
    host.failures[old] = Unhealthy(UNHEALTHY)
    with pytest.raises(SwitchError, match=f"Release {second} was put back"):
        host.switch().activate(old, rollback=True)
    del host.failures[old]
    host.failures |= {name: Unhealthy(UNHEALTHY) for name in (second, host.stage("new"))}
    with pytest.raises(SwitchError, match=f"Release {old} was put back"):
        host.switch().activate(second)
    assert host.running == old


def test_when_systemd_refuses_altogether_what_runs_is_told_and_not_guessed(host: Host, old: str) -> None:
    new = host.stage("new")
    host.failures["daemon_reload"] = SystemdError("systemctl: no answer")
    with pytest.raises(SwitchError, match=f"(?s)Going back failed too.*The process that runs now is of release {old}"):
        host.switch().activate(new)
    assert (host.running, host.restarts) == (old, 0)


def test_the_only_release_is_never_removed_once_it_was_verified(host: Host, old: str) -> None:
    host.failures[old] = Unhealthy(UNHEALTHY)
    with pytest.raises(SwitchError, match="left as it is"):
        host.switch().activate(old)
    assert host.instance.installed_unit()
    assert (host.running, host.enabled) == (old, True)


def test_a_service_that_drafts_too_little_is_not_restarted_for_that(host: Host, old: str) -> None:
    report = HealthReport(unit="u", cause="drafts-rejected", message="too few drafts")
    host.failures[old] = Unhealthy(report)
    for attempt in (host.switch().plan, host.switch().activate):
        with pytest.raises(SwitchError, match="too few drafts\nIt was left running"):
            attempt(old)
    assert (host.running, host.restarts) == (old, 0)


def test_the_first_release_that_fails_leaves_no_unit_behind(host: Host) -> None:
    new = host.stage("new")
    host.failures[new] = Unhealthy(UNHEALTHY)
    with pytest.raises(SwitchError, match="No release was ever verified here, so the unit was stopped and removed"):
        host.switch().activate(new)
    assert (host.running, host.enabled, host.instance.installed_unit()) == (None, False, "")


def test_a_unit_that_cannot_be_stopped_is_disabled_all_the_same_and_that_is_told(host: Host) -> None:
    new = host.stage("new")
    host.failures |= {new: Unhealthy(UNHEALTHY), "stop": SystemdError("no answer within 900 seconds")}
    with pytest.raises(SwitchError, match=r"as far as that went \(stop: no answer"):
        host.switch().activate(new)
    assert not host.enabled


def test_what_another_run_has_done_meanwhile_is_not_done_again(host: Host, old: str) -> None:
    new = host.stage("new")
    waiting = host.switch()
    host.switch().activate(new)
    restarts = host.restarts
    assert waiting.activate(new).healthy
    assert host.restarts == restarts


def test_an_interrupted_switch_is_verified_without_a_restart(host: Host, old: str) -> None:
    new = host.stage("new")
    Path(host.instance.unit_path).write_text(read_unit(host, new))
    host.running = new
    assert host.switch().activate(new).healthy
    assert host.restarts == 0
    assert host.outcomes()[-1] == (VERIFIED, new)


def test_a_unit_that_was_changed_by_hand_is_put_right(host: Host, old: str) -> None:
    path = Path(host.instance.unit_path)
    path.write_bytes(path.read_bytes() + b"# by hand \xe9\n")
    plan, _report = host.switch().plan(old)
    assert plan.reasons == ("the unit was changed by hand",)
    host.switch().activate(old)
    assert path.read_text() == read_unit(host, old)


def test_a_link_for_people_that_cannot_be_made_takes_nothing_back(host: Host, old: str) -> None:
    current = Path(host.instance.folder, "current")
    current.unlink()
    (current / "full").mkdir(parents=True)
    new = host.stage("new")
    assert host.switch().activate(new).healthy
    assert host.running == new
    assert not list(Path(host.instance.folder).glob(".new-*"))


def read_unit(host: Host, release: str) -> str:
    return Path(host.instance.release_folder(release), host.instance.unit).read_text()


def test_a_port_that_another_process_holds_is_told_before_anything_is_touched(host: Host, old: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        new = host.stage("new", port)
        with pytest.raises(ReleaseError, match=rf"port {port} is held by \S+ \(PID {os.getpid()}\)"):
            host.switch().activate(new)
    assert (host.running, host.restarts) == (old, 0)
    assert host.switch().activate(new).healthy


def shell(script: str) -> list[dict[str, Any]]:
    return [{"command": ["sh", "-c", script]}]


def test_hooks_run_before_the_stop_and_after_the_verification(host: Host, old: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    new = host.stage(
        "new", hooks={"pre_stop": shell(f"echo leave >> {log}"), "post_start": shell(f"echo join >> {log}")}
    )
    host.switch().activate(new)
    assert log.read_text().split() == ["leave", "join"]
    host.switch().activate(new)
    assert log.read_text().split() == ["leave", "join"], "nothing was to do"


def test_a_first_start_leaves_nothing(host: Host, tmp_path: Path) -> None:
    host.switch().activate(host.stage("first", hooks={"pre_stop": shell("exit 1")}))


def test_where_leaving_fails_nothing_is_touched(host: Host, old: str) -> None:
    new = host.stage("new", hooks={"pre_stop": shell("echo no such pool >&2; exit 1")})
    with pytest.raises(SwitchError, match=r"(?s)no such pool.*Nothing was touched"):
        host.switch().activate(new)
    assert (host.running, host.restarts) == (old, 0)


def test_where_joining_fails_the_service_stays_and_the_next_run_joins(host: Host, old: str, tmp_path: Path) -> None:
    new = host.stage("new", hooks={"post_start": shell(f"test -e {tmp_path}/balancer")})
    with pytest.raises(SwitchError, match=r"(?s)serves, but post_start failed: .*left running"):
        host.switch().activate(new)
    assert (host.running, host.restarts) == (new, 1)
    assert not History(host.instance.history_path).is_verified(new)
    (tmp_path / "balancer").touch()
    host.switch().activate(new)
    assert (host.running, host.restarts) == (new, 1)
    assert History(host.instance.history_path).is_verified(new)


def test_the_way_back_does_not_depend_on_hooks(host: Host, tmp_path: Path) -> None:
    old = host.stage("old", hooks={"pre_stop": shell("exit 1")})
    host.switch().activate(old)
    new = host.stage("new")
    host.failures[new] = Unhealthy(UNHEALTHY)
    with pytest.raises(SwitchError, match="was put back and verified"):
        host.switch().activate(new)
    assert host.running == old


def test_removing_an_instance_leaves_nothing_of_it_and_removing_it_again_changes_nothing(
    host: Host, old: str, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    (state / "tiny").mkdir(parents=True)
    (state / "other").mkdir()
    assert leftovers(host.instance, host, str(state)) == [
        host.instance.unit_path,
        host.instance.folder,
        str(state / "tiny"),
    ]
    remove_instance(host.instance, host, lambda line: None, str(state))
    assert (host.running, host.enabled) == (None, False)
    assert leftovers(host.instance, host, str(state)) == []
    assert sorted(os.listdir(state)) == ["other"]
    assert host.generation.exists(), "others may run from it"


def test_a_service_that_does_not_stop_is_not_removed(host: Host, old: str, tmp_path: Path) -> None:
    host.failures["stop"] = SystemdError("systemctl: timed out")
    with pytest.raises(SystemdError):
        remove_instance(host.instance, host, lambda line: None, str(tmp_path))
    assert host.instance.installed_unit()
    assert History(host.instance.history_path).is_verified(old)


def test_a_unit_of_somebody_else_is_not_removed(host: Host, tmp_path: Path) -> None:
    Path(host.instance.unit_path).write_text("[Service]\nExecStart=/bin/true\n")
    with pytest.raises(ReleaseError, match="not a unit of this collection"):
        remove_instance(host.instance, host, lambda line: None, str(tmp_path))


def test_a_generation_that_is_removed_meanwhile_is_found_before_anything_is_touched(
    host: Host, old: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = host.stage("new")
    add = History.add

    def removed(self: History, event: Any) -> None:
        add(self, event)
        host.generation.rename(host.generation.with_name(".removed"))

    monkeypatch.setattr(History, "add", removed)
    with pytest.raises(SwitchError, match=r"its generation was removed meanwhile: [^\n]*\n *Nothing was touched"):
        host.switch().activate(new)
    assert (host.running, host.restarts) == (old, 0)
