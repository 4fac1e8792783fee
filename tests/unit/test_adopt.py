# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Generations that start from a venv that is there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import small_wheels
from support.generation_site import Site

from ansible_collections.gpufleet.dflash.plugins.module_utils import _adopt_copy
from ansible_collections.gpufleet.dflash.plugins.module_utils._adopt import read_base
from ansible_collections.gpufleet.dflash.plugins.module_utils._facts import Request, gather, result
from ansible_collections.gpufleet.dflash.plugins.module_utils._recipe import GenerationError

TOOL = "first_thing-1.0.dist-info/entry_points.txt"


def snapshot(folder: Path) -> dict[str, tuple[int, int, int, str]]:
    """What a change of a file of a venv, or of what it links to, would show in."""
    found = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        found[str(path)] = (
            status.st_mtime_ns,
            status.st_ino,
            status.st_size,
            os.readlink(path) if path.is_symlink() else "",
        )
    return found


def facts_of(path: Path, **request: Any) -> dict[str, Any]:
    """The facts of a venv without its own path, and without the fixes: a generation is never repaired in place."""

    def neutral(value: Any) -> Any:
        if isinstance(value, str):
            return value.replace(str(path), "@venv@")
        if isinstance(value, dict):
            return {neutral(key): neutral(item) for key, item in value.items() if key != "fix"}
        if isinstance(value, (list, tuple)):
            return [neutral(item) for item in value]
        return value

    found: dict[str, Any] = neutral(result(gather(Request(venv=str(path), **request)), "full"))
    return found


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def base(site: Site, tmp_path: Path) -> Path:
    """A venv with two distributions, a console script, a patched source file and one that was added."""
    site.index = type(site.index)(tmp_path / "tools")
    entry = "[console_scripts]\nfirst-tool = first_thing:main\n"
    source = "import sys\nVALUE = 1\ndef main():\n    print(sys.prefix)\n"
    site.lock = site.index.add("first-thing", "1.0", {"first_thing.py": source, TOOL: entry})
    site.lock += site.index.add("second-thing", "2.0", {"second_thing/__init__.py": "VALUE = 2\n"})
    return make_base(site, tmp_path / "base venv")


def make_base(site: Site, path: Path, *names: str) -> Path:
    env = {**os.environ, "UV_DEFAULT_INDEX": site.index.url, "UV_CACHE_DIR": str(path.parent / "cache")}
    subprocess.run([small_wheels.uv(), "venv", "-q", "-p", sys.executable, path], check=True, env=env)
    wanted = names or ("first-thing", "second-thing")
    for name in wanted:
        command = [small_wheels.uv(), "pip", "install", "-q", "--no-deps", "-p", path / "bin" / "python", name]
        subprocess.run(command, check=True, env=env)
    return path


def packages(venv: str | Path) -> Path:
    (found,) = Path(venv).glob("lib/python3.*/site-packages")
    return found


def adopt(site: Site, base: Path, lock: str | None = None, **changes: Any) -> dict[str, Any]:
    changes = {"base": str(base), "lock_content": lock, "python": None, **changes}
    return site.build(**changes)


def test_an_adopted_venv_is_a_copy_that_stands_on_its_own(site: Site, base: Path) -> None:
    before = snapshot(base)
    built = adopt(site, base)
    assert snapshot(base) == before
    assert built["manifest"]["distributions"] == {"first-thing": "1.0", "second-thing": "2.0"}
    shutil.rmtree(base)
    tool = Path(built["path"], "bin", "first-tool")
    answer = subprocess.run([tool], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == built["path"]
    left = subprocess.run(
        ["grep", "-rlF", str(base), built["path"], "--exclude-dir=.dflash"], capture_output=True, text=True
    )
    assert [path for path in left.stdout.splitlines() if not path.endswith(".pyc")] == []


def test_the_copy_shares_no_inode_with_a_venv_that_may_change(site: Site, base: Path) -> None:
    built = adopt(site, base)
    copied = packages(built["path"]) / "first_thing.py"
    assert copied.stat().st_ino != (packages(base) / "first_thing.py").stat().st_ino
    with (packages(base) / "first_thing.py").open("a") as stream:
        stream.write("# edited in place\n")
    assert "edited" not in copied.read_text()


def test_a_generation_as_a_base_is_linked_because_it_never_changes(site: Site, base: Path) -> None:
    first = adopt(site, base)
    overlay = {"dest": "second_thing/more.py", "content": "X = 1\n"}
    second = adopt(site, Path(first["path"]), overlays=[overlay])
    one, other = (packages(built["path"]) / "second_thing" / "__init__.py" for built in (first, second))
    assert one.stat().st_ino == other.stat().st_ino
    assert not (packages(first["path"]) / "second_thing" / "more.py").exists()
    tool = Path(second["path"], "bin", "first-tool")
    assert subprocess.run([tool], capture_output=True, text=True, check=True).stdout.strip() == second["path"]
    third = adopt(site, Path(second["path"]))
    assert third["manifest"]["overlays"] == second["manifest"]["overlays"]


def test_facts_of_an_adopted_venv_are_those_of_its_base(site: Site, tmp_path: Path) -> None:
    base = small_wheels.make_venv(tmp_path / "real", "nvidia-cuda-runtime", "nvidia-cufile", "nvidia-nvtx-cu12")
    (small_wheels.site_packages(base) / "nvidia" / "nvtx" / "include" / "nvToolsExt.h").unlink()
    request: dict[str, Any] = {"imports": [], "load": ["libcufile.so.0", "libcudart.so.13"]}
    built = adopt(site, base)
    wanted, found = facts_of(base, **request), facts_of(Path(built["path"]), **request)
    assert wanted["distributions"]
    assert found == wanted


def test_files_that_were_patched_or_added_are_the_bases_own_and_stay(site: Site, base: Path) -> None:
    (packages(base) / "first_thing.py").write_text("VALUE = 10\n")
    (packages(base) / "second_thing" / "added.py").write_text("X = 1\n")
    built = adopt(site, base, site.lock)
    assert (packages(built["path"]) / "first_thing.py").read_text() == "VALUE = 10\n"
    assert (packages(built["path"]) / "second_thing" / "added.py").read_text() == "X = 1\n"


def test_a_lock_on_top_replaces_and_leaves_out(site: Site, base: Path) -> None:
    (packages(base) / "second_thing" / "left.py").write_text("X = 1\n")
    lock = site.lock.splitlines(keepends=True)[0] + site.index.add("third-thing", "3.0", {"third_thing.py": ""})
    built = adopt(site, base, lock)
    assert built["manifest"]["distributions"] == {"first-thing": "1.0", "third-thing": "3.0"}
    assert built["manifest"]["base"]["removed"] == ["second-thing"]
    assert not (packages(built["path"]) / "second_thing").exists()


def test_another_version_takes_the_place_of_all_files_of_the_old_one(site: Site, base: Path) -> None:
    newer = site.index.add("second-thing", "2.1", {"second_thing/core.py": "VALUE = 2.1\n"})
    built = adopt(site, base, site.lock.splitlines(keepends=True)[0] + newer)
    assert sorted(path.name for path in (packages(built["path"]) / "second_thing").glob("*.py")) == ["core.py"]


def test_a_build_with_a_local_tag_is_not_the_one_without(site: Site, tmp_path: Path) -> None:
    site.index.add("first-thing", "1.0+cu130", {"first_thing.py": "VALUE = 130\n"})
    base = make_base(site, tmp_path / "tagged", "first-thing==1.0+cu130")
    built = adopt(site, base, site.lock.splitlines(keepends=True)[0])
    assert (packages(built["path"]) / "first_thing.py").read_text() == "VALUE = 1\n"


def test_whoever_lost_files_to_another_owner_is_installed_anew(site: Site, tmp_path: Path) -> None:
    old = site.index.add("pair-cu12", "1.0", {"pair/lib.so": "twelve\n", "pair/only12.so": "12\n"})
    new = site.index.add("pair-cu13", "1.0", {"pair/lib.so": "thirteen\n", "pair/only13.so": "13\n"})
    base = make_base(site, tmp_path / "tangled", "pair-cu13", "pair-cu12")
    assert (packages(base) / "pair" / "lib.so").read_text() == "twelve\n"
    built = adopt(site, base, new)
    content = {path.name: path.read_text() for path in (packages(built["path"]) / "pair").iterdir()}
    assert content == {"lib.so": "thirteen\n", "only13.so": "13\n"}
    assert list(built["manifest"]["base"]["reinstalled"]) == ["pair-cu13"]
    assert old.startswith(built["manifest"]["base"]["removed"][0])


def test_code_that_somebody_deleted_is_brought_back(site: Site, base: Path) -> None:
    (packages(base) / "second_thing" / "__init__.py").unlink()
    built = adopt(site, base, site.lock)
    assert built["manifest"]["base"]["reinstalled"] == {"second-thing": "__init__.py is missing"}
    assert (packages(built["path"]) / "second_thing" / "__init__.py").read_text() == "VALUE = 2\n"


def test_the_name_follows_from_the_content_and_not_from_the_place(site: Site, base: Path, tmp_path: Path) -> None:
    plain = site.recipe(base=str(base), lock_content=None, python=None).id
    other = make_base(site, tmp_path / "elsewhere")
    assert site.recipe(base=str(other), lock_content=None, python=None).id == plain
    (packages(other) / "first_thing.py").write_text("VALUE = 7\n")
    patched = site.recipe(base=str(other), lock_content=None, python=None).id
    (packages(base) / "extra.py").write_text("")
    added = site.recipe(base=str(base), lock_content=None, python=None).id
    locked = site.recipe(base=str(base), python=None).id
    assert len({plain, patched, added, locked}) == 4


def test_a_patch_of_the_same_size_gives_another_name(site: Site, base: Path) -> None:
    before = read_base(str(base)).identity
    file = packages(base) / "second_thing" / "__init__.py"
    file.write_text(file.read_text().replace("2", "3"))
    assert read_base(str(base)).identity != before


def test_a_base_that_changes_meanwhile_is_refused(site: Site, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = _adopt_copy._Copier.copy

    def disturbed(self: Any, source: str, place: str) -> None:
        (packages(base) / "late.py").write_text("X = 1\n")
        copy(self, source, place)

    monkeypatch.setattr(_adopt_copy._Copier, "copy", disturbed)
    with pytest.raises(GenerationError, match="changed while it was copied"):
        adopt(site, base)
    assert not list(site.root.glob("venvs/cpython*"))


def test_links_into_the_base_lead_into_the_copy_and_links_out_become_files(
    site: Site, base: Path, tmp_path: Path
) -> None:
    cached = tmp_path / "cached.so"
    cached.write_text("library")
    (packages(base) / "second_thing" / "inside.so").symlink_to(packages(base) / "first_thing.py")
    (packages(base) / "second_thing" / "near.so").symlink_to("__init__.py")
    (packages(base) / "second_thing" / "cached.so").symlink_to(cached)
    folder = packages(adopt(site, base)["path"]) / "second_thing"
    assert os.readlink(folder / "inside.so") == str(folder.parent / "first_thing.py")
    assert os.readlink(folder / "near.so") == "__init__.py"
    assert not (folder / "cached.so").is_symlink()
    assert (folder / "cached.so").read_text() == "library"


@pytest.mark.parametrize(
    ("name", "line"),
    [("own.pth", "{base}/src"), ("__editable___x_finder.py", "MAPPING = {{'x': '{base}/src/x'}}")],
)
def test_a_base_that_imports_from_itself_by_path_is_refused(site: Site, base: Path, name: str, line: str) -> None:
    (packages(base) / name).write_text(line.format(base=base) + "\n")
    with pytest.raises(GenerationError, match=f"imports from itself by its own path: .*{name}"):
        adopt(site, base)


def test_an_editable_installation_elsewhere_is_a_warning(site: Site, base: Path, tmp_path: Path) -> None:
    (tmp_path / "checkout").mkdir()
    (packages(base) / "mine.pth").write_text(f"{tmp_path}/checkout\n")
    plan = site.plan(base=str(base), lock_content=None, python=None)
    (warning,) = plan["advice"]
    assert f"{tmp_path}/checkout" in warning


def test_what_is_no_venv_is_named(site: Site, tmp_path: Path) -> None:
    with pytest.raises(GenerationError, match="the base cannot be used: not a virtual environment"):
        adopt(site, tmp_path)


@pytest.mark.parametrize("kind", ["fifo", "system"])
def test_a_base_that_no_generation_can_hold_is_refused(site: Site, base: Path, kind: str) -> None:
    if kind == "fifo":
        os.mkfifo(packages(base) / "pipe")
    else:
        text = (base / "pyvenv.cfg").read_text().replace("packages = false", "packages = true")
        (base / "pyvenv.cfg").write_text(text)
    with pytest.raises(GenerationError, match="neither a file nor a link|packages of the operating system"):
        adopt(site, base)


def test_the_plan_of_an_adoption_is_what_the_build_does(site: Site, base: Path) -> None:
    options = {"base": str(base), "lock_content": site.lock.splitlines(keepends=True)[0], "python": None}
    plan = site.plan(**options)
    assert plan["removed"] == ["second-thing"]
    assert plan["install"] == []
    assert not site.root.exists()
    assert site.build(**options)["id"] == plan["id"]
    assert not site.plan(**options)["changed"]
    assert not site.build(**options)["changed"]


def test_the_plan_tells_the_overlays_that_a_generation_brings_as_a_base(site: Site, base: Path) -> None:
    first = adopt(site, base, overlays=[{"dest": "patched.py", "content": "X = 1\n"}])
    options = {"base": first["path"], "lock_content": None, "python": None}
    plan = site.plan(**options, overlays=[{"dest": "other.py", "content": "Y = 1\n"}])
    built = site.build(**options, overlays=[{"dest": "other.py", "content": "Y = 1\n"}])
    assert plan["overlays"] == built["manifest"]["overlays"]
    assert sorted(plan["overlays"]) == ["other.py", "patched.py"]


def test_a_copy_keeps_content_and_time_and_no_dangerous_mode(tmp_path: Path) -> None:
    source, place = tmp_path / "source", tmp_path / "place"
    source.write_bytes(os.urandom(300_000))
    source.chmod(0o6777)
    os.utime(source, (1, 2))
    _adopt_copy._Copier(linking=False).copy(str(source), str(place))
    assert place.read_bytes() == source.read_bytes()
    assert (place.stat().st_mode & 0o7777, place.stat().st_mtime) == (0o755, 2)


def test_links_that_leave_the_base_lead_where_they_led(site: Site, base: Path, tmp_path: Path) -> None:
    folder = packages(base) / "second_thing"
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "notes.txt").write_text("shared")
    (folder / "near").symlink_to(os.path.relpath(tmp_path / "shared", folder))
    (folder / "notes.txt").symlink_to(os.path.relpath(tmp_path / "shared" / "notes.txt", folder))
    os.symlink(b"\xff/nowhere", os.fsencode(folder / "odd"))
    copied = packages(adopt(site, base)["path"]) / "second_thing"
    assert os.readlink(copied / "near") == str(tmp_path / "shared")
    assert (copied / "notes.txt").read_text() == "shared"
    assert os.readlink(os.fsencode(copied / "odd")) == b"\xff/nowhere"


def test_a_link_of_somebody_to_a_file_of_somebody_else_stays_a_link(site: Site, base: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("root only")
    secret.chmod(0o600)
    link = packages(base) / "second_thing" / "data.txt"
    link.symlink_to(secret)
    os.lchown(link, 12345, 12345)
    copied = packages(adopt(site, base)["path"]) / "second_thing" / "data.txt"
    assert os.readlink(copied) == str(secret)


def test_a_folder_whose_name_begins_like_the_base_is_another_one(site: Site, base: Path) -> None:
    script = base / "bin" / "tool"
    script.write_text(f"#!{base}/bin/python\n# {base}2/lib {base}-old/x {base}.bak:{base}: '{base}'\n")
    built = adopt(site, base)["path"]
    text = Path(built, "bin", "tool").read_text()
    assert f"# {base}2/lib {base}-old/x {base}.bak:{built}: '{built}'" in text
