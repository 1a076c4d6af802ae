/* snapshot/tiling.c - the values of elements and their sums; see tiling.h. */
#include "snapshot/tiling.h"

#include "base/crc.h"
#include "snapshot/manifest.h"
#include "snapshot/reshard_pieces.h"

#include <stdlib.h>
#include <string.h>

enum { INDEX_BITS = 64 };

struct cairn_tiling {
    struct cairn_layout *layout; /* containers are ranks */
    struct cairn_tiling_row *rows;
    size_t row_count;
    uint64_t *origins;
    size_t origin_count;
    struct cairn_tiling_replica *replicas;
    size_t replica_count;
};

/* ---- the field, and hashes ---- */

uint64_t
cairn_tiling_add(uint64_t a, uint64_t b)
{
    uint64_t sum = a + b;

    return sum >= CAIRN_TILING_FIELD ? sum - CAIRN_TILING_FIELD : sum;
}

static uint64_t
subtract(uint64_t a, uint64_t b)
{
    return cairn_tiling_add(a, b ? CAIRN_TILING_FIELD - b : 0);
}

/* 2^61 is 1 in this field: what is above the low 61 bits is added to them. */
static uint64_t
multiply(uint64_t a, uint64_t b)
{
    __extension__ unsigned __int128 product = (unsigned __int128)a * b;

    return cairn_tiling_add((uint64_t)product & CAIRN_TILING_FIELD, (uint64_t)(product >> 61));
}

/* Spreads every bit of a number over all bits; one to one. */
static uint64_t
mix(uint64_t value)
{
    for (int round = 0; round < 3; round++) {
        value ^= value >> 32;
        value *= UINT64_C(0xb4c9a6d38e51f72b);
    }
    return value ^ (value >> 32);
}

/* The n-th number of the field that belongs to a seed. */
static uint64_t
number(uint64_t seed, uint64_t n)
{
    uint64_t value = mix(seed ^ mix(n + 1)) >> 3;

    return value == CAIRN_TILING_FIELD ? 0 : value;
}

static uint64_t
key_of(const char *name)
{
    return mix(cairn_crc64(0, name, strlen(name)));
}

/* Of all that ranks must agree on. */
static uint64_t
seed_of(const struct cairn_tensor *tensor, uint64_t key)
{
    uint64_t seed = mix(key ^ ((uint64_t)tensor->dtype | (uint64_t)tensor->kind << 8 |
                               (uint64_t)tensor->dims << 16));

    for (uint32_t d = 0; d < tensor->dims; d++)
        seed = mix(seed ^ mix(tensor->shape[d] + d));
    return seed;
}

/* ---- sums over boxes ---- */

/* What the values of a tensor's elements are made of: worked out once for all its boxes. */
struct values {
    uint64_t weight;
    uint64_t whole; /* the sum of all */
    struct {
        uint64_t numbers[INDEX_BITS];
        uint64_t all_below[INDEX_BITS + 1]; /* the product of 1 + each number below */
    } dims[CAIRN_DIMS_MAX];
};

/*
 * The sum over the indices below `end` of one dimension of the product of the numbers of their set
 * bits. For each set bit b of `end`, the indices with end's bits above b and a 0 there are a factor
 * times all choices of the bits below.
 */
static uint64_t
sum_below(const struct values *values, uint32_t dim, uint64_t end)
{
    uint64_t sum = 0, above = 1;

    while (end > 0) {
        uint32_t bit = INDEX_BITS - 1 - (uint32_t)__builtin_clzll(end);

        sum = cairn_tiling_add(sum, multiply(above, values->dims[dim].all_below[bit]));
        above = multiply(above, values->dims[dim].numbers[bit]);
        end ^= UINT64_C(1) << bit;
    }
    return sum;
}

static uint64_t
sum_of_box(const struct values *values, uint32_t dims, const uint64_t *start,
           const uint64_t *extent)
{
    uint64_t product = values->weight;

    for (uint32_t d = 0; d < dims; d++)
        product = multiply(product, subtract(sum_below(values, d, start[d] + extent[d]),
                                             sum_below(values, d, start[d])));
    return product;
}

static void
values_init(struct values *values, const struct cairn_tensor *tensor, uint64_t key)
{
    static const uint64_t origin[CAIRN_DIMS_MAX];
    uint64_t seed = seed_of(tensor, key);

    values->weight = number(seed, (uint64_t)CAIRN_DIMS_MAX * INDEX_BITS);
    for (uint32_t d = 0; d < tensor->dims; d++) {
        values->dims[d].all_below[0] = 1;
        for (uint32_t bit = 0; tensor->shape[d] >> bit; bit++) {
            values->dims[d].numbers[bit] = number(seed, (uint64_t)d * INDEX_BITS + bit);
            values->dims[d].all_below[bit + 1] = multiply(
                values->dims[d].all_below[bit], cairn_tiling_add(1, values->dims[d].numbers[bit]));
        }
    }
    values->whole = sum_of_box(values, tensor->dims, origin, tensor->shape);
}

static bool
has_origin(const struct cairn_tensor *tensor, const struct cairn_piece *piece)
{
    for (uint32_t d = 0; d < tensor->dims; d++)
        if (piece->start[d] != 0)
            return false;
    return true;
}

/* ---- one part ---- */

/* A number of what replicas of each other have in common. */
static uint64_t
group_of(const struct cairn_slice *slice, const struct cairn_tensor *tensor)
{
    uint64_t group = mix(seed_of(tensor, key_of(tensor->name)) ^ slice->replica_count);

    for (uint32_t d = 0; d < slice->dims; d++)
        group = mix(mix(group ^ slice->offset[d]) ^ slice->extent[d]);
    return group;
}

static void
add_replica(struct cairn_tiling *tiling, const struct cairn_manifest_entry *entry)
{
    uint32_t t = cairn_layout_tensor_find(tiling->layout, entry->slice.name);

    tiling->replicas[tiling->replica_count++] = (struct cairn_tiling_replica){
        .group = group_of(&entry->slice, cairn_layout_tensor(tiling->layout, t)),
        .tensor = t,
        .rank = entry->rank,
        .index = entry->slice.replica_index,
        .count = entry->slice.replica_count};
}

/* The boxes of all entries, under the numbers of their ranks. */
static cairn_err
collect(struct cairn_tiling *tiling, const struct cairn_manifest *manifest)
{
    cairn_err err = cairn_layout_create(&tiling->layout);

    tiling->replicas = calloc((size_t)manifest->entry_count + 1, sizeof *tiling->replicas);
    if (!tiling->replicas)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < manifest->entry_count && !err; i++) {
        const struct cairn_manifest_entry *entry = &manifest->entries[i];

        err = cairn_layout_add(tiling->layout, entry->rank, &entry->slice, entry->slice.flat_begin,
                               entry->slice.flat_end, 0, NULL);
        if (!err && entry->slice.replica_count > 1)
            add_replica(tiling, entry);
    }
    return err;
}

static int
compare_rows(const void *left, const void *right)
{
    const struct cairn_tiling_row *a = left, *b = right;

    return (a->key > b->key) - (a->key < b->key);
}

static int
compare_replicas(const void *left, const void *right)
{
    const struct cairn_tiling_replica *a = left, *b = right;

    if (a->tensor != b->tensor)
        return a->tensor < b->tensor ? -1 : 1;
    return (a->rank > b->rank) - (a->rank < b->rank);
}

static int
compare_keys(const void *left, const void *right)
{
    const uint64_t *a = left, *b = right;

    return (*a > *b) - (*a < *b);
}

/* The row of a tensor, and its key for each piece that has its origin. */
static void
add_tensor(struct cairn_tiling *tiling, const struct cairn_piece_table *table, uint32_t t)
{
    const struct cairn_tensor *tensor = cairn_layout_tensor(tiling->layout, t);
    struct cairn_tiling_row *row = &tiling->rows[t];
    struct values values;

    *row = (struct cairn_tiling_row){.key = key_of(tensor->name), .tensor = t};
    values_init(&values, tensor, row->key);
    for (size_t p = table->begin[t]; p < table->begin[t + 1]; p++) {
        const struct cairn_piece *piece = table->piece[p];

        row->sum = cairn_tiling_add(row->sum,
                                    sum_of_box(&values, tensor->dims, piece->start, piece->extent));
        if (!has_origin(tensor, piece))
            continue;
        row->sum = subtract(row->sum, values.whole);
        tiling->origins[tiling->origin_count++] = row->key;
    }
}

/* Adds the replicas' numbers to the rows, which are still in the order of the tensors. */
static void
add_replicas(struct cairn_tiling *tiling)
{
    qsort(tiling->replicas, tiling->replica_count, sizeof *tiling->replicas, compare_replicas);
    for (size_t i = 0; i < tiling->replica_count; i++) {
        const struct cairn_tiling_replica *replica = &tiling->replicas[i];
        struct cairn_tiling_row *row = &tiling->rows[replica->tensor];

        row->sum = cairn_tiling_add(
            row->sum, number(replica->group, (replica->index + UINT64_C(1)) % replica->count));
        row->sum = subtract(row->sum, number(replica->group, replica->index));
    }
}

static cairn_err
add_up(struct cairn_tiling *tiling)
{
    size_t pieces = cairn_layout_piece_count(tiling->layout);
    struct cairn_piece_table table;
    cairn_err err;

    tiling->row_count = cairn_layout_tensor_count(tiling->layout);
    tiling->rows = calloc(tiling->row_count + 1, sizeof *tiling->rows);
    tiling->origins = calloc(pieces + 1, sizeof *tiling->origins);
    if (!tiling->rows || !tiling->origins)
        return CAIRN_NOMEM;
    err = cairn_piece_table_init(&table, tiling->layout);
    if (err)
        return err;
    for (uint32_t t = 0; t < tiling->row_count; t++)
        add_tensor(tiling, &table, t);
    cairn_piece_table_fini(&table);
    add_replicas(tiling);
    qsort(tiling->rows, tiling->row_count, sizeof *tiling->rows, compare_rows);
    qsort(tiling->origins, tiling->origin_count, sizeof *tiling->origins, compare_keys);
    return CAIRN_OK;
}

cairn_err
cairn_tiling_create(const void *manifest, size_t manifest_bytes, struct cairn_tiling **out)
{
    struct cairn_manifest unpacked = {0};
    struct cairn_tiling *tiling = NULL;
    cairn_err err = cairn_manifest_unpack(manifest, manifest_bytes, &unpacked);

    if (err)
        return err;
    tiling = calloc(1, sizeof *tiling);
    err = tiling ? collect(tiling, &unpacked) : CAIRN_NOMEM;
    if (!err)
        err = add_up(tiling);
    cairn_manifest_fini(&unpacked);
    if (err) {
        cairn_tiling_destroy(tiling);
        return err == CAIRN_INVAL ? CAIRN_CORRUPT : err;
    }
    *out = tiling;
    return CAIRN_OK;
}

void
cairn_tiling_destroy(struct cairn_tiling *tiling)
{
    if (!tiling)
        return;
    cairn_layout_destroy(tiling->layout);
    free(tiling->rows);
    free(tiling->origins);
    free(tiling->replicas);
    free(tiling);
}

uint64_t
cairn_tiling_sum(const struct cairn_tiling *tiling)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < tiling->row_count; i++)
        sum = cairn_tiling_add(sum, tiling->rows[i].sum);
    return sum;
}

void
cairn_tiling_sums(const struct cairn_tiling *tiling, uint64_t sums[CAIRN_TILING_FAN])
{
    memset(sums, 0, CAIRN_TILING_FAN * sizeof *sums);
    for (size_t i = 0; i < tiling->row_count; i++) {
        uint64_t *sum = &sums[cairn_tiling_prefix(tiling->rows[i].key)];

        *sum = cairn_tiling_add(*sum, tiling->rows[i].sum);
    }
}

const uint64_t *
cairn_tiling_origins(const struct cairn_tiling *tiling, size_t *count)
{
    *count = tiling->origin_count;
    return tiling->origins;
}

uint64_t
cairn_tiling_prefix(uint64_t key)
{
    return key >> (64 - CAIRN_TILING_FAN_LOG2);
}

const struct cairn_tiling_row *
cairn_tiling_rows(const struct cairn_tiling *tiling, size_t *count)
{
    *count = tiling->row_count;
    return tiling->rows;
}

const struct cairn_tiling_replica *
cairn_tiling_replicas(const struct cairn_tiling *tiling, size_t *count)
{
    *count = tiling->replica_count;
    return tiling->replicas;
}

const struct cairn_layout *
cairn_tiling_layout(const struct cairn_tiling *tiling)
{
    return tiling->layout;
}
