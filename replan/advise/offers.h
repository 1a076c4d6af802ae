/*
 * replan/advise/offers.h - what each action would lead to: the plan, its time, and what it costs to
 * get there.
 */
#ifndef CAIRN_REPLAN_ADVISE_OFFERS_H
#define CAIRN_REPLAN_ADVISE_OFFERS_H

#include "replan/search/answer.h"
#include "replan/advise/decide.h"

struct cairn_offers {
    struct cairn_offer offers[CAIRN_REPLAN_COUNT];
    /* owned; NULL: the action cannot be done, or is a restart */
    struct cairn_plan *plans[CAIRN_REPLAN_COUNT];
    double current_ms; /* INFINITY: the plan that runs cannot go on */
    double bound_ms;   /* no plan for these devices takes less */
};

/* What actions cost beside the time of moving state, as measured. */
struct cairn_offer_costs {
    double layers_ms;     /* for other layers in the same stages */
    bool is_layers_whole; /* layers_ms was measured: the time of moving state is in it */
    double pause_ms;      /* for any change of plan that needs more than that */
    double restart_ms;    /* from the last checkpoint, lost steps included; INFINITY: no restart is
                        * offered */
};

/*
 * Makes offers for a problem with a current plan. A restart leads to what other groups would: the
 * devices are the same. CAIRN_INVAL where nothing runs now; CAIRN_NOMEM. The caller ends *out with
 * cairn_offers_fini.
 */
CAIRN_MUST_CHECK cairn_err cairn_offers_make(const struct cairn_problem *problem,
                                             const struct cairn_offer_costs *costs,
                                             const struct cairn_stop *stop,
                                             struct cairn_offers *out);
void cairn_offers_fini(struct cairn_offers *offers);

#endif
