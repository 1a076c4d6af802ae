/*
 * tools/convert/deepspeed/patterns.h - regular expressions over names of parameters, as Python's
 * re.match takes them, each of a category. Expressions of DeepSpeed's AutoTP name one parameter
 * each (^up\.weight$): those are looked up, and of the others the letters that they begin with are
 * compared first, so that as many expressions as parameters cost little.
 */
#ifndef CAIRN_TOOLS_CONVERT_DEEPSPEED_PATTERNS_H
#define CAIRN_TOOLS_CONVERT_DEEPSPEED_PATTERNS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cairn/err.h"

enum {
    CAIRN_DEEPSPEED_PATTERN_BYTES_MAX = 1024,
    CAIRN_DEEPSPEED_PATTERNS_MAX = 1 << 20, /* that name one parameter each */
    CAIRN_DEEPSPEED_EXPRESSIONS_MAX = 1024  /* others: each is tried for each name */
};

/* All zero is the empty value. */
struct cairn_deepspeed_patterns {
    struct cairn_deepspeed_pattern *names, *expressions; /* owned */
    uint32_t name_count, expression_count;
    bool sorted;
};

/* CAIRN_VERSION for what is too long, too many, or says more than POSIX's expressions can;
 * CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_patterns_add(struct cairn_deepspeed_patterns *patterns,
                                                        uint32_t category, const char *python);
/* The categories (1 << category, together) of all patterns that the name has; notes that they were
 * met. */
uint32_t cairn_deepspeed_patterns_match(struct cairn_deepspeed_patterns *patterns,
                                        const char *name);
/* A pattern that no name had so far; NULL: there is none. */
const char *cairn_deepspeed_patterns_unmet(const struct cairn_deepspeed_patterns *patterns);
/* zeroes are allowed */
void cairn_deepspeed_patterns_fini(struct cairn_deepspeed_patterns *patterns);

#endif
