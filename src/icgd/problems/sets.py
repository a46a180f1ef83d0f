r"""The closed convex sets that weights are projected onto after every step: boxes and polyhedra.

A few hidden units project exactly onto a box in an orthonormal basis. With the rows q of `Q` as the
basis and the faces low <= <q, w> <= high,

    P(w) = w - Q^T (y - clip(y, low, high)),    y = Q w.

Q = I gives a box of intervals. A half-space {<a, w> <= c} has the first row a / |a| with the upper
face c / |a|. Transformers need bounded weights, so the half-space is intersected with a cube:
`reach` gives the other face of the first row, and both faces of all other rows. These are the rows
of the Householder reflection that maps the axis p of the largest |a_i| to a,

    Q_ij = [i = j] - v_i v_j / (|a| (|a| + |a_p|)),    v = a + sign(a_p) |a| e_p,    i != p,

so axes on which a is 0 do not change. The simplex of two entries is such a box as well. More
entries must be sorted: P(w) = max(w - theta, 0), with theta = max_j (s_1 + .. + s_j - total) / j,
the mean excess of the j largest entries s_1, ..., s_j.

Projections onto closed convex sets are nonexpansive in the 2-norm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from math import fsum, prod, sqrt
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from icgd.errors import SettingError, quoted
from icgd.problems.mlp import MLP
from icgd.problems.settings import entries, finite, is_row, not_negative, positive, set_fields
from icgd.shapes import Parameters

Numbers = Any
"""One number, or one for each weight: an array or nested sequences, stored as nested tuples."""

MOST_OF_SIMPLEX = 8
"""The length of the longest row that is projected onto a simplex."""

MOST_OF_HALF_SPACE = 512
"""The largest number of weights in a half-space: the hidden unit of each weight reads them all."""


def _numbers(name: str, value: Any) -> Numbers:
    """Validate finite numbers and return them as nested tuples."""
    if is_row(value):
        return tuple(_numbers(name, entry) for entry in entries(value))
    return finite(name, value)


def _flat(value: Numbers) -> list[float]:
    return [n for entry in value for n in _flat(entry)] if isinstance(value, tuple) else [value]


def _shape(name: str, value: Numbers) -> tuple[int, ...]:
    """Return the shape of nested numbers."""
    if not isinstance(value, tuple):
        return ()
    shapes = {_shape(name, entry) for entry in value}
    if len(shapes) != 1:
        raise SettingError(f"{name} has rows of different lengths, or none.")
    return (len(value), *shapes.pop())


def _negative(numbers: Numbers) -> Numbers:
    """Negate nested numbers, without negative zeros."""
    return tuple(map(_negative, numbers)) if isinstance(numbers, tuple) else 0.0 - numbers


def _norm(numbers: Sequence[float]) -> float:
    """Return the 2-norm, scaled so that no square overflows or underflows."""
    largest = max(map(abs, numbers))
    return largest * sqrt(fsum((entry / largest) ** 2 for entry in numbers))


@final
@dataclass(frozen=True)
class Box:
    """The weights between `low` and `high`; `Box(b)` is the box from -b to b.

    Args:
        low: the lower bound of all weights, or one for each weight; without `high`, the largest
            absolute value.
        high: the upper bound, or one for each weight. Equal bounds fix a weight.

    Raises:
        SettingError: if a number is not finite, or if the box is empty.

    Example:
        >>> import icgd
        >>> icgd.GradientStep(0.1, box=icgd.Box(0.0, 2.0)).in_words()
        'gradient steps of 0.1, box [0, 2]'
    """

    low: Numbers
    high: Numbers | None = None

    def __post_init__(self) -> None:
        low, high = _numbers("low", self.low), self.high
        if high is None:
            for size in _flat(low):
                not_negative("the size of a Box", size)
            low, high = _negative(low), low
        high = _numbers("high", high)
        shapes = {_shape("Box", low), _shape("Box", high)} - {()}
        if len(shapes) > 1:
            raise SettingError(f"Box has a low of shape {shapes.pop()}, a high of {shapes.pop()}.")
        lows, highs = _flat(low), _flat(high)
        n_pairs = max(len(lows), len(highs))
        lows, highs = (ends * (n_pairs // len(ends)) for ends in (lows, highs))
        for index, (least, most) in enumerate(zip(lows, highs, strict=True)):
            if least > most:
                raise SettingError(
                    f"Box is empty: weight {index} has low={least:g} above high={most:g}. Give a "
                    "low that is at most the high."
                )
        if not any(lows) and not any(highs):
            raise SettingError("Box contains only 0. Give a box in which a weight can change.")
        set_fields(self, low=low, high=high)

    @property
    def top(self) -> Numbers:
        """The upper bound; `high` is never None after construction."""
        return self.low if self.high is None else self.high

    def in_words(self) -> str:
        """Return a short description of the set.

        Returns:
            The text.

        Example:
            >>> import icgd
            >>> icgd.Box(2.0).in_words(), icgd.Box(((1.0, 2.0),)).in_words()
            ('[-2, 2]', '[-2, 2] or narrower')
        """
        lows, highs = _flat(self.low), _flat(self.top)
        narrower = " or narrower" if len({*lows}) > 1 or len({*highs}) > 1 else ""
        return f"[{min(lows):g}, {max(highs):g}]{narrower}"


@final
@dataclass(frozen=True)
class HalfSpace:
    """The weights w with <normal, w> <= offset, in a cube of half-width `reach`.

    The cube is rotated so that the normal is one of its axes, which lets a layer of hidden units
    project exactly. Axes on which the normal is 0 do not change. As long as training stays inside
    the cube, the set is equivalent to the half-space.

    Args:
        normal: a number for each weight of a layer; a single row applies to every row.
        offset: the largest value of <normal, w>.
        reach: half the width of the cube.

    Raises:
        SettingError: if a number is not finite, the normal is 0, or the set is empty.

    Example:
        >>> import icgd
        >>> icgd.HalfSpace((1.0, 1.0), offset=0.5, reach=2.0).in_words()
        'half-space of 2 weights within 2'
    """

    normal: Numbers
    offset: float
    reach: float

    def __post_init__(self) -> None:
        normal = _numbers("normal", self.normal)
        offset, reach = finite("offset", self.offset), positive("reach", self.reach)
        if len(_shape("normal", normal)) not in (1, 2) or not any(_flat(normal)):
            raise SettingError(
                f"normal must have a number for each weight, not all 0, got {quoted(self.normal)}."
            )
        if len(_flat(normal)) > MOST_OF_HALF_SPACE:
            raise SettingError(
                f"normal has {len(_flat(normal)):,} entries; a half-space may have at most "
                f"{MOST_OF_HALF_SPACE}, because the hidden unit of each weight reads all weights. "
                "Give one row, which applies to every row of a layer."
            )
        set_fields(self, normal=normal, offset=offset, reach=reach)
        size = _norm(_flat(normal))
        if not -reach * size < offset:
            raise SettingError(
                f"HalfSpace is empty: <normal, w> must be at most offset={offset:g}, but within "
                f"reach={reach:g} it is at least {-reach * size:g}. Give a larger reach."
            )

    def in_words(self) -> str:
        """Return a short description of the set.

        Returns:
            The text.

        Example:
            >>> import icgd
            >>> icgd.HalfSpace((1.0, -1.0, 0.0), 0.0, reach=1.0).in_words()
            'half-space of 3 weights within 1'
        """
        return f"half-space of {len(_flat(self.normal))} weights within {self.reach:g}"


@final
@dataclass(frozen=True)
class Simplex:
    """Rows of nonnegative weights with the sum `total`; at most 8 weights per row.

    Args:
        total: the sum of each row.

    Raises:
        SettingError: if the total is not positive.

    Example:
        >>> import icgd
        >>> icgd.Simplex().in_words()
        'rows on the simplex of 1'
    """

    total: float = 1.0

    def __post_init__(self) -> None:
        set_fields(self, total=positive("total", self.total))

    def in_words(self) -> str:
        """Return a short description of the set.

        Returns:
            The text.

        Example:
            >>> import icgd
            >>> icgd.Simplex(2.0).in_words()
            'rows on the simplex of 2'
        """
        return f"rows on the simplex of {self.total:g}"


WeightSet = float | Box | HalfSpace | Simplex
"""The set of a layer's weights; a number b is the box from -b to b."""

Sets = WeightSet | Sequence[Any] | Mapping[str, Any]
"""One set for all layers, one for each layer, or sets by the names of weights.

An update stores them as a set, a tuple of sets, or a tuple of pairs (name, set).
"""

FIELDS: dict[str, type] = {"low": Box, "normal": HalfSpace, "total": Simplex}
"""The kinds of sets, by a field that no other kind has."""


def checked_sets(name: str, value: Any) -> Sets:
    """Validate the `box` of an update, and return it as plain numbers and sets."""
    if isinstance(value, Mapping):
        if {*FIELDS} & {*value}:
            return _checked_set(name, value)
        value = [*value.items()]
    elif not is_row(value):
        return _checked_set(name, value)
    items = [*value]
    if not items:
        raise SettingError(f"{name} is empty; give a set for each layer, or one for all.")
    if all(isinstance(item, tuple) and item and isinstance(item[0], str) for item in items):
        return tuple((key, _checked_set(f"{name}[{key!r}]", item)) for key, item in items)
    return tuple(_checked_set(f"{name}[{layer}]", item) for layer, item in enumerate(items))


def _checked_set(name: str, value: Any) -> WeightSet:
    if isinstance(value, Mapping):  # the data of a set, as in a file
        kinds = [kind for field, kind in FIELDS.items() if field in value]
        value = kinds[0](**value) if kinds else value
    elif is_row(value) and getattr(value, "ndim", 1) > 0:
        value = Box(value)
    if isinstance(value, Box) and isinstance(value.top, float) and value.low == -value.top:
        return value.top
    if isinstance(value, Box | HalfSpace | Simplex):
        return value
    if callable(value) or isinstance(value, Mapping):
        raise SettingError(
            f"{name} must be a positive number, a Box, a HalfSpace or a Simplex, got "
            f"{quoted(value)}. The weights of the hidden units that project are computed from the "
            "set, which is impossible for a function."
        )
    return positive(name, value)


def _pairs(sets: Any) -> list[tuple[str, WeightSet]]:
    """Return pairs of the name of weights, or "" without names, and their set."""
    items = sets if isinstance(sets, tuple) else (sets,)
    return [item if isinstance(item, tuple) else ("", item) for item in items]


def sets_data(sets: Any) -> Any:
    """Return sets as JSON-ready data, which `checked_sets` reads."""
    if isinstance(sets, tuple):
        data = [(name, sets_data(one_set)) for name, one_set in _pairs(sets)]
        return dict(data) if data[0][0] else [one_set for _, one_set in data]
    return sets if isinstance(sets, float) else asdict(sets)


@lru_cache(maxsize=64)
def largest_weight(sets: Any) -> float:
    """Return the largest absolute value of a weight; in a rotated cube it exceeds the reach."""
    if isinstance(sets, tuple):
        return max(largest_weight(one_set) for _, one_set in _pairs(sets))
    if isinstance(sets, HalfSpace):
        faces = _cube(sets, (0, 1), each_row=False)
        return max(max(map(abs, pair)) for pair in _ends(faces))
    if isinstance(sets, Box):
        return max(map(abs, (*_flat(sets.low), *_flat(sets.top))))
    return sets.total if isinstance(sets, Simplex) else float(sets)


def sets_in_words(sets: Any) -> str:
    """Return a short description of sets, such as "box 2" or "boxes 2, 1, 0.5"."""
    texts = [
        f"{name} {one_set:g}" if isinstance(one_set, float) else f"{name} {one_set.in_words()}"
        for name, one_set in _pairs(sets)
    ]
    if isinstance(sets, tuple):
        return f"boxes {', '.join(text.strip() for text in texts)}"
    return f"box{texts[0]}" if isinstance(sets, float | Box) else texts[0].strip()


# The sets of the layers of one network.


def _float64(numbers: Sequence[Any]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


class Faces(NamedTuple):
    """The set low <= basis @ w <= high for the flattened weights w in some columns of a matrix.

    With `each_row` it applies to the weights of each row. Without a basis it is low <= w <= high.
    """

    columns: tuple[int, int]
    low: tuple[float, ...]
    high: tuple[float, ...]
    basis: tuple[tuple[float, ...], ...] | None = None
    each_row: bool = False

    def project(self, rows: Tensor) -> Tensor:
        """Return the matrix with these columns projected."""
        start, stop = self.columns
        block = rows[..., start:stop]
        low, high = (_float64(end).to(rows) for end in (self.low, self.high))
        if self.basis is None:
            shape = block.shape[-2:]
            projected = block.clamp(low.view(shape), high.view(shape))
        else:
            basis, vectors = _float64(self.basis).to(rows), block
            if not self.each_row:
                vectors = block.flatten(-2)
            coordinates = vectors @ basis.mT
            excess = coordinates - coordinates.clamp(low, high)
            projected = block - (excess @ basis).view(block.shape)
        matrix: Tensor = torch.cat([rows[..., :start], projected, rows[..., stop:]], dim=-1)
        return matrix

    def ends(self, n_rows: int) -> tuple[Tensor, Tensor]:
        """Return the smallest and the largest value of each of these weights."""
        start, stop = self.columns
        if self.basis is None:
            low, high = _float64(self.low), _float64(self.high)
        else:
            low, high = map(_float64, zip(*_ends(self), strict=True))
        if self.each_row:
            low, high = low.repeat(n_rows), high.repeat(n_rows)
        return low.view(n_rows, stop - start), high.view(n_rows, stop - start)


@final
@dataclass(frozen=True)
class LayerSet:
    """The set of a layer's matrix.

    If all weights have the same box, `bound` is its half-width, and there are no `faces`. A
    `simplex` (n, total) makes the first n entries of every row nonnegative with the sum `total`;
    the faces then apply to other columns.
    """

    regions: tuple[Region, ...]
    shape: tuple[int, int]
    bound: float | None = None
    faces: tuple[Faces, ...] = ()
    simplex: tuple[int, float] | None = None

    @cached_property
    def reach(self) -> float:
        """The largest absolute value of a weight."""
        return float(torch.cat(self.ends).abs().max()) if self.bound is None else self.bound

    @property
    def ends(self) -> tuple[Tensor, Tensor]:
        """The smallest and the largest value of each weight of the flattened matrix."""
        if self.bound is not None:
            high = torch.full(self.shape, self.bound, dtype=torch.float64)
            return -high.flatten(), high.flatten()
        low, high = torch.zeros(2, *self.shape, dtype=torch.float64)
        if self.simplex is not None:
            n_columns, high[:, :n_columns] = self.simplex
        for faces in self.faces:
            start, stop = faces.columns
            low[:, start:stop], high[:, start:stop] = faces.ends(self.shape[0])
        return low.flatten(), high.flatten()

    def project(self, weights: Parameters) -> Parameters:
        """Return the nearest weights in the set."""
        if self.bound is not None:
            return weights.clamp(-self.bound, self.bound)
        rows = weights.unflatten(-1, self.shape)
        for faces in self.faces:
            rows = faces.project(rows)
        if self.simplex is not None:
            n_columns, total = self.simplex
            block, others = rows[..., :n_columns], rows[..., n_columns:]
            counts = torch.arange(1, n_columns + 1).to(weights)
            sums = block.sort(-1, descending=True).values.cumsum(-1)
            theta = ((sums - total) / counts).amax(-1, keepdim=True)
            rows = torch.cat([(block - theta).clamp(min=0.0), others], dim=-1)
        flat: Tensor = rows.flatten(-2)
        return flat


@final
@dataclass(frozen=True)
class NetworkSets:
    """The sets of all layers of a network."""

    layers: tuple[LayerSet, ...]

    @property
    def bound(self) -> float | None:
        """The half-width of the box if all weights have the same one, otherwise None."""
        bounds = {layer.bound for layer in self.layers}
        return bounds.pop() if len(bounds) == 1 else None

    @property
    def reach(self) -> float:
        """The largest absolute value of a weight."""
        return max(layer.reach for layer in self.layers)

    def ends(self) -> tuple[Tensor, Tensor]:
        """Return the smallest and the largest value of each weight."""
        low, high = zip(*(layer.ends for layer in self.layers), strict=True)
        return torch.cat(low), torch.cat(high)

    def in_certificates(self) -> Any:
        """Return data for docs/certificates.md: one number, or the regions of each layer."""
        if self.bound is not None:
            return self.bound.hex()
        return [[_described(region) for region in layer.regions] for layer in self.layers]

    def project(self, weights: Parameters) -> Parameters:
        """Return the nearest weights in the sets."""
        if (bound := self.bound) is not None:
            return weights.clamp(-bound, bound)
        blocks = weights.split([layer.shape[0] * layer.shape[1] for layer in self.layers], dim=-1)
        projected = [layer.project(block) for layer, block in zip(self.layers, blocks, strict=True)]
        return torch.cat(projected, dim=-1)


@lru_cache(maxsize=64)
def sets_of(target: MLP, sets: Any) -> NetworkSets:
    """Return the sets of a network's layers; raise `SettingError` if they do not fit it."""
    regions = _regions_of(target, sets)
    return NetworkSets(tuple(map(_layer_set, target.matrix_shapes, regions)))


@final
@dataclass(frozen=True)
class Region:
    """Some columns of a layer's matrix, with their set."""

    name: str
    set: WeightSet
    columns: tuple[int, int]
    n_rows: int

    @property
    def is_bias(self) -> bool:
        return self.name.startswith("bias")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a normal or a box with an entry for each weight."""
        n_columns = self.columns[1] - self.columns[0]
        return (self.n_rows,) if self.is_bias else (self.n_rows, n_columns)


def _regions_of(target: MLP, sets: Any) -> list[tuple[Region, ...]]:
    """Return the regions of every layer's matrix, with their sets."""
    layers, shapes, by_name = range(1, target.depth + 1), target.matrix_shapes, dict(_pairs(sets))
    if "" in by_name:
        layer_sets = sets if isinstance(sets, tuple) else (sets,) * target.depth
        if len(layer_sets) != target.depth:
            raise SettingError(
                f"box has {len(layer_sets)} entries; expected {target.depth}, one for each layer."
            )
        return [
            (Region(f"weights_{j}", layer_set, (0, shape[1]), shape[0]),)
            for j, layer_set, shape in zip(layers, layer_sets, shapes, strict=True)
        ]
    kinds = ("weights", "bias") if target.biases else ("weights",)
    names = [f"{kind}_{j}" for kind in kinds for j in layers]
    unknown, missing = sorted({*by_name} - {*names}), sorted({*names} - {*by_name})
    if unknown or missing:
        name, problem = (unknown[0], "is unknown") if unknown else (missing[0], "is missing")
        raise SettingError(
            f"box: {name} {problem}; give a set for each of {', '.join(names)}, or a sequence with "
            "one for each layer."
        )
    regions = []
    for j, shape, width in zip(layers, shapes, target.widths, strict=False):
        columns = {f"weights_{j}": (0, width), f"bias_{j}": (width, width + 1)}
        present = [name for name in columns if name in by_name]
        regions.append(
            tuple(Region(name, by_name[name], columns[name], shape[0]) for name in present)
        )
    return regions


def _layer_set(shape: tuple[int, int], regions: tuple[Region, ...]) -> LayerSet:
    if len({region.set for region in regions}) == 1 and isinstance(regions[0].set, float):
        return LayerSet(regions, shape, regions[0].set)
    faces, simplex = list[Faces](), None
    for region in regions:
        weight_set, width = region.set, region.columns[1] - region.columns[0]
        if isinstance(weight_set, HalfSpace):
            faces.append(_faces_of_half_space(region, weight_set))
        elif not isinstance(weight_set, Simplex):
            box = weight_set if isinstance(weight_set, Box) else Box(weight_set)
            faces.append(_faces_of_box(region, box))
        elif region.is_bias or width > MOST_OF_SIMPLEX:
            raise SettingError(
                f"{region.name} cannot be on a Simplex, which is for rows of weights with at most "
                f"{MOST_OF_SIMPLEX} entries, because a network must sort them. Give a Box."
            )
        elif width > 2:
            simplex = (width, weight_set.total)
        else:
            faces.append(_edge(region, weight_set.total))
    return LayerSet(regions, shape, None, tuple(faces), simplex)


def _faces_of_box(region: Region, box: Box) -> Faces:
    ends = list[tuple[float, ...]]()
    for numbers in (box.low, box.top):
        shape = _shape("Box", numbers)
        if shape not in ((), region.shape):
            raise SettingError(
                f"{region.name}: the Box has shape {shape}; expected {region.shape}, the shape of "
                "the weights."
            )
        ends.append(tuple(_flat(numbers)) if shape else (numbers,) * prod(region.shape))
    return Faces(region.columns, ends[0], ends[1])


def _faces_of_half_space(region: Region, half_space: HalfSpace) -> Faces:
    shape = _shape("normal", half_space.normal)
    if shape not in (region.shape, region.shape[1:]) or not shape:
        rows = "" if region.is_bias else f", or {region.shape[1:]} for each row"
        raise SettingError(
            f"{region.name}: the normal has shape {shape}; expected {region.shape} for all "
            f"weights{rows}."
        )
    return _cube(half_space, region.columns, each_row=shape != region.shape)


def _cube(half_space: HalfSpace, columns: tuple[int, int], *, each_row: bool) -> Faces:
    """Return the faces of a half-space in its cube; the first is that of the normal."""
    a, size = _flat(half_space.normal), _norm(_flat(half_space.normal))
    largest, reach = max(map(abs, a)), half_space.reach
    a, size = [entry / largest for entry in a], size / largest
    pivot = next(index for index, entry in enumerate(a) if abs(entry) == 1.0)
    # The Householder reflection of the module's docstring.
    v = [*a]
    v[pivot] += size if a[pivot] > 0 else -size
    factor = 1 / (size * (size + 1.0))
    others = (
        tuple(float(i == j) - v[i] * v[j] * factor for j in range(len(a)))
        for i in range(len(a))
        if i != pivot
    )
    basis = (tuple(entry / size for entry in a), *others)
    high = (min(half_space.offset / largest / size, reach), *[reach] * (len(a) - 1))
    return Faces(columns, (-reach,) * len(a), high, basis, each_row)


def _edge(region: Region, total: float) -> Faces:
    """Return the simplex of rows of one or two weights as a box with a fixed sum."""
    if region.shape[1] == 1:
        return _faces_of_box(region, Box(total, total))
    half, end = sqrt(0.5), total * sqrt(0.5)
    return Faces(region.columns, (end, -end), (end, end), ((half, half), (half, -half)), True)


ROOM_FOR_ROUNDING = 2.0**-40
"""Relative margin in the ends of a weight for the rounding of faces and basis."""


def _ends(faces: Faces) -> list[tuple[float, float]]:
    """Return the smallest and the largest value of each weight of a rotated box."""
    ends = []
    for column in zip(*(faces.basis or ()), strict=True):
        nonzero = [row for row in zip(column, faces.low, faces.high, strict=True) if row[0]]
        pairs = [sorted((entry * low, entry * high)) for entry, low, high in nonzero]
        slack = ROOM_FOR_ROUNDING * fsum(max(abs(low), abs(high)) for _, low, high in nonzero)
        if [abs(entry) for entry, _, _ in nonzero] == [1.0]:  # the weight is an axis: no rounding
            slack = 0.0
        low, high = (fsum(pair[end] for pair in pairs) for end in (0, 1))
        ends.append((low - slack, high + slack))
    return ends


def _described(region: Region) -> dict[str, Any]:
    """Describe a region as docs/certificates.md defines, with exact numbers."""
    weight_set, n_rows = region.set, region.n_rows
    columns: dict[str, Any] = {"columns": [*region.columns]}
    if isinstance(weight_set, Simplex):
        return {"kind": "simplex", **columns, "total": weight_set.total.hex()}
    if isinstance(weight_set, HalfSpace):
        each_row = _shape("normal", weight_set.normal) != region.shape
        numbers = {"normal": _hex_rows(_flat(weight_set.normal), 1 if each_row else n_rows)}
        ends = {"offset": weight_set.offset.hex(), "reach": weight_set.reach.hex()}
        return {"kind": "half-space", **columns, **numbers, **ends, "each_row": each_row}
    faces = _faces_of_box(region, weight_set if isinstance(weight_set, Box) else Box(weight_set))
    rows = {end: _hex_rows(getattr(faces, end), n_rows) for end in ("low", "high")}
    return {"kind": "box", **columns, **rows}


def _hex_rows(numbers: Sequence[float], n_rows: int) -> list[list[str]]:
    """Return numbers as exact binary fractions, in rows of equal lengths."""
    texts = [number.hex() for number in numbers]
    width = len(texts) // n_rows
    return [texts[row * width : (row + 1) * width] for row in range(n_rows)]
