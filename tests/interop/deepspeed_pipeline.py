"""A tiny pipeline of DeepSpeed on the CPU, two stages: trains and saves with DeepSpeed's own
writer, or loads with its own loader and saves what it then holds.

One process per rank with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set: deepspeed_pipeline.py
save SPREAD DIR | load SPREAD FROM DIR. ZeRO 1 in bf16 with fp32 gradients, two parameter groups, a
tied embedding on both stages, buffers, and sizes that divide by nothing. Where SPREAD is not 0,
each stage has a layer of experts, spread over so many of its ranks.
"""

import os
import sys
from typing import Any, Iterator

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
import torch.distributed
import deepspeed
import deepspeed.moe.layer
import deepspeed.moe.utils
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec

# or it is compiled first, for minutes
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False

WIDTH, VOCABULARY = 14, 11


class Embed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(VOCABULARY, WIDTH) * 0.1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(tokens, self.weight)


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(WIDTH, 23), torch.nn.Linear(23, WIDTH)
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        self.seen.add_(torch.arange(3).to(self.seen.dtype))
        return hidden + self.down(torch.tanh(self.up(hidden)))


class Experts(torch.nn.Module):
    def __init__(self, number: int, spread: int) -> None:
        super().__init__()
        self.dense = torch.nn.Linear(WIDTH, WIDTH)
        self.experts = deepspeed.moe.layer.MoE(WIDTH, Block(), 4, spread, min_capacity=4)
        # copies of one expert would all be trained alike
        for parameter in self.experts.deepspeed_moe.experts.parameters():
            seed = 100 * number + 10 * torch.distributed.get_rank() % 2 + parameter.numel()
            parameter.data.add_(
                0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
            )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.experts(self.dense(hidden))[0]


def head(embed: Embed, hidden: torch.Tensor) -> torch.Tensor:
    return hidden @ embed.weight.t()


def loss_of(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(output.float().flatten(0, 1), labels.flatten())


def batches() -> Iterator[Any]:
    generator = torch.Generator().manual_seed(5)
    while True:
        tokens = torch.randint(0, VOCABULARY, (2, 6), generator=generator)
        yield tokens, tokens.roll(1, 1)


def main() -> None:
    mode, spread, *folders = sys.argv[1:]
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    torch.manual_seed(3 if mode == "save" else 1234)
    inner = [
        LayerSpec(Experts, number, int(spread)) if int(spread) else LayerSpec(Block)
        for number in range(2)
    ]
    layers = [
        TiedLayerSpec("embed", Embed),
        inner[0],
        LayerSpec(torch.nn.LayerNorm, WIDTH),
        inner[1],
        # uniformly: three for the first stage, two for the second
        TiedLayerSpec("embed", Embed, forward_fn=head),
    ]
    module = PipelineModule(layers, num_stages=2, loss_fn=loss_of, partition_method="uniform")
    groups = [
        {
            "params": [p for p in module.parameters() if p.dim() > 1],
            "name": "decayed",
            "weight_decay": 0.1,
        },
        {
            "params": [p for p in module.parameters() if p.dim() == 1],
            "name": "plain",
            "weight_decay": 0.0,
        },
    ]
    groups = deepspeed.moe.utils.split_params_into_different_moe_groups_for_optimizer(groups)
    engine, _, _, _ = deepspeed.initialize(
        model=module,
        optimizer=torch.optim.AdamW(groups, lr=1e-2),
        config={
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": 2,
            "zero_optimization": {"stage": 1},
            "zero_allow_untested_optimizer": True,
            "bf16": {"enabled": True},
            "data_types": {"grad_accum_dtype": "fp32"},
        },
    )
    if mode == "load":
        path, _ = engine.load_checkpoint(folders[0])
        if path is None:
            raise SystemExit(f"DeepSpeed found no checkpoint in {folders[0]}")
    else:
        data = batches()
        for _ in range(2):
            engine.train_batch(data)
    engine.save_checkpoint(folders[-1])
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
