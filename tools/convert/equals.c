/* tools/convert/equals.c - see equals.h. */
#include "tools/convert/equals.h"

#include <stdlib.h>
#include <string.h>

#include "tools/convert/fingerprints.h"

static bool
same_form(const struct cairn_tensor *a, const struct cairn_tensor *b)
{
    return a->dtype == b->dtype && a->dims == b->dims &&
           memcmp(a->shape, b->shape, a->dims * sizeof(*a->shape)) == 0;
}

/* Marks both sides of each pair as to be read; refuses pairs that cannot be equal. */
static cairn_err
mark(const struct cairn_conversion *conversion, bool *wanted, struct cairn_complaint *complaint)
{
    const struct cairn_output *output = &conversion->output;

    for (uint32_t i = 0; i < output->equal_count; i++) {
        const struct cairn_tensor *tensor =
            cairn_layout_tensor(conversion->source.layout, output->equals[i].tensor);
        const struct cairn_tensor *of =
            cairn_layout_tensor(conversion->source.layout, output->equals[i].of);

        if (!same_form(tensor, of))
            return cairn_complain(complaint, CAIRN_INVAL,
                                  "%s is not of the type and shape of %s, and the format %s keeps one "
                                  "for both; leave it out with --drop",
                                  tensor->name, of->name, output->format->name);
        wanted[cairn_layout_tensor_find(conversion->whole.layout, tensor->name)] = true;
        wanted[cairn_layout_tensor_find(conversion->whole.layout, of->name)] = true;
    }
    return CAIRN_OK;
}

cairn_err
cairn_equals_check(struct cairn_conversion *conversion, struct cairn_handles *handles,
                   struct cairn_complaint *complaint)
{
    const struct cairn_output *output = &conversion->output;
    const struct cairn_layout *layout = conversion->whole.layout;
    size_t count = cairn_layout_tensor_count(layout);
    struct cairn_fingerprints_options options = {
        .thread_count = conversion->report.thread_count,
        .memory_limit_bytes = conversion->options->memory_limit_bytes};
    struct cairn_fingerprint *found;
    bool *wanted;
    cairn_err err = CAIRN_OK;

    if (output->equal_count == 0)
        return CAIRN_OK;
    found = calloc(count + 1, sizeof(*found));
    wanted = calloc(count + 1, sizeof(*wanted));
    options.wanted = wanted;
    if (!found || !wanted)
        err = CAIRN_NOMEM;
    if (!err)
        err = mark(conversion, wanted, complaint);
    if (!err)
        err = cairn_fingerprints_read(&conversion->source, layout, handles, &options, found,
                                      complaint);
    for (uint32_t i = 0; !err && i < output->equal_count; i++) {
        const char *name =
            cairn_layout_tensor(conversion->source.layout, output->equals[i].tensor)->name;
        const char *of =
            cairn_layout_tensor(conversion->source.layout, output->equals[i].of)->name;

        if (!cairn_fingerprint_equal(found[cairn_layout_tensor_find(layout, name)],
                                     found[cairn_layout_tensor_find(layout, of)]))
            err = cairn_complain(complaint, CAIRN_INVAL,
                                 "%s has other elements than %s, and the format %s keeps one for "
                                 "both; leave it out with --drop",
                                 name, of, output->format->name);
    }
    free(found);
    free(wanted);
    return err;
}
