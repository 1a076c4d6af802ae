/*
 * tools/convert/engine/conversion.h - one conversion: from two paths and a format to files and a
 * proof.
 *
 * Open reads metadata, proves that the source is whole, lays the target out and plans; nothing is
 * written. Run compares replicas, writes, fingerprints both sides and commits. A conversion that
 * was killed, or that failed, goes on where it was when it is opened and run again the same way.
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
    const char *const *drops; /* [drop_count] patterns of names (fnmatch) that are left out */
    size_t drop_count;
    const char *map;         /* maps/map.h; NULL: names and layouts stay what they are */
    const char *const *sets; /* [set_count]: what the map is told, "heads=32" */
    size_t set_count;
    uint32_t thread_count;
    uint64_t memory_limit_bytes;
    void (*progress)(void *context, const char *what, uint64_t done_bytes, uint64_t total_bytes);
    void *context;
};

/* What a conversion comes to; the second half is there after it has run. */
struct cairn_conversion_report {
    uint32_t parameters, buffers, optimizer, opaque; /* tensors of the source */
    uint32_t aliases, dropped, cast;
    uint32_t from_masters;       /* parameters that are what the optimizer has in float32 */
    struct cairn_map_report map; /* all zero without a map; tensors above are counted behind it */
    uint64_t source_bytes;       /* of all tensors */
    uint64_t target_bytes;       /* of all files */
    uint64_t read_bytes;         /* by the plan */
    uint64_t replica_bytes;      /* compared */
    uint64_t move_count, run_count;
    uint64_t tile_bytes;
    uint32_t thread_count;
    /* after running */
    bool resumed;
    uint64_t kept_bytes; /* found written by an earlier run, and verified */
    uint64_t run_ns;
    uint32_t proved; /* tensors whose fingerprints are equal on both sides */
    char source_state[65], target_state[65];   /* digests of all but opaque state */
    char source_opaque[65], target_opaque[65]; /* and of opaque state; carried tensors left out */
    uint32_t carried; /* tensors that are written in another encoding, in headers or small files */
};

struct cairn_conversion {
    const struct cairn_conversion_options *options; /* borrowed */
    struct cairn_checkpoint source;
    struct cairn_whole whole;
    struct cairn_output output;
    struct cairn_regions regions;
    struct cairn_moves moves;
    struct cairn_conversion_report report;
};

/*
 * Plans. *out is for the caller to end with cairn_conversion_close, also after an error. Errors:
 * those of reading the source; CAIRN_INVAL where the target's format cannot have what the source
 * has, or the memory limit is too small. All complained about.
 */
CAIRN_MUST_CHECK cairn_err cairn_conversion_open(const struct cairn_conversion_options *options,
                                                 struct cairn_conversion *out,
                                                 struct cairn_complaint *complaint);

/* Writes. Errors: those of cairn_target_open, of reading and writing; CAIRN_INTERNAL where the
 * proof fails. All complained about; what was written stays for the next run. */
CAIRN_MUST_CHECK cairn_err cairn_conversion_run(struct cairn_conversion *conversion,
                                                struct cairn_complaint *complaint);

void cairn_conversion_close(struct cairn_conversion *conversion);

#endif
