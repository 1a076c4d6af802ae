/*
 * tools/convert/core/numbers.h - numbers in names and notes, which come from files that nobody
 * vouches for: digits alone, as we write them.
 */
#ifndef CAIRN_TOOLS_CONVERT_CORE_NUMBERS_H
#define CAIRN_TOOLS_CONVERT_CORE_NUMBERS_H

#include "tools/convert/core/format.h"

/* Takes a number at *text, which moves behind it. False, and nothing changes, where none is there,
 * it has a sign, a leading zero or white space before it, or is larger than `max`. */
bool cairn_number_take(const char **text, uint64_t max, uint64_t *out);

/* The whole of a text as such a number. */
bool cairn_number_read(const char *text, uint64_t max, uint64_t *out);

/* Takes a word and such a number behind it. */
bool cairn_number_after(const char **text, const char *word, uint32_t *out);

/*
 * The opaque state called `name`, which is `count` such numbers with a space between.
 * CAIRN_NOT_FOUND, not complained about, where there is none; CAIRN_CORRUPT, complained about with
 * the file and the name, for anything else; errors of loading.
 */
CAIRN_MUST_CHECK cairn_err cairn_numbers_load(const struct cairn_checkpoint *checkpoint,
                                              const char *name, uint64_t max, uint64_t *numbers,
                                              size_t count, struct cairn_complaint *complaint);

#endif
