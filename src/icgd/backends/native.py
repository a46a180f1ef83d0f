"""Compile loops with numba, which comes with the extra `fast`: import this module only if needed.

Sizes and strides of matrix products are constants of the machine code, which keeps a tile of the
result in registers. Fused multiplications and additions (`contract`) round once instead of twice,
and every sum runs over its terms in their order: error bounds hold for any order of sums, with or
without the rounding in between. No other freedom of floating-point arithmetic is taken.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Any, NamedTuple

import numba
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

AHEAD = 4
"""How many terms of a sum each iteration of a loop adds (loop unrolling)."""


@cache
def _lanes() -> int:
    """Return how many float64 numbers a register holds."""
    return 8 if binding.get_host_cpu_features().get("avx512f") else 4


class Sizes(NamedTuple):
    """A product out[i, j] = sum_k left[i, k] right[k, j]; right and out have unit column strides.

    The sum may be scaled and added to a base of the strides of `out`.
    """

    rows: int
    depth: int
    columns: int
    left: tuple[int, int]
    right: int
    out: int
    is_added: bool = False
    is_scaled: bool = False


def product(*sizes: Any) -> Any:
    """Return a function of (out, first entry, left, first, right, first, base, first, scale)."""
    shape = Sizes(*sizes)

    @intrinsic  # type: ignore[untyped-decorator]
    def multiply(
        typing: Any, out: Any, o: Any, a: Any, p: Any, b: Any, q: Any, c: Any, r: Any, s: Any
    ) -> Any:
        signature = types.void(out, types.intp, a, types.intp, b, types.intp, c, types.intp, s)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointers = []
            for place in range(0, 8, 2):
                array = context.make_array(signature.args[place])(context, builder, args[place])
                pointers.append(builder.gep(array.data, [args[place + 1]]))
            _Product(builder, shape, pointers, args[8]).generate()
            return context.get_dummy_value()

        return signature, generate

    return multiply


class _Product:
    """Emits LLVM code for a product, tile by tile."""

    def __init__(self, builder: Any, shape: Sizes, pointers: list[Any], scale: Any) -> None:
        self.builder, self.shape, self.scale = builder, shape, scale
        self.out, self.left, self.right, self.base = pointers
        self.real = scale.type
        self.n_bytes = 4 if isinstance(self.real, ir.FloatType) else 8

    def generate(self) -> None:
        height = _lanes()  # as many rows as lanes: 8 tiles of two vectors hide the latency of sums
        for first, n_vectors, lanes in self._strips():
            n_whole, rest = divmod(self.shape.rows, height)
            with self._loop(n_whole) as loop:
                row = self.builder.mul(loop.index, _whole(height))
                self._tile(row, height, first, n_vectors, lanes)
            if rest:
                self._tile(_whole(n_whole * height), rest, first, n_vectors, lanes)

    def _strips(self) -> Iterator[tuple[Any, int, int]]:
        """Yield the columns of tiles: (the first one, number of vectors, lanes of a vector)."""
        done, lanes = 0, _lanes() * 8 // self.n_bytes
        n_whole = self.shape.columns // (2 * lanes)
        if n_whole:
            with self._loop(n_whole) as loop:
                yield self.builder.mul(loop.index, _whole(2 * lanes)), 2, lanes
            done = n_whole * 2 * lanes
        while lanes:
            if self.shape.columns - done >= lanes:
                yield _whole(done), 1, lanes
                done += lanes
            else:
                lanes //= 2

    def _tile(self, row: Any, n_rows: int, column: Any, n_vectors: int, lanes: int) -> None:
        builder, shape = self.builder, self.shape
        kind = ir.VectorType(self.real, lanes) if lanes > 1 else self.real
        name = f"llvm.fmuladd.{f'v{lanes}' if lanes > 1 else ''}f{8 * self.n_bytes}"
        add = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(kind, [kind] * 3), name
        )
        sums = [
            [cgutils.alloca_once(builder, kind) for _ in range(n_vectors)] for _ in range(n_rows)
        ]
        for line in sums:
            for place in line:
                builder.store(ir.Constant(kind, None if lanes > 1 else 0.0), place)
        top = builder.mul(row, _whole(shape.left[0]))

        def add_terms(k: Any, n_terms: int) -> None:
            for ahead in range(n_terms):
                term = builder.add(k, _whole(ahead))
                start = builder.add(builder.mul(term, _whole(shape.right)), column)
                right = [self._load(self.right, start, v * lanes, kind) for v in range(n_vectors)]
                along = builder.add(top, builder.mul(term, _whole(shape.left[1])))
                for i, line in enumerate(sums):
                    entry = self._load(self.left, along, i * shape.left[0], self.real)
                    left = self._spread(entry, kind, lanes)
                    for vector, place in zip(right, line, strict=True):
                        builder.store(builder.call(add, [left, vector, builder.load(place)]), place)

        n_whole, rest = divmod(shape.depth, AHEAD)
        with self._loop(n_whole) as loop:
            add_terms(builder.mul(loop.index, _whole(AHEAD)), AHEAD)
        add_terms(_whole(n_whole * AHEAD), rest)
        scale = self._spread(self.scale, kind, lanes)
        start = builder.add(builder.mul(row, _whole(shape.out)), column)
        for i, line in enumerate(sums):
            for v, place in enumerate(line):
                total, entry = builder.load(place), i * shape.out + v * lanes
                if shape.is_added:
                    before = self._load(self.base, start, entry, kind)
                    total = builder.call(add, [scale, total, before])
                elif shape.is_scaled:
                    total = builder.fmul(scale, total)
                builder.store(total, self._at(self.out, start, entry, kind), align=self.n_bytes)

    def _loop(self, n_times: int) -> Any:
        return cgutils.for_range(self.builder, _whole(n_times), intp=ir.IntType(64))

    def _at(self, array: Any, start: Any, more: int, kind: Any) -> Any:
        entry = self.builder.gep(array, [self.builder.add(start, _whole(more))])
        return self.builder.bitcast(entry, kind.as_pointer())

    def _load(self, array: Any, start: Any, more: int, kind: Any) -> Any:
        return self.builder.load(self._at(array, start, more, kind), align=self.n_bytes)

    def _spread(self, number: Any, kind: Any, lanes: int) -> Any:
        if lanes == 1:
            return number
        lane = ir.IntType(32)
        first = self.builder.insert_element(ir.Constant(kind, ir.Undefined), number, lane(0))
        mask = ir.Constant(ir.VectorType(lane, lanes), [0] * lanes)
        return self.builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), mask)


def _whole(number: int) -> Any:
    return ir.Constant(ir.IntType(64), number)


@intrinsic  # type: ignore[untyped-decorator]
def bits_of(typing: Any, number: Any) -> Any:
    """Return the bit pattern of a float as an integer."""
    integer = types.int64 if number == types.float64 else types.int32

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(signature.return_type))

    return integer(number), generate


_OPTIONS: dict[str, Any] = {"fastmath": {"contract"}, "error_model": "numpy", "nogil": True}

inlined = numba.njit(**_OPTIONS)
"""The decorator of functions that `run` calls."""


def _folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "icgd" / "loops"


def compiled(source: str, *args: Any) -> Any:
    """Return the function `run` of a module with this source, compiled for such arguments.

    The machine code is cached on disk beside the source, under a hash of everything it depends on.
    Without a writable folder every process compiles it anew.
    """
    with _LOCK:
        if source not in _COMPILED:
            kinds = tuple(map(numba.typeof, args))
            try:
                run = numba.njit(cache=True, **_OPTIONS)(_module(source).run)
                run.compile(kinds)
            except (OSError, RuntimeError):  # no folder for the source or for numba's cache
                scope: dict[str, Any] = {}
                exec(source, scope)
                run = numba.njit(**_OPTIONS)(scope["run"])
                run.compile(kinds)
            _COMPILED[source] = run
        return _COMPILED[source]


_COMPILED: dict[str, Any] = {}
_LOCK = Lock()


def _module(source: str) -> ModuleType:
    """Import the source from a file in the cache; raise `OSError` if none can be written."""
    compiler = Path(__file__).read_bytes()
    digest = sha256(b"".join((compiler, source.encode(), numba.__version__.encode()))).hexdigest()
    path = _folder() / f"icgd_loops_{digest[:32]}.py"
    if not path.is_file() or path.read_text(encoding="utf-8") != source:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=path.parent, delete=False
        ) as written:
            written.write(source)
        Path(written.name).replace(path)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise OSError(path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
