"""A tiny DeepSpeed job of expert parallelism on the CPU: trains layers of DeepSpeed's own MoE,
saves a checkpoint with DeepSpeed's own writer, or loads one with its own loader, and writes down
what each rank then holds.

One process per rank, as deepspeed_trainer.py: deepspeed_experts.py save|load JSON, where JSON is
{"stage": 0..2, "dtype": "fp32"|"bf16", "experts": ranks over which the experts of a layer are
spread, "dir": CHECKPOINT, "truth": FOLDER, "config": {...}}. Each rank writes {"module": {name:
tensor}, "fp32": …, "exp_avg": …, "exp_avg_sq": …, "optimizer_step": […]} to truth/<rank>.pt,
experts under their numbers over all ranks.
"""

import json
import os
import pathlib
import sys
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
import torch.distributed
import deepspeed
import deepspeed.moe.layer
import deepspeed.moe.utils

# or it is compiled first, for minutes
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
from deepspeed.utils import groups

WIDTH = 6
VOCABULARY = 11
EXPERTS = (4, 8)  # of the two layers
MARK = ".deepspeed_experts."


class Expert(torch.nn.Module):
    def __init__(self, inner: int) -> None:
        super().__init__()
        self.up = torch.nn.Linear(WIDTH, inner)
        self.down = torch.nn.Linear(inner, WIDTH, bias=False)
        self.register_buffer("scale", torch.ones(3))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.up(hidden))) * self.scale[0]


class Net(torch.nn.Module):
    """Two layers of experts, of other numbers and sizes, one with a dense part beside its experts;
    and what is dense."""

    def __init__(self, ep_size: int) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.first = deepspeed.moe.layer.MoE(WIDTH, Expert(7), EXPERTS[0], ep_size, min_capacity=16)
        self.between = torch.nn.Linear(WIDTH, WIDTH)
        self.second = deepspeed.moe.layer.MoE(
            WIDTH, Expert(5), EXPERTS[1], ep_size, min_capacity=16, use_residual=True
        )
        self.head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(tokens)
        hidden = hidden + self.first(hidden)[0]
        hidden = hidden + self.second(self.between(hidden))[0]
        return self.head(hidden)


def engine_of(job: dict[str, Any]) -> Any:
    torch.manual_seed(7 if job["mode"] == "save" else 1234)
    net = Net(job["experts"])
    # copies of one expert would all be trained alike
    for number, parameter in enumerate(net.parameters()):
        rank = torch.distributed.get_rank() if deepspeed.moe.utils.is_moe_param(parameter) else 0
        generator = torch.Generator().manual_seed(
            1000 * rank + number + (0 if job["mode"] == "save" else 50000)
        )
        parameter.data.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": job["stage"], "reduce_bucket_size": 100000},
        "zero_allow_untested_optimizer": True,
        "scheduler": {
            "type": "WarmupLR",
            "params": {"warmup_num_steps": 10, "warmup_max_lr": 1e-2},
        },
    }
    if job["dtype"] == "bf16":
        config["bf16"] = {"enabled": True}
    config.update(job.get("config", {}))
    decayed = [
        {
            "params": [p for p in net.parameters() if p.dim() > 1],
            "name": "decayed",
            "weight_decay": 0.1,
        },
        {
            "params": [p for p in net.parameters() if p.dim() == 1],
            "name": "plain",
            "weight_decay": 0.0,
        },
    ]
    optimizer = torch.optim.AdamW(
        deepspeed.moe.utils.split_params_into_different_moe_groups_for_optimizer(decayed), lr=1e-2
    )
    engine, _, _, _ = deepspeed.initialize(model=net, optimizer=optimizer, config=config)
    return engine


def train(engine: Any) -> None:
    generator = torch.Generator().manual_seed(100 + torch.distributed.get_rank())
    for _ in range(3):
        tokens = torch.randint(0, VOCABULARY, (6, 9), generator=generator)
        loss = torch.nn.functional.cross_entropy(
            engine(tokens).float().flatten(0, 1), tokens.flatten()
        )
        engine.backward(loss)
        engine.step()


def global_name(engine: Any, name: str, ep_size: int) -> str:
    """The name with the expert's number over all ranks."""
    if MARK not in name:
        return name
    layer, rest = name.split(MARK)
    number, rest = rest.split(".", 1)
    experts = EXPERTS[0] if layer.startswith("first") else EXPERTS[1]
    mine = groups._get_expert_parallel_rank(f"ep_size_{ep_size}") * (experts // ep_size)
    return f"{layer}{MARK}{mine + int(number)}.{rest}"


def truth_of(engine: Any, ep_size: int) -> dict[str, Any]:
    """What the rank holds: the module, and of the optimizer's flat buffers the parts of all ranks
    that share a group."""
    truth: dict[str, Any] = {"module": {}, "fp32": {}, "exp_avg": {}, "exp_avg_sq": {}}
    for name, tensor in engine.module.state_dict().items():
        truth["module"][global_name(engine, name, ep_size)] = tensor.detach().clone()
    optimizer = engine.optimizer
    masters = (
        getattr(optimizer, "single_partition_of_fp32_groups", None)
        or optimizer.fp32_groups_flat_partition
    )
    members = getattr(optimizer, "round_robin_bit16_groups", None) or optimizer.bf16_groups
    for number, group in enumerate(members):
        state = optimizer.optimizer.state[optimizer.optimizer.param_groups[number]["params"][0]]
        for key, mine in (
            ("fp32", masters[number]),
            ("exp_avg", state["exp_avg"]),
            ("exp_avg_sq", state["exp_avg_sq"]),
        ):
            mine = mine.detach().contiguous()
            among = optimizer.real_dp_process_group[number]
            parts = [torch.empty_like(mine) for _ in range(torch.distributed.get_world_size(among))]
            torch.distributed.all_gather(parts, mine, group=among)
            whole = torch.cat(parts)
            for parameter in group:
                name = global_name(engine, engine.param_names[parameter], ep_size)
                truth[key][name] = whole[: parameter.numel()].reshape(parameter.shape).clone()
                whole = whole[parameter.numel() :]
    truth["optimizer_step"] = sorted(
        {float(state["step"]) for state in optimizer.optimizer.state.values()}
    )
    return truth


def main() -> None:
    job = {"mode": sys.argv[1], **json.loads(sys.argv[2])}
    torch.set_num_threads(1)
    os.environ.setdefault("LOCAL_RANK", os.environ["RANK"])
    deepspeed.init_distributed("gloo")
    engine = engine_of(job)
    if job["mode"] == "save":
        train(engine)
        engine.save_checkpoint(job["dir"], client_state={"note": 3})
    else:
        path, client = engine.load_checkpoint(job["dir"])
        if path is None or client["note"] != 3:
            raise SystemExit(f"DeepSpeed found {path} and {client}")
    if job["stage"] > 0:
        folder = pathlib.Path(job["truth"])
        folder.mkdir(exist_ok=True)
        torch.save(truth_of(engine, job["experts"]), folder / f"{torch.distributed.get_rank()}.pt")
        train(engine)  # what was loaded can be trained on
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
