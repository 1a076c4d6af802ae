"""The trainer of test_torch_compiled.py: a script that knows nothing of Cairn, and compiles its
model in one of the ways there are.

    compiled_trainer.py HOW STEPS [--attach]

HOW: wrapped (torch.compile of the model, which is evaluated first), inplace (model.compile),
function (of a function that calls the model), graph (the same without graph breaks), parts (two
modules without a root, whose blocks are compiled without graph breaks, as stages of a pipeline
are), pair (two models, each compiled without graph breaks, with an optimizer each), step (the
optimizer's step). Prints `step N LOSS` (the loss as a hexadecimal float) for each update, and at
the end `state SHA256`.
"""
import hashlib
import os
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

import cairn
import forking

forking.become_a_rank()
PAUSE_S = float(os.environ.get("TRAINER_PAUSE_S", "0"))
COMPILED = {"backend": "eager"}  # what Dynamo makes of the code is what matters here


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(24, 24)

    def forward(self, x):
        return x + F.gelu(self.inner(x))


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls += 1
        for block in self.blocks:
            x = block(x)
        return x


class Whole(nn.Module):
    def __init__(self, parts):
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x):
        return self.parts[1](self.parts[0](x))


def main():
    how, steps = sys.argv[1], int(sys.argv[2])
    torch.manual_seed(7)
    torch.set_num_threads(1)
    parts = [Part(), Part()]
    whole = Whole(parts)
    x, wanted = torch.randn(8, 24), torch.randn(8, 24)

    def forward(x):
        return parts[1](parts[0](x))

    if how in ("wrapped", "inplace", "function", "graph", "step"):
        forward = whole
    if how == "wrapped":
        forward = torch.compile(whole, **COMPILED)
    elif how == "inplace":
        whole.compile(**COMPILED)
    elif how in ("function", "graph"):
        forward = torch.compile(lambda x: whole(x), fullgraph=how == "graph", **COMPILED)
    elif how == "parts":
        for part in parts:
            for block in part.blocks:
                block.compile(fullgraph=True, **COMPILED)
    elif how == "pair":
        first, second = [torch.compile(part, fullgraph=True, **COMPILED) for part in parts]

        def forward(x):
            return second(first(x))

    held = [parts[0].parameters(), parts[1].parameters()] if how == "pair" else [whole.parameters()]
    optimizers = [torch.optim.AdamW(each, lr=1e-2) for each in held]
    take = [
        torch.compile(each.step, **COMPILED) if how == "step" else each.step for each in optimizers
    ]
    if "--attach" in sys.argv:
        cairn.attach(whole, optimizers)
    if how == "wrapped":
        with torch.no_grad():
            forward.eval()(x), parts[1](x)
        forward.train()
    for step in range(steps):
        if str(step) == os.environ.get("TRAINER_HOLD_AT"):
            time.sleep(3600)  # until the test kills it
        loss = F.mse_loss(forward(x), wanted)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        time.sleep(PAUSE_S)
        for update in take:
            update()
        print(f"step {step} {loss.item().hex()}", flush=True)
    tensors = [*whole.state_dict().values()]
    tensors += [
        value
        for optimizer in optimizers
        for each in optimizer.state.values()
        for value in each.values()
    ]
    torch.export.export(whole, (x,))  # in which the model's hooks see stand-ins
    print(
        "state",
        hashlib.sha256(b"".join(each.numpy().tobytes() for each in tensors)).hexdigest(),
        flush=True,
    )


main()
