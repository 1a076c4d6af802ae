/*
 * replan/trace/progress_flight_recorder.c - counts from a dump of PyTorch's Flight Recorder.
 *
 * { …, "pg_status": { "0": { "last_enqueued_collective": "5", "last_started_collective": "-1",
 * "last_completed_collective": "5" }, … }, "version": "2.10" }. Numbers are texts; -1 says that the
 * backend does not keep it. What "entries" holds beside that is the past of the same operations,
 * with times that are a watchdog's.
 */
#include "replan/trace/progress.h"

#include "base/json.h"

#include <string.h>

enum { KEY_BYTES = 64, NUMBER_BYTES = 24 };

/* A whole number that stands as a text. */
static uint64_t
read_count(struct cairn_json_reader *json)
{
    char text[NUMBER_BYTES];
    uint64_t count = 0;
    size_t i = 0;

    cairn_json_read_string(json, text, sizeof text);
    if (cairn_json_reader_failed(json) || strcmp(text, "-1") == 0)
        return CAIRN_PROGRESS_UNKNOWN;
    for (; text[i] >= '0' && text[i] <= '9' && i < 18; i++)
        count = count * 10 + (uint64_t)(text[i] - '0');
    if (i == 0 || text[i] != '\0')
        cairn_json_reader_fail(json, "the number of an operation is expected, as a text");
    return count;
}

static void
read_group(struct cairn_json_reader *json, struct cairn_op_count *progress)
{
    char key[KEY_BYTES];

    cairn_json_object_begin(json);
    while (cairn_json_object_next(json, key, sizeof key)) {
        if (strcmp(key, "last_enqueued_collective") == 0)
            progress->entered = read_count(json);
        else if (strcmp(key, "last_started_collective") == 0)
            progress->started = read_count(json);
        else if (strcmp(key, "last_completed_collective") == 0)
            progress->completed = read_count(json);
        else
            cairn_json_skip(json);
    }
}

cairn_err
cairn_progress_read_flight_recorder(const char *text, size_t text_bytes, cairn_progress_sink *sink,
                                    void *context, struct cairn_progress_fault *fault)
{
    struct cairn_json_reader json;
    char key[KEY_BYTES];
    bool found = false, enough = false;
    cairn_err err;

    cairn_json_reader_init(&json, text, text_bytes);
    cairn_json_object_begin(&json);
    while (cairn_json_object_next(&json, key, sizeof key)) {
        if (strcmp(key, "pg_status") == 0) {
            struct cairn_op_count progress;

            found = true;
            cairn_json_object_begin(&json);
            while (cairn_json_object_next(&json, progress.comm, sizeof progress.comm)) {
                progress.rank = UINT32_MAX;
                progress.ranks = 0;
                progress.op = 0;
                progress.presence = CAIRN_PRESENT;
                progress.entered = progress.started = progress.completed = CAIRN_PROGRESS_UNKNOWN;
                read_group(&json, &progress);
                if (!enough && !cairn_json_reader_failed(&json))
                    enough = !sink(context, &progress);
            }
        } else {
            cairn_json_skip(&json);
        }
    }
    if (!found)
        cairn_json_reader_fail(
            &json, "this is not a dump of PyTorch's Flight Recorder: it has no \"pg_status\"");
    err = cairn_json_reader_done(&json);
    if (err)
        *fault = (struct cairn_progress_fault){json.why, json.at};
    return err;
}
