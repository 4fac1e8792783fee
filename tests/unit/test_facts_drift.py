# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filters on facts: what differs between real venvs, and what that means; locks from facts."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from support.examination import examine
from support.small_wheels import install, make_venv, site_packages, uninstall

from ansible_collections.gpufleet.dflash.plugins.filter.cuda_facts import drift, fleet_entry, lock
from ansible_collections.gpufleet.dflash.plugins.module_utils._facts_drift import KINDS
from ansible_collections.gpufleet.dflash.plugins.module_utils._lock import read_lock

CU13 = ("nvidia-cuda-runtime", "nvidia-nvtx", "nvidia-cufile")


@pytest.fixture(scope="module")
def reference_venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_venv(tmp_path_factory.mktemp("reference") / "venv", *CU13)


@pytest.fixture(scope="module")
def reference(reference_venv: Path) -> dict[str, Any]:
    return examine(reference_venv, verify="hash")


@pytest.fixture
def venv(reference_venv: Path, tmp_path: Path) -> Path:
    shutil.copytree(reference_venv, tmp_path / "venv", symlinks=True)
    return tmp_path / "venv"


def differing(found: dict[str, Any]) -> dict[str, list[Any]]:
    json.dumps(found)
    assert found["same"] == (not any(found[kind] for kind in KINDS))
    return {kind: found[kind] for kind in KINDS if found[kind]}


def test_a_copy_elsewhere_is_the_same(venv: Path, reference: dict[str, Any]) -> None:
    found = drift(examine(venv, verify="hash"), reference)
    assert differing(found) == {}
    assert found["summary"] == "the same as the reference"


def test_a_missing_distribution_is_told_by_its_library(venv: Path, reference: dict[str, Any]) -> None:
    uninstall(venv, "nvidia-cuda-runtime")
    found = drift(examine(venv), reference)
    assert differing(found) == {
        "missing": [
            {
                "name": "nvidia-cuda-runtime",
                "reference": "13.0.96",
                "meaning": "libcudart.so.13 is missing here; the reference has it from nvidia-cuda-runtime 13.0.96",
            }
        ]
    }
    assert found["summary"] == (
        "1 missing: nvidia-cuda-runtime: libcudart.so.13 is missing here; "
        "the reference has it from nvidia-cuda-runtime 13.0.96"
    )


def test_an_added_distribution_is_told_by_what_it_competes_with(venv: Path, reference: dict[str, Any]) -> None:
    install(venv, "nvidia-cufile-cu12")
    (row,) = differing(drift(examine(venv), reference))["added"]
    assert row["here"] == "1.13.1.3"
    assert "libcufile.so.0 is here from nvidia-cufile 1.15.1.6 and nvidia-cufile-cu12 1.13.1.3" in row["meaning"]
    assert "in the reference from nvidia-cufile 1.15.1.6" in row["meaning"]


@pytest.mark.parametrize(
    ("version", "kind"),
    [("13.0.84", "version"), ("13.0.85+cu130", "tag"), ("13.0.85", None), ("13.0.85.0", None)],
)
def test_versions_and_local_tags(reference: dict[str, Any], version: str, kind: str | None) -> None:
    here = copy.deepcopy(reference)
    here["distributions"]["nvidia-nvtx"] = version
    found = differing(drift(here, reference))
    assert list(found) == ([kind] if kind else [])
    if kind:
        (row,) = found[kind]
        assert (row["here"], row["reference"]) == (version, "13.0.85")
        assert f"comes from nvidia-nvtx {version} here" in row["meaning"]


def test_overlays_by_place_and_content(venv: Path, reference: dict[str, Any], reference_venv: Path) -> None:
    package = site_packages(venv) / "nvidia" / "cu13"
    (package / "added.py").write_text("1\n")
    here = examine(venv)
    (row,) = differing(drift(here, reference))["overlay"]
    assert (row["path"], row["change"], row["reference"]) == ("nvidia/cu13/added.py", "added", None)
    (row,) = differing(drift(reference, here))["overlay"]
    assert (row["change"], row["here"]) == ("missing", None)
    assert "here is no such file" in row["meaning"]
    (package / "added.py").write_text("2\n")
    (row,) = differing(drift(examine(venv), here))["overlay"]
    assert row["change"] == "altered"


def test_a_patched_file_is_an_overlay_and_no_second_finding(venv: Path, reference: dict[str, Any]) -> None:
    header = next(site_packages(venv).glob("nvidia/cu13/include/*.h"))
    header.write_bytes(header.read_bytes() + b"\n// patched\n")
    found = differing(drift(examine(venv, verify="hash"), reference))
    assert list(found) == ["overlay"]
    assert found["overlay"][0]["distribution"] is not None


def test_files_that_are_gone_under_one_version_are_a_payload(venv: Path, reference: dict[str, Any]) -> None:
    next(site_packages(venv).glob("nvidia/cu13/lib/libcufile.so.0")).unlink()
    found = differing(drift(examine(venv), reference))
    assert [row["name"] for row in found["payload"]] == ["nvidia-cufile"]
    assert "counts as installed, but 1 of its" in found["payload"][0]["meaning"]


def test_clobbered_files_are_a_payload_with_the_culprit(tmp_path: Path) -> None:
    clean = examine(make_venv(tmp_path / "clean", "nvidia-nvtx-cu11"))
    clobbered = examine(make_venv(tmp_path / "clobbered", "nvidia-nvtx-cu11", "nvidia-nvtx-cu12"))
    found = differing(drift(clobbered, clean))
    assert [row["name"] for row in found["payload"]] == ["nvidia-nvtx-cu11"]
    assert "belongs to nvidia-nvtx-cu12" in found["payload"][0]["meaning"]


def test_what_is_loaded_from_elsewhere(venv: Path, reference_venv: Path) -> None:
    options: dict[str, Any] = {"load": ["libcufile.so.0"]}
    wanted = examine(reference_venv, ld_library_path=[f"{site_packages(reference_venv)}/nvidia/cu13/lib"], **options)
    foreign = venv.parent / "foreign"
    foreign.mkdir()
    shutil.copy(site_packages(venv) / "nvidia/cu13/lib/libcufile.so.0", foreign)
    here = examine(venv, ld_library_path=[str(foreign)], **options)
    (row,) = differing(drift(here, wanted))["loading"]
    assert row["meaning"] == (
        f"libcufile.so.0 is loaded from the host itself ({foreign}/libcufile.so.0) here, "
        "from nvidia-cufile in the reference"
    )


def test_another_python_is_told(reference: dict[str, Any]) -> None:
    here = copy.deepcopy(reference)
    here["python"]["version"] = "3.9.1"
    (row,) = differing(drift(here, reference))["python"]
    assert row["meaning"] == "extension modules are other files"


@pytest.mark.parametrize("given", [None, [], "x", {}, {"venvs": {}}, {"a": 1}])
def test_what_are_no_facts_is_refused(reference: dict[str, Any], given: Any) -> None:
    with pytest.raises(AnsibleFilterError, match="not facts of a venv"):
        drift(given, reference)
    with pytest.raises(AnsibleFilterError, match="the reference's facts are not facts of a venv"):
        drift(reference, given)


def test_results_of_one_venv_are_taken_and_of_several_refused(reference: dict[str, Any]) -> None:
    assert drift({"venvs": {"/v": reference}, "msg": ""}, {"/v": reference})["same"]
    with pytest.raises(AnsibleFilterError, match="several venvs: /v, /w: choose one"):
        drift({"/v": reference, "/w": reference}, reference)


def test_a_lock_of_facts(reference: dict[str, Any]) -> None:
    assert lock(reference) == "nvidia-cuda-runtime==13.0.96\nnvidia-cufile==1.15.1.6\nnvidia-nvtx==13.0.85\n"
    hashes = {"nvidia_nvtx": "sha256:" + "a" * 64, "nvidia-cufile==1.15.1.6": ["b" * 64, "sha256:" + "C" * 64]}
    text = lock(reference, hashes, ["nvidia-cuda-runtime"])
    assert [(entry.pin, len(entry.hashes)) for entry in read_lock(text)] == [
        ("nvidia-cufile==1.15.1.6", 2),
        ("nvidia-nvtx==13.0.85", 1),
    ]


@pytest.mark.parametrize(
    ("hashes", "words"),
    [
        ({}, "no hash is given for nvidia-cuda-runtime==13.0.96"),
        ({"nvidia-cufile==1.0": "a" * 64}, "nvidia-cufile==1.15.1.6"),
        ({"nvidia-cufile": "md5:abc"}, "not a SHA-256"),
        (["x"], "hashes is a dictionary"),
    ],
)
def test_a_lock_with_wrong_hashes_is_refused(reference: dict[str, Any], hashes: Any, words: str) -> None:
    with pytest.raises(AnsibleFilterError, match=words):
        lock(reference, hashes)


def test_names_of_a_hostile_host_do_not_get_into_a_lock() -> None:
    facts = {"distributions": {"x": "1\n--index-url=http://evil.invalid"}}
    with pytest.raises(AnsibleFilterError):
        lock(facts, {"x": "a" * 64})


def test_a_host_in_the_report_of_a_fleet(venv: Path, reference: dict[str, Any]) -> None:
    uninstall(venv, "nvidia-cufile")
    result = {"msg": "ok: 2 distributions, nothing wrong", "venvs": {"/v": examine(venv)}}
    told = fleet_entry(result, {"venvs": {"/r": reference}})
    assert told["line"] == (
        "ok: 2 distributions, nothing wrong; differs from the reference: 1 missing: nvidia-cufile: libcufile.so.0 is "
        "missing here; the reference has it from nvidia-cufile 1.15.1.6; libcufile_rdma.so.1 is missing here; the "
        "reference has it from nvidia-cufile 1.15.1.6"
    )
    assert told["entry"]["drift"]["missing"]
    assert fleet_entry({"unreachable": True, "msg": "no\n route"}, None)["line"] == "unreachable: no route"
    assert fleet_entry({"failed": True, "msg": "no venv"}, None)["entry"]["verdict"] == "unread"
