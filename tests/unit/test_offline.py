# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Generations from indexes behind HTTP, and on hosts without a network: through Ansible, uv and real sockets."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail
from support import ansible_run
from support.generation_site import UV, Site
from support.http_index import HttpIndex

from ansible_collections.gpufleet.dflash.plugins.module_utils._lock import read_lock
from ansible_collections.gpufleet.dflash.plugins.module_utils._recipe import GenerationError, inspect_interpreter
from ansible_collections.gpufleet.dflash.plugins.module_utils._uv import UV_VERSION
from ansible_collections.gpufleet.dflash.plugins.plugin_utils._controller_files import HashedFile
from ansible_collections.gpufleet.dflash.plugins.plugin_utils._index import Indexes
from ansible_collections.gpufleet.dflash.plugins.plugin_utils._lock_check import Checked, Pin, Target, check
from ansible_collections.gpufleet.dflash.plugins.plugin_utils._transfer import copy_files
from ansible_collections.gpufleet.dflash.plugins.plugin_utils._wheelhouse import WheelhouseError, fetch

SECRETS = ("r0bot", "s3cret")
USER_INFO = ":".join(SECRETS)


class Setting:
    """An index behind HTTP, a lock for it, a home of a user and a root for generations."""

    def __init__(self, folder: Path, credentials: str = "") -> None:
        self.index = HttpIndex(folder / "index", credentials)
        self.site = Site(folder, self.index)
        self.home = folder / "home"
        self.home.mkdir()

    @property
    def cache(self) -> Path:
        return self.home / ".cache" / "gpufleet.dflash"

    def arguments(self, **changes: Any) -> dict[str, Any]:
        given = {"root": str(self.site.root), "lock_content": self.site.lock, "index_url": self.index.url, "uv": UV}
        return {key: value for key, value in {**given, **changes}.items() if value is not None}

    def run(self, *, check: bool = False, wrapper: tuple[str, ...] = (), **changes: Any) -> dict[str, Any]:
        return self.told(check=check, wrapper=wrapper, **changes)[0]

    def told(self, *, check: bool = False, wrapper: tuple[str, ...] = (), **changes: Any) -> tuple[dict[str, Any], str]:
        arguments = self.arguments(**changes)
        return ansible_run.run("venv_generation", arguments, self.home, check=check, wrapper=wrapper)


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    made = Setting(tmp_path)
    with made.index.serving():
        yield made


def big(setting: Setting, name: str = "big-thing", megabytes: int = 4) -> str:
    """Add a wheel that does not compress, and its lock line."""
    return setting.index.add(name, "1.0", {f"{name}.txt": os.urandom(megabytes << 19).hex()})


# --- indexes -------------------------------------------------------------------------------------------


def test_check_mode_tells_the_plan_of_the_run_and_a_second_run_changes_nothing(setting: Setting) -> None:
    plan = setting.run(check=True)
    assert plan["changed"]
    assert not setting.site.root.exists()
    done = setting.run()
    keys = ("id", "path", "distributions", "site_packages", "library_path", "lock_check")
    assert {key: done[key] for key in keys} == {key: plan[key] for key in keys}
    assert done["lock_check"] == {"pins": 2, "wheels": 2, "bytes": done["lock_check"]["bytes"], "skipped": ""}
    again = setting.run()
    assert (again["changed"], again["id"], "lock_check" in again) == (False, done["id"], False)


def test_the_directories_of_archives_are_read_and_not_the_wheels(setting: Setting) -> None:
    lock = setting.site.lock + big(setting)
    assert len(judge(setting, lock).wheels) == 3
    assert 0 < setting.index.sent["big_thing-1.0-py3-none-any.whl"] < 300_000
    before = dict(setting.index.sent)
    assert len(judge(setting, lock).wheels) == 3
    assert setting.index.sent == before, "what was read once is known by its hash"


@pytest.mark.parametrize("first", ["plain", "tagged"])
def test_a_locked_build_is_never_another_one_whatever_the_order_of_indexes(
    setting: Setting, tmp_path: Path, first: str
) -> None:
    other = HttpIndex(tmp_path / "cu130")
    tagged = other.add("thing", "1.0+cu130", {"thing.py": "VALUE = 130\n"})
    plain = setting.index.add("thing", "1.0", {"thing.py": "VALUE = 1\n"})
    with other.serving():
        urls = [setting.index.url, other.url] if first == "plain" else [other.url, setting.index.url]
        for lock, value in ((tagged, "130"), (plain, "1")):
            done = setting.site.build(lock_content=lock, index_url=urls[0], extra_index_urls=urls[1:])
            assert (Path(done["site_packages"]) / "thing.py").read_text() == f"VALUE = {value}\n"


def test_a_tagged_pin_is_not_met_by_the_plain_build(setting: Setting) -> None:
    lock = setting.index.add("thing", "1.0", {"thing.py": ""}).replace("==1.0", "==1.0+cu130")
    (error,) = judge(setting, lock).errors
    assert "no index has a wheel of thing==1.0+cu130: correct the pin" in error
    with pytest.raises(GenerationError, match="cu130"):
        setting.site.build(lock_content=lock)
    assert not list(setting.site.root.glob("venvs/cpython*"))


def test_a_yanked_version_is_installed_with_a_warning(setting: Setting) -> None:
    setting.index.yanked["first_thing-1.0-py3-none-any.whl"] = "broken on Mondays"
    done, printed = setting.told()
    assert done["distributions"]["first-thing"] == "1.0"
    assert "first-thing==1.0 was yanked from the index: broken on Mondays" in printed


def test_a_wrong_hash_is_one_line_with_a_fix(setting: Setting) -> None:
    lock = setting.site.lock[:-65] + "0" * 64 + "\n"
    (early,) = judge(setting, lock).errors
    assert early.startswith("no file of second-thing==2.0 at the indexes has a hash of the lock: compile the lock anew")
    with pytest.raises(GenerationError) as late:
        setting.site.build(lock_content=lock)
    first = str(late.value).splitlines()[0]
    assert "the file of second-thing==2.0 is not the one whose hash the lock has: compile the lock anew" in first
    assert not list(setting.site.root.glob("venvs/cpython*"))


def test_credentials_are_in_nothing_that_is_left_or_can_be_looked_at(tmp_path: Path) -> None:
    private = Setting(tmp_path, USER_INFO)
    seen: set[str] = set()
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            for place in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    words = place.read_bytes()
                except OSError:
                    continue
                # The test's own task is on the command line of ansible, as no playbook's is.
                if b"--module-name" not in words:
                    seen.add(words.decode(errors="replace"))
            time.sleep(0.01)

    with private.index.serving():
        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            done, printed = private.told(make_wheelhouse=False, extra_index_urls=[private.index.url])
            _wrong, told = private.told(lock_content=private.site.lock.replace("==2.0", "==2.5"))
            _cut, cut = private.told(lock_content=private.site.lock[:-65] + "0" * 64 + "\n", check_lock=False)
        finally:
            stop.set()
            watcher.join()
    assert not done["failed"], done["msg"]
    assert any("uv" in words and "install" in words for words in seen), "the watcher saw the installer"
    for secret in SECRETS:
        assert secret not in printed + told + cut
        assert [words for words in seen if secret in words] == []
        for folder in (private.site.root, private.home):
            left = subprocess.run(["grep", "-rlF", secret, folder], capture_output=True, text=True, check=False)
            assert left.stdout == "", secret


def judge(setting: Setting, lock: str, driver: str | None = None) -> Checked:
    """What the controller says of a lock for this Python."""
    pins = [Pin(entry.name, entry.version, entry.hashes) for entry in read_lock(lock)]
    python = inspect_interpreter(sys.executable)._asdict()
    return check(pins, Target(python), Indexes([setting.index.url]), str(setting.cache), driver)


# --- the lock, judged before anything is built -----------------------------------------------------------


def test_two_wheels_with_different_code_at_one_path_are_refused(setting: Setting) -> None:
    lock = setting.index.add("pair-cu12", "1.0", {"pair/lib.so": "twelve", "nvidia/__init__.py": "", "setup.py": "1"})
    lock += setting.index.add("pair-cu13", "1.0", {"pair/lib.so": "thirteen", "nvidia/__init__.py": "", "setup.py": ""})
    done = setting.run(lock_content=lock)
    assert done["failed"]
    assert "pair-cu12==1.0 and pair-cu13==1.0 both bring pair/lib.so, with different content" in done["msg"]
    assert not setting.site.root.exists()
    house = setting.site.root.parent / "house"
    house.mkdir()
    for wheel in setting.index.folder.glob("pair*/*.whl"):
        (house / wheel.name).write_bytes(wheel.read_bytes())
    overlays = [{"dest": "pair/lib.so", "content": "mine"}]
    local: dict[str, Any] = {"wheelhouse": str(house), "no_index": True}
    for where in ({}, local):
        settled = setting.run(check=True, lock_content=lock, overlays=overlays, **where)
        assert not settled["failed"], settled["msg"]


TORCH = "Requires-Dist: nvidia-cublas==13.1.0.3 ; platform_system == 'Linux'\nRequires-Dist: nvidia-nccl-cu13==2.28.9\n"


def torch_lock(setting: Setting, **versions: str) -> str:
    metadata = f"Metadata-Version: 2.1\nName: torch\nVersion: 2.11.0\n{TORCH}"
    lock = setting.index.add("torch", "2.11.0", {"torch-2.11.0.dist-info/METADATA": metadata})
    for name, version in versions.items():
        lock += setting.index.add(name.replace("_", "-"), version, {f"{name}.txt": ""})
    return lock


def test_a_runtime_set_that_does_not_fit_torch_is_refused(setting: Setting) -> None:
    lock = torch_lock(setting, nvidia_cublas="13.0.0.1", nvidia_cublas_cu12="12.8.4.1")
    judged = judge(setting, lock, "550.54.15")
    assert [error.split(":")[0] for error in judged.errors] == [
        "torch==2.11.0 requires nvidia-cublas==13.1.0.3, the lock has 13.0.0.1",
        "torch==2.11.0 requires nvidia-nccl-cu13==2.28.9",
        "the driver 550.54.15 is too old for CUDA 13, which torch==2.11.0 is built for",
    ]
    assert "another major: nvidia-cublas-cu12" in judged.warnings[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts over /proc/driver in a namespace of its own")
def test_the_driver_that_is_loaded_is_part_of_the_judgement(setting: Setting) -> None:
    lock = torch_lock(setting, nvidia_cublas="13.1.0.3", nvidia_nccl_cu13="2.28.9")
    words = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Thu Feb 22 01:44:30 UTC 2024"
    loaded = (
        'mount -t tmpfs none /proc/driver && mkdir /proc/driver/nvidia && echo "$0" > /proc/driver/nvidia/version && '
    )
    wrapper = ("unshare", "-m", "sh", "-c", loaded + 'exec "$@"', words)
    done = setting.run(check=True, lock_content=lock, wrapper=wrapper)
    assert done["failed"]
    assert "the driver 550.54.15 is too old for CUDA 13" in done["msg"]
    done = setting.run(check=True, lock_content=lock, wrapper=wrapper, driver="580.95.05")
    assert not done["failed"], done["msg"]


def test_a_runtime_set_that_fits_is_not_held_up(setting: Setting) -> None:
    lock = torch_lock(setting, nvidia_cublas="13.1.0.3", nvidia_nccl_cu13="2.28.9")
    assert judge(setting, lock, "580.95.05")[:2] == ([], [])


def test_a_wheel_for_a_newer_c_library_or_another_python_is_named(setting: Setting) -> None:
    lock = setting.index.add("thing", "1.0", {"thing.py": ""})
    plain = setting.index.folder / "thing" / "thing-1.0-py3-none-any.whl"
    plain.rename(plain.with_name("thing-1.0-cp39-cp39-manylinux_2_99_x86_64.whl"))
    (error,) = judge(setting, lock).errors
    assert "no wheel of thing==1.0 fits Python 3." in error
    assert "manylinux_2_99" in error


def test_an_index_that_does_not_answer_is_said_and_holds_up_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path)
    arguments = {"root": str(site.root), "lock_content": site.lock, "uv": UV, "index_url": "http://127.0.0.1:9/simple"}
    done, _printed = ansible_run.run("venv_generation", arguments, tmp_path, check=True)
    assert (done["failed"], done["changed"]) == (False, True)
    assert "first-thing cannot be read: Connection refused" in done["lock_check"]["skipped"]


# --- without a network -----------------------------------------------------------------------------------


def test_a_host_without_a_network_gets_its_wheels_from_the_controller(setting: Setting) -> None:
    done = setting.run(make_wheelhouse=True)
    assert not done["failed"], done["msg"]
    assert done["copied"]["files"] == 2
    third = setting.index.add("third-thing", "3.0", {"third_thing.py": "VALUE = 3\n"})
    again = setting.run(make_wheelhouse=True, lock_content=setting.site.lock + third)
    assert again["copied"]["files"] == 1, "only what the host lacks"
    assert not list(setting.site.root.glob("wheels/.for-*"))


def test_a_wheelhouse_installs_with_the_network_cut(setting: Setting) -> None:
    house = setting.site.root.parent / "house"
    house.mkdir()
    for wheel in setting.index.folder.glob("*/*.whl"):
        (house / wheel.name).write_bytes(wheel.read_bytes())
    offline: dict[str, Any] = {"wheelhouse": str(house), "no_index": True, "index_url": None}
    done = setting.run(wrapper=("unshare", "-n"), **offline)
    assert not done["failed"], done["msg"]
    assert done["distributions"] == {"first-thing": "1.0", "second-thing": "2.0"}
    (house / "second_thing-2.0-py3-none-any.whl").unlink()
    lock = setting.site.lock + "third-thing==3.0 --hash=sha256:" + "0" * 64
    done = setting.run(wrapper=("unshare", "-n"), lock_content=lock, **offline)
    assert f"the wheelhouse has no wheel of second-thing==2.0, third-thing==3.0: {house}" in done["msg"]


def fetch_big(setting: Setting, lock: str) -> str:
    """Fetch the last pin of a lock; the content's hash."""
    indexes = Indexes([setting.index.url])
    entry = next(entry for entry in read_lock(lock) if entry.name == "big-thing")
    (file,) = indexes.files("big-thing")
    (wheel,) = fetch({entry.pin: (file, entry.hashes)}, indexes, str(setting.cache), lambda line: None)
    return hashlib.sha256(Path(wheel.path).read_bytes()).hexdigest()


def test_a_fetch_that_breaks_off_goes_on_where_it_stopped(setting: Setting) -> None:
    lock = big(setting)
    name = "big_thing-1.0-py3-none-any.whl"
    data = (setting.index.folder / "big-thing" / name).read_bytes()
    setting.index.cut_after = len(data) // 2
    with pytest.raises(
        WheelhouseError, match=f"cannot be fetched: {name}: the connection broke off: run again to go on"
    ):
        fetch_big(setting, lock)
    first = setting.index.sent[name]
    assert 0 < first < len(data)
    setting.index.cut_after = None
    assert fetch_big(setting, lock) == hashlib.sha256(data).hexdigest()
    assert setting.index.sent[name] == len(data), "not a byte came twice"
    fetch_big(setting, lock)
    assert setting.index.sent[name] == len(data)


def test_a_fetch_that_is_killed_goes_on_where_it_stopped(setting: Setting) -> None:
    lock = big(setting, megabytes=8)
    name = "big_thing-1.0-py3-none-any.whl"
    data = (setting.index.folder / "big-thing" / name).read_bytes()
    setting.index.seconds_a_chunk = 0.02
    process = multiprocessing.get_context("fork").Process(target=fetch_big, args=(setting, lock))
    process.start()
    deadline = time.monotonic() + 60
    parts: list[int] = []
    while not any(parts) and time.monotonic() < deadline:
        time.sleep(0.02)
        parts = [path.stat().st_size for path in setting.cache.rglob("*.part")]
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    setting.index.seconds_a_chunk = 0
    time.sleep(0.2)
    (there,) = (path.stat().st_size for path in setting.cache.rglob("*.part"))
    assert 0 < there < len(data)
    before = setting.index.sent[name]
    assert fetch_big(setting, lock) == hashlib.sha256(data).hexdigest()
    assert setting.index.sent[name] - before == len(data) - there


def test_a_copy_to_a_host_goes_on_where_it_stopped(setting: Setting) -> None:
    lock = setting.site.lock + big(setting)
    wheel = setting.index.folder / "big-thing" / "big_thing-1.0-py3-none-any.whl"
    data = wheel.read_bytes()
    place = setting.site.root / "wheels" / hashlib.sha256(data).hexdigest()
    place.mkdir(parents=True)
    (place / "part").write_bytes(data[: len(data) // 2])
    done = setting.run(make_wheelhouse=True, lock_content=lock)
    others = sum(path.stat().st_size for path in setting.index.folder.glob("*thing/*.whl") if path != wheel)
    assert done["copied"] == {"files": 3, "bytes": others + len(data) - len(data) // 2}
    assert (place / wheel.name).read_bytes() == data


def test_a_copy_whose_beginning_is_of_something_else_is_made_anew(setting: Setting) -> None:
    wheel = setting.index.folder / "first-thing" / "first_thing-1.0-py3-none-any.whl"
    place = setting.site.root / "wheels" / hashlib.sha256(wheel.read_bytes()).hexdigest()
    place.mkdir(parents=True)
    (place / "part").write_bytes(b"something else")
    assert not setting.run(make_wheelhouse=True)["failed"]
    assert (place / wheel.name).read_bytes() == wheel.read_bytes()


def test_a_file_that_is_not_what_the_index_says_is_not_kept(setting: Setting, tmp_path: Path) -> None:
    (file,) = Indexes([setting.index.url]).files("first-thing")
    with pytest.raises(WheelhouseError, match="the file of first-thing==1.0 is not the one whose hash the lock has"):
        fetch(
            {"first-thing==1.0": (file, ["sha256:" + "0" * 64])},
            Indexes([setting.index.url]),
            str(tmp_path / "cache"),
            lambda line: None,
        )
    assert not list((tmp_path / "cache").rglob("*.whl"))


# --- room ------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "none", place], check=False)
    if mounted.returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def test_a_lock_that_does_not_fit_on_the_disk_is_refused_with_numbers(setting: Setting, small_disk: Path) -> None:
    lock = setting.site.lock + big(setting, megabytes=32)
    for planning in (True, False):
        done = setting.run(check=planning, root=str(small_disk), lock_content=lock)
        assert done["failed"]
        assert "not enough room on the disk" in done["msg"]
        assert "takes at least 34 MB, 21 MB are free" in done["msg"]
        assert list(small_disk.iterdir()) == []


def test_a_disk_that_fills_up_on_the_way_leaves_nothing_half_done(setting: Setting, small_disk: Path) -> None:
    lock = setting.site.lock + big(setting, megabytes=32)
    with pytest.raises(GenerationError) as full:
        setting.site.build(root=str(small_disk), lock_content=lock)
    assert re.fullmatch(rf"the disk is full: {small_disk}: \d+ MB are free now: make room, .*", str(full.value))
    assert not list(small_disk.glob("venvs/cpython*"))
    assert setting.site.build(root=str(small_disk))["changed"]


def test_an_adoption_that_does_not_fit_is_refused_with_numbers(setting: Setting, small_disk: Path) -> None:
    base = setting.site.build(lock_content=setting.site.lock + big(setting, megabytes=32))["path"]
    Path(base, ".dflash", "generation.json").unlink()
    with pytest.raises(GenerationError, match="not enough room on the disk: .* takes at least 34 MB, 21 MB are free"):
        setting.site.plan(root=str(small_disk), base=base, lock_content=None, python=None)


def test_a_base_alone_gets_its_installer_from_the_controller_too(setting: Setting) -> None:
    base = setting.site.root.parent / "base"
    subprocess.run([UV, "venv", "-q", "-p", sys.executable, base], check=True)
    wanted: dict[str, Any] = {"base": str(base), "lock_content": None, "make_wheelhouse": True}
    done = setting.run(check=True, uv=None, **wanted)
    assert f"no index has a wheel of uv=={UV_VERSION}" in done.get("msg", "")
    assert not setting.run(check=True, **wanted)["failed"]


class Here:
    """What copy_files needs of an action plugin, for a host that is this one; does something before each command."""

    def __init__(self, folder: Path, meanwhile: Any = None) -> None:
        self.folder, self.meanwhile = folder, meanwhile
        self._connection = self._shell = self

    def join_path(self, *parts: str) -> str:
        return os.path.join(*parts)

    def _make_tmp_path(self) -> str:
        self.folder.mkdir()
        return str(self.folder)

    def _remove_tmp_path(self, folder: str, force: bool) -> None:
        shutil.rmtree(folder)

    def _transfer_file(self, source: str, place: str) -> None:
        shutil.copy(source, place)

    def _low_level_execute_command(self, command: str, executable: str) -> dict[str, Any]:
        if self.meanwhile:
            self.meanwhile(command)
        done = subprocess.run([executable, "-c", command], capture_output=True, text=True, check=False)
        return {"rc": done.returncode, "stdout": done.stdout, "stderr": done.stderr}


def test_two_controllers_that_copy_one_wheel_spoil_nothing(tmp_path: Path) -> None:
    content = os.urandom(100_000)
    digest = hashlib.sha256(content).hexdigest()
    source = tmp_path / "thing-1.0-py3-none-any.whl"
    source.write_bytes(content)
    wheel = HashedFile(digest, str(source))
    place = tmp_path / "store" / digest

    def other(command: str) -> None:
        if "sha256sum" in command:  # the other one has finished, and begins with the next piece of its own
            (place / source.name).write_bytes(content)
            with open(place / "part", "ab") as stream:
                stream.write(b"more")

    action: Any = Here(tmp_path / "tmp", other)
    copy_files(action, [wheel], str(tmp_path / "store"), lambda line: None)
    assert {path.name: path.read_bytes() for path in place.iterdir()} == {source.name: content}
    (place / source.name).unlink()

    def appends(command: str) -> None:
        if "cat " in command:
            with open(place / "part", "ab") as stream:
                stream.write(b"more")

    action = Here(tmp_path / "tmp", appends)
    with pytest.raises(AnsibleActionFail, match="another run copies it as well, run again"):
        copy_files(action, [wheel], str(tmp_path / "store"), lambda line: None)
