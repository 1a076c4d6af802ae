/*
 * tools/convert/deepspeed/cuts.h - how tensor parallelism cut a parameter, as
 * `universal_checkpoint_info` in DeepSpeed's files tells it: lists of regular expressions over
 * names. A parameter that is in none of them is cut along its first dimension.
 */
#ifndef CAIRN_TOOLS_CONVERT_DEEPSPEED_CUTS_H
#define CAIRN_TOOLS_CONVERT_DEEPSPEED_CUTS_H

#include "cairn/types.h"
#include "tools/convert/core/output.h"
#include "tools/convert/deepspeed/groups.h"
#include "tools/convert/pickle/pickle.h"

/* ---- regular expressions over names, as Python's re.match takes them, each of a category ---- */

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
/* The categories (1 << category, together) of all patterns that match; notes that they matched. */
uint32_t cairn_deepspeed_patterns_match(struct cairn_deepspeed_patterns *patterns,
                                        const char *name);
/* A pattern that no name had so far; NULL: there is none. DeepSpeed's own converter stops then. */
const char *cairn_deepspeed_patterns_unmet(const struct cairn_deepspeed_patterns *patterns);
/* zeroes are allowed */
void cairn_deepspeed_patterns_fini(struct cairn_deepspeed_patterns *patterns);

/* ---- cuts ---- */

/* All zero is the empty value. */
struct cairn_deepspeed_cuts {
    struct cairn_deepspeed_patterns patterns;
    uint64_t vocabulary; /* rows of the embedding without padding; 0: not said */
};

/* A box of the whole parameter that lies row-major in the rank's part. */
struct cairn_deepspeed_cut_box {
    uint64_t start[CAIRN_DIMS_MAX], extent[CAIRN_DIMS_MAX];
    uint64_t row; /* of the part, where it begins */
};

/* A rank's part of a parameter. Rows of the part that are in no box are padding. */
struct cairn_deepspeed_cut {
    uint64_t shape[CAIRN_DIMS_MAX]; /* of the whole */
    struct cairn_deepspeed_cut_box boxes[2];
    uint32_t box_count;
    uint64_t padded_rows; /* of an embedding with padding, in all parts; else 0 */
};

/* Elements [begin, end) of a rank's `part` lie at `at` of a container, or of a file of `output`. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_cut_add(struct cairn_checkpoint *checkpoint,
                                                   struct cairn_output *output, uint32_t tensor,
                                                   uint32_t container,
                                                   const struct cairn_deepspeed_cut *cut,
                                                   const struct cairn_deepspeed_parameter *part,
                                                   uint64_t begin, uint64_t end, uint64_t at,
                                                   size_t element_bytes);

/* CAIRN_VERSION, with *why (static), for patterns that are not understood; CAIRN_NOMEM. The caller
 * ends *out with cairn_deepspeed_cuts_fini in any case. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_cuts_read(const struct cairn_pickle_node *info,
                                                     struct cairn_deepspeed_cuts *out,
                                                     const char **why);
void cairn_deepspeed_cuts_fini(struct cairn_deepspeed_cuts *cuts);

/* The part of rank `rank` of `ranks`, which has this shape, and is as large as the others'. NULL,
 * or why that cannot be told (static). */
const char *cairn_deepspeed_cut(struct cairn_deepspeed_cuts *cuts, const char *path, uint32_t dims,
                                const uint64_t *shape, uint32_t ranks, uint32_t rank,
                                struct cairn_deepspeed_cut *out);

/* The other way around: the part of what has the shape `whole`. `padded_rows`: of an embedding in
 * all parts, 0 for no padding. NULL, or why it cannot be cut so (static). */
const char *cairn_deepspeed_cut_whole(struct cairn_deepspeed_cuts *cuts, const char *path,
                                      uint32_t dims, const uint64_t *whole, uint64_t padded_rows,
                                      uint32_t ranks, uint32_t rank, uint64_t part[CAIRN_DIMS_MAX],
                                      struct cairn_deepspeed_cut *out);

/* Newer versions also say place by place where a rank's elements belong (affine_map): whether that
 * is what the patterns make it; false with the name of a parameter for which it is not. */
bool cairn_deepspeed_cuts_agree(struct cairn_deepspeed_cuts *cuts,
                                const struct cairn_pickle_node *info, uint32_t ranks, uint32_t rank,
                                char name[CAIRN_NAME_BYTES_MAX]);

#endif
