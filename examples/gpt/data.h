/*
 * examples/gpt/data.h - the training text and the micro-batches drawn from it.
 */
#ifndef GPT_DATA_H
#define GPT_DATA_H

#include <stddef.h>
#include <stdint.h>

#include "cairn/err.h"

struct gpt_data {
    uint8_t *bytes;
    size_t count;
    uint64_t fingerprint; /* of the bytes: the first 8 bytes of their SHA-256 */
    const char *path;     /* borrowed: the one given, or a static one */
};

/*
 * Reads a text; path NULL takes the first readable one of those that every Debian machine has.
 * Needs `context` + 1 bytes at least. CAIRN_CORRUPT for an empty, too short or no regular file,
 * CAIRN_IO when it cannot be read, CAIRN_NOMEM; each is printed. *out is ended by gpt_data_fini,
 * which accepts a zeroed struct.
 */
CAIRN_MUST_CHECK cairn_err gpt_data_init(const char *path, uint32_t context, struct gpt_data *out);
void gpt_data_fini(struct gpt_data *data);

/*
 * Copies micro-batch `micro` (its number in the step's fixed global order) of `step` to
 * tokens[sequences][context + 1]: a pure function of the text and the arguments.
 */
void gpt_data_draw(const struct gpt_data *data, uint64_t seed, uint64_t step, uint32_t micro,
                   uint32_t sequences, uint32_t context, uint8_t *tokens);

#endif
