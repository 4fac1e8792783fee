# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Cases for the dynamic linker: files, steps and what must come of them, the same for the real linker and the
prediction.

In a case ``@`` stands for the folder that its files are made in.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.gpufleet.dflash.plugins.module_utils._loader import Process, System
from support import elf_writer
from support.loader_oracle import OPENER, PROGRAM, Answer, Compiler, ask_linker, link_options, predict

__all__ = ["OPENER", "PROGRAM", "Case", "Make"]

HOST = System.of_host()
NO_SUCH_FILE = "cannot open shared object file: No such file or directory"
EM_OTHER = elf_writer.EM_AARCH64 if elf_writer.host_machine() == elf_writer.EM_X86_64 else elf_writer.EM_X86_64

Make = Callable[[Path, Compiler], None]


def at(text: str, root: Path) -> str:
    return text.replace("@", str(root))


def lib(path: str, **properties: Any) -> Make:
    """A library at ``path`` whose soname is its file name unless said otherwise."""
    properties.setdefault("soname", os.path.basename(path))

    def make(root: Path, _compiler: Compiler) -> None:
        needed = [at(name, root) for name in properties.get("needed", ())]
        elf_writer.write_elf(root / path, **{**properties, "needed": needed})

    return make


def built(source: str, path: str, **tags: str) -> Make:
    """The driver program or the library that calls dlopen, at ``path``, with dynamic tags."""
    return lambda root, compiler: (compiler.build(source, root / path, link_options(**tags)), None)[1]


def content(path: str, data: bytes, mode: int = 0o644) -> Make:
    def make(root: Path, _compiler: Compiler) -> None:
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        target.chmod(mode)

    return make


def symlink(path: str, target: str) -> Make:
    def make(root: Path, _compiler: Compiler) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).symlink_to(target)

    return make


def hard_link(path: str, target: str) -> Make:
    def make(root: Path, _compiler: Compiler) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        os.link(root / target, root / path)

    return make


def directory(path: str) -> Make:
    return lambda root, _compiler: (root / path).mkdir(parents=True)


@dataclass
class Case:
    """``maps`` lists what is mapped at the end besides the program, the C library and the linker, each as
    "rule name"; ``errors`` the text of each step that fails.
    """

    id: str
    files: list[Make]
    steps: list[str]
    maps: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    cwd: str = "@"
    program: str | None = None


def path_of(*directories: str) -> dict[str, str]:
    return {"LD_LIBRARY_PATH": ":".join(directories)}


OPEN_X = ["open:@/x/libx.so"]
OPEN_D = ["open:libd.so.1"]
X_LOADED = "path @/x/libx.so"
A, B = lib("a/libd.so.1"), lib("b/libd.so.1")
A_AND_B = path_of("@/a", "@/b")


def needs_d(path: str = "x/libx.so", **properties: Any) -> Make:
    """A library that needs libd.so.1."""
    return lib(path, needed=["libd.so.1"], **properties)


def beside_the_basics(answer: Answer) -> list[str]:
    """Return the maps but for the program, the C library and the linker."""
    basics = ("", HOST.interpreter, HOST.cache.lookup("libc.so.6"))
    return [name for name in answer.maps if name not in basics]


def check(case: Case, root: Path, compiler: Compiler) -> Process:
    """Ask the real linker and the prediction, and assert that both did what the case says."""
    for make in case.files:
        make(root, compiler)
    program = root / case.program if case.program else compiler.build(PROGRAM, root / "program")
    steps = [at(step, root) for step in case.steps]
    environment = {name: at(value, root) for name, value in case.environment.items()}
    cwd = Path(at(case.cwd, root))

    real = ask_linker(program, steps, environment, cwd)
    predicted, process = predict(HOST, program, steps, environment, cwd)

    assert predicted == real
    assert [text for kind, text in real.steps if kind == "ERR"] == [at(error, root) for error in case.errors]
    rules = {loaded.name: loaded.rule for loaded in process.loaded}
    expected = [at(entry, root).split(" ", 1) for entry in case.maps]
    assert [[rules[name], name] for name in beside_the_basics(real)] == expected
    return process
