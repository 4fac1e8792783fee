# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What of an engine's objection to its arguments reaches the operator: real processes, as it would be run."""

from __future__ import annotations

import os
import pwd
import sys
from pathlib import Path

import pytest

from ansible_collections.gpufleet.dflash.plugins.module_utils._release import ReleaseError
from ansible_collections.gpufleet.dflash.plugins.module_utils._validate import validate_arguments

USER = pwd.getpwuid(os.geteuid()).pw_name
UNIT = f"[Service]\nUser={USER}\nExecStart=/bin/true\nEnvironment=PYTHONPATH="
HEAD = "import argparse, sys, warnings\nwarnings.warn('no driver here')\n"


def objection(folder: Path, source: str, *arguments: str) -> str:
    """The words of the error that a server, a module of its own, causes."""
    (folder / "tiny_server.py").write_text(source)
    command = [sys.executable, "-m", "tiny_server", *arguments]
    with pytest.raises(ReleaseError) as error:
        validate_arguments(command, f"{UNIT}{folder}\n", "tiny.service")
    return str(error.value)


def test_usage_and_warnings_are_left_out(tmp_path: Path) -> None:
    source = HEAD + "p = argparse.ArgumentParser()\np.add_argument('--port', type=int)\np.parse_args()\n"
    assert objection(tmp_path, source, "--port", "x") == (
        "the engine refuses its arguments, and nothing was touched: tiny.service: tiny_server.py: error: argument "
        "--port: invalid int value: 'x'"
    )


def test_what_it_says_in_another_form_is_kept(tmp_path: Path) -> None:
    words = objection(tmp_path, HEAD + "raise SystemExit('no such model')\n")
    assert words.endswith("\nno such model") and "no driver here" in words


def test_a_server_without_a_word_is_told_by_its_status(tmp_path: Path) -> None:
    assert objection(tmp_path, "raise SystemExit(7)\n").endswith("tiny.service: exit status 7")
