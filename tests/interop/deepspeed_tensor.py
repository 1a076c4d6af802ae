"""A tiny DeepSpeed job of tensor parallelism (AutoTP) on the CPU: trains, and saves a checkpoint with DeepSpeed's own writer.

One process per rank, as deepspeed_trainer.py: deepspeed_tensor.py save DIRECTORY STAGE, or on one rank
deepspeed_tensor.py merge FOLDER TARGET, which has DeepSpeed's own converter put together what was saved. Layers are cut
along their first dimension (up, lm_head), along the second (down) or not at all (embed, norm), with and without biases.
"""

import os
import sys

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
import torch.distributed
import deepspeed
from deepspeed.checkpoint import ds_to_universal
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # or it is compiled first, for minutes

TENSOR_RANKS = 2
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
    sys.argv[1:] = ["--input_folder", folder, "--output_folder", target, "--num_extract_workers", "1", "--num_merge_workers", "1"]
    ds_to_universal.main(ds_to_universal.parse_arguments())


def main() -> None:
    if sys.argv[1] == "merge":
        merge(*sys.argv[2:])
        return
    folder, stage = sys.argv[2], int(sys.argv[3])
    torch.set_num_threads(1)
    os.environ.setdefault("LOCAL_RANK", os.environ["RANK"])
    deepspeed.init_distributed("gloo")
    specs = [{"patterns": [r".*\bup\.weight$"], "partition_type": "column"},
             {"patterns": [r".*\bdown\.weight$"], "partition_type": "row"},
             {"patterns": [r".*\blm_head\.weight$"], "partition_type": "column", "gather_output": True}]
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": True},
        "tensor_parallel": {"autotp_size": TENSOR_RANKS, "partition_config": {"use_default_specs": False, "layer_specs": specs}},
    }
    torch.manual_seed(7)
    net = Net().bfloat16()
    engine, _, _, _ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config,
                                           optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2))
    generator = torch.Generator().manual_seed(100 + torch.distributed.get_rank() // TENSOR_RANKS)
    for _ in range(3):
        tokens = torch.randint(0, VOCABULARY, (4, 3), generator=generator)
        loss = torch.nn.functional.cross_entropy(engine(tokens).float().flatten(0, 1), tokens.flatten())
        engine.backward(loss)
        engine.step()
    engine.save_checkpoint(folder)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
