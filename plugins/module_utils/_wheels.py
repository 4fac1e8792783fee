# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read installed distributions: metadata, files they own, what is damaged. Private to the collection.

Source of the formats: PyPA specifications "Recording installed projects" and "Core metadata".
"""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from ansible_collections.gpufleet.dflash.plugins.module_utils import _catalogue
from ansible_collections.gpufleet.dflash.plugins.module_utils._catalogue import normalise
from ansible_collections.gpufleet.dflash.plugins.module_utils._paths import canonical, open_regular
from ansible_collections.gpufleet.dflash.plugins.module_utils._record import Folder, Record, Row, read_record

# Larger than the largest honest METADATA (a long README) by far.
_METADATA_LIMIT = 16 * 1024 * 1024
# RECORD may name any file of the host, also /proc/kcore with its 128 terabytes.
_HASH_LIMIT = 16 * 1024**3
_CODE = (".py", ".pyi", ".cubin", ".fatbin", ".ptx", ".bc", ".a", ".pth")
# PyPA's "Names and normalization"; of versions, also what is none for PEP 440.
_SYNTAX = {
    "Name": re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"),
    "Version": re.compile(r"[A-Za-z0-9][ -~]*"),
}
_UNUSABLE = re.compile(r"[^A-Za-z0-9._+!-]+")
_END_OF_HEADERS = re.compile(r"\n\r?\n")
_LIBRARY = re.compile(r"lib[^/]*\.so(\.[\w.]+)?$")


_DOCUMENTS = re.compile(
    r"(?i)(^|/)(licen[cs]e|copying|notice|readme|authors|changelog|news)[^/]*$|\.(md|rst|txt|html|pdf)$"
)
_NOT_PACKAGES = frozenset(
    (
        *("tests", "test", "docs", "doc", "examples", "example", "benchmarks", "benchmark", "scripts"),
        *("build_backend.py", "build_utils.py", "conftest.py", "setup.py", "example.py"),
    )
)


class Damage(NamedTuple):
    """A file of the environment's own book-keeping that cannot be used as it is."""

    path: str
    reason: str


@dataclass(eq=False)
class Distribution:
    """One installed distribution: ``name`` normalised as PEP 503 says, ``path`` its dist-info directory."""

    name: str
    version: str
    path: str
    site_packages: str
    requires: list[str] = field(default_factory=list)
    files: Record = field(default_factory=Record)
    installer: str = ""

    @property
    def pin(self) -> str:
        """``name==version``, as a requirements file says it."""
        return f"{self.name}=={self.version}"

    @property
    def size(self) -> int:
        """Bytes of its files, as its RECORD says."""
        return self.files.total_size


class Claim(NamedTuple):
    """What one distribution recorded of a path."""

    owner: Distribution
    row: Row


@dataclass
class Installed:
    """All distributions of some site-packages, and who owns which path."""

    distributions: list[Distribution]
    damages: list[Damage]

    def __post_init__(self) -> None:
        # By directory: a table of whole paths would be the largest thing that the facts keep.
        self._folders: dict[str, list[tuple[Distribution, Folder]]] = {}
        libraries: list[str] = []
        for distribution in self.distributions:
            for folder in distribution.files.folders():
                self._folders.setdefault(folder.directory, []).append((distribution, folder))
                if ".so" in folder.names:
                    libraries += [f"{folder.directory}/{name}" for name in filter(is_shared_object, folder.split())]
        self._libraries = {path: self.owners(path) for path in libraries}
        self._several = self._owned_by_several()
        claims = {path: self.owners(path) for path in self._several}
        self._shared = {path: owners for path, owners in claims.items() if len({owner.name for owner in owners}) > 1}
        self._claims: dict[str, list[Claim]] | None = None

    def _owned_by_several(self) -> dict[str, None]:
        """Paths that more than one distribution recorded, in order."""
        mixed = {directory for directory, found in self._folders.items() if found[0][0] is not found[-1][0]}
        first: dict[str, Distribution] = {}
        several: dict[str, None] = {}
        for distribution in self.distributions:
            for folder in distribution.files.folders():
                for name in folder.split() if folder.directory in mixed else ():
                    path = f"{folder.directory}/{name}"
                    if first.setdefault(path, distribution) is not distribution:
                        several[path] = None
        return several

    @property
    def versions(self) -> dict[str, str]:
        """{normalised name: version}, sorted. The first on the import path counts, as it does for Python."""
        found: dict[str, str] = {}
        for distribution in self.distributions:
            found.setdefault(distribution.name, distribution.version)
        return dict(sorted(found.items()))

    def owners(self, path: str) -> list[Distribution]:
        """Distributions whose RECORD lists this absolute path, directories spelled as links or resolved."""
        return list(self._owned(path) or self._owned(canonical(path)))

    def _owned(self, path: str) -> tuple[Distribution, ...]:
        directory, _slash, name = path.rpartition("/")
        found = self._folders.get(directory, ())
        return tuple(dict.fromkeys(distribution for distribution, folder in found if name in folder))

    def directories(self) -> Collection[str]:
        """Absolute directories of all files that distributions own."""
        return self._folders.keys()

    def names_in(self, directory: str) -> set[str]:
        """Names of the files of an absolute directory that distributions own."""
        return set().union(*(folder.split() for _distribution, folder in self._folders.get(directory, ())))

    def shared(self) -> dict[str, list[Distribution]]:
        """Paths that distributions of different names claim."""
        return self._shared

    def claims(self, path: str) -> list[Claim]:
        """What each owner recorded of a path that several distributions own, or several copies of one."""
        if self._claims is None:
            found: dict[str, dict[Claim, None]] = {path: {} for path in self._several}
            owners = {owner for path in found for owner in self._owned(path)}
            for distribution in filter(owners.__contains__, self.distributions):
                for row in distribution.files.rows_of(found):
                    found[row.path][Claim(distribution, row)] = None
            self._claims = {path: list(claims) for path, claims in found.items()}
        return self._claims.get(path, [])

    def digests(self, path: str) -> set[str | None]:
        """The digests that the owners of a path recorded: more than one when they differ."""
        if path in self._several:
            return {claim.row.digest for claim in self.claims(path)}
        return {row.digest for owner in self._owned(path) for row in owner.files.rows_of((path,))}

    def libraries(self) -> dict[str, list[Distribution]]:
        """Owned paths named like shared objects (``*.so``, ``*.so.N``) and their owners."""
        return self._libraries


def is_shared_object(path: str) -> bool:
    """Whether the file's name is one of a shared object or an extension module."""
    name = path[path.rfind("/") + 1 :]
    return name.endswith(".so") or ".so." in name


def is_incidental(path: str) -> bool:
    """Whether a file, by its path below site-packages, is there by mistake: nobody imports or loads it.

    Many packages install a top-level tests/, LICENSE or the code that builds them.
    """
    return path.split("/")[0] in _NOT_PACKAGES or bool(_DOCUMENTS.search(path))


def is_code(path: str) -> bool:
    """Whether a program fails without this file: not a licence, a header or a document."""
    return is_shared_object(path) or path.endswith(_CODE)


def read_installed(site_packages: Iterable[str]) -> Installed:
    """Read the distributions of several site-packages, in the order of the import path."""
    distributions: list[Distribution] = []
    damages: list[Damage] = []
    for directory in site_packages:
        found, damaged = read_site(directory)
        distributions += found
        damages += damaged
    return Installed(distributions, damages)


def read_site(site_packages: str) -> tuple[list[Distribution], list[Damage]]:
    """Distributions of one site-packages sorted by name, and what could not be read there."""
    distributions: list[Distribution] = []
    damages: list[Damage] = []
    try:
        names = sorted(os.listdir(site_packages))
    except OSError as error:
        return [], [Damage(site_packages, error.strerror or str(error))]
    root = os.path.realpath(site_packages)
    for name in names:
        path = os.path.join(site_packages, name)
        # pip renames what it is about to remove to ~name; Python and pip ignore such leftovers.
        if name.startswith("~"):
            continue
        if name.endswith(".dist-info"):
            distributions.append(_read_dist_info(path, site_packages, root, damages))
        elif name.endswith(".egg-info"):
            distributions.append(_read_egg_info(path, site_packages, damages))
    return sorted(distributions, key=lambda found: (found.name, found.version)), damages


def _read_dist_info(path: str, site_packages: str, root: str, damages: list[Damage]) -> Distribution:
    distribution = _read_metadata(os.path.join(path, "METADATA"), path, site_packages, damages)
    record = os.path.join(path, "RECORD")
    try:
        distribution.files, reason = read_record(record, root)
    except (OSError, ValueError) as error:
        damages.append(Damage(record, _reason(error)))
    else:
        if reason:
            damages.append(Damage(record, reason))
    try:
        distribution.installer = _read_text(os.path.join(path, "INSTALLER"), 1024).strip()
    except (OSError, ValueError):
        distribution.installer = ""
    return distribution


def _read_egg_info(path: str, site_packages: str, damages: list[Damage]) -> Distribution:
    """Old installations of setuptools and distutils: a name and a version, but no list of files to check."""
    metadata = os.path.join(path, "PKG-INFO") if os.path.isdir(path) else path
    return _read_metadata(metadata, path, site_packages, damages)


def _read_metadata(file: str, path: str, site_packages: str, damages: list[Damage]) -> Distribution:
    # name-version of the directory stands in where the file is damaged: the operator must still see which one
    # it is.
    stem = os.path.basename(path).rpartition(".")[0]
    name, version = (_UNUSABLE.sub("-", part).strip("-._") for part in (*stem.split("-", 1), "")[:2])
    name = name or "unnamed"
    requires: list[str] = []
    try:
        headers = _headers(_read_text(file, _METADATA_LIMIT))
    except (OSError, ValueError) as error:
        damages.append(Damage(file, _reason(error)))
    else:
        found = {key: headers.get(key.lower(), [""])[0] for key in ("Name", "Version")}
        missing = [key for key, value in found.items() if not value]
        if missing:
            damages.append(Damage(file, f"has no {' and no '.join(missing)}"))
        # What stands in commands and messages must be a name and a version, and no option and no control character.
        odd = [key for key, value in found.items() if value and not _SYNTAX[key].fullmatch(value)]
        if odd:
            damages.append(Damage(file, f"has no usable {' and no usable '.join(odd)}"))
        usable = {key: value for key, value in found.items() if key not in odd}
        name, version = usable.get("Name") or name, usable.get("Version") or version
        requires = [" ".join(value.split()) for value in headers.get("requires-dist", [])]
    return Distribution(normalise(name), version, path, site_packages, requires)


def _read_text(path: str, limit: int) -> str:
    """The whole file. Never opens what could block (a FIFO) and never reads more than ``limit`` bytes."""
    with open_regular(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > limit:
            raise ValueError(f"is larger than {limit} bytes")
        # Not the limit itself: so much memory would be asked for, for each file.
        data = stream.read(size)
    if b"\0" in data:
        raise ValueError("is not text")
    return data.decode("utf-8", errors="strict")


def _headers(text: str) -> dict[str, list[str]]:
    """Core metadata's headers by lower-case name. What follows them is a README, a hundred times as long."""
    found: dict[str, list[list[str]]] = {}
    parts: list[str] = []
    for line in _END_OF_HEADERS.split(text, maxsplit=1)[0].splitlines():
        if line.startswith((" ", "\t")):
            parts.append(line.strip())
        else:
            name, colon, value = line.partition(":")
            if not colon:
                break
            parts = [value.strip()]
            found.setdefault(name.lower(), []).append(parts)
    return {name: [" ".join(parts) for parts in values] for name, values in found.items()}


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "is not UTF-8 text"
    if isinstance(error, OSError):
        if error.errno == errno.EINVAL:  # open_regular's own words
            return error.strerror or str(error)
        return "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
    return str(error)


def record_digest(sha256: str) -> str:
    """The spelling in RECORD of a SHA-256 in hexadecimal."""
    return base64.urlsafe_b64encode(bytes.fromhex(sha256)).decode().rstrip("=")


def sha256_of(path: str) -> str:
    """SHA-256 of a file's content, in lower-case hexadecimal. Raises OSError, also for what is no regular file and
    for what is larger than any file of a wheel.
    """
    digest = hashlib.sha256()
    with open_regular(path) as stream:
        left = os.fstat(stream.fileno()).st_size
        if left > _HASH_LIMIT:
            raise OSError(errno.EFBIG, f"is larger than {_HASH_LIMIT} bytes", path)
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
            left -= len(chunk)
            # Of those in /proc, which have no size, some never end.
            if left < 0:
                raise OSError(errno.EFBIG, "is longer than its size says", path)
    return digest.hexdigest()


def library_path(installed: Installed) -> list[str]:
    """The directories that LD_LIBRARY_PATH needs for these distributions: absolute, sorted.

    Those named ``lib`` that hold existing ``lib*.so*`` of NVIDIA's distributions, below ``nvidia/`` or where
    the catalogue's distributions put them. A compiler's private libraries (``nvvm/lib64``) and what other
    packages bundle are not among them.
    """
    directories = set()
    for path, owners in installed.libraries().items():
        directory, name = os.path.split(path)
        if os.path.basename(directory) != "lib" or not _LIBRARY.match(name) or directory in directories:
            continue
        for owner in owners:
            below_nvidia = path.startswith(os.path.realpath(owner.site_packages) + "/nvidia/")
            known = below_nvidia and owner.name.startswith("nvidia-") or _catalogue.wheel_of(owner.name)
            if known and os.path.exists(path):
                directories.add(directory)
    return sorted(directories)
