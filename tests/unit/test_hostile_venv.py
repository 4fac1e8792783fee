# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Venvs that somebody made in order to stop, mislead or take over whoever looks at them."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support import small_wheels
from support.examination import examine, kinds

METADATA = "Metadata-Version: 2.1\nName: foo\nVersion: 1.0\n"
DIGEST = "sha256=" + "a" * 43
SECONDS = 20


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    return small_wheels.make_venv(tmp_path / "venv")


@pytest.fixture
def bounded() -> object:
    """Two gigabytes of address space beyond what the tests have: more is a fault, and none of the host's."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (2 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def install(venv: Path, name: str, record: str = "foo/x.py,,\n", metadata: str | None = None) -> Path:
    folder = small_wheels.site_packages(venv) / f"{name}-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(metadata or METADATA.replace("foo", name))
    (folder / "RECORD").write_text(record)
    return folder


def _a_field_of_csv_without_end(venv: Path) -> None:
    install(venv, "foo", '"' + "a" * 300_000 + '",,\n')


def _a_record_that_never_ends(venv: Path) -> None:
    record = install(venv, "foo") / "RECORD"
    record.unlink()
    record.symlink_to("/proc/self/pagemap")


def _a_record_of_millions_of_lines(venv: Path) -> None:
    install(venv, "foo", "a,,\n" * 3_000_000)


def _kernel_memory_as_a_file_of_two_wheels(venv: Path) -> None:
    for name, digest in (("foo", "a"), ("bar", "b")):
        install(
            venv, name, "".join(f"{path},sha256={digest * 43},\n" for path in ("/proc/kcore", "/proc/self/pagemap"))
        )


def _a_header_of_millions_of_lines(venv: Path) -> None:
    install(venv, "foo", metadata=METADATA + "X: a\n" + " b\n" * 2_000_000)


def _markers_that_nobody_can_judge(venv: Path) -> None:
    wanted = ('os_name ~= "posix"', 'python_version ~= "x"', "(" * 5000 + 'os_name == "posix"' + ")" * 5000)
    install(venv, "foo", metadata=METADATA + "".join(f"Requires-Dist: bar ; {marker}\n" for marker in wanted))


def _a_package_that_is_the_whole_host(venv: Path) -> None:
    install(venv, "foo")
    for name in ("foo", "nvidia"):
        (small_wheels.site_packages(venv) / name).symlink_to("/")


def _wheels_that_share_every_file(venv: Path) -> None:
    for name in ("foo", "bar"):
        install(venv, name, "".join(f"foo/x{number}.py,{DIGEST},1\n" for number in range(20_000)))


def _a_row_thirty_thousand_times(venv: Path) -> None:
    for name in ("foo", "bar"):
        install(venv, name, f"foo/x.py,{DIGEST},1\n" * 30_000)


def _a_source_of_four_megabytes(venv: Path) -> None:
    package = small_wheels.site_packages(venv) / "foo"
    package.mkdir()
    (package / "__init__.py").write_text("import a\n" * 450_000)


@pytest.mark.parametrize(
    "make",
    [
        _a_field_of_csv_without_end,
        _a_record_that_never_ends,
        _a_record_of_millions_of_lines,
        _kernel_memory_as_a_file_of_two_wheels,
        _a_header_of_millions_of_lines,
        _markers_that_nobody_can_judge,
        _a_package_that_is_the_whole_host,
        _wheels_that_share_every_file,
        _a_row_thirty_thousand_times,
        _a_source_of_four_megabytes,
    ],
)
@pytest.mark.usefixtures("bounded")
def test_nothing_in_a_venv_stops_the_look_at_it(venv: Path, make: Callable[[Path], None]) -> None:
    make(venv)
    start = time.process_time()

    facts = examine(venv, imports=["foo"], deep=True, capabilities=[])

    assert time.process_time() - start < SECONDS
    assert facts["verdict"] in ("ok", "warning", "error")


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("--index-url=http://x.invalid/", "1.0"),
        ("-r", "1.0"),
        ("foo; touch pwned", "1.0"),
        ("foo", "-1.0"),
        ("\x1b[31mfoo", "\x1b]0;title\x07"),
    ],
)
def test_what_is_no_name_or_version_reaches_no_command(venv: Path, name: str, version: str) -> None:
    install(venv, "foo", "foo/libfoo.so,,1\n", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    facts = examine(venv)

    assert facts["distributions"] == {"foo": "1.0"}
    assert kinds(facts) == ["missing-payload", "environment-malformed"]
    assert "has no usable " in facts["problems"][1]["message"]
    said = "".join(str(problem[key]) for problem in facts["problems"] for key in ("message", "fix", "evidence"))
    assert not any(text in said for text in ("touch", "index-url", "\x1b", "\x07"))


def test_a_directory_without_any_name(venv: Path) -> None:
    install(venv, "foo", metadata="Name: -r\nVersion: -\n").rename(small_wheels.site_packages(venv) / "-.dist-info")

    assert examine(venv)["distributions"] == {"unnamed": ""}


def test_the_names_of_files_do_not_rule_the_terminal(venv: Path) -> None:
    """They are spelled out in what is said, and exact in what a program reads."""
    odd = "foo/\x1b]0;title\x07\u202elib.py"
    install(venv, "foo", f"{odd},,\n")

    (problem,) = examine(venv)["problems"]

    assert problem["message"].endswith("such as foo/\\x1b]0;title\\x07\\u202elib.py")
    assert problem["paths"] == [f"{small_wheels.site_packages(venv)}/{odd}"]


def test_a_path_with_control_characters_can_be_typed(tmp_path: Path) -> None:
    venv = small_wheels.make_venv(tmp_path / "a\x1b[31m b'c\nd")
    install(venv, "foo", "foo/libfoo.so,,1\n")

    (problem,) = examine(venv)["problems"]

    python = problem["fix"].partition("--python ")[2].partition(" --reinstall")[0]
    assert "\x1b" not in python
    assert "\n" not in python
    echoed = subprocess.run(["bash", "-c", f"printf %s {python}"], capture_output=True, text=True, check=True)
    assert echoed.stdout == f"{venv}/bin/python"


def test_a_venv_below_a_directory_of_another_python(tmp_path: Path) -> None:
    other = "python3.9" if sys.version_info[:2] != (3, 9) else "python3.11"

    assert examine(small_wheels.make_venv(tmp_path / other / "venv"))["problems"] == []
