/* tools/convert/state/names.c - see state/names.h. */
#include "tools/convert/state/names.h"

#include <string.h>

#include "tools/convert/core/numbers.h"
#include "tools/convert/state/reserved.h"

enum { PREFIX_KEYS_MAX = 2 }; /* of the model's and the optimizer's */

/* ---- text ---- */

bool
cairn_state_is_parameter_dtype(enum cairn_dtype dtype)
{
    return dtype == CAIRN_F16 || dtype == CAIRN_BF16 || dtype == CAIRN_F32 || dtype == CAIRN_F64 ||
           dtype == CAIRN_F8_E4M3 || dtype == CAIRN_F8_E5M2 || dtype == CAIRN_C64;
}

bool
cairn_state_join(const struct cairn_state_path *path, char *out, size_t out_bytes)
{
    size_t used = 0;

    for (uint32_t i = 0; i < path->count; i++) {
        size_t bytes = strlen(path->keys[i].text);

        if (used + bytes + 2 > out_bytes) {
            if (out_bytes > 0)
                out[used] = '\0';
            return false;
        }
        if (i > 0)
            out[used++] = '.';
        memcpy(out + used, path->keys[i].text, bytes);
        used += bytes;
    }
    out[used] = '\0';
    return out_bytes > 0;
}

void
cairn_state_unwrap(char *name)
{
    static const char *const wrappers[] = {"_orig_mod.", "_fsdp_wrapped_module.",
                                           "_checkpoint_wrapped_module."};

    for (size_t i = 0; i < sizeof(wrappers) / sizeof(wrappers[0]); i++) {
        size_t bytes = strlen(wrappers[i]);
        char *at = name;

        while ((at = strstr(at, wrappers[i])) != NULL)
            if (at == name || at[-1] == '.')
                memmove(at, at + bytes, strlen(at + bytes) + 1);
            else
                at += bytes;
    }
    while (strncmp(name, "module.", 7) == 0)
        memmove(name, name + 7, strlen(name + 7) + 1);
}

static bool
copy_text(char *out, const char *text, size_t bytes)
{
    if (bytes == 0 || bytes >= CAIRN_STATE_NAME_BYTES_MAX)
        return false;
    memcpy(out, text, bytes);
    out[bytes] = '\0';
    return true;
}

/* "state.<parameter>.<key>" behind "state.": false where it has no two parts. */
static bool
split_flat(const char *text, struct cairn_state_place *place)
{
    const char *dot = strrchr(text, '.');

    place->flat = true;
    if (!dot || dot == text || dot[1] == '\0')
        return false;
    return copy_text(place->parameter, text, (size_t)(dot - text)) &&
           copy_text(place->key, dot + 1, strlen(dot + 1));
}

/* ---- prefixes ---- */

static bool
is_model_key(const struct cairn_state_key *key)
{
    static const char *const names[] = {"model", "module", "state_dict", "model_state_dict"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (!key->number && strcmp(key->text, names[i]) == 0)
            return true;
    return false;
}

static bool
starts_with(const struct cairn_state_path *path, const struct cairn_state_path *prefix)
{
    if (path->count <= prefix->count)
        return false;
    for (uint32_t i = 0; i < prefix->count; i++)
        if (strcmp(path->keys[i].text, prefix->keys[i].text) != 0)
            return false;
    return true;
}

static struct cairn_state_path
prefix_of(const struct cairn_state_path *path, uint32_t count)
{
    struct cairn_state_path prefix = *path;

    prefix.count = count;
    return prefix;
}

/* Whether path[at] begins optimizer state: "state", a parameter, a key; or all in one. */
static bool
is_moment(const struct cairn_state_path *path, uint32_t at, bool *flat)
{
    const struct cairn_state_key *key = &path->keys[at];
    const char *dot;

    if (key->number)
        return false;
    *flat = false;
    if (strcmp(key->text, "state") == 0)
        return path->count == at + 3 && !path->keys[at + 2].number;
    *flat = true;
    dot = strncmp(key->text, "state.", 6) == 0 ? strrchr(key->text + 6, '.') : NULL;
    return path->count == at + 1 && dot && dot != key->text + 6;
}

void
cairn_state_roots_see(struct cairn_state_roots *roots, const struct cairn_state_path *path)
{
    bool flat;

    for (uint32_t i = 0; i < PREFIX_KEYS_MAX && !roots->model_known && i + 1 < path->count; i++)
        if (is_model_key(&path->keys[i])) {
            roots->model_known = true;
            roots->model = prefix_of(path, i + 1);
        }
    if (roots->model_known && starts_with(path, &roots->model))
        return;
    for (uint32_t i = 0; i <= PREFIX_KEYS_MAX && !roots->optimizer_known && i < path->count; i++)
        if (is_moment(path, i, &flat)) {
            roots->optimizer_known = true;
            roots->optimizer = prefix_of(path, i);
            roots->flat = flat;
        }
}

/* ---- what is where ---- */

/* Below the optimizer's prefix; OTHER where it is neither state nor groups. False: too long. */
static bool
classify_optimizer(const struct cairn_state_path *path, uint32_t at,
                   struct cairn_state_place *place)
{
    const struct cairn_state_key *key = &path->keys[at];
    uint64_t group;
    bool flat;

    if (is_moment(path, at, &flat)) {
        place->class = CAIRN_STATE_MOMENT;
        if (flat)
            return split_flat(key->text + strlen("state."), place);
        return copy_text(place->parameter, path->keys[at + 1].text,
                         strlen(path->keys[at + 1].text)) &&
               copy_text(place->key, path->keys[at + 2].text, strlen(path->keys[at + 2].text));
    }
    if (strcmp(key->text, "param_groups") == 0 && path->count == at + 3 &&
        path->keys[at + 1].number && !path->keys[at + 2].number &&
        cairn_number_read(path->keys[at + 1].text, UINT32_MAX, &group)) {
        place->class = CAIRN_STATE_GROUP;
        place->group = (uint32_t)group;
        return copy_text(place->key, path->keys[at + 2].text, strlen(path->keys[at + 2].text));
    }
    if (strncmp(key->text, "param_groups.", 13) == 0 && path->count == at + 1 &&
        split_flat(key->text + 13, place))
        place->class = CAIRN_STATE_GROUP;
    return true;
}

bool
cairn_state_classify(const struct cairn_state_roots *roots, const struct cairn_state_path *path,
                     struct cairn_state_place *place)
{
    struct cairn_state_path rest = {0};

    memset(place, 0, sizeof(*place));
    place->class = CAIRN_STATE_OTHER;
    if (path->count == 0)
        return false;
    if (roots->model_known && starts_with(path, &roots->model)) {
        place->class = CAIRN_STATE_MODEL;
        place->in_model = true;
        for (uint32_t i = roots->model.count; i < path->count; i++)
            rest.keys[rest.count++] = path->keys[i];
        if (!cairn_state_join(&rest, place->parameter, sizeof(place->parameter)))
            return false;
    } else if (roots->optimizer_known && starts_with(path, &roots->optimizer)) {
        if (!classify_optimizer(path, roots->optimizer.count, place))
            return false;
    }
    if (place->class == CAIRN_STATE_OTHER) {
        place->in_model = !roots->model_known;
        if (!cairn_state_join(path, place->parameter, sizeof(place->parameter)))
            return false;
    }
    if (place->class != CAIRN_STATE_OTHER || place->in_model)
        cairn_state_unwrap(place->parameter);
    return true;
}

cairn_err
cairn_whole_names_add(struct cairn_name_set *whole, const struct cairn_state_roots *roots,
                      const struct cairn_state_path *path)
{
    char joined[CAIRN_STATE_NAME_BYTES_MAX];
    struct cairn_state_place place;

    if (path->count == 2 && strcmp(path->keys[0].text, CAIRN_CARRIED_KEY) == 0)
        return CAIRN_OK; /* named by its last key */
    if (!cairn_state_join(path, joined, sizeof(joined)) ||
        !cairn_state_classify(roots, path, &place) || place.class != CAIRN_STATE_OTHER ||
        strcmp(place.parameter, joined) != 0)
        return CAIRN_OK;
    return cairn_name_set_add(whole, joined);
}
