"""A decoder that trains in milliseconds, for tests in processes of their own."""

from icgd_papers.training.covariates import ShiftedMixture
from icgd_papers.training.decoder import Decoder
from icgd_papers.training.labels import Teachers
from icgd_papers.training.logs import Log
from icgd_papers.training.loop import Settings, train
from icgd_papers.training.tasks import CausalTask, InContextTask


def trained_decoder(attention: str, autocast: bool = False) -> tuple[Decoder, Log]:
    """A small decoder with the log of its training."""
    model = Decoder(input_width=2, n_blocks=1, width=4, n_heads=2, attention=attention, seed=0)
    law = InContextTask(ShiftedMixture.of_width(2), Teachers(2, 3), n_examples=3)
    settings = Settings(3, 4, 0.01, log_every=1, autocast=autocast)
    return model, train(model, CausalTask(law), settings)
