/* tests/sim/setup.c - what a seed means: how large the job is, its timing, and which faults it
 * meets. */
#include "tests/sim/sim.h"

#include "base/limits.h"

#include <stdio.h>
#include <string.h>

#define NEVER_STEPS (UINT64_C(1) << 32)

static void
choose_size(struct random *random, struct setup *setup)
{
    uint64_t class = random_below(random, 1000);

    if (class < 800)
        setup->agent_count = (uint32_t)random_between(random, 3, 8);
    else if (class < 975)
        setup->agent_count = (uint32_t)random_between(random, 9, 20);
    else
        setup->agent_count = (uint32_t)random_between(random, 21, 64);
    setup->spare_count = random_chance(random, 400) ? (uint32_t)random_between(random, 1, 2) : 0;
    if (setup->agent_count - setup->spare_count < 2)
        setup->spare_count = 0;
    setup->parity = (uint32_t)random_below(random, 10);
    setup->parity = setup->parity == 0 ? 0 : setup->parity < 5 ? 1 : setup->parity < 9 ? 2 : 3;
    setup->group_size = setup->parity + 1 + (uint32_t)random_below(random, 7);
    setup->domain_count =
        random_chance(random, 300) ? (uint32_t)random_between(random, 2, setup->agent_count) : 0;
    setup->slots = random_chance(random, 800) ? 2 : 3;
    setup->ranks = random_chance(random, 700) ? 1 : 2;
    setup->rank_blocks_max =
        (uint32_t)(random_chance(random, 800) ? random_between(random, 1, 24)
                                              : random_between(random, 30, 90));
    setup->slot_blocks = (uint64_t)setup->ranks * setup->rank_blocks_max;
    setup->parity_blocks = setup->slot_blocks * setup->parity;
    setup->ring_lines = 2 + mix64(setup->seed ^ 0x7269) % (RING_LINES_MAX - 1);
}

static void
choose_timing(struct random *random, struct setup *setup)
{
    setup->every_steps = random_between(random, 1, 3);
    setup->step_ns = random_between(random, 1, 4) * SECOND_NS;
    setup->heartbeat_ns = 2 * SECOND_NS;
    setup->dead_after_ns = 10 * SECOND_NS;
    setup->claim_timeout_ns = 15 * SECOND_NS;
    setup->rebuild_timeout_ns = 40 * SECOND_NS;
    setup->repair_after_ns = random_chance(random, 600) ? 15 * SECOND_NS : 0;
}

static void
choose_faults(struct random *random, struct setup *setup)
{
    setup->faults_end_ns = random_between(random, 30, 120) * SECOND_NS;
    setup->fault_count = (uint32_t)random_between(random, 1, 14);
    for (uint32_t k = 0; k < FAULT_RESTART_ALL; k++)
        setup->fault_weight[k] =
            random_chance(random, 350) ? (uint32_t)random_between(random, 1, 10) : 0;
    setup->crash_within_step =
        random_chance(random, 300) ? (uint32_t)random_between(random, 1, 4) : 0;
    setup->beyond = random_chance(random, 80);
    setup->spills = random_chance(random, 150);
    setup->exam = random_chance(random, 700);
    setup->bound_ns = 600 * SECOND_NS;
    setup->everywhere = random_chance(random, 600);
    setup->partly = mix64(setup->seed ^ 0x7061) % 4 == 0;
    setup->untiled = random_chance(random, 150);
    setup->launches = random_chance(random, 800);
}

void
setup_from_seed(uint64_t seed, struct setup *out)
{
    struct random random = {mix64(seed * 2 + 1)};

    memset(out, 0, sizeof *out);
    out->seed = seed;
    choose_size(&random, out);
    choose_timing(&random, out);
    choose_faults(&random, out);
    out->leave_after_ns = (1 + mix64(seed ^ 0x6c76) % 10) * out->dead_after_ns;
    if (seed % 4 == 2) { /* what was promised is forgotten, and then trainers begin from nothing */
        out->careless = true;
        out->own_checkpoints = seed % 8 == 6;
        out->beyond = false;
        out->repair_after_ns = 0;
        out->crash_within_step = (uint32_t)random_between(&random, 2, 5);
        out->fault_weight[FAULT_TRAINER_KILL] = 10;
    }
    if (seed % 8 == 3) {
        out->asked_for = true;
        out->every_steps = NEVER_STEPS;
    }
    if (seed % 2500 == 1250) { /* a few large jobs, short */
        out->agent_count = 1024;
        out->spare_count = 8;
        out->parity = 2;
        out->group_size = 8;
        out->domain_count = 64;
        out->ranks = 1;
        out->rank_blocks_max = 6;
        out->slot_blocks = 6;
        out->parity_blocks = 12;
        out->faults_end_ns = 30 * SECOND_NS;
        out->heartbeat_ns = 4 * SECOND_NS;
        out->dead_after_ns = 30 * SECOND_NS;
        out->step_ns = 4 * SECOND_NS;
        out->every_steps = 2;
        out->crash_within_step = 0;
        out->beyond = false;
    }
}

void
setup_harden(struct setup *setup)
{
    struct random random = {mix64(setup->seed * 2 + 1) ^ UINT64_C(0x4a5d)};

    if (setup->agent_count > 64)
        return; /* the large jobs are there for their size */
    setup->hard = true;
    setup->fault_count = (uint32_t)random_between(&random, 15, 40);
    setup->faults_end_ns = random_between(&random, 60, 180) * SECOND_NS;
    for (uint32_t k = 0; k < FAULT_KINDS; k++)
        setup->fault_weight[k] += (uint32_t)random_between(&random, 1, 6);
    setup->breaks_per_million = (uint32_t)random_between(&random, 100, 3000);
    setup->delay_ns_max = random_between(&random, 200 * MS_NS, 3 * SECOND_NS);
}

void
setup_print(const struct setup *setup)
{
    printf("seed %llu: %u agents (%u spares, %u domains), groups of %u with m = %u, %u slots, %u "
           "ranks per node of up "
           "to %u blocks, every %llu steps, %u faults until %llu s%s%s%s%s%s%s%s%s%s\n",
           (unsigned long long)setup->seed, setup->agent_count, setup->spare_count,
           setup->domain_count, setup->group_size, setup->parity, setup->slots, setup->ranks,
           setup->rank_blocks_max, (unsigned long long)setup->every_steps, setup->fault_count,
           (unsigned long long)(setup->faults_end_ns / SECOND_NS), setup->beyond ? ", beyond" : "",
           setup->spills ? ", spills" : "", setup->everywhere ? ", trainers everywhere" : "",
           setup->partly ? ", not on all members" : "",
           setup->asked_for ? ", generations are asked for" : "", setup->exam ? ", exam" : "",
           setup->untiled ? ", tensors that do not fit together" : "",
           setup->careless ? ", restarts without a restore" : "", setup->hard ? ", hard" : "");
}
