"""Identity and labels of a run.

The id is a hash of what can change the loss: the fields of :class:`~harness.config.RunConfig` that
differ from their defaults, the revision of the recipe, the content of the corpus and the schema
version. Names of corpora, paths, hosts and everything in ``Execution`` stay out. Limits: options of
a recipe count as given, so :mod:`harness.resolve` removes those that equal the recipe's defaults.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from typing import Any

from harness.config import SCHEMA_VERSION, ModelConfig, RunConfig, Strict, label_of, short

ID_DIGITS = 12
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def run_id(
    config: RunConfig,
    recipe_revision: int,
    corpus_sha256: str,
    *,
    memo: dict[int, str] | None = None,
) -> str:
    """Identity of a run: the first 12 hex digits of SHA-256 over :func:`canonical_json`.

    Parameters
    ----------
    config
        The run, its options normalised.
    recipe_revision
        ``Residual.revision`` of the recipe, so that a change of meaning never reuses old runs.
    corpus_sha256
        Content of the corpus (``CorpusInfo.sha256``).
    memo
        Canonical text of sections by ``id``, for callers whose runs share sections.
    """
    text = canonical_json(config, recipe_revision, corpus_sha256, memo=memo)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:ID_DIGITS]


def canonical_json(
    config: RunConfig,
    recipe_revision: int,
    corpus_sha256: str,
    *,
    memo: dict[int, str] | None = None,
) -> str:
    """Canonical JSON of what can change the loss of a run.

    Keys sorted, no spaces, ASCII, floats in their shortest form that reads back exactly, no
    negative zero; fields that equal their default, and the name of the corpus, left out. Values
    have passed the schema, so that ``1`` and ``1.0`` for a float are one value. A derived default
    that is spelled out (``n_kv_heads``, ``d_ff``) counts as the default. Parameters as
    :func:`run_id`.
    """
    known = {} if memo is None else memo
    science = []
    for name, info in sorted(type(config).model_fields.items()):
        value = getattr(config, name)
        if not info.is_required() and value == info.get_default(call_default_factory=True):
            continue
        if isinstance(value, Strict):
            if id(value) not in known:
                known[id(value)] = _section_json(value)
            science.append(f'"{name}":{known[id(value)]}')
        else:
            science.append(f'"{name}":{_encode(value)}')
    return (
        f'{{"corpus":{_encode(corpus_sha256)},"recipe_revision":{recipe_revision},'
        f'"schema":{SCHEMA_VERSION},"science":{{{",".join(science)}}}}}'
    )


def _section_json(section: Strict) -> str:
    fields = section.model_dump(mode="json", exclude_defaults=True)
    fields.pop("corpus", None)
    if isinstance(section, ModelConfig):
        if section.n_kv_heads == section.n_heads:
            del fields["n_kv_heads"]
        if section.d_ff == section.model_copy(update={"d_ff": None}).ffn_width:
            del fields["d_ff"]
    text = _encode(fields)
    return _encode(_without_negative_zero(fields)) if "-0.0" in text else text


def arm_label(config: RunConfig, searched: Collection[str] = ()) -> str:
    """Label of the recipe setting: ``full``, or ``block(block_size=4)``.

    Options that are searched, such as ``residual.block_size``, stand in no label: their values
    change with tuning.
    """
    options = config.residual.options
    kept = {name: options[name] for name in options if f"residual.{name}" not in searched}
    return label_of(config.residual.name, kept)


def cell_label(
    config: RunConfig, varying: Collection[str] = (), searched: Collection[str] = ()
) -> str:
    """Label of everything but the seed: arm, shape, budget, and what else the sweep varies.

    Parameters
    ----------
    config
        The run.
    varying
        Dotted paths of further fields that differ between runs of the sweep, such as ``train.lr``.
    searched
        As for :func:`arm_label`.
    """
    budget = config.train.budget
    parts = [
        arm_label(config, searched),
        f"n_layers={config.model.n_layers}",
        f"d_model={config.model.d_model}",
        f"{budget.kind}={short(budget.value)}",
    ]
    for path in sorted(varying):
        section, _, name = path.partition(".")
        value = config.data.label if name == "task" else getattr(getattr(config, section), name)
        parts.append(f"{name}={short(value)}")
    return ", ".join(parts)


def _without_negative_zero(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_negative_zero(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_negative_zero(item) for item in value]
    return value + 0.0 if isinstance(value, float) else value
