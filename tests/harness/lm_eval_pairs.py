"""One small trained model, asked twice: by our adapter, and by lm_eval's own for transformers."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from harness.evaluation.lm_eval_adapter import IsolossLM
from harness.loading import LoadedModel
from harness.model import Transformer
from harness.module import token_loss
from harness.tokenization import BpeTokenizer, ByteTokenizer, Tokenizer, _byte_of_char
from tests.conftest import make_config
from tests.harness.test_model import _renamed, theirs

SEQ_LEN = 64
SPEECHES = Path(__file__).parent.parent / "data" / "sotu_slice.jsonl"


@dataclass(frozen=True)
class Pair:
    """The same weights and vocabulary behind two classes of lm_eval."""

    ours: IsolossLM
    theirs: HFLM


def speech() -> bytes:
    """The beginning of a speech."""
    with SPEECHES.open(encoding="utf-8") as lines:
        text: str = json.loads(next(lines))["text"]
    return text.encode()


@functools.cache
def make_loaded(kind: str, residual: str = "standard", steps: int = 25) -> LoadedModel:
    """A model trained for less than a second, so that its guesses are no ties."""
    tokenizer = ByteTokenizer() if kind == "byte" else BpeTokenizer.train([speech()], 400)
    config = make_config(residual, seq_len=SEQ_LEN, model={"n_kv_heads": 1})
    model = Transformer(config.model, config.residual, tokenizer.vocab_size, seed=0)
    _train(model, tokenizer.encode([speech()])[0], steps)
    model.requires_grad_(False).eval()
    return LoadedModel(model, tokenizer, config, step=steps, run_id="0123456789ab")


@functools.cache
def make_pair(kind: str) -> Pair:
    """The standard model, handed to both."""
    loaded = make_loaded(kind)
    llama: Any = theirs("Llama", loaded.model, _renamed(loaded.model))
    llama.generation_config.eos_token_id = loaded.tokenizer.separator
    tokenizer = _fast_tokenizer(loaded.tokenizer)
    hugging_face = HFLM(llama, tokenizer=tokenizer, max_length=SEQ_LEN, batch_size=3)
    return Pair(IsolossLM(loaded, batch_size=4), hugging_face)


def _train(model: Transformer, tokens: np.ndarray[Any, Any], steps: int) -> None:
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    rows = torch.from_numpy(tokens[: len(tokens) // 65 * 65].astype(np.int64)).view(-1, 65)
    for step in range(steps):
        optimiser.zero_grad()
        token_loss(model, rows[torch.arange(16) * 7 % len(rows) + step % 3]).backward()
        optimiser.step()


def _fast_tokenizer(tokenizer: Tokenizer) -> transformers.PreTrainedTokenizerFast:
    """The same vocabulary as transformers knows it; its end-of-text token is our separator."""
    if isinstance(tokenizer, BpeTokenizer):
        inner, end = tokenizers.Tokenizer.from_str(tokenizer.to_json()), "<|separator|>"
    else:
        inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=_byte_of_char(), merges=[]))
        inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = tokenizers.decoders.ByteLevel()
        end = inner.id_to_token(tokenizer.separator)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=end)
    assert fast.eos_token_id == tokenizer.separator
    return fast


def requests(kind: str, *arguments: tuple[Any, ...]) -> list[Instance]:
    """What an evaluation would ask."""
    return [Instance(kind, {}, each, i) for i, each in enumerate(arguments)]
