import pytest

from icgd.errors import settings
from icgd.errors.settings import SettingError
from tests.contracts.messages import assert_complete, assert_every_message_is_made, made

MESSAGES = [
    (
        made(SettingError.not_described, "decoder", "KeyError: 'width'"),
        "data does not describe a decoder: KeyError: 'width'. Give what the decoder told of "
        "itself.",
    ),
    (
        made(SettingError.unequal_shortcut, (0, 1), (3, 4, 3)),
        "shortcut (0, 1) adds the 3 outputs of layer 0 to the 4 of layer 1; both must have one "
        "width. widths are (3, 4, 3).",
    ),
    (
        made(SettingError.norm_of_one, 2),
        "norms has layer 2, whose width is 1: a number less its own mean is 0. Norms need layers "
        "of width 2 or more.",
    ),
    (made(SettingError.twice, "norms", 2), "norms has 2 twice; name it once."),
    (
        made(SettingError.no_origin),
        "This run does not know what it trained, because a backend made it on its own. Make it "
        "with compiled.run or compiled.run_task.",
    ),
    (
        made(SettingError.no_average),
        "This run keeps no average of its weights. Give its update average=0.99, say.",
    ),
    (
        made(SettingError.not_traced),
        "The run recorded no slot, so there is no residual stream to draw. Run with trace=True, "
        "or name the slots, such as trace=['y'].",
    ),
    (
        made(SettingError.has_momentum, "A rigorous proof"),
        "A rigorous proof takes steps without momentum, and here they have some. Leave it out, or "
        "use icgd.verify without rigorous=True, which bounds every step.",
    ),
    (
        made(SettingError.own_kernel, "mine"),
        "The kernel 'mine' is a function of your own, which no rigorous proof can enclose. Use one "
        "of icgd's kernels, or leave the rigorous proof out.",
    ),
    (
        made(SettingError.steps_with_kernels, "A rigorous proof"),
        "A rigorous proof needs one kernel for all steps, with one transform for queries and keys; "
        "here steps have kernels of their own, as learnt layers have. Use icgd.verify, which "
        "measures and bounds every step.",
    ),
    (
        made(SettingError.only_linear_models, "relu-stack"),
        "A guarantee is what theorems promise of a linear model (cot-ridge, cot-lasso, cot-glm), "
        "and this is relu-stack. Use verify for its bounds.",
    ),
    (
        made(SettingError.functions_do_not_stop),
        "stop_below is for runs that train weights; a function takes all its steps. Leave it out.",
    ),
    (
        made(SettingError.not_inside, "error", 1.0, low=0.0, high=1.0),
        "error must lie strictly between 0 and 1, got 1.0.",
    ),
    (
        made(SettingError.not_joined, "--errors", "numbers", "0.1,0.05", "0.1;0.2"),
        "--errors must be numbers joined by commas, such as 0.1,0.05, got '0.1;0.2'.",
    ),
    (
        made(SettingError.negative_penalty, "l2", -1.0),
        "l2 must not be negative, got -1.0: a penalty draws coefficients towards 0. "
        "Give 0 for none.",
    ),
    (
        made(SettingError.unbounded_slope, "poisson"),
        "The poisson link has no largest slope, so no step size is safe for all coefficients. "
        "Give a step_size, or bound the scores by a box or by Domain(score=...).",
    ),
    (
        made(SettingError.step_too_long, 0.5, 0.25),
        "step_size=0.5 is above 1 / beta = 0.25, and the theorems say nothing. "
        "Shorten the step, or leave it out to have it chosen from the data.",
    ),
    (
        made(SettingError.not_one_of, "shape of the matern kernel", 1.0, (0.5, 1.5)),
        "shape of the matern kernel must be one of 0.5, 1.5, got 1.0.",
    ),
    (
        made(SettingError.wrong_length, "step_size", 2, "3, one for each step"),
        "step_size has 2 entries; expected 3, one for each step.",
    ),
    (
        made(SettingError.starts_from_zero),
        "A kernel machine starts from the function 0; leave `initial` out.",
    ),
    (
        made(SettingError.not_positive, "step_size", -0.5),
        "step_size must be a positive finite number, got -0.5.",
    ),
    (
        made(SettingError.not_count, "n_steps", 2.5, least=0),
        "n_steps must be a whole number of at least 0, got 2.5.",
    ),
    (
        made(SettingError.too_large, "seed", 12, most=10),
        "seed must be at most 10, got 12.",
    ),
    (
        made(SettingError.too_few_widths, [4]),
        "widths must name the input and at least one layer, such as (4, 16, 1), got (4,).",
    ),
    (made(SettingError.both, "initial", "seed"), "Give either initial or seed, not both."),
    (
        made(SettingError.neither, "--step-size", "--step-from"),
        "Give --step-size or --step-from; got neither.",
    ),
    (
        made(SettingError.wrong_linear_widths, (3, 4, 1)),
        "widths of a linear model are its inputs and one output, such as 4,1, got 3,4,1.",
    ),
    (
        made(SettingError.without, "per_run", "tolerance"),
        "per_run has no effect without tolerance; give both or neither.",
    ),
    (
        made(SettingError.not_power_of_two, "kink_width", 0.3),
        "kink_width must be a power of two, such as 2**-13, so that dividing by it is exact, "
        "got 0.3.",
    ),
    (
        made(SettingError.not_joined, "--widths", "whole numbers", "4,16,1", "4,x"),
        "--widths must be whole numbers joined by commas, such as 4,16,1, got '4,x'.",
    ),
    (
        made(SettingError.no_device, "cuda:2", ["cpu", "cuda:0"]),
        "device='cuda:2' is not there: torch finds cpu, cuda:0. Use one of these, or 'auto' to "
        "take what there is.",
    ),
    (
        made(SettingError.device_not_used, "cuda", "cot-cost"),
        "device='cuda' would not be used: the studies of cot-cost compute on the processor. Leave "
        "it out, or use 'auto'.",
    ),
    (
        made(SettingError.no_precision, "mps", "float64", "dtype='float32'"),
        "device='mps' does not compute in float64. Use dtype='float32'.",
    ),
    (
        made(SettingError.nothing_held_out, 0.01, 20),
        "validation_share=0.01 of 20 tasks holds none out for validation. Give a larger share, or "
        "n_validation=0.",
    ),
    (
        made(SettingError.all_held_out, 0.9, 2),
        "validation_share=0.9 of 2 tasks holds all of them out for validation, and none is left to "
        "train on. Give a smaller share.",
    ),
    (
        made(SettingError.cannot_grow, "TaskTable"),
        "A curriculum needs an InContextTask, whose sizes it can change; got TaskTable. Leave the "
        "curriculum out.",
    ),
    (
        made(SettingError.uneven_heads, 64, 5),
        "width=64 is no multiple of n_heads=5, and heads share it equally. Give a width that is a "
        "multiple of the number of heads.",
    ),
    (
        made(SettingError.uneven_parts, 4, 3),
        "accumulate=3 does not divide the 4 tasks that a process takes in a step. Give a "
        "batch_size that is a multiple of it for each process.",
    ),
    (
        made(SettingError.no_score_at, 0.0),
        "A diffusion must begin at a time above 0, got first=0.0: data without noise may have no "
        "score. Give a small time T_0, such as 0.02.",
    ),
    (
        made(SettingError.no_parts, "cot-cost"),
        "cot-cost has no panels to choose from. Leave out --only.",
    ),
    (
        made(SettingError.uneven_shares, 8, 3),
        "batch_size=8 cannot be shared evenly by 3 processes. Give a multiple of 3.",
    ),
    (
        made(SettingError.out_of_range, "accuracy", 2.0, least=1e-15, most=1.0),
        "accuracy must lie between 1e-15 and 1, got 2.0.",
    ),
    (
        made(SettingError.bad_interval, 2.0, 1.0),
        "An interval needs finite ends low < high, got [2.0, 1.0].",
    ),
    (
        made(
            SettingError.box_too_large,
            "a b",
            (2.0, 40.0),
            "200 relu units",
            0.0123456,
            1e-3,
            800,
            most=3200,
        ),
        "The box [-2, 2] x [-40, 40] is too large for 200 relu units: the error of a b would be "
        "0.0123, above accuracy=0.001. About 800 would do; or use a smaller box.",
    ),
    (
        made(
            SettingError.box_too_large,
            "tanh",
            (2.0,),
            "8 relu units",
            0.0123456,
            1e-9,
            None,
            most=3200,
        ),
        "The box [-2, 2] is too large for 8 relu units: the error of tanh would be 0.0123, above "
        "accuracy=1e-09. Even 3200 would not do: use a smaller box.",
    ),
    (
        made(SettingError.bound_too_small, 1e-300, 2.0**-400, "tanh"),
        "tanh units cannot clip to [-1e-300, 1e-300]: their slopes grow like 1 / 1e-300, beyond "
        "the range of float64. Use a box of at least 3.9e-121, or relu units, whose corners are "
        "sharp by themselves.",
    ),
    (
        made(SettingError.slope_jumps, "relu", "cos", able=("elu", "gelu")),
        "s relu'(t) jumps where relu has a kink, and cos units have no kink to put there. Use "
        "units of elu, gelu, or a smooth activation in place of relu, such as softplus.",
    ),
    (
        made(SettingError.nothing_to_clip, 2.0, 1.5),
        "reach=1.5 must exceed bound=2: what stays within the bound is never clipped. Give the "
        "largest size before clipping as reach, or leave the clipping out.",
    ),
    (
        made(SettingError.not_nesterov, 0.9, 0.5),
        "nesterov=True needs a momentum above 0 and no dampening, got momentum=0.9 and "
        "dampening=0.5.",
    ),
    (
        made(SettingError.no_slope_parts, "cross_entropy"),
        "The slope of the cross_entropy loss couples all outputs; it is no sum of functions of one "
        "variable. Use squared, logistic or huber.",
    ),
    (
        made(SettingError.too_many, "step_size", 2**62, most=10**7),
        "step_size has 4,611,686,018,427,387,904 entries; at most 10,000,000 are read. Give fewer.",
    ),
    (
        made(SettingError.too_many_ends, 10**6, 33_333, "Adam steps of 0.1, box 2"),
        "n_steps must be at most 33,333 here, got 1,000,000: Adam steps of 0.1, box 2, differ from "
        "each other, and the layers of each are written down. Take fewer steps, or steps that are "
        "all alike: of one size, without averages and corrections.",
    ),
    (
        made(SettingError.unreadable_row, "step_size", "ZeroDivisionError: division by zero"),
        "step_size cannot be read as a row (ZeroDivisionError: division by zero). Give a list "
        "or an array.",
    ),
    (
        made(SettingError.wrong_kind, "l2", "x", "a finite number"),
        "l2 must be a finite number, got 'x'.",
    ),
    (
        made(SettingError.wrong_kind, "target", None, "MLP"),
        "target must be of type MLP, got None.",
    ),
    (
        made(SettingError.singular, 0.0, 4.0, 1e-14),
        "low, the smallest eigenvalue of the kernel on the examples, is 0, but it must be above "
        "1e-14 times the largest one, which is 4: no step makes the error smaller along its "
        "eigenvector. Add noise, such as icgd.spectrum(machine, X, noise=0.04) and "
        "icgd.FunctionalStep(steps, noise=0.04). Or use one constant step size below 0.5.",
    ),
    (
        made(SettingError.singular, -5e-15, 4.0, 1e-14),
        "low, the smallest eigenvalue of the kernel on the examples, is -5e-15, but it must be "
        "above 1e-14 times the largest one, which is 4: no step makes the error smaller along its "
        "eigenvector. Add noise, such as icgd.spectrum(machine, X, noise=0.04) and "
        "icgd.FunctionalStep(steps, noise=0.04). Or use one constant step size below 0.5.",
    ),
    (
        made(SettingError.singular, -3.0, 1.0, 1e-14),
        "low, the smallest eigenvalue of the kernel on the examples, is -3, but it must be above "
        "1e-14 times the largest one, which is 1: no step makes the error smaller along its "
        "eigenvector. Add noise, such as icgd.spectrum(machine, X, noise=3.01) and "
        "icgd.FunctionalStep(steps, noise=3.01). Or use another kernel.",
    ),
    (
        made(SettingError.beyond_prompt, 7, 6),
        "lengths go up to 7 examples, and a test prompt has 6, 1.5 times those of pretraining, for "
        "which the decoder has positions. Give shorter lengths, or more n_examples.",
    ),
]


@pytest.mark.parametrize(("error", "text"), MESSAGES)
def test_the_message_is_complete(error, text):
    assert_complete(error, text)


def test_every_message_is_tested():
    assert_every_message_is_made(settings)
