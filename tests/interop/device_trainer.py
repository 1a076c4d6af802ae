"""The trainer of test_torch_device.py: tensors in the memory of two fake CUDA devices, written by
kernels that run later.

    device_trainer.py STEPS [--plain] [--record STEP] [--wrong-stream]

PyTorch for the CPU has no device tensors. Here a parameter is a CPU tensor over the fake driver's
own view of device memory, and these functions answer as for a tensor on a device:
`_tensors.ordinal` and `_tensors.addresses`, which return where a tensor lies, and the few of
torch.cuda that the binding calls. All else is the product: hooks, job, library, agent, and copies
by the driver's calls. The optimizer issues its writes to a side stream per device, where they wait
for some milliseconds: a reader that does not wait for that stream sees the values before the
update.

Prints `step N LOSS` for each update and at the end `state SHA256` and `misuses N`, what the fake
driver saw of wrong use.
"""

import argparse
import ctypes
import hashlib
import os
import pathlib
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
KERNEL_US = 8000
LONG_US = 150000  # longer than a busy machine takes to begin a copy

# By path, before anything asks for libcuda.so.1, which is the name that it has.
driver = ctypes.CDLL(str(ROOT / "build" / "plain" / "libfakecuda.so"))
driver.fakecuda_view.restype = ctypes.c_void_p
driver.fakecuda_view.argtypes = [ctypes.c_uint64]
driver.fakecuda_alloc.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t]
driver.fakecuda_write.argtypes = [
    ctypes.c_void_p,
    ctypes.c_uint64,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_uint64,
]
driver.cuStreamSynchronize.argtypes = [ctypes.c_void_p]
driver.cuCtxPushCurrent_v2.argtypes = [ctypes.c_void_p]

import torch  # noqa: E402
import torch.nn as nn  # noqa: E402

from cairn import _tensors, _torch  # noqa: E402


class State(ctypes.Structure):
    """struct fakecuda_state."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            "contexts",
            "streams",
            "events",
            "registered",
            "host_allocated",
            "device_allocated",
            "register_calls",
            "pageable_copies",
            "async_copies",
            "copied_bytes",
            "context_creations",
            "batches",
            "misuses",
            "failed_calls",
        )
    ]


def check(code):
    if code:
        raise RuntimeError(f"the fake driver says {code}")


class Device:
    """One device of the fake driver, with a stream on which this trainer computes."""

    def __init__(self, number):
        context, self.stream = ctypes.c_void_p(), ctypes.c_void_p()
        self.number, self.blocks = number, []  # (view, device address, bytes)
        self.kernel_us = KERNEL_US
        check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), number))
        check(driver.cuCtxPushCurrent_v2(context))
        check(driver.cuStreamCreateWithPriority(ctypes.byref(self.stream), 1, 0))

    def tensor(self, *shape):
        """A float tensor in its memory."""
        address, size = ctypes.c_uint64(), 4 * torch.Size(shape).numel()
        check(driver.fakecuda_alloc(self.number, ctypes.byref(address), size))
        view = driver.fakecuda_view(address.value)
        self.blocks.append((view, address.value, size))
        return torch.frombuffer(
            (ctypes.c_char * size).from_address(view), dtype=torch.float32
        ).view(shape)

    def write(self, tensor, value, delay_us):
        """A kernel: so long after it was issued the tensor has the value."""
        value = value.detach().contiguous()
        check(
            driver.fakecuda_write(
                self.stream, address_of(tensor), value.data_ptr(), value.nbytes, delay_us
            )
        )

    def finish(self):
        check(driver.cuStreamSynchronize(self.stream))


check(driver.cuInit(0))
DEVICES = [Device(0), Device(1)]


def block_of(tensor):
    """(device, view, device address) of what a tensor lies in; None on the host."""
    at = tensor.data_ptr()
    for device in DEVICES:
        for view, address, size in device.blocks:
            if view <= at < view + size:
                return device, view, address
    return None


def address_of(tensor):
    found = block_of(tensor)
    return tensor.data_ptr() if found is None else tensor.data_ptr() - found[1] + found[2]


class Stream:
    def __init__(self, address):
        self.cuda_stream = address or 0


class Cuda:
    """What the binding calls of torch.cuda."""

    def __init__(self, wrong_stream):
        self.wrong_stream = wrong_stream
        self.is_recording = False
        self.generators = [torch.zeros(16, dtype=torch.uint8) for _ in DEVICES]

    def stand_in(self):
        _tensors.ordinal = lambda tensor: block_of(tensor)[0].number if block_of(tensor) else -1
        _tensors.addresses = lambda tensors: [address_of(each) for each in tensors]
        torch.cuda.is_available = torch.cuda.is_initialized = lambda: True
        torch.cuda.device_count = lambda: len(DEVICES)
        torch.cuda.current_device = lambda: 0
        torch.cuda.current_stream = lambda device=0: Stream(
            None if self.wrong_stream else DEVICES[device].stream.value
        )
        torch.cuda.is_current_stream_capturing = lambda: self.is_recording
        torch.cuda.get_rng_state_all = lambda: [each.clone() for each in self.generators]
        torch.cuda.set_rng_state = lambda state, device=0: self.generators[device].copy_(state)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Parameter(DEVICES[0].tensor(32, 3000))
        self.second = nn.Parameter(DEVICES[1].tensor(3000, 32))
        self.scale = nn.Parameter(torch.ones(32))  # on the host
        self.small = nn.ParameterList(nn.Parameter(DEVICES[i % 2].tensor(32)) for i in range(40))
        for parameter in self.parameters():
            found = block_of(parameter)
            if found:
                found[0].write(
                    parameter,
                    torch.randn(parameter.shape) / 50,
                    LONG_US if parameter.dim() > 1 else 0,
                )

    def forward(self, x):
        for device in DEVICES:
            device.finish()  # on a device forward would be ordered after the update by the stream
        return ((x @ self.first).relu() @ self.second + sum(self.small)) * self.scale


class Momentum(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.01})
        for parameter in self.param_groups[0]["params"]:
            found = block_of(parameter)
            momentum = found[0].tensor(*parameter.shape) if found else torch.empty(parameter.shape)
            self.state[parameter]["momentum"] = momentum.zero_()

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            momentum, found = self.state[parameter]["momentum"], block_of(parameter)
            new = 0.9 * momentum + parameter.grad
            value = parameter - self.param_groups[0]["lr"] * new
            if found:
                delay_us = found[0].kernel_us if parameter.dim() > 1 else 0
                found[0].write(momentum, new, delay_us)
                found[0].write(parameter, value, delay_us)
            else:
                momentum.copy_(new)
                parameter.copy_(value)


def digest(model, optimizer, generators):
    sha = hashlib.sha256()
    for device in DEVICES:
        device.finish()
    for parameter in model.parameters():
        sha.update(parameter.detach().numpy().tobytes())
        sha.update(optimizer.state[parameter]["momentum"].numpy().tobytes())
    for each in generators:
        sha.update(each.numpy().tobytes())
    return sha.hexdigest()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("steps", type=int)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--record", type=int, default=-1)
    parser.add_argument("--wrong-stream", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cuda = Cuda(options.wrong_stream)
    for device in DEVICES if options.wrong_stream else ():
        device.kernel_us = LONG_US
    if not options.plain:
        cuda.stand_in()
    model = Model()
    optimizer = Momentum(model.parameters())
    first = 0
    if not options.plain:
        import cairn

        first = cairn.attach(model, optimizer).step
    for step in range(first, options.steps):
        if str(step) == os.environ.get("TRAINER_HOLD_AT"):
            time.sleep(3600)  # until the test kills it, however late that looks
        x = torch.randn(8, 32, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss = (model(x) - x.flip(1)).square().mean()
        loss.backward()
        for device, generator in enumerate(cuda.generators):
            generator += device + 1
        time.sleep(float(os.environ.get("TRAINER_PAUSE_S", "0")))
        cuda.is_recording = step == options.record
        optimizer.step()
        cuda.is_recording = False
        print(f"step {step} {loss.item().hex()}", flush=True)
    print(f"state {digest(model, optimizer, cuda.generators)}", flush=True)
    seen = State()
    driver.fakecuda_state(ctypes.byref(seen))
    print(
        f"misuses {seen.misuses} pageable {seen.pageable_copies} async {seen.async_copies}",
        flush=True,
    )


main()
