# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A booted host that is to serve a tiny Qwen3 with unmodified SGLang on its CPU.

SGLang imports sgl_kernel also where it computes on a CPU, and that links against the driver. So the host gets a
libcuda.so.1 of which every function fails, compiled here from what sgl_kernel's own objects ask for; nothing calls it.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from support import playbook
from support.booted_host import UNIT, BootedHost
from support.real_venv import CONTAMINANTS, entries, kept
from support.small_wheels import CHECKOUT, site_packages

LOCK = CHECKOUT / "roles" / "cuda_runtime" / "files" / "locks" / "cu13-torch2.11-sglang0.5.11.txt"
# Not in a form that redaction knows by its look: nothing but the product's care keeps them out of what it writes.
KEYS = {"api_key": "correct.horse.battery.1", "admin_api_key": "staple.admin.of.tiny.2"}
TINY = "/srv/models/tiny-qwen3"
TRUNCATED = "/srv/models/truncated"
PORT = 30001
# A machine of continuous integration may be slow; what ends a wait early is the unit that dies.
LIMIT = 600.0
# What the wheels, two generations of hard links to them, and their bytecode take.
NEEDED = 13e9

_ASK = """
import json, sys, urllib.error, urllib.request
url, key, body, timeout = json.loads(sys.stdin.read())
headers = {"Content-Type": "application/json", **({"Authorization": "Bearer " + key} if key else {})}
request = urllib.request.Request(url, json.dumps(body).encode() if body is not None else None, headers)
try:
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        told = [answer.status, answer.read().decode()]
except urllib.error.HTTPError as error:
    told = [error.code, error.read().decode()]
except OSError as error:
    told = [0, str(error)]
print(json.dumps(told))
"""


class Reply(NamedTuple):
    """An HTTP answer; status 0 when there was none."""

    status: int
    text: str


def instance(**changes: Any) -> dict[str, Any]:
    """The instance that the tests deploy, with some of its values changed; None takes one away."""
    values = {
        "name": "tiny",
        "model": TINY,
        "port": PORT,
        "max_requests": 8,
        # Without the last, SGLang takes most of the memory for its cache of keys and values.
        "arguments": ["--device", "cpu", "--disable-overlap-schedule", "--max-total-tokens", "8192"],
        "environment": {"SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1"},
        **changes,
    }
    return {name: value for name, value in values.items() if value is not None}


def second_lock(folder: Path) -> Path:
    """The lock with another version of one distribution, which is Python alone."""
    new = (
        "tabulate==0.9.0 \\\n"
        "    --hash=sha256:0095b12bf5966de529c0feb1fa08671671b3368eec77d7ef7ab114be2c068b3c \\\n"
        "    --hash=sha256:024ca478df22e9340661486f85298cff5f6dcdba14f3813e8830015b9ed1948f\n"
    )
    text, count = re.subn(
        r"^tabulate==(?!0\.9\.0\b).*\n(?:[ ]+.*\n)+", lambda _found: new, LOCK.read_text(), flags=re.M
    )
    assert count == 1
    path = folder / "second-lock.txt"
    path.write_text(text)
    return path


class SglangHost(BootedHost):
    """The host, its inventory, and what the tests ask its service."""

    def __init__(self, folder: Path) -> None:
        super().__init__("sgl")
        self.folder = folder
        self.inventory = folder / "inventory.yml"

    def write_inventory(self) -> None:
        """The inventory as an operator has it, with the keys in it."""
        variables = {
            "ansible_user": "root",
            "ansible_host": self.container,
            "ansible_ssh_common_args": f"-F {CHECKOUT}/.cache/ssh/{self.container}.conf",
            "ansible_python_interpreter": "/usr/bin/python3",
            "ansible_become": False,
            "cuda_runtime_lock": f"locks/{LOCK.name}",
            "cuda_runtime_ca_file": "/etc/ssl/certs/ca-certificates.crt",
            "cuda_runtime_index_url": "{{ lookup('ansible.builtin.env', 'UV_DEFAULT_INDEX')"
            " or lookup('ansible.builtin.env', 'PIP_INDEX_URL') }}",
            "sglang_dflash_secrets": {"tiny": KEYS},
            "sglang_dflash_instances": [instance()],
        }
        self.inventory.write_text(yaml.safe_dump({"dflash": {"hosts": {self.name: None}, "vars": variables}}))

    def play(self, name: str, *arguments: str, **variables: Any) -> playbook.Run:
        """Run a playbook of the collection on this host."""
        return playbook.run(name, self.name, *arguments, inventory=self.inventory, **variables)

    def told(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a playbook as an operator does who wants to see everything; what it prints is in the result."""
        return subprocess.run(
            playbook.command(name, self.name, "-vvv", *arguments, inventory=self.inventory),
            env=playbook.environment("ansible.builtin.default"),
            cwd=playbook.PROJECT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def module(self, name: str, **options: Any) -> dict[str, Any]:
        """The result of one module on this host."""
        return playbook.result_of(self.name, name, options, self.inventory)

    def health(self, **options: Any) -> dict[str, Any]:
        """What sglang_health says of the instance."""
        key_file = f"/opt/dflash/instances/tiny/releases/{self.release}/server.yaml"
        url = f"http://127.0.0.1:{PORT}"
        return self.module("sglang_health", unit=UNIT, url=url, speculative=False, api_key_file=key_file, **options)

    def ask(
        self, path: str, body: Any = None, key: str = KEYS["api_key"], timeout: float = 120.0, port: int = PORT
    ) -> Reply:
        """Ask the service; a body is sent as JSON."""
        question = json.dumps([f"http://127.0.0.1:{port}{path}", key, body, timeout])
        return Reply(*json.loads(self.run(f"python3 -c {shlex.quote(_ASK)}", text=question)))

    def generate(self, tokens: int, timeout: float = 120.0) -> Reply:
        """Ask for just so many tokens."""
        parameters = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
        return self.ask("/generate", {"text": "Hello", "sampling_params": parameters}, timeout=timeout)

    def serves(self) -> bool:
        """Whether tokens come out."""
        reply = self.generate(4)
        return reply.status == 200 and json.loads(reply.text)["meta_info"]["completion_tokens"] == 4

    def wait_until_serving(self) -> None:
        """Wait as long as the start takes."""
        self.wait_for(self.serves, LIMIT)

    @property
    def scheduler(self) -> int:
        """PID of the process that computes."""
        # By /proc: in a container the control groups of systemd's own words are elsewhere.
        command = f"for at in $(grep -ls {UNIT} /proc/[0-9]*/cgroup); do grep -ls scheduler ${{at%cgroup}}cmdline; done"
        pids = [path.split("/")[2] for path in self.run(f"{command}; true").split()]
        assert len(pids) == 1, pids
        return int(pids[0])

    def files_with(self, words: Sequence[str]) -> list[str]:
        """Where on the host one of some words stands: files, argument lists and environments, the journal."""
        script = """
        cat > /dev/shm/words
        grep -rlsF -D skip -f /dev/shm/words --exclude-dir=venvs --exclude-dir=cache /etc /opt /root /run /tmp /var
        grep -lsF -f /dev/shm/words /proc/[0-9]*/cmdline /proc/[0-9]*/environ
        journalctl --no-pager --output=json | grep -qF -f /dev/shm/words && echo journal
        rm /dev/shm/words
        """
        return self.run(script, text="".join(f"{word}\n" for word in words)).splitlines()


@contextmanager
def booted(folder: Path) -> Iterator[SglangHost]:
    """A host with the models and the stub of a driver, on which nothing is deployed; it goes at the end."""
    tools = CHECKOUT / "tools"
    models, stub = folder / "models", folder / "stub"
    _do(sys.executable, tools / "make_tiny_qwen3.py", models / "tiny-qwen3")
    _do(sys.executable, tools / "make_tiny_qwen3.py", "--truncated", models / "truncated")
    kernels = site_packages(kept(entries(CONTAMINANTS, "sglang-kernel"))) / "sgl_kernel"
    _do(sys.executable, tools / "make_stub_driver.py", kernels, "--output", stub)
    host = SglangHost(folder)
    # Checked before the download: a disk that fills up takes everybody else's work with it.
    store = subprocess.check_output(["podman", "info", "--format", "{{.Store.GraphRoot}}"], text=True).strip()
    free = shutil.disk_usage(store).free
    assert free > NEEDED, f"{free / 1e9:.0f} GB are free below {store}, a host with SGLang needs {NEEDED / 1e9:.0f} GB"
    try:
        _do(tools / "hosts", "up", "--models", models, host.container)
        host.copy(stub / "libcuda.so.1", "/usr/local/lib/libcuda.so.1")
        host.run("ldconfig")
        host.write_inventory()
        yield host
    finally:
        _do(tools / "hosts", "down", host.container)


def _do(*command: str | Path) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
