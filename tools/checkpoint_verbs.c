/* tools/checkpoint_verbs.c - see verbs.h. */
#include "tools/checkpoint_verbs.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/process/config_table.h"
#include "base/clock.h"
#include "base/log.h"
#include "tools/convert/engine/execute.h"
#include "tools/verb.h"

#define MEMORY_LIMIT_DEFAULT_BYTES (UINT64_C(1) << 30)

bool
cairn_words_parse(const struct cairn_usage *usage, int argc, char **argv, const char **words,
                  int count, const char *what, int *exit_code)
{
    int found = 0, at = 0;

    for (;;) { /* the parser stops at each word; go on after it as if it were the verb */
        int operand = 0;

        if (!cairn_usage_parse(usage, argc - at, argv + at, &operand, exit_code))
            return false;
        at += operand;
        if (at >= argc)
            break;
        if (found == count) {
            *exit_code = cairn_usage_error(usage, "%s: unexpected argument; omit it", argv[at]);
            return false;
        }
        words[found++] = argv[at];
    }
    if (found == count)
        return true;
    *exit_code = cairn_usage_error(usage, "name %s", what);
    return false;
}

bool
cairn_resources_parse(const struct cairn_usage *usage, const char *threads, const char *memory,
                      uint32_t *thread_count, uint64_t *memory_limit_bytes, int *exit_code)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    char *end = NULL;

    *thread_count = cores < 1 ? 1 : cores > 16 ? 16 : (uint32_t)cores;
    if (threads) {
        unsigned long value = strtoul(threads, &end, 10);

        if (threads[0] < '0' || threads[0] > '9' || *end || value < 1 ||
            value > CAIRN_EXECUTE_THREADS_MAX) {
            *exit_code = cairn_usage_error(usage, "--threads %s: expected a number from 1 to %d",
                                           threads, CAIRN_EXECUTE_THREADS_MAX);
            return false;
        }
        *thread_count = (uint32_t)value;
    }
    *memory_limit_bytes = MEMORY_LIMIT_DEFAULT_BYTES;
    if (memory && (cairn_parse_bytes(memory, memory_limit_bytes) != CAIRN_OK ||
                   *memory_limit_bytes < CAIRN_MEMORY_LIMIT_MIN_BYTES)) {
        *exit_code = cairn_usage_error(
            usage, "--memory-limit %s: expected a size such as 1GiB, at least 64MiB", memory);
        return false;
    }
    return true;
}

/* ---- errors ---- */

static void
discard_line(void *context, enum cairn_log_level level, const char *line)
{
    (void)context;
    (void)level;
    (void)line;
}

void
cairn_checkpoint_log_setup(void)
{
    cairn_log_setup(CAIRN_LOG_ERROR, discard_line, NULL);
}

int
cairn_checkpoint_error(const char *verb, cairn_err err, const struct cairn_complaint *complaint)
{
    cairn_tool_error(verb, complaint->text[0] ? complaint->text : cairn_err_text(err), NULL, NULL);
    switch (err) {
    case CAIRN_NOT_FOUND:
    case CAIRN_VERSION:
        return CAIRN_EXIT_INPUT;
    case CAIRN_INVAL:
        return CAIRN_EXIT_USAGE;
    default:
        return cairn_exit_code(err);
    }
}

void
cairn_checkpoint_print_warnings(const char *verb, const struct cairn_checkpoint *checkpoint)
{
    for (uint32_t i = 0; i < checkpoint->warning_count; i++)
        fprintf(stderr, "cairn %s: warning: %s\n", verb, checkpoint->warnings[i]);
}

/* ---- showing ---- */

const char *
cairn_show_shape(const struct cairn_tensor *tensor, char *out, size_t out_bytes)
{
    size_t used = (size_t)snprintf(out, out_bytes, "[");

    for (uint32_t d = 0; d < tensor->dims && used < out_bytes; d++)
        used += (size_t)snprintf(out + used, out_bytes - used, "%s%" PRIu64, d ? ", " : "",
                                 tensor->shape[d]);
    if (used < out_bytes)
        (void)snprintf(out + used, out_bytes - used, "]");
    return out;
}

const char *
cairn_kind_name(enum cairn_kind kind)
{
    static const char *const names[] = {[CAIRN_PARAM] = "param",
                                        [CAIRN_OPTIMIZER] = "optimizer",
                                        [CAIRN_BUFFER] = "buffer",
                                        [CAIRN_OPAQUE] = "opaque"};

    return kind >= CAIRN_PARAM && kind <= CAIRN_OPAQUE ? names[kind] : "?";
}

void
cairn_json_print_part(struct cairn_json_writer *writer)
{
    if (writer->err || !writer->text)
        return;
    (void)fwrite(writer->text, 1, writer->used_bytes, stdout); /* ferror is asked in the end */
    writer->used_bytes = 0;
}

bool
cairn_json_print_rest(const char *verb, struct cairn_json_writer *writer)
{
    char *text = NULL;
    size_t text_bytes = 0;
    cairn_err err = cairn_json_writer_done(writer, &text, &text_bytes);

    if (!err)
        (void)fwrite(text, 1, text_bytes, stdout);
    free(text);
    (void)putchar('\n');
    if (err || fflush(stdout) != 0 || ferror(stdout)) {
        cairn_tool_error(verb, "the answer could not be written whole",
                         err ? cairn_err_text(err) : NULL, "check where stdout goes");
        return false;
    }
    return true;
}

void
cairn_show_progress(void *context, uint64_t done_bytes, uint64_t total_bytes)
{
    struct cairn_progress *progress = context;
    struct cairn_clock clock = cairn_clock_system();
    uint64_t now_ns = cairn_clock_now_ns(&clock);

    if (progress->started_ns == 0)
        cairn_progress_start(progress, progress->what, total_bytes, now_ns);
    cairn_progress_show(progress, done_bytes, now_ns);
}
