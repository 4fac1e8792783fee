#!/usr/bin/python
# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_health
short_description: Wait until an inference service serves, or say at once why it cannot
version_added: 0.1.0
description:
  - Watches the HTTP answers of an engine, its systemd unit and the owner of its port together.
  - While the unit lives, a refused connection, then HTTP 503, then 200 is the normal course of a start and
    is waited for.
  - A unit that fails, exits or is restarted ends the wait within two seconds, with its exit status or signal,
    a named cause where the journal shows a known one, and the last lines of the journal without secrets.
  - Another process that holds the port does not count as the service.
  - A healthy answer alone proves little, so the module asks for tokens as well, and from a speculative engine
    for accepted drafts.
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
  unit:
    description: The systemd unit of the instance.
    type: str
    required: true
  url:
    description: Where the engine answers, as V(http://HOST:PORT).
    type: str
    required: true
  path:
    description: The path that tells health.
    type: str
    default: /health
  engine:
    description: The engine, which sets how it is asked for tokens.
    type: str
    choices: [sglang, llama_cpp]
    default: sglang
  timeout:
    description:
      - Seconds to wait for an instance that lives but does not serve yet.
      - Big models load for many minutes. An instance that dies never makes the module wait.
    type: float
    default: 1800
  stall:
    description:
      - An instance that does not serve and shows no sign of life for so many seconds is given up, however far the
        time-out is.
      - Signs of life are lines in its log, CPU time above one percent of a core, and growing memory.
    type: float
    default: 300
    version_added: 0.2.0
  stable:
    description: Seconds that the instance must answer 200 with the same main process.
    type: float
    default: 2
  generate:
    description: Whether to ask for tokens once the instance is healthy.
    type: bool
    default: true
  speculative:
    description: Whether drafts must have been verified in that completion.
    type: bool
    default: true
  min_accept_length:
    description:
      - The mean accept length of a speculative instance must be above this.
      - It is 1 when no draft is accepted.
    type: float
    default: 1
  model:
    description: The name of the model in requests, for engines that ask for one.
    type: str
    default: default
  max_tokens:
    description: Tokens to ask for.
    type: int
    default: 64
  release:
    description:
      - The value that E(DFLASH_RELEASE) must have in the environment of the main process.
      - Without it any release counts.
    type: str
  api_key_file:
    description:
      - A file on the host with the API key that the engine asks for, the key alone or a configuration in JSON with
        C(api-key), such as the C(server.yaml) of a release.
    type: path
    version_added: 0.2.0
  progress:
    description:
      - Whether to show what is seen while the module waits, with the last line of the instance's log. On a terminal and
        with one host, it is one line that is renewed.
      - The wait then goes on by itself on the host for as long as it takes, and the controller watches.
    type: bool
    default: false
    version_added: 0.2.0
  progress_file:
    description: Where the line of progress is left for the controller; set by the collection itself.
    type: path
    version_added: 0.2.0
requirements:
  - systemd on the target
notes:
  - The journal, and the processes of other users, are open to root only.
seealso:
  - module: gpufleet.dflash.cuda_library_check
"""

EXAMPLES = r"""
- name: Wait until the instance serves and its drafts are accepted
  gpufleet.dflash.sglang_health:
    unit: sglang-dflash-chat.service
    url: http://127.0.0.1:30001
    min_accept_length: 2.8

- name: Wait for an instance without speculation, for half an hour at most
  gpufleet.dflash.sglang_health:
    unit: sglang-dflash-baseline.service
    url: http://127.0.0.1:30002
    speculative: false
    timeout: 1800
"""

RETURN = r"""
healthy:
  description: Whether the instance serves. The module fails when it does not.
  type: bool
  returned: when the unit could be watched
  sample: false
cause:
  description: A stable name for the outcome, V(healthy) or what is wrong.
  type: str
  returned: when the unit could be watched
  sample: missing-library
msg:
  description: The outcome in one sentence.
  type: str
  returned: always
  sample: "sglang-dflash-chat.service died with exit status 1: missing library: libcublas.so.13"
fix:
  description: What to do about it; empty for a healthy instance.
  type: str
  returned: when the unit could be watched
  sample: build a generation from a lock that contains it; cuda_wheel_facts names the wheel that provides it
exit_status:
  description: The exit status of the main process, if it exited.
  type: int
  returned: when the unit could be watched
  sample: 1
signal:
  description: The signal that ended the main process, if one did.
  type: str
  returned: when the unit could be watched
  sample: SIGKILL
result:
  description: What systemd calls the result of the unit.
  type: str
  returned: when the unit could be watched
  sample: exit-code
seconds:
  description: How long the module waited.
  type: float
  returned: when the unit could be watched
  sample: 36.2
main_pid:
  description: The main process when the wait ended, 0 if there was none.
  type: int
  returned: when the unit could be watched
  sample: 4711
n_restarts:
  description: How often systemd has restarted the unit.
  type: int
  returned: when the unit could be watched
  sample: 0
invocation_id:
  description: The invocation of the unit that the outcome is about.
  type: str
  returned: when the unit could be watched
  sample: 36500c41be394648b80eaf49076cde29
journal:
  description: The last lines of that invocation, without secrets; empty for a healthy instance.
  type: list
  elements: str
  returned: when the unit could be watched
  sample: ["libcublas.so.13: cannot open shared object file: No such file or directory"]
timeline:
  description: What changed, and how many seconds after the wait began.
  type: list
  elements: dict
  returned: when the unit could be watched
  sample: [{at: 0.03, event: unit active/running}, {at: 32.1, event: HTTP 503}]
  contains:
    at:
      description: Seconds since the wait began.
      type: float
    event:
      description: What was seen.
      type: str
orphans:
  description: Processes of an engine whose server has died; looked for when the instance is not healthy.
  type: list
  elements: dict
  returned: when the unit could be watched
  sample: [{pid: 4711, name: "sglang::scheduler_TP0", unit: session-3.scope, gpu_memory: 61234}]
  contains:
    pid:
      description: The process.
      type: int
    name:
      description: How it calls itself.
      type: str
    unit:
      description: The service or scope that it belongs to; empty for none.
      type: str
    gpu_memory:
      description: MiB of GPU memory that it holds; null where nvidia-smi does not tell.
      type: int
throughput:
  description: How fast it generates; null here, for M(gpufleet.dflash.sglang_release) measures it.
  type: dict
  returned: when the unit could be watched
generation:
  description: The completion that proved the instance; null if none was asked for or none came.
  type: dict
  returned: when the unit could be watched
  sample: {completion_tokens: 64, accept_length: 6.3}
  contains:
    text:
      description: The completion.
      type: str
    completion_tokens:
      description: Its tokens.
      type: int
    seconds:
      description: How long it took.
      type: float
    tokens_per_second:
      description: Its speed.
      type: float
    drafted:
      description: Verifications (SGLang) or drafted tokens (llama.cpp); null without speculation.
      type: int
    accept_length:
      description: The mean number of tokens that one verification yielded; null without speculation.
      type: float
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpufleet.dflash.plugins.module_utils import _python  # noqa: F401  pylint: disable=unused-import
from ansible_collections.gpufleet.dflash.plugins.module_utils._health import wait_until_healthy
from ansible_collections.gpufleet.dflash.plugins.module_utils._health_spec import HealthSpec, Unhealthy
from ansible_collections.gpufleet.dflash.plugins.module_utils._progress import progress_to
from ansible_collections.gpufleet.dflash.plugins.module_utils._systemd import SystemdError

RENEWED = 1.0  # seconds between two lines of progress for a person who watches


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "unit": {"type": "str", "required": True},
            "url": {"type": "str", "required": True},
            "path": {"type": "str", "default": "/health"},
            "engine": {"type": "str", "choices": ["sglang", "llama_cpp"], "default": "sglang"},
            "timeout": {"type": "float", "default": 1800},
            "stall": {"type": "float", "default": 300},
            "stable": {"type": "float", "default": 2},
            "generate": {"type": "bool", "default": True},
            "speculative": {"type": "bool", "default": True},
            "min_accept_length": {"type": "float", "default": 1},
            "model": {"type": "str", "default": "default"},
            "max_tokens": {"type": "int", "default": 64, "no_log": False},
            "release": {"type": "str"},
            "api_key_file": {"type": "path", "no_log": False},
            "progress": {"type": "bool", "default": False},
            "progress_file": {"type": "path"},
        },
        supports_check_mode=True,
    )
    options = dict(module.params)
    options["protocol"] = options.pop("engine")
    watched, progress_file = options.pop("progress"), options.pop("progress_file")
    try:
        spec = HealthSpec.from_mapping(options)
        if watched and progress_file:
            with progress_to(progress_file) as progress:
                result = wait_until_healthy(spec, progress=progress, heartbeat=RENEWED).to_mapping()
        else:
            result = wait_until_healthy(spec).to_mapping()
    except Unhealthy as failure:
        result = failure.report.to_mapping()
        module.fail_json(msg=result.pop("message"), **result)
    except (ValueError, SystemdError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, msg=result.pop("message"), **result)


if __name__ == "__main__":
    main()
