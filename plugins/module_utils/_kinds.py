# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which kinds of problems there are, and how severe each is. Private to the collection.

One table for what cuda_wheel_facts reads and for what cuda_library_check meets when it loads, so that a kind means
the same in both. ``docs/problems.md`` has a section for each.
"""

from __future__ import annotations

from collections.abc import Mapping

KINDS: Mapping[str, str] = {
    "missing-library": "error",
    "preload-stops": "error",
    "clobbered-file": "error",
    "missing-payload": "error",
    "altered-file": "error",
    "unmet-requirement": "error",
    "lock-drift": "error",
    "uninstall-would-break": "error",
    "wrong-variant": "error",
    "driver-missing": "error",
    "driver-too-old": "error",
    "driver-mismatch": "error",
    "stub-driver": "error",
    "device-node-missing": "error",
    "fabric-not-ready": "error",
    "gpu-missing": "error",
    "gpu-fault": "error",
    "undefined-symbol": "error",
    "glibc-too-old": "error",
    "libstdcxx-too-old": "error",
    "architecture-unsupported": "error",
    "host-sublibrary": "error",
    "access-denied": "error",
    "import-failed": "error",
    "cuda-unavailable": "error",
    "load-timeout": "error",
    "interpreter-died": "error",
    "shared-ownership": "warning",
    "mixed-cuda-majors": "warning",
    "duplicate-soname": "warning",
    "broken-link": "warning",
    "resolved-outside-venv": "warning",
    "shadowed-library": "warning",
    "split-site": "warning",
    "namespace-shadow": "warning",
    "companion-mismatch": "warning",
    "orphan-file": "warning",
    "insecure-search-path": "warning",
    "stale-map": "warning",
    "stale-cache": "warning",
    "environment-malformed": "warning",
    "toolchain-missing": "warning",
    "small-shm": "warning",
    "low-memlock": "warning",
}
