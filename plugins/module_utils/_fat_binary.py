# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""For which GPUs an object has device code, from its fat binaries. Private to the collection.

A fat binary is a header and entries, each PTX or machine code (SASS) of one architecture, compressed or not. The
section that holds them has hundreds of megabytes, of which only the headers are read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ansible_collections.gpufleet.dflash.plugins.module_utils._elf import ElfError, Image
from ansible_collections.gpufleet.dflash.plugins.module_utils._elf_sections import Section

MAGIC = b"\x50\xed\x55\xba\x01\x00"
# magic, version, size of this header, size of all entries
_HEADER = struct.Struct("<IHHQ")
# kind, version, size of this header, size of the code, ..., architecture
_ENTRY = struct.Struct("<HHIQ12xI")
_PTX = 1
_SASS = 2
_MAX_ENTRIES = 1024 * 1024
_NEWEST_ARCHITECTURE = 999
# Between two fat binaries there is seldom more.
_PADDING = 2048
_LARGEST_READ = 1024 * 1024
# cuFFT keeps its own in .ldata; a file without section headers has one nameless piece for each segment.
_SECTIONS = frozenset({".nv_fatbin", "__nv_relfatbin", ".ldata", ""})


class Architectures(NamedTuple):
    """Compute capabilities times ten: 90 is sm_90, or compute_90 for PTX; ``size`` is that of all code, in bytes."""

    sass: frozenset[int]
    ptx: frozenset[int]
    size: int = 0

    def runs_on(self, capability: int) -> bool:
        """Whether a GPU has something to run: machine code of its major up to its minor, or older PTX to compile."""
        return any(arch // 10 == capability // 10 and arch <= capability for arch in self.sass) or any(
            arch <= capability for arch in self.ptx
        )

    def __or__(self, other: Architectures) -> Architectures:
        return Architectures(self.sass | other.sass, self.ptx | other.ptx, self.size + other.size)

    def as_dict(self) -> dict[str, list[int]]:
        """The module's form."""
        return {"sass": sorted(self.sass), "ptx": sorted(self.ptx)}


def architectures_of(image: Image, data: Iterable[Section]) -> Architectures | None:
    """What the fat binaries in these sections were compiled for; None where there are none."""
    found: set[tuple[int, int]] = set()
    total = 0
    budget = _MAX_ENTRIES
    for section in data:
        if section.name not in _SECTIONS:
            continue
        for kind, architecture, size in _entries(image, section, budget):
            budget -= 1
            total += size
            found.add((kind, architecture))
    if not found:
        return None
    return Architectures(
        frozenset(architecture for kind, architecture in found if kind == _SASS),
        frozenset(architecture for kind, architecture in found if kind == _PTX),
        total,
    )


def _entries(image: Image, section: Section, budget: int) -> Iterator[tuple[int, int, int]]:
    """Kind, architecture and size of each entry, at most ``budget`` of them."""
    offset: int | None = section.offset
    end = section.offset + section.size
    while offset is not None and budget > 0:
        offset = _next_header(image, section, offset)
        if offset is None:
            return
        _magic, _version, header_size, size = _HEADER.unpack(image.file.read(offset, _HEADER.size, "a fat binary"))
        budget -= 1
        entry = offset + header_size
        stop = entry + size
        if header_size < _HEADER.size or stop > end:
            offset += len(MAGIC)
            continue
        while entry + _ENTRY.size <= stop and budget > 0:
            raw = image.file.read(entry, _ENTRY.size, "a fat binary's entry")
            kind, _version, header_size, code_size, architecture = _ENTRY.unpack(raw)
            if header_size < _ENTRY.size or entry + header_size + code_size > stop:
                break
            budget -= 1
            if kind in (_PTX, _SASS) and 0 < architecture <= _NEWEST_ARCHITECTURE:
                yield kind, architecture, code_size
            entry += header_size + code_size
        offset = stop


def _next_header(image: Image, section: Section, offset: int) -> int | None:
    """Where the next fat binary begins: as a rule right here, or after some padding."""
    end = section.offset + section.size
    count = len(MAGIC)
    try:
        while offset + _HEADER.size <= end:
            count = min(count, end - offset)
            found = image.file.read(offset, count, "a fat binary").find(MAGIC)
            if found >= 0:
                return offset + found if offset + found + _HEADER.size <= end else None
            # A magic may lie across the border; the window grows, for a long gap to cost few reads.
            offset += max(1, count - len(MAGIC))
            count = min(max(_PADDING, 4 * count), _LARGEST_READ)
    except ElfError:  # it shrinks while it is read
        pass
    return None
