/*
 * replan/detect/stall.h - who hangs in a job whose collectives are not timed, from counts of
 * operations alone (replan/trace/progress.h).
 *
 * Counts say who has come how far, and nothing of time: who is slow cannot be told from them, and
 * one look cannot tell a hang from an operation under way. So NCCL's counts are looked at twice,
 * and what moved in between is left alone. Dumps of the Flight Recorder are one look, at a job that
 * is known to stand still.
 *
 * Pure. Lists of communicators and ranks are taken in any order.
 */
#ifndef CAIRN_REPLAN_DETECT_STALL_H
#define CAIRN_REPLAN_DETECT_STALL_H

#include "replan/trace/progress.h"
#include "replan/detect/verdict.h"

/*
 * From two answers of NCCL's RAS, some seconds apart. A rank in a verdict is the rank in the
 * communicator that its evidence names. Ranks that do not answer the second time are a crash; where
 * counts stand still and differ, those behind hang (hang_compute), and those that are ahead wait
 * for them. Where ranks are behind in several communicators, some of them wait in another
 * themselves, which is unknown here: the verdict tells, and halves the confidence. *still counts
 * the communicators that stand still with equal counts. CAIRN_NOMEM: *out may have some verdicts.
 * Verdicts are added to *out.
 */
CAIRN_MUST_CHECK cairn_err cairn_stall_of_ras(const struct cairn_op_count *before,
                                              size_t before_count,
                                              const struct cairn_op_count *after,
                                              size_t after_count, struct cairn_verdicts *out,
                                              uint32_t *still);

/*
 * From dumps of the Flight Recorder, `rank` being the job's. Ranks that are behind in a group while
 * others are inside, and are inside nothing themselves, hang (hang_compute). A group whose ranks
 * that were seen are all inside the same operation has a transfer that does not end (hang_link).
 * CAIRN_NOMEM as above.
 */
CAIRN_MUST_CHECK cairn_err cairn_stall_of_dumps(const struct cairn_op_count *dumps, size_t count,
                                                struct cairn_verdicts *out);

#endif
