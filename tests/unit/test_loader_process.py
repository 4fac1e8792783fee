# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a prediction tells of failures, of unusual processes, and of programs that the host has."""

from __future__ import annotations

import dataclasses
import os
import random
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import elf_writer
from support.loader_case import (
    EM_OTHER,
    HOST,
    NO_SUCH_FILE,
    OPEN_D,
    A,
    B,
    beside_the_basics,
    needs_d,
    path_of,
    symlink,
)
from support.loader_oracle import PROGRAM, Compiler, ask_linker, link_options, predict

from ansible_collections.gpufleet.dflash.plugins.module_utils._elf import (
    ElfError,
    NotElf,
    read_object,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._loader import LoadError, Missing, Process

NOBODY = 65534


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    return Compiler(tmp_path_factory.mktemp("compiled"))


@pytest.fixture
def program(tmp_path: Path, compiler: Compiler) -> Path:
    return compiler.build(PROGRAM, tmp_path / "program")


def started(program: Path, cwd: Path, **options: object) -> Process:
    process = Process(HOST, environment={}, cwd=str(cwd), **options)  # type: ignore[arg-type]
    process.start(str(program))
    return process


def test_a_failure_names_all_that_is_missing_and_all_who_need_it(tmp_path: Path, program: Path) -> None:
    elf_writer.write_elf(tmp_path / "libx.so", needed=["liba.so", "libgone.so.1", "libb.so"], runpath="$ORIGIN")
    elf_writer.write_elf(tmp_path / "liba.so", needed=["libgone.so.1", "liblost.so.2"], runpath="$ORIGIN")
    elf_writer.write_elf(tmp_path / "libb.so", needed=["liblost.so.2", "libc.so.6"], runpath="$ORIGIN")
    process = started(program, tmp_path)
    before, resolutions = process.loaded, list(process.resolutions)

    with pytest.raises(LoadError) as caught:
        process.dlopen(f"{tmp_path}/libx.so")

    gone, lost = f"libgone.so.1: {NO_SUCH_FILE}", f"liblost.so.2: {NO_SUCH_FILE}"
    paths = {name: f"{tmp_path}/{name}" for name in ("libx.so", "liba.so", "libb.so")}
    assert caught.value.message == str(caught.value) == gone
    assert caught.value.soname == "libgone.so.1"
    assert caught.value.missing == [
        Missing("libgone.so.1", [paths["libx.so"], paths["liba.so"]], gone),
        Missing("liblost.so.2", [paths["liba.so"], paths["libb.so"]], lost),
    ]
    assert (process.loaded, process.resolutions) == (before, resolutions)


def test_a_name_that_nobody_has_is_missing_for_who_asked(tmp_path: Path, program: Path) -> None:
    with pytest.raises(LoadError) as caught:
        started(program, tmp_path).dlopen("libgone.so")
    assert caught.value.missing == [Missing("libgone.so", [str(program)], f"libgone.so: {NO_SUCH_FILE}")]


def test_a_program_whose_library_is_missing_does_not_start(tmp_path: Path) -> None:
    elf_writer.write_elf(tmp_path / "program", needed=["libgone.so"], interpreter=HOST.interpreter)
    with pytest.raises(LoadError) as caught:
        started(tmp_path / "program", tmp_path)
    assert caught.value.missing == [Missing("libgone.so", [f"{tmp_path}/program"], f"libgone.so: {NO_SUCH_FILE}")]


def test_a_script_is_no_program_to_predict(tmp_path: Path) -> None:
    (tmp_path / "python").write_text("#!/bin/sh\nexec python3\n")
    with pytest.raises(NotElf):
        started(tmp_path / "python", tmp_path)


def test_a_program_for_another_machine_is_refused(tmp_path: Path) -> None:
    elf_writer.write_elf(tmp_path / "program", machine=EM_OTHER, interpreter=HOST.interpreter)
    with pytest.raises(ElfError, match="another kind of machine"):
        started(tmp_path / "program", tmp_path)


def test_each_resolution_says_who_asked_and_which_rule_answered(tmp_path: Path, program: Path) -> None:
    elf_writer.write_elf(tmp_path / "x/libx.so", needed=["libd.so.1", "libe.so.1"], runpath="$ORIGIN", soname="libx.so")
    elf_writer.write_elf(tmp_path / "x/libd.so.1", needed=["libe.so.1"], soname="libd.so.1")
    elf_writer.write_elf(tmp_path / "x/libe.so.1", soname="libe.so.1")
    process = started(program, tmp_path)
    done = len(process.resolutions)
    opened = process.dlopen(f"{tmp_path}/x/libx.so")
    x, d = f"{tmp_path}/x/libx.so", f"{tmp_path}/x/libd.so.1"
    assert (opened.path, opened.soname, opened.rule, opened.needed_by) == (x, "libx.so", "path", str(program))
    assert [(found.soname, found.rule, found.needed_by) for found in process.resolutions[done:]] == [
        (x, "path", str(program)),
        ("libd.so.1", "runpath", x),
        ("libe.so.1", "runpath", x),
        ("libe.so.1", "loaded", d),
    ]
    assert process.loaded[0].path == str(program)
    assert HOST.interpreter in [loaded.path for loaded in process.loaded]


def test_hidden_files_are_absent(tmp_path: Path, program: Path, compiler: Compiler) -> None:
    for make in (A, needs_d(runpath="$ORIGIN/../link"), symlink("link", "a")):
        make(tmp_path, compiler)
    started(program, tmp_path, hidden=[f"{tmp_path}/other"]).dlopen(f"{tmp_path}/x/libx.so")
    with pytest.raises(LoadError, match=NO_SUCH_FILE):
        started(program, tmp_path, hidden=[f"{tmp_path}/a/libd.so.1"]).dlopen(f"{tmp_path}/x/libx.so")


def test_damaged_libraries_are_loaded_or_a_load_error(tmp_path: Path, program: Path) -> None:
    original = elf_writer.write_elf(
        tmp_path / "x/libx.so",
        needed=["libc.so.6", "libd.so.1"],
        runpath="$ORIGIN/../a:$LIB",
        version_needs={"libd.so.1": [("D_1", False)]},
        version_defs=["libx.so", "X_1"],
    ).read_bytes()
    elf_writer.write_elf(tmp_path / "a/libd.so.1", soname="libd.so.1", version_defs=["libd.so.1", "D_1"])
    process = started(program, tmp_path)
    basis = process.loaded
    outcomes = {"loaded": 0, "refused": 0}
    for seed in range(1000):
        damaged = tmp_path / f"x/lib{seed}.so"
        damaged.write_bytes(elf_writer.damage(original, seed))
        try:
            process.dlopen(str(damaged))
            outcomes["loaded"] += 1
            process = started(program, tmp_path)
        except LoadError as error:
            assert error.message
            assert process.loaded == basis
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 100


def test_an_object_that_is_not_loaded_calls_no_dlopen(tmp_path: Path, program: Path) -> None:
    with pytest.raises(ValueError, match="is not loaded"):
        started(program, tmp_path).dlopen("libc.so.6", "/nowhere/libx.so")


def test_a_pipe_in_a_search_path_is_refused_at_once(tmp_path: Path, program: Path) -> None:
    (tmp_path / "a").mkdir()
    os.mkfifo(tmp_path / "a/libd.so.1")
    with pytest.raises(LoadError, match="is not a regular file"):
        started(program, tmp_path).dlopen(f"{tmp_path}/a/libd.so.1")


@pytest.mark.parametrize("preload", ["libgone.so", "/nowhere/libq.so", "@", "@/text"])
def test_a_preload_that_is_ignored_is_told_in_the_linkers_words(preload: str, tmp_path: Path, program: Path) -> None:
    (tmp_path / "text").write_text("no library " * 20)
    environment = {"LD_PRELOAD": preload.replace("@", str(tmp_path))}
    process = Process(HOST, environment=environment, cwd=str(tmp_path))
    process.start(str(program))
    finished = subprocess.run([program], env=environment, capture_output=True, text=True, check=True)
    assert process.ignored_preloads == finished.stderr.splitlines()


def test_the_systems_own_preload_file_counts_after_the_environment(tmp_path: Path, program: Path) -> None:
    for name in ("liba.so", "libb.so"):
        elf_writer.write_elf(tmp_path / name, soname=name)
    system = dataclasses.replace(HOST, preload=(f"{tmp_path}/liba.so", "/nowhere/libq.so"))
    process = Process(system, environment={"LD_PRELOAD": f"{tmp_path}/libb.so"}, cwd=str(tmp_path))
    process.start(str(program))
    preloaded = [loaded.soname for loaded in process.loaded if loaded.rule == "preload"]
    assert preloaded == ["libb.so", "liba.so"]
    assert "/nowhere/libq.so" in process.ignored_preloads[0]
    assert "/etc/ld.so.preload" in process.ignored_preloads[0]


IMPORTING = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ImportError:
        pass
for module in list(sys.modules.values()):
    if ".so" in (getattr(module, "__file__", None) or ""):
        print(module.__file__)
print("MAPS")
print(open("/proc/self/maps").read())
"""


def test_a_python_that_imports_maps_what_is_predicted(tmp_path: Path) -> None:
    modules = [
        "ssl",
        "ctypes",
        "lzma",
        "bz2",
        "sqlite3",
        "curses",
        "readline",
        "uuid",
        "yaml",
        "cryptography.fernet",
    ]
    finished = subprocess.run(
        [sys.executable, "-c", IMPORTING, *modules],
        env={},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    imported, _, maps = finished.stdout.partition("MAPS\n")
    mapped = {line.split(None, 5)[5] for line in maps.splitlines() if " r-xp " in line and "/" in line}
    process = Process(HOST, environment={}, cwd=str(tmp_path))
    process.start(sys.executable)
    for path in imported.splitlines():
        process.dlopen(path)
    assert {os.path.realpath(loaded.path) for loaded in process.loaded} == mapped
    assert len(imported.splitlines()) >= 5


def programs_of_the_system() -> list[str]:
    """Some dozens of programs, the same each time, that the host's linker would start."""
    found = []
    for path in sorted(Path("/usr/bin").iterdir()):
        try:
            program = read_object(str(path))
        except (ElfError, OSError):
            continue
        if program.interpreter == HOST.interpreter:
            found.append(str(path))
    return random.Random(1).sample(found, min(40, len(found)))


def test_programs_of_the_system_get_what_the_linker_lists() -> None:
    programs = programs_of_the_system()
    assert len(programs) > 10
    for path in programs:
        finished = subprocess.run(
            [HOST.interpreter, "--list", path], env={}, capture_output=True, text=True, check=True
        )
        listed = re.findall(r"^\t(?:\S+ => )?(/.*) \(0x[0-9a-f]+\)$", finished.stdout, re.MULTILINE)
        process = Process(HOST, environment={}, cwd="/")
        process.start(path)
        assert [loaded.path for loaded in process.loaded[1:]] == listed, path


@pytest.fixture
def as_nobody(tmp_path: Path) -> Iterator[None]:
    """Let the test see the files as another user does, which only root can."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == "root" and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o755)
    yield
    os.seteuid(0)


def test_an_unreadable_file_is_passed_by(tmp_path: Path, program: Path, compiler: Compiler, as_nobody: None) -> None:
    for make in (A, B):
        make(tmp_path, compiler)
    (tmp_path / "a/libd.so.1").chmod(0)
    environment = path_of(f"{tmp_path}/a", f"{tmp_path}/b")
    real = ask_linker(program, OPEN_D, environment, tmp_path, user=NOBODY)
    os.seteuid(NOBODY)
    predicted, _process = predict(HOST, program, OPEN_D, environment, tmp_path)
    assert predicted == real
    assert beside_the_basics(real) == [f"{tmp_path}/b/libd.so.1"]


SECURE = {
    "LD_LIBRARY_PATH is ignored": ({}, path_of("@/a"), None),
    "a preload by path is ignored": ({}, {"LD_PRELOAD": "@/a/libd.so.1"}, None),
    "the program's origin is not trusted": ({"runpath": "$ORIGIN/a"}, {}, None),
    "an absolute runpath of the program is": ({"runpath": "@/a"}, {}, "@/a/libd.so.1"),
}


@pytest.mark.parametrize(("tags", "environment", "found"), SECURE.values(), ids=SECURE)
def test_a_setuid_program_is_searched_for_in_secure_mode(
    tags: dict[str, str],
    environment: dict[str, str],
    found: str | None,
    tmp_path: Path,
    compiler: Compiler,
    as_nobody: None,
) -> None:
    A(tmp_path, compiler)
    tags = {name: value.replace("@", str(tmp_path)) for name, value in tags.items()}
    environment = {name: value.replace("@", str(tmp_path)) for name, value in environment.items()}
    program = compiler.build(PROGRAM, tmp_path / "program", link_options(**tags))
    program.chmod(0o755 | stat.S_ISUID)
    if os.statvfs(program).f_flag & os.ST_NOSUID:
        pytest.skip("the temporary folder's filesystem is mounted nosuid")
    real = ask_linker(program, OPEN_D, environment, tmp_path, user=NOBODY)
    predicted, _process = predict(HOST, program, OPEN_D, environment, tmp_path, secure=True)
    assert predicted == real
    assert beside_the_basics(real) == ([found.replace("@", str(tmp_path))] if found else [])


def test_a_setuid_programs_library_may_use_its_own_origin(tmp_path: Path, compiler: Compiler, as_nobody: None) -> None:
    for make in (A, needs_d(runpath="$ORIGIN/../a")):
        make(tmp_path, compiler)
    program = compiler.build(PROGRAM, tmp_path / "program")
    program.chmod(0o755 | stat.S_ISUID)
    steps = [f"open:{tmp_path}/x/libx.so"]
    real = ask_linker(program, steps, {}, tmp_path, user=NOBODY)
    assert predict(HOST, program, steps, {}, tmp_path, secure=True)[0] == real
    assert f"{tmp_path}/x/../a/libd.so.1" in real.maps
