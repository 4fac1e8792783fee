#!/usr/bin/python
# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: venv_generation
short_description: Build an immutable venv from a lock
description:
  - Builds a virtual environment, called a generation, whose name is the hash of all that went into it (the lock, the
    overlays and the Python interpreter). Equal inputs give one and the same generation, which is built once.
  - A generation is never changed after it is complete. A change of the lock gives another one beside it, so that going
    back is a matter of naming the older one.
  - The installer is uv, fetched from its wheel with a pinned hash. Distributions are installed without dependency
    resolution, only with the hashes of the lock, byte-compiled, and hard-linked from a cache on the same file system.
  - The build goes on when the controller goes away. While it runs, its progress is shown live.
version_added: 0.1.0
author:
  - gpufleet.dflash contributors (@gpufleet)
extends_documentation_fragment:
  - gpufleet.dflash.attributes
attributes:
  check_mode:
    support: full
    details: Lists what would be installed, without writing anything.
  diff_mode:
    support: full
  idempotent:
    support: full
options:
  state:
    description:
      - V(present) builds the generation unless it is complete.
    type: str
    choices: [present]
    default: present
  root:
    description: The folder below which generations, their cache and the installer stand.
    type: path
    default: /opt/dflash
  lock:
    description:
      - Path of the lock on the controller. It is looked for beside the inventory, in C(files) and itself, then like the
        O(ansible.builtin.copy#module:src) of a copy.
      - A lock is a pip requirements file in which every line pins one version with C(==) and carries hashes, as
        C(uv pip compile --generate-hashes) writes it.
      - Exactly one of O(lock) and O(lock_content) is needed.
    type: str
  lock_content:
    description: The text of the lock.
    type: str
  overlays:
    description: Files that are laid into site-packages after the lock is installed, such as patched sources.
    type: list
    elements: dict
    default: []
    suboptions:
      dest:
        description: Path below site-packages.
        type: str
        required: true
      src:
        description: Path of the file on the controller.
        type: str
      content:
        description: The text of the file, instead of O(overlays[].src).
        type: str
  python:
    description:
      - The interpreter the generation is made for.
      - By default the one that Ansible itself uses on the host.
    type: path
  index_url:
    description:
      - Address of the package index. By default the public one that the installer knows.
      - Credentials in it appear in no argument list, log, progress line or result.
    type: str
  ca_file:
    description: A bundle of certificate authorities on the host, for an index or a proxy with a private one.
    type: path
  uv:
    description: A uv that is on the host already; by default the module fetches its own.
    type: path
seealso:
  - module: gpufleet.dflash.cuda_wheel_facts
  - module: gpufleet.dflash.sglang_release
"""

EXAMPLES = r"""
- name: Build the environment that the lock describes
  gpufleet.dflash.venv_generation:
    lock: locks/cu13-llama-cpp.txt
  register: generation

- name: Show where it is
  ansible.builtin.debug:
    msg: "{{ generation.path }} holds {{ generation.distributions | length }} distributions"

- name: Build from an index of one's own, with a patched source file
  gpufleet.dflash.venv_generation:
    lock: locks/serving.txt
    index_url: "{{ vault_index_url }}"
    ca_file: /etc/ssl/certs/ca-certificates.crt
    overlays:
      - dest: sglang/srt/speculative/spec_info.py
        src: patches/spec_info.py
"""

RETURN = r"""
id:
  description: Name of the generation.
  returned: success
  type: str
  sample: cpython-311-3f9ab2c6d1e04b77
path:
  description: Path of the generation on the host.
  returned: success
  type: str
  sample: /opt/dflash/venvs/cpython-311-3f9ab2c6d1e04b77
python:
  description: The interpreter it is made for.
  returned: success
  type: dict
  sample: {path: /usr/bin/python3.11, version: 3.11.2, platform: linux-x86_64, tag: cpython-311}
site_packages:
  description: Where its distributions are, or will be.
  returned: success
  type: str
distributions:
  description: Name and version of every distribution that is, or would be, installed.
  returned: success
  type: dict
  sample: {nvidia-cuda-runtime: 13.0.96}
library_path:
  description:
    - Absolute directories with CUDA libraries of its wheels, sorted; what LD_LIBRARY_PATH needs.
    - In check mode, before the generation exists, they are told from the names of the distributions.
  returned: success
  type: list
  elements: str
seconds:
  description: How long the build took, in seconds; V(0) when there was nothing to build.
  returned: success
  type: float
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpufleet.dflash.plugins.module_utils._build import (
    make_recipe,
    plan,
    progress_file,
    run,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._generation import GenerationError
from ansible_collections.gpufleet.dflash.plugins.module_utils._progress import progress_to

ARGUMENT_SPEC = {
    "state": {"type": "str", "choices": ["present"], "default": "present"},
    "root": {"type": "path", "default": "/opt/dflash"},
    "lock": {"type": "str"},
    "lock_content": {"type": "str"},
    "overlays": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "dest": {"type": "str", "required": True},
            "src": {"type": "str"},
            "content": {"type": "str"},
        },
        "mutually_exclusive": [("src", "content")],
        "required_one_of": [("src", "content")],
    },
    "python": {"type": "path"},
    "index_url": {"type": "str", "no_log": True},
    "ca_file": {"type": "path"},
    "uv": {"type": "path"},
}


def main() -> None:
    module = AnsibleModule(
        argument_spec=ARGUMENT_SPEC,
        supports_check_mode=True,
        no_log=True,  # locks and patched sources are no business of the host's journal
        # The action plugin has read lock on the controller: here it only names the text in messages.
        required_one_of=[("lock", "lock_content")],
    )
    try:
        recipe = make_recipe(module.params)
        if module.check_mode:
            module.exit_json(**plan(recipe))
        with progress_to(progress_file(recipe)) as progress:
            result = run(recipe, module.params, progress)
    except GenerationError as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
