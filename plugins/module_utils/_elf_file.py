# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The bytes of one file that may be damaged or hostile, a few pages at a time. Private to the collection.

The interesting bytes of a CUDA library are a few blocks of 4 KiB out of hundreds of megabytes.
"""

from __future__ import annotations

import os
import stat

_BLOCK = 4096
_MAX_BLOCKS = 1024
# Far above every real name.
_MAX_STRING = 256 * 1024

_FILE_KINDS = {
    stat.S_IFDIR: "is a directory",
    stat.S_IFIFO: "is a named pipe",
    stat.S_IFSOCK: "is a socket",
    stat.S_IFCHR: "is a character device",
    stat.S_IFBLK: "is a block device",
}


class ElfError(Exception):
    """A damaged or hostile file. ``path`` and ``reason`` say which and why."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class NotElf(ElfError):  # noqa: N818
    """The path is not an ELF file: other content, too short, or not a regular file."""


def status_of(path: str) -> os.stat_result:
    """What os.stat gives. Raises OSError, and NotElf for what can be no path."""
    try:
        return os.stat(path)
    except ValueError as error:  # a NUL inside the name
        raise NotElf(path.replace("\0", "\\0"), str(error)) from None


def require_regular(path: str, mode: int) -> None:
    """Raises NotElf for the mode of anything but a regular file."""
    if not stat.S_ISREG(mode):
        raise NotElf(path, _FILE_KINDS.get(stat.S_IFMT(mode), "is not a regular file"))


class Blocks:
    """A file read by aligned blocks, each at most once."""

    def __init__(self, fd: int, size: int, path: str) -> None:
        self.size = size
        self.path = path
        self._fd = fd
        self._blocks: dict[int, bytes] = {}

    def read(self, offset: int, count: int, what: str) -> bytes:
        if offset + count > self.size:
            raise ElfError(self.path, f"{what} at offset {offset} ends after the end of the file ({self.size} bytes)")
        first, start = divmod(offset, _BLOCK)
        data = (
            self._block(first)[start : start + count] if start + count <= _BLOCK else os.pread(self._fd, count, offset)
        )
        if len(data) != count:
            raise ElfError(self.path, f"{what} at offset {offset} could not be read in full: the file is being changed")
        return data

    def string(self, offset: int) -> bytes:
        """The bytes up to the next NUL."""
        if offset < self.size:
            number, start = divmod(offset, _BLOCK)
            block = self._block(number)
            end = block.find(b"\0", start)
            if end >= 0:
                return block[start:end]
        return self._long_string(offset)

    def _long_string(self, offset: int) -> bytes:
        """One that goes on in the next block, or has no end."""
        parts = []
        length = 0
        while length <= _MAX_STRING:
            if offset >= self.size:
                raise ElfError(self.path, f"a string at offset {offset} is not inside the file ({self.size} bytes)")
            number, start = divmod(offset, _BLOCK)
            block = self._block(number)
            end = block.find(b"\0", start)
            if end >= 0:
                parts.append(block[start:end])
                return b"".join(parts)
            if len(block) < _BLOCK:
                raise ElfError(self.path, f"a string at offset {offset} ends after the end of the file")
            parts.append(block[start:])
            length += len(block) - start
            offset += len(block) - start
        raise ElfError(self.path, f"a string ending near offset {offset} is longer than {_MAX_STRING} bytes")

    def _block(self, number: int) -> bytes:
        block = self._blocks.get(number)
        if block is None:
            if len(self._blocks) == _MAX_BLOCKS:
                self._blocks.clear()
            block = self._blocks[number] = os.pread(self._fd, _BLOCK, number * _BLOCK)
        return block
