/*
 * agent/core/restore/choose.h - which generation is restored, and why no newer one is. Pure.
 *
 * The rule: take the newest generation with at least k complete parts in every group. A part is
 * complete only with the seals of its whole group, so such a generation is one consistent step of
 * one run, whether or not anyone knew that it was committed. A spilled generation is taken if it
 * is newer.
 */
#ifndef CAIRN_AGENT_CORE_RESTORE_CHOOSE_H
#define CAIRN_AGENT_CORE_RESTORE_CHOOSE_H

#include "agent/core/restore/inventory.h"

enum { EXCLUDED_MAX = 4 };

/* A generation that was proved to be damaged beyond repair, and how much was intact then. */
struct excluded {
    struct cairn_generation_id generation;
    uint64_t intact;
};

struct choice {
    cairn_err err;   /* LOST: there is nothing to restore */
    bool from_files; /* it lies in the spill directory, not in memory */
    struct cairn_generation_id generation;
    struct cairn_roster *roster; /* of `generation`, owned; NULL: not in memory */
    uint32_t lost_members;       /* whose parts must be rebuilt */
    bool goes_back; /* a newer generation may have been committed, and cannot be restored now */
    struct excluded excluded[EXCLUDED_MAX]; /* in: while no more of them is intact */
    uint32_t excluded_count;
};

/* Adds to a text that is shown to people, as much as there is room for. */
__attribute__((format(printf, 3, 4))) void text_add(char *text, size_t text_bytes,
                                                    const char *format, ...);
/* Forgets the choice, and keeps what is excluded. */
void choice_clear(struct choice *choice);
/* Grows when a part of the generation is completed, or damaged blocks of one are mended. */
uint64_t choose_intact(const struct inventory *inventories, uint32_t agent_count,
                       struct cairn_generation_id generation);
/*
 * Chooses from the inventories [agent_count] of the agents that answered. wanted: the generation
 * that an operator named, whose epoch is the round and whose run is unknown; step 0: the newest.
 * spilled: the newest in files, or the files of the wanted one, which memory is preferred to; step
 * 0: none. Writes one line per generation considered to text. Clears *out first, but for what is
 * excluded.
 */
void choose_generation(const struct inventory *inventories, uint32_t agent_count,
                       struct cairn_generation_id wanted, struct cairn_generation_id spilled,
                       struct choice *out, char *text, size_t text_bytes);
/* The newest generation that any inventory says is spilled. */
struct cairn_generation_id choose_spilled(const struct inventory *inventories,
                                          uint32_t agent_count);
/* Who holds a member's part: an undamaged copy first, then the member's own agent. UINT32_MAX:
 * nobody. */
uint32_t choose_holder(const struct inventory *inventories, uint32_t agent_count,
                       struct cairn_generation_id generation, uint32_t member);

#endif
