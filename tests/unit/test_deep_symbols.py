# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Symbols that nothing defines: the real linker and the prediction, on written, compiled and random libraries.

``DFLASH_SYMBOL_SEEDS`` sets how many random trees (default 400), ``DFLASH_SYMBOL_DAMAGED`` how many damaged files
(default 1500).
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.elf_writer import (
    EM_386,
    STB_WEAK,
    STV_HIDDEN,
    STV_PROTECTED,
    Symbol,
    damage,
    gnu_hash,
    write_elf,
)
from support.loader_oracle import PROGRAM, Answer, Compiler, ask_linker, predict

from ansible_collections.gpufleet.dflash.plugins.module_utils import _elf_symbols
from ansible_collections.gpufleet.dflash.plugins.module_utils._elf import ElfError
from ansible_collections.gpufleet.dflash.plugins.module_utils._elf_symbols import SymbolTable
from ansible_collections.gpufleet.dflash.plugins.module_utils._loader import (
    LoadError,
    Process,
    SymbolTables,
    System,
)

HOST = System.of_host()
SEEDS = int(os.environ.get("DFLASH_SYMBOL_SEEDS", "400"))
DAMAGED = int(os.environ.get("DFLASH_SYMBOL_DAMAGED", "1500"))
BATCH = 50
CALL: dict[str, Any] = {"wanted": True, "relocation": "call"}


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    return Compiler(tmp_path_factory.mktemp("compiled"))


def ask_both(root: Path, compiler: Compiler, steps: list[str], **environment: str) -> tuple[Answer, Process]:
    """The real linker's answer and the predicted process, which must agree."""
    program = compiler.build(PROGRAM, root / "program")
    environment = {"LD_LIBRARY_PATH": str(root), **environment}
    real = ask_linker(program, steps, environment, root)
    predicted, process = predict(HOST, program, steps, environment, root, symbols=SymbolTables())
    assert predicted == real
    return real, process


def errors(answer: Answer) -> list[str]:
    return [text.rpartition(": undefined symbol: ")[2] for kind, text in answer.steps if kind == "ERR"]


# --- written libraries, each rule by itself -------------------------------------------------------------

VERSIONED: dict[str, Any] = {"version_defs": ["libd.so.1", "V_1", "V_2"]}
WANTS_V_2: dict[str, Any] = {"version_needs": {"libd.so.1": [("V_2", False)]}}
RULES: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    # id: the library's symbols, those of what needs it, what is undefined
    "defined": ({"symbols": ["s"]}, {"symbols": [Symbol("s", wanted=True)]}, []),
    "undefined data": ({}, {"symbols": [Symbol("s", wanted=True)]}, ["s"]),
    "undefined call": ({}, {"symbols": [Symbol("s", **CALL)]}, ["s"]),
    "weak may be missing": ({}, {"symbols": [Symbol("s", wanted=True, binding=STB_WEAK)]}, []),
    "without a relocation never looked up": ({}, {"symbols": [Symbol("s", wanted=True, relocation=None)]}, []),
    "hidden reference is its own": ({}, {"symbols": [Symbol("s", wanted=True, visibility=STV_HIDDEN)]}, []),
    "hidden definition defines nothing": (
        {"symbols": [Symbol("s", visibility=STV_HIDDEN)]},
        {"symbols": [Symbol("s", wanted=True)]},
        ["s"],
    ),
    "protected definition": (
        {"symbols": [Symbol("s", visibility=STV_PROTECTED)]},
        {"symbols": [Symbol("s", wanted=True)]},
        [],
    ),
    "weak definition": ({"symbols": [Symbol("s", binding=STB_WEAK)]}, {"symbols": [Symbol("s", wanted=True)]}, []),
    "a section or a file is no definition": (
        {"symbols": [Symbol("s", kind=3), Symbol("t", kind=4)]},
        {"symbols": [Symbol("s", wanted=True), Symbol("t", wanted=True)]},
        ["s"],
    ),
    "prefix of a name": ({"symbols": ["symbol"]}, {"symbols": [Symbol("symbo", wanted=True)]}, ["symbo"]),
    "version matches": (
        {**VERSIONED, "symbols": [Symbol("s", version="V_2")]},
        {**WANTS_V_2, "symbols": [Symbol("s", wanted=True, version="V_2")]},
        [],
    ),
    "another version": (
        {**VERSIONED, "symbols": [Symbol("s", version="V_1")]},
        {**WANTS_V_2, "symbols": [Symbol("s", wanted=True, version="V_2")]},
        ["s, version V_2"],
    ),
    "older spelling name@VERSION": (
        {**VERSIONED, "symbols": [Symbol("s", version="V_2", hidden_version=True)]},
        {**WANTS_V_2, "symbols": [Symbol("s", wanted=True, version="V_2")]},
        [],
    ),
    "base version serves every version": (
        {**VERSIONED, "symbols": ["s"]},
        {**WANTS_V_2, "symbols": [Symbol("s", wanted=True, version="V_2")]},
        [],
    ),
    "hidden base version does not": (
        {**VERSIONED, "symbols": [Symbol("s", hidden_version=True)]},
        {**WANTS_V_2, "symbols": [Symbol("s", wanted=True, version="V_2")]},
        ["s, version V_2"],
    ),
    "without a version the oldest": (
        {**VERSIONED, "symbols": [Symbol("s", version="V_1", hidden_version=True)]},
        {"symbols": [Symbol("s", wanted=True)]},
        [],
    ),
    "without a version the only newer": (
        {**VERSIONED, "symbols": [Symbol("s", version="V_2")]},
        {"symbols": [Symbol("s", wanted=True)]},
        [],
    ),
    "without a version no hidden newer": (
        {**VERSIONED, "symbols": [Symbol("s", version="V_2", hidden_version=True)]},
        {"symbols": [Symbol("s", wanted=True)]},
        ["s"],
    ),
    "without a version none of two newer": (
        {
            "version_defs": ["libd.so.1", "V_1", "V_2", "V_3"],
            "symbols": [Symbol("s", version="V_2"), Symbol("s", version="V_3")],
        },
        {"symbols": [Symbol("s", wanted=True)]},
        ["s"],
    ),
}


@pytest.mark.parametrize("style", ["sysv", "gnu", "both"])
@pytest.mark.parametrize("rule", RULES, ids=[name.replace(" ", "-") for name in RULES])
def test_a_symbol_is_found_as_the_linker_finds_it(rule: str, style: str, tmp_path: Path, compiler: Compiler) -> None:
    provider, user, undefined = RULES[rule]
    write_elf(tmp_path / "libd.so.1", soname="libd.so.1", hash_style=style, **provider)
    write_elf(tmp_path / "libu.so", needed=["libd.so.1"], hash_style=style, **user)

    real, process = ask_both(tmp_path, compiler, [f"open:{tmp_path}/libu.so"])

    assert errors(real) == undefined
    # A failed dlopen leaves nothing mapped.
    assert ("libd.so.1" in [loaded.soname for loaded in process.loaded]) == (not undefined)


def test_scopes_are_global_and_the_opened_objects_own(tmp_path: Path, compiler: Compiler) -> None:
    write_elf(tmp_path / "liba.so", soname="liba.so", symbols=["s"])
    write_elf(tmp_path / "libu.so", soname="libu.so", symbols=[Symbol("s", wanted=True)])
    write_elf(tmp_path / "libboth.so", soname="libboth.so", needed=["libu.so", "liba.so"])
    user, provider, both = (f"open:{tmp_path}/{name}" for name in ("libu.so", "liba.so", "libboth.so"))
    make_global = f"global:{tmp_path}/liba.so"

    assert errors(ask_both(tmp_path, compiler, [provider, user])[0]) == ["s"]
    assert errors(ask_both(tmp_path, compiler, [make_global, user])[0]) == []
    # promoted later, as RTLD_GLOBAL for what is there already
    assert errors(ask_both(tmp_path, compiler, [provider, make_global, user])[0]) == []
    assert errors(ask_both(tmp_path, compiler, [both])[0]) == []
    assert errors(ask_both(tmp_path, compiler, [user], LD_PRELOAD=f"{tmp_path}/liba.so")[0]) == []
    # a failed dlopen leaves nothing behind, and may succeed later
    real, process = ask_both(tmp_path, compiler, [user, make_global, user])
    assert [kind for kind, _text in real.steps] == ["ERR", "OK", "OK"]
    assert process.loaded[-1].soname == "libu.so"


def test_a_preloaded_object_binds_calls_later_and_data_at_once(tmp_path: Path, compiler: Compiler) -> None:
    write_elf(tmp_path / "libcall.so", symbols=[Symbol("s", **CALL)])
    write_elf(tmp_path / "libdata.so", symbols=[Symbol("s", wanted=True)])

    assert ask_both(tmp_path, compiler, [], LD_PRELOAD=f"{tmp_path}/libcall.so")[0].start_error is None
    for name, now in (("libdata.so", ""), ("libcall.so", "1")):
        real, _process = ask_both(tmp_path, compiler, [], LD_PRELOAD=f"{tmp_path}/{name}", LD_BIND_NOW=now)
        assert real.start_error == f"{tmp_path}/{name}: undefined symbol: s"


# --- compiled libraries, with ldd -r for all symbols at once -------------------------------------------


def gcc(root: Path, name: str, source: str, *options: str) -> Path:
    target = root / name
    (root / f"{name}.c").write_text(source, encoding="utf-8")
    command = ["gcc", "-O1", "-shared", "-fPIC", "-w", "-o", str(target), str(root / f"{name}.c")]
    subprocess.run([*command, f"-Wl,-soname,{name}", *options], check=True)
    return target


def ldd_undefined(path: Path, library_path: Path) -> set[str]:
    """The symbols that ``ldd -r`` misses, with their versions."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library_path)}
    finished = subprocess.run(["ldd", "-r", str(path)], env=environment, capture_output=True, text=True, check=False)
    lines = (finished.stdout + finished.stderr).splitlines()
    found = (line.split("\t")[0].partition(": ")[2] for line in lines if line.startswith("undefined symbol:"))
    return {text.removesuffix(",") if "version" not in text else text for text in (each.strip() for each in found)}


def own_undefined(path: Path, library_path: Path) -> set[str]:
    process = Process(HOST, environment={"LD_LIBRARY_PATH": str(library_path)}, cwd="/", symbols=SymbolTables())
    process.start("/bin/true")
    try:
        process.dlopen(str(path))
    except LoadError as error:
        assert error.undefined, error
        return {each.symbol + (f", version {each.version}" if each.version else "") for each in error.undefined}
    return set()


USER = """
extern int plain(void); extern int versioned(void); extern int gone(void); extern int data; extern __thread int local;
extern int maybe(void) __attribute__((weak)); extern int ifunc_gone(void);
int *address(void) { return &data; }
int (*pointer)(void) = ifunc_gone;
int user(void) { return plain() + versioned() + gone() + local + (maybe ? maybe() : 0); }
"""
FULL = """
int data; __thread int local; int plain(void) { return 1; } int versioned(void) { return 2; }
int gone(void) { return 3; } int ifunc_gone(void) { return 4; }
"""
REDUCED = "int plain(void) { return 1; } static int hidden_one(void) { return 3; }"


@pytest.mark.parametrize("style", ["gnu", "sysv", "both"])
@pytest.mark.parametrize("versions", [True, False])
def test_compiled_libraries_miss_what_ldd_says(style: str, versions: bool, tmp_path: Path) -> None:
    script = tmp_path / "versions.map"
    script.write_text("libp.so.1 { global: *; };\n", encoding="utf-8")
    options = [f"-Wl,--hash-style={style}", *([f"-Wl,--version-script={script}"] if versions else [])]
    new, old = tmp_path / "new", tmp_path / "old"
    for directory, source in ((new, FULL), (old, REDUCED)):
        directory.mkdir()
        gcc(directory, "libp.so.1", source, *options)
    user = gcc(tmp_path, "libuser.so", USER, f"-Wl,--hash-style={style}", str(new / "libp.so.1"))

    assert own_undefined(user, new) == ldd_undefined(user, new) == set()
    missing = own_undefined(user, old)
    assert missing == ldd_undefined(user, old)
    assert len(missing) == 5


def test_a_library_that_exports_nothing_still_wants_symbols(tmp_path: Path, compiler: Compiler) -> None:
    """Its hash table has no symbol, so it does not tell how many there are."""
    user = gcc(
        tmp_path,
        "libuser.so",
        "extern int gone(void); static int f(void) { return gone(); } static int (*p)(void) "
        '__attribute__((used, section(".init_array"))) = 0; static int (*q)(void) __attribute__((used)) = f;',
        "-Wl,--hash-style=gnu",
        "-nostdlib",
    )
    real, _process = ask_both(tmp_path, compiler, [f"open:{user}"])
    assert errors(real) == ["gone"]


@pytest.mark.parametrize(
    "name", ["libstdc++.so.6", "libm.so.6", "libgcc_s.so.1", "libssl.so.3", "libpython3.11.so.1.0"]
)
def test_the_hosts_own_libraries_lack_nothing(name: str) -> None:
    path = HOST.cache.lookup(name)
    if path is None:
        pytest.skip(f"no {name} here")
    assert own_undefined(Path(path), Path("/nowhere")) == set()


# --- random trees --------------------------------------------------------------------------------------

NAMES = [f"lib{letter}.so.1" for letter in "abcdef"]
SYMBOLS = [f"symbol_{number}" for number in range(8)]
VERSIONS = ["V_1", "V_2", "V_3"]


def random_tree(seed: int, root: Path) -> list[str]:
    """Write libraries that need each other at random, and return steps that open some of them."""
    choice = random.Random(seed)
    for name in NAMES:
        needed = choice.sample(NAMES, choice.choice([0, 1, 1, 2]))
        definitions = [name, *VERSIONS] if choice.random() < 0.5 else []
        wanted_versions: dict[str, list[tuple[str, bool]]] = {}
        if needed and choice.random() < 0.6:
            wanted_versions = {needed[0]: [(choice.choice(VERSIONS), choice.random() < 0.1)]}
        symbols: list[Symbol] = []
        for symbol in choice.sample(SYMBOLS, choice.randint(0, 6)):
            if choice.random() < 0.75:
                symbols.append(
                    Symbol(
                        symbol,
                        version=choice.choice([None, *VERSIONS]) if definitions else None,
                        hidden_version=bool(definitions) and choice.random() < 0.15,
                        binding=choice.choice([1, 1, 1, STB_WEAK]),
                        visibility=choice.choice([0, 0, 0, 0, 0, STV_HIDDEN, STV_PROTECTED]),
                        kind=choice.choice([0, 1, 2, 2, 2, 3]),
                    )
                )
            else:
                version = choice.choice([None, *(v for each in wanted_versions.values() for v, _weak in each)])
                symbols.append(
                    Symbol(
                        symbol,
                        wanted=True,
                        version=version,
                        binding=choice.choice([1, 1, 1, 1, STB_WEAK]),
                        relocation=choice.choice(["data", "call", "call", None]),
                    )
                )
        write_elf(
            root / name,
            soname=choice.choice([name, name, name, None]),
            needed=needed,
            # Some need of its own, as the C library is for a real one: the linker asserts that whoever is named
            # by a version need has version information.
            version_needs={
                "libc.so.6": [("GLIBC_2.2.5" if os.uname().machine == "x86_64" else "GLIBC_2.17", False)],
                **wanted_versions,
            },
            version_defs=definitions,
            symbols=symbols,
            hash_style=choice.choice(["sysv", "gnu", "both"]),
        )
    kinds = [choice.choice(["open", "open", "global"]) for _ in range(choice.randint(1, 5))]
    return [f"{kind}:{choice.choice([str(root / name), name])}" for kind in kinds for name in [choice.choice(NAMES)]]


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_random_trees_lack_what_the_linker_says(first: int, tmp_path: Path, compiler: Compiler) -> None:
    outcomes = []
    for seed in range(first, first + BATCH):
        root = tmp_path / str(seed)
        steps = random_tree(seed, root)
        try:
            real, _process = ask_both(root, compiler, steps)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {steps}: {error}") from error
        outcomes += [kind if kind == "OK" else text.rpartition(": ")[0][-16:] for kind, text in real.steps]
        shutil.rmtree(root)
    # A generator that makes only one kind of tree would prove nothing.
    assert outcomes.count("OK") > len(outcomes) // 10
    assert outcomes.count("undefined symbol") > len(outcomes) // 10


# --- damaged files -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bits", "order"), [(64, "little"), (64, "big"), (32, "little"), (32, "big")])
@pytest.mark.parametrize("style", ["sysv", "gnu"])
def test_every_class_and_byte_order_is_read(tmp_path: Path, bits: int, order: str, style: str) -> None:
    path = write_elf(
        tmp_path / "lib.so",
        bits=bits,
        byteorder=order,
        machine=EM_386,
        hash_style=style,
        version_defs=["lib.so", "V_1"],
        version_needs={"libd.so": [("V_2", False)]},
        symbols=[Symbol("a", version="V_1"), Symbol("b"), Symbol("c", wanted=True, version="V_2"), Symbol("d", **CALL)],
    )

    table = SymbolTable(str(path))

    references = table.references()
    assert {each.key for each in references} == {(b"c", "V_2"), (b"d", None)}
    positions = [each.position for each in references]
    assert sorted(table.needed_at_load(positions)) == sorted(positions)
    assert len(table.needed_at_load(positions, lazily=True)) == 1
    keys = {(name, version): gnu_hash(name) for name in (b"a", b"b", b"c", b"x") for version in (None, "V_1", "V_9")}
    assert set(table.defined(keys)) == {(b"a", None), (b"a", "V_1"), (b"b", None), (b"b", "V_1"), (b"b", "V_9")}


@pytest.mark.parametrize("style", ["sysv", "gnu"])
def test_damaged_files_are_an_error_with_their_name(style: str, tmp_path: Path) -> None:
    whole = write_elf(
        tmp_path / "whole.so",
        hash_style=style,
        version_defs=["lib.so", "V_1"],
        version_needs={"libd.so": [("V_2", False)]},
        symbols=[Symbol(f"s{n}", wanted=n % 3 == 0, relocation=["data", "call"][n % 2]) for n in range(30)],
    ).read_bytes()
    keys = {(f"s{n}".encode(), version): gnu_hash(f"s{n}".encode()) for n in range(30) for version in (None, "V_1")}
    path = tmp_path / "damaged.so"
    read = refused = 0
    begin = time.process_time()
    for seed in range(DAMAGED):
        path.write_bytes(damage(whole, seed))
        try:
            table = SymbolTable(str(path))
            positions = {each.position for each in table.references()}
            table.defined(keys)
            table.needed_at_load(positions)
            read += 1
        except ElfError as error:
            assert error.path == str(path)
            assert error.reason
            refused += 1
    assert read > DAMAGED // 20
    assert refused > DAMAGED // 20
    assert time.process_time() - begin < DAMAGED * 0.02


def test_a_hostile_chain_ends(tmp_path: Path) -> None:
    """Every name in one bucket of one chain, and a filter that lets all through."""
    count = 20_000
    path = write_elf(tmp_path / "lib.so", hash_style="gnu", symbols=[f"s{n}" for n in range(4)])
    data = bytearray(path.read_bytes())
    at = data.find(b"\x02\0\0\0\x01\0\0\0\x01\0\0\0\x05\0\0\0")
    assert at > 0
    data[at : at + 4] = (1).to_bytes(4, "little")
    data[at + 16 : at + 24] = b"\xff" * 8
    data[at + 24 : at + 28] = (1).to_bytes(4, "little")
    data[at + 28 :] = bytes(4 * count)
    path.write_bytes(data)
    with pytest.raises(ElfError):
        SymbolTable(str(path))


def test_an_object_whose_symbols_cannot_be_read_is_named_and_accuses_nobody(tmp_path: Path) -> None:
    write_elf(tmp_path / "libd.so", soname="libd.so", hash_style="gnu", symbols=["s"])
    write_elf(tmp_path / "libu.so", needed=["libd.so"], runpath="$ORIGIN", symbols=[Symbol("s", wanted=True)])
    data = (tmp_path / "libd.so").read_bytes()
    at = data.find(b"\x01\0\0\0\x01\0\0\0\x01\0\0\0\x05\0\0\0")
    (tmp_path / "libd.so").write_bytes(data[:at] + b"\xff" * 16 + data[at + 16 :])
    tables = SymbolTables()
    process = Process(HOST, environment={}, cwd="/", symbols=tables)
    process.start(sys.executable)

    process.dlopen(str(tmp_path / "libu.so"))

    assert list(tables.damaged) == [str(tmp_path / "libd.so")]


def test_limits_are_far_above_a_real_library() -> None:
    path = HOST.cache.lookup("libc.so.6")
    assert path is not None
    assert SymbolTable(path).count * 100 < _elf_symbols._MAX_SYMBOLS
