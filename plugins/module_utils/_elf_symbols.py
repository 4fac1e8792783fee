# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The dynamic symbols of one ELF file: which it refers to and which it defines. Private to the collection.

Follows do_lookup_x and check_match of glibc (elf/dl-lookup.c). The tables are read once, by the addresses of the
dynamic section; as in ``_elf`` no size, offset or chain in them is trusted.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import NamedTuple

from ansible_collections.gpufleet.dflash.plugins.module_utils._elf import (
    VERSION_HIDDEN,
    VERSION_INDEX,
    ElfError,
    Image,
    read_image,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._paths import open_regular

_DT_PLTRELSZ = 2
_DT_HASH = 4
_DT_STRTAB = 5
_DT_SYMTAB = 6
_DT_RELA = 7
_DT_RELASZ = 8
_DT_STRSZ = 10
_DT_REL = 17
_DT_RELSZ = 18
_DT_PLTREL = 20
_DT_JMPREL = 23
_DT_FLAGS = 30
_DT_BIND_NOW = 24
_DT_GNU_HASH = 0x6FFFFEF5
_DT_VERSYM = 0x6FFFFFF0
_DT_FLAGS_1 = 0x6FFFFFFB

_DF_BIND_NOW = 0x8
_DF_1_NOW = 0x1

_SHN_ABS = 0xFFF1
_STT_TLS = 6
# STT_NOTYPE, OBJECT, FUNC, COMMON, TLS and GNU_IFUNC; others define nothing.
_DEFINING_TYPES = frozenset({0, 1, 2, 5, _STT_TLS, 10})
# STB_GLOBAL, STB_WEAK and STB_GNU_UNIQUE; local symbols bind nobody.
_BINDINGS = frozenset({1, 2, 10})
_STB_WEAK = 2
_INVISIBLE = frozenset({1, 2})  # STV_INTERNAL and STV_HIDDEN
# An unversioned reference takes a symbol of the base version or of the first one that was defined.
_FIRST_NEWER_VERSION = 3

# Far above real libraries: libtorch_cpu.so has 80,000 symbols in 6 MB of names, and chains of twenty.
_MAX_SYMBOLS = 1024 * 1024
_MAX_STRINGS = 64 * 1024 * 1024
_MAX_CHAIN = 1024
_MAX_RELOCATIONS = 16 * 1024 * 1024
_RELOCATION_BLOCK = 1024 * 1024

Key = tuple[bytes, "str | None"]


class Reference(NamedTuple):
    """A symbol that an object wants from others; ``position`` is its place in the symbol table."""

    name: bytes
    version: str | None
    position: int

    @property
    def key(self) -> Key:
        """What decides whether something defines it."""
        return self.name, self.version


def gnu_hash(name: bytes) -> int:
    """The hash of DT_GNU_HASH."""
    value = 5381
    for byte in name:
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value


class SymbolTable:
    """The dynamic symbols of the file at ``path``. Raises ElfError, OSError.

    ``binds_now`` tells that the object asks for all of its symbols when it is loaded, whoever loads it.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        with open_regular(path) as stream:
            image = read_image(stream.fileno(), path)
            self._wide = image.object.bits == 64
            self._order = image.byte_order
            self._tags = image.tags
            self._versions: Mapping[int, tuple[str, bool]] = image.versions
            self._symbol = struct.Struct(self._order + ("IBBHQQ" if self._wide else "IIIBBH"))
            self._relocations = _relocation_tables(image)
            self._read_tables(image)
        flags = self._tags.get(_DT_FLAGS, 0) & _DF_BIND_NOW or self._tags.get(_DT_FLAGS_1, 0) & _DF_1_NOW
        self.binds_now = bool(flags) or _DT_BIND_NOW in self._tags

    def _read_tables(self, image: Image) -> None:
        self._strings = b""
        self._symbols = b""
        self._version_indexes: tuple[int, ...] = ()
        self._hashed: _GnuHash | None = None
        self._by_name: dict[bytes, list[int]] | None = None
        tags = image.tags
        if _DT_SYMTAB not in tags or _DT_STRTAB not in tags:
            self.count = self._undefined_end = 0
            return
        size = tags.get(_DT_STRSZ, 0)
        if size > _MAX_STRINGS:
            raise ElfError(self.path, f"its table of names has {size} bytes")
        self._strings = image.file.read(image.offset_of(tags[_DT_STRTAB], "DT_STRTAB"), size, "DT_STRTAB")
        self.count = self._undefined_end = self._count(image)
        if self.count > _MAX_SYMBOLS:
            raise ElfError(self.path, f"has {self.count} dynamic symbols")
        table = image.offset_of(tags[_DT_SYMTAB], "DT_SYMTAB")
        self._symbols = image.file.read(table, self.count * self._symbol.size, "DT_SYMTAB")
        # Without any need or definition the linker does not look at DT_VERSYM.
        if _DT_VERSYM in tags and (image.object.version_needs or image.object.version_defs):
            raw = image.file.read(image.offset_of(tags[_DT_VERSYM], "DT_VERSYM"), 2 * self.count, "DT_VERSYM")
            self._version_indexes = struct.unpack(f"{self._order}{self.count}H", raw)

    def _count(self, image: Image) -> int:
        """How many symbols there are, which only the hash tables tell; undefined ones come first with DT_GNU_HASH."""
        tags = image.tags
        if _DT_GNU_HASH in tags:
            self._hashed = _GnuHash(image, image.offset_of(tags[_DT_GNU_HASH], "DT_GNU_HASH"), wide=self._wide)
            if self._hashed.end:
                return self._hashed.end
        if _DT_HASH in tags:
            raw = image.file.read(image.offset_of(tags[_DT_HASH], "DT_HASH") + 4, 4, "DT_HASH")
            return struct.unpack(self._order + "I", raw)[0]
        # A hash table without symbols: what there is to know of are those that relocations name.
        return 1 + max((symbol for _type, symbol, _lazy in self._relocation_symbols(image.file.path)), default=0)

    # --- what it refers to -----------------------------------------------------------------------------

    def references(self) -> list[Reference]:
        """The undefined symbols that must be found. Weak ones may be missing, hidden ones are not looked for."""
        end = self.count
        if self._hashed is not None and self._hashed.end:
            end = min(self._hashed.first, end)
        strings, versions, indexes = self._strings, self._versions, self._version_indexes
        found = []
        for index, fields in enumerate(self._symbol.iter_unpack(self._symbols[: end * self._symbol.size])):
            if self._wide:
                name, info, other, section, _value, _size = fields
            else:
                name, _value, _size, info, other, section = fields
            binding = info >> 4
            if section or binding == _STB_WEAK or binding not in _BINDINGS or other & 3 in _INVISIBLE:
                continue
            stop = strings.find(b"\0", name)
            if stop <= name:
                if stop < 0:
                    raise ElfError(self.path, f"the name of symbol {index} is not in its table of names")
                continue
            version = versions.get(indexes[index] & VERSION_INDEX) if indexes else None
            found.append(Reference(strings[name:stop], version[0] if version else None, index))
        return found

    def needed_at_load(self, wanted: Container[int], *, lazily: bool = False) -> list[int]:
        """Which of these symbols a relocation asks for, in the order in which the linker comes to them.

        A symbol without a relocation is never looked up, so it may be missing. ``lazily``: without calls of
        functions, which are bound at the first call.
        """
        found: dict[int, None] = {}
        for kind, symbol, is_call in self._relocation_symbols(self.path):
            if symbol in wanted and kind and not (lazily and is_call):
                found[symbol] = None
        return list(found)

    def _relocation_symbols(self, path: str) -> Iterator[tuple[int, int, bool]]:
        """Type, symbol and whether it is a lazy call, of each relocation with a symbol."""
        with open_regular(path) as stream:
            descriptor = stream.fileno()
            for offset, size, with_addend, is_call in self._relocations:
                # offset, info and perhaps an addend
                word = "Q" if self._wide else "I"
                layout = struct.Struct(self._order + word * (3 if with_addend else 2))
                end = offset + size
                while offset < end:
                    raw = os.pread(
                        descriptor, min(end - offset, _RELOCATION_BLOCK // layout.size * layout.size), offset
                    )
                    if not raw or len(raw) % layout.size:
                        raise ElfError(path, f"its relocations at offset {offset} end after the end of the file")
                    offset += len(raw)
                    for entry in layout.iter_unpack(raw):
                        info = entry[1]
                        symbol, kind = (info >> 32, info & 0xFFFFFFFF) if self._wide else (info >> 8, info & 0xFF)
                        if symbol:
                            yield kind, symbol, is_call

    # --- what it defines -------------------------------------------------------------------------------

    def defined(self, wanted: Mapping[Key, int]) -> list[Key]:
        """Which of these {(name, version): gnu_hash} this object defines as the linker compares them."""
        if not self.count:
            return []
        if self._hashed is not None:
            candidates = self._hashed.candidates
            return [key for key, hashed in wanted.items() if self._accepts(key, candidates(hashed))]
        if self._by_name is None:
            self._by_name = self._names()
        return [key for key in wanted if key[0] in self._by_name and self._accepts(key, self._by_name[key[0]])]

    def _names(self) -> dict[bytes, list[int]]:
        """Every symbol by its name: what following the chains of DT_HASH comes to."""
        names: dict[bytes, list[int]] = {}
        for index, fields in enumerate(self._symbol.iter_unpack(self._symbols)):
            end = self._strings.find(b"\0", fields[0])
            if end > fields[0]:
                names.setdefault(self._strings[fields[0] : end], []).append(index)
        return names

    def _accepts(self, key: Key, candidates: Iterable[int]) -> bool:
        name, version = key
        newer = 0
        for index in candidates:
            if not self._defines(index, name):
                continue
            if not self._version_indexes:
                return True
            entry = self._version_indexes[index]
            number = entry & VERSION_INDEX
            if version is None:
                if number < _FIRST_NEWER_VERSION:
                    return True
                newer += not entry & VERSION_HIDDEN
                continue
            own = self._versions.get(number)
            if own[0] == version if own else not entry & VERSION_HIDDEN:
                return True
        # A single newer version is taken where none is asked for.
        return newer == 1

    def _defines(self, index: int, name: bytes) -> bool:
        if index >= self.count:
            return False
        fields = self._symbol.unpack_from(self._symbols, index * self._symbol.size)
        if self._wide:
            offset, info, other, section, value, _size = fields
        else:
            offset, value, _size, info, other, section = fields
        kind = info & 15
        return (
            section != 0
            and self._strings.startswith(name + b"\0", offset)
            and (info >> 4) in _BINDINGS
            and kind in _DEFINING_TYPES
            and other & 3 not in _INVISIBLE
            and (value != 0 or section == _SHN_ABS or kind == _STT_TLS)
        )


class _GnuHash:
    """DT_GNU_HASH: a bloom filter, buckets and chains. ``end`` is the number of symbols, 0 if none is in it."""

    def __init__(self, image: Image, offset: int, *, wide: bool) -> None:
        self._path = image.file.path
        order = image.byte_order
        header = struct.unpack(order + "IIII", image.file.read(offset, 16, "DT_GNU_HASH"))
        buckets, self.first, words, self._shift = header
        self._bits = 64 if wide else 32
        if not buckets or not words or words & (words - 1):
            raise ElfError(self._path, f"DT_GNU_HASH has {buckets} buckets and a filter of {words} words")
        if buckets > _MAX_SYMBOLS or words > _MAX_SYMBOLS:
            raise ElfError(self._path, f"DT_GNU_HASH has {buckets} buckets and a filter of {words} words")
        offset += 16
        raw = image.file.read(offset, words * self._bits // 8, "the filter of DT_GNU_HASH")
        self._filter = struct.unpack(f"{order}{words}{'Q' if wide else 'I'}", raw)
        offset += len(raw)
        self._buckets = struct.unpack(f"{order}{buckets}I", image.file.read(offset, 4 * buckets, "DT_GNU_HASH"))
        last = max(self._buckets)
        self._chains: tuple[int, ...] = ()
        self.end = 0
        if last < self.first or not last:
            return
        if last > _MAX_SYMBOLS:
            raise ElfError(self._path, f"DT_GNU_HASH speaks of symbol {last}")
        chains = offset + 4 * buckets
        end = self._end(image, chains, last)
        raw = image.file.read(chains, 4 * (end - self.first), "the chains of DT_GNU_HASH")
        self._chains = struct.unpack(f"{order}{end - self.first}I", raw)
        self.end = end

    def _end(self, image: Image, chains: int, last: int) -> int:
        word = struct.Struct(image.byte_order + "I")
        for number in range(last, last + _MAX_CHAIN):
            (value,) = word.unpack(image.file.read(chains + 4 * (number - self.first), 4, "a chain of DT_GNU_HASH"))
            if value & 1:
                return number + 1
        raise ElfError(self._path, f"a chain of DT_GNU_HASH is longer than {_MAX_CHAIN}")

    def candidates(self, hashed: int) -> list[int]:
        """Symbols whose hash this is."""
        word = self._filter[(hashed // self._bits) & (len(self._filter) - 1)]
        mask = self._bits - 1
        # glibc shifts a 32-bit number: what the file says beyond that has no meaning.
        if not (word >> (hashed & mask)) & (word >> ((hashed >> (self._shift & 31)) & mask)) & 1:
            return []
        number = self._buckets[hashed % len(self._buckets)] - self.first
        if number < 0:
            return []
        wanted = hashed | 1
        found = []
        for position in range(number, min(number + _MAX_CHAIN, len(self._chains))):
            value = self._chains[position]
            if value | 1 == wanted:
                found.append(position + self.first)
            if value & 1:
                break
        return found


def _relocation_tables(image: Image) -> list[tuple[int, int, bool, bool]]:
    """Offset, size, whether there are addends, and whether they are calls, of each table."""
    tags = image.tags
    tables = []
    for address, size, with_addend, is_call in (
        (_DT_RELA, _DT_RELASZ, True, False),
        (_DT_REL, _DT_RELSZ, False, False),
        (_DT_JMPREL, _DT_PLTRELSZ, tags.get(_DT_PLTREL) == _DT_RELA, True),
    ):
        if tags.get(size, 0) and address in tags:
            count = tags[size]
            offset = image.offset_of(tags[address], "the relocations")
            width = (8 if image.object.bits == 64 else 4) * (3 if with_addend else 2)
            if offset + count > image.file.size or count // width > _MAX_RELOCATIONS:
                raise ElfError(image.file.path, f"its {count} bytes of relocations at offset {offset} are not in it")
            tables.append((offset, count // width * width, with_addend, is_call))
    return tables
