# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What glibc makes of one file that its search comes across. Private to the collection.

Follows open_verify and the first half of _dl_map_object_from_fd in elf/dl-load.c of glibc, with their error
texts.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Container
from typing import NamedTuple

from ansible_collections.gpufleet.dflash.plugins.module_utils._elf import (
    DF_1_NOOPEN,
    DF_1_PIE,
    ET_DYN,
    ET_EXEC,
    ElfError,
    ElfObject,
    read_descriptor,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._ld_system import System
from ansible_collections.gpufleet.dflash.plugins.module_utils._paths import is_hidden

_HEADER = struct.Struct("<4sBBBBB7sHHI8xQ14xHH6x")
_PROGRAM_HEADER_SIZE = 56
_CLASS_64 = 2
_LITTLE_ENDIAN = 1
_OS_ABI_SYSV = 0
_OS_ABI_GNU = 3
_FIRST_UNKNOWN_ABI_VERSION = 4


class _Header(NamedTuple):
    """An ELF header, read as the host's own class and byte order, as far as open_verify looks at it."""

    magic: bytes
    elf_class: int
    data: int
    ident_version: int
    os_abi: int
    abi_version: int
    padding: bytes
    type: int
    machine: int
    version: int
    table: int
    entry_size: int
    entries: int


class SearchError(Exception):
    """A library was not found or not accepted; the text is what the linker says: name, reason and an errno's
    text.
    """

    def __init__(self, name: str, reason: str, number: int = 0) -> None:
        super().__init__(f"{name}: {reason}: {os.strerror(number)}" if number else f"{name}: {reason}")
        self.reason = reason


class Refused(SearchError):  # noqa: N818
    """A file was found that ends the search, as the linker neither takes it nor goes on."""


class Skipped(Exception):  # noqa: N818
    """A file that the search passes by, with the errno that this leaves behind."""

    def __init__(self, number: int, *, other_class: bool = False) -> None:
        super().__init__(os.strerror(number))
        self.errno = number
        self.other_class = other_class


class Candidate(NamedTuple):
    """A file that the linker would map: its path as the search spells it, who it is and the rule that led to
    it.
    """

    path: str
    object: ElfObject
    identity: tuple[int, int]
    setuid: bool
    rule: str


class CandidateFiles:
    """Opens what a search comes across. ``hidden`` holds real paths that are to be treated as absent."""

    def __init__(self, system: System, cwd: str, hidden: Container[str]) -> None:
        self.cwd = cwd
        self._system = system
        self._hidden = hidden

    def absolute(self, path: str) -> str:
        return path if path.startswith("/") else f"{self.cwd}/{path}"

    def open(self, path: str, rule: str) -> Candidate:
        """Return the file at ``path`` if the linker accepts it; raises Skipped where it goes on, Refused
        where it stops.
        """
        full = self.absolute(path)
        if is_hidden(full, self._hidden):
            raise Skipped(errno.ENOENT)
        try:
            mode = os.stat(full).st_mode
            if stat.S_ISDIR(mode):
                raise Refused(path, "cannot read file data", errno.EISDIR)
            if not stat.S_ISREG(mode):
                raise Refused(path, "is not a regular file: the linker would wait for it or misread it")
            fd = os.open(full, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise Skipped(error.errno or errno.ENOENT) from None
        try:
            status = os.fstat(fd)
            elf_object = self._verify(fd, path, status)
        finally:
            os.close(fd)
        return Candidate(path, elf_object, (status.st_dev, status.st_ino), bool(status.st_mode & stat.S_ISUID), rule)

    def _verify(self, fd: int, path: str, status: os.stat_result) -> ElfObject:
        key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        known = self._system.objects.get(key)
        if known is None:
            _verify_header(os.pread(fd, _HEADER.size, 0), path, status.st_size, self._system.machine)
            try:
                known = self._system.objects[key] = read_descriptor(fd, path)
            except ElfError as error:
                raise Refused(path, error.reason) from None
        return known


def _verify_header(raw: bytes, path: str, size: int, machine: int) -> None:
    """Apply the tests of open_verify in its order: the first that fails decides."""
    if len(raw) < _HEADER.size:
        raise Refused(path, "file too short")
    header = _Header(*_HEADER.unpack(raw))
    if header.magic != b"\x7fELF":
        raise Refused(path, "invalid ELF header")
    if header.elf_class != _CLASS_64:
        raise Skipped(errno.ENOENT, other_class=True)
    fault = _identification_fault(header)
    if fault:
        # A damaged identification of another machine's file is passed by in Debian's glibc (measured with
        # 2.36).
        if header.machine != machine:
            raise Skipped(errno.ENOENT)
        raise Refused(path, fault)
    if header.version != 1:
        raise Refused(path, "ELF file version does not match current one")
    if header.machine != machine:
        raise Skipped(errno.ENOENT)
    if header.type not in (ET_EXEC, ET_DYN):
        raise Refused(path, "only ET_DYN and ET_EXEC can be loaded")
    if header.entry_size != _PROGRAM_HEADER_SIZE:
        raise Refused(path, "ELF file's phentsize not the expected size")
    if header.table + header.entries * _PROGRAM_HEADER_SIZE > size:
        raise Refused(path, "cannot read file data")


def _identification_fault(header: _Header) -> str | None:
    """Return what the linker says of e_ident after its class, None if it is in order."""
    if header.data != _LITTLE_ENDIAN:
        return "ELF file data encoding not little-endian"
    if header.ident_version != 1:
        return "ELF file version ident does not match current one"
    if header.os_abi not in (_OS_ABI_SYSV, _OS_ABI_GNU):
        return "ELF file OS ABI invalid"
    if header.abi_version and (header.os_abi != _OS_ABI_GNU or header.abi_version >= _FIRST_UNKNOWN_ABI_VERSION):
        return "ELF file ABI version invalid"
    return "nonzero padding in e_ident" if any(header.padding) else None


def verify_mappable(name: str, elf_object: ElfObject, *, by_dlopen: bool) -> None:
    """Apply the tests that the linker makes when it maps the file that ``name`` led to; raises Refused."""
    if not elf_object.has_segments:
        raise Refused(name, "object file has no loadable segments")
    if elf_object.type != ET_DYN:
        raise Refused(name, "cannot dynamically load executable")
    if not elf_object.has_dynamic:
        raise Refused(name, "object file has no dynamic section")
    if elf_object.flags_1 & DF_1_PIE:
        raise Refused(name, "cannot dynamically load position-independent executable")
    if by_dlopen and elf_object.flags_1 & DF_1_NOOPEN:
        raise Refused(name, "shared object cannot be dlopen()ed")
