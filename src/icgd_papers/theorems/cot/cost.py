r"""Remark 4.1: the chain's block does not grow with N, a stack that carries all weights does.

A gradient step of an N-layer network is counted in both: 2N blocks of cot-network, and the layers
of relu-stack, which is wu's construction. Nothing is built; the counts are those of `icgd size`.
"""

from __future__ import annotations

from math import log2

from icgd.compiled import Compiled
from icgd.pipeline import compile
from icgd_papers.studies.cost_cases import Network
from icgd_papers.theorems.statement import Comparison, Finding, Statement

WIDTH, N_EXAMPLES = 8, 8
DEPTHS = (32, 64, 128)


def _compiled(construction: str, depth: int) -> Compiled:
    batch_size = N_EXAMPLES if construction == "cot-network" else None
    problem = Network(depth, WIDTH, N_EXAMPLES, seed=0).problem(batch_size)
    return compile(problem, construction, n_steps=1)


def _flops(construction: str, depth: int) -> float:
    return float(_compiled(construction, depth).summary(N_EXAMPLES).flops)


def _growth(construction: str) -> float:
    """The exponent of N in the FLOPs of a step, from the two largest depths."""
    return log2(_flops(construction, DEPTHS[-1]) / _flops(construction, DEPTHS[-2]))


def _saving(seed: int) -> Finding:
    del seed  # counts have no chance in them
    exponent = _growth("relu-stack") - _growth("cot-network")
    widths = {_compiled("cot-network", depth).summary().d_model for depth in DEPTHS}
    sizes = f"d = {WIDTH}, {N_EXAMPLES} examples, N = {DEPTHS[-2]} to {DEPTHS[-1]}"
    return Finding(
        (
            Comparison(
                f"{sizes}: exponent of N in the ratio of FLOPs, its distance from 1",
                abs(exponent - 1),
                0.05,
                "exponent",
            ),
            Comparison(
                f"d = {WIDTH}, N = {DEPTHS[0]} to {DEPTHS[-1]}: other widths of the stream",
                float(len(widths) - 1),
                0.0,
                "widths",
            ),
        )
    )


SAVING = Statement(
    paper="cot",
    label="Remark 4.1",
    claim=(
        "The chain, whose block sees two weight matrices at a time, saves a factor of the order of "
        "N in computation over a transformer that carries all N matrices through every layer. It "
        "is a statement about growth: how large N must be before the chain does less, the paper "
        "leaves open."
    ),
    formula="FLOPs(all matrices in every token) / FLOPs(chain) = O(N)",
    check=_saving,
)
