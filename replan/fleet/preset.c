/* replan/fleet/preset.c - known models and devices. */
#include "replan/fleet/preset.h"

#include <string.h>

#define GIB (UINT64_C(1) << 30)
enum { STATE_BYTES = 18, ACTIVATION_BYTES = 34 };

static const char llama2[] = "arXiv 2307.09288 and the models' config.json";
static const char llama3[] = "arXiv 2407.21783, table 3";
/* The shape of the 32B model of arXiv 2410.13333, from its authors' scripts; vocabulary of
 * llama2. */
static const char malleus[] = "PKU-DAIR/Hetu, tencent_exp.sh";
static const char qwen25[] = "arXiv 2412.15115 and the models' config.json";

const struct cairn_model_shape cairn_model_shapes[] = {
    {"gpt3-175b", 96, 12288, 49152, 12288, 2, 50257, "arXiv 2005.14165, table 2.1"},
    {"llama2-7b", 32, 4096, 11008, 4096, 3, 32000, llama2},
    {"llama2-13b", 40, 5120, 13824, 5120, 3, 32000, llama2},
    {"llama2-70b", 80, 8192, 28672, 1024, 3, 32000, llama2},
    {"llama3-8b", 32, 4096, 14336, 1024, 3, 128256, llama3},
    {"llama3-70b", 80, 8192, 28672, 1024, 3, 128256, llama3},
    {"llama3-405b", 126, 16384, 53248, 1024, 3, 128256, llama3},
    {"llama-32b", 60, 6656, 17920, 6656, 3, 32000, malleus},
    {"mistral-7b", 32, 4096, 14336, 1024, 3, 32000, "arXiv 2310.06825, table 1"},
    {"qwen1.5-110b", 80, 8192, 49152, 1024, 3, 152064, "the model's config.json"},
    {"qwen2.5-7b", 28, 3584, 18944, 512, 3, 152064, qwen25},
    {"qwen2.5-72b", 80, 8192, 29568, 1024, 3, 152064, qwen25},
};
const uint32_t cairn_model_shape_count = sizeof(cairn_model_shapes) / sizeof(*cairn_model_shapes);

/* Links count in one direction: half of what the sheets call bidirectional. */
const struct cairn_device_sheet cairn_device_sheets[] = {
    {"a100-80g", 312, 80 * GIB, 2400, 200,
     "NVIDIA A100 80GB SXM data sheet; one 200 Gb/s adapter per device"},
    {"h100-sxm", 989, 80 * GIB, 3600, 400,
     "NVIDIA H100 SXM data sheet; one 400 Gb/s adapter per device"},
    {"h200-sxm", 989, 141 * UINT64_C(1000000000), 3600, 400,
     "NVIDIA H200 SXM data sheet; one 400 Gb/s adapter per device"},
    {"b200-sxm", 2250, 180 * UINT64_C(1000000000), 7200, 400,
     "NVIDIA DGX B200 data sheet, an eighth of a node; one 400 Gb/s adapter per device"},
};
const uint32_t cairn_device_sheet_count =
    sizeof(cairn_device_sheets) / sizeof(*cairn_device_sheets);

const struct cairn_model_shape *
cairn_model_shape_find(const char *name)
{
    for (uint32_t i = 0; i < cairn_model_shape_count; i++)
        if (strcmp(name, cairn_model_shapes[i].name) == 0)
            return &cairn_model_shapes[i];
    return NULL;
}

const struct cairn_device_sheet *
cairn_device_sheet_find(const char *name)
{
    for (uint32_t i = 0; i < cairn_device_sheet_count; i++)
        if (strcmp(name, cairn_device_sheets[i].name) == 0)
            return &cairn_device_sheets[i];
    return NULL;
}

void
cairn_preset_apply(const struct cairn_preset *preset, uint32_t tp, struct cairn_problem *problem)
{
    const struct cairn_model_shape *model = preset->model;
    double width = model->width, tokens = preset->sequence_tokens;
    double parameters = width * (2.0 * model->width + 2.0 * model->key_width +
                                 (double)model->matrices * model->inner_width);
    /* Forward and backward: 6 operations per parameter and token, and 12 per width and token
     * attended to. */
    double layer_work = 6 * parameters + 12 * width * tokens,
           head_work = 6 * width * model->vocabulary;

    problem->layers = model->layers;
    problem->layer_ms =
        layer_work * tokens / (preset->device->peak_tflops * 1e9 * preset->reached * tp);
    problem->embed_layers = 0; /* a look-up */
    problem->head_layers = head_work / layer_work;
    problem->tp = tp;
    problem->size_count = 0;
    for (uint32_t size = 1; size <= tp; size *= 2)
        problem->sizes[problem->size_count++] = (struct cairn_group_size){size, (double)tp / size};
    problem->layer_bytes = (uint64_t)(parameters * STATE_BYTES);
    problem->activation_bytes = (uint64_t)(tokens * width * ACTIVATION_BYTES);
    problem->reserved_bytes = 4 * GIB;
    problem->intra_gbps = preset->device->intra_gbps;
    problem->inter_gbps = preset->device->inter_gbps;
}
