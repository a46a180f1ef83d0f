from benchmarks.campaigns_page import PAGE, page, read_counts

TOY = {
    "title": "Toys",
    "cases": 1203,
    "longest_seconds": 0.25,
    "outcomes": {"done": 1200, "torn": 3, "lost": 0},
    "allowed": {"done": "it is whole"},
}


def test_the_page_is_that_of_the_last_campaigns():
    said = "run python -m benchmarks.campaigns_page"
    assert PAGE.read_text(encoding="utf-8") == page(read_counts()), said


def test_no_campaign_that_is_committed_had_an_outcome_that_is_not_allowed():
    for name, campaign in read_counts().items():
        assert campaign["outcomes"].keys() <= campaign["allowed"].keys(), name


def test_what_is_not_allowed_is_said():
    text = page({"toys": TOY})
    assert "had 1,203 cases; 3 had an outcome that is not allowed." in text
    assert "| Toys | 1,203 | done: 1,200; **torn: 3** |\n" in text
