# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A readable form of a C++ symbol: its qualified name without templates and arguments. Private to the collection."""

from __future__ import annotations

import re

_NESTED = re.compile(r"_Z(?:T[VIS])?N[rVK]*[RO]?(?=\d)")
_PLAIN = re.compile(r"_Z(?=\d)")
_LENGTH = re.compile(r"[1-9]\d{0,3}")


def readable(symbol: str) -> str:
    """``c10::cuda::c10_cuda_check_implementation`` of a mangled name; the symbol itself where that takes more."""
    names = qualified_name(symbol)
    return "::".join(names) if names else symbol


def qualified_name(symbol: str) -> list[str]:
    """The parts of a mangled C++ name, as far as they are plain identifiers; empty for any other symbol."""
    start = _NESTED.match(symbol)
    many = start is not None
    start = start or _PLAIN.match(symbol)
    if start is None:
        return []
    names: list[str] = []
    position = start.end()
    while many or not names:
        length = _LENGTH.match(symbol, position)
        if length is None:
            break
        begin = length.end()
        position = begin + int(length[0])
        if position > len(symbol):
            return []
        names.append(symbol[begin:position])
    return names
