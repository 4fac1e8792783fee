# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host's NVIDIA driver, from recorded hosts: in order, missing, too old, of two pieces, not the real one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.elf_writer import write_elf
from support.recorded_host import RecordedHost

from ansible_collections.gpufleet.dflash.plugins.module_utils._host_facts import host_result, host_summary
from ansible_collections.gpufleet.dflash.plugins.module_utils._host_files import HostFiles
from ansible_collections.gpufleet.dflash.plugins.module_utils._host_kernel import driver_version

KERNEL = "6.8.0-85-generic"


@pytest.fixture
def host(tmp_path: Path) -> RecordedHost:
    return RecordedHost(tmp_path / "root")


def only(host: RecordedHost, **request: object) -> tuple[str, str, str]:
    """Kind, message and fix of the only problem."""
    (problem,) = host.problems(**request)
    assert problem.level == "error"
    return problem.kind, problem.message, problem.fix


# --- nothing to say ----------------------------------------------------------------------------------------


def test_a_host_without_a_gpu_has_facts_and_no_problem(host: RecordedHost) -> None:
    result = host_result(host.facts(cuda_major=13))
    assert (result["problems"], result["verdict"], result["gpus"]) == ([], "ok", [])
    assert result["system"]["name"] == "Ubuntu 24.04.3 LTS"
    assert (result["system"]["numa_nodes"], result["system"]["virtualisation"]) == (2, "none")
    assert (result["driver"]["floor"], result["driver"]["version"]) == (580, None)
    assert host_summary(result) == "ok: no NVIDIA GPU"


def test_the_version_of_the_loaded_driver_is_known_unless_it_alone_does_not_decide(host: RecordedHost) -> None:
    files = HostFiles(str(host.root))
    assert driver_version(files) is None
    host.kernel_module("550.54.15")
    assert driver_version(files) == "550.54.15"
    host.write("/usr/local/cuda-13.0/compat/libcuda.so.1", "")
    assert driver_version(files) is None


@pytest.mark.parametrize("kind", ["0x020000", "0x040300"], ids=["a network adapter", "the sound of a GPU"])
def test_other_devices_of_nvidia_are_no_gpus(host: RecordedHost, kind: str) -> None:
    host.pci("0000:01:00.1", kind=kind, driver="snd_hda_intel")
    assert host.problems() == []


def test_gpus_of_other_makers_are_no_gpus(host: RecordedHost) -> None:
    host.pci("0000:03:00.0", vendor="0x1002", driver="amdgpu")
    assert host.problems() == []


def test_gpus_handed_to_a_virtual_machine_need_no_driver(host: RecordedHost) -> None:
    host.pci("0000:01:00.0", driver="vfio-pci")
    result = host_result(host.facts())
    assert result["problems"] == []
    assert result["gpus"][0]["kernel_driver"] == "vfio-pci"
    assert host_summary(result) == "ok: no NVIDIA GPU but what virtual machines have (1)"


@pytest.mark.parametrize(
    ("log", "version", "count", "capability", "memory"),
    [
        ("a100-535.xml", "535.183.06", 4, "8.0", 81920),
        ("a100-mig-535.xml", "535.183.06", 1, "8.0", 81920),
        ("h100x8-550.xml", "550.163.01", 8, "9.0", 81559),
        ("rtx4090-570.xml", "570.86.10", 1, "8.9", 24564),
        ("b200x8-580.xml", "580.95.05", 8, "10.0", 183359),
        ("rtx5090-580.xml", "580.95.05", 1, "12.0", 32607),
        ("gb10-580.xml", "580.95.05", 1, "12.1", None),
    ],
)
def test_a_host_in_order_has_its_gpus_and_no_problem(
    host: RecordedHost, log: str, version: str, count: int, capability: str, memory: int | None
) -> None:
    # Eight GPUs want more than the default of a container in /dev/shm, which the tests' own host may have.
    result = host_result(host.whole(log, version).facts(cuda_major=12, gpus_expected=count))
    assert [p for p in result["problems"] if p["kind"] != "small-shm"] == []
    assert len(result["gpus"]) == count
    first = result["gpus"][0]
    assert (first["compute_capability"], first["memory"], first["minor"], first["numa_node"]) == (
        capability,
        memory,
        0,
        1,
    )
    driver = result["driver"]
    assert (driver["version"], driver["library"], driver["management_library"]) == (version,) * 3
    assert driver["library_path"] == "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
    assert all(node["major"] == node["expected_major"] and node["error"] is None for node in result["device_nodes"])


def test_a_mig_gpu_tells_its_instances(host: RecordedHost) -> None:
    result = host_result(host.whole("a100-mig-535.xml", "535.183.06").facts())
    assert result["gpus"][0]["mig"] == {"enabled": True, "instances": 2}


@pytest.mark.parametrize(("open_module", "flavour"), [(True, "open"), (False, "proprietary")])
def test_the_kernel_module_is_open_or_proprietary(host: RecordedHost, open_module: bool, flavour: str) -> None:
    host.kernel_module("580.95.05", open_module=open_module)
    result = host_result(host.facts())
    assert (result["driver"]["version"], result["driver"]["kernel_module"]) == ("580.95.05", flavour)


def test_a_container_that_hides_proc_has_the_version_from_sys(host: RecordedHost) -> None:
    host.write("/sys/module/nvidia/version", "570.133.20\n")
    assert host.facts().kernel.version == "570.133.20"


# --- no driver ---------------------------------------------------------------------------------------------


def test_a_gpu_without_a_driver(host: RecordedHost) -> None:
    host.pci("0000:01:00.0", driver="")
    kind, message, fix = only(host, cuda_major=13)
    assert (kind, message) == ("driver-missing", "1 NVIDIA GPU on the PCI bus, and no NVIDIA driver is loaded")
    assert "580 or newer for CUDA 13" in fix


def test_nouveau_has_the_gpu(host: RecordedHost) -> None:
    host.pci("0000:01:00.0", kind="0x030000", driver="nouveau")
    kind, message, fix = only(host)
    assert kind == "driver-missing"
    assert "under the kernel's own driver nouveau" in message
    assert "blacklist nouveau" in fix


@pytest.mark.parametrize("place", ["updates/dkms", "kernel/nvidia-580", "extra"])
def test_a_driver_built_for_another_kernel(host: RecordedHost, place: str) -> None:
    host.pci("0000:01:00.0", driver="")
    host.write(f"/lib/modules/6.8.0-79-generic/{place}/nvidia.ko.zst", "")
    host.directory(f"/lib/modules/{KERNEL}/kernel")
    kind, message, fix = only(host)
    assert kind == "driver-missing"
    assert f"built for another kernel (6.8.0-79-generic) than the running {KERNEL}" in message
    assert fix.startswith(f"dkms autoinstall -k {KERNEL}")


def test_a_driver_that_is_installed_and_not_loaded(host: RecordedHost) -> None:
    host.pci("0000:01:00.0", driver="")
    host.write(f"/lib/modules/{KERNEL}/updates/dkms/nvidia.ko", "")
    kind, message, fix = only(host)
    assert (kind, fix.split(";")[0]) == ("driver-missing", "modprobe nvidia")
    assert "installed for this kernel, but not loaded" in message


def test_a_container_sees_the_gpus_and_not_the_driver(host: RecordedHost) -> None:
    host.pci("0000:01:00.0")
    host.write("/run/systemd/container", "lxc\n")
    kind, message, _fix = only(host)
    assert kind == "driver-missing"
    assert message.startswith("this container sees 1 NVIDIA GPU")


def test_the_kernel_module_without_its_libraries(host: RecordedHost) -> None:
    host.kernel_module("580.95.05")
    host.gpus_of("rtx5090-580.xml")
    kind, message, fix = only(host)
    assert kind == "driver-missing"
    assert message == "the kernel module of driver 580.95.05 is loaded, and libcuda.so.1 is not installed"
    assert "libnvidia-compute-580" in fix


def test_libraries_where_the_loader_does_not_look(host: RecordedHost) -> None:
    host.whole("rtx5090-580.xml", "580.95.05")
    (host.libraries / "libcuda.so.1").unlink()
    host.library("libcuda", "580.95.05", host.directory("/usr/local/nvidia/lib64"))
    kind, message, fix = only(host)
    assert kind == "driver-missing"
    assert message.startswith("libcuda.so.1 is in /usr/local/nvidia/lib64, where the loader does not look")
    assert "LD_LIBRARY_PATH" in fix
    repaired = {"LD_LIBRARY_PATH": str(host.path("/usr/local/nvidia/lib64"))}
    assert host.problems(environment=repaired) == []


# --- the wrong driver --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "major", "fits"),
    [
        ("580.65.06", 13, True),
        ("575.64.05", 13, False),
        ("525.60.13", 12, True),
        ("520.61.05", 12, False),
        ("450.80.02", 11, True),
    ],
)
def test_every_cuda_major_has_its_oldest_driver(host: RecordedHost, version: str, major: int, fits: bool) -> None:
    host.driver(version)
    host.gpus_of("rtx4090-570.xml")
    problems = host.problems(cuda_major=major)
    assert [p.kind for p in problems] == ([] if fits else ["driver-too-old"])


def test_a_driver_too_old_names_both_and_what_would_run(host: RecordedHost) -> None:
    kind, message, fix = only(host.whole("rtx4090-570.xml", "570.86.10"), cuda_major=13)
    assert kind == "driver-too-old"
    assert message == "driver 570.86.10 is too old: what is to run is for CUDA 13, which needs driver 580 or newer"
    assert fix == "install driver 580 or newer and reboot, or use wheels for CUDA 12"


@pytest.mark.parametrize("name", ["libcuda", "libnvidia-ml"])
def test_libraries_of_another_driver_than_the_module(host: RecordedHost, name: str) -> None:
    host.whole("rtx4090-570.xml", "570.86.10")
    host.library(name, "570.195.03")
    kind, message, fix = only(host)
    assert kind == "driver-mismatch"
    assert message.startswith(f"the loaded kernel module is of driver 570.86.10, and {name}.so.1 of driver 570.195.03")
    assert fix.startswith("reboot")


def test_a_mismatch_that_only_nvidia_smi_sees(host: RecordedHost) -> None:
    host.driver("570.86.10")
    host.gpus_of("rtx4090-570.xml")
    words = "Failed to initialize NVML: Driver/library version mismatch"
    host.program("/usr/bin/nvidia-smi", f"echo '{words}'; echo 'NVML library version: 570.195'; exit 18")
    (problem,) = host.problems()
    assert (problem.kind, problem.evidence) == ("driver-mismatch", f"{words} (exit status 18)")


def stubs(host: RecordedHost) -> Path:
    """A toolkit's directory of stubs, as somebody makes it findable."""
    directory = host.directory("/usr/local/cuda-12.8/lib64/stubs")
    write_elf(directory / "libcuda.so", soname="libcuda.so.1", symbols=["cuInit"])
    (directory / "libcuda.so.1").symlink_to("libcuda.so")
    return directory


def test_a_stub_in_ld_library_path(host: RecordedHost) -> None:
    host.whole("rtx4090-570.xml", "570.86.10")
    directory = stubs(host)
    kind, message, fix = only(host, environment={"LD_LIBRARY_PATH": str(directory)})
    assert kind == "stub-driver"
    assert "/usr/local/cuda-12.8/lib64/stubs/libcuda.so.1" in message
    assert fix.startswith("take ")
    assert "out of LD_LIBRARY_PATH" in fix


def test_a_stub_copied_to_where_the_driver_belongs(host: RecordedHost) -> None:
    host.whole("rtx4090-570.xml", "570.86.10")
    copy = host.libraries / "libcuda.so.1"
    data = (stubs(host) / "libcuda.so").read_bytes()
    copy.unlink()
    copy.write_bytes(data)
    assert only(host)[0] == "stub-driver"


def test_a_stub_harms_nobody_where_there_is_no_gpu(host: RecordedHost) -> None:
    assert host.problems(environment={"LD_LIBRARY_PATH": str(stubs(host))}) == []


@pytest.mark.parametrize(
    ("log", "running", "compat", "reason"),
    [
        ("rtx4090-570.xml", "570.86.10", "580.95.05", "works on data-centre GPUs only"),
        ("b200x8-580.xml", "580.95.05", "570.86.10", "older than the loaded 580.95.05"),
    ],
    ids=["GeForce", "older than the driver"],
)
def test_the_forward_compatibility_package_where_it_fails(
    host: RecordedHost, log: str, running: str, compat: str, reason: str
) -> None:
    host.whole(log, running)
    directory = host.directory("/usr/local/cuda-13.0/compat")
    host.library("libcuda", compat, directory)
    problems = host.problems(environment={"LD_LIBRARY_PATH": str(directory)})
    (problem,) = [p for p in problems if p.kind != "small-shm"]
    assert problem.kind == "driver-mismatch"
    assert reason in problem.message


def test_the_forward_compatibility_package_lets_an_old_driver_run_a_new_cuda(host: RecordedHost) -> None:
    host.whole("a100-mig-535.xml", "535.183.06")
    directory = host.directory("/usr/local/cuda-13.0/compat")
    host.library("libcuda", "580.95.05", directory)
    assert [p.kind for p in host.problems(cuda_major=13)] == ["driver-too-old"]
    assert host.problems(cuda_major=13, environment={"LD_LIBRARY_PATH": str(directory)}) == []


# --- damaged files -----------------------------------------------------------------------------------------

DAMAGES = {
    "empty": b"",
    "binary": bytes(range(256)) * 64,
    "no newline": b"NVRM version: NVIDIA UNIX Open Kernel",
    "long": b"NVRM version: " + b"9" * 3_000_000,
    "numbers": b"NVRM version: 99999999999999999999.9 \xff\n195 nvidia-uvm\n99999999999999999999999 nvidia\n",
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    "name",
    [
        "/proc/driver/nvidia/version",
        "/proc/devices",
        "/proc/modules",
        "/proc/meminfo",
        "/proc/driver/nvidia/gpus/0000:01:00.0/information",
        "/sys/bus/pci/devices/0000:01:00.0/vendor",
        "/sys/bus/pci/devices/0000:01:00.0/class",
        "/sys/bus/pci/devices/0000:01:00.0/numa_node",
        "/sys/module/nvidia/version",
        "/dev/kmsg",
        "/etc/os-release",
        "/usr/lib/x86_64-linux-gnu/libcuda.so.570.86.10",
    ],
)
def test_a_damaged_file_gives_facts_all_the_same(host: RecordedHost, name: str, damage: str) -> None:
    host.whole("rtx4090-570.xml", "570.86.10")
    host.write(name, DAMAGES[damage])
    assert host_summary(host_result(host.facts(cuda_major=12, gpus_expected=1)))


@pytest.mark.parametrize("name", ["/proc/driver/nvidia/version", "/proc/devices", "/dev/kmsg", "/proc/1/environ"])
def test_a_fifo_does_not_block(host: RecordedHost, name: str) -> None:
    host.whole("rtx4090-570.xml", "570.86.10")
    path = host.path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    assert host_summary(host_result(host.facts()))
