# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a generation has room: what it takes, what is free, what to say of a full disk. Private to the collection."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple

ROOM = "make room, remove old generations (venv_generation with state: absent and keep), or choose another root"


class Room(NamedTuple):
    """What is free on a file system: bytes, and files (None where it does not count them)."""

    bytes: int
    files: int | None


class Need(NamedTuple):
    """What something takes at least."""

    bytes: int
    files: int

    def plus(self, other: Need) -> Need:
        """The sum of two needs."""
        return Need(self.bytes + other.bytes, self.files + other.files)


def room_at(path: str) -> Room:
    """Return what is free where path is, or will be."""
    status = os.statvfs(_standing(path))
    return Room(status.f_bavail * status.f_frsize, status.f_favail if status.f_files else None)


def need_of(sizes: Mapping[str, tuple[int, int]], pins: Iterable[str], present: Iterable[str]) -> Need:
    """Sum up {pin: (bytes, files)} of those pins that are known and not in the cache already."""
    there = set(present)
    wanted = [sizes[pin] for pin in pins if pin in sizes and pin not in there]
    return Need(sum(size for size, _files in wanted), sum(files for _size, files in wanted))


def shortage(root: str, need: Need, room: Room) -> str | None:
    """Say what is wrong when a need exceeds the room; None when it does not."""
    if need.bytes > room.bytes:
        return (
            f"not enough room on the disk: {root}: the generation takes at least {need.bytes / 1e6:,.0f} MB, "
            f"{room.bytes / 1e6:,.0f} MB are free: {ROOM}"
        )
    if room.files is not None and need.files > room.files:
        return (
            f"not enough room for files on the disk: {root}: the generation has at least {need.files:,} files, "
            f"{room.files:,} inodes are free: {ROOM}"
        )
    return None


def full(root: str) -> str:
    """Say that the disk filled up on the way."""
    return f"the disk is full: {root}: {room_at(root).bytes / 1e6:,.0f} MB are free now: {ROOM}"


def tells_of_a_full_disk(words: str) -> bool:
    """Whether an installer's last words are of a full disk, or of a quota that is used up."""
    return any(text in words for text in ("No space left on device", "os error 28", "Disk quota exceeded"))


def shares_blocks(source: str, destination: str) -> bool:
    """Whether copies from source to destination can share their blocks: on one file system of a kind that can."""
    device = os.stat(_standing(source)).st_dev
    if device != os.stat(_standing(destination)).st_dev:
        return False
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            before, _dash, after = line.partition(" - ")
            if before.split()[2:3] == [wanted]:
                return after.split()[:1] in (["btrfs"], ["xfs"], ["bcachefs"])
    return True  # a subvolume, whose device number is in no table of mounts


def _standing(path: str) -> str:
    """The folder that stands nearest above a path, or at it."""
    while not os.path.isdir(path):
        path = os.path.dirname(path) or "/"
    return path
