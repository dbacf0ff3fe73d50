"""The settings of the linter: where they come from, what they refuse, which findings they want."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from nanopsy.check.settings import DEFAULT_EXCLUDE, Settings, known, load_settings, selector
from nanopsy.errors import NanopsyError
from nanopsy.findings import Confidence


def written(folder: Path, table: str, *, name: str = "pyproject.toml") -> Path:
    file = folder / name
    file.write_text(f"[tool.nanopsy]\n{table}\n", encoding="utf-8")
    return file


def test_defaults_without_a_file(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    settings = load_settings(tmp_path)
    assert settings == Settings(root=str(tmp_path))
    assert settings.min_confidence is Confidence.LIKELY
    assert settings.exclude == DEFAULT_EXCLUDE
    assert settings.wants("NAN301", "a.py")
    assert settings.wants("NAN000", "a.py")


def test_the_nearest_table_is_taken(tmp_path: Path) -> None:
    written(tmp_path, 'select = ["NAN1"]')
    inner = tmp_path / "package" / "deep"
    inner.mkdir(parents=True)
    (tmp_path / "package" / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    settings = load_settings(inner)
    assert settings.select == ("NAN1",)
    assert settings.root == str(tmp_path)
    assert settings.source == str(tmp_path / "pyproject.toml")
    file = inner / "a.py"
    file.write_text("")
    assert load_settings(file).select == ("NAN1",)


def test_the_search_ends_at_the_repository(tmp_path: Path) -> None:
    written(tmp_path, 'select = ["NAN1"]')
    inner = tmp_path / "repository" / "package"
    inner.mkdir(parents=True)
    (tmp_path / "repository" / ".git").write_text("gitdir: elsewhere\n")
    assert load_settings(inner).source == ""
    written(tmp_path / "repository", 'select = ["NAN2"]')
    assert load_settings(inner).select == ("NAN2",)


def test_every_key(tmp_path: Path) -> None:
    written(
        tmp_path,
        'select = ["all"]\nignore = ["bessel-of-one", "nan4"]\nextend-exclude = ["third_party"]\nmin-confidence = "depends"\n'
        '[tool.nanopsy.per-file-ignores]\n"tests/*" = ["NAN2"]\n"__init__.py" = ["NAN"]\n"!src/**" = ["NAN101"]',
    )
    settings = load_settings(tmp_path)
    assert settings.select == ("NAN",)
    assert settings.ignore == ("NAN301", "NAN4")
    assert settings.exclude == (*DEFAULT_EXCLUDE, "third_party")
    assert settings.shows(Confidence.DEPENDS)
    assert not settings.wants("NAN301", "src/a.py")
    assert not settings.wants("NAN401", "src/a.py")
    assert settings.wants("NAN302", "src/a.py")
    assert not settings.wants("NAN201", "tests/deep/test_a.py")
    assert settings.wants("NAN302", "tests/deep/test_a.py")
    assert not settings.wants("NAN302", "src/deep/__init__.py")
    assert settings.wants("NAN101", "src/a.py")
    assert not settings.wants("NAN101", "tools/a.py")


def test_exclude_takes_the_place_of_the_defaults(tmp_path: Path) -> None:
    written(tmp_path, 'exclude = ["mine"]\nextend-exclude = ["yours"]')
    assert load_settings(tmp_path).exclude == ("mine", "yours")


@pytest.mark.parametrize(
    ("select", "ignore", "wanted"),
    [
        (("NAN",), (), True),
        (("NAN",), ("NAN3",), False),
        (("NAN301",), ("NAN3",), True),
        (("NAN3",), ("NAN301",), False),
        (("NAN3",), ("NAN3",), False),
        (("NAN2",), (), False),
        ((), (), False),
    ],
)
def test_the_longer_selector_wins(select: tuple[str, ...], ignore: tuple[str, ...], wanted: bool) -> None:
    assert Settings(select=select, ignore=ignore).wants("NAN301", "a.py") is wanted


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ('selct = ["NAN1"]', "did you mean select?"),
        ("per_file_ignores = {}", "did you mean per-file-ignores?"),
        ('select = "NAN1"', "expected a list of strings"),
        ("select = [1]", "expected a list of strings"),
        ('select = ["NAN88"]', "'NAN88' selects no cause"),
        ('select = ["E501"]', "'E501' selects no cause"),
        ('select = [""]', "selects no cause"),
        ('ignore = ["bessel-of-on"]', "did you mean bessel-of-one?"),
        ('min-confidence = "likly"', "did you mean likely?"),
        ("min-confidence = 3", "is no confidence"),
        ('per-file-ignores = ["NAN1"]', "expected a table"),
        ('per-file-ignores = {"a.py" = "NAN1"}', "expected a list of strings"),
        ('per-file-ignores = {"a.py" = ["NAN77"]}', "selects no cause"),
        ("exclude = {}", "expected a list of strings"),
        ("select = [", "not TOML"),
    ],
)
def test_what_is_not_understood_is_refused(tmp_path: Path, table: str, says: str) -> None:
    file = written(tmp_path, table)
    with pytest.raises(NanopsyError) as caught:
        load_settings(tmp_path)
    assert says in str(caught.value)
    assert str(file) in str(caught.value)
    assert caught.value.do


def test_a_named_file(tmp_path: Path) -> None:
    file = written(tmp_path, 'ignore = ["NAN1"]', name="mine.toml")
    assert load_settings(tmp_path, config=file).ignore == ("NAN1",)
    with pytest.raises(NanopsyError, match="cannot be read"):
        load_settings(tmp_path, config=tmp_path / "none.toml")
    (tmp_path / "other.toml").write_text("[tool.ruff]\n")
    with pytest.raises(NanopsyError, match="no settings of nanopsy"):
        load_settings(tmp_path, config=tmp_path / "other.toml")
    (tmp_path / "wrong.toml").write_text("tool.nanopsy = 3\n")
    with pytest.raises(NanopsyError, match="not a table"):
        load_settings(tmp_path, config=tmp_path / "wrong.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(NanopsyError, match="not TOML"):
        load_settings(tmp_path, config=tmp_path / "bytes.toml")


def test_the_command_line_wins_and_is_named(tmp_path: Path) -> None:
    file = written(tmp_path, 'select = ["NAN1"]\nignore = ["NAN102"]')
    settings = load_settings(tmp_path).override(select=["where-trap"], extend_exclude=["gen"], min_confidence="certain")
    assert settings.select == ("NAN401",)
    assert settings.exclude[-1] == "gen"
    assert not settings.shows(Confidence.LIKELY)
    assert settings.shows(None)
    shown = settings.render()
    assert 'select = ["NAN401"]  # command line' in shown
    assert f'ignore = ["NAN102"]  # {file}' in shown
    assert 'min-confidence = "certain"  # command line' in shown
    with pytest.raises(NanopsyError, match="--select"):
        settings.override(select=["XYZ"])


def test_what_is_shown_is_toml() -> None:
    settings = Settings(per_file_ignores={'a "b"\\*.py': ("NAN3", "NAN1")})
    table = tomllib.loads(settings.render())
    assert table["select"] == ["NAN"]
    assert table["per-file-ignores"] == {'a "b"\\*.py': ["NAN1", "NAN3"]}
    assert table["exclude"] == sorted(DEFAULT_EXCLUDE)


def test_every_code_and_slug_is_a_selector() -> None:
    for code, slug in known().items():
        assert selector(code, "") == selector(code.lower(), "") == selector(slug, "") == code
