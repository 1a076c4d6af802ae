/*
 * tests/fuzz/fuzz_map.c - any text is refused with a reason, or is a map; and a map that fits a
 * small checkpoint gives whole tensors, whose pieces lie inside of their containers.
 */
#include "tools/convert/maps/map.h"
#include "tools/convert/maps/language.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/assert.h"

enum { CONTAINER_BYTES = 1024 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct {
    const char *name;
    enum cairn_kind kind;
    uint32_t dims;
    uint64_t shape[3];
} tensors[] = {
    {"q", CAIRN_PARAM, 2, {12, 4}},
    {"k", CAIRN_PARAM, 2, {6, 4}},
    {"l.0.w", CAIRN_PARAM, 1, {5}},
    {"l.1.w", CAIRN_PARAM, 1, {5}},
    {"stack", CAIRN_PARAM, 3, {2, 6, 4}},
    {"exp_avg.q", CAIRN_OPTIMIZER, 2, {12, 4}},
    {"exp_avg.k", CAIRN_OPTIMIZER, 2, {6, 4}},
    {"step.q", CAIRN_OPTIMIZER, 0, {0}},
    {"step.k", CAIRN_OPTIMIZER, 0, {0}},
    {"rng", CAIRN_OPAQUE, 1, {3}},
};

/* All tensors lie one after the other in one container. */
static void
make(struct cairn_checkpoint *checkpoint)
{
    struct cairn_complaint complaint = {""};
    uint64_t used = 0;

    *checkpoint = (struct cairn_checkpoint){.place.dir_fd = -1};
    CAIRN_ASSERT(cairn_place_open(".", &checkpoint->place, &complaint) == CAIRN_OK);
    CAIRN_ASSERT(cairn_layout_create(&checkpoint->layout) == CAIRN_OK);
    CAIRN_ASSERT(cairn_array_grow(&checkpoint->containers, 0, sizeof(*checkpoint->containers)));
    memset(checkpoint->containers, 0, sizeof(*checkpoint->containers));
    checkpoint->container_count = 1;
    checkpoint->containers[0].bytes = CONTAINER_BYTES;
    checkpoint->containers[0].literal = calloc(1, CONTAINER_BYTES);
    CAIRN_ASSERT(checkpoint->containers[0].literal != NULL);
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        uint64_t bytes = 1;
        uint32_t tensor;

        for (uint32_t d = 0; d < tensors[i].dims; d++)
            bytes *= tensors[i].shape[d];
        CAIRN_ASSERT(cairn_checkpoint_add_tensor(checkpoint, tensors[i].name, CAIRN_U8,
                                                 tensors[i].kind, tensors[i].dims, tensors[i].shape,
                                                 &tensor) == CAIRN_OK);
        CAIRN_ASSERT(cairn_checkpoint_add_box(checkpoint, tensor, 0, NULL, NULL, used, NULL) ==
                     CAIRN_OK);
        used += bytes;
    }
}

static void
check(const struct cairn_checkpoint *checkpoint)
{
    CAIRN_ASSERT(cairn_layout_check_tiling(checkpoint->layout, false, NULL, 0) == CAIRN_OK);
    for (size_t i = 0; i < cairn_layout_piece_count(checkpoint->layout); i++) {
        const struct cairn_piece *piece = cairn_layout_piece(checkpoint->layout, i);
        uint64_t end = piece->offset_bytes + 1;

        for (uint32_t d = 0; d < cairn_layout_tensor(checkpoint->layout, piece->tensor)->dims; d++)
            end += (piece->extent[d] - 1) * piece->stride_bytes[d];
        CAIRN_ASSERT(piece->container < checkpoint->container_count);
        CAIRN_ASSERT(end <= checkpoint->containers[piece->container].bytes);
    }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct cairn_complaint complaint = {""};
    struct cairn_checkpoint checkpoint;
    struct cairn_map_report report;
    struct cairn_map *map = NULL;
    cairn_err err;

    err = cairn_map_parse("fuzz", (const char *)data, size, &map, &complaint);
    CAIRN_ASSERT(err == CAIRN_OK || complaint.text[0] != '\0');
    if (err)
        return 0;
    make(&checkpoint);
    checkpoint.complaint = &complaint;
    err = cairn_checkpoint_map_by(&checkpoint, map, NULL, 0, &report);
    CAIRN_ASSERT(err == CAIRN_OK || complaint.text[0] != '\0');
    CAIRN_ASSERT(err != CAIRN_INTERNAL); /* the proof never fails */
    if (!err)
        check(&checkpoint);
    cairn_checkpoint_close(&checkpoint);
    cairn_map_destroy(map);
    return 0;
}
