# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The words of the real loader become problems that name the library, its distribution and the fix."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import probe_venv, small_wheels
from support.probe_venv import ProbeVenv, check, kept_out, kinds, write_unit

from ansible_collections.gpufleet.dflash.plugins.module_utils import _library_check, _load_errors
from ansible_collections.gpufleet.dflash.plugins.module_utils._library_check import CheckRequest
from ansible_collections.gpufleet.dflash.plugins.module_utils._wheels import Installed, read_installed

needs_compiler = pytest.mark.skipif(probe_venv.COMPILER is None, reason="there is no C compiler")


@pytest.fixture
def folder() -> Iterator[Path]:
    with probe_venv.public_directory() as directory:
        yield directory


@pytest.fixture
def venv(folder: Path) -> ProbeVenv:
    return ProbeVenv(folder / "venv")


@needs_compiler
class TestLibraries:
    """Failures of the real loader, on libraries made for them."""

    def build(self, venv: ProbeVenv) -> tuple[Path, Path]:
        """A user of a library, and the library, which a distribution owns, in a directory of its own."""
        provided = probe_venv.library(venv.site / "nvidia" / "cu13" / "lib" / "libcuprobe.so.13")
        user = probe_venv.library(
            venv.site / "libprobeuser.so", "int value(void); int use(void) { return value(); }", str(provided)
        )
        venv.distribution("nvidia-cuprobe", "13.0.1", provided)
        return user, provided

    def test_a_library_off_the_path_is_found_and_its_directory_named(self, venv: ProbeVenv, folder: Path) -> None:
        user, provided = self.build(venv)
        me = pwd.getpwuid(os.geteuid()).pw_name
        result = check(venv, dlopen=[str(user)], unit=write_unit(folder, f"User={me}"))
        (found,) = result["problems"]
        assert (found["kind"], found["soname"], found["distributions"]) == (
            "missing-library",
            "libcuprobe.so.13",
            ["nvidia-cuprobe"],
        )
        assert "is installed (by nvidia-cuprobe==13.0.1) where the loader does not look" in found["message"]
        assert found["fix"] == f"add {provided.parent} to LD_LIBRARY_PATH in unit engine.service"
        assert result["dlopen"][0]["error"] == (
            "libcuprobe.so.13: cannot open shared object file: No such file or directory"
        )
        good = check(venv, dlopen=[str(user)], environment={"LD_LIBRARY_PATH": str(provided.parent)})
        assert good["ok"] and good["problems"] == []
        assert good["libraries"] == [
            {
                "path": str(provided),
                "distribution": "nvidia-cuprobe",
                "version": "13.0.1",
                "rule": None,
                "needed_by": None,
            }
        ]

    def test_a_recorded_library_that_is_gone_is_reinstalled_by_force(self, venv: ProbeVenv) -> None:
        user, provided = self.build(venv)
        provided.unlink()
        (found,) = check(venv, dlopen=[str(user)])["problems"]
        assert "libcuprobe.so.13 is gone although nvidia-cuprobe==13.0.1" in found["message"]
        assert "--reinstall" in found["fix"]

    def test_a_library_that_the_user_may_not_read_is_named(self, venv: ProbeVenv) -> None:
        user, provided = self.build(venv)
        name, options, mode = kept_out()
        provided.parent.chmod(mode)
        result = check(venv, dlopen=[str(user)], environment={"LD_LIBRARY_PATH": str(provided.parent)}, **options)
        assert [f"user {name} cannot enter {provided.parent}" in entry["message"] for entry in result["problems"]] == [
            True
        ]

    def test_an_undefined_symbol_is_named_with_its_object(self, venv: ProbeVenv) -> None:
        path = probe_venv.library(
            venv.site / "libneedy.so", "int absent_symbol(void); int use(void) { return absent_symbol(); }"
        )
        (found,) = check(venv, dlopen=[str(path)])["problems"]
        assert (found["kind"], found["object"]) == ("undefined-symbol", str(path))
        assert "absent_symbol" in found["message"]

    @pytest.mark.parametrize(
        "content", [b"", b"INPUT(libc.so.6)", b"\x7fELF" + b"\0" * 200], ids=["empty", "script", "zeros"]
    )
    def test_a_damaged_library_is_named_with_its_owner(self, venv: ProbeVenv, content: bytes) -> None:
        path = venv.site / "libbad.so"
        path.write_bytes(content)
        venv.distribution("nvidia-bad", "1.0", path)
        (found,) = check(venv, dlopen=[str(path)])["problems"]
        assert (found["kind"], found["distributions"], found["paths"]) == (
            "altered-file",
            ["nvidia-bad"],
            [str(path)],
        )

    def test_a_library_of_the_host_is_a_warning_that_says_how_to_use_the_wheels(
        self, venv: ProbeVenv, folder: Path
    ) -> None:
        inside = probe_venv.library(venv.site / "nvidia" / "cu13" / "lib" / "libcudart.so.99")
        outside = probe_venv.library(folder / "host" / "libcudart.so.99")
        venv.distribution("nvidia-cuda-runtime", "99.0", inside)
        result = check(venv, dlopen=["libcudart.so.99"], environment={"LD_LIBRARY_PATH": str(outside.parent)})
        assert result["ok"]
        (found,) = result["problems"]
        assert (found["kind"], found["severity"], found["paths"]) == (
            "resolved-outside-venv",
            "warning",
            [str(outside)],
        )
        assert found["fix"] == f"add {inside.parent} to LD_LIBRARY_PATH in the environment"
        both = check(venv, dlopen=[str(inside), str(outside)])
        assert kinds(both) == ["resolved-outside-venv", "duplicate-soname"]

    def test_a_file_linked_to_a_cache_still_has_its_owner(self, venv: ProbeVenv, folder: Path) -> None:
        cached = probe_venv.library(folder / "cache" / "libcudart.so.99")
        link = venv.site / "nvidia" / "lib" / "libcudart.so.99"
        link.parent.mkdir(parents=True)
        link.symlink_to(cached)
        venv.distribution("nvidia-cuda-runtime", "99.0", link)
        result = check(venv, dlopen=[str(link)])
        assert result["problems"] == []
        assert result["libraries"] == [
            {
                "path": str(cached),
                "distribution": "nvidia-cuda-runtime",
                "version": "99.0",
                "rule": None,
                "needed_by": None,
            }
        ]
        assert result["dlopen"][0]["path"] == str(link)


EMPTY = Installed([], [])


@pytest.mark.parametrize(
    ("words", "kind", "soname", "distributions"),
    [
        pytest.param(
            "ImportError: libcudnn.so.9: cannot open shared object file: No such file or directory",
            "missing-library",
            "libcudnn.so.9",
            ["nvidia-cudnn-cu11", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13"],
            id="torch without cuDNN",
        ),
        pytest.param(
            "ImportError: libcublas.so.13: cannot open shared object file: No such file or directory",
            "missing-library",
            "libcublas.so.13",
            ["nvidia-cublas"],
            id="torch without cuBLAS",
        ),
        pytest.param(
            "ValueError: libcudart.so.*[0-9] not found in the system path ['/usr/lib/python311.zip']",
            "missing-library",
            "libcudart.so",
            ["nvidia-cuda-runtime", "nvidia-cuda-runtime-cu11", "nvidia-cuda-runtime-cu12"],
            id="torch's preloading without the runtime",
        ),
        pytest.param(
            "ImportError: \n[sgl_kernel] CRITICAL: Could not load any common_ops library!\nImportError: "
            "libcuda.so.1: cannot open shared object file: No such file or directory",
            "driver-missing",
            "libcuda.so.1",
            [],
            id="sgl_kernel without a driver",
        ),
        pytest.param(
            "ImportError: libnuma.so.1: cannot open shared object file: No such file or directory",
            "missing-library",
            "libnuma.so.1",
            [],
            id="a library of the operating system",
        ),
        pytest.param(
            "ImportError: /v/libcusparse.so.12: undefined symbol: __nvJitLinkComplete_12_4, version libnvJitLink.so.12",
            "undefined-symbol",
            "libnvJitLink.so.12",
            [],
            id="two versions mixed",
        ),
        pytest.param(
            "ImportError: /lib64/libc.so.6: version `GLIBC_2.38' not found (required by /v/x.so)",
            "glibc-too-old",
            "libc.so.6",
            [],
            id="old glibc",
        ),
        pytest.param(
            "ImportError: /lib64/libstdc++.so.6: version `GLIBCXX_3.4.30' not found (required by /v/x.so)",
            "libstdcxx-too-old",
            "libstdc++.so.6",
            [],
            id="old libstdc++",
        ),
        pytest.param("OSError: /v/libx.so: wrong ELF class: ELFCLASS32", "altered-file", "libx.so", [], id="32 bits"),
        pytest.param(
            "ImportError: /v/x.so: failed to map segment from shared object",
            "access-denied",
            "x.so",
            [],
            id="noexec",
        ),
        pytest.param("ModuleNotFoundError: No module named 'torch'", "import-failed", None, [], id="no module"),
        pytest.param("ValueError: something else", "import-failed", None, [], id="anything"),
    ],
)
def test_known_words_are_understood(words: str, kind: str, soname: str | None, distributions: list[str]) -> None:
    place = _load_errors.Place("/v", EMPTY, (), "unit x.service", "inference")
    failure = _load_errors.Failure("`import torch`", words, "/v/_C.so", ())
    (found,) = _load_errors.explain(failure, place)
    assert (found["kind"], found["soname"], found["distributions"]) == (kind, soname, distributions)
    assert found["evidence"] == words
    assert found["fix"]


def test_several_causes_in_one_text_are_several_problems() -> None:
    words = "\n".join(
        f"ImportError: {name}: cannot open shared object file: No such file or directory"
        for name in ("libnvrtc.so.12", "libcublas.so.12", "libnvrtc.so.12")
    )
    place = _load_errors.Place("/v", EMPTY, (), "unit x.service", "inference")
    found = _load_errors.explain(_load_errors.Failure("`import sgl_kernel`", words, None, ()), place)
    assert [entry["soname"] for entry in found] == ["libnvrtc.so.12", "libcublas.so.12"]


@pytest.mark.parametrize(
    ("words", "sibling", "torch_cuda", "wanted"),
    [
        ("OSError: libcufft.so.12: @", ("nvidia-cublas", "13.1.0.3"), "13.0", "nvidia-cufft==12.0.0.61"),
        ("OSError: libcudnn.so.9: @", ("nvidia-cublas-cu12", "12.8.4.1"), "12.8", "nvidia-cudnn-cu12==9.28.0.42"),
        (
            "OSError: libcusolver.so.11: @",
            ("nvidia-cuda-runtime-cu12", "12.4.127"),
            None,
            "nvidia-cusolver-cu12==11.6.1.9",
        ),
        (
            "ValueError: libcudart.so.*[0-9] not found in the system path ['/v']",
            ("nvidia-cublas", "13.1.0.3"),
            "13.0",
            "nvidia-cuda-runtime==13.0.96",
        ),
    ],
    ids=["torch's toolkit", "the newest for the major", "the siblings' toolkit", "any version of a library"],
)
def test_what_is_missing_is_named_with_the_version_that_fits(
    venv: ProbeVenv, words: str, sibling: tuple[str, str], torch_cuda: str | None, wanted: str
) -> None:
    venv.distribution(*sibling, venv.site / "nothing.py")
    installed = read_installed([str(venv.site)])
    place = _load_errors.Place("/v", installed, (), "unit x.service", "inference", "3.11.2", torch_cuda)
    text = words.replace("@", "cannot open shared object file: No such file or directory")

    (found,) = _load_errors.explain(_load_errors.Failure("`import torch`", text, None, ()), place)

    assert found["distributions"] == [wanted.split("==")[0]]
    assert found["fix"] == f"add {wanted} to the lock and build the environment anew"


def test_a_version_that_somebody_requires_comes_first(venv: ProbeVenv) -> None:
    venv.distribution("engine", "1.0", venv.site / "engine.py")
    metadata = next(venv.site.glob("engine-1.0.dist-info/METADATA"))
    metadata.write_text(metadata.read_text().rstrip("\n") + "\nRequires-Dist: nvidia-cudnn-cu13==9.19.0.56\n")
    installed = read_installed([str(venv.site)])
    place = _load_errors.Place("/v", installed, (), "unit x.service", "inference", "3.11.2", "13.0")
    words = "ImportError: libcudnn.so.9: cannot open shared object file: No such file or directory"

    (found,) = _load_errors.explain(_load_errors.Failure("`import torch`", words, None, ()), place)

    assert found["fix"] == "add nvidia-cudnn-cu13==9.19.0.56 to the lock and build the environment anew"


def test_owners_come_from_the_records(venv: ProbeVenv) -> None:
    path = venv.site / "libcuprobe.so.1"
    venv.distribution("nvidia-cuprobe", "1.0", path)
    assert list(_load_errors.holders_of(read_installed([str(venv.site)]), "libcuprobe.so")) == [str(path)]


@pytest.fixture(scope="module")
def wheels() -> Iterator[Path]:
    """The demonstration's engine and its CUDA wheels, really installed."""
    names = ["xllamacpp", "nvidia-cuda-runtime", "nvidia-nvtx", "nvidia-cufile"]
    with probe_venv.public_directory() as directory:
        yield small_wheels.make_venv(directory / "venv", *names)


def library_directory(venv: Path) -> str:
    return str(small_wheels.site_packages(venv) / "nvidia" / "cu13" / "lib")


def real_request(venv: Path) -> CheckRequest:
    return CheckRequest(
        str(venv),
        imports=("xllamacpp",),
        dlopen=("libcudart.so.13", "libnvtx3interop.so.1", "libcufile.so.0"),
        environment={"LD_LIBRARY_PATH": library_directory(venv)},
    )


def test_the_real_engine_and_its_cuda_wheels_load(wheels: Path) -> None:
    result = _library_check.check(real_request(wheels))
    assert result["ok"] and result["problems"] == []
    assert {entry["distribution"] for entry in result["libraries"]} == {
        "nvidia-cuda-runtime",
        "nvidia-nvtx",
        "nvidia-cufile",
    }
    assert [entry["path"].startswith(library_directory(wheels)) for entry in result["dlopen"]] == [True] * 3
    assert result["imports"][0]["version"] == small_wheels.VERSIONS["xllamacpp"]


def test_a_real_wheel_that_is_not_there_is_named(wheels: Path) -> None:
    small_wheels.uninstall(wheels, "nvidia-cufile")
    try:
        request = real_request(wheels)
        result = _library_check.check(request)
    finally:
        small_wheels.install(wheels, "nvidia-cufile")
    (found,) = result["problems"]
    assert (found["kind"], found["soname"]) == ("missing-library", "libcufile.so.0")
    assert found["distributions"] == ["nvidia-cufile"]
    message = _library_check.summary(request, result)
    assert message.startswith(f"cannot load libcufile.so.0: in {wheels} as user ")
    assert message.endswith(
        "libcufile.so.0 is not installed: add nvidia-cufile==1.15.1.6 to the lock and build the environment anew"
    )


def test_nobody_is_told_to_open_a_home_directory() -> None:
    home = pwd.getpwuid(0).pw_dir
    assert "chmod" not in _load_errors.access_fix("inference", home, "rx")
    assert "chmod o+rx /srv/venvs" in _load_errors.access_fix("inference", "/srv/venvs", "rx")
