"""nanopsy never breaks a training that would have gone on without it."""

from __future__ import annotations

from pathlib import Path

from running import nanopsy, python, write

LOOP = """
    import torch
    w = torch.nn.Linear(2, 1)
    opt = torch.optim.SGD(w.parameters(), lr=0.1)
    for i in range(6):
        loss = (w(torch.ones(3, 2)) / (0.0 if i == BAD else 1.0)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    print("end")
    """


def test_a_failing_check_switches_the_watch_off(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": LOOP.replace("BAD", "99"), "sitecustomize.py": """
        import sys
        if "nanopsy" in " ".join(sys.orig_argv):
            import nanopsy.watching
            def broken(tensors, extra=()):
                raise RuntimeError("no such kernel")
            nanopsy.watching.total_norm = broken
        """})  # fmt: skip
    done = python(tmp_path, "-m", "nanopsy", "run", "train.py", env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0
    assert done.stdout == "end\n"
    assert "Traceback" not in done.stderr


def test_a_failing_diagnosis_is_a_sentence(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": LOOP.replace("BAD", "3"), "sitecustomize.py": """
        import sys
        if "nanopsy" in " ".join(sys.orig_argv):
            import nanopsy.plan
            def broken(evidence):
                raise KeyError("surprise")
            nanopsy.plan.diagnose = broken
        """})  # fmt: skip
    done = python(tmp_path, "-m", "nanopsy", "run", "--rerun", "never", "train.py", env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 3
    assert "NAN999" in done.stderr
    assert "please report" in done.stderr
    assert "Traceback" not in done.stderr


def test_user_code_that_swallows_exceptions(tmp_path: Path) -> None:
    write(tmp_path, """
        import torch
        w = torch.nn.Linear(2, 1)
        opt = torch.optim.SGD(w.parameters(), lr=0.1)
        for i in range(6):
            loss = (w(torch.ones(3, 2)) / (0.0 if i == 3 else 1.0)).pow(2).mean()
            opt.zero_grad()
            try:
                loss.backward()
                opt.step()
            except Exception:
                print("caught")
        print("end")
        """)  # fmt: skip
    ran = nanopsy(tmp_path, "train.py")
    assert ran.status == 3
    assert "caught" not in ran.out
    assert ran.finding["code"] in ("NAN209", "NAN303")


def test_a_script_without_a_loop(tmp_path: Path) -> None:
    write(tmp_path, """
        import torch
        w = torch.nn.Parameter(torch.zeros(2))
        opt = torch.optim.SGD([w], lr=0.1)
        loss = torch.sqrt((w ** 2).sum())
        loss.backward()
        opt.step()
        """)  # fmt: skip
    ran = nanopsy(tmp_path, "train.py")
    assert ran.incident["outcome"] == "not-reproduced"
    ran = nanopsy(tmp_path, "train.py", options=("--rerun", "auto"))
    assert ran.incident["outcome"] == "reproduced"
    assert ran.finding["code"] == "NAN102"


def test_bad_weights_from_a_checkpoint_name_the_weight(tmp_path: Path) -> None:
    write(tmp_path, """
        import torch
        net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
        state = net.state_dict()
        state["1.weight"][0, 1] = float("inf")
        net.load_state_dict(state)
        opt = torch.optim.Adam(net.parameters())
        for i in range(3):
            loss = net(torch.ones(4, 2)).sum()
            opt.zero_grad()
            loss.backward()
            opt.step()
        """)  # fmt: skip
    ran = nanopsy(tmp_path, "train.py")
    assert ran.incident["what"] == "parameter"
    assert ran.finding["code"] == "NAN703"
    assert "1.weight" in ran.finding["message"]
    assert ran.finding["location"]["line"] == 5


def test_a_scaler_that_is_switched_off(tmp_path: Path) -> None:
    write(tmp_path, """
        import torch
        w = torch.nn.Linear(2, 1)
        opt = torch.optim.SGD(w.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        for i in range(6):
            loss = (w(torch.ones(3, 2)) / (0.0 if i == 3 else 1.0)).pow(2).mean()
            opt.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            scaler.step(opt)
            scaler.update()
        print("end")
        """)  # fmt: skip
    ran = nanopsy(tmp_path, "train.py", options=("--rerun", "never", "--on-incident", "skip"))
    assert ran.status == 0, ran.err
    assert ran.out == "end\n"
    assert ran.incident["outcome"] == "reproduced"


def test_a_bad_closure_leaves_the_weights_as_if_it_had_never_been(tmp_path: Path) -> None:
    source = """
        import torch
        torch.manual_seed(0)
        w = torch.nn.Linear(3, 1)
        opt = torch.optim.SGD(w.parameters(), 0.1)
        x = torch.rand(8, 3)
        for i in STEPS:
            def closure():
                opt.zero_grad()
                loss = torch.sqrt(w(x).pow(2).mean()) if i != 3 else torch.sqrt((w(x) * 0).sum())
                loss.backward()
                return loss
            opt.step(closure)
        print(w.weight.tolist())
        """
    write(tmp_path, {"train.py": source.replace("STEPS", "range(6)"), "without.py": source.replace("STEPS", "(0, 1, 2, 4, 5)")})
    ran = nanopsy(tmp_path, "train.py", options=("--rerun", "never", "--on-incident", "skip"))
    assert ran.incident["outcome"] == "reproduced"
    assert ran.out == python(tmp_path, "without.py").stdout
