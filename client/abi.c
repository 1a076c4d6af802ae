/*
 * client/abi.c - checks the sizes of the caller's structs and copies them in and out.
 *
 * `struct_type` describes each struct. The size of its first version is the smallest that a caller
 * can have; it is a literal, so that no later change can move it.
 */
#include "client/abi.h"

#include "client/state.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    STRUCT_BYTES_MAX = 4096, /* no version is larger: more is not a size */
    NO_INDEX = -1
};

struct struct_type {
    const char *name;
    const char *init;
    uint32_t first_bytes; /* of the first version */
    uint32_t bytes;       /* as this library knows it */
    uint32_t reserved_at; /* offset of `reserved`; 0: the struct has none */
};

#define END_OF(type, field) (offsetof(type, field) + sizeof(((type *)0)->field))
#define DEFINE_TYPE(variable, type, init_macro, last_field, first, reserved)                       \
    _Static_assert(END_OF(type, last_field) == (first) && sizeof(type) % 8 == 0 &&                 \
                       offsetof(type, struct_bytes) == 0,                                          \
                   "the first version of a struct never changes");                                 \
    static const struct struct_type variable = {#type, #init_macro, first, sizeof(type), reserved}

_Static_assert(sizeof(struct cairn_generation) == 16, "callers pass it without its size");
DEFINE_TYPE(options_type, struct cairn_client_options, CAIRN_CLIENT_OPTIONS_INIT, agent_socket, 64,
            offsetof(struct cairn_client_options, reserved));
DEFINE_TYPE(restored_type, struct cairn_restored, CAIRN_RESTORED_INIT, file_bytes, 56,
            offsetof(struct cairn_restored, reserved));
DEFINE_TYPE(stats_type, struct cairn_client_stats, CAIRN_CLIENT_STATS_INIT, epoch, 104, 0);
DEFINE_TYPE(slice_type, struct cairn_slice, CAIRN_SLICE_INIT, address, 256,
            offsetof(struct cairn_slice, reserved));
DEFINE_TYPE(uncovered_type, struct cairn_uncovered, CAIRN_UNCOVERED_INIT, reason, 24, 0);

/* A caller's struct may lie at any address that its own compiler chose: read it bytewise. */
static uint32_t
u32_at(const void *given, size_t offset)
{
    uint32_t value;

    memcpy(&value, (const uint8_t *)given + offset, sizeof value);
    return value;
}

static void
say_fault(const struct cairn_client *client, const struct struct_type *type, int64_t index,
          const char *what, uint32_t value, const char *remedy)
{
    char place[32] = "";

    if (index != NO_INDEX)
        snprintf(place, sizeof place, " index=%lld", (long long)index);
    client_say(client, CAIRN_LOG_ERROR, "client: %s%s: %s %u%s%s", type->name, place, what, value,
               remedy, type->init);
}

/* The size and the reserved field. */
static cairn_err
check_head(const struct cairn_client *client, const struct struct_type *type, int64_t index,
           const void *given)
{
    uint32_t bytes = u32_at(given, 0);
    const char *what = NULL;

    if (bytes < type->first_bytes)
        what = "struct_bytes is smaller than in any version:";
    else if (bytes > STRUCT_BYTES_MAX || bytes % 8 != 0)
        what = "struct_bytes is not the size of a struct:";
    if (what) {
        say_fault(client, type, index, what, bytes, "; initialise it with ");
        return CAIRN_INVAL;
    }
    if (type->reserved_at && u32_at(given, type->reserved_at) != 0) {
        say_fault(client, type, index, "reserved must be 0 and is",
                  u32_at(given, type->reserved_at), "; initialise it with ");
        return CAIRN_INVAL;
    }
    return CAIRN_OK;
}

/* Fields that this library does not know must have their default. */
static cairn_err
check_tail(const struct cairn_client *client, const struct struct_type *type, int64_t index,
           const void *given)
{
    uint32_t bytes = u32_at(given, 0);

    for (uint32_t at = type->bytes; at < bytes; at++) {
        if (((const uint8_t *)given)[at] == 0)
            continue;
        say_fault(client, type, index, "this libcairn does not know the field at byte", at,
                  "; upgrade it, or leave that field 0 after ");
        return CAIRN_INVAL;
    }
    return CAIRN_OK;
}

static cairn_err
take(const struct cairn_client *client, const struct struct_type *type, int64_t index,
     const void *given, void *out)
{
    uint32_t bytes;
    cairn_err err = check_head(client, type, index, given);

    if (!err)
        err = check_tail(client, type, index, given);
    if (err)
        return err;
    bytes = u32_at(given, 0);
    memset(out, 0, type->bytes);
    memcpy(out, given, bytes < type->bytes ? bytes : type->bytes);
    memcpy(out, &type->bytes, sizeof type->bytes);
    return CAIRN_OK;
}

/* The distance between elements is the size of the first. Each element must confirm it. */
static cairn_err
take_array(const struct cairn_client *client, const struct struct_type *type, const void *given,
           uint32_t count, void **out)
{
    uint8_t *taken = calloc(count ? count : 1, type->bytes);
    cairn_err err = CAIRN_OK;
    size_t stride = 0;

    if (!taken)
        return CAIRN_NOMEM;
    if (count)
        err = check_head(client, type, 0, given);
    if (!err && count)
        stride = u32_at(given, 0);
    for (uint32_t i = 0; i < count && !err; i++) {
        const uint8_t *element = (const uint8_t *)given + i * stride;

        if (u32_at(element, 0) != stride) {
            say_fault(client, type, i, "struct_bytes is not that of element 0:", u32_at(element, 0),
                      "; initialise every element with ");
            err = CAIRN_INVAL;
        } else {
            err = take(client, type, i, element, taken + (size_t)i * type->bytes);
        }
    }
    if (!err) {
        *out = taken;
        taken = NULL;
    }
    free(taken);
    return err;
}

static void
put(const struct struct_type *type, void *out, const void *value)
{
    uint32_t bytes = u32_at(out, 0), known = bytes < type->bytes ? bytes : type->bytes;

    memset(out, 0, bytes);
    memcpy(out, value, known);
    memcpy(out, &bytes, sizeof bytes); /* the caller's own */
}

cairn_err
client_abi_take_options(const struct cairn_client *client, const struct cairn_client_options *given,
                        struct cairn_client_options *out)
{
    return take(client, &options_type, NO_INDEX, given, out);
}

cairn_err
client_abi_take_slices(const struct cairn_client *client, const struct cairn_slice *given,
                       uint32_t count, struct cairn_slice **out)
{
    void *taken = NULL;
    cairn_err err = take_array(client, &slice_type, given, count, &taken);

    if (!err)
        *out = taken;
    return err;
}

cairn_err
client_abi_take_uncovered(const struct cairn_client *client, const struct cairn_uncovered *given,
                          uint32_t count, struct cairn_uncovered **out)
{
    void *taken = NULL;
    cairn_err err = take_array(client, &uncovered_type, given, count, &taken);

    if (!err)
        *out = taken;
    return err;
}

cairn_err
client_abi_check_restored(const struct cairn_client *client, const struct cairn_restored *out)
{
    return check_head(client, &restored_type, NO_INDEX, out);
}

cairn_err
client_abi_check_stats(const struct cairn_client *client, const struct cairn_client_stats *out)
{
    return check_head(client, &stats_type, NO_INDEX, out);
}

void
client_abi_put_restored(struct cairn_restored *out, const struct cairn_restored *value)
{
    put(&restored_type, out, value);
}

void
client_abi_put_stats(struct cairn_client_stats *out, const struct cairn_client_stats *value)
{
    put(&stats_type, out, value);
}
