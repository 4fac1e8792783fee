# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rows of a RECORD, read quickly and held compactly. Private to the collection.

An environment for serving has sixty thousand rows or more. A hundred bytes saved on each are megabytes on every host.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import itertools
import os
import re
from array import array
from collections.abc import Container, Iterable, Iterator
from typing import NamedTuple

from ansible_collections.gpufleet.dflash.plugins.module_utils._paths import canonical, open_regular

# Larger than the largest honest one, of a hundred thousand rows, by far.
_LIMIT = 256 * 1024 * 1024
_LONGEST_LINE = 64 * 1024
_MOST_ROWS = 1_000_000
_DIGEST = re.compile(r"sha256=[\w-]{43}$", re.ASCII)
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

    Directories and names are kept apart, so that the files of one directory share its text. Digests, which hardly
    anybody asks for, are read again when somebody does.
    """

    __slots__ = ("_digests", "_directories", "_file", "_lengths", "_names", "_sizes")

    def __init__(self, file: str = "") -> None:
        self._file = file
        # Each directory once for as many rows in a row as it has.
        self._directories: list[str] = []
        self._lengths = array("q")
        self._names: list[str] = []
        self._sizes = array("q")
        self._digests: list[str | None] | None = None

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[Row]:
        digests = self._read_digests()
        for (directory, name, size), digest in zip(self.sized(), digests):
            yield Row(f"{directory}/{name}", digest, size)

    def places(self) -> Iterable[tuple[str, str]]:
        """Directory and name of each row."""
        return zip(self._row_directories(), self._names)

    def sized(self) -> Iterator[tuple[str, str, int | None]]:
        """Directory, name and size of each row."""
        for directory, name, size in zip(self._row_directories(), self._names, self._sizes):
            yield directory, name, None if size == _NO_SIZE else size

    @property
    def total_size(self) -> int:
        """Bytes of all rows that tell their size."""
        return sum(size for size in self._sizes if size != _NO_SIZE)

    def _row_directories(self) -> Iterator[str]:
        return itertools.chain.from_iterable(map(itertools.repeat, self._directories, self._lengths))

    def rows_of(self, paths: Container[str]) -> Iterator[Row]:
        """The rows of some paths, in one pass: two distributions may share ten thousands of them."""
        for index, (directory, name, size) in enumerate(self.sized()):
            path = f"{directory}/{name}"
            if path in paths:
                yield Row(path, self._read_digests()[index], size)

    def _read_digests(self) -> list[str | None]:
        if self._digests is None:
            try:
                with open_lines(self._file) as lines:
                    self._digests = [digest or None for _path, digest, _size in _rows(lines, [])]
            except (OSError, ValueError):
                self._digests = []
            # A file that was replaced meanwhile says nothing about the rows that were read.
            if len(self._digests) != len(self):
                self._digests = [None] * len(self)
        return self._digests


def read_record(file: str, root: str) -> tuple[Record, str]:
    """The rows of a RECORD below ``root`` and, in words, what is wrong with the others (empty when nothing is).

    Raises OSError, and ValueError for what is no text.
    """
    record = Record(file)
    bad: list[int] = []
    known: dict[str, str] = {}
    with open_lines(file) as lines:
        for path, _digest, size in _rows(lines, bad):
            folder, _slash, name = path.rpartition("/")
            if name in _NO_NAMES or not folder and path[0] == "/":
                directory, _slash, name = canonical(os.path.join(root, path)).rpartition("/")
            else:
                directory = known.get(folder) or known.setdefault(folder, _directory(root, folder))
            if record._directories and record._directories[-1] == directory:
                record._lengths[-1] += 1
            else:
                record._directories.append(directory)
                record._lengths.append(1)
            record._names.append(name)
            record._sizes.append(size)
    if not record._names and not bad:
        return record, "is empty"
    if bad:
        return record, f"has {len(bad)} unreadable line(s), the first is line {bad[0]}"
    return record, ""


@contextlib.contextmanager
def open_lines(file: str) -> Iterator[Iterator[str]]:
    """The lines of a RECORD, one at a time: a whole one is a large part of the memory that the facts may take."""
    with open_regular(file) as stream:
        if os.fstat(stream.fileno()).st_size > _LIMIT:
            raise ValueError(f"is larger than {_LIMIT} bytes")
        text = io.TextIOWrapper(stream, encoding="utf-8", errors="strict")
        yield _bounded(iter(functools.partial(text.readline, _LONGEST_LINE), ""))


def _bounded(lines: Iterable[str]) -> Iterator[str]:
    """The lines as they are: the size of what a link in /proc leads to says nothing about how many there are."""
    for number, line in enumerate(lines):
        if "\0" in line or len(line) == _LONGEST_LINE:
            raise ValueError("is not text")
        if number == _MOST_ROWS:
            raise ValueError(f"has more than {_MOST_ROWS} lines")
        yield line


def _rows(lines: Iterable[str], bad: list[int]) -> Iterator[tuple[str, str, int]]:
    """Path, digest (empty for none) and size of each row; the numbers of lines that are none go to ``bad``."""
    for number, line in enumerate(lines, 1):
        line = line.rstrip("\r\n")
        if not line or line.isspace():
            continue
        fields = fields_of(line)
        content = _content(fields)
        if content is None:
            bad.append(number)
        else:
            yield (fields[0], *content)


def fields_of(line: str) -> list[str]:
    """The fields of one line without its end; they are quoted where a comma or a quote is in them."""
    return line.split(",") if '"' not in line else next(csv.reader([line]), [])


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
        digest = ""
    if not size:
        return digest, _NO_SIZE
    return (digest, int(size)) if size.isascii() and size.isdigit() and len(size) <= _SIZE_DIGITS else None


def _directory(root: str, folder: str) -> str:
    if folder.startswith("/") or ".." in folder or "//" in folder or "./" in f"{folder}/":
        return os.path.realpath(os.path.normpath(os.path.join(root, folder)))
    return f"{root}/{folder}" if folder else root
