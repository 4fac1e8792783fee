# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real venvs of real torch and NVIDIA wheels, made by the real uv, and what a real interpreter does in them.

The wheels (gigabytes) are fetched once, by name, version and hash, into ``UV_CACHE_DIR`` or the checkout's
.cache/uv-real; from there uv makes a venv of hard links in two seconds:

- ``kept(LOCK)`` is the venv of a lock, for tests that only read. It stays in .cache/real/<key> between runs.
- ``scratch(LOCK)`` is a context with a new venv that a test may spoil, with ``install``, ``uninstall`` and the
  commands of a fix (``type_in``). Never write into a file in place: through its hard link that changes the cache
  and every other venv. Whatever uv does, and unlink, rename and new files, are safe.
- ``really_run`` imports and loads in a real process, with this host's ld.so.cache or without it; ``foresee`` is
  the product's answer to the same question.

``python -m support.real_venv`` fetches everything, with uv's own display of progress.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.gpufleet.dflash.plugins.module_utils._catalogue import DRIVER_LIBRARIES
from ansible_collections.gpufleet.dflash.plugins.module_utils._facts import Request, gather, result
from ansible_collections.gpufleet.dflash.plugins.module_utils._loader import System
from ansible_collections.gpufleet.dflash.plugins.module_utils._lock import (
    LockEntry,
    lock_digest,
    read_lock,
    render_lock,
)
from support.small_wheels import CHECKOUT, site_packages, uv

REAL = CHECKOUT / ".cache" / "real"
FIXTURES = CHECKOUT / "tests" / "fixtures"


def _read(name: str) -> tuple[LockEntry, ...]:
    return read_lock((FIXTURES / name).read_text(), name)


CU13 = _read("torch-2.11.0-cu13.txt")
CU12 = _read("torch-2.10.0-cu12.txt")
# What people install beside and over a complete CUDA 13 set.
CONTAMINANTS = _read("contaminants.txt")


def entries(lock: Iterable[LockEntry], *names: str) -> tuple[LockEntry, ...]:
    """The entries of a lock with these names."""
    found = {entry.name: entry for entry in lock}
    return tuple(found[name] for name in names)


def cuda_wheels(lock: Iterable[LockEntry]) -> tuple[LockEntry, ...]:
    """NVIDIA's wheels of a lock."""
    return tuple(entry for entry in lock if entry.name.startswith("nvidia-"))


def uv_environment() -> dict[str, str]:
    """The variables with which uv, as a user types it, finds the index of this machine and our cache."""
    return {
        **{name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "UV_PYTHON")},
        "PATH": f"{Path(uv()).parent}{os.pathsep}{os.environ['PATH']}",
        "UV_CACHE_DIR": os.environ.get("UV_CACHE_DIR") or str(CHECKOUT / ".cache" / "uv-real"),
    }


def run_uv(*words: str, show: bool = False) -> str:
    """What uv prints; AssertionError when it fails. ``show`` lets its progress through to the terminal."""
    done = subprocess.run(
        [uv(), *words],
        env=uv_environment(),
        stdout=subprocess.PIPE,
        stderr=None if show else subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"uv {' '.join(words)}\n{done.stdout}"
    return done.stdout


def type_in(command: str) -> str:
    """What a command line prints in a shell, typed as a fix has it; AssertionError when it fails."""
    done = subprocess.run(
        ["bash", "-c", command],
        env=uv_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


def install(venv: Path, lock: tuple[LockEntry, ...], *, show: bool = False) -> None:
    """Install just these wheels, replacing other versions of them, as a deployment does."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.write(render_lock(lock))
        requirements.flush()
        words = ("--python", f"{venv}/bin/python", "--no-deps", "--require-hashes", "--requirement", requirements.name)
        run_uv("pip", "install", *([] if show else ["--quiet"]), *words, show=show)


def uninstall(venv: Path, *names: str) -> None:
    """Uninstall as ``uv pip uninstall`` does."""
    run_uv("pip", "uninstall", "--quiet", "--python", f"{venv}/bin/python", *names)


def kept(lock: tuple[LockEntry, ...], *, show: bool = False) -> Path:
    """The venv of a lock, which is there already where an earlier run made it. Read it only."""
    venv = REAL / f"{lock_digest(lock)[:16]}-{sys.version_info.major}.{sys.version_info.minor}"
    complete = venv / ".complete"
    if not complete.exists():
        _make(venv, lock, show=show)
        complete.touch()
    return venv


@contextmanager
def scratch(*locks: tuple[LockEntry, ...]) -> Iterator[Path]:
    """A new venv with these locks installed one after the other; it goes at the end of the context."""
    REAL.mkdir(parents=True, exist_ok=True)
    # Beside the kept ones: pytest's directories may be on a file system without hard links to the cache.
    directory = Path(tempfile.mkdtemp(prefix="scratch-", dir=REAL))
    try:
        _make(directory / "venv", *locks)
        yield directory / "venv"
    finally:
        shutil.rmtree(directory)


def _make(venv: Path, *locks: tuple[LockEntry, ...], show: bool = False) -> None:
    run_uv("venv", "--quiet", "--clear", "--python", sys.executable, str(venv))
    for lock in locks:
        install(venv, lock, show=show)


# --- what really happens, and what is foreseen ----------------------------------------------------------

_IMPORT_AND_SHOW_MAPS = """
import ctypes, json, sys
sys.dont_write_bytecode = True
error = None
try:
    for name in json.loads(sys.argv[1]):
        __import__(name)
    for name in json.loads(sys.argv[2]):
        ctypes.CDLL(name)
except BaseException as raised:
    error = f"{type(raised).__name__}: {raised}"
with open("/proc/self/maps") as maps:
    files = sorted({line.split(None, 5)[5].strip() for line in maps if line.count("/")})
print(json.dumps({"error": error, "files": files}))
"""

# Of what lies outside the venv, CUDA's libraries and what its wheels need of the system; the rest is Python's own.
_CUDA_LIBRARY = re.compile(
    r"lib(cu(blas|blasLt|dart|dnn\w*|fft\w*|file\w*|pti|rand|solver\w*|sparse\w*)"
    r"|nv(JitLink|rtc[\w.-]*|ToolsExt|shmem\w*|tx3interop)|nccl|numa|gomp)\b"
)
_PACKAGES = ("nvidia", "torch", "sgl_kernel", "triton")


@dataclass(frozen=True)
class Answer:
    """What an import gives: the exception as Python prints it, and the CUDA and torch files that are mapped then."""

    error: str | None
    files: frozenset[str]


def _relevant(venv: Path, paths: Iterable[str]) -> frozenset[str]:
    """Canonical paths of CUDA's and torch's files, wherever they are, without the driver's.

    libcublasLt's constructor opens libcuda.so.1 by name where there is one, which only running it tells.
    """
    site = os.path.realpath(site_packages(venv))
    found = set()
    for path in map(os.path.realpath, paths):
        name = os.path.basename(path)
        inside = path.startswith(site + "/")
        package = path[len(site) + 1 :].split("/")[0]
        if ".so" not in name or any(name.startswith(driver) for driver in DRIVER_LIBRARIES):
            continue
        if package in _PACKAGES if inside else _CUDA_LIBRARY.match(name):
            found.add(path)
    return frozenset(found)


def really_run(
    venv: Path,
    imports: Sequence[str] = ("torch",),
    load: Sequence[str] = (),
    *,
    use_cache: bool = True,
    library_path: Sequence[str | Path] = (),
) -> Answer:
    """Import and load in a real process; without ``use_cache`` as on a host whose ld.so.cache is empty."""
    python = f"{venv}/bin/python"
    words = [python, "-c", _IMPORT_AND_SHOW_MAPS, json.dumps(list(imports)), json.dumps(list(load))]
    if not use_cache:
        linker = System.of_host(python).interpreter
        words = [linker, "--inhibit-cache", "--argv0", python, os.path.realpath(python), *words[1:]]
    done = subprocess.run(
        words,
        cwd="/",
        env={"PATH": os.defpath, **_library_path(library_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
    answer = json.loads(done.stdout.splitlines()[-1])
    return Answer(answer["error"], _relevant(venv, answer["files"]))


def _library_path(directories: Sequence[str | Path]) -> dict[str, str]:
    return {"LD_LIBRARY_PATH": ":".join(map(str, directories))} if directories else {}


@dataclass(frozen=True)
class Foresight:
    """The module's answer, and its prediction in the form of what really happens."""

    facts: dict[str, Any]
    answer: Answer
    # What an uninstall would delete.
    deleted: frozenset[str] = frozenset()

    @property
    def problems(self) -> list[dict[str, Any]]:
        return self.facts["problems"]

    @property
    def kinds(self) -> list[str]:
        """The kinds of the problems, each once, in order."""
        return list(dict.fromkeys(problem["kind"] for problem in self.problems))

    def only(self, kind: str) -> dict[str, Any]:
        """The one problem of a kind."""
        (problem,) = [problem for problem in self.problems if problem["kind"] == kind]
        return problem


def foresee(
    venv: Path,
    imports: Sequence[str] = ("torch",),
    load: Sequence[str] = (),
    *,
    use_cache: bool = True,
    library_path: Sequence[str | Path] = (),
    **options: Any,
) -> Foresight:
    """What the module says of the same, with its other ``options``."""
    where = [str(directory) for directory in library_path] or None
    request = Request(venv=str(venv), imports=imports, load=load, ld_library_path=where, **options)
    facts = gather(request, System.of_host(f"{venv}/bin/python", use_cache=use_cache))
    error = next((attempt.words for attempt in facts.attempts if attempt.error and attempt.fatal), None)
    files = _relevant(venv, (loaded.path for loaded in facts.loaded))
    deleted = facts.removal.deleted if facts.removal else frozenset()
    return Foresight(result(facts, "full"), Answer(error, files), deleted)


def in_short(error: str | None) -> str | None:
    """An exception's words without the list of Python's import path that some of torch's end with."""
    return error and re.sub(r"(in the system path )\[.*\]\Z", r"\1[...]", error, flags=re.DOTALL)


def commands(fix: str) -> list[str]:
    """The command lines in a fix."""
    return re.findall(r"(?:rm -r|uv cache|uv pip) .*?(?=; or to keep|; a venv must|$)", fix)


def fetch() -> None:
    """Fetch all wheels and make the kept venvs."""
    for lock in (CU13, CU12):
        print(f"{len(lock)} wheels: {kept(lock, show=True)}", file=sys.stderr)
    for entry in CONTAMINANTS:
        with scratch() as venv:
            install(venv, (entry,), show=True)


if __name__ == "__main__":
    fetch()
