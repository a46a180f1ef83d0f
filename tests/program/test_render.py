import json
from dataclasses import replace

import pytest

from icgd.program import render
from tests import cases
from tests.cases import build, every_construction, over
from tests.contracts.backend import RELU_STACK


@every_construction
@over(cases.SMALL)
def test_a_program_survives_its_json_text_unchanged(construction, case):
    program = build(construction, case)
    assert render.from_data(json.loads(json.dumps(render.to_data(program)))) == program


def test_a_different_program_has_different_data():
    program = build(RELU_STACK, cases.FEW[0])
    first = program.functions[0]
    other = replace(
        program, functions=(replace(first, low=first.low - 1.0), *program.functions[1:])
    )
    assert render.to_data(other) != render.to_data(program)


def test_data_names_verbs_kinds_roles_and_functions():
    program = build(RELU_STACK, cases.FEW[0])
    data = render.to_data(program)
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
    assert data["block"][2]["instructions"][0]["summands"][0] == {
        "slots": ("units_1", "y"),
        "coefficients": (1.0, -1.0),
        "function": "double",
    }


def test_the_listing_says_piece_in_the_singular_and_exact_for_no_error():
    lines = render.listing(build(RELU_STACK, cases.FEW[0])).splitlines()
    double = next(line for line in lines if line.startswith("  double"))
    assert "1 piece, 2 terms on [" in double
    assert double.endswith("], exact")


@pytest.mark.parametrize("heading", ["slots", "functions", "block, 3 times", "prediction"])
def test_the_listing_has_its_sections(heading):
    assert heading in render.listing(build(RELU_STACK, cases.FEW[0])).splitlines()
