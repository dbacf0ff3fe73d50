"""What the script has made, and on which line: modules, optimizers, schedulers, scalers, initial weights.

Constructors are wrapped once, before the script starts. Nothing is kept alive, nothing is written into the
objects (so checkpoints and pickles stay as they were).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import wraps
from types import CodeType, FrameType
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from nanopsy._torch import Optimizer, storage_key
from nanopsy.findings import Location
from nanopsy.instrument import is_user_file

Site = tuple[CodeType, int]
"""A position in running code: the code object and the index of its last instruction."""


def user_frames(frame: FrameType | None, most: int = 8) -> tuple[Site, ...]:
    """The user's own frames on the stack, innermost first."""
    sites: list[Site] = []
    while frame is not None and len(sites) < most:
        if is_user_file(frame.f_code.co_filename):
            sites.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(sites)


def locate(site: Site) -> Location | None:
    """The source span of a position, with columns where Python kept them."""
    code, instruction = site
    for index, (line, end_line, column, end_column) in enumerate(code.co_positions()):
        if index == instruction // 2:
            if line is None:
                return None
            first, last = _characters(code.co_filename, line, column, end_line, end_column)
            return Location(code.co_filename, line, first, end_line or line, last, code.co_qualname)
    return None


def _characters(file: str, line: int, column: int | None, end_line: int | None, end_column: int | None) -> tuple[int, int]:
    import linecache

    def count(text: str, utf8: int | None) -> int:
        if utf8 is None:
            return 1
        raw = text.encode()
        beyond = max(0, utf8 - len(raw))
        return len(raw[:utf8].decode(errors="ignore")) + beyond + 1

    return count(linecache.getline(file, line), column), count(linecache.getline(file, end_line or line), end_column)


@dataclass(slots=True)
class InitialWeights:
    """One call of ``torch.nn.init``: the function and where the user called it (or made the module)."""

    function: str
    site: Site
    direct: bool


class IdentityMap(WeakIdKeyDictionary):
    """What was made -> where, by identity and kept weakly: a user's class may hash by its values (torchmetrics), or not at all while it is being made."""

    def add(self, thing: object) -> None:
        """Remember a thing whose place does not matter."""
        self[thing] = None


@dataclass(slots=True)
class Registry:
    """Everything made since :func:`install`."""

    modules: IdentityMap = field(default_factory=IdentityMap)
    buffered: IdentityMap = field(default_factory=IdentityMap)
    optimizers: IdentityMap = field(default_factory=IdentityMap)
    schedulers: IdentityMap = field(default_factory=IdentityMap)
    scalers: IdentityMap = field(default_factory=IdentityMap)
    initial: dict[int, InitialWeights] = field(default_factory=dict)
    loaded: list[Site] = field(default_factory=list)
    """Where ``load_state_dict`` was called."""
    compiled: bool = False
    """Whether the script called ``torch.compile``."""
    clipped: Site | None = None
    """Where ``clip_grad_norm_`` was last called."""

    def module_site(self, module: torch.nn.Module | None) -> Location | None:
        site: Site | None = self.modules.get(module) if module is not None else None  # type: ignore[no-untyped-call]
        return locate(site) if site else None

    def optimizer_site(self, optimizer: Optimizer) -> Location | None:
        site: Site | None = self.optimizers.get(optimizer)  # type: ignore[no-untyped-call]
        return locate(site) if site else None

    def initial_site(self, tensor: torch.Tensor, *, direct: bool = False) -> tuple[str, Location | None]:
        """The ``torch.nn.init`` call that filled a weight; ``direct``: only if the user wrote it, not a layer's constructor."""
        made = self.initial.get(storage_key(tensor))
        return (made.function, locate(made.site)) if made and (made.direct or not direct) else ("", None)

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """The parameters of every optimizer made, each once."""
        seen: set[int] = set()
        for optimizer in list(self.optimizers):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if id(parameter) not in seen:
                        seen.add(id(parameter))
                        yield parameter

    def adopt(self, modules: Iterable[torch.nn.Module] = (), optimizers: Iterable[Optimizer] = ()) -> None:
        """Take in what was made before :func:`install`; on which line is not known then."""
        for module in modules:
            for child in module.modules():
                if child not in self.modules:
                    self.modules.add(child)
                if child._buffers:
                    self.buffered.add(child)
        for optimizer in optimizers:
            if optimizer not in self.optimizers:
                self.optimizers.add(optimizer)

    def names(self) -> dict[int, str]:
        """Storage key -> dotted name, from the outermost modules made."""
        names: dict[int, str] = {}
        modules = sorted(self.modules, key=lambda module: -sum(1 for _ in module.modules()))
        covered: set[int] = set()
        for module in modules:
            if id(module) in covered:
                continue
            covered.update(id(child) for child in module.modules())
            for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
                names.setdefault(storage_key(tensor), name)
        return names

    def module_names(self) -> dict[int, str]:
        """id of a module -> dotted name below the outermost module."""
        names: dict[int, str] = {}
        for module in sorted(self.modules, key=lambda module: -sum(1 for _ in module.modules())):
            if id(module) in names:
                continue
            for name, child in module.named_modules():
                names.setdefault(id(child), name or type(module).__name__)
        return names


REGISTRY = Registry()
_installed: list[Callable[[], None]] = []


def install() -> None:
    """Wrap the constructors; idempotent."""
    if _installed:
        return
    registry = REGISTRY

    def remember(table: Any, thing: Any) -> None:
        sites = user_frames(sys._getframe(2), most=1)
        if sites:
            table[thing] = sites[0]

    def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        setattr(owner, name, wraps(original)(make(original)))
        _installed.append(lambda: setattr(owner, name, original))

    def module_init(original: Any) -> Any:
        def __init__(self: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            remember(registry.modules, self)

        return __init__

    def register_buffer(original: Any) -> Any:
        def register_buffer(self: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            registry.buffered.add(self)

        return register_buffer

    def module_setstate(original: Any) -> Any:
        def __setstate__(self: torch.nn.Module, state: Any) -> None:
            original(self, state)
            remember(registry.modules, self)
            if self._buffers:
                registry.buffered.add(self)

        return __setstate__

    def optimizer_init(original: Any) -> Any:
        def __init__(self: Optimizer, *args: Any, **kwargs: Any) -> None:
            remember(registry.optimizers, self)
            original(self, *args, **kwargs)

        return __init__

    def added_to(table: IdentityMap) -> Callable[[Any], Any]:
        def make(original: Any) -> Any:
            def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
                table.add(self)
                original(self, *args, **kwargs)

            return __init__

        return make

    def load_state_dict(original: Any) -> Any:
        def load_state_dict(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            registry.loaded.extend(user_frames(sys._getframe(1), most=1))
            return original(self, *args, **kwargs)

        return load_state_dict

    def clip(original: Any) -> Any:
        def clip_grad_norm_(*args: Any, **kwargs: Any) -> Any:
            registry.clipped = next(iter(user_frames(sys._getframe(1), most=1)), None)
            return original(*args, **kwargs)

        return clip_grad_norm_

    def compiler(original: Any) -> Any:
        def compile(*args: Any, **kwargs: Any) -> Any:  # noqa: A001
            registry.compiled = True
            return original(*args, **kwargs)

        return compile

    replace(torch, "compile", compiler)
    replace(torch.nn.utils, "clip_grad_norm_", clip)
    replace(torch.nn.Module, "__init__", module_init)
    replace(torch.nn.Module, "register_buffer", register_buffer)
    replace(torch.nn.Module, "__setstate__", module_setstate)
    replace(torch.nn.Module, "load_state_dict", load_state_dict)
    replace(Optimizer, "__init__", optimizer_init)
    replace(torch.optim.lr_scheduler.LRScheduler, "__init__", added_to(registry.schedulers))
    replace(torch.amp.GradScaler, "__init__", added_to(registry.scalers))

    def initializer(name: str) -> Callable[[Any], Any]:
        def make(original: Any) -> Any:
            def init(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
                result = original(tensor, *args, **kwargs)
                caller = sys._getframe(1)
                sites = user_frames(caller, most=1)
                if sites and isinstance(tensor, torch.Tensor):
                    direct = sites[0][0] is caller.f_code
                    registry.initial[storage_key(tensor)] = InitialWeights(name, sites[0], direct)
                return result

            return init

        return make

    for name in dir(torch.nn.init):
        if name.endswith("_") and not name.startswith("_") and callable(getattr(torch.nn.init, name)):
            replace(torch.nn.init, name, initializer(name))


def uninstall() -> None:
    """Put the constructors back."""
    while _installed:
        _installed.pop()()
