# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module as a user calls it: through ansible, on real venvs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import small_wheels

from ansible_collections.gpufleet.dflash.plugins.modules import cuda_wheel_facts

ANSIBLE = Path(sys.executable).with_name("ansible")


def call(arguments: dict[str, Any], *, check: bool = False, warnings: list[str] | None = None) -> dict[str, Any]:
    """The module's result; ``failed`` is in it when it failed. ``warnings`` gets what Ansible shows."""
    done = subprocess.run(
        [
            *(str(ANSIBLE), "localhost", "--inventory", "localhost,", "--connection", "local"),
            *("--extra-vars", json.dumps({"ansible_python_interpreter": sys.executable})),
            *("--module-name", "gpufleet.dflash.cuda_wheel_facts", "--args", json.dumps(arguments)),
            *(["--check"] if check else []),
        ],
        capture_output=True,
        text=True,
        check=False,
        env={
            "ANSIBLE_COLLECTIONS_PATH": str(small_wheels.CHECKOUT / ".collections"),
            "ANSIBLE_CALLBACK_RESULT_FORMAT": "json",
            "ANSIBLE_NOCOLOR": "1",
            "HOME": str(small_wheels.CHECKOUT / ".cache"),
            "PATH": "/usr/bin:/bin",
            "LC_ALL": "C.UTF-8",
        },
    )
    status, _arrow, text = done.stdout.partition("=> ")
    assert text, done.stdout + done.stderr
    if warnings is not None:
        warnings += done.stderr.split("[WARNING]: ")[1:]
    return {"failed": "FAILED" in status, **json.loads(text)}


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_wheels.make_venv(
        tmp_path_factory.mktemp("facts") / "venv", "nvidia-cuda-runtime", "nvidia-nvtx", "nvidia-cufile"
    )


def snapshot(venv: Path) -> dict[str, int]:
    return {str(path): path.lstat().st_mtime_ns for path in venv.rglob("*")}


@pytest.mark.parametrize("check", [False, True], ids=["run", "check mode"])
def test_facts_of_a_clean_venv(venv: Path, check: bool) -> None:
    directory = f"{small_wheels.site_packages(venv)}/nvidia/cu13/lib"
    before = snapshot(venv)

    result = call(
        {"venv": str(venv), "imports": [], "load": ["libcufile.so.0"], "ld_library_path": [directory]},
        check=check,
    )

    assert (result["failed"], result["changed"], result["problems"]) == (False, False, [])
    assert snapshot(venv) == before
    assert result["venvs"] == result["ansible_facts"]["cuda_wheels"]
    facts = result["venvs"][str(venv)]
    assert facts["verdict"] == "ok"
    assert facts["cuda"] == {"majors": [13], "torch": None, "torch_cuda": None, "driver_floor": 580}
    assert facts["library_path"] == [directory]
    assert facts["resolution"] == [
        {
            "soname": "libcufile.so.0",
            "path": f"{directory}/libcufile.so.0",
            "distribution": "nvidia-cufile",
            "rule": "ld_library_path",
            "needed_by": None,
        }
    ]
    assert result["msg"] == "ok: 3 distributions, nothing wrong"


@pytest.mark.parametrize("name", ["dlopen", "libraries"])
def test_the_words_of_the_sibling_module_and_of_the_roles_work_as_well(venv: Path, name: str) -> None:
    result = call({"venv": str(venv), "imports": [], name: ["libabsent.so.9"]})

    assert [problem["kind"] for problem in result["problems"]] == ["missing-library"]
    assert "libabsent.so.9" in result["problems"][0]["message"]


def test_problems_are_at_the_top_level_and_in_the_facts(venv: Path) -> None:
    result = call({"venv": str(venv), "imports": ["torch"], "load": ["libcufile.so.0"]})

    facts = result["venvs"][str(venv)]
    assert [problem["kind"] for problem in result["problems"]] == ["missing-library", "unmet-requirement"]
    assert facts["problems"] == result["problems"]
    assert facts["verdict"] == "error"
    assert result["msg"] == f"error: {result['problems'][0]['message']} (and 1 more)"


def test_full_detail_adds_the_rest_of_the_process(venv: Path) -> None:
    arguments = {"venv": str(venv), "imports": []}
    brief = call(arguments)["venvs"][str(venv)]
    full = call({**arguments, "detail": "full"})["venvs"][str(venv)]

    assert brief["resolution"] == []
    assert {"libc.so.6"} <= {item["soname"] for item in full["resolution"]}
    assert full["problems"] == brief["problems"] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"venv": "/nonexistent"}, "not a virtual environment: /nonexistent: there is no such directory"),
        ({"venv": "/usr"}, "not a virtual environment: /usr: it has no pyvenv.cfg"),
        ({"venv": "{venv}", "unit": "no-such-unit-here"}, "there is no such unit: no-such-unit-here.service"),
        ({"venv": "{venv}", "verify": "twice"}, "value of verify must be one of"),
        ({"verify": "size"}, "one of the following is required: venv, discover"),
        ({"venv": "{venv}", "discover": "/opt"}, "parameters are mutually exclusive: venv|discover"),
    ],
    ids=["no directory", "no venv", "no unit", "bad choice", "no argument", "two arguments"],
)
def test_a_users_mistake_is_one_clear_sentence(venv: Path, arguments: dict[str, str], words: str) -> None:
    result = call({name: value.format(venv=venv) for name, value in arguments.items()})

    assert result["failed"] is True
    assert words in result["msg"]
    assert "Traceback" not in json.dumps(result)


def test_the_result_is_documented_completely(venv: Path) -> None:
    documented = yaml.safe_load(cuda_wheel_facts.RETURN)
    result = call({"venv": str(venv), "imports": [], "load": ["libcudart.so.13", "libabsent.so.9"]})
    facts = result["venvs"][str(venv)]

    assert set(result) - {"failed", "changed", "msg"} == set(documented)
    assert set(facts) == set(documented["venvs"]["contains"])
    assert set(facts["cuda"]) == set(documented["venvs"]["contains"]["cuda"]["contains"])
    assert set(result["problems"][0]) == set(documented["problems"]["contains"])


def test_a_lock_of_the_controller_and_an_uninstall(venv: Path, tmp_path: Path) -> None:
    lock = tmp_path / "serving.txt"
    lock.write_text(f"nvidia-nvtx==13.0.84 --hash=sha256:{'0' * 64}\n")

    result = call({"venv": str(venv), "imports": [], "lock": str(lock), "without": ["nvidia-nvtx"]})

    documented = yaml.safe_load(cuda_wheel_facts.RETURN)["venvs"]["contains"]
    facts = result["venvs"][str(venv)]
    assert facts["lock"]["different"] == ["nvidia-nvtx==13.0.85, locked 13.0.84"]
    assert set(facts["lock"]) == set(documented["lock"]["contains"])
    assert set(facts["removal"]) == set(documented["removal"]["contains"])
    assert [problem["kind"] for problem in result["problems"]] == ["lock-drift", "lock-drift"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"lock": "/nonexistent/lock.txt"}, "the lock is not there: /nonexistent/lock.txt: looked in "),
        ({"lock_content": "nvidia-nvtx>=13\n"}, "nvidia-nvtx is not pinned to one version: lock:1"),
        ({"lock": "a", "lock_content": "b"}, "lock and lock_content exclude each other"),
    ],
    ids=["absent", "not pinned", "twice"],
)
def test_a_lock_that_cannot_be_used(venv: Path, arguments: dict[str, str], words: str) -> None:
    result = call({"venv": str(venv), **arguments})

    assert result["failed"] is True
    assert words in result["msg"]


def test_every_environment_below_a_directory(venv: Path, tmp_path: Path) -> None:
    broken = venv.parent / "broken"
    shutil.copytree(venv, broken, symlinks=True)
    (broken / "bin/python").unlink()
    warnings: list[str] = []
    try:
        result = call({"discover": [str(venv.parent), str(tmp_path / "absent")]}, warnings=warnings)
    finally:
        shutil.rmtree(broken)

    assert (result["failed"], sorted(result["venvs"])) == (False, [str(broken), str(venv)])
    assert result["venvs"][str(venv)]["verdict"] == "ok", "torch is not there, and need not be"
    assert [problem["venv"] for problem in result["problems"]] == [str(broken)]
    assert any(warning.startswith("cannot look for virtual environments: ") for warning in warnings)
    assert result["msg"].startswith(f"1 of 2 virtual environments have problems: {broken}: error: ")


def test_a_summary_stays_small(venv: Path) -> None:
    result = call({"venv": str(venv), "load": [f"libabsent{number}.so" for number in range(20)]})

    assert len(json.dumps(result["venvs"])) < 32 * 1024


def test_deep_facts_and_a_wrong_capability(venv: Path) -> None:
    answer = call({"venv": str(venv), "imports": [], "deep": True, "compute_capabilities": ["9.0"]}, check=True)
    assert not answer["failed"]
    assert answer["problems"] == []
    assert "libcuda.so.1" in answer["venvs"][str(venv)]["dlopens"]["nvidia-cuda-runtime"]

    answer = call({"venv": str(venv), "deep": True, "compute_capabilities": ["sm_90"]})
    assert answer["failed"]
    assert answer["msg"] == "no compute capability: compute_capabilities: 'sm_90': write it as '9.0'"
