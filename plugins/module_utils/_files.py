# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writing files so that an interruption leaves the old one or the new one. Private to the collection."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import tempfile
import time
from collections.abc import Iterator
from typing import BinaryIO, Callable

from ansible_collections.gpufleet.dflash.plugins.module_utils._paths import open_regular

_FICLONE = 0x40049409  # ioctl_ficlone(2)
_NO_CLONE = (errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.ETXTBSY)


def check_root(root: str, error: type[Exception]) -> str:
    """Return the real path of the folder below which everything stands; raise error for what cannot be one.

    Paths below it stand in units and in LD_LIBRARY_PATH, where links and a colon would mean something else.
    """
    if not os.path.isabs(root) or any(character in root for character in ":;\n\0"):
        raise error(f"root is an absolute path without colons, semicolons and line breaks: {root!r}")
    return os.path.realpath(root)


def read_regular(path: str, limit: int = 64 << 20) -> bytes:
    """Return the content of a regular file of at most limit bytes; raises OSError for anything else.

    Never waits: a FIFO or a device in the place of a file must not stop whoever reads it.
    """
    with open_regular(path) as stream:
        if os.fstat(stream.fileno()).st_size > limit:
            raise OSError(errno.EFBIG, f"larger than {limit} bytes", path)
        return stream.read(limit)


def write_atomically(path: str, content: bytes, mode: int = 0o644) -> None:
    """Write a file beside its place and rename it there; the content is on disk before the name is.

    The file gets a new inode: content behind other hard links to the old one stays as it is.
    """
    with replacing(path, mode) as stream:
        stream.write(content)


@contextlib.contextmanager
def replacing(path: str, mode: int = 0o644) -> Iterator[BinaryIO]:
    """Yield a new file, for writing and reading, that gets its name when the block ends without an error."""
    folder = os.path.dirname(path)
    handle, temporary = tempfile.mkstemp(prefix=".new-", dir=folder)
    try:
        with os.fdopen(handle, "w+b") as stream:
            yield stream
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_folder(folder)


def share_blocks(reader: int, writer: int) -> bool:
    """Let an empty open file have the content of another without a copy of it; False where the file system cannot."""
    try:
        fcntl.ioctl(writer, _FICLONE, reader)
    except OSError as error:
        if error.errno not in _NO_CLONE:
            raise
        return False
    return True


def link_atomically(target: str, path: str) -> None:
    """Make path a symbolic link to target, replacing another link in one step."""
    temporary = os.path.join(os.path.dirname(path), f".new-{secrets.token_hex(8)}")
    os.symlink(target, temporary)
    try:
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise


def append_line(path: str, line: str) -> None:
    """Append one line; the line is on disk on return. A torn last line of an earlier crash is closed first."""
    new = not os.path.exists(path)
    with open(path, "ab+") as stream:
        if stream.tell():
            stream.seek(-1, os.SEEK_END)
            if stream.read(1) != b"\n":
                stream.write(b"\n")
        stream.write(line.encode() + b"\n")
        stream.flush()
        os.fsync(stream.fileno())
    if new:
        _sync_folder(os.path.dirname(path))


@contextlib.contextmanager
def exclusive(path: str, waiting: Callable[[str], None] | None = None, limit: float = 7200.0) -> Iterator[int]:
    """Hold the lock file at path and yield its descriptor.

    When somebody else holds it, waiting is called once with who that is, in words. Raises TimeoutError after limit
    seconds. The kernel frees the lock when its holder dies, however it dies.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        deadline = time.monotonic() + limit
        told = False
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
            if waiting and not told:
                waiting(_holder(handle))
                told = True
            if time.monotonic() > deadline:
                raise TimeoutError(f"another run has held {path} for {limit:.0f} s: see what it does, or end it")
            time.sleep(0.2)
        with contextlib.suppress(OSError):  # on a full disk nobody is told who holds it
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield handle
    finally:
        os.close(handle)


def _holder(handle: int) -> str:
    """Who holds a lock, as its file says; an installer may hold on to it after the run that started it died."""
    with contextlib.suppress(OSError):
        pid = os.pread(handle, 16, 0).strip()
        if pid.isdigit():
            return f"the run that PID {pid.decode()} began"
    return "another run"


def _sync_folder(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
