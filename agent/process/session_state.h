/*
 * agent/process/session_state.h - what the files of the Unix socket share.
 *
 *   session.c         the socket itself, what is sent, and the end of sessions
 *   session_frame.c   frames that come in
 *   session_region.c  which blocks of the node's shard belong to which trainer, and their manifest
 */
#ifndef CAIRN_AGENT_PROCESS_SESSION_STATE_H
#define CAIRN_AGENT_PROCESS_SESSION_STATE_H

#include "agent/process/agent_state.h"

/* Shared functions; each is described where it is defined. */
void session_end(struct cairn_agent *agent, struct session *session);
void session_show_out(struct cairn_agent *agent, struct session *session);
void session_refuse(struct session *session, uint32_t request, cairn_err err, const char *text);
void session_release_grants(struct cairn_agent *agent);
bool session_same_generation(struct cairn_generation a, struct cairn_generation b);
bool session_is_rank(const struct session *session);
void session_tell_ranks(struct cairn_agent *agent, bool same_trainers);
void session_forget_region(struct session *session);
cairn_err session_plan_region(struct cairn_agent *agent, struct session *session, char *text,
                              size_t text_bytes);
void session_ready(void *context, int fd, uint32_t ready);

#endif
