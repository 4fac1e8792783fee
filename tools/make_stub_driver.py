#!/usr/bin/env python3
# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make a stand-in for the NVIDIA driver's libcuda.so.1, to load CUDA code on a machine without a GPU.

It defines every driver function that the given objects want from libcuda.so.1; each returns 34,
CUDA_ERROR_STUB_LIBRARY, which the CUDA runtime reports as "CUDA driver is a stub library". So what links against the
driver loads, and whatever asks for a GPU is told that there is none. For tests only: a service must never see it.
Needs gcc and nm.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

SONAME = "libcuda.so.1"
STUB_LIBRARY = 34
# What the CUDA runtime and cuBLAS look up by name, so that no object lists it as undefined.
LOOKED_UP = ("cuInit", "cuDriverGetVersion", "cuGetProcAddress", "cuGetProcAddress_v2")
# Names of the runtime (cudaMalloc) and of most libraries (cublasCreate_v2) go on with a small letter; cuFile's do not.
_DRIVER_FUNCTION = re.compile(r"cu(?!File|Obj)[A-Z]\w*\Z")


class StubError(Exception):
    """What is wrong, where, and what to do."""


def shared_objects(places: Iterable[Path]) -> list[Path]:
    """The shared objects among these files and below these directories."""
    found: set[Path] = set()
    for place in places:
        if not place.exists():
            raise StubError(f"no such file or directory: {place}: name objects, or directories that hold them")
        inside = [place] if place.is_file() else place.rglob("*.so*")
        found.update(path for path in inside if path.is_file() and _is_elf(path))
    return sorted(found)


def _is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def wanted_functions(objects: Sequence[Path]) -> list[str]:
    """The driver functions that these objects use, and those that are looked up by name."""
    names = set(LOOKED_UP)
    for path in objects:
        names.update(name for name in _symbols("--undefined-only", path) if _DRIVER_FUNCTION.match(name))
    return sorted(names)


def _symbols(which: str, path: Path) -> list[str]:
    done = subprocess.run(["nm", "-D", which, str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise StubError(f"nm cannot read it: {path}: {done.stderr.strip()}")
    return [line.split()[-1].split("@")[0] for line in done.stdout.splitlines() if line.strip()]


def make_stub(functions: Iterable[str], directory: Path) -> Path:
    """Compile the library into a directory and return its path."""
    source = "".join(f"int {name}(void) {{ return {STUB_LIBRARY}; }}\n" for name in functions)
    target = directory / SONAME
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        text = Path(scratch, "stub.c")
        text.write_text(source, encoding="ascii")
        command = ["gcc", "-shared", "-fPIC", "-nostdlib", f"-Wl,-soname,{SONAME}", "-o", str(target), str(text)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StubError(f"gcc cannot compile the stub: {target}: {done.stderr.strip()}")
    return target


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("objects", nargs="+", type=Path, help="shared objects, or directories that hold them")
    parser.add_argument("--output", required=True, type=Path, metavar="DIRECTORY", help=f"where {SONAME} is put")
    given = parser.parse_args(arguments)
    try:
        functions = wanted_functions(shared_objects(given.objects))
        target = make_stub(functions, given.output)
    except StubError as error:
        print(f"make_stub_driver: {error}", file=sys.stderr)
        return 1
    except FileNotFoundError as error:
        print(f"make_stub_driver: {os.path.basename(error.filename)} is missing: install gcc", file=sys.stderr)
        return 1
    print(f"{target}: {len(functions)} functions, each returns {STUB_LIBRARY}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
