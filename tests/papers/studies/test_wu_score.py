"""wu-score: its studies, rows and summary, and when a loss has settled."""

from dataclasses import replace

import pytest

from icgd.errors import SettingError, UnknownNameError
from icgd_papers.results import reproduce, stored_rows
from icgd_papers.studies.wu_score import SCORE, SMOKE, settled_after


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    return reproduce(SCORE, "smoke", out=tmp_path_factory.mktemp("out"), only=["panel-a"])


def test_every_law_is_learnt_from_both_kinds_of_labels_with_every_seed():
    studies = SCORE.studies("laptop", seed=5)
    cases = [(study.law, study.dimension, study.targets, study.seed) for study in studies]
    laws = (("ring", 2), ("pinwheel", 2), ("digits", 8))
    assert cases == [
        (*law, targets, seed)
        for law in laws
        for targets in ("exact", "denoising")
        for seed in (5, 6, 7)
    ]
    assert {study.budget.span.first for study in studies} == {0.02, 0.05}
    assert len(SCORE.studies("paper", seed=0)) == 30


def test_rows_have_scores_at_times_and_losses_at_steps(done):
    rows = done.numbers["rows"]
    assert stored_rows(done.folder / "smoke-panel-a.json") == rows
    assert len({tuple(row) for row in rows}) == 1  # the same columns
    timed = [row for row in rows if row["time"] is not None]
    assert len(timed) == 2 * 5 * 3  # labels, scores, times
    steps = [row for row in rows if row["step"] is not None]
    assert [row["step"] for row in steps] == [0, 2, 4] * 6
    assert {row["n_examples"] for row in rows} == {16}
    assert {row["first_time"] for row in rows} == {0.02}
    for row in timed:
        assert (row["score_error"] is None) == (row["method"] == "exact score")
        assert (row["distance"] is None) == (row["method"] == "N(0, I)")
        assert (row["points"] is None) == (row["method"] in ("N(0, I)", "Adam"))
    same = [
        [row["distance"] for row in timed if (row["method"], row["targets"]) == (method, "exact")]
        for method in ("in context", "direct")
    ]
    assert same[0] == same[1]


def test_the_summary_has_a_line_for_each_law_and_kind_of_labels(done):
    lines = [dict(zip(done.summary.names, row, strict=True)) for row in done.summary.rows]
    assert [(line["law"], line["labels"]) for line in lines] == [
        ("ring", "exact"),
        ("ring", "denoising"),
    ]
    rows = [row for row in done.numbers["rows"] if row["targets"] == "exact"]
    [end] = [r for r in rows if r["method"] == "in context" and r["time"] == 0.02]
    [adam] = [r for r in rows if r["method"] == "Adam" and r["time"] == 0.02]
    [exact] = [r for r in rows if r["method"] == "exact score" and r["time"] == 0.02]
    errors = [f"{row['relative_error']:.3f}" for row in (end, adam)]
    assert lines[0]["score error at T_0: in context / Adam"] == " / ".join(errors)
    distances = [f"{row['distance']:.3f}" for row in (end, adam, exact)]
    cell = lines[0]["distance: in context / Adam / exact / floor"]
    assert cell == " / ".join([*distances, f"{exact['floor']:.3f}"])
    assert float(lines[0]["off direct"]) < 1e-11
    assert lines[0]["steps"] == "4"


def test_the_loss_settles_where_a_tenth_of_the_training_hardly_lowers_it():
    losses = [1.0, 0.5, 0.4, 0.39, 0.388, 0.387, 0.386, 0.385, 0.384, 0.383, 0.382]
    curve = [{"step": 100.0 * place, "loss": loss} for place, loss in enumerate(losses)]
    assert settled_after(curve, signal=0.1) == 300  # 0.39 falls by 0.002, less than 0.005
    assert settled_after(curve, signal=1.0) == 200
    assert settled_after(curve, signal=0.01) is None


def test_no_seeds_and_an_unknown_preset_are_refused(tmp_path):
    with pytest.raises(SettingError, match=r"^n_seeds must be a whole number of at least 1, got 0"):
        replace(SMOKE, n_seeds=0)
    with pytest.raises(UnknownNameError, match="Unknown preset 'desktop'"):
        reproduce(SCORE, "desktop", out=tmp_path)
    assert list(tmp_path.iterdir()) == []
