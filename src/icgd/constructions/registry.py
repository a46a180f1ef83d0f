"""All constructions by name; a new one joins the test matrix by joining this table."""

from __future__ import annotations

from icgd.constructions.base import AbstractConstruction
from icgd.constructions.cot_linear import AbstractCotLinear, CotGlm, CotLasso, CotRidge
from icgd.constructions.cot_network import CotNetwork
from icgd.constructions.functional import Functional
from icgd.constructions.recursion import Recursion
from icgd.constructions.relu_stack import ReluStack
from icgd.constructions.softmax_stack import SoftmaxStack
from icgd.constructions.universal import Universal
from icgd.errors import UnknownNameError, UnsupportedProblemError
from icgd.problems.problem import Problem

CONSTRUCTIONS: dict[str, AbstractConstruction] = {
    construction.name: construction
    for construction in (
        ReluStack(),
        SoftmaxStack(),
        Universal(),
        Recursion(),
        CotNetwork(),
        Functional(),
        CotRidge(),
        CotLasso(),
        CotGlm(),
    )
}


def construction_named(name: str) -> AbstractConstruction:
    """The construction called `name`."""
    if not isinstance(name, str) or name not in CONSTRUCTIONS:
        raise UnknownNameError.of("construction", name, known=list(CONSTRUCTIONS))
    return CONSTRUCTIONS[name]


def construction_for(problem: Problem, name: str | None) -> AbstractConstruction:
    """The construction called `name`, if it can serve `problem`; else say why and which can.

    Without a name, the first one that trains such a target, or of several the first that serves it.
    """
    construction = _default(problem) if name is None else construction_named(name)
    name, reason = construction.name, construction.why_not(problem)
    if reason is not None:
        able = [other.name for other in CONSTRUCTIONS.values() if other.why_not(problem) is None]
        raise UnsupportedProblemError.of(name, reason, able)
    return construction


def _default(problem: Problem) -> AbstractConstruction:
    """Of a network it is relu-stack, also where another would serve: that must be asked for."""
    candidates = [c for c in CONSTRUCTIONS.values() if isinstance(problem.target, c.target)]
    linear = (c for c in candidates if isinstance(c, AbstractCotLinear))
    suited = (c for c in linear if not c.other_model(problem.model, problem.proximal_step))
    return next(suited, candidates[0])
