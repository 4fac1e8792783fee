# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A small venv that every user may enter, with modules and libraries written for the test."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ansible_collections.gpufleet.dflash.plugins.module_utils._library_check import CheckRequest
from ansible_collections.gpufleet.dflash.plugins.module_utils._library_check import check as check_request

# An interpreter below a home directory would be out of reach for the account `nobody`.
INTERPRETER = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
AS_ROOT = os.geteuid() == 0
NOBODY = "nobody"
COMPILER = shutil.which("gcc") or shutil.which("cc")


@contextmanager
def public_directory() -> Iterator[Path]:
    """A temporary directory that other users may enter, unlike pytest's."""
    directory = Path(tempfile.mkdtemp(prefix="probe-"))
    directory.chmod(0o755)
    try:
        yield directory
    finally:
        subprocess.run(["chmod", "-R", "u+rwx", str(directory)], check=False)
        shutil.rmtree(directory)


class ProbeVenv:
    """A venv without pip; modules and distributions are written into its site-packages."""

    def __init__(self, path: Path) -> None:
        self.path = path
        version = subprocess.run(
            [INTERPRETER, "-c", "import platform; print(platform.python_version())"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        self.site = path / "lib" / f"python{'.'.join(version.split('.')[:2])}" / "site-packages"
        self.site.mkdir(parents=True)
        (path / "bin").mkdir()
        (path / "bin" / "python").symlink_to(INTERPRETER)
        home = Path(os.path.realpath(INTERPRETER)).parent
        (path / "pyvenv.cfg").write_text(f"home = {home}\nversion = {version}\n", encoding="utf-8")

    def module(self, name: str, source: str) -> Path:
        """Write a module."""
        path = self.site / f"{name}.py"
        path.write_text(source, encoding="utf-8")
        return path

    def distribution(self, name: str, version: str, *paths: Path) -> None:
        """Record paths as the files of an installed distribution."""
        info = self.site / f"{re.sub('-', '_', name)}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        rows = [f"{os.path.relpath(path, self.site)},," for path in paths]
        (info / "RECORD").write_text("\n".join([*rows, f"{info.name}/RECORD,,", ""]))


def library(path: Path, source: str = "int value(void) { return 1; }", *options: str) -> Path:
    """Compile a shared library whose soname is its file name."""
    assert COMPILER is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    text = path.parent / (path.name + ".c")
    text.write_text(source, encoding="utf-8")
    subprocess.run(
        [COMPILER, "-shared", "-fPIC", "-o", str(path), str(text), f"-Wl,-soname,{path.name}", *options],
        check=True,
        capture_output=True,
    )
    text.unlink()
    return path


def check(venv: ProbeVenv, *imports: str, **options: Any) -> dict[str, Any]:
    """The result of loading modules, and what the options say, in a venv."""
    options.setdefault("timeout", 30)
    return check_request(CheckRequest(str(venv.path), imports=imports, **options))


def kinds(result: dict[str, Any]) -> list[str]:
    """The kinds of a result's problems, in order."""
    return [entry["kind"] for entry in result["problems"]]


def write_unit(folder: Path, *lines: str) -> str:
    """The path of a unit file with these lines in [Service]."""
    path = folder / "engine.service"
    path.write_text("\n".join(["[Service]", "ExecStart=/bin/true", *lines, ""]), encoding="utf-8")
    return str(path)


def kept_out() -> tuple[str, dict[str, Any], int]:
    """An account, the options to check as it, and a directory mode that keeps it out.

    For root that is nobody, whom 0700 keeps out; for another user ourselves, and nobody may enter at all.
    """
    if AS_ROOT:
        return NOBODY, {"user": NOBODY}, 0o700
    return pwd.getpwuid(os.geteuid()).pw_name, {}, 0o000
