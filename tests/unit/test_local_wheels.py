# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wheels that only the controller has, on hosts with and without an index; through Ansible and the real uv."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import ansible_run
from support.generation_site import UV, Site
from support.http_index import HttpIndex
from support.local_index import LocalIndex

WHEEL = "house_kernels-2.1+site-py3-none-any.whl"


class Setting:
    """An index behind HTTP, a wheel that it does not have in a folder, and a lock of all."""

    def __init__(self, folder: Path) -> None:
        self.index = HttpIndex(folder / "index")
        self.site = Site(folder, self.index)
        self.home = folder / "home"
        self.home.mkdir()
        self.elsewhere = LocalIndex(folder / "elsewhere")
        self.house = folder / "house"
        self.house.mkdir()
        self.lock = self.site.lock + self.add("house-kernels", "2.1+site", {"house_kernels.py": "KERNELS = 3\n"})

    def add(self, name: str, version: str, files: dict[str, str]) -> str:
        """Put a wheel into the folder of the controller and return its lock line."""
        line = self.elsewhere.add(name, version, files)
        (wheel,) = (self.elsewhere.folder / name).glob(f"*-{version}-*.whl")
        os.replace(wheel, self.house / wheel.name)
        return line

    def run(self, *, check: bool = False, wrapper: tuple[str, ...] = (), **changes: Any) -> dict[str, Any]:
        given = {
            "root": str(self.site.root),
            "lock_content": self.lock,
            "index_url": self.index.url,
            "local_wheels": str(self.house),
            "uv": UV,
        }
        arguments = {key: value for key, value in {**given, **changes}.items() if value is not None}
        return ansible_run.run("venv_generation", arguments, self.home, check=check, wrapper=wrapper)[0]


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    made = Setting(tmp_path)
    with made.index.serving():
        yield made


ALL = {"first-thing": "1.0", "second-thing": "2.0", "house-kernels": "2.1+site"}


def test_an_index_gives_the_rest_and_a_second_run_changes_nothing(setting: Setting) -> None:
    without = setting.run(check=True, local_wheels=None)
    assert "no index has a wheel of house-kernels==2.1+site" in without["msg"]
    plan = setting.run(check=True)
    assert not plan["failed"], plan["msg"]
    assert not setting.site.root.exists()
    done = setting.run()
    assert not done["failed"], done["msg"]
    assert (done["id"], done["distributions"], done["lock_check"]) == (plan["id"], ALL, plan["lock_check"])
    assert (done["lock_check"]["pins"], done["lock_check"]["wheels"]) == (3, 3)
    assert done["copied"] == {"files": 1, "bytes": (setting.house / WHEEL).stat().st_size}
    again = setting.run()
    assert (again["changed"], again["id"], "copied" in again) == (False, done["id"], False)
    more = setting.run(overlays=[{"dest": "x.txt", "content": "x"}])
    assert more["copied"] == {"files": 0, "bytes": 0}, "the host has it"
    unjudged = setting.run(check_lock=False, overlays=[{"dest": "y.txt", "content": "y"}])
    assert not unjudged["failed"], unjudged["msg"]


@pytest.mark.parametrize("way", ["make_wheelhouse", "no_index", "wheelhouse"])
def test_a_host_without_a_network_gets_them_as_well(setting: Setting, way: str) -> None:
    options: dict[str, Any] = {"index_url": None, "no_index": True}
    wrapper: tuple[str, ...] = ("unshare", "-n")
    wheels = list(setting.index.folder.glob("*/*.whl"))
    if way == "make_wheelhouse":
        options, wrapper = {"make_wheelhouse": True}, ()
    elif way == "no_index":
        for wheel in wheels:
            os.replace(wheel, setting.house / wheel.name)
    else:
        options["wheelhouse"] = str(setting.site.root.parent / "on-host")
        os.mkdir(options["wheelhouse"])
        for wheel in wheels:
            os.replace(wheel, Path(options["wheelhouse"], wheel.name))
    plan = setting.run(check=True, wrapper=wrapper, **options)
    assert not plan["failed"], plan["msg"]
    done = setting.run(wrapper=wrapper, **options)
    assert not done["failed"], done["msg"]
    assert done["distributions"] == ALL
    assert done["copied"]["files"] == (1 if way == "wheelhouse" else 3)
    assert not setting.run(wrapper=wrapper, **options)["changed"]


def test_what_nobody_has_is_named_with_the_places_that_were_looked_into(setting: Setting) -> None:
    options: dict[str, Any] = {"index_url": None, "no_index": True}
    for check in (True, False):
        done = setting.run(check=check, **options)
        assert "local_wheels has no wheel of first-thing==1.0, second-thing==2.0: put them there" in done["msg"]
        house = setting.site.root.parent / "empty"
        house.mkdir(exist_ok=True)
        done = setting.run(check=check, wheelhouse=str(house), **options)
        assert (
            f"neither the wheelhouse nor local_wheels has a wheel of first-thing==1.0, second-thing==2.0: {house}"
            in (done["msg"])
        )
    assert not setting.site.root.exists()


@pytest.mark.parametrize("check_lock", [True, False])
def test_a_wheel_of_another_hash_is_one_clear_error(setting: Setting, check_lock: bool) -> None:
    (setting.house / WHEEL).write_bytes(b"another")
    done = setting.run(check_lock=check_lock)
    digest = hashlib.sha256(b"another").hexdigest()
    assert done["failed"]
    assert (
        f"a wheel of local_wheels is not the one that the lock has: {setting.house}/{WHEEL}: it has sha256:{digest}"
        in (done["msg"])
    )
    assert "house-kernels==2.1+site has another hash in the lock" in done["msg"]
    assert not setting.site.root.exists()


def test_the_folders_wheel_is_installed_though_the_index_has_another_of_its_version(setting: Setting) -> None:
    setting.index.add("tuned", "1.0", {"tuned.py": "BUILD = 'index'\n"})
    setting.lock += setting.add("tuned", "1.0", {"tuned.py": "BUILD = 'house'\n"})
    done = setting.run()
    assert not done["failed"], done["msg"]
    assert Path(done["site_packages"], "tuned.py").read_text() == "BUILD = 'house'\n"


def test_other_wheels_of_the_folder_stay_where_they_are(setting: Setting) -> None:
    setting.add("unrelated", "1.0", {"unrelated.py": ""})
    setting.add("house-kernels", "2.0", {"house_kernels.py": ""})
    assert setting.run()["copied"]["files"] == 1


def test_a_wheel_that_does_not_fit_the_host_is_named(setting: Setting) -> None:
    os.replace(setting.house / WHEEL, setting.house / WHEEL.replace("py3-none", "cp39-cp39"))
    done = setting.run()
    assert "no wheel of house-kernels==2.1+site fits Python 3." in done["msg"]
    assert "the lock has house_kernels-2.1+site-cp39-cp39-any.whl" in done["msg"]


def test_clashes_with_wheels_of_the_index_are_found(setting: Setting) -> None:
    setting.lock += setting.index.add("pair", "1.0", {"house_kernels.py": "KERNELS = 4\n"})
    done = setting.run(check=True)
    assert "house-kernels==2.1+site and pair==1.0 both bring house_kernels.py, with different content" in done["msg"]


def test_an_index_that_does_not_answer_keeps_no_wheel_from_the_host(setting: Setting) -> None:
    done = setting.run(check=True, index_url="http://127.0.0.1:9/simple")
    assert not done["failed"], done["msg"]
    assert "cannot be read: Connection refused" in done["lock_check"]["skipped"]


@pytest.mark.parametrize("place", ["files/wheels", "wheels"])
def test_the_folder_is_looked_for_beside_the_inventory(setting: Setting, tmp_path: Path, place: str) -> None:
    inventory = tmp_path / "inventory"
    (inventory / place).parent.mkdir(parents=True)
    os.rename(setting.house, inventory / place)
    (inventory / "hosts").write_text("localhost ansible_connection=local\n")
    command = ansible_run.command(
        "venv_generation",
        {
            "root": str(setting.site.root),
            "lock_content": setting.lock,
            "index_url": setting.index.url,
            "local_wheels": "wheels",
            "uv": UV,
        },
        check=True,
    )
    command[command.index("localhost,")] = str(inventory / "hosts")
    done = subprocess.run(
        command, env=ansible_run.environment(setting.home), capture_output=True, text=True, check=False
    )
    assert "CHANGED" in done.stdout, done.stdout + done.stderr


def test_a_folder_that_is_not_there_is_named(setting: Setting) -> None:
    done = setting.run(local_wheels="no/such/folder")
    assert "the folder of local_wheels is not there: no/such/folder: looked in" in done["msg"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "none", place], check=False).returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def test_the_room_for_them_is_judged_with_numbers(setting: Setting, small_disk: Path) -> None:
    setting.lock += setting.add("big", "1.0", {"big.txt": os.urandom(6 << 20).hex()})
    done = setting.run(check=True, root=str(small_disk))
    assert "takes at least 25 MB, 21 MB are free" in done["msg"], "once in the store, once in the generation"
