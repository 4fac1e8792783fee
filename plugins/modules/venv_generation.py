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
      - V(absent) removes one O(generation), or all but the O(keep) newest. What a process runs from, what a unit of
        the host names, what is staged and not tried yet, and what an instance can go back to stays in any case.
    type: str
    choices: [present, absent]
    default: present
  generation:
    description:
      - With O(state=absent), the generation to remove, by its name or its path. It is an error when it is in use.
    type: str
    version_added: 0.2.0
  keep:
    description:
      - With O(state=absent), how many generations stay, the newest ones. Those in use stay besides.
      - For each instance, this is also how many verified releases can be gone back to; the folders of older ones are
        removed with their generation.
      - The cache, and what was copied below O(root), lose what no generation has any more. Without that,
        removing generations would free next to nothing, because their files are hard links to the cache.
    type: int
    version_added: 0.2.0
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
      - One of O(lock), O(lock_content) and O(base) is needed with O(state=present). O(lock) and O(lock_content) exclude
        each other.
    type: str
  lock_content:
    description: The text of the lock.
    type: str
  base:
    description:
      - A venv on the host that the generation starts from. It is read and never touched.
      - Its files are copied, sharing blocks where the file system can; of a base that is a generation itself they are
        hard links. Scripts, and links with absolute targets, are made to lead into the generation.
      - With a lock, what the lock pins in another version is replaced and what it does not pin is left out. A
        distribution whose code is missing, or that holds files of another one, is installed anew; so is whoever
        shares files with it. Files that were changed on purpose stay with the distributions that stay.
      - The name of the generation includes the content of the base. An error ends the build when it changes meanwhile.
    type: path
    version_added: 0.2.0
  overlays:
    description:
      - Files that are laid into site-packages after the lock is installed, such as patched sources and libraries of
        one's own.
      - They may be of any kind and size. What is no short text is copied to the host when the host lacks it, resumed
        where an earlier copy stopped, kept below O(root) by its hash, and verified once more when it is laid.
    type: list
    elements: dict
    default: []
    suboptions:
      dest:
        description: Path below site-packages.
        type: str
        required: true
      src:
        description: Path of the file on the controller, which is looked for like the O(lock).
        type: str
      content:
        description: The text of the file, instead of O(overlays[].src).
        type: str
      sha256:
        description:
          - SHA-256 of a file that lies in the store below O(root) already, instead of O(overlays[].src).
          - The action plugin sets it for files that are no short text, after it has copied them there.
        type: str
        version_added: 0.2.0
      size:
        description: Bytes of that file, for the judgement whether the disk has room. The action plugin sets it.
        type: int
        version_added: 0.2.0
  python:
    description:
      - The interpreter the generation is made for.
      - By default the one that Ansible itself uses on the host, or the one that the O(base) was made with.
    type: path
  index_url:
    description:
      - Address of the package index. By default the public one that the installer knows.
      - Credentials in it appear in no argument list, log, progress line or result.
    type: str
  extra_index_urls:
    description:
      - Further package indexes. Every index is asked for every pin, and the hashes of the lock decide which file it
        is, so that the order of the indexes changes nothing and no other build can take the place of the one that was
        locked.
      - Credentials in them appear nowhere, as in O(index_url).
    type: list
    elements: str
    default: []
    version_added: 0.2.0
  wheelhouse:
    description: A folder with wheels on the host, which is looked into besides the indexes.
    type: path
    version_added: 0.2.0
  no_index:
    description:
      - Ask no index. All that the lock needs is in O(wheelhouse) or O(local_wheels), and so is the wheel of uv unless
        O(uv) is given.
    type: bool
    default: false
    version_added: 0.2.0
  make_wheelhouse:
    description:
      - Fetch the wheels of the lock, and that of uv, on the controller, and copy to the host those that it lacks. The
        host needs no network then.
      - Wheels are kept on the controller by their hashes (O(wheel_cache)) and on the host below O(root). What was
        interrupted goes on where it stopped. Every file is verified before it is used.
      - Needs the wheel of every pin at the indexes; what there is only a source distribution of is to be built
        beforehand.
    type: bool
    default: false
    version_added: 0.2.0
  local_wheels:
    description:
      - A folder with wheels on the controller, such as the C(wheelhouse) that M(gpufleet.dflash.venv_reference) makes
        of what no index has. It is looked for like the O(lock).
      - Those of its wheels that the lock pins, by name, version and hash, are copied to the host when the host lacks
        them. The others are left alone. No index is asked for what the folder has.
      - Everything else comes from the indexes, from O(wheelhouse), or by O(make_wheelhouse), as without this option.
      - It is an error when the folder has wheels of a pin and none of them has a hash of the lock.
    type: str
    version_added: 0.2.0
  wheel_cache:
    description:
      - The folder on the controller in which O(make_wheelhouse) keeps wheels, and O(check_lock) what it read of them.
    type: str
    default: ~/.cache/gpufleet.dflash
    version_added: 0.2.0
  check_lock:
    description:
      - Judge the lock on the controller before anything is built, when it reaches the indexes. This reads the names
        of files, and the directories of the wheels' archives by range requests, not the wheels.
      - Errors are a pin that neither O(local_wheels) nor an index has with a hash of the lock, or no wheel of it that
        fits the host's Python and C library; two wheels that bring different code to one path, unless an overlay is
        laid over it; CUDA libraries that PyTorch requires and the lock lacks; a O(driver) that is too old. Pins that
        were yanked are warnings.
      - Where an index cannot be reached or read, RV(lock_check) says so and the build goes on.
    type: bool
    default: true
    version_added: 0.2.0
  driver:
    description:
      - Version of the NVIDIA driver on the host, such as V(580.95.05), for O(check_lock).
      - By default it is that of the loaded kernel module. It is left out of the judgement where no driver is loaded, or
        where the forward-compatibility package lies in C(/usr/local/cuda*/compat).
    type: str
    version_added: 0.2.0
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

- name: Adopt a venv that works, with the CUDA libraries of a lock on top
  gpufleet.dflash.venv_generation:
    base: /srv/sglang/venv
    lock: locks/serving.txt

- name: Build what lock_from_reference wrote down, with wheels that no index has
  gpufleet.dflash.venv_generation:
    lock: reference/gpu-a01/lock.txt
    local_wheels: reference/gpu-a01/wheelhouse
    overlays: "{{ lookup('ansible.builtin.file', inventory_dir ~ '/reference/gpu-a01/overlays.yml') | from_yaml }}"

- name: Build on a host without a network
  gpufleet.dflash.venv_generation:
    lock: locks/serving.txt
    make_wheelhouse: true

- name: Keep three generations, and whatever is in use
  gpufleet.dflash.venv_generation:
    state: absent
    keep: 3
"""

RETURN = r"""
id:
  description: Name of the generation.
  returned: when O(state=present)
  type: str
  sample: cpython-311-3f9ab2c6d1e04b77
path:
  description: Path of the generation on the host.
  returned: when O(state=present)
  type: str
  sample: /opt/dflash/venvs/cpython-311-3f9ab2c6d1e04b77
python:
  description: The interpreter it is made for.
  returned: when O(state=present)
  type: dict
  sample: {path: /usr/bin/python3.11, version: 3.11.2, platform: linux-x86_64, tag: cpython-311, libc: glibc 2.36}
site_packages:
  description: Where its distributions are, or will be.
  returned: when O(state=present)
  type: str
distributions:
  description: Name and version of every distribution that is, or would be, installed.
  returned: when O(state=present)
  type: dict
  sample: {nvidia-cuda-runtime: 13.0.96}
library_path:
  description:
    - Absolute directories with CUDA libraries of its wheels, sorted; what LD_LIBRARY_PATH needs.
    - In check mode, before the generation exists, they are told from the names of the distributions.
  returned: when O(state=present)
  type: list
  elements: str
seconds:
  description: How long the build took, in seconds; V(0) when there was nothing to build.
  returned: when O(state=present)
  type: float
adopted:
  description:
    - What the lock makes of the O(base); C(reinstalled) says why, C(removed) is what the lock does not pin.
  returned: when O(base) is given and there is something to build
  type: dict
  sample:
    path: /srv/sglang/venv
    reinstalled: {nvidia-cudnn-cu13: libcudnn.so.9 is missing}
    removed: [nvidia-cublas-cu12]
lock_check:
  description: What O(check_lock) could look at. C(skipped) says what it could not, and is empty when it saw everything.
  returned: when there is something to build and O(check_lock) is set
  type: dict
  sample: {pins: 179, wheels: 179, bytes: 8421376512, skipped: ''}
copied:
  description:
    - What was copied to the host, in files and bytes, for O(make_wheelhouse), O(local_wheels) and those O(overlays)
      that are no short text. What the host had already is not in it.
  returned: when one of these options is used and there is something to build
  type: dict
  sample: {files: 2, bytes: 612345678}
removed:
  description: The generations that were, or would be, removed, and why.
  returned: when O(state=absent)
  type: list
  elements: dict
  sample:
    - id: cpython-311-3f9ab2c6d1e04b77
      path: /opt/dflash/venvs/cpython-311-3f9ab2c6d1e04b77
      why: nobody uses it
kept:
  description: The generations that stay, and why.
  returned: when O(state=absent)
  type: list
  elements: dict
  sample:
    - id: cpython-311-9d1e04b773f9ab2c
      path: /opt/dflash/venvs/cpython-311-9d1e04b773f9ab2c
      why: qwen3 runs it (release 6c1f0a2b9d3e4f50)
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpufleet.dflash.plugins.module_utils import _python  # noqa: F401  pylint: disable=unused-import
from ansible_collections.gpufleet.dflash.plugins.module_utils._build import (
    absent,
    make_recipe,
    plan,
    progress_file,
    run,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._progress import progress_to
from ansible_collections.gpufleet.dflash.plugins.module_utils._recipe import GenerationError

ARGUMENT_SPEC = {
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "generation": {"type": "str"},
    "keep": {"type": "int"},
    "root": {"type": "path", "default": "/opt/dflash"},
    "lock": {"type": "str"},
    "lock_content": {"type": "str"},
    "base": {"type": "path"},
    "overlays": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "dest": {"type": "str", "required": True},
            "src": {"type": "str"},
            "content": {"type": "str"},
            "sha256": {"type": "str"},
            "size": {"type": "int"},
        },
        "mutually_exclusive": [("src", "content", "sha256")],
        "required_one_of": [("src", "content", "sha256")],
    },
    "python": {"type": "path"},
    "index_url": {"type": "str", "no_log": True},
    "extra_index_urls": {"type": "list", "elements": "str", "default": [], "no_log": True},
    "wheelhouse": {"type": "path"},
    "no_index": {"type": "bool", "default": False},
    "make_wheelhouse": {"type": "bool", "default": False},
    "local_wheels": {"type": "str"},
    "wheel_cache": {"type": "str", "default": "~/.cache/gpufleet.dflash"},
    "check_lock": {"type": "bool", "default": True},
    "driver": {"type": "str"},
    "ca_file": {"type": "path"},
    "uv": {"type": "path"},
}


def main() -> None:
    module = AnsibleModule(
        argument_spec=ARGUMENT_SPEC,
        supports_check_mode=True,
        no_log=True,  # locks and patched sources are no business of the host's journal
        # The action plugin has read lock on the controller: here it only names the text in messages.
        required_if=[
            ("state", "present", ("lock", "lock_content", "base"), True),
            ("state", "absent", ("generation", "keep"), True),
        ],
        mutually_exclusive=[("generation", "keep")],
    )
    try:
        if module.params["state"] == "absent":
            module.exit_json(**absent(module.params, module.check_mode, lambda line: None))
        recipe = make_recipe(module.params)
        if module.check_mode:
            module.exit_json(**plan(recipe, module.params))
        with progress_to(progress_file(recipe)) as progress:
            result = run(recipe, module.params, progress)
    except GenerationError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(
            msg=f"cannot be read or written: {error.filename}: {error.strerror}: see who changes it, and run again"
        )
    module.exit_json(**result)


if __name__ == "__main__":
    main()
