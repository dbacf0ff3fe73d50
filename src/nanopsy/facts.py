"""What the linter knows of a value in source code, and the places where that knowledge is put to the causes. Stdlib only.

A :class:`Value` is an interval with a history: how far it reaches, whether it gets to zero on ordinary input, what made
it (a sigmoid, a count of a mask, a difference of products …), whether a gradient passes through it, and whether its size
depends on the data. A :class:`Site` is one operation with the values that enter it; causes answer with a :class:`Suspicion`.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from nanopsy.findings import Confidence
from nanopsy.sources import Source

INF: Final = math.inf


class Kind:
    """What sort of Python object a value is."""

    UNKNOWN = 0
    NUMBER = 1
    TENSOR = 2
    ARRAY = 3
    INSTANCE = 4
    CLASS = 5
    FUNCTION = 6
    MODULE = 7
    SEQUENCE = 8
    MAPPING = 9
    TEXT = 10
    NONE = 11
    LAYER = 12
    """An instance of a class of torch.nn; ``ref`` is its name and its arguments."""
    CHOICE = 13
    """One of several callables; ``ref`` holds them all."""


class Form:
    """What made a value: bits of :attr:`Value.forms`."""

    ZERO = 1 << 0
    """Exactly zero on ordinary input."""
    UNDERFLOW = 1 << 1
    """Positive in real arithmetic, zero by underflow."""
    SIGNED = 1 << 2
    """Known to take both signs."""
    SIGMOID = 1 << 3
    SOFTMAX = 1 << 4
    EXP = 1 << 5
    RELU = 1 << 6
    SQUARE = 1 << 7
    SUM_OF_SQUARES = 1 << 8
    MEAN_OF_SQUARES = 1 << 9
    SQUARED_MEAN = 1 << 10
    ONE_PASS = 1 << 11
    """Second moment minus a multiple of the squared mean."""
    NORM = 1 << 12
    COUNT = 1 << 13
    """How many elements a mask selects."""
    SPREAD = 1 << 14
    """Maximum minus minimum of the same values."""
    VARIANCE = 1 << 15
    DEVIATION = 1 << 16
    DETERMINANT = 1 << 17
    PRODUCT = 1 << 18
    EPSILON = 1 << 19
    """A small positive constant was added."""
    MEAN = 1 << 20
    MAXIMUM = 1 << 21
    MINIMUM = 1 << 22
    MASK = 1 << 23
    """Boolean, or a boolean cast to numbers."""
    REPAIRED = 1 << 24
    """NaN has been replaced."""
    NETWORK = 1 << 25
    """Unbounded output of a layer."""
    INTEGER = 1 << 26
    HALF = 1 << 27
    DIFFERENCE = 1 << 28
    LOGARITHM = 1 << 29
    DATA = 1 << 30
    """Comes out of a file or a data set."""
    ABSOLUTE = 1 << 31
    FLOORED = 1 << 32
    """Bounded below on purpose."""
    NORMALIZED = 1 << 33
    TEMPERATURE = 1 << 34
    PARAMETER = 1 << 35
    """An argument of the function, of which nothing is known."""
    MINUS_INFINITY = 1 << 36
    """May hold -inf on purpose."""
    GRID = 1 << 37
    DETERMINANT_OF_SUMS = 1 << 38
    """n*sum(x²) - (sum x)²: the determinant of a scale-and-shift fit."""
    RATIO = 1 << 39
    COSINE = 1 << 40
    EXPLOGIT = 1 << 41
    """One plus an unbounded exponential."""
    CROSS_ENTROPY = 1 << 42
    ONES = 1 << 43
    CANCELLING = 1 << 45
    """A variance in one pass, whose terms may cancel."""
    TOTAL = 1 << 46
    """A sum over everything."""
    DOT = 1 << 47
    """A product of two values of unknown sign: its sum takes both signs."""
    RANDOM = 1 << 48
    SUMMED = 1 << 50
    """A sum of different terms: all of them must be 0 for it to be."""
    UNIT = 1 << 49
    """One component is a constant other than 0."""
    SIGN = 1 << 51
    """The sign of a value that may be 0: -1, 0 or 1."""
    GUARDED_BY_SIGN = 1 << 52
    """Bounded away from 0 and multiplied by a sign: 0 after all where the sign is."""
    SELF_SELECTED = 1 << 44
    """Selected by a mask that was made from the value itself."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a fact comes from: the file, the span and what happened there."""

    file: str
    node: ast.AST
    what: str


class Value:
    """An abstract value. Treat as immutable; :meth:`but` makes a changed copy."""

    __slots__ = ("attributes", "base", "count_of", "forms", "grad", "hazards", "hi", "kind", "lo", "origin", "ref", "role", "selected", "sym")

    def __init__(
        self,
        kind: int = Kind.UNKNOWN,
        lo: float = -INF,
        hi: float = INF,
        forms: int = 0,
        *,
        grad: bool = False,
        role: str = "",
        sym: int = 0,
        base: int = 0,
        selected: int = 0,
        count_of: int = 0,
        origin: Origin | None = None,
        hazards: frozenset[Hazard] = frozenset(),
        ref: Any = None,
        attributes: dict[str, Value] | None = None,
    ) -> None:
        self.kind, self.lo, self.hi, self.forms = kind, lo, hi, forms
        self.grad = grad
        self.role = role
        """``prediction``, ``label``, ``image`` or nothing, by name."""
        self.sym = sym
        """Two values with one number are equal (value numbering)."""
        self.base = base
        """The number of what this is a square, a mean or a maximum of."""
        self.selected = selected
        """The number of the mask that chose these elements; 0 when the size does not depend on data."""
        self.count_of = count_of
        """The number of the mask that this counts."""
        self.origin, self.hazards, self.ref, self.attributes = origin, hazards, ref, attributes

    def but(self, **changes: Any) -> Value:
        """A copy with some facts changed."""
        new = Value.__new__(Value)
        for name in Value.__slots__:
            setattr(new, name, getattr(self, name))
        for name, value in changes.items():
            setattr(new, name, value)
        return new

    def has(self, forms: int) -> bool:
        """Whether any of these forms applies."""
        return bool(self.forms & forms)

    @property
    def number(self) -> float | None:
        """The constant this is, if it is one."""
        return self.lo if self.kind == Kind.NUMBER and (self.lo == self.hi or self.lo != self.lo) else None

    @property
    def positive(self) -> bool:
        return self.lo > 0

    @property
    def known(self) -> bool:
        """Whether anything is known of its range."""
        return self.lo > -INF or self.hi < INF or bool(self.forms & (Form.SIGNED | Form.ZERO | Form.UNDERFLOW | Form.NETWORK))

    @property
    def reaches_zero(self) -> bool:
        """Zero on ordinary input, or by underflow, and not bounded away from it."""
        return self.lo <= 0 <= self.hi and bool(self.forms & (Form.ZERO | Form.UNDERFLOW))

    def __repr__(self) -> str:
        names = [name for name, bit in vars(Form).items() if isinstance(bit, int) and self.forms & bit]
        return f"<{self.kind} [{self.lo:g}, {self.hi:g}] {'|'.join(names)}{' grad' if self.grad else ''} {self.role} #{self.sym} sel={self.selected}>"


@dataclass(eq=False, slots=True)
class Hazard:
    """A suspicion attached to the values that carry it on; it counts once one of them is used."""

    site: Site
    code: str
    suspicion: Suspicion
    live: bool = False


def ordered(hazards: Iterable[Hazard]) -> list[Hazard]:
    """Hazards in order of their place: sets of them have none."""
    return sorted(hazards, key=lambda each: (each.site.source.file, getattr(each.site.node, "lineno", 0), getattr(each.site.node, "col_offset", 0), each.code))


@dataclass(eq=False, slots=True)
class Site:
    """One operation in source code with what is known of its operands."""

    op: str
    node: ast.AST
    source: Source
    operand: Value
    other: Value | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    gradient: bool = True
    """Whether a gradient passes: it does not under no_grad, nor through detached values."""
    quiet: bool = False
    """In code that evaluates, logs or draws rather than trains."""
    count: float = 0.0
    """The least number of elements that the operand is known to have when its size depends on data."""
    function: str = ""
    owner: str = ""
    module: bool = False
    """In a method of a torch.nn.Module."""
    scope: ast.AST | None = None
    """The function around it."""

    def text(self, node: ast.AST | None = None) -> str:
        """Source text of the operation, or of a part of it, on one line."""
        code = " ".join(self.source.code(node or self.node).split())
        return code if len(code) <= 60 else code[:57] + "..."


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A cause recognises itself at a site."""

    message: str
    confidence: Confidence = Confidence.LIKELY
    condition: str = ""
    needs_gradient: bool = False
    """The value is fine: only a gradient through it goes bad."""
    open: bool = False
    """Nothing is known of the operand but that it is an argument: callers decide."""
    also: tuple[Origin, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    """What the edits need to know beyond the source: names and words."""
    at: Origin | None = None
    """Where the mistake is, when that is not the operation asked about."""
