/* Copyright (c) 2026, gpufleet.dflash contributors
 * GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The program that shows what the real dynamic linker does. Each argument is one step:
 *   open:NAME          dlopen from the program
 *   global:NAME        the same with RTLD_GLOBAL
 *   via:PATH=NAME      dlopen from the code of the library at PATH (loader_opener.c), which is opened first
 *   noload:NAME        dlopen with RTLD_NOLOAD
 *   chdir:DIRECTORY
 * Prints "OK <path>", "ERR <message>" or "NONE" for each step, and at the end "MAP <path>" for each object in list order.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void report(void *handle)
{
    struct link_map *map = NULL;
    const char *error;

    if (handle != NULL && dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0) {
        printf("OK %s\n", map->l_name);
        return;
    }
    error = dlerror();
    if (error != NULL)
        printf("ERR %s\n", error);
    else
        printf("NONE\n");
}

static void open_via(char *argument)
{
    char *name = strchr(argument, '=');
    void *library;
    void *(*opener)(const char *);

    *name++ = '\0';
    library = dlopen(argument, RTLD_NOW);
    if (library == NULL) {
        report(NULL);
        return;
    }
    *(void **)&opener = dlsym(library, "open_from_here");
    report(opener(name));
}

int main(int argc, char **argv)
{
    struct link_map *map = NULL;

    setvbuf(stdout, NULL, _IOLBF, 0); /* what was printed survives a crash */
    for (int i = 1; i < argc; i++) {
        char *step = argv[i];
        char *argument = strchr(step, ':') + 1;

        if (strncmp(step, "open:", 5) == 0)
            report(dlopen(argument, RTLD_NOW));
        else if (strncmp(step, "global:", 7) == 0)
            report(dlopen(argument, RTLD_NOW | RTLD_GLOBAL));
        else if (strncmp(step, "noload:", 7) == 0)
            report(dlopen(argument, RTLD_NOW | RTLD_NOLOAD));
        else if (strncmp(step, "via:", 4) == 0)
            open_via(argument);
        else if (strncmp(step, "chdir:", 6) != 0 || chdir(argument) != 0)
            return 2;
    }
    dlinfo(dlopen(NULL, RTLD_NOW), RTLD_DI_LINKMAP, &map);
    for (; map != NULL; map = map->l_next)
        printf("MAP %s\n", map->l_name);
    return 0;
}
