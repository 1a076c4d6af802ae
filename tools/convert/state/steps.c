/* tools/convert/state/steps.c - see steps.h. */
#include "tools/convert/state/steps.h"

#include <inttypes.h>
#include <string.h>

#include "snapshot/box.h"
#include "tools/convert/state/opaque_tree.h"
#include "tools/convert/state/names.h"

/* The count that a piece of a tensor of one element is. */
static bool
load_count(const struct cairn_checkpoint *checkpoint, const struct cairn_piece *piece,
           uint64_t *count)
{
    const struct cairn_tensor *tensor = cairn_layout_tensor(checkpoint->layout, piece->tensor);
    size_t bytes_len = cairn_dtype_bytes(tensor->dtype);
    uint8_t bytes[16];
    float real = -1;
    int64_t whole = -1;

    if (bytes_len > sizeof(bytes) || cairn_tensor_bytes(tensor) != bytes_len ||
        cairn_checkpoint_load_piece(checkpoint, piece, bytes, bytes_len) != CAIRN_OK)
        return false;
    if (tensor->dtype == CAIRN_F32)
        memcpy(&real, bytes, sizeof(real));
    if (tensor->dtype == CAIRN_I64)
        memcpy(&whole, bytes, sizeof(whole));
    if (real >= 0 && real < 16777216.0f && (float)(int64_t)real == real)
        whole = (int64_t)real;
    *count = (uint64_t)whole;
    return whole >= 0;
}

bool
cairn_steps_load(const struct cairn_checkpoint *checkpoint, uint32_t tensor, uint64_t *count)
{
    const struct cairn_layout *layout = checkpoint->layout;

    tensor = cairn_checkpoint_past_alias(checkpoint, tensor);
    for (size_t i = 0; i < cairn_layout_piece_count(layout); i++)
        if (cairn_layout_piece(layout, i)->tensor == tensor)
            return load_count(checkpoint, cairn_layout_piece(layout, i), count);
    return false;
}

/* A count that was seen, and where; they all have to be the same. */
struct seen {
    const struct cairn_checkpoint *checkpoint;
    const char *first; /* NULL: none was seen */
    uint64_t count;
};

static cairn_err
see(struct seen *seen, const char *name, bool readable, uint64_t count)
{
    if (!readable)
        return cairn_refuse(seen->checkpoint, CAIRN_CORRUPT, "%s expected a count of steps", name);
    if (seen->first && seen->count != count)
        return cairn_refuse(seen->checkpoint, CAIRN_INVAL,
                            "%s is %" PRIu64 " and %s is %" PRIu64
                            ", and the optimizer that will load it has one count for all",
                            seen->first, seen->count, name, count);
    seen->first = seen->first ? seen->first : name;
    seen->count = count;
    return CAIRN_OK;
}

bool
cairn_steps_read(const struct cairn_pickle_node *node, uint64_t *count)
{
    if (node && node->kind == CAIRN_PICKLE_FLOAT && node->real >= 0 && node->real < 9e15 &&
        (double)(uint64_t)node->real == node->real) {
        *count = (uint64_t)node->real;
        return true;
    }
    return cairn_pickle_u64(node, count);
}

/* Whether opaque state is the step of a parameter: [<prefix>.]state.<parameter>.step.pickle, of its
 * name or number; *prefix_bytes: what stands before "state.". There is other state with a "step"
 * that is not an optimizer's. */
static bool
is_plain_step(const struct cairn_layout *layout, const struct cairn_tensor *tensor,
              size_t *prefix_bytes)
{
    static const char end[] = ".step.pickle", state[] = "state.";
    size_t bytes = strlen(tensor->name), state_bytes = strlen(state);
    char parameter[CAIRN_NAME_BYTES_MAX];

    if (tensor->kind != CAIRN_OPAQUE || strchr(tensor->name, '/') || bytes <= strlen(end) ||
        bytes >= sizeof(parameter) || strcmp(tensor->name + bytes - strlen(end), end) != 0)
        return false;
    for (const char *at = strstr(tensor->name, state); at; at = strstr(at + 1, state)) {
        size_t begins = (size_t)(at - tensor->name) + state_bytes;
        uint32_t found;

        if ((at > tensor->name && at[-1] != '.') || begins >= bytes - strlen(end))
            continue;
        *prefix_bytes = (size_t)(at - tensor->name);
        memcpy(parameter, tensor->name + begins, bytes - strlen(end) - begins);
        parameter[bytes - strlen(end) - begins] = '\0';
        if (strspn(parameter, "0123456789") == strlen(parameter))
            return true;
        cairn_state_unwrap(parameter);
        found = cairn_layout_tensor_find(layout, parameter);
        if (found != UINT32_MAX && cairn_layout_tensor(layout, found)->kind != CAIRN_OPAQUE)
            return true;
    }
    return false;
}

/* How likely state under a prefix belongs to the optimizer whose moments the checkpoint has. Of
 * several optimizers the readers take one: its tensors are optimizer state, mostly under
 * parameters' names, else under the prefix; the others' are buffers. */
enum owner { ANOTHERS, ANYONES, USUAL, OURS };

static enum owner
owner_of(const struct cairn_layout *layout, const char *name, size_t prefix_bytes)
{
    static const char state[] = "state.", usual[] = "optimizer.";

    for (uint32_t i = 0; i < cairn_layout_tensor_count(layout); i++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(layout, i);

        if (tensor->kind != CAIRN_OPAQUE && strncmp(tensor->name, name, prefix_bytes) == 0 &&
            strncmp(tensor->name + prefix_bytes, state, strlen(state)) == 0)
            return tensor->kind == CAIRN_OPTIMIZER ? OURS : ANOTHERS;
    }
    return prefix_bytes == strlen(usual) && strncmp(name, usual, prefix_bytes) == 0 ? USUAL
                                                                                    : ANYONES;
}

/* Steps that are plain numbers, each with whose it may be. Thousands of parameters have the same
 * prefix, so the last one is kept. */
struct plain_steps {
    const struct cairn_layout *layout;
    uint32_t at;
    const char *last;
    size_t last_bytes;
    enum owner owner;
};

static const struct cairn_tensor *
next_plain(struct plain_steps *steps)
{
    while (steps->at < cairn_layout_tensor_count(steps->layout)) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(steps->layout, steps->at++);
        size_t prefix_bytes;

        if (!is_plain_step(steps->layout, tensor, &prefix_bytes))
            continue;
        if (!steps->last || steps->last_bytes != prefix_bytes ||
            strncmp(steps->last, tensor->name, prefix_bytes) != 0)
            steps->owner = owner_of(steps->layout, tensor->name, prefix_bytes);
        steps->last = tensor->name;
        steps->last_bytes = prefix_bytes;
        return tensor;
    }
    return NULL;
}

/* Steps that are plain numbers, as optimizers of PyTorch before 1.12 and many others have them. */
static cairn_err
see_plain(struct seen *seen)
{
    struct plain_steps all = {.layout = seen->checkpoint->layout}, steps = all;
    const struct cairn_tensor *tensor;
    enum owner best = ANOTHERS;
    cairn_err err = CAIRN_OK;

    while (next_plain(&all))
        best = all.owner > best ? all.owner : best;
    while (best > ANOTHERS && !err && (tensor = next_plain(&steps))) {
        struct cairn_opaque_tree plain;
        uint64_t found = 0;
        bool readable;

        if (steps.owner != best)
            continue;
        err = cairn_opaque_tree_open(seen->checkpoint, tensor->name, &plain);
        readable = !err && cairn_steps_read(plain.root, &found);
        if (err == CAIRN_OK || err == CAIRN_CORRUPT || err == CAIRN_VERSION)
            err = see(seen, tensor->name, readable, found);
        cairn_opaque_tree_close(&plain);
    }
    return err;
}

cairn_err
cairn_steps_common(const struct cairn_checkpoint *checkpoint, bool *known, uint64_t *count)
{
    const struct cairn_layout *layout = checkpoint->layout;
    struct seen seen = {.checkpoint = checkpoint};
    cairn_err err = CAIRN_OK;

    for (size_t i = 0; i < cairn_layout_piece_count(layout) && !err; i++) {
        const struct cairn_piece *piece = cairn_layout_piece(layout, i);
        const struct cairn_tensor *tensor = cairn_layout_tensor(layout, piece->tensor);
        uint64_t found = 0;
        bool readable;

        if (tensor->kind != CAIRN_OPTIMIZER || strncmp(tensor->name, "step.", 5) != 0)
            continue;
        readable = load_count(checkpoint, piece, &found);
        err = see(&seen, tensor->name, readable, found);
    }
    if (!err)
        err = see_plain(&seen);
    *known = !err && seen.first;
    if (*known)
        *count = seen.count;
    return err;
}
