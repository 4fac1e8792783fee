# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.dflash.plugins.module_utils._lock import (
    LockEntry,
    LockError,
    lock_digest,
    read_lock,
)

A, B = "a" * 64, "b" * 64
LOCKS = Path(__file__).parents[2] / "roles" / "cuda_runtime" / "files" / "locks"


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        pytest.param(
            f"torch==2.11.0 --hash=sha256:{A}",
            LockEntry("torch", "2.11.0", None, (f"sha256:{A}",)),
            id="plain",
        ),
        pytest.param(
            f"torch==2.11.0+cu130 \\\n    --hash=sha256:{B} \\\n    --hash=sha256:{A}\n",
            LockEntry("torch", "2.11.0+cu130", None, (f"sha256:{A}", f"sha256:{B}")),
            id="continued lines, local tag, hashes sorted",
        ),
        pytest.param(
            f"Nvidia_CUDA.runtime == 13.0.96 ; sys_platform == 'linux' --hash=sha256:{A}",
            LockEntry("nvidia-cuda-runtime", "13.0.96", "sys_platform == 'linux'", (f"sha256:{A}",)),
            id="name normalised, marker",
        ),
        pytest.param(
            f"flash-attn-4==4.0.0b1 # beta\n  # via sglang\n --hash=sha256:{A}".replace(
                "b1 # beta\n  # via sglang\n", "b1"
            ),
            LockEntry("flash-attn-4", "4.0.0b1", None, (f"sha256:{A}",)),
            id="pre-release",
        ),
        pytest.param(
            f"cuda-toolkit[cublas,cudart]==13.0.2 --hash=sha256:{A.upper()}",
            LockEntry("cuda-toolkit", "13.0.2", None, (f"sha256:{A}",)),
            id="extras choose nothing, hash in capitals",
        ),
        pytest.param(
            f"# a comment\n\nx==1 --hash=sha256:{A}  # why",
            LockEntry("x", "1", None, (f"sha256:{A}",)),
            id="comments",
        ),
    ],
)
def test_a_pin_is_read(text: str, entry: LockEntry) -> None:
    assert read_lock(text) == (entry,)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("", "holds no distribution: serving.txt", id="empty"),
        pytest.param("torch", "torch is not pinned to one version: serving.txt:1", id="no version"),
        pytest.param(f"torch>=2 --hash=sha256:{A}", "torch is not pinned", id="range"),
        pytest.param(f"torch==2.* --hash=sha256:{A}", "torch is not pinned", id="wildcard"),
        pytest.param(f"torch==2,!=2.1 --hash=sha256:{A}", "torch is not pinned", id="two specifiers"),
        pytest.param(f"x @ file:///x.whl --hash=sha256:{A}", "x is not pinned", id="direct reference"),
        pytest.param(f"\n\nx==1 --hash=sha256:{A}\ntorch==2.11.0\n", "torch has no hash: serving.txt:4", id="no hash"),
        pytest.param("x==1 --hash=md5:" + "a" * 32, "not a usable hash: serving.txt:1", id="weak hash"),
        pytest.param(f"x==1 --hash=sha256:{A[:-1]}", "not a usable hash", id="short hash"),
        pytest.param("--index-url https://u:secret@h/\n", "pins only, not '--index-url': serving.txt:1", id="index"),
        pytest.param("-r other.txt", "not '-r'", id="another file"),
        pytest.param(f"x==1 --hash=sha256:{A}\nX==2 --hash=sha256:{A}", "x is pinned twice: serving.txt:2", id="twice"),
        pytest.param(
            f"x==1 --hash=sha256:{A} --config-settings=a=b", "pins and hashes only: serving.txt:1", id="another option"
        ),
        pytest.param(f"x==1 --hash=sha256:{A} --hash=sha256:zz", "pins and hashes only", id="a bad second hash"),
        pytest.param(f"== 3 --hash=sha256:{A}", "not a requirement: serving.txt:1", id="no name"),
    ],
)
def test_what_is_not_an_exact_pin_is_refused_with_its_line(text: str, words: str) -> None:
    with pytest.raises(LockError) as caught:
        read_lock(text, "serving.txt")
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)


@given(st.text())
def test_any_text_is_a_lock_or_one_clear_error(text: str) -> None:
    try:
        entries = read_lock(text)
    except LockError as error:
        assert str(error)
    else:
        assert all(entry.hashes for entry in entries)


def test_the_digest_tells_content_from_layout() -> None:
    one = read_lock(f"x==1 --hash=sha256:{A}\ny==2 --hash=sha256:{B}\n")
    same = read_lock(f"# other order and layout\ny==2 \\\n  --hash=sha256:{B}\n\nX==1 --hash=sha256:{A.upper()}")
    other = read_lock(f"x==1 --hash=sha256:{A}\ny==2 --hash=sha256:{A}\n")
    assert lock_digest(one) == lock_digest(same)
    assert lock_digest(one) != lock_digest(other)


@pytest.mark.parametrize("lock", sorted(LOCKS.glob("*.txt")), ids=lambda path: path.name)
def test_shipped_locks_are_locks(lock: Path) -> None:
    assert read_lock(lock.read_text(), lock.name)
    assert "://" not in lock.read_text(), "a lock names no index"
