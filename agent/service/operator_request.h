/*
 * agent/service/operator_request.h - an operator's request: found, passed to the core, answered.
 *
 * An answer ends its request.
 */
#ifndef CAIRN_AGENT_SERVICE_OPERATOR_REQUEST_H
#define CAIRN_AGENT_SERVICE_OPERATOR_REQUEST_H

#include "agent/service/operator_state.h"
#include "base/json.h"

/* The request with this number; NULL: it has ended. */
struct request *request_find(struct cairn_agent *agent, uint64_t number);

/* Hands an operation to the core; the request waits for its reply. */
void request_run_core(struct cairn_agent *agent, struct request *request,
                      enum cairn_operation operation);

/* Collects the request's views, for the pure parts. Borrowed. */
void request_fill_job(struct cairn_agent *agent, const struct request *request,
                      struct operator_job *job);

/* Sends the writer's text (and ends it), with the exit code, and ends the request. */
void request_answer(struct cairn_agent *agent, struct request *request, int exit_code,
                    struct cairn_json_writer *writer);

/* Sends the writer's text (and ends it) to another agent as an OPERATOR message. */
void request_send_json(struct cairn_agent *agent, uint32_t to, uint32_t verb, uint64_t number,
                       struct cairn_json_writer *writer);

/* Sends bytes other than JSON, and ends the request. */
void request_answer_bytes(struct cairn_agent *agent, struct request *request, const void *bytes,
                          size_t bytes_len);

/* The table of requests, made if necessary; NULL: no memory. */
struct operator_table *request_table(struct cairn_agent *agent);

/* As request_answer, with {"schema": 1, "error": ...}. */
void request_refuse(struct cairn_agent *agent, struct request *request, int exit_code,
                    const char *error);

/* Ends a request without an answer. */
void request_end(struct request *request);

/* The exit code that stands for an error. */
int request_exit_code(cairn_err err);

#endif
