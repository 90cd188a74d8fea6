"""Jinja for files that someone else wrote: no way to Python's internals, and bounds on time, steps and memory.

Jinja's own sandbox keeps a template from reaching objects that it was not given. It does not keep it from looping for
ever or from building a text of gigabytes; the rewritten tree and the guarded operators here do.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import jinja2
import jinja2.ext
import jinja2.filters
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.visitor

MAX_OUTPUT: Final = 16 * 1024 * 1024  # characters
MAX_STEPS: Final = 1_000_000  # turns of all loops and calls of all macros together
MAX_SECONDS: Final = 5.0
MAX_WIDTH: Final = 10_000
MAX_BITS: Final = 4096  # of an integer

# Names that the rewritten tree calls; a template may not use them itself.
_STEP, _CONCAT = "__step", "__concat"


class LimitPassed(jinja2.TemplateError):
    """The template takes too long or makes too much text."""


class BoundedEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Block settings and loop controls as transformers gives them to chat templates."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _Generation])
        for name in ("center", "indent", "format"):
            self.filters[name] = _narrow(self.filters[name])
        self.filters["replace"] = _guarded(self.filters["replace"], _size_of_replace)
        self.filters["join"] = _guarded(self.filters["join"], lambda _, values, *rest: _size_of_join("", values))
        self.globals[_CONCAT] = _concat

    def compile_bounded(self, text: str, filename: str) -> jinja2.Template:
        """Raises TemplateSyntaxError; tracebacks name `filename` and the template's line."""
        tree = _Bounds().visit(self.parse(text))
        tree.set_environment(self)
        return jinja2.Template.from_code(self, self.compile(tree, filename=filename), self.globals)

    def render_bounded(self, template: jinja2.Template, values: Mapping[str, Any]) -> str:
        """Raises LimitPassed, and whatever the template's expressions raise."""
        parts: list[str] = []
        size = 0
        for part in template.generate({**values, _STEP: _step_counter()}):
            size += len(part)
            _check_size(size)
            parts.append(part)
        return "".join(parts)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for sequence, count in ((left, right), (right, left)):
                if isinstance(sequence, str | list | tuple) and isinstance(count, int):
                    _check_size(len(sequence) * count)
            if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > MAX_BITS:
                raise LimitPassed("it computes a number that is too large")
        elif operator == "+" and isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
            _check_size(len(left) + len(right))
        elif operator == "**" and not (abs(left) < 1 << 32 and abs(right) < 64):
            raise LimitPassed("it computes a number that is too large")
        elif operator == "%" and isinstance(left, str):
            _check_format(left)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # named as in Jinja
        text = getattr(__obj, "__self__", None)
        if isinstance(text, str):
            match __obj.__name__:
                case "replace" if len(args) >= 2:
                    _check_size(_size_of_replace(text, *args))
                case "join" if args and isinstance(args[0], list | tuple):
                    _check_size(_size_of_join(text, args[0]))
                case "center" | "ljust" | "rjust" | "zfill" | "expandtabs":
                    _check_widths((*args, *kwargs.values()))
        return super().call(__context, __obj, *args, **kwargs)


class _Generation(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}`: marks for training what the model wrote; rendered as it stands."""

    tags = {"generation"}  # noqa: RUF012  as Jinja declares it

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Bounds(jinja2.visitor.NodeTransformer):
    """Rewrites a template's tree: every turn of a loop and every call of a macro counts as a step, and `~` is guarded
    as `+` is."""

    def visit_Name(self, node: jinja2.nodes.Name) -> jinja2.nodes.Node:
        if node.name in (_STEP, _CONCAT):
            raise jinja2.TemplateSyntaxError(f"{node.name} is a reserved name", node.lineno)
        return node

    def visit_For(self, node: jinja2.nodes.For) -> jinja2.nodes.Node:
        self.generic_visit(node)
        if node.test is not None:  # `for x in y if test`: the turns that it drops count too
            node.test = jinja2.nodes.Or(_call(_STEP, [], node.lineno), node.test, lineno=node.lineno)
        node.body.insert(0, jinja2.nodes.ExprStmt(_call(_STEP, [], node.lineno), lineno=node.lineno))
        return node

    def visit_Macro(self, node: jinja2.nodes.Macro) -> jinja2.nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, jinja2.nodes.ExprStmt(_call(_STEP, [], node.lineno), lineno=node.lineno))
        return node

    def visit_Concat(self, node: jinja2.nodes.Concat) -> jinja2.nodes.Node:
        self.generic_visit(node)
        return _call(_CONCAT, node.nodes, node.lineno)


def _call(name: str, args: list[jinja2.nodes.Expr], line: int) -> jinja2.nodes.Call:
    return jinja2.nodes.Call(jinja2.nodes.Name(name, "load", lineno=line), args, [], None, None, lineno=line)


def _step_counter() -> Callable[[], bool]:
    """Counts to the limit; always False, so that it can stand before `or`."""
    steps = 0
    deadline = time.monotonic() + MAX_SECONDS

    def step() -> bool:
        nonlocal steps
        steps += 1
        if steps > MAX_STEPS:
            raise LimitPassed(f"it takes more than {MAX_STEPS:,} steps")
        if time.monotonic() > deadline:
            raise LimitPassed(f"it takes longer than {MAX_SECONDS:g} seconds")
        return False

    return step


def _concat(*values: Any) -> str:
    texts = [str(value) for value in values]
    _check_size(sum(map(len, texts)))
    return "".join(texts)


def _check_size(size: int) -> None:
    if size > MAX_OUTPUT:
        raise LimitPassed(f"it produces more than {MAX_OUTPUT:,} characters")


def _check_widths(values: tuple[Any, ...]) -> None:
    if any(isinstance(value, int) and abs(value) > MAX_WIDTH for value in values):
        raise LimitPassed(f"it pads text to more than {MAX_WIDTH:,} characters")


def _check_format(form: str) -> None:
    digits = longest = 0
    for character in form:
        digits = digits + 1 if character.isdigit() else 0
        longest = max(longest, digits)
    if longest > 4 or "*" in form:
        raise LimitPassed("it formats to a width that is too large")


def _size_of_replace(text: object, old: object, new: object, *_: object) -> int:
    return len(str(text)) + str(text).count(str(old)) * len(str(new))


def _size_of_join(separator: str, values: object) -> int:
    return sum(len(separator) + len(str(value)) for value in values) if isinstance(values, list | tuple) else 0


def _narrow(original: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that takes a width or a format, refusing what would make a huge text."""

    @functools.wraps(original)  # also copies Jinja's mark of what it passes first
    def narrow(*args: Any, **kwargs: Any) -> Any:
        _check_widths((*args, *kwargs.values()))
        if original is jinja2.filters.do_format:
            _check_format(str(args[0]))
        return original(*args, **kwargs)

    return narrow


def _guarded(original: Callable[..., Any], size: Callable[..., int]) -> Callable[..., Any]:
    """A filter of an evaluation context and a value, refused when its result would be too large."""

    @functools.wraps(original)
    def guarded(context: Any, *args: Any, **kwargs: Any) -> Any:
        if original is jinja2.filters.do_replace:
            if len(args) >= 3:
                _check_size(size(*args))
        else:
            _check_size(size(context, *args))
        return original(context, *args, **kwargs)

    return guarded
