"""An incident of ``nanopsy.watch`` goes where the rest of a training is logged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import nanopsy
from nanopsy import registry
from nanopsy.findings import Incident

# TensorBoard's own imports warn, differently with each version of what it imports.
pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.filterwarnings("ignore::FutureWarning")]


@pytest.fixture(autouse=True)
def _constructors() -> Iterator[None]:
    yield
    registry.uninstall()


def test_an_incident_is_written_to_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(tmp_path))

    def log(incident: Incident) -> None:
        writer.add_text("nanopsy/incident", f"non-finite {incident.what}: {incident.detail}", incident.step)
        writer.add_text("nanopsy/history", json.dumps(incident.history), incident.step)

    torch.manual_seed(0)
    net = nn.Linear(3, 1)
    with writer, nanopsy.watch(on_incident=log):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(4):
            optimizer.zero_grad()
            loss = net(torch.randn(4, 3)).pow(2).mean() * (float("nan") if step == 2 else 1.0)
            writer.add_scalar("loss", loss.item(), step)
            loss.backward()
            optimizer.step()

    events = EventAccumulator(str(tmp_path)).Reload()
    said, after = events.Tensors("nanopsy/incident/text_summary")
    assert (said.step, after.step) == (2, 3)  # nobody stopped the optimizer, which wrote the NaN into the weights
    assert said.tensor_proto.string_val[0].decode().startswith("non-finite loss: losses [nan]")
    history, _ = events.Tensors("nanopsy/history/text_summary")
    logged = [event.value for event in events.Scalars("loss")]
    steps = json.loads(history.tensor_proto.string_val[0])
    assert [entry["step"] for entry in steps] == [0, 1]
    assert [entry["loss"] for entry in steps] == pytest.approx(logged[:2])


def test_an_autopsy_of_the_step_is_written_beside_it(tmp_path: Path) -> None:
    """The cause too: the step's own loss is examined where the incident is seen."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    weights = nn.Parameter(torch.zeros(2))

    def loss() -> torch.Tensor:
        return weights.norm() + torch.sqrt(weights.pow(2).sum())

    with SummaryWriter(str(tmp_path)) as writer:

        def log(incident: Incident) -> None:
            writer.add_text("nanopsy", f"```\n{nanopsy.autopsy(loss)}\n```", incident.step)

        with nanopsy.watch(on_incident=log):
            optimizer = torch.optim.SGD([weights], lr=0.1)
            loss().backward()
            optimizer.step()

    (said,) = EventAccumulator(str(tmp_path)).Reload().Tensors("nanopsy/text_summary")
    assert "NAN101 sqrt-at-zero" in said.tensor_proto.string_val[0].decode()
