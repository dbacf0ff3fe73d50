"""The capsule file: what is written, what is read back, and what is refused."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import random
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from nanopsy.capsule import format as capsule_format
from nanopsy.capsule.chain import Chain, ChainStep, Constant, Spread
from nanopsy.capsule.format import MEMBERS, Capsule, listing, read, write
from nanopsy.capsule.script import MOST_LINES, script
from nanopsy.errors import NanopsyError
from nanopsy.findings import Diagnosis, Finding, Fix, Incident, Location, Outcome, Safety, What
from running import python


def finding(**changes: Any) -> Finding:
    place = Location("losses.py", 3, 10, 3, 22)
    values: dict[str, Any] = {"code": "NAN301", "slug": "bessel-of-one", "location": place, "message": "var over 1 element", "also": (place,), "evidence": {"elements": 1},
                                  "path": ("var", "sqrt"), "story": ("one because",), "fix": Fix("--- a\n+++ b\n-x\n+y", Safety.UNSAFE, "note"), "verified": True,
                                  "verification": "verified: loss 1"}  # fmt: skip
    return Finding(**{**values, **changes})


def chain() -> Chain:
    spread = Spread(0.5, 0.5, 0, 0, 1, ())
    return Chain(
        (Constant("a", "float32", (1,), "prediction", True, (64,), spread),),
        (ChainStep(("b",), "aten.var.correction", ({"tensor": "a"},), {}, "losses.py:3:10", "torch.var(g)"),),
    )


def capsule(**changes: Any) -> Capsule:
    incident = Incident(
        7, What.LOSS, Outcome.REPRODUCED, [finding()], history=[{"step": 6, "loss": 1.0, "gradient_norm": math.nan}], rank=1, batch={"number": 7}
    )
    made = Capsule(Diagnosis([incident], 7, ["a note"]), {"torch": "2.13.0"}, [{"file": "losses.py", "start": 1, "lines": ["a", "b", "    return torch.var(g)"]}],
                   [{"step": 6, "loss": math.inf}], chain(), save({"a": torch.tensor([0.5])}), "print(1)\n")  # fmt: skip
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def rewritten(path: Path, change: Callable[[dict[str, bytes]], Mapping[str, bytes] | None], *, digests: bool = True) -> Path:
    """A capsule with other members; with digests that agree, unless they shall not."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    parts = dict(change(parts) or parts)
    if digests:
        manifest = json.loads(parts["manifest.json"])
        manifest["members"] = {
            name: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()} for name, content in parts.items() if name != "manifest.json"
        }
        parts["manifest.json"] = json.dumps(manifest).encode()
    other = path.with_name("other.nanopsy")
    with zipfile.ZipFile(other, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return other


def changed(name: str, change: Callable[[Any], Any]) -> Callable[[dict[str, bytes]], None]:
    def apply(parts: dict[str, bytes]) -> None:
        entry = json.loads(parts[name])
        parts[name] = json.dumps(change(entry) or entry).encode()

    return apply


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    before = capsule()
    path = write(before, tmp_path / "a.nanopsy")
    after = read(path)
    assert json.dumps(after.diagnosis.to_dict()) == json.dumps(before.diagnosis.to_dict())
    assert after.chain == before.chain
    assert (after.environment, after.sources, after.script) == (before.environment, before.sources, before.script)
    assert after.history == [{"step": 6, "loss": "inf"}]
    assert after.members == before.members
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.nanopsy"]
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    assert set(names) - {"manifest.json"} <= set(MEMBERS)
    assert [name for name, _, _ in listing(after)] == [name for name in names if name != "manifest.json"]


def test_a_newer_format_is_a_sentence(tmp_path: Path) -> None:
    path = write(capsule(), tmp_path / "a.nanopsy")
    other = rewritten(path, changed("manifest.json", lambda it: {**it, "format": capsule_format.FORMAT + 1}))
    with pytest.raises(NanopsyError, match=rf"has format {capsule_format.FORMAT + 1}"):
        read(other)


@pytest.mark.parametrize("number", [None, "1", 0, -1, True, 1.5, []])
def test_a_strange_format_number(tmp_path: Path, number: object) -> None:
    path = write(capsule(), tmp_path / "a.nanopsy")
    with pytest.raises(NanopsyError, match="format number"):
        read(rewritten(path, changed("manifest.json", lambda it: {**it, "format": number})))


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "..\\evil", "sub/diagnosis.json", "evil.pkl", "DIAGNOSIS.JSON"])
def test_a_member_that_no_capsule_has(tmp_path: Path, name: str) -> None:
    path = write(capsule(), tmp_path / "a.nanopsy")
    other = rewritten(path, lambda parts: {**parts, name: b"x"})
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(NanopsyError, match="refused"):
        read(other)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_member_twice(tmp_path: Path) -> None:
    path = write(capsule(), tmp_path / "a.nanopsy")
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("repro.py", "import os")
    with pytest.raises(NanopsyError, match="twice"):
        read(path)


def test_a_zip_bomb_is_not_unpacked(tmp_path: Path) -> None:
    path = write(capsule(), tmp_path / "a.nanopsy")
    bomb = rewritten(path, lambda parts: {**parts, "pictures.json": b"[" + b" " * (65 << 20) + b"]"})
    assert bomb.stat().st_size < 1 << 20
    with pytest.raises(NanopsyError, match="unpacks to"):
        read(bomb)


def test_a_member_that_unpacks_to_more_than_it_says(tmp_path: Path) -> None:
    path = write(capsule(), tmp_path / "a.nanopsy")
    other = rewritten(path, lambda parts: {**parts, "sources.json": b"[" + b" " * 100_000 + b"]"})
    raw = bytearray(other.read_bytes())
    with zipfile.ZipFile(other) as archive:
        size = archive.getinfo("sources.json").file_size
    needle = size.to_bytes(4, "little")
    at = raw.find(needle)
    while at >= 0:
        raw[at : at + 4] = (10).to_bytes(4, "little")
        at = raw.find(needle, at + 4)
    other.write_bytes(raw)
    with pytest.raises(NanopsyError, match="refused"):
        read(other)


def test_another_digest(tmp_path: Path) -> None:
    path = write(capsule(), tmp_path / "a.nanopsy")
    other = rewritten(path, lambda parts: {**parts, "repro.py": b"print(2)"}, digests=False)
    with pytest.raises(NanopsyError, match="SHA-256"):
        read(other)


@pytest.mark.parametrize("content", [b"{", b"[NaN]", b"\xff\xfe", b"[" * 200_000, b"null", b"[1]", b'{"incidents": 3}', b"Infinity"])
@pytest.mark.parametrize("name", ["diagnosis.json", "sources.json", "history.json", "chain.json", "environment.json", "pictures.json"])
def test_bad_json(tmp_path: Path, name: str, content: bytes) -> None:
    path = write(capsule(), tmp_path / "a.nanopsy")
    other = rewritten(path, lambda parts: {**parts, name: content})
    if name == "environment.json" and content == b'{"incidents": 3}':
        read(other)
        return
    with pytest.raises(NanopsyError):
        read(other)


@pytest.mark.parametrize(
    "member", sorted(set(MEMBERS) - {"state.json", "state.safetensors", "pictures.json", "operands.safetensors", "repro.py", "chain.json"})
)
def test_a_missing_member(tmp_path: Path, member: str) -> None:
    path = write(capsule(), tmp_path / "a.nanopsy")
    with pytest.raises(NanopsyError):
        read(rewritten(path, lambda parts: {name: content for name, content in parts.items() if name != member}))


@pytest.mark.parametrize(
    "operator",
    [
        "aten.from_file.default",
        "os.system.default",
        "aten.set_.source_Storage",
        "aten.log.default; import os",
        "aten.as_strided.default",
        "aten.__class__.x",
        "prim.device.default",
    ],
)
def test_operators_that_no_chain_has(tmp_path: Path, operator: str) -> None:
    def other(entry: Any) -> None:
        entry["steps"][0]["op"] = operator

    path = write(capsule(), tmp_path / "a.nanopsy")
    with pytest.raises(NanopsyError, match="operator"):
        read(rewritten(path, changed("chain.json", other)))


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("constants", 0, "shape"), [1 << 40]),
        (("constants", 0, "shape"), [-1]),
        (("constants", 0, "dtype"), "complex64"),
        (("constants", 0, "name"), "__import__('os')"),
        (("steps", 0, "out"), ["a"]),
        (("steps", 0, "args"), [{"tensor": "zz"}]),
        (("steps", 0, "args"), [{"tensor": "a", "x": 1}]),
        (("steps", 0, "args"), [[[[[1]]]]]),
        (("steps", 0, "kwargs"), {"a b": 1}),
        (("steps",), []),
        (("backward",), ["b", "zz"]),
    ],
)
def test_chains_that_are_none(tmp_path: Path, where: tuple[Any, ...], value: object) -> None:
    def other(entry: Any) -> None:
        for key in where[:-1]:
            entry = entry[key]
        entry[where[-1]] = value

    path = write(capsule(), tmp_path / "a.nanopsy")
    with pytest.raises(NanopsyError):
        read(rewritten(path, changed("chain.json", other)))


def test_operands_that_are_larger_than_their_data(tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [1 << 30], "data_offsets": [0, 4]}}).encode()
    content = len(header).to_bytes(8, "little") + header + b"\0\0\0\0"
    path = write(capsule(), tmp_path / "a.nanopsy")
    with pytest.raises(NanopsyError, match="tensors cannot be read"):
        read(rewritten(path, lambda parts: {**parts, "operands.safetensors": content}))


def test_a_compressed_state_is_refused(tmp_path: Path) -> None:
    path = write(capsule(state={"x": 1}), tmp_path / "a.nanopsy")
    with pytest.raises(NanopsyError, match="stored as it is"):
        read(rewritten(path, lambda parts: {**parts, "state.safetensors": b"0" * 1000}))


def test_control_characters_do_not_reach_a_terminal(tmp_path: Path) -> None:
    path = write(capsule(), tmp_path / "a.nanopsy")

    def other(entry: Any) -> None:
        entry["incidents"][0]["findings"][0]["message"] = "\x1b]0;owned\x07 and \u202egnp.exe"
        entry["notes"] = ["\x1b[2J"]

    done = python(tmp_path, "-m", "nanopsy", "report", str(rewritten(path, changed("diagnosis.json", other))))
    assert done.returncode == 0
    assert not {"\x1b", "\x07", "\u202e"} & set(done.stdout)


def test_a_report_shows_no_file_of_this_machine(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("password = hunter2\n")
    path = write(capsule(sources=[]), tmp_path / "a.nanopsy")

    def other(entry: Any) -> None:
        entry["incidents"][0]["findings"][0]["location"]["file"] = str(secret)
        entry["incidents"][0]["findings"][0]["location"]["line"] = 1

    hostile = rewritten(path, changed("diagnosis.json", other))
    for kind in ("text", "json", "sarif", "github"):
        done = python(tmp_path, "-m", "nanopsy", "report", str(hostile), "--format", kind)
        assert done.returncode == 0, done.stderr
        assert "hunter2" not in done.stdout


@pytest.mark.parametrize("kind", ["text", "json", "sarif", "github"])
def test_report_formats(tmp_path: Path, kind: str) -> None:
    path = write(capsule(), tmp_path / "a.nanopsy")
    done = python(tmp_path, "-m", "nanopsy", "report", str(path), "--format", kind, "--output", "out")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "out").read_text()
    assert "NAN301" in text
    assert "losses.py" in text
    if kind in ("json", "sarif"):
        json.loads(text)
    if kind == "text":
        assert "return torch.var(g)" in text
        assert "born on rank 1, batch 7" in text
    if kind == "github":
        assert text.startswith("::")


def test_the_contents_are_listed(tmp_path: Path) -> None:
    path = write(capsule(), tmp_path / "a.nanopsy")
    done = python(tmp_path, "-m", "nanopsy", "report", str(path), "--contents")
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if info.filename != "manifest.json":
                assert info.filename in done.stdout
                assert f"{info.file_size:,}" in done.stdout
    assert "losses.py: lines 1 to 3" in done.stdout
    assert "a: float32 [1] of [64]  prediction" in done.stdout


def test_report_and_contents_need_no_torch(tmp_path: Path) -> None:
    path = write(capsule(), tmp_path / "a.nanopsy")
    for words in (["report", str(path)], ["report", str(path), "--format", "sarif"], ["report", str(path), "--contents"]):
        code = f"import sys; sys.modules['torch'] = None; sys.modules['numpy'] = None; from nanopsy.cli import main; sys.exit(main({words!r}))"
        assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("content", "say"), [(None, "there is no capsule"), (b"", "no zip file"), (b"PK\x03\x04nonsense", "no zip file"), (b"\0" * 5000, "no zip file")]
)
@pytest.mark.parametrize(("verb", "status"), [("report", 2), ("replay", 125)])
def test_a_broken_file_is_a_sentence(tmp_path: Path, content: bytes | None, say: str, verb: str, status: int) -> None:
    if content is not None:
        (tmp_path / "x.nanopsy").write_bytes(content)
    done = python(tmp_path, "-m", "nanopsy", verb, "x.nanopsy")
    assert done.returncode == status
    assert say in done.stderr
    assert "Traceback" not in done.stderr


def test_a_full_disk_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NanopsyError, match="No space left"):
        write(capsule(), tmp_path / "a.nanopsy")
    assert list(tmp_path.iterdir()) == []


def test_a_kill_while_writing_leaves_no_half_file(tmp_path: Path) -> None:
    code = """
import os, signal, sys, zipfile
sys.path.insert(0, sys.argv[2])
import test_capsule
from nanopsy.capsule.format import write
old = zipfile.ZipFile.writestr
def writestr(self, info, *args, **kwargs):
    old(self, info, *args, **kwargs)
    if getattr(info, "filename", info) == "sources.json":
        os.kill(os.getpid(), signal.SIGKILL)
zipfile.ZipFile.writestr = writestr
write(test_capsule.capsule(), sys.argv[1])
"""
    target = tmp_path / "a.nanopsy"
    done = subprocess.run([sys.executable, "-c", code, str(target), str(Path(__file__).parent)], capture_output=True, check=False)
    assert done.returncode == -9, done.stderr.decode()
    assert not target.exists()


@pytest.fixture(scope="module")
def whole() -> bytes:
    buffer = Path(os.environ.get("TMPDIR", "/tmp")) / f"nanopsy-fuzz-{os.getpid()}.nanopsy"
    try:
        return write(capsule(), buffer).read_bytes()
    finally:
        buffer.unlink(missing_ok=True)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.randoms(use_true_random=False), st.integers(1, 12))
def test_damaged_bytes_never_raise_anything_else(whole: bytes, tmp_path: Path, source: random.Random, count: int) -> None:
    damaged = bytearray(whole)
    for _ in range(count):
        place = source.randrange(len(damaged))
        match source.randrange(3):
            case 0:
                damaged[place] = source.randrange(256)
            case 1:
                del damaged[place : place + source.randrange(1, 40)]
            case _:
                damaged[place:place] = bytes(source.randrange(256) for _ in range(source.randrange(1, 8)))
        if not damaged:
            damaged = bytearray(b"x")
    path = tmp_path / "fuzz.nanopsy"
    path.write_bytes(damaged)
    try:
        found = read(path)
    except NanopsyError:
        return
    assert found.diagnosis.incidents[0].findings[0].code == "NAN301", "what is read is what was written, or nothing"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda it: st.lists(it, max_size=3) | st.dictionaries(st.text(max_size=8), it, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["diagnosis.json", "sources.json", "history.json", "chain.json", "pictures.json", "environment.json"]),
    st.randoms(use_true_random=False),
    JSON,
)
def test_json_of_another_shape_never_raises_anything_else(tmp_path: Path, name: str, source: random.Random, value: object) -> None:
    from nanopsy.report.command import contents, show_sources
    from nanopsy.report.text import render

    def other(entry: Any) -> Any:
        holder, key = None, None
        inner = entry
        for _ in range(source.randrange(1, 7)):
            if isinstance(inner, dict) and inner:
                holder, key = inner, source.choice(sorted(inner))
            elif isinstance(inner, list) and inner:
                holder, key = inner, source.randrange(len(inner))
            else:
                break
            inner = holder[key]
        if holder is None:
            return value
        holder[key] = value
        return entry

    path = write(capsule(pictures=[{"name": "depth", "width": 4}]), tmp_path / "a.nanopsy")
    try:
        found = read(rewritten(path, changed(name, other)))
    except NanopsyError:
        return
    show_sources(found)
    render(found.diagnosis)
    contents(found, "a")


def test_the_script_is_short_and_cannot_be_broken_out_of(tmp_path: Path) -> None:
    hostile = "x\nimport os\nos.system('touch owned')\r\u2028\x0c#"
    steps = tuple(ChainStep((f"c{number}",), "aten.neg.default", ({"tensor": "a"},), {}, hostile, hostile) for number in range(10))
    made = Chain((Constant("a", "float32", (2,), hostile, False, (2,)),), steps)
    text = script(made, hostile, {"a": [1.0, math.inf]}, {"a": b""})
    assert len(text.splitlines()) <= MOST_LINES
    file = tmp_path / "repro.py"
    file.write_text(text)
    done = subprocess.run([sys.executable, str(file)], capture_output=True, check=False, cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    assert not (tmp_path / "owned").exists()


def test_no_pickle_anywhere(tmp_path: Path) -> None:
    path = write(capsule(), tmp_path / "a.nanopsy")
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
        for name in archive.namelist():
            assert not archive.read(name).startswith(b"\x80"), name
    for file in (Path(capsule_format.__file__).parent.parent).rglob("*.py"):
        text = file.read_text()
        assert "import pickle" not in text, file
