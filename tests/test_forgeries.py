"""Forgeries that only the mathematics can refuse: their claim and their seal are right."""

from math import inf, nextafter

import pytest
from flint import arb

import icgd
import icgd_check
from tests.forgeries import (
    NAMES,
    NOT_CLOSE,
    case_of,
    changed,
    fields_of,
    parts,
    refusal,
    replaced,
    with_problem,
)
from tests.whole_run_cases import N_STEPS

ZERO, HALF, ONE = ((number / 2).hex() for number in range(3))
every_case = pytest.mark.parametrize("name", NAMES)
every_network = pytest.mark.parametrize(
    "name", [name for name in NAMES if isinstance(case_of(name).problem.target, icgd.MLP)]
)


@every_case
def test_exact_training_is_accepted_within_the_rounding_of_doubles(name):
    fields = fields_of(name)
    assert refusal(fields) == ""
    distances = [*fields["distances"], fields["prediction_distance"]]
    assert max(map(float.fromhex, distances)) < 2.5e-16


def least_double(distance):
    """The least double that is not below an exact distance."""
    number = float(distance)
    while arb(number) < distance:
        number = nextafter(number, inf)
    while arb(nextafter(number, 0.0)) >= distance:
        number = nextafter(number, 0.0)
    return number


@every_case
def test_one_ulp_below_the_least_provable_distance_is_refused(name):
    fields, least = fields_of(name), []
    how = (N_STEPS, fields["bits"], fields["method"])
    descent = icgd_check.Descent(fields["problem"], fields["data"], *how)
    for texts in fields["steps"]:
        numbers = list(map(float.fromhex, texts))
        least.append(least_double(icgd_check.distance(descent.step(), numbers)))
    numbers = [float.fromhex(entry) for row in fields["predictions"] for entry in row]
    at_end = least_double(icgd_check.distance(descent.predictions(), numbers))
    distances = [distance.hex() for distance in least]
    tight = changed(name, distances=distances, prediction_distance=at_end.hex())
    assert refusal(tight) == ""
    for step, distance in enumerate(least):
        smaller = replaced(tight, ("distances", step), nextafter(distance, 0.0).hex())
        expected = f"step {step + 1} is not as close to exact descent as it claims"
        assert refusal(smaller) == expected
    smaller = {**tight, "prediction_distance": nextafter(at_end, 0.0).hex()}
    assert refusal(smaller).startswith("a prediction is not as close")


UNLIKE_AVERAGES = "groups of weights keep different shares of an average"


@every_case
@pytest.mark.parametrize("share", [0.5, 2.0**-32], ids=["visible", "ulps"])
def test_another_number_anywhere_is_refused(name, share):
    """Each coefficient, x, y, query, rate, initial or computed number, by a half or 2^20 ulps."""
    fields, accepted = fields_of(name), set()
    for path, text in parts(fields):
        is_number = isinstance(text, str) and text.lstrip("-").startswith("0x")
        if not is_number or path[0] not in ("problem", "data", "steps", "predictions"):
            continue
        number = float.fromhex(text)
        other = number * (1 + share) if number else share
        reason = refusal(replaced(fields, path, other.hex()))
        if not reason:
            accepted.add(".".join(map(str, path)))
        elif path[-1] != "shape":  # there are few of them
            assert NOT_CLOSE.fullmatch(reason) or reason == UNLIKE_AVERAGES, path
    assert accepted == case_of(name).free


OTHER_NAMES = {
    "kind": icgd_check.KINDS,
    "activation": icgd_check.ACTIVATIONS,
    "output_activation": icgd_check.ACTIVATIONS,
    "loss": ("squared", "huber", "logistic", "cross_entropy", "smooth_l1_0.75"),
    "link": icgd_check.LINKS,
    "reduction": ("mean", "sum"),
    "kernel": (*icgd_check.OF_PRODUCT, *icgd_check.OF_DIFFERENCES, "mine"),
    "method": ("", "faith"),
}


def other_structures(path, part):
    """Other things of the same kind: a switch, a count, a name, fewer or more entries or fields."""
    if isinstance(part, bool):
        return [not part]
    if isinstance(part, int):
        return [part - 1, part + 1]
    if part is None:
        return [(2.0**-6).hex(), 2, {}]
    if isinstance(part, list):
        return [[], part[:-1], part + part[-1:]] if part else [[0], [[0, 1]], [HALF], [[HALF]]]
    if isinstance(part, dict):
        fewer = [{key: part[key] for key in part if key != left_out} for left_out in part]
        return [{**part, "note": ZERO}, *fewer]
    return OTHER_NAMES.get(path[-1], ())


@every_case
def test_another_problem_and_unknown_fields_at_every_level_are_refused(name):
    fields = fields_of(name)
    for path, part in parts(fields):
        for other in other_structures(path, part):
            if other != part and path != ("bits",):
                assert refusal(replaced(fields, path, other)), (path, other)


def other_rules(rule):
    """Plain steps instead, a state that stays, no decay, average or root, numbers that swapped."""
    yield {**rule, "weights": {"weights": ONE, "gradient": (-0.3).hex()}}
    yield {**rule, "state": {name: {name: ONE} for name in rule["state"]}}
    yield {**rule, "decay": ZERO}
    yield {**rule, "average": rule["average"] and ZERO}
    yield {**rule, "root": None}
    for path, terms in parts(rule):
        if isinstance(terms, dict) and len(terms) == 2 and path[-1:] != ("state",):
            yield replaced(rule, path, dict(zip(terms, reversed(terms.values()), strict=True)))


NO_RULE = (
    "KeyError('scaled')",
    "KeyError('square')",
    "a step goes uphill",
    UNLIKE_AVERAGES,
)


@every_network
def test_another_rule_is_refused(name):
    fields, rules = fields_of(name), list[tuple[tuple[int, ...], dict]]()
    for step, rule in enumerate(fields["problem"]["rules"]):
        of_groups = enumerate(rule) if isinstance(rule, list) else ()
        rules += [((step, group), part) for group, part in of_groups] or [((step,), rule)]
    for path, rule in rules:
        others = [other for other in other_rules(rule) if other != rule]
        assert others
        for other in others:
            reason = refusal(replaced(fields, ("problem", "rules", *path), other))
            assert reason in NO_RULE or NOT_CLOSE.fullmatch(reason), other


def test_groups_cover_each_weight_once():
    """Or else a weight would have no rule, or two; and no group has the columns of another."""
    fields = fields_of("groups")
    groups = fields["problem"]["rules"][0]
    assert [part["columns"] for part in groups] == [
        [[0, 2], [2, 3]],
        [[2, 3], None],
        [None, [0, 2]],
    ]
    for group, layer, columns in ((0, 0, [0, 1]), (0, 0, [0, 3]), (1, 0, None), (1, 1, [2, 3])):
        path = ("problem", "rules", 1, group, "columns", layer)
        reason = refusal(replaced(fields, path, columns))
        assert reason == "groups do not cover each weight once", columns
    swapped = replaced(groups, (0, "columns"), [[2, 3], [2, 3]])
    swapped = replaced(swapped, (1, "columns"), [[0, 2], None])
    assert NOT_CLOSE.fullmatch(refusal(replaced(fields, ("problem", "rules", 0), swapped)))
    kept = replaced(fields, ("problem", "rules", 1, 1, "average"), (0.5).hex())
    assert refusal(kept) == UNLIKE_AVERAGES


def test_one_rule_for_all_weights_names_no_columns():
    """Or else a certificate could say that weights stay as they are which the rule moves."""
    [rule] = fields_of("plain")["problem"]["rules"]
    forged = with_problem(rules=[{**rule, "columns": [[0, 1], None]}])
    assert refusal(forged) == "a rule has other fields than it should"


@pytest.mark.parametrize(
    ("name", "field"),
    [("Adam", "rules"), ("schedule", "rules"), ("heavy ball", "momenta"), ("kernel", "step_sizes"),
     ("heads of steps", "heads"), ("moved", "transforms")],
)  # fmt: skip
def test_wrong_counts_of_what_differs_from_step_to_step_are_refused(name, field):
    entries = fields_of(name)["problem"][field]
    assert len(entries) == N_STEPS
    for others in (entries[:-1], entries + entries[-1:], entries * 2):
        assert refusal(with_problem(name, **{field: others})) == f"{field} do not fit the steps"
    assert refusal(with_problem(name, **{field: []}))
    assert refusal(with_problem(name, **{field: entries[:1]}))


@pytest.mark.parametrize("name", ["weights", "gradient", "square", "scaled", "average"])
def test_a_part_of_the_state_may_not_be_called_by_another_quantitys_name(name):
    """Or else what is claimed of the weights would not be what is checked."""
    fields = fields_of("plain")
    (rule,), start = fields["problem"]["rules"], fields["data"]["initial"]
    still = {**rule, "state": {name: {name: ONE}}}
    standing = {"steps": [start] * 3, "distances": [ONE] * 3, "prediction_distance": (9.0).hex()}
    assert refusal({**with_problem(rules=[still]), **standing})
    both = with_problem(rules=[still], remembered=[name])
    twice = {**standing, "steps": [start * 2] * 3, "data": {**fields["data"], "initial": start * 2}}
    assert refusal({**both, **twice})


def standing_still(second):
    """An RMSprop step of a 1-1-1 relu network whose unit is dead, from this second moment."""
    root = {"factor": "gradient", "argument": {"second_moment": HALF, "square": HALF}, "eps": HALF}
    rule = {
        "weights": {"weights": ONE, "scaled": HALF},
        "state": {"second_moment": {"second_moment": ONE}},
        **{"decay": ZERO, "root": root, "average": None},
    }
    entries = [ONE, ZERO, second.hex(), second.hex()]
    network = {"widths": [1, 1, 1], "activation": "relu", "remembered": ["second_moment"]}
    given = {"x": [[(-1.0).hex()]], "y": [[ZERO]], "queries": [], "rates": None}
    return {
        **with_problem(**network, rules=[rule]),
        **{"data": {**given, "initial": entries}, "steps": [entries], "distances": [ZERO]},
        **{"predictions": [], "prediction_distance": None},
    }


@pytest.mark.parametrize(
    "name", [name for name in NAMES if name + " by norms" not in NAMES and " by " not in name]
)
def test_norms_are_for_plain_steps_only(name):
    is_plain = name in ("logistic", "smooth l1")
    assert bool(refusal(changed(name, method="norm"))) != is_plain


def test_steps_that_read_the_average_are_not_plain():
    """How far an average is apart would be missing in the distance of the weights."""
    fields = fields_of("average by norms")
    rules = [
        {**rule, "weights": {**rule["weights"], "average": HALF}}
        for rule in fields["problem"]["rules"]
    ]
    loose = {"distances": [(9.0).hex()] * N_STEPS, "prediction_distance": (9.0).hex()}
    assert refusal({**with_problem("average", rules=rules), **loose}) == ""
    assert refusal({**with_problem("average by norms", rules=rules), **loose})


def test_eps_of_0_is_refused_where_a_root_is_0():
    eps = ("problem", "rules", 0, "root", "eps")
    assert refusal(standing_still(0.0)) == ""
    assert NOT_CLOSE.fullmatch(refusal(replaced(standing_still(0.0), eps, ZERO)))
    assert refusal(replaced(standing_still(1.0), eps, ZERO)) == ""


def test_the_root_of_a_negative_number_is_refused():
    assert refusal({**standing_still(-1.0), "distances": [(9.0).hex()]})
