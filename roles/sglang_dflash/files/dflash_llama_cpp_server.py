# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serve a GGUF model with llama.cpp and a DFlash drafter: the engine llama_cpp of gpufleet.dflash.

Runs inside a virtual environment that holds the package xllamacpp (llama.cpp's server as a library):
C(python -m dflash_llama_cpp_server --model M.gguf --draft-model D.gguf --port 30001). With C(--check) it
reads the files' headers, serves nothing, needs no xllamacpp and prints one sentence for each mistake.

Exit status: 0 after SIGTERM or SIGINT and for a check without findings, 1 when the engine or a required
library cannot be loaded, 2 for wrong arguments.
"""

from __future__ import annotations

import argparse
import ctypes
import ipaddress
import json
import math
import os
import signal
import struct
import sys
import threading
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

PROGRAM = "dflash_llama_cpp_server"


class GgufError(Exception):
    """A file that is not a whole GGUF model; the text says what is wrong with it."""


class GgufHeader(NamedTuple):
    """What a GGUF file says about itself, by key: scalars, short numeric arrays, and lengths of arrays."""

    values: dict[str, Any]
    lengths: dict[str, int]

    @property
    def architecture(self) -> str:
        return str(self.values.get("general.architecture", ""))

    def of_architecture(self, key: str) -> Any:
        """Return the value of '<architecture>.<key>', or None."""
        return self.values.get(f"{self.architecture}.{key}")


class GgufReader:
    """Reads the header of one GGUF file (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).

    Every count and length is checked against the file's size before it is believed, so that a damaged file
    costs no more than its own size.
    """

    SCALARS = dict(enumerate(("B", "b", "<H", "<h", "<I", "<i", "<f", "?")))
    SCALARS.update({10: "<Q", 11: "<q", 12: "<d"})
    STRING, ARRAY = 8, 9
    # Of arrays only short numeric ones are kept; vocabularies and merges are skipped.
    LONGEST_KEPT_ARRAY = 4096
    # (values in a block, bytes of a block) by tensor type; other types are checked by their start alone.
    BLOCKS = {
        0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 10: (256, 84),
        11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292), 16: (256, 66),
        17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82),
        23: (256, 136),
        24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2),
        34: (256, 54), 35: (256, 66), 39: (32, 17),
    }  # fmt: skip

    def __init__(self, stream: BinaryIO, size: int) -> None:
        self.stream = stream
        self.size = size

    def header(self) -> GgufHeader:
        """Return the header, having checked that all tensors lie within the file; raise GgufError if not."""
        if self._take(4) != b"GGUF":
            raise GgufError("it is not a GGUF file (the magic number is missing)")
        version = self._number("<I")
        if version not in (2, 3):
            raise GgufError(f"its GGUF version {version} is not 2 or 3")
        tensors, pairs = self._count(smallest=24), self._count(smallest=13)
        values: dict[str, Any] = {}
        lengths: dict[str, int] = {}
        for _index in range(pairs):
            key, kind = self._text(), self._number("<I")
            if kind == self.ARRAY:
                lengths[key], values[key] = self._array()
            else:
                values[key] = self._scalar(kind)
        self._check_tensors(tensors, values.get("general.alignment", 32))
        return GgufHeader(values, lengths)

    def _check_tensors(self, count: int, alignment: Any) -> None:
        if not isinstance(alignment, int) or alignment <= 0 or alignment % 8:
            raise GgufError(f"its alignment {alignment!r} is not a multiple of 8")
        ends = []
        for _index in range(count):
            name = self._text()
            rank = self._number("<I")
            if rank > 8:
                raise GgufError(f"tensor {name!r} claims {rank} dimensions")
            values = math.prod(self._number("<Q") for _index in range(rank))
            kind, offset = self._number("<I"), self._number("<Q")
            in_block, block_bytes = self.BLOCKS.get(kind, (1, 0))
            ends.append((offset + -(-values // in_block) * block_bytes, name))
        data = -(-self.stream.tell() // alignment) * alignment
        end, name = max(ends, default=(0, ""))
        if data + end > self.size:
            raise GgufError(
                f"it is cut short: tensor {name!r} ends at byte {data + end}, the file has {self.size} bytes"
            )

    def _take(self, length: int) -> bytes:
        if length > self.size - self.stream.tell():
            raise GgufError(f"it is cut short: its header goes on after the end of the file ({self.size} bytes)")
        return self.stream.read(length)

    def _number(self, layout: str) -> Any:
        return struct.unpack(layout, self._take(struct.calcsize(layout)))[0]

    def _count(self, smallest: int) -> int:
        count = int(self._number("<Q"))
        if count * smallest > self.size:
            raise GgufError(f"its header claims {count} entries, more than its {self.size} bytes can hold")
        return count

    def _text(self) -> str:
        return self._take(self._number("<Q")).decode("utf-8", "replace")

    def _skip(self, length: int) -> None:
        if length > self.size - self.stream.tell():
            raise GgufError(f"it is cut short: its header goes on after the end of the file ({self.size} bytes)")
        self.stream.seek(length, os.SEEK_CUR)

    def _scalar(self, kind: int) -> Any:
        if kind == self.STRING:
            return self._text()
        if kind not in self.SCALARS:
            raise GgufError(f"its header holds a value of the unknown type {kind}")
        return self._number(self.SCALARS[kind])

    def _array(self) -> tuple[int, list[Any] | None]:
        """Return the array's length and, if it is short and numeric, its values."""
        kind = self._number("<I")
        if kind == self.STRING:
            count = self._count(smallest=8)
            for _index in range(count):
                self._skip(self._number("<Q"))
            return count, None
        if kind not in self.SCALARS:
            raise GgufError(f"its header holds an array of the unsupported type {kind}")
        layout = self.SCALARS[kind]
        count = self._count(smallest=struct.calcsize(layout))
        if count > self.LONGEST_KEPT_ARRAY:
            self._skip(count * struct.calcsize(layout))
            return count, None
        return count, [self._number(layout) for _index in range(count)]


def read_header(path: str) -> GgufHeader:
    """Return the header of the GGUF model at C(path); raise GgufError with a reason for anything else."""
    try:
        size = os.stat(path).st_size
        with Path(path).open("rb") as stream:
            return GgufReader(stream, size).header()
    except OSError as error:
        raise GgufError(error.strerror or str(error)) from error


def findings(options: argparse.Namespace) -> list[str]:
    """Return one sentence for each mistake that would stop the engine now or at its first request."""
    found = []
    headers: dict[str, GgufHeader] = {}
    for option, path in (("--model", options.model), ("--draft-model", options.draft_model)):
        if path is None:
            continue
        try:
            headers[option] = read_header(path)
        except GgufError as error:
            found.append(f"{option}: {path}: {error}: give a whole GGUF model file")
    target, draft = headers.get("--model"), headers.get("--draft-model")
    if target:
        mistakes = target_findings(options.model, target)
        found += mistakes
        target = None if mistakes else target
    if draft:
        found += draft_findings(options.draft_model, draft, target)
    return found


def target_findings(path: str, target: GgufHeader) -> list[str]:
    if not target.architecture:
        return [f"--model: {path}: its header names no architecture: give a language model in GGUF format"]
    if target.architecture == "dflash":
        return [f"--model: {path}: this is a DFlash drafter: give it as --draft-model and its target as --model"]
    if not isinstance(target.of_architecture("block_count"), int):
        return [f"--model: {path}: its header has no {target.architecture}.block_count: convert the model again"]
    return []


def draft_findings(path: str, draft: GgufHeader, target: GgufHeader | None) -> list[str]:
    where = f"--draft-model: {path}"
    if draft.architecture != "dflash":
        return [f"{where}: its architecture is {draft.architecture!r}, not 'dflash': give a DFlash drafter"]
    layers = draft.of_architecture("target_layers")
    if not isinstance(layers, list) or not layers or not all(isinstance(layer, int) for layer in layers):
        return [f"{where}: its header has no dflash.target_layers: convert the drafter again"]
    return [
        f"{where}: {mismatch}: give the drafter that was trained for this model"
        for mismatch in (mismatches(draft, layers, target) if target else [])
    ]


def mismatches(draft: GgufHeader, layers: list[int], target: GgufHeader) -> list[str]:
    """Return why this drafter cannot work for this target.

    llama.cpp aborts on each: on some while it loads, on others only at the first request, healthy until then.
    """
    found = []
    blocks = target.of_architecture("block_count")
    outside = [layer for layer in layers if not 0 <= layer < blocks]
    if outside:
        found.append(f"it reads layers {outside} of a target that has layers 0 to {blocks - 1}")
    # The drafter borrows the target's embedding and output matrices.
    width, target_width = (
        draft.of_architecture("embedding_length"),
        target.of_architecture("embedding_length"),
    )
    if width != target_width:
        found.append(f"its hidden width is {width}, the target's is {target_width}")
    mask, tokens = (
        draft.values.get("tokenizer.ggml.mask_token_id"),
        target.lengths.get("tokenizer.ggml.tokens"),
    )
    if isinstance(mask, int) and tokens is not None and mask >= tokens:
        found.append(f"its mask token {mask} is outside the target's vocabulary of {tokens} tokens")
    return found


def address(text: str) -> str:
    """Argparse type of --host: a name could resolve to another address after the next boot."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an IP address such as 127.0.0.1") from None


def between(lowest: int, highest: int) -> Any:
    """Return the argparse type of an integer in this range."""

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if not lowest <= value <= highest:
            raise argparse.ArgumentTypeError(f"{value} is not between {lowest} and {highest}")
        return value

    return number


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Serve a GGUF model with llama.cpp and a DFlash drafter.",
        allow_abbrev=False,
    )

    def text(option: str, metavar: str, explanation: str, **more: Any) -> None:
        result.add_argument(option, metavar=metavar, help=explanation, **more)

    def number(option: str, default: int, lowest: int, highest: int, explanation: str) -> None:
        explanation += " (default: %(default)s)"
        kind = between(lowest, highest)
        result.add_argument(option, metavar="N", default=default, type=kind, help=explanation)

    text("--model", "FILE", "the target model (GGUF)", required=True)
    text("--draft-model", "FILE", "its DFlash drafter (GGUF); without it nothing is drafted")
    text("--model-alias", "NAME", "the name of the model in answers (default: name of the file)")
    text(
        "--host",
        "ADDRESS",
        "address to listen on (default: %(default)s); there are no access keys",
        type=address,
        default="127.0.0.1",
    )
    text("--port", "N", "TCP port", required=True, type=between(1, 65535))
    number("--ctx-size", 4096, 0, 1 << 24, "tokens of context of all parallel requests; 0: as the model says")
    number("--parallel", 1, 1, 256, "requests served at once")
    number("--threads", 1, 1, 1024, "threads of computation; more than idle cores is much slower")
    number("--draft-tokens", 7, 1, 1024, "tokens drafted at most; the drafter's block size less 1 also limits it")
    text(
        "--require-library",
        "SONAME",
        "load this library first and end if it is missing, as torch does; may be repeated",
        action="append",
        default=[],
    )
    text("--config", "FILE", "read api-key from this file in JSON, as no argument list may show it")
    result.add_argument("--check", action="store_true", help="check arguments and models' headers, serve nothing")
    return result


def say(message: str) -> None:
    print(f"{PROGRAM}: {message}", flush=True)


def read_key(path: str) -> str:
    """Return the API key of a configuration file; raises ValueError, which does not tell what the file holds."""
    try:
        return str(json.loads(Path(path).read_text(encoding="utf-8"))["api-key"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"no api-key can be read from {path} ({type(error).__name__})") from None


def load_error(soname: str) -> str | None:
    """Load a library for all objects that follow, as torch does; return the loader's words if it fails."""
    try:
        ctypes.CDLL(soname, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        return str(error)
    return None


def engine_parameters(xllamacpp: Any, options: argparse.Namespace) -> Any:
    """Return the CommonParams that these options mean."""
    parameters = xllamacpp.CommonParams()
    parameters.model.path = options.model
    parameters.model_alias = {options.model_alias or Path(options.model).stem}
    parameters.hostnames = [options.host]
    parameters.port = options.port
    parameters.n_ctx = options.ctx_size
    parameters.n_parallel = options.parallel
    parameters.cpuparams.n_threads = options.threads
    parameters.endpoint_metrics = True
    parameters.ui = False
    # Fitting would shrink the context silently when memory is short; a refusal is clearer.
    parameters.fit_params = False
    if options.config:
        parameters.api_keys = [read_key(options.config)]
    if options.draft_model:
        speculative = parameters.speculative
        speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_DFLASH]
        speculative.draft.mparams.path = options.draft_model
        speculative.draft.n_max = options.draft_tokens
    return parameters


def serve(options: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; return the exit status."""
    errors = [error for error in map(load_error, options.require_library) if error]
    for error in errors:
        say(f"a required library cannot be loaded: {error}")
    if errors:
        return 1
    # When llama.cpp aborts it lets gdb print its stack, for seconds: the assertion alone says enough.
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    try:
        import xllamacpp  # not at the top: --check works without it
    except ImportError as error:
        say(f"the engine cannot be imported: {error}")
        return 1

    # Blocked in all later threads and fetched by one: loading runs in C, where a Python handler would wait.
    stop_signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals)
    serving, stopped = threading.Event(), threading.Event()

    def await_stop() -> None:
        signal.sigwait(stop_signals)
        say("stopping")
        if not serving.is_set():
            os._exit(0)
        stopped.set()

    threading.Thread(target=await_stop, daemon=True).start()
    say(f"loading {options.model}")
    try:
        server = xllamacpp.Server(engine_parameters(xllamacpp, options))
    except (RuntimeError, ValueError, TypeError) as error:
        say(f"the engine did not start: {error}")
        return 1
    serving.set()
    say(f"ready: {server.listening_address}")
    stopped.wait()
    del server  # its destructor ends the main loop and closes the socket
    return 0


def main(arguments: list[str] | None = None) -> int:
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    options = parser().parse_args(arguments)
    if not options.check:
        return serve(options)
    mistakes = findings(options)
    for mistake in mistakes:
        print(f"{PROGRAM}: {mistake}", file=sys.stderr)
    return 2 if mistakes else 0


if __name__ == "__main__":
    sys.exit(main())
