"""A tiny DeepSpeed job of tensor parallelism (AutoTP) on the CPU: trains, and saves a checkpoint
with DeepSpeed's own writer.

One process per rank, as deepspeed_trainer.py: deepspeed_tensor.py save|load DIRECTORY STAGE
TENSOR_RANKS, or on one rank deepspeed_tensor.py merge FOLDER TARGET [FOLDER TARGET …], which has
DeepSpeed's own converter put together what was saved. Layers are cut along their first dimension
(up, lm_head), along the second (down) or not at all (embed, norm), with and without biases. With
ZeRO 1, what each rank holds is written to DIRECTORY.<mode>/<rank>.pt: {"module.<name>": tensor,
"fp32.<name>": …, …}.
"""

import os
import pathlib
import sys
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
import torch.distributed
import deepspeed
from deepspeed.checkpoint import ds_to_universal

# or it is compiled first, for minutes
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False

WIDTH = 10
VOCABULARY = 12


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.up = torch.nn.Linear(WIDTH, 16)
        self.down = torch.nn.Linear(16, WIDTH)
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.lm_head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(tokens)
        hidden = hidden + self.down(torch.tanh(self.up(hidden)))
        return self.lm_head(self.norm(hidden))


def merge(folder: str, target: str) -> None:
    sys.argv[1:] = [
        "--input_folder",
        folder,
        "--output_folder",
        target,
        "--num_extract_workers",
        "1",
        "--num_merge_workers",
        "1",
    ]
    ds_to_universal.main(ds_to_universal.parse_arguments())


def truth_of(engine: Any) -> dict[str, torch.Tensor]:
    """What the tensor-parallel rank holds, of the optimizer's flat buffers the parts of all
    data-parallel ranks."""
    truth = {
        f"module.{name}": tensor.detach().clone()
        for name, tensor in engine.module.state_dict().items()
    }
    optimizer = engine.optimizer
    for number, group in enumerate(optimizer.round_robin_bit16_groups):
        master = optimizer.single_partition_of_fp32_groups[number]
        state = optimizer.optimizer.state[optimizer.optimizer.param_groups[number]["params"][0]]
        for key, mine in (
            ("fp32", master),
            ("exp_avg", state["exp_avg"]),
            ("exp_avg_sq", state["exp_avg_sq"]),
        ):
            among = optimizer.real_dp_process_group[number]
            parts = [torch.empty_like(mine) for _ in range(torch.distributed.get_world_size(among))]
            torch.distributed.all_gather(parts, mine.detach().contiguous(), group=among)
            whole = torch.cat(parts)
            for parameter in group:
                name = engine.param_names[parameter]
                truth[f"{key}.{name}"] = (
                    whole[: parameter.numel()].reshape(parameter.shape).detach().clone()
                )
                whole = whole[parameter.numel() :]
    return truth


def engine_of(mode: str, stage: int, tensor_ranks: int) -> Any:
    specs = [
        {"patterns": [r".*\bup\.weight$"], "partition_type": "column"},
        {"patterns": [r".*\bdown\.weight$"], "partition_type": "row"},
        {"patterns": [r".*\blm_head\.weight$"], "partition_type": "column", "gather_output": True},
    ]
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": True},
        "tensor_parallel": {
            "autotp_size": tensor_ranks,
            "partition_config": {"use_default_specs": False, "layer_specs": specs},
        },
    }
    torch.manual_seed(7 if mode == "save" else 1234)
    net = Net().bfloat16()
    engine, _, _, _ = deepspeed.initialize(
        model=net,
        model_parameters=net.parameters(),
        config=config,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
    )
    return engine


def main() -> None:
    if sys.argv[1] == "merge":
        for folder, target in zip(sys.argv[2::2], sys.argv[3::2]):
            merge(folder, target)
        return
    mode, folder, stage, tensor_ranks = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    os.environ.setdefault("LOCAL_RANK", os.environ["RANK"])
    deepspeed.init_distributed("gloo")
    engine = engine_of(mode, stage, tensor_ranks)
    if mode == "load" and engine.load_checkpoint(folder)[0] is None:
        raise SystemExit(f"DeepSpeed found no checkpoint in {folder}")
    generator = torch.Generator().manual_seed(100 + torch.distributed.get_rank() // tensor_ranks)
    for _ in range(3 if mode == "save" else 0):
        tokens = torch.randint(0, VOCABULARY, (4, 3), generator=generator)
        loss = torch.nn.functional.cross_entropy(
            engine(tokens).float().flatten(0, 1), tokens.flatten()
        )
        engine.backward(loss)
        engine.step()
    if mode == "save":
        engine.save_checkpoint(folder)
    if stage == 1:
        truth = pathlib.Path(f"{folder}.{mode}")
        truth.mkdir(exist_ok=True)
        torch.save(truth_of(engine), truth / f"{torch.distributed.get_rank()}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
