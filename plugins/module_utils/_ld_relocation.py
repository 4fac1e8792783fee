# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""In which order the linker relocates what a dlopen has mapped. Private to the collection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ansible_collections.gpufleet.dflash.plugins.module_utils._ld_search import LinkMap


def relocation_order(
    closure: Sequence[LinkMap], new: Iterable[LinkMap], needs: Callable[[LinkMap], Sequence[LinkMap]]
) -> list[LinkMap]:
    """Sort ``new`` objects of an opened object's ``closure``: each after those that it needs.

    That of _dl_sort_maps_dfs in elf/dl-sort-maps.c, glibc's since 2.35; an earlier one may name another of several
    undefined symbols first.
    """
    # The opened object comes last, and while it is opened the linker does not know yet what it needs.
    opened = closure[0]
    waiting = set(new)
    is_new = opened in waiting
    waiting.discard(opened)
    order: list[LinkMap] = []
    for root in reversed(closure):
        stack = [(root, False)]
        while stack:
            link_map, is_done = stack.pop()
            if is_done:
                order.append(link_map)
            elif link_map in waiting:
                waiting.remove(link_map)
                stack.append((link_map, True))
                stack += [(each, False) for each in reversed(needs(link_map))]
    return [*order, opened] if is_new else order
