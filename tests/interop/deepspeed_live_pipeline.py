"""A pipeline of DeepSpeed for test_deepspeed_live.py: deepspeed_pipeline.py's model, two stages, a
tied embedding on both.

    deepspeed_live_pipeline.py JSON

JSON: "steps", "tell", "save" and "load" as in deepspeed_live_trainer.py, whose output this has;
each rank prints `whole` for what it holds.
"""

import json
import os
import sys
import time
from typing import Any, Iterator

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
import torch.distributed
import deepspeed

import forking
import deepspeed_pipeline
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from deepspeed.utils import safe_get_full_fp32_param

import cairn

forking.become_a_rank()


def sha_of(values: dict[str, torch.Tensor]) -> str:
    import hashlib

    sha = hashlib.sha256()
    for name, each in sorted(values.items()):
        sha.update(name.encode())
        sha.update(each.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def moments_of(engine: Any, key: str) -> dict[str, torch.Tensor]:
    """From the flat buffers of all ranks of this stage."""
    zero, found = engine.optimizer, {}
    group_of = engine.grid.get_data_parallel_group()
    masters = getattr(zero, "fp32_groups_flat_partition", None)
    groups = zero.bf16_groups if masters is not None else zero.bit16_groups
    masters = zero.single_partition_of_fp32_groups if masters is None else masters
    for flat, group in zip(masters, groups):
        mine = flat.detach() if key == "fp32" else zero.optimizer.state[flat][key]
        parts = [torch.empty_like(mine) for _ in range(torch.distributed.get_world_size(group_of))]
        torch.distributed.all_gather(parts, mine.contiguous(), group=group_of)
        whole = torch.cat(parts)
        for parameter in group:
            found[engine.param_names[parameter]] = whole[: parameter.numel()].clone()
            whole = whole[parameter.numel() :]
    return found


def say_whole(engine: Any) -> None:
    parts = {key: moments_of(engine, key) for key in ("fp32", "exp_avg", "exp_avg_sq")}
    parts["module"] = dict(engine.module.named_parameters())
    parts["buffers"] = dict(engine.module.named_buffers())
    for name, part in parts.items():
        print(f"whole {engine.global_steps} {name} {sha_of(part)}", flush=True)
    print(f"whole {engine.global_steps} lr {engine.get_lr()}".replace(", ", ","), flush=True)


def batches(engine: Any) -> Iterator[Any]:
    """The micro-batches of the steps that follow, each determined by its number and the replica."""
    number = engine.global_steps * engine.micro_batches
    replica = engine.grid.get_data_parallel_rank()
    while True:
        generator = torch.Generator().manual_seed(1000 * number + replica)
        tokens = torch.randint(0, deepspeed_pipeline.VOCABULARY, (2, 6), generator=generator)
        yield tokens, tokens.roll(1, 1)
        number += 1


def main() -> None:
    job = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    torch.manual_seed(3 + 1000 * ("load" in job))
    layers = [
        TiedLayerSpec("embed", deepspeed_pipeline.Embed),
        LayerSpec(deepspeed_pipeline.Block),
        LayerSpec(torch.nn.LayerNorm, deepspeed_pipeline.WIDTH),
        LayerSpec(deepspeed_pipeline.Block),
        TiedLayerSpec("embed", deepspeed_pipeline.Embed, forward_fn=deepspeed_pipeline.head),
    ]
    module = PipelineModule(
        layers,
        num_stages=job.get("stages", 2),
        loss_fn=deepspeed_pipeline.loss_of,
        partition_method="uniform",
    )
    groups = [
        {"params": [p for p in module.parameters() if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in module.parameters() if p.dim() == 1], "weight_decay": 0.0},
    ]
    engine, _, _, _ = deepspeed.initialize(
        model=module,
        optimizer=torch.optim.AdamW(groups, lr=1e-2),
        config={
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": 2,
            "zero_optimization": {"stage": 1},
            "zero_allow_untested_optimizer": True,
            "bf16": {"enabled": True},
            "data_types": {"grad_accum_dtype": job.get("accumulate", "fp32")},
            "checkpoint": {"load_universal": "load" in job},
            "scheduler": {
                "type": "WarmupLR",
                "params": {"warmup_num_steps": 10, "warmup_max_lr": 1e-2},
            },
        },
    )
    if "load" in job:
        engine.load_checkpoint(job["load"])
    snapshots = None
    if "CAIRN_AGENT" in os.environ:
        snapshots = cairn.attach(engine, engine.optimizer)
    data = None
    while True:
        step = engine.global_steps
        if step >= job.get("tell", job["steps"]):
            say_whole(engine)
            if "save" in job:
                engine.save_checkpoint(job["save"])
        if step >= job["steps"]:
            break
        if str(step) == os.environ.get("TRAINER_HOLD_AT"):
            if snapshots is not None:
                snapshots.snapshot_now()
            time.sleep(3600)  # until the test kills it
        data = data or batches(engine)
        loss = engine.train_batch(data)
        time.sleep(float(os.environ.get("TRAINER_PAUSE_S", "0")))
        print(f"step {step} {float(loss).hex()}", flush=True)
    torch.distributed.destroy_process_group()


main()
