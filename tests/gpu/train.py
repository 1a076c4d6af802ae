"""A GPT in bfloat16 on one GPU, for tests/gpu/run.py: alike in every run with the same arguments.

    train.py --steps N [--size tiny|1b] [--save none|torch|dcp] [--folder DIR] [--attach]

Prints `resumed N` where --attach goes on after step N (0: nothing was resumed), `step N LOSS MS`
after each update (MS since the one before), `bytes N` of parameters and moments, and at the end
`state SHA256` of them.

--save writes each step's state into DIR, as scripts without Cairn do: `torch` by torch.save, `dcp`
by async_save of torch.distributed.checkpoint, staged in pinned memory. --attach calls cairn.attach,
so that a resumed loop goes on at its step.
"""

import argparse
import hashlib
import os
import shutil
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS repeats itself to the bit

import torch  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as functional  # noqa: E402

# layers, width, heads, vocabulary, tokens of a sequence, sequences of a step
SIZES = {"tiny": (4, 512, 8, 4096, 256, 8), "1b": (20, 2048, 16, 50304, 1024, 32)}


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        q, k, v = (
            each.view(batch, tokens, self.heads, -1).transpose(1, 2)
            for each in self.qkv(self.before_attention(x)).chunk(3, dim=-1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(functional.gelu(self.up(self.before_mlp(x))))


class Gpt(nn.Module):
    def __init__(self, layers, width, heads, vocabulary, tokens):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids):
        x = self.embedding(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
        return self.norm(x)


class Saver:
    """Saves as scripts do that have no Cairn; keeps the newest two."""

    def __init__(self, how, folder):
        self.how, self.folder, self.pending = how, folder, None
        if how == "dcp":
            import torch.distributed as dist
            from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", RANK="0")
            dist.init_process_group("gloo", rank=0, world_size=1)
            self.stager = DefaultStager(StagingOptions(True, False, True, True))
            # In PyTorch 2.11 it closes this after one save, and fails at the next one. Kept open,
            # it uses its pinned memory again.
            self.close_staging = self.stager._state_dict_stager.close
            self.stager._state_dict_stager.close = lambda: None

    def save(self, step, model, optimizer):
        if self.how == "none":
            return
        path = os.path.join(self.folder, str(step))
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        if self.how == "torch":
            torch.save(state, path)
        else:
            import torch.distributed.checkpoint as dcp

            if self.pending is not None:
                self.pending.upload_completion.result()
            self.pending = dcp.async_save(state, checkpoint_id=path, async_stager=self.stager)
        old = os.path.join(self.folder, str(step - 2))
        if os.path.isdir(old):
            shutil.rmtree(old)
        elif os.path.exists(old):
            os.remove(old)

    def staged(self):
        """Before the update: what it would change has been copied."""
        if self.how == "dcp" and self.pending is not None:
            self.pending.staging_completion.result()

    def close(self):
        if self.how == "dcp":
            import torch.distributed as dist

            if self.pending is not None:
                self.pending.upload_completion.result()
            self.stager.close()
            self.close_staging()
            dist.destroy_process_group()


def state_tensors(model, optimizer):
    moments = optimizer.state
    for name, parameter in model.named_parameters():
        yield name, parameter.detach()
        for key in sorted(moments.get(parameter, {})):
            yield f"{name}.{key}", moments[parameter][key].detach()


def digest(model, optimizer):
    found = hashlib.sha256()
    for name, tensor in state_tensors(model, optimizer):
        found.update(name.encode())
        found.update(tensor.contiguous().view(-1).view(torch.uint8).cpu().numpy().tobytes())
    return found.hexdigest()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--save", choices=("none", "torch", "dcp"), default="none")
    parser.add_argument("--folder")
    parser.add_argument("--attach", action="store_true")
    arguments = parser.parse_args()
    layers, width, heads, vocabulary, tokens, sequences = SIZES[arguments.size]
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(arguments.size == "tiny")
    with torch.device("cuda"):
        model = Gpt(layers, width, heads, vocabulary, tokens).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    first = 0
    if arguments.attach:
        import cairn

        first = cairn.attach(model, optimizer).step
        print("resumed", first, flush=True)
    saver = Saver(arguments.save, arguments.folder)
    micro = min(sequences, 8)
    before = time.monotonic()
    for step in range(first + 1, arguments.steps + 1):
        generator = torch.Generator("cuda").manual_seed(step)
        total = 0.0
        for _ in range(sequences // micro):
            ids = torch.randint(vocabulary, (micro, tokens + 1), generator=generator, device="cuda")
            logits = model(ids[:, :-1]) @ model.embedding.weight.T
            loss = functional.cross_entropy(logits.view(-1, vocabulary), ids[:, 1:].reshape(-1))
            (loss * (micro / sequences)).backward()
            total += loss.detach() * (micro / sequences)
        saver.staged()
        optimizer.step()
        optimizer.zero_grad()
        saver.save(step, model, optimizer)
        loss = total.item()
        now = time.monotonic()
        print("step", step, f"{loss:.6f}", f"{(now - before) * 1000:.1f}", flush=True)
        before = now
    saver.close()
    size = sum(each.numel() * each.element_size() for _, each in state_tensors(model, optimizer))
    print("bytes", size, flush=True)
    print("state", digest(model, optimizer), flush=True)


main()
