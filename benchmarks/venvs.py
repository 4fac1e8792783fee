# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The venvs that are measured."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.measure import CACHE, CHECKOUT, environment
from tests.support import small_wheels
from tests.support.elf_writer import write_elf

_REQUIREMENTS = Path(__file__).with_name("requirements")
_SMALL = (
    "cuda-toolkit",
    "nvidia-cuda-runtime",
    "nvidia-cufile",
    "nvidia-nvtx",
    "torch-memory-saver",
    "xllamacpp",
)


def sglang() -> Path:
    """The venv of SGLang, PyTorch and CUDA 13, installed when it is not there: 8 GB on disk, 4 GB to fetch."""
    return _installed("sglang", ["--no-deps"])


def tools() -> Path:
    """The venv of the Python tools that are measured against the collection."""
    return _installed("tools", [])


def small() -> Path:
    """A venv of the small wheels (50 MB)."""
    venv = CACHE / "small"
    if not (venv / "complete").exists():
        small_wheels.run(["rm", "-rf", str(venv)])
        small_wheels.make_venv(venv, *_SMALL)
        (venv / "complete").touch()
    return venv


def site_packages(venv: Path) -> Path:
    """The venv's site-packages."""
    (found,) = venv.glob("lib/python3.*/site-packages")
    return found


def _installed(name: str, options: list[str]) -> Path:
    venv = CACHE / name
    requirements = _REQUIREMENTS / f"{name}.txt"
    stamp = venv / "complete"
    if stamp.is_file() and stamp.read_text() == requirements.read_text():
        return venv
    print(f"installing {requirements.relative_to(CHECKOUT)} into {venv.relative_to(CHECKOUT)}", file=sys.stderr)
    uv = small_wheels.uv()
    # By the interpreter that the checkout's own venv was made from: a venv must not need another venv.
    python = str(Path(sys.executable).resolve())
    for command in (
        [uv, "venv", "--quiet", "--clear", "--python", python, str(venv)],
        [uv, "pip", "install", "--quiet", *options, "--python", f"{venv}/bin/python", "-r", str(requirements)],
    ):
        subprocess.run(command, env={**environment(), "UV_CACHE_DIR": str(CACHE / "uv")}, check=True)
    stamp.write_text(requirements.read_text())
    return venv


def synthetic(path: Path, files: int, objects: int) -> Path:
    """A new venv of ``files`` recorded files, ``objects`` of them shared objects, five hundred to a distribution."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    site = path / "lib" / f"python{version}" / "site-packages"
    (path / "bin").mkdir(parents=True)
    (path / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    (path / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\nversion = {version}.0\n")
    step = files / objects
    for first in range(0, files, 500):
        name = f"part{first // 500}"
        rows = []
        for number in range(first, min(first + 500, files)):
            folder = f"{name}/module{number // 20}"
            # Spread evenly, and exactly as many as asked for.
            if int((number + 1) / step) > int(number / step):
                relative = f"{folder}/lib{number}.so"
                write_elf(site / relative, soname=f"lib{number}.so", needed=["libc.so.6"], runpath="$ORIGIN")
                size = (site / relative).stat().st_size
            else:
                relative = f"{folder}/source{number}.py"
                (site / folder).mkdir(parents=True, exist_ok=True)
                (site / relative).write_bytes(b"pass\n")
                size = 5
            rows.append(f"{relative},sha256={'A' * 43},{size}")
        information = site / f"{name}-1.0.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (information / "INSTALLER").write_text("uv\n")
        rows += [f"{information.name}/{file},," for file in ("METADATA", "INSTALLER", "RECORD")]
        (information / "RECORD").write_text("\n".join(rows) + "\n")
    return path
