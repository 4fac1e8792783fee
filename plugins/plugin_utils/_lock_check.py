# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge a lock before anything is built, from what the indexes tell about its wheels. Private to the collection."""

from __future__ import annotations

import contextlib
import email.parser
import json
import os
import re
import zipfile
import zlib
from collections.abc import Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, NamedTuple

from ansible_collections.gpufleet.dflash.plugins.module_utils._catalogue import (
    DRIVER_FLOORS,
    cuda_major_of,
    normalise,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._files import write_atomically
from ansible_collections.gpufleet.dflash.plugins.module_utils._paths import open_regular
from ansible_collections.gpufleet.dflash.plugins.module_utils._versions import same_version
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheel_archive import WheelFiles, read_wheel
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheel_store import clash_messages
from ansible_collections.gpufleet.dflash.plugins.plugin_utils._index import Indexes, IndexFile, PackageIndexError

_THREADS = 12
_METADATA_LIMIT = 8 << 20
_GLIBC = re.compile(r"glibc (\d+)\.(\d+)")
_LEGACY = {(2, 17): "manylinux2014", (2, 12): "manylinux2010", (2, 5): "manylinux1"}


# {pin: wheels of the controller that have a hash of it}; the url of such a file is its path.
Local = Mapping[str, Sequence[IndexFile]]


class Pin(NamedTuple):
    """One entry of a lock that the host's Python installs."""

    name: str
    version: str
    hashes: tuple[str, ...]

    @property
    def text(self) -> str:
        """``name==version``."""
        return f"{self.name}=={self.version}"


class Known(NamedTuple):
    """What is known of a wheel without having it."""

    file: IndexFile
    contents: WheelFiles
    requires: tuple[str, ...]


class Checked(NamedTuple):
    """The judgement: what is wrong, what is worth a warning, and what could not be looked at."""

    errors: list[str]
    warnings: list[str]
    wheels: dict[str, Known]  # by pin
    files: dict[str, IndexFile]  # by pin: the wheel that the host installs
    skipped: str


class Target:
    """The host's Python: which wheels it installs, the best first."""

    def __init__(self, python: Mapping[str, Any]) -> None:
        # Ansible itself needs this library on the controller; only its own import test has to do without.
        from packaging import tags  # pylint: disable=import-outside-toplevel

        version = tuple(int(part) for part in str(python["version"]).split(".")[:2])
        self.version = str(python["version"])
        self.libc = str(python.get("libc") or "")
        machine = str(python["markers"]["platform_machine"])
        platforms = list(_platforms(machine, self.libc))
        supported = [
            *tags.cpython_tags(version, platforms=platforms),
            *tags.compatible_tags(version, interpreter=f"cp{version[0]}{version[1]}", platforms=platforms),
        ]
        self._ranks = {tag: rank for rank, tag in reversed(list(enumerate(supported)))}

    @property
    def words(self) -> str:
        """What the host has, in words."""
        return f"Python {self.version}" + (f" and {self.libc}" if self.libc else "")

    def rank(self, filename: str) -> int | None:
        """The place of a wheel among those that fit, 0 the best; None for what does not fit."""
        from packaging import utils  # pylint: disable=import-outside-toplevel

        try:
            _name, _version, _build, wheel_tags = utils.parse_wheel_filename(filename)
        except utils.InvalidWheelFilename:
            return None
        ranks = [self._ranks[tag] for tag in wheel_tags if tag in self._ranks]
        return min(ranks) if ranks else None

    def allows(self, requires_python: str | None) -> bool:
        """Whether a distribution's Requires-Python allows the host's; what cannot be read does."""
        from packaging import specifiers  # pylint: disable=import-outside-toplevel

        if not requires_python:
            return True
        try:
            return specifiers.SpecifierSet(requires_python).contains(self.version, prereleases=True)
        except specifiers.InvalidSpecifier:
            return True


def check(
    pins: Sequence[Pin],
    target: Target,
    indexes: Indexes | None,
    cache: str,
    driver: str | None,
    overlays: Container[str] = (),
    local: Local | None = None,
) -> Checked:
    """Judge the pins of a lock with what is laid over it. What an index does not tell is skipped, never guessed.

    ``local`` are wheels that are on the controller; no index is asked for what they satisfy, and none at all when
    ``indexes`` is None.
    """
    result = Checked([], [], {}, {}, "")
    local = local or {}
    skipped: list[str] = []
    satisfied = [pin for pin in pins if any(target.rank(file.name) is not None for file in local.get(pin.text, ()))]
    asked = [pin for pin in pins if pin not in satisfied] if indexes else []
    for pin in satisfied:
        _choose(pin, local[pin.text], target, result)
    try:
        if indexes and asked:
            indexes.files(asked[0].name)  # when nobody answers, one question is enough to know
        with ThreadPoolExecutor(_THREADS) as pool:
            for pin, found in zip(asked, pool.map(lambda pin: _candidates(pin, indexes, local), asked)):
                _choose(pin, found, target, result)
            looked = pool.map(lambda item: _look(item[0], item[1], indexes, cache, local), result.files.items())
            for pin_text, known in zip(list(result.files), looked):
                if isinstance(known, str):
                    skipped.append(known)
                else:
                    result.wheels[pin_text] = known
    except PackageIndexError as error:
        return result._replace(errors=[], warnings=[], skipped=str(error))
    result.errors.extend(clash_messages({text: known.contents for text, known in result.wheels.items()}, overlays))
    _judge_cuda(pins, result, driver)
    words = f"{len(skipped)} wheels: {skipped[0]}" if skipped else ""
    return result._replace(skipped=words)


def _candidates(pin: Pin, indexes: Indexes | None, local: Local) -> list[IndexFile]:
    """The files of a pin's version; those that can be neither it nor another build of it are left out."""
    files = [*local.get(pin.text, ()), *(indexes.files(pin.name) if indexes else ())]
    return [file for file in files if _version_of(file.name) is not None]


def _version_of(filename: str) -> str | None:
    """The version in the name of a wheel; None for what is no wheel."""
    parts = filename.split("-")
    return parts[1] if filename.endswith(".whl") and len(parts) >= 5 else None


def _choose(pin: Pin, found: Sequence[IndexFile], target: Target, result: Checked) -> None:
    versioned = [file for file in found if same_version(_version_of(file.name) or "", pin.version)]
    mine = [file for file in versioned if not file.hashes or set(file.hashes) & set(pin.hashes)]
    if not versioned:
        result.errors.append(
            f"no index has a wheel of {pin.text}: correct the pin, name the index that has it, or give a folder of the "
            "controller that has it in local_wheels"
        )
        return
    if not mine:
        result.errors.append(
            f"no file of {pin.text} at the indexes has a hash of the lock: compile the lock anew, or name the index "
            "that it was compiled with"
        )
        return
    fitting = [(rank, file) for file in mine if (rank := target.rank(file.name)) is not None]
    if not fitting:
        names = ", ".join(sorted({file.name for file in mine})[:3])
        result.errors.append(f"no wheel of {pin.text} fits {target.words}: the lock has {names}")
        return
    chosen = min(fitting)[1]
    if not target.allows(chosen.requires_python):
        result.errors.append(f"{pin.text} requires Python {chosen.requires_python}: the host has {target.version}")
        return
    if chosen.yanked is not None:
        reason = f": {chosen.yanked}" if chosen.yanked else ""
        result.warnings.append(
            f"{pin.text} was yanked from the index{reason}; it is installed, because the lock pins it"
        )
    result.files[pin.text] = chosen


def _look(pin: str, file: IndexFile, indexes: Indexes | None, cache: str, local: Local) -> Known | str:
    """What is inside a wheel; in words, why that cannot be told."""
    digest = next((text.partition(":")[2] for text in file.hashes if text.startswith("sha256:")), None)
    place = (
        os.path.join(cache, "contents", f"{digest}.json") if digest and re.fullmatch("[0-9a-f]{64}", digest) else None
    )
    if place:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            with open(place, encoding="utf-8") as stream:
                saved = json.load(stream)
            contents = WheelFiles({path: (int(size), int(crc)) for path, (size, crc) in saved["files"].items()})
            return Known(file, contents, tuple(map(str, saved["requires"])))
    try:
        with _archive(pin, file, indexes, local) as stream:
            contents = read_wheel(stream)
            requires = _requires(stream) if normalise(pin.partition("==")[0]) == "torch" else ()
    except (PackageIndexError, ValueError, OSError) as error:
        return f"{file.name}: {error}"
    if place:
        text = json.dumps({"files": contents.files, "requires": requires}).encode()
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(place), mode=0o755, exist_ok=True)
            write_atomically(place, text)
    return Known(file, contents, requires)


def _archive(pin: str, file: IndexFile, indexes: Indexes | None, local: Local) -> BinaryIO:
    if file in local.get(pin, ()):
        return open_regular(file.url)
    if indexes is None:
        raise PackageIndexError("no index is asked")
    return indexes.archive(file)


def sha256_in(hashes: Sequence[str]) -> str | None:
    """The SHA-256 (hex) among hashes of the form ``sha256:<hex>``."""
    return next((match[1] for text in hashes if (match := re.fullmatch("sha256:([0-9a-f]{64})", text))), None)


def _requires(stream: Any) -> tuple[str, ...]:
    try:
        with zipfile.ZipFile(stream) as archive:
            name = next((name for name in archive.namelist() if name.endswith(".dist-info/METADATA")), None)
            data = b""
            if name:
                with archive.open(name) as member:
                    data = member.read(_METADATA_LIMIT + 1)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
        raise ValueError(f"is not a readable wheel: {error}") from error
    if len(data) > _METADATA_LIMIT:
        raise ValueError(f"has more than {_METADATA_LIMIT} bytes of metadata")
    text = data.decode("utf-8", "replace")
    return tuple(map(str, email.parser.HeaderParser().parsestr(text).get_all("Requires-Dist", [])))


def _judge_cuda(pins: Sequence[Pin], result: Checked, driver: str | None) -> None:
    """Hold the runtime set against what torch was built for, and against the driver."""
    versions = {pin.name: pin.version for pin in pins}
    torch = next((pin for pin in pins if pin.name == "torch"), None)
    required: dict[str, str] = {}
    known = result.wheels.get(torch.text) if torch else None
    for requirement in known.requires if known else ():
        matched = re.match(r"(nvidia-[\w.-]+)\s*(?:\(?\s*(==[^;)]+)\)?)?", requirement)
        if matched and "extra ==" not in requirement:
            required[normalise(matched[1])] = (matched[2] or "").strip()
    for name, specifier in sorted(required.items()):
        if cuda_major_of(name) is None:
            continue
        wanted = specifier[2:].strip()
        if name not in versions:
            result.errors.append(f"{torch.text if torch else ''} requires {name}{specifier}: add it to the lock")
        elif wanted and "*" not in wanted and not same_version(versions[name].partition("+")[0], wanted):
            result.errors.append(
                f"{torch.text if torch else ''} requires {name}{specifier}, the lock has {versions[name]}: pin that one"
            )
    majors = {major for name in required if (major := cuda_major_of(name)) is not None}
    if torch and not majors:
        tag = re.search(r"\+cu(\d+)\d$", torch.version)
        majors = {int(tag.group(1))} if tag else set()
    if len(majors) != 1:
        return
    (major,) = majors
    others = sorted(name for name in versions if cuda_major_of(name) not in (None, major))
    if others:
        result.warnings.append(
            f"{torch.text if torch else 'torch'} is built for CUDA {major}; the lock also has libraries of another "
            f"major: {', '.join(others)}: leave them out unless something else needs them"
        )
    branch = re.match(r"\d+", driver or "")
    floor = DRIVER_FLOORS.get(major)
    if branch and floor and int(branch.group()) < floor:
        result.errors.append(
            f"the driver {driver} is too old for CUDA {major}, which {torch.text if torch else 'torch'} is built for: "
            f"install branch {floor} or newer, or lock a set for an older CUDA"
        )


def _platforms(machine: str, libc: str) -> list[str]:
    """Platform tags of a Linux host, the newest first; without a known C library, those of every glibc."""
    found = _GLIBC.match(libc)
    newest = (int(found[1]), int(found[2])) if found else (2, 99)
    if libc and not found:
        return [f"linux_{machine}"]
    names = []
    for minor in range(newest[1] if newest[0] == 2 else 99, 4, -1):
        names.append(f"manylinux_2_{minor}_{machine}")
        if (2, minor) in _LEGACY:
            names.append(f"{_LEGACY[2, minor]}_{machine}")
    return [*names, f"linux_{machine}"]
