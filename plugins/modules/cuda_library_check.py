#!/usr/bin/python
# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cuda_library_check
short_description: Load Python modules and CUDA libraries exactly as a service will
version_added: 0.1.0
description:
  - Imports modules and opens shared libraries with the interpreter of a virtual environment, in a
    process of its own that has the user, environment, working directory, umask and limits of a systemd unit.
  - The unit does not have to be installed, so that a new release can be proved before the running
    service is touched.
  - Whatever the loaded code does is a result with a name. An import that fails, crashes the interpreter,
    exits, hangs, forks, or prints does not disturb the check, and no process that it started stays behind.
  - The loader's own words are kept, and turned into problems that say what is wrong, where, and what to do.
extends_documentation_fragment:
  - gpufleet.dflash.attributes
attributes:
  check_mode:
    support: full
    details: The module changes nothing, so it does the same in check mode.
  diff_mode:
    support: N/A
    details: The module changes nothing.
  idempotent:
    support: full
options:
  venv:
    description: The virtual environment, by the directory that holds C(bin/python).
    type: path
    required: true
  imports:
    description: Modules to import, in this order.
    type: list
    elements: str
    default: []
  dlopen:
    description:
      - Libraries to open after the imports, in this order.
      - A soname such as V(libcudart.so.13) is searched as the loader does. An absolute path is opened as
        it is.
    type: list
    elements: str
    default: []
  unit:
    description:
      - The systemd service unit whose process is imitated, by name, or by the absolute path of a unit
        file that need not be installed.
      - Drop-ins count, those beside the file and those that the host has for a unit of this name.
      - The sandbox of the unit is not imitated.
    type: str
  environment:
    description:
      - Environment of the process, besides what systemd gives every process (C(PATH), C(LANG), C(USER),
        C(HOME)).
      - Nothing is inherited from Ansible.
    type: dict
  user:
    description:
      - The account that the process runs as. The default is the account that the task runs as.
      - Another account than that needs C(become).
    type: str
  group:
    description: The group that the process runs as. The default is the account's own.
    type: str
  working_directory:
    description: The directory that the process runs in. The default is the root directory.
    type: path
  timeout:
    description:
      - Seconds that all loads together may take. Importing a large engine from a cold disk takes a minute.
    type: float
    default: 300
  require:
    description:
      - Whether the task fails when anything cannot be loaded.
      - With V(false) it succeeds, and RV(ok) tells.
    type: bool
    default: true
notes:
  - Importing executes the imported code, with the rights of the service. Code that writes when it is
    imported writes here too. Byte code is not written.
  - Each kind of problem has a section in C(docs/problems.md) of the collection, with what it means, how it looks
    at run time, and how to fix it.
author:
  - gpufleet.dflash contributors (@gpufleet)
seealso:
  - module: gpufleet.dflash.cuda_wheel_facts
"""

EXAMPLES = r"""
- name: Prove a new environment under the unit that will run it
  gpufleet.dflash.cuda_library_check:
    venv: /opt/dflash/venvs/4f1c9a
    unit: /opt/dflash/instances/main/releases/7be2/sglang-dflash-main.service
    imports: [torch, sgl_kernel]
    dlopen: [libcudnn.so.9, libnvrtc.so.13]

- name: Look at an environment that has no unit
  gpufleet.dflash.cuda_library_check:
    venv: /srv/inference/.venv
    user: inference
    environment:
      LD_LIBRARY_PATH: /srv/inference/.venv/lib/python3.12/site-packages/nvidia/cu13/lib
    imports: [torch]
    require: false
  register: loaded

- name: Say what is wrong
  ansible.builtin.debug:
    msg: "{{ loaded.problems | map(attribute='message') }}"
  when: not loaded.ok
"""

RETURN = r"""
ok:
  description: Whether everything was loaded.
  returned: success or when something cannot be loaded
  type: bool
imports:
  description: What came of each import, in order.
  returned: success or when something cannot be loaded
  type: list
  elements: dict
  contains:
    name:
      description: The module.
      type: str
    ok:
      description: Whether it was imported.
      type: bool
    version:
      description: Its version, by C(__version__) or by the distribution of the same name, or V(null).
      type: str
    path:
      description: The file that it came from.
      type: str
    seconds:
      description: How long the import took.
      type: float
    error_type:
      description: The class of the exception, V(null) when there was none.
      type: str
    error:
      description: The loader's own words, or how the interpreter ended, or V(null).
      type: str
  sample:
    - name: xllamacpp
      ok: true
      version: 2026.10.11549
      path: /opt/dflash/venvs/4f1c9a/lib/python3.11/site-packages/xllamacpp/__init__.py
      seconds: 0.214
      error_type: null
      error: null
dlopen:
  description: What came of each library, in order. Keys are those of RV(imports), with
    RV(dlopen[].soname) for the name.
  returned: success or when something cannot be loaded
  type: list
  elements: dict
  contains:
    soname:
      description: The library as it was asked for.
      type: str
    ok:
      description: Whether it was opened.
      type: bool
    path:
      description: The file that the loader found.
      type: str
    distribution:
      description: The distribution that owns the file, V(null) when none does.
      type: str
    seconds:
      description: How long opening took.
      type: float
    error_type:
      description: The class of the exception, V(null) when there was none.
      type: str
    error:
      description: The loader's own words, or how the interpreter ended, or V(null).
      type: str
libraries:
  description: Every CUDA library that was mapped into the process at the end, empty when it did not come
    that far.
  returned: success or when something cannot be loaded
  type: list
  elements: dict
  contains:
    path:
      description: The file, in the kernel's spelling (symbolic links resolved).
      type: str
    distribution:
      description: The distribution that owns it, V(null) when none does.
      type: str
    version:
      description: The version of that distribution.
      type: str
problems:
  description: What is wrong, errors first. Empty when all is well.
  returned: success or when something cannot be loaded
  type: list
  elements: dict
  contains:
    kind:
      description:
        - The name of the kind of problem.
        - Errors are V(missing-library), V(driver-missing), V(undefined-symbol), V(altered-file),
          V(glibc-too-old),
          V(libstdcxx-too-old), V(access-denied), V(import-failed), V(load-timeout) and V(interpreter-died).
        - Warnings are V(resolved-outside-venv), V(duplicate-soname) and V(environment-malformed).
      type: str
    severity:
      description: V(error) or V(warning).
      type: str
    message:
      description: One sentence.
      type: str
    fix:
      description: What to do.
      type: str
    object:
      description: The file that needs what is missing, where the loader tells.
      type: str
    soname:
      description: The library.
      type: str
    distributions:
      description: Distributions that own or provide it.
      type: list
      elements: str
    paths:
      description: Files and directories that it is about.
      type: list
      elements: str
    evidence:
      description: The loader's or interpreter's own words.
      type: str
end:
  description: How the interpreter ended.
  returned: success or when something cannot be loaded
  type: dict
  contains:
    how:
      description: V(finished), V(exited), V(killed), V(timeout) or V(not-started).
      type: str
    status:
      description: Its exit status, or the number of the signal.
      type: int
interpreter:
  description: The interpreter's version and prefixes, V(null) when it did not start.
  returned: success or when something cannot be loaded
  type: dict
  sample: {version: 3.11.2, prefix: /opt/dflash/venvs/4f1c9a, base_prefix: /usr}
processes_left:
  description: Command lines of processes that the loaded code left running. They were killed.
  returned: success or when something cannot be loaded
  type: list
  elements: str
user:
  description: The account that the process ran as.
  returned: success or when something cannot be loaded
  type: str
ld_library_path:
  description: The directories of the process's LD_LIBRARY_PATH.
  returned: success or when something cannot be loaded
  type: list
  elements: str
unit:
  description: The unit that was imitated.
  returned: with O(unit)
  type: dict
  contains:
    name:
      description: Its name.
      type: str
    path:
      description: Its file.
      type: str
    drop_ins:
      description: Its drop-ins, in the order in which they apply.
      type: list
      elements: str
stdout:
  description: The end of what was printed to standard output, at most 4000 characters.
  returned: success or when something cannot be loaded
  type: str
stderr:
  description: The end of what was printed to standard error, at most 4000 characters. Shows where a
    crash or a hang was.
  returned: success or when something cannot be loaded
  type: str
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpufleet.dflash.plugins.module_utils._library_check import (
    CheckError,
    CheckRequest,
    check,
    summary,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._unit import UnitError
from ansible_collections.gpufleet.dflash.plugins.module_utils._venv import VenvError


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "venv": {"type": "path", "required": True},
            "imports": {"type": "list", "elements": "str", "default": []},
            "dlopen": {"type": "list", "elements": "str", "default": []},
            "unit": {"type": "str"},
            "environment": {"type": "dict"},
            "user": {"type": "str"},
            "group": {"type": "str"},
            "working_directory": {"type": "path"},
            "timeout": {"type": "float", "default": 300},
            "require": {"type": "bool", "default": True},
        },
        mutually_exclusive=[
            ("unit", "environment"),
            ("unit", "user"),
            ("unit", "group"),
            ("unit", "working_directory"),
        ],
        supports_check_mode=True,
    )
    require = module.params.pop("require")
    request = CheckRequest(**module.params)
    try:
        result = check(request)
    except (CheckError, UnitError, VenvError) as error:
        module.fail_json(msg=str(error))
    if require and not result["ok"]:
        module.fail_json(msg=summary(request, result), **result)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
