"""Counts of small jobs that can be checked by hand."""

import torch

from icgd_papers.studies.counting import Work, work_of

GIVEN = torch.ones(4, 5, dtype=torch.float64)


def test_every_product_has_two_operations_for_each_term():
    weights = torch.ones(3, 6, 5, dtype=torch.float64)
    total = torch.ones(4, 4, dtype=torch.float64)
    batch = torch.ones(2, 4, 4, dtype=torch.float64)

    def job():
        _ = GIVEN @ GIVEN.mT  # 4 x 5 x 4
        torch.einsum("tm,hdm->htd", GIVEN, weights)  # 4 x 5 x 18
        total.addmm_(GIVEN, GIVEN.mT)  # in place
        batch.baddbmm_(batch, batch)  # 2 x 4 x 4 x 4

    assert work_of(job).flops == 2 * (4 * 5 * 4 + 4 * 5 * 18 + 4 * 5 * 4 + 2 * 4 * 4 * 4)


def test_the_peak_is_what_is_held_at_a_time():
    def job():
        first = GIVEN * 2  # 160 bytes
        second = first + 1  # 320 held
        del first
        _ = second.view(20)  # a view holds nothing
        third = second * second  # 320 again
        del second, third
        return torch.zeros(10, dtype=torch.float64)  # 80

    assert work_of(job) == Work(0, 320)


def test_what_the_job_was_given_is_not_counted_even_if_written():
    buffer = torch.zeros(100)
    assert work_of(lambda: buffer.add_(1).mul_(2)) == Work(0, 0)
