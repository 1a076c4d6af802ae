/*
 * agent/core/restore/judge.h - how a coordinator judges the answers: which of them still count,
 * what it chooses, and whether it is too early to choose. Changes only its arguments.
 */
#ifndef CAIRN_AGENT_CORE_RESTORE_JUDGE_H
#define CAIRN_AGENT_CORE_RESTORE_JUDGE_H

#include "agent/core/restore/restore.h"

/*
 * Chooses from the answers: the generation that the operator named, or the newest. A verify leaves
 * out what nobody knows to be committed: captures under way. A restore that keeps (restore_keeps)
 * leaves what earlier epochs decided decided. It sets goes_back also if no answer proves what was
 * committed last, or silent agents may hold what all others have forgotten. It may begin with
 * nothing (err OK, step 0): nothing was committed, or all agents answered, nothing is left, and
 * trainers run without it.
 */
void judge_choose(const struct env *env, struct restore *restore, char *text, size_t text_bytes);
/* True if the choice is bad news: nothing, older than what was perhaps committed, or files that the
 * epoch did not begin with. */
bool judge_is_bad(const struct env *env, const struct choice *choice);
/* True if an agent is in a newer epoch than this one. */
bool judge_is_behind(const struct env *env, const struct restore *restore);

#endif
