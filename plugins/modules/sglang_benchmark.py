#!/usr/bin/python
# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_benchmark
short_description: Measure two running instances side by side
version_added: 0.2.0
description:
  - Asks two instances of a host in turns for the same completions, and tells tokens per second, accept length and the
    ratio of both, each with its spread.
  - Such as one with a drafter against one without, or two releases that run as two instances.
  - Instances are found by their names; where they listen, and the keys they ask for, is what their releases say.
author:
  - gpufleet.dflash contributors (@gpufleet)
extends_documentation_fragment:
  - gpufleet.dflash.attributes
attributes:
  check_mode:
    support: full
    details: Changes nothing, so it does the same in check mode.
  diff_mode:
    support: none
  idempotent:
    support: full
options:
  instances:
    description: Names of two instances; the second is compared with the first.
    type: list
    elements: str
    required: true
  root:
    description: The folder below which instances stand.
    type: path
    default: /opt/dflash
  rounds:
    description: How often each is measured. The order alternates.
    type: int
    default: 5
  probe:
    description: What is asked for in each turn; see the option of M(gpufleet.dflash.sglang_release).
    type: dict
    default: {}
    suboptions:
      bench:
        description: V(builtin), or V(sglang) for C(sglang.bench_serving) of each release's own generation.
        type: str
        choices: [builtin, sglang]
        default: builtin
      requests:
        description: Completions in a round.
        type: int
        default: 4
      tokens:
        description: Tokens of each completion.
        type: int
        default: 64
      concurrency:
        description: Completions that are asked for at once.
        type: int
        default: 1
      seconds:
        description: Rounds of one turn are repeated until so many seconds have passed, and the fastest one counts.
        type: float
        default: 3
requirements:
  - systemd on the target
notes:
  - Both instances run while one is measured. On one GPU they share its memory and, where the other has requests of its
    own, its time; measure without traffic.
seealso:
  - module: gpufleet.dflash.sglang_release
"""

EXAMPLES = r"""
- name: Ask whether DFlash is worth it
  gpufleet.dflash.sglang_benchmark:
    instances: [plain, dflash]
    probe:
      tokens: 256
  register: compared

- name: Tell
  ansible.builtin.debug:
    msg: "{{ compared.ratio.median }} times as fast"
"""

RETURN = r"""
instances:
  description: Both, in the order of O(instances).
  type: list
  elements: dict
  returned: success
  contains:
    name:
      description: The instance.
      type: str
    release:
      description: The release that it runs.
      type: str
    generation:
      description: The generation of that release.
      type: str
    engine:
      description: Its engine.
      type: str
    speculative:
      description: Whether it has a drafter.
      type: bool
    tokens_per_second:
      description: The C(median), C(low) and C(high) of all turns.
      type: dict
    accept_length:
      description: The mean number of tokens that one verification yielded; null without speculation.
      type: float
    measured:
      description: Tokens per second of each turn.
      type: list
      elements: float
ratio:
  description: How many times as fast the second is, turn by turn, as C(median), C(low) and C(high).
  type: dict
  returned: success
  sample: {median: 1.24, low: 1.21, high: 1.27}
rounds:
  description: How often each was measured.
  type: int
  returned: success
probe:
  description: What was asked for.
  type: dict
  returned: success
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpufleet.dflash.plugins.module_utils import _python  # noqa: F401  pylint: disable=unused-import
from ansible_collections.gpufleet.dflash.plugins.module_utils._comparison import ROUNDS, compare, contestant
from ansible_collections.gpufleet.dflash.plugins.module_utils._release import ReleaseError
from ansible_collections.gpufleet.dflash.plugins.module_utils._systemd import Systemd, SystemdError
from ansible_collections.gpufleet.dflash.plugins.module_utils._throughput import MeasurementError, Probe

PROBE = {
    "bench": {"type": "str", "choices": ["builtin", "sglang"], "default": "builtin"},
    "requests": {"type": "int", "default": 4},
    "tokens": {"type": "int", "default": 64, "no_log": False},
    "concurrency": {"type": "int", "default": 1},
    "seconds": {"type": "float", "default": 3},
}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "instances": {"type": "list", "elements": "str", "required": True},
            "root": {"type": "path", "default": "/opt/dflash"},
            "rounds": {"type": "int", "default": 5},
            "probe": {"type": "dict", "default": {}, "options": PROBE},
        },
        supports_check_mode=True,
    )
    names, rounds = module.params["instances"], module.params["rounds"]
    if len(set(names)) != 2 or len(names) != 2:
        module.fail_json(msg=f"not two instances: instances: {', '.join(names) or 'none'}: name two different ones")
    if not ROUNDS[0] <= rounds <= ROUNDS[1]:
        module.fail_json(msg=f"rounds: {rounds}: give {ROUNDS[0]} to {ROUNDS[1]}")
    try:
        probe = Probe.from_mapping(module.params["probe"])
        if not probe.wanted:
            raise ValueError("probe.requests: 0: nothing would be measured")
        systemd = Systemd()
        first, second = (contestant(module.params["root"], name, systemd) for name in names)
        result = compare(first, second, probe, rounds)
    except (ReleaseError, SystemdError, MeasurementError, ValueError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
