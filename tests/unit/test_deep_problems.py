# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What ``deep`` finds in a venv: real interpreters load what was predicted to fail, and say the same words."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support import small_wheels
from support.device_code import SASS, compile_library, fat_binary, record
from support.elf_writer import Symbol, write_elf
from support.examination import CU13, CU13_SONAMES, examine, examine_as_service, kinds

OPEN = "import ctypes, sys\nfor path in sys.argv[1:]: ctypes.CDLL(path)"


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    return small_wheels.make_venv(tmp_path / "venv")


@pytest.fixture
def site(venv: Path) -> Path:
    return small_wheels.site_packages(venv)


def real_words(venv: Path, *paths: Path | str, library_path: str = "") -> str:
    """The last line of what the venv's interpreter says when it opens these files."""
    finished = subprocess.run(
        [f"{venv}/bin/python", "-c", OPEN, *map(str, paths)],
        env={"LD_LIBRARY_PATH": library_path},
        capture_output=True,
        text=True,
        check=False,
    )
    return finished.stderr.strip().rpartition("\n")[2].removeprefix("OSError: ")


def only(facts: dict[str, Any]) -> dict[str, Any]:
    (problem,) = facts["problems"]
    assert isinstance(problem, dict)
    return problem


def deep(venv: Path, **options: Any) -> dict[str, Any]:
    return examine(venv, **{"deep": True, "capabilities": [], **options})


# --- undefined symbols ---------------------------------------------------------------------------------

GONE = "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_jb"


def make_torch(site: Path, version: str = "2.11.0") -> Path:
    library = write_elf(site / "torch/lib/libc10.so", soname="libc10.so", symbols=["_ZN3c106detail4goodEv"])
    (site / "torch/__init__.py").write_text("")
    record(site, "torch", version, [library, site / "torch/__init__.py"])
    return library


def make_kernel(site: Path, *symbols: str, requires: tuple[str, ...] = ()) -> Path:
    library = write_elf(
        site / "kernel/ops.so",
        soname="ops.so",
        needed=["libc10.so"],
        rpath="$ORIGIN/../torch/lib",
        symbols=[Symbol(name, wanted=True) for name in symbols],
    )
    record(site, "kernel", "0.4.2", [library], requires)
    return library


def test_a_kernel_built_for_another_torch(venv: Path, site: Path) -> None:
    make_torch(site)
    kernel = make_kernel(site, "_ZN3c106detail4goodEv", GONE, "_ZNK2at10TensorBase14const_data_ptrIiLi0EEEPKT_v")

    assert examine(venv, load=[str(kernel)])["problems"] == []
    problem = only(deep(venv, load=[str(kernel)]))

    assert (problem["kind"], problem["severity"]) == ("undefined-symbol", "error")
    assert problem["message"] == (
        "ops.so of kernel==0.4.2 needs 2 symbols that no library that is loaded with it defines, such as "
        "c10::cuda::c10_cuda_check_implementation: it was built for another torch than 2.11.0"
    )
    assert problem["evidence"].startswith(real_words(venv, kernel) + " (2 in all: ")
    assert problem["distributions"] == ["kernel"]
    assert "for torch==2.11.0" in problem["fix"]


def test_the_torch_that_a_kernel_asks_for_is_in_the_fix(venv: Path, site: Path) -> None:
    make_torch(site)
    kernel = make_kernel(site, GONE, requires=("torch==2.10.0",))

    problem = next(each for each in deep(venv, load=[str(kernel)])["problems"] if each["kind"] == "undefined-symbol")

    assert "torch==2.10.0" in problem["fix"]


def test_a_kernel_that_fits_has_no_problem(venv: Path, site: Path) -> None:
    make_torch(site)
    kernel = make_kernel(site, "_ZN3c106detail4goodEv")

    facts = deep(venv, load=[str(kernel)])

    assert facts["problems"] == []
    assert real_words(venv, kernel) == ""


def test_an_older_nccl_of_another_wheel(venv: Path, site: Path) -> None:
    nccl = write_elf(site / "nvidia/nccl/lib/libnccl.so.2", soname="libnccl.so.2", symbols=["ncclCommInitRank"])
    record(site, "nvidia-nccl-cu12", "2.21.5", [nccl])
    user = write_elf(
        site / "torch/lib/libtorch_cuda.so",
        soname="libtorch_cuda.so",
        needed=["libnccl.so.2"],
        rpath="$ORIGIN/../../nvidia/nccl/lib",
        symbols=[Symbol("ncclCommInitRank", wanted=True), Symbol("ncclCommResume", wanted=True, relocation="call")],
    )
    record(site, "torch", "2.12.1", [user], ["nvidia-nccl-cu12==2.29.3"])

    problem = next(each for each in deep(venv, load=[str(user)])["problems"] if each["kind"] == "undefined-symbol")

    assert problem["message"].endswith(
        f"needs a symbol that libnccl.so.2 does not define, ncclCommResume: {nccl} comes from "
        "nvidia-nccl-cu12==2.21.5, which is another version than it was built with"
    )
    assert problem["evidence"] == real_words(venv, user)
    assert problem["distributions"] == ["torch", "nvidia-nccl-cu12"]
    assert "nvidia-nccl-cu12==2.29.3" in problem["fix"]


def test_an_older_copy_in_the_library_path_wins(venv: Path, site: Path, tmp_path: Path) -> None:
    """The wheel's own libraries have RUNPATH, which loses to LD_LIBRARY_PATH (pytorch/pytorch#134929)."""
    new, old = "__nvJitLinkComplete_12_4", "__nvJitLinkComplete_12_1"
    common: dict[str, Any] = {"soname": "libnvJitLink.so.12", "version_defs": ["base", "libnvJitLink.so.12"]}
    for path, symbol in ((site / "nvidia/nvjitlink/lib", new), (tmp_path / "host", old)):
        symbols = [Symbol(symbol, version="libnvJitLink.so.12")]
        # A need of its own, as real ones have: the linker insists that a named library has versions.
        write_elf(path / "libnvJitLink.so.12", symbols=symbols, **common)
    user = write_elf(
        site / "nvidia/cusparse/lib/libcusparse.so.12",
        needed=["libnvJitLink.so.12"],
        runpath="$ORIGIN/../../nvjitlink/lib",
        version_needs={"libnvJitLink.so.12": [("libnvJitLink.so.12", False)]},
        symbols=[Symbol(new, wanted=True, version="libnvJitLink.so.12")],
    )
    record(site, "nvidia-cusparse-cu12", "12.5.1.3", [user])
    record(site, "nvidia-nvjitlink-cu12", "12.4.127", [site / "nvidia/nvjitlink/lib/libnvJitLink.so.12"])
    host = str(tmp_path / "host")

    assert deep(venv, load=[str(user)])["problems"] == []
    facts = deep(venv, load=[str(user)], ld_library_path=[host])
    problem = next(each for each in facts["problems"] if each["kind"] == "undefined-symbol")

    assert problem["evidence"] == real_words(venv, user, library_path=host)
    assert problem["evidence"].endswith(f"undefined symbol: {new}, version libnvJitLink.so.12")
    assert problem["fix"] == f"take {host} out of LD_LIBRARY_PATH, so that the copy of the wheel is found"


def test_a_driver_that_is_too_old(venv: Path, site: Path, tmp_path: Path) -> None:
    write_elf(tmp_path / "driver/libcuda.so.1", soname="libcuda.so.1", symbols=["cuInit"])
    user = write_elf(
        site / "kernel/ops.so", needed=["libcuda.so.1"], symbols=[Symbol("cuGreenCtxDestroy", wanted=True)]
    )
    record(site, "kernel", "1.0", [user])
    driver = str(tmp_path / "driver")

    problem = only(deep(venv, load=[str(user)], ld_library_path=[driver]))

    assert problem["soname"] == "libcuda.so.1"
    assert "the NVIDIA driver, whose " in problem["message"]
    assert problem["fix"].startswith("install a newer NVIDIA driver")
    assert problem["evidence"] == real_words(venv, user, library_path=driver)


def test_a_damaged_symbol_table_is_named(venv: Path, site: Path) -> None:
    library = write_elf(site / "kernel/ops.so", hash_style="gnu", symbols=["a"])
    data = library.read_bytes()
    at = data.find(b"\x01\0\0\0\x01\0\0\0\x01\0\0\0\x05\0\0\0")
    library.write_bytes(data[:at] + b"\xff" * 16 + data[at + 16 :])
    record(site, "kernel", "1.0", [library])

    problem = only(deep(venv, load=[str(library)]))

    assert (problem["kind"], problem["object"]) == ("altered-file", str(library))


# --- versions, which every load checks ------------------------------------------------------------------


@pytest.mark.parametrize("looks_deep", [False, True])
def test_glibc_is_too_old(venv: Path, site: Path, looks_deep: bool) -> None:
    user = write_elf(site / "kernel/ops.so", needed=["libc.so.6"], version_needs={"libc.so.6": [("GLIBC_2.99", False)]})
    record(site, "kernel", "1.0", [user])

    problem = only(examine(venv, load=[str(user)], deep=looks_deep, capabilities=[]))

    assert (problem["kind"], problem["severity"], problem["soname"]) == ("glibc-too-old", "error", "libc.so.6")
    # A host that names the file otherwise in its cache is examined without the cache here.
    assert problem["evidence"].rpartition("/")[2] == real_words(venv, user).rpartition("/")[2]
    assert problem["evidence"].endswith(f"libc.so.6: version `GLIBC_2.99' not found (required by {user})")
    assert "GLIBC_2.99" in problem["message"]


def test_an_old_libstdcxx_in_the_library_path(venv: Path, site: Path, tmp_path: Path) -> None:
    write_elf(
        tmp_path / "conda/libstdc++.so.6", soname="libstdc++.so.6", version_defs=["libstdc++.so.6", "GLIBCXX_3.4"]
    )
    user = write_elf(
        site / "kernel/ops.so",
        needed=["libstdc++.so.6"],
        version_needs={"libstdc++.so.6": [("GLIBCXX_3.4.30", False), ("CXXABI_1.3.13", False), ("GLIBCXX_3.4", False)]},
    )
    record(site, "kernel", "1.0", [user])
    conda = str(tmp_path / "conda")

    problem = only(examine(venv, load=[str(user)], ld_library_path=[conda]))

    assert problem["kind"] == "libstdcxx-too-old"
    assert problem["evidence"] == real_words(venv, user, library_path=conda)
    assert problem["fix"] == f"take {conda} out of LD_LIBRARY_PATH, so that the system's libstdc++.so.6 is found"


# --- device code ---------------------------------------------------------------------------------------


def kernels(*architectures: int, size: int = 1000) -> bytes:
    return fat_binary([(SASS, architecture) for architecture in architectures], b"code" * (size // 4))


def test_a_gpu_without_code(venv: Path, site: Path) -> None:
    library = compile_library(site / "kernel/ops.so", fat=kernels(80, 90, 100))
    helper = compile_library(site / "kernel/helper.so", fat=kernels(70, size=20))
    unused = compile_library(site / "kernel/other.so", fat=kernels(120))
    record(site, "kernel", "1.0", [library, helper, unused])
    load = [str(library), str(helper)]

    for capabilities in ([], [80], [86], [90, 100], [103]):
        assert deep(venv, load=load, capabilities=capabilities)["problems"] == []
    problem = only(deep(venv, load=load, capabilities=[120]))
    assert (problem["kind"], problem["severity"]) == ("architecture-unsupported", "error")
    assert problem["message"] == (
        "kernel==1.0 has no code for this host's GPU of compute capability 12.0, only sm_80, sm_90, sm_100"
    )
    assert problem["object"] == str(library)
    one_of_two = only(deep(venv, load=load, capabilities=[70, 90]))
    assert one_of_two["severity"] == "warning"
    assert "CUDA_VISIBLE_DEVICES" in one_of_two["fix"]
    # What the plan does not load says nothing; and nothing is said without ``deep``.
    assert deep(venv, load=[], capabilities=[70])["problems"] == []
    assert examine(venv, load=load, capabilities=[70])["problems"] == []


def test_kernels_for_one_generation_and_nvidias_own_libraries_are_no_problem(venv: Path, site: Path) -> None:
    special = compile_library(site / "special/_C_cutlass_90a.so", fat=kernels(90))
    record(site, "special", "1.0", [special])
    cublas = compile_library(site / "nvidia/cu13/lib/libcublas.so.13", fat=kernels(80, 90, 100))
    record(site, "nvidia-cublas", "13.1", [cublas])

    facts = deep(venv, load=[str(special), str(cublas)], capabilities=[120])

    assert facts["problems"] == []
    assert facts["architectures"] == {
        "nvidia-cublas": {"sass": [80, 90, 100], "ptx": []},
        "special": {"sass": [90], "ptx": []},
    }
    assert deep(venv, detail="full")["architectures"][str(special)] == {"sass": [90], "ptx": []}


def test_a_torch_for_one_generation_is_a_problem_on_another(venv: Path, site: Path) -> None:
    library = compile_library(site / "torch/lib/libtorch_cuda.so", fat=kernels(90))
    record(site, "torch", "2.11.0", [library])

    assert kinds(deep(venv, load=[str(library)], capabilities=[120])) == ["architecture-unsupported"]


# --- parts of a library that only the host has ----------------------------------------------------------


def make_cudnn(site: Path, *more: str) -> None:
    names = ["libcudnn_engines_tensor_ir.so", "libcudnn_ops.so", "libcuda.so.1"]
    graph = compile_library(
        site / "nvidia/cudnn/lib/libcudnn_graph.so.9",
        strings=names,
        options=["-Wl,-soname,libcudnn_graph.so.9", "-Wl,-rpath,$ORIGIN"],
    )
    others = [write_elf(graph.with_name(name), soname=name) for name in ("libcudnn_ops.so.9", *more)]
    record(site, "nvidia-cudnn-cu13", "9.20.0.48", [graph, *others])


def test_a_part_of_cudnn_that_only_the_host_has(venv: Path, site: Path, tmp_path: Path) -> None:
    make_cudnn(site)
    host = tmp_path / "host"
    for name in ("libcudnn_engines_tensor_ir.so.9", "libcudnn_ops.so.9", "libcuda.so.1"):
        write_elf(host / name, soname=name)

    assert deep(venv)["problems"] == []
    facts = deep(venv, ld_library_path=[str(host)])

    problem = next(each for each in facts["problems"] if each["kind"] == "host-sublibrary")
    assert kinds(facts).count("host-sublibrary") == 1
    assert problem["soname"] == "libcudnn_engines_tensor_ir.so.9"
    assert problem["paths"] == [str(host / "libcudnn_engines_tensor_ir.so.9")]
    assert problem["fix"] == f"take {host} out of LD_LIBRARY_PATH"
    assert facts["dlopens"]["nvidia-cudnn-cu13"] == [
        "libcuda.so.1",
        "libcudnn_engines_tensor_ir.so",
        "libcudnn_ops.so",
    ]


def test_a_cudnn_that_brings_its_parts_needs_none_of_the_hosts(venv: Path, site: Path, tmp_path: Path) -> None:
    make_cudnn(site, "libcudnn_engines_tensor_ir.so.9")
    name = "libcudnn_engines_tensor_ir.so.9"
    write_elf(tmp_path / "host" / name, soname=name)

    facts = deep(venv, ld_library_path=[str(tmp_path / "host")])

    assert "host-sublibrary" not in kinds(facts)


def test_a_plugin_of_nccl_is_the_hosts_on_purpose(venv: Path, site: Path, tmp_path: Path) -> None:
    nccl = compile_library(site / "nvidia/nccl/lib/libnccl.so.2", strings=["libnccl-net.so", "libnccl_tuner.so"])
    record(site, "nvidia-nccl-cu13", "2.28.9", [nccl])
    for name in ("libnccl-net.so", "libnccl_tuner.so"):
        write_elf(tmp_path / "host" / name)

    assert deep(venv, ld_library_path=[str(tmp_path / "host")])["problems"] == []


# --- no false alarm, and the size of the answer ----------------------------------------------------------


def test_real_wheels_have_no_problem_deep_down(tmp_path: Path) -> None:
    venv = small_wheels.make_venv(tmp_path / "venv", *CU13, "xllamacpp", "torch-memory-saver")

    facts = examine_as_service(
        venv,
        imports=["xllamacpp", "torch_memory_saver"],
        load=CU13_SONAMES,
        deep=True,
        capabilities=[75, 90, 120],
    )

    assert facts["problems"] == []
    assert "libcuda.so.1" in facts["dlopens"]["nvidia-cuda-runtime"]
    assert len(json.dumps(facts)) < 32 * 1024


def test_without_deep_there_is_nothing_to_say(venv: Path) -> None:
    facts = examine(venv)
    assert facts["architectures"] is None
    assert facts["dlopens"] is None
