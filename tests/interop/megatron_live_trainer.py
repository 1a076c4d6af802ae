"""The trainer of test_megatron_live.py: a small GPT of Megatron-Core, trained by its own pipeline
schedules on the CPU, with each step determined by its number and the state.

    megatron_live_trainer.py JOB STEPS FOLDER

JOB is a list of settings, `tp=2,pp=2,dp=1`: see DEFAULTS. Before step TRAINER_SAVE_AT all ranks
save a checkpoint of Megatron-Core itself (dist_checkpointing) as FOLDER/STEP. If there is one by
then, the trainer first loads that, trains from there, forgets all of it, and then does what it
always does. Each rank prints

    loaded STEP SHA256      the state that Megatron-Core's loader gave
    expected N LOSS         the loss of step N from there (last pipeline stage only)
    resumed STEP SHA256     the state when cairn.attach has returned
    step N LOSS             the loss of step N (last pipeline stage; rank 0 prints the number alone)
    groups JSON             hyperparameters of the first optimizer, at the end

With TRAINER_UNCHANGED in the environment the trainer does not call Cairn, and prints `found 0
SHA256`, its state after the first forward and backward, instead of `resumed`.

Losses are hexadecimal floats. With TRAINER_LISTS in the environment each rank lists parameters and
state, to compare them by hand.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import sys
import time
import types
from typing import Any

import megatron_dist_worker as worker
import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.distributed import finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import random as tracker
from megatron.core.transformer.moe import grouped_gemm_util, moe_utils
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig

import cairn
import forking
from cairn import _current
from cairn._lib import FENCE_ALL

DEFAULTS = {
    "tp": 1,
    "pp": 1,
    "dp": 1,
    "ep": 1,
    "vpp": 1,
    "layers": 4,
    "experts": 0,
    "tied": 0,
    "dist": 0,  # the distributed optimizer
    "half": 1,  # parameters in bfloat16, with masters
    "glu": 1,
    "padded": 96,  # rows of the embedding
    "overlap": 0,  # parameters are gathered behind the next forward
    "legacy": 0,  # experts in Megatron-Core's legacy GroupedMLP
    "odd": 0,  # an optimizer of a kind that nobody knows
    "bucket": 0,  # elements; 0: one bucket
    "clip": 1,  # of the gradients' norm, a sum in the order of the buckets; 0: no clipping
}
HIDDEN, FFN, LENGTH, VOCABULARY, MICRO_BATCHES = 32, 48, 8, 90, 4
STRATEGY = "TRAINER_STRATEGY" in os.environ
UNCHANGED = "TRAINER_UNCHANGED" in os.environ
PAUSE_S = float(os.environ.get("TRAINER_PAUSE_S", "0"))


def track_on_the_cpu() -> None:
    """Megatron-Core's tracker of CUDA generators keeps those of the CPU; routers do without
    Transformer Engine."""
    moe_utils.te_general_gemm = None
    tracker._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
    tracker._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    torch.cuda.get_rng_state = lambda *_: torch.get_rng_state()
    torch.cuda.manual_seed = torch.manual_seed
    states = tracker.get_cuda_rng_tracker()
    for name, seed in (("model-parallel-rng", 40), ("expert-parallel-rng", 80)):
        states.add(name, seed + parallel_state.get_tensor_model_parallel_rank())


def use_legacy_experts() -> None:
    """In place of the package for GPUs that Megatron-Core's legacy GroupedMLP multiplies with."""

    def gmm(inputs: Any, weights: Any, counts: Any, trans_b: bool) -> Any:
        pieces = inputs.split(counts.tolist())
        return torch.cat([piece @ weight for piece, weight in zip(pieces, weights)])

    torch.compiler.set_stance("force_eager")  # of what it compiles for them
    grouped_gemm_util.grouped_gemm = grouped_gemm_util.ops = types.SimpleNamespace(gmm=gmm)


def build(job: dict[str, int]) -> tuple[list[Any], Any]:
    """(chunks of the model in their wrappers, optimizer), the same for the same job."""
    torch.manual_seed(5 + dist.get_rank())
    half = bool(job["half"])
    dtype = torch.bfloat16 if half else torch.float32
    config = TransformerConfig(
        num_layers=job["layers"],
        hidden_size=HIDDEN,
        num_attention_heads=4,
        num_query_groups=2,
        ffn_hidden_size=FFN,
        moe_ffn_hidden_size=FFN if job["experts"] else None,
        num_moe_experts=job["experts"] or None,
        moe_router_load_balancing_type="none",
        moe_router_topk=2,
        use_cpu_initialization=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=job["tp"],
        pipeline_model_parallel_size=job["pp"],
        expert_model_parallel_size=job["ep"],
        expert_tensor_parallel_size=1 if job["experts"] else None,
        virtual_pipeline_model_parallel_size=job["vpp"] if job["vpp"] > 1 else None,
        moe_grouped_gemm=bool(job["legacy"]),
        gated_linear_unit=bool(job["glu"]),
        add_bias_linear=not job["glu"],
        normalization="RMSNorm",
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=half,
        finalize_model_grads_func=finalize_model_grads,
    )
    if job["legacy"]:
        use_legacy_experts()
    spec = get_gpt_layer_local_spec(
        num_experts=job["experts"] or None,
        moe_grouped_gemm=bool(job["legacy"]),
        moe_use_legacy_grouped_gemm=bool(job["legacy"]),
        normalization="RMSNorm",
    )
    chunks = []
    for number in range(job["vpp"]):
        stage: dict[str, Any] = {"vp_stage": number} if job["vpp"] > 1 else {}
        ends: dict[str, Any] = {"ignore_virtual": False, **stage} if stage else {}
        model = GPTModel(
            config,
            spec,
            vocab_size=job["padded"],
            max_sequence_length=LENGTH,
            pre_process=parallel_state.is_pipeline_first_stage(**ends),
            post_process=parallel_state.is_pipeline_last_stage(**ends),
            share_embeddings_and_output_weights=bool(job["tied"]),
            position_embedding_type="rope",
            **stage,
        )
        for parameter in model.parameters():
            tensor_parallel.set_defaults_if_not_set_tensor_model_parallel_attributes(parameter)
        ddp = DistributedDataParallelConfig(
            use_distributed_optimizer=bool(job["dist"]),
            grad_reduce_in_fp32=True,
            overlap_grad_reduce=bool(job["bucket"]),
            bucket_size=job["bucket"] or None,
            overlap_param_gather=bool(job["overlap"]),
        )
        wrapped = Float16Module(config, model) if half else model
        chunks.append(DistributedDataParallel(config, ddp, wrapped, disable_bucketing=number > 0))
    for chunk in chunks:
        chunk.broadcast_params()
    config.no_sync_func = None
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=2e-2,
            min_lr=1e-3,
            weight_decay=0.1,
            bf16=half,
            params_dtype=dtype,
            use_distributed_optimizer=bool(job["dist"]),
            clip_grad=job["clip"],
            overlap_param_gather=bool(job["overlap"]),
        ),
        chunks,
    )
    return chunks, optimizer


def batch(step: int, number: int) -> dict[str, torch.Tensor]:
    """A micro-batch; the job's are numbered through all replicas."""
    generator = torch.Generator().manual_seed(1000 * step + number)
    tokens = torch.randint(0, VOCABULARY, (2, LENGTH), generator=generator)
    return {"tokens": tokens, "labels": (tokens * 7 + 3) % VOCABULARY}


def forward_step(data: Any, model: Any) -> Any:
    each = next(data)
    positions = torch.arange(LENGTH).unsqueeze(0)
    mask = torch.triu(torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool), 1)
    output = model(each["tokens"], positions, mask, labels=each["labels"])
    return output, lambda tensor: (tensor.mean(), {"loss": tensor.detach().mean()})


def await_copy() -> None:
    """Waits until the snapshot of the update before is copied. One that is not begun by the next
    update is skipped, and on a busy machine any may be; the test waits for a certain one."""
    job = _current.job
    while job is not None and job.client is not None and job.client.captured() != FENCE_ALL:
        time.sleep(0.001)


def train(
    job: dict[str, int], chunks: list[Any], optimizer: Any, steps: range, word: str, folder: str
) -> None:
    replica, run = parallel_state.get_data_parallel_rank(), get_forward_backward_func()
    count = MICRO_BATCHES // job["dp"]
    for step in steps:
        if str(step) == os.environ.get("TRAINER_HOLD_AT"):
            if word == "step":
                time.sleep(3600)  # until the test kills it, however late that looks
            break
        if word == "step" and str(step) == os.environ.get("TRAINER_SAVE_AT"):
            save(chunks, optimizer, f"{folder}/{step}", step)
        for chunk in chunks:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        data = [
            iter([batch(step, replica * count + number) for number in range(count)]) for _ in chunks
        ]
        losses = run(
            forward_step_func=forward_step,
            data_iterator=data if len(chunks) > 1 else data[0],
            model=chunks if len(chunks) > 1 else chunks[0],
            num_microbatches=count,
            seq_length=LENGTH,
            micro_batch_size=2,
            forward_only=False,
        )
        time.sleep(PAUSE_S)
        await_copy()
        if step == 0 and word == "step" and UNCHANGED:
            print(f"found {step} {digest(chunks, optimizer)}", flush=True)
        optimizer.step()
        if losses and parallel_state.is_pipeline_last_stage(ignore_virtual=True):
            mean = torch.stack([each["loss"] for each in losses]).mean()
            print(f"{word} {step} {mean.item().hex()}", flush=True)
        elif dist.get_rank() == 0:
            print(f"{word} {step} 0", flush=True)


# ---- Megatron-Core's own checkpoints ----


def bare(chunk: Any) -> Any:
    module = chunk.module
    return module.module if isinstance(module, Float16Module) else module


def sharded(chunks: list[Any], optimizer: Any, loading: bool) -> dict[str, Any]:
    options = {
        "distrib_optim_sharding_type": "fully_reshardable",
        "distrib_optim_fully_reshardable_mem_efficient": True,
        "chained_optim_avoid_prefix": True,
    }
    state: dict[str, Any] = {}
    for number, chunk in enumerate(chunks):
        name = "model" if len(chunks) == 1 else f"model{number}"
        state[name] = bare(chunk).sharded_state_dict(metadata=dict(options))
    state["optimizer"] = optimizer.sharded_state_dict(
        dict(state), is_loading=loading, metadata=dict(options)
    )
    return state


def save(chunks: list[Any], optimizer: Any, folder: str, step: int) -> None:
    place = pathlib.Path(folder)
    if dist.get_rank() == 0:
        place.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    state = {**sharded(chunks, optimizer, False), "iteration": step}
    files = TorchDistSaveShardedStrategy("torch_dist", 1, thread_count=1)
    dist_checkpointing.save(state, folder, files)
    if STRATEGY:
        place = pathlib.Path(f"{folder}.cairn/iter_{step:07}")
        if dist.get_rank() == 0:
            place.mkdir(parents=True)
        dist.barrier()
        state = {**sharded(chunks, optimizer, False), "iteration": step}
        dist_checkpointing.save(state, str(place), cairn.megatron.SaveStrategy())


def load(chunks: list[Any], optimizer: Any, folder: str) -> None:
    """A step of Adam has to make the state that is loaded into."""
    for chunk in chunks:
        chunk.zero_grad_buffer()
    optimizer.step()
    strategy = cairn.megatron.LoadStrategy() if "iter_" in folder else None
    state = dist_checkpointing.load(sharded(chunks, optimizer, True), folder, strategy)
    for number, chunk in enumerate(chunks):
        name = "model" if len(chunks) == 1 else f"model{number}"
        bare(chunk).load_state_dict(state[name], strict=False)
    optimizer.load_state_dict(state["optimizer"])
    # Megatron-Core 0.16.1 has loaded one tensor for all, which torch's Adam counts up for each.
    for each in inner(optimizer):
        for held in each.state.values():
            held["step"] = held["step"].clone()


# ---- what a rank holds ----


def inner(optimizer: Any) -> list[Any]:
    each = getattr(optimizer, "chained_optimizers", [optimizer])
    return [one.optimizer for one in each if one.optimizer is not None]


def settings_of(group: dict[str, Any]) -> dict[str, Any]:
    """The hyperparameters that torch's Adam reads."""
    added = ("params", "step", "bias_correction")
    return {key: value for key, value in group.items() if key not in added}


def digest(chunks: list[Any], optimizer: Any) -> str:
    """Of the parameters, masters and moments of this rank, in their order."""
    sha = hashlib.sha256()

    def add(name: str, tensor: torch.Tensor) -> None:
        flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        data = flat.numpy().tobytes()
        sha.update(data)
        if "TRAINER_LISTS" in os.environ:
            values = hashlib.sha256(data).hexdigest()[:12]
            print(f"has {name} {tuple(tensor.shape)} {values}", flush=True)

    for chunk in chunks:
        for name, parameter in chunk.named_parameters():
            add(name, parameter)
    for number, each in enumerate(inner(optimizer)):
        for index, group in enumerate(each.param_groups):
            for place, held in enumerate(group["params"]):
                add(f"{number}.{index}.{place}", held)
                for key, value in sorted(each.state[held].items()):
                    add(f"{number}.{index}.{place}.{key}", value)
            settings = json.dumps(settings_of(group), sort_keys=True)
            sha.update(settings.encode())
            if "TRAINER_LISTS" in os.environ:
                print(f"has {number}.{index} {settings}", flush=True)
    return sha.hexdigest()


def main() -> None:
    words = dict(word.split("=") for word in sys.argv[1].split(","))
    job = {**DEFAULTS, **{name: int(value) for name, value in words.items()}}
    steps, folder = int(sys.argv[2]), sys.argv[3]
    saved = max((int(name) for name in os.listdir(folder) if name.isdigit()), default=0)
    torch.set_num_threads(1)
    worker.without_cuda()
    worker.without_queue_servers()
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(
        job["tp"],
        job["pp"],
        virtual_pipeline_model_parallel_size=job["vpp"] if job["vpp"] > 1 else None,
        expert_model_parallel_size=job["ep"],
        expert_tensor_parallel_size=1 if job["experts"] else None,
        create_gloo_process_groups=True,
    )
    track_on_the_cpu()
    if saved:
        _current.job = None  # nothing of this is Cairn's: cairn.attach makes another job
        chunks, optimizer = build(job)
        load(chunks, optimizer, f"{folder}/{saved}")
        print(f"loaded {saved} {digest(chunks, optimizer)}", flush=True)
        train(job, chunks, optimizer, range(saved, steps), "expected", folder)
    chunks, optimizer = build(job)
    if job["odd"]:
        first = optimizer.chained_optimizers[0]
        first.__class__ = type("OddOptimizer", (type(first),), {})
    if saved and STRATEGY:  # instead of cairn.attach
        load(chunks, optimizer, f"{folder}/{saved}.cairn/iter_{saved:07}")
        print(f"resumed {saved} {digest(chunks, optimizer)}", flush=True)
        return
    start = 0
    if not UNCHANGED and not STRATEGY:
        attached = cairn.attach(chunks, optimizer)
        start = attached.step
    if start:
        print(f"resumed {start} {digest(chunks, optimizer)}", flush=True)
    train(job, chunks, optimizer, range(start, steps), "step", folder)
    settings = [settings_of(group) for group in inner(optimizer)[0].param_groups]
    print(f"groups {json.dumps(settings)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    forking.become_a_rank()
    main()
