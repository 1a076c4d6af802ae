/* tools/fingerprint.c - `cairn fingerprint`: which state a checkpoint holds, in any format and
 * parallelism. */
#include "tools/convert/formats.h"
#include "tools/convert/engine/fingerprints.h"
#include "snapshot/box.h"
#include "tools/checkpoint_verbs.h"
#include "tools/convert/engine/whole.h"
#include "tools/verb.h"

#include <inttypes.h>
#include <stdlib.h>

static const char about[] =
    "Reads the whole checkpoint PATH and prints its fingerprint, which is the same for the same "
    "tensors in every format, parallelism and file order. Compares replicas and checks the "
    "checkpoint's own checksums. Opaque state (RNG, schedulers) has a separate fingerprint, for "
    "each format encodes it differently.";
static const char examples[] = "  cairn fingerprint ckpt/step-1000\n"
                               "  cairn fingerprint ckpt/step-1000 -o json | jq -r .fingerprint\n";

struct answer {
    struct cairn_fingerprint *fingerprints; /* [tensors] */
    char state[65], opaque[65];
    uint64_t bytes;
    uint32_t tensors, blobs;
};

static cairn_err
measure(struct cairn_checkpoint *checkpoint, const struct cairn_whole *whole,
        struct cairn_fingerprints_options *options, struct answer *answer)
{
    uint32_t count = cairn_layout_tensor_count(whole->layout);
    struct cairn_handles *handles = NULL;
    cairn_err err;

    answer->fingerprints = calloc((size_t)count + 1, sizeof(*answer->fingerprints));
    if (!answer->fingerprints)
        return CAIRN_NOMEM;
    err = cairn_source_sums_create(checkpoint, &options->sums);
    if (!err)
        err = cairn_handles_create(checkpoint->container_count, cairn_execute_open, checkpoint,
                                   &handles);
    if (!err)
        err = cairn_whole_compare(checkpoint, whole, handles, options->memory_limit_bytes,
                                  options->thread_count);
    if (!err)
        err = cairn_fingerprints_read(checkpoint, whole->layout, handles, options,
                                      answer->fingerprints);
    if (!err)
        err = cairn_source_sums_check(options->sums, checkpoint, handles);
    if (!err)
        err = cairn_execute_check_unchanged(checkpoint);
    if (!err)
        err = cairn_fingerprints_digest(whole->layout, answer->fingerprints, answer->state,
                                        answer->opaque);
    cairn_source_sums_destroy(options->sums);
    (void)cairn_handles_destroy(handles); /* only read */
    for (uint32_t t = 0; t < count; t++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(whole->layout, t);

        answer->bytes += cairn_tensor_bytes(tensor);
        answer->tensors += tensor->kind != CAIRN_OPAQUE;
        answer->blobs += tensor->kind == CAIRN_OPAQUE;
    }
    return err;
}

static bool
print_json(const struct cairn_checkpoint *checkpoint, const struct cairn_layout *layout,
           const struct answer *answer)
{
    struct cairn_json_writer writer;
    char text[CAIRN_FINGERPRINT_TEXT_BYTES];

    cairn_json_begin(&writer);
    cairn_json_put_string(&writer, "path", checkpoint->place.path);
    cairn_json_put_string(&writer, "format", checkpoint->format->name);
    cairn_json_put_string(&writer, "fingerprint", answer->state);
    cairn_json_put_string(&writer, "fingerprint_opaque", answer->opaque);
    cairn_json_put_u64(&writer, "bytes", answer->bytes);
    cairn_json_put_array(&writer, "tensors");
    for (uint32_t t = 0; t < cairn_layout_tensor_count(layout); t++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(layout, t);

        cairn_fingerprint_text(answer->fingerprints[t], text);
        cairn_json_write_line(&writer);
        cairn_json_write_object_begin(&writer);
        cairn_json_put_string(&writer, "name", tensor->name);
        cairn_json_put_string(&writer, "kind", cairn_kind_name(tensor->kind));
        cairn_json_put_string(&writer, "fingerprint", text);
        cairn_json_write_object_end(&writer);
        cairn_json_print_part(&writer);
    }
    cairn_json_write_array_end(&writer);
    cairn_json_write_object_end(&writer);
    return cairn_json_print_rest("fingerprint", &writer);
}

static void
print_table(const struct cairn_checkpoint *checkpoint, const struct answer *answer)
{
    char shown[CAIRN_SHOWN_BYTES];

    printf("%s  %s\n", answer->state, checkpoint->place.path);
    printf("%s  opaque state\n", answer->opaque);
    printf("%" PRIu32 " tensors and %" PRIu32 " opaque blobs, %s, read as %s\n", answer->tensors,
           answer->blobs, cairn_show_bytes(answer->bytes, shown), checkpoint->format->name);
}

int
cairn_verb_fingerprint(int argc, char **argv)
{
    const char *output = NULL, *threads = NULL, *memory = NULL, *path;
    bool follow_links = false, allow_expanded = false;
    const struct cairn_flag flags[] = {
        {"threads", 0, "N", "use N threads (default: one per core, at most 16)", &threads, NULL},
        {"memory-limit", 0, "SIZE", "use at most this much memory (default: 1GiB)", &memory, NULL},
        {"follow-links", 0, NULL, "follow links out of the checkpoint's folder", NULL,
         &follow_links},
        {"allow-expanded", 0, NULL, "accept tensors far larger than the files", NULL,
         &allow_expanded},
        {"output", 'o', "table|json", "print a table (default) or JSON", &output, NULL},
    };
    const struct cairn_usage usage = {"fingerprint", "PATH [-o table|json]",       about,  examples,
                                      flags,         sizeof flags / sizeof *flags, "FILE", NULL};
    struct cairn_progress progress = {.what = "reading"};
    struct cairn_fingerprints_options options = {.progress = cairn_show_progress,
                                                 .context = &progress};
    struct cairn_complaint complaint = {""};
    struct cairn_checkpoint checkpoint = {.place.dir_fd = -1};
    struct cairn_whole whole = {0};
    struct answer answer = {0};
    bool json, printed = true;
    int exit_code;
    cairn_err err;

    if (!cairn_words_parse(&usage, argc, argv, &path, 1, "the checkpoint", &exit_code) ||
        !cairn_resources_parse(&usage, threads, memory, &options.thread_count,
                               &options.memory_limit_bytes, &exit_code))
        return exit_code;
    if (!cairn_output_parse(output, &json))
        return cairn_usage_error(&usage, "-o %s: expected table or json", output);
    cairn_checkpoint_log_setup();
    cairn_place_follow_links(follow_links);
    cairn_whole_allow_expanded(allow_expanded);
    err =
        cairn_checkpoint_detect(path, cairn_formats, options.thread_count, &checkpoint, &complaint);
    if (!err)
        err = cairn_whole_init(&checkpoint, &whole);
    if (!err)
        err = measure(&checkpoint, &whole, &options, &answer);
    if (progress.started_ns)
        cairn_progress_stop(&progress);
    cairn_checkpoint_print_warnings("fingerprint", &checkpoint);
    if (!err && json) {
        printed = print_json(&checkpoint, whole.layout, &answer);
    } else if (!err) {
        print_table(&checkpoint, &answer);
        printed = fflush(stdout) == 0;
    }
    free(answer.fingerprints);
    cairn_whole_fini(&whole);
    cairn_checkpoint_close(&checkpoint);
    if (err)
        return cairn_checkpoint_error("fingerprint", err, &complaint);
    return printed ? CAIRN_EXIT_OK : CAIRN_EXIT_IO;
}
