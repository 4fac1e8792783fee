# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The import plans of jax, cupy, onnxruntime, flashinfer, vllm and the standard library.

Each package here loads in the way of the real one, and is really imported: what the interpreter maps is the measure.
"""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from support import small_wheels
from support.examination import examine, kinds
from support.python_modules import add_torch, compile_module

SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
_SHOW_MAPS = """
import json
error = None
try:
{code}
except BaseException as raised:
    error = f"{{type(raised).__name__}}: {{raised}}"
print(json.dumps([error, sorted({{line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}})]))
"""


def really(venv: Path, code: str) -> tuple[str | None, set[str]]:
    """What a process of the venv raises, and the files of the venv that it maps."""
    indented = "".join(f"    {line}\n" for line in code.splitlines())
    done = subprocess.run(
        [f"{venv}/bin/python", "-B", "-c", _SHOW_MAPS.format(code=indented)],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
        env={"PATH": os.environ["PATH"]},
    )
    error, maps = json.loads(done.stdout)
    return error, {path for path in maps if path.startswith(str(venv))}


def predicted(facts: dict[str, Any], venv: Path) -> set[str]:
    """The files of the venv that the plan loads."""
    paths = {os.path.realpath(item["path"]) for item in facts["resolution"]}
    return {path for path in paths if path.startswith(str(venv))}


def put(site: Path, sources: dict[str, str]) -> None:
    for name, text in sources.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)


def library(path: Path) -> Path:
    """A shared object whose soname is its file name, for others to be linked against."""
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-shared", "-nostdlib", "-x", "c", "/dev/null", "-o", str(path), f"-Wl,-soname,{path.name}"]
    subprocess.run(command, check=True)
    return path


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    return small_wheels.make_venv(tmp_path / "venv", "nvidia-cuda-runtime", "nvidia-cufile", "nvidia-nvtx")


@pytest.fixture
def torch_venv(venv: Path) -> Path:
    add_torch(small_wheels.site_packages(venv))
    return venv


# --- the standard library ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["json", "sys", "math", "zlib", "os.path", "concurrent.futures", "ssl"])
def test_the_standard_library_is_there(venv: Path, name: str) -> None:
    facts = examine(venv, imports=[name])

    assert facts["problems"] == []


def test_extension_modules_of_the_standard_library_are_its_own(venv: Path) -> None:
    """Nothing is said where the interpreter has them inside."""
    facts = examine(venv, imports=["ssl"], detail="full")
    code = "import json, ssl, _ssl; print(json.dumps(getattr(_ssl, '__file__', None)))"
    done = subprocess.run([f"{venv}/bin/python", "-c", code], capture_output=True, text=True, check=True)
    file = json.loads(done.stdout)

    assert file is None or file in {item["path"] for item in facts["resolution"]}


def test_an_absent_module_is_still_a_problem(venv: Path) -> None:
    assert kinds(examine(venv, imports=["jsonn", "json.absent"])) == ["unmet-requirement", "unmet-requirement"]


# --- packages on top of torch --------------------------------------------------------------------------


def test_a_package_that_imports_torch_gets_what_torch_loads_first(torch_venv: Path) -> None:
    """Its extension module has no search path: alone it would not find the library."""
    site = small_wheels.site_packages(torch_venv)
    put(site, {"ops/__init__.py": "import torch\nfrom . import _C\n"})
    compile_module(site / "ops/_C.abi3.so", site / "nvidia/cu13/lib/libcufile.so.0")
    error, maps = really(torch_venv, "import ops")

    facts = examine(torch_venv, imports=["ops"], detail="full")

    assert (error, facts["problems"]) == (None, [])
    assert predicted(facts, torch_venv) == maps
    assert f"{site}/torch/_C.abi3.so" in maps


def test_torch_imported_by_a_function_comes_too_late(torch_venv: Path) -> None:
    site = small_wheels.site_packages(torch_venv)
    put(site, {"ops/__init__.py": "def later():\n    import torch\nfrom . import _C\n"})
    compile_module(site / "ops/_C.abi3.so", site / "nvidia/cu13/lib/libcufile.so.0")
    error, _maps = really(torch_venv, "import ops")

    (problem,) = examine(torch_venv, imports=["ops"])["problems"]

    assert problem["evidence"] in (error or "")
    assert (problem["kind"], problem["soname"]) == ("missing-library", "libcufile.so.0")


def test_an_import_under_suppress_may_fail(venv: Path) -> None:
    site = small_wheels.site_packages(venv)
    text = "import contextlib\nwith contextlib.suppress(ImportError):\n    from . import _extra\nfrom . import _C\n"
    put(site, {"ops/__init__.py": text})
    absent = library(site / "absent/libabsent.so.7")
    compile_module(site / "ops/_extra.abi3.so", absent)
    compile_module(site / "ops/_C.abi3.so")
    absent.unlink()
    error, _maps = really(venv, "import ops")

    facts = examine(venv, imports=["ops"])

    assert error is None
    assert [(p["kind"], p["severity"]) for p in facts["problems"]] == [("missing-library", "warning")]


FLASHINFER = {
    "flashinfer/__init__.py": "from . import jit\n",
    "flashinfer/jit.py": "import torch, tvm_ffi\n",
    "tvm_ffi/__init__.py": (
        "import ctypes, os\n"
        "ctypes.CDLL(os.path.join(os.path.dirname(__file__), 'lib', 'libtvm_ffi.so'), mode=ctypes.RTLD_GLOBAL)\n"
        "from . import core\n"
    ),
}


def test_flashinfer_loads_torch_and_its_binding(torch_venv: Path) -> None:
    site = small_wheels.site_packages(torch_venv)
    put(site, FLASHINFER)
    compile_module(site / "tvm_ffi/lib/libtvm_ffi.so", python=False)
    compile_module(site / f"tvm_ffi/core{SUFFIX}")
    error, maps = really(torch_venv, "import flashinfer")

    facts = examine(torch_venv, imports=["flashinfer"], detail="full")

    assert (error, facts["problems"]) == (None, [])
    assert predicted(facts, torch_venv) == maps
    assert any(path.endswith("libtvm_ffi.so") for path in maps)


VLLM = {
    "vllm/__init__.py": "import vllm.env_override\n",
    "vllm/env_override.py": "import torch\n",
    "vllm/platforms/__init__.py": "",
    "vllm/platforms/cuda.py": (
        "import contextlib, torch\nimport vllm._C\nwith contextlib.suppress(ImportError):\n    import vllm._extra\n"
    ),
}


@pytest.mark.parametrize("damaged", [False, True], ids=["whole", "without its library"])
def test_vllm_loads_torch_and_the_operations_of_its_platform(torch_venv: Path, damaged: bool) -> None:
    site = small_wheels.site_packages(torch_venv)
    put(site, VLLM)
    needed = library(site / "absent/libcudart.so.12") if damaged else site / "nvidia/cu13/lib/libcufile.so.0"
    compile_module(site / "vllm/_C.abi3.so", needed)
    compile_module(site / "vllm/_unused.abi3.so")
    if damaged:
        needed.unlink()
    error, maps = really(torch_venv, "import vllm, vllm.platforms.cuda")

    facts = examine(torch_venv, imports=["vllm"], detail="full")

    if damaged:
        (problem,) = facts["problems"]
        assert (problem["kind"], problem["severity"]) == ("missing-library", "error")
        assert f"ImportError: {problem['evidence']}" == error
        assert problem["distributions"] == ["nvidia-cuda-runtime-cu12"]
    else:
        assert (error, facts["problems"]) == (None, [])
        assert predicted(facts, torch_venv) == maps


def test_vllm_of_a_torch_without_cuda_has_no_cuda_platform(torch_venv: Path) -> None:
    site = small_wheels.site_packages(torch_venv)
    put(site, {**VLLM, "torch/version.py": "cuda = None\n"})
    compile_module(site / "vllm/_C.abi3.so")

    facts = examine(torch_venv, imports=["vllm"], detail="full")

    assert not any("/vllm/" in path for path in predicted(facts, torch_venv))


# --- onnxruntime ---------------------------------------------------------------------------------------


ONNXRUNTIME = {
    "onnxruntime/__init__.py": (
        "try:\n    from onnxruntime.capi._pybind_state import __name__ as state\n    failed = None\n"
        "except Exception as error:\n    failed = error\n"
        "if failed:\n    raise failed\n"
    ),
    "onnxruntime/capi/__init__.py": "",
    "onnxruntime/capi/_pybind_state.py": "from .onnxruntime_pybind11_state import *\n",
}


def add_onnxruntime(site: Path, *needed: Path) -> None:
    put(site, ONNXRUNTIME)
    capi = site / "onnxruntime/capi"
    shared = capi / "libonnxruntime_providers_shared.so"
    compile_module(shared, python=False)
    compile_module(capi / f"onnxruntime_pybind11_state{SUFFIX}", *needed, rpath="$ORIGIN")
    absent = library(site / "absent/libcublas.so.13")
    compile_module(capi / "libonnxruntime_providers_cuda.so", absent, python=False)
    absent.unlink()


def test_a_provider_that_no_session_asks_for_is_not_judged(venv: Path) -> None:
    site = small_wheels.site_packages(venv)
    add_onnxruntime(site)
    capi = site / "onnxruntime/capi"
    load = f"import ctypes, onnxruntime\nctypes.CDLL({str(capi / 'libonnxruntime_providers_shared.so')!r})"
    error, maps = really(venv, load)

    facts = examine(venv, imports=["onnxruntime"], detail="full")

    assert (error, facts["problems"]) == (None, [])
    assert predicted(facts, venv) == maps
    provider = str(capi / "libonnxruntime_providers_cuda.so")
    assert kinds(examine(venv, imports=["onnxruntime"], load=[provider])) == ["missing-library"]


def test_an_exception_that_is_kept_and_raised_later_is_an_error(venv: Path) -> None:
    """onnxruntime/__init__.py catches the failure of its binding, and raises it at the end."""
    site = small_wheels.site_packages(venv)
    absent = library(site / "gone/libabsent.so.7")
    add_onnxruntime(site, absent)
    absent.unlink()
    error, _maps = really(venv, "import onnxruntime")

    (problem,) = examine(venv, imports=["onnxruntime"])["problems"]

    assert (problem["severity"], f"ImportError: {problem['evidence']}") == ("error", error)


# --- cupy ----------------------------------------------------------------------------------------------


# cuda-pathfinder's table, shortened, and its search: dependencies first, wheels before the loader's own search.
PATHFINDER = """
import ctypes, os, sys
class DescriptorSpec:
    def __init__(self, **columns):
        self.__dict__.update(columns)
CATALOG = (
    DescriptorSpec(name="cudart", linux_sonames=("libcudart.so.13",), site_packages_linux=("nvidia/cu13/lib",)),
    DescriptorSpec(name="cufile", linux_sonames=("libcufile.so.0",), site_packages_linux=("nvidia/cu13/lib",)),
    DescriptorSpec(
        name="cutensor",
        linux_sonames=("libcutensor.so.2",),
        site_packages_linux=("cutensor/lib",),
        dependencies=("cudart",),
    ),
)
def load(name):
    (row,) = [row for row in CATALOG if row.name == name]
    paths = [os.path.join(e, d, s) for d in row.site_packages_linux for e in sys.path for s in row.linux_sonames]
    for dependency in getattr(row, "dependencies", ()):
        load(dependency)
    for path in [path for path in paths if os.path.exists(path)][:1] or row.linux_sonames:
        try:
            return ctypes.CDLL(path)
        except OSError:
            pass
    raise RuntimeError(name)
"""
CUPY = {
    "cuda/pathfinder/_dynamic_libs/descriptor_catalog.py": PATHFINDER,
    "cupy/__init__.py": (
        "from cuda.pathfinder._dynamic_libs.descriptor_catalog import load\n"
        "try:\n    load('cutensor')\nexcept RuntimeError:\n    pass\n"
        "from cupy import _core\nfrom cupy import cuda\n"
    ),
    "cupy/_core/__init__.py": "from cupy._core import core\n",
    "cupy/cuda/__init__.py": (
        "from cupy_backends.cuda.libs import nvrtc\n"
        "try:\n    from cupy_backends.cuda.libs import cutensor\nexcept ImportError:\n    cutensor = None\n"
    ),
    "cupy/cufile.py": "from cupy_backends.cuda.libs import cufile\n",
    "cupy_backends/__init__.py": "",
    "cupy_backends/cuda/__init__.py": "",
    "cupy_backends/cuda/libs/__init__.py": (
        "import importlib\n"
        "from cuda.pathfinder._dynamic_libs.descriptor_catalog import load\n"
        "def __getattr__(name):\n"
        "    if name == 'cufile':\n"
        "        load(name)\n"
        "    elif name not in ('nvrtc', 'cutensor'):\n"
        "        raise AttributeError(name)\n"
        "    return importlib.import_module('cupy_backends.cuda.libs.' + name)\n"
    ),
}


@pytest.fixture
def cupy_venv(venv: Path) -> Path:
    site = small_wheels.site_packages(venv)
    put(site, CUPY)
    compile_module(site / f"cupy/_core/core{SUFFIX}")
    libs = site / "cupy_backends/cuda/libs"
    compile_module(libs / f"nvrtc{SUFFIX}")
    compile_module(libs / f"cufile{SUFFIX}", site / "nvidia/cu13/lib/libcufile.so.0")
    absent = library(site / "absent/libcutensor.so.2")
    compile_module(libs / f"cutensor{SUFFIX}", absent)
    absent.unlink()
    return venv


def test_cupy_without_cutensor_loads_what_cutensor_would_need(cupy_venv: Path) -> None:
    error, maps = really(cupy_venv, "import cupy")

    facts = examine(cupy_venv, imports=["cupy"], detail="full")

    assert (error, facts["problems"]) == (None, [])
    assert predicted(facts, cupy_venv) == maps
    assert [Path(path).name.split(".")[0] for path in sorted(maps)] == ["core", "nvrtc", "libcudart"]


def test_cupy_finds_cutensor_in_its_wheel(cupy_venv: Path) -> None:
    site = small_wheels.site_packages(cupy_venv)
    cutensor = library(site / "cutensor/lib/libcutensor.so.2")
    error, maps = really(cupy_venv, "import cupy")

    facts = examine(cupy_venv, imports=["cupy"], detail="full")

    assert (error, facts["problems"]) == (None, [])
    assert predicted(facts, cupy_venv) == maps
    assert str(cutensor) in maps


def test_cupy_does_not_load_cutensor_without_what_it_depends_on(cupy_venv: Path) -> None:
    site = small_wheels.site_packages(cupy_venv)
    library(site / "cutensor/lib/libcutensor.so.2")
    table = site / "cuda/pathfinder/_dynamic_libs/descriptor_catalog.py"
    table.write_text(PATHFINDER.replace("libcudart.so.13", "libabsent.so.13"))
    error, maps = really(cupy_venv, "import cupy")

    facts = examine(cupy_venv, imports=["cupy"], detail="full")

    assert (error, facts["problems"]) == (None, [])
    assert predicted(facts, cupy_venv) == maps
    assert not any("cutensor" in path for path in maps)


def test_cupy_loads_a_library_from_its_wheel_before_the_binding(cupy_venv: Path) -> None:
    """The binding has no search path, and cufile is in no place where the loader looks."""
    error, maps = really(cupy_venv, "import cupy, cupy.cufile")

    facts = examine(cupy_venv, imports=["cupy", "cupy.cufile"], detail="full")

    assert (error, facts["problems"]) == (None, [])
    assert predicted(facts, cupy_venv) == maps
    assert any(path.endswith("libcufile.so.0") for path in maps)


def test_a_binding_without_its_library_is_an_error(cupy_venv: Path) -> None:
    small_wheels.uninstall(cupy_venv, "nvidia-cufile")

    (problem,) = examine(cupy_venv, imports=["cupy", "cupy.cufile"])["problems"]

    assert (problem["kind"], problem["severity"], problem["soname"]) == ("missing-library", "error", "libcufile.so.0")


# --- jax -----------------------------------------------------------------------------------------------


# The steps of jax_plugins.xla_cuda13's initialize(), with libraries of the small wheels.
JAX_PLUGIN = """
import ctypes, importlib, os, pathlib
def _load(module, libraries):
    try:
        m = importlib.import_module(f"nvidia.{module}")
    except ImportError:
        m = None
    for lib in libraries:
        if m is not None:
            try:
                ctypes.cdll.LoadLibrary(pathlib.Path(m.__path__[0]) / "lib" / lib)
            except OSError:
                pass
def _load_nvidia_libraries():
    _load("cuda_runtime", ["libcudart.so.12"])
    _load("cu13", ["libcudart.so.13"])
    _load("cudnn", ["libcudnn.so.9"])
def _check():
    _version_check("CUDA", None)
    _version_check("cuDNN", None)
def _version_check(name, get_version):
    if ctypes_open({"CUDA": "libcudart.so.13", "cuDNN": "libcudnn.so.9"}[name]) is None:
        raise RuntimeError(f"Unable to load {name}. Is it installed?")
def ctypes_open(soname):
    try:
        return ctypes.CDLL(soname)
    except OSError:
        return None
def initialize():
    _load_nvidia_libraries()
    importlib.import_module("jax_cuda13_plugin._versions")
    _check()
    ctypes.CDLL(os.path.join(os.path.dirname(__file__), "xla_cuda_plugin.so"))
"""
JAX = {
    "jax/__init__.py": (
        "import jaxlib.cpu_feature_guard, jaxlib._jax\n"
        "for name in ('_solver', '_versions'):\n"
        "    try:\n        __import__('jax_cuda13_plugin.' + name)\n    except ImportError:\n        pass\n"
    ),
    "jaxlib/__init__.py": "",
    "jax_cuda13_plugin/__init__.py": "",
    "jax_plugins/xla_cuda13/__init__.py": JAX_PLUGIN,
}
INITIALIZE = "import jax\nimport jax_plugins.xla_cuda13 as plugin\nplugin.initialize()"


@pytest.fixture
def jax_venv(venv: Path) -> Path:
    site = small_wheels.site_packages(venv)
    put(site, JAX)
    # jax_plugins is a namespace: no __init__.py of its own.
    for name in ("jaxlib/cpu_feature_guard.so", "jaxlib/_jax.so", "jax_cuda13_plugin/_solver.so"):
        compile_module(site / name)
    compile_module(
        site / "jax_cuda13_plugin/_versions.so", rpath="$ORIGIN/../nvidia/cu13/lib:$ORIGIN/../nvidia/cudnn/lib"
    )
    compile_module(site / "jax_plugins/xla_cuda13/xla_cuda_plugin.so", python=False)
    library(site / "nvidia/cudnn/lib/libcudnn.so.9")
    return venv


def test_jax_loads_what_its_plugin_takes_from_the_wheels(jax_venv: Path) -> None:
    error, maps = really(jax_venv, INITIALIZE)

    facts = examine(jax_venv, imports=["jax"], detail="full")

    assert (error, kinds(facts)) == (None, ["orphan-file"]), "the cuDNN of this test belongs to nobody"
    assert predicted(facts, jax_venv) == maps
    assert any(path.endswith("libcudnn.so.9") for path in maps)


def test_a_library_of_another_major_is_loaded_beside(jax_venv: Path) -> None:
    """The table names both majors' libraries: whatever is installed is loaded."""
    small_wheels.install(jax_venv, "nvidia-cuda-runtime-cu12")
    _error, maps = really(jax_venv, INITIALIZE)

    facts = examine(jax_venv, imports=["jax"], detail="full")

    assert predicted(facts, jax_venv) == maps
    assert "mixed-cuda-majors" in kinds(facts)


def test_jax_without_cudnn_finds_no_device(jax_venv: Path) -> None:
    site = small_wheels.site_packages(jax_venv)
    (site / "nvidia/cudnn/lib/libcudnn.so.9").unlink()
    error, _maps = really(jax_venv, INITIALIZE)

    (problem,) = examine(jax_venv, imports=["jax"])["problems"]

    assert error == "RuntimeError: Unable to load cuDNN. Is it installed?"
    assert (problem["kind"], problem["severity"], problem["soname"]) == ("missing-library", "error", "libcudnn.so.9")
    assert problem["distributions"] == ["nvidia-cudnn-cu13"]


def test_jax_without_a_plugin_loads_no_cuda(jax_venv: Path) -> None:
    site = small_wheels.site_packages(jax_venv)
    (site / "jax_plugins/xla_cuda13/__init__.py").unlink()
    for file in (site / "jax_cuda13_plugin").iterdir():
        if file.is_file():
            file.unlink()
    _error, maps = really(jax_venv, "import jax")

    facts = examine(jax_venv, imports=["jax"], detail="full")

    assert predicted(facts, jax_venv) == maps
    assert not any("nvidia" in path for path in maps)
