"""Train the small depth network on procedural streets. Nothing in here knows of nanopsy."""

import argparse

import torch
from losses import SILogLoss
from model import TinyBts
from scenes import Street
from torch.utils.data import DataLoader


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    loader = DataLoader(Street(), batch_size=1, shuffle=True)
    model, criterion = TinyBts(), SILogLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=args.epochs * len(loader))
    step = 0
    for epoch in range(args.epochs):
        for image, depth in loader:
            valid = (depth > 1e-3) & (depth < 80)
            if not valid.any():
                continue
            loss = criterion(model(image), depth, valid)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            if step % 25 == 0:
                print(f"epoch {epoch} step {step:4d}  loss {loss.item():.3f}  valid pixels {int(valid.sum())}", flush=True)
            step += 1


if __name__ == "__main__":
    main()
