# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Random library trees, most of them odd, loaded by the real linker and predicted.

``DFLASH_LOADER_SEEDS`` sets how many (default 300), ``DFLASH_LOADER_FIRST_SEED`` where they begin. A failure
names its seed.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from support import elf_writer
from support.loader_oracle import OPENER, PROGRAM, Compiler, ask_linker, link_options, predict

from ansible_collections.gpufleet.dflash.plugins.module_utils._elf import DF_1_NODEFLIB
from ansible_collections.gpufleet.dflash.plugins.module_utils._loader import System

HOST = System.of_host()
SEEDS = int(os.environ.get("DFLASH_LOADER_SEEDS", "300"))
FIRST_SEED = int(os.environ.get("DFLASH_LOADER_FIRST_SEED", "0"))
BATCH = 20

DIRECTORIES = ["a", "b", "c", "d/deep", "e"]
SUBDIRECTORIES = [*[""] * 9, *(prefix for prefix in HOST.subdirectories if prefix), "glibc-hwcaps/x86-64-v9/"]
NAMES = [f"lib{letter}.so.1" for letter in "abcde"]
OTHER_MACHINE = elf_writer.EM_AARCH64 if elf_writer.host_machine() == elf_writer.EM_X86_64 else elf_writer.EM_X86_64
SEARCH_ELEMENTS = [
    "$ORIGIN",
    "${ORIGIN}",
    "$ORIGIN/../a",
    "$ORIGIN/../b/",
    "$ORIGIN/../c//",
    "$ORIGIN/../d/deep",
    "$ORIGIN/../$LIB",
    "$ORIGIN/$PLATFORM",
    "$ORIGINAL",
    "@/a",
    "@/b",
    "@/e",
    "@/nowhere",
    "@/link",
    "a",
    "c",
    "",
]
PROGRAM_TAGS: list[dict[str, str]] = [{}, {"rpath": "$ORIGIN/../a:$ORIGIN/../b"}, {"runpath": "$ORIGIN/../c"}]
OPENER_TAGS: list[dict[str, str]] = [
    {},
    {"soname": "libopener.so"},
    {"rpath": "$ORIGIN/../a:$ORIGIN/../c", "soname": "libopener.so"},
    {"runpath": "$ORIGIN/../b:$ORIGIN", "soname": "libopener.so"},
]


class Tree:
    """One seed's files, environment and steps."""

    def __init__(self, seed: int, root: Path, compiler: Compiler) -> None:
        self._random = random.Random(seed)
        self._root = root
        self._files: list[Path] = []
        self.program = compiler.build(PROGRAM, root / "bin/program", link_options(**self._random.choice(PROGRAM_TAGS)))
        self._openers = [
            compiler.build(OPENER, root / directory / "libopener.so", link_options(**self._random.choice(OPENER_TAGS)))
            for directory in self._random.sample(DIRECTORIES, 2)
        ]
        for _ in range(self._random.randint(8, 30)):
            self._add_file()
        for directory in DIRECTORIES[:4]:
            (root / directory).mkdir(parents=True, exist_ok=True)
        (root / "link").symlink_to(self._random.choice(DIRECTORIES[:4]))
        self.cwd = root / self._random.choice([".", "a", "link"])
        self.environment = self._make_environment()
        self.steps = [self._make_step() for _ in range(self._random.randint(1, 7))]

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def _add_file(self) -> None:
        directory = self._random.choice(DIRECTORIES) + "/" + self._random.choice(SUBDIRECTORIES)
        path = self._root / directory / self._random.choice(NAMES)
        if os.path.lexists(path):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        if self._chance(0.7):
            self._add_library(path)
        else:
            self._random.choice(
                [self._add_odd_library, self._add_other_content, self._add_symlink, self._add_second_name]
            )(path)

    def _add_library(self, path: Path, **properties: object) -> None:
        name = path.name
        soname = self._random.choices([name, None, self._random.choice(NAMES), "libother.so.2"], [8, 1, 1, 1])[0]
        needed = self._random.sample(NAMES, self._random.choice([0, 0, 0, 1, 1, 2]))
        extra = [
            "libopener.so",
            "libc.so.6",
            "$ORIGIN/" + self._random.choice(NAMES),
            str(self._root / "a" / NAMES[0]),
        ]
        if self._chance(0.15):
            needed.append(self._random.choice(extra))
        arguments = {
            "soname": soname,
            "needed": needed,
            "rpath": self._search_path() if self._chance(0.45) else None,
            "runpath": self._search_path() if self._chance(0.3) else None,
            "flags_1": DF_1_NODEFLIB if self._chance(0.03) else 0,
            **self._versions(name, needed),
            **properties,
        }
        elf_writer.write_elf(path, **arguments)
        self._files.append(path)

    def _versions(self, name: str, needed: list[str]) -> dict[str, object]:
        versions: dict[str, object] = {}
        if self._chance(0.1):
            versions["version_defs"] = [name, *self._random.sample(["V_1", "V_2", "V_3"], 2)]
        if needed and needed[0] in NAMES and self._chance(0.1):
            versions["version_needs"] = {needed[0]: [(self._random.choice(["V_1", "V_2"]), self._chance(0.3))]}
        return versions

    def _add_odd_library(self, path: Path) -> None:
        kinds: list[dict[str, Any]] = [
            {"bits": 32, "machine": elf_writer.EM_386},
            {"machine": OTHER_MACHINE},
            {"elf_type": elf_writer.ET_REL},
            {"elf_type": elf_writer.ET_EXEC},
            {"with_dynamic": False},
            {"byteorder": "big"},
        ]
        self._add_library(path, **self._random.choice(kinds))

    def _add_other_content(self, path: Path) -> None:
        kind = self._random.choice(["empty", "text", "directory"])
        if kind == "directory":
            path.mkdir()
        else:
            path.write_bytes(b"" if kind == "empty" else b"INPUT(libx.so)" * 20)

    def _add_symlink(self, path: Path) -> None:
        targets = [path.name, "nowhere", *(os.path.relpath(file, path.parent) for file in self._files)]
        path.symlink_to(self._random.choice(targets))

    def _add_second_name(self, path: Path) -> None:
        if self._files:
            (os.link if self._chance(0.6) else shutil.copy)(self._random.choice(self._files), path)

    def _search_path(self, separator: str = ":") -> str:
        elements = self._random.choices(SEARCH_ELEMENTS, k=self._random.choice([0, 1, 2, 3, 4, 5]))
        return separator.join(elements).replace("@", str(self._root))

    def _make_environment(self) -> dict[str, str]:
        environment = {}
        if self._chance(0.75):
            environment["LD_LIBRARY_PATH"] = self._search_path(self._random.choice(":;"))
        if self._chance(0.2):
            separator = self._random.choice(" :")
            environment["LD_PRELOAD"] = separator.join(self._a_name() for _ in range(self._random.randint(1, 2)))
        return environment

    def _a_name(self) -> str:
        if self._files and self._chance(0.5):
            return str(self._random.choice(self._files))
        return self._random.choice(NAMES)

    def _make_step(self) -> str:
        kind = self._random.choices(["open", "via", "noload", "chdir"], [6, 3, 1, 1])[0]
        if kind == "via":
            return f"via:{self._random.choice(self._openers)}={self._a_name()}"
        if kind == "chdir":
            target = self._root / self._random.choice(DIRECTORIES)
            target.mkdir(parents=True, exist_ok=True)
            return f"chdir:{target}"
        return f"{kind}:{self._a_name()}"


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    return Compiler(tmp_path_factory.mktemp("compiled"))


@pytest.mark.parametrize("first", range(FIRST_SEED, FIRST_SEED + SEEDS, BATCH))
def test_random_trees_load_as_predicted(first: int, tmp_path: Path, compiler: Compiler) -> None:
    for seed in range(first, min(first + BATCH, FIRST_SEED + SEEDS)):
        root = tmp_path / str(seed)
        tree = Tree(seed, root, compiler)
        real = ask_linker(tree.program, tree.steps, tree.environment, tree.cwd)
        predicted, _process = predict(HOST, tree.program, tree.steps, tree.environment, tree.cwd)
        assert predicted == real, f"seed {seed}: {tree.steps} {tree.environment}: {predicted} {real}"
        shutil.rmtree(root)
