"""All constructions by name; a new one joins the test matrix by joining this table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from icgd.constructions.base import AbstractConstruction
from icgd.constructions.cot_linear import CotGlm, CotLasso, CotRidge
from icgd.constructions.cot_network import CotNetwork
from icgd.constructions.functional import Functional
from icgd.constructions.recursion import Recursion
from icgd.constructions.relu_stack import ReluStack
from icgd.constructions.softmax_stack import SoftmaxStack
from icgd.constructions.universal import Universal
from icgd.errors import (
    ConstructionError,
    UnknownNameError,
    UnsupportedProblemError,
    brief,
    did_you_mean,
    listed,
)
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
"""Each construction with its default settings, by its name."""


def construction_named(name: str) -> AbstractConstruction:
    """Return the construction called `name`."""
    if isinstance(name, type) and issubclass(name, AbstractConstruction):
        raise ConstructionError(
            f"construction is the class {name.__name__}; an object of it is expected, which has "
            f"settings. Give {name.__name__}()."
        )
    if not isinstance(name, str) or name not in CONSTRUCTIONS:
        raise UnknownNameError.of("construction", name, known=list(CONSTRUCTIONS))
    return CONSTRUCTIONS[name]


def construction_for(
    problem: Problem, chosen: str | AbstractConstruction, settings: Mapping[str, Any] | None = None
) -> AbstractConstruction:
    """Return the chosen construction with these settings; raise if it cannot serve `problem`."""
    construction = (
        chosen if isinstance(chosen, AbstractConstruction) else construction_named(chosen)
    )
    reason = construction.why_not(problem)
    if reason is not None:
        able = [other.name for other in CONSTRUCTIONS.values() if other.why_not(problem) is None]
        hint = (
            f"Constructions that can: {', '.join(able)}."
            if able
            else "No construction takes it as it is."
        )
        raise UnsupportedProblemError(
            f"{construction.name} cannot compile this problem: {reason} {hint}"
        )
    if settings and construction is chosen:
        given = ", ".join(f"{name}={brief(value)}" for name, value in settings.items())
        raise ConstructionError(
            f"{given} was given beside a construction object, which has its own settings. Put it "
            f"into the object: {type(construction).__name__}({given})."
        )
    return with_settings(construction, settings or {})


def with_settings(
    construction: AbstractConstruction, settings: Mapping[str, Any]
) -> AbstractConstruction:
    """Return the construction with these settings in place of its own."""
    own = construction.settings()
    for name in settings:
        if name not in own:
            owners = [c.name for c in CONSTRUCTIONS.values() if name in c.settings()]
            has = f"its settings are {', '.join(own)}" if own else "it has no settings"
            hint = f" {name} is a setting of {', '.join(owners)}." if owners else ""
            raise ConstructionError(
                f"{construction.name} has no setting {brief(name)}; {has}."
                f"{hint or did_you_mean(name, own)}"
            )
    return replace(construction, **settings)


def able_to_serve(problem: Problem, settings: Mapping[str, Any]) -> list[AbstractConstruction]:
    """Return the constructions that serve `problem`, with these settings, but last resorts."""
    reasons = {name: c.why_not(problem) for name, c in CONSTRUCTIONS.items()}
    able = [c for name, c in CONSTRUCTIONS.items() if reasons[name] is None]
    if not able:
        raise UnsupportedProblemError(
            f"No construction can compile this problem. {listed(_relevant(problem, reasons))}"
        )
    owners = [c for c in able if set(settings) <= set(c.settings())] or able[:1]
    if len(able) > 1 and not set(settings) <= set(owners[0].settings()):
        known = [name for c in able for name in c.settings()]
        has = "; ".join(f"{c.name} has {', '.join(c.settings()) or 'none'}" for c in able)
        hints = (did_you_mean(name, known) for name in settings if name not in known)
        raise ConstructionError(
            "No construction that serves this problem has all of the given settings "
            f"({', '.join(settings)}): {has}.{''.join(hints)}"
        )
    first_choices = [c for c in owners if not c.is_last_resort] or owners
    return [with_settings(construction, settings) for construction in first_choices]


def _relevant(problem: Problem, reasons: Mapping[str, str | None]) -> dict[str, str]:
    """Return the reasons of the constructions that train targets of this kind."""
    own = {name for name, construction in CONSTRUCTIONS.items() if construction.trains(problem)}
    return {name: reason for name, reason in reasons.items() if reason and name in own}
