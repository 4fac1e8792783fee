# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands that repair a venv. Private to the collection.

A plain reinstall repairs nothing: pip and uv call the distribution installed. Reinstalling two distributions
that own the same files repairs only the last one. So every command names all owners, removes what must go
first, and forces the rest.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from ansible_collections.gpufleet.dflash.plugins.module_utils._catalogue import cuda_major_of
from ansible_collections.gpufleet.dflash.plugins.module_utils._manifest import is_generation
from ansible_collections.gpufleet.dflash.plugins.module_utils._printable import shell_word
from ansible_collections.gpufleet.dflash.plugins.module_utils._requirements import Unmet, demand
from ansible_collections.gpufleet.dflash.plugins.module_utils._venv import Venv
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheels import Distribution, Installed, is_code

# A generation is never modified; other venvs are their owner's to repair.
_GENERATION = "build a new generation"


class Repair:
    """Writes fixes for one venv, with the installer that it has."""

    def __init__(self, venv: Venv, installed: Installed) -> None:
        self._installed = installed
        self._python = shell_word(f"{venv.path}/bin/python")
        self._has_pip = "pip" in installed.versions
        self._venv = venv.path
        self._immutable = is_generation(venv.path)

    def reinstall(self, distributions: Sequence[Distribution], *, altered: bool = False) -> str:
        """Bring back these distributions' files; settle first who owns them, where others claim them too.

        ``altered``: a file was changed in place, and with it, through its hard link, the copy in uv's cache.
        """
        contestants = self._contestants(distributions)
        if contestants:
            return self.keep_one([*distributions, *contestants], None)
        if self._immutable:
            return self._rebuild(distributions)
        names = " ".join(shell_word(distribution.name) for distribution in distributions)
        clean = f"uv cache clean {names} && " if altered and not self._has_pip else ""
        return self._offer("from the same lock", f"repair this venv: {clean}{self._force(distributions)}")

    def replace(self, distribution: Distribution) -> str:
        """Bring back a distribution whose book-keeping is damaged: no installer can uninstall it."""
        if self._immutable:
            return self._rebuild([distribution])
        command = f"rm -r {shell_word(distribution.path)} && {self._force([distribution])}"
        return self._offer("from the same lock", f"repair this venv: {command}")

    def add(self, requirements: Sequence[str]) -> str:
        """Install what is not there."""
        if len(requirements) > 1:
            choices = " or ".join(requirements)
            return self._offer(f"with {choices}", f"add one here, such as: {self._install(requirements[:1])}")
        return self._offer(f"with {requirements[0]}", f"add it here: {self._install(requirements)}")

    def without(self, names: Iterable[str]) -> str:
        """Remove distributions, and bring back the files of others that go with them."""
        going = list(dict.fromkeys(names))
        return self._offer(f"without {', '.join(going)}", f"repair this venv: {self._remove(going, [])}")

    def install_pins(self, pins: Sequence[str], instead_of: Sequence[Distribution]) -> str:
        """Install exactly these, after taking away other versions of them, and bring back what that takes."""
        wanted = " ".join(shell_word(pin) for pin in pins)
        install = (
            f"{self._python} -m pip install --no-deps {wanted}"
            if self._has_pip
            else f"uv pip install --python {self._python} --no-deps {wanted}"
        )
        names = [distribution.name for distribution in instead_of]
        survivors = self._survivors(instead_of, [])
        steps = [self._uninstall(names)] if names else []
        steps += [install, *([self._force(survivors)] if survivors else [])]
        return self._offer("from the lock", f"repair this venv: {' && '.join(steps)}")

    def another_build(self, name: str, wanted: str) -> str:
        """Replace a distribution by one that this venv's index may not have: which one is the operator's to say."""
        return self._offer(
            f"with {wanted}", f"name that build by its local tag, such as {name}==VERSION+cu130, and install it here"
        )

    def other_torch(self, distributions: Sequence[Distribution], unmet: Sequence[Unmet]) -> str:
        """Bring together a torch and what was built for another one."""
        names = [distribution.name for distribution in distributions]
        askers = ((each, {user.name for user in each.required_by}) for each in unmet if each.name == "torch")
        wanted = next((each for each, users in askers if users & set(names)), None)
        if wanted is not None:
            return self.add([demand("torch", [wanted])])
        pins = " and ".join(distribution.pin for distribution in distributions) or "what needs it"
        torch = f"torch=={self._installed.versions['torch']}"
        return self._offer(
            f"with a release of {' and '.join(names) or 'what needs it'} for {torch}, or with the torch of {pins}",
            "install that release here (its release notes name its torch)",
        )

    def matching(self, users: Sequence[Distribution], providers: Sequence[Distribution], unmet: Sequence[Unmet]) -> str:
        """Bring together releases of libraries that were built with each other."""
        names = [distribution.name for distribution in providers]
        wanted = [each for each in unmet if each.name in names]
        if wanted:
            return self.add([demand(wanted[0].name, wanted)])
        pins = list(dict.fromkeys(distribution.pin for distribution in (*users, *providers)))
        return self._offer(
            f"from one lock, with releases that belong together instead of {' and '.join(pins) or 'these'}",
            "put the host's library in order" if not pins else "install such releases here",
        )

    def uninstall(self, names: Sequence[str]) -> str:
        """The safe order: uninstall, then force back what that takes from others."""
        if self._immutable:
            return f"change the lock and deploy again: {_GENERATION} without {', '.join(names)}"
        return self._remove(names, [])

    def keep_one(self, owners: Sequence[Distribution], cuda: int | None, *, restore: bool = True) -> str:
        """Settle a contest: keep the one for this CUDA major, or say how to keep either.

        ``restore`` forces back the files of the one that stays.
        """
        fitting = [owner for owner in owners if cuda is not None and cuda_major_of(owner.name) == cuda]
        commands = {
            kept.pin: self._remove([o.name for o in owners if o is not kept], [kept] if restore else [])
            for kept in (fitting if len(fitting) == 1 else owners)
        }
        if len(commands) == 1:
            others = ", ".join(owner.name for owner in owners if owner is not fitting[0])
            return self._offer(f"without {others}", f"repair this venv: {commands[fitting[0].pin]}")
        choices = "; or ".join(f"to keep {pin}: {command}" for pin, command in commands.items())
        names = " and ".join(owner.name for owner in owners)
        return self._offer(f"with only one of {names}", f"repair this venv, {choices}")

    def keep_major(self, majors: Mapping[int, Sequence[str]]) -> str:
        """Say how to keep one CUDA major, for each of them: {major: names of its distributions}."""
        choices = []
        for kept in majors:
            others = [name for major, names in majors.items() if major != kept for name in names]
            choices.append(f"to keep CUDA {kept}: {self._remove(others, [])}")
        return self._offer("with one CUDA major only", f"repair this venv, {'; or '.join(choices)}")

    def _rebuild(self, distributions: Sequence[Distribution]) -> str:
        """Make a generation anew that was damaged after it was complete: its name says that it is still whole."""
        root = os.path.dirname(os.path.dirname(self._venv))
        names = " ".join(shell_word(distribution.name) for distribution in distributions)
        clean = f"uv cache clean --cache-dir {shell_word(os.path.join(root, 'cache', 'uv'))} {names}"
        return (
            "somebody has changed a complete generation: when nothing runs from it any more, "
            f"rm -r {shell_word(self._venv)} && {clean}, and deploy again (uv is in {root}/tools)"
        )

    def _offer(self, generation: str, here: str) -> str:
        """The safe way first; the way in place only for a venv that is somebody's to repair."""
        if self._immutable:
            return f"change the lock and deploy again: {_GENERATION} {generation}"
        return f"{_GENERATION} {generation}, or {here}"

    def _remove(self, names: Sequence[str], kept: Sequence[Distribution]) -> str:
        """Uninstall ``names``, then force back ``kept`` and whatever else lost files."""
        going = [d for d in self._installed.distributions if d.name in names]
        survivors = self._survivors(going, kept)
        uninstall = self._uninstall(names)
        return f"{uninstall} && {self._force(survivors)}" if survivors else uninstall

    def _survivors(self, going: Sequence[Distribution], kept: Sequence[Distribution]) -> list[Distribution]:
        """The fewest distributions whose forced reinstallation brings back every shared file that goes."""
        leaving = {distribution.name for distribution in going}
        chosen = {distribution.name: distribution for distribution in kept}
        for path, owners in sorted(self._installed.shared().items()):
            staying = [owner for owner in owners if owner.name not in leaving]
            if len(staying) == len(owners) or not staying or path.endswith(".pyc"):
                continue
            if not any(owner.name in chosen for owner in staying):
                # Many CUDA 12 wheels own one empty nvidia/__init__.py: the smallest of them is enough.
                smallest = min(staying, key=lambda owner: (owner.size, owner.name))
                chosen[smallest.name] = smallest
        return sorted(chosen.values(), key=lambda distribution: distribution.name)

    def _contestants(self, distributions: Sequence[Distribution]) -> list[Distribution]:
        """Other distributions that record a file of these with other content."""
        names = {distribution.name for distribution in distributions}
        found: dict[str, Distribution] = {}
        for path, owners in self._installed.shared().items():
            if names & {owner.name for owner in owners} and len(self._installed.digests(path)) > 1 and is_code(path):
                found.update({owner.name: owner for owner in owners if owner.name not in names})
        return [found[name] for name in sorted(found)]

    def _force(self, distributions: Sequence[Distribution]) -> str:
        wanted = " ".join(shell_word(distribution.pin) for distribution in distributions)
        if self._has_pip:
            return f"{self._python} -m pip install --force-reinstall --no-deps {wanted}"
        return f"uv pip install --python {self._python} --reinstall --no-deps {wanted}"

    def _install(self, requirements: Sequence[str]) -> str:
        wanted = " ".join(shell_word(requirement) for requirement in requirements)
        return (
            f"{self._python} -m pip install {wanted}"
            if self._has_pip
            else f"uv pip install --python {self._python} {wanted}"
        )

    def _uninstall(self, names: Sequence[str]) -> str:
        wanted = " ".join(shell_word(name) for name in names)
        if self._has_pip:
            return f"{self._python} -m pip uninstall --yes {wanted}"
        return f"uv pip uninstall --python {self._python} {wanted}"
