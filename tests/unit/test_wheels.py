# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading distributions, real wheels in real venvs first; then the catalogue against what the wheels hold."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support import small_wheels

from ansible_collections.gpufleet.dflash.plugins.module_utils import _catalogue
from ansible_collections.gpufleet.dflash.plugins.module_utils._catalogue import normalise
from ansible_collections.gpufleet.dflash.plugins.module_utils._elf import read_object
from ansible_collections.gpufleet.dflash.plugins.module_utils._venv import open_venv
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheels import (
    Installed,
    is_shared_object,
    library_path,
    read_installed,
    record_digest,
    sha256_of,
)

CU13 = ("nvidia-cuda-runtime", "nvidia-nvtx", "nvidia-cufile")
CU12 = ("nvidia-cuda-runtime-cu12", "nvidia-nvtx-cu12", "nvidia-cufile-cu12")


def read(venv: Path) -> Installed:
    return read_installed(open_venv(str(venv)).site_packages)


@pytest.fixture(scope="module")
def cu13(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_wheels.make_venv(tmp_path_factory.mktemp("wheels") / "cu13", *CU13, "torch-memory-saver")


@pytest.fixture(scope="module")
def cu12(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_wheels.make_venv(tmp_path_factory.mktemp("wheels") / "cu12", *CU12)


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    return small_wheels.make_venv(tmp_path / "venv", "nvidia-nvtx")


def dist_info(venv: Path, name: str = "nvidia_nvtx") -> Path:
    (found,) = small_wheels.site_packages(venv).glob(f"{name}-*.dist-info")
    return found


@pytest.mark.parametrize("which", ["cu13", "cu12"])
def test_reads_what_importlib_metadata_reads(which: str, request: pytest.FixtureRequest) -> None:
    venv = request.getfixturevalue(which)
    site = small_wheels.site_packages(venv)
    installed = read(venv)
    real = {normalise(d.name): d for d in importlib.metadata.distributions(path=[str(site)])}

    assert installed.versions == {name: d.version for name, d in sorted(real.items())}
    assert installed.damages == []
    for distribution in installed.distributions:
        files = real[distribution.name].files
        assert files is not None
        recorded = {(os.path.normpath(str(site / file)), file.size) for file in files}
        assert {(row.path, row.size) for row in distribution.files} == recorded
        assert distribution.installer == "uv"


def test_recorded_hashes_are_those_of_the_files(cu13: Path) -> None:
    rows = [row for d in read(cu13).distributions for row in d.files if row.digest]

    assert len(rows) > 20
    assert {row.path: row.digest for row in rows} == {row.path: record_digest(sha256_of(row.path)) for row in rows}


def test_ownership_follows_links_of_directories(cu13: Path, tmp_path: Path) -> None:
    """The loader names a file by the way it was searched; lib64 is a link in many venvs."""
    link = tmp_path / "lib64"
    link.symlink_to(cu13 / "lib")
    path = str(small_wheels.site_packages(cu13) / "nvidia/cu13/lib/libcudart.so.13").replace(
        str(cu13 / "lib"), str(link)
    )

    assert [owner.name for owner in read(cu13).owners(path)] == ["nvidia-cuda-runtime"]
    assert read(cu13).owners(str(cu13 / "pyvenv.cfg")) == []


def test_shared_paths_name_all_owners(cu12: Path) -> None:
    shared = read(cu12).shared()
    site = small_wheels.site_packages(cu12)

    assert {path: [o.name for o in owners] for path, owners in shared.items()} == {
        f"{site}/nvidia/__init__.py": sorted(CU12)
    }


# --- the catalogue: predictions for a venv that is not built yet ---------------------------------------


@pytest.mark.parametrize("which", ["cu13", "cu12"])
def test_predicted_library_directories_are_the_real_ones(which: str, request: pytest.FixtureRequest) -> None:
    venv = request.getfixturevalue(which)
    installed = read(venv)
    site = small_wheels.site_packages(venv)

    predicted = _catalogue.library_directories(installed.versions)

    assert [f"{site}/{directory}" for directory in predicted] == library_path(installed)
    assert len(predicted) == {"cu13": 1, "cu12": 3}[which]


@pytest.mark.parametrize("name", [name for name in small_wheels.VERSIONS if _catalogue.wheel_of(name)])
def test_catalogue_knows_each_soname_of_the_real_wheel(name: str, tmp_path: Path) -> None:
    venv = small_wheels.make_venv(tmp_path / "venv", name)
    (distribution,) = read(venv).distributions
    libraries = [row.path for row in distribution.files if is_shared_object(row.path)]
    wheel = _catalogue.wheel_of(name)

    assert wheel is not None
    sonames = {read_object(path).soname for path in libraries}
    assert sonames <= set(wheel.sonames)
    assert {_catalogue.version_of(name, soname, None) is not None for soname in sonames} == {True}
    site = str(small_wheels.site_packages(venv))
    assert {os.path.relpath(os.path.dirname(path), site) for path in libraries} == {wheel.directory}


def test_the_real_toolkit_names_the_catalogues_cuda_13_distributions(tmp_path: Path) -> None:
    """cuda-toolkit is NVIDIA's own list of the toolkit's wheels."""
    venv = small_wheels.make_venv(tmp_path / "venv", "cuda-toolkit")
    (toolkit,) = read(venv).distributions
    named = {requirement.split("=")[0] for requirement in toolkit.requires}

    expected = {wheel.distribution for wheel in _catalogue.WHEELS if wheel.directory == "nvidia/cu13/lib"}
    assert len(expected) > 10
    # What is released apart from the toolkit keeps a suffix, wherever it puts its libraries.
    assert {name for name in expected if not name.endswith("-cu13")} <= named
    assert not any(name.endswith("-cu13") for name in named)


TORCH_2_10 = {
    "nvidia-cublas-cu12": "12.8.4.1",
    "nvidia-cuda-cupti-cu12": "12.8.90",
    "nvidia-cuda-nvrtc-cu12": "12.8.93",
    "nvidia-cuda-runtime-cu12": "12.8.90",
    "nvidia-cudnn-cu12": "9.10.2.21",
    "nvidia-nccl-cu12": "2.27.5",
    "nvidia-nvjitlink-cu12": "12.8.93",
}
TORCH_2_11 = {
    "nvidia-cublas": "13.1.0.3",
    "nvidia-cuda-runtime": "13.0.96",
    "nvidia-cudnn-cu13": "9.19.0.56",
    "nvidia-cusparselt-cu13": "0.8.0",
    "nvidia-nccl-cu13": "2.28.9",
    "nvidia-nvshmem-cu13": "3.4.5",
}


def test_the_directories_of_the_torch_stack() -> None:
    """The layout of torch 2.11's CUDA 13 set as its RPATH lists it, and of the CUDA 12 set before it."""
    assert _catalogue.library_directories(TORCH_2_11) == [
        "nvidia/cu13/lib",
        "nvidia/cudnn/lib",
        "nvidia/cusparselt/lib",
        "nvidia/nccl/lib",
        "nvidia/nvshmem/lib",
    ]
    assert len(_catalogue.library_directories(TORCH_2_10)) == len(TORCH_2_10)
    assert _catalogue.library_directories({"Nvidia_Cuda.Runtime": "13.0.96", "numpy": "2.0"}) == ["nvidia/cu13/lib"]
    assert _catalogue.library_directories({"nvidia-cublas": "0.0.1.dev5"}) == []
    assert _catalogue.library_directories({"nvidia-cuda-nvcc-cu12": "12.9.86"}) == [], "a compiler's own library"


@pytest.mark.parametrize(
    ("version", "directory"), [("0.8.0", "cusparselt"), ("0.8.1", "cusparselt"), ("0.10.0", "cu13"), ("0.11", "cu13")]
)
def test_the_directory_depends_on_the_version(version: str, directory: str) -> None:
    assert _catalogue.library_directories({"nvidia-cusparselt-cu13": version}) == [f"nvidia/{directory}/lib"]


@pytest.mark.parametrize(
    ("installed", "toolkit"),
    [(TORCH_2_10, "12.8"), (TORCH_2_11, "13.0"), ({"nvidia-cublas-cu11": "11.11.3.6"}, "11.8"), ({"numpy": "2"}, None)],
)
def test_the_toolkit_that_distributions_are_of(installed: dict[str, str], toolkit: str | None) -> None:
    assert _catalogue.toolkit_of(installed) == toolkit


@pytest.mark.parametrize(
    ("name", "soname", "toolkit", "version"),
    [
        ("nvidia-cufft-cu12", "libcufft.so.11", "12.8", "11.3.3.83"),
        ("nvidia-cufft", "libcufft.so.12", "13.0", "12.0.0.61"),
        ("nvidia-cufft-cu11", "libcufft.so.10", "11.8", "10.9.0.58"),
        ("nvidia-cudnn-cu12", "libcudnn.so.8", "12.1", "8.9.2.26"),
        ("nvidia-cudnn-cu12", "libcudnn_ops_infer.so.8", None, "8.9.2.26"),
        ("nvidia-cuda-nvrtc", "libnvrtc-builtins.so.13.1", None, "13.1.115"),
        ("nvidia-cudnn-cu12", "libabsent.so.1", None, None),
        ("numpy", None, None, None),
    ],
)
def test_the_version_that_provides_a_soname(name: str, soname: str, toolkit: str | None, version: str | None) -> None:
    assert _catalogue.version_of(name, soname, toolkit) == version


@pytest.mark.parametrize(
    ("name", "real"),
    [
        ("nvidia-cusparse-cu13", "nvidia-cusparse"),
        ("nvidia-cudnn-cu13", "nvidia-cudnn-cu13"),
        ("nvidia-cufft-cu12", "nvidia-cufft-cu12"),
        ("nvidia-unknown-cu13", "nvidia-unknown-cu13"),
    ],
)
def test_a_placeholder_leads_to_the_distribution_with_the_library(name: str, real: str) -> None:
    assert _catalogue.real_name(name) == real


@pytest.mark.parametrize(
    ("soname", "cuda", "expected"),
    [
        ("libcufile.so.0", None, ["nvidia-cufile", "nvidia-cufile-cu12"]),
        ("libcufile.so.0", 13, ["nvidia-cufile"]),
        ("libcusparse.so.12", 13, ["nvidia-cusparse"]),
        ("libnvrtc-builtins.so.13.0", None, ["nvidia-cuda-nvrtc"]),
        ("libnvrtc-builtins.so.13.9", None, ["nvidia-cuda-nvrtc"]),
        ("libcudnn_ops.so.9", 12, ["nvidia-cudnn-cu12"]),
        ("libcudnn_ops_infer.so.8", None, ["nvidia-cudnn-cu11", "nvidia-cudnn-cu12"]),
        ("libcudart.so.11.0", None, ["nvidia-cuda-runtime-cu11"]),
        ("libcufft.so.11", None, ["nvidia-cufft-cu12"]),
        ("libcusolver.so.11", None, ["nvidia-cusolver-cu11", "nvidia-cusolver-cu12"]),
        ("libnvvm.so.4", 13, ["nvidia-nvvm"]),
        ("libcuda.so.1", None, []),
        ("libm.so.6", None, []),
    ],
)
def test_distributions_of_a_soname(soname: str, cuda: int | None, expected: list[str]) -> None:
    assert _catalogue.distributions_of(soname, cuda) == expected


# --- damaged and unusual environments ------------------------------------------------------------------


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def _truncate(path: Path) -> None:
    path.write_text(path.read_text()[:-30])


@pytest.mark.parametrize(
    ("file", "damage", "words"),
    [
        ("RECORD", Path.unlink, "is missing"),
        ("RECORD", lambda path: path.write_bytes(b""), "is empty"),
        ("RECORD", lambda path: path.write_text("no comma\n\n"), "1 unreadable line(s), the first is line 1"),
        (
            "RECORD",
            lambda path: path.write_text("a,sha256=@@@,1\nb,sha256=QUJD,1\nc,,x\nd,,\n"),
            "has 3 unreadable",
        ),
        (
            "RECORD",
            lambda path: path.write_text(f"a,,{'9' * 6001}\nb,,1\n"),
            "1 unreadable line(s), the first is line 1",
        ),
        ("RECORD", _truncate, "1 unreadable line"),
        ("RECORD", lambda path: path.write_bytes(b"\xff\xfe,,\n"), "is not UTF-8"),
        ("RECORD", lambda path: path.write_bytes(os.urandom(64) + b"\0"), "is not"),
        ("RECORD", _fifo, "is not a regular file"),
        ("RECORD", _directory, "directory"),
        ("RECORD", _loop, "symbolic links"),
        ("METADATA", Path.unlink, "is missing"),
        ("METADATA", lambda path: path.write_text("Nonsense\n"), "has no Name and no Version"),
        ("METADATA", lambda path: path.write_text("Name: nvidia_nvtx\n"), "has no Version"),
        ("METADATA", _fifo, "is not a regular file"),
    ],
)
def test_damage_is_named_and_the_distribution_still_known(
    venv: Path, file: str, damage: Callable[[Path], object], words: str
) -> None:
    damage(dist_info(venv) / file)

    installed = read(venv)

    (found,) = installed.damages
    assert found.path == str(dist_info(venv) / file)
    assert words in found.reason
    assert installed.versions == {"nvidia-nvtx": "13.0.85"}


def test_a_quoted_row_is_read(venv: Path) -> None:
    with (dist_info(venv) / "RECORD").open("a") as record:
        record.write('"odd, ""name"".py",,0\n')

    paths = [row.path for row in read(venv).distributions[0].files]

    assert f'{small_wheels.site_packages(venv)}/odd, "name".py' in paths


def test_rows_that_leave_site_packages_are_resolved(venv: Path) -> None:
    with (dist_info(venv) / "RECORD").open("a") as record:
        record.write("../../../bin/tool,,\n/etc/hostname,,\n")

    paths = [row.path for row in read(venv).distributions[0].files]

    assert paths[-2:] == [f"{venv}/bin/tool", "/etc/hostname"]


def test_two_copies_of_one_distribution_share_nothing(venv: Path) -> None:
    """An interrupted upgrade leaves both; it is not a contest between distributions."""
    record = (dist_info(venv) / "RECORD").read_text()
    copy = dist_info(venv).with_name("nvidia_nvtx-12.9.79.dist-info")
    copy.mkdir()
    (copy / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia_nvtx\nVersion: 12.9.79\n")
    (copy / "RECORD").write_text(record)
    installed = read(venv)

    assert [d.version for d in installed.distributions] == ["12.9.79", "13.0.85"]
    assert installed.shared() == {}


def test_old_and_leftover_installations(venv: Path) -> None:
    site = small_wheels.site_packages(venv)
    (site / "Old_Thing.egg-info").write_text("Metadata-Version: 1.0\nName: Old.Thing\nVersion: 1.5\n")
    (site / "~vidia_nvtx-1.0.dist-info").mkdir()
    installed = read(venv)

    assert installed.versions == {"nvidia-nvtx": "13.0.85", "old-thing": "1.5"}
    assert installed.damages == []


def test_an_unreadable_site_packages_is_a_damage(tmp_path: Path) -> None:
    installed = read_installed([str(tmp_path / "absent")])

    assert [damage.path for damage in installed.damages] == [str(tmp_path / "absent")]


def test_library_path_leaves_out_private_libraries(venv: Path) -> None:
    """Directories of compilers, of what is gone, and of other packages that bundle a library."""
    site = small_wheels.site_packages(venv)
    for path in ("nvidia/cu13/nvvm/lib64/libnvvm.so.4", "bundler/lib/libcudart.so.12"):
        (site / path).parent.mkdir(parents=True)
        (site / path).touch()
    with (dist_info(venv) / "RECORD").open("a") as record:
        record.write("nvidia/cu13/nvvm/lib64/libnvvm.so.4,,\nnvidia/gone/lib/libgone.so.1,,\n")
    other = site / "bundler-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: bundler\nVersion: 1.0\n")
    (other / "RECORD").write_text("bundler/lib/libcudart.so.12,,\n")

    assert library_path(read(venv)) == [f"{site}/nvidia/cu13/lib"]
