"""Small models of each family that a map is built in for, as Hugging Face and as Megatron-Core have
them.

As a program (with the Python of build/venv-megatron): `map_models.py FOLDER` loads
FOLDER/<family>.pt, a state dict with Megatron's names, into a real GPTModel for each family,
strictly, and prints as JSON how far its logits are from FOLDER/<family>.logits.
"""

from __future__ import annotations

import contextlib
import functools
import json
import pathlib
import sys
from typing import Any

import torch

SEED = 11
TOKENS = 12
VOCABULARY = 96
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
MOE = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
}
# The configuration's and the model's class in transformers, and the configuration.
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", COMMON),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", {**COMMON, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {**COMMON, "head_dim": 16}),
    "qwen3-moe": (
        "Qwen3MoeConfig",
        "Qwen3MoeForCausalLM",
        {**COMMON, **MOE, "head_dim": 16, "mlp_only_layers": [1]},
    ),
    "mixtral": (
        "MixtralConfig",
        "MixtralForCausalLM",
        {**COMMON, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "gpt2": (
        "GPT2Config",
        "GPT2LMHeadModel",
        {
            "vocab_size": VOCABULARY,
            "n_positions": 64,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "bos_token_id": 0,
            "eos_token_id": 0,
        },
    ),
}


def tokens() -> torch.Tensor:
    """[1, TOKENS] token numbers."""
    return torch.randint(0, VOCABULARY, (1, TOKENS), generator=torch.Generator().manual_seed(SEED))


def hugging_face(family: str) -> torch.nn.Module:
    """A model in float32 without two parameters alike, norms and biases neither."""
    import transformers

    config_class, model_class, arguments = FAMILIES[family]
    torch.manual_seed(SEED)
    model = getattr(transformers, model_class)(
        getattr(transformers, config_class)(**arguments)
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


def logits(model: torch.nn.Module) -> torch.Tensor:
    """Of a Hugging Face model: [1, TOKENS, VOCABULARY]."""
    with torch.no_grad():
        return model(tokens()).logits


def megatron_config(family: str) -> dict[str, Any]:
    """The arguments of a TransformerConfig that computes what the Hugging Face model does."""
    common: dict[str, Any] = {
        "num_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_query_groups": 2,
        "ffn_hidden_size": 48,
        "kv_channels": 8,
        "normalization": "RMSNorm",
        "gated_linear_unit": True,
        "activation_func": torch.nn.functional.silu,
        "add_bias_linear": False,
        "layernorm_epsilon": 1e-6,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "bias_dropout_fusion": False,
        "bias_activation_fusion": False,
        "use_cpu_initialization": True,
        "perform_initialization": False,
    }
    experts = {
        "num_moe_experts": 4,
        "moe_router_topk": 2,
        "moe_grouped_gemm": False,
        "moe_router_load_balancing_type": "none",
        "moe_token_dispatcher_type": "allgather",
        "moe_router_pre_softmax": False,
    }
    special: dict[str, dict[str, Any]] = {
        "llama": {},
        "qwen2": {"add_qkv_bias": True},
        "qwen3": {"kv_channels": 16, "qk_layernorm": True},
        "qwen3-moe": {
            **experts,
            "kv_channels": 16,
            "qk_layernorm": True,
            "moe_ffn_hidden_size": 24,
            "moe_layer_freq": [1, 0],
        },
        "mixtral": {**experts, "moe_ffn_hidden_size": 48, "layernorm_epsilon": 1e-5},
        "gpt2": {
            "num_query_groups": 4,
            "ffn_hidden_size": 128,
            "normalization": "LayerNorm",
            "gated_linear_unit": False,
            "activation_func": functools.partial(torch.nn.functional.gelu, approximate="tanh"),
            "add_bias_linear": True,
            "layernorm_epsilon": 1e-5,
        },
    }
    return {**common, **special[family]}


def without_cuda() -> None:
    """What megatron-core asks of CUDA where no device is: a place for tensors, and a generator of
    its own for dropout, which is 0."""
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.moe import moe_utils

    # type: ignore[assignment, return-value]
    torch.cuda.current_device = lambda: torch.device("cpu")
    random.CudaRNGStatesTracker.fork = lambda self, name="": contextlib.nullcontext()
    # without Transformer Engine the module does not define it, and asks for it all the same
    moe_utils.te_general_gemm = None


def megatron(family: str, state: dict[str, torch.Tensor]) -> torch.Tensor:
    """The logits of a GPTModel of local modules that has exactly this state."""
    from megatron.core.models.gpt.gpt_layer_specs import (
        get_gpt_decoder_block_spec,
        get_gpt_layer_local_spec,
    )
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(**megatron_config(family))
    if config.num_moe_experts:
        spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False)
    else:
        spec = get_gpt_layer_local_spec(
            qk_layernorm=config.qk_layernorm, normalization=config.normalization
        )
    model = GPTModel(
        config,
        spec,
        vocab_size=VOCABULARY,
        max_sequence_length=64,
        position_embedding_type="learned_absolute" if family == "gpt2" else "rope",
        rotary_base=1_000_000 if family == "mixtral" else 10_000,
        share_embeddings_and_output_weights=family in ("gpt2", "qwen2"),
    ).eval()
    wanted = {
        name for name, tensor in model.state_dict().items() if isinstance(tensor, torch.Tensor)
    }
    missing, surplus = sorted(wanted - state.keys()), sorted(state.keys() - wanted)
    assert wanted == state.keys(), f"{family}: missing {missing}, too many {surplus}"
    # what is missing then are the extra states, which are None
    model.load_state_dict(state, strict=False)
    later = torch.ones(TOKENS, TOKENS).triu(1).bool()[None, None]  # which tokens are not looked at
    with torch.no_grad():
        return model(tokens(), torch.arange(TOKENS)[None], later)


def main() -> None:
    import torch.distributed

    torch.set_num_threads(1)
    without_cuda()
    from megatron.core import parallel_state

    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    parallel_state.initialize_model_parallel()
    folder = pathlib.Path(sys.argv[1])
    distances = {}
    for family in FAMILIES:
        state = torch.load(folder / f"{family}.pt", weights_only=True)
        expected = torch.load(folder / f"{family}.logits", weights_only=True)
        distances[family] = (
            (megatron(family, state) - expected).abs().max() / expected.abs().max()
        ).item()
    print(json.dumps(distances))


if __name__ == "__main__":
    main()
