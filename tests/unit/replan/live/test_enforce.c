/* tests/unit/replan/live/test_enforce.c - for which verdicts the operator's command is run: once
 * each, within the budget, over deaths. */
#include <errno.h>
#include <string.h>

#include "replan/live/enforce.h"
#include "tests/support/cmocka.h"

#define S UINT64_C(1000000000)
#define DAY (86400 * S)

enum { TWO_KINDS = CAIRN_EVIDENCE_PROGRESS | CAIRN_EVIDENCE_PROCESS, NODES = 3 };

static const struct cairn_enforcer here = {.node = 1, .incarnation = 7, .run = 100};
static const bool all_alive[NODES] = {true, true, true};

static struct cairn_ledger_entry *
add(struct cairn_ledger *ledger, uint32_t rank_count, uint32_t evidence_kinds,
    uint64_t opened_wall_ns)
{
    ledger->entries[ledger->count] =
        (struct cairn_ledger_entry){.number = ledger->next_number++,
                                    .run = 100,
                                    .kind = CAIRN_HANG_COMPUTE,
                                    .rank_count = rank_count,
                                    .evidence_kinds = evidence_kinds,
                                    .until_step = CAIRN_STEP_NONE,
                                    .opened_wall_ns = opened_wall_ns,
                                    .lost_until_wall_ns = opened_wall_ns};
    return &ledger->entries[ledger->count++];
}

/* Packs the ledger, as another agent does that sends it, and takes it over. */
static void
take_over(struct cairn_ledger *ledger)
{
    static uint8_t bytes[CAIRN_LEDGER_BYTES_MAX];
    struct cairn_writer writer;

    cairn_writer_init(&writer, bytes, sizeof bytes);
    cairn_ledger_pack(ledger, &writer);
    assert_int_equal(cairn_writer_done(&writer), CAIRN_OK);
    assert_int_equal(cairn_ledger_unpack(bytes, writer.used_bytes, ledger), CAIRN_OK);
}

static void
test_once(void **state)
{
    static struct cairn_ledger ledger;
    struct cairn_ledger_entry *entry;
    uint64_t counts[CAIRN_ENFORCED_RESULTS];
    uint64_t version;

    cairn_ledger_init(&ledger);
    assert_int_equal(cairn_enforce_next(&ledger, &here, 2, 10 * S), 0);
    entry = add(&ledger, 1, CAIRN_EVIDENCE_PROGRESS, 10 * S);
    assert_int_equal(cairn_enforce_next(&ledger, &here, 2, 10 * S), 0); /* one kind of evidence */
    entry->evidence_kinds = TWO_KINDS;
    entry->run = 99;
    /* this agent's detector has not confirmed it yet */
    assert_int_equal(cairn_enforce_next(&ledger, &here, 2, 10 * S), 0);
    entry->run = 100;
    take_over(&ledger);
    /* nor what another agent says */
    assert_int_equal(cairn_enforce_next(&ledger, &here, 2, 10 * S), 0);
    entry->run = 100;
    entry->closed_wall_ns = 11 * S;
    assert_int_equal(cairn_enforce_next(&ledger, &here, 2, 10 * S), 0);
    entry->closed_wall_ns = 0;
    assert_int_equal(cairn_enforce_next(&ledger, &here, 0, 10 * S), 0); /* a budget of nothing */
    version = ledger.version;
    assert_int_equal(cairn_enforce_next(&ledger, &here, 2, 12 * S), 1);
    assert_true(ledger.version > version);
    assert_int_equal(entry->enforcement.state, CAIRN_ENFORCEMENT_RUNNING);
    add(&ledger, 1, TWO_KINDS, 12 * S);
    assert_int_equal(cairn_enforce_next(&ledger, &here, 2, 12 * S), 0); /* never two at once */
    /* that one does not run */
    assert_false(cairn_enforce_end(&ledger, &here, 2, CAIRN_ENFORCEMENT_EXITED, 0, 13 * S));
    version = ledger.version;
    assert_true(cairn_enforce_end(&ledger, &here, 1, CAIRN_ENFORCEMENT_EXITED, 3, 13 * S));
    assert_true(ledger.version > version);
    assert_false(cairn_enforce_end(&ledger, &here, 1, CAIRN_ENFORCEMENT_EXITED, 0, 13 * S));
    assert_int_equal(cairn_enforce_next(&ledger, &here, 2, 13 * S), 2);
    assert_true(cairn_enforce_end(&ledger, &here, 2, CAIRN_ENFORCEMENT_EXITED, 0, 14 * S));
    /* each had its turn, with any result */
    assert_int_equal(cairn_enforce_next(&ledger, &here, 2, 15 * S), 0);
    cairn_enforce_count(&ledger, counts);
    assert_int_equal(counts[CAIRN_ENFORCED_SUCCEEDED], 1);
    assert_int_equal(counts[CAIRN_ENFORCED_FAILED], 1);
}

/* What is only slow is acted on when it has cost as much as the exchange will. */
static void
test_cost(void **state)
{
    const struct cairn_enforcer by = {
        .node = 1, .incarnation = 7, .run = 100, .exchange_ns = 10 * S};
    static struct cairn_ledger ledger;
    struct cairn_ledger_entry *slow;

    cairn_ledger_init(&ledger);
    slow = add(&ledger, 1, CAIRN_EVIDENCE_COMPUTE | CAIRN_EVIDENCE_WAITING, 100 * S);
    slow->kind = CAIRN_SLOW_COMPUTE;
    slow->rate = 1;
    assert_int_equal(cairn_enforce_next(&ledger, &by, 2, 100 * S + DAY), 0); /* it costs nothing */
    slow->rate = 1.25;
    assert_int_equal(cairn_enforce_next(&ledger, &by, 2, 99 * S), 0);  /* a clock that went back */
    assert_int_equal(cairn_enforce_next(&ledger, &by, 2, 149 * S), 0); /* a fifth of 49 s */
    assert_int_equal(cairn_enforce_next(&ledger, &by, 2, 151 * S), 1);
    assert_true(cairn_enforce_end(&ledger, &by, 1, CAIRN_ENFORCEMENT_EXITED, 0, 152 * S));
    slow = add(&ledger, 1, CAIRN_EVIDENCE_COMPUTE | CAIRN_EVIDENCE_WAITING, 100 * S);
    slow->kind = CAIRN_SLOW_NODE;
    slow->rate = 1.25;
    slow->node_count = 1;
    slow->closed_wall_ns = 140 * S;
    assert_int_equal(cairn_enforce_next(&ledger, &by, 3, 200 * S), 0); /* it ended before */
    add(&ledger, 1, TWO_KINDS, 200 * S);
    /* who hangs costs all there is */
    assert_int_equal(cairn_enforce_next(&ledger, &by, 3, 200 * S), 3);
}

/* What the detector of run 100 says of rank 3: how slow it is; 0: it is well. */
static void
say_rate(struct cairn_ledger *ledger, double rate, uint64_t wall_ns)
{
    const uint32_t kinds = CAIRN_EVIDENCE_COMPUTE | CAIRN_EVIDENCE_WAITING;
    uint32_t rank = 3;
    struct cairn_verdict verdict = {.kind = CAIRN_SLOW_COMPUTE,
                                    .ranks = {.items = &rank, .count = 1},
                                    .until_step = CAIRN_STEP_NONE,
                                    .rate = rate};
    struct cairn_verdicts verdicts = {.items = &verdict, .count = rate > 0};

    cairn_ledger_merge(ledger, &verdicts, &kinds, 100, wall_ns, NULL, NULL);
}

/* Each second costs what the rate of then took, not that of now; and nothing while it was over
 * before it came back. */
static void
test_cost_of_a_rate_that_changes(void **state)
{
    const struct cairn_enforcer by = {
        .node = 1, .incarnation = 7, .run = 100, .exchange_ns = 20 * S};
    static struct cairn_ledger ledger, read_again;

    cairn_ledger_init(&ledger);
    say_rate(&ledger, 1.25, 100 * S);
    say_rate(&ledger, 1.25, 120 * S);
    say_rate(&ledger, 5, 150 * S); /* a fifth of 50 s is lost */
    assert_int_equal(cairn_enforce_next(&ledger, &by, 2, 151 * S), 0);
    say_rate(&ledger, 2, 155 * S); /* four fifths of 5 s */
    assert_int_equal(cairn_enforce_next(&ledger, &by, 2, 166 * S), 0);
    say_rate(&ledger, 0, 157 * S); /* 15 s until then */
    say_rate(&ledger, 2, 200 * S);
    assert_int_equal(ledger.count, 1);
    assert_int_equal(cairn_enforce_next(&ledger, &by, 2, 209 * S), 0);
    read_again = ledger;
    take_over(&read_again);
    read_again.entries[0].run = by.run; /* confirmed since */
    assert_int_equal(cairn_enforce_next(&read_again, &by, 2, 209 * S), 0);
    assert_int_equal(cairn_enforce_next(&read_again, &by, 2, 211 * S), 1);
    ledger.entries[0].rate = 1; /* nothing is lost any more, even if it was */
    assert_int_equal(cairn_enforce_next(&ledger, &by, 2, 300 * S), 0);
}

/* What was proposed, and ended before anything was run for it, has taken nothing of the budget: in
 * an entry, or when that has made room. */
static void
test_budget_of_what_was_run(void **state)
{
    static struct cairn_ledger ledger;
    struct cairn_ledger_entry *entry;
    char advice[256];

    cairn_ledger_init(&ledger);
    for (uint64_t i = 1; i <= 3; i++) {
        entry = add(&ledger, 1, TWO_KINDS, (10 + i) * S);
        entry->closed_wall_ns = (20 + i) * S;
        if (i < 3)
            cairn_ledger_remember_exchanges(&ledger, entry);
    }
    ledger.entries[0] = ledger.entries[2];
    ledger.count = 1;
    entry = add(&ledger, 1, TWO_KINDS, 30 * S);
    cairn_ledger_advise(&ledger, entry, 1, false, advice, sizeof advice);
    /* nobody knows what was done about the others */
    assert_non_null(strstr(advice, "(exchanges_per_day)"));
    cairn_ledger_advise(&ledger, entry, 1, true, advice, sizeof advice);
    assert_non_null(strstr(advice, "exchange the rank"));
    assert_int_equal(cairn_enforce_next(&ledger, &here, 1, 31 * S), entry->number);
    assert_true(
        cairn_enforce_end(&ledger, &here, entry->number, CAIRN_ENFORCEMENT_EXITED, 0, 32 * S));
    entry = add(&ledger, 1, TWO_KINDS, 40 * S);
    assert_int_equal(cairn_enforce_next(&ledger, &here, 1, 41 * S), 0); /* that one counts */
    cairn_ledger_advise(&ledger, entry, 1, true, advice, sizeof advice);
    assert_non_null(strstr(advice, "(exchanges_per_day)"));
}

/* A verdict that is proposed late must not be more than the day allows, though it would have been
 * proposed before those that were run. */
static void
test_budget(void **state)
{
    static struct cairn_ledger ledger;
    struct cairn_ledger_entry *late;

    cairn_ledger_init(&ledger);
    late = add(&ledger, 1, CAIRN_EVIDENCE_PROGRESS, 10 * S);
    for (uint64_t i = 2; i <= 3; i++) {
        add(&ledger, 1, TWO_KINDS, 10 * S + i);
        assert_int_equal(cairn_enforce_next(&ledger, &here, 2, 20 * S), i);
        assert_true(cairn_enforce_end(&ledger, &here, i, CAIRN_ENFORCEMENT_TIMEOUT, 0, 80 * S));
    }
    late->evidence_kinds = TWO_KINDS;
    assert_true(cairn_ledger_proposes(&ledger, late, 2, true)); /* it is the first of its day */
    assert_int_equal(cairn_enforce_next(&ledger, &here, 2, 90 * S), 0);
    assert_int_equal(cairn_enforce_next(&ledger, &here, 2, 20 * S + DAY - 1), 0);
    /* they were run a day ago */
    assert_int_equal(cairn_enforce_next(&ledger, &here, 2, 20 * S + DAY), 1);
    assert_true(
        cairn_enforce_end(&ledger, &here, 1, CAIRN_ENFORCEMENT_NOT_STARTED, ENOENT, 21 * S + DAY));
    add(&ledger, 2, TWO_KINDS, 22 * S + DAY);
    /* two ranks, and one is left */
    assert_int_equal(cairn_enforce_next(&ledger, &here, 2, 22 * S + DAY), 0);
}

/* What was run counts when its entry has made room, at the time when it was run. */
static void
test_budget_of_many(void **state)
{
    static struct cairn_ledger ledger;
    const uint32_t kinds = TWO_KINDS;
    uint64_t counts[CAIRN_ENFORCED_RESULTS], wall_ns = 10 * S;

    cairn_ledger_init(&ledger);
    for (uint32_t i = 0; i <= CAIRN_LEDGER_MAX + 1; i++) {
        struct cairn_verdict verdict = {.kind = i < CAIRN_LEDGER_MAX ? CAIRN_HANG_COMPUTE
                                                                     : CAIRN_HANG_LINK,
                                        .ranks = {.items = &i, .count = 1},
                                        .until_step = CAIRN_STEP_NONE,
                                        .rate = 1};
        struct cairn_verdicts verdicts = {.items = &verdict, .count = 1};

        cairn_ledger_merge(&ledger, &verdicts, &kinds, 100, wall_ns, NULL, NULL);
        if (i == 0) {
            wall_ns += DAY / 2; /* it lasts for half a day before it is run */
            assert_int_equal(cairn_enforce_next(&ledger, &here, 1, wall_ns), 1);
            if (ledger.entries[0].enforcement.state == CAIRN_ENFORCEMENT_RUNNING)
                assert_true(
                    cairn_enforce_end(&ledger, &here, 1, CAIRN_ENFORCEMENT_SIGNALLED, 9, wall_ns));
        } else {
            ledger.entries[ledger.count - 1].evidence_kinds =
                i < CAIRN_LEDGER_MAX ? CAIRN_EVIDENCE_PROGRESS : kinds;
        }
        wall_ns += S;
    }
    assert_int_equal(ledger.entries[0].number, 3);
    assert_int_equal(ledger.exchanges_count, 1);
    assert_true(ledger.exchanges[0].wall_ns == 10 * S + DAY / 2);
    cairn_enforce_count(&ledger, counts);
    assert_int_equal(counts[CAIRN_ENFORCED_FAILED], 1);
    ledger.entries[ledger.count - 1].kind = CAIRN_HANG_COMPUTE;
    assert_int_equal(cairn_enforce_next(&ledger, &here, 1, wall_ns), 0);
    assert_int_equal(cairn_enforce_next(&ledger, &here, 2, wall_ns), CAIRN_LEDGER_MAX + 2);
}

/* What no agent runs any more is unknown, and is not run again; of what another one runs one waits
 * for the end. */
static void
test_deaths(void **state)
{
    static struct cairn_ledger ledger;
    const struct cairn_enforcer again = {.node = 1, .incarnation = 8, .run = 200};
    const struct cairn_enforcer other = {.node = 2, .incarnation = 5, .run = 300};
    const struct cairn_enforcer at_it = {.node = 1, .incarnation = 7, .run = 100, .running = 1};
    const bool without_1[NODES] = {true, false, true};

    cairn_ledger_init(&ledger);
    add(&ledger, 1, TWO_KINDS, 10 * S);
    assert_int_equal(cairn_enforce_next(&ledger, &here, 2, 10 * S), 1);
    /* its own, with any clocks */
    assert_false(cairn_enforce_settle(&ledger, &at_it, all_alive, NODES, 200 * S));
    ledger.entries[0].run = 300;
    add(&ledger, 1, TWO_KINDS, 10 * S)->run = 300;
    assert_false(cairn_enforce_settle(&ledger, &other, all_alive, NODES, 20 * S));
    /* the other agent is there, and at it */
    assert_int_equal(cairn_enforce_next(&ledger, &other, 2, 20 * S), 0);
    for (int how = 0; how < 4; how++) {
        ledger.entries[0].enforcement.state = CAIRN_ENFORCEMENT_RUNNING;
        if (how == 0)
            assert_true(cairn_enforce_settle(&ledger, &other, without_1, NODES, 20 * S));
        if (how == 1)
            /* a later start of the same agent */
            assert_true(cairn_enforce_settle(&ledger, &again, NULL, 0, 20 * S));
        if (how == 2)
            /* longer than any may run */
            assert_true(cairn_enforce_settle(&ledger, &other, all_alive, NODES, 101 * S));
        if (how == 3)
            /* a list that was another agent's brings it back */
            assert_true(cairn_enforce_settle(&ledger, &here, all_alive, NODES, 20 * S));
        assert_int_equal(ledger.entries[0].enforcement.state, CAIRN_ENFORCEMENT_UNKNOWN);
        assert_false(cairn_enforce_settle(&ledger, &other, without_1, NODES, 20 * S));
    }
    assert_int_equal(cairn_enforce_next(&ledger, &other, 2, 102 * S), 2); /* and not 1 again */
    /* which is known */
    assert_false(cairn_enforce_end(&ledger, &here, 1, CAIRN_ENFORCEMENT_UNKNOWN, 0, 103 * S));
    /* it was there after all */
    assert_true(cairn_enforce_end(&ledger, &here, 1, CAIRN_ENFORCEMENT_EXITED, 0, 103 * S));
    assert_int_equal(ledger.entries[0].enforcement.state, CAIRN_ENFORCEMENT_EXITED);
}

/* Of two agents' lists the newer one holds, but for what the older one knows better of commands. */
static void
test_two_lists(void **state)
{
    static struct cairn_ledger newer, older;
    uint64_t version;

    cairn_ledger_init(&older);
    add(&older, 1, TWO_KINDS, 10 * S);
    newer = older;
    newer.version = 50;
    assert_int_equal(cairn_enforce_next(&older, &here, 2, 10 * S), 1);
    version = newer.version;
    assert_true(cairn_enforce_keep(&newer, &older));
    assert_int_equal(newer.entries[0].enforcement.state, CAIRN_ENFORCEMENT_RUNNING);
    assert_true(newer.version > version);
    assert_false(cairn_enforce_keep(&newer, &older));
    newer.entries[0].enforcement.state = CAIRN_ENFORCEMENT_UNKNOWN;
    assert_false(cairn_enforce_keep(&newer, &older)); /* running is not new */
    assert_true(cairn_enforce_end(&older, &here, 1, CAIRN_ENFORCEMENT_EXITED, 0, 11 * S));
    assert_true(cairn_enforce_keep(&newer, &older));
    assert_int_equal(newer.entries[0].enforcement.state, CAIRN_ENFORCEMENT_EXITED);
    assert_false(cairn_enforce_keep(&older, &newer));
    assert_false(cairn_enforce_keep_budget(&newer, &older));

    newer.entries[0].opened_wall_ns++; /* the same number for something else */
    newer.entries[0].enforcement = (struct cairn_enforcement){.state = CAIRN_ENFORCEMENT_NONE};
    assert_false(cairn_enforce_keep(&newer, &older));
    assert_int_equal(cairn_enforce_next(&newer, &here, 1, 12 * S), 1);
    newer.entries[0].enforcement.state = CAIRN_ENFORCEMENT_NONE;
    assert_true(cairn_enforce_keep_budget(&newer, &older));
    assert_false(cairn_enforce_keep_budget(&newer, &older)); /* once */
    /* the one of the day was run there */
    assert_int_equal(cairn_enforce_next(&newer, &here, 1, 12 * S), 0);
}

static void
test_bytes(void **state)
{
    static struct cairn_ledger ledger, read_again;
    static uint8_t bytes[CAIRN_LEDGER_BYTES_MAX];
    struct cairn_writer writer;

    cairn_ledger_init(&ledger);
    add(&ledger, 2, TWO_KINDS, 10 * S);
    assert_int_equal(cairn_enforce_next(&ledger, &here, 2, 10 * S), 1);
    assert_true(cairn_enforce_end(&ledger, &here, 1, CAIRN_ENFORCEMENT_SIGNALLED, 15, 11 * S));
    ledger.enforced_before[CAIRN_ENFORCED_TIMEOUT] = 4;
    for (int again = 0; again < 2; again++) {
        cairn_writer_init(&writer, bytes, sizeof bytes);
        cairn_ledger_pack(&ledger, &writer);
        assert_int_equal(cairn_writer_done(&writer), CAIRN_OK);
        assert_int_equal(cairn_ledger_unpack(bytes, writer.used_bytes, &read_again),
                         again ? CAIRN_CORRUPT : CAIRN_OK);
        ledger.entries[0].enforcement.state =
            (enum cairn_enforcement_state)(CAIRN_ENFORCEMENT_EXITED + 1);
    }
    assert_int_equal(read_again.entries[0].enforcement.state, CAIRN_ENFORCEMENT_SIGNALLED);
    assert_int_equal(read_again.entries[0].enforcement.value, 15);
    assert_int_equal(read_again.entries[0].enforcement.node, 1);
    assert_int_equal(read_again.entries[0].enforcement.incarnation, 7);
    assert_int_equal(read_again.entries[0].enforcement.exchanges, 2);
    assert_true(read_again.entries[0].enforcement.begun_wall_ns == 10 * S &&
                read_again.entries[0].enforcement.ended_wall_ns == 11 * S);
    assert_int_equal(read_again.enforced_before[CAIRN_ENFORCED_TIMEOUT], 4);
}

static void
test_words(void **state)
{
    static const struct {
        struct cairn_enforcement enforcement;
        const char *result, *words;
    } cases[] = {
        {{.state = CAIRN_ENFORCEMENT_RUNNING, .node = 3}, "none", "enforce_command runs on node 3"},
        {{.state = CAIRN_ENFORCEMENT_UNKNOWN, .node = 3},
         "unknown",
         "unknown: the agent of node 3 ended before"},
        {{.state = CAIRN_ENFORCEMENT_NOT_STARTED, .value = ENOENT},
         "not_started",
         "could not be started on node 0: No such file or directory"},
        {{.state = CAIRN_ENFORCEMENT_TIMEOUT},
         "timeout",
         "did not end within 60 s on node 0, and was killed"},
        {{.state = CAIRN_ENFORCEMENT_SIGNALLED, .value = 11}, "failed", "signal 11 ended it"},
        {{.state = CAIRN_ENFORCEMENT_EXITED}, "succeeded", "succeeded on node 0"},
        {{.state = CAIRN_ENFORCEMENT_EXITED, .value = 4},
         "failed",
         "failed on node 0 with exit status 4"},
    };
    char text[CAIRN_ENFORCE_TEXT_BYTES];

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_string_equal(
            cairn_enforce_result_text(cairn_enforcement_result(&cases[i].enforcement)),
            cases[i].result);
        cairn_enforce_describe(&cases[i].enforcement, text, sizeof text);
        if (!strstr(text, cases[i].words))
            fail_msg("\"%s\" does not say \"%s\"", text, cases[i].words);
    }
}

/* The planner is told of open entries of slow ranks and nodes alone, and only of listed ranks. */
static void
test_slow_ranks(void **state)
{
    static struct cairn_ledger ledger;
    static uint32_t ranks[CAIRN_LEDGER_SLOW_MAX];
    static double rates[CAIRN_LEDGER_SLOW_MAX];

    cairn_ledger_init(&ledger);
    assert_int_equal(cairn_ledger_slow_ranks(&ledger, ranks, rates), 0);
    ledger.entries[0] = (struct cairn_ledger_entry){
        .kind = CAIRN_SLOW_COMPUTE, .rank_count = 2, .ranks = {3, 9}, .rate = 1.5};
    ledger.entries[1] = (struct cairn_ledger_entry){
        .kind = CAIRN_SLOW_COMPUTE, .rank_count = 1, .rate = 7, .closed_wall_ns = 1};
    ledger.entries[2] = (struct cairn_ledger_entry){
        .kind = CAIRN_HANG_COMPUTE, .rank_count = 1, .ranks = {1}, .rate = 9};
    ledger.entries[3] = (struct cairn_ledger_entry){
        .kind = CAIRN_SLOW_NODE, .rank_count = 1000, .ranks = {3, 2}, .rate = 2.5};
    ledger.count = 4;
    assert_int_equal(cairn_ledger_slow_ranks(&ledger, ranks, rates), 2 + CAIRN_LEDGER_RANKS_MAX);
    assert_int_equal(ranks[0], 3);
    assert_int_equal(ranks[1], 9);
    assert_int_equal(ranks[2], 3);
    assert_int_equal(ranks[3], 2);
    assert_true(rates[1] <= 1.5 && rates[1] >= 1.5 && rates[2] <= 2.5 && rates[2] >= 2.5);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_once),
        cmocka_unit_test(test_cost),
        cmocka_unit_test(test_cost_of_a_rate_that_changes),
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_budget_of_many),
        cmocka_unit_test(test_budget_of_what_was_run),
        cmocka_unit_test(test_deaths),
        cmocka_unit_test(test_two_lists),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_slow_ranks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
