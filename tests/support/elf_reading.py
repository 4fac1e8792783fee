# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What pyelftools reads from an object, in the form of our own reader."""

from __future__ import annotations

import struct
from typing import IO, Any, cast

from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerDefSection, GNUVerNeedSection
from elftools.elf.segments import InterpSegment

from ansible_collections.gpufleet.dflash.plugins.module_utils._elf import read_object


def as_pyelftools_reads(path: str) -> dict[str, Any]:
    """The fields of an ElfObject, by pyelftools."""
    with open(path, "rb") as file:
        elf = ELFFile(file)
        answer: dict[str, Any] = {
            "bits": elf.elfclass,
            "byteorder": "little" if elf.little_endian else "big",
            "machine": _machine(file, elf.little_endian),
            "interpreter": None,
            "soname": None,
            "needed": (),
            "rpath": None,
            "runpath": None,
            "flags_1": 0,
            "version_needs": {},
            "version_defs": (),
        }
        for segment in elf.iter_segments():
            if segment["p_type"] == "PT_INTERP":
                answer["interpreter"] = cast(InterpSegment, segment).get_interp_name()
            if isinstance(segment, DynamicSegment) and segment["p_filesz"]:
                for tag in segment.iter_tags():
                    _take_tag(answer, tag)
        for section in elf.iter_sections():
            if section["sh_type"] == "SHT_NOBITS":
                continue
            if isinstance(section, GNUVerNeedSection):
                for need, versions in section.iter_versions():
                    pairs = tuple((version.name, bool(version["vna_flags"] & 2)) for version in versions)
                    answer["version_needs"][need.name] = answer["version_needs"].get(need.name, ()) + pairs
            if isinstance(section, GNUVerDefSection):
                answer["version_defs"] = tuple(next(iter(names)).name for _definition, names in section.iter_versions())
        return answer


def _machine(file: IO[bytes], little_endian: bool) -> int:
    file.seek(18)
    return int(struct.unpack("<H" if little_endian else ">H", file.read(2))[0])


def _take_tag(answer: dict[str, Any], tag: Any) -> None:
    kind = tag.entry.d_tag
    if kind == "DT_NEEDED":
        answer["needed"] += (tag.needed,)
    elif kind in ("DT_SONAME", "DT_RPATH", "DT_RUNPATH"):
        answer[kind[3:].lower()] = getattr(tag, kind[3:].lower())
    elif kind == "DT_FLAGS_1":
        answer["flags_1"] = tag.entry.d_val


def read_fields(path: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The same fields, by our own reader."""
    found = read_object(path)
    return {name: getattr(found, name) for name in fields}
