# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A plan that gets other files once ldconfig has run, on caches that the real ldconfig makes."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import elf_writer, small_wheels
from support.elf_writer import write_elf

from ansible_collections.gpufleet.dflash.plugins.module_utils import _ld_stale
from ansible_collections.gpufleet.dflash.plugins.module_utils._facts import Request, gather, result
from ansible_collections.gpufleet.dflash.plugins.module_utils._ld_system import LoaderCache, System

LDCONFIG = shutil.which("ldconfig", path="/sbin:/usr/sbin") or ""
EMPTY = System.of_host(os.path.realpath(sys.executable), use_cache=False)
FLAGS = {elf_writer.EM_X86_64: 0x0303, elf_writer.EM_AARCH64: 0x0A03}[EMPTY.machine]

pytestmark = pytest.mark.skipif(not LDCONFIG, reason="there is no ldconfig")


class Host:
    """A host whose /etc is a folder, with an object that needs libx.so.1, and a venv that loads it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.first, self.second, self.default = (folder / name for name in ("first", "second", "default"))
        for directory in (self.first, self.second, self.default):
            directory.mkdir()
        self.conf = folder / "ld.so.conf"
        self.conf.write_text("# local\ninclude conf.d/*.conf\n")
        (folder / "conf.d").mkdir()
        (folder / "conf.d/cuda.conf").write_text(f"  {self.first}/  # a comment\n\n{self.second}=libc6\n")
        self.user = write_elf(folder / "user.so", needed=["libx.so.1"])
        self.venv = small_wheels.make_venv(folder / "venv")
        self.ldconfig()

    def ldconfig(self) -> None:
        """Make the cache, as ldconfig does, of the folders as they are."""
        command = [LDCONFIG, "-X", "-i", "-f", str(self.conf), "-C", f"{self.folder}/cache"]
        subprocess.run(command, check=True, capture_output=True)

    def printed(self) -> dict[str, str]:
        """{name: the folder that comes first for it} of the cache, as ldconfig prints it."""
        command = [LDCONFIG, "-p", "-C", f"{self.folder}/cache"]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found: dict[str, str] = {}
        for name, path in re.findall(r"^\t(\S+) \(libc6,[^)]*\) => (.*)$", text, re.M):
            if path.startswith(f"{self.folder}/"):
                found.setdefault(name, os.path.dirname(path))
        return found

    @property
    def system(self) -> System:
        cache = LoaderCache((self.folder / "cache").read_bytes(), flags=FLAGS)
        default = (f"{self.default}/", *EMPTY.default_dirs)
        return dataclasses.replace(EMPTY, cache=cache, default_dirs=default, ld_so_conf=str(self.conf))

    def facts(self) -> dict[str, Any]:
        request = Request(str(self.venv), imports=[], load=[str(self.user)])
        return result(gather(request, self.system), "full")

    def problems(self) -> dict[str, dict[str, Any]]:
        return {problem["kind"]: problem for problem in self.facts()["problems"]}

    def loaded(self) -> str:
        """The libx.so.1 that the plan loads."""
        (found,) = [each["path"] for each in self.facts()["resolution"] if each["soname"] == "libx.so.1"]
        return str(found)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.mark.parametrize("name", ["libx.so.1", "libx.so.1.2.3"], ids=["named by its soname", "without its link"])
def test_a_library_that_came_after_ldconfig_is_not_found(host: Host, name: str) -> None:
    file = write_elf(host.second / name, soname="libx.so.1")

    problems = host.problems()

    assert set(problems) == {"missing-library", "stale-cache"}
    found = problems["stale-cache"]
    assert (found["severity"], found["soname"], found["object"]) == ("warning", "libx.so.1", str(host.user))
    assert found["paths"] == [str(file)]
    assert f"although {host.second} has it" in found["message"]
    assert "ldconfig" in found["fix"]


def test_the_fix_carried_out_is_no_problem_any_more(host: Host) -> None:
    file = write_elf(host.first / "libx.so.1", soname="libx.so.1")
    assert "stale-cache" in host.problems()

    host.ldconfig()

    assert host.problems() == {}
    assert host.loaded() == str(file)


def test_a_library_that_moved_to_another_directory(host: Host) -> None:
    file = write_elf(host.first / "libx.so.1", soname="libx.so.1")
    host.ldconfig()
    file.rename(host.second / "libx.so.1")

    found = host.problems()["stale-cache"]

    assert f"it leads to {file}, which is gone" in found["message"]
    assert found["paths"] == [f"{host.second}/libx.so.1"]


def test_a_library_that_is_gone_for_good_is_missing_and_no_more(host: Host) -> None:
    """ldconfig would change nothing for this plan."""
    file = write_elf(host.first / "libx.so.1", soname="libx.so.1")
    host.ldconfig()
    file.unlink()

    assert set(host.problems()) == {"missing-library"}


@pytest.mark.parametrize("other", [{"bits": 32, "machine": elf_writer.EM_386}, {"soname": "libx.so.2"}], ids=str)
def test_a_file_that_the_loader_could_not_take_is_nothing_to_run_ldconfig_for(
    host: Host, other: dict[str, Any]
) -> None:
    write_elf(host.first / "libx.so.1", **{"soname": "libx.so.1", **other})

    assert set(host.problems()) == {"missing-library"}


def test_a_copy_in_front_of_the_one_in_a_default_directory_waits_for_ldconfig(host: Host) -> None:
    used = write_elf(host.default / "libx.so.1", soname="libx.so.1")
    waiting = write_elf(host.first / "libx.so.1", soname="libx.so.1")

    problems = host.problems()

    assert set(problems) == {"stale-cache"}
    assert problems["stale-cache"]["paths"] == [str(waiting), str(used)]
    assert host.loaded() == str(used)
    host.ldconfig()
    assert host.problems() == {}
    assert host.loaded() == str(waiting)


def test_a_default_directory_alone_needs_no_cache(host: Host) -> None:
    write_elf(host.default / "libx.so.1", soname="libx.so.1")
    assert host.problems() == {}
    # The same file by another way, or a directory that ldconfig takes first and that is the same.
    (host.first / "libx.so.1").symlink_to(host.default / "libx.so.1")
    assert host.problems() == {}
    (host.first / "libx.so.1").unlink()
    write_elf(host.second / "libx.so.1", soname="libx.so.1")
    host.conf.write_text(f"{host.default}\n{host.second}\n")
    assert host.problems() == {}


def test_what_is_found_before_the_cache_does_not_depend_on_it(host: Host) -> None:
    write_elf(host.first / "libx.so.1", soname="libx.so.1")
    write_elf(host.folder / "own/libx.so.1", soname="libx.so.1")
    write_elf(host.user, needed=["libx.so.1"], runpath=f"{host.folder}/own")

    assert host.problems() == {}


def test_an_entry_that_works_is_not_judged(host: Host) -> None:
    write_elf(host.second / "libx.so.1", soname="libx.so.1")
    host.ldconfig()
    write_elf(host.first / "libx.so.1", soname="libx.so.1")

    assert host.problems() == {}


def test_directories_and_names_are_those_of_ldconfig(host: Host) -> None:
    """Every file that ldconfig lists is found under the name, and first in the directory, that it gives."""
    first, second = host.first, host.second
    for directory in (first, second):
        write_elf(directory / "libboth.so.1", soname="libboth.so.1")
    write_elf(second / "libplain.so.3")
    write_elf(first / "libnew.so.1.10", soname="libnew.so.1")
    write_elf(first / "libnew.so.1.9", soname="libnew.so.1")
    write_elf(first / "libdash-2.1.so", soname="libdash.so.2")
    (first / "libdash.so").symlink_to("libdash-2.1.so")
    write_elf(second / "libodd.so.1", soname="libodd.so.2")
    write_elf(second / "libi386.so.1", soname="libi386.so.1", bits=32, machine=elf_writer.EM_386)
    (second / "libtext.so").write_text("INPUT(libtext.so.1)")
    host.ldconfig()
    printed = host.printed()
    assert {"libboth.so.1", "libplain.so.3", "libnew.so.1", "libdash.so", "libdash.so.2", "libodd.so.2"} == set(printed)

    directories = _ld_stale.configured_directories(str(host.conf))

    assert directories == [str(first), str(second)]
    names = {*printed, "libodd.so.1", "libi386.so.1", "libtext.so"}
    found = {
        name: file
        for name in names
        for file in [_ld_stale.named_by_ldconfig(directory, name, EMPTY.machine) for directory in reversed(directories)]
        if file
    }
    assert {name: os.path.dirname(file) for name, file in found.items()} == printed
    assert found["libnew.so.1"] == f"{first}/libnew.so.1.10"


def test_files_that_include_one_another_end(tmp_path: Path) -> None:
    conf = tmp_path / "ld.so.conf"
    conf.write_text(f"include ld.so.conf nowhere/*.conf\nhwcap 1 nosegneg\nrelative/lib\n{tmp_path}\n")
    assert _ld_stale.configured_directories(str(conf)) == [str(tmp_path)]
    assert _ld_stale.configured_directories(str(tmp_path / "absent")) == []


def test_the_host_of_these_tests_needs_no_ldconfig(tmp_path: Path) -> None:
    """The interpreter's own libraries, found through the real cache."""
    venv = small_wheels.make_venv(tmp_path / "venv")
    system = System.of_host(os.path.realpath(sys.executable))
    assert system.ld_so_conf == "/etc/ld.so.conf"
    facts = result(gather(Request(str(venv), imports=["ssl", "ctypes"], modules_expected=False), system), "summary")
    assert facts["problems"] == []
