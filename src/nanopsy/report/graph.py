"""The failing chain as a drawing: tensors above, operators below them, layer by layer down to the bad value."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from markupsafe import Markup

from nanopsy.capsule.chain import Chain, ChainStep, Constant, tensors_of
from nanopsy.findings import Finding
from nanopsy.report.drawing import drawing, element, words
from nanopsy.report.shown import counted, figure, number, shape, short, text

_BOX, _TALL, _GAP, _SPACE, _THIN = 204.0, 62.0, 40.0, 20.0, 22.0
_MARGIN = 10.0
_SMALLEST = 0.8
"""A narrow page may shrink the drawing to this share before it has to be scrolled."""
_MOST_EDGES = 400
_LETTERS = 28
_SWEEPS = 8


@dataclass(slots=True)
class Node:
    """A tensor that the chain starts from, an operator, or a bend of a line that passes a layer."""

    key: str
    layer: int = 0
    x: float = 0.0
    constant: Constant | None = None
    step: ChainStep | None = None
    kind: str = ""
    above: list[Node] = field(default_factory=list)
    below: list[Node] = field(default_factory=list)

    @property
    def width(self) -> float:
        """What it takes of its layer."""
        return _THIN if self.constant is None and self.step is None else _BOX

    @property
    def weight(self) -> float:
        """How much it minds to stand aside: operators most, so that a chain of them is a straight line."""
        return 8.0 if self.step is not None else 1.0 if self.constant is not None else 3.0


@dataclass(frozen=True, slots=True)
class Edge:
    """From where a tensor is made to where it is used, over the bends between."""

    path: tuple[Node, ...]
    backward: bool


def birth(chain: Chain, finding: Finding | None) -> int:
    """Which step made the bad value: the finding's place and operator, else the first bad value seen, else the operator, the place, the last step."""
    place = str(finding.location) if finding is not None and finding.location is not None else ""
    op = finding.evidence.get("op") if finding is not None else None
    here = [k for k, step in enumerate(chain.steps) if place and step.location == place]
    same = [k for k, step in enumerate(chain.steps) if operator(step) == op]
    both = [k for k in here if k in same]
    seen = [k for k, step in enumerate(chain.steps) if step.value in ("nan", "inf", "-inf")]
    if chain.backward is not None and not both:
        return next((k for k, step in enumerate(chain.steps) if chain.backward[0] in step.out), len(chain.steps) - 1)
    return both[-1] if both else seen[0] if seen else same[-1] if same else here[-1] if here else len(chain.steps) - 1


def graph(chain: Chain, finding: Finding | None) -> Markup | None:
    """The chain as SVG; None where there are more lines than a drawing shows."""
    nodes, parents = _nodes(chain, finding)
    if sum(map(len, parents.values())) > _MOST_EDGES:
        return None
    layers = _layered(nodes, parents, chain)
    edges = _edges(nodes, parents, layers, _differentiated(chain, nodes, parents))
    _arrange(layers)
    width = max(node.x + node.width / 2 for layer in layers for node in layer) + _MARGIN
    height = len(layers) * (_TALL + _GAP) - _GAP + 2 * _MARGIN
    parts = [element("defs", _arrow("arrow", "edge-tip"), _arrow("arrow-back", "back-tip"))]
    parts += [part for edge in edges for part in _line(edge)]
    if chain.backward is not None:
        parts += _incoming(nodes, chain.backward)
    parts += [part for layer in layers for node in layer if node.width == _BOX for part in _box(node, chain, finding)]
    return drawing("The chain of operators that makes the bad value", parts, math.ceil(width), math.ceil(height), "graph", round(width * _SMALLEST))


def _nodes(chain: Chain, finding: Finding | None) -> tuple[dict[str, Node], dict[str, list[str]]]:
    """The nodes by key, and the keys of what each uses; a step goes by the name of its first result."""
    nodes = {it.name: Node(it.name, constant=it) for it in chain.constants}
    made = {it.name: it.name for it in chain.constants}
    parents: dict[str, list[str]] = {}
    born, place = birth(chain, finding), str(finding.location) if finding is not None and finding.location is not None else ""
    for position, step in enumerate(chain.steps):
        key = step.out[0]
        used = [made[name] for name in tensors_of(list(step.args)) + tensors_of(list(step.kwargs.values()))]
        parents[key] = list(dict.fromkeys(used))
        made |= dict.fromkeys(step.out, key)
        nodes[key] = Node(key, step=step, kind="born" if position == born else "named" if place and step.location == place else "")
    return nodes, parents


def _layered(nodes: Mapping[str, Node], parents: Mapping[str, list[str]], chain: Chain) -> list[list[Node]]:
    """Each node as low as what uses it allows; a gradient that arrives from outside stands below."""
    height = dict.fromkeys(nodes, 0)
    for key in reversed(list(parents)):
        for parent in parents[key]:
            height[parent] = max(height[parent], height[key] + 1)
    used = {parent for many in parents.values() for parent in many}
    apart = chain.backward[1] if chain.backward is not None and chain.backward[1] in nodes and chain.backward[1] not in used else None
    deepest = max(height.values())
    for key, node in nodes.items():
        node.layer = deepest + 1 if key == apart else deepest - height[key]
    layers: list[list[Node]] = [[] for _ in range(deepest + (2 if apart else 1))]
    for node in nodes.values():
        layers[node.layer].append(node)
    return layers


def _differentiated(chain: Chain, nodes: Mapping[str, Node], parents: Mapping[str, list[str]]) -> set[str]:
    """The nodes that the gradient passes on its way back to tensors that require one."""
    if chain.backward is None:
        return set()
    wants = {key for key, node in nodes.items() if node.constant is not None and node.constant.requires_grad}
    for key, many in parents.items():
        if any(parent in wants for parent in many):
            wants.add(key)
    start = next((key for key, node in nodes.items() if node.step is not None and chain.backward[0] in node.step.out), chain.backward[0])
    reached, waiting = {start}, [start]
    while waiting:
        fresh = [parent for parent in parents.get(waiting.pop(), ()) if parent in wants and parent not in reached]
        reached.update(fresh)
        waiting += fresh
    return reached


def _edges(nodes: Mapping[str, Node], parents: Mapping[str, list[str]], layers: list[list[Node]], passed: set[str]) -> list[Edge]:
    edges = []
    for key, many in parents.items():
        for parent in many:
            path = [nodes[parent]]
            for layer in range(nodes[parent].layer + 1, nodes[key].layer):
                bend = Node(f"{parent}>{key}", layer)
                layers[layer].append(bend)
                path.append(bend)
            path.append(nodes[key])
            for upper, lower in pairwise(path):
                upper.below.append(lower)
                lower.above.append(upper)
            edges.append(Edge(tuple(path), parent in passed and key in passed))
    return edges


def _arrange(layers: list[list[Node]]) -> None:
    """Order each layer by its neighbours' middle, then put every node as near to it as the others of its layer allow."""
    for layer in layers:
        _spread(layer, [k * (_BOX + _SPACE) for k in range(len(layer))])
    for sweep in range(_SWEEPS):
        downward = sweep % 2 == 0
        for layer in layers if downward else reversed(layers):
            wanted = {id(node): _middle(node.above if downward else node.below, node.x) for node in layer}
            layer.sort(key=lambda node: wanted[id(node)])
            _spread(layer, [wanted[id(node)] for node in layer])
    for layer in layers:
        wanted = {id(node): _middle([*node.above, *node.below], node.x) for node in layer}
        _spread(layer, [wanted[id(node)] for node in layer])
    left = min(node.x - node.width / 2 for layer in layers for node in layer)
    for layer in layers:
        for node in layer:
            node.x += _MARGIN - left


def _middle(neighbours: Iterable[Node], otherwise: float) -> float:
    """Where the neighbours are, those with more weight counting more."""
    places = [(node.weight, node.x) for node in neighbours]
    return sum(weight * x for weight, x in places) / sum(weight for weight, _ in places) if places else otherwise


def _spread(layer: list[Node], wanted: list[float]) -> None:
    """Places in this order, without overlap, as near as can be to the wanted ones by weighted squares: neighbours that would collide move as one."""
    offset, offsets = 0.0, [0.0] * bool(layer)
    for left, right in pairwise(layer):
        offset += (left.width + right.width) / 2 + _SPACE
        offsets.append(offset)
    groups: list[tuple[float, float, int]] = []  # mean place of the first if it stood at offset 0, weight, how many
    for node, place, before in zip(layer, wanted, offsets, strict=True):
        mean, weight, many = place - before, node.weight, 1
        while groups and groups[-1][0] > mean:
            other, heavy, more = groups.pop()
            mean, weight, many = (mean * weight + other * heavy) / (weight + heavy), weight + heavy, many + more
        groups.append((mean, weight, many))
    means = [mean for mean, _, many in groups for _ in range(many)]
    for node, mean, before in zip(layer, means, offsets, strict=True):
        node.x = mean + before


def _top(layer: int) -> float:
    return _MARGIN + layer * (_TALL + _GAP)


def _port(node: Node, other: Node, *, upper: bool) -> float:
    """Where on its border a node meets a neighbour."""
    if node.width == _THIN:
        return node.x
    neighbours = sorted({id(each): each for each in (node.above if upper else node.below)}.values(), key=lambda each: each.x)
    position = next(k for k, each in enumerate(neighbours) if each is other)
    apart = min(30.0, (_BOX - 40) / max(len(neighbours) - 1, 1))
    return node.x + (position - (len(neighbours) - 1) / 2) * apart


def _line(edge: Edge) -> list[Markup]:
    """A line down, and beside it the gradient's line up."""

    def drawn(shift: float) -> str:
        pieces = []
        for upper, lower in pairwise(edge.path):
            x, end = _port(upper, lower, upper=False) + shift, _port(lower, upper, upper=True) + shift
            y, stop = _top(upper.layer) + _TALL, _top(lower.layer)
            start = f"M{x:.1f} {y:.1f}" if upper is edge.path[0] else f"L{x:.1f} {y:.1f}"
            pieces.append(f"{start}C{x:.1f} {y + _GAP / 2:.1f} {end:.1f} {stop - _GAP / 2:.1f} {end:.1f} {stop:.1f}")
        return "".join(pieces)

    lines = [element("path", d=drawn(0.0), class_="edge", marker_end="url(#arrow)")]
    if edge.backward:
        lines.append(element("path", d=drawn(9.0), class_="back", marker_start="url(#arrow-back)"))
    return lines


def _arrow(name: str, kind: str) -> Markup:
    tip = element("path", d="M0 0L7 3.5L0 7z", class_=kind)
    return element("marker", tip, id=name, viewBox="0 0 7 7", refX=6, refY=3.5, markerWidth=7, markerHeight=7, orient="auto-start-reverse")


def _incoming(nodes: Mapping[str, Node], backward: tuple[str, str]) -> list[Markup]:
    """The gradient that arrives from the rest of the step, up into the result that it belongs to."""
    of = next((node for node in nodes.values() if backward[0] == node.key or (node.step is not None and backward[0] in node.step.out)), None)
    given = nodes.get(backward[1])
    if of is None or given is None or given.layer <= of.layer:
        return []
    x, y, end, stop = given.x, _top(given.layer), of.x, _top(of.layer) + _TALL
    return [element("path", d=f"M{x:.1f} {y:.1f}C{x:.1f} {y - _GAP / 2:.1f} {end:.1f} {stop + _GAP / 2:.1f} {end:.1f} {stop:.1f}", class_="back",
                    marker_end="url(#arrow-back)")]  # fmt: skip


def operator(step: ChainStep) -> str:
    """An operator's name without its overload."""
    return step.op.split(".")[1]


def value_of(step: ChainStep, born: bool, chain: Chain, finding: Finding | None) -> str:
    """The element that the bad value depends on; at the birth what the finding saw."""
    if step.value or not born or finding is None:
        return short(step.value, 14)
    seen = finding.evidence.get("value")
    known = number(seen)
    value = figure(known) if known is not None else short(seen, 14) if isinstance(seen, str) else ""
    return f"gradient {value}" if value and chain.backward is not None else value


def _box(node: Node, chain: Chain, finding: Finding | None) -> list[Markup]:
    """A node's rectangle, its three lines, and in full what they shorten as a tooltip."""
    x, y = node.x - _BOX / 2, _top(node.layer)
    if node.step is not None:
        step = node.step
        head, code, foot = f"{', '.join(step.out[:3])} = {operator(step)}", step.code, step.location
        value, kind = value_of(step, node.kind == "born", chain, finding), f"node step {node.kind}"
        if node.kind:
            foot = ("born here, " if node.kind == "born" else "the line, ") + step.location
    else:
        assert node.constant is not None
        it = node.constant
        head, code, foot = f"{it.name}: {it.dtype}", it.what or "made in the step", shape(it.shape)
        value, kind = "", "node constant"
        if it.whole and it.whole != it.shape:
            foot += f" of {shape(it.whole)}"
        elif it.spread.count:
            foot += f", {counted(it.spread.zeros)} zero"
    parts = [element("title", "\n".join(filter(None, (text(head, 200), text(code, 400), text(foot, 200))))),
             element("rect", x=x, y=y, width=_BOX, height=_TALL, rx=9 if node.constant is not None else 3, class_=kind),
             words(x + 9, y + 18, short(head, 25 - len(value)), "name"),
             words(x + 9, y + 36, short(code, _LETTERS), "code"),
             words(x + 9, y + 53, short(foot, 32), "place")]  # fmt: skip
    if value:
        parts.append(words(x + _BOX - 9, y + 18, value, "value bad-value" if node.kind == "born" else "value", "end"))
    return [element("g", *parts)]
