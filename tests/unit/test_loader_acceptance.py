# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the dynamic linker accepts of the files that its search finds, and what it says of the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import elf_writer
from support.loader_case import (
    A_AND_B,
    HOST,
    NO_SUCH_FILE,
    OPEN_D,
    OPEN_X,
    X_LOADED,
    B,
    Case,
    check,
    content,
    lib,
    needs_d,
    path_of,
    symlink,
)
from support.loader_oracle import PROGRAM, Compiler, ask_linker, predict

from ansible_collections.gpufleet.dflash.plugins.module_utils._elf import DF_1_NOOPEN, DF_1_PIE


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    return Compiler(tmp_path_factory.mktemp("compiled"))


ACCEPTANCE = [
    Case(
        "a file where a relative directory should be ends the list",
        [content("file", b""), B],
        OPEN_D,
        errors=[f"libd.so.1: {NO_SUCH_FILE}"],
        environment=path_of("file", "@/b"),
    ),
    Case(
        "a name that a failed dlopen gave to a loaded library stays",
        [
            lib("a/libreal.so"),
            symlink("b/libalias.so", "../a/libreal.so"),
            lib("c/libalias.so", soname="libc-alias.so"),
            lib("x/libx.so", needed=["libalias.so", "libmissing.so"], runpath="$ORIGIN/../b"),
            lib("y/liby.so", needed=["libalias.so"], runpath="$ORIGIN/../c"),
        ],
        ["open:@/a/libreal.so", *OPEN_X, "open:@/y/liby.so"],
        ["path @/a/libreal.so", "path @/y/liby.so"],
        [f"libmissing.so: {NO_SUCH_FILE}"],
    ),
    Case(
        "a header cut off in its middle is too short",
        [content("a/libd.so.1", b"\x7fELF\x02\x01\x01" + bytes(30)), B],
        OPEN_D,
        errors=["@/a/libd.so.1: file too short"],
        environment=A_AND_B,
    ),
    Case(
        "a library without segments cannot be loaded",
        [lib("a/libd.so.1", with_segment=False, with_dynamic=False)],
        OPEN_D,
        errors=["libd.so.1: object file has no loadable segments"],
        environment=path_of("@/a"),
    ),
    Case(
        "a library without a dynamic section, as a separate debug file, cannot be loaded",
        [lib("a/libd.so.1", with_dynamic=False)],
        OPEN_D,
        errors=["libd.so.1: object file has no dynamic section"],
        environment=path_of("@/a"),
    ),
    Case(
        "a program cannot be loaded as a library",
        [lib("a/libd.so.1", flags_1=DF_1_PIE), lib("a/libe.so.1", elf_type=elf_writer.ET_EXEC)],
        ["open:libd.so.1", "open:libe.so.1"],
        errors=[
            "libd.so.1: cannot dynamically load position-independent executable",
            "libe.so.1: cannot dynamically load executable",
        ],
        environment=path_of("@/a"),
    ),
    Case(
        "a library marked NOOPEN can be neither opened nor needed by one that is",
        [lib("a/libd.so.1", flags_1=DF_1_NOOPEN), needs_d()],
        ["open:libd.so.1", *OPEN_X],
        errors=["libd.so.1: shared object cannot be dlopen()ed"] * 2,
        environment=path_of("@/a"),
    ),
    Case(
        "a version that the library does not define is an error",
        [
            lib("x/libd.so.1", version_defs=["libd.so.1", "D_1"]),
            needs_d(runpath="$ORIGIN", version_needs={"libd.so.1": [("D_1", False), ("D_2", False)]}),
        ],
        OPEN_X,
        errors=["@/x/libd.so.1: version `D_2' not found (required by @/x/libx.so)"],
    ),
    Case(
        "a weak version need, or a library without versions, is no error",
        [
            lib("x/libd.so.1", version_defs=["libd.so.1", "D_1"]),
            lib("x/libe.so.1"),
            lib(
                "x/libx.so",
                needed=["libd.so.1", "libe.so.1"],
                runpath="$ORIGIN",
                version_needs={"libd.so.1": [("D_2", True)], "libe.so.1": [("E_1", False)]},
            ),
        ],
        OPEN_X,
        [X_LOADED, "runpath @/x/libd.so.1", "runpath @/x/libe.so.1"],
    ),
]


@pytest.mark.parametrize("case", ACCEPTANCE, ids=lambda case: case.id.replace(" ", "-"))
def test_what_was_found_is_accepted_or_refused_as_by_the_linker(case: Case, tmp_path: Path, compiler: Compiler) -> None:
    check(case, tmp_path, compiler)


HEADER_DAMAGE = {
    "magic": (1, b"X"),
    "class": (4, b"\x01"),
    "unknown class": (4, b"\x09"),
    "byte order": (5, b"\x02"),
    "unknown byte order": (5, b"\x07"),
    "identification version": (6, b"\x02"),
    "GNU OS ABI": (7, b"\x03"),
    "other OS ABI": (7, b"\x09"),
    "ABI version": (8, b"\x01"),
    "GNU OS ABI with a version": (7, b"\x03\x01"),
    "GNU OS ABI with a version of the future": (7, b"\x03\x7f"),
    "padding": (12, b"\x01"),
    "type": (16, b"\x04"),
    "machine": (18, b"\x99"),
    "version": (20, b"\x02"),
    "size of a program header": (54, b"\x20"),
    "program header table beyond the file": (32, b"\xff\xff\xff"),
    "no program headers": (56, b"\x00"),
}


@pytest.mark.parametrize("damage", HEADER_DAMAGE.values(), ids=HEADER_DAMAGE)
def test_each_field_of_a_damaged_header_counts_as_for_the_linker(
    damage: tuple[int, bytes], tmp_path: Path, compiler: Compiler
) -> None:
    offset, value = damage
    library = elf_writer.write_elf(tmp_path / "a/libd.so.1", soname="libd.so.1")
    data = bytearray(library.read_bytes())
    data[offset : offset + len(value)] = value
    library.write_bytes(data)
    lib("b/libd.so.1")(tmp_path, compiler)
    program = compiler.build(PROGRAM, tmp_path / "program")
    for environment in (path_of(f"{tmp_path}/a"), path_of(f"{tmp_path}/a", f"{tmp_path}/b")):
        real = ask_linker(program, OPEN_D, environment, tmp_path)
        assert predict(HOST, program, OPEN_D, environment, tmp_path)[0] == real
