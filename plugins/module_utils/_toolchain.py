# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The compilers that a service finds when it makes kernels at run time. Private to the collection.

torch and flashinfer look for nvcc in the same order: CUDA_HOME, CUDA_PATH, PATH, /usr/local/cuda. Triton takes CC,
else gcc, else clang, and compiles against Python.h. Nothing is executed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ansible_collections.gpufleet.dflash.plugins.module_utils._circumstances import Circumstances
from ansible_collections.gpufleet.dflash.plugins.module_utils._paths import read_start
from ansible_collections.gpufleet.dflash.plugins.module_utils._venv import Venv

DEFAULT_CUDA_HOME = "/usr/local/cuda"


@dataclass(frozen=True)
class Toolchain:
    """Where each tool is, None for one that is not found.

    ``cuda_home`` is the toolkit that would be taken, ``cuda_home_from`` who says so (``CUDA_HOME``, ``CUDA_PATH``,
    ``PATH``, ``default``), ``cuda`` its version. ``python_h`` is None also without a venv.
    """

    path: str
    cuda_home: str | None
    cuda_home_from: str | None
    cuda: str | None
    nvcc: str | None
    ptxas: str | None
    cc: str | None
    cxx: str | None
    ninja: str | None
    python_h: str | None


def read_toolchain(circumstances: Circumstances, venv: Venv | None) -> Toolchain:
    """Look for the tools as a process with this environment would."""
    environment = circumstances.environment
    path = environment.get("PATH", "")
    home, source = _cuda_home(environment, path)
    return Toolchain(
        path=path,
        cuda_home=home,
        cuda_home_from=source,
        cuda=_toolkit_version(home) if home else None,
        nvcc=_executable(os.path.join(home, "bin", "nvcc")) if home else None,
        ptxas=environment.get("TRITON_PTXAS_PATH")
        or (_executable(os.path.join(home, "bin", "ptxas")) if home else None),
        cc=_compiler(environment, "CC", ("gcc", "clang"), path),
        cxx=_compiler(environment, "CXX", ("g++", "c++", "clang++"), path),
        ninja=which("ninja", path),
        python_h=_python_h(venv) if venv else None,
    )


def which(name: str, path: str) -> str | None:
    """The executable of that name on a search path, by the rules of execvp(3)."""
    if "/" in name:
        return _executable(name)
    for directory in path.split(":") if path else ():
        found = _executable(os.path.join(directory or ".", name))
        if found:
            return found
    return None


def _executable(path: str) -> str | None:
    return path if os.path.isfile(path) and os.access(path, os.X_OK) else None


def _cuda_home(environment: Mapping[str, str], path: str) -> tuple[str | None, str | None]:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if environment.get(variable):
            return environment[variable], variable
    nvcc = which("nvcc", path)
    if nvcc:
        return os.path.dirname(os.path.dirname(nvcc)), "PATH"
    return (DEFAULT_CUDA_HOME, "default") if os.path.isdir(DEFAULT_CUDA_HOME) else (None, None)


def _toolkit_version(home: str) -> str | None:
    """The toolkit's version as its own header says it."""
    for header in ("include/cuda.h", "targets/x86_64-linux/include/cuda.h", "targets/sbsa-linux/include/cuda.h"):
        try:
            text = read_start(os.path.join(home, header), 4 * 1024 * 1024)
        except (OSError, ValueError):
            continue
        match = re.search(r"^#define\s+CUDA_VERSION\s+(\d{4,6})\s*$", text, re.M)
        if match:
            number = int(match[1])
            return f"{number // 1000}.{number % 1000 // 10}"
    return None


def _compiler(environment: Mapping[str, str], variable: str, names: tuple[str, ...], path: str) -> str | None:
    words = environment.get(variable, "").split()
    if words:
        # "ccache gcc" is a compiler too.
        return which(words[0], path)
    return next((found for found in (which(name, path) for name in names) if found), None)


def _python_h(venv: Venv) -> str | None:
    """The header of the interpreter behind the venv."""
    prefix = os.path.dirname(os.path.dirname(venv.python))
    for name in (f"python{venv.feature_version}", f"python{venv.feature_version}t"):
        for base in (os.path.join(prefix, "include"), "/usr/include"):
            header = os.path.join(base, name, "Python.h")
            if os.path.isfile(header):
                return header
    return None
