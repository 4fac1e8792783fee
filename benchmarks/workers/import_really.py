# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Import modules and print what the process has mapped. Runs in the measured venv's own Python.

A module that cannot be imported, as sgl_kernel without a driver, leaves what it loaded until then, as a prediction
does.
"""

import importlib
import sys

for name in sys.argv[1].split(","):
    try:
        importlib.import_module(name)
    except ImportError as error:
        print("failed:", name, str(error).splitlines()[0], file=sys.stderr)
with open("/proc/self/maps") as stream:
    paths = {
        line.split(None, 5)[5].rstrip("\n") for line in stream if len(line.split(None, 5)) == 6 and " r-xp " in line
    }
print("\n".join(sorted(path for path in paths if path.startswith("/"))))
