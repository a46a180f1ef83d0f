"""Models of TransformerLens against the torch transformers that they were made from."""

import re
import sys
from dataclasses import replace
from pathlib import Path
from runpy import run_path

import pytest
import torch
from torch.nn import Sequential

import icgd
from icgd.compiled import Compiled
from icgd.errors import (
    DataError,
    ExportError,
    LayoutError,
    MissingExtraError,
    SettingError,
    UnknownNameError,
)
from icgd.exports import transformer_lens
from icgd.exports.transformer_lens import open_in_transformer_lens
from icgd.program.instructions import LayerKind
from tests import cases
from tests.cases import Case, build
from tests.exports.hand_made import LAYOUT, hand_made, run, some_stream, streams

needs_package = pytest.mark.skipif(
    transformer_lens.TransformerBridge is None, reason="the extra icgd[lens] is not installed"
)

ORDERS = [("AAAMAM", 2, "AM"), ("MA", 3, ""), ("A", 1, "M"), ("MM", 2, "M"), ("AA", 2, "A")]


def compiled_case(construction, case: Case) -> Compiled:
    """Two steps of a really compiled run, in standard layers."""
    program = build(construction, case, n_steps=2)
    if {layer.kind for layer in program.block} & set(transformer_lens.NOT_STANDARD):
        pytest.skip(f"{construction.name} has layers that the tool lacks")
    return Compiled(case.problem, program)


@needs_package
@pytest.mark.parametrize(("block", "n_repeats", "final"), ORDERS)
def test_layers_in_any_order_agree_with_torch(block, n_repeats, final):
    compiled = hand_made(block, n_repeats, final)
    lens = open_in_transformer_lens(compiled)
    for stream in (some_stream(5), some_stream(3, 4)):
        torch.testing.assert_close(lens.run(stream), run(compiled, stream), rtol=0, atol=1e-12)


@needs_package
def test_steps_that_differ_agree_with_torch():
    update = icgd.MomentumStep((0.4, 0.1), 0.5, momentum=0.5, dampening=0.25)
    target = icgd.MLP((2, 3, 1), "tanh", biases=True)
    problem = icgd.Problem(target, "squared", update, icgd.Domain(1.0, 1.0))
    compiled = icgd.compile(problem, "softmax-stack", n_steps=2)
    lens = open_in_transformer_lens(compiled)
    stream = lens.prompt(compiled.task([[0.5, 1.0], [-1.0, 0.25]], [1.0, 0.5]))
    torch.testing.assert_close(lens.run(stream), run(compiled, stream), rtol=0, atol=1e-10)


@needs_package
@cases.every_construction_on(cases.FEW)
def test_a_compiled_run_agrees_with_torch(construction, case):
    compiled = compiled_case(construction, case)
    task = case.task()
    lens = open_in_transformer_lens(compiled)
    final = lens.run(lens.prompt(task))
    torch.testing.assert_close(final, run(compiled, lens.prompt(task)), rtol=0, atol=1e-11)
    dense = compiled.run_task(task, backend="dense")
    torch.testing.assert_close(lens.parameters(final), dense.parameters[-1], rtol=0, atol=1e-11)
    predictions = lens.predictions(final)
    torch.testing.assert_close(predictions, dense.predictions, rtol=0, atol=1e-11)


@needs_package
@cases.every_construction
def test_the_stream_after_every_layer_is_in_the_cache(construction):
    case = cases.suited(construction, cases.FEW[0])
    compiled = compiled_case(construction, case)
    lens = open_in_transformer_lens(compiled)
    prompt = lens.prompt(case.task())
    final, cache = lens.run_with_cache(prompt)
    expected = streams(compiled, prompt)
    assert len(lens.layers) == len(expected) == compiled.program.n_layers
    for layer, stream in zip(lens.layers, expected, strict=True):
        torch.testing.assert_close(cache[layer.stream][0], stream, rtol=0, atol=1e-11)
    assert torch.equal(final, cache[f"blocks.{len(lens.model.blocks) - 1}.hook_resid_post"][0])


@needs_package
def test_every_layer_has_a_block_of_its_own():
    lens = open_in_transformer_lens(hand_made("MAAM", 2, "AM"))
    places = [(layer.step, layer.title, layer.block, layer.n_units) for layer in lens.layers]
    assert places == [
        *((1, f"layer {place}", place, place + 1) for place in range(4)),
        *((2, f"layer {place}", 4 + place, place + 1) for place in range(4)),
        (None, "layer 0", 8, 5),
        (None, "layer 1", 9, 6),
    ]
    assert [layer.kind for layer in lens.layers[-2:]] == [LayerKind.SOFTMAX, LayerKind.MLP]
    assert len(lens.model.blocks) == 10
    assert lens.layers[-2].stream == "blocks.8.hook_resid_post"


def softmax_model(widths, activation):
    problem = icgd.Problem(
        icgd.MLP(widths, activation), "squared", icgd.GradientStep(0.5, 2.0), icgd.Domain(1.0, 1.0)
    )
    return icgd.compile(problem, "softmax-stack", n_steps=2)


def two_prompts(compiled, lens):
    """The streams of two tasks of the same shape."""
    if "is_example" not in lens.layout.names:
        return some_stream(5), some_stream(5).flip(0)
    x = torch.linspace(-1, 1, 8, dtype=torch.float64).view(4, 2)
    tasks = (
        compiled.task(inputs, labels, queries=inputs[:1], seed=seed)
        for seed, (inputs, labels) in enumerate([(x, x.sin().mean(1)), (x.cos(), x[:, 0] / 2)])
    )
    return [*map(lens.prompt, tasks)]


@needs_package
@pytest.mark.parametrize(
    "make",
    [
        lambda: hand_made("AMMA", 2, "AM"),
        lambda: softmax_model((2, 3, 1), "tanh"),
        lambda: softmax_model((2, 2, 2, 1), "relu"),
    ],
    ids=["hand-made", "tanh", "relu"],
)
def test_a_patch_in_any_layer_reaches_everything_downstream(make):
    """Interchange a slot between two runs, as the torch transformer does it layer by layer."""
    compiled = make()
    lens = open_in_transformer_lens(compiled)
    prompt, other = two_prompts(compiled, lens)
    torch_layers = list(compiled.transformer().unrolled())
    after, others = streams(compiled, prompt), streams(compiled, other)
    for number, layer in enumerate(lens.layers):
        for slot in ("x", "y", "weights_1"):
            where = lens.coordinates(slot)
            expected = after[number].clone()
            expected[:, where] = others[number][:, where]
            with torch.no_grad():
                for rest in torch_layers[number + 1 :]:
                    expected = rest(expected)
            patch = lens.patch(layer, slot, others[number][:, where])
            patched = lens.run(prompt, [patch])
            torch.testing.assert_close(patched, expected, rtol=0, atol=1e-10)
            assert not torch.allclose(patched, after[-1], atol=1e-3)


@needs_package
def test_patching_a_corrupted_label_back_restores_the_run():
    compiled = softmax_model((2, 3, 1), "tanh")
    lens = open_in_transformer_lens(compiled)
    x = torch.linspace(-1, 1, 8, dtype=torch.float64).view(4, 2)
    y = x.sin().mean(1)
    clean = lens.prompt(compiled.task(x, y, queries=x[:1], seed=0))
    wrong = lens.prompt(compiled.task(x, -y, queries=x[:1], seed=0))
    [first, *_] = lens.layers
    back = lens.patch(first, "y", clean[:, lens.coordinates("y")])
    restored, expected = lens.run(wrong, [back]), lens.run(clean)
    torch.testing.assert_close(restored, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(lens.predictions(restored), lens.predictions(expected, 4))
    assert (lens.parameters(lens.run(wrong)) - lens.parameters(expected)).abs().max() > 1e-2


@needs_package
def test_a_patch_that_does_not_fit_its_slot_is_refused():
    lens = open_in_transformer_lens(hand_made("A", 1, ""))
    with pytest.raises(DataError, match=r"values have shape \(3, 2\); slot 'weights_1' expects"):
        lens.patch(lens.layers[0], "weights_1", torch.zeros(3, 2))


@needs_package
def test_a_model_shows_itself_in_a_line():
    lens = open_in_transformer_lens(hand_made("AM", 2, "A"))
    assert repr(lens) == (
        "LensModel(construction: hand-made; steps: 2; blocks: 5 of 3 heads; d_model: 10 in 4 slots)"
    )


@needs_package
def test_a_layer_is_found_by_title_and_step():
    lens = open_in_transformer_lens(hand_made("AM", 2, "A"))
    assert [layer.block for layer in lens.layers_titled("layer 1", step=2)] == [3]
    assert lens.layers_titled("layer 0") == lens.layers[-1:]


@needs_package
def test_unknown_layers_and_steps_are_refused():
    lens = open_in_transformer_lens(hand_made("AM", 2, "A"))
    with pytest.raises(UnknownNameError, match=r"Unknown layer 'layer 1'; known are layer 0\."):
        lens.layers_titled("layer 1")
    with pytest.raises(SettingError, match=r"step must be at most 2, got 3\."):
        lens.layers_titled("layer 0", step=3)


@needs_package
def test_steps_share_their_weights():
    lens = open_in_transformer_lens(hand_made("AMA", 3, "A"))
    weights = [block.attn.q.weight for block in lens.model.blocks]
    assert weights[0].data_ptr() == weights[3].data_ptr() == weights[6].data_ptr()
    assert len({weight.data_ptr() for weight in weights}) == 4


@needs_package
def test_everything_is_on_the_processor():
    model = open_in_transformer_lens(hand_made("AMA", 2, "M")).model
    devices = {tensor.device.type for tensor in (*model.parameters(), *model.buffers())}
    assert devices == {model.cfg.device} == {"cpu"}


@needs_package
def test_padding_is_zero_and_queries_are_doubled():
    compiled = hand_made("AA", 1, "M")
    first, second = compiled.transformer().block
    model = open_in_transformer_lens(compiled).model
    assert model.W_Q.shape == (3, 2, LAYOUT.width, 3)  # the values of layer 1 are 3 wide
    assert torch.equal(model.W_Q[0, :1, :, :2], 2 * first.W_Q)
    assert torch.equal(model.W_V[1, :, :, :3], second.W_V)
    assert torch.equal(model.W_O[1, :, :3], second.W_O)
    assert model.W_O[0].count_nonzero() == first.W_O.numel()
    assert model.W_Q[2].count_nonzero() == 0


@needs_package
def test_masks_hide_tokens():
    compiled = hand_made("AMA", 2, "A")
    first, _, second = compiled.transformer().block
    first.mask = torch.ones(5, 5, dtype=torch.bool).tril()
    second.mask = torch.eye(5, dtype=torch.bool).roll(1, dims=0)
    lens = open_in_transformer_lens(compiled)
    final, cache = lens.run_with_cache(some_stream(5))
    torch.testing.assert_close(final, run(compiled, some_stream(5)), rtol=0, atol=1e-12)
    pattern = cache["blocks.3.attn.hook_pattern"]
    assert pattern[..., ~first.mask].count_nonzero() == 0
    assert (pattern[..., first.mask] > 0).all()


@needs_package
def test_ablating_a_head_in_one_step_is_a_head_without_output_there():
    compiled = hand_made("MAM", 2, "")
    lens = open_in_transformer_lens(compiled)
    [layer] = lens.layers_titled("layer 1", step=2)

    def ablate(z, hook):
        z[:, :, 1] = 0.0
        return z

    hooks = [(f"blocks.{layer.block}.attn.hook_z", ablate)]
    ablated = lens.model.run_with_hooks(some_stream(1, 5), fwd_hooks=hooks)
    layers = list(compiled.transformer().unrolled())
    stream = Sequential(*layers[:4])(some_stream(1, 5))
    layers[4].W_O.data[1] = 0.0
    expected = Sequential(*layers[4:])(stream)
    torch.testing.assert_close(ablated, expected, rtol=0, atol=1e-12)
    assert not torch.allclose(ablated, lens.run(some_stream(1, 5)), atol=1e-3)


@needs_package
def test_float32_agrees_as_far_as_it_goes():
    compiled = hand_made("AAM", 2, "M")
    stream = some_stream(5)
    single = open_in_transformer_lens(compiled, dtype="float32").run(stream.float())
    assert single.dtype == torch.float32
    expected = run(compiled, stream)
    torch.testing.assert_close(single.double(), expected, rtol=1e-4, atol=1e-4)


@needs_package
def test_coordinates_have_names():
    lens = open_in_transformer_lens(hand_made("A", 1, ""))
    labels = [lens.label(coordinate) for coordinate in range(LAYOUT.width)]
    weights = [f"weights_1[{row}, {column}]" for row in range(3) for column in range(2)]
    assert labels == ["x[0]", "x[1]", "y[0]", *weights, "one[0]"]
    assert [lens.slot_of(coordinate) for coordinate in (0, 2, 8)] == ["x", "y", "weights_1"]
    assert lens.coordinates("weights_1") == slice(3, 9)


@needs_package
@pytest.mark.parametrize("coordinate", [-1, 10])
def test_a_coordinate_beyond_the_stream_is_refused(coordinate):
    lens = open_in_transformer_lens(hand_made("A", 1, ""))
    with pytest.raises(LayoutError) as caught:
        lens.label(coordinate)
    expected = f"The residual stream has coordinates 0 to 9, got {coordinate}."
    assert str(caught.value) == expected


@needs_package
def test_streams_that_do_not_fit_are_refused():
    lens = open_in_transformer_lens(hand_made("A", 1, ""), max_tokens=8)
    with pytest.raises(SettingError, match=r"stream must be of type torch\.float64"):
        lens.run(some_stream(5).float())
    with pytest.raises(DataError, match=r"stream has shape \(5, 9\); expected \(tokens, 10\)"):
        lens.run_with_cache(some_stream(5)[:, :-1])
    with pytest.raises(SettingError, match=r"number of tokens must be at most 8, got 9\."):
        lens.run(some_stream(9))


@needs_package
def test_the_example_of_its_page_runs(monkeypatch, tmp_path, capsys):
    page = Path(__file__).parents[2] / "docs" / "exports" / "transformer_lens.md"
    [example] = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(example, names)
    torch.testing.assert_close(names["gradient"], names["real"], rtol=0, atol=1e-10)
    assert (tmp_path / "pattern.png").read_bytes().startswith(b"\x89PNG")
    assert names["change"].max() > 0.1
    assert "weights_1[0, 1] is now off by " in capsys.readouterr().out
    assert torch.allclose(names["restored"], names["final"], rtol=0, atol=1e-12)


def test_layers_that_the_tool_lacks_are_named():
    case = cases.FEW[0]
    program = build(cases.CONSTRUCTIONS["relu-stack"], case)
    with pytest.raises(ExportError) as caught:
        open_in_transformer_lens(Compiled(case.problem, program))
    assert str(caught.value) == (
        "TransformerLens has softmax attention and MLP layers only; the transformer of relu-stack "
        "also has attention without a softmax and product layers. Compile with "
        "construction='softmax-stack', or use icgd.exports.onnx, which writes every layer."
    )


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr(transformer_lens, "TransformerBridge", None)
    with pytest.raises(MissingExtraError) as caught:
        open_in_transformer_lens(hand_made("A", 1, ""))
    assert str(caught.value) == (
        "Opening a model in TransformerLens needs transformer-lens. "
        "Install it with: pip install 'icgd[lens]'"
    )


def test_the_module_is_imported_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformer_lens.config", None)
    assert run_path(transformer_lens.__file__)["TransformerBridge"] is None


@pytest.mark.parametrize(
    ("name", "foreign"),
    [
        ("linear", "linear attention"),
        ("learnt", "exp attention"),
        ("softmax-noise", "noise"),
        ("softmax-momentum", "momentum"),
    ],
)
def test_other_kernels_are_refused_with_what_to_use_instead(name, foreign):
    problems = {case.name: case.problem for case in cases.KERNEL_CASES}
    noisy = replace(problems["softmax"], update=icgd.FunctionalStep(0.7, noise=0.1))
    kept = replace(problems["softmax"], update=icgd.FunctionalStep(0.7, momentum=0.5))
    problems |= {"softmax-noise": noisy, "softmax-momentum": kept}
    compiled = icgd.compile(problems[name], n_steps=3)
    with pytest.raises(ExportError, match=f"softmax attention only; this .* also has {foreign}"):
        open_in_transformer_lens(compiled)


SOFTMAX_STEPS = icgd.FunctionalStep(
    (0.7, 0.4), heads=[cases.LEARNT[2], [icgd.KernelHead("softmax")] * 2]
)


@needs_package
@pytest.mark.parametrize("update", [icgd.FunctionalStep(0.7), SOFTMAX_STEPS], ids=["one", "learnt"])
def test_softmax_descent_agrees_with_torch_and_reads_examples_alone(update):
    case = next(case for case in cases.KERNEL_CASES if case.name == "softmax")
    compiled = icgd.compile(replace(case.problem, update=update), n_steps=2)
    task, lens = case.task(), open_in_transformer_lens(compiled)
    final, cache = lens.run_with_cache(lens.prompt(task))
    torch.testing.assert_close(final, run(compiled, lens.prompt(task)), rtol=0, atol=1e-12)
    dense = compiled.run(case.x, case.y, queries=case.queries, backend="dense")
    torch.testing.assert_close(lens.predictions(final, 7), dense.predictions, rtol=0, atol=1e-12)
    pattern = cache["blocks.0.attn.hook_pattern"][:, 0]  # a second head is padding, if there is one
    assert pattern[..., 7:].max() < 1e-40
    assert [layer.step for layer in lens.layers] == [1, 2]
