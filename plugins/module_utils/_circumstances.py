# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Under which circumstances a service uses the GPUs: what its unit gives it, or what any has. Private to the
collection.
"""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ansible_collections.gpufleet.dflash.plugins.module_utils._systemd_defaults import base_environment
from ansible_collections.gpufleet.dflash.plugins.module_utils._systemd_syntax import assigned, split_all
from ansible_collections.gpufleet.dflash.plugins.module_utils._unit import ignored_lines, process_environment, read_unit

_YES = ("1", "yes", "y", "true", "t", "on")


@dataclass(frozen=True)
class Account:
    """Who a process is: its user and all its groups, by number."""

    name: str
    uid: int
    groups: frozenset[int]

    def may(self, mode: int, uid: int, gid: int) -> bool:
        """Whether the mode bits of a device let this account read and write."""
        if self.uid == 0:
            return True
        shift = 6 if uid == self.uid else 3 if gid in self.groups else 0
        return mode >> shift & 0o6 == 0o6


@dataclass(frozen=True)
class Circumstances:
    """``unit`` is None for any service. ``account`` is None for a user that this host does not know.

    ``memlock`` is (soft, hard) in bytes as the unit sets it, -1 for no limit, None when it does not set one.
    ``device_rules`` are the values of DeviceAllow= when the unit allows no other devices, else None.
    """

    unit: str | None
    environment: Mapping[str, str]
    directory: str
    account: Account | None
    memlock: tuple[int, int] | None = None
    new_privileges: bool = True
    private_devices: bool = False
    device_rules: tuple[str, ...] | None = None
    # What systemd ignores in the unit: a sentence, and what to do.
    ignored: tuple[tuple[str, str], ...] = field(default=())

    @property
    def whose(self) -> str:
        """Who sets the environment, for messages."""
        return f"unit {self.unit}" if self.unit else "the environment"


def circumstances_of(unit: str | None, environment: Mapping[str, str] | None = None) -> Circumstances:
    """Read the unit; without one, a service of root with ``environment``. Raises UnitError."""
    if unit is None:
        variables = {**base_environment(None, ""), **(environment or {})}
        return Circumstances(None, variables, "/", Account("root", 0, frozenset({0})))
    found = read_unit(unit)
    rules = tuple(assigned(found.settings, "DeviceAllow"))
    policy = (_last(found.settings, "DevicePolicy") or "auto").lower()
    private = _is_set(found.settings, "PrivateDevices")
    account = _account(found.user, found.group, found.supplementary_groups, found.dynamic_user)
    return Circumstances(
        unit=found.name,
        environment=process_environment(found, ""),
        directory=found.working_directory or "/",
        account=account,
        memlock=found.limits.get("LimitMEMLOCK"),
        # systemd sets it by itself for users other than root where a directive needs a seccomp filter.
        new_privileges=not _is_set(found.settings, "NoNewPrivileges"),
        private_devices=private,
        # systemd.exec(5): with the policy auto, one DeviceAllow= closes the door for all others.
        device_rules=rules if policy in ("closed", "strict") or rules or private else None,
        ignored=ignored_lines(found),
    )


def _last(settings: Sequence[tuple[str, str]], key: str) -> str | None:
    values = assigned(settings, key)
    return values[-1] if values else None


def _is_set(settings: Sequence[tuple[str, str]], key: str) -> bool:
    return (_last(settings, key) or "no").strip().lower() in _YES


def _account(user: str | None, group: str | None, more_groups: Sequence[str], dynamic: bool) -> Account | None:
    """The numbers of the unit's user; one of DynamicUser= exists only while the unit runs, and is nobody's match."""
    try:
        entry = pwd.getpwuid(int(user)) if user and user.isdigit() else pwd.getpwnam(user or "root")
        if dynamic and not user:
            entry = pwd.getpwnam("nobody")
        gid = _gid(group) if group else entry.pw_gid
        groups = {gid, *os.getgrouplist(entry.pw_name, gid), *(_gid(name) for name in more_groups)}
    except (KeyError, ValueError, OverflowError):
        if not dynamic:
            return None
        known = [_gid_or_none(name) for name in more_groups]
        return Account(user or "dynamic", 65533, frozenset(gid for gid in known if gid is not None))
    return Account(entry.pw_name, entry.pw_uid, frozenset(groups))


def _gid(name: str) -> int:
    return int(name) if name.isdigit() else grp.getgrnam(name).gr_gid


def _gid_or_none(name: str) -> int | None:
    try:
        return _gid(name)
    except (KeyError, ValueError):
        return None


def words_of(rule: str) -> list[str]:
    """The words of one DeviceAllow= value."""
    return split_all([rule], [])
