# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Take an instance off a host with all that is its own. Private to the collection."""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import Callable

from ansible_collections.gpufleet.dflash.plugins.module_utils._exports import recorded
from ansible_collections.gpufleet.dflash.plugins.module_utils._files import exclusive
from ansible_collections.gpufleet.dflash.plugins.module_utils._hooks import HookError, hooks_of, run_hooks
from ansible_collections.gpufleet.dflash.plugins.module_utils._release import (
    Instance,
    ReleaseError,
    read_release,
    release_of_unit,
)
from ansible_collections.gpufleet.dflash.plugins.module_utils._systemd import Systemd, SystemdError

# StateDirectory= of the units that the role writes: the home of the service.
STATE = "/var/lib/dflash"


def leftovers(instance: Instance, systemd: Systemd, state: str = STATE) -> list[str]:
    """Return what a host has of an instance: its unit while systemd knows it, then paths; empty when it is gone."""
    places = (instance.unit_path, instance.folder, _home(instance, state), *recorded(instance))
    found = [path for path in places if os.path.lexists(path)]
    known = systemd.show(instance.unit)
    if known.main_pid and instance.unit_path not in found:
        found.insert(0, instance.unit)
    return found


def remove_instance(instance: Instance, systemd: Systemd, progress: Callable[[str], None], state: str = STATE) -> None:
    """Drain and stop an instance, and remove its unit, releases, history and state.

    Generations stay: other instances may run from them. Raises ReleaseError for a unit that is not one of ours,
    SystemdError or OSError with everything that was not removed still there, so that it can be run again.
    """
    text = instance.installed_unit()
    if text and release_of_unit(text) is None:
        raise ReleaseError(
            f"not a unit of this collection: {instance.unit_path}: it has no DFLASH_RELEASE; remove it by hand"
        )
    with contextlib.ExitStack() as held:
        if os.path.isdir(instance.folder):
            held.enter_context(
                exclusive(instance.lock_path, lambda who: progress(f"waiting for {who} on this instance"))
            )
        running = systemd.show(instance.unit)
        if running.main_pid:
            _leave(instance, release_of_unit(text) or "", progress)
        if running.main_pid or text:
            progress("stopping")
            systemd.stop(instance.unit)
        if text:
            systemd.disable(instance.unit)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(instance.unit_path)
            systemd.daemon_reload()
        # Fails where systemd has forgotten the unit already.
        with contextlib.suppress(SystemdError):
            systemd.reset_failed(instance.unit)
        for path in recorded(instance):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        for folder in (_home(instance, state), instance.folder):
            progress(f"removing {folder}")
            if os.path.islink(folder):
                os.unlink(folder)
            elif os.path.isdir(folder):
                shutil.rmtree(folder)


def _home(instance: Instance, state: str) -> str:
    return os.path.join(state, instance.name)


def _leave(instance: Instance, release: str, progress: Callable[[str], None]) -> None:
    try:
        hooks = hooks_of(read_release(instance, release).hooks, "pre_stop")
    except ReleaseError:
        return  # a damaged release has no hooks that anybody could trust
    try:
        run_hooks(hooks, "pre_stop", progress)
    except HookError as error:
        raise ReleaseError(f"pre_stop failed: {error}: {instance.unit} runs on, and nothing was removed") from error
