# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which distribution, in which version, missing-library names: for CUDA 11, 12 and 13."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import small_wheels
from support.elf_writer import write_elf
from support.examination import commands, examine

from ansible_collections.gpufleet.dflash.plugins.module_utils import _requirements


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    return small_wheels.make_venv(tmp_path / "venv")


def add(venv: Path, name: str, version: str, *requires: str, file: str | None = None) -> None:
    """An installed distribution of nothing but its book-keeping, and perhaps one file."""
    site = small_wheels.site_packages(venv)
    directory = site / f"{name.replace('-', '_')}-{version}.dist-info"
    directory.mkdir()
    lines = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    (directory / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{lines}")
    (directory / "INSTALLER").write_text("uv\n")
    rows = [f"{directory.name}/{row},," for row in ("METADATA", "INSTALLER", "RECORD")]
    (directory / "RECORD").write_text("\n".join(rows + ([f"{file},,"] if file else [])) + "\n")


def missing(venv: Path, soname: str, *, owner: tuple[str, str] = ("kernels", "1.0")) -> dict[str, Any]:
    """What the module says of an object that needs a soname which is not there."""
    site = small_wheels.site_packages(venv)
    path = write_elf(site / "kernels/ops.so", needed=[soname])
    add(venv, *owner, file="kernels/ops.so")
    (found,) = [p for p in examine(venv, load=[str(path)])["problems"] if p["kind"] == "missing-library"]
    problem: dict[str, Any] = found
    return problem


@pytest.mark.parametrize(
    ("sibling", "soname", "pin"),
    [
        (("nvidia-cuda-runtime-cu11", "11.8.89"), "libcublas.so.11", "nvidia-cublas-cu11==11.11.3.6"),
        (("nvidia-cuda-runtime-cu11", "11.8.89"), "libcusolver.so.11", "nvidia-cusolver-cu11==11.4.1.48"),
        (("nvidia-cuda-runtime-cu12", "12.8.90"), "libcufft.so.11", "nvidia-cufft-cu12==11.3.3.83"),
        (("nvidia-cuda-runtime-cu12", "12.1.105"), "libcufft.so.11", "nvidia-cufft-cu12==11.0.2.54"),
        (("nvidia-cuda-runtime-cu12", "12.4.127"), "libcusolver.so.11", "nvidia-cusolver-cu12==11.6.1.9"),
        (("nvidia-cuda-runtime", "13.0.96"), "libcufft.so.12", "nvidia-cufft==12.0.0.61"),
        (("nvidia-cuda-runtime", "13.0.96"), "libcusparse.so.12", "nvidia-cusparse==12.6.3.3"),
        (("nvidia-cuda-runtime", "13.2.86"), "libnvJitLink.so.13", "nvidia-nvjitlink==13.5.37"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[1],
)
def test_the_version_is_that_of_the_siblings_toolkit(
    venv: Path, sibling: tuple[str, str], soname: str, pin: str
) -> None:
    add(venv, *sibling)

    problem = missing(venv, soname)

    assert problem["distributions"] == [pin.partition("==")[0]]
    assert problem["message"].endswith(f"{pin} provides it")
    assert commands(problem["fix"]) == [f"uv pip install --python {venv}/bin/python {pin}"]


@pytest.mark.parametrize("major", [11, 12, 13])
def test_one_soname_of_three_majors_is_that_of_the_one_who_needs_it(venv: Path, major: int) -> None:
    """cuDNN 9 has the same soname for each."""
    problem = missing(venv, "libcudnn_graph.so.9", owner=(f"nvidia-kernels-cu{major}", "1.0"))

    assert problem["distributions"] == [f"nvidia-cudnn-cu{major}"]


@pytest.mark.parametrize("major", [12, 13])
def test_a_requirement_comes_before_the_catalogue(venv: Path, major: int) -> None:
    add(venv, "engine", "1.0", f"nvidia-cudnn-cu{major}==9.19.0.56")

    problem = missing(venv, "libcudnn.so.9")

    assert problem["distributions"] == [f"nvidia-cudnn-cu{major}"]
    assert "==9.19.0.56" in problem["fix"]


def test_an_extra_that_is_asked_for_comes_first(venv: Path) -> None:
    add(venv, "cuda-toolkit", "13.0.2", "nvidia-cufft==12.0.0.61.*; sys_platform == 'linux' and extra == 'cufft'")
    add(venv, "engine", "1.0", "cuda-toolkit[cufft]==13.0.2")
    add(venv, "nvidia-cuda-runtime", "13.2.86")

    assert "nvidia-cufft==12.0.0.61.*" in missing(venv, "libcufft.so.12")["fix"]


@pytest.mark.parametrize(
    ("marker", "pin"),
    [
        ("(sys_platform == 'linux' or sys_platform == 'win32') and extra == 'cufft'", "nvidia-cufft==12.0.0.61.*"),
        ("sys_platform == 'win32' and extra == 'cufft'", "nvidia-cufft==12.2.0.57"),
    ],
    ids=["for Linux", "for Windows"],
)
def test_an_extra_that_nobody_asked_for_tells_the_version(venv: Path, marker: str, pin: str) -> None:
    add(venv, "cuda-toolkit", "13.0.2", f"nvidia-cufft==12.0.0.61.*; {marker}")
    add(venv, "nvidia-cuda-runtime", "13.2.86")

    assert missing(venv, "libcufft.so.12")["message"].endswith(f"{pin} provides it")


def test_an_optional_requirement_tells_the_major(venv: Path) -> None:
    """jax-cuda13-plugin installed by itself: nothing else of NVIDIA's is there."""
    add(venv, "jax-cuda13-plugin", "0.10.2", 'nvidia-cudnn-cu13<10.0,>=9.12.0.46; extra == "with-cuda"')

    problem = missing(venv, "libcudnn.so.9")

    assert problem["distributions"] == ["nvidia-cudnn-cu13"]
    assert "'nvidia-cudnn-cu13<10.0,>=9.12.0.46'" in problem["fix"]


def test_without_any_hint_each_major_is_named_with_its_newest_version(venv: Path) -> None:
    problem = missing(venv, "libcudnn.so.9")

    assert problem["distributions"] == ["nvidia-cudnn-cu11", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13"]
    assert problem["message"].count("==9.") == 3


@pytest.mark.parametrize(
    ("soname", "pin"),
    [
        ("libnvrtc-builtins.so.13.1", "nvidia-cuda-nvrtc==13.1.115"),
        ("libnvrtc-builtins.so.12.4", "nvidia-cuda-nvrtc-cu12==12.4.127"),
        ("libcudart.so.11.0", "nvidia-cuda-runtime-cu11==11.8.89"),
        ("libcupti.so.11.8", "nvidia-cuda-cupti-cu11==11.8.87"),
        ("libcudss.so.1", "nvidia-cudss-cu12==1.0.0.35 or nvidia-cudss-cu13==1.0.0.35"),
    ],
)
def test_a_soname_that_tells_its_release(venv: Path, soname: str, pin: str) -> None:
    assert missing(venv, soname)["message"].endswith(f"{pin} provides it")


def test_a_soname_of_cudnn_8_leads_to_a_version_that_has_it(venv: Path) -> None:
    add(venv, "nvidia-cuda-runtime-cu12", "12.1.105")

    assert missing(venv, "libcudnn.so.8")["message"].endswith("nvidia-cudnn-cu12==8.9.2.26 provides it")


@pytest.mark.parametrize("plainly", [False, True], ids=["with packaging", "without"])
def test_no_fix_names_a_placeholder(venv: Path, monkeypatch: pytest.MonkeyPatch, plainly: bool) -> None:
    """nvidia-cusparse-cu13 exists, and is empty: its build says so and fails."""
    if plainly:
        monkeypatch.setattr(_requirements, "_parser", lambda: _requirements.parse_plainly)
    add(venv, "nvidia-cuda-runtime", "13.0.96")
    add(venv, "engine", "1.0", "nvidia-cusparse-cu13")

    problems = {problem["kind"]: problem for problem in examine(venv)["problems"]}
    problem = missing(venv, "libcusparse.so.12")

    assert "nvidia-cusparse-cu13 is" not in problem["message"]
    assert commands(problems["unmet-requirement"]["fix"])[0].endswith(" nvidia-cusparse==12.6.3.3")
    assert commands(problem["fix"])[0].endswith(" nvidia-cusparse==12.6.3.3")
