from icgd.pictures.diagram import folded

LETTERS = ["a", "b1", "b2", "b3", "b4", "b5", "c"]


def first_letter(word: str) -> str:
    return word[0]


def test_few_things_are_all_shown():
    assert folded(LETTERS, first_letter, 7) == [(word,) for word in LETTERS]


def test_of_a_run_the_first_two_and_the_last_are_shown():
    expected = [("a",), ("b1",), ("b2",), ("b3", "b4"), ("b5",), ("c",)]
    assert folded(LETTERS, first_letter, 6) == expected


def test_a_fold_is_of_two_or_more():
    words = ["b1", "b2", "b3", "b4"]
    assert folded(words, first_letter, 3) == [(word,) for word in words]


def test_of_many_that_differ_the_middle_is_folded():
    groups = folded(list(range(20)), lambda number: number, 4)
    assert groups == [(0,), (1,), (2,), tuple(range(3, 16)), (16,), (17,), (18,), (19,)]


def test_nothing_is_lost_or_moved():
    words = [f"{letter}{number}" for letter in "abcde" for number in range(40)]
    for most in range(2, 60):
        groups = folded(words, first_letter, most)
        assert [word for group in groups for word in group] == words
        assert len(groups) <= 2 * most or most >= len(words)
