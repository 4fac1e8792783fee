#!/usr/bin/env python3
# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make plugins/module_utils/_catalogue_data.py: which wheel provides which soname, and where it puts it.

uv resolves the sets below and tells where their wheels are; of each wheel only the directory and the start of its
shared objects are fetched, as far as their dynamic section reaches. A soname is what the object says, never what
its file is called. What a wheel was found to hold is kept in .cache/catalogue: a published wheel never changes.
"""

from __future__ import annotations

import argparse
import difflib
import io
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import tomllib
from packaging.version import Version

from ansible_collections.gpufleet.dflash.plugins.module_utils._elf import ElfError, read_object

CHECKOUT = Path(__file__).resolve().parents[1]
DATA = CHECKOUT / "plugins" / "module_utils" / "_catalogue_data.py"
CACHE = CHECKOUT / ".cache" / "catalogue"

# Each toolkit release as the index has it, by its metapackage: which version of every component belongs to it.
TOOLKITS = ("11.8", "12.1", "12.4", "12.6", "12.8", "12.9", "13.0", "13.1", "13.2", "13.5")
# All wheels of these releases are read, of the others those whose soname carries the release's minor version.
READ_WHOLE = ("11.8", "12.1", "12.9", "13.0", "13.5")
MINOR_IN_SONAME = ("nvidia-cuda-nvrtc-cu11", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc")
# What torch asks for: its first release with wheels of CUDA libraries, the last for CUDA 12, the first for 13.
TORCHES = ("torch==2.0.1", "torch==2.10.0", "torch==2.11.0")
# Released apart from the toolkit: the newest of each, and what decides a soname that has changed.
APART = (
    *("nvidia-cudnn-cu11", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12==8.9.2.26"),
    *("nvidia-nccl-cu11", "nvidia-nccl-cu12", "nvidia-nccl-cu13"),
    *("nvidia-nvshmem-cu11", "nvidia-nvshmem-cu12", "nvidia-nvshmem-cu13"),
    *("nvidia-cusparselt-cu12", "nvidia-cusparselt-cu13"),
    *("nvidia-cudss-cu12", "nvidia-cudss-cu13"),
    *("nvidia-nvcomp-cu11", "nvidia-nvcomp-cu12", "nvidia-nvcomp-cu13"),
    *("nvidia-libnvcomp-cu12", "nvidia-libnvcomp-cu13"),
    *("cutensor-cu11", "cutensor-cu12", "cutensor-cu13"),
)
# Of no interest: debugging tools that nothing links against, and the OpenCL loader, which operating systems have.
_LEFT_OUT = re.compile(r"nvidia-cuda-(sanitizer-api|opencl)\b")
_LEFT_OUT_SONAMES = ("libOpenCL.so.1",)
_PLATFORM = ("--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_28")
_OURS = re.compile(r"(nvidia|cutensor)-")
_BLOCK = 16 * 1024 * 1024

_HEADER = '''\
# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which distribution was found to provide which soname. Private to the collection.

Written by tools/catalogue from the wheels themselves; do not edit it.
"""

from __future__ import annotations

'''


class CatalogueError(Exception):
    """The catalogue cannot be made; the text says why."""


@dataclass(frozen=True)
class Wheel:
    """A wheel as the index offers it."""

    name: str
    version: str
    url: str
    size: int


def resolve(requirements: Iterable[str], *, dependencies: bool) -> list[Wheel]:
    """The wheels that uv chooses for these requirements. Raises CatalogueError."""
    with tempfile.TemporaryDirectory() as directory:
        wanted = Path(directory, "requirements.in")
        wanted.write_text("".join(f"{requirement}\n" for requirement in requirements))
        command = [
            *("uv", "pip", "compile", "--quiet", "--no-header", "--only-binary", ":all:", "--format", "pylock.toml"),
            *_PLATFORM,
            *(() if dependencies else ("--no-deps",)),
            str(wanted),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CatalogueError(f"uv cannot resolve {', '.join(requirements)}: {done.stderr.strip()}")
    return [wheel for package in tomllib.loads(done.stdout)["packages"] for wheel in _wheels_for_linux(package)]


def _wheels_for_linux(package: Mapping[str, object]) -> Iterator[Wheel]:
    name, version, wheels = package["name"], package.get("version"), package.get("wheels", [])
    assert isinstance(name, str) and isinstance(wheels, list)
    for wheel in wheels:
        url = wheel.get("url") or Path(wheel["path"]).as_uri()
        if _OURS.match(name) and not _LEFT_OUT.match(name) and re.search(r"linux.*x86_64\.whl$", unquote(url)):
            yield Wheel(name, str(version), url, int(wheel.get("size") or 0))
            return


class _Remote(io.RawIOBase):
    """A file on a server that answers requests for ranges, as zipfile reads it."""

    def __init__(self, wheel: Wheel) -> None:
        self._wheel = wheel
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._wheel.size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        last = min(self._at + len(buffer), self._wheel.size) - 1
        if last < self._at:
            return 0
        request = urllib.request.Request(self._wheel.url, headers={"Range": f"bytes={self._at}-{last}"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            if answer.status != 206:
                raise CatalogueError(f"the index does not send parts of files: {self._wheel.name}: use another index")
            data = answer.read()
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def sonames_of(wheel: Wheel) -> dict[str, list[str]]:
    """{directory: sonames} of a wheel's shared objects."""
    kept = CACHE / f"{wheel.name}-{wheel.version}.json"
    if not kept.is_file():
        found: dict[str, set[str]] = {}
        for path, soname in _read(wheel):
            found.setdefault(os.path.dirname(path), set()).add(soname)
        CACHE.mkdir(parents=True, exist_ok=True)
        partial = kept.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps({directory: sorted(names) for directory, names in sorted(found.items())}))
        partial.rename(kept)
        print(f"read {wheel.name} {wheel.version}", file=sys.stderr, flush=True)
    sonames: dict[str, list[str]] = json.loads(kept.read_text())
    return sonames


def _read(wheel: Wheel) -> Iterator[tuple[str, str]]:
    local = urlsplit(wheel.url)
    raw = open(unquote(local.path), "rb") if local.scheme == "file" else io.BufferedReader(_Remote(wheel), _BLOCK)  # noqa: SIM115
    with raw, zipfile.ZipFile(raw) as archive:
        for member in archive.infolist():
            name = os.path.basename(member.filename)
            # Copies below a data scheme are installed as the others are; what is not lib*.so* nothing needs by name.
            if re.fullmatch(r"lib.+\.so(\.[\w.]+)?", name):
                soname = _soname(archive, member)
                if soname:
                    yield re.sub(r"^[^/]+\.data/(purelib|platlib)/", "", member.filename), soname


def _soname(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> str | None:
    """DT_SONAME of an object, read as far as needed: the rest of the file is left a hole."""
    with archive.open(member) as stream, tempfile.NamedTemporaryFile() as file:
        head = stream.read(_BLOCK)
        end = _end_of_dynamic(head)
        written = file.write(head)
        while written < end and (data := stream.read(_BLOCK)):
            written += file.write(data)
        soname = _try(file, member.file_size)
        if soname is None:
            # Its string table comes after its dynamic section: tools such as patchelf move it to the end.
            while data := stream.read(_BLOCK):
                file.write(data)
            soname = _try(file, member.file_size)
        return soname


def _try(file: io.IOBase | tempfile._TemporaryFileWrapper[bytes], size: int) -> str | None:
    place = file.tell()
    file.truncate(size)
    file.flush()
    file.seek(place)
    try:
        return read_object(file.name).soname or None  # type: ignore[union-attr]
    except ElfError:
        return None


def _end_of_dynamic(head: bytes) -> int:
    """Where PT_DYNAMIC of a 64-bit little-endian object ends, 0 for anything else."""
    if head[:6] != b"\x7fELF\x02\x01":
        return 0
    start, count = struct.unpack_from("<Q", head, 32)[0], struct.unpack_from("<H", head, 56)[0]
    headers = (struct.unpack_from("<IIQQQQ", head, start + 56 * number) for number in range(count))
    return max((offset + size for kind, _flags, offset, _v, _p, size in headers if kind == 2), default=0)


def make() -> str:
    """The text of the data module. Raises CatalogueError."""
    releases: dict[str, dict[str, str]] = {}
    wheels: set[Wheel] = set()
    for minor in TOOLKITS:
        found = resolve([f"cuda-toolkit[all]=={minor}.*"], dependencies=True)
        releases[minor] = {wheel.name: wheel.version for wheel in found}
        wheels.update(wheel for wheel in found if minor in READ_WHOLE or wheel.name in MINOR_IN_SONAME)
    for torch in TORCHES:
        wheels.update(resolve([torch], dependencies=True))
    for requirement in APART:
        wheels.update(resolve([requirement], dependencies=False))
    ordered = sorted(wheels, key=lambda wheel: (wheel.name, Version(wheel.version)))
    with ThreadPoolExecutor(4) as pool:
        contents = list(pool.map(sonames_of, ordered))
    return render(releases, zip(ordered, contents))


def render(releases: Mapping[str, Mapping[str, str]], found: Iterable[tuple[Wheel, Mapping[str, list[str]]]]) -> str:
    """The data module's text, from what was found in each wheel, oldest version first."""
    rows: dict[tuple[str, str], dict[str, list[str]]] = {}
    read: dict[str, list[str]] = {}
    for wheel, sonames in found:
        for directory, names in sonames.items():
            for name in (name for name in names if name not in _LEFT_OUT_SONAMES):
                rows.setdefault((wheel.name, directory), {}).setdefault(name, []).append(wheel.version)
        if sonames:
            read.setdefault(wheel.name, []).append(wheel.version)
    lines = [
        _HEADER,
        "# {distribution: the versions that were read, oldest first}\n",
        *_mapping("READ: dict[str, tuple[str, ...]]", {name: _tuple(v) for name, v in sorted(read.items())}),
        "\n# {(distribution, directory below site-packages): {soname: its oldest and newest version that has it}}\n",
        "PROVIDED: dict[tuple[str, str], dict[str, tuple[str, str]]] = {\n",
    ]
    for (name, directory), sonames in sorted(rows.items()):
        lines.append(f'    ("{name}", "{directory}"): {{\n')
        lines += [f'        "{s}": ("{v[0]}", "{v[-1]}"),\n' for s, v in sorted(sonames.items())]
        lines.append("    },\n")
    lines += ["}\n", "\n# {CUDA toolkit: {distribution: the version that belongs to it}}\n"]
    lines.append("TOOLKITS: dict[str, dict[str, str]] = {\n")
    for minor, versions in releases.items():
        lines.append(f'    "{minor}": {{\n')
        lines += [f'        "{name}": "{version}",\n' for name, version in sorted(versions.items()) if name in read]
        lines.append("    },\n")
    return "".join([*lines, "}\n"])


def _tuple(values: list[str]) -> str:
    unique = list(dict.fromkeys(values))
    return "(" + ", ".join(f'"{value}"' for value in unique) + ("," if len(unique) == 1 else "") + ")"


def _mapping(name: str, values: Mapping[str, str]) -> list[str]:
    return [f"{name} = {{\n", *(f'    "{key}": {value},\n' for key, value in values.items()), "}\n"]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument("--write", action="store_true", help="rewrite the data module")
    choice.add_argument("--check", action="store_true", help="say what differs from it; exit with 1 if anything does")
    options = parser.parse_args()
    try:
        made = make()
    except (CatalogueError, OSError, zipfile.BadZipFile) as error:
        print(f"{DATA.name} was not made: {error}", file=sys.stderr)
        return 2
    there = DATA.read_text() if DATA.is_file() else ""
    if options.write:
        DATA.write_text(made)
        return 0
    sys.stdout.writelines(
        difflib.unified_diff(there.splitlines(True), made.splitlines(True), "as it is", "from the wheels", n=1)
    )
    return int(there != made)


if __name__ == "__main__":
    sys.exit(main())
