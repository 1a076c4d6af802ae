/* tools/relaunch_plan.c - see relaunch_plan.h; relaunch_round.c chooses the seats of a round. */
#include "tools/relaunch_plan.h"

#include "tools/relaunch_round.h"
#include "tools/verb.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SHOWN_NODES = 8,
    NODES_TEXT_BYTES = 128,
    LATE_LOOKS_MAX = 120 /* at a seat that has accepted its round and does not begin it */
};

/* ---- words ---- */

static enum cairn_relaunch_action say(struct cairn_relaunch *relaunch,
                                      enum cairn_relaunch_action action, const char *form, ...)
    __attribute__((format(printf, 3, 4)));

static enum cairn_relaunch_action
say(struct cairn_relaunch *relaunch, enum cairn_relaunch_action action, const char *form, ...)
{
    va_list list;

    va_start(list, form);
    vsnprintf(relaunch->why, sizeof relaunch->why, form, list);
    va_end(list);
    return action;
}

/* A question about one node of a view. */
typedef bool (*is_it)(const struct cairn_relaunch *relaunch, const struct cairn_relaunch_view *view,
                      uint32_t node);

/* Counts the nodes with this property; "nodes 1, 4" in text[NODES_TEXT_BYTES]. */
static uint32_t
list(const struct cairn_relaunch *relaunch, const struct cairn_relaunch_view *view, is_it is,
     char *text)
{
    uint32_t count = 0;
    size_t used = 0;

    text[0] = '\0';
    for (uint32_t i = 0; i < view->count; i++) {
        if (!is(relaunch, view, i))
            continue;
        if (count < SHOWN_NODES)
            used += (size_t)snprintf(text + used, NODES_TEXT_BYTES - used, "%s%" PRIu32,
                                     count ? ", " : "", i);
        count++;
    }
    if (count > SHOWN_NODES)
        snprintf(text + used, NODES_TEXT_BYTES - used, " and others");
    return count;
}

/* ---- who is there ---- */

static bool
is_silent(const struct cairn_relaunch *relaunch, const struct cairn_relaunch_view *view,
          uint32_t node)
{
    const struct cairn_relaunch_peer *peer = &view->peers[node];

    return node != relaunch->self && peer->alive && !peer->answered && !peer->removed;
}

static bool
is_dead(const struct cairn_relaunch *relaunch, const struct cairn_relaunch_view *view,
        uint32_t node)
{
    return node != relaunch->self && !view->peers[node].answered && !view->peers[node].removed;
}

/* A regular node whose agent answers, without a launcher. */
static bool
is_idle(const struct cairn_relaunch *relaunch, const struct cairn_relaunch_view *view,
        uint32_t node)
{
    const struct cairn_relaunch_peer *peer = &view->peers[node];

    return node != relaunch->self && peer->answered && !peer->attached && !peer->removed &&
           !peer->spare;
}

/* Whether an approved relaunch waits for this round to end: all its nodes are there. */
static bool
is_offer_due(const struct cairn_relaunch *relaunch, const struct cairn_relaunch_view *view)
{
    const struct cairn_relaunch_offer *offer = view->offer;

    if (!offer || !offer->number || !offer->count || offer->number == relaunch->note.shape ||
        offer->number == relaunch->tried)
        return false;
    for (uint32_t i = 0; i < offer->count; i++) {
        uint32_t node = offer->nodes[i];

        if (node >= view->count ||
            (node != relaunch->self && !cairn_relaunch_runs(relaunch, view, node) &&
             !cairn_relaunch_joins(relaunch, view, node)))
            return false;
    }
    return true;
}

/* ---- a round begins ---- */

static void
take_round(struct cairn_relaunch *relaunch, struct cairn_relaunch_round *round)
{
    free(relaunch->round.seats);
    relaunch->round = *round;
    round->seats = NULL;
}

/* True if an operator has asked for a relaunch since the round began. */
static bool
is_asked(const struct cairn_relaunch_view *view)
{
    for (uint32_t i = 0; i < view->count; i++)
        if (view->peers[i].answered && view->peers[i].asked_ms < view->runs_ms)
            return true;
    return false;
}

static enum cairn_relaunch_action
start(struct cairn_relaunch *relaunch, uint64_t job, uint64_t term, uint64_t used)
{
    relaunch->note.state = CAIRN_RELAUNCH_RUNS;
    relaunch->note.offers = relaunch->round.name =
        cairn_relaunch_round_name(&relaunch->round, job, term);
    relaunch->note.job = relaunch->seen_job = job;
    relaunch->note.term = term;
    relaunch->note.used = used;
    relaunch->note.planned = 0;
    relaunch->note.shape = relaunch->round.shape;
    relaunch->tried = relaunch->round.shape ? relaunch->round.shape : relaunch->tried;
    relaunch->note.rank = cairn_relaunch_rank(relaunch);
    relaunch->late_looks = 0;
    if (relaunch->keeps_size)
        relaunch->note.size = relaunch->round.count;
    return say(relaunch, CAIRN_RELAUNCH_START,
               "round %" PRIu64 ": %" PRIu32 " nodes, this is rank "
               "%" PRIu64,
               term, relaunch->round.count, relaunch->note.rank);
}

/* ---- joining ---- */

static enum cairn_relaunch_action
leave(struct cairn_relaunch *relaunch, int exit_code)
{
    relaunch->last_code = exit_code;
    return CAIRN_RELAUNCH_EXIT;
}

/* A node that reports this end of the launcher's own job; UINT32_MAX: none. */
static uint32_t
find_end(const struct cairn_relaunch *relaunch, const struct cairn_relaunch_view *view,
         enum cairn_relaunch_state state)
{
    for (uint32_t i = 0; i < view->count; i++) {
        const struct cairn_relaunch_note *note = cairn_relaunch_note_of(relaunch, view, i);

        if (i != relaunch->self && note && note->state == state && note->job &&
            (note->job == relaunch->note.job || note->job == relaunch->seen_job))
            return i;
    }
    return UINT32_MAX;
}

/* A node that has told this launcher that the command of its round ended with success there;
 * UINT32_MAX: none. */
static uint32_t
find_done_seat(const struct cairn_relaunch *relaunch)
{
    for (uint32_t i = 0; i < relaunch->round.count; i++)
        if (relaunch->round.seats[i].is_done)
            return relaunch->round.seats[i].node;
    return UINT32_MAX;
}

/* True if another node says how the job has ended. */
static bool
is_over(struct cairn_relaunch *relaunch, const struct cairn_relaunch_view *view,
        enum cairn_relaunch_action *out)
{
    uint32_t done = find_end(relaunch, view, CAIRN_RELAUNCH_DONE);
    uint32_t stopped = find_end(relaunch, view, CAIRN_RELAUNCH_STOPPED);

    if (done == UINT32_MAX)
        done = find_done_seat(relaunch);
    if (done != UINT32_MAX) {
        (void)say(relaunch, CAIRN_RELAUNCH_EXIT,
                  "the job has ended: the command ended with success on node %" PRIu32
                  ", so nothing starts again",
                  done);
        *out = leave(relaunch, relaunch->last_code);
    } else if (stopped != UINT32_MAX) {
        uint64_t exit_code = cairn_relaunch_note_of(relaunch, view, stopped)->exit_code;

        (void)say(relaunch, CAIRN_RELAUNCH_EXIT,
                  "node %" PRIu32 " has ended the job with exit code %" PRIu64
                  "; its output tells why",
                  stopped, exit_code);
        relaunch->note.state = CAIRN_RELAUNCH_STOPPED;
        relaunch->note.exit_code = exit_code;
        *out = leave(relaunch, (int)(exit_code & 0xff));
    }
    return done != UINT32_MAX || stopped != UINT32_MAX;
}

/* True if this launcher was started differently from the leader, or from those that run. */
static bool
differs(struct cairn_relaunch *relaunch, const struct cairn_relaunch_view *view,
        enum cairn_relaunch_action *out)
{
    const struct cairn_relaunch_note *own = &relaunch->note, *note;
    uint32_t other = cairn_relaunch_leader(relaunch, view);

    if (own->term)
        return false;
    for (uint32_t i = 0; i < view->count; i++)
        other = cairn_relaunch_runs(relaunch, view, i) ? i : other;
    note = cairn_relaunch_note_of(relaunch, view, other);
    if (note->budget == own->budget && note->least == own->least && note->most == own->most)
        return false;
    (void)say(relaunch, CAIRN_RELAUNCH_EXIT,
              "node %" PRIu32 " was started with --relaunch %" PRIu64 " --nodes %" PRIu64
              ":%" PRIu64 ", this node with --relaunch %" PRIu64 " --nodes %" PRIu64 ":%" PRIu64
              " (0: all); start all nodes with the same",
              other, note->budget, note->least, note->most, own->budget, own->least, own->most);
    *out = leave(relaunch, CAIRN_EXIT_CONFIG);
    return true;
}

/* What a leader waits for before it offers a round; false: for nothing. */
static bool
has_to_wait(struct cairn_relaunch *relaunch, const struct cairn_relaunch_view *view, uint64_t least,
            uint64_t most)
{
    char nodes[NODES_TEXT_BYTES], dead[NODES_TEXT_BYTES], others[2 * NODES_TEXT_BYTES] = "";
    uint32_t usable = 0, answered = 0, joining = 0, regular = 0;

    for (uint32_t i = 0; i < view->count; i++) {
        usable += !view->peers[i].removed;
        answered += !view->peers[i].removed && (i == relaunch->self || view->peers[i].answered);
        joining += cairn_relaunch_joins(relaunch, view, i);
        regular += cairn_relaunch_joins(relaunch, view, i) && !view->peers[i].spare;
    }
    if (list(relaunch, view, is_silent, nodes)) {
        (void)say(relaunch, CAIRN_RELAUNCH_WAIT,
                  "waits for an answer of node %s, whose death is not certain yet", nodes);
    } else if (list(relaunch, view, cairn_relaunch_runs, nodes)) {
        (void)say(relaunch, CAIRN_RELAUNCH_WAIT,
                  "waits for node %s to end the command of the round before", nodes);
    } else if (2 * answered <= usable) {
        (void)list(relaunch, view, is_dead, dead);
        (void)say(relaunch, CAIRN_RELAUNCH_WAIT,
                  "waits for agents: %" PRIu32 " of the job's %" PRIu32
                  " answer, and more than half must; start the agent of node %s, or take nodes "
                  "that do not come back out of the job with `cairn node remove`",
                  answered, usable, dead);
    } else if (joining < least) {
        if (list(relaunch, view, is_idle, nodes))
            snprintf(others, sizeof others, "; no `cairn run` is on node %s", nodes);
        if (list(relaunch, view, is_dead, dead))
            snprintf(others + strlen(others), sizeof others - strlen(others),
                     "; the agent of node %s does not answer", dead);
        (void)say(relaunch, CAIRN_RELAUNCH_WAIT,
                  "waits for nodes: %" PRIu32 " of at least %" PRIu64 " are here%s", joining, least,
                  others);
    } else if (relaunch->note.term == 0 && view->is_patient && regular < most &&
               list(relaunch, view, is_idle, nodes)) {
        (void)say(relaunch, CAIRN_RELAUNCH_WAIT,
                  "waits a while for `cairn run` on node %s, before it begins without", nodes);
    } else if (view->is_backing_off) {
        (void)say(relaunch, CAIRN_RELAUNCH_WAIT, "waits a while: the last round committed no step");
    } else {
        return false;
    }
    return true;
}

static uint64_t
regular_nodes(const struct cairn_relaunch_view *view)
{
    uint64_t count = 0;

    for (uint32_t i = 0; i < view->count; i++)
        count += !view->peers[i].removed && !view->peers[i].spare;
    return count ? count : 1;
}

static bool
have_all_accepted(const struct cairn_relaunch *relaunch, const struct cairn_relaunch_view *view,
                  const struct cairn_relaunch_round *round, uint64_t name)
{
    for (uint32_t i = 0; i < round->count; i++) {
        uint32_t node = round->seats[i].node;

        if (node != relaunch->self && cairn_relaunch_note_of(relaunch, view, node)->accepts != name)
            return false;
    }
    return true;
}

/* The most nodes for which the words of the command can be filled in; CAIRN_NOT_FOUND: none. */
static cairn_err
choose_fitting(const struct cairn_relaunch *relaunch, const struct cairn_relaunch_view *view,
               uint64_t least, uint64_t most, struct cairn_relaunch_round *out)
{
    for (;;) {
        cairn_err err = cairn_relaunch_round_choose(relaunch, view, relaunch->self, most, out);

        if (err || !view->fits || out->count == 0 || view->fits(view->context, out))
            return err;
        most = out->count - 1u;
        free(out->seats);
        if (out->shape || most < least || most == 0)
            return CAIRN_NOT_FOUND;
    }
}

static cairn_err
lead(struct cairn_relaunch *relaunch, const struct cairn_relaunch_view *view,
     enum cairn_relaunch_action *out)
{
    struct cairn_relaunch_note *note = &relaunch->note;
    uint64_t most = note->most ? note->most : regular_nodes(view), least = note->least, name;
    struct cairn_relaunch_round round;
    uint32_t answering = 0;
    cairn_err err;

    if (note->term && relaunch->keeps_size)
        least = most = note->size;
    if (cairn_relaunch_has_offer(relaunch, view))
        least = most = view->offer->count;
    *out = CAIRN_RELAUNCH_WAIT;
    if (has_to_wait(relaunch, view, least, most)) {
        note->offers = 0;
        return CAIRN_OK;
    }
    err = choose_fitting(relaunch, view, least, most, &round);
    if (err == CAIRN_NOT_FOUND) {
        note->offers = 0;
        (void)say(relaunch, CAIRN_RELAUNCH_WAIT,
                  "waits for other nodes: no shape of the job fits on those that are here; see "
                  "`cairn plan`, start `cairn run` on more nodes, or give --batch-may-change");
        return CAIRN_OK;
    }
    if (err)
        return err;
    note->job = note->job ? note->job : relaunch->token;
    name = cairn_relaunch_round_name(&round, note->job, note->term + 1);
    if ((note->term || relaunch->resumes) && relaunch->restored_for != name) {
        note->offers = 0;
        *out = say(relaunch, CAIRN_RELAUNCH_RESTORE, "the agents restore for %" PRIu32 " nodes",
                   round.count);
        relaunch->restoring_for = name;
        free(round.seats);
        return CAIRN_OK;
    }
    if (round.count < least || cairn_relaunch_round_rank(&round, relaunch->self) == UINT32_MAX) {
        note->offers = 0;
        (void)say(relaunch, CAIRN_RELAUNCH_WAIT,
                  "waits for agents that hold a part of the state: %" PRIu32 " of at least %" PRIu64
                  " nodes that are here do",
                  round.count, least);
        free(round.seats);
        return CAIRN_OK;
    }
    note->offers = name;
    if (!(note->term && relaunch->keeps_size))
        note->size = round.count;
    if (have_all_accepted(relaunch, view, &round, name)) {
        note->begins = 1;
        take_round(relaunch, &round);
        *out =
            start(relaunch, note->job, note->term + 1, note->used + (note->term && !note->planned));
        return CAIRN_OK;
    }
    for (uint32_t i = 0; i < round.count; i++)
        answering += round.seats[i].node == relaunch->self ||
                     cairn_relaunch_note_of(relaunch, view, round.seats[i].node)->accepts == name;
    (void)say(relaunch, CAIRN_RELAUNCH_WAIT,
              "offers a round of %" PRIu32 " nodes, which %" PRIu32 " have accepted", round.count,
              answering);
    free(round.seats);
    return CAIRN_OK;
}

/* The launcher has accepted a round: true while its leader offers it still, or begins it. */
static bool
is_bound(struct cairn_relaunch *relaunch, const struct cairn_relaunch_view *view,
         enum cairn_relaunch_action *out)
{
    const struct cairn_relaunch_note *note;

    if (relaunch->leader >= view->count || !relaunch->note.accepts)
        return false;
    note = cairn_relaunch_note_of(relaunch, view, relaunch->leader);
    if (!note && view->peers[relaunch->leader].alive) {
        *out = say(relaunch, CAIRN_RELAUNCH_WAIT, "waits for an answer of node %" PRIu32,
                   relaunch->leader);
        return true;
    }
    /* its own command may have ended already, if that takes a moment only */
    if (!note || note->offers != relaunch->note.accepts ||
        (note->state != CAIRN_RELAUNCH_DONE && !view->peers[relaunch->leader].attached))
        return false;
    if (note->begins)
        *out = start(relaunch, note->job, note->term, note->used);
    else
        *out =
            say(relaunch, CAIRN_RELAUNCH_WAIT,
                "waits for the nodes of the round that node %" PRIu32 " offers", relaunch->leader);
    return true;
}

static cairn_err
follow(struct cairn_relaunch *relaunch, const struct cairn_relaunch_view *view, uint32_t leader,
       enum cairn_relaunch_action *out)
{
    const struct cairn_relaunch_note *note = cairn_relaunch_note_of(relaunch, view, leader);
    struct cairn_relaunch_round round;
    cairn_err err;

    relaunch->note.accepts = 0;
    *out = CAIRN_RELAUNCH_WAIT;
    if (!note->offers || note->begins) {
        (void)say(relaunch, CAIRN_RELAUNCH_WAIT, "waits for node %" PRIu32 " to offer a round",
                  leader);
        return CAIRN_OK;
    }
    err = cairn_relaunch_round_choose(relaunch, view, leader, note->size, &round);
    if (err)
        return err;
    if (cairn_relaunch_round_rank(&round, relaunch->self) == UINT32_MAX) {
        *out = say(relaunch, CAIRN_RELAUNCH_STAND_BY, "stands by: %s",
                   view->peers[relaunch->self].holds
                       ? "the round has all its nodes"
                       : "its agent holds no part of the state, as that of a spare");
    } else if (cairn_relaunch_round_name(&round, note->job, note->term + 1) != note->offers) {
        (void)say(relaunch, CAIRN_RELAUNCH_WAIT,
                  "sees other nodes than node %" PRIu32 " does, or has another problem file",
                  leader);
    } else {
        relaunch->note.accepts = note->offers;
        relaunch->leader = leader;
        take_round(relaunch, &round);
        (void)say(relaunch, CAIRN_RELAUNCH_WAIT, "accepts the round of node %" PRIu32, leader);
    }
    free(round.seats);
    return CAIRN_OK;
}

static cairn_err
look_joining(struct cairn_relaunch *relaunch, const struct cairn_relaunch_view *view,
             enum cairn_relaunch_action *out)
{
    char nodes[NODES_TEXT_BYTES];
    bool is_behind = false;
    uint32_t leader;

    if (is_bound(relaunch, view, out) || is_over(relaunch, view, out) ||
        differs(relaunch, view, out))
        return CAIRN_OK;
    relaunch->leader = UINT32_MAX;
    for (uint32_t i = 0; i < view->count; i++)
        if (cairn_relaunch_runs(relaunch, view, i) &&
            view->peers[i].note.term > relaunch->note.term) {
            relaunch->seen_job = view->peers[i].note.job;
            is_behind = true;
        }
    if (is_behind && list(relaunch, view, cairn_relaunch_runs, nodes)) {
        relaunch->note.accepts = relaunch->note.offers = 0;
        relaunch->last_code = 0; /* its own failures count no more */
        *out = say(relaunch, CAIRN_RELAUNCH_STAND_BY,
                   "stands by while the job trains on node %s: it can take part in the next round, "
                   "which begins when a node is lost or at `cairn replan --relaunch`",
                   nodes);
        return CAIRN_OK;
    }
    leader = cairn_relaunch_leader(relaunch, view);
    if (leader != relaunch->self) {
        relaunch->note.offers = 0;
        return follow(relaunch, view, leader, out);
    }
    relaunch->note.accepts = 0;
    return lead(relaunch, view, out);
}

/* ---- running ---- */

/* True if the node is lost to the round, with the reason. */
static bool
has_left(struct cairn_relaunch *relaunch, const struct cairn_relaunch_view *view,
         const struct cairn_relaunch_seat *seat, bool *is_late)
{
    const uint32_t node = seat->node;
    const struct cairn_relaunch_peer *peer = &view->peers[node];
    const struct cairn_relaunch_note *note = cairn_relaunch_note_of(relaunch, view, node);

    if (seat->is_done)
        return false;
    if (peer->removed) {
        (void)say(relaunch, CAIRN_RELAUNCH_END, "node %" PRIu32 " was removed from the job", node);
        return true;
    }
    if (!peer->answered || !peer->attached || !note) { /* a dead agent alone ends nothing */
        if ((peer->alive && !peer->answered) || !view->can_ask_doors)
            return false;
        if (peer->answered && peer->has_note && peer->note.job == relaunch->note.job &&
            peer->note.state == CAIRN_RELAUNCH_DONE)
            return false;
        if (peer->answered && peer->has_note && peer->note.job == relaunch->note.job &&
            peer->note.state == CAIRN_RELAUNCH_STOPPED) {
            (void)say(relaunch, CAIRN_RELAUNCH_END, "node %" PRIu32 " has ended the job", node);
            return true;
        }
        if (view->door(view->context, node))
            return false;
        (void)say(relaunch, CAIRN_RELAUNCH_END, "node %" PRIu32 " is lost", node);
        return true;
    }
    if ((note->state == CAIRN_RELAUNCH_RUNS || note->state == CAIRN_RELAUNCH_DONE) &&
        note->offers == relaunch->note.offers)
        return false;
    *is_late = note->state == CAIRN_RELAUNCH_JOINS && note->accepts == relaunch->note.offers;
    if (*is_late && relaunch->late_looks < LATE_LOOKS_MAX)
        return false;
    if (note->job != relaunch->note.job || note->term != relaunch->note.term ||
        note->state == CAIRN_RELAUNCH_RUNS) {
        (void)say(relaunch, CAIRN_RELAUNCH_END, "node %" PRIu32 " did not begin the round", node);
        return true;
    }
    if (note->planned)
        (void)say(relaunch, CAIRN_RELAUNCH_END, "an operator asked for a relaunch");
    else
        (void)say(relaunch, CAIRN_RELAUNCH_END, "the command has ended on node %" PRIu32, node);
    return true;
}

static enum cairn_relaunch_action
look_running(struct cairn_relaunch *relaunch, const struct cairn_relaunch_view *view)
{
    bool any_late = false;

    for (uint32_t i = 0; i < relaunch->round.count; i++) {
        const struct cairn_relaunch_seat *seat = &relaunch->round.seats[i];
        bool is_late = false;

        if (seat->node == relaunch->self)
            continue;
        if (seat->node >= view->count || has_left(relaunch, view, seat, &is_late))
            return CAIRN_RELAUNCH_END;
        any_late = any_late || is_late;
    }
    relaunch->late_looks = any_late ? relaunch->late_looks + 1 : 0;
    if (relaunch->note.rank == 0 && is_asked(view)) {
        relaunch->note.planned = 1;
        return say(relaunch, CAIRN_RELAUNCH_SNAPSHOT, "an operator asks for a relaunch");
    }
    if (relaunch->note.rank == 0 && is_offer_due(relaunch, view)) {
        relaunch->note.planned = 1;
        relaunch->tried = view->offer->number;
        return say(relaunch, CAIRN_RELAUNCH_SNAPSHOT, "relaunch %" PRIu64 " is approved",
                   view->offer->number);
    }
    return CAIRN_RELAUNCH_KEEP;
}

/* Exit codes after which the same command cannot do better: wrong usage, data or a snapshot that it
 * cannot use, a configuration that does not fit, and a command that cannot be started. */
static bool
is_hopeless(int exit_code)
{
    return exit_code == CAIRN_EXIT_USAGE || exit_code == CAIRN_EXIT_INPUT ||
           exit_code == CAIRN_EXIT_CONFIG || exit_code == 126 || exit_code == 127;
}

static enum cairn_relaunch_action
stop(struct cairn_relaunch *relaunch)
{
    relaunch->note.state = CAIRN_RELAUNCH_STOPPED;
    relaunch->note.exit_code = (uint64_t)relaunch->last_code;
    return CAIRN_RELAUNCH_EXIT;
}

/* True if an operator's wish has ended the round, here or at rank 0. */
static bool
is_planned(const struct cairn_relaunch *relaunch, const struct cairn_relaunch_view *view)
{
    const struct cairn_relaunch_note *first = NULL;

    if (relaunch->round.count)
        first = cairn_relaunch_note_of(relaunch, view, relaunch->round.seats[0].node);
    return first && first->planned && first->job == relaunch->note.job &&
           first->term == relaunch->note.term;
}

enum cairn_relaunch_action
cairn_relaunch_ended(struct cairn_relaunch *relaunch, const struct cairn_relaunch_view *view,
                     int exit_code, bool was_ended, const char *refusal)
{
    struct cairn_relaunch_note *note = &relaunch->note;

    if (!was_ended && exit_code == 0) {
        note->state = CAIRN_RELAUNCH_DONE;
        (void)say(relaunch, CAIRN_RELAUNCH_EXIT, "the command has ended with success");
        return leave(relaunch, 0);
    }
    relaunch->last_code = was_ended ? CAIRN_EXIT_AGAIN : exit_code;
    note->offers = note->accepts = note->begins = 0;
    relaunch->leader = UINT32_MAX;
    for (uint32_t i = 0; i < relaunch->round.count; i++) {
        const struct cairn_relaunch_seat *seat = &relaunch->round.seats[i];
        const struct cairn_relaunch_note *other =
            cairn_relaunch_note_of(relaunch, view, seat->node);

        if (seat->is_done || (other && other != note && other->state == CAIRN_RELAUNCH_DONE &&
                              other->job == note->job && other->term == note->term)) {
            (void)say(relaunch, CAIRN_RELAUNCH_EXIT,
                      "the command ended with success on node %" PRIu32 ", so nothing starts again",
                      seat->node);
            return stop(relaunch);
        }
    }
    if (refusal[0] && !was_ended) {
        (void)say(relaunch, CAIRN_RELAUNCH_EXIT,
                  "the state cannot be restored on %" PRIu32 " nodes: %s; it stays in the agents' "
                  "memory: bring the nodes back, or run a command that can",
                  relaunch->round.count, refusal);
        return stop(relaunch);
    }
    if (!was_ended && is_hopeless(exit_code)) {
        (void)say(relaunch, CAIRN_RELAUNCH_EXIT,
                  "the command ended with exit code %d on %" PRIu32
                  " nodes, which another start does not cure: wrong usage or settings, or a "
                  "snapshot that cannot be used in this shape; its output tells why",
                  exit_code, relaunch->round.count);
        return stop(relaunch);
    }
    note->planned = is_planned(relaunch, view);
    if (note->used >= note->budget && !note->planned) {
        (void)say(relaunch, CAIRN_RELAUNCH_EXIT,
                  "%" PRIu64 " of %" PRIu64 " relaunches are used; the state stays in the agents' "
                  "memory: go on with --resume",
                  note->used, note->budget);
        return stop(relaunch);
    }
    note->state = CAIRN_RELAUNCH_JOINS;
    return say(relaunch, CAIRN_RELAUNCH_WAIT, "joins the next round");
}

/* ---- a launcher ---- */

void
cairn_relaunch_init(struct cairn_relaunch *relaunch, uint32_t self, uint64_t budget, uint64_t least,
                    uint64_t most)
{
    *relaunch = (struct cairn_relaunch){.self = self, .leader = UINT32_MAX, .token = 1};
    relaunch->note = (struct cairn_relaunch_note){
        .state = CAIRN_RELAUNCH_JOINS, .budget = budget, .least = least, .most = most};
}

void
cairn_relaunch_fini(struct cairn_relaunch *relaunch)
{
    free(relaunch->round.seats);
    relaunch->round = (struct cairn_relaunch_round){0};
}

cairn_err
cairn_relaunch_look(struct cairn_relaunch *relaunch, const struct cairn_relaunch_view *view,
                    enum cairn_relaunch_action *out)
{
    if (relaunch->self >= view->count)
        return CAIRN_INVAL;
    if (relaunch->note.state == CAIRN_RELAUNCH_JOINS)
        return look_joining(relaunch, view, out);
    *out = look_running(relaunch, view);
    return CAIRN_OK;
}

void
cairn_relaunch_restored(struct cairn_relaunch *relaunch)
{
    relaunch->restored_for = relaunch->restoring_for;
}

void
cairn_relaunch_heard(struct cairn_relaunch *relaunch, uint64_t name, uint64_t node)
{
    for (uint32_t i = 0; name && name == relaunch->round.name && i < relaunch->round.count; i++)
        if (relaunch->round.seats[i].node == node)
            relaunch->round.seats[i].is_done = true;
}

void
cairn_relaunch_standby(const struct cairn_relaunch *relaunch,
                       const struct cairn_relaunch_view *view, struct operator_standby *out)
{
    *out = (struct operator_standby){.count = 0};
    if (relaunch->note.state != CAIRN_RELAUNCH_RUNS)
        return;
    for (uint32_t i = 0; i < view->count && out->count < OPERATOR_STANDBY_MAX; i++)
        if (cairn_relaunch_joins(relaunch, view, i))
            out->nodes[out->count++] = i;
}

uint32_t
cairn_relaunch_rank(const struct cairn_relaunch *relaunch)
{
    return cairn_relaunch_round_rank(&relaunch->round, relaunch->self);
}
