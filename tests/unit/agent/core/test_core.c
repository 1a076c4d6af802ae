/*
 * tests/unit/agent/core/test_core.c - a few cores, joined by channels that keep order, without
 * memory behind them: the way of a job through its first epoch, a run, commits, aborts, restarts
 * and a restore. What happens to bytes is tested in test_save.c, and everything at once in
 * tests/sim.
 */
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

static void carry_out(uint32_t self, struct cairn_actions *actions);

static void
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
static void
check_done(uint32_t from, struct cairn_generation_id generation)
{
    struct cairn_core_view view;

    cairn_core_look(job.nodes[from].core, &view);
    assert_true(cairn_generation_id_compare(generation, view.committed) == 0 ||
                generation.run > view.run ||
                (generation.run == view.run && generation.step >= view.next_step));
}

static void
check_report(uint32_t from, const struct cairn_message_report *report)
{
    const struct cairn_generation_id complete[] = {report->complete0, report->complete1,
                                                   report->complete2, report->complete3};

    for (uint32_t i = 0; i < CAIRN_OWN_SLOTS_MAX; i++)
        if (complete[i].step != 0)
            check_done(from, complete[i]);
}

static void
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
static void
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

static void
keep(uint8_t **to, size_t *len, const uint8_t *bytes, size_t bytes_len)
{
    free(*to);
    *to = bytes_len ? malloc(bytes_len) : NULL;
    *len = bytes_len;
    if (bytes_len)
        memcpy(*to, bytes, bytes_len);
}

/* The answers of a process whose memory is always as it should be. */
static void
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

static void
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

static void
link_agents(uint32_t a, uint32_t b)
{
    job.linked[a][b] = job.linked[b][a] = true;
    give(a, &(struct cairn_event){.type = CAIRN_EVENT_PEER_UP,
                                  .as.peer = {b, job.nodes[b].incarnation}});
    give(b, &(struct cairn_event){.type = CAIRN_EVENT_PEER_UP,
                                  .as.peer = {a, job.nodes[a].incarnation}});
}

static void
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

static void
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

static void
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

static void
lose_memory(uint32_t agent)
{
    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++)
        keep(&job.nodes[agent].records[i], &job.nodes[agent].record_lens[i], NULL, 0);
    job.nodes[agent].memory_new = true;
}

static void
deliver_one(void)
{
    struct letter letter = job.queue[job.head++ % QUEUE_MAX];

    if (letter.to != UINT32_MAX)
        give(letter.to, &(struct cairn_event){.type = CAIRN_EVENT_MESSAGE,
                                              .as.message = {&letter.message, true}});
    free(letter.bytes);
}

static void
deliver_all(void)
{
    while (job.head != job.tail)
        deliver_one();
}

/* Stops before the first message of this kind. */
static void
deliver_until(enum cairn_message_kind kind)
{
    while (job.head != job.tail && job.queue[job.head % QUEUE_MAX].message.kind != kind)
        deliver_one();
    assert_true(job.head != job.tail);
}

/* Time passes; sessions that somebody wants come up. */
static void
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

static struct cairn_core_view
view_of(uint32_t agent)
{
    struct cairn_core_view view;

    cairn_core_look(job.nodes[agent].core, &view);
    return view;
}

/* The last `spares` agents are spares. */
static int
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

static int
three_agents(void **unused)
{
    return setup_job(3, 0, 1);
}

static int
three_agents_and_a_spare(void **unused)
{
    return setup_job(4, 1, 1);
}

static int
eight_agents(void **unused)
{
    return setup_job(8, 0, 1);
}

static int
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

static uint32_t
members(void)
{
    uint32_t count = 0;

    for (uint32_t a = 0; a < job.count; a++)
        count += !job.spares[a];
    return count;
}

static void
attach(uint32_t agent, uint32_t ranks, uint64_t launch)
{
    struct cairn_event event = {
        .type = CAIRN_EVENT_RANKS,
        .as.ranks = {
            .ranks = ranks, .world = members(), .blocks = ranks ? BLOCKS : 0, .launch = launch}};

    give(agent, &event);
    deliver_all();
}

static void
attach_all(uint64_t launch)
{
    for (uint32_t a = 0; a < members(); a++)
        attach(a, 1, launch);
}

static void
begin_step(uint32_t agent, uint64_t step, bool last)
{
    job.nodes[agent].granted = (struct cairn_generation_id){0};
    job.nodes[agent].skipped = 0;
    give(agent, &(struct cairn_event){.type = CAIRN_EVENT_BEGIN, .as.step = {0, step, last}});
    deliver_all();
}

static void
begin(uint32_t agent, uint64_t step)
{
    begin_step(agent, step, false);
}

static void
begin_last(uint32_t agent, uint64_t step)
{
    begin_step(agent, step, true);
}

static void
hand_over(uint32_t agent)
{
    uint64_t crcs[BLOCKS] = {0};
    struct cairn_event blocks = {.type = CAIRN_EVENT_BLOCKS,
                                 .as.blocks = {job.nodes[agent].granted, 0, BLOCKS, crcs}};

    give(agent, &blocks);
    give(agent, &(struct cairn_event){.type = CAIRN_EVENT_CAPTURED,
                                      .as.captured = {job.nodes[agent].granted, 0}});
}

static void
copy(uint32_t agent)
{
    hand_over(agent);
    deliver_all();
}

static bool
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
static void
step_all(uint64_t step)
{
    for (uint32_t a = 0; a < job.count; a++)
        if (job.nodes[a].running)
            begin(a, step);
    for (uint32_t a = 0; a < job.count; a++)
        if (job.nodes[a].running && job.nodes[a].granted.step == step)
            copy(a);
}

static void
operate(uint32_t agent, enum cairn_operation operation)
{
    job.nodes[agent].replied = false;
    give(agent, &(struct cairn_event){.type = CAIRN_EVENT_OPERATOR,
                                      .as.op = {.operation = operation, .request = 7}});
}

/* ---- tests ---- */

static void
the_first_epoch_has_all_agents(void **unused)
{
    for (uint32_t a = 0; a < job.count; a++) {
        struct cairn_core_view view = view_of(a);

        assert_true(view.active != 0);
        assert_int_equal(view.active, view_of(0).active);
        assert_int_equal(view.self_member, a);
        assert_false(view.blank || view.fenced);
        assert_int_equal(view.roster->member_count, 3);
    }
}

static void
a_run_needs_all_ranks(void **unused)
{
    attach(0, 1, 5);
    attach(1, 1, 5);
    assert_int_equal(view_of(1).run, 0);
    attach(2, 1, 5);
    for (uint32_t a = 0; a < job.count; a++) {
        assert_true(view_of(a).run != 0);
        assert_int_equal(view_of(a).next_step, 1);
    }
}

static void
two_launches_make_no_run(void **unused)
{
    attach(0, 1, 5);
    attach(1, 1, 6);
    attach(2, 1, 5);
    assert_int_equal(view_of(0).run, 0);
    assert_true(view_of(2).refusal[0] != '\0');
    begin(2, 1); /* others may still have to register */
    assert_int_equal(job.nodes[2].skipped, CAIRN_SKIP_NOT_READY);
    begin(2, 2);
    assert_int_equal(job.nodes[2].skipped, CAIRN_SKIP_UNTILED);
    attach(1, 1, 5);
    assert_true(view_of(0).run != 0);
}

static void
every_step_is_committed(void **unused)
{
    attach_all(5);
    for (uint64_t step = 1; step <= 10; step++) {
        step_all(step);
        for (uint32_t a = 0; a < job.count; a++)
            assert_int_equal(job.nodes[a].committed.step, step);
    }
    assert_int_equal(view_of(1).ready.step, 10);
}

static void
a_step_that_one_has_passed_is_aborted(void **unused)
{
    uint64_t committed;

    attach_all(5);
    step_all(1);
    begin(0, 2);
    give(2, &(struct cairn_event){.type = CAIRN_EVENT_BEGIN, .as.step = {0, 2, false}});
    give(2, &(struct cairn_event){.type = CAIRN_EVENT_CANCEL, .as.step = {0, 2, false}});
    deliver_all();
    begin(1, 2);
    committed = job.nodes[0].committed.step;
    assert_int_equal(committed, 1);
    for (uint64_t step = 3; step < 8; step++)
        step_all(step);
    assert_int_equal(job.nodes[0].committed.step, 7);
}

/* Members that let steps pass make the leader choose later steps. No step comes after the last. */
static void
the_last_step_is_committed_whatever_the_margin(void **unused)
{
    attach_all(5);
    for (uint64_t step = 1; step <= 4; step += 3) {
        give(2, &(struct cairn_event){.type = CAIRN_EVENT_BEGIN, .as.step = {0, step, false}});
        give(2, &(struct cairn_event){.type = CAIRN_EVENT_CANCEL, .as.step = {0, step, false}});
        give(2, &(struct cairn_event){.type = CAIRN_EVENT_BEGIN, .as.step = {0, step + 1, false}});
        give(2, &(struct cairn_event){.type = CAIRN_EVENT_BEGIN, .as.step = {0, step + 2, false}});
        deliver_all();
        for (uint64_t other = step; other < step + 3; other++) {
            begin(0, other);
            begin(1, other);
        }
    }
    assert_int_equal(view_of(0).next_step, 8);
    for (uint32_t a = 0; a < job.count; a++)
        begin_last(a, 7);
    for (uint32_t a = 0; a < job.count; a++) {
        assert_int_equal(job.nodes[a].skipped, 0);
        assert_int_equal(job.nodes[a].granted.step, 7);
        copy(a);
    }
    for (uint32_t a = 0; a < job.count; a++)
        assert_int_equal(job.nodes[a].committed.step, 7);
}

/* It is not due, and some trainers end before all have registered. */
static void
a_last_step_waits_for_the_run(void **unused)
{
    attach(0, 1, 5);
    begin_last(0, 1);
    attach(1, 1, 5);
    begin_last(1, 1);
    assert_int_equal(job.nodes[0].granted.step, 0);
    attach(2, 1, 5);
    begin_last(2, 1);
    for (uint32_t a = 0; a < job.count; a++)
        copy(a);
    assert_int_equal(job.nodes[1].committed.step, 1);
}

/* Nor does a refusal end it: the ranks register one after the other. */
static void
a_last_step_waits_while_layouts_are_refused(void **unused)
{
    attach(0, 1, 5);
    attach(1, 1, 6);
    attach(2, 1, 5);
    assert_true(view_of(0).refusal[0] != '\0');
    for (uint32_t a = 0; a < job.count; a += 2) {
        begin_last(a, 1);
        assert_int_equal(job.nodes[a].skipped, 0);
    }
    attach(1, 1, 5);
    begin_last(1, 1);
    for (uint32_t a = 0; a < job.count; a++)
        copy(a);
    assert_int_equal(job.nodes[1].committed.step, 1);
}

/* What a rank has begun outlives that another rank of its node registers again. */
static void
a_last_step_outlives_another_registration(void **unused)
{
    const struct cairn_begun_step begun[] = {{.step = 1, .waiting = true, .last = true}};
    struct cairn_event ranks = {
        .type = CAIRN_EVENT_RANKS,
        .as.ranks = {
            .steps = begun, .ranks = 1, .world = job.count, .blocks = BLOCKS, .launch = 5}};

    attach_all(5);
    begin_last(1, 1);
    attach(0, 0, 0);
    attach(0, 1, 5);
    job.nodes[1].granted = (struct cairn_generation_id){0};
    give(1, &(struct cairn_event){.type = CAIRN_EVENT_RANKS});
    give(1, &ranks);
    deliver_all();
    assert_int_equal(job.nodes[1].granted.step, 1);
    begin_last(0, 1);
    begin_last(2, 1);
    job.nodes[1].granted.step = 1;
    for (uint32_t a = 0; a < job.count; a++)
        copy(a);
    assert_int_equal(job.nodes[2].committed.step, 1);
}

/* A member that holds its last step has let all steps before it pass, but not that one. */
static void
a_last_step_follows_one_that_is_passed(void **unused)
{
    attach_all(5);
    step_all(1);
    give(2, &(struct cairn_event){.type = CAIRN_EVENT_BEGIN, .as.step = {0, 3, true}});
    for (uint32_t at = job.head; at != job.tail; at++) /* too late for the leader */
        job.queue[at % QUEUE_MAX].to = UINT32_MAX;
    begin(0, 2);
    begin(1, 2);
    begin_last(0, 3);
    begin_last(1, 3);
    for (uint32_t a = 0; a < job.count; a++) {
        assert_int_equal(job.nodes[a].granted.step, 3);
        copy(a);
    }
    assert_int_equal(job.nodes[0].committed.step, 3);
}

static void
steps_may_have_gaps(void **unused)
{
    attach_all(5);
    for (uint64_t step = 7; step < 100; step += 13)
        step_all(step);
    assert_int_equal(job.nodes[2].committed.step, 98);
}

static void
a_member_that_restarts_is_done_still(void **unused)
{
    attach_all(5);
    step_all(1);
    stop(0); /* the leader */
    start(0);
    job.nodes[0].committed = (struct cairn_generation_id){0};
    pass_seconds(3);
    assert_int_equal(job.nodes[0].committed.step, 1);
    attach_all(6);
    step_all(1);
    assert_int_equal(job.nodes[1].skipped, CAIRN_SKIP_STALE);
    step_all(2);
    assert_int_equal(job.nodes[1].committed.step, 2);
}

static void
a_blank_member_is_admitted_by_a_repair(void **unused)
{
    struct cairn_generation_id before;

    attach_all(5);
    step_all(1);
    before = view_of(0).ready;
    stop(1);
    lose_memory(1);
    start(1);
    assert_true(view_of(1).blank);
    pass_seconds(30);
    assert_false(view_of(1).blank);
    assert_int_equal(view_of(1).self_member, 1);
    for (uint32_t a = 0; a < job.count; a++)
        assert_int_equal(cairn_generation_id_compare(view_of(a).ready, before), 0);
    attach(1, 1, 5);
    step_all(2);
    step_all(3);
    assert_int_equal(job.nodes[0].committed.step, 3);
}

static void
a_restore_rebuilds_a_lost_part(void **unused)
{
    struct cairn_generation_id before;

    attach_all(5);
    step_all(1);
    step_all(2);
    before = view_of(0).ready;
    stop(2);
    lose_memory(2);
    operate(0, CAIRN_OP_RESTORE);
    pass_seconds(60);
    assert_true(job.nodes[0].replied);
    assert_int_equal(job.nodes[0].reply, CAIRN_OK);
    assert_int_equal(cairn_generation_id_compare(view_of(1).ready, before), 0);
    assert_int_equal(view_of(0).roster->member_count, 2);
    for (uint32_t m = 0; m < 3; m++)
        assert_true(cairn_core_holder(job.nodes[0].core, before, m) < 2);
}

/* How many answers agent 1 gives to a question of the leader's audit. */
static uint32_t
count_answers(struct cairn_message_audit question)
{
    struct cairn_message message = {.kind = CAIRN_MSG_AUDIT,
                                    .from = 0,
                                    .to = 1,
                                    .epoch = view_of(0).active,
                                    .as.audit = question};
    uint32_t count = 0;

    give(1, &(struct cairn_event){.type = CAIRN_EVENT_MESSAGE, .as.message = {&message, true}});
    for (uint32_t i = job.head; i != job.tail; i++)
        count += job.queue[i % QUEUE_MAX].message.kind == CAIRN_MSG_AUDIT;
    deliver_all();
    return count;
}

static void
only_the_trainers_that_are_meant_answer(void **unused)
{
    struct cairn_message_audit question = {.agent = 1, .run = 7, .question = 1};

    attach_all(5);
    step_all(1);
    question.incarnation = job.nodes[1].incarnation;
    question.registration = 1; /* before they attached */
    assert_int_equal(count_answers(question), 0);
    question.registration = 2;
    question.incarnation--;
    assert_int_equal(count_answers(question), 0);
    step_all(2); /* the run goes on */
    assert_int_equal(job.nodes[1].committed.step, 2);
    question.incarnation++;
    assert_int_equal(count_answers(question), 1);
    begin(1, 3); /* it captures for no other run now */
    assert_int_equal(job.nodes[1].skipped, CAIRN_SKIP_NOT_READY);
}

static void
a_repeated_report_changes_nothing(void **unused)
{
    struct cairn_message report = {0};
    uint64_t next;

    attach_all(5);
    for (uint32_t a = 0; a < job.count; a++)
        begin(a, 1);
    give(1, &(struct cairn_event){.type = CAIRN_EVENT_CANCEL, .as.step = {0, 1, false}});
    for (uint32_t i = job.head; i != job.tail; i++)
        if (job.queue[i % QUEUE_MAX].message.kind == CAIRN_MSG_REPORT)
            report = job.queue[i % QUEUE_MAX].message;
    assert_int_equal(report.as.report.reason, CAIRN_ABORT_CANCELLED);
    deliver_all();
    assert_int_equal(cairn_core_tally(job.nodes[0].core).given_up.count, 1);
    next = view_of(0).next_step;
    give(0, &(struct cairn_event){.type = CAIRN_EVENT_MESSAGE, .as.message = {&report, true}});
    deliver_all();
    assert_int_equal(cairn_core_tally(job.nodes[0].core).given_up.count, 1);
    assert_int_equal(view_of(0).next_step, next);
}

/* A new run aborts what a repair rebuilds: member 1 lost its part before it was complete. */
static void
nobody_is_done_with_what_a_later_run_aborts(void **unused)
{
    attach_all(5);
    for (uint32_t a = 0; a < job.count; a++)
        begin(a, 1);
    copy(0);
    copy(2);
    hand_over(1);
    while (!holds_a_part(0) || !holds_a_part(2))
        deliver_one();
    assert_false(holds_a_part(1));
    stop(1);
    start(1);
    link_agents(0, 1);
    link_agents(1, 2);
    deliver_all();
    operate(0, CAIRN_OP_RESTORE);
    deliver_until(CAIRN_MSG_REBUILD); /* the holders keep the generation for the repair */
    attach(1, 1, 5);
    pass_seconds(30);
    assert_true(job.nodes[0].replied);
    assert_int_equal(job.nodes[0].reply, CAIRN_OK);
    assert_int_equal(view_of(1).ready.step, 1);
}

static void
a_fresh_epoch_begins_with_nothing(void **unused)
{
    attach_all(5);
    step_all(4);
    operate(1, CAIRN_OP_FRESH);
    pass_seconds(20);
    assert_int_equal(job.nodes[1].reply, CAIRN_OK);
    assert_int_equal(view_of(2).ready.step, 0);
    attach_all(6);
    step_all(1);
    assert_int_equal(job.nodes[2].committed.step, 1);
}

/* R9: two coordinators cannot reach each other, and have asked all others before either claims. An
 * agent that has promised one of the claims refuses the other, though its number is higher: the
 * first epoch may have begun, and its members may have committed since. */
static void
a_promise_voids_what_was_asked_before(void **unused)
{
    attach_all(5);
    step_all(1);
    unlink_agents(0, 1);
    operate(0, CAIRN_OP_FRESH);
    operate(1, CAIRN_OP_FRESH);
    for (uint32_t s = 0; s < 60; s++) {
        job.now_ns += second_ns;
        for (uint32_t a = 0; a < job.count; a++)
            give(a, &(struct cairn_event){.type = CAIRN_EVENT_TICK});
        while (job.head != job.tail) {
            uint64_t first = view_of(0).active, second = view_of(1).active;

            assert_true(first == second || first >> 16 != second >> 16);
            deliver_one();
        }
    }
    assert_true(job.nodes[0].replied && job.nodes[1].replied);
    assert_true(view_of(0).active >> 16 > 1);
}

/* Heartbeats, the group and the leader need sessions, on both sides; a coordinator needs all. */
static void
a_session_without_use_may_end(void **unused)
{
    uint32_t needed = 0;

    for (uint32_t a = 0; a < job.count; a++)
        for (uint32_t b = 0; b < job.count; b++) {
            if (a == b)
                continue;
            assert_int_equal(cairn_core_needs_session(job.nodes[a].core, b),
                             cairn_core_needs_session(job.nodes[b].core, a));
            needed += cairn_core_needs_session(job.nodes[a].core, b);
        }
    assert_true(cairn_core_needs_session(job.nodes[5].core, 0)); /* leads */
    assert_true(cairn_core_needs_session(job.nodes[5].core, 6)); /* gets the heartbeats */
    assert_true(needed > 0 && needed < job.count * (job.count - 1));
    give(5, &(struct cairn_event){.type = CAIRN_EVENT_OPERATOR,
                                  .as.op = {.operation = CAIRN_OP_DRY_RUN, .request = 1}});
    for (uint32_t b = 0; b < job.count; b++)
        assert_true(b == 5 || cairn_core_needs_session(job.nodes[5].core, b));
}

/* The leader tells agents outside the epoch what is committed: each commit, and when they meet. A
 * trainer there gets what the others get. */
static void
an_agent_outside_knows_what_is_committed(void **unused)
{
    const uint32_t spare = 3;

    attach_all(5);
    for (uint64_t step = 1; step <= 3; step++) {
        step_all(step);
        assert_int_equal(view_of(spare).ready.step, step);
    }
    assert_int_equal(view_of(spare).self_member, UINT32_MAX);
    assert_int_equal(cairn_core_holder(job.nodes[spare].core, view_of(spare).ready, 2), 2);
    stop(spare);
    start(spare);
    assert_int_equal(view_of(spare).ready.step, 0);
    pass_seconds(2);
    assert_int_equal(view_of(spare).ready.step, 3);
}

/* Only the leader's word counts. */
static void
an_agent_outside_believes_the_leader_alone(void **unused)
{
    const uint32_t spare = 3;
    struct cairn_message decision = {.kind = CAIRN_MSG_DECISION,
                                     .from = 1,
                                     .to = spare,
                                     .epoch = view_of(spare).active,
                                     .as.decision.decision = {.serial = UINT64_MAX}};
    struct cairn_event event = {.type = CAIRN_EVENT_MESSAGE, .as.message = {&decision, true}};

    attach_all(5);
    step_all(1);
    decision.as.decision.decision.committed = view_of(spare).ready;
    decision.as.decision.decision.committed.step = 9;
    if (!job.linked[1][spare])
        link_agents(1, spare);
    deliver_all();
    give(spare, &event);
    assert_int_equal(view_of(spare).ready.step, 1);
    decision.from = 0;
    decision.epoch--;
    give(spare, &event);
    assert_int_equal(view_of(spare).ready.step, 1);
    decision.epoch++;
    give(spare, &event);
    assert_int_equal(view_of(spare).ready.step, 9);
}

int
main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, three_agents, teardown)
    const struct CMUnitTest tests[] = {
        TEST(the_first_epoch_has_all_agents),
        TEST(a_run_needs_all_ranks),
        TEST(two_launches_make_no_run),
        TEST(every_step_is_committed),
        TEST(a_step_that_one_has_passed_is_aborted),
        TEST(the_last_step_is_committed_whatever_the_margin),
        TEST(a_last_step_waits_for_the_run),
        TEST(a_last_step_waits_while_layouts_are_refused),
        TEST(a_last_step_outlives_another_registration),
        TEST(a_last_step_follows_one_that_is_passed),
        TEST(steps_may_have_gaps),
        TEST(a_member_that_restarts_is_done_still),
        TEST(a_blank_member_is_admitted_by_a_repair),
        TEST(a_restore_rebuilds_a_lost_part),
        TEST(only_the_trainers_that_are_meant_answer),
        TEST(a_repeated_report_changes_nothing),
        TEST(nobody_is_done_with_what_a_later_run_aborts),
        TEST(a_fresh_epoch_begins_with_nothing),
        TEST(a_promise_voids_what_was_asked_before),
        cmocka_unit_test_setup_teardown(an_agent_outside_knows_what_is_committed,
                                        three_agents_and_a_spare, teardown),
        cmocka_unit_test_setup_teardown(an_agent_outside_believes_the_leader_alone,
                                        three_agents_and_a_spare, teardown),
        cmocka_unit_test_setup_teardown(a_session_without_use_may_end, eight_agents, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
