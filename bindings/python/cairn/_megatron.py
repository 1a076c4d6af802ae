"""Megatron-Core: what its models and optimizers hold, under the names of its own checkpoints.

Megatron-Core describes each tensor of a model by a ShardedTensor of `sharded_state_dict`: a key,
the shape of the whole, and where the part of this rank begins in it. A ShardedTensorFactory stands
for a parameter that holds several such parts (the halves of a gated layer); it is built, and its
parts are found again as views of the parameter. The optimizer's masters and moments are laid out
like the parameters: those of the distributed optimizer are a range of the parameter's memory, which
its own map tells. So nothing is copied, and nothing is gathered.

Layers and experts are numbered over the whole model, one tensor for each, as `cairn convert` names
them (tools/convert/megatron/dist_names.h): `decoder.layers.3.mlp.linear_fc1.weight`,
`….experts.local_experts.5.linear_fc1.weight`, masters `fp32.<parameter>`, moments
`exp_avg.<parameter>`. The names do not depend on the parallelism, and a restore into another one
is an ordinary restore.

What Megatron-Core keeps several times is captured once: a range of the distributed optimizer, and
the same range of the parameter, by the rank that updates it, everything else by the rank whose
replica_id is 0.
"""

from __future__ import annotations

import functools
import sys
import weakref
from typing import (
    Any,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import torch

from . import _lib, _tensors
from ._part import Held, Part, Parts

OPTIMIZERS = "megatron.core.optimizer.optimizer"
MASTER = "fp32"
# By these a group is found again among those of a rank that had other parameters.
GROUP_KEYS = ("wd_mult", "lr_mult", "is_decoupled_lr")
RANDOM = "megatron.core.tensor_parallel.random"
# Keys of layers without a number would need all stages to have the same layers.
METADATA = {"non_homogeneous_layers": True}
SUPPORTED = ("DistributedOptimizer", "Float16OptimizerWithFloat16Params", "FP32Optimizer")

# which of Megatron-Core's optimizers wraps one of torch's
_wrappers: "weakref.WeakKeyDictionary[Any, weakref.ref[Any]]" = weakref.WeakKeyDictionary()
# the kind of chain that such a wrapper is in
_chains: "weakref.WeakKeyDictionary[Any, str]" = weakref.WeakKeyDictionary()


def watch_wrappers() -> None:
    """Learns which optimizers Megatron-Core wraps; to be called when one of torch's is made, which
    is before that. Does not import Megatron-Core."""
    module = sys.modules.get(OPTIMIZERS)
    for name in ("MegatronOptimizer", "ChainedOptimizer"):
        kind = getattr(module, name, None)
        if kind is not None and not hasattr(kind.__init__, "_cairn_watches"):
            _watch(kind)


def _watch(kind: Any) -> None:
    initialise = kind.__init__

    @functools.wraps(initialise)
    def made(self: Any, *arguments: Any, **options: Any) -> None:
        initialise(self, *arguments, **options)
        note(self)

    made._cairn_watches = True  # type: ignore[attr-defined]
    kind.__init__ = made


def note(wrapper: Any) -> None:
    """Learns what one of Megatron-Core's optimizers has in it."""
    if hasattr(wrapper, "chained_optimizers"):
        for each in wrapper.chained_optimizers:
            _chains[each] = type(wrapper).__name__
    elif isinstance(getattr(wrapper, "optimizer", None), torch.optim.Optimizer):
        _wrappers[wrapper.optimizer] = weakref.ref(wrapper)


def inner(optimizer: Any) -> Optional[List[Any]]:
    """The optimizers of torch in one of Megatron-Core's; None where it is none."""
    module = sys.modules.get(OPTIMIZERS)
    if module is None or not isinstance(optimizer, module.MegatronOptimizer):
        return None
    found = []
    note(optimizer)
    for each in getattr(optimizer, "chained_optimizers", [optimizer]):
        note(each)
        if isinstance(getattr(each, "optimizer", None), torch.optim.Optimizer):
            found.append(each.optimizer)
    return found


def wrapper(optimizer: Any) -> Any:
    """Megatron-Core's optimizer around one of torch's, or None."""
    found = _wrappers.get(optimizer)
    return None if found is None else found()


def refusal(optimizer: Any) -> Optional[str]:
    """Why a wrapped optimizer cannot be covered."""
    outer = wrapper(optimizer)
    if outer is None:
        return None
    kind, config = type(outer).__name__, getattr(outer, "config", None)
    told = f"Megatron-Core's {kind} around {type(optimizer).__name__}"
    chain = _chains.get(outer, "ChainedOptimizer")
    if kind not in SUPPORTED or chain != "ChainedOptimizer":
        told = told if kind not in SUPPORTED else f"Megatron-Core's {chain}"
        return f"{told} is unknown to Cairn; save with Megatron-Core's own checkpoints"
    if getattr(getattr(outer, "ddp_config", None), "use_megatron_fsdp", False):
        return (
            f"{told} trains Megatron-FSDP's parameters; save with Megatron-Core's own checkpoints"
        )
    if type(optimizer).__name__ == "HybridDeviceOptimizer":
        return f"{told} updates copies on the CPU; turn optimizer_cpu_offload off"
    for name in ("use_precision_aware_optimizer", "reuse_grad_buf_for_mxfp8_param_ag"):
        if getattr(config, name, False):
            return f"{told} keeps its state in a scaled form; turn {name} off"
    return None


class _Held(NamedTuple):
    """What an optimizer of torch has in the place of a parameter of the model."""

    tensor: Any
    parameter: Any
    range: Optional[Tuple[int, int]]  # of the parameter's elements; None: all
    is_master: bool  # with memory of its own


def _held(outer: Any) -> Iterator[_Held]:
    groups = outer.optimizer.param_groups
    if hasattr(outer, "model_param_group_index_map"):
        for parameter, (group, order) in outer.model_param_group_index_map.items():
            tensor = groups[group]["params"][order]
            here = outer._get_model_param_range_map(parameter)["param"]
            yield _Held(tensor, parameter, (here.start, here.end), not _is_in(tensor, parameter))
        return
    masters = {
        id(master): parameter
        for ours, theirs in zip(
            getattr(outer, "float16_groups", ()), getattr(outer, "fp32_from_float16_groups", ())
        )
        for parameter, master in zip(ours, theirs)
    }
    for group in groups:
        for tensor in group["params"]:
            parameter = masters.get(id(tensor), tensor)
            yield _Held(tensor, parameter, None, parameter is not tensor)


def _is_in(tensor: Any, parameter: Any) -> bool:
    """It is a view of the parameter's memory."""
    return bool(
        tensor.untyped_storage().data_ptr() == parameter.untyped_storage().data_ptr()
        and tensor.numel()
    )


def trained(optimizer: Any) -> Optional[Iterable[Any]]:
    """The modules' parameters that an optimizer updates, itself or by copies of them; None where it
    is not Megatron-Core's."""
    outer = wrapper(optimizer)
    if outer is None:
        return None
    buffers = getattr(outer, "buffers", None)
    if buffers:
        return [each for buffer in buffers for each in buffer.param_index_map]
    return [each.parameter for each in _held(outer)]


def unwrap(module: Any) -> Any:
    """The model in Megatron-Core's wrappers."""
    while isinstance(getattr(module, "module", None), torch.nn.Module):
        module = module.module
    return module


def is_model(module: Any) -> bool:
    return "megatron.core" in sys.modules and hasattr(unwrap(module), "sharded_state_dict")


class _Piece(NamedTuple):
    """One ShardedTensor in the memory of a parameter or buffer. Places in elements."""

    name: str
    shape: Tuple[int, ...]
    offset: Tuple[int, ...]
    extent: Tuple[int, ...]
    at: int
    count: int
    replica: Tuple[int, ...]
    padded: bool


def _tensors_in(value: Any) -> Iterator[Any]:
    """The ShardedTensors, factories and objects in a sharded state dict."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors_in(each)
    elif hasattr(value, "replica_id"):
        yield value


def _is_object(sharded: Any) -> bool:
    """A ShardedObject: anything, be it a tensor, that is not cut."""
    return not hasattr(sharded, "local_shape") and not hasattr(sharded, "build")


def objects_of(roots: Mapping[str, Any]) -> List[str]:
    """The names of what Megatron-Core's models keep in their checkpoints beside tensors, where that
    is not empty: the scales of FP8."""
    found = []
    for root in roots.values():
        if not is_model(root):
            continue
        for each in _tensors_in(unwrap(root).sharded_state_dict(metadata=dict(METADATA))):
            if not _is_object(each) or each.data is None:
                continue
            size = each.data.numel() if _tensors.is_tensor(each.data) else 1
            if hasattr(each.data, "getbuffer"):
                size = each.data.getbuffer().nbytes
            if size:
                found.append(each.unique_key)
    return found


def _named(sharded: Any) -> Tuple[str, List[int], List[int], List[int]]:
    """(name, shape, offset, extent) of a ShardedTensor, with a name for each expert."""
    name, prepended = sharded.key, sharded.prepend_axis_num
    shape, offset = list(sharded.global_shape), list(sharded.global_offset)
    extent = [1] * prepended + list(sharded.local_shape)
    if prepended and ".experts.experts." in name:
        number = offset.pop(prepended - 1)
        del shape[prepended - 1], extent[prepended - 1]
        name = name.replace(".experts.experts.", f".experts.local_experts.{number}.", 1)
    return name, shape, offset, extent


def _replica(sharded: Any) -> Tuple[int, ...]:
    replica = sharded.replica_id
    return (replica,) if isinstance(replica, int) else tuple(replica)


def _pieces(sharded: Any, whole: Any) -> List[_Piece]:
    """Where the parts of a parameter lie in its memory. ValueError where some are copies."""
    each_of = _tensors_in(sharded.build()) if hasattr(sharded, "build") else [sharded]
    found = []
    begin = whole.data_ptr()
    for each in each_of:
        if each.flattened_range is not None:
            raise ValueError("Megatron-Core flattens it in its checkpoints")
        if not each.data.is_contiguous() or len(each.global_shape) > _lib.DIMS_MAX:
            raise ValueError("Megatron-Core transposes it in its checkpoints")
        at, rest = divmod(each.data.data_ptr() - begin, each.data.element_size())
        if rest or not 0 <= at <= at + each.data.numel() <= whole.numel():
            raise ValueError("Megatron-Core copies it for its checkpoints")
        name, shape, offset, extent = _named(each)
        found.append(
            _Piece(
                name,
                tuple(shape),
                tuple(offset),
                tuple(extent),
                at,
                each.data.numel(),
                _replica(each),
                each.allow_shape_mismatch,
            )
        )
    if sum(piece.count for piece in found) != whole.numel():
        raise ValueError("Megatron-Core's checkpoints do not hold all of it")
    return found


def _part(
    piece: _Piece, tensor: Any, here: Tuple[int, int], kept: Tuple[int, int], **more: Any
) -> Part:
    """The part of a piece of a parameter in `tensor`, which has the elements `here` of the
    parameter; of these, this rank captures those that are in `kept`, too."""

    def inside(bounds: Tuple[int, int], outer: Tuple[int, int]) -> Tuple[int, int]:
        begin = min(max(bounds[0], outer[0]), outer[1])
        return begin, max(begin, min(bounds[1], outer[1]))

    begin, end = inside(here, (piece.at, piece.at + piece.count))
    kept = inside(kept, (begin, end))
    return Part(
        piece.name,
        piece.shape,
        begin - piece.at,
        end - piece.at,
        Held(tensor),
        begin - here[0],
        tuple(tensor.shape),
        begin - here[0],
        (0, 1),
        (0, 1),
        (piece.offset, piece.extent),
        (kept[0] - piece.at, kept[1] - piece.at),
        padded=piece.padded,
        **more,
    )


def parts_of(roots: Mapping[str, Any], optimizers: Sequence[Any]) -> Tuple[Parts, List[str]]:
    """(the parts of all that Megatron-Core's models and optimizers hold, why some cannot be
    captured); both empty where nothing is Megatron-Core's."""
    parts: Parts = {}
    problems: List[str] = []
    pieces: Dict[int, List[_Piece]] = {}
    tensors: Dict[int, Any] = {}
    for root in roots.values():
        if not is_model(root):
            continue
        try:
            described = unwrap(root).sharded_state_dict(metadata=dict(METADATA))
        except Exception as error:
            problems.append(
                "Megatron-Core cannot describe the model for its checkpoints: "
                f"{type(error).__name__}: {error}"
            )
            continue
        for each in _tensors_in(described):
            if _is_object(each):
                continue
            try:
                pieces[id(each.data)] = _pieces(each, each.data)
                tensors[id(each.data)] = each.data
            except ValueError as error:
                problems.append(f"{each.key} cannot be captured: {error}")
    if not pieces:
        return {}, problems
    shared: Dict[int, Tuple[int, int]] = {}  # what a distributed optimizer has here of a parameter
    wrapped = [outer for outer in map(wrapper, optimizers) if outer is not None]
    for outer in wrapped:
        sharded = hasattr(outer, "model_param_group_index_map")
        captures = getattr(outer, "distributed_optimizer_instance_id", 0) == 0
        if sharded:
            shared.update((id(each), (0, 0)) for each in trained(outer.optimizer) or ())
        for held in _held(outer):
            if id(held.parameter) not in pieces:
                continue
            here = held.range or (0, held.parameter.numel())
            if sharded and captures:
                shared[id(held.parameter)] = here
            if held.tensor is held.parameter:
                continue
            for piece in pieces[id(held.parameter)]:
                first = not any(piece.replica[:-1] if sharded else piece.replica)
                kept = here if first and captures else (0, 0)
                part = _part(piece, held.tensor, here, kept, of_parameter=piece.name)
                name = f"{MASTER}.{piece.name}" if held.is_master else ""
                parts.setdefault(id(held.tensor), []).append(
                    part._replace(name=name, kind=_lib.OPTIMIZER)
                )
    for number, found in pieces.items():
        tensor = tensors[number]
        whole = (0, tensor.numel())
        for piece in found:
            by_range = number in shared
            first = not any(piece.replica[:-1] if by_range else piece.replica)
            kept = shared.get(number, whole) if first else (0, 0)
            parts.setdefault(number, []).append(_part(piece, tensor, whole, kept))
    return parts, problems


# ---- state besides tensors ----


def plain(optimizer: Any) -> Optional[Dict[str, Any]]:
    """What a wrapper keeps itself: the loss scaler."""
    scaler = getattr(wrapper(optimizer), "grad_scaler", None)
    return None if scaler is None else dict(scaler.state_dict())


def load_plain(optimizer: Any, value: Optional[Mapping[str, Any]]) -> None:
    scaler = getattr(wrapper(optimizer), "grad_scaler", None)
    if scaler is not None and value:
        scaler.load_state_dict(dict(value))


def settings_for(
    optimizer: Any, saved: Sequence[Mapping[str, Any]], number: int
) -> Optional[Dict[str, Any]]:
    """The plain state for an optimizer of Megatron-Core: with other experts it may have been in
    one with others, and its groups are found by what they are. None where it is not
    Megatron-Core's."""
    if wrapper(optimizer) is None or not saved:
        return None
    same = saved[number] if number < len(saved) else saved[0]
    every = [group for each in (same, *saved) for group in each["groups"]]

    def fits(group: Mapping[str, Any], other: Mapping[str, Any], keys: Iterable[str]) -> bool:
        return all(group.get(key) == other.get(key) for key in keys)

    groups = []
    for group in optimizer.param_groups:
        ranked = [
            other
            for keys in ((*GROUP_KEYS, "is_expert_parallel"), GROUP_KEYS)
            for other in every
            if fits(group, other, keys)
        ]
        kept = {key: group[key] for key in (*GROUP_KEYS, "is_expert_parallel") if key in group}
        groups.append({**ranked[0], **kept} if ranked else {})
    return {**same, "groups": groups}


def random_states() -> Optional[Dict[str, Any]]:
    """The states of Megatron-Core's tracker of generators; None where it has none, or they are not
    tensors."""
    tracker = _tracker()
    states = {} if tracker is None else dict(tracker.get_states())
    return states if states and all(map(_tensors.is_tensor, states.values())) else None


def set_random_states(states: Mapping[str, Any]) -> None:
    tracker = _tracker()
    if tracker is not None and tracker.get_states().keys() == states.keys():
        tracker.set_states(dict(states))


def _tracker() -> Any:
    return getattr(sys.modules.get(RANDOM), "_CUDA_RNG_STATE_TRACKER", None)
