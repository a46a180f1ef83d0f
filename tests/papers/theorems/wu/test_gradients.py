import torch

from icgd_papers.theorems.wu.gradients import equation_3_5, equation_d_16, lemma_1, lemma_15


def test_both_forms_of_the_gradient_agree_with_automatic_differentiation():
    for check in (lemma_1, lemma_15):
        assert max(comparison.measured for comparison in check(3).right) < 1e-14


def test_nothing_moves_from_zero_weights():
    finding = equation_3_5(0)
    assert finding.printed[0].measured == 1.0
    assert finding.right[0].measured < 0.1


def test_with_exchanged_indices_every_token_gets_its_own_summand():
    found = equation_d_16(0)
    assert found.right[0].measured < 1e-15
    generator = torch.Generator().manual_seed(0)
    s = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    p = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    s[5] = 0.0
    own = -0.3 * 6 / (2 * 5) * torch.einsum("ik,il->ikl", s, p)
    mean = -0.3 / (2 * 5) * s.mT @ p
    assert abs(found.printed[0].measured - float((own - mean).abs().max())) < 1e-12
