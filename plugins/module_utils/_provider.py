# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which distribution would provide a library that is missing, and in which version. Private to the collection."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from ansible_collections.gpufleet.dflash.plugins.module_utils import _catalogue
from ansible_collections.gpufleet.dflash.plugins.module_utils._catalogue import cuda_major_of
from ansible_collections.gpufleet.dflash.plugins.module_utils._requirements import Unmet, demand
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheels import Distribution, Installed

_OPTIONAL = re.compile(r"([A-Za-z0-9][\w.-]*)\s*\(?([^;()\[\]@]*)\)?\s*;(.*\bextra\b.*)$")


class Environment(Protocol):
    """What tells which distributions, in which versions, belong into a venv."""

    @property
    def installed(self) -> Installed: ...

    @property
    def unmet(self) -> Sequence[Unmet]: ...

    @property
    def torch_cuda(self) -> str | None:
        """The CUDA that torch was built for, as ``13.0``."""

    @property
    def cuda_major(self) -> int | None: ...

    def owners(self, path: str) -> list[Distribution]: ...


def providers(facts: Environment, soname: str, objects: Sequence[str]) -> list[str]:
    """Distributions that provide a soname, narrowed to one CUDA major where the environment tells which.

    ``libcudart.so`` stands for the library in any version.
    """
    if soname.endswith(".so"):
        candidates = _catalogue.distributions_of_library(soname[: -len(".so")], None)
    else:
        candidates = _catalogue.distributions_of(soname)
    # The objects that need it know best: cuDNN, NCCL and others have one soname for every CUDA major.
    hints = (
        {cuda_major_of(owner.name) for path in objects for owner in facts.owners(path)},
        {facts.cuda_major},
        {_major_asked_for(facts, candidates)},
        {cuda_major_of(d.name) for d in facts.installed.distributions},
    )
    for majors in hints:
        fitting = [name for name in candidates if cuda_major_of(name) in majors - {None}]
        if fitting:
            return fitting
    return candidates


def requirement(facts: Environment, name: str, soname: str | None) -> str:
    """What to ask an installer for: a distribution in the version that belongs into this venv.

    In this order: what an installed distribution requires, what one requires for an extra that nobody asked for, the
    component of the CUDA toolkit that the others are of, the newest that is known to provide the library.
    """
    name = _catalogue.real_name(name)
    if any(unmet.name == name for unmet in facts.unmet):
        return demand(name, facts.unmet)
    optional = _optional_requirement(facts, name)
    if optional:
        return optional
    version = _catalogue.version_of(name, soname, _toolkit(facts, name))
    return f"{name}=={version}" if version else name


def _toolkit(facts: Environment, name: str) -> str | None:
    if facts.torch_cuda and facts.cuda_major == cuda_major_of(name):
        return facts.torch_cuda
    major = cuda_major_of(name)
    siblings = {d.name: d.version for d in facts.installed.distributions if cuda_major_of(d.name) == major}
    return _catalogue.toolkit_of(siblings)


def _optional_requirement(facts: Environment, name: str) -> str | None:
    """A requirement behind an extra, as cuda-toolkit and jax's plugins have; one that fixes the version first."""
    found = []
    for distribution in facts.installed.distributions:
        for text in distribution.requires:
            matched = _OPTIONAL.match(text)
            if matched and _catalogue.normalise(matched.group(1)) == name and _for_linux(matched.group(3)):
                found.append(f"{name}{''.join(matched.group(2).split())}")
    return min(found, key=lambda text: "==" not in text, default=None)


def _for_linux(marker: str) -> bool:
    return not re.search(r"platform\w*\s*==", marker) or re.search(r"linux", marker, re.IGNORECASE) is not None


def _major_asked_for(facts: Environment, candidates: Sequence[str]) -> int | None:
    """The CUDA major of the only candidate that an installed distribution has a requirement for."""
    asked = [name for name in candidates if any(unmet.name == name for unmet in facts.unmet)]
    asked = asked or [name for name in candidates if _optional_requirement(facts, name)]
    return cuda_major_of(asked[0]) if len(asked) == 1 else None
