# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What nvidia-smi knows about the GPUs, asked with a time limit. Private to the collection.

``nvidia-smi -q -x`` is documented by the DTD that every driver ships (nvsmi_device_v*.dtd); elements come and go
between releases, so that each one may be absent, ``N/A``, or an apology.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from xml.etree import ElementTree

from ansible_collections.gpufleet.dflash.plugins.module_utils._command import Finished, is_program, run_bounded
from ansible_collections.gpufleet.dflash.plugins.module_utils._host_files import HostFiles
from ansible_collections.gpufleet.dflash.plugins.module_utils._host_kernel import address_of

TIMEOUT = 20.0
_PLACES = (
    "/usr/bin",
    "/usr/local/bin",
    "/usr/local/nvidia/bin",
    "/opt/nvidia/bin",
    "/usr/lib/wsl/lib",
    "/run/nvidia/driver/usr/bin",
    "/run/current-system/sw/bin",
)
# What stands in place of a value that there is not.
_NOTHING = re.compile(r"\[?(N/A|Not Supported|Unknown|Insufficient Permissions)\]?\Z|Requested functionality", re.I)
# What stands in place of every value of a GPU that does not answer any more.
_LOST = re.compile(r"GPU is lost|(GPU )?requires reset|Unknown Error|\bERR!", re.I)
_SLOWDOWNS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")


@dataclass(frozen=True)
class SmiGpu:
    """One GPU, None for what its driver does not tell. Memory is in MiB.

    ``uncorrected`` counts the uncorrected ECC errors since the driver was loaded. The flags from
    ``remapping_pending`` on are those of nvidia-smi of the same name. ``lost`` are the driver's words in place of
    values, when the GPU does not answer. ``mig`` is the mode, ``instances`` the MIG devices.
    """

    address: str
    index: int
    name: str | None = None
    uuid: str | None = None
    minor: int | None = None
    compute_capability: str | None = None
    memory: int | None = None
    persistence: bool | None = None
    compute_mode: str | None = None
    mig: bool | None = None
    instances: int = 0
    ecc: bool | None = None
    uncorrected: int | None = None
    remapping_pending: bool | None = None
    remapping_failure: bool | None = None
    retirement_pending: bool | None = None
    repair_pending: bool | None = None
    unrepairable_memory: bool | None = None
    sram_threshold_exceeded: bool | None = None
    reset_required: bool | None = None
    recovery_action: str | None = None
    fabric_state: str | None = None
    fabric_status: str | None = None
    slowdowns: tuple[str, ...] = ()
    lost: str | None = None


@dataclass(frozen=True)
class SmiFacts:
    """What nvidia-smi says. ``path`` is None where there is none; ``failure`` are words for an answer that is none."""

    path: str | None
    driver: str | None = None
    cuda: str | None = None
    gpus: tuple[SmiGpu, ...] = ()
    failure: str = ""
    hung: bool = False

    @property
    def answered(self) -> bool:
        """Whether there is an nvidia-smi and it told about the GPUs."""
        return self.path is not None and not self.failure


def ask_smi(files: HostFiles, timeout: float = TIMEOUT) -> SmiFacts:
    """Find nvidia-smi and ask it. Never raises, and comes back in ``timeout`` seconds even when a GPU hangs."""
    candidates = (files.path(f"{place}/nvidia-smi") for place in _PLACES)
    program = next((path for path in candidates if is_program(path)), None)
    if program is None:
        return SmiFacts(None)
    place = files.inside(program)
    answer = run_bounded([program, "-q", "-x"], timeout)
    if answer.status != 0:
        return SmiFacts(place, failure=_words(answer), hung="no answer" in answer.failure)
    facts = replace(parse_smi(answer.output), path=place)
    if not facts.gpus or facts.failure:
        return facts
    # The first two releases that matter know no compute_cap, and answer with an error.
    query = run_bounded([program, "--query-gpu=uuid,compute_cap", "--format=csv,noheader"], timeout)
    capabilities = dict(re.findall(r"^(GPU-[\w-]+), *(\d+\.\d+)\s*$", query.output, re.M)) if query.status == 0 else {}
    gpus = tuple(replace(gpu, compute_capability=capabilities.get(gpu.uuid or "")) for gpu in facts.gpus)
    return replace(facts, gpus=gpus)


def parse_smi(text: str) -> SmiFacts:
    """Read what ``nvidia-smi -q -x`` printed."""
    start = text.find("<?xml")
    # Nothing that nvidia-smi prints declares an entity: what does is not parsed at all.
    if start < 0 or "<!ENTITY" in text:
        return SmiFacts(None, failure=f"prints no log, but: {_first_line(text) or 'nothing'}")
    try:
        log = ElementTree.fromstring(text[start:].strip())
    except (ElementTree.ParseError, ValueError, RecursionError, MemoryError) as error:
        return SmiFacts(None, failure=f"prints XML that cannot be read: {error}")
    if log.tag != "nvidia_smi_log":
        return SmiFacts(None, failure=f"prints something else than its log: <{log.tag}>")
    gpus = tuple(_gpu(element, index) for index, element in enumerate(log.findall("gpu")))
    return SmiFacts(None, driver=_value(log, "driver_version"), cuda=_value(log, "cuda_version"), gpus=gpus)


def _gpu(element: ElementTree.Element, index: int) -> SmiGpu:
    lost = next((text for text in _texts(element) if _LOST.search(text)), None)
    instances = element.findall("mig_devices/mig_device")
    return SmiGpu(
        address=address_of(element.get("id") or _value(element, "pci/pci_bus_id") or ""),
        index=index,
        name=_value(element, "product_name"),
        uuid=_value(element, "uuid"),
        minor=_number(element, "minor_number"),
        memory=_number(element, "fb_memory_usage/total"),
        persistence=_flag(element, "persistence_mode"),
        compute_mode=_value(element, "compute_mode"),
        mig=_flag(element, "mig_mode/current_mig"),
        instances=len(instances),
        ecc=_flag(element, "ecc_mode/current_ecc"),
        uncorrected=_uncorrected(element),
        remapping_pending=_flag(element, "remapped_rows/remapped_row_pending"),
        remapping_failure=_flag(element, "remapped_rows/remapped_row_failure"),
        retirement_pending=_flag(element, "retired_pages/pending_retirement"),
        repair_pending=_any(
            _flag(element, "ecc_errors/channel_repair_pending"), _flag(element, "ecc_errors/tpc_repair_pending")
        ),
        unrepairable_memory=_flag(element, "ecc_errors/unrepairable_memory"),
        sram_threshold_exceeded=_flag(element, "ecc_errors/aggregate/sram_threshold_exceeded"),
        reset_required=_flag(element, "gpu_reset_status/reset_required"),
        recovery_action=_value(element, "gpu_recovery_action"),
        fabric_state=_value(element, "fabric/state"),
        fabric_status=_value(element, "fabric/status"),
        slowdowns=tuple(name for name in _SLOWDOWNS if _slowed(element, name)),
        lost=lost,
    )


def _texts(element: ElementTree.Element) -> Iterator[str]:
    """The values that a GPU in order always has; in others the same words may mean something else."""
    for path in ("product_name", "uuid", "performance_state", "persistence_mode", "fb_memory_usage/total", "serial"):
        text = element.findtext(path)
        if text:
            yield text.strip()


def _uncorrected(element: ElementTree.Element) -> int | None:
    """The sum of the volatile uncorrected errors; Volta and older call them double bit errors."""
    volatile = element.find("ecc_errors/volatile")
    if volatile is None:
        return None
    old = _number(volatile, "double_bit/total")
    counts = [_number(volatile, each.tag) for each in volatile if "uncorrectable" in each.tag]
    known = [count for count in counts if count is not None]
    return old if old is not None else sum(known) if known else None


def _slowed(element: ElementTree.Element, name: str) -> bool:
    """Driver 535 and later call events what were throttle reasons before."""
    new = element.findtext(f"clocks_event_reasons/clocks_event_reason_{name}")
    old = element.findtext(f"clocks_throttle_reasons/clocks_throttle_reason_{name}")
    return (new or old or "").strip() == "Active"


def _value(element: ElementTree.Element, path: str) -> str | None:
    text = (element.findtext(path) or "").strip()
    return None if not text or _NOTHING.match(text) or _LOST.search(text) else text


def _number(element: ElementTree.Element, path: str) -> int | None:
    match = re.match(r"(\d{1,12})(\s*MiB)?\Z", _value(element, path) or "")
    return int(match[1]) if match else None


def _flag(element: ElementTree.Element, path: str) -> bool | None:
    return {"yes": True, "enabled": True, "no": False, "disabled": False}.get((_value(element, path) or "").lower())


def _any(*flags: bool | None) -> bool | None:
    known = [flag for flag in flags if flag is not None]
    return any(known) if known else None


def _words(answer: Finished) -> str:
    """nvidia-smi explains itself on its standard output."""
    if answer.failure:
        return answer.failure
    said = _first_line(answer.output) or _first_line(answer.errors)
    how = f"exit status {answer.status}"
    return f"{said} ({how})" if said else how


def _first_line(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return "".join(letter if letter.isprintable() else "?" for letter in line[:300])
