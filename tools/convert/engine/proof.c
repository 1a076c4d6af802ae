/*
 * tools/convert/engine/proof.c - see proof.h.
 *
 * The tally has the fingerprints of all tensors whose elements could be told from their places as
 * tiles passed by. The others are read again here, on both sides.
 */
#include "tools/convert/engine/proof.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "snapshot/box.h"
#include "tools/convert/engine/fingerprints.h"
#include "tools/convert/core/format.h"

/* A parameter beside its master weights is what these are rounded to. */
static bool
is_rounded(const struct cairn_tensor *tensor, const struct cairn_tensor *of)
{
    return tensor->dtype != of->dtype && of->dtype == CAIRN_F32 &&
           (tensor->dtype == CAIRN_BF16 || tensor->dtype == CAIRN_F16);
}

static bool
same_form(const struct cairn_tensor *a, const struct cairn_tensor *b)
{
    return (a->dtype == b->dtype || is_rounded(a, b)) &&
           cairn_shape_equal(a->dims, a->shape, b->dims, b->shape);
}

/* The two tensors of a pair; whether the first is what the second is rounded to. */
struct pair {
    const struct cairn_tensor *tensor, *of;
    bool rounded;
};

static struct pair
pair_at(const struct cairn_conversion *conversion, uint32_t i)
{
    const struct cairn_layout *layout = conversion->source.layout;
    struct pair pair = {cairn_layout_tensor(layout, conversion->output.equals[i].tensor),
                        cairn_layout_tensor(layout, conversion->output.equals[i].of), false};

    pair.rounded = is_rounded(pair.tensor, pair.of);
    return pair;
}

/* Refuses pairs that cannot be equal. */
static cairn_err
check_forms(const struct cairn_conversion *conversion)
{
    const struct cairn_output *output = &conversion->output;

    for (uint32_t i = 0; i < output->equal_count; i++) {
        struct pair pair = pair_at(conversion, i);

        if (!same_form(pair.tensor, pair.of))
            return cairn_complain(conversion->source.complaint, CAIRN_INVAL,
                                  "%s: is not of the type and shape of %s, and the format %s keeps "
                                  "one for both; leave it out with --drop",
                                  pair.tensor->name, pair.of->name, output->format->name);
    }
    return CAIRN_OK;
}

/* One side of each pair: what is left out, or what it shall equal; of those that are (or are not)
 * rounded to `dtype`. */
static void
choose(const struct cairn_conversion *conversion, enum cairn_dtype dtype, bool *wanted, bool *any)
{
    const struct cairn_output *output = &conversion->output;
    const struct cairn_layout *layout = conversion->whole.layout;

    *any = false;
    memset(wanted, 0, cairn_layout_tensor_count(layout) * sizeof(*wanted));
    for (uint32_t i = 0; i < output->equal_count; i++) {
        struct pair pair = pair_at(conversion, i);

        if (!dtype)
            wanted[cairn_layout_tensor_find(layout, pair.tensor->name)] = true;
        if (dtype ? pair.rounded && pair.tensor->dtype == dtype : !pair.rounded)
            wanted[cairn_layout_tensor_find(layout, pair.of->name)] = true;
        *any = *any || !dtype || (pair.rounded && pair.tensor->dtype == dtype);
    }
}

/* Compares the pairs that are (or, where dtype is 0, are not) rounded to `dtype`. */
static cairn_err
compare(const struct cairn_conversion *conversion, enum cairn_dtype dtype,
        const struct cairn_fingerprint *of_tensors, const struct cairn_fingerprint *of_others)
{
    const struct cairn_output *output = &conversion->output;
    const struct cairn_layout *layout = conversion->whole.layout;

    for (uint32_t i = 0; i < output->equal_count; i++) {
        struct pair pair = pair_at(conversion, i);

        if (pair.rounded != (dtype != 0) || (dtype && pair.tensor->dtype != dtype))
            continue;
        if (!cairn_fingerprint_equal(
                of_tensors[cairn_layout_tensor_find(layout, pair.tensor->name)],
                of_others[cairn_layout_tensor_find(layout, pair.of->name)]))
            return dtype ? cairn_complain(
                               conversion->source.complaint, CAIRN_INVAL,
                               "%s: has other elements than %s when these are rounded, and the "
                               "format %s would keep those alone; choose another stage of ZeRO",
                               pair.tensor->name, pair.of->name, output->format->name)
                         : cairn_complain(conversion->source.complaint, CAIRN_INVAL,
                                          "%s: has other elements than %s, and the format %s keeps "
                                          "one for both; leave it out with --drop",
                                          pair.tensor->name, pair.of->name, output->format->name);
    }
    return CAIRN_OK;
}

cairn_err
cairn_equals_check(struct cairn_conversion *conversion, struct cairn_handles *handles)
{
    static const enum cairn_dtype rounded[] = {CAIRN_BF16, CAIRN_F16};
    const struct cairn_layout *layout = conversion->whole.layout;
    size_t count = cairn_layout_tensor_count(layout);
    struct cairn_fingerprints_options options = {.thread_count = conversion->report.thread_count,
                                                 .memory_limit_bytes =
                                                     conversion->options->memory_limit_bytes};
    struct cairn_fingerprint *found, *cast;
    bool *wanted, any = false;
    cairn_err err = CAIRN_OK;

    if (conversion->output.equal_count == 0)
        return CAIRN_OK;
    found = calloc(count + 1, sizeof(*found));
    cast = calloc(count + 1, sizeof(*cast));
    wanted = calloc(count + 1, sizeof(*wanted));
    options.wanted = wanted;
    if (!found || !cast || !wanted)
        err = CAIRN_NOMEM;
    if (!err)
        err = check_forms(conversion);
    if (!err) {
        choose(conversion, 0, wanted, &any);
        err = cairn_fingerprints_read(&conversion->source, layout, handles, &options, found);
    }
    if (!err)
        err = compare(conversion, 0, found, found);
    for (size_t i = 0; !err && i < sizeof(rounded) / sizeof(*rounded); i++) {
        choose(conversion, rounded[i], wanted, &any);
        if (!any)
            continue;
        options.cast = rounded[i];
        err = cairn_fingerprints_read(&conversion->source, layout, handles, &options, cast);
        if (!err)
            err = compare(conversion, rounded[i], found, cast);
    }
    free(found);
    free(cast);
    free(wanted);
    return err;
}

/* A checkpoint that is the part files, for reading them again. Its layout is the output's own. */
static cairn_err
open_written(const struct cairn_conversion *conversion, const struct cairn_target *target,
             struct cairn_checkpoint *out)
{
    char name[2048];
    cairn_err err;

    *out = (struct cairn_checkpoint){.place.dir_fd = -1, .complaint = conversion->source.complaint};
    err = cairn_place_open(cairn_target_directory(target), &out->place, out->complaint);
    for (uint32_t f = 0; !err && f < conversion->output.file_count; f++) {
        uint32_t container;

        err = cairn_target_part_name(target, f, name, sizeof(name));
        if (!err)
            err = cairn_checkpoint_add_file(out, name, &container);
    }
    return err;
}

/* Reads what the tally left out again, on both sides. */
static cairn_err
read_left_out(struct cairn_conversion *conversion, const struct cairn_target *target,
              struct cairn_handles *handles, struct cairn_tally *tally)
{
    size_t sources = cairn_layout_tensor_count(conversion->whole.layout);
    const struct cairn_layout *output = conversion->output.layout;
    struct cairn_fingerprint *found = calloc(sources + 1, sizeof(*found));
    bool *wanted = calloc(sources + 1, sizeof(*wanted));
    struct cairn_fingerprints_options options = {.thread_count = conversion->report.thread_count,
                                                 .memory_limit_bytes =
                                                     conversion->options->memory_limit_bytes,
                                                 .wanted = wanted};
    struct cairn_checkpoint written = {.place.dir_fd = -1};
    struct cairn_handles *written_handles = NULL;
    cairn_err err = found && wanted ? CAIRN_OK : CAIRN_NOMEM;

    for (uint32_t t = 0; !err && t < cairn_layout_tensor_count(output); t++)
        wanted[tally->from[t]] = wanted[tally->from[t]] || tally->left_out[t];
    if (!err)
        err = cairn_fingerprints_read(&conversion->source, conversion->whole.layout, handles,
                                      &options, found);
    if (!err)
        err = open_written(conversion, target, &written);
    if (!err)
        err = cairn_handles_create(written.container_count, cairn_execute_open, &written,
                                   &written_handles);
    options.wanted = tally->left_out;
    if (!err)
        err = cairn_fingerprints_read(&written, output, written_handles, &options, tally->target);
    for (uint32_t t = 0; !err && t < cairn_layout_tensor_count(output); t++)
        if (tally->left_out[t])
            tally->source[t] = found[tally->from[t]];
    (void)cairn_handles_destroy(written_handles); /* only read */
    cairn_checkpoint_close(&written);
    free(found);
    free(wanted);
    return err;
}

/* Compares the fingerprints of each tensor, and makes the digests. */
static cairn_err
conclude(struct cairn_conversion *conversion, const struct cairn_tally *tally)
{
    struct cairn_conversion_report *report = &conversion->report;
    const struct cairn_layout *output = conversion->output.layout;
    cairn_err err;

    for (uint32_t t = 0; t < cairn_layout_tensor_count(output); t++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(output, t);
        bool cast =
            cairn_layout_tensor(conversion->whole.layout, tally->from[t])->dtype != tensor->dtype;

        if (!cast && !cairn_fingerprint_equal(tally->source[t], tally->target[t]))
            return cairn_complain(
                conversion->source.complaint, CAIRN_INTERNAL,
                "tensor %s: has another fingerprint in the target than in the source: a defect, or "
                "memory or a disk that changes bytes; nothing was made final",
                tensor->name);
        report->proved += !cast;
    }
    /* The source's digest is over the same tensors with the source's dtypes: regions.layout has
     * them.
     */
    err = cairn_fingerprints_digest(conversion->regions.layout, tally->source, report->source_state,
                                    report->source_opaque);
    if (!err)
        err = cairn_fingerprints_digest(output, tally->target, report->target_state,
                                        report->target_opaque);
    return err;
}

cairn_err
cairn_prove(struct cairn_conversion *conversion, struct cairn_tally *tally,
            const struct cairn_target *target, struct cairn_handles *handles)
{
    const struct cairn_layout *output = conversion->output.layout;
    bool left_out = false;
    cairn_err err = CAIRN_OK;

    for (uint32_t t = 0; t < cairn_layout_tensor_count(output); t++) {
        const struct cairn_tensor *from =
            cairn_layout_tensor(conversion->whole.layout, tally->from[t]);

        left_out = left_out || tally->left_out[t];
        if (!tally->left_out[t] && tally->bytes[t] != cairn_tensor_bytes(from))
            return cairn_complain(
                conversion->source.complaint, CAIRN_INTERNAL,
                "of tensor %s %" PRIu64
                " bytes were written; please report this defect, nothing was made final",
                from->name, tally->bytes[t]);
    }
    if (left_out)
        err = read_left_out(conversion, target, handles, tally);
    return err ? err : conclude(conversion, tally);
}
