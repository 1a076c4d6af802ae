/*
 * agent/service/operator_state.h - an operator's request on its way through its stages; see
 * operator.c.
 */
#ifndef CAIRN_AGENT_SERVICE_OPERATOR_STATE_H
#define CAIRN_AGENT_SERVICE_OPERATOR_STATE_H

#include "agent/process/agent_state.h"
#include "agent/service/operator.h"

enum { REQUESTS_MAX = 16 };

enum verb { VERB_STATUS, VERB_SNAPSHOTS, VERB_SNAPSHOT, VERB_RESTORE, VERB_VERIFY };
enum { WAIT_PEERS = 1, WAIT_CORE = 2, WAIT_FILES = 4, WAIT_EXPORT = 8, WAIT_RETRY = 16 };
enum stage { STAGE_FIRST = 0, STAGE_CHOSEN, STAGE_RESTORED, STAGE_EXPORT_AGAIN, STAGE_EXPORTED };

struct request {
    bool used;
    uint64_t number;
    uint64_t serial; /* of the session that asked, 0: it has gone */
    enum verb verb;
    enum stage stage;
    uint32_t waiting;
    struct cairn_generation wanted; /* epoch as people name it; step 0: the newest */
    bool dry_run;
    bool fresh; /* restore: begin an epoch with nothing */
    uint64_t started_ns;
    uint64_t gather_until_ns;
    uint64_t retry_at_ns;
    uint32_t
        retries;   /* of an export whose generation was replaced before all nodes could keep it */
    uint64_t step; /* of a snapshot */
    struct operator_node *nodes; /* [node_count], each ended by operator_node_fini */
    uint32_t node_count;         /* 0 before nodes are there */
    struct operator_files *files;
    struct operator_restored restored; /* also what a verify's core part found */
};

struct operator_table {
    uint64_t next_number;
    bool posted;
    struct request requests[REQUESTS_MAX];
};

/* ---- operator.c ---- */
struct request *request_find(struct cairn_agent *agent, uint64_t number);
/* Sends what was written (and ends the writer), with the exit code, and ends the request. */
void request_answer(struct cairn_agent *agent, struct request *request, int exit_code,
                    struct cairn_json_writer *writer);
/* The same with {"schema": 1, "error": ...}. */
void request_refuse(struct cairn_agent *agent, struct request *request, int exit_code,
                    const char *error);
int request_exit_code(cairn_err err);
/* Hands an operation to the core; the request waits for its reply. */
void request_run_core(struct cairn_agent *agent, struct request *request,
                      enum cairn_operation operation);
/* Takes a request that waits for nothing to its next stage. */
void request_advance(struct cairn_agent *agent, struct request *request);
/* What the request has gathered, for the pure parts. */
void request_fill_job(struct cairn_agent *agent, const struct request *request,
                      struct operator_job *job);

/* ---- operator_gather.c ---- */
/* Asks all agents for their views, and waits for those that are alive; false when memory ran out.
 */
CAIRN_MUST_CHECK bool request_gather(struct cairn_agent *agent, struct request *request);
bool request_gathered(const struct cairn_agent *agent, const struct request *request);
/* Has a worker read the spill directory; false when none takes it now. */
CAIRN_MUST_CHECK bool request_read_files(struct cairn_agent *agent, struct request *request,
                                         bool verify);

/* ---- operator_restore.c ---- */
void request_restore_advance(struct cairn_agent *agent, struct request *request);
/* Begins the export of the generation that is held ready, where all its holders live and it is the
 * wanted one: no restore then, which would end the running trainers. False: nothing was begun. */
bool request_export_ready(struct cairn_agent *agent, struct request *request);
void request_verify_advance(struct cairn_agent *agent, struct request *request);

#endif
