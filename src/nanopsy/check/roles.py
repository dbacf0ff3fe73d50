"""What names say: labels, images, predictions, masks, configuration numbers, and code that only looks on."""

from __future__ import annotations

import re
from functools import lru_cache

WITHOUT_GRADIENT = ("label", "image", "constant")
"""Roles whose values carry no gradient."""
_LABEL = re.compile(r"(?:^|_)(?:gts?|targets?|tgts?|labels?|lbls?|truths?|annotations?|ground|y_true|ref)(?=_|\d|$)|groundtruth")
_IMAGE = re.compile(r"(?:^|_)(?:images?|imgs?|rgb|colou?rs?|pixels?|frames?)(?=_|\d|$)")
_PREDICTION = re.compile(r"(?:^|_)(?:preds?|predictions?|predicted|est|estimate[ds]?|outputs?|outs?|inputs?|logits?|probs?|recon|y_hat|x|student)(?=_|\d|$)")
_CONSTANT = re.compile(
    r"(?:^|_)(?:anchors?|priors?|alphas?_cumprod\w*|timesteps?|intrinsics?|extrinsics?|noise|sigmas?|betas_\w+|rays?|ray_dirs?|ray_directions?|viewdirs?|k|inv_k|k_inv)(?=_|$)|^alphas$|^betas$"
)
_MASK = re.compile(r"mask|(?:^|_)(?:valids?|is_\w+|keep|selected|inliers?|visible|ignore|positives?)(?=_|\d|$)|_valid|^valid|_ok$")
_REGION = re.compile(r"(?:^|_)(?:areas?|regions?|fore(?:ground)?|background|fg|bg)(?=_|\d|$)")
_NUMBER = re.compile(
    r"(?:^|_)(?:(?:min|max)_?(?:depths?|vals?|values?|disps?|disparity|ranges?|bins?|dist|scale|d|temp)?|(?:depths?|disps?|d|v)_?(?:min|max)|near|far"
    r"|temp(?:erature)?s?|tau|sigma|beta\d?|gamma|eps(?:ilon)?|n_?bins|num_\w+|focal|factor|height|width|scale|bs|batch_?size|n_\w+|lamb?da\w*|weight_decay|lr|momentum|"
    r"(?:in|out|hidden|embed|head)_?(?:dim|channels|planes)s?|dim|upratio|ratio|scale_factor|stride|radius)$"
)  # fmt: skip
_QUIET = re.compile(
    r"(?:^|_)(?:eval\w*|valid(?:ate|ation|ating)|val|tests?|testing|metrics|(?:compute|calc\w*|update|log)_metric|visuali[sz]\w*|vis|plots?|draw\w*|demo|infer(?:ence)?|inference|predict|"
    r"summar\w+|sample|sampling|denoise|save\w*|export\w*|colori[sz]\w*|benchmark|debug|report|prints?|analy[sz]e)(?=_|$)|compute_(?:depth_)?(?:errors?|metrics?)|^log_(?:image|metric|scalar|time|dict|value|hist)|"
    r"^(?:abs_rel|rmse\w*|delta\d?|sq_rel|a\d|log10|accuracy|psnr|__repr__|__str__)$"
)  # fmt: skip
_METRIC = re.compile(r"^(?:abs_rel|rmse\w*|delta\d?|sq_rel|a\d|log10|accuracy|psnr)$")
_QUIET_FILE = re.compile(
    r"(?:^|/)(?:cli|samplers?|backup|old|deprecated|tests?|testing|evaluations?|metrics|visuali[sz]ations?|demos?|benchmarks?|docs|examples?/viz|onnx\w*|deploy\w*|export\w*)/|"
    r"(?:^|[/_])(?:samplers?|sampling|solver|\w*meters?|backup|old|copy|deprecated|tests?|eval\w*|metrics|visuali[sz]\w*|vis|infer\w*|demo|plot\w*|predict|conftest|viz|render|export\w*|benchmark\w*)(?:_\w+)?\.(?:py|ipynb)$|"
    r"(?:^|[/_])metric\.py$"
)  # fmt: skip


@lru_cache(maxsize=65536)
def role(name: str) -> str:
    """``label``, ``image``, ``constant``, ``prediction`` or nothing, by name."""
    lower = name.lower()
    if _PREDICTION.search(lower) and not lower.startswith(("target", "gt", "label")):
        if not _LABEL.search(lower) or _PREDICTION.match(lower):
            return "prediction"
    if _LABEL.search(lower):
        return "label"
    if _IMAGE.search(lower):
        return "image"
    if _CONSTANT.search(lower):
        return "constant"
    return ""


@lru_cache(maxsize=65536)
def is_mask(name: str) -> bool:
    """Whether a name says that the value chooses elements."""
    return _MASK.search(name.lower()) is not None


@lru_cache(maxsize=65536)
def is_region(name: str) -> bool:
    """Whether a name of something used as an index says that it is a part of the picture."""
    return _REGION.search(name.lower()) is not None


@lru_cache(maxsize=65536)
def is_setting(name: str) -> bool:
    """Whether a name says that the value is a positive configuration number."""
    return _NUMBER.search(name.lower()) is not None


@lru_cache(maxsize=65536)
def is_quiet(function: str) -> bool:
    """Whether a function's name says that it evaluates, logs or draws."""
    lower = function.lower()
    return _QUIET.search(lower) is not None and "loss" not in lower and "criterion" not in lower


@lru_cache(maxsize=65536)
def is_quiet_class(name: str) -> bool:
    """Whether a class's name says so; a metric's own name (RMSE) may as well be a loss."""
    return is_quiet(name) and _METRIC.search(name.lower()) is None


@lru_cache(maxsize=65536)
def is_quiet_file(path: str) -> bool:
    """Whether a file's path says that what is in it evaluates, logs, draws or tests."""
    lower = path.lower()
    return _QUIET_FILE.search(lower) is not None and "train" not in lower.rpartition("/")[2]
