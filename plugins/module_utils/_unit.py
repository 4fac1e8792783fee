# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a systemd service unit gives its process, read from files.

Private to the collection. Nothing is asked of a running systemd, so that a unit can be judged before it is
installed. Sources of the rules: systemd.unit(5), systemd.exec(5), systemd.service(5); the tests compare with
systemd itself.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.gpufleet.dflash.plugins.module_utils._systemd_defaults import (
    base_environment,
    default_limit,
    environment_of_manager,
    user_variables,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._systemd_syntax import (
    UnitSyntaxError,
    assigned,
    assignments,
    environment_file,
    expand,
    read_text,
    specifiers,
    split_all,
    valid_assignment,
)

# systemd.unit(5), table 1; the first directory that holds a file of the name wins.
UNIT_DIRECTORIES = (
    "/etc/systemd/system.control",
    "/run/systemd/system.control",
    "/run/systemd/transient",
    "/run/systemd/generator.early",
    "/etc/systemd/system",
    "/run/systemd/system",
    "/run/systemd/generator",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
    "/run/systemd/generator.late",
)

# Directive, variable and place of the directories that systemd makes for a unit (systemd.exec(5)).
_MANAGED_DIRECTORIES = (
    ("RuntimeDirectory", "RUNTIME_DIRECTORY", "/run"),
    ("StateDirectory", "STATE_DIRECTORY", "/var/lib"),
    ("CacheDirectory", "CACHE_DIRECTORY", "/var/cache"),
    ("LogsDirectory", "LOGS_DIRECTORY", "/var/log"),
    ("ConfigurationDirectory", "CONFIGURATION_DIRECTORY", "/etc"),
)
_SIZES = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50, "E": 1 << 60}
INFINITY = -1

_Settings = Sequence[tuple[str, str]]


class UnitError(Exception):
    """A unit that cannot be read; the text says what is wrong, where, and what to do."""


@dataclass(frozen=True)
class UnitEnvironment:
    """What a service unit gives its main process.

    ``environment`` holds what the unit itself sets; `process_environment` adds what systemd gives every
    process. ``limits`` maps ``LimitNOFILE`` and its like to (soft, hard), INFINITY meaning no limit.
    ``settings`` are the assignments of [Service] as written, in order, drop-ins included. ``notes`` name
    every assignment that systemd would ignore.
    """

    name: str
    path: str
    drop_ins: tuple[str, ...]
    user: str | None
    group: str | None
    supplementary_groups: tuple[str, ...]
    dynamic_user: bool
    environment: dict[str, str]
    unset: tuple[str, ...]
    working_directory: str | None
    working_directory_optional: bool
    umask: int
    limits: dict[str, tuple[int, int]]
    exec_start: str
    settings: tuple[tuple[str, str], ...] = field(repr=False)
    notes: tuple[str, ...] = ()


def read_unit(unit: str, directories: Sequence[str] = UNIT_DIRECTORIES) -> UnitEnvironment:
    """Return what a unit gives its process: an absolute path of a unit file, or a name as systemctl takes it.

    Raises UnitError when there is no such unit, it is masked, or a file that it requires cannot be read.
    """
    if unit.startswith("/"):
        return parse_unit_file(unit, directories)
    if "/" in unit:
        raise UnitError(f"neither a unit name nor an absolute path: {unit}: write the whole path of the file")
    name = unit if re.search(r"\.[a-z]+\Z", unit) else unit + ".service"
    template = re.sub(r"@[^@]*(\.[a-z]+)\Z", r"@\1", name)
    for candidate in (name, template):
        for directory in directories:
            path = f"{directory}/{candidate}"
            if os.path.lexists(path):
                return _read(name, path, directories)
    raise UnitError(
        f"there is no such unit: {name}: looked in {', '.join(_existing(directories)) or 'no directory'}; "
        "check the name with `systemctl list-unit-files`, or give the path of a file not installed yet"
    )


def parse_unit_file(path: str, directories: Sequence[str] = UNIT_DIRECTORIES) -> UnitEnvironment:
    """Return what a unit file gives its process, with the drop-ins beside it and the host's for its name."""
    return _read(Path(path).name, path, [str(Path(path).parent), *directories])


def ignored_lines(unit: UnitEnvironment) -> tuple[tuple[str, str], ...]:
    """What systemd ignores in a unit: for each a sentence, and what to do."""
    return tuple((f"{note} ({unit.name})", f"correct it in {unit.path} or its drop-ins") for note in unit.notes)


def process_environment(unit: UnitEnvironment, invocation: str) -> dict[str, str]:
    """Return the whole environment of the unit's main process; ``invocation`` becomes INVOCATION_ID."""
    inherited = base_environment(unit.user, invocation)
    passed = split_all(assigned(unit.settings, "PassEnvironment"), [])
    managers = environment_of_manager()
    inherited.update({name: managers[name] for name in passed if name in managers})
    inherited.update(unit.environment)
    for entry in unit.unset:
        name, equals, value = entry.partition("=")
        if not equals or inherited.get(name) == value:
            inherited.pop(name, None)
    return inherited


def _read(name: str, path: str, directories: Sequence[str]) -> UnitEnvironment:
    if os.path.realpath(path) == "/dev/null" or (Path(path).is_file() and Path(path).stat().st_size == 0):
        raise UnitError(f"the unit is masked and would not start: {path}: run `systemctl unmask {name}`")
    names = [name]
    target = Path(os.path.realpath(path)).name
    if target != name and "@" not in target:
        names.append(target)
    drop_ins = _drop_ins(names, directories)
    settings: list[tuple[str, str]] = []
    for source in (path, *drop_ins):
        try:
            text = read_text(source)
        except OSError as error:
            raise UnitError(f"cannot read the unit: {source}: {error.strerror}") from None
        found = list(assignments(text))
        if source == path and not any(section == "Service" for section, _key, _value in found):
            raise UnitError(f"not a service unit, it has no [Service] section: {path}: give a .service unit")
        settings += [(key, value) for section, key, value in found if section == "Service"]
    return _interpret(name, path, drop_ins, settings)


def _drop_ins(names: Sequence[str], directories: Sequence[str]) -> tuple[str, ...]:
    """Return the drop-in files of a unit, in the order in which systemd applies them."""
    places = [f"{directory}/{stem}.d" for directory in directories for name in names for stem in _stems(name)]
    places += [f"{directory}/{names[0].rsplit('.', 1)[-1]}.d" for directory in directories]
    chosen: dict[str, str] = {}
    for place in places:
        for path in glob.glob(f"{glob.escape(place)}/*.conf"):
            # Of two files with one name only the first counts, so that /etc can replace what /usr/lib ships.
            chosen.setdefault(Path(path).name, path)
    return tuple(path for _name, path in sorted(chosen.items()) if os.path.realpath(path) != "/dev/null")


def _stems(name: str) -> list[str]:
    """Return the names whose ``.d`` directories apply to a unit: its own, its template's, its prefixes'."""
    stem, _dot, kind = name.rpartition(".")
    prefix, _at, instance = stem.partition("@")
    prefixes = [prefix[: match.end()] for match in re.finditer(r"-", prefix)][::-1]
    prefixes = [shorter for shorter in prefixes if shorter != prefix]
    stems = [stem, *prefixes]
    if instance:
        stems[1:1] = [f"{prefix}@"]
        stems += [f"{shorter}@{end}" for shorter in prefixes for end in (instance, "")]
    return [f"{shorter}.{kind}" for shorter in stems]


def _interpret(name: str, path: str, drop_ins: tuple[str, ...], settings: list[tuple[str, str]]) -> UnitEnvironment:
    known = specifiers(name, path)
    notes: list[str] = []

    def values(key: str) -> list[str]:
        return list(_expanded(assigned(settings, key), known, notes))

    def words(key: str) -> list[str]:
        return list(_expanded(split_all(assigned(settings, key), notes), known, notes))

    def last(key: str) -> str | None:
        return next(reversed(values(key)), None)

    environment: dict[str, str] = {}
    managed: list[str] = []
    for key, variable, place in _MANAGED_DIRECTORIES:
        directories = [f"{place}/{word.split(':')[0]}" for word in words(key)]
        if directories:
            environment[variable] = ":".join(directories)
            managed += directories
    environment.update(_assignments_of(words("Environment"), name, notes))
    for value in values("EnvironmentFile"):
        environment.update(_environment_files(value, name, notes))
    user = last("User")
    directory, optional = _working_directory(last("WorkingDirectory") or "", user, name)
    # systemd makes these directories before it enters one: before the first start there are none yet.
    optional = optional or directory in managed
    return UnitEnvironment(
        name=name,
        path=path,
        drop_ins=drop_ins,
        user=user,
        group=last("Group"),
        supplementary_groups=tuple(words("SupplementaryGroups")),
        dynamic_user=(last("DynamicUser") or "no").lower() in ("1", "yes", "y", "true", "t", "on"),
        environment=environment,
        unset=tuple(words("UnsetEnvironment")),
        working_directory=directory,
        working_directory_optional=optional,
        umask=_umask(last("UMask"), notes),
        limits=_limits(settings, notes),
        exec_start=(assigned(settings, "ExecStart") or [""])[0],
        settings=tuple(settings),
        notes=tuple(notes),
    )


def _expanded(values: Iterable[str], known: Mapping[str, str], notes: list[str]) -> Iterator[str]:
    for value in values:
        text, problem = _expand(value, known)
        if problem:
            notes.append(f"systemd ignores a value: {problem}")
        else:
            yield text


def _expand(value: str, known: Mapping[str, str]) -> tuple[str, str]:
    try:
        return expand(value, known), ""
    except UnitSyntaxError as error:
        return "", str(error)


def _working_directory(value: str, user: str | None, unit: str) -> tuple[str | None, bool]:
    """Return the directory and whether the unit starts without it."""
    optional = value.startswith("-")
    directory = value[1:] if optional else value
    if directory == "~":
        return (user_variables(user).get("HOME", "/") if user else "/root"), optional
    if directory and not directory.startswith("/"):
        raise UnitError(f"systemd would refuse the unit: WorkingDirectory={value} of {unit}: write an absolute path")
    return directory or None, optional


def _assignments_of(words: Iterable[str], where: str, notes: list[str]) -> dict[str, str]:
    environment: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if equals and valid_assignment(name, value):
            environment[name] = value
        else:
            notes.append(f"systemd ignores a malformed Environment= assignment: {where}: {word!r}")
    return environment


def _environment_files(value: str, unit: str, notes: list[str]) -> dict[str, str]:
    """Return what the files of one EnvironmentFile= set; the path may be a pattern."""
    optional = value.startswith("-")
    pattern = value[1:] if optional else value
    if not pattern.startswith("/"):
        notes.append(f"EnvironmentFile={pattern} is not an absolute path, systemd ignores it")
        return {}
    paths = sorted(glob.glob(pattern))
    if not paths and not optional:
        raise UnitError(
            f"the environment file does not exist, the unit would not start: {pattern} (EnvironmentFile= of "
            f"{unit}): create it, or write EnvironmentFile=-{pattern} if it may be absent"
        )
    environment: dict[str, str] = {}
    for path in paths:
        for name, text in _environment_pairs(path, unit, optional):
            if valid_assignment(name, text):
                environment[name] = text
            else:
                # The value stays out of the note: such files hold keys.
                notes.append(f"systemd ignores a malformed line: {path}: variable {name!r}")
    return environment


def _environment_pairs(path: str, unit: str, optional: bool) -> list[tuple[str, str]]:
    try:
        return list(environment_file(read_text(path)))
    except OSError as error:
        if optional:
            return []
        raise UnitError(
            f"cannot read an environment file: {path} (EnvironmentFile= of {unit}): {error.strerror}"
        ) from None


def _umask(value: str | None, notes: list[str]) -> int:
    try:
        return int(value or "0022", 8)
    except ValueError:
        notes.append(f"UMask={value} is not an octal number, systemd ignores it")
        return 0o022


def _limits(settings: _Settings, notes: list[str]) -> dict[str, tuple[int, int]]:
    limits: dict[str, tuple[int, int]] = {}
    for key in sorted({key for key, _value in settings if key.startswith("Limit")}):
        for value in assigned(settings, key)[-1:]:
            soft, _colon, hard = value.partition(":")
            pair = (_limit(soft), _limit(hard or soft))
            if pair[0] is None or pair[1] is None:
                notes.append(f"{key}={value} is not applied by this check: it reads plain numbers and sizes")
            else:
                limits[key] = (pair[0], pair[1])
    return limits


def manager_limit(name: str) -> tuple[int, int] | None:
    """Return (soft, hard) of a limit such as ``MEMLOCK`` that this host's systemd.conf gives to services whose unit
    does not set it; None where it gives none.
    """
    soft, _colon, hard = (default_limit(name) or "").partition(":")
    pair = (_limit(soft), _limit(hard or soft))
    return None if pair[0] is None or pair[1] is None else (pair[0], pair[1])


def _limit(text: str) -> int | None:
    if text == "infinity":
        return INFINITY
    match = re.match(r"(\d+)([A-Z]?)\Z", text)
    if match is None or match.group(2) not in _SIZES:
        return None
    return int(match.group(1)) * _SIZES[match.group(2)]


def _existing(directories: Iterable[str]) -> list[str]:
    return [directory for directory in directories if Path(directory).is_dir()]
