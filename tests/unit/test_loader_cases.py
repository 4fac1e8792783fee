# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Each rule of the dynamic linker's search, asked of the real linker and of the prediction."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support import elf_writer
from support.loader_case import (
    A_AND_B,
    EM_OTHER,
    HOST,
    NO_SUCH_FILE,
    OPEN_D,
    OPEN_X,
    X_LOADED,
    A,
    B,
    Case,
    built,
    check,
    content,
    directory,
    hard_link,
    lib,
    needs_d,
    path_of,
    symlink,
)
from support.loader_oracle import OPENER, PROGRAM, Compiler

from ansible_collections.gpufleet.dflash.plugins.module_utils._elf import DF_1_NODEFLIB

HWCAPS = [prefix for prefix in HOST.subdirectories if prefix.startswith("glibc-hwcaps/")]
CASES = [
    Case(
        "rpath is searched before LD_LIBRARY_PATH",
        [A, B, needs_d(rpath="$ORIGIN/../a")],
        OPEN_X,
        [X_LOADED, "rpath @/x/../a/libd.so.1"],
        environment=path_of("@/b"),
    ),
    Case(
        "LD_LIBRARY_PATH is searched before runpath",
        [A, B, needs_d(runpath="$ORIGIN/../a")],
        OPEN_X,
        [X_LOADED, "ld_library_path @/b/libd.so.1"],
        environment=path_of("@/b"),
    ),
    Case(
        "an object with a runpath has no rpath",
        [A, B, needs_d(rpath="$ORIGIN/../a", runpath="$ORIGIN/../b")],
        OPEN_X,
        [X_LOADED, "runpath @/x/../b/libd.so.1"],
    ),
    Case(
        "nor have the libraries that it loads its rpath",
        [
            A,
            needs_d("x/libm.so"),
            lib("x/libx.so", needed=["libm.so"], rpath="$ORIGIN/../a", runpath="$ORIGIN"),
        ],
        OPEN_X,
        errors=[f"libd.so.1: {NO_SUCH_FILE}"],
    ),
    Case(
        "rpath serves what the object's own libraries need",
        [A, needs_d("x/libm.so"), lib("x/libx.so", needed=["libm.so"], rpath="$ORIGIN:$ORIGIN/../a")],
        OPEN_X,
        [X_LOADED, "rpath @/x/libm.so", "rpath @/x/../a/libd.so.1"],
    ),
    Case(
        "runpath serves only the object itself",
        [A, needs_d("x/libm.so"), lib("x/libx.so", needed=["libm.so"], runpath="$ORIGIN:$ORIGIN/../a")],
        OPEN_X,
        errors=[f"libd.so.1: {NO_SUCH_FILE}"],
    ),
    Case(
        "a library with a runpath is cut off from the rpath of who loaded it",
        [
            A,
            needs_d("x/libm.so", runpath="/nowhere"),
            lib("x/libx.so", needed=["libm.so"], rpath="$ORIGIN:$ORIGIN/../a"),
        ],
        OPEN_X,
        errors=[f"libd.so.1: {NO_SUCH_FILE}"],
    ),
    Case(
        "a soname that is loaded ends the search before rpath",
        [A, B, needs_d(rpath="$ORIGIN/../a")],
        ["open:@/b/libd.so.1", *OPEN_X],
        ["path @/b/libd.so.1", X_LOADED],
    ),
    Case(
        "a file's name alone does not make it the needed library",
        [lib("b/libd.so.1", soname="libother.so"), A, needs_d(rpath="$ORIGIN/../a")],
        ["open:@/b/libd.so.1", *OPEN_X],
        ["path @/b/libd.so.1", X_LOADED, "rpath @/x/../a/libd.so.1"],
    ),
    Case(
        "the name that a library was requested by counts as its name",
        [
            lib("b/libd.so", soname="libd.so.7"),
            lib("a/libd.so", soname="libd.so.7"),
            lib("x/libx.so", needed=["libd.so"], rpath="$ORIGIN/../a"),
        ],
        ["open:libd.so", *OPEN_X],
        ["ld_library_path @/b/libd.so", X_LOADED],
        environment=path_of("@/b"),
    ),
    Case(
        "a library without soname that was opened by path does not satisfy its file name",
        [
            lib("b/libd.so", soname=None),
            lib("a/libd.so", soname=None),
            lib("x/libx.so", needed=["libd.so"], rpath="$ORIGIN/../a"),
        ],
        ["open:@/b/libd.so", *OPEN_X],
        ["path @/b/libd.so", X_LOADED, "rpath @/x/../a/libd.so"],
    ),
    Case(
        "one file through a symlink is one object, named as it was first",
        [lib("a/libreal.so"), symlink("b/liblink.so", "../a/libreal.so")],
        ["open:@/b/liblink.so", "open:@/a/libreal.so"],
        ["path @/b/liblink.so"],
    ),
    Case(
        "hard links are one object",
        [lib("a/libh.so", soname="libone.so"), hard_link("b/libh2.so", "a/libh.so")],
        ["open:@/a/libh.so", "open:@/b/libh2.so"],
        ["path @/a/libh.so"],
    ),
    Case(
        "copies with one soname are both mapped when opened by path",
        [A, B],
        ["open:@/a/libd.so.1", "open:@/b/libd.so.1"],
        ["path @/a/libd.so.1", "path @/b/libd.so.1"],
    ),
    Case(
        "a library's origin does not follow the symlink that it was opened through",
        [
            needs_d("real/libx.so", runpath="$ORIGIN"),
            lib("real/libd.so.1"),
            symlink("link/libx.so", "../real/libx.so"),
        ],
        ["open:@/link/libx.so"],
        errors=[f"libd.so.1: {NO_SUCH_FILE}"],
    ),
    Case(
        "a symlinked directory stays in the origin as spelled",
        [needs_d("real/libx.so", runpath="$ORIGIN"), lib("real/libd.so.1"), symlink("lib64", "real")],
        ["open:@/lib64/libx.so"],
        ["path @/lib64/libx.so", "runpath @/lib64/libd.so.1"],
    ),
    Case(
        "the program's origin is the real file, as with the python of a venv",
        [
            built(PROGRAM, "base/bin/program", rpath="$ORIGIN/../lib"),
            symlink("venv/bin/program", "../../base/bin/program"),
            lib("base/lib/libd.so.1"),
            lib("venv/lib/libd.so.1"),
        ],
        OPEN_D,
        ["rpath @/base/bin/../lib/libd.so.1"],
        program="venv/bin/program",
    ),
    Case(
        "the program's rpath is the last rpath of every object",
        [built(PROGRAM, "bin/program", rpath="$ORIGIN/../m"), lib("m/libd.so.1"), needs_d()],
        OPEN_X,
        [X_LOADED, "rpath @/bin/../m/libd.so.1"],
        program="bin/program",
    ),
    Case(
        "the program's runpath serves no library",
        [built(PROGRAM, "bin/program", runpath="$ORIGIN/../m"), lib("m/libd.so.1"), needs_d()],
        OPEN_X,
        errors=[f"libd.so.1: {NO_SUCH_FILE}"],
        program="bin/program",
    ),
    Case(
        "dlopen searches the runpath of the library that calls it",
        [built(OPENER, "o/libopener.so", runpath="$ORIGIN/../d"), lib("d/libd.so.1")],
        ["via:@/o/libopener.so=libd.so.1"],
        ["path @/o/libopener.so", "runpath @/o/../d/libd.so.1"],
    ),
    Case(
        "dlopen searches the rpath of who loaded its caller",
        [
            built(OPENER, "o/libopener.so", soname="libopener.so"),
            lib("d/libd.so.1"),
            lib("x/libx.so", needed=["libopener.so"], rpath="$ORIGIN/../o:$ORIGIN/../d"),
        ],
        [*OPEN_X, "via:@/o/libopener.so=libd.so.1"],
        [X_LOADED, "rpath @/x/../o/libopener.so", "rpath @/x/../d/libd.so.1"],
    ),
    Case(
        "what dlopen opened has no loader whose rpath it could use",
        [
            built(OPENER, "o/libopener.so", rpath="$ORIGIN/../d:$ORIGIN/../e"),
            lib("d/libd.so.1", needed=["libe.so.1"]),
            lib("e/libe.so.1"),
        ],
        ["via:@/o/libopener.so=libd.so.1"],
        ["path @/o/libopener.so"],
        [f"libe.so.1: {NO_SUCH_FILE}"],
    ),
    Case(
        "a library that was opened by path first finds no helper through an rpath, as nvrtc its builtins",
        [
            built(OPENER, "n/libopener.so", soname="libopener.so"),
            lib("n/libhelper.so.1"),
            lib("x/libx.so", needed=["libopener.so"], rpath="$ORIGIN/../n"),
        ],
        ["open:@/n/libopener.so", *OPEN_X, "via:@/n/libopener.so=libhelper.so.1"],
        ["path @/n/libopener.so", X_LOADED],
        [f"libhelper.so.1: {NO_SUCH_FILE}"],
    ),
    Case(
        "an empty element of a runpath is the current directory",
        [lib("here/libd.so.1"), needs_d(runpath="$ORIGIN:")],
        OPEN_X,
        [X_LOADED, "runpath libd.so.1"],
        cwd="@/here",
    ),
    Case(
        "an empty element of LD_LIBRARY_PATH is the current directory",
        [lib("here/libd.so.1"), A],
        OPEN_D,
        ["ld_library_path libd.so.1"],
        environment=path_of("", "@/a"),
        cwd="@/here",
    ),
    Case(
        "a semicolon separates in LD_LIBRARY_PATH",
        [A],
        OPEN_D,
        ["ld_library_path @/a/libd.so.1"],
        environment={"LD_LIBRARY_PATH": "/nowhere;@/a"},
    ),
    Case(
        "a semicolon does not separate in a runpath",
        [A, needs_d(runpath="/nowhere;$ORIGIN/../a")],
        OPEN_X,
        errors=[f"libd.so.1: {NO_SUCH_FILE}"],
    ),
    Case(
        "origin in LD_LIBRARY_PATH is the program's",
        [built(PROGRAM, "bin/program"), lib("lib/libd.so.1")],
        OPEN_D,
        ["ld_library_path @/bin/../lib/libd.so.1"],
        environment=path_of("$ORIGIN/../lib"),
        program="bin/program",
    ),
    Case(
        "a token may stand in braces, and longer words are no tokens",
        [lib("x/libd.so.1"), needs_d(runpath="$ORIGINAL:$FOO:${ORIGIN}")],
        OPEN_X,
        [X_LOADED, "runpath @/x/libd.so.1"],
    ),
    Case(
        "$LIB is the distribution's library directory",
        [lib(f"x/{HOST.lib}/libd.so.1"), needs_d(runpath="$ORIGIN/$LIB")],
        OPEN_X,
        [X_LOADED, f"runpath @/x/{HOST.lib}/libd.so.1"],
    ),
    Case(
        "a 32-bit library is passed by",
        [lib("a/libd.so.1", bits=32, machine=elf_writer.EM_386), B],
        OPEN_D,
        ["ld_library_path @/b/libd.so.1"],
        environment=A_AND_B,
    ),
    Case(
        "a library for another machine is passed by",
        [lib("a/libd.so.1", machine=EM_OTHER), B],
        OPEN_D,
        ["ld_library_path @/b/libd.so.1"],
        environment=A_AND_B,
    ),
    Case(
        "only a 32-bit library is a wrong class",
        [lib("a/libd.so.1", bits=32, machine=elf_writer.EM_386)],
        OPEN_D,
        errors=["libd.so.1: wrong ELF class: ELFCLASS32"],
        environment=path_of("@/a"),
    ),
    Case(
        "a text file ends the search",
        [content("a/libd.so.1", b"/* GNU ld script */ INPUT(libx.so)" + b" " * 100), B],
        OPEN_D,
        errors=["@/a/libd.so.1: invalid ELF header"],
        environment=A_AND_B,
    ),
    Case(
        "an empty file ends the search",
        [content("a/libd.so.1", b""), B],
        OPEN_D,
        errors=["@/a/libd.so.1: file too short"],
        environment=A_AND_B,
    ),
    Case(
        "a directory with the library's name ends the search",
        [directory("a/libd.so.1"), B],
        OPEN_D,
        errors=["@/a/libd.so.1: cannot read file data: Is a directory"],
        environment=A_AND_B,
    ),
    Case(
        "a dangling symlink is passed by",
        [symlink("a/libd.so.1", "nowhere"), B],
        OPEN_D,
        ["ld_library_path @/b/libd.so.1"],
        environment=A_AND_B,
    ),
    Case(
        "a symlink to itself ends the list of directories",
        [symlink("a/libd.so.1", "libd.so.1"), B],
        OPEN_D,
        errors=[f"libd.so.1: {NO_SUCH_FILE}"],
        environment=A_AND_B,
    ),
    Case(
        "a file where a directory should be is passed by",
        [content("z/file", b""), B],
        OPEN_D,
        ["ld_library_path @/b/libd.so.1"],
        environment=path_of("@/z/file", "@/b"),
    ),
    Case(
        "the best glibc-hwcaps subdirectory wins",
        [A, *(lib(f"a/glibc-hwcaps/x86-64-v{level}/libd.so.1") for level in (2, 3, 4))],
        OPEN_D,
        [f"ld_library_path @/a/{(HWCAPS or [''])[0]}libd.so.1"],
        environment=path_of("@/a"),
    ),
    Case(
        "glibc-hwcaps subdirectories count in a runpath",
        [lib("x/libd.so.1"), lib("x/glibc-hwcaps/x86-64-v2/libd.so.1"), needs_d(runpath="$ORIGIN")],
        OPEN_X,
        [X_LOADED, f"runpath @/x/{'glibc-hwcaps/x86-64-v2/' if HWCAPS else ''}libd.so.1"],
    ),
    Case(
        "the tls subdirectory counts before glibc 2.37",
        [A, lib("a/tls/libd.so.1")],
        OPEN_D,
        [f"ld_library_path @/a/{'tls/' if HOST.version < (2, 37) else ''}libd.so.1"],
        environment=path_of("@/a"),
    ),
    Case(
        "a preloaded library satisfies its soname",
        [lib("p/libd.so.1"), A, needs_d(rpath="$ORIGIN/../a")],
        OPEN_X,
        ["preload @/p/libd.so.1", X_LOADED],
        environment={"LD_PRELOAD": "@/p/libd.so.1"},
    ),
    Case(
        "a preload that is not there is ignored",
        [lib("p/libd.so.1")],
        [],
        ["preload @/p/libd.so.1"],
        environment={"LD_PRELOAD": "/nowhere/libq.so @/p/libd.so.1"},
    ),
    Case(
        "a needed name with a slash is opened, not searched",
        [A, lib("x/libx.so", needed=["@/a/libd.so.1"])],
        OPEN_X,
        [X_LOADED, "path @/a/libd.so.1"],
    ),
    Case(
        "a needed name may hold the origin",
        [A, lib("x/libx.so", needed=["$ORIGIN/../a/libd.so.1"])],
        OPEN_X,
        [X_LOADED, "path @/x/../a/libd.so.1"],
    ),
    Case(
        "a name given to dlopen may hold the caller's origin",
        [built(OPENER, "o/libopener.so"), A],
        ["via:@/o/libopener.so=$ORIGIN/../a/libd.so.1"],
        ["path @/o/libopener.so", "path @/o/../a/libd.so.1"],
    ),
    Case(
        "libraries load breadth first, so the root's copy wins over a dependency's",
        [
            A,
            B,
            needs_d("x/libm.so", runpath="$ORIGIN/../a"),
            lib("x/libx.so", needed=["libm.so", "libd.so.1"], runpath="$ORIGIN:$ORIGIN/../b"),
        ],
        OPEN_X,
        [X_LOADED, "runpath @/x/libm.so", "runpath @/x/../b/libd.so.1"],
    ),
    Case(
        "of two loaded libraries with one soname the first satisfies it",
        [A, B, needs_d()],
        ["open:@/b/libd.so.1", "open:@/a/libd.so.1", *OPEN_X],
        ["path @/b/libd.so.1", "path @/a/libd.so.1", X_LOADED],
    ),
    Case(
        "a failed dlopen leaves nothing behind",
        [
            A,
            B,
            lib("x/libx.so", needed=["libd.so.1", "libmissing.so"], runpath="$ORIGIN/../a"),
            needs_d("y/liby.so", runpath="$ORIGIN/../b"),
        ],
        [*OPEN_X, "open:@/y/liby.so"],
        ["path @/y/liby.so", "runpath @/y/../b/libd.so.1"],
        [f"libmissing.so: {NO_SUCH_FILE}"],
    ),
    Case(
        "an object marked NODEFLIB uses neither system directories nor what the cache has of them",
        [lib("x/libx.so", needed=["libz.so.1"], flags_1=DF_1_NODEFLIB)],
        OPEN_X,
        errors=["libz.so.1: cannot open shared object file"],
    ),
    Case(
        "ld.so.cache has what no path has",
        [],
        ["open:libz.so.1"],
        [f"cache {HOST.cache.lookup('libz.so.1')}"],
    ),
    Case(
        "the C library is loaded already",
        [
            lib("a/libc.so.6"),
            lib("x/libx.so", needed=["libc.so.6", os.path.basename(HOST.interpreter)], rpath="$ORIGIN/../a"),
        ],
        OPEN_X,
        [X_LOADED],
    ),
    Case(
        "RTLD_NOLOAD only finds what is loaded",
        [A],
        ["noload:@/a/libd.so.1", "open:@/a/libd.so.1", "noload:libd.so.1"],
        ["path @/a/libd.so.1"],
    ),
    Case(
        "trailing slashes do not matter",
        [A],
        OPEN_D,
        ["ld_library_path @/a/libd.so.1"],
        environment=path_of("@/a//", "@/a"),
    ),
    Case(
        "a relative element is looked up from the current directory, and so is the origin of what it finds",
        [needs_d("r/libx.so", runpath="$ORIGIN/../q"), lib("q/libd.so.1")],
        ["open:libx.so"],
        ["ld_library_path r/libx.so", "runpath @/r/../q/libd.so.1"],
        environment=path_of("r"),
    ),
    Case(
        "an object file from the compiler ends the search",
        [lib("a/libd.so.1", elf_type=elf_writer.ET_REL), B],
        OPEN_D,
        errors=["@/a/libd.so.1: only ET_DYN and ET_EXEC can be loaded"],
        environment=A_AND_B,
    ),
    Case(
        "$PLATFORM is the processor's name",
        [lib(f"x/{HOST.platform}/libd.so.1"), needs_d(runpath="$ORIGIN/$PLATFORM")],
        OPEN_X,
        [X_LOADED, f"runpath @/x/{HOST.platform}/libd.so.1"],
    ),
    Case(
        "who loaded a library first decides its rpath",
        [
            A,
            needs_d("x/libm1.so"),
            needs_d("x/libm2.so", rpath="$ORIGIN/../a"),
            lib("x/libx.so", needed=["libm1.so", "libm2.so"], runpath="$ORIGIN"),
        ],
        OPEN_X,
        errors=[f"libd.so.1: {NO_SUCH_FILE}"],
    ),
]


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    return Compiler(tmp_path_factory.mktemp("compiled"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id.replace(" ", "-"))
def test_the_prediction_is_what_the_linker_does(case: Case, tmp_path: Path, compiler: Compiler) -> None:
    check(case, tmp_path, compiler)
