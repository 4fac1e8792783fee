# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Are there the GPUs that the task asks for, and if not, why? Private to the collection."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpufleet.dflash.plugins.module_utils._check_request import CheckRequest
from ansible_collections.gpufleet.dflash.plugins.module_utils._load_errors import Place, Problem, problem
from ansible_collections.gpufleet.dflash.plugins.module_utils._unit import UnitEnvironment

# A device whose memory the running service has taken is a good device.
_NO_ROOM = ("OutOfMemoryError", "out of memory")


def judge(request: CheckRequest, result: dict[str, Any], place: Place, unit: UnitEnvironment | None) -> None:
    """Add the problems of what torch sees; a result without its GPUs is not ok when they are required."""
    torch = result["torch"]
    if torch is None:
        return
    for number, device in enumerate(torch["devices"]):
        product = device["product"]
        if product != "ok" and not any(words in product for words in _NO_ROOM):
            result["ok"] = False
            result["problems"].append(
                problem(
                    "cuda-unavailable",
                    f"GPU {number} ({device['name']}) cannot multiply two small matrices: {product}",
                    "look at nvidia-smi and the kernel's log (journalctl -k, Xid), and whether this torch has code for "
                    f"compute capability {device['capability']}",
                    evidence=product,
                )
            )
    wanted = max(request.device_count or 0, 1 if request.require_cuda else 0)
    exact = request.device_count is not None and torch["device_count"] != request.device_count
    if torch["device_count"] < wanted or exact:
        result["ok"] = False
        result["problems"].append(_absent(request, torch, wanted, place, unit))


def _absent(
    request: CheckRequest, torch: dict[str, Any], wanted: int, place: Place, unit: UnitEnvironment | None
) -> Problem:
    count = torch["device_count"]
    gpus = f"{count or 'no'} GPU{'s' if count > 1 else ''}"
    seen = f"torch sees {gpus}, and {wanted} {'is' if wanted == 1 else 'are'} wanted"
    if torch["version"] is not None and torch["cuda"] is None:
        return problem(
            "cuda-unavailable",
            f"{seen}: torch {torch['version']} is built without CUDA",
            "put a CUDA build of torch into the lock and build the environment anew",
        )
    if count < wanted:
        # Not needed where all is well: Ansible ships modules as text, and compiling them takes its time.
        from ansible_collections.gpufleet.dflash.plugins.module_utils._host_reason import why_no_cuda

        digits = (torch["cuda"] or "").partition(".")[0]
        major = int(digits) if digits.isdecimal() else None
        reason = why_no_cuda(major, unit=unit.path if unit else None, environment=request.environment, gpus=wanted)
        if reason is not None:
            found = reason.as_dict()
            evidence = "\n".join(filter(None, [found["evidence"], torch["error"]]))
            return {**found, "message": f"{seen}: {found['message']}", "evidence": evidence}
    return problem(
        "cuda-unavailable",
        f"{seen}{': ' + torch['error'].partition(chr(10))[0] if torch['error'] else ''}",
        f"look at CUDA_VISIBLE_DEVICES in {place.whose}, and at nvidia-smi -L; cuda_host_facts says what it finds",
        evidence=torch["error"] or "",
    )
