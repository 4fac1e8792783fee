# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The facts module's judgement of a venv, without ansible and on a host without CUDA of its own."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from ansible_collections.gpufleet.dflash.plugins.module_utils._facts import Request, gather, result
from ansible_collections.gpufleet.dflash.plugins.module_utils._loader import System

CU13 = ("nvidia-cuda-runtime", "nvidia-nvtx", "nvidia-cufile")
CU12 = ("nvidia-cuda-runtime-cu12", "nvidia-nvtx-cu12", "nvidia-cufile-cu12")
CU13_SONAMES = ("libcudart.so.13", "libnvtx3interop.so.1", "libcufile.so.0")
CU12_SONAMES = ("libcudart.so.12", "libnvToolsExt.so.1", "libcufile.so.0")
HOOK = "torch_memory_saver_hook_mode_preload_{}.abi3.so"


def examine(venv: Path, *, detail: str = "summary", **options: Any) -> dict[str, Any]:
    """The module's result as if ld.so.cache were empty, so that every host gives the same answer."""
    request = Request(**{"venv": str(venv), "imports": [], **options})
    system = System.of_host(os.path.realpath(sys.executable), use_cache=False)
    return result(gather(request, system), detail)


def examine_as_service(venv: Path, **options: Any) -> dict[str, Any]:
    """The same with the LD_LIBRARY_PATH that the facts themselves propose."""
    return examine(venv, ld_library_path=examine(venv)["library_path"], **options)


def kinds(facts: dict[str, Any]) -> list[str]:
    return [problem["kind"] for problem in facts["problems"]]


def commands(fix: str) -> list[str]:
    """The command lines in a fix: each starts with the installer and ends with the fix or at a choice."""
    return re.findall(r"(?:rm -r|/\S+/bin/python -m pip|uv pip) .*?(?=; or to keep|; a venv must|$)", fix)
