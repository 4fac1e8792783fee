# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The check with the real torch 2.11.0 and NVIDIA's real wheels."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support import real_venv

from ansible_collections.gpufleet.dflash.plugins.module_utils._library_check import CheckRequest, check
from ansible_collections.gpufleet.dflash.plugins.module_utils._running import check_running

pytestmark = pytest.mark.real


def load(venv: Path, **options: Any) -> dict[str, Any]:
    """The result of importing torch in a venv."""
    return check(CheckRequest(str(venv), imports=("torch",), **options))


def test_torch_maps_what_was_predicted_and_no_more() -> None:
    result = load(real_venv.kept(real_venv.CU13), trace=True)
    assert result["ok"], result["problems"]
    assert result["problems"] == [] and result["differences"] == []
    names = {Path(library["path"]).name: library for library in result["libraries"]}
    assert {"libcudart.so.13", "libcublasLt.so.13", "libcudnn.so.9", "libnccl.so.2", "libcupti.so.13"} <= set(names)
    assert {library["rule"] for library in result["libraries"]} <= {"path", "rpath", "runpath"}
    assert names["libcudart.so.13"]["distribution"] == "nvidia-cuda-runtime"
    assert Path(names["libcudart.so.13"]["needed_by"]).name == "libtorch_global_deps.so"
    assert (result["torch"]["version"], result["torch"]["cuda"]) == ("2.11.0+cu130", "13.0")


def test_without_cudnn_the_loaders_words_the_provider_and_the_fix() -> None:
    with real_venv.scratch(real_venv.CU13) as venv:
        real_venv.uninstall(venv, "nvidia-cudnn-cu13")
        result = load(venv)
        assert result["imports"][0]["error_type"] == "ImportError"
        assert (
            result["imports"][0]["error"] == "libcudnn.so.9: cannot open shared object file: No such file or directory"
        )
        problem, *others = [entry for entry in result["problems"] if entry["severity"] == "error"]
        assert problem["kind"] == "missing-library" and problem["soname"] == "libcudnn.so.9"
        # torch's preloads had stopped there already, without a word.
        assert {entry["kind"] for entry in others} <= {"preload-stops"}
        assert problem["distributions"] == ["nvidia-cudnn-cu13"]
        assert problem["fix"] == "add nvidia-cudnn-cu13==9.19.0.56 to the lock and build the environment anew"


def test_a_library_replaced_under_a_running_torch_is_found() -> None:
    with real_venv.scratch(real_venv.CU13) as venv:
        source = "import sys, torch\nprint('ready', flush=True)\nsys.stdin.read()"
        with subprocess.Popen(
            [f"{venv}/bin/python", "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None and process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            before = check_running(None, None, process.pid)
            assert before["restart_needed"] is False and before["problems"] == [] and before["venv"] == str(venv)
            path = Path(next(entry["path"] for entry in before["libraries"] if "libcudnn.so" in entry["path"]))
            shutil.copy2(path, f"{path}.new")
            Path(f"{path}.new").replace(path)
            after = check_running(None, None, process.pid)
            process.stdin.close()
    assert [(entry["path"], entry["reason"]) for entry in after["stale"]] == [(str(path), "replaced")]
    assert [entry["kind"] for entry in after["problems"]] == ["stale-map"]
