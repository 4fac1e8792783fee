#!/usr/bin/python
# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_release
short_description: Stage, activate and roll back releases of an inference service
description:
  - A release is a generation together with the systemd unit and the health rules of one instance, named by their hash.
  - Staging writes a release beside the others and touches nothing that runs.
  - Activating makes systemd run a staged release, waits until it is healthy and generates tokens, and records it as
    verified. When it does not become healthy, the release that was verified last is put back, verified in its turn, and
    the task fails with both stories.
  - Activating and going back are one transaction on the host. It goes on when the controller goes away.
  - What should run is compared with what the main process was started from, so that a restart that an interrupted run
    owed is not forgotten.
version_added: 0.1.0
author:
  - gpufleet.dflash contributors (@gpufleet)
extends_documentation_fragment:
  - gpufleet.dflash.attributes
attributes:
  check_mode:
    support: full
    details: Where nothing would change, the running service is asked whether it serves, as in a run.
  diff_mode:
    support: full
  idempotent:
    support: full
requirements:
  - systemd on the host
  - root on the host, in check mode as well
options:
  name:
    description: Name of the instance; its unit is C(sglang-dflash-<name>.service).
    type: str
    required: true
  state:
    description:
      - V(staged) puts a release in its place. It is refused when the unit has C(ProtectHome=yes) and a path in
        O(validate) leads below C(/home), C(/root) or C(/run/user).
      - V(active) makes the instance run the release O(release) and proves it.
      - V(previous) goes back to the release that was verified before the present one, or to O(release) if given.
        An instance that has gone back already is left as it is.
      - V(absent) drains and stops the instance and removes its unit, releases, history and state directory. Generations
        stay. It is there since 0.2.0.
    type: str
    choices: [staged, active, previous, absent]
    default: active
  root:
    description: The folder below which instances stand.
    type: path
    default: /opt/dflash
  release:
    description: Name of a staged release. Needed for O(state=active).
    type: str
  unit:
    description:
      - Text of the unit, for O(state=staged).
      - It needs the line C(Environment=DFLASH_RELEASE=@release@); the mark is replaced by the release's name.
    type: str
  generation:
    description: Path of the generation that the unit runs from, for O(state=staged).
    type: path
  engine:
    description: Name of the engine, for O(state=staged).
    type: str
    default: sglang
  health:
    description:
      - How the instance is verified, for O(state=staged); see the options of M(gpufleet.dflash.sglang_health).
    type: dict
  validate:
    description:
      - A command that judges the arguments of the unit before anything is touched, for O(state=staged).
      - It runs as the unit's user in the unit's environment and must end with status 0.
      - It is skipped in check mode while the generation does not exist.
    type: list
    elements: str
    default: []
  hooks:
    description:
      - What the host does around a restart, such as leaving a load balancer and coming back, for O(state=staged).
      - They are run by the host itself, as root, also when it goes back to another release.
      - Everybody on the host can read them in C(release.json). A command can read a password from a file of root's.
    type: dict
    version_added: 0.2.0
    suboptions:
      pre_stop:
        description:
          - Before a running service is stopped, in order. When one fails, nothing is touched.
          - On the way back from a release that failed, a failure is told and does not stop it.
        type: list
        elements: dict
        suboptions:
          command:
            description: A command, as a list of words; no shell reads it.
            type: list
            elements: str
          url:
            description: An address that is asked instead of a command. Credentials in it are shown in no message.
            type: str
          method:
            description: The HTTP method.
            type: str
            default: POST
          status:
            description: The HTTP status that is success; by default any from 200 to 299.
            type: int
          timeout:
            description: Seconds that it may take.
            type: float
            default: 60
      post_start:
        description:
          - After a release was verified, in order. When one fails, the service is left running, the task fails, and the
            next run tries them again.
        type: list
        elements: dict
        suboptions:
          command:
            description: A command, as a list of words; no shell reads it.
            type: list
            elements: str
          url:
            description: An address that is asked instead of a command.
            type: str
          method:
            description: The HTTP method.
            type: str
            default: POST
          status:
            description: The HTTP status that is success; by default any from 200 to 299.
            type: int
          timeout:
            description: Seconds that it may take.
            type: float
            default: 60
  secrets:
    description:
      - Settings of the engine that may stand in no argument list, by the engine's own names, such as C(api-key), for
        O(state=staged).
      - They are kept in the file C(server.yaml) of the release, beside the unit. Only root and the user of the unit can
        read it. The unit names it by C(@release@), which is replaced by the release's name, as in
        C(--config /opt/dflash/instances/qwen3/releases/@release@/server.yaml).
      - They are part of what names a release, so that a new key is a new release.
    type: dict
    version_added: 0.2.0
  probe:
    description:
      - How tokens per second and accept length are measured once a release is healthy. Without it nothing is measured.
      - The numbers stand in C(history.jsonl) and are compared with those of the release that was verified before and
        measured in the same way.
    type: dict
    version_added: 0.2.0
    suboptions:
      bench:
        description:
          - V(builtin) asks for completions of four fixed prompts, with temperature 0.
          - V(sglang) runs C(sglang.bench_serving) of the release's own generation with random token ids, offline.
            Accept lengths of random ids mean little.
        type: str
        choices: [builtin, sglang]
        default: builtin
      requests:
        description: Completions in a round; V(0) measures nothing.
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
        description: Rounds are repeated until so many seconds have passed, and the fastest one counts.
        type: float
        default: 3
  max_regression:
    description:
      - By how many percent a new release may generate slower than the one verified before. Beyond that it is measured a
        second time, then taken back like one that does not become healthy. V(0) takes nothing back.
      - A release that was verified on this host before is not judged, and going back never is.
    type: float
    default: 0
    version_added: 0.2.0
  textfile_dir:
    description:
      - A folder that node_exporter's textfile collector reads. It gets C(dflash_<name>.prom), which goes with the
        instance.
      - With O(state=staged) it is only looked for, so that a folder that is missing is told before anything is touched.
    type: path
    version_added: 0.2.0
  scrape_dir:
    description:
      - A folder that a Prometheus agent on the host reads for C(file_sd). It gets C(dflash_<name>.json) with the
        engine's own metrics as its target, which goes with the instance. With O(state=staged) it is only looked for.
    type: path
    version_added: 0.2.0
seealso:
  - module: gpufleet.dflash.venv_generation
  - module: gpufleet.dflash.sglang_health
"""

EXAMPLES = r"""
- name: Stage what the instance should run
  gpufleet.dflash.sglang_release:
    name: qwen3
    state: staged
    unit: "{{ lookup('ansible.builtin.template', 'unit.service.j2') }}"
    generation: "{{ generation.path }}"
    health:
      url: http://127.0.0.1:30001
      protocol: sglang
      speculative: true
  register: staged

- name: Switch to it, or stay with what serves
  gpufleet.dflash.sglang_release:
    name: qwen3
    release: "{{ staged.release }}"

- name: Take an instance off the host
  gpufleet.dflash.sglang_release:
    name: qwen2
    state: absent

- name: Go back to the release before
  gpufleet.dflash.sglang_release:
    name: qwen3
    state: previous
"""

RETURN = r"""
release:
  description: Name of the release that was staged, is active, or was gone back to.
  returned: success
  type: str
  sample: 6c1f0a2b9d3e4f50
removed:
  description: What the host had of the instance.
  returned: when O(state=absent)
  type: list
  elements: str
unit:
  description: Name of the systemd unit.
  returned: success
  type: str
  sample: sglang-dflash-qwen3.service
unit_file:
  description: Path of the staged unit's text.
  returned: when O(state=staged)
  type: str
verified:
  description: Whether the release was verified on this host when the task ended.
  returned: success
  type: bool
reasons:
  description: Why the service was, or would be, switched; empty when nothing was to do.
  returned: when O(state=active) or O(state=previous)
  type: list
  elements: str
exports:
  description: Files for Prometheus that were, or would be, written or removed.
  returned: when O(state=active) or O(state=previous)
  type: list
  elements: str
health:
  description: The proof that it serves; the return values of M(gpufleet.dflash.sglang_health).
  returned: when the service was asked
  type: dict
failed_health:
  description: What went wrong with the release that was wanted.
  returned: when it did not become healthy
  type: dict
restored_health:
  description: The proof that the release that was put back serves.
  returned: when one was put back
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpufleet.dflash.plugins.module_utils import _python  # noqa: F401  pylint: disable=unused-import
from ansible_collections.gpufleet.dflash.plugins.module_utils._hooks import without_secrets
from ansible_collections.gpufleet.dflash.plugins.module_utils._privilege import NEEDS_ROOT, lacks_root
from ansible_collections.gpufleet.dflash.plugins.module_utils._release import ReleaseError
from ansible_collections.gpufleet.dflash.plugins.module_utils._release_states import STATES
from ansible_collections.gpufleet.dflash.plugins.module_utils._systemd import SystemdError

PROBE = {
    "bench": {"type": "str", "choices": ["builtin", "sglang"], "default": "builtin"},
    "requests": {"type": "int", "default": 4},
    "tokens": {"type": "int", "default": 64, "no_log": False},
    "concurrency": {"type": "int", "default": 1},
    "seconds": {"type": "float", "default": 3},
}
HOOKS = {
    "type": "list",
    "elements": "dict",
    "options": {
        "command": {"type": "list", "elements": "str"},
        "url": {"type": "str"},
        "method": {"type": "str", "default": "POST"},
        "status": {"type": "int"},
        "timeout": {"type": "float", "default": 60},
    },
}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["staged", "active", "previous", "absent"], "default": "active"},
            "root": {"type": "path", "default": "/opt/dflash"},
            "release": {"type": "str"},
            "unit": {"type": "str"},
            "generation": {"type": "path"},
            "engine": {"type": "str", "default": "sglang"},
            "health": {"type": "dict"},
            "validate": {"type": "list", "elements": "str", "default": []},
            "hooks": {"type": "dict", "options": dict.fromkeys(("pre_stop", "post_start"), HOOKS)},
            "secrets": {"type": "dict", "no_log": True},
            "probe": {"type": "dict", "options": PROBE},
            "max_regression": {"type": "float", "default": 0},
            "textfile_dir": {"type": "path"},
            "scrape_dir": {"type": "path"},
        },
        no_log=True,  # the text of the unit is no business of the host's journal
        required_if=[
            ("state", "staged", ("unit", "generation", "health")),
            ("state", "active", ("release",)),
        ],
        supports_check_mode=True,
    )
    if lacks_root():
        # Without it, processes and sockets of services cannot be seen, and all that follows would be guessed.
        module.fail_json(msg=NEEDS_ROOT)
    options = dict(module.params)
    module.params["hooks"] = without_secrets(options["hooks"])  # a result repeats what a module was given
    try:
        result = STATES[options["state"]](options, module.check_mode)
    except (ReleaseError, SystemdError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        # A lock that another run holds for hours is a TimeoutError without a number: its text is the whole story.
        msg = (
            f"{error.strerror}: {error.filename}: see the host's disk and permissions" if error.strerror else str(error)
        )
        module.fail_json(msg=msg)
    for warning in result.pop("warnings", []):
        module.warn(warning)
    if result.get("failed"):
        module.fail_json(**result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
