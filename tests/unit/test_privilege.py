# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is said where a module may not do what it is asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.generation_site import Site

from ansible_collections.gpufleet.dflash.plugins.module_utils import _build
from ansible_collections.gpufleet.dflash.plugins.module_utils._privilege import may_read_environment, may_write_below
from ansible_collections.gpufleet.dflash.plugins.module_utils._recipe import GenerationError


@pytest.fixture
def nobody() -> Iterator[None]:
    """Be another user than root for a while; where the tests run as another one, stay that."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.usefixtures("nobody")
def test_the_environment_of_roots_processes_is_roots_business() -> None:
    assert not may_read_environment(1)


def test_ones_own_environment_and_that_of_no_process_are_no_question_of_rights() -> None:
    assert may_read_environment(os.getpid())
    assert may_read_environment(1 << 30)


def test_a_folder_that_may_be_made_may_be_written(tmp_path: Path) -> None:
    assert may_write_below(str(tmp_path / "not" / "there"))
    assert not may_write_below("/proc/1/not/there")


def test_a_generation_that_cannot_be_written_names_become(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path)
    recipe = site.recipe()
    monkeypatch.setattr(_build, "lacks_root", lambda: True)
    site.plan()  # as whoever may write there
    monkeypatch.setattr(_build, "may_write_below", lambda folder: False)
    with pytest.raises(GenerationError, match="cannot be written: this needs root on the host: leave become on"):
        _build.plan(recipe, site.options())
