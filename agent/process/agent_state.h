/*
 * agent/process/agent_state.h - struct cairn_agent: the state of one agent.
 *
 * Each noun has its struct in its own header, beside the .c file that changes it; other files only
 * read it. agent/process does not look into the services' pointers.
 *
 * Everything belongs to the loop's thread. A worker touches only its job, and memory that is held
 * while it runs.
 */
#ifndef CAIRN_AGENT_PROCESS_AGENT_STATE_H
#define CAIRN_AGENT_PROCESS_AGENT_STATE_H

#include "agent/core/core.h"
#include "agent/process/carry.h"
#include "agent/process/codes.h"
#include "agent/process/config.h"
#include "agent/process/mail.h"
#include "agent/process/poison.h"
#include "agent/process/ring.h"
#include "agent/process/scratch.h"
#include "agent/process/session.h"
#include "agent/process/session_region.h"
#include "agent/process/session_socket.h"
#include "agent/process/step.h"
#include "base/clock.h"
#include "base/loop.h"

struct agent_handlers;
struct cairn_catalog;
struct cairn_keeper;
struct cairn_memory;
struct cairn_transport;
struct cairn_workers;
struct keeping;
struct recorder;

enum {
    JOBS_MAX = 1024,    /* waiting for `workers` */
    FILE_JOBS_MAX = 512 /* of these, reads of spilled files */
};

struct cairn_agent {
    /* Fixed at the start. */
    struct cairn_config config;
    char executable[CAIRN_CONFIG_PATH_BYTES_MAX]; /* that the keeper is started from */
    uint64_t job_id;
    uint64_t incarnation; /* grows with each start on this node */
    uint64_t started_wall_ns;
    struct cairn_clock clock;
    const struct agent_handlers *handlers;

    /* Opened and closed by agent/agent.c. */
    struct cairn_loop *loop;
    struct cairn_workers *workers;
    struct cairn_catalog *catalog;
    struct cairn_keeper *keeper; /* NULL: none */
    struct cairn_memory *memory;
    struct cairn_transport *transport;
    struct cairn_core *core;
    const char **domains; /* [node_count], that the core borrows; as `spares` */
    bool *spares;
    struct cairn_timer tick_timer;
    int exit_code;
    bool stopping;

    /* Memory: keeping.h */
    struct keeping *keeping;
    bool memory_adopted; /* an earlier agent made it, with records of its contents */
    bool memory_marked;  /* in the catalog: no epoch's record knows this memory yet */
    bool unkept;         /* no keeper holds the memory */

    struct recorder *recorder; /* of events: recorder.h */

    struct stepping stepping;
    struct carry carry;
    struct codes codes;
    struct scratch scratch;
    struct ring ring;
    struct mail mail;

    struct session_socket socket;
    struct session sessions[SESSIONS_MAX];
    uint32_t sessions_end; /* no session from this index on was ever used */
    struct regions regions;
    uint64_t attached_total;                 /* trainers since the start */
    uint64_t parity_blocks;                  /* of each own slot */
    struct cairn_generation_id local_loaded; /* from local_dir at the start; step 0: none */
    struct poison poison;                    /* the newest */

    /* Services (agent/service); NULL: not open. */
    struct fetch_table *fetches;
    struct spill_state *spill;
    struct local_state *local;
    struct scrub_state *scrub;
    struct scrub_files *scrub_files;
    struct scrub_spilled *scrub_spilled;
    struct probe *probe; /* NULL: none is under way, as the next */
    struct drill *drill; /* that this agent runs for an operator */
    struct timing_state *timing;
    struct analyst *analyst; /* NULL: neither plans nor offers are made here */
    struct replanning_state *replanning;
    struct placing_state *placing;
    struct enforcing_state *enforcing;
    struct history_state *history;
    struct operator_table *operators;
};

#endif
