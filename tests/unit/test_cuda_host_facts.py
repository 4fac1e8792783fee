# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module as a user calls it, through ansible, on the host of the tests, whatever that has."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import small_wheels

from ansible_collections.gpufleet.dflash.plugins.modules import cuda_host_facts

ANSIBLE = Path(sys.executable).with_name("ansible")


def call(arguments: dict[str, Any], *, check: bool = False) -> dict[str, Any]:
    """The module's result; ``failed`` tells whether it failed."""
    done = subprocess.run(
        [
            *(str(ANSIBLE), "localhost", "--inventory", "localhost,", "--connection", "local"),
            *("--extra-vars", json.dumps({"ansible_python_interpreter": sys.executable})),
            *("--module-name", "gpufleet.dflash.cuda_host_facts"),
            # Ansible takes an empty object for words.
            *(["--args", json.dumps(arguments)] if arguments else []),
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
    return {"failed": "FAILED" in status, **json.loads(text)}


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    return call({})


def test_the_facts_are_those_of_this_host(plain: dict[str, Any]) -> None:
    assert not plain["failed"]
    assert not plain["changed"]
    host = plain["cuda_host"]
    assert plain["ansible_facts"]["cuda_host"] == host
    assert plain["problems"] == host["problems"]
    assert plain["msg"].startswith(f"{host['verdict']}: ")
    assert host["system"]["kernel"] == Path("/proc/sys/kernel/osrelease").read_text().strip()
    assert host["system"]["glibc"] in subprocess.run(["ldd", "--version"], capture_output=True, text=True).stdout
    there = Path("/proc/driver/nvidia/version").exists()
    assert (host["driver"]["version"] is not None) == there
    if not there and not any(gpu["address"] for gpu in host["gpus"]):
        assert plain["msg"] == "ok: no NVIDIA GPU"


def test_check_mode_tells_the_same(plain: dict[str, Any]) -> None:
    told = call({}, check=True)
    for volatile in ("shm", "memlock"):
        told["cuda_host"].pop(volatile)
    assert told["cuda_host"].items() <= plain["cuda_host"].items()


def documented(contains: dict[str, Any]) -> dict[str, Any]:
    """The names that RETURN has, with those below each; None where it does not go deeper."""
    return {name: documented(entry["contains"]) if "contains" in entry else None for name, entry in contains.items()}


def test_every_fact_is_documented_and_the_other_way_round(plain: dict[str, Any]) -> None:
    names = documented(yaml.safe_load(cuda_host_facts.RETURN))["cuda_host"]
    host = plain["cuda_host"]
    assert set(names) == set(host)
    for name, below in names.items():
        if below and isinstance(host[name], dict):
            assert set(below) == set(host[name]), name


def test_the_options_are_those_of_the_documentation() -> None:
    options = yaml.safe_load(cuda_host_facts.DOCUMENTATION)["options"]
    assert {name: option["type"] for name, option in options.items()} == {
        name: spec["type"] for name, spec in cuda_host_facts.ARGUMENT_SPEC.items()
    }


def test_more_gpus_than_any_host_has_is_an_error() -> None:
    result = call({"gpus_expected": 999})
    assert not result["failed"]
    assert result["cuda_host"]["verdict"] == "error"
    assert {problem["severity"] for problem in result["problems"]} >= {"error"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"unit": "no-such-thing"}, "there is no such unit: no-such-thing.service"),
        ({"venv": "/etc"}, "not a virtual environment: /etc"),
        ({"gpus_expected": -1}, "not a count: gpus_expected: -1"),
        ({"venv": "/etc", "cuda_major": 13}, "mutually exclusive"),
    ],
)
def test_a_mistake_is_told_in_one_line(arguments: dict[str, Any], words: str) -> None:
    result = call(arguments)
    assert result["failed"]
    assert words in result["msg"]
