# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finding venvs: quickly, without leaving the file system, following links or going round in circles."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support import small_wheels

from ansible_collections.gpufleet.dflash.plugins.module_utils._discovery import find_venvs
from ansible_collections.gpufleet.dflash.plugins.module_utils._examination import ExaminationError, examine_all

OPTIONS: dict[str, Any] = {
    "venv": None,
    "discover": None,
    "imports": None,
    "load": [],
    "ld_library_path": None,
    "unit": None,
    "without": [],
    "lock": None,
    "lock_content": None,
    "verify": "size",
    "deep": False,
    "compute_capabilities": None,
    "detail": "summary",
}


def bare_venv(path: Path) -> str:
    """What a search takes for a venv."""
    (path / "bin").mkdir(parents=True)
    (path / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.11.2\n")
    return str(path)


@pytest.mark.parametrize("options", [{"venv": "/opt/v\0"}, {"venv": "/opt/v", "imports": ["to\0rch"]}])
def test_a_nul_character_is_one_clear_error(options: dict[str, Any]) -> None:
    with pytest.raises(ExaminationError, match="a NUL character: .*: take it out"):
        examine_all({**OPTIONS, **options})


def test_venvs_are_found_at_any_depth_and_sorted(tmp_path: Path) -> None:
    expected = [bare_venv(tmp_path / name) for name in ("a/deep/er/.venv", "b", "c/venv-1", "c/venv-2")]

    found = find_venvs([str(tmp_path), str(tmp_path / "c")])

    assert (found.venvs, found.notes) == (expected, [])


def test_a_root_may_be_a_venv_or_a_link(tmp_path: Path) -> None:
    venv = bare_venv(tmp_path / "real")
    (tmp_path / "link").symlink_to(venv)

    assert find_venvs([str(tmp_path / "link"), venv]).venvs == [venv]


@pytest.mark.parametrize("place", ["venv/inside", "cache/deep", "app/node_modules/x", "x/site-packages/y", "r/proc/1"])
def test_places_that_are_not_searched(tmp_path: Path, place: str) -> None:
    """A venv in a venv, in a cache, and in directories that never hold one."""
    bare_venv(tmp_path / "venv")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/CACHEDIR.TAG").touch()
    bare_venv(tmp_path / place)

    assert find_venvs([str(tmp_path)]).venvs == [str(tmp_path / "venv")]


def test_a_venv_that_uv_marks_as_a_cache_is_a_venv(tmp_path: Path) -> None:
    venv = small_wheels.make_venv(tmp_path / "venv")
    (venv / "CACHEDIR.TAG").touch()

    assert find_venvs([str(tmp_path)]).venvs == [str(venv)]


def test_links_and_loops_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    bare_venv(outside / "venv")
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    (root / "a/up").symlink_to(root)
    (root / "away").symlink_to(outside)

    assert find_venvs([str(root)]).venvs == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_other_file_systems_and_bind_mounts(tmp_path: Path) -> None:
    """A bind mount of a directory into itself is a circle that no link shows."""
    root = tmp_path / "root"
    expected = bare_venv(root / "venv")
    (root / "again").mkdir()
    (root / "other").mkdir()
    look = (
        "mount -t tmpfs none {0}/other && mkdir -p {0}/other/v/bin && touch {0}/other/v/pyvenv.cfg"
        ' && mount --bind {0} {0}/again && exec "$@"'
    )
    code = (
        "import sys; sys.path[:0] = [sys.argv[1]]\n"
        "from ansible_collections.gpufleet.dflash.plugins.module_utils._discovery import find_venvs\n"
        "print(find_venvs([sys.argv[2]]).venvs)"
    )
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", look.format(root), "sh", sys.executable, "-c", code,
         str(small_wheels.CHECKOUT / ".collections"), str(root)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode and "unshare" in done.stderr:
        pytest.skip("this machine allows no mounts")

    assert done.stdout.strip() == str([expected]), done.stderr


def test_the_search_is_bounded_and_says_so(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"d{number}").mkdir()

    found = find_venvs([str(tmp_path)], limit=10)

    assert found.venvs == []
    assert found.notes == [
        f"the search for virtual environments ended after 10 directories: {tmp_path}: name the directories below it"
    ]


def test_a_root_that_is_not_there_is_said_and_the_others_are_searched(tmp_path: Path) -> None:
    venv = bare_venv(tmp_path / "venv")

    found = find_venvs([str(tmp_path / "absent"), str(tmp_path)])

    assert found.venvs == [venv]
    assert found.notes == [f"cannot look for virtual environments: {tmp_path}/absent: No such file or directory"]


def test_ten_thousand_directories_take_no_time(tmp_path: Path) -> None:
    for outer in range(100):
        for inner in range(100):
            os.makedirs(tmp_path / str(outer) / str(inner))
    venv = bare_venv(tmp_path / "99/99/venv")
    started = time.process_time()

    found = find_venvs([str(tmp_path)])

    assert found.venvs == [venv]
    assert time.process_time() - started < 2


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda venv: (venv / "bin/python").unlink(), "the venv has no interpreter"),
        (lambda venv: fifo(venv / "pyvenv.cfg"), ""),
        (lambda venv: (venv / "pyvenv.cfg").write_bytes(b"\0" * 100), ""),
    ],
    ids=["no interpreter", "FIFO", "zeros"],
)
def test_a_damaged_venv_is_its_own_problem(tmp_path: Path, damage: Any, words: str) -> None:
    broken = small_wheels.make_venv(tmp_path / "broken")
    sound = small_wheels.make_venv(tmp_path / "sound", "nvidia-nvtx")
    damage(broken)

    found = examine_all({**OPTIONS, "discover": [str(tmp_path)]})

    assert found.venvs[str(sound)]["verdict"] == "ok"
    assert {problem["venv"] for problem in found.problems} <= {str(broken)}
    if words:
        (problem,) = found.problems
        assert (problem["kind"], problem["severity"]) == ("environment-malformed", "error")
        assert words in problem["message"]
        assert set(found.venvs[str(broken)]) == set(found.venvs[str(sound)])
        assert found.summary.startswith(f"1 of 2 virtual environments have problems: {broken}: error: ")


def test_the_summary_names_each_venv_with_a_problem(tmp_path: Path) -> None:
    broken = [bare_venv(tmp_path / f"v{number}") for number in range(8)]

    summary = examine_all({**OPTIONS, "discover": [str(tmp_path)]}).summary

    assert summary.startswith(f"8 of 8 virtual environments have problems: {broken[0]}: error: ")
    assert summary.endswith(f"; also {', '.join(broken[1:6])} and 2 more")


def test_a_name_of_without_that_is_not_there_is_said(tmp_path: Path) -> None:
    venv = small_wheels.make_venv(tmp_path / "venv", "nvidia-nvtx")
    found = examine_all({**OPTIONS, "venv": str(venv), "imports": [], "without": ["nvidia-nvtx", "nvidia_foo"]})
    assert found.notes == ["nvidia-foo is not installed: without: nothing would be uninstalled by that name"]


@pytest.mark.parametrize(("imports", "verdict"), [(None, "ok"), (["torch"], "error")])
def test_torch_is_missed_only_where_somebody_names_it(tmp_path: Path, imports: list[str] | None, verdict: str) -> None:
    venv = small_wheels.make_venv(tmp_path / "venv", "nvidia-nvtx")
    found = examine_all({**OPTIONS, "venv": str(venv), "imports": imports})
    assert found.venvs[str(venv)]["verdict"] == verdict


def test_an_unowned_fifo_inside_a_package_holds_nobody_up(tmp_path: Path) -> None:
    venv = small_wheels.make_venv(tmp_path / "venv", "torch-memory-saver")
    pipe = small_wheels.site_packages(venv) / "torch_memory_saver/extra.so"
    os.mkfifo(pipe)

    facts = examine_all({**OPTIONS, "venv": str(venv), "imports": []}).venvs[str(venv)]

    assert [(o["path"], o["sha256"]) for o in facts["overlays"]] == [(str(pipe), None)]


def test_nothing_found_is_no_failure(tmp_path: Path) -> None:
    found = examine_all({**OPTIONS, "discover": [str(tmp_path)]})

    assert (found.venvs, found.problems, found.summary) == ({}, [], "no virtual environment found")
