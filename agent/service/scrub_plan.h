/*
 * agent/service/scrub_plan.h - the decisions of a scrub: what to read next and when, and what to do
 * about damage. Pure.
 *
 * A course goes round over a list of extents, such as the data and parity of each part. A pass
 * reads each unit once. Two bounds pace it:
 *   - the interval: a pass is spread evenly over it, and the next one begins when it is over;
 *   - the share: after work that took t of processor time, nothing is read for
 *     t * (SCRUB_SHARE - 1). It wins over the interval, so a pass over much memory takes longer.
 * Extents may grow, shrink and change their contents at any time. The course keeps its place, so
 * that memory that is often rewritten is read as often as memory that stays.
 *
 * A ledger lists damage until it is repaired or its generation has gone. The job's repair runs at
 * once, and again after pauses that double. Damage counts as unrepairable after two repairs.
 */
#ifndef CAIRN_AGENT_SERVICE_SCRUB_PLAN_H
#define CAIRN_AGENT_SERVICE_SCRUB_PLAN_H

#include "snapshot/generation.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    SCRUB_SHARE = 125, /* one part in so many of a processor; waking up costs extra, and both stay
                        * below 1 %: `cairn bench scrub` */
    SCRUB_DAMAGE_MAX = 256, /* that is listed at once; the next pass finds the rest */
    SCRUB_TRIES_MAX = 2     /* repairs after which damage counts as unrepairable */
};

struct scrub_course {
    uint32_t extent; /* of the next unit to read */
    uint64_t unit;
    uint64_t begun_ns;   /* the pass */
    uint64_t done_units; /* of the pass */
    uint64_t free_ns;    /* the share: nothing is read before */
    bool reading;        /* a run was handed out and not taken back */
    bool last;           /* … which ends the pass */
    bool rests;          /* the pass has ended, the next has not begun */
    uint64_t passes;
    uint64_t ended_ns; /* the last full pass; 0: none */
};

struct scrub_run {
    uint32_t extent;
    uint32_t count;
    uint64_t first;
};

/* Starts at the first extent. */
void scrub_course_init(struct scrub_course *course, uint64_t now_ns);

/*
 * The next units to read, at most units_max, of one extent. extents[count] are their lengths in
 * units. False: nothing is due before *due_ns, or a run is being read. A true answer is taken back
 * by scrub_course_took.
 */
bool scrub_course_next(struct scrub_course *course, const uint64_t *extents, uint32_t count,
                       uint32_t units_max, uint64_t interval_ns, uint64_t now_ns,
                       struct scrub_run *out, uint64_t *due_ns);

/* The extent of the next unit to read; `count`: the pass has none left. */
uint32_t scrub_course_extent(const struct scrub_course *course, const uint64_t *extents,
                             uint32_t count);

/* The run was read, in cpu_ns of a processor's time. */
void scrub_course_took(struct scrub_course *course, uint64_t cpu_ns, uint64_t now_ns);

/* As scrub_course_took, but the run is read again: it is damaged. */
void scrub_course_again(struct scrub_course *course, const struct scrub_run *run, uint64_t cpu_ns,
                        uint64_t now_ns);

/* What to do about a damaged generation on the disk. */
enum scrub_remedy {
    SCRUB_WAIT,   /* it is read again later */
    SCRUB_REPAIR, /* from memory; then it is read again */
    SCRUB_MARK    /* as bad */
};

/*
 * `settled`: this agent knows which others live, and no epoch is about to begin. Before that,
 * another agent may hold what this one does not. `in_memory`: the agents hold the generation.
 * `tries`: repairs that left the damage.
 */
enum scrub_remedy scrub_remedy(bool settled, bool in_memory, uint32_t tries);

struct scrub_damage {
    struct cairn_generation_id generation;
    uint32_t extent;
    uint64_t unit;
    uint32_t tries; /* repairs that left it */
};

struct scrub_ledger {
    struct scrub_damage list[SCRUB_DAMAGE_MAX];
    uint32_t count;
    uint32_t tries;    /* repairs since the list was empty */
    bool asked;        /* a repair is under way */
    uint64_t asked_ns; /* for the last one */
    uint64_t found, repaired;
};

/* What became of a listed damage. */
enum scrub_fate {
    SCRUB_STILL, /* it is as it was */
    SCRUB_GOOD,  /* its checksum fits again */
    SCRUB_GONE   /* its generation has gone */
};

/* Lists and counts damage, unless it is listed or the list is full. False then. */
bool scrub_ledger_add(struct scrub_ledger *ledger, struct cairn_generation_id generation,
                      uint32_t extent, uint64_t unit);

/* Notes the outcome for entry i; if it is not SCRUB_STILL the entry leaves, and the last takes its
 * place. `tried`: a repair has ended since the last look. */
void scrub_ledger_look(struct scrub_ledger *ledger, uint32_t i, enum scrub_fate fate, bool tried);

/* True if a repair should run now: it counts as asked for. */
bool scrub_ledger_ask(struct scrub_ledger *ledger, uint64_t now_ns);

/* A repair that was asked for has ended, well or not. */
void scrub_ledger_tried(struct scrub_ledger *ledger);

/* Damage that repairs have left. */
uint32_t scrub_ledger_unrepairable(const struct scrub_ledger *ledger);

#endif
