"""A tiny DeepSpeed job on the CPU: trains, saves a checkpoint with DeepSpeed's own writer, or loads
one with its own loader, and writes down what each parameter and moment then is.

One process per rank, started by convert_deepspeed helpers of test_convert_deepspeed.py with RANK,
WORLD_SIZE, MASTER_ADDR and MASTER_PORT set: deepspeed_trainer.py save|load JSON, where JSON is
{"stage": 0..3, "dtype": "fp32"|"bf16"|"fp16", "dir": CHECKPOINT, "truth": FILE, "steps": N,
"universal": bool, "options": {...}, "config": {...}, "client": false where the checkpoint has no
client state of this trainer}. A caller in Python may add "data", what the engine's loader reads,
and "optimizer", the class of the one that DeepSpeed wraps.
Rank 0 writes {"module": {name: tensor}, "fp32": …, "exp_avg": …, "exp_avg_sq": …, "step": int,
"lr": float} to `truth`.
"""

import json
import os
import sys
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
import torch.distributed
import deepspeed

# or it is compiled first, for minutes
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

WIDTH = 14  # not a multiple of any number of ranks used here, so that shards are uneven
VOCABULARY = 11


class Net(torch.nn.Module):
    """Tied weights, a frozen parameter, buffers of two types, one element alone, two parameter
    groups, and sizes that divide by nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.up = torch.nn.Linear(WIDTH, 23)
        self.conv = torch.nn.Conv1d(3, 5, 3, padding=1)
        self.down = torch.nn.Linear(23, WIDTH, bias=False)
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.frozen = torch.nn.Parameter(torch.full((3, 5), 0.25), requires_grad=False)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("running", torch.zeros(7))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(tokens)
        hidden = hidden + self.down(torch.tanh(self.up(hidden)))
        hidden = self.conv(hidden.unflatten(0, (-1, 3))[..., 0, :]).mean() * self.scale + hidden
        return self.head(self.norm(hidden)) + self.frozen.sum()


def groups_of(model: Net) -> list[dict[str, Any]]:
    """The usual two groups: matrices with weight decay, everything else without."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return [
        {
            "params": [p for p in trained if getattr(p, "ds_shape", p.shape).numel() > WIDTH * 2],
            "weight_decay": 0.1,
        },
        {
            "params": [p for p in trained if getattr(p, "ds_shape", p.shape).numel() <= WIDTH * 2],
            "weight_decay": 0.0,
            "lr": 3e-3,
        },
    ]


def engine_of(job: dict[str, Any]) -> Any:
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": job["stage"], **job.get("options", {})},
        "zero_allow_untested_optimizer": True,
        "scheduler": {
            "type": "WarmupLR",
            "params": {"warmup_num_steps": 10, "warmup_max_lr": 1e-2},
        },
        "checkpoint": {"load_universal": bool(job.get("universal"))},
    }
    if job["dtype"] == "bf16":
        config["bf16"] = {"enabled": True}
    if job["dtype"] == "fp16":
        config["fp16"] = {"enabled": True, "initial_scale_power": 4}
    config.update(job.get("config", {}))
    torch.manual_seed(7 if job["mode"] == "save" else 1234)
    if job["stage"] == 3:
        with deepspeed.zero.Init(config_dict_or_path=config):
            model = Net()
    else:
        model = Net()
    optimizer = job.get("optimizer", torch.optim.AdamW)(groups_of(model), lr=1e-2)
    engine, _, _, _ = deepspeed.initialize(
        model=model, optimizer=optimizer, config=config, training_data=job.get("data")
    )
    return engine


def train(engine: Any, steps: int) -> None:
    generator = torch.Generator().manual_seed(100 + torch.distributed.get_rank())
    for _ in range(steps):
        tokens = torch.randint(0, VOCABULARY, (6, 3), generator=generator)
        loss = torch.nn.functional.cross_entropy(
            engine(tokens).float().flatten(0, 1), tokens.flatten()
        )
        engine.backward(loss)
        engine.step()
    engine.module.running.add_(steps + torch.arange(7).to(engine.module.running.dtype))
    engine.module.seen.add_(steps)


def job_stage(engine: Any) -> int:
    return int(engine.zero_optimization_stage())


def add_flat_moments(engine: Any, truth: dict[str, Any]) -> None:
    """The moments of ZeRO 1 and 2 from the live buffers of all ranks: DeepSpeed's accessors find
    none after torch's own AdamW."""
    optimizer = engine.optimizer
    groups = getattr(optimizer, "round_robin_bit16_groups", None) or optimizer.bf16_groups
    for flat, group in zip([g["params"][0] for g in optimizer.optimizer.param_groups], groups):
        for key in ("exp_avg", "exp_avg_sq"):
            mine = optimizer.optimizer.state[flat][key]
            parts = [torch.empty_like(mine) for _ in range(torch.distributed.get_world_size())]
            torch.distributed.all_gather(parts, mine.contiguous())
            whole = torch.cat(parts)
            for parameter in group:
                truth[key][engine.param_names[parameter]] = (
                    whole[: parameter.numel()].reshape(parameter.shape).clone()
                )
                whole = whole[parameter.numel() :]


def truth_of(engine: Any) -> dict[str, Any]:
    """The job's whole state, read with DeepSpeed's own accessors; the same on every rank."""
    truth: dict[str, Any] = {"module": {}, "fp32": {}, "exp_avg": {}, "exp_avg_sq": {}}
    for name, parameter in engine.module.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter], enabled=hasattr(parameter, "ds_id")):
            truth["module"][name] = parameter.detach().clone()
        if not parameter.requires_grad:
            continue
        truth["fp32"][name] = (
            safe_get_full_fp32_param(parameter)
            .detach()
            .clone()
            .reshape(truth["module"][name].shape)
        )
        for key in ("exp_avg", "exp_avg_sq") if job_stage(engine) == 3 else ():
            truth[key][name] = (
                safe_get_full_optimizer_state(parameter, key)
                .detach()
                .clone()
                .reshape(truth["fp32"][name].shape)
            )
    if job_stage(engine) in (1, 2):
        add_flat_moments(engine, truth)
    for name, buffer in engine.module.named_buffers():
        truth["module"][name] = buffer.detach().clone()
    truth["step"] = engine.global_steps
    truth["lr"] = [group["lr"] for group in engine.optimizer.param_groups]
    truth["optimizer_step"] = sorted(
        {
            float(state["step"])
            for state in engine.optimizer.optimizer.state.values()
            if "step" in state
        }
    )
    return truth


def main() -> None:
    job = {"mode": sys.argv[1], **json.loads(sys.argv[2])}
    torch.set_num_threads(1)
    os.environ.setdefault("LOCAL_RANK", os.environ["RANK"])
    deepspeed.init_distributed("gloo")
    engine = engine_of(job)
    if job["mode"] == "save":
        train(engine, job["steps"])
        engine.save_checkpoint(job["dir"], client_state={"note": {"epoch": 3, "names": ["a", "b"]}})
    else:
        path, client = engine.load_checkpoint(job["dir"])
        if path is None:
            raise SystemExit(f"DeepSpeed found no checkpoint in {job['dir']}")
        if job.get("client", True) and client["note"] != {"epoch": 3, "names": ["a", "b"]}:
            raise SystemExit(f"the client state came back as {client['note']!r}")
    truth = truth_of(engine)
    if torch.distributed.get_rank() == 0:
        torch.save(truth, job["truth"])
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
