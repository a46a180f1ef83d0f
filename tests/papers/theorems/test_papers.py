from icgd_papers.theorems.papers import PAPERS


def test_the_papers_are_known_by_their_keys():
    assert list(PAPERS) == ["wu", "wang", "cheng", "cot"]
    assert all(paper.key == key for key, paper in PAPERS.items())


def test_what_is_known_of_them_and_nothing_else():
    assert {key: paper.arxiv for key, paper in PAPERS.items()} == {
        "wu": "2411.16549",
        "wang": None,
        "cheng": "2312.06528",
        "cot": None,
    }
    assert PAPERS["cot"].authors is None
    assert PAPERS["cot"].venue == "Anonymous submission"
