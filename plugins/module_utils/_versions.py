# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether an installed version is the one that a lock pins, as PEP 440 says. Private to the collection.

Targets have no ``packaging``; a pin needs equality only, a flag the order of releases, neither of them ranges.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_VERSION = re.compile(
    r"""v?(?:(?P<epoch>\d+)!)?(?P<release>\d+(?:\.\d+)*)
    (?:[-_.]?(?P<pre>alpha|beta|preview|pre|rc|a|b|c)[-_.]?(?P<pre_number>\d*))?
    (?:-(?P<bare_post>\d+)|[-_.]?(?P<post>post|rev|r)[-_.]?(?P<post_number>\d*))?
    (?:[-_.]?(?P<dev>dev)[-_.]?(?P<dev_number>\d*))?
    (?:\+(?P<local>[a-z0-9]+(?:[-_.][a-z0-9]+)*))?\s*\Z""",
    re.VERBOSE | re.ASCII,
)
_PRE = {"alpha": "a", "beta": "b", "c": "rc", "pre": "rc", "preview": "rc"}


class _Version(NamedTuple):
    """What two spellings of one version have in common."""

    epoch: int
    release: tuple[int, ...]
    pre: tuple[str, int] | None
    post: int | None
    dev: int | None
    local: tuple[str, ...] | None


def fulfils_pin(installed: str, pin: str) -> bool:
    """Whether ``installed`` is what ``==pin`` asks for.

    A pin without a local tag accepts any build of its version, one with a tag only that build. What is no
    version of PEP 440 is compared letter by letter.
    """
    found, wanted = _read(installed), _read(pin)
    if found is None or wanted is None:
        return installed.strip().lower() == pin.strip().lower()
    if wanted.local is None:
        found = found._replace(local=None)
    return found == wanted


def same_version(one: str, other: str) -> bool:
    """Whether two spellings name one version, local tag and all."""
    read = _read(one)
    return read == _read(other) if read is not None else one.strip().lower() == other.strip().lower()


def release_of(version: str) -> tuple[int, tuple[int, ...]] | None:
    """Epoch and release, which compare as numbers, without trailing zeros; None for what is no version of PEP 440.

    Pre-releases, post-releases and local builds have those of the version that they lead to or were made from.
    """
    read = _read(version)
    return (read.epoch, read.release) if read else None


def local_tag(version: str) -> str | None:
    """The local tag, as in ``2.11.0+cu130``; None without one."""
    return version.partition("+")[2] or None


def _read(text: str) -> _Version | None:
    match = _VERSION.match(text.strip().lower())
    if match is None:
        return None
    release = [int(part) for part in match["release"].split(".")]
    while len(release) > 1 and release[-1] == 0:
        release.pop()
    pre = match["pre"]
    post = match["bare_post"] or (match["post_number"] or "0" if match["post"] else None)
    return _Version(
        int(match["epoch"] or 0),
        tuple(release),
        (_PRE.get(pre, pre), int(match["pre_number"] or 0)) if pre else None,
        int(post) if post is not None else None,
        int(match["dev_number"] or 0) if match["dev"] else None,
        tuple(_local_part(part) for part in re.split(r"[-_.]", match["local"])) if match["local"] else None,
    )


def _local_part(part: str) -> str:
    return str(int(part)) if part.isdigit() else part
