"""The target network's forward pass, one attention layer for each of its layers, and its slopes.

Where r has a kink at 0, its slope jumps there, and a ramp of width w stands in for the jump:

    1 - relu(w - z) / w + relu(-z) / w

Below 0 two numbers of size |z| / w cancel, so that rounding costs |z| / w units of it. At relu(z)
the slope is the same, and there nothing cancels. So a ramp is evaluated at relu(z), by an MLP, and
may be as narrow as it likes. If r is relu itself, the stream holds relu(z) already.

A layer with a norm takes more layers. Shortcuts are added in an MLP layer, the last of these:

    attention   linear = V_j p_{j-1}
    product     variance = cov(linear, linear)
    MLP         scale = 1 / sqrt(variance + eps), a sum of ReLUs
    product     normed = scale * (linear - mean(linear))
    MLP         units = r(normed), unless r is the identity; sum = r(normed) + p_i + ...
"""

from __future__ import annotations

from math import sqrt

from icgd.problems.activations import IDENTITY_FUNCTION, RELU, Activation
from icgd.problems.functions import KinkedFunction
from icgd.problems.mlp import MLP
from icgd.problems.optimisers.rule import WEIGHTS
from icgd.problems.roots import ReciprocalDeviation, reciprocal_deviation
from icgd.program.instructions import ONE, ApplyUnits, Combination, MapSlots, Summand
from icgd.program.norm_instructions import Covary, ScaleCentred
from icgd.program.program import Layer


def units_slot(layer: int) -> str:
    """The slot of p_j; p_0 is the input."""
    return "x" if layer == 0 else f"units_{layer}"


def activated_slot(target: MLP, layer: int) -> str:
    """The slot of r(z_j): that of the norm if there is one, and r is the identity."""
    if layer in target.norms and target.layer_activation(layer).value == IDENTITY_FUNCTION:
        return f"normed_{layer}"
    return units_slot(layer)


def output_slot(target: MLP, layer: int) -> str:
    """The slot of p_j, shortcuts included."""
    return f"sum_{layer}" if target.sources(layer) else activated_slot(target, layer)


def bias_slot(target: MLP) -> str | None:
    """The slot that the last column of every matrix multiplies, if the network has biases."""
    return ONE if target.biases else None


def has_kink(activation: Activation) -> bool:
    """Whether the slope of the activation jumps at 0."""
    return isinstance(activation.value, KinkedFunction) and bool(activation.value.knots)


def positive_slot(target: MLP, layer: int) -> str:
    """The slot of relu(z_j), where r has a kink: that of p_j if r is relu."""
    is_relu = target.layer_activation(layer).value == RELU
    return units_slot(layer) if is_relu else f"positive_{layer}"


def positive_layers(target: MLP) -> list[int]:
    """The layers with a kink that need a slot of their own for relu(z_j)."""
    layers = range(1, target.depth + 1)
    kinked = [layer for layer in layers if has_kink(target.layer_activation(layer))]
    return [layer for layer in kinked if positive_slot(target, layer) != units_slot(layer)]


def forward_pass(target: MLP, weights: str = WEIGHTS) -> list[Layer]:
    """p_j for j = 1 .. N, into the slots that `output_slot` names.

    The matrices V_j stand in slots `weights_1 .. weights_N`, or in those of another kind.
    """
    layers: list[Layer] = []
    for j in range(1, target.depth + 1):
        layers += _normed(target, j, weights) if j in target.norms else [_units(target, j, weights)]
        layers += _activated(target, j)
    return layers


def _units(target: MLP, layer: int, weights: str) -> Layer:
    function = target.layer_activation(layer).value.name
    return Layer(f"forward {layer}", (_apply(target, layer, function, units_slot(layer), weights),))


def _normed(target: MLP, layer: int, weights: str) -> list[Layer]:
    """The preactivation with its norm, into slot `normed_j`."""
    linear, variance, scale = (f"{name}_{layer}" for name in ("linear", "variance", "scale"))
    root = Summand(Combination.of(variance), norm_root(target).name)
    product = _apply(target, layer, IDENTITY_FUNCTION.name, linear, weights)
    reach = largest_norm(target.widths[layer])
    norm = ScaleCentred(linear, scale, f"normed_{layer}", reach=reach)
    return [
        Layer(f"forward {layer}", (product,)),
        Layer(f"variance {layer}", (Covary(linear, linear, variance),)),
        Layer(f"scale {layer}", (_mapped((root,), scale),)),
        Layer(f"norm {layer}", (norm,)),
    ]


def largest_norm(width: int) -> float:
    """A number less the mean of k of them is at most sqrt(k) of their deviation.

    The fitted root is less than twice too large.
    """
    return 2 * sqrt(width)


def norm_root(target: MLP) -> ReciprocalDeviation:
    """The function by which norms divide."""
    return reciprocal_deviation(target.norm_eps)


def _activated(target: MLP, layer: int) -> list[Layer]:
    """What is left to do after the units of a layer: r of a norm, and shortcuts."""
    r, units = target.layer_activation(layer).value.name, activated_slot(target, layer)
    has_norm, written = layer in target.norms, list[MapSlots]()
    value = Summand(Combination.of(f"normed_{layer}"), r)
    if has_norm and units == units_slot(layer):
        written.append(_mapped((value,), units))
    if has_norm and layer in positive_layers(target):
        positive = Summand(Combination.of(f"normed_{layer}"), RELU.name)
        written.append(_mapped((positive,), positive_slot(target, layer)))
    if sources := target.sources(layer):
        own = value if has_norm else _itself(units)
        others = (_itself(output_slot(target, source)) for source in sources)
        written.append(_mapped((own, *others), output_slot(target, layer)))
    return [Layer(f"outputs {layer}", tuple(written))] if written else []


def _itself(slot: str) -> Summand:
    return Summand(Combination.of(slot), IDENTITY_FUNCTION.name)


def _mapped(summands: tuple[Summand, ...], write: str) -> MapSlots:
    return MapSlots(summands, ONE, (), 0.0, write)


def slopes(target: MLP) -> list[Layer]:
    """r'(V_j p_{j-1}) for all layers at once, into slots `slope_1 .. slope_N`.

    Where r has a kink it is relu(V_j p_{j-1}) instead, unless r is relu. `later_slopes` does the
    rest. So no layer is needed if r is relu in all of them.
    """
    instructions = []
    for j in (j for j in range(1, target.depth + 1) if j not in target.norms):
        if not has_kink(target.layer_activation(j)):
            instructions.append(
                _apply(target, j, target.layer_activation(j).derivative.name, f"slope_{j}")
            )
        elif j in positive_layers(target):
            instructions.append(_apply(target, j, RELU.name, positive_slot(target, j)))
    return [Layer("slopes", tuple(instructions))] if instructions else []


def later_slopes(target: MLP) -> tuple[MapSlots, ...]:
    """The slopes that an MLP makes: r'(z_j) from relu(z_j) where r has a kink, and from norms."""
    layers = range(1, target.depth + 1)
    later = [j for j in layers if j in target.norms or has_kink(target.layer_activation(j))]
    return tuple(_slope(target, j) for j in later)


def _slope(target: MLP, layer: int) -> MapSlots:
    activation = target.layer_activation(layer)
    read = positive_slot(target, layer) if has_kink(activation) else f"normed_{layer}"
    slope = Summand(Combination.of(read), activation.derivative.name)
    return _mapped((slope,), f"slope_{layer}")


def _apply(
    target: MLP, layer: int, function: str, write: str, weights: str = WEIGHTS
) -> ApplyUnits:
    inputs = output_slot(target, layer - 1)
    return ApplyUnits(f"{weights}_{layer}", inputs, function, write, bias_slot(target))
