# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What sglang_release refuses and tells, with real files and without systemd."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.dflash.plugins.module_utils import _release, _release_states
from ansible_collections.gpufleet.dflash.plugins.module_utils._history import FAILED, VERIFIED, Event, History
from ansible_collections.gpufleet.dflash.plugins.module_utils._release import Instance, ReleaseError
from ansible_collections.gpufleet.dflash.plugins.module_utils._switch_plan import Observed, describe, plan_switch

USER = pwd.getpwuid(os.geteuid()).pw_name
UNIT = f"[Service]\nUser={USER}\nEnvironment=DFLASH_RELEASE=@release@\nExecStart=/bin/true\nProtectHome={{home}}\n"
A, B, C = "a" * 16, "b" * 16, "c" * 16


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "units").mkdir()
    monkeypatch.setattr(_release, "UNIT_FOLDER", str(tmp_path / "units"))
    return tmp_path / "dflash"


def options(root: Path, *model: str, home: str = "yes", **changes: Any) -> dict[str, Any]:
    return {
        "name": "tiny",
        "root": str(root),
        "unit": UNIT.format(home=home),
        "generation": str(root / "venvs" / "g"),
        "engine": "llama_cpp",
        "health": {"url": "http://127.0.0.1:1"},
        "validate": ["/bin/true", "--check", *model],
        "hooks": None,
        "secrets": None,
        **changes,
    }


def test_a_model_that_the_sandbox_hides_is_refused_with_the_setting(root: Path) -> None:
    with pytest.raises(ReleaseError, match="^/home/me/draft cannot be seen .* sglang_dflash_protect_home: false$"):
        _release_states.staged(options(root, "--model", "/srv/m", "--draft-model=/home/me/draft"), False)
    assert not (root / "instances").exists()


def test_a_link_into_a_home_is_followed(root: Path, tmp_path: Path) -> None:
    (tmp_path / "model").symlink_to("/root/model.gguf")
    with pytest.raises(ReleaseError, match="/model, which leads to /root/model.gguf, cannot be seen"):
        _release_states.staged(options(root, "--model", str(tmp_path / "model")), False)


@pytest.mark.parametrize(("home", "model"), [("read-only", "/home/me/m"), ("yes", "/srv/m"), ("yes", "Qwen/Qwen3-8B")])
def test_a_model_that_can_be_seen_is_staged(root: Path, home: str, model: str) -> None:
    assert _release_states.staged(options(root, "--model", model, home=home), False)["changed"]


def test_a_folder_for_metrics_that_is_not_there_is_told_while_nothing_is_touched(root: Path) -> None:
    with pytest.raises(ReleaseError, match="no such folder: textfile_dir: /nowhere"):
        _release_states.staged(options(root, textfile_dir="/nowhere"), False)
    assert not (root / "instances").exists()


def put(instance: Instance, *names: str) -> None:
    for name in names:
        os.makedirs(instance.release_folder(name))
        Path(instance.release_folder(name), "release.json").write_text("{}")


@pytest.mark.parametrize("wanted", ["d" * 16, "newest", "../../../etc"])
def test_going_back_to_an_unknown_release_lists_those_that_there_are(root: Path, wanted: str) -> None:
    instance = Instance.named(str(root), "tiny")
    put(instance, A, B, C)
    history = History(instance.history_path)
    for event in (Event(VERIFIED, A), Event(VERIFIED, C), Event(FAILED, B)):
        history.add(event)
    Path(instance.unit_path).write_text(f"Environment=DFLASH_RELEASE={C}\n")
    with pytest.raises(ReleaseError) as refused:
        _release_states.previous({**options(root), "release": wanted}, True)
    assert str(refused.value) == (
        f"no such release of tiny: {wanted}: use one of {C} (verified, installed now), {A} (verified), "
        f"{B} (not verified); {root}/instances/tiny/history.jsonl tells when each of them ran"
    )


def test_going_back_where_nothing_was_staged_says_so(root: Path) -> None:
    with pytest.raises(ReleaseError, match="no such release of tiny: .*: none is on this host: deploy one"):
        _release_states.previous({**options(root), "release": A}, True)


@pytest.mark.parametrize(("name", "warned"), [("tinny", True), ("qwen3", False)])
def test_taking_away_what_was_never_there_tells_what_it_may_have_been(
    root: Path, name: str, warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_release_states, "leftovers", lambda instance, systemd: [])
    put(Instance.named(str(root), "tiny"), A)
    told = _release_states.absent({**options(root), "name": name}, True).get("warnings", [])
    assert told == ([f"there is nothing of {name} to take away; there is tiny: check the name"] if warned else [])


@pytest.mark.parametrize(
    ("wanted", "observed", "before"),
    [
        pytest.param(B, Observed(A, A, True), f"release: {A}\nverified: true\n", id="a verified release runs"),
        pytest.param(A, Observed(B, B, True), f"release: {B}\nverified: false\n", id="one that is not verified runs"),
        pytest.param(A, Observed(None, None, False), "release: none\nverified: false\n", id="nothing runs"),
        pytest.param(
            A,
            Observed(A, A, True, serving=False),
            f"release: {A}\nverified: true\nto be put right: it runs but does not serve\n",
            id="the same release, which does not serve",
        ),
    ],
)
def test_a_diff_says_of_what_runs_whether_it_was_verified(wanted: str, observed: Observed, before: str) -> None:
    plan = plan_switch(wanted, wanted == A, observed)
    told = describe(plan, observed, lambda release: release == A)
    assert told == {"before": before, "after": f"release: {wanted}\nverified: true\n"}
