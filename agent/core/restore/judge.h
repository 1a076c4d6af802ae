/*
 * agent/core/restore/judge.h - what a coordinator makes of the answers: which of them still count,
 * what it chooses, and whether it is too early for that. Changes no state but the arguments'.
 */
#ifndef CAIRN_AGENT_CORE_RESTORE_JUDGE_H
#define CAIRN_AGENT_CORE_RESTORE_JUDGE_H

#include "agent/core/restore/choose.h"
#include "agent/core/epoch/membership.h"
#include "agent/core/restore/ask.h"

/*
 * Chooses from the answers. keeps: nothing is given up, trainers go on. Then what earlier epochs
 * decided stays decided, goes_back is also set if no answer proves what was committed last, and
 * the choice may be to begin with nothing (err OK, step 0): nothing was committed, or all agents
 * answered, nothing is left, and trainers run without it.
 */
void judge_choose(const struct env *env, const struct membership *membership, struct ask *ask,
                  bool keeps, struct choice *out, char *text, size_t text_bytes);
/* True if the choice is bad news: nothing, older than what was perhaps committed, or files that the
 * epoch did not begin with. */
bool judge_is_bad(const struct membership *membership, const struct choice *choice);
/* True if an agent that has not answered may still do so. */
bool judge_expects_answers(const struct env *env, const struct ask *ask, const struct peers *peers);
/* True if an agent is in a newer epoch than this one. */
bool judge_is_behind(const struct membership *membership, const struct ask *ask);
/* Forgets parts that are newer than what anyone knows to be committed: captures under way. */
void judge_forget_uncommitted(struct ask *ask);

#endif
