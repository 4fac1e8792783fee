# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The real sgl_kernel, which links against the driver: without one, and with a stub that we compile."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.real_venv import CONTAMINANTS, CU13, entries, foresee, kept, really_run
from support.small_wheels import CHECKOUT, site_packages

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="this host has a driver of its own"),
]

MODULES = ("torch", "sgl_kernel")


@pytest.fixture(scope="module")
def venv() -> Path:
    return kept((*CU13, *entries(CONTAMINANTS, "sglang-kernel")))


@pytest.mark.parametrize("use_cache", [True, False], ids=["the host's cache", "an empty cache"])
def test_without_a_driver_the_driver_is_named(venv: Path, use_cache: bool) -> None:
    real = really_run(venv, MODULES, use_cache=use_cache)
    seen = foresee(venv, MODULES, use_cache=use_cache)

    assert real.error is not None
    assert "libcuda.so.1: cannot open shared object file: No such file or directory" in real.error
    assert seen.answer.error is not None
    # sgl_kernel's own text is a page long; it begins and ends as foreseen.
    headline, _dots, words = seen.answer.error.partition(" ... ")
    assert " ".join(real.error.split()).startswith(headline)
    assert words in real.error
    assert seen.answer.files == real.files
    problem = seen.only("driver-missing")
    assert problem["soname"] == "libcuda.so.1"
    assert seen.kinds == ["driver-missing"]


def test_with_a_stub_driver_it_is_foreseen_file_for_file(venv: Path, tmp_path: Path) -> None:
    tool = [sys.executable, str(CHECKOUT / "tools" / "make_stub_driver.py"), "--output", str(tmp_path)]
    subprocess.run([*tool, str(site_packages(venv) / "sgl_kernel")], check=True)

    real = really_run(venv, MODULES, library_path=[tmp_path])
    seen = foresee(venv, MODULES, library_path=[tmp_path])

    assert real.error is None
    assert seen.answer == real
    assert any("/sgl_kernel/sm100/common_ops" in path for path in real.files)
    assert f"{tmp_path}/libcuda.so.1" in [loaded["path"] for loaded in seen.facts["resolution"]]
    assert not [problem for problem in seen.problems if problem["severity"] == "error"]
