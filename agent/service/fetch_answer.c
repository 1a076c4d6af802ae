/* agent/service/fetch_answer.c - answers other agents' FETCH, takes their answers to ours, and asks
 * again. */
#include "agent/process/agent_state.h"
#include "agent/process/mail.h"
#include "agent/process/memory.h"
#include "agent/process/step.h"
#include "agent/service/fetch.h"
#include "agent/service/fetch_state.h"

#include "base/crc.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>

static const uint64_t read_deadline_ns = 60 * CAIRN_NS_PER_S;
static const uint64_t read_resend_ns = 1 * CAIRN_NS_PER_S;
static const uint64_t gone_deadline_ns = 5 * CAIRN_NS_PER_S;

static void
answer_manifest(struct cairn_agent *agent, const struct cairn_service_message *ask,
                const struct cairn_part_view *view)
{
    struct cairn_service_message answer = *ask;

    answer.kind = CAIRN_SERVICE_FETCHED;
    answer.to = ask->from;
    answer.from = agent->config.node;
    answer.err = view->manifest && ask->offset < view->manifest_len ? CAIRN_OK : CAIRN_NOT_FOUND;
    answer.bytes = NULL;
    answer.bytes_len = 0;
    if (!answer.err) {
        size_t left = view->manifest_len - ask->offset;

        answer.total = view->manifest_len;
        answer.bytes = view->manifest + ask->offset;
        answer.bytes_len = (uint32_t)(left < PART_BYTES ? left : PART_BYTES);
    }
    mail_send_service(agent, &answer, NULL, 0, UINT32_MAX);
}

static void
answer_blocks(struct cairn_agent *agent, const struct cairn_service_message *ask, uint32_t part,
              const struct cairn_part_view *view)
{
    struct cairn_service_message answer = *ask;
    const uint8_t *payload = NULL;

    answer.kind = CAIRN_SERVICE_FETCHED;
    answer.to = ask->from;
    answer.from = agent->config.node;
    if (ask->block_count > 0 && ask->offset <= view->data_blocks &&
        ask->block_count <= view->data_blocks - ask->offset)
        payload = cairn_memory_data(agent->memory, part, ask->offset, ask->block_count);
    answer.err = payload ? CAIRN_OK : CAIRN_NOT_FOUND;
    answer.bytes = NULL;
    answer.bytes_len = 0;
    mail_send_placed(agent, &answer, payload,
                     payload ? (size_t)ask->block_count * CAIRN_BLOCK_BYTES : 0,
                     payload ? part : UINT32_MAX, ask->request);
}

/* Parity is compared here: only its owner has its checksums. */
static void
answer_parity(struct cairn_agent *agent, const struct cairn_service_message *ask, uint32_t part,
              const struct cairn_part_view *view)
{
    const struct cairn_geometry *geometry = &view->stripes->geometry;
    struct cairn_service_message answer = *ask;
    const uint8_t *payload = NULL;
    uint64_t blocks = 0;

    answer.kind = CAIRN_SERVICE_FETCHED;
    answer.to = ask->from;
    answer.from = agent->config.node;
    answer.bytes = NULL;
    answer.bytes_len = 0;
    if (ask->total < geometry->m)
        blocks =
            view->stripes
                ->parity_blocks[cairn_slot_stripe(geometry, view->position, (uint32_t)ask->total)];
    if (ask->block_count > 0 && ask->block_count <= CAIRN_MESSAGE_BLOCKS_MAX &&
        ask->offset <= blocks && ask->block_count <= blocks - ask->offset)
        payload = cairn_memory_parity(agent->memory, part, (uint32_t)ask->total, geometry->m,
                                      ask->offset, ask->block_count);
    answer.total = UINT64_MAX;
    answer.err = payload ? CAIRN_OK : CAIRN_NOT_FOUND;
    for (uint32_t i = 0; payload && !answer.err && i < ask->block_count; i++)
        if (cairn_crc64(0, payload + (size_t)i * CAIRN_BLOCK_BYTES, CAIRN_BLOCK_BYTES) !=
            view->parity_crcs[ask->total][ask->offset + i])
            answer.err = CAIRN_CORRUPT;
    if (answer.err)
        payload = NULL;
    mail_send_service(agent, &answer, payload,
                      payload ? (size_t)ask->block_count * CAIRN_BLOCK_BYTES : 0,
                      payload ? part : UINT32_MAX);
}

static void
answer(struct cairn_agent *agent, const struct cairn_service_message *ask)
{
    struct cairn_service_message refusal = *ask;
    struct cairn_part_view view;
    uint32_t part;

    if (fetch_find_part(agent, ask->generation, ask->item, &part, &view)) {
        if (ask->verb == ASK_MANIFEST)
            answer_manifest(agent, ask, &view);
        else if (ask->verb == ASK_PARITY)
            answer_parity(agent, ask, part, &view);
        else
            answer_blocks(agent, ask, part, &view);
        return;
    }
    refusal.kind = CAIRN_SERVICE_FETCHED;
    refusal.to = ask->from;
    refusal.from = agent->config.node;
    refusal.err = CAIRN_NOT_FOUND;
    refusal.bytes = NULL;
    refusal.bytes_len = 0;
    mail_send_service(agent, &refusal, NULL, 0, UINT32_MAX);
}

static bool
wants_manifest(const struct fetcher *fetcher, const struct cairn_service_message *message)
{
    return !fetcher->from_files && !fetcher->is_ready && !fetcher->is_failed &&
           message->item < fetcher->container_count &&
           cairn_generation_id_compare(message->generation, fetcher->generation) == 0 &&
           message->err == CAIRN_OK;
}

static void
take_manifest_part(struct fetcher *fetcher, const struct cairn_service_message *message)
{
    struct container *container = &fetcher->containers[message->item];

    if (container->whole || message->total == 0 ||
        message->total > fetcher->agent->mail.seal_bytes_max) /* a seal holds it, and more */
        return;
    if (!container->packed) {
        container->packed = malloc(message->total);
        container->packed_len = container->packed ? message->total : 0;
    }
    if (container->packed_len != message->total || container->received != message->offset ||
        message->bytes_len > container->packed_len - container->received)
        return;
    memcpy(container->packed + container->received, message->bytes, message->bytes_len);
    container->received += message->bytes_len;
    if (container->received < container->packed_len) {
        fetch_ask_manifest(fetcher, message->item);
        return;
    }
    if (fetch_take_manifest(fetcher, message->item, container->packed, container->packed_len))
        CAIRN_LOG_AT(
            WARN,
            "fetch: the manifest of part %u arrived damaged from node %u; it is fetched again",
            message->item, message->from);
}

static void
take_blocks(struct fetcher *fetcher, const struct cairn_service_message *message,
            const uint8_t *payload, size_t payload_len)
{
    struct read *read = fetch_find_read(fetcher, message->request);
    const struct cairn_manifest *manifest;

    if (!read || message->from != read->asked || message->item != read->container ||
        message->offset != read->first_block)
        return;
    if (message->err || payload_len != (size_t)read->count * CAIRN_BLOCK_BYTES)
        return; /* asked again, perhaps of another holder */
    manifest = &fetcher->containers[read->container].manifest;
    if (payload != read->target)
        memcpy(read->target, payload, payload_len);
    if (fetcher->compares &&
        !fetch_blocks_good(manifest, read->first_block, read->count, read->target)) {
        fetch_ask_for_repair(fetcher->agent);
        return;
    }
    fetch_end_read(fetcher, read, CAIRN_OK);
    if (!fetcher->ended)
        fetch_pump(fetcher);
}

void
fetch_message(struct cairn_agent *agent, const struct cairn_service_message *message,
              const uint8_t *payload, size_t payload_len)
{
    if (message->kind == CAIRN_SERVICE_FETCH) {
        answer(agent, message);
        return;
    }
    for (struct fetcher *fetcher = agent->fetches->fetchers, *next; fetcher; fetcher = next) {
        next = fetcher->next;
        if (message->verb == ASK_MANIFEST) {
            bool wanted = wants_manifest(fetcher, message);

            if (wanted)
                take_manifest_part(fetcher, message);
            if (wanted && fetch_gathered(fetcher))
                return; /* it called back: the list may have changed; the others ask again */
        } else if (fetch_find_read(fetcher, message->request)) {
            fetcher_hold(fetcher);
            take_blocks(fetcher, message, payload, payload_len);
            fetcher_unhold(fetcher);
            return;
        }
    }
}

uint8_t *
fetch_place(struct cairn_agent *agent, uint32_t from, uint64_t request, size_t payload_len)
{
    for (struct fetcher *fetcher = agent->fetches->fetchers; fetcher; fetcher = fetcher->next) {
        struct read *read = fetch_find_read(fetcher, request);

        if (read && read->asked == from && payload_len == (size_t)read->count * CAIRN_BLOCK_BYTES)
            return read->target;
    }
    return NULL;
}

/* The first read that must be given up now, and why; NULL: none. */
static struct read *
hopeless(const struct fetcher *fetcher, uint64_t now_ns, cairn_err *err)
{
    for (struct read *read = fetcher->reads; read; read = read->next) {
        if (read->sent_ns >= UINT64_MAX / 2) /* with a worker, which answers */
            continue;
        *err = CAIRN_PEER;
        if (now_ns - read->started_ns > read_deadline_ns)
            return read;
        *err = CAIRN_STALE; /* nobody has it any more: a newer one took its place */
        if (!fetcher->from_files && now_ns - read->started_ns > gone_deadline_ns &&
            cairn_core_holder(fetcher->agent->core, fetcher->generation, read->container) ==
                UINT32_MAX)
            return read;
    }
    return NULL;
}

/* Asks again for missing blocks, and gives up what is overdue. */
static void
tick_fetcher(struct fetcher *fetcher, uint64_t now_ns)
{
    struct read *read;
    cairn_err err;

    if (fetcher->is_failed)
        return;
    if (!fetcher->is_ready) {
        if (now_ns - fetcher->started_ns > read_deadline_ns) {
            fetcher->is_failed = true; /* said once */
            if (fetcher->from_files)
                fetcher->ready(fetcher->context, CAIRN_TIMEOUT,
                               "the spill directory does not answer; look at its disk or mount");
            else
                fetcher->ready(fetcher->context, CAIRN_PEER,
                               "another node does not send its manifest");
            return;
        }
        for (uint32_t c = 0; c < fetcher->container_count; c++)
            if (!fetcher->containers[c].whole &&
                now_ns - fetcher->containers[c].sent_ns > read_resend_ns)
                fetch_ask_manifest(fetcher, c);
        return;
    }
    while (!fetcher->ended && (read = hopeless(fetcher, now_ns, &err)) != NULL)
        fetch_end_read(fetcher, read, err);
    for (read = fetcher->ended ? NULL : fetcher->reads; read;) {
        if (read->sent_ns == 0 || read->sent_ns >= UINT64_MAX / 2 ||
            now_ns - read->sent_ns <= read_resend_ns) {
            read = read->next;
        } else if (fetch_read_own(fetcher, read)) {
            read = fetcher->ended ? NULL : fetcher->reads;
        } else {
            fetch_read_remote(fetcher, read);
            read = read->next;
        }
    }
    if (!fetcher->ended)
        fetch_pump(fetcher);
}

void
fetch_tick(struct cairn_agent *agent)
{
    uint64_t now_ns = agent_now_ns(agent);

    for (struct fetcher *fetcher = agent->fetches->fetchers, *next; fetcher; fetcher = next) {
        fetcher_hold(fetcher);
        tick_fetcher(fetcher, now_ns);
        next = fetcher->ended ? agent->fetches->fetchers : fetcher->next;
        fetcher_unhold(fetcher);
    }
}
