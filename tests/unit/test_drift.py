# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Comparing with a lock; versions against the packaging library, fixes against the real uv."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version
from support import small_wheels
from support.examination import commands, examine, kinds

from ansible_collections.gpufleet.dflash.plugins.module_utils import _requirements
from ansible_collections.gpufleet.dflash.plugins.module_utils._lock import read_lock
from ansible_collections.gpufleet.dflash.plugins.module_utils._versions import fulfils_pin

SPELLINGS = (
    *("1", "1.0", "1.0.0", "v1.0", "01.0", "0!1.0", "1!1.0", "1.0.1", "10", "1.10"),
    *("1.0a1", "1.0.alpha-1", "1.0a", "1.0b2", "1.0rc1", "1.0c1", "1.0-pre1", "1.0preview_1"),
    *("1.0.post1", "1.0-1", "1.0.r1", "1.0rev1", "1.0.post", "1.0post0", "1.0rc1.post1"),
    *("1.0.dev1", "1.0dev", "1.0a1.dev1", "1.0+cu130", "1.0+CU130", "1.0.0+cu130", "1.0+cu.130", "1.0+cu-130"),
    *("1.0+cu_130", "1.0+cu128", "1.0+1", "1.0+01", "1.0.post1+cu130", "2.11.0", "2.11.0+cu130", "2.11+cpu"),
)


def agrees(installed: str, pin: str) -> bool:
    return SpecifierSet(f"=={pin}").contains(Version(installed), prereleases=True)


@pytest.mark.parametrize("pin", SPELLINGS)
def test_a_pin_means_what_packaging_says(pin: str) -> None:
    accepted = [installed for installed in SPELLINGS if fulfils_pin(installed, pin)]

    assert accepted == [installed for installed in SPELLINGS if agrees(installed, pin)]


@given(st.lists(st.text(alphabet="0123.+-_abcrpostdev!", min_size=1, max_size=12), min_size=2, max_size=2))
def test_random_spellings_mean_what_packaging_says(pair: list[str]) -> None:
    installed, pin = pair
    try:
        Version(pin), Version(installed)
    except InvalidVersion:
        return
    assert fulfils_pin(installed, pin) == agrees(installed, pin)


def test_what_is_no_version_is_compared_as_text() -> None:
    assert fulfils_pin("2019-rc-final-x", "2019-RC-final-x")
    assert not fulfils_pin("1.0", "one")


def lock_of(*pins: str) -> Any:
    return read_lock("".join(f"{pin} --hash=sha256:{'0' * 64}\n" for pin in pins))


@pytest.fixture
def new_venv(tmp_path: Path) -> Callable[..., Path]:
    return lambda *names: small_wheels.make_venv(tmp_path / "venv", *names)


def test_a_venv_that_is_what_its_lock_says(new_venv: Callable[..., Path]) -> None:
    venv = new_venv("nvidia-nvtx", "nvidia-cufile")

    facts = examine(venv, lock=lock_of("NVIDIA_nvtx==13.0.85", "nvidia-cufile==1.15.1.6.0"))

    assert facts["problems"] == []
    assert facts["lock"] == {"missing": [], "different": [], "extra": [], "unjudged": []}
    assert examine(venv)["lock"] is None


def test_each_difference_is_a_problem_and_its_fix_ends_it(new_venv: Callable[..., Path]) -> None:
    venv = new_venv("nvidia-nvtx", "nvidia-cufile", "nvidia-nvtx-cu12")
    (metadata,) = small_wheels.site_packages(venv).glob("nvidia_nvtx-13*.dist-info/METADATA")
    metadata.write_text(metadata.read_text().replace("13.0.85", "13.0.84"))
    lock = lock_of("nvidia-nvtx==13.0.85", "nvidia-cufile==1.15.1.6", "nvidia-cuda-runtime==13.0.96")

    facts = examine(venv, lock=lock, verify="none")

    assert kinds(facts) == ["lock-drift"] * 3
    assert facts["lock"] == {
        "missing": ["nvidia-cuda-runtime==13.0.96"],
        "different": ["nvidia-nvtx==13.0.84, locked 13.0.85"],
        "extra": ["nvidia-nvtx-cu12==12.8.90"],
        "unjudged": [],
    }
    for problem in facts["problems"]:
        small_wheels.run(commands(problem["fix"])[0])
    repaired = examine(venv, lock=lock, verify="hash")
    assert repaired["problems"] == []


def test_an_extra_goes_without_taking_what_the_lock_has(new_venv: Callable[..., Path]) -> None:
    """uv pip sync to this lock leaves nvidia-nvtx-cu12 without its files."""
    venv = new_venv("nvidia-nvtx-cu11", "nvidia-nvtx-cu12")
    lock = lock_of("nvidia-nvtx-cu12==12.8.90")
    (drift,) = [p for p in examine(venv, lock=lock)["problems"] if p["kind"] == "lock-drift"]

    small_wheels.run(commands(drift["fix"])[0])

    assert examine(venv, lock=lock, verify="hash")["problems"] == []


@pytest.mark.parametrize(
    ("pin", "different"),
    [("nvidia-nvtx==13.0.85", False), ("nvidia-nvtx==13.0.85+cu130", False), ("nvidia-nvtx==13.0.85+cpu", True)],
)
def test_a_local_tag_counts_when_the_lock_has_one(new_venv: Callable[..., Path], pin: str, different: bool) -> None:
    venv = new_venv("nvidia-nvtx")
    (metadata,) = small_wheels.site_packages(venv).glob("nvidia_nvtx-*.dist-info/METADATA")
    metadata.write_text(metadata.read_text().replace("Version: 13.0.85", "Version: 13.0.85+cu130"))

    problems = examine(venv, lock=lock_of(pin), verify="none")["problems"]

    assert [problem["kind"] for problem in problems] == (["lock-drift"] if different else [])
    assert [problem["message"].endswith("of nvidia-nvtx only the build differs") for problem in problems] == (
        [True] if different else []
    )


MARKED = (
    'nvidia-cufile==1.15.1.6 ; sys_platform == "win32"',
    'nvidia-nvtx==13.0.85 ; python_full_version >= "3.9" and platform_machine != "sparc"',
)


def test_markers_decide_what_the_lock_installs(new_venv: Callable[..., Path]) -> None:
    assert examine(new_venv("nvidia-nvtx"), lock=lock_of(*MARKED))["problems"] == []


def test_a_marker_without_a_meaning_is_not_judged(new_venv: Callable[..., Path]) -> None:
    facts = examine(new_venv("nvidia-nvtx"), lock=lock_of('nvidia-nvtx==13.0.85 ; os_name ~= "posix"'))

    assert (facts["problems"], facts["lock"]["unjudged"]) == ([], ["nvidia-nvtx==13.0.85"])


def test_a_marker_that_cannot_be_judged_is_no_problem(
    new_venv: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_requirements, "_parser", lambda: _requirements.parse_plainly)

    facts = examine(new_venv("nvidia-nvtx"), lock=lock_of(*MARKED))

    assert facts["problems"] == []
    assert facts["lock"]["unjudged"] == ["nvidia-nvtx==13.0.85"]
