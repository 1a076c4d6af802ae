/* tools/diff.c - `cairn diff`: the tensors that differ between two checkpoints. */
#include "tools/convert/formats.h"
#include "tools/convert/compare/difference.h"
#include "tools/checkpoint_verbs.h"
#include "tools/verb.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

enum { SHAPE_BYTES = 192 };

static const char about[] =
    "Compares the tensors of the checkpoints A and B by name, element by element, in any formats "
    "and parallelism. Pickled state is compared by its values. Exits 0 only if nothing differs. "
    "Without --bits, -0 equals 0 and every NaN equals every other.";
static const char examples[] =
    "  cairn diff ckpt/step-1000 converted/\n"
    "  cairn diff ckpt/step-1000 ckpt/step-2000 -o json | jq '.differences[].name'\n";

static const char *const kinds[] = {[CAIRN_SAME] = "same",
                                    [CAIRN_ONLY_LEFT] = "only_in_a",
                                    [CAIRN_ONLY_RIGHT] = "only_in_b",
                                    [CAIRN_OTHER_DTYPE] = "dtype",
                                    [CAIRN_OTHER_SHAPE] = "shape",
                                    [CAIRN_OTHER_ELEMENTS] = "elements",
                                    [CAIRN_OTHER_VALUE] = "value"};

struct sides {
    struct cairn_checkpoint checkpoints[2];
    struct cairn_whole wholes[2];
};

struct answer {
    struct cairn_difference *differences;
    size_t count;
    uint32_t compared;
    uint64_t bytes;
};

static const struct cairn_tensor *
tensor_of(const struct sides *sides, const struct cairn_difference *difference, int side)
{
    uint32_t index = side == 0 ? difference->left : difference->right;

    return index == UINT32_MAX ? NULL : cairn_layout_tensor(sides->wholes[side].layout, index);
}

/* The index of an element, counted row-major. */
static void
index_of(const struct cairn_tensor *tensor, uint64_t element, uint64_t index[CAIRN_DIMS_MAX])
{
    for (uint32_t d = tensor->dims; d-- > 0;) {
        index[d] = element % tensor->shape[d];
        element /= tensor->shape[d];
    }
}

static uint64_t
elements_of(const struct cairn_tensor *tensor)
{
    uint64_t elements = 1;

    for (uint32_t d = 0; d < tensor->dims; d++)
        elements *= tensor->shape[d];
    return elements;
}

static void
print_difference(const struct sides *sides, const struct cairn_difference *difference)
{
    const struct cairn_tensor *a = tensor_of(sides, difference, 0);
    const struct cairn_tensor *b = tensor_of(sides, difference, 1);
    char left[SHAPE_BYTES], right[SHAPE_BYTES];
    struct cairn_tensor at;

    printf("%s: ", a ? a->name : b->name);
    switch (difference->kind) {
    case CAIRN_ONLY_LEFT:
        printf("only in A\n");
        break;
    case CAIRN_ONLY_RIGHT:
        printf("only in B\n");
        break;
    case CAIRN_OTHER_DTYPE:
        printf("%s in A, %s in B\n", cairn_dtype_name(a->dtype), cairn_dtype_name(b->dtype));
        break;
    case CAIRN_OTHER_SHAPE:
        printf("%s in A, %s in B\n", cairn_show_shape(a, left, sizeof(left)),
               cairn_show_shape(b, right, sizeof(right)));
        break;
    case CAIRN_OTHER_VALUE:
        printf("%s%sdiffers\n", difference->path, difference->path[0] ? " " : "");
        break;
    default:
        at = *a;
        index_of(a, difference->first, at.shape);
        printf("%" PRIu64 " of %" PRIu64 " elements, first at %s", difference->count,
               elements_of(a), cairn_show_shape(&at, left, sizeof(left)));
        if (difference->largest > 0)
            printf(", by %g at most", difference->largest);
        printf("\n");
    }
}

static void
write_difference(struct cairn_json_writer *writer, const struct sides *sides,
                 const struct cairn_difference *difference)
{
    const struct cairn_tensor *a = tensor_of(sides, difference, 0);
    const struct cairn_tensor *b = tensor_of(sides, difference, 1);
    uint64_t index[CAIRN_DIMS_MAX];

    cairn_json_write_line(writer);
    cairn_json_write_object_begin(writer);
    cairn_json_put_string(writer, "name", a ? a->name : b->name);
    cairn_json_put_string(writer, "kind", kinds[difference->kind]);
    if (difference->kind == CAIRN_OTHER_VALUE) {
        cairn_json_put_string(writer, "path", difference->path);
    }
    if (difference->kind == CAIRN_OTHER_ELEMENTS) {
        cairn_json_put_u64(writer, "count", difference->count);
        cairn_json_put_u64(writer, "elements", elements_of(a));
        cairn_json_put_array(writer, "first");
        index_of(a, difference->first, index);
        for (uint32_t d = 0; d < a->dims; d++)
            cairn_json_write_u64(writer, index[d]);
        cairn_json_write_array_end(writer);
        cairn_json_write_key(writer, "largest"); /* null: beyond all numbers */
        cairn_json_write_double(writer, difference->largest);
    }
    cairn_json_write_object_end(writer);
    cairn_json_print_part(writer);
}

static bool
print_json(const struct sides *sides, const struct answer *answer)
{
    struct cairn_json_writer writer;

    cairn_json_begin(&writer);
    cairn_json_put_u64(&writer, "compared", answer->compared);
    cairn_json_put_u64(&writer, "bytes", answer->bytes);
    cairn_json_put_array(&writer, "differences");
    for (size_t i = 0; i < answer->count; i++)
        write_difference(&writer, sides, &answer->differences[i]);
    cairn_json_write_array_end(&writer);
    cairn_json_write_object_end(&writer);
    return cairn_json_print_rest("diff", &writer);
}

static void
print_table(const struct sides *sides, const struct answer *answer)
{
    char shown[CAIRN_SHOWN_BYTES];

    for (size_t i = 0; i < answer->count; i++)
        print_difference(sides, &answer->differences[i]);
    printf("%zu differ; %" PRIu32 " tensors were compared, %s\n", answer->count, answer->compared,
           cairn_show_bytes(answer->bytes, shown));
}

/* Opens one side; its replicas are the same. */
static cairn_err
open_side(struct sides *sides, int side, const char *path,
          const struct cairn_difference_options *options, struct cairn_complaint *complaint)
{
    struct cairn_checkpoint *checkpoint = &sides->checkpoints[side];
    struct cairn_handles *handles = NULL;
    cairn_err err;

    err =
        cairn_checkpoint_detect(path, cairn_formats, options->thread_count, checkpoint, complaint);
    if (!err)
        err = cairn_whole_init(checkpoint, &sides->wholes[side]);
    if (!err)
        err = cairn_handles_create(checkpoint->container_count, cairn_execute_open, checkpoint,
                                   &handles);
    if (!err)
        err = cairn_whole_compare(checkpoint, &sides->wholes[side], handles,
                                  options->memory_limit_bytes, options->thread_count);
    (void)cairn_handles_destroy(handles); /* only read */
    return err;
}

static int
run(const char *const paths[2], const struct cairn_difference_options *options, bool json)
{
    struct sides sides = {.checkpoints = {{.place.dir_fd = -1}, {.place.dir_fd = -1}}};
    struct cairn_difference_side pair[2];
    struct cairn_progress *progress = options->context;
    struct cairn_complaint complaint = {""};
    struct answer answer = {0};
    bool printed = true;
    cairn_err err = CAIRN_OK;

    for (int side = 0; !err && side < 2; side++) {
        err = open_side(&sides, side, paths[side], options, &complaint);
        pair[side] =
            (struct cairn_difference_side){&sides.checkpoints[side], sides.wholes[side].layout};
    }
    if (!err)
        err = cairn_difference_find(pair, options, &answer.differences, &answer.count,
                                    &answer.compared, &answer.bytes, &complaint);
    if (progress->started_ns)
        cairn_progress_stop(progress);
    for (int side = 0; side < 2; side++)
        cairn_checkpoint_print_warnings("diff", &sides.checkpoints[side]);
    if (!err && json) {
        printed = print_json(&sides, &answer);
    } else if (!err) {
        print_table(&sides, &answer);
        printed = fflush(stdout) == 0;
    }
    cairn_differences_free(answer.differences, answer.count);
    for (int side = 0; side < 2; side++) {
        cairn_whole_fini(&sides.wholes[side]);
        cairn_checkpoint_close(&sides.checkpoints[side]);
    }
    if (err)
        return cairn_checkpoint_error("diff", err, &complaint);
    return !printed ? CAIRN_EXIT_IO : answer.count > 0 ? CAIRN_EXIT_FAILED : CAIRN_EXIT_OK;
}

int
cairn_verb_diff(int argc, char **argv)
{
    const char *output = NULL, *threads = NULL, *memory = NULL, *paths[2];
    struct cairn_progress progress = {.what = "comparing"};
    struct cairn_difference_options options = {.progress = cairn_show_progress,
                                               .context = &progress};
    bool follow_links = false, allow_expanded = false;
    const struct cairn_flag flags[] = {
        {"bits", 0, NULL, "compare bits instead of numbers", NULL, &options.bits},
        {"threads", 0, "N", "use N threads (default: one per core, at most 16)", &threads, NULL},
        {"memory-limit", 0, "SIZE", "use at most this much memory (default: 1GiB)", &memory, NULL},
        {"follow-links", 0, NULL, "follow links out of the checkpoint's folder", NULL,
         &follow_links},
        {"allow-expanded", 0, NULL, "accept tensors far larger than the files", NULL,
         &allow_expanded},
        {"output", 'o', "table|json", "print a table (default) or JSON", &output, NULL},
    };
    const struct cairn_usage usage = {"diff", "A B [--bits] [-o table|json]", about,  examples,
                                      flags,  sizeof flags / sizeof *flags,   "FILE", NULL};
    bool json;
    int exit_code;

    if (!cairn_words_parse(&usage, argc, argv, paths, 2, "the checkpoints A and B", &exit_code) ||
        !cairn_resources_parse(&usage, threads, memory, &options.thread_count,
                               &options.memory_limit_bytes, &exit_code))
        return exit_code;
    if (!cairn_output_parse(output, &json))
        return cairn_usage_error(&usage, "-o %s: expected table or json", output);
    cairn_checkpoint_log_setup();
    cairn_place_follow_links(follow_links);
    cairn_whole_allow_expanded(allow_expanded);
    return run(paths, &options, json);
}
