"""Learn step sizes and a start through compiled descent, then let all weights of it learn.

Run it with `python examples/meta_learning.py`; it takes a few seconds on a free core.
"""

import numpy as np

import icgd
from icgd import LearnableRun
from icgd_papers.training import GeneratedTask, QueryTask, Settings, train


def sines(n_tasks, generator):
    """Sines of random height and phase at 20 points; a 1 beside the input stands for biases."""
    x = generator.uniform(-1, 1, (n_tasks, 20, 1))
    height, phase = generator.uniform(0.2, 1, (2, n_tasks, 1)) * [[[1.0]], [[2 * np.pi]]]
    return np.concatenate([x, np.ones_like(x)], axis=-1), height * np.sin(2 * x[..., 0] + phase)


def learn(model, n_steps, learning_rate):
    """Train a model; return its loss at the last 10 points of new tasks, before and after."""
    settings = Settings(
        n_steps=n_steps,
        batch_size=8,
        learning_rate=learning_rate,
        final_learning_rate=learning_rate / 100,
        clip_norm=1.0,
        dtype="float64",
        n_validation=100,
    )
    log = train(model, QueryTask(GeneratedTask(sines), n_queries=10), settings)
    return [log.rows[place]["validation_loss"] for place in (0, -1)]


def main():
    """Learn through three steps of descent on a relu network of one hidden layer."""
    problem = icgd.Problem(
        target=icgd.MLP((2, 8, 1), "relu"),
        loss="squared",
        update=icgd.GradientStep(step_size=0.5, box=3.0),
        domain=icgd.Domain(x=1.0, y=1.0),
    )
    # All weights are to learn at the end: a ramp that is not too narrow lets them move.
    compiled = icgd.compile(problem, "relu-stack", n_steps=3, kink_width=2.0**-13)
    run = LearnableRun(compiled, step_sizes=[0.5] * 3, seed=0)
    before, after = learn(run, n_steps=60, learning_rate=0.05)
    print(f"step sizes and start: {before:.4f} -> {after:.4f}")
    print("learnt step sizes:", [round(size, 2) for size in run.step_sizes.tolist()])
    before, after = learn(run.untied(), n_steps=15, learning_rate=1e-7)
    print(f"all weights: {before:.4f} -> {after:.4f}")


if __name__ == "__main__":
    main()
