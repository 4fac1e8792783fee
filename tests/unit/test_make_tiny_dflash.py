# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tiny models: the same bytes every time, and what the tests that use them rely on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gguf
import pytest

TOOL = Path(__file__).parents[2] / "tools" / "make_tiny_dflash.py"


def make(directory: Path, *options: str) -> dict[str, bytes]:
    subprocess.run([sys.executable, str(TOOL), str(directory), *options], check=True, capture_output=True)
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models")
    make(directory, "--broken-draft", "--truncated")
    return directory


def value(path: Path, key: str) -> object:
    return gguf.GGUFReader(path).fields[key].contents()


def test_two_runs_write_the_same_bytes(tmp_path: Path) -> None:
    assert make(tmp_path / "a", "--broken-draft", "--truncated") == make(
        tmp_path / "b", "--broken-draft", "--truncated"
    )


def test_only_the_pair_is_written_unless_more_is_asked_for(tmp_path: Path) -> None:
    assert set(make(tmp_path / "new" / "folder")) == {"target.gguf", "draft.gguf"}


def test_the_pair_fits_together(models: Path) -> None:
    assert value(models / "target.gguf", "general.architecture") == "qwen3"
    assert value(models / "draft.gguf", "general.architecture") == "dflash"
    layers = value(models / "draft.gguf", "dflash.target_layers")
    blocks = value(models / "target.gguf", "qwen3.block_count")
    assert isinstance(layers, list) and isinstance(blocks, int)
    assert all(layer < blocks for layer in layers)


def test_the_broken_drafter_differs_in_nothing_but_its_layers(models: Path) -> None:
    whole, broken = (models / "draft.gguf").read_bytes(), (models / "broken-draft.gguf").read_bytes()
    assert value(models / "broken-draft.gguf", "dflash.target_layers") == [1, 4]
    assert len(whole) == len(broken) and sum(a != b for a, b in zip(whole, broken)) == 1


def test_the_truncated_model_is_a_part_of_the_whole(models: Path) -> None:
    whole, part = (models / "target.gguf").read_bytes(), (models / "truncated.gguf").read_bytes()
    assert whole.startswith(part) and len(part) < len(whole)


def test_a_directory_that_cannot_be_made_is_named_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = subprocess.run(
        [sys.executable, str(TOOL), str(tmp_path / "file" / "models")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("cannot write the models: ") and "Traceback" not in done.stderr
    assert str(tmp_path / "file") in done.stderr
