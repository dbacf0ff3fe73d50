"""Half precision and torch.compile: judged eagerly where that is possible, and named where only the compiled step fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from running import nanopsy, write

COMPILED = """
    import torch
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    def loss_fn(p, t):
        valid = t > 0
        d = (p - t) * valid
        return (d * d).sum() / valid.sum()
    forward = torch.compile(net, backend="aot_eager") if "model" in WHAT else net
    criterion = torch.compile(loss_fn, backend="aot_eager") if "loss" in WHAT else loss_fn
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    for i in range(8):
        x = torch.rand(6, 4)
        t = torch.rand(6, 1) * (0.0 if i == BAD else 1.0)
        loss = criterion(forward(x), t)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print("end")
    """


@pytest.mark.parametrize("what", ["model", "loss", "model and loss"])
def test_a_compiled_step_is_replayed_eagerly(tmp_path: Path, what: str) -> None:
    write(tmp_path, COMPILED.replace("WHAT", repr(what)).replace("BAD", "5"))
    ran = nanopsy(tmp_path, "train.py")
    assert ran.status == 3, ran.err
    assert (ran.incident["step"], ran.incident["outcome"]) == (5, "reproduced")
    assert (ran.finding["code"], ran.finding["location"]["line"]) == ("NAN303", 7)
    assert ran.finding["verified"] is True, ran.err


def test_a_healthy_compiled_training_is_left_alone(tmp_path: Path) -> None:
    write(tmp_path, COMPILED.replace("WHAT", "'model and loss'").replace("BAD", "99"))
    ran = nanopsy(tmp_path, "train.py")
    assert (ran.status, ran.out, ran.report["incidents"], ran.report["steps"]) == (0, "end\n", [], 8)
    assert "Backend compiler exception" not in ran.err


def test_only_the_compiled_step_fails(tmp_path: Path) -> None:
    write(tmp_path, """
        import torch
        def wrong(module, inputs):
            def run(*arguments):
                out = module.forward(*arguments)
                flag = next(value for value in arguments if value.shape == (1,) and not value.requires_grad)
                return tuple(value * float("nan") if value.requires_grad and float(flag) > 90 else value for value in out)
            return run
        torch.manual_seed(0)
        w = torch.nn.Linear(4, 2)
        @torch.compile(backend=wrong)
        def loss_fn(x, flag):
            return (w(x) ** 2).mean() + 0 * flag.sum()
        opt = torch.optim.SGD(w.parameters(), 0.01)
        for i in range(6):
            loss = loss_fn(torch.rand(3, 4), torch.tensor([100.0 if i == 3 else 0.0]))
            opt.zero_grad()
            loss.backward()
            opt.step()
        """)  # fmt: skip
    ran = nanopsy(tmp_path, "train.py")
    assert (ran.incident["step"], ran.finding["code"]) == (3, "NAN902"), ran.err
    assert "finite" in ran.finding["message"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_autocast_with_a_scaler(tmp_path: Path, dtype: str) -> None:
    write(tmp_path, """
        import torch
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        opt = torch.optim.Adam(net.parameters(), 1e-3)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
        for i in range(12):
            x = torch.rand(6, 4)
            with torch.autocast("cpu", dtype=torch.DTYPE):
                y = net(x)
            valid = torch.rand(6, 1) > (1.0 if i == 9 else -1.0)
            loss = y.float()[valid].pow(2).mean()
            opt.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
        print("end")
        """.replace("DTYPE", dtype))  # fmt: skip
    ran = nanopsy(tmp_path, "train.py")
    assert ran.status == 3, ran.out + ran.err
    assert (ran.incident["what"], ran.finding["code"], ran.finding["location"]["line"]) == ("loss", "NAN302", 11)
    assert ran.incident["outcome"] == "reproduced"
