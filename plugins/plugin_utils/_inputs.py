# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is wrong with the variables of a deploy, told from them alone. Private to the collection."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.gpufleet.dflash.plugins.module_utils._catalogue import normalise
from ansible_collections.gpufleet.dflash.plugins.module_utils._lock import LockError, read_lock
from ansible_collections.gpufleet.dflash.plugins.module_utils._release import ReleaseError, check_instance_name
from ansible_collections.gpufleet.dflash.plugins.module_utils._sandbox_paths import HIDDEN_HOMES

# Options of an instance, and variables of the roles, that are lists, with an example of each. An argument
# specification takes a text for a list of texts, and the roles would go on with that text, letter by letter.
INSTANCE_LISTS = {"gpus": "[0, 1]", "libraries": "[libcudart.so.13]", "arguments": "[--threads=4]"}
ROLE_LISTS = {
    "sglang_dflash_absent": "[qwen2]",
    "sglang_dflash_groups": "[video, render]",
    "sglang_dflash_os_packages": "[libnuma1]",
    "sglang_dflash_overlays": "[{dest: sglang/version.py, src: patches/version.py}]",
    "cuda_runtime_overlays": "[{dest: sglang/version.py, src: patches/version.py}]",
    "cuda_runtime_imports": "[torch]",
    "cuda_runtime_libraries": "[libcudart.so.13]",
    "cuda_runtime_extra_index_urls": "[https://index.example/simple]",
    "cuda_runtime_os_packages": "[python3-venv]",
}
ROLE_MAPPINGS = ("sglang_dflash_secrets", "sglang_dflash_flags", "sglang_dflash_hooks", "sglang_dflash_probe")
PREFIXES = ("sglang_dflash_", "cuda_runtime_")
# What the roles themselves set.
RESULTS = ("cuda_runtime_generation", "sglang_dflash_active", "sglang_dflash_verified")

_DEFAULT_PORT = 30001


def variable_mistakes(variables: Mapping[str, Any]) -> list[str]:
    """Return one sentence for each variable of the roles that is no list, or no mapping, and has to be one."""
    found = []
    for name, example in ROLE_LISTS.items():
        found += _list_mistakes(name, variables.get(name), example)
    for name in ROLE_MAPPINGS:
        value = variables.get(name)
        if value is not None and not isinstance(value, Mapping):
            found.append(f"{name} is {_kind(value)}: write a mapping, as in {{name: value}}")
    return found + _hook_mistakes(variables.get("sglang_dflash_hooks"))


def instance_mistakes(instances: Any, absent: Any, protect_home: bool, host: str) -> list[str]:
    """Return one sentence for each thing that is wrong with the instances of a host, alone or beside each other."""
    if not isinstance(instances, Sequence) or isinstance(instances, str):
        return [
            f"sglang_dflash_instances is {_kind(instances)}: write a list, as in [{{name: tiny, model: /srv/tiny}}]"
        ]
    if not instances:
        return [
            f"sglang_dflash_instances of {host} is empty: describe at least one instance, as in "
            "[{name: tiny, model: /srv/tiny}]"
        ]
    if not all(isinstance(instance, Mapping) for instance in instances):
        return [
            "sglang_dflash_instances has something that is no instance: write each as {name: tiny, model: /srv/tiny}"
        ]
    found: list[str] = []
    for instance in instances:
        found += _own_mistakes(instance, protect_home)
    names = [str(instance.get("name")) for instance in instances]
    found += [
        f"{names.count(name)} instances of {host} are called {name}: give each a name of its own"
        for name in dict.fromkeys(names)
        if names.count(name) > 1
    ]
    if isinstance(absent, Sequence) and not isinstance(absent, str):
        found += [
            f"{name} of {host} is in sglang_dflash_instances and in sglang_dflash_absent: remove it from one of them"
            for name in dict.fromkeys(names)
            if name in absent
        ]
        found += [mistake for name in absent for mistake in _name_mistakes(str(name), "sglang_dflash_absent")]
    return found + _shared_ports(instances, host)


def lock_mistakes(text: str, where: str, distribution: str | None, engine: str) -> list[str]:
    """Return what is wrong with a lock: lines that are no pins with hashes, or that the engine is missing."""
    try:
        entries = read_lock(text, where)
    except LockError as error:
        return [str(error)]
    if distribution and normalise(distribution) not in {entry.name for entry in entries}:
        return [
            f"{where} has no {distribution}, which the engine {engine} is: add it to the lock, or set "
            "sglang_dflash_engine to what the lock has"
        ]
    return []


def near_misses(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """Return a warning for each name that is almost one of the known variables."""
    known = {*known, *RESULTS}
    found = []
    for name in sorted({*names} - known):
        prefix = next((prefix for prefix in PREFIXES if name.startswith(prefix)), "")
        if not prefix:
            continue
        # Without the prefix, which would make any two of them alike.
        endings = [other[len(prefix) :] for other in known if other.startswith(prefix)]
        close = difflib.get_close_matches(name[len(prefix) :], sorted(endings), 1, 0.8)
        if close:
            found.append(f"{name} is no variable of the roles and has no effect: did you mean {prefix}{close[0]}?")
    return found


def _own_mistakes(instance: Mapping[str, Any], protect_home: bool) -> list[str]:
    name = str(instance.get("name") or "")
    found = _name_mistakes(name, "sglang_dflash_instances")
    for option, example in INSTANCE_LISTS.items():
        found += _list_mistakes(f"{option} of {name}", instance.get(option), example)
    environment = instance.get("environment")
    if environment is not None and not isinstance(environment, Mapping):
        found.append(f"environment of {name} is {_kind(environment)}: write a mapping, as in {{OMP_NUM_THREADS: 8}}")
    if _port(instance) is None:
        found.append(f"port of {name} is {instance['port']}: a port is a number from 1 to 65535")
    for option in ("model", "draft_model") if protect_home else ():
        if str(instance.get(option) or "").startswith(HIDDEN_HOMES):
            found.append(
                f"{option} of {name} is {instance[option]}, where its unit sees nothing: keep it elsewhere, such as "
                "/srv, or set sglang_dflash_protect_home: false"
            )
    return found


def _name_mistakes(name: str, where: str) -> list[str]:
    try:
        check_instance_name(name)
    except ReleaseError as error:
        return [f"{where}: {error}"]
    return []


def _shared_ports(instances: Sequence[Mapping[str, Any]], host: str) -> list[str]:
    users: dict[int, list[str]] = {}
    for instance in instances:
        port = _port(instance)
        if port is not None:
            users.setdefault(port, []).append(str(instance.get("name")))
    return [
        f"{' and '.join(names)} of {host} have the same port {port}: give each one of its own, as in port: {port + 1}"
        for port, names in users.items()
        if len(names) > 1
    ]


def _port(instance: Mapping[str, Any]) -> int | None:
    """Return the port of an instance; None for what is none."""
    value = instance.get("port", _DEFAULT_PORT)
    try:
        port = int(value)
    except (TypeError, ValueError):
        return None
    return port if 1 <= port <= 65535 else None


def _hook_mistakes(hooks: Any) -> list[str]:
    found: list[str] = []
    for moment, steps in hooks.items() if isinstance(hooks, Mapping) else ():
        where = f"sglang_dflash_hooks.{moment}"
        wrong = _list_mistakes(where, steps, "[{command: [systemctl, reload, haproxy]}]")
        found += wrong
        for step in () if wrong else steps or ():
            if isinstance(step, Mapping):
                found += _list_mistakes(f"command of {where}", step.get("command"), "[systemctl, reload, haproxy]")
            else:
                found.append(f"{where} has {_kind(step)}: write each as {{command: [systemctl, reload, haproxy]}}")
    return found


def _list_mistakes(what: str, value: Any, example: str) -> list[str]:
    if value is None:
        return []
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Sequence):
        return [f"{what} is {_kind(value)}: write a list, as in {example}"]
    inside: tuple[type, ...] = (Mapping,) if example.startswith("[{") else (str, int, float)
    wrong = [element for element in value if not isinstance(element, inside)]
    return [f"{what} has {_kind(wrong[0])} in it: write a list, as in {example}"] if wrong else []


def _kind(value: Any) -> str:
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, str):
        return "text"
    if isinstance(value, (int, float)):
        return "a number"
    return "a mapping" if isinstance(value, Mapping) else "a list"
