"""The command `isoloss bench`: parse, measure, print, draw."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness import cli_tools as tools
from harness.errors import IsolossError

if TYPE_CHECKING:
    from harness.bench.plan import BenchPlan, BenchShape
    from harness.bench.rows import BenchStore

SEQ_LEN, QUICK_SEQ_LEN = 256, 64
REPEATS, QUICK_REPEATS = 7, 3
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

_RECIPES_HELP = (
    "Recipes to time: block, 'block(block_size=4)', '{name: block, block_size: 4}', or all. "
    "Default: standard, block, full, low_rank and its full-rank twin."
)
_SHAPE_HELP = "Layers x width x tokens per step; may be repeated. Default: 12x256x8192, 8x64x2048."
_DEPTHS_HELP = "Also time the last shape at these numbers of sublayers, such as 12,24,48,96."
Recipes = Annotated[list[str] | None, typer.Argument(metavar="[RECIPE]...", help=_RECIPES_HELP)]
Recipe = Annotated[
    list[str] | None,
    typer.Option("--recipe", metavar="RECIPE", help="As the argument; may be repeated."),
]
Shapes = Annotated[list[str] | None, typer.Option("--shape", metavar="LxDxT", help=_SHAPE_HELP)]
Layers = Annotated[int | None, typer.Option(min=1, help="Layers of a single shape.")]
Width = Annotated[int | None, typer.Option(min=2, help="Width of a single shape.")]
Tokens = Annotated[int | None, typer.Option(min=1, help="Tokens per step of a single shape.")]
SeqLen = Annotated[int | None, typer.Option(min=1, help="Context; default: 256.")]
HeadDim = Annotated[int | None, typer.Option(min=2, help="Width of a head; default: at most 32.")]
VocabSize = Annotated[int, typer.Option(min=2, help="Tokens of the vocabulary.")]
Depths = Annotated[str | None, typer.Option(metavar="M,M,...", help=_DEPTHS_HELP)]
Parts = Annotated[
    str | None, typer.Option(metavar="PART,...", help="Only these of step, residual, depth.")
]
Repeats = Annotated[int | None, typer.Option(min=1, help="Rounds; default: 7.")]
PeerRepeats = Annotated[int, typer.Option(min=1, help="Rounds of other people's packages.")]
Peers = Annotated[bool, typer.Option("--peers/--no-peers", help="Time other people's packages.")]
Threads = Annotated[int, typer.Option(min=1, help="CPU threads.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Precision = Annotated[str, typer.Option(help="fp32, bf16 (autocast) or fp64.")]
Clock = Annotated[str, typer.Option(help="wall, or cpu: on a busy machine, for one thread on CPU.")]
Kernel = Annotated[
    str, typer.Option(help="Depth reads by: auto, torch, cached, two_phase, fla or liger.")
]
Quick = Annotated[bool, typer.Option("--quick", help="Smoke test: every part, tiny, in seconds.")]
Name = Annotated[str | None, typer.Option(help="Folder in results/bench; default: the time.")]


def bench(
    recipes: Recipes = None,
    recipe: Recipe = None,
    shape: Shapes = None,
    n_layers: Layers = None,
    d_model: Width = None,
    tokens: Tokens = None,
    seq_len: SeqLen = None,
    head_dim: HeadDim = None,
    vocab_size: VocabSize = 256,
    depths: Depths = None,
    parts: Parts = None,
    repeats: Repeats = None,
    peer_repeats: PeerRepeats = 3,
    peers: Peers = True,
    threads: Threads = 1,
    device: Device = "auto",
    precision: Precision = "fp32",
    kernel: Kernel = "auto",
    clock: Clock = "wall",
    quick: Quick = False,
    name: Name = None,
    results: tools.Results = tools.RESULTS,
) -> None:
    """Time training steps of residual variants against the standard one, in turns.

    Also their memory and the bandwidth they reach, the residual part alone beside other people's
    packages, and growth with depth. Ctrl-C leaves what was measured.

    Example: isoloss bench full 'block(block_size=4)' --n-layers 8 --d-model 64 --tokens 2048
    """
    # Before torch is imported: the thread pools of its libraries are sized once.
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    from harness.bench import plan as asked
    from harness.bench.run import check_plan, resolve_device
    from harness.bench.timing import CLOCKS
    from recipes.base import available

    folder = _folder(results, name)
    sublayers = asked.parse_depths(asked.QUICK_DEPTHS if quick and depths is None else depths or "")
    asked.one_of("--device", device, asked.DEVICES)
    plan = asked.BenchPlan(
        recipes=asked.choose_recipes([*(recipes or ()), *(recipe or ())], list(available())),
        shapes=_shapes(shape, (n_layers, d_model, tokens), seq_len, head_dim, quick),
        parts=asked.parse_parts(parts, depths=bool(sublayers)),
        depths=sublayers,
        device=str(resolve_device(device)),
        precision=asked.one_of("--precision", precision, asked.PRECISIONS),
        kernel=kernel,
        clock=asked.one_of("--clock", clock, tuple(CLOCKS)),
        threads=threads,
        repeats=repeats or (QUICK_REPEATS if quick else REPEATS),
        peer_repeats=peer_repeats,
        peers=peers,
        vocab_size=vocab_size,
    )
    check_plan(plan)
    _measure(plan, folder)


def _shapes(
    texts: list[str] | None,
    single: tuple[int | None, int | None, int | None],
    seq_len: int | None,
    head_dim: int | None,
    quick: bool,
) -> tuple[BenchShape, ...]:
    """Shapes as given; what a single shape leaves out is the first default's."""
    from harness.bench.plan import DEFAULT_SHAPES, QUICK_SHAPES, parse_shape

    defaults = QUICK_SHAPES if quick else DEFAULT_SHAPES
    if any(single):
        if texts:
            raise IsolossError("give --shape, or --n-layers, --d-model and --tokens, not both.")
        parts = zip(single, defaults[0].split("x"), strict=True)
        texts = ["x".join(str(given or default) for given, default in parts)]
    context = seq_len or (QUICK_SEQ_LEN if quick else SEQ_LEN)
    chosen = [parse_shape(text, context, head_dim) for text in texts or defaults]
    return tuple(dict.fromkeys(chosen))


def _folder(results: Path, name: str | None) -> Path:
    name = name or datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    if not _NAME.fullmatch(name):
        raise IsolossError(
            f"--name {name!r}: write 1 to 100 letters, digits, '.', '_' or '-', starting with a "
            "letter or digit, as it names a folder."
        )
    return results.resolve() / "bench" / name


def _measure(plan: BenchPlan, folder: Path) -> None:
    from harness.bench.peers import PEERS
    from harness.bench.rows import BenchStore
    from harness.bench.run import measure
    from harness.bench.show import bench_tables, peers_text

    screen = tools.console()

    def tell(line: str) -> None:
        screen.print(line, markup=False, highlight=False, soft_wrap=True)

    timed = plan.peers and "residual" in plan.parts
    versions = {peer.name: peer.version() for peer in PEERS} if timed else {}
    store = BenchStore(folder, _about(plan, versions))
    folder.mkdir(parents=True, exist_ok=True)
    if versions:
        tell(peers_text(versions))
    stopped = False
    try:
        for rows in measure(plan, tell):
            store.update(rows)
    except KeyboardInterrupt:
        stopped = True
    for part in bench_tables(store.rows):
        screen.print(part, markup=False, highlight=False)
    _draw(store, tell)
    if stopped:
        tell("Stopped; every round that ended is in the table.")
        raise typer.Exit(1)


def _draw(store: BenchStore, tell: Callable[[str], None]) -> None:
    from analysis.figures.bench import bench_figures, read_bench

    if store.rows:
        drawn = bench_figures(read_bench(store.table), store.sentences, store.figures)
        tell(f"table: {store.table}")
        tell(f"every round, machine, versions: {store.record}")
        tell(f"figures: {', '.join(drawn) or 'none yet'}: {store.figures}")


def _about(plan: BenchPlan, peers: dict[str, str]) -> dict[str, Any]:
    from dataclasses import asdict

    from harness import provenance
    from harness.recording import utc_now

    return {
        "created_at": utc_now(),
        "code_version": provenance.code_version(),
        "library_versions": provenance.library_versions(),
        "peers": peers,
        "hardware": provenance.hardware(plan.threads, device=plan.device),
        "plan": asdict(plan),
    }
