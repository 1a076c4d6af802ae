/*
 * examples/gpt/progress.c - reads and writes the fixed-size blob of progress.h.
 */
#include "progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/sha.h>

#include "say.h"

enum { AT_VERSION = 8, AT_STEP = 16, AT_SEED = 24, AT_STEPS = 32, AT_JOB = 40, VERSION = 1 };

static const char magic[] = "CGPTprog";

static void
put_u64(uint8_t *at, uint64_t value)
{
    for (int i = 0; i < 8; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t
get_u64(const uint8_t *at)
{
    uint64_t value = 0;

    for (int i = 0; i < 8; i++)
        value |= (uint64_t)at[i] << (8 * i);
    return value;
}

cairn_err
gpt_progress_init(uint64_t steps, uint64_t seed, uint64_t job, struct gpt_progress *out)
{
    struct gpt_progress progress = {.count = GPT_PROGRESS_HEAD_BYTES + 4 * (size_t)steps};

    progress.bytes = calloc(1, progress.count);
    if (!progress.bytes) {
        gpt_say("no memory for the history of %llu steps", (unsigned long long)steps);
        return CAIRN_NOMEM;
    }
    memcpy(progress.bytes, magic, 8);
    put_u64(progress.bytes + AT_VERSION, VERSION);
    put_u64(progress.bytes + AT_SEED, seed);
    put_u64(progress.bytes + AT_STEPS, steps);
    put_u64(progress.bytes + AT_JOB, job);
    *out = progress;
    return CAIRN_OK;
}

void
gpt_progress_fini(struct gpt_progress *progress)
{
    free(progress->bytes);
    *progress = (struct gpt_progress){0};
}

uint64_t
gpt_progress_step(const struct gpt_progress *progress)
{
    return get_u64(progress->bytes + AT_STEP);
}

void
gpt_progress_note(struct gpt_progress *progress, uint64_t step, float loss)
{
    uint8_t *at = progress->bytes + GPT_PROGRESS_HEAD_BYTES + 4 * (step - 1);
    uint32_t bits;

    memcpy(&bits, &loss, sizeof bits);
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(bits >> (8 * i));
    put_u64(progress->bytes + AT_STEP, step);
}

float
gpt_progress_loss(const struct gpt_progress *progress, uint64_t step)
{
    const uint8_t *at = progress->bytes + GPT_PROGRESS_HEAD_BYTES + 4 * (step - 1);
    uint32_t bits = 0;
    float loss;

    for (int i = 0; i < 4; i++)
        bits |= (uint32_t)at[i] << (8 * i);
    memcpy(&loss, &bits, sizeof loss);
    return loss;
}

cairn_err
gpt_progress_check(const struct gpt_progress *progress, uint64_t step, uint64_t seed, uint64_t job)
{
    uint64_t steps = (progress->count - GPT_PROGRESS_HEAD_BYTES) / 4;

    if (memcmp(progress->bytes, magic, 8) != 0 ||
        get_u64(progress->bytes + AT_VERSION) != VERSION || gpt_progress_step(progress) > steps) {
        gpt_say("what was restored is not the state of this trainer");
        return CAIRN_CORRUPT;
    }
    if (gpt_progress_step(progress) != step) {
        gpt_say("the generation is named step %llu and holds the state after step %llu",
                (unsigned long long)step, (unsigned long long)gpt_progress_step(progress));
        return CAIRN_CORRUPT;
    }
    if (get_u64(progress->bytes + AT_SEED) != seed ||
        get_u64(progress->bytes + AT_STEPS) != steps || get_u64(progress->bytes + AT_JOB) != job) {
        gpt_say(
            "the generation is of another run: seed, steps, text, learning rate and batch must be "
            "those it was begun with (its --seed was %llu, its --steps %llu)",
            (unsigned long long)get_u64(progress->bytes + AT_SEED),
            (unsigned long long)get_u64(progress->bytes + AT_STEPS));
        return CAIRN_CONFIG;
    }
    return CAIRN_OK;
}

void
gpt_hex(const uint8_t digest[32], char out[GPT_SHA256_TEXT])
{
    for (size_t i = 0; i < 32; i++)
        (void)snprintf(out + 2 * i, 3, "%02x", digest[i]);
}

void
gpt_progress_digest(const struct gpt_progress *progress, char out[GPT_SHA256_TEXT])
{
    uint8_t digest[SHA256_DIGEST_LENGTH];

    (void)SHA256(progress->bytes + GPT_PROGRESS_HEAD_BYTES, 4 * (size_t)gpt_progress_step(progress),
                 digest);
    gpt_hex(digest, out);
}
