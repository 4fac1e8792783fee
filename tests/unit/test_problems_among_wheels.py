# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What wheels share, bundle and demand of one another: one loss is one problem, with the one command that cures it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support import small_wheels
from support.examination import CU12, commands, examine, examine_as_service, kinds

from ansible_collections.gpufleet.dflash.plugins.module_utils._requirements import Unmet, demand


@pytest.fixture
def new_venv(tmp_path: Path) -> Callable[..., Path]:
    return lambda *names: small_wheels.make_venv(tmp_path / "venv", *names)


def _distribution(venv: Path, name: str, *files: str, requires: tuple[str, ...] = ()) -> None:
    """Book-keeping of a distribution that owns these files below site-packages."""
    info = small_wheels.site_packages(venv) / f"{name}-1.0.dist-info"
    info.mkdir()
    lines = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{lines}")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in (*files, f"{info.name}/METADATA")))


# --- files that distributions share --------------------------------------------------------------------


def test_an_empty_file_that_an_uninstall_takes_from_all_others_is_one_warning(new_venv: Callable[..., Path]) -> None:
    """Each of NVIDIA's wheels for CUDA 12 owns the same empty nvidia/__init__.py."""
    venv = new_venv(*CU12)
    small_wheels.uninstall(venv, "nvidia-cufile-cu12")
    left = sorted(name for name in CU12 if name != "nvidia-cufile-cu12")

    (problem,) = examine(venv)["problems"]

    assert (problem["kind"], problem["severity"]) == ("missing-payload", "warning")
    assert sorted(problem["distributions"]) == left
    assert problem["message"] == "a file that 2 distributions share is gone: nvidia/__init__.py"
    small_wheels.run(commands(problem["fix"])[0])
    assert examine(venv)["problems"] == []


def test_code_that_distributions_share_is_an_error_when_it_is_gone(new_venv: Callable[..., Path]) -> None:
    venv = new_venv()
    for name in ("one", "two"):
        _distribution(venv, name, "common/__init__.py")

    (problem,) = examine(venv)["problems"]

    assert (problem["kind"], problem["severity"]) == ("missing-payload", "error")
    assert problem["distributions"] == ["one", "two"]


def test_a_distribution_that_lost_more_than_its_share_is_one_problem(new_venv: Callable[..., Path]) -> None:
    venv = new_venv(*CU12)
    site = small_wheels.site_packages(venv)
    (site / "nvidia/__init__.py").unlink()
    (site / "nvidia/cufile/lib/libcufile.so.0").unlink()

    (problem,) = examine(venv)["problems"]

    assert problem["distributions"] == ["nvidia-cufile-cu12"]
    assert "2 of its" in problem["message"]
    small_wheels.run(commands(problem["fix"])[0])
    assert examine(venv)["problems"] == []


# --- what distributions bundle for themselves ----------------------------------------------------------


@pytest.mark.parametrize("on_disk", [True, False], ids=["there", "gone"])
def test_a_copy_that_another_package_bundles_does_not_provide_a_library(
    new_venv: Callable[..., Path], on_disk: bool
) -> None:
    """triton brings a libcupti.so.12 of its own, which torch neither finds nor is meant to find."""
    venv = new_venv("nvidia-cuda-runtime", "nvidia-cufile")
    site = small_wheels.site_packages(venv)
    bundled = site / "profiler/lib/libcufile.so.0"
    bundled.parent.mkdir(parents=True)
    shutil.copy(site / "nvidia/cu13/lib/libcufile.so.0", bundled)
    _distribution(venv, "profiler", "profiler/lib/libcufile.so.0")
    if not on_disk:
        bundled.unlink()
    small_wheels.uninstall(venv, "nvidia-cufile")

    facts = examine_as_service(venv, load=["libcufile.so.0"])

    (problem,) = [problem for problem in facts["problems"] if problem["kind"] == "missing-library"]
    assert problem["distributions"] == ["nvidia-cufile"]
    small_wheels.run(commands(problem["fix"])[0])
    assert "missing-library" not in kinds(examine_as_service(venv, load=["libcufile.so.0"]))


def test_a_file_of_ld_library_path_in_front_of_the_wheels_own(new_venv: Callable[..., Path], tmp_path: Path) -> None:
    venv = new_venv("nvidia-cuda-runtime")
    own = small_wheels.site_packages(venv) / "nvidia/cu13/lib"
    (tmp_path / "toolkit").mkdir()
    shutil.copy(own / "libcudart.so.13", tmp_path / "toolkit")

    facts = examine(venv, load=["libcudart.so.13"], ld_library_path=[f"{tmp_path}/toolkit", str(own)])

    (problem,) = facts["problems"]
    assert (problem["kind"], problem["severity"]) == ("shadowed-library", "warning")
    assert problem["distributions"] == ["nvidia-cuda-runtime"]
    assert problem["paths"] == [f"{tmp_path}/toolkit/libcudart.so.13", f"{own}/libcudart.so.13"]
    # The fix, carried out.
    assert problem["fix"].startswith(f"put {own} first in LD_LIBRARY_PATH")
    order = [str(own), f"{tmp_path}/toolkit"]
    assert examine(venv, load=["libcudart.so.13"], ld_library_path=order)["problems"] == []


# --- what several distributions demand of one ----------------------------------------------------------


def test_the_strictest_requirement_is_what_every_fix_installs(new_venv: Callable[..., Path]) -> None:
    """cuSPARSE asks for any nvJitLink, the toolkit for one version: the newest would meet the first only."""
    venv = new_venv("nvidia-nvtx")
    _distribution(venv, "lax", requires=("nvidia-cufile",))
    _distribution(venv, "strict", requires=("nvidia-cufile==1.15.1.6",))

    facts = examine_as_service(venv, load=["libcufile.so.0"])

    assert kinds(facts) == ["missing-library", "unmet-requirement", "unmet-requirement"]
    assert {re.sub(".* ", "", commands(problem["fix"])[0]) for problem in facts["problems"]} == {
        "nvidia-cufile==1.15.1.6"
    }


@pytest.mark.parametrize(
    ("requirements", "wanted"),
    [
        ([], "thing"),
        (["thing"], "thing"),
        (["Thing>=1,<3", "thing>=2"], "thing>=1,<3,>=2"),
        (["thing", "thing==2.0"], "thing==2.0"),
        (["thing>=1", "thing[fast]==2.*", "thing[small]"], "thing[fast,small]==2.*"),
        (["thing==1.0", "thing==2.0"], "thing==1.0"),
        (["thing (>=1.0)"], "thing>=1.0"),
    ],
)
def test_demands_are_joined(requirements: list[str], wanted: str) -> None:
    unmet = [Unmet((), text, "thing", None) for text in requirements] + [Unmet((), "other==1", "other", None)]

    assert demand("thing", unmet) == wanted
