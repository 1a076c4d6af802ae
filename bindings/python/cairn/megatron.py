"""Megatron-Core's own checkpoint calls on the memory of Cairn's agents: strategies for
`dist_checkpointing`.

    dist_checkpointing.save(state, "…/iter_0000010", cairn.megatron.SaveStrategy())
    dist_checkpointing.load(state, "…/iter_0000010", cairn.megatron.LoadStrategy())

What is sharded goes into one generation of the job, as cairn.dcp saves it, and comes from there in
any parallelism. The step is the number at the end of the folder's name; a load of another than the
agents hold is an error. The rest (common.pt, metadata.json) is small, and stays in the folder.

Like cairn.dcp, a strategy ends the snapshots after each update in its process.
"""

from __future__ import annotations

import pathlib
import re
from typing import Any

import torch.distributed.checkpoint as checkpoint
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor
from megatron.core.dist_checkpointing.strategies import torch as strategies
from megatron.core.dist_checkpointing.strategies.base import (
    LoadShardedStrategy as _Load,
    SaveShardedStrategy as _Save,
)

from . import dcp

__all__ = ["LoadStrategy", "SaveStrategy"]

BACKEND, VERSION = "cairn", 1  # in metadata.json: Megatron-Core finds no files of another backend


def _step_of(folder: Any) -> str:
    """The number at the end of a folder's name. ValueError."""
    found = re.search(r"\d+$", pathlib.Path(folder).name)
    if found is None:
        raise ValueError(
            f"cairn.megatron: {folder}: the folder's name has no step; end it with one, as in "
            "iter_0000010"
        )
    return str(int(found.group()))


class SaveStrategy(_Save):  # type: ignore[misc]
    """For `sharded_strategy` of dist_checkpointing.save. Returns when the generation is committed.
    RuntimeError, within DCP's CheckpointException, where there is no agent or it has no room."""

    def __init__(self) -> None:
        super().__init__(BACKEND, VERSION)

    can_handle_sharded_objects = True

    def save(self, sharded_state_dict: Any, checkpoint_dir: Any) -> None:
        state = strategies._replace_state_dict_keys_with_sharded_keys(sharded_state_dict, True)[0]
        checkpoint.save(
            strategies.mcore_to_pyt_state_dict(state, False),
            checkpoint_id=_step_of(checkpoint_dir),
            storage_writer=dcp.Writer(),
            planner=strategies.MCoreSavePlanner(
                dedup_replicated_tensors=False, flatten_state_dict=False
            ),
        )


class LoadStrategy(_Load):  # type: ignore[misc]
    """For `sharded_strategy` of dist_checkpointing.load. Errors as in DCP."""

    can_handle_sharded_objects = True

    def load(self, sharded_state_dict: Any, checkpoint_dir: Any) -> Any:
        tensors = [
            each for each in nested_values(sharded_state_dict) if isinstance(each, ShardedTensor)
        ]
        state, flat, renamed = strategies._replace_state_dict_keys_with_sharded_keys(
            sharded_state_dict
        )
        found = strategies.mcore_to_pyt_state_dict(state, True)
        checkpoint.load(
            found,
            checkpoint_id=_step_of(checkpoint_dir),
            storage_reader=dcp.Reader(),
            planner=strategies.MCoreLoadPlanner(
                shapes_validation_sharded_tensors=[
                    each for each in tensors if not each.allow_shape_mismatch
                ],
                allow_shape_mismatch_sharded_tensors={
                    each.key: each for each in tensors if each.allow_shape_mismatch
                },
            ),
        )
        loaded = strategies._replace_sharded_keys_with_state_dict_keys(
            {key: strategies._unwrap_pyt_sharded_tensor(each) for key, each in found.items()},
            flat,
            renamed,
        )
        strategies._restore_dict_types(loaded, sharded_state_dict)
        return loaded

    def load_tensors_metadata(self, checkpoint_dir: Any) -> Any:
        described = dcp.Reader().read_metadata()
        return strategies.TorchDistLoadShardedStrategy().load_tensors_metadata(
            checkpoint_dir, described
        )

    def check_backend_compatibility(self, loaded_backend: Any) -> None:
        if loaded_backend != BACKEND:
            raise ValueError(
                f"cairn.megatron: the checkpoint was saved by {loaded_backend}; load it without "
                "LoadStrategy"
            )

    def check_version_compatibility(self, loaded_version: Any) -> None:
        if loaded_version != VERSION:
            raise ValueError(f"cairn.megatron: unknown version {loaded_version} of a checkpoint")
