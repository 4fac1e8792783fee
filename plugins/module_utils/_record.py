# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rows of a RECORD, read quickly and held compactly. Private to the collection.

An environment for serving has sixty thousand rows or more. A hundred bytes or a microsecond saved on each count on
every host.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import os
import re
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ansible_collections.gpufleet.dflash.plugins.module_utils._paths import canonical, open_regular

# What the installer writes into a dist-info, which tells how it was installed and not what.
INSTALLERS_OWN = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json"})
# Larger than the largest honest one, of a hundred thousand rows, by far.
_LIMIT = 256 * 1024 * 1024
_LONGEST_LINE = 64 * 1024
_MOST_ROWS = 1_000_000
_DIGEST = re.compile(r"sha256=[\w-]{43}$", re.ASCII)
# A row without quotes, as installers write nearly all: many at once take a third of the time of one after the other.
# Where a line is none, a match spans two, and there are fewer matches than lines.
_PLAIN = re.compile(r"^([^,]+),(?:sha256=([\w-]{43}))?,([0-9]{0,18})$", re.ASCII | re.MULTILINE)
# In place of a size that RECORD does not tell.
NO_SIZE = -1
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


class Folder:
    """The names of rows that follow each other in one directory, as one text with a slash around each."""

    __slots__ = ("directory", "names")

    def __init__(self, directory: str, names: Iterable[str]) -> None:
        self.directory = directory
        self.names = f"/{'/'.join(names)}/"

    def __contains__(self, name: str) -> bool:
        return f"/{name}/" in self.names

    def split(self) -> list[str]:
        """The names, one by one."""
        return self.names[1:-1].split("/")


class Record:
    """What one distribution recorded: an iterable of Row, in the file's order.

    The names of the rows that follow each other in one directory are one text: sixty thousand texts are the largest
    part of the memory of the facts. Digests, which hardly anybody asks for, are read again when somebody does.
    """

    __slots__ = ("_digests", "_file", "_folders", "_root", "_sizes", "content")

    def __init__(self, file: str = "", root: str = "") -> None:
        self._file = file
        self._root = root
        self._folders: list[Folder] = []
        self._sizes = array("q")
        self._digests: list[str | None] | None = None
        # SHA-256 of the names and the digests of what is below the root, in hexadecimal.
        self.content = _digest_of([])

    def __len__(self) -> int:
        return len(self._sizes)

    def __iter__(self) -> Iterator[Row]:
        digests = iter(self._read_digests())
        for directory, names, sizes in self.runs():
            for name, size, digest in zip(names, sizes, digests):
                yield Row(f"{directory}/{name}", digest, told(size))

    def _add(self, directory: str, names: Sequence[str]) -> None:
        if names:
            self._folders.append(Folder(directory, names))

    def folders(self) -> Sequence[Folder]:
        """The rows' directories, each once for as many rows in a row as it has."""
        return self._folders

    def runs(self) -> Iterator[tuple[str, list[str], array[int]]]:
        """The rows that follow each other in one directory: it, their names, and their sizes or NO_SIZE."""
        end = 0
        for folder in self._folders:
            names = folder.split()
            start, end = end, end + len(names)
            yield folder.directory, names, self._sizes[start:end]

    def below(self, directory: str) -> str | None:
        """A directory's path from the root, empty or ending with a slash; None for one elsewhere."""
        if directory.startswith(f"{self._root}/"):
            return f"{directory[len(self._root) + 1 :]}/"
        return "" if directory == self._root else None

    @property
    def total_size(self) -> int:
        """Bytes of all rows that tell their size."""
        return sum(size for size in self._sizes if size != NO_SIZE)

    def rows_of(self, paths: Collection[str]) -> Iterator[Row]:
        """The rows of some paths, in one pass: two distributions may share ten thousands of them."""
        directories = {path.rpartition("/")[0] for path in paths}
        end = 0
        for directory, names, sizes in self.runs():
            start, end = end, end + len(names)
            for index, name in enumerate(names, start) if directory in directories else ():
                path = f"{directory}/{name}"
                if path in paths:
                    yield Row(path, self._read_digests()[index], told(sizes[index - start]))

    def content_with(self, differing: Mapping[str, str]) -> str:
        """``content`` with other words than the recorded digests for some absolute paths."""
        return self._content_of([differing.get(row.path) or row.digest or "" for row in self])

    def _content_of(self, digests: Sequence[str]) -> str:
        """Scripts and byte-compiled files do not count: they differ from venv to venv."""
        lines: list[str] = []
        own = os.path.basename(os.path.dirname(self._file)) + "/"
        end = 0
        for directory, names, _sizes in self.runs():
            start, end = end, end + len(names)
            below = self.below(directory)
            if below is not None:
                left_out = INSTALLERS_OWN if below == own else ()
                lines += [
                    f"{below}{name}\0{digest or None}\n"
                    for name, digest in zip(names, digests[start:end])
                    if name not in left_out and not name.endswith(".pyc")
                ]
        lines.sort()
        return _digest_of(lines)

    def _read_digests(self) -> list[str | None]:
        if self._digests is None:
            try:
                with _open_batches(self._file) as batches:
                    self._digests = [digest or None for rows in _rows(batches, []) for _path, digest, _size in rows]
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
    record = Record(file, root)
    bad: list[int] = []
    digests: list[str] = []
    names: list[str] = []
    directory = ""
    current = None
    known: dict[str, str] = {}
    with _open_batches(file) as batches:
        for rows in _rows(batches, bad):
            for path, _digest, _size in rows:
                folder, _slash, name = path.rpartition("/")
                if folder != current or name in _NO_NAMES or not folder:
                    current = None if name in _NO_NAMES else folder
                    place, name = _place(root, path)
                    if place != directory:
                        record._add(directory, names)
                        directory, names = known.setdefault(place, place), []
                names.append(name)
            record._sizes.extend([int(size or NO_SIZE) for _path, _digest, size in rows])
            digests += [digest for _path, digest, _size in rows]
    record._add(directory, names)
    record.content = record._content_of(digests)
    if not digests and not bad:
        return record, "is empty"
    if bad:
        return record, f"has {len(bad)} unreadable line(s), the first is line {bad[0]}"
    return record, ""


@contextlib.contextmanager
def _open_batches(file: str) -> Iterator[Iterator[str]]:
    """Some hundred lines of a RECORD at a time: a whole one is a large part of the memory that the facts may take."""
    with open_regular(file) as stream:
        if os.fstat(stream.fileno()).st_size > _LIMIT:
            raise ValueError(f"is larger than {_LIMIT} bytes")
        yield _batches(io.TextIOWrapper(stream, encoding="utf-8", errors="strict"))


def _batches(text: io.TextIOBase) -> Iterator[str]:
    """The text by whole lines, each with its end.

    Counted as they are read: the size of what a link in /proc leads to says nothing about how many there are.
    """
    count = 0
    rest = ""
    while chunk := text.read(_LONGEST_LINE):
        whole, newline, rest = (rest + chunk).rpartition("\n")
        if "\0" in chunk or len(rest) >= _LONGEST_LINE:
            raise ValueError("is not text")
        whole += newline
        count += whole.count("\n")
        if count > _MOST_ROWS:
            raise ValueError(f"has more than {_MOST_ROWS} lines")
        yield whole
    if rest:
        yield f"{rest}\n"


def _rows(batches: Iterable[str], bad: list[int]) -> Iterator[list[tuple[str, str, str]]]:
    """Path, digest and size of each row, empty for none; the numbers of lines that are no rows go to ``bad``."""
    before = 0
    for batch in batches:
        count = batch.count("\n")
        rows = _PLAIN.findall(batch) if '"' not in batch else []
        yield rows if len(rows) == count else list(_odd_rows(batch.split("\n"), before, bad))
        before += count


def _odd_rows(lines: Iterable[str], before: int, bad: list[int]) -> Iterator[tuple[str, str, str]]:
    """The rows of lines of which some are quoted, or have another kind of digest, or are none."""
    for number, line in enumerate(lines, before + 1):
        if not line or line.isspace():
            continue
        # Quoted where a comma or a quote is in a field.
        fields = next(csv.reader([line]), []) if '"' in line else line.split(",")
        if _is_row(fields):
            path, digest, size = fields
            yield path, digest[7:] if digest.startswith("sha256=") else "", size
        else:
            bad.append(number)


def _is_row(fields: Sequence[str]) -> bool:
    if len(fields) != 3 or not fields[0]:
        return False
    _path, digest, size = fields
    if digest.startswith("sha256=") and not _DIGEST.match(digest):
        return False
    return not size or size.isascii() and size.isdigit() and len(size) <= _SIZE_DIGITS


def _place(root: str, path: str) -> tuple[str, str]:
    """The absolute directory of a row's file, and its name."""
    folder, _slash, name = path.rpartition("/")
    if name in _NO_NAMES or not folder and path[0] == "/":
        directory, _slash, name = canonical(os.path.join(root, path)).rpartition("/")
    elif folder.startswith("/") or ".." in folder or "//" in folder or "./" in f"{folder}/":
        directory = os.path.realpath(os.path.normpath(os.path.join(root, folder)))
    else:
        directory = f"{root}/{folder}" if folder else root
    return directory, name


def told(size: int) -> int | None:
    """A size, None for NO_SIZE."""
    return None if size == NO_SIZE else size


def _digest_of(lines: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for start in range(0, len(lines), 1000):  # many at once, and never all of a large distribution
        digest.update("".join(lines[start : start + 1000]).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
