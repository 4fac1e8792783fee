# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One dlopen of an import plan and what became of it. Private to the collection."""

from __future__ import annotations

from dataclasses import dataclass

from ansible_collections.gpufleet.dflash.plugins.module_utils._loader import LoadError, Process


@dataclass(frozen=True)
class Attempt:
    """One dlopen of the plan: for which module (or ``load``), of what, and the loader's error if it failed.

    ``fatal`` is False where Python goes on as if nothing had happened (torch's preloads). ``exception`` is the
    class that Python raises. ``stops`` tells that the program gives up a list here without a word; ``unreached``
    are the files that it would have loaded next.
    """

    module: str
    target: str
    error: LoadError | None
    fatal: bool = True
    exception: str = "ImportError"
    stops: bool = False
    unreached: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """The exception as Python prints it, empty for a success."""
        return f"{self.exception}: {self.error.message}" if self.error else ""


def dlopen(
    process: Process,
    module: str,
    target: str,
    *,
    fatal: bool = True,
    exception: str = "ImportError",
    rtld_global: bool = False,
) -> Attempt:
    """Open a library in the predicted process."""
    try:
        process.dlopen(target, rtld_global=rtld_global)
    except LoadError as error:
        return Attempt(module, target, error, fatal, exception)
    return Attempt(module, target, None, fatal, exception)
