# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which process listens on a TCP port of this host, from /proc.

This module is private to the collection: it can change at any time.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_LISTEN = "0A"


@dataclass(frozen=True)
class Listener:
    """Who holds a port. C(ours) is None when /proc does not show it to this user."""

    pid: int | None
    command: str
    ours: bool | None


def _address(text: str) -> str:
    """Return the address in a row of /proc/net/tcp{,6}: hexadecimal 32-bit words in the host's byte order."""
    words = [int(text[index : index + 8], 16) for index in range(0, len(text), 8)]
    packed = struct.pack(f"{'<' if sys.byteorder == 'little' else '>'}{len(words)}I", *words)
    address = ipaddress.ip_address(packed)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def listening(table: str) -> Iterator[tuple[str, int, int]]:
    """Yield address, port and socket inode of each listening row of a /proc/net/tcp table."""
    for row in table.splitlines()[1:]:
        columns = row.split()
        if len(columns) > 9 and columns[3] == _LISTEN:
            address, _colon, port = columns[1].partition(":")
            yield _address(address), int(port, 16), int(columns[9])


class Listeners:
    """Finds who listens where one URL's host and port lead to."""

    def __init__(self, host: str, port: int, proc: Path = Path("/proc")) -> None:
        self.port = port
        self.proc = proc
        self.addresses = _resolve(host)
        self._known: dict[tuple[int, int], Listener] = {}

    def find(self, main_pid: int) -> Listener | None:
        """Return who listens, judged against the control group of C(main_pid); None when nobody does.

        A stranger is returned even if the service listens as well: the kernel deals connections out to both.
        """
        found = [self._owner(inode, main_pid) for inode in self._inodes()]
        return min(found, key=lambda listener: listener.ours is not False) if found else None

    def _inodes(self) -> list[int]:
        exact, wildcard = [], []
        for name in ("tcp", "tcp6"):
            try:
                table = (self.proc / "self/net" / name).read_text()
            except OSError:
                continue
            for address, port, inode in listening(table):
                if port != self.port:
                    continue
                if address in self.addresses:
                    exact.append(inode)
                elif address in ("0.0.0.0", "::"):
                    wildcard.append(inode)
        return exact or wildcard  # the kernel prefers the socket with the more particular address

    def _owner(self, inode: int, main_pid: int) -> Listener:
        # Searching all descriptors of a host costs tens of milliseconds, and a socket seldom changes hands.
        key = inode, main_pid
        if key not in self._known:
            self._known[key] = self._search(inode, main_pid)
        return self._known[key]

    def _search(self, inode: int, main_pid: int) -> Listener:
        group = self._control_group(main_pid) if main_pid else ""
        everybody = [int(entry.name) for entry in self.proc.iterdir() if entry.name.isdigit()]
        holder = next((pid for pid in _main_first(everybody, main_pid) if self._holds(pid, inode)), None)
        if holder is None:
            return Listener(None, "", None)
        theirs = self._control_group(holder)
        ours = holder == main_pid or bool(group) and (theirs == group or theirs.startswith(group + "/"))
        return Listener(holder, self._command(holder), ours)

    def _holds(self, pid: int, inode: int) -> bool:
        wanted = f"socket:[{inode}]"
        try:
            return any(str(entry.readlink()) == wanted for entry in (self.proc / str(pid) / "fd").iterdir())
        except OSError:  # the process is gone or belongs to somebody else
            return False

    def _control_group(self, pid: int) -> str:
        """Return the unit part of a process's control group; the root of the tree belongs to no unit."""
        try:
            rows = (self.proc / str(pid) / "cgroup").read_text().splitlines()
        except OSError:
            return ""
        # Version 2 has one row, "0::/path"; version 1 has systemd's own row, "1:name=systemd:/path".
        paths = [row.split(":", 2)[2] for row in rows if row.startswith("0::") or ":name=systemd:" in row]
        path = max(paths, key=len, default="")
        return path if path.rpartition("/")[2].endswith((".service", ".scope")) or ".service/" in path else ""

    def _command(self, pid: int) -> str:
        try:
            return (self.proc / str(pid) / "comm").read_text().strip()
        except OSError:
            return ""


def _main_first(pids: Iterable[int], main_pid: int) -> list[int]:
    return sorted(pids, key=lambda pid: pid != main_pid)


def _resolve(host: str) -> set[str]:
    try:
        return {str(row[4][0]) for row in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return set()
