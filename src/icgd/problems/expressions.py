"""Expressions of one or two variables as trees: parse, simplify, differentiate and compute them.

Parsing evaluates nothing: Python's `ast` parses the text, and a whitelist converts the result into
nodes: numbers, variables, sums, products, powers and calls of known functions. Numbers are exact:
0.1 is one tenth.

The functions that construct nodes bring equal expressions into one canonical form, and replace
forms that lose digits or overflow: log(1 + exp(u)) becomes softplus(u), 1 - tanh(u)**2 becomes
sech2(u), exp(u) - 1 becomes expm1(u). Derivatives are taken of these forms and so are stable too.
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
"""The longest text that a user may give, and the longest canonical text of a tree."""

MOST_DEEP = 100
"""The deepest nesting of parentheses and operators in a text."""

MOST_NESTED = 16
"""The deepest nesting of calls and powers: each level multiplies the terms of a derivative."""

LARGEST_EXPONENT = 64
"""The largest absolute exponent of a power."""

MOST_BITS, LARGEST_NUMBER = 4096, 10**300
"""Limits on the bits of a numerator or denominator, and on a number and its reciprocal."""

MOST_PARTS = 20_000
"""The largest number of distinct nodes of a tree or a derivative."""

NUMBER, CONSTANT, VARIABLE, SUM, PRODUCT, POWER, CALL = (
    *("number", "constant", "variable", "sum", "product", "power", "call"),
)
_RANKS = {NUMBER: 0, CONSTANT: 1, VARIABLE: 2, POWER: 3, CALL: 4, PRODUCT: 5, SUM: 6}


@dataclass(frozen=True, eq=False)
class Node:
    """A node of a tree: a number, pi, a variable, or a sum, product, power or call of its parts.

    `value` is the number, the name of the variable or function, or the exponent of a power. Create
    nodes only with `number`, `variable`, `add`, `multiply`, `power` and `call`. Nodes with the same
    digest are equal.
    """

    kind: str
    parts: tuple[Node, ...] = ()
    value: Fraction | str = ""

    @cached_property
    def digest(self) -> bytes:
        """A hash of the tree, used to compare trees."""
        content = f"{self.kind} {self.value} ".encode() + b"".join(p.digest for p in self.parts)
        return blake2b(content, digest_size=16).digest()

    @cached_property
    def place(self) -> tuple[int, int, bytes]:
        """The sort key of the terms of a sum and the factors of a product."""
        return (_RANKS[self.kind], sum(1 + part.place[1] for part in self.parts), self.digest)

    @cached_property
    def nesting(self) -> int:
        """The depth of nested calls and powers."""
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
        """The name of the variable or of the called function."""
        return str(self.value)

    def calls(self, function: str) -> bool:
        """Return whether this is a call of `function`."""
        return self.kind == CALL and self.value == function


# Nodes.


def number(value: Fraction | int) -> Node:
    """Return the node of a number."""
    fraction = Fraction(value)
    if max(fraction.numerator.bit_length(), fraction.denominator.bit_length()) > MOST_BITS:
        raise SettingError(f"A number in it takes more than {MOST_BITS} bits.")
    if fraction and not Fraction(1, LARGEST_NUMBER) <= abs(fraction) <= LARGEST_NUMBER:
        raise SettingError(
            "A number in it is out of range: its absolute value must be between 1e-300 and 1e300."
        )
    return Node(NUMBER, (), fraction)


ZERO, ONE, _ONE = number(0), number(1), Fraction(1)
PI = Node(CONSTANT, (), "pi")


def variable(name: str = "x") -> Node:
    """Return the node of a variable."""
    return Node(VARIABLE, (), name)


X = variable()


def split(node: Node) -> tuple[Fraction, Node]:
    """Return the rational factor of a term, and the term without it."""
    if node.kind == NUMBER:
        return node.number, ONE
    if node.kind == PRODUCT and node.parts[0].kind == NUMBER:
        return node.parts[0].number, multiply(*node.parts[1:])
    return Fraction(1), node


def add(*terms: Node) -> Node:
    """Return a sum: flatten nested sums, collect equal terms, and replace unstable forms."""
    factors: dict[Node, Fraction] = {}
    constant, pending = Fraction(0), list(reversed(terms))
    while pending:
        factor, term = split(pending.pop())
        if term.kind == SUM:
            pending.extend(multiply(number(factor), part) for part in reversed(term.parts))
        elif term == ONE:
            constant += factor
        else:
            factors[term] = factors.get(term, Fraction(0)) + factor
    factors = {term: factor for term, factor in factors.items() if factor}
    for term, factor in sorted(factors.items(), key=lambda item: item[0].place):
        if constant and (stable := _with_constant(term, factor, constant)) is not None:
            others = [multiply(number(n), other) for other, n in factors.items() if other != term]
            return add(*others, stable)
    parts = [multiply(number(factor), term) for term, factor in factors.items()]
    parts.sort(key=lambda part: part.place)
    if constant or not parts:
        parts.append(number(constant))
    return parts[0] if len(parts) == 1 else Node(SUM, tuple(parts))


def _with_constant(term: Node, factor: Fraction, constant: Fraction) -> Node | None:
    """Return factor * term + constant in a form without cancellation, or None if none applies."""
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
    """Return -node."""
    return multiply(number(-1), node)


def multiply(*factors: Node) -> Node:
    """Return a product: flatten nested products, and collect powers of equal factors."""
    total, powers, pending = Fraction(1), dict[Node, Fraction](), list(reversed(factors))
    while pending:
        factor = pending.pop()
        if factor.kind == NUMBER:
            total *= factor.number
        elif factor.kind == PRODUCT:
            pending.extend(reversed(factor.parts))
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
                combined = call("sigmoid", u)
                powers[combined] = powers.get(combined, Fraction(0)) + 1
        elif base.calls("sinh") and powers[base] == 1:  # sinh(u) / cosh(u) = tanh(u)
            other = call("cosh", base.parts[0])
            if powers.get(other) == -1:
                del powers[other], powers[base]
                combined = call("tanh", base.parts[0])
                powers[combined] = powers.get(combined, Fraction(0)) + 1
    parts = [power(base, exponent) for base, exponent in powers.items() if exponent]
    if any(part.kind in (NUMBER, PRODUCT) for part in parts):  # a power was simplified
        return multiply(number(total), *parts)
    parts.sort(key=lambda part: part.place)
    if total != 1 or not parts:
        parts.insert(0, number(total))
    return parts[0] if len(parts) == 1 else Node(PRODUCT, tuple(parts))


def power(base: Node, exponent: Fraction | int) -> Node:
    """Return a power with a whole or half exponent."""
    if exponent == 1:
        return base
    n = exponent if isinstance(exponent, Fraction) else Fraction(exponent)
    if abs(n) > LARGEST_EXPONENT:
        raise SettingError(f"An exponent in it is {n}; the largest allowed is {LARGEST_EXPONENT}.")
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
    """Return a call of a known function, simplified."""
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
            correction = call("softplus", multiply(number(-2), inner))
            return add(inner, correction, negative(call("log", number(2))))
        if u.kind == SUM and u.parts[-1] == ONE:
            return call("log1p", add(*u.parts[:-1]))
        if u.calls("sigmoid"):
            return negative(call("softplus", negative(u.parts[0])))
    if function == "log1p" and u.calls("exp"):
        return call("softplus", u.parts[0])
    if function == "sign" and u.kind == NUMBER:
        return number((u.number > 0) - (u.number < 0))
    if function == "abs" and split(u)[0] != 1:
        factor, remainder = split(u)
        if remainder == ONE:
            return number(abs(factor))
        return multiply(number(abs(factor)), call("abs", remainder))
    if function in ODD | EVEN and u.kind != SUM and split(u)[0] < 0:
        mirrored = call(function, negative(u))
        return negative(mirrored) if function in ODD else mirrored
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
"""Exact values at 0."""

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
"""The function that each name in a text stands for."""


@lru_cache(maxsize=2**14)
def derivative(node: Node, of: str = "x") -> Node:
    """Return the derivative with respect to the variable `of`."""
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
                # Quotient rule (u v^-n)' = (u' v - n u v') v^(-n-1): one fraction cancels less
                # than the two of the product rule.
                u, (v,) = multiply(*parts[:i], *parts[i + 1 :]), part.parts
                second = multiply(number(part.number), u, derivative(v, of))
                numerator = add(multiply(derivative(u, of), v), second)
                return multiply(numerator, power(v, part.number - 1))
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


# Kinks: the roots of the arguments of abs and sign, which must be linear.


def root_of_line(u: Node) -> Fraction | None:
    """Return the root of `u` if u = a x + b with a != 0, otherwise None."""
    slope, constant = derivative(u), substitute(u, ZERO)
    if slope.kind != NUMBER or constant.kind != NUMBER or slope == ZERO:
        return None
    return -constant.number / slope.number


def kinks(node: Node) -> set[Fraction]:
    """Return the points where the argument of an abs or a sign changes its sign."""
    points = set[Fraction]().union(*map(kinks, node.parts))
    if node.calls("abs") or node.calls("sign"):
        root = root_of_line(node.parts[0])
        if root is None:
            raise SettingError(
                f"The kinks of {text(node)} are unknown, because {node.name} is applied to "
                "something other than a x + b. Give the pieces: "
                "icgd.Function.pieces(knots=..., of=...)."
            )
        points.add(root)
    return points


def on_piece(node: Node, inside: Fraction) -> Node:
    """Return the tree without abs and sign, valid on the piece that contains `inside`."""
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
    """Parse an expression in the variables `names`; `is_canonical` if `text` wrote it."""
    if not isinstance(source, str):
        raise SettingError(
            f"An expression must be a string, such as 'tanh(x)', got {quoted(source)}."
        )
    try:
        most = MOST_CANONICAL if is_canonical else MOST_CHARACTERS
        if len(source) > most:
            raise SettingError(f"It has {len(source)} characters; at most {most} are allowed.")
        if not source.isascii():
            raise SettingError("It has characters that are not ASCII.")
        node = _read(_parse_python(source.strip()), names, source.strip(), 0)
        if node.place[1] > MOST_PARTS:
            raise SettingError(
                f"Its simplified form has {node.place[1]:,} parts; at most {MOST_PARTS:,} are "
                "allowed."
            )
        if node.nesting > MOST_NESTED and not is_canonical:
            raise SettingError(
                f"Its calls and powers are nested {node.nesting} deep; at most {MOST_NESTED} is "
                "allowed."
            )
        return node
    except UnknownNameError:
        raise
    except SettingError as error:
        raise SettingError(f"Cannot read the expression {quoted(source)}. {error}") from None


def _parse_python(source: str) -> ast.expr:
    try:
        return ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        reason = getattr(error, "msg", None) or str(error)
        raise SettingError(f"It is not an expression ({reason}). Write 2*x, not 2x.") from None


def _read(tree: ast.expr, names: tuple[str, ...], source: str, depth: int) -> Node:
    if depth > MOST_DEEP:
        raise SettingError(f"It is nested more than {MOST_DEEP} deep.")

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
                    f"The exponent {ast.unparse(right)} is not an integer or half-integer of at "
                    f"most {LARGEST_EXPONENT}. Write a**b as exp(b * log(a))."
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
        raise SettingError(f"The number {written} is out of range, which is 1e-300 to 1e300.")
    return number(Fraction(written))


@lru_cache(maxsize=2**10)
def text(node: Node) -> str:
    """Return the canonical text of a tree; `parse` returns the same tree from it."""
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
    """Return a rational number as a decimal if at most 24 digits suffice, or as a fraction."""
    if value.denominator == 1:
        return str(value.numerator)
    for digits in range(1, 25):
        scaled = value * 10**digits
        if scaled.denominator == 1:
            integer, decimals = divmod(abs(scaled.numerator), 10**digits)
            return f"{'-' * (value < 0)}{integer}.{decimals:0{digits}}"
    return f"{value.numerator}/{value.denominator}"


# Evaluation with torch.

Step = tuple[str, Fraction | str, tuple[int, ...]]
"""An operation of a straight-line program: its kind, its value, and the indices of its operands."""


def straight_line(node: Node) -> tuple[Step, ...]:
    """Return a tree as a straight-line program, in which equal subtrees are computed once."""
    places: dict[Node, int] = {}
    line: list[Step] = []

    def visit(part: Node) -> int:
        if part not in places:
            operands = tuple(visit(inner) for inner in part.parts)
            if len(line) >= MOST_PARTS:
                raise SettingError(f"A derivative has more than {MOST_PARTS:,} parts.")
            places[part] = len(line)
            line.append((part.kind, part.value, operands))
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
"""The implementation in torch of each function that an expression may call."""


def computed(line: tuple[Step, ...], values: Mapping[str, Tensor]) -> Tensor:
    """Evaluate a straight-line program at the values of its variables.

    Constants are scalar tensors, so that torch computes their powers and calls like all others.
    """
    like = next(iter(values.values()))
    results: list[Tensor] = []
    for kind, value, places in line:
        operands = [results[place] for place in places]
        if kind == VARIABLE:
            result = values[str(value)]
        elif kind == CONSTANT:
            result = like.new_tensor(pi)
        elif kind == CALL:
            result = CALLS[str(value)](operands[0])
        elif isinstance(value, Fraction):
            if kind == NUMBER:
                result = like.new_tensor(float(value))
            elif value == -1:
                result = 1 / operands[0]
            elif value == Fraction(1, 2):
                result = operands[0].sqrt()
            elif value == Fraction(-1, 2):
                result = 1 / operands[0].sqrt()
            else:
                result = operands[0] ** (int(value) if value.denominator == 1 else float(value))
        else:
            result = operands[0]
            for operand in operands[1:]:
                result = result + operand if kind == SUM else result * operand
        results.append(result)
    return results[-1].expand(like.shape) if results[-1].shape != like.shape else results[-1]
