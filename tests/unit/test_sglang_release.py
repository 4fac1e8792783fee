# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the module sglang_release makes of a result."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.gpufleet.dflash.plugins.module_utils import _release_states
from ansible_collections.gpufleet.dflash.plugins.modules import sglang_release


def answer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], result: dict[str, Any]) -> Any:
    monkeypatch.setitem(_release_states.STATES, "previous", lambda options, check_mode: result)
    with patch_module_args({"name": "tiny", "state": "previous"}), pytest.raises(SystemExit):
        sglang_release.main()
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("warnings", [[], ["nothing is measured: no such probe"]])
def test_warnings_reach_the_operator_and_no_deprecation_with_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], warnings: list[str]
) -> None:
    told = answer(monkeypatch, capsys, {"changed": False, "warnings": list(warnings)})
    assert [warning["event"]["msg"] for warning in told.get("warnings", [])] == warnings
    assert not told.get("deprecations")
