"""The trainer of test_torch_odd.py: unchanged scripts, and optimizers that keep their state where
others do not.

    odd_trainer.py KIND STEPS

KIND: group (an optimizer that counts in its groups, as schedule-free AdamW does), beside (one that
keeps something beside its parameters' state), two (two models that take turns, each called first
after the other was updated), half (the same, but the second is never called as a module: its
layers' tensors are used), loose (a parameter of no module), compiled (a model compiled in place as
one graph), function (the model is called in a compiled function, which may be in pieces), late
(attached after a forward, with a scheduler and a parameter of no module), raising (attached, with a
scheduler whose state cannot be loaded).

Data are the same in every step, so that a resumed run continues the reference. Prints `step N LOSS`
(hexadecimal) for each update.
"""
import os
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

PAUSE_S = float(os.environ.get("TRAINER_PAUSE_S", "0"))


class Counting(torch.optim.Optimizer):
    """Averages, over a number of steps that it counts: in its groups, beside the parameters, and of
    each parameter."""

    def __init__(self, parameters, where):
        super().__init__(parameters, {"lr": 0.05, "steps": 0})
        self.where = where

    def count(self, group, state):
        if self.where == "group":
            return group["steps"]
        return self.state["all"]["steps"] if self.where == "beside" else state["steps"]

    @torch.no_grad()
    def step(self, closure=None):
        if self.where == "beside":
            self.state["all"] = {
                "steps": self.state["all"]["steps"] + 1 if "all" in self.state else 1
            }
        for group in self.param_groups:
            group["steps"] += self.where == "group"
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state.update(fast=parameter.clone(), steps=0)
                state["steps"] += self.where == "parameter"
                state["fast"].sub_(parameter.grad, alpha=group["lr"])
                parameter.lerp_(state["fast"], 1 / self.count(group, state))


class Raising(torch.optim.lr_scheduler.StepLR):
    def load_state_dict(self, state_dict):
        raise ValueError("it is of another year")


class Model(nn.Sequential):
    """torch.compile passes over modules whose code is all torch's."""

    def forward(self, x):
        return super().forward(x) * 1.5


def model_of():
    return Model(nn.Embedding(32, 24), nn.Linear(24, 24), nn.Dropout(0.1), nn.Linear(24, 32))


def main():
    kind, steps = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    torch.manual_seed(5)
    tokens = torch.randint(0, 32, (16,), generator=torch.Generator().manual_seed(3))
    wanted = (tokens * 7 + 3) % 32
    models = [model_of() for _ in range(2 if kind in ("two", "half") else 1)]
    loose = nn.Parameter(torch.ones(()))
    if kind in ("group", "beside"):
        optimizers = [Counting(models[0].parameters(), kind)]
    else:
        optimizers = [
            torch.optim.AdamW(
                [*models[0].parameters(), *([loose] if kind in ("loose", "late") else [])], lr=3e-3
            )
        ]
    if len(models) == 2:
        optimizers.append(Counting(models[1].parameters(), "parameter"))
    if kind == "compiled":
        models[0].compile(fullgraph=True, backend="eager")
    calls = (
        torch.compile(lambda model: model(tokens), backend="eager")
        if kind == "function"
        else lambda model: model(tokens)
    )
    scheduler = (Raising if kind == "raising" else torch.optim.lr_scheduler.StepLR)(
        optimizers[0], 2
    )
    if kind in ("late", "raising"):
        import cairn

        if kind == "late":
            models[0](tokens)  # to know its shapes, say
        cairn.attach(models[0], optimizers[0], scheduler=scheduler)
    for step in range(steps):
        total = 0.0
        for model, optimizer in zip(models, optimizers):
            optimizer.zero_grad()
            if kind == "half" and model is models[1]:
                inner = F.linear(
                    F.embedding(tokens, model[0].weight), model[1].weight, model[1].bias
                )
                out = F.linear(inner, model[3].weight, model[3].bias)
            else:
                out = calls(model)
            loss = F.cross_entropy(out * loose, wanted)
            loss.backward()
            time.sleep(PAUSE_S)
            optimizer.step()
            total += loss.item()
        if kind == "late":
            scheduler.step()
        print(f"step {step} {total.hex()}", flush=True)


main()
