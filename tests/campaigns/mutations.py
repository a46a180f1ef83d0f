"""How files are altered: bits and bytes at random places, and JSON data at random nodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from random import Random
from typing import Any

HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 64, 2**31, 2**63, -(2**63), 10**30, 0.0, -0.0, 0.5, -1.5,
    1e-300, 5e-324, 1e308, float("inf"), float("-inf"), float("nan"), "", "x", "tanh", "relu", "y",
    "squared", "\x00", "ä" * 20, "a" * 5000, "../../etc/passwd", "__class__", [], [[]], [0], [1, 1],
    [None], ["x"], [1.5, float("nan")], {}, {"": 0}, {"kind": "ReluSum"}, {"verb": "WipeSlots"},
)  # fmt: skip
"""Values that no program would write at most places."""

Path = tuple[Any, ...]


def nodes(data: Any, path: Path = ()) -> Iterator[Path]:
    """The paths to all nodes of JSON data; long rows of numbers count by their ends."""
    yield path
    if isinstance(data, dict):
        for key, value in data.items():
            yield from nodes(value, (*path, key))
    elif isinstance(data, list):
        places = range(len(data)) if len(data) < 9 else (0, 1, len(data) // 2, len(data) - 1)
        for place in places:
            yield from nodes(data[place], (*path, place))


def at(data: Any, path: Path) -> Any:
    for key in path:
        data = data[key]
    return data


def put(data: Any, path: Path, value: Any) -> Any:
    """The data with another value at a node."""
    if not path:
        return value
    at(data, path[:-1])[path[-1]] = value
    return data


def _hostile(random: Random, value: Any, _: Any) -> Any:
    return deepcopy(random.choice(HOSTILE))


def _from_elsewhere(random: Random, value: Any, data: Any) -> Any:
    return deepcopy(at(data, random.choice(list(nodes(data)))))


def _scaled(random: Random, value: Any, _: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return [value]
    return value * random.choice([0, -1, 2, 0.5, 1e-9, 1e9, 1 + 2**-40])


def _nudged(random: Random, value: Any, _: Any) -> Any:
    return value + random.choice([-1, 1]) if isinstance(value, int | float) else str(value)


def _shortened(random: Random, value: Any, _: Any) -> Any:
    if isinstance(value, dict) and value:
        value.pop(random.choice(list(value)))
    elif isinstance(value, list) and value:
        value.pop(random.randrange(len(value)))
    elif isinstance(value, str):
        return value[:-1]
    return value


def _lengthened(random: Random, value: Any, _: Any) -> Any:
    if isinstance(value, dict):
        value[random.choice(["extra", "", *value])] = deepcopy(random.choice(HOSTILE))
    elif isinstance(value, list):
        value.insert(0, deepcopy(random.choice([*HOSTILE, *value])))
    elif isinstance(value, str):
        return value + "x"
    return value


def _nested(random: Random, value: Any, _: Any) -> Any:
    """Far deeper than any program; JSON of this depth is made as text."""
    return Deep(random.choice([50, 900, 5000, 100_000]))


class Deep:
    """A list in a list in a list."""

    def __init__(self, depth: int) -> None:
        self.depth = depth

    def __repr__(self) -> str:
        return f"lists {self.depth} deep"


CHANGES: tuple[Callable[[Random, Any, Any], Any], ...] = (
    _hostile, _hostile, _hostile, _from_elsewhere, _scaled, _scaled, _nudged, _shortened,
    _lengthened, _nested,
)  # fmt: skip


def altered(random: Random, data: Any) -> tuple[str, str]:
    """What was changed, and the text of the data with one to three nodes changed."""
    data, said, deep = deepcopy(data), [], []
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        path = random.choice(list(nodes(data)))
        value = random.choice(CHANGES)(random, deepcopy(at(data, path)), data)
        said.append(f"{'.'.join(map(str, path))} = {value!r:.60}")
        if isinstance(value, Deep):
            deep.append(value.depth)
            value = f"deep {len(deep) - 1}"
        data = put(data, path, value)
    text = json.dumps(data)
    for place, depth in enumerate(deep):
        text = text.replace(f'"deep {place}"', "[" * depth + "]" * depth)
    return "; ".join(said), text


def damaged(random: Random, content: bytes) -> tuple[str, bytes]:
    """What was done, and the bytes of a file with a fault such as disks and people make."""
    place = random.randrange(len(content))
    kind = random.choice(["bit", "bit", "bit", "byte", "cut", "gap", "zeros", "more", "twice"])
    size = random.choice([1, 8, 100, 4096])
    before, after = content[:place], content[place + 1 :]
    new = {
        "bit": lambda: before + bytes([content[place] ^ 1 << random.randrange(8)]) + after,
        "byte": lambda: before + bytes([random.randrange(256)]) + after,
        "cut": lambda: before,
        "gap": lambda: before + content[place + size :],
        "zeros": lambda: before + bytes(min(size, len(content) - place)) + content[place + size :],
        "more": lambda: content + random.randbytes(size),
        "twice": lambda: content[: place + size] + content[place:],
    }[kind]()
    return f"{kind} at {place} of {len(content)}", new
