# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stub of the NVIDIA driver's library, loaded for real by a real wheel that needs one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from support import small_wheels

TOOL = small_wheels.CHECKOUT / "tools" / "make_stub_driver.py"
HOOK = "torch_memory_saver_hook_mode_preload_cu13.abi3.so"


def run_tool(*words: str | Path, path: str = os.environ["PATH"]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": path})


def load_hook(venv: Path, *directories: Path | str) -> subprocess.CompletedProcess[str]:
    code = "import ctypes, sys; ctypes.CDLL(sys.argv[1], 2); print(ctypes.CDLL('libcuda.so.1').cuInit(0))"
    return subprocess.run(
        [f"{venv}/bin/python", "-c", code, str(small_wheels.site_packages(venv) / HOOK)],
        capture_output=True,
        text=True,
        check=False,
        env={"LD_LIBRARY_PATH": ":".join(map(str, directories))},
    )


def test_what_needs_a_driver_loads_with_the_stub_and_is_told_that_it_is_one(tmp_path: Path) -> None:
    venv = small_wheels.make_venv(tmp_path / "venv", "nvidia-cuda-runtime", "torch-memory-saver")
    runtime = small_wheels.site_packages(venv) / "nvidia/cu13/lib"

    made = run_tool(small_wheels.site_packages(venv) / HOOK, "--output", tmp_path / "stub")

    assert made.returncode == 0, made.stderr
    assert made.stdout.startswith(f"{tmp_path}/stub/libcuda.so.1: ")
    loaded = load_hook(venv, tmp_path / "stub", runtime)
    assert loaded.returncode == 0, loaded.stderr
    assert loaded.stdout == "34\n"


def test_a_directory_is_searched_for_objects(tmp_path: Path) -> None:
    venv = small_wheels.make_venv(tmp_path / "venv", "torch-memory-saver")
    hook = small_wheels.site_packages(venv) / HOOK
    (tmp_path / "tree" / "deep").mkdir(parents=True)
    shutil.copy(hook, tmp_path / "tree" / "deep")
    (tmp_path / "tree" / "text.so").write_text("GROUP ( libc.so.6 )")

    one = run_tool(hook, "--output", tmp_path / "one")
    tree = run_tool(tmp_path / "tree", "--output", tmp_path / "all")

    assert one.stdout.partition(": ")[2] == tree.stdout.partition(": ")[2]
    assert "functions, each returns 34" in one.stdout


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    done = run_tool("/absent", "--output", tmp_path)

    assert done.returncode == 1
    assert done.stderr == (
        "make_stub_driver: no such file or directory: /absent: name objects, or directories that hold them\n"
    )


def test_without_tools_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "object.so").write_bytes(b"\x7fELF")

    done = run_tool(tmp_path / "object.so", "--output", tmp_path, path="/absent")

    assert done.returncode == 1
    assert done.stderr == "make_stub_driver: nm is missing: install gcc\n"


def test_a_damaged_object_is_named(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.so"
    damaged.write_bytes(b"\x7fELF and nothing more")

    done = run_tool(damaged, "--output", tmp_path)

    assert done.returncode == 1
    assert f"nm cannot read it: {damaged}: " in done.stderr
