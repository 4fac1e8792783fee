# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import os
import pwd
import shutil
from pathlib import Path
from typing import Any

import pytest
from support import ansible_run

from ansible_collections.gpufleet.dflash.plugins.module_utils import _release_states
from ansible_collections.gpufleet.dflash.plugins.module_utils._release import (
    Instance,
    Release,
    ReleaseError,
    health_spec,
    holds,
    make_release,
    read_release,
    release_of_unit,
    stage,
    staged_releases,
)

UNIT = "[Service]\nUser=dflash\nEnvironment=DFLASH_RELEASE=@release@\nExecStart=/bin/true\n"
HEALTH = {"url": "http://127.0.0.1:30001"}


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    return Instance.named(str(tmp_path / "dflash"), "tiny")


@pytest.fixture
def generation(tmp_path: Path) -> str:
    path = tmp_path / "dflash" / "venvs" / "cpython-311-0123456789abcdef"
    manifest = {"id": path.name, "created": 1.0, "distributions": {}, "overlays": {}, "library_directories": []}
    (path / ".dflash").mkdir(parents=True)
    (path / ".dflash" / "generation.json").write_text(json.dumps(manifest))
    return str(path)


def release(generation: str, **changes: Any) -> Release:
    inputs = {"unit": UNIT, "generation": generation, "engine": "llama_cpp", "health": HEALTH, **changes}
    return make_release(**inputs)


def test_a_release_is_named_by_all_that_is_in_it() -> None:
    plain = release("/g")
    others = [
        release("/other"),
        release("/g", engine="sglang"),
        release("/g", unit=UNIT.replace("true", "false")),
        release("/g", health={"url": "http://127.0.0.1:30002"}),
    ]
    assert release("/g") == plain
    assert len({plain.id, *(other.id for other in others)}) == 5


def test_the_unit_carries_the_name_of_its_release() -> None:
    made = release("/g")
    assert f"Environment=DFLASH_RELEASE={made.id}\n" in made.unit
    assert release_of_unit(made.unit) == made.id
    assert release_of_unit("[Service]\nExecStart=/bin/true\n") is None


def test_a_unit_that_does_not_name_its_release_is_refused() -> None:
    with pytest.raises(ReleaseError, match="does not name its release"):
        release("/g", unit="[Service]\nExecStart=/bin/true\n")


def test_a_staged_release_is_read_back_as_it_was(instance: Instance, generation: str) -> None:
    made = release(generation)
    stage(instance, made)
    stage(instance, made)
    assert read_release(instance, made.id) == made
    assert staged_releases(instance) == [made.id]


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        pytest.param(lambda folder: shutil.rmtree(folder), "no such release", id="gone"),
        pytest.param(lambda folder: (folder / "release.json").write_text("{"), "a damaged release", id="cut short"),
        pytest.param(
            lambda folder: (folder / "release.json").write_text("[]"), "a damaged release", id="not an object"
        ),
        pytest.param(
            lambda folder: (folder / "sglang-dflash-tiny.service").write_text("[Service]\n"),
            "not what its name says",
            id="unit",
        ),
        pytest.param(
            lambda folder: (folder / "release.json").write_text("[" * 100_000), "a damaged release", id="nested deeply"
        ),
        pytest.param(
            lambda folder: (folder / "sglang-dflash-tiny.service").write_text(
                (folder / "sglang-dflash-tiny.service").read_text().replace("User=dflash", "User=root")
            ),
            "not what its name says",
            id="edited by hand",
        ),
        pytest.param(lambda folder: (folder / "sglang-dflash-tiny.service").unlink(), "no such release", id="no unit"),
        pytest.param(lambda folder: shutil.rmtree(folder.parents[3] / "venvs"), "generation of release", id="no venv"),
    ],
)
def test_a_release_that_is_not_whole_is_named(instance: Instance, generation: str, harm: Any, words: str) -> None:
    made = release(generation)
    stage(instance, made)
    harm(Path(instance.release_folder(made.id)))
    with pytest.raises(ReleaseError, match=words):
        read_release(instance, made.id)
    if "generation" not in words:
        stage(instance, made)
        assert read_release(instance, made.id) == made, "staging it again makes it whole"


@pytest.mark.parametrize(
    "health", [{"url": "http://127.0.0.1:0"}, {**HEALTH, "from_the_future": 1}, {}, {**HEALTH, "timeout": "soon"}]
)
def test_health_rules_that_cannot_be_used_are_found_before_anything_is_touched(
    instance: Instance, generation: str, health: dict[str, Any]
) -> None:
    made = release(generation, health=health)
    stage(instance, made)
    with pytest.raises(ReleaseError, match="health rules"):
        read_release(instance, made.id)


@pytest.mark.parametrize("name", ["../../etc", "ABC", "", "0123456789abcdef/", "0123456789abcde\n"])
def test_what_is_no_name_of_a_release_is_refused_before_it_becomes_a_path(instance: Instance, name: str) -> None:
    with pytest.raises(ReleaseError, match="not the name of a release"):
        read_release(instance, name)


@pytest.mark.parametrize("name", ["", "-x", "x-", "a b", "a/b", "..", "UPPER", "x" * 41, "a\n", "a@b", "ü"])
def test_what_is_no_name_of_an_instance_is_refused(name: str) -> None:
    with pytest.raises(ReleaseError, match="not a usable name"):
        Instance.named("/opt/dflash", name)


def test_an_interrupted_staging_does_not_count(instance: Instance, generation: str) -> None:
    folder = Path(instance.folder, "releases")
    (folder / ".new-half").mkdir(parents=True)
    (folder / ("0" * 16)).mkdir()
    assert staged_releases(instance) == []


# A release with keys needs its user to exist.
OURS = UNIT.replace("User=dflash", f"User={pwd.getpwuid(os.geteuid()).pw_name}")
KEYS = {"api-key": "sk-0123456789abcdef", "admin-api-key": "sk-fedcba9876543210"}


def test_keys_stand_in_a_file_of_roots_and_nowhere_else(instance: Instance, generation: str) -> None:
    made = release(generation, unit=OURS, secrets=KEYS)
    stage(instance, made)
    folder = Path(instance.release_folder(made.id))
    assert read_release(instance, made.id) == made
    assert json.loads((folder / "server.yaml").read_text()) == KEYS
    assert (folder / "server.yaml").stat().st_mode & 0o777 == 0o400
    for path in folder.iterdir():
        if path.name != "server.yaml":
            assert "sk-" not in path.read_text(), path
    assert health_spec(instance, made).api_key_file == str(folder / "server.yaml")


def test_a_new_key_is_a_new_release_whose_name_does_not_tell_it() -> None:
    one, other = (release("/g", secrets={"api-key": key}).id for key in ("sk-1", "sk-2"))
    assert len({one, other, release("/g").id}) == 3
    assert release("/g", secrets={"api-key": "sk-1"}).id == one


def test_a_release_whose_keys_were_opened_to_all_is_staged_again(instance: Instance, generation: str) -> None:
    made = release(generation, unit=OURS, secrets=KEYS)
    stage(instance, made)
    path = Path(instance.secrets_path(made.id))
    path.chmod(0o644)
    assert not holds(instance, made)
    stage(instance, made)
    assert path.stat().st_mode & 0o777 == 0o400


def test_a_release_whose_keys_were_changed_by_hand_is_damaged(instance: Instance, generation: str) -> None:
    made = release(generation, unit=OURS, secrets=KEYS)
    stage(instance, made)
    Path(instance.secrets_path(made.id)).chmod(0o600)
    Path(instance.secrets_path(made.id)).write_text('{"api-key": "sk-other"}')
    with pytest.raises(ReleaseError, match="not what its name says"):
        read_release(instance, made.id)


def test_keys_belong_to_the_user_of_the_unit(instance: Instance, generation: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    unit = UNIT.replace("User=dflash", "User=nobody")
    made = release(generation, unit=unit, secrets=KEYS)
    stage(instance, made)
    assert Path(instance.secrets_path(made.id)).stat().st_uid == pwd.getpwnam("nobody").pw_uid
    os.chown(instance.secrets_path(made.id), 0, -1)
    assert not holds(instance, made)


def test_keys_for_a_user_that_is_not_there_are_refused(instance: Instance, generation: str) -> None:
    unit = UNIT.replace("User=dflash", "User=no-such-user")
    with pytest.raises(ReleaseError, match="the unit's user does not exist: no-such-user: create it"):
        stage(instance, release(generation, unit=unit, secrets=KEYS))
    assert staged_releases(instance) == []


@pytest.mark.parametrize("value", ["two\nlines", "caf\u00e9", "\U0001f600", 7, ["a"]])
def test_a_secret_that_no_header_carries_is_refused(value: Any) -> None:
    with pytest.raises(ReleaseError, match="not a usable secret: secrets.api-key") as refused:
        _release_states._secrets({"secrets": {"api-key": value}})
    assert str(value) not in str(refused.value)


def test_credentials_of_hooks_are_in_no_output(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("the module needs root")
    hook = {"url": "http://r0bot:s3cret@127.0.0.1:9/leave?token=t0ken"}
    arguments: dict[str, Any] = {
        "name": "qwen3",
        "state": "staged",
        "root": str(tmp_path / "root"),
        "unit": OURS,
        "generation": "/g",
    }
    arguments |= {"health": {"url": "http://127.0.0.1:1", "protocol": "sglang"}, "hooks": {"pre_stop": [hook]}}
    done, printed = ansible_run.run("sglang_release", arguments, tmp_path, ANSIBLE_VERBOSITY="3")
    assert done["changed"], done
    assert done["invocation"]["module_args"]["hooks"]["pre_stop"][0]["url"].endswith(
        "@127.0.0.1:9/leave?token=********"
    )
    assert [secret for secret in ("s3cret", "t0ken") if secret in printed] == []
    assert hook["url"] in next((tmp_path / "root").rglob("release.json"), Path()).read_text()
