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
      - Exactly one of O(venv) and O(discover) is needed.
    type: path
  discover:
    description:
      - Directories below which virtual environments are looked for, each of which is then examined.
      - The search stays on the file system of each directory, follows no link, and looks neither into environments
        nor into what calls itself a cache. It ends after 500,000 directories, with a warning.
      - An environment that is damaged is a problem of its own and does not fail the task. A directory that is not
        there is a warning.
    type: list
    elements: path
  imports:
    description:
      - The modules that the service imports, in order. What importing them loads is predicted.
      - For C(torch) its own preload table is followed, for C(sgl_kernel) its choice by the GPU and what it takes from
        C(CUDA_HOME), for another module the extension modules that its files import.
      - V([torch]) by default, and nothing where torch is not installed.
      - With O(discover), a module that an environment does not have is left out there.
    type: list
    elements: str
  load:
    description:
      - Libraries that are loaded after O(imports), in this order, as V(ctypes.CDLL) does.
      - A name with a slash is a file, a name without one is searched.
      - M(gpufleet.dflash.cuda_library_check) calls it O(gpufleet.dflash.cuda_library_check#module:dlopen), and the
        roles call it libraries; each name works in both modules.
    type: list
    elements: str
    default: []
    aliases: [dlopen, libraries]
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
  without:
    description:
      - Distributions that somebody thinks of uninstalling. What that would delete of others, and what could not be
        loaded afterwards, with the words of the error, is reported as V(uninstall-would-break) and in
        RV(venvs.removal). Nothing is uninstalled.
    type: list
    elements: str
    default: []
  lock:
    description:
      - Path on the controller of a lock (a pip requirements file with exact versions and hashes) that the environment
        is compared with. It is looked for as in M(gpufleet.dflash.venv_generation).
      - Versions are equal as PEP 440 says. A pin with a local tag such as C(+cu130) accepts only that build, one
        without accepts any.
      - C(pip), C(setuptools) and C(wheel) may be there although the lock does not have them.
    type: str
  lock_content:
    description: The text of the lock, instead of O(lock).
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
  deep:
    description:
      - Looks further than the dynamic sections, which takes a second or two for a whole torch.
      - Undefined symbols. What is loaded together is linked as the loader would do it, with the same scopes and
        symbol versions, and a symbol that nothing defines is V(undefined-symbol), with the loader's words.
      - Device code. For which GPUs each library was compiled is in RV(venvs.architectures), and is compared with
        O(compute_capabilities).
      - Names for dlopen. Which libraries a library may load by itself is in RV(venvs.dlopens). One that only the host
        has although it is a part of a wheel's library is V(host-sublibrary).
    type: bool
    default: false
    version_added: 0.2.0
  compute_capabilities:
    description:
      - The compute capabilities of the host's GPUs, such as V(["9.0", "12.0"]), for O(deep).
      - Without it C(nvidia-smi) is asked, which comes with the driver. An empty list asks nobody and judges no device
        code.
    type: list
    elements: str
    version_added: 0.2.0
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

- name: Ask what an uninstall would break before typing it
  gpufleet.dflash.cuda_wheel_facts:
    venv: /opt/sglang/venv
    without: [nvidia-cudnn-cu12]

- name: Find every environment of a host and what is wrong with it
  gpufleet.dflash.cuda_wheel_facts:
    discover: [/opt, /srv, /home]

- name: Compare a host with its lock
  gpufleet.dflash.cuda_wheel_facts:
    venv: /opt/sglang/venv
    lock: locks/serving.txt

- name: See whether this environment has code for the next GPUs, on any host
  gpufleet.dflash.cuda_wheel_facts:
    venv: /opt/sglang/venv
    deep: true
    compute_capabilities: ["12.0"]

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
          description: Its version, null for an environment that cannot be used.
          type: str
          sample: 3.12.4
        executable:
          description: The real file that runs, which is the base installation's; null as above.
          type: str
          sample: /usr/bin/python3.12
    site_packages:
      description: The directories that the distributions are in, real paths.
      type: list
      elements: path
    distributions:
      description: The installed distributions, V(name) to V(version), names normalised.
      type: dict
      sample: {nvidia-cuda-runtime: 13.0.96, nvidia-cufile: 1.15.1.6}
    sources:
      description:
        - Where a distribution came from that is not from an index. C(kind) is one of V(archive), V(local), V(editable),
          V(vcs), V(egg) and V(unknown). C(url) has no credentials, C(sha256) is the archive's digest if it is known.
      type: dict
      sample: {my-kernels: {kind: local, url: "file:///srv/wheels/my_kernels-1.0-py3-none-any.whl"}}
    payloads:
      description:
        - A digest of what each distribution has on the disk, V(name) to ten digits. Equal ones mean equal files, as
          far as O(verify) looks; scripts and byte-compiled files do not count.
      type: dict
      sample: {nvidia-cufile: 3f9ab2c6d1}
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
    architectures:
      description:
        - For which GPUs the device code of each distribution was compiled, null without O(deep). For each object, by
          its path, with O(detail=full).
        - V(sass) is machine code, which runs on GPUs of the same major compute capability and the same or a newer
          minor; V(ptx) is compiled on any newer GPU. 90 stands for 9.0.
      type: dict
      sample: {torch: {sass: [75, 80, 86, 90, 100, 120], ptx: []}}
    dlopens:
      description:
        - Names of libraries in the data of the CUDA distributions' libraries, which may be loaded at some time; null
          without O(deep). For each object, by its path, with O(detail=full).
      type: dict
      sample: {nvidia-cublas: [libcuda.so.1, libnvrtc.so.13]}
    lock:
      description: The difference from O(lock), null without one.
      type: dict
      contains:
        missing:
          description: Pins of which nothing is installed.
          type: list
          elements: str
          sample: [nvidia-cufile==1.15.1.6]
        different:
          description: What is installed in another version or build, with the version of the lock.
          type: list
          elements: str
          sample: ["torch==2.11.0, locked 2.11.0+cu130"]
        extra:
          description: What is installed and not in the lock.
          type: list
          elements: str
        unjudged:
          description: Pins whose marker cannot be evaluated on a host without the C(packaging) library.
          type: list
          elements: str
    removal:
      description: What uninstalling O(without) would do, null without it.
      type: dict
      contains:
        distributions:
          description: Those that would go.
          type: list
          elements: str
        not_installed:
          description: Those that are not there.
          type: list
          elements: str
        files:
          description: How many files of each distribution that stays would be deleted.
          type: dict
          sample: {nvidia-nvtx-cu12: 26}
        failures:
          description: What of the plan would fail then, V(target), and what Python would say, V(words).
          type: list
          elements: dict
          sample:
            - target: libcufile.so.0
              words: "OSError: libcufile.so.0: cannot open shared object file: No such file or directory"
        requirements:
          description: What would then be required and not there, V(requirement), and by whom, V(required_by).
          type: list
          elements: dict
    problems:
      description: As RV(problems), of this environment.
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
    venv:
      description: The virtual environment that has it.
      type: str
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

import gc

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpufleet.dflash.plugins.module_utils import _python  # noqa: F401  pylint: disable=unused-import
from ansible_collections.gpufleet.dflash.plugins.module_utils._examination import ExaminationError, examine_all

ARGUMENT_SPEC = {
    "venv": {"type": "path"},
    "discover": {"type": "list", "elements": "path"},
    "imports": {"type": "list", "elements": "str"},
    "load": {"type": "list", "elements": "str", "default": [], "aliases": ["dlopen", "libraries"]},
    "ld_library_path": {"type": "list", "elements": "str"},
    "unit": {"type": "str"},
    "without": {"type": "list", "elements": "str", "default": []},
    "lock": {"type": "str"},
    "lock_content": {"type": "str"},
    "verify": {"type": "str", "choices": ["size", "hash", "none"], "default": "size"},
    "deep": {"type": "bool", "default": False},
    "compute_capabilities": {"type": "list", "elements": "str"},
    "detail": {"type": "str", "choices": ["summary", "full"], "default": "summary"},
}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec=ARGUMENT_SPEC,
        mutually_exclusive=[("venv", "discover")],
        required_one_of=[("venv", "discover")],
        supports_check_mode=True,
    )
    # Hardly anything here is garbage that must be looked for: to look at every turn takes a twentieth of the time.
    gc.freeze()
    gc.set_threshold(50_000)
    try:
        found = examine_all(module.params)
    except ExaminationError as error:
        module.fail_json(msg=str(error))
    for note in found.notes:
        module.warn(note)
    module.exit_json(
        changed=False,
        msg=found.summary,
        ansible_facts={"cuda_wheels": found.venvs},
        venvs=found.venvs,
        problems=found.problems,
    )


if __name__ == "__main__":
    main()
