"""The only file that touches private torch names, each with a guard that says what breaks without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter as LoaderIterator

__all__ = [
    "LoaderIterator",
    "Optimizer",
    "autograd_node",
    "control_group",
    "default_store",
    "dispatches_itself",
    "foreach_norm",
    "is_simulated",
    "is_transformed",
    "local",
    "node_sequence",
    "pause_gradient_sync",
    "register_optimizer_step_post_hook",
    "register_optimizer_step_pre_hook",
    "schema_aliases",
    "sequence_number",
    "storage_key",
    "storage_pin",
]


def autograd_node() -> Any | None:
    """The autograd node that is running on this thread, or None outside backward."""
    return torch._C._current_autograd_node()


def sequence_number() -> int:
    """The number that the next autograd node will get."""
    return int(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]


def node_sequence(node: Any) -> int:
    """The sequence number of a node; nodes without one (AccumulateGrad) give -1."""
    try:
        number = int(node._sequence_nr())
    except (AttributeError, OverflowError):
        return -1
    return number if number < 2**62 else -1


def foreach_norm(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The 2-norm of each tensor in one fused call."""
    return list(torch._foreach_norm(list(tensors), 2))


def is_transformed(tensor: torch.Tensor) -> bool:
    """Whether a ``torch.func`` transform stands behind a tensor: under ``vmap`` the number of True in it is not one number. True where torch cannot say."""
    try:
        return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))
    except AttributeError:
        return True


def is_simulated() -> bool:
    """Whether torch is tracing instead of computing (fake tensors, ``make_fx``, ``export``): what a mode computes for itself would then become
    part of the user's graph. False where torch cannot say."""
    try:
        kinds = torch._C._TorchDispatchModeKey
        return any(torch._C._get_dispatch_mode(kind) is not None for kind in (kinds.FAKE, kinds.PROXY, kinds.FUNCTIONAL))
    except AttributeError:
        return False


def dispatches_itself(kind: type) -> bool:
    """Whether a tensor subclass has a ``__torch_dispatch__`` of its own."""
    return getattr(kind, "__torch_dispatch__", None) is not torch.Tensor.__torch_dispatch__


def storage_key(tensor: torch.Tensor) -> int:
    """Identity of the memory of a tensor; unique while a pin of it is held. Zero when it has none."""
    try:
        return int(local(tensor).untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return 0


def storage_pin(tensor: torch.Tensor) -> object | None:
    """Keep a storage's identity (not its memory) from being used again."""
    try:
        return _WeakStorage(tensor.untyped_storage())
    except (NotImplementedError, RuntimeError):
        return None


class _WeakStorage:
    """A weak reference to a storage: its address stays taken while this lives, its bytes do not."""

    __slots__ = ("_ref",)

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._ref = storage._weak_ref()

    def __del__(self, _free: Callable[[Any], None] = torch.UntypedStorage._free_weak_ref) -> None:
        _free(self._ref)


def schema_aliases(func: Any) -> tuple[str, ...]:
    """Per output of an operator: ``fresh``, ``view`` or ``write``."""
    kinds = []
    for returned in func._schema.returns:
        alias = returned.alias_info
        kinds.append("fresh" if alias is None else "write" if alias.is_write else "view")
    return tuple(kinds)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a sharded tensor (DTensor) that lies on this rank; any other tensor as it is. Never communicates."""
    shard = getattr(tensor, "_local_tensor", None)
    return shard if isinstance(shard, torch.Tensor) else tensor


def default_store() -> Any:
    """The key-value store through which the ranks of a training found each other."""
    from torch.distributed import distributed_c10d

    return distributed_c10d._get_default_store()


def control_group(store: Any, rank: int, world: int, seconds: float) -> Any:
    """A gloo group of all ranks that torch's own bookkeeping of groups does not see."""
    from datetime import timedelta

    from torch.distributed import ProcessGroupGloo
    from torch.distributed.distributed_c10d import PrefixStore

    return ProcessGroupGloo(PrefixStore("nanopsy/control", store), rank, world, timedelta(seconds=seconds))


def pause_gradient_sync(module: torch.nn.Module) -> Callable[[], None]:
    """Let a DistributedDataParallel keep gradients to its rank (and not broadcast buffers) until the function returned is called."""
    before = module.require_backward_grad_sync, module.require_forward_param_sync
    module.require_backward_grad_sync = module.require_forward_param_sync = False  # type: ignore[assignment]

    def resume() -> None:
        module.require_backward_grad_sync, module.require_forward_param_sync = before

    return resume
