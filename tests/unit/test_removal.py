# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an uninstall is said to do, against what uv and pip then do and what Python then says."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support import small_wheels
from support.examination import commands, examine, examine_as_service, kinds
from support.python_modules import add_torch, really_import

from ansible_collections.gpufleet.dflash.plugins.module_utils import _gather
from ansible_collections.gpufleet.dflash.plugins.module_utils._gather import Request, gather

RIVALS = ("nvidia-nvtx-cu11", "nvidia-nvtx-cu12")
CU12_INIT = "nvidia/__init__.py"


@pytest.fixture
def new_venv(tmp_path: Path) -> Callable[..., Path]:
    return lambda *names: small_wheels.make_venv(tmp_path / "venv", *names)


def files(venv: Path) -> set[str]:
    """Everything that is not made by Python itself."""
    return {str(path) for path in venv.rglob("*") if not path.is_dir() and path.suffix != ".pyc"}


def uninstall(venv: Path, tool: str, names: tuple[str, ...]) -> None:
    if tool == "uv":
        small_wheels.run([small_wheels.uv(), "pip", "uninstall", "--python", f"{venv}/bin/python", *names])
    else:
        small_wheels.run([sys.executable, "-m", "pip", "--python", f"{venv}/bin/python", "uninstall", "--yes", *names])


def really_load(venv: Path, library: str, library_path: list[str]) -> str:
    """What Python says when it opens a library; empty when it does."""
    code = "import ctypes, sys\ntry: ctypes.CDLL(sys.argv[1])\nexcept OSError as e: print(f'{type(e).__name__}: {e}')"
    done = subprocess.run(
        [f"{venv}/bin/python", "-c", code, library],
        env={"LD_LIBRARY_PATH": ":".join(library_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.parametrize("tool", ["uv", "pip"])
@pytest.mark.parametrize(
    ("installed", "going"),
    [
        (RIVALS, ("nvidia-nvtx-cu11",)),
        (RIVALS, ("nvidia-nvtx-cu12",)),
        (RIVALS, RIVALS),
        ((*RIVALS, "nvidia-cufile-cu12"), ("nvidia-nvtx-cu11",)),
        (("nvidia-cufile", "nvidia-nvtx", "nvidia-cuda-runtime"), ("nvidia-cufile",)),
    ],
    ids=["cu11 of two", "cu12 of two", "both", "shared __init__", "nothing shared"],
)
def test_the_installers_delete_what_was_foreseen(
    new_venv: Callable[..., Path], tool: str, installed: tuple[str, ...], going: tuple[str, ...]
) -> None:
    venv = new_venv(*installed)
    removal = gather(Request(str(venv), imports=[], without=going)).removal
    assert removal is not None
    before = files(venv)

    uninstall(venv, tool, going)

    assert before - files(venv) == set(removal.deleted)
    gone = {name: {path for path, owner in gather(Request(str(venv), imports=[])).integrity.missing
                   if owner.name == name} for name in installed}  # fmt: skip
    assert {name: set(paths) for name, paths in removal.losses.items()} == {n: p for n, p in gone.items() if p}


@pytest.mark.parametrize("tool", ["uv", "pip"])
def test_the_words_are_those_of_python(new_venv: Callable[..., Path], tool: str) -> None:
    venv = new_venv(*RIVALS)
    library_path = examine(venv)["library_path"]

    facts = examine_as_service(venv, load=["libnvToolsExt.so.1"], without=["nvidia-nvtx-cu11"])
    uninstall(venv, tool, ("nvidia-nvtx-cu11",))

    (failure,) = facts["removal"]["failures"]
    assert failure["target"] == "libnvToolsExt.so.1"
    assert failure["words"] == really_load(venv, "libnvToolsExt.so.1", library_path)
    assert facts["removal"]["files"] == {"nvidia-nvtx-cu12": 26}


def test_the_order_that_is_offered_breaks_nothing(new_venv: Callable[..., Path]) -> None:
    venv = new_venv(*RIVALS)
    before = files(venv)

    facts = examine_as_service(venv, load=["libnvToolsExt.so.1"], without=["NVIDIA_nvtx.cu11"])

    assert kinds(facts) == ["clobbered-file", "uninstall-would-break"]
    assert files(venv) == before, "asking changes nothing"
    problem = facts["problems"][1]
    assert problem["severity"] == "error"
    assert problem["message"].startswith("uninstalling nvidia-nvtx-cu11 deletes files of what stays: 26 of nvidia-nvtx")
    assert problem["object"].endswith("/libnvToolsExt.so.1")
    small_wheels.run(commands(problem["fix"])[0])
    repaired = examine_as_service(venv, load=["libnvToolsExt.so.1"], verify="hash")
    assert (repaired["problems"], list(repaired["distributions"])) == ([], ["nvidia-nvtx-cu12"])


def test_what_stays_and_needs_it_cannot_be_cured_by_an_order(new_venv: Callable[..., Path]) -> None:
    venv = new_venv("nvidia-cufile", "nvidia-nvtx")

    facts = examine_as_service(venv, load=["libcufile.so.0", "libnvtx3interop.so.1"], without=["nvidia-cufile"])

    (problem,) = facts["problems"]
    assert problem["kind"] == "uninstall-would-break"
    assert problem["message"].startswith("after uninstalling nvidia-cufile, libcufile.so.0 cannot be loaded any more: ")
    assert problem["message"].endswith(
        "OSError: libcufile.so.0: cannot open shared object file: No such file or directory"
    )
    assert commands(problem["fix"]) == []
    assert "keep nvidia-cufile" in problem["fix"]


def test_an_uninstall_that_takes_what_is_required(new_venv: Callable[..., Path]) -> None:
    venv = new_venv("nvidia-cuda-runtime", "cuda-toolkit")
    (metadata,) = small_wheels.site_packages(venv).glob("cuda_toolkit-*.dist-info/METADATA")
    text = metadata.read_text()
    metadata.write_text(text.replace("\n\n", "\nRequires-Dist: nvidia-cuda-runtime==13.0.*\n\n", 1))

    facts = examine(venv, without=["nvidia-cuda-runtime"], verify="none")

    (problem,) = facts["problems"]
    assert problem["kind"] == "uninstall-would-break"
    assert "cuda-toolkit requires nvidia-cuda-runtime==13.0.*" in problem["message"]


@pytest.mark.parametrize(
    ("installed", "going"),
    [
        (("nvidia-cufile", "nvidia-nvtx"), ["nvidia-cufile"]),
        (RIVALS[:1], list(RIVALS)),
        (("nvidia-nvtx",), ["nvidia-absent"]),
    ],
    ids=["nothing needs it", "the other is not there", "not installed at all"],
)
def test_a_harmless_uninstall_is_no_problem(
    new_venv: Callable[..., Path], installed: tuple[str, ...], going: list[str]
) -> None:
    facts = examine(new_venv(*installed), without=going)

    assert facts["problems"] == []
    assert facts["removal"]["distributions"] == [name for name in going if name in installed]
    assert facts["removal"]["not_installed"] == [name for name in going if name not in installed]
    assert facts["removal"]["failures"] == []


def test_the_module_itself_goes(new_venv: Callable[..., Path]) -> None:
    venv = new_venv("xllamacpp")

    facts = examine(venv, imports=["xllamacpp"], without=["xllamacpp"])
    small_wheels.uninstall(venv, "xllamacpp")

    (failure,) = facts["removal"]["failures"]
    assert failure == {"target": "xllamacpp", "words": really_import(venv, "xllamacpp")[0]}


@pytest.mark.parametrize("gone", ["nvidia-cuda-runtime", "nvidia-cufile"])
def test_torch_says_what_was_foreseen(tmp_path: Path, gone: str) -> None:
    """A stand-in for torch with its own loading steps and the real wheels below it."""
    venv = small_wheels.make_venv(tmp_path / "venv", "nvidia-cuda-runtime", "nvidia-cufile", "nvidia-nvtx")
    add_torch(small_wheels.site_packages(venv))
    assert examine(venv, imports=["torch"])["problems"] == []

    facts = examine(venv, imports=["torch"], without=[gone])
    small_wheels.uninstall(venv, gone)

    (failure,) = facts["removal"]["failures"]
    said = really_import(venv, "torch")[0] or ""
    if said:  # a host with a CUDA of its own goes on without a word
        assert said.startswith(failure["words"].partition(" [")[0])
    assert "preload-stops" in kinds(examine(venv, imports=["torch"])) or gone == "nvidia-cuda-runtime"


def test_a_copy_in_the_base_installation_is_not_removed(new_venv: Callable[..., Path], tmp_path: Path) -> None:
    venv = new_venv("nvidia-nvtx")
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(small_wheels.site_packages(venv), elsewhere)
    small_wheels.uninstall(venv, "nvidia-nvtx")
    (small_wheels.site_packages(venv) / "more.pth").write_text(f"{elsewhere}\n")

    assert examine(venv, without=["nvidia-nvtx"])["removal"]["not_installed"] == ["nvidia-nvtx"]
    assert _gather.gather(Request(str(venv), imports=[])).installed.versions["nvidia-nvtx"] == "13.0.85"
