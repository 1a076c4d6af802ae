/*
 * tests/unit/tools/test_relaunch_plan.c - launchers that decide together: single decisions, and
 * schedules with nodes that die and return, agents that do not answer in time, and commands that
 * fail, from a seed.
 */
#include "tools/relaunch_plan.h"

#include "tools/verb.h"
#include "tests/support/cmocka.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NODES = 5, SPARE = 4, SCHEDULES = 600, LOOKS = 400, QUIET_LOOKS = 400, BUDGET = 30 };

/* ---- a job of NODES nodes ---- */

struct node {
    bool is_up;  /* its agent and launcher */
    bool holds;  /* its agent holds a part */
    bool is_out; /* the launcher has ended in good order */
    struct cairn_relaunch launcher;
    struct cairn_relaunch_note told; /* what the agent shows */
    bool has_told;
    uint64_t runs;  /* name of the round of its command; 0: none runs */
    uint64_t since; /* it runs */
    uint64_t patient_until;
    int exit_code;
};

static struct node job[NODES];
static uint64_t done_job;                 /* one of its commands has ended with success */
static uint64_t finished;                 /* name of the round that has come to its end */
static uint64_t now;                      /* looks since the begin */
static struct cairn_relaunch_offer offer; /* that an operator has approved */
static uint64_t asked;                    /* when an operator asked for a relaunch; 0: never */
static bool is_fragile; /* commands fail where another one of their round is missing */
static bool patient;    /* the first round waits for all nodes */
static uint32_t begun;  /* highest term */
static uint64_t seed;

static uint32_t
roll(uint32_t sides)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(seed >> 33) % sides;
}

static bool
door(void *context, uint32_t node)
{
    return job[node].is_up && !job[node].is_out;
}

static void
see(uint32_t self, uint32_t silent_percent, struct cairn_relaunch_peer *peers,
    struct cairn_relaunch_view *view)
{
    for (uint32_t i = 0; i < NODES; i++) {
        struct cairn_relaunch_peer *peer = &peers[i];

        *peer = (struct cairn_relaunch_peer){.spare = i == SPARE, .holds = job[i].holds};
        peer->alive = job[i].is_up;
        peer->answered = i == self || (job[i].is_up && roll(100) >= silent_percent);
        peer->attached = peer->answered && job[i].has_told && !job[i].is_out;
        peer->has_note = peer->answered && job[i].has_told;
        peer->asked_ms = peer->answered && asked ? now - asked : UINT64_MAX;
        peer->note = job[i].told;
        snprintf(peer->host, sizeof peer->host, "10.0.0.%u", i);
    }
    *view = (struct cairn_relaunch_view){.peers = peers,
                                         .count = NODES,
                                         .is_patient = patient || now < job[self].patient_until,
                                         .runs_ms = job[self].runs ? now - job[self].since : 0,
                                         .can_ask_doors = true,
                                         .offer = &offer,
                                         .door = door};
}

static void
tell(uint32_t self)
{
    job[self].told = job[self].launcher.note;
    job[self].has_told = true;
}

static void
new_launcher(uint32_t self)
{
    struct node *node = &job[self];

    cairn_relaunch_fini(&node->launcher);
    cairn_relaunch_init(&node->launcher, self, BUDGET, 1, 0);
    node->launcher.note.port = 1000 + roll(50000);
    node->launcher.note.door = 1000 + roll(50000);
    node->launcher.token = 1 + roll(1000000);
    node->is_up = true;
    node->is_out = false;
    node->has_told = false;
    node->patient_until = now + roll(60);
    node->runs = 0;
}

/* How many nodes run the round, and whether each of its seats does. */
static bool
is_complete(uint64_t name)
{
    for (uint32_t i = 0; i < NODES; i++) {
        const struct cairn_relaunch_round *round = &job[i].launcher.round;

        if (!job[i].is_up || job[i].runs != name || !name)
            continue;
        for (uint32_t j = 0; j < round->count; j++)
            if (!job[round->seats[j].node].is_up || job[round->seats[j].node].runs != name)
                return false;
        return true;
    }
    return false;
}

/* Its collectives fail: a seat of the round is dead, or has ended the round. */
static bool
is_broken(uint32_t self)
{
    const struct cairn_relaunch_round *round = &job[self].launcher.round;

    for (uint32_t i = 0; i < round->count; i++) {
        const struct node *other = &job[round->seats[i].node];
        bool will_run = other->launcher.note.state == CAIRN_RELAUNCH_JOINS &&
                        other->launcher.note.accepts == job[self].runs;

        if (!other->is_up || (other->runs != job[self].runs && !will_run))
            return true;
    }
    return false;
}

static void
check_rounds(void)
{
    uint64_t whole = 0;

    for (uint32_t i = 0; i < NODES; i++) {
        if (!job[i].is_up || !job[i].runs || !is_complete(job[i].runs))
            continue;
        assert_true(whole == 0 || whole == job[i].runs); /* one job trains, not two */
        whole = job[i].runs;
        for (uint32_t j = 0; j < i; j++) /* with one rank each */
            assert_true(job[j].runs != whole || !job[j].is_up ||
                        job[j].launcher.note.rank != job[i].launcher.note.rank);
    }
}

static void
end_command(uint32_t self, int exit_code, bool was_ended)
{
    struct cairn_relaunch_peer peers[NODES];
    struct cairn_relaunch_view view;
    struct node *node = &job[self];

    node->runs = 0;
    see(self, 0, peers, &view);
    if (cairn_relaunch_ended(&node->launcher, &view, exit_code, was_ended, "") ==
        CAIRN_RELAUNCH_EXIT) {
        node->is_out = true;
        node->exit_code = node->launcher.last_code;
        if (exit_code == 0 && !was_ended)
            done_job = node->launcher.note.job;
    }
    node->launcher.note.port = 1000 + roll(50000);
    tell(self);
}

/* What the agents do in a restore: spares take the parts of dead nodes, blank nodes get theirs. */
static void
rebuild(void)
{
    uint32_t holders = 0;

    for (uint32_t i = 0; i < NODES; i++)
        if (i != SPARE && job[i].is_up)
            job[i].holds = true;
    for (uint32_t i = 0; i < NODES; i++)
        holders += job[i].is_up && job[i].holds;
    if (holders < NODES - 1)
        job[SPARE].holds = job[SPARE].is_up;
}

static void
turn(uint32_t self, uint32_t silent_percent)
{
    enum cairn_relaunch_action action;
    struct cairn_relaunch_peer peers[NODES];
    struct cairn_relaunch_view view;
    struct node *node = &job[self];

    now++;
    if (node->is_up && self != SPARE && roll(10) == 0)
        node->holds = true; /* agents that come back see to that themselves */
    if (!node->is_up || node->is_out)
        return;
    if (node->runs && finished == node->runs) {
        end_command(self, 0, false);
        return;
    }
    if (is_fragile && node->runs && is_broken(self) && roll(4) == 0) {
        end_command(self, 1, false); /* its collectives break */
        return;
    }
    tell(self);
    see(self, silent_percent, peers, &view);
    assert_int_equal(cairn_relaunch_look(&node->launcher, &view, &action), CAIRN_OK);
    if (action == CAIRN_RELAUNCH_START) {
        assert_true(!done_job || node->launcher.note.job != done_job ||
                    node->launcher.note.offers == finished);
        assert_true(node->launcher.note.rank < node->launcher.round.count);
        if (node->launcher.note.accepts) /* the round of the leader, and no other one */
            assert_int_equal(node->launcher.note.accepts, node->launcher.note.offers);
        node->runs = node->launcher.note.offers;
        node->since = now;
        begun = node->launcher.note.term > begun ? (uint32_t)node->launcher.note.term : begun;
        assert_true(node->launcher.note.used <= BUDGET);
    } else if (action == CAIRN_RELAUNCH_END || action == CAIRN_RELAUNCH_SNAPSHOT) {
        tell(self);
        end_command(self, 0, true);
        return;
    } else if (action == CAIRN_RELAUNCH_RESTORE) {
        if (roll(3)) {
            rebuild();
            cairn_relaunch_restored(&node->launcher);
        }
    } else if (action == CAIRN_RELAUNCH_EXIT) {
        node->is_out = true;
        node->exit_code = node->launcher.last_code;
    }
    tell(self);
}

static void
begin_job(uint64_t with_seed)
{
    seed = with_seed;
    done_job = finished = asked = 0;
    patient = true;
    is_fragile = false;
    now = 1;
    begun = 0;
    for (uint32_t i = 0; i < NODES; i++)
        new_launcher(i);
    for (uint32_t i = 0; i < SPARE; i++)
        job[i].holds = true;
}

static void
end_job(void)
{
    for (uint32_t i = 0; i < NODES; i++)
        cairn_relaunch_fini(&job[i].launcher);
    memset(job, 0, sizeof job);
}

static uint32_t
running(void)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < NODES; i++)
        count += job[i].is_up && job[i].runs && is_complete(job[i].runs);
    return count;
}

/* Lets all launchers take turns until nothing changes for a while. */
static void
settle(uint32_t looks)
{
    for (uint32_t i = 0; i < looks; i++) {
        turn(roll(NODES), 0);
        check_rounds();
    }
}

static void
lose(uint32_t node)
{
    job[node].is_up = job[node].holds = false;
    job[node].runs = 0;
}

static void
report(const char *when, uint32_t number)
{
    for (uint32_t i = 0; i < NODES; i++)
        print_error("node %u: up %d, out %d, runs %d, state %d, term %d: %s\n", i, job[i].is_up,
                    job[i].is_out, job[i].runs != 0, (int)job[i].told.state, (int)job[i].told.term,
                    job[i].launcher.why);
    fail_msg("schedule %u: %u nodes train %s", number, running(), when);
}

static void
test_schedules(void **state)
{
    uint32_t relaunched = 0, succeeded = 0;

    for (uint32_t schedule = 0; schedule < SCHEDULES; schedule++) {
        uint32_t dead = UINT32_MAX;

        begin_job(schedule + 1);
        patient = false;
        is_fragile = true;
        for (uint32_t i = 0; i < LOOKS; i++) {
            turn(roll(NODES), 15);
            check_rounds();
            if (roll(60) == 0 && dead == UINT32_MAX && !done_job) {
                dead = roll(NODES);
                lose(dead);
            } else if (roll(40) == 0 && dead != UINT32_MAX) {
                new_launcher(dead);
                dead = UINT32_MAX;
            } else if (roll(150) == 0) {
                asked = now;
            } else if (roll(400) == 0 && running()) {
                for (uint32_t j = 0; j < NODES && !finished; j++)
                    finished = is_complete(job[j].runs) ? job[j].runs : 0;
            }
        }
        settle(QUIET_LOOKS);
        asked = now; /* for those that stand by */
        settle(QUIET_LOOKS);
        relaunched += begun > 1;
        succeeded += done_job != 0;
        for (uint32_t i = 0; i < NODES && !done_job; i++) {
            bool stopped = job[i].is_out;

            if (!stopped && running() < 3)
                report("after the faults", schedule + 1);
        }
        end_job();
    }
    assert_true(relaunched > SCHEDULES / 2 && succeeded > SCHEDULES / 10);
}

/* ---- single decisions ---- */

static void
test_all_regular_nodes_train_and_the_spare_stands_by(void **state)
{
    begin_job(7);
    settle(200);
    assert_int_equal(running(), NODES - 1);
    assert_int_equal(job[SPARE].runs, 0);
    for (uint32_t i = 0; i < NODES - 1; i++)
        assert_int_equal(job[i].launcher.note.rank, i);
    /* a lost node's rank goes to the spare; the others keep theirs */
    lose(1);
    settle(200);
    assert_int_equal(running(), NODES - 1);
    assert_int_equal(job[SPARE].launcher.note.rank, 1);
    assert_int_equal(job[3].launcher.note.rank, 3);
    /* without another one the ranks close up */
    lose(0);
    settle(200);
    assert_int_equal(running(), NODES - 2);
    assert_int_equal(job[2].launcher.round.count, NODES - 2);
    /* what is back takes part when asked for, and costs nothing of the budget */
    new_launcher(0);
    settle(200);
    assert_int_equal(running(), NODES - 2);
    assert_int_equal(job[2].launcher.note.used, 2);
    asked = now;
    settle(200);
    assert_int_equal(running(), NODES - 1);
    assert_int_equal(job[2].launcher.note.used, 2);
    end_job();
}

/* It has its nodes in its order, costs nothing of the budget, and is begun once by itself. */
static void
test_an_approved_relaunch(void **state)
{
    static const uint32_t others[] = {1, 2, SPARE};
    struct cairn_relaunch_peer peers[NODES];
    struct cairn_relaunch_view view;
    struct operator_standby standby;

    begin_job(8);
    settle(200);
    assert_int_equal(running(), NODES - 1);
    offer = (struct cairn_relaunch_offer){.number = 7, .count = 3, .nodes = {3, 0, SPARE}};
    job[SPARE].is_up = false;
    settle(200);
    assert_int_equal(running(), NODES - 1); /* not all of its nodes are there */
    offer.count = 2;
    settle(200);
    assert_int_equal(running(), 2);
    assert_int_equal(job[3].launcher.note.rank, 0);
    assert_int_equal(job[0].launcher.note.rank, 1);
    assert_int_equal(job[3].launcher.note.shape, 7);
    assert_int_equal(job[3].launcher.note.used, 0);
    assert_non_null(strstr(job[1].launcher.why, "stands by"));
    job[SPARE].is_up = true;
    settle(50);
    see(3, 0, peers, &view);
    cairn_relaunch_standby(&job[3].launcher, &view, &standby);
    assert_int_equal(standby.count, 3);
    assert_memory_equal(standby.nodes, others, sizeof others);
    cairn_relaunch_standby(&job[1].launcher, &view, &standby); /* it does not run itself */
    assert_int_equal(standby.count, 0);
    offer = (struct cairn_relaunch_offer){.number = 8, .count = 2, .nodes = {3, SPARE}};
    settle(200);
    assert_int_equal(job[SPARE].launcher.note.rank, 1);
    assert_int_equal(job[SPARE].launcher.note.shape, 8);
    offer = (struct cairn_relaunch_offer){.number = 10, .count = 2, .nodes = {3, 0}};
    settle(200);
    job[SPARE].is_up = false;
    /* one of its nodes is lost: those that stand by take part */
    lose(0);
    settle(300);
    assert_int_equal(running(), 3);
    assert_int_equal(job[3].launcher.note.shape, 0);
    assert_int_equal(job[3].launcher.note.used, 1);
    /* it is back: no second relaunch for the same approval, until an operator asks */
    new_launcher(0);
    settle(200);
    assert_int_equal(running(), 3);
    offer = (struct cairn_relaunch_offer){.number = 9, .count = 4, .nodes = {0, 1, 2, 3}};
    settle(300);
    assert_int_equal(running(), 4);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(job[i].launcher.note.rank, i);
    assert_int_equal(job[3].launcher.note.used, 1);
    offer.number = 0;
    end_job();
}

static void
test_nothing_starts_after_a_success(void **state)
{
    begin_job(8);
    settle(200);
    end_command(2, 0, false);
    end_command(0, 9, false);
    assert_true(job[0].is_out && job[2].is_out);
    assert_int_equal(job[0].exit_code, 9);
    assert_int_equal(job[2].exit_code, 0);
    settle(200);
    assert_true(job[SPARE].is_out);
    assert_int_equal(job[SPARE].exit_code, 0);
    assert_true(job[1].is_out && job[3].is_out); /* without node 0 theirs cannot end well */
    assert_int_equal(job[1].exit_code, CAIRN_EXIT_AGAIN);
    end_job();
}

/* Its agent is dead: nothing else tells it from a lost node. */
static void
test_a_success_that_is_told_at_the_door(void **state)
{
    uint64_t name;

    begin_job(9);
    settle(200);
    name = job[0].runs;
    for (uint32_t i = 0; i < SPARE; i++)
        if (i != 2)
            cairn_relaunch_heard(&job[i].launcher, name, 2);
    lose(2);
    settle(200);
    for (uint32_t i = 0; i < SPARE; i++)
        assert_true(i == 2 || job[i].runs == name);
    end_command(0, 9, false);
    assert_true(job[0].is_out);
    assert_int_equal(job[0].exit_code, 9);
    end_job();

    begin_job(9);
    settle(200);
    end_command(0, 9, false); /* before it hears of the success */
    assert_false(job[0].is_out);
    cairn_relaunch_heard(&job[0].launcher, name, 2);
    lose(2);
    settle(200);
    assert_true(job[0].is_out);
    assert_int_equal(job[0].exit_code, 9);
    end_job();

    begin_job(9);
    settle(200);
    cairn_relaunch_heard(&job[0].launcher, name + 1, 2); /* of another round */
    lose(2);
    settle(200);
    assert_true(job[0].runs && job[0].runs != name);
    end_job();
}

static void
test_a_job_that_cannot_go_on_stops_everywhere(void **state)
{
    static const int hopeless[] = {64, 65, 78, 126, 127};

    for (size_t i = 0; i < sizeof hopeless / sizeof *hopeless; i++) {
        begin_job(9);
        settle(200);
        end_command(1, hopeless[i], false);
        settle(200);
        for (uint32_t j = 0; j < NODES; j++) {
            assert_true(job[j].is_out);
            assert_int_equal(job[j].exit_code, hopeless[i]);
        }
        end_job();
    }
}

static void
test_the_budget_is_spent(void **state)
{
    begin_job(10);
    settle(200);
    for (uint32_t i = 0; i < BUDGET; i++) {
        end_command(1, 3, false);
        assert_false(job[1].is_out);
        settle(300);
        assert_int_equal(running(), NODES - 1);
        assert_int_equal(job[0].launcher.note.used, i + 1);
    }
    end_command(1, 3, false);
    settle(300);
    for (uint32_t i = 0; i < NODES; i++) {
        assert_true(job[i].is_out);
        assert_int_equal(job[i].exit_code, i == 1 ? 3 : job[i].exit_code);
        assert_int_not_equal(job[i].exit_code, 0);
    }
    end_job();
}

static void
test_half_of_the_agents_do_not_go_on(void **state)
{
    begin_job(11);
    settle(200);
    lose(0);
    lose(1);
    lose(2);
    settle(300);
    assert_int_equal(running(), 0);
    assert_false(job[3].is_out || job[SPARE].is_out);
    assert_non_null(strstr(job[3].launcher.why, "more than half"));
    new_launcher(2);
    settle(300);
    assert_int_equal(running(), 3);
    end_job();
}

static void
test_a_command_without_a_shape_waits_for_as_many_nodes(void **state)
{
    begin_job(12);
    for (uint32_t i = 0; i < NODES; i++)
        job[i].launcher.keeps_size = true;
    settle(200);
    assert_int_equal(running(), NODES - 1);
    lose(2);
    settle(200);
    assert_int_equal(running(), NODES - 1); /* the spare's */
    lose(3);
    settle(200);
    assert_int_equal(running(), 0);
    assert_non_null(strstr(job[0].launcher.why, "3 of at least 4"));
    new_launcher(3);
    job[3].launcher.keeps_size = true;
    settle(300);
    assert_int_equal(running(), NODES - 1);
    end_job();
}

static void
test_launchers_that_differ(void **state)
{
    begin_job(13);
    job[2].launcher.note.budget = BUDGET + 1;
    settle(300);
    assert_true(job[2].is_out);
    assert_int_equal(job[2].exit_code, CAIRN_EXIT_CONFIG);
    patient = false;
    settle(300);
    assert_int_equal(running(), NODES - 2);
    end_job();
}

/* Both are in term 1 of one job: two leaders began at once, since their agents differed. */
static void
test_a_node_that_runs_another_round_is_lost(void **state)
{
    enum cairn_relaunch_action action;
    struct cairn_relaunch_peer peers[NODES];
    struct cairn_relaunch_view view;

    begin_job(15);
    settle(200);
    see(0, 0, peers, &view);
    assert_int_equal(cairn_relaunch_look(&job[0].launcher, &view, &action), CAIRN_OK);
    assert_int_equal(action, CAIRN_RELAUNCH_KEEP);
    peers[1].note.offers++;
    assert_int_equal(cairn_relaunch_look(&job[0].launcher, &view, &action), CAIRN_OK);
    assert_int_equal(action, CAIRN_RELAUNCH_END);
    end_job();
}

static void
test_a_state_that_does_not_fit_stops_the_job(void **state)
{
    struct cairn_relaunch_peer peers[NODES];
    struct cairn_relaunch_view view;

    begin_job(14);
    settle(200);
    see(0, 0, peers, &view);
    assert_int_equal(cairn_relaunch_ended(&job[0].launcher, &view, 1, false, "no such tensor"),
                     CAIRN_RELAUNCH_EXIT);
    assert_int_equal(job[0].launcher.last_code, 1);
    assert_int_equal(job[0].launcher.note.state, CAIRN_RELAUNCH_STOPPED);
    assert_non_null(strstr(job[0].launcher.why, "no such tensor"));
    end_job();
}

/* ---- notes ---- */

static void
test_notes(void **state)
{
    static const char *const wrong[] = {
        "",
        "{}",
        "[]",
        "x",
        "[\"cairn run 2\"]",
        "[\"cairn run 2\",1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]",
        "[\"cairn run 2\",0,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]",
        "[\"cairn run 2\",5,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]",
        "[\"cairn run 2\",1,1,1,1,1,1,1,1,70000,1,1,1,1,1,1,1,1]",
        "[\"cairn run 2\",1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]",
        "[\"cairn run 2\",1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,-1]",
        "[\"2:3\",\"1:4\",\"joins\",0,\"\",-1,\"\",0,[0,0,\"\"],false,0]",
    };
    struct cairn_relaunch_note note, back = {.state = 77};
    char text[CAIRN_RELAUNCH_NOTE_BYTES];

    memset(&note, 0xff, sizeof note); /* the longest numbers */
    note.state = CAIRN_RELAUNCH_STOPPED;
    note.port = note.door = 65535;
    cairn_relaunch_note_write(&note, text);
    assert_true(cairn_relaunch_note_read(text, &back));
    assert_memory_equal(&note, &back, sizeof note);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_false(cairn_relaunch_note_read(wrong[i], &back));
    assert_memory_equal(&note, &back, sizeof note);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_regular_nodes_train_and_the_spare_stands_by),
        cmocka_unit_test(test_an_approved_relaunch),
        cmocka_unit_test(test_nothing_starts_after_a_success),
        cmocka_unit_test(test_a_success_that_is_told_at_the_door),
        cmocka_unit_test(test_a_job_that_cannot_go_on_stops_everywhere),
        cmocka_unit_test(test_the_budget_is_spent),
        cmocka_unit_test(test_half_of_the_agents_do_not_go_on),
        cmocka_unit_test(test_a_command_without_a_shape_waits_for_as_many_nodes),
        cmocka_unit_test(test_launchers_that_differ),
        cmocka_unit_test(test_a_node_that_runs_another_round_is_lost),
        cmocka_unit_test(test_a_state_that_does_not_fit_stops_the_job),
        cmocka_unit_test(test_notes),
        cmocka_unit_test(test_schedules),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
