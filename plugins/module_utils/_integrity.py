# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the files of installed distributions with their RECORDs. Private to the collection.

pip and uv let a distribution overwrite files of another and delete them on its removal (pypa/pip#12313,
astral-sh/uv#10564); ``pip check`` does not look at files at all. A size tells most of it for a few
microseconds a file.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ansible_collections.gpufleet.dflash.plugins.module_utils._record import Row, told
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheels import (
    Claim,
    Distribution,
    Installed,
    is_shared_object,
    record_digest,
    sha256_of,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._wrong_records import is_as_published

VERIFY = ("size", "hash", "none")


class Altered(NamedTuple):
    """A file whose content is not the one recorded. ``evidence`` says how it differs."""

    path: str
    distribution: Distribution
    evidence: str


class Contested(NamedTuple):
    """A file recorded differently: ``holders`` recorded what is on disk, ``losers`` did not.

    ``digest`` is that of the disk, as RECORD spells it.
    """

    path: str
    holders: tuple[Distribution, ...]
    losers: tuple[Distribution, ...]
    digest: str


@dataclass
class Integrity:
    """What the disk says of the recorded files."""

    missing: list[tuple[str, Distribution]] = field(default_factory=list)
    altered: list[Altered] = field(default_factory=list)
    contested: list[Contested] = field(default_factory=list)
    dangling: list[tuple[str, Distribution]] = field(default_factory=list)
    unreadable: list[tuple[str, Distribution, str]] = field(default_factory=list)


def check_files(installed: Installed, verify: str) -> Integrity:
    """Check every recorded file: ``size`` compares sizes and hashes what is contested, ``hash`` hashes all.

    ``none`` checks nothing. Byte-compiled files are left out: Python rewrites them as it likes.
    """
    found = Integrity()
    if verify == "none":
        return found
    shared = installed.shared()
    for distribution in installed.distributions:
        if verify == "size":
            for path, size in _unlike(distribution):
                if path not in shared:
                    _check_row(Row(path, None, size), distribution, verify, found)
        else:
            for row in distribution.files:
                if row.path not in shared and not row.path.endswith(".pyc"):
                    _check_row(row, distribution, verify, found)
    for path in shared:
        if not path.endswith(".pyc"):
            _check_claims(installed.claims(path), verify, found)
    return found


def _unlike(distribution: Distribution) -> Iterator[tuple[str, int | None]]:
    """Path and recorded size of all files but those that are surely as recorded: hardly any, of sixty thousand."""
    # From there the kernel finds a file sooner than from the root.
    site_packages = os.open(distribution.site_packages, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for directory, names, sizes in distribution.files.runs():
            below = distribution.files.below(directory)
            folder = f"{directory}/" if below is None else below
            for name, size in zip(names, sizes):
                if name.endswith(".pyc"):
                    continue
                try:
                    status = os.stat(folder + name, dir_fd=site_packages)
                    if status.st_size == size and stat.S_ISREG(status.st_mode):
                        continue
                except OSError:
                    pass
                yield f"{directory}/{name}", told(size)
    finally:
        os.close(site_packages)


def _check_row(row: Row, distribution: Distribution, verify: str, found: Integrity) -> None:
    size = _size(row, distribution, found)
    if size is None:
        return
    difference = ""
    if row.size is not None and size != row.size:
        difference = f"{size} bytes, RECORD says {row.size}"
    elif verify == "hash" and row.digest is not None:
        digest = _digest(row.path, distribution, found)
        if digest is not None and record_digest(digest) != row.digest:
            difference = f"sha256 {digest[:16]}, another than RECORD says"
    if difference and not is_as_published(row.path, distribution):
        found.altered.append(Altered(row.path, distribution, difference))


def _size(row: Row, distribution: Distribution, found: Integrity) -> int | None:
    """The file's size in bytes; None, with the finding noted, when there is no such file to compare."""
    try:
        status = os.stat(row.path)
    except OSError as error:
        if os.path.islink(row.path):
            found.dangling.append((row.path, distribution))
        elif isinstance(error, (FileNotFoundError, NotADirectoryError)):
            if not is_as_published(row.path, distribution):
                found.missing.append((row.path, distribution))
        else:
            found.unreadable.append((row.path, distribution, error.strerror or str(error)))
        return None
    if not stat.S_ISREG(status.st_mode):
        found.altered.append(Altered(row.path, distribution, "is not a regular file"))
        return None
    return status.st_size


def _digest(path: str, distribution: Distribution, found: Integrity) -> str | None:
    try:
        return sha256_of(path)
    except OSError as error:
        found.unreadable.append((path, distribution, error.strerror or str(error)))
        return None


def _check_claims(claims: Sequence[Claim], verify: str, found: Integrity) -> None:
    first, row = claims[0]
    if not os.path.exists(row.path):
        for owner, claim in claims:
            _size(claim, owner, found)
    elif len({claim.digest for _owner, claim in claims}) == 1:
        _check_row(row, first, verify, found)
    elif _size(row, first, found) is not None:
        sha256 = _digest(row.path, first, found)
        actual = record_digest(sha256) if sha256 else None
        holders = tuple(owner for owner, claim in claims if claim.digest == actual)
        losers = tuple(owner for owner, claim in claims if claim.digest not in (None, actual))
        if actual and losers:
            found.contested.append(Contested(row.path, holders, losers, actual))


def unowned_libraries(installed: Installed, site_packages: Sequence[str]) -> list[str]:
    """Shared objects below ``nvidia`` that no distribution owns, sorted.

    A link to a file that somebody owns is none: people make libcudnn.so for a compiler that way.
    """
    found = []
    for root in dict.fromkeys(os.path.realpath(directory) for directory in site_packages):
        top = os.path.join(root, "nvidia")
        # A link leads to what may be anything, up to the whole file system.
        for directory, _folders, files in os.walk(top) if not os.path.islink(top) else ():
            for name in files:
                path = f"{directory}/{name}"
                if is_shared_object(name) and not installed.owners(path) and not _links_to_owned(path, installed):
                    found.append(path)
    return sorted(found)


def _links_to_owned(path: str, installed: Installed) -> bool:
    return os.path.islink(path) and bool(installed.owners(os.path.realpath(path)))


def unowned_files(installed: Installed, site_packages: Sequence[str]) -> list[str]:
    """Source files and shared objects inside installed packages that no distribution owns, sorted.

    Overlays that people put there, and what an upgrade left behind. Files at the top of site-packages and
    directories that no distribution owns are not part of a package: virtual environments and tools keep their
    own things there.
    """
    owned = installed.directories()
    packages = []
    for root in {os.path.realpath(directory) for directory in site_packages}:
        start = len(root) + 1
        tops = {directory[start:].partition("/")[0] for directory in owned if directory.startswith(root + "/")}
        paths = [f"{root}/{top}" for top in tops if not top.endswith((".dist-info", ".egg-info"))]
        packages += [path for path in paths if not os.path.islink(path)]
    found = []
    todo = packages
    while todo:
        directory = todo.pop()
        names = installed.names_in(directory)
        with contextlib.suppress(OSError), os.scandir(directory) as entries:
            for entry in entries:
                name = entry.name
                if name in names:  # nearly all of them
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if name != "__pycache__":
                        todo.append(entry.path)
                elif (name.endswith(".py") or is_shared_object(name)) and not entry.is_dir():
                    found.append(entry.path)
    return sorted(found)
