# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What systemd says, read from its own output: the fixtures were printed by systemd 252 on Debian 12."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ansible_collections.gpufleet.dflash.plugins.module_utils import _systemd
from ansible_collections.gpufleet.dflash.plugins.module_utils._systemd import (
    Systemd,
    SystemdError,
    UnitState,
    parse_journal,
    parse_show,
    signal_name,
)

FIXTURES = Path(__file__).parents[1] / "fixtures" / "systemd"


def shown(name: str) -> UnitState:
    return parse_show("x.service", (FIXTURES / f"show-{name}.txt").read_text())


@pytest.mark.parametrize(
    ("name", "load", "active", "sub", "result", "exit_status", "signal", "restarts", "main_pid"),
    [
        ("running", "loaded", "active", "running", "success", None, None, 0, 696),
        ("inactive", "loaded", "inactive", "dead", "success", None, None, 0, 0),
        ("not-found", "not-found", "inactive", "dead", "success", None, None, 0, 0),
        ("auto-restart", "loaded", "activating", "auto-restart", "exit-code", 203, None, 0, 0),
        ("failed", "loaded", "failed", "failed", "exit-code", 217, None, 5, 0),
        ("restarted", "loaded", "active", "running", "success", None, None, 1, 1218),
        ("killed", "loaded", "activating", "auto-restart", "signal", None, "SIGABRT", 0, 0),
    ],
)
def test_show_is_read_as_systemd_prints_it(
    name: str,
    load: str,
    active: str,
    sub: str,
    result: str,
    exit_status: int,
    signal: str,
    restarts: int,
    main_pid: int,
) -> None:
    state = shown(name)
    assert (state.load_state, state.active_state, state.sub_state, state.result) == (
        load,
        active,
        sub,
        result,
    )
    assert (state.exit_status, state.signal, state.n_restarts, state.main_pid) == (
        exit_status, signal, restarts, main_pid,
    )  # fmt: skip
    assert state.unit == "x.service"


def test_show_tells_where_the_unit_comes_from() -> None:
    state = shown("running")
    assert state.fragment_path == "/etc/systemd/system/good.service"
    assert state.control_group == "/system.slice/good.service"
    assert state.invocation_id == "36500c41be394648b80eaf49076cde29"
    assert (state.unit_file_state, state.need_daemon_reload, state.job) == ("static", False, 0)


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("NeedDaemonReload=yes", "need_daemon_reload", True),
        ("Job=4711", "job", 4711),
        ("MainPID=[not set]", "main_pid", 0),
        ("Unheard=of", "load_state", ""),
        ("garbage", "load_state", ""),
    ],
)
def test_show_survives_what_other_versions_print(line: str, field: str, value: object) -> None:
    assert getattr(parse_show("x.service", line + "\n"), field) == value


def test_signals_have_names() -> None:
    assert signal_name(9) == "SIGKILL"
    assert signal_name(4000) == "signal 4000"


def test_journal_tells_the_invocations_apart() -> None:
    entries = parse_journal((FIXTURES / "journal-exit-3.jsonl").read_text())
    died = [line for invocation, line in entries if invocation == "7fa8cc59bf764cd4a883b6644b83faa6"]
    assert died[0] == "Starting die.service..."
    assert "libcublas.so.13: cannot open shared object file: No such file or directory" in died
    assert "die.service: Main process exited, code=exited, status=3/NOTIMPLEMENTED" in died
    later = [line for invocation, line in entries if invocation == "b97d30ffe4e1409787f9f3ebf26e0864"]
    assert later and not set(later) & {"die.service: Failed with result 'exit-code'."}


def test_journal_lines_that_are_not_text_or_not_json_do_no_harm() -> None:
    rows = [
        json.dumps(
            {
                "MESSAGE": list("caf\xe9 \U0001f600".encode("latin-1", "replace")),
                "_SYSTEMD_INVOCATION_ID": "a",
            }
        ),
        json.dumps({"MESSAGE": None}),
        "[1, 2]",
        "-- No entries --",
        json.dumps({"MESSAGE": "two\nlines"}),
    ]
    assert parse_journal("\n".join(rows)) == [("a", "caf\ufffd ?"), ("", "two"), ("", "lines")]


def test_a_host_without_systemd_is_told_clearly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(_systemd, "BOOTED", str(tmp_path / "absent"))
    for action in (
        Systemd().daemon_reload,
        lambda: Systemd().show("x.service"),
        lambda: Systemd().stop("x.service"),
    ):
        with pytest.raises(SystemdError, match="systemd does not run on this host: .*absent is missing: use a host"):
            action()


@pytest.fixture
def systemctl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A program that stands where systemctl does; its text is the test's to write."""
    monkeypatch.setattr(_systemd, "BOOTED", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path / "systemctl"


def test_the_refusal_of_systemd_is_passed_on_in_its_own_words(systemctl: Path) -> None:
    systemctl.write_text("#!/bin/sh\necho 'Failed to restart x.service: Unit x.service not found.' >&2\nexit 5\n")
    systemctl.chmod(0o755)
    with pytest.raises(SystemdError, match=r"systemctl restart x\.service: Failed to restart x.service: Unit"):
        Systemd().restart("x.service")


def test_a_hanging_systemd_does_not_hang_the_caller(systemctl: Path) -> None:
    systemctl.write_text("#!/bin/sh\nexec sleep 60\n")
    systemctl.chmod(0o755)
    with pytest.raises(SystemdError, match="no answer within 0.2 seconds"):
        Systemd(timeout=0.2).stop("x.service")


def test_unit_names_and_options_never_pass_a_shell(systemctl: Path, tmp_path: Path) -> None:
    systemctl.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/seen\n')
    systemctl.chmod(0o755)
    Systemd().enable("a; touch b.service")
    assert (tmp_path / "seen").read_text().splitlines()[-3:] == ["--quiet", "--", "a; touch b.service"]
