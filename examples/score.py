"""A transformer learns the score of a diffusion in its context, and noise becomes samples.

Points of three clusters are blurred, x_t = m x_0 + s z with m = exp(-t/2) and s^2 = 1 - m^2. The
prompt shows what was blurred. One forward pass trains a network f on it, and with the score
-x - (m / s) f(x, t) the blur runs backwards.
"""

from itertools import pairwise
from math import exp, expm1, sqrt

import torch

import icgd

FIRST, LAST, N_EXAMPLES, N_STEPS = 0.05, 5.0, 512, 2000
CENTRES = 1.3 * torch.tensor([[0.0, 1.0], [-0.87, -0.5], [0.87, -0.5]], dtype=torch.float64)
random = torch.Generator().manual_seed(0)


def noise(n: int) -> torch.Tensor:
    """Normal points."""
    return torch.randn(n, 2, generator=random, dtype=torch.float64)


def inputs(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """What the network reads: the point, the time, and a constant 1 in place of biases."""
    m, s = torch.exp(-t / 2), torch.sqrt(-torch.expm1(-t))
    return torch.cat((x, m * x, x / (4 * s), torch.log(s / m) / 2, torch.ones_like(t)), dim=1)


# The prompt: blurred points, and the velocity m z - s x_0 that a network can learn to predict.
t = FIRST * (LAST / FIRST) ** torch.rand(N_EXAMPLES, 1, generator=random, dtype=torch.float64)
m, s = torch.exp(-t / 2), torch.sqrt(-torch.expm1(-t))
clean = CENTRES[torch.randint(3, (N_EXAMPLES,), generator=random)] + 0.15 * noise(N_EXAMPLES)
z = noise(N_EXAMPLES)
X, y = inputs(m * clean + s * z, t), m * z - s * clean

problem = icgd.Problem(
    target=icgd.MLP(widths=(8, 16, 16, 2), activation="tanh"),
    loss="squared",
    update=icgd.GradientStep(step_size=0.05, box=8.0),
    domain=icgd.Domain(x=16.0, y=16.0),
)
learner = icgd.compile(problem, "softmax-stack", n_steps=N_STEPS)
weights = learner.run(X, y, seed=0, history=False).parameters[-1]  # one forward pass

# The way back: the transformer answers queries, and every answer moves the points a little.
reader = icgd.compile(problem, "softmax-stack", n_steps=0)
times = [LAST * (FIRST / LAST) ** (k / 100) for k in range(101)]
x = noise(500)
for now, later in pairwise(times):
    asked = inputs(x, torch.full((len(x), 1), now, dtype=torch.float64))
    f = reader.run(X[:1], y[:1], queries=asked, initial=weights).predictions
    score, h = -x - exp(-now / 2) / sqrt(-expm1(-now)) * f, now - later
    x = exp(h / 2) * x + 2 * expm1(h / 2) * score + sqrt(expm1(h)) * noise(len(x))

nearest = torch.cdist(x, CENTRES).min(dim=1)
print("samples near each centre:", torch.bincount(nearest.indices).tolist())
print(f"mean distance from it: {nearest.values.mean():.2f}")
