# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read a lock: a pip requirements file with exact versions and hashes. Private to the collection."""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

from ansible_collections.gpufleet.dflash.plugins.module_utils._catalogue import normalise

_NAME = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*")
_PIN = re.compile(r"==\s*([A-Za-z0-9.!+_-]+)\s*\Z")
_HASH = re.compile(r"--hash[= ](\w+):([0-9A-Fa-f]+)(?=\s|\Z)")
_COMMENT = re.compile(r"(?:\A|\s)#.*")
_HEX_DIGITS = {"sha256": 64, "sha384": 96, "sha512": 128}


class LockError(Exception):
    """A lock that cannot be used; the text says where and what to do."""


class LockEntry(NamedTuple):
    """One pinned distribution of a lock."""

    name: str  # normalised as PEP 503 says
    version: str  # with its local tag, as written
    marker: str | None  # environment marker text, None: everywhere
    hashes: tuple[str, ...]  # "sha256:<hex>", sorted

    @property
    def pin(self) -> str:
        """The entry as ``name==version``."""
        return f"{self.name}=={self.version}"


def read_lock(text: str, where: str = "lock") -> tuple[LockEntry, ...]:
    """Return the entries of a lock, sorted by name.

    Raises LockError with every line that is not an exact pin with at least one hash (five are told): what is not
    pinned would make two builds of one lock differ.
    """
    entries: dict[tuple[str, str | None], LockEntry] = {}
    wrong: list[str] = []
    for number, line in _logical_lines(text):
        try:
            entry = _read_entry(line, f"{where}:{number}")
        except LockError as error:
            wrong.append(str(error))
            continue
        key = (entry.name, entry.marker)
        if entries.setdefault(key, entry) != entry:
            wrong.append(f"{entry.name} is pinned twice: {where}:{number}: keep one of the two lines")
    if wrong:
        more = [f"and {len(wrong) - 5} more lines"] if len(wrong) > 5 else []
        raise LockError("\n".join(wrong[:5] + more))
    if not entries:
        raise LockError(f"the lock holds no distribution: {where}: compile one with 'uv pip compile --generate-hashes'")
    return tuple(sorted(entries.values(), key=lambda entry: (entry.name, entry.marker or "")))


def lock_digest(entries: tuple[LockEntry, ...]) -> str:
    """Return the SHA-256 (hex) of what a lock says; comments, order and layout do not count."""
    lines = (f"{entry.pin};{entry.marker or ''} {' '.join(entry.hashes)}\n" for entry in entries)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def render_lock(entries: tuple[LockEntry, ...], exact: bool = False) -> str:
    """Return a lock that says just this: what is installed is what was read, and hashed, and nothing else.

    ``exact`` writes ``===``: where an index also has ``1.0+cu130``, an installer takes that for a newer ``1.0`` and
    then refuses its hash.
    """
    lines = []
    for entry in entries:
        marker = f" ; {entry.marker}" if entry.marker else ""
        pin = f"{entry.name}==={entry.version}" if exact else entry.pin
        lines.append(" ".join([f"{pin}{marker}", *(f"--hash={digest}" for digest in entry.hashes)]) + "\n")
    return "".join(lines)


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Join continued lines and drop comments; each line comes with the number it starts at."""
    logical: list[tuple[int, str]] = []
    pending, start = "", 0
    for number, raw in enumerate(text.replace("\r", "\n").split("\n"), 1):
        line = _COMMENT.sub("", raw).strip()
        start = start if pending else number
        if line.endswith("\\"):
            pending += line[:-1].rstrip() + " "
            continue
        line = (pending + line).strip()
        pending = ""
        if line:
            logical.append((start, line))
    if pending.strip():
        logical.append((start, pending.strip()))
    return logical


def _read_entry(line: str, where: str) -> LockEntry:
    shown = line.split("--hash")[0].strip()
    if line.startswith("-"):
        raise LockError(
            f"a lock holds pins only, not '{line.split()[0].split('=')[0]}': {where}: "
            "give the index in the options of the module, and inline the files that -r or -c name"
        )
    name = _NAME.match(line)
    if not name:
        raise LockError(f"not a requirement: {where}: '{shown[:80]}'")
    specifier, _sep, marker = shown[name.end() :].partition(";")
    if specifier.lstrip().startswith("["):  # extras choose nothing here: a lock is installed without dependencies
        specifier = specifier.partition("]")[2]
    pin = _PIN.match(specifier.strip())
    if not pin or "*" in specifier:
        raise LockError(f"{name.group(1)} is not pinned to one version: {where}: write '{name.group(1)}==<version>'")
    rest = _HASH.sub("", line[len(shown) :]).strip() if "--hash" in line else ""
    if rest:
        raise LockError(f"a lock holds pins and hashes only: {where}: '{rest[:60]}': remove that")
    hashes = tuple(sorted({_read_hash(algorithm, digest, where) for algorithm, digest in _HASH.findall(line)}))
    if not hashes:
        raise LockError(
            f"{name.group(1)} has no hash: {where}: compile the lock with 'uv pip compile --generate-hashes'"
        )
    return LockEntry(normalise(name.group(1)), pin.group(1), marker.strip() or None, hashes)


def _read_hash(algorithm: str, digest: str, where: str) -> str:
    if _HEX_DIGITS.get(algorithm) != len(digest):
        raise LockError(f"not a usable hash: {where}: '{algorithm}:{digest[:16]}': use sha256 and all its 64 digits")
    return f"{algorithm}:{digest.lower()}"
