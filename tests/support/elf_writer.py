# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Write small shared libraries that the real dynamic linker loads: no code, one segment, about a kilobyte."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

EM_386 = 3
EM_X86_64 = 62
EM_AARCH64 = 183
ET_REL = 1
ET_EXEC = 2
ET_DYN = 3

_DT_NEEDED, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT = 1, 4, 5, 6, 10, 11
_DT_SONAME, _DT_RPATH, _DT_RUNPATH = 14, 15, 29
_DT_VERSYM, _DT_FLAGS_1 = 0x6FFFFFF0, 0x6FFFFFFB
_DT_VERDEF, _DT_VERDEFNUM, _DT_VERNEED, _DT_VERNEEDNUM = 0x6FFFFFFC, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP, _PT_GNU_STACK = 1, 2, 3, 0x6474E551
_SHN_ABS = 0xFFF1


def host_machine() -> int:
    """Return e_machine of the machine that runs the tests."""
    return {"x86_64": EM_X86_64, "aarch64": EM_AARCH64}[os.uname().machine]


def elf_hash(name: bytes) -> int:
    """Return the System V hash of a symbol or version name, as in the ELF specification."""
    value = 0
    for byte in name:
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ high >> 24) & ~high
    return value


class _Strings:
    def __init__(self) -> None:
        self.data = b"\0"
        self._offsets: dict[bytes, int] = {}

    def add(self, text: str) -> int:
        raw = os.fsencode(text)
        if raw not in self._offsets:
            self._offsets[raw] = len(self.data)
            self.data += raw + b"\0"
        return self._offsets[raw]


def write_elf(
    path: str | Path,
    *,
    soname: str | None = None,
    needed: Sequence[str] = (),
    rpath: str | None = None,
    runpath: str | None = None,
    flags_1: int = 0,
    interpreter: str | None = None,
    version_needs: Mapping[str, Sequence[tuple[str, bool]]] | None = None,
    version_defs: Sequence[str] = (),
    symbols: Sequence[str] = (),
    bits: int = 64,
    byteorder: str = "little",
    machine: int | None = None,
    elf_type: int = ET_DYN,
    with_dynamic: bool = True,
    with_segment: bool = True,
) -> Path:
    """Write a loadable ELF file and return its path; its directories are made. ``symbols`` are defined,
    absolute functions.

    ``version_needs`` maps a file to (version, weak) pairs; ``version_defs`` are written in order, the first
    as the base.
    """
    order = "<" if byteorder == "little" else ">"
    wide = bits == 64
    word = "Q" if wide else "I"
    strings = _Strings()
    tags = [(_DT_NEEDED, strings.add(name)) for name in needed]
    for tag, text in ((_DT_SONAME, soname), (_DT_RPATH, rpath), (_DT_RUNPATH, runpath)):
        if text is not None:
            tags.append((tag, strings.add(text)))
    if flags_1:
        tags.append((_DT_FLAGS_1, flags_1))

    symbol_names = [strings.add(name) for name in symbols]
    symbol_count = 1 + len(symbols)
    needs = _version_needs(version_needs or {}, strings, order)
    definitions = _version_defs(version_defs, strings, order)

    header_size, program_header_size, symbol_size = (64, 56, 24) if wide else (52, 32, 16)
    segments = with_segment + with_dynamic + (interpreter is not None) + 1
    interpreter_offset = header_size + segments * program_header_size
    interpreter_raw = os.fsencode(interpreter) + b"\0" if interpreter is not None else b""
    has_versions = bool(needs or definitions)
    entries = len(tags) + 5 + (1 if has_versions else 0) + (2 if needs else 0) + (2 if definitions else 0) + 1
    dynamic_offset = _align(interpreter_offset + len(interpreter_raw))
    dynamic_size = entries * struct.calcsize(order + 2 * word)
    hash_table = struct.pack(f"{order}II{1 + symbol_count}I", 1, symbol_count, *_hash_chain(symbol_count))
    version_symbols = struct.pack(f"{order}{symbol_count}H", *[0] + [1] * len(symbols)) if has_versions else b""

    image: list[tuple[int, bytes]] = [(interpreter_offset, interpreter_raw)]
    offset = dynamic_offset + dynamic_size
    placed = {}
    symbol_table = b"".join(_symbol(order, wide, name) for name in [None, *symbol_names])
    for name, raw in (
        ("hash", hash_table),
        ("symbols", symbol_table),
        ("versym", version_symbols),
        ("verneed", needs),
        ("verdef", definitions),
        ("strings", strings.data),
    ):
        offset = _align(offset)
        placed[name] = offset
        image.append((offset, raw))
        offset += len(raw)
    total = offset

    tags += [
        (_DT_HASH, placed["hash"]),
        (_DT_STRTAB, placed["strings"]),
        (_DT_SYMTAB, placed["symbols"]),
        (_DT_STRSZ, len(strings.data)),
        (_DT_SYMENT, symbol_size),
    ]
    if has_versions:
        tags.append((_DT_VERSYM, placed["versym"]))
    if needs:
        tags += [(_DT_VERNEED, placed["verneed"]), (_DT_VERNEEDNUM, len(version_needs or {}))]
    if definitions:
        tags += [(_DT_VERDEF, placed["verdef"]), (_DT_VERDEFNUM, len(version_defs))]
    tags.append((0, 0))
    image.append((dynamic_offset, b"".join(struct.pack(order + 2 * word, *tag) for tag in tags)))

    headers = b""
    if interpreter is not None:
        headers += _program_header(order, wide, _PT_INTERP, interpreter_offset, len(interpreter_raw), 1)
    if with_segment:
        headers += _program_header(order, wide, _PT_LOAD, 0, total, 4096)
    if with_dynamic:
        headers += _program_header(order, wide, _PT_DYNAMIC, dynamic_offset, dynamic_size, 8)
    headers += _program_header(order, wide, _PT_GNU_STACK, 0, 0, 16)

    identification = b"\x7fELF" + bytes([2 if wide else 1, 1 if byteorder == "little" else 2, 1]) + bytes(9)
    header = identification + struct.pack(
        f"{order}HHI{3 * word}IHHHHHH",
        elf_type,
        host_machine() if machine is None else machine,
        1,
        0,
        header_size,
        0,
        0,
        header_size,
        program_header_size,
        segments,
        64 if wide else 40,
        0,
        0,
    )
    data = bytearray(total)
    for start, raw in [(0, header + headers), *image]:
        data[start : start + len(raw)] = raw
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    return target


def _align(offset: int) -> int:
    return (offset + 15) & ~15


def _hash_chain(symbol_count: int) -> list[int]:
    """One bucket whose chain visits every symbol."""
    if symbol_count == 1:
        return [0, 0]
    return [1, 0, *range(2, symbol_count), 0]


def _symbol(order: str, wide: bool, name: int | None) -> bytes:
    layout = order + ("IBBHQQ" if wide else "IIIBBH")
    if name is None:
        return bytes(struct.calcsize(layout))
    global_function = 0x12
    if wide:
        return struct.pack(layout, name, global_function, 0, _SHN_ABS, 0x1000, 8)
    return struct.pack(layout, name, 0x1000, 8, global_function, 0, _SHN_ABS)


def _program_header(order: str, wide: bool, kind: int, offset: int, size: int, alignment: int) -> bytes:
    read_write = 6
    if wide:
        return struct.pack(order + "IIQQQQQQ", kind, read_write, offset, offset, offset, size, size, alignment)
    return struct.pack(order + "IIIIIIII", kind, offset, offset, offset, size, size, read_write, alignment)


def _version_needs(needs: Mapping[str, Sequence[tuple[str, bool]]], strings: _Strings, order: str) -> bytes:
    data = b""
    for number, (file, versions) in enumerate(needs.items(), 1):
        following = 0 if number == len(needs) else 16 + 16 * len(versions)
        data += struct.pack(order + "HHIII", 1, len(versions), strings.add(file), 16, following)
        for index, (version, weak) in enumerate(versions, 1):
            following = 0 if index == len(versions) else 16
            hashed = elf_hash(os.fsencode(version))
            data += struct.pack(order + "IHHII", hashed, 2 if weak else 0, index + 1, strings.add(version), following)
    return data


def _version_defs(versions: Sequence[str], strings: _Strings, order: str) -> bytes:
    data = b""
    for index, version in enumerate(versions, 1):
        following = 0 if index == len(versions) else 28
        hashed = elf_hash(os.fsencode(version))
        data += struct.pack(order + "HHHHIII", 1, 1 if index == 1 else 0, index, 1, hashed, 20, following)
        data += struct.pack(order + "II", strings.add(version), 0)
    return data


def damage(data: bytes, seed: int) -> bytes:
    """Return ``data`` with random bytes, words or a cut, aimed at where a reader of ELF looks first."""
    choice = random.Random(seed)
    damaged = bytearray(data)
    for _ in range(choice.choice([1, 1, 2, 5, 40])):
        at = choice.randrange(min(len(damaged), choice.choice([64, 512, len(damaged)])))
        kind = choice.randrange(4)
        if kind == 0:
            damaged[at] = choice.randrange(256)
        elif kind == 1:
            words = [b"\xff" * 8, bytes(8), struct.pack("<Q", choice.randrange(1 << 63))]
            damaged[at : at + 8] = choice.choice(words)
        elif kind == 2:
            words = [struct.pack("<I", value) for value in (0, 1, 2, 3, len(damaged), 0x6FFFFFFF, 0x80000000)]
            damaged[at : at + 4] = choice.choice(words)
        elif choice.random() < 0.3:
            del damaged[at:]
        if not damaged:
            break
    return bytes(damaged)
