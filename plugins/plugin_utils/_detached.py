# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a module in two steps: plan it, then let it work on its own and watch. Private to the collection.

The work is detached from the connection, so that a controller that is killed, or a network that fails, interrupts the
watching and never the work: a host is not left between two states because somebody closed a laptop.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import time
from collections.abc import Iterator
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

display = Display()

_LIMIT = 24 * 3600  # seconds; the limits that matter are the module's own
_WATCH_EVERY = 0.5  # seconds between two looks at the progress of the work
_LOST_AFTER = 60.0  # seconds without a connection until watching ends
_DEAD_AFTER = 5  # looks in a row that find no process at work


class _LostError(Exception):
    """The host cannot be reached any more, or nobody works there any more; the text says which."""


def show_progress(host: str, line: str, in_place: bool = False) -> None:
    """Show one line of progress of a host, on a terminal in the place of the one before it when that is asked for."""
    text = f"    [{host}] {line}"
    # Standard error: what reads a callback's output from standard output must not find this in it.
    if in_place:
        room = max(20, shutil.get_terminal_size().columns - 1)
        display.display(f"\r\033[K{text[:room]}", stderr=True, newline=False)
    else:
        display.display(text, color="bright blue", stderr=True)


class DetachedAction(ActionBase):
    """Base of the action plugins whose module does long work in one transaction."""

    _supports_check_mode = True
    _supports_async = False
    in_place = False  # whether a line of progress replaces the one before it, on a terminal

    def plan_module(self, name: str, arguments: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """Run a module in check mode, whatever mode the task is in; it changes nothing."""
        with self._task_field("check_mode", True):
            return self._execute_module(module_name=name, module_args=arguments, task_vars=task_vars)

    def run_detached(
        self, name: str, arguments: dict[str, Any], task_vars: dict[str, Any], progress_file: str
    ) -> dict[str, Any]:
        """Run a module detached from the connection, show its progress, and return its result.

        A connection that is lost fails the task instead of making the host unreachable: Ansible would take an
        unreachable host out of the play and go on with the others.
        """
        # What an earlier run left behind, killed or cut off by a reboot, says nothing about this one.
        clean = f"rm -f {shlex.quote(progress_file)}"
        try:
            self._low_level_execute_command(clean, executable="/bin/sh")
            with self._task_field("async_val", _LIMIT):
                job = self._execute_module(
                    module_name=name, module_args=arguments, task_vars=task_vars, wrap_async=True
                )
            if job.get("failed") or "ansible_job_id" not in job:
                return job
            self._watch(job["results_file"], progress_file, task_vars)
            return self._result(job, task_vars)
        except _LostError as error:
            return {"failed": True, "msg": f"{error}: {name}: look at the host's log and run again"}
        except AnsibleConnectionFailure as error:
            return {
                "failed": True,
                "msg": f"the connection was lost: {name}: {error}: what was begun goes on, on the host; run again",
            }

    def _result(self, job: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        arguments = {
            "jid": job["ansible_job_id"],
            "mode": "status",
            "_async_dir": self.get_shell_option("async_dir", default="~/.ansible_async"),
        }
        status = self._execute_module(
            module_name="ansible.legacy.async_status", module_args=arguments, task_vars=task_vars
        )
        self._low_level_execute_command(f"rm -f {shlex.quote(job['results_file'])}", executable="/bin/sh")
        for key in ("started", "finished", "ansible_job_id", "results_file"):
            status.pop(key, None)
        if status.get("failed") and "cmd" in status and "Traceback" in str(status.get("msg")):
            # async_wrapper's words for a module that left no answer
            raise _LostError("the work was killed on the host (out of memory?)")
        return status

    def _watch(self, results: str, progress_file: str, task_vars: dict[str, Any]) -> None:
        """Print each new line of progress until the job has left its result."""
        host = task_vars.get("inventory_hostname", "")
        # The file holds a line for people and the PID of who works. The wrapper of the job writes {"started": ...}
        # first and the module's own result, without that key, last.
        look = (
            f"{{ read -r line; read -r pid started; }} 2>/dev/null < {shlex.quote(progress_file)}; "
            'echo "$line"; now=$(sed "s/.*) //" "/proc/$pid/stat" 2>/dev/null | cut -d" " -f20); '
            '[ -z "$pid" ] || [ "$now" = "$started" ] || echo @dead; '
            f"""grep -qs '"started"' {shlex.quote(results)} || echo @finished"""
        )
        shown, dead, answered = "", 0, time.monotonic()
        while True:
            time.sleep(_WATCH_EVERY)
            try:
                answer = self._low_level_execute_command(look, executable="/bin/sh")
            except AnsibleConnectionFailure:
                if time.monotonic() - answered > _LOST_AFTER:
                    raise
                continue
            answered = time.monotonic()
            lines = answer.get("stdout", "").splitlines()
            if "@finished" in lines:
                if shown and self.in_place:
                    display.display("", stderr=True)
                return
            dead = dead + 1 if "@dead" in lines else 0
            if dead >= _DEAD_AFTER:
                raise _LostError("the work was killed on the host (out of memory?)")
            line = next((line for line in lines if line.strip() and not line.startswith("@")), "")
            if line and line != shown:
                shown = line
                show_progress(host, line, self.in_place)

    @contextlib.contextmanager
    def _task_field(self, field: str, value: Any) -> Iterator[None]:
        """Give the task another value for one field while a module is started."""
        before = getattr(self._task, field)
        setattr(self._task, field, value)
        try:
            yield
        finally:
            setattr(self._task, field, before)
