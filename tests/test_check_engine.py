"""What the linter finds in source code, and the look-alikes that it must leave alone.

A snippet marks the lines where findings are expected, ``#> CODE``; what is not marked must not be found. ``RISKY`` and
``SAFE`` are shown at the default confidence, ``LOOKING_ON`` only where the reader asks for what depends.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from nanopsy.causes import Cause, load
from nanopsy.check.inspect import Request, inspect
from nanopsy.check.settings import Settings
from nanopsy.findings import Confidence

PREAMBLE = "import math\nimport numpy as np\nimport torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"
_MARK = re.compile(r"[ \t]*#> (.*)$", re.MULTILINE)

Found = list[tuple[str, int, str]]


def expected(files: dict[str, str]) -> Found:
    """The marks of all files: file, line, code."""
    return sorted(
        (name, number, code)
        for name, text in files.items()
        for number, line in enumerate(text.split("\n"), 1)
        for mark in _MARK.findall(line)
        for code in mark.split()
    )


def found(root: Path, files: dict[str, str], confidence: Confidence = Confidence.LIKELY) -> Found:
    """What the linter says of a tree of files, without their marks."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(_MARK.sub("", text), encoding="utf-8")
    result = inspect(Request([str(root)], Settings(root=str(root), min_confidence=confidence), jobs=1))
    assert result.inspection.problems == []
    return sorted((each.location.file, each.location.line, each.code) for each in result.inspection.findings if each.location)


def one(snippet: str) -> dict[str, str]:
    return {"losses.py": PREAMBLE + textwrap.dedent(snippet).lstrip("\n")}


def tables(text: str) -> dict[str, str]:
    """Snippets by name, written one below the other: ``=== name`` starts one."""
    parts = re.split(r"^=== (.*)\n", text, flags=re.MULTILINE)[1:]
    named = dict(zip(parts[::2], parts[1::2], strict=True))
    assert len(named) == len(parts) // 2, "two snippets have one name"
    return named


RISKY = tables("""
=== sqrt of a mean of squares
def loss(pred, target):
    return torch.sqrt(((pred - target) ** 2).mean())  #> NAN101
=== sqrt, method
def loss(pred, target):
    d = (pred - target).pow(2).mean()
    return d.sqrt()  #> NAN101
=== sqrt of an mse_loss
def loss(pred, target):
    return torch.sqrt(F.mse_loss(pred, target))  #> NAN101
=== sqrt of an MSELoss module
class Root(nn.Module):
    def __init__(self):
        super().__init__()
        self.mse = nn.MSELoss()

    def forward(self, pred, target):
        return torch.sqrt(self.mse(pred, target))  #> NAN101
=== sqrt clamped at zero
def loss(pred, target):
    return (pred - target).pow(2).mean().clamp(min=0).sqrt()  #> NAN101
=== sqrt plus epsilon
def loss(pred, target):
    return torch.sqrt((pred - target).pow(2).mean()) + 1e-8  #> NAN101
=== power of a half
def loss(pred, target):
    return ((pred - target) ** 2).mean() ** 0.5  #> NAN101
=== pow of a half
def loss(pred, target):
    return torch.pow(((pred - target) ** 2).mean(), 0.5)  #> NAN101
=== sqrt of a relu
def loss(pred):
    return torch.sqrt(F.relu(pred)).mean()  #> NAN101
=== silog with a root
def silog(pred, target, mask):
    if mask.sum() < 2:
        return pred.sum() * 0
    g = torch.log(pred[mask].clamp(min=1e-3)) - torch.log(target[mask].clamp(min=1e-3))
    return 10 * torch.sqrt(torch.var(g) + 0.15 * torch.mean(g) ** 2)  #> NAN101
=== sqrt under another name
from torch import sqrt as s

def loss(pred, target):
    return s((pred - target).square().mean())  #> NAN101
=== torch under another name
import torch as t

def loss(pred, target):
    return t.sqrt(t.mean(t.square(pred - target)))  #> NAN101
=== sqrt with eps in the wrong place by a module constant
EPS = 1e-6

def loss(pred, target):
    return torch.sqrt(((pred - target) ** 2).mean()) + EPS  #> NAN101
=== own norm
def length(flow):
    u, v = flow[:, 0], flow[:, 1]
    return torch.sqrt(u ** 2 + v ** 2)  #> NAN102
=== own norm, summed
def length(pred, target):
    return torch.sqrt(((pred - target) ** 2).sum(dim=1)).mean()  #> NAN102
=== own norm, method and power
def length(pred, target):
    return (pred - target).pow(2).sum(-1).pow(0.5).mean()  #> NAN102
=== small power
def loss(pred, target):
    return (pred - target).abs().pow(0.3).mean()  #> NAN103
=== log of a scaled sigmoid
def loss(logits, target, max_depth):
    depth = max_depth * torch.sigmoid(logits)
    return (torch.log(depth) - torch.log(target.clamp(min=1e-3))).abs().mean()  #> NAN201
=== log of a sigmoid
def loss(logits):
    return -torch.log(torch.sigmoid(logits)).mean()  #> NAN201
=== log of a sigmoid, methods
def loss(logits):
    return -logits.sigmoid().log().mean()  #> NAN201
=== log of a special sigmoid
def loss(logits):
    return -torch.log(torch.special.expit(logits)).mean()  #> NAN201
=== log of a sigmoid from another function
def head(x):
    return 10.0 * torch.sigmoid(x)

def loss(x, target):
    depth = head(x)
    return torch.log(depth).mean()  #> NAN201
=== log of a sigmoid in another function
def logged(depth):
    return torch.log(depth)  #> NAN201

def loss(x):
    return logged(80 * torch.sigmoid(x)).mean()
=== log of a Sequential that ends in a sigmoid
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Sequential(nn.Conv2d(3, 1, 3), nn.Sigmoid())

    def forward(self, x):
        return torch.log(self.head(x) * 80.0)  #> NAN201
=== log of a sigmoid clamped at zero
def loss(logits):
    return torch.log(torch.sigmoid(logits).clamp(min=0)).mean()  #> NAN201
=== log clamped afterwards
def loss(logits):
    return torch.log(torch.sigmoid(logits)).clamp(min=-100).mean()  #> NAN201
=== log of a softmax
def loss(logits, target):
    p = torch.softmax(logits, dim=1)
    return F.nll_loss(torch.log(p), target)  #> NAN203
=== log of a softmax, functional
def entropy(logits):
    p = F.softmax(logits, dim=-1)
    return -(p * p.log()).sum(-1).mean()  #> NAN203
=== log of a relu
def loss(x):
    return torch.log(F.relu(x)).mean()  #> NAN202
=== log of a softplus
def loss(x):
    return torch.log(F.softplus(x)).mean()  #> NAN202
=== log of a layer
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(8, 1)

    def forward(self, x):
        return torch.log(self.out(x))  #> NAN204
=== log1p of exp
def softplus(x):
    return torch.log(1 + torch.exp(x))  #> NAN206
=== exp clamped afterwards
def scale(log_scale, x):
    return torch.exp(x).clamp(max=1e4).mean()  #> NAN206
=== acos of a cosine
def angle(a, b):
    return torch.acos(F.cosine_similarity(a, b, dim=-1)).mean()  #> NAN104
=== acos of a dot product of unit vectors
def angle(a, b):
    a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
    return torch.acos((a * b).sum(-1)).mean()  #> NAN205
=== acos clamped to its closed domain
def angle(a, b):
    a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
    return torch.acos((a * b).sum(-1).clamp(-1, 1)).mean()  #> NAN104
=== variance of a selection
def loss(pred, target, mask):
    g = pred[mask] - target[mask]
    if not mask.any():
        return pred.sum() * 0
    return torch.var(g)  #> NAN301
=== variance of a selection by masked_select
def loss(pred, mask):
    if mask.sum() == 0:
        return pred.sum() * 0
    return torch.masked_select(pred, mask).var()  #> NAN301
=== std of a selection
def loss(pred, mask):
    if mask.sum() == 0:
        return pred.sum() * 0
    return pred[mask].std()  #> NAN301
=== variance with a guard that lets one through
def loss(pred, mask):
    x = pred[mask]
    if x.numel() < 1:
        return pred.sum() * 0
    return x.var()  #> NAN301
=== mean of a selection
def loss(pred, target, mask):
    return (pred[mask] - target[mask]).abs().mean()  #> NAN302
=== mean of a selection, function
def loss(pred, target, mask):
    return torch.mean(torch.abs(pred[mask] - target[mask]))  #> NAN302
=== mean of a selection by a comparison
def loss(pred, target):
    valid = target > 0
    return torch.abs(pred - target)[valid].mean()  #> NAN302
=== mean of a selection by masked_select
def loss(pred, mask):
    return torch.masked_select(pred, mask).mean()  #> NAN302
=== mean with a guard of another mask
def loss(pred, mask, other_mask):
    if other_mask.sum() == 0:
        return pred.sum() * 0
    return pred[mask].mean()  #> NAN302
=== mean with a guard the wrong way round
def loss(pred, mask):
    if mask.sum() > 0:
        return pred.sum() * 0
    return pred[mask].mean()  #> NAN302
=== mean with a guard that only prints
def loss(pred, mask):
    if mask.sum() == 0:
        print("nothing is valid")
    return pred[mask].mean()  #> NAN302
=== loss of a selection, functional
def loss(pred, target, mask):
    return F.l1_loss(pred[mask], target[mask])  #> NAN302
=== loss of a selection, module
class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.criterion = nn.SmoothL1Loss()

    def forward(self, pred, target, mask):
        return self.criterion(pred[mask], target[mask])  #> NAN302
=== division by a count
def loss(pred, target, mask):
    return ((pred - target).abs() * mask).sum() / mask.sum()  #> NAN303
=== division by a count of booleans
def loss(pred, target):
    valid = (target > 0).float()
    return (torch.abs(pred - target) * valid).sum() / valid.sum()  #> NAN303
=== division by a count with the epsilon outside
def loss(pred, mask):
    return (pred * mask).sum() / mask.sum() + 1e-6  #> NAN303
=== division by count_nonzero
def loss(pred, target):
    mask = target > 0
    return (pred * mask).sum() / torch.count_nonzero(mask)  #> NAN303
=== normalised to its range
def normalise(pred):
    return (pred - pred.min()) / (pred.max() - pred.min())  #> NAN209
=== normalised to its range, names
def normalise(pred):
    low, high = pred.min(), pred.max()
    return (pred - low) / (high - low)  #> NAN209
=== normalised by its norm
def unit(pred):
    return pred / pred.norm(dim=-1, keepdim=True)  #> NAN209
=== normalised by its norm, torch.linalg
def unit(pred):
    return pred / torch.linalg.norm(pred, dim=-1, keepdim=True)  #> NAN209
=== normalised by its deviation
def standard(pred):
    return (pred - pred.mean()) / pred.std()  #> NAN209
=== division by a relu
def loss(pred, x):
    return (pred / F.relu(x)).mean()  #> NAN209
=== where trap, log
def entropy(probs):
    return torch.where(probs > 0, probs * torch.log(probs), 0.0).sum()  #> NAN401
=== repaired by isnan
def loss(pred, target, mask):
    l = torch.log(torch.sigmoid(pred)) * torch.sigmoid(pred)  #> NAN201
    return torch.where(torch.isnan(l), torch.zeros_like(l), l).sum()  #> NAN402
=== nan_to_num whose result is dropped
def loss(pred):
    l = pred.abs().mean()
    torch.nan_to_num(l)  #> NAN402
    return l
=== one-pass variance under a root
def deviation(x):
    return torch.sqrt((x ** 2).mean() - x.mean() ** 2)  #> NAN101 NAN501
=== silog in one pass
def silog(d):
    return torch.sqrt((d ** 2).mean() - 0.85 * (d.mean() ** 2))  #> NAN101
=== scale and shift
def scale_and_shift(prediction, target, mask):
    a_00 = torch.sum(mask * prediction * prediction, (1, 2))
    a_01 = torch.sum(mask * prediction, (1, 2))
    a_11 = torch.sum(mask, (1, 2))
    b_0 = torch.sum(mask * prediction * target, (1, 2))
    b_1 = torch.sum(mask * target, (1, 2))
    det = a_00 * a_11 - a_01 * a_01
    return (a_11 * b_0 - a_01 * b_1) / det  #> NAN503
=== adam over float16 weights
def train(model):
    model = model.half()
    return torch.optim.Adam(model.parameters(), lr=1e-4)  #> NAN602
=== no_grad ends with its block
def loss(pred, target):
    with torch.no_grad():
        scale = target.mean()
    return torch.sqrt(((pred - target) ** 2).mean())  #> NAN101
=== detach of something else
def loss(pred, target):
    return torch.sqrt(((pred - target.detach()) ** 2).mean())  #> NAN101
=== in a nested function
def outer():
    def loss(pred, target):
        return torch.sqrt(((pred - target) ** 2).mean())  #> NAN101
    return loss
=== in a loop
def loss(preds, target):
    total = 0
    for pred in preds:
        total = total + torch.sqrt(((pred - target) ** 2).mean())  #> NAN101
    return total
=== in a comprehension
def loss(preds, target):
    return sum(torch.sqrt(((pred - target) ** 2).mean()) for pred in preds)  #> NAN101
=== at module level
x = torch.randn(3, requires_grad=True)
loss = torch.sqrt(((x - 1) ** 2).mean())  #> NAN101
loss.backward()
=== repaired afterwards
def loss(pred, target, mask):
    l = (pred * mask).sum() / mask.sum()
    return torch.nan_to_num(l)  #> NAN402
=== where trap, log, in two lines
def loss(x):
    out = torch.log(x)  #> NAN401
    return torch.where(x > 0, out, torch.zeros_like(x)).sum()
=== where trap, norm
def loss(pred):
    n = pred.norm(dim=-1)
    return torch.where(n == 0, torch.zeros_like(n), 1 / n).sum()  #> NAN401
=== sqrt of a relu inside where
def loss(pred):
    d = F.relu(pred)
    return torch.where(d > 0, torch.sqrt(d), d).sum()  #> NAN101
=== sqrt of an MSELoss module of the module
crit = nn.MSELoss()

def loss(pred, target):
    return torch.sqrt(crit(pred, target))  #> NAN101
=== sqrt of an epsilon of zero
def loss(pred, eps=0.0):
    return torch.sqrt((pred ** 2).mean() + eps)  #> NAN101
=== sqrt of absolute values
def loss(pred, target):
    return torch.sqrt(torch.abs(pred - target)).mean()  #> NAN101
=== sqrt of a variance
def loss(pred):
    return torch.sqrt(pred.var(dim=0)).mean()  #> NAN101
=== sqrt and a look at the result
def loss(pred, target):
    loss = torch.sqrt(((pred - target) ** 2).mean())  #> NAN101
    if not torch.isfinite(loss):
        return pred.sum() * 0
    return loss
=== gradients enabled
def loss(pred, target):
    with torch.set_grad_enabled(True):
        return torch.sqrt(((pred - target) ** 2).mean())  #> NAN101
=== clamped on one branch only
def loss(x, flag):
    y = torch.sigmoid(x)
    if flag:
        y = y.clamp(min=1e-6)
    return torch.log(y).mean()  #> NAN201
=== cross entropy by hand
def loss(logits, y):
    p = torch.sigmoid(logits)
    return -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()  #> NAN201
=== log of one minus a sigmoid
def loss(logits):
    return -torch.log(1 - torch.sigmoid(logits)).mean()  #> NAN201
=== a normal's likelihood
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x, y):
        mu, s = self.fc(x).chunk(2, -1)
        sigma = F.softplus(s)
        return ((y - mu) ** 2 / (2 * sigma ** 2) + torch.log(sigma)).mean()  #> NAN202 NAN209
=== a batch norm of one's own
def normalised(x):
    return (x - x.mean(0)) / torch.sqrt(x.var(0))  #> NAN101 NAN209
=== root mean square norm
def normalised(x):
    return x * torch.rsqrt((x ** 2).mean(-1, keepdim=True))  #> NAN209
=== softmax by hand with a temperature
def softmax(logits, temperature):
    e = torch.exp(logits / temperature)  #> NAN206
    return e / e.sum(-1, keepdim=True)
=== mean of a selection, the mask changed after the guard
def loss(pred, mask, other):
    if mask.sum() == 0:
        return pred.sum() * 0
    mask = mask & other
    return pred[mask].mean()  #> NAN302
=== mean of the rest of a selection
def loss(pred, mask):
    if mask.sum() == 0:
        return pred.sum() * 0
    return pred[~mask].mean()  #> NAN302
=== mean of a selection, one of two guarded
def loss(pred, mask, other):
    if mask.sum() == 0 and other.sum() == 0:
        return pred.sum() * 0
    return pred[mask].mean()  #> NAN302
=== mean of a selection by indices
def loss(pred, target):
    return pred[torch.where(target > 0)].mean()  #> NAN302
=== nanmean of a selection
def loss(pred, mask):
    return torch.nanmean(pred[mask])  #> NAN302
=== median of a selection
def loss(pred, mask):
    return pred[mask].median()  #> NAN302
=== division by a count for each image
def loss(pred, mask):
    return ((pred * mask).sum((1, 2)) / mask.sum((1, 2))).mean()  #> NAN303
=== division by the mean of a mask
def loss(pred, mask):
    return (pred * mask).mean() / mask.float().mean()  #> NAN303
=== in a match
def loss(pred, kind):
    match kind:
        case "rmse":
            return torch.sqrt((pred ** 2).mean())  #> NAN101
        case _:
            return pred.mean()
=== in a try
def loss(pred):
    try:
        return torch.sqrt((pred ** 2).mean())  #> NAN101
    finally:
        print("done")
=== in a while
def loss(pred):
    while True:
        pred = torch.sqrt(pred.abs())  #> NAN101
        if pred.sum() > 3:
            return pred
=== in a coroutine
async def loss(pred):
    return torch.sqrt((pred ** 2).mean())  #> NAN101
=== in a property
class Net(nn.Module):
    @property
    def loss(self):
        return torch.sqrt((self.pred ** 2).mean())  #> NAN101
=== in a class method
class Losses:
    @classmethod
    def rmse_loss(cls, pred):
        return torch.sqrt((pred ** 2).mean())  #> NAN101
=== bounded away from zero, times a sign that can be 0
def log_map(angle, vector, eps=1e-4):
    safe = angle.abs().clamp(min=eps) * angle.sign()
    return safe / (2 * safe.sin()) * vector  #> NAN209
=== a sign times what is bounded away from zero
def signed(x, y):
    return y / (torch.sign(x) * x.abs().clamp(min=1e-6))  #> NAN209
=== local variances from windows
def texture(image_pred, window):
    mean = F.conv2d(image_pred, window)
    return torch.sqrt(F.conv2d(image_pred * image_pred, window) - mean * mean).mean()  #> NAN101 NAN501
=== local correlation, the variances under one root
class Correlation(nn.Module):
    def __init__(self, k=5, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.register_buffer("window", torch.ones(1, 1, k, k))
        self.n = float(k * k)

    def total(self, x):
        return F.conv2d(x, self.window, padding=2)

    def forward(self, p, t):
        t2, p2, tp = self.total(t * t), self.total(p * p), self.total(t * p)
        ts, ps = self.total(t), self.total(p)
        var_t, var_p = t2 - ts / self.n * ts, p2 - ps / self.n * ps
        return -((tp - ts / self.n * ps) / torch.sqrt(var_t * var_p + self.eps)).mean()  #> NAN501
=== a sum times itself over how many
def spread(pred, n):
    s = pred.sum()
    return torch.sqrt((pred * pred).sum() - s / n * s)  #> NAN101 NAN501
""")

SAFE = tables("""
=== sqrt clamped
def loss(pred, target):
    return ((pred - target) ** 2).mean().clamp(min=1e-12).sqrt()
=== sqrt clamped by position
def loss(pred, target):
    return torch.sqrt(torch.clamp(((pred - target) ** 2).mean(), 1e-12))
=== sqrt clamp_min
def loss(pred, target):
    return torch.sqrt(((pred - target) ** 2).mean().clamp_min(1e-12))
=== sqrt of maximum
def loss(pred, target):
    d = ((pred - target) ** 2).mean()
    return torch.sqrt(torch.maximum(d, torch.tensor(1e-12)))
=== sqrt with an epsilon inside
def loss(pred, target):
    return torch.sqrt(((pred - target) ** 2).mean() + 1e-8)
=== sqrt with an epsilon argument
def loss(pred, target, eps=1e-8):
    return torch.sqrt(((pred - target) ** 2).mean() + eps)
=== sqrt with an epsilon of the object
class RMSE(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, pred, target):
        return torch.sqrt(F.mse_loss(pred, target) + self.eps)
=== sqrt with an epsilon of the module
EPS = 1e-6

def loss(pred, target):
    return torch.sqrt(((pred - target) ** 2).mean() + EPS)
=== sqrt with an epsilon of the class
class RMSE(nn.Module):
    EPSILON = 1e-6

    def forward(self, pred, target):
        return torch.sqrt(F.mse_loss(pred, target) + self.EPSILON)
=== charbonnier
def loss(pred, target):
    return torch.sqrt((pred - target) ** 2 + 1e-6).mean()
=== power of a half with an epsilon inside
def loss(pred, target):
    return (((pred - target) ** 2).mean() + 1e-9) ** 0.5
=== squares without a root
def loss(pred, target):
    return ((pred - target) ** 2).mean()
=== sqrt of an exponential
def loss(x):
    return torch.sqrt(torch.exp(x.clamp(-10, 10))).mean()
=== sqrt of a sigmoid plus one
def loss(x):
    return torch.sqrt(torch.sigmoid(x) + 1).mean()
=== sqrt under no_grad
def loss(pred, target):
    with torch.no_grad():
        rmse = torch.sqrt(((pred - target) ** 2).mean())
    return rmse
=== sqrt in a function without gradients
@torch.no_grad()
def error(pred, target):
    return torch.sqrt(((pred - target) ** 2).mean())
=== sqrt of something detached
def loss(pred, target):
    rmse = torch.sqrt(((pred.detach() - target) ** 2).mean())
    return (pred - target).abs().mean(), rmse
=== sqrt of an item
def loss(pred, target):
    l = ((pred - target) ** 2).mean()
    return l, math.sqrt(l.item())
=== sqrt of labels
def spread(target, gt):
    return torch.sqrt(((target - gt) ** 2).mean())
=== sqrt of a constant
def scale(dim):
    return torch.sqrt(torch.tensor(2.0)), math.sqrt(dim), dim ** 0.5
=== sqrt of a size
def attention(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), -1) @ v
=== NumPy
def rmse(a, b):
    return np.sqrt(((a - b) ** 2).mean()), np.log(np.exp(a) + 1), a / np.linalg.norm(np.asarray(a))
=== python floats
def rmse(a: float, b: float) -> float:
    return math.sqrt((a - b) ** 2), math.log(abs(a) + 1)
=== own norm with an epsilon
def length(flow):
    u, v = flow[:, 0], flow[:, 1]
    return torch.sqrt(u ** 2 + v ** 2 + 1e-12)
=== own norm clamped
def length(pred, target):
    return ((pred - target) ** 2).sum(dim=1).clamp(min=1e-12).sqrt().mean()
=== torch's norm
def length(pred, target):
    return torch.linalg.norm(pred - target, dim=1).mean() + (pred - target).norm()
=== small power with an epsilon
def loss(pred, target):
    return ((pred - target).abs() + 1e-6).pow(0.3).mean()
=== large power
def loss(pred, target):
    return (pred - target).abs().pow(1.5).mean()
=== log of a clamped sigmoid
def loss(logits):
    return -torch.log(torch.sigmoid(logits).clamp(min=1e-6)).mean()
=== log of a sigmoid clamped on both sides
def loss(logits):
    return -torch.log(torch.clamp(torch.sigmoid(logits), 1e-6, 1 - 1e-6)).mean()
=== log of a sigmoid with an epsilon
def loss(logits, eps=1e-6):
    return -torch.log(torch.sigmoid(logits) + eps).mean()
=== log of a head that is bounded away from zero
def head(x):
    return 0.1 + 10.0 * torch.sigmoid(x)

def loss(x, target):
    return torch.log(head(x)).mean()
=== log in a function that is given safe values
def logged(depth):
    return torch.log(depth)

def loss(x):
    return logged(80 * torch.sigmoid(x) + 1e-3).mean()
=== log of a Sequential that ends in a sigmoid, with a bound
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Sequential(nn.Conv2d(3, 1, 3), nn.Sigmoid())

    def forward(self, x):
        return torch.log(self.head(x) * 80.0 + 1e-3)
=== logsigmoid
def loss(logits):
    return -F.logsigmoid(logits).mean()
=== log_softmax
def loss(logits, target):
    return F.nll_loss(F.log_softmax(logits, dim=1), target)
=== log of a softmax with an epsilon
def entropy(logits):
    p = F.softmax(logits, dim=-1)
    return -(p * torch.log(p + 1e-8)).sum(-1).mean()
=== log of a clamped softmax
def entropy(logits):
    p = F.softmax(logits, dim=-1).clamp(min=1e-8)
    return -(p * p.log()).sum(-1).mean()
=== log of relu plus one
def loss(x):
    return torch.log(F.relu(x) + 1).mean() + torch.log1p(F.relu(x)).mean()
=== log of softplus with a floor
def loss(x):
    return torch.log(F.softplus(x) + 1e-3).mean()
=== log of squares plus one
def loss(x):
    return torch.log(1 + x ** 2).mean()
=== log of a number
def loss(x):
    return x.mean() * math.log(2) + torch.log(torch.tensor(2.0))
=== softplus
def softplus(x):
    return F.softplus(x)
=== log1p of exp of minus abs
def softplus(x):
    return torch.log1p(torch.exp(-x.abs())) + F.relu(x)
=== log of one plus a bounded exp
def softplus(x):
    return torch.log(1 + torch.exp(x.clamp(max=20)))
=== exp of a clamped argument
def scale(x):
    return torch.exp(x.clamp(max=10)).mean()
=== exp of a negative
def decay(x):
    return torch.exp(-x.abs()).mean() + torch.exp(-(x ** 2)).mean()
=== acos clamped inside
def angle(a, b):
    a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
    return torch.acos((a * b).sum(-1).clamp(-1 + 1e-6, 1 - 1e-6)).mean()
=== acos scaled inside
def angle(a, b):
    return torch.acos(0.999 * F.cosine_similarity(a, b, dim=-1)).mean()
=== atan2
def angle(a, b):
    return torch.atan2(torch.linalg.cross(a, b).norm(dim=-1), (a * b).sum(-1)).mean()
=== mean of a selection, guarded by a count
def loss(pred, target, mask):
    if mask.sum() == 0:
        return pred.sum() * 0
    return (pred[mask] - target[mask]).abs().mean()
=== mean of a selection, guarded by any
def loss(pred, target, mask):
    if not mask.any():
        return pred.sum() * 0
    return (pred[mask] - target[mask]).abs().mean()
=== mean of a selection, guarded by torch.any
def loss(pred, target, mask):
    if not torch.any(mask):
        return pred.sum() * 0
    return pred[mask].mean()
=== mean of a selection, in the guarded branch
def loss(pred, mask):
    if mask.any():
        return pred[mask].mean()
    return pred.sum() * 0
=== mean of a selection, guarded by its own numel
def loss(pred, target, mask):
    d = pred[mask] - target[mask]
    if d.numel() == 0:
        return pred.sum() * 0
    return d.abs().mean()
=== mean of a selection, guarded by its length
def loss(pred, mask):
    d = pred[mask]
    if len(d) == 0:
        return pred.sum() * 0
    return d.mean()
=== mean of a selection, guarded by its shape
def loss(pred, mask):
    d = pred[mask]
    if d.shape[0] == 0:
        return pred.sum() * 0
    return d.mean()
=== mean of a selection, conditional expression
def loss(pred, mask):
    d = pred[mask]
    return d.mean() if d.numel() > 0 else pred.sum() * 0
=== mean of a selection, guarded by a count in a name
def loss(pred, mask):
    n = mask.sum()
    if n < 1:
        return pred.sum() * 0
    return pred[mask].mean()
=== mean of a selection, guarded by an item
def loss(pred, mask):
    if mask.sum().item() == 0:
        return pred.sum() * 0
    return pred[mask].mean()
=== mean of a selection, guarded and skipped in a loop
def loss(preds, mask):
    total = 0.0
    for pred in preds:
        if mask.sum() == 0:
            continue
        total = total + pred[mask].mean()
    return total
=== mean of a selection, guarded by an assertion
def loss(pred, mask):
    assert mask.any(), "nothing is valid"
    return pred[mask].mean()
=== mean of a selection, guarded by raise
def loss(pred, mask):
    if mask.sum() == 0:
        raise ValueError("nothing is valid")
    return pred[mask].mean()
=== mean along an axis of a selection
def loss(pred, mask):
    return pred[mask].mean(dim=1).sum()
=== sum of a selection
def loss(pred, mask):
    return pred[mask].abs().sum()
=== mean of everything
def loss(pred, target):
    return (pred - target).abs().mean()
=== mean of a slice
def loss(pred, target):
    return (pred[:, 1:] - target[:, 1:]).abs().mean() + pred[0].mean()
=== mean of what integers choose
def loss(pred):
    idx = torch.randperm(10)[:4]
    return pred[idx].mean()
=== variance of a selection, guarded by a count
def loss(pred, mask):
    if mask.sum() <= 1:
        return pred.sum() * 0
    return pred[mask].var()
=== variance of a selection, guarded by numel
def loss(pred, mask):
    d = pred[mask]
    if d.numel() < 2:
        return pred.sum() * 0
    return torch.var(d)
=== variance of a selection, conditional expression
def loss(pred, mask):
    d = pred[mask]
    return d.var() if d.numel() > 1 else d.sum() * 0
=== population variance of a guarded selection
def loss(pred, mask):
    if mask.sum() == 0:
        return pred.sum() * 0
    return pred[mask].var(unbiased=False) + torch.var(pred[mask], correction=0)
=== variance of everything
def loss(pred, target):
    return torch.var(pred - target)
=== loss of a guarded selection
def loss(pred, target, mask):
    if mask.sum() == 0:
        return pred.sum() * 0
    return F.l1_loss(pred[mask], target[mask])
=== summed loss of a selection
def loss(pred, target, mask):
    return F.l1_loss(pred[mask], target[mask], reduction="sum")
=== loss without a selection
class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.criterion = nn.SmoothL1Loss()

    def forward(self, pred, target):
        return self.criterion(pred, target)
=== division by a clamped count
def loss(pred, target, mask):
    return ((pred - target).abs() * mask).sum() / mask.sum().clamp(min=1)
=== division by a count with an epsilon
def loss(pred, target, mask):
    return ((pred - target).abs() * mask).sum() / (mask.sum() + 1e-6)
=== division by the larger of a count and one
def loss(pred, target, mask):
    return ((pred - target).abs() * mask).sum() / max(mask.sum().item(), 1)
=== division by a guarded count
def loss(pred, target, mask):
    n = mask.sum()
    if n == 0:
        return pred.sum() * 0
    return ((pred - target).abs() * mask).sum() / n
=== division by a count, conditional expression
def loss(pred, mask):
    n = mask.sum()
    return (pred * mask).sum() / n if n > 0 else pred.sum() * 0
=== division by a count, in the guarded branch
def loss(pred, mask):
    total = pred.sum() * 0
    if mask.sum() > 0:
        total = (pred * mask).sum() / mask.sum()
    return total
=== division by a count of elements
def loss(pred):
    return pred.sum() / pred.numel() + pred.sum() / pred.shape[0] + pred.sum() / len(pred)
=== normalised to its range with an epsilon
def normalise(pred):
    return (pred - pred.min()) / (pred.max() - pred.min() + 1e-6)
=== normalised to its range, clamped
def normalise(pred):
    return (pred - pred.min()) / (pred.max() - pred.min()).clamp(min=1e-6)
=== normalised to its range, guarded
def normalise(pred):
    low, high = pred.min(), pred.max()
    if high == low:
        return torch.zeros_like(pred)
    return (pred - low) / (high - low)
=== normalised to its range, in the guarded branch
def normalise(pred):
    low, high = pred.min(), pred.max()
    if high > low:
        pred = (pred - low) / (high - low)
    return pred
=== normalised by its norm with an epsilon
def unit(pred):
    return pred / (pred.norm(dim=-1, keepdim=True) + 1e-6)
=== normalised by its norm, clamped
def unit(pred):
    return pred / pred.norm(dim=-1, keepdim=True).clamp_min(1e-12)
=== F.normalize
def unit(pred):
    return F.normalize(pred, dim=-1)
=== normalised by its deviation with an epsilon
def standard(pred):
    return (pred - pred.mean()) / (pred.std() + 1e-6)
=== division by a constant
def scaled(pred):
    return pred / 255.0 / math.pi
=== division by relu plus one
def loss(pred, x):
    return (pred / (F.relu(x) + 1)).mean()
=== division by softmax sums
def loss(x):
    p = torch.softmax(x, -1)
    return (p / p.sum(-1, keepdim=True)).mean()
=== double where, division
def loss(pred, weight):
    ok = pred != 0
    safe = torch.where(ok, pred, torch.ones_like(pred))
    return torch.where(ok, weight / safe, torch.zeros_like(pred)).sum()
=== double where, log
def entropy(probs):
    safe = torch.where(probs > 0, probs, 1.0)
    return torch.where(probs > 0, probs * torch.log(safe), 0.0).sum()
=== where over values that are fine
def huber(pred, target):
    d = (pred - target).abs()
    return torch.where(d < 1, 0.5 * d ** 2, d - 0.5).mean()
=== xlogy
def entropy(probs):
    return -torch.xlogy(probs, probs).sum()
=== nan_to_num of labels
def clean(target):
    return torch.nan_to_num(target)
=== isnan that raises
def checked(loss):
    if torch.isnan(loss):
        raise RuntimeError("NaN")
    return loss
=== nan_to_num in place
def clean(target):
    target.nan_to_num_()
    return target
=== one-pass variance without a root
def variance(x):
    return (x ** 2).mean() - x.mean() ** 2
=== two-pass variance under a root with an epsilon
def deviation(x):
    return torch.sqrt(((x - x.mean()) ** 2).mean() + 1e-8)
=== silog in one pass, floored
def silog(d):
    return torch.sqrt(((d ** 2).mean() - 0.85 * (d.mean() ** 2)).clamp(min=1e-12))
=== scale and shift, valid systems only
def scale_and_shift(prediction, target, mask):
    a_00 = torch.sum(mask * prediction * prediction, (1, 2))
    a_01 = torch.sum(mask * prediction, (1, 2))
    a_11 = torch.sum(mask, (1, 2))
    b_0 = torch.sum(mask * prediction * target, (1, 2))
    b_1 = torch.sum(mask * target, (1, 2))
    det = (a_00 * a_11 - a_01 * a_01).clamp(min=1e-6)
    return (a_11 * b_0 - a_01 * b_1) / det
=== adam over float32 weights
def train(model):
    return torch.optim.Adam(model.parameters(), lr=1e-4)
=== softmax with a maximum subtracted
def softmax(x):
    e = torch.exp(x - x.max(dim=-1, keepdim=True).values)
    return e / e.sum(-1, keepdim=True)
=== attention
class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.scale = (dim // heads) ** -0.5
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return ((q @ k.transpose(-2, -1)) * self.scale).softmax(-1) @ v
=== a layer norm of one's own
class LayerNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        u = x.mean(1, keepdim=True)
        s = (x - u).pow(2).mean(1, keepdim=True)
        return self.weight * (x - u) / torch.sqrt(s + self.eps)
=== depth from disparity
def to_depth(disp, min_depth, max_depth):
    low, high = 1 / max_depth, 1 / min_depth
    return 1 / (low + (high - low) * disp.sigmoid())
=== positional encoding
def encoding(length, dim):
    position = torch.arange(length).unsqueeze(1)
    div = torch.exp(torch.arange(0, dim, 2) * (-math.log(10000.0) / dim))
    return torch.sin(position * div)
=== dead code after return
def loss(pred, target):
    return (pred - target).abs().mean()
    return torch.sqrt(((pred - target) ** 2).mean())
=== log of a sigmoid between named bounds
def loss(x, min_depth, max_depth):
    return torch.log(min_depth + (max_depth - min_depth) * torch.sigmoid(x)).mean()
=== log of a sigmoid between a bound and a default
def loss(x, max_depth=10.0):
    return torch.log(0.1 + (max_depth - 0.1) * torch.sigmoid(x)).mean()
=== log of one minus a sigmoid with an epsilon
def loss(x):
    return -torch.log(1 - torch.sigmoid(x) + 1e-6).mean()
=== bounds by assignment
def loss(x):
    y = torch.sigmoid(x)
    y[y < 1e-6] = 1e-6
    return torch.log(y).mean()
=== bounds by where
def loss(x):
    y = torch.sigmoid(x)
    y = torch.where(y < 1e-6, torch.full_like(y, 1e-6), y)
    return torch.log(y).mean()
=== sqrt clamped in place
def loss(pred, target):
    d = ((pred - target) ** 2).mean()
    d.clamp_(min=1e-6)
    return torch.sqrt(d)
=== sqrt with an epsilon added in place
def loss(pred, target):
    d = ((pred - target) ** 2).mean()
    d += 1e-6
    e = ((pred - target) ** 2).mean()
    e.add_(1e-6)
    return torch.sqrt(d) + torch.sqrt(e)
=== sqrt in inference mode
@torch.inference_mode()
def error(pred, target):
    return torch.sqrt(((pred - target) ** 2).mean())
=== sqrt with gradients disabled
def error(pred, target):
    with torch.set_grad_enabled(False):
        return torch.sqrt(((pred - target) ** 2).mean())
=== sqrt detached afterwards
def error(pred, target):
    return torch.sqrt(((pred - target) ** 2).mean()).detach()
=== sqrt that is printed
def loss(pred, target):
    l = torch.sqrt(((pred - target) ** 2).mean())
    print(l.item())
    print("rmse", torch.sqrt(((pred - target) ** 2).mean()))
    return (pred - target).abs().mean()
=== what nobody uses
def loss(pred, target, mask):
    rmse = torch.sqrt(((pred - target) ** 2).mean())
    some = pred[mask].mean()
    return (pred - target).abs().mean()
=== std of everything as a loss
def loss(pred):
    return pred.std(dim=0).mean() + torch.cdist(pred, pred).mean()
=== root mean square norm with an epsilon
def normalised(x, eps=1e-6):
    return x * torch.rsqrt((x ** 2).mean(-1, keepdim=True) + eps)
=== a batch norm of one's own with an epsilon
def normalised(x):
    return (x - x.mean(0)) / torch.sqrt(x.var(0) + 1e-5)
=== a normal's likelihood with a floor
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x, y):
        mu, s = self.fc(x).chunk(2, -1)
        sigma = F.softplus(s) + 1e-4
        return ((y - mu) ** 2 / (2 * sigma ** 2) + torch.log(sigma)).mean()
=== variational
def loss(mu, logvar):
    z = mu + torch.exp(0.5 * logvar) * torch.randn_like(mu)
    return z.mean() - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
=== contrastive
def loss(z, tau=0.07):
    z = F.normalize(z, dim=1)
    return F.cross_entropy(z @ z.t() / tau, torch.arange(len(z)))
=== focal
def loss(logits, targets, alpha=0.25, gamma=2.0):
    p = torch.sigmoid(logits)
    ce = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    pt = p * targets + (1 - p) * (1 - targets)
    return (alpha * (1 - pt) ** gamma * ce).mean()
=== dice
def loss(logits, targets, smooth=1.0):
    p = torch.sigmoid(logits)
    return 1 - (2 * (p * targets).sum() + smooth) / (p.sum() + targets.sum() + smooth)
=== structural similarity
def loss(x, y):
    mu_x, mu_y = F.avg_pool2d(x, 3, 1), F.avg_pool2d(y, 3, 1)
    sx = F.avg_pool2d(x ** 2, 3, 1) - mu_x ** 2
    sy = F.avg_pool2d(y ** 2, 3, 1) - mu_y ** 2
    sxy = F.avg_pool2d(x * y, 3, 1) - mu_x * mu_y
    n = (2 * mu_x * mu_y + 0.01 ** 2) * (2 * sxy + 0.03 ** 2)
    d = (mu_x ** 2 + mu_y ** 2 + 0.01 ** 2) * (sx + sy + 0.03 ** 2)
    return torch.clamp((1 - n / d) / 2, 0, 1).mean()
=== smoothness
def loss(disp, image):
    disp = disp / (disp.mean(2, True).mean(3, True) + 1e-7)
    dx = torch.abs(disp[:, :, :, :-1] - disp[:, :, :, 1:])
    ix = torch.mean(torch.abs(image[:, :, :, :-1] - image[:, :, :, 1:]), 1, keepdim=True)
    return (dx * torch.exp(-ix)).mean()
=== uncertainty weights
class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_vars = nn.Parameter(torch.zeros(2))

    def forward(self, a, b):
        return a * torch.exp(-self.log_vars[0]) + self.log_vars[0] + b
=== mean of a selection, guarded by an or
def loss(pred, mask):
    if mask is None or pred.numel() == 0 or not mask.any():
        return pred.sum() * 0
    return pred[mask].mean()
=== mean of a selection, guarded by an int
def loss(pred, mask):
    if int(mask.sum()) == 0:
        return pred.sum() * 0
    return pred[mask].mean()
=== mean of a selection, guarded by its indices
def loss(pred, mask):
    if mask.nonzero().numel() == 0:
        return pred.sum() * 0
    return pred[mask].mean()
=== mean of a selection, guarded by its size
def loss(pred, mask):
    d = pred[mask]
    if d.size(0) == 0:
        return pred.sum() * 0
    return d.mean()
=== mean of a selection, guarded by not numel
def loss(pred, mask):
    d = pred[mask]
    if not d.numel():
        return pred.sum() * 0
    return d.mean()
=== mean of a selection, guarded by a helper
def empty(mask):
    return mask.sum() == 0

def loss(pred, mask):
    if empty(mask):
        return pred.sum() * 0
    return pred[mask].mean()
=== mean of a selection, guarded by a larger count
def loss(pred, mask):
    if torch.sum(mask) > 10:
        return pred[mask].mean()
    return pred.sum() * 0
=== mean of a selection, the guard's other branch
def loss(pred, mask):
    if mask.sum() == 0:
        l = pred.sum() * 0
    else:
        l = pred[mask].mean()
    return l
=== mean of a selection, nested guards
def loss(pred, mask, flag):
    if flag:
        if mask.sum() == 0:
            return pred.sum() * 0
        return pred[mask].mean()
    return pred.mean()
=== means of two guarded selections
def loss(pred, mask, other):
    if mask.sum() == 0 or other.sum() == 0:
        return pred.sum() * 0
    return pred[mask].mean() + pred[other].mean()
=== medians of guarded selections
def loss(pred, gt, mask):
    if mask.sum() == 0:
        return pred.sum() * 0
    ratio = torch.median(gt[mask]) / torch.median(pred[mask])
    return (pred * ratio - gt)[mask].abs().mean()
=== division by a count, walrus
def loss(pred, mask):
    if (n := mask.float().sum()) == 0:
        return pred.sum() * 0
    return (pred * mask).sum() / n
=== division by the larger of a count and one, torch
def loss(pred, mask):
    a = (pred * mask).sum() / torch.max(mask.sum(), torch.tensor(1.0))
    b = (pred * mask).sum() / torch.maximum(mask.sum(), torch.ones(()))
    return a + b + (pred * mask).sum() / torch.clamp(mask.sum(), min=1)
=== division by a clamped count for each image
def loss(pred, mask):
    return ((pred * mask).sum((1, 2)) / mask.sum((1, 2)).clamp(min=1)).mean()
=== a sign that is never 0
def signed(x, y):
    return y / (torch.where(x < 0, -1.0, 1.0) * x.abs().clamp(min=1e-6))
=== a sign whose zero is replaced
def signed(x, y):
    sign = torch.where(x == 0, torch.ones_like(x), x.sign())
    return y / (sign * x.abs().clamp(min=1e-6))
=== the sign of what is positive
def signed(x, y):
    d = x.clamp(min=1e-3)
    return y / (d.sign() * d)
=== local correlation of bounded variances
def correlation(p, t, window, eps=1e-5):
    pm, tm = F.conv2d(p, window), F.conv2d(t, window)
    var_p = (F.conv2d(p * p, window) - pm * pm).clamp(min=0)
    var_t = (F.conv2d(t * t, window) - tm * tm).clamp(min=0)
    return -((F.conv2d(p * t, window) - pm * tm) / torch.sqrt(var_p * var_t + eps)).mean()
=== attention without padding
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x):
        return self.attn(x, x, x, key_padding_mask=None)[0]
=== a deviation beside a layer norm of something else
class Whiten(nn.Module):
    def forward(self, x, y):
        y = F.layer_norm(y, y.shape[-1:])
        return y + x.std(dim=1, keepdim=True)
""")

LOOKING_ON = tables("""
=== a metric
def compute_errors(gt, pred):
    mask = gt > 0
    return (gt[mask] - pred[mask]).abs().mean()  #> NAN302
=== under no_grad
def step(model, pred, mask):
    with torch.no_grad():
        error = pred[mask].mean()  #> NAN302
    return error
=== log of an unknown prediction
def loss(pred, target):
    return torch.log(pred).mean()  #> NAN202
=== log of labels that may hold zeros
def loss(pred, target):
    return (pred - torch.log(target)).abs().mean()  #> NAN702
=== exponential of a layer
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(8, 1)

    def forward(self, x):
        return torch.exp(self.out(x))  #> NAN206
=== masked softmax
def attention(scores, mask):
    return scores.masked_fill(mask == 0, float("-inf")).softmax(-1)  #> NAN404
=== evaluation by its name
def evaluate(pred, gt, mask):
    return torch.sqrt(((pred[mask] - gt[mask]) ** 2).mean())  #> NAN101 NAN302
=== attention over padding
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x, pad):
        a, _ = self.attn(x, x, x, key_padding_mask=pad)  #> NAN404
        return x + a
=== a batch normalised by its own deviation
def normalised(advantage: torch.Tensor):
    return (advantage - advantage.mean()) / (advantage.std() + 1e-8)  #> NAN301
=== an inverse of measured depth
class Rooms(torch.utils.data.Dataset):
    def __init__(self, n=24):
        self.depth = 0.8 + 7 * torch.rand(n, 1, 12, 12)
        self.depth[17, 0, 3:5] = 0.0

    def __getitem__(self, i):
        return 10.0 / self.depth[i]  #> NAN209
=== a projection that is sampled at
def warp(img, x, y, depth, translation):
    z = depth + translation[:, 2, None, None]
    grid = torch.stack([x / z, y / z], dim=-1)  #> NAN209
    return F.grid_sample(img, grid, align_corners=False)
""")


SUBTLE = tables("""
=== the maximum is above a literal minimum
def loss(logits, max_depth):
    return torch.log(0.1 + (max_depth - 0.1) * torch.sigmoid(logits)).mean()
=== one minus a clamped sigmoid is clamped as well
def loss(logits, y):
    p = torch.sigmoid(logits).clamp(1e-6, 1 - 1e-6)
    return -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()
=== one minus a clamped softmax
def loss(logits):
    p = torch.softmax(logits, -1).clamp(1e-4, 0.99)
    return -torch.log(1 - p).mean()
=== masked_fill takes out what is below the bound
def loss(x):
    y = torch.sigmoid(x)
    y = y.masked_fill(y < 1e-6, 1e-6)
    return torch.log(y).mean()
=== nothing equals NaN
def clean(pred):
    bad = pred == float("nan")  #> NAN402
    return pred.masked_fill(bad, 0.0)
=== nothing equals NaN, torch.nan
def clean(pred):
    return torch.where(pred == torch.nan, 0.0, pred)  #> NAN402
=== log1p of exp
def softplus(logits):
    return torch.log1p(logits.exp())  #> NAN206
=== the mask itself says that the divisor can be 0
def loss(pred, weight):
    return torch.where(pred != 0, weight / pred, torch.zeros_like(pred)).sum()  #> NAN401
=== the mask itself says that the root's argument can be 0
def loss(pred):
    return torch.where(pred > 0, torch.sqrt(pred), torch.zeros_like(pred)).sum()  #> NAN401
=== lambdas that nobody is seen calling
rmse = lambda pred, target: torch.sqrt(((pred - target) ** 2).mean())  #> NAN101
LOSSES = {"rmse": lambda p, t: torch.sqrt(((p - t) ** 2).mean())}  #> NAN101
=== weights that can all be 0
def average(w, x):
    w = F.relu(w)
    return (w * x).sum(0) / w.sum(0)  #> NAN303
=== a module named RMSE is a loss
class RMSE(nn.Module):
    def forward(self, pred, target):
        return torch.sqrt(F.mse_loss(pred, target))  #> NAN101
=== a loss module by another name
class Supervised(nn.Module):
    def __init__(self):
        super().__init__()
        self.crit = nn.L1Loss()

    def forward(self, pred, gt):
        return self.crit(pred[gt > 0], gt[gt > 0])  #> NAN302
""")
"""Where the linter was wrong once."""


@pytest.mark.parametrize("snippet", SUBTLE.values(), ids=SUBTLE.keys())
def test_subtle(snippet: str, tmp_path: Path) -> None:
    files = one(snippet)
    assert found(tmp_path, files) == expected(files)


@pytest.mark.parametrize("snippet", RISKY.values(), ids=RISKY.keys())
def test_found(snippet: str, tmp_path: Path) -> None:
    files = one(snippet)
    assert found(tmp_path, files) == expected(files) != []


@pytest.mark.parametrize("snippet", SAFE.values(), ids=SAFE.keys())
def test_left_alone(snippet: str, tmp_path: Path) -> None:
    assert found(tmp_path, one(snippet)) == []


@pytest.mark.parametrize("snippet", LOOKING_ON.values(), ids=LOOKING_ON.keys())
def test_found_only_where_asked_for(snippet: str, tmp_path: Path) -> None:
    files = one(snippet)
    assert found(tmp_path, files) == []
    assert found(tmp_path, files, Confidence.DEPENDS) == expected(files) != []


# --- the causes' own examples ----------------------------------------------------------------------------------------

ASKED = {code: cause for code, cause in load().items() if cause.sites}
BY_DATA = {"NAN103", "NAN204", "NAN206"}
"""Only the numbers in these examples make them bad: their source alone does not."""
NEVER_SAFE = {"NAN105"}
"""Whether a matrix is degenerate cannot be read off the source."""


@pytest.mark.parametrize("cause", ASKED.values(), ids=ASKED.keys())
def test_the_examples_of_the_pages(cause: Cause, tmp_path: Path) -> None:
    bad = {code for _, _, code in found(tmp_path, {"train.py": cause.bad}, Confidence.DEPENDS)}
    good = {code for _, _, code in found(tmp_path, {"train.py": cause.good})}
    assert cause.code in bad or cause.code in BY_DATA
    assert cause.code not in good or cause.code in NEVER_SAFE


# --- across files ----------------------------------------------------------------------------------------------------

HEAD = """
import torch
import torch.nn as nn


class DepthNet(nn.Module):
    def __init__(self, max_depth=80.0):
        super().__init__()
        self.conv = nn.Conv2d(3, 1, 3)
        self.max_depth = max_depth

    def forward(self, x):
        return HEAD
"""
LOSS = """
import torch


def loss(pred, target):
    return torch.abs(torch.log(pred) - torch.log(target.clamp(min=1e-3))).mean()  #> NAN201
"""
TRAIN = """
import torch
from losses import loss
from models.net import DepthNet

model = DepthNet()
optimizer = torch.optim.Adam(model.parameters())
for image, target in []:
    optimizer.zero_grad()
    value = loss(model(image), target)
    value.backward()
    optimizer.step()
"""


def project(head: str, loss: str = LOSS, train: str = TRAIN) -> dict[str, str]:
    return {"models/__init__.py": "", "models/net.py": HEAD.replace("HEAD", head), "losses.py": loss, "train.py": train}


@pytest.mark.parametrize("head", ["self.max_depth * torch.sigmoid(self.conv(x))", "self.conv(x).sigmoid() * 80.0", "torch.sigmoid(self.conv(x))"])
def test_a_head_and_a_loss_in_two_files(head: str, tmp_path: Path) -> None:
    files = project(head)
    assert found(tmp_path, files) == expected(files)


@pytest.mark.parametrize(
    "head",
    [
        "0.1 + self.max_depth * torch.sigmoid(self.conv(x))",
        "self.max_depth * torch.sigmoid(self.conv(x)).clamp(min=1e-3)",
        "torch.exp(self.conv(x).clamp(-5, 5))",
    ],
)
def test_a_head_bounded_away_from_zero_in_another_file(head: str, tmp_path: Path) -> None:
    assert found(tmp_path, project(head)) == []


def test_the_finding_points_at_the_other_file(tmp_path: Path) -> None:
    found(tmp_path, project("self.max_depth * torch.sigmoid(self.conv(x))"))
    result = inspect(Request([str(tmp_path)], Settings(root=str(tmp_path)), jobs=1))
    (finding,) = result.inspection.findings
    assert {place.file for place in finding.also} & {"models/net.py", "train.py"}


@pytest.mark.parametrize("imported", ["import losses", "import losses as criteria", "from losses import loss as criterion"])
def test_imports_by_other_names(imported: str, tmp_path: Path) -> None:
    call = {"import losses": "losses.loss", "import losses as criteria": "criteria.loss"}.get(imported, "criterion")
    train = TRAIN.replace("from losses import loss", imported).replace("loss(model", f"{call}(model")
    for head, count in (("80 * torch.sigmoid(self.conv(x))", 1), ("0.1 + 80 * torch.sigmoid(self.conv(x))", 0)):
        assert len(found(tmp_path, project(head, train=train))) == count


def test_a_loss_of_its_own_class(tmp_path: Path) -> None:
    loss = """
import torch
import torch.nn as nn


class Loss(nn.Module):
    def forward(self, pred, target):
        return torch.abs(torch.log(pred) - torch.log(target.clamp(min=1e-3))).mean()  #> NAN201
"""
    train = TRAIN.replace("import loss", "import Loss").replace("optimizer =", "loss = Loss()\noptimizer =", 1)
    files = project("80 * torch.sigmoid(self.conv(x))", loss, train)
    assert found(tmp_path, files) == expected(files)
    assert found(tmp_path, project("0.1 + 80 * torch.sigmoid(self.conv(x))", loss, train)) == []


def test_callers_that_guard_in_another_file(tmp_path: Path) -> None:
    loss = "import torch\n\n\ndef masked(pred, target, mask):\n    return (pred[mask] - target[mask]).abs().mean()\n"
    train = "import torch\nfrom losses import masked\n\n\ndef step(pred, target, mask):\n    GUARD\n    return masked(pred, target, mask)\n"
    guarded = train.replace("GUARD", "if mask.sum() == 0:\n        return pred.sum() * 0")
    assert found(tmp_path, {"losses.py": loss, "train.py": guarded}) == []
    assert found(tmp_path, {"losses.py": loss, "train.py": train.replace("GUARD", "print(mask)")}) == [("losses.py", 5, "NAN302")]


def test_one_finding_for_many_callers(tmp_path: Path) -> None:
    loss = "import torch\n\n\ndef rmse_loss(pred, target):\n    return torch.sqrt(((pred - target) ** 2).mean())\n"
    trains = {
        f"train_{name}.py": "import torch\nfrom losses import rmse_loss\n\n\ndef step(pred, target):\n    return rmse_loss(pred, target)\n" for name in "abc"
    }
    assert found(tmp_path, {"losses.py": loss, **trains}) == [("losses.py", 5, "NAN101")]


def test_a_file_that_knows_no_torch(tmp_path: Path) -> None:
    assert found(tmp_path, {"stats.py": "import numpy as np\n\n\ndef f(x, mask):\n    return x[mask].mean() / np.sqrt(((x - 1) ** 2).mean())\n"}) == []


@pytest.mark.parametrize("name", ["evaluate.py", "metrics.py", "tools/eval_depth.py", "visualization/show.py", "tests/test_losses.py"])
def test_files_that_look_on(name: str, tmp_path: Path) -> None:
    text = "import torch\n\n\ndef error(pred, gt, mask):\n    return (pred[mask] - gt[mask]).abs().mean()\n"
    assert found(tmp_path, {name: text}) == []
    assert found(tmp_path, {name: text}, Confidence.DEPENDS) == [(name, 5, "NAN302")]


def test_imports_in_a_circle(tmp_path: Path) -> None:
    a = "import torch\nfrom b import g\n\n\ndef f(pred):\n    return g(pred)\n"
    b = "import torch\nfrom a import f\n\n\ndef g(pred):\n    return f(torch.sqrt((pred ** 2).mean()))  #> NAN101\n"
    files = {"a.py": a, "b.py": b}
    assert found(tmp_path, files) == expected(files)


# --- not yet ---------------------------------------------------------------------------------------------------------
