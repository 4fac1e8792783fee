# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Print the files that auditwheel's lddtree finds for libraries. Runs in the tools' venv."""

import sys

from auditwheel.lddtree import ldd

for root in sys.argv[1:]:
    for library in ldd(root).libraries.values():
        if library.realpath:
            print(library.realpath)
