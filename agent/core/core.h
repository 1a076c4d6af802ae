/*
 * agent/core/core.h - the protocol of one agent as a pure state machine: (state, event) → (state,
 * actions).
 *
 * No clock, no I/O, no threads, no random numbers: events bring the time, and the caller carries
 * out the actions and moves the bytes. The agent feeds the core from its event loop
 * (agent/process/step.c); the simulator and the explorer feed the same code (tests/sim,
 * tests/explore). docs/PROTOCOL.md has the protocol and its rules R1 to R10; README.md says which
 * file keeps which.
 */
#ifndef CAIRN_AGENT_CORE_CORE_H
#define CAIRN_AGENT_CORE_CORE_H

#include "agent/core/env/action.h"
#include "agent/core/env/event.h"

struct cairn_core;

/*
 * Makes a core. epoch_record is what STORE_EPOCH stored last (empty: none); records[i] is what
 * STORE_PART stored for part i (empty: free). Records that do not parse are counted in *dropped,
 * and make the agent blank. CAIRN_INVAL for options out of bounds, CAIRN_CORRUPT or CAIRN_VERSION
 * for an epoch record that cannot be used, CAIRN_NOMEM. The caller ends *out with
 * cairn_core_destroy.
 */
CAIRN_MUST_CHECK cairn_err cairn_core_create(const struct cairn_core_options *options,
                                             uint64_t now_ns, struct cairn_bytes epoch_record,
                                             const struct cairn_bytes records[CAIRN_PARTS_MAX],
                                             uint32_t *dropped, struct cairn_core **out);
/* True for a part's record that another version of Cairn wrote. */
bool cairn_core_record_is_foreign(struct cairn_bytes record);
void cairn_core_destroy(struct cairn_core *core);

/* Takes one event and appends what to do to `actions`, which the caller has cleared. */
void cairn_core_step(struct cairn_core *core, const struct cairn_event *event,
                     struct cairn_actions *actions);

/* ---- what the process, the services and tests may read ---- */

struct cairn_part_view {
    enum cairn_part_state state;
    struct cairn_generation_id generation;
    uint32_t member;
    uint32_t position; /* in the group */
    bool committed;
    bool record_mended; /* the last VERIFY found its record damaged */
    uint64_t data_blocks;
    uint64_t bad_blocks;
    const struct cairn_roster *roster;
    const uint8_t *manifest; /* packed; NULL before the part is sealed */
    size_t manifest_len;
    const uint64_t *block_crcs;          /* of the data; NULL before the seal */
    const struct cairn_stripes *stripes; /* lengths in blocks; NULL before all seals are here */
    const uint64_t *const *parity_crcs;  /* [m] by slot; NULL entries before it is complete */
};

struct cairn_core_view {
    uint64_t promised;
    uint64_t active;                  /* epoch; 0: none yet */
    struct cairn_generation_id ready; /* what a restore gets: restored, or the newest committed */
    bool ready_from_files;            /* it lies in the spill directory, not in memory */
    struct cairn_generation_id committed;    /* newest of the active epoch */
    const struct cairn_roster *roster;       /* of the active epoch; NULL before the first */
    const struct cairn_roster *ready_roster; /* of `ready`; NULL when none is in memory */
    uint64_t restart_epoch;                  /* the newest epoch that began with new trainers */
    uint32_t self_member;                    /* UINT32_MAX: no member */
    uint64_t run;                            /* 0: no run is assembled */
    uint64_t next_step;                      /* due; 0: none */
    uint64_t last_step;                      /* newest step begun here */
    bool met;            /* has exchanged positions with others since the start */
    bool blank;          /* has forgotten its part, and waits for an epoch that admits it */
    bool fenced;         /* promised an epoch that is not active yet */
    bool busy;           /* coordinates a restore or repair */
    const char *refusal; /* why no run is assembled; "" */
    struct cairn_blocker blocker; /* on the leader */
    uint64_t dropped_messages;    /* at the door */
    const uint8_t *fleet;         /* of the active epoch */
    size_t fleet_len;
};

/* What has happened in this core since it was made, for the history. */
struct cairn_core_tally {
    uint64_t operations_ended; /* the newest is cairn_core_outcome's */
    struct cairn_given_up given_up;
};

void cairn_core_look(const struct cairn_core *core, struct cairn_core_view *out);
struct cairn_core_tally cairn_core_tally(const struct cairn_core *core);
bool cairn_core_look_part(const struct cairn_core *core, uint32_t part,
                          struct cairn_part_view *out);
bool cairn_core_alive(const struct cairn_core *core, uint32_t agent);
/* True if the protocol has a use for a session with an agent now; others may end. */
bool cairn_core_needs_session(const struct cairn_core *core, uint32_t agent);
/* The newest incarnation of an agent that this one knows; 0: none. */
uint64_t cairn_core_incarnation(const struct cairn_core *core, uint32_t agent);
/* The agent that holds a member's part of the ready generation, UINT32_MAX if unknown. */
uint32_t cairn_core_holder(const struct cairn_core *core, struct cairn_generation_id generation,
                           uint32_t member);
/* The packed manifest of another member of the own group in a complete part; NULL if not here. */
const uint8_t *cairn_core_peer_manifest(const struct cairn_core *core, uint32_t part,
                                        uint32_t member, size_t *len);
const struct cairn_outcome *cairn_core_outcome(const struct cairn_core *core);
/*
 * Where the payload of a WRITE goes that begins to arrive, by its cairn_message_place: `count`
 * blocks of a part being rebuilt, all of them missing. Bytes may be written there until the blocks
 * are written by a WRITE action, or their part is closed. False: the payload has no such place.
 */
bool cairn_core_place(const struct cairn_core *core, uint32_t from, uint64_t place, uint32_t count,
                      struct cairn_action_place *out);
/* When the next TICK is due. */
uint64_t cairn_core_deadline(const struct cairn_core *core);

#endif
