/* tools/plan_view.c - a plan as a picture. */
#include "tools/plan_view.h"

#include "tools/common.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    BAR_COLUMNS = 40,
    SHOWN_PIPELINES_MAX = 64, /* of a plan of thousands the first are shown, with the count of the
                               * rest */
    SHOWN_IDLE_MAX = 100,     /* devices in no stage, of each kind */
    BAR_PIXELS = 600,
    ROW_PIXELS = 18,
    IDLE_PER_ROW = 10,
    LABEL_PIXELS = 70
};

static const struct cairn_plan_stage *
stage_of(const struct cairn_plan *plan, uint32_t pipeline, uint32_t stage)
{
    return &plan->stages[plan->pipelines[pipeline].first_stage + stage];
}

/* The device of a group with the worst rate. */
static const struct cairn_device *
slowest_device(const struct cairn_problem *problem, const struct cairn_plan *plan,
               const struct cairn_plan_stage *stage)
{
    const struct cairn_device *slowest = NULL;

    for (uint32_t i = 0; i < stage->device_count; i++) {
        uint32_t at = cairn_problem_device_find(problem, plan->devices[stage->first_device + i]);
        const struct cairn_device *device = &problem->devices[at];

        if (!slowest || device->rate > slowest->rate)
            slowest = device;
    }
    return slowest;
}

/* [device_count]: whether a device is in a stage. NULL: out of memory. The caller frees it. */
static bool *
find_used(const struct cairn_problem *problem, const struct cairn_plan *plan)
{
    bool *used = calloc((size_t)problem->device_count + 1, sizeof(*used));

    for (uint32_t i = 0; used && i < plan->device_count; i++)
        used[cairn_problem_device_find(problem, plan->devices[i])] = true;
    return used;
}

static double
slowest_ms(const struct cairn_problem *problem, const struct cairn_plan *plan, uint32_t pipeline,
           double *sum_ms)
{
    double longest = 0;

    *sum_ms = 0;
    for (uint32_t j = 0; j < plan->pipelines[pipeline].stage_count; j++) {
        double own = cairn_plan_stage_ms(plan, problem, pipeline, j);

        longest = fmax(longest, own);
        *sum_ms += own;
    }
    return longest;
}

static double
longest_stage_ms(const struct cairn_problem *problem, const struct cairn_plan *plan)
{
    double longest = 0, sum_ms;

    for (uint32_t i = 0; i < plan->pipeline_count; i++)
        longest = fmax(longest, slowest_ms(problem, plan, i, &sum_ms));
    return longest;
}

static void
explain_stage(const struct cairn_problem *problem, const struct cairn_plan *plan, uint32_t pipeline,
              uint32_t j, double scale_ms, FILE *out)
{
    const struct cairn_plan_stage *stage = stage_of(plan, pipeline, j);
    const struct cairn_device *slowest = slowest_device(problem, plan, stage);
    double own_ms = cairn_plan_stage_ms(plan, problem, pipeline, j);
    int columns = (int)lround(own_ms / scale_ms * BAR_COLUMNS);
    char bar[BAR_COLUMNS + 1], slow[64] = "";

    memset(bar, '#', BAR_COLUMNS);
    bar[columns < 1 ? 1 : columns] = '\0';
    if (slowest->rate > 1)
        (void)snprintf(slow, sizeof(slow), ", device %" PRIu64 " at rate %.3g", slowest->id,
                       slowest->rate);
    fprintf(out, "  stage %-3" PRIu32 " ", j);
    if (slowest->rate > 1)
        cairn_print_coloured(out, "33", bar);
    else
        fputs(bar, out);
    fprintf(out, "%*s %" PRIu32 " layers on %" PRIu32 " (from device %" PRIu64 ")%s, %.1f ms\n",
            (int)(BAR_COLUMNS - strlen(bar)), "", stage->layer_count, stage->device_count,
            plan->devices[stage->first_device], slow, own_ms);
}

/* The dead of those that are in no stage, or the others, by their ids. */
static void
list_idle(const struct cairn_problem *problem, const bool *used, bool dead, FILE *out)
{
    uint32_t shown = 0, more = 0;

    for (uint32_t i = 0; i < problem->device_count; i++) {
        const struct cairn_device *device = &problem->devices[i];

        if (used[i] || (device->rate <= 0) != dead)
            continue;
        if (shown == SHOWN_IDLE_MAX) {
            more++;
            continue;
        }
        fprintf(out, "%s %" PRIu64, shown > 0 ? "," : dead ? "dead:" : "left out:", device->id);
        if (device->rate > 1)
            fprintf(out, " (rate %.3g)", device->rate);
        shown++;
    }
    if (more > 0)
        fprintf(out, " and %" PRIu32 " more", more);
    if (shown > 0)
        fputs("\n", out);
}

/* Unused devices, the dead apart. */
static void
explain_unused(const struct cairn_problem *problem, const struct cairn_plan *plan, FILE *out)
{
    bool *used = find_used(problem, plan);
    uint32_t dead = 0;

    for (uint32_t i = 0; i < problem->device_count; i++)
        dead += problem->devices[i].rate <= 0;
    fprintf(out, "%" PRIu32 " devices work, %" PRIu32 " are left out, %" PRIu32 " are dead\n",
            plan->device_count, problem->device_count - dead - plan->device_count, dead);
    for (int kind = 0; used && kind < 2; kind++)
        list_idle(problem, used, kind == 1, out);
    free(used);
}

void
cairn_plan_explain(const struct cairn_problem *problem, const struct cairn_answer_plan *answer,
                   FILE *out)
{
    const struct cairn_plan *plan = answer->plan;
    double scale_ms = longest_stage_ms(problem, plan), longest_ms = 0, fill_ms = 0;
    uint32_t longest = 0;

    for (uint32_t i = 0; i < plan->pipeline_count; i++) {
        const struct cairn_plan_pipeline *pipeline = &plan->pipelines[i];
        double sum_ms, slowest = slowest_ms(problem, plan, i, &sum_ms);
        double own_ms = (pipeline->microbatches - 1) * slowest + sum_ms;

        if (own_ms > longest_ms) {
            longest_ms = own_ms;
            longest = i;
            fill_ms = sum_ms - slowest;
        }
        if (i >= SHOWN_PIPELINES_MAX)
            continue;
        fprintf(out, "pipeline %" PRIu32 ": %" PRIu32 " micro-batches, %.1f ms\n", i,
                pipeline->microbatches, own_ms);
        for (uint32_t j = 0; j < pipeline->stage_count; j++)
            explain_stage(problem, plan, i, j, scale_ms, out);
    }
    if (plan->pipeline_count > SHOWN_PIPELINES_MAX)
        fprintf(out, "and %" PRIu32 " pipelines more\n",
                plan->pipeline_count - SHOWN_PIPELINES_MAX);
    explain_unused(problem, plan, out);
    fprintf(out,
            "the longest is pipeline %" PRIu32
            ": %.1f ms at the pace of its slowest stage, %.1f ms to fill "
            "and drain\n",
            longest, longest_ms - fill_ms, fill_ms);
}

static void
draw_pipeline(const struct cairn_problem *problem, const struct cairn_plan *plan, uint32_t pipeline,
              double scale_ms, uint32_t top, FILE *out)
{
    fprintf(out, "<text x=\"4\" y=\"%" PRIu32 "\">%" PRIu32 ": %" PRIu32 " mb</text>\n", top + 13,
            pipeline, plan->pipelines[pipeline].microbatches);
    for (uint32_t j = 0; j < plan->pipelines[pipeline].stage_count; j++) {
        const struct cairn_plan_stage *stage = stage_of(plan, pipeline, j);
        double own_ms = cairn_plan_stage_ms(plan, problem, pipeline, j);
        uint32_t y = top + j * ROW_PIXELS;

        fprintf(out,
                "<rect x=\"%d\" y=\"%" PRIu32 "\" width=\"%.1f\" height=\"%d\" fill=\"%s\"/>"
                "<text x=\"%d\" y=\"%" PRIu32 "\">%" PRIu32 " layers on %" PRIu32
                ", %.1f ms</text>\n",
                LABEL_PIXELS, y, own_ms / scale_ms * BAR_PIXELS, ROW_PIXELS - 3,
                slowest_device(problem, plan, stage)->rate > 1 ? "#e8a33d" : "#7fb2d9",
                LABEL_PIXELS + 4, y + 12, stage->layer_count, stage->device_count, own_ms);
    }
}

/* The devices that are in no stage, as boxes below the pipelines. */
static void
draw_idle(const struct cairn_problem *problem, const bool *used, uint32_t top, FILE *out)
{
    const int wide = BAR_PIXELS / IDLE_PER_ROW;
    uint32_t shown = 0, idle = 0;

    for (uint32_t i = 0; i < problem->device_count; i++) {
        const struct cairn_device *device = &problem->devices[i];
        bool dead = device->rate <= 0;
        int x = LABEL_PIXELS + (int)(shown % IDLE_PER_ROW) * wide;
        uint32_t y = top + shown / IDLE_PER_ROW * ROW_PIXELS;

        idle += !used[i];
        if (used[i] || shown == SHOWN_IDLE_MAX)
            continue;
        fprintf(out,
                "<rect x=\"%d\" y=\"%" PRIu32 "\" width=\"%d\" height=\"%d\" fill=\"%s\"/>"
                "<text x=\"%d\" y=\"%" PRIu32 "\" fill=\"%s\">%" PRIu64 "</text>\n",
                x, y, wide - 3, ROW_PIXELS - 3, dead ? "#444444" : "#cccccc", x + 4, y + 12,
                dead ? "white" : "black", device->id);
        shown++;
    }
    if (idle > 0)
        fprintf(out, "<text x=\"4\" y=\"%" PRIu32 "\">%" PRIu32 " idle</text>\n", top + 13, idle);
}

cairn_err
cairn_plan_draw(const struct cairn_problem *problem, const struct cairn_answer_plan *answer,
                const char *path)
{
    const struct cairn_plan *plan = answer->plan;
    double scale_ms = longest_stage_ms(problem, plan);
    uint32_t top = 2 * ROW_PIXELS, idle = problem->device_count - plan->device_count;
    uint32_t idle_rows =
        ((idle < SHOWN_IDLE_MAX ? idle : SHOWN_IDLE_MAX) + IDLE_PER_ROW - 1) / IDLE_PER_ROW;
    bool *used = find_used(problem, plan);
    FILE *out = used ? fopen(path, "we") : NULL;
    bool failed;

    if (!out) {
        free(used); /* errno stays */
        return CAIRN_IO;
    }
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%" PRIu32
            "\" font-family=\"sans-serif\" font-size=\"11\">\n"
            "<text x=\"4\" y=\"14\">a step takes %.1f ms, no plan less than %.1f ms; orange: slow "
            "devices; "
            "grey: left out; black: dead</text>\n",
            LABEL_PIXELS + BAR_PIXELS + 20,
            top + (plan->stage_count + plan->pipeline_count + idle_rows) * ROW_PIXELS,
            answer->step_ms, answer->bound_ms);
    for (uint32_t i = 0; i < plan->pipeline_count; i++) {
        draw_pipeline(problem, plan, i, scale_ms, top, out);
        top += (plan->pipelines[i].stage_count + 1) * ROW_PIXELS;
    }
    draw_idle(problem, used, top, out);
    free(used);
    fputs("</svg>\n", out);
    failed = ferror(out) != 0;
    return fclose(out) != 0 || failed ? CAIRN_IO : CAIRN_OK;
}
