# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Opening venvs, made by the tools that people use."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import small_wheels

from ansible_collections.gpufleet.dflash.plugins.module_utils._venv import VenvError, open_venv

VERSION = ".".join(str(part) for part in sys.version_info[:3])


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    return small_wheels.make_venv(tmp_path / "venv")


def test_uv_venv(venv: Path) -> None:
    opened = open_venv(str(venv))

    assert opened.version == VERSION
    assert opened.python == os.path.realpath(sys.executable)
    assert opened.site_packages == (str(small_wheels.site_packages(venv)),)
    assert opened.import_path == opened.site_packages


def test_standard_library_venv_counts_lib64_once(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "v")], check=True)
    (tmp_path / "v" / "lib64").unlink(missing_ok=True)
    (tmp_path / "v" / "lib64").symlink_to("lib")

    opened = open_venv(str(tmp_path / "v"))

    assert opened.version == VERSION
    assert opened.site_packages == (str(small_wheels.site_packages(tmp_path / "v")),)


def test_lib64_of_its_own_is_a_second_site_packages(venv: Path) -> None:
    (venv / "lib64").unlink(missing_ok=True)
    second = venv / "lib64" / small_wheels.site_packages(venv).parent.name / "site-packages"
    second.mkdir(parents=True)

    assert open_venv(str(venv)).site_packages == (str(small_wheels.site_packages(venv)), str(second))


def test_import_path_is_the_interpreters(venv: Path, tmp_path: Path) -> None:
    """What Python itself puts on sys.path, path lines of .pth files included."""
    site = small_wheels.site_packages(venv)
    (tmp_path / "editable").mkdir()
    (site / "b.pth").write_text(f"# a comment\n\n{tmp_path}/editable\n{tmp_path}/absent\n")
    (site / "inner").mkdir()
    (site / "a.pth").write_text("inner\n")
    code = f"import sys; print(*[p for p in sys.path if p.startswith({str(tmp_path)!r})], sep='\\n')"
    real = subprocess.run([f"{venv}/bin/python", "-c", code], capture_output=True, text=True, check=True, cwd="/")

    assert list(open_venv(str(venv)).import_path) == real.stdout.split()


def test_code_in_pth_files_never_runs(venv: Path, tmp_path: Path) -> None:
    trace = tmp_path / "ran"
    code = f"import pathlib; pathlib.Path({str(trace)!r}).touch()\n"
    (small_wheels.site_packages(venv) / "evil.pth").write_text(code)

    open_venv(str(venv))

    assert not trace.exists()
    subprocess.run([f"{venv}/bin/python", "-c", ""], check=True)
    assert trace.exists(), "the file is one that Python itself would run"


def test_system_site_packages_are_included_when_the_venv_includes_them(tmp_path: Path) -> None:
    make = [small_wheels.uv(), "venv", "--quiet", "--system-site-packages", "--python", sys.executable]
    subprocess.run([*make, str(tmp_path / "v")], check=True)
    code = "import sys; print(*[p for p in sys.path if p.endswith('-packages')], sep='\\n')"
    python = str(tmp_path / "v" / "bin" / "python")
    real = subprocess.run([python, "-s", "-c", code], capture_output=True, text=True, check=True, cwd="/")

    assert list(open_venv(str(tmp_path / "v")).import_path) == real.stdout.split()


def _no_configuration(venv: Path) -> None:
    (venv / "pyvenv.cfg").unlink()


def _no_interpreter(venv: Path) -> None:
    (venv / "bin" / "python").unlink()


def _dangling_interpreter(venv: Path) -> None:
    (venv / "bin" / "python").unlink()
    (venv / "bin" / "python").symlink_to("/opt/removed/bin/python3")


def _no_site_packages(venv: Path) -> None:
    shutil.rmtree(venv / "lib")


def _other_python(venv: Path) -> None:
    (venv / "pyvenv.cfg").write_text("home = /usr/bin\nversion_info = 3.7.1.final.0\n")


def _directory_for_configuration(venv: Path) -> None:
    (venv / "pyvenv.cfg").unlink()
    (venv / "pyvenv.cfg").mkdir()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_no_configuration, "it has no pyvenv.cfg"),
        (_no_interpreter, "the venv has no interpreter: {venv}/bin/python"),
        (_dangling_interpreter, "interpreter is gone: {venv}/bin/python -> /opt/removed/bin/python3"),
        (_no_site_packages, "no lib/pythonX.Y/site-packages: {venv}"),
        (_other_python, "made for Python 3.7.1"),
        (_directory_for_configuration, "cannot read the venv's configuration: {venv}/pyvenv.cfg"),
        (shutil.rmtree, "there is no such directory"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_is_no_usable_venv_is_named(venv: Path, damage: object, words: str) -> None:
    assert callable(damage)
    damage(venv)

    with pytest.raises(VenvError) as error:
        open_venv(str(venv))

    assert words.format(venv=venv) in str(error.value)
    assert str(venv) in str(error.value)
