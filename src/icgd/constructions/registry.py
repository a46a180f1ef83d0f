"""All constructions by name; an entry in this table also adds a construction to the test matrix."""

from __future__ import annotations

from icgd.constructions.base import AbstractConstruction
from icgd.constructions.cot_network import CotNetwork
from icgd.constructions.cot_section3 import CotGlm, CotLasso, CotRidge
from icgd.constructions.functional import Functional
from icgd.constructions.linear_stack import LinearStack
from icgd.constructions.recursion import Recursion
from icgd.constructions.relu_stack import ReluStack
from icgd.constructions.softmax_stack import SoftmaxStack
from icgd.constructions.universal import Universal

CONSTRUCTIONS: dict[str, AbstractConstruction] = {
    construction.name: construction
    for construction in (
        ReluStack(),
        SoftmaxStack(),
        Universal(),
        Recursion(),
        CotNetwork(),
        Functional(),
        LinearStack(),
        CotRidge(),
        CotLasso(),
        CotGlm(),
    )
}
"""Each construction with its default settings, by name."""
