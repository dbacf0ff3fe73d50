"""Procedural street scenes: a textured ground, a far wall and boxes, seen by a camera and a scanning LiDAR."""

import numpy as np
import torch
from torch.utils.data import Dataset


def ray_cast(rng, height, width, focal=110.0, camera_height=1.6):
    """Image (3, H, W) in [0, 1] and exact depth (H, W) in metres; 0 where the ray meets only sky."""
    v, u = np.mgrid[0:height, 0:width].astype(np.float32)
    x, y = (u - width / 2) / focal, (v - height * 0.45) / focal
    depth = np.full((height, width), np.inf, np.float32)
    texture = np.zeros((height, width), np.float32)
    with np.errstate(divide="ignore"):
        ground = np.where(y > 0, camera_height / np.maximum(y, 1e-6), np.inf)
    hit = ground < depth
    depth = np.where(hit, ground, depth)
    checks = (np.floor(x * np.where(hit, ground, 0)) + np.floor(np.where(hit, ground, 0))) % 2
    texture = np.where(hit, 0.3 + 0.2 * checks, texture)
    for _ in range(rng.integers(3, 7)):
        z = rng.uniform(5, 60)
        centre, half, top = rng.uniform(-0.35, 0.35) * z, rng.uniform(0.5, 2.5), rng.uniform(1.0, 4.0)
        inside = (np.abs(x * z - centre) < half) & (y * z < camera_height) & (y * z > camera_height - top)
        nearer = inside & (z < depth)
        depth = np.where(nearer, z, depth)
        texture = np.where(nearer, rng.uniform(0.2, 0.9), texture)
    image = np.stack([texture * tint for tint in rng.uniform(0.7, 1.0, 3)]) + 0.02 * rng.standard_normal((3, height, width))
    image = image + np.where(np.isinf(depth), 0.6, 0.0)
    return image.astype(np.float32), np.where(np.isinf(depth), 0.0, depth).astype(np.float32)


def lidar(rng, depth, lines=14, keep=0.5):
    """Keep the pixels on a few scan lines, as a rotating LiDAR would; 0 elsewhere."""
    height, _ = depth.shape
    rows = np.linspace(height * 0.42, height - 1, lines).astype(int)
    mask = np.zeros_like(depth, bool)
    mask[rows] = True
    return np.where(mask & (rng.random(depth.shape) < keep), depth, 0.0).astype(np.float32)


class Street(Dataset):
    """Random crops of procedural scenes with sparse ground truth."""

    def __init__(self, count=400, size=(96, 160), crop=(32, 48), seed=0):
        self.count, self.size, self.crop, self.seed = count, size, crop, seed

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        rng = np.random.default_rng(self.seed * 100_003 + index)
        image, depth = ray_cast(rng, *self.size)
        sparse = lidar(rng, depth)
        top = rng.integers(0, self.size[0] - self.crop[0] + 1)
        left = rng.integers(0, self.size[1] - self.crop[1] + 1)
        window = np.s_[..., top : top + self.crop[0], left : left + self.crop[1]]
        return torch.from_numpy(image[window].copy()), torch.from_numpy(sparse[window].copy())[None]
