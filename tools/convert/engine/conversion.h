/*
 * tools/convert/engine/conversion.h - one conversion: from two paths and a format to files and a
 * proof.
 *
 * Open reads metadata, proves that the source is complete, lays the target out and plans. It writes
 * nothing. Run compares replicas, writes, fingerprints both sides and commits. If a conversion was
 * killed or failed, open and run it again the same way: it continues where it was.
 */
#ifndef CAIRN_TOOLS_CONVERT_ENGINE_CONVERSION_H
#define CAIRN_TOOLS_CONVERT_ENGINE_CONVERSION_H

#include "tools/convert/core/output.h"
#include "tools/convert/maps/map.h"
#include "tools/convert/engine/regions.h"
#include "tools/convert/engine/whole.h"

struct cairn_conversion_options {
    const char *source;
    const char *target;
    const struct cairn_format *from;           /* NULL: the first of `formats` that fits */
    const struct cairn_format *const *formats; /* ended by NULL; unused if `from` is set */
    const struct cairn_format *to;
    struct cairn_output_options output;
    const char *const *drops; /* [drop_count] patterns of names (fnmatch) to leave out */
    size_t drop_count;
    const char *map;         /* maps/map.h; NULL: names and layouts stay unchanged */
    const char *const *sets; /* [set_count]: sizes for the map, "heads=32" */
    size_t set_count;
    uint32_t thread_count;
    uint64_t memory_limit_bytes;
    void (*progress)(void *context, const char *what, uint64_t done_bytes, uint64_t total_bytes);
    void *context;
};

/* The results of a conversion; the second half is set after it has run. */
struct cairn_conversion_report {
    uint32_t parameters, buffers, optimizer, opaque; /* tensors of the source */
    uint32_t aliases, dropped, cast;
    uint32_t from_masters;       /* parameters taken from the optimizer's float32 masters */
    struct cairn_map_report map; /* all zero without a map; tensors are counted after it */
    uint64_t source_bytes;       /* of all tensors */
    uint64_t target_bytes;       /* of all files */
    uint64_t read_bytes;         /* by the plan */
    uint64_t replica_bytes;      /* compared */
    uint64_t move_count, run_count;
    uint64_t tile_bytes;
    uint32_t thread_count;
    /* after running */
    bool resumed;
    uint64_t kept_bytes; /* written by an earlier run, and verified */
    uint64_t run_ns;
    uint32_t proved; /* tensors whose fingerprints are equal on both sides */
    char source_state[65], target_state[65];   /* digests of everything except opaque state */
    char source_opaque[65], target_opaque[65]; /* and of opaque state, without carried tensors */
    uint32_t carried; /* tensors written in another encoding, in headers or small files */
};

struct cairn_conversion {
    const struct cairn_conversion_options *options; /* borrowed */
    struct cairn_checkpoint source;
    struct cairn_whole whole;
    struct cairn_output output;
    struct cairn_regions regions;
    struct cairn_feed feed; /* handles and sums while it runs */
    struct cairn_conversion_report report;
};

/* Plans. The caller ends *out with cairn_conversion_close, also after an error. Errors, complained
 * about: those of reading the source; CAIRN_INVAL if the format has no place for what the source
 * has, or the memory limit is too small. */
CAIRN_MUST_CHECK cairn_err cairn_conversion_open(const struct cairn_conversion_options *options,
                                                 struct cairn_conversion *out,
                                                 struct cairn_complaint *complaint);

/* Writes. Errors, all complained about: those of cairn_target_open, of reading and writing;
 * CAIRN_INTERNAL if the proof fails. What was written stays for the next run. */
CAIRN_MUST_CHECK cairn_err cairn_conversion_run(struct cairn_conversion *conversion,
                                                struct cairn_complaint *complaint);

void cairn_conversion_close(struct cairn_conversion *conversion);

#endif
