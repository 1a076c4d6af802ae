"""The state of the optimizers of torch and of others, and which of them cannot be covered."""

from __future__ import annotations

import sys
import weakref
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from . import _lib, _megatron, _tensors
from ._part import Part


def grouped(optimizer: Optimizer) -> Iterator[Tuple[int, int, Dict[str, Any], Tensor]]:
    """(group number, number in the group, group, parameter) in the order of the update."""
    for number, group in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(group["params"]):
            yield number, index, group, parameter


def _is_zero(optimizer: Any) -> bool:
    """Whether it is a ZeroRedundancyOptimizer; does not import its module, which takes long."""
    module = sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer")
    return module is not None and isinstance(optimizer, module.ZeroRedundancyOptimizer)


def holder(optimizer: Any) -> Any:
    """The optimizer that has the state: of a ZeroRedundancyOptimizer the one in it, for the
    parameters of this rank alone."""
    return getattr(optimizer, "optim", optimizer) if _is_zero(optimizer) else optimizer


# which part of DeepSpeed steps it; "": none
deepspeeds: "weakref.WeakKeyDictionary[Optimizer, str]" = weakref.WeakKeyDictionary()


def look_who_steps(optimizer: Optimizer) -> None:
    """In the first step of an optimizer: notes whether one of DeepSpeed's optimizers calls it.
    Nothing else tells them apart."""
    if "deepspeed" not in sys.modules or optimizer in deepspeeds:
        return
    frame: Any = sys._getframe(1)
    while frame is not None and not str(frame.f_globals.get("__name__")).startswith("deepspeed."):
        frame = frame.f_back
    caller = "" if frame is None else frame.f_globals["__name__"]
    # which steps what the script has given it
    deepspeeds[optimizer] = "" if caller == "deepspeed.runtime.engine" else caller


def refusal(optimizer: Any, world: int) -> Optional[str]:
    """Why an optimizer cannot be covered; None where it can, as far as that is known before its
    state is looked at."""
    if isinstance(optimizer, torch.optim.LBFGS):
        return "LBFGS keeps the state of all its parameters as one"
    if deepspeeds.get(optimizer):
        return (
            f"DeepSpeed ({deepspeeds[optimizer]}) updates copies of the parameters part by part, "
            "with counters and scales of its own: its ZeRO and mixed-precision optimizers are not "
            "covered, save with its save_checkpoint"
        )
    why = _megatron.refusal(optimizer)
    if why:
        return why
    if _is_zero(optimizer) and optimizer._overlap_with_ddp:
        return (
            "ZeroRedundancyOptimizer with overlap_with_ddp updates parameters during backward, "
            "where no hook sees it"
        )
    if _is_zero(optimizer) and optimizer.world_size != world:
        return (
            f"ZeroRedundancyOptimizer spreads its state over {optimizer.world_size} of the job's "
            f"{world} ranks"
        )
    return None


def make_state(
    parameter: Tensor, group: Mapping[str, Any], listed: _lib.Listed, part: Optional[Part] = None
) -> Tensor:
    """A tensor of an optimizer's state as its first step would have made it: like the parameter, or
    a scalar beside it.

    Its values are what the memory held: zeros would be written only to be overwritten. Not so
    beside FSDP1's flat parameters, which have padding that no restore writes to.
    """
    dtype = _tensors.FROM_DTYPE[listed.dtype]
    if part is not None and part.takes(listed.shape):
        return torch.zeros_like(
            parameter, dtype=dtype, memory_format=torch.preserve_format, requires_grad=False
        )
    if listed.shape == _tensors.box(parameter)[0]:
        return torch.empty_like(
            parameter, dtype=dtype, memory_format=torch.preserve_format, requires_grad=False
        )
    on_device = bool(group.get("capturable") or group.get("fused")) or bool(listed.shape)
    return torch.empty(
        listed.shape, dtype=dtype, device=_tensors.local(parameter).device if on_device else "cpu"
    )


def group_marks(optimizer: Optimizer) -> List[Dict[str, Any]]:
    """What shows that an update has changed hyperparameters of its groups; of none for torch's own
    optimizers, which do not."""
    if is_torchs_own(type(optimizer)):
        return []
    return [
        {
            key: (id(value), _tensors.versions([_tensors.local(value)]))
            if isinstance(value, Tensor)
            else value
            for key, value in group.items()
            if key != "params" and isinstance(value, (Tensor, bool, int, float, str, type(None)))
        }
        for group in optimizer.param_groups
    ]


def is_torchs_own(kind: type) -> bool:
    return f"{kind.__module__}.".startswith("torch.optim.")
