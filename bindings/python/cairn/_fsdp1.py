"""FSDP1 (torch.distributed.fsdp.FullyShardedDataParallel): where each parameter's part lies in
this rank's shard.

A unit of FSDP1 lays its parameters one after the other into a flat one, and each rank keeps an
equal range, its shard. An optimizer holds that flat parameter, or with use_orig_params=True one
view of the shard per parameter, empty where the shard has no part. Both ways each parameter,
and each moment, is captured under its own name as a flat range of its whole shape, so that a
restore needs neither the same number of ranks nor FSDP1.

Where the shard lies is asked each time: parameters point to gathered copies while their unit
computes.
"""

from __future__ import annotations

from typing import Any, List, Mapping, Optional, Tuple

from . import _lib, _modules, _tensors
from ._part import Numbered, Part, Parts


def parts_of(root: Any, prefix: str, world: int) -> Tuple[Parts, List[str]]:
    """(the parts of all units in a root module, why some cannot be named); both empty where nothing
    is FSDP1's."""
    parts: Parts = {}
    problems: List[str] = []
    paths = _modules.module_paths(root)
    for unit in _modules.fsdp1_units(root):
        flat = unit._handle.flat_param
        try:
            names = [_name(prefix, paths, info) for info in flat._param_infos]
            why = _refusal(unit, world)
            if why:
                problems.append(
                    f"{names[0]} and what FSDP1 keeps with it cannot be captured: {why}"
                )
            else:
                parts.update(_parts_of_unit(unit, names))
        except (AttributeError, KeyError) as error:
            problems.append(
                "this version of torch describes FSDP1's flat parameters in a way that is not "
                f"known here: {error!r}"
            )
    return parts, problems


def _name(prefix: str, paths: Mapping[int, str], info: Any) -> str:
    path = paths[id(info.module)]
    return prefix + (f"{path}.{info.param_name}" if path else info.param_name)


def _groups(unit: Any) -> Tuple[Numbered, Numbered]:
    """(this rank among those that share the shards, among those that hold the same one)"""
    handle, outer = unit._handle, getattr(unit, "_inter_node_pg", None)
    shards, replica = (handle.rank, handle.world_size), (0, 1)
    if not handle.uses_sharded_strategy:
        shards, replica = replica, shards
    if outer is not None and outer.size() > 1:
        index, count = replica
        replica = (index * outer.size() + outer.rank(), count * outer.size())
    return shards, replica


def _refusal(unit: Any, world: int) -> Optional[str]:
    flat = unit._handle.flat_param
    (_, shards), (_, replicas) = _groups(unit)
    if shards * replicas != world:
        return f"its process groups are of {shards * replicas} ranks, and the job of {world}"
    if any(extension is not None for extension in flat._param_extensions):
        return "its parameters are parts of DTensors"
    if max(map(len, flat._shapes)) > _lib.DIMS_MAX:
        return f"one of its parameters has more than {_lib.DIMS_MAX} dimensions"
    return None


def _parts_of_unit(unit: Any, names: List[str]) -> Parts:
    flat = unit._handle.flat_param
    (_, shards), (replica_index, replica_count) = _groups(unit)
    shard_size = flat._sharded_size.numel()
    params = flat._params  # None: the optimizer holds the flat parameter
    parts: Parts = {}
    begins = _begins(flat)
    for number, name in enumerate(names):
        in_shard, at, count, begin, _ = flat._shard_param_infos[number]
        at, count, begin = (at, count, begin) if in_shard else (0, 0, 0)
        first = begins[number] // shard_size
        holders = (begins[number] + flat._shapes[number].numel() - 1) // shard_size - first + 1
        holder = unit._handle.rank - first if in_shard and shards > 1 else 0
        if params is None:
            held_shape, held_at = (shard_size,), at
        else:
            held_shape, held_at = (count,) if unit._handle.uses_sharded_strategy else tuple(
                flat._shapes[number]
            ), 0
        part = Part(
            name,
            _tensors.shape_in_memory(flat._shapes[number], flat._strides[number]),
            begin,
            begin + count,
            lambda: getattr(flat, "_local_shard", flat),  # there from the first forward on
            at,
            held_shape,
            held_at,
            (replica_index, replica_count),
            (holder * replica_count + replica_index, holders * replica_count),
        )
        parts.setdefault(id(flat if params is None else params[number]), []).append(part)
    return parts


def _begins(flat: Any) -> List[int]:
    """Where each parameter begins in the unit's flat one; there may be padding between them."""
    begins, at = [], 0
    for count, is_padding in zip(flat._numels_with_padding, flat._is_padding_mask):
        if not is_padding:
            begins.append(at)
        at += count
    return begins
