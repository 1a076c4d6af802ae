/* client/fill.c - see fill.h. */
#include "client/fill.h"

#include "base/clock.h"
#include "base/crc.h"
#include "base/limits.h"
#include "client/sink.h"
#include "snapshot/mem.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* READER_BLOCKS_MIN is a multiple of 8: readers never share a byte of `needed`. */
enum {
    FETCH_TRIES = 2,
    READERS_MAX = 8,
    READER_BLOCKS_MIN = 8,
    PRESENT_BYTES_MAX = CAIRN_MEM_BATCH_BYTES_MAX /* copied at once */
};
#define QUEUE_LOOK_NS (5 * CAIRN_NS_PER_MS)

/* Which blocks of a container are still to be brought, and its moves. */
struct source {
    uint8_t *needed; /* a bit per block; NULL: none */
    uint64_t block_count;
    size_t first_move, end_move;
};

/* Walks the moves of one container by ascending block. */
struct sweep {
    uint32_t container;
    size_t next, end;
    size_t *active; /* moves that reach further than the last block */
    size_t active_count;
};

/* A part of the window, and what was asked for into it. */
struct part {
    uint8_t *bytes;
    struct cairn_session_fetch fetch;
    bool in_flight;
};

/* Reads a range of blocks of the own container, in a thread of its own where there are several. */
struct reader {
    struct run_state *run;
    struct sweep sweep;
    uint64_t first_block, end_block;
    uint64_t bad_blocks, copied_bytes;
    cairn_err err;
    bool has_thread;
    pthread_t thread;
};

struct run_state {
    struct client_fill *fill;
    size_t most_moves;   /* of one container */
    size_t next_present; /* first move from a present tensor that is not made; they come last */
    struct source *sources;
    struct sweep sweep;
    struct client_sink *sink;
    struct part parts[CLIENT_WINDOW_PARTS];
    uint32_t part_count;
    uint64_t part_blocks;
    uint32_t cursor_container; /* of the next block to ask for */
    uint64_t cursor_block;
    uint64_t bad_blocks;
};

/* ---- the plan, checked and marked ---- */

static bool
is_needed(const struct source *source, uint64_t block)
{
    return source->needed && (source->needed[block / 8] >> (block % 8) & 1);
}

static void
set_needed(struct source *source, uint64_t block, bool needed)
{
    uint8_t bit = (uint8_t)(1u << (block % 8));

    if (needed)
        source->needed[block / 8] |= bit;
    else
        source->needed[block / 8] &= (uint8_t)~bit;
}

/* The end of the last run; false when it is past `limit` or overflows. */
static bool
end_of_runs(uint64_t offset, uint64_t run_bytes, uint64_t run_count, uint64_t stride,
            uint64_t limit)
{
    uint64_t span, end;

    if (run_bytes == 0 || run_count == 0 || __builtin_mul_overflow(run_count - 1, stride, &span) ||
        __builtin_add_overflow(span, run_bytes, &span) ||
        __builtin_add_overflow(span, offset, &end))
        return false;
    return end <= limit;
}

static uint64_t
slice_bytes(const struct cairn_slice *slice)
{
    return cairn_slice_elements(slice) * cairn_dtype_bytes(slice->dtype);
}

static bool
is_present(const struct client_fill *fill, const struct cairn_move *move)
{
    return move->source_container >= fill->container_count;
}

/* True if a move stays inside its source and its slice, even with wrong manifests. */
static bool
move_is_inside(const struct client_fill *fill, const struct cairn_move *move)
{
    uint64_t source_bytes;

    if (move->target_container >= fill->slice_count ||
        move->source_container >= (uint64_t)fill->container_count + fill->present_count)
        return false;
    source_bytes = is_present(fill, move)
                       ? slice_bytes(&fill->present[move->source_container - fill->container_count])
                       : fill->manifests[move->source_container].container_bytes;
    return (move->run_count == 1 || move->source_stride >= move->run_bytes) &&
           end_of_runs(move->source_offset, move->run_bytes, move->run_count, move->source_stride,
                       source_bytes) &&
           end_of_runs(move->target_offset, move->run_bytes, move->run_count, move->target_stride,
                       slice_bytes(&fill->slices[move->target_container]));
}

static void
mark_blocks(struct source *source, const struct cairn_move *move)
{
    for (uint64_t i = 0; i < move->run_count; i++) {
        uint64_t begin = move->source_offset + i * move->source_stride;
        uint64_t last = (begin + move->run_bytes - 1) / CAIRN_BLOCK_BYTES;

        for (uint64_t block = begin / CAIRN_BLOCK_BYTES; block <= last; block++)
            set_needed(source, block, true);
    }
}

static cairn_err
mark_sources(struct run_state *run)
{
    const struct client_fill *fill = run->fill;

    run->most_moves = 1;
    run->next_present = fill->moves->count;
    for (size_t i = 0; i < fill->moves->count; i++) {
        const struct cairn_move *move = &fill->moves->moves[i];
        struct source *source;

        if (!move_is_inside(fill, move) ||
            (i && fill->moves->moves[i - 1].source_container > move->source_container))
            return CAIRN_INTERNAL;
        if (is_present(fill, move)) {
            run->next_present = i < run->next_present ? i : run->next_present;
            continue;
        }
        source = &run->sources[move->source_container];
        if (!source->needed) {
            source->block_count = fill->manifests[move->source_container].block_count;
            source->needed = calloc(1, (size_t)(source->block_count / 8 + 1));
            if (!source->needed)
                return CAIRN_NOMEM;
            source->first_move = i;
        }
        source->end_move = i + 1;
        if (source->end_move - source->first_move > run->most_moves)
            run->most_moves = source->end_move - source->first_move;
        mark_blocks(source, move);
    }
    run->sweep.active = malloc(run->most_moves * sizeof *run->sweep.active);
    return run->sweep.active ? CAIRN_OK : CAIRN_NOMEM;
}

/* ---- one verified block into the tensors ---- */

static void
sweep_begin(const struct run_state *run, struct sweep *sweep, uint32_t container)
{
    sweep->container = container;
    sweep->next = run->sources[container].first_move;
    sweep->end = run->sources[container].end_move;
    sweep->active_count = 0;
}

/* Copies what one move takes of the block bytes[bytes_len] at container offset `begin`. */
static cairn_err
copy_part_of_move(struct run_state *run, const struct cairn_move *move, const uint8_t *bytes,
                  uint64_t begin, uint64_t bytes_len, uint64_t *copied_bytes)
{
    uint64_t end = begin + bytes_len, i = 0;
    uint64_t stride = move->run_count > 1 ? move->source_stride : 1;

    if (begin >= move->source_offset + move->run_bytes)
        i = (begin - move->source_offset - move->run_bytes) / stride + 1;
    for (; i < move->run_count; i++) {
        uint64_t run_begin = move->source_offset + i * stride;
        uint64_t low = run_begin > begin ? run_begin : begin;
        uint64_t high = run_begin + move->run_bytes < end ? run_begin + move->run_bytes : end;
        cairn_err err;

        if (run_begin >= end)
            break;
        err = client_sink_put(run->sink, move->target_container,
                              move->target_offset + i * move->target_stride + (low - run_begin),
                              bytes + (low - begin), high - low);
        if (err)
            return err;
        *copied_bytes += high - low;
    }
    return CAIRN_OK;
}

static uint64_t
end_of_move(const struct cairn_move *move)
{
    return move->source_offset + (move->run_count - 1) * move->source_stride + move->run_bytes;
}

/* Adds the moves that begin before `end`. Blocks of one container come in ascending order; a block
 * meets few moves. */
static void
sweep_to(const struct run_state *run, struct sweep *sweep, uint32_t container, uint64_t end)
{
    const struct cairn_move *moves = run->fill->moves->moves;

    if (sweep->container != container)
        sweep_begin(run, sweep, container);
    while (sweep->next < sweep->end && moves[sweep->next].source_offset < end)
        sweep->active[sweep->active_count++] = sweep->next++;
}

/* Drops the moves that do not reach beyond `end`. */
static void
sweep_past(const struct run_state *run, struct sweep *sweep, uint64_t end)
{
    size_t kept = 0;

    for (size_t i = 0; i < sweep->active_count; i++)
        if (end_of_move(&run->fill->moves->moves[sweep->active[i]]) > end)
            sweep->active[kept++] = sweep->active[i];
    sweep->active_count = kept;
}

static cairn_err
copy_block(struct run_state *run, const struct sweep *sweep, const uint8_t *bytes, uint64_t begin,
           uint64_t bytes_len, uint64_t *copied_bytes)
{
    cairn_err err = CAIRN_OK;

    for (size_t i = 0; !err && i < sweep->active_count; i++) {
        const struct cairn_move *move = &run->fill->moves->moves[sweep->active[i]];

        if (end_of_move(move) > begin)
            err = copy_part_of_move(run, move, bytes, begin, bytes_len, copied_bytes);
    }
    return err;
}

/* The move that takes all bytes [begin, end) in one run, if no other takes any of them: *offset in
 * its slice. NULL: none does. */
static const struct cairn_move *
only_move(const struct run_state *run, const struct sweep *sweep, uint64_t begin, uint64_t end,
          uint64_t *offset)
{
    const struct cairn_move *only = NULL;
    uint64_t index, run_begin;

    for (size_t i = 0; i < sweep->active_count; i++) {
        const struct cairn_move *move = &run->fill->moves->moves[sweep->active[i]];

        if (end_of_move(move) <= begin)
            continue;
        if (only)
            return NULL;
        only = move;
    }
    if (!only || only->source_offset > begin)
        return NULL;
    index = only->run_count > 1 ? (begin - only->source_offset) / only->source_stride : 0;
    run_begin = only->source_offset + index * only->source_stride;
    if (run_begin + only->run_bytes < end)
        return NULL;
    *offset = only->target_offset + index * only->target_stride + (begin - run_begin);
    return only;
}

/* Length of a block: the last one of a file may be short. */
static uint64_t
block_bytes(const struct cairn_manifest *manifest, uint64_t block)
{
    uint64_t left = manifest->container_bytes - block * CAIRN_BLOCK_BYTES;

    return left < CAIRN_BLOCK_BYTES ? left : CAIRN_BLOCK_BYTES;
}

/* Copies a block, and takes it off the list if it is good. One that goes to one place is compared
 * on its way there: if it is bad, it is overwritten when it comes again. */
static cairn_err
take_block(struct run_state *run, struct sweep *sweep, uint32_t container, uint64_t block,
           const uint8_t *bytes, uint64_t *bad_blocks, uint64_t *copied_bytes)
{
    const struct cairn_manifest *manifest = &run->fill->manifests[container];
    uint64_t begin = block * CAIRN_BLOCK_BYTES, bytes_len = block_bytes(manifest, block), offset;
    uint64_t crc = manifest->block_crcs[block];
    const struct cairn_move *move;
    cairn_err err = CAIRN_OK;
    bool is_good;

    sweep_to(run, sweep, container, begin + bytes_len);
    move = only_move(run, sweep, begin, begin + bytes_len, &offset);
    if (move && client_sink_put_checked(run->sink, move->target_container, offset, bytes, bytes_len,
                                        crc, &is_good)) {
        *copied_bytes += is_good ? bytes_len : 0;
    } else {
        is_good = cairn_crc64(0, bytes, bytes_len) == crc;
        if (is_good)
            err = copy_block(run, sweep, bytes, begin, bytes_len, copied_bytes);
    }
    sweep_past(run, sweep, begin + bytes_len);
    if (!is_good)
        (*bad_blocks)++;
    else if (!err)
        set_needed(&run->sources[container], block, false);
    return err;
}

/* ---- the own container, in place ---- */

static void *
reader_run(void *context)
{
    struct reader *reader = context;
    struct run_state *run = reader->run;
    const struct client_fill *fill = run->fill;
    const struct source *source = &run->sources[fill->own_container];

    reader->sweep.container = CAIRN_CONTAINER_NONE;
    for (uint64_t block = reader->first_block; block < reader->end_block && !reader->err; block++) {
        if (is_needed(source, block))
            reader->err =
                take_block(run, &reader->sweep, fill->own_container, block,
                           fill->own + (block - fill->own_first_block) * CAIRN_BLOCK_BYTES,
                           &reader->bad_blocks, &reader->copied_bytes);
        if (!reader->err && block % 1024 == 0 && client_now_ns() >= fill->deadline_ns)
            reader->err = CAIRN_TIMEOUT;
    }
    return NULL;
}

/* This rank's share of the cores; 1 if copies go to devices, whose batches belong to one thread. */
static uint32_t
count_readers(const struct run_state *run, uint64_t block_count)
{
    const struct client_fill *fill = run->fill;
    uint64_t readers = client_core_share(fill->client);

    for (uint32_t i = 0; i < fill->slice_count; i++)
        if (fill->slices[i].device >= 0)
            return 1;
    if (readers > block_count / READER_BLOCKS_MIN)
        readers = block_count / READER_BLOCKS_MIN;
    if (readers > READERS_MAX)
        readers = READERS_MAX;
    return readers ? (uint32_t)readers : 1;
}

/* Runs all readers; the first, and those for which the system has no thread, in this thread. */
static void
run_readers(struct reader *readers, uint32_t count)
{
    sigset_t all, old;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* the trainer's handlers never run on our threads */
    for (uint32_t i = 1; i < count; i++)
        readers[i].has_thread =
            pthread_create(&readers[i].thread, NULL, reader_run, &readers[i]) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    for (uint32_t i = 0; i < count; i++)
        if (!readers[i].has_thread)
            reader_run(&readers[i]);
    for (uint32_t i = 1; i < count; i++)
        if (readers[i].has_thread)
            pthread_join(readers[i].thread, NULL);
}

static cairn_err
read_own(struct run_state *run)
{
    struct client_fill *fill = run->fill;
    struct reader readers[READERS_MAX] = {0};
    const struct source *source;
    uint64_t first, end, share;
    uint32_t count;
    cairn_err err = CAIRN_OK;

    if (fill->own_container == CAIRN_CONTAINER_NONE || !run->sources[fill->own_container].needed)
        return CAIRN_OK;
    source = &run->sources[fill->own_container];
    first = fill->own_first_block / READER_BLOCKS_MIN * READER_BLOCKS_MIN;
    end = fill->own_end_block < source->block_count ? fill->own_end_block : source->block_count;
    count = count_readers(run, end - first);
    share = ((end - first) / count / READER_BLOCKS_MIN + 1) * READER_BLOCKS_MIN;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t begin = first + i * share;

        readers[i].run = run;
        readers[i].first_block = i ? begin : fill->own_first_block;
        readers[i].end_block = begin + share < end ? begin + share : end;
        readers[i].sweep.active = malloc(run->most_moves * sizeof *readers[i].sweep.active);
        if (!readers[i].sweep.active)
            err = CAIRN_NOMEM;
    }
    if (!err)
        run_readers(readers, count);
    for (uint32_t i = 0; i < count; i++) {
        free(readers[i].sweep.active);
        run->bad_blocks += readers[i].bad_blocks;
        fill->own_bytes += readers[i].copied_bytes;
        if (!err)
            err = readers[i].err;
    }
    if (err)
        return err;
    if (run->bad_blocks)
        client_say(fill->client, CAIRN_LOG_WARN,
                   "client: %llu blocks in this node's memory are damaged: fetched instead",
                   (unsigned long long)run->bad_blocks);
    return client_sink_flush(run->sink);
}

/* ---- tensors that are here ---- */

static cairn_err
copy_present(struct run_state *run)
{
    struct client_fill *fill = run->fill;

    for (; run->next_present < fill->moves->count; run->next_present++) {
        const struct cairn_move *move = &fill->moves->moves[run->next_present];
        const struct cairn_slice *slice =
            &fill->present[move->source_container - fill->container_count];

        for (uint64_t i = 0; i < move->run_count; i++) {
            const uint8_t *from =
                (const uint8_t *)slice->address + move->source_offset + i * move->source_stride;
            uint64_t to = move->target_offset + i * move->target_stride, bytes_len;

            for (uint64_t at = 0; at < move->run_bytes; at += bytes_len) {
                cairn_err err;

                bytes_len = move->run_bytes - at < PRESENT_BYTES_MAX ? move->run_bytes - at
                                                                     : PRESENT_BYTES_MAX;
                err = client_sink_put(run->sink, move->target_container, to + at, from + at,
                                      bytes_len);
                if (err)
                    return err;
            }
            fill->own_bytes += move->run_bytes;
        }
    }
    return client_sink_flush(run->sink);
}

/* ---- fetching ---- */

/* The next needed block at or after the cursor; false when there is none. */
static bool
next_needed(struct run_state *run)
{
    while (run->cursor_container < run->fill->container_count) {
        const struct source *source = &run->sources[run->cursor_container];

        while (source->needed && run->cursor_block < source->block_count) {
            if (is_needed(source, run->cursor_block))
                return true;
            run->cursor_block++;
        }
        run->cursor_container++;
        run->cursor_block = 0;
    }
    return false;
}

/* Gathers the next needed blocks into a request for one part; false when none are left. */
static bool
gather(struct run_state *run, struct part *part)
{
    struct cairn_session_fetch *fetch = &part->fetch;
    uint64_t at = (uint64_t)(part->bytes - run->fill->window);

    fetch->count = 0;
    for (uint64_t blocks = 0; blocks < run->part_blocks && next_needed(run); blocks++) {
        struct cairn_session_fetch_item *last =
            fetch->count ? &fetch->items[fetch->count - 1] : NULL;

        if (last && last->container == run->cursor_container &&
            last->first_block + last->block_count == run->cursor_block) {
            last->block_count++;
        } else {
            if (fetch->count == CAIRN_SESSION_FETCH_ITEMS_MAX)
                break;
            fetch->items[fetch->count++] = (struct cairn_session_fetch_item){
                run->cursor_container, 1, run->cursor_block, at + blocks * CAIRN_BLOCK_BYTES};
        }
        run->cursor_block++;
    }
    return fetch->count > 0;
}

static cairn_err
ask(struct run_state *run, uint32_t index)
{
    struct cairn_client *client = run->fill->client;
    struct part *part = &run->parts[index];
    bool late = false;
    cairn_err err;

    pthread_mutex_lock(&client->lock);
    part->fetch.request = client->next_request;
    client->next_request = client->next_request == UINT32_MAX ? 1 : client->next_request + 1;
    client->mail.fetches[index].request = part->fetch.request;
    client->mail.fetches[index].answered = false;
    for (;;) { /* no wake-up comes when a queue drains: look again shortly */
        err = client->mail.err ? client->mail.err
                               : cairn_session_put_fetch(&client->writer, &part->fetch);
        if (err != CAIRN_AGAIN || late)
            break;
        (void)client_wait(client, client_now_ns() + QUEUE_LOOK_NS);
        late = client_now_ns() >= run->fill->deadline_ns;
    }
    client_wake(client);
    pthread_mutex_unlock(&client->lock);
    part->in_flight = err == CAIRN_OK;
    return err == CAIRN_AGAIN ? CAIRN_TIMEOUT : err;
}

static cairn_err
await(struct run_state *run, uint32_t index)
{
    struct cairn_client *client = run->fill->client;
    char text[CAIRN_SESSION_TEXT_BYTES] = "";
    cairn_err err = CAIRN_OK;

    pthread_mutex_lock(&client->lock);
    while (!client->mail.fetches[index].answered && !client->mail.err && !err)
        if (!client_wait(client, run->fill->deadline_ns))
            err = CAIRN_TIMEOUT;
    if (client->mail.fetches[index].answered) {
        err = client->mail.fetches[index].err;
        memcpy(text, client->mail.fetches[index].text, sizeof text);
    } else if (client->mail.err) {
        err = client->mail.err;
    }
    pthread_mutex_unlock(&client->lock);
    run->parts[index].in_flight = false;
    if (err)
        client_say(run->fill->client, CAIRN_LOG_ERROR,
                   "client: restore failed, bytes did not come: %s%s%s", cairn_err_text(err),
                   text[0] ? ": " : "", text);
    return err;
}

static cairn_err
take_part(struct run_state *run, uint32_t index)
{
    struct part *part = &run->parts[index];
    cairn_err err = await(run, index);

    for (uint32_t i = 0; !err && i < part->fetch.count; i++) {
        const struct cairn_session_fetch_item *item = &part->fetch.items[i];
        const uint8_t *bytes = run->fill->window + item->window_offset;

        for (uint32_t b = 0; !err && b < item->block_count; b++, bytes += CAIRN_BLOCK_BYTES)
            err = take_block(run, &run->sweep, item->container, item->first_block + b, bytes,
                             &run->bad_blocks, &run->fill->fetched_bytes);
    }
    return err ? err : client_sink_flush(run->sink); /* before the part is written again */
}

/* Brings every block still needed. All parts are in flight, and are taken in the order of
 * asking. */
static cairn_err
fetch_all(struct run_state *run)
{
    uint32_t index = 0;
    bool more = true;
    cairn_err err = CAIRN_OK;

    run->bad_blocks = 0;
    run->cursor_container = 0;
    run->cursor_block = 0;
    run->sweep.container = CAIRN_CONTAINER_NONE;
    for (uint32_t i = 0; i < run->part_count && more && !err; i++) {
        more = gather(run, &run->parts[i]);
        if (more)
            err = ask(run, i);
    }
    if (!err)
        err = copy_present(run); /* while the first blocks come */
    while (!err && run->parts[index].in_flight) {
        err = take_part(run, index);
        if (!err && more && (more = gather(run, &run->parts[index])))
            err = ask(run, index);
        index = (index + 1) % run->part_count;
    }
    return err;
}

static cairn_err
split_window(struct run_state *run)
{
    uint64_t blocks = run->fill->window_bytes / CAIRN_BLOCK_BYTES;

    if (blocks == 0)
        return CAIRN_INVAL;
    run->part_count = blocks < CLIENT_WINDOW_PARTS ? (uint32_t)blocks : CLIENT_WINDOW_PARTS;
    run->part_blocks = blocks / run->part_count;
    if (run->part_blocks > UINT32_MAX)
        run->part_blocks = UINT32_MAX;
    for (uint32_t i = 0; i < run->part_count; i++)
        run->parts[i].bytes = run->fill->window + i * run->part_blocks * CAIRN_BLOCK_BYTES;
    return CAIRN_OK;
}

cairn_err
client_fill_run(struct client_fill *fill)
{
    struct run_state *run = calloc(1, sizeof *run);
    cairn_err err = CAIRN_NOMEM;

    if (!run)
        return CAIRN_NOMEM;
    run->fill = fill;
    run->sources = calloc(fill->container_count, sizeof *run->sources);
    if (!run->sources)
        goto done;
    err = split_window(run);
    if (err)
        goto done;
    err = mark_sources(run);
    if (err)
        goto done;
    err = client_sink_open(fill->client, fill->slices, fill->slice_count, fill->failing,
                           fill->deadline_ns, &run->sink);
    if (err)
        goto done;
    err = client_sink_pin(run->sink, fill->window, fill->window_bytes);
    if (!err)
        err = read_own(run);
    for (int tries = 0; !err && tries < FETCH_TRIES; tries++) {
        err = fetch_all(run);
        if (!err && run->bad_blocks == 0)
            break;
        if (!err)
            client_say(fill->client, CAIRN_LOG_WARN, "client: %llu fetched blocks are damaged%s",
                       (unsigned long long)run->bad_blocks,
                       tries + 1 < FETCH_TRIES ? ": fetched once more" : "");
        if (!err && tries + 1 == FETCH_TRIES)
            err = CAIRN_CORRUPT;
    }
done:
    fill->hung = client_sink_close(run->sink) ? NULL : run->sink;
    for (uint32_t i = 0; run->sources && i < fill->container_count; i++)
        free(run->sources[i].needed);
    free(run->sources);
    free(run->sweep.active);
    free(run);
    return err;
}
