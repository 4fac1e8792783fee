# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wheels whose own RECORD was wrong when they were published. Private to the collection.

They were patched after their RECORD was written. pip and uv unpack such a wheel without a word and keep its wrong
rows, so that an installed environment cannot tell a wrong row from a file that somebody changed: only the published
wheel can. What is on disk counts as installed when it is byte for byte what that wheel has.
"""

from __future__ import annotations

import os

from ansible_collections.gpufleet.dflash.plugins.module_utils._wheels import Distribution, record_digest, sha256_of
from ansible_collections.gpufleet.dflash.plugins.module_utils._wrong_records_data import NOT_IN_WHEEL, SHIPPED


def is_as_published(path: str, distribution: Distribution) -> bool:
    """Whether a file that is not as recorded has the content, or the absence, that the published wheel has."""
    published = SHIPPED.get(f"{distribution.name}=={distribution.version}", {})
    digests = published.get(os.path.relpath(path, os.path.realpath(distribution.site_packages)), ())
    try:
        return bool(digests) and record_digest(sha256_of(path)) in digests
    except FileNotFoundError:
        return NOT_IN_WHEEL in digests
    except OSError:
        return False
