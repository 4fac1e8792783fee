# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module as Ansible runs it: packed into an archive, in a process of its own, with real arguments."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import probe_venv
from support.probe_venv import AS_ROOT, NOBODY, ProbeVenv, write_unit

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder() -> Iterator[Path]:
    with probe_venv.public_directory() as directory:
        yield directory


@pytest.fixture
def venv(folder: Path) -> ProbeVenv:
    return ProbeVenv(folder / "venv")


def run(folder: Path, *options: str, **arguments: Any) -> dict[str, Any]:
    """The result of one task as Ansible reports it."""
    report = folder / "report"
    environment = {
        **os.environ,
        "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".collections"),
        "ANSIBLE_LOCAL_TEMP": str(folder / "local"),
        "ANSIBLE_REMOTE_TEMP": str(folder / "remote"),
        "ANSIBLE_PYTHON_INTERPRETER": probe_venv.INTERPRETER,
        "LEAK": "from Ansible",
    }
    command = [
        str(Path(sys.executable).parent / "ansible"),
        "localhost",
        "-m",
        "gpufleet.dflash.cuda_library_check",
    ]
    done = subprocess.run(
        [*command, "-a", json.dumps(arguments), "--tree", str(report), *options],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (report / "localhost").exists(), done.stdout + done.stderr
    result: dict[str, Any] = json.loads((report / "localhost").read_text(encoding="utf-8"))
    # The report keeps all but this word, which the exit status tells.
    result["failed"] = done.returncode == 2
    return result


def test_a_task_loads_under_a_unit_and_changes_nothing(venv: ProbeVenv, folder: Path) -> None:
    venv.module("engine", "import os\nprint('out', sorted(os.environ))\n__version__ = '2'")
    before = sorted(str(path) for path in venv.path.rglob("*"))
    user = NOBODY if AS_ROOT else pwd.getpwuid(os.geteuid()).pw_name
    unit = write_unit(folder, f"User={user}", "Environment=MINE=1")
    for options in ((), ("--check", "--diff")):
        result = run(folder, *options, venv=str(venv.path), imports=["engine"], unit=unit)
        assert result["ok"] is True and result["changed"] is False
        assert result["msg"] == "ok: everything can be loaded" and result["failed"] is False
        assert result["user"] == user
        assert [entry["version"] for entry in result["imports"]] == ["2"]
        assert "'MINE'" in result["stdout"] and "LEAK" not in result["stdout"] and "ANSIBLE" not in result["stdout"]
    assert sorted(str(path) for path in venv.path.rglob("*")) == before


def test_a_failed_load_fails_the_task_with_one_sentence_and_all_the_rest(venv: ProbeVenv, folder: Path) -> None:
    venv.module("engine", "import os; os.abort()")
    arguments = {"venv": str(venv.path), "imports": ["json", "engine"], "environment": {"A": 1}}
    result = run(folder, **arguments)
    assert result["failed"] is True
    assert result["msg"].startswith(f"cannot load engine: in {venv.path} as user ")
    assert "`import engine` ends the interpreter at" in result["msg"]
    assert "killed by SIGABRT" in result["msg"]
    assert "\n" not in result["msg"] and "Traceback" not in result["msg"]
    assert [entry["ok"] for entry in result["imports"]] == [True, False]
    assert result["problems"][0]["kind"] == "interpreter-died"
    lenient = run(folder, **arguments, require=False)
    assert lenient["failed"] is False
    assert lenient["ok"] is False
    assert [entry["message"] for entry in lenient["problems"]] == [result["problems"][0]["message"]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"venv": "/nonexistent/venv"}, "not a virtual environment: /nonexistent/venv", id="venv"),
        pytest.param({"unit": "no-such-unit-here"}, "there is no such unit: no-such-unit-here.service", id="unit"),
        pytest.param({"user": "no-such-user"}, "there is no user no-such-user", id="user"),
        pytest.param({"imports": []}, "there is nothing to load", id="nothing to load"),
        pytest.param({"unit": "x", "user": "y"}, "mutually exclusive", id="unit and user"),
    ],
)
def test_a_mistake_in_the_task_is_one_message(
    venv: ProbeVenv, folder: Path, change: dict[str, Any], message: str
) -> None:
    result = run(folder, **{"venv": str(venv.path), "imports": ["json"], **change})
    assert result["failed"] is True
    assert message in result["msg"]
    assert "Traceback" not in json.dumps(result)


@pytest.mark.parametrize("name", ["load", "libraries"])
def test_the_words_of_the_sibling_module_and_of_the_roles_work_as_well(
    venv: ProbeVenv, folder: Path, name: str
) -> None:
    result = run(folder, venv=str(venv.path), **{name: ["libabsent.so.9"]})
    assert result["failed"] is True
    assert "libabsent.so.9" in result["msg"]
