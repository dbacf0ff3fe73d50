"""From judgements to findings: spans of bytes become columns, related places are looked up, edits are proposed."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from nanopsy.causes import load
from nanopsy.check import fixes
from nanopsy.check.files import Text
from nanopsy.check.settings import Settings
from nanopsy.check.verdicts import Judged, Span
from nanopsy.findings import Finding, Location
from nanopsy.sources import Source, give, parse


@dataclass(slots=True)
class Shaper:
    """Makes the findings of one check. ``texts`` are by real path, ``names`` the paths that findings show."""

    texts: Mapping[str, Text]
    names: Mapping[str, str]
    settings: Settings
    sources: dict[str, Source | None] = field(default_factory=dict)

    def source(self, real: str) -> Source | None:
        """The parsed source of a file."""
        if real not in self.sources:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.sources[real] = parse(real, self.texts[real].text)
        return self.sources[real]

    def findings(self, real: str, judged: list[Judged]) -> list[Finding]:
        """What was judged of one file, as findings; locations count in its joined text."""
        source = self.source(real)
        if source is None:
            return []
        give(source)
        return [self._finding(one, source) for one in judged]

    def _finding(self, one: Judged, source: Source) -> Finding:
        cause = load()[one.code]
        location = _location(one.span, source, self.names[one.span.file], one.function)
        also: list[Location] = []
        story: list[str] = []
        shown = self.settings.shows(one.confidence)
        for span in one.also if shown else ():
            place = self._elsewhere(span)
            if place is not None and place != location:
                also.append(place)
                story.append(span.what)
        edits = fixes.propose(cause, one, replace(location, file=one.span.file)) if shown else ()
        return Finding(
            one.code, cause.slug, location, one.message, also=tuple(also), story=tuple(story), confidence=one.confidence, condition=one.condition,
            edits=tuple(replace(edit, file=location.file) for edit in edits), evidence={"replacement": cause.replacement} if cause.replacement else {},
        )  # fmt: skip

    def _elsewhere(self, span: Span) -> Location | None:
        if span.file not in self.texts:
            return Location(span.file, span.line, 1, span.line, 2)
        source = self.source(span.file)
        return self.texts[span.file].localised(_location(span, source, self.names[span.file])) if source is not None else None


def _location(span: Span, source: Source, name: str, function: str = "") -> Location:
    start, end = source.offset(span.line, span.column), source.offset(span.end_line, span.end_column)
    return Location(name, span.line, start - source.starts[span.line - 1] + 1, span.end_line, end - source.starts[span.end_line - 1] + 1, function)
