/* tools/convert/megatron/dist_names.c - see megatron/dist_names.h. */
#include "tools/convert/megatron/dist_names.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STATE_PREFIX "optimizer.state."
#define EXPERT_KEY "experts.experts."
#define EXPERT_NAME "experts.local_experts."

/* ---- parts of names ---- */

static bool
begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* How many bytes of digits a part begins with where it is nothing but a number; else 0. */
static size_t
number_bytes(const char *part)
{
    size_t bytes = strspn(part, "0123456789");

    if (bytes > 1 && part[0] == '0')
        return 0;
    return bytes > 0 && bytes < 10 && (part[bytes] == '.' || part[bytes] == '\0') ? bytes : 0;
}

static bool
put(char *out, size_t *at, const char *text, size_t bytes)
{
    if (*at + bytes >= CAIRN_MDIST_NAME_BYTES_MAX)
        return false;
    memcpy(out + *at, text, bytes);
    *at += bytes;
    out[*at] = '\0';
    return true;
}

/* The part that a dot ends, its dot included. */
static size_t
part_bytes(const char *text)
{
    const char *dot = strchr(text, '.');

    return dot ? (size_t)(dot - text) + 1 : strlen(text);
}

/* ---- keys ---- */

bool
cairn_mdist_name_of_key(const char *key, struct cairn_mdist_name *out)
{
    size_t at = 0, bytes;

    memset(out, 0, sizeof(*out));
    if (strchr(key, '*'))
        return false; /* it stands for numbers in out->pattern */
    if (begins(key, "chained_") && (bytes = number_bytes(key + 8)) > 0 && key[8 + bytes] == '.')
        key += 8 + bytes + 1;
    if (begins(key, STATE_PREFIX)) {
        key += strlen(STATE_PREFIX);
        bytes = part_bytes(key);
        if (bytes < 2 || bytes > sizeof(out->state) || key[bytes - 1] != '.')
            return false;
        memcpy(out->state, key, bytes - 1);
        if (strcmp(out->state, "param") == 0 || strcmp(out->state, "fp32_param") == 0)
            (void)snprintf(out->state, sizeof(out->state), "fp32");
        key += bytes;
    }
    key += begins(key, "module.") ? strlen("module.") : 0;
    while (*key) {
        bool expert = begins(key, EXPERT_KEY), layer = begins(key, "layers.");

        bytes = expert ? strlen(EXPERT_KEY) : part_bytes(key);
        if (!(expert ? put(out->pattern, &at, EXPERT_NAME, strlen(EXPERT_NAME))
                     : put(out->pattern, &at, key, bytes)))
            return false;
        key += bytes;
        if ((layer || expert) && *key && number_bytes(key) == 0) {
            if (out->stars == CAIRN_MDIST_STARS_MAX || !put(out->pattern, &at, "*.", 2))
                return false;
            out->stars++;
        }
    }
    return at > 0;
}

bool
cairn_mdist_key_of(const struct cairn_mdist_name *name, char key[CAIRN_MDIST_NAME_BYTES_MAX])
{
    const char *text = name->pattern;
    size_t at = 0, bytes;
    char state[sizeof(name->state) + 32];

    key[0] = '\0';
    if (name->state[0]) {
        (void)snprintf(state, sizeof(state), STATE_PREFIX "%s.",
                       strcmp(name->state, "fp32") == 0 ? "param" : name->state);
        if (!put(key, &at, state, strlen(state)))
            return false;
    }
    while (*text) {
        if (begins(text, EXPERT_NAME)) {
            if (!put(key, &at, EXPERT_KEY, strlen(EXPERT_KEY)))
                return false;
            text += strlen(EXPERT_NAME);
        } else {
            bytes = part_bytes(text);
            if (!begins(text, "*.") && !put(key, &at, text, bytes))
                return false;
            text += bytes;
        }
    }
    return true;
}

/* ---- logical names ---- */

bool
cairn_mdist_fix(const struct cairn_mdist_name *name, const uint64_t *numbers, uint32_t keep,
                struct cairn_mdist_name *out)
{
    const char *text = name->pattern;
    uint32_t star = 0;
    size_t at = 0;
    char digits[24];

    memcpy(out->state, name->state, sizeof(out->state));
    out->pattern[0] = '\0';
    out->stars = 0;
    while (*text) {
        size_t bytes = part_bytes(text);

        if (begins(text, "*.")) {
            bool kept = keep & 1U << star;

            if (star == CAIRN_MDIST_STARS_MAX)
                return false;
            (void)snprintf(digits, sizeof(digits), "%" PRIu64 ".", numbers[star]);
            if (!put(out->pattern, &at, kept ? "*." : digits, kept ? 2 : strlen(digits)))
                return false;
            out->stars += kept;
            star++;
        } else if (!put(out->pattern, &at, text, bytes)) {
            return false;
        }
        text += bytes;
    }
    return true;
}

bool
cairn_mdist_expand(const struct cairn_mdist_name *name, const uint64_t *numbers,
                   char out[CAIRN_NAME_BYTES_MAX])
{
    struct cairn_mdist_name fixed;

    return cairn_mdist_fix(name, numbers, 0, &fixed) &&
           snprintf(out, CAIRN_NAME_BYTES_MAX, "%s%s%s", name->state, name->state[0] ? "." : "",
                    fixed.pattern) < CAIRN_NAME_BYTES_MAX;
}

bool
cairn_mdist_pattern_of(const char *logical, uint32_t state_bytes, struct cairn_mdist_name *out,
                       uint64_t numbers[CAIRN_MDIST_STARS_MAX])
{
    const char *text = logical;
    size_t at = 0;

    memset(out, 0, sizeof(*out));
    if (state_bytes >= sizeof(out->state))
        return false;
    if (state_bytes > 0) {
        memcpy(out->state, logical, state_bytes);
        text += state_bytes + 1;
    }
    while (*text) {
        bool counted = begins(text, "layers.") || begins(text, EXPERT_NAME);
        size_t bytes = begins(text, EXPERT_NAME) ? strlen(EXPERT_NAME) : part_bytes(text), digits;

        if (!put(out->pattern, &at, text, bytes))
            return false;
        text += bytes;
        digits = !counted ? 0 : begins(text, "*.") ? 1 : number_bytes(text);
        if (digits == 0 && begins(text, "*."))
            return false; /* no number's */
        if (digits > 0 && text[digits] == '.') {
            if (out->stars == CAIRN_MDIST_STARS_MAX)
                return false;
            numbers[out->stars++] = *text == '*' ? CAIRN_MDIST_DIMENSION : strtoull(text, NULL, 10);
            if (!put(out->pattern, &at, "*.", 2))
                return false;
            text += digits + 1;
        }
    }
    return true;
}

bool
cairn_mdist_extra_state(const char *logical, char out[CAIRN_NAME_BYTES_MAX])
{
    const char *last = strrchr(logical, '.');

    return last && snprintf(out, CAIRN_NAME_BYTES_MAX, "%.*s" CAIRN_MDIST_EXTRA_ENDING,
                            (int)(last - logical), logical) < CAIRN_NAME_BYTES_MAX;
}

bool
cairn_mdist_extra_key(const char *logical, uint32_t stacked, const uint64_t *extents,
                      char out[CAIRN_NAME_BYTES_MAX])
{
    char state[CAIRN_NAME_BYTES_MAX], key[CAIRN_MDIST_NAME_BYTES_MAX];
    char offsets[96] = "", shape[96] = "";
    uint64_t numbers[CAIRN_MDIST_STARS_MAX];
    struct cairn_mdist_name pattern, fixed;
    size_t offset_bytes = 0, shape_bytes = 0;

    if (!cairn_mdist_extra_state(logical, state) ||
        !cairn_mdist_pattern_of(state, 0, &pattern, numbers) ||
        !cairn_mdist_fix(&pattern, numbers, stacked, &fixed) || !cairn_mdist_key_of(&fixed, key))
        return false;
    for (uint32_t d = 0; d < pattern.stars; d++) { /* at most four numbers: they fit */
        if (!(stacked >> d & 1))
            continue;
        offset_bytes += (size_t)snprintf(offsets + offset_bytes, sizeof(offsets) - offset_bytes,
                                         "%s%" PRIu64, offset_bytes > 0 ? "." : "", numbers[d]);
        shape_bytes += (size_t)snprintf(shape + shape_bytes, sizeof(shape) - shape_bytes,
                                        "%s%" PRIu64, shape_bytes > 0 ? "." : "", extents[d]);
    }
    return snprintf(out, CAIRN_NAME_BYTES_MAX, "%s/shard_%s_%s", key,
                    offset_bytes > 0 ? offsets : "0",
                    shape_bytes > 0 ? shape : "1") < CAIRN_NAME_BYTES_MAX;
}
