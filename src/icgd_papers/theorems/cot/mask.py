r"""Definition 4.4 and the input format of Section 4: which two blocks a step is shown.

Forward step i needs F_{i-1} and the newest B_i, backward step i needs B_{i+1} and the newest F_i;
the first of each pass is shown the data of its round in place of one of them. Here blocks have
names, such as ("F", 2), so that what a mask shows can be read off the chain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from icgd.program.chain import ChainMask
from icgd_papers.theorems.statement import Comparison, Finding, Statement

Name = tuple[str, int]
"""The letter of a block and its layer, or its round for data."""

Far = Callable[[int, int], int]
"""The number of the second block that step t reads in a network of depth N."""

DEPTHS, N_ROUNDS = (1, 2, 3, 4), 3


def chain(depth: int, n_rounds: int = N_ROUNDS) -> list[Name]:
    """The names of the blocks 1, 2, .. that are written."""
    layers = range(1, depth + 1)
    one = [("F", layer) for layer in layers] + [("B", layer) for layer in reversed(layers)]
    return one * n_rounds


def prompt(depth: int, *, is_reversed: bool = True) -> list[Name]:
    """The names of the prompt's last blocks, which are blocks -(N - 1) .. 0."""
    layers = range(depth, 0, -1) if is_reversed else range(1, depth + 1)
    return [("B", layer) for layer in layers]


def needed(depth: int) -> Iterator[tuple[int, Name, Name | None]]:
    """For each step its number and the names of the two blocks it needs; None stands for data."""
    for number, (letter, layer) in enumerate(chain(depth), start=1):
        if letter == "F":
            first = layer == 1
            yield number, ("B", 1) if first else ("F", layer - 1), None if first else ("B", layer)
        else:
            first = layer == depth
            near = ("F", depth) if first else ("B", layer + 1)
            yield number, near, None if first else ("F", layer)


def block_at(depth: int, number: int, before: int, *, is_reversed: bool = True) -> Name | None:
    """The block of this number, if it is written when block `before` is made."""
    names = prompt(depth, is_reversed=is_reversed) + chain(depth)
    place = number + depth - 1
    return names[place] if 0 <= place < before + depth - 1 else None


def wrong_steps(
    depth: int, far: Far, *, is_reversed: bool = True, n_steps: int | None = None
) -> int:
    """How many steps are shown another block than one that they need, among t - 1 and `far`."""
    wrong = 0
    for number, near_name, far_name in list(needed(depth))[:n_steps]:
        near = block_at(depth, number - 1, number, is_reversed=is_reversed)
        shown = far_name
        if far_name is not None:
            shown = block_at(depth, far(number, depth), number, is_reversed=is_reversed)
        wrong += near != near_name or shown != far_name
    return wrong


def corrected(number: int, depth: int) -> int:
    """t - (2i - 1), as `ChainMask` has it; steps at i = 1 read data instead."""
    (reading,) = ChainMask(depth).walk(number, 1)
    return number if reading.far is None else reading.far


def printed(number: int, depth: int) -> int:
    """t - (2t mod N)."""
    return number - 2 * number % depth


def _other_readings(depth: int) -> Iterator[Far]:
    """t may be counted from any block of the prompt on, and mod may be taken of the difference."""
    for shift in range(2 * N_ROUNDS + depth + 1):
        yield partial(_shifted, printed, shift)
        yield partial(_shifted, _mod_of_all, shift)


def _shifted(far: Far, shift: int, number: int, depth: int) -> int:
    return far(number + shift, depth) - shift


def _mod_of_all(number: int, depth: int) -> int:
    """(t - 2t) mod N."""
    return (number - 2 * number) % depth


def wrong_data(depth: int, place: Callable[[int, int], int]) -> int:
    """How many first steps of a pass read other data than X_l or Y_l, which are 2l - 1 and 2l."""
    firsts = [number for number, _, far in needed(depth) if far is None]
    return sum(place(number, depth) != order for order, number in enumerate(firsts, start=1))


def _masks(seed: int) -> Finding:
    del seed  # all steps are tried
    unit = "steps shown a wrong block"
    case = f"{N_ROUNDS} rounds"
    right = [
        Comparison(f"N = {n}, {case}: t - (2i - 1)", float(wrong_steps(n, corrected)), 0.0, unit)
        for n in DEPTHS
    ]
    right += [
        Comparison(f"N = {n}, {case}: data floor((t-1)/N) + 1", float(_right_data(n)), 0.0, unit)
        for n in DEPTHS
    ]
    best = min(wrong_steps(3, far) for far in _other_readings(3))
    return Finding(
        tuple(right),
        printed=(
            _reads_itself(),
            Comparison(f"N = 3, {case}: t - (2t mod N)", float(wrong_steps(3, printed)), 0.0, unit),
            Comparison(f"N = 3, {case}: its best reading", float(best), 0.0, unit),
            Comparison(f"N = 3, {case}: data floor(t/N) - 1", float(_printed_data(3)), 0.0, unit),
        ),
    )


def _reads_itself() -> Comparison:
    """At N = 1 no t has t mod N = 1, and 2t mod N = 0: step 1 is shown the block that it writes."""
    back = 1 - printed(1, 1)
    case = "N = 1, t = 1: is shown block 1 itself, before it is written"
    return Comparison(case, float(back == 0), 0.0, "steps shown a wrong block")


def _right_data(depth: int) -> int:
    return wrong_data(depth, lambda t, n: (t - 1) // n + 1)


def _printed_data(depth: int) -> int:
    return wrong_data(depth, lambda t, n: t // n - 1)


MASK = Statement(
    paper="cot",
    label="Definition 4.4",
    claim=(
        "The mask shows step t the block t - 1 and the block t - 2t mod N, or the data block "
        "floor(t/N) - 1 if t mod N is 1, and these are the blocks that the step needs."
    ),
    formula="t - 1, t - 2t mod N if t mod N != 1; t - 1, floor(t/N) - 1 if t mod N = 1",
    check=_masks,
    correction=(
        "Block t is the i-th of its pass, i = ((t-1) mod N) + 1, and reads t - 1 and t - (2i - 1); "
        "at i = 1 it reads data floor((t-1)/N) + 1 of X_1, Y_1, X_2, .. instead. B_i needs "
        "B_{i+1}, not the B_{i-1} that the text above the definition names."
    ),
)


def _order(seed: int) -> Finding:
    """The first round with the initial blocks in either order; at N = 1 there is but one."""
    del seed  # all steps are tried
    unit = "forward steps of the first round shown a wrong block"
    orders = (("B_N .. B_1", True), ("B_1 .. B_N", False))
    right, wrong = (
        tuple(
            Comparison(
                f"N = {n}, prompt ends with {text}",
                float(wrong_steps(n, corrected, is_reversed=is_reversed, n_steps=n)),
                0.0,
                unit,
            )
            for n in DEPTHS[1:]
        )
        for text, is_reversed in orders
    )
    return Finding(right, printed=wrong)


PROMPT_ORDER = Statement(
    paper="cot",
    label="Section 4.1, input format",
    claim="The prompt holds the data and then the initial weights in the order B_1 .. B_N.",
    formula="Z = [X_1 Y_1 .. X_L Y_L B_1 .. B_N]",
    check=_order,
    correction=(
        "B_N .. B_1, the order in which every round writes them: the first step reads the block "
        "before it, which has to be B_1, and step i reads 2i - 1 blocks back."
    ),
)
