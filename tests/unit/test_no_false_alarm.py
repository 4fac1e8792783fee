# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What real clean environments have, small: it is no problem. Beside each, the neighbour that is one."""

from __future__ import annotations

import base64
import hashlib
import subprocess
from pathlib import Path

import pytest
from support import small_wheels
from support.elf_writer import write_elf
from support.examination import examine, kinds


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    return small_wheels.make_venv(tmp_path / "venv")


def add(venv: Path, name: str, files: dict[str, bytes]) -> None:
    """Install a distribution as an installer does: what it records, it writes over whatever is there."""
    site = small_wheels.site_packages(venv)
    directory = site / f"{name.replace('-', '_')}-1.0.dist-info"
    directory.mkdir()
    (directory / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    rows = []
    for path, content in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(content)}")
    rows += [f"{directory.name}/METADATA,,", f"{directory.name}/RECORD,,"]
    (directory / "RECORD").write_text("\n".join(rows) + "\n")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("build_backend.py", []),
        ("setup.py", []),
        ("engine.py", ["clobbered-file"]),
        ("engine/build_backend.py", ["clobbered-file"]),
    ],
)
def test_code_that_builds_a_package_is_imported_by_nobody(venv: Path, path: str, expected: list[str]) -> None:
    """flashinfer-python and torch-c-dlpack-ext both install a build_backend.py at the top."""
    add(venv, "first", {path: b"value = 1\n"})
    add(venv, "second", {path: b"value = 2\n# longer\n"})

    assert kinds(examine(venv)) == expected


@pytest.mark.parametrize(
    ("directories", "expected"),
    [
        (("nvidia_cutlass_dsl/cu12/lib", "nvidia_cutlass_dsl/cu13/lib"), []),
        (("nvidia/cu12/lib", "nvidia/cu13/lib"), ["duplicate-soname"]),
    ],
    ids=["opened by path", "searched"],
)
def test_a_soname_twice_outside_every_search_path(
    venv: Path, directories: tuple[str, str], expected: list[str], tmp_path: Path
) -> None:
    """nvidia-cutlass-dsl requires its libraries for CUDA 12 and 13, and opens one of them by path."""
    content = write_elf(tmp_path / "libcute_dsl_runtime.so", soname="libcute_dsl_runtime.so").read_bytes()
    for major, directory in zip((12, 13), directories):
        add(venv, f"nvidia-cutlass-dsl-libs-cu{major}", {f"{directory}/libcute_dsl_runtime.so": content})

    assert kinds(examine(venv)) == expected


@pytest.mark.parametrize(
    ("module", "expected"),
    [("cutlass", []), ("single", []), ("engine", []), ("elsewhere", ["unmet-requirement"])],
)
def test_a_module_that_code_in_a_pth_file_provides(
    venv: Path, module: str, expected: list[str], tmp_path: Path
) -> None:
    """nvidia-cutlass-dsl's own line, and setuptools' finder of an editable installation."""
    (tmp_path / "checkout/engine").mkdir(parents=True)
    (tmp_path / "checkout/engine/__init__.py").write_text("")
    add(
        venv,
        "nvidia-cutlass-dsl-libs-base",
        {
            "dsl_packages.pth": b"import sys, os, nvidia_dsl; "
            b"sys.path.insert(0, os.path.join(nvidia_dsl.__path__[0], 'dsl_packages'))",
            "nvidia_dsl/__init__.py": b"",
            "nvidia_dsl/dsl_packages/cutlass/__init__.py": b"",
            "nvidia_dsl/dsl_packages/single.py": b"",
            "nvidia_dsl/other/elsewhere/__init__.py": b"",
        },
    )
    mapping = f"MAPPING = {{'engine': '{tmp_path}/checkout/engine'}}\n"
    finder = """
import importlib.util, sys
class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name in MAPPING:
            return importlib.util.spec_from_file_location(name, MAPPING[name] + "/__init__.py")
def install():
    sys.meta_path.append(Finder)
"""
    add(
        venv,
        "engine",
        {
            "__editable__.engine-1.0.pth": b"import __editable___engine_1_0_finder; "
            b"__editable___engine_1_0_finder.install()",
            "__editable___engine_1_0_finder.py": (mapping + finder).encode(),
        },
    )

    assert kinds(examine(venv, imports=[module])) == expected
    really = subprocess.run([f"{venv}/bin/python", "-c", f"import {module}"], capture_output=True, check=False)
    assert (really.returncode == 0) == (expected == [])
