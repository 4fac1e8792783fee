# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a reference venv is sorted into: the rule for contested files, overlays, and files that may not be read."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail
from support import small_wheels
from support.local_index import LocalIndex

from ansible_collections.gpufleet.dflash.plugins.module_utils._payload import source_of
from ansible_collections.gpufleet.dflash.plugins.module_utils._reference import ReferenceVenvError, read_reference
from ansible_collections.gpufleet.dflash.plugins.module_utils._reference_files import read_parts, wheels_of
from ansible_collections.gpufleet.dflash.plugins.plugin_utils._reference_output import (
    Folder,
    as_yaml,
    checked_path,
    overlay_diff,
)
from ansible_collections.gpufleet.dflash.plugins.plugin_utils._wheel_writer import (
    holds,
    record_of,
    wheel_name,
    write_wheel,
)


class Venv:
    """A venv of wheels made for the test, installed one after the other."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "venv"
        self.index = LocalIndex(folder / "index")
        small_wheels.make_venv(self.path)

    @property
    def site(self) -> Path:
        return small_wheels.site_packages(self.path)

    def install(self, name: str, files: dict[str, str], requires: str = "", version: str = "1.0") -> None:
        """Make a wheel and install it."""
        self.index.add(name, version, files)
        (wheel,) = (self.index.folder / name).glob(f"*-{version}-*.whl")
        small_wheels.run(
            [small_wheels.uv(), "pip", "install", "-q", "--no-deps", "--python", f"{self.path}/bin/python", str(wheel)]
        )
        if requires:
            (metadata,) = self.site.glob(f"{name.replace('-', '_')}-*.dist-info/METADATA")
            text = metadata.read_text() + f"Requires-Dist: {requires}\n"
            metadata.write_text(text)

    def reference(self, **options: Any) -> dict[str, Any]:
        return read_reference(str(self.path), **options).as_dict()


@pytest.fixture
def venv(tmp_path: Path) -> Venv:
    return Venv(tmp_path)


def names(reference: dict[str, Any]) -> list[str]:
    return [row["name"] for row in reference["distributions"]]


SAME = {"kit/__init__.py": "", "kit/common.py": "SAME = True\n"}


def test_a_leftover_without_code_of_its_own_is_left_out(venv: Venv) -> None:
    venv.install("kit-cu11", {**SAME, "kit/core.py": "CUDA = 11\n", "kit/LICENSE": "cu11"})
    venv.install("kit-cu12", {**SAME, "kit/core.py": "CUDA = 12\n"})
    found = venv.reference()
    assert names(found) == ["kit-cu12"]
    (why,) = found["left_out"].values()
    assert why == "no code on the disk is its own, and nothing requires it: what is in their place is of kit-cu12"
    assert found["overlays"] == []


def test_a_leftover_that_something_requires_is_not_left_out_silently(venv: Venv) -> None:
    venv.install("kit-cu11", {**SAME, "kit/core.py": "CUDA = 11\n"})
    venv.install("kit-cu12", {**SAME, "kit/core.py": "CUDA = 12\n"})
    venv.install("user", {"user.py": ""}, requires="kit-cu11>=1")
    with pytest.raises(ReferenceVenvError, match="name kit-cu12 or kit-cu11 in leave_out"):
        venv.reference()
    assert names(venv.reference(leave_out=["kit_cu11"])) == ["kit-cu12", "user"]


def test_neither_is_left_out_when_both_have_code_of_their_own(venv: Venv) -> None:
    venv.install("one", {**SAME, "kit/core.py": "1\n", "kit/one.py": ""})
    venv.install("two", {**SAME, "kit/core.py": "2\n", "kit/two.py": ""})
    with pytest.raises(ReferenceVenvError, match=r"a lock cannot tell whose 1 file such as kit/core.py"):
        venv.reference()
    (overlay,) = venv.reference(contested="overlay")["overlays"]
    assert (overlay["path"], overlay["resembles"]) == ("kit/core.py", "two==1.0 kit/core.py")
    changed = venv.reference(leave_out=["two"])
    assert names(changed) == ["one"]
    assert changed["notes"] == ["changed: kit/core.py will be that of one==1.0, for two==1.0 is left out"]
    with pytest.raises(ReferenceVenvError, match="leave_out names what is not installed: no-such-thing"):
        venv.reference(leave_out=["no-such-thing"])


def test_identical_shared_files_and_mistakes_of_packaging_are_no_contest(venv: Venv) -> None:
    venv.install("one", {**SAME, "kit/one.py": "1\n", "build_backend.py": "1\n", "tests/test_one.py": "1\n"})
    venv.install("two", {**SAME, "kit/two.py": "2\n", "build_backend.py": "2\n", "tests/test_one.py": "2\n"})
    found = venv.reference()
    assert names(found) == ["one", "two"]
    assert found["overlays"] == []


def test_a_gutted_distribution_is_left_out_or_restored(venv: Venv) -> None:
    for name in ("wanted", "forgotten"):
        venv.install(name, {f"{name}/core.py": "X = 1\n"})
        (venv.site / name / "core.py").unlink()
    venv.install("user", {"user.py": ""}, requires="wanted")
    found = venv.reference()
    assert names(found) == ["user", "wanted"]
    assert list(found["left_out"]) == ["forgotten==1.0"]
    assert "restored: 1 file of wanted==1.0 that the reference lacks" in found["notes"]


def test_patches_of_the_same_size_added_files_and_data(venv: Venv) -> None:
    venv.install("engine", {"engine/__init__.py": "", "engine/spec.py": "A = 1\n", "engine/table.json": "[]\n"})
    (venv.site / "engine" / "spec.py").write_text("A = 2\n")
    (venv.site / "engine" / "configs").mkdir()
    (venv.site / "engine" / "configs" / "H200.json").write_text("{}\n")
    (venv.site / "engine" / "link.py").symlink_to("spec.py")
    (venv.site / "startup.pth").write_text("import engine\n")
    # The collection's own, which each generation gets anyway.
    (venv.site / "dflash_sglang_server.py").touch()
    (venv.site / "dflash_llama_cpp_server.py").touch()
    found = venv.reference()
    assert [(row["path"], row["change"], row["distribution"]) for row in found["overlays"]] == [
        ("engine/configs/H200.json", "added", None),
        ("engine/spec.py", "altered", "engine"),
    ]
    assert [note.split(":")[0] for note in found["notes"]] == ["not reproduced", "not reproduced"]
    assert any("startup.pth" in note for note in found["notes"])
    assert [row["path"] for row in venv.reference(verify="size")["overlays"]] == ["engine/configs/H200.json"]


def test_bytes_of_another_wheel_are_recognised(venv: Venv) -> None:
    venv.install("one", {"one/core.py": "ONE = 1\n"})
    venv.install("two", {"two/core.py": "TWO = 2\n"})
    (venv.site / "one" / "core.py").write_text("TWO = 2\n")
    (overlay,) = venv.reference()["overlays"]
    assert overlay["resembles"] == "two==1.0 two/core.py"


# --- what may be read -----------------------------------------------------------------------------------


def test_parts_of_files_come_as_they_are(venv: Venv) -> None:
    content = os.urandom(5000)
    (venv.path / "blob").write_bytes(content)
    parts = read_parts(str(venv.path), [{"path": "blob", "offset": o, "length": 2000} for o in (0, 2000, 4000)])
    assert b"".join(zlib.decompress(base64.b64decode(part)) for part in parts) == content


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "lib/../../secret", "link/secret"])
def test_nothing_outside_the_venv_is_read(venv: Venv, tmp_path: Path, path: str) -> None:
    (tmp_path / "secret").write_text("secret")
    (venv.path / "link").symlink_to(tmp_path)
    with pytest.raises(ReferenceVenvError, match="outside the venv"):
        read_parts(str(venv.path), [{"path": path, "offset": 0, "length": 6}])


def test_a_fifo_and_an_endless_wish_are_errors(venv: Venv) -> None:
    os.mkfifo(venv.path / "fifo")
    with pytest.raises(OSError, match="not a regular file"):
        read_parts(str(venv.path), [{"path": "fifo", "offset": 0, "length": 1}])
    with pytest.raises(ReferenceVenvError, match="ask for less"):
        read_parts(str(venv.path), [{"path": "fifo", "offset": 0, "length": 1 << 40}])


@pytest.mark.parametrize("path", ["../x", "/x", "a/../../x", "", "a\nb"])
def test_a_path_that_leads_out_is_not_written(path: str) -> None:
    with pytest.raises(AnsibleActionFail, match="nothing was written"):
        checked_path(path)


# --- where it came from ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("note", "source"),
    [
        ({"url": "file:///tree", "dir_info": {"editable": True}}, {"kind": "editable", "url": "file:///tree"}),
        ({"url": "file:///tree", "dir_info": {}}, {"kind": "local", "url": "file:///tree"}),
        (
            {"url": "https://robot:s3cret@git.invalid/x.git?token=t", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            {"kind": "vcs", "url": "https://***@git.invalid/x.git", "commit": "abc"},
        ),
        (
            {"url": "https://files.invalid/x.whl#frag", "archive_info": {"hashes": {"sha256": "A" * 64}}},
            {"kind": "archive", "url": "https://files.invalid/x.whl", "sha256": "a" * 64},
        ),
        ({"url": 7}, {"kind": "unknown"}),
        ([], {"kind": "unknown"}),
        ("not json", {"kind": "unknown"}),
        (None, {"kind": "index"}),
    ],
)
def test_the_source_of_a_distribution(venv: Venv, note: Any, source: dict[str, str]) -> None:
    venv.install("one", {"one.py": ""})
    distribution = read_reference(str(venv.path)).kept[0]
    place = Path(distribution.path, "direct_url.json")
    place.unlink(missing_ok=True)
    if note is not None:
        place.write_text(note if isinstance(note, str) else json.dumps(note))
    assert source_of(distribution) == source


# --- wheels from installed files --------------------------------------------------------------------------


def rebuilt(venv: Venv, name: str, folder: Path) -> tuple[dict[str, Any], Path]:
    """The description and the wheel of an installed distribution."""
    (described,) = wheels_of(read_reference(str(venv.path)), [name])
    assert described["reason"] is None, described["reason"]
    folder.mkdir(exist_ok=True)
    wheel = folder / wheel_name(described)
    with open(wheel, "w+b") as stream:
        write_wheel(stream, described, lambda files: [venv.path / file["path"] for file in files])
    return described, wheel


def test_a_rebuilt_wheel_is_the_same_each_time_and_installs_the_same(venv: Venv, tmp_path: Path) -> None:
    venv.install(
        "house-kernels",
        {
            "house_kernels/__init__.py": "def main():\n    print('ran')\n",
            "house_kernels/my file,1.txt": "a comma\n",
            "house_kernels-1.0.data/scripts/tune": "#!python\nprint('tuned')\n",
            "house_kernels-1.0.data/data/share/house/doc.txt": "doc\n",
            "house_kernels-1.0.dist-info/entry_points.txt": "[console_scripts]\nhouse = house_kernels:main\n",
        },
    )
    described, wheel = rebuilt(venv, "house-kernels", tmp_path / "a")
    again = rebuilt(venv, "house-kernels", tmp_path / "b")[1]
    assert wheel.read_bytes() == again.read_bytes()
    assert holds(record_of(str(wheel), described["dist_info"]), described)
    places = {file["place"] for file in described["files"]}
    assert "house_kernels-1.0.data/scripts/tune" in places
    assert "house_kernels-1.0.data/data/share/house/doc.txt" in places
    assert not any("INSTALLER" in place or "direct_url" in place or place.endswith("/house") for place in places)

    copy = small_wheels.make_venv(tmp_path / "copy")
    small_wheels.run([small_wheels.uv(), "pip", "install", "-q", "--python", f"{copy}/bin/python", str(wheel)])
    for script, words in (("house", "ran"), ("tune", "tuned")):
        done = subprocess.run([f"{copy}/bin/{script}"], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == words
    assert (copy / "share" / "house" / "doc.txt").read_text() == "doc\n"
    # pip is stricter about RECORD than uv.
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(tmp_path / "target"), str(wheel)]
    small_wheels.run(pip)
    assert (tmp_path / "target" / "house_kernels" / "my file,1.txt").read_text() == "a comma\n"

    (venv.site / "house_kernels" / "__init__.py").write_text("def main():\n    print('other')\n")
    changed = wheels_of(read_reference(str(venv.path)), ["house-kernels"])[0]
    assert not holds(record_of(str(wheel), described["dist_info"]), changed)


def test_what_cannot_be_made_into_a_wheel_says_why(venv: Venv) -> None:
    venv.install("one", {"one.py": ""})
    venv.install("linked", {"linked/core.py": "X = 1\n"})
    (venv.site / "old.egg-info").write_text("Name: old\nVersion: 1\n")
    core = venv.site / "linked" / "core.py"
    core.unlink()
    core.mkdir()
    (next(venv.site.glob("one-*.dist-info")) / "WHEEL").write_text("Tag: ../../evil\n")
    described = wheels_of(
        read_reference(str(venv.path), contested="overlay", verify="size", leave_out=["linked"]), ["one", "old"]
    )
    assert {row["name"]: row["reason"].split(":")[0] for row in described} == {
        "old": "it has no RECORD that tells its files",
        "one": "its files cannot be read",
    }


# --- what is written ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "before", "after", "words"),
    [
        ("altered", b"A\n", b"B\n", "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-A\n+B\n"),
        ("added", None, b"B", "--- /dev/null\n+++ b/x.py\n@@ -0,0 +1 @@\n+B\n\\ No newline at end of file\n"),
        ("altered", None, b"B\n", "# x.py of engine: altered, sha256 5; the pristine file was not fetched\n"),
        ("altered", b"\0", b"\0\1", "# x.py of engine: binary files differ: altered, 2 bytes, sha256 5\n"),
        ("altered", b"A\n", b"\xff\xfe", "# x.py of engine: binary files differ: altered, 2 bytes, sha256 5\n"),
    ],
)
def test_the_difference_of_an_overlay(
    tmp_path: Path, change: str, before: bytes | None, after: bytes, words: str
) -> None:
    owner = "engine" if change == "altered" else None
    overlay = {"path": "x.py", "distribution": owner, "change": change, "sha256": "5", "size": 2, "resembles": None}
    places = [tmp_path / "before", tmp_path / "after"]
    for place, content in zip(places, (before, after)):
        place.write_bytes(content or b"")
    assert overlay_diff(overlay, None if before is None else places[0], places[1]) == words


def test_a_folder_is_made_right_and_then_left_alone(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    folder.add("lock.txt", b"one\n")
    (tmp_path / "blob").write_bytes(b"\0")
    folder.add("wheelhouse/x.whl", tmp_path / "blob")
    changes = folder.changes()
    assert [Path(change["after_header"]).name for change in changes] == ["lock.txt", "x.whl"]
    assert changes[0]["after"] == "one\n" and "not shown" in changes[1]["after"]
    folder.write()
    inode = (tmp_path / "lock.txt").stat().st_ino
    assert folder.changes() == []
    folder.write()
    assert (tmp_path / "lock.txt").stat().st_ino == inode


def test_what_an_earlier_run_wrote_is_removed_and_what_somebody_put_there_is_not(tmp_path: Path) -> None:
    own = tmp_path / "overlays" / "mine.py"
    own.parent.mkdir()
    own.write_text("mine\n")
    for files in ({"pkg/a.py": b"a\n", "pkg/b.py": b"b\n"}, {"pkg/b.py": b"b\n"}):
        folder = Folder(str(tmp_path))
        for path, content in files.items():
            folder.add(f"overlays/{path}", content)
        folder.add("overlays.yml", as_yaml([{"dest": path, "src": path} for path in files]))
        told = [
            Path(change["before_header"]).name for change in folder.changes() if change["after_header"] == "(removed)"
        ]
        folder.write()
    assert told == ["a.py"]
    assert sorted(path.name for path in (tmp_path / "overlays").rglob("*.py")) == ["b.py", "mine.py"]


def test_an_index_file_that_names_files_elsewhere_removes_nothing(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("keep\n")
    (tmp_path / "dest").mkdir()
    (tmp_path / "dest" / "overlays.yml").write_bytes(as_yaml([{"dest": "../../outside", "src": "x"}]))
    folder = Folder(str(tmp_path / "dest"))
    with pytest.raises(AnsibleActionFail, match="nothing was written"):
        folder.changes()
    assert outside.exists()
