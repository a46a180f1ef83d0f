"""One instruction, one definition: its meaning, its heads and its bounds say the same.

Layer by layer, on streams of drawn tasks: what the wires of an instruction compute as dense heads
or hidden units, what its meaning computes as recorded, and what its bounds allow of either.
"""

import pytest
import torch

import icgd
from icgd.backends.chain import DenseGenerator
from icgd.backends.engine import Plan, Running
from icgd.backends.prompt import encode
from icgd.backends.recorder import Recorder, Recording, Tokens, in_order
from icgd.certificates.chain import BlockEnclosures
from icgd.certificates.enclosures import Arithmetic, Enclosure, Interval
from icgd.certificates.propagation import Bounded, Enclosures
from icgd.program.chain import FAR, NEAR, row_of
from icgd.program.instructions import LayerKind
from icgd.program.layout import IS_EXAMPLE, IS_QUERY, Role
from icgd.program.network_instructions import LookUpFunction
from icgd.program.render import INSTRUCTIONS
from icgd.weights.lowering import lower_layer

float64 = torch.float64
PLAIN = icgd.GradientStep(0.1, box=1.0)
SHARED = (Role.PARAMETER, Role.SHARED, Role.VELOCITY)
BY_OTHER_BOUNDS = (LayerKind.GRID, LayerKind.KERNEL)
"""Steps of linear models and in function space have bounds of whole runs."""


def network(*widths, activation="tanh", loss="squared", step=PLAIN, domain=None, **options):
    mlp = icgd.MLP(widths, activation, **options)
    return icgd.Problem(mlp, loss, step, domain or icgd.Domain(x=1.0, y=1.0))


def linear(step, link="identity", score=None, **options):
    model = icgd.LinearModel(2, link, **options)
    return icgd.Problem(model, "matching", step, icgd.Domain(x=1.0, y=1.0, score=score))


HALF_SPACES = icgd.GradientStep(
    0.1,
    {
        "weights_1": icgd.HalfSpace((1.0, -2.0), 0.1, reach=1.0),
        "bias_1": icgd.Box((-0.5, 0.1, 0.0), 0.5),
        "weights_2": icgd.HalfSpace(((1.0, 2.0, 0.0), (0.5, 1.0, -1.0)), -0.1, reach=1.0),
        "bias_2": 0.5,
    },
)
GROUPS = {"bias_1": {"weight_decay": 0.0}, "weights_2": {"step_size": 0.2}}
GROUPED = icgd.AdamStep(0.1, box=1.0, weight_decay=0.3, average=0.5, groups=GROUPS)
MOVING_GROUPS = icgd.MomentumStep(0.1, box=1.0, weight_decay=0.3, groups=GROUPS)
SIMPLICES = (icgd.Box(0.3, 0.8), icgd.Simplex())
STACKS = {
    "relu-stack": ("relu-stack", network(2, 3, 2, biases=True)),
    "relu": ("relu-stack", network(2, 3, 3, 1, activation="relu", shortcuts=((1, 2),))),
    "leaky_relu": ("relu-stack", network(2, 3, 2, activation="leaky_relu", loss="logistic")),
    "norms": ("relu-stack", network(2, 4, 4, 1, norms=(1, 2))),
    "classes": ("relu-stack", network(2, 3, 3, loss="cross_entropy")),
    "adam": ("relu-stack", network(2, 3, 1, step=icgd.AdamStep(0.1, box=1.0))),
    "averages": ("relu-stack", network(2, 3, 1, step=icgd.GradientStep(0.1, 1.0, average=0.5))),
    "boxes": (
        "relu-stack",
        network(2, 3, 1, step=icgd.GradientStep(0.1, (2.0, ((0.5, 0.1, 0.3),)))),
    ),
    "groups": ("relu-stack", network(2, 3, 1, biases=True, step=GROUPED)),
    "softmax groups": ("softmax-stack", network(2, 3, 1, biases=True, step=MOVING_GROUPS)),
    "half-spaces": ("relu-stack", network(2, 3, 2, biases=True, step=HALF_SPACES)),
    "simplices": ("relu-stack", network(2, 4, 3, step=icgd.MomentumStep(0.1, SIMPLICES))),
    "softmax half-spaces": ("softmax-stack", network(2, 3, 2, biases=True, step=HALF_SPACES)),
    "softmax-stack": ("softmax-stack", network(2, 3, 2, biases=True)),
    "momentum": ("softmax-stack", network(2, 3, 1, step=icgd.MomentumStep(0.1, box=1.0))),
    "softmax classes": ("softmax-stack", network(2, 3, 3, loss="cross_entropy")),
    "recursion": ("recursion", network(2, 3, 2, 1, biases=True)),
    "gated": ("recursion", network(2, 3, 2, 1, activation="relu")),
    "universal": ("universal", network(1, 1)),
    "ridge": ("linear-stack", linear(icgd.ProximalStep(0.1, box=2.0, l2=0.1), intercept=True)),
    "lasso": ("linear-stack", linear(icgd.ProximalStep(0.1, box=2.0, l1=0.05))),
    "momentum lasso": (
        "linear-stack",
        linear(icgd.ProximalStep(0.1, box=2.0, l1=0.05, l2=0.1, momentum=0.5)),
    ),
    "logistic": ("linear-stack", linear(icgd.ProximalStep(0.1, box=2.0), "logistic")),
    "mirrored logistic": (
        icgd.LinearStack(mirrored_heads=2),
        linear(icgd.ProximalStep(0.1, box=2.0, l2=0.1, momentum=0.5), "logistic"),
    ),
    "mirrored squares": (
        icgd.LinearStack(mirrored_heads=3),
        linear(icgd.ProximalStep(0.1, box=2.0, l1=0.05, l2=0.1), intercept=True),
    ),
    "mirrored momentum": (
        icgd.LinearStack(mirrored_heads=3),
        linear(icgd.ProximalStep(0.1, box=2.0, l2=0.1, momentum=(0.5,), nesterov=True)),
    ),
    "one-layer ridge": (
        "cot-ridge",
        linear(icgd.ProximalStep(0.1, box=2.0, l2=0.1), intercept=True),
    ),
    "one-layer lasso": ("cot-lasso", linear(icgd.ProximalStep(0.1, l1=0.05), score=4.0)),
    "one-layer logistic": ("cot-glm", linear(icgd.ProximalStep(0.1, box=2.0), "logistic")),
    "one-layer huber": ("cot-glm", network(2, 1, activation="relu", loss="huber")),
    "functional": (
        "functional",
        icgd.Problem(
            icgd.KernelMachine(2, "rbf"),
            "squared",
            icgd.FunctionalStep(0.1, noise=0.1, momentum=0.3),
            icgd.Domain(x=1.0, y=1.0),
        ),
    ),
}
SETTINGS = {"universal": {"levels": 3}, "recursion": {"units": 100}}
SETTINGS |= {name: {"n_examples": 4} for name in ("cot-ridge", "cot-lasso", "cot-glm")}
CHAINS = {
    "kinked": network(2, 3, 2, activation="leaky_relu", step=icgd.GradientStep(0.1, 1.0, 2)),
    "smooth": network(2, 3, 2, loss="logistic", step=icgd.GradientStep(0.1, 1.0, 2)),
    "classes": network(2, 3, 3, loss="cross_entropy", step=icgd.MomentumStep((0.1, 0.05), 1.0, 2)),
}
WITHOUT_TURNS = {"TakeTurns"}
"""Whose turn it is, is the prompt's and no enclosure; the contract of backends has batches."""


def looked_up():
    """A function of two tokens, for which there is no problem."""
    return icgd.universal(lambda Z: Z + Z.mean(1)[:, None], d=2, n=2, D=2, lipschitz=2.0, box=3.0)


def task_of(compiled, problem, construction):
    generator = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(4, problem.target.input_width, generator=generator, dtype=float64) - 1
    y = x.sum(1)[:, None].sin().expand(-1, problem.target.output_width)
    if construction == "universal":
        x, y = torch.tensor([[1.0], [-1.0]]).double(), torch.tensor([[1.0], [0.0]]).double()
    if problem.loss == "cross_entropy":
        y = torch.eye(problem.target.output_width, dtype=float64)[[0, 1, 2, 1]]
    if problem.loss == "logistic" or "logistic" in str(getattr(problem.target, "link", "")):
        y = (y > 0).double()
    return compiled.task(x, y, queries=x[:2])


def recorded(part, values, program, tokens):
    """What an instruction writes, by its meaning, from these values of all slots."""
    domain = Recorder(program, tokens, max(tokens.examples, 1))
    inputs = {
        name: domain.op("input", options=(name,), shape=tuple(value.shape))
        for name, value in values.items()
    }
    written = part.meaning(inputs, domain)
    recording = Recording({}, tuple(in_order(written.values())), written)
    held = Plan(recording, Running(program, dict(values), torch.zeros(1, 1).double()))(values)
    return {name: held[op] for name, op in written.items()}


def slots_of(program, stream, rows):
    """The slots as the tokens of `rows` see them; what all tokens share as the first one has it."""
    found = {}
    for slot in program.layout.slots:
        values = stream[:, program.layout.range_of(slot.name)]
        is_shared = slot.role in SHARED and not program.trains_function
        found[slot.name] = values[0].view(slot.shape) if is_shared else values[rows]
    return found


def close_to(ours, theirs, allowed):
    gap = (ours - theirs).abs() - allowed
    assert float(gap.max()) <= 1e-9 * (1 + float(theirs.abs().max())), float(gap.max())


def agree(part, before, after, program, tokens, how):
    """The three views of an instruction, in which `after` is what its heads made of `before`."""
    ours = recorded(part, before, program, tokens)
    for name, value in ours.items():
        dense = after[name]
        is_looked_up = bool(program.step_table and tokens.queries)  # between the table's extremes
        is_looked_up |= isinstance(part, LookUpFunction)  # bounded by a Lipschitz constant
        if part.kind in BY_OTHER_BOUNDS or program.descent or is_looked_up:
            close_to(value.expand_as(dense), dense, 1e-9)
            continue
        bounds = {}
        for backend, arithmetic in how.items():
            domain = Enclosures(program, arithmetic)
            points = {n: Bounded.point(v) for n, v in before.items()}
            bounds[backend] = bound = part.meaning(points, domain)[name].value
            actual = dense if backend == "dense" else value
            assert (actual >= bound.actual.low).all(), (backend, name)
            assert (actual <= bound.actual.high).all(), (backend, name)
        close_to(value.expand_as(dense), dense, bounds["dense"].error + bounds["fused"].error)


def compiled_stack(case):
    construction, problem = STACKS[case]
    return icgd.compile(problem, construction, n_steps=1, **SETTINGS.get(construction, {}))


def compiled_chain(case):
    return icgd.compile(CHAINS[case], "cot-network", n_steps=2)


@pytest.mark.parametrize("case", STACKS)
def test_the_views_of_every_instruction_of_a_stack_agree(case):
    construction, problem = STACKS[case]
    compiled = compiled_stack(case)
    agree_layer_by_layer(compiled.program, task_of(compiled, problem, construction))


def test_the_views_of_every_instruction_of_a_looked_up_function_agree():
    found = looked_up()
    matrix = torch.tensor([[0.2, -2.5], [1.0, 2.0]], dtype=float64)
    agree_layer_by_layer(found.program, found._task(matrix))


def agree_layer_by_layer(program, task):
    tokens = Tokens(program.n_registers, task.n_examples, task.n_queries)
    how = {b: Arithmetic.of(float64, tokens.total, b) for b in ("dense", "fused")}
    for layers, flag in ((program.block_of(0), IS_EXAMPLE), (program.prediction, IS_QUERY)):
        stream, rows = encode(program, task), tokens.where(flag)
        n_rows = rows.stop - rows.start
        own = Tokens(examples=n_rows) if flag == IS_EXAMPLE else Tokens(queries=n_rows)
        for layer in layers:
            before = slots_of(program, stream, rows)
            with torch.no_grad():
                stream = lower_layer(layer, program, float64)(stream)
            after = slots_of(program, stream, rows)
            for part in layer.instructions:
                if part.kind is LayerKind.KERNEL and flag == IS_QUERY:
                    continue
                agree(part, before, after, program, own, how)


@pytest.mark.parametrize("case", CHAINS)
def test_the_views_of_every_instruction_of_a_chain_agree(case):
    program = compiled_chain(case).program
    layout, generator = program.layout, torch.Generator().manual_seed(1)
    dense = DenseGenerator(program, torch.zeros(2, 2, dtype=float64))
    flags = {"is_forward": 1.0, "is_backward": 0.0, program.kinds[0]: 1.0}
    stream = torch.zeros(1, layout.width, dtype=float64)
    for block, own in ((NEAR, flags), (FAR, {**flags, "is_forward": 0.0, "is_backward": 1.0})):
        for slot in program.rows.slots:
            drawn = torch.rand(slot.width, generator=generator, dtype=float64) - 0.5
            known = own.get(slot.name, 0.0) if slot.width == 1 or slot.name in own else None
            value = drawn if known is None else torch.full_like(drawn, known)
            if slot.name in ("padding", "constant", "flat"):
                value = torch.zeros_like(drawn)
            stream[0, layout.range_of(row_of(block, slot.name))] = value
    stream[0, layout.range_of("one")] = 1.0
    how = {b: Arithmetic.of(float64, 2, b) for b in ("dense", "fused")}
    for layer, module in zip(program.block, dense.layers, strict=True):
        before = {s.name: stream[0, layout.range_of(s.name)].view(s.shape) for s in layout.slots}
        with torch.no_grad():
            stream = module(stream)
        after = {s.name: stream[0, layout.range_of(s.name)].view(s.shape) for s in layout.slots}
        ours, bounds = dict(before), {b: _known(before) for b in how}
        for part in layer.instructions:
            ours |= recorded_block_part(part, ours, program)
            for backend, arithmetic in how.items():
                bounds[backend] |= part.meaning(
                    bounds[backend], BlockEnclosures(program, arithmetic)
                )
        for name in {name for part in layer.instructions for name in part.writes()}:
            if name.endswith("flat"):
                continue  # its bound carries z
            errors = [getattr(bounds[b][name], "error", torch.zeros(())) for b in how]
            close_to(ours[name], after[name], sum(errors) + 1e-9)


def _known(values):
    return {
        name: float(value.flatten()[0])
        if bool((value == value.flatten()[0]).all())
        else Enclosure.common(Interval.point(value))
        for name, value in values.items()
    }


def recorded_block_part(part, values, program):
    domain = Recorder(program)
    inputs = {}
    for name, value in values.items():
        number = float(value.flatten()[0])
        is_known = bool((value == number).all())
        shape = tuple(value.shape)
        op = domain.fill(number, shape) if is_known else None
        inputs[name] = op or domain.op("input", options=(name,), shape=shape)
    written = part.meaning(inputs, domain)
    recording = Recording({}, tuple(in_order(written.values())), written)
    held = Plan(recording, Running(program, {}, torch.zeros(1, 1).double()))(values)
    return {name: held[op] for name, op in written.items()}


def test_no_instruction_is_left_out():
    programs = [compiled_stack(case).program for case in STACKS] + [looked_up().program]
    programs += [compiled_chain(case).program for case in CHAINS]
    layers = [layer for program in programs for layer in program.layers]
    seen = {type(part).__name__ for layer in layers for part in layer.instructions}
    assert set(INSTRUCTIONS) - WITHOUT_TURNS - seen == set()
