/* tools/convert/megatron/names.c - the table of parameters, and names with local and global
 * numbers. */
#include "tools/convert/megatron/names.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAYERS "decoder.layers."
#define EXPERTS ".experts."
#define LOCAL "local_experts."

enum { NUMBER_MAX = 1000000 };

/* In the order in which megatron-core's modules register. */
static const struct cairn_megatron_rule rules[] = {
    {"word_embeddings.weight", CAIRN_MEGATRON_VOCABULARY, false, false},
    {"position_embeddings.weight", CAIRN_MEGATRON_REPLICATED, false, false},
    {"tokentype_embeddings.weight", CAIRN_MEGATRON_REPLICATED, false, false},
    {"input_layernorm.weight", CAIRN_MEGATRON_REPLICATED, false, false},
    {"input_layernorm.bias", CAIRN_MEGATRON_REPLICATED, false, false},
    {"self_attention.softmax_offset", CAIRN_MEGATRON_ROWS, false, false},
    {"core_attention.softmax_offset", CAIRN_MEGATRON_ROWS, false, false},
    {"linear_proj.weight", CAIRN_MEGATRON_COLUMNS, false, true},
    {"linear_proj.bias", CAIRN_MEGATRON_REPLICATED, false, true},
    {"linear_qkv.layer_norm_weight", CAIRN_MEGATRON_REPLICATED, false, true},
    {"linear_qkv.layer_norm_bias", CAIRN_MEGATRON_REPLICATED, false, true},
    {"linear_qkv.weight", CAIRN_MEGATRON_ROWS, false, true},
    {"linear_qkv.bias", CAIRN_MEGATRON_ROWS, false, true},
    {"linear_q_proj.weight", CAIRN_MEGATRON_ROWS, false, true},
    {"linear_q_down_proj.weight", CAIRN_MEGATRON_REPLICATED, false, true},
    {"linear_q_up_proj.layer_norm_weight", CAIRN_MEGATRON_REPLICATED, false, true},
    {"linear_q_up_proj.weight", CAIRN_MEGATRON_ROWS, false, true},
    {"linear_kv_down_proj.weight", CAIRN_MEGATRON_REPLICATED, false, true},
    {"linear_kv_up_proj.layer_norm_weight", CAIRN_MEGATRON_REPLICATED, false, true},
    {"linear_kv_up_proj.weight", CAIRN_MEGATRON_ROWS, false, true},
    {"q_layernorm.weight", CAIRN_MEGATRON_REPLICATED, false, false},
    {"q_layernorm.bias", CAIRN_MEGATRON_REPLICATED, false, false},
    {"k_layernorm.weight", CAIRN_MEGATRON_REPLICATED, false, false},
    {"k_layernorm.bias", CAIRN_MEGATRON_REPLICATED, false, false},
    {"kv_layernorm.weight", CAIRN_MEGATRON_REPLICATED, false, false},
    {"pre_mlp_layernorm.weight", CAIRN_MEGATRON_REPLICATED, false, false},
    {"pre_mlp_layernorm.bias", CAIRN_MEGATRON_REPLICATED, false, false},
    {"router.weight", CAIRN_MEGATRON_REPLICATED, false, false},
    {"router.bias", CAIRN_MEGATRON_REPLICATED, false, false},
    {"router.expert_bias", CAIRN_MEGATRON_REPLICATED, true, false},
    {"router.local_tokens_per_expert", CAIRN_MEGATRON_REPLICATED, true, false},
    {"experts.weight1", CAIRN_MEGATRON_UNREADABLE, false, false},
    {"experts.weight2", CAIRN_MEGATRON_UNREADABLE, false, false},
    {"linear_fc1.layer_norm_weight", CAIRN_MEGATRON_REPLICATED, false, true},
    {"linear_fc1.layer_norm_bias", CAIRN_MEGATRON_REPLICATED, false, true},
    {"linear_fc1.weight", CAIRN_MEGATRON_ROWS, false, true},
    {"linear_fc1.bias", CAIRN_MEGATRON_ROWS, false, true},
    {"linear_fc2.weight", CAIRN_MEGATRON_COLUMNS, false, true},
    {"linear_fc2.bias", CAIRN_MEGATRON_REPLICATED, false, true},
    {"shared_experts.gate_weight", CAIRN_MEGATRON_REPLICATED, false, false},
    {"final_layernorm.weight", CAIRN_MEGATRON_REPLICATED, false, false},
    {"final_layernorm.bias", CAIRN_MEGATRON_REPLICATED, false, false},
    {"enorm.weight", CAIRN_MEGATRON_REPLICATED, false, false},
    {"hnorm.weight", CAIRN_MEGATRON_REPLICATED, false, false},
    {"eh_proj.weight", CAIRN_MEGATRON_ROWS, false, true},
    {"output_layer.weight", CAIRN_MEGATRON_VOCABULARY, false, true},
    {"output_layer.bias", CAIRN_MEGATRON_VOCABULARY, false, true},
};
enum { RULE_COUNT = sizeof(rules) / sizeof(rules[0]) };

/* A number at *at, which moves past it. */
static bool
take_number(const char **at, uint32_t *number)
{
    unsigned long value;
    char *end;

    if (**at < '0' || **at > '9')
        return false;
    value = strtoul(*at, &end, 10);
    if (value > NUMBER_MAX || (**at == '0' && end - *at > 1))
        return false; /* a leading zero would not come back */
    *number = (uint32_t)value;
    *at = end;
    return true;
}

static bool
append(char *out, const char *text, size_t bytes)
{
    size_t used = strlen(out);

    if (bytes >= CAIRN_NAME_BYTES_MAX - used)
        return false;
    memcpy(out + used, text, bytes);
    out[used + bytes] = '\0';
    return true;
}

/* "linear_fc1.weight12", the whole name: its number, and where that begins. */
static bool
ends_grouped(const char *text, uint32_t *number, size_t *word_bytes)
{
    static const char *const words[] = {"linear_fc1.weight", "linear_fc1.bias", "linear_fc2.weight",
                                        "linear_fc2.bias"};

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        const char *at = text + strlen(words[i]);

        if (strncmp(text, words[i], strlen(words[i])) != 0)
            continue;
        *word_bytes = strlen(words[i]);
        return take_number(&at, number) && *at == '\0';
    }
    return false;
}

bool
cairn_megatron_name_parse(const char *text, struct cairn_megatron_name *name)
{
    const char *at = text, *experts;
    size_t word_bytes = 0;

    memset(name, 0, sizeof(*name));
    if (strchr(text, '*'))
        return false; /* it stands for numbers in name->rest */
    if (strncmp(text, LAYERS, strlen(LAYERS)) == 0) {
        at = text + strlen(LAYERS);
        name->has_layer = true;
        if (!take_number(&at, &name->layer) || *at != '.' ||
            !append(name->rest, LAYERS "*", strlen(LAYERS "*")))
            return false;
    }
    experts = strstr(at, EXPERTS);
    if (!experts)
        return append(name->rest, at, strlen(at));
    experts += strlen(EXPERTS);
    if (!append(name->rest, at, (size_t)(experts - at)))
        return false;
    if (strncmp(experts, LOCAL, strlen(LOCAL)) == 0) {
        experts += strlen(LOCAL);
        name->has_expert = true;
        return take_number(&experts, &name->expert) && *experts == '.' &&
               append(name->rest, LOCAL "*", strlen(LOCAL "*")) &&
               append(name->rest, experts, strlen(experts));
    }
    if (!ends_grouped(experts, &name->expert, &word_bytes))
        return append(name->rest, experts, strlen(experts));
    name->has_expert = name->grouped = true;
    return append(name->rest, LOCAL "*.", strlen(LOCAL "*.")) &&
           append(name->rest, experts, word_bytes);
}

bool
cairn_megatron_name_print(const struct cairn_megatron_name *name, bool as_stored,
                          char text[CAIRN_NAME_BYTES_MAX])
{
    const char *at = name->rest, *star;
    char number[16];

    text[0] = '\0';
    if (name->has_layer) {
        star = strchr(at, '*');
        (void)snprintf(number, sizeof(number), "%" PRIu32, name->layer);
        if (!star || !append(text, at, (size_t)(star - at)) ||
            !append(text, number, strlen(number)))
            return false;
        at = star + 1;
    }
    if (!name->has_expert)
        return append(text, at, strlen(at));
    star = strchr(at, '*');
    (void)snprintf(number, sizeof(number), "%" PRIu32, name->expert);
    if (!star)
        return false;
    if (as_stored && name->grouped) {
        size_t before = (size_t)(star - at) - strlen(LOCAL);

        return append(text, at, before) && append(text, star + 2, strlen(star + 2)) &&
               append(text, number, strlen(number));
    }
    return append(text, at, (size_t)(star - at)) && append(text, number, strlen(number)) &&
           append(text, star + 1, strlen(star + 1));
}

bool
cairn_megatron_name_group(const char *name, char out[CAIRN_NAME_BYTES_MAX])
{
    const char *local = strstr(name, EXPERTS LOCAL), *at;
    size_t word_bytes = 0;
    uint32_t number, none;
    char word[CAIRN_NAME_BYTES_MAX];

    if (!local)
        return false;
    at = local + strlen(EXPERTS LOCAL);
    if (!take_number(&at, &number) || *at != '.' ||
        snprintf(word, sizeof(word), "%s%" PRIu32, at + 1, number) >= (int)sizeof(word) ||
        !ends_grouped(word, &none, &word_bytes) || word_bytes != strlen(at + 1))
        return false;
    return snprintf(out, CAIRN_NAME_BYTES_MAX, "%.*s" EXPERTS "%s", (int)(local - name), name,
                    word) < CAIRN_NAME_BYTES_MAX;
}

static bool
ends_with(const char *name, const char *ending)
{
    size_t bytes = strlen(name), ending_bytes = strlen(ending);

    return bytes >= ending_bytes && strcmp(name + bytes - ending_bytes, ending) == 0 &&
           (bytes == ending_bytes || name[bytes - ending_bytes - 1] == '.');
}

const struct cairn_megatron_rule *
cairn_megatron_rule_of(const char *name)
{
    struct cairn_megatron_name parts;
    size_t bytes = strlen(name);

    if (bytes > 0 && name[bytes - 1] >= '0' && name[bytes - 1] <= '9' &&
        cairn_megatron_name_parse(name, &parts) && parts.grouped)
        return cairn_megatron_rule_of(parts.rest);
    for (size_t i = 0; i < RULE_COUNT; i++)
        if (ends_with(name, rules[i].name))
            return &rules[i];
    return NULL;
}

uint32_t
cairn_megatron_order_of(const char *name)
{
    const struct cairn_megatron_rule *rule = cairn_megatron_rule_of(name);

    return rule ? (uint32_t)(rule - rules) : RULE_COUNT;
}

bool
cairn_megatron_norm_rename(const char *name, bool fused, char *out, size_t out_bytes)
{
    static const char *const spellings[][2] = {
        {".input_layernorm.", ".self_attention.linear_qkv.layer_norm_"},
        {".pre_mlp_layernorm.", ".mlp.linear_fc1.layer_norm_"}};

    for (size_t i = 0; i < sizeof(spellings) / sizeof(spellings[0]); i++) {
        const char *from = spellings[i][!fused], *at = strstr(name, from);
        const char *rest = at ? at + strlen(from) : NULL;

        if (rest && (strcmp(rest, "weight") == 0 || strcmp(rest, "bias") == 0))
            return snprintf(out, out_bytes, "%.*s%s%s", (int)(at - name), name, spellings[i][fused],
                            rest) < (int)out_bytes;
    }
    return false;
}

bool
cairn_megatron_is_extra(const char *name)
{
    return ends_with(name, "_extra_state");
}
