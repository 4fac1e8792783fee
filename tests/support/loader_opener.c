/* Copyright (c) 2026, gpufleet.dflash contributors
 * GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * A library that calls dlopen itself: the dynamic linker then searches with this library's RPATH and RUNPATH.
 */
#include <dlfcn.h>

void *open_from_here(const char *name)
{
    void *handle = dlopen(name, RTLD_NOW);

    /* A tail call would make the caller of this function the caller of dlopen. */
    __asm__ volatile("" : : "r"(handle) : "memory");
    return handle;
}
