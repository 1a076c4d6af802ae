/*
 * tests/unit/agent/process/test_mail.c - messages between agents: queues and their bounds, borrowed
 * and owned payloads, what is malformed, and that every letter is freed (the address sanitizer's
 * build sees those that are not).
 *
 * Agents here are no more than their loop, memory and mail, two in one process, over real loopback
 * sockets.
 */
#include "agent/dispatch.h"
#include "agent/process/agent_state.h"
#include "agent/process/memory.h"
#include "agent/service/fetch.h"
#include "base/crc.h"
#include "base/log.h"
#include "base/wire.h"
#include "tests/support/loopback.h"
#include "transport/transport.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { NODES = 2, TIMEOUT_MS = 60000, HOSTED = 2 };

static struct cairn_agent *agents[NODES];
static struct cairn_config_node nodes[NODES];
static char log_text[1 << 16];
static size_t log_len;

static void
on_log(void *context, enum cairn_log_level level, const char *line)
{
    (void)context;
    (void)level;
    log_len += (size_t)snprintf(log_text + log_len, sizeof log_text - log_len, "%s\n", line);
    if (log_len > sizeof log_text - 4096)
        log_len = 0;
}

static void
open_core(struct cairn_agent *agent)
{
    struct cairn_core_options options = {.self = agent->config.node,
                                         .agent_count = NODES,
                                         .parity = 1,
                                         .group_size = NODES,
                                         .slots = 2,
                                         .slot_blocks = 4,
                                         .parity_blocks = 4,
                                         .incarnation = agent->incarnation,
                                         .heartbeat_interval_ns = CAIRN_NS_PER_S,
                                         .dead_after_ns = 10 * CAIRN_NS_PER_S,
                                         .resend_after_ns = CAIRN_NS_PER_S,
                                         .claim_timeout_ns = CAIRN_NS_PER_S,
                                         .rebuild_timeout_ns = CAIRN_NS_PER_S};
    struct cairn_bytes none = {0};
    uint32_t dropped;

    assert_int_equal(
        cairn_core_create(&options, agent_now_ns(agent), none, NULL, &dropped, &agent->core),
        CAIRN_OK);
}

static struct cairn_agent *
open_agent(uint32_t node)
{
    struct cairn_agent *agent = calloc(1, sizeof *agent);
    struct cairn_memory_options options = {.slots = 2,
                                           .parts = 4,
                                           .slot_blocks = 4,
                                           .parity_blocks = 4,
                                           .record_bytes = 4096,
                                           .data_count = 1,
                                           .parity_count = 1};
    struct cairn_memory_reserved reserved;
    char report[1024];
    bool adopted;

    assert_non_null(agent);
    assert_int_equal(cairn_config_default(&agent->config), CAIRN_OK);
    cairn_config_fini(&agent->config);
    snprintf(agent->config.provider, sizeof agent->config.provider, "tcp");
    agent->config.nodes = nodes;
    agent->config.node_count = NODES;
    agent->config.node = node;
    agent->config.slots = 2;
    agent->clock = cairn_clock_system();
    agent->handlers = &cairn_agent_handlers;
    agent->incarnation = cairn_clock_wall_ns(&agent->clock) + node;
    agent->job_id = 7;
    agent->mail.seal_bytes_max = 1 << 20;
    agent->socket.listen_fd = agent->socket.lock_fd = -1;
    assert_int_equal(cairn_loop_create(NULL, &agent->loop), CAIRN_OK);
    assert_int_equal(cairn_memory_open(&options, &agent->memory, &adopted, report, sizeof report),
                     CAIRN_OK);
    assert_int_equal(cairn_memory_reserve(agent->memory, 16, 0, &reserved), CAIRN_OK);
    assert_int_equal(cairn_memory_host(agent->memory, HOSTED, &reserved), CAIRN_OK);
    open_core(agent);
    assert_int_equal(fetch_open(agent), CAIRN_OK);
    assert_int_equal(mail_open(agent), CAIRN_OK);
    return agent;
}

static void
close_agent(uint32_t node)
{
    struct cairn_agent *agent = agents[node];

    if (!agent)
        return;
    agent->stopping = true;
    fetch_close(agent);
    mail_close(agent);
    assert_int_equal(agent->mail.owned_bytes, 0);
    cairn_core_destroy(agent->core);
    cairn_memory_close(agent->memory);
    cairn_loop_destroy(agent->loop);
    free(agent);
    agents[node] = NULL;
}

static int
open_both(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < NODES; i++)
        loopback_address(nodes[i].address);
    for (uint32_t i = 0; i < NODES; i++)
        agents[i] = open_agent(i);
    return 0;
}

static int
close_both(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < NODES; i++)
        close_agent(i);
    return 0;
}

static struct cairn_transport_stats
stats_of(uint32_t node)
{
    struct cairn_transport_stats stats;

    cairn_transport_stats_read(agents[node]->transport, &stats);
    return stats;
}

/* Turns both loops until node 1 has received that many messages. */
static void
turn_until(uint64_t messages)
{
    uint64_t end_ns = agent_now_ns(agents[0]) + TIMEOUT_MS * CAIRN_NS_PER_MS;

    while (stats_of(1).received_messages < messages) {
        for (uint32_t i = 0; i < NODES; i++)
            assert_int_equal(cairn_loop_turn(agents[i]->loop, CAIRN_NS_PER_MS), CAIRN_OK);
        if (agent_now_ns(agents[0]) > end_ns)
            fail_msg("%u of %u messages arrived", (unsigned)stats_of(1).received_messages,
                     (unsigned)messages);
    }
}

static void
turn_some(void)
{
    for (int turn = 0; turn < 100; turn++)
        for (uint32_t i = 0; i < NODES; i++)
            assert_int_equal(cairn_loop_turn(agents[i]->loop, CAIRN_NS_PER_MS), CAIRN_OK);
}

/* An answer to a fetch that nobody asked for: it changes nothing where it arrives. */
static struct cairn_message
plain(void)
{
    return (struct cairn_message){.type = CAIRN_MSG_FETCHED, .from = 0, .to = 1, .request = 99};
}

static void
send_blocks(uint32_t count)
{
    struct cairn_message message = plain();

    message.block_count = count;
    mail_send(agents[0], &message, cairn_memory_data(agents[0]->memory, HOSTED, 0, count),
              (size_t)count * CAIRN_BLOCK_BYTES, HOSTED, NULL);
}

static void
test_queues_are_bounded_and_drain(void **state)
{
    struct cairn_message message = plain();
    uint32_t queued;

    (void)state;
    for (int i = 0; i < 3 * MAIL_QUEUED_MAX; i++) /* the connection is not there yet */
        mail_send(agents[0], &message, NULL, 0, UINT32_MAX, NULL);
    queued = agents[0]->mail.boxes[1].queued;
    assert_int_equal(queued, MAIL_QUEUED_MAX);
    turn_until(queued);
    assert_int_equal(agents[0]->mail.boxes[1].queued, 0);
    turn_some();
    assert_null(agents[0]->mail.flying);
    assert_int_equal(stats_of(1).received_messages, queued);
}

static void
test_control_does_not_wait_for_bulk(void **state)
{
    struct cairn_message message = plain();

    (void)state;
    mail_send(agents[0], &message, NULL, 0, UINT32_MAX, NULL);
    turn_until(1);
    for (int i = 0; i < 100; i++)
        send_blocks(16);
    assert_non_null(agents[0]->mail.boxes[1].bulk_head); /* it waits for the peer's buffers */
    mail_send(agents[0], &message, NULL, 0, UINT32_MAX, NULL);
    assert_null(agents[0]->mail.boxes[1].control_head); /* and this does not */
    turn_until(102);
    assert_int_equal(stats_of(1).received_payload_bytes, 100 * 16 * CAIRN_BLOCK_BYTES);
}

static void
test_hosted_memory_outlives_its_letters(void **state)
{
    struct cairn_message message = plain();

    (void)state;
    mail_send(agents[0], &message, NULL, 0, UINT32_MAX, NULL);
    turn_until(1);
    for (int i = 0; i < 50; i++)
        send_blocks(16);
    cairn_memory_free(agents[0]->memory, HOSTED);
    assert_non_null(cairn_memory_data(agents[0]->memory, HOSTED, 0, 16));
    turn_until(51);
    turn_some();
    assert_null(cairn_memory_data(agents[0]->memory, HOSTED, 0, 16));
}

static void
test_letters_under_way_are_freed_at_close(void **state)
{
    struct cairn_message message = plain();
    uint8_t bytes[60000] = {0};

    (void)state;
    mail_send(agents[0], &message, NULL, 0, UINT32_MAX, NULL);
    turn_until(1);
    turn_some(); /* buffers for payloads are granted */
    message.bytes = bytes;
    message.bytes_len = sizeof bytes; /* longer than a body: an owned payload */
    for (int i = 0; i < 100; i++)
        mail_send(agents[0], &message, NULL, 0, UINT32_MAX, NULL);
    send_blocks(3);
    message.to = 0;
    mail_send(agents[0], &message, NULL, 0, UINT32_MAX, NULL); /* to itself */
    assert_non_null(agents[0]->mail.flying);
    assert_non_null(agents[0]->mail.self_head);
    assert_true(agents[0]->mail.owned_bytes >= 100 * sizeof bytes);
    close_agent(0);
}

static void
test_long_messages_arrive_and_a_dead_peer_frees_them(void **state)
{
    struct cairn_message message = plain();
    uint8_t bytes[60000] = {0};

    (void)state;
    message.bytes = bytes;
    message.bytes_len = sizeof bytes;
    mail_send(agents[0], &message, NULL, 0, UINT32_MAX, NULL);
    turn_until(1);
    assert_true(stats_of(1).received_payload_bytes >= sizeof bytes);
    close_agent(1);
    for (uint64_t end_ns = agent_now_ns(agents[0]) + TIMEOUT_MS * CAIRN_NS_PER_MS;;) {
        struct cairn_transport_peer peer;

        assert_int_equal(cairn_loop_turn(agents[0]->loop, CAIRN_NS_PER_MS), CAIRN_OK);
        mail_send(agents[0], &message, NULL, 0, UINT32_MAX, NULL);
        cairn_transport_peer_read(agents[0]->transport, 1, &peer);
        if (peer.state == CAIRN_PEER_DOWN)
            break;
        assert_true(agent_now_ns(agents[0]) < end_ns);
        assert_true(agents[0]->mail.owned_bytes <= MAIL_OWNED_BYTES_MAX + sizeof bytes + 200);
    }
    for (int turn = 0; turn < 50; turn++)
        assert_int_equal(cairn_loop_turn(agents[0]->loop, CAIRN_NS_PER_MS), CAIRN_OK);
    assert_int_equal(agents[0]->mail.owned_bytes, 0);
    assert_null(agents[0]->mail.flying);
}

static void
test_what_is_no_message_is_dropped(void **state)
{
    struct cairn_message message = plain();

    (void)state;
    mail_send(agents[0], &message, NULL, 0, UINT32_MAX, NULL);
    turn_until(1);
    log_len = 0;
    message.from = 1; /* says that it comes from somebody else */
    mail_send(agents[0], &message, NULL, 0, UINT32_MAX, NULL);
    turn_until(2);
    assert_non_null(strstr(log_text, "malformed or not for us"));
    log_len = 0;
    memset(log_text, 0, sizeof log_text);
    message = plain();
    message.type = (enum cairn_message_type)77;
    mail_send(agents[0], &message, NULL, 0, UINT32_MAX, NULL);
    turn_until(3);
    assert_non_null(strstr(log_text, "malformed or not for us"));
}

static void
test_a_seal_without_room_is_kept_out(void **state)
{
    struct cairn_message message = plain();

    (void)state;
    message.type = CAIRN_MSG_SEAL;
    message.generation = (struct cairn_generation){.epoch = 1, .step = 1};
    message.total = agents[1]->mail.seal_bytes_max + 1;
    memset(log_text, 0, sizeof log_text);
    log_len = 0;
    mail_send(agents[0], &message, NULL, 0, UINT32_MAX, NULL);
    mail_send(agents[0], &message, NULL, 0, UINT32_MAX, NULL);
    turn_until(2);
    assert_non_null(strstr(log_text, "give all nodes the same state_bytes"));
    /* said once */
    assert_null(strstr(strstr(log_text, "same state_bytes") + 1, "same state_bytes"));
}

static void
test_payload_checksums(void **state)
{
    static uint8_t payload[2 * CAIRN_BLOCK_BYTES];
    uint8_t crcs[16];
    struct cairn_message message = {.block_count = 2, .bytes = crcs, .bytes_len = sizeof crcs};
    struct cairn_writer writer;

    (void)state;
    memset(payload, 9, sizeof payload);
    cairn_writer_init(&writer, crcs, sizeof crcs);
    for (int i = 0; i < 2; i++)
        cairn_write_u64(&writer, cairn_crc64(0, payload, CAIRN_BLOCK_BYTES));
    assert_true(mail_payload_ok(&message, payload, sizeof payload));
    for (size_t at = 0; at < sizeof payload; at += 8191) {
        payload[at] ^= 4;
        assert_false(mail_payload_ok(&message, payload, sizeof payload));
        payload[at] ^= 4;
    }
    assert_false(mail_payload_ok(&message, payload, sizeof payload - 1));
    assert_false(mail_payload_ok(&message, payload, CAIRN_BLOCK_BYTES));
    message.bytes_len = 8;
    assert_false(mail_payload_ok(&message, payload, sizeof payload));
    message.bytes_len = 16;
    message.block_count = 1;
    assert_false(mail_payload_ok(&message, payload, CAIRN_BLOCK_BYTES));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_payload_checksums),
        cmocka_unit_test_setup_teardown(test_queues_are_bounded_and_drain, open_both, close_both),
        cmocka_unit_test_setup_teardown(test_control_does_not_wait_for_bulk, open_both, close_both),
        cmocka_unit_test_setup_teardown(test_hosted_memory_outlives_its_letters, open_both,
                                        close_both),
        cmocka_unit_test_setup_teardown(test_letters_under_way_are_freed_at_close, open_both,
                                        close_both),
        cmocka_unit_test_setup_teardown(test_long_messages_arrive_and_a_dead_peer_frees_them,
                                        open_both, close_both),
        cmocka_unit_test_setup_teardown(test_what_is_no_message_is_dropped, open_both, close_both),
        cmocka_unit_test_setup_teardown(test_a_seal_without_room_is_kept_out, open_both,
                                        close_both),
    };

    cairn_log_setup(CAIRN_LOG_INFO, on_log, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
