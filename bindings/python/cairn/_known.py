"""An optimizer of the job: its parameters, its moments, its plain state."""

from __future__ import annotations

from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    FrozenSet,
    Iterable,
    List,
    Mapping,
    Optional,
    Set,
    Tuple,
)

from . import _blob, _lib, _megatron, _optimizers, _plain, _tensors
from ._coverage import Problems
from ._naming import fitting, keys_of, moments_of, positional
from ._part import Parts
from ._ranks import Place

if TYPE_CHECKING:
    from ._layout import Layout


def _like(parameter: Any, state: Mapping[Any, Any]) -> Tuple[int, FrozenSet[Any]]:
    """What parameters share if an optimizer keeps the same for them."""
    types = (getattr(each, "dtype", None) for each in state.values())
    return parameter.dim(), frozenset(each for each in types if each is not None)


class Known:
    """An optimizer of the job, and what of its state exists."""

    def __init__(self, optimizer: Callable[[], Any], number: int) -> None:
        self.optimizer, self.number = optimizer, number
        # parameters that were updated and have none, though others have
        self.without_moments: List[Any] = []
        self._made: List[Tuple[Dict[str, Any], str]] = []
        self._left_out: Dict[str, str] = {}  # keys of the groups that hold no plain data, and why
        self._marks: List[Dict[str, Any]] = []  # of the groups, before the update under way
        # keys of the groups that updates change: they are state, as schedule-free optimizers have
        # it
        self._own: Set[str] = set()

    def holder(self) -> Any:
        """The optimizer that has the state; not always for all parameters of this one."""
        return _optimizers.holder(self.optimizer())

    def holders(self) -> List[Any]:
        """All that have a part of the state."""
        return [self.holder()]

    def leave_out_what_is_not_plain(self, problems: Problems) -> None:
        """Looks once at each hyperparameter whether it can be kept; says all that cannot."""
        for group in self.optimizer().param_groups:
            for key in group.keys() - {"params"} - self._left_out.keys():
                try:
                    _blob.encode(group[key], _plain.pack)
                except TypeError as error:
                    self._left_out[key] = str(error)
        for key, why in self._left_out.items():
            name = f"the hyperparameter {key} of optimizer {self.number}"
            problems.note(_lib.OPAQUE, name, why, f"{name} is not covered: {why}")

    def refusal(self, world: int) -> Optional[str]:
        """Why it cannot be covered; None where it can, as far as that is known before its state is
        looked at."""
        return _optimizers.refusal(self.optimizer(), world)

    def grouped(self) -> Iterable[Tuple[int, int, Dict[str, Any], Any]]:
        """(group number, number in the group, group, parameter) in the order of the update."""
        return _optimizers.grouped(self.optimizer())

    def parameters(self) -> Iterable[Any]:
        optimizer = self.optimizer()
        return (
            [parameter for group in optimizer.param_groups for parameter in group["params"]]
            if optimizer is not None
            else []
        )

    def trained(self) -> Iterable[Any]:
        """The parameters of modules that it trains: its own, or those whose copies it has."""
        optimizer = self.optimizer()
        found = None if optimizer is None else _megatron.trained(optimizer)
        return self.parameters() if found is None else found

    def count(self) -> Tuple[int, int]:
        """Grows with parameters that are added and with state that appears."""
        states = [value for holder in self.holders() for value in holder.state.values()]
        held = sum(bool(value) if isinstance(value, dict) else 1 for value in states)
        return (sum(len(group["params"]) for group in self.optimizer().param_groups), held)

    def before_update(self) -> None:
        self._marks = _optimizers.group_marks(self.optimizer())

    def after_update(self) -> None:
        for before, after in zip(self._marks, _optimizers.group_marks(self.optimizer())):
            self._own |= {
                key for key, mark in after.items() if key not in before or before[key] != mark
            }

    def beside(self) -> Dict[Any, Any]:
        """What it keeps in its state under other keys than its parameters."""
        return {
            key: value for key, value in self.holder().state.items() if not _tensors.is_tensor(key)
        }

    def note_missing(self) -> None:
        """Right after the update, while the gradients are there."""
        holder = self.holder()
        state = holder.state
        updated = [
            each
            for group in holder.param_groups
            for each in group["params"]
            if each.grad is not None
        ]
        lacking = [parameter for parameter in updated if not state.get(parameter)]
        # some optimizers have no state at all
        self.without_moments = lacking if len(lacking) < len(updated) else []

    def incomplete(self) -> List[Any]:
        """Parameters that were updated and have no moments, or have lost some that their like have.

        Their like: the parameters of as many dimensions in the same group, as some optimizers keep
        other moments of matrices than of vectors, whose moments are of the same types, as those of
        8 bits leave small matrices alone.
        """
        optimizer = self.holder()
        found = list(self.without_moments)
        for group in optimizer.param_groups:
            states = [(parameter, optimizer.state.get(parameter)) for parameter in group["params"]]
            # none: it may not even have a shape yet
            states = [(parameter, state) for parameter, state in states if state]
            counts: Dict[Any, int] = {}
            for parameter, state in states:
                like = _like(parameter, state)
                counts[like] = max(counts.get(like, 0), len(state))
            found += [
                parameter
                for parameter, state in states
                if len(state) < counts[_like(parameter, state)]
            ]
        return found

    def plain(self, layout: "Layout") -> Dict[str, Any]:
        """Hyperparameters of the groups, which of them are state, and the state besides tensors,
        by parameter name."""
        optimizer = self.optimizer()
        groups = [
            {
                key: value
                for key, value in group.items()
                if key != "params" and key not in self._left_out
            }
            for group in optimizer.param_groups
        ]
        values = {
            name: {key: value for key, value in state.items() if key in keys}
            for name, state, keys in layout.plain_of(self.number)
        }
        own = sorted(self._own - self._left_out.keys())
        found = {"groups": groups, "own": own, "state": values, "beside": self.beside()}
        scaler = _megatron.plain(optimizer)
        return found if scaler is None else {**found, "scaler": scaler}

    def all_names(self, names: Mapping[int, str]) -> Dict[int, str]:
        """Those of its parameters, by their ids; by position of those that have no other."""
        places = _optimizers.grouped(self.holder())
        return {
            id(each): names.get(id(each)) or positional(self.number, number, index)
            for number, index, _, each in places
        }

    def load_plain(
        self, value: Mapping[str, Any], names: Mapping[int, str], groups_from: int
    ) -> None:
        """What `plain` gave: the state of these parameters, and the hyperparameters of all groups
        from that one on; of earlier groups what is state."""
        holder = self.holder()
        for _number, _index, _group, parameter in _optimizers.grouped(holder):
            found = value["state"].get(fitting(names.get(id(parameter), "")))
            if found:
                holder.state[parameter].update(found)
        holder.state.update(value.get("beside", {}))
        _megatron.load_plain(self.optimizer(), value.get("scaler"))
        for number, (group, saved) in enumerate(
            zip(self.optimizer().param_groups, value["groups"])
        ):
            for key in saved if number >= groups_from else value.get("own", ()):
                each = saved[key]
                if hasattr(group.get(key), "copy_") and hasattr(each, "dtype"):
                    # a learning rate that is a tensor is shared with compiled code
                    group[key].copy_(each)
                else:
                    group[key] = each

    def make_state(
        self,
        names: Mapping[int, str],
        listed: Mapping[str, _lib.Listed],
        place: Place,
        unnamed_too: bool,
        parts: Optional[Parts] = None,
    ) -> None:
        """The tensors of the state that a first step would make, where the snapshot has them and
        they are not there. Not yet filled."""
        keys, of = keys_of(listed), self.all_names(names)
        optimizer = self.holder()
        for _number, _index, group, parameter in _optimizers.grouped(optimizer):
            if id(parameter) not in names and not unnamed_too:
                continue
            for part in (parts or {}).get(id(parameter), [None]):
                if part is not None and part.is_empty:
                    continue
                name = of[id(parameter)] if part is None else part.parameter
                for key, moment, each in moments_of(listed, keys, name, place):
                    if part is not None and moment == fitting(part.name):
                        continue  # the master itself
                    if optimizer.state.get(parameter, {}).get(
                        key
                    ) is None and not _tensors.uncovered(parameter):
                        state = optimizer.state[parameter]
                        state[key] = _optimizers.make_state(parameter, group, each, part)
                        self._made.append((state, key))

    def forget_state(self) -> None:
        """Takes back what make_state made."""
        for state, key in self._made:
            state.pop(key, None)
        self._made = []

    def keep_state(self) -> None:
        self._made = []
