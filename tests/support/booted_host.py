# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A booted test host, and what the tests ask it."""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from pathlib import Path
from typing import Any, Callable

UNIT = "sglang-dflash-tiny.service"
INSTANCE = "/opt/dflash/instances/tiny"

_ASK = """
import json, urllib.request
body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 64, "temperature": 0}
request = urllib.request.Request("http://127.0.0.1:30001/v1/chat/completions", json.dumps(body).encode(),
                                 {"Content-Type": "application/json"})
print(json.dumps(json.load(urllib.request.urlopen(request, timeout=20))))
"""


class BootedHost:
    """One container with systemd."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.container = f"dflash-test-{name}"

    def run(self, command: str, check: bool = True, text: str = "") -> str:
        """Return what a shell command that reads text prints; a status other than 0 fails where check is set."""
        process = subprocess.run(
            ["podman", "exec", "--interactive", self.container, "sh", "-c", command],
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )
        assert not check or process.returncode == 0, f"{command}: {process.stdout}{process.stderr}{self.journal()}"
        return process.stdout.strip()

    def write(self, path: str, text: str) -> None:
        """Write a file on the host."""
        self._receive(path, text.encode())

    def copy(self, source: Path, path: str) -> None:
        """Copy a file of this machine to the host."""
        self._receive(path, source.read_bytes())

    def _receive(self, path: str, content: bytes) -> None:
        command = ["podman", "exec", "--interactive", self.container, "sh", "-c", f"cat > {shlex.quote(path)}"]
        subprocess.run(command, input=content, check=True, capture_output=True)

    def journal(self) -> str:
        """The last lines of the service's journal, for the message of a test that fails."""
        process = subprocess.run(
            ["podman", "exec", self.container, "journalctl", "--unit", UNIT, "--lines=30", "--no-pager"],
            capture_output=True,
            text=True,
            check=False,
        )
        return "\n" + process.stdout

    def unit_property(self, name: str) -> str:
        """One property of the unit."""
        return self.run(f"systemctl show --property={name} --value {UNIT}")

    @property
    def pid(self) -> int:
        """PID of the service's main process; 0 when it does not run."""
        return int(self.unit_property("MainPID"))

    @property
    def release(self) -> str:
        """The release that the running process was started from."""
        environment = self.run(f"tr '\\0' '\\n' < /proc/{self.pid}/environ")
        return next(line.partition("=")[2] for line in environment.splitlines() if line.startswith("DFLASH_RELEASE="))

    def history(self) -> list[dict[str, Any]]:
        """The events of the instance, oldest first."""
        text = self.run(f"cat {INSTANCE}/history.jsonl 2>/dev/null", check=False)
        return [json.loads(line) for line in text.splitlines()]

    def completion(self) -> dict[str, Any]:
        """A completion of the service, whole."""
        answer: dict[str, Any] = json.loads(self.run(f"python3 -c {shlex.quote(_ASK)}"))
        return answer

    def serves(self) -> bool:
        """Whether the service answers a request with tokens whose drafts were accepted."""
        timings = self.completion()["timings"]
        return timings["draft_n"] > 0 and timings["draft_n_accepted"] == timings["draft_n"]

    def wait_for(self, what: Callable[[], Any], limit: float = 60.0) -> Any:
        """Return the first truth that what gives; fails the test after limit seconds."""
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            found = what()
            if found:
                return found
            time.sleep(0.1)
        raise AssertionError(f"not within {limit:.0f} s: {what.__doc__ or what}: {self.history()}{self.journal()}")

    def restart(self) -> None:
        """Cut the host's power, and boot it again."""
        subprocess.run(["podman", "restart", "--time", "0", self.container], check=True, capture_output=True)
        self.wait_for(lambda: self.run("systemctl is-system-running", check=False) in ("running", "degraded"))
