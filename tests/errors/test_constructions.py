import pytest

from icgd.errors import constructions
from icgd.errors.constructions import ConstructionError
from tests.contracts.messages import assert_complete, assert_every_message_is_made, made

MESSAGES = [
    (
        made(ConstructionError.no_step_layer, "universal"),
        "In universal the step size is not a factor of one layer and of nothing else, so it cannot "
        "be learnt. Compile with relu-stack, which is exact for piecewise-linear networks, or with "
        "softmax-stack.",
    ),
    (
        made(ConstructionError.steps_differ, "gradient steps of 0.1 to 0.2, box 2"),
        "The step size cannot be learnt of gradient steps of 0.1 to 0.2, box 2: the layers of its "
        "steps differ from each other. Give an update with one step size for all steps and without "
        "an average.",
    ),
    (
        made(ConstructionError.not_a_chain, "relu-stack"),
        "Only the block of cot-network trains networks of every depth, and this is relu-stack, "
        "whose layers belong to one depth. Compile with cot-network, or compile the deeper "
        "problem itself.",
    ),
    (
        made(ConstructionError.unlike_layers, (2, 3, 4, 1), 5),
        "depth=5 leaves open how wide the hidden layers are, because those of "
        "widths=(2, 3, 4, 1) differ. Compile a target whose hidden layers all have one width.",
    ),
    (
        made(ConstructionError.not_in_block, 3, "tanh"),
        "A network of depth=3 has layers with the activation tanh, which the block was not "
        "compiled for. Compile a target that has a hidden layer.",
    ),
    (
        made(ConstructionError.construction_class, "ReluStack"),
        "construction is the class ReluStack; an object of it is expected, which has settings. "
        "Give ReluStack().",
    ),
    (
        made(ConstructionError.no_setting, "functional", "pieces", (), ["relu-stack"]),
        "functional has no setting 'pieces'; it has no settings. pieces is a setting of "
        "relu-stack.",
    ),
    (
        made(ConstructionError.no_setting, "relu-stack", "peices", ("pieces", "kink_width"), []),
        "relu-stack has no setting 'peices'; its settings are pieces, kink_width. Did you mean "
        "'pieces'?",
    ),
    (
        made(ConstructionError.no_owner, ["peices"], {"relu-stack": ("pieces",), "functional": ()}),
        "No construction that serves this problem has all of the given settings (peices): "
        "relu-stack has pieces; "
        "functional has none. Did you mean 'pieces'?",
    ),
    (
        made(ConstructionError.beside_construction, "ReluStack", {"pieces": 8, "kink_width": 0.5}),
        "pieces=8, kink_width=0.5 was given beside a construction object, which has its own "
        "settings. Put it into the object: ReluStack(pieces=8, kink_width=0.5).",
    ),
    (
        made(ConstructionError.is_a_chain, "cot-network"),
        "cot-network is one block of layers that writes a chain, not a stack of layers; its "
        "weights are those of block(). Compile with relu-stack for a whole transformer.",
    ),
    (
        made(ConstructionError.scores_too_wide, "poisson", 9.0, 1024),
        "A head of 1024 tokens cannot return the poisson mean of scores up to 9. Give a smaller "
        "bound with Domain(score=...), or a smaller box.",
    ),
    (
        made(ConstructionError.unreachable_accuracy, 1e-15, 2e-13, 1024),
        "accuracy=1e-15 cannot be proved with 1024 lattice points; the smallest error is 2e-13. "
        "Ask for less, or use a smaller range.",
    ),
    (
        made(ConstructionError.too_few_pieces, 1, "silu"),
        "pieces=1 is too few for silu: the error of the fit grows with the interval, so no "
        "interval covers the layers' outputs. Give at least 2.",
    ),
    (
        made(ConstructionError.too_few_registers, 34),
        "registers=34 is too few for these ranges: the error of a look-up exceeds what it looks "
        "up. Give more registers, or use a smaller box or domain.",
    ),
    (
        made(ConstructionError.table_too_large, 8, 3, "366,080", most=65536),
        "levels=8 with n_examples=3 needs a table of 366,080 entries; at most 65,536 fit. Give "
        "fewer levels or examples.",
    ),
    (
        made(ConstructionError.keys_too_close, 2, 50),
        "levels=2 with n_examples=50 needs keys that are too close for float64 to tell apart. Give "
        "fewer levels or examples.",
    ),
]


@pytest.mark.parametrize(("error", "text"), MESSAGES)
def test_the_message_is_complete(error, text):
    assert_complete(error, text)


def test_every_message_is_tested():
    assert_every_message_is_made(constructions)
