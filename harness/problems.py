"""Wording of mistakes in a grid: where, rule, got, what to do.

Turns pydantic's verdicts and unknown keys into sentences that name the rule and the way out, and
collects them so that each mistake is told once.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from harness.errors import GridError
from harness.yaml12 import Document, Loc

HINTS: Mapping[str, str] = {
    **dict.fromkeys(
        ("depth", "layer", "layers", "n_layer", "num_layers", "num_hidden_layers"),
        "write model.n_layers (attention + MLP pairs)",
    ),
    **dict.fromkeys(
        ("width", "dim", "hidden_size", "hidden_dim", "n_embd", "embed_dim", "model_dim"),
        "write model.d_model",
    ),
    **dict.fromkeys(
        ("n_heads", "n_head", "heads", "num_heads", "num_attention_heads"),
        "write model.head_dim; n_heads = d_model / head_dim",
    ),
    "block_size": "write residual.block_size (sublayers per depth block) "
    "or data.seq_len (tokens of context)",
    "n_blocks": "write residual.n_blocks (number of depth blocks)",
    **dict.fromkeys(
        ("context", "context_length", "ctx_len", "n_ctx", "max_seq_len", "sequence_length"),
        "write data.seq_len",
    ),
    **dict.fromkeys(
        ("batch_size", "batch", "global_batch"),
        "write train.batch_tokens (tokens per optimiser step)",
    ),
    **dict.fromkeys(("steps", "n_steps", "max_steps", "epochs"), "write train.budget: {tokens: …}"),
    **dict.fromkeys(("flops", "tokens", "tokens_per_param"), "write train.budget: {…} around it"),
    **dict.fromkeys(("learning_rate", "max_lr", "peak_lr"), "write train.lr"),
    **dict.fromkeys(("variant", "recipe", "arch", "attn_res"), "write residual"),
    **dict.fromkeys(("seed", "replicates", "n_seeds"), "write seeds: [0, 1] at the top level"),
    **dict.fromkeys(("dataset", "data_path"), "write data.corpus"),
    **dict.fromkeys(("dtype", "amp", "mixed_precision"), "write train.precision"),
    "vocab_size": "remove it; the vocabulary comes with data.corpus",
    "<<": "write the values out; merge keys are not part of YAML 1.2",
}
"""Names that other tools use, with ours."""


class Problems:
    """The mistakes found so far in one document."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self._found: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, loc: Loc, message: str) -> None:
        """Note a mistake at a place of the document; the same one again changes nothing."""
        self._found.setdefault(self.document.problem(loc, message), self.document.line(loc))

    def raise_if_any(self) -> None:
        """Stop with all mistakes, ordered by line.

        Raises
        ------
        GridError
            At least one mistake was noted.
        """
        if self._found:
            raise GridError(sorted(self._found, key=lambda text: self._found[text]))


def unknown_key(key: str, known: Iterable[str], what: str = "key", owner: str = "") -> str:
    """Say that a key is unknown, with our word for it or the closest that exists."""
    names, leaf = list(known), key.rpartition(".")[2]
    fault = f"unknown {what} '{key}'" + (f" of {owner}" if owner else "")
    same_leaf = [name for name in names if name.rpartition(".")[2] == leaf]
    close = difflib.get_close_matches(key, names, n=1, cutoff=0.7)
    if same_leaf:
        return f"{fault}; write {' or '.join(same_leaf)}."
    if leaf in HINTS and what == "key":
        return f"{fault}; {HINTS[leaf]}."
    if close:
        return f"{fault}; did you mean '{close[0]}'?"
    inside = [name for name in names if name.rpartition(".")[0] == key.rpartition(".")[0] != ""]
    listed = inside or list(dict.fromkeys(name.partition(".")[0] for name in names))
    return f"{fault}; remove it. Known: {', '.join(listed) or 'none'}."


def show(value: Any) -> str:
    """Spell a value as a grid would, with its type where that may surprise."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower() + " (a boolean)"
    if isinstance(value, str):
        text = value if len(value) <= 60 else value[:57] + "…"
        return f"'{text}' (text)"
    if isinstance(value, float):
        return f"{value!r} (a float)"
    if isinstance(value, dict | list):
        text = json.dumps(value, default=str)
        kind = "a mapping" if isinstance(value, dict) else "a list"
        return f"{text if len(text) <= 60 else text[:57] + '…'} ({kind})"
    text = str(value) if abs(value) < 10**40 else f"a number of {value.bit_length()} bits"
    return text


def explain(error: Mapping[str, Any], known: Iterable[str] = ()) -> str:
    """Turn one of pydantic's errors into a sentence: rule, got, what to do.

    Parameters
    ----------
    error
        An item of ``ValidationError.errors()``.
    known
        Keys that exist beside the one in question, for unknown and missing keys.
    """
    kind, got, context = str(error["type"]), error.get("input"), error.get("ctx") or {}
    if kind == "extra_forbidden":
        return unknown_key(str(error["loc"][-1]), known)
    if kind == "missing":
        return "is required; add it."
    if kind == "value_error":
        return f"{context['error']}."
    if kind == "literal_error":
        choices = str(context["expected"])
        names = choices.replace("'", "").replace(" or ", ", ").split(", ")
        close = difflib.get_close_matches(str(got), names, n=1)
        hint = f" Did you mean '{close[0]}'?" if close else ""
        return f"must be one of {choices.replace(' or ', ', ')}, got {show(got)}.{hint}"
    return f"{_rule(kind, context, str(error['msg']))}, got {show(got)}.{_advice(kind, got)}"


def _rule(kind: str, context: Mapping[str, Any], message: str) -> str:
    bounds = {
        "greater_than": ("gt", "must be greater than"),
        "greater_than_equal": ("ge", "must be at least"),
        "less_than": ("lt", "must be less than"),
        "less_than_equal": ("le", "must be at most"),
    }
    if kind in bounds:
        key, words = bounds[kind]
        return f"{words} {context[key]:g}"
    types = {
        "int_type": "must be an integer",
        "float_type": "must be a number",
        "finite_number": "must be a finite number",
        "string_type": "must be text",
        "bool_type": "must be true or false",
        "model_type": "must be a mapping",
        "model_attributes_type": "must be a mapping",
        "dict_type": "must be a mapping",
        "list_type": "must be a list",
    }
    return types.get(kind, message[:1].lower() + message[1:])


def _advice(kind: str, got: Any) -> str:
    if kind == "string_type" and isinstance(got, int | float):
        return " Put it in quotes."
    if kind == "int_type" and isinstance(got, float) and got.is_integer() and abs(got) < 1e18:
        return f" Write {int(got)}."
    if kind == "bool_type" and str(got).lower() in ("yes", "no", "on", "off"):
        return " YAML 1.2 spells booleans true and false."
    if kind in ("int_type", "float_type") and isinstance(got, str):
        return _numeric_text_advice(got)
    return " Write a plain number." if kind in ("finite_number", "int_type", "float_type") else ""


def _numeric_text_advice(got: str) -> str:
    if ":" in got:
        return " YAML 1.2 has no base-60 numbers; write one plain number."
    plain = got.replace("_", "").replace(",", "").strip()
    try:
        float(plain)
    except ValueError:
        return " Write a plain number."
    return f" Write {plain}, without quotes, separators or spaces."
