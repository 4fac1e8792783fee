# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which symbols of newly loaded objects nothing in their scope defines. Private to the collection.

A scope is a list of objects; where several define a symbol the first wins, but for the question whether any
does their order is of no account, so the objects that have most symbols are asked first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ansible_collections.gpufleet.dflash.plugins.module_utils._elf import ElfError
from ansible_collections.gpufleet.dflash.plugins.module_utils._elf_symbols import (
    Key,
    Reference,
    SymbolTable,
    gnu_hash,
)

Identity = tuple[int, int]


class ScopeMember(NamedTuple):
    """One loaded object: who it is, and where it can be read."""

    identity: Identity
    path: str


class Undefined(NamedTuple):
    """A symbol that no object of the scope defines, asked for by the object at ``path``."""

    path: str
    symbol: str
    version: str | None

    @property
    def words(self) -> str:
        """The linker's own, after the name of the object."""
        return f"undefined symbol: {self.symbol}" + (f", version {self.version}" if self.version else "")


class SymbolTables:
    """Symbol tables by file, each read once. ``damaged`` has those that cannot be read, with the reason.

    Given to a ``Simulation`` or a ``Process`` it makes a load fail for symbols that nothing defines; a benchmark
    compares the time of ``Simulation(..., symbols=SymbolTables()).run()`` with that of one without.
    """

    def __init__(self) -> None:
        self.damaged: dict[str, str] = {}
        self._tables: dict[Identity, SymbolTable | None] = {}
        self._hashes: dict[bytes, int] = {}
        self._providers: dict[Key, Identity] = {}

    def undefined(
        self, new: Sequence[ScopeMember], scope: Sequence[ScopeMember], *, lazily: bool = False
    ) -> list[Undefined]:
        """Each symbol that ``new`` objects need at load time and no object in ``scope`` defines.

        In the order in which the linker comes to them: ``new`` is that of its relocations. ``lazily``: calls of
        functions are bound later, but for objects that do not want that. Nothing is said of a scope that has an
        object whose table cannot be read.
        """
        tables = {member.identity: table for member in scope if (table := self._table(member)) is not None}
        if len(tables) < len({member.identity for member in scope}):
            return []
        references = {member: self._references(member, tables[member.identity]) for member in new}
        missing = self._missing([each for found in references.values() for each in found], tables)
        undefined = []
        for member, found in references.items():
            wanted = {each.position: each for each in found if each.key in missing} if missing else {}
            if not wanted:
                continue
            table = tables[member.identity]
            try:
                needed = table.needed_at_load(wanted, lazily=lazily and not table.binds_now)
            except (ElfError, OSError) as error:
                self.damaged[member.path] = _reason(error)
                continue
            undefined += [
                Undefined(member.path, wanted[index].name.decode("utf-8", "replace"), wanted[index].version)
                for index in needed
            ]
        return undefined

    def _table(self, member: ScopeMember) -> SymbolTable | None:
        if member.identity not in self._tables:
            self._tables[member.identity] = None
            try:
                self._tables[member.identity] = SymbolTable(member.path)
            except (ElfError, OSError) as error:
                self.damaged[member.path] = _reason(error)
        return self._tables[member.identity]

    def _references(self, member: ScopeMember, table: SymbolTable) -> list[Reference]:
        try:
            return table.references()
        except ElfError as error:
            self.damaged[member.path] = _reason(error)
            return []

    def _missing(self, references: Sequence[Reference], tables: dict[Identity, SymbolTable]) -> dict[Key, int]:
        """The keys that none of the tables defines."""
        pending: dict[Key, int] = {}
        for reference in references:
            key = reference.key
            if key not in pending and self._providers.get(key) not in tables:
                hashed = self._hashes.get(reference.name)
                if hashed is None:
                    hashed = self._hashes[reference.name] = gnu_hash(reference.name)
                pending[key] = hashed
        for identity, table in sorted(tables.items(), key=lambda item: -item[1].count):
            if not pending:
                break
            for key in table.defined(pending):
                self._providers[key] = identity
                del pending[key]
        return pending


def _reason(error: ElfError | OSError) -> str:
    return error.reason if isinstance(error, ElfError) else error.strerror or str(error)
