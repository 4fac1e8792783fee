# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read-only data of one ELF file: its sections, or its segments where the section headers are stripped.

Private to the collection. Nothing in the section headers is trusted; headers that make no sense count as stripped.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from ansible_collections.gpufleet.dflash.plugins.module_utils._elf import ElfError, Image

_SHT_PROGBITS = 1
_SHF_ALLOC = 2
_SHF_EXECINSTR = 4
_MAX_SECTIONS = 65536
_MAX_NAMES = 16 * 1024 * 1024
_NO_NAME_TABLE = 0
# Code reaches its data over two gigabytes at most; device code may lie beyond.
_LARGEST_FILE = 4 * 1024**3
_CHUNK = 1024 * 1024


class Section(NamedTuple):
    """Bytes of a file that the linker maps; ``name`` is empty for a segment."""

    name: str
    offset: int
    size: int
    executable: bool


def data_of(image: Image) -> list[Section]:
    """The mapped sections with content of their own, or the segments of a file without section headers.

    At most as many bytes in all as the file has, and nothing of a file that is larger than any library: thousands of
    sections may lie over each other, and a terabyte of holes takes no space.
    """
    try:
        sections = _sections(image)
    except ElfError:
        sections = []
    sections = sections or [
        Section("", offset, min(end - start, image.file.size - offset), executable=False)
        for start, end, offset in image.segments
        if offset < image.file.size
    ]
    left = image.file.size if image.file.size <= _LARGEST_FILE else 0
    honest = []
    for section in sections:
        left -= section.size
        if left < 0:
            break
        honest.append(section)
    return honest


def _sections(image: Image) -> list[Section]:
    file, order, wide = image.file, image.byte_order, image.object.bits == 64
    # e_shoff, then e_flags to e_phnum, then e_shentsize, e_shnum and e_shstrndx
    at, layout = (40, "Q10xHHH") if wide else (32, "I10xHHH")
    fields = struct.Struct(order + layout)
    table, entry_size, count, names_index = fields.unpack(file.read(at, fields.size, "e_shoff"))
    # name, type, flags, address, offset, size
    entry = struct.Struct(order + ("IIQQQQ24x" if wide else "IIIIII16x"))
    if not table or not count or entry_size != entry.size or count > _MAX_SECTIONS or names_index >= count:
        return []
    entries = list(entry.iter_unpack(file.read(table, count * entry_size, "the section headers")))
    _name, _type, _flags, _address, offset, size = entries[names_index]
    if names_index == _NO_NAME_TABLE or size > _MAX_NAMES:
        return []
    names = file.read(offset, size, "the names of sections")
    return [
        Section(_text(names, name), offset, size, bool(flags & _SHF_EXECINSTR))
        for name, kind, flags, _address, offset, size in entries
        if kind == _SHT_PROGBITS and flags & _SHF_ALLOC and size and offset + size <= file.size
    ]


def _text(names: bytes, offset: int) -> str:
    end = names.find(b"\0", offset)
    return names[offset:end].decode("ascii", "replace") if end >= 0 else ""


def chunks(image: Image, section: Section, overlap: int) -> Iterator[tuple[int, bytes]]:
    """The section's bytes piece by piece with their offset in the file; each repeats the end of the one before."""
    end = section.offset + section.size
    offset = section.offset
    while offset < end:
        count = min(_CHUNK, end - offset)
        yield offset, image.file.read(offset, count, "a section")
        if offset + count >= end:
            return
        offset += max(count - overlap, 1)
