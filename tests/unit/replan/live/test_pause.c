/* tests/unit/replan/live/test_pause.c - pauses that are not a hang, though ranks stand still and
 * their counts of operations may differ. */
#include "tests/unit/replan/counted_job.h"

#include "replan/live/tally.h"

static void
test_pauses(void **state)
{
    struct job job;

    start(&job);
    hang(&job, 2, 1); /* it compiles for half a minute, and the others wait */
    pass(&job, 30 * S);
    catch_up(&job, 1);
    assert_int_equal(job.ledger.count, 0);
    steps(&job, 80);
    hang(&job, 0, 5);
    pass(&job, 5 * S);
    catch_up(&job, 82);
    steps(&job, 10);
    assert_int_equal(job.ledger.count, 0);
    pass(&job, 600 * S); /* all of them do something else: their counts are equal */
    assert_int_equal(job.ledger.count, 0);
    end(&job);
}

/* One rank saves for a minute while all others wait in one collective. Until it goes on nobody can
 * tell that from a hang: it is reported, taken back with what it was, and not reported again of as
 * long a pause; a longer one is. */
static void
test_one_rank_saves(void **state)
{
    struct job job;

    start(&job);
    steps(&job, 80);
    for (uint32_t i = 0; i < 3; i++) {
        for (uint32_t rank = 1; rank < WORLD; rank++)
            enter(&job, rank, ALL, CAIRN_ALL_REDUCE);
        pass(&job, (i < 2 ? 60 : 130) * S);
        assert_int_equal(job.opened + job.returned, i < 2 ? 1 : 2);
        assert_int_equal(cairn_ledger_open_count(&job.ledger), i != 1);
        enter(&job, 0, ALL, CAIRN_ALL_REDUCE);
        steps(&job, 20);
        assert_int_equal(cairn_ledger_open_count(&job.ledger), 0);
        if (i == 0) {
            assert_int_equal(only_entry(&job)->kind, CAIRN_HANG_COMPUTE);
            assert_int_equal(only_entry(&job)->rank_count, 1);
            assert_int_equal(only_entry(&job)->ranks[0], 0);
            assert_string_equal(
                only_entry(&job)->closed_why,
                "it went on by itself 52 s after this was reported: a pause, no hang");
        }
    }
    end(&job);
}

/* Steps that take ten seconds, named by nobody. */
static void
test_long_steps(void **state)
{
    struct job job;

    start(&job);
    for (int i = 0; i < 12; i++) {
        for (uint32_t rank = 0; rank < WORLD; rank++)
            if (rank != 1)
                enter(&job, rank, ALL, CAIRN_ALL_REDUCE);
        pass(&job, (i % 3 ? 2 : 3) * S);
        enter(&job, 1, ALL, CAIRN_ALL_REDUCE);
        pass(&job, 10 * S);
    }
    assert_int_equal(job.ledger.count, 0);
    for (uint32_t rank = 0; rank < WORLD; rank++)
        if (rank != 1)
            enter(&job, rank, ALL, CAIRN_ALL_REDUCE);
    pass(&job, 15 * S);
    assert_int_equal(job.ledger.count, 0);
    pass(&job, 15 * S);
    assert_int_equal(only_entry(&job)->ranks[0], 1);
    end(&job);
}

/* A communicator that some gave up in the middle counts as no reason to wait; neither are others of
 * other lengths. */
static void
test_given_up(void **state)
{
    struct job job;

    start(&job);
    for (uint32_t rank = 0; rank < WORLD; rank++)
        join(&job, rank, ONCE, rank, WORLD);
    for (uint32_t rank = 0; rank < WORLD; rank++)
        for (uint32_t i = 0; i <= rank; i++)
            enter(&job, rank, ONCE, CAIRN_BROADCAST);
    steps(&job, 80);
    pass(&job, 60 * S);
    assert_int_equal(job.ledger.count, 0);
    end(&job);
}

/* A rank that does something else meanwhile is not the cause, and one that waits for it
 * neither. */
static void
test_busy_elsewhere(void **state)
{
    struct job job;

    start(&job);
    steps(&job, 80);
    for (uint32_t rank = 2; rank < WORLD; rank++)
        step_of(&job, rank, 6);
    for (int i = 0; i < 60; i++) {
        enter(&job, 0, TENSOR, CAIRN_ALL_GATHER);
        enter(&job, 1, TENSOR, CAIRN_ALL_GATHER);
        pass(&job, S / 2);
    }
    assert_int_equal(job.ledger.count, 0);
    end(&job);
}

/* Records that were lost, or read by somebody else, do not make a rank late; nor do numbers that
 * cannot be make others so. */
static void
test_not_to_be_relied_on(void **state)
{
    for (int why = 0; why < 3; why++) {
        struct job job;

        start(&job);
        if (why == 1)
            for (uint32_t rank = 0; rank < WORLD; rank++)
                cairn_reduce_begin_late(job.reduces[rank]);
        steps(&job, 80);
        if (why == 0) {
            hang(&job, 3, 5);
            cairn_reduce_lose(job.reduces[3], 1);
        } else if (why == 1) {
            for (uint32_t rank = 0; rank < 3; rank++)
                /* nobody knows whether the fourth did long ago */
                enter(&job, rank, ALL, CAIRN_BROADCAST);
        } else {
            job.entered[3][ALL][CAIRN_ALL_REDUCE] = UINT64_C(1) << 63;
            enter(&job, 3, ALL, CAIRN_ALL_REDUCE);
        }
        pass(&job, 60 * S);
        assert_int_equal(job.ledger.count, 0);
        end(&job);
    }
}

/* Those that have finished are gone, and the one that saves what they made is not waiting for
 * them. */
static void
test_finished(void **state)
{
    struct job job;

    start(&job);
    steps(&job, 80);
    for (uint32_t rank = 1; rank < WORLD; rank++)
        job.presence[rank] = CAIRN_PRESENCE_GONE;
    pass(&job, 600 * S);
    assert_int_equal(job.ledger.count, 0);
    end(&job);
}

/* In a pause nothing is read of ranks whose agent has just begun: their processes live. */
static void
test_an_agent_begins_in_a_pause(void **state)
{
    struct job job;

    start(&job);
    steps(&job, 80);
    pass(&job, 3 * S);
    begin_anew(&job, 2);
    begin_anew(&job, 3);
    pass(&job, 60 * S);
    assert_int_equal(job.ledger.count, 0);
    job.is_mute[3] = true; /* its node is gone after all */
    pass(&job, 12 * S);
    assert_int_equal(only_entry(&job)->kind, CAIRN_CRASH);
    assert_int_equal(only_entry(&job)->ranks[0], 3);
    end(&job);
}

/* A machine that stands still as a whole, with the agent that analyses: when it goes on, what
 * others have said is not read yet. */
static void
test_whoever_looks_was_stopped(void **state)
{
    struct job job;

    start(&job);
    steps(&job, 80);
    job.now_ns += 30 * S;
    job.is_mute[2] = job.is_mute[3] = true;
    pass(&job, S);
    assert_int_equal(job.ledger.count, 0);
    job.is_mute[2] = job.is_mute[3] = false;
    steps(&job, 20);
    assert_int_equal(job.ledger.count, 0);
    end(&job);
}

/* More lanes than there is room for: what is counted of a transfer after that is not all. */
static void
test_forgotten(void **state)
{
    struct job job;

    start(&job);
    for (uint64_t comm = 0; comm < 2 * CAIRN_TALLY_LANES_MAX / 3; comm++)
        join(&job, 0, 0x10000 + comm, 0, 1);
    for (int i = 0; i < 80; i++) {
        transfer(&job, 0, DATA, CAIRN_SEND, 1);
        transfer(&job, 2, DATA, CAIRN_RECV, 0);
        pass(&job, S / 2);
        for (uint64_t comm = 0; i == 40 && comm < 2 * CAIRN_TALLY_LANES_MAX / 3; comm++)
            for (uint16_t op = CAIRN_ALL_REDUCE; op <= CAIRN_BROADCAST; op++)
                take(&job, 0,
                     (struct cairn_timing_record){.comm = 0x10000 + comm,
                                                  .seq = 1,
                                                  .peer = CAIRN_PEER_NONE,
                                                  .ranks = 1,
                                                  .op = op});
    }
    pass(&job, 60 * S);
    assert_int_equal(job.ledger.count, 0);
    end(&job);
}

/* Where numbers come again, as of operations that a CUDA graph replays, they say nothing of how far
 * a rank has come. */
static void
test_repeated_numbers(void **state)
{
    struct job job;

    start(&job);
    steps(&job, 80);
    for (int i = 0; i < 20; i++) { /* recorded where a proxy takes part, and not elsewhere */
        job.entered[0][ALL][CAIRN_ALL_REDUCE] = 80;
        enter(&job, 0, ALL, CAIRN_ALL_REDUCE);
        pass(&job, S / 2);
    }
    pass(&job, 60 * S);
    assert_int_equal(job.ledger.count, 0);
    end(&job);
}

/* The record of an end may be among those that were lost, and what is read after a loss may be
 * older than it. */
static void
test_lost_ends(void **state)
{
    for (int late = 0; late < 2; late++) {
        struct job job;

        start(&job);
        for (int i = 0; i < 80; i++) {
            for (uint32_t rank = 0; rank < WORLD; rank++) {
                enter(&job, rank, ALL, CAIRN_ALL_REDUCE);
                run(&job, rank, ALL, CAIRN_ALL_REDUCE, false);
                if (i < 79 || rank != 2)
                    run(&job, rank, ALL, CAIRN_ALL_REDUCE, true);
            }
            pass(&job, S / 2);
        }
        cairn_reduce_lose(job.reduces[2], 2);
        for (uint32_t rank = 0; rank < WORLD; rank++)
            if (rank != 2 || !late)
                enter(&job, rank, ALL, CAIRN_ALL_REDUCE);
        if (late) /* that the next was entered is lost, the end of this one not */
            run(&job, 2, ALL, CAIRN_ALL_REDUCE, true);
        pass(&job, 60 * S);
        assert_int_equal(job.ledger.count, 0);
        end(&job);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pauses),
        cmocka_unit_test(test_one_rank_saves),
        cmocka_unit_test(test_long_steps),
        cmocka_unit_test(test_given_up),
        cmocka_unit_test(test_busy_elsewhere),
        cmocka_unit_test(test_not_to_be_relied_on),
        cmocka_unit_test(test_finished),
        cmocka_unit_test(test_an_agent_begins_in_a_pause),
        cmocka_unit_test(test_whoever_looks_was_stopped),
        cmocka_unit_test(test_forgotten),
        cmocka_unit_test(test_repeated_numbers),
        cmocka_unit_test(test_lost_ends),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
