# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs and their fabric, from recorded logs: all there, in order, ready; and an nvidia-smi that is none."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.recorded_host import LOGS, RecordedHost

from ansible_collections.gpufleet.dflash.plugins.module_utils._findings import Problem
from ansible_collections.gpufleet.dflash.plugins.module_utils._host_facts import host_result
from ansible_collections.gpufleet.dflash.plugins.module_utils._kernel_log import FATAL_XIDS, parse_xids
from ansible_collections.gpufleet.dflash.plugins.module_utils._nvidia_smi import parse_smi

A100, H100, B200, RTX = "a100-535.xml", "h100x8-550.xml", "b200x8-580.xml", "rtx5090-580.xml"
VERSIONS = {A100: "535.183.06", H100: "550.163.01", B200: "580.95.05", RTX: "580.95.05"}


@pytest.fixture
def host(tmp_path: Path) -> RecordedHost:
    return RecordedHost(tmp_path / "root")


def of(host: RecordedHost, log: str, *changes: tuple[str, str]) -> RecordedHost:
    """A host in order but for these changes of its log."""
    host.whole(log, VERSIONS[log])
    host.smi(log, changes)
    return host


def problems(host: RecordedHost, **request: object) -> list[Problem]:
    """Without what the /dev/shm of the tests' own host gives."""
    return [problem for problem in host.problems(**request) if problem.kind != "small-shm"]


# --- faults ------------------------------------------------------------------------------------------------

YES, NO = "Yes", "No"
FAULTS = [
    ("remapped_row_pending", NO, YES, A100, "warning"),
    ("remapped_row_failure", NO, YES, A100, "error"),
    ("reset_required", NO, YES, A100, "error"),
    ("dram_uncorrectable", "0", "3", A100, "warning"),
    ("sram_uncorrectable_parity", "0", "1", H100, "warning"),
    ("sram_threshold_exceeded", NO, YES, H100, "warning"),
    ("channel_repair_pending", NO, YES, B200, "warning"),
    ("gpu_recovery_action", "None", "Reset", B200, "error"),
    ("gpu_recovery_action", "None", "Reboot", B200, "error"),
    ("gpu_recovery_action", "None", "Drain P2P", B200, "warning"),
    ("gpu_recovery_action", "None", "Something New", B200, "warning"),
    ("performance_state", "P0", "[GPU requires reset]", H100, "error"),
    ("performance_state", "P0", "[Unknown Error]", RTX, "error"),
    ("product_name", "NVIDIA B200", "GPU is lost", B200, "error"),
]


@pytest.mark.parametrize(
    ("tag", "old", "new", "log", "severity"), FAULTS, ids=[f"{fault[0]}: {fault[2]}" for fault in FAULTS]
)
def test_what_the_driver_says_about_a_gpu(
    host: RecordedHost, tag: str, old: str, new: str, log: str, severity: str
) -> None:
    (problem,) = problems(of(host, log, (f"<{tag}>{old}</{tag}>", f"<{tag}>{new}</{tag}>")))
    assert (problem.kind, problem.level) == ("gpu-fault", severity)
    assert problem.message.startswith("GPU 0 (")
    assert problem.fix
    assert problem.evidence


def test_a_volta_with_retired_pages(host: RecordedHost) -> None:
    host.whole("v100-470.xml", "470.256.02")
    (problem,) = problems(host)
    assert (problem.kind, problem.level) == ("gpu-fault", "warning")
    assert host_result(host.facts())["gpus"][0]["ecc"]["uncorrected"] == 2


# --- the kernel log ----------------------------------------------------------------------------------------

XID_79 = "NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
XID_31 = "NVRM: Xid (PCI:0000:01:00): 31, pid=4711, name=python3, Ch 00000008, intr 00000000. MMU Fault"


def test_an_xid_of_a_program_is_a_fact_and_no_problem(host: RecordedHost) -> None:
    of(host, RTX).kernel_log(XID_31, XID_31.replace("4711", "4712"))
    assert problems(host) == []
    result = host_result(host.facts())
    assert result["kernel_log"] == "/dev/kmsg"
    (xid,) = result["gpus"][0]["xids"]
    assert (xid["number"], xid["count"]) == (31, 2)
    assert "pid=4712" in xid["text"]


def test_a_fatal_xid_of_a_gpu_that_needs_nothing_now_is_a_warning(host: RecordedHost) -> None:
    of(host, RTX).kernel_log(
        "NVRM: Xid (PCI:0000:01:00): 119, pid=1, Timeout after 6s of waiting for RPC response from GSP"
    )
    (problem,) = problems(host)
    assert (problem.kind, problem.level) == ("gpu-fault", "warning")
    assert "Xid 119" in problem.message
    assert "needs nothing done now" in problem.message


def test_a_fatal_xid_of_a_gpu_that_does_not_answer_is_an_error(host: RecordedHost) -> None:
    host.driver("580.95.05")
    host.gpus_of(RTX)
    host.program("/usr/bin/nvidia-smi", "echo 'No devices were found'; exit 6")
    host.kernel_log(XID_79)
    assert [(p.kind, p.level) for p in problems(host)] == [("gpu-missing", "error"), ("gpu-fault", "error")]


def test_an_old_driver_that_says_nothing_of_resets_is_not_taken_for_well(host: RecordedHost) -> None:
    host.whole("v100-470.xml", "470.256.02")
    host.smi(
        "v100-470.xml",
        [("<pending_retirement>Yes<", "<pending_retirement>No<"), ("<total>2</total>", "<total>0</total>")],
    )
    host.kernel_log("NVRM: Xid (PCI:0000:00:1e): 48, pid=99, An uncorrectable double bit error (DBE) has been detected")
    (problem,) = problems(host)
    assert (problem.kind, problem.level) == ("gpu-fault", "error")


def test_a_container_does_not_answer_for_the_gpus_of_others(host: RecordedHost) -> None:
    of(host, RTX).kernel_log(XID_79.replace("0000:01:00", "0000:41:00"))
    host.pci("0000:41:00.0")
    host.write("/run/systemd/container", "lxc")
    assert problems(host) == []


@pytest.mark.parametrize(
    ("line", "address", "number"),
    [
        (XID_79, "0000:01:00.0", 79),
        ("NVRM: Xid (PCI:0000:0f:00): 119, pid=2, name=x, Timeout", "0000:0f:00.0", 119),
        ("[  966.503025] NVRM: Xid (0000:01:00): 31, Ch 0000000b, engmask 00000120", "0000:01:00.0", 31),
        ("NVRM: Xid (PCI:0000:3B:00 GPU-I:05): 94, pid=1, Contained ECC error", "0000:3b:00.0", 94),
        ("NVRM: GPU 0000:0A:00.0: GPU has fallen off the bus.", "0000:0a:00.0", 79),
        ("NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1", "0008:01:00.0", 154),
    ],
)
def test_the_forms_of_an_xid(line: str, address: str, number: int) -> None:
    (xid,) = parse_xids([line])
    assert (xid.address, xid.number, xid.count) == (address, number, 1)


def test_one_loss_told_twice_is_one(host: RecordedHost) -> None:
    (xid,) = parse_xids([XID_79, "NVRM: GPU 0000:01:00.0: GPU has fallen off the bus."])
    assert xid.count == 1


def test_a_loss_while_the_driver_loads_comes_in_one_record_of_three_lines(host: RecordedHost) -> None:
    of(host, RTX).kernel_log(
        "NVRM: The NVIDIA GPU 0000:01:00.0\\x0aNVRM: (PCI ID: 10de:26b5) installed in this system has\\x0a"
        "NVRM: fallen off the bus and is not responding to commands."
    )
    (xid,) = host.facts().log.xids
    assert (xid.address, xid.number) == ("0000:01:00.0", 79)


def test_a_flood_of_xids_is_counted_by_kind() -> None:
    lines = [f"NVRM: Xid (PCI:0000:{n % 8:02x}:00): {n % 100}, text {n}" for n in range(100_000)]
    found = parse_xids(lines)
    assert len(found) == 200
    assert sum(xid.count for xid in found) == 100_000


def test_the_fatal_xids_leave_out_what_programs_cause() -> None:
    assert not {13, 31, 43, 45, 63, 94} & set(FATAL_XIDS)


def test_without_the_kernels_memory_the_journal_is_asked(host: RecordedHost) -> None:
    of(host, RTX).program("/usr/bin/journalctl", f'test "$1" = --dmesg && echo "{XID_31}"')
    facts = host.facts()
    assert facts.log.source == "journalctl"
    assert [xid.number for xid in facts.log.xids] == [31]


# --- counts ------------------------------------------------------------------------------------------------


def test_a_host_must_have_its_gpus(host: RecordedHost) -> None:
    (problem,) = problems(of(host, A100), gpus_expected=8)
    assert problem.kind == "gpu-missing"
    assert problem.message == "this host must have 8 GPUs, and the driver offers 4"


def test_a_host_that_must_have_a_gpu_and_has_none(host: RecordedHost) -> None:
    (problem,) = problems(host, gpus_expected=1)
    assert (problem.kind, problem.message) == ("gpu-missing", "this host must have 1 GPU, and has no NVIDIA GPU at all")


def test_no_gpus_expected_is_no_demand(host: RecordedHost) -> None:
    assert problems(host, gpus_expected=0) == []


def test_the_bus_shows_more_than_the_driver(host: RecordedHost) -> None:
    of(host, A100).pci("0000:87:00.0")
    host.kernel_log(XID_79.replace("0000:01:00", "0000:87:00"))
    found = problems(host)
    assert [p.kind for p in found] == ["gpu-missing", "gpu-fault"]
    assert found[0].message.endswith("0000:87:00.0 is not usable")
    assert found[0].fix.startswith("start the host from cold")


@pytest.mark.parametrize(("driver", "found"), [("nvidia", ["error"]), ("", ["warning"]), ("nouveau", [])])
def test_a_gpu_that_the_driver_does_not_offer(host: RecordedHost, driver: str, found: list[str]) -> None:
    of(host, A100).pci("0000:87:00.0", driver=driver)
    assert [p.level for p in problems(host)] == found


def test_a_gpu_in_mig_mode_without_an_instance(host: RecordedHost) -> None:
    """CUDA counts MIG instances there, not the GPU."""
    enabled = ("<current_mig>Disabled</current_mig>", "<current_mig>Enabled</current_mig>")
    (problem,) = problems(of(host, A100, enabled))
    assert (problem.kind, problem.level) == ("gpu-missing", "warning")
    assert problem.fix == "nvidia-smi mig -i 0 -cgi 0 -C, or nvidia-smi -i 0 -mig 0"
    host.smi(A100, [enabled] * 4)
    (problem,) = problems(host)
    assert (problem.level, problem.message[:14]) == ("error", "GPU 0 and 3 mo")


def test_a_gpu_that_may_not_compute(host: RecordedHost) -> None:
    of(host, RTX, ("<compute_mode>Default<", "<compute_mode>Prohibited<"))
    (problem,) = problems(host)
    assert (problem.kind, problem.level, problem.fix) == ("gpu-missing", "error", "nvidia-smi -i 0 -c DEFAULT")


def test_a_container_may_have_fewer_gpus_than_its_host(host: RecordedHost) -> None:
    of(host, A100).pci("0000:87:00.0")
    host.write("/run/.containerenv", "")
    assert problems(host) == []


# --- an nvidia-smi that is none ----------------------------------------------------------------------------

ENTITIES = '<!DOCTYPE l [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><nvidia_smi_log>&b;</nvidia_smi_log>'
NO_HANDLE = "Unable to determine the device handle for GPU0000:3A:00.0: Unknown Error"
ANSWERS = [
    ("echo 'No devices were found'; exit 6", "gpu-missing"),
    ("echo 'No devices were found'", "gpu-missing"),
    (f"echo '{NO_HANDLE}'; exit 15", "gpu-fault"),
    (
        "echo 'NVIDIA-SMI has failed because it couldn'\\''t communicate with the NVIDIA driver.'; exit 9",
        "driver-missing",
    ),
    ("echo 'Failed to initialize NVML: Unknown Error'; exit 255", "device-node-missing"),
    ("echo garbage", "environment-malformed"),
    ("exit 0", "environment-malformed"),
    ("kill -SEGV $$", "environment-malformed"),
    ("head -c 300000 /dev/urandom", "environment-malformed"),
    (f"head -c 9000 {LOGS / H100}", "environment-malformed"),
    ("echo '<?xml version=\"1.0\"?><other/>'", "environment-malformed"),
    (f"echo '<?xml version=\"1.0\"?>{ENTITIES}'", "environment-malformed"),
    ("exec yes '<gpu>'", "environment-malformed"),
]


@pytest.mark.parametrize(("script", "kind"), ANSWERS, ids=[script[:40] for script, _kind in ANSWERS])
def test_an_answer_that_is_none(host: RecordedHost, script: str, kind: str) -> None:
    host.driver("550.163.01")
    host.gpus_of(H100)
    host.program("/usr/bin/nvidia-smi", script)
    (problem,) = problems(host)
    assert problem.kind == kind
    assert problem.evidence


def test_an_nvidia_smi_that_hangs(host: RecordedHost) -> None:
    host.driver("550.163.01")
    host.gpus_of(H100)
    host.program("/usr/bin/nvidia-smi", "trap '' TERM; sleep 300 & wait")
    begun = time.monotonic()
    (problem,) = problems(host, smi_timeout=0.5)
    assert time.monotonic() - begun < 5
    assert (problem.kind, problem.level) == ("gpu-fault", "error")
    assert "gives no answer within 0.5 seconds" in problem.message


def test_an_nvidia_smi_that_anybody_could_have_written_is_not_run(host: RecordedHost) -> None:
    ran = host.path("/var/ran")
    of(host, RTX).program("/usr/bin/nvidia-smi", f"touch {ran}").chmod(0o777)
    assert host.facts().smi.path is None
    assert not ran.exists()


def test_an_nvidia_smi_that_cannot_run(host: RecordedHost) -> None:
    of(host, RTX).write("/usr/bin/nvidia-smi", b"\x7fELF\x02\x01\x01junk")
    (problem,) = problems(host)
    assert "cannot be run: Exec format error" in problem.message


def test_nvidia_smi_gets_nothing_of_our_environment(host: RecordedHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD_SECRET", "1")
    out = host.path("/var/environment")
    of(host, RTX).program("/usr/bin/nvidia-smi", f"env > {out}; exit 1")
    host.facts()
    names = {line.partition("=")[0] for line in out.read_text().splitlines()}
    assert names <= {"PATH", "LC_ALL", "PWD", "SHLVL", "_", "OLDPWD"}


def test_a_host_without_nvidia_smi_has_the_drivers_own_list(host: RecordedHost) -> None:
    host.driver("580.95.05")
    host.gpus_of(B200)
    result = host_result(host.facts(gpus_expected=8))
    assert [p["kind"] for p in result["problems"] if p["kind"] != "small-shm"] == []
    assert result["gpus"][0]["name"] == "NVIDIA B200"
    assert result["gpus"][0]["uuid"] is None


@pytest.mark.parametrize("cut", range(0, 40000, 1777))
def test_a_log_cut_anywhere_is_no_traceback(cut: int) -> None:
    text = (LOGS / B200).read_text()
    facts = parse_smi(text[:cut])
    assert facts.failure
    assert facts.gpus == ()


# --- the fabric --------------------------------------------------------------------------------------------

FABRIC_DONE = (
    "<state>Completed</state>\n\t\t\t<status>Success</status>",
    "<state>In Progress</state>\n\t\t\t<status>N/A</status>",
)


def manager(host: RecordedHost, state: str | None, version: str | None = None) -> None:
    """The fabric manager's service as systemd tells it, and its program."""
    host.directory("/run/systemd/system")
    load = "not-found" if state is None else "loaded"
    host.program("/usr/bin/systemctl", f"echo LoadState={load}; echo ActiveState={state or 'inactive'}")
    if version:
        host.program("/usr/bin/nv-fabricmanager", f"echo 'Fabric Manager version is : {version}'")


def switches(host: RecordedHost, count: int = 6) -> None:
    for number in range(count):
        host.pci(f"0000:{0x84 + number:02x}:00.0", kind="0x068000", driver="nvidia-nvswitch")


@pytest.mark.parametrize(
    ("log", "state", "version", "wrong"),
    [
        (A100, "active", "535.183.06", None),
        (A100, "failed", "535.183.06", "its fabric manager has failed"),
        (A100, "inactive", "535.183.06", "its fabric manager is inactive"),
        (A100, None, None, "its fabric manager is not installed"),
        (A100, "failed", "535.216.03", "nv-fabricmanager is of version 535.216.03, the driver of 535.183.06"),
        (A100, "active", "535.216.03", "nv-fabricmanager is of version 535.216.03, the driver of 535.183.06"),
        (H100, "active", "550.163.01", None),
        (H100, "inactive", None, None),
    ],
)
def test_gpus_behind_nvswitches(
    host: RecordedHost, log: str, state: str | None, version: str | None, wrong: str | None
) -> None:
    of(host, log)
    switches(host)
    manager(host, state, version)
    found = problems(host)
    assert [p.kind for p in found] == (["fabric-not-ready"] if wrong else [])
    assert wrong is None or wrong in found[0].message


@pytest.mark.parametrize("log", [H100, B200])
@pytest.mark.parametrize("with_switches", [True, False])
def test_a_gpu_that_has_not_joined(host: RecordedHost, log: str, with_switches: bool) -> None:
    of(host, log, FABRIC_DONE, FABRIC_DONE)
    if with_switches:
        switches(host)
    manager(host, "active", VERSIONS[log])
    (problem,) = problems(host)
    assert problem.kind == "fabric-not-ready"
    assert problem.message.startswith("GPU 0 and 1 more did not join the NVLink fabric: In Progress")
    assert problem.fix.startswith("systemctl restart nvidia-fabricmanager")


def test_a_gpu_whose_fabric_failed(host: RecordedHost) -> None:
    of(host, B200, ("<status>Success</status>", "<status>Insufficient Resources</status>"))
    manager(host, "active", VERSIONS[B200])
    (problem,) = problems(host)
    assert "Completed, Insufficient Resources" in problem.message


def test_the_fabric_manager_of_another_version_is_the_cause(host: RecordedHost) -> None:
    of(host, H100, FABRIC_DONE)
    switches(host)
    manager(host, "failed", "550.144.03")
    (problem,) = problems(host)
    assert problem.fix == "install nvidia-fabricmanager 550.163.01, then systemctl restart nvidia-fabricmanager"


def test_a_containers_fabric_manager_is_outside(host: RecordedHost) -> None:
    of(host, A100)
    switches(host)
    host.write("/run/systemd/container", "lxc")
    manager(host, None)
    assert problems(host) == []


def test_a_fabric_manager_without_systemd_is_seen_as_a_process(host: RecordedHost) -> None:
    of(host, A100)
    switches(host)
    manager(host, None)
    host.write("/proc/1234/comm", "nv-fabricmanage\n")
    assert problems(host) == []


def test_gpus_without_a_fabric_need_no_manager(host: RecordedHost) -> None:
    of(host, A100)
    manager(host, None)
    assert problems(host) == []
