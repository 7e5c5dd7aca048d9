"""The YAML reader: core schema of YAML 1.2, places, and one clear error for what it refuses."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import GridError
from harness.yaml12 import MAX_DEPTH, dotted, parse_yaml, read_yaml, sweep_name

# YAML 1.2.2, section 10.3.2 (tag resolution of the core schema) and its example 10.9, with the
# traps of YAML 1.1 readers: bare exponents, base 60, yes/no, underscores, octal by leading zero.
SCALARS: list[tuple[str, Any]] = [
    ("1e-3", 1e-3),
    ("1e4", 1e4),
    ("3E-4", 3e-4),
    ("12e03", 12000.0),
    ("-2E+05", -200000.0),
    (".5", 0.5),
    ("0.", 0.0),
    ("-0.0", -0.0),
    ("+1", 1),
    ("010", 10),
    ("0o7", 7),
    ("0x3A", 58),
    (".inf", math.inf),
    ("-.Inf", -math.inf),
    ("true", True),
    ("True", True),
    ("FALSE", False),
    ("null", None),
    ("~", None),
    ("no", "no"),
    ("Yes", "Yes"),
    ("on", "on"),
    ("12:00:00", "12:00:00"),
    ("2:00", "2:00"),
    ("04:00:00", "04:00:00"),
    ("1_000", "1_000"),
    ("0b1", "0b1"),
    ("2026-10-01", "2026-10-01"),
    ("1.5.2", "1.5.2"),
    ("e3", "e3"),
    ("'1e-3'", "1e-3"),
    ('"true"', "true"),
    ("!!str 5", "5"),
    ("!!float 3", 3.0),
]


@pytest.mark.parametrize(("text", "value"), SCALARS)
def test_a_scalar_resolves_as_yaml_1_2_says(text: str, value: Any) -> None:
    found = parse_yaml(f"a: {text}\n", "g").value["a"]
    assert found == value
    assert type(found) is type(value)


def test_nan_is_a_float() -> None:
    assert math.isnan(parse_yaml("a: .NaN\n", "g").value["a"])


def test_a_directive_of_yaml_1_1_changes_nothing() -> None:
    assert parse_yaml("%YAML 1.1\n---\na: no\n", "g").value == {"a": "no"}


_TEXT = st.text(alphabet="abcXYZ 0159:-#,[]{}'\"&*!|>%@`?~_.é√", max_size=12)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**18), 10**18) | st.floats(allow_nan=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(_JSON)
def test_every_json_text_reads_as_json_reads_it(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False)
    # JSON spells infinities as words that YAML has not.
    if "Infinity" not in text:
        assert parse_yaml(text, "g").value == json.loads(text)


def test_every_key_and_item_knows_its_line() -> None:
    document = parse_yaml("a:\n  b: 1\n  c:\n    - x\n    - {d: 2,\n       e: 3}\n", "g.yaml")
    assert document.lines[("a",)] == 1
    assert document.lines[("a", "b")] == 2
    assert document.lines[("a", "c", 0)] == 4
    assert document.lines[("a", "c", 1, "e")] == 6
    assert document.where(("a", "c", 1, "absent")) == "g.yaml:5"


def test_values_behind_an_alias_keep_the_lines_where_they_are_spelled_out() -> None:
    document = parse_yaml("a: &x\n  b: 1\n  c: [1, 2]\nd: *x\n", "g")
    assert document.value["d"] == {"b": 1, "c": [1, 2]}
    assert document.lines[("d",)] == 4
    assert document.lines[("d", "c", 1)] == 3


def test_a_place_is_spelled_with_dots_and_indices() -> None:
    assert dotted(("axes", "model.n_layers", 1)) == "axes.model.n_layers[1]"
    assert dotted(()) == "(top level)"


_BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join(['*' + before] * 10)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
REFUSED = [
    ("a:\n\tb: 1\n", 2, "a", "spaces only"),
    ("a: 1\n b: 2\n", 2, "(top level)", "second ': '"),
    ("a:\n  - [1, 2\nb: 3\n", 3, "a[0][1]", "comma or the closing bracket"),
    ("x: 1\na: {x: 1\n", 2, "a", "never closed"),
    ("a: 'x\n\n", 1, "a", "quote is opened"),
    ("a: @x\n", 1, "a", "in quotes"),
    ("- a\nb: 1\n", 2, "[0]", "indentation"),
    ("", 1, "(top level)", "empty"),
    ("# only a comment\n", 1, "(top level)", "empty"),
    ("a: 1\n---\nb: 2\n", 2, "(top level)", "second document"),
    ("a: 1\nb: {c: 1,\n  c: 2}\n", 3, "b.c", "given twice, first on line 2"),
    ("a: *x\n", 1, "a", "no anchor &x"),
    ("a: 1\nb: &x [1, *x]\n", 2, "b[1]", "holds itself"),
    ("a: &x {b: *x}\n", 1, "a.b", "holds itself"),
    ("1: 2\n", 1, "(top level)", "'1' cannot be a key"),
    ("null: 2\n", 1, "(top level)", "Keys are text"),
    ("? [a, b]\n: 1\n", 1, "(top level)", "list or mapping cannot be a key"),
    ("a: !custom {b: 1}\n", 1, "a", "tag !custom is unknown"),
    ("a: !!python/object:os.system x\n", 1, "a", "!!python/object:os.system is unknown"),
    ("a: !!int x\n", 1, "a", "does not fit its tag"),
    (_BOMB, 5, "e[7]", "more than 100000 values"),
    ("a: " + "[" * 5000, 1, "a" + "[0]" * (MAX_DEPTH), "nested deeper"),
    ("a: 1\nb: \x00\x01\n", 2, "(top level)", "binary"),
]


@pytest.mark.parametrize(("text", "line", "path", "fragment"), REFUSED)
def test_a_refused_text_gives_one_error_with_line_and_path(
    text: str, line: int, path: str, fragment: str
) -> None:
    with pytest.raises(GridError) as caught:
        parse_yaml(text, "g.yaml")
    (problem,) = caught.value.problems
    assert problem.startswith(f"g.yaml:{line}: {path}: ")
    assert fragment in problem


def test_all_mistakes_that_do_not_stop_the_parser_are_listed() -> None:
    with pytest.raises(GridError) as caught:
        parse_yaml("a: !t 1\na: 2\n3: 4\n", "g")
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize(
    ("raw", "fragment"),
    [
        (b"\x89PNG\r\n\x1a\n\x00\x00", "not UTF-8"),
        ("a: é\n".encode("latin-1"), "not UTF-8"),
        ("a: 1\n".encode("utf-16"), "not UTF-8"),
        (b"#" * 4_000_001, "larger than"),
    ],
)
def test_a_file_that_is_no_text_is_refused(tmp_path: Path, raw: bytes, fragment: str) -> None:
    path = tmp_path / "g.yaml"
    path.write_bytes(raw)
    with pytest.raises(GridError, match=fragment):
        read_yaml(path)


def test_a_byte_order_mark_and_windows_line_ends_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "g.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: [2,\r\n  3]\r\n")
    document = read_yaml(path)
    assert document.value == {"a": 1, "b": [2, 3]}
    assert document.line(("b", 1)) == 3


def test_the_name_of_a_sweep_is_read_alone_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "g.yaml"
    path.write_text("sweep: depth-ladder\nrest: [is, not, checked]\n", encoding="utf-8")
    assert sweep_name(path) == "depth-ladder"
    for text, fragment in (("base: {}\n", "required"), ("sweep: ../up\n", "names a folder")):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(GridError, match=fragment):
            sweep_name(path)


def test_the_reader_needs_no_torch() -> None:
    program = "import sys, harness.yaml12, harness.problems; print('torch' in sys.modules)"
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert out.stdout == "False\n"
