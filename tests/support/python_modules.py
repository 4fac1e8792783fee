# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Extension modules compiled for a test, a stand-in for torch, and what a real import of them does."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from pathlib import Path

LIST_TABLE = """
def _preload_cuda_deps(err=None):
    cuda_libs: list[tuple[str, str]] = [
        ("cuda_runtime", "libcudart.so.*[0-9]"),
        ("cufile", "libcufile.so.*[0-9]"),
    ]
    if err is not None and not [lib for _, lib in cuda_libs if lib.split(".", 1)[0] in err.args[0]]:
        raise err
    for folder, name in cuda_libs:
        _preload_cuda_lib(folder, name)
    _preload_cuda_lib("nvtx", "libnvToolsExt.so.*[0-9]", required=False)
"""
DICT_TABLE = """
def _preload_cuda_deps(lib_folder=None, lib_name=None):
    cuda_libs: Dict[str, str] = {
        "cuda_runtime": "libcudart.so.*[0-9]",
        "cufile": "libcufile.so.*[0-9]",
    }
"""

# The same steps as torch 2.11's _load_global_deps, shortened; the plan has to find the table in it.
TORCH = (
    "import ctypes, glob, os, sys\n"
    "from .version import cuda as cuda_version\n"
    "def _preload_cuda_lib(folder, name, required=True):\n"
    "    for path in sys.path:\n"
    "        places = [os.path.join(path, 'nvidia', folder, 'lib', name)]\n"
    "        if cuda_version is not None:\n"
    "            major = cuda_version.split('.')[0]\n"
    "            places.append(os.path.join(path, 'nvidia', f'cu{major}', 'lib', name))\n"
    "        places.append(os.path.join(path, folder, 'lib', name))\n"
    "        found = [match for place in places for match in glob.glob(place)]\n"
    "        if found:\n"
    "            ctypes.CDLL(found[0])\n"
    "            return\n"
    "    if required:\n"
    "        raise ValueError(f'{name} not found in the system path {sys.path}')\n"
    + LIST_TABLE
    + "def _load_global_deps():\n"
    "    here = os.path.join(os.path.dirname(__file__), 'lib', 'libtorch_global_deps.so')\n"
    "    try:\n"
    "        ctypes.CDLL(here, mode=ctypes.RTLD_GLOBAL)\n"
    "        with open('/proc/self/maps') as maps:\n"
    "            if 'libcudart.so' not in maps.read():\n"
    "                return\n"
    "        try:\n"
    "            _preload_cuda_deps()\n"
    "        except Exception:\n"
    "            pass\n"
    "    except OSError as err:\n"
    "        _preload_cuda_deps(err)\n"
    "        ctypes.CDLL(here, mode=ctypes.RTLD_GLOBAL)\n"
    "_load_global_deps()\n"
    "from . import _C\n"
)

_IMPORT_AND_SHOW_MAPS = """
import json, sys
sys.dont_write_bytecode = True
try:
    __import__(sys.argv[1])
    error = None
except BaseException as raised:
    error = f"{type(raised).__name__}: {raised}"
maps = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
files = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
order = [file for file in files if file.endswith(".so")]
print(json.dumps({"error": error, "maps": sorted(maps), "order": order}))
"""


def compile_module(path: Path, *needed: Path, rpath: str = "", python: bool = True) -> None:
    """An extension module (or a plain library) that needs these libraries."""
    name = path.name.split(".")[0]
    source = path.with_suffix(".c")
    path.parent.mkdir(parents=True, exist_ok=True)
    source.write_text(
        "#include <Python.h>\n"
        f'static struct PyModuleDef def = {{PyModuleDef_HEAD_INIT, "{name}", 0, -1, 0}};\n'
        f"PyMODINIT_FUNC PyInit_{name}(void) {{ return PyModule_Create(&def); }}\n"
        if python
        else "int nothing;\n"
    )
    command = [
        *("gcc", "-shared", "-fPIC", "-o", str(path), str(source), f"-I{sysconfig.get_path('include')}"),
        *("-Wl,--no-as-needed", "-Wl,--disable-new-dtags", "-Wl,--allow-shlib-undefined"),
        *([f"-Wl,-rpath,{rpath}"] if rpath else []),
        *(str(library) for library in needed),
    ]
    subprocess.run(command, check=True)
    source.unlink()


def really_import(venv: Path, module: str) -> tuple[str | None, set[str], list[str]]:
    """The exception's text, the mapped files of the venv, and its extension modules in order of import."""
    done = subprocess.run(
        [f"{venv}/bin/python", "-c", _IMPORT_AND_SHOW_MAPS, module],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
        env={"PATH": os.environ["PATH"]},
    )
    found = json.loads(done.stdout)
    inside = {path for path in found["maps"] if path.startswith(str(venv))}
    return found["error"], inside, [path for path in found["order"] if path.startswith(str(venv))]


def add_torch(site: Path) -> None:
    """Put a stand-in for a CUDA 13 torch beside the real cudart and cufile wheels, which its libraries need."""
    wheel = site / "nvidia/cu13/lib"
    (site / "torch/lib").mkdir(parents=True)
    (site / "torch/__init__.py").write_text(TORCH)
    (site / "torch/version.py").write_text("from typing import Optional\ncuda: Optional[str] = '13.0'\n")
    compile_module(
        site / "torch/lib/libtorch_global_deps.so",
        wheel / "libcudart.so.13",
        rpath="$ORIGIN/../../nvidia/cu13/lib",
        python=False,
    )
    compile_module(site / "torch/_C.abi3.so", wheel / "libcufile.so.0", rpath="$ORIGIN/../nvidia/cu13/lib")
