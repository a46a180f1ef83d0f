import json
from dataclasses import replace

import pytest

import icgd
from icgd.errors import ProgramError
from icgd.problems.mlp import MLP
from icgd.program.check import PROGRAMS, from_data
from tests import cases
from tests.backends.chain_cases import problem_of, program_of
from tests.cases import build, every_construction_on
from tests.contracts.backend import RELU_STACK, SOFTMAX_STACK
from tests.linear_cases import PROBLEMS, compiled_of


@every_construction_on(cases.SMALL)
def test_a_program_survives_its_json_text_unchanged(construction, case):
    program = build(construction, case)
    assert from_data(json.loads(json.dumps(program.to_data()))) == program


OTHERS = {
    "momentum": icgd.MomentumStep(0.1, 2.0, batch_size=2, momentum=0.5),
    "average": icgd.MomentumStep(0.1, 2.0, batch_size=2, momentum=0.5, average=0.5),
    "plain": icgd.GradientStep(0.1, 2.0),
}


@pytest.mark.parametrize(
    ("construction", "update", "loss", "options"),
    [
        ("relu-stack", "momentum", "squared", {}),
        ("relu-stack", "average", "squared", {}),
        ("relu-stack", "plain", "squared", {"norms": (2,), "shortcuts": ((1, 2),)}),
        ("relu-stack", "plain", "cross_entropy", {}),
        ("softmax-stack", "plain", "cross_entropy", {}),
    ],
)
def test_programs_with_other_instructions_are_data_too(construction, update, loss, options):
    target = icgd.MLP((2, 3, 3), "relu", **options)
    problem = icgd.Problem(target, loss, OTHERS[update], icgd.Domain(1.0, 1.0))
    program = icgd.compile(problem, construction, n_steps=2).program
    assert from_data(program.to_data()) == program


CHAIN = program_of(problem_of(MLP((2, 3, 1), "relu")))


def test_data_are_read_by_the_kind_that_wrote_them():
    linear, stack = compiled_of(PROBLEMS["poisson"]).program, build(RELU_STACK, cases.FEW[0])
    for program in (stack, linear, CHAIN):
        again = from_data(json.loads(json.dumps(program.to_data())))
        assert type(again) is type(program)
        assert again == program
        assert again != replace(program, n_steps=program.n_steps + 1)


def test_each_kind_has_a_key_that_no_other_has():
    programs = [build(RELU_STACK, cases.FEW[0]), CHAIN]
    for key, kind in PROGRAMS.items():
        assert [type(program) for program in programs if key in program.to_data()] == [kind]
    with pytest.raises(ProgramError) as caught:
        from_data({"construction": "relu-stack"})
    assert "have the keys construction; expected one of block, rows" in str(caught.value)


@pytest.mark.parametrize(
    ("widths", "far"),
    [
        ((1, 1), "data"),
        ((1, 1, 1), "block t - 3 or data"),
        ((1, 1, 1, 1), "block t - 3, t - 5 or data"),
    ],
)
def test_the_listing_of_a_chain_says_what_a_block_reads(widths, far):
    """Block t is the i-th of its pass, and reads block t - (2i - 1), or data at i = 1."""
    listing = program_of(problem_of(MLP(widths))).listing()
    assert f"\nblock t, from block t - 1 and {far}\n" in listing


def test_a_different_program_has_different_data():
    program = build(RELU_STACK, cases.FEW[0])
    first = program.functions[0]
    other = replace(
        program, functions=(replace(first, low=first.low - 1.0), *program.functions[1:])
    )
    assert other.to_data() != program.to_data()


def test_data_names_verbs_kinds_roles_and_functions():
    program = build(RELU_STACK, cases.FEW[0])
    data = program.to_data()
    assert data["slots"][0] == {"name": "x", "shape": [3], "role": "INPUT"}
    assert data["block"][0] == {
        "title": "forward 1",
        "kind": "attention",
        "instructions": [
            {
                "verb": "ApplyUnits",
                "weights": "weights_1",
                "inputs": "x",
                "function": "relu",
                "write": "units_1",
            }
        ],
    }
    assert data["block"][1]["instructions"][0]["summands"][0] == {
        "argument": {"slots": ["units_1", "y"], "coefficients": [1.0, -1.0]},
        "function": "double",
    }


LOOKING_UP = cases.make_case(MLP((2, 3, 1), "tanh"), "squared", box=0.5)


def test_data_of_a_program_with_registers_name_arguments_and_kinds_of_functions():
    data = build(SOFTMAX_STACK, LOOKING_UP).to_data()
    inputs = {"slots": ["x"], "coefficients": [1.0]}
    assert data["block"][0]["kind"] == "softmax"
    assert data["block"][0]["instructions"] == [
        {
            "verb": "LookUp",
            "argument": {"inputs": inputs, "weights": "weights_1", "transposed": False},
            "lookups": ["tanh", "tanh'"],
            "into": ["units_1", "slope_1"],
        }
    ]
    left = {"slots": ["units_2", "y"], "coefficients": [2.0, -2.0]}
    assert data["block"][3]["instructions"][1]["left"] == left
    kinds = {entry["name"]: entry["kind"] for entry in data["functions"][:-1]}
    assert set(kinds.values()) == {"LatticeFunction"}
    assert (data["functions"][-1]["name"], data["functions"][-1]["kind"]) == ("identity", "ReluSum")


def test_a_program_with_other_values_in_its_registers_has_different_data():
    program = build(SOFTMAX_STACK, LOOKING_UP)
    first = program.functions[0]
    values = (first.values[0] + 1.0, *first.values[1:])
    other = replace(program, functions=(replace(first, values=values), *program.functions[1:]))
    assert from_data(json.loads(json.dumps(other.to_data()))) == other != program


def test_the_listing_says_where_a_look_up_is_right():
    wide = cases.make_case(MLP((2, 3, 1), "tanh"), "squared", box=30.0)
    narrow, wide = (build(SOFTMAX_STACK, case) for case in (LOOKING_UP, wide))
    lines = [
        next(line for line in program.listing().splitlines() if line.startswith("  tanh "))
        for program in (narrow, wide)
    ]
    reach = narrow.look_up("tanh").reach
    assert f" lattice points, {narrow.look_up('tanh').spacing:.3g} apart, on " in lines[0]
    assert f" apart, on [-{reach:g}, {reach:g}], error at most " in lines[0]
    assert " apart, everywhere, error at most " in lines[1]


def test_the_listing_counts_registers_only_if_there_are_some():
    title = build(SOFTMAX_STACK, LOOKING_UP).listing().splitlines()[0]
    n_registers = build(SOFTMAX_STACK, LOOKING_UP).n_registers
    assert title.endswith(f", {n_registers} registers")
    assert "registers" not in build(RELU_STACK, cases.FEW[0]).listing().splitlines()[0]


def test_the_listing_says_piece_in_the_singular_and_exact_for_no_error():
    lines = build(RELU_STACK, cases.FEW[0]).listing().splitlines()
    double = next(line for line in lines if line.startswith("  double"))
    assert "1 piece, 2 terms on [" in double
    assert double.endswith("], exact")


@pytest.mark.parametrize("heading", ["slots", "functions", "block, 3 times", "prediction"])
def test_the_listing_has_its_sections(heading):
    assert heading in build(RELU_STACK, cases.FEW[0]).listing().splitlines()


def test_data_of_older_files_do_not_say_what_arithmetic_they_are_made_for():
    data = build(SOFTMAX_STACK, LOOKING_UP).to_data()
    assert data.pop("made_for") == "float64"
    assert from_data(data).made_for is None


def test_data_with_a_function_of_another_kind_than_the_field_s_are_refused():
    """A chain has look-ups only."""
    data = CHAIN.to_data()
    relu_sum = build(RELU_STACK, cases.FEW[0]).to_data()["functions"][0]
    with pytest.raises(KeyError, match="ReluSum"):
        from_data({**data, "functions": [relu_sum]})


@pytest.mark.parametrize(("part", "error"), [("verb", KeyError), ("weights", TypeError)])
def test_data_that_lack_a_part_of_an_instruction_are_refused(part, error):
    data = build(RELU_STACK, cases.FEW[0]).to_data()
    del data["block"][0]["instructions"][0][part]
    with pytest.raises(error, match=part):
        from_data(data)


HERE = ("block", 0, "instructions", 0)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("n_steps",), True, "StackProgram.n_steps: is True, expected a whole number"),
        (("n_steps",), 2.0, "StackProgram.n_steps: is 2.0, expected a whole number"),
        (("activation",), None, "StackProgram.activation: is None, expected a text"),
        (("paper_layers",), "4", "StackProgram.paper_layers: is '4', expected a whole number"),
        (("slots", 0), "x", "StackProgram.layout[0]: is 'x', expected the fields of Slot"),
        (("slots", 0, "shape"), 3, "Slot.shape: is 3, expected a list"),
        (("slots", 0, "shape", 0), [3], "Slot.shape[0]: is [3], expected a whole number"),
        (("slots", 0, "role"), 1, "Slot.role: is 1, expected the name of a role"),
        (("block",), {}, "StackProgram.block: is {}, expected a list"),
        (("block", 0), [], "StackProgram.block[0]: is [], expected the fields of Layer"),
        (("block", 0, "kind"), "mlp", "is of kind 'mlp', expected 'attention'"),
        (HERE, 1.0, "Layer.instructions[0]: is 1.0, expected data with a verb"),
        ((*HERE, "weights"), None, "ApplyUnits.weights: is None, expected a text"),
        (
            (*HERE, "offset"),
            "b",
            "Layer.instructions[0]: has 'offset', which is no field of ApplyUnits",
        ),
        ((*HERE, "bias"), 1.0, "ApplyUnits.bias: is 1.0, expected a text"),
        (("functions", 0, "low"), "-1", "ReluSum.low: is '-1', expected a number"),
        (("functions", 0, "low"), False, "ReluSum.low: is False, expected a number"),
        (("functions", 0, "low"), 10**400, "ReluSum.low: is a number too large for a float"),
        (("functions", 0, "slopes", 0), None, "ReluSum.slopes[0]: is None, expected a number"),
    ],
)
def test_data_of_another_type_than_the_field_s_are_refused(path, value, message):
    data = json.loads(json.dumps(build(RELU_STACK, cases.FEW[0]).to_data()))
    *parts, last = path
    part = data
    for key in parts:
        part = part[key]
    part[last] = value
    with pytest.raises(ProgramError) as caught:
        from_data(data)
    assert message in str(caught.value)


def test_data_of_a_tuple_of_another_length_than_the_field_s_are_refused():
    data = CHAIN.to_data()
    shapes = [[3, 2, 1], *data["shapes"][1:]]
    with pytest.raises(ProgramError, match=r"shapes\[0\]: has 3 entries, expected 2"):
        from_data({**data, "shapes": shapes})


def test_a_whole_number_stands_for_a_float():
    program = build(RELU_STACK, cases.FEW[0])
    data = json.loads(json.dumps(program.to_data()))
    data["functions"][0]["low"] = -9
    assert repr(from_data(data).functions[0].low) == "-9.0"
