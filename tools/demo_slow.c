/*
 * tools/demo_slow.c - the job of `cairn demo --slow`, what the planner expects, and what
 * happened; see demo_slow.h.
 */
#include "tools/demo_slow.h"

#include "replan/advise/decide.h"
#include "replan/fleet/plan.h"
#include "replan/search/answer.h"
#include "tools/demo.h"
#include "tools/planning.h"
#include "tools/verb.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS_PER_STAGE = 4, MICROBATCHES_PER_REPLICA = 6, STORY_TIMEOUT_S = 20 };
#define PLAN_LIMIT_MS "2000"
/* A quarter more layers than a stage has fit into a device. */
#define LAYER_BYTES (UINT64_C(1) << 20)
#define MEMORY_BYTES ((LAYERS_PER_STAGE + 1) * LAYER_BYTES)

const char *const demo_slow_model[] = {
    "--d-model", "16", "--heads", "2", "--context", "16", "--micro-batch-size", "2", NULL};

uint32_t
demo_slow_layers(const struct demo *demo)
{
    return LAYERS_PER_STAGE * demo->pp;
}

void
demo_shares_text(const struct demo *demo, const struct demo_shares *shares,
                 char out[DEMO_SHARES_BYTES])
{
    size_t used = 0;

    for (uint32_t r = 0; r < demo->dp; r++)
        used += (size_t)snprintf(out + used, DEMO_SHARES_BYTES - used, "%s%" PRIu32, r ? " | " : "",
                                 shares->parts[r]);
    for (uint32_t rank = 0; rank < demo->options.nodes; rank++) {
        const char *before = rank == 0 ? ", layers " : rank % demo->pp == 0 ? " | " : ",";

        used += (size_t)snprintf(out + used, DEMO_SHARES_BYTES - used, "%s%" PRIu32, before,
                                 shares->layers[rank]);
    }
}

/* ---- the problem ---- */

static void
write_problem(const struct demo *demo, FILE *file)
{
    const uint32_t layers = demo_slow_layers(demo);

    fprintf(file,
            "{\"layers\": %" PRIu32 ", \"layer_ms\": %d, \"microbatches\": %" PRIu32
            ", \"tp_cost\": {\"1\": 1}, \"layer_bytes\": %" PRIu64
            ",\n \"link_gbps\": {\"intra\": 100, \"inter\": 10}, \"devices\": [",
            layers, DEMO_LAYER_MS, MICROBATCHES_PER_REPLICA * demo->dp, LAYER_BYTES);
    for (uint32_t rank = 0; rank < demo->options.nodes; rank++)
        fprintf(file,
                "%s\n  {\"id\": %" PRIu32 ", \"node\": %" PRIu32
                ", \"rate\": 1, \"memory_bytes\": %" PRIu64 "}",
                rank ? "," : "", rank, rank, MEMORY_BYTES);
    fprintf(file, "],\n \"current\": {\"pipelines\": [");
    for (uint32_t replica = 0; replica < demo->dp; replica++) {
        fprintf(file, "%s\n  {\"microbatches\": %d, \"stages\": [", replica ? "," : "",
                MICROBATCHES_PER_REPLICA);
        for (uint32_t stage = 0; stage < demo->pp; stage++)
            fprintf(file, "%s{\"devices\": [%" PRIu32 "], \"layers\": [%" PRIu32 ", %" PRIu32 "]}",
                    stage ? ", " : "", replica * demo->pp + stage, stage * LAYERS_PER_STAGE,
                    (stage + 1) * LAYERS_PER_STAGE);
        fprintf(file, "]}");
    }
    fprintf(file, "]}}\n");
}

static int
save_problem(struct demo *demo)
{
    FILE *file = fopen(demo->slow.problem_path, "we");
    bool failed = !file;

    if (file) {
        write_problem(demo, file);
        failed = ferror(file) != 0;
        failed = fclose(file) != 0 || failed;
    }
    if (!failed)
        return 0;
    fprintf(stderr, "cairn demo: %s: %s; give --dir a directory that can be written\n",
            demo->slow.problem_path, strerror(errno));
    return CAIRN_EXIT_IO;
}

static void
set_plan(const struct demo *demo, const struct demo_shares *shares)
{
    const struct cairn_plan *plan = demo->slow.problem.current;

    for (uint32_t r = 0; r < plan->pipeline_count; r++)
        plan->pipelines[r].microbatches = shares->parts[r];
    for (uint32_t rank = 0; rank < plan->stage_count; rank++)
        plan->stages[rank].layer_count = shares->layers[rank];
}

/* A step of this placement; the slow device's rate is `rate`. */
static double
predict_ms(const struct demo *demo, const struct demo_shares *shares, double rate)
{
    const struct cairn_problem *problem = &demo->slow.problem;
    double ms;

    problem->devices[demo->options.slow.rank].rate = rate;
    set_plan(demo, shares);
    ms = cairn_plan_step_ms(problem->current, problem);
    problem->devices[demo->options.slow.rank].rate = 1;
    set_plan(demo, &demo->slow.home);
    return ms;
}

/* The least time of any plan while the slow device's rate is `rate`. */
static cairn_err
prove_bound(const struct cairn_problem *problem, uint32_t rank, double rate, double *out)
{
    struct cairn_answer_plan answer = {0};
    struct cairn_deadline deadline;
    struct cairn_stop stop = {cairn_deadline_over, &deadline};
    cairn_err err;

    (void)cairn_deadline_parse(PLAN_LIMIT_MS, &deadline);
    problem->devices[rank].rate = rate;
    err = cairn_answer_plan_best(problem, &stop, &answer);
    problem->devices[rank].rate = 1;
    if (!err)
        *out = answer.bound_ms;
    cairn_answer_plan_fini(&answer);
    return err;
}

/* The best shares while the device is slow. */
static cairn_err
find_shares(struct demo *demo)
{
    struct demo_slow *slow = &demo->slow;
    struct cairn_device *device = &slow->problem.devices[demo->options.slow.rank];
    struct cairn_plan *plan = NULL;
    cairn_err err;

    device->rate = demo->options.slow.factor;
    err = cairn_migration_shift(&slow->problem, slow->problem.current, &plan, &slow->shared_ms);
    device->rate = 1;
    if (!err && !plan)
        err = CAIRN_INTERNAL; /* the current plan fits, so others of its stages do */
    slow->best = slow->home;
    for (uint32_t r = 0; !err && r < demo->dp; r++)
        slow->best.parts[r] = plan->pipelines[r].microbatches;
    cairn_plan_destroy(plan);
    return err;
}

static cairn_err
plan_ahead(struct demo *demo)
{
    const struct demo_slow_option *option = &demo->options.slow;
    struct demo_slow *slow = &demo->slow;
    cairn_err err = find_shares(demo);

    if (!err)
        err = prove_bound(&slow->problem, option->rank, 1, &slow->healthy_bound_ms);
    if (!err)
        err = prove_bound(&slow->problem, option->rank, option->factor, &slow->slow_bound_ms);
    slow->healthy_ms = predict_ms(demo, &slow->home, 1);
    slow->slow_ms = predict_ms(demo, &slow->home, option->factor);
    return err;
}

int
demo_slow_open(struct demo *demo)
{
    struct demo_slow *slow = &demo->slow;
    size_t used = 0;
    cairn_err err;
    int code;

    for (uint32_t r = 0; r < demo->dp; r++) {
        slow->home.parts[r] = MICROBATCHES_PER_REPLICA;
        used += (size_t)snprintf(slow->home_words + used, sizeof slow->home_words - used, "%s%d",
                                 r ? "," : "", MICROBATCHES_PER_REPLICA);
    }
    for (uint32_t rank = 0; rank < demo->options.nodes; rank++)
        slow->home.layers[rank] = LAYERS_PER_STAGE;
    snprintf(slow->problem_path, sizeof slow->problem_path, "%.*s/problem.json", DEMO_DIR_BYTES_MAX,
             demo->dir);
    code = save_problem(demo);
    if (code)
        return code;
    if (!cairn_planning_problem("demo", slow->problem_path, &slow->problem, &code))
        return code;
    slow->step_ns = calloc(demo->options.steps + 1, sizeof *slow->step_ns);
    err = slow->step_ns ? plan_ahead(demo) : CAIRN_NOMEM;
    if (!err)
        return 0;
    fprintf(stderr, "cairn demo: the job could not be planned: %s\n", cairn_err_text(err));
    return CAIRN_EXIT_FAILED;
}

void
demo_slow_fini(struct demo_slow *slow)
{
    cairn_problem_fini(&slow->problem);
    free(slow->step_ns);
    free(slow->story);
    slow->step_ns = NULL;
    slow->story = NULL;
}

void
demo_slow_announce(struct demo *demo)
{
    const struct demo_slow_option *option = &demo->options.slow;
    const struct demo_slow *slow = &demo->slow;
    char best[DEMO_SHARES_BYTES];

    demo_shares_text(demo, &slow->best, best);
    demo_say(&demo->view, DEMO_PLAIN,
             "devices are emulated: %d ms per layer and micro-batch; in steps %" PRIu64
             " to %" PRIu64 " that of rank %u takes %.4g times as long",
             DEMO_LAYER_MS, option->first, option->last, option->rank, option->factor);
    demo_say(&demo->view, DEMO_PLAIN,
             "planned: a step takes %.4g ms; %.4g ms while the device is slow; then micro-batches "
             "%s take %.4g ms; if layers move, no plan takes less than %.4g ms",
             slow->healthy_ms, slow->slow_ms, best, slow->shared_ms, slow->slow_bound_ms);
}

/* ---- what happens ---- */

void
demo_slow_take_step(struct demo *demo, uint64_t step, uint64_t step_ns)
{
    if (demo->slow.step_ns && step <= demo->options.steps)
        demo->slow.step_ns[step] = step_ns;
}

/* The newest placement. */
static struct demo_shares
placement_now(const struct demo_slow *slow)
{
    return slow->change_count ? slow->changes[slow->change_count - 1].shares : slow->home;
}

static bool
are_home(const struct demo *demo, const struct demo_shares *shares)
{
    return memcmp(shares, &demo->slow.home, sizeof *shares) == 0;
}

/* Reads a change from an event of a rank. */
static bool
read_change(const struct demo *demo, const char *line, struct demo_change *out)
{
    *out = (struct demo_change){.kind = DEMO_ROW_SHARES, .shares = placement_now(&demo->slow)};
    if (!demo_json_u64(line, "step", &out->from) || out->from > demo->options.steps ||
        demo_json_numbers(line, "micro_batches", out->shares.parts, DEMO_NODES_MAX) != demo->dp)
        return false;
    out->from++;
    return true;
}

static void
add_change(struct demo *demo, const struct demo_change *change)
{
    struct demo_slow *slow = &demo->slow;
    char text[DEMO_SHARES_BYTES];

    if (slow->change_count == DEMO_CHANGES_MAX)
        return;
    slow->changes[slow->change_count++] = *change;
    demo_shares_text(demo, &change->shares, text);
    demo_say(&demo->view, DEMO_GOOD, "from step %" PRIu64 " on: micro-batches %s", change->from,
             text);
}

void
demo_slow_take_shares(struct demo *demo, const char *line)
{
    struct demo_change change;

    if (read_change(demo, line, &change))
        add_change(demo, &change);
}

/* Each rank reports a move; the first report makes the change. */
void
demo_slow_take_move(struct demo *demo, const char *line)
{
    struct demo_slow *slow = &demo->slow;
    struct demo_change change, *known;
    uint64_t rank = 0;

    if (!read_change(demo, line, &change) || !demo_json_u64(line, "rank", &rank) ||
        demo_json_numbers(line, "layers", change.shares.layers, DEMO_NODES_MAX) !=
            demo->options.nodes ||
        !demo_json_u64(line, "standstill_ns", &change.standstill_ns) ||
        !demo_json_u64(line, "bytes", &change.bytes) ||
        !demo_json_u64(line, "remote_bytes", &change.remote_bytes) ||
        !demo_json_u64(line, "floor_bytes", &change.floor_bytes))
        return;
    change.kind = DEMO_ROW_LAYERS;
    if (strstr(line, "\"adopted\":false")) {
        slow->abandoned_count += rank == 0;
        return;
    }
    known = slow->change_count ? &slow->changes[slow->change_count - 1] : NULL;
    if (!known || known->from != change.from) {
        add_change(demo, &change);
        return;
    }
    if (change.standstill_ns > known->standstill_ns)
        known->standstill_ns = change.standstill_ns;
    known->bytes += change.bytes;
    known->remote_bytes += change.remote_bytes;
    known->floor_bytes += change.floor_bytes;
}

/* Changes of steps that are computed again are undone. */
void
demo_slow_take_restart(struct demo *demo, uint64_t step)
{
    struct demo_slow *slow = &demo->slow;
    struct demo_change restart = {.kind = DEMO_ROW_RESTART, .from = step + 1, .shares = slow->home};
    struct demo_shares now;

    while (slow->change_count && slow->changes[slow->change_count - 1].from > step)
        slow->change_count--;
    now = placement_now(slow);
    if (!are_home(demo, &now))
        add_change(demo, &restart);
}

void
demo_slow_take_log(struct demo *demo, const char *line)
{
    static const char begins[] = "replan: offer ", names[] = ": micro-batches ";
    static const char due_since[] = "; due since step ";
    struct demo_slow *slow = &demo->slow;
    const char *offer = strstr(line, begins);
    const char *shares, *why, *due;

    /* only the agent that analyses says why */
    if (!offer || slow->offer_count == DEMO_CHANGES_MAX)
        return;
    shares = offer + sizeof begins - 1;
    slow->offers[slow->offer_count].number = strtoull(shares, NULL, 10);
    shares += strspn(shares, "0123456789");
    if (strncmp(shares, names, sizeof names - 1) != 0)
        return;
    shares += sizeof names - 1;
    why = strstr(shares, ": ");
    if (!why)
        return;
    snprintf(slow->offers[slow->offer_count].shares, DEMO_SHARES_BYTES, "%.*s", (int)(why - shares),
             shares);
    snprintf(slow->offers[slow->offer_count].why, DEMO_WHY_BYTES, "%.*s",
             (int)strcspn(why + 2, "\""), why + 2);
    due = strstr(why, due_since);
    slow->offers[slow->offer_count].due = due ? strtoull(due + sizeof due_since - 1, NULL, 10) : 0;
    slow->offer_count++;
}

/* ---- what has happened ---- */

static int
compare_rows(const void *a, const void *b)
{
    const struct demo_row *left = a, *right = b;

    if (left->from != right->from)
        return left->from < right->from ? -1 : 1;
    return (int)left->kind - (int)right->kind;
}

static int
compare_ns(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;

    return left < right ? -1 : left > right;
}

/* The median of the steps from `from` to before `to`; 0: none. */
static double
median_ms(const struct demo *demo, uint64_t from, uint64_t to)
{
    uint64_t *sorted = calloc(demo->options.steps + 1, sizeof *sorted);
    double ms = 0;
    size_t count = 0;

    for (uint64_t step = from; sorted && step < to; step++)
        if (demo->slow.step_ns[step])
            sorted[count++] = demo->slow.step_ns[step];
    if (count > 0) {
        qsort(sorted, count, sizeof *sorted, compare_ns);
        ms = (double)sorted[count / 2] / 1e6;
    }
    free(sorted);
    return ms;
}

/* The newest offer of a change's shares; NULL: not known. */
static const struct demo_shares_offer *
offer_of(const struct demo *demo, const struct demo_change *change)
{
    const struct demo_slow *slow = &demo->slow;
    char text[DEMO_SHARES_BYTES];

    if (change->kind == DEMO_ROW_RESTART)
        return NULL;
    demo_shares_text(demo, &change->shares, text);
    for (uint32_t i = slow->offer_count; i-- > 0;)
        if (strcmp(slow->offers[i].shares, text) == 0)
            return &slow->offers[i];
    return NULL;
}

uint32_t
demo_slow_rows(const struct demo *demo, struct demo_row *rows)
{
    const struct demo_slow_option *option = &demo->options.slow;
    const struct demo_slow *slow = &demo->slow;
    struct demo_shares shares = slow->home;
    uint64_t begin = 2; /* the first step holds the start */
    uint32_t count = 0;
    bool is_slow = false;

    for (uint32_t i = 0; i < slow->change_count; i++) {
        const struct demo_shares_offer *offer = offer_of(demo, &slow->changes[i]);

        rows[count++] = (struct demo_row){.kind = slow->changes[i].kind,
                                          .change = &slow->changes[i],
                                          .from = slow->changes[i].from,
                                          .shares = slow->changes[i].shares,
                                          .why = offer ? offer->why : NULL,
                                          .due = offer ? offer->due : 0};
    }
    rows[count++] = (struct demo_row){.kind = DEMO_ROW_SLOW, .from = option->first};
    rows[count++] = (struct demo_row){.kind = DEMO_ROW_WELL, .from = option->last + 1};
    qsort(rows, count, sizeof *rows, compare_rows);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t end = i + 1 < count ? rows[i + 1].from : demo->options.steps + 1;

        is_slow = rows[i].change ? is_slow : rows[i].kind == DEMO_ROW_SLOW;
        if (!rows[i].change)
            rows[i].shares = shares;
        shares = rows[i].shares;
        rows[i].before_ms = median_ms(demo, begin, rows[i].from);
        rows[i].after_ms = median_ms(demo, rows[i].from, end);
        rows[i].predicted_ms = predict_ms(demo, &shares, is_slow ? option->factor : 1);
        rows[i].bound_ms = is_slow ? slow->slow_bound_ms : slow->healthy_bound_ms;
        begin = rows[i].from;
    }
    return count;
}

/* Steps that no event told of are left out of both sums. */
static void
sum_steps(const struct demo *demo, struct demo_outcome *outcome)
{
    const struct demo_slow_option *option = &demo->options.slow;
    const struct demo_slow *slow = &demo->slow;

    for (uint64_t step = 2; step <= demo->options.steps; step++) {
        bool is_slow = step >= option->first && step <= option->last;

        if (!slow->step_ns[step])
            continue;
        outcome->total_ms += (double)slow->step_ns[step] / 1e6;
        outcome->clairvoyant_ms += is_slow ? slow->slow_bound_ms : slow->healthy_bound_ms;
    }
}

struct demo_outcome
demo_slow_outcome(const struct demo *demo)
{
    const struct demo_slow_option *option = &demo->options.slow;
    const struct demo_slow *slow = &demo->slow;
    struct demo_outcome outcome = {
        .is_worth_while = slow->shared_ms < slow->slow_ms * (1 - CAIRN_DECIDER_WORTH_WHILE),
        .is_home = true};

    sum_steps(demo, &outcome);
    for (uint32_t i = 0; i < slow->change_count; i++) {
        const struct demo_change *change = &slow->changes[i];
        const struct demo_shares_offer *offer = offer_of(demo, change);

        if (change->kind == DEMO_ROW_LAYERS && !outcome.has_moved_layers && offer && offer->due &&
            offer->due < change->from) {
            outcome.has_moved_layers = true;
            outcome.layers_late = change->from - offer->due - 1;
        }
        outcome.is_home = are_home(demo, &change->shares);
        if (outcome.is_home && change->from > option->last)
            outcome.home_after = change->from - option->last - 1;
        if (outcome.has_moved || outcome.is_home || change->from <= option->first ||
            change->from > option->last)
            continue;
        outcome.has_moved = true;
        outcome.moved_after = change->from - option->first;
    }
    return outcome;
}

void
demo_slow_ask_story(struct demo *demo)
{
    struct demo_slow *slow = &demo->slow;
    const struct demo_shares_offer *offer = NULL;
    char number[32];
    const char *const words[] = {"explain", "plan", number, "--agent", demo->nodes[0].socket, NULL};

    for (uint32_t i = 0; i < slow->change_count && !offer; i++)
        if (slow->changes[i].kind == DEMO_ROW_LAYERS)
            offer = offer_of(demo, &slow->changes[i]);
    if (!offer)
        return;
    snprintf(number, sizeof number, "%" PRIu64, offer->number);
    if (demo_command(demo, words, STORY_TIMEOUT_S, &slow->story) == CAIRN_EXIT_OK)
        return;
    demo_say(&demo->view, DEMO_BAD, "explain plan %s failed: %s", number,
             slow->story ? slow->story : "");
    free(slow->story);
    slow->story = NULL;
}

int
demo_slow_judge(struct demo *demo)
{
    struct demo_outcome outcome = demo_slow_outcome(demo);

    if (!outcome.is_worth_while || outcome.has_moved)
        return 0;
    demo_say(&demo->view, DEMO_BAD,
             "nothing was changed while the device was slow; give it more steps: the agents "
             "need some 5 s before --slow to learn the normal, and some 5 s within it");
    return CAIRN_EXIT_FAILED;
}
