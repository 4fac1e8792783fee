# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whose socket a port is, on hosts laid out in a folder that stands for /proc."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.gpufleet.dflash.plugins.module_utils._listener import Listener, Listeners

LOOPBACK, ANY, OTHER = "0100007F", "00000000", "0500000A"
UNIT = "/system.slice/chat.service"
Rows = list[tuple[str, int]]
Processes = dict[int, tuple[str, list[int]]]


def host(proc: Path, rows: Rows, processes: Processes, old: bool = False) -> Path:
    """A host with listeners (address, inode) on port 30001, and processes with control group and sockets."""
    (proc / "self" / "net").mkdir(parents=True)
    table = ["  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"]
    table += [f" 0: {address}:7531 00000000:0000 0A 0:0 00:0 0 0 0 {inode} 1" for address, inode in rows]
    (proc / "self" / "net" / "tcp").write_text("\n".join(table) + "\n")
    for pid, (group, sockets) in processes.items():
        (proc / str(pid) / "fd").mkdir(parents=True)
        (proc / str(pid) / "comm").write_text(f"p{pid}\n")
        rows_of_group = [f"4:memory:/elsewhere\n1:name=systemd:{group}\n0::/\n"] if old else [f"0::{group}\n"]
        (proc / str(pid) / "cgroup").write_text("".join(rows_of_group))
        for number, inode in enumerate(sockets):
            (proc / str(pid) / "fd" / str(number)).symlink_to(f"socket:[{inode}]")
    return proc


MAIN = {10: (UNIT, [1])}


@pytest.mark.parametrize("old", [False, True], ids=["control groups v2", "control groups v1"])
@pytest.mark.parametrize(
    ("rows", "processes", "expected"),
    [
        ([], MAIN, None),
        ([(LOOPBACK, 1)], MAIN, Listener(10, "p10", True)),
        ([(ANY, 1)], MAIN, Listener(10, "p10", True)),
        ([(OTHER, 1)], MAIN, None),
        ([(LOOPBACK, 2)], {**MAIN, 11: (UNIT, [2])}, Listener(11, "p11", True)),
        ([(LOOPBACK, 2)], {**MAIN, 11: (UNIT + "/workers", [2])}, Listener(11, "p11", True)),
        ([(LOOPBACK, 2)], {**MAIN, 11: (UNIT + "-two.service", [2])}, Listener(11, "p11", False)),
        ([(LOOPBACK, 2)], {**MAIN, 11: ("/user.slice/session-1.scope", [2])}, Listener(11, "p11", False)),
        ([(LOOPBACK, 2)], {10: ("/", [1]), 11: ("/", [2])}, Listener(11, "p11", False)),
        ([(LOOPBACK, 2)], MAIN, Listener(None, "", None)),
        ([(LOOPBACK, 1), (LOOPBACK, 2)], {**MAIN, 11: ("/x.service", [2])}, Listener(11, "p11", False)),
        ([(ANY, 2), (LOOPBACK, 1)], {**MAIN, 11: ("/x.service", [2])}, Listener(10, "p10", True)),
        ([(LOOPBACK, 2), (ANY, 1)], {**MAIN, 11: ("/x.service", [2])}, Listener(11, "p11", False)),
    ],
    ids=[
        "nobody",
        "main process", "on all addresses", "on another address", "worker", "worker in a group below",
        "unit with a similar name", "user's process", "hosts without groups", "not to be seen",
        "port shared with a stranger", "stranger on all addresses behind us", "stranger before us",
    ],
)  # fmt: skip
def test_the_owner_of_a_port(
    tmp_path: Path,
    rows: list[tuple[str, int]],
    processes: dict[int, tuple[str, list[int]]],
    expected: Listener | None,
    old: bool,
) -> None:
    listeners = Listeners("127.0.0.1", 30001, host(tmp_path, rows, processes, old))
    assert listeners.find(10) == expected
    assert listeners.find(10) == expected  # from memory the second time


def test_a_socket_that_a_new_main_process_inherits_is_judged_anew(tmp_path: Path) -> None:
    listeners = Listeners("127.0.0.1", 30001, host(tmp_path, [(LOOPBACK, 1)], MAIN))
    assert listeners.find(99) == Listener(10, "p10", False)
    assert listeners.find(10) == Listener(10, "p10", True)
