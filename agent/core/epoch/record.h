/*
 * agent/core/epoch/record.h - the record of an epoch: what a coordinator decided, what CLAIM and
 * ACTIVATE carry, and what STORE_EPOCH stores with the agent's promise. record.c has the format.
 */
#ifndef CAIRN_AGENT_CORE_EPOCH_RECORD_H
#define CAIRN_AGENT_CORE_EPOCH_RECORD_H

#include "erasure/roster.h"
#include "snapshot/generation.h"

#include <stdbool.h>

enum { EPOCH_CLAIMANT_BITS = 16 }; /* an epoch is round << 16 | claimant: no two claims are equal */

static inline uint32_t
epoch_claimant(uint64_t epoch)
{
    return (uint32_t)(epoch & 0xffff);
}

/* What the coordinator saw of an agent before it claimed (R9). */
struct record_seen {
    uint64_t incarnation; /* 0: the agent was not heard */
    uint64_t version;     /* of its parts */
};

struct record {
    uint64_t epoch;                   /* 0: no record */
    uint64_t restart_epoch;           /* the newest epoch that began with new trainers */
    struct cairn_generation_id ready; /* step 0: the epoch begins with nothing */
    bool ready_from_files;
    struct cairn_roster *ready_roster; /* of `ready`; NULL: not in memory */
    uint32_t *holders;                 /* [ready_roster->member_count]: agents */
    struct cairn_roster *roster;       /* of the epoch */
    uint32_t agent_count;
    struct record_seen *seen; /* [agent_count] */
    uint8_t *fleet;           /* opaque to the core; may be NULL */
    uint32_t fleet_len;
};

void record_fini(struct record *record);
void record_code(struct cairn_codec *codec, void *record);
/* Checks all counts and numbers. The caller ends *out with record_fini. */
CAIRN_MUST_CHECK cairn_err record_read(const void *bytes, size_t len, struct record *out);
/* Packs into new memory; the caller frees *bytes. */
CAIRN_MUST_CHECK cairn_err record_pack(const struct record *record, uint8_t **bytes, size_t *len);

#endif
