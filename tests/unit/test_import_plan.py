# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Import plans against what the real interpreter maps: real CUDA wheels, modules compiled for the test."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path

import pytest
from support import small_wheels
from support.python_modules import DICT_TABLE, LIST_TABLE, add_torch, compile_module, really_import

from ansible_collections.gpufleet.dflash.plugins.module_utils._import_plan import (
    Attempt,
    import_module,
    load_file,
    torch_cuda_version,
    torch_preloads,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._loader import Process, System
from ansible_collections.gpufleet.dflash.plugins.module_utils._venv import open_venv


def predict(venv: Path, module: str) -> tuple[list[Attempt], set[str]]:
    """The attempts of the plan and the files of the venv that are loaded after it."""
    opened = open_venv(str(venv))
    process = Process(System.of_host(opened.python), environment={}, cwd="/")
    process.start(opened.python)
    attempts = import_module(process, module, opened.import_path, opened.version)
    assert attempts is not None
    inside = {os.path.realpath(loaded.path) for loaded in process.loaded if loaded.path.startswith(str(venv))}
    return attempts, inside


@pytest.fixture(scope="module")
def torch_venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stand-in for a CUDA 13 torch: same loading steps, its libraries need the real cudart and cufile."""
    venv = small_wheels.make_venv(
        tmp_path_factory.mktemp("plan") / "venv", "nvidia-cuda-runtime", "nvidia-cufile", "nvidia-nvtx"
    )
    add_torch(small_wheels.site_packages(venv))
    return venv


def _as_it_is(_venv: Path) -> None: ...


def _cuda_12_beside(venv: Path) -> None:
    """torch preloads nvidia/<component>/lib of any major before its own nvidia/cu13/lib."""
    for name in ("nvidia-cuda-runtime-cu12", "nvidia-cufile-cu12", "nvidia-nvtx-cu12"):
        small_wheels.install(venv, name)


def _without_cufile(venv: Path) -> None:
    small_wheels.uninstall(venv, "nvidia-cufile")


def _cufile_of_cuda_12_instead(venv: Path) -> None:
    """Same soname in both majors: the preload takes the other one, and _C is content with it."""
    _without_cufile(venv)
    small_wheels.install(venv, "nvidia-cufile-cu12")


def _cpu_build(venv: Path) -> None:
    site = small_wheels.site_packages(venv)
    (site / "torch/version.py").write_text("cuda = None\n")
    (site / "torch/lib/libtorch_global_deps.so").unlink()
    compile_module(site / "torch/lib/libtorch_global_deps.so", python=False)


@pytest.mark.parametrize(
    "change", [_as_it_is, _cuda_12_beside, _without_cufile, _cufile_of_cuda_12_instead, _cpu_build]
)
def test_torch_is_predicted_file_for_file(torch_venv: Path, tmp_path: Path, change: object) -> None:
    venv = tmp_path / "venv"
    shutil.copytree(torch_venv, venv, symlinks=True)
    assert callable(change)
    change(venv)
    error, mapped, _order = really_import(venv, "torch")

    attempts, predicted = predict(venv, "torch")

    failed = [attempt for attempt in attempts if attempt.error is not None and attempt.fatal]
    assert predicted == mapped
    assert [f"ImportError: {attempt.error.message}" for attempt in failed if attempt.error] == (
        [error] if error else []
    )


def test_a_missing_runtime_is_named_by_the_library_that_needs_it(torch_venv: Path, tmp_path: Path) -> None:
    """Python says ``libcudart.so.*[0-9] not found``; the plan names the soname and who needs it."""
    venv = tmp_path / "venv"
    shutil.copytree(torch_venv, venv, symlinks=True)
    small_wheels.uninstall(venv, "nvidia-cuda-runtime")
    opened = open_venv(str(venv))
    process = Process(System.of_host(opened.python, use_cache=False), environment={}, cwd="/")
    process.start(opened.python)

    attempts = import_module(process, "torch", opened.import_path, opened.version) or []

    errors = [attempt.error for attempt in attempts if attempt.error is not None]
    missing = {(m.soname, tuple(m.needed_by)) for error in errors for m in error.missing}
    global_deps = f"{small_wheels.site_packages(venv)}/torch/lib/libtorch_global_deps.so"
    assert ("libcudart.so.13", (global_deps,)) in missing


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            LIST_TABLE,
            [
                ("cuda_runtime", "libcudart.so.*[0-9]", True),
                ("cufile", "libcufile.so.*[0-9]", True),
                ("nvtx", "libnvToolsExt.so.*[0-9]", False),
            ],
        ),
        (
            DICT_TABLE,
            [("cuda_runtime", "libcudart.so.*[0-9]", True), ("cufile", "libcufile.so.*[0-9]", True)],
        ),
        ("def other():\n    pass\n", []),
        ("def broken(:\n", []),
        ("\0", []),
        ("(" * 5000, []),
    ],
    ids=["list", "dict", "no table", "syntax error", "binary", "too deep"],
)
def test_preload_table(source: str, expected: list[tuple[str, str, bool]]) -> None:
    assert torch_preloads(source) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cuda: Optional[str] = '13.0'\nhip = None\n", "13.0"),
        ('cuda = "12.8"\n', "12.8"),
        ("cuda: Optional[str] = None\n", None),
        ("", None),
    ],
)
def test_torch_cuda_version(tmp_path: Path, text: str, expected: str | None) -> None:
    (tmp_path / "version.py").write_text(text)

    assert torch_cuda_version(str(tmp_path)) == expected
    assert torch_cuda_version(str(tmp_path / "absent")) is None


PACKAGE = {
    "kernels/__init__.py": (
        "from typing import TYPE_CHECKING\n"
        "import os, kernels._first\n"
        "from . import sub\n"
        "from .plain import value\n"
        "if TYPE_CHECKING:\n    from . import _typing_only\n"
        "try:\n    from . import _optional\nexcept ImportError:\n    _optional = None\n"
        "def later():\n    from . import _lazy\n"
        "class Now:\n    from . import _in_class\n"
    ),
    "kernels/plain.py": "from kernels.sub._deep import __name__ as value\n",
    "kernels/sub/__init__.py": "from .. import _second\n",
}
MODULES = ("_first", "_second", "sub/_deep", "_optional", "_lazy", "_in_class", "_typing_only")


@pytest.fixture(scope="module")
def package_venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    venv = small_wheels.make_venv(tmp_path_factory.mktemp("plan") / "packages", "nvidia-cufile")
    site = small_wheels.site_packages(venv)
    for path, text in PACKAGE.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    for number, module in enumerate(MODULES):
        compile_module(site / "kernels" / f"{module}{('.abi3.so', suffix, '.so')[number % 3]}")
    (site / "chooser").mkdir()
    (site / "chooser/__init__.py").write_text("import importlib\n")
    for module in ("sm90/ops.abi3.so", "sm100/ops.abi3.so"):
        compile_module(site / "chooser" / module)
    compile_module(site / "chooser/lib/libbundled.so", python=False)
    return venv


def test_a_package_loads_what_its_import_statements_reach(package_venv: Path) -> None:
    error, mapped, order = really_import(package_venv, "kernels")
    attempts, predicted = predict(package_venv, "kernels")

    assert error is None
    assert [attempt.target for attempt in attempts] == order
    assert predicted == mapped
    assert len(mapped) == 5


def test_an_optional_extension_is_not_fatal(package_venv: Path) -> None:
    attempts, _predicted = predict(package_venv, "kernels")

    assert [Path(attempt.target).name.split(".")[0] for attempt in attempts if not attempt.fatal] == ["_optional"]


def test_a_package_that_chooses_at_run_time_counts_with_all_its_extensions(package_venv: Path) -> None:
    attempts, _predicted = predict(package_venv, "chooser")

    names = [str(Path(attempt.target).relative_to(small_wheels.site_packages(package_venv))) for attempt in attempts]
    assert names == ["chooser/sm100/ops.abi3.so", "chooser/sm90/ops.abi3.so"]


def test_a_single_module_file_and_an_absent_module(package_venv: Path) -> None:
    site = small_wheels.site_packages(package_venv)
    (site / "alone.py").write_text("import kernels._first\n")
    opened = open_venv(str(package_venv))
    process = Process(System.of_host(opened.python), environment={}, cwd="/")
    process.start(opened.python)

    assert import_module(process, "alone", opened.import_path, opened.version) == []
    assert import_module(process, "absent", opened.import_path, opened.version) is None
    assert import_module(process, "torch", opened.import_path, opened.version) is None


def test_load_by_path_and_by_name(package_venv: Path) -> None:
    directory = f"{small_wheels.site_packages(package_venv)}/nvidia/cu13/lib"
    opened = open_venv(str(package_venv))
    process = Process(System.of_host(opened.python), environment={"LD_LIBRARY_PATH": directory}, cwd="/")
    process.start(opened.python)

    assert load_file(process, "libcufile.so.0").error is None
    assert f"{directory}/libcufile.so.0" in [loaded.path for loaded in process.loaded]
    missing = load_file(process, f"{directory}/libabsent.so.1")
    assert missing.error is not None
    assert missing.error.message == (
        f"{directory}/libabsent.so.1: cannot open shared object file: No such file or directory"
    )
