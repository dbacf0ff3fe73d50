"""What to look for and where: the table ``[tool.nanopsy]`` of the nearest pyproject.toml. Stdlib only.

A setting that is misspelt would silently do nothing, so every key, code and type that is not known is refused.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath

from nanopsy.causes import load
from nanopsy.check.ignores import patterns
from nanopsy.check.suppress import UNUSED_CODE, UNUSED_SLUG
from nanopsy.errors import NanopsyError
from nanopsy.findings import Confidence

DEFAULT_EXCLUDE = (
    ".git", ".hg", ".venv", "venv", "node_modules", "__pycache__", "build", "dist", ".tox", ".nox", ".mypy_cache", ".ruff_cache",
    ".pytest_cache", ".ipynb_checkpoints", "site-packages", "*.egg-info",
)  # fmt: skip
KEYS = ("exclude", "extend-exclude", "ignore", "min-confidence", "per-file-ignores", "select")
EVERYTHING = "NAN"
"""The prefix of all codes; ``ALL`` is another word for it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What one run of the linter looks for. Selectors are codes or prefixes of codes, globs are gitignore patterns below ``root``."""

    select: tuple[str, ...] = (EVERYTHING,)
    ignore: tuple[str, ...] = ()
    per_file_ignores: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    exclude: tuple[str, ...] = DEFAULT_EXCLUDE
    min_confidence: Confidence = Confidence.LIKELY
    root: str = ""
    source: str = ""
    """The file the settings were read from, or nothing."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """Where each setting came from, for those that are not the default."""

    def wants(self, code: str, relative_path: str) -> bool:
        """Whether findings of ``code`` are asked for in this file.

        Between ``select`` and ``ignore`` the longer selector wins, and ``ignore`` wins a tie: ``select = ["NAN301"]``
        with ``ignore = ["NAN3"]`` finds NAN301 and nothing else of its family.
        """
        if _longest(self.select, code) <= _longest(self.ignore, code):
            return False
        path = PurePath(relative_path).as_posix()
        return not any(code.startswith(codes) and _meets(glob, path) for glob, codes in self.per_file_ignores.items())

    def shows(self, confidence: Confidence | None) -> bool:
        """Whether findings of this confidence are shown."""
        order = list(Confidence)
        return confidence is None or order.index(confidence) <= order.index(self.min_confidence)

    def override(
        self,
        *,
        select: Iterable[str] | None = None,
        ignore: Iterable[str] | None = None,
        exclude: Iterable[str] | None = None,
        extend_exclude: Iterable[str] | None = None,
        min_confidence: str | None = None,
    ) -> Settings:
        """These settings with what the command line says in their place; None leaves a setting as it is."""
        changed: dict[str, object] = {}
        if select is not None:
            changed["select"] = _selectors(select, "--select")
        if ignore is not None:
            changed["ignore"] = _selectors(ignore, "--ignore")
        if exclude is not None or extend_exclude is not None:
            changed["exclude"] = (*(self.exclude if exclude is None else exclude), *(extend_exclude or ()))
        if min_confidence is not None:
            changed["min_confidence"] = _confidence(min_confidence, "--min-confidence")
        return replace(self, **changed, origins={**self.origins, **dict.fromkeys(changed, "command line")})  # type: ignore[arg-type]

    def render(self) -> str:
        """The settings as TOML, each with where it came from."""

        def entry(key: str, value: object) -> str:
            return f"{key} = {json.dumps(value, ensure_ascii=False)}  # {self.origins.get(key.replace('-', '_'), 'default')}"

        lines = [
            f"# root: {self.root or '.'}",
            f"# read from: {self.source or 'no pyproject.toml has [tool.nanopsy]'}",
            entry("exclude", sorted(self.exclude)),
            entry("ignore", sorted(self.ignore)),
            entry("min-confidence", str(self.min_confidence)),
            entry("select", sorted(self.select)),
            "",
            f"[per-file-ignores]  # {self.origins.get('per_file_ignores', 'default')}",
        ]
        lines += [f"{json.dumps(glob, ensure_ascii=False)} = {json.dumps(sorted(codes))}" for glob, codes in sorted(self.per_file_ignores.items())]
        return "\n".join(lines)


def _longest(selectors: Iterable[str], code: str) -> int:
    return max((len(each) for each in selectors if code.startswith(each)), default=-1)


def _meets(glob: str, path: str) -> bool:
    """Whether a glob of per-file-ignores covers a file; ``!`` in front turns it round."""
    if glob.startswith("!"):
        return not patterns((glob[1:],)).covers(path)
    return patterns((glob,)).covers(path)


def known() -> dict[str, str]:
    """Every code that a finding can have, with its slug."""
    return {UNUSED_CODE: UNUSED_SLUG, **{code: cause.slug for code, cause in load().items()}}


def selector(word: str, where: str) -> str:
    """The code or prefix that a word stands for: itself, or the code of a slug."""
    codes = known()
    upper = word.strip().upper()
    if upper == "ALL":
        return EVERYTHING
    if upper.startswith(EVERYTHING) and any(code.startswith(upper) for code in codes):
        return upper
    for code, slug in codes.items():
        if slug == word.strip().lower():
            return code
    close = difflib.get_close_matches(upper, codes, n=1) or difflib.get_close_matches(word.lower(), codes.values(), n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise NanopsyError(
        f"{word!r} selects no cause", where=where, why="a selector is a code (NAN301), the beginning of codes (NAN3) or a slug (bessel-of-one)",
        do=f"{hint}nanopsy explain --all lists them",
    )  # fmt: skip


def _selectors(words: Iterable[str], where: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(selector(word, where) for word in words))


def _confidence(word: object, where: str) -> Confidence:
    known_words = [str(each) for each in Confidence]
    if isinstance(word, str) and word in known_words:
        return Confidence(word)
    close = difflib.get_close_matches(str(word), known_words, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise NanopsyError(f"{word!r} is no confidence", where=where, do=f"{hint}it is one of {', '.join(known_words)}")


def _words(value: object, where: str, example: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise NanopsyError(f"expected a list of strings, found {json.dumps(value, default=str)}", where=where, do=f"write {example}")
    return tuple(value)


def _parse(table: Mapping[str, object], root: Path, source: Path) -> Settings:
    """The settings that one [tool.nanopsy] table says."""
    for key in table:
        if key not in KEYS:
            close = difflib.get_close_matches(key.replace("_", "-"), KEYS, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise NanopsyError(f"there is no setting named {key!r}", where=f"{source}, [tool.nanopsy]", do=f"{hint}the settings are {', '.join(KEYS)}")

    def where(key: str) -> str:
        return f"{source}, [tool.nanopsy] {key}"

    said: dict[str, object] = {}
    for key in ("select", "ignore"):
        if key in table:
            said[key] = _selectors(_words(table[key], where(key), f'{key} = ["NAN301", "NAN4"]'), where(key))
    exclude: tuple[str, ...] = DEFAULT_EXCLUDE
    for key in ("exclude", "extend-exclude"):
        if key in table:
            globs = _words(table[key], where(key), f'{key} = ["third_party", "src/generated"]')
            exclude = globs if key == "exclude" else (*exclude, *globs)
            said["exclude"] = tuple(dict.fromkeys(exclude))
    if "min-confidence" in table:
        said["min_confidence"] = _confidence(table["min-confidence"], where("min-confidence"))
    if "per-file-ignores" in table:
        globs_to_codes = table["per-file-ignores"]
        if not isinstance(globs_to_codes, dict):
            raise NanopsyError("expected a table from glob to codes", where=where("per-file-ignores"), do='write "tests/*" = ["NAN3"] below it')
        said["per_file_ignores"] = {
            glob: _selectors(_words(codes, f"{where('per-file-ignores')} {glob!r}", f'"{glob}" = ["NAN3"]'), f"{where('per-file-ignores')} {glob!r}")
            for glob, codes in globs_to_codes.items()
        }
    return Settings(**said, root=str(root), source=str(source), origins=dict.fromkeys(said, str(source)))  # type: ignore[arg-type]


def _table(file: Path) -> Mapping[str, object] | None:
    """The table [tool.nanopsy] of a TOML file, or None if it has none."""
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise NanopsyError("the settings cannot be read", where=str(file), why=error.strerror or str(error), do="name a file that can be read") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise NanopsyError("the settings are not TOML", where=str(file), why=str(error), do="correct that line") from None
    tool = content.get("tool", {})
    table = tool.get("nanopsy") if isinstance(tool, dict) else None
    if table is None or isinstance(table, dict):
        return table
    raise NanopsyError("tool.nanopsy is not a table", where=str(file), do="write [tool.nanopsy] and the settings below it")


def _upwards(start: Path) -> Sequence[Path]:
    """``start`` and the folders above it, no further than the repository's top."""
    folders: list[Path] = []
    for folder in (start, *start.parents):
        folders.append(folder)
        if (folder / ".git").exists():
            break
    return folders


def load_settings(start: Path, *, config: Path | None = None) -> Settings:
    """The settings for the code at ``start``: those of ``config``, or of the nearest pyproject.toml that has any, or the defaults."""
    if config is not None:
        table = _table(config)
        if table is None:
            raise NanopsyError("the file has no settings of nanopsy", where=str(config), do="write them below a line [tool.nanopsy]")
        return _parse(table, config.absolute().parent, config)
    start = start.absolute()
    folder = start if start.is_dir() else start.parent
    for each in _upwards(folder):
        file = each / "pyproject.toml"
        if file.is_file():
            table = _table(file)
            if table is not None:
                return _parse(table, each, file)
    return Settings(root=str(folder))
