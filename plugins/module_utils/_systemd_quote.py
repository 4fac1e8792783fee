# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write values so that systemd reads them back as they are: systemd.syntax(7), systemd.service(5). Private."""

from __future__ import annotations

import re

_PLAIN = re.compile(r"[A-Za-z0-9_./:=,@+-]+\Z")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def quote_argument(value: str) -> str:
    """Return a value as one word of ExecStart=; a dollar sign would start a variable there."""
    return _quote(value.replace("$", "$$"))


def quote_assignment(value: str) -> str:
    """Return ``NAME=value`` as one word of Environment=, where a dollar sign is itself.

    Raises ValueError for a name that systemd would ignore together with its value.
    """
    name = value.partition("=")[0]
    if not _NAME.match(name):
        raise ValueError(f"not a name of an environment variable: {name!r}: use letters, digits and underscores")
    return _quote(value)


def _quote(value: str) -> str:
    odd = next((character for character in value if ord(character) < 32 and character not in _ESCAPES), None)
    if odd is not None:
        raise ValueError(f"a control character (code {ord(odd)}) cannot stand in a systemd unit: {value!r}")
    if _PLAIN.match(value):
        return value
    # A percent sign starts a specifier in both.
    return '"' + "".join(_ESCAPES.get(character, character) for character in value.replace("%", "%%")) + '"'
