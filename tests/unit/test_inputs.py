# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Mistakes in the variables of a deploy: one clear sentence each, before any host is touched."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.playbook import PROJECT, environment

from ansible_collections.gpufleet.dflash.plugins.plugin_utils._inputs import (
    INSTANCE_LISTS,
    ROLE_LISTS,
    ROLE_MAPPINGS,
    instance_mistakes,
    near_misses,
    variable_mistakes,
)

TINY = {"name": "tiny", "model": "/srv/tiny.gguf"}
# The role goes on after this lock is read, and would ask the host for its operating system next.
PLAY = [
    {
        "hosts": "all",
        "gather_facts": False,
        "tasks": [{"import_role": {"name": "gpufleet.dflash.sglang_dflash", "tasks_from": "stage"}}],
    }
]


def told(*instances: dict[str, Any], absent: Any = (), protect_home: bool = True) -> list[str]:
    return instance_mistakes(list(instances), absent, protect_home, "gpu-01")


def specification(role: str) -> dict[str, Any]:
    text = (PROJECT / "roles" / role / "meta" / "argument_specs.yml").read_text()
    options: dict[str, Any] = yaml.safe_load(text)["argument_specs"]["main"]["options"]
    return options


def test_every_list_and_mapping_of_the_roles_is_looked_at() -> None:
    options = {**specification("sglang_dflash"), **specification("cuda_runtime")}
    instances = options.pop("sglang_dflash_instances")
    assert {name for name, option in options.items() if option["type"] == "list"} == set(ROLE_LISTS)
    assert {name for name, option in options.items() if option["type"] == "dict"} == set(ROLE_MAPPINGS)
    assert {name for name, option in instances["options"].items() if option["type"] == "list"} == set(INSTANCE_LISTS)


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("gpus", "0,1", "gpus of tiny is text: write a list, as in [0, 1]"),
        ("gpus", 0, "gpus of tiny is a number: write a list, as in [0, 1]"),
        ("gpus", [[0]], "gpus of tiny has a list in it: write a list, as in [0, 1]"),
        ("arguments", "--threads 4", "arguments of tiny is text: write a list, as in [--threads=4]"),
        ("libraries", "libcudart.so.13", "libraries of tiny is text: write a list, as in [libcudart.so.13]"),
        ("environment", "A=b", "environment of tiny is text: write a mapping, as in {OMP_NUM_THREADS: 8}"),
        ("port", 70000, "port of tiny is 70000: a port is a number from 1 to 65535"),
        ("port", "http", "port of tiny is http: a port is a number from 1 to 65535"),
        (
            "draft_model",
            "/home/me/draft",
            "draft_model of tiny is /home/me/draft, where its unit sees nothing: keep it elsewhere, such as /srv, or "
            "set sglang_dflash_protect_home: false",
        ),
    ],
)
def test_an_option_that_cannot_be_meant_is_one_sentence(option: str, value: Any, sentence: str) -> None:
    assert told({**TINY, option: value}) == [sentence]


@pytest.mark.parametrize(
    ("instance", "protect_home"),
    [
        ({"gpus": [0, 1], "arguments": ["--threads=4"], "libraries": [], "port": "30002"}, True),
        ({"gpus": None, "arguments": None, "environment": None}, True),
        ({"model": "/home/me/model"}, False),
        ({"model": "Qwen/Qwen3-8B"}, True),
    ],
)
def test_what_can_be_meant_is_left_alone(instance: dict[str, Any], protect_home: bool) -> None:
    assert told({**TINY, **instance}, protect_home=protect_home) == []


def test_instances_beside_each_other_say_what_applies_and_nothing_else() -> None:
    assert told(TINY, {**TINY, "port": 30002}) == ["2 instances of gpu-01 are called tiny: give each a name of its own"]
    assert told(TINY, {**TINY, "name": "other"}) == [
        "tiny and other of gpu-01 have the same port 30001: give each one of its own, as in port: 30002"
    ]
    assert told(TINY, absent=["tiny"]) == [
        "tiny of gpu-01 is in sglang_dflash_instances and in sglang_dflash_absent: remove it from one of them"
    ]
    assert "not a usable name for an instance: 'Tiny'" in told({**TINY, "name": "Tiny"})[0]
    assert "is empty: describe at least one instance" in told()[0]
    assert "is text: write a list" in instance_mistakes("tiny", [], True, "gpu-01")[0]


@pytest.mark.parametrize("name", ROLE_LISTS)
def test_a_text_is_no_list_of_a_role(name: str) -> None:
    (sentence,) = variable_mistakes({name: "video"})
    assert sentence.startswith(f"{name} is text: write a list, as in [")


@pytest.mark.parametrize(
    ("hooks", "sentence"),
    [
        ("x", "sglang_dflash_hooks is text: write a mapping"),
        ({"pre_stop": {"url": "http://lb"}}, "sglang_dflash_hooks.pre_stop is a mapping: write a list"),
        ({"pre_stop": [{"command": "systemctl reload haproxy"}]}, "command of sglang_dflash_hooks.pre_stop is text"),
    ],
)
def test_hooks_are_lists_of_lists_of_words(hooks: Any, sentence: str) -> None:
    (found,) = variable_mistakes({"sglang_dflash_hooks": hooks})
    assert found.startswith(sentence)


def test_right_variables_have_no_mistakes() -> None:
    hooks = {"post_start": [{"url": "http://lb"}, {"command": ["true"]}], "pre_stop": None}
    overlays = [{"dest": "a.py", "content": ""}]
    groups = ["video", "render"]
    assert not variable_mistakes(
        {"sglang_dflash_hooks": hooks, "sglang_dflash_overlays": overlays, "sglang_dflash_groups": groups}
    )


def test_a_mistyped_variable_is_told_with_the_one_that_was_meant() -> None:
    known = ["sglang_dflash_instances", "sglang_dflash_absent", "cuda_runtime_lock"]
    names = [*known, "sglang_dflash_instnaces", "cuda_runtime_lok", "sglang_dflash_my_own", "cuda_runtime_generation"]
    assert near_misses(names, known) == [
        "cuda_runtime_lok is no variable of the roles and has no effect: did you mean cuda_runtime_lock?",
        "sglang_dflash_instnaces is no variable of the roles and has no effect: did you mean sglang_dflash_instances?",
    ]


def stage(tmp_path: Path, **variables: Any) -> tuple[str, str]:
    """Run the role's first tasks with the controller as their host, whose Python cannot start; what it failed with."""
    (tmp_path / "play.yml").write_text(json.dumps(PLAY))
    everything = {
        "ansible_connection": "local",
        "ansible_python_interpreter": "/nowhere/python",
        "sglang_dflash_engine": "llama_cpp",
        "sglang_dflash_instances": [TINY],
        "cuda_runtime_lock": "locks/cu13-llama-cpp.txt",
        **variables,
    }
    done = subprocess.run(
        [
            str(Path(sys.executable).parent / "ansible-playbook"),
            "-i",
            "gpu-01,",
            "-e",
            json.dumps(everything),
            str(tmp_path / "play.yml"),
        ],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    (play,) = json.loads(done.stdout[done.stdout.index("{") :])["plays"]
    last = play["tasks"][-1]
    warnings = [str(task["hosts"]["gpu-01"].get("warnings", "")) for task in play["tasks"]]
    return str(last["task"]["name"]), " ".join([str(last["hosts"]["gpu-01"].get("msg")), *warnings])


def test_the_roles_shipped_lock_and_one_instance_get_as_far_as_the_host(tmp_path: Path) -> None:
    task, _words = stage(tmp_path, sglang_dflash_instnaces=[])
    assert "Ask which operating system this is" in task


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"sglang_dflash_instances": [{**TINY, "gpus": "0,1"}]}, "gpus of tiny is text: write a list, as in [0, 1]"),
        ({"sglang_dflash_absent": "qwen2"}, "sglang_dflash_absent is text: write a list, as in [qwen2]"),
        ({"cuda_runtime_lock": ""}, "set cuda_runtime_lock to a lock, such as locks/"),
        ({"cuda_runtime_lock": None}, "set cuda_runtime_lock to a lock, such as locks/"),
        ({"cuda_runtime_lock": "locks/none.txt"}, "the lock is not there: locks/none.txt"),
        ({"cuda_runtime_lock": "unpinned.txt"}, "torch is not pinned to one version: "),
        ({"sglang_dflash_engine": "sglang"}, "locks/cu13-llama-cpp.txt has no sglang, which the engine sglang is"),
    ],
)
def test_a_cheap_mistake_is_told_before_the_host_is_asked_anything(
    tmp_path: Path, variables: dict[str, Any], words: str
) -> None:
    (tmp_path / "unpinned.txt").write_text("torch>=2\n")
    if variables.get("cuda_runtime_lock") == "unpinned.txt":
        variables = {"cuda_runtime_lock": str(tmp_path / "unpinned.txt")}
    task, told_there = stage(tmp_path, **variables)
    assert words in told_there
    assert "Refuse" in task


def test_a_mistyped_variable_is_a_warning_of_the_role(tmp_path: Path) -> None:
    _task, words = stage(tmp_path, sglang_dflash_absnet=["qwen2"])
    assert "did you mean sglang_dflash_absent?" in words
