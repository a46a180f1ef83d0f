"""The preprocessing of a training script's data before a step, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from icgd.errors import DataError, SettingError
from icgd.problems.settings import below_one, count, entries, flag, positive, set_fields

REDUCTIONS = ("mean", "sum")


@dataclass(frozen=True)
class Preprocessing:
    """The steps from a script's examples to the prompt of a run; `icgd.from_torch` writes them.

    Every function that takes X and y applies them, so runs take the script's own data.

    Args:
        batches: the examples of each step, counted from 0. The prompt holds one batch after the
            other, so an example appears once for each epoch. Batches shorter than the first are
            padded with examples of rate 0.
        label_smoothing: the share of every label that is spread over all classes.
        class_weights: the factor of the loss for the examples of each class.
        reduction: "mean" or "sum" over a batch. A mean is over the batch's examples, or over the
            weights of their classes if there are class weights.
        flatten: whether X may have several axes for an example, which are flattened into one.
        n_summed: the number of examples for which the step size of a sum over all examples was
            computed; 0 for other losses.

    Raises:
        SettingError: if a number is out of its range.

    Example:
        >>> import icgd
        >>> icgd.Preprocessing(batches=((2, 0), (1,))).n_examples
        3
    """

    batches: tuple[tuple[int, ...], ...] = ()
    label_smoothing: float = 0.0
    class_weights: tuple[float, ...] = ()
    reduction: str = "mean"
    flatten: bool = False
    n_summed: int = 0

    def __post_init__(self) -> None:
        set_fields(
            self,
            batches=tuple(
                tuple(count("an example of a batch", row, least=0) for row in entries(batch))
                for batch in entries(self.batches)
            ),
            label_smoothing=below_one("label_smoothing", self.label_smoothing),
            class_weights=tuple(positive("class_weights", w) for w in entries(self.class_weights)),
            flatten=flag("flatten", self.flatten),
            n_summed=count("n_summed", self.n_summed, least=0),
        )
        sizes = [len(batch) for batch in self.batches]
        if sizes and not 0 < min(sizes) <= max(sizes) == sizes[0]:
            raise SettingError(
                f"batches have {min(sizes)} to {max(sizes)} examples, the first {sizes[0]}; "
                "expected at least one, and none larger than the first."
            )
        if self.reduction not in REDUCTIONS:
            raise SettingError(f"reduction must be 'mean' or 'sum', got {self.reduction!r}.")

    def in_words(self) -> str:
        """Return the preprocessing in a few words.

        Returns:
            The words.

        Example:
            >>> import icgd
            >>> icgd.Preprocessing(batches=((2, 0), (1,)), label_smoothing=0.1).in_words()
            '2 batches of 3 examples, labels smoothed by 0.1'
        """
        words = []
        if self.batches:
            words.append(f"{len(self.batches)} batches of {self.n_examples:,} examples")
        if self.label_smoothing:
            words.append(f"labels smoothed by {self.label_smoothing:g}")
        if self.class_weights:
            words.append("class weights " + ", ".join(f"{w:g}" for w in self.class_weights))
        if self.flatten:
            words.append("inputs flattened")
        return ", ".join(words) or "nothing"

    @property
    def n_examples(self) -> int:
        """The required number of examples in X; 0 if any number will do."""
        return 1 + max((max(batch) for batch in self.batches), default=-1)

    @property
    def largest_rate(self) -> float | None:
        """The largest rate of an example in the prompt; None if no example needs one."""
        shortest = min((len(batch) for batch in self.batches), default=1)
        longest = len(self.batches[0]) if self.batches else 1
        weights = self.class_weights
        if shortest == longest and not weights:
            return None
        largest = max(weights, default=1.0)
        if self.reduction == "mean":
            share = longest / shortest
            largest = share * max(largest, largest / min(weights, default=1.0))
        return largest * (1 + 2.0**-40)  # room for the rounding of a rate

    def inputs(self, data: Any, width: int) -> Any:
        """Return X or queries with one axis for each example if `flatten` is set.

        Args:
            data: the inputs.
            width: the number of inputs of the network.

        Returns:
            The inputs, flattened if an example then has `width` numbers.

        Example:
            >>> import icgd, torch
            >>> icgd.Preprocessing(flatten=True).inputs(torch.zeros(5, 2, 2), 4).shape
            torch.Size([5, 4])
        """
        shape = tuple(getattr(data, "shape", ()))
        if not self.flatten or len(shape) < 3:
            return data
        n_entries = 1
        for size in shape[1:]:
            n_entries *= size
        return data.reshape(shape[0], -1) if n_entries == width else data

    def prompt(
        self, x: Tensor, y: Tensor, rates: Tensor | None, *, are_classes: bool, batch: int | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the examples of the prompt: inputs, labels and rates.

        Args:
            x: the inputs (..., n, d_x).
            y: the labels (..., n, d_y).
            rates: the rates (..., n, 1) given by the user, if any.
            are_classes: whether labels were given as classes rather than as shares.
            batch: the number of examples of a step; None for all.

        Returns:
            Inputs, labels and rates of the prompt.

        Raises:
            DataError: if the number of examples does not fit the batches, or if batches overlap
                in a mean over class weights.

        Example:
            >>> import icgd, torch
            >>> x, y = torch.arange(3.0)[:, None], torch.zeros(3, 1)
            >>> prep = icgd.Preprocessing(batches=((2, 0), (1,)))
            >>> x, y, rates = prep.prompt(x, y, None, are_classes=False, batch=2)
            >>> x.flatten().tolist(), rates.flatten().tolist()
            ([2.0, 0.0, 1.0, 1.0], [1.0, 1.0, 2.0, 0.0])
        """
        n_examples = x.shape[-2]
        if self.batches and n_examples != self.n_examples:
            raise DataError(
                f"X has {n_examples} examples; the batches of this problem are drawn from "
                f"{self.n_examples}. Give the data of the script, or read it again with n_examples="
                f"{n_examples}."
            )
        if self.n_summed not in (0, n_examples):
            raise DataError(
                f"X has {n_examples} examples; the loss of this problem is a sum over "
                f"{self.n_summed}, which its step size is for. Give the data of the script, or "
                f"read it again with n_examples={n_examples}."
            )
        # The factor of an example in a batch's mean is numerator / sum(normaliser).
        numerator = normaliser = torch.ones_like(x[..., :1])
        weights = y.new_tensor(self.class_weights)
        if self.class_weights and are_classes:  # torch divides by the weights before smoothing
            normaliser = (weights * y).sum(-1, keepdim=True)
        if self.label_smoothing:
            y = (1 - self.label_smoothing) * y + self.label_smoothing / y.shape[-1]
        if self.class_weights:
            # -sum_c w_c y_c log p_c is s times the cross-entropy of the shares w_c y_c / s, where
            # s = sum_c w_c y_c.
            weighted = weights * y
            numerator = weighted.sum(-1, keepdim=True)
            y = weighted / numerator
        size = batch or n_examples
        if self.batches:
            size = len(self.batches[0])
            rows = [row for rows in self.batches for row in (*rows, *rows[:1] * (size - len(rows)))]
            counted = [place < len(rows) for rows in self.batches for place in range(size)]
            x, y, numerator, normaliser = (
                column[..., rows, :] for column in (x, y, numerator, normaliser)
            )
            rates = None if rates is None else rates[..., rows, :]
            # Padding counts neither in the sum nor in the normaliser.
            numerator, normaliser = (
                column * x.new_tensor(counted)[:, None] for column in (numerator, normaliser)
            )
        if self.reduction == "mean" and self.largest_rate is not None:
            if x.shape[-2] % size:
                raise DataError(
                    f"X has {n_examples} examples, no multiple of batch_size={size}: batches "
                    "overlap from one pass to the next, and an example's share of the mean over "
                    "class weights differs between them. Read the script with epochs=... and "
                    "n_examples=..., or leave examples out."
                )
            numerator, normaliser = (
                column.unflatten(-2, (-1, size)) for column in (numerator, normaliser)
            )
            # A step divides by `size`, the script by the sum of the normaliser.
            numerator = (numerator * (size / normaliser.sum(-2, keepdim=True))).flatten(-3, -2)
        if self.largest_rate is not None:
            rates = numerator if rates is None else numerator * rates
        return x, y, rates
