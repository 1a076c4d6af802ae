/*
 * examples/gpt/progress.h - the trainer's own state besides its tensors, as one blob of fixed size.
 *
 * It is registered as an opaque tensor that all ranks hold alike, so that any division of the job
 * can restore it. Little-endian, 64 + 4 * steps bytes:
 *   0 "CGPTprog"  8 u32 version (1)  12 u32 0  16 u64 step (updates done)  24 u64 seed
 *   32 u64 steps (of the whole run)  40 u64 job (settings that a run keeps over restarts)  48 0…
 *   64 f32 loss[steps]: of steps 1…steps, 0 for those to come
 * The data position and Adam's step count are functions of `step`.
 */
#ifndef GPT_PROGRESS_H
#define GPT_PROGRESS_H

#include <stddef.h>
#include <stdint.h>

#include "cairn/err.h"

enum { GPT_PROGRESS_HEAD_BYTES = 64, GPT_SHA256_TEXT = 65 };

struct gpt_progress {
    uint8_t *bytes;
    size_t count;
};

/*
 * A run of `steps` at its beginning. CAIRN_NOMEM, said. Ended by gpt_progress_fini (zeroed:
 * allowed).
 */
CAIRN_MUST_CHECK cairn_err gpt_progress_init(uint64_t steps, uint64_t seed, uint64_t job,
                                             struct gpt_progress *out);
void gpt_progress_fini(struct gpt_progress *progress);

/* Updates done. */
uint64_t gpt_progress_step(const struct gpt_progress *progress);

/* Notes that the update of `step` (from 1 to steps) is done, with the loss before it. */
void gpt_progress_note(struct gpt_progress *progress, uint64_t step, float loss);

/* The loss of a step done, from 1. */
float gpt_progress_loss(const struct gpt_progress *progress, uint64_t step);

/*
 * Checks a restored blob against the run of this process: CAIRN_CORRUPT if it is not such a blob or
 * its step is not `step`, CAIRN_CONFIG if it is of another run; each is printed.
 */
CAIRN_MUST_CHECK cairn_err gpt_progress_check(const struct gpt_progress *progress, uint64_t step,
                                              uint64_t seed, uint64_t job);

/* SHA-256, in hex, of the losses of steps 1…step as little-endian float32. */
void gpt_progress_digest(const struct gpt_progress *progress, char out[GPT_SHA256_TEXT]);

/* The 64 hex digits of a SHA-256. */
void gpt_hex(const uint8_t digest[32], char out[GPT_SHA256_TEXT]);

#endif
