# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the module sglang_release makes of a result."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from support import small_wheels

# In a process of its own, as on a host: where the controller's part of Ansible is loaded, warnings go to the screen.
MODULE = """
import json, sys
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gpufleet.dflash.plugins.module_utils import _release_states
from ansible_collections.gpufleet.dflash.plugins.modules import sglang_release
sglang_release.lacks_root = lambda: len(sys.argv) > 2
_release_states.STATES["previous"] = lambda options, check_mode: json.loads(sys.argv[1])
with patch_module_args({"name": "tiny", "state": "previous"}):
    sglang_release.main()
"""


def answer(result: dict[str, Any], *words: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", MODULE, json.dumps(result), *words],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(small_wheels.CHECKOUT / ".collections")},
    )
    assert done.returncode == len(words), done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("warnings", [[], ["nothing is measured: no such probe"]])
def test_warnings_reach_the_operator_and_no_deprecation_with_them(warnings: list[str]) -> None:
    told = answer({"changed": False, "warnings": list(warnings)})
    assert [warning["event"]["msg"] for warning in told.get("warnings", [])] == warnings
    assert not told.get("deprecations")


def test_without_root_it_says_so_and_guesses_nothing() -> None:
    assert answer({"changed": False}, "unprivileged")["msg"] == (
        "this needs root on the host: leave become on (ansible_become, --become)"
    )
