# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The uv installer on a host: where it comes from and how it is run. Private to the collection."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Callable, NamedTuple
from urllib.parse import urlsplit

UV_VERSION = "0.13.9"
# The wheels of this version for Linux: x86-64, aarch64 (glibc 2.28 and newer), aarch64 (older glibc, musl).
UV_HASHES = (
    "sha256:d7f459fe4fd247d830351c75686d3996ace3c6f3f728eb0e85a30b7ada0cef19",
    "sha256:ecb6028d79dc96fbeafffe5c8af62a7099487ebc05a701e76714eebcffd06375",
    "sha256:5435c5ce14a56431208ca0996416d310f1598e8c2c8ba707688985a16bb82dbe",
)

_URL_CREDENTIALS = re.compile(r"(?<=://)[^/\s]*@")
_PASSED_ON = (
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "ALL_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "all_proxy",
)

Progress = Callable[[str], None]


class Source(NamedTuple):
    """Where distributions come from, and how the installers are run."""

    environment: dict[str, str]
    uv: str | None  # None: the collection's own
    index_urls: tuple[str, ...] = ()  # index_url, perhaps empty, and the others; may carry credentials
    lock: int | None = None  # descriptor of the lock file: an installer that outlives its builder holds the lock on

    @property
    def no_index(self) -> bool:
        """Whether no index may be asked; uv has no variable for that."""
        return "PIP_NO_INDEX" in self.environment

    def shown(self, text: str) -> str:
        """Return text as it may be shown: without credentials, and without the address of an index of one's own."""
        text = without_credentials(text)
        for number, url in enumerate(self.index_urls):
            if not url:  # the public index needs no hiding
                continue
            address = urlsplit(url)
            place = re.escape((address.hostname or "") + (f":{address.port}" if address.port else ""))
            prefix = re.escape(address.path.rstrip("/"))
            shown = "<index_url>" if not number else "<extra_index_urls>"
            text = re.sub(rf"[a-z+]+://(\*\*\*@)?{place}{prefix}", shown, text, flags=re.IGNORECASE)
        return text


class UvError(Exception):
    """uv could not be had, or it failed; the text is uv's own words after what was tried."""


def installer_environment(
    cache: str,
    index_url: str | None = None,
    ca_file: str | None = None,
    extra_index_urls: Sequence[str] = (),
    wheelhouses: Sequence[str] = (),
    no_index: bool = False,
) -> dict[str, str]:
    """Return the whole environment for uv and pip.

    An index address may carry credentials, so it travels here and never in an argument list. Ansible's own
    environment is not passed on, except for proxies: a build must not depend on who started it.
    """
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    environment.update(
        PATH=os.defpath,
        LANG="C.UTF-8",
        HOME=cache,
        UV_CACHE_DIR=os.path.join(cache, "uv"),
        UV_NO_PROGRESS="1",
        UV_PYTHON_DOWNLOADS="never",
        UV_LINK_MODE="hardlink",
        # Every index is asked for every pin: the hashes of the lock, not the order of the indexes, say which file it
        # is. uv's own default takes the first index that knows the name, whatever versions it has.
        UV_INDEX_STRATEGY="unsafe-best-match",
        PIP_CACHE_DIR=os.path.join(cache, "pip"),
        PIP_DISABLE_PIP_VERSION_CHECK="1",
        PIP_NO_INPUT="1",
    )
    if index_url:
        environment.update(UV_DEFAULT_INDEX=index_url, PIP_INDEX_URL=index_url)
    if extra_index_urls:
        environment.update(UV_INDEX=" ".join(extra_index_urls), PIP_EXTRA_INDEX_URL=" ".join(extra_index_urls))
    if wheelhouses:
        houses = [_unbroken(folder) for folder in wheelhouses]
        environment.update(UV_FIND_LINKS=",".join(houses), PIP_FIND_LINKS=" ".join(houses))
    if no_index:
        # Nor does pip then look at what the host's own configuration names.
        environment.update(PIP_NO_INDEX="1", PIP_CONFIG_FILE=os.devnull)
    if ca_file:
        environment.update(SSL_CERT_FILE=ca_file, PIP_CERT=ca_file)
    return environment


def _unbroken(folder: str) -> str:
    """A folder as an element of a list: uv's lists have commas in between, pip's have spaces."""
    return Path(os.path.abspath(folder)).as_uri() if re.search(r"[\s,%]", folder) else folder


def known_uv(tools: str) -> str | None:
    """The path of the uv below the folder tools; None when none was fetched yet."""
    uv = os.path.join(tools, f"uv-{UV_VERSION}", "bin", "uv")
    return uv if os.path.exists(uv) else None


def ensure_uv(tools: str, python: str, source: Source, progress: Progress) -> str:
    """Return the path of a uv of the pinned version below the folder tools; fetch its wheel when it is not there.

    The wheel is installed by pip with a pinned hash, into a venv of its own. Raises UvError.
    """
    known = known_uv(tools)
    if known:
        return known
    home = os.path.join(tools, f"uv-{UV_VERSION}")
    if _run([python, "-I", "-c", "import ensurepip"], source).returncode:
        raise UvError(
            f"no tools venv can be made: {python} has no ensurepip: install the package that holds it "
            "(python3-venv on Debian and Ubuntu), or name a uv of the host with the option uv"
        )
    progress(f"fetching uv {UV_VERSION}")
    partial = tempfile.mkdtemp(prefix=".uv-", dir=tools)
    try:
        made = _run([python, "-I", "-m", "venv", partial], source)
        if made.returncode:
            raise UvError(f"no tools venv can be made: {partial}: {_tail(made, source)}")
        pin = Path(partial, "uv.txt")
        pin.write_text(f"uv=={UV_VERSION} " + " ".join(f"--hash={digest}" for digest in UV_HASHES) + "\n")
        arguments = [
            "install",
            "--quiet",
            "--no-deps",
            "--require-hashes",
            "--only-binary=:all:",
            "-r",
            str(pin),
        ]
        fetched = _run([os.path.join(partial, "bin", "python"), "-I", "-m", "pip", *arguments], source)
        if fetched.returncode:
            raise UvError(f"the uv wheel cannot be installed: {tools}: {_tail(fetched, source)}")
        # uv is one static binary: unlike the scripts of a venv, it does not mind that its folder is renamed.
        os.chmod(partial, 0o755)
        os.sync()  # a power cut must not leave an empty file under a name that is trusted
        os.rename(partial, home)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return os.path.join(home, "bin", "uv")


def run_uv(uv: str, arguments: list[str], source: Source, heard: Progress | None = None) -> str:
    """Run uv and return its standard output; pass each line of its standard error to heard as it comes.

    Raises UvError with uv's last words. Configuration files of the host are not read: the lock is the whole input.
    """
    words = []
    # Standard output goes to a file: two pipes read one after the other could fill up and stop each other.
    with (
        tempfile.TemporaryFile("w+", errors="replace") as answer,
        subprocess.Popen(
            [uv, "--no-config", *arguments],
            env=source.environment,
            pass_fds=_kept(source),
            stdin=subprocess.DEVNULL,
            stdout=answer,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        ) as process,
    ):
        for line in process.stderr or ():
            words.append(source.shown(line.rstrip()))
            if heard and words[-1]:
                heard(words[-1])
        process.wait()
        answer.seek(0)
        output = answer.read()
    if process.returncode:
        raise UvError("\n".join(words[-25:]).strip() or f"uv ended with status {process.returncode}")
    return output


def without_credentials(text: str) -> str:
    """Return text with user names, passwords and tokens cut out of the addresses in it."""
    return _URL_CREDENTIALS.sub("***@", text)


def _run(arguments: list[str], source: Source) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments,
        env=source.environment,
        pass_fds=_kept(source),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


def _kept(source: Source) -> tuple[int, ...]:
    return () if source.lock is None else (source.lock,)


def _tail(process: subprocess.CompletedProcess[str], source: Source) -> str:
    lines = [line.strip() for line in (process.stdout + process.stderr).splitlines() if line.strip()]
    return source.shown(" / ".join(lines[-4:])) or f"exit status {process.returncode}"
