"""Depth networks: shapes, published sizes, exchangeable heads, gradients everywhere, and that each can learn one batch by heart."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from nanopsy.depth.encodings import DataError
from nanopsy.depth.models import ADAPTERS, BACKBONES, HEADS, MODELS, backbone, build, parameters
from nanopsy.depth.models.bts import LocalPlanarGuidance
from nanopsy.depth.models.depthformer import DeformableAttention
from nanopsy.depth.models.windows import WindowAttention, WindowBlock
from nanopsy.stable import DepthPrediction, silog

pytestmark = pytest.mark.usefixtures("one_thread")

CPU_ADAPTERS = [name for name in ADAPTERS if name != "depth-pro"]
SMALL_BACKBONES = [name for name in BACKBONES if name.endswith("-mini") or name == "resnet-tiny"]


def depth_of(prediction: torch.Tensor | DepthPrediction) -> torch.Tensor:
    return prediction.depth if isinstance(prediction, DepthPrediction) else prediction


@pytest.mark.parametrize("name", [*MODELS, *CPU_ADAPTERS])
def test_a_network_predicts_depth_and_trains_everywhere(name: str) -> None:
    torch.manual_seed(0)
    network = build(name, max_depth=10.0)
    depth = depth_of(network(torch.rand(2, 3, 50, 70)))
    assert depth.shape == (2, 1, 50, 70)
    assert torch.isfinite(depth).all()
    assert (depth >= 0).all()
    depth.log1p().mean().backward()
    idle = [key for key, parameter in network.named_parameters() if parameter.grad is None]
    allowed = (
        "norm4",
        "mask_token",
        "pooler",
        "layernorm",
        "hidden_states_norms",
        "embeddings",
        "relative_position",
        "head",
        "classifier",
        "level",
        "neck",
        "widths",
        "layers",
        "logits",
    )
    assert not [key for key in idle if not any(word in key for word in allowed)], idle[:5]


@pytest.mark.parametrize(
    ("name", "millions", "beside"),
    [("bts", 49.531, 2.049), ("adabins", 78.257, 0.0), ("newcrfs", 270.445, 0.0), ("depthformer", 273.733, 0.0), ("pixelformer", 258.360, 0.0)],
)
def test_published_sizes(name: str, millions: float, beside: float) -> None:
    """Counts of the published code, within 1 % (PixelFormer-like: its own, less its unused layers); ``beside``: the classifier that BTS's count includes."""
    with torch.device("meta"):
        network = build(name, "full")
    assert parameters(network) / 1e6 + beside == pytest.approx(millions, rel=1e-2)


def test_the_table_of_sizes_in_the_docs() -> None:
    page = (Path(__file__).parent.parent / "docs" / "lab.md").read_text()
    for name in MODELS:
        with torch.device("meta"):
            millions = parameters(build(name, "full")) / 1e6
        assert re.search(rf"\| `{name}` [^|]*\| {millions:.2f} M \|", page), f"{name}: {millions:.2f} M"


@pytest.mark.parametrize("head", HEADS)
def test_heads_are_exchangeable(head: str) -> None:
    torch.manual_seed(0)
    network = build("bts", head=head, max_depth=20.0, min_depth=0.5)
    prediction = network(torch.rand(1, 3, 64, 64))
    assert isinstance(prediction, DepthPrediction) == HEADS[head].stable
    depth = depth_of(prediction)
    assert depth.shape == (1, 1, 64, 64)
    if isinstance(prediction, DepthPrediction):
        assert torch.allclose(prediction.log_depth, depth.log(), atol=1e-5)
        silog(prediction, torch.full_like(depth, 3.0)).backward()


@pytest.mark.parametrize("name", ["adabins", "pixelformer"])
def test_bins_adapt_to_the_picture(name: str) -> None:
    torch.manual_seed(0)
    network = build(name, max_depth=10.0)
    for module in network.modules():
        module.train(isinstance(module, nn.BatchNorm2d))  # random weights: only batch statistics keep the pictures apart, and dropout must not
    with torch.no_grad():
        widths = network.decoder(torch.rand(2, 3, 64, 64)).widths
    assert widths is not None
    assert widths.shape == (2, 256)
    assert (widths[0] != widths[1]).any()


@pytest.mark.parametrize("name", SMALL_BACKBONES)
def test_an_encoder_is_a_pyramid(name: str) -> None:
    encoder = backbone(name)
    maps = encoder(torch.rand(2, 3, 64, 96))
    assert [each.shape[1] for each in maps] == list(encoder.channels)
    assert [(64 // stride, 96 // stride) for stride in encoder.strides] == [tuple(each.shape[-2:]) for each in maps]


@pytest.mark.parametrize(
    ("name", "encoder"),
    [
        ("newcrfs", "resnet-tiny"),
        ("newcrfs", "dinov2-mini"),
        ("depthformer", "convnext-mini"),
        ("pixelformer", "swinv2-mini"),
        ("bts", "efficientnet-mini"),
        ("adabins", "resnet-tiny"),
    ],
)
def test_encoders_are_exchangeable(name: str, encoder: str) -> None:
    assert depth_of(build(name, backbone=encoder)(torch.rand(2, 3, 64, 96))).shape == (2, 1, 64, 96)


def test_a_decoder_that_needs_finer_maps_says_so() -> None:
    with pytest.raises(DataError, match="an encoder with 4 maps, from stride 4 on"):
        build("bts", backbone="swin-mini")


@pytest.mark.parametrize("name", sorted(set(BACKBONES) - set(SMALL_BACKBONES)))
def test_a_full_encoder_can_be_made(name: str) -> None:
    if name.startswith("efficientnet"):
        assert backbone(name).channels == (24, 40, 64, 176, 2048)
        return
    with torch.device("meta"):
        assert len(backbone(name).channels) in (4, 5)


def test_an_encoders_checkpoint(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    torch.manual_seed(0)
    donor = backbone("resnet-tiny")
    state = {f"resnet.{name}": value.contiguous() for name, value in donor.body.state_dict().items()}
    save_file(state, tmp_path / "model.safetensors")
    torch.manual_seed(1)
    loaded = build("bts", checkpoint=tmp_path / "model.safetensors").decoder.encoder
    assert all((a == b).all() for a, b in zip(donor.body.state_dict().values(), loaded.body.state_dict().values(), strict=True))
    save_file(dict(list(state.items())[3:]), tmp_path / "part.safetensors")
    with pytest.raises(DataError, match=r"tensors are missing"):
        backbone("resnet-tiny", tmp_path / "part.safetensors")
    with pytest.raises(DataError, match=r"is not a \.safetensors file"):
        backbone("resnet-tiny", tmp_path / "model.bin")
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / "model.safetensors").read_bytes()[:100])
    with pytest.raises(DataError, match="cannot be read"):
        backbone("resnet-tiny", tmp_path / "cut.safetensors")


def test_names_are_checked() -> None:
    with pytest.raises(DataError, match="did you mean 'newcrfs'"):
        build("newcrf")
    with pytest.raises(DataError, match="did you mean 'logsigmoid'"):
        build("bts", head="log-sigmoid")
    with pytest.raises(DataError, match=r"config\.json is missing"):
        build("dpt", checkpoint="/no/such/folder")
    with pytest.raises(DataError, match="no tiny size"):
        build("depth-pro")
    with pytest.raises(DataError, match="3 x H x W"):
        build("bts")(torch.rand(1, 1, 32, 32))


# -- the parts, against something else -----------------------------------------------------------


def test_planar_guidance_of_a_frontal_plane_is_flat() -> None:
    """theta = 0: the normal looks at the camera and the depth is the distance everywhere."""
    plane = torch.zeros(1, 3, 2, 3)
    plane[:, 0] = -200.0
    plane[:, 2] = torch.tensor([[0.0, 1.0, -1.0], [2.0, -2.0, 0.5]])
    depth = LocalPlanarGuidance(4)(plane)
    assert torch.allclose(depth[0, 0, ::4, ::4], plane[0, 2].sigmoid())
    assert torch.allclose(depth[0, 0, 3, 3], plane[0, 2, 0, 0].sigmoid())


def test_planar_guidance_intersects_rays() -> None:
    torch.manual_seed(0)
    plane = torch.randn(1, 3, 1, 1)
    depth = LocalPlanarGuidance(8)(plane)[0, 0].double()
    theta, phi, distance = float(plane[0, 0].sigmoid()) * torch.pi / 3, float(plane[0, 1].sigmoid()) * 2 * torch.pi, float(plane[0, 2].sigmoid())
    normal = torch.tensor(
        [
            torch.sin(torch.tensor(theta)) * torch.cos(torch.tensor(phi)),
            torch.sin(torch.tensor(theta)) * torch.sin(torch.tensor(phi)),
            torch.cos(torch.tensor(theta)),
        ]
    )
    for row in range(8):
        for column in range(8):
            ray = torch.tensor([(column - 3.5) / 8, (row - 3.5) / 8, 1.0])
            assert float(depth[row, column] * (ray @ normal)) == pytest.approx(distance, rel=1e-5)


def test_window_attention_is_attention() -> None:
    """Against nn.MultiheadAttention with the same weights and no bias of position."""
    torch.manual_seed(0)
    ours, theirs = WindowAttention(16, 4, 3), nn.MultiheadAttention(16, 4, batch_first=True)
    nn.init.zeros_(ours.bias)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([ours.query_key.weight, torch.eye(16)]))
        theirs.in_proj_bias.copy_(torch.cat([ours.query_key.bias, torch.zeros(16)]))
        theirs.out_proj.weight.copy_(ours.out.weight)
        theirs.out_proj.bias.copy_(ours.out.bias)
    x, values = torch.randn(5, 9, 16), torch.randn(5, 9, 16)
    assert torch.allclose(ours(x, values, None), theirs(x, x, values)[0], atol=1e-5)


@pytest.mark.parametrize("shifted", [False, True])
def test_a_pixel_sees_its_window_only(shifted: bool) -> None:  # noqa: FBT001
    torch.manual_seed(0)
    block = WindowBlock(8, 2, 4, shifted=shifted)
    x = torch.randn(1, 12, 12, 8)
    values = torch.randn(1, 12, 12, 8, requires_grad=True)
    block(x, values)[0, 0, 0].sum().backward()
    assert values.grad is not None
    seen = values.grad[0].abs().sum(-1) > 0
    reach = 2 if shifted else 4  # the shifted grid cuts a window of two pixels off at the border
    assert seen[:reach, :reach].all()
    assert not seen[reach:].any()
    assert not seen[:, reach:].any()


def test_deformable_attention_reads_where_it_points() -> None:
    """With no offset and even weights it is the mean over the levels of the bilinear value at the place."""
    torch.manual_seed(0)
    attention = DeformableAttention(8, 2, 2, 1)
    with torch.no_grad():
        attention.offsets.bias.zero_()
        nn.init.zeros_(attention.weights.weight)
        nn.init.zeros_(attention.weights.bias)
        attention.value.weight.copy_(torch.eye(8))
        attention.value.bias.zero_()
        attention.out.weight.copy_(torch.eye(8))
        attention.out.bias.zero_()
    maps = [torch.randn(1, 8, 4, 4), torch.randn(1, 8, 2, 2)]
    place = torch.tensor([[0.625, 0.375]])  # the centre of column 2, row 1 of the first map
    fine = maps[0][0, :, 1, 2]
    x, y = 0.625 * 2 - 0.5, 0.375 * 2 - 0.5
    rows = [(1 - x) * maps[1][0, :, r, 0] + x * maps[1][0, :, r, 1] for r in range(2)]
    wanted = (fine + (1 - y) * rows[0] + y * rows[1]) / 2
    assert torch.allclose(attention(torch.randn(1, 1, 8), place, maps)[0, 0], wanted, atol=1e-5)


# -- learning ------------------------------------------------------------------------------------

RATES = {"bts": 3e-3, "adabins": 3e-3, "newcrfs": 2e-3, "depthformer": 2e-3, "pixelformer": 2e-3}


@pytest.mark.parametrize("name", MODELS)
def test_a_network_learns_one_batch_by_heart(name: str) -> None:
    from nanopsy.depth.datasets import Rendered
    from nanopsy.depth.samples import SampleSet

    torch.manual_seed(0)
    samples = SampleSet(Rendered(2, kind="room", height=32, width=64))
    image, depth = torch.stack([samples[k].image for k in range(2)]), torch.stack([samples[k].depth for k in range(2)])
    mask = depth > 0
    network = build(name, head="bins-16" if name in ("adabins", "pixelformer") else "logsigmoid", max_depth=10.0, min_depth=0.1)
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATES[name], weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATES[name], total_steps=301)
    best = 1.0
    for step in range(300):
        prediction = network(image)
        best = float(((prediction.depth.detach() - depth).abs() / depth)[mask].mean())
        if best < 0.045 and step > 20:
            break
        optimizer.zero_grad()
        silog(prediction, depth, mask).backward()
        optimizer.step()
        schedule.step()
    assert best < 0.05, f"abs_rel {best:.3f} after {step} steps"
