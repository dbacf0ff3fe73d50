"""The contract: everything nanopsy knows about one root cause lives in one subclass, in one file. Stdlib only.

The subclass's docstring is the cause's page (``nanopsy explain``, the docs). ``bad`` and ``good`` are runnable:
they are the page's examples and the contract test's fixtures at once.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from nanopsy.facts import Site, Suspicion
from nanopsy.findings import Edit, Finding, Location
from nanopsy.ranges import Birth, Operand, Origin, OriginKind

SECTIONS = ("## What it does", "## Why is this bad?", "## Guideline", "## Fix safety", "## References")
"""Every page has these sections, in this order."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A cause recognises itself in a birth: how surely, and the sentence for this very case."""

    score: float
    message: str
    location: Location | None = None
    also: tuple[Location, ...] = ()
    evidence: Mapping[str, object] = field(default_factory=dict)


class Cause:
    """One root cause. Subclass it once per file."""

    code: ClassVar[str]
    slug: ClassVar[str]
    bad: ClassVar[str]
    good: ClassVar[str]
    replacement: ClassVar[str | None] = None
    """Dotted name of the stable replacement (a string: nothing here imports torch); pages and reports name it."""
    runs_as: ClassVar[str] = "function"
    """``function``: the snippet defines ``loss()``; ``script``: it is a training script."""

    sites: ClassVar[tuple[str, ...]] = ()
    """Operations in source code that the linter asks this cause about."""
    source_bad: ClassVar[str] = ""
    """What the linter finds, where ``bad`` fails by its numbers rather than by what its source says."""
    source_good: ClassVar[str] = ""
    """What the linter leaves alone, where it differs from ``good``."""

    accompanies: ClassVar[bool] = False
    """The finding never stands alone: it adds to the one that names the root."""

    def claim(self, birth: Birth) -> Claim | None:
        """Whether this birth, with these operands and origins, is this cause's doing."""
        raise NotImplementedError

    def match(self, site: Site) -> Suspicion | None:
        """Whether this operation, by what is known of its operands in source code, can be this cause's doing."""
        return None

    def remedies(self, birth: Birth, finding: Finding) -> Iterator[Sequence[Edit]]:
        """Source edits that would cure it, best first; each is a set that belongs together."""
        return iter(())

    def cures(self, birth: Birth, finding: Finding, facts: Mapping[str, str]) -> Iterator[Sequence[Edit]]:
        """Source edits that the linter may propose, best first: of a birth imagined in float32, with what a match said in ``facts``."""
        return self.remedies(birth, finding)

    def finding(self, birth: Birth, claim: Claim, penalty: float = 0.0) -> Finding:
        """The finding that a claim on a birth amounts to."""
        location = claim.location or birth.location
        also: list[Location] = []
        places = [*claim.also, birth.location, *(op.origin.location for op in birth.operands), *birth.uses]
        if birth.discard is not None:
            places.append(birth.discard.location)
        for place in places:
            if place is not None and place != location and place not in also:
                also.append(place)
        evidence: dict[str, object] = {
            "op": birth.op,
            "phase": birth.phase,
            "value": str(birth.value),
            "dtype": birth.dtype,
            "shape": list(birth.shape),
            "bad_elements": birth.bad_count,
            **({"module": birth.module} if birth.module else {}),
            **({"autograd_node": birth.node} if birth.node else {}),
            **({"replacement": self.replacement} if self.replacement else {}),
            "operands": [operand_evidence(operand) for operand in birth.operands],
            **claim.evidence,
        }
        return Finding(
            self.code,
            self.slug,
            location,
            claim.message,
            also=tuple(also[:8]),
            evidence=evidence,
            path=birth.path,
            story=tuple(story_lines(birth)),
            score=claim.score - penalty,
        )

    @classmethod
    def page(cls) -> str:
        """The cause's page as Markdown."""
        text = inspect.cleandoc(cls.__doc__ or "")
        title, _, rest = text.partition("\n")
        examples = f"## Example\n\nThis goes bad:\n\n```python\n{cls.bad.strip()}\n```\n\nThis does not:\n\n```python\n{cls.good.strip()}\n```\n"
        guideline = rest.find("## Guideline")
        body = rest[:guideline] + examples + "\n" + rest[guideline:] if guideline >= 0 else rest + "\n" + examples
        if cls.replacement:
            body = body.replace("\n## Fix safety", f"\nOr by one import: `{cls.replacement}`, whose value and gradient are stated there.\n\n## Fix safety", 1)
        return f"# {cls.code} {cls.slug}\n\n{title.strip()}\n{body.rstrip()}\n"

    @classmethod
    def title(cls) -> str:
        return inspect.cleandoc(cls.__doc__ or "").partition("\n")[0].strip()


def operand_evidence(operand: Operand) -> dict[str, object]:
    """An operand as plain JSON."""
    entry: dict[str, object] = {"name": operand.name, "value": number(operand.value), "count": operand.count}
    if not operand.scalar:
        entry |= {"shape": list(operand.shape), "dtype": operand.dtype, "low": number(operand.low), "high": number(operand.high)}
    if operand.origin.kind is not OriginKind.UNKNOWN:
        entry["origin"] = str(operand.origin.kind)
        entry["origin_what"] = operand.origin.what
    return entry


def number(value: float) -> float | str:
    """A number JSON can hold: NaN and infinities as text."""
    return value if math.isfinite(value) else str(value)


def story_lines(birth: Birth) -> Iterator[str]:
    """Where the operands' values came from, one line each hop; the operand that explains most first."""
    for operand in birth.operands:
        origin = operand.origin
        if origin.kind is OriginKind.SELECTION:
            yield f"{operand.count:,} element{'s' if operand.count != 1 else ''} because of {came_from(origin)}"
            continue
        if operand.scalar or origin.kind is OriginKind.UNKNOWN or (math.isnan(operand.value) and origin.kind is not OriginKind.DATA):
            continue
        yield f"{operand.name or 'operand'} is {operand.value:.6g} because: {came_from(origin)}"
        for step in origin.steps[1:5]:
            yield f"  {step}"
    if birth.discard is not None:
        where = f" ({birth.discard.location})" if birth.discard.location else ""
        yield f"dropped in forward by {birth.discard.op}{where}, brought back by its gradient"
    if birth.nan_from is not None:
        yield f"the infinity was born in {birth.nan_from.op} at {birth.nan_from.location}"


def came_from(origin: Origin) -> str:
    """One clause that says where a value was decided."""
    place = f" ({origin.location})" if origin.location else ""
    kind, what = origin.kind, origin.what
    if origin.cancellation is not None:
        lost = origin.cancellation
        exact = f"; in float64 the difference is {lost.exact:.6g}" if lost.exact is not None else ""
        return f"{lost.left:.9g} - {lost.right:.9g} cancelled to {lost.result:.3g}{exact}{place}"
    sentences = {
        OriginKind.SIGMOID: what if "saturated" in what else "a sigmoid underflowed to 0",
        OriginKind.SOFTMAX: what if "saturated" in what else "a softmax underflowed to 0",
        OriginKind.RELU: f"{what} cut a negative value to 0",
        OriginKind.EXP: f"{what} of a large magnitude",
        OriginKind.CLAMP: f"{what} put it at its bound",
        OriginKind.NORM: f"a {what} of zeros",
        OriginKind.STD: f"the {what} of equal values",
        OriginKind.MAX: f"{what}",
        OriginKind.COUNT: f"{what}: it selects nothing",
        OriginKind.PRODUCT: f"a product that underflowed ({what})" if what == "underflow" else "a product",
        OriginKind.SIGN: "sign(0) is 0",
        OriginKind.DATA: f"it comes from {what or 'data'}",
        OriginKind.CONSTANT: f"a constant ({what})",
        OriginKind.RANDOM: f"a random sample ({what})",
        OriginKind.PARAMETER: f"the weight {what}",
        OriginKind.BUFFER: f"the buffer {what}",
        OriginKind.NETWORK: f"the network's own arithmetic ({what})",
        OriginKind.ROUNDING: f"{what}",
        OriginKind.CANCELLATION: "equal terms cancelled",
        OriginKind.SELECTION: what,
    }
    return sentences.get(kind, what or "unknown") + place


def strength(birth: Birth, score: float) -> float:
    """A domain error whose value was dropped in forward is first of all a trap: its own cause steps back."""
    return score - 0.4 if birth.sink == "gradient" and birth.discard is not None else score


def elements(birth: Birth) -> str:
    """How many elements went bad, for a sentence."""
    if birth.total <= 1:
        return f"result {birth.value} ({birth.dtype})"
    return f"{birth.bad_count:,} of {birth.total:,} elements bad ({birth.dtype}, shape {list(birth.shape)})"
