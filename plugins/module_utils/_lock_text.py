# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write a lock for people and version control: sorted, a hash a line. Private to the collection."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.gpufleet.dflash.plugins.module_utils._catalogue import normalise
from ansible_collections.gpufleet.dflash.plugins.module_utils._lock import LockEntry, LockError, read_lock

_DIGEST = re.compile(r"[0-9A-Fa-f]{64}")


def lock_text(entries: Iterable[LockEntry], header: Sequence[str] = ()) -> str:
    """The text of a lock, in the form that ``uv pip compile`` gives it; ``header`` are lines of comment."""
    lines = [f"# {line}".rstrip() for line in header]
    for entry in sorted(entries, key=lambda entry: (entry.name, entry.marker or "")):
        marker = f" ; {entry.marker}" if entry.marker else ""
        hashes = [f"    --hash={digest}" for digest in sorted(entry.hashes)]
        lines.append(" \\\n".join([entry.pin + marker, *hashes]))
    return "".join(line + "\n" for line in lines)


def lock_of_facts(
    facts: Mapping[str, Any], hashes: Mapping[str, Any] | None = None, leave_out: Collection[str] = ()
) -> str:
    """The text of a lock with what facts say is installed. Raises LockError.

    ``hashes`` is {name or name==version: digest or digests}; without it, pins without hashes are returned, for
    ``uv pip compile --no-deps --generate-hashes``.
    """
    going = {normalise(name) for name in leave_out}
    pins = {name: version for name, version in sorted(facts["distributions"].items()) if name not in going}
    if hashes is None:
        return "".join(f"{name}=={version}\n" for name, version in pins.items())
    known: dict[str, tuple[str, ...]] = {}
    for key, given in hashes.items():
        name, double, version = str(key).partition("==")
        found = tuple(_digest(digest, key) for digest in ([given] if isinstance(given, str) else given))
        if not double or version == pins.get(normalise(name)):
            known[normalise(name)] = (*known.get(normalise(name), ()), *found)
    without = [f"{name}=={version}" for name, version in pins.items() if not known.get(name)]
    if without:
        more = f" and {len(without) - 5} more" if len(without) > 5 else ""
        raise LockError(
            f"no hash is given for {', '.join(without[:5])}{more}: hashes: add them, or name the distributions in "
            "leave_out"
        )
    text = lock_text(LockEntry(name, version, None, tuple(set(known[name]))) for name, version in pins.items())
    read_lock(text)  # what nothing could read is not returned: names and versions come from a host
    return text


def _digest(digest: Any, key: str) -> str:
    text = str(digest).lower().removeprefix("sha256:") if isinstance(digest, str) else ""
    if not _DIGEST.fullmatch(text):
        raise LockError(f"not a SHA-256: hashes: '{digest}' of {key}: give sha256: and 64 hexadecimal digits")
    return f"sha256:{text}"
