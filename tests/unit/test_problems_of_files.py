# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files overwritten, deleted and changed: real wheels broken by the real uv, repaired by typing the fix."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support import small_wheels
from support.examination import CU12, CU12_SONAMES, commands, examine, examine_as_service, kinds


@pytest.fixture
def new_venv(tmp_path: Path) -> Callable[..., Path]:
    return lambda *names: small_wheels.make_venv(tmp_path / "venv", *names)


# --- distributions that overwrite and delete each other's files ----------------------------------------


@pytest.mark.parametrize(
    ("order", "loser", "winner"),
    [
        (("nvidia-nvtx-cu11", "nvidia-nvtx-cu12"), "nvidia-nvtx-cu11==11.8.86", "nvidia-nvtx-cu12==12.8.90"),
        (("nvidia-nvtx-cu12", "nvidia-nvtx-cu11"), "nvidia-nvtx-cu12==12.8.90", "nvidia-nvtx-cu11==11.8.86"),
    ],
    ids=["cu12 over cu11", "cu11 over cu12"],
)
@pytest.mark.parametrize("choice", [0, 1])
def test_clobbered_file_and_each_way_to_repair_it(
    new_venv: Callable[..., Path], order: tuple[str, str], loser: str, winner: str, choice: int
) -> None:
    venv = new_venv(*order)
    small_wheels.run([small_wheels.uv(), "pip", "check", "--python", f"{venv}/bin/python"])

    facts = examine(venv)

    (problem,) = facts["problems"]
    library = f"{small_wheels.site_packages(venv)}/nvidia/nvtx/lib/libnvToolsExt.so.1"
    assert (problem["kind"], problem["severity"], facts["verdict"]) == ("clobbered-file", "error", "error")
    assert problem["paths"] == [library]
    assert problem["distributions"] == ["nvidia-nvtx-cu11", "nvidia-nvtx-cu12"]
    assert problem["message"].startswith(f"1 file of {loser} ")
    assert problem["message"].endswith(f"belongs to {winner}")

    small_wheels.run(commands(problem["fix"])[choice])

    repaired = examine_as_service(venv, load=["libnvToolsExt.so.1"], verify="hash")
    assert repaired["problems"] == []
    assert list(repaired["distributions"]) == [("nvidia-nvtx-cu11", "nvidia-nvtx-cu12")[choice]]


def test_the_rest_of_the_venv_decides_which_rival_stays(new_venv: Callable[..., Path]) -> None:
    """The uninstall takes nvidia/__init__.py from all CUDA 12 wheels: the command brings that back too."""
    venv = new_venv("nvidia-nvtx-cu12", "nvidia-nvtx-cu11", "nvidia-cuda-runtime-cu12", "nvidia-cufile-cu12")

    (problem,) = examine(venv)["problems"]
    (command,) = commands(problem["fix"])
    small_wheels.run(command)

    repaired = examine_as_service(venv, load=CU12_SONAMES, verify="hash")
    assert repaired["problems"] == []
    assert sorted(repaired["distributions"]) == sorted(CU12)


def test_a_removal_brings_back_what_it_takes_from_others(new_venv: Callable[..., Path]) -> None:
    venv = new_venv("nvidia-cufile", "nvidia-cufile-cu12", "nvidia-nvtx-cu12", "nvidia-cuda-runtime-cu12")

    (problem,) = examine(venv)["problems"]
    assert problem["kind"] == "duplicate-soname"
    small_wheels.run(commands(problem["fix"])[0])

    assert examine(venv)["problems"] == []


def test_headers_that_differ_are_shared_ownership_only(new_venv: Callable[..., Path]) -> None:
    """The library is the one that both recorded: no code depends on the order of installation."""
    venv = new_venv("nvidia-nvtx-cu11", "nvidia-nvtx-cu12")
    site = small_wheels.site_packages(venv)
    row = re.compile(r"nvidia/nvtx/lib/libnvToolsExt\.so\.1,.*\n")
    (cu12,) = site.glob("nvidia_nvtx_cu12-*.dist-info/RECORD")
    (cu11,) = site.glob("nvidia_nvtx_cu11-*.dist-info/RECORD")
    found = row.search(cu12.read_text())
    assert found
    cu11.write_text(row.sub(found.group(), cu11.read_text()))

    (problem,) = examine(venv)["problems"]

    assert (problem["kind"], problem["severity"]) == ("shared-ownership", "warning")
    assert problem["paths"] == [f"{site}/nvidia/nvtx/include/nvToolsExt.h"]


def test_payload_gone_after_an_uninstall_and_its_repair(new_venv: Callable[..., Path]) -> None:
    venv = new_venv("nvidia-nvtx-cu11", "nvidia-nvtx-cu12")
    small_wheels.uninstall(venv, "nvidia-nvtx-cu11")
    small_wheels.run([small_wheels.uv(), "pip", "check", "--python", f"{venv}/bin/python"])

    facts = examine(venv, load=["libnvToolsExt.so.1"])

    assert kinds(facts) == ["missing-payload", "missing-library"]
    payload, library = facts["problems"]
    assert payload["distributions"] == ["nvidia-nvtx-cu12"]
    assert "26 of its" in payload["message"]
    assert f"{small_wheels.site_packages(venv)}/nvidia/nvtx/lib/libnvToolsExt.so.1" in payload["paths"]
    assert "is gone, although nvidia-nvtx-cu12==12.8.90 counts as installed" in library["message"]

    small_wheels.install(venv, "nvidia-nvtx-cu12")
    assert "missing-payload" in kinds(examine(venv)), "a plain reinstall repairs nothing"
    (command,) = commands(payload["fix"])
    small_wheels.run(command)

    assert examine_as_service(venv, load=["libnvToolsExt.so.1"])["problems"] == []


def test_a_library_that_only_other_versions_of_an_installed_wheel_have(new_venv: Callable[..., Path]) -> None:
    """As nvidia-nvtx-cu12 12.9.79, which has no libnvToolsExt.so.1: nothing is gone, a reinstall changes nothing."""
    venv = new_venv("nvidia-nvtx-cu12")
    site = small_wheels.site_packages(venv)
    (old,) = site.glob("nvidia_nvtx_cu12-*.dist-info")
    new = old.rename(site / "nvidia_nvtx_cu12-12.9.79.dist-info")
    metadata = new / "METADATA"
    metadata.write_text(metadata.read_text().replace("Version: 12.8.90", "Version: 12.9.79"))
    record = (new / "RECORD").read_text().replace(old.name, new.name)
    (new / "RECORD").write_text(re.sub(r"nvidia/nvtx/lib/libnvToolsExt\.so\.1,.*\n", "", record))
    (site / "nvidia/nvtx/lib/libnvToolsExt.so.1").unlink()

    (library,) = [p for p in examine(venv, load=["libnvToolsExt.so.1"])["problems"] if p["kind"] == "missing-library"]

    assert "gone" not in library["message"]
    assert library["message"].endswith(
        "; the installed nvidia-nvtx-cu12==12.9.79 does not have it, "
        "nvidia-nvtx-cu12==12.8.90 or nvidia-nvtx-cu11==11.8.86 does"
    )
    (command,) = commands(library["fix"])
    small_wheels.run(command)
    assert examine_as_service(venv, load=["libnvToolsExt.so.1"])["problems"] == []


def test_a_gutted_distribution_whose_rival_is_still_there(new_venv: Callable[..., Path]) -> None:
    """Both lost their files: forcing one back would only hide that the other is broken."""
    venv = new_venv("nvidia-nvtx-cu11", "nvidia-nvtx-cu12")
    shutil.rmtree(small_wheels.site_packages(venv) / "nvidia")
    facts = examine(venv)

    assert kinds(facts) == ["missing-payload", "missing-payload"]
    small_wheels.run(commands(facts["problems"][0]["fix"])[1])

    assert examine(venv)["problems"] == []


def test_the_pip_inside_a_venv_is_used(new_venv: Callable[..., Path], tmp_path: Path) -> None:
    """A venv of the standard library has pip; whoever cares for it may have no uv."""
    venv = tmp_path / "venv"
    small_wheels.run([sys.executable, "-m", "venv", str(venv)])
    for name in ("nvidia-nvtx-cu11", "nvidia-nvtx-cu12"):
        small_wheels.install(venv, name)
    small_wheels.run(f"{venv}/bin/python -m pip uninstall --yes nvidia-nvtx-cu11")

    (problem,) = examine(venv)["problems"]
    (command,) = commands(problem["fix"])

    assert command.startswith(f"{venv}/bin/python -m pip install --force-reinstall --no-deps ")
    small_wheels.run(command)
    assert examine(venv)["problems"] == []


def test_missing_documents_are_a_warning(new_venv: Callable[..., Path]) -> None:
    venv = new_venv("nvidia-cufile")
    (header,) = small_wheels.site_packages(venv).rglob("cufile.h")
    header.unlink()

    facts = examine(venv)

    assert (kinds(facts), facts["verdict"]) == (["missing-payload"], "warning")


# --- files that changed --------------------------------------------------------------------------------


def test_altered_files_are_problems_and_overlays(new_venv: Callable[..., Path]) -> None:
    venv = new_venv("torch-memory-saver")
    package = small_wheels.site_packages(venv) / "torch_memory_saver"
    (package / "__init__.py").write_text("# patched\n")
    (package / "extra.py").write_text("")
    (package / "__pycache__").mkdir(exist_ok=True)
    (package / "__pycache__" / "extra.cpython-311.pyc").touch()

    facts = examine(venv)

    (problem,) = facts["problems"]
    assert problem["kind"] == "altered-file"
    assert problem["paths"] == [f"{package}/__init__.py"]
    assert re.match(r"10 bytes, RECORD says \d+", problem["evidence"])
    assert [(o["path"], o["change"], o["distribution"]) for o in facts["overlays"]] == [
        (f"{package}/__init__.py", "altered", "torch-memory-saver"),
        (f"{package}/extra.py", "added", None),
    ]
    (command,) = commands(problem["fix"])
    small_wheels.run(command)
    assert examine(venv)["problems"] == []


def test_a_change_that_keeps_the_size_needs_the_hash(new_venv: Callable[..., Path]) -> None:
    venv = new_venv("nvidia-nvtx")
    library = small_wheels.site_packages(venv) / "nvidia/cu13/lib/libnvtx3interop.so.1"
    data = bytearray(library.read_bytes())
    data[-1] ^= 1
    library.write_bytes(data)

    assert examine(venv, verify="size")["problems"] == []
    (problem,) = examine(venv, verify="hash")["problems"]
    assert (problem["kind"], problem["paths"]) == ("altered-file", [str(library)])


def test_broken_links_into_a_cache(tmp_path: Path) -> None:
    """UV_LINK_MODE=symlink and a pruned cache (astral-sh/uv#12003)."""
    venv = small_wheels.make_venv(tmp_path / "venv")
    linked = [small_wheels.uv(), "pip", "install", "--quiet", "--no-deps", "--link-mode", "symlink"]
    cache = tmp_path / "cache"
    small_wheels.run([*linked, "--cache-dir", str(cache), "--python", f"{venv}/bin/python", "nvidia-nvtx==13.0.85"])
    shutil.rmtree(cache)

    facts = examine(venv)

    (problem,) = [problem for problem in facts["problems"] if problem["kind"] == "broken-link"]
    assert f"{small_wheels.site_packages(venv)}/nvidia/cu13/lib/libnvtx3interop.so.1" in problem["paths"]
    assert f"-> {cache}/" in problem["evidence"]


@pytest.mark.parametrize("text", ["", "half a line"], ids=["empty", "cut off"])
def test_a_damaged_record_and_its_repair(new_venv: Callable[..., Path], text: str) -> None:
    venv = new_venv("nvidia-nvtx")
    (record,) = small_wheels.site_packages(venv).glob("nvidia_nvtx-*.dist-info/RECORD")
    record.write_text(text)

    (problem,) = examine(venv)["problems"]

    assert (problem["kind"], problem["severity"]) == ("environment-malformed", "warning")
    assert problem["paths"] == [str(record)]
    assert problem["distributions"] == ["nvidia-nvtx"]
    small_wheels.run(commands(problem["fix"])[0])
    assert examine(venv)["problems"] == []


def test_a_problem_lists_a_bounded_number_of_paths(new_venv: Callable[..., Path]) -> None:
    venv = new_venv("nvidia-nvtx-cu12")
    shutil.rmtree(small_wheels.site_packages(venv) / "nvidia")

    (problem,) = examine(venv)["problems"]

    assert len(problem["paths"]) <= 20
    assert problem["evidence"].startswith("26 paths of ")
