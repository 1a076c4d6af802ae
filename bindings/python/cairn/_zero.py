"""DeepSpeed's ZeRO optimizers: finds the ranges of parameters, masters and moments that this rank
holds.

ZeRO 1 and 2, and DeepSpeed's BF16_Optimizer, lay the parameters of each group one after the other
into a flat one that all ranks of data parallelism have, and each of them updates an equal
range: there it has masters in fp32, and the moments beside them. ZeRO 3 cuts every parameter into
equal ranges, and each rank keeps one; those of a group (or of a piece of one, a "sub-group")
lie one after the other, and so do their masters and moments. So everything is captured under the
parameter's name as a flat range of its whole shape: a parameter `<name>`, its master `fp32.<name>`,
its moments `exp_avg.<name>`. A restore needs neither the same number of ranks nor the same stage.

Experts are counted over all ranks in their names. With tensor parallelism by DeepSpeed's AutoTP
each rank has a range of one dimension, which takes the place of the parameter in all of the above.

What is offloaded to the CPU's memory lies there as it would on a device, and is captured there.
Where only a part is (`ratio`), DeepSpeed updates the sub-groups that stay on the device by a second
optimizer of its own.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

import torch

from . import _blob, _lib, _modules, _plain, _tensors
from ._coverage import Problems
from ._entry import Entry
from ._known import Known
from ._naming import keys_of, moment_name, moments_of
from ._part import Held, Numbered, Part, Parts
from ._ranks import Place

MASTER = "fp32"
SHARED_GROUPS = {  # of ZeRO 1 and 2 and their like: the attributes with flat masters and parameters
    "DeepSpeedZeroOptimizer": ("single_partition_of_fp32_groups", "bit16_groups"),
    "BF16_Optimizer": ("fp32_groups_flat_partition", "bf16_groups"),
}
CUT_GROUPS = {  # the same of ZeRO 3
    "DeepSpeedZeroOptimizer_Stage3": ("fp32_partitioned_groups_flat", "fp16_groups")
}
# What DeepSpeed's engine counts. Its micro_steps follow from global_steps: a snapshot begins at a
# multiple of the accumulation steps, and those may be others after a resumption.
COUNTERS = ("global_steps", "global_samples", "skipped_steps")
CUT_BY_DEEPSPEED = "ds_autotp_universal_checkpoint_meta"  # on a parameter that AutoTP has cut
FAMILY, AUTO_EP = "ds_zero_placement_family", "autoep_expert"
# What the optimizers keep themselves, beside their loss scaler.
SETTINGS = ("custom_loss_scaler", "external_loss_scale")
NO_ENGINE = (
    "what DeepSpeed's engine counts, and its scheduler",
    "the engine was made before Cairn was there: give cairn.attach the engine as the model",
)


class Fragment(NamedTuple):
    """What this rank has of a parameter's master. Ranges and places in elements."""

    parameter: Any
    group: int  # index among the optimizer's groups
    flat: Callable[[], Any]  # the masters that it lies in
    at: int  # where it begins there
    begin: int  # the range of the parameter
    end: int
    holder: Numbered  # this rank among those that have a part
    updater: Callable[[], Any]  # the optimizer that updates it, and has the state beside it


def is_zero(optimizer: Any) -> bool:
    """One of DeepSpeed's optimizers, which wrap another."""
    module = sys.modules.get("deepspeed.runtime.base_optimizer")
    return module is not None and isinstance(optimizer, module.DeepSpeedOptimizer)


def _kind(zero: Any) -> str:
    """The name of its class, where that is DeepSpeed's own and no other derived from it."""
    kind = type(zero)
    return kind.__name__ if kind.__module__.startswith("deepspeed.runtime.") else ""


def _place(group: Any) -> Numbered:
    return torch.distributed.get_rank(group), torch.distributed.get_world_size(group)


def _refusal(zero: Any) -> Optional[str]:
    kind = _kind(zero)
    called = f"DeepSpeed's {type(zero).__name__}"
    if kind not in SHARED_GROUPS and kind not in CUT_GROUPS:
        return (
            f"{called} is not covered, save with its save_checkpoint: of DeepSpeed's optimizers "
            f"those are, {', '.join([*SHARED_GROUPS, *CUT_GROUPS])}"
        )
    if getattr(zero, "zenflow", False):
        return f"{called} with ZenFlow is not covered: it updates parameters in another process"
    if getattr(zero, "zero_quantized_nontrainable_weights", False):
        return f"{called} with quantised frozen weights is not covered"
    if getattr(zero, "swap_optimizer", False) or getattr(zero, "params_in_nvme_and_cpu", False):
        return (
            f"{called} is not covered where its state is offloaded to NVMe, because agents keep it "
            "in memory; offload it to the CPU, or save with DeepSpeed's save_checkpoint"
        )
    if any(getattr(each, FAMILY, "") == AUTO_EP for each in _parameters_of(zero)):
        return (
            f"{called} with AutoEP is not covered: each rank has its experts in one tensor; spread "
            "them with deepspeed.moe, or save with DeepSpeed's save_checkpoint"
        )
    if getattr(zero, "torch_autocast_gradscaler", None) is not None:
        return f"{called} with torch.autocast's gradient scaler is not covered"
    if _tensor_ranks(zero) > 1 and (kind in CUT_GROUPS or not _is_cut_by_deepspeed(zero)):
        return (
            f"{called} over {_tensor_ranks(zero)} ranks of tensor parallelism is not covered: "
            "nothing says what each has of a parameter (with ZeRO 1 and 2, DeepSpeed's own AutoTP "
            "does)"
        )
    return None


def _is_cut_by_deepspeed(zero: Any) -> bool:
    """Tensor parallelism is DeepSpeed's AutoTP, which says of each parameter that it cuts how."""
    groups = sys.modules.get("deepspeed.utils.groups")
    found = [vars(each).get(CUT_BY_DEEPSPEED) for each in _parameters_of(zero)]
    described = [each for each in found if each is not None]
    return (
        groups is not None
        and getattr(zero, "mpu", None) is groups
        and bool(described)
        and all(each["replicated"] or _is_plain_cut(each) for each in described)
    )


def _is_plain_cut(cut: Mapping[str, Any]) -> bool:
    """Each rank has one range of one dimension."""
    return bool(
        cut["partition_dim"] is not None
        and cut["partition_sizes"]
        and cut["logical_shape"]
        and not cut["sub_param_shape"]
        and not cut["conversion"]["unsupported_reason"]
    )


def _groups_of(zero: Any) -> List[List[Any]]:
    """The parameters of each of its groups."""
    kind = _kind(zero)
    names = SHARED_GROUPS.get(kind) or CUT_GROUPS.get(kind)
    return [] if zero is None or names is None else getattr(zero, names[1], [])


def _parameters_of(zero: Any) -> List[Any]:
    return [parameter for parameters in _groups_of(zero) for parameter in parameters]


def _tensor_ranks(zero: Any) -> int:
    mpu = getattr(zero, "mpu", None)
    for name in ("get_tensor_model_parallel_world_size", "get_slice_parallel_world_size"):
        if hasattr(mpu, name):
            return int(getattr(mpu, name)())
    group = getattr(zero, "model_parallel_group", None)
    return 1 if group is None else _place(group)[1]


# ---- the parameters ----


class Slice(NamedTuple):
    """What tensor parallelism leaves this rank of a tensor."""

    shape: Tuple[int, ...]  # of the whole
    box: Tuple[Tuple[int, ...], Tuple[int, ...]]  # offset, extent
    captures: bool  # this rank, of those that have the same


def _slice_of(parameter: Any) -> Optional[Slice]:
    """None without tensor parallelism."""
    groups = sys.modules.get("deepspeed.utils.groups")
    if getattr(groups, "_TENSOR_MODEL_PARALLEL_GROUP", None) is None:
        return None
    rank = int(groups.get_tensor_model_parallel_rank())  # type: ignore[union-attr]
    extent = tuple(parameter.shape)
    offset, shape = [0] * len(extent), extent
    cut = vars(parameter).get(CUT_BY_DEEPSPEED)
    if cut is None or cut["replicated"] or not _is_plain_cut(cut):
        return Slice(shape, (tuple(offset), extent), rank == 0)
    offset[cut["partition_dim"]] = sum(cut["partition_sizes"][:rank])
    return Slice(tuple(cut["logical_shape"]), (tuple(offset), extent), True)


def _sliced(part: Part, of: Optional[Slice]) -> Part:
    """The part, which is a range of what this rank has of a parameter, as one of the whole."""
    if of is None:
        return part
    kept = (part.begin, part.end) if of.captures else (part.begin, part.begin)
    return part._replace(shape=of.shape, box=of.box, kept=kept, holder=(0, 1))


class Experts(NamedTuple):
    """The experts of one layer that lie here. DeepSpeed counts those of each rank from 0."""

    first: int  # its number among those of all ranks
    group: Any  # the ranks that have the same


def _experts_of(root: Any) -> Dict[str, Experts]:
    """By what stands before the number in the names of their parameters."""
    groups, found = sys.modules.get("deepspeed.utils.groups"), {}
    for path, module in root.named_modules():
        spread = next((getattr(each, "group_name", "") for each in module.parameters()), "")
        if groups is None or not spread or not hasattr(module, "deepspeed_experts"):
            continue
        rank = groups._get_expert_parallel_rank(spread)
        group = groups._get_expert_data_parallel_group(spread)
        prefix = f"{_modules.strip(path)}.deepspeed_experts.".lstrip(".")
        found[prefix] = Experts(rank * int(module.num_local_experts), group)
    return found


def _expert(experts: Mapping[str, Experts], name: str) -> Tuple[str, Any]:
    """(the name with the expert's number among all, the ranks that have the same); (name, None)
    where it is of no expert."""
    for prefix, each in experts.items():
        if name.startswith(prefix):
            number, _, rest = name[len(prefix) :].partition(".")
            return f"{prefix}{each.first + int(number)}.{rest}", each.group
    return name, None


def parts_of(root: Any, prefix: str) -> Parts:
    """Which part of each parameter of a root module lies here; empty where it has none of
    DeepSpeed's optimizers."""
    parts: Parts = {}
    if "deepspeed.runtime.base_optimizer" not in sys.modules:
        return parts
    named = list(_modules.named_parameters(root))
    groups = [each._dp_group for _, each in named if hasattr(each, "_dp_group")]
    experts = _experts_of(root) if groups else {}
    for name, parameter in named:
        if hasattr(parameter, "ds_tensor"):
            part = _cut_part(prefix + name, parameter)
        elif groups:  # frozen parameters are the same on all ranks, too
            name, group = _expert(experts, name)
            group = group or getattr(parameter, "_dp_group", groups[0])
            part = _sliced(_shared_part(prefix + name, parameter, group), _slice_of(parameter))
        else:
            continue
        parts[id(parameter)] = [part]
    for name, buffer in _modules.named_buffers(root) if experts else ():
        name, group = _expert(experts, name)
        if group is not None:
            parts[id(buffer)] = [_shared_part(prefix + name, buffer, group)]
    return parts


def _cut_range(parameter: Any) -> Tuple[int, int, Numbered]:
    """(begin, end, this rank among those that have a part) of what ZeRO 3 keeps here."""
    count, each = int(parameter.ds_numel), int(parameter.ds_tensor.ds_numel)
    rank, _ = _place(parameter.ds_process_group)
    begin, end = min(rank * each, count), min((rank + 1) * each, count)
    return begin, end, (rank, -(-count // each)) if begin < end else (0, 1)


def _cut_part(name: str, parameter: Any) -> Part:
    begin, end, holder = _cut_range(parameter)
    shape = tuple(parameter.ds_shape)
    return Part(
        name, shape, begin, end, lambda: parameter.ds_tensor, 0, (end - begin,), 0, (0, 1), holder
    )


def _shared_part(name: str, parameter: Any, group: Any) -> Part:
    shape = _tensors.shape_in_memory(parameter.shape, parameter.stride())
    place, held_shape = _place(group), tuple(parameter.shape)
    return Part(name, shape, 0, parameter.numel(), Held(parameter), 0, held_shape, 0, place, place)


# ---- the optimizer ----


def _fragments(zero: Any) -> Iterator[Fragment]:
    kind = _kind(zero)
    masters, groups = SHARED_GROUPS.get(kind) or CUT_GROUPS[kind]
    there = weakref.ref(zero)  # what is registered keeps no optimizer alive
    for number, parameters in enumerate(getattr(zero, groups)):

        def flat(number: int = number) -> Any:
            return getattr(there(), masters)[number]

        def updater(number: int = number) -> Any:
            return _updater(there(), number)

        if kind in SHARED_GROUPS:
            yield from _shared_fragments(zero, number, flat, parameters, updater)
        else:
            group = zero.sub_group_to_group_id[number]
            yield from _cut_fragments(group, flat, parameters, updater)


def _updater(zero: Any, number: int) -> Any:
    """The optimizer that updates a group, or a sub-group of ZeRO 3."""
    aside = getattr(zero, "backup_optimizer", None)
    if aside is not None and zero.subgroup_to_device[number] != "cpu":
        return aside
    return zero.optimizer


def _shared_fragments(
    zero: Any,
    number: int,
    flat: Callable[[], Any],
    parameters: List[Any],
    updater: Callable[[], Any],
) -> Iterator[Fragment]:
    rank, _ = _place(zero.real_dp_process_group[number])
    size = int(flat().numel())
    for parameter in parameters:
        mapping = parameter._hp_mapping
        if mapping is None:  # all of it lies on other ranks
            continue
        begin, at = mapping.lp_fragment_address.start, mapping.hp_fragment_address.start
        first_at = rank * size + at - begin  # where the parameter begins in the whole flat one
        first, last = first_at // size, (first_at + parameter.numel() - 1) // size
        end = begin + mapping.lp_fragment_address.numel
        holder = (rank - first, last - first + 1)
        yield Fragment(parameter, number, flat, at, begin, end, holder, updater)


def _cut_fragments(
    group: int, flat: Callable[[], Any], parameters: List[Any], updater: Callable[[], Any]
) -> Iterator[Fragment]:
    at = 0
    for parameter in parameters:
        begin, end, holder = _cut_range(parameter)
        if begin < end:
            yield Fragment(parameter, group, flat, at, begin, end, holder, updater)
        at += int(parameter.ds_tensor.ds_numel)


class Zero(Known):
    """One of DeepSpeed's optimizers, as an optimizer of the parameters that the modules hold."""

    def __init__(
        self, optimizer: Callable[[], Any], number: int, engine: Callable[[], Any]
    ) -> None:
        super().__init__(optimizer, number)
        self._engine = engine  # that steps it; gives None where it is not known
        self._found: Dict[int, Fragment] = {}

    def holder(self) -> Any:
        return self.optimizer().optimizer

    def holders(self) -> List[Any]:
        aside = getattr(self.optimizer(), "backup_optimizer", None)
        return [self.holder()] if aside is None else [self.holder(), aside]

    def refusal(self, world: int) -> Optional[str]:
        zero = self.optimizer()
        why = _refusal(zero)
        if why is None:
            try:
                self._look()
            except (AttributeError, KeyError, IndexError, TypeError) as error:
                why = (
                    f"this version of DeepSpeed describes {type(zero).__name__} in a way that is "
                    f"not known here: {error!r}"
                )
        return why

    def _look(self) -> Dict[int, Fragment]:
        """What lies here, by the parameters' ids."""
        self._found = {id(each.parameter): each for each in _fragments(self.optimizer())}
        return self._found

    def grouped(self) -> Iterator[Tuple[int, int, Dict[str, Any], Any]]:
        for number, parameters in enumerate(_groups_of(self.optimizer())):
            for index, parameter in enumerate(parameters):
                yield number, index, {}, parameter

    def parameters(self) -> List[Any]:
        return [parameter for _, _, _, parameter in self.grouped()]

    def before_update(self) -> None:
        """Its groups are kept whole."""

    def after_update(self) -> None:
        """See before_update."""

    def note_missing(self) -> None:
        """A flat group is updated as a whole."""

    def incomplete(self) -> List[Any]:
        return []

    def leave_out_what_is_not_plain(self, problems: Problems) -> None:
        super().leave_out_what_is_not_plain(problems)
        if self._engine() is None:
            name, why = NO_ENGINE
            problems.note(_lib.OPAQUE, name, why, f"{name} is not covered: {why}")

    def add_state(self, layout: Any, name: str, parameter: Any, problems: Problems) -> None:
        """The master of a parameter, and its moments."""
        fragment = self._found.get(id(parameter))
        if fragment is None:
            return
        shape = tuple(getattr(parameter, "ds_shape", parameter.shape))
        flat = fragment.flat()
        part = Part(
            name,
            shape,
            fragment.begin,
            fragment.end,
            fragment.flat,
            fragment.at,
            tuple(flat.shape),
            fragment.at,
            (0, 1),
            fragment.holder,
        )
        if not hasattr(parameter, "ds_tensor"):
            part = _sliced(part, _slice_of(parameter))
        entries = []
        # without lower precision ZeRO 3 has no masters: it updates the parameters
        if not _is_inside(getattr(parameter, "ds_tensor", None), flat):
            master = moment_name(MASTER, name)
            entries.append(Entry(master, _lib.OPTIMIZER, flat, parameter=parameter, part=part))
        state = _state_of(fragment)
        for key, value in state.items():
            moment = moment_name(key, name)
            if not _tensors.is_tensor(value):
                continue  # in `plain`
            of = part.of(value)
            why = _tensors.uncovered(value)
            if of is None:
                why = (
                    f"DeepSpeed holds masters of the shape {list(flat.shape)}, and it has the "
                    f"shape {list(value.shape)}"
                )
            if why:
                problems.refuse(_lib.OPTIMIZER, moment, why, f"{moment} cannot be captured: {why}")
                continue
            entries.append(Entry(moment, _lib.OPTIMIZER, value, state, key, parameter, part=of))
        for entry in entries:
            # what the stages of a pipeline share is the first one's
            entry.captured = not getattr(parameter, "ds_pipe_replicated", False)
        layout.entries += entries

    def all_names(self, names: Mapping[int, str]) -> Dict[int, str]:
        return {id(each): names[id(each)] for each in self.parameters() if id(each) in names}

    # ---- plain state ----

    def plain(self, layout: Any) -> Dict[str, Any]:
        """Also what the engine counts, its scheduler and the loss scaler. The same on all ranks, so
        that a rank can take any other's."""
        zero, engine = self.optimizer(), self._engine()
        value = super().plain(layout)
        counts: Dict[str, Dict[str, Any]] = {}
        flats = {id(fragment.flat): fragment for fragment in self._found.values()}
        for fragment in flats.values():
            plain = _counts(_state_of(fragment))
            if plain:
                counts.setdefault(str(fragment.group), plain)
        value["counts"] = counts
        value["aside"] = [
            {key: each for key, each in group.items() if key not in {"params", *self._left_out}}
            for group in self._groups_aside()
        ]
        value["settings"] = {name: getattr(zero, name, None) for name in SETTINGS}
        value["scaler"] = _plain_fields(getattr(zero, "loss_scaler", None))
        value["engine"] = {name: getattr(engine, name, None) for name in COUNTERS}
        scheduler = getattr(engine, "lr_scheduler", None)
        value["scheduler"] = scheduler.state_dict() if hasattr(scheduler, "state_dict") else None
        return value

    def load_plain(
        self, value: Mapping[str, Any], names: Mapping[int, str], groups_from: int
    ) -> None:
        """Loads all of it, and ignores `groups_from`: DeepSpeed's engine is always known whole."""
        super().load_plain({**value, "state": {}}, names, 0)
        zero, engine = self.optimizer(), self._engine()
        for fragment in self._look().values():
            _load_counts(fragment, value["counts"].get(str(fragment.group)) or {})
        for group, saved in zip(self._groups_aside(), value.get("aside", ())):
            group.update(saved)
        _set_fields(zero, value["settings"])
        _set_fields(getattr(zero, "loss_scaler", None), value["scaler"])
        _set_fields(engine, value["engine"])
        _count_micro_steps(engine)
        scheduler = getattr(engine, "lr_scheduler", None)
        if value["scheduler"] is not None and hasattr(scheduler, "load_state_dict"):
            scheduler.load_state_dict(value["scheduler"])
        _forget_gathered(zero)

    def _groups_aside(self) -> List[Dict[str, Any]]:
        """Those of a second optimizer that are not the first one's."""
        own = {id(each) for each in self.holder().param_groups}
        return [
            each
            for holder in self.holders()[1:]
            for each in holder.param_groups
            if id(each) not in own
        ]

    def make_state(
        self,
        names: Mapping[int, str],
        listed: Mapping[str, _lib.Listed],
        place: Place,
        unnamed_too: bool,
        parts: Optional[Parts] = None,
    ) -> None:
        if _refusal(self.optimizer()):
            return
        keys = [key for key in keys_of(listed) if key != MASTER]
        lists: Dict[int, List[Tuple[Fragment, Dict[str, _lib.Listed]]]] = {}  # by their flat one
        for fragment in self._look().values():
            name = names.get(id(fragment.parameter))
            if name is not None:
                found = {key: each for key, _, each in moments_of(listed, keys, name, place)}
                lists.setdefault(id(fragment.flat), []).append((fragment, found))
        for together in lists.values():
            # a count that another parameter has as a number comes back from that: _load_counts
            shared = set.intersection(*(set(found) for _, found in together))
            for fragment, found in together:
                flat, state = fragment.flat(), fragment.updater().state
                for key, each in found.items():
                    if key in (state.get(flat) or {}) or not (each.shape or key in shared):
                        continue
                    of = state[flat]
                    of[key] = _make_moment(flat, fragment.parameter, key, each)
                    self._made.append((of, key))


def _state_of(fragment: Fragment) -> Dict[str, Any]:
    return fragment.updater().state.get(fragment.flat()) or {}


def _counts(state: Mapping[str, Any]) -> Dict[str, Any]:
    """What of a state is plain data, with counts that are tensors: who updates a parameter after a
    restore may keep them in another way."""
    return {
        key: each.item() if _tensors.is_tensor(each) else each
        for key, each in state.items()
        if not _tensors.is_tensor(each) or (each.dim() == 0 and each.device.type == "cpu")
    }


def _load_counts(fragment: Fragment, counts: Mapping[str, Any]) -> None:
    """Also as the tensors that torch's optimizers keep; tensors of the snapshot are there."""
    state, updater = _state_of(fragment), fragment.updater()
    for key, each in counts.items() if state else ():
        if _tensors.is_tensor(state.get(key)):
            continue
        if key == "step" and type(updater).__module__.startswith("torch.optim."):
            each = torch.tensor(float(each))
        state[key] = each


def _make_moment(flat: Any, parameter: Any, key: str, listed: _lib.Listed) -> Any:
    """A tensor of the state as the first step would have made it; the padding in it is 0."""
    dtype = _tensors.FROM_DTYPE[listed.dtype]
    is_one_number = not listed.shape and (
        key == "step" or tuple(getattr(parameter, "ds_shape", parameter.shape)) != ()
    )
    if is_one_number:
        return torch.zeros((), dtype=dtype)
    return torch.zeros_like(flat, dtype=dtype, requires_grad=False)


def _is_inside(tensor: Any, flat: Any) -> bool:
    return (
        tensor is not None
        and tensor.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr()
    )


def _plain_fields(value: Any) -> Dict[str, Any]:
    """Those of an object that are plain data."""
    fields = {}
    for name, each in vars(value).items() if value is not None else ():
        try:
            _blob.encode(each, _plain.pack)
            fields[name] = each
        except TypeError:
            pass
    return fields


def _count_micro_steps(engine: Any) -> None:
    """Those of the updates that are done, and what there is of the one under way."""
    steps = getattr(engine, "gradient_accumulation_steps", lambda: 0)()
    if steps and hasattr(engine, "micro_steps"):
        engine.micro_steps = engine.global_steps * steps + engine.micro_steps % steps


def _set_fields(value: Any, fields: Mapping[str, Any]) -> None:
    for name, each in fields.items():
        if value is not None and hasattr(value, name):
            setattr(value, name, each)


def _forget_gathered(zero: Any) -> None:
    """Drops parameters that ZeRO 3 gathered before a restore into its parts; the next forward
    gathers them again."""
    persistent = getattr(zero, "persistent_parameters", None)
    if persistent:
        persistent[0].partition(persistent)
    if hasattr(zero, "invalidate_secondary_tensor"):
        zero.invalidate_secondary_tensor()
