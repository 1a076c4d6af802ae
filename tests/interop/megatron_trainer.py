"""Megatron-LM jobs on the CPU, made of megatron-core's own models, DistributedDataParallel and
optimizers: they save a checkpoint as Megatron-LM's `ckpt_format torch` does, or load one with
megatron-core's loaders and hold every element against what it must be.

    megatron_trainer.py FILE       FILE: JSON, a list of jobs that are run one after the other

A job is {"mode": "save"|"load", "dir": …, "tp": 1, "pp": 1, "vpp": 1, "ep": 1, "etp": null, "dp":
1} and what the model shall be (DEFAULTS). Its ranks are forked from this process, so torch and
megatron-core are imported once.

What a tensor holds is a function of its global name and of the place of each element in the
unsharded tensor (`logical`); which part of it a rank has is `shard_of`, written without looking at
the converter. After loading, all of it is compared exactly, padding of the vocabulary being 0.
"""

import argparse
import contextlib
import functools
import hashlib
import json
import os
import pathlib
import random
import sys
import tempfile
import traceback
from typing import Any

import numpy
import torch
import torch.distributed
import torch.multiprocessing


def without_a_gpu() -> None:
    """Lets megatron-core's optimizers, which name CUDA in a few places, run on the CPU."""
    typename, tensor = torch.Tensor.type, torch.tensor
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    torch.Tensor.cuda = lambda self, *where, **how: self  # type: ignore[assignment]
    torch.Tensor.type = lambda self, *to, **how: (  # type: ignore[assignment]
        typename(self, *to, **how) if to else typename(self).replace("torch.", "torch.cuda.")
    )
    # type: ignore[assignment]
    torch.tensor = lambda *values, device=None, **how: tensor(*values, device="cpu", **how)


without_a_gpu()

from megatron.core import parallel_state as mpu, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import Float16Module

DEFAULTS: dict[str, Any] = {
    "tp": 1,
    "pp": 1,
    "vpp": 1,
    "ep": 1,
    "etp": None,
    "dp": 1,
    "layers": 4,
    "heads": 4,
    "groups": 2,
    "hidden": 16,
    "ffn": 24,
    "glu": True,
    "experts": 0,
    "bias": False,
    "tied": False,
    "vocab": 37,
    "vocab_multiple": 4,
    "dtype": "bf16",
    "distributed_optimizer": True,
    "bucket_size": None,
    "rms": True,
    "positions": "rope",
    "qk_norm": False,
    "first_layers": None,
    "last_layers": None,
    "no_optim": False,
    "own_masters": False,  # parameters were their own masters before they were cast
}
STEP = 3


def arguments(job: dict[str, Any]) -> argparse.Namespace:
    """What Megatron-LM keeps of its command line, as far as anybody reads it."""
    return argparse.Namespace(
        tensor_model_parallel_size=job["tp"],
        pipeline_model_parallel_size=job["pp"],
        expert_model_parallel_size=job["ep"],
        expert_tensor_parallel_size=job["etp"] or job["tp"],
        context_parallel_size=1,
        virtual_pipeline_model_parallel_size=job["vpp"] if job["vpp"] > 1 else None,
        num_layers=job["layers"],
        hidden_size=job["hidden"],
        num_attention_heads=job["heads"],
        num_query_groups=job["groups"],
        group_query_attention=job["groups"] < job["heads"],
        ffn_hidden_size=job["ffn"],
        swiglu=job["glu"],
        num_experts=job["experts"] or None,
        vocab_size=job["vocab"],
        padded_vocab_size=padded(job),
        make_vocab_size_divisible_by=job["vocab_multiple"],
        add_position_embedding=job["positions"] != "rope",
        untie_embeddings_and_output_weights=not job["tied"],
        use_distributed_optimizer=job["distributed_optimizer"],
        overlap_grad_reduce=job["bucket_size"] is not None,
        ddp_bucket_size=job["bucket_size"],
        data_parallel_size=job["dp"],
        world_size=world_of(job),
        rank=torch.distributed.get_rank(),
        params_dtype=getattr(torch, {"bf16": "bfloat16", "fp32": "float32"}[job["dtype"]]),
        decoder_first_pipeline_num_layers=job["first_layers"],
        decoder_last_pipeline_num_layers=job["last_layers"],
        accumulate_allreduce_grads_in_fp32=True,
        ckpt_format="torch",
    )


def padded(job: dict[str, Any]) -> int:
    multiple = job["vocab_multiple"] * job["tp"]
    return -(-job["vocab"] // multiple) * multiple


def world_of(job: dict[str, Any]) -> int:
    return job["tp"] * job["pp"] * job["dp"]


# ---- what tensors must be ----


@functools.lru_cache(maxsize=None)
def logical(kind: str, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """All elements of a whole tensor; each is its own, and is not changed by being stored as
    bfloat16 only for kind "param"."""
    seed = int.from_bytes(hashlib.sha256(f"{kind} {name}".encode()).digest()[:4], "little")
    count = int(numpy.prod(shape))
    marks = (torch.arange(count, dtype=torch.int64) * 7 + seed) % 16000057
    values = (marks.to(torch.float32) + 1) / 65536
    return (values.bfloat16().float() if kind == "param" else values).reshape(shape)


class Rank:
    """Where this process stands."""

    def __init__(self) -> None:
        self.tp = (mpu.get_tensor_model_parallel_rank(), mpu.get_tensor_model_parallel_world_size())
        self.etp = (
            mpu.get_expert_tensor_parallel_rank(),
            mpu.get_expert_tensor_parallel_world_size(),
        )
        self.ep = (mpu.get_expert_model_parallel_rank(), mpu.get_expert_model_parallel_world_size())
        self.pp = (
            mpu.get_pipeline_model_parallel_rank(),
            mpu.get_pipeline_model_parallel_world_size(),
        )


def global_name(job: dict[str, Any], rank: Rank, chunk: int, name: str) -> str:
    """A name in a chunk's state dict with layer and expert numbered over the whole model."""
    words = name.split(".")
    if words[:2] == ["decoder", "layers"]:
        words[2] = str(int(words[2]) + first_layer(job, rank.pp[0], chunk))
    if "local_experts" in words:
        at = words.index("local_experts") + 1
        words[at] = str(int(words[at]) + rank.ep[0] * (job["experts"] // rank.ep[1]))
    if words == ["output_layer", "weight"] and job["tied"]:
        words = ["embedding", "word_embeddings", "weight"]
    return ".".join(words)


def first_layer(job: dict[str, Any], stage: int, chunk: int) -> int:
    first, last, pp, vpp = job["first_layers"], job["last_layers"], job["pp"], job["vpp"]
    if first or last:  # without interleaving
        counts = [first] if first else []
        inner = pp - bool(first) - bool(last)
        counts += [(job["layers"] - (first or 0) - (last or 0)) // max(inner, 1)] * inner + (
            [last] if last else []
        )
        return sum(counts[:stage])
    return chunk * (job["layers"] // vpp) + stage * (job["layers"] // pp // vpp)


def shard_of(
    job: dict[str, Any], rank: Rank, name: str, kind: str, shape: tuple[int, ...]
) -> torch.Tensor:
    """What a rank has of a tensor whose own part has this shape."""
    index, count = rank.etp if "local_experts" in name else rank.tp
    if name.endswith(("word_embeddings.weight", "output_layer.weight")):
        whole = torch.zeros(shape[0] * count, shape[1])
        whole[: job["vocab"]] = logical(kind, name, (job["vocab"], shape[1]))
        return whole.chunk(count)[index]
    if ".linear_fc1." in name and job["glu"]:
        gate, up = logical(kind, name, (shape[0] * count, *shape[1:])).chunk(2)
        return torch.cat([gate.chunk(count)[index], up.chunk(count)[index]])
    if ".linear_fc1." in name or ".linear_qkv." in name:
        return logical(kind, name, (shape[0] * count, *shape[1:])).chunk(count)[index]
    if name.endswith((".linear_proj.weight", ".linear_fc2.weight")):
        return (
            logical(kind, name, (shape[0], shape[1] * count))
            .chunk(count, dim=1)[index]
            .contiguous()
        )
    return logical(kind, name, shape)


# ---- the job ----


def build(job: dict[str, Any]) -> tuple[list[Any], Any]:
    """Chunks of the model, as Megatron-LM wraps them, and the optimizer."""
    dtype = torch.bfloat16 if job["dtype"] == "bf16" else torch.float32
    config = TransformerConfig(
        num_layers=job["layers"],
        hidden_size=job["hidden"],
        num_attention_heads=job["heads"],
        num_query_groups=job["groups"],
        ffn_hidden_size=job["ffn"],
        gated_linear_unit=job["glu"],
        activation_func=torch.nn.functional.silu,
        add_bias_linear=job["bias"],
        normalization="RMSNorm" if job["rms"] else "LayerNorm",
        num_moe_experts=job["experts"] or None,
        moe_ffn_hidden_size=job["ffn"] if job["experts"] else None,
        tensor_model_parallel_size=job["tp"],
        pipeline_model_parallel_size=job["pp"],
        expert_model_parallel_size=job["ep"],
        expert_tensor_parallel_size=job["etp"] or job["tp"],
        virtual_pipeline_model_parallel_size=job["vpp"] if job["vpp"] > 1 else None,
        num_layers_in_first_pipeline_stage=job["first_layers"],
        num_layers_in_last_pipeline_stage=job["last_layers"],
        qk_layernorm=job["qk_norm"],
        use_cpu_initialization=True,
        perform_initialization=False,
        pipeline_dtype=dtype,
        params_dtype=dtype,
        bf16=job["dtype"] == "bf16",
        gradient_accumulation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
    )
    spec = get_gpt_layer_local_spec(
        job["experts"] or None,
        moe_grouped_gemm=False,
        qk_layernorm=job["qk_norm"],
        normalization="RMSNorm" if job["rms"] else None,
    )
    chunks = []
    for chunk in range(job["vpp"]):
        stage = {} if job["vpp"] == 1 else {"vp_stage": chunk}
        model = GPTModel(
            config,
            spec,
            padded(job),
            32,
            pre_process=mpu.is_pipeline_first_stage(ignore_virtual=False, **stage),
            post_process=mpu.is_pipeline_last_stage(ignore_virtual=False, **stage),
            share_embeddings_and_output_weights=job["tied"],
            position_embedding_type="rope" if job["positions"] == "rope" else "learned_absolute",
            **stage,
        )
        for parameter in model.parameters():
            tensor_parallel.set_defaults_if_not_set_tensor_model_parallel_attributes(parameter)
        wrapped = Float16Module(config, model) if job["dtype"] == "bf16" else model
        ddp = DistributedDataParallelConfig(
            grad_reduce_in_fp32=True,
            overlap_grad_reduce=job["bucket_size"] is not None,
            use_distributed_optimizer=job["distributed_optimizer"],
            bucket_size=job["bucket_size"],
        )
        chunks.append(DistributedDataParallel(config, ddp, wrapped, disable_bucketing=chunk > 0))
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=1e-3,
            weight_decay=0.1,
            bf16=job["dtype"] == "bf16",
            params_dtype=dtype,
            clip_grad=0.0,
            use_distributed_optimizer=job["distributed_optimizer"],
        ),
        chunks,
    )
    return chunks, optimizer


def bare(chunk: Any) -> Any:
    module = chunk.module
    return module.module if isinstance(module, Float16Module) else module


def each_parameter(job: dict[str, Any], rank: Rank, chunks: list[Any]) -> list[tuple[str, Any]]:
    return [
        (global_name(job, rank, number, name), parameter)
        for number, chunk in enumerate(chunks)
        for name, parameter in bare(chunk).named_parameters()
    ]


def states_of(optimizer: Any, parameter: Any) -> dict[str, torch.Tensor] | None:
    """The rank's own part of a parameter's master weights and moments, flat, to be changed in
    place, and where it begins; None: another's."""
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        if hasattr(part, "model_param_group_index_map"):
            if parameter in part.model_param_group_index_map:
                places = part._get_model_param_range_map(parameter)["param"]
                group, order = part.model_param_group_index_map[parameter]
                main = part.optimizer.param_groups[group]["params"][order]
                return {"fp32": main, **part.optimizer.state[main], "begin": places.start}
            continue
        main = getattr(parameter, "main_param", None)
        main = parameter if main is None else main
        if main in part.optimizer.state:
            return {"fp32": main, **part.optimizer.state[main], "begin": 0}
    return None


def step(chunks: list[Any], optimizer: Any) -> None:
    """The optimizer's own steps, so that it has all the state that it has in training; but for the
    norm of gradients, which needs CUDA."""
    for _ in range(STEP):
        for chunk in chunks:
            for parameter in chunk.parameters():
                parameter.main_grad.fill_(0.25)
        optimizer.prepare_grads()
        optimizer.step_with_ready_grads()


def mark(job: dict[str, Any], rank: Rank, chunks: list[Any], optimizer: Any, poison: bool) -> None:
    """Every element becomes what it must be; `poison`: rows that pad the vocabulary become NaN."""
    with torch.no_grad():
        for name, parameter in each_parameter(job, rank, chunks):
            shape = tuple(parameter.shape)
            parameter.copy_(expected(job, rank, name, "param", shape, poison))
            states = states_of(optimizer, parameter)
            for kind in ("fp32", "exp_avg", "exp_avg_sq") if states else ():
                if states[kind] is not parameter:
                    flat = expected(job, rank, name, kind, shape, poison).flatten()
                    states[kind].copy_(
                        flat[states["begin"] :][: states[kind].numel()].reshape(states[kind].shape)
                    )


def expected(
    job: dict[str, Any],
    rank: Rank,
    name: str,
    kind: str,
    shape: tuple[int, ...],
    poison: bool = False,
) -> torch.Tensor:
    if kind == "fp32" and (job["dtype"] == "fp32" or job["own_masters"]):
        kind = "param"  # one and the same
    part = shard_of(job, rank, name, kind, shape).clone()
    if poison and name.endswith(("word_embeddings.weight", "output_layer.weight")):
        begin = job["vocab"] - rank.tp[0] * shape[0]
        part[max(begin, 0) :] = float("nan")
    return part


def check(job: dict[str, Any], rank: Rank, chunks: list[Any], optimizer: Any) -> int:
    """Compares all that is held; gives how many tensors that were."""
    compared = 0
    for name, parameter in each_parameter(job, rank, chunks):
        shape = tuple(parameter.shape)
        right = expected(job, rank, name, "param", shape).to(parameter.dtype)
        assert torch.equal(parameter.detach(), right), f"{name} differs"
        compared += 1
        states = None if job["no_optim"] else states_of(optimizer, parameter)
        for kind in ("fp32", "exp_avg", "exp_avg_sq") if states else ():
            if states[kind] is parameter:
                continue
            flat = expected(job, rank, name, kind, shape).flatten()
            part = flat[states["begin"] :][: states[kind].numel()]
            assert torch.equal(states[kind].detach().flatten(), part), f"{kind} of {name} differs"
            compared += 1
    return compared


def folder_of(job: dict[str, Any], rank: Rank) -> pathlib.Path:
    name = f"mp_rank_{rank.tp[0]:02d}"
    if rank.pp[1] > 1:
        name += f"_{rank.pp[0]:03d}"
    if rank.ep[1] > 1:
        name += f"_{rank.ep[0]:03d}"
    return pathlib.Path(job["dir"]) / f"iter_{STEP:07d}" / name


def save(job: dict[str, Any], rank: Rank, chunks: list[Any], optimizer: Any) -> None:
    folder = folder_of(job, rank)
    folder.mkdir(parents=True, exist_ok=True)
    step(chunks, optimizer)
    mark(job, rank, chunks, optimizer, poison=True)
    if job["distributed_optimizer"] and not job["no_optim"]:
        optimizer.save_parameter_state(str(folder / "distrib_optim.pt"))
        torch.distributed.barrier()
        if torch.distributed.get_rank() == 0:
            for path in folder.parent.glob("*/distrib_optim.pt"):
                poison_gaps(path)
    if mpu.get_data_parallel_rank() and mpu.get_expert_data_parallel_rank():
        return
    random.seed(torch.distributed.get_rank())
    numpy.random.seed(torch.distributed.get_rank())
    torch.manual_seed(torch.distributed.get_rank())
    state = {"args": arguments(job), "checkpoint_version": 3.0, "iteration": STEP}
    for number, chunk in enumerate(chunks):
        state[
            "model" if len(chunks) == 1 else f"model{number}"
        ] = chunk.state_dict_for_save_checkpoint()
    if not job["no_optim"]:
        state["optimizer"] = optimizer.state_dict()
    state["opt_param_scheduler"] = {
        "max_lr": 1e-3,
        "num_steps": STEP * 8,
        "lr_decay_style": "cosine",
        "start_wd": 0.1,
    }
    state["rng_state"] = [
        {
            "random_rng_state": random.getstate(),
            "np_rng_state": numpy.random.get_state(),
            "torch_rng_state": torch.get_rng_state(),
            "cuda_rng_state": torch.get_rng_state()[:16].clone(),
            "rng_tracker_states": {
                "model-parallel-rng": torch.full(
                    (16,), torch.distributed.get_rank(), dtype=torch.uint8
                )
            },
        }
    ]
    state["num_floating_point_operations_so_far"] = 1 << 70
    torch.save(state, folder / "model_optim_rng.pt")
    if torch.distributed.get_rank() == 0:
        (pathlib.Path(job["dir"]) / "latest_checkpointed_iteration.txt").write_text(str(STEP))


def poison_gaps(path: pathlib.Path) -> None:
    """What no parameter covers in a flat buffer becomes NaN: it alone is 0, since no mark is."""
    states = torch.load(path, weights_only=False)
    for state in states if isinstance(states, list) else [states]:
        for dtypes in (value for value in (state or {}).values() if isinstance(value, dict)):
            for tensors in dtypes.values():
                for flat in (tensor for tensor in tensors.values() if torch.is_tensor(tensor)):
                    flat[flat == 0] = float("nan")
    torch.save(states, path)


def load(job: dict[str, Any], rank: Rank, chunks: list[Any], optimizer: Any) -> None:
    folder = folder_of(job, rank)
    state = torch.load(folder / "model_optim_rng.pt", map_location="cpu", weights_only=False)
    if "args" in state:
        ours, theirs = vars(arguments(job)), vars(state["args"])
        for key in (
            "tensor_model_parallel_size",
            "pipeline_model_parallel_size",
            "virtual_pipeline_model_parallel_size",
            "num_layers",
            "hidden_size",
            "num_attention_heads",
            "padded_vocab_size",
            "expert_model_parallel_size",
            "expert_tensor_parallel_size",
            "add_position_embedding",
            "vocab_size",
            "decoder_first_pipeline_num_layers",
            "decoder_last_pipeline_num_layers",
        ):
            assert (
                ours[key] == theirs[key]
            ), f"args.{key} is {theirs[key]} and should be {ours[key]}"
        assert state["iteration"] == STEP and state["checkpoint_version"] == 3.0
        assert (
            state["opt_param_scheduler"]["num_steps"] == STEP * 8
            and state["num_floating_point_operations_so_far"] == 1 << 70
        )
        assert (
            len(state["rng_state"]) == 1 and state["rng_state"][0]["torch_rng_state"].numel() > 100
        )
    for number, chunk in enumerate(chunks):
        chunk.load_state_dict(state["model" if len(chunks) == 1 else f"model{number}"], strict=True)
    if job["no_optim"]:
        return
    optimizer.load_state_dict(state["optimizer"])
    every = [
        states
        for part in getattr(optimizer, "chained_optimizers", [optimizer])
        for states in part.optimizer.state.values()
    ]
    steps = {float(states["step"]) for states in every}
    if job["distributed_optimizer"]:
        # torch's AdamW has a step for each parameter, which this loader would look for in the file
        for states in every:
            del states["step"]
        optimizer.load_parameter_state(str(folder / "distrib_optim.pt"))
    assert steps <= {float(STEP)}, f"the optimizer is at steps {steps}"


def run_rank(number: int, job: dict[str, Any], store: str) -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(number), WORLD_SIZE=str(world_of(job)), LOCAL_RANK=str(number))
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=number, world_size=world_of(job)
    )
    mpu.initialize_model_parallel(
        job["tp"],
        job["pp"],
        job["vpp"] if job["vpp"] > 1 else None,
        expert_model_parallel_size=job["ep"],
        expert_tensor_parallel_size=job["etp"] or job["tp"],
        create_gloo_process_groups=True,
    )
    rank = Rank()
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        chunks, optimizer = build(job)
    if job["mode"] == "save":
        save(job, rank, chunks, optimizer)
    else:
        step(chunks, optimizer)
        with torch.no_grad():
            for parameter in (p for chunk in chunks for p in chunk.parameters()):
                parameter.fill_(-77.0)
            load(job, rank, chunks, optimizer)
        compared = check(job, rank, chunks, optimizer)
        if compared == 0:
            raise SystemExit("nothing was compared")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def run_job(job: dict[str, Any], store: str) -> bool:
    children = []
    for number in range(world_of(job)):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                run_rank(number, job, store)
                code = 0
            except BaseException:
                sys.stderr.write(f"rank {number} of {json.dumps(job)}:\n{traceback.format_exc()}\n")
                sys.stderr.flush()
            os._exit(code)
        children.append(child)
    return not any([os.waitpid(child, 0)[1] for child in children])


def main() -> None:
    for job in json.loads(pathlib.Path(sys.argv[1]).read_text()):
        with tempfile.TemporaryDirectory() as folder:
            done = run_job({**DEFAULTS, **job}, f"{folder}/rendezvous")
        if not done:
            raise SystemExit(f"the job failed: {json.dumps(job)}")


if __name__ == "__main__":
    main()
