/* agent/process/recorder.c - records this node's part of the job's history; see recorder.h. */
#include "agent/process/recorder.h"

#include "agent/process/agent_state.h"
#include "agent/process/recorder_store.h"
#include "agent/process/session.h"
#include "agent/process/session_region.h"
#include "agent/process/step.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ranges of commits and trained steps grow all the time: they are stored this often. */
static const uint64_t growing_ns = 10 * CAIRN_NS_PER_S;
static const uint64_t training_ns_max = 3600 * CAIRN_NS_PER_S;

/* The TRAINING that is open. */
struct training {
    uint64_t number; /* 0: none */
    uint64_t last_step;
    uint64_t wait_base_ns, captures_base; /* what the slowest rank had when it began */
    uint64_t wait_ns, captures;           /* … and has now */
    bool died;                            /* a trainer ended without leave */
};

struct peer_seen {
    bool was_alive, is_known;
    uint64_t incarnation;
};

struct recorder {
    struct history_book book;
    struct recorder_store *store;
    struct training training;
    uint64_t trained_max; /* newest step that this node has trained, in any start */
    uint64_t resumed_ns;  /* when a trainer read a generation last; 0: not since the start */
    struct cairn_generation_id resumed; /* it, until training begins; step 0: none */
    struct peer_seen *peers;            /* [node_count] */
    struct cairn_core_tally tally;
    struct cairn_blocker blocker; /* the last that was seen */
    uint64_t busy_ns;             /* since when an operation runs; 0: none */
    struct cairn_outcome failed;  /* the last repair, if it failed: it is recorded once */
    uint64_t stored_ns;
    bool is_urgent;
};

const struct history_book *
recorder_book(const struct cairn_agent *agent)
{
    return agent->recorder ? &agent->recorder->book : NULL;
}

/* ---- adding ---- */

static struct cairn_generation_id
position(const struct cairn_agent *agent)
{
    struct cairn_core_view view;
    struct cairn_generation_id at;

    if (!agent->core)
        return (struct cairn_generation_id){0};
    cairn_core_look(agent->core, &view);
    at = (struct cairn_generation_id){view.active, view.last_step, view.run};
    if (view.committed.epoch == view.active && view.committed.step > at.step)
        at.step = view.committed.step;
    return at;
}

/* Writes a text's lines as one, "a; b". */
static void
join_lines(const char *text, char out[HISTORY_TEXT_BYTES])
{
    size_t used = 0;

    for (; *text && used + 3 < HISTORY_TEXT_BYTES; text++) {
        if (*text != '\n') {
            out[used++] = *text;
        } else if (text[1]) {
            out[used++] = ';';
            out[used++] = ' ';
        }
    }
    out[used] = '\0';
}

static uint64_t
add(struct cairn_agent *agent, const struct history_event *event)
{
    struct recorder *recorder = agent->recorder;
    char text[HISTORY_TEXT_BYTES], line[HISTORY_TEXT_BYTES];
    struct history_event full = *event;

    if (!recorder)
        return 0;
    join_lines(event->text, line);
    cairn_text_clean(text, sizeof text, line);
    full.text = text;
    full.at = position(agent);
    if (full.wall_ns == 0)
        full.wall_ns = cairn_clock_wall_ns(&agent->clock);
    if (full.until_wall_ns < full.wall_ns)
        full.until_wall_ns = full.wall_ns;
    if (full.kind != HISTORY_COMMIT && full.kind != HISTORY_SKIP)
        recorder->is_urgent = true;
    return history_book_add(&recorder->book, &full);
}

void
recorder_add(struct cairn_agent *agent, const struct history_event *event)
{
    (void)add(agent, event); /* without memory only the event is lost */
}

void
recorder_started(struct cairn_agent *agent)
{
    struct history_event event = history_event_of(HISTORY_START);
    const struct history_book *book = recorder_book(agent);

    event.subject = agent->incarnation;
    event.change = agent->memory_adopted;
    if (book && book->count && book->events[book->count - 1].kind != HISTORY_STOP)
        event.text = "the previous agent ended without notice";
    recorder_add(agent, &event);
}

void
recorder_stopped(struct cairn_agent *agent, const char *why)
{
    struct history_event event = history_event_of(HISTORY_STOP);

    event.text = why;
    recorder_add(agent, &event);
}

void
recorder_committed(struct cairn_agent *agent, struct cairn_generation_id generation, uint64_t bytes,
                   uint64_t protect_ns)
{
    struct history_event event = history_event_of(HISTORY_COMMIT);

    event.generation = generation;
    event.last_step = generation.step;
    event.count = 1;
    event.bytes = bytes;
    event.took_ns = protect_ns;
    recorder_add(agent, &event);
}

static void
end_training(struct cairn_agent *agent, enum history_training how)
{
    struct recorder *recorder = agent->recorder;
    const struct history_event *open =
        history_book_find(&recorder->book, recorder->training.number);
    struct history_event event;

    if (open) {
        event = *open;
        event.change = how;
        event.took_ns = recorder->training.wait_ns;
        event.captures = recorder->training.captures;
        history_book_update(&recorder->book, &event);
        recorder->is_urgent = true;
    }
    if (recorder->training.last_step > recorder->trained_max)
        recorder->trained_max = recorder->training.last_step;
    recorder->training = (struct training){0};
}

void
recorder_activated(struct cairn_agent *agent, const struct cairn_action_activated *activated)
{
    struct history_event event = history_event_of(HISTORY_EPOCH);

    event.generation = activated->ready;
    event.change = activated->restart;
    recorder_add(agent, &event);
    if (!agent->recorder)
        return;
    agent->recorder->failed = (struct cairn_outcome){0};
    if (activated->restart)
        end_training(agent, HISTORY_ENDED); /* its trainers are evicted */
}

/* ---- operations and generations that are given up ---- */

static void
add_operation(struct cairn_agent *agent, const struct cairn_outcome *outcome)
{
    struct recorder *recorder = agent->recorder;
    bool by_itself = outcome->request == 0;
    struct history_event event =
        history_event_of(outcome->operation == CAIRN_OP_VERIFY ? HISTORY_VERIFY
                         : by_itself                           ? HISTORY_REPAIR
                                                               : HISTORY_RESTORE);

    if (outcome->operation == CAIRN_OP_DRY_RUN || outcome->operation == CAIRN_OP_SNAPSHOT)
        return;
    if (by_itself && outcome->err && recorder->failed.err == outcome->err &&
        strcmp(recorder->failed.text, outcome->text) == 0)
        return; /* it is tried again and again */
    recorder->failed = *outcome;
    event.generation = outcome->generation;
    event.count = outcome->lost_members;
    event.bytes = outcome->rebuilt_blocks * CAIRN_BLOCK_BYTES;
    event.took_ns = recorder->busy_ns ? agent_now_ns(agent) - recorder->busy_ns : 0;
    event.err = (uint32_t)outcome->err;
    event.text = outcome->text;
    recorder_add(agent, &event);
}

static void
add_given_up(struct cairn_agent *agent, const struct cairn_given_up *given_up)
{
    static const char *const reasons[] = {
        [CAIRN_ABORT_PASSED] = "its trainers were past the step",
        [CAIRN_ABORT_CANCELLED] = "a trainer gave its copy up",
        [CAIRN_ABORT_NO_SLOT] = "a spill still read the slot",
        [CAIRN_ABORT_TOO_LARGE] = "the group has too little memory for its parity",
        [CAIRN_ABORT_DAMAGED] = "blocks arrived damaged, or the parity differed from a seal",
        [CAIRN_ABORT_MISMATCH] = "its trainers begin other steps than those of its group",
        [CAIRN_ABORT_MEMORY] = "the agent has no memory to describe the part",
        [CAIRN_ABORT_FORGOTTEN] = "a member of its group began again and lacks parity"};
    const struct cairn_blocker *blocker = &agent->recorder->blocker;
    struct history_event event = history_event_of(HISTORY_SKIP);

    event.generation = given_up->generation;
    event.last_step = given_up->generation.step;
    event.count = 1;
    event.node = given_up->agent;
    event.change = given_up->reason;
    if (cairn_generation_id_compare(blocker->generation, given_up->generation) == 0)
        event.other = blocker->for_agent;
    event.text = reasons[given_up->reason];
    recorder_add(agent, &event);
}

void
recorder_stepped(struct cairn_agent *agent)
{
    struct cairn_core_tally tally = cairn_core_tally(agent->core);
    struct recorder *recorder = agent->recorder;

    if (!recorder)
        return;
    if (tally.given_up.count != recorder->tally.given_up.count)
        add_given_up(agent, &tally.given_up);
    if (tally.operations_ended != recorder->tally.operations_ended) {
        add_operation(agent, cairn_core_outcome(agent->core));
        recorder->busy_ns = 0;
    }
    recorder->tally = tally;
}

/* ---- training ---- */

static void
measure(struct training *training, const struct session *session)
{
    uint64_t wait_ns = session->stats.fence_ns_total;
    uint64_t captures = session->stats.snapshots_captured;

    if (wait_ns > training->wait_base_ns && wait_ns - training->wait_base_ns > training->wait_ns)
        training->wait_ns = wait_ns - training->wait_base_ns;
    if (captures > training->captures_base &&
        captures - training->captures_base > training->captures)
        training->captures = captures - training->captures_base;
}

static void
measure_all(struct cairn_agent *agent)
{
    for (uint32_t i = 0; i < SESSIONS_MAX; i++)
        if (session_is_rank(&agent->sessions[i]))
            measure(&agent->recorder->training, &agent->sessions[i]);
}

/* When the trainers of this node began with their first step. */
static uint64_t
began_ns(const struct cairn_agent *agent)
{
    uint64_t latest_ns = agent->recorder->resumed_ns;

    for (uint32_t i = 0; i < SESSIONS_MAX; i++)
        if (session_is_rank(&agent->sessions[i]) && agent->sessions[i].registered_ns > latest_ns)
            latest_ns = agent->sessions[i].registered_ns;
    return latest_ns;
}

static void
begin_training(struct cairn_agent *agent, uint64_t step, uint64_t wall_ns)
{
    struct training *training = &agent->recorder->training;
    struct history_event event = history_event_of(HISTORY_TRAINING);

    training->wait_base_ns += training->wait_ns;
    training->captures_base += training->captures;
    training->wait_ns = training->captures = 0;
    event.wall_ns = wall_ns;
    event.until_wall_ns = cairn_clock_wall_ns(&agent->clock);
    event.generation = position(agent);
    event.generation.step = step;
    event.last_step = step;
    event.count = 1;
    training->number = add(agent, &event);
    training->last_step = step;
    agent->recorder->resumed = (struct cairn_generation_id){0};
}

void
recorder_trained(struct cairn_agent *agent, uint64_t step)
{
    struct recorder *recorder = agent->recorder;
    uint64_t wall_ns = cairn_clock_wall_ns(&agent->clock), ago_ns;
    const struct history_event *open;
    struct history_event event;
    struct training *training;

    if (!recorder)
        return;
    training = &recorder->training;
    measure_all(agent);
    open = training->number ? history_book_find(&recorder->book, training->number) : NULL;
    if (!open) {
        ago_ns = agent_now_ns(agent) - began_ns(agent);
        begin_training(agent, step, wall_ns - (ago_ns < wall_ns ? ago_ns : 0));
    } else if (step > training->last_step) {
        event = *open;
        /* begins a new range where new steps begin: redone steps have their own */
        if ((event.generation.step <= recorder->trained_max &&
             training->last_step >= recorder->trained_max) ||
            wall_ns - event.wall_ns > training_ns_max) {
            begin_training(agent, step, event.until_wall_ns);
        } else {
            event.last_step = step;
            event.count += step - training->last_step;
            event.until_wall_ns = wall_ns > event.wall_ns ? wall_ns : event.wall_ns;
            event.took_ns = training->wait_ns;
            event.captures = training->captures;
            training->last_step = step;
            history_book_update(&recorder->book, &event);
        }
    }
}

void
recorder_resumed(struct cairn_agent *agent, struct cairn_generation_id generation, cairn_err err)
{
    struct recorder *recorder = agent->recorder;
    struct history_event event = history_event_of(HISTORY_RESUME);

    if (!recorder)
        return;
    recorder->resumed_ns = agent_now_ns(agent);
    if (!err && cairn_generation_id_compare(recorder->resumed, generation) == 0)
        return; /* another rank of this node */
    recorder->resumed = generation;
    event.generation = generation;
    event.err = (uint32_t)err;
    recorder_add(agent, &event);
}

void
recorder_trainer_ended(struct cairn_agent *agent, const struct session *session)
{
    struct recorder *recorder = agent->recorder;
    struct history_event event = history_event_of(HISTORY_TRAINER);
    bool others = false;

    if (!recorder || !session->holds_rank || agent->stopping)
        return;
    measure(&recorder->training, session);
    for (uint32_t i = 0; i < SESSIONS_MAX; i++)
        others |= &agent->sessions[i] != session && session_is_rank(&agent->sessions[i]);
    if (!session->leaves) {
        recorder->training.died = true;
        event.rank = session->hello.rank;
        event.subject = session->hello.pid;
        recorder_add(agent, &event);
    }
    if (!others)
        end_training(agent, recorder->training.died ? HISTORY_ENDED : HISTORY_LEFT);
}

/* ---- what is found by looking ---- */

static void
look_at_peers(struct cairn_agent *agent)
{
    for (uint32_t i = 0; i < agent->config.node_count; i++) {
        struct peer_seen *peer = &agent->recorder->peers[i];
        bool is_alive = cairn_core_alive(agent->core, i);
        struct history_event event = history_event_of(is_alive ? HISTORY_RETURN : HISTORY_DEATH);

        if (i == agent->config.node || (!peer->is_known && !is_alive))
            continue; /* not heard of yet */
        event.node = i;
        event.subject = is_alive ? cairn_core_incarnation(agent->core, i) : peer->incarnation;
        if (peer->is_known && is_alive != peer->was_alive)
            recorder_add(agent, &event);
        if (is_alive)
            peer->incarnation = cairn_core_incarnation(agent->core, i);
        peer->is_known = true;
        peer->was_alive = is_alive;
    }
}

void
recorder_tick(struct cairn_agent *agent)
{
    struct recorder *recorder = agent->recorder;
    uint64_t now_ns = agent_now_ns(agent);
    struct cairn_core_view view;

    if (!recorder)
        return;
    cairn_core_look(agent->core, &view);
    if (view.blocker.generation.step)
        recorder->blocker = view.blocker;
    if (!view.busy)
        recorder->busy_ns = 0;
    else if (!recorder->busy_ns)
        recorder->busy_ns = now_ns;
    look_at_peers(agent);
    if (!recorder->is_urgent && now_ns - recorder->stored_ns < growing_ns)
        return;
    if (recorder_store_write(recorder->store, &recorder->book, now_ns)) {
        recorder->is_urgent = false;
        recorder->stored_ns = now_ns;
    }
}

/* ---- opening ---- */

/* Closes what an earlier start left open: its end is unknown. */
static void
settle(struct recorder *recorder)
{
    for (uint32_t i = 0; i < recorder->book.count; i++) {
        struct history_event event = recorder->book.events[i];

        if (event.kind != HISTORY_TRAINING)
            continue;
        if (event.last_step > recorder->trained_max)
            recorder->trained_max = event.last_step;
        if (event.change == HISTORY_RUNS) {
            event.change = HISTORY_GONE;
            for (uint32_t j = i + 1; j < recorder->book.count; j++)
                if (recorder->book.events[j].kind == HISTORY_TRAINING &&
                    recorder->book.events[j].wall_ns == event.until_wall_ns)
                    event.change = HISTORY_RUNS; /* that one continues it */
            history_book_update(&recorder->book, &event);
        }
    }
}

cairn_err
recorder_open(struct cairn_agent *agent)
{
    struct recorder *recorder = calloc(1, sizeof *recorder);
    cairn_err err;

    if (!recorder)
        return CAIRN_NOMEM;
    history_book_init(&recorder->book);
    recorder->peers = calloc(agent->config.node_count, sizeof *recorder->peers);
    err = recorder->peers ? recorder_store_open(agent->loop, agent->config.dir, &recorder->book,
                                                &recorder->store)
                          : CAIRN_NOMEM;
    if (err) {
        history_book_fini(&recorder->book);
        free(recorder->peers);
        free(recorder);
        return err;
    }
    settle(recorder);
    agent->recorder = recorder;
    return CAIRN_OK;
}

void
recorder_close(struct cairn_agent *agent)
{
    struct recorder *recorder = agent->recorder;

    if (!recorder)
        return;
    recorder_store_close(recorder->store, &recorder->book);
    history_book_fini(&recorder->book);
    free(recorder->peers);
    free(recorder);
    agent->recorder = NULL;
}
