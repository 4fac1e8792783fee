#!/usr/bin/python
# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module cuda_wheel_facts."""

from __future__ import annotations

DOCUMENTATION = r"""
module: cuda_wheel_facts
short_description: See which CUDA libraries a virtual environment would load, and what is wrong with it
version_added: 0.1.0
author:
  - gpufleet.dflash contributors (@gpufleet)
description:
  - Reads a Python virtual environment and says, without executing anything in it, which file the dynamic
    linker takes for each library that an import needs, which distribution (wheel) it comes from, and by which
    rule it is found.
  - Finds what C(pip check) and C(uv pip check) do not see. Libraries that are missing, each with every object
    that needs it and the distribution that provides it. Files that another distribution overwrote or that an
    uninstall took along. Requirements behind extras. Libraries of two CUDA majors in one process.
  - Every problem names its evidence and a fix. An environment in order has no problem.
options:
  venv:
    description:
      - The virtual environment, the directory that holds C(pyvenv.cfg) and C(bin/python).
    type: path
    required: true
  imports:
    description:
      - The modules that the service imports, in order. What importing them loads is predicted.
      - For C(torch) its own preload table is followed, for another module the extension modules that its
        files import.
    type: list
    elements: str
    default: [torch]
  load:
    description:
      - Libraries that are loaded after O(imports), in this order, as V(ctypes.CDLL) does.
      - A name with a slash is a file, a name without one is searched.
    type: list
    elements: str
    default: []
  ld_library_path:
    description:
      - The directories of LD_LIBRARY_PATH that the service has, in order. An empty string stands for the
        current directory, as it does there.
      - With O(unit), it replaces the LD_LIBRARY_PATH of the unit.
    type: list
    elements: str
  unit:
    description:
      - A systemd unit whose environment and working directory the service has, by the absolute path of its
        file or by its name.
    type: str
  verify:
    description:
      - How to compare the installed files with what their distributions recorded.
      - V(size) compares sizes, and hashes the files that several distributions own with different content.
      - V(hash) hashes every file, which takes about a second a gigabyte.
      - V(none) compares nothing.
    type: str
    choices: [size, hash, none]
    default: size
  detail:
    description:
      - V(summary) returns the objects that belong to a distribution or to CUDA, V(full) also all others,
        such as libc.
    type: str
    choices: [summary, full]
    default: summary
extends_documentation_fragment:
  - gpufleet.dflash.attributes
attributes:
  check_mode:
    support: full
    details: Changes nothing in any mode.
  diff_mode:
    support: none
    details: Changes nothing, so there is nothing to compare.
  idempotent:
    support: full
notes:
  - Needs Python 3.9 on the host and writes nothing there. The loader's rules are those of glibc.
  - Without the C(packaging) library (and without the copy that pip carries) requirements with markers other
    than an extra or a platform, and version ranges, are not judged.
  - Each kind of problem has a section in C(docs/problems.md) of the collection, with what it means, how it looks
    at run time, and how to fix it.
seealso:
  - module: gpufleet.dflash.cuda_library_check
    description: Loads the libraries for real, in the environment of the service.
"""

EXAMPLES = r"""
- name: See what importing torch would load
  gpufleet.dflash.cuda_wheel_facts:
    venv: /opt/sglang/venv

- name: Predict a service exactly, with the environment of its unit
  gpufleet.dflash.cuda_wheel_facts:
    venv: /opt/sglang/venv
    imports: [torch, sgl_kernel]
    unit: sglang-dflash-main.service
  register: wheels

- name: Stop before anything runs if a library would be missing
  ansible.builtin.assert:
    that: wheels.venvs['/opt/sglang/venv'].verdict != 'error'
    fail_msg: "{{ wheels.problems | map(attribute='message') | join('; ') }}"

- name: Compare every installed file with its recorded hash
  gpufleet.dflash.cuda_wheel_facts:
    venv: /opt/sglang/venv
    verify: hash
"""

RETURN = r"""
ansible_facts:
  description: The facts that are added to the host.
  returned: success
  type: dict
  contains:
    cuda_wheels:
      description: What RV(venvs) holds, for the last call on this host.
      type: dict
venvs:
  description: The facts by the path of the virtual environment, as it was given.
  returned: success
  type: dict
  contains:
    python:
      description: The interpreter.
      type: dict
      contains:
        version:
          description: Its version.
          type: str
          sample: 3.12.4
        executable:
          description: The real file that runs, which is the base installation's.
          type: str
          sample: /usr/bin/python3.12
    distributions:
      description: The installed distributions, V(name) to V(version), names normalised.
      type: dict
      sample: {nvidia-cuda-runtime: 13.0.96, nvidia-cufile: 1.15.1.6}
    cuda:
      description: The CUDA side in short.
      type: dict
      contains:
        majors:
          description: CUDA majors whose distributions are installed.
          type: list
          elements: int
          sample: [13]
        torch:
          description: Version of torch, null without it.
          type: str
          sample: 2.11.0
        torch_cuda:
          description: CUDA version that torch was built for, null for a CPU build.
          type: str
          sample: "13.0"
        driver_floor:
          description: The oldest driver branch that runs this CUDA major, null without CUDA.
          type: int
          sample: 580
    library_path:
      description: The directories that LD_LIBRARY_PATH needs for the installed CUDA distributions, sorted.
      type: list
      elements: path
      sample: [/opt/venv/lib/python3.12/site-packages/nvidia/cu13/lib]
    providers:
      description: For each soname the distributions that provide it, each with its path.
      type: dict
      sample:
        libcudart.so.13:
          - distribution: nvidia-cuda-runtime
            path: /opt/venv/lib/python3.12/site-packages/nvidia/cu13/lib/libcudart.so.13
    resolution:
      description: What the plan loads, in the order of loading.
      type: list
      elements: dict
      contains:
        soname:
          description: The soname of the object, or its file name when it has none.
          type: str
        path:
          description: The file that is loaded.
          type: str
        distribution:
          description: The distribution that owns the file, null for the host's own.
          type: str
        rule:
          description:
            - How the loader finds it, one of V(rpath), V(ld_library_path), V(runpath), V(cache), V(default),
              V(path) and V(preload).
          type: str
        needed_by:
          description: The object that needed it, null for what the plan itself loads.
          type: str
    overlays:
      description: Files laid over installed packages.
      type: list
      elements: dict
      contains:
        path:
          description: The file.
          type: str
        distribution:
          description: The distribution whose file it was, null for an added file.
          type: str
        declared:
          description: Whether the generation's own recipe laid it there, with just this content.
          type: bool
        change:
          description: V(added) for a file that no distribution owns, V(altered) for a changed one.
          type: str
        sha256:
          description: Digest of the content, null for a file above 16 MiB.
          type: str
    problems:
      description: As RV(problems).
      type: list
      elements: dict
    verdict:
      description: The worst severity, V(ok), V(warning) or V(error).
      type: str
      sample: ok
problems:
  description: What is wrong, errors first. Empty for an environment in order.
  returned: success
  type: list
  elements: dict
  contains:
    kind:
      description: The kind of problem, such as V(missing-library).
      type: str
    severity:
      description: V(error) or V(warning).
      type: str
    message:
      description: One sentence.
      type: str
    object:
      description: The file that shows the problem, null if there is none.
      type: str
    soname:
      description: The library in question, null if there is none.
      type: str
    distributions:
      description: The distributions involved.
      type: list
      elements: str
    paths:
      description: The files involved, at most twenty.
      type: list
      elements: str
    evidence:
      description: What was read that shows the problem.
      type: str
    fix:
      description: What to type or change.
      type: str
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpufleet.dflash.plugins.module_utils._facts import (
    Request,
    gather,
    result,
    summary_line,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._ld_system import UnsupportedLoader
from ansible_collections.gpufleet.dflash.plugins.module_utils._unit import UnitError
from ansible_collections.gpufleet.dflash.plugins.module_utils._venv import VenvError


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "venv": {"type": "path", "required": True},
            "imports": {"type": "list", "elements": "str", "default": ["torch"]},
            "load": {"type": "list", "elements": "str", "default": []},
            "ld_library_path": {"type": "list", "elements": "str"},
            "unit": {"type": "str"},
            "verify": {"type": "str", "choices": ["size", "hash", "none"], "default": "size"},
            "detail": {"type": "str", "choices": ["summary", "full"], "default": "summary"},
        },
        supports_check_mode=True,
    )
    options = dict(module.params)
    detail = options.pop("detail")
    try:
        facts = result(gather(Request(**options)), detail)
    except (VenvError, UnitError, UnsupportedLoader, OSError) as error:
        module.fail_json(msg=str(error))
    venvs = {options["venv"]: facts}
    module.exit_json(
        changed=False,
        msg=summary_line(facts),
        ansible_facts={"cuda_wheels": venvs},
        venvs=venvs,
        problems=facts["problems"],
    )


if __name__ == "__main__":
    main()
