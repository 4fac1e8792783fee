# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What systemd itself makes of a unit file or an environment file, without a running systemd."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
from pathlib import Path

GENERATOR = Path("/usr/lib/systemd/user-environment-generators/30-systemd-environment-d-generator")
MISSING = shutil.which("systemd-analyze") is None or not GENERATOR.exists()

_FIELDS = "Environment|EnvironmentFile|User|Group|WorkingDirectory|UMask|DynamicUser|UnsetEnvironment|Command Line"
_FIELD = re.compile(rf"\t+({_FIELDS}): (.*)")


def unit_dump(path: Path, unit: str) -> dict[str, list[str]]:
    """Return the fields of a unit as `systemd-analyze verify` dumps them when it debugs.

    Raises RuntimeError for a unit that systemd refuses to load.
    """
    environment = {name: value for name, value in os.environ.items() if name not in ("TMPDIR", "TEMP", "TMP")}
    environment |= {"SYSTEMD_LOG_LEVEL": "debug", "SYSTEMD_UNIT_PATH": f"{path}:"}
    # The system's manager asks the account database; run by hand, systemd believes the environment instead.
    account = pwd.getpwuid(os.getuid())
    environment |= {"HOME": account.pw_dir, "SHELL": account.pw_shell, "USER": account.pw_name}
    run = subprocess.run(
        ["systemd-analyze", "verify", unit], env=environment, capture_output=True, timeout=60, check=False
    )
    output = run.stdout.decode("utf-8", "surrogateescape")
    _before, found, dump = output.partition(f"-> Unit {unit}:\n")
    if not found:
        about_it = [line for line in run.stderr.decode(errors="replace").splitlines() if unit in line]
        raise RuntimeError(f"systemd does not load {unit}: {about_it[-4:]}")
    fields: dict[str, list[str]] = {}
    latest: list[str] = [""]
    for line in dump.split("\n"):
        if line.startswith(("-> Unit ", "\t-> Unit ")):
            break
        match = _FIELD.match(line)
        if match:
            latest = fields.setdefault(match.group(1), [])
            latest.append(match.group(2))
        elif not line.startswith("\t") and fields:
            # A value that holds a newline goes on at the left margin.
            latest[-1] += "\n" + line
    return fields


def environment_file(text: str, folder: Path) -> dict[str, str]:
    """Return what systemd reads from an environment file; the text must hold no dollar sign.

    The generator of environment.d uses the parser that reads EnvironmentFile=, and expands variables besides.
    """
    directory = folder / "environment.d"
    directory.mkdir(parents=True, exist_ok=True)
    # Sorts behind what the host has in /etc/environment.d.
    (directory / "zz.conf").write_text(text, encoding="utf-8", newline="")
    run = subprocess.run(
        [str(GENERATOR)],
        env={"XDG_CONFIG_HOME": str(folder), "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    result: dict[str, str] = {}
    for line in run.stdout.splitlines():
        name, _equals, value = line.partition("=")
        result[name] = _shell_unescape(value)
    return result


def _shell_unescape(value: str) -> str:
    """Undo the quoting of the generator's output: double quotes with C escapes where it is needed."""
    if not value.startswith('"'):
        return value
    escapes = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
    return re.sub(r"\\(.)", lambda match: escapes.get(match.group(1), match.group(1)), value[1:-1], flags=re.DOTALL)
