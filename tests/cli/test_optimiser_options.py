import json

import pytest

import icgd
from icgd.cli.optimiser_options import OPTIMISERS, OptimiserOptions
from icgd.cli.problem_options import problem_from
from icgd.errors import SettingError
from tests.cli.files import PROBLEM

MADE = {
    "sgd": ({}, icgd.GradientStep(0.1, 3.0, 2)),
    "sgd with decay": (
        {"optimiser": "sgd", "weight_decay": 0.5},
        icgd.MomentumStep(0.1, 3.0, 2, momentum=0.0, weight_decay=0.5),
    ),
    "average": ({"average": 0.75}, icgd.GradientStep(0.1, 3.0, 2, average=0.75)),
    "momentum": ({"optimiser": "momentum"}, icgd.MomentumStep(0.1, 3.0, 2)),
    "all of momentum": (
        {
            "optimiser": "momentum",
            "momentum": 0.5,
            "dampening": 0.25,
            "weight_decay": 0.1,
            "average": 0.9,
        },
        icgd.MomentumStep(0.1, 3.0, 2, momentum=0.5, dampening=0.25, weight_decay=0.1, average=0.9),
    ),
    "nesterov": (
        {"optimiser": "nesterov", "momentum": 0.5},
        icgd.MomentumStep(0.1, 3.0, 2, momentum=0.5, nesterov=True),
    ),
    "adam": ({"optimiser": "adam"}, icgd.AdamStep(0.1, 3.0, 2)),
    "all of adam": (
        {"optimiser": "adam", "beta1": 0.5, "beta2": 0.75, "eps": 0.1, "weight_decay": 0.2},
        icgd.AdamStep(0.1, 3.0, 2, betas=(0.5, 0.75), eps=0.1, weight_decay=0.2),
    ),
    "one beta": (
        {"optimiser": "adam", "beta2": 0.75},
        icgd.AdamStep(0.1, 3.0, 2, betas=(0.9, 0.75)),
    ),
    "adamw": (
        {"optimiser": "adamw"},
        icgd.AdamStep(0.1, 3.0, 2, weight_decay=0.01, decoupled=True),
    ),
    "adamw without decay": (
        {"optimiser": "adamw", "weight_decay": 0.0},
        icgd.AdamStep(0.1, 3.0, 2, decoupled=True),
    ),
    "rmsprop": (
        {"optimiser": "rmsprop", "alpha": 0.5, "eps": 0.25},
        icgd.RmspropStep(0.1, 3.0, 2, alpha=0.5, eps=0.25),
    ),
}


@pytest.mark.parametrize("name", MADE)
def test_every_option_reaches_the_update(name):
    given, update = MADE[name]
    assert problem_from("4,3,1", batch_size=2, **given).update == update


def test_every_optimiser_is_tried():
    tried = {given.get("optimiser", "sgd") for given, _ in MADE.values()}
    assert tried == set(OPTIMISERS)


def test_without_options_nothing_changes():
    assert problem_from("4,3,1") == PROBLEM
    assert OptimiserOptions().given() == {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"optimiser": "adan"},
            "optimiser must be one of sgd, momentum, nesterov, adam, adamw, rmsprop, got 'adan'.",
        ),
        (
            {"momentum": 0.5},
            "--momentum has no effect without --optimiser momentum or nesterov; give both or "
            "neither.",
        ),
        (
            {"optimiser": "adam", "momentum": 0.5},
            "--momentum has no effect without --optimiser momentum or nesterov; give both or "
            "neither.",
        ),
        (
            {"optimiser": "nesterov", "dampening": 0.5},
            "--dampening has no effect without --optimiser momentum; give both or neither.",
        ),
        (
            {"optimiser": "rmsprop", "beta1": 0.5},
            "--beta1 has no effect without --optimiser adam or adamw; give both or neither.",
        ),
        (
            {"optimiser": "momentum", "eps": 0.5},
            "--eps has no effect without --optimiser adam, adamw or rmsprop; give both or neither.",
        ),
        (
            {"optimiser": "adam", "alpha": 0.5},
            "--alpha has no effect without --optimiser rmsprop; give both or neither.",
        ),
        (
            {"kernel": "rbf", "widths": "4,1", "optimiser": "adam"},
            "Give either --optimiser or --kernel, not both.",
        ),
        (
            {"link": "logistic", "widths": "4,1", "weight_decay": 0.5},
            "Give either --weight-decay or --link, not both.",
        ),
        (
            {"link": "logistic", "widths": "4,1", "average": 0.5},
            "Give either --average or --link, not both.",
        ),
        ({"optimiser": "adam", "beta2": 1.0}, "betas[1] must be a number from 0 to below 1, "),
        ({"average": 1.5}, "average must be a number from 0 to below 1, got 1.5."),
    ],
)
def test_options_that_do_not_belong_are_refused_by_name(given, message):
    with pytest.raises(SettingError) as refused:
        problem_from(**{"widths": "4,3,1", **given})
    assert str(refused.value).startswith(message)


def test_an_optimiser_is_compiled_run_and_verified(command, tmp_path):
    rows = ["a,b,c", "0.1,0.2,0.5", "0.9,0.8,-0.5", "0.5,-0.5,0.25", "-0.3,0.1,1"]
    (tmp_path / "data.csv").write_text("\n".join(rows), encoding="utf-8")
    made = ("--widths", "2,3,1", "--optimiser", "adamw", "--eps", "0.01", "--average", "0.9")
    bounds = ("--box", "1", "--bounds-from", "data.csv", "--steps", "5")
    assert command("compile", *made, *bounds, "-o", "run.safetensors").code == 0
    update = icgd.load(tmp_path / "run.safetensors").problem.update
    expected = icgd.AdamStep(0.1, 1.0, eps=0.01, weight_decay=0.01, decoupled=True, average=0.9)
    assert update == expected
    assert command("run", "run.safetensors", "data.csv").code == 0
    verified = command("verify", "run.safetensors", "data.csv", "--json")
    largest = json.loads(verified.stdout)["largest"]
    assert verified.code == 0
    assert 0 < largest["step_errors"] <= largest["step_bounds"] < 0.1


def test_both_spellings_are_known_and_others_are_refused(command):
    sized = ("size", "--widths", "2,1", "--json")
    by_s, by_z = (
        json.loads(command(*sized, name, "momentum").stdout)
        for name in ("--optimiser", "--optimizer")
    )
    assert by_s == by_z
    message = command(*sized, "--optimiser", "sgd", "--beta1", "0.5").refusal()
    assert message.startswith("--beta1 has no effect without --optimiser adam or adamw")
