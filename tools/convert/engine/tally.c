/* tools/convert/engine/tally.c - see tally.h. Sums are joined by exclusive or, with atomic
 * operations: which thread comes first does not matter. */
#include "tools/convert/engine/tally.h"

#include <inttypes.h>
#include <stdlib.h>

#include "snapshot/box.h"
#include "tools/convert/engine/locate.h"

struct sums {
    struct cairn_fingerprint source, target;
    uint64_t bytes;
};

struct cairn_tally {
    const struct cairn_layout *source;
    const struct cairn_layout *target;
    const struct cairn_regions *regions;
    struct cairn_locator *source_locator;
    struct cairn_locator *target_locator;
    uint32_t *source_tensor; /* [tensors of the output] */
    bool *left_out;          /* [tensors of the output] */
    struct sums *sums;       /* [tensors of the output] */
};

cairn_err
cairn_tally_create(const struct cairn_layout *source, const struct cairn_output *output,
                   const struct cairn_regions *regions, struct cairn_tally **out)
{
    uint32_t count = cairn_layout_tensor_count(output->layout);
    struct cairn_tally *tally = calloc(1, sizeof(*tally));
    cairn_err err = tally ? CAIRN_OK : CAIRN_NOMEM;

    if (!err) {
        tally->source = source;
        tally->target = output->layout;
        tally->regions = regions;
        tally->source_tensor = malloc(((size_t)count + 1) * sizeof(*tally->source_tensor));
        tally->left_out = malloc((size_t)count + 1);
        tally->sums = calloc((size_t)count + 1, sizeof(*tally->sums));
        if (!tally->source_tensor || !tally->left_out || !tally->sums)
            err = CAIRN_NOMEM;
    }
    if (!err)
        err = cairn_locator_create(source, &tally->source_locator);
    if (!err)
        err = cairn_locator_create(output->layout, &tally->target_locator);
    for (uint32_t t = 0; !err && t < count; t++) {
        uint32_t from =
            cairn_layout_tensor_find(source, cairn_layout_tensor(output->layout, t)->name);

        tally->source_tensor[t] = from;
        tally->left_out[t] = !cairn_locator_regular(tally->source_locator, from) ||
                             !cairn_locator_regular(tally->target_locator, t);
    }
    if (err) {
        cairn_tally_destroy(tally);
        return err;
    }
    *out = tally;
    return CAIRN_OK;
}

void
cairn_tally_destroy(struct cairn_tally *tally)
{
    if (!tally)
        return;
    cairn_locator_destroy(tally->source_locator);
    cairn_locator_destroy(tally->target_locator);
    free(tally->source_tensor);
    free(tally->left_out);
    free(tally->sums);
    free(tally);
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
    struct cairn_tally *tally = visit->tally;

    visit->tensor = tensor;
    visit->bytes = 0;
    cairn_fingerprint_walk_init(&visit->source, cairn_tensor_bytes(cairn_layout_tensor(
                                                    tally->source, tally->source_tensor[tensor])));
    cairn_fingerprint_walk_init(&visit->target,
                                cairn_tensor_bytes(cairn_layout_tensor(tally->target, tensor)));
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
    struct sums *sums = &visit->tally->sums[visit->tensor];
    struct cairn_fingerprint source;

    if (visit->bytes == 0)
        return;
    source = cairn_fingerprint_walk_end(&visit->source);
    join(&sums->source, source);
    join(&sums->target, visit->region->from ? cairn_fingerprint_walk_end(&visit->target) : source);
    (void)__atomic_fetch_add(&sums->bytes, visit->bytes, __ATOMIC_RELAXED);
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
        struct cairn_spot from, to;

        if (!cairn_locate(tally->source_locator, tally->source_tensor[visit->tensor], container,
                          source_offset + done, &from) ||
            !cairn_locate(tally->target_locator, visit->tensor, region->file, file_offset, &to) ||
            from.position_bytes / from_bytes != to.position_bytes / to_bytes)
            return cairn_complain(
                complaint, CAIRN_INTERNAL,
                "tensor %s would get other elements than it has at byte %" PRIu64
                " of the source; please report this defect, nothing was made final",
                cairn_layout_tensor(tally->target, visit->tensor)->name, source_offset + done);
        bytes = run_bytes - done;
        if (bytes > from.run_bytes)
            bytes = from.run_bytes;
        if (bytes > to.run_bytes / to_bytes * from_bytes)
            bytes = to.run_bytes / to_bytes * from_bytes;
        if (cairn_locator_is_replica(tally->target_locator, to.piece))
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

bool
cairn_tally_left_out(const struct cairn_tally *tally, uint32_t tensor)
{
    return tally->left_out[tensor];
}

void
cairn_tally_result(const struct cairn_tally *tally, uint32_t tensor,
                   struct cairn_fingerprint *source, struct cairn_fingerprint *target,
                   uint64_t *bytes)
{
    *source = tally->sums[tensor].source;
    *target = tally->sums[tensor].target;
    *bytes = tally->sums[tensor].bytes;
}
