/*
 * replan/advise/adviser.h - what to do about the plan of a job while it trains: rates in, advice
 * out.
 *
 * (rounds of rates, steps made, offers) -> (whether offers are wanted, advice). Whether a rate has
 * changed, and whether a change of plan is worth its price, is decided as replan/advise/decide.h
 * says; the offers take long, so the caller makes them (replan/advise/offers.h), somewhere else,
 * whenever they are wanted. Advice stands until nothing is slower than the problem has it, or the
 * plan that runs is as good as others again. Pure: no clock, no I/O, no threads.
 */
#ifndef CAIRN_REPLAN_ADVISE_ADVISER_H
#define CAIRN_REPLAN_ADVISE_ADVISER_H

#include "base/wire.h"
#include "replan/advise/offers.h"

enum { CAIRN_ADVICE_BYTES = 320 };

struct cairn_advice {
    enum cairn_replan_action action; /* CAIRN_REPLAN_NONE: there is none */
    double current_ms;               /* a step of the plan that runs; INFINITY: it cannot go on */
    double step_ms;                  /* a step after the action */
    double cost_ms;                  /* training stands still for that long */
    uint64_t payback_steps;          /* until that is paid for */
    uint32_t late_steps;             /* made after it was due, before it was given; not kept */
};

enum { CAIRN_ADVICE_KEPT_BYTES = 64 };

/* Advice as it is kept over the death of who gave it. */
struct cairn_advice_kept {
    uint64_t fingerprint; /* of the problem that it is for */
    uint64_t given_wall_ns;
    struct cairn_advice advice;
};

enum cairn_advice_change { CAIRN_ADVICE_SAME, CAIRN_ADVICE_GIVEN, CAIRN_ADVICE_WITHDRAWN };

struct cairn_adviser;

/* For a problem with a current plan, which is taken over; devices are as fast as it says while
 * their rates are 1. CAIRN_INVAL with *fault where there is no current plan, or it is none for
 * these devices: the problem stays the caller's then, as it does with CAIRN_NOMEM. The caller ends
 * *out. */
CAIRN_MUST_CHECK cairn_err cairn_adviser_create(struct cairn_problem *problem,
                                                struct cairn_adviser **out,
                                                struct cairn_fault *fault);
void cairn_adviser_destroy(struct cairn_adviser *adviser); /* NULL is allowed */

uint32_t cairn_adviser_device_count(const struct cairn_adviser *adviser);

/*
 * Rates by device from the ranks that are slow now: slow_ranks[slow_count] and how many times
 * longer than normal each takes, slow_rates[slow_count]. Device ids are ranks; a rank may be listed
 * more than once. rates[device_count] gets the largest rate of each device, 1 where none is given.
 * Returns how many listed ranks have no device. Callers leave out ranks that hang or died: these
 * need more than another plan.
 */
uint32_t cairn_adviser_rates(const struct cairn_adviser *adviser, const uint32_t *slow_ranks,
                             const double *slow_rates, uint32_t slow_count, double *rates);

/*
 * A round: rates[device_count] by index, how many times longer than normal each takes now; NAN not
 * measured. `steps` were made since the last one. *advice is what stands afterwards. rates NULL:
 * the steps alone are weighed; it counts for no change of rates.
 */
enum cairn_advice_change cairn_adviser_round(struct cairn_adviser *adviser, const double *rates,
                                             uint32_t steps, struct cairn_advice *advice);

/*
 * Advice that an earlier adviser for the same problem gave, which stands until this one can tell:
 * rates settle after some rounds, and then it gets the figures of new offers, or ends. Before the
 * first round.
 */
void cairn_adviser_resume(struct cairn_adviser *adviser, const struct cairn_advice *advice);

/* The problem, with the rates of its file. */
const struct cairn_problem *cairn_adviser_problem(const struct cairn_adviser *adviser);

/* How many times longer than normal each device takes, [device_count] by index, as it has settled;
 * 0: dead. Valid until the adviser ends. */
const double *cairn_adviser_settled(const struct cairn_adviser *adviser);

/* What each action would lead to at the present rates; NULL: unknown now. Valid until the adviser's
 * next call. */
const struct cairn_offers *cairn_adviser_offers(const struct cairn_adviser *adviser);

/* Whether the plan of the problem is as good as any: no device is slow, or no action gains. False
 * while that is not known. */
bool cairn_adviser_is_at_rest(const struct cairn_adviser *adviser);

/* A number that tells this problem from others; 0 without memory. */
uint64_t cairn_adviser_fingerprint(const struct cairn_adviser *adviser);

/*
 * Where offers are wanted that are not being made yet: true, with *number for the offers, and *out
 * the problem at the present rates. What it points to but its devices is the adviser's; the caller
 * frees out->devices and ends nothing else. False also without memory: it is wanted again then.
 */
bool cairn_adviser_wants(struct cairn_adviser *adviser, uint64_t *number,
                         struct cairn_problem *out);

/* Takes offers over, which are not kept where rates have changed since, and are wanted again then.
 * NULL: they could not be made. */
void cairn_adviser_offered(struct cairn_adviser *adviser, uint64_t number,
                           struct cairn_offers *offers);

void cairn_advice_pack(const struct cairn_advice_kept *kept, struct cairn_writer *writer);
/* CAIRN_CORRUPT: it is none, *out is untouched. */
CAIRN_MUST_CHECK cairn_err cairn_advice_unpack(const void *bytes, size_t bytes_len,
                                               struct cairn_advice_kept *out);

/* What to do, as a few words without a stop. */
const char *cairn_advice_text(enum cairn_replan_action action);
/* One sentence without a stop: what to do, what it gains, costs, and when it has paid. */
void cairn_advice_describe(const struct cairn_advice *advice, char *out, size_t out_bytes);

#endif
