"""`isoloss generate`, and what it loads: a run's model, from its folder."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from harness.cli import main
from harness.config import RunConfig
from harness.decoding import Decoder
from harness.decoding.text import TextStream, encode_prompt
from harness.errors import CheckpointError, DataError, IsolossError
from harness.loading import load_model
from harness.model import Transformer
from harness.module import token_loss
from harness.paths import SweepPaths
from harness.records import PlannedRun, read_record
from harness.source import open_source
from harness.tokenization import BpeTokenizer, ByteTokenizer
from harness.trunks import states
from tests.conftest import plan_run, run_folder
from tests.harness.sweep_folders import write_sweep
from tests.harness.test_training import QUICK, train_once

RUN = plan_run("multi_stream", seq_len=32)
OTHER = plan_run("standard")
TASK = {"task": "s3_words", "options": {"length": 16}, "seq_len": 16}
PROMPT = "Fellow citizens of the "


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> SweepPaths:
    """A sweep of two runs; one was trained, and left its newest two checkpoints."""
    sweep = write_sweep(tmp_path_factory.mktemp("made") / "results", [RUN, OTHER])
    execution = QUICK.model_copy(update={"checkpoint_every_s": 1e-9})
    assert train_once(RUN, run_folder(sweep, RUN), execution) is not None
    return sweep


@pytest.fixture
def copy(trained: SweepPaths, tmp_path: Path) -> SweepPaths:
    """A copy of that sweep, to be damaged."""
    shutil.copytree(trained.root, tmp_path / "results" / trained.root.name)
    return SweepPaths(tmp_path / "results" / trained.root.name)


class Said:
    """What one call of the command line gave."""

    def __init__(self, code: object, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], trained: SweepPaths
) -> object:
    """Run `isoloss generate` in this process."""

    def generate(*arguments: str, sweep: SweepPaths = trained) -> Said:
        monkeypatch.chdir(sweep.root.parent.parent)
        monkeypatch.setattr(sys, "argv", ["isoloss", "generate", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return Said(ended.value.code, *capsys.readouterr())

    return generate


Call = Callable[..., Said]


def name_of(run: PlannedRun) -> str:
    return f"depth/{run.run_id[:6]}"


def asked(call: Call, *arguments: str) -> dict[str, Any]:
    said = call(name_of(RUN), "--json", *arguments)
    assert said.code == 0, said.err
    answer: dict[str, Any] = json.loads(said.out)
    return answer


def newest(sweep: SweepPaths, run: PlannedRun = RUN) -> tuple[Path, Path]:
    """The newest checkpoint and the one before it."""
    (_, first), (_, second) = states(sweep.run(run.run_id).checkpoints)
    return first, second


def greedy(checkpoint: Path, prompt: str, n: int) -> list[int]:
    """The likeliest continuation by the weights of a checkpoint, with no cache."""
    config = RunConfig.model_validate(RUN.config)
    model = Transformer(config.model, config.residual, 256, seed=99)
    weights = torch.load(checkpoint, weights_only=True)["state_dict"]
    model.load_state_dict({name.removeprefix("model."): w for name, w in weights.items()})
    ids = list(prompt.encode())
    for _ in range(n):
        ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    return ids[len(prompt) :]


def saying(monkeypatch: pytest.MonkeyPatch, text: bytes, then: BaseException | None = None) -> None:
    """Have every model say this, token by token, and then fail."""
    left = list(text)

    def last(decoder: Decoder, tokens: Tensor) -> Tensor:
        if not left and then is not None:
            raise then
        return torch.nn.functional.one_hot(torch.tensor([left.pop(0)]), 256).float()

    monkeypatch.setattr(Decoder, "last", last)


def test_the_answer_is_the_models_own_continuation(call: Call, trained: SweepPaths) -> None:
    final, before = newest(trained)
    answer = asked(call, "--prompt", PROMPT, "--max-tokens", "20")
    assert answer["tokens"] == greedy(final, PROMPT, 20)
    assert answer["text"] == bytes(answer["tokens"]).decode("utf-8", "replace")
    assert (answer["run_id"], answer["step"]) == (RUN.run_id, 12)
    assert answer["prompt"] == PROMPT
    assert answer["ended_by"] == "max_tokens"
    earlier = asked(call, "--prompt", PROMPT, "--max-tokens", "20", "--step", "11")
    assert earlier["step"] == 11
    assert earlier["tokens"] == greedy(before, PROMPT, 20)


def test_plain_output_is_the_new_text_and_nothing_else(call: Call, trained: SweepPaths) -> None:
    folder = str(trained.run(RUN.run_id).root)
    arguments = ("--prompt", PROMPT, "--max-tokens", "30")
    said = call(folder, *arguments)
    assert said.out == asked(call, *arguments)["text"] + "\n"
    note = f"{len(PROMPT) + 29} tokens with the prompt, and the run was trained on 32"
    assert note in said.err
    assert f"run {RUN.run_id}, step 12" in said.err
    assert "trained on" not in call(folder, "--prompt", PROMPT, "--max-tokens", "10").err


def test_a_prompt_may_come_from_a_file_or_from_standard_input(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    direct = asked(call, "--prompt", PROMPT, "--max-tokens", "5")
    file = tmp_path / "prompt.txt"
    file.write_text(PROMPT)
    assert asked(call, "--prompt-file", str(file), "--max-tokens", "5") == direct
    with file.open() as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert asked(call, "--prompt-file", "-", "--max-tokens", "5") == direct


def test_without_a_prompt_a_document_begins(call: Call) -> None:
    assert asked(call, "--max-tokens", "3")["prompt_tokens"] == [ByteTokenizer.separator]
    assert asked(call, "--prompt", "", "--max-tokens", "3")["prompt_tokens"] == [0]


def test_a_seed_draws_the_same_text_again(call: Call) -> None:
    drawn = [
        asked(call, "--temperature", "1.5", "--top-k", "50", "--seed", seed, "--max-tokens", "12")
        for seed in ("1", "1", "2")
    ]
    assert drawn[0] == drawn[1]
    assert drawn[0]["tokens"] != drawn[2]["tokens"]


def test_text_ends_where_the_document_does(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    saying(monkeypatch, b"The end.\0Next")
    answer = asked(call, "--prompt", PROMPT)
    assert (answer["text"], answer["ended_by"]) == ("The end.", "separator")


def test_ctrl_c_leaves_the_text_so_far_and_code_130(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    saying(monkeypatch, b"So far", KeyboardInterrupt())
    said = call(name_of(RUN), "--prompt", PROMPT)
    assert (said.code, said.out) == (130, "So far\n")
    assert "Traceback" not in said.err


def test_no_token_can_command_a_terminal(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"a\x1b[2J\tb\n\0"
    saying(monkeypatch, text)
    assert call(name_of(RUN)).out == "a\x1b[2J\tb\n\n"
    saying(monkeypatch, text)
    monkeypatch.setattr("harness.cli_generate._on_terminal", lambda: True)
    assert call(name_of(RUN)).out == "a\ufffd[2J\tb\n\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("depth",), "Write SWEEP/RUN"),
        (("depth/ffff",), "no run matches 'ffff'"),
        (("nothing/3f2a",), "no such sweep"),
        ((name_of(OTHER),), "no whole checkpoint. Train it with `isoloss run`"),
        ((name_of(RUN), "--step", "3"), "no whole checkpoint of step 3. It has: 12, 11"),
        ((name_of(RUN), "--prompt", "a", "--prompt-file", "b"), "choose one"),
        ((name_of(RUN), "--prompt-file", "nowhere"), "No such file"),
        ((name_of(RUN), "--top-k", "5"), "no effect at temperature 0"),
        ((name_of(RUN), "--temperature", "1", "--top-p", "0"), "top_p must lie above 0"),
        ((name_of(RUN), "--temperature", "-1"), "--temperature"),
        ((name_of(RUN), "--max-tokens", "0"), "--max-tokens"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_ends_in_one_message_and_code_2(
    call: Call, arguments: tuple[str, ...], told: str
) -> None:
    said = call(*arguments)
    assert said.code == 2
    assert told in said.err
    assert said.out == ""
    assert "Traceback" not in said.err


def test_the_loaded_model_has_the_loss_of_the_record(trained: SweepPaths) -> None:
    paths = trained.run(RUN.run_id)
    loaded = load_model(paths, RUN)
    source = open_source(loaded.config)
    windows = [torch.from_numpy(batch).to(torch.int64) for batch in source.validation(32)]
    loss = torch.stack([token_loss(loaded.model, window) for window in windows]).mean().item()
    record = read_record(paths.record)
    assert record is not None
    assert loss == pytest.approx(record.loss_nats, abs=1e-5)
    assert not loaded.model.training
    assert loaded.tokenizer.decode(np.array([104, 105], dtype=np.uint8)) == b"hi"


def test_a_damaged_checkpoint_is_passed_over_and_left_where_it_is(
    copy: SweepPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    final, before = newest(copy)
    whole = final.read_bytes()
    final.write_bytes(whole[: len(whole) // 2])
    files = sorted(copy.root.rglob("*"))
    assert load_model(copy.run(RUN.run_id), RUN).step == 11
    assert f"{final} is damaged" in capsys.readouterr().err
    assert sorted(copy.root.rglob("*")) == files
    with pytest.raises(DataError, match=r"of step 12\. It has: 11"):
        load_model(copy.run(RUN.run_id), RUN, step=12)
    before.write_bytes(b"")
    with pytest.raises(DataError, match="no whole checkpoint"):
        load_model(copy.run(RUN.run_id), RUN)


def test_what_a_run_was_trained_with_must_be_what_is_there(copy: SweepPaths) -> None:
    paths = copy.run(RUN.run_id)
    for field, value, told in (
        ("corpus_sha256", "1" * 64, r"corpus 'sotu' has changed"),
        ("recipe_revision", 7, r"revision 7 of the recipe 'multi_stream'"),
        ("config", {**RUN.config, "data": TASK}, r"task s3_words\(length=16\), so it"),
    ):
        with pytest.raises(DataError, match=told):
            load_model(paths, RUN.model_copy(update={field: value}))
    shutil.copytree(paths.checkpoints, run_folder(copy, OTHER).checkpoints)
    with pytest.raises(CheckpointError, match=f"written by run {RUN.run_id}"):
        load_model(copy.run(OTHER.run_id), OTHER)


def test_characters_are_told_whole_in_every_tokenizer() -> None:
    text = "naïve 日本 🙂 e\u0301"
    bpe = BpeTokenizer.train([text.encode() * 4, b"and plain words, plain words"], 262)
    for tokenizer in (ByteTokenizer(), bpe):
        stream = TextStream(tokenizer)
        pieces = [stream.add(token) for token in encode_prompt(tokenizer, text.encode())]
        assert "".join(pieces) == text
        assert "\ufffd" not in pieces
        assert len(pieces) > len(text)
        assert stream.end() == ""
    torn = TextStream(ByteTokenizer())
    assert [torn.add(token) for token in (*b"a\xff", 0xE6)] == ["a", "\ufffd", ""]
    assert torn.end() == "\ufffd"
    assert encode_prompt(ByteTokenizer(), b"\xff") == [255]
    with pytest.raises(IsolossError, match=r"not UTF-8: byte 0xff at 2"):
        encode_prompt(bpe, b"ab\xff")
