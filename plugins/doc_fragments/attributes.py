# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Attributes that every module of the collection documents in the same words."""

from __future__ import annotations


class ModuleDocFragment:
    """Documentation fragment C(gpufleet.dflash.attributes)."""

    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description: Can run in C(check_mode) and predict what would change without changing it.
  diff_mode:
    description: In diff mode, returns details on what has changed or, in C(check_mode), what would change.
  idempotent:
    description:
      - The second of two runs with the same arguments reports no change, unless something else changed the host.
"""
