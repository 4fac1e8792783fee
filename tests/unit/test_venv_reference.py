# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a reference host to a copy of it, through the real playbook, the real uv and an index in a folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support import small_wheels
from support.local_index import LocalIndex
from support.reference_host import ENGINE, HOST, ReferenceHost, snapshot

from ansible_collections.gpufleet.dflash.plugins.module_utils._lock import read_lock


@pytest.fixture
def host(tmp_path: Path) -> ReferenceHost:
    return ReferenceHost(tmp_path)


def local_wheel(folder: Path) -> Path:
    """A wheel that no index has."""
    LocalIndex(folder).add(
        "house-kernels",
        "2.1+site",
        {
            "house_kernels/__init__.py": "KERNELS = 3\n",
            "house_kernels/table.json": "[1, 2]\n",
            "house_kernels-2.1+site.data/scripts/house-tune": "#!python\nprint('tuned')\n",
            "house_kernels-2.1+site.dist-info/entry_points.txt": "[console_scripts]\nhouse = house_kernels:main\n",
        },
    )
    (wheel,) = folder.glob("house-kernels/*.whl")
    return wheel


def test_a_tangled_reference_becomes_a_copy_that_loads_the_same(host: ReferenceHost) -> None:
    host.install("engine", "nvidia-nvtx-cu11", "nvidia-nvtx-cu12", "nvidia-cuda-runtime")
    host.install(str(local_wheel(host.folder / "house")))
    host.patch()
    before = snapshot(host.venv)

    written = host.describe(build_missing=True)

    assert "failed" not in written, written.get("failed")
    assert snapshot(host.venv) == before
    assert written["complete"]
    # nvtx-cu12 overwrote what differs and has the rest as well.
    assert list(written["left_out"]) == ["nvidia-nvtx-cu11==11.8.86"]
    assert written["overlays"] == ["engine/dflash_worker.py", "engine/spec_info.py"]
    assert [row["name"] for row in written["not_in_index"]] == ["house-kernels"]
    lock = {entry.name: entry for entry in read_lock((host.out / "lock.txt").read_text())}
    assert sorted(lock) == ["engine", "house-kernels", "nvidia-cuda-runtime", "nvidia-nvtx-cu12"]
    assert "file:" not in (host.out / "lock.txt").read_text()
    diff = (host.out / "overlays.diff").read_text()
    assert "-ALGORITHMS = ['EAGLE']\n+ALGORITHMS = ['EAGLE', 'DFLASH']\n" in diff
    assert "--- /dev/null\n+++ b/engine/dflash_worker.py\n" in diff

    (wheel,) = (host.out / "wheelhouse").iterdir()
    assert wheel.name == "house_kernels-2.1+site-py3-none-any.whl"
    overlays = "lookup('ansible.builtin.file', inventory_dir ~ '/reference/gpu-a01/overlays.yml') | from_yaml"
    assert yaml.safe_load((host.out / "host.yml").read_text())["variables"] == {
        "cuda_runtime_lock": f"reference/{HOST}/lock.txt",
        "cuda_runtime_local_wheels": f"reference/{HOST}/wheelhouse",
        "sglang_dflash_overlays": "{{ " + overlays + " }}",
    }
    answer = host.deploy()
    assert answer["made"]["copied"] == {"files": 1, "bytes": wheel.stat().st_size}

    drift = answer["drift"]
    assert [row["name"] for row in drift.pop("missing")] == ["nvidia-nvtx-cu11"]
    assert {kind: rows for kind, rows in drift.items() if isinstance(rows, list) and rows} == {}
    assert answer["facts"]["problems"] == []
    (copy,) = answer["facts"]["venvs"]
    assert (Path(copy) / "bin" / "house-tune").read_text().startswith(f"#!{copy}/bin/python")


def test_a_second_run_changes_nothing_and_check_mode_tells_the_first(host: ReferenceHost) -> None:
    host.install("engine", "nvidia-cuda-runtime", str(local_wheel(host.folder / "house")))
    host.patch()

    foreseen = host.describe("--check", build_missing=True)
    assert foreseen["changed"] and not host.out.exists()
    written = host.describe(build_missing=True)
    assert written["diff"] == foreseen["diff"]
    files = snapshot(host.out)
    again = host.describe(build_missing=True)

    assert not again["changed"] and again["diff"] == []
    assert snapshot(host.out) == files

    (host.site / "engine" / "dflash_worker.py").unlink()
    later = host.describe()
    assert {Path(change["before_header"]).name for change in later["diff"]} == {
        "dflash_worker.py",
        "host.yml",
        "house_kernels-2.1+site-py3-none-any.whl",
        "lock.txt",
        "not-in-index.yml",
        "overlays.diff",
        "overlays.yml",
    }
    assert not (host.out / "wheelhouse").exists()
    assert not (host.out / "overlays" / "engine" / "dflash_worker.py").exists()


def test_an_editable_distribution_needs_its_source_and_is_not_silently_left_out(host: ReferenceHost) -> None:
    source = host.folder / "tree"
    source.mkdir()
    (source / "pyproject.toml").write_text(
        '[project]\nname = "tree-thing"\nversion = "1"\n[build-system]\nrequires = []\nbuild-backend = "backend"\n'
        'backend-path = ["."]\n'
    )
    (source / "backend.py").write_text(
        "import zipfile\n"
        "def get_requires_for_build_editable(config_settings=None):\n    return []\n"
        "def build_editable(folder, config_settings=None, metadata_directory=None):\n"
        "    info = 'tree_thing-1.dist-info'\n"
        "    with zipfile.ZipFile(f'{folder}/tree_thing-1-py3-none-any.whl', 'w') as wheel:\n"
        "        wheel.writestr('__editable__.tree_thing.pth', '/nowhere\\n')\n"
        "        wheel.writestr(f'{info}/METADATA', 'Metadata-Version: 2.1\\nName: tree-thing\\nVersion: 1\\n')\n"
        "        wheel.writestr(f'{info}/WHEEL', 'Wheel-Version: 1.0\\nTag: py3-none-any\\n')\n"
        "        wheel.writestr(f'{info}/RECORD', '')\n"
        "    return 'tree_thing-1-py3-none-any.whl'\n"
    )
    host.install("engine")
    host.uv("pip", "install", "--no-deps", "--python", f"{host.venv}/bin/python", "--editable", str(source))

    written = host.describe(build_missing=True)

    assert not written["complete"]
    assert "tree-thing==1" in written["warnings"][0]
    assert (
        "# Not here, for no index has it: tree-thing==1 (see not-in-index.yml)" in (host.out / "lock.txt").read_text()
    )
    (row,) = yaml.safe_load((host.out / "not-in-index.yml").read_text())
    assert (row["name"], row["source"]) == ("tree-thing", "editable")
    assert "source tree" in row["todo"]


def test_another_build_of_a_version_is_not_taken_for_the_one_of_the_index(host: ReferenceHost) -> None:
    other = LocalIndex(host.folder / "other")
    other.add("engine", "0.5.11", {**ENGINE, "engine/extra.py": "HERE = True\n"})
    (wheel,) = (host.folder / "other").glob("engine/*.whl")
    host.install(str(wheel))
    # pip writes the digest of the file into direct_url.json, and so does uv where a lock gives it.
    note = next(iter(host.site.glob("engine-*.dist-info/direct_url.json")))
    note.write_text(note.read_text().replace('"archive_info":{}', '"archive_info":{"hash":"sha256=' + "0" * 64 + '"}'))

    written = host.describe(build_missing=True)

    (row,) = written["not_in_index"]
    assert "file or folder of the host" in row["reason"]
    assert written["complete"], "it was made into a wheel"


def test_a_local_tag_is_only_satisfied_by_its_own_build(host: ReferenceHost) -> None:
    tagged = LocalIndex(host.folder / "cu130")
    tagged.add("spinner", "1.0+cu130", {"spinner.py": "BUILD = 'cu130'\n"})
    plain = LocalIndex(host.folder / "plain")
    plain.add("spinner", "1.0", {"spinner.py": "BUILD = 'plain'\n"})
    (wheel,) = (host.folder / "plain").glob("spinner/*.whl")
    host.index.add_wheel(wheel)
    host.install("spinner==1.0")

    first = host.describe(cuda_runtime_index_url=tagged.url)
    assert first["not_in_index"][0]["reason"] == "the index has spinner==1.0+cu130, another build"
    both = host.describe(cuda_runtime_index_url=tagged.url, extra_index_urls=[host.index.url])
    assert both["complete"]
    assert both["distributions"] == {"spinner": "1.0"}


TWO = {"shared/__init__.py": "", "shared/code.py": "OWNER = 'one'\n"}


def two_claimants(host: ReferenceHost) -> None:
    """Two distributions that claim a source file, both with something of their own."""
    host.index.add("one-half", "1.0", {**TWO, "one_only.py": "X = 1\n"})
    host.index.add("other-half", "1.0", {**TWO, "shared/code.py": "OWNER = 'other'\n", "other_only.py": "X = 2\n"})
    host.install("one-half", "other-half")


def test_contested_code_is_the_operators_to_decide_and_can_be_laid_over(host: ReferenceHost) -> None:
    two_claimants(host)
    refused = host.describe()
    assert "a lock cannot tell whose 1 file such as shared/code.py" in refused["failed"]
    assert "the disk has those of other-half==1.0" in refused["failed"]
    assert not host.out.exists()

    written = host.describe(contested="overlay")
    assert written["overlays"] == ["shared/code.py"]
    assert "# shared/code.py: the same as other-half==1.0 shared/code.py\n" in (host.out / "overlays.diff").read_text()
    answer = host.deploy(imports=["shared.code"])
    assert answer["drift"]["same"], answer["drift"]["summary"]
    assert answer["facts"]["problems"] == []
    (copy,) = answer["facts"]["venvs"].values()
    assert Path(copy["site_packages"][0], "shared", "code.py").read_text() == "OWNER = 'other'\n"


def library(folder: Path, answer: int) -> bytes:
    """A shared object whose function says ``answer``."""
    (folder / "answer.c").write_text(f"int answer(void) {{ return {answer}; }}\n")
    command = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libanswer.so.1", "-o", "libanswer.so.1", "answer.c"]
    subprocess.run(command, cwd=folder, check=True)
    return (folder / "libanswer.so.1").read_bytes()


def test_contested_patched_and_added_libraries_come_along(host: ReferenceHost) -> None:
    built = {number: library(host.folder, number) for number in (1, 2, 3, 4)}
    for name, number in (("one-half", 1), ("other-half", 2)):
        files = {"shared/__init__.py": "", "shared/libanswer.so.1": built[number], f"{name[:3]}.py": "X = 1\n"}
        host.index.add(name, "1.0", files)
    host.index.add("engine", "0.5.12", {**ENGINE, "engine/libkernels.so": built[1]})
    host.install("one-half", "other-half", "engine==0.5.12")
    (host.site / "engine" / "libkernels.so").unlink()
    (host.site / "engine" / "libkernels.so").write_bytes(built[3])
    (host.site / "engine" / "libadded.so").write_bytes(built[4])
    text = b"\xef\xbb\xbfDEFAULT_PORT = 30001\r\n"
    (host.site / "engine" / "server_args.py").write_bytes(text)

    written = host.describe(contested="overlay")

    assert "failed" not in written, written.get("failed")
    diff = (host.out / "overlays.diff").read_text()
    size = len(built[3])
    assert "# engine/libkernels.so of engine: binary files differ: altered, " in diff
    assert f"# engine/libadded.so: binary files differ: added, {size:,} bytes, sha256 " in diff
    assert "-DEFAULT_PORT = 30000\n" in diff
    laid = {
        "engine/libadded.so": built[4],
        "engine/libkernels.so": built[3],
        "engine/server_args.py": text,
        "shared/libanswer.so.1": built[2],
    }
    assert {path: (host.out / "overlays" / path).read_bytes() for path in written["overlays"]} == laid
    assert not host.describe(contested="overlay")["changed"]
    answer = host.deploy(imports=["shared", "engine.spec_info"])
    assert answer["drift"]["same"], answer["drift"]["summary"]
    assert answer["facts"]["problems"] == []
    assert answer["made"]["copied"]["files"] == 3
    site = Path(answer["made"]["site_packages"])
    assert {path: (site / path).read_bytes() for path in laid} == laid
    assert not host.deploy()["made"]["changed"]


def test_files_larger_than_one_answer_come_whole(host: ReferenceHost) -> None:
    host.install("engine")
    contents = {name: os.urandom(size) for name, size in (("a.bin", 9 << 20), ("b.bin", 0), ("c.bin", 8 << 20))}
    for name, content in contents.items():
        (host.site / "engine" / name).write_bytes(content)
    host.describe()
    assert {name: (host.out / "overlays" / "engine" / name).read_bytes() for name in contents} == contents
    assert "reading 8 of 18 MB: a.bin" in host.said


def test_a_controller_without_room_is_one_clear_sentence(host: ReferenceHost, monkeypatch: pytest.MonkeyPatch) -> None:
    small = host.folder / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", small], check=False).returncode:
        pytest.skip("mounting a tmpfs needs root")
    try:
        host.install("engine")
        (host.site / "engine" / "large.bin").write_bytes(os.urandom(6 << 20))
        monkeypatch.setenv("TMPDIR", str(small))
        refused = host.describe()
    finally:
        subprocess.run(["umount", "--lazy", small], check=True)
    assert "what was fetched cannot be kept on the controller: " in refused["failed"]
    assert "No space left on device: make room, or set TMPDIR" in refused["failed"]


def test_credentials_of_an_index_are_nowhere(host: ReferenceHost) -> None:
    host.install("engine")
    host.patch()
    refused = host.describe(cuda_runtime_index_url="http://robot:tok3n-s3cret@127.0.0.1:9/simple/")
    assert "the index cannot be asked for engine" in refused["failed"]
    assert "tok3n" not in host.said.replace("\\", "") and "robot" not in host.said
    assert not host.out.exists()


@pytest.fixture(scope="module")
def plain_host(tmp_path_factory: pytest.TempPathFactory) -> ReferenceHost:
    made = ReferenceHost(tmp_path_factory.mktemp("plain"))
    made.install("engine")
    return made


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"dflash_venv": "/nonexistent"}, "not a virtual environment: /nonexistent"),
        ({"dflash_venv": ""}, "exactly one reference host and its venv are needed"),
        ({"controller_uv": "/nonexistent/uv"}, "/nonexistent/uv"),
    ],
    ids=["no venv", "none named", "no uv"],
)
def test_a_mistake_is_one_clear_sentence(plain_host: ReferenceHost, variables: dict[str, object], words: str) -> None:
    refused = plain_host.describe(**variables)
    assert words in refused["failed"]
    assert "Traceback" not in plain_host.said


def test_the_facts_of_a_fleet_are_a_line_a_host_and_a_report(plain_host: ReferenceHost) -> None:
    copy = plain_host.folder / "copy"
    shutil.copytree(plain_host.venv, copy, symlinks=True)
    (small_wheels.site_packages(copy) / "engine" / "server_args.py").write_text("DEFAULT_PORT = 30001\n")
    hosts: dict[str, dict[str, object]] = {
        HOST: {"dflash_venv": str(plain_host.venv)},
        "gpu-a02": {"dflash_venv": str(copy)},
        "gpu-a03": {"dflash_venv": "/nonexistent"},
        "gpu-a04": {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 9},
    }
    for variables in hosts.values():
        variables.setdefault("ansible_connection", "local")
        variables["ansible_python_interpreter"] = sys.executable
    inventory = plain_host.folder / "fleet.yml"
    inventory.write_text(yaml.safe_dump({"all": {"children": {"dflash": {"hosts": hosts}}}}))
    playbook = plain_host.playbook("fleet_facts.yml")
    given = {"dflash_become": False, "dflash_reference": HOST, "dflash_imports": ["engine"], "dflash_verify": "hash"}

    plain_host.play(playbook, inventory=inventory, **given)

    report = json.loads((plain_host.folder / "fleet" / "fleet.json").read_text())
    assert report["reference"] == HOST
    assert {name: entry["verdict"] for name, entry in report["hosts"].items()} == {
        HOST: "ok",
        "gpu-a02": "error",
        "gpu-a03": "unread",
        "gpu-a04": "unreachable",
    }
    (overlay,) = report["hosts"]["gpu-a02"]["drift"]["overlay"]
    assert (overlay["path"], overlay["change"]) == ("engine/server_args.py", "added")
    assert f"{HOST}: ok: 1 distributions, nothing wrong" in plain_host.said
    assert "gpu-a02: error: 1 file of engine==0.5.11 is not as its wheel recorded it" in plain_host.said
    assert "differs from the reference: 1 overlay: engine/server_args.py: it is patched here" in plain_host.said
    assert "gpu-a03: unread: not a virtual environment: /nonexistent" in plain_host.said

    lock = plain_host.folder / "lock.txt"
    lock.write_text(f"engine==0.5.12 --hash=sha256:{'0' * 64}\n")
    plain_host.play(playbook, inventory=inventory, dflash_lock=str(lock), dflash_hosts="gpu-a02", **given)
    assert "lock: 1 different" in plain_host.said
    report = json.loads((plain_host.folder / "fleet" / "fleet.json").read_text())
    assert list(report["hosts"]) == ["gpu-a02"]
