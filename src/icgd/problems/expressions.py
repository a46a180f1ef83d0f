"""Expressions of one or two variables as trees: read, simplified, differentiated, computed.

Nothing is evaluated while a text is read. Python's own `ast` splits it, and a whitelist turns what
it finds into nodes: numbers, variables, sums, products, powers and calls of known functions.
Numbers are exact: 0.1 is one tenth.

The functions that make nodes put equal trees into one form, whatever way they were written, and
recognise forms that lose digits or overflow. log(1 + exp(u)) becomes softplus(u), 1 - tanh(u)**2
becomes sech2(u), exp(u) - 1 becomes expm1(u). Derivatives are taken of these forms, so that they
are as stable.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from hashlib import blake2b
from math import pi

import torch
from torch import Tensor

from icgd.errors import SettingError, UnknownNameError, quoted

MOST_CHARACTERS, MOST_CANONICAL = 500, 4000
"""The longest text that a user may give, and the longest text of a tree."""

MOST_DEEP = 100
"""The most levels of parentheses and operators in a text."""

MOST_NESTED = 16
"""The most calls and powers inside each other: every one multiplies the terms of a derivative."""

LARGEST_EXPONENT = 64
"""Largest absolute exponent of a power."""

MOST_BITS, LARGEST_NUMBER = 4096, 10**300
"""Most bits of a numerator or denominator; largest size of a number and of its reciprocal."""

MOST_PARTS = 20_000
"""The most different nodes of a tree or one of its derivatives."""

NUMBER, CONSTANT, VARIABLE, SUM, PRODUCT, POWER, CALL = (
    *("number", "constant", "variable", "sum", "product", "power", "call"),
)
_RANKS = {NUMBER: 0, CONSTANT: 1, VARIABLE: 2, POWER: 3, CALL: 4, PRODUCT: 5, SUM: 6}


@dataclass(frozen=True, eq=False)
class Node:
    """A node of a tree: a number, pi, a variable, or a sum, product, power or call of its parts.

    `value` is the number, the name of the variable or of the function, or the exponent of a power.
    Nodes are made by `number`, `add`, `multiply`, `power` and `call` alone, and equal if they have
    the same digest.
    """

    kind: str
    parts: tuple[Node, ...] = ()
    value: Fraction | str = ""

    @cached_property
    def digest(self) -> bytes:
        """A hash of the tree, by which trees are compared."""
        content = f"{self.kind} {self.value} ".encode() + b"".join(p.digest for p in self.parts)
        return blake2b(content, digest_size=16).digest()

    @cached_property
    def place(self) -> tuple[int, int, bytes]:
        """The sort key of the terms of a sum and the factors of a product."""
        return (_RANKS[self.kind], sum(1 + part.place[1] for part in self.parts), self.digest)

    @cached_property
    def nesting(self) -> int:
        """How many calls and powers are inside each other."""
        return (self.kind in (CALL, POWER)) + max((part.nesting for part in self.parts), default=0)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def number(self) -> Fraction:
        """The value of a number, or the exponent of a power."""
        if not isinstance(self.value, Fraction):
            raise TypeError(f"{self.kind} {self.value} has no number")
        return self.value

    @property
    def name(self) -> str:
        """The name of a variable or of the function that is called."""
        return str(self.value)

    def calls(self, function: str) -> bool:
        """Return whether this is a call of `function`."""
        return self.kind == CALL and self.value == function


# Nodes.


def number(value: Fraction | int) -> Node:
    """Make a number."""
    fraction = Fraction(value)
    if max(fraction.numerator.bit_length(), fraction.denominator.bit_length()) > MOST_BITS:
        raise SettingError(f"A number in it takes more than {MOST_BITS} bits.")
    if fraction and not Fraction(1, LARGEST_NUMBER) <= abs(fraction) <= LARGEST_NUMBER:
        raise SettingError(
            "A number in it lies outside the range of floats: its size must be between 1e-300 and "
            "1e300."
        )
    return Node(NUMBER, (), fraction)


ZERO, ONE, _ONE = number(0), number(1), Fraction(1)
PI = Node(CONSTANT, (), "pi")


def variable(name: str = "x") -> Node:
    """Make a variable."""
    return Node(VARIABLE, (), name)


X = variable()


def split(node: Node) -> tuple[Fraction, Node]:
    """Return a term as a rational factor and the rest."""
    if node.kind == NUMBER:
        return node.number, ONE
    if node.kind == PRODUCT and node.parts[0].kind == NUMBER:
        return node.parts[0].number, multiply(*node.parts[1:])
    return Fraction(1), node


def add(*terms: Node) -> Node:
    """Make a sum: flatten nested sums, collect equal terms, and recognise stable forms."""
    counts: dict[Node, Fraction] = {}
    constant, waiting = Fraction(0), list(reversed(terms))
    while waiting:
        term = waiting.pop()
        factor, rest = split(term)
        if rest.kind == SUM:
            waiting.extend(multiply(number(factor), part) for part in reversed(rest.parts))
        elif rest == ONE:
            constant += factor
        else:
            counts[rest] = counts.get(rest, Fraction(0)) + factor
    counts = {rest: factor for rest, factor in counts.items() if factor}
    for rest, factor in sorted(counts.items(), key=lambda item: item[0].place):
        if constant and (found := _with_constant(rest, factor, constant)) is not None:
            others = [multiply(number(n), term) for term, n in counts.items() if term != rest]
            return add(*others, found)
    parts = [multiply(number(factor), rest) for rest, factor in counts.items()]
    parts.sort(key=lambda part: part.place)
    if constant or not parts:
        parts.append(number(constant))
    return parts[0] if len(parts) == 1 else Node(SUM, tuple(parts))


def _with_constant(term: Node, factor: Fraction, constant: Fraction) -> Node | None:
    """Return factor * term + constant in a form where nothing cancels, if one is known."""
    is_difference, is_even = constant == -factor, constant == factor
    if term.kind == POWER and term.number == 2 and term.parts[0].calls("tanh") and is_difference:
        return multiply(number(constant), call("sech2", term.parts[0].parts[0]))
    if term.kind != CALL:
        return None
    (u,) = term.parts
    if term.name == "exp" and is_difference:
        return multiply(number(factor), call("expm1", u))
    if term.name == "erf" and (is_even or is_difference):  # 1 + erf u or 1 - erf u
        return multiply(number(constant), call("erfc", negative(u) if is_even else u))
    if term.name == "erfc" and is_difference:  # 1 - erfc u
        return multiply(number(constant), call("erf", u))
    if term.name == "tanh" and (is_even or is_difference):  # 1 + tanh u = 2 sigmoid(2 u)
        inner = multiply(number(2 if is_even else -2), u)
        return multiply(number(2 * constant), call("sigmoid", inner))
    if term.name == "sigmoid" and is_difference:
        return multiply(number(constant), call("sigmoid", negative(u)))
    if term.name == "sigmoid" and factor == -2 * constant:  # 1 - 2 sigmoid u = -tanh(u / 2)
        return multiply(number(-constant), call("tanh", multiply(number(Fraction(1, 2)), u)))
    return None


def negative(node: Node) -> Node:
    """Make -node."""
    return multiply(number(-1), node)


def multiply(*factors: Node) -> Node:
    """Make a product: flatten nested products, and collect powers of equal factors."""
    total, powers, waiting = Fraction(1), dict[Node, Fraction](), list(reversed(factors))
    while waiting:
        factor = waiting.pop()
        if factor.kind == NUMBER:
            total *= factor.number
        elif factor.kind == PRODUCT:
            waiting.extend(reversed(factor.parts))
        else:
            base, exponent = factor, _ONE
            if factor.kind == POWER:
                base, exponent = factor.parts[0], factor.number
            powers[base] = powers[base] + exponent if base in powers else exponent
    if total == 0:
        return ZERO
    for base in [*powers]:
        if base.calls("exp") and powers[base] == 1:  # exp(u) sigmoid(-u) = sigmoid(u)
            (u,) = base.parts
            other = call("sigmoid", negative(u))
            if powers.get(other, 0) >= 1:
                powers[other] -= 1
                del powers[base]
                joined = call("sigmoid", u)
                powers[joined] = powers.get(joined, Fraction(0)) + 1
        elif base.calls("sinh") and powers[base] == 1:  # sinh(u) / cosh(u) = tanh(u)
            other = call("cosh", base.parts[0])
            if powers.get(other) == -1:
                del powers[other], powers[base]
                joined = call("tanh", base.parts[0])
                powers[joined] = powers.get(joined, Fraction(0)) + 1
    parts = [power(base, exponent) for base, exponent in powers.items() if exponent]
    if any(part.kind in (NUMBER, PRODUCT) for part in parts):
        return multiply(number(total), *parts)
    parts.sort(key=lambda part: part.place)
    if total != 1 or not parts:
        parts.insert(0, number(total))
    return parts[0] if len(parts) == 1 else Node(PRODUCT, tuple(parts))


def power(base: Node, exponent: Fraction | int) -> Node:
    """Make a power with a whole or half exponent."""
    if exponent == 1:
        return base
    n = exponent if isinstance(exponent, Fraction) else Fraction(exponent)
    if abs(n) > LARGEST_EXPONENT:
        raise SettingError(f"An exponent in it is {n}; {LARGEST_EXPONENT} is the largest.")
    if n == 0:
        return ONE
    is_whole = n.denominator == 1
    if base == ZERO and n < 0:
        raise SettingError("It divides by 0.")
    if base.kind == NUMBER and is_whole:
        size = max(base.number.numerator.bit_length(), base.number.denominator.bit_length())
        if size * abs(n) > MOST_BITS:
            raise SettingError(f"A number in it takes more than {MOST_BITS} bits.")
        return number(base.number**n.numerator)
    if base.kind == POWER and is_whole:
        return power(base.parts[0], base.number * n)
    if base.kind == PRODUCT and is_whole:
        return multiply(*(power(part, n) for part in base.parts))
    if base.calls("exp"):
        return call("exp", multiply(number(n), base.parts[0]))
    if n < 0 and is_whole and base.kind == SUM and len(base.parts) == 2:
        # 1 / (k + k exp(u)) = sigmoid(-u) / k
        (factor, term), (constant, one) = map(split, base.parts)
        if one == ONE and factor == constant and term.calls("exp"):
            quotient = call("sigmoid", negative(term.parts[0]))
            return power(multiply(number(1 / constant), quotient), -n)
    return Node(POWER, (base,), n)


def call(function: str, u: Node) -> Node:
    """Make a call of a known function."""
    if function == "sqrt":
        return power(u, Fraction(1, 2))
    if function == "tan":
        return multiply(call("sin", u), power(call("cos", u), -1))
    if function == "log":
        if u == ONE:
            return ZERO
        if u.calls("exp"):
            return u.parts[0]
        if u.calls("cosh"):  # u + softplus(-2 u) - log 2
            (inner,) = u.parts
            halved = call("softplus", multiply(number(-2), inner))
            return add(inner, halved, negative(call("log", number(2))))
        if u.kind == SUM and u.parts[-1] == ONE:
            return call("log1p", add(*u.parts[:-1]))
        if u.calls("sigmoid"):
            return negative(call("softplus", negative(u.parts[0])))
    if function == "log1p" and u.calls("exp"):
        return call("softplus", u.parts[0])
    if function == "sign" and u.kind == NUMBER:
        return number((u.number > 0) - (u.number < 0))
    if function == "abs" and split(u)[0] != 1:
        factor, rest = split(u)
        if rest == ONE:
            return number(abs(factor))
        return multiply(number(abs(factor)), call("abs", rest))
    if function in ODD | EVEN and u.kind != SUM and split(u)[0] < 0:
        positive = call(function, negative(u))
        return negative(positive) if function in ODD else positive
    if u == ZERO and function in AT_ZERO:
        return number(AT_ZERO[function])
    return Node(CALL, (u,), function)


ODD = {"sin", "tanh", "sinh", "erf", "atan", "asinh", "sign"}
EVEN = {"cos", "cosh", "sech2", "abs"}

AT_ZERO: dict[str, Fraction | int] = {
    **dict.fromkeys((*sorted(ODD), "log1p", "expm1", "abs"), 0),
    **dict.fromkeys(("exp", "cos", "cosh", "sech2", "erfc"), 1),
    "sigmoid": Fraction(1, 2),
}
"""Values that are known exactly."""

_OVER_ROOT_PI = power(PI, Fraction(-1, 2))

SLOPES: dict[str, Callable[[Node], Node]] = {
    "exp": lambda u: call("exp", u),
    "expm1": lambda u: call("exp", u),
    "log": lambda u: power(u, -1),
    "log1p": lambda u: power(add(ONE, u), -1),
    "sin": lambda u: call("cos", u),
    "cos": lambda u: negative(call("sin", u)),
    "tanh": lambda u: call("sech2", u),
    "sech2": lambda u: multiply(number(-2), call("tanh", u), call("sech2", u)),
    "sinh": lambda u: call("cosh", u),
    "cosh": lambda u: call("sinh", u),
    "sigmoid": lambda u: multiply(call("sigmoid", u), call("sigmoid", negative(u))),
    "softplus": lambda u: call("sigmoid", u),
    "erf": lambda u: multiply(number(2), _OVER_ROOT_PI, call("exp", negative(power(u, 2)))),
    "erfc": lambda u: multiply(number(-2), _OVER_ROOT_PI, call("exp", negative(power(u, 2)))),
    "atan": lambda u: power(add(ONE, power(u, 2)), -1),
    "asinh": lambda u: power(add(ONE, power(u, 2)), Fraction(-1, 2)),
    "abs": lambda u: call("sign", u),
    "sign": lambda u: ZERO,
}
"""The functions that an expression may call, each with its derivative."""

NAMES = {name: name for name in (*SLOPES, "sqrt", "tan")} | {"arctan": "atan", "arcsinh": "asinh"}
"""Names that a text may use, with those of the functions they call."""


@lru_cache(maxsize=2**14)
def derivative(node: Node, of: str = "x") -> Node:
    """Return the derivative in the variable `of`."""
    if node.kind in (NUMBER, CONSTANT):
        return ZERO
    if node.kind == VARIABLE:
        return ONE if node.name == of else ZERO
    slopes = [derivative(part, of) for part in node.parts]
    if node.kind == SUM:
        return add(*slopes)
    if node.kind == PRODUCT:
        parts = node.parts
        for i, part in enumerate(parts):
            if part.kind == POWER and part.number < 0 and part.parts[0].kind == SUM:
                # (u v^-n)' = (u' v - n u v') v^(-n-1): where u is x little cancels in it.
                u, (v,) = multiply(*parts[:i], *parts[i + 1 :]), part.parts
                grown = multiply(number(part.number), u, derivative(v, of))
                top = add(multiply(derivative(u, of), v), grown)
                return multiply(top, power(v, part.number - 1))
        return add(
            *(multiply(*parts[:i], slope, *parts[i + 1 :]) for i, slope in enumerate(slopes))
        )
    (u,), (inner,) = node.parts, slopes
    if inner == ZERO:
        return ZERO
    if node.kind == POWER:
        return multiply(number(node.number), power(u, node.number - 1), inner)
    return multiply(SLOPES[node.name](u), inner)


def rebuilt(node: Node, parts: tuple[Node, ...]) -> Node:
    """Apply the operation of a node to other parts."""
    if node.kind == SUM:
        return add(*parts)
    if node.kind == PRODUCT:
        return multiply(*parts)
    return power(parts[0], node.number) if node.kind == POWER else call(node.name, parts[0])


def substitute(node: Node, value: Node, of: str = "x") -> Node:
    """Replace a variable by `value`."""
    if node.kind == VARIABLE and node.name == of:
        return value
    if not node.parts:
        return node
    return rebuilt(node, tuple(substitute(part, value, of) for part in node.parts))


def variables(node: Node) -> set[str]:
    """Return the names of the variables in a tree."""
    if node.kind == VARIABLE:
        return {node.name}
    return set[str]().union(*map(variables, node.parts))


# Kinks: where the arguments of abs and sign, which are lines, change their sign.


def root_of_line(u: Node) -> Fraction | None:
    """Return the root of `u` if it is a line a x + b with a != 0, or else None."""
    slope, constant = derivative(u), substitute(u, ZERO)
    if slope.kind != NUMBER or constant.kind != NUMBER or slope == ZERO:
        return None
    return -constant.number / slope.number


def kinks(node: Node) -> set[Fraction]:
    """Return the places where the argument of an abs or a sign changes its sign."""
    found = set[Fraction]().union(*map(kinks, node.parts))
    if node.calls("abs") or node.calls("sign"):
        root = root_of_line(node.parts[0])
        if root is None:
            raise SettingError(
                f"{text(node)} has a kink at an unknown place, because {node.name} is applied to "
                "something other than a x + b. Give the pieces: "
                "icgd.Function.pieces(knots=..., of=...)."
            )
        found.add(root)
    return found


def on_piece(node: Node, inside: Fraction) -> Node:
    """Return the tree without abs and sign, as it is on the piece that contains `inside`."""
    if not node.parts:
        return node
    if node.calls("abs") or node.calls("sign"):
        (u,) = node.parts
        root = root_of_line(u)
        sign = 1 if derivative(u).number * (inside - (root or 0)) > 0 else -1
        return number(sign) if node.calls("sign") else add(multiply(number(sign), u))
    return rebuilt(node, tuple(on_piece(part, inside) for part in node.parts))


# Text.


def parse(source: object, names: tuple[str, ...] = ("x",), *, is_canonical: bool = False) -> Node:
    """Read an expression in the variables `names`, or the text of a tree if it `is_canonical`."""
    if not isinstance(source, str):
        raise SettingError(
            f"An expression must be a text, such as 'tanh(x)', got {quoted(source)}."
        )
    try:
        most = MOST_CANONICAL if is_canonical else MOST_CHARACTERS
        if len(source) > most:
            raise SettingError(f"It has {len(source)} characters; {most} is the most.")
        if not source.isascii():
            raise SettingError("It has characters that are not ASCII.")
        node = _read(_split(source.strip()), names, source.strip(), 0)
        if node.place[1] > MOST_PARTS:
            raise SettingError(
                f"Its simplified form has {node.place[1]:,} parts; {MOST_PARTS:,} is the most."
            )
        if node.nesting > MOST_NESTED and not is_canonical:
            raise SettingError(
                f"It has {node.nesting} calls and powers inside each other; {MOST_NESTED} is the "
                "most."
            )
        return node
    except UnknownNameError:
        raise
    except SettingError as error:
        raise SettingError(f"Cannot read the expression {quoted(source)}. {error}") from None


def _split(source: str) -> ast.expr:
    try:
        return ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        reason = getattr(error, "msg", None) or str(error)
        raise SettingError(f"It is not an expression ({reason}). Write 2*x, not 2x.") from None


def _read(tree: ast.expr, names: tuple[str, ...], source: str, depth: int) -> Node:
    if depth > MOST_DEEP:
        raise SettingError(f"It is nested deeper than {MOST_DEEP}.")

    def read(part: ast.expr) -> Node:
        return _read(part, names, source, depth + 1)

    match tree:
        case ast.Constant(value=int() | float()) if not isinstance(tree.value, bool):
            return _number(tree, source)
        case ast.Name(id="pi"):
            return PI
        case ast.Name(id=name):
            if name in names:
                return variable(name)
            raise UnknownNameError.of("variable", name, known=[*names, "pi"], where=_where(source))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return negative(read(operand))
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return read(operand)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return add(read(left), read(right))
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return add(read(left), negative(read(right)))
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return multiply(read(left), read(right))
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return multiply(read(left), power(read(right), -1))
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            exponent = read(right)
            is_half = exponent.kind == NUMBER and (2 * exponent.number).denominator == 1
            if not is_half or abs(exponent.number) > LARGEST_EXPONENT:
                raise SettingError(
                    f"The exponent {ast.unparse(right)} is not a whole or half number up to "
                    f"{LARGEST_EXPONENT}. Write a**b as exp(b * log(a))."
                )
            return power(read(left), exponent.number)
        case ast.BinOp(op=ast.BitXor()):
            raise SettingError("Write ** for powers, not ^.")
        case ast.Call(func=ast.Name(id=name), args=[ast.expr() as argument], keywords=[]):
            if name not in NAMES:
                known = sorted(NAMES)
                raise UnknownNameError.of("function", name, known=known, where=_where(source))
            return call(NAMES[name], read(argument))
        case ast.Call(func=ast.Name(id=name)) if name in NAMES:
            raise SettingError(f"{name} takes one argument.")
    raise SettingError(
        f"{ast.unparse(tree)[:40]!r} is not allowed: an expression has numbers, + - * / **, "
        f"{', '.join((*names, 'pi'))} and calls of {', '.join(sorted(NAMES))}."
    )


def _where(source: str) -> str:
    return f" in {quoted(source)}"


def _number(tree: ast.Constant, source: str) -> Node:
    """Read a number exactly as it was written."""
    if not isinstance(tree.value, float):
        return number(Fraction(str(tree.value)))
    written = (ast.get_source_segment(source, tree) or "").replace("_", "")
    digits = written.lower().partition("e")[0]
    if not digits.strip("0."):
        return ZERO
    if not 1e-300 <= tree.value <= 1e300:
        raise SettingError(f"The number {written} lies outside the range from 1e-300 to 1e300.")
    return number(Fraction(written))


@lru_cache(maxsize=2**10)
def text(node: Node) -> str:
    """Return the text of a tree, which `parse` reads as the same tree."""
    if node.kind == NUMBER:
        return fraction_text(node.number)
    if node.kind in (CONSTANT, VARIABLE):
        return node.name
    if node.kind == CALL:
        return f"{node.name}({text(node.parts[0])})"
    if node.kind == POWER:
        base = _in_parentheses(node.parts[0], (VARIABLE, CONSTANT, CALL))
        n = str(node.number)
        return f"{base}**{n if n.isdigit() else f'({n})'}"
    if node.kind == PRODUCT:
        first, *others = node.parts
        if first == number(-1):
            return "-" + "*".join(_factor(part) for part in others)
        return "*".join([_factor(first), *map(_factor, others)])
    first, *others = node.parts
    total = text(first)
    for part in others:
        term = text(part)
        total += f" - {term[1:]}" if term.startswith("-") else f" + {term}"
    return total


def _factor(node: Node) -> str:
    if node.kind == NUMBER and "/" not in fraction_text(node.number):
        return fraction_text(node.number)
    return _in_parentheses(node, (VARIABLE, CONSTANT, CALL, POWER))


def _in_parentheses(node: Node, bare: tuple[str, ...]) -> str:
    return text(node) if node.kind in bare else f"({text(node)})"


def fraction_text(value: Fraction) -> str:
    """Return a rational number as a decimal, if that is short, or as a fraction."""
    if value.denominator == 1:
        return str(value.numerator)
    for digits in range(1, 25):
        scaled = value * 10**digits
        if scaled.denominator == 1:
            whole, part = divmod(abs(scaled.numerator), 10**digits)
            return f"{'-' * (value < 0)}{whole}.{part:0{digits}}"
    return f"{value.numerator}/{value.denominator}"


# Computing with torch.

Step = tuple[str, Fraction | str, tuple[int, ...]]
"""An operation of a straight line: its kind, its value, and the places of its parts."""


def straight_line(node: Node) -> tuple[Step, ...]:
    """Write a tree as a sequence of operations, equal subtrees once."""
    places: dict[Node, int] = {}
    line: list[Step] = []

    def visit(part: Node) -> int:
        if part not in places:
            at = tuple(visit(inner) for inner in part.parts)
            if len(line) >= MOST_PARTS:
                raise SettingError(f"A derivative has more than {MOST_PARTS:,} parts.")
            places[part] = len(line)
            line.append((part.kind, part.value, at))
        return places[part]

    visit(node)
    return tuple(line)


CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "exp": torch.exp,
    "expm1": torch.expm1,
    "log": torch.log,
    "log1p": torch.log1p,
    "sin": torch.sin,
    "cos": torch.cos,
    "tanh": torch.tanh,
    "sech2": lambda u: 1 / torch.cosh(u) ** 2,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "sigmoid": torch.sigmoid,
    "softplus": lambda u: torch.logaddexp(u, torch.zeros_like(u)),
    "erf": torch.erf,
    "erfc": torch.erfc,
    "atan": torch.atan,
    "asinh": torch.asinh,
    "abs": torch.abs,
    "sign": torch.sign,
}
"""How torch computes each function that an expression may call."""


def computed(line: tuple[Step, ...], values: Mapping[str, Tensor]) -> Tensor:
    """Compute a straight line at the values of its variables.

    Numbers are tensors without axes: torch computes all powers and calls alike.
    """
    like = next(iter(values.values()))
    done: list[Tensor] = []
    for kind, value, places in line:
        parts = [done[place] for place in places]
        if kind == VARIABLE:
            result = values[str(value)]
        elif kind == CONSTANT:
            result = like.new_tensor(pi)
        elif kind == CALL:
            result = CALLS[str(value)](parts[0])
        elif isinstance(value, Fraction):
            if kind == NUMBER:
                result = like.new_tensor(float(value))
            elif value == -1:
                result = 1 / parts[0]
            elif value == Fraction(1, 2):
                result = parts[0].sqrt()
            elif value == Fraction(-1, 2):
                result = 1 / parts[0].sqrt()
            else:
                result = parts[0] ** (int(value) if value.denominator == 1 else float(value))
        else:
            result = parts[0]
            for part in parts[1:]:
                result = result + part if kind == SUM else result * part
        done.append(result)
    return done[-1].expand(like.shape) if done[-1].shape != like.shape else done[-1]
