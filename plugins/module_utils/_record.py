# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rows of a RECORD, read quickly and held compactly. Private to the collection.

An environment for serving has sixty thousand rows or more. A hundred bytes saved on each are megabytes on every host.
"""

from __future__ import annotations

import csv
import os
import re
from array import array
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ansible_collections.gpufleet.dflash.plugins.module_utils._paths import canonical

_DIGEST_LENGTH = 43
_DIGEST = re.compile(rf"sha256=[\w-]{{{_DIGEST_LENGTH}}}$", re.ASCII)
_NO_DIGEST = " " * _DIGEST_LENGTH
_NO_SIZE = -1
_NO_NAMES = frozenset({"", ".", ".."})
# No file is larger, and no number that long fits where sizes are kept.
_SIZE_DIGITS = 18


class Row(NamedTuple):
    """One line of RECORD: absolute path, digest as spelled there (URL-safe base64 of SHA-256), size in bytes.

    The last two are None where RECORD does not tell.
    """

    path: str
    digest: str | None
    size: int | None


class Record:
    """What one distribution recorded: an iterable of Row, in the file's order.

    Directories and names are kept apart, so that the files of one directory share its text.
    """

    __slots__ = ("_digests", "_directories", "_names", "_sizes")

    def __init__(self) -> None:
        self._directories: list[str] = []
        self._names: list[str] = []
        self._digests = ""
        self._sizes = array("q")

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[Row]:
        for index, (directory, name) in enumerate(zip(self._directories, self._names)):
            yield Row(f"{directory}/{name}", *self._content(index))

    def places(self) -> Iterable[tuple[str, str]]:
        """Directory and name of each row."""
        return zip(self._directories, self._names)

    def sized(self) -> Iterator[tuple[str, str, int | None]]:
        """Directory, name and size of each row."""
        for directory, name, size in zip(self._directories, self._names, self._sizes):
            yield directory, name, None if size == _NO_SIZE else size

    def rows_of(self, path: str) -> Iterator[Row]:
        """The rows of one path: one, in an honest file."""
        directory, _slash, name = path.rpartition("/")
        for index, (its_directory, its_name) in enumerate(zip(self._directories, self._names)):
            if its_name == name and its_directory == directory:
                yield Row(path, *self._content(index))

    def _content(self, index: int) -> tuple[str | None, int | None]:
        digest = self._digests[index * _DIGEST_LENGTH : (index + 1) * _DIGEST_LENGTH]
        size = self._sizes[index]
        return None if digest == _NO_DIGEST else digest, None if size == _NO_SIZE else size


def parse_record(lines: Iterable[str], root: str) -> tuple[Record, str]:
    """The rows of a RECORD below ``root`` and, in words, what is wrong with the others (empty when nothing is)."""
    record = Record()
    digests: list[str] = []
    bad: list[int] = []
    empty = True
    known: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        line = line.rstrip("\r\n")
        if not line:
            continue
        empty = empty and line.isspace()
        fields = line.split(",") if '"' not in line else next(csv.reader([line]), [])
        content = _content(fields)
        if content is None:
            bad.append(number)
            continue
        folder, _slash, name = fields[0].rpartition("/")
        if name in _NO_NAMES or not folder and line[0] == "/":
            directory, _slash, name = canonical(os.path.join(root, fields[0])).rpartition("/")
        else:
            directory = known.get(folder) or known.setdefault(folder, _directory(root, folder))
        record._directories.append(directory)
        record._names.append(name)
        record._sizes.append(content[1])
        digests.append(content[0])
    record._digests = "".join(digests)
    if empty:
        return record, "is empty"
    if bad:
        return record, f"has {len(bad)} unreadable line(s), the first is line {bad[0]}"
    return record, ""


def _content(fields: list[str]) -> tuple[str, int] | None:
    """Digest and size of a line's fields; None for what is no row."""
    if len(fields) != 3 or not fields[0]:
        return None
    _path, digest, size = fields
    if digest.startswith("sha256="):
        if not _DIGEST.match(digest):
            return None
        digest = digest[7:]
    else:
        digest = _NO_DIGEST
    if not size:
        return digest, _NO_SIZE
    return (digest, int(size)) if size.isascii() and size.isdigit() and len(size) <= _SIZE_DIGITS else None


def _directory(root: str, folder: str) -> str:
    if folder.startswith("/") or ".." in folder or "//" in folder or "./" in f"{folder}/":
        return os.path.realpath(os.path.normpath(os.path.join(root, folder)))
    return f"{root}/{folder}" if folder else root
