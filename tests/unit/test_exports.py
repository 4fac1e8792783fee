# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What Prometheus is told of an instance."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.dflash.plugins.module_utils import _release
from ansible_collections.gpufleet.dflash.plugins.module_utils._exports import Exports, recorded
from ansible_collections.gpufleet.dflash.plugins.module_utils._history import FAILED, VERIFIED, Event, History
from ansible_collections.gpufleet.dflash.plugins.module_utils._release import (
    Instance,
    ReleaseError,
    make_release,
    stage,
)

UNIT = "[Service]\nEnvironment=DFLASH_RELEASE=@release@\nExecStart=/v/bin/python -m x{flags}\n"


class Installed:
    """An instance with a staged release whose unit is installed, and folders that Prometheus reads."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, flags: str = " --enable-metrics") -> None:
        for name in ("units", "textfiles", "targets"):
            (folder / name).mkdir()
        monkeypatch.setattr(_release, "UNIT_FOLDER", str(folder / "units"))
        self.instance = Instance.named(str(folder / "dflash"), "qwen3")
        generation = Path(self.instance.root) / "venvs" / "0123456789abcdef"
        (generation / ".dflash").mkdir(parents=True)
        manifest = {
            "id": "0123456789abcdef",
            "created": 1.0,
            "distributions": {},
            "overlays": {},
            "library_directories": [],
        }
        (generation / ".dflash" / "generation.json").write_text(json.dumps(manifest))
        health = {"url": "http://127.0.0.1:30001"}
        self.release = make_release(UNIT.format(flags=flags), str(generation), "sglang", health)
        stage(self.instance, self.release)
        Path(self.instance.unit_path).write_text(self.release.unit)
        self.metrics = folder / "textfiles" / "dflash_qwen3.prom"
        self.target = folder / "targets" / "dflash_qwen3.json"
        self.exports = Exports(str(folder / "textfiles"), str(folder / "targets"))

    def note(self, event: str, **values: Any) -> None:
        History(self.instance.history_path).add(Event(event, self.release.id, **values))

    def values(self) -> dict[str, float]:
        rows = re.findall(r"^(\w+)\{.*\} (\S+)$", self.metrics.read_text(), flags=re.MULTILINE)
        return {name: float(value) for name, value in rows}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installed:
    return Installed(tmp_path, monkeypatch)


def test_metrics_and_target_are_written_once(installed: Installed) -> None:
    installed.note(VERIFIED, accept_length=6.3, tokens_per_second=240.5, probe={"requests": 4})
    assert installed.exports.refresh(installed.instance, dry=True) == [str(installed.target), str(installed.metrics)]
    assert not installed.metrics.exists()
    assert installed.exports.refresh(installed.instance) == [str(installed.target), str(installed.metrics)]
    assert installed.exports.refresh(installed.instance) == []
    values = installed.values()
    assert values.pop("dflash_release_verified_timestamp_seconds") == pytest.approx(
        installed.metrics.stat().st_mtime, abs=60
    )
    assert values == {
        "dflash_release_info": 1, "dflash_release_verified": 1, "dflash_activation_failures_total": 0,
        "dflash_accept_length": 6.3, "dflash_tokens_per_second": 240.5,
    }  # fmt: skip
    assert (
        f'dflash_release_info{{instance_name="qwen3",release="{installed.release.id}",'
        'generation="0123456789abcdef",engine="sglang"} 1\n'
    ) in installed.metrics.read_text()
    assert json.loads(installed.target.read_text()) == [
        {
            "targets": ["127.0.0.1:30001"],
            "labels": {"__metrics_path__": "/metrics", "instance_name": "qwen3", "engine": "sglang"},
        }
    ]
    assert (installed.metrics.stat().st_mode & 0o777, installed.target.stat().st_mode & 0o777) == (0o644, 0o644)


def test_a_failed_release_is_told(installed: Installed) -> None:
    installed.note(VERIFIED)
    installed.note(FAILED, reason="it died")
    installed.exports.refresh(installed.instance)
    values = installed.values()
    assert (values["dflash_release_verified"], values["dflash_activation_failures_total"]) == (0, 1)
    assert "dflash_tokens_per_second" not in values


def test_every_metric_has_its_help_and_type(installed: Installed) -> None:
    installed.note(VERIFIED, accept_length=6.3, tokens_per_second=240.5)
    installed.exports.refresh(installed.instance)
    lines = installed.metrics.read_text().splitlines()
    for name in installed.values():
        assert sum(line.startswith(f"# HELP {name} ") for line in lines) == 1
        assert f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}" in lines


def test_an_option_that_is_taken_away_takes_its_file_along(installed: Installed) -> None:
    installed.exports.refresh(installed.instance)
    only = Exports(textfile_dir=installed.exports.textfile_dir)
    assert only.refresh(installed.instance, dry=True) == [str(installed.target)]
    assert only.refresh(installed.instance) == [str(installed.target)]
    assert not installed.target.exists() and installed.metrics.exists()
    assert recorded(installed.instance) == [str(installed.metrics)]
    assert Exports().refresh(installed.instance) == [str(installed.metrics)]
    assert recorded(installed.instance) == []


def test_an_engine_without_metrics_is_no_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = Installed(tmp_path, monkeypatch, flags=" --no-enable-metrics-please")
    assert installed.exports.refresh(installed.instance) == [str(installed.metrics)]


@pytest.mark.parametrize(
    "record", ["", "[]", "{", '{"paths": null}', '{"paths": ["/etc/passwd", 7]}', '{"paths": {"a": 1}}'], ids=str
)
def test_a_record_that_is_damaged_removes_nothing_else(installed: Installed, record: str) -> None:
    Path(installed.instance.folder, "exports.json").write_text(record)
    assert recorded(installed.instance) == []


@pytest.mark.parametrize("folder", ["/nonexistent/textfiles", "textfiles", "/etc/passwd"])
def test_a_folder_that_is_not_there_is_an_error(folder: str) -> None:
    with pytest.raises(ReleaseError, match="no such folder: textfile_dir: "):
        Exports.from_options({"textfile_dir": folder})
