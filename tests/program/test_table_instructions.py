from icgd.program.instructions import Combination, LayerKind, MapSlots, Summand
from icgd.program.network_instructions import AverageExamples, LookUpStep

KEY = Combination(("code", "level_w"), (1.0, 2.0))
STEP = LookUpStep(
    KEY,
    "table",
    ("level_x", "level_y", "level_w"),
    (1.0, 2.0, 3.0),
    "tanh",
    "squared",
    -0.25,
    3.0,
    2,
    "w",
)


def test_a_mean_over_examples_is_weighted_by_a_softmax():
    mean = AverageExamples(Combination.of("score"), Combination(("a", "b"), (1.0, -1.0)), "code")
    assert mean.formula() == "code = mean(+1 a -1 b) weighted by softmax(score)"
    assert mean.kind is LayerKind.SOFTMAX
    assert (mean.reads(), mean.writes()) == (("score", "a", "b"), ("code",))
    assert mean.functions() == ()


def test_a_step_is_looked_up_by_its_key():
    assert STEP.formula() == "w = table(+1 code +2 level_w), of 2 examples"
    assert STEP.kind is LayerKind.MLP
    assert (STEP.reads(), STEP.writes()) == (("code", "level_w", "w"), ("w",))
    assert STEP.functions() == ("table",)
    assert STEP.addition == MapSlots((Summand(KEY, "table"),), "one", (), 0.0, "w")
