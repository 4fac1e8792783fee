# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The import recipes on real wheels: no false alarm, and the files that a real process maps.

triton, CuPy, jax and onnxruntime-gpu, some 3 GB together. vLLM (9 GB) and flashinfer are checked by hand:
docs/import-plans.md says with which result.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support import real_recipes_venv
from support.real_recipes_venv import kept, really

from ansible_collections.gpufleet.dflash.plugins.module_utils._examination import examine_all
from ansible_collections.gpufleet.dflash.plugins.modules.cuda_wheel_facts import ARGUMENT_SPEC

pytestmark = pytest.mark.real

INITIALIZE = "import jax\nimport jax_plugins.xla_cuda13 as plugin\nplugin.initialize()"
# The check of versions asks the driver; without it the plugin is loaded on a host without a GPU too.
UNCHECKED = {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}


def examine(venv: Path, imports: list[str]) -> dict[str, Any]:
    """What the module says of a venv on this host."""
    return examine_all(options(venv, imports, [])).venvs[str(venv)]


def options(venv: Path, imports: list[str], load: list[str]) -> dict[str, Any]:
    """The module's options: those of its argument specification that have no default are absent."""
    given = {"venv": str(venv), "imports": imports, "load": load, "detail": "full"}
    return {**{name: about.get("default") for name, about in dict[str, Any](ARGUMENT_SPEC).items()}, **given}


def predicted(facts: dict[str, Any]) -> set[str]:
    """The shared objects of the plan."""
    return {path for item in facts["resolution"] if ".so" in (path := os.path.realpath(item["path"]))}


def of_nvidia(paths: set[str], venv: Path) -> set[str]:
    """Those below site-packages that are NVIDIA's."""
    return {path for path in paths if path.startswith(str(venv)) and ("/nvidia/" in path or "/cutensor/" in path)}


@pytest.mark.parametrize(
    ("name", "imports", "code", "environment", "libraries"),
    [
        ("triton", ["triton"], "import triton", {}, 0),
        ("cupy-cuda13x", ["cupy"], "import cupy", {}, 0),
        ("cupy-cuda13x", ["cupy", "cupy.cublas", "cupyx.cusolver"], "import cupy, cupy.cublas, cupyx.cusolver", {}, 5),
        ("jax-cuda13", ["jax"], INITIALIZE, UNCHECKED, 12),
        ("onnxruntime-gpu", ["onnxruntime"], "import onnxruntime", {}, 0),
    ],
    ids=["triton", "cupy", "cupy and its libraries", "jax", "onnxruntime"],
)
def test_a_clean_venv_has_no_problem_and_loads_as_predicted(
    name: str, imports: list[str], code: str, environment: dict[str, str], libraries: int, tmp_path: Path
) -> None:
    venv = kept(name)
    process = really(venv, code, tmp_path, **environment)

    facts = examine(venv, imports)

    assert process.error is None
    assert facts["problems"] == []
    assert predicted(facts) - process.mapped == set(), "loaded by the plan only"
    assert of_nvidia(predicted(facts), venv) == of_nvidia(process.mapped, venv)
    assert len(of_nvidia(process.mapped, venv)) >= libraries


def test_jax_without_cudnn(tmp_path: Path) -> None:
    lock = (real_recipes_venv.LOCKS / "jax-cuda13.txt").read_text()
    venv = real_recipes_venv.make(tmp_path / "venv", lock, without="nvidia-cudnn-cu13")
    process = really(venv, INITIALIZE, tmp_path)

    (problem,) = examine(venv, ["jax"])["problems"]

    assert process.error == "RuntimeError: Unable to load cuDNN. Is it installed?"
    assert (problem["kind"], problem["severity"], problem["soname"]) == ("missing-library", "error", "libcudnn.so.9")
    assert problem["distributions"] == ["nvidia-cudnn-cu13"]
    # jax-cuda13-plugin asks for it behind its extra with-cuda, which no installed distribution requires.
    assert "nvidia-cudnn-cu13<10.0,>=9.12.0.46" in problem["fix"]


def test_onnxruntimes_provider_needs_its_libraries_first(tmp_path: Path) -> None:
    """The wheels are installed and the provider has no search path: what its own log would say."""
    venv = kept("onnxruntime-gpu")
    (capi,) = venv.glob("lib/python*/site-packages/onnxruntime/capi")
    provider = f"{capi}/libonnxruntime_providers_cuda.so"
    process = really(venv, f"import ctypes, onnxruntime\nctypes.CDLL({provider!r})", tmp_path)

    problems = examine_all(options(venv, ["onnxruntime"], [provider])).problems

    evidence = {problem["evidence"] for problem in problems if problem["severity"] == "error"}
    assert (process.error or "").removeprefix("OSError: ") in evidence
