"""The capsule file: one zip of JSON, safetensors and a script; no pickle, a format number, a SHA-256 for each member.

Reading trusts nothing: the names of members are known in advance, their sizes are bounded before they are unpacked, their digests
must agree, and what does not hold is refused in a sentence.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, deserialize

from nanopsy.capsule.chain import Chain
from nanopsy.errors import NanopsyError
from nanopsy.findings import Diagnosis, harmless, plain

FORMAT = 1
"""Version of the capsule file; a reader refuses newer ones."""
SUFFIX = ".nanopsy"
MANIFEST = "manifest.json"
MEMBERS = {
    "diagnosis.json": "the incident and its findings, as in the JSON report",
    "environment.json": "versions, device and precision settings; no environment variables, no arguments",
    "sources.json": "the lines of your source that the findings point to",
    "history.json": "loss, gradient norm, weight norm and learning rate of recent steps",
    "chain.json": "the operators of the failing chain, with the range of each tensor",
    "operands.safetensors": "the elements that the chain starts from",
    "repro.py": "the chain as a script that needs only torch",
    "pictures.json": "small pictures of the tensors concerned: where the bad pixels are",
    "state.json": "the batch's structure, random states and hyper-parameters (--capture full)",
    "state.safetensors": "parameters, buffers, optimizer and scaler state, batch (--capture full)",
}
"""Everything that a capsule may hold, and what it is."""
_LARGE = "state.safetensors"
_MOST = 64 << 20
"""Bytes that a member may have, but for the full state."""


@dataclass(slots=True)
class Capsule:
    """One failing step: the finished diagnosis and what shows it again.

    ``tensors`` and ``state`` map names to (dtype, shape, bytes): reading needs no torch.
    """

    diagnosis: Diagnosis
    environment: Mapping[str, Any] = field(default_factory=dict)
    sources: list[dict[str, Any]] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)
    chain: Chain | None = None
    operands: bytes = b""
    script: str = ""
    pictures: list[dict[str, Any]] = field(default_factory=list)
    state: Mapping[str, Any] | None = None
    state_file: Path | None = None
    """Where the full state lies as a safetensors file, before writing; after reading, the capsule itself (see :func:`read_state`)."""
    created: str = ""
    data: bool = True
    """False: the values were left out, only ranges are kept."""
    members: dict[str, int] = field(default_factory=dict)
    """After writing or reading: the size of each member, unpacked."""


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1, allow_nan=False, default=str).encode()


def members(capsule: Capsule) -> dict[str, bytes]:
    """The members of a capsule but for its full state, as bytes."""
    found = {
        "diagnosis.json": _json(capsule.diagnosis.to_dict()),
        "environment.json": _json(plain(capsule.environment)),
        "sources.json": _json(capsule.sources),
        "history.json": _json(plain(capsule.history)),
    }
    if capsule.chain is not None:
        found["chain.json"] = _json(plain(capsule.chain.to_dict()))
        if capsule.data:
            found["operands.safetensors"] = capsule.operands
        found["repro.py"] = capsule.script.encode()
    if capsule.pictures:
        found["pictures.json"] = _json(plain(capsule.pictures))
    if capsule.state is not None:
        found["state.json"] = _json(plain(capsule.state))
    return found


def write(capsule: Capsule, path: str | os.PathLike[str]) -> Path:
    """Write the capsule: the whole file or none of it.

    Raises:
        NanopsyError: the folder cannot be written to, or the disk is full.
    """
    target = Path(path)
    parts = members(capsule)
    manifest: dict[str, Any] = {"format": FORMAT, "created": capsule.created or datetime.now(UTC).isoformat(timespec="seconds"), "data": capsule.data}
    manifest["members"] = {name: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()} for name, content in parts.items()}
    temporary = None
    try:
        if capsule.state_file is not None:
            with capsule.state_file.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            manifest["members"][_LARGE] = {"size": capsule.state_file.stat().st_size, "sha256": digest}
        handle, temporary = tempfile.mkstemp(dir=target.resolve().parent, prefix=".nanopsy-")
        with os.fdopen(handle, "wb") as stream:
            with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
                archive.writestr(_info(MANIFEST), _json(manifest), zipfile.ZIP_DEFLATED)
                for name, content in parts.items():
                    archive.writestr(_info(name), content, zipfile.ZIP_DEFLATED)
                if capsule.state_file is not None:
                    _copy_into(archive, capsule.state_file)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except OSError as error:
        raise NanopsyError(f"cannot write the capsule {target}: {error.strerror or error}", where=str(target.parent),
                           why="the failing step would be lost", do="give --capsule a folder with room that you may write to") from error  # fmt: skip
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
    capsule.members = {name: entry["size"] for name, entry in manifest["members"].items()}
    return target


def _info(name: str) -> zipfile.ZipInfo:
    return zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))


def _copy_into(archive: zipfile.ZipFile, source: Path) -> None:
    """The full state, uncompressed: it can be read in place, and cannot be a zip bomb."""
    with source.open("rb") as file, archive.open(_info(_LARGE), "w", force_zip64=True) as member:
        while chunk := file.read(1 << 20):
            member.write(chunk)


# -- reading -----------------------------------------------------------------------------------------


def _refuse(path: Path, what: str) -> NanopsyError:
    return NanopsyError(f"{path} is refused: {what}", why="a capsule comes from elsewhere, and nothing in it is trusted",
                        do="ask for the capsule again, or make a new one with nanopsy run --capsule")  # fmt: skip


def _open(path: Path) -> zipfile.ZipFile:
    if not path.is_file():
        raise NanopsyError(f"there is no capsule {path}", where=os.getcwd(), do="nanopsy run writes them to .nanopsy/ unless --capsule says otherwise")
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, EOFError) as error:
        raise _refuse(path, f"it is no zip file that can be read ({error})") from None


def _checked(path: Path, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """The members by name, when every one is known, occurs once and has a bounded size."""
    found: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        name = info.filename
        if name in found or (name not in MEMBERS and name != MANIFEST):
            raise _refuse(path, f"it holds {name[:80]!r}" + (" twice" if name in found else ", which no capsule does"))
        if name == _LARGE:
            if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
                raise _refuse(path, f"{name} is compressed: it must be stored as it is")
        elif info.file_size > _MOST:
            raise _refuse(path, f"{name} unpacks to {info.file_size:,} bytes, more than {_MOST:,}")
        if info.flag_bits & 1:
            raise _refuse(path, f"{name} is encrypted")
        found[name] = info
    if MANIFEST not in found:
        raise _refuse(path, f"it has no {MANIFEST}")
    return found


def _bytes(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """A member, never more of it than it says, whatever its compressed data would unpack to."""
    import zlib

    try:
        with archive.open(info) as file:
            content = file.read(info.file_size)
            if file.read(1):
                raise _refuse(path, f"{info.filename} unpacks to more than it says")
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, EOFError, RuntimeError, zlib.error) as error:
        raise _refuse(path, f"{info.filename} cannot be unpacked ({error})") from None
    return content


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _parsed(path: Path, name: str, content: bytes) -> Any:
    try:
        return json.loads(content.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise _refuse(path, f"{name} is not JSON ({error})") from None


def read(path: str | os.PathLike[str]) -> Capsule:
    """Read a capsule without its full state, which stays in the file (:func:`read_state`).

    Raises:
        NanopsyError: it is missing, damaged, of a newer format, or holds anything that a capsule does not.
    """
    file = Path(path)
    with _open(file) as archive:
        infos = _checked(file, archive)
        manifest = _parsed(file, MANIFEST, _bytes(file, archive, infos[MANIFEST]))
        number = manifest.get("format") if isinstance(manifest, dict) else None
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise _refuse(file, "it has no format number")
        if number > FORMAT:
            raise NanopsyError(f"{file} has format {number}, this nanopsy reads formats up to {FORMAT}", where=str(file),
                               why="a newer nanopsy wrote it", do="pip install --upgrade nanopsy")  # fmt: skip
        listed = manifest.get("members")
        if not isinstance(listed, dict) or set(listed) != set(infos) - {MANIFEST}:
            raise _refuse(file, "its manifest does not list what is in it")
        contents: dict[str, bytes] = {}
        for name, info in infos.items():
            if name in (MANIFEST, _LARGE):
                continue
            contents[name] = _bytes(file, archive, info)
            if not isinstance(listed[name], dict) or hashlib.sha256(contents[name]).hexdigest() != listed[name].get("sha256"):
                raise _refuse(file, f"{name} is not what the manifest says: its SHA-256 differs")
        capsule = _assemble(file, manifest, contents)
        capsule.members = {name: info.file_size for name, info in infos.items() if name != MANIFEST}
        capsule.state_file = file if _LARGE in infos else None
        return capsule


def _assemble(file: Path, manifest: Mapping[str, Any], contents: Mapping[str, bytes]) -> Capsule:
    parsed = {name: _parsed(file, name, content) for name, content in contents.items() if name.endswith(".json")}
    try:
        for name, kind in (("diagnosis.json", dict), ("environment.json", dict), ("sources.json", list), ("history.json", list)):
            if not isinstance(parsed.get(name), kind):
                raise TypeError(f"{name} is missing or of another kind")
        capsule = Capsule(
            Diagnosis.from_dict(parsed["diagnosis.json"]), parsed["environment.json"], [_window(entry) for entry in _records(parsed["sources.json"])],
            _records(parsed["history.json"]), created=harmless(str(manifest.get("created", ""))[:40]), data=manifest.get("data") is not False,
        )  # fmt: skip
        capsule.pictures = _records(parsed.get("pictures.json", []))
        state = parsed.get("state.json")
        if state is not None and not isinstance(state, dict):
            raise TypeError("state.json is of another kind")
        capsule.state = state
        capsule.script = contents.get("repro.py", b"").decode()
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError) as error:
        raise _refuse(file, f"its contents do not fit together ({type(error).__name__}: {str(error)[:120]})") from None
    if "chain.json" in parsed:
        capsule.chain = Chain.from_dict(parsed["chain.json"])
        capsule.operands = contents.get("operands.safetensors", b"")
        if capsule.operands:
            tensors_in(file, capsule.operands)
        elif capsule.chain.seed is None:
            raise _refuse(file, "its chain has neither values nor a seed to draw them with")
    return capsule


def _window(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Lines of one file: its name, the number of the first, their text."""
    start, lines = entry["start"], entry["lines"]
    if not isinstance(start, int) or not 1 <= start < 1 << 31 or not isinstance(lines, list):
        raise TypeError("source lines without a number")
    return {"file": harmless(entry["file"]), "start": start, "lines": [harmless(line) for line in lines]}


def _records(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise TypeError("a list of records was expected")
    return value


def tensors_in(file: Path, content: bytes) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Name to (dtype, shape, bytes) of a safetensors member; the format itself checks that sizes agree."""
    try:
        found = {name: (str(entry["dtype"]), tuple(int(size) for size in entry["shape"]), bytes(entry["data"])) for name, entry in deserialize(content)}
    except (SafetensorError, ValueError, TypeError, KeyError) as error:
        raise _refuse(file, f"its tensors cannot be read ({error})") from None
    if any(math.prod(shape) > 1 << 34 for _, shape, _ in found.values()):
        raise _refuse(file, "it holds a tensor of more than 17 billion elements")
    return found


def read_state(path: str | os.PathLike[str]) -> bytes:
    """The full state of a capsule, its digest checked.

    Raises:
        NanopsyError: there is none, or it is not what the manifest says.
    """
    file = Path(path)
    with _open(file) as archive:
        infos = _checked(file, archive)
        if _LARGE not in infos:
            raise NanopsyError(f"{file} holds no full state", why="replaying a script takes the parameters, the batch and the random states of the step",
                               do="make the capsule with nanopsy run --capture full")  # fmt: skip
        manifest = _parsed(file, MANIFEST, _bytes(file, archive, infos[MANIFEST]))
        content = _bytes(file, archive, infos[_LARGE])
        try:
            listed = manifest["members"][_LARGE]["sha256"]
        except (KeyError, TypeError):
            listed = None
        if hashlib.sha256(content).hexdigest() != listed:
            raise _refuse(file, f"{_LARGE} is not what the manifest says: its SHA-256 differs")
        return content


def listing(capsule: Capsule) -> list[tuple[str, int, str]]:
    """Each member with its size and what it is: exactly what sharing the file would share."""
    return [(name, size, MEMBERS[name]) for name, size in capsule.members.items()]
