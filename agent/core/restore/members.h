/*
 * agent/core/restore/members.h - who gets what: the targets of a repair, and the members of the
 * next epoch. Pure.
 */
#ifndef CAIRN_AGENT_CORE_RESTORE_MEMBERS_H
#define CAIRN_AGENT_CORE_RESTORE_MEMBERS_H

#include "agent/core/restore/choose.h"
#include "agent/core/repair/repair.h"

/*
 * Plans the repair of a choice that is in memory. A lost part goes to its own agent if that
 * answered (blank or not), else to a spare, else to the agent that holds least of the group, then
 * least of all; never to one in no_room (bitset). only_bad: lost parts stay lost, only damaged
 * blocks are mended. CAIRN_LOST: no agent can take a lost part; CAIRN_NOMEM. The caller ends *out
 * with plan_fini.
 */
CAIRN_MUST_CHECK cairn_err members_plan(const struct cairn_core_options *options,
                                        const struct inventory *inventories,
                                        const struct choice *choice, const uint64_t *no_room,
                                        bool only_bad, struct plan *out);
/* True if a part or block of the plan has a target. */
bool members_plan_has_work(const struct plan *plan);

/*
 * True if the agents that have trainers are not exactly the members of the epoch, all members
 * answered, and the trainers that are attached are all ranks of the job: an epoch that cannot
 * commit helps nobody. Where the number of ranks is unknown, all members must have trainers.
 */
bool members_may_change(const struct cairn_core_options *options,
                        const struct inventory *inventories, const struct cairn_roster *roster,
                        uint64_t epoch);

/* What the next roster is made from. */
struct members_basis {
    const struct inventory *inventories;
    const struct cairn_roster *old; /* NULL: none yet */
    uint64_t epoch;                 /* of `old` */
    bool joining;                   /* the agents that have trainers become the members */
    const struct plan *plan;        /* of what is restored; NULL: nothing in memory */
    struct cairn_generation_id generation;
};

/*
 * The next members: those that answered, of the old ones and then of the others, but no unused
 * spares; a spare that holds a lost member's part takes its place. joining: the agents that have
 * trainers, in the same order. Writes a line to text if the groups survive fewer losses than
 * configured, else "". CAIRN_LOST: nobody, or members_may_change is false; CAIRN_NOMEM. The caller
 * owns a reference to *out.
 */
CAIRN_MUST_CHECK cairn_err members_next(const struct cairn_core_options *options,
                                        const struct members_basis *basis,
                                        struct cairn_roster **out, char *text, size_t text_bytes);

#endif
