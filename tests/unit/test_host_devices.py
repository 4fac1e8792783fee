# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Device nodes, made with mknod(2): missing, stale, refused, forbidden to a service."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.recorded_host import MAJOR, RecordedHost

from ansible_collections.gpufleet.dflash.plugins.module_utils._findings import Problem
from ansible_collections.gpufleet.dflash.plugins.module_utils._host_facts import host_result

# A number that no driver of this kernel has: opening such a node says ENXIO.
NOBODYS = 510
LOG, VERSION = "rtx4090-570.xml", "570.86.10"


@pytest.fixture
def host(tmp_path: Path) -> RecordedHost:
    return RecordedHost(tmp_path / "root").whole(LOG, VERSION)


def unit(tmp_path: Path, *lines: str) -> str:
    path = tmp_path / "engine.service"
    path.write_text("\n".join(["[Service]", "ExecStart=/bin/true", *lines]) + "\n")
    return str(path)


def only(host: RecordedHost, **request: object) -> Problem:
    (problem,) = host.problems(**request)
    assert problem.level == "error"
    return problem


# --- missing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["/dev/nvidia-uvm", "/dev/nvidiactl", "/dev/nvidia0"])
def test_a_missing_node(host: RecordedHost, name: str) -> None:
    host.path(name).unlink()
    problem = only(host)
    assert (problem.kind, problem.paths) == ("device-node-missing", (name,))
    assert "nvidia-modprobe -c0 -u" in problem.fix


def test_nvidia_smi_works_without_uvm_and_cuda_does_not(host: RecordedHost) -> None:
    host.path("/dev/nvidia-uvm").unlink()
    assert "nvidia-smi works, and CUDA says that there is no GPU" in only(host).message


@pytest.mark.parametrize(
    ("lines", "mode", "missing"),
    [
        ([], 0o755, False),
        (["User=nobody"], 0o4755, False),
        (["User=nobody"], 0o755, True),
        (["User=nobody", "NoNewPrivileges=yes"], 0o4755, True),
    ],
    ids=["root", "setuid", "no setuid bit", "setuid, NoNewPrivileges"],
)
def test_nodes_that_the_driver_makes_when_needed(
    host: RecordedHost, tmp_path: Path, lines: list[str], mode: int, missing: bool
) -> None:
    host.path("/dev/nvidia-uvm").unlink()
    host.program("/usr/bin/nvidia-modprobe", "exit 0").chmod(mode)
    assert [p.kind for p in host.problems(unit=unit(tmp_path, *lines))] == (["device-node-missing"] if missing else [])


def test_a_file_in_place_of_a_node(host: RecordedHost) -> None:
    host.path("/dev/nvidia-uvm").unlink()
    host.write("/dev/nvidia-uvm", "")
    host.program("/usr/bin/nvidia-modprobe", "exit 0").chmod(0o4755)
    problem = only(host)
    assert problem.message == "/dev/nvidia-uvm is there and is no character device"
    assert problem.fix.startswith("rm /dev/nvidia-uvm")


def test_a_container_needs_one_gpu_of_its_host(host: RecordedHost) -> None:
    host.whole("a100-535.xml", "535.183.06")
    host.write("/run/systemd/container", "lxc")
    for number in (0, 1, 3):
        host.path(f"/dev/nvidia{number}").unlink()
    assert [p.kind for p in host.problems() if p.kind != "small-shm"] == []
    host.path("/dev/nvidia2").unlink()
    (problem,) = [p for p in host.problems() if p.kind != "small-shm"]
    assert problem.message == "/dev/nvidia0 is not in this container"
    assert "lxc.mount.entry" in problem.fix


def test_a_jetson_has_other_nodes(host: RecordedHost) -> None:
    for name in ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"):
        host.path(name).unlink()
    host.write("/proc/device-tree/compatible", "nvidia,p3737-0000+p3701-0005\0nvidia,tegra234\0")
    assert host.problems() == []


# --- stale and refused -------------------------------------------------------------------------------------


def test_uvm_has_another_number_since_the_boot(host: RecordedHost) -> None:
    host.node("/dev/nvidia-uvm", major=NOBODYS, minor=0)
    problem = only(host)
    assert problem.kind == "device-node-missing"
    assert problem.message.startswith(f"/dev/nvidia-uvm has major {NOBODYS}, and its driver has {MAJOR}")
    assert problem.fix == "rm /dev/nvidia-uvm && nvidia-modprobe -c0 -u"


def test_an_lxc_rule_that_was_written_for_another_number(host: RecordedHost) -> None:
    host.write("/proc/1/environ", "TERM=linux\0container=lxc\0")
    host.node("/dev/nvidia-uvm", major=NOBODYS, minor=0)
    assert f"lxc.cgroup2.devices.allow: c {MAJOR}:* rwm" in only(host).fix


def test_no_driver_answers_behind_a_node(host: RecordedHost) -> None:
    """The number is right by /proc/devices, and opening really fails."""
    host.kernel_module(VERSION, majors=[f"{MAJOR} nvidia-frontend", f"{NOBODYS} nvidia-uvm"])
    host.node("/dev/nvidia-uvm", major=NOBODYS, minor=0)
    problem = only(host)
    assert problem.message == "/dev/nvidia-uvm: no driver answers behind the node (ENXIO)"
    (node,) = [n for n in host_result(host.facts())["device_nodes"] if n["path"] == "/dev/nvidia-uvm"]
    assert node["error"] == "ENXIO: No such device or address"


@pytest.mark.parametrize("answers", [True, False])
def test_a_node_that_nvidia_smi_has_used_is_not_opened_again(host: RecordedHost, answers: bool) -> None:
    """Each opening starts a GPU that the driver does not keep started."""
    host.kernel_module(VERSION, majors=[f"{NOBODYS} nvidia-frontend", f"{MAJOR} nvidia-uvm"])
    for name in ("/dev/nvidia0", "/dev/nvidiactl"):
        host.node(name, major=NOBODYS, minor=0)
    if not answers:
        host.path("/usr/bin/nvidia-smi").unlink()
    errors = {node["path"]: node["error"] for node in host_result(host.facts())["device_nodes"]}
    expected = None if answers else "ENXIO: No such device or address"
    assert errors == {"/dev/nvidiactl": expected, "/dev/nvidia0": expected, "/dev/nvidia-uvm": None}


def test_a_device_rule_of_a_cgroup(host: RecordedHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """What such a rule does to open(2); setting one takes eBPF, and would hit the tests' own process."""
    host.write("/proc/1/environ", "container=lxc")
    real = os.open

    def refuse(path: str, *arguments: int) -> int:
        if path.endswith("nvidia-uvm"):
            raise PermissionError(1, "Operation not permitted", path)
        return real(path, *arguments)

    monkeypatch.setattr(os, "open", refuse)
    problem = only(host)
    assert "a cgroup's device rule forbids it" in problem.message
    assert f"lxc.cgroup2.devices.allow: c {MAJOR}:* rwm" in problem.fix


# --- forbidden to the service ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "mode", "allowed"),
    [
        (["User=nobody"], 0o666, True),
        (["User=nobody"], 0o660, False),
        (["User=nobody", "SupplementaryGroups=root"], 0o660, True),
        (["User=nobody", "Group=0"], 0o660, True),
        (["DynamicUser=yes"], 0o660, False),
        (["User=root"], 0o600, True),
    ],
)
def test_the_mode_of_a_node_and_the_units_user(
    host: RecordedHost, tmp_path: Path, lines: list[str], mode: int, allowed: bool
) -> None:
    host.path("/dev/nvidia0").chmod(mode)
    problems = host.problems(unit=unit(tmp_path, *lines))
    assert [p.kind for p in problems] == ([] if allowed else ["access-denied"])


def test_the_fix_for_a_mode_names_the_group(host: RecordedHost, tmp_path: Path) -> None:
    host.path("/dev/nvidia0").chmod(0o660)
    problem = only(host, unit=unit(tmp_path, "User=nobody"))
    assert problem.message == "user nobody may not read and write /dev/nvidia0: mode 0660, owner 0:0"
    assert problem.fix.startswith("SupplementaryGroups= with group 0")


@pytest.mark.parametrize(
    ("lines", "allowed"),
    [
        (["DevicePolicy=auto"], True),
        (["PrivateDevices=no"], True),
        (["PrivateDevices=yes"], False),
        (["DevicePolicy=closed"], False),
        (["DeviceAllow=/dev/null rw"], False),
        (["DeviceAllow=/dev/nvidia0 rw", "DeviceAllow=/dev/nvidiactl rw", "DeviceAllow=/dev/nvidia-uvm rw"], True),
        (["DevicePolicy=closed", "DeviceAllow=char-nvidia* rw"], True),
        (["DevicePolicy=closed", "DeviceAllow=char-nvidia-uvm r"], False),
        (["DeviceAllow=/dev/nvidia0 rw", "DeviceAllow="], True),
    ],
)
def test_the_device_rules_of_a_unit(host: RecordedHost, tmp_path: Path, lines: list[str], allowed: bool) -> None:
    problems = host.problems(unit=unit(tmp_path, *lines))
    assert [p.kind for p in problems] == ([] if allowed else ["access-denied"])


def test_the_fix_for_a_rule_outlives_a_change_of_the_number(host: RecordedHost, tmp_path: Path) -> None:
    host.kernel_module(VERSION, majors=["195 nvidia", f"{MAJOR} nvidia-uvm"])
    for name in ("/dev/nvidia0", "/dev/nvidiactl"):
        host.node(name, major=195, minor=0)
    problems = host.problems(unit=unit(tmp_path, "DevicePolicy=closed"))
    (problem,) = [p for p in problems if p.kind == "access-denied"]
    assert problem.fix == "add DeviceAllow=char-nvidia rw DeviceAllow=char-nvidia-uvm rw to the unit"
