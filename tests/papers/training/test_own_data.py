import re
from math import inf

import numpy as np
import pytest
import torch
from torch import nn

from icgd.errors import DataError, IcgdError, SettingError, UnknownNameError
from icgd_papers.training.own_data import GeneratedTask, TaskTable
from icgd_papers.training.tasks import Batch


class Zeros(nn.Module):
    """It predicts zeros of one shape."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x, y):
        return torch.zeros(self.shape)


def table(n_tasks: int = 10, **options) -> TaskTable:
    """Task k has inputs 100 k + token, and labels 1000 times as large."""
    x = 100.0 * np.arange(n_tasks)[:, None, None] + np.arange(3.0)[:, None]
    return TaskTable(torch.tensor(x), torch.tensor(1000 * x[..., 0]), **options)


def tasks_in(batch: Batch) -> list[int]:
    return [int(first) // 100 for first in batch.x[:, 0, 0]]


def test_training_and_validation_share_no_task():
    own = table(validation_share=0.3)
    held_out = tasks_in(own.validation(99, seed=5))
    drawn = [task for index in range(20) for task in tasks_in(own.sample(7, seed=1, index=index))]
    assert len(held_out) == own.n_held_out == 3
    assert set(drawn) | set(held_out) == set(range(10))
    assert not set(drawn) & set(held_out)
    assert tasks_in(own.validation(2, seed=5)) == held_out[:2]


def test_no_task_comes_twice_before_all_have_come():
    own = table(validation_share=0.0)
    batch = tasks_in(own.sample(25, seed=0, index=0))
    assert sorted(batch[:10]) == sorted(batch[10:20]) == list(range(10))


def test_a_batch_depends_on_its_numbers_only():
    own = table()
    first, again = (own.sample(4, seed=3, index=7) for _ in range(2))
    other = own.sample(4, seed=3, index=8)
    assert torch.equal(first.x, again.x)
    assert not torch.equal(first.x, other.x)
    assert torch.equal(first.y, 1000 * first.x[..., 0])


def test_tokens_are_shuffled_with_their_labels():
    own = table(shuffles_tokens=True)
    batch = own.sample(200, seed=0, index=0)
    assert torch.equal(batch.y, 1000 * batch.x[..., 0])
    assert {int(query) % 100 for query in batch.x[:, -1, 0]} == {0, 1, 2}


def test_vector_labels_have_their_own_loss():
    own = TaskTable(torch.zeros(2, 3, 1), torch.tensor([[[1.0, 2.0]] * 3, [[3.0, 4.0]] * 3]))
    batch = own.sample(2, seed=0, index=0)
    loss = own.loss(Zeros(2, 2), batch)
    assert float(loss) == (1 + 4 + 9 + 16) / 4
    with pytest.raises(DataError, match=r"prediction has shape \(2,\); expected \(2, 2\), the"):
        own.loss(Zeros(2), batch)


def test_tables_are_told_apart():
    assert table().description() == table().description()
    assert table().description() != table(11).description()
    assert table().description() != table(validation_share=0.2).description()


CSV = "task,a,b,y\n1,0,1,2\n2,3,4,5\n1,6,7,8\n2,9,10,11\n"


def test_a_csv_has_a_row_for_each_token_and_a_column_that_names_the_task(tmp_path):
    (tmp_path / "tasks.csv").write_text(CSV)
    own = TaskTable.read(tmp_path / "tasks.csv", validation_share=0.0)
    assert own.x.tolist() == [[[0, 1], [6, 7]], [[3, 4], [9, 10]]]
    assert own.y.tolist() == [[2, 8], [5, 11]]
    both = TaskTable.read(tmp_path / "tasks.csv", label_columns=["y", "a"])
    assert both.x.tolist() == [[[1], [7]], [[4], [10]]]
    assert both.y.tolist() == [[[2, 0], [8, 6]], [[5, 3], [11, 9]]]


def test_an_npz_has_two_arrays(tmp_path):
    x, y = np.arange(12.0).reshape(2, 3, 2), np.arange(6.0).reshape(2, 3)
    np.savez(tmp_path / "tasks.npz", x=x, y=y)
    own = TaskTable.read(tmp_path / "tasks.npz")
    assert own.x.tolist() == x.tolist()
    assert own.y.tolist() == y.tolist()
    np.savez(tmp_path / "half.npz", x=x)
    with pytest.raises(DataError, match=r"Cannot read .*half\.npz: it has no array called 'y"):
        TaskTable.read(tmp_path / "half.npz")
    x[1, 2, 0] = np.nan
    np.savez(tmp_path / "bad.npz", x=x, y=y)
    with pytest.raises(DataError, match=r"x in .*bad\.npz\[1, 2, 0\] is nan; every entry must be"):
        TaskTable.read(tmp_path / "bad.npz")


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (CSV.replace("9,10", "9,nan"), DataError, "line 5 has no value in column 'b'. Fill it"),
        (CSV + "2,1,1,1\n", DataError, "task 1 has 2 rows, but task 2 has 3. Give every task"),
        (CSV.replace("task", "group"), UnknownNameError, "Unknown column 'task' in tasks.csv"),
        ("task,y\n1,2\n1,3\n", DataError, "Cannot read tasks.csv: it has no column of inputs."),
        ("task,a,y\n1,2,3\n2,4,5\n", DataError, "with at least 2 tokens, the last of them"),
    ],
)
def test_a_csv_that_cannot_be_used_says_where(tmp_path, monkeypatch, text, error, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.csv").write_text(text)
    with pytest.raises(error, match=re.escape(message)):
        TaskTable.read("tasks.csv")


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (torch.zeros(2, 3), torch.zeros(2, 3), "x has shape (2, 3); expected (task, token"),
        (torch.zeros(2, 3, 1), torch.zeros(2, 4), "y has shape (2, 4); expected (2, 3) or (2, 3,"),
        (torch.full((2, 3, 1), inf), torch.zeros(2, 3), "x[0, 0, 0] is inf"),
        (torch.zeros(2, 3, 1).half(), torch.zeros(2, 3), "x has dtype float16; expected float64"),
    ],
)
def test_impossible_arrays_are_refused(x, y, message):
    with pytest.raises(DataError, match=re.escape(message)):
        TaskTable(x, y)


def test_validation_needs_tasks_that_are_held_out():
    with pytest.raises(SettingError, match=r"validation_share=0 of 10 tasks holds none out"):
        table(validation_share=0.0).validation(3, seed=0)
    with pytest.raises(SettingError, match="validation_share"):
        table(validation_share=0.95)


def draw(n_tasks, generator):
    x = generator.standard_normal((n_tasks, 4, 2))
    return x, x.sum(-1)


def test_a_function_is_given_numbers_of_its_own():
    own = GeneratedTask(draw)
    first, again = (own.sample(5, seed=2, index=3) for _ in range(2))
    assert torch.equal(first.x, again.x)
    assert not torch.equal(first.x, own.sample(5, seed=2, index=4).x)
    assert not torch.equal(first.x, own.sample(5, seed=2, index=3, shard=1).x)
    assert torch.equal(first.y, first.x.sum(-1))


def test_a_function_that_was_changed_is_another_task():
    def other(n_tasks, generator):
        x = generator.standard_normal((n_tasks, 4, 2))
        return x, -x.sum(-1)

    other.__name__ = "draw"
    assert GeneratedTask(draw).description()["draw"] == "draw"
    assert GeneratedTask(draw).description() != GeneratedTask(other).description()


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (
            (np.zeros((4, 3, 1)), np.zeros((4, 3))),
            "x of wrong has shape (4, 3, 1); expected 5 tasks",
        ),
        ((np.full((5, 3, 1), np.nan), np.zeros((5, 3))), "x of wrong[0, 0, 0] is nan"),
        (np.zeros(3), "The result of wrong must be a pair of x and y"),
        ((np.zeros((5, 1, 1)), np.zeros((5, 1))), "with at least 2 tokens"),
    ],
)
def test_what_a_function_returns_is_checked(result, message):
    def wrong(n_tasks, generator):
        return result

    with pytest.raises(IcgdError, match=re.escape(message)):
        GeneratedTask(wrong).sample(5, seed=0, index=0)


def test_labels_are_the_last_column_that_is_not_the_task(tmp_path):
    path = tmp_path / "tasks.csv"
    path.write_text("a,y,task\n1,10,0\n2,20,0\n3,30,1\n4,40,1\n")
    own = TaskTable.read(path)
    assert own.x.tolist() == [[[1.0], [2.0]], [[3.0], [4.0]]]
    assert own.y.tolist() == [[10.0, 20.0], [30.0, 40.0]]


@pytest.mark.parametrize("labels", [["task"], ["y", "y"]])
def test_a_label_is_no_task_and_named_once(tmp_path, labels):
    path = tmp_path / "tasks.csv"
    path.write_text("task,a,y\n0,1,10\n0,2,20\n")
    expected = "a list of columns other than 'task', each named once"
    message = f"label_columns must be {expected}, got {labels}."
    with pytest.raises(SettingError, match=f"^{re.escape(message)}$"):
        TaskTable.read(path, label_columns=labels)


@pytest.mark.parametrize("n_tasks", [1, 2])
def test_a_share_that_holds_out_every_task_is_refused(n_tasks):
    message = (
        f"validation_share=0.9 of {n_tasks} tasks holds all of them out for validation, and none "
        "is left to train on. Give a smaller share."
    )
    with pytest.raises(SettingError, match=f"^{re.escape(message)}$"):
        table(n_tasks, validation_share=0.9)


def test_an_archive_that_is_damaged_or_none_says_so(tmp_path):
    path = tmp_path / "tasks.npz"
    np.savez(path, x=np.ones((2, 3, 1)), y=np.ones((2, 3)))
    whole = path.read_bytes()
    for content in (whole[:200], whole[:150] + bytes([whole[150] ^ 255]) + whole[151:]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=f"^Cannot read {re.escape(str(path))}: "):
            TaskTable.read(path)
    with path.open("wb") as file:
        np.save(file, np.ones(3))
    with pytest.raises(DataError, match=r"it holds one array without a name, not x and y\.$"):
        TaskTable.read(path)


def test_tables_of_the_same_numbers_in_other_shapes_are_told_apart():
    numbers = torch.arange(12.0)
    tables = (
        TaskTable(numbers.view(2, 6, 1), numbers.view(2, 6)),
        TaskTable(numbers.view(3, 4, 1), numbers.view(3, 4)),
    )
    assert tables[0].description() != tables[1].description()
