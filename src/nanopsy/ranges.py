"""The facts engines reason about: float formats, operands with their origin, and births. Stdlib only.

A *birth* is the operator application at which finite values became bad ones. A *trace* observes it on real
tensors; everything a cause is asked about is in these plain numbers, so that a cause needs no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from nanopsy.findings import Location


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """Limits of a binary floating-point format (IEEE 754, and bfloat16)."""

    name: str
    eps: float
    tiny: float
    smallest: float
    max: float


FORMATS: Mapping[str, FloatFormat] = {
    "float16": FloatFormat("float16", 2.0**-10, 2.0**-14, 2.0**-24, 65504.0),
    "bfloat16": FloatFormat("bfloat16", 2.0**-7, 2.0**-126, 2.0**-133, 3.3895313892515355e38),
    "float32": FloatFormat("float32", 2.0**-23, 2.0**-126, 2.0**-149, 3.4028234663852886e38),
    "float64": FloatFormat("float64", 2.0**-52, 2.0**-1022, 5e-324, 1.7976931348623157e308),
}


class OriginKind(StrEnum):
    """Where the explanation of a value ends."""

    SIGMOID = "sigmoid"
    SOFTMAX = "softmax"
    RELU = "relu"
    EXP = "exp"
    CLAMP = "clamp"
    CANCELLATION = "cancellation"
    NORM = "norm"
    STD = "std"
    MAX = "max"
    COUNT = "count"
    PRODUCT = "product"
    SIGN = "sign"
    DATA = "data"
    CONSTANT = "constant"
    RANDOM = "random"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    GRADIENT = "gradient"
    NETWORK = "network"
    SELECTION = "selection"
    ROUNDING = "rounding"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Step:
    """One hop of a story: an operator, the value it passed on, and where."""

    op: str
    value: float
    location: Location | None
    node: str = ""
    """The autograd node, for a hop inside backward."""

    def __str__(self) -> str:
        place = f" ({self.location})" if self.location else ""
        inside = f" in {self.node}" if self.node else ""
        return f"{self.op}{inside} = {self.value:.6g}{place}"


@dataclass(frozen=True, slots=True)
class Cancellation:
    """A difference that lost its digits: ``left - right`` where both are large against the result."""

    left: float
    right: float
    result: float
    exact: float | None = None
    one_pass: bool = False
    """The operands are a mean (or sum) of squares and a squared mean (or sum)."""
    squares: bool = False
    """At least one operand is a square."""
    determinant: bool = False
    """Both operands are products: a 2-by-2 determinant."""
    location: Location | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """The end of the explanation of one value, and the hops that led there."""

    kind: OriginKind
    value: float = math.nan
    location: Location | None = None
    what: str = ""
    name: str = ""
    steps: tuple[Step, ...] = ()
    cancellation: Cancellation | None = None
    lost: float | None = None
    """A constant that rounded away: an epsilon below the resolution of its format."""
    made_at: Location | None = None
    """Where a parameter was initialised or its module constructed."""
    of_squares: bool = False
    """The value is a sum or mean of squares."""

    def passed(self, *kinds: OriginKind) -> bool:
        return self.kind in kinds


@dataclass(frozen=True, slots=True)
class Operand:
    """What is known about one tensor (or scalar) argument of the birth."""

    name: str
    value: float
    """The element that takes part in the birth; NaN if there is none (an empty tensor)."""
    count: int
    shape: tuple[int, ...] = ()
    dtype: str = ""
    low: float = math.nan
    high: float = math.nan
    bad: int = 0
    largest: float = math.nan
    """Largest finite magnitude in the tensor."""
    from_weights: bool = False
    """The value depends on a parameter, so training can move it."""
    scalar: bool = False
    binary: bool = False
    """Holds nothing but zeros and ones: a mask."""
    integral: bool = False
    """A Python int, or a tensor of whole numbers: a count."""
    origin: Origin = field(default_factory=lambda: Origin(OriginKind.UNKNOWN))


@dataclass(frozen=True, slots=True)
class Discard:
    """The operator that drops a bad (or edge) value in forward, which its gradient brings back."""

    op: str
    location: Location | None
    by: str = ""


class Growth(StrEnum):
    """How the recent steps developed before the incident."""

    NONE = "none"
    FIRST_STEP = "first-step"
    DIVERGING = "diverging"


@dataclass(frozen=True, slots=True)
class OptimizerFacts:
    """The optimizer concerned: its class, hyper-parameters, and the line that made it."""

    name: str
    lr: float = math.nan
    eps: float | None = None
    dtype: str = ""
    location: Location | None = None
    eps_lost: bool = False
    denominator_zero: bool = False
    steps: int = 0


@dataclass(frozen=True, slots=True)
class History:
    """The ring of recent steps: losses, gradient norms and weight norms, oldest first."""

    losses: tuple[float, ...] = ()
    gradient_norms: tuple[float, ...] = ()
    weight_norms: tuple[tuple[int, float], ...] = ()
    steps: int = 0
    growth: Growth = Growth.NONE
    text: str = ""
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Birth:
    """One operator application at which finite values became bad ones, with all that explains it."""

    op: str
    phase: str
    """``forward``, ``backward``, ``optimizer``, ``data`` or ``weights``."""
    value: float
    """The bad value: nan, inf or -inf."""
    dtype: str
    location: Location | None
    shape: tuple[int, ...] = ()
    bad_count: int = 0
    total: int = 0
    operands: tuple[Operand, ...] = ()
    node: str = ""
    module: str = ""
    module_made_at: Location | None = None
    module_type: str = ""
    settings: Mapping[str, object] = field(default_factory=dict)
    incoming: float | None = None
    """In backward: the gradient that arrived at this element."""
    incoming_origin: Origin | None = None
    discard: Discard | None = None
    forward_value: float | None = None
    """In backward: the forward operator's own result at this element."""
    history: History = field(default_factory=History)
    optimizer: OptimizerFacts | None = None
    path: tuple[str, ...] = ()
    uses: tuple[Location, ...] = ()
    nan_from: Birth | None = None
    """The birth of the infinity that this operator turned into NaN."""
    scale: float | None = None
    """A constant factor that multiplies the loss term concerned."""
    scale_at: Location | None = None
    amplifier: str = ""
    """The normalisation whose backward enlarged the gradient most."""
    amplifier_at: Location | None = None
    growth_at: Location | None = None
    """Where linear operators enlarged the values most, over all their rounds."""
    growth_made_at: Location | None = None
    """Where the weights used there were initialised by a direct call."""
    growth_decades: float = 0.0
    sink: str = "loss"
    """What the bad value reached: ``loss`` or ``gradient`` (of a step whose loss was finite)."""

    def operand(self, index: int = 0) -> Operand:
        """The operand at ``index``; an empty one when the operator has fewer."""
        if index < len(self.operands):
            return self.operands[index]
        return Operand("?", math.nan, 0)

    @property
    def format(self) -> FloatFormat:
        return FORMATS.get(self.dtype, FORMATS["float32"])

    @property
    def forward(self) -> bool:
        return self.phase == "forward"

    @property
    def backward(self) -> bool:
        return self.phase == "backward"


def is_bad(value: float) -> bool:
    """NaN or infinite."""
    return not math.isfinite(value)
