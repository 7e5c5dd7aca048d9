"""Batches: pure functions of (seed, step); the validation set: fixed and exact."""

from __future__ import annotations

import hashlib
import math
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.corpora import CorpusInfo, TokenCorpus
from harness.data import (
    STREAM,
    TokenBatches,
    bits_per_byte,
    validation_batches,
    validation_bytes_per_token,
    validation_starts,
)
from harness.documents import DocumentSpool
from harness.errors import DataError
from harness.token_folder import build_token_folder, open_token_folder
from harness.tokenization import BpeTokenizer, ByteTokenizer, Tokenizer

REPOSITORY = Path(__file__).parents[2]


def counting_corpus(n_train: int, n_val: int = 101) -> TokenCorpus:
    """A corpus whose token i has the value i, so that every window shows where it came from."""
    info = CorpusInfo("counting", "0" * 64, 1 << 20, n_train, n_val, 1.0, 0.0, {})
    return TokenCorpus(
        info=info,
        train=np.arange(n_train, dtype=np.uint32),
        val=np.arange(n_val, dtype=np.uint32),
        token_bytes=np.ones(1 << 20, dtype=np.uint16),
    )


def batches(n_train: int = 5000, seed: int = 3) -> TokenBatches:
    return TokenBatches(counting_corpus(n_train), seq_len=16, batch_tokens=128, seed=seed)


def philox(key: tuple[int, int], counter: tuple[int, int, int, int]) -> list[int]:
    """One block of Philox4x64-10, after Salmon et al., SC 2011, section 4.3, in plain integers."""
    mask = (1 << 64) - 1
    k0, k1 = key
    c0, c1, c2, c3 = counter
    for _ in range(10):
        p0, p1 = 0xD2E7470EE14C6C93 * c0, 0xCA5A826395121157 * c2
        c0, c1, c2, c3 = (p1 >> 64) ^ c1 ^ k0, p1 & mask, (p0 >> 64) ^ c3 ^ k1, p0 & mask
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & mask, (k1 + 0xBB67AE8584CAA73B) & mask
    return [c0, c1, c2, c3]


@given(seed=st.integers(0, 2**64 - 1), step=st.integers(0, 2**40))
def test_starts_are_philox_words_modulo_the_number_of_starts(seed: int, step: int) -> None:
    blocks = [philox((seed, STREAM), (i, step, 0, 0)) for i in (1, 2)]
    expected = [word % (5000 - 16) for block in blocks for word in block]
    assert batches(seed=seed).starts(step).tolist() == expected


def test_a_batch_is_the_same_whatever_was_drawn_before() -> None:
    forwards = [batches().batch(step) for step in range(20)]
    reader = batches()
    backwards = [reader.batch(step) for step in reversed(range(20))][::-1]
    np.testing.assert_array_equal(forwards, backwards)


def test_a_batch_is_the_same_in_another_process() -> None:
    code = """
        import hashlib, sys
        sys.path.insert(0, "tests/harness")
        from test_data import batches
        print(hashlib.sha256(batches().batch(1234).astype("<i8").tobytes()).hexdigest())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    here = hashlib.sha256(batches().batch(1234).astype("<i8").tobytes()).hexdigest()
    assert done.stdout.strip() == here


def test_seeds_and_steps_give_different_batches() -> None:
    starts = [tuple(batches(seed=s).starts(t).tolist()) for s in range(20) for t in range(20)]
    assert len(set(starts)) == 400


@given(n_train=st.integers(17, 300), seed=st.integers(0, 10**6), step=st.integers(0, 10**6))
def test_windows_are_consecutive_tokens_of_the_training_split(
    n_train: int, seed: int, step: int
) -> None:
    batch = batches(n_train, seed).batch(step)
    assert (batch.shape, batch.dtype) == ((8, 17), np.dtype(np.int64))
    np.testing.assert_array_equal(batch - batch[:, :1], np.tile(np.arange(17), (8, 1)))
    assert batch.min() >= 0
    assert batch.max() < n_train


def test_every_start_is_equally_likely() -> None:
    reader = batches(16 + 10)
    counts = np.bincount(
        np.concatenate([reader.starts(step) for step in range(2500)]), minlength=10
    )
    # 20,000 draws over 10 starts: chi-square with 9 degrees of freedom exceeds 27.9 once in 1000;
    # the draw is fixed, so this either always holds or never.
    assert float(((counts - 2000) ** 2 / 2000).sum()) < 27.9


def test_a_corpus_of_exactly_one_window_is_enough_and_one_token_less_is_not() -> None:
    assert batches(17).batch(0)[0].tolist() == list(range(17))
    with pytest.raises(DataError) as caught:
        batches(16)
    assert str(caught.value) == (
        "corpus 'counting' has 16 training tokens, but one window of data.seq_len 16 needs 17."
    )


def test_batch_tokens_must_hold_whole_sequences() -> None:
    with pytest.raises(DataError, match=r"batch_tokens must be a multiple of data\.seq_len 16"):
        TokenBatches(counting_corpus(100), seq_len=16, batch_tokens=24, seed=0)


@given(
    n_val=st.integers(2, 400),
    seq_len=st.integers(1, 20),
    n_windows=st.integers(1, 30),
    batch_seqs=st.integers(1, 9),
)
def test_validation_has_exactly_the_targets_asked_for_and_none_twice(
    n_val: int, seq_len: int, n_windows: int, batch_seqs: int
) -> None:
    corpus, eval_tokens = counting_corpus(100, n_val), seq_len * n_windows
    if eval_tokens > n_val - 1:
        with pytest.raises(DataError, match=f"{n_val - 1} targets"):
            validation_batches(corpus, seq_len=seq_len, eval_tokens=eval_tokens, batch_seqs=1)
        return
    groups = list(
        validation_batches(corpus, seq_len=seq_len, eval_tokens=eval_tokens, batch_seqs=batch_seqs)
    )
    assert all(1 <= len(group) <= batch_seqs for group in groups)
    windows = np.concatenate(groups)
    np.testing.assert_array_equal(
        windows - windows[:, :1], np.tile(np.arange(seq_len + 1), (n_windows, 1))
    )
    targets = windows[:, 1:].ravel()
    assert len(targets) == eval_tokens == len(set(targets.tolist()))


def test_a_whole_validation_split_is_tiled_without_a_gap() -> None:
    starts = validation_starts(counting_corpus(100, 101), seq_len=10, eval_tokens=100)
    assert starts.tolist() == list(range(0, 100, 10))


def test_a_small_validation_set_spreads_over_the_whole_split() -> None:
    starts = validation_starts(counting_corpus(100, 1001), seq_len=10, eval_tokens=50)
    assert starts.tolist() == [0, 200, 400, 600, 800]


def test_a_validation_set_that_is_too_large_says_how_many_targets_there_are() -> None:
    with pytest.raises(DataError) as caught:
        validation_batches(counting_corpus(100, 101), seq_len=16, eval_tokens=112, batch_seqs=4)
    assert str(caught.value) == (
        "train.eval_tokens 112 exceeds the validation split of corpus 'counting': 100 targets, "
        "at most 96 in windows of data.seq_len 16."
    )


def small_folder(tokenizer: Tokenizer, documents: list[bytes], folder: Path) -> TokenCorpus:
    spool = DocumentSpool(folder / "documents", 0.5)
    for document in documents:
        spool.add(document)
    (folder / "tokens").mkdir()
    build_token_folder(spool, tokenizer, folder / "tokens", name="small", source={})
    spool.close()
    return open_token_folder(folder / "tokens")


WORDS = "the state of the union is strong, übergroß, 国家 and 🦅 free\n"
BPE = BpeTokenizer.train([(WORDS * 3).encode()], 300)


@settings(deadline=None, max_examples=40)
@given(
    texts=st.lists(st.text(min_size=1, max_size=60) | st.just(WORDS), min_size=6, unique=True),
    byte_level=st.booleans(),
    seed=st.integers(0, 99),
)
def test_bits_per_byte_is_the_total_cost_over_the_total_bytes(
    texts: list[str], byte_level: bool, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tokenizer: Tokenizer = ByteTokenizer() if byte_level else BPE
    documents = [text.encode() for text in texts]
    try:
        corpus = small_folder(tokenizer, documents, tmp_path_factory.mktemp("corpus"))
    except DataError:  # all the documents fell into one split
        return
    n_targets = len(corpus.val) - 1
    if n_targets < 1:
        return
    nats_of_token = np.random.default_rng(seed).uniform(0.1, 9.0, corpus.info.vocab_size)
    (window,) = validation_batches(corpus, seq_len=n_targets, eval_tokens=n_targets, batch_seqs=9)
    targets = window[0, 1:]
    nats = nats_of_token[targets]
    text = tokenizer.decode(targets.astype(np.uint32))
    per_token = validation_bytes_per_token(corpus, seq_len=n_targets, eval_tokens=n_targets)
    direct = math.fsum(nats / math.log(2)) / len(text)
    assert bits_per_byte(float(nats.mean()), per_token) == pytest.approx(direct, rel=1e-12)
    whole = tokenizer.decode(np.asarray(corpus.val))
    assert corpus.info.val_bytes_per_token == len(whole) / len(corpus.val)


def test_a_byte_is_one_byte() -> None:
    assert bits_per_byte(math.log(2), 1.0) == 1.0
