/*
 * replan/profile/links.h - a problem's links from how long the operations of a running job took to
 * carry their bytes.
 */
#ifndef CAIRN_REPLAN_PROFILE_LINKS_H
#define CAIRN_REPLAN_PROFILE_LINKS_H

#include "replan/fleet/problem.h"
#include "replan/profile/transfers.h"

enum { CAIRN_LINK_INTRA, CAIRN_LINK_INTER, CAIRN_LINK_SCOPES };

/* What the links of a scope were taken from. */
struct cairn_profiled_link {
    bool told;  /* else too few transfers: the problem's value stays */
    uint8_t op; /* CAIRN_SEND: sends and receives */
    double gbps, latency_ms;
    uint32_t transfers;
    bool at_odds; /* all_gather and reduce_scatter contradict each other, so neither was
                         * used */
};

struct cairn_profiled_links {
    struct cairn_profiled_link scopes[CAIRN_LINK_SCOPES];
    bool unpaired;          /* one of the two is not told, and the problem does not say it: no
                            * link_gbps is set */
    uint32_t node_pairs;    /* that could be compared */
    uint32_t slow_links;    /* of these, now in slow_links */
    uint32_t kept_links;    /* of slow_links as the problem said: their pairs were not compared, or
                            * their bandwidth is not known */
    uint32_t unknown_links; /* slow as well, but no bandwidth between nodes is known: slow_links has
                             * what the problem said of them, if anything */
    uint32_t passed_links;  /* slow as well, but slow_links has no room */
};

/*
 * Sets link_gbps and slow_links from transfers whose ranks are ids of the problem's devices; a
 * device's node is the problem's. Kinds of operations are apart: pairs, and each operation of
 * communicators named alike, within nodes and over them. Of the kind with the largest transfers
 * into one device the bandwidth is taken, by latency + bytes / bandwidth where sizes differ by a
 * factor of two, else by the median. all_gather and reduce_scatter of communicators named alike
 * that differ by more than 1.5 times are not used: their bytes are not what cairn/timing.h says.
 * Rings are assumed; one over nodes shares its nodes' links between its ranks there. A pair of
 * nodes is slow where its own channels (pairs, and communicators over these two nodes) take 1.3
 * times, and five standard errors, longer than the channels of the same kind of most others; with
 * less than three pairs of nodes of a kind nothing is compared. What is not told stays as it is,
 * and so does what slow_links says of pairs that were not compared; where neither the transfers nor
 * the problem say inter, slow pairs have no bandwidth either, and are only counted. CAIRN_NOMEM,
 * with the problem as it was.
 */
CAIRN_MUST_CHECK cairn_err cairn_profile_links(struct cairn_problem *problem,
                                               const struct cairn_topology *topology,
                                               const struct cairn_transfers *transfers,
                                               struct cairn_profiled_links *out);

#endif
