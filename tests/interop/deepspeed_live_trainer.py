"""The trainer of test_deepspeed_live.py: a small model under DeepSpeed, each step determined by its
number, the rank and the state.

    deepspeed_live_trainer.py JSON

JSON: what deepspeed_trainer.py takes ("stage", "dtype", "options", "config"), and "steps": updates
and skipped steps at the end; "micro": micro-batches of an update; "attach": false for a script that
knows nothing of Cairn; "tell": from this step on, each step begins by printing the whole state;
"save": DIR for a checkpoint by DeepSpeed beside it; "load": DIR of a universal checkpoint, where
training begins; "inf": the step whose loss is infinite; "groups": 1 for one group of parameters;
"running": false for a model without a buffer of floats, whose type depends on the stage;
"samples": so many are read through the engine's own loader, and each step prints `sample STEP
NUMBER`; "counting": an optimizer that keeps its count of steps as a number, as DeepSpeed's own do.

Prints `step N LOSS` (the loss as a hexadecimal float) after each step of the engine that is an
update or a skipped one, and `whole STEP PART SHA256` for each part of the state that is put
together from all ranks: the modules' parameters, their buffers, masters and moments, counters,
loss scale and learning rates.
"""

import hashlib
import json
import os
import sys
import time
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
import torch.distributed

import forking
import deepspeed_trainer

import cairn

SAMPLES: list[Any] = []  # an iterator over the engine's own loader, if it has one
PAUSE_S = float(os.environ.get("TRAINER_PAUSE_S", "0"))


class Counting(torch.optim.Optimizer):
    """Adam, whose count of steps is a number, as in DeepSpeedCPUAdam (which is compiled first)."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is None:
                    continue
                state = self.state[each]
                if not state:
                    state["step"] = 0
                    state["exp_avg"] = torch.zeros_like(each)
                    state["exp_avg_sq"] = torch.zeros_like(each)
                state["step"] += 1
                state["exp_avg"].lerp_(each.grad, 0.1)
                state["exp_avg_sq"].lerp_(each.grad * each.grad, 0.01)
                mean = state["exp_avg"] / (1 - 0.9 ** state["step"])
                square = state["exp_avg_sq"] / (1 - 0.99 ** state["step"])
                each.mul_(1 - group["lr"] * group["weight_decay"])
                each.sub_(group["lr"] * mean / (square.sqrt() + 1e-8))


class Still(deepspeed_trainer.Net):
    """Without the buffer of floats."""

    def __init__(self) -> None:
        super().__init__()
        del self.running


def sha_of(value: Any) -> str:
    sha = hashlib.sha256()
    for name, each in sorted(value.items()) if isinstance(value, dict) else [("", value)]:
        sha.update(name.encode())
        if isinstance(each, torch.Tensor):
            each = each.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        sha.update(each if isinstance(each, bytes) else repr(each).encode())
    return sha.hexdigest()


def say_whole(engine: Any) -> None:
    truth = deepspeed_trainer.truth_of(engine)
    trained = {name for name, _ in engine.module.named_parameters()}
    truth["buffers"] = {name: each for name, each in truth["module"].items() if name not in trained}
    truth["module"] = {name: each for name, each in truth["module"].items() if name in trained}
    truth["skipped"] = engine.skipped_steps
    truth["scheduler"] = engine.lr_scheduler.state_dict()
    scaler = getattr(engine.optimizer, "loss_scaler", None)
    truth["scaler"] = (
        {}
        if scaler is None
        else {name: each for name, each in vars(scaler).items() if isinstance(each, (int, float))}
    )
    for name, part in truth.items():
        print(f"whole {engine.global_steps} {name} {sha_of(part)}", flush=True)


def batch(step: int, micro: int) -> torch.Tensor:
    seed = 1000 * step + 100 * micro + torch.distributed.get_rank()
    if SAMPLES:
        seed = int(next(SAMPLES[0]))
        print(f"sample {step} {seed}", flush=True)
    return torch.randint(
        0, deepspeed_trainer.VOCABULARY, (6, 3), generator=torch.Generator().manual_seed(seed)
    )


def train_a_step(engine: Any, job: dict[str, Any]) -> float:
    step = engine.global_steps
    for micro in range(job.get("micro", 1)):
        tokens = batch(step, micro)
        loss = torch.nn.functional.cross_entropy(
            engine(tokens).float().flatten(0, 1), tokens.flatten()
        )
        engine.backward(loss * float("inf") if step == job.get("inf") else loss)
        if micro == job.get("micro", 1) - 1:
            time.sleep(PAUSE_S)
        engine.step()
    engine.module.seen.add_(1)
    return float(loss.item())


def main() -> None:
    job = {"mode": "save", **json.loads(sys.argv[1])}
    torch.set_num_threads(1)
    deepspeed_trainer.deepspeed.init_distributed("gloo")
    job["universal"] = "load" in job
    if job["dtype"] == "fp16":  # slowly, the CPU can
        deepspeed_trainer.deepspeed.accelerator.get_accelerator().is_fp16_supported = lambda: True
    if job.get("groups") == 1:
        deepspeed_trainer.groups_of = lambda model: [
            {"params": [each for each in model.parameters() if each.requires_grad]}
        ]
    if "samples" in job:
        job["data"] = list(range(job["samples"]))
    if job.get("running") is False:
        deepspeed_trainer.Net = Still  # type: ignore[misc]
    if job.get("counting"):
        torch.optim.AdamW = Counting  # type: ignore[misc,assignment]
    engine = deepspeed_trainer.engine_of(job)
    if job.get("attach", True) and "CAIRN_AGENT" in os.environ:
        cairn.attach(engine, engine.optimizer)
    if "samples" in job:
        loader = deepspeed_trainer.deepspeed.runtime.dataloader.RepeatingLoader(
            engine.training_dataloader
        )
        SAMPLES.append(iter(loader))
    if "load" in job:
        engine.load_checkpoint(job["load"])
    while True:
        step = engine.global_steps
        if step >= job.get("tell", job["steps"]):
            say_whole(engine)
            if "save" in job:
                engine.save_checkpoint(job["save"])
        if step >= job["steps"]:
            print(f"micro {engine.micro_steps}", flush=True)
            break
        if str(step) == os.environ.get("TRAINER_HOLD_AT"):
            time.sleep(3600)  # until the test kills it
        print(f"step {step} {train_a_step(engine, job).hex()}", flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    forking.become_a_rank()
    main()
