"""Rules of layer norms against numbers that are drawn at random within their enclosures."""

import pytest
import torch
from torch import Tensor

from icgd.certificates.bounds import Moment
from icgd.certificates.enclosures import Arithmetic, Enclosure
from icgd.certificates.intervals import Interval
from icgd.certificates.norm_bounds import centred
from icgd.certificates.rules import rule
from icgd.program.instructions import ONE, PullBack
from icgd.program.layout import Layout, Role, Slot
from icgd.program.norm_instructions import Covary, ScaleCentred
from icgd.program.stack import StackProgram

EXACTLY = Arithmetic(0.0, 5, sums_terms=True)
FLOAT32 = Arithmetic(2.0**-24, 5, sums_terms=True)
SHAPES = {"z": 4, "g": 4, "h": 4, "scale": 1, "share": 1, "number": 1, "write": 4}
LAYOUT = Layout(tuple(Slot(name, (width,), Role.SCRATCH) for name, width in SHAPES.items()))
PROGRAM = StackProgram("by hand", LAYOUT, (), (), 0, ())
GENERATOR = torch.Generator().manual_seed(8)
CENTRES = {
    name: torch.randn(3, width, generator=GENERATOR, dtype=torch.float64)
    for name, width in SHAPES.items()
}
WIDTHS = [(0.0, 0.0), (0.0, 0.01), (0.5, 0.0), (0.25, 0.5)]


def covariance(a: Tensor, b: Tensor) -> Tensor:
    a, b = (part - part.mean(-1, keepdim=True) for part in (a, b))
    return (a * b).mean(-1, keepdim=True)


def scaled(s: dict[str, Tensor]) -> Tensor:
    return s["scale"] * (s["g"] - s["g"].mean(-1, keepdim=True) - s["share"] * s["h"])


def pulled(s: dict[str, Tensor]) -> Tensor:
    return s["h"] * (s["g"] @ s["matrix"] + s["z"])


MATRIX = torch.randn(4, 4, generator=GENERATOR, dtype=torch.float64)
CASES = {
    "variance": (Covary("z", "z", "number"), lambda s: covariance(s["z"], s["z"])),
    "covariance": (Covary("g", "h", "number"), lambda s: covariance(s["g"], s["h"])),
    "back": (ScaleCentred("g", "scale", "write", "h", "share"), scaled),
    "plus": (PullBack("matrix", "g", "h", "write", ("z",)), pulled),
    "no slope": (
        PullBack("matrix", "g", ONE, "write", ("z", "h")),
        lambda s: s["g"] @ s["matrix"] + s["z"] + s["h"],
    ),
}


def state(radius: float, error: float) -> dict[str, Enclosure]:
    found = {
        name: Enclosure.around(
            Interval(centre - radius, centre + radius), torch.full_like(centre, error)
        )
        for name, centre in CENTRES.items()
    }
    return found | {"matrix": Enclosure.common(Interval.point(MATRIX))}


def drawn(radius: float, error: float) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Exact numbers, and others that are off by as much as the error allows: many of each."""
    exact, actual = {"matrix": MATRIX}, {"matrix": MATRIX}
    for name, centre in CENTRES.items():
        place, off = (2 * torch.rand(4000, *centre.shape, dtype=torch.float64) - 1 for _ in "ab")
        exact[name] = centre + radius * place
        actual[name] = exact[name] + error * off.sign()
    return exact, actual


@pytest.mark.parametrize(("radius", "error"), WIDTHS)
@pytest.mark.parametrize(("instruction", "value"), CASES.values(), ids=CASES)
def test_numbers_lie_where_the_rules_say(instruction, value, radius, error):
    torch.manual_seed(1)
    (found,) = rule(instruction, Moment(PROGRAM, state(radius, error), EXACTLY)).values()
    exact, actual = (value(slots) for slots in drawn(radius, error))
    slack = 1e-13
    for numbers, interval in ((exact, found.exact), (actual, found.actual)):
        assert (numbers >= interval.low - slack).all()
        assert (numbers <= interval.high + slack).all()
    assert ((exact - actual).abs() <= found.error + slack).all()
    assert found.error.max() <= 12 * (exact - actual).abs().max() + 1e-12


def test_variances_are_not_negative():
    wide = Moment(PROGRAM, state(5.0, 3.0), EXACTLY)
    found = rule(Covary("z", "z", "number"), wide)["number"]
    assert (found.exact.low >= 0).all()
    assert (found.actual.low >= 0).all()


def test_centred_numbers_are_known_to_rounding():
    z = Enclosure.common(Interval.point(CENTRES["z"]))
    found = centred(z, Arithmetic(2.0**-53, 5, sums_terms=True))
    truth = CENTRES["z"] - CENTRES["z"].mean(-1, keepdim=True)
    assert ((found.exact.low <= truth) & (truth <= found.exact.high)).all()
    assert found.error.max() < 1e-13


def test_a_norm_stays_within_its_reach_but_for_rounding():
    norm = ScaleCentred("z", "scale", "write", reach=4.0)
    slots = state(5.0, 3.0)
    slots["scale"] = Enclosure.around(
        Interval(torch.zeros(3, 1).double(), torch.full((3, 1), 1e3).double()),
        torch.full((3, 1), 1e3).double(),
    )
    exactly = rule(norm, Moment(PROGRAM, slots, EXACTLY))["write"]
    assert exactly.actual.high.max() == 4.0
    assert exactly.exact.low.min() == -4.0
    assert exactly.error.max() <= 8.0 * (1 + 1e-8)
    rounded = rule(norm, Moment(PROGRAM, slots, FLOAT32))["write"]
    assert 4.001 < rounded.actual.high.max() < 5.0


def test_rounding_may_leave_the_reach_by_as_much_as_is_allowed():
    """All numbers are nearly alike, so that a norm in float32 consists of rounding."""
    z = 1000 + 1e-4 * torch.randn(200, 4, generator=GENERATOR, dtype=torch.float64)
    scale = torch.full((200, 1), 1e6, dtype=torch.float64)
    single = z.float()
    actual = (single - single.mean(-1, keepdim=True)) * scale.float()
    assert actual.abs().max() > 4.0
    slots = {
        "z": Enclosure.around(Interval.point(z), torch.full_like(z, 1e-4)),
        "scale": Enclosure.common(Interval.point(scale)),
    }
    norm = ScaleCentred("z", "scale", "write", reach=4.0)
    found = rule(norm, Moment(PROGRAM, slots, FLOAT32))["write"]
    assert (actual.abs() <= found.actual.high).all()
