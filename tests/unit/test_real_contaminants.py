# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real wheels beside and over the complete CUDA 13 set of torch, and directories in front of it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from support.real_venv import (
    CONTAMINANTS,
    CU12,
    CU13,
    commands,
    cuda_wheels,
    entries,
    foresee,
    kept,
    really_run,
    run_uv,
    scratch,
    type_in,
    uninstall,
)
from support.small_wheels import site_packages

from ansible_collections.gpufleet.dflash.plugins.module_utils._lock import LockEntry

pytestmark = pytest.mark.real

# These own the same files as their namesakes for CUDA 13.
CLOBBERING = ("nvidia-cudnn-cu12", "nvidia-cusparselt-cu12", "nvidia-nccl-cu12", "nvidia-nvshmem-cu12")
# An older NCCL in place of torch's own is another story, told below.
WITH_TORCH = tuple(entry for entry in cuda_wheels(CU12) if entry.name != "nvidia-nccl-cu12")
BESIDE = tuple(entry for entry in cuda_wheels(CU12) if entry.name not in CLOBBERING)


def below_nvidia(venv: Path, files: frozenset[str]) -> dict[str, str]:
    """{library: its directory below nvidia/} of mapped files, by their names up to the first number."""
    root = os.path.realpath(site_packages(venv) / "nvidia")
    inside = [os.path.relpath(path, root) for path in files if path.startswith(root + "/")]
    return {os.path.basename(path): os.path.dirname(path) for path in inside}


@pytest.mark.parametrize("wheels", [BESIDE, WITH_TORCH], ids=["beside", "beside and over"])
def test_wheels_of_cuda_12_are_taken_as_they_really_are(wheels: tuple[LockEntry, ...]) -> None:
    with scratch(CU13, wheels) as venv:
        real = really_run(venv)
        seen = foresee(venv)

        assert real.error is None
        assert seen.answer == real
        mapped = below_nvidia(venv, real.files)
        assert mapped["libnvrtc.so.12"] == "cuda_nvrtc/lib"
        assert "libnvrtc.so.13" not in mapped
        # Both majors have these sonames, and CUDA 12's are found first.
        assert mapped["libcusparse.so.12"] == "cusparse/lib"
        assert mapped["libcurand.so.10"] == "curand/lib"
        assert {"libcublas.so.12", "libcublas.so.13", "libcudart.so.12", "libcudart.so.13"} <= set(mapped)
        mixed = seen.only("mixed-cuda-majors")
        assert {"nvidia-cusparse-cu12", "nvidia-curand-cu12", "nvidia-cublas"} <= set(mixed["distributions"])
        doubled = {problem["soname"] for problem in seen.problems if problem["kind"] == "duplicate-soname"}
        assert {"libcusparse.so.12", "libcurand.so.10", "libcufile.so.0"} <= doubled
        clobbered = {
            name
            for problem in seen.problems
            if problem["kind"] == "clobbered-file"
            for name in problem["distributions"]
        }
        over = set(CLOBBERING) & {wheel.name for wheel in wheels}
        assert over <= clobbered
        assert bool(over) == bool(clobbered)


def test_the_way_out_of_mixed_majors_works_when_typed() -> None:
    with scratch(CU13, cuda_wheels(CU12)) as venv:
        for command in commands(foresee(venv).only("mixed-cuda-majors")["fix"]):
            type_in(command)

        for _round in range(2):
            for problem in foresee(venv).problems:
                type_in(commands(problem["fix"])[0])
        real = really_run(venv)
        seen = foresee(venv)
        assert real.error is None
        assert seen.problems == []
        assert seen.answer == real


CUDNN_12 = entries(CONTAMINANTS, "nvidia-cudnn-cu12")


def test_cudnn_of_cuda_12_over_that_of_13_is_named_by_file() -> None:
    with scratch(CU13, CUDNN_12) as venv:
        seen = foresee(venv)

        problem = seen.only("clobbered-file")
        libraries = {os.path.basename(path) for path in problem["paths"] if ".so" in path}
        assert seen.kinds == ["clobbered-file", "unmet-requirement"]
        assert "requires nvidia-cublas-cu12" in seen.only("unmet-requirement")["message"]
        # libcudnn.so.9 itself is the same in both.
        assert len(libraries) == 7
        assert "libcudnn.so.9" not in libraries
        assert seen.answer == really_run(venv)
        for command in commands(problem["fix"]):
            type_in(command)
        assert foresee(venv).problems == []


def test_what_the_uninstall_of_a_contaminant_takes_along_is_foreseen() -> None:
    with scratch(CU13, CUDNN_12) as venv:
        seen = foresee(venv, without=["nvidia-cudnn-cu12"])
        problem = seen.only("uninstall-would-break")
        before = _files(venv)
        uninstall(venv, "nvidia-cudnn-cu12")
        gone = before - _files(venv)
        real = really_run(venv)
        after = foresee(venv)

        assert seen.deleted == gone
        lost = {path for path in gone if ".dist-info" not in path}
        assert seen.facts["removal"]["files"] == {"nvidia-cudnn-cu13": len(lost)}
        assert problem["soname"] == "libcudnn.so.9"
        assert [failure["words"] for failure in seen.facts["removal"]["failures"]] == [real.error]
        assert after.answer == real
        assert run_uv("pip", "check", "--python", f"{venv}/bin/python")
        (command,) = {found for each in after.problems for found in commands(each["fix"])}
        type_in(command)
        assert really_run(venv).error is None
        assert foresee(venv).problems == []


def _files(venv: Path) -> set[str]:
    """Every file of the venv but what Python compiles for itself."""
    return {
        os.path.join(parent, name)
        for parent, _folders, names in os.walk(os.path.realpath(venv))
        for name in names
        if not name.endswith(".pyc")
    }


def test_a_newer_nvrtc_is_an_unmet_requirement_that_uv_does_not_see() -> None:
    with scratch(CU13, entries(CONTAMINANTS, "nvidia-cuda-nvrtc")) as venv:
        run_uv("pip", "check", "--python", f"{venv}/bin/python")
        seen = foresee(venv)

        problem = seen.only("unmet-requirement")
        assert seen.kinds == ["unmet-requirement"]
        assert "nvidia-cuda-nvrtc==13.0" in problem["message"]
        assert "13.2.78" in problem["message"]
        assert seen.answer == really_run(venv)
        for command in commands(problem["fix"]):
            type_in(command)
        assert foresee(venv).problems == []


OLD_NCCL = entries(CONTAMINANTS, "nvidia-nccl-cu13")


def test_an_older_nccl_is_an_unmet_requirement() -> None:
    with scratch(CU13, OLD_NCCL) as venv:
        problem = foresee(venv).only("unmet-requirement")

        for command in commands(problem["fix"]):
            type_in(command)
        assert really_run(venv).error is None
        assert foresee(venv).problems == []


def test_the_symbol_that_an_older_nccl_lacks_is_foreseen() -> None:
    with scratch(CU13, OLD_NCCL) as venv:
        real = really_run(venv)
        seen = foresee(venv, deep=True)

        assert real.error is not None
        symbol = real.error.rpartition("undefined symbol: ")[2]
        assert symbol.startswith("nccl")
        problem = seen.only("undefined-symbol")
        assert symbol in problem["message"] + problem["evidence"]


# --- LD_LIBRARY_PATH ------------------------------------------------------------------------------------


def test_a_shadowing_library_path_is_foreseen_file_for_file(tmp_path: Path) -> None:
    venv = kept(CU13)
    library_path = foresee(venv).facts["library_path"]
    shadowed = ("cu13/lib/libnvJitLink.so.13", "cu13/lib/libcublasLt.so.13", "cudnn/lib/libcudnn_graph.so.9")
    for library in shadowed:
        shutil.copy(site_packages(venv) / "nvidia" / library, tmp_path)
    searched = [tmp_path, *library_path]

    real = really_run(venv, load=["libcudnn_adv.so.9"], library_path=searched)
    seen = foresee(venv, load=["libcudnn_adv.so.9"], library_path=searched)

    assert real.error is None
    assert {os.path.basename(path) for path in real.files if path.startswith(str(tmp_path))} == {
        # torch opens cuBLASLt and nvJitLink by path before anything asks for them by name.
        "libcudnn_graph.so.9"
    }
    assert seen.answer.files - real.files == set()
    assert real.files - seen.answer.files == set()
    assert "shadowed-library" in seen.kinds
