"""`isoloss bench`: turns, paired ratios, exact memory, and what it leaves on disk."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from harness import cli
from harness.bench import memory
from harness.bench.memory import LiveBytes, Memory, cgroup_bytes, machine_bytes, memory_of
from harness.bench.peers import PEERS
from harness.bench.plan import (
    BASELINE,
    BenchPlan,
    choose_recipes,
    parse_depths,
    parse_parts,
    parse_recipe,
    parse_shape,
)
from harness.bench.rows import BenchStore, Subject, section_rows, with_round
from harness.bench.run import check_plan
from harness.bench.timing import paired_difference, paired_ratio, spread, timed_rounds
from harness.errors import IsolossError
from recipes.base import RecipeError

CPU = torch.device("cpu")
SHAPE = parse_shape("2x16x64", 32)
ROOT = Path(__file__).resolve().parents[2]


def test_subjects_take_turns_and_late_rounds_leave_some_out() -> None:
    called: list[str] = []
    subjects = {name: (lambda name=name: called.append(name)) for name in "abc"}
    repeats = {"a": 3, "b": 1, "c": 2}
    rounds = list(timed_rounds(subjects, repeats, lambda: None))
    assert "".join(called) == "abcaca"
    assert [list(seconds) for seconds in rounds] == [["a", "b", "c"], ["a", "c"], ["a"]]


def test_seconds_are_read_after_the_device_has_finished() -> None:
    order: list[str] = []
    ticks = iter([10.0, 12.5])

    def clock() -> float:
        order.append("clock")
        return next(ticks)

    subjects = {"a": lambda: order.append("call")}
    [seconds] = timed_rounds(subjects, {"a": 1}, lambda: order.append("wait"), clock)
    assert seconds == {"a": 2.5}
    assert order == ["wait", "clock", "call", "wait", "clock"]


def test_a_ratio_is_taken_inside_a_round_so_that_drift_cancels() -> None:
    slow_then_fast = [8.0, 1.0, 2.0, 4.0]
    twice = [2 * seconds for seconds in slow_then_fast]
    assert paired_ratio(twice, slow_then_fast) == (2.0, 2.0, 2.0)
    assert paired_ratio(twice[:2], slow_then_fast) == (2.0, 2.0, 2.0)
    assert paired_difference([3.0, 5.0, 10.0], [1.0, 2.0, 3.0]) == 3.0


def test_spread_is_the_median_and_the_quartiles() -> None:
    assert spread([5.0, 1.0, 4.0, 2.0, 3.0]) == (3.0, 2.0, 4.0)
    assert spread([7.0]) == (7.0, 7.0, 7.0)
    assert spread([]) is None


def test_rows_state_ratios_bytes_and_floor_of_known_times() -> None:
    subjects = [
        Subject(BASELINE, moved_elements=100, peak_bytes=1000, rounds_s=(1.0, 2.0, 4.0)),
        Subject("full", moved_elements=300, peak_bytes=1200, rounds_s=(1.5, 3.0, 6.0)),
        Subject("theirs", "peer", "full", rounds_s=(15.0, 30.0)),
        Subject("absent", "peer", "full", note="not installed: pip install absent"),
    ]
    rows = section_rows("step", SHAPE, subjects, "fp32", copy_bytes_per_s=1e6)
    standard, full, theirs, absent = rows
    assert (standard.ratio, standard.peak_ratio, standard.moved_bytes) == (1.0, 1.0, None)
    assert (full.seconds, full.ratio, full.peak_ratio) == (3.0, 1.5, 1.2)
    # 200 elements more per token, 3 passes, 64 tokens, 4 bytes; extra seconds 0.5, 1, 2.
    assert full.moved_bytes == 200 * 3 * 64 * 4
    assert full.floor_s == pytest.approx(0.1536)
    assert (full.moving_s, full.bytes_per_s) == (1.0, 153_600)
    assert (theirs.times_ours, theirs.ratio, theirs.moved_bytes) == (10.0, 15.0, None)
    assert (absent.seconds, absent.ratio, absent.rounds) == (None, None, 0)


def test_the_residual_part_counts_all_that_is_moved_and_all_its_time() -> None:
    subjects = [
        Subject(BASELINE, moved_elements=100, rounds_s=(1.0,)),
        Subject("full", moved_elements=300, rounds_s=(2.0,)),
    ]
    standard, full = section_rows("residual", SHAPE, subjects, "bf16", 1e6)
    assert standard.moved_bytes == 100 * 3 * 64 * 4  # the stream stays fp32 under autocast
    assert (full.moved_bytes, full.moving_s) == (300 * 3 * 64 * 4, 2.0)


def test_an_arm_no_slower_than_the_baseline_has_no_bandwidth() -> None:
    subjects = [
        Subject(BASELINE, moved_elements=100, rounds_s=(2.0,)),
        Subject("full", moved_elements=300, rounds_s=(1.9,)),
    ]
    full = section_rows("step", SHAPE, subjects, "fp32", 1e6)[1]
    assert full.moving_s is full.bytes_per_s is None
    assert full.floor_s is not None


def test_live_bytes_of_a_chain_are_exact() -> None:
    x = torch.randn(1000)

    def chain() -> None:
        a = x * 2
        b = a + 1
        del a
        c = b.view(10, 100)
        c.add_(1)
        _ = torch.cat([c, c])

    # x and b live while cat makes its 8000 bytes; a was freed, the view and the add made nothing.
    assert memory_of(chain, CPU) == Memory(base=4000, peak=4000 + 4000 + 8000)
    assert memory_of(chain, CPU) == memory_of(chain, CPU)


def test_live_bytes_of_a_forward_and_backward_are_exact() -> None:
    w = torch.randn(1000, requires_grad=True)

    def step() -> None:
        w.grad = None
        y = w.exp()
        z = y.exp()
        z.sum().backward()

    # w, y, z, two gradients of 1000 elements at once, the scalar and its gradient.
    assert memory_of(step, CPU) == Memory(base=4000, peak=5 * 4000 + 2 * 4)


def test_a_storage_that_grows_counts_at_its_new_size() -> None:
    with LiveBytes() as counted:
        x = torch.empty(10)
        x.resize_(1000)
        assert counted.live == 4000
        del x
        assert counted.live == 0
    assert counted.peak == 4000


def test_the_limit_of_a_control_group_counts_where_it_is_told(tmp_path: Path) -> None:
    assert cgroup_bytes(tmp_path) is None
    (tmp_path / "memory.current").write_text("600\n", encoding="ascii")
    for limit, free in (("1000\n", 400), ("500\n", 0), ("max\n", None)):
        (tmp_path / "memory.max").write_text(limit, encoding="ascii")
        assert cgroup_bytes(tmp_path) == free


def test_the_smaller_of_machine_and_control_group_is_available(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable: 2 kB\n", encoding="ascii")
    monkeypatch.setattr(memory, "MEMINFO", meminfo)
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    assert memory.available_bytes(CPU) == machine_bytes(meminfo) == 2048
    (tmp_path / "memory.max").write_text("1000", encoding="ascii")
    (tmp_path / "memory.current").write_text("600", encoding="ascii")
    assert memory.available_bytes(CPU) == 400


def test_a_recipe_is_read_in_three_notations() -> None:
    plain = parse_recipe("block")
    assert (plain.label, plain.name, plain.options) == ("block", "block", ())
    label = parse_recipe("block(block_size=4, tail=balanced)")
    mapping = parse_recipe("{name: block, block_size: 4, tail: balanced}")
    assert label == mapping
    assert label.label == "block(block_size=4, tail=balanced)"
    assert dict(label.options) == {"block_size": 4, "tail": "balanced"}
    assert dict(parse_recipe("multi_stream(widths=[1, 3], share_taps=false)").options) == {
        "widths": [1, 3],
        "share_taps": False,
    }


def test_a_recipe_may_name_the_width_of_the_shape() -> None:
    twin = parse_recipe("low_rank(key_rank=d_model)")
    assert twin.at(SHAPE).options == {"key_rank": 16}
    assert twin.at(parse_shape("2x32x64", 32)).options == {"key_rank": 32}


@pytest.mark.parametrize(
    "text",
    ["", "block(4)", "block(block_size: 4)", "{block_size: 4}", "[full]", "{name: full", "7"],
)
def test_a_misspelt_recipe_is_one_clear_error(text: str) -> None:
    with pytest.raises(IsolossError, match="recipe"):
        parse_recipe(text)


def test_the_baseline_comes_first_and_every_recipe_once() -> None:
    chosen = choose_recipes(["full", "standard", "full"], [])
    assert [choice.label for choice in chosen] == ["standard", "full"]
    every = choose_recipes(["all"], ["block", "full", "standard"])
    assert [choice.label for choice in every] == ["standard", "block", "full"]
    assert len(choose_recipes([], [])) == 5


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("12x256", "LAYERSxWIDTHxTOKENS"),
        ("large", "LAYERSxWIDTHxTOKENS"),
        ("0x64x64", "LAYERSxWIDTHxTOKENS"),
        ("2x16x65", "multiple of --seq-len"),
        ("2x15x64", "head_dim must be even"),
    ],
)
def test_an_impossible_shape_is_one_clear_error(text: str, told: str) -> None:
    with pytest.raises(IsolossError, match=told):
        parse_shape(text, 32)


def test_depths_and_parts_are_checked() -> None:
    assert parse_depths("24, 12,24") == (12, 24)
    for text in ("12,13", "0", "twelve", "-2"):
        with pytest.raises(IsolossError, match="even numbers of sublayers"):
            parse_depths(text)
    assert parse_parts(None, depths=False) == ("step", "residual")
    assert parse_parts("residual,step", depths=True) == ("step", "residual")
    with pytest.raises(IsolossError, match="step, residual, depth"):
        parse_parts("steps", depths=False)
    with pytest.raises(IsolossError, match="--depths"):
        parse_parts("depth", depths=False)


def test_files_hold_every_round_as_soon_as_it_ended(tmp_path: Path) -> None:
    about = {
        "hardware": {"device": "a machine"},
        "library_versions": {"torch": "0"},
        "plan": asdict(BenchPlan((), (), ())),
    }
    store = BenchStore(tmp_path / "bench" / "x", about)
    subjects = [Subject(BASELINE), Subject("full")]
    for seconds in ({BASELINE: 1.0, "full": 2.0}, {BASELINE: 3.0, "full": 9.0}):
        subjects = with_round(subjects, seconds)
        store.update(section_rows("step", SHAPE, subjects, "fp32", 1e9))
        told = json.loads(store.record.read_text(encoding="utf-8"))
        assert told["rows"][1]["rounds_s"][-1] == seconds["full"]
    with store.table.open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["subject"] for row in rows] == ["standard", "full"]
    assert rows[1]["ratio"] == "2.5"
    assert rows[1]["peak_bytes"] == ""


def isoloss(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    """Run the command line in this process; return its exit code."""
    monkeypatch.setattr(sys, "argv", ["isoloss", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def test_bench_leaves_a_table_a_record_and_figures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = isoloss(
        monkeypatch,
        *("bench", "full", "--recipe", "{name: block, block_size: 2}", "--shape", "2x16x64"),
        *("--seq-len", "32", "--depths", "2,4", "--repeats", "2", "--peer-repeats", "1"),
        *("--results", tmp_path, "--name", "smoke"),
    )
    assert code == 0
    folder = tmp_path / "bench" / "smoke"
    with (folder / "bench.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    recipes = ["standard", "full", "block(block_size=2)"]
    by_part = {
        part: [r["subject"] for r in rows if r["part"] == part]
        for part in ("step", "residual", "depth")
    }
    assert by_part["step"] == recipes
    assert by_part["residual"] == recipes + [peer.name for peer in PEERS]
    assert by_part["depth"] == recipes * 2
    timed = [row for row in rows if not row["note"]]
    assert all(float(row["seconds"]) > 0 and int(row["peak_bytes"]) > 0 for row in timed)
    assert all(bool(row["predicted_bytes"]) == (row["part"] != "residual") for row in rows)
    assert all(bool(row["difference"]) == (row["origin"] == "peer") for row in rows)
    told = json.loads((folder / "bench.json").read_text(encoding="utf-8"))
    assert told["plan"]["threads"] == 1
    assert set(told["peers"]) == {peer.name for peer in PEERS}
    assert {len(row["rounds_s"]) for row in told["rows"] if row["origin"] == "recipe"} == {2}
    drawn = {path.name for path in (folder / "figures").iterdir()}
    assert {f"bench_step.{kind}" for kind in ("svg", "png", "pdf")} <= drawn
    assert len(drawn) == 9
    shown = capsys.readouterr().out
    assert "round 2/2" in shown
    assert "x ours" in shown
    assert "same maths" in shown
    assert "Floor: " in shown


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["blokc"], "did you mean 'block'?"),
        (["block(block_sise=4)"], "block_size"),
        (["block(block_size=40)", "--shape", "2x16x64", "--seq-len", "32"], "block_size"),
        (["full", "--shape", "large"], "LAYERSxWIDTHxTOKENS"),
        (["full", "--n-layers", "2", "--shape", "2x16x64"], "not both"),
        (["full", "--depths", "7"], "even numbers"),
        (["full", "--kernel", "abacus"], "choose one of"),
        (["full", "--precision", "fp8"], "choose one of fp32"),
        (["full", "--device", "tpu"], "choose one of auto"),
        (["full", "--clock", "sun"], "choose one of wall"),
        (["full", "--name", "../up"], "names a folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_message_and_starts_nothing(
    arguments: list[str],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert isoloss(monkeypatch, "bench", *arguments, "--results", tmp_path) == 2
    message = capsys.readouterr()
    assert told in message.err
    assert message.out == ""
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_leaves_what_was_measured(tmp_path: Path) -> None:
    command = [sys.executable, "-u", "-m", "harness.cli", "bench", "full", "--parts", "step"]
    options = ["--shape", "2x32x256", "--seq-len", "64", "--repeats", "100000"]
    process = subprocess.Popen(
        [*command, *options, "--results", str(tmp_path), "--name", "cut"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    while "round 3/" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "Stopped" in rest
    folder = tmp_path / "bench" / "cut"
    told = json.loads((folder / "bench.json").read_text(encoding="utf-8"))
    assert {row["subject"]: row["rounds"] >= 2 for row in told["rows"]} == {
        "standard": True,
        "full": True,
    }
    assert (folder / "figures" / "bench_step.svg").exists()


def test_an_option_that_does_not_fit_one_depth_is_found_before_anything_runs() -> None:
    plan = BenchPlan(
        choose_recipes(["block(block_size=6)"], []),
        (parse_shape("4x16x64", 32),),
        ("step", "depth"),
        depths=(4, 8),
    )
    with pytest.raises(RecipeError, match="block_size"):
        check_plan(plan)
