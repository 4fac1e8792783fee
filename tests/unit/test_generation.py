# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Generations built by the real uv from wheels made for the test."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.generation_site import UV, Site

from ansible_collections.gpufleet.dflash.plugins.module_utils import _build
from ansible_collections.gpufleet.dflash.plugins.module_utils._facts import Request, gather, result
from ansible_collections.gpufleet.dflash.plugins.module_utils._generation import build
from ansible_collections.gpufleet.dflash.plugins.module_utils._lock import read_lock
from ansible_collections.gpufleet.dflash.plugins.module_utils._manifest import read_manifest
from ansible_collections.gpufleet.dflash.plugins.module_utils._recipe import (
    GenerationError,
    inspect_interpreter,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._uv import Source, installer_environment
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheel_store import gathered


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_lock_becomes_a_venv_that_imports_what_it_names(site: Site) -> None:
    result = site.build()
    assert result["changed"]
    assert result["manifest"]["distributions"] == {"first-thing": "1.0", "second-thing": "2.0"}
    code = "import first_thing, second_thing; print(first_thing.VALUE + second_thing.VALUE)"
    answer = subprocess.run([f"{result['path']}/bin/python", "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "3\n"


def test_modules_are_byte_compiled_so_that_no_start_has_to(site: Site) -> None:
    packages = Path(site.build()["site_packages"])
    assert list(packages.glob("__pycache__/first_thing.*.pyc"))
    assert list(packages.glob("second_thing/__pycache__/__init__.*.pyc"))


def test_building_twice_is_building_once(site: Site) -> None:
    first = site.build()
    before = {path: path.stat().st_mtime_ns for path in Path(first["path"]).rglob("*")}
    second = site.build()
    assert not second["changed"]
    assert second["manifest"] == first["manifest"]
    assert before == {path: path.stat().st_mtime_ns for path in Path(first["path"]).rglob("*")}


def test_a_second_generation_shares_its_files_with_the_first(site: Site) -> None:
    first = Path(site.build()["site_packages"], "first_thing.py")
    site.lock += site.index.add("third-thing", "3.0", {"third_thing.py": ""})
    second = Path(site.build()["site_packages"], "first_thing.py")
    assert first != second
    assert first.stat().st_ino == second.stat().st_ino


def test_a_second_generation_shares_the_byte_code_of_the_same_sources_and_compiles_the_rest(site: Site) -> None:
    first = Path(site.build()["site_packages"])
    lock = site.lock + site.index.add("third-thing", "3.0", {"third_thing.py": "VALUE = 3\n"})
    overlay = {"dest": "second_thing/__init__.py", "content": "VALUE = 20\n"}
    second = Path(site.build(lock_content=lock, overlays=[overlay])["site_packages"])
    tag = sys.implementation.cache_tag

    def inode(packages: Path, name: str) -> int:
        return (packages / name).stat().st_ino

    shared = f"__pycache__/first_thing.{tag}.pyc"
    patched = f"second_thing/__pycache__/__init__.{tag}.pyc"
    assert inode(first, shared) == inode(second, shared)
    assert inode(first, patched) != inode(second, patched)
    assert (second / f"__pycache__/third_thing.{tag}.pyc").exists()
    code = "import first_thing, second_thing, third_thing as t; print(second_thing.VALUE, first_thing.__cached__)"
    python = second.parents[2] / "bin" / "python"
    answer = subprocess.run([python, "-B", "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["20", str(second / shared)]
    old = subprocess.run(
        [first.parents[2] / "bin" / "python", "-B", "-c", "import second_thing; print(second_thing.VALUE)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert old.stdout == "2\n"


def test_the_plan_is_what_the_build_then_does(site: Site) -> None:
    plan = site.plan()
    assert plan["changed"]
    assert not site.root.exists(), "planning writes nothing"
    result = site.build()
    assert (plan["id"], plan["path"], plan["site_packages"]) == (
        result["id"],
        result["path"],
        result["site_packages"],
    )
    assert {name: version for name, version, _marker in plan["requirements"]} == result["manifest"]["distributions"]
    after = site.plan()
    assert not after["changed"]
    assert after["before"]["id"] == result["id"]


@pytest.mark.parametrize("rest", ["folder", "file", "link"])
def test_what_an_interrupted_build_left_is_built_anew(site: Site, rest: str, tmp_path: Path) -> None:
    path = Path(site.recipe().path)
    path.parent.mkdir(parents=True)
    kept = tmp_path / "kept"
    kept.mkdir()
    if rest == "folder":
        (path / "lib").mkdir(parents=True)
        (path / "lib" / "half").write_text("half")
    elif rest == "file":
        path.write_text("half")
    else:
        path.symlink_to(kept)
    site.build()
    assert read_manifest(str(path))
    assert not (path / "lib" / "half").exists()
    assert kept.exists()


def _build_and_die(options: dict[str, Any], last_words: str) -> None:
    def progress(line: str) -> None:
        if last_words in line:
            os.kill(os.getpid(), signal.SIGKILL)

    _build.run(_build.make_recipe(options), options, progress)


@pytest.mark.parametrize("last_words", ["making the venv", "Resolved", "Installed", "Bytecode compiled"])
def test_a_build_that_is_killed_leaves_nothing_that_looks_complete(site: Site, last_words: str) -> None:
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_build_and_die, args=(site.options(), last_words))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert read_manifest(site.recipe().path) is None
    assert site.build()["changed"]
    assert read_manifest(site.recipe().path)


def _build_and_report(options: dict[str, Any], queue: Any) -> None:
    said: list[str] = []
    result = _build.run(_build.make_recipe(options), options, said.append)
    queue.put((result["manifest"]["created"], any(line.startswith("waiting for the run that PID") for line in said)))


def test_two_runs_at_once_build_once(site: Site) -> None:
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    processes = [context.Process(target=_build_and_report, args=(site.options(), queue)) for _ in range(2)]
    for process in processes:
        process.start()
    answers = [queue.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(60)
    assert len({created for created, _waited in answers}) == 1
    assert sorted(waited for _created, waited in answers) == [False, True]


def test_a_wrong_hash_is_refused_and_leaves_nothing(site: Site) -> None:
    site.lock = site.lock.replace("first-thing==1.0 --hash=sha256:", "first-thing==1.0 --hash=sha256:")[:-65] + "0" * 64
    with pytest.raises(GenerationError, match="(?i)hash"):
        site.build()
    assert not os.path.lexists(site.recipe().path)


def test_a_version_that_the_index_lacks_is_named(site: Site) -> None:
    site.lock = site.lock.replace("second-thing==2.0", "second-thing==2.1")
    with pytest.raises(GenerationError, match="second-thing==2.1"):
        site.build()
    assert not os.path.lexists(site.recipe().path)


def test_an_entry_for_another_platform_is_not_installed_and_not_missed(site: Site) -> None:
    elsewhere = site.index.add("third-thing", "3.0", {"third_thing.py": ""})
    site.lock += elsewhere.replace("3.0 ", "3.0 ; sys_platform == 'win32' ")
    assert "third-thing" not in site.build()["manifest"]["distributions"]


def test_an_overlay_replaces_a_file_in_this_generation_alone(site: Site) -> None:
    plain = Path(site.build()["site_packages"], "first_thing.py")
    overlay = {"dest": "first_thing.py", "content": "VALUE = 10\n"}
    patched = site.build(overlays=[overlay])
    assert Path(patched["site_packages"], "first_thing.py").read_text() == "VALUE = 10\n"
    assert plain.read_text() == "VALUE = 1\n", "the file is hard-linked to the cache and to other generations"
    code = "import first_thing; print(first_thing.VALUE)"
    answer = subprocess.run([f"{patched['path']}/bin/python", "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "10\n"
    assert list(patched["manifest"]["overlays"]) == ["first_thing.py"]


@pytest.mark.parametrize(
    ("overlays", "words"),
    [
        ([{"dest": "../outside.py", "content": ""}], "below site-packages"),
        ([{"dest": "/etc/passwd", "content": ""}], "below site-packages"),
        (
            [{"dest": "x.py", "content": ""}, {"dest": "./x.py", "content": ""}],
            "two overlays have one dest: x.py",
        ),
        ([{"dest": "broken.py", "content": "def ("}], "does not compile: broken.py"),
    ],
    ids=["upwards", "absolute", "twice", "syntax"],
)
def test_an_overlay_that_cannot_be_laid_is_refused(site: Site, overlays: list[dict[str, str]], words: str) -> None:
    with pytest.raises(GenerationError, match=words):
        site.build(overlays=overlays)
    assert not list(site.root.glob("venvs/cpython*"))


def test_the_name_changes_with_each_input_and_with_nothing_else(site: Site, tmp_path: Path) -> None:
    plain = site.recipe().id
    assert site.recipe(lock_content="# a comment\n" + site.lock).id == plain
    assert site.recipe(index_url="https://elsewhere.invalid/").id == plain, "hashes say what it is, not where from"
    other_lock = site.lock + site.index.add("third-thing", "3.0", {})
    other_overlay = [{"dest": "x.py", "content": "1"}]
    names = {
        plain,
        site.recipe(lock_content=other_lock).id,
        site.recipe(overlays=other_overlay).id,
        site.recipe(overlays=[{"dest": "x.py", "content": "2"}]).id,
    }
    assert len(names) == 4


def test_credentials_of_an_index_are_in_no_error(site: Site) -> None:
    said: list[str] = []
    options = site.options(index_url="http://robot:s3@cret@127.0.0.1:9/tok3n/simple")
    with pytest.raises(GenerationError) as caught:
        _build.run(_build.make_recipe(options), options, said.append)
    told = str(caught.value) + "".join(said)
    assert "<index_url>" in told
    for secret in ("s3", "cret", "robot", "tok3n"):
        assert secret not in told


@pytest.mark.parametrize(
    ("python", "words"),
    [
        ("/nowhere/python", "cannot be run: /nowhere/python"),
        ("/bin/true", "not a usable Python interpreter: /bin/true"),
    ],
)
def test_an_interpreter_that_is_none_is_named(python: str, words: str) -> None:
    with pytest.raises(GenerationError, match=words):
        inspect_interpreter(python)


@pytest.mark.parametrize("content", ["", '{"id": ', "[]", '{"id": "another"}', "[" * 100_000, None, "fifo"])
def test_a_manifest_that_cannot_be_used_is_named_and_its_folder_left_alone(site: Site, content: str | None) -> None:
    manifest = Path(site.build()["path"], ".dflash", "generation.json")
    if content is None:
        manifest.unlink()
        manifest.mkdir()
    elif content == "fifo":
        manifest.unlink()
        os.mkfifo(manifest)
    else:
        manifest.write_text(content)
    with pytest.raises(GenerationError, match="remove it and deploy again"):
        site.build()
    assert Path(site.recipe().path, "bin", "python").exists()


def test_an_odd_manifest_of_another_folder_is_passed_over(site: Site) -> None:
    odd = site.root / "venvs" / "odd" / ".dflash"
    odd.mkdir(parents=True)
    (odd / "generation.json").write_text('{"id": "odd"}')
    assert site.plan()["before"] is None
    assert site.build()["changed"]


def test_a_folder_that_a_process_runs_from_is_not_removed(site: Site) -> None:
    path = Path(site.build()["path"])
    (path / ".dflash" / "generation.json").unlink()
    with subprocess.Popen([path / "bin" / "python", "-c", "input()"], stdin=subprocess.PIPE) as process:
        with pytest.raises(GenerationError, match=f"a process runs from .*PID {process.pid} "):
            site.build()
        process.kill()
    assert (path / "bin" / "python").exists()
    assert site.build()["changed"]


def test_what_is_installed_is_the_lock_as_it_was_read(site: Site) -> None:
    built = site.build(lock_content=f"# https://user:secret@index.invalid\n{site.lock}")
    kept = Path(built["path"], ".dflash", "lock.txt").read_text()
    assert "secret" not in kept
    assert read_lock(kept) == site.recipe().lock


def test_a_root_where_nothing_can_be_written_is_one_clear_error(site: Site, tmp_path: Path) -> None:
    occupied = tmp_path / "occupied"
    occupied.write_text("")
    options = site.options(root=str(occupied))
    recipe = _build.make_recipe(options)
    with pytest.raises(GenerationError, match=f"cannot be built: {occupied}"):
        build(recipe, Source({}, UV), lambda line: None)


def facts_of(path: str, imports: list[str]) -> dict[str, Any]:
    gathered = gather(Request(venv=path, imports=imports))
    return result(gathered, "summary")


def test_a_declared_overlay_is_no_problem_and_a_later_patch_is_one(site: Site) -> None:
    overlays = [
        {"dest": "first_thing.py", "content": "VALUE = 10\n"},
        {"dest": "added.py", "content": "X = 1\n"},
    ]
    built = site.build(overlays=overlays)
    facts = facts_of(built["path"], ["first_thing"])
    assert facts["problems"] == []
    assert [(Path(row["path"]).name, row["change"], row["declared"]) for row in facts["overlays"]] == [
        ("added.py", "added", True),
        ("first_thing.py", "altered", True),
    ]
    Path(built["site_packages"], "first_thing.py").write_text("VALUE = 11\n")
    (problem,) = facts_of(built["path"], ["first_thing"])["problems"]
    assert problem["kind"] == "altered-file"
    assert "first_thing.py" in problem["message"]


@pytest.mark.parametrize("root", ["relative", "/with:colon", "/with\nline", ""])
def test_a_root_that_a_unit_cannot_name_is_refused(site: Site, root: str) -> None:
    with pytest.raises(GenerationError, match="root is an absolute path"):
        site.recipe(root=root)


def test_a_root_behind_a_link_is_built_where_it_really_is(site: Site, tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "er")
    assert site.build(root=str(tmp_path / "link"))["path"].startswith(str(tmp_path / "deep" / "er"))


@pytest.mark.parametrize("name", ["wheel house", "a,b", "100%", "%20", "plain"])
def test_a_wheelhouse_may_be_called_anything(site: Site, tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    for wheel in site.index.folder.glob("*/*.whl"):
        shutil.copy(wheel, folder)
    built = site.build(wheelhouse=str(folder), no_index=True, index_url=None)
    assert built["manifest"]["distributions"] == {"first-thing": "1.0", "second-thing": "2.0"}
    environment = installer_environment(str(tmp_path / "cache"), wheelhouses=[str(folder)], no_index=True)
    command = [sys.executable, "-m", "pip", "download", "-q", "-d", str(tmp_path / "got"), "first-thing"]
    subprocess.run(command, env=environment, check=True)


def test_two_runs_of_one_lock_leave_each_other_alone(site: Site) -> None:
    wheel = next(site.index.folder.glob("first-thing/*.whl"), Path())
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    place = site.root / "wheels" / digest
    place.mkdir(parents=True)
    shutil.copy(wheel, place)
    left = site.root / "wheels" / ".for-killed"
    left.mkdir()
    with gathered(str(site.root), "x", [f"sha256:{digest}"]) as one:
        with gathered(str(site.root), "x", [f"sha256:{digest}"]) as other:
            assert os.listdir(one) == os.listdir(other) == [wheel.name]
        assert os.listdir(one) == [wheel.name]
    assert os.listdir(site.root / "wheels") == [digest]
