# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The locks that the collection ships: what they pin, for whom, and that they install as one set."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.version import Version
from support import small_wheels
from support.examination import examine_as_service

from ansible_collections.gpufleet.dflash.plugins.module_utils._catalogue import cuda_major_of
from ansible_collections.gpufleet.dflash.plugins.module_utils._lock import LockEntry, read_lock

LOCKS = {path.stem if path.suffix != ".txt" else path.name.removesuffix(".txt"): path for path in sorted(
    (small_wheels.CHECKOUT / "roles" / "cuda_runtime" / "files" / "locks").glob("*.txt")
)}  # fmt: skip
SERVING = "cu13-torch2.11-sglang0.5.11"
TRAINING = "cu13-torch2.11-training"
CURRENT = "cu13-torch2.14-sglang0.5.23"
RUNTIME_SET = {
    "nvidia-cublas": "13.1.0.3",
    "nvidia-cuda-nvrtc": "13.0.88",
    "nvidia-cuda-runtime": "13.0.96",
    "nvidia-nvjitlink": "13.0.88",
    "nvidia-nvtx": "13.0.85",
}
# Distributions that own the same paths with other content.
CLASHES = [
    ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13"),
    ("nvidia-nccl-cu12", "nvidia-nccl-cu13"),
    ("nvidia-nvshmem-cu12", "nvidia-nvshmem-cu13"),
    ("nvidia-cusparselt-cu12", "nvidia-cusparselt-cu13"),
    ("nvidia-nvtx-cu11", "nvidia-nvtx-cu12"),
    ("sgl-kernel", "sglang-kernel"),
]
SERVING_PACKAGES = {"sglang", "sglang-kernel", "flashinfer-python", "fastapi", "uvicorn", "vllm"}


def applicable(name: str, python: str, machine: str = "x86_64") -> dict[str, LockEntry]:
    """{name: entry} of what a lock installs on Linux; a distribution that is pinned twice there fails."""
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.5",
        "sys_platform": "linux",
        "platform_machine": machine,
        "platform_system": "Linux",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    found: dict[str, LockEntry] = {}
    for entry in read_lock(LOCKS[name].read_text(), name):
        if entry.marker is None or Marker(entry.marker).evaluate(environment):
            assert entry.name not in found, f"{entry.name} is there twice for Python {python} on {machine}"
            found[entry.name] = entry
    return found


def pythons(name: str) -> list[str]:
    """The Pythons that the head of a lock names."""
    first, last = re.findall(r"^# Pythons: 3\.(\d+) to 3\.(\d+)$", LOCKS[name].read_text(), flags=re.MULTILINE)[0]
    return [f"3.{minor}" for minor in range(int(first), int(last) + 1)]


def test_the_locks_are_those_that_are_documented() -> None:
    assert set(LOCKS) == {"cu13-llama-cpp", SERVING, TRAINING, CURRENT}
    sources = {path.name.removesuffix(".in") for path in (small_wheels.CHECKOUT / "tools" / "locks").glob("*.in")}
    assert sources == set(LOCKS)


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_has_only_pins_and_sha256_and_names_no_host(name: str) -> None:
    text = LOCKS[name].read_text()
    entries = read_lock(text, name)
    assert all(digest.startswith("sha256:") for entry in entries for digest in entry.hashes)
    assert "://" not in text
    assert not re.search(r"^\s*-(?!-hash=)", text, flags=re.MULTILINE)
    assert [(entry.name, entry.marker or "") for entry in entries] == sorted(
        (entry.name, entry.marker or "") for entry in entries
    )


@pytest.mark.parametrize("name", LOCKS)
@pytest.mark.parametrize("pair", CLASHES, ids="|".join)
def test_no_two_distributions_share_paths(name: str, pair: tuple[str, str]) -> None:
    names = {entry.name for entry in read_lock(LOCKS[name].read_text())}
    assert not set(pair) <= names


@pytest.mark.parametrize("name", LOCKS)
def test_there_is_one_cuda_major(name: str) -> None:
    names = {entry.name for entry in read_lock(LOCKS[name].read_text())}
    # nvidia-cutlass-dsl 4.8 itself requires its libraries for both majors; they are in directories of their own.
    names.discard("nvidia-cutlass-dsl-libs-cu12")
    assert {cuda_major_of(name) for name in names} - {None} == {13}


@pytest.mark.parametrize("name", [SERVING, TRAINING])
def test_the_runtime_set_is_the_one_of_torch_2_11(name: str) -> None:
    for python in pythons(name):
        found = applicable(name, python)
        assert {pin: found[pin].version for pin in RUNTIME_SET} == RUNTIME_SET
        assert (found["torch"].version, found["triton"].version) == ("2.11.0", "3.6.0")
        assert found["nvidia-cudnn-cu13"].version == "9.19.0.56"


@pytest.mark.parametrize("name", [SERVING, TRAINING, CURRENT])
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_python_and_machine_gets_a_whole_set(name: str, machine: str) -> None:
    sets = [applicable(name, python, machine) for python in pythons(name)]
    core = set.intersection(*(set(found) for found in sets))
    assert {"torch", "triton", "numpy", "nvidia-cublas", "nvidia-nccl-cu13", "nvidia-cuda-runtime"} <= core
    assert len(pythons(name)) >= 3
    if name != TRAINING:
        assert {"sglang", "sglang-kernel", "flashinfer-python", "flash-attn-4"} <= core


def test_the_known_traps_of_sglang_0_5_11_are_avoided() -> None:
    for python in pythons(SERVING):
        found = applicable(SERVING, python)
        assert Version(found["kernels"].version) < Version("0.16")
        assert (found["fastapi"].version, found["starlette"].version) == ("0.136.1", "1.0.0")
        assert found["transformers"].version == "5.6.0"
        assert found["cuda-tile"].version != "0.0.0a0"
        early = {name for name, entry in found.items() if Version(entry.version).is_prerelease}
        assert early == {"flash-attn-4"}


def test_nothing_that_serves_is_in_the_training_lock() -> None:
    names = {entry.name for entry in read_lock(LOCKS[TRAINING].read_text())}
    assert not names & SERVING_PACKAGES
    assert {"numpy", "transformers", "accelerate", "datasets", "safetensors"} <= names


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "imports"), [(TRAINING, ["torch"]), (SERVING, ["torch", "sgl_kernel"])], ids=[TRAINING, SERVING]
)
def test_an_installed_lock_has_no_problem_but_the_hosts(name: str, imports: list[str], tmp_path: Path) -> None:
    """Gigabytes: uv's own cache is used, and the venv is removed with the test's folder."""
    venv = tmp_path / "venv"
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("UV_FIND", "UV_NO_INDEX"))}
    commands = [
        [small_wheels.uv(), "venv", "--quiet", "--python", sys.executable, str(venv)],
        [
            *(small_wheels.uv(), "pip", "install", "--quiet", "--python", f"{venv}/bin/python"),
            *("--no-deps", "--require-hashes", "--only-binary", ":all:", "-r", str(LOCKS[name])),
        ],
    ]
    for command in commands:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    facts = examine_as_service(venv, imports=imports, verify="hash")
    assert facts["distributions"]["torch"] == "2.11.0"
    # The driver and libnuma are the host's own to have; a toolkit below /usr/local/cuda is loaded by its path.
    hosts = ("driver-missing", "resolved-outside-venv")
    strange = [
        problem for problem in facts["problems"] if problem["kind"] not in hosts and problem["soname"] != "libnuma.so.1"
    ]
    assert strange == []
    assert facts["overlays"] == []
    loaded = {row["soname"]: row["distribution"] for row in facts["resolution"]}
    assert (loaded["libcublas.so.13"], loaded["libcudart.so.13"]) == ("nvidia-cublas", "nvidia-cuda-runtime")
