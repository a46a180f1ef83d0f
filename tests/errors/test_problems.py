import pytest

from icgd.errors import problems
from icgd.errors.problems import (
    KernelError,
    SeparableDataError,
    UnreadableError,
    UnsupportedActivationError,
    UnsupportedProblemError,
)
from tests.contracts.messages import assert_complete, assert_every_message_is_made, made

MESSAGES = [
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
        made(
            UnsupportedProblemError.by_all,
            {"relu-stack": "it cannot.", "universal": "nor can it.", "recursion": "it cannot."},
        ),
        "No construction can compile this problem. relu-stack, recursion: it cannot. universal: "
        "nor can it.",
    ),
    (
        made(KernelError.wrong_dtype, "mine", "torch.float32", "torch.float64"),
        "Kernel 'mine' returned float32 for points of float64. Keep the type of the points.",
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
        made(KernelError.bad_constant, "mine", "bound", 1.5, -2.0),
        "bound of kernel 'mine' is -2.0 for points of norm up to 1.5; expected a number that is "
        "not negative. Mend the function that was given as bound.",
    ),
    (
        made(KernelError.steeper, "mine", 0.5, 0.25, 1.0),
        "Kernel 'mine' contradicts its statement: it changes by 0.5 between two points of these "
        "data that are 0.25 apart, and lipschitz is 1. Register it with a larger lipschitz; if it "
        "jumps, it has none: leave lipschitz out.",
    ),
    (
        made(KernelError.beyond_bound, "mine", [0, 1], 2.0, 1.0),
        "Kernel 'mine' contradicts its statement: it is 2 at [0, 1], and bound is 1. Register it "
        "with a larger bound.",
    ),
    (
        made(KernelError.rounds_more, "mine", [0, 1], 1.5e-8, 3e-14),
        "Kernel 'mine' contradicts its statement: it changes by 1.5e-08 at [0, 1] if a point moves "
        "by its last digits, and lipschitz and rounding allow 3e-14. Compute it without "
        "cancellation, such as distances by torch.cdist with "
        "compute_mode='donot_use_mm_for_euclid_dist', or register it with a larger rounding.",
    ),
    (
        made(KernelError.not_of_two_points, "mine", [2, 0], 1.0, 0.25),
        "Kernel 'mine' is no function of two points: at [2, 0] it is 1 for the pair alone and 0.25 "
        "among the others. Constants cannot be stated of it: leave lipschitz out.",
    ),
    (
        made(KernelError.taken, "rbf"),
        "'rbf' is a kernel of icgd already; register yours under another name.",
    ),
    (
        made(UnsupportedActivationError.polynomial, "square", 2),
        "Activation 'square' is a polynomial of degree 2: so is every combination of its copies, "
        "and it decays only if it is zero. Use an activation that is none, such as relu or "
        "sigmoid.",
    ),
    (
        made(UnsupportedActivationError.no_decay, "exp", 4, 0.25),
        "Activation 'exp' has no general decay: far out its differences up to order 4 keep at "
        "least 25.0% of their size. Use relu, sigmoid or another activation that is nearly a line "
        "on either side.",
    ),
    (
        made(UnsupportedActivationError.not_differentiable, "mine", "it is 3"),
        "Activation 'mine' must be a function of a tensor, entry by entry, that torch can "
        "differentiate, but it is 3. Build it of torch functions, such as torch.tanh.",
    ),
    (
        made(UnsupportedActivationError.not_finite, "exp", 711.25),
        "Activation 'exp' has no finite value at x = 711, but general decay is checked for |x| up "
        "to 1000. Use an activation that grows no faster than a line.",
    ),
    (
        made(UnsupportedActivationError.polynomial, "polynomial", None),
        "Activation 'polynomial' is a polynomial: so is every combination of its copies, and it "
        "decays only if it is zero. Use an activation that is none, such as relu or sigmoid.",
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
        made(KernelError.bad_name, None),
        "The name of a kernel must be a non-empty string, got None. Call "
        "icgd.register_kernel('mine', function).",
    ),
    (
        made(KernelError.not_callable, "mine", 3),
        "Kernel 'mine' must be a function of two tensors of points that returns a tensor, got 3.",
    ),
    (
        made(UnreadableError.module, "model[1]", "Dropout", ["Linear", "ReLU"]),
        "model[1] is Dropout, which is not read. It may be Linear, ReLU.",
    ),
    (
        made(UnreadableError.option, "optimizer (Adam)", "amsgrad", True, False),
        "optimizer (Adam) has amsgrad = True, expected False. Another value would give another "
        "training run than the one that is compiled.",
    ),
    (
        made(UnreadableError.misplaced, "model[0]", "Tanh"),
        "model[0] is Tanh, but no linear layer stands right before it. Every activation and every "
        "norm belongs to the Linear before it.",
    ),
    (
        made(UnreadableError.no_layers, "Sequential"),
        "The model is Sequential without any Linear. Give an nn.Sequential of Linear layers and "
        "activations.",
    ),
    (
        made(UnreadableError.shared),
        "The model uses the same weights in two layers. Give every layer weights of its own.",
    ),
    (
        made(UnreadableError.some_biases, [True, False]),
        "The layers of the model are with, without bias, in this order. Give all of them a bias, "
        "or none.",
    ),
    (
        made(UnreadableError.several_activations, ["tanh", "relu"]),
        "The hidden layers have the activations tanh, relu. Give all of them the same; the last "
        "layer may have another.",
    ),
    (
        made(UnreadableError.sum_of_unknown),
        'The loss has reduction="sum", whose gradient grows with the number of examples. Pass '
        "n_examples or batch_size.",
    ),
    (
        made(UnreadableError.has_stepped, "SGD"),
        "The optimizer SGD has already taken steps, and remembers them. Give a new one, made from "
        "the model as it is now.",
    ),
    (
        made(UnreadableError.other_parameters, ["bias of layer 2"]),
        "The optimizer does not train the bias of layer 2. Give it exactly the parameters of the "
        "model.",
    ),
    (
        made(UnreadableError.other_parameters, []),
        "The optimizer trains other parameters too. Give it exactly the parameters of the model.",
    ),
    (
        made(UnreadableError.looks_at_loss, "ReduceLROnPlateau"),
        "The scheduler ReduceLROnPlateau looks at the loss, which a compiled run cannot. Use one "
        "whose step sizes are known beforehand, such as CosineAnnealingLR.",
    ),
    (
        made(UnreadableError.no_number_of_steps, "StepLR"),
        "The scheduler StepLR needs n_steps: it gives a step size for each step.",
    ),
    (
        made(UnreadableError.other_shape, "weights_1", (2, 3), (4, 3)),
        "weights_1 of the run has shape (2, 3), where the model expects (4, 3). Load into a model "
        "of the shape that was compiled; of a batch of tasks, load one task.",
    ),
    (
        made(UnreadableError.other_shape, "bias_2", None, (3,)),
        "bias_2 of the run is not there, where the model expects (3,). Load into a model of the "
        "shape that was compiled; of a batch of tasks, load one task.",
    ),
    (
        made(UnreadableError.other_shape, "bias_1", (3,), None),
        "bias_1 of the run has shape (3,), where the model has no such weights. Load into a model "
        "of the shape that was compiled; of a batch of tasks, load one task.",
    ),
]


@pytest.mark.parametrize(("error", "text"), MESSAGES)
def test_the_message_is_complete(error, text):
    assert_complete(error, text)


def test_every_message_is_tested():
    assert_every_message_is_made(problems)
