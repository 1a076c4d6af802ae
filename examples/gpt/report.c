/*
 * examples/gpt/report.c - writes the events.
 */
#include "report.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "say.h"

enum { LINE_BYTES = 8192 };

struct line {
    char text[LINE_BYTES];
    size_t length;
};

cairn_err
gpt_report_open(const char *path, uint32_t rank, struct gpt_report *out)
{
    struct gpt_report report = {.fd = -1, .rank = rank};

    if (path) {
        report.fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
        if (report.fd < 0) {
            gpt_say("cannot write events to %s: %s", path, strerror(errno));
            return CAIRN_IO;
        }
    }
    *out = report;
    return CAIRN_OK;
}

cairn_err
gpt_report_close(struct gpt_report *report)
{
    if (report->fd >= 0 && close(report->fd) != 0 && !report->failed) {
        gpt_say("the events could not be written: %s", strerror(errno));
        report->failed = true;
    }
    report->fd = -1;
    return report->failed ? CAIRN_IO : CAIRN_OK;
}

static void add(struct line *line, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void
add(struct line *line, const char *format, ...)
{
    va_list arguments;
    int length;

    va_start(arguments, format);
    length = vsnprintf(line->text + line->length, LINE_BYTES - line->length, format, arguments);
    va_end(arguments);
    if (length > 0)
        line->length += (size_t)length;
    if (line->length > LINE_BYTES - 1)
        line->length = LINE_BYTES - 1;
}

/*
 * A JSON string; bytes other than plain ASCII are escaped one by one, so a line is always valid.
 */
static void
add_string(struct line *line, const char *text)
{
    add(line, "\"");
    for (const char *c = text; *c && line->length < LINE_BYTES - 256; c++) {
        uint8_t byte = (uint8_t)*c;

        if (byte == '"' || byte == '\\')
            add(line, "\\%c", *c);
        else if (byte < 0x20 || byte >= 0x7f)
            add(line, "\\u%04x", (unsigned)byte);
        else
            add(line, "%c", *c);
    }
    add(line, "\"");
}

static void
begin(struct line *line, const struct gpt_report *report, const char *event)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    line->length = 0;
    add(line, "{\"event\":\"%s\",\"rank\":%u,\"time_ns\":%lld%09ld", event, report->rank,
        (long long)now.tv_sec, now.tv_nsec);
}

static void
end(struct line *line, struct gpt_report *report)
{
    size_t done = 0;

    add(line, "}");
    line->text[line->length++] = '\n'; /* in the place of the NUL */
    while (done < line->length && !report->failed) {
        ssize_t part = write(report->fd, line->text + done, line->length - done);

        if (part > 0) {
            done += (size_t)part;
        } else if (part == 0 || errno != EINTR) {
            gpt_say("the events cannot be written any more: %s; training goes on without them",
                    part == 0 ? "no space" : strerror(errno));
            report->failed = true;
        }
    }
}

static bool
wanted(const struct gpt_report *report)
{
    return report->fd >= 0 && !report->failed;
}

void
gpt_report_started(struct gpt_report *report, const struct gpt_options *options, const char *text)
{
    const struct gpt_plan *plan = &options->plan;
    struct line line;

    if (!wanted(report))
        return;
    begin(&line, report, "started");
    add(&line, ",\"pid\":%ld,\"world\":%u,\"dp\":%u,\"pp\":%u,\"replica\":%u,\"stage\":%u",
        (long)getpid(), plan->world, plan->dp, plan->pp, plan->replica, plan->stage);
    add(&line,
        ",\"layers\":[%u,%u],\"micro_batches\":[%u,%u],\"steps\":%" PRIu64
        ",\"resume\":%s,\"text\":",
        plan->layer_begin, plan->layer_end, plan->micro_begin,
        plan->micro_begin + plan->micro_count, options->steps, options->resume ? "true" : "false");
    add_string(&line, text);
    end(&line, report);
}

void
gpt_report_fresh(struct gpt_report *report)
{
    struct line line;

    if (!wanted(report))
        return;
    begin(&line, report, "fresh");
    end(&line, report);
}

void
gpt_report_restored(struct gpt_report *report, const struct cairn_restored *restored,
                    double seconds)
{
    struct line line;

    if (!wanted(report))
        return;
    begin(&line, report, "restored");
    add(&line, ",\"generation_epoch\":%" PRIu64 ",\"generation_step\":%" PRIu64,
        restored->generation.epoch, restored->generation.step);
    add(&line,
        ",\"bytes\":%" PRIu64 ",\"local_bytes\":%" PRIu64 ",\"remote_bytes\":%" PRIu64
        ",\"file_bytes\":%" PRIu64 ",\"seconds\":%.6f",
        restored->bytes, restored->local_bytes, restored->remote_bytes, restored->file_bytes,
        seconds);
    end(&line, report);
}

void
gpt_report_step(struct gpt_report *report, const struct gpt_step_report *step)
{
    struct line line;

    if (!wanted(report))
        return;
    begin(&line, report, "step");
    add(&line, ",\"step\":%" PRIu64, step->step);
    if (step->loss)
        add(&line, ",\"loss\":%.9g", (double)*step->loss);
    add(&line, ",\"norm\":%.9g,\"step_ns\":%" PRIu64 ",\"fence_ns\":%" PRIu64 ",\"snapshot\":%s",
        (double)step->norm, step->step_ns, step->fence_ns, step->snapshot ? "true" : "false");
    end(&line, report);
}

static void
add_list(struct line *line, const uint32_t *numbers, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        add(line, "%s%u", i ? "," : "[", numbers[i]);
    add(line, "]");
}

void
gpt_report_shares(struct gpt_report *report, uint64_t step, const struct gpt_plan *plan)
{
    struct line line;

    if (!wanted(report))
        return;
    begin(&line, report, "shares");
    add(&line, ",\"step\":%" PRIu64 ",\"micro_batches\":", step);
    add_list(&line, plan->micro_batches, plan->dp);
    end(&line, report);
}

void
gpt_report_move(struct gpt_report *report, const struct gpt_move_report *move)
{
    const struct gpt_plan *plan = move->plan;
    struct line line;

    if (!wanted(report))
        return;
    begin(&line, report, "move");
    add(&line, ",\"step\":%" PRIu64 ",\"adopted\":%s,\"standstill_ns\":%" PRIu64, move->step,
        move->is_adopted ? "true" : "false", move->standstill_ns);
    add(&line, ",\"fill_ns\":%" PRIu64, move->fill_ns);
    add(&line,
        ",\"bytes\":%" PRIu64 ",\"remote_bytes\":%" PRIu64 ",\"floor_bytes\":%" PRIu64
        ",\"micro_batches\":",
        move->bytes, move->remote_bytes, move->floor_bytes);
    add_list(&line, plan->micro_batches, plan->dp);
    for (uint32_t r = 0; r < plan->dp; r++) {
        add(&line, "%s", r ? "," : ",\"layers\":[");
        add_list(&line, plan->stage_layers[r], plan->pp);
    }
    add(&line, "]");
    end(&line, report);
}

void
gpt_report_done(struct gpt_report *report, const struct gpt_done_report *done)
{
    const struct cairn_client_stats *s = &done->stats;
    struct line line;

    if (!wanted(report))
        return;
    begin(&line, report, "done");
    add(&line,
        ",\"steps\":%" PRIu64 ",\"loss_first\":%.9g,\"loss_last\":%.9g,\"loss_sha256\":\"%s\"",
        done->steps, (double)done->loss_first, (double)done->loss_last, done->loss_sha256);
    if (done->state_sha256)
        add(&line, ",\"state_sha256\":\"%s\"", done->state_sha256);
    add(&line, ",\"stats\":{\"snapshots_begun\":%" PRIu64 ",\"snapshots_captured\":%" PRIu64,
        s->snapshots_begun, s->snapshots_captured);
    add(&line, ",\"snapshots_skipped\":%" PRIu64 ",\"snapshots_failed\":%" PRIu64,
        s->snapshots_skipped, s->snapshots_failed);
    add(&line,
        ",\"captured_bytes\":%" PRIu64 ",\"capture_ns\":%" PRIu64 ",\"fence_count\":%" PRIu64,
        s->captured_bytes, s->capture_ns, s->fence_count);
    add(&line,
        ",\"fence_ns_total\":%" PRIu64 ",\"fence_ns_p50\":%" PRIu64 ",\"fence_ns_p99\":%" PRIu64,
        s->fence_ns_total, s->fence_ns_p50, s->fence_ns_p99);
    add(&line, ",\"fence_ns_max\":%" PRIu64 ",\"epoch\":%" PRIu64 ",\"attached\":%u}",
        s->fence_ns_max, s->epoch, s->attached);
    end(&line, report);
}
