# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From an instance to an engine's command line, in the words of the installed version."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.gpufleet.dflash.plugins.plugin_utils._engine_arguments import OptionError, engine_arguments

ENGINES = Path(__file__).parents[2] / "roles" / "sglang_dflash" / "vars" / "engines"


def engine(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ENGINES / f"{name}.yml").read_text())["__sglang_dflash_engine"]
    return found


def sglang(version: str, **instance: Any) -> list[str]:
    return engine_arguments({"name": "main", "model": "/m", **instance}, engine("sglang")["options"], "sglang", version)


def test_a_plain_instance_has_no_speculation() -> None:
    words = "--model-path /m --host 127.0.0.1 --port 30001 --tp-size 1 --enable-metrics"
    assert sglang("0.5.11") == words.split()


def test_a_drafter_means_dflash_unless_another_algorithm_is_named() -> None:
    words = sglang("0.5.11", draft_model="/d", draft_tokens=16)
    assert "--speculative-algorithm DFLASH --speculative-num-draft-tokens 16" in " ".join(words)
    words = sglang("0.5.11", draft_model="/d", algorithm="DDTREE", ddtree_budget=32)
    assert "--speculative-algorithm DDTREE --speculative-ddtree-budget 32" in " ".join(words)


@pytest.mark.parametrize(
    ("version", "flag"),
    [
        ("0.5.11", "--speculative-dflash-draft-window-size"),
        ("0.5.11.post1", "--speculative-dflash-draft-window-size"),
        ("0.5.12rc1", "--speculative-draft-window-size"),
        ("0.5.12", "--speculative-draft-window-size"),
        ("0.5.23+cu130", "--speculative-draft-window-size"),
        ("1.0", "--speculative-draft-window-size"),
    ],
)
def test_a_renamed_flag_follows_the_installed_version(version: str, flag: str) -> None:
    assert flag in sglang(version, draft_model="/d", draft_window=4096)


@pytest.mark.parametrize(
    ("version", "instance", "words"),
    [
        ("0.5.10", {"draft_model": "/d", "draft_window": 1}, "sglang 0.5.10 has no draft_window: instance main: known"),
        ("0.5.11", {"draft_window": 1}, "draft_window has no meaning without draft_model: instance main"),
        ("0.5.11", {"draft_tokens": 8}, "draft_tokens has no meaning without draft_model"),
        ("0.5.11", {"tp": [1, 2]}, "tp is not one value: instance main"),
        ("newest", {"draft_model": "/d", "draft_window": 1}, "a version that cannot be compared: newest"),
    ],
)
def test_what_cannot_be_said_is_one_clear_error(version: str, instance: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        sglang(version, **instance)


def test_the_instances_own_words_come_last_and_empty_values_give_none() -> None:
    words = sglang("0.5.11", draft_model="", mem_fraction=None, metrics=False, arguments=["--dtype", "bfloat16"])
    assert words[-2:] == ["--dtype", "bfloat16"]
    assert not {"--enable-metrics", "--speculative-draft-model-path", "--mem-fraction-static"} & set(words)


def test_a_list_repeats_its_flag() -> None:
    options = engine("llama_cpp")["options"]
    words = engine_arguments({"model": "/m", "libraries": ["libcudart.so.13", "-x"]}, options, "xllamacpp", "1")
    assert words[-2:] == ["--require-library=libcudart.so.13", "--require-library=-x"]
