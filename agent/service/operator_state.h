/*
 * agent/service/operator_state.h - an operator's request on its way through its stages; see
 * operator.c.
 *
 * The agent's operator_table owns the requests; a request owns its views of nodes and files.
 */
#ifndef CAIRN_AGENT_SERVICE_OPERATOR_STATE_H
#define CAIRN_AGENT_SERVICE_OPERATOR_STATE_H

#include "agent/process/config.h"
#include "agent/service/drill.h"
#include "agent/service/operator_launcher.h"
#include "agent/service/operator_trace.h"
#include "agent/service/operator_view.h"

struct cairn_agent;
struct cairn_workers;
struct operator_histories;

enum { REQUESTS_MAX = 16 };

enum verb {
    VERB_STATUS,
    VERB_SNAPSHOTS,
    VERB_SNAPSHOT,
    VERB_RESTORE,
    VERB_VERIFY,
    VERB_NODE,
    VERB_REPLAN,
    VERB_LAUNCH,
    VERB_KEEP,
    VERB_DRILL,
    VERB_HISTORY,
    VERB_REPORT,
    VERB_TRACE,
    VERB_PEERS
};
enum {
    WAIT_PEERS = 1,
    WAIT_CORE = 2,
    WAIT_FILES = 4,
    WAIT_EXPORT = 8,
    WAIT_RETRY = 16,
    WAIT_PLANNER = 32,
    WAIT_DRILL = 64,
    WAIT_TRACE = 128,
    WAIT_HISTORIES = 256,
    WAIT_PROBE = 512
};
enum stage {
    STAGE_FIRST = 0,
    STAGE_FILES,
    STAGE_CHOSEN,
    STAGE_RESTORED,
    STAGE_EXPORT_AGAIN,
    STAGE_EXPORTED
};

/* The change of nodes that a request asks for (operator_fleet.c). */
struct operator_change {
    char what[16];                                /* "replace" or "remove" */
    char node[CAIRN_CONFIG_ADDRESS_BYTES_MAX];    /* its number or address */
    char address[CAIRN_CONFIG_ADDRESS_BYTES_MAX]; /* of the machine that replaces it */
    bool force;                                   /* although its agent runs */
    uint32_t number;                              /* of the node, once it is found */
};

/* The decision about the plan that a request carries (operator_plan.c). */
struct operator_plan {
    struct proposal_decision decision; /* word 0: it only asks */
    uint32_t planner;                  /* the agent that decides */
    uint64_t sent_ns;
    struct proposal_answer answer;
};

/* What a launcher wants (operator_launcher.h). */
struct operator_note {
    bool given;            /* it leaves the note `text`; else it only asks */
    uint64_t reads, shape; /* of its launcher; operator_launcher.h */
    struct operator_standby standby;
    bool relaunch; /* an operator wants the launchers to begin a new round */
    bool local;    /* only which agents are alive, at once, without their views */
    char text[OPERATOR_NOTE_BYTES];
};

/* The loss that a request rehearses (operator_drill.c). */
struct operator_drill {
    struct drill_ask ask; /* of the group under way */
    uint32_t runner;      /* the agent that runs it */
    uint64_t sent_ns;
    uint64_t heard_ns;
    struct drill_report now;   /* of that group, as the runner told last */
    struct drill_report total; /* of the groups before */
    uint32_t lost_parts;
};

struct request {
    bool used;
    uint64_t number;
    uint64_t serial; /* of the session that asked, 0: it has gone */
    enum verb verb;
    enum stage stage;
    uint32_t waiting;
    struct cairn_generation_id wanted;  /* epoch as people name it; step 0: the newest */
    struct cairn_generation_id spilled; /* restore: the files of `wanted`; step 0: none */
    bool dry_run;
    bool fresh; /* restore: begin an epoch with nothing */
    uint64_t started_ns;
    uint64_t gather_until_ns;
    uint64_t retry_at_ns;
    uint32_t retries; /* of an export whose generation was replaced before all nodes kept it */
    uint64_t step;    /* of a snapshot */
    struct operator_node *nodes; /* [node_count], each ended by operator_node_fini */
    uint32_t node_count;         /* 0 before nodes are there */
    struct operator_files *files;
    struct operator_histories *histories;
    uint64_t since_ns; /* history, report: for so long until now; 0: for all time */
    struct operator_change change;
    struct operator_plan plan;
    struct operator_note note;
    struct operator_drill drill;
    struct operator_trace trace;
    struct operator_restored restored; /* also what a verify's core part found */
};

struct operator_table {
    /* Takes a request to its next stage if it waits for nothing: request_advance of operator.c,
     * which the files that end a wait lie below. */
    void (*advance)(struct cairn_agent *agent, struct request *request);
    uint64_t next_number;
    struct cairn_workers
        *disk; /* reads the spill directory, which may hang; NULL before the first */
    bool posted;
    struct operator_launcher launcher;
    struct operator_parcel parcels[OPERATOR_PARCELS_MAX];
    struct request requests[REQUESTS_MAX];
};

#endif
