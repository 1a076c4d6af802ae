/*
 * tools/convert/state/reserved.h - names of opaque state that more than one room knows.
 *
 * A format keeps what it needs to write itself back exactly under "<format>/<what>"
 * (core/checkpoint.h). All other formats carry it along. These names are here because another room
 * must treat what they name as more than bytes.
 */
#ifndef CAIRN_TOOLS_CONVERT_STATE_RESERVED_H
#define CAIRN_TOOLS_CONVERT_STATE_RESERVED_H

/* How a file of torch.save nests what it holds: its tree without the leaves (torch/state.h). */
#define CAIRN_TORCH_TREE "torch/tree.pickle"

/* The names and paths that a distributed checkpoint has for things (state/kept_names.h). */
#define CAIRN_DCP_NAMES "dcp/names.pickle"

/* The notes in the headers of safetensors files (safetensors/notes.h). */
#define CAIRN_SAFETENSORS_NOTES "safetensors/notes.json"

/* The object of Megatron-LM's rank (0, 0, 0) without its model (megatron/state.h), and the scope
 * that it shares with everything that only Megatron-LM's files have. */
#define CAIRN_MEGATRON_SCOPE "megatron/"
#define CAIRN_MEGATRON_COMMON "megatron/common.pickle"

/* The key, in a file of torch.save and in a distributed checkpoint, below which lies what PyTorch
 * would not understand, under its name here. Opaque state is bytes there. */
#define CAIRN_CARRIED_KEY "cairn"

#endif
