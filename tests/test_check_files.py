"""Files of the linter: which are found, what they say, what is written back, which lines ask for silence."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nanopsy.check.baseline import filter_baseline, read_baseline, write_baseline
from nanopsy.check.discovery import discover
from nanopsy.check.files import LARGEST, Text, _without_magics, decode, edited, read, split_lines, write_atomically, write_back
from nanopsy.check.ignores import Ignores, Patterns
from nanopsy.check.settings import Settings
from nanopsy.check.suppress import suppress
from nanopsy.errors import NanopsyError
from nanopsy.findings import Confidence, Edit, Finding, Inspection, Location, Problem, Safety
from nanopsy.report.fingerprint import fingerprint, fingerprints


def tree(root: Path, *files: str) -> None:
    for file in files:
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("", encoding="utf-8")


def names(found: list[str], root: Path) -> list[str]:
    return [os.path.relpath(each, root) for each in found]


# --- ignored ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "path", "folder", "verdict"),
    [
        ("*.py", "a/b.py", False, True),
        ("/a.py", "a.py", False, True),
        ("/a.py", "b/a.py", False, None),
        ("a/b.py", "c/a/b.py", False, None),
        ("build/", "build", False, None),
        ("build/", "x/build", True, True),
        ("*\n!keep.py", "keep.py", False, False),
        ("!keep.py\n*", "keep.py", False, True),
        ("**/x.py", "x.py", False, True),
        ("**/x.py", "a/b/x.py", False, True),
        ("a/**", "a", True, None),
        ("a/**", "a/b", True, True),
        ("a/**/b", "a/b", False, True),
        ("a/**/b", "a/x/y/b", False, True),
        ("a/**/**/b", "a/x/b", False, True),
        ("a/*/b", "a/x/y/b", False, None),
        ("a/*", "a", True, None),
        ("# no", "# no", False, None),
        (r"\# yes", "# yes", False, True),
        (r"\!yes", "!yes", False, True),
        ("trail   ", "trail", False, True),
        ("trail\\ ", "trail ", False, True),
        ("trail\r", "trail", False, True),
        ("[a-c].py", "b.py", False, True),
        ("[!a-c].py", "b.py", False, None),
        ("[^a-c].py", "d.py", False, True),
        ("[]x].py", "].py", False, True),
        ("[[:digit:]].py", "7.py", False, True),
        ("[[:nothing:]].py", "7.py", False, None),
        ("[a", "[a", False, None),
        ("[z-a]", "b", False, None),
        ("[!z-a]", "b", False, True),
        (r"[\]]", "]", False, True),
        ("[a[&&b]", "&", False, True),
        ("?.py", "é.py", False, True),
        ("a?b", "a/b", False, None),
        ("/", "a", True, None),
        ("!", "a", False, None),
        ("", "a", False, None),
        ("x\\", "x", False, None),
        ("a.b", "axb", False, None),
        ("\ufeffa", "a", False, True),
        ("new*", "new\nline", False, True),
    ],
)
def test_ignore_patterns(text: str, path: str, folder: bool, verdict: bool | None) -> None:
    assert Patterns.of(text).verdict(path, folder=folder) is verdict


PIECES = st.sampled_from(["a", "b", "ab", "*", "?", "[ab]", "[!a]", "[a-b]", "[[:alpha:]]", "\\a", "a*", "*b", "[]b]", "c", "a b"])
PATTERN = st.builds(
    lambda negated, front, parts, back: ("!" if negated else "") + front + "/".join(parts) + back,
    st.booleans(),
    st.sampled_from(["", "/", "**/"]),
    st.lists(st.one_of(PIECES, st.just("**")), min_size=1, max_size=3),
    st.sampled_from(["", "/", "/**", " ", "\\ "]),
)
FILE = st.lists(st.sampled_from(["a", "b", "ab", "c", "ba", "a b", "a ", "]"]), min_size=1, max_size=3)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(outer=st.lists(PATTERN, max_size=5), inner=st.lists(PATTERN, max_size=3), files=st.lists(FILE, min_size=1, max_size=12))
def test_ignores_what_git_ignores(tmp_path_factory: pytest.TempPathFactory, outer: list[str], inner: list[str], files: list[list[str]]) -> None:
    root = tmp_path_factory.mktemp("tree")
    # The files' names end in .py, the folders' do not, so that no path is both.
    paths = sorted({"/".join([*parts, "a.py"]) for parts in files} | {"/".join([*parts[:-1], parts[-1] + ".py"]) for parts in files})
    tree(root, *paths)
    (root / ".gitignore").write_text("\n".join(outer), encoding="utf-8")
    if (root / "a").is_dir():
        (root / "a" / ".gitignore").write_text("\n".join(inner) + "\n", encoding="utf-8")
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "HOME": str(root)}
    subprocess.run(["git", "init", "-q", "."], cwd=root, check=True, env=environment, capture_output=True)
    listed = subprocess.run(["git", "ls-files", "-z", "--others", "--exclude-standard"], cwd=root, check=True, env=environment, capture_output=True).stdout
    expected = sorted(name for name in listed.decode().split("\0") if name.endswith(".py"))
    assert sorted(names(discover([str(root)], Settings(exclude=(".git",))), root)) == expected


def test_an_ignore_file_above_and_beside(tmp_path: Path) -> None:
    tree(tmp_path, "top/in/a.py", "top/in/b.py", "top/in/c.py")
    (tmp_path / ".gitignore").write_text("c.py\n")
    (tmp_path / "top" / ".gitignore").write_text("a.py\n/in/b.py\n")
    assert names(discover([str(tmp_path / "top" / "in")], Settings()), tmp_path) == ["top/in/a.py", "top/in/b.py", "top/in/c.py"]
    (tmp_path / "top" / ".git" / "info").mkdir(parents=True)
    assert names(discover([str(tmp_path / "top" / "in")], Settings()), tmp_path) == ["top/in/c.py"]
    (tmp_path / "top" / ".git" / "info" / "exclude").write_text("c.py\n")
    assert discover([str(tmp_path / "top" / "in")], Settings()) == []
    assert len(discover([str(tmp_path / "top" / "in")], Settings(), respect_gitignore=False)) == 3
    assert not Ignores.around(str(tmp_path)).ignores("/elsewhere/c.py", folder=False)


# --- found -----------------------------------------------------------------------------------------------------------


def test_discovery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path, "b.py", "a.py", "n.ipynb", "s.pyi", "t.txt", "build/x.py", "src/build/y.py", "src/p.egg-info/z.py", ".hidden/h.py")
    monkeypatch.chdir(tmp_path)
    plain = Settings(root=str(tmp_path))
    assert discover(["."], plain) == [".hidden/h.py", "a.py", "b.py", "n.ipynb"]
    assert discover(["a.py", "./a.py", str(tmp_path / "a.py"), "."], plain) == [".hidden/h.py", "a.py", "b.py", "n.ipynb"]
    assert discover(["t.txt", "build/x.py"], plain) == ["build/x.py", "t.txt"]
    assert discover(["t.txt", "build/x.py"], plain, force_exclude=True) == ["t.txt"]
    assert discover(["build"], plain) == ["build/x.py"]
    assert discover(["build"], plain, force_exclude=True) == []
    assert discover(["src"], Settings(exclude=("src/build",), root=str(tmp_path))) == ["src/p.egg-info/z.py"]
    assert discover([], plain) == []


def test_a_missing_path_is_refused(tmp_path: Path) -> None:
    tree(tmp_path, "train.py")
    with pytest.raises(NanopsyError, match=r"did you mean .*train\.py") as caught:
        discover([str(tmp_path / "trian.py")], Settings())
    assert caught.value.where.endswith("trian.py")
    with pytest.raises(NanopsyError):
        discover([str(tmp_path / "none" / "none.py")], Settings())


def test_links(tmp_path: Path) -> None:
    tree(tmp_path, "real/a.py")
    (tmp_path / "real" / "loop").symlink_to(tmp_path)
    (tmp_path / "again.py").symlink_to(tmp_path / "real" / "a.py")
    (tmp_path / "broken.py").symlink_to(tmp_path / "gone.py")
    (tmp_path / "self.py").symlink_to(tmp_path / "self.py")
    assert names(discover([str(tmp_path)], Settings()), tmp_path) == ["real/a.py"]
    assert isinstance(read(discover([str(tmp_path / "broken.py")], Settings())[0]), Problem)


def test_a_folder_that_cannot_be_listed_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path, "a.py", "closed/b.py")
    scandir, listdir = os.scandir, os.listdir

    def guarded(real, path):  # type: ignore[no-untyped-def]
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", lambda path: guarded(scandir, path))
    monkeypatch.setattr(os, "listdir", lambda path: guarded(listdir, path))
    found = discover([str(tmp_path)], Settings())
    assert names(found, tmp_path) == ["a.py", "closed"]
    assert read(found[1]) == Problem(found[1], 1, "cannot be read: Permission denied")


# --- read ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "line", "says"),
    [
        (b"x = 1\n\xff\n", 2, "byte 0xff is not utf-8"),
        (b"# coding: nonsense\n", 1, "unknown encoding"),
        (b"# coding: hex\n", 1, "cannot be decoded"),
        (b"x = 1\r\ny\0", 2, "null byte"),
        (b"\xff\xfea\0", 1, "cannot be decoded"),
        (b"# coding: ascii\nx = '\xc3\xa9'\n", 2, "is not ascii"),
    ],
)
def test_what_is_no_source_text(tmp_path: Path, raw: bytes, line: int, says: str) -> None:
    file = tmp_path / "a.py"
    file.write_bytes(raw)
    found = read(str(file))
    assert isinstance(found, Problem)
    assert found.line == line
    assert says in found.message


def test_unusual_files(tmp_path: Path) -> None:
    assert "cannot be read" in str(read(str(tmp_path / "none.py")))
    assert "is a folder" in str(read(str(tmp_path)))
    os.mkfifo(tmp_path / "pipe.py")
    assert "not a regular file" in str(read(str(tmp_path / "pipe.py")))
    with (tmp_path / "large.py").open("wb") as file:
        file.truncate(LARGEST + 1)
    assert "too large" in str(read(str(tmp_path / "large.py")))
    (tmp_path / "empty.py").write_bytes(b"")
    assert read(str(tmp_path / "empty.py")) == Text(str(tmp_path / "empty.py"), "")


def test_lines_are_pythons() -> None:
    assert split_lines("a\x0cb\r\nc\rd\u2028e\n") == ["a\x0cb\r\n", "c\r", "d\u2028e\n"]
    assert split_lines("") == []


SOURCE = st.text(st.characters(max_codepoint=0x2FF, exclude_characters="\0", exclude_categories=("Cs",)), max_size=40)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    body=SOURCE,
    declared=st.sampled_from([("", "utf-8"), ("# coding: latin-1\n", "latin-1"), ("\ufeff", "utf-8"), ("# -*- coding: cp1252 -*-\r\n", "cp1252")]),
    inserted=st.text("abc\r\n", max_size=5),
)
def test_written_back_as_it_was_read_but_for_the_edits(tmp_path: Path, body: str, declared: tuple[str, str], inserted: str) -> None:
    head, encoding = declared
    raw = (head + "x = 1\n" + body).encode(encoding, "ignore")
    file = tmp_path / "a.py"
    file.write_bytes(raw)
    text = read(str(file))
    if isinstance(text, Problem):
        assert "cannot be decoded" in text.message or "encoding" in text.message
        return
    write_back(text)
    assert file.read_bytes() == raw
    at = text.text.index("x = 1")
    write_back(edited(text, [Edit(str(file), at, at + 1, inserted)]))
    position = raw.index(b"x = 1")
    assert file.read_bytes() == raw[:position] + inserted.encode() + raw[position + 1 :]


def test_writing_keeps_mode_and_link_and_leaves_nothing_behind(tmp_path: Path) -> None:
    file, link = tmp_path / "a.py", tmp_path / "link.py"
    file.write_bytes(b"x\n")
    file.chmod(0o750)
    link.symlink_to(file)
    write_back(Text(str(link), "y\n"))
    assert link.is_symlink()
    assert file.read_bytes() == b"y\n"
    assert file.stat().st_mode & 0o777 == 0o750
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.py", "link.py"]
    with pytest.raises(NanopsyError, match="ascii"):
        write_back(Text(str(file), "é", encoding="ascii"))
    with pytest.raises(NanopsyError, match="cannot be written"):
        write_atomically(str(tmp_path / "none" / "a.py"), b"")
    assert file.read_bytes() == b"y\n"


def test_a_failed_replacement_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.py"
    file.write_bytes(b"old")

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(NanopsyError, match="No space left"):
        write_atomically(str(file), b"new")
    assert [each.name for each in tmp_path.iterdir()] == ["a.py"]
    assert file.read_bytes() == b"old"


def test_edits_that_overlap_are_refused() -> None:
    text = Text("a.py", "abcdef")
    assert edited(text, [Edit("a.py", 0, 2, "X"), Edit("a.py", 2, 3, "Y")]).text == "XYdef"
    with pytest.raises(ValueError, match="overlap"):
        edited(text, [Edit("a.py", 0, 3, ""), Edit("a.py", 2, 4, "")])


# --- notebooks -------------------------------------------------------------------------------------------------------


def notebook(*sources: str | list[str], metadata: dict[str, object] | None = None, indent: int | None = 1, tail: str = "\n") -> str:
    cells: list[dict[str, object]] = [{"cell_type": "markdown", "metadata": {}, "source": ["# é\n"]}]
    cells += [{"cell_type": "code", "execution_count": 1, "metadata": {}, "outputs": [], "source": source} for source in sources]
    return json.dumps({"cells": cells, "metadata": metadata or {}, "nbformat": 4, "nbformat_minor": 5}, indent=indent, ensure_ascii=False) + tail


def opened(raw: str) -> Text:
    text = decode("n.ipynb", raw.encode())
    assert isinstance(text, Text)
    return text


def test_a_notebook_is_one_text() -> None:
    text = opened(notebook(["import torch\n", "x = 1"], "y = 2\n", []))
    assert text.text == "import torch\nx = 1\ny = 2\n\n"
    assert [text.place(line) for line in (1, 2, 3, 4)] == [(2, 1), (2, 2), (3, 1), (4, 1)]
    assert text.localised(Location("n.ipynb", 2, 1, 3, 2)) == Location("n.ipynb", 1 + 1, 1, 2, 2, cell=2)
    assert text.lines() == {2: ["import torch", "x = 1"], 3: ["y = 2"], 4: [""]}
    plain = Text("a.py", "a\nb")
    assert plain.place(2) == (0, 2)
    assert plain.lines() == {0: ["a", "b"]}
    assert plain.localised(Location("a.py", 2)) == Location("a.py", 2)


@pytest.mark.parametrize(
    ("source", "plain"),
    [
        ("%matplotlib inline\nx = 1", "#matplotlib inline\nx = 1"),
        ("!pip install \\\n  torch\nx", "#pip install \\\n  #orch\nx"),
        ("x = !ls\n", "x = _#s\n"),
        ("a, b = %who\n", "a, b = _#ho\n"),
        ("if x:\n    !ls\n", "if x:\n    _#s\n"),
        ("torch.var?\n??x\n", "#orch.var?\n#?x\n"),
        ("%%bash\nls\n\n  cd x\n", "#%bash\n#s\n\n  #d x\n"),
        ("%%time\nx = 1\n%who\n", "#%time\nx = 1\n#who\n"),
        ("%%capture\n%%time\nx\n", "#%capture\n#%time\nx\n"),
        ("x = (a\n     % b)\n", "x = (a\n     % b)\n"),
        ("s = '''\n%x\n'''\n!y\n", "s = '''\n%x\n'''\n#y\n"),
        ("x = a \\\n  % b\n", "x = a \\\n  % b\n"),
        ('print("a = %s" % b)\n', 'print("a = %s" % b)\n'),
        ("s = '(' # ('''\n%x\n", "s = '(' # ('''\n#x\n"),
        ("x != y\na == b\n", "x != y\na == b\n"),
        ("s = 'what?'\n# really?\n", "s = 'what?'\n# really?\n"),
        ("%%\n", "#%\n"),
    ],
)
def test_magics_become_comments(source: str, plain: str) -> None:
    assert _without_magics(source) == plain


@given(st.text("%!?=x \\\n\r'\"()#\t", max_size=60))
def test_what_becomes_a_comment_stays_as_long(source: str) -> None:
    plain = _without_magics(source)
    assert [len(line) for line in split_lines(plain)] == [len(line) for line in split_lines(source)]
    assert len(plain) == len(source)


@pytest.mark.parametrize("indent", [1, 2, None])
@pytest.mark.parametrize("tail", ["", "\n"])
def test_a_notebook_is_written_back_in_place(tmp_path: Path, indent: int | None, tail: str) -> None:
    file = tmp_path / "n.ipynb"
    before = ["!ls\n", "x = var(é)"], "y = 2\n", "z = 'ü'"
    file.write_bytes(notebook(*before, indent=indent, tail=tail).encode())
    text = read(str(file))
    assert isinstance(text, Text)
    at = text.text.index("var(é)")
    last = text.text.index("z = ")
    end = len(text.text)
    new = edited(text, [Edit("", at, at + 3, "std"), Edit("", last, last, "import os\n"), Edit("", end, end, "# end\n")])
    assert new.text == "#ls\nx = std(é)\ny = 2\nimport os\nz = 'ü'\n# end\n"
    write_back(new)
    assert file.read_text(encoding="utf-8") == notebook(["!ls\n", "x = std(é)"], "y = 2\n", "import os\nz = 'ü'\n# end", indent=indent, tail=tail)
    write_back(text)
    write_back(opened(file.read_text(encoding="utf-8")).__class__(str(file), text.text, text.cells, notebook=text.notebook))
    assert json.loads(file.read_text(encoding="utf-8")) == json.loads(notebook(*before))
    with pytest.raises(ValueError, match="no cell holds"):
        edited(text, [Edit("", at, last + 1, "")])


@given(st.lists(st.lists(st.sampled_from(["x\n", "!y\n", "%z\n", "a = 1\r\n", "\n", "w"]), max_size=4).map("".join), min_size=1, max_size=4), st.data())
def test_an_edit_of_a_notebook_is_an_edit_of_its_cell(sources: list[str], data: st.DataObject) -> None:
    text = opened(notebook(*sources))
    assert write_round(text) == sources
    at = data.draw(st.integers(0, len(text.text) - 1))
    new = edited(text, [Edit("", at, at, "k")])
    cell = max(number for number, each in enumerate(text.cells) if each.start <= at)
    expected = list(sources)
    within = at - text.cells[cell].start
    expected[cell] = sources[cell][:within] + "k" + sources[cell][within:]
    assert write_round(new) == expected
    assert new.text == text.text[:at] + "k" + text.text[at:]


def write_round(text: Text) -> list[str]:
    return [cell.source if cell.ended else cell.source.removesuffix("\n") for cell in text.cells]


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ("", "is no notebook"),
        ('{"cells": [\n', "is no notebook"),
        ("[]", "no cells"),
        ('{"worksheets": []}', "format 3"),
        ('{"cells": [{"cell_type": "code", "source": [1]}]}', "is no text"),
        ('{"cells": [{"cell_type": "code", "source": "\\u0000"}]}', "null byte"),
        ('{"cells": [], "metadata": [1]}', "metadata"),
        ("[" * 200_000, "is no notebook"),
    ],
)
def test_broken_notebooks_are_problems(raw: str, says: str) -> None:
    found = decode("n.ipynb", raw.encode())
    assert isinstance(found, Problem)
    assert says in found.message


def test_notebooks_of_other_languages_are_empty(tmp_path: Path) -> None:
    for metadata in ({"kernelspec": {"language": "R"}}, {"language_info": {"name": "julia"}}):
        text = opened(notebook("x <- 1", metadata=metadata))
        assert text.text == ""
        assert text.cells == ()
        assert text.lines() == {}
    assert opened(notebook("x", metadata={"language_info": {"name": "python"}})).text == "x\n"


# --- silenced --------------------------------------------------------------------------------------------------------


def at(line: int, end: int = 0, code: str = "NAN301") -> Finding:
    return Finding(code, "bessel-of-one", Location("a.py", line, 1, end or line, 2), "m")


def every(code: str) -> bool:
    return True


@pytest.mark.parametrize(
    ("text", "finding", "silent"),
    [
        ("x = 1  # noqa\n", at(1), True),
        ("x = 1  # NOQA : nan301\n", at(1), True),
        ("x = 1  #noqa:E501,NAN301\n", at(1), True),
        ("x = 1  # noqa: E501 NAN301 because x\n", at(1), True),
        ("x = 1  # noqa: NAN3\n", at(1), True),
        ("x = 1  # noqa: NAN302\n", at(1), False),
        ("x = 1  # noqa: E501\n", at(1), False),
        ("x = 1  # noqa: because\n", at(1), False),
        ("x = 1  # noqa-file\n", at(1), False),
        ("x = 1  # type: ignore  # noqa: NAN301\n", at(1), True),
        ("x = '# noqa'\n", at(1), False),
        ("x = '''\n# noqa\n'''\n", at(1, 3), False),
        ("x = f(\n  a,  # noqa\n  b,\n)\n", at(1), False),
        ("x = f(\n  a,  # noqa\n  b,\n)\n", at(2), True),
        ("x = f(\n  a,\n  b,\n)  # noqa: NAN301\n", at(2), True),
        ("x = f(\n  a,  # noqa\n  b,\n)\n", at(1, 4), True),
        ("x = f(\n  a,\n  b,\n)  # noqa\ny = 2\n", at(5), False),
        ("x = '''\na\n'''  # noqa\n", at(1), True),
        ("if x:  # noqa\n  y\n", at(2), False),
        ("x = 1\r\ny = 2  # noqa\r\n", at(2), True),
        ("x = 1\ry = 2  # noqa\r", at(2), True),
        ("x = 'a\x0cb'\ny = 1  # noqa\n", at(2), True),
        ("x = (  # noqa\n", at(1), False),
        ("x = 1\n", Finding("NAN301", "s", None, "m"), False),
    ],
)
def test_noqa(text: str, finding: Finding, silent: bool) -> None:
    kept, _, number = suppress([finding], text, "a.py", checked=every)
    assert (kept == []) is silent
    assert number == silent


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("x = 1  # noqa: NAN301\ny\n", "x = 1\ny\n"),
        ("x = 1  # noqa: E501, NAN301\n", "x = 1  # noqa: E501\n"),
        ("x = 1  # noqa:NAN301,E501,NAN302,W1\n", "x = 1  # noqa:E501,W1\n"),
        ("x = 1  # noqa: NAN301 because\n", "x = 1  # because\n"),
        ("x = 1  # noqa: NAN301  # type: ignore\n", "x = 1  # type: ignore\n"),
        ("x = 1  # type: ignore  # noqa: NAN301\n", "x = 1  # type: ignore\n"),
        ("x\r\n    # noqa: NAN301\r\ny\r\n", "x\r\ny\r\n"),
        ("# noqa: NAN301", ""),
        ("x = 'é\U0001f600'  # noqa: nan301\n", "x = 'é\U0001f600'\n"),
    ],
)
def test_an_unused_noqa_is_found_and_removed(text: str, after: str) -> None:
    _, (finding,), _ = suppress([], text, "a.py", checked=every)
    assert (finding.code, finding.slug, finding.confidence) == ("NAN000", "unused-noqa", Confidence.CERTAIN)
    assert all(edit.safety is Safety.SAFE for edit in finding.edits)
    assert edited(Text("a.py", text), finding.edits).text == after
    assert finding.location is not None
    assert text.splitlines()[finding.location.line - 1][finding.location.column - 1 :].startswith("# noqa")
    assert suppress([], after, "a.py", checked=every)[1] == []


def test_which_noqas_are_unused() -> None:
    assert suppress([at(1)], "x  # noqa: NAN301, NAN302\n", "a.py", checked=every)[1][0].message == "noqa of NAN302 silences nothing here"
    for text in ("x  # noqa\n", "x  # noqa: E501\n", "x  # noqa: NAN302, NAN000\n"):
        assert suppress([], text, "a.py", checked=every)[1] == []
    assert suppress([], "x  # noqa: NAN302\n", "a.py", checked=lambda code: code != "NAN302")[1] == []


# --- known before ----------------------------------------------------------------------------------------------------


def inspected(*lines: str, code: str = "NAN301") -> Inspection:
    findings = [Finding(code, "s", Location("a.py", number), "m") for number, line in enumerate(lines, 1) if "var" in line]
    return Inspection(findings, lines={("a.py", 0): lines}, files=1)


def test_a_baseline_survives_moves(tmp_path: Path) -> None:
    file = str(tmp_path / "baseline.json")
    assert write_baseline(file, inspected("x = var(a)", "y = var(b)", "y = var(b)")) == 3
    known = read_baseline(file)
    moved = inspected("", "  x =  var(a)", "if z:", "    y = var(b)", "y = var(b)")
    assert filter_baseline(moved, known) == ([], 3, 0)
    new, hidden, stale = filter_baseline(inspected("y = var(b)", "y = var(b)", "y = var(b)"), known)
    assert [finding.location and finding.location.line for finding in new] == [3]
    assert (hidden, stale) == (2, 1)
    assert filter_baseline(Inspection(), known) == ([], 0, 3)
    assert filter_baseline(Inspection(), known, checked=["b.py"]) == ([], 0, 0)
    assert filter_baseline(inspected("x = var(a)", code="NAN302"), known)[1] == 0
    assert Path(file).read_text().endswith("}\n")


@given(st.lists(st.sampled_from(["var a", "var  a", "var b", ""]), max_size=6))
def test_fingerprints_are_unique_and_whatever_the_order(lines: list[str]) -> None:
    inspection = inspected(*lines)
    found = fingerprints(inspection)
    assert len(set(found)) == len(found)
    turned = Inspection(inspection.findings[::-1], lines=inspection.lines)
    assert fingerprints(turned) == found[::-1]


def test_a_fingerprint_is_stable() -> None:
    assert fingerprint("NAN301", "a.py", " x =  1") == fingerprint("NAN301", "a.py", "x = 1", 0)
    assert fingerprint("NAN301", "\udcff.py", "x") != fingerprint("NAN301", "a.py", "x", 1)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "not JSON"),
        ("[]", "no baseline"),
        ('{"format": 2, "entries": {}}', "of format 2"),
        ('{"format": true, "entries": {}}', "no baseline"),
        ('{"format": 1}', "no baseline"),
        ('{"format": 1, "entries": {"a": 1}}', "no baseline"),
    ],
)
def test_broken_baselines_are_refused(tmp_path: Path, content: str, says: str) -> None:
    file = tmp_path / "b.json"
    file.write_text(content)
    with pytest.raises(NanopsyError, match=says):
        read_baseline(str(file))
    with pytest.raises(NanopsyError, match="cannot be read"):
        read_baseline(str(tmp_path / "none.json"))
