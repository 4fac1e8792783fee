# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run one module through Ansible on this machine, as a user's task does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from support import small_wheels

ANSIBLE = Path(sys.executable).with_name("ansible")


def command(module: str, arguments: dict[str, Any], *, check: bool = False) -> list[str]:
    """The command line that runs a module of the collection once."""
    return [
        *(str(ANSIBLE), "localhost", "--inventory", "localhost,", "--connection", "local", "--diff"),
        *("--extra-vars", json.dumps({"ansible_python_interpreter": sys.executable})),
        *("--module-name", f"gpufleet.dflash.{module}", "--args", json.dumps(arguments)),
        *(["--check"] if check else []),
    ]


def environment(home: Path, **more: str) -> dict[str, str]:
    """The environment of a user whose files are all below home."""
    return {
        "ANSIBLE_COLLECTIONS_PATH": str(small_wheels.CHECKOUT / ".collections"),
        "ANSIBLE_CALLBACK_RESULT_FORMAT": "json",
        "ANSIBLE_NOCOLOR": "1",
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "LC_ALL": "C.UTF-8",
        **more,
    }


def run(
    module: str,
    arguments: dict[str, Any],
    home: Path,
    *,
    check: bool = False,
    wrapper: tuple[str, ...] = (),
    **more: str,
) -> tuple[dict[str, Any], str]:
    """The module's result, with ``failed`` in it, and all that Ansible printed."""
    done = subprocess.run(
        [*wrapper, *command(module, arguments, check=check)],
        capture_output=True,
        text=True,
        check=False,
        env=environment(home, **more),
        stdin=subprocess.DEVNULL,
    )
    printed = done.stdout + done.stderr
    status, _arrow, rest = done.stdout.partition("=> ")
    if not rest:
        raise AssertionError(printed)
    result, _end = json.JSONDecoder().raw_decode(rest)
    return {"failed": "FAILED" in status.splitlines()[-1], **result}, printed
