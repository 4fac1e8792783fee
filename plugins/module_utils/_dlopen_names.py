# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Names of libraries that an object may dlopen, from the strings in its data. Private to the collection."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ansible_collections.gpufleet.dflash.plugins.module_utils._elf import Image
from ansible_collections.gpufleet.dflash.plugins.module_utils._elf_sections import Section, chunks

_SECTION = re.compile(r"(\.l?rodata|\.data\.rel\.ro|\.data)(\.|$)")
_LONGEST = 128
_MOST = 1000
_MOST_IN_A_PIECE = 10_000
# What stands between two NULs, without a directory: libcudnn_graph.so, libnvrtc.so.13, libnvrtc.so.%d.
_NAME = re.compile(rb"lib[\w+.-]{1,100}?\.so(?:\.[\w%.]{1,16})?")


def dlopen_names(image: Image, data: Iterable[Section]) -> list[str]:
    """Library names among the object's NUL-terminated strings, sorted; without its own and those it needs anyway."""
    found: set[bytes] = set()
    for section in data:
        if section.executable or (section.name and not _SECTION.match(section.name)):
            continue
        for offset, piece in chunks(image, section, _LONGEST):
            _collect(piece, found, begins=offset == section.offset)
    known = {*image.object.needed, image.object.soname}
    return [name for name in sorted(each.decode("ascii", "replace") for each in found) if name not in known][:_MOST]


def _collect(piece: bytes, found: set[bytes], *, begins: bool) -> None:
    """Add the names in one piece of a section; one that ``begins`` it may begin with a name."""
    at = piece.find(b".so")
    # A hostile piece is full of them; libraries have a few thousand in all.
    for _number in range(_MOST_IN_A_PIECE):
        if at < 0 or len(found) >= _MOST:
            return
        start = piece.rfind(b"\0", max(0, at - _LONGEST), at) + 1
        end = piece.find(b"\0", at, at + _LONGEST)
        if (start or (begins and at < _LONGEST)) and end >= 0:
            text = piece[start:end]
            if text.startswith(b"lib") and _NAME.fullmatch(text):
                found.add(text)
        at = piece.find(b".so", max(at + 3, end))
