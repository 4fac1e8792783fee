# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Print a module call as Ansible would send it to a host: NAME ARGUMENTS as JSON."""

from __future__ import annotations

import json
import sys

from ansible.executor.module_common import modify_module
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import init_plugin_loader, module_loader
from ansible.template import Templar

name, arguments = sys.argv[1:]
init_plugin_loader()
built = modify_module(
    module_name=name,
    module_path=module_loader.find_plugin(name),
    module_args=json.loads(arguments),
    templar=Templar(DataLoader()),
    task_vars={"ansible_python_interpreter": sys.executable},
    module_compression="ZIP_DEFLATED",
)
sys.stdout.buffer.write(built.b_module_data)
