/*
 * tests/traces/generate.c - writes one labelled trace of a simulated job from a seed.
 *
 *     generate --seed N --case NAME [--ranks N] [--steps N] [--noise F] [--spikes F] [--kept F]
 *     --trace FILE --labels FILE
 *
 * Cases: quiet slow slow_slight node link nic nic_rings hang_rank hang_link crash pause several
 * long_stage last_stage lengths collector. The shape of the job, the size, the onset and the place
 * of what is wrong come from the seed. Of the jobs with something wrong, one in four has transfers
 * that are much longer now and then (of a share of 5 to 20 %, up to 1.5 to 3 times); --spikes gives
 * any job a share of them, up to three times as long, or none. --kept gives pipelines lengths that
 * nobody reports and that wander: what each has from one step to the next is correlated by so much.
 */
#include "tests/traces/job.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const kinds[] = {[FAULT_SLOW_RANK] = "slow_compute",
                                    [FAULT_SLOW_NODE] = "slow_node",
                                    [FAULT_SLOW_LINK] = "slow_link",
                                    [FAULT_SLOW_NIC] = "slow_link",
                                    [FAULT_HANG_RANK] = "hang_compute",
                                    [FAULT_HANG_LINK] = "hang_link",
                                    [FAULT_CRASH] = "crash",
                                    [FAULT_PAUSE] = "pause",
                                    [FAULT_LONG_STAGE] = "structural",
                                    [FAULT_LENGTHS] = "structural",
                                    [FAULT_PAUSES] = "structural"};

/* True where data between stages leaves nodes. Where only the rings of the gradients do, every one
 * of them goes over every node, and nothing tells whose NIC is slow (the case nic_rings). */
static bool
stages_cross(const struct job *job)
{
    return job->pp > 1 && (job->data_before_stages || job->tp * job->pp > job->ranks_per_node);
}

static void
draw_shape(struct job *job, struct random *random, uint32_t ranks, const char *name)
{
    static const uint32_t worlds[] = {16, 16, 32, 32, 64, 64, 128, 256, 512, 1024};

    bool pipelines = strstr(name, "_stage") != NULL || strcmp(name, "link") == 0;

    job->world = ranks ? ranks : worlds[random_below(random, 10)];
    job->ranks_per_node = job->world <= 32 ? 4 : 8;
    job->data_before_stages = random_below(random, 3) == 0;
    do {
        job->tp = 1u << random_below(random, 4);
        job->pp = 1u << random_below(random, 4);
        job->dp = job->world / (job->tp * job->pp);
    } while (job->tp * job->pp * 2 > job->world || job->tp > job->ranks_per_node ||
             job->dp > 1024 || (pipelines && job->pp < 4) ||
             (strcmp(name, "nic") == 0 && !stages_cross(job)));
    job->tree = random_below(random, 3) == 0;
    job->sharded = random_below(random, 2);
    job->microbatches =
        job->pp > 1 ? job->pp + random_below(random, 3) : 1 + random_below(random, 3);
    job->steps_named = random_below(random, 10) > 0;
    job->forward_ns = random_between(random, 5e6, 20e6);
    job->optimizer_ns = random_between(random, 2e6, 8e6);
    job->tp_ns = random_between(random, 0.3e6, 1e6);
    job->pair_ns = random_between(random, 0.5e6, 2e6);
    job->dp_ns = random_between(random, 5e6, 20e6);
    job->noise = random_between(random, 0.005, 0.05);
    job->noise_near = random_between(random, 0.02, 0.09);
    job->noise_far = random_between(random, 0.05, 0.29);
    if (random_below(random, 3) == 0) { /* sequences of variable length, mostly reported */
        job->length_spread = random_between(random, 0.02, 0.1);
        job->work_named = random_below(random, 4) > 0;
    }
}

static struct fault *
add_fault(struct job *job, struct random *random, enum fault_kind kind)
{
    struct fault *fault = &job->faults[job->fault_count++];

    *fault =
        (struct fault){.kind = kind, .rank = random_below(random, job->world), .until = UINT32_MAX};
    fault->node = fault->rank / job->ranks_per_node;
    fault->since = 14 + random_below(random, job->steps > 60 ? job->steps - 50 : 10);
    if (random_below(random, 3) == 0)
        fault->until = fault->since + 20 + random_below(random, 20);
    return fault;
}

/* A pair of neighbouring stages, or of a data-parallel group of two. */
static void
choose_pair(const struct job *job, struct random *random, struct fault *fault)
{
    uint32_t distance = job->data_before_stages ? job->tp * job->dp : job->tp;
    uint32_t stage = job_stage(job, fault->rank);

    if (job->pp == 1) {
        fault->peer =
            job_rank(job, fault->rank % job->tp, 0, (job_pipeline(job, fault->rank) + 1) % job->dp);
        return;
    }
    if (stage + 1 == job->pp || (stage > 0 && random_below(random, 2)))
        fault->peer = fault->rank - distance;
    else
        fault->peer = fault->rank + distance;
}

static void
add_one(struct job *job, struct random *random, const char *name)
{
    struct fault *fault;

    if (strcmp(name, "slow") == 0) {
        fault = add_fault(job, random, FAULT_SLOW_RANK);
        fault->factor = random_between(random, 1.2, 2.5);
    } else if (strcmp(name, "slow_slight") == 0) {
        fault = add_fault(job, random, FAULT_SLOW_RANK);
        fault->factor = 1.1;
    } else if (strcmp(name, "node") == 0) {
        fault = add_fault(job, random, FAULT_SLOW_NODE);
        fault->factor = random_between(random, 1.2, 2);
    } else if (strcmp(name, "link") == 0) {
        fault = add_fault(job, random, FAULT_SLOW_LINK);
        fault->factor = random_between(random, 1.5, 4);
        choose_pair(job, random, fault);
    } else if (strcmp(name, "nic") == 0 || strcmp(name, "nic_rings") == 0) {
        fault = add_fault(job, random, FAULT_SLOW_NIC);
        fault->factor = random_between(random, 1.5, 4);
    } else if (strcmp(name, "hang_rank") == 0) {
        add_fault(job, random, FAULT_HANG_RANK);
    } else if (strcmp(name, "hang_link") == 0) {
        choose_pair(job, random, add_fault(job, random, FAULT_HANG_LINK));
    } else if (strcmp(name, "crash") == 0) {
        add_fault(job, random, FAULT_CRASH);
    } else if (strcmp(name, "pause") == 0) {
        add_fault(job, random, FAULT_PAUSE);
    } else if (strcmp(name, "long_stage") == 0 || strcmp(name, "last_stage") == 0) {
        fault = add_fault(job, random, FAULT_LONG_STAGE);
        fault->stage =
            strcmp(name, "last_stage") == 0 ? job->pp - 1 : random_below(random, job->pp - 1);
        fault->factor = random_between(random, 1.25, 2);
    } else if (strcmp(name, "lengths") == 0) {
        fault = add_fault(job, random, FAULT_LENGTHS);
        fault->factor = random_between(random, 0.25, 0.5);
    } else if (strcmp(name, "collector") == 0) {
        fault = add_fault(job, random, FAULT_PAUSES);
        fault->factor = random_between(random, 0.4, 1);
    } else if (strcmp(name, "quiet") != 0) {
        fprintf(stderr, "generate: there is no case \"%s\"\n", name);
        exit(64);
    }
    if (job->fault_count > 0 && job->faults[job->fault_count - 1].kind >= FAULT_LONG_STAGE) {
        /* the plan and the data are uneven from the start */
        job->faults[job->fault_count - 1].since = 0;
        job->faults[job->fault_count - 1].until = UINT32_MAX;
    }
}

/* Two or three causes that do not touch the same rank. */
static void
add_several(struct job *job, struct random *random)
{
    uint32_t wanted = 2 + random_below(random, 2);

    while (job->fault_count < wanted) {
        struct fault *fault;
        bool clash = false;

        add_one(job, random, random_below(random, 3) > 0 || job->pp == 1 ? "slow" : "link");
        fault = &job->faults[job->fault_count - 1];
        for (uint32_t i = 0; i + 1 < job->fault_count; i++)
            clash |= job->faults[i].node == fault->node ||
                     (fault->kind == FAULT_SLOW_LINK && job->faults[i].kind == FAULT_SLOW_LINK);
        if (clash)
            job->fault_count--;
    }
}

/* Of a random sequence of its own, so that a seed's job is the same with and without. */
static struct spikes
draw_spikes(struct random *random, bool often)
{
    struct spikes spikes = {0};

    if (random_below(random, 4) == 0)
        spikes.share = random_between(random, 0.05, 0.2);
    spikes.most = often ? 3 : random_between(random, 1.5, 3);
    spikes.steps = random_below(random, 4);
    spikes.near = random_below(random, 2) == 0;
    return spikes;
}

static void
write_labels(const struct job *job, const char *name, FILE *out)
{
    bool first = true;

    fprintf(out,
            "{\"case\":\"%s\",\"world\":%" PRIu32 ",\"tp\":%" PRIu32 ",\"pp\":%" PRIu32
            ",\"dp\":%" PRIu32 ",\"ranks_per_node\":%" PRIu32 ",\"steps\":%" PRIu32
            ",\"noise\":%.4f,\"noise_far\":%.4f,\"lengths\":%.3f,"
            "\"spikes\":%.3f,\"spike_steps\":%" PRIu32
            ",\"kept\":%.3f,\"work\":%s,\"named\":%s,\"faults\":[",
            name, job->world, job->tp, job->pp, job->dp, job->ranks_per_node, job->steps,
            job->noise, job->noise_far, job->length_spread, job->spikes.share, job->spikes.steps,
            job->length_kept, job->work_named ? "true" : "false",
            job->steps_named ? "true" : "false");
    for (uint32_t i = 0; i < job->fault_count; i++) {
        const struct fault *fault = &job->faults[i];
        const char *pattern = fault->kind == FAULT_LENGTHS      ? "sequence_length"
                              : fault->kind == FAULT_PAUSES     ? "garbage_collection"
                              : fault->kind != FAULT_LONG_STAGE ? ""
                              : fault->stage + 1 == job->pp     ? "last_stage"
                                                                : "long_stage";

        if (fault->kind == FAULT_PAUSE)
            continue;
        fprintf(out,
                "%s{\"kind\":\"%s\",\"pattern\":\"%s\",\"rank\":%" PRIu32 ",\"peer\":%" PRIu32
                ",\"node\":%" PRIu32 ",\"nic\":%s,\"since_step\":%" PRIu32
                ",\"until_step\":%" PRId64 ",\"rate\":%.4f}",
                first ? "" : ",", kinds[fault->kind], pattern, fault->rank, fault->peer,
                fault->node, fault->kind == FAULT_SLOW_NIC ? "true" : "false", fault->since,
                fault->until == UINT32_MAX ? (int64_t)-1 : (int64_t)fault->until, fault->factor);
        first = false;
    }
    fputs("]}\n", out);
}

static FILE *
open_out(const char *path)
{
    FILE *file = path ? fopen(path, "w") : NULL;

    if (!file) {
        fprintf(stderr, "generate: cannot write %s\n", path ? path : "(no file named)");
        exit(74);
    }
    setvbuf(file, NULL, _IOFBF, 1 << 20);
    return file;
}

int
main(int argc, char **argv)
{
    const char *name = "quiet", *trace = NULL, *labels = NULL;
    struct random random = {1}, own;
    struct job job = {.steps = 80};
    uint32_t ranks = 0;
    double noise = 0, spikes = -1;
    FILE *out;

    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seed") == 0)
            random.state = strtoull(argv[i + 1], NULL, 10) * 0x2545f4914f6cdd1dull;
        else if (strcmp(argv[i], "--case") == 0)
            name = argv[i + 1];
        else if (strcmp(argv[i], "--ranks") == 0)
            ranks = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--steps") == 0)
            job.steps = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--noise") == 0)
            noise = strtod(argv[i + 1], NULL);
        else if (strcmp(argv[i], "--spikes") == 0)
            spikes = strtod(argv[i + 1], NULL);
        else if (strcmp(argv[i], "--kept") == 0)
            job.length_kept = strtod(argv[i + 1], NULL);
        else if (strcmp(argv[i], "--trace") == 0)
            trace = argv[i + 1];
        else if (strcmp(argv[i], "--labels") == 0)
            labels = argv[i + 1];
    }
    if (ranks > RANKS_MAX)
        ranks = RANKS_MAX;
    own.state = ~random.state;
    draw_shape(&job, &random, ranks, name);
    job.spikes = draw_spikes(&own, spikes > 0);
    if (spikes >= 0 || strcmp(name, "quiet") == 0)
        job.spikes.share = fmin(fmax(spikes, 0), 0.9);
    if (job.length_kept > 0) {
        job.length_spread = fmax(job.length_spread, 0.05);
        job.work_named = false;
    }
    if (noise > 0)
        job.noise = noise;
    if (strcmp(name, "several") == 0)
        add_several(&job, &random);
    else
        add_one(&job, &random, name);
    out = open_out(labels);
    write_labels(&job, name, out);
    if (fclose(out) != 0)
        return 74;
    out = open_out(trace);
    job_simulate(&job, &random, &own, out);
    return fclose(out) == 0 ? 0 : 74;
}
