/* tools/convert/maps/presets.c - the map files of presets/, compiled in as they are. */
#include <string.h>

#include "tools/convert/maps/language.h"

/* The file's bytes between two symbols of this object. Paths count from the root of the tree. */
#define PRESET(symbol, name)                                                                       \
    __asm__(".pushsection .rodata\n" #symbol "_begin: .incbin \"tools/convert/maps/presets/" name  \
            ".map\"\n" #symbol "_end:\n.popsection\n");                                            \
    extern const char symbol##_begin[] __attribute__((visibility("hidden")));                      \
    extern const char symbol##_end[] __attribute__((visibility("hidden")))

PRESET(cairn_preset_gpt2, "gpt2");
PRESET(cairn_preset_llama, "llama");
PRESET(cairn_preset_llama_meta, "llama-meta");
PRESET(cairn_preset_mixtral, "mixtral");
PRESET(cairn_preset_qwen2, "qwen2");
PRESET(cairn_preset_qwen3, "qwen3");
PRESET(cairn_preset_qwen3_moe, "qwen3-moe");

static const struct {
    const char *name, *begin, *end;
} presets[] = {
    {"gpt2", cairn_preset_gpt2_begin, cairn_preset_gpt2_end},
    {"llama", cairn_preset_llama_begin, cairn_preset_llama_end},
    {"llama-meta", cairn_preset_llama_meta_begin, cairn_preset_llama_meta_end},
    {"mixtral", cairn_preset_mixtral_begin, cairn_preset_mixtral_end},
    {"qwen2", cairn_preset_qwen2_begin, cairn_preset_qwen2_end},
    {"qwen3", cairn_preset_qwen3_begin, cairn_preset_qwen3_end},
    {"qwen3-moe", cairn_preset_qwen3_moe_begin, cairn_preset_qwen3_moe_end},
};

const char *
cairn_map_preset(const char *name, size_t *text_bytes)
{
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++)
        if (strcmp(presets[i].name, name) == 0) {
            *text_bytes = (size_t)(presets[i].end - presets[i].begin);
            return presets[i].begin;
        }
    return NULL;
}

const char *
cairn_map_preset_name(uint32_t index)
{
    return index < sizeof presets / sizeof *presets ? presets[index].name : NULL;
}
