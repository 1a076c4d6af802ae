"""Collects what a job consists of: its tensors under their names, its optimizers, its plain state;
and finds whether that is all of it."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from . import _blob, _lib, _megatron, _modules, _optimizers, _plain, _tensors
from ._coverage import Problems
from ._entry import Entry
from ._fsdp1 import parts_of
from ._known import Known
from ._layout import Layout
from ._naming import few, fitting, moment_name, positional
from ._part import Part, Parts
from ._ranks import Place
from ._zero import Zero, parts_of as parts_of_zero

UNKNOWN_HOOK = (
    "as nothing says that this hook leaves the same gradients on all ranks, each rank's own "
    "parameters and moments are captured: they come back in the same number of ranks only"
)

NO_TENSORS = "Megatron-Core keeps it in its checkpoints as an object that is no tensor"
STAGED_BYTES_MAX = 1 << 20  # a larger buffer is captured in place while nothing writes to it


def _add_parameter(
    layout: Layout,
    name: str,
    tensor: Any,
    part: Optional[Part],
    problems: Problems,
    staged: bool = False,
) -> Optional[Entry]:
    why = _tensors.uncovered(tensor if part is None else part.memory())
    if why:
        problems.refuse(_lib.PARAM, name, why, f"parameter {name} cannot be captured: {why}")
        return None
    kind = _lib.PARAM if part is None else part.kind
    entry = Entry(name, kind, tensor, staged=staged, part=part)
    # what the stages of DeepSpeed's pipeline share is the first one's
    entry.captured = not getattr(tensor, "ds_pipe_replicated", False)
    layout.entries.append(entry)
    return entry


def _add_what_no_optimizer_has(
    layout: Layout,
    prefix: str,
    root: Any,
    parts: Parts,
    added: Set[int],
    problems: Problems,
    staged_always: Set[str],
) -> None:
    """The other parameters of a root: frozen, or updated by the script."""
    trains = any(id(parameter) in added for _, parameter in _modules.named_parameters(root))
    for name, parameter in _modules.named_parameters(root):
        if id(parameter) in added:
            continue
        added.add(id(parameter))
        for part in parts.get(id(parameter), [None]):
            full = prefix + name if part is None else part.name
            staged = part is None and fitting(full) in staged_always
            entry = _add_parameter(layout, full, parameter, part, problems, staged)
            if entry is not None and part is None:
                # in another order its copy had another shape
                entry.stageable = bool(_tensors.local(parameter).is_contiguous())
                entry.aside = parameter.requires_grad or not trains


def _add_state(
    layout: Layout,
    known: Known,
    name: str,
    parameter: Any,
    part: Optional[Part],
    taken: Dict[str, int],
    problems: Problems,
) -> None:
    state = known.holder().state.get(parameter) or {}
    alone = known.holder() is not known.optimizer()
    plain: Set[str] = set()
    for key, value in state.items():
        if not _tensors.is_tensor(value):
            try:
                _blob.encode(value, _plain.pack)
                plain.add(key)
            except TypeError as error:
                moment = moment_name(key, name)
                problems.refuse(
                    _lib.OPTIMIZER, moment, str(error), f"{moment} cannot be captured: {error}"
                )
            continue
        if part is not None and part.is_empty:
            continue
        of = part.of(value) if part is not None else None
        moment = moment_name(key, name)
        if value.dim() == 0 and taken.get(moment) == id(state):
            continue  # another part of the same parameter has it
        why = (
            _tensors.uncovered(value)
            if isinstance(key, str)
            else f"its key is no text but the {type(key).__name__} {key}"
        )
        if part is not None and of is None:
            framework = "FSDP1" if part.box is None else "Megatron-Core"
            why = (
                f"{framework} holds {list(part.held_shape)} of its parameter, and it has the shape "
                f"{list(value.shape)}"
            )
        if why:
            problems.refuse(_lib.OPTIMIZER, moment, why, f"{moment} cannot be captured: {why}")
        elif taken.get(moment, id(state)) != id(state):
            problems.refuse(
                _lib.OPTIMIZER, moment, "two optimizers have it", f"two optimizers have {moment}"
            )
        else:
            taken[moment] = id(state)
            layout.entries.append(
                Entry(moment, _lib.OPTIMIZER, value, state, key, parameter, part=of, alone=alone)
            )
    if plain:
        layout.add_plain(known.number, name, state, plain)


def named(
    roots: Mapping[str, Any], known: Sequence[Known], world: int
) -> Tuple[Dict[int, str], Parts, List[str]]:
    """(names by the ids of parameters, the parts of those that a framework lays out, why some have
    no name). A flat one has the name of its first."""
    names: Dict[int, str] = {}
    parts: Parts = {}
    problems: List[str] = []
    for prefix, root in roots.items():
        of_root, why = parts_of(root, prefix, world)
        parts.update(of_root)
        parts.update(parts_of_zero(root, prefix))
        problems += why
        for name, parameter in _modules.named_parameters(root):
            names.setdefault(id(parameter), prefix + name)
    optimizers = [optimizer for optimizer in (each.optimizer() for each in known) if optimizer]
    of_megatron, why = _megatron.parts_of(roots, optimizers)
    parts.update(of_megatron)
    problems += why
    names.update((number, each[0].parameter) for number, each in parts.items())
    return names, parts, problems


def plain_names(roots: Mapping[str, Any], known: Sequence[Known], world: int) -> List[str]:
    """The names of Layout.plain_parameters, sorted, without a look at anything else."""
    names, parts, _ = named(roots, known, world)
    held = [
        parameter for root in roots.values() for _, parameter in _modules.named_parameters(root)
    ]
    found = {
        names[id(parameter)]
        for parameter in held
        if id(parameter) not in parts and not _tensors.is_sharded(parameter)
    }
    for each in known:
        for number, index, _group, parameter in each.grouped():
            if id(parameter) not in names and not _tensors.is_sharded(parameter):
                found.add(positional(each.number, number, index))
    return sorted(map(fitting, found))


def collect(
    roots: Mapping[str, Any],
    known: Sequence[Known],
    place: Place,
    problems: Problems,
    staged_always: Set[str],
    unnamed_too: bool = True,
    order: Optional[Mapping[int, int]] = None,
) -> Layout:
    """Everything that the job holds: parameters and moments in the order of the updates, then what
    is left, then buffers.

    known: in the order in which they step. order: ranks of tensors by their id, where the order of
    updates is known better.
    """
    layout = Layout(place)
    names, parts, why_unnamed = named(roots, known, place.world)
    problems.lines += why_unnamed
    added: Set[int] = set()
    taken: Dict[str, int] = {}  # the ids of the states that have moments of these names
    unnamed = problems.unnamed
    for each in known:
        why = each.refusal(place.world)
        if why:
            problems.lines.append(why)
            continue
        for number, index, _group, parameter in each.grouped():
            name = names.get(id(parameter), "")
            if not name:
                if not unnamed_too:
                    continue
                name = positional(each.number, number, index)
                unnamed.append(name)
            for part in parts.get(id(parameter), [None]):
                if (
                    id(parameter) in added
                    or (part is not None and not part.name)
                    or _add_parameter(
                        layout, name if part is None else part.name, parameter, part, problems
                    )
                ):
                    part_name = name if part is None else part.parameter
                    if isinstance(each, Zero):
                        each.add_state(layout, part_name, parameter, problems)
                    else:
                        _add_state(layout, each, part_name, parameter, part, taken, problems)
            added.add(id(parameter))
        missing = [
            names.get(id(parameter), "a parameter without a name")
            for parameter in each.incomplete()
        ]
        if missing:
            why = "but holds no moments of it, or only some"
            problems.lines.append(f"the optimizer has updated {few(missing)}, {why}")
            whole = f"the optimizer has updated it, {why}"
            problems.uncovered += [_lib.Uncovered(_lib.OPTIMIZER, name, whole) for name in missing]
        each.leave_out_what_is_not_plain(problems)
    if unnamed:
        problems.notes.append(
            f"{len(unnamed)} parameters belong to no module that was called: they are named by "
            f"their position, {few(unnamed)}"
        )
    for prefix, root in roots.items():
        for hook in _modules.unknown_hooks(root):
            name = f"what DDP's communication hook {hook} keeps for itself"
            problems.note(
                _lib.OPAQUE, name, UNKNOWN_HOOK, f"{name} is not covered, and {UNKNOWN_HOOK}"
            )
        _add_what_no_optimizer_has(layout, prefix, root, parts, added, problems, staged_always)
        for name, buffer in _modules.named_buffers(root):
            part = parts.get(id(buffer), [None])[0]
            full = prefix + name if part is None else part.name
            why = _tensors.uncovered(buffer)
            if why and why != "it is not contiguous":
                problems.note(_lib.BUFFER, full, why, f"buffer {full} is not covered: {why}")
                continue
            staged = (
                bool(why)
                or _tensors.local(buffer).nbytes <= STAGED_BYTES_MAX
                or fitting(full) in staged_always
            )
            layout.entries.append(Entry(full, _lib.BUFFER, buffer, staged=staged, part=part))
    objects = [] if why_unnamed else _megatron.objects_of(roots)
    if objects:
        problems.note(
            _lib.OPAQUE, few(objects), NO_TENSORS, f"{few(objects)} is not covered: {NO_TENSORS}"
        )
    layout.arrange(order or {})
    layout.seal(known)
    return layout
