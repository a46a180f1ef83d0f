"""The full text of every message: what, where, the value, what was expected, what to do."""

import inspect

import pytest

from icgd import errors
from icgd.errors import (
    BoxWarning,
    CheckpointError,
    DataError,
    DenseSizeError,
    DistributionError,
    DivergenceWarning,
    DomainError,
    ExportError,
    FileError,
    IcgdError,
    InterruptedRunError,
    KernelError,
    LayoutError,
    MissingExtraError,
    OverflowedRunError,
    PrecisionWarning,
    ProgramError,
    SeparableDataError,
    SettingError,
    SweepError,
    ToleranceError,
    TrainingError,
    UnknownNameError,
    UnsupportedActivationError,
    UnsupportedProblemError,
)

TESTED: set[str] = set()


def made(maker, *args, **settings) -> IcgdError:
    """The error that `maker` makes; remembers that it was tested."""
    TESTED.add(maker.__qualname__)
    return maker(*args, **settings)


MESSAGES = [
    (
        made(SettingError.is_a_chain, "cot-network"),
        "cot-network is one block of layers that writes a chain, not a stack of layers; its "
        "weights are those of block(). Compile with relu-stack for a whole transformer.",
    ),
    (
        made(OverflowedRunError.beyond_grid, "z", 8, "forward 2 of round 2", 5000.5, 4096.0),
        "Row z of block 8 (forward 2 of round 2) reaches 5000.5, but the grid that its heads read "
        "ends at 4096. Use a smaller step size, box or domain.",
    ),
    (
        made(InterruptedRunError.after, 3, 20, "the run"),
        "The run was interrupted after 3 of 20 steps. The weights so far are in the error's "
        "`partial.parameters`; go on with initial=...[-1].",
    ),
    (
        made(InterruptedRunError.after, 3, 20, "the run", 6),
        "The run was interrupted after 3 of 20 steps. The weights so far are in the error's "
        "`partial.parameters`; go on with initial=...[-1] and with the examples from number 6 "
        "(counted from 0) first.",
    ),
    (
        made(InterruptedRunError.of_tasks, 3, 20, True, "the runs"),
        "The run was interrupted: the whole runs of the first 3 of 20 tasks are in the error's "
        "`partial`. Run the other tasks again.",
    ),
    (
        made(OverflowedRunError.beyond_scores, "step 3, example", 4, -7.25, 6.5),
        "The score <w, x> at step 3, example 4 (counted from 0) is -7.25, but the heads are made "
        "for scores up to 6.5. Compile with a larger Domain(score=...), or use a smaller step size "
        "or box.",
    ),
    (
        made(SettingError.scores_too_wide, "poisson", 9.0, 1024),
        "A head of 1024 tokens cannot return the poisson mean of scores up to 9. Give a smaller "
        "bound with Domain(score=...), or a smaller box.",
    ),
    (
        made(SettingError.needs_examples, "cot-glm"),
        "cot-glm has heads for every example; give their number: n_examples=len(X), or --examples "
        "on the command line.",
    ),
    (
        made(SettingError.other_examples, 5, 60),
        "--examples is 5, but the file of --step-from has 60 examples, for which the step size "
        "would be chosen. Leave --examples out.",
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
        made(DataError.smaller_than_batch, 3, 4),
        "X has 3 examples, fewer than batch_size=4 that a step takes. "
        "Give at least 4, or a smaller batch_size.",
    ),
    (
        made(SettingError.not_inside, "error", 1.0, low=0.0, high=1.0),
        "error must lie strictly between 0 and 1, got 1.0.",
    ),
    (
        made(SettingError.not_numbers, "--errors", "0.1;0.2", "0.1,0.05"),
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
        made(DataError.outside_support, "logistic", [3, 0], 2.0, "labels between 0 and 1"),
        "y[3, 0] is 2; the logistic link needs labels between 0 and 1. "
        "Recode the labels, or use link='identity'.",
    ),
    (
        made(SeparableDataError.of, "logistic", True, [0.5, -2.0], None),
        "The data are completely separable, so no minimiser exists: along a direction (most of it "
        "coefficient 1) the logistic loss falls for ever at every example. "
        "Add an l2 penalty, such as l2=0.01.",
    ),
    (
        made(SeparableDataError.of, "poisson", False, [0.5, -0.2], 3),
        "The data of task 3 are quasi-completely separable, so no minimiser exists: along a "
        "direction (most of it coefficient 0) the poisson loss falls for ever at some examples "
        "and rises at none. Add an l2 penalty, such as l2=0.01.",
    ),
    (
        made(SeparableDataError.intercept, "logistic", 1.0, None),
        "Every label is 1, so no minimiser exists: the intercept of the logistic link grows for "
        "ever, and penalties leave it out. Use intercept=False, or give examples with other "
        "labels.",
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
        made(ExportError.activation, "ONNX", "gelu", ["relu", "tanh"]),
        "ONNX cannot hold gelu units. Compile with unit_activation=... one of relu, tanh, or use "
        "compiled.transformer(), a torch module.",
    ),
    (
        made(ExportError.kernel_attention, "ONNX"),
        "ONNX cannot hold kernel attention, of which functional descent is made. Use "
        "compiled.transformer(), a torch module.",
    ),
    (
        made(
            UnsupportedProblemError.by_all,
            {"relu-stack": "it cannot.", "universal": "nor can it.", "recursion": "it cannot."},
        ),
        "No construction can compile this problem. relu-stack, recursion: it cannot. universal: "
        "nor can it.",
    ),
    (
        made(SettingError.starts_from_zero),
        "A kernel machine starts from the function 0; leave `initial` out.",
    ),
    (
        made(SettingError.no_setting, "functional", "pieces", (), ["relu-stack"]),
        "functional has no setting 'pieces'; it has no settings. pieces is a setting of "
        "relu-stack.",
    ),
    (
        made(SettingError.no_setting, "relu-stack", "peices", ("pieces", "kink_width"), []),
        "relu-stack has no setting 'peices'; its settings are pieces, kink_width. Did you mean "
        "'pieces'?",
    ),
    (
        made(SettingError.beside_construction, "ReluStack", {"pieces": 8, "kink_width": 0.5}),
        "pieces=8, kink_width=0.5 was given beside a construction object, which has its own "
        "settings. Put it into the object: ReluStack(pieces=8, kink_width=0.5).",
    ),
    (
        made(KernelError.wrong_dtype, "mine", "torch.float32", "torch.float64"),
        "Kernel 'mine' returned float32 for points of float64. Keep the type of the points.",
    ),
    (
        made(FileError.unknown_name, "run.safetensors", "Unknown kernel 'mine'."),
        "run.safetensors needs what is not known here: Unknown kernel 'mine'. Register kernels of "
        "your own with icgd.register_kernel before loading.",
    ),
    (
        made(KernelError.wrong_shape, "mine", "(2, 1)", (2, 3)),
        "Kernel 'mine' returned (2, 1); expected a tensor of shape (2, 3): a row for each point "
        "on the left, a column for each on the right.",
    ),
    (
        made(KernelError.not_finite, "exp", [0, 1], float("inf")),
        "Kernel 'exp' returned inf at [0, 1]; every entry must be finite. Rescale the inputs, or "
        "use a kernel that stays bounded.",
    ),
    (
        made(KernelError.not_symmetric, "mine", [0, 1], 0.25, 0.5),
        "Kernel 'mine' is not symmetric: it is 0.25 at [0, 1] and 0.5 with the two points "
        "exchanged. Mend it, or register it with symmetric=False and do without what needs "
        "symmetry.",
    ),
    (
        made(KernelError.needs_symmetry, "softmax", "The spectrum"),
        "The spectrum needs a symmetric kernel, which 'softmax' is not.",
    ),
    (
        made(KernelError.no_shape, "rbf", 2.0, ("matern", "polynomial")),
        "Kernel 'rbf' has no shape, got shape=2.0; only matern and polynomial have one. Rescale "
        "inputs with the head's transform.",
    ),
    (
        made(KernelError.taken, "rbf"),
        "'rbf' is a kernel of icgd already; register yours under another name.",
    ),
    (
        made(BoxWarning.of, 2, 0.5),
        "Coefficient 2 (counted from 0) ends at the box, 0.5: without it, it would be larger. Give "
        "a larger box, or a smaller step size if steps diverge.",
    ),
    (
        made(DivergenceWarning.of, 100.0, 1.21, 0.021),
        "The steps diverge on these data: the error grows 1.21-fold along the kernel's "
        "eigenvalue 100. step_size is 0.021; it must be below 0.02.",
    ),
    (
        made(DivergenceWarning.of, 100.0, 1.21, None),
        "The steps diverge on these data: the error grows 1.21-fold along the kernel's "
        "eigenvalue 100. Choose steps for a spectrum that reaches that far.",
    ),
    (
        made(DivergenceWarning.of, -0.5, 2.0, 0.1),
        "The steps diverge on these data: the error grows 2-fold along an eigenvector of "
        "eigenvalue -0.5. The kernel is not positive there: add noise of at least that size, or "
        "use another kernel.",
    ),
    (
        made(UnknownNameError.of, "loss", "sqared", known=["squared", "huber"]),
        "Unknown loss 'sqared'; known are squared, huber. Did you mean 'squared'?",
    ),
    (
        made(UnknownNameError.of, "loss", "mse", known=["squared", "huber"]),
        "Unknown loss 'mse'; known are squared, huber.",
    ),
    (
        made(UnknownNameError.of, "loss", 3, known=["squared", "huber"]),
        "Unknown loss 3; known are squared, huber.",
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
        made(SettingError.not_a_number_list, "--widths", "4,x"),
        "--widths must be whole numbers joined by commas, such as 4,16,1, got '4,x'.",
    ),
    (
        made(DistributionError.not_square, "covariance", (2, 3)),
        "covariance must be a square matrix, a row and a column for each input; got shape (2, 3).",
    ),
    (
        made(DistributionError.not_symmetric, "covariance", (0, 1), 0.5, 0.25),
        "covariance must be symmetric; it is 0.5 at [0, 1] and 0.25 mirrored. Give (S + S^T) / 2.",
    ),
    (
        made(DistributionError.not_positive_definite, "covariance", -1.0),
        "covariance must be positive definite; its smallest eigenvalue is -1. Leave out the inputs "
        "without variance.",
    ),
    (
        made(DistributionError.other_width, 4, 5),
        "The labels are a function of 4 inputs, but the covariates have 5. Give both the same "
        "width.",
    ),
    (
        made(SettingError.no_device, "cuda"),
        "device='cuda' is not there: torch finds no CUDA device. Use device='cpu', or 'auto' to "
        "take what there is.",
    ),
    (
        made(SettingError.uneven_shares, 8, 3),
        "batch_size=8 cannot be shared evenly by 3 processes. Give a multiple of 3.",
    ),
    (
        made(CheckpointError.damaged, "run/checkpoint", "its checksum does not match"),
        "run/checkpoint is damaged or not a checkpoint (its checksum does not match). It was left "
        "as it is; remove it to train without it.",
    ),
    (
        made(CheckpointError.foreign, "run/checkpoint", None, 1),
        "run/checkpoint has checkpoint format None; this version of icgd reads format 1. It was "
        "left as it is; use the icgd that wrote it, or train in another folder.",
    ),
    (
        made(CheckpointError.other_configuration, "run/checkpoint", "settings.seed", 0, 3),
        "run/checkpoint belongs to another run: its settings.seed is 0, here it is 3. It was left "
        "as it is; go on with the old value, or train in another folder.",
    ),
    (
        made(TrainingError.diverged, "loss", float("nan"), 12),
        "The loss is nan at step 12; training has stopped, and the last checkpoint is kept. Lower "
        "learning_rate or clip_norm, or train with dtype='float64'.",
    ),
    (
        made(TrainingError.nothing_to_train, "ToyModel"),
        "ToyModel has no parameter that requires a gradient; there is nothing to train.",
    ),
    (
        made(TrainingError.taken_column, "loss"),
        "measure returned 'loss', which the log has of its own; call the column otherwise.",
    ),
    (
        made(TrainingError.other_columns, ("step", "lost"), ("step", "loss")),
        "The log has columns step, loss; a row came with step, lost. measure must return the same "
        "names, in the same order, each time.",
    ),
    (
        made(SweepError.failed, 1, {"seed": 0}, ZeroDivisionError("division by zero")),
        "Configuration 1, {'seed': 0}, failed with ZeroDivisionError: division by zero",
    ),
    (
        made(DataError.not_finite, "X", [3, 1], float("nan")),
        "X[3, 1] is nan; every entry must be finite. Drop or fill such rows first.",
    ),
    (
        made(DataError.overflows, "X", [3, 1], 1e200, "float32"),
        "X[3, 1] is 1e+200, too large for float32. Rescale the data, or run in float64.",
    ),
    (
        made(SettingError.out_of_range, "accuracy", 2.0, least=1e-15, most=1.0),
        "accuracy must lie between 1e-15 and 1, got 2.0.",
    ),
    (
        made(SettingError.unreachable_accuracy, 1e-15, 2e-13, 1024),
        "accuracy=1e-15 cannot be proved with 1024 grid tokens; the smallest error is 2e-13. "
        "Ask for less, or use a smaller range.",
    ),
    (
        made(SettingError.too_few_pieces, 1, "silu"),
        "pieces=1 is too few for silu: the error of the fit grows with the interval, so no "
        "interval covers the layers' outputs. Give at least 2.",
    ),
    (
        made(SettingError.too_few_registers, 34),
        "registers=34 is too few for these ranges: the error of a look-up exceeds what it looks "
        "up. Give more registers, or use a smaller box or domain.",
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
        made(SettingError.no_slope_parts, "cross_entropy"),
        "The slope of the cross_entropy loss couples all outputs; it is no sum of functions of one "
        "variable. Use squared, logistic or huber.",
    ),
    (
        made(UnsupportedActivationError.polynomial, "square", 2),
        "Activation 'square' is a polynomial of degree 2: so is every combination of its copies, "
        "and it decays only if it is zero. Use an activation that is none, such as relu or "
        "sigmoid.",
    ),
    (
        made(UnsupportedActivationError.polynomial, "polynomial", None),
        "Activation 'polynomial' is a polynomial: so is every combination of its copies, and it "
        "decays only if it is zero. Use an activation that is none, such as relu or sigmoid.",
    ),
    (
        made(UnsupportedActivationError.no_decay, "exp", 4, 0.25),
        "Activation 'exp' has no general decay: far out its differences up to order 4 keep at "
        "least 25.0% of their size. Use relu, sigmoid or another activation that is nearly a line "
        "on either side.",
    ),
    (
        made(DataError.not_an_array, "X", "dtype object"),
        "X is not a rectangular array of numbers (dtype object). "
        "Every row must have the same length.",
    ),
    (
        made(DataError.empty, "y", [0, 1]),
        "y is empty: its shape is (0, 1). Give at least one row.",
    ),
    (
        made(DataError.wrong_dtype, "X", "float16"),
        "X has dtype float16; float64 or float32 is expected. "
        "Convert it explicitly to one of them.",
    ),
    (
        made(DataError.wrong_shape, "X", [5, 2], "(n, 3)"),
        "X has shape (5, 2); expected (n, 3).",
    ),
    (
        made(DataError.label_range, "logistic", [2, 0], 1.5),
        "y[2, 0] is 1.5; the logistic loss needs labels between 0 and 1. "
        "Rescale the labels, or use loss='squared'.",
    ),
    (
        made(DataError.text_cell, "data.csv", 7, "age", "old"),
        "data.csv, line 7, column 'age': 'old' is not a number. "
        "Remove the column or encode it as numbers.",
    ),
    (
        made(DataError.ragged_csv, "data.csv", 7, 3, 4),
        "data.csv, line 7 has 3 cells; the first line has 4.",
    ),
    (
        made(DataError.too_few_columns, "data.csv", 3, 5),
        "data.csv has 3 columns; the model needs 5 "
        "(inputs first, then labels; name label columns with --label).",
    ),
    (made(DataError.unreadable, "data.csv", "no such file"), "Cannot read data.csv: no such file."),
    (
        made(DataError.repeated_column, "data.csv", "age"),
        "data.csv has two columns called 'age'; column names must be unique.",
    ),
    (
        made(DataError.wrong_labels, ["a", "b"], 3),
        "The model has 3 outputs, but the label columns are a, b. "
        "Give --label once for each output.",
    ),
    (
        made(DataError.wrong_query_columns, "queries.csv", 4, 3),
        "queries.csv has 4 columns; a query has 3 inputs. Keep only those, or give "
        "both files a header, so that inputs are found by name.",
    ),
    (
        made(DomainError.outside, "X", [3, 1], 5.5, 4.0, "domain.x"),
        "X[3, 1] is 5.5, outside [-4, 4]. Rescale the data or compile with a larger domain.x.",
    ),
    (
        made(OverflowedRunError.of, "float32", 0.5),
        "The run leaves the range of float32: step_size=0.5 is too large for these data.",
    ),
    (
        made(OverflowedRunError.constant, "gate", 1e40, "float32"),
        "The program's gate is 1e+40, outside the range of float32. "
        "Run in float64, or change the problem.",
    ),
    (
        made(SettingError.wrong_kind, "target", None, "MLP"),
        "target must be of type MLP, got None.",
    ),
    (
        made(LayoutError.unknown_slot, "gradeint", known=["input", "gradient"]),
        "Layout has no slot 'gradeint'; it has input, gradient. Did you mean 'gradient'?",
    ),
    (
        made(LayoutError.unknown_slot, "z", known=["input", "gradient"]),
        "Layout has no slot 'z'; it has input, gradient.",
    ),
    (
        made(LayoutError.duplicate_slot, "x"),
        "Layout names slot 'x' twice; slot names must be unique.",
    ),
    (
        made(LayoutError.no_coordinate, 23, 23),
        "The residual stream has coordinates 0 to 22, got 23.",
    ),
    (
        made(ProgramError.broken, "block layer 2 (slopes)", "reads 'p' too early"),
        "block layer 2 (slopes): reads 'p' too early",
    ),
    (
        made(ProgramError.not_masked, "relu-stack"),
        "A mask needs softmax attention alone; relu-stack has other attention too. "
        "Compile with construction='softmax-stack'.",
    ),
    (
        made(
            UnsupportedProblemError.of, "relu-stack", "it is too hard.", ["recursion", "universal"]
        ),
        "relu-stack cannot compile this problem: it is too hard. "
        "Constructions that can: recursion, universal.",
    ),
    (
        made(UnsupportedProblemError.of, "relu-stack", "it is too hard.", []),
        "relu-stack cannot compile this problem: it is too hard. "
        "No construction takes it as it is.",
    ),
    (
        made(ToleranceError.unreachable, 1e-9, 0.0012345, "4096 pieces", "Rounding is larger."),
        "tolerance=1e-09 cannot be proved: the smallest bound is 0.00123, with 4096 pieces. "
        "Rounding is larger.",
    ),
    (
        made(DenseSizeError.too_large, 3 * 2**30, 2**30 + 2**29, 402_653_184),
        "The dense transformer has 402,653,184 weights and needs 3.0 GiB; 1.5 GiB may be used. "
        "Run with backend='fused', which needs no weights.",
    ),
    (made(FileError.missing, "run.safetensors"), "There is no file run.safetensors."),
    (
        made(SettingError.table_too_large, 8, 3, "366,080", most=65536),
        "levels=8 with n_examples=3 needs a table of 366,080 entries; at most 65,536 fit. Give "
        "fewer levels or examples.",
    ),
    (
        made(SettingError.keys_too_close, 2, 50),
        "levels=2 with n_examples=50 needs keys that are too close for float64 to tell apart. Give "
        "fewer levels or examples.",
    ),
    (
        made(ToleranceError.no_room, 1e-6, "relu-stack", 12345.0),
        "tolerance=1e-06 takes relu-stack more than 12,345 weights.",
    ),
    (
        made(ToleranceError.by_all, 1e-6, {"relu-stack": ValueError("a."), "recursion": "b."}),
        "tolerance=1e-06 cannot be proved by any construction that serves this problem. "
        "relu-stack: a. recursion: b.",
    ),
    (
        made(PrecisionWarning.of, "softmax-stack"),
        "This softmax-stack was compiled for float64, but its weights are used in float32, where "
        "gradients lose about 10 times more to rounding than they must. Compile with "
        "dtype='float32' (--dtype float32), or use float64 or backend='fused'.",
    ),
    (
        made(DataError.other_number_of_examples, 3, 2),
        "X has 3 examples, but the transformer was made for prompts of 2. Give 2, or compile with "
        "n_examples=3.",
    ),
    (
        made(DataError.between_levels, "y", [1, 0], 0.50001, 0.5, 0.5001220703125),
        "y[1, 0] is 0.50001, on the ramp between two levels: the table has no entry for examples "
        "strictly between 0.5 and 0.500122070312. Move it out, or compile with a smaller "
        "kink_width.",
    ),
    (
        made(FileError.damaged, "run.safetensors", "header too short"),
        "run.safetensors is damaged or not a safetensors file (header too short). "
        "Compile it again.",
    ),
    (
        made(FileError.foreign, "run.safetensors"),
        "run.safetensors is a safetensors file, but not one that icgd wrote: "
        "its metadata has no 'icgd' entry.",
    ),
    (
        made(FileError.newer, "run.safetensors", 7, 1),
        "run.safetensors has file format 7; this version of icgd reads format 1. "
        "Upgrade icgd or compile it again.",
    ),
    (
        made(FileError.unwritable, "run.safetensors", "disk full"),
        "Cannot write run.safetensors: disk full.",
    ),
    (
        made(FileError.unreadable_onnx, "run.onnx", "it has no input called stream"),
        "run.onnx cannot be run as an ONNX file of icgd: it has no input called stream. "
        "Export it again.",
    ),
    (
        made(
            ExportError.not_standard,
            "TransformerLens",
            "relu-stack",
            ["ReLU attention", "products"],
        ),
        "TransformerLens has softmax attention and MLP layers only; the transformer of relu-stack "
        "has ReLU attention and products too. Compile with construction='softmax-stack', or use "
        "icgd.exports.onnx, which writes every layer.",
    ),
    (
        made(ExportError.too_large, "ONNX", 5 * 2**29, 2**31),
        "The ONNX file would take 2.5 GiB; such a file can hold 2 GiB. Export with "
        "dtype='float32', or compile a smaller transformer: fewer pieces, or a smaller network.",
    ),
    (
        made(MissingExtraError.of, "matplotlib", "plots", "Drawing a figure"),
        "Drawing a figure needs matplotlib. Install it with: pip install 'icgd[plots]'",
    ),
]


@pytest.mark.parametrize(
    ("error", "text"), MESSAGES, ids=[f"{type(e).__name__}-{t[:30]}" for e, t in MESSAGES]
)
def test_the_message_is_complete(error, text):
    assert str(error) == text
    assert isinstance(error, IcgdError | UserWarning)


def every_maker() -> list[str]:
    """Each class method that builds a message, such as `DataError.empty`."""
    kinds = (IcgdError, UserWarning)
    classes = [c for c in vars(errors).values() if inspect.isclass(c) and issubclass(c, kinds)]
    return [
        f"{error.__name__}.{name}"
        for error in classes
        for name, member in vars(error).items()
        if isinstance(member, classmethod)
    ]


def test_every_message_is_tested():
    assert sorted(every_maker()) == sorted(TESTED)


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (UnknownNameError, ValueError),
        (SettingError, ValueError),
        (DataError, ValueError),
        (DomainError, ValueError),
        (SeparableDataError, ValueError),
        (DenseSizeError, MemoryError),
        (OverflowedRunError, ArithmeticError),
        (FileError, ValueError),
        (CheckpointError, ValueError),
        (KernelError, ValueError),
        (TrainingError, RuntimeError),
        (SweepError, RuntimeError),
        (ExportError, ValueError),
        (MissingExtraError, ImportError),
    ],
)
def test_an_error_is_also_caught_as_the_builtin_that_it_resembles(error, builtin):
    assert issubclass(error, builtin)
