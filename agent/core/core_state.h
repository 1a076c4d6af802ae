/*
 * agent/core/core_state.h - the state behind struct cairn_core: one struct per noun. Only the files
 * that join the nouns include it: core.c, conduct.c, receive.c, look.c and fingerprint.c.
 */
#ifndef CAIRN_AGENT_CORE_CORE_STATE_H
#define CAIRN_AGENT_CORE_CORE_STATE_H

#include "agent/core/core.h"
#include "agent/core/restore/answer.h"
#include "agent/core/run/leader.h"
#include "agent/core/epoch/membership.h"
#include "agent/core/epoch/peers.h"
#include "agent/core/repair/repair.h"
#include "agent/core/restore/restore.h"
#include "agent/core/run/run.h"
#include "agent/core/restore/watch.h"

struct cairn_core {
    struct cairn_core_options options;
    struct env env;
    struct peers peers;
    struct membership membership;
    struct parts parts;
    struct run run;
    struct reports reports; /* of those below in the tree */
    struct leader leader;   /* decides only on the epoch's first member */
    struct repair repair;
    struct answering answering;
    struct restore restore;
    struct watch watch;
    struct cairn_generation_id spilled;
    uint64_t dropped_messages;
    bool announced; /* the first event has come */
};

#endif
