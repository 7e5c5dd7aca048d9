"""Text files to token folders: every format, exact round trips, and one clear error per mistake."""

from __future__ import annotations

import gzip
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.corpora import describe, open_corpus
from harness.documents import split_of
from harness.errors import DataError
from harness.prepare import prepare
from harness.readers import TEXT_PIECE, read_documents
from harness.token_folder import Progress
from harness.tokenization import BpeTokenizer, load_tokenizer, pieces

SLICE = Path(__file__).parents[1] / "data" / "sotu_slice.jsonl"
TEXTS = [json.loads(line)["text"] for line in SLICE.read_text(encoding="utf-8").splitlines()]


def _jsonl(texts: list[str], key: str = "text") -> bytes:
    return "".join(json.dumps({"id": i, key: t}) + "\n" for i, t in enumerate(texts)).encode()


def write_txt(folder: Path, texts: list[str]) -> Path:
    for number, text in enumerate(texts):
        (folder / f"{number}.txt").write_bytes(text.encode())
    (folder / "README.md").write_text("left alone")
    (folder / ".hidden.txt").write_text("left alone")
    return folder


def write_jsonl(folder: Path, texts: list[str]) -> Path:
    (folder / "all.jsonl").write_bytes(_jsonl(texts) + b"\n")
    return folder / "all.jsonl"


def write_jsonl_gz(folder: Path, texts: list[str]) -> Path:
    half = len(texts) // 2  # two members, as `cat a.gz b.gz` makes them
    parts = gzip.compress(_jsonl(texts[:half])) + gzip.compress(_jsonl(texts[half:]))
    (folder / "all.jsonl.gz").write_bytes(parts)
    return folder / "all.jsonl.gz"


def write_jsonl_zst(folder: Path, texts: list[str]) -> Path:
    half = len(texts) // 2
    compress = zstandard.ZstdCompressor().compress
    (folder / "all.jsonl.zst").write_bytes(
        compress(_jsonl(texts[:half])) + compress(_jsonl(texts[half:]))
    )
    return folder / "all.jsonl.zst"


def write_parquet(folder: Path, texts: list[str]) -> Path:
    half = len(texts) // 2
    table = pa.table({"id": range(half), "text": texts[:half]})
    pq.write_table(table, folder / "a.parquet", row_group_size=3)
    encoded = pa.array([*texts[half:], None]).dictionary_encode()
    pq.write_table(pa.table({"text": encoded}), folder / "b.parquet")
    return folder


WRITERS = [write_txt, write_jsonl, write_jsonl_gz, write_jsonl_zst, write_parquet]


@pytest.mark.parametrize("write", WRITERS)
def test_every_format_gives_the_same_tokens(
    write: Callable[[Path, list[str]], Path], tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    info = prepare([write(tmp_path / "in", TEXTS)], tmp_path / "out")
    corpus = open_corpus(str(tmp_path / "out"))
    documents = {t.encode() for t in TEXTS}
    val = {d for d in documents if split_of(d, 0.1) == "val"}
    assert set(corpus.val.tobytes().split(b"\0")) == val
    assert set(corpus.train.tobytes().split(b"\0")) == documents - val
    assert (len(val), info.manifest["train"]["documents"]) == (2, 16)
    # The same documents prepared from the slice itself: one identity whatever the container.
    assert info.sha256 == prepare([SLICE], tmp_path / "reference").sha256
    assert describe(str(tmp_path / "out")) == info
    assert sorted(os.listdir(tmp_path)) == ["in", "out", "reference"]


def test_bpe_round_trip_is_exact_and_deterministic(tmp_path: Path) -> None:
    infos = [
        prepare([SLICE], tmp_path / name, tokenizer="bpe", vocab_size=600) for name in ("a", "b")
    ]
    assert infos[0].sha256 == infos[1].sha256
    corpus = open_corpus(str(tmp_path / "a"))
    tokenizer = load_tokenizer(tmp_path / "a")
    assert corpus.train.dtype == np.dtype("<u2")
    assert (tokenizer.vocab_size, infos[0].vocab_size) == (600, 600)
    decoded = [tokenizer.decode(split).split(b"\0") for split in (corpus.train, corpus.val)]
    assert sorted(decoded[0] + decoded[1]) == sorted(text.encode() for text in TEXTS)
    assert (corpus.train == tokenizer.separator).sum() == 15
    val_bytes = sum(map(len, decoded[1])) + 1
    assert infos[0].val_bytes_per_token == val_bytes / len(corpus.val) > 1.8


def test_bpe_never_sees_the_validation_split(tmp_path: Path) -> None:
    prepare([SLICE], tmp_path / "out", tokenizer="bpe", vocab_size=600)
    train = [text.encode() for text in TEXTS if split_of(text.encode(), 0.1) == "train"]
    alone = BpeTokenizer.train(train, 600)
    assert alone.to_json() == (tmp_path / "out" / "tokenizer.json").read_text(encoding="utf-8")


BPE = BpeTokenizer.train([text.encode() for text in TEXTS[:3]], 400)


@settings(deadline=None)
@given(st.lists(st.text(max_size=200), max_size=4))
def test_bpe_gives_back_any_text(texts: list[str]) -> None:
    documents = [text.encode() for text in [*texts, "<|endoftext|> \x00 \r\n 🦅"]]
    encoded = BPE.encode(documents)
    assert [BPE.decode(tokens) for tokens in encoded] == documents
    lengths = BPE.token_bytes()
    assert [int(lengths[tokens].sum()) for tokens in encoded] == [len(d) for d in documents]
    assert all((tokens != BPE.separator).all() for tokens in encoded)


@given(st.text(alphabet="ab\n", max_size=60), st.integers(1, 10))
def test_pieces_join_to_the_text(text: str, limit: int) -> None:
    parts = list(pieces(text, limit))
    assert "".join(parts) == text
    assert all(len(part) <= limit for part in parts)


def test_a_vocabulary_the_text_cannot_support_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "tiny.jsonl"
    source.write_bytes(_jsonl([f"aa bb {i}" for i in range(40)]))
    with pytest.raises(DataError, match=r"supports a BPE vocabulary of \d+ tokens, not the 5000"):
        prepare([source], tmp_path / "out", tokenizer="bpe", vocab_size=5000)
    with pytest.raises(DataError, match="vocab_size must lie in 258"):
        prepare([source], tmp_path / "out", tokenizer="bpe", vocab_size=100)
    assert os.listdir(tmp_path) == ["tiny.jsonl"]


@pytest.mark.parametrize("line", ["Four score and seven years ago.\n", "Vier Jahre für 国家 🦅 "])
def test_one_long_text_file_is_cut_into_documents(line: str, tmp_path: Path) -> None:
    text = "".join(f"{i} {line}" + "\n" * (i % 7 == 0) * line.endswith("\n") for i in range(20000))
    (tmp_path / "book.txt").write_bytes(text.encode())
    parts = list(read_documents(tmp_path / "book.txt", text_key="text", whole=False))
    assert b"".join(parts) == text.encode()
    assert max(map(len, parts)) <= 3 * TEXT_PIECE
    assert min(map(len, parts[:-1])) >= TEXT_PIECE
    info = prepare([tmp_path / "book.txt"], tmp_path / "out", val_fraction=0.3)
    assert info.manifest["val"]["documents"] >= 1


def test_progress_counts_up_to_the_whole_text(tmp_path: Path) -> None:
    seen: list[Progress] = []
    (tmp_path / "in.jsonl").write_bytes(_jsonl([*TEXTS, TEXTS[0]]))
    prepare(
        [tmp_path / "in.jsonl"],
        tmp_path / "out",
        tokenizer="bpe",
        vocab_size=300,
        on_progress=seen.append,
    )
    phases = list(dict.fromkeys(progress.phase for progress in seen))
    assert phases == ["reading", "training tokenizer", "tokenising"]
    assert seen[-1].documents == len(TEXTS)
    assert seen[-1].bytes == seen[-1].total_bytes == sum(len(text.encode()) for text in TEXTS)


def test_preparing_again_is_a_no_op_and_other_content_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = prepare([SLICE], out)
    before = (out / "train.bin").stat().st_ino
    assert prepare([SLICE], out) == first
    assert (out / "train.bin").stat().st_ino == before
    other = tmp_path / "other.jsonl"
    other.write_bytes(_jsonl([f"text {i}" for i in range(50)]))
    with pytest.raises(DataError, match=r"out: exists and holds another corpus \(sha256"):
        prepare([other], out)
    with pytest.raises(DataError, match="exists and was made with tokenizer byte and val_fraction"):
        prepare([SLICE], out, tokenizer="bpe")
    assert describe(str(out)) == first


def test_a_folder_that_is_no_corpus_is_never_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    with pytest.raises(DataError) as caught:
        prepare([SLICE], tmp_path / "thesis")
    assert str(caught.value) == (
        f"{tmp_path}/thesis: exists and is not a prepared corpus. "
        "Choose another --output or remove it."
    )


def test_a_damaged_prepared_folder_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare([SLICE], out)
    content = bytearray((out / "val.bin").read_bytes())
    content[7] ^= 1
    (out / "val.bin").write_bytes(content)
    with pytest.raises(DataError, match=r"out: damaged corpus \(sha256 .* expected, .* found\)"):
        open_corpus(str(out))
    (out / "val.bin").write_bytes(content[:-1])
    with pytest.raises(DataError) as caught:
        open_corpus(str(out))
    assert str(caught.value) == (
        f"{out}/val.bin: damaged corpus ({len(content)} bytes expected, {len(content) - 1} found). "
        "Prepare it again into a new folder."
    )


GOOD = json.dumps({"text": "good"}).encode() + b"\n"
ZSTD = zstandard.ZstdCompressor().compress(_jsonl(TEXTS))
GZIP = gzip.compress(_jsonl(TEXTS))
BAD_FILES: list[tuple[str, bytes, str]] = [
    (
        "a.jsonl",
        GOOD * 2 + b'{"txt": "x", "n": 1}\n',
        "a.jsonl:3: no key 'text'. Keys there: n, txt",
    ),
    ("a.jsonl", GOOD + b'{"text": 3}\n', "a.jsonl:2: 'text' must be a string, got int"),
    ("a.jsonl", GOOD + b'{"text": null}\n', "a.jsonl:2: 'text' must be a string, got NoneType"),
    ("a.jsonl", GOOD + b'{"text": "cut', "a.jsonl:2: not JSON (Unterminated string"),
    ("a.jsonl", GOOD + b'["text"]\n', "a.jsonl:2: a JSON object is expected, got list"),
    ("a.jsonl", GOOD + b'{"text": "\xff"}\n', "a.jsonl:2: not UTF-8 (byte 0xff)"),
    ("a.jsonl", GOOD + b'{"text": "\\ud800"}\n', "a.jsonl:2: 'text' holds half a surrogate pair"),
    ("a.jsonl", b"[" * 100_000, "a.jsonl:1: not JSON"),
    ("a.jsonl", b"", "a.jsonl: empty file, no documents in it"),
    ("a.jsonl", b"\n\n", "a.jsonl: empty file, no documents in it"),
    ("a.jsonl.gz", GZIP[:-20], "a.jsonl.gz:18: cannot read on after line 17 (EOFError"),
    ("a.jsonl.gz", GOOD, "a.jsonl.gz:1: cannot read on after line 0 (BadGzipFile"),
    (
        "a.jsonl.gz",
        GZIP[:500] + b"\0" * 99 + GZIP[600:],
        "a.jsonl.gz:1: cannot read on after line 0",
    ),
    (
        "a.jsonl.zst",
        ZSTD[:-20],
        "(EOFError: compressed file ended before the end of its last frame)",
    ),
    ("a.jsonl.zst", ZSTD + ZSTD[:40], "a.jsonl.zst:19: cannot read on after line 18 (EOFError"),
    ("a.jsonl.zst", GOOD, "a.jsonl.zst:1: cannot read on after line 0 (ZstdError"),
    ("a.txt", b"", "a.txt: empty file, no documents in it"),
    ("a.txt", b"fine\nfine\n\xff\xfe\n", "a.txt:3: not UTF-8 (byte 0xff)"),
    ("a.txt", b"fine\n" + "é".encode()[:1], "a.txt:2: not UTF-8 (byte 0xc3)"),
    ("a.txt", "text".encode("utf-16"), "a.txt:1: not UTF-8 (byte 0xff)"),
    ("a.parquet", b"PAR1 and no more", "a.parquet: not a readable Parquet file after row 0"),
    ("a.parquet", b"", "a.parquet: not a readable Parquet file after row 0"),
    ("a.csv", b"text\n", "a.csv: unknown kind of file. Known: .txt, .txt.gz"),
    ("a.txt", b"one document", "1 distinct documents with val_fraction 0.1 leave the validation"),
]


@pytest.mark.parametrize(("name", "content", "message"), BAD_FILES)
def test_bad_input_is_named_and_nothing_is_left(
    name: str, content: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        prepare([tmp_path / name], tmp_path / "out")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == [name]


def test_a_parquet_column_must_exist_and_hold_text(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"body": ["x"], "n": [1]}), path)
    for key, message in [
        ("text", f"{path}: no column 'text'. Columns there: body, n. Choose with --text-key."),
        ("n", f"{path}: column 'n' must hold strings, got int64."),
    ]:
        with pytest.raises(DataError) as caught:
            prepare([path], tmp_path / "out", text_key=key)
        assert str(caught.value) == message


def test_a_parquet_file_that_breaks_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": TEXTS}), path, compression="zstd", row_group_size=2)
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 2000] = b"\xaa" * 2000
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"a.parquet: not a readable Parquet file after row \d+"):
        prepare([path], tmp_path / "out")


def test_bad_arguments_are_refused_with_what_is_possible(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"unknown tokenizer 'word'\. Available: byte, bpe, tiktoken"
    ):
        prepare([SLICE], tmp_path / "out", tokenizer="word")
    with pytest.raises(DataError, match=r"val_fraction must lie between 0 and 1, got 1\.0"):
        prepare([SLICE], tmp_path / "out", val_fraction=1.0)
    with pytest.raises(DataError, match=r"absent\.txt: no such file or folder"):
        prepare([tmp_path / "absent.txt"], tmp_path / "out")
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match=r"folder: no file ending in \.txt"):
        prepare([tmp_path / "folder"], tmp_path / "out")
    with pytest.raises(DataError, match="no input given"):
        prepare([], tmp_path / "out")


def test_without_tiktoken_the_way_out_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    with pytest.raises(DataError) as caught:
        prepare([SLICE], tmp_path / "out", tokenizer="tiktoken:gpt2")
    assert str(caught.value) == (
        "tokenizer tiktoken:gpt2 needs the module 'tiktoken'. Install it with: pip install "
        "tiktoken. Or use --tokenizer bpe."
    )


def test_a_tiktoken_vocabulary_at_hand_round_trips(tmp_path: Path) -> None:
    pytest.importorskip("tiktoken")
    if not os.environ.get("TIKTOKEN_CACHE_DIR"):
        pytest.skip("no tiktoken vocabulary at hand (TIKTOKEN_CACHE_DIR is not set)")
    info = prepare([SLICE], tmp_path / "out", tokenizer="tiktoken:gpt2")
    corpus, tokenizer = open_corpus(str(tmp_path / "out")), load_tokenizer(tmp_path / "out")
    assert (info.vocab_size, tokenizer.separator) == (50257, 50256)
    assert tokenizer.encode([b"Hello world"])[0].tolist() == [15496, 995]
    decoded = tokenizer.decode(corpus.train) + b"\0" + tokenizer.decode(corpus.val)
    assert sorted(decoded.split(b"\0")) == sorted(text.encode() for text in TEXTS)
    assert 4.0 < info.val_bytes_per_token < 5.5
