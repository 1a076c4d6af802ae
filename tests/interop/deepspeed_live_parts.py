"""The trainer of test_deepspeed_live.py for what ranks have different parts of: DeepSpeed's experts
and its tensor parallelism (AutoTP), each step determined by its number, the replica and the state.

    deepspeed_live_parts.py JSON

JSON: "experts": over how many ranks those of a layer are spread (deepspeed_experts.py has the
model), or "tensor": over how many ranks layers are cut (deepspeed_tensor.py has it); "stage",
"dtype", "steps" as in deepspeed_live_trainer.py; "tell": from this step on, each step begins by
printing what the rank holds.

Prints `step N LOSS` after each step, and `holds STEP NAME SHA256` for each tensor of the module,
master and moment; layers that are cut are put together from all ranks.
"""

import json
import os
import sys
import time
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
import torch.distributed

import forking
import deepspeed_experts
import deepspeed_tensor
from deepspeed.utils import groups
from deepspeed_live_trainer import sha_of

import cairn

PAUSE_S = float(os.environ.get("TRAINER_PAUSE_S", "0"))
CUT = "ds_autotp_universal_checkpoint_meta"


def expert_tensors(engine: Any, job: dict[str, Any]) -> dict[str, torch.Tensor]:
    truth = deepspeed_experts.truth_of(engine, job["experts"])
    parts = ("module", "fp32", "exp_avg", "exp_avg_sq")
    return {f"{part}.{name}": each for part in parts for name, each in truth[part].items()}


def cut_tensors(engine: Any, ranks: int) -> dict[str, torch.Tensor]:
    truth = deepspeed_tensor.truth_of(engine)
    cuts = {name: vars(each).get(CUT) for name, each in engine.module.named_parameters()}
    for name, mine in truth.items():
        cut = cuts.get(name.partition(".")[2])
        if cut is None or cut["partition_dim"] is None or ranks == 1:
            continue
        parts = [torch.empty_like(mine) for _ in range(ranks)]
        among = groups.get_tensor_model_parallel_group()
        torch.distributed.all_gather(parts, mine.contiguous(), group=among)
        truth[name] = torch.cat(parts, cut["partition_dim"])
    return truth


def main() -> None:
    job = {"mode": "save", **json.loads(sys.argv[1])}
    torch.set_num_threads(1)
    deepspeed_experts.deepspeed.init_distributed("gloo")
    spread = job.get("experts")
    replica, samples = torch.distributed.get_rank() // job.get("tensor", 1), 9 if spread else 3
    engine = (
        deepspeed_experts.engine_of(job)
        if spread
        else deepspeed_tensor.engine_of("save", job["stage"], job["tensor"])
    )
    if "CAIRN_AGENT" in os.environ:
        cairn.attach(engine, engine.optimizer)
    while True:
        step = engine.global_steps
        if step >= job.get("tell", job["steps"]):
            tensors = expert_tensors(engine, job) if spread else cut_tensors(engine, job["tensor"])
            for name, each in tensors.items():
                print(f"holds {step} {name} {sha_of(each)[:16]}", flush=True)
        if step >= job["steps"]:
            break
        if str(step) == os.environ.get("TRAINER_HOLD_AT"):
            time.sleep(3600)  # until the test kills it
        generator = torch.Generator().manual_seed(1000 * step + replica)
        tokens = torch.randint(0, deepspeed_experts.VOCABULARY, (6, samples), generator=generator)
        loss = torch.nn.functional.cross_entropy(
            engine(tokens).float().flatten(0, 1), tokens.flatten()
        )
        engine.backward(loss)
        time.sleep(PAUSE_S)
        engine.step()
        print(f"step {step} {loss.item().hex()}", flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    forking.become_a_rank()
    main()
