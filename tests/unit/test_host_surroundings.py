# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What surrounds the GPUs of a service: shared memory, limits, variables, compilers; and why CUDA sees no GPU."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.recorded_host import MAJOR, RecordedHost

from ansible_collections.gpufleet.dflash.plugins.module_utils import _surroundings, _unit
from ansible_collections.gpufleet.dflash.plugins.module_utils._command import run_bounded
from ansible_collections.gpufleet.dflash.plugins.module_utils._findings import Problem
from ansible_collections.gpufleet.dflash.plugins.module_utils._host_files import HostFiles
from ansible_collections.gpufleet.dflash.plugins.module_utils._host_problems import judge_host
from ansible_collections.gpufleet.dflash.plugins.module_utils._host_reason import why_no_cuda
from ansible_collections.gpufleet.dflash.plugins.module_utils._surroundings import virtualisation

MIB = 1024 * 1024


@pytest.fixture
def host(tmp_path: Path) -> RecordedHost:
    return RecordedHost(tmp_path / "root")


@pytest.fixture
def gpu_host(host: RecordedHost) -> RecordedHost:
    """One GPU, so that the size of /dev/shm does not matter."""
    return host.whole("rtx5090-580.xml", "580.95.05")


def unit(tmp_path: Path, *lines: str) -> str:
    path = tmp_path / "engine.service"
    path.write_text("\n".join(["[Service]", "ExecStart=/bin/true", *lines]) + "\n")
    return str(path)


def venv(tmp_path: Path, *distributions: str, torch_cuda: str | None = None) -> str:
    """A venv of this Python that counts these distributions (``name-version``) as installed."""
    path = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", path], check=True)
    (site,) = path.glob("lib/python3.*/site-packages")
    for name in distributions:
        directory = site / f"{name}.dist-info"
        directory.mkdir()
        project, _dash, version = name.partition("-")
        (directory / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n")
        (directory / "RECORD").write_text(f"{name}.dist-info/METADATA,,\n")
    if torch_cuda is not None:
        (site / "torch").mkdir()
        (site / "torch" / "__init__.py").write_text("")
        (site / "torch" / "version.py").write_text(f"cuda: Optional[str] = '{torch_cuda}'\n")
    return str(path)


def kinds(problems: list[Problem]) -> list[str]:
    return [problem.kind for problem in problems]


# --- /dev/shm ----------------------------------------------------------------------------------------------


@pytest.fixture
def mounted(host: RecordedHost, request: pytest.FixtureRequest) -> Iterator[RecordedHost]:
    """A host with four GPUs whose /dev/shm is a file system of that many MiB."""
    host.whole("a100-535.xml", "535.183.06")
    place = host.directory("/dev/shm")
    command = ["mount", "-t", "tmpfs", "-o", f"size={request.param}m", "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("file systems can be mounted by root only")
    yield host
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("mounted", [64], indirect=True)
def test_the_shared_memory_that_docker_gives(mounted: RecordedHost) -> None:
    (problem,) = mounted.problems()
    assert (problem.kind, problem.level) == ("small-shm", "warning")
    assert problem.message == "/dev/shm has 64 MiB, and 4 GPUs exchange data in it: NCCL needs 1 GiB"
    mounted.write("/.dockerenv", "")
    (problem,) = mounted.problems()
    assert "--shm-size" in problem.fix


@pytest.mark.parametrize("mounted", [1024], indirect=True)
def test_shared_memory_that_is_full_of_what_nccl_left(mounted: RecordedHost) -> None:
    assert mounted.problems() == []
    for number in range(2):
        with open(mounted.path(f"/dev/shm/nccl-Zk3{number}"), "wb") as segment:
            os.posix_fallocate(segment.fileno(), 0, 400 * MIB)
    (problem,) = mounted.problems()
    assert problem.message.startswith("/dev/shm is full: 224 of 1024 MiB are free, and 2 segments of NCCL")
    assert problem.fix.startswith("rm /dev/shm/nccl-*")


@pytest.mark.parametrize("mounted", [64], indirect=True)
def test_one_gpu_needs_no_shared_memory(mounted: RecordedHost) -> None:
    facts = mounted.facts()
    alone = dataclasses.replace(facts, smi=dataclasses.replace(facts.smi, gpus=facts.smi.gpus[:1]))
    assert "small-shm" not in kinds(judge_host(alone))


def test_no_shared_memory_at_all(host: RecordedHost) -> None:
    host.whole("a100-535.xml", "535.183.06")
    host.path("/dev/shm").rmdir()
    (problem,) = host.problems()
    assert problem.message.startswith("/dev/shm is not there")


# --- locked memory -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "rdma", "low"),
    [
        (["User=nobody"], True, True),
        (["User=nobody", "LimitMEMLOCK=64M"], True, True),
        (["User=nobody", "LimitMEMLOCK=infinity"], True, False),
        (["User=nobody", "LimitMEMLOCK=1T"], True, False),
        (["User=root"], True, False),
        (["User=nobody"], False, False),
    ],
)
def test_locked_memory_of_a_unit(
    gpu_host: RecordedHost,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lines: list[str],
    rdma: bool,
    low: bool,
) -> None:
    monkeypatch.setattr(_surroundings, "manager_limit", lambda name: None)
    if rdma:
        gpu_host.directory("/sys/class/infiniband/mlx5_0")
    assert kinds(gpu_host.problems(unit=unit(tmp_path, *lines))) == (["low-memlock"] if low else [])


def test_the_limit_of_a_unit_without_one_is_systemds(
    gpu_host: RecordedHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_surroundings, "manager_limit", lambda name: None)
    facts = gpu_host.facts(unit=unit(tmp_path, "User=nobody"))
    assert facts.surroundings.memlock_of == "systemd's default"
    assert facts.surroundings.memlock == (8 * MIB, 8 * MIB)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("infinity", (-1, -1)),
        ("64M", (64 * MIB, 64 * MIB)),
        ("8M:infinity", (8 * MIB, -1)),
        ("nonsense", None),
        (None, None),
    ],
)
def test_the_managers_limit(monkeypatch: pytest.MonkeyPatch, text: str | None, limit: tuple[int, int] | None) -> None:
    monkeypatch.setattr(_unit, "default_limit", lambda name: text if name == "MEMLOCK" else None)
    assert _unit.manager_limit("MEMLOCK") == limit


# --- variables ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "severity"),
    [("0", None), ("GPU-5f0c1a2b", None), ("", "error"), ("-1", "error"), ("1", "error"), ("0,7", "warning")],
)
def test_cuda_visible_devices(gpu_host: RecordedHost, tmp_path: Path, value: str, severity: str | None) -> None:
    problems = gpu_host.problems(unit=unit(tmp_path, f'Environment="CUDA_VISIBLE_DEVICES={value}"'))
    assert [(p.kind, p.level) for p in problems] == ([("environment-malformed", severity)] if severity else [])


def toolkit(tmp_path: Path, number: int) -> Path:
    home = tmp_path / f"cuda-{number}"
    (home / "include").mkdir(parents=True)
    (home / "include" / "cuda.h").write_text(f"#ifndef X\n#define CUDA_VERSION {number}\n")
    (home / "bin").mkdir()
    (home / "bin" / "nvcc").write_text("#!/bin/sh\n")
    (home / "bin" / "nvcc").chmod(0o755)
    return home


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ("{home}", None),
        (":{home}", "has a colon in it"),
        ("{home}:/usr", "has a colon in it"),
        ("cuda", "is a relative path"),
        ("{home}/absent", "is not a directory"),
    ],
)
def test_cuda_home(gpu_host: RecordedHost, tmp_path: Path, form: str, reason: str | None) -> None:
    value = form.format(home=toolkit(tmp_path, 13000))
    problems = gpu_host.problems(unit=unit(tmp_path, f"Environment=CUDA_HOME={value}"), cuda_major=13)
    assert kinds(problems) == (["environment-malformed"] if reason else [])
    assert reason is None or reason in problems[0].message


def test_cuda_home_of_another_major_than_the_wheels(gpu_host: RecordedHost, tmp_path: Path) -> None:
    path = unit(tmp_path, f"Environment=CUDA_HOME={toolkit(tmp_path, 12080)}")
    (problem,) = gpu_host.problems(unit=path, venv=venv(tmp_path, torch_cuda="13.0"))
    assert "is CUDA 12.8, and the wheels are for CUDA 13" in problem.message
    assert gpu_host.problems(unit=path, cuda_major=12) == []


def test_lines_that_systemd_ignores(gpu_host: RecordedHost, tmp_path: Path) -> None:
    (problem,) = gpu_host.problems(unit=unit(tmp_path, "Environment=NOTHING"))
    assert (problem.kind, problem.level) == ("environment-malformed", "warning")


# --- compilers ---------------------------------------------------------------------------------------------


def test_the_compilers_are_those_of_the_unit(gpu_host: RecordedHost, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("gcc", "ninja"):
        (tools / name).write_text("#!/bin/sh\n")
        (tools / name).chmod(0o755)
    home = toolkit(tmp_path, 13000)
    found = gpu_host.facts(unit=unit(tmp_path, f"Environment=PATH={tools}:{home}/bin")).toolchain
    assert (found.cc, found.ninja, found.cxx) == (str(tools / "gcc"), str(tools / "ninja"), None)
    assert (found.cuda_home, found.cuda_home_from, found.cuda) == (str(home), "PATH", "13.0")


def test_flashinfer_without_compilers(gpu_host: RecordedHost, tmp_path: Path) -> None:
    path = unit(tmp_path, f"Environment=PATH=/nonexistent CUDA_HOME={tmp_path}")
    wheels = venv(tmp_path, "flashinfer_python-0.6.8", "triton-3.6.0")
    (problem,) = gpu_host.problems(unit=path, venv=wheels)
    assert (problem.kind, problem.level) == ("toolchain-missing", "warning")
    assert problem.message.startswith("unit engine.service does not find nvcc, ninja, g++")
    assert "flashinfer-jit-cache" in problem.fix


@pytest.mark.parametrize(
    ("wheels", "unit_given", "missing"),
    [
        (("flashinfer_python-0.6.8", "flashinfer_jit_cache-0.6.8"), True, False),
        (("flashinfer_python-0.6.8",), False, False),
        (("flashinfer_python-0.6.8",), True, True),
        (("torch_geometric-2.6",), True, False),
    ],
)
def test_compilers_count_where_something_calls_them(
    gpu_host: RecordedHost, tmp_path: Path, wheels: tuple[str, ...], unit_given: bool, missing: bool
) -> None:
    path = unit(tmp_path, f"Environment=PATH=/nonexistent CUDA_HOME={tmp_path}") if unit_given else None
    problems = gpu_host.problems(unit=path, venv=venv(tmp_path, *wheels))
    assert kinds(problems) == (["toolchain-missing"] if missing else [])


def test_ninja_in_the_venv_but_not_in_path(gpu_host: RecordedHost, tmp_path: Path) -> None:
    wheels = venv(tmp_path, "flashinfer_python-0.6.8")
    ninja = Path(wheels) / "bin" / "ninja"
    ninja.write_text("#!/bin/sh\n")
    ninja.chmod(0o755)
    home = toolkit(tmp_path, 13000)
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "g++").symlink_to("/bin/true")
    lines = f"Environment=PATH={tmp_path}/tools CUDA_HOME={home}"
    (problem,) = gpu_host.problems(unit=unit(tmp_path, lines), venv=wheels)
    assert problem.fix == f"put {wheels}/bin into PATH of the unit, which has ninja"


def test_a_host_without_a_gpu_needs_no_compilers(host: RecordedHost, tmp_path: Path) -> None:
    path = unit(tmp_path, "Environment=PATH=/nonexistent")
    assert host.problems(unit=path, venv=venv(tmp_path, "flashinfer_python-0.6.8", "triton-3.6.0")) == []


# --- what the host is --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("/run/systemd/container", "lxc\n", ("container", "lxc")),
        ("/proc/1/environ", "PATH=/bin\0container=podman\0", ("container", "podman")),
        ("/.dockerenv", "", ("container", "docker")),
        ("/proc/self/cgroup", "0::/lxc/101/ns\n", ("container", "lxc")),
        ("/sys/class/dmi/id/sys_vendor", "QEMU\n", ("vm", "QEMU")),
        ("/sys/class/dmi/id/sys_vendor", "Amazon EC2\n", ("vm", "Amazon EC2")),
        ("/proc/cpuinfo", "flags : fpu hypervisor lm\n", ("vm", "")),
        ("/proc/sys/kernel/osrelease", "6.6.87.2-microsoft-standard-WSL2\n", ("wsl", "WSL")),
        ("/proc/self/cgroup", "0::/system.slice/docker-0123456789abcdef.scope\n", ("container", "docker")),
        ("/proc/self/cgroup", "11:devices:/kubepods/burstable/pod1\n", ("container", "kubepods")),
        ("/proc/self/cgroup", "0::/system.slice/docker.service\n", ("none", "")),
    ],
)
def test_what_a_host_runs_in(host: RecordedHost, name: str, text: str, kind: tuple[str, str]) -> None:
    host.write(name, text)
    assert virtualisation(HostFiles(str(host.root))) == kind


# --- why CUDA sees no GPU ----------------------------------------------------------------------------------


def reason(host: RecordedHost, major: int | None = 13, gpus: int = 1) -> str | None:
    """The kind of the reason. The tests' own loader does not look into the tree without LD_LIBRARY_PATH."""
    environment = {"LD_LIBRARY_PATH": str(host.libraries)}
    found = why_no_cuda(major, environment=environment, files=HostFiles(str(host.root)), gpus=gpus)
    return found.kind if found else None


def test_there_is_no_gpu(host: RecordedHost) -> None:
    assert reason(host) == "gpu-missing"


def test_the_host_is_in_order(gpu_host: RecordedHost) -> None:
    assert reason(gpu_host) is None
    assert reason(gpu_host, None) is None


def test_the_driver_is_too_old(host: RecordedHost) -> None:
    assert reason(host.whole("rtx4090-570.xml", "570.86.10")) == "driver-too-old"
    assert reason(host, 12) is None


def test_the_cause_comes_before_its_effects(gpu_host: RecordedHost) -> None:
    """Without the module there are no nodes, no answer of nvidia-smi and no GPUs."""
    for name in ("/proc/driver/nvidia/version", "/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"):
        gpu_host.path(name).unlink()
    gpu_host.program("/usr/bin/nvidia-smi", 'echo "it couldn\'t communicate with the NVIDIA driver"; exit 9')
    assert reason(gpu_host) == "driver-missing"


def test_the_number_of_uvm_has_changed(gpu_host: RecordedHost) -> None:
    gpu_host.node("/dev/nvidia-uvm", major=MAJOR + 509, minor=0)
    assert reason(gpu_host) == "device-node-missing"


def test_fewer_gpus_than_the_service_needs(gpu_host: RecordedHost) -> None:
    assert reason(gpu_host, gpus=2) == "gpu-missing"


# --- commands that may hang --------------------------------------------------------------------------------


def test_a_command_that_prints_without_end_is_cut() -> None:
    done = run_bounded(["/usr/bin/yes"], timeout=20, limit=MIB)
    assert (done.status, done.failure) == (None, "prints more than 1 MiB")


def test_a_command_that_leaves_a_process_with_its_output_behind() -> None:
    begun = time.monotonic()
    done = run_bounded(["/bin/sh", "-c", "sleep 60 & echo said"], timeout=0.5)
    assert time.monotonic() - begun < 4
    assert (done.status, done.output) == (None, "said\n")


def test_a_command_that_closes_its_output_and_lives_on() -> None:
    begun = time.monotonic()
    done = run_bounded(["/bin/sh", "-c", "exec >&- 2>&-; sleep 60"], timeout=20)
    assert time.monotonic() - begun < 4
    assert done.status == -9


@pytest.mark.parametrize("command", [["/nonexistent"], ["/etc/passwd"], ["/tmp"], ["/bin/\0"]])
def test_a_command_that_cannot_run(command: list[str]) -> None:
    assert run_bounded(command, timeout=1).failure.startswith("cannot be run: ")
