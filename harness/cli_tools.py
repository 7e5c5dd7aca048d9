"""Commands beside a sweep: recipes, corpora, the editor schema, the environment."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

Results = Annotated[Path, typer.Option("--results", help="Folder of all sweeps.")]
RESULTS = Path("results")


def register(app: typer.Typer) -> None:
    """Add the commands of this file to the command line."""
    for command in (recipes, tasks, prepare, schema, doctor, new_recipe):
        app.command(command.__name__.replace("_", "-"))(command)


def console() -> Console:
    """Standard output; wide enough for a whole row where it is a file or a pipe."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=160)


def recipes(
    name: Annotated[str | None, typer.Argument(help="One recipe, in full.")] = None,
    n_layers: Annotated[int, typer.Option(min=1, help="Depth at which to state the cost.")] = 12,
    d_model: Annotated[int, typer.Option(min=1, help="Width at which to state the cost.")] = 768,
) -> None:
    """List the residual variants with equation, options and cost.

    Example: isoloss recipes block --n-layers 24 --d-model 1024
    """
    from harness.show import recipe_page, recipe_table

    shown = (
        recipe_table(n_layers, d_model) if name is None else recipe_page(name, n_layers, d_model)
    )
    screen = console()
    for part in shown:
        screen.print(part, markup=False, highlight=False)


def tasks(
    name: Annotated[str | None, typer.Argument(help="One task, in full.")] = None,
) -> None:
    """List the depth probes that a grid may name as data.task, with their options.

    Example: isoloss tasks s3_words
    """
    from harness.show_tasks import task_page, task_table

    screen = console()
    for part in task_table() if name is None else task_page(name):
        screen.print(part, markup=False, highlight=False)


def prepare(
    inputs: Annotated[
        list[Path], typer.Argument(help=".txt, .jsonl(.gz|.zst), .parquet, or a folder of them.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write.")],
    tokenizer: Annotated[
        str, typer.Option(help="byte, bpe (trained on the corpus), or tiktoken:NAME.")
    ] = "byte",
    vocab_size: Annotated[int, typer.Option(help="Vocabulary of bpe.")] = 2048,
    val_fraction: Annotated[float, typer.Option(help="Share of documents held out.")] = 0.1,
    text_key: Annotated[str, typer.Option(help="Field of the text in jsonl and parquet.")] = "text",
) -> None:
    """Turn text into a token file that a grid can name as `data.corpus`.

    Example: isoloss prepare books/ -o corpora/books --tokenizer bpe --vocab-size 4096
    """
    from harness.config import TrainConfig
    from harness.prepare import prepare as prepare_corpus
    from harness.show import PrepareProgress

    with PrepareProgress(console()) as progress:
        info = prepare_corpus(
            inputs,
            output,
            tokenizer=tokenizer,
            vocab_size=vocab_size,
            val_fraction=val_fraction,
            text_key=text_key,
            on_progress=progress.update,
        )
    print(
        f"{output}: {info.n_train_tokens:,} training and {info.n_val_tokens:,} validation tokens, "
        f"vocabulary {info.vocab_size}, {info.val_bytes_per_token:.3f} bytes per token, "
        f"unigram entropy {info.unigram_entropy_nats:.4f} nats"
    )
    print(f"Use it in a grid: data: {{corpus: {output}}}")
    if info.n_val_tokens < TrainConfig.model_fields["eval_tokens"].default:
        fitting = info.n_val_tokens // 1024 * 1024 or 256
        print(f"and, as it is small: train: {{eval_tokens: {fitting}}}")


def schema() -> None:
    """Print the JSON Schema of grid files, for editors.

    Example: isoloss schema > grid.schema.json
    """
    from harness.schema import grid_schema

    print(json.dumps(grid_schema(), indent=2))


def doctor(
    results: Results = RESULTS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False,
) -> None:
    """Check the environment: packages, device, folders, disk, clock, Slurm, MLflow; say what to do.

    Example: isoloss doctor
    """
    from harness.doctor import examine

    findings = examine(results)
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        print("\n".join(map(str, findings)))
    raise typer.Exit(1 if any(finding.level == "FAIL" for finding in findings) else 0)


def new_recipe(
    name: Annotated[str, typer.Argument(help="Name of the variant, in snake_case.")],
    package: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write an installable package there, not this checkout."),
    ] = None,
) -> None:
    """Write a new recipe and its test, which pass the contract suite as they stand; then edit.

    Example: isoloss new-recipe my_residual
    """
    from harness.scaffold import write_in_checkout, write_package

    made = write_in_checkout(name) if package is None else write_package(name, package)
    width = max(len(str(path)) for path in made.files)
    for path, purpose in made.files.items():
        print(f"{path!s:{width}}  {purpose}")
    print("Next:")
    for number, step in enumerate(made.next_steps, start=1):
        print(f"  {number}. {step}")
