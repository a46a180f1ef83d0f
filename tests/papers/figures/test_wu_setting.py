from dataclasses import replace

import pytest
import torch

from icgd.errors import SettingError
from icgd_papers.figures.wu_curves import BUDGETS
from icgd_papers.figures.wu_setting import FIRST_TEST, PRETRAINING, Law

SMOKE, PAPER = BUDGETS["smoke"], BUDGETS["paper"]


def test_the_paper_preset_has_the_papers_sizes():
    assert (PAPER.input_width, PAPER.n_examples, PAPER.longest) == (20, 50, 75)
    assert (PAPER.n_blocks, PAPER.n_heads, PAPER.width, PAPER.mlp_width) == (12, 8, 256, 256)
    assert (PAPER.batch_size, PAPER.n_steps, PAPER.n_test) == (64, 500_000, 6400)
    assert (PAPER.baselines.direct_width, PAPER.baselines.n_epochs) == (200, 100)
    assert PAPER.tokens == "interleaved"
    assert PAPER.n_positions == 152


def test_a_test_prompt_is_half_as_long_again_and_comes_from_its_law():
    shifted = SMOKE.test(3, Law((0.0, 1.0)), seed=0)
    assert shifted.x.shape == (8, 7, 2)
    assert 1.5 < float(shifted.x.mean()) < 2.5
    usual = SMOKE.test(3, PRETRAINING, seed=0)
    torch.testing.assert_close(usual.x + 4, shifted.x)  # the noise is the same


def test_prompts_are_drawn_in_parts_with_numbers_of_their_own():
    many = replace(SMOKE, n_test=70).test(3, PRETRAINING, seed=5)
    task = SMOKE.task(3, PRETRAINING, 6)
    first, second = (task.sample(n, seed=5, index=FIRST_TEST + i) for i, n in ((0, 64), (1, 6)))
    assert torch.equal(many.x, torch.cat([first.x, second.x]))
    assert torch.equal(many.y, torch.cat([first.y, second.y]))


def test_settings_are_chosen_on_other_prompts():
    chosen, tested = SMOKE.choice(3, seed=0), SMOKE.test(3, PRETRAINING, seed=0)
    assert chosen.x.shape == (4, 5, 2)
    assert not torch.equal(chosen.x, tested.x[:4, :5])


def test_a_law_says_in_words_what_is_shifted():
    assert (Law((0.7, 0.3)).inputs, Law(mean=-0.5).teachers) == ("(0.7, 0.3)", "N(-0.5, I)")


def test_lengths_beyond_the_prompt_are_refused():
    with pytest.raises(SettingError) as caught:
        replace(SMOKE, lengths=(2, 7))
    assert str(caught.value) == (
        "lengths go up to 7 examples, and a test prompt has 6, 1.5 times those of pretraining, for "
        "which the decoder has positions. Give shorter lengths, or more n_examples."
    )


def test_zero_seeds_are_refused():
    with pytest.raises(SettingError, match="n_seeds must be a whole number of at least 1, got 0"):
        replace(SMOKE, n_seeds=0)
