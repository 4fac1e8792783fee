# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which libraries of the NVIDIA driver a service gets, as the dynamic linker finds them. Private to the collection."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from ansible_collections.gpufleet.dflash.plugins.module_utils._circumstances import Circumstances
from ansible_collections.gpufleet.dflash.plugins.module_utils._elf import ElfError
from ansible_collections.gpufleet.dflash.plugins.module_utils._host_files import HostFiles
from ansible_collections.gpufleet.dflash.plugins.module_utils._ld_system import System
from ansible_collections.gpufleet.dflash.plugins.module_utils._loader import LoadError, Process

CUDA = "libcuda.so.1"
MANAGEMENT = "libnvidia-ml.so.1"
_VERSION = re.compile(r"\.so\.(\d{3,}\.\d+(?:\.\d+)?)\Z")
# Where drivers and container runtimes put them; asked only to say where a library is that nobody finds.
_PLACES = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/lib64/nvidia",
    "/usr/lib/nvidia",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/opt/nvidia/lib64",
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
    "/run/opengl-driver/lib",
    "/usr/lib/wsl/lib",
)
# NVIDIA's stubs have 20 to 200 KiB, the smallest real libcuda of the supported drivers more than ten MiB.
_SMALLEST_DRIVER = 1024 * 1024


@dataclass(frozen=True)
class DriverLibrary:
    """One library. ``path`` is as the search found it, None where it finds none; ``file`` the real file behind it.

    ``version`` comes from the real file's name. ``elsewhere`` are copies in places that are not searched;
    ``words`` the loader's own about a library that it does not find.
    """

    soname: str
    path: str | None = None
    file: str | None = None
    version: str | None = None
    rule: str | None = None
    size: int = 0
    elsewhere: tuple[str, ...] = ()
    words: str = ""

    @property
    def is_stub(self) -> bool:
        """Whether this is a toolkit's stand-in for linking: every function of it fails."""
        if self.path is None or self.file is None:
            return False
        return "/stubs/" in self.path + self.file or self.version is None and self.size < _SMALLEST_DRIVER

    @property
    def is_compat(self) -> bool:
        """Whether it comes from the forward-compatibility package, cuda-compat."""
        return any("compat" in os.path.dirname(path or "").split("/") for path in (self.path, self.file))


def find_libraries(
    files: HostFiles, circumstances: Circumstances, python: str, system: System
) -> tuple[DriverLibrary, DriverLibrary]:
    """libcuda and libnvidia-ml as a Python process of the service gets them."""
    return _find(files, circumstances, python, system, CUDA), _find(files, circumstances, python, system, MANAGEMENT)


def _find(files: HostFiles, circumstances: Circumstances, python: str, system: System, soname: str) -> DriverLibrary:
    process = Process(system, environment=circumstances.environment, cwd=circumstances.directory)
    try:
        process.start(python)
        found = process.dlopen(soname)
    except (LoadError, ElfError, OSError) as error:
        copies = (f"{place}/{soname}" for place in _PLACES)
        return DriverLibrary(soname, elsewhere=tuple(p for p in copies if files.exists(p)), words=str(error))
    file = os.path.realpath(found.path)
    match = _VERSION.search(file)
    try:
        size = os.stat(file).st_size
    except OSError:
        size = 0
    return DriverLibrary(
        soname=soname,
        path=files.inside(found.path),
        file=files.inside(file),
        version=match[1] if match else None,
        rule=found.rule,
        size=size,
    )
