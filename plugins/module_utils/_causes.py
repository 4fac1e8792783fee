# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a service died: a table of patterns over its last words, and the removal of secrets from them.

This module is private to the collection: it can change at any time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ansible_collections.gpufleet.dflash.plugins.module_utils._systemd import SETUP_FAILURES

LONGEST_LINE = 2000
CONCEALED = "********"

# SGLang prints its ServerArgs, keys included, when it starts; argv and requests show up in tracebacks.
_NAME = r"(?:[\w-]*(?:api[_-]?key|password|passwd|secret|(?:hf|hub|auth|access|bearer)[_-]?token))"
_VALUE = r"""(?:'[^']*'|"[^"]*"|(?!None\b|null\b)[^\s,;)}\]'"]+)"""
_SECRETS = (
    re.compile(rf"(?i)(--{_NAME}['\"]?[\s,=]+){_VALUE}"),
    re.compile(rf"(?i)(\b{_NAME}['\"]?\s*[=:]\s*){_VALUE}"),
    re.compile(r"(?i)(\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{6,}"),
    re.compile(r"()\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,})"),
    re.compile(r"(\b\w+://[^/\s:@]*:)[^@\s/]+(?=@)"),
    re.compile(r"(\b\w+://)[^/\s:@]+(?=@)"),
    re.compile(r"(?i)([?&][\w-]*(?:token|key|secret|password|signature|sig)=)[^&\s'\"]+"),
)


def redact(text: str) -> str:
    """Return the text with the values of keys, tokens and passwords concealed, cut to a bounded length."""
    for secret in _SECRETS:
        text = secret.sub(rf"\g<1>{CONCEALED}", text)
    return text if len(text) <= LONGEST_LINE else text[:LONGEST_LINE] + " ..."


@dataclass(frozen=True)
class Cause:
    """A named cause, what it is in half a sentence, and what to do about it."""

    name: str
    message: str
    fix: str


@dataclass(frozen=True)
class Pattern:
    """A cause known by words in the journal; {0} in C(message) are the different values of its groups."""

    cause: str
    expression: str
    message: str
    fix: str


OUT_OF_MEMORY = Cause(
    "out-of-memory",
    "the host's or the unit's memory ran out",
    "raise MemoryMax of the unit, use a smaller model or context, or stop what else uses memory",
)

# The first row that matches wins, so the particular stands before the general.
PATTERNS = (
    Pattern(
        "stopped-by-request",
        r"^Stopping \S.*\.\.\.$",
        "systemd was asked to stop or restart it",
        "find out by whom: journalctl around that time",
    ),
    Pattern(
        "driver-missing",
        r"libcuda\.so\.1: cannot open shared object file|Found no NVIDIA driver on your system",
        "the NVIDIA driver's libcuda.so.1 is missing",
        "install the NVIDIA driver; no Python wheel provides this library",
    ),
    Pattern(
        "driver-too-old",
        r"NVIDIA driver on your system is too old \(found version (\d+)\)",
        "the NVIDIA driver is too old (it supports CUDA {0})",
        "install the driver that this CUDA version needs: 580 or newer for CUDA 13",
    ),
    Pattern(
        "missing-system-library",
        r"\b(lib(?:numa|gomp|stdc\+\+|gcc_s|ibverbs|ssl|z)\.so[.\d]*): cannot open shared object file",
        "the operating system lacks {0}",
        "install its package, such as libnuma1, libgomp1 or libstdc++6",
    ),
    Pattern(
        "missing-library",
        r"(\S+\.so[.\w]*): cannot open shared object file",
        "missing library: {0}",
        "build a generation from a lock that contains it; cuda_wheel_facts names the wheel that provides it",
    ),
    Pattern(
        "undefined-symbol",
        r"(\S+): undefined symbol: \S+",
        "{0} needs a symbol that the libraries found do not have",
        "two versions are mixed: cuda_wheel_facts shows which; build a generation from one lock",
    ),
    Pattern(
        "library-too-old",
        r"(\S+): version `\S+' not found",
        "{0} is older than what needs it",
        "use wheels built for this host's libraries, or a newer operating system",
    ),
    Pattern(
        "module-missing",
        r"ModuleNotFoundError: No module named '?([^'\s]+)|No module named ([^'\s]+)$",
        "missing Python module: {0}",
        "add its distribution to the lock and build a generation",
    ),
    Pattern(
        "draft-mismatch",
        r"GGML_ASSERT\((?:t_layer_inp\[il\] != nullptr|lid <= model\.hparams\.n_layer).*failed",
        "the drafter reads layers that the target model does not have",
        "give the drafter that was trained for this model",
    ),
    Pattern(
        "draft-missing",
        r"\w+ (?:speculative decoding )?requires setting --speculative-draft-model-path|failed to load draft model",
        "the drafter is not given, or cannot be loaded",
        "check the path of the draft model and that the service's user may read it; below /home, /root and /run/user "
        "it sees nothing unless sglang_dflash_protect_home is false",
    ),
    Pattern(
        "model-damaged",
        r"data is not within the file bounds|model is corrupted or incomplete|SafetensorError"
        r"|invalid magic characters",
        "a model file is damaged or cut short",
        "copy the model again and compare its sha256",
    ),
    Pattern(
        "model-missing",
        r"failed to open GGUF file '([^']+)'|(\S+) is not a local folder and is not a valid model identifier"
        r"|(\S+) does not appear to have a file named|Repo id must (?:be|use)(?: in the form .*?: '([^']+)')?"
        r"|LocalEntryNotFoundError",
        "a model is missing: {0}",
        "check the path of the model and that the service's user may read it; below /home, /root and /run/user "
        "it sees nothing unless sglang_dflash_protect_home is false",
    ),
    Pattern(
        "gpu-out-of-memory",
        r"CUDA out of memory|torch\.(?:cuda\.)?OutOfMemoryError|CUDA error: out of memory"
        r"|Not enough memory\. Please try to increase --mem-fraction-static",
        "the GPU has too little free memory",
        "lower --mem-fraction-static or --max-running-requests; nvidia-smi lists what else uses the GPU",
    ),
    Pattern(
        "out-of-memory",
        r"killed by the OOM killer|Out of memory: Killed process|Failed with result 'oom-kill'"
        r"|\bMemoryError\b|std::bad_alloc",
        OUT_OF_MEMORY.message,
        OUT_OF_MEMORY.fix,
    ),
    Pattern(
        "port-in-use",
        r"(?i)address already in use|EADDRINUSE|couldn't bind HTTP server socket"
        r"|port \d+ of \S+ is held by another process",
        "its port is in use",
        "stop the process that holds the port (ss -ltnp), or give the instance another port",
    ),
    Pattern(
        "architecture-unsupported",
        r"no kernel image is available for execution",
        "the kernels were not built for this GPU",
        "use wheels built for the GPU's compute capability",
    ),
    Pattern(
        "gpu-missing",
        r"[Nn]o CUDA-capable device is detected|No CUDA GPUs are available|CUDA unknown error"
        r"|No accelerator .{0,40}available",
        "no usable GPU is visible to the service",
        "check nvidia-smi as the service's user, /dev/nvidia*, DeviceAllow and CUDA_VISIBLE_DEVICES",
    ),
    Pattern(
        "disk-full",
        r"No space left on device",
        "a file system is full (/dev/shm and /tmp count)",
        "free space: df -h shows where",
    ),
    Pattern(
        "too-many-files",
        r"Too many open files",
        "the limit of open files is too low",
        "raise LimitNOFILE of the unit",
    ),
    Pattern(
        "toolchain-missing",
        r"Could not find nvcc|Failed to find C compiler|No such file or directory: '(?:ninja|nvcc|gcc)'",
        "just-in-time compilation lacks a compiler",
        "install nvcc, ninja and gcc where the unit's PATH and CUDA_HOME find them",
    ),
    Pattern(
        "exec-failed",
        r"Failed at step EXEC spawning (\S+): ",
        "systemd cannot start {0}",
        "check that the file and its interpreter exist and that the service's user may execute them",
    ),
    Pattern(
        "setup-failed",
        r"Failed at step (\w+) spawning",
        "systemd cannot prepare the process: step {0} failed",
        "correct the directive of the unit that this step belongs to (systemd.exec(5))",
    ),
    Pattern(
        "bad-argument",
        r"error: (unrecognized arguments: .+|argument .+|the following arguments are required: .+)",
        "the engine refuses its arguments: {0}",
        "correct the instance's arguments",
    ),
    Pattern(
        "model-unloadable",
        r"error loading model: (.+)",
        "the engine cannot load the model: {0}",
        "look for a download that was cut short, another format, or a model that this version does not know",
    ),
    Pattern(
        "engine-assertion",
        r"(GGML_ASSERT\(.*?\)) failed",
        "an assertion of llama.cpp failed: {0}",
        "this is a defect of the engine or of a model file: try another version of either",
    ),
    Pattern(
        "permission-denied",
        r"PermissionError: .*?'([^']+)'|(\S+): Permission denied",
        "the service's user may not use {0}",
        "correct the owner or mode, or the unit's ReadWritePaths",
    ),
    Pattern(
        "scheduler-died",
        r"Subprocess \S+ \(pid=\d+\) crashed with exit code (-?\d+)",
        "its scheduler ended with exit code {0}",
        "-9 is SIGKILL: the OOM killer (journalctl -k | grep -i oom) or somebody; else read the journal's lines before",
    ),
    Pattern(
        "exception",
        r"^((?:\w+\.)*\w*(?:Error|Exception): .+)",
        "it ended with {0}",
        "read the journal's last lines",
    ),
)

_COMPILED = tuple((pattern, re.compile(pattern.expression)) for pattern in PATTERNS)

# What the way of ending says when the journal says nothing.
SIGNALS = {
    "SIGILL": Cause("illegal-instruction", "it used an instruction that this CPU lacks", "use a build for this CPU"),
    "SIGSYS": Cause("forbidden-call", "it made a system call that the unit forbids", "correct SystemCallFilter"),
    "SIGKILL": Cause(
        "killed",
        "it was killed, or SGLang's parent ended itself after its scheduler failed",
        "look for the scheduler's exception in the journal, and for the OOM killer in journalctl -k",
    ),
    "SIGSEGV": Cause("crashed", "it crashed", "mixed library versions are the usual reason: run cuda_library_check"),
    "SIGABRT": Cause("aborted", "it aborted itself", "read the journal's last lines"),
    "SIGTERM": Cause("terminated", "it was asked to end", "find out who stopped it: journalctl around that time"),
}
# systemd says nothing of an ending that the unit counts as success.
ENDED_CLEANLY = Cause(
    "ended-cleanly",
    "exit status 0, or one of SuccessExitStatus, such as SGLang's SIGKILL after its scheduler failed",
    SIGNALS["SIGKILL"].fix,
)
RESULTS = {
    "oom-kill": OUT_OF_MEMORY,
    "timeout": Cause("unit-timeout", "systemd's time-out for the unit passed", "raise TimeoutStartSec of the unit"),
    "watchdog": Cause("watchdog", "systemd's watchdog ended it", "raise WatchdogSec of the unit"),
    "start-limit-hit": Cause(
        "start-limit",
        "it was started too often in a short time and systemd gave up",
        "remove the reason in the journal, then run systemctl reset-failed",
    ),
    "resources": Cause(
        "setup-failed",
        "systemd could not prepare the process",
        "check EnvironmentFile, LoadCredential and the directories that the unit names",
    ),
}


def by_pattern(lines: Iterable[str]) -> Cause | None:
    """Return the first cause of the table that the lines show, or None."""
    text = list(lines)
    for pattern, expression in _COMPILED:
        matches = [match for match in map(expression.search, text) if match]
        if matches:
            values = [next((group for group in match.groups() if group), "") for match in matches]
            named = ", ".join(dict.fromkeys(value for value in values if value)) or "see the journal"
            return Cause(pattern.cause, pattern.message.format(redact(named)), pattern.fix)
    return None


@dataclass(frozen=True)
class Ending:
    """How a main process ended: exit status or signal, and systemd's result; None and "" where unknown."""

    exit_status: int | None = None
    signal: str | None = None
    result: str = ""

    @property
    def words(self) -> str:
        """The end of a sentence that says so."""
        if self.signal:
            return f" by {self.signal}"
        return "" if self.exit_status is None else f" with exit status {self.exit_status}"


_ENDED = re.compile(r"Main process exited, code=(exited|killed|dumped), status=(\d+)(?:/(\w+))?")
_BY_SYSTEMD = re.compile(r"[^\s:]+\.service: |(Starting|Started|Stopping|Stopped|Failed to start) ")
_RESULT = re.compile(r": Failed with result '([\w-]+)'")


def ending(lines: Iterable[str]) -> Ending:
    """Return what systemd's own journal lines say: a restart has wiped it from the unit's properties."""
    exit_status, signal, result = None, None, ""
    for line in lines:
        ended, failed = _ENDED.search(line), _RESULT.search(line)
        if ended and ended[1] == "exited":
            exit_status, signal = int(ended[2]), None
        elif ended:
            exit_status, signal = None, f"SIG{ended[3] or ended[2]}"
        if failed:
            result = failed[1]
    return Ending(exit_status, signal, result)


def explain(lines: Sequence[str], end: Ending) -> Cause:
    """Return why a service ended: systemd's result, its last words or, failing both, the way it ended."""
    if end.result == "oom-kill":  # the kernel knows; what the process said before may be about anything
        return OUT_OF_MEMORY
    found = by_pattern(lines) or RESULTS.get(end.result) or SIGNALS.get(end.signal or "")
    if found:
        return found
    step = SETUP_FAILURES.get(end.exit_status or 0)
    if step:
        return Cause(
            "setup-failed",
            f"systemd cannot prepare the process: step {step} failed",
            "correct the directive of the unit that this step belongs to (systemd.exec(5))",
        )
    if lines and not end.exit_status and not end.signal:
        return ENDED_CLEANLY
    said = [line for line in lines if line.strip() and not _BY_SYSTEMD.match(line)]
    words = f"its last words were: {redact(said[-1].strip())}" if said else "it said nothing"
    return Cause("exited", words, "read the journal's last lines")
