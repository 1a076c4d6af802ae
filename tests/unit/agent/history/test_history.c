/*
 * tests/unit/agent/history/test_history.c - events packed and damaged, the bounds of a node's book,
 * histories merged in causal order although clocks lie, and reports that add up.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/history/book.h"
#include "agent/history/report.h"
#include "tests/support/cmocka.h"

#define EPOCH(n) ((uint64_t)(n) << 16)
#define S UINT64_C(1000000000)

enum { EVENTS_MAX = 64, LISTS_MAX = 4 };

static struct history_event
event_at(enum history_kind kind, uint64_t wall_ns, uint64_t epoch, uint64_t step)
{
    struct history_event event = history_event_of(kind);

    event.wall_ns = event.until_wall_ns = wall_ns;
    event.at = (struct cairn_generation_id){EPOCH(epoch), step, epoch};
    return event;
}

static struct history_event
commit_at(uint64_t wall_ns, uint64_t epoch, uint64_t first, uint64_t last, uint64_t count)
{
    struct history_event event = event_at(HISTORY_COMMIT, wall_ns, epoch, first);

    event.generation = event.at;
    event.last_step = last;
    event.count = count;
    return event;
}

/* ---- events ---- */

static void
test_an_event_survives_packing(void **state)
{
    uint8_t packed[HISTORY_PACKED_BYTES_MAX], again[HISTORY_PACKED_BYTES_MAX];
    char text[HISTORY_TEXT_BYTES];
    struct history_event out;

    for (int kind = 1; kind < HISTORY_KIND_END; kind++) {
        struct history_event event = event_at((enum history_kind)kind, 5, 2, 7);
        size_t len;

        event.number = 9;
        event.until_wall_ns = 11;
        event.generation = (struct cairn_generation_id){EPOCH(1), 3, 4};
        event.last_step = 12;
        event.count = 13;
        event.captures = 14;
        event.subject = 15;
        event.bytes = 16;
        event.took_ns = 17;
        event.rate = 1.5;
        event.change = 1;
        event.node = 2;
        event.other = 3;
        event.rank = 4;
        event.err = CAIRN_LOST;
        event.text = "why";
        len = history_event_pack(&event, packed);
        assert_int_equal(len, HISTORY_FIXED_BYTES + 3);
        assert_int_equal(history_event_unpack(packed, len, text, &out), CAIRN_OK);
        assert_int_equal(history_event_pack(&out, again), len);
        assert_memory_equal(packed, again, len);
        assert_string_equal(out.text, "why");
        assert_true(strlen(history_event_describe(&out, text, sizeof text)) > 0);
        for (size_t cut = 0; cut < len; cut++)
            assert_int_not_equal(history_event_unpack(packed, cut, text, &out), CAIRN_OK);
    }
}

static void
test_what_an_event_lacks_is_left_out(void **state)
{
    struct history_event skip = event_at(HISTORY_SKIP, 5, 1, 1),
                         verdict = event_at(HISTORY_VERDICT, 5, 1, 1);
    char text[HISTORY_TEXT_BYTES], cut[HISTORY_TEXT_BYTES];

    skip.generation.step = 20;
    assert_string_equal(history_event_describe(&skip, text, sizeof text), "skipped step 20");
    skip.last_step = 60;
    skip.count = 3;
    skip.node = 4;
    skip.text = "why";
    assert_string_equal(history_event_describe(&skip, text, sizeof text),
                        "skipped steps 20 to 60 (3 generations); node 4 was not done: why");
    skip.node = HISTORY_NONE;
    for (size_t bytes = 1; bytes <= strlen(text); bytes++) {
        cut[bytes] = 'x';
        assert_true(strlen(history_event_describe(&skip, cut, bytes)) < bytes);
        assert_int_equal(cut[bytes], 'x');
    }
    verdict.change = UINT32_MAX; /* of a newer agent */
    assert_non_null(strstr(history_event_describe(&verdict, text, sizeof text), "changed"));
}

static void
test_what_is_no_event_is_refused(void **state)
{
    uint8_t packed[HISTORY_PACKED_BYTES_MAX];
    char text[HISTORY_TEXT_BYTES];
    struct history_event event = event_at(HISTORY_START, 5, 1, 1), out;
    size_t len;

    event.number = 1;
    event.text = "plain";
    len = history_event_pack(&event, packed);
    packed[0] = 2;
    assert_int_equal(history_event_unpack(packed, len, text, &out), CAIRN_VERSION);
    packed[0] = 1;
    packed[1] = HISTORY_KIND_END;
    assert_int_equal(history_event_unpack(packed, len, text, &out), CAIRN_CORRUPT);
    packed[1] = 0;
    assert_int_equal(history_event_unpack(packed, len, text, &out), CAIRN_CORRUPT);
    packed[1] = HISTORY_START;
    packed[len - 1] = '\x1b'; /* would steer a terminal */
    assert_int_equal(history_event_unpack(packed, len, text, &out), CAIRN_CORRUPT);
    event.rate = NAN;
    len = history_event_pack(&event, packed);
    assert_int_equal(history_event_unpack(packed, len, text, &out), CAIRN_CORRUPT);
    event.rate = 0;
    event.until_wall_ns = 4;
    len = history_event_pack(&event, packed);
    assert_int_equal(history_event_unpack(packed, len, text, &out), CAIRN_CORRUPT);
}

/* ---- the book ---- */

static void
test_commits_are_folded_to_ranges(void **state)
{
    struct history_book book;
    struct history_event event;
    uint64_t number;

    history_book_init(&book);
    for (uint64_t step = 10; step <= 50; step += 10) {
        event = commit_at(step * S, 1, step, step, 1);
        number = history_book_add(&book, &event);
        assert_int_equal(number, 1);
    }
    assert_int_equal(book.count, 1);
    assert_int_equal(book.events[0].last_step, 50);
    assert_int_equal(book.events[0].count, 5);
    assert_int_equal(book.events[0].until_wall_ns, 50 * S);
    /* a rare event cuts the range, and so do another run and an hour */
    event = event_at(HISTORY_DEATH, 51 * S, 1, 50);
    assert_int_equal(history_book_add(&book, &event), 2);
    event = commit_at(60 * S, 1, 60, 60, 1);
    assert_int_equal(history_book_add(&book, &event), 3);
    event = commit_at(61 * S, 2, 60, 60, 1);
    assert_int_equal(history_book_add(&book, &event), 4);
    event = commit_at(62 * S, 2, 61, 61, 1);
    assert_int_equal(history_book_add(&book, &event), 4);
    event = commit_at(3700 * S, 2, 62, 62, 1);
    assert_int_equal(history_book_add(&book, &event), 5);
    /* skips between commits do not cut them, nor commits the skips */
    event = commit_at(3701 * S, 2, 63, 63, 1);
    event.kind = HISTORY_SKIP;
    event.node = 1;
    assert_int_equal(history_book_add(&book, &event), 6);
    event = commit_at(3702 * S, 2, 64, 64, 1);
    assert_int_equal(history_book_add(&book, &event), 5);
    event.kind = HISTORY_SKIP;
    event.generation.step = event.last_step = 65;
    event.node = 1;
    assert_int_equal(history_book_add(&book, &event), 6);
    event.node = 2;
    event.generation.step = event.last_step = 66;
    assert_int_equal(history_book_add(&book, &event), 7); /* another blocker */
    history_book_fini(&book);
}

static void
test_rare_events_outlive_plenty(void **state)
{
    struct history_book book;
    struct history_event event;
    uint32_t deaths = 0, commits = 0;
    uint64_t generations = 0;

    history_book_init(&book);
    book.events_max = 20;
    for (uint64_t i = 0; i < 3; i++) {
        event = event_at(HISTORY_DEATH, i * S, 1, i);
        assert_true(history_book_add(&book, &event) > 0);
    }
    for (uint64_t i = 0; i < 200; i++) { /* a storm of ranges that cannot be extended */
        event = commit_at((10 + i) * S, 1, 10 + i, 10 + i, 1);
        assert_true(history_book_add(&book, &event) > 0);
        event = event_at(i % 2 ? HISTORY_START : HISTORY_STOP, (10 + i) * S, 1, i);
        assert_true(history_book_add(&book, &event) > 0);
        assert_true(book.count <= 20);
    }
    for (uint32_t i = 0; i < book.count; i++) {
        deaths += book.events[i].kind == HISTORY_DEATH;
        commits += book.events[i].kind == HISTORY_COMMIT;
        if (book.events[i].kind == HISTORY_COMMIT)
            generations += book.events[i].count;
        assert_true(i == 0 || book.events[i].number > book.events[i - 1].number);
    }
    assert_int_equal(deaths, 3);
    assert_int_equal(generations, 200); /* old ones were joined, none was lost */
    assert_in_range(commits, 1, 3);     /* they weigh more */
    history_book_fini(&book);
}

static void
test_a_book_is_bounded_by_bytes(void **state)
{
    struct history_book book;
    struct history_event event = event_at(HISTORY_OPERATOR, 1, 1, 1);
    char text[HISTORY_TEXT_BYTES];

    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    event.text = text;
    history_book_init(&book);
    for (int i = 0; i < 2000; i++)
        assert_true(history_book_add(&book, &event) > 0);
    assert_true(book.bytes <= HISTORY_BYTES_MAX);
    assert_true(book.count > 100);
    assert_int_equal(book.last_number, 2000);
    history_book_fini(&book);
}

static void
test_a_book_knows_what_to_store(void **state)
{
    struct history_book book;
    struct history_event event = event_at(HISTORY_START, 1, 1, 1);

    history_book_init(&book);
    book.events_max = 2;
    assert_int_equal(history_book_add(&book, &event), 1);
    assert_true(history_book_has_changes(&book));
    history_book_stored(&book);
    assert_false(history_book_has_changes(&book));
    event = *history_book_find(&book, 1);
    event.text = ""; /* the book's own goes with its event */
    event.change = 1;
    history_book_update(&book, &event);
    assert_true(book.changed[0]);
    history_book_stored(&book);
    assert_int_equal(history_book_add(&book, &event), 2);
    assert_int_equal(history_book_add(&book, &event), 3);
    assert_int_equal(book.removed_count, 1);
    assert_int_equal(book.removed[0], 1);
    assert_null(history_book_find(&book, 1));
    history_book_stored(&book);
    history_book_unstored(&book);
    assert_true(book.changed[0] && book.changed[1]);
    /* what was stored comes back in order, or not at all */
    event.number = 3;
    assert_int_equal(history_book_load(&book, &event), CAIRN_CORRUPT);
    event.number = 7;
    assert_int_equal(history_book_load(&book, &event), CAIRN_OK);
    assert_int_equal(history_book_add(&book, &event), 8);
    history_book_fini(&book);
}

/* ---- merging ---- */

struct lists {
    struct history_event events[LISTS_MAX][EVENTS_MAX];
    struct history_list lists[LISTS_MAX];
    uint32_t count;
};

static struct history_event *
put(struct lists *lists, uint32_t node, struct history_event event)
{
    struct history_list *list = &lists->lists[node];

    for (; lists->count <= node; lists->count++)
        lists->lists[lists->count] =
            (struct history_list){lists->count, lists->events[lists->count], 0};
    event.number = list->count + 1;
    lists->events[node][list->count] = event;
    return &lists->events[node][list->count++];
}

static struct history_event
about(struct history_event event, uint32_t node, uint64_t incarnation)
{
    event.node = node;
    event.subject = incarnation;
    return event;
}

/* "0:commit 1:death …" */
static const char *
order_of(const struct history_merge *merge, char *out)
{
    size_t used = 0;

    out[0] = '\0';
    for (uint32_t i = 0; i < merge->count; i++)
        used += (size_t)sprintf(out + used, "%s%u:%s", i ? " " : "", merge->entries[i].node,
                                history_kind_name(merge->entries[i].event.kind));
    return out;
}

static void
test_epochs_and_steps_come_before_clocks(void **state)
{
    struct lists lists = {0};
    struct history_merge merge;
    char order[1024];

    /* node 1's clock is a day behind */
    put(&lists, 0, event_at(HISTORY_OPERATOR, 100 * S, 1, 10));
    put(&lists, 0, event_at(HISTORY_EPOCH, 110 * S, 2, 0));
    put(&lists, 0, event_at(HISTORY_OPERATOR, 130 * S, 2, 30));
    put(&lists, 1, event_at(HISTORY_CONFIG, 5 * S, 1, 20));
    put(&lists, 1, event_at(HISTORY_EPOCH, 15 * S, 2, 0));
    put(&lists, 1, event_at(HISTORY_CONFIG, 16 * S, 2, 25));
    assert_int_equal(history_merge(lists.lists, lists.count, &merge), CAIRN_OK);
    assert_string_equal(order_of(&merge, order), "0:operator 1:config 1:epoch 1:config 0:operator");
    assert_int_equal(merge.entries[2].seen[0], 3); /* both have the epoch */
    history_merge_fini(&merge);
}

static void
test_a_node_dies_before_it_starts_again(void **state)
{
    struct lists lists = {0};
    struct history_merge merge;
    char order[1024];

    /* The agent that starts again stands at an old epoch, and its clock is ahead or behind. */
    for (int behind = 0; behind < 2; behind++) {
        uint64_t wall = behind ? 1 * S : 900 * S;

        memset(&lists, 0, sizeof lists);
        put(&lists, 0, commit_at(100 * S, 1, 10, 40, 4));
        put(&lists, 0, about(event_at(HISTORY_DEATH, 140 * S, 1, 41), 2, 7));
        put(&lists, 0, about(event_at(HISTORY_RETURN, 160 * S, 1, 41), 2, 8));
        put(&lists, 0, event_at(HISTORY_REPAIR, 170 * S, 2, 0));
        put(&lists, 1, about(event_at(HISTORY_DEATH, 141 * S, 1, 42), 2, 7));
        put(&lists, 1, about(event_at(HISTORY_RETURN, 161 * S, 1, 42), 2, 8));
        put(&lists, 2, about(event_at(HISTORY_START, wall, 0, 0), HISTORY_NONE, 8));
        put(&lists, 2, event_at(HISTORY_EPOCH, wall + S, 2, 0));
        assert_int_equal(history_merge(lists.lists, lists.count, &merge), CAIRN_OK);
        assert_string_equal(order_of(&merge, order),
                            behind ? "0:commit 0:death 2:start 0:return 2:epoch 0:repair"
                                   : "0:commit 0:death 2:start 0:return 0:repair 2:epoch");
        history_merge_fini(&merge);
    }
}

static void
test_contradictions_do_not_hang_it(void **state)
{
    struct lists lists = {0};
    struct history_merge merge;

    /* each start waits for a death behind the other one */
    put(&lists, 0, about(event_at(HISTORY_START, 1, 0, 0), HISTORY_NONE, 9));
    put(&lists, 0, about(event_at(HISTORY_DEATH, 2, 1, 1), 1, 3));
    put(&lists, 1, about(event_at(HISTORY_START, 1, 0, 0), HISTORY_NONE, 9));
    put(&lists, 1, about(event_at(HISTORY_DEATH, 2, 1, 1), 0, 3));
    assert_int_equal(history_merge(lists.lists, lists.count, &merge), CAIRN_OK);
    assert_int_equal(merge.count, 4);
    history_merge_fini(&merge);
    assert_int_equal(history_merge(NULL, 0, &merge), CAIRN_OK);
    assert_int_equal(merge.count, 0);
    history_merge_fini(&merge);
}

static void
test_ranges_of_commits_are_told_once(void **state)
{
    struct lists lists = {0};
    struct history_merge merge;
    uint64_t count = 0;

    /* each node cut them where it saw something else */
    put(&lists, 0, commit_at(1 * S, 1, 10, 50, 5));
    put(&lists, 0, about(event_at(HISTORY_DEATH, 6 * S, 1, 50), 3, 1));
    put(&lists, 0, commit_at(7 * S, 1, 60, 90, 4));
    put(&lists, 1, commit_at(1 * S, 1, 10, 70, 7));
    put(&lists, 1, event_at(HISTORY_CONFIG, 8 * S, 1, 70));
    put(&lists, 1, commit_at(9 * S, 1, 80, 90, 2));
    assert_int_equal(history_merge(lists.lists, lists.count, &merge), CAIRN_OK);
    for (uint32_t i = 0; i < merge.count; i++)
        if (merge.entries[i].event.kind == HISTORY_COMMIT)
            count += merge.entries[i].event.count;
    assert_int_equal(count, 9);
    assert_int_equal(merge.entries[0].event.last_step, 70);
    assert_int_equal(merge.entries[0].event.count, 7);
    history_merge_fini(&merge);
}

static void
test_a_second_death_is_another_one(void **state)
{
    struct lists lists = {0};
    struct history_merge merge;
    char order[1024];

    for (uint32_t node = 0; node < 2; node++)
        for (uint64_t i = 0; i < 2; i++) { /* it was only silent, twice */
            put(&lists, node, about(event_at(HISTORY_DEATH, 10 * i + node, 1, 5), 3, 1));
            put(&lists, node, about(event_at(HISTORY_RETURN, 10 * i + 5 + node, 1, 5), 3, 1));
        }
    assert_int_equal(history_merge(lists.lists, lists.count, &merge), CAIRN_OK);
    assert_string_equal(order_of(&merge, order), "0:death 0:return 0:death 0:return");
    history_merge_fini(&merge);
}

/* ---- the report ---- */

static struct history_event
training(uint64_t begin_s, uint64_t end_s, uint64_t first, uint64_t last, enum history_training how)
{
    struct history_event event = event_at(HISTORY_TRAINING, begin_s * S, 1, first);

    event.until_wall_ns = end_s * S;
    event.generation.step = first;
    event.last_step = last;
    event.count = last - first + 1;
    event.change = how;
    return event;
}

static struct history_report
report_on(const struct lists *lists, uint64_t since_s, uint64_t now_s)
{
    struct history_merge merge;
    struct history_report report;
    uint64_t sum;

    assert_int_equal(history_merge(lists->lists, lists->count, &merge), CAIRN_OK);
    assert_int_equal(
        history_report(lists->lists, lists->count, &merge, since_s * S, now_s * S, &report),
        CAIRN_OK);
    history_merge_fini(&merge);
    sum = report.productive_ns + report.redone_ns + report.snapshots_ns + report.stragglers_ns +
          report.down_ns;
    assert_int_equal(sum, report.until_wall_ns - report.from_wall_ns);
    return report;
}

static void
test_a_report_adds_up(void **state)
{
    struct lists lists = {0};
    struct history_report report;
    struct history_event *event;

    /* 100 s of training to step 100, down for 50 s, resumed from step 80, to the end at 200 */
    event = put(&lists, 0, training(1000, 1100, 1, 100, HISTORY_ENDED));
    event->took_ns = 5 * S;
    event->captures = 50;
    put(&lists, 0, training(1150, 1270, 81, 200, HISTORY_LEFT));
    event = put(&lists, 1, training(1000, 1098, 1, 98, HISTORY_ENDED));
    event->took_ns = 10 * S; /* the slowest */
    event->captures = 50;
    put(&lists, 1, training(1150, 1270, 81, 200, HISTORY_LEFT));
    report = report_on(&lists, 0, 9000);
    assert_int_equal(report.until_wall_ns, 1270 * S);
    assert_int_equal(report.down_ns, 50 * S);
    assert_int_equal(report.redone_ns, 20 * S);
    assert_int_equal(report.redone_steps, 20);
    assert_int_equal(report.steps, 220);
    assert_int_equal(report.lives, 2);
    assert_int_equal(report.faults, 1);
    assert_false(report.is_running);
    assert_int_equal(report.cost_ns, S / 5);
    assert_true(report.snapshots_ns > 9 * S && report.snapshots_ns < 10 * S);
    assert_int_equal(report.step_ns, S);
    assert_int_equal(report.between_faults_ns, 220 * S);
    assert_in_range(report.best_steps, 9, 10); /* Young: sqrt(2 · 0.2 · 220) = 9.4 s */
    /* from within */
    report = report_on(&lists, 1050, 9000);
    assert_int_equal(report.from_wall_ns, 1050 * S);
    assert_int_equal(report.down_ns, 50 * S);
    assert_int_equal(report.redone_ns, 20 * S);
    assert_int_equal(report.steps, 170);
}

static void
test_a_job_that_runs_and_one_that_hangs(void **state)
{
    struct lists lists = {0};
    struct history_report report;

    put(&lists, 0, training(1000, 1100, 1, 100, HISTORY_RUNS));
    report = report_on(&lists, 0, 1102);
    assert_true(report.is_running);
    assert_int_equal(report.productive_ns, 102 * S);
    assert_int_equal(report.faults, 0);
    assert_true(report.is_bound);
    report = report_on(&lists, 0, 1200); /* no step for 100 s */
    assert_false(report.is_running);
    assert_int_equal(report.down_ns, 100 * S);
    assert_int_equal(report.faults, 1);
    memset(&lists, 0, sizeof lists);
    put(&lists, 0, event_at(HISTORY_START, 5, 1, 1));
    report = report_on(&lists, 0, 1200);
    assert_int_equal(report.from_wall_ns, report.until_wall_ns);
}

static void
test_stragglers_cost_what_they_slow_down(void **state)
{
    struct lists lists = {0};
    struct history_report report;
    struct history_event *event;

    for (uint32_t node = 0; node < 2; node++) {
        put(&lists, node, training(1000, 1100, 1, 100, HISTORY_LEFT));
        event = put(&lists, node, event_at(HISTORY_VERDICT, 1020 * S, 1, 20));
        event->subject = 1;
        event->change = HISTORY_OPENED;
        event->rate = 2;
        event = put(&lists, node, event_at(HISTORY_VERDICT, 1030 * S, 1, 30));
        event->subject = 2; /* a slower one, at the same time */
        event->change = HISTORY_OPENED;
        event->rate = 4;
        event = put(&lists, node, event_at(HISTORY_VERDICT, 1050 * S, 1, 50));
        event->subject = 2;
        event->change = HISTORY_CLOSED;
        event->rate = 4;
    }
    report = report_on(&lists, 0, 1100);
    /* 10 s by half, 20 s by three quarters, 50 s by half */
    assert_int_equal(report.stragglers_ns / 1000000, 45000);
    assert_int_equal(report.productive_ns / 1000000, 55000);
}

static void
test_dalys_interval(void **state)
{
    /* Daly 2006: sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + d / 2M / 9) - d */
    assert_int_equal(history_best_interval_ns(300 * S, 24 * 3600 * S) / S, 7001);
    assert_int_equal(history_best_interval_ns(10 * S, 5 * S), 5 * S); /* d >= 2 M: M */
    assert_true(history_best_interval_ns(0, S) == 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_event_survives_packing),
        cmocka_unit_test(test_what_an_event_lacks_is_left_out),
        cmocka_unit_test(test_what_is_no_event_is_refused),
        cmocka_unit_test(test_commits_are_folded_to_ranges),
        cmocka_unit_test(test_rare_events_outlive_plenty),
        cmocka_unit_test(test_a_book_is_bounded_by_bytes),
        cmocka_unit_test(test_a_book_knows_what_to_store),
        cmocka_unit_test(test_epochs_and_steps_come_before_clocks),
        cmocka_unit_test(test_a_node_dies_before_it_starts_again),
        cmocka_unit_test(test_contradictions_do_not_hang_it),
        cmocka_unit_test(test_ranges_of_commits_are_told_once),
        cmocka_unit_test(test_a_second_death_is_another_one),
        cmocka_unit_test(test_a_report_adds_up),
        cmocka_unit_test(test_a_job_that_runs_and_one_that_hangs),
        cmocka_unit_test(test_stragglers_cost_what_they_slow_down),
        cmocka_unit_test(test_dalys_interval),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
