# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Ask the real dynamic linker, and the prediction, the same question in the same form.

A question is a program, an environment, a directory and steps as loader_driver.c takes them; the answer is
what each step gave and what is mapped at the end.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.gpufleet.dflash.plugins.module_utils._loader import LoadError, Process, SymbolTables, System

SOURCES = Path(__file__).parent
PROGRAM = "loader_driver.c"
OPENER = "loader_opener.c"


@dataclass
class Answer:
    """``steps`` are (OK, path), (ERR, message) or (NONE, ""); ``maps`` the linker's names of all files in
    list order.
    """

    steps: list[tuple[str, str]] = field(default_factory=list)
    maps: list[str] = field(default_factory=list)
    start_error: str | None = None


class Compiler:
    """Builds the driver and the opener, each variant once, and copies them to where a case wants them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._built: dict[tuple[str, tuple[str, ...]], Path] = {}

    def build(self, source: str, target: Path | str, options: Sequence[str] = ()) -> Path:
        """Put what ``source`` compiles to at ``target``; ``options`` go to gcc."""
        key = (source, tuple(options))
        if key not in self._built:
            built = self._directory / f"built-{len(self._built)}"
            shared = ["-shared", "-fPIC"] if source == OPENER else []
            command = ["gcc", "-O1", *shared, "-o", str(built), str(SOURCES / source), *options]
            subprocess.run(command, check=True)
            self._built[key] = built
        target = Path(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self._built[key], target)
        return target


def link_options(rpath: str | None = None, runpath: str | None = None, soname: str | None = None) -> list[str]:
    """Return gcc's options for these dynamic tags."""
    options = []
    if rpath is not None:
        options += ["-Wl,--disable-new-dtags", f"-Wl,-rpath,{rpath}"]
    if runpath is not None:
        options += ["-Wl,--enable-new-dtags", f"-Wl,-rpath,{runpath}"]
    if soname is not None:
        options.append(f"-Wl,-soname,{soname}")
    return options


def ask_linker(
    program: Path, steps: Sequence[str], environment: Mapping[str, str], cwd: Path, user: int | None = None
) -> Answer:
    """Run the driver; ``user`` is the id to run it as, which takes root."""
    identity = {} if user is None else {"user": user, "group": user, "extra_groups": []}
    finished = subprocess.run(
        [str(program), *steps],
        env=dict(environment),
        cwd=cwd,
        capture_output=True,
        timeout=60,
        check=False,
        **identity,  # type: ignore[call-overload]
    )
    answer = Answer()
    for line in os.fsdecode(finished.stdout).splitlines():
        kind, _, text = line.partition(" ")
        if kind == "MAP":
            answer.maps.append(text)
        else:
            answer.steps.append((kind, text))
    errors = os.fsdecode(finished.stderr)
    started = re.search(
        r"error while loading shared libraries: (.*)|: (.*: version `.*)|symbol lookup error: (.*)", errors
    )
    if finished.returncode in (1, 127) and started:
        answer.start_error = _with_errno_text(started[1] or started[2] or started[3])
    elif finished.returncode != 0:
        raise AssertionError(f"the driver ended with {finished.returncode} after {answer.steps}: {errors}")
    answer.maps = [name for name in answer.maps if not re.match(r"linux-vdso(64)?\.so", name)]
    return answer


def _with_errno_text(message: str) -> str:
    """The linker says "Error 21" as long as the C library, which has the texts, is not in order."""
    return re.sub(r": Error (\d+)$", lambda match: f": {os.strerror(int(match[1]))}", message)


def predict(
    system: System,
    program: Path,
    steps: Sequence[str],
    environment: Mapping[str, str],
    cwd: Path,
    *,
    secure: bool = False,
    symbols: SymbolTables | None = None,
) -> tuple[Answer, Process]:
    """Predict what ask_linker returns; the process tells more, such as the rules."""
    process = Process(system, environment=environment, cwd=str(cwd), secure=secure, symbols=symbols)
    answer = Answer()
    try:
        process.start(str(program))
    except LoadError as error:
        answer.start_error = error.message
        return answer, process
    for step in steps:
        answer.steps += _predict_step(process, *step.split(":", 1))
    answer.maps = [loaded.name for loaded in process.loaded]
    return answer, process


def _predict_step(process: Process, kind: str, argument: str) -> list[tuple[str, str]]:
    try:
        if kind == "chdir":
            process.chdir(argument)
            return []
        if kind == "noload":
            present = process.is_loaded(argument)
            return [("OK", present.name) if present else ("NONE", "")]
        caller = None
        if kind == "via":
            path, _, argument = argument.partition("=")
            caller = process.dlopen(path)
        return [("OK", process.dlopen(argument, caller, rtld_global=kind == "global").name)]
    except LoadError as error:
        return [("ERR", error.message)]
