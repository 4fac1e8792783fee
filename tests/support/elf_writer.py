# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Write small shared libraries that the real dynamic linker loads: no code, one segment, about a kilobyte."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
_DT_RELA, _DT_RELASZ, _DT_RELAENT, _DT_REL, _DT_RELSZ, _DT_RELENT = 7, 8, 9, 17, 18, 19
_DT_PLTGOT, _DT_PLTRELSZ, _DT_PLTREL, _DT_JMPREL, _DT_GNU_HASH = 3, 2, 20, 23, 0x6FFFFEF5
_SHN_ABS = 0xFFF1

STB_LOCAL, STB_GLOBAL, STB_WEAK = 0, 1, 2
STV_DEFAULT, STV_HIDDEN, STV_PROTECTED = 0, 2, 3
# The relocations for data (GLOB_DAT) and for a call (JUMP_SLOT).
_RELOCATIONS = {EM_386: (6, 7), EM_X86_64: (6, 7), EM_AARCH64: (1025, 1026)}


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


def gnu_hash(name: bytes) -> int:
    """Return the hash of a symbol's name that DT_GNU_HASH uses."""
    value = 5381
    for byte in name:
        value = (value * 33 + byte) % 2**32
    return value


@dataclass(frozen=True)
class Symbol:
    """One dynamic symbol: defined as an absolute function, or wanted from others.

    ``version`` is one of the file's version_defs for a definition, one of its version_needs for a reference;
    ``hidden_version`` is name@VERSION instead of name@@VERSION. ``relocation`` is "data", "call" or None for a
    reference that nothing uses.
    """

    name: str
    wanted: bool = False
    version: str | None = None
    hidden_version: bool = False
    binding: int = STB_GLOBAL
    visibility: int = STV_DEFAULT
    kind: int = 2
    relocation: str | None = "data"


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
    symbols: Sequence[str | Symbol] = (),
    hash_style: str = "sysv",
    bits: int = 64,
    byteorder: str = "little",
    machine: int | None = None,
    elf_type: int = ET_DYN,
    with_dynamic: bool = True,
    with_segment: bool = True,
) -> Path:
    """Write a loadable ELF file and return its path; its directories are made. A symbol that is only a name is a
    defined, absolute function. ``hash_style`` is sysv, gnu or both.

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

    all_symbols = [Symbol(each) if isinstance(each, str) else each for each in symbols]
    buckets = max(1, len(all_symbols) // 2)
    if hash_style != "sysv":
        # Wanted symbols first, then the hashed ones by bucket.
        all_symbols.sort(key=lambda each: (not each.wanted, gnu_hash(os.fsencode(each.name)) % buckets))
    symbol_names = [strings.add(each.name) for each in all_symbols]
    symbol_count = 1 + len(symbols)
    first_need = max(2, len(version_defs) + 1)
    needs = _version_needs(version_needs or {}, strings, order, first_need)
    definitions = _version_defs(version_defs, strings, order)

    header_size, program_header_size, symbol_size = (64, 56, 24) if wide else (52, 32, 16)
    segments = with_segment + with_dynamic + (interpreter is not None) + 1
    interpreter_offset = header_size + segments * program_header_size
    interpreter_raw = os.fsencode(interpreter) + b"\0" if interpreter is not None else b""
    has_versions = bool(needs or definitions)
    used = [(index, each) for index, each in enumerate(all_symbols, 1) if each.wanted and each.relocation]
    data = [index for index, each in used if each.relocation == "data"]
    calls = [index for index, each in used if each.relocation == "call"]
    hashes = 2 if hash_style == "both" else 1
    entries = len(tags) + 4 + hashes + (1 if has_versions else 0) + (2 if needs else 0) + (2 if definitions else 0) + 1
    entries += (3 if data else 0) + (4 if calls else 0)
    dynamic_offset = _align(interpreter_offset + len(interpreter_raw))
    dynamic_size = entries * struct.calcsize(order + 2 * word)
    hash_table = struct.pack(f"{order}II{1 + symbol_count}I", 1, symbol_count, *_hash_chain(symbol_count))
    numbers = {name: number for number, name in enumerate(version_defs, 1)}
    wanted_numbers = dict(
        zip((v for each in (version_needs or {}).values() for v, _weak in each), range(first_need, 999))
    )
    indexes = [
        (wanted_numbers if each.wanted else numbers).get(each.version or "", 1) | (0x8000 if each.hidden_version else 0)
        for each in all_symbols
    ]
    version_symbols = struct.pack(f"{order}{symbol_count}H", 0, *indexes) if has_versions else b""

    image: list[tuple[int, bytes]] = [(interpreter_offset, interpreter_raw)]
    offset = dynamic_offset + dynamic_size
    placed = {}
    symbol_table = _symbol(order, wide, None, None) + b"".join(
        _symbol(order, wide, each, name) for each, name in zip(all_symbols, symbol_names)
    )
    relocation_size = struct.calcsize(order + word) * (3 if wide else 2)
    for name, raw in (
        ("got", bytes(8 * (len(used) + 3))),
        ("data", bytes(len(data) * relocation_size)),
        ("calls", bytes(len(calls) * relocation_size)),
        ("hash", hash_table),
        ("gnu hash", _gnu_hash_table(all_symbols, buckets, order, wide)),
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

    kinds = _RELOCATIONS.get(host_machine() if machine is None else machine, (6, 7))
    for name, indexes, kind in (("data", data, kinds[0]), ("calls", calls, kinds[1])):
        slot = placed["got"] + 24 + (8 * len(data) if name == "calls" else 0)
        raw = b"".join(_relocation(order, wide, slot + 8 * number, index, kind) for number, index in enumerate(indexes))
        image.append((placed[name], raw))
    if data:
        tags += [
            (_DT_RELA if wide else _DT_REL, placed["data"]),
            (_DT_RELASZ if wide else _DT_RELSZ, len(data) * relocation_size),
            (_DT_RELAENT if wide else _DT_RELENT, relocation_size),
        ]
    if calls:
        tags += [
            (_DT_PLTGOT, placed["got"]),
            (_DT_JMPREL, placed["calls"]),
            (_DT_PLTRELSZ, len(calls) * relocation_size),
            (_DT_PLTREL, _DT_RELA if wide else _DT_REL),
        ]
    if hash_style != "gnu":
        tags.append((_DT_HASH, placed["hash"]))
    if hash_style != "sysv":
        tags.append((_DT_GNU_HASH, placed["gnu hash"]))
    tags += [
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
    content = bytearray(total)
    for start, raw in [(0, header + headers), *image]:
        content[start : start + len(raw)] = raw
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    return target


def _align(offset: int) -> int:
    return (offset + 15) & ~15


def _hash_chain(symbol_count: int) -> list[int]:
    """One bucket whose chain visits every symbol."""
    if symbol_count == 1:
        return [0, 0]
    return [1, 0, *range(2, symbol_count), 0]


def _symbol(order: str, wide: bool, symbol: Symbol | None, name: int | None) -> bytes:
    layout = order + ("IBBHQQ" if wide else "IIIBBH")
    if symbol is None:
        return bytes(struct.calcsize(layout))
    info = symbol.binding << 4 | symbol.kind
    section, value = (0, 0) if symbol.wanted else (_SHN_ABS, 0x1000)
    if wide:
        return struct.pack(layout, name, info, symbol.visibility, section, value, 8)
    return struct.pack(layout, name, value, 8, info, symbol.visibility, section)


def _relocation(order: str, wide: bool, address: int, symbol: int, kind: int) -> bytes:
    if wide:
        return struct.pack(order + "QQQ", address, symbol << 32 | kind, 0)
    return struct.pack(order + "II", address, symbol << 8 | kind & 0xFF)


def _gnu_hash_table(symbols: Sequence[Symbol], buckets: int, order: str, wide: bool) -> bytes:
    """The table of the defined symbols, which stand last and sorted by bucket; one word of filter."""
    bits = 64 if wide else 32
    first = 1 + sum(each.wanted for each in symbols)
    hashes = [gnu_hash(os.fsencode(each.name)) for each in symbols if not each.wanted]
    mask = 0
    for value in hashes:
        mask |= 1 << value % bits | 1 << (value >> 5) % bits
    heads = [0] * buckets
    chains = []
    for number, value in enumerate(hashes):
        heads[value % buckets] = heads[value % buckets] or first + number
        is_last = number + 1 == len(hashes) or hashes[number + 1] % buckets != value % buckets
        chains.append(value & ~1 | is_last)
    # As GNU ld writes a table without symbols.
    head = struct.pack(order + "IIII", buckets, first if hashes else 1, 1, 5)
    words = struct.pack(order + ("Q" if wide else "I"), mask)
    return head + words + struct.pack(f"{order}{buckets}I", *heads) + struct.pack(f"{order}{len(chains)}I", *chains)


def _program_header(order: str, wide: bool, kind: int, offset: int, size: int, alignment: int) -> bytes:
    read_write = 6
    if wide:
        return struct.pack(order + "IIQQQQQQ", kind, read_write, offset, offset, offset, size, size, alignment)
    return struct.pack(order + "IIIIIIII", kind, offset, offset, offset, size, size, read_write, alignment)


def _version_needs(
    needs: Mapping[str, Sequence[tuple[str, bool]]], strings: _Strings, order: str, first_index: int
) -> bytes:
    data = b""
    indexes = iter(range(first_index, 0x7FFF))
    for number, (file, versions) in enumerate(needs.items(), 1):
        following = 0 if number == len(needs) else 16 + 16 * len(versions)
        data += struct.pack(order + "HHIII", 1, len(versions), strings.add(file), 16, following)
        for index, (version, weak) in enumerate(versions, 1):
            following = 0 if index == len(versions) else 16
            hashed = elf_hash(os.fsencode(version))
            data += struct.pack(
                order + "IHHII", hashed, 2 if weak else 0, next(indexes), strings.add(version), following
            )
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
