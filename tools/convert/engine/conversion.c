/*
 * tools/convert/engine/conversion.c - planning a conversion, and the order in which a run does
 * things.
 *
 * Order of a run: the target is opened (it is empty, or ours); replicas are compared, so that a
 * source that contradicts itself fails before a byte is written; tiles; fingerprints of what tiles
 * could not tell; the source's files are looked at again; then what depends on checksums, and
 * commit.
 */
#include "tools/convert/engine/conversion.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/crc.h"
#include "tools/convert/core/format.h"
#include "snapshot/box.h"
#include "tools/convert/engine/memory_limit.h"
#include "tools/convert/engine/select.h"
#include "tools/convert/engine/proof.h"
#include "base/array.h"
#include "tools/convert/engine/cast.h"
#include "tools/convert/engine/tally.h"
#include "tools/convert/engine/target.h"

/* ---- what is done with a tile: cast, fingerprint, put literals in, checksum, write, note in the
 * journal. A tile that an earlier run wrote is read back instead of gathered, and goes through
 * everything but the writing. ---- */

/* Where a literal or a sum lies. */
struct range {
    uint32_t file;
    uint64_t begin, end;
    union {
        const struct cairn_output_literal *literal;
        struct cairn_sum *sum;
    };
};

/* Sorted by file and begin. They do not overlap. */
struct ranges {
    struct range *ranges;
    uint32_t count;
};

struct writing {
    const struct cairn_conversion *conversion;
    struct cairn_target *target;
    struct cairn_tally *tally;
    struct ranges literals, sums;
    uint64_t total_bytes;
    uint64_t kept_bytes; /* atomic: those that were found written, and were as the journal says */
};

static int
compare_ranges(const void *left, const void *right)
{
    const struct range *a = left, *b = right;

    return CAIRN_COMPARE(a->file, b->file) ?: CAIRN_COMPARE(a->begin, b->begin);
}

/* Sorts ranges. CAIRN_INTERNAL if one leaves its file, or overlaps another. */
static cairn_err
sort_ranges(const struct cairn_output_file *files, struct ranges *sorted)
{
    const struct range *range = sorted->ranges;

    qsort(sorted->ranges, sorted->count, sizeof(*range), compare_ranges);
    for (uint32_t i = 0; i < sorted->count; i++, range++)
        if (range->begin > range->end || range->end > files[range->file].bytes ||
            (i > 0 && range->file == range[-1].file && range->begin < range[-1].end))
            return CAIRN_INTERNAL;
    return CAIRN_OK;
}

/* Fills the ranges of what has the rest. CAIRN_NOMEM; CAIRN_INTERNAL where literals or sums lie
 * outside of their files, or over each other. */
static cairn_err
find_ranges(struct writing *writing, const struct cairn_output *output)
{
    struct ranges *literals = &writing->literals, *sums = &writing->sums;
    cairn_err err;

    literals->ranges = calloc(output->literal_count + 1, sizeof(struct range));
    sums->ranges = calloc(output->sum_count + 1, sizeof(struct range));
    if (!literals->ranges || !sums->ranges)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < output->literal_count; i++) {
        const struct cairn_output_literal *literal = &output->literals[i];

        literals->ranges[literals->count++] =
            (struct range){literal->file,
                           literal->offset_bytes,
                           literal->offset_bytes + literal->bytes_len,
                           {.literal = literal}};
    }
    for (uint32_t i = 0; i < output->sum_count; i++) {
        struct cairn_sum *sum = &output->sums[i];

        memset(sum->values, 0, (size_t)sum->count * sizeof(*sum->values));
        sums->ranges[sums->count++] = (struct range){
            sum->container, sum->offset_bytes, sum->offset_bytes + sum->bytes, {.sum = sum}};
    }
    err = sort_ranges(output->files, literals);
    return err ? err : sort_ranges(output->files, sums);
}

/* ---- one tile ---- */

/* The bytes of a file that a tile becomes. */
struct span {
    uint32_t file;
    uint64_t begin, end;
    uint8_t *bytes;
};

static struct span
span_of(const struct writing *writing, const struct cairn_tile *tile)
{
    const struct cairn_region *region = &writing->conversion->regions.regions[tile->container];

    return (struct span){.file = region->file,
                         .begin = cairn_region_file_offset(region, tile->begin),
                         .end = cairn_region_file_offset(region, tile->end),
                         .bytes = region->from ? tile->spare : tile->bytes};
}

/* The first range that ends behind the span's begin. */
static uint32_t
first_range(const struct ranges *sorted, const struct span *span)
{
    uint32_t low = 0, high = sorted->count;

    CAIRN_BISECT(low, high, middle,
                 sorted->ranges[middle].file < span->file ||
                     (sorted->ranges[middle].file == span->file &&
                      sorted->ranges[middle].end <= span->begin));
    return low;
}

/* The part of range number `index` that the span has, [*begin, *end); false if it lies behind the
 * span, as all later ranges then do. */
static bool
clip_range(const struct ranges *sorted, uint32_t index, const struct span *span, uint64_t *begin,
           uint64_t *end)
{
    const struct range *range = &sorted->ranges[index];

    if (index == sorted->count || range->file != span->file || range->begin >= span->end)
        return false;
    *begin = range->begin < span->begin ? span->begin : range->begin;
    *end = range->end > span->end ? span->end : range->end;
    return true;
}

static void
put_literals(const struct writing *writing, const struct span *span)
{
    uint64_t begin, end;

    for (uint32_t i = first_range(&writing->literals, span);
         clip_range(&writing->literals, i, span, &begin, &end); i++) {
        const struct cairn_output_literal *literal = writing->literals.ranges[i].literal;

        memcpy(span->bytes + (begin - span->begin),
               literal->bytes + (begin - literal->offset_bytes), (size_t)(end - begin));
    }
}

static void
add_sums(const struct writing *writing, const struct span *span)
{
    uint64_t begin, end;

    for (uint32_t i = first_range(&writing->sums, span);
         clip_range(&writing->sums, i, span, &begin, &end); i++) {
        struct cairn_sum *sum = writing->sums.ranges[i].sum;

        while (begin < end) {
            uint64_t block = (begin - sum->offset_bytes) / sum->block_bytes;
            uint64_t block_end = cairn_sum_block_end(sum, block);
            uint64_t part_end = end < block_end ? end : block_end;
            uint64_t crc = cairn_crc_of(sum->kind, 0, span->bytes + (begin - span->begin),
                                        (size_t)(part_end - begin));

            crc = cairn_crc_shift(sum->kind, crc, block_end - part_end);
            (void)__atomic_fetch_xor(&sum->values[block], crc, __ATOMIC_RELAXED);
            begin = part_end;
        }
    }
}

static cairn_err
have_tile(void *context, const struct cairn_tile *tile, bool *have,
          struct cairn_complaint *complaint)
{
    struct writing *writing = context;
    struct span span = span_of(writing, tile);
    size_t bytes = (size_t)(span.end - span.begin), got = 0;
    uint64_t crc;
    cairn_err err;

    *have = false;
    /* What was cast cannot be cast back, so such tiles are made again. */
    if (writing->conversion->regions.regions[tile->container].from ||
        !cairn_journal_find(cairn_target_journal(writing->target), tile->container, tile->begin,
                            tile->end, &crc))
        return CAIRN_OK;
    err = cairn_target_read(writing->target, span.file, span.begin, tile->bytes, bytes, &got,
                            complaint);
    if (err)
        return err;
    *have = got == bytes && cairn_crc64(0, tile->bytes, bytes) == crc;
    if (*have)
        (void)__atomic_fetch_add(&writing->kept_bytes, bytes, __ATOMIC_RELAXED);
    return CAIRN_OK;
}

static cairn_err
take_tile(void *context, const struct cairn_tile *tile, struct cairn_complaint *complaint)
{
    struct writing *writing = context;
    const struct cairn_region *region = &writing->conversion->regions.regions[tile->container];
    struct span span = span_of(writing, tile);
    size_t bytes = (size_t)(span.end - span.begin);
    cairn_err err;

    if (region->from)
        cairn_cast(tile->bytes, region->from, tile->spare, region->to,
                   (tile->end - tile->begin) / region->from_bytes);
    err = cairn_tally_tile(writing->tally, tile, span.bytes, complaint);
    if (err)
        return err;
    if (!tile->had)
        put_literals(writing, &span);
    add_sums(writing, &span);
    if (tile->had)
        return CAIRN_OK;
    err = cairn_target_write(writing->target, span.file, span.begin, span.bytes, bytes, complaint);
    if (err)
        return err;
    err = cairn_journal_add(cairn_target_journal(writing->target), tile->container, tile->begin,
                            tile->end, cairn_crc64(0, span.bytes, bytes));
    return cairn_complain_failed(complaint, err, "the journal of %s cannot be written",
                                 cairn_target_directory(writing->target));
}

static void
show(void *context, uint64_t done_bytes)
{
    const struct writing *writing = context;
    const struct cairn_conversion_options *options = writing->conversion->options;

    if (options->progress)
        options->progress(options->context, "converting", done_bytes, writing->total_bytes);
}

enum { REPORT_BYTES = 700 };

/* ---- planning ---- */

static void
count_tensors(struct cairn_conversion *conversion)
{
    struct cairn_conversion_report *report = &conversion->report;

    for (uint32_t t = 0; t < cairn_layout_tensor_count(conversion->source.layout); t++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(conversion->source.layout, t);

        report->parameters += tensor->kind == CAIRN_PARAM;
        report->buffers += tensor->kind == CAIRN_BUFFER;
        report->optimizer += tensor->kind == CAIRN_OPTIMIZER;
        report->opaque += tensor->kind == CAIRN_OPAQUE;
        report->source_bytes += cairn_tensor_bytes(tensor);
    }
    report->aliases = conversion->source.alias_count;
    report->replica_bytes = conversion->whole.replica_bytes;
}

/* Every tensor of the source is in the output's layout, or said to be carried; and nothing else. */
static cairn_err
check_complete(struct cairn_conversion *conversion)
{
    const struct cairn_layout *source = conversion->source.layout;
    const struct cairn_output *output = &conversion->output;
    uint32_t count = cairn_layout_tensor_count(source);
    bool *carried = calloc((size_t)count + 1, sizeof(*carried));
    char report[REPORT_BYTES] = "";
    cairn_err err = carried ? CAIRN_OK : CAIRN_NOMEM;

    for (uint32_t i = 0; !err && i < output->carried_count; i++)
        if (output->carried[i] < count)
            carried[output->carried[i]] = true;
    for (uint32_t t = 0; !err && t < count; t++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(source, t);
        uint32_t found = cairn_layout_tensor_find(output->layout, tensor->name);

        if (found == UINT32_MAX && !carried[t])
            err = cairn_complain(
                conversion->source.complaint, CAIRN_INTERNAL,
                "the format %s forgot tensor %s; please report this defect, nothing was written",
                output->format->name, tensor->name);
        if (found != UINT32_MAX &&
            cairn_layout_tensor(output->layout, found)->dtype != tensor->dtype)
            conversion->report.cast++;
        conversion->report.carried += carried[t];
    }
    free(carried);
    if (!err)
        err = cairn_layout_check_tiling(output->layout, false, report, sizeof(report));
    if (err == CAIRN_CORRUPT)
        err = cairn_complain(
            conversion->source.complaint, CAIRN_INTERNAL,
            "the format %s forgot a part: %s; please report this defect, nothing was written",
            output->format->name, report);
    return err;
}

static cairn_err
plan_moves(struct cairn_conversion *conversion)
{
    struct cairn_conversion_report *report = &conversion->report;
    const struct cairn_moves *moves = &conversion->feed.moves;
    cairn_err err;

    conversion->feed.source = &conversion->source;
    err = cairn_feed_plan(&conversion->feed, conversion->whole.layout, conversion->regions.layout,
                          conversion->source.complaint);
    if (err)
        return err == CAIRN_NOMEM ? err : CAIRN_INTERNAL;
    report->move_count = moves->count;
    report->read_bytes = moves->bytes;
    for (size_t i = 0; i < moves->count; i++)
        report->run_count += moves->moves[i].run_count;
    for (uint32_t f = 0; f < conversion->output.file_count; f++)
        report->target_bytes += conversion->output.files[f].bytes;
    return CAIRN_OK;
}

/* The longest that a cast makes a tile. */
static uint64_t
spare_per_tile(const struct cairn_conversion *conversion)
{
    uint64_t most = 0;

    for (uint32_t r = conversion->output.file_count; r < conversion->regions.region_count; r++) {
        const struct cairn_region *region = &conversion->regions.regions[r];
        uint64_t ratio = (region->to_bytes + region->from_bytes - 1) / region->from_bytes;

        most = ratio > most ? ratio : most;
    }
    return most;
}

/* The execution of the plan: tiles as large as the memory limit allows. */
static cairn_err
fit(struct cairn_conversion *conversion, struct cairn_execution *execution)
{
    cairn_err err;

    *execution = (struct cairn_execution){.feeds = {&conversion->feed},
                                          .stretches = conversion->regions.stretches,
                                          .stretch_count = conversion->regions.stretch_count,
                                          .thread_count = conversion->options->thread_count};
    err = cairn_memory_limit_fit(execution, conversion->options->memory_limit_bytes,
                                 spare_per_tile(conversion), conversion->source.complaint);
    conversion->report.tile_bytes = execution->tile_bytes;
    conversion->report.thread_count = execution->thread_count;
    return err;
}

/* The source's pieces and what is made of them to prove that it is whole fit into memory. */
static cairn_err
check_memory(const struct cairn_conversion *conversion)
{
    size_t pieces = cairn_layout_piece_count(conversion->source.layout);

    return cairn_memory_limit_check(conversion->options->memory_limit_bytes,
                                    cairn_memory_limit_plan_bytes(pieces, 0), "checking the source",
                                    conversion->source.complaint);
}

cairn_err
cairn_conversion_open(const struct cairn_conversion_options *options, struct cairn_conversion *out,
                      struct cairn_complaint *complaint)
{
    struct cairn_execution execution;
    cairn_err err;

    *out = (struct cairn_conversion){.options = options, .source.place.dir_fd = -1};
    if (options->from)
        err = cairn_checkpoint_open(options->source, options->from, options->thread_count,
                                    &out->source, complaint);
    else
        err = cairn_checkpoint_detect(options->source, options->formats, options->thread_count,
                                      &out->source, complaint);
    if (!err && (options->output.dtype == CAIRN_F32 || options->output.dtype == CAIRN_F64))
        err = cairn_checkpoint_take_masters(&out->source, &out->report.from_masters);
    if (!err) /* masters may be left out then */
        err = cairn_checkpoint_drop(&out->source, options->drops, options->drop_count,
                                    &out->report.dropped);
    if (!err)
        err = check_memory(out);
    if (!err && options->map) {
        err = cairn_checkpoint_map(&out->source, options->map, options->sets, options->set_count,
                                   &out->report.map);
        if (!err)
            err = check_memory(out);
    }
    if (!err && options->to->prepare)
        err = options->to->prepare(&out->source, &options->output);
    if (!err)
        err = cairn_whole_init(&out->source, &out->whole);
    if (!err) {
        out->whole.map = options->map;
        count_tensors(out);
        out->output.format = options->to;
        err = options->to->plan(&out->source, &options->output, &out->output);
    }
    if (!err && !out->output.layout) /* nothing but small files */
        err = cairn_layout_create(&out->output.layout);
    if (!err)
        err = check_complete(out);
    if (!err)
        err = cairn_memory_limit_check(
            options->memory_limit_bytes,
            cairn_memory_limit_plan_bytes(cairn_layout_piece_count(out->whole.layout),
                                          cairn_layout_piece_count(out->output.layout)),
            "planning", complaint);
    if (!err)
        err = cairn_regions_init(&out->output, out->whole.layout, &out->regions, complaint);
    if (!err)
        err = plan_moves(out);
    if (!err)
        err = fit(out, &execution);
    return cairn_complain_failed(complaint, err, "%s: cannot be converted", options->source);
}

void
cairn_conversion_close(struct cairn_conversion *conversion)
{
    cairn_moves_fini(&conversion->feed.moves);
    cairn_regions_fini(&conversion->regions);
    cairn_output_fini(&conversion->output);
    cairn_whole_fini(&conversion->whole);
    cairn_checkpoint_close(&conversion->source);
}

/* ---- running ---- */

/* What makes a run the continuation of another: same source files, same target, same moves. */
static cairn_err
digest_plan(const struct cairn_conversion *conversion, uint8_t digest[CAIRN_SHA256_BYTES])
{
    static const char what[] = "cairn convert 1";
    const struct cairn_output *output = &conversion->output;
    struct cairn_sha256 *sha = NULL;
    cairn_err err;

    err = cairn_sha256_create(&sha);
    if (err)
        return err;
    cairn_sha256_update(sha, what, sizeof(what));
    cairn_sha256_update(sha, output->format->name, strlen(output->format->name) + 1);
    for (uint32_t c = 0; c < conversion->source.container_count; c++) {
        const struct cairn_container *container = &conversion->source.containers[c];
        uint64_t numbers[4] = {
            container->bytes, container->mark.modified_ns, container->mark.changed_ns,
            container->literal ? cairn_crc64(0, container->literal, (size_t)container->bytes) : 0};

        if (container->path)
            cairn_sha256_update(sha, container->path, strlen(container->path) + 1);
        cairn_sha256_update(sha, numbers, sizeof(numbers));
    }
    for (uint32_t f = 0; f < output->file_count; f++) {
        cairn_sha256_update(sha, output->files[f].path, strlen(output->files[f].path) + 1);
        cairn_sha256_update(sha, &output->files[f].bytes, sizeof(output->files[f].bytes));
    }
    for (uint32_t i = 0; i < output->literal_count; i++) {
        const struct cairn_output_literal *literal = &output->literals[i];
        uint64_t numbers[3] = {literal->file, literal->offset_bytes, literal->bytes_len};

        cairn_sha256_update(sha, numbers, sizeof(numbers));
        cairn_sha256_update(sha, literal->bytes, (size_t)literal->bytes_len);
    }
    for (uint32_t r = output->file_count; r < conversion->regions.region_count; r++) {
        const struct cairn_region *region = &conversion->regions.regions[r];
        uint64_t numbers[4] = {region->file, region->from, region->to, region->file_offset};

        cairn_sha256_update(sha, numbers, sizeof(numbers));
    }
    cairn_sha256_update(sha, conversion->feed.moves.moves,
                        conversion->feed.moves.count * sizeof(*conversion->feed.moves.moves));
    err = cairn_sha256_final(sha, digest);
    cairn_sha256_destroy(sha);
    return err;
}

/* Writes the literals that `finish` added. */
static cairn_err
finish(struct cairn_conversion *conversion, struct cairn_target *target)
{
    struct cairn_output *output = &conversion->output;
    uint32_t before = output->literal_count;
    cairn_err err = CAIRN_OK;

    if (output->format->finish)
        err = output->format->finish(&conversion->source, output);
    for (uint32_t i = before; !err && i < output->literal_count; i++)
        err = cairn_target_write(target, output->literals[i].file, output->literals[i].offset_bytes,
                                 output->literals[i].bytes, (size_t)output->literals[i].bytes_len,
                                 conversion->source.complaint);
    return err;
}

/* Compares the source's checksums with what was read. If they differ, no later run may continue
 * what was written, not even with another copy of the source of the same size and time. */
static cairn_err
check_sums(const struct cairn_conversion *conversion, struct cairn_source_sums *sums,
           struct cairn_handles *handles, struct cairn_target *target)
{
    cairn_err err = cairn_source_sums_check(sums, &conversion->source, handles), forgotten;

    if (err != CAIRN_CORRUPT)
        return err;
    forgotten = cairn_journal_forget(cairn_target_journal(target));
    if (!forgotten)
        cairn_target_discard(target);
    if (forgotten) {
        struct cairn_complaint *complaint = conversion->source.complaint, cause = *complaint;

        complaint->text[0] = '\0';
        (void)cairn_complain(
            complaint, err,
            "%.800s; remove the unfinished files in %.100s, they cannot be marked: %s", cause.text,
            cairn_target_directory(target), cairn_err_text(forgotten));
    }
    return err;
}

cairn_err
cairn_conversion_run(struct cairn_conversion *conversion, struct cairn_complaint *complaint)
{
    struct cairn_clock clock = cairn_clock_system();
    uint64_t started_ns = cairn_clock_now_ns(&clock);
    uint8_t digest[CAIRN_SHA256_BYTES];
    struct cairn_handles *handles = NULL;
    struct cairn_target *target = NULL;
    struct cairn_tally tally = {0};
    struct writing writing = {.conversion = conversion};
    struct cairn_source_sums *sums = NULL;
    struct cairn_execution execution;
    cairn_err err;

    conversion->source.complaint = complaint;
    err = digest_plan(conversion, digest);
    if (!err)
        err =
            cairn_target_open(conversion->options->target, &conversion->output,
                              conversion->options->output.single_file, digest, &target, complaint);
    if (!err)
        err = cairn_handles_create(conversion->source.container_count, cairn_execute_open,
                                   &conversion->source, &handles);
    if (!err)
        err = cairn_whole_compare(&conversion->source, &conversion->whole, handles,
                                  conversion->options->memory_limit_bytes,
                                  conversion->report.thread_count);
    if (!err)
        err = cairn_equals_check(conversion, handles);
    if (!err)
        err = cairn_tally_init(&tally, conversion->whole.layout, &conversion->output,
                               &conversion->regions);
    if (!err)
        err = find_ranges(&writing, &conversion->output);
    if (!err)
        err = cairn_source_sums_create(&conversion->source, &sums);
    if (!err)
        err = fit(conversion, &execution);
    conversion->feed.handles = handles;
    conversion->feed.sums = sums;
    if (!err) {
        writing.target = target;
        writing.tally = &tally;
        for (size_t i = 0; i < execution.stretch_count; i++)
            writing.total_bytes += execution.stretches[i].end - execution.stretches[i].begin;
        execution.have = have_tile;
        execution.take = take_tile;
        execution.progress = show;
        execution.context = &writing;
        err = cairn_execute(&execution, complaint);
    }
    if (!err)
        err = cairn_target_create(target, complaint);
    if (!err)
        err = check_sums(conversion, sums, handles, target);
    if (!err) {
        conversion->report.resumed = cairn_target_resumed(target);
        conversion->report.kept_bytes = writing.kept_bytes;
        err = cairn_prove(conversion, &tally, target, handles);
    }
    if (!err)
        err = cairn_execute_check_unchanged(&conversion->source);
    if (!err)
        err = finish(conversion, target);
    if (!err)
        err = cairn_target_commit(target, complaint);
    conversion->report.run_ns = cairn_clock_now_ns(&clock) - started_ns;
    free(writing.literals.ranges);
    free(writing.sums.ranges);
    cairn_source_sums_destroy(sums);
    cairn_tally_fini(&tally);
    cairn_target_close(target);
    (void)cairn_handles_destroy(handles); /* only read */
    return cairn_complain_failed(complaint, err, "%s: cannot be converted",
                                 conversion->options->source);
}
