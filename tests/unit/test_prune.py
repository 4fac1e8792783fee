# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Old generations go; what is in use, or can be gone back to, stays."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.generation_site import Site

from ansible_collections.gpufleet.dflash.plugins.module_utils import _build, _release
from ansible_collections.gpufleet.dflash.plugins.module_utils._recipe import GenerationError
from ansible_collections.gpufleet.dflash.plugins.module_utils._uv import UV_VERSION

UNIT = "[Service]\nEnvironment=DFLASH_RELEASE=@release@\n"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    units = tmp_path / "units"
    units.mkdir()
    monkeypatch.setattr(_release, "UNIT_FOLDER", str(units))
    return Site(tmp_path)


@pytest.fixture
def four(site: Site) -> list[str]:
    """The paths of four generations, oldest first."""
    return [site.build(overlays=[{"dest": "number.txt", "content": str(n)}])["path"] for n in range(4)]


def absent(site: Site, check_mode: bool = False, **options: Any) -> dict[str, Any]:
    wanted = {"root": str(site.root), "generation": None, "keep": None, **options}
    return _build.absent(wanted, check_mode, lambda line: None)


def names(rows: list[dict[str, str]]) -> list[str]:
    return [row["path"] for row in rows]


def stage(site: Site, generation: str, *events: str, name: str = "qwen3", installed: bool = False) -> str:
    """Stage a release of a generation, with a history of events."""
    instance = _release.Instance.named(str(site.root), name)
    release = _release.make_release(UNIT, generation, "llama_cpp", {"url": "http://127.0.0.1:1", "protocol": "x"})
    _release.stage(instance, release)
    with open(instance.history_path, "a", encoding="utf-8") as stream:
        for event in events:
            stream.write(json.dumps({"event": event, "release": release.id}) + "\n")
    if installed:
        Path(instance.unit_path).write_text(release.unit)
    return instance.release_folder(release.id)


def test_the_newest_stay(site: Site, four: list[str]) -> None:
    plan = absent(site, check_mode=True, keep=2)
    assert (plan["changed"], names(plan["removed"]), names(plan["kept"])) == (True, four[:2], four[2:])
    assert all(map(os.path.isdir, four))
    assert absent(site, keep=2) == plan
    assert [os.path.isdir(path) for path in four] == [False, False, True, True]
    again = absent(site, keep=2)
    assert (again["changed"], again["removed"], names(again["kept"])) == (False, [], four[2:])


def test_what_runs_is_staged_or_can_be_gone_back_to_stays(site: Site, four: list[str]) -> None:
    stage(site, four[0], "activating", "verified", installed=True)
    stage(site, four[1], name="other")
    stage(site, four[2], "activating", "verified", name="third")
    done = absent(site, keep=1)
    whys = {row["path"]: row["why"] for row in done["kept"]}
    assert done["removed"] == []
    assert "qwen3 runs it" in whys[four[0]]
    assert "staged for other" in whys[four[1]]
    assert "third can go back to it" in whys[four[2]]
    assert whys[four[3]] == "it is one of the 1 newest"


def test_only_so_many_releases_can_be_gone_back_to(site: Site, four: list[str]) -> None:
    folders = [stage(site, path, "activating", "verified") for path in four[:3]]
    assert names(absent(site, keep=2)["removed"]) == four[:1]
    assert [os.path.isdir(folder) for folder in folders] == [False, True, True], "its release goes with a generation"


def test_a_release_that_failed_keeps_nothing(site: Site, four: list[str]) -> None:
    folder = stage(site, four[0], "activating", "failed")
    stage(site, four[1], "activating")
    done = absent(site, keep=0)
    assert names(done["removed"]) == [four[0], four[2], four[3]]
    assert "was being switched to it" in done["kept"][0]["why"]
    assert not os.path.exists(folder)


def test_a_running_process_keeps_its_generation(site: Site, four: list[str]) -> None:
    command = [f"{four[0]}/bin/python", "-c", "input()"]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE) as process,
        subprocess.Popen(["sleep", "60"], cwd=four[1]) as other,
    ):
        done = absent(site, keep=0)
        with pytest.raises(GenerationError, match=f"in use: {four[0]}: a process runs from it: PID {process.pid} "):
            absent(site, generation=four[0])
        process.kill()
        other.kill()
    assert names(done["removed"]) == four[2:]
    assert f"PID {other.pid} " in done["kept"][1]["why"]
    assert os.path.exists(command[0])


def test_one_generation_goes_by_name_or_path(site: Site, four: list[str]) -> None:
    assert names(absent(site, check_mode=True, generation=os.path.basename(four[1]))["removed"]) == [four[1]]
    assert absent(site, generation=four[1])["changed"]
    assert [os.path.isdir(path) for path in four] == [True, False, True, True]
    assert not absent(site, generation=four[1])["changed"]


@pytest.mark.parametrize("place", ["/etc", "cpython-311-xyz", "../cpython-311-0123456789abcdef", ".", ""])
def test_nothing_but_a_generation_is_removed(site: Site, four: list[str], place: str) -> None:
    with pytest.raises(GenerationError, match="not a generation"):
        absent(site, generation=place)
    assert all(map(os.path.isdir, four))


def test_what_is_installed_is_not_removed_by_name(site: Site, four: list[str]) -> None:
    stage(site, four[0], installed=True)
    with pytest.raises(GenerationError, match="in use: .*qwen3 runs it"):
        absent(site, generation=four[0])


def test_other_folders_and_links_there_are_left_alone(site: Site, four: list[str], tmp_path: Path) -> None:
    (site.root / "venvs" / "mine").mkdir()
    kept = tmp_path / "kept"
    kept.mkdir()
    link = site.root / "venvs" / "cpython-311-0123456789abcdef"
    link.symlink_to(kept)
    half = site.root / "venvs" / "cpython-311-0123456789abcdee"
    (half / "lib").mkdir(parents=True)
    done = absent(site, keep=4)
    assert {row["path"]: row["why"] for row in done["removed"]} == {
        str(half): "its build was interrupted",
        str(link): "its build was interrupted",
    }
    assert (site.root / "venvs" / "mine").exists()
    assert kept.exists()
    assert not link.is_symlink()


def test_a_release_that_cannot_be_read_keeps_everything(site: Site, four: list[str]) -> None:
    folder = Path(stage(site, four[0], "verified"))
    (folder / "release.json").write_text("{")
    done = absent(site, keep=0)
    assert done["removed"] == []
    assert all("release.json" in row["why"] for row in done["kept"])


def test_a_removal_that_was_cut_off_is_gone_on_with(site: Site, four: list[str]) -> None:
    aside = site.root / "venvs" / f".removed-{os.path.basename(four[0])}"
    os.rename(four[0], aside)
    assert absent(site, keep=4)["changed"]
    assert not aside.exists()
    assert site.build(overlays=[{"dest": "number.txt", "content": "0"}])["changed"]


def test_the_cache_keeps_what_a_generation_has_and_nothing_else(site: Site) -> None:
    shared, gone = site.lock, site.index.add("big-thing", "1.0", {"big.py": "#" * 100_000})
    newer = site.index.add("big-thing", "2.0", {"big.py": "#" * 100_001})
    site.build(lock_content=shared + gone)
    kept = site.build(lock_content=shared + newer)
    uv = site.root / "tools" / f"uv-{UV_VERSION}" / "bin" / "uv"
    uv.parent.mkdir(parents=True)
    uv.symlink_to(site.options()["uv"])
    cached = [path.stat().st_size for path in (site.root / "cache").rglob("big.py")]
    assert sorted(cached) == [100_000, 100_001]
    absent(site, keep=1)
    assert [path.stat().st_size for path in (site.root / "cache").rglob("big.py")] == [100_001]
    third = site.build(lock_content=shared + newer, overlays=[{"dest": "x.txt", "content": "x"}])
    again = site.build(lock_content=shared + gone)
    one, other = (next(Path(built["path"]).rglob("big.py")) for built in (kept, third))
    assert one.stat().st_ino == other.stat().st_ino, "the cache still serves what is kept"
    assert again["changed"]


@pytest.mark.parametrize("place", ["venvs", "instances"])
def test_what_stands_in_the_way_is_named(tmp_path: Path, place: str) -> None:
    site = Site(tmp_path)
    (site.root / "venvs" / f"cpython-311-{0:016}").mkdir(parents=True)
    if place == "venvs":
        (site.root / "venvs" / f"cpython-311-{0:016}").rmdir()
        (site.root / "venvs").rmdir()
    (site.root / place).write_text("")
    with pytest.raises(GenerationError, match=f"cannot be told what is there: .*/{place}: Not a directory"):
        absent(site, keep=1)


def test_what_is_being_switched_to_or_from_stays(site: Site, four: list[str]) -> None:
    stage(site, four[0], "activating", "verified")
    stage(site, four[1], "activating", "verified")
    stage(site, four[2], "activating", "verified", installed=True)
    assert names(absent(site, check_mode=True, keep=0)["removed"]) == [four[0], four[1], four[3]]
    stage(site, four[0], "activating")
    done = absent(site, keep=0)
    assert names(done["removed"]) == [four[3]], "the old release again, and what it may have to go back to"


def test_a_generation_that_a_unit_names_stays_whatever_became_of_its_release(site: Site, four: list[str]) -> None:
    unit = f"[Service]\nExecStart=/link/venvs/{os.path.basename(four[0])}/x\n"
    Path(_release.UNIT_FOLDER, "elsewhere.service").write_text(unit)
    Path(_release.UNIT_FOLDER, "broken.service").mkdir()
    done = absent(site, keep=1)
    assert names(done["removed"]) == four[1:3]
    assert done["kept"][0]["why"] == "elsewhere.service names it"


def test_a_release_that_came_by_another_path_keeps_its_generation(site: Site, four: list[str], tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(site.root)
    stage(site, four[0].replace(str(site.root), f"{tmp_path}/link"))
    assert names(absent(site, keep=1)["removed"]) == four[1:3]


def test_a_switch_that_begins_during_a_removal_keeps_its_generation(
    site: Site, four: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = stage(site, four[0], "activating", "failed")
    rename = os.rename

    def begun(source: str, place: str) -> None:
        rename(source, place)
        if source == four[0]:
            stage(site, four[0], "activating")

    monkeypatch.setattr(os, "rename", begun)
    done = absent(site, keep=1)
    assert names(done["removed"]) == four[1:3]
    assert "was being switched to it" in done["kept"][-1]["why"]
    assert os.path.isdir(four[0])
    assert os.path.isdir(folder)
