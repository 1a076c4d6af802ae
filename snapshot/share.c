/*
 * snapshot/share.c - what one rank captures: the check of a slice, its replica share, and the plan
 * of a region.
 *
 * Linked into the trainer: nothing here aborts, prints or allocates. The client and the agent both
 * compute the plan from the same slices and must get the same bytes: it is deterministic.
 */
#include "snapshot/manifest.h"

#include "base/limits.h"

#include <string.h>

/* The length of one well-formed UTF-8 sequence at `text` (RFC 3629), 0 where there is none. */
static size_t
utf8_bytes(const uint8_t *text, size_t left)
{
    size_t len = text[0] < 0x80   ? 1
                 : text[0] < 0xc2 ? 0
                 : text[0] < 0xe0 ? 2
                 : text[0] < 0xf0 ? 3
                 : text[0] < 0xf5 ? 4
                                  : 0;

    if (len == 0 || len > left)
        return 0;
    for (size_t i = 1; i < len; i++)
        if ((text[i] & 0xc0) != 0x80)
            return 0;
    if (text[0] == 0xe0 && text[1] < 0xa0) /* longer than needed */
        return 0;
    if (text[0] == 0xed && text[1] > 0x9f) /* a surrogate */
        return 0;
    if (text[0] == 0xf0 && text[1] < 0x90)
        return 0;
    if (text[0] == 0xf4 && text[1] > 0x8f)
        return 0;
    return len;
}

/* Names end up in log lines, reports and JSON headers, so they must be clean text. */
static bool
name_is_valid(const char *name)
{
    size_t len = name ? strnlen(name, CAIRN_NAME_BYTES_MAX) : 0;
    const uint8_t *at = (const uint8_t *)name;

    if (len == 0 || len == CAIRN_NAME_BYTES_MAX)
        return false;
    for (size_t i = 0, step; i < len; i += step) {
        step = utf8_bytes(at + i, len - i);
        if (step == 0 || at[i] < 0x20 || at[i] == 0x7f)
            return false;
    }
    return true;
}

/* Whether the tensor's bytes stay within INT64_MAX, with dimensions of size 0 counted as 1. */
static bool
shape_is_bounded(const struct cairn_slice *slice)
{
    uint64_t bytes = cairn_dtype_bytes(slice->dtype);

    for (uint32_t d = 0; d < slice->dims; d++)
        if (slice->shape[d] > 1 && __builtin_mul_overflow(bytes, slice->shape[d], &bytes))
            return false;
    return bytes <= INT64_MAX;
}

static uint64_t
box_elements(const struct cairn_slice *slice)
{
    uint64_t elements = 1;

    for (uint32_t d = 0; d < slice->dims; d++)
        elements *= slice->extent[d];
    return elements;
}

/* The first error of a slice, NULL if it is right. */
static const char *
slice_fault(const struct cairn_slice *slice)
{
    if (!name_is_valid(slice->name))
        return "the name is missing, too long, or not clean UTF-8";
    if (cairn_dtype_bytes(slice->dtype) == 0)
        return "the dtype is unknown";
    if (slice->kind < CAIRN_PARAM || slice->kind > CAIRN_OPAQUE)
        return "the kind is unknown";
    if (slice->dims > CAIRN_DIMS_MAX)
        return "too many dimensions";
    if (slice->kind == CAIRN_OPAQUE && (slice->dtype != CAIRN_U8 || slice->dims != 1))
        return "an opaque blob must be U8 of one dimension";
    if (!shape_is_bounded(slice))
        return "the shape is too large";
    for (uint32_t d = 0; d < slice->dims; d++)
        if (slice->offset[d] > slice->shape[d] ||
            slice->extent[d] > slice->shape[d] - slice->offset[d])
            return "the box leaves the tensor's shape";
    if (slice->flat_begin > slice->flat_end)
        return "the flat range ends before it begins";
    if (slice->flat_end > box_elements(slice))
        return "the flat range leaves its box";
    if (slice->replica_index > 0 && slice->replica_index >= slice->replica_count)
        return "the replica index is not below the replica count";
    return NULL;
}

cairn_err
cairn_slice_check(const struct cairn_slice *slice, const char **why)
{
    const char *fault = slice_fault(slice);

    if (!fault)
        return CAIRN_OK;
    if (why)
        *why = fault;
    return CAIRN_INVAL;
}

uint64_t
cairn_slice_elements(const struct cairn_slice *slice)
{
    if (slice->flat_end > 0)
        return slice->flat_end - slice->flat_begin;
    return box_elements(slice);
}

void
cairn_slice_share(const struct cairn_slice *slice, uint64_t *begin, uint64_t *end)
{
    uint64_t elements = cairn_slice_elements(slice);
    uint64_t unit = CAIRN_CAPTURE_ALIGN_BYTES / cairn_dtype_bytes(slice->dtype);
    uint64_t units = elements / unit + (elements % unit > 0);
    uint64_t replicas = slice->replica_count > 1 ? slice->replica_count : 1;
    uint64_t index = slice->replica_index;
    uint64_t each = units / replicas;
    uint64_t plain =
        replicas - units % replicas; /* replicas before those that take one unit more */
    uint64_t first = each * index + (index > plain ? index - plain : 0);
    uint64_t last = first + each + (index >= plain);

    /* Only the very last unit may be short, so the last replica is among those that take more. With
     * fewer units than replicas the first take one each, so that the empty shares begin above
     * 0: at 0 an empty range would mean the whole box. */
    if (each == 0) {
        first = index;
        last = index + 1;
    }
    *begin = slice->flat_begin + (first < units ? first * unit : elements);
    *end = slice->flat_begin + (last < units ? last * unit : elements);
}

uint64_t
cairn_capture_bytes(const struct cairn_manifest_entry *entry)
{
    return cairn_slice_elements(&entry->slice) * cairn_dtype_bytes(entry->slice.dtype);
}

/* Rounds up to a multiple of `align`; false on overflow. */
static bool
round_up(uint64_t value, uint64_t align, uint64_t *out)
{
    uint64_t rest = value % align;

    return !__builtin_add_overflow(value, rest ? align - rest : 0, out);
}

cairn_err
cairn_capture_plan(const struct cairn_slice *slices, uint32_t count,
                   struct cairn_manifest_entry *entries, uint64_t *region_bytes, const char **why)
{
    uint64_t at = 0;
    cairn_err err;

    for (uint32_t i = 0; i < count; i++) {
        struct cairn_manifest_entry *entry = &entries[i];
        uint64_t begin, end, skipped_bytes;

        err = cairn_slice_check(&slices[i], why);
        if (err)
            return err;
        cairn_slice_share(&slices[i], &begin, &end);
        skipped_bytes = (begin - slices[i].flat_begin) * cairn_dtype_bytes(slices[i].dtype);
        entry->slice = slices[i];
        entry->slice.flat_begin = begin;
        entry->slice.flat_end = end;
        if (slices[i].address)
            entry->slice.address = (uint8_t *)slices[i].address + skipped_bytes;
        entry->rank = 0;
        entry->reserved = 0;
        if (!round_up(at, CAIRN_CAPTURE_ALIGN_BYTES, &entry->offset_bytes) ||
            __builtin_add_overflow(entry->offset_bytes, cairn_capture_bytes(entry), &at) ||
            at > INT64_MAX - CAIRN_BLOCK_BYTES) {
            if (why)
                *why = "the sum of the slices is too large";
            return CAIRN_INVAL;
        }
    }
    (void)round_up(at, CAIRN_BLOCK_BYTES, &at); /* at is far from the limit */
    *region_bytes = at;
    return CAIRN_OK;
}
