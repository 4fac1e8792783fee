# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read package indexes from the controller (PEP 503, PEP 691), and files by ranges. Private to the collection."""

from __future__ import annotations

import base64
import contextlib
import html.parser
import http.client
import io
import json
import os
import re
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import unquote, urldefrag, urljoin, urlsplit, urlunsplit

from ansible_collections.gpufleet.dflash.plugins.module_utils._paths import open_regular

_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_PAGE_LIMIT = 64 << 20  # the page of a project with thousands of files has a few megabytes
_PAGE_SECONDS = 120.0  # for a whole page: an index that sends a byte now and then is none
_TIMEOUT = 20.0  # seconds without a byte
_PAUSE = 1.0  # seconds before a second attempt
_TAIL = 1 << 17  # what is read of an archive's end at once: nearly always all of its directory
_GAP = 16 << 20
_RANGE_LIMIT = 64 << 20  # the directory of the largest wheel has a few megabytes
_ARCHIVE_LIMIT = 1 << 36
_WEB = ("http", "https")
_CERTIFICATES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE")


class PackageIndexError(Exception):
    """An index that cannot be asked, or a file that cannot be read; the text has no address in it."""


class BeyondEndError(PackageIndexError):
    """A range that begins where a file has ended already."""


class IndexFile(NamedTuple):
    """One file of a project as an index lists it."""

    name: str
    url: str
    hashes: tuple[str, ...]  # "sha256:<hex>"; empty where the index tells none
    size: int | None
    yanked: str | None  # the reason, perhaps empty; None for what is not yanked
    requires_python: str | None


class Indexes:
    """The indexes of a task, asked one after the other and all of them; safe to use from several threads."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._addresses = [_split(url.rstrip("/") + "/") for url in urls]
        self._local = any(urlsplit(address).scheme == "file" for address, _authorization in self._addresses)
        context = ssl.create_default_context()
        for name in _CERTIFICATES:
            if os.path.isfile(os.environ.get(name, "")):
                with _told(f"{name} of the controller"):
                    context.load_verify_locations(os.environ[name])
        self._opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))
        self._pages: dict[str, list[IndexFile]] = {}
        self._lock = threading.Lock()

    def files(self, project: str) -> list[IndexFile]:
        """Return the files of a project at all indexes. Raises PackageIndexError when one cannot be asked."""
        with self._lock:
            known = self._pages.get(project)
        if known is None:
            known = [file for number in range(len(self._addresses)) for file in self._page(number, project)]
            with self._lock:
                self._pages[project] = known
        return known

    def open(self, file: IndexFile, first: int = 0) -> BinaryIO:
        """Open a file for reading from byte ``first`` on. Raises PackageIndexError; the caller checks what it gets."""
        if self._is_local(file):
            with _told(file.name):
                stream = open_regular(_local_path(file.url))
                stream.seek(first)
            return stream
        return self._request(file.url, {"Range": f"bytes={first}-"} if first else {}, file.name)

    def archive(self, file: IndexFile) -> BinaryIO:
        """Return a seekable stream of a wheel that fetches only what is read. Raises PackageIndexError."""
        if self._is_local(file):
            return self.open(file)
        answer: Any = self._request(file.url, {"Range": f"bytes=-{_TAIL}"}, file.name)
        with answer, _told(file.name):
            if answer.status == 206:
                tail = answer.read(_TAIL)
                total = _whole(answer.headers.get("Content-Range", ""), len(tail))
                if total:
                    return io.BufferedReader(_Ranges(self, file, total, tail), 1 << 16)
            elif int(answer.headers.get("Content-Length") or _PAGE_LIMIT) <= 4 * _TAIL:
                return io.BytesIO(answer.read(4 * _TAIL + 1))
        raise PackageIndexError(f"{file.name} cannot be read by ranges")

    def range(self, file: IndexFile, first: int, last: int) -> bytes:
        """Return some bytes of a file, both ends included. Raises PackageIndexError."""
        if last - first >= _RANGE_LIMIT:
            raise PackageIndexError(f"{file.name} has a directory that is too large")
        with self._request(file.url, {"Range": f"bytes={first}-{last}"}, file.name) as answer, _told(file.name):
            if answer.status != 206:  # type: ignore[attr-defined]
                raise PackageIndexError(f"{file.name} cannot be read by ranges")
            return answer.read(last - first + 1)

    def _is_local(self, file: IndexFile) -> bool:
        """Whether a file lies on the controller; only an index that lies there as well may say so."""
        return self._local and urlsplit(file.url).scheme == "file"

    def _page(self, number: int, project: str) -> list[IndexFile]:
        url, _authorization = self._addresses[number]
        page = urljoin(url, f"{project}/")
        if urlsplit(page).scheme == "file":
            return _local_page(page)
        what = f"the page of {project}"
        try:
            with self._request(page, {"Accept": _ACCEPT}, what) as answer, _told(what):
                text = _read_page(answer, what)
                kind = answer.headers.get("Content-Type", "")  # type: ignore[attr-defined]
                base = answer.url  # type: ignore[attr-defined]
                found = _read_json(text, base) if "json" in kind else _read_html(text.decode("utf-8", "replace"), base)
        except _NotFoundError:
            return []
        return [file for file in found if _is_plain(file.name)]

    def _request(self, url: str, headers: dict[str, str], what: str) -> BinaryIO:
        with _told(what):
            if urlsplit(url).scheme not in _WEB:
                raise PackageIndexError(f"the index names no address of the web for {what}")
            request = urllib.request.Request(url, headers={**headers, "User-Agent": "gpufleet.dflash"})
            authorization = self._authorization(url)
            if authorization:
                request.add_unredirected_header("Authorization", authorization)
            try:
                answer: BinaryIO = self._opened(request)
                return answer
            except urllib.error.HTTPError as error:
                error.close()
                if error.code in (404, 410):
                    raise _NotFoundError(f"{what} is not at the index") from error
                if error.code == 416:
                    raise BeyondEndError(f"{what} ends earlier") from error
                raise PackageIndexError(
                    f"{what} cannot be read: the index answers {error.code} {error.reason}"
                ) from error

    def _authorization(self, url: str) -> str | None:
        """The password for an address: of the index that it is below, else of one on that host, over that protocol.

        Files often lie on another host than the index, which has no business with its password.
        """
        fitting = [pair for pair in self._addresses if pair[1] and urlsplit(pair[0])[:2] == urlsplit(url)[:2]]
        nearest = max(fitting, key=lambda pair: len(pair[0]) if url.startswith(pair[0]) else 0, default=("", None))
        return nearest[1]

    def _opened(self, request: urllib.request.Request) -> Any:
        """Open a request; once more after a moment when no connection came about: names resolve late under load."""
        try:
            return self._opener.open(request, timeout=_TIMEOUT)
        except urllib.error.HTTPError:
            raise
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            time.sleep(_PAUSE)
            return self._opener.open(request, timeout=_TIMEOUT)


class _NotFoundError(PackageIndexError):
    """The index does not know it."""


class _Ranges(io.RawIOBase):
    """A remote file of which only the parts that are read are fetched."""

    def __init__(self, indexes: Indexes, file: IndexFile, size: int, tail: bytes) -> None:
        super().__init__()
        self._indexes, self._file, self._size, self._tail = indexes, file, size, tail
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence])
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), self._size - self._position)
        if wanted <= 0:
            return 0
        start = self._size - len(self._tail)
        if self._position >= start:
            data = self._tail[self._position - start :]
        elif start - self._position <= _GAP:
            # The directory of a large archive begins before the part that is here: the rest of it comes at once.
            self._tail = self._indexes.range(self._file, self._position, start - 1) + self._tail
            data = self._tail
        else:
            data = self._indexes.range(self._file, self._position, self._position + wanted - 1)
        data = data[:wanted]
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


def default_index() -> str:
    """The index that this controller's own pip would ask; raises PackageIndexError where nobody says which that is."""
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"):
        if os.environ.get(name):
            return os.environ[name]
    # "pip config get" ends with an error where nothing is configured; then it is the address that pip has built in.
    code = (
        "import subprocess, sys; from pip._internal.models.index import PyPI; "
        "said = subprocess.run([sys.executable, '-m', 'pip', 'config', 'get', 'global.index-url'], "
        "capture_output=True, text=True); print(said.stdout.strip() or PyPI.simple_url)"
    )
    for python in (sys.executable, "python3"):
        try:
            done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=30, check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0 and "://" in done.stdout:
            return done.stdout.strip()
    raise PackageIndexError("no index is known on the controller: give index_url")


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """Turn whatever a connection, or who answers there, can do wrong into a PackageIndexError."""
    try:
        yield
    except (urllib.error.URLError, OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        words = getattr(reason, "strerror", None) or type(reason).__name__
        raise PackageIndexError(f"{what} cannot be read: {words}") from error


def _read_page(answer: BinaryIO, what: str) -> bytes:
    begun = time.monotonic()
    text = b""
    while chunk := answer.read1(1 << 16):  # type: ignore[attr-defined]
        text += chunk
        if len(text) > _PAGE_LIMIT or time.monotonic() - begun > _PAGE_SECONDS:
            raise PackageIndexError(f"{what} cannot be read: it is too long, or comes too slowly")
    return text


def _whole(content_range: str, length: int) -> int:
    """The size of a file of which the end was sent; 0 where the header is not about what came with it."""
    found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", content_range.strip())
    first, last, total = map(int, found.groups()) if found else (0, 0, 0)
    return total if last + 1 == total <= _ARCHIVE_LIMIT and last - first + 1 == length else 0


def _is_plain(name: str) -> bool:
    """Whether a file's name is one, and no path: files are kept under the names that an index gives them."""
    return name not in ("", ".", "..") and "/" not in name and name.isprintable()


def _split(url: str) -> tuple[str, str | None]:
    """The address without credentials, and the header that carries them. Raises PackageIndexError."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme == "file" or parts.scheme in _WEB and parts.hostname and (parts.port or True)
    except ValueError:
        usable = False
    if not usable:
        raise PackageIndexError("not the address of an index: index_url or extra_index_urls: give https://HOST/PATH")
    user, at, place = parts.netloc.rpartition("@")
    if not at:
        return url, None
    name, _colon, password = user.partition(":")
    token = base64.b64encode(f"{unquote(name)}:{unquote(password)}".encode()).decode()
    return urlunsplit(parts._replace(netloc=place)), f"Basic {token}"


def _local_path(url: str) -> str:
    return unquote(urlsplit(url).path)


def _local_page(page: str) -> list[IndexFile]:
    place = Path(_local_path(page), "index.html")
    try:
        return _read_html(place.read_text(encoding="utf-8"), page)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise PackageIndexError(f"a page of the index cannot be read: {place.parent.name}: {error}") from error


def _read_json(text: bytes, base: str) -> list[IndexFile]:
    try:
        found = []
        for file in json.loads(text)["files"]:
            yanked = file.get("yanked", False)
            found.append(
                IndexFile(
                    str(file["filename"]),
                    urljoin(base, file["url"]),
                    tuple(f"{name}:{digest}" for name, digest in file.get("hashes", {}).items()),
                    file.get("size") if isinstance(file.get("size"), int) else None,
                    None if yanked is False else ("" if yanked is True else str(yanked)),
                    file.get("requires-python"),
                )
            )
        return found
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PackageIndexError("a page of the index is no list of files (PEP 691)") from error


class _Links(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[dict[str, str | None]] = []
        self.base: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.links.append(dict(attrs))
        elif tag == "base":
            self.base = dict(attrs).get("href")


def _read_html(text: str, base: str) -> list[IndexFile]:
    parser = _Links()
    parser.feed(text)
    found = []
    for link in parser.links:
        url, fragment = urldefrag(urljoin(parser.base or base, link.get("href") or ""))
        name = unquote(os.path.basename(urlsplit(url).path))
        algorithm, equals, digest = fragment.partition("=")
        if name:
            found.append(
                IndexFile(
                    name,
                    url,
                    (f"{algorithm}:{digest}",) if equals and algorithm.startswith("sha") else (),
                    None,
                    (link["data-yanked"] or "") if "data-yanked" in link else None,
                    link.get("data-requires-python"),
                )
            )
    return found
