"""The pages that are made from the program itself: a page for each cause, the command line, the JSON schema, the API.

mkdocs runs this file (the gen-files plugin); nothing is written into docs/.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import mkdocs_gen_files

from nanopsy.causes import Cause, load

ROOT = Path(__file__).resolve().parent.parent
API = (
    "nanopsy.library",
    "nanopsy.findings",
    "nanopsy.integrations.lightning",
    "nanopsy.integrations.transformers",
    "nanopsy.integrations.accelerate",
    "nanopsy.integrations.ignite",
    "nanopsy.stable",
    "nanopsy.depth",
)
FAMILIES = {
    "NAN1": "Gradients at the edge of a domain",
    "NAN2": "Values that leave their domain or format",
    "NAN3": "Statistics of too little",
    "NAN4": "Masks and repairs",
    "NAN5": "Cancellation",
    "NAN6": "The optimisation",
    "NAN7": "Data and weights",
    "NAN9": "Without a cause",
}


def write(name: str, text: str) -> None:
    """One page, as if it lay in docs/."""
    with mkdocs_gen_files.open(name, "w") as file:
        file.write(text)


def cell(text: str) -> str:
    """Text as a cell of a table holds it."""
    return text.replace("|", "\\|").replace("\n", " ")


# -- causes ------------------------------------------------------------------------------------


def replacement(cause: Cause) -> str:
    """The stable function of a cause, as a link to its API."""
    if not cause.replacement:
        return ""
    module, _, name = cause.replacement.rpartition(".")
    return f"[`{name}`](../api/{module.replace('.', '/')}.html#{name})" if module == "nanopsy.stable" else f"`{cause.replacement}`"


def causes() -> list[Any]:
    """A page for each cause and their table; what the navigation shows of them."""
    index = [
        "# Causes\n",
        "Every finding names one of these. `nanopsy explain CODE` prints the same page in a terminal. *Linter*: whether `nanopsy check` looks for",
        "it in source code; the others show only when the code runs. *Instead*: the function of `nanopsy.stable` that such a line should have called.\n",
    ]
    nav: list[Any] = ["reference/causes/index.md"]
    family = ""
    for code, cause in load().items():
        if code[:4] != family:
            family = code[:4]
            index += [f"\n## {FAMILIES.get(family, family)}\n", "| code | name | what it is | linter | instead |", "|---|---|---|---|---|"]
        index.append(f"| [{code}]({code}.md) | {cause.slug} | {cell(cause.title())} | {'yes' if cause.sites else ''} | {replacement(cause)} |")
        write(f"reference/causes/{code}.md", cause.page())
        nav.append({f"{code} {cause.slug}": f"reference/causes/{code}.md"})
    write("reference/causes/index.md", "\n".join(index) + "\n")
    return nav


# -- the command line --------------------------------------------------------------------------


def usage(*words: str) -> str:
    """What ``nanopsy … --help`` prints."""
    command = [sys.executable, "-m", "nanopsy", *words, "--help"]
    return subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "84", "NO_COLOR": "1"}).stdout.strip()


def verbs(text: str) -> list[str]:
    """The verbs that a help text lists below its placeholder."""
    listed = re.search(r"^  (?:VERB|WHAT)$(.*?)(?:^\S|\Z)", text, re.MULTILINE | re.DOTALL)
    return re.findall(r"^    ([a-z][\w-]*)", listed.group(1), re.MULTILINE) if listed else []


def commands(*words: str) -> Iterator[str]:
    """A section for a verb, then for each of its own."""
    text = usage(*words)
    yield f"{'#' * (len(words) + 1)} {' '.join(('nanopsy', *words)) if words else 'Command line'}\n\n```text\n{text}\n```\n"
    for verb in verbs(text):
        yield from commands(*words, verb)


# -- the JSON schema ---------------------------------------------------------------------------


def kind(schema: Mapping[str, Any]) -> str:
    """The type of a field, in words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name})"
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(kind(choice) for choice in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {kind(schema.get('items', {}))}"
    limits = [f"≥ {schema['minimum']}"] if "minimum" in schema else []
    limits += [f"`{schema['pattern']}`"] if "pattern" in schema else []
    types = schema.get("type", "any")
    name = " or ".join(types) if isinstance(types, list) else types
    return " ".join([name, *limits])


def fields(schema: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """A row for each field; fields of an object that has no name of its own follow their parent."""
    for name, entry in schema.get("properties", {}).items():
        required = "yes" if name in schema.get("required", ()) else ""
        yield f"| `{prefix}{name}` | {cell(kind(entry))} | {required} | {cell(entry.get('description', ''))} |"
        for choice in (entry, *entry.get("anyOf", ())):
            yield from fields(choice, f"{prefix}{name}.")


def schema_page() -> str:
    """The schema as tables, then as it is."""
    text = (ROOT / "src" / "nanopsy" / "schema.json").read_text(encoding="utf-8")
    schema = json.loads(text)
    head = "| field | type | always there | meaning |\n|---|---|---|---|"
    parts = [
        "# JSON report\n",
        f"What `nanopsy run --json FILE` writes ({schema['title']}). The schema itself is `nanopsy/schema.json` in the package; it is printed below.\n",
        f"## report\n\n{schema.get('description', 'The whole file.')}\n",
        head,
        *fields(schema),
    ]
    for name, entry in schema.get("$defs", {}).items():
        parts += [f"\n## {name}\n", *([entry["description"] + "\n"] if "description" in entry else []), head, *fields(entry)]
    return "\n".join([*parts, f"\n## The schema\n\n```json\n{text.strip()}\n```\n"])


# -- API, and the pages of the repository's root -------------------------------------------------


def api() -> None:
    """pdoc's pages, as files of the site."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pdoc", "--docformat", "google", "--output-directory", folder, *API]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"pdoc failed on the API pages:\n{done.stderr}")
        for page in sorted(Path(folder).rglob("*")):
            if page.is_file():
                write(f"reference/api/{page.relative_to(folder).as_posix()}", page.read_text(encoding="utf-8"))


def from_root(name: str) -> str:
    """A page of the repository's root, its links as they are from within docs/."""
    return (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")


def main() -> None:
    listed = causes()
    for entry in mkdocs_gen_files.config.nav:
        for page in entry.get("Reference", ()) if isinstance(entry, dict) else ():
            if isinstance(page, dict) and "Causes" in page:
                page["Causes"] = listed
    write("reference/cli.md", "\n".join(commands()))
    write("reference/schema.md", schema_page())
    write("architecture.md", from_root("ARCHITECTURE.md"))
    write("contributing.md", from_root("CONTRIBUTING.md"))
    api()


main()
