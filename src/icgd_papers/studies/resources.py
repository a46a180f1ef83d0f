r"""What a transformer spends to learn a function through a network: Theorems 3 and 4 of wang.

Gradient descent on a network of depth n and width K takes n^2 layers of n K^2 heads (Theorem 2 and
Remark 2), together n^3 K^2 heads, which the paper calls parameter matrices. To come within eps of a
function the network needs

    the indicator of a ball    2 layers, K = exp(eps^(-1/4))        3 layers, K = eps^(-1)
    smooth of order s on       L layers, K = eps^(-1/(2 (L - 1)))   ln(1/eps) + 1 layers,
    [0, 1]^d                                                        K = eps^(-d/s)

Constants that the paper hides in O(.) are 1 here: the numbers compare growth, they are not sizes.
Both widths on the left come from lemmas that say "at least"; the theorems take them as enough.
Counts may exceed every float, so logarithms are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, log

from icgd.errors import SettingError, quoted
from icgd.problems.settings import count, finite

LEAST_SMOOTHNESS = 3
"""Theorem 4 asks for n > 2, so that W^{n, inf} lies in C^2, as Lemma 4 needs."""

MOST = 10**6
"""The largest dimension, smoothness and depth: all logarithms of counts stay within floats."""

BISECTIONS = 200
"""More than enough bisections for every bit of a float."""


@dataclass(frozen=True)
class Resources:
    """The size of a network that reaches an error, and of the transformer that trains it."""

    network: str
    depth: float
    log_width: float
    log_printed: float | None = None
    """The count of parameter matrices that the theorem prints."""

    @property
    def n_layers(self) -> float:
        """The layers of the transformer: a_n = O(n^2), Remark 2."""
        return self.depth**2

    @property
    def log_heads(self) -> float:
        """The heads of one of its layers: O(n K^2), Theorem 2."""
        return log(self.depth) + 2 * self.log_width

    @property
    def log_matrices(self) -> float:
        """The number of matrices: layers times heads."""
        return log(self.n_layers) + self.log_heads

    def logs(self) -> dict[str, float | None]:
        """Return logarithms of all counts; the last is the count of matrices that is printed."""
        return {
            "width": self.log_width,
            "heads": self.log_heads,
            "matrices": self.log_matrices,
            "printed": self.log_printed,
        }


@dataclass(frozen=True)
class Pair:
    """Two ways to learn one function to one error."""

    error: float
    shallow: Resources
    deep: Resources

    @property
    def deep_is_cheaper(self) -> bool:
        return self.deep.log_matrices < self.shallow.log_matrices


def indicator(error: float) -> Pair:
    """Theorem 3, in which the dimension grows as eps^(-1/4) while the error falls."""
    inverse = -log(within_one("error", error))
    root = exp(inverse / 4)
    shallow = Resources("2 layers", 2.0, log_width=root, log_printed=2 * root)
    return Pair(error, shallow, Resources("3 layers", 3.0, inverse, log_printed=inverse))


def indicator_in(dimension: int, error: float) -> Pair:
    """Lemmas 1 and 2 in a given dimension d: 2 layers need exp(d) units if eps is below d^-4.

    Above that Lemma 1 says nothing, and one unit is assumed. Lemma 2 prints its width as
    8 d^2 / sigma, where sigma is the activation; it is read as 8 d^2 / eps.
    """
    count("dimension", dimension, most=MOST)
    inverse = -log(within_one("error", error))
    least = float(dimension) if inverse > 4 * log(dimension) else 0.0
    enough = max(log(8) + 2 * log(dimension) + inverse, (inverse - log(2)) / 2)
    shallow = Resources("2 layers", 2.0, least)
    return Pair(error, shallow, Resources("3 layers", 3.0, enough))


def smooth(error: float, *, dimension: int, smoothness: int, depth: int) -> Pair:
    """Theorem 4: a deep and narrow network, or one of `depth` layers."""
    _check(dimension, smoothness, depth)
    inverse = -log(within_one("error", error))
    width = inverse / (2 * (depth - 1))
    shallow = Resources(f"{depth} layers", float(depth), width, log_printed=2 * width)
    width = inverse * dimension / smoothness
    printed = 3 * log(inverse) + 2 * width
    return Pair(error, shallow, Resources("deep", inverse + 1, width, log_printed=printed))


def indicator_crossover() -> float:
    """Return the ln(1/eps) beyond which 3 layers are always cheaper than 2."""
    # 3 ln 2 + 2 exp(t / 4) - 3 ln 3 - 2 t is least where exp(t / 4) = 4
    return _last_crossing(lambda t: 3 * log(2 / 3) + 2 * exp(t / 4) - 2 * t, 4 * log(4))


def smooth_crossover(*, dimension: int, smoothness: int, depth: int) -> float | None:
    """Return the ln(1/eps) beyond which the deep network is always cheaper; None if there is none.

    With a = 1 / (L - 1) - 2 d / s the shallow transformer has exp(a t) (L / (t + 1))^3 times as
    many matrices, t = ln(1/eps). For a > 0, which is 2 (L - 1) d < s, this ends above 1; for a <= 0
    it ends below 1.
    """
    _check(dimension, smoothness, depth)
    excess = smoothness - 2 * (depth - 1) * dimension
    if excess <= 0:
        return None
    gain = excess / ((depth - 1) * smoothness)  # a, without cancellation
    # gain t + 3 ln L - 3 ln(t + 1) is least where gain = 3 / (t + 1)
    return _last_crossing(lambda t: gain * t + 3 * log(depth / (t + 1)), max(3 / gain - 1, 0.0))


def _last_crossing(advantage: Callable[[float], float], lowest: float) -> float:
    """Return where a convex function becomes positive for good, or 0 if it is nowhere negative."""
    if advantage(lowest) > 0:
        return 0.0
    low, high = lowest, 2 * lowest + 1
    while advantage(high) <= 0:
        low, high = high, 2 * high
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if advantage(middle) > 0 else (middle, high)
    return high


def within_one(name: str, value: object) -> float:
    """Return the value as a float; it must lie strictly between 0 and 1."""
    number = finite(name, value)
    if not 0 < number < 1:
        raise SettingError(f"{name} must lie strictly between 0 and 1, got {quoted(value)}.")
    return number


def _check(dimension: int, smoothness: int, depth: int) -> None:
    count("dimension", dimension, most=MOST)
    count("smoothness", smoothness, least=LEAST_SMOOTHNESS, most=MOST)
    count("depth", depth, least=2, most=MOST)
