r"""The closed convex sets that weights are projected onto after every step: boxes and polyhedra.

A few hidden units project exactly onto a box in an orthonormal basis. With the rows q of `Q` as the
basis and the faces low <= <q, w> <= high,

    P(w) = w - Q^T (y - clip(y, low, high)),    y = Q w.

With Q = I it is a box of intervals. A half-space {<a, w> <= c} has a / |a| as its first row, and c
/ |a| as a face. A transformer is made for weights that are bounded, so the half-space is cut to a
cube: `reach` is the other face of the first row, and both faces of all other rows. These are the
rows of the reflection that turns the axis of the largest a_i into a,

    Q_ij = [i = j] - v_i v_j / (|a| (|a| + |a_p|)),    v = a + sign(a_p) |a| e_p,    i != p,

so that axes on which a is 0 stay as they are. Two entries on the simplex are such a box as well.
More entries need their order: P(w) = max(w - theta, 0), with the mean excess of the j largest
entries theta = max_j (s_1 + .. + s_j - total) / j.

All these maps are projections onto closed convex sets. So they bring no two points further apart in
the 2-norm.
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
"""One number, or one for each weight: an array, or nested rows, which become tuples."""

MOST_OF_SIMPLEX = 8
"""The longest row that is projected onto a simplex."""

MOST_OF_HALF_SPACE = 512
"""The most weights of one half-space: a hidden unit for each of them reads all of them."""


def _numbers(name: str, value: Any) -> Numbers:
    """Return finite numbers, with the nesting of the argument."""
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
    """The weights between `low` and `high`; `Box(b)` holds those from -b to b.

    Args:
        low: the smallest weight, or one for each weight; alone, the largest size.
        high: the largest weight, or one for each weight. Where it equals `low` the weight is fixed.

    Raises:
        SettingError: if a number is not finite, or no weight lies between the two.

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
        lows, highs = (part * (n_pairs // len(part)) for part in (lows, highs))
        for place, (least, most) in enumerate(zip(lows, highs, strict=True)):
            if least > most:
                raise SettingError(
                    f"Box is empty: weight {place} would lie between {least:g} and {most:g}. Give "
                    "a low that is not above the high."
                )
        if not any(lows) and not any(highs):
            raise SettingError("Box holds nothing but 0; give one in which a weight can change.")
        set_fields(self, low=low, high=high)

    @property
    def top(self) -> Numbers:
        """The largest weight; `high` is never None in a box that is made."""
        return self.low if self.high is None else self.high

    def in_words(self) -> str:
        """Return the set in a few words.

        Returns:
            The words.

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

    The cube is turned so that the normal is one of its axes: a layer of hidden units then projects
    exactly. Axes on which the normal is 0 stay as they are. Where training stays inside the cube,
    the set is the half-space itself.

    Args:
        normal: a number for each weight of a layer; a row of numbers holds for every row.
        offset: the largest <normal, w>.
        reach: half the width of the cube.

    Raises:
        SettingError: if a number is not finite, the normal is 0, or the half-space misses the cube.

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
                f"normal has {len(_flat(normal)):,} entries; half-spaces have at most "
                f"{MOST_OF_HALF_SPACE}, because a hidden unit for each weight reads all of them. "
                "Give one row, which holds for every row of a layer."
            )
        set_fields(self, normal=normal, offset=offset, reach=reach)
        size = _norm(_flat(normal))
        if not -reach * size < offset:
            raise SettingError(
                f"HalfSpace is empty: its weights would have <normal, w> <= {offset:g}, and that "
                f"is at least {-reach * size:g} within reach={reach:g}. Give a larger reach."
            )

    def in_words(self) -> str:
        """Return the set in a few words.

        Returns:
            The words.

        Example:
            >>> import icgd
            >>> icgd.HalfSpace((1.0, -1.0, 0.0), 0.0, reach=1.0).in_words()
            'half-space of 3 weights within 1'
        """
        return f"half-space of {len(_flat(self.normal))} weights within {self.reach:g}"


@final
@dataclass(frozen=True)
class Simplex:
    """The rows of weights that are not negative and add up to `total`; up to 8 weights a row.

    Args:
        total: what each row adds up to.

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
        """Return the set in a few words.

        Returns:
            The words.

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

An update holds them as a set, a tuple of sets, or a tuple of names with sets.
"""

FIELDS: dict[str, type] = {"low": Box, "normal": HalfSpace, "total": Simplex}
"""The kinds of set, by a field that no other kind has."""


def checked_sets(name: str, value: Any) -> Sets:
    """Validate the `box` of an update, and return it as plain numbers and sets."""
    if isinstance(value, Mapping):
        if {*FIELDS} & {*value}:
            return _checked_set(name, value)
        value = [*value.items()]
    elif not is_row(value):
        return _checked_set(name, value)
    parts = [*value]
    if not parts:
        raise SettingError(f"{name} is empty; give a set for each layer, or one for all.")
    if all(isinstance(part, tuple) and part and isinstance(part[0], str) for part in parts):
        return tuple((key, _checked_set(f"{name}[{key!r}]", part)) for key, part in parts)
    return tuple(_checked_set(f"{name}[{place}]", part) for place, part in enumerate(parts))


def _checked_set(name: str, value: Any) -> WeightSet:
    if isinstance(value, Mapping):  # the data of a set
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
            f"{quoted(value)}. The hidden units that project are written down from the set, so it "
            "must be one that they project onto exactly; a function cannot say which set it is."
        )
    return positive(name, value)


def _pairs(sets: Any) -> list[tuple[str, WeightSet]]:
    """Return each set with the name of its weights, or with no name."""
    parts = sets if isinstance(sets, tuple) else (sets,)
    return [part if isinstance(part, tuple) else ("", part) for part in parts]


def sets_data(sets: Any) -> Any:
    """Return sets as JSON-ready data, which `checked_sets` reads."""
    if isinstance(sets, tuple):
        data = [(name, sets_data(part)) for name, part in _pairs(sets)]
        return dict(data) if data[0][0] else [part for _, part in data]
    return sets if isinstance(sets, float) else asdict(sets)


@lru_cache(maxsize=64)
def largest_weight(sets: Any) -> float:
    """Return the largest absolute weight; in a turned cube it exceeds the reach."""
    if isinstance(sets, tuple):
        return max(largest_weight(part) for _, part in _pairs(sets))
    if isinstance(sets, HalfSpace):
        faces = _cube(sets, (0, 1), each_row=False)
        return max(max(map(abs, pair)) for pair in _ends(faces))
    if isinstance(sets, Box):
        return max(map(abs, (*_flat(sets.low), *_flat(sets.top))))
    return sets.total if isinstance(sets, Simplex) else float(sets)


def sets_in_words(sets: Any) -> str:
    """Return sets in a few words, such as "box 2" or "boxes 2, 1, 0.5"."""
    words = [
        f"{name} {part:g}" if isinstance(part, float) else f"{name} {part.in_words()}"
        for name, part in _pairs(sets)
    ]
    if isinstance(sets, tuple):
        return f"boxes {', '.join(word.strip() for word in words)}"
    return f"box{words[0]}" if isinstance(sets, float | Box) else words[0].strip()


# The sets of the layers of one network.


def _float64(numbers: Sequence[Any]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


class Faces(NamedTuple):
    """low <= basis @ w <= high for the weights w in some columns of a matrix, taken flat.

    With `each_row` it is so for the weights of each row. Without a basis it is low <= w <= high.
    """

    columns: tuple[int, int]
    low: tuple[float, ...]
    high: tuple[float, ...]
    basis: tuple[tuple[float, ...], ...] | None = None
    each_row: bool = False

    def project(self, rows: Tensor) -> Tensor:
        """Return the matrix with these columns projected."""
        start, stop = self.columns
        part = rows[..., start:stop]
        low, high = (_float64(end).to(rows) for end in (self.low, self.high))
        if self.basis is None:
            shape = part.shape[-2:]
            after = part.clamp(low.view(shape), high.view(shape))
        else:
            basis, vectors = _float64(self.basis).to(rows), part
            if not self.each_row:
                vectors = part.flatten(-2)
            along = vectors @ basis.mT
            after = part - ((along - along.clamp(low, high)) @ basis).view(part.shape)
        found: Tensor = torch.cat([rows[..., :start], after, rows[..., stop:]], dim=-1)
        return found

    def ends(self, n_rows: int) -> tuple[Tensor, Tensor]:
        """Return the smallest and the largest of each of these weights."""
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

    `bound` is the half-width of a box that is alike for all weights; then there are no `faces`.
    With a `simplex` the first entries of every row, so many of them, are not negative and add up
    to a total; the faces are about other columns.
    """

    regions: tuple[Region, ...]
    shape: tuple[int, int]
    bound: float | None = None
    faces: tuple[Faces, ...] = ()
    simplex: tuple[int, float] | None = None

    @cached_property
    def reach(self) -> float:
        """The largest size of a weight."""
        return float(torch.cat(self.ends).abs().max()) if self.bound is None else self.bound

    @property
    def ends(self) -> tuple[Tensor, Tensor]:
        """The smallest and the largest of each weight, of the matrix taken flat."""
        if self.bound is not None:
            high = torch.full(self.shape, self.bound, dtype=torch.float64)
            return -high.flatten(), high.flatten()
        low, high = torch.zeros(2, *self.shape, dtype=torch.float64)
        if self.simplex is not None:
            n_columns, high[:, :n_columns] = self.simplex
        for part in self.faces:
            start, stop = part.columns
            low[:, start:stop], high[:, start:stop] = part.ends(self.shape[0])
        return low.flatten(), high.flatten()

    def project(self, weights: Parameters) -> Parameters:
        """Return the nearest weights in the set."""
        if self.bound is not None:
            return weights.clamp(-self.bound, self.bound)
        rows = weights.unflatten(-1, self.shape)
        for part in self.faces:
            rows = part.project(rows)
        if self.simplex is not None:
            n_columns, total = self.simplex
            own, others = rows[..., :n_columns], rows[..., n_columns:]
            counts = torch.arange(1, n_columns + 1).to(weights)
            sums = own.sort(-1, descending=True).values.cumsum(-1)
            theta = ((sums - total) / counts).amax(-1, keepdim=True)
            rows = torch.cat([(own - theta).clamp(min=0.0), others], dim=-1)
        flat: Tensor = rows.flatten(-2)
        return flat


@final
@dataclass(frozen=True)
class NetworkSets:
    """The sets of all layers of a network."""

    layers: tuple[LayerSet, ...]

    @property
    def bound(self) -> float | None:
        """The half-width of a box that is alike for all weights, or None."""
        bounds = {layer.bound for layer in self.layers}
        return bounds.pop() if len(bounds) == 1 else None

    @property
    def reach(self) -> float:
        """The largest size of a weight."""
        return max(layer.reach for layer in self.layers)

    def ends(self) -> tuple[Tensor, Tensor]:
        """Return the smallest and the largest of each weight."""
        low, high = zip(*(layer.ends for layer in self.layers), strict=True)
        return torch.cat(low), torch.cat(high)

    def in_certificates(self) -> Any:
        """Return what docs/certificates.md describes: one number, or the regions of each layer."""
        if self.bound is not None:
            return self.bound.hex()
        return [[_described(region) for region in layer.regions] for layer in self.layers]

    def project(self, weights: Parameters) -> Parameters:
        """Return the nearest weights in the sets."""
        if (bound := self.bound) is not None:
            return weights.clamp(-bound, bound)
        parts = weights.split([layer.shape[0] * layer.shape[1] for layer in self.layers], dim=-1)
        projected = [layer.project(part) for layer, part in zip(self.layers, parts, strict=True)]
        return torch.cat(projected, dim=-1)


@lru_cache(maxsize=64)
def sets_of(target: MLP, sets: Any) -> NetworkSets:
    """Return the sets of the layers of a network; `SettingError` if they do not suit it."""
    regions = _regions_of(target, sets)
    return NetworkSets(tuple(map(_layer_set, target.matrix_shapes, regions)))


@final
@dataclass(frozen=True)
class Region:
    """The weights of a layer that have a set of their own: some columns of its matrix."""

    name: str
    set: WeightSet
    columns: tuple[int, int]
    n_rows: int

    @property
    def is_bias(self) -> bool:
        return self.name.startswith("bias")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that a normal or a box for each weight has."""
        n_columns = self.columns[1] - self.columns[0]
        return (self.n_rows,) if self.is_bias else (self.n_rows, n_columns)


def _regions_of(target: MLP, sets: Any) -> list[tuple[Region, ...]]:
    """Return the parts of every layer's matrix that have a set of their own."""
    layers, shapes, by_name = range(1, target.depth + 1), target.matrix_shapes, dict(_pairs(sets))
    if "" in by_name:
        each = sets if isinstance(sets, tuple) else (sets,) * target.depth
        if len(each) != target.depth:
            raise SettingError(
                f"box has {len(each)} entries; expected {target.depth}, one for each layer."
            )
        return [
            (Region(f"weights_{j}", part, (0, shape[1]), shape[0]),)
            for j, part, shape in zip(layers, each, shapes, strict=True)
        ]
    kinds = ("weights", "bias") if target.biases else ("weights",)
    names = [f"{kind}_{j}" for kind in kinds for j in layers]
    unknown, missing = sorted({*by_name} - {*names}), sorted({*names} - {*by_name})
    if unknown or missing:
        name, why = (unknown[0], "is no name of weights") if unknown else (missing[0], "is missing")
        raise SettingError(
            f"box: {name} {why}; give a set for each of {', '.join(names)}, or one for each "
            "layer in a row."
        )
    found = []
    for j, shape, width in zip(layers, shapes, target.widths, strict=False):
        columns = {f"weights_{j}": (0, width), f"bias_{j}": (width, width + 1)}
        own = [name for name in columns if name in by_name]
        found.append(tuple(Region(name, by_name[name], columns[name], shape[0]) for name in own))
    return found


def _layer_set(shape: tuple[int, int], regions: tuple[Region, ...]) -> LayerSet:
    if len({region.set for region in regions}) == 1 and isinstance(regions[0].set, float):
        return LayerSet(regions, shape, regions[0].set)
    faces, simplex = list[Faces](), None
    for region in regions:
        part, width = region.set, region.columns[1] - region.columns[0]
        if isinstance(part, HalfSpace):
            faces.append(_faces_of_half_space(region, part))
        elif not isinstance(part, Simplex):
            faces.append(_faces_of_box(region, part if isinstance(part, Box) else Box(part)))
        elif region.is_bias or width > MOST_OF_SIMPLEX:
            raise SettingError(
                f"{region.name} cannot be on a Simplex: that is for rows of weights, of at most "
                f"{MOST_OF_SIMPLEX} entries, which a network sorts. Give a Box."
            )
        elif width > 2:
            simplex = (width, part.total)
        else:
            faces.append(_edge(region, part.total))
    return LayerSet(regions, shape, None, tuple(faces), simplex)


def _faces_of_box(region: Region, box: Box) -> Faces:
    ends = list[tuple[float, ...]]()
    for numbers in (box.low, box.top):
        shape = _shape("Box", numbers)
        if shape not in ((), region.shape):
            raise SettingError(
                f"{region.name}: the Box has shape {shape}; expected {region.shape}, that of the "
                "weights."
            )
        ends.append(tuple(_flat(numbers)) if shape else (numbers,) * prod(region.shape))
    return Faces(region.columns, ends[0], ends[1])


def _faces_of_half_space(region: Region, part: HalfSpace) -> Faces:
    shape = _shape("normal", part.normal)
    if shape not in (region.shape, region.shape[1:]) or not shape:
        rows = "" if region.is_bias else f", or {region.shape[1:]} for each row"
        raise SettingError(
            f"{region.name}: the normal has shape {shape}; expected {region.shape} for all "
            f"weights{rows}."
        )
    return _cube(part, region.columns, each_row=shape != region.shape)


def _cube(part: HalfSpace, columns: tuple[int, int], *, each_row: bool) -> Faces:
    """Return the faces of a half-space in its cube, that of the normal first."""
    a, size = _flat(part.normal), _norm(_flat(part.normal))
    largest, reach = max(map(abs, a)), part.reach
    a, size = [entry / largest for entry in a], size / largest
    pivot = next(place for place, entry in enumerate(a) if abs(entry) == 1.0)
    v = [*a]
    v[pivot] += size if a[pivot] > 0 else -size
    share = 1 / (size * (size + 1.0))
    others = (
        tuple(float(i == j) - v[i] * v[j] * share for j in range(len(a)))
        for i in range(len(a))
        if i != pivot
    )
    basis = (tuple(entry / size for entry in a), *others)
    high = (min(part.offset / largest / size, reach), *[reach] * (len(a) - 1))
    return Faces(columns, (-reach,) * len(a), high, basis, each_row)


def _edge(region: Region, total: float) -> Faces:
    """Return the simplex of rows of one or two weights as a box: their sum is fixed."""
    if region.shape[1] == 1:
        return _faces_of_box(region, Box(total, total))
    half, end = sqrt(0.5), total * sqrt(0.5)
    return Faces(region.columns, (end, -end), (end, end), ((half, half), (half, -half)), True)


ROOM_FOR_ROUNDING = 2.0**-40
"""Relative room in the ends of a weight for the rounding of faces and rows."""


def _ends(faces: Faces) -> list[tuple[float, float]]:
    """Return the smallest and the largest of each weight of a row of the basis."""
    found = []
    for column in zip(*(faces.basis or ()), strict=True):
        own = [row for row in zip(column, faces.low, faces.high, strict=True) if row[0]]
        pairs = [sorted((entry * low, entry * high)) for entry, low, high in own]
        slack = ROOM_FOR_ROUNDING * fsum(max(abs(low), abs(high)) for _, low, high in own)
        if [abs(entry) for entry, _, _ in own] == [1.0]:  # the weight is an axis: exact
            slack = 0.0
        low, high = (fsum(pair[end] for pair in pairs) for end in (0, 1))
        found.append((low - slack, high + slack))
    return found


def _described(region: Region) -> dict[str, Any]:
    """Describe a region as docs/certificates.md defines, with exact numbers."""
    part, n_rows = region.set, region.n_rows
    found: dict[str, Any] = {"columns": [*region.columns]}
    if isinstance(part, Simplex):
        return {"kind": "simplex", **found, "total": part.total.hex()}
    if isinstance(part, HalfSpace):
        each_row = _shape("normal", part.normal) != region.shape
        numbers = {"normal": _hex_rows(_flat(part.normal), 1 if each_row else n_rows)}
        ends = {"offset": part.offset.hex(), "reach": part.reach.hex()}
        return {"kind": "half-space", **found, **numbers, **ends, "each_row": each_row}
    faces = _faces_of_box(region, part if isinstance(part, Box) else Box(part))
    rows = {end: _hex_rows(getattr(faces, end), n_rows) for end in ("low", "high")}
    return {"kind": "box", **found, **rows}


def _hex_rows(numbers: Sequence[float], n_rows: int) -> list[list[str]]:
    """Return numbers as exact binary fractions, in rows of equal lengths."""
    texts = [number.hex() for number in numbers]
    width = len(texts) // n_rows
    return [texts[row * width : (row + 1) * width] for row in range(n_rows)]
