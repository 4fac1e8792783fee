#!/usr/bin/python
# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_inputs
short_description: Judge the variables of a deploy before any host is touched
description:
  - Says everything that is wrong with the instances of a host and with its lock, as far as that can be told on the
    controller, in one failure.
  - Variables of both roles that should be lists or mappings and are neither are mistakes in any case.
  - Names of variables that are almost those of the roles are warnings, where O(instances) is given.
  - It runs on the controller alone and asks nothing of the host.
version_added: 0.2.0
author:
  - gpufleet.dflash contributors (@gpufleet)
extends_documentation_fragment:
  - gpufleet.dflash.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
    details: It changes nothing.
  idempotent:
    support: full
options:
  instances:
    description: The instances, as C(sglang_dflash_instances) of P(gpufleet.dflash.sglang_dflash#role) has them.
    type: raw
  absent:
    description: Names of instances that shall not be there.
    type: raw
  protect_home:
    description: Whether the units of the instances see no home directories.
    type: bool
    default: true
  lock:
    description: The lock, which is looked for like that of M(gpufleet.dflash.venv_generation).
    type: raw
  distribution:
    description: The engine's distribution, which the O(lock) has to hold.
    type: str
  engine:
    description: The engine's name, for the message.
    type: str
seealso:
  - module: gpufleet.dflash.venv_generation
  - module: gpufleet.dflash.sglang_release
"""

EXAMPLES = r"""
- name: Refuse a lock that cannot be built from
  gpufleet.dflash.sglang_inputs:
    lock: locks/serving.txt
    distribution: sglang
    engine: sglang
"""

RETURN = r"""
msg:
  description: What is wrong, a line for each mistake.
  returned: when something is wrong
  type: str
"""

# The action plugin of this name is all there is: nothing runs on the host.
