# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the playbooks say of mistakes, with the controller as their host and nothing deployed on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.playbook import PROJECT, environment

VARIABLES = {
    "ansible_connection": "local",
    "ansible_python_interpreter": sys.executable,
    "ansible_become": False,
    "sglang_dflash_instances": [{"name": "tiny", "model": "/srv/tiny"}, {"name": "plain", "model": "/srv/tiny"}],
}


def failure(playbook: str, folder: Path, **variables: Any) -> str:
    """Run a playbook that has to fail on one host, gpu-01; what it failed with."""
    inventory = folder / "inventory.yml"
    hosts = {"gpu-01": {**VARIABLES, "sglang_dflash_root": str(folder / "dflash")}}
    inventory.write_text(json.dumps({"dflash": {"hosts": hosts}}))
    done = subprocess.run(
        [
            *(str(Path(sys.executable).parent / "ansible-playbook"), "-i", str(inventory)),
            *("-e", json.dumps(variables), str(PROJECT / "playbooks" / playbook)),
        ],
        env=environment(),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0, done.stdout
    plays = json.loads(done.stdout[done.stdout.index("{") :])["plays"]
    results = [result for play in plays for task in play["tasks"] for result in task["hosts"].values()]
    return next((str(result["msg"]) for result in results if result.get("failed")), done.stderr)


def test_watching_what_was_never_deployed_names_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "dflash" / "instances" / "tiny-there").mkdir(parents=True)
    words = failure("watch_dflash.yml", tmp_path, watch_instance="never-deployed")
    assert words == "never-deployed: never deployed on gpu-01; there is tiny-there"


def test_verifying_without_root_names_become(tmp_path: Path) -> None:
    another = {
        "ansible_become": True,
        "ansible_become_method": "ansible.builtin.su",
        "ansible_become_user": "nobody",
        "ansible_become_flags": "-s /bin/sh",
        "ansible_pipelining": True,
        "ansible_python_interpreter": "/usr/bin/python3",
    }
    words = failure("verify_dflash.yml", tmp_path, **(another if os.geteuid() == 0 else {}))
    assert words == "this needs root on the host: leave become on (ansible_become, --become)"


@pytest.mark.parametrize("given", [["plain"], "plain", ["plain", "plain"], None])
def test_comparing_anything_but_two_says_what_to_write(tmp_path: Path, given: Any) -> None:
    words = failure("compare_dflash.yml", tmp_path, **({"compare_instances": given} if given else {}))
    assert words.startswith(f"compare_instances is {json.dumps(given) if given else 'not given'}: name two different")
    assert """-e '{"compare_instances": ["plain", "dflash"]}'""" in words


@pytest.mark.parametrize("playbook", ["deploy_dflash.yml", "rollback_dflash.yml"])
@pytest.mark.parametrize("serial", ["25 percent", [1, "many"], 0])
def test_a_serial_that_is_none_is_one_sentence(tmp_path: Path, playbook: str, serial: Any) -> None:
    words = failure(playbook, tmp_path, dflash_serial=serial)
    wrong = serial[-1] if isinstance(serial, list) else serial
    assert words.startswith(f"dflash_serial has {wrong}: give numbers of hosts or percentages")


@pytest.mark.parametrize("serial", ["25%", 2, [1, "100%"]])
def test_a_serial_that_is_one_is_let_through(tmp_path: Path, serial: Any) -> None:
    words = failure("rollback_dflash.yml", tmp_path, dflash_serial=serial, sglang_dflash_only="tiny2")
    assert words == "sglang_dflash_only names tiny2, which gpu-01 has no instance of: it has tiny, plain"


def test_one_release_for_several_instances_is_refused(tmp_path: Path) -> None:
    words = failure("rollback_dflash.yml", tmp_path, sglang_dflash_release="a" * 16)
    assert words.startswith("sglang_dflash_release is the name of a release of one instance, and tiny, plain are to go")


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"dflash_hosts": "nobody"}, "no host matches 'nobody': the inventory has the groups dflash: set dflash_hosts"),
        ({"dflash_reference": "gpu-9"}, "dflash_reference is gpu-9, which is no host of the inventory: it has gpu-01"),
    ],
)
def test_fleet_facts_says_which_of_the_two_is_wrong(tmp_path: Path, variables: dict[str, str], words: str) -> None:
    assert failure("fleet_facts.yml", tmp_path, **variables).startswith(words)


@pytest.mark.parametrize(
    ("given", "place"),
    [(None, "inventory/dflash-comparison"), ("results", "results"), ("{folder}/elsewhere", "elsewhere")],
)
def test_a_comparison_is_kept_beside_the_inventory_or_where_the_command_was_given(
    tmp_path: Path, given: str | None, place: str
) -> None:
    plays = yaml.safe_load((PROJECT / "playbooks" / "compare_dflash.yml").read_text())
    (out,) = {task["vars"]["__out"] for task in plays[1]["tasks"] if "__out" in task.get("vars", {})}
    show = {"hosts": "all", "gather_facts": False, "tasks": [{"debug": {"msg": "{{ __out }}"}, "vars": {"__out": out}}]}
    (tmp_path / "inventory").mkdir()
    (tmp_path / "inventory" / "hosts").write_text("gpu-01 ansible_connection=local\n")
    # In a folder of its own, as the collection's playbooks are.
    (tmp_path / "playbooks").mkdir()
    (tmp_path / "playbooks" / "show.yml").write_text(json.dumps([show]))
    variables = {"compare_out": given.format(folder=tmp_path)} if given else {}
    ansible = str(Path(sys.executable).parent / "ansible-playbook")
    arguments = ["-i", str(tmp_path / "inventory" / "hosts"), "-e", json.dumps(variables)]
    done = subprocess.run(
        [ansible, *arguments, str(tmp_path / "playbooks" / "show.yml")],
        env={**environment(), "PWD": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    (play,) = json.loads(done.stdout[done.stdout.index("{") :])["plays"]
    assert play["tasks"][0]["hosts"]["gpu-01"]["msg"] == str(tmp_path / place)
