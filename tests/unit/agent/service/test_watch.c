/*
 * tests/unit/agent/service/test_watch.c - who analyses, and the reports' way there, on a network
 * that loses, repeats and reorders: what an analyst gets of a stream is its beginning without gaps,
 * and everything arrives when the network is whole again.
 */
#include <stdlib.h>
#include <string.h>

#include "agent/service/watch.h"
#include "tests/support/cmocka.h"

enum { AGENTS = 5, QUEUE = 4096, MS = 1000000 };

/* A report of these tests: which stream of its agent sent it, and its number there; 0
 * announces. */
struct said {
    uint32_t agent, stream, number;
};

struct sent {
    struct cairn_service_message message;
    uint8_t bytes[CAIRN_WATCH_PART_BYTES];
};

struct net;

struct agent {
    struct net *net;
    uint32_t index;
    struct cairn_watch *watch; /* NULL: dead */
    uint32_t starts, stream, number;
    bool analyses;
    struct said got[AGENTS]; /* the last of each agent, as the analyst */
    uint32_t taken[AGENTS];
};

struct net {
    struct agent agents[AGENTS];
    struct sent *queue[QUEUE];
    uint32_t queued;
    uint64_t now_ns;
    uint32_t seed;
    uint32_t loss_percent;
};

static uint32_t
draw(struct net *net, uint32_t below)
{
    net->seed = net->seed * 1664525 + 1013904223;
    return (uint32_t)((uint64_t)net->seed * below >> 32);
}

static void
on_send(void *context, const struct cairn_service_message *message)
{
    struct agent *agent = context;
    struct net *net = agent->net;

    assert_int_equal(message->from, agent->index);
    assert_in_range(message->to, 0, AGENTS - 1);
    assert_true(message->bytes_len <= CAIRN_WATCH_PART_BYTES);
    for (uint32_t copies = net->loss_percent && draw(net, 100) < 10 ? 2 : 1; copies > 0; copies--) {
        struct sent *sent;

        if (draw(net, 100) < net->loss_percent || net->queued == QUEUE)
            continue;
        sent = malloc(sizeof *sent);
        assert_non_null(sent);
        sent->message = *message;
        if (message->bytes_len)
            memcpy(sent->bytes, message->bytes, message->bytes_len);
        sent->message.bytes = sent->bytes;
        net->queue[net->queued++] = sent;
    }
}

static void
report(struct agent *agent)
{
    struct said said = {agent->index, agent->stream, agent->number++};

    cairn_watch_report(agent->watch, &said, sizeof said);
}

static void
on_announce(void *context)
{
    struct agent *agent = context;

    agent->stream++;
    agent->number = 0;
    report(agent);
}

static void
on_begin(void *context)
{
    struct agent *agent = context;

    assert_false(agent->analyses);
    agent->analyses = true;
    memset(agent->got, 0, sizeof agent->got);
    memset(agent->taken, 0, sizeof agent->taken);
}

static void
on_end(void *context)
{
    struct agent *agent = context;

    assert_true(agent->analyses);
    agent->analyses = false;
}

static void
on_deliver(void *context, uint32_t from, const uint8_t *bytes, size_t bytes_len)
{
    struct agent *agent = context;

    assert_true(agent->analyses);
    assert_int_equal(bytes_len % sizeof(struct said), 0);
    for (size_t at = 0; at < bytes_len; at += sizeof(struct said)) {
        struct said *last = &agent->got[from], said;

        memcpy(&said, bytes + at, sizeof said);
        assert_int_equal(said.agent, from);
        if (said.number == 0)
            assert_true(said.stream > last->stream);
        else
            assert_true(said.stream == last->stream && said.number == last->number + 1);
        *last = said;
        agent->taken[from]++;
    }
}

static void
start(struct net *net, uint32_t index)
{
    struct agent *agent = &net->agents[index];
    struct cairn_watch_options options = {.self = index,
                                          .agent_count = AGENTS,
                                          .incarnation = ++agent->starts * 1000000u,
                                          .resend_after_ns = 50 * MS,
                                          .context = agent,
                                          .send = on_send,
                                          .announce = on_announce,
                                          .begin = on_begin,
                                          .end = on_end,
                                          .deliver = on_deliver};

    agent->net = net;
    agent->index = index;
    agent->analyses = false;
    assert_int_equal(cairn_watch_create(&options, &agent->watch), CAIRN_OK);
}

static void
stop(struct net *net, uint32_t index)
{
    cairn_watch_destroy(net->agents[index].watch);
    net->agents[index].watch = NULL;
}

static struct net *
make(uint32_t seed)
{
    struct net *net = calloc(1, sizeof *net);

    assert_non_null(net);
    net->seed = seed;
    net->now_ns = 1000 * MS;
    for (uint32_t i = 0; i < AGENTS; i++)
        start(net, i);
    return net;
}

static void
end(struct net *net)
{
    for (uint32_t i = 0; i < AGENTS; i++)
        stop(net, i);
    while (net->queued > 0)
        free(net->queue[--net->queued]);
    free(net);
}

/* Delivers some messages, in any order. */
static void
deliver(struct net *net, uint32_t percent)
{
    for (uint32_t count = net->queued * percent / 100; count > 0 && net->queued > 0; count--) {
        uint32_t at = net->loss_percent ? draw(net, net->queued) : 0;
        struct sent *sent = net->queue[at];
        struct agent *to = &net->agents[sent->message.to];

        net->queued--;
        memmove(&net->queue[at], &net->queue[at + 1], (net->queued - at) * sizeof *net->queue);
        if (to->watch)
            cairn_watch_message(to->watch, &sent->message, net->now_ns);
        free(sent);
    }
}

static void
turn(struct net *net, bool reports)
{
    bool eligible[AGENTS];

    net->now_ns += 10 * MS;
    for (uint32_t i = 0; i < AGENTS; i++)
        eligible[i] = net->agents[i].watch != NULL;
    for (uint32_t i = 0; i < AGENTS; i++)
        if (net->agents[i].watch) {
            cairn_watch_tick(net->agents[i].watch, eligible, net->now_ns);
            if (reports && net->agents[i].stream > 0)
                report(&net->agents[i]);
        }
    deliver(net, net->loss_percent ? 70 : 100);
}

/* All newest reports have arrived at this analyst. */
static void
all_arrived(struct net *net, uint32_t analyst)
{
    net->loss_percent = 0;
    for (uint32_t i = 0; i < 60; i++)
        turn(net, false);
    assert_true(net->agents[analyst].analyses);
    for (uint32_t i = 0; i < AGENTS; i++) {
        const struct agent *agent = &net->agents[i];
        const struct said *last = &net->agents[analyst].got[i];

        if (!agent->watch)
            continue;
        assert_int_equal(cairn_watch_look(agent->watch).analyst, analyst);
        assert_int_equal(last->stream, agent->stream);
        assert_int_equal(last->number + 1, agent->number);
    }
}

static void
test_whole_network(void **state)
{
    struct net *net = make(1);

    for (uint32_t i = 0; i < 100; i++)
        turn(net, true);
    all_arrived(net, 0);
    for (uint32_t i = 0; i < AGENTS; i++) {
        assert_int_equal(cairn_watch_look(net->agents[i].watch).streams, 1);
        assert_int_equal(cairn_watch_look(net->agents[i].watch).dropped, 0);
        assert_true(net->agents[0].taken[i] >= 100);
        assert_int_equal(net->agents[i].analyses, i == 0);
    }
    end(net);
}

static void
test_lossy(void **state)
{
    for (uint32_t seed = 1; seed <= 20; seed++) {
        struct net *net = make(seed);

        net->loss_percent = 30;
        for (uint32_t i = 0; i < 300; i++)
            turn(net, true);
        all_arrived(net, 0);
        end(net);
    }
}

/* The analyst dies, the next one takes over; it comes back with nothing, and gets all from the
 * beginning. */
static void
test_taken_over(void **state)
{
    for (uint32_t seed = 1; seed <= 20; seed++) {
        struct net *net = make(seed);

        net->loss_percent = seed % 2 ? 20 : 0;
        for (uint32_t i = 0; i < 50; i++)
            turn(net, true);
        stop(net, 0);
        for (uint32_t i = 0; i < 50; i++)
            turn(net, true);
        all_arrived(net, 1);
        assert_int_equal(net->agents[1].got[4].stream, net->agents[4].stream);
        net->loss_percent = seed % 2 ? 20 : 0;
        stop(net, 1);
        start(net, 0);
        start(net, 1);
        for (uint32_t i = 0; i < 50; i++)
            turn(net, true);
        all_arrived(net, 0);
        assert_false(net->agents[1].analyses);
        end(net);
    }
}

/* It restarts so quickly that nobody saw it gone: it does not know the streams, and asks for new
 * reports. */
static void
test_forgotten(void **state)
{
    struct net *net = make(3);

    for (uint32_t i = 0; i < 50; i++)
        turn(net, true);
    stop(net, 0);
    start(net, 0);
    for (uint32_t i = 0; i < 50; i++)
        turn(net, true);
    all_arrived(net, 0);
    assert_int_equal(cairn_watch_look(net->agents[2].watch).streams, 2);
    end(net);
}

/* The analyst has forgotten what it was told, and asks all for it. */
static void
test_asked_anew(void **state)
{
    struct net *net = make(6);

    for (uint32_t i = 0; i < 50; i++)
        turn(net, true);
    cairn_watch_ask_anew(net->agents[0].watch);
    for (uint32_t i = 0; i < 50; i++)
        turn(net, true);
    all_arrived(net, 0);
    for (uint32_t i = 0; i < AGENTS; i++)
        assert_int_equal(cairn_watch_look(net->agents[i].watch).streams, 2);
    end(net);
}

/* A network that is away for long: memory stays within its bounds, and a new stream begins
 * afterwards. */
static void
test_away(void **state)
{
    struct net *net = make(4);

    for (uint32_t i = 0; i < 20; i++)
        turn(net, true);
    net->loss_percent = 100;
    for (uint32_t i = 0; i < 400; i++)
        turn(net, true);
    assert_true(cairn_watch_look(net->agents[2].watch).dropped > 0);
    assert_true(cairn_watch_look(net->agents[2].watch).overflows > 0);
    assert_int_equal(cairn_watch_look(net->agents[0].watch).overflows, 0); /* the analyst */
    all_arrived(net, 0);
    end(net);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_network), cmocka_unit_test(test_lossy),
        cmocka_unit_test(test_taken_over),    cmocka_unit_test(test_forgotten),
        cmocka_unit_test(test_away),          cmocka_unit_test(test_asked_anew),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
