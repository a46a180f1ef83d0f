"""wu-checks and wu-products: relu-stack where the paper has only proofs.

wu-checks runs deep networks, real data, activations with kinks, and networks inside the transformer
of a wider one. Every head is computed, and every step is compared with the exact step from the same
weights and with its proved bound. Networks start near the identity, so that no signal dies on its
way through many layers.

wu-products takes one layer out of a transformer, fills the slots that it reads with random numbers,
and compares what it writes with the exact products: the product layer of relu-stack (the paper's
element-wise multiplication), and what stands in its place elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any, cast

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from icgd.backends.prompt import encode
from icgd.cli.cars_demo import read_cars, with_constant
from icgd.compiled import Compiled
from icgd.constructions.base import AbstractConstruction
from icgd.constructions.recursion import Recursion
from icgd.constructions.relu_stack import ReluStack
from icgd.constructions.softmax_stack import SoftmaxStack
from icgd.pictures import plotting
from icgd.pictures.plotting import BLUE, FAINT, ORANGE, RED
from icgd.pipeline import compile, verify
from icgd.problems.data import Domain, Task, as_task
from icgd.problems.mlp import MLP
from icgd.problems.optimisers import GradientStep
from icgd.problems.padding import Padding
from icgd.problems.problem import Problem
from icgd.problems.tables import Scaling
from icgd_papers.figure import Figure, Job, of_preset, six_digits
from icgd_papers.studies.diffusion import read_digits

Array = NDArray[np.float64]

Exact = NDArray[np.longdouble]
"""Numbers with more digits than float64 has, where the machine has such numbers."""

# wu-checks

N_DIGITS = 100

ROUNDING = 1e-12
"""Larger errors are those of functions that are made of pieces."""

LEFT_END = 1e-18
"""Smaller errors are drawn here."""

REFUSED = "REFUSED"
"""The verdict on a network that `for_widths` does not accept."""

UPPER_KNOTS = {"relu6": 6.0, "hardtanh": 1.0, "hardswish": 3.0}
"""Where activations stop growing, or bend for the last time."""


@dataclass(frozen=True)
class Check:
    """A network, data and a number of steps.

    Attributes:
        check: "depth", "data", "activation" or "width".
        widths: the widths of the network.
        activation: that of all layers but the last, which is linear.
        data: "cars", "digits" or "random".
        loss: the name of the loss.
        construction: "relu-stack" or "softmax-stack".
        pieces: how many ReLUs a curved function is made of, in relu-stack.
        inside: the widths that the transformer is compiled for, if they are larger.
        by_hand: whether weights and data are padded here, for what `for_widths` refuses.
        n_steps: the steps of descent.
        step_size: the size of each.
        box: what every weight is clipped to after a step.
        noise: the size of the random numbers that are added to the identity for the first weights.
        gain: what these are multiplied by.
    """

    check: str
    widths: tuple[int, ...]
    activation: str
    data: str = "cars"
    loss: str = "squared"
    construction: str = "relu-stack"
    pieces: int = 64
    inside: tuple[int, ...] | None = None
    by_hand: bool = False
    n_steps: int = 5
    step_size: float = 0.1
    box: float = 1.2
    noise: float = 0.2
    gain: float = 1.0

    @property
    def depth(self) -> int:
        return len(self.widths) - 1

    @property
    def width_name(self) -> str:
        """The widths as "4-8-1", with equal hidden layers counted."""
        first, *hidden, last = self.widths
        if len(hidden) > 3:
            return f"{first}-({hidden[0]} x {len(hidden)})-{last}"
        return "-".join(map(str, self.widths))

    def start(self) -> Array:
        """Return the first weights: the identity and noise, within the box."""
        source = np.random.default_rng(0)
        matrices = [
            self.gain * (np.eye(n_out, n_in) + self.noise * source.normal(size=(n_out, n_in)))
            for n_in, n_out in pairwise(self.widths)
        ]
        return np.concatenate([matrix.ravel() for matrix in matrices]).clip(-self.box, self.box)

    def read(self) -> tuple[Array, NDArray[Any]]:
        """Return inputs and labels."""
        if self.data == "cars":
            _, x, y = read_cars()
            return with_constant(Scaling.of(x).applied(x)), Scaling.of(y).applied(y)[:, 0]
        if self.data == "digits":  # means over 2 x 2 pixels, from 0 to 1
            pixels, digits = read_digits()
            squares = pixels[:N_DIGITS].reshape(N_DIGITS, 4, 2, 4, 2).mean((2, 4))
            return squares.reshape(N_DIGITS, 16) / 16, digits[:N_DIGITS]
        source = np.random.default_rng(1)
        x = source.uniform(-1, 1, (16, self.widths[0]))
        return x, np.sin(2 * x.sum(1, keepdims=True) + np.arange(self.widths[-1]))

    def compiled(self, x: Array, y: NDArray[Any]) -> Compiled:
        """Compile the transformer, for wider networks if the check says so."""
        domain = Domain(float(abs(x).max()), max(1.0, float(abs(y).max())))
        if self.loss == "cross_entropy":
            domain = replace(domain, y=1.0)
        target = MLP(self.inside or self.widths, self.activation)
        update = GradientStep(self.step_size, self.box)
        problem = Problem(target, self.loss, update, domain)
        construction: AbstractConstruction = ReluStack(self.pieces)
        if self.construction == "softmax-stack":
            construction = SoftmaxStack()
        return compile(problem, construction, n_steps=self.n_steps)


CARS = (4, 8, 8, 1)


def deep(depth: int, activation: str, **changes: Any) -> Check:
    """Return the check of a network of `depth` layers of width 4 on the cars."""
    return Check("depth", (4, *[4] * (depth - 1), 1), activation, **changes)


def checks() -> list[Check]:
    """List all checks of the longer presets."""
    of_depth = [
        check
        for depth in (10, 12, 16)
        for check in (
            deep(depth, "relu"),
            deep(depth, "leaky_relu"),
            deep(depth, "tanh"),
            deep(depth, "tanh", pieces=1024),
            deep(depth, "tanh", construction="softmax-stack"),
        )
    ]
    digits = Check(
        "data", (16, 16, 16, 10), "relu", "digits", "cross_entropy", n_steps=20, step_size=1.0,
        box=2.0, noise=0.3,
    )  # fmt: skip
    of_data = [
        Check("data", CARS, activation, n_steps=20, box=2.0, noise=0.3)
        for activation in ("relu", "tanh")
    ]
    of_activation = [
        Check(
            "activation", CARS, activation, loss=loss, n_steps=20, step_size=0.01, box=4.0,
            noise=0.3, gain=2.0,
        )
        for activation in ("relu", "leaky_relu", *UPPER_KNOTS)
        for loss in ("squared", "huber")
    ]  # fmt: skip
    wide: dict[str, Any] = {"check": "width", "data": "random", "inside": (4, 8, 8, 2), "box": 2.0}
    of_width = [
        Check(widths=widths, activation=activation, **wide)
        for widths in ((4, 8, 8, 2), (3, 5, 4, 1))
        for activation in ("tanh", "relu")
    ]
    by_hand = Check(
        "width", (4, 3, 5, 2), "sigmoid", "random", inside=(4, 8, 8, 2), by_hand=True, box=2.0
    )
    return [*of_depth, *of_data, digits, *of_activation, *of_width, by_hand]


SMOKE = (
    Check("depth", (4, *[2] * 9, 1), "relu", n_steps=1),
    Check("data", (4, 3, 1), "tanh", pieces=16, n_steps=1),
    Check("activation", (4, 3, 1), "hardtanh", n_steps=2, gain=2.0, box=4.0),
    Check("width", (2, 2, 1), "tanh", "random", inside=(3, 3, 1), pieces=16, n_steps=2),
    Check("width", (2, 2, 1), "sigmoid", "random", inside=(2, 4, 1), by_hand=True, n_steps=2),
)


def settings(preset: str, seed: int) -> list[Check]:
    """List the checks; they are the same for both longer presets."""
    del seed  # every check draws from seeds of its own
    long = checks()
    of_presets = {"smoke": list(SMOKE), "laptop": long, "paper": long}
    return list(of_preset(of_presets, preset))


def run(check: Check, job: Job) -> pl.DataFrame:
    """Run the transformer itself and compare each step with the exact one and with its bound."""
    del job  # it takes seconds
    x, y = check.read()
    compiled = check.compiled(x, y)
    measure = padded_by_hand if check.by_hand else verified
    return pl.DataFrame(
        [
            {
                "check": check.check,
                "network": f"{check.width_name} {check.activation}",
                "inside": check.inside and "-".join(map(str, check.inside)),
                "construction": check.construction,
                "pieces": check.pieces if check.construction == "relu-stack" else None,
                "loss": check.loss,
                "data": check.data,
                "n_examples": len(x),
                "n_steps": check.n_steps,
                "n_layers": check.depth,
                "layers_per_step": compiled.summary().layers_per_step,
                "paper_layers": 2 * check.depth + 4,
                **measure(check, compiled, x, y),
            }
        ],
        infer_schema_length=None,
    )


def verified(check: Check, compiled: Compiled, x: Array, y: NDArray[Any]) -> dict[str, Any]:
    """Verify a run of every head, and describe what it trained."""
    start, outside = check.start(), None
    if check.inside is not None:
        compiled = compiled.for_widths(check.widths)
    report = verify(compiled, x, y, initial=start, backend="literal")
    trained = compiled.run(x, y, initial=start, backend="literal")
    task, oracle = compiled.task(x, y, initial=start), compiled.problem.oracle
    if compiled.padding is not None:
        _, outside = padded_run(compiled.whole, compiled.padding, task)
    beyond = None
    if check.activation in UPPER_KNOTS:
        units = torch.cat(
            [
                z.flatten()
                for weights in trained.parameters[:-1]
                for z in oracle.preactivations(task, weights, 0)[:-1]  # the last layer is linear
            ]
        )
        beyond = six_digits(float((units > UPPER_KNOTS[check.activation]).double().mean()))
    proof, step_sizes = report.rigorous, cast(Tensor, report.step_sizes)
    return {
        "step_error": six_digits(float(report.step_errors.max())),
        "step_bound": six_digits(float(report.step_bounds.max())),
        "step_size": six_digits(float(step_sizes.max())),
        "distance": six_digits(float(report.trajectory_errors.max())),
        "proved_distance": None if proof is None else six_digits(float(proof.distances.max())),
        "loss_before": six_digits(float(trained.loss_curve[0])),
        "loss_after": six_digits(float(trained.loss_curve[-1])),
        "beyond_upper_knot": beyond,
        "largest_padded": outside,
        "near_kinks": report.near_kinks.count,
        "verdict": report.verdict.name,
    }


def padded_by_hand(check: Check, compiled: Compiled, x: Array, y: NDArray[Any]) -> dict[str, Any]:
    """Pad what `for_widths` refuses to, and compare with exact descent on the narrow network."""
    allowed = replace(check, activation="tanh").compiled(x, y).for_widths(check.widths)
    padding = cast(Padding, allowed.padding)  # where numbers stand depends on no activation
    narrow = replace(
        compiled.problem, target=replace(compiled.problem.network, widths=check.widths)
    )
    task, oracle = as_task(narrow, x, y, initial=check.start()), narrow.oracle
    path, outside = padded_run(compiled, padding, task)
    exact = oracle.train(task, check.n_steps)
    steps = torch.stack([oracle.step(task, weights) for weights in path[:-1]])
    return {
        "step_error": six_digits(float((path[1:] - steps).abs().max())),
        "step_bound": None,
        "step_size": six_digits(float((steps - path[:-1]).abs().max())),
        "distance": six_digits(float((path - exact).abs().max())),
        "proved_distance": None,
        "loss_before": six_digits(float(oracle.risk(task, path[0]))),
        "loss_after": six_digits(float(oracle.risk(task, path[-1]))),
        "beyond_upper_knot": None,
        "largest_padded": outside,
        "near_kinks": None,
        "verdict": REFUSED,
    }


def padded_run(wide: Compiled, padding: Padding, task: Task) -> tuple[Tensor, float | None]:
    """Run the wide transformer on a narrow task; return what it trains, and its largest padding."""
    path = wide.run_task(padding.task(task), backend="literal").parameters
    others = torch.ones(path.shape[-1], dtype=torch.bool)
    others[padding.places] = False
    largest = float(path[..., others].abs().max()) if others.any() else 0.0
    return padding.read(path), six_digits(largest)


def summarise(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the largest error of a step beside its bound, for each check."""
    table = []
    for row in rows.iter_rows(named=True):
        is_curved = row["pieces"] is not None and row["step_error"] > ROUNDING
        padded, beyond = row["largest_padded"], row["beyond_upper_knot"]
        unknown = "none" if row["verdict"] == REFUSED else "says nothing"
        table.append(
            {
                "check": row["check"],
                "network": row["network"],
                "inside": row["inside"] or "",
                "construction": row["construction"]
                + (f", {row['pieces']} pieces" if is_curved else ""),
                "data": row["data"],
                "loss function": row["loss"],
                "beyond the last knot": "" if beyond is None else f"{beyond:.0%}",
                "layers a step": str(row["layers_per_step"]),
                "2N + 4": str(row["paper_layers"]),
                "error of a step": _short(row["step_error"]),
                "its bound": _short(row["step_bound"]) if row["step_bound"] else unknown,
                "longest step": _short(row["step_size"]),
                "whole run, proved": _short(row["proved_distance"]),
                "largest padded weight": "" if padded is None else _short(padded),
                "loss": f"{row['loss_before']:.3g} → {row['loss_after']:.3g}",
                "verdict": row["verdict"],
            }
        )
    return pl.DataFrame(table)


def _short(value: float | None) -> str:
    return "none" if value is None else f"{value:.1e}" if value else "0"


def draw(rows: pl.DataFrame) -> plotting.Figure:
    """Draw for each run the largest error of a step, its bound, and the longest step."""
    figure, [ax] = plotting.new_figure(11.0, 1.2 + 0.27 * rows.height, 1)
    columns = {"step_error": ("o", BLUE), "step_bound": ("|", RED), "step_size": ("s", FAINT)}
    for place, row in enumerate(rows.iter_rows(named=True)):
        bound = row["step_bound"]
        if bound is not None:
            ax.plot([max(row["step_error"], LEFT_END), bound], [-place] * 2, color=RED, lw=1)
        for column, (marker, colour) in columns.items():
            if row[column] is not None:
                ax.plot([max(row[column], LEFT_END)], [-place], marker, color=colour, ms=6)
    ax.set_xscale("log")
    labels = [
        ", ".join(cell for cell in cells if cell)
        for cells in summarise(rows)
        .select(
            "network",
            pl.when(pl.col("inside") != "")
            .then(pl.format("in {}", "inside"))
            .otherwise(pl.lit("")),
            "construction",
            pl.when(pl.col("loss function") != "squared")
            .then("loss function")
            .otherwise(pl.lit("")),
        )
        .iter_rows()
    ]
    ax.set_yticks([-place for place in range(rows.height)], labels, fontsize=9)
    ax.set_ylim(0.7 - rows.height, 0.7)
    title = "Errors of single steps, every head computed"
    plotting.describe(ax, title, "largest error of any weight", "")
    names = {"error": BLUE, "bound": RED, "longest step": FAINT}
    plotting.legend(figure, list(names.items()))
    return figure


# wu-products

WIDTHS = (2, 4, 4, 1)
STEP = 0.1


@dataclass(frozen=True)
class Product:
    """A layer that multiplies.

    Attributes:
        form: what multiplies, in words.
        construction: the transformer that the layer is taken from.
        layer: its title; "backward 1" multiplies at a token, "gradient step" over examples.
        units: the activation of a recursion's units.
        n_examples: how many examples the prompt has, all with numbers of their own.
        n_calls: how often the layer is timed.
    """

    form: str
    construction: str
    layer: str
    units: str | None = None
    n_examples: int = 64
    n_calls: int = 20

    @property
    def compiled(self) -> Compiled:
        """The transformer, for tanh networks."""
        update, domain = GradientStep(STEP, box=1.0), Domain(1.0, 1.0)
        problem = Problem(MLP(WIDTHS, "tanh"), "squared", update, domain)
        construction: Any = self.construction
        if self.units is not None:
            construction = Recursion(unit_activation=self.units)
        return compile(problem, construction, n_steps=1)


PRODUCTS = (
    Product("product layer", "relu-stack", "backward 1"),
    Product("softmax lattice", "softmax-stack", "backward 1"),
    Product("ReLU attention", "relu-stack", "gradient step"),
    Product("softmax lattice", "softmax-stack", "gradient step"),
    Product("tanh units", "recursion", "gradient step", "tanh"),
    Product("gated ReLU heads", "recursion", "gradient step", "relu"),
)


def product_settings(preset: str, seed: int) -> list[Product]:
    """List the layers; every preset has the same."""
    del seed  # numbers are drawn from a seed of their own
    of_preset(dict.fromkeys(("smoke", "laptop", "paper")), preset)
    is_small = preset == "smoke"
    return [replace(x, n_examples=8, n_calls=2) if is_small else x for x in PRODUCTS]


def run_product(setting: Product, job: Job) -> pl.DataFrame:
    """Compare what one layer writes with exact products, and time it."""
    del job  # it takes seconds
    compiled, source, n = setting.compiled, np.random.default_rng(0), setting.n_examples
    stack, layout = compiled.stack, compiled.stack.layout
    titles = [layer.title for layer in stack.block]
    place = titles.index(setting.layer)
    layer, size = compiled.transformer().block[place], compiled.summary(n).layers[place]
    x, y = source.uniform(-1, 1, (n, WIDTHS[0])), source.uniform(-1, 1, (n, WIDTHS[-1]))
    weights = source.uniform(-1, 1, compiled.problem.network.n_parameters)
    stream, examples = encode(stack, compiled.task(x, y, initial=weights)), slice(-n, None)

    def drawn(name: str, least: float = -1.0) -> Exact:
        """Fill a slot of all examples with random numbers."""
        values = source.uniform(least, 1, (n, layout.slot(name).width))
        stream[examples, layout.range_of(name)] = torch.tensor(values)
        return values.astype(np.longdouble)

    if setting.layer == "backward 1":
        # delta_1 = slope_1 * (weights_2^T delta_2)
        slope, delta = drawn("slope_1", least=0.0), drawn("delta_2")
        [_, matrix, _] = compiled.problem.network.matrices(torch.tensor(weights))
        pulled = np.einsum("im,mk->ik", delta, matrix.numpy().astype(np.longdouble))
        expected, n_products = {"delta_1": slope * pulled}, matrix.numel() + len(matrix)
    elif setting.construction == "recursion":
        # weights_j += -(eta / 2) mean(loss_slope^T jacobian_3_j)
        left = drawn("loss_slope")
        expected = {
            f"weights_{j}": -STEP / 2 * np.mean(left * drawn(f"jacobian_3_{j}"), axis=0)
            for j in (1, 2)
        }
        n_products = len(weights)
    else:
        # weights_j += -(eta / 2) mean(delta_j (x) p_{j-1})
        rights = {1: x.astype(np.longdouble), 2: drawn("units_1")}
        expected = {
            f"weights_{j}": -STEP
            / 2
            * np.einsum("ik,im->km", drawn(f"delta_{j}"), right).ravel()
            / n
            for j, right in rights.items()
        }
        n_products = len(weights)
    for name in expected:  # so that nothing is lost in a sum with what was there
        stream[:, layout.range_of(name)] = 0.0
    with torch.no_grad():
        written, seconds = layer(stream), []
        for _ in range(setting.n_calls):
            start = perf_counter()
            layer(stream)
            seconds.append(perf_counter() - start)
    errors, sizes = [], []
    for name, exact in expected.items():
        # Weights are those of the first token.
        found = written[examples if exact.ndim == 2 else 0, layout.range_of(name)].numpy()
        errors.append(float(np.abs(found - exact).max()))
        sizes.append(float(np.abs(exact).max()))
    return pl.DataFrame(
        [
            {
                "form": setting.form,
                "construction": setting.construction,
                "layer": setting.layer,
                "n_examples": n,
                "n_products": n_products,
                "n_heads": size.n_heads,
                "head_width": size.width,
                "nonzeros": size.nonzeros,
                "sparse_flops": size.sparse_flops(stack.n_registers + n),
                "parameters": size.parameters,
                "relative_error": six_digits(max(errors) / max(sizes)),
                "seconds": six_digits(median(seconds)),
            }
        ]
    )


def cost_of(row: dict[str, Any]) -> float:
    """Return the FLOPs for each product, if those with weights of 0 are left out."""
    return float(row["sparse_flops"] / (row["n_products"] * row["n_examples"]))


def summarise_products(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the error and the cost of each layer."""
    return pl.DataFrame(
        {
            "form": row["form"],
            "taken from": f"{row['construction']}, {row['layer']}",
            "products": str(row["n_products"]),
            "heads": f"{row['n_heads']:,}",
            "weights not 0": f"{row['nonzeros']:,}",
            "FLOPs a product": f"{cost_of(row):,.0f}",
            "relative error": _short(row["relative_error"]),
            "dense layer": f"{1e3 * row['seconds']:.3g} ms",
        }
        for row in rows.iter_rows(named=True)
    )


def draw_products(rows: pl.DataFrame) -> plotting.Figure:
    """Draw the error of each layer, and beside it what a product costs."""
    figure, [errors, costs] = plotting.new_figure(11.0, 3.8, 2)
    places = [-place for place in range(rows.height)]
    colours = [ORANGE if layer == "backward 1" else BLUE for layer in rows["layer"]]
    values = [max(error, LEFT_END) for error in rows["relative_error"]]
    errors.scatter(values, places, c=colours, s=70)
    costs.scatter([cost_of(row) for row in rows.iter_rows(named=True)], places, c=colours, s=70)
    names = [f"{form} ({name})" for form, name in rows.select("form", "construction").iter_rows()]
    for panel, labels in ((errors, names), (costs, [""] * rows.height)):
        panel.set_xscale("log")
        panel.set_yticks(places, labels)
        panel.set_ylim(places[-1] - 0.6, 0.6)
    plotting.describe(errors, "Errors", "largest error over the largest product", "")
    plotting.describe(costs, "Costs", "FLOPs a product, without weights of 0", "")
    plotting.legend(figure, [("at a token", ORANGE), ("mean over examples", BLUE)])
    return figure


FIGURES = (
    Figure(
        name="wu-checks",
        place="proposed checks",
        shows="errors of steps beside bounds: deep networks, real data, kinks, narrower networks",
        settings=settings,
        run=run,
        summarise=summarise,
        draw=draw,
        work=lambda check: float(check.depth * check.n_steps),
    ),
    Figure(
        name="wu-products",
        place="Lemma 5 and Remark 3",
        shows="error and cost of the product layer, and of what multiplies elsewhere",
        settings=product_settings,
        run=run_product,
        summarise=summarise_products,
        draw=draw_products,
    ),
)
