# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What systemd gives every process of a system service, before the unit says anything.

Private to the collection. Source: systemd.exec(5), "Environment variables in spawned processes".
"""

from __future__ import annotations

import glob
import os
import pwd
from pathlib import Path

from ansible_collections.gpufleet.dflash.plugins.module_utils._systemd_syntax import (
    assigned,
    assignments,
    read_text,
    read_variables,
    split_all,
    valid_assignment,
    valid_name,
)

# Whether systemd appends the last two is fixed when it is built. Where /bin is a link they change nothing.
_SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Names of programs that say an account has no login; systemd sets no SHELL for them.
_NO_LOGIN = ("false", "nologin", "true")
_NOBODY = 65534


def base_environment(user: str | None, invocation: str) -> dict[str, str]:
    """Return what systemd gives every process of a system service that runs as this user."""
    environment = {"PATH": _SEARCH_PATH}
    for path in ("/etc/default/locale", "/etc/locale.conf"):
        variables = read_variables(path)
        environment.update({name: variables[name] for name in variables if name.startswith(("LANG", "LC_"))})
    for word in split_all(_manager_values("DefaultEnvironment"), []):
        name, equals, value = word.partition("=")
        if equals and valid_assignment(name, value):
            environment[name] = value
    environment["INVOCATION_ID"] = invocation
    if user is not None:
        environment.update(user_variables(user))
    return environment


def user_variables(user: str) -> dict[str, str]:
    """Return what systemd says about the user; empty for one that this host does not have."""
    try:
        number = user.isascii() and user.isdigit()
        entry = pwd.getpwuid(int(user)) if number else pwd.getpwnam(user)
    except (KeyError, OverflowError):
        return {}
    variables = {"USER": entry.pw_name, "LOGNAME": entry.pw_name}
    # systemd gives neither a home nor a shell that only says that the account has none.
    if entry.pw_dir not in ("", "/") and entry.pw_uid != _NOBODY:
        variables["HOME"] = entry.pw_dir
    if entry.pw_shell and Path(entry.pw_shell).name not in _NO_LOGIN:
        variables["SHELL"] = entry.pw_shell
    return variables


def default_limit(name: str) -> str | None:
    """Return what systemd-system.conf(5) says for ``DefaultLimit<name>=``; None when it says nothing."""
    values = _manager_values(f"DefaultLimit{name}")
    return values[-1] if values else None


def _manager_values(key: str) -> list[str]:
    """Return what is assigned to a directive of [Manager] in systemd-system.conf(5)."""
    chosen: dict[str, str] = {}
    for root in ("/etc", "/run", "/usr/local/lib", "/usr/lib"):
        for path in glob.glob(f"{root}/systemd/system.conf.d/*.conf"):
            chosen.setdefault(Path(path).name, path)
    settings: list[tuple[str, str]] = []
    for path in ("/etc/systemd/system.conf", *(path for _name, path in sorted(chosen.items()))):
        text = read_text(path) if os.access(path, os.R_OK) else ""
        settings += [(name, value) for section, name, value in assignments(text) if section == "Manager"]
    return assigned(settings, key)


def environment_of_manager() -> dict[str, str]:
    """Return the manager's own environment block; empty where it cannot be read."""
    try:
        block = Path("/proc/1/environ").read_bytes().decode("utf-8", "surrogateescape")
    except OSError:
        return {}
    pairs = (entry.partition("=") for entry in block.split("\0"))
    return {name: value for name, equals, value in pairs if equals and valid_name(name)}
