from dataclasses import replace
from math import inf, nan

import pytest
import torch

from icgd.certificates.report import Certificate, NearKinks, Report, Verdict


def report(step: float = 1.0, trajectory: float = 2.0, domain: float = 4.0) -> Report:
    return Report(
        certificate=Certificate(domain, 8.0, 16.0, n_tokens=3),
        step_errors=torch.tensor([0.5, step]),
        step_bounds=torch.tensor([1.0, 2.0]),
        trajectory_errors=torch.tensor([0.5, trajectory]),
        trajectory_bounds=torch.tensor([1.0, 3.0]),
        near_kinks=NearKinks(0, ()),
        backend="fused",
        dtype="float64",
    )


def test_a_certificate_alone_is_a_promise():
    assert report().certificate.verdict is Verdict.PROMISED


def test_errors_within_all_bounds_hold():
    assert report().verdict is Verdict.HOLDS


@pytest.mark.parametrize(
    "broken",
    [
        {"step": 2.1},
        {"trajectory": 3.1},
        {"domain": 0.9},
        {"step": nan},
        {"trajectory": nan},
    ],
)
def test_one_error_beyond_a_bound_or_not_a_number_breaks_it(broken):
    assert report(**broken).verdict is Verdict.BROKEN


def test_a_run_may_be_beyond_the_line_of_a_paper_and_hold():
    def with_line(*line: float) -> Report:
        return replace(report(), paper_trajectory=torch.tensor(line))

    assert report().beyond_paper is None
    assert with_line(0.5, 2.0).beyond_paper is None
    assert with_line(0.5, 1.9).beyond_paper == 2
    assert with_line(0.5, 1.9).verdict is Verdict.HOLDS
    batch = replace(
        with_line(1.0, 1.0),
        trajectory_errors=torch.tensor([[0.5, 0.5], [0.5, 1.5]]),
        paper_trajectory=torch.ones(2, 2),
    )
    assert batch.beyond_paper == 2


@pytest.mark.parametrize(
    ("widest", "empty"),
    [
        (8.5, ()),
        (8.0, ("domain_trajectory",)),
        (4.0, ("domain_step", "domain_trajectory")),
        (2.5, ("trajectory_bounds", "domain_step", "domain_trajectory")),
    ],
)
def test_a_bound_that_is_no_smaller_than_the_box_holds_but_says_nothing(widest, empty):
    certificate = replace(report().certificate, widest=widest)
    found = replace(report(), certificate=certificate)
    assert found.empty == empty
    assert found.verdict is (Verdict.HOLDS_EMPTY if empty else Verdict.HOLDS)
    assert found.verdict.holds
    assert certificate.told(4.0) == (None if "domain_step" in empty else 4.0)
    broken = replace(found, step_errors=torch.tensor([0.5, 9.0]))
    assert broken.verdict is Verdict.BROKEN
    assert not broken.verdict.holds


def test_predictions_of_weights_that_may_be_anywhere_say_nothing():
    def of_two_tasks(*ends, bounds=((1.0,), (2.0,))):
        runs = torch.tensor([[1.0, end] for end in ends])
        zeros = torch.zeros_like(runs)
        return replace(
            report(),
            certificate=replace(report().certificate, widest=9.0),
            **{"step_errors": zeros, "step_bounds": zeros, "trajectory_errors": zeros},
            trajectory_bounds=runs,
            prediction_errors=torch.zeros(2, 1, 1),
            prediction_bounds=torch.tensor(bounds).unsqueeze(-1),
        )

    found = of_two_tasks(3.0, 3.0)
    assert found.empty == ()
    assert torch.equal(found.told["prediction_bounds"], found.prediction_bounds)
    found = of_two_tasks(3.0, 9.0)
    assert found.empty == ("trajectory_bounds", "prediction_bounds")
    assert found.told["prediction_bounds"].isnan().flatten().tolist() == [False, True]
    found = of_two_tasks(3.0, 3.0, bounds=((inf,), (2.0,)))
    assert found.empty == ("prediction_bounds",)
    assert found.verdict is Verdict.HOLDS_EMPTY


def test_where_nothing_is_clipped_only_an_infinite_bound_says_nothing():
    assert not report().certificate.says_nothing(1e300)
    assert report().certificate.says_nothing(inf)
    assert report().certificate.says_nothing(nan)


def test_what_rests_on_a_statement_is_in_doubt_where_it_breaks():
    stated = replace(report().certificate, stated=("mine",))
    assert replace(report(), certificate=stated).verdict is Verdict.HOLDS
    broken = replace(report(step=2.1), certificate=stated)
    assert broken.verdict is Verdict.IN_DOUBT
    assert not broken.verdict.holds


def test_what_rests_on_an_estimate_is_never_called_proved():
    estimated = replace(report().certificate, estimated=("mine",), domain_step=inf)
    found = replace(report(), certificate=estimated)
    assert found.verdict is Verdict.HOLDS_ESTIMATED
    assert found.verdict.holds
    assert found.empty == ("domain_step",)
    assert replace(report(step=2.1), certificate=estimated).verdict is Verdict.IN_DOUBT
    for verdict in (Verdict.HOLDS_ESTIMATED, Verdict.IN_DOUBT):
        assert "proved" not in verdict.value


def test_an_infinite_bound_of_a_prediction_says_nothing():
    found = replace(
        report(),
        prediction_errors=torch.tensor([[0.5], [0.5]]),
        prediction_bounds=torch.tensor([[1.0], [inf]]),
    )
    assert found.empty == ("prediction_bounds",)
    assert found.verdict is Verdict.HOLDS_EMPTY


def test_verdicts_are_sentences():
    assert Verdict.HOLDS.value == "every measured error is within its proved bounds"


def test_they_show_themselves_in_a_line():
    found = report()
    assert repr(found.certificate) == (
        "Certificate(error of a step: at most 4; error of the run: at most 8; "
        "holds for: dense runs in float64, 3 tokens or fewer)"
    )
    assert repr(replace(found.certificate, widest=8.0, condition="x > 0")) == (
        "Certificate(error of a step: at most 4; error of the run: at most 8, which says nothing; "
        "holds for: dense runs in float64, 3 tokens or fewer; if: x > 0)"
    )
    assert repr(found) == (
        "Report(verdict: every measured error is within its proved bounds; steps: 2; "
        "error of a step: 1, the bound of the run is 2; "
        "distance from real descent: 2, the bound of the run is 3)"
    )
    silent = replace(found, certificate=replace(found.certificate, widest=1.5))
    assert "error of a step: 1, the bound of the run says nothing" in repr(silent)
    parts = ("step_errors", "step_bounds", "trajectory_errors", "trajectory_bounds")
    nothing = {name: torch.zeros(0) for name in parts}
    assert "error of a step: no step was taken" in repr(replace(found, **nothing))


def test_a_report_names_the_column_whose_coefficient_is_furthest_off():
    named = replace(report(), coefficient_errors={"age": 0.5, "in $": 2.0, "(intercept)": 1.0})
    assert named.furthest == "in $"
    assert repr(named).endswith("the bound of the run is 3; furthest at the end: in $)")
    _, panel = named.plot().figure.axes
    names = [text.get_text() for text in panel.get_legend().get_texts()]
    assert names[0] == r"measured, at the end largest for in \$"
    assert panel.lines[0].get_ydata().tolist() == [0.5, 2.0]
    assert replace(named, coefficient_errors={"age": 0.0}).furthest is None
    assert report().furthest is None
