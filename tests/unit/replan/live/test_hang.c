/* tests/unit/replan/live/test_hang.c - who hangs is told from counts of operations, where nothing
 * else is known. */
#include "tests/unit/replan/counted_job.h"

static void
test_never_arrives(void **state)
{
    for (int until = 0; until < 6; until++)
        for (uint32_t culprit = 0; culprit < WORLD; culprit += 3) {
            const struct cairn_ledger_entry *entry;
            struct job job;
            uint64_t hung_ns;

            start(&job);
            steps(&job, 80);
            assert_int_equal(job.ledger.count, 0);
            hang(&job, culprit, until);
            hung_ns = job.now_ns;
            pass(&job, 12 * S);
            entry = only_entry(&job);
            assert_int_equal(entry->kind, CAIRN_HANG_COMPUTE);
            assert_int_equal(entry->rank_count, 1);
            assert_int_equal(entry->ranks[0], culprit);
            assert_true(entry->victim_count > 0);
            assert_true(job.begun_ns - hung_ns <= 10 * S);
            assert_non_null(strstr(entry->evidence, " operations "));
            pass(&job, 60 * S);
            assert_int_equal(job.opened + job.returned, 1);
            catch_up(&job, 81); /* it comes back */
            steps(&job, 4);
            assert_int_equal(job.closed, 1);
            assert_int_not_equal(only_entry(&job)->closed_wall_ns, 0);
            end(&job);
        }
}

/* Of sends and receives, which have no numbers. */
static void
test_transfers(void **state)
{
    const struct cairn_ledger_entry *entry;
    struct job job;

    start(&job);
    for (int i = 0; i < 80; i++) {
        transfer(&job, 0, DATA, CAIRN_SEND, 1);
        transfer(&job, 2, DATA, CAIRN_RECV, 0);
        transfer(&job, 2, DATA, CAIRN_SEND, 0);
        transfer(&job, 0, DATA, CAIRN_RECV, 1);
        pass(&job, S / 2);
    }
    transfer(&job, 0, DATA, CAIRN_SEND, 1);
    transfer(&job, 2, DATA, CAIRN_RECV, 0);
    transfer(&job, 0, DATA, CAIRN_RECV, 1); /* what the other computes in between does not end */
    pass(&job, 12 * S);
    entry = only_entry(&job);
    assert_int_equal(entry->kind, CAIRN_HANG_COMPUTE);
    assert_int_equal(entry->rank_count, 1);
    assert_int_equal(entry->ranks[0], 2);
    end(&job);
}

/* All have entered it, and where the device was looked at it has begun and does not end: nobody is
 * missing. */
static void
test_transfer_stopped(void **state)
{
    const struct cairn_ledger_entry *entry;
    struct job job;

    for (int hosts_go_on = 0; hosts_go_on < 2; hosts_go_on++) {
        start(&job);
        for (int i = 0; i < 80; i++) {
            for (uint32_t rank = 0; rank < WORLD; rank++) {
                enter(&job, rank, ALL, CAIRN_ALL_REDUCE);
                run(&job, rank, ALL, CAIRN_ALL_REDUCE, false);
                run(&job, rank, ALL, CAIRN_ALL_REDUCE, true);
            }
            pass(&job, S / 2);
        }
        for (uint32_t rank = 0; rank < WORLD; rank++) {
            enter(&job, rank, ALL, CAIRN_ALL_REDUCE);
            run(&job, rank, ALL, CAIRN_ALL_REDUCE, false);
            /* as far as each one's queue has room */
            for (uint32_t ahead = 0; hosts_go_on && ahead < rank; ahead++)
                enter(&job, rank, ALL, CAIRN_ALL_REDUCE);
        }
        pass(&job, 12 * S);
        entry = only_entry(&job);
        assert_int_equal(entry->kind, CAIRN_HANG_LINK);
        assert_int_equal(entry->rank_count, WORLD);
        assert_int_equal(entry->link_count, WORLD);
        assert_non_null(strstr(entry->evidence, "all_reduce number 81"));
        end(&job);
    }
}

/* Where the device was not looked at: those that others wait for have all entered the same
 * operation. */
static void
test_transfer_stopped_in_a_part(void **state)
{
    const struct cairn_ledger_entry *entry;
    struct job job;

    start(&job);
    steps(&job, 80);
    for (uint32_t rank = 0; rank < WORLD; rank++)
        step_of(&job, rank, rank < 2 ? 2 : 4);
    pass(&job, 12 * S);
    entry = only_entry(&job);
    assert_int_equal(entry->kind, CAIRN_HANG_LINK);
    assert_int_equal(entry->rank_count, 2);
    assert_int_equal(entry->ranks[0], 0);
    assert_int_equal(entry->ranks[1], 1);
    assert_int_equal(entry->victim_count, 2);
    end(&job);
}

static void
test_gone_stopped_silent(void **state)
{
    for (int how = 0; how < 3; how++) {
        const struct cairn_ledger_entry *entry;
        struct job job;

        start(&job);
        steps(&job, 80);
        hang(&job, 1, 4);
        if (how == 2)
            job.is_mute[1] = true;
        else
            job.presence[1] = how == 0 ? CAIRN_PRESENCE_GONE : CAIRN_PRESENCE_STOPPED;
        pass(&job, 13 * S);
        entry = only_entry(&job);
        assert_int_equal(entry->kind, how == 1 ? CAIRN_HANG_COMPUTE : CAIRN_CRASH);
        assert_int_equal(entry->rank_count, 1);
        assert_int_equal(entry->ranks[0], 1);
        assert_int_equal((entry->evidence_kinds & CAIRN_EVIDENCE_PROCESS) != 0, how < 2);
        end(&job);
    }
}

/* Two that wait for each other, having called two communicators in different orders. */
static void
test_circle(void **state)
{
    const struct cairn_ledger_entry *entry;
    struct job job;

    start(&job);
    steps(&job, 80);
    enter(&job, 0, TENSOR, CAIRN_BROADCAST);
    enter(&job, 1, TENSOR, CAIRN_ALL_GATHER);
    pass(&job, 12 * S);
    entry = only_entry(&job);
    assert_int_equal(entry->rank_count, 2);
    assert_true(entry->confidence < 0.6);
    assert_non_null(strstr(entry->evidence, "different orders"));
    end(&job);
}

/* A process that has entered all is missed where an operation was seen to begin and not to end. */
static void
test_gone_in_the_middle(void **state)
{
    const struct cairn_ledger_entry *entry;
    struct job job;

    start(&job);
    steps(&job, 80);
    for (uint32_t rank = 0; rank < WORLD; rank++) {
        enter(&job, rank, ALL, CAIRN_ALL_REDUCE);
        run(&job, rank, ALL, CAIRN_ALL_REDUCE, false);
    }
    job.presence[2] = CAIRN_PRESENCE_GONE;
    pass(&job, 12 * S);
    entry = only_entry(&job);
    assert_int_equal(entry->kind, CAIRN_CRASH);
    assert_int_equal(entry->rank_count, 1);
    assert_int_equal(entry->ranks[0], 2);
    assert_int_equal(entry->victim_count, 3);
    end(&job);
}

/* One that has joined and enters nothing, as it loads data first, is there: it is waited for, and
 * not gone. */
static void
test_never_begins(void **state)
{
    const struct cairn_ledger_entry *entry;
    struct job job;

    start(&job);
    pass(&job, 60 * S);
    for (uint32_t rank = 1; rank < WORLD; rank++)
        enter(&job, rank, ALL, CAIRN_ALL_REDUCE);
    pass(&job, 119 * S);
    assert_int_equal(job.ledger.count, 0);
    pass(&job, 3 * S);
    entry = only_entry(&job);
    assert_int_equal(entry->kind, CAIRN_HANG_COMPUTE);
    assert_int_equal(entry->rank_count, 1);
    assert_int_equal(entry->ranks[0], 0);
    assert_non_null(strstr(entry->evidence, "has entered 0 operations"));
    assert_non_null(strstr(entry->evidence, "for 120."));
    end(&job);
}

/* A hang is over when those that waited go on, even if something else stands still. */
static void
test_over_while_others_stand(void **state)
{
    struct job job;

    start(&job);
    steps(&job, 80);
    enter(&job, 0, TENSOR, CAIRN_ALL_GATHER);
    pass(&job, 12 * S);
    assert_int_equal(only_entry(&job)->ranks[0], 1);
    for (int i = 0; i < 40; i++) {
        for (uint32_t rank = 0; rank < 2; rank++)
            if (i > 0 || rank == 1)
                enter(&job, rank, TENSOR, CAIRN_ALL_GATHER);
        pass(&job, S / 2);
    }
    assert_int_equal(job.opened + job.returned, 1);
    assert_int_equal(job.closed, 1);
    end(&job);
}

/* An agent that starts again in the middle knows nothing of those that wait, and so it is not
 * over. */
static void
test_agents_begin_anew(void **state)
{
    struct job job;

    start(&job);
    steps(&job, 80);
    hang(&job, 1, 5);
    pass(&job, 12 * S);
    assert_int_equal(only_entry(&job)->ranks[0], 1);
    for (uint32_t rank = 0; rank < WORLD; rank++)
        begin_anew(&job, rank);
    pass(&job, 60 * S);
    assert_int_equal(job.opened + job.returned, 1);
    assert_int_equal(job.closed, 0);
    for (uint32_t rank = 0; rank < WORLD; rank++)
        join(&job, rank, ALL, rank, WORLD); /* the plugin says it again, now and then */
    catch_up(&job, 81);
    steps(&job, 8);
    assert_int_equal(job.closed, 1);
    end(&job);
}

/* Those that wait may be killed, or be silent for a while: the hang goes on. */
static void
test_victims_unheard(void **state)
{
    struct job job;

    start(&job);
    steps(&job, 80);
    enter(&job, 0, DATA, CAIRN_ALL_GATHER);
    pass(&job, 12 * S);
    assert_int_equal(only_entry(&job)->ranks[0], 2);
    job.is_mute[0] = true;
    pass(&job, 20 * S);
    assert_int_equal(job.closed, 0);
    job.is_mute[0] = false;
    enter(&job, 2, DATA, CAIRN_ALL_GATHER);
    steps(&job, 4);
    assert_int_equal(job.opened + job.returned, 1);
    assert_int_equal(job.closed, 1);
    end(&job);
}

/* A job of another size has taken the place of one that hung, and nobody has reported that it
 * is gone. */
static void
test_another_job(void **state)
{
    struct cairn_reduce_options options = {.rank = 0, .world = 2, .attachment = 2, .emit = carry};
    struct job job;

    start(&job);
    steps(&job, 80);
    hang(&job, 1, 5);
    pass(&job, 12 * S);
    assert_int_equal(job.opened + job.returned, 1);
    for (uint32_t rank = 0; rank < WORLD; rank++)
        job.is_mute[rank] = true;
    job.now_ns += 11 * S;
    cairn_reduce_destroy(job.reduces[0]);
    assert_int_equal(cairn_reduce_create(&options, &job.reduces[0]), CAIRN_OK);
    job.is_mute[0] = false;
    join(&job, 0, TENSOR, 0, 2);
    for (int i = 0; i < 20; i++) {
        enter(&job, 0, TENSOR, CAIRN_ALL_REDUCE);
        pass(&job, S / 2);
    }
    assert_int_equal(job.opened + job.returned, 1);
    assert_int_equal(job.closed, 1);
    end(&job);
}

/* What a reader that begins late sees first may be an end; what is entered from there on counts all
 * the same. */
static void
test_late_reader(void **state)
{
    struct job job;

    start(&job);
    for (uint32_t rank = 0; rank < WORLD; rank++) {
        begin_anew(&job, rank);
        join(&job, rank, ALL, rank, WORLD);
        job.entered[rank][ALL][CAIRN_ALL_REDUCE] = 100;
        run(&job, rank, ALL, CAIRN_ALL_REDUCE, true);
        job.entered[rank][ALL][CAIRN_ALL_REDUCE] = 105; /* the host is ahead */
    }
    for (int i = 0; i < 80; i++) {
        for (uint32_t rank = 0; rank < WORLD; rank++)
            enter(&job, rank, ALL, CAIRN_ALL_REDUCE);
        pass(&job, S / 2);
    }
    for (uint32_t rank = 0; rank < 3; rank++)
        enter(&job, rank, ALL, CAIRN_ALL_REDUCE);
    pass(&job, 12 * S);
    assert_int_equal(only_entry(&job)->kind, CAIRN_HANG_COMPUTE);
    assert_int_equal(only_entry(&job)->ranks[0], 3);
    end(&job);
}

/* A process that has died between two operations has entered as much as the others, and is missed
 * all the same. */
static void
test_died_at_equal_counts(void **state)
{
    struct job job;
    const struct cairn_ledger_entry *entry;

    start(&job);
    steps(&job, 80);
    /* the second has left as one that finishes */
    job.presence[2] = job.presence[1] = CAIRN_PRESENCE_GONE;
    pass(&job, S);
    cairn_reduce_die(job.reduces[2]); /* which is found out after it was seen to be gone */
    pass(&job, 9 * S);
    entry = only_entry(&job);
    assert_int_equal(entry->kind, CAIRN_CRASH);
    assert_int_equal(entry->rank_count, 1);
    assert_int_equal(entry->ranks[0], 2);
    assert_non_null(strstr(entry->evidence, "has ended without a word"));
    assert_true(entry->evidence_kinds & CAIRN_EVIDENCE_PROCESS);
    end(&job);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_never_arrives),
        cmocka_unit_test(test_transfers),
        cmocka_unit_test(test_transfer_stopped),
        cmocka_unit_test(test_transfer_stopped_in_a_part),
        cmocka_unit_test(test_gone_stopped_silent),
        cmocka_unit_test(test_circle),
        cmocka_unit_test(test_gone_in_the_middle),
        cmocka_unit_test(test_never_begins),
        cmocka_unit_test(test_over_while_others_stand),
        cmocka_unit_test(test_agents_begin_anew),
        cmocka_unit_test(test_victims_unheard),
        cmocka_unit_test(test_another_job),
        cmocka_unit_test(test_late_reader),
        cmocka_unit_test(test_died_at_equal_counts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
