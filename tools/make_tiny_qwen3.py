#!/usr/bin/env python3
# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write a tiny Qwen3 model in the form that SGLang and transformers load from a folder.

Its weights come from a fixed integer pattern and say nothing; its tokenizer knows bytes alone. It serves to start the
real engine on a CPU in a minute. The same bytes on every run. Needs the standard library alone.

    tools/make_tiny_qwen3.py FOLDER [--truncated]
"""

from __future__ import annotations

import argparse
import json
import struct
from pathlib import Path

WIDTH, HEAD, HEADS, KV_HEADS, FEED_FORWARD, LAYERS, CONTEXT = 64, 16, 4, 2, 128, 2, 2048
SPECIAL = ("<|bos|>", "<|eos|>", "<|pad|>")
# A multiple of 64, as SGLang pads vocabularies.
VOCABULARY = 320
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def byte_alphabet() -> list[str]:
    """Return the 256 printable stand-ins for bytes of GPT-2's byte-level BPE, in the order of the bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    stand_in = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        stand_in.setdefault(byte, chr(256 + len(stand_in) - len(printable)))
    return [stand_in[byte] for byte in range(256)]


def shapes() -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor, by its name in Qwen3ForCausalLM."""
    found: dict[str, tuple[int, ...]] = {
        "lm_head.weight": (VOCABULARY, WIDTH),
        "model.embed_tokens.weight": (VOCABULARY, WIDTH),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        found[f"{prefix}input_layernorm.weight"] = (WIDTH,)
        found[f"{prefix}mlp.down_proj.weight"] = (WIDTH, FEED_FORWARD)
        found[f"{prefix}mlp.gate_proj.weight"] = (FEED_FORWARD, WIDTH)
        found[f"{prefix}mlp.up_proj.weight"] = (FEED_FORWARD, WIDTH)
        found[f"{prefix}post_attention_layernorm.weight"] = (WIDTH,)
        found[f"{prefix}self_attn.k_norm.weight"] = (HEAD,)
        found[f"{prefix}self_attn.k_proj.weight"] = (KV_HEADS * HEAD, WIDTH)
        found[f"{prefix}self_attn.o_proj.weight"] = (WIDTH, HEADS * HEAD)
        found[f"{prefix}self_attn.q_norm.weight"] = (HEAD,)
        found[f"{prefix}self_attn.q_proj.weight"] = (HEADS * HEAD, WIDTH)
        found[f"{prefix}self_attn.v_proj.weight"] = (KV_HEADS * HEAD, WIDTH)
    found["model.norm.weight"] = (WIDTH,)
    return found


def tensor(name: str, shape: tuple[int, ...], start: int) -> bytes:
    """Return a tensor in bfloat16: ones for a norm, else values spread over [-0.05, 0.05) by their position."""
    count = shape[0] * (shape[1] if len(shape) > 1 else 1)
    if "norm" in name:
        values = [1.0] * count
    else:
        # Knuth's multiplicative hash.
        values = [((start + n) * 2654435761 % (1 << 32) / (1 << 31) - 1.0) * 0.05 for n in range(1, count + 1)]
    # bfloat16 is the upper half of a float32.
    return b"".join(struct.pack("<f", value)[2:] for value in values)


def safetensors() -> bytes:
    """Return the weights as a safetensors file: length of the header, header in JSON, tensors."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    body = bytearray()
    for position, (name, shape) in enumerate(shapes().items()):
        data = tensor(name, shape, position * 1_000_003)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(body)


def config() -> dict[str, object]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "bos_token_id": 256,
        "eos_token_id": 257,
        "pad_token_id": 258,
        "head_dim": HEAD,
        "hidden_act": "silu",
        "hidden_size": WIDTH,
        "intermediate_size": FEED_FORWARD,
        "max_position_embeddings": CONTEXT,
        "model_type": "qwen3",
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": VOCABULARY,
    }


def tokenizer() -> dict[str, object]:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    alphabet = sorted(byte_alphabet())
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": 256 + n, "content": text, **plain} for n, text in enumerate(SPECIAL)],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {text: n for n, text in enumerate(alphabet)},
            "merges": [],
        },
    }


def write(folder: Path, truncated: bool = False) -> None:
    """Write the model; a truncated one has half of its weights' file, as a download that was cut short leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    names = dict(zip(("bos_token", "eos_token", "pad_token"), SPECIAL))
    texts = {
        "config.json": config(),
        "generation_config.json": {"bos_token_id": 256, "eos_token_id": 257, "pad_token_id": 258},
        "tokenizer.json": tokenizer(),
        "tokenizer_config.json": {**names, "chat_template": TEMPLATE, "tokenizer_class": "PreTrainedTokenizerFast"},
    }
    for name, content in texts.items():
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    weights = safetensors()
    (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2] if truncated else weights)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--truncated", action="store_true", help="leave out the second half of the weights")
    options = parser.parse_args()
    write(options.folder, options.truncated)


if __name__ == "__main__":
    main()
