# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from ansible.errors import AnsibleFilterError
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.dflash.plugins.filter.unit_quoting import FilterModule
from ansible_collections.gpufleet.dflash.plugins.module_utils._systemd_quote import (
    quote_argument,
    quote_assignment,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._unit import parse_unit_file

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]) | st.sampled_from("\t\n\r"), min_size=1)


@given(TEXT)
def test_an_assignment_is_read_back_as_it_was(value: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        unit = Path(folder, "x.service")
        unit.write_text(f"[Service]\nExecStart=/bin/true\nEnvironment={quote_assignment('NAME=' + value)}\n")
        assert parse_unit_file(str(unit)).environment["NAME"] == value


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("--port=30001", "--port=30001"),
        ("two words", '"two words"'),
        ("", '""'),
        ("100%", '"100%%"'),
        ("$HOME", '"$$HOME"'),
        ('say "hi"', '"say \\"hi\\""'),
        ("back\\slash", '"back\\\\slash"'),
        ("two\nlines", '"two\\nlines"'),
        ("{a: [1]}", '"{a: [1]}"'),
    ],
)
def test_an_argument_is_one_word_with_nothing_expanded(value: str, word: str) -> None:
    assert quote_argument(value) == word


def test_a_dollar_sign_is_itself_in_an_assignment() -> None:
    assert quote_assignment("A=$B") == '"A=$B"'


@pytest.mark.parametrize("value", ["\0", "bell\a", "\x1b[0m"])
def test_control_characters_are_refused(value: str) -> None:
    with pytest.raises(AnsibleFilterError, match="control character"):
        FilterModule().filters()["unit_argument"](value)


@pytest.mark.parametrize("value", [None, [], {"a": 1}])
def test_only_one_value_makes_one_word(value: object) -> None:
    with pytest.raises(AnsibleFilterError, match="one text or number"):
        FilterModule().filters()["unit_argument"](value)


@pytest.mark.parametrize("value", ["A B=x", "A\nExecStartPre=x", "1A=x", "=x", "x\u00e4=1"])
def test_a_name_that_systemd_would_ignore_is_refused(value: str) -> None:
    with pytest.raises(AnsibleFilterError, match="not a name of an environment variable"):
        FilterModule().filters()["unit_assignment"](value)
