/*
 * tests/fuzz/fuzz_fetch.c - answers of other agents to a fetcher, which puts manifests together
 * from parts and takes blocks.
 *
 *     messages: byte 0: item (bits 0, 1), blocks (bit 2), an error (bit 3), another generation
 *     (bit 4), twice the payload (bit 5); bytes 1, 2: offset; 3, 4: total; 5, 6: length; bytes
 *
 * Nothing is written outside of a manifest or of the target of a read, `ready` is called once, and
 * the fetcher is freed whole.
 */
#include "agent/process/agent_state.h"
#include "agent/process/handlers.h"
#include "agent/service/fetch_state.h"
#include "base/crc.h"
#include "base/log.h"
#include "tests/fuzz/require.h"
#include "tests/support/quiet_log.h"

#include <stdlib.h>
#include <string.h>

enum { MEMBERS = 2, HEAD = 7, BLOCKS = 2 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct cairn_agent agent;
static uint32_t readies, dones;
static uint8_t block[2 * CAIRN_BLOCK_BYTES];

static void
drop_actions(struct cairn_agent *to, const struct arrival *arrival,
             const struct cairn_actions *actions)
{
}

static void
settle(struct cairn_agent *of)
{
}

static void
ready(void *context, cairn_err err, const char *text)
{
    require(err == CAIRN_OK);
    readies++;
}

static void
done(void *context, uint64_t tag, cairn_err err)
{
    dones++;
}

static uint64_t
now(void *context)
{
    return 1;
}

static void
make_agent(void)
{
    static const struct agent_handlers handlers = {.carry_out = drop_actions, .settle = settle};
    static const struct cairn_clock_ops clock = {.now_ns = now, .wall_ns = now};
    static const bool spares[4];
    const struct cairn_core_options options = {.agent_count = 4,
                                               .spares = spares,
                                               .parity = 1,
                                               .group_size = 4,
                                               .slots = 2,
                                               .slot_blocks = 64,
                                               .parity_blocks = 64,
                                               .every_steps = 1,
                                               .incarnation = 1,
                                               .heartbeat_interval_ns = 1000,
                                               .dead_after_ns = 10000,
                                               .repair_after_ns = 10000,
                                               .claim_timeout_ns = 10000,
                                               .rebuild_timeout_ns = 20000};
    struct cairn_bytes none = {0}, records[CAIRN_PARTS_MAX] = {{0}};
    uint32_t dropped;

    cairn_log_setup(CAIRN_LOG_ERROR, drop_line, NULL);
    require(cairn_core_create(&options, 1, none, records, &dropped, &agent.core) == CAIRN_OK);
    agent.config.node_count = 4;
    agent.handlers = &handlers;
    agent.mail.seal_bytes_max = 1 << 16;
    agent.clock = (struct cairn_clock){.ops = &clock};
    require(fetch_open(&agent) == CAIRN_OK);
}

static struct fetcher *
new_fetcher(void)
{
    struct fetcher *fetcher = calloc(1, sizeof *fetcher);

    require(fetcher != NULL);
    fetcher->agent = &agent;
    fetcher->generation = (struct cairn_generation_id){.epoch = 1, .step = 5};
    fetcher->dir_fd = -1;
    fetcher->ready = ready;
    fetcher->container_count = MEMBERS;
    fetcher->containers = calloc(MEMBERS, sizeof *fetcher->containers);
    fetcher->holders = calloc(MEMBERS, sizeof *fetcher->holders);
    require(fetcher->containers && fetcher->holders);
    for (uint32_t m = 0; m < MEMBERS; m++)
        fetcher->holders[m] = UINT32_MAX; /* nobody can be asked */
    agent.fetches->fetchers = fetcher;
    return fetcher;
}

/* A read of the first blocks of a container whose manifest is here. */
static void
add_read(struct fetcher *fetcher, uint32_t container, uint8_t *target)
{
    struct read *read = calloc(1, sizeof *read);
    struct batch *batch = calloc(1, sizeof *batch);

    require(read && batch);
    *batch = (struct batch){.left = 1, .done = done};
    *read = (struct read){.batch = batch,
                          .id = 7,
                          .container = container,
                          .count = 1,
                          .target = target,
                          .sent_ns = 1};
    read->next = fetcher->reads;
    fetcher->reads = read;
    fetcher->read_count++;
    fetcher->in_flight++;
}

static void
send(struct fetcher *fetcher, const uint8_t *head, const uint8_t *bytes, uint32_t bytes_len,
     uint8_t *target)
{
    uint8_t what = head[0];
    struct cairn_service_message message = {.kind = CAIRN_SERVICE_FETCHED,
                                            .from = 1,
                                            .item = what & 3,
                                            .verb = what & 4 ? ASK_BLOCKS : ASK_MANIFEST,
                                            .err = what & 8 ? CAIRN_NOT_FOUND : CAIRN_OK,
                                            .generation = fetcher->generation,
                                            .offset = (uint64_t)(head[1] | head[2] << 8),
                                            .total = (uint64_t)(head[3] | head[4] << 8),
                                            .request = 7,
                                            .bytes = bytes,
                                            .bytes_len = bytes_len};

    if (what & 16)
        message.generation.step++;
    if ((what & 4) && message.item < MEMBERS && fetcher->containers[message.item].whole &&
        fetcher->containers[message.item].manifest.block_count > 0 && !fetcher->reads)
        add_read(fetcher, message.item, target);
    fetch_message(&agent, &message, what & 4 ? block : NULL,
                  what & 4 ? CAIRN_BLOCK_BYTES * (what & 32 ? 2u : 1u) : 0);
    for (uint32_t c = 0; c < MEMBERS; c++)
        require(fetcher->containers[c].received <= fetcher->containers[c].packed_len);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *at = data, *end = data + size;
    struct fetcher *fetcher;
    uint8_t *target, *mended;

    if (!agent.fetches)
        make_agent();
    readies = dones = 0;
    fetcher = new_fetcher();
    target = malloc(CAIRN_BLOCK_BYTES);
    require(target != NULL);
    while (end - at >= HEAD) {
        uint32_t len = (uint32_t)(at[5] | at[6] << 8);

        len = len < (size_t)(end - at - HEAD) ? len : (uint32_t)(end - at - HEAD);
        mended = malloc(len + 1u); /* its end is where the sanitizer looks */
        require(mended != NULL);
        memcpy(mended, at + HEAD, len);
        if (at[0] & 64 && len >= 8) { /* no mutation finds a manifest's checksum */
            uint64_t crc = cairn_crc64(0, mended, len - 8);

            for (int i = 0; i < 8; i++)
                mended[len - 8 + (uint32_t)i] = (uint8_t)(crc >> 8 * i);
        }
        send(fetcher, at, mended, len, target);
        free(mended);
        at += HEAD + len;
    }
    require(readies <= 1);
    fetcher_end(fetcher);
    free(target);
    return 0;
}
