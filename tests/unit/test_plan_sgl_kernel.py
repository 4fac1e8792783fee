# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""sgl_kernel's choice of operations, against a package that chooses in the same way, really imported."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support import small_wheels
from support.examination import examine
from support.python_modules import add_torch, compile_module

from ansible_collections.gpufleet.dflash.plugins.module_utils import _plan_sgl_kernel

# The steps of sgl_kernel 0.4: by the GPU (none here), then beside the sources, then CUDA_HOME's runtime.
KERNEL = """
import ctypes, glob, importlib.util, os, torch
HERE = os.path.dirname(__file__)
def load(folder):
    errors = []
    for pattern in (os.path.join(HERE, folder, "common_ops.*"), os.path.join(HERE, "common_ops.*")):
        for path in glob.glob(pattern)[:1]:
            try:
                spec = importlib.util.spec_from_file_location("common_ops", path)
                module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
                return module
            except Exception as error:
                errors.append(f"{type(error).__name__}: {error}")
    raise ImportError("\\n[sgl_kernel] CRITICAL: Could not load any common_ops library! " + "\\n".join(errors))
common_ops = load("sm100")
from . import load_utils
"""
LOAD_UTILS = """
import ctypes, os
home = os.environ.get("CUDA_HOME")
for name in ("libcudart.so.13", "libcudart.so.12"):
    path = os.path.realpath(os.path.join(home or "/nowhere", "lib", name))
    if os.path.exists(path):
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        break
"""


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    made = small_wheels.make_venv(tmp_path / "venv", "nvidia-cuda-runtime", "nvidia-cufile", "nvidia-nvtx")
    site = small_wheels.site_packages(made)
    add_torch(site)
    lib = site / "nvidia/cu13/lib"
    for folder in ("sm100", "sm90"):
        compile_module(site / "sgl_kernel" / folder / "common_ops.abi3.so", lib / "libcudart.so.13")
    (site / "sgl_kernel/__init__.py").write_text(KERNEL)
    (site / "sgl_kernel/load_utils.py").write_text(LOAD_UTILS)
    return made


def really(venv: Path, **environment: str) -> tuple[str, set[str]]:
    code = (
        "import json, sys\nerror = ''\ntry: import sgl_kernel\n"
        "except BaseException as e: error = f'{type(e).__name__}: {e}'\n"
        "print(json.dumps([error, [line.split()[-1] for line in open('/proc/self/maps') if '.so' in line]]))"
    )
    done = subprocess.run(
        [f"{venv}/bin/python", "-B", "-c", code], env=environment, capture_output=True, text=True, check=True, cwd="/"
    )
    error, maps = json.loads(done.stdout)
    return error, {path for path in maps if path.startswith(str(venv.parent))}


def predicted(venv: Path, facts: dict[str, object]) -> set[str]:
    resolution = facts["resolution"]
    assert isinstance(resolution, list)
    return {os.path.realpath(r["path"]) for r in resolution if r["path"].startswith(str(venv.parent))}


def unit_for(venv: Path, **environment: str) -> str:
    unit = venv.parent / "engine.service"
    lines = "".join(f"Environment={name}={value}\n" for name, value in environment.items())
    unit.write_text(f"[Service]\nExecStart={venv}/bin/python\n{lines}")
    return str(unit)


def full(venv: Path, **environment: str) -> dict[str, object]:
    return examine(venv, detail="full", imports=["sgl_kernel"], unit=unit_for(venv, **environment))


def test_without_a_gpu_it_takes_what_newer_gpus_take(venv: Path) -> None:
    error, maps = really(venv)

    facts = full(venv)

    assert (error, facts["problems"]) == ("", [])
    assert predicted(venv, facts) == maps
    assert any("/sm100/" in path for path in maps)


def test_another_runtime_of_cuda_home_is_loaded_after_the_operations(venv: Path) -> None:
    home = venv.parent / "toolkit"
    (home / "lib").mkdir(parents=True)
    small_wheels.install(venv, "nvidia-cuda-runtime-cu12")
    site = small_wheels.site_packages(venv)
    (site / "nvidia/cuda_runtime/lib/libcudart.so.12").rename(home / "lib/libcudart.so.12")
    small_wheels.uninstall(venv, "nvidia-cuda-runtime-cu12")
    error, maps = really(venv, CUDA_HOME=str(home))

    facts = full(venv, CUDA_HOME=str(home))

    assert error == ""
    assert predicted(venv, facts) == maps
    assert f"{home}/lib/libcudart.so.12" in maps


def test_operations_that_do_not_load_and_those_beside_the_sources(venv: Path) -> None:
    site = small_wheels.site_packages(venv)
    compile_module(site / "absent/libabsent.so.7", python=False)
    compile_module(site / "sgl_kernel/sm100/common_ops.abi3.so", site / "absent/libabsent.so.7")
    compile_module(site / "sgl_kernel/common_ops.abi3.so")
    (site / "absent/libabsent.so.7").unlink()
    error, maps = really(venv)
    facts = full(venv)
    assert error == ""
    assert predicted(venv, facts) == maps

    (site / "sgl_kernel/common_ops.abi3.so").unlink()

    error, _maps = really(venv)
    assert "Could not load any common_ops library!" in error
    problems = full(venv)["problems"]
    assert isinstance(problems, list)
    assert [problem["kind"] for problem in problems] == ["missing-library"]
    assert problems[0]["evidence"] in error


def test_an_import_that_fails_does_not_get_to_the_runtime_of_cuda_home(venv: Path) -> None:
    home = venv.parent / "toolkit"
    (home / "lib").mkdir(parents=True)
    site = small_wheels.site_packages(venv)
    shutil.copy(site / "nvidia/cu13/lib/libcudart.so.13", home / "lib")
    compile_module(site / "absent/libabsent.so.7", python=False)
    compile_module(site / "sgl_kernel/sm100/common_ops.abi3.so", site / "absent/libabsent.so.7")
    (site / "absent/libabsent.so.7").unlink()
    error, maps = really(venv, CUDA_HOME=str(home))

    facts = full(venv, CUDA_HOME=str(home))

    assert "Could not load any common_ops library!" in error
    assert predicted(venv, facts) == maps


@pytest.mark.parametrize(
    ("model", "folder"),
    [("NVIDIA H100 80GB HBM3", "sm90"), ("NVIDIA GH200 480GB", "sm90"), ("NVIDIA B200", "sm100"),
     ("NVIDIA RTX 6000 Ada Generation", "sm100"), ("", "sm100")],
)  # fmt: skip
def test_the_model_of_the_first_gpu_decides(
    venv: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: str, folder: str
) -> None:
    gpus = tmp_path / "gpus"
    if model:
        (gpus / "0000:17:00.0").mkdir(parents=True)
        (gpus / "0000:17:00.0/information").write_text(f"Model: \t\t {model}\nIRQ: 1\n")
    monkeypatch.setattr(_plan_sgl_kernel, "_GPUS", str(gpus))

    assert any(f"/{folder}/common_ops" in path for path in predicted(venv, full(venv)))
