/*
 * tests/unit/replan/live/test_live.c - the analysis of a job that trains: a slow rank, a stopped
 * one, a crash, a return, a restart, another analyst.
 */
#include "tests/support/live_job.h"

/* All ranks but one are in an operation; time goes by. */
static void
wait_for_rank(struct job *job, uint32_t missing, uint32_t seconds, enum cairn_presence presence)
{
    job->step++;
    job->seq++;
    job->now_ns += 20 * MS;
    for (uint32_t rank = 0; rank < WORLD; rank++)
        if (rank != missing)
            put(job, rank, job->now_ns, 0);
    for (uint32_t s = 0; s < seconds; s++) {
        job->now_ns += S;
        for (uint32_t rank = 0; rank < WORLD; rank++)
            cairn_reduce_stand(job->reduces[rank], rank == missing ? presence : CAIRN_PRESENCE_RUNS,
                               job->now_ns);
        check(job);
    }
}

/* All ranks but the last wait in an operation; of that, something is seen or nothing is heard of at
 * all. */
static void
wait_for_last(struct job *job, uint32_t seconds, bool busy)
{
    struct cairn_timing_record own = {
        .comm = 77, .rank = WORLD - 1, .peer = CAIRN_PEER_NONE, .ranks = 1, .op = CAIRN_ALL_REDUCE};

    own.step = ++job->step;
    job->seq++;
    job->now_ns += 20 * MS;
    for (uint32_t rank = 0; rank + 1 < WORLD; rank++)
        put(job, rank, job->now_ns, 0);
    for (uint32_t half = 0; half < 2 * seconds; half++) {
        job->now_ns += S / 2;
        own.seq++;
        own.enter_ns = job->now_ns - 2 * MS;
        own.end_ns = job->now_ns;
        if (busy)
            assert_int_equal(cairn_reduce_take(job->reduces[WORLD - 1], &own, job->now_ns),
                             CAIRN_OK);
        for (uint32_t rank = 0; rank < (busy ? WORLD : WORLD - 1); rank++)
            cairn_reduce_stand(job->reduces[rank], CAIRN_PRESENCE_RUNS, job->now_ns);
        check(job);
    }
}

/* The missing one arrives after all. */
static void
arrive(struct job *job, uint32_t missing)
{
    put(job, missing, job->now_ns, 0);
    job->now_ns += 2 * MS;
    for (uint32_t rank = 0; rank < WORLD; rank++)
        put(job, rank, rank == missing ? job->now_ns - 2 * MS : job->now_ns - 9 * S, job->now_ns);
}

static void
test_quiet(void **state)
{
    struct cairn_live_view view;
    struct job job;

    start(&job);
    steps(&job, 300, NULL);
    cairn_live_look(job.live, job.now_ns, &view);
    assert_int_equal(view.world, WORLD);
    assert_int_equal(view.ranks_reporting, WORLD);
    assert_int_equal(view.comms, 1);
    assert_int_equal(view.comms_used, 1);
    assert_true(view.is_calibrated && view.steps > 250 && view.period_ms > 20 &&
                view.period_ms < 26);
    assert_int_equal(job.ledger.count, 0);
    assert_int_equal(job.opened, 0);
    end(&job);
}

static void
test_slow_and_back(void **state)
{
    const double slow[WORLD] = {1, 1, 1.8, 1};
    const struct cairn_ledger_entry *entry;
    uint64_t closed_wall_ns, lost_ns;
    char advice[256];
    struct job job;

    start(&job);
    steps(&job, 40, NULL);
    steps(&job, 10, slow);
    assert_int_equal(job.opened, 1);
    assert_int_equal(job.ledger.count, 1);
    entry = &job.ledger.entries[0];
    assert_int_equal(entry->kind, CAIRN_SLOW_COMPUTE);
    assert_int_equal(entry->rank_count, 1);
    assert_int_equal(entry->ranks[0], 2);
    assert_in_range(entry->since_step, 40, 42);
    assert_true(entry->rate > 1.6 && entry->rate < 2.0);
    assert_int_equal(entry->victim_count, 3);
    assert_int_equal(entry->evidence_kinds, CAIRN_EVIDENCE_COMPUTE | CAIRN_EVIDENCE_WAITING);
    assert_non_null(strstr(job.last, "rank 2 computes 1."));
    cairn_ledger_advise(&job.ledger, entry, 1, false, advice, sizeof advice);
    assert_non_null(strstr(advice, "exchange the rank"));
    steps(&job, 20, NULL);
    assert_int_equal(job.closed, 1);
    assert_int_equal(cairn_ledger_open_count(&job.ledger), 0);
    closed_wall_ns = entry->closed_wall_ns;
    lost_ns = entry->lost_ns;
    assert_true(lost_ns > 0 && lost_ns < (closed_wall_ns - entry->opened_wall_ns) / 2);
    /* within a minute the same cause is the same verdict */
    steps(&job, 12, slow);
    assert_int_equal(job.opened, 1);
    assert_int_equal(job.returned, 1);
    assert_int_equal(job.ledger.count, 1);
    assert_int_equal(entry->returns, 1);
    assert_true(entry->lost_until_wall_ns > closed_wall_ns &&
                entry->lost_until_wall_ns <= job.now_ns);
    assert_true(entry->lost_ns == lost_ns); /* nothing while it was well */
    assert_int_equal(cairn_ledger_open_count(&job.ledger), 1);
    end(&job);
}

/* Two exchanges a day: the third of a day is not proposed, one of a day later is. */
static void
test_budget(void **state)
{
    static const uint64_t hours[] = {1, 2, 20, 30};
    static const bool proposed[] = {true, true, false, true};
    static struct cairn_ledger ledger;
    char advice[256];

    cairn_ledger_init(&ledger);
    ledger.count = 4;
    for (uint32_t i = 0; i < ledger.count; i++)
        ledger.entries[i] = (struct cairn_ledger_entry){
            .number = i + 1,
            .kind = CAIRN_SLOW_COMPUTE,
            .rank_count = 1,
            .ranks = {i},
            .evidence_kinds = CAIRN_EVIDENCE_COMPUTE | CAIRN_EVIDENCE_WAITING,
            .opened_wall_ns = hours[i] * 3600 * 1000000000};
    for (uint32_t i = 0; i < ledger.count; i++) {
        cairn_ledger_advise(&ledger, &ledger.entries[i], 2, false, advice, sizeof advice);
        assert_int_equal(strstr(advice, "exchange the rank's device") != NULL, proposed[i]);
        assert_int_equal(strstr(advice, "(exchanges_per_day)") != NULL, !proposed[i]);
    }
    ledger.entries[0].evidence_kinds = CAIRN_EVIDENCE_COMPUTE; /* it was not proposed either */
    cairn_ledger_advise(&ledger, &ledger.entries[0], 2, false, advice, sizeof advice);
    assert_non_null(strstr(advice, "one kind of evidence alone"));
    cairn_ledger_advise(&ledger, &ledger.entries[2], 2, false, advice, sizeof advice);
    assert_non_null(strstr(advice, "exchange the rank's device"));
}

/* What ill ranks had exchanged counts for a day, also when their entries have made room for
 * others. */
static void
test_budget_of_many(void **state)
{
    static struct cairn_ledger ledger, read_again;
    static uint8_t bytes[CAIRN_LEDGER_BYTES_MAX];
    const uint32_t kinds = CAIRN_EVIDENCE_COMPUTE | CAIRN_EVIDENCE_WAITING;
    uint64_t wall_ns = 0;
    struct cairn_writer writer;
    char advice[256];

    cairn_ledger_init(&ledger);
    /* ten minutes apart, each ended by the next */
    for (uint32_t i = 0; i < 3 * CAIRN_LEDGER_MAX; i++) {
        struct cairn_verdict verdict = {.kind = CAIRN_SLOW_COMPUTE,
                                        .ranks = {.items = &i, .count = 1},
                                        .since_step = i,
                                        .until_step = CAIRN_STEP_NONE,
                                        .rate = 1.5,
                                        .confidence = 0.9};
        struct cairn_verdicts verdicts = {.items = &verdict, .count = 1};

        wall_ns += 600 * S;
        cairn_ledger_merge(&ledger, &verdicts, &kinds, 1, wall_ns, NULL, NULL);
    }
    assert_int_equal(ledger.count, CAIRN_LEDGER_MAX);
    assert_int_equal(ledger.exchanges_count, CAIRN_LEDGER_EXCHANGES_MAX);
    for (int again = 0; again < 2; again++) { /* 96 in 16 hours */
        cairn_ledger_advise(&ledger, &ledger.entries[ledger.count - 1], 95, false, advice,
                            sizeof advice);
        assert_non_null(strstr(advice, "(exchanges_per_day)"));
        cairn_ledger_advise(&ledger, &ledger.entries[ledger.count - 1], 96, false, advice,
                            sizeof advice);
        assert_non_null(strstr(advice, "exchange the rank's device"));
        cairn_writer_init(&writer, bytes, sizeof bytes);
        cairn_ledger_pack(&ledger, &writer);
        assert_int_equal(cairn_writer_done(&writer), CAIRN_OK);
        assert_int_equal(cairn_ledger_unpack(bytes, writer.used_bytes, &read_again), CAIRN_OK);
        ledger = read_again;
    }
    /* a day later only its own counts */
    ledger.entries[ledger.count - 1].opened_wall_ns += 24 * 3600 * S;
    cairn_ledger_advise(&ledger, &ledger.entries[ledger.count - 1], 1, false, advice,
                        sizeof advice);
    assert_non_null(strstr(advice, "exchange the rank's device"));
}

/* What is uneven may begin long after the job, and end. */
static void
test_uneven_late(void **state)
{
    static const char *const patterns[] = {"garbage_collection", "sequence_length"};

    for (uint32_t lengths = 0; lengths < 2; lengths++) {
        const struct cairn_ledger_entry *entry = NULL;
        struct job job;

        start(&job);
        steps(&job, 400, NULL);
        assert_int_equal(job.ledger.count, 0);
        for (uint32_t i = 0; i < 200; i++) {
            double factors[WORLD] = {1, 1, 1, 1};

            if (lengths)
                for (uint32_t rank = 0; rank < WORLD; rank++)
                    factors[rank] = 0.5 + (noise(&job) - 0.98) / 0.04;
            else if (i % 4 == 0)
                factors[i / 4 % WORLD] = 1.4;
            steps(&job, 1, factors);
        }
        for (uint32_t i = 0; i < job.ledger.count; i++)
            if (strcmp(job.ledger.entries[i].pattern, patterns[lengths]) == 0)
                entry = &job.ledger.entries[i];
        assert_non_null(entry);
        assert_int_equal(entry->closed_wall_ns, 0);
        assert_in_range(entry->detected_step, 420, 600);
        steps(&job, 200, NULL);
        assert_int_not_equal(entry->closed_wall_ns, 0);
        assert_in_range(entry->until_step, 560, 800);
        assert_int_equal(cairn_ledger_open_count(&job.ledger), 0);
        end(&job);
    }
}

/* The agent of one that waits begins again, and knows of nothing that it waits in: it is not the
 * one who never arrives. */
static void
test_agent_begins_in_a_wait(void **state)
{
    struct job job;

    start(&job);
    steps(&job, 40, NULL);
    wait_for_rank(&job, 3, 3, CAIRN_PRESENCE_RUNS);
    attach(&job, 1);
    cairn_reduce_begin_late(job.reduces[1]);
    for (int s = 0; s < 20; s++) {
        job.now_ns += S;
        for (uint32_t rank = 0; rank < WORLD; rank++)
            cairn_reduce_stand(job.reduces[rank], CAIRN_PRESENCE_RUNS, job.now_ns);
        check(&job);
    }
    assert_int_equal(job.ledger.count, 1);
    assert_int_equal(job.ledger.entries[0].kind, CAIRN_HANG_COMPUTE);
    assert_int_equal(job.ledger.entries[0].rank_count, 1);
    assert_int_equal(job.ledger.entries[0].ranks[0], 3);
    end(&job);
}

static void
test_stopped(void **state)
{
    const struct cairn_ledger_entry *entry;
    struct job job;

    start(&job);
    steps(&job, 40, NULL);
    wait_for_rank(&job, 1, 5, CAIRN_PRESENCE_STOPPED);
    assert_int_equal(job.ledger.count, 0); /* a pause of five seconds is none */
    arrive(&job, 1);
    steps(&job, 20, NULL);
    assert_int_equal(job.ledger.count, 0);
    wait_for_rank(&job, 1, 10, CAIRN_PRESENCE_STOPPED);
    assert_int_equal(job.ledger.count, 1);
    entry = &job.ledger.entries[0];
    assert_int_equal(entry->kind, CAIRN_HANG_COMPUTE);
    assert_int_equal(entry->rank_count, 1);
    assert_int_equal(entry->ranks[0], 1);
    assert_int_equal(entry->evidence_kinds, CAIRN_EVIDENCE_PROGRESS | CAIRN_EVIDENCE_PROCESS);
    assert_non_null(strstr(entry->evidence, "rank 1 is stopped"));
    arrive(&job, 1);
    steps(&job, 5, NULL);
    assert_int_equal(job.closed, 1);
    assert_int_equal(cairn_ledger_open_count(&job.ledger), 0);
    steps(&job, 50, NULL);
    assert_int_equal(job.ledger.count, 1);
    end(&job);
}

/* A rank that saves a checkpoint while the others wait is called hanging once; the same again is
 * not news. A longer wait is. */
static void
test_checkpoints(void **state)
{
    struct job job;

    start(&job);
    steps(&job, 40, NULL);
    for (uint32_t i = 0; i < 4; i++) {
        wait_for_rank(&job, 0, 12, CAIRN_PRESENCE_RUNS);
        assert_int_equal(cairn_ledger_open_count(&job.ledger), i == 0);
        arrive(&job, 0);
        steps(&job, 20, NULL);
        assert_int_equal(cairn_ledger_open_count(&job.ledger), 0);
    }
    assert_int_equal(job.opened, 1);
    assert_int_equal(job.returned, 0);
    assert_int_equal(job.ledger.entries[0].kind, CAIRN_HANG_COMPUTE);
    assert_int_equal(job.ledger.entries[0].evidence_kinds, CAIRN_EVIDENCE_PROGRESS);
    assert_non_null(strstr(job.ledger.entries[0].closed_why, "a pause, no hang"));
    wait_for_rank(&job, 0, 25, CAIRN_PRESENCE_RUNS);
    assert_int_equal(cairn_ledger_open_count(&job.ledger), 1);
    end(&job);
}

/* A rank that does something else while the others wait is not gone; one that is silent
 * is. */
static void
test_busy_elsewhere(void **state)
{
    struct job job;

    start(&job);
    steps(&job, 40, NULL);
    wait_for_last(&job, 30, true);
    assert_int_equal(job.ledger.count, 0);
    end(&job);
    start(&job);
    steps(&job, 40, NULL);
    wait_for_last(&job, 13, false);
    assert_int_equal(job.ledger.count, 1);
    assert_int_equal(job.ledger.entries[0].kind, CAIRN_CRASH);
    assert_int_equal(job.ledger.entries[0].ranks[0], WORLD - 1);
    end(&job);
}

static void
test_gone_and_restarted(void **state)
{
    struct job job;

    start(&job);
    steps(&job, 40, NULL);
    wait_for_rank(&job, 3, 10, CAIRN_PRESENCE_GONE);
    assert_int_equal(job.ledger.count, 1);
    assert_int_equal(job.ledger.entries[0].kind, CAIRN_CRASH);
    assert_int_equal(job.ledger.entries[0].ranks[0], 3);
    job.attachment = 2;
    job.step = 30; /* from the last generation */
    for (uint32_t rank = 0; rank < WORLD; rank++)
        attach(&job, rank);
    steps(&job, 1, NULL);
    assert_int_equal(cairn_ledger_open_count(&job.ledger), 0);
    assert_string_equal(job.ledger.entries[0].closed_why, "trainers were restarted");
    steps(&job, 60, NULL);
    assert_int_equal(job.ledger.count, 1);
    end(&job);
}

/* Each start of a job brings communicators of its own names: those of the starts before are
 * forgotten, however many they are. */
static void
test_many_starts(void **state)
{
    struct cairn_live_view view;
    struct job job;

    start(&job);
    for (uint32_t starts = 0; starts < 20 * WORLD; starts++) {
        job.attachment++;
        job.comm++;
        for (uint32_t rank = 0; rank < WORLD; rank++)
            attach(&job, rank);
        steps(&job, 8, NULL);
        cairn_live_look(job.live, job.now_ns, &view);
        assert_int_equal(view.comms, 1);
        assert_int_equal(view.comms_used, 1);
    }
    assert_int_equal(view.ignored, 0);
    end(&job);
}

/* A rank names a step that is far ahead, and nothing sensible any more: when it is not waited for,
 * the others are analysed. */
static void
test_far_ahead(void **state)
{
    struct cairn_live_view before, after;
    struct job job;

    start(&job);
    steps(&job, 40, NULL);
    for (uint32_t i = 0; i < 2; i++) {
        job.step = 4000000000 + i;
        put(&job, 1, job.now_ns - MS, job.now_ns);
    }
    job.step = 40;
    steps(&job, 600, NULL);
    cairn_live_look(job.live, job.now_ns, &before);
    assert_int_equal(before.ranks_reporting, WORLD - 1);
    steps(&job, 60, NULL);
    cairn_live_look(job.live, job.now_ns, &after);
    assert_in_range(after.steps, before.steps + 58, before.steps + 62);
    end(&job);
}

static void
add_link(struct cairn_verdict *verdict, uint32_t source, uint32_t target)
{
    assert_int_equal(cairn_list_add(&verdict->links, source), CAIRN_OK);
    assert_int_equal(cairn_list_add(&verdict->links, target), CAIRN_OK);
}

/* Links that are found slow later are told of, with the rate as it was; two causes that share a
 * link are two entries, which stay. */
static void
test_links(void **state)
{
    static struct cairn_ledger ledger;
    const uint32_t kinds[] = {CAIRN_EVIDENCE_TRANSFER, CAIRN_EVIDENCE_TRANSFER};
    struct cairn_verdicts verdicts = {0};
    uint64_t version;
    uint32_t index;

    cairn_ledger_init(&ledger);
    assert_int_equal(cairn_verdicts_add(&verdicts, CAIRN_SLOW_LINK, &index), CAIRN_OK);
    verdicts.items[0].rate = 2;
    add_link(&verdicts.items[0], 0, 1);
    cairn_ledger_merge(&ledger, &verdicts, kinds, 1, S, NULL, NULL);
    assert_int_equal(ledger.count, 1);
    version = ledger.version;
    add_link(&verdicts.items[0], 2, 3);
    cairn_ledger_merge(&ledger, &verdicts, kinds, 1, 2 * S, NULL, NULL);
    assert_int_equal(ledger.count, 1);
    assert_int_equal(ledger.entries[0].link_count, 2);
    assert_int_equal(ledger.entries[0].links[2], 2);
    assert_int_equal(ledger.version, version + 1);
    assert_int_equal(cairn_verdicts_add(&verdicts, CAIRN_SLOW_LINK, &index), CAIRN_OK);
    verdicts.items[1].rate = 3;
    add_link(&verdicts.items[1], 2, 3);
    for (uint32_t i = 0; i < 3; i++)
        cairn_ledger_merge(&ledger, &verdicts, kinds, 1, (3 + i) * S, NULL, NULL);
    assert_int_equal(ledger.count, 2);
    assert_int_equal(cairn_ledger_open_count(&ledger), 2);
    assert_int_equal(ledger.entries[0].link_count, 2);
    assert_true(ledger.entries[0].rate < 2.5 && ledger.entries[1].rate > 2.5);
    assert_int_equal(ledger.version, version + 2);
    cairn_verdicts_fini(&verdicts);
}

/* Somebody is suspected while a verdict on a device or a link lasts; an uneven plan lasts for ever,
 * and is not one. */
static void
test_suspects(void **state)
{
    static struct cairn_ledger ledger;

    cairn_ledger_init(&ledger);
    assert_false(cairn_ledger_suspects(&ledger));
    ledger.count = 2;
    ledger.entries[0] = (struct cairn_ledger_entry){.number = 1, .kind = CAIRN_STRUCTURAL};
    ledger.entries[1] =
        (struct cairn_ledger_entry){.number = 2, .kind = CAIRN_SLOW_LINK, .closed_wall_ns = S};
    assert_int_equal(cairn_ledger_open_count(&ledger), 1);
    assert_false(cairn_ledger_suspects(&ledger));
    ledger.entries[1].closed_wall_ns = 0;
    assert_true(cairn_ledger_suspects(&ledger));
}

/* Another analyst knows the ledger alone, and hears the communicators again. */
static void
test_taken_over(void **state)
{
    const double slow[WORLD] = {1, 1, 1, 2.5};
    static uint8_t bytes[CAIRN_LEDGER_BYTES_MAX];
    struct cairn_ledger copy;
    struct cairn_writer writer;
    struct job job;

    start(&job);
    steps(&job, 40, NULL);
    steps(&job, 10, slow);
    assert_int_equal(cairn_ledger_open_count(&job.ledger), 1);
    cairn_writer_init(&writer, bytes, sizeof bytes);
    cairn_ledger_pack(&job.ledger, &writer);
    assert_int_equal(cairn_writer_done(&writer), CAIRN_OK);
    assert_int_equal(cairn_ledger_unpack(bytes, writer.used_bytes, &copy), CAIRN_OK);
    for (uint32_t i = 0; i < job.ledger.count; i++)
        job.ledger.entries[i].run = 0; /* runs stay with the agent whose detector they are of */
    assert_memory_equal(&copy, &job.ledger, sizeof copy);
    cairn_live_destroy(job.live);
    job.ledger = copy;
    analyse(&job, 2000);
    for (uint32_t rank = 0; rank < WORLD; rank++)
        cairn_reduce_announce(job.reduces[rank]);
    steps(&job, 20, slow);
    assert_int_equal(cairn_ledger_open_count(&job.ledger), 1); /* not yet doubted */
    steps(&job, 30, NULL);
    assert_int_equal(cairn_ledger_open_count(&job.ledger), 0);
    for (size_t cut = 0; cut < writer.used_bytes; cut += 7)
        assert_int_equal(cairn_ledger_unpack(bytes, cut, &copy), CAIRN_CORRUPT);
    end(&job);
}

/* One of four ranks never reports: the others are judged all the same. */
static void
test_partial(void **state)
{
    const double slow[WORLD] = {1, 2, 1, 1};
    struct cairn_live_view view;
    struct job job;

    start(&job);
    job.ranks = WORLD - 1;
    steps(&job, 60, NULL);
    cairn_live_look(job.live, job.now_ns, &view);
    assert_int_equal(view.ranks_reporting, WORLD - 1);
    assert_int_equal(view.comms_complete, 0);
    assert_true(view.is_calibrated);
    steps(&job, 12, slow);
    assert_int_equal(cairn_ledger_open_count(&job.ledger), 1);
    assert_int_equal(job.ledger.entries[0].kind, CAIRN_SLOW_COMPUTE);
    assert_int_equal(job.ledger.entries[0].ranks[0], 1);
    end(&job);
}

/* A rank that reports when what is normal has been learned without it is judged too. */
static void
test_late(void **state)
{
    const double slow[WORLD] = {1, 1, 1, 2};
    struct cairn_live_view view;
    struct job job;
    uint32_t runs;

    start(&job);
    job.ranks = WORLD - 1;
    steps(&job, 60, NULL);
    cairn_live_look(job.live, job.now_ns, &view);
    assert_true(view.is_calibrated);
    runs = view.runs;
    job.ranks = WORLD;
    steps(&job, 60, NULL);
    cairn_live_look(job.live, job.now_ns, &view);
    assert_int_equal(view.ranks_reporting, WORLD);
    assert_int_equal(view.runs, runs + 1);
    assert_true(view.is_calibrated);
    steps(&job, 12, slow);
    assert_int_equal(cairn_ledger_open_count(&job.ledger), 1);
    assert_int_equal(job.ledger.entries[0].kind, CAIRN_SLOW_COMPUTE);
    assert_int_equal(job.ledger.entries[0].ranks[0], 3);
    end(&job);
}

/* A job that is no more has no open verdicts, whether its end was seen or it is only not heard
 * of. */
static void
test_ended(void **state)
{
    const double slow[WORLD] = {1, 1, 1, 2};
    struct job job;

    for (int seen = 0; seen < 2; seen++) {
        start(&job);
        steps(&job, 40, NULL);
        steps(&job, 10, slow);
        assert_int_equal(cairn_ledger_open_count(&job.ledger), 1);
        for (uint32_t s = 0; s < 45; s++) {
            job.now_ns += S;
            for (uint32_t rank = 0; seen && rank < WORLD; rank++)
                cairn_reduce_stand(job.reduces[rank], CAIRN_PRESENCE_GONE, job.now_ns);
            check(&job);
            if (s == 5)
                assert_int_equal(cairn_ledger_open_count(&job.ledger), !seen);
        }
        assert_int_equal(cairn_ledger_open_count(&job.ledger), 0);
        assert_int_equal(job.ledger.count, 1);
        end(&job);
    }
}

/* A step of a minute full of operations is neither the end of the job nor a hang, and its ranks are
 * seen all the while. */
static void
test_long_step(void **state)
{
    struct cairn_live_view before, view;
    struct job job;

    start(&job);
    steps(&job, 40, NULL);
    cairn_live_look(job.live, job.now_ns, &before);
    job.step++;
    for (uint32_t half = 0; half < 120; half++) {
        job.seq++;
        job.now_ns += S / 2;
        for (uint32_t rank = 0; rank < WORLD; rank++) {
            put(&job, rank, job.now_ns - 2 * MS, 0);
            put(&job, rank, job.now_ns - 2 * MS, job.now_ns);
            cairn_reduce_stand(job.reduces[rank], CAIRN_PRESENCE_RUNS, job.now_ns);
        }
        check(&job);
        cairn_live_look(job.live, job.now_ns, &view);
        assert_int_equal(view.ranks_reporting, WORLD);
    }
    steps(&job, 20, NULL);
    cairn_live_look(job.live, job.now_ns, &view);
    assert_int_equal(view.runs, before.runs);
    assert_true(view.steps > before.steps + 15);
    assert_int_equal(job.ledger.count, 0);
    end(&job);
}

/* The job goes on with fewer ranks: taken up when the former size has been silent for ten
 * seconds. */
static void
test_other_world(void **state)
{
    struct cairn_live_view view;
    struct job job;

    start(&job);
    steps(&job, 40, NULL);
    job.world = job.ranks = 2;
    job.attachment = 2;
    attach(&job, 0);
    attach(&job, 1);
    steps(&job, 20, NULL);
    cairn_live_look(job.live, job.now_ns, &view);
    assert_int_equal(view.world, WORLD);
    assert_true(view.ignored > 0);
    job.now_ns += 11 * S;
    steps(&job, 60, NULL);
    cairn_live_look(job.live, job.now_ns, &view);
    assert_int_equal(view.world, 2);
    assert_int_equal(view.ranks_reporting, 2);
    assert_int_equal(view.comms_complete, 1);
    assert_true(view.is_calibrated);
    assert_int_equal(job.ledger.count, 0);
    end(&job);
}

/* What a ring may hold besides: none is taken, all is counted. */
static void
test_lies(void **state)
{
    struct cairn_timing_record record = {.comm = COMM,
                                         .seq = 1,
                                         .enter_ns = 5 * S,
                                         .end_ns = 6 * S,
                                         .rank = 0,
                                         .peer = CAIRN_PEER_NONE,
                                         .step = 3,
                                         .ranks = WORLD,
                                         .op = CAIRN_ALL_REDUCE};
    struct cairn_timing_record lies[9];
    struct job job;

    start(&job);
    for (size_t i = 0; i < 9; i++)
        lies[i] = record;
    lies[0].rank = 1;
    lies[1].comm = 0;
    lies[2].op = 77;
    lies[3].end_ns = 4 * S;
    lies[4].end_ns = UINT64_MAX;
    lies[5].enter_ns = UINT64_MAX;
    lies[6].step = UINT32_MAX;
    lies[7].op = CAIRN_SEND;
    lies[8].enter_ns = 0;
    for (size_t i = 0; i < 9; i++)
        assert_int_equal(cairn_reduce_take(job.reduces[0], &lies[i], job.now_ns), CAIRN_OK);
    assert_int_equal(cairn_reduce_count(job.reduces[0]).refused, 9);
    assert_int_equal(cairn_reduce_count(job.reduces[0]).step, 0);
    for (uint32_t i = 0; i < 70000; i++) { /* a step without end keeps within its bounds */
        record.seq = i + 1;
        assert_int_equal(cairn_reduce_take(job.reduces[0], &record, job.now_ns), CAIRN_OK);
    }
    assert_int_equal(cairn_reduce_count(job.reduces[0]).lost,
                     70000 - CAIRN_REDUCE_STEP_RECORDS_MAX);
    for (uint32_t i = 0; i < 2 * CAIRN_REDUCE_COMMS_MAX; i++) {
        record.comm = 1000 + i;
        assert_int_equal(cairn_reduce_take(job.reduces[0], &record, job.now_ns), CAIRN_OK);
    }
    end(&job);
}

/* A source that never sees an end waits in nothing; where ends come now and then, a step that lacks
 * one says nothing of computation. */
static double seen_compute_ns;
static uint32_t seen_steps, seen_open;

static void
look(void *context, const struct cairn_report *report)
{
    if (report->kind == CAIRN_REPORT_STEP) {
        seen_compute_ns = report->compute_ns[0];
        seen_steps++;
    } else if (report->kind == CAIRN_REPORT_STANDING) {
        seen_open = report->open_count;
    }
}

static void
test_ends_not_seen(void **state)
{
    struct cairn_reduce_options options = {.rank = 0, .world = 2, .attachment = 1, .emit = look};
    struct cairn_timing_record record = {
        .comm = 9, .rank = 0, .peer = CAIRN_PEER_NONE, .ranks = 2, .op = CAIRN_ALL_REDUCE};
    struct cairn_reduce *reduce;
    uint64_t now_ns = 10 * S;

    seen_steps = seen_open = 0;
    assert_int_equal(cairn_reduce_create(&options, &reduce), CAIRN_OK);
    for (record.step = 1; record.step < 100; record.step++) {
        record.seq++;
        record.enter_ns = now_ns += 10 * MS;
        assert_int_equal(cairn_reduce_take(reduce, &record, now_ns), CAIRN_OK);
    }
    cairn_reduce_stand(reduce, CAIRN_PRESENCE_RUNS, now_ns + 10 * S);
    assert_int_equal(seen_open, 0);
    assert_int_equal(seen_steps, 0);
    for (uint32_t i = 0; i < 20; i++, record.step++) { /* steps 104 and 105 miss their ends */
        record.seq++;
        record.enter_ns = now_ns + 8 * MS;
        record.end_ns = 0;
        now_ns += 10 * MS;
        assert_int_equal(cairn_reduce_take(reduce, &record, now_ns), CAIRN_OK);
        if (i == 4 || i == 5)
            continue;
        record.end_ns = now_ns;
        assert_int_equal(cairn_reduce_take(reduce, &record, now_ns), CAIRN_OK);
        if (i == 3 || i == 15)
            assert_true(seen_compute_ns > 7.9 * MS && seen_compute_ns < 8.1 * MS);
        if (i == 7) /* step 106 is over and followed one that lacks its end */
            assert_true(seen_compute_ns != seen_compute_ns);
    }
    assert_true(seen_steps >= 17);
    record.seq++;
    record.enter_ns = now_ns;
    record.end_ns = 0;
    assert_int_equal(cairn_reduce_take(reduce, &record, now_ns), CAIRN_OK);
    cairn_reduce_stand(reduce, CAIRN_PRESENCE_RUNS, now_ns + 10 * S);
    assert_int_equal(seen_open, 1); /* those that lost their ends are not among them */
    cairn_reduce_destroy(reduce);
}

/* Sends whose ends nobody sees may be what the rank waited in: computation is not blamed.
 * Where some show ends, it is. */
static void
test_sends_without_ends(void **state)
{
    struct cairn_reduce_options options = {.rank = 0, .world = 2, .attachment = 1, .emit = look};
    struct cairn_timing_record send = {
        .comm = 8, .rank = 0, .peer = 1, .ranks = 2, .op = CAIRN_SEND};
    struct cairn_timing_record reduced = {
        .comm = 9, .rank = 0, .peer = CAIRN_PEER_NONE, .ranks = 2, .op = CAIRN_ALL_REDUCE};
    uint64_t now_ns = 10 * S;

    for (int shows = 0; shows < 2; shows++) {
        struct cairn_reduce *reduce;

        seen_steps = 0;
        assert_int_equal(cairn_reduce_create(&options, &reduce), CAIRN_OK);
        for (uint32_t step = 1; step < 10; step++) {
            send.step = reduced.step = step;
            reduced.seq = step;
            send.enter_ns = now_ns += 4 * MS;
            send.end_ns = 0;
            assert_int_equal(cairn_reduce_take(reduce, &send, now_ns), CAIRN_OK);
            send.end_ns = now_ns += MS;
            if (shows)
                assert_int_equal(cairn_reduce_take(reduce, &send, now_ns), CAIRN_OK);
            reduced.enter_ns = now_ns += 4 * MS;
            reduced.end_ns = 0;
            assert_int_equal(cairn_reduce_take(reduce, &reduced, now_ns), CAIRN_OK);
            reduced.end_ns = now_ns += MS;
            assert_int_equal(cairn_reduce_take(reduce, &reduced, now_ns), CAIRN_OK);
        }
        assert_int_equal(seen_steps, 8);
        assert_int_equal(seen_compute_ns != seen_compute_ns, !shows);
        cairn_reduce_destroy(reduce);
    }
}

/* An operation of a communicator beyond those that are kept may be what the rank waited in. */
static void
test_beyond_bounds(void **state)
{
    struct cairn_reduce_options options = {.rank = 0, .world = 2, .attachment = 1, .emit = look};
    struct cairn_timing_record member = {
        .rank = 0, .peer = 0, .ranks = 2, .op = CAIRN_TIMING_MEMBER};
    struct cairn_timing_record record = {
        .comm = 1, .rank = 0, .peer = CAIRN_PEER_NONE, .ranks = 2, .op = CAIRN_ALL_REDUCE};
    struct cairn_reduce *reduce;
    uint64_t now_ns = 10 * S;

    seen_steps = 0;
    assert_int_equal(cairn_reduce_create(&options, &reduce), CAIRN_OK);
    for (member.comm = 1; member.comm <= CAIRN_REDUCE_COMMS_MAX; member.comm++)
        assert_int_equal(cairn_reduce_take(reduce, &member, now_ns), CAIRN_OK);
    for (record.step = 1; record.step < 20; record.step++) {
        for (int other = 0; other < (record.step > 10 ? 2 : 1); other++) {
            record.comm = other ? CAIRN_REDUCE_COMMS_MAX + 1 : 1;
            record.seq = record.step;
            record.enter_ns = now_ns += 4 * MS;
            record.end_ns = now_ns += 4 * MS;
            assert_int_equal(cairn_reduce_take(reduce, &record, now_ns), CAIRN_OK);
        }
        if (record.step == 10)
            assert_true(seen_compute_ns > 3.9 * MS && seen_compute_ns < 4.1 * MS);
    }
    assert_int_equal(seen_steps, 18);
    assert_true(seen_compute_ns != seen_compute_ns);
    assert_int_equal(cairn_reduce_count(reduce).lost, 9);
    cairn_reduce_destroy(reduce);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quiet),
        cmocka_unit_test(test_slow_and_back),
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_gone_and_restarted),
        cmocka_unit_test(test_taken_over),
        cmocka_unit_test(test_lies),
        cmocka_unit_test(test_checkpoints),
        cmocka_unit_test(test_ended),
        cmocka_unit_test(test_other_world),
        cmocka_unit_test(test_sends_without_ends),
        cmocka_unit_test(test_partial),
        cmocka_unit_test(test_late),
        cmocka_unit_test(test_busy_elsewhere),
        cmocka_unit_test(test_long_step),
        cmocka_unit_test(test_ends_not_seen),
        cmocka_unit_test(test_many_starts),
        cmocka_unit_test(test_far_ahead),
        cmocka_unit_test(test_links),
        cmocka_unit_test(test_suspects),
        cmocka_unit_test(test_beyond_bounds),
        cmocka_unit_test(test_budget_of_many),
        cmocka_unit_test(test_uneven_late),
        cmocka_unit_test(test_agent_begins_in_a_wait),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
