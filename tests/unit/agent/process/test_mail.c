/*
 * tests/unit/agent/process/test_mail.c - messages between agents: queues and their bounds, borrowed
 * and owned payloads, what is malformed, and that every letter is freed (the address sanitizer's
 * build sees those that are not).
 *
 * Agents here are no more than their loop, memory and mail, two in one process, over real loopback
 * sockets.
 */
#include "agent/process/agent_state.h"
#include "agent/process/handlers.h"
#include "agent/process/memory.h"
#include "base/crc.h"
#include "base/log.h"
#include "base/wire.h"
#include "tests/support/cmocka.h"
#include "tests/support/loopback.h"
#include "transport/transport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NODES = 2, TIMEOUT_MS = 60000, HOSTED = 2 };

static struct cairn_agent *agents[NODES];
static struct cairn_config_node nodes[NODES];
static char log_text[1 << 16];
static size_t log_len;

static void
on_log(void *context, enum cairn_log_level level, const char *line)
{
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
                                         .claim_timeout_ns = CAIRN_NS_PER_S,
                                         .rebuild_timeout_ns = CAIRN_NS_PER_S};
    struct cairn_bytes none = {0};
    uint32_t dropped;

    assert_int_equal(
        cairn_core_create(&options, agent_now_ns(agent), none, NULL, &dropped, &agent->core),
        CAIRN_OK);
}

/* What services got; the core's actions are not carried out, so only tests send. */
static uint32_t taken[NODES];

static void
take_message(struct cairn_agent *agent, const struct cairn_service_message *message,
             const uint8_t *payload, size_t payload_len)
{
    assert_int_equal(message->kind, CAIRN_SERVICE_FETCHED);
    assert_int_equal(message->request, 99);
    assert_int_equal(payload_len, (size_t)message->block_count * CAIRN_BLOCK_BYTES);
    taken[agent->config.node]++;
}

static void
carry_nothing(struct cairn_agent *agent, const struct arrival *arrival,
              const struct cairn_actions *actions)
{
    (void)agent, (void)arrival, (void)actions;
}

static void
settle_nothing(struct cairn_agent *agent)
{
}

static const struct agent_handlers handlers = {
    .carry_out = carry_nothing, .settle = settle_nothing, .message = take_message};

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
    agent->config.parity = 1;
    agent->clock = cairn_clock_system();
    agent->handlers = &handlers;
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
    mail_close(agent);
    cairn_core_destroy(agent->core);
    cairn_memory_close(agent->memory);
    cairn_loop_destroy(agent->loop);
    free(agent);
    agents[node] = NULL;
}

static int
open_both(void **state)
{
    memset(taken, 0, sizeof taken);
    for (uint32_t i = 0; i < NODES; i++)
        loopback_address(nodes[i].address);
    for (uint32_t i = 0; i < NODES; i++)
        agents[i] = open_agent(i);
    return 0;
}

static int
close_both(void **state)
{
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

static void
turn_once(void)
{
    for (uint32_t i = 0; i < NODES; i++)
        if (agents[i])
            assert_int_equal(cairn_loop_turn(agents[i]->loop, CAIRN_NS_PER_MS), CAIRN_OK);
}

/* Turns both loops until that many messages have arrived at node 1's services. */
static void
turn_until(uint32_t messages)
{
    uint64_t end_ns = agent_now_ns(agents[0]) + TIMEOUT_MS * CAIRN_NS_PER_MS;

    while (taken[1] < messages) {
        turn_once();
        if (agent_now_ns(agents[0]) > end_ns)
            fail_msg("%u of %u messages arrived", taken[1], messages);
    }
}

/* Turns both loops until that many sessions have begun, and both sides know of the last one. */
static void
turn_until_sessions(uint64_t count)
{
    uint64_t end_ns = agent_now_ns(agents[0]) + TIMEOUT_MS * CAIRN_NS_PER_MS;

    while (stats_of(0).sessions < count || stats_of(1).sessions < count ||
           !agents[0]->mail.boxes[1].up || !agents[1]->mail.boxes[0].up) {
        turn_once();
        assert_true(agent_now_ns(agents[0]) < end_ns);
    }
}

static void
turn_some(void)
{
    for (int turn = 0; turn < 100; turn++)
        turn_once();
}

/* An answer to a fetch. */
static struct cairn_service_message
plain(void)
{
    return (struct cairn_service_message){
        .kind = CAIRN_SERVICE_FETCHED, .from = 0, .to = 1, .request = 99};
}

static void
send_plain(void)
{
    struct cairn_service_message message = plain();

    mail_send_service(agents[0], &message, NULL, 0, UINT32_MAX);
}

static void
send_blocks(uint32_t count)
{
    struct cairn_service_message message = plain();

    message.block_count = count;
    mail_send_service(agents[0], &message, cairn_memory_data(agents[0]->memory, HOSTED, 0, count),
                      (size_t)count * CAIRN_BLOCK_BYTES, HOSTED);
}

/* A message of the core that nobody waits for. */
static void
send_core(uint32_t from, enum cairn_message_kind kind)
{
    struct cairn_message message = {.kind = kind, .from = from, .to = 1, .epoch = 1};

    mail_send(agents[0], &message, NULL, 0, UINT32_MAX, NULL);
}

static void
connect_both(void)
{
    mail_connect(agents[0], 1);
    turn_until_sessions(1);
}

static void
test_services_wait_for_the_first_session_and_leave_room(void **state)
{
    uint32_t queued;

    for (int i = 0; i < 3 * MAIL_QUEUED_MAX; i++) /* the connection is not there yet */
        send_plain();
    queued = agents[0]->mail.boxes[1].queued;
    assert_int_equal(queued, MAIL_QUEUED_MAX / 2);
    turn_until(queued);
    assert_int_equal(agents[0]->mail.boxes[1].queued, 0);
    turn_some();
    assert_null(agents[0]->mail.flying);
    assert_int_equal(taken[1], queued);
    assert_int_equal(stats_of(0).sessions, 1);
}

static void
test_the_core_sends_in_sessions_alone(void **state)
{
    send_core(0, CAIRN_MSG_WRITTEN);
    assert_int_equal(agents[0]->mail.boxes[1].queued, 0);
    connect_both();
    send_core(0, CAIRN_MSG_WRITTEN);
    turn_some();
    assert_int_equal(stats_of(1).received_messages, 2); /* after the options */
    assert_int_equal(agents[1]->mail.dropped, 0);
}

/* Nothing is dropped within a session: the session ends, and both sides learn it. */
static void
test_a_full_queue_ends_the_session(void **state)
{
    struct cairn_message message = {.kind = CAIRN_MSG_WRITE, .from = 0, .to = 1, .epoch = 1};
    uint8_t crcs[8] = {0};

    connect_both();
    message.as.write.count = 1;
    message.bytes = crcs;
    message.bytes_len = sizeof crcs;
    for (int i = 0; i < 2 * MAIL_QUEUED_MAX; i++)
        mail_send(agents[0], &message, cairn_memory_data(agents[0]->memory, HOSTED, 0, 1),
                  CAIRN_BLOCK_BYTES, HOSTED, NULL);
    assert_true(agents[0]->mail.boxes[1].queued <= MAIL_QUEUED_MAX);
    turn_until_sessions(2);
    assert_int_equal(agents[0]->mail.boxes[1].queued, 0);
    assert_null(agents[0]->mail.boxes[1].bulk_head);
    cairn_memory_free(agents[0]->memory, HOSTED);
    turn_some();
    assert_null(cairn_memory_data(agents[0]->memory, HOSTED, 0, 1)); /* nobody holds it */
    assert_non_null(strstr(log_text, "takes messages too slowly"));
}

static void
test_control_does_not_wait_for_bulk(void **state)
{
    send_plain();
    turn_until(1);
    for (int i = 0; i < 100; i++)
        send_blocks(16);
    assert_non_null(agents[0]->mail.boxes[1].bulk_head); /* it waits for the peer's buffers */
    send_plain();
    assert_null(agents[0]->mail.boxes[1].control_head); /* and this does not */
    turn_until(102);
    assert_int_equal(stats_of(1).received_payload_bytes, 100 * 16 * CAIRN_BLOCK_BYTES);
}

static void
test_hosted_memory_outlives_its_letters(void **state)
{
    send_plain();
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
send_long(uint32_t to)
{
    static const uint8_t bytes[60000]; /* longer than a body: an owned payload */
    struct cairn_service_message message = plain();

    message.to = to;
    message.bytes = bytes;
    message.bytes_len = sizeof bytes;
    mail_send_service(agents[0], &message, NULL, 0, UINT32_MAX);
}

static void
test_letters_under_way_are_freed_at_close(void **state)
{
    send_plain();
    turn_until(1);
    turn_some(); /* buffers for payloads are granted */
    for (int i = 0; i < 100; i++)
        send_long(1);
    send_blocks(3);
    send_long(0);
    assert_non_null(agents[0]->mail.flying);
    assert_non_null(agents[0]->mail.self_head);
    assert_true(agents[0]->mail.boxes[1].owned_bytes >= 80 * UINT64_C(60000));
    close_agent(0);
}

static void
test_long_messages_arrive_and_a_dead_peer_frees_them(void **state)
{
    send_long(1);
    turn_until(1);
    assert_true(stats_of(1).received_payload_bytes >= 60000);
    close_agent(1);
    for (uint64_t end_ns = agent_now_ns(agents[0]) + TIMEOUT_MS * CAIRN_NS_PER_MS;
         agents[0]->mail.boxes[1].up;) {
        turn_once();
        send_long(1);
        assert_true(agents[0]->mail.boxes[1].owned_bytes <= MAIL_OWNED_BYTES_MAX);
        assert_true(agent_now_ns(agents[0]) < end_ns);
    }
    turn_some();
    assert_int_equal(agents[0]->mail.boxes[1].owned_bytes, 0);
    assert_null(agents[0]->mail.flying);
}

/* Agents that set an option differently which must agree have no session, and both say which. */
static void
test_options_that_differ_are_refused(void **state)
{
    memset(log_text, 0, sizeof log_text);
    log_len = 0;
    agents[1]->config.parity = 5;
    mail_connect(agents[0], 1);
    for (uint64_t end_ns = agent_now_ns(agents[0]) + TIMEOUT_MS * CAIRN_NS_PER_MS;
         !agents[0]->mail.boxes[1].refused || !agents[1]->mail.boxes[0].refused; turn_once())
        assert_true(agent_now_ns(agents[0]) < end_ns);
    assert_non_null(strstr(log_text, "parity: 5 on node 1, 1 on node 0"));
    assert_non_null(strstr(log_text, "parity: 1 on node 0, 5 on node 1"));
    send_plain();
    send_core(0, CAIRN_MSG_WRITTEN);
    turn_some();
    assert_int_equal(taken[1], 0);
    assert_int_equal(agents[1]->mail.dropped, 0);
    assert_false(agents[0]->mail.boxes[1].up);

    agents[1]->config.parity = 1; /* mended, and started again */
    agents[1]->config.dead_after_ms = 7;
    cairn_transport_disconnect(agents[1]->transport, 0);
    turn_until_sessions(2);
    assert_non_null(strstr(log_text, "dead_after_ms: 7 on node 1, 0 on node 0"));
}

static void
test_what_is_no_message_is_dropped(void **state)
{
    struct cairn_service_message service = plain();
    char *first;

    connect_both();
    memset(log_text, 0, sizeof log_text);
    log_len = 0;
    send_core(1, CAIRN_MSG_WRITTEN); /* says that it comes from somebody else */
    send_core(0, (enum cairn_message_kind)77);
    service.from = 1;
    mail_send_service(agents[0], &service, NULL, 0, UINT32_MAX);
    send_plain();
    turn_until(1);
    assert_true(agents[1]->mail.dropped >= 2); /* a kind that does not exist may not even pack */
    first = strstr(log_text, "malformed or not for us");
    assert_non_null(first);
    assert_null(strstr(first + 1, "malformed or not for us")); /* once */
}

static void
test_a_seal_without_room_is_kept_out(void **state)
{
    struct cairn_message message = {.kind = CAIRN_MSG_SEAL, .from = 0, .to = 1, .epoch = 1};

    connect_both();
    message.as.seal.total = agents[1]->mail.seal_bytes_max + 1;
    memset(log_text, 0, sizeof log_text);
    log_len = 0;
    mail_send(agents[0], &message, NULL, 0, UINT32_MAX, NULL);
    mail_send(agents[0], &message, NULL, 0, UINT32_MAX, NULL);
    send_plain();
    turn_until(1);
    assert_non_null(strstr(log_text, "give all nodes the same state_bytes"));
    /* said once */
    assert_null(strstr(strstr(log_text, "same state_bytes") + 1, "same state_bytes"));
}

static void
test_payload_checksums(void **state)
{
    static uint8_t payload[2 * CAIRN_BLOCK_BYTES];
    uint8_t crcs[16];
    struct cairn_message message = {
        .kind = CAIRN_MSG_WRITE, .as.write = {.count = 2}, .bytes = crcs, .bytes_len = sizeof crcs};
    struct cairn_writer writer;

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
    message.as.write.count = 1;
    assert_false(mail_payload_ok(&message, payload, CAIRN_BLOCK_BYTES));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_payload_checksums),
        cmocka_unit_test_setup_teardown(test_services_wait_for_the_first_session_and_leave_room,
                                        open_both, close_both),
        cmocka_unit_test_setup_teardown(test_the_core_sends_in_sessions_alone, open_both,
                                        close_both),
        cmocka_unit_test_setup_teardown(test_a_full_queue_ends_the_session, open_both, close_both),
        cmocka_unit_test_setup_teardown(test_control_does_not_wait_for_bulk, open_both, close_both),
        cmocka_unit_test_setup_teardown(test_hosted_memory_outlives_its_letters, open_both,
                                        close_both),
        cmocka_unit_test_setup_teardown(test_letters_under_way_are_freed_at_close, open_both,
                                        close_both),
        cmocka_unit_test_setup_teardown(test_long_messages_arrive_and_a_dead_peer_frees_them,
                                        open_both, close_both),
        cmocka_unit_test_setup_teardown(test_options_that_differ_are_refused, open_both,
                                        close_both),
        cmocka_unit_test_setup_teardown(test_what_is_no_message_is_dropped, open_both, close_both),
        cmocka_unit_test_setup_teardown(test_a_seal_without_room_is_kept_out, open_both,
                                        close_both),
    };

    cairn_log_setup(CAIRN_LOG_INFO, on_log, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
