# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What living processes have mapped: replaced, deleted, of another environment, or just right."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import probe_venv
from support.probe_venv import COMPILER, ProbeVenv, kinds, library

from ansible_collections.gpufleet.dflash.plugins.module_utils import _process_maps
from ansible_collections.gpufleet.dflash.plugins.module_utils._check_request import CheckError
from ansible_collections.gpufleet.dflash.plugins.module_utils._running import check_running

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")


@pytest.fixture
def folder() -> Iterator[Path]:
    with probe_venv.public_directory() as directory:
        yield directory


@pytest.fixture
def venv(folder: Path) -> ProbeVenv:
    return ProbeVenv(folder / "venv")


@pytest.fixture
def runtime(venv: ProbeVenv) -> Path:
    path = library(venv.site / "nvidia" / "cu13" / "lib" / "libcudart.so.13")
    venv.distribution("nvidia-cuda-runtime", "13.0.96", path)
    return path


@contextmanager
def holding(venv: ProbeVenv, *paths: Path, child: bool = False) -> Iterator[int]:
    """The PID of a process of the venv that has opened these libraries; a child of it has opened them, too."""
    source = (
        "import ctypes, os, sys\n"
        "for path in sys.argv[2:]:\n    ctypes.CDLL(path)\n"
        "if sys.argv[1] == 'child':\n    os.fork()\n"
        "os.write(1, b'ready\\n')\nsys.stdin.read()\n"
    )
    words = [f"{venv.path}/bin/python", "-c", source, "child" if child else "alone", *map(str, paths)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        for _process in range(2 if child else 1):
            assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.stdin.close()


def replace(path: Path) -> None:
    """Put another file in its place, as an installer does."""
    new = path.with_name(path.name + ".new")
    shutil.copy2(path, new)
    new.replace(path)


def test_a_process_that_runs_what_is_installed_needs_no_restart(venv: ProbeVenv, runtime: Path) -> None:
    with holding(venv, runtime) as pid:
        result = check_running(None, None, pid)
    assert result["ok"] and result["restart_needed"] is False
    assert result["stale"] == [] and result["problems"] == []
    assert result["venv"] == str(venv.path)
    assert [entry["pid"] for entry in result["processes"]] == [pid]
    assert [(entry["path"], entry["distribution"]) for entry in result["libraries"]] == [
        (str(runtime), "nvidia-cuda-runtime")
    ]


def test_a_library_that_was_replaced_is_found_in_the_whole_tree(venv: ProbeVenv, runtime: Path) -> None:
    with holding(venv, runtime, child=True) as pid:
        replace(runtime)
        result = check_running(str(venv.path), None, pid)
    assert result["restart_needed"] is True
    (stale,) = result["stale"]
    assert (stale["path"], stale["reason"], len(stale["pids"])) == (str(runtime), "replaced", 2)
    assert kinds(result) == ["stale-map"] and result["problems"][0]["severity"] == "warning"
    assert result["problems"][0]["message"].endswith(f"1 replaced on disk, such as {runtime}")
    assert result["problems"][0]["fix"].startswith(f"restart process {pid}: ")


def test_a_library_that_was_deleted_is_found(venv: ProbeVenv, runtime: Path) -> None:
    with holding(venv, runtime) as pid:
        runtime.unlink()
        result = check_running(None, None, pid)
    assert [(entry["path"], entry["reason"]) for entry in result["stale"]] == [(str(runtime), "deleted")]


def test_a_library_with_an_odd_name_is_no_riddle(venv: ProbeVenv) -> None:
    line = library(venv.site / "a b\\012c" / "libcudart.so.13")
    broken = venv.site / "x\ny" / "libcudnn.so.9"
    broken.parent.mkdir()
    shutil.copy(line, broken)
    named = venv.site / "libcublas.so.13 (deleted)"
    shutil.copy(line, named)
    with holding(venv, line, broken, named) as pid:
        before = check_running(None, None, pid)
        replace(broken)
        after = check_running(None, None, pid)
    assert before["stale"] == []
    assert [(entry["path"], entry["reason"]) for entry in after["stale"]] == [(str(broken), "replaced")]


def test_files_of_another_environment_are_found(folder: Path, venv: ProbeVenv, runtime: Path) -> None:
    """The unit says the new generation, and the process was started from the old one."""
    new = ProbeVenv(folder / "new")
    with holding(venv, runtime) as pid:
        result = check_running(str(new.path), None, pid)
    assert [(entry["path"], entry["reason"]) for entry in result["stale"]] == [(str(runtime), "other-environment")]
    assert kinds(result) == ["stale-map"]
    assert "1 of another environment" in result["problems"][0]["message"]


def test_a_library_of_the_host_is_told_without_a_restart(folder: Path, venv: ProbeVenv, runtime: Path) -> None:
    host = library(folder / "cuda" / "libcublas.so.13")
    with holding(venv, runtime, host) as pid:
        result = check_running(None, None, pid)
    assert result["restart_needed"] is False
    assert kinds(result) == ["resolved-outside-venv"] and result["problems"][0]["paths"] == [str(host)]


def test_what_a_compiler_has_deleted_is_no_finding(folder: Path, venv: ProbeVenv) -> None:
    generated = library(folder / "cache" / "launcher.so")
    with holding(venv, generated) as pid:
        generated.unlink()
        assert check_running(None, None, pid)["stale"] == []


def test_processes_that_end_meanwhile_do_no_harm(venv: ProbeVenv, runtime: Path) -> None:
    with subprocess.Popen(["sleep", "0"]) as ended:
        ended.wait()
        assert _process_maps.mapped_by(ended.pid) == []
    with pytest.raises(CheckError, match="there is no process"):
        check_running(None, None, ended.pid)


@pytest.mark.parametrize(
    ("unit", "pid", "message"),
    [
        pytest.param(None, None, "needs a unit or a pid", id="nothing"),
        pytest.param(None, 0, "there is no process 0", id="zero"),
        pytest.param(None, -1, "there is no process -1", id="negative"),
        pytest.param(None, 1 << 40, "there is no process", id="huge"),
        pytest.param("no-such-unit-here", None, "no-such-unit-here|systemd does not run", id="no such unit"),
    ],
)
def test_impossible_requests_are_named(unit: str | None, pid: int | None, message: str) -> None:
    with pytest.raises(Exception, match=message):
        check_running(None, unit, pid)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_who_may_not_look_is_told_so() -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setuid(65534)
            check_running(None, None, os.getppid())
        except CheckError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    text = os.read(read, 1000).decode()
    os.close(read)
    assert text.endswith("leave become on (ansible_become, --become), or set become: true on the task")
