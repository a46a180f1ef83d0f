import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from icgd_papers.figures import wu_setting
from icgd_papers.figures.wu_constructed import Constructed
from icgd_papers.reproduction import Conduct
from icgd_papers.studies.wu_mechanism import MECHANISM, TEST_INDEX
from icgd_papers.studies.wu_mechanism_picture import conclusions

ROOT = Path(__file__).parents[3]
STUDY = MECHANISM.studies("smoke", seed=0)[0]


@pytest.fixture(scope="module")
def found():
    return STUDY.train()


class StoppedError(Exception):
    pass


def test_blocks_and_all_controls_are_compared(found):
    assert [(each.predictor, each.stage) for each in found.compared] == [
        ("learnt block", 1),
        ("untrained block", 1),
        *(("ridge", stage) for stage in range(1, 6)),
        ("label mean", 1),
        ("arc-cosine", 1),
        ("another prompt's label", 1),
        *(("descent, other start", stage) for stage in range(1, 4)),
    ]
    assert STUDY.outcome_of(asdict(found)) == found


def test_descent_is_the_mean_over_its_starts(found):
    test = STUDY._prompts(TEST_INDEX, 8)
    paths = [
        torch.stack(Constructed(3, 4, found.step_size, start).path(test.x, test.y, (0, 1, 3)))
        for start in range(3)
    ]
    labels, mean = test.y[:, -1], (paths[0] + paths[1]) / 2
    wanted = (paths[2][0] - mean).square().mean(1) / labels.var(correction=0)
    other = next(each for each in found.compared if each.predictor == "descent, other start")
    assert list(other.distances) == pytest.approx(wanted.tolist())


def test_a_reference_has_no_distance_to_itself(found):
    of = {each.predictor: each for each in found.compared if each.stage == 1}
    assert of["label mean"].to_references["label mean"] == 0
    assert of["arc-cosine"].to_references["arc-cosine"] == 0


def test_an_interrupted_study_ends_with_the_same_numbers(found, tmp_path, monkeypatch):
    monkeypatch.setattr(wu_setting, "CHECKPOINT_EVERY", 1)

    def on_step(*_):
        raise StoppedError

    with pytest.raises(StoppedError):
        STUDY.train_with(Conduct(on_step=on_step), tmp_path)
    again = STUDY.train_with(Conduct(), tmp_path)
    assert again.compared == found.compared
    assert (tmp_path / "descent.json").exists()
    assert STUDY.train_with(Conduct(), tmp_path).compared == found.compared


def test_there_is_a_row_for_each_number_of_steps(found):
    rows = MECHANISM.rows([STUDY], [found])
    assert len(rows) == 13 * 3
    first = [row for row in rows if row["predictor"] == "learnt block"]
    assert [row["descent_steps"] for row in first] == [0, 1, 3]
    assert sum(row["is_nearest"] for row in first) == 1
    assert first[0]["r_squared"] == pytest.approx(found.compared[0].r_squared, rel=1e-5)


def test_panels_are_the_kinds_of_attention():
    assert {study.attention for study in MECHANISM.studies("laptop", 0)} == {"relu", "softmax"}
    part = MECHANISM.only(["panel-b"])
    assert {study.attention for study in part.studies("laptop", 0)} == {"softmax"}
    assert {study.seed for study in part.studies("laptop", 7)} == {7, 8, 9}


def test_the_page_says_what_was_measured():
    numbers = json.loads((ROOT / "results/wu-mechanism/laptop.json").read_text(encoding="utf-8"))
    assert "dirty" not in numbers["commit"]
    page = (ROOT / "docs/reproductions/wu.md").read_text(encoding="utf-8")
    for attention in ("relu", "softmax"):
        rows = [row for row in numbers["rows"] if row["attention"] == attention]
        for sentence in conclusions(rows):
            assert sentence in page, f"{attention}: {sentence}"
