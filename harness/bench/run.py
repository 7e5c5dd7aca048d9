"""Runs `isoloss bench`: builds the subjects of each part, measures memory, then times in rounds.

A generator of rows, so that its caller holds what was measured whatever ends it. Limits: one
process, one device; all subjects of a part are alive while it is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from harness.bench.memory import (
    available_bytes,
    copy_bytes_per_s,
    memory_of,
    synchroniser,
)
from harness.bench.peers import PEERS, Peer
from harness.bench.plan import BASELINE, BenchPlan, BenchShape
from harness.bench.rows import BenchRow, Subject, section_rows, with_round
from harness.bench.steps import (
    STREAM_DTYPES,
    check_choice,
    forward_backward,
    predicted_bytes,
    recipe_part,
    recipe_price,
    training_step,
)
from harness.bench.timing import CLOCKS, timed_rounds
from harness.console import human
from harness.errors import IsolossError
from recipes.base import KERNELS

Tell = Callable[[str], None]
Call = Callable[[], None]
_MEMORY_SHARE = 0.8
"""A peer may take at most this share of the memory that is free."""


def resolve_device(name: str) -> torch.device:
    """Return the device: ``auto`` is CUDA where there is one.

    Raises
    ------
    IsolossError
        CUDA is asked for and absent.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise IsolossError("--device cuda: torch finds no CUDA device here. Use --device cpu.")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def check_plan(plan: BenchPlan) -> None:
    """Build every recipe at every shape once, without the model around it.

    Raises
    ------
    IsolossError or RecipeError
        The first thing that cannot be measured; nothing was timed.
    """
    if plan.kernel not in KERNELS:
        raise IsolossError(f"--kernel {plan.kernel!r}: choose one of {', '.join(KERNELS)}.")
    if resolve_device(plan.device).type == "cuda" and plan.clock == "cpu":
        raise IsolossError("--clock cpu: on CUDA the CPU only waits. Use --clock wall.")
    for shape in plan.all_shapes:
        for choice in plan.recipes:
            check_choice(choice, shape, plan.kernel)


def measure(plan: BenchPlan, tell: Tell) -> Iterator[list[BenchRow]]:
    """Measure everything; yield the rows of what is under way whenever more is known."""
    torch.set_num_threads(plan.threads)
    bench = Bench(plan, resolve_device(plan.device), tell)
    for shape in plan.shapes:
        if "step" in plan.parts:
            yield from bench.timed("step", [bench.steps(shape)])
        if "residual" in plan.parts:
            yield from bench.timed("residual", [bench.residual(shape)])
    if "depth" in plan.parts:
        yield from bench.timed("depth", [bench.steps(shape) for shape in plan.depth_shapes])


@dataclass
class Section:
    """What is timed at one shape."""

    shape: BenchShape
    subjects: list[Subject]
    calls: dict[str, Call]
    """By label; a subject without one is only listed."""
    copy_bytes_per_s: float = 0.0


class Bench:
    """One bench under way."""

    def __init__(self, plan: BenchPlan, device: torch.device, tell: Tell) -> None:
        self.plan, self.device, self.tell = plan, device, tell

    def steps(self, shape: BenchShape) -> Section:
        """Whole training steps of every recipe."""
        calls: dict[str, Call] = {}
        for choice in self.plan.recipes:
            calls[choice.label] = training_step(choice, shape, self.plan, self.device)
            calls[choice.label]()  # the first step allocates the optimiser's state
        subjects = [
            replace(subject, predicted_bytes=predicted_bytes(choice, shape, self.plan))
            for choice, subject in zip(self.plan.recipes, self._recipes(shape), strict=True)
        ]
        return Section(shape, subjects, calls)

    def residual(self, shape: BenchShape) -> Section:
        """The residual part alone, of every recipe and every peer."""
        subjects, calls = self._recipes(shape), dict[str, Call]()
        for choice in self.plan.recipes:
            part = recipe_part(choice, shape, self.plan.kernel)
            calls[choice.label] = forward_backward(
                part, shape, self.plan.precision, self.device, shape.sequences
            )
        for peer in PEERS if self.plan.peers else ():
            note = peer.missing() or self._too_large(peer, shape) or ""
            subjects.append(
                Subject(peer.name, "peer", peer.counterpart, peer.difference, note=note)
            )
            if not note:
                calls[peer.name] = self._peer(peer, shape, shape.sequences)
        return Section(shape, subjects, calls)

    def _recipes(self, shape: BenchShape) -> list[Subject]:
        return [
            Subject(
                choice.label,
                moved_elements=recipe_price(choice, shape).elements_moved_per_token,
            )
            for choice in self.plan.recipes
        ]

    def _peer(self, peer: Peer, shape: BenchShape, sequences: int) -> Call:
        part = peer.make(shape.n_sublayers, shape.d_model)
        return forward_backward(part, shape, self.plan.precision, self.device, sequences)

    def _too_large(self, peer: Peer, shape: BenchShape) -> str | None:
        """Say so if a peer would not fit: one sequence is measured, memory is linear in them."""
        free = available_bytes(self.device)
        one = memory_of(self._peer(peer, shape, 1), self.device).peak
        needed = one * shape.sequences
        if free is None or needed <= _MEMORY_SHARE * free:
            return None
        return f"would need {human(needed)}B of memory, {human(free)}B are free"

    def timed(self, part: str, sections: Sequence[Section]) -> Iterator[list[BenchRow]]:
        """Measure memory, then time all subjects of all sections in turn.

        Yields rows once memory is known and after every round. Depths are sections of one part, so
        that a drift of the machine's speed meets all of them alike.
        """
        for section in sections:
            self._prepare(f"{part} {section.shape.label}", section)
            yield self._rows(part, section)
        calls: dict[tuple[int, str], Call] = {}
        repeats: dict[tuple[int, str], int] = {}
        for at, section in enumerate(sections):
            for subject in section.subjects:
                if subject.label in section.calls:
                    calls[at, subject.label] = section.calls[subject.label]
                    repeats[at, subject.label] = self._repeats(subject)
        rounds = timed_rounds(calls, repeats, synchroniser(self.device), CLOCKS[self.plan.clock])
        for number, seconds in enumerate(rounds, start=1):
            rows: list[BenchRow] = []
            for at, section in enumerate(sections):
                own = {label: s for (where, label), s in seconds.items() if where == at}
                section.subjects = with_round(section.subjects, own)
                rows += self._rows(part, section)
                progress = f"round {number}/{self.plan.repeats}: {_round_text(own)}"
                self.tell(f"{part} {section.shape.label}: {progress}")
            yield rows

    def _prepare(self, where: str, section: Section) -> None:
        """Measure the bandwidth of copies and, as a warm-up, every subject's memory."""
        shape, dtype = section.shape, STREAM_DTYPES[self.plan.precision]
        elements = shape.batch_tokens * shape.d_model
        found = copy_bytes_per_s(elements, shape.n_sublayers + 1, dtype, self.device)
        section.copy_bytes_per_s = found
        self.tell(f"{where}: copies move {human(found)}B/s")
        section.subjects = [self._with_memory(where, s, section.calls) for s in section.subjects]

    def _with_memory(self, where: str, subject: Subject, calls: Mapping[str, Call]) -> Subject:
        if subject.label not in calls:
            self.tell(f"{where}: {subject.label}: {subject.note}")
            return subject
        memory = memory_of(calls[subject.label], self.device)
        self.tell(f"{where}: {subject.label}: peak {human(memory.peak)}B")
        return replace(subject, base_bytes=memory.base, peak_bytes=memory.peak)

    def _repeats(self, subject: Subject) -> int:
        limit = self.plan.peer_repeats if subject.origin == "peer" else self.plan.repeats
        return min(limit, self.plan.repeats)

    def _rows(self, part: str, section: Section) -> list[BenchRow]:
        return section_rows(
            part, section.shape, section.subjects, self.plan.precision, section.copy_bytes_per_s
        )


def _round_text(seconds: Mapping[str, float]) -> str:
    base = seconds[BASELINE]
    ratios = (f"{name} {s / base:.2f}x" for name, s in seconds.items() if name != BASELINE)
    return ", ".join([f"{BASELINE} {1e3 * base:.3g} ms", *ratios])
