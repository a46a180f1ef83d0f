"""Generate a chain of cot-network from a file of sparse weights with numpy alone."""

import json
from math import cos, pi, prod, sin

import numpy as np
from safetensors import safe_open


def positions(depth, step):
    """What the token before block `step` asks for, and the angle that block `step` answers by."""
    time, number = (step - 1) % (2 * depth), (step - 1) // (2 * depth) + 1
    angle, own = pi * time / depth, pi * (time + 1) / depth
    if time % depth == 0:  # F_1 reads X, B_N reads Y
        return (0, 0, 0, time == 0, time > 0, number, 1), (cos(own), sin(own))
    sharp = 2048 / (1 - cos(pi / depth))
    return (sharp * cos(angle), sharp * sin(angle), 512 / depth, 0, 0, 0, 0), (cos(own), sin(own))


def decode(path, prompt):
    """All tokens of a chain, from those of the prompt."""
    with safe_open(path, "np") as file:
        about, program = (json.loads(file.metadata()[key]) for key in ("layers", "program"))
        names = file.keys()
        tensors = {name: file.get_tensor(name) for name in names}

    def weights(name):
        found = {part: tensors.get(f"{name}.{part}") for part in ("b_in", "A", "P")}
        for part, shape in about["layers"][name]["shapes"].items():
            found[part] = np.zeros(shape)
            found[part][tuple(tensors[f"{name}.{part}.indices"])] = tensors[f"{name}.{part}.values"]
        return found

    def attended(x, tokens, w):
        """Queries of x (model), keys and values of tokens (token, model), for all heads at once."""
        scores = np.einsum("m,hmf,tn,hnf->ht", x, w["W_Q"], tokens, w["W_K"], optimize=True)
        pattern = np.exp(scores - scores.max(1, keepdims=True))
        pattern /= pattern.sum(1, keepdims=True)
        return np.einsum("ht,tm,hmf,hfn->n", pattern, tokens, w["W_V"], w["W_O"], optimize=True)

    places, end = {}, 0
    for slot in program["slots"]:
        places[slot["name"]] = slice(end, end := end + prod(slot["shape"]))
    first = program["rows"][0]["name"]
    near, out = (places[f"{block}.{first}"].start for block in ("near", "out"))
    finds, *layers = map(weights, (about["finds"], *about["common"]))
    depth, n_rounds = len(program["shapes"]), program["n_steps"]

    def column(token, slot, position):
        x = np.zeros(end)
        x[near : near + len(token)], x[places["one"]], x[places[slot]] = token, 1, position
        return x

    tokens, seen = list(prompt), []
    for place, token in enumerate(tokens):
        number, is_x = place // 2 + 1, place % 2 == 0
        answer = (0, 0, place, is_x, not is_x, number, number**2)
        if place >= 2 * n_rounds:
            angle = positions(depth, place + 1 - len(prompt))[1]
            answer = (*angle, place, 0, 0, 0, 0)
        seen.append(column(token, "answers", answer))
    for step in range(1, 2 * depth * n_rounds + 1):
        asks, angle = positions(depth, step)
        x = column(tokens[-1], "asks", asks)
        x = x + attended(x, np.array(seen), finds)
        for w in layers:
            if w["b_in"] is None:
                x = x + attended(x, w["A"] * x + w["P"], w)
            else:
                x = x + np.maximum(x @ w["W_in"] + w["b_in"], 0) @ w["W_out"]
        tokens.append(x[out : out + prompt.shape[1]])
        seen.append(column(tokens[-1], "answers", (*angle, len(seen), 0, 0, 0, 0)))
    return np.array(tokens)
