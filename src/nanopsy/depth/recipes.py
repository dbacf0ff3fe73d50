"""Loss recipes: a published SILog, each guideline of arXiv 2311.03938 on its own, all of them, and the folk remedies.

A `Recipe` is data; `RecipeLoss` computes it with the operations that training code uses, so that it fails where such code fails. With every guideline on it is
`nanopsy.stable.silog`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from nanopsy.depth.samples import pick
from nanopsy.stable import DepthPrediction, SILogForm, silog
from nanopsy.stable import _arguments as arguments

__all__ = ["GUIDELINES", "LOSSES", "REMEDIES", "Recipe", "RecipeLoss", "recipes"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a depth network's loss is written."""

    name: str = "published"
    loss: str = "adabins"
    """A key of `LOSSES`: whose SILog."""
    root: bool = True
    """10 sqrt(D), or 10 D (guideline 1)."""
    logsigmoid: bool = False
    """Take the log of depth from the logits: logsigmoid(x) + log(max_depth) (guideline 2)."""
    population: bool = False
    """Population variance in two passes (guideline 3) instead of the published one."""
    eps_log: float = 0.0
    """Folk remedy: added to both depths inside the log."""
    eps_root: float = 0.0
    """Folk remedy: added to D under the root."""
    clamp: float = 0.0
    """Folk remedy: the predicted depth is clamped to at least this before the log."""
    nan_to_num: bool = False
    """Folk remedy: torch.nan_to_num on the loss."""
    skip: bool = False
    """Folk remedy: a step whose loss or gradient is not finite is left out."""
    clip: float = 0.0
    """Folk remedy: gradients are clipped to this norm (0: not)."""

    def __post_init__(self) -> None:
        pick(tuple(LOSSES), self.loss, "nanopsy.depth.Recipe")
        for name in ("eps_log", "eps_root", "clamp", "clip"):
            arguments.number("nanopsy.depth.Recipe", name, getattr(self, name), least=0)

    @property
    def head(self) -> str:
        """The head that goes with it."""
        return "logsigmoid" if self.logsigmoid else "sigmoid"

    @property
    def guided(self) -> bool:
        """Whether all three guidelines are followed."""
        return not self.root and self.logsigmoid and self.population


@dataclass(frozen=True, slots=True)
class PublishedLoss:
    """A published SILog: scale * sqrt(D), and how its code computes D."""

    lam: float
    scale: float
    variance: str
    """``bessel``: torch.var(g) + (1 - lam) mean(g)^2. ``one-pass``: mean(g^2) - lam mean(g)^2."""
    source: str


LOSSES = {
    "adabins": PublishedLoss(0.85, 10.0, "bessel", "shariqfarooq123/AdaBins; MDE-Toolbox with another scale"),
    "bts": PublishedLoss(0.85, 10.0, "one-pass", "cleinc/bts, NeWCRFs, PixelFormer, IEBins"),
    "bts-invariant": PublishedLoss(1.0, 10.0, "one-pass", "cleinc/bts with --variance_focus 1, the upper end of the option's range (its default is 0.85)"),
}

GUIDELINES: dict[str, dict[str, bool]] = {
    "published": {},
    "no-root": {"root": False},
    "logsigmoid": {"logsigmoid": True},
    "population": {"population": True},
    "all": {"root": False, "logsigmoid": True, "population": True},
}
"""The published loss, each guideline alone, and all three."""

REMEDIES: dict[str, dict[str, float | bool]] = {
    "eps in the log": {"eps_log": 1e-6},
    "eps under the root": {"eps_root": 1e-6},
    "clamp": {"clamp": 1e-3},
    "nan_to_num": {"nan_to_num": True},
    "skip step": {"skip": True},
    "clip 1": {"clip": 1.0},
}
"""What people try instead."""


def recipes(loss: str, names: tuple[str, ...] = tuple(GUIDELINES)) -> tuple[Recipe, ...]:
    """The named recipes (keys of `GUIDELINES` or `REMEDIES`) over one published loss."""
    found = []
    for name in names:
        changes: dict[str, object] = dict(GUIDELINES[name] if name in GUIDELINES else REMEDIES[pick((*GUIDELINES, *REMEDIES), name, "nanopsy.depth.recipes")])
        found.append(replace(Recipe(loss=loss, name=name), **changes))  # type: ignore[arg-type]
    return tuple(found)


class RecipeLoss(nn.Module):
    """``loss(prediction, target, mask)`` as a recipe says; ``prediction`` is a depth, or a `DepthPrediction` where the log comes from the head."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe, self.published = recipe, LOSSES[recipe.loss]

    def forward(self, prediction: Tensor | DepthPrediction, target: Tensor, mask: Tensor) -> Tensor:
        recipe, published = self.recipe, self.published
        if recipe.guided:
            return silog(prediction, target, mask, form=SILogForm(lam=published.lam, scale=published.scale))
        g = self.log_prediction(prediction, mask) - torch.log(target[mask] + recipe.eps_log)
        if recipe.population:
            mean = g.mean()
            d = (g - mean).square().mean() + (1 - published.lam) * mean.square()
        elif published.variance == "bessel":
            d = torch.var(g) + (1 - published.lam) * torch.pow(torch.mean(g), 2)
        else:
            d = torch.mean(g**2) - published.lam * torch.mean(g) ** 2
        loss = published.scale * torch.sqrt(d + recipe.eps_root) if recipe.root else published.scale * d
        return torch.nan_to_num(loss) if recipe.nan_to_num else loss

    def log_prediction(self, prediction: Tensor | DepthPrediction, mask: Tensor) -> Tensor:
        """log depth where it is valid."""
        if isinstance(prediction, DepthPrediction):
            return prediction.log_depth[mask]
        depth = prediction[mask]
        if self.recipe.clamp:
            depth = depth.clamp(min=self.recipe.clamp)
        return torch.log(depth + self.recipe.eps_log)
