/* tests/traces/second/shape.c - ranks, stages, nodes and communicators of a job. */
#include "tests/traces/second/state.h"

#include <inttypes.h>
#include <stdlib.h>

uint32_t
model_step(const struct model *model, uint32_t tick)
{
    return model->restart && tick >= model->restart ? tick - model->back : tick;
}

uint32_t
model_rank(const struct model *model, uint32_t tp, uint32_t pp, uint32_t dp)
{
    return model->stages_outside ? tp + model->tp * (dp + model->dp * pp)
                                 : tp + model->tp * (pp + model->pp * dp);
}

uint32_t
model_stage(const struct model *model, uint32_t rank)
{
    return model->stages_outside ? rank / (model->tp * model->dp) : rank / model->tp % model->pp;
}

uint32_t
model_replica(const struct model *model, uint32_t rank)
{
    return model->stages_outside ? rank / model->tp % model->dp : rank / (model->tp * model->pp);
}

uint32_t
model_node(const struct model *model, uint32_t rank)
{
    return rank / model->ranks_per_node;
}

static uint32_t
new_group(struct run *run, const char *name, uint32_t number)
{
    struct group *group = &run->groups[run->group_count];

    snprintf(group->name, sizeof group->name, "%s%" PRIu32, name, number);
    return run->group_count++;
}

static void
enlist(struct run *run, uint32_t index, uint32_t rank)
{
    struct group *group = &run->groups[index];

    group->ranks[group->count++] = rank;
    group->far |= model_node(run->model, rank) != model_node(run->model, group->ranks[0]);
}

void
model_groups(struct run *run)
{
    const struct model *model = run->model;
    uint32_t index;

    run->groups = calloc((size_t)model->world * 5 + 1, sizeof *run->groups);
    for (uint32_t p = 0; p < model->pp; p++)
        for (uint32_t d = 0; d < model->dp && model->tp > 1; d++) {
            index = new_group(run, "tp", d + model->dp * p);
            for (uint32_t t = 0; t < model->tp; t++) {
                enlist(run, index, model_rank(model, t, p, d));
                run->workers[model_rank(model, t, p, d)].tensor = index;
            }
        }
    for (uint32_t t = 0; t < model->tp; t++)
        for (uint32_t d = 0; d < model->dp && model->pp > 1; d++) {
            index = new_group(run, "pp", t + model->tp * d);
            for (uint32_t p = 0; p < model->pp; p++) {
                enlist(run, index, model_rank(model, t, p, d));
                run->workers[model_rank(model, t, p, d)].stages = index;
            }
        }
    for (uint32_t t = 0; t < model->tp; t++)
        for (uint32_t p = 0; p < model->pp && model->dp > 1; p++) {
            index = new_group(run, "dp", t + model->tp * p);
            for (uint32_t d = 0; d < model->dp; d++) {
                enlist(run, index, model_rank(model, t, p, d));
                run->workers[model_rank(model, t, p, d)].replicas = index;
            }
        }
    for (uint32_t e = 0; model->ep > 1 && e < model->world / model->ep; e++) {
        index = new_group(run, "ep", e);
        for (uint32_t i = 0; i < model->ep; i++) {
            enlist(run, index, e * model->ep + i);
            run->workers[e * model->ep + i].experts = index;
        }
    }
    for (uint32_t i = 0; model->ep > 1 && model->ep < model->world && i < model->ep; i++) {
        index = new_group(run, "edp", i);
        for (uint32_t e = 0; e < model->world / model->ep; e++) {
            enlist(run, index, e * model->ep + i);
            run->workers[e * model->ep + i].expert_replicas = index;
        }
    }
    run->everybody = new_group(run, "world", 0);
    for (uint32_t rank = 0; rank < model->world; rank++)
        enlist(run, run->everybody, rank);
}
