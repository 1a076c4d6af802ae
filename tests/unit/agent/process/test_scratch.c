/* tests/unit/agent/process/test_scratch.c - decoding space: nobody writes over what is still being
 * decoded or sent. */
#include "agent/process/agent_state.h"
#include "agent/process/carry_jobs.h"
#include "agent/process/handlers.h"
#include "agent/process/memory.h"
#include "base/worker.h"
#include "transport/transport_loop.h"
#include "tests/support/cmocka.h"

#include <stdlib.h>
#include <string.h>

enum { SHARD_BYTES = CAIRN_MESSAGE_BLOCKS_MAX * CAIRN_BLOCK_BYTES };

static struct cairn_transport_hub *hub;

static void
ignore_message(void *context, uint32_t from_node, const void *body, size_t body_len,
               const void *payload, size_t payload_len, uint64_t buffer)
{
    (void)context, (void)from_node, (void)body, (void)body_len, (void)payload, (void)payload_len;
}

static void
ignore_sent(void *context, uint32_t node, uint64_t ticket, cairn_err err)
{
    (void)context, (void)node, (void)ticket, (void)err;
}

static void
ignore_peer(void *context, uint32_t node, bool up, uint64_t incarnation)
{
    (void)context, (void)node, (void)up, (void)incarnation;
}

static int
setup(void **state)
{
    static const char *const addresses[2] = {"127.0.0.1:1", "127.0.0.1:2"};
    struct cairn_agent *agent = calloc(1, sizeof *agent);
    struct cairn_transport_options options = {.provider = "loop",
                                              .bind_address = addresses[0],
                                              .node_count = 2,
                                              .addresses = addresses,
                                              .job_id = 1,
                                              .incarnation = 1,
                                              .buffer_count = 4,
                                              .window = 2,
                                              .on_message = ignore_message,
                                              .on_sent = ignore_sent,
                                              .on_peer = ignore_peer};

    *state = agent;
    if (!agent || cairn_transport_hub_create(2, &hub) != CAIRN_OK)
        return -1;
    options.hub = hub;
    agent->mail.arriving_part = UINT32_MAX;
    return cairn_transport_open(&options, &agent->transport) == CAIRN_OK ? 0 : -1;
}

static int
teardown(void **state)
{
    struct cairn_agent *agent = *state;

    scratch_close(agent);
    cairn_transport_close(agent->transport);
    cairn_transport_hub_destroy(hub);
    free(agent);
    return 0;
}

static void
a_payload_that_arrives_is_kept_where_it_is(void **state)
{
    static uint8_t payload[16];
    struct cairn_agent *agent = *state;
    struct kept_payload kept[CAIRN_SHARDS_MAX];

    assert_false(scratch_keep(agent, 0, 1, payload)); /* it lies where it does not stay */
    assert_int_equal(agent->scratch.items[0].staged, 0);
    agent->mail.arriving_from = 1;
    agent->mail.arriving_buffer = 42;
    assert_true(scratch_keep(agent, 0, 1, payload));
    assert_int_equal(agent->mail.arriving_buffer, 0); /* who delivers it must not give it back */
    assert_int_equal(agent->scratch.items[0].staged, 2);
    assert_ptr_equal(scratch_shard(agent, 0, 1), payload);
    assert_ptr_equal(scratch_stage(agent, 0, 3), scratch_shard(agent, 0, 3));
    assert_int_equal(scratch_take_kept(agent, 0, kept), 1);
    assert_int_equal(kept[0].buffer, 42);
    assert_int_equal(agent->scratch.kept_buffers, 1);
    scratch_release(agent, 0); /* it is a worker's now */
    assert_int_equal(agent->scratch.kept_buffers, 1);
    scratch_give_back(agent, kept, 1);
    assert_int_equal(agent->scratch.kept_buffers, 0);
}

/* What lies in this node's own memory is decoded from there, and that memory stays until then. */
static void
own_memory_is_held_until_it_is_decoded(void **state)
{
    struct cairn_agent *agent = *state;
    struct cairn_memory_options options = {.slots = 2,
                                           .parts = 3,
                                           .slot_blocks = 1,
                                           .parity_blocks = 1,
                                           .record_bytes = 4096,
                                           .data_count = 1,
                                           .parity_count = 1};
    struct cairn_memory_reserved reserved;
    struct kept_payload kept[CAIRN_SHARDS_MAX];
    char report[1024];
    bool adopted;
    uint8_t *block;

    assert_int_equal(cairn_memory_open(&options, &agent->memory, &adopted, report, sizeof report),
                     CAIRN_OK);
    assert_int_equal(cairn_memory_reserve(agent->memory, 2, 0, &reserved), CAIRN_OK);
    assert_int_equal(cairn_memory_host(agent->memory, 2, &reserved), CAIRN_OK);
    block = cairn_memory_data(agent->memory, 2, 0, 1);
    agent->mail.arriving_part = 2;
    /* they take no buffers of the transport */
    for (uint32_t item = 0; item < SCRATCH_ITEMS_MAX; item++)
        for (uint32_t shard = 0; shard < MAIL_BUFFERS; shard++)
            assert_true(scratch_keep(agent, item, shard, block));
    assert_int_equal(agent->scratch.kept_buffers, 0);
    for (uint32_t item = 1; item < SCRATCH_ITEMS_MAX; item++)
        scratch_release(agent, item);
    agent->mail.arriving_part = UINT32_MAX;
    assert_ptr_equal(scratch_shard(agent, 0, 1), block);
    assert_int_equal(scratch_take_kept(agent, 0, kept), MAIL_BUFFERS);
    scratch_release(agent, 0); /* it is a worker's now */
    cairn_memory_free(agent->memory, 2);
    scratch_give_back(agent, kept, MAIL_BUFFERS - 1);
    assert_ptr_equal(cairn_memory_data(agent->memory, 2, 0, 1), block);
    scratch_give_back(agent, kept + MAIL_BUFFERS - 1, 1);
    assert_null(cairn_memory_data(agent->memory, 2, 0, 1));
    cairn_memory_close(agent->memory);
}

static void
half_of_the_buffers_are_kept_at_most(void **state)
{
    static uint8_t payload[16];
    struct cairn_agent *agent = *state;
    uint32_t kept = 0;

    agent->mail.arriving_from = 1;
    for (uint32_t i = 0; i < MAIL_BUFFERS; i++) {
        agent->mail.arriving_buffer = 100 + i;
        kept += scratch_keep(agent, i / 16, i % 16, payload);
    }
    assert_int_equal(kept, MAIL_BUFFERS / 2);
    assert_int_equal(agent->mail.arriving_buffer,
                     100 + MAIL_BUFFERS - 1); /* still to be given back */
    scratch_release(agent, 0);
    scratch_release(agent, 1);
    assert_int_equal(agent->scratch.kept_buffers, 0);
    assert_true(scratch_keep(agent, 0, 0, payload));
    scratch_release(agent, 0);
}

static void
shards_of_items_do_not_overlap(void **state)
{
    struct cairn_agent *agent = *state;
    uint8_t *shards[SCRATCH_ITEMS_MAX][4];

    for (uint32_t i = 0; i < SCRATCH_ITEMS_MAX; i++)
        for (uint32_t s = 0; s < 4; s++) {
            shards[i][s] = scratch_stage(agent, i, s == 3 ? CAIRN_SHARDS_MAX - 1 : s);
            assert_non_null(shards[i][s]);
            memset(shards[i][s], (int)(16 * i + s), SHARD_BYTES);
        }
    for (uint32_t i = 0; i < SCRATCH_ITEMS_MAX; i++) {
        assert_int_equal(agent->scratch.items[i].staged,
                         UINT64_C(7) | UINT64_C(1) << (CAIRN_SHARDS_MAX - 1));
        for (uint32_t s = 0; s < 4; s++) {
            assert_int_equal(shards[i][s][0], 16 * i + s);
            assert_int_equal(shards[i][s][SHARD_BYTES - 1], 16 * i + s);
        }
    }
}

static void
an_item_that_nobody_else_uses_keeps_its_space(void **state)
{
    struct cairn_agent *agent = *state;
    uint8_t *first = scratch_stage(agent, 1, 2);

    scratch_release(agent, 1);
    assert_int_equal(agent->scratch.items[1].staged, 0);
    assert_ptr_equal(scratch_stage(agent, 1, 2), first);
}

static void
a_released_item_leaves_its_space_to_letters_and_workers(void **state)
{
    struct cairn_agent *agent = *state;
    uint8_t *sent = scratch_stage(agent, 0, 5);
    struct space *space = agent->scratch.items[0].space, *other;

    memset(sent, 0xa5, SHARD_BYTES);
    space_crcs(space, 5)[CAIRN_MESSAGE_BLOCKS_MAX - 1] = 77;
    space_hold(space); /* a letter */
    space_hold(space); /* a worker */
    scratch_release(agent, 0);
    assert_ptr_not_equal(scratch_stage(agent, 0, 5), sent);
    memset(scratch_stage(agent, 0, 5), 0x5a, SHARD_BYTES);
    assert_int_equal(sent[0], 0xa5);
    assert_int_equal(sent[SHARD_BYTES - 1], 0xa5);
    assert_int_equal(space_crcs(space, 5)[CAIRN_MESSAGE_BLOCKS_MAX - 1], 77);
    space_drop(agent, space);
    assert_ptr_not_equal(scratch_stage(agent, 1, 5), sent); /* one of the two still uses it */
    space_drop(agent, space);
    other = agent->scratch.items[1].space;
    space_hold(other); /* a letter */
    scratch_release(agent, 1);
    assert_ptr_equal(scratch_stage(agent, 1, 5), sent); /* now it is used again */
    space_drop(agent, other);
}

static uint32_t answered; /* events that the core took */

static void
count_event(struct cairn_agent *agent, const struct arrival *arrival,
            const struct cairn_actions *actions)
{
    (void)agent, (void)arrival, (void)actions;
    answered++;
}

static void
settle_nothing(struct cairn_agent *agent)
{
}

static const struct agent_handlers counting_handlers = {.carry_out = count_event,
                                                        .settle = settle_nothing};

/* The repair has ended while a worker decodes: the core waits for the answer before the next one
 * uses the item. */
static void
an_item_that_was_released_is_answered_for(void **state)
{
    const struct cairn_core_options options = {.agent_count = 1,
                                               .group_size = 1,
                                               .slots = 2,
                                               .slot_blocks = 64,
                                               .every_steps = 1,
                                               .incarnation = 1,
                                               .heartbeat_interval_ns = UINT64_C(1000000000),
                                               .dead_after_ns = UINT64_C(10000000000),
                                               .repair_after_ns = UINT64_C(10000000000),
                                               .claim_timeout_ns = UINT64_C(10000000000),
                                               .rebuild_timeout_ns = UINT64_C(20000000000)};
    struct cairn_bytes none = {0}, records[CAIRN_PARTS_MAX] = {{0}};
    struct cairn_agent *agent = *state;
    struct cairn_action list[] = {{.type = CAIRN_ACTION_DECODE,
                                   .as.decode = {.item = 1,
                                                 .count = 1,
                                                 .sources = 1,
                                                 .lost = 2,
                                                 .data_shards = 1,
                                                 .parity_shards = 1}},
                                  {.type = CAIRN_ACTION_RELEASE, .as.decode = {.item = 1}}};
    struct cairn_actions actions = {.list = list, .count = 2};
    uint32_t dropped;

    agent->clock = cairn_clock_system();
    agent->handlers = &counting_handlers;
    answered = 0;
    assert_int_equal(cairn_core_create(&options, 1, none, records, &dropped, &agent->core),
                     CAIRN_OK);
    assert_int_equal(cairn_loop_create(NULL, &agent->loop), CAIRN_OK);
    assert_int_equal(cairn_workers_start(agent->loop, 1, 4, &agent->workers), CAIRN_OK);
    memset(scratch_stage(agent, 1, 0), 0x42, SHARD_BYTES);
    carry_out(agent, NULL, &actions);
    cairn_workers_stop(agent->workers); /* when its jobs are done */
    assert_int_equal(answered, 1);
    cairn_loop_destroy(agent->loop);
    cairn_core_destroy(agent->core);
    cairn_code_destroy(agent->codes.made[1][1]);
}

static void
dropping_nothing_is_allowed(void **state)
{
    space_drop(*state, NULL);
    scratch_release(*state, 1);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(shards_of_items_do_not_overlap, setup, teardown),
        cmocka_unit_test_setup_teardown(an_item_that_nobody_else_uses_keeps_its_space, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_released_item_leaves_its_space_to_letters_and_workers,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(a_payload_that_arrives_is_kept_where_it_is, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(own_memory_is_held_until_it_is_decoded, setup, teardown),
        cmocka_unit_test_setup_teardown(half_of_the_buffers_are_kept_at_most, setup, teardown),
        cmocka_unit_test_setup_teardown(an_item_that_was_released_is_answered_for, setup, teardown),
        cmocka_unit_test_setup_teardown(dropping_nothing_is_allowed, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
