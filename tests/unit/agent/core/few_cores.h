/*
 * tests/unit/agent/core/few_cores.h - a few cores, joined by channels that keep order, without
 * memory behind them. What happens to bytes is tested in test_save.c, and everything at once in
 * tests/sim.
 */
#ifndef FEW_CORES_H
#define FEW_CORES_H

#include "agent/core/core.h"
#include "tests/support/cmocka.h"

#include <stdlib.h>
#include <string.h>

enum { AGENTS_MAX = 8, QUEUE_MAX = 4096, BLOCKS = 6 };
static const uint64_t second_ns = 1000000000;

struct letter {
    uint32_t to;
    struct cairn_message message;
    uint8_t *bytes;
};

struct node {
    struct cairn_core *core;
    uint64_t incarnation;
    uint8_t *disk;
    size_t disk_len;
    uint8_t *records[CAIRN_PARTS_MAX];
    size_t record_lens[CAIRN_PARTS_MAX];
    bool running;
    bool memory_new;
    uint64_t wants; /* agents, as a set */
    uint32_t granted_part;
    struct cairn_generation_id granted; /* last GRANT; step 0: none */
    enum cairn_skip skipped;            /* last SKIP */
    struct cairn_generation_id committed;
    cairn_err reply;
    bool replied;
};

struct job {
    uint32_t count;
    uint32_t parity;
    uint64_t now_ns;
    struct node nodes[AGENTS_MAX];
    bool spares[AGENTS_MAX];
    bool linked[AGENTS_MAX][AGENTS_MAX];
    struct letter queue[QUEUE_MAX];
    uint32_t head, tail;
    uint32_t answers_due;
};

static struct job job;

static inline void carry_out(uint32_t self, struct cairn_actions *actions);

static inline void
give(uint32_t agent, struct cairn_event *event)
{
    struct cairn_actions actions = {0};

    if (!job.nodes[agent].running)
        return;
    event->now_ns = job.now_ns;
    cairn_core_step(job.nodes[agent].core, event, &actions);
    assert_false(actions.failed);
    carry_out(agent, &actions);
    cairn_actions_fini(&actions);
}

/* R2: no member is done with what the decision that it knows has aborted. */
static inline void
check_done(uint32_t from, struct cairn_generation_id generation)
{
    struct cairn_core_view view;

    cairn_core_look(job.nodes[from].core, &view);
    assert_true(cairn_generation_id_compare(generation, view.committed) == 0 ||
                generation.run > view.run ||
                (generation.run == view.run && generation.step >= view.next_step));
}

static inline void
check_report(uint32_t from, const struct cairn_message_report *report)
{
    const struct cairn_generation_id complete[] = {report->complete0, report->complete1,
                                                   report->complete2, report->complete3};

    for (uint32_t i = 0; i < CAIRN_OWN_SLOTS_MAX; i++)
        if (complete[i].step != 0)
            check_done(from, complete[i]);
}

static inline void
post(const struct cairn_message *message)
{
    struct letter *letter = &job.queue[job.tail++ % QUEUE_MAX];

    if (message->kind == CAIRN_MSG_REPORT)
        check_report(message->from, &message->as.report);
    assert_true(job.tail - job.head < QUEUE_MAX);
    letter->to = message->to;
    letter->message = *message;
    letter->bytes = malloc(message->bytes_len + 1u);
    if (message->bytes_len)
        memcpy(letter->bytes, message->bytes, message->bytes_len);
    letter->message.bytes = letter->bytes;
}

/* The process fills in the checksums of decoded blocks. */
static inline void
post_blocks(const struct cairn_action_send *send)
{
    static const uint8_t zeros[8 * CAIRN_MESSAGE_BLOCKS_MAX];
    struct cairn_message message = send->message;

    if (send->blocks.count > 0 && send->blocks.area == CAIRN_AREA_SCRATCH) {
        message.bytes = zeros;
        message.bytes_len = 8 * send->blocks.count;
    }
    post(&message);
}

static inline void
keep(uint8_t **to, size_t *len, const uint8_t *bytes, size_t bytes_len)
{
    free(*to);
    *to = bytes_len ? malloc(bytes_len) : NULL;
    *len = bytes_len;
    if (bytes_len)
        memcpy(*to, bytes, bytes_len);
}

/* The answers of a process whose memory is always as it should be. */
static inline void
answer(uint32_t self, const struct cairn_action *action)
{
    struct cairn_event event = {.as.answer = {.part = action->as.part.part,
                                              .request = action->as.part.request,
                                              .generation = action->as.part.generation}};
    struct cairn_part_view view;
    uint64_t zeros[1024] = {0};

    if (action->type == CAIRN_ACTION_SEAL) {
        event.type = CAIRN_EVENT_SEALED;
        event.as.answer.bytes = (const uint8_t *)"manifest";
        event.as.answer.bytes_len = 8;
    } else if (action->type == CAIRN_ACTION_OPEN) {
        event.type = CAIRN_EVENT_OPENED;
    } else if (action->type == CAIRN_ACTION_VERIFY) {
        event.type = CAIRN_EVENT_VERIFIED;
    } else {
        event.type = CAIRN_EVENT_FINISHED;
        assert_true(cairn_core_look_part(job.nodes[self].core, action->as.part.part, &view));
        event.as.answer.crcs = zeros;
        event.as.answer.count =
            cairn_stripes_area_blocks(view.stripes, view.position, CAIRN_AREA_PARITY);
    }
    give(self, &event);
}

static inline void
carry_out(uint32_t self, struct cairn_actions *actions)
{
    struct node *node = &job.nodes[self];

    for (size_t i = 0; i < actions->count; i++) {
        const struct cairn_action *action = &actions->list[i];

        switch (action->type) {
        case CAIRN_ACTION_SEND:
            if (action->as.send.message.to == self || job.linked[self][action->as.send.message.to])
                post_blocks(&action->as.send);
            break;
        case CAIRN_ACTION_CONNECT:
            node->wants |= UINT64_C(1) << action->as.peer.agent;
            break;
        case CAIRN_ACTION_STORE_EPOCH:
            keep(&node->disk, &node->disk_len, action->as.store.bytes, action->as.store.bytes_len);
            node->memory_new = false;
            break;
        case CAIRN_ACTION_STORE_PART:
            keep(&node->records[action->as.store.part], &node->record_lens[action->as.store.part],
                 action->as.store.bytes, action->as.store.bytes_len);
            break;
        case CAIRN_ACTION_GRANT:
            node->granted = action->as.trainer.generation;
            node->granted_part = action->as.trainer.part;
            break;
        case CAIRN_ACTION_SKIP:
            node->skipped = action->as.trainer.reason;
            break;
        case CAIRN_ACTION_COMMITTED:
            node->committed = action->as.committed.generation;
            break;
        case CAIRN_ACTION_REPLY:
            node->replied = true;
            node->reply = action->as.reply.err;
            break;
        default:
            break;
        }
    }
    for (size_t i = 0; i < actions->count; i++)
        if (actions->list[i].type == CAIRN_ACTION_SEAL ||
            actions->list[i].type == CAIRN_ACTION_FINISH ||
            actions->list[i].type == CAIRN_ACTION_VERIFY ||
            actions->list[i].type == CAIRN_ACTION_OPEN)
            answer(self, &actions->list[i]);
        else if (actions->list[i].type == CAIRN_ACTION_DECODE)
            give(self, &(struct cairn_event){.type = CAIRN_EVENT_DECODED,
                                             .as.decoded = {actions->list[i].as.decode.item,
                                                            actions->list[i].as.decode.request}});
}

static inline void
link_agents(uint32_t a, uint32_t b)
{
    job.linked[a][b] = job.linked[b][a] = true;
    give(a, &(struct cairn_event){.type = CAIRN_EVENT_PEER_UP,
                                  .as.peer = {b, job.nodes[b].incarnation}});
    give(b, &(struct cairn_event){.type = CAIRN_EVENT_PEER_UP,
                                  .as.peer = {a, job.nodes[a].incarnation}});
}

static inline void
unlink_agents(uint32_t a, uint32_t b)
{
    if (!job.linked[a][b])
        return;
    job.linked[a][b] = job.linked[b][a] = false;
    for (uint32_t i = job.head; i != job.tail; i++) {
        struct letter *letter = &job.queue[i % QUEUE_MAX];

        if ((letter->message.from == a && letter->to == b) ||
            (letter->message.from == b && letter->to == a))
            letter->to = UINT32_MAX;
    }
    give(a, &(struct cairn_event){.type = CAIRN_EVENT_PEER_DOWN, .as.peer = {b, 0}});
    give(b, &(struct cairn_event){.type = CAIRN_EVENT_PEER_DOWN, .as.peer = {a, 0}});
}

static inline void
start(uint32_t agent)
{
    struct node *node = &job.nodes[agent];
    struct cairn_core_options options = {.self = agent,
                                         .agent_count = job.count,
                                         .spares = job.spares,
                                         .parity = job.parity,
                                         .group_size = job.count > 4 ? 4 : job.count,
                                         .slots = 2,
                                         .slot_blocks = BLOCKS,
                                         .parity_blocks = 4 * BLOCKS,
                                         .every_steps = 1,
                                         .incarnation = node->incarnation,
                                         .heartbeat_interval_ns = second_ns,
                                         .dead_after_ns = 5 * second_ns,
                                         .repair_after_ns = 0,
                                         .claim_timeout_ns = 5 * second_ns,
                                         .rebuild_timeout_ns = 60 * second_ns,
                                         .memory_is_new = node->memory_new};
    struct cairn_bytes records[CAIRN_PARTS_MAX];
    uint32_t dropped;

    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++)
        records[i] = (struct cairn_bytes){node->records[i], node->record_lens[i]};
    assert_int_equal(cairn_core_create(&options, job.now_ns,
                                       (struct cairn_bytes){node->disk, node->disk_len}, records,
                                       &dropped, &node->core),
                     CAIRN_OK);
    node->running = true;
    node->wants = 0;
}

static inline void
stop(uint32_t agent)
{
    for (uint32_t a = 0; a < job.count; a++)
        unlink_agents(agent, a);
    cairn_core_destroy(job.nodes[agent].core);
    job.nodes[agent].core = NULL;
    job.nodes[agent].running = false;
    job.nodes[agent].incarnation += UINT64_C(1) << 20;
    for (uint32_t i = job.head; i != job.tail; i++)
        if (job.queue[i % QUEUE_MAX].to == agent)
            job.queue[i % QUEUE_MAX].to = UINT32_MAX;
}

static inline void
lose_memory(uint32_t agent)
{
    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++)
        keep(&job.nodes[agent].records[i], &job.nodes[agent].record_lens[i], NULL, 0);
    job.nodes[agent].memory_new = true;
}

static inline void
deliver_one(void)
{
    struct letter letter = job.queue[job.head++ % QUEUE_MAX];

    if (letter.to != UINT32_MAX)
        give(letter.to, &(struct cairn_event){.type = CAIRN_EVENT_MESSAGE,
                                              .as.message = {&letter.message, true}});
    free(letter.bytes);
}

static inline void
deliver_all(void)
{
    while (job.head != job.tail)
        deliver_one();
}

/* Stops before the first message of this kind. */
static inline void
deliver_until(enum cairn_message_kind kind)
{
    while (job.head != job.tail && job.queue[job.head % QUEUE_MAX].message.kind != kind)
        deliver_one();
    assert_true(job.head != job.tail);
}

/* Time passes; sessions that somebody wants come up. */
static inline void
pass_seconds(uint32_t seconds)
{
    for (uint32_t s = 0; s < seconds; s++) {
        job.now_ns += second_ns;
        for (uint32_t a = 0; a < job.count; a++)
            for (uint32_t b = 0; b < job.count; b++)
                if (a != b && job.nodes[a].running && job.nodes[b].running && !job.linked[a][b] &&
                    ((job.nodes[a].wants >> b) & 1))
                    link_agents(a, b);
        deliver_all();
        for (uint32_t a = 0; a < job.count; a++)
            give(a, &(struct cairn_event){.type = CAIRN_EVENT_TICK});
        deliver_all();
    }
}

static inline struct cairn_core_view
view_of(uint32_t agent)
{
    struct cairn_core_view view;

    cairn_core_look(job.nodes[agent].core, &view);
    return view;
}

/* The last `spares` agents are spares. */
static inline int
setup_job(uint32_t count, uint32_t spares, uint32_t parity)
{
    memset(&job, 0, sizeof job);
    job.count = count;
    for (uint32_t a = count - spares; a < count; a++)
        job.spares[a] = true;
    job.parity = parity;
    job.now_ns = 1000 * second_ns;
    for (uint32_t a = 0; a < count; a++) {
        job.nodes[a].incarnation = UINT64_C(1) << 30;
        job.nodes[a].memory_new = true;
        start(a);
    }
    pass_seconds(3);
    return 0;
}

static inline int
three_agents(void **unused)
{
    return setup_job(3, 0, 1);
}

static inline int
three_agents_and_a_spare(void **unused)
{
    return setup_job(4, 1, 1);
}

static inline int
eight_agents(void **unused)
{
    return setup_job(8, 0, 1);
}

static inline int
teardown(void **unused)
{
    deliver_all();
    for (uint32_t a = 0; a < job.count; a++) {
        cairn_core_destroy(job.nodes[a].core);
        keep(&job.nodes[a].disk, &job.nodes[a].disk_len, NULL, 0);
        lose_memory(a);
    }
    return 0;
}

/* ---- trainers ---- */

static inline uint32_t
members(void)
{
    uint32_t count = 0;

    for (uint32_t a = 0; a < job.count; a++)
        count += !job.spares[a];
    return count;
}

static inline void
attach(uint32_t agent, uint32_t ranks, uint64_t launch)
{
    struct cairn_event event = {
        .type = CAIRN_EVENT_RANKS,
        .as.ranks = {
            .ranks = ranks, .world = members(), .blocks = ranks ? BLOCKS : 0, .launch = launch}};

    give(agent, &event);
    deliver_all();
}

static inline void
attach_all(uint64_t launch)
{
    for (uint32_t a = 0; a < members(); a++)
        attach(a, 1, launch);
}

static inline void
begin_step(uint32_t agent, uint64_t step, bool last)
{
    job.nodes[agent].granted = (struct cairn_generation_id){0};
    job.nodes[agent].skipped = 0;
    give(agent, &(struct cairn_event){.type = CAIRN_EVENT_BEGIN, .as.step = {0, step, last}});
    deliver_all();
}

static inline void
begin(uint32_t agent, uint64_t step)
{
    begin_step(agent, step, false);
}

static inline void
begin_last(uint32_t agent, uint64_t step)
{
    begin_step(agent, step, true);
}

static inline void
hand_over(uint32_t agent)
{
    uint64_t crcs[BLOCKS] = {0};
    struct cairn_event blocks = {.type = CAIRN_EVENT_BLOCKS,
                                 .as.blocks = {job.nodes[agent].granted, 0, BLOCKS, crcs}};

    give(agent, &blocks);
    give(agent, &(struct cairn_event){.type = CAIRN_EVENT_CAPTURED,
                                      .as.captured = {job.nodes[agent].granted, 0}});
}

static inline void
copy(uint32_t agent)
{
    hand_over(agent);
    deliver_all();
}

static inline bool
holds_a_part(uint32_t agent)
{
    struct cairn_part_view part;

    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++)
        if (cairn_core_look_part(job.nodes[agent].core, i, &part) &&
            part.state == CAIRN_PART_COMPLETE)
            return true;
    return false;
}

/* Every trainer begins the step, and copies if it may. */
static inline void
step_all(uint64_t step)
{
    for (uint32_t a = 0; a < job.count; a++)
        if (job.nodes[a].running)
            begin(a, step);
    for (uint32_t a = 0; a < job.count; a++)
        if (job.nodes[a].running && job.nodes[a].granted.step == step)
            copy(a);
}

static inline void
operate(uint32_t agent, enum cairn_operation operation)
{
    job.nodes[agent].replied = false;
    give(agent, &(struct cairn_event){.type = CAIRN_EVENT_OPERATOR,
                                      .as.op = {.operation = operation, .request = 7}});
}

#endif
