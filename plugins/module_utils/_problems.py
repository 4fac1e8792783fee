# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge the facts of one venv: every problem, its evidence and a fix that works. Private to the collection.

A clean venv has no problem: what is usual and harmless (identical files that many CUDA 12 wheels share,
optional network transports that nothing loads, a library of the other CUDA major that nothing reaches) is no
finding.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Callable

from ansible_collections.gpufleet.dflash.plugins.module_utils import (
    _judge_combinations,
    _judge_device_code,
    _judge_files,
    _judge_layout,
    _judge_loading,
    _judge_lock,
    _judge_removal,
    _judge_search_path,
    _judge_symbols,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._findings import Facts, Problem
from ansible_collections.gpufleet.dflash.plugins.module_utils._repair import Repair

_JUDGES: tuple[Callable[[Facts, Repair], Iterator[Problem]], ...] = (
    _judge_files.clobbered,
    _judge_files.missing_payload,
    _judge_loading.missing_libraries,
    _judge_symbols.missing_versions,
    _judge_symbols.undefined_symbols,
    _judge_loading.preload_stops,
    _judge_layout.wrong_variant,
    _judge_combinations.unmet_requirements,
    _judge_lock.lock_drift,
    _judge_removal.uninstall_would_break,
    _judge_files.altered_files,
    _judge_symbols.unreadable_symbols,
    _judge_device_code.unsupported_architectures,
    _judge_device_code.host_sublibraries,
    _judge_files.changed_overlays,
    _judge_combinations.mixed_majors,
    _judge_combinations.duplicate_sonames,
    _judge_loading.outside_venv,
    _judge_files.broken_links,
    _judge_layout.split_site,
    _judge_layout.namespace_shadow,
    _judge_layout.companion_mismatch,
    _judge_layout.orphan_files,
    _judge_search_path.stale_cache,
    _judge_search_path.insecure,
    _judge_search_path.absent_directories,
    _judge_search_path.ignored_lines,
    _judge_combinations.malformed,
)


def judge(facts: Facts) -> list[Problem]:
    """Every problem of the venv, errors first."""
    repair = Repair(facts.venv, facts.installed)
    found = [problem for judge_one in _JUDGES for problem in judge_one(facts, repair)]
    return sorted(found, key=lambda problem: problem.level != "error")
