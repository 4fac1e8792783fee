# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A second generation from a warm cache against bare uv: time, and what it takes of the disk.

The first run fetches what the lock names. SSL_CERT_FILE names certificate authorities, where a proxy has its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.measure import CACHE, CHECKOUT
from benchmarks.rows import Row, Session
from tests.support import small_wheels

sys.path.insert(0, str(CHECKOUT / ".collections"))

from ansible_collections.gpufleet.dflash.plugins.module_utils import _build
from ansible_collections.gpufleet.dflash.plugins.module_utils._uv import installer_environment

_TIME_LIMIT = 1.2  # of bare uv
_DISK_LIMIT = 2.0  # per cent of the first generation
_LOCKS = CHECKOUT / "roles" / "cuda_runtime" / "files" / "locks"
_ROUNDS = 3


def measure(session: Session) -> Iterator[Row]:
    """Yield the rows for the shipped lock of SGLang, or for the small one of llama.cpp when in a hurry."""
    lock = _LOCKS / ("cu13-llama-cpp.txt" if session.quick else "cu13-torch2.11-sglang0.5.11.txt")
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="second-", dir=CACHE) as folder:
        yield from _measure(session, lock, Path(folder))


def _measure(session: Session, lock: Path, folder: Path) -> Iterator[Row]:
    root = folder / "root"
    (root / "cache").mkdir(parents=True)
    # One cache for all runs of the benchmarks, on the same file system.
    (CACHE / "uv").mkdir(exist_ok=True)
    (root / "cache" / "uv").symlink_to(CACHE / "uv")
    given: dict[str, Any] = {
        **dict.fromkeys(("base", "index_url", "wheelhouse")),
        "ca_file": os.environ.get("SSL_CERT_FILE"),
        "root": str(root),
        "lock": lock.name,
        "lock_content": lock.read_text(),
        "uv": small_wheels.uv(),
        "overlays": [],
        "python": sys.executable,
        "check_lock": False,
    }
    first = _generation(given, "first")
    size = sum(path.lstat().st_size for path in Path(first[1]).rglob("*") if not path.is_dir())
    ours, bare, taken = [], [], []
    for number in range(_ROUNDS):
        # One after the other, so that a machine that is busy for a while slows both.
        bare.append(_bare(given, lock, folder / f"bare{number}"))
        os.sync()
        free = shutil.disk_usage(root).free
        ours.append(_generation(given, f"second {number}")[0])
        os.sync()
        taken.append(max(0, free - shutil.disk_usage(root).free))
    session.tables["A second generation from a warm cache"] = [
        ["", "seconds", "GB of disk"],
        ["uv pip install", f"{min(bare):.1f}", "-"],
        ["venv_generation, the second", f"{min(ours):.1f}", f"{min(taken) / 1e9:.3f}"],
        ["venv_generation, the first", f"{first[0]:.1f}", f"{size / 1e9:.2f}"],
    ]
    yield Row("second generation, time of bare uv", min(ours) / min(bare), _TIME_LIMIT, "x", f"lock {lock.name}")
    yield Row("second generation, disk of the first", 100 * min(taken) / size, _DISK_LIMIT, "%", f"lock {lock.name}")


def _generation(options: dict[str, Any], mark: str) -> tuple[float, str]:
    """Build one that differs by a small overlay; seconds and path."""
    wanted = {**options, "overlays": [{"dest": "mark.txt", "content": mark}]}
    started = time.monotonic()
    built = _build.run(_build.make_recipe(wanted), wanted, lambda line: None)
    return time.monotonic() - started, str(built["path"])


def _bare(given: dict[str, Any], lock: Path, venv: Path) -> float:
    """What a person would type, with the same cache; seconds."""
    uv, python = given["uv"], given["python"]
    environment = installer_environment(f"{given['root']}/cache", ca_file=given["ca_file"])
    install = ["pip", "install", "--no-deps", "--require-hashes", "--compile-bytecode", "-r", str(lock)]
    started = time.monotonic()
    for command in (["venv", "--python", python, str(venv)], [*install, "--python", f"{venv}/bin/python"]):
        subprocess.run([uv, "--no-config", "--quiet", *command], env=environment, check=True)
    seconds = time.monotonic() - started
    shutil.rmtree(venv)
    return seconds
