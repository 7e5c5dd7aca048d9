"""Our models as lm-evaluation-harness asks them, registered there as ``isoloss``.

What a model is asked follows ``lm_eval``'s own class for ``transformers``, so that figures compare:
context and continuation are encoded together and parted at the context's length, texts are cut
from the left to ``seq_len`` tokens, an empty context is the separator between documents, and a long
text is scored in windows, each token once. Where that class gives up, this one goes on: a context
of white space alone, a continuation that melts into the context's last token, and one that is
longer than ``seq_len``. Generated text ends before the first stop string, whatever else is in the
batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from harness.decoding import Sampling, Stop, generate
from harness.errors import IsolossError, MissingExtraError
from harness.evaluation.scoring import BATCH_LOGITS, Row
from harness.loading import LoadedModel, load_model
from harness.paths import RunPaths, SweepPaths
from harness.records import read_manifest
from harness.status import find_run

try:
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from lm_eval.models.utils import normalize_gen_kwargs
    from lm_eval.utils import get_rolling_token_windows, simple_parse_args_string
except ImportError as missing:
    raise MissingExtraError("eval --lm-eval", "eval", "lm_eval") from missing

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

BATCH_SIZE = 16
"""Sequences of a forward pass, at most."""
MAX_GEN_TOKS = 256
"""Tokens generated where a task does not say, as in ``lm_eval``; but half of ``seq_len`` at most,
so that the other half is left for the prompt."""
NEUTRAL = {"num_beams": 1, "repetition_penalty": 1.0, "num_return_sequences": 1, "use_cache": True}
"""Options of ``transformers``' generation that tasks set to what they are anyway."""

Answer = tuple[float, bool]
"""ln p of a continuation, and whether greedy decoding would give it."""
Request = tuple[tuple[str, str], list[int], list[int]]
"""Context and continuation: their text and their tokens."""


@dataclass(frozen=True)
class Generation:
    """How a task wants text to be generated."""

    until: tuple[str, ...]
    """Strings that end it; no part of the answer."""
    max_tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None

    @classmethod
    def parse(cls, options: Mapping[str, Any], default_max_tokens: int) -> Generation:
        """Read a task's ``generation_kwargs``.

        Raises
        ------
        IsolossError
            An option is not known here: the figure would not be the one that was asked for.
        """
        asked = dict(normalize_gen_kwargs(dict(options), default_max_tokens))
        sampled = asked.pop("do_sample")
        temperature = float(asked.pop("temperature", 1.0))
        top_k, top_p = asked.pop("top_k", None), asked.pop("top_p", None)
        until, max_tokens = asked.pop("until"), asked.pop("max_gen_toks")
        unknown = [f"{k}={v}" for k, v in asked.items() if (k, v) not in NEUTRAL.items()]
        if unknown:
            raise IsolossError(
                f"generation_kwargs: {', '.join(unknown)} cannot be heeded. Known are until, "
                "max_gen_toks, do_sample, temperature, top_k and top_p."
            )
        by_chance = sampled and temperature > 0
        return cls(
            until=tuple(text for text in until if text),
            max_tokens=max_tokens,
            temperature=temperature if by_chance else 0.0,
            top_k=(top_k or None) if by_chance else None,
            top_p=top_p if by_chance else None,
        )

    def sampling(self, seed: int) -> Sampling:
        """Return how tokens are drawn."""
        return Sampling(self.temperature, self.top_k, self.top_p, seed)


@register_model("isoloss")
class IsolossLM(TemplateLM):  # type: ignore[misc]
    """A trained model as ``lm_eval`` asks it.

    Parameters
    ----------
    loaded
        The model and its tokenizer.
    batch_size
        Sequences of a forward pass, at most.
    """

    def __init__(self, loaded: LoadedModel, batch_size: int = BATCH_SIZE) -> None:
        super().__init__()
        self.loaded = loaded
        self.batch_size = batch_size
        self.max_length = loaded.config.data.seq_len
        self.max_gen_toks = min(MAX_GEN_TOKS, self.max_length // 2)
        self._device = next(loaded.model.parameters()).device

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: dict[str, Any] | None = None
    ) -> IsolossLM:
        """Load a run, named as ``run=results/SWEEP/runs/ID,step=N``."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> IsolossLM:
        """Load a run, named as ``{"run": "results/SWEEP/runs/ID", "step": N}``.

        Raises
        ------
        IsolossError
            No run is named, there is no such run, or its model cannot be loaded.
        """
        unknown = set(arg_dict) - {"run", "step"}
        if unknown or "run" not in arg_dict:
            raise IsolossError(
                "isoloss: --model_args takes run=results/SWEEP/runs/ID, the folder of a run, and "
                f"step=N for one of its checkpoints, got {', '.join(map(str, arg_dict)) or 'none'}"
            )
        paths = RunPaths(Path(str(arg_dict["run"])).resolve())
        sweep = SweepPaths(paths.root.parent.parent)
        planned = find_run(sweep, read_manifest(sweep), paths.run_id)
        loaded = load_model(paths, planned, arg_dict.get("step"))
        size = str((additional_config or {}).get("batch_size", ""))
        return cls(loaded, int(size) if size.isdigit() else BATCH_SIZE)

    @property
    def eot_token_id(self) -> int:
        """The separator between documents; what an empty context stands for."""
        return self.loaded.tokenizer.separator

    def get_model_info(self) -> dict[str, Any]:
        """Which model it is, for the files that ``lm_eval`` writes."""
        return {"run_id": self.loaded.run_id, "step": self.loaded.step}

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        """Token ids of a text; never a separator."""
        ids: list[int] = self.loaded.tokenizer.encode([string.encode()])[0].tolist()
        return ids

    def tok_decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids; bytes that are no UTF-8 become U+FFFD."""
        ids = np.array(tokens, dtype=np.uint32)
        return self.loaded.tokenizer.decode(ids).decode(errors="replace")

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        before, after = super()._encode_pair(context, continuation)
        if continuation and not after:
            before, after = self.tok_encode(context), self.tok_encode(continuation)
        return before or [self.prefix_token_id], after

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = True
    ) -> list[tuple[float, bool]]:
        """Return ln p of each continuation given its context, and whether it is greedy."""
        answers: list[Answer] = super().loglikelihood(requests, disable_tqdm=True)
        return answers

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = True
    ) -> list[float]:
        """Return ln p of each text, a separator before it."""
        texts = [request.args[0] for request in requests]
        asked = [(("", text), [self.prefix_token_id], self.tok_encode(text)) for text in texts]
        return [total for total, _ in self._loglikelihood_tokens(asked)]

    def _loglikelihood_tokens(self, requests: Sequence[Request], **kwargs: Any) -> list[Answer]:
        pieces = [(i, row) for i, (_, *pair) in enumerate(requests) for row in self._rows(*pair)]
        totals, greedy = [0.0] * len(requests), [True] * len(requests)
        for place, (total, is_greedy) in self._scores([row for _, row in pieces]):
            owner = pieces[place][0]
            totals[owner] += total
            greedy[owner] &= is_greedy
        return list(zip(totals, greedy, strict=True))

    def _rows(self, context: list[int], continuation: list[int]) -> list[Row]:
        """Cut a request into what the model can read at once; every token is scored once."""
        if len(continuation) <= self.max_length:
            tokens = (*context, *continuation)[-(self.max_length + 1) :]
            return [Row(tokens, len(continuation))] if continuation else []
        pairs = get_rolling_token_windows(
            continuation, prefix_token=context[-1], max_seq_len=self.max_length, context_len=1
        )
        return [Row((*inputs, targets[-1]), len(targets)) for inputs, targets in pairs]

    @torch.no_grad()
    def _scores(self, rows: Sequence[Row]) -> Iterator[tuple[int, Answer]]:
        """Score rows in batches of similar length; yields the place of each in ``rows`` with it."""
        order = sorted(range(len(rows)), key=lambda i: -len(rows[i].tokens))
        while order:
            logits_each = len(rows[order[0]].tokens) * self.loaded.tokenizer.vocab_size
            n = max(1, min(self.batch_size, BATCH_LOGITS // logits_each))
            batch, order = order[:n], order[n:]
            yield from zip(batch, self._answers([rows[i] for i in batch]), strict=True)

    def _answers(self, rows: Sequence[Row]) -> Iterator[Answer]:
        tokens = [torch.tensor(row.tokens) for row in rows]
        # A causal model does not see the padding on the right.
        padded = pad_sequence([each[:-1] for each in tokens], batch_first=True)
        logits_BTV = self.loaded.model(padded.to(self._device))
        for row, each, logits_TV in zip(rows, tokens, logits_BTV, strict=True):
            end, n = len(row.tokens) - 1, row.n_targets
            log_probs = logits_TV[end - n : end].float().log_softmax(dim=-1)
            targets = each[-n:].to(self._device)
            found = log_probs.gather(-1, targets[:, None]).double().sum().item()
            yield found, bool((log_probs.argmax(dim=-1) == targets).all())

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = True) -> list[str]:
        """Continue each context as its task's ``generation_kwargs`` say.

        Random numbers follow from the place of a request among all, never from a global generator;
        repeated requests draw different ones.

        Raises
        ------
        IsolossError
            A task asks for as many new tokens as the model can see, or for what is not known here.
        """
        answers = [""] * len(requests)
        for batch, how in self._generations([request.args for request in requests]):
            contexts = [requests[i].args[0] for i in batch]
            for i, text in zip(batch, self._generated(contexts, how, seed=batch[0]), strict=True):
                answers[i] = text
        return answers

    def _generations(
        self, asked: Sequence[tuple[str, dict[str, Any]]]
    ) -> Iterator[tuple[list[int], Generation]]:
        """Batches of requests of equal options and similar length, by their places."""
        groups: dict[Generation, list[int]] = {}
        for i, (_, options) in enumerate(asked):
            how = Generation.parse(options, self.max_gen_toks)
            groups.setdefault(how, []).append(i)
        for how, places in groups.items():
            places.sort(key=lambda i: len(asked[i][0]))
            for first in range(0, len(places), self.batch_size):
                yield places[first : first + self.batch_size], how

    def _generated(self, contexts: Sequence[str], how: Generation, seed: int) -> list[str]:
        room = self.max_length - how.max_tokens
        if room < 1:
            raise IsolossError(
                f"a task generates up to {how.max_tokens} tokens, and the model sees "
                f"{self.max_length} (its seq_len), prompt included. Lower max_gen_toks in the "
                "task's generation_kwargs, or train with a longer data.seq_len."
            )
        rows = generate(
            self.loaded.model,
            [self.tok_encode(text)[-room:] or [self.prefix_token_id] for text in contexts],
            max_tokens=how.max_tokens,
            sampling=how.sampling(seed),
            stop=self._stop(how.until),
        )
        return [self._answer(row, how.until) for row in rows]

    def _stop(self, until: Sequence[str]) -> Stop:
        ends = [text.encode() for text in until]
        reach = max(map(len, ends), default=0)
        decode, separator = self.loaded.tokenizer.decode, self.eot_token_id

        def stop(_row: int, new: list[int]) -> bool:
            if new[-1] == separator or not reach:
                return new[-1] == separator
            # Every token stands for one byte at least, so so many hold all that is new.
            tail = decode(np.array(new[-reach:], dtype=np.uint32))
            return any(end in tail for end in ends)

        return stop

    def _answer(self, new: list[int], until: Sequence[str]) -> str:
        """Text before the first separator or stop string."""
        end = new.index(self.eot_token_id) if self.eot_token_id in new else len(new)
        text = self.tok_decode(new[:end])
        return min((text.partition(stop)[0] for stop in until), key=len, default=text)
