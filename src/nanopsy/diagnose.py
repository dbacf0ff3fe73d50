"""From the bad loss or gradient of a kept replay back to its birth, and from the birth to the causes.

No finding is better than a wrong one: a cause claims a birth only on the numbers that the trace observed, and
when none does, the finding says *unknown* and exactly what is known.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from nanopsy._torch import Optimizer, local, storage_key
from nanopsy.birth import BirthReader, bad_index
from nanopsy.causes import load
from nanopsy.findings import Finding
from nanopsy.instrument import is_user_file
from nanopsy.operators import dtype_name
from nanopsy.ranges import Birth, Growth, History, Operand, OptimizerFacts, Origin, OriginKind
from nanopsy.registry import locate
from nanopsy.story import Story
from nanopsy.trace import Ref
from nanopsy.values import Index
from nanopsy.watching import optimizer_parameters, total_norm

if TYPE_CHECKING:
    from nanopsy.examiner import Examiner
    from nanopsy.replay import Fault, Replay


@dataclass(frozen=True, slots=True)
class Made:
    """A tensor that existed before the step: the variable (or attribute of a class) that holds it."""

    file: str
    name: str
    owner: str = ""


@dataclass(slots=True)
class Evidence:
    """All that one kept replay and the watch know about an incident."""

    fault: Fault
    replay: Replay
    story: Story
    reader: BirthReader
    history: History
    optimizers: list[tuple[Optimizer, OptimizerFacts]]
    bad_weights: Sequence[tuple[str, torch.Tensor]]
    made: dict[int, Made] = field(default_factory=dict)
    births: dict[str, Birth] = field(default_factory=dict)
    items: Sequence[Any] = ()
    """What the loop gave for this step: its item, and what was drawn by ``next``."""

    @classmethod
    def gather(cls, examiner: Examiner, fault: Fault, replay: Replay) -> Evidence:
        assert replay.recording is not None
        registry = examiner.registry
        history = read_history(examiner, replay)
        parameters: dict[int, torch.Tensor] = {storage_key(p): p for p in registry.parameters()}
        for module in list(registry.modules):
            for tensor in [*module.parameters(recurse=False), *module.buffers(recurse=False)]:
                parameters.setdefault(storage_key(tensor), tensor)
        names = registry.names()
        for key in parameters:
            names.setdefault(key, "a parameter")
        batch: dict[int, str] = {}
        items = examiner.items()
        if items:
            _name_tensors(items[0], "batch", batch, 3)
            draws = items[1:]
            for number, drawn in enumerate(draws):
                _name_tensors(drawn, "batch" if len(draws) == 1 else f"next[{number}]", batch, 3)
        variables: dict[int, str] = {}
        made: dict[int, Made] = {}
        for round_ in examiner.rounds[-1:]:
            file = examiner.live.file if examiner.live is not None else ""
            for name, value in (round_.frame.names if round_.frame is not None else {}).items():
                if not name.startswith("__"):
                    _name_tensors(value, name, variables, 1)
                    _held(value, name, file, variables, made)
        for module in list(registry.modules):
            for name, value in module._buffers.items():
                if value is not None:
                    _hold(made, storage_key(value), module, name)
        story = Story(replay.recording, registry, names, batch, variables, parameters, made)
        modules = registry.module_names()
        objects = {id(module): module for module in list(registry.modules)}
        optimizers = [(optimizer, optimizer_facts(examiner, optimizer)) for optimizer in list(registry.optimizers)]
        bad = [(names.get(storage_key(p), "?"), local(p)) for p in registry.parameters() if not bool(torch.isfinite(local(p.detach())).all())]
        return cls(
            fault,
            replay,
            story,
            BirthReader(story, history, "loss" if replay.bad_loss else "gradient", modules, objects),
            history,
            optimizers,
            bad,
            made,
            items=items,
        )

    def birth_of(self, finding: Finding) -> Birth | None:
        return self.births.get(_key(finding))


def _key(finding: Finding) -> str:
    return f"{finding.code} {finding.location}"


def _hold(made: dict[int, Made], key: int, owner: object, name: str) -> None:
    module = sys.modules.get(type(owner).__module__)
    file = getattr(module, "__file__", None)
    if isinstance(file, str) and is_user_file(file):
        made.setdefault(key, Made(file, name, type(owner).__name__))


def _held(value: Any, name: str, file: str, variables: dict[int, str], made: dict[int, Made]) -> None:
    """Note which variable, or which attribute of a user's object, holds a tensor."""
    if isinstance(value, torch.Tensor):
        made.setdefault(storage_key(value), Made(file, name))
    elif hasattr(value, "__dict__") and not isinstance(value, (type, torch.nn.Module)):
        for key, entry in list(vars(value).items())[:64]:
            if isinstance(entry, torch.Tensor):
                variables.setdefault(storage_key(entry), f"{name}.{key}")
                _hold(made, storage_key(entry), value, key)


def _name_tensors(value: Any, name: str, table: dict[int, str], depth: int) -> None:
    if isinstance(value, torch.Tensor):
        table.setdefault(storage_key(value), name)
    elif depth and isinstance(value, dict):
        for key, entry in list(value.items())[:64]:
            _name_tensors(entry, f"{name}[{key!r}]", table, depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        for number, entry in enumerate(value[:64]):
            _name_tensors(entry, f"{name}[{number}]", table, depth - 1)


def read_history(examiner: Examiner, replay: Replay) -> History:
    """The ring of recent steps, with a verdict on how they developed; never guessed from one step."""
    ring = list(examiner.watch.ring)
    losses = [facts.loss for facts in ring]
    norms = [facts.gradient_norm for facts in ring]
    weights = list(examiner.watch.weights)
    trainable = [
        it for it in (local(p.detach()) for p in examiner.registry.parameters()) if it.is_floating_point() and it.numel() and it.layout is torch.strided
    ]
    finite = [p for p in trainable if bool(torch.isfinite(p).all())]
    now = total_norm(finite)[0] if finite else math.nan
    weights.append((examiner.watch.steps, now))
    growth, factor, text = Growth.NONE, 1.0, ""
    moved = examiner.closure_growth(trainable)
    if moved is not None and moved >= 5:
        return History(tuple(losses), tuple(norms), tuple(weights), examiner.watch.steps, Growth.DIVERGING,
                       f"within one optimizer.step(closure) the weight norm grew {moved:.3g} times", moved)  # fmt: skip
    if examiner.watch.steps == 0:
        growth = Growth.FIRST_STEP
        text = "no optimizer step had been taken yet"
    else:
        grown: list[tuple[str, float, float, float]] = []
        for label, series in (("loss", losses), ("gradient norm", norms), ("weight norm", [value for _, value in weights])):
            usable = [abs(value) for value in series if math.isfinite(value) and value != 0]
            if len(usable) >= 2:
                least = min(usable[:-1])
                grown.append((label, least, usable[-1], usable[-1] / least if least else math.inf))
        bounds = {"loss": 1e2, "gradient norm": 1e3, "weight norm": 5.0}
        over = [entry for entry in grown if entry[3] >= bounds[entry[0]]]
        if len(over) >= 2 or any(entry[0] == "weight norm" and entry[3] >= 20 for entry in over) or any(entry[3] >= 1e6 for entry in over):
            growth = Growth.DIVERGING
        factor = max((entry[3] for entry in grown), default=1.0)
        shown = over or grown
        text = ", ".join(f"{label} {low:.3g} to {high:.3g}" for label, low, high, _ in shown) + f" over {len(ring)} steps"
    return History(tuple(losses), tuple(norms), tuple(weights), examiner.watch.steps, growth, text, factor)


def optimizer_facts(examiner: Examiner, optimizer: Optimizer) -> OptimizerFacts:
    """Class, hyper-parameters and arithmetic of an optimizer."""
    group = optimizer.param_groups[0] if optimizer.param_groups else {}
    parameters = optimizer_parameters(optimizer)
    dtype = dtype_name(parameters[0].dtype) if parameters else ""
    eps = group.get("eps")
    lost = False
    if isinstance(eps, float) and parameters and parameters[0].is_floating_point():
        lost = eps == 0 or float(torch.tensor(eps, dtype=parameters[0].dtype)) == 0
    zero = False
    for parameter in parameters:
        second = optimizer.state.get(parameter, {}).get("exp_avg_sq", optimizer.state.get(parameter, {}).get("square_avg"))
        if isinstance(second, torch.Tensor) and second.shape == parameter.shape:
            bad = ~torch.isfinite(local(parameter.detach()))
            if bool(bad.any()):
                zero = zero or bool((local(second)[bad] == 0).any())
    lr = group.get("lr", math.nan)
    return OptimizerFacts(type(optimizer).__name__, float(lr), float(eps) if isinstance(eps, (int, float)) else None, dtype,
                          examiner.registry.optimizer_site(optimizer), lost, zero, examiner.watch.steps_of.get(id(optimizer), 0))  # fmt: skip


def births(evidence: Evidence) -> list[Birth]:
    """Every birth that explains what was bad, most fundamental first."""
    if evidence.bad_weights:
        return [_weights_birth(evidence)]
    found: list[Birth] = []
    for ref, index, value in sinks(evidence):
        ancestry = evidence.story.ancestry(ref, index, value)
        found.extend(replace(birth, sink=evidence.reader.sink) for birth in evidence.reader.read(ancestry))
    return found


def sinks(evidence: Evidence) -> list[tuple[Ref, Index, float]]:
    """The bad elements that the story starts from: of the losses, else of the gradients, in the order in which they were made."""
    replay = evidence.replay
    if replay.bad_loss:
        pairs = list(zip(replay.sinks, replay.sink_tensors, strict=False))
    else:
        pairs = list(zip(replay.gradient_sinks, replay.gradient_tensors, strict=False))
        recording = evidence.story.recording

        def order(pair: Any) -> int:
            made = recording.producer(pair[0]) if pair[0].numel else None
            return made[0].index if made is not None else 1 << 60

        pairs.sort(key=order)
    return [(ref, *hit) for ref, tensor in pairs[:3] if (hit := bad_index(tensor)) is not None]


def _weights_birth(evidence: Evidence) -> Birth:
    """Weights that were bad before the step began: the checkpoint or the last update did it."""
    name, tensor = evidence.bad_weights[0]
    detached = tensor.detach()
    hit = bad_index(detached)
    value = hit[1] if hit else math.nan
    owner = next(((o, f) for o, f in evidence.optimizers if any(p is tensor for p in optimizer_parameters(o))), None)
    facts = owner[1] if owner else None
    stepped = facts is not None and facts.steps > 0
    bad = int((~torch.isfinite(detached)).sum())
    operand = Operand(name, value, detached.numel(), tuple(detached.shape), dtype_name(detached.dtype), bad=bad, from_weights=True,
                      origin=Origin(OriginKind.PARAMETER, value, what=name, name=name))  # fmt: skip
    location = facts.location if stepped and facts is not None else None
    loaded = evidence.story.registry.loaded
    if location is None and loaded:
        location = locate(loaded[-1])
    if location is None:
        location = evidence.story.registry.initial_site(tensor)[1]
    if location is None and evidence.fault.place is not None:
        location = locate(evidence.fault.place)
    return Birth("step" if stepped else "weights", "optimizer" if stepped else "weights", value, operand.dtype, location, operand.shape, bad,
                 operand.count, (operand,), settings={"loaded": bool(loaded), "bad_tensors": len(evidence.bad_weights)},
                 history=evidence.history, optimizer=facts)  # fmt: skip


def diagnose(evidence: Evidence) -> list[Finding]:
    """Ask every cause about every birth; most likely finding first, *unknown* when none claims."""
    causes = load()
    main = next((facts for _, facts in evidence.optimizers if facts.location is not None), None)
    found: list[Finding] = []
    for rank, birth in enumerate(births(evidence)):
        if birth.optimizer is None and main is not None:
            birth = replace(birth, optimizer=main)
        for cause in causes.values():
            claim = cause.claim(birth)
            if claim is None:
                continue
            finding = cause.finding(birth, claim, penalty=0.05 * rank)
            losses = evidence.replay.loss_values
            if birth.sink == "gradient" and losses and math.isfinite(losses[-1]):
                finding = replace(finding, evidence={**finding.evidence, "finite_loss": losses[-1]})
            evidence.births.setdefault(_key(finding), birth)
            found.append(finding)
    unique: dict[str, Finding] = {}
    for finding in sorted(found, key=lambda f: -f.score):
        unique.setdefault(_key(finding), finding)
    ranked = list(unique.values())
    if len(ranked) > 1:
        best = ranked[0].score
        ranked = [finding for finding in ranked if finding.score >= best - 0.35 and finding.code != "NAN999"] or ranked[:1]
    ranked = ranked or unplaced(evidence.fault)
    spread = _clipping(evidence)
    return [*ranked, spread] if spread is not None else ranked


def _clipping(evidence: Evidence) -> Finding | None:
    """The finding that clipping spread a bad gradient, when it did."""
    before, after = len(evidence.replay.bad_gradients), evidence.fault.bad_gradients
    site = evidence.story.registry.clipped
    if not before or after <= before or site is None:
        return None
    cause = load()["NAN603"]
    birth = Birth("clip_grad_norm_", "clipping", math.nan, "float32", locate(site), settings={"bad_before": before, "bad_after": after})
    claim = cause.claim(birth)
    return cause.finding(birth, claim) if claim is not None else None


def transient(fault: Fault, detail: str, *, agree: bool) -> list[Finding]:
    """NAN901: what is known of a step that did not come back."""
    return _plain("NAN901", "transient", fault, {"detail": detail, "agree": agree, "what": str(fault.what)})


def compiled_only(fault: Fault, detail: str) -> list[Finding]:
    """NAN902: bad when compiled, finite in eager mode."""
    return _plain("NAN902", "compiled", fault, {"detail": detail})


def unplaced(fault: Fault) -> list[Finding]:
    """NAN999 at the place where the watch noticed: nothing more is known."""
    return _plain("NAN999", "unknown", fault, {})


def _plain(code: str, phase: str, fault: Fault, settings: dict[str, object]) -> list[Finding]:
    cause = load()[code]
    place = locate(fault.place) if fault.place is not None else None
    birth = Birth("?", phase, math.nan, "float32", place, settings=settings)
    claim = cause.claim(birth)
    return [cause.finding(birth, claim)] if claim is not None else []
