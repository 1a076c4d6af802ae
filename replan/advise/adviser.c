/* replan/advise/adviser.c - what to do about the plan of a job while it trains. */
#include "replan/advise/adviser.h"

#include "base/crc.h"
#include "base/json.h"
#include "replan/fleet/plan.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct cairn_adviser {
    struct cairn_problem problem; /* owned; rates as in its file */
    struct cairn_decider *decider;
    struct cairn_offers offers;
    bool has_offers;        /* at the present rates */
    bool are_offers_new;    /* the current advice comes from earlier rates */
    bool is_asked;          /* somebody makes offers */
    bool is_given;          /* the advice is one of these offers */
    uint32_t unsettled;     /* rounds in which resumed advice stands at any rates */
    uint64_t rates_number;  /* grows as settled rates change */
    uint64_t steps_waiting; /* made since rates changed, not weighed yet */
    struct cairn_advice advice;
    struct cairn_advice told; /* the same as it was last given: its figures may have been others */
};

static const struct cairn_advice no_advice = {.action = CAIRN_REPLAN_NONE};

cairn_err
cairn_adviser_create(struct cairn_problem *problem, struct cairn_adviser **out,
                     struct cairn_fault *fault)
{
    struct cairn_adviser *adviser;
    cairn_err err;

    if (!problem->current) {
        (void)snprintf(fault->text, sizeof fault->text,
                       "it has no \"current\": without the plan that runs nothing can be advised");
        return CAIRN_INVAL;
    }
    err = cairn_plan_check(problem->current, problem, fault);
    if (err)
        return err;
    adviser = calloc(1, sizeof *adviser);
    if (!adviser)
        return CAIRN_NOMEM;
    err = cairn_decider_create(problem->device_count, &adviser->decider);
    if (err) {
        free(adviser);
        return err;
    }
    adviser->advice = adviser->told = no_advice;
    adviser->problem = *problem;
    *problem = (struct cairn_problem){0};
    *out = adviser;
    return CAIRN_OK;
}

void
cairn_adviser_destroy(struct cairn_adviser *adviser)
{
    if (!adviser)
        return;
    cairn_offers_fini(&adviser->offers);
    cairn_decider_destroy(adviser->decider);
    cairn_problem_fini(&adviser->problem);
    free(adviser);
}

uint32_t
cairn_adviser_device_count(const struct cairn_adviser *adviser)
{
    return adviser->problem.device_count;
}

uint32_t
cairn_adviser_rates(const struct cairn_adviser *adviser, const uint32_t *slow_ranks,
                    const double *slow_rates, uint32_t slow_count, double *rates)
{
    uint32_t count = adviser->problem.device_count, unknown = 0;

    for (uint32_t i = 0; i < count; i++)
        rates[i] = 1;
    for (uint32_t i = 0; i < slow_count; i++) {
        uint32_t device = cairn_problem_device_find(&adviser->problem, slow_ranks[i]);

        unknown += device == count;
        if (device < count && slow_rates[i] > rates[device])
            rates[device] = slow_rates[i];
    }
    return unknown;
}

/* Whether some device is not as the problem has it. */
static bool
any_is_off(const struct cairn_adviser *adviser)
{
    const double *settled = cairn_decider_rates(adviser->decider);

    for (uint32_t i = 0; i < adviser->problem.device_count; i++)
        if (settled[i] < 1 || settled[i] > 1)
            return true;
    return false;
}

/* Whether an action gains anything: the running plan is slower at the present rates. */
static bool
gains(const struct cairn_adviser *adviser, enum cairn_replan_action action)
{
    return adviser->offers.offers[action].step_ms * (1 + CAIRN_DECIDER_WORTH_WHILE) <
           adviser->offers.current_ms;
}

/* Whether offers are made of: some action does. */
static bool
is_still_worth(const struct cairn_adviser *adviser)
{
    for (int i = 0; i < CAIRN_REPLAN_COUNT; i++)
        if (gains(adviser, (enum cairn_replan_action)i))
            return true;
    return false;
}

static enum cairn_advice_change
withdraw(struct cairn_adviser *adviser)
{
    bool had = adviser->advice.action != CAIRN_REPLAN_NONE;

    adviser->advice = adviser->told = no_advice;
    adviser->is_given = false;
    return had ? CAIRN_ADVICE_WITHDRAWN : CAIRN_ADVICE_SAME;
}

/* An action with the figures of the offers that there are. */
static struct cairn_advice
advice_of(const struct cairn_adviser *adviser, enum cairn_replan_action action)
{
    const struct cairn_offer *offer = &adviser->offers.offers[action];
    uint64_t payback_steps =
        cairn_migration_payback(offer->cost_ms, adviser->offers.current_ms - offer->step_ms);

    return (struct cairn_advice){.action = action,
                                 .current_ms = adviser->offers.current_ms,
                                 .step_ms = offer->step_ms,
                                 .cost_ms = offer->cost_ms,
                                 .payback_steps = payback_steps};
}

static enum cairn_advice_change
give(struct cairn_adviser *adviser, enum cairn_replan_action action)
{
    struct cairn_advice advice = advice_of(adviser, action);
    const struct cairn_advice *told = &adviser->told;
    bool same = told->action == action && told->step_ms <= advice.step_ms &&
                told->step_ms >= advice.step_ms && told->cost_ms <= advice.cost_ms &&
                told->cost_ms >= advice.cost_ms;

    advice.late_steps = cairn_decider_late_steps(adviser->decider);
    adviser->advice = adviser->told = advice;
    adviser->is_given = true;
    /* the same, of offers that were made again */
    return same ? CAIRN_ADVICE_SAME : CAIRN_ADVICE_GIVEN;
}

/* Offers at other rates have come: the advice that stands has their figures, or ends where it gains
 * nothing at these rates. */
static enum cairn_advice_change
refresh(struct cairn_adviser *adviser)
{
    enum cairn_replan_action action = adviser->advice.action;

    adviser->are_offers_new = false;
    if (action == CAIRN_REPLAN_NONE)
        return CAIRN_ADVICE_SAME;
    if (!gains(adviser, action))
        return withdraw(adviser);
    adviser->advice = advice_of(adviser, action);
    return CAIRN_ADVICE_SAME;
}

/* Advice that was given counts as taken, whether it is followed or not: what gains more than that
 * may still come to be due, and it is not due again itself, which would cost patience and take back
 * what others have gathered. */
static enum cairn_advice_change
weigh(struct cairn_adviser *adviser)
{
    double current_ms = adviser->is_given ? adviser->advice.step_ms : adviser->offers.current_ms;
    uint32_t steps =
        adviser->steps_waiting < UINT32_MAX ? (uint32_t)adviser->steps_waiting : UINT32_MAX;
    enum cairn_replan_action action =
        cairn_decider_weigh(adviser->decider, steps, current_ms, adviser->offers.offers);

    adviser->steps_waiting = 0;
    if (action != CAIRN_REPLAN_NONE)
        return give(adviser, action);
    return is_still_worth(adviser) ? CAIRN_ADVICE_SAME : withdraw(adviser);
}

/* Steps in which nothing is slow: what was lost before is over, and they are quiet. */
static enum cairn_advice_change
rest(struct cairn_adviser *adviser, uint32_t steps)
{
    static const struct cairn_offer no_gain[CAIRN_REPLAN_COUNT];

    (void)cairn_decider_weigh(adviser->decider, steps, 0, no_gain);
    adviser->steps_waiting = 0;
    return withdraw(adviser);
}

enum cairn_advice_change
cairn_adviser_round(struct cairn_adviser *adviser, const double *rates, uint32_t steps,
                    struct cairn_advice *advice)
{
    enum cairn_advice_change change = CAIRN_ADVICE_SAME;

    if (rates && cairn_decider_measured(adviser->decider, rates)) {
        adviser->rates_number++;
        adviser->steps_waiting = 0;
        adviser->has_offers = false;
        adviser->is_given = false;
    }
    adviser->steps_waiting += steps;
    if (adviser->unsettled > 0 && !any_is_off(adviser)) {
        adviser->unsettled -= rates != NULL;
    } else if (!any_is_off(adviser)) {
        change = rest(adviser, steps);
    } else if (adviser->has_offers) {
        enum cairn_advice_change refreshed =
            adviser->are_offers_new ? refresh(adviser) : CAIRN_ADVICE_SAME;

        change = weigh(adviser);
        change = change == CAIRN_ADVICE_SAME ? refreshed : change;
    }
    *advice = adviser->advice;
    return change;
}

void
cairn_adviser_resume(struct cairn_adviser *adviser, const struct cairn_advice *advice)
{
    adviser->advice = adviser->told = *advice;
    adviser->unsettled = CAIRN_DECIDER_ROUNDS;
}

const struct cairn_problem *
cairn_adviser_problem(const struct cairn_adviser *adviser)
{
    return &adviser->problem;
}

const double *
cairn_adviser_settled(const struct cairn_adviser *adviser)
{
    return cairn_decider_rates(adviser->decider);
}

const struct cairn_offers *
cairn_adviser_offers(const struct cairn_adviser *adviser)
{
    return adviser->has_offers ? &adviser->offers : NULL;
}

bool
cairn_adviser_is_at_rest(const struct cairn_adviser *adviser)
{
    if (adviser->unsettled > 0)
        return false;
    return any_is_off(adviser) ? adviser->has_offers && !is_still_worth(adviser) : true;
}

uint64_t
cairn_adviser_fingerprint(const struct cairn_adviser *adviser)
{
    struct cairn_json_writer writer;
    uint64_t fingerprint = 0;
    size_t text_bytes;
    char *text = NULL;

    cairn_json_writer_init(&writer);
    if (cairn_problem_write(&adviser->problem, &writer) == CAIRN_OK &&
        cairn_json_writer_done(&writer, &text, &text_bytes) == CAIRN_OK)
        fingerprint = cairn_crc64(0, text, text_bytes);
    cairn_json_writer_fini(&writer);
    free(text);
    return fingerprint;
}

bool
cairn_adviser_wants(struct cairn_adviser *adviser, uint64_t *number, struct cairn_problem *out)
{
    const double *settled = cairn_decider_rates(adviser->decider);
    struct cairn_problem problem = adviser->problem;

    if (adviser->has_offers || adviser->is_asked || !any_is_off(adviser))
        return false;
    problem.devices = malloc(problem.device_count * sizeof *problem.devices);
    if (!problem.devices)
        return false;
    memcpy(problem.devices, adviser->problem.devices,
           problem.device_count * sizeof *problem.devices);
    for (uint32_t i = 0; i < problem.device_count; i++)
        problem.devices[i].rate *= settled[i];
    adviser->is_asked = true;
    *number = adviser->rates_number;
    *out = problem;
    return true;
}

void
cairn_adviser_offered(struct cairn_adviser *adviser, uint64_t number, struct cairn_offers *offers)
{
    adviser->is_asked = false;
    if (!offers)
        return;
    if (number != adviser->rates_number) {
        cairn_offers_fini(offers);
        return;
    }
    cairn_offers_fini(&adviser->offers);
    adviser->offers = *offers;
    *offers = (struct cairn_offers){0};
    adviser->has_offers = adviser->are_offers_new = true;
}

/* ---- kept ---- */

static void
write_ms(struct cairn_writer *writer, double ms)
{
    uint64_t bits;

    memcpy(&bits, &ms, sizeof bits);
    cairn_write_u64(writer, bits);
}

/* No number is a failure; INFINITY is one. */
static double
read_ms(struct cairn_reader *reader)
{
    uint64_t bits = cairn_read_u64(reader);
    double ms;

    memcpy(&ms, &bits, sizeof ms);
    if (!(ms >= 0))
        reader->failed = true;
    return ms;
}

void
cairn_advice_pack(const struct cairn_advice_kept *kept, struct cairn_writer *writer)
{
    cairn_write_u64(writer, kept->fingerprint);
    cairn_write_u64(writer, kept->given_wall_ns);
    cairn_write_u32(writer, (uint32_t)kept->advice.action);
    write_ms(writer, kept->advice.current_ms);
    write_ms(writer, kept->advice.step_ms);
    write_ms(writer, kept->advice.cost_ms);
    cairn_write_u64(writer, kept->advice.payback_steps);
}

cairn_err
cairn_advice_unpack(const void *bytes, size_t bytes_len, struct cairn_advice_kept *out)
{
    struct cairn_advice_kept kept = {0};
    struct cairn_reader reader;
    uint32_t action;
    cairn_err err;

    cairn_reader_init(&reader, bytes, bytes_len);
    kept.fingerprint = cairn_read_u64(&reader);
    kept.given_wall_ns = cairn_read_u64(&reader);
    action = cairn_read_u32(&reader);
    if (action > CAIRN_REPLAN_NONE)
        reader.failed = true;
    kept.advice.action = reader.failed ? CAIRN_REPLAN_NONE : (enum cairn_replan_action)action;
    kept.advice.current_ms = read_ms(&reader);
    kept.advice.step_ms = read_ms(&reader);
    kept.advice.cost_ms = read_ms(&reader);
    kept.advice.payback_steps = cairn_read_u64(&reader);
    err = cairn_reader_done(&reader);
    if (!err)
        *out = kept;
    return err;
}

/* ---- in words ---- */

const char *
cairn_advice_text(enum cairn_replan_action action)
{
    static const char *const texts[] = {
        [CAIRN_REPLAN_MICROBATCHES] = "give slow pipelines fewer micro-batches",
        [CAIRN_REPLAN_LAYERS] = "give slow stages fewer layers",
        [CAIRN_REPLAN_GROUPS] = "form other groups and pipelines",
        [CAIRN_REPLAN_RESTART] = "restart from the newest generation with other devices",
        [CAIRN_REPLAN_NONE] = "nothing"};

    return texts[action];
}

void
cairn_advice_describe(const struct cairn_advice *advice, char *out, size_t out_bytes)
{
    const char *what = cairn_advice_text(advice->action);

    if (advice->action == CAIRN_REPLAN_NONE)
        (void)snprintf(out, out_bytes, "%s", what);
    else if (!(advice->current_ms < INFINITY))
        (void)snprintf(out, out_bytes,
                       "%s: the plan that runs cannot go on; steps of %.4g ms then, for %.3g s of "
                       "standing still",
                       what, advice->step_ms, advice->cost_ms / 1e3);
    else
        (void)snprintf(out, out_bytes,
                       "%s: steps of %.4g ms instead of %.4g as planned (%.1f %% less), for %.3g s "
                       "of standing still, paid back after %" PRIu64 " steps",
                       what, advice->step_ms, advice->current_ms,
                       100 * (1 - advice->step_ms / advice->current_ms), advice->cost_ms / 1e3,
                       advice->payback_steps);
}
