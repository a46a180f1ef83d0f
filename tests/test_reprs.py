from dataclasses import dataclass

from icgd.reprs import counted, in_short, number, with_repr


@with_repr
@dataclass(frozen=True)
class Cake:
    price: float

    def facts(self) -> dict[str, str]:
        return {"price": number(self.price), "for": "<you> & me"}


def test_a_thing_shows_its_facts_in_one_line():
    assert repr(Cake(12.34567)) == "Cake(price: 12.35; for: <you> & me)"


def test_a_notebook_shows_them_as_a_table_in_which_nothing_is_markup():
    assert Cake(2.0)._repr_html_() == (
        "<strong>Cake</strong><table>"
        '<tr><th style="text-align: left">price</th><td style="text-align: left">2</td></tr>'
        '<tr><th style="text-align: left">for</th>'
        '<td style="text-align: left">&lt;you&gt; &amp; me</td></tr></table>'
    )


def test_numbers_have_four_figures_and_counts_their_noun():
    assert [number(1e-7), number(3.0), number(None)] == ["1e-07", "3", "none"]
    assert [counted(1, "layer"), counted(1200, "layer")] == ["1 layer", "1,200 layers"]


def test_of_a_long_list_the_first_six_are_named():
    assert in_short(("a", "b")) == "a, b"
    assert in_short(list("abcdef")) == "a, b, c, d, e, f"
    assert in_short(list("abcdefgh")) == "a, b, c, d, e, f and 2 more"
