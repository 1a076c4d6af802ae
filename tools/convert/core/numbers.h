/* tools/convert/core/numbers.h - numbers in names and notes from untrusted files: only digits,
 * exactly as we write them. */
#ifndef CAIRN_TOOLS_CONVERT_CORE_NUMBERS_H
#define CAIRN_TOOLS_CONVERT_CORE_NUMBERS_H

#include "tools/convert/core/format.h"

/* Takes a number at *text, and moves *text after it. False, and nothing changes, if there is none,
 * if it has a sign, a leading zero or white space before it, or if it is larger than `max`. */
bool cairn_number_take(const char **text, uint64_t max, uint64_t *out);

/* The whole of a text as such a number. */
bool cairn_number_read(const char *text, uint64_t max, uint64_t *out);

/* Takes a word and such a number after it. */
bool cairn_number_after(const char **text, const char *word, uint32_t *out);

/* Adds numbers as the opaque state `name`, for cairn_numbers_load. Errors of adding it. */
CAIRN_MUST_CHECK cairn_err cairn_numbers_add(struct cairn_checkpoint *checkpoint, const char *name,
                                             const uint64_t *numbers, size_t count);

/* Loads the opaque state `name`, which must be `count` such numbers with a space between.
 * CAIRN_NOT_FOUND, not complained about, if it does not exist; CAIRN_CORRUPT for anything else,
 * complained about with file and name; errors of loading. */
CAIRN_MUST_CHECK cairn_err cairn_numbers_load(const struct cairn_checkpoint *checkpoint,
                                              const char *name, uint64_t max, uint64_t *numbers,
                                              size_t count);

#endif
