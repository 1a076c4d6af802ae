/* agent/service/fetch_read.c - reads runs of blocks: from own memory, from another node, from a
 * spilled file. */
#include "agent/process/agent_state.h"
#include "agent/process/mail.h"
#include "agent/process/memory.h"
#include "agent/process/step.h"
#include "agent/service/fetch.h"
#include "agent/service/fetch_state.h"

#include "base/crc.h"
#include "base/worker.h"
#include "snapshot/spill.h"

#include <stdlib.h>
#include <string.h>

void
fetch_end_read(struct fetcher *fetcher, struct read *read, cairn_err err)
{
    struct batch *batch = read->batch;

    mail_unplace(fetcher->agent, read->target, (size_t)read->count * CAIRN_BLOCK_BYTES);
    for (struct read **link = &fetcher->reads; *link; link = &(*link)->next)
        if (*link == read) {
            *link = read->next;
            break;
        }
    if (read->sent_ns)
        fetcher->in_flight--;
    fetcher->read_count--;
    free(read);
    if (err && !batch->err)
        batch->err = err;
    if (--batch->left > 0)
        return;
    batch->done(batch->context, batch->tag, batch->err);
    free(batch);
}

bool
fetch_blocks_good(const struct cairn_manifest *manifest, uint64_t first_block, uint32_t count,
                  const uint8_t *bytes)
{
    for (uint32_t i = 0; i < count; i++) {
        uint64_t at = (first_block + i) * CAIRN_BLOCK_BYTES;
        uint64_t len = manifest->container_bytes - at < CAIRN_BLOCK_BYTES
                           ? manifest->container_bytes - at
                           : CAIRN_BLOCK_BYTES;

        if (cairn_crc64(0, bytes + (size_t)i * CAIRN_BLOCK_BYTES, len) !=
            manifest->block_crcs[first_block + i])
            return false;
    }
    return true;
}

struct read *
fetch_find_read(struct fetcher *fetcher, uint64_t id)
{
    for (struct read *read = fetcher->reads; read; read = read->next)
        if (read->id == id)
            return read;
    return NULL;
}

/* Copies blocks of this node's memory into a trainer's window, in a worker: each restoring trainer
 * may want all of the node's state. */
struct own_job {
    struct cairn_job job;
    struct fetcher *fetcher; /* held, and its window with it */
    uint64_t id;
    uint32_t part; /* held */
    uint32_t container;
    uint64_t first_block;
    uint32_t count;
    const uint8_t *source;
    uint8_t *target;
    bool compares;
    bool is_good;
};

static void
own_run(struct cairn_job *job)
{
    struct own_job *own = (struct own_job *)job;

    memcpy(own->target, own->source, (size_t)own->count * CAIRN_BLOCK_BYTES);
    own->is_good =
        !own->compares || fetch_blocks_good(&own->fetcher->containers[own->container].manifest,
                                            own->first_block, own->count, own->target);
}

static void
own_done(struct cairn_job *job)
{
    struct own_job *own = (struct own_job *)job;
    struct fetcher *fetcher = own->fetcher;
    struct read *read = fetcher->ended ? NULL : fetch_find_read(fetcher, own->id);

    cairn_memory_unhold(fetcher->agent->memory, own->part);
    if (read && own->is_good) {
        fetch_end_read(fetcher, read, CAIRN_OK);
    } else if (read) {
        fetch_ask_for_repair(fetcher->agent);
        fetch_read_remote(fetcher, read); /* asked again at a tick, when it is repaired */
    }
    if (!fetcher->ended)
        fetch_pump(fetcher);
    fetcher_unhold(fetcher);
    free(own);
}

/* False: no worker takes it. */
static bool
start_own_job(struct fetcher *fetcher, struct read *read, uint32_t part, const uint8_t *source)
{
    struct own_job *own = calloc(1, sizeof *own);

    if (!own)
        return false;
    own->job = (struct cairn_job){.run = own_run, .done = own_done};
    own->fetcher = fetcher;
    own->id = read->id;
    own->part = part;
    own->container = read->container;
    own->first_block = read->first_block;
    own->count = read->count;
    own->source = source;
    own->target = read->target;
    own->compares = fetcher->compares;
    if (cairn_workers_submit(fetcher->agent->workers, &own->job) != CAIRN_OK) {
        free(own);
        return false;
    }
    mail_unplace(fetcher->agent, read->target, (size_t)read->count * CAIRN_BLOCK_BYTES);
    fetcher_hold(fetcher);
    cairn_memory_hold(fetcher->agent->memory, part);
    if (!read->sent_ns)
        fetcher->in_flight++;
    read->sent_ns = UINT64_MAX / 2; /* never again: the job answers */
    read->asked = UINT32_MAX;
    return true;
}

bool
fetch_read_own(struct fetcher *fetcher, struct read *read)
{
    const struct cairn_manifest *manifest = &fetcher->containers[read->container].manifest;
    struct cairn_part_view view;
    const uint8_t *source;
    uint32_t index;

    if (!fetch_find_part(fetcher->agent, fetcher->generation, read->container, &index, &view))
        return false;
    source = cairn_memory_data(fetcher->agent->memory, index, read->first_block, read->count);
    if (!source)
        return false;
    if (fetcher->window && start_own_job(fetcher, read, index, source))
        return true;
    memcpy(read->target, source, (size_t)read->count * CAIRN_BLOCK_BYTES);
    if (!fetch_blocks_good(manifest, read->first_block, read->count, read->target)) {
        fetch_ask_for_repair(fetcher->agent);
        return false;
    }
    fetch_end_read(fetcher, read, CAIRN_OK);
    return true;
}

struct file_job {
    struct cairn_job job;
    struct fetcher *fetcher;
    uint64_t id;
    uint32_t file;
    uint64_t first_block;
    uint32_t count;
    uint8_t *bytes; /* own buffer: the target may be gone before the disk answers */
    cairn_err err;
};

static void
file_run(struct cairn_job *job)
{
    struct file_job *file = (struct file_job *)job;
    const struct cairn_universal_file *data = &file->fetcher->universal.files[file->file];
    uint64_t at = file->first_block * CAIRN_BLOCK_BYTES;
    uint64_t len = (uint64_t)file->count * CAIRN_BLOCK_BYTES;

    if (len > data->data_bytes - at)
        len = data->data_bytes - at;
    file->err = cairn_spill_read(file->fetcher->dir_fd, data, at, file->bytes, len);
    if (!file->err && !fetch_blocks_good(&file->fetcher->containers[file->file].manifest,
                                         file->first_block, file->count, file->bytes))
        file->err = CAIRN_CORRUPT;
}

static void
file_done(struct cairn_job *job)
{
    struct file_job *file = (struct file_job *)job;
    struct fetcher *fetcher = file->fetcher;
    struct read *read;

    if (!fetcher->ended) {
        read = fetch_find_read(fetcher, file->id);
        if (read && !file->err)
            memcpy(read->target, file->bytes, (size_t)file->count * CAIRN_BLOCK_BYTES);
        if (read)
            fetch_end_read(fetcher, read, file->err);
        if (!fetcher->ended)
            fetch_pump(fetcher);
    }
    fetcher_unhold(fetcher);
    free(file->bytes);
    free(file);
}

static void
read_file(struct fetcher *fetcher, struct read *read)
{
    struct file_job *file = NULL;

    if (cairn_workers_busy(fetcher->agent->workers) < FILE_JOBS_MAX)
        file = calloc(1, sizeof *file);
    if (file)
        file->bytes = calloc(read->count, CAIRN_BLOCK_BYTES);
    if (!file || !file->bytes) {
        free(file);
        return; /* asked again at the next tick */
    }
    file->job = (struct cairn_job){.run = file_run, .done = file_done};
    file->fetcher = fetcher;
    file->id = read->id;
    file->file = read->container;
    file->first_block = read->first_block;
    file->count = read->count;
    fetcher_hold(fetcher);
    if (cairn_workers_submit(fetcher->agent->workers, &file->job) == CAIRN_OK) {
        if (!read->sent_ns)
            fetcher->in_flight++;
        read->sent_ns = UINT64_MAX / 2; /* never again: the job answers */
        return;
    }
    fetcher_unhold(fetcher); /* its caller holds it too */
    free(file->bytes);
    free(file);
}

void
fetch_read_remote(struct fetcher *fetcher, struct read *read)
{
    struct cairn_agent *agent = fetcher->agent;
    uint32_t holder = fetch_holder_of(fetcher, read->container);
    struct cairn_service_message message = {.kind = CAIRN_SERVICE_FETCH,
                                            .from = agent->config.node,
                                            .to = holder,
                                            .generation = fetcher->generation,
                                            .item = read->container,
                                            .verb = ASK_BLOCKS,
                                            .offset = read->first_block,
                                            .block_count = read->count,
                                            .request = read->id};

    if (!read->sent_ns)
        fetcher->in_flight++;
    read->sent_ns = agent_now_ns(agent);
    read->asked = holder;
    if (holder < agent->config.node_count && holder != agent->config.node)
        mail_send_service(agent, &message, NULL, 0, UINT32_MAX);
}

/* A read that ends at once may change the list, and call back. */
void
fetch_pump(struct fetcher *fetcher)
{
    struct read *read = fetcher->reads;

    fetcher_hold(fetcher);
    while (read && fetcher->in_flight < IN_FLIGHT_MAX) {
        if (read->sent_ns != 0) {
            read = read->next;
        } else if (fetcher->from_files) {
            read_file(fetcher, read);
            read = read->next;
        } else if (fetch_read_own(fetcher, read)) {
            read = fetcher->ended ? NULL : fetcher->reads;
        } else {
            fetch_read_remote(fetcher, read);
            read = read->next;
        }
    }
    fetcher_unhold(fetcher);
}

/* Splits runs into reads that fit one message each. */
static cairn_err
make_reads(struct fetcher *fetcher, const struct fetcher_run *runs, uint32_t count,
           struct batch *batch, struct read **head)
{
    struct read **tail = head;

    for (uint32_t r = 0; r < count; r++) {
        const struct cairn_manifest *manifest;

        if (runs[r].container >= fetcher->container_count)
            return CAIRN_INVAL;
        manifest = &fetcher->containers[runs[r].container].manifest;
        if (runs[r].first_block > manifest->block_count ||
            runs[r].count > manifest->block_count - runs[r].first_block)
            return CAIRN_INVAL;
        for (uint32_t at = 0; at < runs[r].count; at += CAIRN_MESSAGE_BLOCKS_MAX) {
            uint32_t left = runs[r].count - at;
            struct read *read =
                fetcher->read_count + batch->left < READS_MAX ? calloc(1, sizeof *read) : NULL;

            if (!read)
                return CAIRN_NOMEM;
            *read = (struct read){
                .batch = batch,
                .id = ++fetcher->agent->fetches->next_id,
                .container = runs[r].container,
                .count = left < CAIRN_MESSAGE_BLOCKS_MAX ? left : CAIRN_MESSAGE_BLOCKS_MAX,
                .first_block = runs[r].first_block + at,
                .target = runs[r].target + (size_t)at * CAIRN_BLOCK_BYTES,
                .started_ns = agent_now_ns(fetcher->agent),
                .asked = UINT32_MAX};
            *tail = read;
            tail = &read->next;
            batch->left++;
        }
    }
    return CAIRN_OK;
}

cairn_err
fetcher_read(struct fetcher *fetcher, const struct fetcher_run *runs, uint32_t count, uint64_t tag,
             fetcher_done_fn *done, void *context)
{
    struct batch *batch = calloc(1, sizeof *batch);
    struct read *head = NULL, **tail;
    cairn_err err;

    if (!batch)
        return CAIRN_NOMEM;
    *batch = (struct batch){0, tag, CAIRN_OK, done, context};
    err = fetcher->is_ready ? make_reads(fetcher, runs, count, batch, &head) : CAIRN_INVAL;
    if (err || batch->left == 0) {
        while (head) {
            struct read *next = head->next;

            free(head);
            head = next;
        }
        free(batch);
        if (!err)
            done(context, tag, CAIRN_OK);
        return err;
    }
    fetcher->read_count += batch->left;
    for (tail = &fetcher->reads; *tail; tail = &(*tail)->next)
        ;
    *tail = head;
    fetch_pump(fetcher);
    return CAIRN_OK;
}
