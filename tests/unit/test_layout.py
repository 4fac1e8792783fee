# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the pieces of an environment lie beside each other, and where the loader is told to look."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import small_wheels
from support.elf_writer import write_elf
from support.examination import CU13, commands, examine, examine_as_service, kinds
from support.python_modules import add_torch, compile_module, really_import


@pytest.fixture
def new_venv(tmp_path: Path) -> Callable[..., Path]:
    return lambda *names: small_wheels.make_venv(tmp_path / "venv", *names)


def add_distribution(site: Path, name: str, version: str, *files: str, requires: str = "") -> None:
    """The book-keeping of a wheel that is too large to install here."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}\n")
    (info / "RECORD").write_text("".join(f"{path},,\n" for path in (*files, f"{info.name}/METADATA")))


# --- torch ---------------------------------------------------------------------------------------------


@pytest.fixture
def torch_venv(new_venv: Callable[..., Path]) -> Path:
    venv = new_venv(*CU13)
    add_torch(small_wheels.site_packages(venv))
    return venv


def test_a_torch_in_order_has_no_problem(torch_venv: Path) -> None:
    assert examine(torch_venv, imports=["torch"])["problems"] == []


def test_torch_stops_preloading_without_a_word(torch_venv: Path) -> None:
    """The import still works: what needs cufile finds it, but the preload ended before it."""
    site = small_wheels.site_packages(torch_venv)
    init = site / "torch/__init__.py"
    init.write_text(init.read_text().replace('("cufile",', '("cuda_nvrtc", "libnvrtc.so.*[0-9]"),\n        ("cufile",'))
    error, mapped, _order = really_import(torch_venv, "torch")
    assert error is None

    facts = examine(torch_venv, imports=["torch"])

    (problem,) = facts["problems"]
    assert (problem["kind"], problem["severity"]) == ("preload-stops", "error")
    assert "stops preloading at libnvrtc without a word: 1 library after it is not preloaded" in problem["message"]
    assert problem["distributions"] == ["nvidia-cuda-nvrtc"]
    assert problem["paths"] == [f"{site}/nvidia/cu13/lib/libcufile.so.0"]
    assert problem["evidence"] == "ValueError: libnvrtc.so.*[0-9] not found in the system path [...]"
    assert commands(problem["fix"])[0].endswith("nvidia-cuda-nvrtc==13.0.88"), "that of CUDA 13.0, as torch"
    assert {os.path.realpath(item["path"]) for item in facts["resolution"] if item["distribution"]} <= mapped


def test_a_torch_on_a_cuda_of_the_host_stops_nowhere(torch_venv: Path, tmp_path: Path) -> None:
    """Built from source: no wheel has anything of its table, and it finds all by its RPATH."""
    site = small_wheels.site_packages(torch_venv)
    shutil.move(site / "nvidia/cu13/lib", tmp_path / "toolkit")
    for name in CU13:
        small_wheels.uninstall(torch_venv, name)
    for path in ("torch/lib/libtorch_global_deps.so", "torch/_C.abi3.so"):
        compile_module(
            site / path, tmp_path / "toolkit/libcudart.so.13", rpath=str(tmp_path / "toolkit"), python="_C" in path
        )

    assert "preload-stops" not in kinds(examine(torch_venv, imports=["torch"]))


def kernels_for_cuda_torch(site: Path) -> None:
    (site / "kernels").mkdir()
    write_elf(site / "kernels/ops.abi3.so", needed=["libtorch_cuda.so", "libc10_cuda.so"])
    add_distribution(site, "some-kernels", "1.0", "kernels/ops.abi3.so")


@pytest.mark.parametrize(
    ("version", "wrong"),
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", True),
        ("cuda = None\n", True),
        ("cuda = '13.0'\nhip = None\n", False),
        ("cuda = None\nhip = '6.4'\n", False),
        ("cuda = None\nhip = None\nxpu = '2025'\n", False),
        ("", False),
    ],
    ids=["cpu", "old cpu", "cuda", "rocm", "xpu", "unknown"],
)
def test_a_torch_without_cuda_beside_cuda_kernels(new_venv: Callable[..., Path], version: str, wrong: bool) -> None:
    venv = new_venv()
    site = small_wheels.site_packages(venv)
    (site / "torch").mkdir()
    (site / "torch/__init__.py").touch()
    (site / "torch/version.py").write_text(version)
    add_distribution(site, "torch", "2.11.0+cpu", "torch/__init__.py", "torch/version.py")
    assert examine(venv)["problems"] == []
    kernels_for_cuda_torch(site)

    problems = examine(venv)["problems"]

    assert [problem["kind"] for problem in problems] == (["wrong-variant"] if wrong else [])
    if wrong:
        assert problems[0]["distributions"] == ["torch", "some-kernels"]
        assert problems[0]["soname"] == "libtorch_cuda.so"
        assert "torch==2.11.0+cpu is a build without CUDA, and some-kernels needs one" in problems[0]["message"]


# --- directories ---------------------------------------------------------------------------------------


def test_lib_and_lib64_as_two_directories(new_venv: Callable[..., Path]) -> None:
    venv = new_venv("nvidia-nvtx", "torch-memory-saver")
    site = small_wheels.site_packages(venv)
    assert examine(venv)["problems"] == []
    other = venv / "lib64" / site.parent.name / "site-packages"
    if (venv / "lib64").is_symlink():
        (venv / "lib64").unlink()
    other.mkdir(parents=True)
    assert examine(venv)["problems"] == [], "an empty one separates nothing"
    for path in [*site.glob("torch_memory_saver*")]:
        shutil.move(path, other / path.name)

    (problem,) = examine(venv)["problems"]

    assert (problem["kind"], problem["severity"]) == ("split-site", "warning")
    assert problem["distributions"] == ["torch-memory-saver", "nvidia-nvtx"]
    assert sorted(problem["paths"]) == sorted([str(site), str(other)])


@pytest.mark.parametrize(
    ("init", "shadowed"),
    [("", True), ("__path__ = __import__('pkgutil').extend_path(__path__, __name__)\n", False)],
    ids=["empty", "extends itself"],
)
def test_a_regular_package_hides_the_namespace(
    new_venv: Callable[..., Path], tmp_path: Path, init: str, shadowed: bool
) -> None:
    venv = new_venv("nvidia-nvtx")
    before = tmp_path / "before"
    (before / "nvidia").mkdir(parents=True)
    (before / "nvidia/__init__.py").write_text(init)
    unit = tmp_path / "engine.service"
    unit.write_text(f"[Service]\nExecStart={venv}/bin/python\nEnvironment=PYTHONPATH={before}\n")
    done = subprocess.run(
        [f"{venv}/bin/python", "-c", "import nvidia.cu13"], env={"PYTHONPATH": str(before)}, capture_output=True
    )
    assert (b"ModuleNotFoundError" in done.stderr) == shadowed

    problems = examine(venv, unit=str(unit))["problems"]

    assert [problem["kind"] for problem in problems] == (["namespace-shadow"] if shadowed else [])
    assert [problem["object"] for problem in problems] == ([f"{before}/nvidia/__init__.py"] if shadowed else [])
    assert examine(venv)["problems"] == []


@pytest.mark.parametrize(
    ("versions", "mismatch"),
    [
        ({"flashinfer-python": "0.6.10", "flashinfer-cubin": "0.6.8.post1"}, True),
        ({"flashinfer-python": "0.6.10", "flashinfer-jit-cache": "0.6.10+cu130"}, False),
        ({"flashinfer-cubin": "0.6.9", "flashinfer-jit-cache": "0.6.10+cu130"}, True),
        ({"flashinfer-python": "0.6.10"}, False),
        ({"sgl-kernel": "0.3.21", "sglang-kernel": "0.4.4"}, True),
        ({"sglang-kernel": "0.4.4"}, False),
    ],
)
def test_companions_must_agree(new_venv: Callable[..., Path], versions: dict[str, str], mismatch: bool) -> None:
    venv = new_venv()
    for name, version in versions.items():
        add_distribution(small_wheels.site_packages(venv), name, version)

    problems = examine(venv)["problems"]

    assert [problem["kind"] for problem in problems] == (["companion-mismatch"] if mismatch else [])
    assert [set(problem["distributions"]) for problem in problems] == ([set(versions)] if mismatch else [])


def test_a_library_that_no_wheel_owns(new_venv: Callable[..., Path]) -> None:
    venv = new_venv("nvidia-nvtx")
    lib = small_wheels.site_packages(venv) / "nvidia/cu13/lib"
    (lib / "libnvtx3interop.so").symlink_to("libnvtx3interop.so.1")
    assert examine(venv)["problems"] == [], "a link for compilers is no orphan"
    orphan = lib / "libcudart.so.13"
    write_elf(orphan, soname="libcudart.so.13")

    (problem,) = examine(venv)["problems"]

    assert (problem["kind"], problem["severity"]) == ("orphan-file", "warning")
    assert problem["paths"] == [str(orphan)]


# --- search paths --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        (["{lib}", ""], "has an empty element"),
        (["lib"], "has a relative element, lib"),
        (["{open}"], "everybody may write to {open}"),
        (["{open}/absent"], "everybody may write to {open}"),
        (["{lib}"], None),
    ],
    ids=["empty", "relative", "world-writable", "everybody may make it", "sound"],
)
def test_library_path_with_a_trap(
    new_venv: Callable[..., Path], tmp_path: Path, entries: list[str], words: str | None
) -> None:
    venv = new_venv("nvidia-nvtx")
    names = {"lib": f"{small_wheels.site_packages(venv)}/nvidia/cu13/lib", "open": str(tmp_path / "open")}
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o1777)

    facts = examine(venv, ld_library_path=[entry.format(**names) for entry in entries])

    found = [p for p in facts["problems"] if p["kind"] == "insecure-search-path"]
    expected = [words.format(**names)] if words else []
    assert [word in problem["message"] for word, problem in zip(expected, found)] == [True] * len(expected)
    assert len(found) == len(expected)
    assert facts["verdict"] == ("warning" if words else "ok")


@pytest.mark.parametrize("tag", ["rpath", "runpath"])
@pytest.mark.parametrize("value", ["{open}", "$ORIGIN:{open}/absent", "${{ORIGIN}}/../open", "$ORIGIN", "$ORIGIN:"])
def test_a_library_that_looks_where_everybody_may_write(
    new_venv: Callable[..., Path], tmp_path: Path, tag: str, value: str
) -> None:
    open_directory = tmp_path / "open"
    open_directory.mkdir()
    open_directory.chmod(0o777)
    library = tmp_path / "closed/libown.so"
    library.parent.mkdir()
    arguments: dict[str, Any] = {tag: value.format(open=open_directory)}
    write_elf(library, soname="libown.so", **arguments)

    problems = examine(new_venv(), load=[str(library)])["problems"]

    weak = "open" in value
    assert [problem["kind"] for problem in problems] == (["insecure-search-path"] if weak else [])
    if weak:
        assert problems[0]["message"].startswith(f"the {tag.upper()} of libown.so names ")
        assert problems[0]["object"] == str(library)
    assert "insecure-search-path" not in kinds(examine(tmp_path / "venv")), "nothing loads it"


def test_an_empty_runpath_element_means_the_directory_of_the_service(
    new_venv: Callable[..., Path], tmp_path: Path
) -> None:
    """cuSPARSELt ships one: no danger, unless the service works in a directory that is everybody's."""
    venv = new_venv()
    library = tmp_path / "libown.so"
    write_elf(library, soname="libown.so", runpath="$ORIGIN:")
    work = tmp_path / "work"
    work.mkdir()
    unit = tmp_path / "engine.service"
    unit.write_text(f"[Service]\nExecStart={venv}/bin/python\nWorkingDirectory={work}\n")
    assert examine(venv, load=[str(library)], unit=str(unit))["problems"] == []

    os.chmod(work, 0o777)

    (problem,) = examine(venv, load=[str(library)], unit=str(unit))["problems"]
    assert problem["kind"] == "insecure-search-path"
    assert problem["fix"] == f"chmod o-w {work}"


def test_the_interpreter_of_this_checkout_is_clean() -> None:
    """A hundred distributions that nobody made for this test."""
    venv = small_wheels.CHECKOUT / ".venv"

    assert examine_as_service(venv.resolve(), verify="none")["problems"] == []
