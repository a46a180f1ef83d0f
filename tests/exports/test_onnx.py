"""ONNX files in onnxruntime against the torch transformers that they were made from."""

import json
import re
import sys
from pathlib import Path
from runpy import run_path

import numpy as np
import pytest
import torch
from torch import nn

import icgd
from icgd.backends.prompt import encode, read_parameters, read_predictions
from icgd.compiled import Compiled
from icgd.errors import (
    DataError,
    ExportError,
    FileError,
    MissingExtraError,
    ProgramError,
    SettingError,
)
from icgd.exports import onnx as exports
from icgd.exports.onnx import Graph, export_onnx, run_onnx, tensor_type
from icgd.layers import Transformer
from icgd.problems.functions import UNIT_ACTIVATIONS
from icgd.problems.problem import Problem
from icgd.program.check import from_data
from icgd_papers.training.covariates import Ellipsoid
from icgd_papers.training.descents import as_compiled
from icgd_papers.training.models import KernelTransformer
from tests import cases
from tests.cases import KERNEL_CASES, build, over
from tests.exports.hand_made import run, streams
from tests.linear_cases import FISTA, N_EXAMPLES, PROBLEMS, compiled_of, task_of

needs_packages = pytest.mark.skipif(
    exports.onnx is None, reason="the extra icgd[onnx] is not installed"
)

RELU_STACK = cases.CONSTRUCTIONS["relu-stack"]


def compiled_case(construction=RELU_STACK, case=cases.FEW[0], n_steps=2) -> Compiled:
    return Compiled(case.problem, build(construction, case, n_steps=n_steps, pieces=16))


def close(actual, expected, atol):
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


ONE_LAYER = {"construction": "cot-glm", "n_examples": N_EXAMPLES}


@needs_packages
@pytest.mark.parametrize("link", ["identity", "logistic"])
@pytest.mark.parametrize(
    ("problems", "settings"),
    [(PROBLEMS, {}), (FISTA, {}), (PROBLEMS, ONE_LAYER), (FISTA, {"mirrored_heads": 3})],
    ids=["plain", "fista", "one-layer", "mirrored"],
)
def test_a_linear_model_agrees_with_the_dense_backend(problems, settings, link, tmp_path):
    compiled, task = compiled_of(problems[link], **settings), task_of(problems[link])
    export_onnx(compiled, tmp_path / "run.onnx")
    final = run_onnx(tmp_path / "run.onnx", encode(compiled.program, task))
    dense = compiled.run_task(task, backend="dense")
    close(read_parameters(compiled.program.layout, final), dense.parameters[-1], 1e-12)
    close(read_predictions(compiled.program, final, task.n_examples), dense.predictions, 1e-12)


@needs_packages
@cases.every_construction_on(cases.FEW, (cases.FEW[1], cases.FEW[5], cases.TINY))
def test_a_compiled_run_agrees_with_the_dense_backend(construction, case, tmp_path):
    compiled, task = compiled_case(construction, case), case.task()
    export_onnx(compiled, tmp_path / "run.onnx")
    final = run_onnx(tmp_path / "run.onnx", encode(compiled.program, task))
    close(final, run(compiled, encode(compiled.program, task)), 1e-11)
    dense = compiled.run_task(task, backend="dense")
    close(read_parameters(compiled.program.layout, final), dense.parameters[-1], 1e-11)
    predictions = read_predictions(compiled.program, final, task.n_examples)
    close(predictions, dense.predictions, 1e-11)


@needs_packages
@pytest.mark.parametrize("activation", UNIT_ACTIVATIONS)
def test_units_of_every_activation_but_one_agree_with_torch(activation, tmp_path):
    case = cases.make_case(cases.MLP((2, 3, 1), "tanh"), "squared", box=1.0)
    compiled = icgd.compile(
        case.problem, n_steps=1, construction="recursion", units=32, unit_activation=activation
    )
    if activation == "gelu":
        with pytest.raises(ExportError, match="Units with the activation gelu cannot be exported"):
            export_onnx(compiled, tmp_path / "run.onnx")
        return
    export_onnx(compiled, tmp_path / "run.onnx")
    stream = encode(compiled.program, case.task())
    close(run_onnx(tmp_path / "run.onnx", stream), run(compiled, stream), 1e-11)


@needs_packages
def test_one_file_serves_any_number_of_tasks_and_tokens(tmp_path):
    compiled = compiled_case()
    export_onnx(compiled, tmp_path / "run.onnx")
    for n_tasks in (1, 3):
        task = cases.batch_of(cases.FEW[0], n_tasks).task()
        longer = encode(compiled.program, task).repeat(1, n_tasks, 1)
        close(run_onnx(tmp_path / "run.onnx", longer), run(compiled, longer), 1e-11)


@needs_packages
def test_float32_agrees_as_far_as_it_goes(tmp_path):
    case = cases.make_case(cases.MLP((2, 3, 1), "tanh"), "squared")
    compiled = compiled_case(case=case)
    export_onnx(compiled, tmp_path / "run.onnx", dtype="float32")
    stream = encode(compiled.program, case.task("float32"))
    final = run_onnx(tmp_path / "run.onnx", stream)
    assert final.dtype == torch.float32
    close(final, run(compiled, stream, "float32"), 1e-5)


@needs_packages
@cases.every_construction
def test_the_file_is_valid_and_holds_every_weight_once(construction, tmp_path):
    compiled = compiled_case(construction, n_steps=3)
    export_onnx(compiled, tmp_path / "run.onnx")
    exports.onnx.checker.check_model(tmp_path / "run.onnx", full_check=True)
    stored = exports.onnx.load(tmp_path / "run.onnx").graph.initializer
    arrays = {part.name: exports.onnx.numpy_helper.to_array(part) for part in stored}
    assert len(arrays) == len(stored)
    for name, weight in compiled.transformer().named_parameters():
        if name.endswith("b_in"):
            assert torch.equal(torch.tensor(arrays[name]).flatten(), weight)
            continue
        parts = [own for own in arrays if own.startswith(name) and own.endswith(".values")]
        found = np.concatenate([arrays[own][arrays[own] != 0] for own in parts])
        assert np.array_equal(np.sort(found), weight[weight != 0].detach().sort().values)
    used = sum(array.size for array in arrays.values())
    assert used < 5 * compiled.summary().nonzeros


@needs_packages
def test_the_stream_after_every_layer_has_a_name(tmp_path):
    compiled, task = compiled_case(), cases.FEW[0].task()
    export_onnx(compiled, tmp_path / "run.onnx")
    model, stream = exports.onnx.load(tmp_path / "run.onnx"), encode(compiled.program, task)
    names = [node.output[0] for node in model.graph.node if node.output[0].endswith("/stream")]
    first, last = compiled.stack.block[0].title, compiled.stack.prediction[-1].title
    assert names[0] == f"step 1/1 {first}/stream"
    assert names[len(compiled.stack.block)] == f"step 2/1 {first}/stream"
    assert names[-1] == f"prediction/{len(compiled.stack.prediction)} {last}/stream"
    model.graph.output.extend(exports.onnx.ValueInfoProto(name=name) for name in names)
    session = exports.onnxruntime.InferenceSession(model.SerializeToString())
    found = session.run(names, {"stream": stream[None].numpy()})
    for actual, expected in zip(found, streams(compiled, stream), strict=True):
        close(torch.tensor(actual[0]), expected, 1e-12)


@needs_packages
def test_heads_in_groups_give_the_same_stream(monkeypatch, tmp_path):
    case = cases.make_case(cases.MLP((2, 3, 1), "tanh"), "squared")
    compiled = compiled_case(case=case)
    stream = encode(compiled.program, case.task())
    monkeypatch.setattr(exports, "HEADS_AT_ONCE", 7)
    export_onnx(compiled, tmp_path / "run.onnx")
    names = [part.name for part in exports.onnx.load(tmp_path / "run.onnx").graph.initializer]
    assert "block.0.W_Q[7:14].columns" in names
    close(run_onnx(tmp_path / "run.onnx", stream), run(compiled, stream), 1e-12)


@needs_packages
def test_a_network_beyond_dense_weights_agrees_with_the_literal_run(tmp_path):
    """The dense weights would take 30 GB."""
    case = cases.make_case(cases.MLP((8, 64, 64, 1), "tanh"), "squared")
    compiled = icgd.compile(case.problem, icgd.ReluStack(pieces=16), n_steps=1)
    assert 8 * compiled.summary().parameters > 25e9
    task = case.task()
    export_onnx(compiled, tmp_path / "run.onnx")
    assert (tmp_path / "run.onnx").stat().st_size < 50e6
    final = run_onnx(tmp_path / "run.onnx", encode(compiled.program, task))
    literal = compiled.run_task(task, backend="literal")
    close(read_parameters(compiled.program.layout, final), literal.parameters[-1], 1e-12)
    close(read_predictions(compiled.program, final, task.n_examples), literal.predictions, 1e-12)


@needs_packages
@cases.every_construction
def test_layout_problem_and_program_travel_along(construction, tmp_path):
    compiled = compiled_case(construction)
    export_onnx(compiled, tmp_path / "run.onnx")
    session = exports.onnxruntime.InferenceSession(tmp_path / "run.onnx")
    metadata = session.get_modelmeta().custom_metadata_map
    assert Problem.from_data(json.loads(metadata["problem"])) == compiled.problem
    assert from_data(json.loads(metadata["program"])) == compiled.program
    layout = compiled.program.layout
    slots = json.loads(metadata["layout"])
    assert [slot["name"] for slot in slots] == list(layout.names)
    for slot in slots:
        assert slice(slot["start"], slot["stop"]) == layout.range_of(slot["name"])
        assert tuple(slot["shape"]) == layout.slot(slot["name"]).shape
        assert slot["role"] == layout.slot(slot["name"]).role.name


@needs_packages
def test_equal_runs_give_equal_files(tmp_path):
    for name in ("first", "second"):
        export_onnx(compiled_case(), tmp_path / name)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "second"]


@needs_packages
def test_a_file_that_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(FileError, match=r"Cannot write .*run\.onnx: No such file or directory\."):
        export_onnx(compiled_case(), tmp_path / "missing" / "run.onnx")


@needs_packages
def test_a_model_beyond_the_format_is_refused_before_it_is_built(monkeypatch, tmp_path):
    monkeypatch.setattr(exports, "lower_program", lambda *_, **__: pytest.fail("was built"))
    case = cases.make_case(cases.MLP((64, 4096, 4096, 1), "tanh"), "squared")
    with pytest.raises(ExportError, match=r"The ONNX file would have [\d.]+ GiB; .* 2 GiB\."):
        export_onnx(compiled_case(case=case), tmp_path / "run.onnx")
    assert list(tmp_path.iterdir()) == []


@needs_packages
def test_a_file_that_became_too_large_is_refused(monkeypatch, tmp_path):
    compiled = compiled_case()
    least = compiled.summary().nonzeros * 12 + exports.ROOM
    monkeypatch.setattr(exports, "LARGEST_FILE", least)
    with pytest.raises(ExportError, match="The ONNX file would have"):
        export_onnx(compiled, tmp_path / "run.onnx")
    assert list(tmp_path.iterdir()) == []


@needs_packages
def test_a_layer_without_a_rule_is_named(monkeypatch, tmp_path):
    compiled = compiled_case(n_steps=1)
    odd = Transformer([nn.ReLU()], len(compiled.stack.block), list(compiled.transformer().final))
    monkeypatch.setattr(exports, "lower_program", lambda *_, **__: odd)
    with pytest.raises(ProgramError, match=r"ReLU has no rule in exports/onnx\.py"):
        export_onnx(compiled, tmp_path / "run.onnx")


@needs_packages
def test_files_that_cannot_be_run_are_refused(tmp_path):
    stream = torch.zeros(5, 3).double()
    with pytest.raises(FileError, match=r"There is no file .*run\.onnx\."):
        run_onnx(tmp_path / "run.onnx", stream)
    (tmp_path / "run.onnx").write_text("not a model")
    with pytest.raises(FileError, match=r"run\.onnx cannot be run as an ONNX file of icgd: "):
        run_onnx(tmp_path / "run.onnx", stream)
    export_onnx(compiled_case(), tmp_path / "run.onnx")
    foreign = exports.onnx.load(tmp_path / "run.onnx")
    del foreign.metadata_props[:]
    exports.onnx.save(foreign, tmp_path / "run.onnx")
    with pytest.raises(FileError, match=r"its metadata have no 'icgd' entry\. Export it again\."):
        run_onnx(tmp_path / "run.onnx", stream)


@needs_packages
def test_streams_that_do_not_fit_are_refused(tmp_path):
    width = compiled_case().stack.layout.width
    export_onnx(compiled_case(), tmp_path / "run.onnx")
    with pytest.raises(SettingError, match=r"stream must be of type torch\.float64"):
        run_onnx(tmp_path / "run.onnx", torch.zeros(5, width).float())
    with pytest.raises(DataError, match=rf"\(5, {width - 1}\); expected \(tokens, {width}\)"):
        run_onnx(tmp_path / "run.onnx", torch.zeros(5, width - 1).double())


@needs_packages
def test_the_example_of_its_page_runs(monkeypatch, tmp_path):
    page = Path(__file__).parents[2] / "docs" / "exports" / "onnx.md"
    [example] = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(example, names)
    dense = names["compiled"].run_task(names["task"], backend="dense")
    close(torch.tensor(names["predictions"]), dense.predictions, 1e-11)


def test_missing_packages_are_named_with_their_extra(monkeypatch, tmp_path):
    monkeypatch.setattr(exports, "onnx", None)
    message = "An ONNX file needs onnx and onnxruntime. Install them with: pip install 'icgd[onnx]'"
    with pytest.raises(MissingExtraError) as caught:
        export_onnx(compiled_case(), tmp_path / "run.onnx")
    assert str(caught.value) == message
    with pytest.raises(MissingExtraError) as caught:
        run_onnx(tmp_path / "run.onnx", torch.zeros(5, 3).double())
    assert str(caught.value) == message


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_the_module_is_imported_without_its_packages(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    assert run_path(exports.__file__)["onnx"] is None


@needs_packages
def test_steps_that_differ_are_named_by_their_number(tmp_path):
    case = next(case for case in cases.KERNEL_CASES if case.name == "learnt")
    export_onnx(icgd.compile(case.problem, n_steps=3), tmp_path / "f.onnx")
    nodes = [node.output[0] for node in exports.onnx.load(tmp_path / "f.onnx").graph.node]
    streams = [name for name in nodes if name.endswith("/stream")]
    assert streams == [f"step {step}/1 descend/stream" for step in (1, 2, 3)]


@needs_packages
@pytest.mark.parametrize("construction", ["relu-stack", "softmax-stack"])
def test_a_schedule_on_batches_of_classes_agrees_and_no_weight_is_idle(construction, tmp_path):
    update, domain = icgd.MomentumStep((0.5, 0.25), 2.0, batch_size=2), icgd.Domain(1.0, 1.0)
    problem = Problem(icgd.MLP((2, 3), biases=True), "cross_entropy", update, domain)
    compiled = icgd.compile(problem, construction, n_steps=2)
    x = torch.tensor([[0.5, -1.0], [0.25, 0.75], [-0.5, 0.0]], dtype=torch.float64)
    task = icgd.as_task(problem, x, torch.tensor([0, 2, 1]), queries=x[:1])
    export_onnx(compiled, tmp_path / "run.onnx")
    stream = run_onnx(tmp_path / "run.onnx", encode(compiled.stack, task))
    weights = read_parameters(compiled.stack.layout, stream)
    real = compiled.run_task(task, backend="dense")
    torch.testing.assert_close(weights, real.parameters[-1], rtol=0, atol=1e-12)
    graph = exports.onnx.load(tmp_path / "run.onnx").graph
    read = {name for node in graph.node for name in node.input}
    assert {part.name for part in graph.initializer} <= read


@needs_packages
def test_norms_shortcuts_and_rates_agree_with_the_dense_backend(tmp_path):
    target = icgd.MLP((3, 4, 3), "gelu", shortcuts=((0, 2),), norms=(2,))
    update, domain = icgd.GradientStep(0.1, box=2.0), icgd.Domain(1.0, 1.0, rate=1.0)
    problem = Problem(target, "squared", update, domain)
    compiled = icgd.compile(problem, icgd.ReluStack(pieces=8), n_steps=2)
    x, rates = torch.linspace(-1, 1, 15).view(5, 3), torch.linspace(0, 1, 5)
    task = compiled.task(x, x.flip(0), queries=x[:2], rates=rates, seed=0)
    export_onnx(compiled, tmp_path / "run.onnx")
    final = run_onnx(tmp_path / "run.onnx", encode(compiled.program, task))
    dense = compiled.run_task(task, backend="dense")
    close(read_parameters(compiled.program.layout, final), dense.parameters[-1], 1e-12)
    close(read_predictions(compiled.program, final, task.n_examples), dense.predictions, 1e-12)


# Graphs of ONNX: constants that are stored once, and nodes that are called after their place.


@needs_packages
def test_a_graph_holds_its_nodes_in_order_and_each_constant_once():
    graph = Graph(lambda graph, z: graph.add("Relu", z), torch.float64, place="step 1/1 here")
    twice = graph.add("Mul", "stream", graph.number(2.0))
    graph.add("Add", twice, graph.number(2.0), output="final_stream")
    proto = graph.proto(width=3)
    assert [node.op_type for node in proto.node] == ["Mul", "Add"]
    assert [node.name for node in proto.node] == ["step 1/1 here/Mul 0", "step 1/1 here/Add 1"]
    assert [constant.name for constant in proto.initializer] == ["number 2.0"]
    assert exports.onnx.numpy_helper.to_array(proto.initializer[0]) == 2.0
    assert proto.input[0].type.tensor_type.elem_type == tensor_type(torch.float64) == 11


@needs_packages
def test_places_and_axes_are_whole_numbers():
    graph = Graph(lambda graph, z: z, torch.float32)
    names = graph.index(4), graph.axes(1, 2)
    values = [exports.onnx.numpy_helper.to_array(graph.constants[name]) for name in names]
    assert values[0].shape == ()
    assert [value.tolist() for value in values] == [4, [1, 2]]


# Kernel attention in ONNX, against the dense transformer.


def stream_by_onnx(compiled, task, path):
    export_onnx(compiled, path, dtype=task.x.dtype)
    return run_onnx(path, encode(compiled.program, task))


@needs_packages
@over(KERNEL_CASES)
def test_every_kernel_gives_the_stream_of_the_dense_transformer(case, tmp_path):
    compiled, task = icgd.compile(case.problem, n_steps=3), case.task()
    found = stream_by_onnx(compiled, task, tmp_path / "run.onnx")
    prompt = encode(compiled.program, task)
    dense = compiled.transformer()(prompt).detach()
    assert (dense - prompt).abs().max() > 1e-2
    assert (found - dense).abs().max() <= 1e-12


@needs_packages
@pytest.mark.parametrize("shape", [0.5, 1.5, 2.5])
def test_every_smoothness_of_the_matern_kernel_and_float32(shape, tmp_path):
    machine = icgd.KernelMachine(3, icgd.KernelHead("matern", shape=shape))
    update, domain = icgd.FunctionalStep(0.2, noise=0.1), icgd.Domain(2.0, 4.0)
    compiled = icgd.compile(icgd.Problem(machine, "squared", update, domain), n_steps=2)
    case = KERNEL_CASES[3]
    for dtype, most in (("float64", 1e-13), ("float32", 1e-5)):
        task = compiled.task(case.x, case.y, queries=case.queries, dtype=dtype)
        found = stream_by_onnx(compiled, task, tmp_path / f"{dtype}.onnx")
        dense = compiled.transformer(dtype)(encode(compiled.program, task)).detach()
        assert found.dtype is task.x.dtype
        assert (found - dense).abs().max() <= most


@needs_packages
def test_a_query_far_away_overflows_nothing(tmp_path):
    """exp(<x, x>) of two queries is infinite, but nobody reads a query."""
    machine, update = icgd.KernelMachine(2, "exp"), icgd.FunctionalStep(0.01)
    problem = icgd.Problem(machine, "squared", update, icgd.Domain(40.0, 1.0))
    compiled = icgd.compile(problem, n_steps=2)
    x = torch.eye(2).double()
    task = compiled.task(x, torch.ones(2).double(), queries=40 * x)
    found = stream_by_onnx(compiled, task, tmp_path / "far.onnx")
    dense = compiled.transformer()(encode(compiled.program, task)).detach()
    assert ((found - dense).abs() <= 1e-12 * (1 + dense.abs())).all()


@needs_packages
def test_a_learnt_model_runs_in_onnxruntime_for_any_number_of_tasks(tmp_path):
    model = KernelTransformer(5, 3, ("exp",), transforms_covariates=False, seed=0)
    with torch.no_grad():
        model.r.copy_(-model.r.abs())
    compiled = as_compiled(model, domain=icgd.Domain(x=10.0, y=10.0))
    x = Ellipsoid.of_seed(0).sample(4, 7, np.random.default_rng(0))
    y = x.sum(-1)
    task = compiled.task(x[:, :-1], y[:, :-1], queries=x[:, -1:])
    found = stream_by_onnx(compiled, task, tmp_path / "learnt.onnx")
    place = compiled.program.layout.range_of("y")
    assert (-found[:, -1, place].flatten() - model(x, y)).abs().max() <= 1e-12


@needs_packages
def test_a_kernel_of_ones_own_is_refused(tmp_path):
    icgd.register_kernel("own for onnx", lambda u, w: u @ w.mT)
    machine, update = icgd.KernelMachine(2, "own for onnx"), icgd.FunctionalStep(0.01)
    problem = icgd.Problem(machine, "squared", update, icgd.Domain(1.0, 1.0))
    with pytest.raises(ExportError) as caught:
        export_onnx(icgd.compile(problem, n_steps=1), tmp_path / "own.onnx")
    assert str(caught.value) == (
        "The kernel 'own for onnx' is a Python function, which cannot be exported to ONNX. Use one "
        "of linear, relu, exp, polynomial, softmax, rbf, laplace, matern, or "
        "compiled.transformer(), a torch module."
    )
    assert not list(tmp_path.iterdir())
