"""Malformed grids: each mistake is told once, with file, line, dotted path, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import GridError
from harness.grid import load_grid
from tests.harness.grid_texts import BASE, describe, load


def _base(old: str, new: str) -> str:
    assert old in BASE
    return BASE.replace(old, new)


_MODEL = "d_model: 64"
_FLOPS = "flops: 1e13"
# One mistake each: text, line, dotted path, what the message must say.
ONE_MISTAKE: dict[str, tuple[str, int, str, str]] = {
    "no mapping": ("[1, 2]\n", 1, "(top level)", "must be a mapping with the keys sweep and base"),
    "a scalar": ("hello\n", 1, "(top level)", "must be a mapping"),
    "empty file": ("", 1, "(top level)", "the file is empty"),
    "tab": (_base("  residual", "\tresidual"), 3, "base", "spaces only"),
    "duplicate key": (
        BASE + "seeds: [0]\nseeds: [1]\n", 7, "seeds", "given twice, first on line 6"
    ),
    "cyclic alias": (BASE + "axes: &a\n  train.lr: *a\n", 7, "axes.train.lr", "holds itself"),
    "custom tag": (BASE + "seeds: !range [0, 4]\n", 6, "seeds", "tag !range is unknown"),
    "merge key": (BASE + "<<: {seeds: [1]}\n", 6, "<<", "not part of YAML 1.2"),
    "sweep missing": (_base("sweep: example\n", "# x\n"), 2, "sweep", "required and not set"),
    "sweep empty": (_base("example", "''"), 1, "sweep", "must be 1 to 100 letters"),
    "sweep a number": (_base("example", "12"), 1, "sweep", "got 12"),
    "sweep with slash": (_base("example", "../up"), 1, "sweep", "names a folder; got '../up'"),
    "sweep reserved": (_base("example", "published"), 1, "sweep", "Rename the sweep"),
    "base missing": ("sweep: x\naxes: {train.lr: [1e-3]}\n", 1, "base", "one complete run. Add"),
    "base empty": (
        "sweep: x\nbase: {}\n", 2, "base", "model.n_layers, model.d_model, train.budget"
    ),
    "base a list": ("sweep: x\nbase: [1]\n", 2, "base", "must be a mapping of fields, got [1]"),
    "required field": (_base(", " + _MODEL, ""), 2, "base", "model.d_model: required and not set"),
    "top-level typo": (BASE + "axis: {}\n", 6, "axis", "did you mean 'axes'?"),
    "field at top level": (BASE + "lr: 1\n", 6, "lr", "write train.lr under base"),
    "section at top level": (BASE + "train: {}\n", 6, "train", "write it under base"),
    "seed for seeds": (BASE + "seed: 1\n", 6, "seed", "write seeds: [0, 1]"),
    "tune": (BASE + "tune: {trials: 9}\n", 6, "tune.search", "is required"),
    "slurm": (BASE + "slurm: {tiem: 12:00:00}\n", 6, "slurm.tiem", "did you mean 'time'?"),
    "unknown section": (
        _base("  train", "  optim: {}\n  train"), 5, "base.optim", "Known: residual"
    ),
    "unknown field": (_base(_MODEL, "d_modle: 64"), 4, "base.model.d_modle", "'model.d_model'?"),
    "field of another section": (
        _base(_MODEL, "d_model: 64, seq_len: 9"), 4, "base.model.seq_len", "write data.seq_len"
    ),
    "depth": (BASE + "axes: {depth: [2, 4]}\n", 6, "axes.depth", "write model.n_layers"),
    "layer": (BASE + "include: [{layer: 2}]\n", 6, "include[0].layer", "write model.n_layers"),
    "width": (BASE + "axes: {model.width: [8]}\n", 6, "axes.model.width", "write model.d_model"),
    "n_heads": (
        _base(_MODEL, "d_model: 64, n_heads: 2"), 4, "base.model.n_heads", "model.head_dim"
    ),
    "bare block_size": (
        BASE + "axes: {block_size: [2]}\n", 6, "axes.block_size", "write residual.block_size"
    ),
    "batch_size": (BASE + "axes: {batch_size: [2]}\n", 6, "axes.batch_size", "train.batch_tokens"),
    "text for a number": (_base(_MODEL, "d_model: wide"), 4, "base.model.d_model", "an integer"),
    "quoted number": (_base(_FLOPS, "flops: '1e13'"), 5, "base.train.budget.flops", "Write 1e13"),
    "base-60 number": (
        _base("}}", "}, lr: 12:00:00}"), 5, "base.train.lr", "no base-60 numbers"
    ),
    "underscored number": (_base(_MODEL, "d_model: 1_024"), 4, "base.model.d_model", "Write 1024"),
    "float for an integer": (_base(_MODEL, "d_model: 64.0"), 4, "base.model.d_model", "Write 64."),
    "boolean for an integer": (_base(_MODEL, "d_model: true"), 4, "base.model.d_model", "boolean"),
    "integer for a boolean": (
        _base(_MODEL, "d_model: 64, qk_norm: 1"), 4, "base.model.qk_norm", "true or false"
    ),
    "yes for true": (
        _base(_MODEL, "d_model: 64, tied_head: yes"), 4, "base.model.tied_head", "spells booleans"
    ),
    "negative": (_base(_MODEL, "d_model: -64"), 4, "base.model.d_model", "greater than 0, got -64"),
    "zero": (BASE + "axes: {model.n_layers: [2, 0]}\n", 6, "axes.model.n_layers[1]", "than 0"),
    "not a number": (BASE + "axes: {train.lr: [.nan]}\n", 6, "axes.train.lr[0]", "finite number"),
    "infinite": (_base("1e13", ".inf"), 5, "base.train.budget.flops", "finite number, got inf"),
    "overflowing": (_base("1e13", "1e999"), 5, "base.train.budget.flops", "finite number"),
    "null": (BASE + "axes: {train.lr: [1e-3, ~]}\n", 6, "axes.train.lr[1]", "got nothing"),
    "fraction above one": (
        BASE + "axes: {train.beta2: [0.95, 1.5]}\n", 6, "axes.train.beta2[1]", "must be less than 1"
    ),
    "unknown choice": (
        BASE + "axes: {train.optimizer: [adam]}\n", 6, "axes.train.optimizer[0]", "Did you mean 'ad"
    ),
    "number for text": (BASE + "axes: {data.corpus: [5]}\n", 6, "axes.data.corpus[0]", "in quotes"),
    "both budgets": (
        _base(_FLOPS, "flops: 1e13, tokens: 9"), 5, "base.train.budget", "exactly one of flops"
    ),
    "no budget": (_base(_FLOPS, ""), 5, "base.train.budget", "got none"),
    "budget a number": (_base("{flops: 1e13}", "1e13"), 5, "base.train.budget", "be a mapping"),
    "budget typo": (
        _base(_FLOPS, "flop: 1e13"), 5, "base.train.budget.flop", "did you mean 'flops'"
    ),
    "head_dim odd": (
        _base(_MODEL, "d_model: 64, head_dim: 33") + "axes: {model.d_model: [64, 128, 256]}\n",
        4, "base.model.head_dim", "head_dim must be even and divide d_model",
    ),
    "head_dim not dividing": (
        BASE + "axes: {model.d_model: [64, 100, 128], train.lr: [1e-3, 2e-3]}\n",
        6, "axes.model.d_model[1]", "got head_dim 32 and d_model 100",
    ),
    "kv heads": (
        _base(_MODEL, "d_model: 96, n_kv_heads: 2"),
        4, "base.model.n_kv_heads", "must divide n_heads"
    ),
    "batch no multiple": (
        BASE + "axes: {data.seq_len: [128, 100], train.lr: [1e-3, 2e-3]}\n",
        6, "axes.data.seq_len[1]", "Write 8100 or 8200 tokens",
    ),
    "evaluation too large": (
        _base("}}", "}, eval_tokens: 1048576}"), 5, "base.train.eval_tokens", "at most 599808"
    ),
    "schedule": (
        BASE + "axes: {train.warmup_frac: [0.05, 0.8]}\n",
        6, "axes.train.warmup_frac[1]", "warmup_frac + decay_frac must not exceed 1",
    ),
    "unknown recipe": (
        BASE + "axes: {residual: [standard, blok]}\n",
        6, "axes.residual[1]", "did you mean 'block'?"
    ),
    "absent class": (_base("standard", "no.such:Class"), 3, "base.residual", "cannot be imported"),
    "recipe a number": (_base("standard", "7"), 3, "base.residual", "must be the name of a recipe"),
    "recipe without name": (_base("standard", "{block_size: 4}"), 3, "base.residual", "{name: …,"),
    "unknown option": (
        _base("standard", "{name: block, blok_size: 4}"),
        3, "base.residual.blok_size", "'block_size'?"
    ),
    "option of no recipe here": (
        BASE + "axes: {residual.block_size: [2, 4, 8]}\n",
        6, "axes.residual.block_size", "unknown option 'block_size' of standard",
    ),
    "ill-typed option": (
        _base("standard", "{name: block, block_size: four}"),
        3, "base.residual.block_size", "integer"
    ),
    "impossible block size": (
        BASE + "axes: {residual: [standard, {name: block, block_size: 300}], train.lr: [1, 2]}\n",
        6, "axes.residual[1].block_size", "block_size must not exceed the model's 8 sublayers",
    ),
    "two divisions": (
        _base("standard", "{name: block, block_size: 2, n_blocks: 2}"),
        3, "base.residual.block_size",
        "n_blocks",
    ),
    "absent corpus": (
        BASE + "axes: {data.corpus: [sotuu]}\n", 6, "axes.data.corpus[0]", "did you mean 'sotu'?"
    ),
    "axes a list": (BASE + "axes: [train.lr]\n", 6, "axes", "mapping of fields to lists"),
    "axis a scalar": (
        BASE + "axes: {train.lr: 1e-3}\n", 6, "axes.train.lr", "Write train.lr: [0.001]"
    ),
    "axis nested": (BASE + "axes: {model: {d_ff: [8]}}\n", 6, "axes.model", "model.d_ff: […]"),
    "axis empty": (BASE + "axes: {train.lr: []}\n", 6, "axes.train.lr", "has no values"),
    "axis null": (BASE + "axes: {train.lr: }\n", 6, "axes.train.lr", "Give at least one value"),
    "axis no field": (
        BASE + "axes: {train.dropout: [0, 1, 2]}\n", 6, "axes.train.dropout", "remove it"
    ),
    "axis of seeds": (BASE + "axes: {seed: [0, 1]}\n", 6, "axes.seed", "write seeds: [0, 1]"),
    "axis twice": (
        BASE + "axes:\n  model.n_layers: [2, 4]\nzip:\n  - {model.n_layers: [2, 4]}\n",
        9, "zip[0].model.n_layers", "already varied by axes.model.n_layers (line 7)",
    ),
    "two budgets varied": (
        BASE + "axes: {train.budget.flops: [1e12], train.budget.tokens: [9]}\n",
        6, "axes.train.budget.tokens", "already varied by axes.train.budget.flops",
    ),
    "zip a mapping": (BASE + "zip: {train.lr: [1, 2]}\n", 6, "zip", "Start with '- '"),
    "zip unequal": (
        BASE + "zip:\n  - {train.lr: [1, 2], train.beta1: [0.9]}\n",
        7, "zip[0]", "lr 2, train.beta1 1"
    ),
    "zip empty": (BASE + "zip: [{}]\n", 6, "zip[0]", "lists of equal length"),
    "when without if": (BASE + "when: [{axes: {train.lr: [1]}}]\n", 6, "when[0]", "must be {if:"),
    "when unknown recipe": (
        BASE + "when: [{if: {residual: ful}, axes: {train.lr: [1]}}]\n",
        6, "when[0].if.residual", "did you mean 'full'?",
    ),
    "when varied already": (
        BASE + "axes: {train.lr: [1, 2]}\n"
        "when: [{if: {residual: standard}, axes: {train.lr: [3]}}]\n",
        7, "when[0].axes.train.lr", "already varied by axes.train.lr (line 6)",
    ),
    "when on seeds": (
        BASE + "when: [{if: {seed: 0}, axes: {train.lr: [3]}}]\n",
        6, "when[0].if.seed", "Remove seed"
    ),
    "exclude unknown": (BASE + "exclude: [{model.lr: 3}]\n", 6, "exclude[0].model.lr", "train.lr"),
    "exclude ill-typed": (
        BASE + "exclude: [{model.n_layers: '4'}]\n", 6, "exclude[0].model.n_layers", "Write 4"
    ),
    "exclude option": (
        BASE + "exclude: [{residual.rank: 4}]\n",
        6, "exclude[0].residual.rank", "this sweep's recipes"
    ),
    "exclude nothing": (BASE + "exclude: [{}]\n", 6, "exclude[0]", "must be a mapping of fields"),
    "exclude everything": (
        BASE + "exclude: [{residual: standard}]\n", 6, "exclude", "no run is left"
    ),
    "include no mapping": (
        BASE + "include: [full]\n", 6, "include[0]", "must be a mapping of fields"
    ),
    "seeds a number": (BASE + "seeds: 3\n", 6, "seeds", "must be a list of integers"),
    "seeds empty": (BASE + "seeds: []\n", 6, "seeds", "must be a list of integers"),
    "seeds twice": (BASE + "seeds: [0, 1, 0]\n", 6, "seeds[2]", "is given twice"),
    "seeds negative": (BASE + "seeds: [0, -1]\n", 6, "seeds[1]", "must be an integer in 0.."),
    "seeds boolean": (BASE + "seeds: [true]\n", 6, "seeds[0]", "got true (a boolean)"),
    "limit exceeded": (BASE + "seeds: [0, 1]\nlimits: {runs: 1}\n", 7, "limits.runs", "has 2 runs"),
    "limit zero": (BASE + "limits: {gpu_hours: 0}\n", 6, "limits.gpu_hours", "greater than 0"),
    "limit unknown": (BASE + "limits: {disk: 3}\n", 6, "limits.disk", "Known: runs, gpu_hours"),
    "product too large": (
        BASE + "axes:\n" + "".join(
            f"  train.{name}: [{', '.join(str(i / 100) for i in range(1, 90))}]\n"
            for name in ("lr", "beta1", "beta2")
        ), 6, "axes", "is 704969 runs, more than 200000",
    ),
    "execution": (BASE + "execution: {threads: two}\n", 6, "execution.threads", "be an integer"),
    "execution time": (
        BASE + "execution: {checkpoint_every_s: 2:00}\n",
        6, "execution.checkpoint_every_s", "no base-60 numbers",
    ),
    "mlflow": (BASE + "mlflow: {mode: on}\n", 6, "mlflow.mode", "one of 'direct', 'sync', 'off'"),
    "baseline absent": (
        BASE + "analysis: {baseline: full}\n", 6, "analysis.baseline", "one of: standard"
    ),
    "baseline ambiguous": (
        BASE + "axes: {residual: [{name: block, block_size: 2}, {name: block, block_size: 4}]}\n"
        "analysis: {baseline: block}\n",
        7, "analysis.baseline", "names several arms",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE_MISTAKE)
def test_one_mistake_gives_one_message_with_its_place_and_the_way_out(
    name: str, tmp_path: Path
) -> None:
    text, line, path, fragment = ONE_MISTAKE[name]
    with pytest.raises(GridError) as caught:
        load(tmp_path, text)
    (problem,) = caught.value.problems
    assert problem.startswith(f"{tmp_path / 'grid.yaml'}:{line}: {path}: ")
    assert fragment in problem
    assert "Traceback" not in problem


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = (
        "sweep: a/b\nbase:\n  residual: blok\n  model: {n_layers: 0, d_model: x}\n"
        "  train: {budget: {}, lr: -1}\naxes: {depth: [1], data.seq_len: []}\nseeds: [0, 0]\n"
    )
    with pytest.raises(GridError) as caught:
        load(tmp_path, text)
    lines = [int(problem.split("grid.yaml:")[1].split(":")[0]) for problem in caught.value.problems]
    assert lines == [1, 3, 4, 4, 5, 5, 6, 6, 7]


def test_one_mistake_in_a_thousand_runs_is_told_once(tmp_path: Path) -> None:
    lrs = ", ".join(f"{i}e-4" for i in range(1, 101))
    text = (
        f"{_base(_MODEL, 'd_model: 65')}axes: {{train.lr: [{lrs}], residual: [standard, full]}}\n"
    )
    with pytest.raises(GridError) as caught:
        load(tmp_path, text + "seeds: [0, 1, 2, 3, 4]\n")
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize(
    ("name", "raw", "fragment"),
    [
        ("absent.yaml", None, "no such file"),
        ("binary.yaml", b"\x7fELF\x02\x01\x01\x00\xff\xfe", "not UTF-8 text"),
        ("nul.yaml", b"sweep: x\x00\n", "binary"),
        ("latin.yaml", "sweep: é\n".encode("latin-1"), "Save the grid as UTF-8"),
    ],
)
def test_a_file_that_is_no_grid_gives_one_message(
    tmp_path: Path, name: str, raw: bytes | None, fragment: str
) -> None:
    path = tmp_path / name
    if raw is not None:
        path.write_bytes(raw)
    with pytest.raises(GridError) as caught:
        load_grid(path, describe=describe)
    (problem,) = caught.value.problems
    assert problem.startswith(str(path))
    assert fragment in problem


def test_a_folder_in_place_of_a_file_gives_one_message(tmp_path: Path) -> None:
    with pytest.raises(GridError, match="is a folder"):
        load_grid(tmp_path, describe=describe)


@pytest.mark.parametrize(
    ("override", "path", "fragment"),
    [
        ("train.lr", "train.lr", "write --set key=value"),
        ("train.lr=fast", "train.lr", "must be a number"),
        ("train.lr=[1", "train.lr", "never closed"),
        ("train.rl=1", "train.rl", "did you mean 'train.lr'?"),
        ("limits.runs=x", "limits.runs", "must be an integer"),
        ("residual=full", "residual", "would change nothing: axes.residual"),
    ],
)
def test_a_bad_override_is_told_by_its_own_text(
    tmp_path: Path, override: str, path: str, fragment: str
) -> None:
    with pytest.raises(GridError) as caught:
        load(tmp_path, BASE + "axes: {residual: [standard, full]}\n", [override])
    (problem,) = caught.value.problems
    assert problem.startswith(f"--set {override}: {path}: ")
    assert fragment in problem
