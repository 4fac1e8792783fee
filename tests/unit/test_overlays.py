# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Overlays of any kind: texts as they are, libraries by way of the host's store; through Ansible and the real uv."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import ansible_run
from support.generation_site import UV, Site

from ansible_collections.gpufleet.dflash.plugins.module_utils import _build
from ansible_collections.gpufleet.dflash.plugins.module_utils._facts import Request, gather, result
from ansible_collections.gpufleet.dflash.plugins.module_utils._recipe import GenerationError

LIBRARY = "kit/libanswer.so"
ASK = "import ctypes, kit; print(ctypes.CDLL(kit.__path__[0] + '/libanswer.so').answer())"


def library(folder: Path, answer: int, padding: int = 1 << 20) -> Path:
    """A shared object, a megabyte of it random, whose function says ``answer``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "answer.c").write_text(f"int answer(void) {{ return {answer}; }}\n")
    path = folder / "libanswer.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", path, folder / "answer.c"], check=True)
    with open(path, "ab") as stream:
        stream.write(os.urandom(padding))
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Setting:
    """A lock with a library in it, another library for its place, and a root for generations."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.site = Site(folder)
        built = library(folder / "built", 1, 0)
        self.site.lock += self.site.index.add("kit", "1.0", {"kit/__init__.py": "", LIBRARY: built.read_bytes()})
        self.patched = library(folder / "patched", 2)
        self.digest = sha256(self.patched)

    @property
    def stored(self) -> Path:
        return self.site.root / "wheels" / self.digest / "overlay"

    def run(self, *, check: bool = False, **changes: Any) -> dict[str, Any]:
        return self.told(check=check, **changes)[0]

    def told(self, *, check: bool = False, **changes: Any) -> tuple[dict[str, Any], str]:
        given = {
            "root": str(self.site.root),
            "lock_content": self.site.lock,
            "index_url": self.site.index.url,
            "uv": UV,
            "overlays": [{"dest": LIBRARY, "src": str(self.patched)}],
        }
        arguments = {key: value for key, value in {**given, **changes}.items() if value is not None}
        return ansible_run.run("venv_generation", arguments, self.folder / "home", check=check)

    def in_store(self, **changes: Any) -> dict[str, Any]:
        """Options of the module alone, for an overlay that lies in the store."""
        size = self.patched.stat().st_size
        overlays = [{"dest": LIBRARY, "sha256": self.digest, "size": size}]
        return {**self.site.options(overlays=overlays), **changes}


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    (tmp_path / "home").mkdir()
    return Setting(tmp_path)


def build(options: dict[str, Any]) -> dict[str, Any]:
    return _build.run(_build.make_recipe(options), options, lambda line: None)


def test_a_library_is_laid_as_it_is_and_a_second_run_changes_nothing(setting: Setting) -> None:
    plan, foreseen = setting.told(check=True)
    assert plan["changed"] and not setting.site.root.exists()
    done, printed = setting.told()
    assert not done["failed"], done["msg"]
    assert done["id"] == plan["id"]
    for told in (foreseen, printed):
        assert f"+overlay {LIBRARY} sha256:{setting.digest[:16]}" in told
    size = setting.patched.stat().st_size
    assert done["copied"] == {"files": 1, "bytes": size}
    assert "copying 1 of 1 files (1 MB): libanswer.so, 1 of 1 MB" in printed
    laid = Path(done["site_packages"], LIBRARY)
    assert laid.read_bytes() == setting.patched.read_bytes()
    assert (laid.stat().st_mode & 0o7777, laid.stat().st_nlink) == (0o644, 1)
    asked = subprocess.run([f"{done['path']}/bin/python", "-c", ASK], capture_output=True, text=True, check=True)
    assert asked.stdout == "2\n"
    facts = result(gather(Request(venv=done["path"], imports=["kit"], verify="hash")), "summary")
    assert facts["problems"] == []
    assert [(row["change"], row["declared"]) for row in facts["overlays"]] == [("altered", True)]
    again = setting.run()
    assert (again["changed"], again["id"], "copied" in again) == (False, done["id"], False)


def test_the_name_is_that_of_the_content_whichever_way_it_comes(setting: Setting) -> None:
    content = "VALUE = 3\n"
    digest = hashlib.sha256(content.encode()).hexdigest()
    text, stored = (
        _build.make_recipe(setting.site.options(overlays=[{"dest": "x.py", **one}]))
        for one in ({"content": content}, {"sha256": digest})
    )
    assert text.id == stored.id


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbfVALUE = 1\r\nOTHER = 2\r\n",
        "VALUE = 'ä'\n".encode(),
        b"",
        b"VALUE = 1",
        b"\r\n",
        b"#" + b"x" * 300_000,
    ],
    ids=["mark and CR LF", "umlaut", "empty", "no newline", "one line", "long"],
)
def test_a_text_is_laid_byte_for_byte(setting: Setting, content: bytes) -> None:
    source = setting.folder / "source.py"
    source.write_bytes(content)
    overlays = [{"dest": "kit/source.py", "src": str(source)}]
    done = setting.run(overlays=overlays)
    assert not done["failed"], done["msg"]
    assert Path(done["site_packages"], "kit", "source.py").read_bytes() == content
    assert list(Path(done["site_packages"]).glob("kit/__pycache__/source.*.pyc")), "compiled like any other"
    assert not setting.run(overlays=overlays)["changed"]
    assert ("copied" in done) == (len(content) > 1 << 18)


def test_a_copy_goes_on_where_it_stopped(setting: Setting) -> None:
    data = setting.patched.read_bytes()
    setting.stored.parent.mkdir(parents=True)
    (setting.stored.parent / "part").write_bytes(data[: len(data) // 2])
    done = setting.run()
    assert done["copied"] == {"files": 1, "bytes": len(data) - len(data) // 2}
    assert os.listdir(setting.stored.parent) == ["overlay"]
    assert Path(done["site_packages"], LIBRARY).read_bytes() == data


def test_what_is_in_the_store_is_not_sent_again_and_what_is_wrong_there_is(setting: Setting) -> None:
    setting.stored.parent.mkdir(parents=True)
    shutil.copy(setting.patched, setting.stored)
    assert setting.run(check=True)["changed"]
    first = setting.run()
    assert first["copied"] == {"files": 0, "bytes": 0}
    shutil.rmtree(first["path"])
    setting.stored.write_bytes(b"something else")
    second = setting.run()
    assert second["copied"] == {"files": 1, "bytes": setting.patched.stat().st_size}
    assert Path(second["site_packages"], LIBRARY).read_bytes() == setting.patched.read_bytes()


def test_two_places_of_one_content_are_one_copy(setting: Setting) -> None:
    overlays = [{"dest": dest, "src": str(setting.patched)} for dest in (LIBRARY, "kit/part", "other/lib.so.1")]
    done = setting.run(overlays=overlays)
    assert done["copied"]["files"] == 1
    laid = [Path(done["site_packages"], overlay["dest"]) for overlay in overlays]
    assert {path.read_bytes() for path in laid} == {setting.patched.read_bytes()}
    assert len({path.stat().st_ino for path in (*laid, setting.stored)}) == 4


def test_nothing_that_writes_into_the_store_changes_a_generation(setting: Setting) -> None:
    done = setting.run()
    with open(setting.stored, "r+b") as stream:
        stream.write(b"scribble")
    assert sha256(Path(done["site_packages"], LIBRARY)) == setting.digest


@pytest.mark.parametrize("there", [None, b"something else"], ids=["absent", "another"])
def test_without_the_file_the_module_says_one_sentence_and_leaves_nothing(
    setting: Setting, there: bytes | None
) -> None:
    words = f"the file of an overlay is not on the host: {LIBRARY}: {setting.stored}: give it with src"
    if there is not None:
        setting.stored.parent.mkdir(parents=True)
        setting.stored.write_bytes(there)
        words = f"the stored file of an overlay is not what its name says: {setting.stored}"
    with pytest.raises(GenerationError, match=words):
        build(setting.in_store())
    assert not list(setting.site.root.glob("venvs/cpython*"))


@pytest.mark.parametrize(
    ("overlay", "words"),
    [
        ({"sha256": "0" * 63}, "an overlay's sha256 is 64 hexadecimal digits in lower case: x.so: '0"),
        ({"sha256": "A" * 64}, "an overlay's sha256 is 64 hexadecimal digits in lower case"),
        ({"src": "x.so"}, "the file of an overlay is on the controller: x.so: x.so: run the module as a task"),
    ],
    ids=["short", "upper case", "source"],
)
def test_what_the_module_cannot_use_is_refused(setting: Setting, overlay: dict[str, str], words: str) -> None:
    with pytest.raises(GenerationError, match=words):
        build(setting.site.options(overlays=[{"dest": "x.so", **overlay}]))


def test_a_file_that_is_not_there_or_is_none_is_named(setting: Setting) -> None:
    os.mkfifo(setting.folder / "fifo")
    for name, words in (
        ("gone.so", "an overlay is not there"),
        ("fifo", "an overlay cannot be read on the controller"),
    ):
        done = setting.run(overlays=[{"dest": LIBRARY, "src": str(setting.folder / name)}])
        assert done["failed"]
        assert words in done["msg"] and name in done["msg"]


def test_a_pointer_of_git_lfs_is_not_taken_for_the_library(setting: Setting) -> None:
    setting.patched.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{setting.digest}\nsize 9\n")
    done = setting.run()
    assert f"an overlay is a pointer of Git LFS and not the file: {setting.patched}: fetch the files" in done["msg"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "none", place], check=False).returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def test_the_room_for_overlays_is_judged_with_numbers(setting: Setting, small_disk: Path) -> None:
    setting.patched = library(setting.folder / "large", 2, 12 << 20)
    for check in (True, False):
        done = setting.run(check=check, root=str(small_disk))
        assert done["failed"]
        assert "takes at least 25 MB, 21 MB are free" in done["msg"], "once in the store, once in the generation"
        assert list(small_disk.iterdir()) == []


def test_what_no_generation_has_any_more_goes_from_the_store(setting: Setting) -> None:
    other = library(setting.folder / "other", 3)
    both = [{"dest": LIBRARY, "src": str(setting.patched)}, {"dest": "kit/lib.so", "src": str(other)}]
    setting.run(overlays=both)
    kept = setting.run(overlays=both[1:])
    assert sorted(os.listdir(setting.site.root / "wheels")) == sorted([setting.digest, sha256(other)])
    arguments = {"root": str(setting.site.root), "state": "absent", "keep": 1}
    assert ansible_run.run("venv_generation", arguments, setting.folder / "home")[0]["changed"]
    assert os.listdir(setting.site.root / "wheels") == [sha256(other)]
    assert sha256(Path(kept["site_packages"], "kit", "lib.so")) == sha256(other)


def test_a_large_library_is_declared_and_told_by_its_hash_when_all_are(setting: Setting) -> None:
    large = library(setting.folder / "large", 2, 17 << 20)
    venv = setting.run(overlays=[{"dest": LIBRARY, "src": str(large)}])["path"]
    for verify, digest in (("size", None), ("hash", sha256(large))):
        facts = result(gather(Request(venv=venv, imports=["kit"], verify=verify)), "summary")
        assert facts["problems"] == []
        assert [(row["declared"], row["sha256"]) for row in facts["overlays"]] == [(True, digest)]


@pytest.mark.parametrize("with_lock", [True, False], ids=["lock", "no lock"])
def test_a_base_brings_its_library_along_and_another_one_leaves_it_alone(setting: Setting, with_lock: bool) -> None:
    base = setting.run()
    again = {"base": base["path"], "lock_content": setting.site.lock if with_lock else None}
    adopted = setting.run(overlays=[{"dest": "kit/more.py", "content": "X = 1\n"}], **again)
    assert not adopted["failed"], adopted["msg"]
    assert sha256(Path(adopted["site_packages"], LIBRARY)) == setting.digest
    third = library(setting.folder / "third", 3)
    laid_over = setting.run(overlays=[{"dest": LIBRARY, "src": str(third)}], **again)
    assert sha256(Path(laid_over["site_packages"], LIBRARY)) == sha256(third)
    assert sha256(Path(base["site_packages"], LIBRARY)) == setting.digest
    for made in (base, adopted, laid_over):
        facts = result(gather(Request(venv=made["path"], imports=["kit"], verify="hash")), "summary")
        assert facts["problems"] == []
        assert all(row["declared"] for row in facts["overlays"])


def test_a_venv_with_a_library_that_somebody_patched_is_a_base_as_well(setting: Setting) -> None:
    base = setting.folder / "base"
    subprocess.run([UV, "venv", "-q", "-p", sys.executable, base], check=True)
    (wheel,) = setting.site.index.folder.glob("kit/*.whl")
    subprocess.run([UV, "pip", "install", "-q", "-p", f"{base}/bin/python", wheel], check=True)
    (place,) = base.glob(f"lib/python*/site-packages/{LIBRARY}")
    os.unlink(place)
    shutil.copy(setting.patched, place)
    other = library(setting.folder / "other", 3)
    adopted = setting.run(base=str(base), lock_content=None, overlays=[{"dest": "kit/lib.so", "src": str(other)}])
    assert sha256(Path(adopted["site_packages"], LIBRARY)) == setting.digest
    assert sha256(Path(adopted["site_packages"], "kit/lib.so")) == sha256(other)
