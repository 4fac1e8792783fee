# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which libraries a load really mapped, by which rule, and how that differs from the prediction; and torch's GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import probe_venv
from support.probe_venv import COMPILER, ProbeVenv, check, kinds, library

from ansible_collections.gpufleet.dflash.plugins.module_utils._load_trace import Trace

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")


@pytest.fixture
def folder() -> Iterator[Path]:
    with probe_venv.public_directory() as directory:
        yield directory


@pytest.fixture
def venv(folder: Path) -> ProbeVenv:
    return ProbeVenv(folder / "venv")


@pytest.fixture
def cuda(venv: ProbeVenv) -> dict[str, Path]:
    """Libraries with the names of CUDA's, in the places of its wheels, that need each other."""
    lib = venv.site / "nvidia" / "cu13" / "lib"
    runtime = library(lib / "libcudart.so.13")
    blas = library(lib / "libcublas.so.13", "int blas;", "-Wl,--no-as-needed", str(runtime), "-Wl,-rpath,$ORIGIN")
    venv.distribution("nvidia-cuda-runtime", "13.0.96", runtime)
    venv.distribution("nvidia-cublas", "13.1.0.3", blas)
    return {"cudart": runtime, "cublas": blas}


def test_each_library_has_its_owner_its_rule_and_who_needed_it(venv: ProbeVenv, cuda: dict[str, Path]) -> None:
    result = check(venv, "ctypes", dlopen=[str(cuda["cublas"])], trace=True)
    assert result["ok"] and result["problems"] == [] and result["differences"] == []
    blas, runtime = result["libraries"]
    assert blas["path"] == str(cuda["cublas"]) and blas["rule"] == "path"
    assert os.path.basename(blas["needed_by"]).startswith("_ctypes")
    assert runtime == {
        "path": str(cuda["cudart"]),
        "distribution": "nvidia-cuda-runtime",
        "version": "13.0.96",
        "rule": "runpath",
        "needed_by": str(cuda["cublas"]),
    }
    assert "find library" not in result["stderr"], "the loader's lines are taken out of the output"


def test_without_the_trace_there_is_no_rule(venv: ProbeVenv, cuda: dict[str, Path]) -> None:
    result = check(venv, dlopen=[str(cuda["cublas"])])
    assert [(entry["rule"], entry["needed_by"]) for entry in result["libraries"]] == [(None, None)] * 2


def test_output_among_the_loaders_lines_is_kept(venv: ProbeVenv, cuda: dict[str, Path]) -> None:
    venv.module(
        "noisy", "import sys, os\nos.write(2, b'begin ')\nimport _json, _csv\nos.write(2, b'12:\\tlike it\\nend')"
    )
    result = check(venv, "noisy", dlopen=[str(cuda["cublas"])], trace=True)
    assert result["ok"] and len(result["libraries"]) == 2
    assert result["stderr"].startswith("begin ") and result["stderr"].endswith("end")


@pytest.mark.parametrize("size", [1, 7, 65536])
def test_the_trace_is_read_in_pieces_of_any_size(size: int) -> None:
    lines = [
        "file=libA.so.1 [0];  needed by /v/libB.so [0]",
        "find library=libA.so.1 [0]; searching",
        " search path=/x:/v\t\t(LD_LIBRARY_PATH)",
        "  trying file=/x/libA.so.1",
        "  trying file=/v/libA.so.1",
        "",
        "file=libA.so.1 [0];  generating link map",
    ]
    printed = "".join(f"        12:\t{line}\n" for line in lines)
    text = printed.replace("        12:\t\n", "hello\n        12:\t\n").encode() + b"rest"
    trace = Trace()
    passed = b"".join(trace.take(text[at : at + size]) for at in range(0, len(text), size))
    assert passed == b"hello\n" and trace.rest == b"rest"
    assert {path: (found.rule, found.needed_by) for path, found in trace.found.items()} == {
        "/v/libA.so.1": ("ld_library_path", "/v/libB.so")
    }


def test_what_no_plan_foresees_is_a_difference(venv: ProbeVenv, cuda: dict[str, Path]) -> None:
    venv.module("engine", f"import ctypes\nctypes.CDLL({str(cuda['cudart'])!r})")
    result = check(venv, "engine")
    assert result["ok"] and result["problems"] == []
    assert result["differences"] == [
        {
            "difference": "not-predicted",
            "soname": "libcudart.so.13",
            "path": str(cuda["cudart"]),
            "predicted": None,
            "rule": None,
        }
    ]


def test_a_python_module_of_nvidias_is_no_library_but_what_it_needs_is(venv: ProbeVenv, cuda: dict[str, Path]) -> None:
    """As cudnn._compiled_module of nvidia-cudnn-frontend, which flashinfer imports by a computed name."""
    extension = library(
        venv.site / f"_compiled.cpython-{sys.version_info.major}{sys.version_info.minor}-x86_64-linux-gnu.so",
        "int module;",
        *("-Wl,--no-as-needed", str(cuda["cudart"]), f"-Wl,-rpath,{cuda['cudart'].parent}"),
    )
    venv.distribution("nvidia-cudnn-frontend", "1.0", extension)
    venv.module("engine", f"import ctypes\nctypes.CDLL({str(extension)!r})")
    result = check(venv, "engine")
    assert result["ok"], result
    assert [library["path"] for library in result["libraries"]] == [str(cuda["cudart"])]
    assert [difference["soname"] for difference in result["differences"]] == ["libcudart.so.13"]


def test_another_origin_than_predicted_is_a_difference(venv: ProbeVenv, cuda: dict[str, Path], folder: Path) -> None:
    """A module that changes what the next load finds, which nobody can foresee."""
    other = library(folder / "other" / "libcudart.so.13")
    venv.module("engine", f"import ctypes\nctypes.CDLL({str(other)!r})")
    lib = str(cuda["cudart"].parent)
    result = check(venv, "engine", dlopen=["libcudart.so.13"], environment={"LD_LIBRARY_PATH": lib})
    (difference,) = result["differences"]
    assert difference == {
        "difference": "unexpected-origin",
        "soname": "libcudart.so.13",
        "path": str(other),
        "predicted": str(cuda["cudart"]),
        "rule": "ld_library_path",
    }
    assert kinds(result) == ["resolved-outside-venv"]
    assert result["problems"][0]["paths"] == [str(other)]


def test_two_majors_and_two_files_of_one_name_are_told_as_seen(venv: ProbeVenv, cuda: dict[str, Path]) -> None:
    old = library(venv.site / "nvidia" / "cuda_runtime" / "lib" / "libcudart.so.12")
    twin = library(venv.site / "bundle" / "lib" / "libcudart.so.13")
    venv.distribution("nvidia-cuda-runtime-cu12", "12.8.90", old)
    venv.distribution("bundle", "1", twin)
    result = check(venv, dlopen=[str(cuda["cudart"]), str(old), str(twin)])
    assert result["ok"]
    assert sorted(kinds(result)) == ["duplicate-soname", "mixed-cuda-majors"]
    mixed = next(entry for entry in result["problems"] if entry["kind"] == "mixed-cuda-majors")
    assert mixed["message"] == "one process loads libraries of CUDA 12 and 13"
    assert set(mixed["paths"]) == {str(cuda["cudart"]), str(old)}


def test_a_clean_host_lacks_what_only_this_ones_cache_has(venv: ProbeVenv) -> None:
    """libexpat and its like are in a default directory; what only ld.so.cache knows is this host's own."""
    cached = _only_in_the_cache()
    if cached is None:
        pytest.skip("every library in this host's ld.so.cache is in a default directory too")
    result = check(venv, dlopen=[cached], clean_host=True)
    assert result["dlopen"][0]["ok"] and not result["ok"]
    assert result["clean_host"]["ok"] is False
    assert result["clean_host"]["dlopen"][0]["error"].startswith(f"{cached}: cannot open shared object file")
    problem = next(entry for entry in result["problems"] if entry["severity"] == "error")
    assert problem["kind"] == "resolved-outside-venv"
    assert problem["message"].startswith(f"dlopen of {cached} works here only because of this host's own libraries")


def _only_in_the_cache() -> str | None:
    """The name of a CUDA library that the loader finds by its cache alone."""
    listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in listed.splitlines() if "=>" in line and "libcudart.so" in line]
    default = ("/lib", "/usr/lib")
    return next((row[0] for row in rows if not row[-1].startswith(default)), None)


def test_a_clean_host_loads_what_the_venv_has(venv: ProbeVenv, cuda: dict[str, Path]) -> None:
    venv.module("engine", "import sys\nassert sys.prefix != sys.base_prefix\nprint(sys.executable)")
    result = check(venv, "engine", dlopen=[str(cuda["cublas"])], clean_host=True)
    assert result["ok"] and result["problems"] == []
    assert result["clean_host"]["ok"] is True
    assert result["clean_host"]["imports"][0]["path"] == str(venv.site / "engine.py")


# --- torch's GPUs -----------------------------------------------------------------------------------------

# Answers as torch does; the arithmetic is what the check asks for.
_TORCH = """
class version:
    cuda = {cuda!r}
__version__ = "2.11.0+cu130"
class _Properties:
    name, major, minor, total_memory = "NVIDIA H200", 9, 0, 150 << 30
class cuda:
    is_available = staticmethod(lambda: {count} > 0)
    device_count = staticmethod(lambda: {count})
    get_device_properties = staticmethod(lambda number: _Properties)
    @staticmethod
    def init():
        {init}
class _Tensor:
    def __init__(self, side, value): self.side, self.value = side, value
    def __matmul__(self, other): {multiply}
    def sum(self): return _Tensor(1, self.value * self.side * self.side)
    def item(self): return self.value
def ones(shape, device): return _Tensor(shape[0], 1.0)
"""
_RIGHT = "return _Tensor(self.side, self.side * self.value)"


def torch(venv: ProbeVenv, count: int, cuda: str | None = "13.0", init: str = "pass", multiply: str = _RIGHT) -> None:
    source = _TORCH.format(count=count, cuda=cuda, init=init, multiply=multiply)
    venv.module("torch", source)


def test_every_gpu_has_a_name_a_capability_and_a_right_product(venv: ProbeVenv) -> None:
    torch(venv, 2)
    result = check(venv, "torch", require_cuda=True, device_count=2)
    assert result["ok"] and result["problems"] == []
    device = {"name": "NVIDIA H200", "capability": "9.0", "memory": 150 << 30, "product": "ok"}
    assert result["torch"] == {
        "version": "2.11.0+cu130",
        "cuda": "13.0",
        "is_available": True,
        "device_count": 2,
        "devices": [device, device],
        "error": None,
    }


@pytest.mark.parametrize(
    ("multiply", "words"),
    [
        pytest.param("return _Tensor(self.side, 1.0)", "wrong: the sum is 4096, not 262144", id="wrong"),
        pytest.param(
            "raise RuntimeError('CUDA error: no kernel image is available for execution on the device')",
            "no kernel image is available",
            id="no code for it",
        ),
    ],
)
def test_a_gpu_that_does_not_compute_is_an_error(venv: ProbeVenv, multiply: str, words: str) -> None:
    torch(venv, 1, multiply=multiply)
    result = check(venv, "torch")
    assert not result["ok"] and kinds(result) == ["cuda-unavailable"]
    assert words in result["problems"][0]["message"]


def test_a_gpu_without_free_memory_is_no_fault(venv: ProbeVenv) -> None:
    torch(venv, 1, multiply="raise RuntimeError('CUDA out of memory. Tried to allocate 20.00 MiB')")
    result = check(venv, "torch", require_cuda=True)
    assert result["ok"] and "out of memory" in result["torch"]["devices"][0]["product"]


def test_no_gpu_is_an_error_only_when_one_is_required_and_has_a_reason(venv: ProbeVenv) -> None:
    torch(venv, 0, init="raise RuntimeError('Found no NVIDIA driver on your system.')")
    relaxed = check(venv, "torch")
    assert relaxed["ok"] and relaxed["problems"] == []
    assert relaxed["torch"]["error"] == "RuntimeError: Found no NVIDIA driver on your system."
    strict = check(venv, "torch", require_cuda=True)
    assert not strict["ok"] and strict["imports"][0]["ok"]
    (problem,) = strict["problems"]
    assert problem["severity"] == "error"
    assert problem["message"].startswith("torch sees no GPU, and 1 is wanted: ")
    assert "Found no NVIDIA driver on your system." in problem["evidence"]


def test_a_torch_without_cuda_is_told_as_such(venv: ProbeVenv) -> None:
    torch(venv, 0, cuda=None)
    result = check(venv, "torch", device_count=8)
    assert kinds(result) == ["cuda-unavailable"]
    assert (
        result["problems"][0]["message"]
        == "torch sees no GPU, and 8 are wanted: torch 2.11.0+cu130 is built without CUDA"
    )


def test_more_gpus_than_wanted_are_an_error_too(venv: ProbeVenv) -> None:
    torch(venv, 8)
    result = check(venv, "torch", device_count=4)
    assert kinds(result) == ["cuda-unavailable"]
    assert result["problems"][0]["message"].startswith("torch sees 8 GPUs, and 4 are wanted")
    assert "CUDA_VISIBLE_DEVICES" in result["problems"][0]["fix"]


def test_a_cuda_that_hangs_when_it_starts_is_a_timeout(venv: ProbeVenv) -> None:
    torch(venv, 0, init="import time; time.sleep(600)")
    result = check(venv, "torch", timeout=1.5)
    assert kinds(result) == ["load-timeout"]
    assert result["imports"][0]["ok"] and not result["ok"]
    assert result["problems"][0]["message"].startswith("looking for GPUs with torch hangs")


def test_a_torch_that_cannot_be_asked_is_a_result(venv: ProbeVenv) -> None:
    venv.module("torch", "__version__ = '1'")
    result: dict[str, Any] = check(venv, "torch", require_cuda=True)
    assert not result["ok"] and "AttributeError" in result["torch"]["error"]
