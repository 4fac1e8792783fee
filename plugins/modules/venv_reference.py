#!/usr/bin/python
# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: venv_reference
short_description: Write down a venv that works, so that other hosts get one like it
description:
  - Reads a virtual environment and writes files on the controller, for version control, from which
    M(gpufleet.dflash.venv_generation) makes one like it. On the host nothing is written and nothing of the environment
    is executed.
  - C(lock.txt) has the exact versions with local tags, and the hashes of all files that the index has of each. It holds
    neither the address of an index nor credentials.
  - C(overlays/) and C(overlays.yml) have the files that no wheel brings. They are those whose content is not the one in
    C(RECORD), such as patched sources, and those inside a package that nobody owns. C(overlays.yml) is what the option
    C(overlays) of M(gpufleet.dflash.venv_generation) takes. C(overlays.diff) shows the difference from the pristine
    files, which are taken from the wheel of the index and compared with the host's C(RECORD), and names libraries and
    other binary files with their hashes.
  - C(not-in-index.yml) names the distributions that no index has. With O(build_missing) they are made into wheels in
    C(wheelhouse/), from the files that their C(RECORD) names, and their hashes are in the lock. The option
    C(local_wheels) of M(gpufleet.dflash.venv_generation) brings them to other hosts.
  - C(host.yml) tells Python, machine, glibc and driver of the reference, what was left out, and what the copy will have
    otherwise, and has the variables that deploy it all.
  - Running it again changes nothing, unless the reference or what the index has of its versions changed.
version_added: 0.2.0
author:
  - gpufleet.dflash contributors (@gpufleet)
extends_documentation_fragment:
  - gpufleet.dflash.attributes
attributes:
  check_mode:
    support: full
    details: Reads everything, asks the index, and shows what would be written.
  diff_mode:
    support: full
  idempotent:
    support: full
options:
  venv:
    description: The virtual environment of the reference host.
    type: path
    required: true
  dest:
    description:
      - The folder on the controller. It is made when it is not there.
      - In it, files below C(overlays) and C(wheelhouse) that are no longer right are removed; whatever else is there is
        left alone.
      - When it is below the inventory's directory, C(overlays.yml) names its files from there, so that the inventory
        can be moved.
      - Needed, except by the action plugin itself.
    type: path
  leave_out:
    description: Distributions that the copy shall not have, such as leftovers of CUDA 12.
    type: list
    elements: str
    default: []
  contested:
    description:
      - What to do about code that several distributions claim with different content, when both are required or have
        other files as well. A lock cannot tell whose file will be there, for distributions are installed in no
        particular order.
      - V(refuse) fails and tells the choices.
      - V(overlay) makes the present file an overlay, so that the copy loads what the reference loads.
      - A distribution that nothing requires, and that has no code of its own left on the disk, is left out without
        being asked, and told in RV(left_out).
    type: str
    choices: [refuse, overlay]
    default: refuse
  build_missing:
    description:
      - Make wheels of the distributions that no index has.
      - Editable distributions, and those without C(RECORD), need their source; they are reported.
    type: bool
    default: false
  pristine:
    description:
      - Fetch the wheels of which text files were patched, to show the difference in C(overlays.diff). Without, that
        file only names the patched files.
    type: bool
    default: true
  verify:
    description:
      - V(hash) compares every file with its C(RECORD), about a second a gigabyte.
      - V(size) is quicker and does not see a patch that keeps the size of a file.
    type: str
    choices: [hash, size]
    default: hash
  index_url:
    description:
      - Address of the package index. By default the public one that the installer knows.
      - Credentials in it appear in no argument list, log, file or result.
    type: str
  extra_index_urls:
    description: Addresses of further indexes, which are asked, in this order, for what those before do not have.
    type: list
    elements: str
    default: []
  ca_file:
    description: A bundle of certificate authorities on the controller, for an index or a proxy with a private one.
    type: path
  uv:
    description:
      - A uv on the controller. By default the one on PATH, or else one that is fetched from its wheel into
        C(~/.cache/gpufleet.dflash).
    type: path
  wheels:
    description: Used by the action plugin. Names of the distributions whose files are to be listed.
    type: list
    elements: str
  read:
    description: Used by the action plugin. Parts of files of the environment whose content is to be returned.
    type: list
    elements: dict
    suboptions:
      path:
        description: Path below O(venv).
        type: str
        required: true
      offset:
        description: Where to start, in bytes.
        type: int
        required: true
      length:
        description: How many bytes to read.
        type: int
        required: true
notes:
  - Needs Python 3.9 on the host and writes nothing there.
  - A wheel that was built locally under a version that the index has as well, and installed without a trace in
    C(direct_url.json), is taken for the index's. P(gpufleet.dflash.drift#filter) shows the difference after a
    deployment, as C(payload).
seealso:
  - module: gpufleet.dflash.venv_generation
  - plugin: gpufleet.dflash.drift
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Write down the environment that works
  gpufleet.dflash.venv_reference:
    venv: /srv/sglang/.venv
    dest: "{{ inventory_dir }}/reference/gpu-a01"
    leave_out: [nvidia-nvtx-cu11]
  register: reference

- name: Say what it is made of
  ansible.builtin.debug:
    msg: "{{ reference.distributions | length }} distributions, {{ reference.overlays | length }} overlays"

- name: Make one like it
  gpufleet.dflash.venv_generation:
    lock: reference/gpu-a01/lock.txt
    overlays: "{{ lookup('ansible.builtin.file', inventory_dir ~ '/reference/gpu-a01/overlays.yml') | from_yaml }}"
"""

RETURN = r"""
complete:
  description: Whether lock and overlays hold everything, so that a deployment of them has no distribution less.
  returned: success
  type: bool
distributions:
  description: Name and version of what the copy will have.
  returned: success
  type: dict
  sample: {nvidia-cuda-runtime: 13.0.96}
left_out:
  description: What the copy will not have, with the reason.
  returned: success
  type: dict
overlays:
  description: Paths below site-packages of the files that are laid over the installed ones.
  returned: success
  type: list
  elements: str
not_in_index:
  description: Distributions that no index has, as C(not-in-index.yml) has them.
  returned: success
  type: list
  elements: dict
notes:
  description: What the copy will have otherwise than the reference, one sentence each.
  returned: success
  type: list
  elements: str
dest:
  description: The folder on the controller.
  returned: success
  type: str
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpufleet.dflash.plugins.module_utils import _python  # noqa: F401  pylint: disable=unused-import
from ansible_collections.gpufleet.dflash.plugins.module_utils._reference import ReferenceVenvError, read_reference
from ansible_collections.gpufleet.dflash.plugins.module_utils._reference_files import (
    describe_host,
    read_parts,
    wheels_of,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._venv import VenvError

ARGUMENT_SPEC = {
    "venv": {"type": "path", "required": True},
    "dest": {"type": "path"},
    "leave_out": {"type": "list", "elements": "str", "default": []},
    "contested": {"type": "str", "choices": ["refuse", "overlay"], "default": "refuse"},
    "build_missing": {"type": "bool", "default": False},
    "pristine": {"type": "bool", "default": True},
    "verify": {"type": "str", "choices": ["hash", "size"], "default": "hash"},
    "index_url": {"type": "str", "no_log": True},
    "extra_index_urls": {"type": "list", "elements": "str", "default": [], "no_log": True},
    "ca_file": {"type": "path"},
    "uv": {"type": "path"},
    "wheels": {"type": "list", "elements": "str"},
    "read": {
        "type": "list",
        "elements": "dict",
        "options": {
            "path": {"type": "str", "required": True},
            "offset": {"type": "int", "required": True},
            "length": {"type": "int", "required": True},
        },
    },
}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    options = module.params
    try:
        if options["read"] is not None:
            module.exit_json(changed=False, parts=read_parts(options["venv"], options["read"]))
        reference = read_reference(options["venv"], options["leave_out"], options["contested"], options["verify"])
        if options["wheels"] is not None:
            module.exit_json(changed=False, wheels=wheels_of(reference, options["wheels"]))
        module.exit_json(changed=False, reference=reference.as_dict(), host=describe_host())
    except (ReferenceVenvError, VenvError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"cannot be read: {error.filename or options['venv']}: {error.strerror or error}")


if __name__ == "__main__":
    main()
