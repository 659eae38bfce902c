"""The arithmetic of `derive:` and `require:`: a small grammar, checked in full before it is ever evaluated.

    numbers, 'text', True, False, names     + - * / // % **     < <= == != >= >     and or not
    in ('a', 'b')                           min max ceil floor abs

`ast` parses the text, a whitelist decides what is allowed, and the walker below computes it; neither `eval`
nor `exec` is involved. `/` of a whole result gives a whole number, so `batch / (2 * data)` can be a size.
"""

import ast
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from suite.experiment.errors import did_you_mean

MAX_LENGTH = 500  # characters
MAX_DEPTH = 60  # nested operations
MAX_BITS = 2048  # of any whole number on the way
MAX_EXPONENT = 256

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "ceil": math.ceil,
    "floor": math.floor,
    "abs": abs,
}
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)
_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn)
_FORBIDDEN_WORDS: dict[type[ast.AST], str] = {
    ast.Lambda: "a lambda",
    ast.Subscript: "an index in square brackets",
    ast.IfExp: "if ... else",
    ast.JoinedStr: "a formatted string",
    ast.NamedExpr: "an assignment",
    ast.Starred: "a star",
    ast.Dict: "a mapping",
    ast.Set: "a set",
    ast.ListComp: "a comprehension",
    ast.SetComp: "a comprehension",
    ast.DictComp: "a comprehension",
    ast.GeneratorExp: "a comprehension",
    ast.Await: "await",
    ast.Yield: "yield",
}


class ExpressionError(Exception):
    """The text is not an expression of the grammar; the message says what is not allowed."""


class EvaluationError(Exception):
    """The expression has no value for these operands (a division by zero, text in arithmetic, ...)."""


@dataclass(frozen=True)
class Expression:
    """A checked expression. `names` maps every name as written to the key it stands for."""

    text: str
    names: dict[str, str]
    _tree: ast.expr

    def value(self, lookup: Callable[[str], Any]) -> Any:
        """The value, with `lookup` giving the value of a key. Raises EvaluationError."""
        return _evaluate(self._tree, lambda name: lookup(self.names[name]))

    @property
    def is_condition(self) -> bool:
        """Whether it can be true or false; `layers % pipeline` cannot, `layers % pipeline == 0` is one."""
        return _is_condition(self._tree)


def parse(text: str, keys: Callable[[str], str | None], known: Callable[[], list[str]]) -> Expression:
    """The expression in `text`.

    `keys` gives the key that a name stands for, or None; `known` lists the names there are. Raises
    ExpressionError for anything outside the grammar, also for a constant part without a value (`1 / 0`).
    """
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"an expression has at most {MAX_LENGTH} characters; this one has {len(text)}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else "it cannot be read"
        raise ExpressionError(f"'{text}' is not an expression: {reason}") from None
    names: dict[str, str] = {}
    try:
        _check(tree, 0, keys, known, names)
    except ExpressionError as error:
        raise ExpressionError(f"'{text}' {error}") from None
    _check_constants(tree, text)
    return Expression(text, names, tree)


def _check(
    node: ast.AST,
    depth: int,
    keys: Callable[[str], str | None],
    known: Callable[[], list[str]],
    names: dict[str, str],
) -> None:
    """Walk the whole tree against the whitelist, and collect the names."""
    if depth > MAX_DEPTH:
        raise ExpressionError(f"is nested more than {MAX_DEPTH} deep")
    parts: list[ast.expr] = []
    match node:
        case ast.Constant(value=bool() | int() | float() | str()):
            pass
        case ast.Name() | ast.Attribute():
            name = _dotted(node)
            if name is None:
                raise ExpressionError("takes an attribute of something that is not a section, which is not allowed")
            key = keys(name)
            if key is None:
                raise ExpressionError(f"uses the unknown name '{name}'; {did_you_mean(name, known())}")
            names[name] = key
        case ast.BinOp(left=left, op=op, right=right):
            if not isinstance(op, _OPERATORS):
                raise ExpressionError("uses an operator that is not allowed; allowed are + - * / // % **")
            parts = [left, right]
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() | ast.Not(), operand=operand):
            parts = [operand]
        case ast.BoolOp(values=values):
            parts = values
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            parts = [left]
            for compare, right in zip(ops, comparators, strict=True):
                if not isinstance(compare, _COMPARISONS):
                    raise ExpressionError("uses 'is', which is not allowed; use == or !=")
                if isinstance(compare, ast.In | ast.NotIn):
                    if not isinstance(right, ast.Tuple | ast.List):
                        raise ExpressionError("uses 'in' without a list of values in parentheses after it")
                    parts += right.elts
                else:
                    parts.append(right)
        case ast.Call(func=func, args=args, keywords=keywords):
            name = _dotted(func) or "something that is not a function"
            if name not in FUNCTIONS:
                allowed = ", ".join(FUNCTIONS)
                raise ExpressionError(f"calls {name}, which is not allowed; allowed functions are {allowed}")
            if keywords:
                raise ExpressionError(f"gives {name} a named argument, which is not allowed")
            many = name in ("min", "max")
            if (many and len(args) < 2) or (not many and len(args) != 1):
                raise ExpressionError(
                    f"gives {name} {len(args)} argument(s); it takes {'two or more' if many else 'one'}"
                )
            parts = args
        case _:
            what = _FORBIDDEN_WORDS.get(type(node), f"'{type(node).__name__.lower()}'")
            raise ExpressionError(f"uses {what}, which is not allowed")
    for part in parts:
        _check(part, depth + 1, keys, known, names)


def _dotted(node: ast.AST) -> str | None:
    """`section.field` or `name` as text; None for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return None


def _check_constants(tree: ast.expr, text: str) -> None:
    """A part without names has one value for ever; that it has none is the file's fault, not a point's."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.BinOp | ast.Compare | ast.Call | ast.UnaryOp):
            continue
        if any(isinstance(part, ast.Name) and part.id not in FUNCTIONS for part in ast.walk(node)):
            continue
        try:
            _evaluate(node, _no_names)
        except EvaluationError as error:
            raise ExpressionError(f"'{text}' has no value: {error}") from None


def _no_names(name: str) -> Any:
    raise EvaluationError(f"{name} is not a constant")


def _is_condition(node: ast.expr) -> bool:
    if isinstance(node, ast.BoolOp):
        return all(_is_condition(value) for value in node.values)
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not)
    if isinstance(node, ast.Constant):
        return isinstance(node.value, bool)
    return isinstance(node, ast.Compare | ast.Name | ast.Attribute)


def _evaluate(node: ast.expr, lookup: Callable[[str], Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name() | ast.Attribute():
            return lookup(_dotted(node) or "")
        case ast.BinOp(left=left, op=op, right=right):
            return _binary(op, _evaluate(left, lookup), _evaluate(right, lookup))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _evaluate(operand, lookup)
        case ast.UnaryOp(op=op, operand=operand):
            value = _number(_evaluate(operand, lookup))
            return -value if isinstance(op, ast.USub) else value
        case ast.BoolOp(op=op, values=values):
            stops_at = isinstance(op, ast.Or)
            for part in values:
                value = _evaluate(part, lookup)
                if bool(value) is stops_at:
                    break
            return value
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            value = _evaluate(left, lookup)
            for compare, part in zip(ops, comparators, strict=True):
                if isinstance(part, ast.Tuple | ast.List):
                    other: Any = tuple(_evaluate(item, lookup) for item in part.elts)
                else:
                    other = _evaluate(part, lookup)
                if not _compare(compare, value, other):
                    return False
                value = other
            return True
        case ast.Call(func=func, args=args):
            name = _dotted(func) or ""
            numbers = [_number(_evaluate(arg, lookup)) for arg in args]
            try:
                return FUNCTIONS[name](*numbers)
            except (OverflowError, ValueError):
                raise EvaluationError(f"{name} has no value for {numbers[0]}") from None
    raise AssertionError(f"{type(node).__name__} passed the check")


def _number(value: Any) -> int | float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    what = "a value that is not set" if value is None else repr(value)
    raise EvaluationError(f"{what} is used as a number")


def _binary(op: ast.operator, left_value: Any, right_value: Any) -> int | float:
    left, right = _number(left_value), _number(right_value)
    result: int | float
    try:
        match op:
            case ast.Add():
                result = left + right
            case ast.Sub():
                result = left - right
            case ast.Mult():
                result = left * right
            case ast.Div():
                result = _divide(left, right)
            case ast.FloorDiv():
                result = left // right
            case ast.Mod():
                result = left % right
            case _:
                result = _power(left, right)
    except ZeroDivisionError:
        raise EvaluationError("division by zero") from None
    except OverflowError:
        raise EvaluationError("a number becomes too large") from None
    if isinstance(result, int) and result.bit_length() > MAX_BITS:
        raise EvaluationError("a number becomes too large")
    return result


def _divide(left: int | float, right: int | float) -> int | float:
    if isinstance(left, int) and isinstance(right, int):
        return left // right if left % right == 0 else left / right
    quotient = left / right
    return int(quotient) if quotient.is_integer() else quotient


def _power(left: int | float, right: int | float) -> int | float:
    if abs(right) > MAX_EXPONENT:
        raise EvaluationError(f"the exponent {right} is larger than {MAX_EXPONENT}")
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > 2 * MAX_BITS:
        raise EvaluationError("a number becomes too large")
    result = left**right
    if isinstance(result, complex):
        raise EvaluationError("a root of a negative number")
    return result


def _compare(op: ast.cmpop, left: Any, right: Any) -> bool:
    match op:
        case ast.Eq():
            return bool(left == right)
        case ast.NotEq():
            return bool(left != right)
        case ast.In():
            return left in right
        case ast.NotIn():
            return left not in right
    if isinstance(left, str) and isinstance(right, str):
        first, second = left, right
    else:
        first, second = _number(left), _number(right)  # type: ignore[assignment]
    match op:
        case ast.Lt():
            return first < second
        case ast.LtE():
            return first <= second
        case ast.Gt():
            return first > second
        case _:
            return first >= second
