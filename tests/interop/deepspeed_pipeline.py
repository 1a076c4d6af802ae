"""A tiny pipeline of DeepSpeed on the CPU, two stages: trains and saves with DeepSpeed's own writer, or loads with its own
loader and saves what it then holds.

One process per rank with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set: deepspeed_pipeline.py save DIR | load FROM DIR
ZeRO 1 in bf16 with fp32 gradients, two parameter groups, a tied embedding on both stages, buffers, and sizes that divide by
nothing.
"""

import os
import sys
from typing import Any, Iterator

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
import torch.distributed
import deepspeed
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # or it is compiled first, for minutes

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
    mode, *folders = sys.argv[1:]
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    torch.manual_seed(3 if mode == "save" else 1234)
    layers = [TiedLayerSpec("embed", Embed), LayerSpec(Block), LayerSpec(Block), LayerSpec(torch.nn.LayerNorm, WIDTH),
              TiedLayerSpec("embed", Embed, forward_fn=head)]
    module = PipelineModule(layers, num_stages=2, loss_fn=loss_of, partition_method="uniform")
    groups = [{"params": [p for p in module.parameters() if p.dim() > 1], "weight_decay": 0.1},
              {"params": [p for p in module.parameters() if p.dim() == 1], "weight_decay": 0.0}]
    engine, _, _, _ = deepspeed.initialize(model=module, optimizer=torch.optim.AdamW(groups, lr=1e-2), config={
        "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "zero_optimization": {"stage": 1},
        "zero_allow_untested_optimizer": True, "bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}})
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
