"""The trainer of test_torch_fence.py: its capture is stopped half-way, under libcairn_gated.so,
while the optimizer updates.

    gated_trainer.py half     prints `state STEP SHA256` of what the half captured snapshot must
                              hold, `updated ...` of what the update had written to while it waited,
                              then `held`, and waits to be killed
    gated_trainer.py show     prints `state STEP SHA256` of what it resumed from

Six layers of 2 MiB with two moments each: 36 MiB, captured and updated layer by layer.
"""

import ctypes
import hashlib
import os
import sys
import threading
import time

import torch

import cairn

LAYERS = 6
LAYER_BYTES = 3 * 1024 * 512 * 4
ALL = 2**64 - 1


def tensors(model, optimizer):
    """Of each layer its parameter and moments."""
    return [
        [
            parameter.detach(),
            *(optimizer.state[parameter][key] for key in ("exp_avg", "exp_avg_sq")),
        ]
        for parameter in model.parameters()
    ]


def digest(model, optimizer):
    sha = hashlib.sha256()
    for layer in tensors(model, optimizer):
        for tensor in layer:
            sha.update(tensor.numpy().tobytes())
    return sha.hexdigest()


def forward_and_backward(model, step):
    model(torch.full((1, 512), 0.01 * step)).square().mean().backward()


def waits(gate, seconds):
    until = time.monotonic() + seconds
    while not gate.cairn_test_gate_waits() and time.monotonic() < until:
        time.sleep(0.01)
    return gate.cairn_test_gate_waits()


def half(model, optimizer, job):
    gate = ctypes.CDLL(os.environ["CAIRN_LIBRARY"])
    gate.cairn_test_gate.argtypes, gate.cairn_test_gate_waits.restype = [
        ctypes.c_uint64
    ], ctypes.c_bool
    gate.cairn_test_gate.restype = None
    for step in range(40):
        if step >= 3:
            before = [[tensor.clone() for tensor in layer] for layer in tensors(model, optimizer)]
            wanted = f"state {job.step} {digest(model, optimizer)}"
            gate.cairn_test_gate(5 * LAYER_BYTES // 2)
        forward_and_backward(model, step)
        if step >= 3 and waits(gate, 5):
            break
        gate.cairn_test_gate(ALL)  # no snapshot was due
        optimizer.step()
        optimizer.zero_grad()
    print(wanted, flush=True)

    def changed():
        return [
            [not torch.equal(*pair) for pair in zip(*layers)]
            for layers in zip(before, tensors(model, optimizer))
        ]

    def look_and_open():
        until = time.monotonic() + 40
        while not all(changed()[1]) and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.3)  # time to go wrong in
        print(
            "updated",
            "".join(str(sum(layer)) for layer in changed()),
            "waits" if waits(gate, 0) else "",
            flush=True,
        )
        gate.cairn_test_gate(ALL)

    looking = threading.Thread(target=look_and_open)
    looking.start()
    optimizer.step()
    looking.join()
    print("updated", "".join(str(sum(layer)) for layer in changed()), "in the end", flush=True)
    gate.cairn_test_gate(0)  # nothing of a later snapshot is captured
    model(torch.ones(1, 512))
    print("held", flush=True)
    time.sleep(60)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        *(
            torch.nn.Linear(512 if i % 2 == 0 else 1024, 1024 if i % 2 == 0 else 512, bias=False)
            for i in range(LAYERS)
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    job = cairn.attach(model, optimizer)
    if sys.argv[1] == "show":
        print(f"state {job.step} {digest(model, optimizer)}")
    else:
        half(model, optimizer, job)


main()
