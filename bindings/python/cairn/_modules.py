"""Names of parameters and buffers in modules, and what wraps modules: DDP, FSDP1, torch.compile."""

from __future__ import annotations

import sys
from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch
from torch import Tensor

WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")


def strip(name: str) -> str:
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def is_engine(module: Any) -> bool:
    """DeepSpeed's engine, which is a module, too."""
    there = sys.modules.get("deepspeed.runtime.engine")
    return there is not None and isinstance(module, there.DeepSpeedEngine)


def in_engine(module: Any) -> Any:
    """What DeepSpeed's engine trains: that is called in each forward, as an engine of a pipeline
    never is. Any other module is given back."""
    return module.module if is_engine(module) else module


def unwrap(module: Any) -> Any:
    """Without what only wraps: data parallelism, torch.compile."""
    while isinstance(
        module, (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)
    ) or hasattr(module, "_orig_mod"):
        module = module._orig_mod if hasattr(module, "_orig_mod") else module.module
    return module


# Those of torch's communication hooks for DDP that give each rank the average of all: module and
# name.
REDUCING_HOOKS = (
    ("default_hooks", "allreduce_hook"),
    ("default_hooks", "fp16_compress_hook"),
    ("default_hooks", "bf16_compress_hook"),
    ("mixed_precision_hooks", "_reducer_allreduce_and_upcast_hook"),
)


def _reduces(hook: Any, state: Any) -> bool:
    """True if a communication hook is known to leave the same gradients on all ranks; by identity,
    not by name."""
    if (
        isinstance(state, torch.distributed.ProcessGroup)
        and state.size() != torch.distributed.get_world_size()
    ):
        return False
    for module, name in REDUCING_HOOKS:
        # as it is where it is used
        there = sys.modules.get(f"torch.distributed.algorithms.ddp_comm_hooks.{module}")
        if hook is getattr(there, name, ""):
            return True
    return False


def parallel_of(module: torch.nn.Module) -> Optional[torch.nn.parallel.DistributedDataParallel]:
    """The DistributedDataParallel that a root is, be it in torch.compile's wrapper."""
    inner = getattr(module, "_orig_mod", module)
    return inner if isinstance(inner, torch.nn.parallel.DistributedDataParallel) else None


def sharded_of(module: torch.nn.Module) -> Any:
    """The root, be it in torch.compile's wrapper, that fully_shard has been applied to; None if it
    has not."""
    inner = getattr(module, "_orig_mod", module)
    fsdp = sys.modules.get("torch.distributed.fsdp")  # it takes long to import
    kind = getattr(fsdp, "FSDPModule", None)
    # since PyTorch 2.8
    can_keep = hasattr(inner, "set_reshard_after_forward")
    return inner if kind is not None and isinstance(inner, kind) and can_keep else None


def unknown_hooks(module: torch.nn.Module) -> List[str]:
    """The names of the communication hooks of a root under DDP that are not known to keep
    the ranks alike."""
    parallel = parallel_of(module)
    hooks = [] if parallel is None else parallel._comm_hooks
    return [
        str(getattr(hook, "__qualname__", hook))
        for hook, state in hooks
        if not _reduces(hook, state)
    ]


def _leaves_nothing_out(module: torch.nn.parallel.DistributedDataParallel) -> bool:
    """It reduces all that it holds."""
    delayed = {id(parameter) for parameter in getattr(module, "_delay_all_reduce_params", ())}
    held = [
        *module.module.named_parameters(remove_duplicate=False),
        *module.module.named_buffers(remove_duplicate=False),
    ]
    return not any(
        name in module.parameters_to_ignore and id(tensor) not in delayed for name, tensor in held
    )


def replicates(module: torch.nn.Module) -> bool:
    """Its parameters are the same on all ranks of the world, and its buffers are sent from rank 0
    before each forward."""
    parallel = parallel_of(module)
    return (
        parallel is not None
        and bool(parallel.broadcast_buffers)
        and parallel.process_group.size() == torch.distributed.get_world_size()
        and _leaves_nothing_out(parallel)
        and not unknown_hooks(module)
    )


def named_parameters(module: torch.nn.Module) -> Iterator[Tuple[str, Tensor]]:
    for name, parameter in unwrap(module).named_parameters():
        yield strip(name), parameter


def module_paths(root: torch.nn.Module) -> Dict[int, str]:
    """The paths of all modules by their ids, as they stand in the names of parameters."""
    return {
        id(module): strip(path + ".").rstrip(".") for path, module in unwrap(root).named_modules()
    }


def fsdp1_units(root: torch.nn.Module) -> Iterator[Any]:
    """The modules that FSDP1 has wrapped and that have parameters of their own."""
    # which takes long to import, and is there where it is used
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:
        return
    for module in root.modules():
        if isinstance(module, fsdp.FullyShardedDataParallel) and module._handle is not None:
            yield module


def named_buffers(module: torch.nn.Module) -> Iterator[Tuple[str, Tensor]]:
    """Those that the module's own checkpoints hold."""
    inner = unwrap(module)
    kept = {
        f"{path}.{name}" if path else name
        for path, each in inner.named_modules()
        for name in each._buffers
        if name not in each._non_persistent_buffers_set
    }
    for name, buffer in inner.named_buffers():
        if name in kept:
            yield strip(name), buffer
