# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Libraries with device code and other data, compiled for a test, and the distributions that bring them."""

from __future__ import annotations

import base64
import hashlib
import struct
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

PTX, SASS, LTO = 1, 2, 8


def fat_binary(entries: Iterable[tuple[int, int]], code: bytes = b"\x7fELF code " * 9) -> bytes:
    """A fat binary with an entry of each (kind, architecture), laid out as nvcc does."""
    body = b"".join(
        struct.pack("<HHIQIIHHI", kind, 0x0101, 64, len(code), len(code), 0, 8, 1, architecture) + bytes(32) + code
        for kind, architecture in entries
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def compile_library(
    path: Path,
    *,
    source: str = "",
    fat: bytes | None = None,
    section: str = ".nv_fatbin",
    strings: Iterable[str] = (),
    options: Iterable[str] = (),
) -> Path:
    """Compile a shared library with a section of device code and with strings in its read-only data."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = source + "".join(f'\nconst char *const string_{number} = "{text}";' for number, text in enumerate(strings))
    if fat is not None:
        blob = path.with_name(path.name + ".fat")
        blob.write_bytes(fat)
        text += f'\n__asm__(".section {section},\\"a\\"\\n.incbin \\"{blob}\\"\\n.text\\n");'
    code = path.with_name(path.name + ".c")
    code.write_text(text, encoding="utf-8")
    subprocess.run(["gcc", "-w", "-O1", "-shared", "-fPIC", "-o", str(path), str(code), *options], check=True)
    for scrap in (code, path.with_name(path.name + ".fat")):
        scrap.unlink(missing_ok=True)
    return path


def without_section_headers(path: Path) -> Path:
    """Strip the section headers of a 64-bit little-endian file, as a packer does."""
    data = bytearray(path.read_bytes())
    data[40:48] = bytes(8)
    data[58:64] = bytes(6)
    path.write_bytes(data)
    return path


def record(site: Path, name: str, version: str, files: Iterable[Path], requires: Iterable[str] = ()) -> None:
    """Make what lies in site-packages a distribution that owns ``files``."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (info / "METADATA").write_text(metadata + "".join(f"Requires-Dist: {each}\n" for each in requires))
    rows: Mapping[Path, str] = {
        path: f"sha256={base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).decode().rstrip('=')},"
        f"{path.stat().st_size}"
        for path in (*files, info / "METADATA")
    }
    lines = [f"{path.relative_to(site)},{rest}\n" for path, rest in rows.items()]
    (info / "RECORD").write_text("".join(lines) + f"{info.name}/RECORD,,\n")
