"""The user's own loop runs the failing step again, whatever its idiom; and nothing is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from running import Ran, nanopsy, python, write

SETUP = """
import itertools, math, random, sys
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0); random.seed(0); np.random.seed(0)
BAD = 5
net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
X = torch.randn(64, 3)
X[BAD * 4:(BAD + 1) * 4, 1] = 0.0

def ratio(x):
    return x[:, 0].abs() / x[:, 1].abs().sum()  # MARK

def step(x):
    loss = (net(x).squeeze(1) * 0.1 + ratio(x)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss
"""
IDIOMS = {
    "for over a loader": """
        for (x,) in DataLoader(TensorDataset(X), batch_size=4):
            step(x)
        """,
    "for over a loader with workers, pinned": """
        if __name__ == "__main__":
            for (x,) in DataLoader(TensorDataset(X), batch_size=4, num_workers=2, pin_memory=True):
                step(x)
        """,
    "shuffled": """
        X[:] = X.abs() + 1; X[7] = 0.0
        for epoch in range(3):
            for (x,) in DataLoader(TensorDataset(X), batch_size=1, shuffle=True):
                net.eval()
                step(x)
        """,
    "range and slicing": """
        for i in range(0, len(X), 4):
            step(X[i:i + 4])
        """,
    "enumerate, zip and tqdm": """
        from tqdm import tqdm
        for i, ((x,), k) in enumerate(zip(tqdm(DataLoader(TensorDataset(X), batch_size=4)), itertools.count())):
            step(x)
        """,
    "while True with next": """
        it = iter(DataLoader(TensorDataset(X), batch_size=4))
        while True:
            (x,) = next(it)
            step(x)
        """,
    "while with its own counter at the top": """
        n = -1
        while n < 12:
            n += 1
            step(X[n * 4:n * 4 + 4])
        """,
    "while with its own counter at the bottom": """
        n = 0
        while n < 12:
            step(X[n * 4:n * 4 + 4])
            n += 1
        """,
    "generator function": """
        def batches():
            for i in range(0, len(X), 4):
                yield X[i:i + 4] + 0 * torch.rand(4, 3)
        for x in batches():
            step(x)
        """,
    "infinite cycle": """
        stream = itertools.cycle(DataLoader(TensorDataset(X), batch_size=4))
        for i in range(40):
            (x,) = next(stream)
            step(x)
        """,
    "random generator drawn by next": """
        def endless():
            while True:
                x = torch.randn(4, 3)
                x[:, 1] *= float(random.random() > 0.2)
                yield x
        stream, n = endless(), 0
        while n < 60:
            step(next(stream))
            n += 1
        """,
    "nested epochs": """
        for epoch in range(2):
            for i in range(0, len(X), 4):
                if epoch or i != BAD * 4:
                    step(X[i:i + 4])
        """,
    "batches drawn inline": """
        for i in range(60):
            x = torch.randn(4, 3) + np.random.rand() + random.random()
            if np.random.rand() < 0.1:
                x[:, 1] = 0
            step(x)
        """,
    "generator objects": """
        rng, other, third = np.random.default_rng(3), random.Random(3), torch.Generator().manual_seed(3)
        for i in range(60):
            x = torch.randn(4, 3, generator=third)
            x[:, 1] *= float(rng.random() > 0.1) + 0 * other.random()
            step(x)
        """,
    "augmentation in the loop": """
        for i in range(0, len(X), 4):
            x = X[i:i + 4] * (1 + 0.1 * torch.rand(4, 1))
            if random.random() < 0.5:
                x = x.flip(0)
            step(x)
        """,
    "state carried across steps": """
        carried = torch.zeros(4, 1)
        for i in range(0, len(X), 4):
            x = X[i:i + 4]
            out = net(x) + carried
            loss = out.pow(2).mean() + ratio(x).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            carried = out.detach()
        """,
    "function with several optimizers": """
        other = nn.Linear(3, 1)
        opt2 = torch.optim.SGD(other.parameters(), lr=0.1)
        for i in range(0, len(X), 4):
            x = X[i:i + 4]
            d = other(x).pow(2).mean()
            opt2.zero_grad()
            d.backward()
            opt2.step()
            g = net(x).mean() + other(x).mean() + ratio(x).sum()
            opt.zero_grad()
            g.backward()
            opt.step()
        """,
    "for over the optimizers inside": """
        for i in range(0, len(X), 4):
            x = X[i:i + 4]
            loss = net(x).pow(2).mean() + ratio(x).mean()
            for o in [opt]:
                o.zero_grad()
            loss.backward()
            for o in [opt]:
                o.step()
        """,
    "the script raises": """
        for i in range(0, len(X), 4):
            x = X[i:i + 4]
            loss = net(x).pow(2).mean() + ratio(x).mean()
            if not math.isfinite(loss.item()):
                print("Loss is nan, stopping training")
                sys.exit(1)
            opt.zero_grad()
            loss.backward()
            opt.step()
        """,
    "the script asserts": """
        for i in range(0, len(X), 4):
            x = X[i:i + 4]
            losses = {"a": net(x).pow(2).mean(), "b": ratio(x).mean()}
            loss = sum(losses.values())
            assert torch.isfinite(loss)
            opt.zero_grad()
            loss.backward()
            opt.step()
        """,
    "the script breaks": """
        for i in range(0, len(X), 4):
            x = X[i:i + 4]
            loss = net(x).pow(2).mean() + ratio(x).mean()
            if loss != loss:
                break
            opt.zero_grad()
            loss.backward()
            opt.step()
        """,
    "the script continues": """
        for i in range(0, len(X), 4):
            x = X[i:i + 4]
            loss = net(x).pow(2).mean() + ratio(x).mean()
            if torch.isnan(loss):
                print("skipping")
                continue
            opt.zero_grad()
            loss.backward()
            opt.step()
        """,
    "clipping that raises": """
        for i in range(0, len(X), 4):
            x = X[i:i + 4]
            loss = (net(x).squeeze(1) * ratio(x)).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0, error_if_nonfinite=True)
            opt.step()
        """,
}


def mark(sources: str) -> int:
    return next(number for number, line in enumerate(sources.splitlines(), 1) if "# MARK" in line)


def script(body: str) -> str:
    import textwrap

    return SETUP.lstrip("\n") + textwrap.dedent(body)


def assert_ratio_is_blamed(ran: Ran, text: str) -> None:
    assert ran.status == 3, ran.err
    assert ran.incident["outcome"] == "reproduced", ran.incident["detail"]
    assert ran.finding["code"] == "NAN209", ran.finding["message"]
    assert ran.finding["location"]["line"] == mark(text)


@pytest.mark.parametrize("idiom", IDIOMS)
def test_idioms(idiom: str, tmp_path: Path) -> None:
    text = script(IDIOMS[idiom])
    write(tmp_path, text)
    assert_ratio_is_blamed(nanopsy(tmp_path, "train.py"), text)


def test_trainer_class_in_another_file(tmp_path: Path) -> None:
    trainer = """
        import torch

        class Trainer:
            def __init__(self, net, opt, data):
                self.net, self.opt, self.data, self.step = net, opt, data, 0

            def ratio(self, x):
                return x[:, 0].abs() / x[:, 1].abs().sum()  # MARK

            def train_step(self, x):
                loss = self.net(x).pow(2).mean() + self.ratio(x).mean()
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                return loss.item()

            def fit(self):
                for epoch in range(2):
                    for x in self.data.split(4):
                        self.step += 1
                        self.train_step(x)
        """
    write(tmp_path, {"trainer.py": trainer, "train.py": script("from trainer import Trainer\nTrainer(net, opt, X).fit()\n")})
    ran = nanopsy(tmp_path, "train.py")
    assert ran.incident["outcome"] == "reproduced"
    assert ran.finding["location"]["file"].endswith("trainer.py")
    assert ran.finding["location"]["line"] == mark((tmp_path / "trainer.py").read_text())
    assert ran.finding["verified"] is True


def test_gradient_accumulation_finds_the_micro_batch(tmp_path: Path) -> None:
    text = script("""
        opt.zero_grad()
        for i in range(0, len(X), 4):
            x = X[i:i + 4]
            loss = (net(x).squeeze(1) * torch.sqrt((x[:, 1] * net[0].weight[0, 0]) ** 2)).mean() / 4
            loss.backward()
            if (i // 4 + 1) % 4 == 0:
                opt.step()
                opt.zero_grad()
        """)
    write(tmp_path, text)
    ran = nanopsy(tmp_path, "train.py")
    assert ran.incident["outcome"] == "reproduced", ran.incident["detail"]
    assert ran.finding["code"] == "NAN101", ran.finding["message"]


def test_lbfgs_closure(tmp_path: Path) -> None:
    text = script("""
        lbfgs = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=4)
        for i in range(0, len(X), 4):
            x = X[i:i + 4]
            def closure():
                lbfgs.zero_grad()
                loss = net(x).pow(2).mean() + ratio(x).mean()
                loss.backward()
                return loss
            lbfgs.step(closure)
        """)
    write(tmp_path, text)
    assert_ratio_is_blamed(nanopsy(tmp_path, "train.py"), text)


HIDDEN = """
    import torch
    torch.manual_seed(0)
    w = torch.nn.Linear(3, 1)
    opt = torch.optim.SGD(w.parameters(), lr=0.01)
    def counter():
        count = [torch.arange(4000.0)]
        def tick():
            count[0].sub_(1.0)
            return count[0][4].clone()
        return tick
    tick = counter()
    for i in range(10):
        t = tick()
        loss = (w(torch.randn(5, 3)).pow(2).mean() + 1) * t / t
        opt.zero_grad()
        loss.backward()
        opt.step()
    """


def test_hidden_state_is_not_reproduced_and_nothing_is_invented(tmp_path: Path) -> None:
    write(tmp_path, HIDDEN)
    ran = nanopsy(tmp_path, "train.py")
    assert ran.incident["outcome"] == "not-reproduced"
    assert [finding["code"] for finding in ran.incident["findings"]] == ["NAN901"]
    assert ran.finding["fix"] is None


def test_hidden_state_is_found_by_running_again(tmp_path: Path) -> None:
    write(tmp_path, HIDDEN)
    ran = nanopsy(tmp_path, "train.py", options=("--rerun", "auto"))
    assert ran.incident["outcome"] == "reproduced"
    assert ran.finding["code"] == "NAN209"
    assert "from the start" in ran.err


def test_a_flaky_step_is_called_flaky_or_not_reproduced(tmp_path: Path) -> None:
    write(tmp_path, """
        import os, torch
        w = torch.nn.Parameter(torch.ones(2))
        opt = torch.optim.SGD([w], lr=0.1)
        for i in range(20):
            noise = int.from_bytes(os.urandom(1), "big") / 256
            loss = w.sum() * (float("nan") if i == 5 and not os.path.exists("seen") else 1 + noise)
            if i == 5:
                open("seen", "w").close()
            opt.zero_grad()
            loss.backward()
            opt.step()
        """)  # fmt: skip
    ran = nanopsy(tmp_path, "train.py")
    assert ran.incident["outcome"] in ("flaky", "not-reproduced")
    assert ran.finding["code"] == "NAN901"


# -- nothing is left behind ------------------------------------------------------------------------

SKIPPING = """
    import hashlib, random, sys
    import numpy as np
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    BY_HAND = "--by-hand" in sys.argv
    torch.manual_seed(0); random.seed(0); np.random.seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))
    other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
    opt2 = torch.optim.SGD(other.parameters(), lr=1e-2, momentum=0.9)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 20)
    X = torch.randn(80, 3)
    X[20:24, 1] = 0.0
    X[60:64, 1] = 0.0
    seen = []
    for (x,) in DataLoader(TensorDataset(X), batch_size=4, shuffle=False):
        x = x + 0.0 * np.random.rand() * random.random()
        d = other(x).pow(2).mean() * (1 + 0.1 * torch.rand(()))
        opt2.zero_grad(); d.backward(); opt2.step()
        loss = net(x).pow(2).mean() + other(x.detach()).mean() + (x[:, 0].abs() / x[:, 1].abs().sum()).mean()
        opt.zero_grad(); loss.backward()
        if BY_HAND and bool((x[:, 1] == 0).all()):
            opt.zero_grad(set_to_none=True)
        opt.step(); sched.step()
        seen.append(float(np.random.rand()))
    state = [*net.state_dict().values(), *other.state_dict().values(), *[v for s in opt.state.values() for v in s.values()]]
    print(hashlib.sha256(b"".join(t.double().numpy().tobytes() for t in state)).hexdigest())
    print(len(seen), sched.last_epoch, opt.param_groups[0]["lr"], torch.rand(1).item(), np.random.rand(), random.random())
    """


def test_skip_ends_in_bit_identical_weights(tmp_path: Path) -> None:
    write(tmp_path, SKIPPING)
    by_hand = python(tmp_path, "train.py", "--by-hand")
    assert by_hand.returncode == 0, by_hand.stderr
    ran = nanopsy(tmp_path, "train.py", options=("--on-incident", "skip"))
    assert ran.status == 0, ran.err
    assert ran.out.splitlines()[-2:] == by_hand.stdout.splitlines()[-2:]
    assert ran.incident["outcome"] == "reproduced"
    assert ran.incident["count"] == 2, "the same fault twice is one incident with a count"
    assert len(ran.report["incidents"]) == 1


def test_mute_silences_the_replays(tmp_path: Path) -> None:
    text = script("""
        for i in range(0, len(X), 4):
            print("round", i)
            step(X[i:i + 4])
        """)
    write(tmp_path, text)
    loud = nanopsy(tmp_path, "train.py")
    quiet = nanopsy(tmp_path, "train.py", options=("--rerun", "never", "--mute"))
    assert loud.out.count("round 20") > 1
    assert quiet.out.count("round 20") == 1
    assert quiet.finding["code"] == loud.finding["code"] == "NAN209"


def test_interrupt_during_an_autopsy_is_a_sentence(tmp_path: Path) -> None:
    write(tmp_path, """
        import os, signal, torch
        w = torch.nn.Parameter(torch.ones(2))
        opt = torch.optim.SGD([w], lr=0.1)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job begins with it ignored
        for i in range(3):
            open("rounds", "a").write("x")
            if os.path.getsize("rounds") == 2:
                os.kill(os.getpid(), signal.SIGINT)
            loss = (w / torch.zeros(2)).sum()
            opt.zero_grad()
            loss.backward()
            opt.step()
        """)  # fmt: skip
    done = python(tmp_path, "-m", "nanopsy", "run", "--rerun", "never", "train.py")
    assert done.returncode == 130
    assert "nanopsy: interrupted" in done.stderr
    assert "src/nanopsy" not in done.stderr


def test_a_recurrent_state_with_its_graph_is_carried(tmp_path: Path) -> None:
    text = script("""
        cell = nn.GRUCell(3, 3)
        opt3 = torch.optim.SGD(cell.parameters(), lr=0.1)
        hidden = (torch.zeros(4, 3),)
        for i in range(0, len(X), 4):
            hidden = tuple(h.detach() for h in hidden)
            x = X[i:i + 4]
            hidden = (cell(x, hidden[0]),)
            loss = hidden[0].pow(2).mean() + ratio(x).mean()
            opt3.zero_grad()
            loss.backward()
            opt3.step()
        """)
    write(tmp_path, text)
    assert_ratio_is_blamed(nanopsy(tmp_path, "train.py"), text)


def test_the_last_steps_activations_are_not_kept(tmp_path: Path) -> None:
    write(tmp_path, """
        import gc, weakref
        import torch
        w = torch.nn.Linear(400, 400)
        opt = torch.optim.SGD(w.parameters(), lr=1e-6)
        alive = []
        for i in range(6):
            big = w(torch.randn(4000, 400))
            outs = [big * 2]
            pair = (big + 1, outs[0] + 1)
            alive.append(weakref.ref(pair[0]))
            loss = pair[1].mean() + pair[0].mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            del big, outs, pair, loss
            print(sum(ref() is not None for ref in alive))
        """)  # fmt: skip
    plain, ran = python(tmp_path, "train.py"), nanopsy(tmp_path, "train.py")
    assert ran.status == 0, ran.err
    assert ran.out == plain.stdout


def test_many_bad_steps_are_skipped_and_the_unexamined_are_counted(tmp_path: Path) -> None:
    write(tmp_path, """
        import torch
        torch.manual_seed(0)
        w = torch.nn.Linear(2, 1)
        opt = torch.optim.SGD(w.parameters(), lr=0.1)
        for i in range(12):
            loss = (w(torch.randn(4, 2)) / (0.0 if i >= 3 else 1.0)).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(all(p.isfinite().all().item() for p in w.parameters()))
        """)  # fmt: skip
    ran = nanopsy(tmp_path, "train.py", options=("--on-incident", "skip"))
    assert ran.status == 0, ran.err
    assert ran.out.strip().endswith("True"), "every bad step is skipped, examined or not"
    assert ran.incident["count"] == 5
    assert any(note.startswith("4 further bad steps") for note in ran.report["notes"]), ran.report["notes"]
