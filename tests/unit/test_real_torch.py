# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real torch with its complete set of CUDA wheels, whole and with each wheel removed: foreseen as it happens.

Everything is asked twice: on this host as it is, and as if its ld.so.cache were empty, which hides a CUDA toolkit
of the host from both the real process and the prediction.
"""

from __future__ import annotations

import os
import re

import pytest
from support.elf_reading import as_pyelftools_reads, read_fields
from support.real_venv import (
    CU12,
    CU13,
    commands,
    cuda_wheels,
    foresee,
    in_short,
    kept,
    really_run,
    scratch,
    type_in,
    uninstall,
)

from ansible_collections.gpufleet.dflash.plugins.module_utils._loader import System
from ansible_collections.gpufleet.dflash.plugins.module_utils._lock import LockEntry

pytestmark = pytest.mark.real

TORCHES = {"torch 2.11.0, CUDA 13": CU13, "torch 2.10.0, CUDA 12": CU12}
CACHES = {"the host's cache": True, "an empty cache": False}

each_torch = pytest.mark.parametrize("lock", TORCHES.values(), ids=TORCHES)
each_cache = pytest.mark.parametrize("use_cache", CACHES.values(), ids=CACHES)


@each_cache
@each_torch
def test_a_clean_venv_is_foreseen_file_for_file_without_a_problem(lock: tuple[LockEntry, ...], use_cache: bool) -> None:
    venv = kept(lock)

    real = really_run(venv, use_cache=use_cache)
    seen = foresee(venv, use_cache=use_cache)

    assert real.error is None
    assert len(real.files) > 20
    assert seen.answer == real
    assert seen.problems == []
    assert seen.facts["verdict"] == "ok"


def test_a_clean_venv_keeps_every_recorded_hash() -> None:
    assert foresee(kept(CU13), verify="hash").problems == []


@each_torch
def test_pyelftools_reads_the_same_from_every_object(lock: tuple[LockEntry, ...]) -> None:
    compared = 0
    for parent, _folders, names in os.walk(kept(lock)):
        for name in names:
            path = os.path.join(parent, name)
            if os.path.islink(path) or ".so" not in name:
                continue
            with open(path, "rb") as file:
                if file.read(4) != b"\x7fELF":
                    continue
            expected = as_pyelftools_reads(path)
            assert read_fields(path, expected) == expected, path
            compared += 1
    assert compared > 100


# --- each wheel removed in turn -------------------------------------------------------------------------

# What torch does not need before its first use of it.
LATER = {"nvidia-cusolver", "nvidia-nvtx", "nvidia-cuda-nvrtc"}


def _removals() -> list[object]:
    return [pytest.param(lock, wheel, id=wheel.pin) for lock in TORCHES.values() for wheel in cuda_wheels(lock)]


@pytest.mark.parametrize(("lock", "wheel"), _removals())
def test_without_one_wheel_the_error_is_the_real_one_and_the_fix_works(
    lock: tuple[LockEntry, ...], wheel: LockEntry
) -> None:
    with scratch(lock) as venv:
        warned = foresee(venv, without=[wheel.name], use_cache=False)
        provided = {
            s for s, found in warned.facts["providers"].items() if wheel.name in (p["distribution"] for p in found)
        }
        uninstall(venv, wheel.name)

        # Only what the host has as well makes a difference between the two.
        cache = System.of_host(f"{venv}/bin/python").cache
        for use_cache in (True, False) if any(map(cache.lookup, provided)) else (False,):
            real = really_run(venv, use_cache=use_cache)
            seen = foresee(venv, use_cache=use_cache)
            assert seen.answer.error == in_short(real.error)
            assert seen.answer.files == real.files

        # On a clean host nothing hides the loss; torch needs all but these at once.
        assert (real.error is None) == (wheel.name.removesuffix("-cu12") in LATER)
        failures = [failure["words"] for failure in warned.facts["removal"]["failures"]]
        assert failures == ([in_short(real.error)] if real.error else [])
        assert seen.facts["verdict"] == "error"
        missing = [problem for problem in seen.problems if problem["kind"] == "missing-library"]
        assert [problem["distributions"] for problem in missing if problem["soname"] in provided] == [
            [wheel.name] for problem in missing
        ]
        assert bool(missing) == bool(real.error)
        # The one command that every problem but a shared empty file comes down to installs that version of it.
        errors = [problem for problem in seen.problems if problem["severity"] == "error"]
        (command,) = {command for problem in errors for command in commands(problem["fix"])}
        assert re.search(rf" '?{wheel.name}=={re.escape(wheel.version)}(\.\*)?'?$", command)
        type_in(command)
        assert really_run(venv, use_cache=False).error is None
        assert foresee(venv, use_cache=False).problems == []
