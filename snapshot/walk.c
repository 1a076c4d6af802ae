/*
 * snapshot/walk.c - copies a region span by span, with its checksums.
 *
 * The walk goes over the region in spans of HOST_SPAN_BLOCKS blocks, or CAIRN_WALK_SPAN_BLOCKS_MAX
 * where bytes come from a device (short copies waste a bus). Per span:
 *
 *     fetch    host runs are copied and checksummed, gaps are zeroed, device runs are issued as
 *              asynchronous batches
 *     land     the span's device batches have arrived: the watermark moves to its end
 *     sum      the blocks that device bytes touched are checksummed where they lie, in parts of
 *              CAIRN_MESSAGE_BLOCKS_MAX blocks, by several threads (checksum_threads.h)
 *     report   on_blocks gets part after part
 *
 * A host span passes through all four at once, unless helpers share the copying: then a span is
 * fetched without its bytes, its parts are copied and checksummed by several threads, and it lands
 * when all have been. Of device spans there are always as many in flight
 * as the device takes, and what has landed is looked at before each sum and report: the trainer
 * waits for the copies, whose checksums may lie up to CAIRN_WALK_SPANS spans behind.
 *
 * Large host runs go through the fused kernel. Small runs (a block may hold hundreds of small
 * tensors) are copied, and what lies between two large runs is checksummed at once where it landed,
 * while it is in the cache: no cost per tensor but its copy.
 *
 * `landed` is called only after the sources below it were read for the last time.
 */
#include "snapshot/walk.h"

#include "base/array.h"
#include "base/crc.h"
#include "snapshot/copy.h"

#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ /* headers older than Linux 5.14 */
#define MADV_POPULATE_READ 22
#endif

enum {
    HOST_SPAN_BLOCKS = CAIRN_MESSAGE_BLOCKS_MAX,
    SHARED_SPANS = 4,          /* in flight: each thread finds parts of some */
    MAP_AHEAD_BYTES = 2 << 20, /* at a time, so that page tables and bytes are met in the cache */
    SUM_BYTES = 16 << 10,      /* fits the first-level cache: looked at there after its checksum */
    FUSED_BYTES_MIN = 2048,    /* below, starting and ending the kernel costs more than it saves */
    ALL_PARTS = (1 << CAIRN_WALK_SPAN_PARTS) - 1
};

_Static_assert(CAIRN_WALK_SPAN_BLOCKS_MAX *CAIRN_BLOCK_BYTES <= CAIRN_MEM_BATCH_BYTES_MAX,
               "a span of one device is one batch");

static const uint64_t DRAIN_NS = UINT64_C(10000000000); /* a device that takes longer hangs */
static const uint64_t GIVE_UP_CHECK_NS = 50000000;

static uint64_t
now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

struct cairn_walk_device *
cairn_walk_device_find(struct cairn_walk *walk, int32_t index)
{
    for (uint32_t i = 0; i < walk->device_count; i++)
        if (walk->devices[i].index == index)
            return &walk->devices[i];
    return NULL;
}

static void
pause_shortly(void)
{
    struct timespec pause = {0, 20000};

    nanosleep(&pause, NULL);
}

/* Issues the batch at hand; waits while too many are in flight. */
static cairn_err
issue_batch(struct cairn_walk *walk, struct cairn_walk_span *span)
{
    struct cairn_walk_batch *batch = &walk->batch;
    struct cairn_walk_device *device = &walk->devices[batch->device];
    cairn_err err = CAIRN_OK;

    if (batch->count == 0)
        return CAIRN_OK;
    for (;;) {
        uint64_t ticket = 0;

        err = cairn_mem_copy_out(device->mem, batch->copies, batch->count, &ticket);
        if (!err)
            span->tickets[batch->device] = device->last_ticket = ticket;
        if (err != CAIRN_AGAIN)
            break;
        if (atomic_load_explicit(&walk->cancelled, memory_order_relaxed))
            break;
        pause_shortly();
    }
    batch->count = 0;
    batch->bytes = 0;
    return err;
}

/*
 * Adds device bytes of a run to the current batch. Bytes that continue a run lengthen its copy.
 * Adjacent runs are not joined: they may be of two allocations, and the driver refuses a copy over
 * the end of one.
 */
static cairn_err
fetch_device(struct cairn_walk *walk, struct cairn_walk_span *span, uint32_t run, uint8_t *host,
             uint64_t region, uint64_t bytes)
{
    struct cairn_walk_batch *batch = &walk->batch;
    uint32_t device =
        (uint32_t)(cairn_walk_device_find(walk, walk->job.runs[run].device) - walk->devices);

    if (batch->count == CAIRN_MEM_BATCH_COPIES_MAX ||
        batch->bytes + bytes > CAIRN_MEM_BATCH_BYTES_MAX ||
        (batch->count && batch->device != device)) {
        cairn_err err = issue_batch(walk, span);

        if (err)
            return err;
    }
    batch->device = device;
    batch->bytes += bytes;
    if (batch->count && batch->last_run == run) {
        batch->copies[batch->count - 1].bytes += bytes;
        return CAIRN_OK;
    }
    batch->last_run = run;
    batch->copies[batch->count++] = (struct cairn_mem_copy){host, region, bytes};
    return CAIRN_OK;
}

/* Whether to look at the values of a run. */
static bool
is_looked_at(const struct cairn_capture_job *job, const struct cairn_capture_run *run)
{
    return run->type && job->failing;
}

static void
note_failing(const struct cairn_capture_job *job, uint32_t run)
{
    atomic_store_explicit(&job->failing[run], true, memory_order_relaxed);
}

/* The first run that ends behind `at`. */
static uint32_t
find_run(const struct cairn_capture_job *job, uint64_t at)
{
    uint32_t low = 0, high = job->run_count;

    CAIRN_BISECT(low, high, middle, job->runs[middle].offset + job->runs[middle].bytes <= at);
    return low;
}

/*
 * Brings the block at `begin` from its runs. *crc is set unless the block has device bytes, see
 * *has_device.
 */
static cairn_err
fetch_block(struct cairn_walk *walk, struct cairn_walk_span *span, uint64_t begin, uint64_t *crc,
            bool *has_device)
{
    const struct cairn_capture_job *job = &walk->job;
    uint64_t end = begin + CAIRN_BLOCK_BYTES;
    uint64_t at = begin;     /* the region is filled up to here */
    uint64_t summed = begin; /* and checksummed up to here */
    uint64_t sum = 0;

    *has_device = false;
    for (uint32_t i = find_run(job, begin); i < job->run_count && job->runs[i].offset < end; i++) {
        const struct cairn_capture_run *run = &job->runs[i];
        uint64_t from = run->offset > begin ? run->offset : begin;
        uint64_t to = run->offset + run->bytes < end ? run->offset + run->bytes : end;
        const uint8_t *source = (const uint8_t *)run->source + (from - run->offset);
        bool looks = is_looked_at(job, run);
        struct cairn_copy_look look = {.type = run->type};
        cairn_err err = CAIRN_OK;

        if (to <= from)
            continue; /* empty, or ended before */
        memset(job->region + at, 0, from - at);
        at = to;
        if (run->device >= 0) {
            *has_device = true;
            err = fetch_device(walk, span, i, job->region + from, (uint64_t)(uintptr_t)source,
                               to - from);
        } else if (to - from < FUSED_BYTES_MIN || *has_device) {
            memcpy(job->region + from, source, to - from);
            look.found = looks && cairn_finite_fails(run->type, job->region + from, to - from);
        } else {
            sum = cairn_crc64(sum, job->region + summed, from - summed);
            sum = cairn_copy_crc(sum, job->region + from, source, to - from, looks ? &look : NULL);
            summed = to;
        }
        if (err)
            return err;
        if (look.found)
            note_failing(job, i);
    }
    memset(job->region + at, 0, end - at);
    if (!*has_device)
        *crc = cairn_crc64(sum, job->region + summed, end - summed);
    return CAIRN_OK;
}

uint64_t
cairn_walk_map(uint8_t *memory, uint64_t bytes)
{
    uintptr_t before = (uintptr_t)memory % (uintptr_t)sysconf(_SC_PAGESIZE);

    if (bytes > MAP_AHEAD_BYTES)
        bytes = MAP_AHEAD_BYTES;
    (void)madvise(memory - before, bytes + before, MADV_POPULATE_READ);
    return bytes;
}

static void
map_ahead(struct cairn_walk *walk)
{
    const struct cairn_capture_job *job = &walk->job;
    uint64_t at = walk->next_block * CAIRN_BLOCK_BYTES;

    if (job->region_is_new && at >= walk->mapped_bytes)
        walk->mapped_bytes = at + cairn_walk_map(job->region + at, job->region_bytes - at);
}

/* The next span, whose parts several threads copy. */
static void
share_span(struct cairn_walk *walk, struct cairn_walk_span *span)
{
    uint64_t left = walk->job.region_bytes / CAIRN_BLOCK_BYTES - walk->next_block;

    span->is_shared = true;
    span->block_count =
        left < CAIRN_WALK_SPAN_BLOCKS_MAX ? (uint32_t)left : CAIRN_WALK_SPAN_BLOCKS_MAX;
    walk->next_block += span->block_count;
    walk->open_next++;
    cairn_checksum_threads_allow(walk->threads, walk->open_next * CAIRN_WALK_SPAN_PARTS, true);
}

/* Fetches the next span. */
static cairn_err
fetch_span(struct cairn_walk *walk)
{
    uint64_t blocks = walk->job.region_bytes / CAIRN_BLOCK_BYTES;
    struct cairn_walk_span *span = &walk->spans[walk->open_next % CAIRN_WALK_SPANS];
    cairn_err err;

    map_ahead(walk);
    memset(span, 0, sizeof *span);
    span->first_block = walk->next_block;
    if (walk->job.helpers) {
        share_span(walk, span);
        return CAIRN_OK;
    }
    for (uint32_t i = 0; i < CAIRN_WALK_SPAN_BLOCKS_MAX && walk->next_block < blocks; i++) {
        bool from_device;

        if (i >= HOST_SPAN_BLOCKS && !span->device_blocks)
            break;
        if (atomic_load_explicit(&walk->cancelled, memory_order_relaxed))
            return CAIRN_AGAIN;
        err = fetch_block(walk, span, walk->next_block * CAIRN_BLOCK_BYTES, &span->crcs[i],
                          &from_device);
        if (err)
            return err;
        span->device_blocks |= (uint64_t)from_device << i;
        span->block_count++;
        walk->next_block++;
    }
    err = issue_batch(walk, span);
    if (err)
        return err;
    walk->open_next++;
    return CAIRN_OK;
}

/* The span's bytes have arrived: CAIRN_OK, CAIRN_AGAIN, CAIRN_DEVICE. */
static cairn_err
poll_span(const struct cairn_walk *walk, const struct cairn_walk_span *span)
{
    cairn_err err = CAIRN_OK;

    if (span->is_shared)
        return atomic_load_explicit(&span->summed_parts, memory_order_acquire) == ALL_PARTS
                   ? CAIRN_OK
                   : CAIRN_AGAIN;
    for (uint32_t i = 0; i < walk->device_count && !err; i++)
        if (span->tickets[i])
            err = cairn_mem_poll(walk->devices[i].mem, span->tickets[i]);
    return err;
}

/* Lands, in order, the spans whose device copies have arrived. */
static cairn_err
land_spans(struct cairn_walk *walk)
{
    uint64_t before = walk->land_next;
    bool has_device = false;
    cairn_err err = CAIRN_OK;

    while (walk->land_next < walk->open_next) {
        const struct cairn_walk_span *span = &walk->spans[walk->land_next % CAIRN_WALK_SPANS];

        err = poll_span(walk, span);
        if (err)
            break;
        walk->landed(walk->landed_context,
                     (span->first_block + span->block_count) * CAIRN_BLOCK_BYTES);
        has_device = has_device || span->device_blocks;
        walk->land_next++;
    }
    if (walk->land_next > before && !walk->job.helpers)
        cairn_checksum_threads_allow(walk->threads, walk->land_next * CAIRN_WALK_SPAN_PARTS,
                                     has_device);
    return err == CAIRN_AGAIN ? CAIRN_OK : err;
}

/* The blocks of a part, counted in its span: [*from, *to). */
static void
part_blocks(const struct cairn_walk_span *span, uint32_t part, uint32_t *from, uint32_t *to)
{
    *from = part * CAIRN_MESSAGE_BLOCKS_MAX;
    *to = *from + CAIRN_MESSAGE_BLOCKS_MAX;
    if (*to > span->block_count)
        *to = span->block_count;
}

/* The checksum of region bytes [begin, end); looks at them in the same pass over memory. */
static uint64_t
sum_bytes(const struct cairn_capture_job *job, uint32_t run, uint64_t sum, uint64_t begin,
          uint64_t end)
{
    bool found = false;

    for (uint64_t at = begin, to; at < end; at = to) {
        to = end - at < SUM_BYTES ? end : at + SUM_BYTES;
        sum = cairn_crc64(sum, job->region + at, to - at);
        found |= cairn_finite_fails(job->runs[run].type, job->region + at, to - at);
    }
    if (found)
        note_failing(job, run);
    return sum;
}

/* The checksum of a block that has device bytes, which are looked at. */
static uint64_t
sum_block(const struct cairn_capture_job *job, uint64_t begin)
{
    uint64_t end = begin + CAIRN_BLOCK_BYTES, at = begin, sum = 0;

    if (!job->failing)
        return cairn_crc64(0, job->region + begin, CAIRN_BLOCK_BYTES);
    for (uint32_t i = find_run(job, begin); i < job->run_count && job->runs[i].offset < end; i++) {
        const struct cairn_capture_run *run = &job->runs[i];
        uint64_t from = run->offset > begin ? run->offset : begin;
        uint64_t to = run->offset + run->bytes < end ? run->offset + run->bytes : end;

        if (to <= from || run->device < 0 || !run->type)
            continue;
        sum = cairn_crc64(sum, job->region + at, from - at);
        sum = sum_bytes(job, i, sum, from, to);
        at = to;
    }
    return cairn_crc64(sum, job->region + at, end - at);
}

void
cairn_walk_sum_part(void *context, uint64_t item)
{
    struct cairn_walk *walk = context;
    struct cairn_walk_span *span = &walk->spans[item / CAIRN_WALK_SPAN_PARTS % CAIRN_WALK_SPANS];
    uint32_t part = (uint32_t)(item % CAIRN_WALK_SPAN_PARTS), from, to;

    part_blocks(span, part, &from, &to);
    for (uint32_t i = from; i < to; i++) {
        uint64_t begin = (span->first_block + i) * CAIRN_BLOCK_BYTES;
        bool has_device;

        if (span->is_shared && atomic_load_explicit(&walk->cancelled, memory_order_relaxed))
            return;
        if (span->is_shared) /* host bytes alone, which arrive at once */
            (void)!fetch_block(walk, span, begin, &span->crcs[i], &has_device);
        else if (span->device_blocks >> i & 1)
            span->crcs[i] = sum_block(&walk->job, begin);
    }
    atomic_fetch_or_explicit(&span->summed_parts, 1u << part, memory_order_release);
}

/* Reports the next part of the oldest open span, which has landed; false if that is not checksummed
 * yet. */
static bool
report_blocks(struct cairn_walk *walk)
{
    const struct cairn_capture_job *job = &walk->job;
    struct cairn_walk_span *span = &walk->spans[walk->open_first % CAIRN_WALK_SPANS];
    uint32_t part = span->reported_blocks / CAIRN_MESSAGE_BLOCKS_MAX, from, to;
    unsigned wanted, summed = atomic_load_explicit(&span->summed_parts, memory_order_acquire);

    part_blocks(span, part, &from, &to);
    /* After its last block the span's place is free: then no thread may have a part of it left,
     * an empty one neither. */
    wanted = to == span->block_count ? ALL_PARTS : 1u << part;
    if ((summed & wanted) != wanted)
        return false;
    if (job->on_blocks)
        job->on_blocks(job->context, span->first_block + from, to - from, &span->crcs[from]);
    span->reported_blocks = to;
    if (to == span->block_count)
        walk->open_first++;
    return true;
}

/* More can be given to the devices, or nothing else is left to do. */
static bool
should_fetch(const struct cairn_walk *walk)
{
    uint64_t in_flight = walk->open_next - walk->land_next;
    const struct cairn_walk_span *last = &walk->spans[(walk->open_next - 1) % CAIRN_WALK_SPANS];

    if (walk->next_block == walk->job.region_bytes / CAIRN_BLOCK_BYTES ||
        walk->open_next - walk->open_first == CAIRN_WALK_SPANS)
        return false;
    if (walk->open_first == walk->open_next)
        return true;
    if (walk->job.helpers)
        return walk->open_next - walk->open_first < SHARED_SPANS;
    return last->device_blocks != 0 && in_flight < CAIRN_MEM_BATCHES_MAX;
}

cairn_err
cairn_walk_rest(const struct cairn_walk *walk, const struct cairn_walk_device *device,
                uint64_t deadline_ns)
{
    for (;;) {
        uint64_t now = now_ns(), give_up_ns = atomic_load(&walk->give_up_ns);
        uint64_t until_ns = deadline_ns < give_up_ns ? deadline_ns : give_up_ns;
        bool last = until_ns <= now + GIVE_UP_CHECK_NS;
        cairn_err err = cairn_mem_wait(device->mem, device->last_ticket,
                                       last ? until_ns : now + GIVE_UP_CHECK_NS);

        if (err != CAIRN_TIMEOUT || last)
            return err;
    }
}

/*
 * After an error: waits until no device copy of this capture is in flight, so that sources and
 * region are at rest. A failed device is closed, which waits for its stream; the next prepare opens
 * it again. A device that is silent for DRAIN_NS hangs, and with it all that the trainer runs on
 * it: waiting longer would only hide that. Devices are closed, failed or not, once all are at
 * rest: the copies of one may use memory that another has pinned. So if one hangs, all stay as they
 * are, and refuse everything until they are prepared again.
 */
static void
drain(struct cairn_walk *walk)
{
    uint64_t deadline_ns = now_ns() + DRAIN_NS;
    bool failed[CAIRN_WALK_DEVICES_MAX] = {false};
    bool hung = false;

    for (uint32_t i = 0; i < walk->device_count; i++) {
        const struct cairn_walk_device *device = &walk->devices[i];
        cairn_err err = device->mem ? cairn_walk_rest(walk, device, deadline_ns) : CAIRN_OK;

        failed[i] = err == CAIRN_DEVICE;
        hung = hung || err == CAIRN_TIMEOUT;
    }
    for (uint32_t i = 0; i < walk->device_count && !hung; i++)
        if (failed[i]) {
            struct cairn_walk_device *device = &walk->devices[i];

            cairn_mem_close(device->mem);
            *device = (struct cairn_walk_device){.index = device->index};
        }
}

cairn_err
cairn_walk_run(struct cairn_walk *walk)
{
    uint64_t blocks = walk->job.region_bytes / CAIRN_BLOCK_BYTES;
    cairn_err err = CAIRN_OK;

    walk->next_block = walk->open_first = walk->open_next = 0;
    walk->land_next = 0;
    walk->batch.count = 0;
    walk->batch.bytes = 0;
    while (!err && (walk->next_block < blocks || walk->open_first < walk->open_next)) {
        err = land_spans(walk);
        if (!err && atomic_load_explicit(&walk->cancelled, memory_order_relaxed))
            err = CAIRN_AGAIN;
        if (err)
            break;
        if (should_fetch(walk))
            err = fetch_span(walk);
        else if (!(walk->open_first < walk->land_next && report_blocks(walk)) &&
                 !cairn_checksum_threads_help(walk->threads))
            pause_shortly();
    }
    cairn_checksum_threads_end(walk->threads);
    if (err)
        drain(walk);
    return err;
}
