/*
 * tests/sim/scale.c - what a job without faults costs as it grows: messages and bytes per node and
 * generation, heartbeats, sessions, memory.
 *
 * Blocks do not count as bytes. Traffic counts from the first commit on.
 */
#include "tests/sim/sim.h"

#include <math.h>
#include <stdio.h>

enum { SCALE_GENERATIONS = 6, GROUP = 8 };

/* A job without faults that ends after so many committed generations. */
static struct setup
calm(uint32_t agent_count, uint64_t generations)
{
    struct setup setup;

    setup_from_seed(1, &setup);
    setup.agent_count = agent_count;
    setup.spare_count = 0;
    setup.parity = 2;
    setup.group_size = 8;
    setup.domain_count = 16;
    setup.ranks = 1;
    setup.rank_blocks_max = 6;
    setup.slot_blocks = 6;
    setup.parity_blocks = 12;
    setup.slots = 2;
    setup.every_steps = 1;
    setup.step_ns = 4 * SECOND_NS;
    setup.fault_count = 0;
    setup.crash_within_step = 0;
    setup.beyond = setup.spills = setup.exam = setup.untiled = setup.everywhere = false;
    setup.careless = setup.own_checkpoints = setup.asked_for = false;
    setup.launches = true;
    setup.repair_after_ns = 0;
    setup.generations_wanted = generations;
    return setup;
}

bool
memory_is_bounded(void)
{
    struct setup few = calm(64, SCALE_GENERATIONS), many = calm(64, 10 * SCALE_GENERATIONS);
    struct run_result after_few, after_many;

    run_schedule(&few, 0, false, &after_few);
    run_schedule(&many, 0, false, &after_many);
    printf("sim: 64 nodes: %llu KiB per node after %d generations, %llu KiB after %d\n",
           (unsigned long long)(after_few.heap_bytes / 64 / 1024), SCALE_GENERATIONS,
           (unsigned long long)(after_many.heap_bytes / 64 / 1024), 10 * SCALE_GENERATIONS);
    return after_few.verdict == VERDICT_GOOD && after_many.verdict == VERDICT_GOOD &&
           (after_few.heap_bytes == 0 || /* a sanitizer's heap does not count */
            after_many.heap_bytes < after_few.heap_bytes + after_few.heap_bytes / 10);
}

/* The most that any node may have; the constants fit 64 nodes with room to spare. */
bool
scale_is_good(uint32_t agents_max)
{
    static const uint32_t sizes[] = {64, 256, 1024, 4096, 10000};
    struct scale_result first = {0};
    bool good = true;

    for (uint32_t i = 0; i < sizeof sizes / sizeof *sizes && sizes[i] <= agents_max; i++) {
        struct setup setup = calm(sizes[i], SCALE_GENERATIONS);
        double root = sqrt(sizes[i]) / sqrt(sizes[0]);
        double sessions = 2 * log2(sizes[i]) + GROUP + 2 * sqrt(sizes[i]);
        struct run_result result;
        const struct scale_result *scale = &result.scale;

        run_schedule(&setup, 0, false, &result);
        if (result.verdict != VERDICT_GOOD) {
            printf("sim: %u nodes without faults: %s\n", sizes[i], result.why);
            return false;
        }
        printf("sim: %u nodes: per node and generation %.0f messages (most %.0f), %.0f KiB (most "
               "%.0f); %.0f bytes of heartbeats per interval; %u sessions at most, %u of the "
               "leader\n",
               sizes[i], scale->messages_mean, scale->messages_max, scale->bytes_mean / 1024,
               scale->bytes_max / 1024, scale->beat_bytes_max, scale->sessions_max,
               scale->sessions_leader);
        fflush(stdout);
        if (i == 0)
            first = *scale;
        good &=
            scale->messages_max <= 1.5 * root * first.messages_max &&
            scale->bytes_max <= 1.5 * root * first.bytes_max &&
            scale->beat_bytes_max <= 1.2 * first.beat_bytes_max * log2(sizes[i]) / log2(sizes[0]) &&
            scale->sessions_max <= sessions;
    }
    return good;
}
