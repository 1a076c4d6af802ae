/*
 * examples/gpt/final.h - the state at the end of a run, whole and in one order.
 *
 * state_sha256 is SHA-256 over the parameters (NAME) and both moments (exp_avg.NAME,
 * exp_avg_sq.NAME) in the bytewise order of their names, each as row-major little-endian float32.
 * It is the same in every division of the job. --final writes the same bytes as the data section of
 * one safetensors file, so any tool can compute it again.
 */
#ifndef GPT_FINAL_H
#define GPT_FINAL_H

#include "model.h"
#include "net.h"
#include "plan.h"
#include "progress.h"

/*
 * Compares the replicas of each stage, gathers the state of replica 0 on rank 0 and hashes it
 * there. dir NULL: writes no file. On success out holds the digest on rank 0 and "" elsewhere.
 * CAIRN_INTERNAL if replicas differ, CAIRN_IO if the file cannot be written, CAIRN_NOMEM, each
 * said; else errors of gpt_net_receive.
 */
CAIRN_MUST_CHECK cairn_err gpt_final(struct gpt_net *net, const struct gpt_plan *plan,
                                     const struct gpt_stage *stage, const float *exp_avg,
                                     const float *exp_avg_sq, const char *dir,
                                     char out[GPT_SHA256_TEXT]);

#endif
