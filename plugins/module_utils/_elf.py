# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read what the dynamic linker reads of one ELF file. Private to the collection.

Only the ELF header, the program headers and what PT_DYNAMIC points to are read: section headers may be
stripped and the linker never looks at them. Nothing in the file is trusted: each size, offset
and count is checked and each chain is bounded.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

from ansible_collections.gpufleet.dflash.plugins.module_utils._elf_file import (
    Blocks,
    ElfError,
    NotElf,
    require_regular,
    status_of,
)

__all__ = [
    "DF_1_NODEFLIB",
    "DF_1_NOOPEN",
    "DF_1_PIE",
    "ET_DYN",
    "ET_EXEC",
    "VERSION_HIDDEN",
    "VERSION_INDEX",
    "Blocks",
    "ElfError",
    "ElfObject",
    "Image",
    "NotElf",
    "read_descriptor",
    "read_image",
    "read_object",
]

ET_EXEC = 2
ET_DYN = 3
DF_1_NODEFLIB = 0x800
DF_1_NOOPEN = 0x40
DF_1_PIE = 0x08000000

_PT_LOAD = 1
_PT_DYNAMIC = 2
_PT_INTERP = 3

_DT_NULL = 0
_DT_NEEDED = 1
_DT_STRTAB = 5
_DT_SONAME = 14
_DT_RPATH = 15
_DT_RUNPATH = 29
_DT_FLAGS_1 = 0x6FFFFFFB
_DT_VERDEF = 0x6FFFFFFC
_DT_VERDEFNUM = 0x6FFFFFFD
_DT_VERNEED = 0x6FFFFFFE
_DT_VERNEEDNUM = 0x6FFFFFFF

_VER_FLG_BASE = 1
_VER_FLG_WEAK = 2
# The halves of an entry of DT_VERSYM and of the index that a version need gives.
VERSION_INDEX = 0x7FFF
VERSION_HIDDEN = 0x8000

# Far above every real library and low enough that a hostile file costs milliseconds, not minutes or
# gigabytes.
_MAX_DYNAMIC_ENTRIES = 16384
_MAX_VERSION_ENTRIES = 65536
_MAX_ALL_STRINGS = 8 * 1024 * 1024


class ElfObject(NamedTuple):
    """The dynamic linker's view of one ELF file.

    ``rpath`` and ``runpath`` are the raw strings, or None where the tag is absent (an empty string is
    present). ``version_needs`` maps a needed file's name to its ``(version, weak)`` pairs; ``version_defs``
    holds every defined version name as the linker compares them, so with the base one (usually the soname),
    and is empty where there is no version information. ``truncated`` is true when a segment reaches past the
    end of the file.
    """

    path: str
    bits: int
    byteorder: str
    machine: int
    type: int
    interpreter: str | None
    soname: str | None
    needed: tuple[str, ...]
    rpath: str | None
    runpath: str | None
    flags_1: int
    version_needs: dict[str, tuple[tuple[str, bool], ...]]
    version_defs: tuple[str, ...]
    has_segments: bool
    has_dynamic: bool
    truncated: bool


class Image(NamedTuple):
    """An open object: its bytes, and where the dynamic section says that its tables are.

    ``segments`` are the address, the end and the offset of each PT_LOAD. ``versions`` maps the index that
    DT_VERSYM gives a symbol to the version's name and whether it is a hidden one; a base definition is not in it.
    """

    object: ElfObject
    file: Blocks
    segments: tuple[tuple[int, int, int], ...]
    tags: dict[int, int]
    versions: dict[int, tuple[str, bool]]

    @property
    def byte_order(self) -> str:
        """The byte order as ``struct`` writes it."""
        return "<" if self.object.byteorder == "little" else ">"

    def offset_of(self, address: int, what: str) -> int:
        """Where an address of the loaded object lies in the file. Raises ElfError."""
        return _offset_of(self.segments, address, what, self.file.path)


def _offset_of(segments: Iterable[tuple[int, int, int]], address: int, what: str, path: str) -> int:
    for start, end, offset in segments:
        if start <= address < end:
            return address - start + offset
    raise ElfError(path, f"{what} at address {address:#x} is in no PT_LOAD segment")


def read_object(path: str) -> ElfObject:
    """Return what the dynamic linker would learn from ``path``.

    Raises NotElf for anything that is no ELF file, ElfError for a damaged one, OSError when it cannot be
    opened or read. Never blocks: a pipe or a device is told by its file type and not opened.
    """
    # A look before opening: merely opening a device or a pipe can have effects of its own.
    require_regular(path, status_of(path).st_mode)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        return read_descriptor(fd, path)
    finally:
        os.close(fd)


def read_descriptor(fd: int, path: str) -> ElfObject:
    """Like read_object, for a file that is open already; ``path`` only names it."""
    return read_image(fd, path).object


def read_image(fd: int, path: str) -> Image:
    """Like read_descriptor, with what finds further tables while the file is open."""
    status = os.fstat(fd)
    require_regular(path, status.st_mode)
    return _Parser(Blocks(fd, status.st_size, path)).parse()


class _Layout:
    """How structures are laid out for one class (32 or 64 bit) and byte order."""

    def __init__(self, bits: int, order: str) -> None:
        wide = bits == 64
        # e_type e_machine ... e_phoff ... e_phentsize e_phnum
        self.header = struct.Struct(order + ("16xHHIQQQIHHH" if wide else "16xHHIIIIIHHH"))
        self.program_header = struct.Struct(order + ("IIQQQQQQ" if wide else "IIIIIIII"))
        # type, offset, address, size in the file
        self.program_fields = (0, 2, 3, 5) if wide else (0, 1, 2, 4)
        self.dynamic = struct.Struct(order + ("QQ" if wide else "II"))
        self.verneed = struct.Struct(order + "HHIII")
        self.vernaux = struct.Struct(order + "IHHII")
        self.verdef = struct.Struct(order + "HHHHIII")
        self.verdaux = struct.Struct(order + "II")


_LAYOUTS = {
    (elf_class, data): (bits, name, _Layout(bits, order))
    for elf_class, bits in ((1, 32), (2, 64))
    for data, name, order in ((1, "little", "<"), (2, "big", ">"))
}


class _Parser:
    """One pass over one file."""

    def __init__(self, file: Blocks) -> None:
        self._file = file
        self._path = file.path
        self._segments: list[tuple[int, int, int]] = []  # address, end of its file image, offset
        self._strings = 0
        self._string_bytes = 0
        self._version_entries = 0
        self._versions: dict[int, tuple[str, bool]] = {}

    def parse(self) -> Image:
        bits, byteorder = self._read_identification()
        elf_type, machine, headers = self._read_headers()
        interpreter = None
        dynamic_segment = None
        truncated = False
        for kind, offset, address, size in headers:
            if kind == _PT_LOAD:
                self._segments.append((address, address + size, offset))
                truncated = truncated or offset + size > self._file.size
            elif kind == _PT_INTERP:
                interpreter = os.fsdecode(self._file.string(offset))
            elif kind == _PT_DYNAMIC and size:  # debug files keep an empty one
                dynamic_segment = (address, size)
        tags, needed = self._read_dynamic(dynamic_segment) if dynamic_segment else ({}, [])
        if _DT_STRTAB in tags:
            self._strings = self._offset_of(tags[_DT_STRTAB], "DT_STRTAB")
        elif any(tag in tags for tag in (_DT_SONAME, _DT_RPATH, _DT_RUNPATH, _DT_VERNEED, _DT_VERDEF)) or needed:
            raise ElfError(self._path, "the dynamic section names strings but has no DT_STRTAB")
        elf_object = ElfObject(
            path=self._path,
            bits=bits,
            byteorder=byteorder,
            machine=machine,
            type=elf_type,
            interpreter=interpreter,
            soname=self._optional_string(tags, _DT_SONAME),
            needed=tuple(self._string(offset) for offset in needed),
            rpath=self._optional_string(tags, _DT_RPATH),
            runpath=self._optional_string(tags, _DT_RUNPATH),
            flags_1=tags.get(_DT_FLAGS_1, 0),
            version_needs=self._read_version_needs(tags),
            version_defs=self._read_version_defs(tags),
            has_segments=bool(self._segments),
            has_dynamic=dynamic_segment is not None,
            truncated=truncated,
        )
        return Image(elf_object, self._file, tuple(self._segments), tags, self._versions)

    def _read_identification(self) -> tuple[int, str]:
        if self._file.size < 6 or self._file.read(0, 4, "magic") != b"\x7fELF":
            raise NotElf(self._path, "is not an ELF file" if self._file.size else "is empty")
        elf_class, data = self._file.read(4, 2, "e_ident")
        try:
            bits, byteorder, self._layout = _LAYOUTS[elf_class, data]
        except KeyError:
            raise ElfError(self._path, f"unknown ELF class {elf_class} or data encoding {data}") from None
        return bits, byteorder

    def _read_headers(self) -> tuple[int, int, list[tuple[int, int, int, int]]]:
        """Return e_type, e_machine and each program header's type, offset, address and size in the file."""
        layout = self._layout
        header = layout.header.unpack(self._file.read(0, layout.header.size, "the ELF header"))
        elf_type, machine, _version, _entry, table, _sections, _flags, _size, entry_size, count = header
        if not count:
            return elf_type, machine, []
        if entry_size != layout.program_header.size:
            raise ElfError(self._path, f"e_phentsize is {entry_size}, not {layout.program_header.size}")
        raw = self._file.read(table, entry_size * count, "the program header table")
        kind, offset, address, size = layout.program_fields
        headers = [
            (entry[kind], entry[offset], entry[address], entry[size])
            for entry in layout.program_header.iter_unpack(raw)
        ]
        return elf_type, machine, headers

    def _offset_of(self, address: int, what: str) -> int:
        return _offset_of(self._segments, address, what, self._path)

    def _read_dynamic(self, segment: tuple[int, int]) -> tuple[dict[int, int], list[int]]:
        """Return the tags (the last of a kind counts, as for the linker) and the string offsets of each
        DT_NEEDED.
        """
        address, size = segment
        offset = self._offset_of(address, "PT_DYNAMIC")
        # The linker goes on until DT_NULL; what lies past p_filesz or the file's end reads as zero, which is
        # DT_NULL.
        entry_size = self._layout.dynamic.size
        count = min(size, max(0, self._file.size - offset)) // entry_size
        raw = self._file.read(offset, min(count, _MAX_DYNAMIC_ENTRIES) * entry_size, "PT_DYNAMIC")
        tags: dict[int, int] = {}
        needed: list[int] = []
        for tag, value in self._layout.dynamic.iter_unpack(raw):
            if tag == _DT_NULL:
                return tags, needed
            if tag == _DT_NEEDED:
                needed.append(value)
            else:
                tags[tag] = value
        if count > _MAX_DYNAMIC_ENTRIES:
            raise ElfError(self._path, f"the dynamic section has more than {_MAX_DYNAMIC_ENTRIES} entries")
        return tags, needed

    def _string(self, offset: int) -> str:
        raw = self._file.string(self._strings + offset)
        self._string_bytes += len(raw)
        if self._string_bytes > _MAX_ALL_STRINGS:
            raise ElfError(self._path, f"its names are longer than {_MAX_ALL_STRINGS} bytes in all")
        return os.fsdecode(raw)

    def _optional_string(self, tags: dict[int, int], tag: int) -> str | None:
        return self._string(tags[tag]) if tag in tags else None

    def _record(self, layout: struct.Struct, offset: int, what: str) -> tuple[Any, ...]:
        self._version_entries += 1
        if self._version_entries > _MAX_VERSION_ENTRIES:
            raise ElfError(self._path, f"has more than {_MAX_VERSION_ENTRIES} version records")
        return layout.unpack(self._file.read(offset, layout.size, what))

    def _read_version_needs(self, tags: dict[int, int]) -> dict[str, tuple[tuple[str, bool], ...]]:
        needs: dict[str, list[tuple[str, bool]]] = {}
        if _DT_VERNEED not in tags:
            return {}
        offset = self._offset_of(tags[_DT_VERNEED], "DT_VERNEED")
        for _index in range(tags.get(_DT_VERNEEDNUM, 0)):
            _version, count, file, first, following = self._record(self._layout.verneed, offset, "a DT_VERNEED record")
            needs.setdefault(self._string(file), []).extend(self._read_needed_versions(offset + first, count))
            if not following:
                break
            offset += following
        return {file: tuple(versions) for file, versions in needs.items()}

    def _read_needed_versions(self, offset: int, count: int) -> list[tuple[str, bool]]:
        versions = []
        for _number in range(count):
            _hash, flags, index, name, following = self._record(self._layout.vernaux, offset, "a version need")
            versions.append((self._string(name), bool(flags & _VER_FLG_WEAK)))
            self._versions[index & VERSION_INDEX] = (versions[-1][0], bool(index & VERSION_HIDDEN))
            if not following:
                break
            offset += following
        return versions

    def _read_version_defs(self, tags: dict[int, int]) -> tuple[str, ...]:
        definitions = []
        if _DT_VERDEF not in tags:
            return ()
        offset = self._offset_of(tags[_DT_VERDEF], "DT_VERDEF")
        for _number in range(tags.get(_DT_VERDEFNUM, 0)):
            record = self._record(self._layout.verdef, offset, "a DT_VERDEF record")
            _version, flags, index, _count, _hash, first, following = record
            name, _next = self._record(self._layout.verdaux, offset + first, "a version name")
            definitions.append(self._string(name))
            if not flags & _VER_FLG_BASE:
                self._versions[index & VERSION_INDEX] = (definitions[-1], False)
            if not following:
                break
            offset += following
        return tuple(definitions)
