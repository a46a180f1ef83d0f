"""cot-fig2: its studies, its rows and its summary."""

from icgd_papers.figures.cot_operator_training import Budget, Chained, Learnt, Outcome, Study
from icgd_papers.figures.cot_operators import OPERATORS
from icgd_papers.results import reproduce

BUDGET = Budget(n_epochs=1, batch_size=4, n_validation_teachers=2, n_chains=2, n_rounds=1)


def outcome(last):
    """An operator pair whose last validation losses are `last` and ten times that."""
    learnt = [
        Learnt(
            tuple(
                {"epoch": float(epoch), "training_loss": 1.0, "validation_loss": loss}
                for epoch, loss in enumerate((50.0, factor * last))
            ),
            variance=40.0 * factor,
            mean_loss=44.0 * factor,
            linear_loss=8.0 * factor,
            n_parameters=1000,
        )
        for factor in (1, 10)
    ]
    chain = Chained((0.0, last / 2), (0.0, last / 4), (0.0, 1e-26), (0.0, 0.3))
    return Outcome(*learnt, chain, seconds=1.25)


STUDIES = [Study("plain", 4, 2, 2, seed, BUDGET) for seed in (0, 1)]
ROWS = OPERATORS.rows(STUDIES, [outcome(0.4), outcome(0.6)])


def test_the_laptop_tries_every_architecture_with_three_seeds_and_long_studies_first():
    studies = OPERATORS.studies("laptop", seed=5)
    assert {study.seed for study in studies} == {5, 6, 7}
    assert len(studies) == 7 * 3
    assert {(s.width, s.depth, s.budget.n_rounds, s.budget.n_epochs) for s in studies} == {
        (5, 3, 20, 20)
    }
    work = [study.work for study in studies]
    assert work == sorted(work, reverse=True)


def test_the_paper_preset_has_the_papers_sizes():
    studies = OPERATORS.studies("paper", seed=0)
    assert {(s.width, s.depth) for s in studies} == {(d, n) for d in (5, 10, 20) for n in (3, 6, 9)}
    assert {study.budget.n_rounds for study in studies} == {20}
    assert {study.seed for study in studies} == set(range(5))


def test_rows_have_the_losses_of_epochs_and_the_distances_of_rounds():
    assert [(row["operator"], row["at"]) for row in ROWS[:6]] == [
        (operator, at) for operator in ("forward", "backward", "chain") for at in (0, 1)
    ]
    forward, chain = ROWS[1], ROWS[5]
    assert (forward["validation_loss"], forward["variance"], forward["learnt"]) == (0.4, 40.0, None)
    assert (forward["mean_loss"], forward["linear_loss"]) == (44.0, 8.0)
    assert (chain["learnt"], chain["learnt_median"], chain["unmoved"]) == (0.2, 0.1, 0.3)
    assert (chain["constructed"], chain["validation_loss"]) == (1e-26, None)
    assert len({tuple(row) for row in ROWS}) == 1


def test_the_summary_has_means_over_seeds_and_shares_of_the_variance():
    summary = OPERATORS.summary(ROWS)
    lines = {row[2]: row[3:] for row in summary.rows}
    assert lines["plain"] == ("4", "2,000", "0.5", "0.013", "5", "0.013", "0.25")
    assert lines["mean block"][2:] == ("44", "1.1", "440", "1.1", "")
    assert lines["linear map"][2:] == ("8", "0.2", "80", "0.2", "")
    assert lines["weights as at first"][-1] == "0.3"
    assert lines["constructed"][-1] == "1e-26"
    assert len(summary.names) == len(summary.rows[0])


def test_the_smoke_preset_writes_its_files_and_is_the_same_again(tmp_path):
    done = reproduce(OPERATORS, "smoke", out=tmp_path)
    assert {path.name for path in done.folder.iterdir()} == {
        "smoke.json",
        "smoke.csv",
        "smoke.png",
    }
    again = reproduce(OPERATORS, "smoke", out=tmp_path / "again")
    for row, other in zip(done.numbers["rows"], again.numbers["rows"], strict=True):
        assert {**row, "seconds": 0} == {**other, "seconds": 0}
    last = [row for row in done.numbers["rows"] if row["operator"] == "chain"][-1]
    assert last["at"] == 3
    assert last["constructed"] < 1e-20
    assert 0 < last["unmoved"] < 1
