"""The sizes of transformers for a step on one problem, beside those before heads were shared."""

from __future__ import annotations

import icgd
from icgd.compiled import Compiled

WIDTHS = ((3, 4, 4, 2), (8, 16, 16, 1), (8, 64, 64, 1))

CASES = {
    "relu-stack, tanh": ("relu-stack", "tanh"),
    "relu-stack, tanh, adam": ("relu-stack", "tanh"),
    "relu-stack, relu": ("relu-stack", "relu"),
    "softmax-stack, tanh": ("softmax-stack", "tanh"),
    "softmax-stack, relu": ("softmax-stack", "relu"),
    "recursion, tanh": ("recursion", "tanh"),
    "recursion, relu": ("recursion", "relu"),
    "cot-network, tanh": ("cot-network", "tanh"),
    "cot-network, relu": ("cot-network", "relu"),
}

COLUMNS = ("layers a step", "heads", "d_model", "units", "tokens", "weights", "non-zeros")

BEFORE = {
    ("relu-stack, tanh", "3-4-4-2"): (10, 1584, 77, 164, 0, 2293532, 17680),
    ("relu-stack, tanh", "8-16-16-1"): (10, 6280, 513, 1070, 0, 185824034, 177802),
    ("relu-stack, tanh", "8-64-64-1"): (10, 25096, 5073, 10382, 0, 23806523906, 1930618),
    ("relu-stack, tanh, adam", "3-4-4-2"): (13, 1656, 293, 18416, 0, 19525184, 90076),
    ("relu-stack, tanh, adam", "8-16-16-1"): (13, 7080, 2913, 237470, 0, 2441995634, 1116602),
    ("relu-stack, tanh, adam", "8-64-64-1"): (13, 34440, 33105, 3332174, 0, 376531259714, 15138362),
    ("relu-stack, relu", "3-4-4-2"): (10, 56, 77, 188, 0, 99364, 988),
    ("relu-stack, relu", "8-16-16-1"): (10, 168, 513, 1166, 0, 5806274, 7402),
    ("relu-stack, relu", "8-64-64-1"): (10, 648, 5073, 10766, 0, 727539842, 78586),
    ("softmax-stack, tanh", "3-4-4-2"): (7, 96, 82, 164, 80, 174004, 2180),
    ("softmax-stack, tanh", "8-16-16-1"): (7, 328, 521, 1126, 198, 11252642, 14254),
    ("softmax-stack, tanh", "8-64-64-1"): (7, 1288, 5081, 10630, 198, 1499901506, 136558),
    ("softmax-stack, relu", "3-4-4-2"): (10, 96, 88, 220, 32, 196636, 2268),
    ("softmax-stack, relu", "8-16-16-1"): (10, 328, 551, 1350, 32, 12147594, 14606),
    ("softmax-stack, relu", "8-64-64-1"): (10, 1288, 5207, 11526, 32, 1546428042, 137966),
    ("recursion, tanh", "3-4-4-2"): (5, 2984, 165, 9376, 0, 5896576, 47750),
    ("recursion, tanh", "8-16-16-1"): (5, 42080, 2895, 120192, 0, 1458459072, 646481),
    ("recursion, tanh", "8-64-64-1"): (5, 598400, 42255, 1536848, 0, 298489504688, 8524609),
    ("recursion, relu", "3-4-4-2"): (5, 188, 165, 332, 0, 516452, 2464),
    ("recursion, relu", "8-16-16-1"): (5, 4966, 2895, 5802, 0, 161627862, 49500),
    ("recursion, relu", "8-64-64-1"): (5, 75142, 42255, 84618, 0, 36952758198, 698604),
    ("cot-network, tanh", "3-4-4-2"): (24, 176, 796, 1206, 134, 5441204, 8060),
    ("cot-network, tanh", "8-16-16-1"): (24, 896, 4060, 6654, 394, 303004848, 54820),
    ("cot-network, tanh", "8-64-64-1"): (24, 6656, 31516, 57246, 394, 58161133776, 589060),
    ("cot-network, relu", "3-4-4-2"): (18, 80, 550, 856, 31, 2543537, 4746),
    ("cot-network, relu", "8-16-16-1"): (18, 512, 3094, 5272, 31, 140445057, 35754),
    ("cot-network, relu", "8-64-64-1"): (18, 5120, 27670, 51736, 31, 39698283777, 418986),
}
"""The columns of every row at commit 33d43a4, where r and r' had heads of their own."""


def rows() -> list[dict[str, object]]:
    found = []
    for case in CASES:
        for widths in WIDTHS:
            name = "-".join(map(str, widths))
            pairs = zip(BEFORE[case, name], counts(compiled(case, widths)), strict=True)
            cells = [f"{old:,}" if old == new else f"{old:,} → {new:,}" for old, new in pairs]
            found.append({"case": case, "widths": name, **dict(zip(COLUMNS, cells, strict=True))})
    return found


def compiled(case: str, widths: tuple[int, ...]) -> Compiled:
    """One step of 0.1 in a box of 1, |x| and |y| up to 1; a chain takes 8 examples a round."""
    construction, activation = CASES[case]
    update: icgd.GradientStep | icgd.AdamStep = icgd.GradientStep(0.1, box=1.0)
    if construction == "cot-network":
        update = icgd.GradientStep(0.1, box=1.0, batch_size=8)
    if case.endswith("adam"):
        update = icgd.AdamStep(0.01, box=1.0)
    domain = icgd.Domain(x=1.0, y=1.0)
    problem = icgd.Problem(icgd.MLP(widths, activation), "squared", update, domain)
    return icgd.compile(problem, construction, n_steps=1)


def counts(compiled: Compiled) -> tuple[int, ...]:
    """What the columns say: heads and units of all layers, and tokens in front of the examples."""
    summary = compiled.summary()
    units = sum(layer.units for layer in summary.layers if not layer.n_heads)
    return (
        summary.layers_per_step,
        summary.n_heads,
        summary.d_model,
        units,
        summary.n_registers,
        summary.parameters,
        summary.nonzeros,
    )
