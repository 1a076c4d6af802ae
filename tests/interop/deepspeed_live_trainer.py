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
NUMBER`; "own_adam": DeepSpeed's own optimizer for the CPU.

Prints `step N LOSS` (the loss as a hexadecimal float) after each step of the engine that is an
update or a skipped one, and `whole STEP PART SHA256` for each part of the state that is put
together from all ranks: the modules' parameters, their buffers, masters and moments, counters,
loss scale and learning rates. Where state is offloaded in part: `aside NAME…`, the parameters
whose state is not.
"""

import hashlib
import json
import os
import sys
import time
import types
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
import torch.distributed

import forking
import deepspeed_trainer

import cairn

SAMPLES: list[Any] = []  # an iterator over the engine's own loader, if it has one
PAUSE_S = float(os.environ.get("TRAINER_PAUSE_S", "0"))


class Adam:
    """What DeepSpeed compiles for its own optimizer on the CPU, which takes minutes."""

    def create_adam(self, *_: Any) -> None:
        pass

    def destroy_adam(self, *_: Any) -> None:
        pass

    def adam_update(
        self,
        _: int,
        step: Any,
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        decay: float,
        _bias: bool,
        parameter: torch.Tensor,
        grad: torch.Tensor,
        mean: torch.Tensor,
        square: torch.Tensor,
    ) -> None:
        mean.lerp_(grad, 1 - beta1)
        square.lerp_(grad * grad, 1 - beta2)
        root = (square / (1 - beta2 ** int(step))).sqrt()
        parameter.mul_(1 - lr * decay)
        parameter.sub_(lr * mean / (1 - beta1 ** int(step)) / (root + eps))


def use_own_adam(job: dict[str, Any]) -> None:
    """DeepSpeed's own optimizer on the CPU, which counts its steps in a number. With "ratio", the
    accelerator has a name other than the CPU's: or nothing would stay there."""
    cpu_adam = deepspeed_trainer.deepspeed.ops.adam.cpu_adam
    cpu_adam.CPUAdamBuilder = lambda: types.SimpleNamespace(load=Adam)
    sys.modules["cpuinfo"] = types.SimpleNamespace(get_cpu_info=dict)  # type: ignore[assignment]
    job["optimizer"] = cpu_adam.DeepSpeedCPUAdam
    if "ratio" in job["options"]["offload_optimizer"]:
        deepspeed_trainer.deepspeed.accelerator.get_accelerator()._name = "cpu:0"


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
    zero = engine.optimizer
    aside = zero.backup_optimizer.state if hasattr(zero, "backup_optimizer") else {}
    zero.optimizer.state.update(aside)  # where DeepSpeed's accessors look
    truth = deepspeed_trainer.truth_of(engine)
    for flat in aside:
        del zero.optimizer.state[flat]
    if aside:
        pairs = zip(zero.fp32_partitioned_groups_flat, zero.fp16_groups)
        groups = [group for flat, group in pairs if flat in aside]
        print("aside", *(engine.param_names[each] for group in groups for each in group))
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
    if job.get("own_adam"):
        use_own_adam(job)
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
