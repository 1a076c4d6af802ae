/* tools/convert/engine/clip.c - see clip.h. */
#include "tools/convert/engine/clip.h"

#include "base/assert.h"

uint64_t
cairn_move_target_end(const struct cairn_move *move)
{
    CAIRN_ASSERT(move->run_count > 0);
    return move->target_offset + (move->run_count - 1) * move->target_stride + move->run_bytes;
}

static void
push_clip(struct cairn_move *clips, size_t *count, const struct cairn_move *move, uint64_t run,
          uint64_t runs, uint64_t skip, uint64_t bytes, uint64_t tile_begin)
{
    struct cairn_move *clip = &clips[(*count)++];

    *clip = *move;
    clip->source_offset += run * move->source_stride + skip;
    clip->target_offset += run * move->target_stride + skip - tile_begin;
    clip->run_bytes = bytes;
    clip->run_count = runs;
    if (runs == 1)
        clip->source_stride = clip->target_stride = 0;
}

void
cairn_clip_move(const struct cairn_move *move, uint64_t begin, uint64_t end,
                struct cairn_move *clips, size_t *count)
{
    uint64_t stride = move->target_stride, run = 0, last = move->run_count - 1;

    CAIRN_ASSERT(move->run_count > 0 && begin < end);
    CAIRN_ASSERT(move->run_count == 1 || stride > 0); /* runs of a target never overlap */

    if (move->target_offset < begin && move->run_count > 1) {
        run = (begin - move->target_offset) / stride;
        if (run > last)
            run = last;
    }
    if (move->run_count > 1 && last > (end - 1 - move->target_offset) / stride)
        last = (end - 1 - move->target_offset) / stride;
    if (move->target_offset + run * stride + move->run_bytes <= begin)
        run++;
    for (; run <= last;) {
        uint64_t at = move->target_offset + run * stride;
        uint64_t from = at < begin ? begin : at;
        uint64_t to = at + move->run_bytes > end ? end : at + move->run_bytes;
        uint64_t runs = 1;

        if (from == at && to == at + move->run_bytes) { /* whole: and all others that are */
            runs = last - run + 1;
            if (move->target_offset + last * stride + move->run_bytes > end)
                runs--;
        }
        push_clip(clips, count, move, run, runs, from - at, to - from, begin);
        run += runs;
    }
}
