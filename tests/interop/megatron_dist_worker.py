"""Real checkpoints of Megatron-Core for the converter's tests: a process that imports it once, and
forks the ranks of a job for each command.

Reads commands, one line of JSON each, from its standard input, and answers each with one line of
JSON: {"ok": true, …} or {"error": text}. A job is {"tp", "pp", "ep", "dp", "kind"}; commands are

    {"op": "save", "job": …, "out": {folder: encoding}, "options": {…}}   trains, saves the same
    state in each encoding {"op": "same", "job": …, "one": folder, "other":
    folder}              loads both and compares every tensor of every rank {"op": "alike", "job":
                         …, "one": folder, "other": folder}             loads both into models and
                         optimizers, compares those

Encodings are the optimizer's: fully_reshardable, dp_reshardable, or none; "torch" is the folder per
rank of Megatron-LM's `ckpt_format torch`, which "alike" loads as well. Everything is
Megatron-Core's own code on CPU tensors with gloo, but for what asks for a CUDA device: that is told
"cpu".
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import queue
import sys
import tempfile
import traceback
import warnings
import zlib
from typing import Any

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

warnings.simplefilter("ignore")
from megatron.core import dist_checkpointing, parallel_state  # noqa: E402

from megatron.core.dist_checkpointing.strategies import filesystem_async  # noqa: E402

# noqa: E402
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy

# noqa: E402
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.models.gpt.gpt_model import GPTModel  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

VOCABULARY = 100
EMBEDDING = "embedding.word_embeddings.weight"


class OnCpu(TorchFunctionMode):
    """Tensors that are asked for on a CUDA device are made on the CPU."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if "cuda" in str(kwargs.get("device", "")):
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)


def without_cuda() -> None:
    """What Megatron-Core asks of CUDA although its tensors may be anywhere."""
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.current_stream = lambda *_: None
    torch.cuda.get_device_properties = lambda *_: argparse.Namespace(multi_processor_count=1)
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor
    kind_of = torch.Tensor.type
    torch.Tensor.type = lambda tensor, *a, **k: (
        kind_of(tensor, *a, **k) if a or k else "torch.cuda." + kind_of(tensor).rsplit(".", 1)[1]
    )
    for name, dtype in (("FloatTensor", torch.float32), ("IntTensor", torch.int32)):
        setattr(torch.cuda, name, lambda values, dtype=dtype: torch.tensor(values, dtype=dtype))
    OnCpu().__enter__()
    place = DistributedOptimizer._set_main_param_and_optimizer_states

    def with_step(optimizer: Any, parameter: Any, tensors: dict[str, Any]) -> None:
        """torch's AdamW has a step for each parameter, which Megatron-Core sets by itself and then
        looks for."""
        group, order = optimizer.model_param_group_index_map[parameter]
        main = optimizer.optimizer.param_groups[group]["params"][order]
        place(optimizer, parameter, {"step": optimizer.optimizer.state[main]["step"], **tensors})

    DistributedOptimizer._set_main_param_and_optimizer_states = with_step


def without_queue_servers() -> None:
    """The results of a save go through a queue of this process, which is the one that reads them.
    Megatron-Core would spawn a server for it in each rank, which imports torch again."""
    filesystem_async._results_queue = queue.Queue()


def build_model(job: dict[str, Any]) -> GPTModel:
    experts = 4 if "moe" in job["kind"] else None
    config = TransformerConfig(
        num_layers=4,
        hidden_size=32,
        num_attention_heads=4,
        num_query_groups=2,
        ffn_hidden_size=48,
        moe_ffn_hidden_size=48 if experts else None,
        use_cpu_initialization=True,
        tensor_model_parallel_size=job["tp"],
        pipeline_model_parallel_size=job["pp"],
        expert_model_parallel_size=job["ep"],
        num_moe_experts=experts,
        gated_linear_unit="plain" not in job["kind"],
        add_bias_linear="plain" in job["kind"],
        bias_activation_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16,
        bf16=True,
        sequence_parallel=job["tp"] > 1 and experts is not None,
        moe_router_load_balancing_type="none",
    )
    first, last = parallel_state.is_pipeline_first_stage(), parallel_state.is_pipeline_last_stage()
    spec = get_gpt_layer_local_spec(
        num_experts=experts, moe_grouped_gemm=False, qk_layernorm="plain" not in job["kind"]
    )
    return GPTModel(
        config,
        spec,
        vocab_size=job.get("padded", VOCABULARY),
        max_sequence_length=16,
        pre_process=first,
        post_process=last,
        share_embeddings_and_output_weights="tied" in job["kind"],
        position_embedding_type="learned_absolute" if "plain" in job["kind"] else "rope",
    )


def shared(name: str) -> str:
    """The last stage of a tied model has the embedding under the output layer's name."""
    return EMBEDDING if name == "output_layer.weight" else name


def build(job: dict[str, Any], seed: int) -> tuple[Any, Any]:
    """A model in its wrapper with its distributed optimizer, after a step with gradients that are
    numbers out of the air."""
    torch.manual_seed(seed)
    model = build_model(job)
    # as Megatron-LM wraps it: norms too, which then lie among the others in the optimizer's buffer
    if "half" in job["kind"]:
        model.bfloat16()
    for name, parameter in model.named_parameters():
        if "tied" in job["kind"] and shared(name) == EMBEDDING:
            torch.manual_seed(seed)
            parameter.data.normal_()
    ddp = DistributedDataParallelConfig(
        use_distributed_optimizer=True, overlap_grad_reduce=True, bucket_size=job.get("bucket")
    )
    wrapped = DistributedDataParallel(model.config, ddp, model)
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=1e-2,
            bf16=True,
            params_dtype=torch.bfloat16,
            use_distributed_optimizer=True,
            clip_grad=0.0,
        ),
        [wrapped],
    )
    for name, parameter in model.named_parameters():
        sharded = getattr(parameter, "tensor_model_parallel", False) or not getattr(
            parameter, "allreduce", True
        )
        place = (
            dist.get_rank()
            if not getattr(parameter, "allreduce", True)
            else parallel_state.get_tensor_model_parallel_rank()
        )
        stage = parallel_state.get_pipeline_model_parallel_rank() if "layers" in name else 0
        name = shared(name) if "tied" in job["kind"] else name
        torch.manual_seed(zlib.crc32(f"{seed} {name} {stage} {place if sharded else 0}".encode()))
        parameter.main_grad.normal_()
    optimizer.step()
    return wrapped, optimizer


def metadata_of(encoding: str, options: dict[str, Any]) -> dict[str, Any]:
    return {
        "distrib_optim_sharding_type": encoding,
        "chained_optim_avoid_prefix": True,
        "distrib_optim_fully_reshardable_mem_efficient": True,
        **options,
    }


def sharded_state(
    job: dict[str, Any],
    wrapped: Any,
    optimizer: Any,
    encoding: str,
    options: dict[str, Any],
    loading: bool,
) -> dict[str, Any]:
    metadata = metadata_of(encoding, options)
    model = wrapped.module.sharded_state_dict(metadata=metadata)
    state: dict[str, Any] = {"model": model}
    if encoding != "none":
        state["optimizer"] = optimizer.sharded_state_dict(
            model, is_loading=loading, metadata=metadata
        )
    if not loading:
        state["args"] = arguments(job)
        state.update(
            iteration=7,
            checkpoint_version=3.0,
            opt_param_scheduler={"max_lr": 0.01, "num_steps": 7},
        )
        key = dist_checkpointing.ShardedObject(
            "rng_state",
            [{"random_rng_state": (3, (1, 2), None), "torch_rng_state": torch.get_rng_state()}],
            (job["pp"], job["tp"]),
            (
                parallel_state.get_pipeline_model_parallel_rank(),
                parallel_state.get_tensor_model_parallel_rank(),
            ),
            replica_id=parallel_state.get_data_parallel_rank(with_context_parallel=True),
        )
        state["rng_state"] = key
    return state


def save(command: dict[str, Any]) -> None:
    job, options = command["job"], command.get("options", {})
    wrapped, optimizer = build(job, 1)
    if job.get("padded", VOCABULARY) > VOCABULARY:
        poison(wrapped)
    for folder, encoding in command["out"].items():
        if dist.get_rank() == 0:
            pathlib.Path(folder).mkdir(parents=True)
        dist.barrier()
        if encoding == "torch":
            save_ranks(job, wrapped, optimizer, pathlib.Path(folder))
            continue
        state = sharded_state(job, wrapped, optimizer, encoding, options, False)
        dist_checkpointing.save(
            state,
            folder,
            TorchDistSaveShardedStrategy("torch_dist", 1, thread_count=1),
            content_metadata=metadata_of(encoding, options),
        )


def arguments(job: dict[str, Any]) -> argparse.Namespace:
    return argparse.Namespace(
        tensor_model_parallel_size=job["tp"],
        pipeline_model_parallel_size=job["pp"],
        expert_model_parallel_size=job["ep"],
        expert_tensor_parallel_size=1 if job["ep"] > 1 else job["tp"],
        num_layers=4,
        vocab_size=VOCABULARY,
        padded_vocab_size=job.get("padded", VOCABULARY),
        make_vocab_size_divisible_by=job.get("multiple", 4),
        swiglu=True,
        untie_embeddings_and_output_weights="tied" not in job["kind"],
        overlap_grad_reduce=True,
        ddp_bucket_size=job.get("bucket"),
        accumulate_allreduce_grads_in_fp32=False,
        rank=dist.get_rank(),
        data_parallel_size=job["dp"],
        transformer_impl="local",
    )


def folder_of(folder: pathlib.Path) -> pathlib.Path:
    """Where this rank's files are, of Megatron-LM's own format."""
    name = f"mp_rank_{parallel_state.get_tensor_model_parallel_rank():02d}"
    if parallel_state.get_pipeline_model_parallel_world_size() > 1:
        name += f"_{parallel_state.get_pipeline_model_parallel_rank():03d}"
    if parallel_state.get_expert_model_parallel_world_size() > 1:
        name += f"_{parallel_state.get_expert_model_parallel_rank():03d}"
    return folder / "iter_0000007" / name


def save_ranks(job: dict[str, Any], wrapped: Any, optimizer: Any, folder: pathlib.Path) -> None:
    own = folder_of(folder)
    own.mkdir(parents=True, exist_ok=True)
    optimizer.save_parameter_state(str(own / "distrib_optim.pt"))
    if (
        parallel_state.get_data_parallel_rank() == 0
        or parallel_state.get_expert_data_parallel_rank() == 0
    ):
        torch.save(
            {
                "args": arguments(job),
                "checkpoint_version": 3.0,
                "iteration": 7,
                "model": wrapped.state_dict_for_save_checkpoint(),
                "optimizer": optimizer.state_dict(),
                "opt_param_scheduler": {"max_lr": 0.01, "num_steps": 7},
                "rng_state": [
                    {
                        "random_rng_state": (3, (1, 2), None),
                        "torch_rng_state": torch.get_rng_state(),
                    }
                ],
            },
            own / "model_optim_rng.pt",
        )
    if dist.get_rank() == 0:
        (folder / "latest_checkpointed_iteration.txt").write_text("7")


def poison(wrapped: Any) -> None:
    """Rows of the vocabulary without a word become NaN."""
    rank = parallel_state.get_tensor_model_parallel_rank()
    for name, parameter in wrapped.module.named_parameters():
        if "word_embeddings" in name or "output_layer" in name:
            rows = parameter.shape[0]
            first = max(0, min(rows, VOCABULARY - rank * rows))
            parameter.data[first:] = float("nan")


def load(folder: str, command: dict[str, Any]) -> dict[str, Any]:
    job = command["job"]
    wrapped, optimizer = build(job, 2)
    content = dist_checkpointing.load_content_metadata(folder) or {}
    options = {
        key: content[key]
        for key in ("singleton_local_shards", "non_homogeneous_layers")
        if key in content
    }
    state = sharded_state(job, wrapped, optimizer, "fully_reshardable", options, True)
    for tensor in values(state):
        if isinstance(tensor, torch.Tensor):
            tensor.data.fill_(3.0)
    return dist_checkpointing.load(state, folder)


def values(state: Any) -> list[Any]:
    found, todo = [], [state]
    while todo:
        item = todo.pop()
        if isinstance(item, dict):
            todo.extend(item.values())
        elif isinstance(item, (list, tuple)):
            todo.extend(item)
        else:
            found.append(getattr(item, "data", item))
    return found


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        keys = {str(key) for key in one} ^ {str(key) for key in other}
        return (
            [f"{path}: {sorted(keys)}"]
            if keys
            else [
                line for key in one for line in differences(one[key], other[key], f"{path}.{key}")
            ]
        )
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return (
            [f"{path}: lengths"]
            if len(one) != len(other)
            else [
                line
                for i, (a, b) in enumerate(zip(one, other))
                for line in differences(a, b, f"{path}.{i}")
            ]
        )
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        same = (
            one.dtype == other.dtype
            and one.shape == other.shape
            and torch.equal(
                one.contiguous().flatten().view(torch.uint8),
                other.contiguous().flatten().view(torch.uint8),
            )
        )
        return [] if same else [f"{path}: tensors differ"]
    return [] if type(one) is type(other) and one == other else [f"{path}: {one!r} {other!r}"]


def clip_vocabulary(state: Any, padded: int) -> None:
    """Takes the rows without a word away: they are not the same on purpose. Only its matrices
    have so many rows, and only their state so many elements where one rank has all of it."""
    items = list(
        state.items()
        if isinstance(state, dict)
        else enumerate(state)
        if isinstance(state, list)
        else []
    )
    rank = parallel_state.get_tensor_model_parallel_rank()
    rows = padded // parallel_state.get_tensor_model_parallel_world_size()
    for key, value in items:
        if (
            isinstance(value, torch.Tensor)
            and value.dim() == 2
            and value.shape[0] == rows
            and value.shape[1] == 32
        ):
            state[key] = value[: max(0, min(rows, VOCABULARY - rank * rows))]
        elif isinstance(value, torch.Tensor) and value.dim() == 1 and value.numel() == rows * 32:
            state[key] = value[: max(0, min(rows, VOCABULARY - rank * rows)) * 32]
        else:
            clip_vocabulary(value, padded)


def same(command: dict[str, Any]) -> dict[str, Any]:
    one, other = load(command["one"], command), load(command["other"], command)
    padded = command["job"].get("padded", VOCABULARY)
    clip_vocabulary(one, padded), clip_vocabulary(other, padded)
    tensors = [v for v in values(other) if isinstance(v, torch.Tensor)]
    return {"differences": differences(one, other)[:9], "tensors": len(tensors)}


@torch.no_grad()
def settle(folder: str, wrapped: Any, optimizer: Any, job: dict[str, Any]) -> dict[str, Any]:
    """What a model and its optimizer hold after they have loaded a checkpoint of either format."""
    if (pathlib.Path(folder) / "metadata.json").exists():
        content = dist_checkpointing.load_content_metadata(folder)
        assert content["distrib_optim_sharding_type"] == "fully_reshardable"
        state = dist_checkpointing.load(
            sharded_state(job, wrapped, optimizer, "fully_reshardable", content, True), folder
        )
        wrapped.module.load_state_dict(state["model"], strict=False)
        optimizer.load_state_dict(state["optimizer"])
    else:
        own = folder_of(pathlib.Path(folder))
        state = torch.load(own / "model_optim_rng.pt", weights_only=False)
        wrapped.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        optimizer.load_parameter_state(str(own / "distrib_optim.pt"))
        assert (
            state["args"].tensor_model_parallel_size == job["tp"] and len(state["rng_state"]) == 1
        )
    assert (
        state["iteration"] == 7
        and state["checkpoint_version"] == 3.0
        and state["opt_param_scheduler"]["num_steps"] == 7
    )
    return {
        "model": {
            name: parameter.detach().clone()
            for name, parameter in wrapped.module.named_parameters()
        },
        "optimizer": [held(part) for part in getattr(optimizer, "chained_optimizers", [optimizer])],
    }


def held(optimizer: Any) -> list[Any]:
    """The settings of each group, but for what other optimizers than torch's keep there, and the
    master weights, moments and steps of what the rank has of each parameter in it."""
    return [
        {
            **{
                key: value
                for key, value in group.items()
                if key not in ("params", "bias_correction", "step")
            },
            "held": [
                {"master": main.detach().clone(), **optimizer.optimizer.state[main]}
                for main in group["params"]
            ],
        }
        for group in optimizer.optimizer.param_groups
    ]


def alike(command: dict[str, Any]) -> dict[str, Any]:
    job = command["job"]
    one = settle(command["one"], *build(job, 2), job)
    other = settle(command["other"], *build(job, 3), job)
    padded = job.get("padded", VOCABULARY)
    clip_vocabulary(one, padded), clip_vocabulary(other, padded)
    tensors = [v for v in values(other) if isinstance(v, torch.Tensor)]
    return {"differences": differences(one, other)[:9], "tensors": len(tensors)}


def rank_main(rank: int, world: int, store: str, command: dict[str, Any], answer: str) -> None:
    job = command["job"]
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    parallel_state.initialize_model_parallel(
        job["tp"],
        job["pp"],
        expert_model_parallel_size=job["ep"],
        expert_tensor_parallel_size=1 if job["ep"] > 1 else None,
        create_gloo_process_groups=True,
    )
    result = {"save": save, "same": same, "alike": alike}[command["op"]](command) or {}
    dist.barrier()
    pathlib.Path(f"{answer}{rank}").write_text(json.dumps(result))
    dist.destroy_process_group()


def run(command: dict[str, Any], folder: str) -> dict[str, Any]:
    job = command["job"]
    world = job["tp"] * job["pp"] * job["dp"]
    names = [os.path.join(folder, name) for name in ("store", "answer")]
    for name in os.listdir(folder):
        os.unlink(os.path.join(folder, name))
    children = []
    for rank in range(world):
        child = os.fork()
        if child == 0:
            try:
                with contextlib.redirect_stdout(sys.stderr):
                    rank_main(rank, world, names[0], command, names[1])
                os._exit(0)
            except BaseException:
                pathlib.Path(f"{names[1]}{rank}").write_text(
                    json.dumps({"error": traceback.format_exc()})
                )
                os._exit(1)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    answers = [json.loads(pathlib.Path(f"{names[1]}{rank}").read_text()) for rank in range(world)]
    errors = [answer["error"] for answer in answers if "error" in answer]
    # which is only what the others see
    errors.sort(key=lambda text: "gloo/transport" in text)
    return (
        {"error": errors[0]}
        if errors
        else {
            "ok": True,
            "differences": [line for answer in answers for line in answer.get("differences", [])],
            "tensors": sum(answer.get("tensors", 0) for answer in answers),
        }
    )


def main() -> None:
    torch.set_num_threads(1)
    without_cuda()
    without_queue_servers()
    with tempfile.TemporaryDirectory() as folder:
        for line in sys.stdin:
            print(json.dumps(run(json.loads(line), folder)), flush=True)


if __name__ == "__main__":
    main()
