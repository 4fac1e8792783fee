# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real venvs of the packages that have an import recipe, made by the real uv from tests/fixtures/recipes/*.txt.

They stay in .cache/real between runs; the wheels (jax's are 2 GB) are fetched once, into ``UV_CACHE_DIR`` or the
checkout's .cache/uv-real.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from support.small_wheels import CHECKOUT, uv

REAL = CHECKOUT / ".cache" / "real"
LOCKS = CHECKOUT / "tests" / "fixtures" / "recipes"

_SHOW_MAPS = """
import json
error = None
try:
{code}
except BaseException as raised:
    error = f"{{type(raised).__name__}}: {{raised}}"
print(json.dumps([error, sorted({{line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}})]))
"""


@dataclass(frozen=True)
class Process:
    """What a real process raised, and the real files that it had mapped at its end."""

    error: str | None
    mapped: set[str]


def kept(name: str) -> Path:
    """The venv of a lock by its name, as ``jax-cuda13``; to be read only."""
    lock = (LOCKS / f"{name}.txt").read_text()
    venv = REAL / f"recipe-{name}"
    complete = venv / ".complete"
    if not complete.is_file() or complete.read_text() != lock:
        make(venv, lock)
        complete.write_text(lock)
    return venv


def make(venv: Path, lock: str, *, without: str | None = None) -> Path:
    """A new venv with the wheels of a lock, except one. Raises RuntimeError with uv's words when uv fails."""
    shutil.rmtree(venv, ignore_errors=True)
    venv.parent.mkdir(parents=True, exist_ok=True)
    lock_file = venv.with_suffix(".txt")
    lock_file.write_text(lock)
    _uv("venv", "--quiet", "--python", sys.executable, str(venv))
    python = ("--python", f"{venv}/bin/python")
    _uv("pip", "install", "--quiet", *python, "--no-deps", "--require-hashes", "--requirement", str(lock_file))
    lock_file.unlink()
    if without is not None:
        _uv("pip", "uninstall", "--quiet", *python, without)
    return venv


def _uv(*words: str) -> None:
    cache = os.environ.get("UV_CACHE_DIR") or str(CHECKOUT / ".cache" / "uv-real")
    done = subprocess.run(
        [uv(), *words], env={**os.environ, "UV_CACHE_DIR": cache}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"uv {' '.join(words)}: {done.stderr.strip()}")


def really(venv: Path, code: str, home: Path, **environment: str) -> Process:
    """Run statements in the venv's interpreter, with an empty environment but for this."""
    indented = "".join(f"    {line}\n" for line in code.splitlines())
    done = subprocess.run(
        [f"{venv}/bin/python", "-B", "-c", _SHOW_MAPS.format(code=indented)],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
        env={"PATH": os.defpath, "HOME": str(home), **environment},
    )
    error, maps = json.loads(done.stdout.splitlines()[-1])
    return Process(error, {os.path.realpath(path) for path in maps})
