# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The content of a reference's files, and what a wheel of an installed distribution holds. Private to the collection.

Source of the format: PyPA specification "Binary distribution format".
"""

from __future__ import annotations

import base64
import configparser
import os
import platform
import re
import stat
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.gpufleet.dflash.plugins.module_utils._paths import open_regular, read_start
from ansible_collections.gpufleet.dflash.plugins.module_utils._record import INSTALLERS_OWN
from ansible_collections.gpufleet.dflash.plugins.module_utils._reference import Reference, ReferenceVenvError
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheels import Distribution, sha256_of

# Bytes that one answer may carry, before compression and base64.
PART_LIMIT = 16 << 20
_HEADER_LIMIT = 64 << 10
_EDITABLE = re.compile(r"(^__editable__|\.egg-link$|^_?__editable___)")


def read_parts(root: str, wanted: Sequence[Mapping[str, Any]]) -> list[str]:
    """The content of parts of files below ``root``, each {path, offset, length}, compressed and in base64.

    Raises ReferenceVenvError for a path that leads out of ``root``, OSError for what cannot be read.
    """
    top = os.path.realpath(root) + "/"
    if sum(max(0, part["length"]) for part in wanted) > PART_LIMIT:
        raise ReferenceVenvError(f"more than {PART_LIMIT} bytes were asked for at once: {root}: ask for less")
    found = []
    for part in wanted:
        path = os.path.join(top, part["path"])
        if not (os.path.realpath(os.path.dirname(path)) + "/").startswith(top):
            raise ReferenceVenvError(f"a file outside the venv was asked for: {part['path']}: {root}: nothing was read")
        with open_regular(path) as stream:
            stream.seek(part["offset"])
            found.append(base64.b64encode(zlib.compress(stream.read(part["length"]), 1)).decode())
    return found


def describe_host() -> dict[str, Any]:
    """What of a host decides whether wheels work there; values that stay the same from run to run."""
    libc = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else None
    return {
        "machine": platform.machine(),
        "glibc": libc.split()[-1] if libc else None,
        "driver": _driver(),
        "system": _system(),
    }


def _driver() -> str | None:
    try:
        return read_start("/sys/module/nvidia/version", 256).strip() or None
    except OSError:
        return None


def _system() -> str | None:
    try:
        text = read_start("/etc/os-release", _HEADER_LIMIT)
    except OSError:
        return None
    found = re.search(r'^PRETTY_NAME="?(.*?)"?$', text, flags=re.MULTILINE)
    return found[1] if found else None


def wheels_of(reference: Reference, names: Collection[str]) -> list[dict[str, Any]]:
    """What the wheels of these installed distributions hold, or why none can be made (``reason``)."""
    return [_wheel_of(found, reference) for found in reference.kept if found.name in names]


def _wheel_of(distribution: Distribution, reference: Reference) -> dict[str, Any]:
    answer: dict[str, Any] = {"name": distribution.name, "version": distribution.version, "reason": None, "files": []}
    if distribution.path.endswith(".egg-info") or not distribution.files:
        return {**answer, "reason": "it has no RECORD that tells its files: build a wheel of it from its source"}
    try:
        answer["tags"] = _tags(distribution)
        files = list(_files(distribution, reference.venv.path))
    except (OSError, ValueError) as error:
        return {**answer, "reason": f"its files cannot be read: {error}"}
    if any(_EDITABLE.search(os.path.basename(file["path"])) for file in files):
        return {**answer, "reason": "it is editable, its files are elsewhere: build a wheel of its source tree"}
    names = {kept.name for kept in reference.kept}
    foreign = [
        owner.pin
        for file in files
        for owner in reference.installed.owners(os.path.join(os.path.realpath(reference.venv.path), file["path"]))
        if owner.name != distribution.name and owner.name in names and not file["place"].endswith("/__init__.py")
    ]
    if foreign:
        return {**answer, "reason": f"it shares files with {', '.join(sorted(set(foreign)))}: name one in leave_out"}
    return {**answer, "dist_info": os.path.basename(distribution.path), "files": files}


def _tags(distribution: Distribution) -> list[str]:
    text = read_start(os.path.join(distribution.path, "WHEEL"), _HEADER_LIMIT)
    tags = [tag.strip() for tag in re.findall(r"^Tag:(.+)$", text, flags=re.MULTILINE)]
    if not tags or not all(re.fullmatch(r"[\w.]+-[\w.]+-[\w.]+", tag) for tag in tags):
        raise ValueError(f"{distribution.path}/WHEEL names no usable tag")
    return sorted(tags)


def _files(distribution: Distribution, venv: str) -> Iterator[dict[str, Any]]:
    """The files of a distribution, each with its place in a wheel. Raises OSError, ValueError."""
    top = os.path.realpath(venv) + "/"
    site = os.path.realpath(distribution.site_packages) + "/"
    own = os.path.basename(distribution.path) + "/"
    data = own.replace(".dist-info/", ".data/")
    generated = _entry_points(distribution)
    for path in sorted({row.path for row in distribution.files}):
        if not path.startswith(top):
            raise ValueError(f"{path} is outside the venv")
        if path.endswith((".pyc", ".pyo")) or not os.path.lexists(path):
            continue
        if path.startswith(site):
            place = path[len(site) :]
            if place.startswith(own) and place[len(own) :] in INSTALLERS_OWN:
                continue
        else:
            scheme, _slash, rest = path[len(top) :].partition("/")
            if scheme == "bin" and rest in generated:
                continue
            place = f"{data}scripts/{rest}" if scheme == "bin" else f"{data}data/{path[len(top) :]}"
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{path} is not a regular file")
        yield {
            "path": path[len(top) :],
            "place": place,
            "sha256": sha256_of(path),
            "size": status.st_size,
            "executable": bool(status.st_mode & 0o111),
        }


def _entry_points(distribution: Distribution) -> set[str]:
    """Scripts that an installer writes itself, from the names in entry_points.txt."""
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(read_start(os.path.join(distribution.path, "entry_points.txt"), _HEADER_LIMIT))
    except (OSError, configparser.Error):
        return set()
    return {
        name
        for section in ("console_scripts", "gui_scripts")
        if parser.has_section(section)
        for name in parser.options(section)
    }
