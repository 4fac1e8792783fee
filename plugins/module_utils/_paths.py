# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Paths as RECORD and the loader compare them. Private to the collection."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Container
from typing import BinaryIO


def canonical(path: str) -> str:
    """The path with links of its directories resolved; the last component stays: a package may own a link."""
    directory, name = os.path.split(os.path.normpath(path))
    return os.path.join(os.path.realpath(directory), name)


def is_hidden(path: str, hidden: Container[str]) -> bool:
    """Whether a file is to be treated as absent: ``hidden`` holds its canonical path or that of what it links to."""
    return bool(hidden) and (canonical(path) in hidden or os.path.realpath(path) in hidden)


def open_regular(path: str) -> BinaryIO:
    """Open a file for reading. Raises OSError, also for what is no regular file.

    Without blocking: a FIFO that somebody named like a library would hold the open for ever.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    stream = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        stream.close()
        raise OSError(errno.EINVAL, "is not a regular file", path)
    return stream


def read_start(path: str, limit: int) -> str:
    """The first ``limit`` bytes of a text file; what is not UTF-8 is replaced. Raises OSError."""
    with open_regular(path) as stream:
        return stream.read(limit).decode("utf-8", errors="replace")
