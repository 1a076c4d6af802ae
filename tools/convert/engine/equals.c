/* tools/convert/engine/equals.c - see equals.h. */
#include "tools/convert/engine/equals.h"

#include <stdlib.h>
#include <string.h>

#include "tools/convert/core/format.h"
#include "tools/convert/engine/fingerprints.h"

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
    return (a->dtype == b->dtype || is_rounded(a, b)) && a->dims == b->dims &&
           memcmp(a->shape, b->shape, a->dims * sizeof(*a->shape)) == 0;
}

/* Refuses pairs that cannot be equal. */
static cairn_err
check_forms(const struct cairn_conversion *conversion)
{
    const struct cairn_output *output = &conversion->output;

    for (uint32_t i = 0; i < output->equal_count; i++) {
        const struct cairn_tensor *tensor =
            cairn_layout_tensor(conversion->source.layout, output->equals[i].tensor);
        const struct cairn_tensor *of =
            cairn_layout_tensor(conversion->source.layout, output->equals[i].of);

        if (!same_form(tensor, of))
            return cairn_complain(
                conversion->source.complaint, CAIRN_INVAL,
                "%s: is not of the type and shape of %s, and the format %s keeps one "
                "for both; leave it out with --drop",
                tensor->name, of->name, output->format->name);
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
        const struct cairn_tensor *tensor =
            cairn_layout_tensor(conversion->source.layout, output->equals[i].tensor);
        const struct cairn_tensor *of =
            cairn_layout_tensor(conversion->source.layout, output->equals[i].of);

        if (!dtype)
            wanted[cairn_layout_tensor_find(layout, tensor->name)] = true;
        if (dtype ? is_rounded(tensor, of) && tensor->dtype == dtype : !is_rounded(tensor, of))
            wanted[cairn_layout_tensor_find(layout, of->name)] = true;
        *any = *any || !dtype || (is_rounded(tensor, of) && tensor->dtype == dtype);
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
        const struct cairn_tensor *tensor =
            cairn_layout_tensor(conversion->source.layout, output->equals[i].tensor);
        const struct cairn_tensor *of =
            cairn_layout_tensor(conversion->source.layout, output->equals[i].of);

        if (is_rounded(tensor, of) != (dtype != 0) || (dtype && tensor->dtype != dtype))
            continue;
        if (!cairn_fingerprint_equal(of_tensors[cairn_layout_tensor_find(layout, tensor->name)],
                                     of_others[cairn_layout_tensor_find(layout, of->name)]))
            return dtype ? cairn_complain(
                               conversion->source.complaint, CAIRN_INVAL,
                               "%s: has other elements than %s when these are rounded, and the "
                               "format %s would keep those alone; choose a form that has "
                               "both, such as another stage of ZeRO",
                               tensor->name, of->name, output->format->name)
                         : cairn_complain(
                               conversion->source.complaint, CAIRN_INVAL,
                               "%s: has other elements than %s, and the format %s keeps one for "
                               "both; leave it out with --drop",
                               tensor->name, of->name, output->format->name);
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
