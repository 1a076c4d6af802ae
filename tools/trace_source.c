/* tools/trace_source.c - a thread that reads lines into one batch while the other is worked on. */
#include "tools/trace_source.h"

#include "replan/trace/read.h"
#include "tools/common.h"
#include "tools/live_trace.h"
#include "tools/verb.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MESSAGE_BYTES = 320, READ_BYTES = 1 << 20, BATCH_RECORDS = 4096 };

struct batch {
    struct cairn_record records[BATCH_RECORDS];
    uint32_t count;
    bool full; /* the user's turn; guarded by the lock, the rest belongs to the side whose turn it
                * is */
    bool last;
};

struct cairn_trace_source {
    const char *verb, *path;
    FILE *file;
    struct cairn_topology *topology;
    /* of the reading thread, while it runs */
    uint64_t *memory_bytes; /* [world]; 0: no line has said it */
    char *line;
    size_t line_room;
    uint64_t line_number;
    uint64_t backward_count; /* operations that end before they start */
    struct cairn_trace_fault fault;
    cairn_err err; /* CAIRN_IO: the file; CAIRN_CORRUPT: `fault` in line `line_number` */
    /* of the user */
    uint32_t at;
    bool held, ended;

    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stop;
    struct batch batches[2];
};

/* The next line that is not empty, without its end; false at the end of the file. */
static bool
read_line(struct cairn_trace_source *source, size_t *line_bytes)
{
    ssize_t bytes;

    while ((bytes = getline(&source->line, &source->line_room, source->file)) >= 0) {
        *line_bytes = (size_t)bytes;
        source->line_number++;
        while (*line_bytes > 0 &&
               (source->line[*line_bytes - 1] == '\n' || source->line[*line_bytes - 1] == '\r'))
            --*line_bytes;
        if (*line_bytes > 0)
            return true;
    }
    if (ferror(source->file))
        source->err = CAIRN_IO;
    return false;
}

static cairn_err
take_memory(struct cairn_trace_source *source, const struct cairn_record *record)
{
    if (source->memory_bytes[record->rank] > 0) {
        source->fault = (struct cairn_trace_fault){
            "the rank's memory_bytes has been given before; write it once, at the end", 0};
        return CAIRN_CORRUPT;
    }
    source->memory_bytes[record->rank] = record->memory_bytes;
    return CAIRN_OK;
}

static void
fill(struct cairn_trace_source *source, struct batch *batch)
{
    size_t line_bytes;

    batch->count = 0;
    batch->last = false;
    while (batch->count < BATCH_RECORDS) {
        struct cairn_record *record = &batch->records[batch->count];

        if (!read_line(source, &line_bytes)) {
            batch->last = true;
            return;
        }
        source->err = cairn_trace_read_line(source->topology, source->line, line_bytes, record,
                                            &source->fault);
        if (!source->err && record->memory_bytes > 0)
            source->err = take_memory(source, record);
        else if (!source->err && record->is_backward)
            source->backward_count++;
        else if (!source->err)
            batch->count++;
        if (source->err) {
            batch->last = true;
            return;
        }
    }
}

static void *
read_batches(void *argument)
{
    struct cairn_trace_source *source = argument;
    bool last = false;

    for (uint32_t at = 0; !last; at ^= 1) {
        struct batch *batch = &source->batches[at];
        bool stop;

        pthread_mutex_lock(&source->lock);
        while (batch->full && !source->stop)
            pthread_cond_wait(&source->changed, &source->lock);
        stop = source->stop;
        pthread_mutex_unlock(&source->lock);
        if (stop)
            return NULL;
        fill(source, batch);
        last = batch->last;
        pthread_mutex_lock(&source->lock);
        batch->full = true;
        pthread_cond_signal(&source->changed);
        pthread_mutex_unlock(&source->lock);
    }
    return NULL;
}

int
cairn_trace_source_result(const struct cairn_trace_source *source)
{
    char what[MESSAGE_BYTES];

    if (source->err == CAIRN_CORRUPT) {
        snprintf(what, sizeof what, "%s:%" PRIu64 ":%zu: %s", source->path, source->line_number,
                 source->fault.column + 1, source->fault.why);
        cairn_tool_error(source->verb, what, NULL,
                         "fix or leave out the line; docs/DETECTION.md has the format");
    } else if (source->err == CAIRN_IO) {
        cairn_tool_error(source->verb, "the trace could not be read to its end", source->path,
                         NULL);
    } else if (source->err) {
        cairn_tool_error(source->verb, cairn_err_text(source->err), NULL, NULL);
    }
    return cairn_exit_code(source->err);
}

static void
read_header(struct cairn_trace_source *source)
{
    size_t line_bytes;

    if (read_line(source, &line_bytes)) {
        source->err =
            cairn_trace_read_header(source->line, line_bytes, &source->topology, &source->fault);
        source->memory_bytes =
            source->err ? NULL : calloc(source->topology->world, sizeof *source->memory_bytes);
        if (!source->err && !source->memory_bytes)
            source->err = CAIRN_NOMEM;
    } else if (!source->err) {
        source->fault =
            (struct cairn_trace_fault){"the trace is empty: its first line must be a header", 0};
        source->line_number = 1;
        source->err = CAIRN_CORRUPT;
    }
}

/* The file, or NULL with a message. A folder opens too; its first read fails, which would be
 * reported as a disk's failure. */
static FILE *
open_file(const char *verb, const char *path, int *exit_code)
{
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "r");
    struct stat status;
    char what[MESSAGE_BYTES];

    if (file && fstat(fileno(file), &status) == 0 && S_ISDIR(status.st_mode)) {
        (void)fclose(file);
        file = NULL;
        errno = EISDIR;
    }
    if (file)
        return file;
    *exit_code = errno == EACCES ? CAIRN_EXIT_DENIED : CAIRN_EXIT_INPUT;
    snprintf(what, sizeof what, "the trace %s cannot be opened", path);
    cairn_tool_error(verb, what, strerror(errno),
                     "name a file that can be read with --trace, or \"-\" for stdin");
    return NULL;
}

/* 0: the text is not a number of steps. */
static uint32_t
steps_of(const char *text)
{
    char *end;
    unsigned long steps = strtoul(text, &end, 10);

    return *text >= '0' && *text <= '9' && *end == '\0' && steps <= CAIRN_LIVE_STEPS_MAX
               ? (uint32_t)steps
               : 0;
}

bool
cairn_trace_from_check(const struct cairn_usage *usage, const struct cairn_trace_from *from,
                       int *exit_code)
{
    if (!from->path == !from->agent)
        *exit_code = cairn_usage_error(
            usage, from->path ? "--trace FILE or --agent SOCKET, not both"
                              : "which trace? --trace FILE, or --agent SOCKET of the running job");
    else if (from->steps && from->path)
        *exit_code = cairn_usage_error(usage, "--steps goes with --agent: a file is read whole");
    else if (from->steps && steps_of(from->steps) == 0)
        *exit_code = cairn_usage_error(usage, "--steps %s: expected a number from 1 to %d",
                                       from->steps, CAIRN_LIVE_STEPS_MAX);
    else
        return true;
    return false;
}

/* The trace of the running job, as a file without a name. */
static FILE *
open_live(const char *verb, const char *agent, uint32_t steps, int *exit_code)
{
    FILE *file = tmpfile();

    if (!file) {
        cairn_tool_error(verb, "a temporary file for the trace cannot be made", strerror(errno),
                         "make room in /tmp");
        *exit_code = CAIRN_EXIT_IO;
        return NULL;
    }
    *exit_code = cairn_live_trace_write(verb, agent, steps, file);
    if (*exit_code != CAIRN_EXIT_OK && *exit_code != CAIRN_EXIT_WARN) {
        (void)fclose(file);
        return NULL;
    }
    rewind(file);
    return file;
}

int
cairn_trace_source_open(const char *verb, const struct cairn_trace_from *from,
                        uint32_t steps_default, struct cairn_trace_source **out)
{
    struct cairn_trace_source *source = calloc(1, sizeof *source);
    int exit_code;

    if (!source) {
        cairn_tool_error(verb, cairn_err_text(CAIRN_NOMEM), NULL, NULL);
        return cairn_exit_code(CAIRN_NOMEM);
    }
    source->verb = verb;
    source->path = from->path ? from->path : "the job's trace";
    pthread_mutex_init(&source->lock, NULL);
    pthread_cond_init(&source->changed, NULL);
    source->file = from->agent
                       ? open_live(verb, from->agent,
                                   from->steps ? steps_of(from->steps) : steps_default, &exit_code)
                       : open_file(verb, from->path, &exit_code);
    if (!source->file)
        goto fail;
    setvbuf(source->file, NULL, _IOFBF, READ_BYTES);
    read_header(source);
    if (source->err) {
        exit_code = cairn_trace_source_result(source);
        goto fail;
    }
    if (pthread_create(&source->thread, NULL, read_batches, source) != 0) {
        cairn_tool_error(verb, "a thread to read the trace cannot be started", NULL,
                         "allow this user more processes (ulimit -u)");
        exit_code = CAIRN_EXIT_FAILED;
        goto fail;
    }
    source->started = true;
    *out = source;
    return CAIRN_EXIT_OK;
fail:
    cairn_trace_source_close(source);
    return exit_code;
}

const struct cairn_topology *
cairn_trace_source_topology(const struct cairn_trace_source *source)
{
    return source->topology;
}

const uint64_t *
cairn_trace_source_memory(const struct cairn_trace_source *source)
{
    return source->memory_bytes;
}

uint64_t
cairn_trace_source_backward(const struct cairn_trace_source *source)
{
    return source->backward_count;
}

bool
cairn_trace_source_next(struct cairn_trace_source *source, const struct cairn_record **records,
                        uint32_t *count)
{
    struct batch *batch;

    pthread_mutex_lock(&source->lock);
    if (source->held) {
        source->batches[source->at].full = false;
        source->at ^= 1;
        source->held = false;
        pthread_cond_signal(&source->changed);
    }
    batch = &source->batches[source->at];
    while (!source->ended && !batch->full)
        pthread_cond_wait(&source->changed, &source->lock);
    pthread_mutex_unlock(&source->lock);
    if (source->ended)
        return false;
    source->held = true;
    source->ended = batch->last;
    *records = batch->records;
    *count = batch->count;
    return batch->count > 0;
}

void
cairn_trace_source_close(struct cairn_trace_source *source)
{
    if (!source)
        return;
    if (source->started) {
        pthread_mutex_lock(&source->lock);
        source->stop = true;
        pthread_cond_signal(&source->changed);
        pthread_mutex_unlock(&source->lock);
        pthread_join(source->thread, NULL);
    }
    if (source->file && source->file != stdin)
        fclose(source->file);
    pthread_cond_destroy(&source->changed);
    pthread_mutex_destroy(&source->lock);
    cairn_topology_destroy(source->topology);
    free(source->memory_bytes);
    free(source->line);
    free(source);
}
