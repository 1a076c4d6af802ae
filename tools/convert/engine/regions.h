/*
 * tools/convert/engine/regions.h - the output as the planner and the executor see it.
 *
 * The planner moves bytes and knows no casts. So a range of a file whose tensors are cast is shown
 * to it as a container of its own, a region, in which every offset is scaled to the source's
 * elements; the executor casts a whole tile at once. Everything else of a file is the region with
 * the file's own number, offset for offset.
 */
#ifndef CAIRN_TOOLS_CONVERT_ENGINE_REGIONS_H
#define CAIRN_TOOLS_CONVERT_ENGINE_REGIONS_H

#include "tools/convert/core/output.h"
#include "tools/convert/engine/execute.h"

struct cairn_region {
    uint32_t file;
    enum cairn_dtype from, to;     /* 0: nothing is cast */
    uint64_t from_bytes, to_bytes; /* of an element; 1 where nothing is cast */
    uint64_t file_offset;
};

/* All zero is the empty value. */
struct cairn_regions {
    struct cairn_region *regions; /* containers of `layout`; the first are the files */
    uint32_t region_count;
    struct cairn_stretch *stretches; /* every byte of every file, once */
    size_t stretch_count;
    const struct cairn_layout *layout; /* what to plan for; tensors are numbered as in the output */
    struct cairn_layout *owned;        /* NULL where layout is the output's own */
};

/* `source` has every tensor of the output. The output is borrowed until cairn_regions_fini.
 * CAIRN_INVAL where a tensor is cast between types or in a place that cannot be; CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_regions_init(const struct cairn_output *output,
                                              const struct cairn_layout *source,
                                              struct cairn_regions *out,
                                              struct cairn_complaint *complaint);
void cairn_regions_fini(struct cairn_regions *regions);

/* Where an offset of a region is in its file. */
uint64_t cairn_region_file_offset(const struct cairn_region *region, uint64_t offset_bytes);

#endif
