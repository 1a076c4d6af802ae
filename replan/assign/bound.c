/*
 * replan/assign/bound.c - the lower bound on the time of an assignment.
 *
 * A time T is refused by looking at the k most costly sequences, of cost at least s, for growing k.
 * A pipeline that holds any of them loses (stages - 1) s, and the more the longer its longest one
 * is. Going down from the longest, what pipelines lose between two lengths is at least what the
 * least harmful set of them loses that could hold all that is longer. docs/PLANNER.md has the
 * proof.
 */
#include "replan/assign/assigner.h"

#include <math.h>
#include <stdlib.h>

enum { SINGLY = 96, HALVINGS = 30, DOUBLINGS_MAX = 64 };
#define MARGIN 1e-9
#define PRECISION 3e-5
#define ROUNDING 1e-6

/* A pipeline as the host of sequences that cost at least the present one. */
struct host {
    const struct cairn_assign_pipeline *pipeline;
    double own_ms;  /* what it can do besides filling and draining */
    double places;  /* sequences that it can hold */
    double room_ms; /* of them: own_ms, and not more than that many of the most costly */
};

struct bound {
    const struct cairn_assign_problem *problem;
    const struct cairn_sequence *sequences;
    struct host *hosts;  /* [pipeline_count]; the first host_count are hosts */
    struct host *by_own; /* [host_count]: those that lose least for what they can do first */
    uint32_t host_count;
    double own_ms; /* of all hosts; so the next two */
    double places;
    double room_ms;
};

/* Whether a pipeline takes less of what there is to lose, for what it holds. */
static bool
loses_less(const struct host *left, const struct host *right)
{
    return (left->pipeline->stages - 1) * right->room_ms <
           (right->pipeline->stages - 1) * left->room_ms;
}

/* Finds the hosts for sequences of one cost, those that lose least for their work first. They are
 * nearly in order from the last time. */
static void
find_hosts(struct bound *bound, const struct cairn_sequence *least, double step_ms)
{
    uint32_t found = 0;

    bound->own_ms = 0;
    bound->places = 0;
    bound->room_ms = 0;
    for (uint32_t i = 0; i < bound->problem->pipeline_count; i++) {
        struct host host = bound->hosts[i];
        uint32_t at = found;

        host.own_ms = step_ms / host.pipeline->time_scale * (1 + MARGIN) -
                      (host.pipeline->stages - 1) * least->cost_ms;
        host.places = floor(host.own_ms / least->cost_ms);
        if (host.places < 1 || least->tokens > host.pipeline->max_tokens) {
            bound->hosts[i] = host;
            continue;
        }
        host.room_ms = fmin(host.own_ms, host.places * bound->sequences[0].cost_ms);
        bound->own_ms += host.own_ms;
        bound->places += host.places;
        bound->room_ms += host.room_ms;
        bound->hosts[i] = bound->hosts[found]; /* one that is none, or this one itself */
        for (; at > 0 && loses_less(&host, &bound->hosts[at - 1]); at--)
            bound->hosts[at] = bound->hosts[at - 1];
        bound->hosts[at] = host;
        found++;
    }
    bound->host_count = found;
}

/* The least that hosts lose, per unit of cost, when they hold that much work: whole pipelines, so a
 * whole number. */
static double
least_loss(const struct bound *bound, double work_ms)
{
    double loss = 0;

    for (uint32_t i = 0; i < bound->host_count && work_ms > 0; i++) {
        const struct host *host = &bound->hosts[i];

        loss +=
            (work_ms < host->room_ms ? work_ms / host->room_ms : 1) * (host->pipeline->stages - 1);
        work_ms -= host->room_ms;
    }
    return ceil(loss - ROUNDING);
}

/* The same when the work includes what these hosts have lost already, of all that they can do. */
static double
least_loss_by_own(const struct bound *bound, double work_ms)
{
    double loss = 0;

    for (uint32_t i = 0; i < bound->host_count; i++) {
        struct host host = bound->hosts[i];
        uint32_t at = i;

        for (; at > 0 && (host.pipeline->stages - 1) * bound->by_own[at - 1].own_ms <
                             (bound->by_own[at - 1].pipeline->stages - 1) * host.own_ms;
             at--)
            bound->by_own[at] = bound->by_own[at - 1];
        bound->by_own[at] = host;
    }
    for (uint32_t i = 0; i < bound->host_count && work_ms > 0; i++) {
        const struct host *host = &bound->by_own[i];

        loss +=
            (work_ms < host->own_ms ? work_ms / host->own_ms : 1) * (host->pipeline->stages - 1);
        work_ms -= host->own_ms;
    }
    return ceil(loss - ROUNDING);
}

/* Whether no assignment keeps step_ms. */
static bool
out_of_reach(struct bound *bound, double step_ms)
{
    const struct cairn_sequence *sequences = bound->sequences;
    uint32_t count = bound->problem->sequence_count;
    double lost_ms = 0, loss = 0, work_ms = 0, above_ms = sequences[0].cost_ms;

    for (uint32_t i = 0, next = 0; i < count; i++) {
        work_ms += sequences[i].cost_ms;
        if (i + 1 < count && (i < next || sequences[i + 1].cost_ms >= sequences[i].cost_ms))
            continue; /* the last of those that cost the same says most */
        /* the longest one by one, then in growing steps */
        next = i < SINGLY ? i + 1 : i + 1 + i / 8;
        find_hosts(bound, &sequences[i], step_ms);
        lost_ms += (above_ms - sequences[i].cost_ms) * loss;
        if (bound->places < i + 1 ||
            fmin(bound->own_ms - lost_ms, bound->room_ms) * (1 + MARGIN) < work_ms)
            return true;
        above_ms = sequences[i].cost_ms;
        /* who holds a longer one loses here, too */
        loss = fmax(loss,
                    fmax(least_loss(bound, work_ms), least_loss_by_own(bound, work_ms + lost_ms)));
    }
    return false;
}

cairn_err
cairn_assign_bound_ms(const struct cairn_assign_problem *problem,
                      const struct cairn_sequence *sequences, double *bound_ms)
{
    struct bound bound = {.problem = problem, .sequences = sequences};
    double low = 0, high = 0, speed = 0;

    bound.hosts = calloc(2 * ((size_t)problem->pipeline_count + 1), sizeof(*bound.hosts));
    if (!bound.hosts)
        return CAIRN_NOMEM;
    bound.by_own = bound.hosts + problem->pipeline_count + 1;
    for (uint32_t i = 0; i < problem->pipeline_count; i++) {
        bound.hosts[i].pipeline = &problem->pipelines[i];
        speed += 1 / problem->pipelines[i].time_scale;
    }
    for (uint32_t i = 0; i < problem->sequence_count; i++)
        high += sequences[i].cost_ms / speed;
    for (uint32_t i = 0; i < DOUBLINGS_MAX && out_of_reach(&bound, high); i++) {
        low = high;
        high *= 2;
    }
    for (uint32_t i = 0; i < HALVINGS && high - low > PRECISION * high; i++) {
        double middle = low + (high - low) / 2;

        if (out_of_reach(&bound, middle))
            low = middle;
        else
            high = middle;
    }
    free(bound.hosts);
    *bound_ms = low;
    return CAIRN_OK;
}
