"""The one exception users see, and the exit statuses of every verb."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nanopsy.findings import Diagnosis

EXIT_CLEAN = 0
"""Nothing was found."""

EXIT_SUSPICIONS = 1
"""``nanopsy check`` found something."""

EXIT_FINDINGS = 3
"""An incident stopped the run (``nanopsy run``)."""

EXIT_USAGE = 2
"""nanopsy itself was used wrongly, or could not do its work."""

EXIT_CANNOT = 125
"""A capsule could not be replayed (``git bisect run`` then skips the commit)."""


class NonFiniteStep(RuntimeError):  # noqa: N818
    """A training step was stopped before the optimizer wrote a NaN or an infinity into the weights.

    ``diagnosis`` is what was found; the message is the report as the terminal shows it.
    """

    def __init__(self, diagnosis: Diagnosis) -> None:
        self.diagnosis = diagnosis
        super().__init__(str(diagnosis))


class NanopsyError(Exception):
    """Bad input or a broken precondition, said in four parts.

    Args:
        what: what happened, with the numbers.
        where: the file, option or object concerned.
        why: why it matters to the user.
        do: what to do about it.
    """

    def __init__(self, what: str, *, where: str = "", why: str = "", do: str = "") -> None:
        self.what, self.where, self.why, self.do = what, where, why, do
        super().__init__(self.render())

    def render(self) -> str:
        """The four parts as the lines that a terminal shows."""
        lines = [f"nanopsy: {self.what}"]
        for label, text in (("where", self.where), ("why", self.why), ("do", self.do)):
            if text:
                lines.append(f"  {label}: {text}")
        return "\n".join(lines)
