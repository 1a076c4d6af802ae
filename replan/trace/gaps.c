/* replan/trace/gaps.c - gaps between operations. */
#include "replan/trace/gaps.h"

#include <string.h>

double
cairn_gaps_before(struct cairn_gaps *gaps, uint64_t start_ns)
{
    uint64_t point_ns = gaps->point_ns;
    uint32_t kept = 0;
    double gap_ns;

    for (uint32_t i = 0; i < gaps->pending_count; i++) {
        if (gaps->pending_end_ns[i] > start_ns)
            gaps->pending_end_ns[kept++] = gaps->pending_end_ns[i];
        else if (gaps->pending_end_ns[i] > point_ns)
            point_ns = gaps->pending_end_ns[i];
    }
    gaps->pending_count = kept;
    gap_ns = point_ns > 0 && start_ns > point_ns ? (double)(start_ns - point_ns) : 0;
    gaps->point_ns = start_ns > point_ns ? start_ns : point_ns;
    return gap_ns;
}

void
cairn_gaps_add(struct cairn_gaps *gaps, uint64_t end_ns)
{
    if (gaps->pending_count == CAIRN_GAPS_PENDING) { /* the oldest is as good as over */
        if (gaps->pending_end_ns[0] > gaps->point_ns)
            gaps->point_ns = gaps->pending_end_ns[0];
        memmove(gaps->pending_end_ns, gaps->pending_end_ns + 1,
                (CAIRN_GAPS_PENDING - 1) * sizeof *gaps->pending_end_ns);
        gaps->pending_count--;
    }
    gaps->pending_end_ns[gaps->pending_count++] = end_ns;
}
