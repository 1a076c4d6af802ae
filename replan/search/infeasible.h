/*
 * replan/search/infeasible.h - why no plan fits: which constraint, by how many bytes, and the
 * smallest change that would help.
 */
#ifndef CAIRN_REPLAN_SEARCH_INFEASIBLE_H
#define CAIRN_REPLAN_SEARCH_INFEASIBLE_H

#include "replan/fleet/group.h"

enum { CAIRN_WOULD_FIT_BYTES = 256 };

struct cairn_infeasible {
    const char *constraint;  /* "devices", "groups", "memory"; static */
    uint64_t short_by_bytes; /* per device; 0 where memory is not what lacks; UINT64_MAX: no
                                  * memory would do */
    char would_fit[CAIRN_WOULD_FIT_BYTES]; /* a sentence */
};

/* The reason for devices that hold no pipeline. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_infeasible_why(const struct cairn_fleet *fleet,
                                                struct cairn_infeasible *out);

#endif
