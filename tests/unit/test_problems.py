# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Problems of real environments, in real venvs made by the real uv; and none where there is none."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import small_wheels
from support.examination import (
    CU12,
    CU12_SONAMES,
    CU13,
    CU13_SONAMES,
    HOOK,
    commands,
    examine,
    examine_as_service,
    kinds,
)

from ansible_collections.gpufleet.dflash.plugins.module_utils import _requirements
from ansible_collections.gpufleet.dflash.plugins.module_utils._facts import Request, gather
from ansible_collections.gpufleet.dflash.plugins.module_utils._kinds import KINDS
from ansible_collections.gpufleet.dflash.plugins.module_utils._loader import System


@pytest.fixture
def new_venv(tmp_path: Path) -> Callable[..., Path]:
    return lambda *names: small_wheels.make_venv(tmp_path / "venv", *names)


# --- no false alarm ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "imports", "load"),
    [
        ((*CU13, "xllamacpp"), ["xllamacpp"], CU13_SONAMES),
        (CU12, [], CU12_SONAMES),
        ((*CU13, "torch-memory-saver"), ["torch_memory_saver"], CU13_SONAMES),
        (("nvidia-cufile-cu12", "nvidia-cuda-runtime"), [], ("libcufile.so.0",)),
        ((), [], ()),
    ],
    ids=["demo", "cu12", "both hooks of torch-memory-saver", "other major that nothing reaches", "empty"],
)
@pytest.mark.parametrize("verify", ["size", "hash", "none"])
def test_a_clean_venv_has_no_problem(
    new_venv: Callable[..., Path],
    names: tuple[str, ...],
    imports: list[str],
    load: tuple[str, ...],
    verify: str,
) -> None:
    venv = new_venv(*names)

    facts = examine_as_service(venv, imports=imports, load=load, verify=verify)

    assert facts["problems"] == []
    assert facts["verdict"] == "ok"
    loaded = {item["soname"]: item for item in facts["resolution"]}
    for soname in load:
        assert loaded[soname]["rule"] == "ld_library_path"
        assert loaded[soname]["path"].startswith(str(venv))
        assert loaded[soname]["needed_by"] is None
        assert {"distribution": loaded[soname]["distribution"], "path": loaded[soname]["path"]} in (
            facts["providers"][soname]
        )


# --- what the loader does not find ---------------------------------------------------------------------


def test_missing_library_names_the_wheel_that_provides_it(new_venv: Callable[..., Path]) -> None:
    venv = new_venv("xllamacpp", "nvidia-cuda-runtime", "nvidia-nvtx")

    facts = examine_as_service(venv, imports=["xllamacpp"], load=CU13_SONAMES)

    (problem,) = facts["problems"]
    assert (problem["kind"], problem["soname"], problem["distributions"]) == (
        "missing-library",
        "libcufile.so.0",
        ["nvidia-cufile"],
    )
    assert facts["verdict"] == "error"
    small_wheels.run(commands(problem["fix"])[0])
    assert examine_as_service(venv, imports=["xllamacpp"], load=CU13_SONAMES)["problems"] == []


def test_a_library_beside_the_search_path_needs_no_install(new_venv: Callable[..., Path]) -> None:
    venv = new_venv(*CU13)

    facts = examine(venv, load=["libcufile.so.0"])

    (problem,) = facts["problems"]
    assert problem["kind"] == "missing-library"
    assert problem["fix"].startswith(f"put {facts['library_path'][0]} first in LD_LIBRARY_PATH")


def test_every_object_that_needs_a_missing_library_is_named(new_venv: Callable[..., Path]) -> None:
    """torch-memory-saver brings hooks for both majors; the venv is CUDA 12, the host has no driver."""
    venv = new_venv("torch-memory-saver", "nvidia-cuda-runtime-cu12")
    site = small_wheels.site_packages(venv)
    cu12, cu13 = (f"{site}/{HOOK.format(major)}" for major in ("cu12", "cu13"))

    facts = examine_as_service(venv, imports=["torch_memory_saver"], load=[cu12, cu13])

    found = {problem["soname"]: problem for problem in facts["problems"]}
    assert sorted(found) == ["libcuda.so.1", "libcudart.so.13"]
    assert found["libcudart.so.13"]["kind"] == "missing-library"
    assert found["libcudart.so.13"]["paths"] == [cu13]
    assert found["libcudart.so.13"]["distributions"] == ["nvidia-cuda-runtime"]
    assert found["libcuda.so.1"]["kind"] == "driver-missing"
    assert found["libcuda.so.1"]["paths"] == [cu12, cu13]
    assert "no wheel is at fault" in found["libcuda.so.1"]["message"]
    assert commands(found["libcuda.so.1"]["fix"]) == []


def test_a_library_of_the_operating_system_is_named_by_its_package(new_venv: Callable[..., Path]) -> None:
    venv = new_venv("nvidia-cufile")
    rdma = f"{small_wheels.site_packages(venv)}/nvidia/cu13/lib/libcufile_rdma.so.1"
    system = System.of_host(os.path.realpath(sys.executable), use_cache=False)
    absent = [name for name in ("libmlx5.so.1", "libibverbs.so.1", "librdmacm.so.1") if not _on_host(system, name)]

    facts = examine_as_service(venv, load=[rdma])

    found = {problem["soname"]: problem for problem in facts["problems"]}
    assert sorted(found) == sorted(absent)
    for problem in found.values():
        assert problem["paths"] == [rdma]
        assert "apt-get install" in problem["fix"]


def _on_host(system: System, soname: str) -> bool:
    return any(os.path.exists(os.path.join(directory, soname)) for directory in system.default_dirs)


def test_what_cannot_be_loaded_by_path_says_why(new_venv: Callable[..., Path], tmp_path: Path) -> None:
    venv = new_venv()
    (tmp_path / "text.so").write_text("not a library")

    facts = examine(venv, load=[f"{tmp_path}/text.so", f"{tmp_path}/absent.so"])

    assert kinds(facts) == ["missing-library", "missing-library"]
    assert ["file too short" in p["message"] or "cannot open" in p["message"] for p in facts["problems"]] == [
        True,
        True,
    ]


def test_resolved_outside_the_venv(new_venv: Callable[..., Path], tmp_path: Path) -> None:
    venv = new_venv("nvidia-cuda-runtime")
    elsewhere = tmp_path / "toolkit"
    elsewhere.mkdir()
    shutil.copy(small_wheels.site_packages(venv) / "nvidia/cu13/lib/libcudart.so.13", elsewhere)
    small_wheels.uninstall(venv, "nvidia-cuda-runtime")

    facts = examine(venv, load=["libcudart.so.13"], ld_library_path=[str(elsewhere)])

    (problem,) = facts["problems"]
    assert (problem["kind"], facts["verdict"]) == ("resolved-outside-venv", "warning")
    assert problem["paths"] == [f"{elsewhere}/libcudart.so.13"]
    assert problem["distributions"] == ["nvidia-cuda-runtime"]
    assert problem["evidence"] == "found by ld_library_path"


def test_a_damaged_library_that_the_host_stands_in_for(new_venv: Callable[..., Path], tmp_path: Path) -> None:
    """Installing the wheel once more would change nothing: it counts as installed."""
    venv = new_venv("nvidia-cuda-runtime")
    library = small_wheels.site_packages(venv) / "nvidia/cu13/lib/libcudart.so.13"
    elsewhere = tmp_path / "toolkit"
    elsewhere.mkdir()
    shutil.copy(library, elsewhere)
    library.write_bytes(library.read_bytes()[:100])

    facts = examine(venv, load=["libcudart.so.13"], ld_library_path=[str(elsewhere)])

    assert kinds(facts) == ["altered-file", "resolved-outside-venv"]
    altered, outside = facts["problems"]
    assert outside["fix"] == altered["fix"]


# --- what does not go together -------------------------------------------------------------------------


def test_mixed_majors_are_judged_by_what_is_loaded(new_venv: Callable[..., Path]) -> None:
    venv = new_venv("nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime")

    assert examine_as_service(venv, load=["libcudart.so.13"])["problems"] == []
    (problem,) = examine_as_service(venv, load=["libcudart.so.13", "libcudart.so.12"])["problems"]

    assert (problem["kind"], problem["severity"]) == ("mixed-cuda-majors", "warning")
    assert problem["evidence"] == "CUDA 12: nvidia-cuda-runtime-cu12; CUDA 13: nvidia-cuda-runtime"
    small_wheels.run(commands(problem["fix"])[1])
    assert list(examine(venv)["distributions"]) == ["nvidia-cuda-runtime"]


@pytest.mark.parametrize("first", CU13[2:] + CU12[2:])
def test_duplicate_soname_tells_which_one_is_loaded(new_venv: Callable[..., Path], first: str) -> None:
    venv = new_venv("nvidia-cufile-cu12", "nvidia-cufile")
    site = small_wheels.site_packages(venv)
    directories = {
        "nvidia-cufile": f"{site}/nvidia/cu13/lib",
        "nvidia-cufile-cu12": f"{site}/nvidia/cufile/lib",
    }
    order = [directories[first], *(d for name, d in directories.items() if name != first)]

    facts = examine(venv, load=["libcufile.so.0"], ld_library_path=order)

    (problem,) = facts["problems"]
    assert (problem["kind"], problem["severity"]) == ("duplicate-soname", "warning")
    assert problem["object"] == f"{directories[first]}/libcufile.so.0"
    assert problem["distributions"] == ["nvidia-cufile", "nvidia-cufile-cu12"]
    assert [provider["distribution"] for provider in facts["providers"]["libcufile.so.0"]] == [
        "nvidia-cufile",
        "nvidia-cufile-cu12",
    ]
    small_wheels.run(commands(problem["fix"])[1])
    assert examine_as_service(venv, load=["libcufile.so.0"])["problems"] == []


def _pretend_torch(venv: Path, requires: list[str]) -> None:
    info = small_wheels.site_packages(venv) / "torch-2.11.0+cu130.dist-info"
    info.mkdir()
    lines = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: 2.11.0+cu130\n{lines}")
    (info / "RECORD").write_text("torch-2.11.0+cu130.dist-info/METADATA,,\n")


@pytest.mark.parametrize("parser", [None, _requirements.parse_plainly], ids=["packaging", "without packaging"])
def test_requirements_behind_extras(new_venv: Callable[..., Path], parser: Any) -> None:
    """torch 2.11's own way to ask for its libraries, through NVIDIA's real meta wheel."""
    venv = new_venv("cuda-toolkit", "nvidia-cuda-runtime")
    _pretend_torch(
        venv,
        [
            'cuda-toolkit[cudart,cufft,nvtx]==13.0.2; platform_system == "Linux"',
            'nvidia-cudnn-cu13==9.19.0.56; platform_system == "Linux"',
            'setuptools<82; python_version >= "3.99"',
            'opt-einsum>=3.3; extra == "opt-einsum"',
        ],
    )
    small_wheels.run(
        [small_wheels.uv(), "pip", "install", "--no-deps", "--python", f"{venv}/bin/python", "nvidia-nvtx"]
    )
    request = Request(venv=str(venv), imports=[])
    facts = gather(request)
    unmet = _requirements.unmet_requirements(facts.installed.distributions, facts.venv.version, parser)

    found = {(item.name, tuple(owner.name for owner in item.required_by)) for item in unmet}
    if parser is None:
        assert found == {("nvidia-cufft", ("cuda-toolkit",)), ("nvidia-cudnn-cu13", ("torch",))}
    else:
        # The toolkit's markers join two conditions, which the fallback does not judge.
        assert found == {("nvidia-cudnn-cu13", ("torch",))}


def test_unmet_requirement_is_told_with_the_version_to_install(new_venv: Callable[..., Path]) -> None:
    venv = new_venv("cuda-toolkit", "nvidia-nvtx")
    _pretend_torch(venv, ["cuda-toolkit[cufile]==13.0.2", "nvidia-nvtx==13.0.39"])

    facts = examine(venv, load=["libcufile.so.0"])

    messages = {p["message"]: p for p in facts["problems"] if p["kind"] == "unmet-requirement"}
    assert sorted(messages) == [
        "cuda-toolkit==13.0.2 requires nvidia-cufile==1.15.1.6.*, but it is not installed",
        "torch==2.11.0+cu130 requires nvidia-nvtx==13.0.39, but nvidia-nvtx 13.0.85 is installed",
    ]
    (missing,) = [p for p in facts["problems"] if p["kind"] == "missing-library"]
    assert "nvidia-cufile==1.15.1.6.*" in missing["fix"]
    small_wheels.run(commands(missing["fix"])[0])
    assert examine(venv)["distributions"]["nvidia-cufile"] == "1.15.1.6"


@pytest.mark.parametrize(
    ("installed", "requirement", "met"),
    [
        ("1.0", "==1.0.0", True),
        ("2.11.0+cu130", "==2.11.0", True),
        ("2.11.0", "==2.11.0+cu130", False),
        ("2.11.0+cu128", "==2.11.0+cu130", False),
        ("13.0.96", "==13.0.*", True),
        ("13.1.0", "==13.0.*", False),
        ("1.0rc1", ">=0.9", True),
        ("not a version", "==1.0", True),
    ],
)
def test_versions_are_compared_as_pep_440_says(
    new_venv: Callable[..., Path], installed: str, requirement: str, met: bool
) -> None:
    venv = new_venv()
    _pretend_torch(venv, [f"thing{requirement}"])
    info = small_wheels.site_packages(venv) / "thing.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: thing\nVersion: {installed}\n")
    (info / "RECORD").write_text("thing.dist-info/METADATA,,\n")

    assert (examine(venv)["problems"] == []) is met


def test_a_module_of_the_plan_that_is_not_installed(new_venv: Callable[..., Path]) -> None:
    (problem,) = examine(new_venv(), imports=["torch"])["problems"]

    assert (problem["kind"], problem["severity"]) == ("unmet-requirement", "error")
    assert "imports torch" in problem["message"]


# --- malformed environments ----------------------------------------------------------------------------


def test_two_copies_of_one_distribution(new_venv: Callable[..., Path]) -> None:
    venv = new_venv("nvidia-nvtx")
    copy = small_wheels.site_packages(venv) / "nvidia_nvtx-12.9.79.dist-info"
    copy.mkdir()
    (copy / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia-nvtx\nVersion: 12.9.79\n")
    (copy / "RECORD").write_text("nvidia_nvtx-12.9.79.dist-info/METADATA,,\n")

    (problem,) = examine(venv)["problems"]

    assert problem["kind"] == "environment-malformed"
    assert problem["message"] == "nvidia-nvtx is installed 2 times: 12.9.79, 13.0.85"


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        (["", "/usr/lib"], "an empty element, which means the current directory"),
        (["lib"], "a relative element, lib,"),
        (["/absent/lib"], "names /absent/lib, which is not a directory"),
        (["$ORIGIN/../lib"], ""),
        (["/usr/lib"], ""),
    ],
)
def test_ld_library_path_is_checked(new_venv: Callable[..., Path], entries: list[str], words: str) -> None:
    facts = examine(new_venv(), ld_library_path=entries)

    assert [words in problem["message"] for problem in facts["problems"]] == ([True] if words else [])


def test_the_environment_of_a_unit_decides(new_venv: Callable[..., Path], tmp_path: Path) -> None:
    venv = new_venv(*CU13)
    unit = tmp_path / "engine.service"
    text = f"[Service]\nExecStart={venv}/bin/python -m engine\nEnvironment=LD_LIBRARY_PATH="
    unit.write_text(text + examine(venv)["library_path"][0] + "\n")
    assert examine(venv, load=CU13_SONAMES, unit=str(unit))["problems"] == []

    ignored = ("NOEQ", '"BAR=quote')
    unit.write_text("[Service]\nEnvironmentFile=rel/env\n" + "".join(f"Environment={line}\n" for line in ignored))
    found = examine(venv, unit=str(unit))["problems"]
    assert [problem["kind"] for problem in found] == ["environment-malformed"] * 3
    assert all(problem["fix"] == f"correct it in {unit} or its drop-ins" for problem in found)
    assert "NOEQ" in " ".join(problem["message"] for problem in found)

    unit.write_text(text + "/usr/local/cuda/absent\n")
    facts = examine(venv, load=["libcufile.so.0"], unit=str(unit))

    assert kinds(facts) == ["missing-library", "environment-malformed"]
    assert f"the LD_LIBRARY_PATH of {unit} names /usr/local/cuda/absent" in facts["problems"][1]["message"]
    assert "Environment=" in facts["problems"][1]["fix"]


def test_a_damaged_library_is_named(new_venv: Callable[..., Path]) -> None:
    venv = new_venv("nvidia-nvtx")
    library = small_wheels.site_packages(venv) / "nvidia/cu13/lib/libnvtx3interop.so.1"
    library.write_bytes(library.read_bytes()[:1000])

    facts = examine_as_service(venv, load=["libnvtx3interop.so.1"])

    assert facts["verdict"] == "error"
    missing, altered = facts["problems"]
    assert (missing["kind"], altered["kind"]) == ("missing-library", "altered-file")
    assert "libnvtx3interop.so.1 of nvidia-nvtx==13.0.85 cannot be loaded" in missing["message"]
    assert altered["paths"] == [str(library)]
    small_wheels.run(commands(missing["fix"])[0])
    assert examine_as_service(venv, load=["libnvtx3interop.so.1"])["problems"] == []


def test_every_kind_has_a_severity_of_the_contract() -> None:
    assert set(KINDS.values()) == {"error", "warning"}
