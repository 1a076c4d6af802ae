/* tools/convert/engine/tally.c - see tally.h. Sums are joined by exclusive or, with atomic
 * operations: which thread comes first does not matter. */
#include "tools/convert/engine/tally.h"
#include "base/array.h"

#include <inttypes.h>
#include <stdlib.h>

#include "snapshot/box.h"
#include "snapshot/reshard_pieces.h"
#include "snapshot/layout.h"

/*
 * ---- which element of a tensor lies at a byte of a container ----
 *
 * The inverse of a layout, made for checking: a byte that was read stands, by the source's pieces,
 * at some place of the tensor's canonical bytes (row-major, no padding), and by the target's pieces
 * it is written as some place. Both must be the same. Nothing of this comes from the planner.
 */

struct spot {
    size_t piece;
    uint64_t position_bytes; /* in the tensor's canonical bytes */
    uint64_t run_bytes;      /* from here on contiguous on both sides; > 0 */
};

enum { RUN_BYTES_MIN = 64 };

struct entry {
    const struct cairn_piece *piece;
    uint64_t reach; /* the farthest end of the pieces up to this one in tensor and container */
};

struct cairn_locator {
    const struct cairn_layout *layout;
    struct entry *entries; /* by tensor, container, offset */
    size_t *first;         /* [tensor_count + 1] */
    /* [tensor_count]: its pieces can be inverted at a price worth paying: the strides of each nest,
     * so that no byte is two elements, and its runs are at least 64 bytes long (or whole pieces) */
    bool *regular;
    bool *replica; /* [piece_count]: it holds elements that another one, added before it, holds */
};

/* Bytes of a run that is contiguous in the piece's container and in the tensor. */
static uint64_t
unit_bytes(const struct cairn_tensor *tensor, const struct cairn_piece *piece)
{
    uint64_t unit = cairn_dtype_bytes(tensor->dtype);

    for (uint32_t d = tensor->dims; d-- > 0;) {
        if (tensor->shape[d] == 1)
            continue;
        if (piece->extent[d] > 1 && piece->stride_bytes[d] != unit)
            break;
        unit *= piece->extent[d];
        if (piece->extent[d] != tensor->shape[d])
            break;
    }
    return unit;
}

static bool
piece_regular(const struct cairn_tensor *tensor, const struct cairn_piece *piece)
{
    uint64_t unit = unit_bytes(tensor, piece);

    return cairn_box_nests(tensor, piece) &&
           (unit >= RUN_BYTES_MIN || unit == cairn_dtype_bytes(tensor->dtype) *
                                                 cairn_shape_elements(tensor->dims, piece->extent));
}

static int
compare_entries(const void *left, const void *right)
{
    const struct cairn_piece *a = ((const struct entry *)left)->piece;
    const struct cairn_piece *b = ((const struct entry *)right)->piece;
    int order = CAIRN_COMPARE(a->container, b->container);

    order = order ? order : CAIRN_COMPARE(a->offset_bytes, b->offset_bytes);
    return order ? order : CAIRN_COMPARE(a, b);
}

/* Takes the pieces of one tensor over from the table, which has replicas side by side. */
static void
index_tensor(struct cairn_locator *locator, const struct cairn_piece_table *table, uint32_t t)
{
    const struct cairn_tensor *tensor = cairn_layout_tensor(locator->layout, t);
    const struct cairn_piece *all = cairn_layout_piece(locator->layout, 0);
    size_t begin = table->begin[t], end = table->begin[t + 1];

    locator->first[t] = begin;
    locator->regular[t] = true;
    for (size_t at = begin; at < end;) {
        size_t count = cairn_piece_replicas(table, at, end, tensor->dims);

        for (size_t i = at; i < at + count; i++) {
            locator->entries[i].piece = table->piece[i];
            locator->replica[table->piece[i] - all] = i > at;
            locator->regular[t] = locator->regular[t] && piece_regular(tensor, table->piece[i]);
        }
        at += count;
    }
    if (end - begin > 1)
        qsort(locator->entries + begin, end - begin, sizeof(*locator->entries), compare_entries);
    for (size_t i = begin; i < end; i++) {
        struct entry *entry = &locator->entries[i];

        entry->reach = cairn_box_end(tensor, entry->piece);
        if (i > begin && entry[-1].piece->container == entry->piece->container &&
            entry[-1].reach > entry->reach)
            entry->reach = entry[-1].reach;
    }
}

static void
locator_fini(struct cairn_locator *locator)
{
    free(locator->entries);
    free(locator->first);
    free(locator->regular);
    free(locator->replica);
}

/* The layout is borrowed and must not change. `locator` is zeroes, and is for locator_fini also
 * after an error. CAIRN_NOMEM. O(P log P). Thread: any. */
static cairn_err
locator_init(struct cairn_locator *locator, const struct cairn_layout *layout)
{
    uint32_t tensor_count = cairn_layout_tensor_count(layout);
    size_t piece_count = cairn_layout_piece_count(layout);
    struct cairn_piece_table table = {0};
    cairn_err err;

    locator->layout = layout;
    locator->entries = malloc((piece_count + 1) * sizeof(*locator->entries));
    locator->first = malloc(((size_t)tensor_count + 1) * sizeof(*locator->first));
    locator->regular = malloc((size_t)tensor_count + 1);
    locator->replica = malloc(piece_count + 1);
    if (!locator->entries || !locator->first || !locator->regular || !locator->replica)
        return CAIRN_NOMEM;
    err = cairn_piece_table_init(&table, layout);
    if (!err) {
        for (uint32_t t = 0; t < tensor_count; t++)
            index_tensor(locator, &table, t);
        locator->first[tensor_count] = piece_count;
    }
    cairn_piece_table_fini(&table);
    return err;
}

/* Finds the byte in one piece. Its strides nest, so the indices are the digits of the offset. */
static bool
find_in_piece(const struct cairn_tensor *tensor, const struct cairn_piece *piece, uint64_t offset,
              struct spot *out)
{
    uint64_t element = cairn_dtype_bytes(tensor->dtype), left = offset - piece->offset_bytes;
    uint64_t canonical = element, unit = unit_bytes(tensor, piece);
    uint32_t order[CAIRN_DIMS_MAX], count = cairn_box_by_stride(tensor, piece, order);
    uint64_t index[CAIRN_DIMS_MAX] = {0};

    for (uint32_t i = 0; i < count; i++) {
        uint32_t d = order[i];

        index[d] = left / piece->stride_bytes[d];
        if (index[d] >= piece->extent[d])
            return false;
        left -= index[d] * piece->stride_bytes[d];
    }
    if (left >= element)
        return false;
    out->position_bytes = left;
    out->run_bytes = unit - left;
    for (uint32_t d = tensor->dims; d-- > 0;) {
        out->position_bytes += (piece->start[d] + index[d]) * canonical;
        if (canonical < unit) /* inside of the unit: what lies before the byte is not of the run */
            out->run_bytes -= index[d] * canonical;
        canonical *= tensor->shape[d];
    }
    return true;
}

/* False if no piece of the (regular) tensor has that byte of the container. Thread: any. */
static bool
locate(const struct cairn_locator *locator, uint32_t tensor, uint32_t container,
       uint64_t offset_bytes, struct spot *out)
{
    const struct cairn_tensor *known = cairn_layout_tensor(locator->layout, tensor);
    const struct entry *entries = locator->entries;
    size_t low = locator->first[tensor], high = locator->first[tensor + 1], first = low;

    /* The first entry behind the byte */
    CAIRN_BISECT(low, high, middle,
                 entries[middle].piece->container < container ||
                     (entries[middle].piece->container == container &&
                      entries[middle].piece->offset_bytes <= offset_bytes));
    for (size_t i = low; i > first; i--) {
        const struct entry *entry = &entries[i - 1];

        if (entry->piece->container != container || entry->reach <= offset_bytes)
            return false;
        if (find_in_piece(known, entry->piece, offset_bytes, out)) {
            out->piece = (size_t)(entry->piece - cairn_layout_piece(locator->layout, 0));
            return true;
        }
    }
    return false;
}

/* ---- the tally ---- */

cairn_err
cairn_tally_init(struct cairn_tally *tally, const struct cairn_layout *source,
                 const struct cairn_output *output, const struct cairn_regions *regions)
{
    uint32_t count = cairn_layout_tensor_count(output->layout);
    cairn_err err = CAIRN_OK;

    tally->regions = regions;
    tally->from = malloc(((size_t)count + 1) * sizeof(*tally->from));
    tally->left_out = malloc((size_t)count + 1);
    tally->source = calloc((size_t)count + 1, sizeof(*tally->source));
    tally->target = calloc((size_t)count + 1, sizeof(*tally->target));
    tally->bytes = calloc((size_t)count + 1, sizeof(*tally->bytes));
    tally->locators = calloc(2, sizeof(*tally->locators));
    if (!tally->from || !tally->left_out || !tally->source || !tally->target || !tally->bytes ||
        !tally->locators)
        return CAIRN_NOMEM;
    err = locator_init(&tally->locators[0], source);
    if (!err)
        err = locator_init(&tally->locators[1], output->layout);
    for (uint32_t t = 0; !err && t < count; t++) {
        tally->from[t] =
            cairn_layout_tensor_find(source, cairn_layout_tensor(output->layout, t)->name);
        tally->left_out[t] =
            !tally->locators[0].regular[tally->from[t]] || !tally->locators[1].regular[t];
    }
    return err;
}

void
cairn_tally_fini(struct cairn_tally *tally)
{
    for (int side = 0; tally->locators && side < 2; side++)
        locator_fini(&tally->locators[side]);
    free(tally->locators);
    free(tally->from);
    free(tally->left_out);
    free(tally->source);
    free(tally->target);
    free(tally->bytes);
}

/* What of one tensor is in one tile. */
struct visit {
    struct cairn_tally *tally;
    const struct cairn_tile *tile;
    const uint8_t *written;
    const struct cairn_region *region;
    uint32_t tensor;
    struct cairn_fingerprint_walk source, target;
    uint64_t bytes;
};

static void
visit_begin(struct visit *visit, uint32_t tensor)
{
    const struct cairn_tally *tally = visit->tally;
    const struct cairn_tensor *source =
        cairn_layout_tensor(tally->locators[0].layout, tally->from[tensor]);
    const struct cairn_tensor *target = cairn_layout_tensor(tally->locators[1].layout, tensor);

    visit->tensor = tensor;
    visit->bytes = 0;
    cairn_fingerprint_walk_init(&visit->source, cairn_tensor_bytes(source));
    cairn_fingerprint_walk_init(&visit->target, cairn_tensor_bytes(target));
}

static void
join(struct cairn_fingerprint *sum, struct cairn_fingerprint part)
{
    (void)__atomic_fetch_xor(&sum->ecma, part.ecma, __ATOMIC_RELAXED);
    (void)__atomic_fetch_xor(&sum->jones, part.jones, __ATOMIC_RELAXED);
}

static void
visit_end(struct visit *visit)
{
    struct cairn_tally *tally = visit->tally;
    struct cairn_fingerprint source;

    if (visit->bytes == 0)
        return;
    source = cairn_fingerprint_walk_end(&visit->source);
    join(&tally->source[visit->tensor], source);
    join(&tally->target[visit->tensor],
         visit->region->from ? cairn_fingerprint_walk_end(&visit->target) : source);
    (void)__atomic_fetch_add(&tally->bytes[visit->tensor], visit->bytes, __ATOMIC_RELAXED);
}

/* Counts one run: run_bytes at source_offset of a container, which are at `at` of the tile. */
static cairn_err
visit_run(struct visit *visit, uint32_t container, uint64_t source_offset, uint64_t at,
          uint64_t run_bytes, struct cairn_complaint *complaint)
{
    const struct cairn_tally *tally = visit->tally;
    const struct cairn_region *region = visit->region;
    uint64_t from_bytes = region->from_bytes, to_bytes = region->to_bytes;

    for (uint64_t done = 0, bytes; done < run_bytes; done += bytes) {
        uint64_t file_offset = cairn_region_file_offset(region, visit->tile->begin + at + done);
        struct spot from, to;

        if (!locate(&tally->locators[0], tally->from[visit->tensor], container,
                    source_offset + done, &from) ||
            !locate(&tally->locators[1], visit->tensor, region->file, file_offset, &to) ||
            from.position_bytes / from_bytes != to.position_bytes / to_bytes)
            return cairn_complain(
                complaint, CAIRN_INTERNAL,
                "tensor %s would get other elements than it has at byte %" PRIu64
                " of the source; please report this defect, nothing was made final",
                cairn_layout_tensor(tally->locators[1].layout, visit->tensor)->name,
                source_offset + done);
        bytes = run_bytes - done;
        if (bytes > from.run_bytes)
            bytes = from.run_bytes;
        if (bytes > to.run_bytes / to_bytes * from_bytes)
            bytes = to.run_bytes / to_bytes * from_bytes;
        if (tally->locators[1].replica[to.piece])
            continue;
        cairn_fingerprint_walk_add(
            &visit->source, cairn_fingerprint_of(visit->tile->bytes + at + done, (size_t)bytes),
            from.position_bytes, bytes);
        if (region->from) {
            uint64_t written_at = (at + done) / from_bytes * to_bytes;
            uint64_t written_bytes = bytes / from_bytes * to_bytes;

            cairn_fingerprint_walk_add(
                &visit->target,
                cairn_fingerprint_of(visit->written + written_at, (size_t)written_bytes),
                to.position_bytes, written_bytes);
        }
        visit->bytes += bytes;
    }
    return CAIRN_OK;
}

cairn_err
cairn_tally_tile(struct cairn_tally *tally, const struct cairn_tile *tile, const uint8_t *written,
                 struct cairn_complaint *complaint)
{
    struct visit visit = {.tally = tally,
                          .tile = tile,
                          .written = written,
                          .region = &tally->regions->regions[tile->container],
                          .tensor = UINT32_MAX};
    cairn_err err = CAIRN_OK;

    for (size_t i = 0; !err && i < tile->clip_count; i++) {
        const struct cairn_move *clip = &tile->clips[i];

        if (tally->left_out[clip->tensor])
            continue;
        if (visit.tensor != clip->tensor) {
            visit_end(&visit);
            visit_begin(&visit, clip->tensor);
        }
        for (uint64_t run = 0; !err && run < clip->run_count; run++)
            err = visit_run(
                &visit, clip->source_container, clip->source_offset + run * clip->source_stride,
                clip->target_offset + run * clip->target_stride, clip->run_bytes, complaint);
    }
    if (!err)
        visit_end(&visit);
    return err;
}
