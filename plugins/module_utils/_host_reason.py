# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why CUDA says that there is no GPU. Private to the collection."""

from __future__ import annotations

from collections.abc import Mapping

from ansible_collections.gpufleet.dflash.plugins.module_utils._findings import Problem
from ansible_collections.gpufleet.dflash.plugins.module_utils._host_files import HostFiles
from ansible_collections.gpufleet.dflash.plugins.module_utils._host_gather import HostRequest, gather_host
from ansible_collections.gpufleet.dflash.plugins.module_utils._host_problems import judge_host


def why_no_cuda(
    cuda_major: int | None,
    *,
    unit: str | None = None,
    environment: Mapping[str, str] | None = None,
    gpus: int = 1,
    files: HostFiles | None = None,
) -> Problem | None:
    """The most likely reason for ``torch.cuda.is_available() == False``, or for fewer than ``gpus`` of them.

    ``cuda_major`` is torch's. The service has the circumstances of ``unit``, else ``environment`` beside what
    systemd gives every service. None where this host's driver, nodes and GPUs look as they should. ``files``
    stands in for this host's. Raises UnitError.
    """
    request = HostRequest(unit=unit, environment=environment, cuda_major=cuda_major, gpus_expected=gpus)
    problems = judge_host(gather_host(request, files))
    return next((problem for problem in problems if problem.level == "error"), None)
