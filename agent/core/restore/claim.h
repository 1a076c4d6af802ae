/*
 * agent/core/restore/claim.h - what a coordinator claims: the record of the next epoch, and who may
 * be asked to promise it.
 *
 * Every agent whose inventory is known gets the claim, and all of them must promise it. An agent
 * that forgot its promises may be asked only if no older claim can use what it forgot once this
 * epoch begins: half of all agents, rounded up, remember theirs and must promise, too (each older
 * majority includes one of them, and by its promise that one has met the new incarnation, or it had
 * promised the older claim and refuses this one), or a majority has forgotten, which is a first
 * start. Otherwise it is not asked and is missing from the majority.
 */
#ifndef CAIRN_AGENT_CORE_RESTORE_CLAIM_H
#define CAIRN_AGENT_CORE_RESTORE_CLAIM_H

#include "agent/core/restore/restore.h"

/* Marks the agents that may be asked to promise; returns how many. */
uint32_t claim_ask(const struct env *env, struct restore *restore);
/*
 * Makes the record into restore->bytes and its epoch into restore->claimed. text: a line on the new
 * groups, or "". CAIRN_LOST: there are no members; CAIRN_NOMEM.
 */
CAIRN_MUST_CHECK cairn_err claim_pack(const struct env *env, struct restore *restore, char *text,
                                      size_t text_bytes);

#endif
