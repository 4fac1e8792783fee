# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Texts for people and words for their shell. Private to the collection.

Names of files and distributions and the words of errors come from anybody: printed as they are they could rule the
terminal, and typed as they are they could be another command.
"""

from __future__ import annotations

import re
import shlex

# C0 without line feed, DEL, C1, what turns the direction of writing around, and halves of characters.
_UNPRINTABLE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """The text with control characters and undecodable bytes spelled out."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def shell_word(text: str) -> str:
    """The text as one word of a command line; control characters are spelled out as bash and zsh read them."""
    if not _CONTROL.search(text):
        return shlex.quote(text)
    plain = text.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", plain) + "'"
