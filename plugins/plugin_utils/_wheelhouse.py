# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wheels on the controller, by their hashes: fetched once, resumed, verified. Private to the collection.

``<cache>/wheels/<sha256>/<file>``; what is not complete is ``<file>.part`` there.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Callable

from ansible_collections.gpufleet.dflash.plugins.module_utils._files import exclusive
from ansible_collections.gpufleet.dflash.plugins.plugin_utils._controller_files import HashedFile
from ansible_collections.gpufleet.dflash.plugins.plugin_utils._index import (
    BeyondEndError,
    Indexes,
    IndexFile,
    PackageIndexError,
)

_THREADS = 4
_CHUNK = 1 << 20
_LARGEST = 16 << 30  # bytes; no wheel is larger, and an answer need not say how long it is

Progress = Callable[[str], None]


class WheelhouseError(Exception):
    """Wheels that cannot be had; the text says which, why and what to do."""


def fetch(
    wanted: Mapping[str, tuple[IndexFile, Sequence[str]]], indexes: Indexes, cache: str, progress: Progress
) -> list[HashedFile]:
    """Return the wheels of {pin: (file, hashes of the lock)}, fetching those that the cache lacks.

    Raises WheelhouseError. What was complete before an error, or a kill, is not fetched again; the file on which it
    happened goes on where it stopped.
    """
    folder = os.path.join(cache, "wheels")
    counter = _Counter(sum(file.size or 0 for file, _hashes in wanted.values()), progress)
    try:
        os.makedirs(folder, mode=0o755, exist_ok=True)
        # Several hosts are prepared at once by as many processes: one of them fetches, the others find it done.
        with (
            exclusive(os.path.join(folder, ".lock"), lambda who: progress(f"waiting for {who}")),
            ThreadPoolExecutor(_THREADS) as pool,
        ):
            jobs = [
                pool.submit(_fetch_one, pin, file, hashes, indexes, folder, counter)
                for pin, (file, hashes) in wanted.items()
            ]
            try:
                return [job.result() for job in jobs]
            except BaseException:
                counter.stopped.set()
                pool.shutdown(cancel_futures=True)
                raise
    except TimeoutError as error:
        raise WheelhouseError(str(error)) from error
    except OSError as error:
        place = error.filename or folder
        raise WheelhouseError(f"the wheels cannot be kept on the controller: {place}: {error.strerror}") from error


class _Counter:
    """Bytes that have come, told every second."""

    def __init__(self, total: int, progress: Progress) -> None:
        self.stopped = threading.Event()
        self._total, self._progress = total, progress
        self._done, self._told = 0, time.monotonic()
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count
            if time.monotonic() - self._told < 1:
                return
            self._told = time.monotonic()
            of = f" of {self._total / 1e6:,.0f}" if self._total else ""
            words = f"fetching wheels on the controller: {self._done / 1e6:,.0f}{of} MB"
        self._progress(words)


def _fetch_one(
    pin: str, file: IndexFile, hashes: Sequence[str], indexes: Indexes, folder: str, counter: _Counter
) -> HashedFile:
    digests = {text.partition(":")[2] for text in hashes if text.startswith("sha256:")}
    listed = {text.partition(":")[2] for text in file.hashes if text.startswith("sha256:")} & digests
    # Some indexes tell no hash: then only the content says which of the lock's it is.
    for digest in listed or digests:
        path = os.path.join(folder, digest, file.name)
        if os.path.exists(path):
            counter.add(file.size or 0)
            return HashedFile(digest, path)
    key = min(listed) if listed else hashlib.sha256(f"{pin} {file.name}".encode()).hexdigest()
    partial = os.path.join(folder, key, f"{file.name}.part")
    os.makedirs(os.path.dirname(partial), mode=0o755, exist_ok=True)
    for attempt in (1, 2):
        found = _download(file, partial, digests, indexes, counter)
        if found in digests:
            break
        # What was there of an earlier run may be of another file: once more, from its beginning.
        os.unlink(partial)
        if attempt == 2:
            raise WheelhouseError(
                f"the file of {pin} is not the one whose hash the lock has: {file.name}: it has sha256:{found}: "
                "compile the lock anew if there is a known reason; if nobody knows one, do not trust that index"
            )
    path = os.path.join(folder, found, file.name)
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    os.replace(partial, path)
    with contextlib.suppress(OSError):
        os.rmdir(os.path.dirname(partial))
    return HashedFile(found, path)


def _download(file: IndexFile, partial: str, wanted: set[str], indexes: Indexes, counter: _Counter) -> str:
    """Fetch what is missing of a file and return the SHA-256 of all of it."""
    digest = hashlib.sha256()
    with open(partial, "ab+") as stream:
        stream.seek(0)
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            counter.add(len(chunk))
        there = stream.tell()
        if there == file.size or digest.hexdigest() in wanted:
            return digest.hexdigest()
        try:
            with indexes.open(file, there) as answer:
                if there and getattr(answer, "status", 206) != 206:
                    # An index that sends the whole file again.
                    stream.seek(0)
                    stream.truncate()
                    digest = hashlib.sha256()
                length = str(getattr(answer, "headers", {}).get("Content-Length") or "")
                whole = file.size or (stream.tell() + int(length) if length.isdecimal() else 0)
                while chunk := answer.read(_CHUNK):
                    if counter.stopped.is_set():
                        raise WheelhouseError("another wheel could not be fetched")
                    if stream.tell() + len(chunk) > min(whole or _LARGEST, _LARGEST):
                        stream.truncate(0)
                        raise WheelhouseError(
                            f"a wheel cannot be fetched: {file.name}: it is larger than the index says: do not trust "
                            "that index"
                        )
                    stream.write(chunk)
                    digest.update(chunk)
                    counter.add(len(chunk))
        except BeyondEndError:
            return digest.hexdigest()  # what is here is of another file: the caller begins anew
        except (PackageIndexError, OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and error.filename:
                raise
            words = (
                error
                if isinstance(error, PackageIndexError)
                else getattr(error, "strerror", None) or type(error).__name__
            )
            raise WheelhouseError(f"a wheel cannot be fetched: {file.name}: {words}: run again to go on") from error
        stream.flush()
        os.fsync(stream.fileno())
        if os.fstat(stream.fileno()).st_size < whole:
            raise WheelhouseError(
                f"a wheel cannot be fetched: {file.name}: the connection broke off: run again to go on"
            )
    return digest.hexdigest()
