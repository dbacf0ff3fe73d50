"""The page of a capsule: offline, escaped, whole, and there whatever the capsule holds."""

from __future__ import annotations

import base64
import html.parser
import json
import math
import re
import struct
import subprocess
import sys
import zlib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanopsy.capsule import format as capsule_format
from nanopsy.capsule.chain import MOST_OPERANDS, MOST_STEPS, Chain, ChainStep, Constant, Spread
from nanopsy.capsule.format import Capsule
from nanopsy.findings import Diagnosis, Finding, Fix, Incident, Location, Outcome, Safety, What
from nanopsy.report.drawing import Axis
from nanopsy.report.graph import birth
from nanopsy.report.html import render
from nanopsy.report.picture import MOST_SIDE, SCALE, png
from nanopsy.report.shown import brief, figure

HOSTILE = "</code></pre></title></style><script>alert(1)</script>\"><img src=x onerror=alert(2)>'{{ 7 * 7 }}\u202e\x1b[31m\ud800 http://example.org/x"
VOID = {"meta", "br", "img"}


class Page(html.parser.HTMLParser):
    """Balanced tags, and everything that a page could load."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"<{tag}> says something twice"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())

    def names(self) -> set[str]:
        return {tag for tag, _ in self.tags}


ALLOWED = {
    "html", "head", "meta", "title", "style", "body", "header", "main", "section", "h1", "h2", "h3", "p", "dl", "dt", "dd", "span", "pre", "i", "mark", "code",
    "table", "thead", "tbody", "tr", "th", "td", "div", "figure", "figcaption", "strong", "br", "ul", "li", "details", "summary",
    "svg", "g", "text", "path", "rect", "circle", "image", "defs", "marker",
}  # fmt: skip


def checked(capsule: Capsule) -> Page:
    """The page, when it is well-formed, holds no script and loads nothing."""
    written = render(capsule)
    written.encode("utf-8")
    page = Page(written)
    assert page.names() <= ALLOWED
    for tag, attributes in page.tags:
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in ("src", "href", "xlink:href", "action", "srcset", "data", "poster"):
                assert tag == "image"
                assert re.fullmatch(r"data:image/png;base64,[A-Za-z0-9+/=]+", value or "")
            if name == "style":
                assert "url(" not in (value or "")
            elif "url(" in (value or ""):
                assert name in ("marker-start", "marker-end")
                assert (value or "").startswith("url(#")
    assert "@import" not in written
    assert not set(re.findall(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", written))
    return page


def grey(height: int = 4, width: int = 6, **more: Any) -> dict[str, Any]:
    pixels = base64.b64encode(bytes(range(height * width))).decode()
    return {"name": "depth", "shape": [1, 1, 2 * height, 2 * width], "dtype": "float32", "plane": 0, "low": 0.0, "high": 80.0, "bad": 2, "zeros": 1,
            "count": 4 * height * width, "height": height, "width": width, "channels": 1, "pixels": pixels, "marks": [[1, 2], [3, 4]]} | more  # fmt: skip


def full(word: str = "") -> Capsule:
    """A capsule with everything in it; ``word`` is a part of every string."""
    place = Location(f"{word}loss.py", 3, 5, 3, 12)
    fix = Fix(f"--- a/{word}\n+++ b/{word}\n@@ -3 +3 @@\n-    torch.log(x){word}\n+    torch.log(x + 1){word}", Safety.UNSAFE, f"{word}a note")
    evidence = {"op": "log", "value": "-inf", "replacement": f"{word}nanopsy.stable.log", f"{word}key": [word, {word: word}], "operands":
                [{"name": f"{word}self", "value": 0.0, "shape": [2], "dtype": f"{word}f32", "low": 0.0, "high": 1.0, "origin": word, "origin_what": word}]}  # fmt: skip
    first = Finding(f"{word}NAN202", f"{word}log-of-zero", place, f"{word}log of exactly 0", also=(Location(f"{word}loss.py", 2, 1, 2, 4), Location(word, 1)),
                    evidence=evidence, path=(f"{word}log", "mean"), story=(f"{word}x is 0 because of relu",), fix=fix, verified=True,
                    verification=f"{word}verified: loss 1")  # fmt: skip
    second = replace(first, code=f"{word}NAN209", slug=f"{word}division-by-zero", location=None)
    incident = Incident(53, What.LOSS, Outcome.REPRODUCED, [first, second], 2, f"{word}bit for bit", f"{word}the weights are clean", rank=3,
                        batch={"number": 7, "samples": [348, word], word: word})  # fmt: skip
    another = Incident(60, What.GRADIENT, Outcome.FLAKY, [replace(first, code="NAN601")])
    spread = Spread(0.0, 4.0, 5, 1, 24, (5, 0, 2, 17))
    chain = Chain(
        (Constant("a", "float32", (2,), f"{word}batch[1]", True, (4, 6), spread, 1, 0), Constant("b", "bool", (2,), word)),
        (
            ChainStep(("c",), "aten.relu.default", ({"tensor": "a"},), {}, f"{word}loss.py:2:1", f"{word}relu(x)", f"{word}0"),
            ChainStep(("d",), "aten.log.default", ({"tensor": "c"},), {}, str(place), f"{word}torch.log(x)", "-inf"),
            ChainStep(("e",), "aten.where.self", ({"tensor": "b"}, {"tensor": "d"}, {"tensor": "c"}), {}, word, word, "nan"),
        ),
    )
    history: list[dict[str, Any]] = [
        {"step": k, "loss": 1.5**k, "gradient_norm": 3.0 - k, "lr": 1e-3, "weight_norm": None if k % 2 else 7.0 + k} for k in range(20)
    ]
    history += [{"step": 20, "loss": "nan", "gradient_norm": "inf", "lr": 1e-3, "weight_norm": None, word: word}]
    return Capsule(
        Diagnosis([incident, another], 53, [f"{word}a note of the run"]), {"torch": f"{word}2.6", word: word, "threads": 2},
        [{"file": f"{word}loss.py", "start": 1, "lines": [f"{word}import torch", "x = relu(x)", f"    torch.log(x){word}"]}], history, chain,
        script=f"{word}\nraise SystemExit(3)\n", pictures=[grey(name=f"{word}depth", dtype=f"{word}f32"), grey(channels=3, pixels="AAAA" * 24, name="rgb")],
        created=f"{word}2026", members={"diagnosis.json": 1234, "repro.py": 30},
    )  # fmt: skip


def test_every_part_of_a_capsule_is_on_its_page_in_order() -> None:
    page = checked(full())
    parts = [
        "NAN202", "log-of-zero", "log of exactly 0", "loss.py:3:5", "53, seen 2 times", "rank3", "7, samples 348", "reproduced: bit for bit", "verified: loss 1",
        "the weights are clean", "The line", "Further places", "loss.py:2:1", "How the value came about", "x is 0 because of relu", "log → mean",
        "d = log", "-inf", "born here", "Pictures", "1 zero and 2 bad of 96", "Bad within 2 pixels of row 2 column 4, row 6 column 8", "rgb",
        "Values at the start of the chain", "elements", "0 to 4, 5 zero and 1 bad of 24", "The steps before", "loss (log)", "NaN", "gradient norm", "inf",
        "weight norm", "learning rate 0.001 throughout", "The fix", "unsafe", "a note", "-    torch.log(x)", "+    torch.log(x + 1)", "nanopsy.stable.log",
        "What the finding was judged by", "Less likely", "NAN209", "NAN601", "Again, on your machine", "nanopsy replay", "nanopsy explain NAN202",
        "raise SystemExit(3)", "Where it ran", "torch", "2.6", "a note of the run", "In this capsule", "diagnosis.json", "1.23 kB", "Made 2026",
    ]  # fmt: skip
    at = 0
    for part in parts:
        found = page.text.find(" ".join(part.split()), at)
        assert found >= 0, part
        at = found


def test_the_page_is_offline() -> None:
    page = checked(full())
    policy = [attributes["content"] for tag, attributes in page.tags if attributes.get("http-equiv") == "Content-Security-Policy"]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]
    written = render(full())
    assert "<script" not in written
    assert not re.search(r"https?:", written)


def test_strings_of_strangers_are_text_in_every_field() -> None:
    tame, hostile = checked(full()), checked(full(HOSTILE))
    assert [tag for tag, _ in hostile.tags if tag in ("script", "img")] == []
    assert {tag for tag, _ in hostile.tags} == {tag for tag, _ in tame.tags}
    assert hostile.text.count("alert(1)") > 40
    assert "{{ 7 * 7 }}" in hostile.text


def test_a_stranger_writes_no_command_to_copy() -> None:
    capsule = full()
    capsule.diagnosis.incidents[0].findings[0] = replace(capsule.diagnosis.findings[0], code="NAN202; rm -rf ~")
    assert "nanopsy explain" not in checked(capsule).text
    assert "nanopsy explain NAN202" in checked(full()).text


def test_the_expression_is_underlined() -> None:
    written = render(full())
    assert "<mark>torch.l</mark>og(x)" in written


def test_an_expression_over_several_lines() -> None:
    capsule = full()
    finding = replace(capsule.diagnosis.findings[0], location=Location("loss.py", 2, 5, 3, 9), also=())
    capsule.diagnosis.incidents[0].findings = [finding]
    written = render(capsule)
    assert "<mark>relu(x)</mark>" in written
    assert "<mark>torc</mark>h.log(x)" in written


@pytest.mark.parametrize("code", ["from nanopsy.report.html import render", "sys.argv = ['nanopsy', 'report', PATH, '--format', 'html']\nfrom nanopsy.cli import main\nassert main() in (0, None)"],
                         ids=["module", "verb"])  # fmt: skip
def test_neither_torch_nor_numpy_is_imported(code: str, tmp_path: Path) -> None:
    capsule = full()
    capsule.chain = None
    path = capsule_format.write(capsule, tmp_path / "a.nanopsy")
    script = f"import sys\nPATH = {str(path)!r}\n{code}\nsys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=False).returncode == 0


def test_a_capsule_with_nothing_in_it() -> None:
    assert "no incident" in checked(Capsule(Diagnosis())).text
    unknown = checked(Capsule(Diagnosis([Incident(3, What.GRADIENT, Outcome.NOT_REPRODUCED)], 3)))
    assert "Nothing is claimed" in unknown.text
    assert "No edit is known" in unknown.text
    bare = checked(Capsule(Diagnosis([Incident(3, What.LOSS, Outcome.REPRODUCED, [Finding("NAN901", "transient", None, "gone")])], 3), data=False))
    assert "no line of yours" in bare.text
    assert "Values were left out" in bare.text


def test_what_a_written_and_read_capsule_shows(tmp_path: Path) -> None:
    capsule = full()
    capsule.chain = None
    read = capsule_format.read(capsule_format.write(capsule, tmp_path / "a.nanopsy"))
    assert "verified: loss 1" in checked(read).text


# -- pictures ----------------------------------------------------------------------------------------------------------------


NONSENSE: dict[str, dict[str, Any]] = {
    "too wide": {"width": MOST_SIDE + 1}, "huge": {"width": 1 << 40, "height": 1 << 40}, "negative": {"height": -4}, "no size": {"height": None},
    "a size that is a truth": {"height": True}, "a size that is text": {"width": "6"}, "two channels": {"channels": 2}, "too few pixels": {"pixels": "AAAA"},
    "not base64": {"pixels": "!" * 32}, "not ASCII": {"pixels": "é" * 32}, "no pixels": {"pixels": None}, "too many": {"pixels": "A" * 4000},
}  # fmt: skip


@pytest.mark.parametrize("change", NONSENSE.values(), ids=NONSENSE)
def test_a_picture_that_is_none_is_skipped_with_a_sentence(change: dict[str, Any]) -> None:
    capsule = full()
    capsule.pictures = [grey(name="strange") | change, grey(name="sound")]
    page = checked(capsule)
    assert "The picture 'strange' is not shown: it" in page.text
    assert sum(tag == "image" for tag, _ in page.tags) == 1


def test_marks_that_are_none_are_left_out() -> None:
    capsule = full()
    capsule.pictures = [grey(marks=[[1, 2], [99, 0], [-1, 0], ["a", 0], None, [1], [True, 1], 3, [1, 2]])]
    assert "Bad within 2 pixels of row 2 column 4." in checked(capsule).text


def test_many_pictures_are_bounded() -> None:
    capsule = full()
    capsule.pictures = [grey() for _ in range(5000)]
    page = checked(capsule)
    assert sum(tag == "image" for tag, _ in page.tags) == 16
    assert "More than 16 pictures" in page.text


def decoded(file: bytes) -> tuple[int, int, bytes]:
    """An independent reader of the PNG subset that is written."""
    assert file[:8] == b"\x89PNG\r\n\x1a\n"
    at, parts, size = 8, b"", (0, 0)
    while at < len(file):
        length, kind = struct.unpack(">I4s", file[at : at + 8])
        content = file[at + 8 : at + 8 + length]
        assert struct.unpack(">I", file[at + 8 + length : at + 12 + length])[0] == zlib.crc32(kind + content)
        if kind == b"IHDR":
            size = struct.unpack(">II", content[:8])
            assert content[8:] == bytes([8, 2, 0, 0, 0])
        parts += content if kind == b"IDAT" else b""
        at += 12 + length
    rows, stride = zlib.decompress(parts), 3 * size[0] + 1
    assert all(rows[start] == 0 for start in range(0, len(rows), stride))
    return size[0], size[1], b"".join(rows[start + 1 : start + stride] for start in range(0, len(rows), stride))


@given(st.integers(1, 9), st.integers(1, 9), st.data())
def test_a_png_holds_its_pixels(width: int, height: int, data: st.DataObject) -> None:
    rgb = data.draw(st.binary(min_size=3 * width * height, max_size=3 * width * height))
    assert decoded(png(width, height, rgb)) == (width, height, rgb)


def first_picture(capsule: Capsule) -> bytes:
    uri = next(attributes["href"] for tag, attributes in checked(capsule).tags if tag == "image")
    return decoded(base64.b64decode(str(uri).partition(",")[2]))[2]


def test_bad_pixels_zeros_and_values_have_their_colours() -> None:
    capsule = full()
    capsule.pictures = [grey()]
    pixels = first_picture(capsule)
    colours = [tuple(pixels[3 * k : 3 * k + 3]) for k in range(24)]
    assert colours[1 * 6 + 2] == colours[3 * 6 + 4] == (255, 0, 84)
    assert colours[0] == (128, 132, 138)
    assert colours[5] == SCALE[5]
    capsule.pictures = [grey(low=1.0)]
    assert tuple(first_picture(capsule)[:3]) == SCALE[0]


def test_three_channels_stay_as_they_are() -> None:
    content = bytes(range(72))
    capsule = full()
    capsule.pictures = [grey(channels=3, pixels=base64.b64encode(content).decode(), marks=[])]
    assert first_picture(capsule) == content


def test_the_scale_grows_lighter_evenly() -> None:
    def lightness(colour: tuple[int, int, int]) -> float:
        linear = [part / 255 / 12.92 if part <= 10 else ((part / 255 + 0.055) / 1.055) ** 2.4 for part in colour]
        y = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
        return 116 * y ** (1 / 3) - 16 if y > 0.008856 else 903.3 * y

    values = [lightness(colour) for colour in SCALE[::5]]
    steps = [after - before for before, after in pairwise(values)]
    assert min(steps) > 0
    assert max(steps) < 3.2 * min(steps)
    assert len(set(SCALE)) > 240


# -- history and chain ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [["nan", "inf"], ["-inf", 1.0, "nan"], [1e308, -1e308], [5e-324, 1e300], [0.0, 0.0, 1.0], [1.0, 1.0 + 1e-15], [-1, -1e-12],
                                    [10**400, 1], [None, 1, 2], [{}, [], "x", True, 3, 4]], ids=str)  # fmt: skip
def test_strange_histories(values: list[Any]) -> None:
    capsule = full()
    capsule.history = [{"step": k, "loss": value} for k, value in enumerate(values)]
    checked(capsule)


def test_a_history_without_steps_or_with_strange_ones() -> None:
    capsule = full()
    capsule.history = [{"loss": 1.0}, {"step": "nan", "loss": 2.0}, {"step": 10**30, "loss": 3.0}, {"step": -4, "loss": 1}]
    assert "The last 4 of 4" in checked(capsule).text


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=6), st.booleans())
def test_ticks_are_few_and_on_the_axis(values: list[float], log: bool) -> None:
    axis = Axis(values, 0.0, 100.0, log=None if log else False)
    ticks = axis.ticks()
    assert 1 <= len(ticks) <= 10
    assert all(math.isfinite(tick) and -1 <= axis(tick) <= 101 for tick in ticks)


def test_a_backward_chain_has_its_arrows() -> None:
    capsule = full()
    assert capsule.chain is not None
    gradient = Constant("g", "float32", (2,), "the gradient that arrived here")
    capsule.chain = replace(capsule.chain, constants=(*capsule.chain.constants, gradient), backward=("d", "g"))
    page = checked(capsule)
    assert sum(attributes.get("class") == "back" for _, attributes in page.tags) == 3
    assert "on its way back" in page.text
    assert birth(capsule.chain, None) == 1


def test_the_birth_is_the_first_bad_value_without_a_finding() -> None:
    chain = full().chain
    assert chain is not None
    assert birth(chain, None) == 1
    silent = replace(chain, steps=tuple(replace(step, value="") for step in chain.steps))
    assert birth(silent, None) == 2


def test_the_largest_chain_that_a_capsule_may_hold() -> None:
    names = [f"{chr(97 + k % 26)}{k}" for k in range(MOST_OPERANDS + MOST_STEPS)]
    constants = tuple(Constant(name, "float32", (1,)) for name in names[:MOST_OPERANDS])
    for used in (1, 3, 40):
        steps = tuple(
            ChainStep((names[MOST_OPERANDS + k],), "aten.stack.default", ([{"tensor": names[(7 * k + j) % (MOST_OPERANDS + k)]} for j in range(used)],))
            for k in range(MOST_STEPS)
        )
        capsule = full()
        capsule.chain = Chain.from_dict(json.loads(json.dumps(Chain(constants, steps, (names[-1], names[0])).to_dict())))
        page = checked(capsule)
        assert ("graph" in {attributes.get("class") for _, attributes in page.tags}) == (used < 40)
        assert f"The chain in {MOST_STEPS} lines" in page.text


def test_a_chain_whose_tensors_have_one_name() -> None:
    capsule = full()
    constants = (Constant("a", "float32", (1,)), Constant("a", "float32", (1,)))
    for backward in (None, ("a", "a"), ("b", "b"), ("a", "b"), ("b", "c")):
        capsule.chain = Chain(constants, (ChainStep(("b", "c", "c"), "aten.relu.default", ({"tensor": "a"},)),), backward)
        checked(capsule)


# -- anything --------------------------------------------------------------------------------------------------------------------


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from([10**400, -(10**4000), HOSTILE, "nan", "-inf"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4), max_leaves=8,
)  # fmt: skip
PICTURES = st.fixed_dictionaries({}, optional={key: JSON | st.just(value) for key, value in grey().items()})
RECORDS = st.fixed_dictionaries({}, optional=dict.fromkeys(("step", "loss", "gradient_norm", "lr", "weight_norm"), JSON | st.floats()))


@settings(max_examples=150, deadline=None)
@given(st.lists(PICTURES, max_size=3), st.lists(RECORDS, max_size=5), st.dictionaries(st.text(max_size=8), JSON, max_size=4), st.dictionaries(
    st.sampled_from(["op", "value", "operands", "replacement", "x"]), JSON, max_size=5))  # fmt: skip
def test_no_json_breaks_the_page(pictures: list[dict[str, Any]], history: list[dict[str, Any]], environment: dict[str, Any], evidence: dict[str, Any]) -> None:
    capsule = full()
    capsule.pictures, capsule.history, capsule.environment = pictures, history, environment
    incident = capsule.diagnosis.incidents[0]
    incident.findings[0] = replace(incident.findings[0], evidence=evidence)
    incident.batch, incident.history = environment, history
    checked(capsule)


@settings(max_examples=100, deadline=None)
@given(
    st.floats(),
    st.floats(),
    st.integers(),
    st.lists(st.integers(), max_size=100),
    st.lists(st.integers(0), max_size=10),
    st.integers(1, 1 << 52),
    st.integers(0, 1 << 52),
)
def test_no_spread_or_place_breaks_the_page(low: float, high: float, many: int, bins: list[int], sizes: list[int], line: int, column: int) -> None:
    capsule = full()
    assert capsule.chain is not None
    spread = Spread(low, high, many, many, many, tuple(bins))
    capsule.chain = replace(capsule.chain, constants=tuple(replace(it, spread=spread, whole=tuple(sizes)) for it in capsule.chain.constants))
    finding = replace(
        capsule.diagnosis.findings[0], location=Location("loss.py", 1 + line % 3, column, line, column), also=(Location("loss.py", line, column),)
    )
    capsule.diagnosis.incidents[0].findings[0] = finding
    checked(capsule)


@given(JSON)
def test_anything_is_brief(value: Any) -> None:
    assert len(brief(value)) <= 700


def test_what_is_deep_is_cut() -> None:
    deep: Any = []
    for _ in range(900):
        deep = [deep, {"x": deep}]
    assert len(brief(deep)) <= 700


def test_numbers_as_people_read_them() -> None:
    shown = [figure(value) for value in (math.nan, math.inf, -math.inf, 1536.0, 0.000123456, 1e300, -0.0, None)]
    assert shown == ["NaN", "inf", "-inf", "1,536", "0.0001235", "1e+300", "0", "?"]
