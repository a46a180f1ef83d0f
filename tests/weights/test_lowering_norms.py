"""Heads of layer norms, and what shortcuts add to heads: what they compute, and their sizes."""

import pytest
import torch
from torch.nn import functional

from icgd.layers import ProductLayer
from icgd.program.instructions import ONE, PullBack
from icgd.program.layout import Layout, Role, Slot
from icgd.program.network_instructions import Covary, ScaleCentred, centring
from icgd.program.program import Layer
from icgd.program.stack import StackProgram
from icgd.weights.lowering import lower_layer
from icgd.weights.sizes import layer_size

WIDE, N_TOKENS = ("source", "along", "plus", "slope", "write"), 5
LAYOUT = Layout(
    (
        *(Slot(name, (4,), Role.SCRATCH) for name in WIDE),
        Slot("upstream", (2,), Role.SCRATCH),
        Slot("matrix", (2, 5), Role.PARAMETER),
        *(Slot(name, (1,), Role.SCRATCH) for name in ("scale", "share", "number")),
        Slot(ONE, (1,), Role.CONSTANT),
    )
)
PROGRAM = StackProgram("by hand", LAYOUT, (), (), 0, ())
INSTRUCTIONS = {
    "covary": Covary("source", "along", "number"),
    "norm": ScaleCentred("source", "scale", "write", reach=4.0),
    "back": ScaleCentred("source", "scale", "write", "along", "share"),
    "plus": PullBack("matrix", "upstream", "slope", "write", ("plus", "along")),
    "no slope": PullBack("matrix", "upstream", ONE, "write", ("plus",)),
}


def slots_of(stream: torch.Tensor) -> dict[str, torch.Tensor]:
    return {name: stream[:, LAYOUT.range_of(name)] for name in LAYOUT.names}


def stream() -> torch.Tensor:
    """Random slots; what is written is empty, and all tokens have the same matrix."""
    generator = torch.Generator().manual_seed(5)
    found = torch.randn(N_TOKENS, LAYOUT.width, generator=generator, dtype=torch.float64)
    for name, value in {"write": 0.0, "number": 0.0, ONE: 1.0}.items():
        found[:, LAYOUT.range_of(name)] = value
    found[:, LAYOUT.range_of("matrix")] = found[:1, LAYOUT.range_of("matrix")]
    return found


def written_by(name: str, s: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What the instruction is to write, by its definition."""
    passed = s["upstream"] @ s["matrix"][0].view(2, 5)[:, :4]
    rows = [torch.stack(pair) for pair in zip(s["source"], s["along"], strict=True)]
    covariances = torch.stack([torch.cov(pair, correction=0)[0, 1] for pair in rows])
    centred = s["source"] - s["source"].mean(-1, keepdim=True)
    return {
        "covary": {"number": covariances[:, None]},
        "norm": {"write": s["scale"] * centred},
        "back": {"write": s["scale"] * (centred - s["share"] * s["along"])},
        "plus": {"write": s["slope"] * (passed + s["plus"] + s["along"])},
        "no slope": {"write": passed + s["plus"]},
    }[name]


@pytest.mark.parametrize(("name", "instruction"), INSTRUCTIONS.items(), ids=INSTRUCTIONS)
def test_heads_write_what_the_instruction_says_and_nothing_else(name, instruction):
    layer = Layer(name, (instruction,))
    lowered = lower_layer(layer, PROGRAM, torch.float64)
    assert type(lowered) is ProductLayer
    before = stream()
    expected = slots_of(before) | written_by(name, slots_of(before))
    for slot, value in slots_of(lowered(before)).items():
        torch.testing.assert_close(value, expected[slot], rtol=1e-13, atol=1e-14)
    size, weights = layer_size(layer, PROGRAM), list(lowered.parameters())
    assert size.parameters == sum(part.numel() for part in weights)
    assert size.nonzeros == sum(int(part.count_nonzero()) for part in weights)


def test_centring_takes_the_mean_away():
    z = torch.tensor([1.0, 2.0, 6.0], dtype=torch.float64)
    matrix = torch.tensor(centring(3), dtype=torch.float64)
    torch.testing.assert_close(matrix @ z, z - 3.0)


def test_four_layers_are_a_layer_norm():
    """The deviation comes from one, and the norm from another; torch has them in one."""
    z = stream()[:, LAYOUT.range_of("source")]
    covary = lower_layer(Layer("v", (Covary("source", "source", "number"),)), PROGRAM, z.dtype)
    before = stream()
    variance = covary(before)[:, LAYOUT.range_of("number")]
    before[:, LAYOUT.range_of("scale")] = 1 / (variance + 1e-5).sqrt()
    norm = lower_layer(Layer("n", (INSTRUCTIONS["norm"],)), PROGRAM, z.dtype)
    after = norm(before)[:, LAYOUT.range_of("write")]
    torch.testing.assert_close(after, functional.layer_norm(z, (4,)), rtol=1e-12, atol=1e-13)
