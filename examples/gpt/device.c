/*
 * examples/gpt/device.c - the pace of this rank's device, and its timing records; see device.h.
 */
#include "device.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "random.h"
#include "say.h"

enum { RECORDS = 1 << 13, NS_PER_MS = 1000000, UNITS = GPT_UNITS_FORWARD + GPT_UNITS_BACKWARD };

/* ---- options ---- */

/* Reads a whole number and the character after it. */
static bool
read_whole(const char **at, char after, uint64_t *out)
{
    char *end;

    if (**at < '0' || **at > '9')
        return false;
    errno = 0;
    *out = strtoull(*at, &end, 10);
    if (errno || *end != after)
        return false;
    *at = end + (after ? 1 : 0);
    return true;
}

static bool
read_slow(const char **at, uint64_t *rank, struct gpt_slow *out)
{
    char *end;

    if (!read_whole(at, ':', rank))
        return false;
    errno = 0;
    out->factor = strtod(*at, &end);
    if (end == *at || errno || *end != '@' || !(out->factor >= 0.01 && out->factor <= 1000))
        return false;
    *at = end + 1;
    if (!read_whole(at, '-', &out->first) ||
        (!read_whole(at, ',', &out->last) && !read_whole(at, 0, &out->last)))
        return false;
    return out->first >= 1 && out->first <= out->last;
}

cairn_err
gpt_device_parse(uint32_t layer_ms, const char *slow, const struct gpt_plan *plan,
                 struct gpt_device_options *out)
{
    struct gpt_device_options options = {.layer_ns = (uint64_t)layer_ms * NS_PER_MS};

    if (slow && !layer_ms) {
        gpt_say("--emulate-slow needs --emulate-layer-ms: without it no device is emulated");
        return CAIRN_INVAL;
    }
    for (const char *at = slow; at && *at;) {
        struct gpt_slow one;
        uint64_t rank;

        if (!read_slow(&at, &rank, &one) || (!*at && at[-1] == ',')) {
            gpt_say("--emulate-slow %s: RANK:FACTOR@FROM-TO,… is needed, as 4:2@20-120", slow);
            return CAIRN_INVAL;
        }
        if (rank >= plan->world) {
            gpt_say("--emulate-slow %s: rank %llu does not exist; the ranks are 0 to %u", slow,
                    (unsigned long long)rank, plan->world - 1);
            return CAIRN_INVAL;
        }
        if (rank != plan->rank)
            continue;
        if (options.slow_count == GPT_SLOW_MAX) {
            gpt_say("--emulate-slow %s: at most %d entries per rank are possible", slow,
                    GPT_SLOW_MAX);
            return CAIRN_INVAL;
        }
        options.slow[options.slow_count++] = one;
    }
    *out = options;
    return CAIRN_OK;
}

/* ---- the device ---- */

cairn_err
gpt_device_init(const struct gpt_device_options *options, const struct gpt_plan *plan,
                struct gpt_device *out)
{
    const char *wanted = getenv("CAIRN_TIMING");
    struct gpt_device device = {
        .options = *options, .rank = plan->rank, .pp = plan->pp, .dp = plan->dp};
    cairn_err err;

    device.pipeline = gpt_random(1, plan->replica) | 1; /* 0 names nothing */
    device.replicas = gpt_random(2, plan->stage) | 1;
    if (wanted && strcmp(wanted, "1") == 0) {
        err = cairn_timing_open(RECORDS, &device.timing);
        if (err) {
            gpt_say("no shared memory for timing records: %s; unset CAIRN_TIMING to go without",
                    cairn_err_text(err));
            return err;
        }
    }
    *out = device;
    return CAIRN_OK;
}

void
gpt_device_fini(struct gpt_device *device)
{
    cairn_timing_close(device->timing);
    device->timing = NULL;
}

uint64_t
gpt_device_now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Writes a record of something that has just ended. */
static void
record(struct gpt_device *device, struct cairn_timing_record record)
{
    record.start_ns = record.enter_ns;
    record.end_ns = gpt_device_now_ns();
    record.rank = device->rank;
    record.step = (uint32_t)device->step;
    (void)cairn_timing_write(device->timing, &record); /* a full ring counts what it drops */
}

static double
factor_in(const struct gpt_device_options *options, uint64_t step)
{
    double factor = 1.0;

    for (uint32_t i = 0; i < options->slow_count; i++)
        if (step >= options->slow[i].first && step <= options->slow[i].last)
            factor *= options->slow[i].factor;
    return factor;
}

void
gpt_device_computed(struct gpt_device *device, uint64_t begin_ns, uint32_t layers, uint32_t units)
{
    const struct gpt_device_options *options = &device->options;

    if (options->layer_ns) {
        double takes_ns = (double)options->layer_ns * layers * units / UNITS;
        uint64_t end_ns = begin_ns + (uint64_t)llround(takes_ns * factor_in(options, device->step));
        const struct timespec end = {.tv_sec = (time_t)(end_ns / 1000000000),
                                     .tv_nsec = (long)(end_ns % 1000000000)};

        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL) == EINTR)
            ;
    }
    if (device->timing)
        record(device, (struct cairn_timing_record){.bytes = (uint64_t)layers * units,
                                                    .enter_ns = begin_ns,
                                                    .peer = CAIRN_PEER_NONE,
                                                    .op = CAIRN_TIMING_COMPUTE});
}

void
gpt_device_transferred(struct gpt_device *device, uint64_t begin_ns,
                       enum cairn_collective operation, uint32_t peer, uint64_t bytes)
{
    if (device->timing)
        record(device, (struct cairn_timing_record){.comm = device->pipeline,
                                                    .bytes = bytes,
                                                    .enter_ns = begin_ns,
                                                    .peer = peer,
                                                    .ranks = (uint16_t)device->pp,
                                                    .op = (uint16_t)operation});
}

void
gpt_device_reduced(struct gpt_device *device, uint64_t begin_ns, uint64_t bytes)
{
    if (device->timing && device->dp > 1)
        record(device, (struct cairn_timing_record){.comm = device->replicas,
                                                    .seq = ++device->reductions,
                                                    .bytes = bytes,
                                                    .enter_ns = begin_ns,
                                                    .peer = CAIRN_PEER_NONE,
                                                    .ranks = (uint16_t)device->dp,
                                                    .op = CAIRN_ALL_REDUCE});
}
