"""The command `generate`: continues a prompt with the model of a run."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli_common import RESULTS, AsJson, NamedRun, Results, find_named_run
from harness.errors import DataError, IsolossError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.decoding import Sampling
    from harness.loading import LoadedModel

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Characters that would act on a terminal; all but tab and newline."""

Prompt = Annotated[
    str | None,
    typer.Option("--prompt", help="Text to continue; default: the start of a document."),
]
PromptFile = Annotated[
    str | None,
    typer.Option("--prompt-file", help="File of the text to continue; - for standard input."),
]
MaxTokens = Annotated[
    int,
    typer.Option(
        "--max-tokens",
        min=1,
        help="Most tokens to add. Past the data.seq_len that the run was trained on, prompt "
        "included, text gets worse: rotary positions extrapolate badly.",
    ),
]
Temperature = Annotated[
    float, typer.Option(min=0, help="Divides the logits; 0: always the likeliest token.")
]
TopK = Annotated[int | None, typer.Option(min=1, help="Draw from so many of the likeliest tokens.")]
TopP = Annotated[
    float | None,
    typer.Option(min=0, max=1, help="Draw from the likeliest tokens that hold this probability."),
]
Step = Annotated[
    int | None, typer.Option(min=1, help="Checkpoint of this step; default: the newest.")
]


def generate(
    run: NamedRun,
    prompt: Prompt = None,
    prompt_file: PromptFile = None,
    max_tokens: MaxTokens = 128,
    temperature: Temperature = 0.0,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
    step: Step = None,
    threads: Annotated[
        int, typer.Option(min=1, help="CPU threads; small models are fastest with one.")
    ] = 1,
    results: Results = RESULTS,
    as_json: AsJson = False,
) -> None:
    """Continue a prompt with the model of a run, token by token; only the new text is printed.

    Always takes the likeliest token unless a temperature is given. Ends where the model ends the
    document, or after --max-tokens. Which model it was goes to standard error.

    Example: isoloss generate quickstart/3f2a --prompt "Fellow citizens" --temperature 0.8
    """
    paths, planned = find_named_run(run, results)
    text = _prompt(prompt, prompt_file)
    sampling = _sampling(temperature, top_k, top_p, seed)
    import torch

    from harness.loading import load_model

    torch.set_num_threads(threads)
    loaded = load_model(paths.run(planned.run_id), planned, step)
    print(f"# {planned.cell}, run {planned.run_id}, step {loaded.step}", file=sys.stderr)
    answer = _Answer(loaded, text, sampling, max_tokens)
    if not as_json:
        _print_live(answer)
        return
    said = "".join(answer.pieces())
    about = {"sweep": paths.root.name, "run_id": planned.run_id, "step": loaded.step}
    print(json.dumps(about | answer.facts(said), indent=2, ensure_ascii=False))


def _prompt(given: str | None, file: str | None) -> bytes:
    if given is not None and file is not None:
        raise IsolossError("--prompt and --prompt-file: choose one")
    if file is None:
        return (given or "").encode("utf-8", "surrogateescape")
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise DataError(f"--prompt-file {file}: {error.strerror}") from error


def _sampling(temperature: float, top_k: int | None, top_p: float | None, seed: int) -> Sampling:
    from harness.decoding import Sampling

    try:
        return Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    except ValueError as error:
        raise IsolossError(f"generate: {error}") from error


class _Answer:
    """One continuation, while it is made and after."""

    def __init__(
        self, loaded: LoadedModel, prompt: bytes, sampling: Sampling, max_tokens: int
    ) -> None:
        from harness.decoding.text import encode_prompt

        self.loaded, self.prompt, self.sampling = loaded, prompt, sampling
        self.max_tokens = max_tokens
        self.ids = encode_prompt(loaded.tokenizer, prompt)
        self.tokens: list[int] = []
        self.ended_by = "max_tokens"
        reach, seq_len = len(self.ids) + max_tokens - 1, loaded.config.data.seq_len
        if reach > seq_len:
            print(
                f"note: {reach} tokens with the prompt, and the run was trained on {seq_len}; "
                "beyond those the text gets worse",
                file=sys.stderr,
            )

    def pieces(self) -> Iterator[str]:
        """Yield the text as it is made, without the separator that ends it."""
        from harness.decoding import stream
        from harness.decoding.text import TextStream

        tokenizer = self.loaded.tokenizer
        text = TextStream(tokenizer)
        drawn = stream(
            self.loaded.model, [self.ids], max_tokens=self.max_tokens, sampling=self.sampling
        )
        for _, token in drawn:
            if token == tokenizer.separator:
                self.ended_by = "separator"
                break
            self.tokens.append(token)
            yield text.add(token)
        yield text.end()

    def facts(self, said: str) -> dict[str, Any]:
        """What `--json` tells of it."""
        return {
            "prompt": self.prompt.decode("utf-8", "replace"),
            "prompt_tokens": self.ids,
            "text": said,
            "tokens": self.tokens,
            "ended_by": self.ended_by,
            "temperature": self.sampling.temperature,
            "top_k": self.sampling.top_k,
            "top_p": self.sampling.top_p,
            "seed": self.sampling.seed,
        }


def _print_live(answer: _Answer) -> None:
    terminal = _on_terminal()
    try:
        for piece in answer.pieces():
            shown = CONTROL.sub("\N{REPLACEMENT CHARACTER}", piece) if terminal else piece
            print(shown, end="", flush=True)
    finally:  # after Ctrl-C too
        print()


def _on_terminal() -> bool:
    return sys.stdout.isatty()


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(generate)
