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
    process of its own that has the user, environment, working directory, limits and sandbox of a systemd unit.
  - The unit does not have to be installed, so that a new release can be proved before the running
    service is touched.
  - Whatever the loaded code does is a result with a name. An import that fails, crashes the interpreter,
    exits, hangs, forks, or prints does not disturb the check, and no process that it started stays behind.
  - The loader's own words are kept, and turned into problems that say what is wrong, where, and what to do.
    Where a directive of the unit is the cause, it is named.
  - What was loaded is compared with what M(gpufleet.dflash.cuda_wheel_facts) predicts.
  - With O(running) or O(pid) it loads nothing and looks at what a service or any process has mapped,
    so that code that was replaced under it is found.
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
    description:
      - The virtual environment, by the directory that holds C(bin/python).
      - Required, except with O(running) and O(pid), where the default is the one that the process was started from.
    type: path
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
      - M(gpufleet.dflash.cuda_wheel_facts) calls it O(gpufleet.dflash.cuda_wheel_facts#module:load), and the
        roles call it libraries; each name works in both modules.
    type: list
    elements: str
    default: []
    aliases: [load, libraries]
  unit:
    description:
      - The systemd service unit whose process is imitated, by name, or by the absolute path of a unit
        file that need not be installed.
      - Drop-ins count, those beside the file and those that the host has for a unit of this name.
      - Where systemd is the first process and the task has root's rights, systemd makes the process, with all
        directives of the unit that are about its sandbox and its limits. Elsewhere the process is a child of the task,
        with the unit's user, environment, working directory, umask and limits, and RV(sandbox_reason) says why.
      - Directories that C(StateDirectory=) and its like make for it and that did not exist are removed again.
      - O(unit) is a name with O(running).
    type: str
  sandbox:
    description: Whether to use the sandbox of O(unit).
    type: bool
    default: true
    version_added: 0.2.0
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
  trace:
    description:
      - Whether to ask the loader (C(LD_DEBUG=files,libs)) by which rule it found each library, and for which object.
      - Loading takes a little longer then.
    type: bool
    default: false
    version_added: 0.2.0
  clean_host:
    description:
      - Whether to load everything a second time with a loader that ignores C(/etc/ld.so.cache), as a host would that
        has none of this host's system CUDA. What works only here is an error, V(resolved-outside-venv).
      - Needs glibc 2.33. What lies in the loader's default directories is still found.
    type: bool
    default: false
    version_added: 0.2.0
  require_cuda:
    description: Whether it is an error when C(torch), which has to be among O(imports), sees no GPU.
    type: bool
    default: false
    version_added: 0.2.0
  device_count:
    description: How many GPUs C(torch) has to see, neither more nor fewer.
    type: int
    version_added: 0.2.0
  running:
    description:
      - Whether to look at the processes of O(unit) instead of loading anything, all those of its control group.
      - Needs root's rights.
    type: bool
    default: false
    version_added: 0.2.0
  pid:
    description:
      - Look at this process and its descendants instead of loading anything, such as a training job.
      - Needs root's rights, or those of the process's owner.
    type: int
    version_added: 0.2.0
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

- name: Refuse a host on which torch does not see its eight GPUs, and say why
  gpufleet.dflash.cuda_library_check:
    venv: /opt/dflash/venvs/4f1c9a
    unit: sglang-dflash-main.service
    imports: [torch]
    device_count: 8

- name: Does the service still run what is installed?
  gpufleet.dflash.cuda_library_check:
    unit: sglang-dflash-main.service
    running: true
  register: mapped
  failed_when: mapped is failed or mapped.restart_needed

- name: Would it load on a host that has no CUDA of its own?
  gpufleet.dflash.cuda_library_check:
    venv: /opt/dflash/venvs/4f1c9a
    imports: [torch]
    clean_host: true

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
msg:
  description: One line for people, also where nothing is wrong.
  returned: without O(running) and O(pid)
  type: str
  sample: "ok: everything can be loaded"
ok:
  description:
    - Whether everything was loaded, also on a clean host where that was asked for, and the GPUs that are required are
      there. V(true) with O(running) and O(pid).
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
    rule:
      description:
        - The rule by which the loader found it, V(rpath), V(ld_library_path), V(runpath), V(cache), V(default) or
          V(path). V(null) without O(trace).
      type: str
    needed_by:
      description: The object that needed or opened it. V(null) without O(trace).
      type: str
differences:
  description:
    - The CUDA libraries that are not mapped as M(gpufleet.dflash.cuda_wheel_facts) predicts for the same
      O(imports), O(dlopen) and environment.
    - V(null) when the process did not reach its end, or nothing can be predicted.
    - Files are compared by their real paths, and by device and inode.
  returned: success or when something cannot be loaded, without O(running) and O(pid)
  type: list
  elements: dict
  contains:
    difference:
      description: V(unexpected-origin), V(not-loaded) or V(not-predicted).
      type: str
    soname:
      description: The library.
      type: str
    path:
      description: The file that is mapped, or V(null).
      type: str
    predicted:
      description: The file that was predicted, or V(null).
      type: str
    rule:
      description: The rule by which it was predicted, or V(null).
      type: str
torch:
  description:
    - What C(torch) says, V(null) when it is not among O(imports) or was not imported.
  returned: success or when something cannot be loaded, without O(running) and O(pid)
  type: dict
  contains:
    version:
      description: Its version.
      type: str
    cuda:
      description: The CUDA version that it is built for, V(null) for a build without CUDA.
      type: str
    is_available:
      description: What C(torch.cuda.is_available) returns.
      type: bool
    device_count:
      description: The number of GPUs that it sees.
      type: int
    devices:
      description: The GPUs.
      type: list
      elements: dict
      contains:
        name:
          description: Its name.
          type: str
        capability:
          description: Its compute capability, such as V(9.0).
          type: str
        memory:
          description: Its memory in bytes.
          type: int
        product:
          description: V(ok) when two small matrices were multiplied on it, or the error.
          type: str
    error:
      description: What CUDA's initialisation says when no GPU is available, or V(null).
      type: str
clean_host:
  description: What came of the same loads without C(/etc/ld.so.cache).
  returned: with O(clean_host)
  type: dict
  contains:
    ok:
      description: Whether everything was loaded.
      type: bool
    imports:
      description: As RV(imports).
      type: list
      elements: dict
    dlopen:
      description: As RV(dlopen).
      type: list
      elements: dict
restart_needed:
  description: Whether the processes have files mapped that are not those on disk, or of another environment.
  returned: with O(running) or O(pid)
  type: bool
stale:
  description: Those files.
  returned: with O(running) or O(pid)
  type: list
  elements: dict
  contains:
    path:
      description: The file.
      type: str
    reason:
      description: V(replaced), V(deleted) or V(other-environment).
      type: str
    pids:
      description: The processes that have it mapped.
      type: list
      elements: int
processes:
  description: The processes that were looked at.
  returned: with O(running) or O(pid)
  type: list
  elements: dict
  contains:
    pid:
      description: Its number.
      type: int
    command:
      description: Its command line, shortened.
      type: str
venv:
  description: The environment that the processes should run from, V(null) when they were started from none.
  returned: with O(running) or O(pid)
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
          V(libstdcxx-too-old), V(access-denied), V(import-failed), V(load-timeout), V(interpreter-died),
          V(preload-stops) and V(cuda-unavailable), and those of M(gpufleet.dflash.cuda_host_facts) that keep CUDA from
          a GPU.
        - Warnings are V(resolved-outside-venv), V(duplicate-soname), V(mixed-cuda-majors), V(stale-map) and
          V(environment-malformed).
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
sandbox:
  description: Whether the process was in the sandbox of O(unit).
  returned: success or when something cannot be loaded, without O(running) and O(pid)
  type: bool
sandbox_reason:
  description: Why it was not, although there is a unit, or V(null).
  returned: success or when something cannot be loaded, without O(running) and O(pid)
  type: str
ld_library_path:
  description: The directories of the process's LD_LIBRARY_PATH.
  returned: success or when something cannot be loaded
  type: list
  elements: str
unit:
  description: The unit that was imitated.
  returned: with O(unit), without O(running)
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

from ansible_collections.gpufleet.dflash.plugins.module_utils import _python  # noqa: F401  pylint: disable=unused-import
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
            "venv": {"type": "path"},
            "imports": {"type": "list", "elements": "str", "default": []},
            "dlopen": {"type": "list", "elements": "str", "default": [], "aliases": ["load", "libraries"]},
            "unit": {"type": "str"},
            "sandbox": {"type": "bool", "default": True},
            "environment": {"type": "dict"},
            "user": {"type": "str"},
            "group": {"type": "str"},
            "working_directory": {"type": "path"},
            "timeout": {"type": "float", "default": 300},
            "trace": {"type": "bool", "default": False},
            "clean_host": {"type": "bool", "default": False},
            "require_cuda": {"type": "bool", "default": False},
            "device_count": {"type": "int"},
            "running": {"type": "bool", "default": False},
            "pid": {"type": "int"},
            "require": {"type": "bool", "default": True},
        },
        mutually_exclusive=[
            ("unit", "environment"),
            ("unit", "user"),
            ("unit", "group"),
            ("unit", "working_directory"),
            ("unit", "pid"),
        ],
        supports_check_mode=True,
    )
    # An option that was given by an alias is there under that name as well.
    options = {name: module.params[name] for name in module.argument_spec}
    require, running, pid = (options.pop(name) for name in ("require", "running", "pid"))
    try:
        if running or pid is not None:
            # Not needed otherwise: modules are shipped as text, and compiling them takes its time.
            from ansible_collections.gpufleet.dflash.plugins.module_utils._running import check_running

            module.exit_json(changed=False, **check_running(options["venv"], options["unit"], pid))
        request = CheckRequest(**{**options, "venv": options["venv"] or ""})
        result = check(request)
    except (CheckError, UnitError, VenvError) as error:
        module.fail_json(msg=str(error))
    if require and not result["ok"]:
        module.fail_json(msg=summary(request, result), **result)
    words = "ok: everything can be loaded"
    warnings = [entry for entry in result["problems"] if entry["severity"] != "error"]
    if result["ok"] and warnings:
        words = f"warning: {warnings[0]['message']}" + (f" (and {len(warnings) - 1} more)" if warnings[1:] else "")
    module.exit_json(changed=False, msg=words if result["ok"] else summary(request, result), **result)


if __name__ == "__main__":
    main()
