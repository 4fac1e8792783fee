# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wheels that were patched after their RECORD was written, installed by the real installers."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support import small_wheels
from support.examination import examine, kinds

from ansible_collections.gpufleet.dflash.plugins.module_utils._wrong_records_data import SHIPPED

INSTALLERS = {
    "uv": [small_wheels.uv(), "pip", "install", "--quiet", "--no-deps", "--python"],
    "pip": ["-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check"],
}


def digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A wheel with three wrong rows: another size, the same size, no such file; and a right one."""
    files = {"decoder/longer.so": b"patched later", "decoder/same.so": b"after!", "decoder/__init__.py": b"value = 1\n"}
    recorded = {**files, "decoder/longer.so": b"before", "decoder/same.so": b"before", "decoder/never.so": b"before"}
    metadata = {
        "decoder-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: decoder\nVersion: 1.0\n",
        "decoder-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{path},sha256={digest(text)},{len(text)}" for path, text in {**recorded, **metadata}.items()]
    path = tmp_path / "decoder-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files, **metadata}.items():
            archive.writestr(name, text)
        archive.writestr("decoder-1.0.dist-info/RECORD", "\n".join([*rows, "decoder-1.0.dist-info/RECORD,,"]) + "\n")
    return path


@pytest.fixture(params=INSTALLERS)
def venv(wheel: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The wheel as an installer unpacks it."""
    venv = tmp_path / "venv"
    small_wheels.run([small_wheels.uv(), "venv", "--quiet", str(venv)])
    command = INSTALLERS[request.param]
    if request.param == "uv":
        small_wheels.run([*command, f"{venv}/bin/python", str(wheel)])
    else:
        small_wheels.run([sys.executable, *command, "--prefix", str(venv), str(wheel)])
    return venv


def wrong_rows(wheel: Path) -> dict[str, str]:
    """What the tool prints of a wheel: the digest of each file, empty for none."""
    tool = small_wheels.CHECKOUT / "tools" / "wrong_records"
    done = subprocess.run([str(tool), str(wheel)], capture_output=True, text=True, check=False)
    found = re.findall(r"^\S+: (\S+) (?:has the digest (\S+),|is in RECORD and not in the wheel)", done.stdout, re.M)
    assert done.returncode == bool(found), done.stderr
    return dict(found)


def test_the_tool_finds_the_rows_that_never_fitted(wheel: Path) -> None:
    assert wrong_rows(wheel) == {
        "decoder/longer.so": digest(b"patched later"),
        "decoder/same.so": digest(b"after!"),
        "decoder/never.so": "",
    }


def test_installers_keep_wrong_rows_and_an_unknown_wheel_counts_as_altered(venv: Path) -> None:
    problems = examine(venv, verify="hash")["problems"]
    # uv leaves out the rows of files that the wheel does not have, pip keeps them too.
    (installer,) = venv.glob("lib/python3.*/site-packages/decoder-1.0.dist-info/INSTALLER")
    gone = ["missing-payload"] if installer.read_text().strip() == "pip" else []
    assert [problem["kind"] for problem in problems] == [*gone, "altered-file"]
    altered = problems[-1]
    assert {os.path.basename(path) for path in altered["paths"]} == {"longer.so", "same.so"}
    assert altered["message"].startswith("2 files of decoder==1.0 are not as its wheel recorded them, such as")


@pytest.mark.parametrize("verify", ["size", "hash"])
def test_a_wheel_that_is_known_to_be_wrong_is_no_problem_until_it_is_altered(
    venv: Path, wheel: Path, verify: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        SHIPPED, "decoder==1.0", {path: ("another", known) for path, known in wrong_rows(wheel).items()}
    )

    clean = examine(venv, verify=verify)
    assert (clean["problems"], clean["overlays"]) == ([], [])

    (small_wheels.site_packages(venv) / "decoder/longer.so").write_bytes(b"patched again")
    assert kinds(examine(venv, verify=verify)) == ["altered-file"]
    (small_wheels.site_packages(venv) / "decoder/longer.so").unlink()
    assert kinds(examine(venv, verify=verify)) == ["missing-payload"]


def test_the_shipped_table_has_digests_of_releases() -> None:
    assert "pynvvideocodec==2.0.4" in SHIPPED
    for release, rows in SHIPPED.items():
        assert re.fullmatch(r"[a-z0-9-]+==[\w.]+", release)
        assert all(re.fullmatch(r"([\w-]{43})?", each, re.ASCII) for digests in rows.values() for each in digests)
