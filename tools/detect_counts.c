/*
 * tools/detect_counts.c - `cairn detect --ras` and `--flight-recorder`: what hangs, from
 * counts alone, as the output states.
 */
#include "tools/detect_counts.h"

#include "base/array.h"
#include "base/json.h"
#include "replan/detect/stall.h"
#include "tools/common.h"
#include "tools/ras.h"
#include "tools/verb.h"
#include "tools/verdict_view.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    LIST_SHOWN = 16,
    MESSAGE_BYTES = 512,
    PATH_BYTES = 1024,
    DUMP_BYTES_MAX = 256 << 20,
    READ_BYTES = 1 << 16
};

struct counts {
    struct cairn_op_count *items;
    size_t count;
    uint32_t rank; /* of the dump that is read; UINT32_MAX: the source says it */
    cairn_err err;
};

static bool
keep(void *context, const struct cairn_op_count *progress)
{
    struct counts *counts = context;

    if (!cairn_array_grow(&counts->items, counts->count, sizeof *counts->items)) {
        counts->err = CAIRN_NOMEM;
        return false;
    }
    counts->items[counts->count] = *progress;
    if (counts->rank != UINT32_MAX)
        counts->items[counts->count].rank = counts->rank;
    counts->count++;
    return true;
}

static int
fail(cairn_err err)
{
    cairn_tool_error("detect", cairn_err_text(err), NULL, NULL);
    return cairn_exit_code(err);
}

/* ---- output ---- */

static bool
print_json(const struct cairn_verdicts *verdicts, const char *source, uint32_t ranks_seen,
           uint32_t still)
{
    struct cairn_json_writer writer;

    cairn_json_begin(&writer);
    cairn_json_put_string(&writer, "source", source);
    cairn_json_put_bool(&writer, "counts_only", true);
    cairn_json_put_array(&writer, "verdicts");
    for (uint32_t i = 0; i < verdicts->count; i++) {
        cairn_json_write_line(&writer);
        cairn_verdict_write(&writer, &verdicts->items[i]);
    }
    cairn_json_write_array_end(&writer);
    cairn_json_put_u64(&writer, "ranks_seen", ranks_seen);
    cairn_json_put_u64(&writer, "communicators_standing_still", still);
    cairn_json_write_object_end(&writer);
    return cairn_json_print(&writer) == CAIRN_OK;
}

static void
print_text(const struct cairn_verdicts *verdicts, const char *source, uint32_t ranks_seen,
           uint32_t still)
{
    printf("counts of operations from %s, of %" PRIu32 " rank%s: they show hangs, never slowness\n",
           source, ranks_seen, ranks_seen == 1 ? "" : "s");
    if (still > 0)
        printf(
            "%" PRIu32
            " communicator%s with equal counts: idle, or inside an operation that does not end\n",
            still, still == 1 ? " stands still" : "s stand still");
    if (verdicts->count == 0)
        printf("no rank is seen to hang\n");
    for (uint32_t i = 0; i < verdicts->count; i++) {
        const struct cairn_verdict *verdict = &verdicts->items[i];

        printf("%" PRIu32 ". %s:", i + 1, cairn_verdict_kind_text(verdict->kind));
        cairn_verdict_print_list(stdout, "rank", &verdict->ranks, LIST_SHOWN);
        printf(" (confidence %.2f)\n  %s\n", verdict->confidence, verdict->evidence);
        if (verdict->victims.count > 0) {
            printf("  who waits:");
            cairn_verdict_print_list(stdout, "rank", &verdict->victims, LIST_SHOWN);
            printf("\n");
        }
    }
}

static int
print(const struct cairn_verdicts *verdicts, const char *source, uint32_t ranks_seen,
      uint32_t still, bool json)
{
    if (!json)
        print_text(verdicts, source, ranks_seen, still);
    else if (!print_json(verdicts, source, ranks_seen, still))
        return fail(CAIRN_NOMEM);
    return CAIRN_EXIT_OK;
}

/* The most ranks that any communicator shows; of dumps, the number of ranks. */
static uint32_t
ranks_of(const struct counts *counts)
{
    uint32_t most = 0;

    for (size_t i = 0; i < counts->count; i++)
        if (counts->items[i].rank != UINT32_MAX && counts->items[i].rank >= most)
            most = counts->items[i].rank + 1;
    return most;
}

/* ---- NCCL's RAS ---- */

static int
say_ras(const char *address, cairn_err err)
{
    char what[MESSAGE_BYTES];
    const char *fix =
        "name a port where NCCL listens: localhost:28028, or what NCCL_RAS_ADDR says in the job";

    snprintf(what, sizeof what, "cannot ask NCCL's RAS at %s", address);
    switch (err) {
    case CAIRN_VERSION:
        fix = "its NCCL is older than 2.28.7 and does not answer in JSON; upgrade it";
        break;
    case CAIRN_TIMEOUT:
        fix = "try again: it asks all of the job's nodes, and some may be slow to answer";
        break;
    default:
        break;
    }
    cairn_tool_error(
        "detect", what,
        err == CAIRN_INVAL ? "expected HOST:PORT of a known host" : cairn_err_text(err), fix);
    return err == CAIRN_INVAL
               ? CAIRN_EXIT_USAGE
               : cairn_exit_code(err == CAIRN_VERSION || err == CAIRN_CORRUPT ? CAIRN_PEER : err);
}

static int
ask(const char *address, struct counts *counts)
{
    struct cairn_progress_fault fault;
    char *text = NULL, what[MESSAGE_BYTES], why[MESSAGE_BYTES];
    size_t text_bytes;
    cairn_err err = cairn_ras_ask(address, &text, &text_bytes);

    if (err)
        return say_ras(address, err);
    err = cairn_progress_read_ras(text, text_bytes, keep, counts, &fault);
    free(text);
    if (!err && !counts->err)
        return CAIRN_EXIT_OK;
    if (err != CAIRN_CORRUPT)
        return fail(err ? err : counts->err);
    snprintf(what, sizeof what, "cannot parse the answer of NCCL's RAS at %s", address);
    snprintf(why, sizeof why, "at byte %zu: %s", fault.at, fault.why);
    cairn_tool_error("detect", what, why, "check that nothing else listens there");
    return CAIRN_EXIT_INPUT;
}

int
cairn_detect_ras(const char *address, uint32_t seconds, bool json)
{
    struct counts before = {.rank = UINT32_MAX}, after = {.rank = UINT32_MAX};
    struct timespec left = {.tv_sec = seconds};
    struct cairn_verdicts verdicts = {0};
    uint32_t still;
    cairn_err err;
    int exit_code = ask(address, &before);

    if (exit_code == CAIRN_EXIT_OK) {
        fprintf(stderr, "cairn detect: asks again in %" PRIu32 " s\n", seconds);
        while (nanosleep(&left, &left) != 0 && errno == EINTR)
            ;
        exit_code = ask(address, &after);
    }
    if (exit_code == CAIRN_EXIT_OK) {
        err = cairn_stall_of_ras(before.items, before.count, after.items, after.count, &verdicts,
                                 &still);
        exit_code = err ? fail(err) : print(&verdicts, "NCCL's RAS", ranks_of(&after), still, json);
    }
    cairn_verdicts_fini(&verdicts);
    free(before.items);
    free(after.items);
    return exit_code;
}

/* ---- dumps ---- */

/* The number at the end of a name, before ".json"; false without one. */
static bool
rank_of_name(const char *name, uint32_t *rank)
{
    size_t end = strlen(name), begin;
    uint64_t number = 0;

    if (end > 5 && strcmp(name + end - 5, ".json") == 0)
        end -= 5;
    for (begin = end;
         begin > 0 && name[begin - 1] >= '0' && name[begin - 1] <= '9' && end - begin < 9; begin--)
        ;
    for (size_t i = begin; i < end; i++)
        number = number * 10 + (uint64_t)(name[i] - '0');
    *rank = (uint32_t)number;
    return begin < end;
}

static int
say_dump(const char *path, const char *why, int exit_code)
{
    char what[PATH_BYTES + 32];

    snprintf(what, sizeof what, "%.*s cannot be used", PATH_BYTES, path);
    cairn_tool_error(
        "detect", what, why,
        "name a folder with the JSON of torch._C._distributed_c10d._dump_fr_trace_json (or "
        "_dump_nccl_trace_json) of each "
        "rank, and the rank's number at the end of each name");
    return exit_code;
}

/* The whole of a file; NULL with errno, 0: memory is short. */
static char *
read_whole(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "r");
    char *text = NULL;
    size_t used = 0, room = 0, got = 1;

    if (!file)
        return NULL;
    while (got > 0 && used < DUMP_BYTES_MAX) {
        if (used == room) {
            char *more = realloc(text, room = room ? 2 * room : READ_BYTES);

            if (!more)
                break;
            text = more;
        }
        got = fread(text + used, 1, room - used, file);
        used += got;
    }
    errno = ferror(file) ? EIO : got > 0 ? (used < DUMP_BYTES_MAX ? ENOMEM : EFBIG) : 0;
    fclose(file);
    if (errno == 0) {
        *bytes = used;
        return text;
    }
    got = (size_t)errno; /* free may change it */
    free(text);
    errno = (int)got;
    return NULL;
}

static int
read_dump(const char *path, struct counts *counts)
{
    struct cairn_progress_fault fault;
    char why[MESSAGE_BYTES];
    size_t text_bytes;
    cairn_err err;
    char *text = read_whole(path, &text_bytes);

    if (!text)
        return say_dump(path, strerror(errno),
                        errno == ENOENT || errno == EACCES || errno == EFBIG
                            ? CAIRN_EXIT_INPUT
                            : cairn_exit_code(CAIRN_IO));
    err = cairn_progress_read_flight_recorder(text, text_bytes, keep, counts, &fault);
    free(text);
    if (!err && !counts->err)
        return CAIRN_EXIT_OK;
    if (err != CAIRN_CORRUPT)
        return fail(err ? err : counts->err);
    snprintf(why, sizeof why, "byte %zu: %s", fault.at, fault.why);
    return say_dump(path, why, CAIRN_EXIT_INPUT);
}

int
cairn_detect_dumps(const char *folder, bool json)
{
    struct counts counts = {0};
    struct cairn_verdicts verdicts = {0};
    uint32_t dumps = 0;
    const struct dirent *entry;
    DIR *directory = opendir(folder);
    int exit_code = CAIRN_EXIT_OK;
    cairn_err err;

    if (!directory)
        return say_dump(folder, strerror(errno), CAIRN_EXIT_INPUT);
    while (exit_code == CAIRN_EXIT_OK && (entry = readdir(directory)) != NULL) {
        char path[PATH_BYTES];

        if (entry->d_name[0] == '.' || !rank_of_name(entry->d_name, &counts.rank))
            continue;
        if (snprintf(path, sizeof path, "%s/%s", folder, entry->d_name) >= (int)sizeof path)
            exit_code = say_dump(folder, "its path is too long", CAIRN_EXIT_INPUT);
        else
            exit_code = read_dump(path, &counts);
        dumps++;
    }
    closedir(directory);
    if (exit_code == CAIRN_EXIT_OK && dumps == 0)
        exit_code = say_dump(folder, "no file name in it ends with a number", CAIRN_EXIT_INPUT);
    if (exit_code == CAIRN_EXIT_OK) {
        err = cairn_stall_of_dumps(counts.items, counts.count, &verdicts);
        exit_code = err ? fail(err) : print(&verdicts, "PyTorch's Flight Recorder", dumps, 0, json);
    }
    cairn_verdicts_fini(&verdicts);
    free(counts.items);
    return exit_code;
}
