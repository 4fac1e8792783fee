#!/usr/bin/env python3
# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write a tiny Qwen3 model and a DFlash drafter for it, as GGUF files that llama.cpp serves on any CPU.

The weights are set by hand: one channel of the residual stream is far stronger than all others and the
output matrix maps it to the token ".", so target and drafter agree on every token and all drafts are
accepted, through the real embedding, attention, feed-forward, draft and verify code. The other weights
come from a fixed integer pattern, not from a random generator: the same bytes on every run, whatever the
version of numpy.

Needs the packages gguf and numpy.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

WIDTH, HEAD_WIDTH, HEADS, KV_HEADS, FEED_FORWARD = 64, 16, 4, 2, 128
TARGET_LAYERS, DRAFT_LAYERS = 4, 2
CONTEXT, BLOCK = 2048, 8
# A drafter reads the inputs of these layers of its target. The index one past the last layer passes
# llama.cpp's check at load (lid <= n_layer) and fails its assertion at the first request; a larger one
# ends the load already.
TAPPED_LAYERS = (1, 3)
TAPPED_LAYERS_BROKEN = (1, TARGET_LAYERS)
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|MASK|>")
MERGES = ("h e", "t h", "a n")
ANSWER = "."
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_alphabet() -> list[str]:
    """Return the 256 printable stand-ins for bytes of GPT-2's byte-level BPE, in the order of the bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    stand_in = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        stand_in.setdefault(byte, chr(256 + len(stand_in) - len(printable)))
    return [stand_in[byte] for byte in range(256)]


TOKENS = [*byte_alphabet(), *(merge.replace(" ", "") for merge in MERGES), *SPECIAL_TOKENS]


def pattern(*shape: int, scale: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return values spread evenly over [-scale, scale) by Knuth's multiplicative hash of their position."""
    position = np.arange(1, int(np.prod(shape)) + 1, dtype=np.uint64)
    spread = (position * np.uint64(2654435761)) % np.uint64(1 << 32)
    return ((spread.astype(np.float64) / (1 << 31) - 1.0) * scale).astype(np.float32).reshape(shape)


def ones(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.ones(shape, dtype=np.float32)


class Model:
    """One GGUF file in the making: header, tokenizer and the transformer layers that both models share."""

    def __init__(self, path: Path, architecture: str, layers: int) -> None:
        self.writer = gguf.GGUFWriter(str(path), architecture)
        self.layers = layers
        writer = self.writer
        writer.add_name(f"tiny-{architecture}")
        writer.add_context_length(CONTEXT)
        writer.add_embedding_length(WIDTH)
        writer.add_block_count(layers)
        writer.add_feed_forward_length(FEED_FORWARD)
        writer.add_head_count(HEADS)
        writer.add_head_count_kv(KV_HEADS)
        writer.add_key_length(HEAD_WIDTH)
        writer.add_value_length(HEAD_WIDTH)
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_rope_freq_base(1e6)
        writer.add_file_type(gguf.LlamaFileType.ALL_F32)
        writer.add_vocab_size(len(TOKENS))
        self._add_tokenizer()

    def _add_tokenizer(self) -> None:
        writer = self.writer
        ordinary = len(TOKENS) - len(SPECIAL_TOKENS)
        kinds = [gguf.TokenType.NORMAL] * ordinary + [gguf.TokenType.CONTROL] * len(SPECIAL_TOKENS)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("qwen2")
        writer.add_token_list(TOKENS)
        writer.add_token_types(kinds)
        writer.add_token_merges(list(MERGES))
        writer.add_bos_token_id(TOKENS.index("<|endoftext|>"))
        writer.add_eos_token_id(TOKENS.index("<|im_end|>"))
        writer.add_pad_token_id(TOKENS.index("<|endoftext|>"))
        writer.add_add_bos_token(False)
        writer.add_chat_template(CHAT_TEMPLATE)

    def add_layers(self) -> None:
        for index in range(self.layers):
            for name, tensor in {
                "attn_norm": ones(WIDTH),
                "attn_q": pattern(HEADS * HEAD_WIDTH, WIDTH, scale=0.05),
                "attn_k": pattern(KV_HEADS * HEAD_WIDTH, WIDTH, scale=0.05),
                "attn_v": pattern(KV_HEADS * HEAD_WIDTH, WIDTH, scale=0.05),
                "attn_output": pattern(WIDTH, HEADS * HEAD_WIDTH, scale=0.02),
                "attn_q_norm": ones(HEAD_WIDTH),
                "attn_k_norm": ones(HEAD_WIDTH),
                "ffn_norm": ones(WIDTH),
                "ffn_gate": pattern(FEED_FORWARD, WIDTH, scale=0.02),
                "ffn_up": pattern(FEED_FORWARD, WIDTH, scale=0.02),
                "ffn_down": pattern(WIDTH, FEED_FORWARD, scale=0.02),
            }.items():
                self.writer.add_tensor(f"blk.{index}.{name}.weight", tensor)

    def write(self) -> None:
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def write_target(path: Path, complete: bool = True) -> None:
    """Write the Qwen3 target model: a transformer whose every answer is a row of full stops.

    An incomplete one lacks a tensor that the engine asks for when it loads the model.
    """
    model = Model(path, "qwen3", TARGET_LAYERS)
    embedding = pattern(len(TOKENS), WIDTH, scale=0.1)
    embedding[:, 0] += 3.0
    output = pattern(len(TOKENS), WIDTH, scale=0.05)
    output[TOKENS.index(ANSWER), 0] = 4.0
    model.writer.add_tensor("token_embd.weight", embedding)
    if complete:
        model.writer.add_tensor("output_norm.weight", ones(WIDTH))
    model.writer.add_tensor("output.weight", output)
    model.add_layers()
    model.write()


def write_drafter(path: Path, tapped_layers: Sequence[int] = TAPPED_LAYERS) -> None:
    """Write the DFlash drafter; it borrows embedding and output matrix from its target, as real ones do."""
    model = Model(path, "dflash", DRAFT_LAYERS)
    model.writer.add_uint32("dflash.block_size", BLOCK)
    model.writer.add_array("dflash.target_layers", list(tapped_layers))
    model.writer.add_mask_token_id(TOKENS.index("<|MASK|>"))
    model.writer.add_tensor("fc.weight", pattern(WIDTH, WIDTH * len(tapped_layers), scale=0.05))
    model.writer.add_tensor("enc.output_norm.weight", ones(WIDTH))
    model.writer.add_tensor("output_norm.weight", ones(WIDTH))
    model.add_layers()
    model.write()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Write target.gguf (Qwen3) and draft.gguf (DFlash) into DIRECTORY: about 1 MB together, "
        "the same bytes on every run, every draft accepted. The options add damaged models for tests.",
    )
    parser.add_argument("directory", metavar="DIRECTORY", type=Path, help="where to write; created when missing")
    parser.add_argument(
        "--broken-draft",
        action="store_true",
        help="also write broken-draft.gguf: it loads, then taps a layer that the target lacks and aborts "
        "the server at its first request",
    )
    parser.add_argument(
        "--truncated",
        action="store_true",
        help="also write truncated.gguf: the target cut off amid its tensors, like a broken download",
    )
    parser.add_argument(
        "--incomplete",
        action="store_true",
        help="also write incomplete.gguf: a target whose header is in order and which lacks a tensor, so "
        "that only the engine finds out, when it loads it",
    )
    options = parser.parse_args(arguments)
    directory: Path = options.directory
    written = [directory / "target.gguf", directory / "draft.gguf"]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_target(written[0])
        write_drafter(written[1])
        if options.broken_draft:
            written.append(directory / "broken-draft.gguf")
            write_drafter(written[-1], TAPPED_LAYERS_BROKEN)
        if options.truncated:
            written.append(directory / "truncated.gguf")
            whole = written[0].read_bytes()
            written[-1].write_bytes(whole[: len(whole) * 2 // 3])
        if options.incomplete:
            written.append(directory / "incomplete.gguf")
            write_target(written[-1], complete=False)
    except OSError as error:
        print(
            f"cannot write the models: {error.filename or directory}: {error.strerror}: name a writable one",
            file=sys.stderr,
        )
        return 1
    for path in written:
        print(f"{path}  {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
