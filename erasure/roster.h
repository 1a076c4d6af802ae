/*
 * erasure/roster.h - the roster: the members of an epoch, which agent serves each, and each
 * member's erasure group and position. A value shared by everything of one epoch; immutable once
 * built.
 *
 * A member is a number 0 … member_count-1; agents are the numbers of the configuration. Every
 * generation remembers the roster it was made under, so that it can be decoded after the members
 * have changed.
 */
#ifndef CAIRN_ERASURE_ROSTER_H
#define CAIRN_ERASURE_ROSTER_H

#include "base/codec.h"
#include "base/limits.h"
#include "cairn/err.h"

#include <stdbool.h>

struct cairn_roster_group {
    uint32_t count;    /* n = k + m */
    uint32_t parity;   /* m */
    uint32_t *members; /* [count] by position; inside `places` */
};

struct cairn_roster_member {
    uint32_t agent;
    uint32_t group;
    uint32_t position;
};

struct cairn_roster {
    uint32_t references; /* held by cairn_roster_hold, given back by cairn_roster_drop; one
                          * thread */
    uint32_t member_count;
    uint32_t group_count;
    struct cairn_roster_member *members;
    struct cairn_roster_group *groups;
    uint32_t *places; /* [member_count]: members, group after group */
};

/*
 * Builds a roster: member i is served by agents[i], whose failure domain is labelled domains[i]
 * (NULL: its own); groups of about group_size with `parity` are laid out over the domains by
 * erasure/group. CAIRN_INVAL for no members or more than CAIRN_NODES_MAX; CAIRN_NOMEM. The caller
 * owns one reference to *out.
 */
CAIRN_MUST_CHECK cairn_err cairn_roster_build(const uint32_t *agents, const char *const *domains,
                                              uint32_t member_count, uint32_t parity,
                                              uint32_t group_size, struct cairn_roster **out);

struct cairn_roster *cairn_roster_hold(struct cairn_roster *roster);
void cairn_roster_drop(struct cairn_roster *roster); /* NULL is allowed; the last one frees */

/* Codes a roster. Reading checks that every member is in exactly one group, and every number in
 * bounds; the caller owns one reference to *roster, which stays NULL after an error. */
void cairn_roster_code(struct cairn_codec *codec, struct cairn_roster **roster);
/* The same of one that may be NULL: a u8 before it says whether it is there. */
void cairn_roster_code_optional(struct cairn_codec *codec, struct cairn_roster **roster);

/* True if both have the same members in the same groups. */
bool cairn_roster_same(const struct cairn_roster *a, const struct cairn_roster *b);

/* The member an agent serves, UINT32_MAX where it serves none. */
uint32_t cairn_roster_member_of(const struct cairn_roster *roster, uint32_t agent);

static inline const struct cairn_roster_group *
cairn_roster_group_of(const struct cairn_roster *roster, uint32_t member)
{
    return &roster->groups[roster->members[member].group];
}

#endif
