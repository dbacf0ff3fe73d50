"""What a demonstration leaves behind: figures (PNG and SVG), tables (CSV and Markdown), and a short text that shows them."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanopsy.depth.writing import atomically, make_folder, write_text

__all__ = ["Sheets", "Table", "shown"]

Value = str | int | float | bool | None


def shown(value: Value, digits: int = 4) -> str:
    """A value as a reader sees it: few digits, NaN and infinities by name."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        if math.isinf(value):
            return "inf" if value > 0 else "-inf"
        return f"{value:.{digits}g}"
    return f"{value:,}" if isinstance(value, int) else value


@dataclass(slots=True)
class Table:
    """Rows under a header."""

    title: str
    header: Sequence[str]
    rows: list[Sequence[Value]] = field(default_factory=list)

    def add(self, *row: Value) -> None:
        """One more row."""
        assert len(row) == len(self.header), f"{len(row)} values under {len(self.header)} headings"
        self.rows.append(row)

    def markdown(self) -> str:
        """A pipe table; numbers to four digits."""

        def line(cells: Sequence[str]) -> str:
            return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

        numeric = [bool(self.rows) and all(isinstance(row[k], (int, float)) or row[k] is None for row in self.rows) for k in range(len(self.header))]
        rule = "|" + "|".join("---:" if each else "---" for each in numeric) + "|"
        return "\n".join([line(self.header), rule, *(line([shown(value) for value in row]) for row in self.rows)])

    def csv(self) -> str:
        """All digits."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(self.header)
        writer.writerows([["" if value is None else repr(value) if isinstance(value, float) else value for value in row] for row in self.rows])
        return stream.getvalue()


@dataclass(frozen=True, slots=True)
class Block:
    """One piece of the text."""

    kind: str
    """``heading``, ``text``, ``table`` or ``figure``."""
    text: str
    table: Table | None = None
    figure: str = ""


class Sheets:
    """A folder that fills with figures, tables and paragraphs; `close` writes README.md and report.html.

    Args:
        folder: made if it is not there; files of the same names are replaced.
        title: first line of the text.
    """

    def __init__(self, folder: str | Path, title: str) -> None:
        self.folder, self.title = make_folder(folder), title
        self.blocks: list[Block] = []

    def heading(self, text: str) -> None:
        """A section begins."""
        self.blocks.append(Block("heading", text))

    def say(self, text: str) -> None:
        """A paragraph."""
        self.blocks.append(Block("text", " ".join(text.split())))

    def table(self, name: str, table: Table) -> None:
        """``tables/name.csv`` and ``.md``, and the table in the text."""
        make_folder(self.folder / "tables")
        write_text(self.folder / "tables" / f"{name}.csv", table.csv())
        write_text(self.folder / "tables" / f"{name}.md", f"{table.title}\n\n{table.markdown()}\n")
        self.blocks.append(Block("table", table.title, table=table))

    def figure(self, name: str, caption: str, draw: Callable[[Any], None], size: tuple[float, float] = (7.0, 4.2)) -> None:
        """``figures/name.png`` and ``.svg``; ``draw`` gets a matplotlib figure. The same data give the same bytes."""
        import matplotlib as mpl
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        make_folder(self.folder / "figures")
        with mpl.rc_context(
            {"svg.hashsalt": "nanopsy", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False}
        ):
            figure = Figure(figsize=size, layout="constrained")
            FigureCanvasAgg(figure)
            draw(figure)
            atomically(self.folder / "figures" / f"{name}.png", lambda file: figure.savefig(file, format="png", dpi=130, metadata={"Software": None}))
            atomically(self.folder / "figures" / f"{name}.svg", lambda file: figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None}))
        self.blocks.append(Block("figure", caption, figure=name))

    def markdown(self) -> str:
        """The text with its tables; figures by their relative paths."""
        lines = [f"# {self.title}", ""]
        for block in self.blocks:
            if block.kind == "heading":
                lines += [f"## {block.text}", ""]
            elif block.table is not None:
                lines += [f"**{block.text}**", "", block.table.markdown(), ""]
            elif block.figure:
                lines += [f"![{block.text}](figures/{block.figure}.png)", "", f"*{block.text}*", ""]
            else:
                lines += [block.text, ""]
        return "\n".join(lines).rstrip() + "\n"

    def html(self) -> str:
        """One offline page: figures are inside it, everything is escaped, light and dark."""
        import base64
        from importlib.resources import files

        from jinja2 import Environment

        pictures = {
            block.figure: base64.b64encode((self.folder / "figures" / f"{block.figure}.png").read_bytes()).decode() for block in self.blocks if block.figure
        }
        page = Environment(autoescape=True).from_string(files("nanopsy.lab").joinpath("page.html").read_text(encoding="utf-8"))
        return page.render(title=self.title, blocks=self.blocks, pictures=pictures, shown=shown)

    def close(self) -> Path:
        """Write README.md and report.html; returns the first's path."""
        file = self.folder / "README.md"
        write_text(file, self.markdown())
        write_text(self.folder / "report.html", self.html())
        return file
