# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge the GPUs and what connects them: are all there, in order, and ready. Private to the collection.

What each flag of memory means: NVIDIA's "GPU Memory Error Management" and "Dynamic Page Retirement".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ansible_collections.gpufleet.dflash.plugins.module_utils._findings import Problem
from ansible_collections.gpufleet.dflash.plugins.module_utils._host_gather import HostFacts
from ansible_collections.gpufleet.dflash.plugins.module_utils._kernel_log import Xid
from ansible_collections.gpufleet.dflash.plugins.module_utils._nvidia_smi import SmiGpu

_NVML_UNKNOWN = "Failed to initialize NVML: Unknown Error"
_NO_HANDLE = "Unable to determine the device handle"
_NO_ANSWER = "couldn't communicate with the NVIDIA driver"
# By the driver's own word for the action that a GPU needs (nvmlDeviceGpuRecoveryAction_t): severity and what to do.
_RECOVERY = {
    "reset": ("error", "stop what uses it, then nvidia-smi --gpu-reset -i {index}"),
    "gpu reset": ("error", "stop what uses it, then nvidia-smi --gpu-reset -i {index}"),
    "bus reset": ("error", "stop what uses it, then nvidia-smi --gpu-reset -i {index}"),
    "reboot": ("error", "reboot the host"),
    "node reboot": ("error", "reboot the host"),
    "system reboot": ("error", "reboot the host"),
    "drain p2p": ("warning", "finish what uses other GPUs through this one, then stop and restart it"),
    "drain and reset": ("warning", "finish what runs on it, then nvidia-smi --gpu-reset -i {index}"),
}


def gpus_missing(facts: HostFacts) -> Iterator[Problem]:
    """Fewer GPUs than the host must have, or than its bus shows."""
    kernel, expected = facts.kernel, facts.request.gpus_expected
    there = facts.gpu_count
    fallen = [xid for xid in facts.log.xids if xid.number == 79]
    hint = _why_absent(facts, fallen)
    if expected is not None and there < expected:
        # The other judges say why there is no driver; without a GPU on the bus there is nothing else to say.
        if kernel.usable_on_bus and kernel.version is None:
            return
        on_bus = len(kernel.usable_on_bus)
        yield Problem(
            "gpu-missing",
            f"this host must have {expected} GPU{'' if expected == 1 else 's'}, and {_offered(facts)}",
            hint,
            evidence=f"{on_bus} on the PCI bus, {len(kernel.gpus)} of the kernel driver, nvidia-smi: "
            f"{len(facts.smi.gpus) if facts.smi.answered else facts.smi.failure or 'not installed'}",
        )
        return
    if kernel.version is None or facts.confined or facts.surroundings.kind == "wsl":
        return
    known = {gpu.address for gpu in facts.smi.gpus} if facts.smi.answered else {gpu.address for gpu in kernel.gpus}
    # Another kernel driver has some on purpose, such as nouveau the one for the display.
    candidates = [device for device in kernel.usable_on_bus if device.driver in ("", "nvidia")]
    absent = [device.address for device in candidates if device.address not in known]
    if not absent or not known and not facts.smi.answered:
        return
    taken = any(device.address in absent and device.driver for device in candidates)
    yield Problem(
        "gpu-missing",
        f"the PCI bus shows {len(candidates)} NVIDIA GPUs, and the driver {there}: "
        f"{', '.join(absent)} {'is' if len(absent) == 1 else 'are'} not usable",
        hint,
        paths=tuple(f"/sys/bus/pci/devices/{address}" for address in absent),
        evidence="; ".join(f"{xid.address}: Xid {xid.number}" for xid in fallen) or "nvidia-smi does not list it",
        # What the driver did not take when it was loaded may be a GPU that it does not know.
        severity="" if taken or fallen else "warning",
    )


def gpus_unusable(facts: HostFacts) -> Iterator[Problem]:
    """GPUs that are in order and set up so that CUDA does not see them."""
    closed = [gpu for gpu in facts.smi.gpus if gpu.mig and not gpu.instances]
    prohibited = [gpu for gpu in facts.smi.gpus if gpu.compute_mode == "Prohibited"]
    everything = len({gpu.address for gpu in (*closed, *prohibited)}) == len(facts.smi.gpus)
    for gpus, what, fix in (
        (
            closed,
            "in MIG mode and without a MIG instance",
            "nvidia-smi mig -i {0} -cgi 0 -C, or nvidia-smi -i {0} -mig 0",
        ),
        (prohibited, "in compute mode Prohibited", "nvidia-smi -i {0} -c DEFAULT"),
    ):
        if gpus:
            yield Problem(
                "gpu-missing",
                f"GPU {gpus[0].index}{_more(gpus)} {'is' if len(gpus) == 1 else 'are'} {what}: CUDA does not see "
                f"{'it' if len(gpus) == 1 else 'them'}",
                fix.format(gpus[0].index),
                evidence="nvidia-smi -q: " + ", ".join(gpu.address for gpu in gpus),
                severity="" if everything else "warning",
            )


def smi_fails(facts: HostFacts) -> Iterator[Problem]:
    """nvidia-smi is there and gives no answer, for a reason that no other judge sees."""
    smi = facts.smi
    if smi.path is None or smi.answered or facts.kernel.version is None or "version mismatch" in smi.failure:
        return
    if smi.hung:
        yield Problem(
            "gpu-fault",
            f"nvidia-smi {smi.failure}: a GPU or its driver hangs",
            "reboot; a process in state D (ps -eo pid,stat,comm) that survives it names the GPU",
            object=smi.path,
            evidence=smi.failure,
        )
    elif _NVML_UNKNOWN in smi.failure:
        yield Problem(
            "device-node-missing",
            "nvidia-smi may not open the GPUs any more: the device rule of this container was lost, as after "
            "`systemctl daemon-reload` on its host",
            "restart the container; on its host use CDI, or the cgroup driver of systemd with the nodes in "
            "/dev/char (nvidia-ctk system create-dev-char-symlinks)",
            object=smi.path,
            evidence=smi.failure,
        )
    elif "No devices were found" in smi.failure:
        yield Problem(
            "gpu-missing",
            "the driver is loaded and has no GPU that works",
            "`dmesg | grep NVRM` tells why it did not start; power, seating, or a driver that does not know this GPU "
            "(newer GPUs need the open kernel module)",
            object=smi.path,
            evidence=smi.failure,
        )
    elif _NO_ANSWER in smi.failure:
        yield Problem(
            "driver-missing",
            f"the kernel module of driver {facts.kernel.version} is loaded and does not answer nvidia-smi",
            "`dmesg | grep NVRM` tells why; install the driver anew, or reboot",
            object=smi.path,
            evidence=smi.failure,
        )
    elif _NO_HANDLE in smi.failure:
        yield Problem(
            "gpu-fault",
            f"a GPU does not answer the driver: {smi.failure}",
            "reboot; if it comes again, start the host from cold, reseat the GPU or replace it",
            object=smi.path,
            evidence=smi.failure,
        )
    else:
        yield Problem(
            "environment-malformed",
            f"nvidia-smi gives no answer that can be used: {smi.path}: {smi.failure}",
            "run it by hand; install the driver's utilities anew if it is damaged",
            object=smi.path,
            evidence=smi.failure,
        )


def gpu_faults(facts: HostFacts) -> Iterator[Problem]:
    """What the driver itself says about the state of each GPU."""
    for gpu in facts.smi.gpus:
        found = _fault(gpu)
        if found:
            severity, what, fix, evidence = found
            yield Problem(
                "gpu-fault",
                f"GPU {gpu.index} ({gpu.address}) {what}",
                fix,
                evidence=evidence,
                severity=severity,
            )


def _fault(gpu: SmiGpu) -> tuple[str, str, str, str] | None:
    """Severity, what is wrong, fix and evidence: the worst thing about one GPU."""
    reset = f"stop what uses it, then nvidia-smi --gpu-reset -i {gpu.index}; or reboot"
    replace = f"take it out of service and have it replaced (run NVIDIA's field diagnostics first): {gpu.uuid or ''}"
    action = (gpu.recovery_action or "none").lower()
    if gpu.lost:
        return "error", f"does not answer the driver: {gpu.lost}", reset, f"nvidia-smi -q: {gpu.lost}"
    if gpu.reset_required:
        return "error", "must be reset before it works again", reset, "gpu_reset_status: reset_required Yes"
    if gpu.remapping_failure or gpu.unrepairable_memory:
        return "error", "has memory that cannot be repaired any more", replace, "remapped_row_failure or unrepairable"
    if action != "none":
        severity, fix = _RECOVERY.get(action, ("warning", reset))
        words = f"needs the recovery action `{gpu.recovery_action}`, its driver says"
        return severity, words, fix.format(index=gpu.index), f"gpu_recovery_action {gpu.recovery_action}"
    if gpu.remapping_pending or gpu.repair_pending or gpu.retirement_pending:
        what = "has faulty memory that the next reset takes out of use"
        return "warning", what, reset, "remapped rows, a repair or retired pages are pending"
    if gpu.sram_threshold_exceeded:
        return "warning", "has had more SRAM errors than NVIDIA tolerates", replace, "sram_threshold_exceeded Yes"
    if gpu.uncorrected:
        what = f"has had {gpu.uncorrected} uncorrected memory error{'' if gpu.uncorrected == 1 else 's'}"
        return "warning", f"{what} since the driver was loaded", reset, f"volatile uncorrected: {gpu.uncorrected}"
    return None


def xids(facts: HostFacts) -> Iterator[Problem]:
    """Fatal Xids of this boot. What the driver says about the GPU now counts more than what the log says of then."""
    states = {gpu.address: gpu for gpu in facts.smi.gpus}
    on_bus = {device.address for device in facts.kernel.gpus_on_bus} | set(states)
    by_gpu: dict[str, list[Xid]] = {}
    for xid in facts.log.xids:
        # A container reads the log of its host: what is not its GPU is not its problem.
        if xid.meaning and (xid.address in states if facts.confined else xid.address in on_bus):
            by_gpu.setdefault(xid.address, []).append(xid)
    for address, found in by_gpu.items():
        gpu = states.get(address)
        if gpu is not None and _fault(gpu) is not None:
            continue
        last = found[-1]
        well = gpu is not None and (gpu.reset_required is False or (gpu.recovery_action or "").lower() == "none")
        numbers = ", ".join(f"Xid {xid.number} ({xid.count} times)" for xid in found)
        yield Problem(
            "gpu-fault",
            f"GPU {address}: Xid {last.number} since the last boot, {last.meaning}"
            + ("; its driver needs nothing done now" if well else ""),
            "if it comes again, drain the host, run NVIDIA's field diagnostics and replace the GPU"
            if well
            else "stop what uses it and reset it (nvidia-smi --gpu-reset), or reboot; if it comes again, replace it",
            evidence=f"{facts.log.source}: {numbers}: {last.text}",
            severity="warning" if well else "error",
        )


def fabric(facts: HostFacts) -> Iterator[Problem]:
    """GPUs behind NVSwitches that are not part of a fabric: CUDA answers 802 (dstackai/dstack#2348)."""
    manager, running = facts.fabric, facts.kernel.version
    if not manager.needed or running is None:
        return
    waiting = [gpu for gpu in facts.smi.gpus if gpu.fabric_state and gpu.fabric_state != "Completed"]
    failed = [
        gpu for gpu in facts.smi.gpus if gpu.fabric_state == "Completed" and gpu.fabric_status not in (None, "Success")
    ]
    judged = [gpu for gpu in facts.smi.gpus if gpu.fabric_state]
    version = manager.version
    fix = "systemctl enable --now nvidia-fabricmanager"
    if waiting or failed:
        gpu = (waiting or failed)[0]
        state = gpu.fabric_state if waiting else f"{gpu.fabric_state}, {gpu.fabric_status}"
        message = f"GPU {gpu.index}{_more(waiting or failed)} did not join the NVLink fabric: {state}"
    elif judged or facts.confined or manager.running or manager.service in (None, "active"):
        # GPUs that say Completed need nothing else; a container's fabric manager runs outside of it.
        if not (version and version != running and manager.nvswitches and not judged and not facts.confined):
            return
        message = "the fabric manager cannot work with this driver"
    else:
        state = {"not-found": "is not installed", "failed": "has failed"}.get(
            manager.service or "", f"is {manager.service}"
        )
        message = f"this host has {manager.nvswitches} NVSwitches, and its fabric manager {state}"
    if version and version != running:
        message += f"; nv-fabricmanager is of version {version}, the driver of {running}: they must be equal"
        fix = f"install nvidia-fabricmanager {running}, then systemctl restart nvidia-fabricmanager"
    elif manager.service == "not-found" and not facts.confined:
        fix = f"install nvidia-fabricmanager {running}, then {fix}"
    elif manager.service == "active" or manager.running:
        fix = "systemctl restart nvidia-fabricmanager; its log says why: journalctl -u nvidia-fabricmanager"
    elif facts.confined:
        fix = f"on the container's host: {fix}"
    yield Problem(
        "fabric-not-ready",
        f"{message}: CUDA answers `system not yet initialized` until it does",
        fix,
        evidence=f"service {manager.service or 'unknown'}, version {version or 'unknown'}; NVSwitches on the bus: "
        f"{manager.nvswitches}",
    )


def _more(gpus: Sequence[SmiGpu]) -> str:
    return f" and {len(gpus) - 1} more" if len(gpus) > 1 else ""


def _offered(facts: HostFacts) -> str:
    count = facts.gpu_count
    if not facts.has_gpu:
        return "has no NVIDIA GPU at all"
    return "the driver offers none" if count == 0 else f"the driver offers {count}"


def _why_absent(facts: HostFacts, fallen: Sequence[Xid]) -> str:
    if fallen:
        return f"start the host from cold; if {fallen[0].address} stays away, reseat or replace it"
    if not facts.has_gpu:
        what = {"container": "this container", "vm": "this virtual machine"}.get(facts.surroundings.kind, "")
        return f"hand a GPU through to {what}, or use a host that has one" if what else "use a host that has one"
    return (
        "`dmesg | grep NVRM` tells why a GPU did not start; power cables, seating and the firmware's `Above 4G "
        "decoding` for one that is not on the bus"
    )
