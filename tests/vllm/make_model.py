"""Write a tiny Llama with random weights, its tokenizer and its chat template into a directory.

Run with the interpreter of the vLLM environment (``.venv-vllm/bin/python make_model.py DIR``). What
the model says is noise; the engine that serves it, its scheduler, its HTTP API and its metrics are
the real ones. Needs no network: the tokenizer learns from the sources of the standard library.

A finished model is kept (``headway.json`` in it names the shape it was made with), an unfinished
one never appears under DIR: the files are written beside it and moved into place as the last step.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import sysconfig
from pathlib import Path

CHATML = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
)
PAD, BOS, START, END = "<|pad|>", "<|bos|>", "<|im_start|>", "<|im_end|>"
STAMP = "headway.json"
#: Written into the stamp: raise it when this file changes what it writes for the same shape.
FORMAT = 1


def write_tokenizer(directory: Path, *, vocabulary: int, context: int) -> dict[str, int]:
    """Train a byte-level BPE, save it with the chat template; return the special tokens' ids."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    corpus = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:60]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[PAD, BOS, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train([str(path) for path in corpus], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=END,
        model_max_length=context,
        chat_template=CHATML,
    )
    tokenizer.save_pretrained(directory)
    return {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }


def write_weights(directory: Path, shape: argparse.Namespace, tokens: dict[str, int]) -> None:
    """Draw the weights by the seed and save them as bfloat16."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(shape.seed)
    config = LlamaConfig(
        hidden_size=shape.hidden,
        intermediate_size=2 * shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.hidden // shape.heads,
        max_position_embeddings=shape.context,
        tie_word_embeddings=False,
        initializer_range=0.1,  # wide enough for greedy decoding not to repeat one token for ever
        dtype="bfloat16",
        **tokens,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)


def main() -> None:
    """Keep a model of the same shape; otherwise write it and move it into place."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--seed", type=int, default=0)
    shape = parser.parse_args()
    stamp = {**vars(shape), "directory": None, "format": FORMAT}

    finished = shape.directory / STAMP
    if finished.exists() and json.loads(finished.read_text()) == stamp:
        return
    os.environ["HF_HUB_OFFLINE"] = "1"
    scratch = shape.directory.with_name(f"{shape.directory.name}.{os.getpid()}.tmp")
    scratch.mkdir(parents=True)
    try:
        tokens = write_tokenizer(scratch, vocabulary=shape.vocabulary, context=shape.context)
        write_weights(scratch, shape, tokens)
        (scratch / STAMP).write_text(json.dumps(stamp))
        if shape.directory.exists():
            shutil.rmtree(shape.directory)
        scratch.rename(shape.directory)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    sys.stdout.write(f"wrote {shape.directory}\n")


if __name__ == "__main__":
    main()
