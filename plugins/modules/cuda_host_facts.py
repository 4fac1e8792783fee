#!/usr/bin/python
# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module cuda_host_facts."""

from __future__ import annotations

DOCUMENTATION = r"""
module: cuda_host_facts
short_description: See whether a host's NVIDIA driver, GPUs and device nodes are fit for CUDA
version_added: 0.2.0
author:
  - gpufleet.dflash contributors (@gpufleet)
description:
  - Reads what a host offers below the wheels. The driver's kernel module and its libraries as the dynamic linker finds
    them, the GPUs and their state, the device nodes and their numbers, the fabric manager, shared memory, limits, and
    the compilers that a service would find.
  - Tells why CUDA sees no GPU where C(torch.cuda.is_available) says no more than V(False). A driver too old for the
    wheels, a driver that was updated without a reboot, a stub in the search path, a node that is missing or leads
    nowhere, a device rule of a container, a fabric that is not up, a GPU that must be reset.
  - Every problem names its evidence and a fix. A host in order has no problem, and neither has one without a GPU.
options:
  unit:
    description:
      - The systemd unit that the service runs as, by the absolute path of its file or by its name.
      - Libraries, compilers, C(CUDA_HOME), C(CUDA_VISIBLE_DEVICES) and C(LimitMEMLOCK) are then those of the unit, and
        the device nodes are judged for its user, its C(DeviceAllow) and its C(PrivateDevices).
      - Without it, a service of root with the environment that systemd gives to every service.
    type: str
  venv:
    description:
      - The virtual environment that is to run, by the directory that holds C(bin/python).
      - Its wheels tell which CUDA, and so which driver, is needed, and whether kernels are compiled at run time.
    type: path
  cuda_major:
    description:
      - The CUDA major that is to run, where there is no O(venv) yet.
    type: int
  gpus_expected:
    description:
      - How many GPUs the host must have. Fewer are a problem.
    type: int
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
  - Needs Python 3.9 on the host and writes nothing there. C(nvidia-smi), C(systemctl) and C(nv-fabricmanager) are asked
    where they are installed and a GPU or a driver is there, each with a time limit (20 seconds for C(nvidia-smi), which
    is run twice).
  - Root sees most. Other accounts may not be allowed to read the kernel log.
  - Where the driver makes its device nodes by itself (C(nvidia-modprobe) with its setuid bit), nodes that are not there
    yet are no problem.
  - Each kind of problem has a section in C(docs/problems.md) of the collection, with what it means, how it looks
    at run time, and how to fix it.
seealso:
  - module: gpufleet.dflash.cuda_wheel_facts
    description: Reads what stands above, a virtual environment's CUDA libraries.
  - module: gpufleet.dflash.cuda_library_check
    description: Loads the libraries for real, in the environment of the service.
"""

EXAMPLES = r"""
- name: Look at the GPUs and the driver of a host
  gpufleet.dflash.cuda_host_facts:

- name: See whether a host is fit for a service
  gpufleet.dflash.cuda_host_facts:
    unit: sglang-dflash-main.service
    venv: /opt/sglang/venv
    gpus_expected: 8
  register: host

- name: Stop before anything runs if CUDA would not
  ansible.builtin.assert:
    that: host.cuda_host.verdict != 'error'
    fail_msg: "{{ host.problems | map(attribute='message') | join('; ') }}"

- name: Ask whether the driver is new enough for wheels of CUDA 13
  gpufleet.dflash.cuda_host_facts:
    cuda_major: 13
"""

RETURN = r"""
ansible_facts:
  description: The facts that are added to the host.
  returned: success
  type: dict
  contains:
    cuda_host:
      description: What RV(cuda_host) holds.
      type: dict
cuda_host:
  description: The facts of the host.
  returned: success
  type: dict
  contains:
    system:
      description: The operating system.
      type: dict
      contains:
        name:
          description: Its name as it gives it itself.
          type: str
          sample: Ubuntu 24.04.3 LTS
        kernel:
          description: The release of the kernel.
          type: str
          sample: 6.8.0-85-generic
        glibc:
          description: The version of the C library, null where it is another than glibc.
          type: str
          sample: "2.39"
        virtualisation:
          description: V(none), V(vm), V(container) or V(wsl).
          type: str
        platform:
          description: What the virtual machine or container calls itself, such as V(lxc).
          type: str
        numa_nodes:
          description: How many NUMA nodes there are.
          type: int
        memory:
          description: Memory in bytes.
          type: int
    driver:
      description: The NVIDIA driver.
      type: dict
      contains:
        version:
          description: The version of the loaded kernel module, null when none is loaded.
          type: str
          sample: 580.95.05
        kernel_module:
          description: V(open) or V(proprietary), null when none is loaded.
          type: str
        built_for:
          description: The kernels that a module of the driver lies on disk for.
          type: list
          elements: str
        cuda:
          description: The newest CUDA of the driver as C(nvidia-smi) tells it.
          type: str
          sample: "13.0"
        library:
          description: The version of C(libcuda.so.1) as the service finds it.
          type: str
          sample: 580.95.05
        library_path:
          description: Where the service finds C(libcuda.so.1), null when nowhere.
          type: str
          sample: /usr/lib/x86_64-linux-gnu/libcuda.so.1
        library_rule:
          description: How the loader finds it, as in M(gpufleet.dflash.cuda_wheel_facts).
          type: str
          sample: cache
        management_library:
          description: The version of C(libnvidia-ml.so.1).
          type: str
        management_library_path:
          description: Where that is found.
          type: str
        cuda_needed:
          description: The CUDA major of O(venv) or O(cuda_major), null for neither.
          type: int
          sample: 13
        floor:
          description: The oldest driver branch that runs it.
          type: int
          sample: 580
    gpus:
      description: Every GPU that the driver or the PCI bus knows. What is not known is null.
      type: list
      elements: dict
      contains:
        index:
          description: Its number for C(nvidia-smi).
          type: int
        address:
          description: Its PCI address.
          type: str
          sample: "0000:18:00.0"
        name:
          description: The product.
          type: str
          sample: NVIDIA H100 80GB HBM3
        uuid:
          description: Its UUID.
          type: str
        minor:
          description: The number of its device node.
          type: int
        compute_capability:
          description: The compute capability.
          type: str
          sample: "9.0"
        memory:
          description: Its memory in MiB, null where it shares the memory of the host.
          type: int
          sample: 81559
        kernel_driver:
          description: The kernel driver that has it.
          type: str
          sample: nvidia
        numa_node:
          description: The NUMA node that it is near to.
          type: int
        persistence_mode:
          description: Whether the driver keeps it initialised.
          type: bool
        compute_mode:
          description: Who may use it for computing.
          type: str
          sample: Default
        mig:
          description: Whether MIG is V(enabled), and the number of MIG devices, V(instances).
          type: dict
        ecc:
          description: Whether ECC is V(enabled), V(uncorrected) errors since the driver loaded, and what is pending.
          type: dict
        recovery_action:
          description: What the driver says that it needs (driver 565 and newer).
          type: str
          sample: None
        reset_required:
          description: Whether the driver says that it must be reset (older drivers).
          type: bool
        fabric:
          description: Its V(state) and V(status) in the NVLink fabric.
          type: dict
          sample: {state: Completed, status: Success}
        slowdowns:
          description: Why its clocks are slowed down now, for faults only.
          type: list
          elements: str
          sample: [hw_thermal_slowdown]
        xids:
          description: The Xids of this boot, each with V(number), V(count) and the V(text) of the last.
          type: list
          elements: dict
    device_nodes:
      description: The device nodes that there are, and those that CUDA needs.
      type: list
      elements: dict
      contains:
        path:
          description: The node.
          type: str
          sample: /dev/nvidia-uvm
        needed:
          description: Whether CUDA needs it.
          type: bool
        present:
          description: Whether it is there.
          type: bool
        major:
          description: Its major number, null where it is no character device.
          type: int
        minor:
          description: Its minor number.
          type: int
        expected_major:
          description: The number that its driver has now, null while that is not loaded.
          type: int
        mode:
          description: Its mode.
          type: str
          sample: "0666"
        uid:
          description: Its owner.
          type: int
        gid:
          description: Its group.
          type: int
        allowed:
          description: Whether the service's account and unit may use it.
          type: bool
        error:
          description: What opening it says, null when that works or was not tried.
          type: str
          sample: "EPERM: Operation not permitted"
    fabric_manager:
      description: The fabric manager.
      type: dict
      contains:
        needed:
          description: Whether the GPUs are part of an NVLink fabric.
          type: bool
        nvswitches:
          description: How many NVSwitches the PCI bus shows.
          type: int
        service:
          description: The state of C(nvidia-fabricmanager.service), null where systemd cannot be asked.
          type: str
          sample: active
        running:
          description: Whether a process of it runs.
          type: bool
        version:
          description: The version of the installed program.
          type: str
    nvidia_smi:
      description: Where C(nvidia-smi) is (V(path)), whether it V(answered), and its words where it did not (V(error)).
      type: dict
    kernel_log:
      description: What the kernel log was read with, null where it could not be read or there was no reason to.
      type: str
      sample: /dev/kmsg
    shm:
      description: The size of C(/dev/shm), what is V(free) of it, both in bytes, and the segments that NCCL has in it.
      type: dict
    memlock:
      description: The V(soft) and V(hard) limit of locked memory in bytes, -1 for none, and whose it is (V(of)).
      type: dict
    rdma_devices:
      description: The RDMA devices.
      type: list
      elements: str
      sample: [mlx5_0]
    toolchain:
      description: The compilers as the service finds them, null for what it does not find.
      type: dict
      contains:
        path:
          description: The C(PATH) that was searched.
          type: str
        cuda_home:
          description: The CUDA toolkit that torch and flashinfer would take.
          type: str
        cuda_home_from:
          description: Who names it, V(CUDA_HOME), V(CUDA_PATH), V(PATH) or V(default).
          type: str
        cuda:
          description: Its version.
          type: str
        nvcc:
          description: The CUDA compiler.
          type: str
        ptxas:
          description: The assembler of the toolkit, or what C(TRITON_PTXAS_PATH) names.
          type: str
        cc:
          description: The C compiler.
          type: str
        cxx:
          description: The C++ compiler.
          type: str
        ninja:
          description: The build tool C(ninja).
          type: str
        python_h:
          description: The header of the interpreter behind O(venv).
          type: str
    unit:
      description: The name of O(unit).
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
  description: What is wrong, errors first. Empty for a host in order, and for one without a GPU.
  returned: success
  type: list
  elements: dict
  contains:
    kind:
      description: The kind of problem, such as V(driver-too-old).
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
      description: The files and devices involved.
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

from ansible_collections.gpufleet.dflash.plugins.module_utils import _python  # noqa: F401  pylint: disable=unused-import
from ansible_collections.gpufleet.dflash.plugins.module_utils._host_facts import host_result, host_summary
from ansible_collections.gpufleet.dflash.plugins.module_utils._host_gather import HostRequest, gather_host
from ansible_collections.gpufleet.dflash.plugins.module_utils._unit import UnitError
from ansible_collections.gpufleet.dflash.plugins.module_utils._venv import VenvError

ARGUMENT_SPEC = {
    "unit": {"type": "str"},
    "venv": {"type": "path"},
    "cuda_major": {"type": "int"},
    "gpus_expected": {"type": "int"},
}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec=ARGUMENT_SPEC,
        mutually_exclusive=[("venv", "cuda_major")],
        supports_check_mode=True,
    )
    for option in ("cuda_major", "gpus_expected"):
        if (module.params[option] or 0) < 0:
            module.fail_json(msg=f"not a count: {option}: {module.params[option]}: give 0 or more")
    try:
        host = host_result(gather_host(HostRequest(**module.params)))
    except (UnitError, VenvError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=False,
        msg=host_summary(host),
        ansible_facts={"cuda_host": host},
        cuda_host=host,
        problems=host["problems"],
    )


if __name__ == "__main__":
    main()
