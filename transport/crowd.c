/* transport/crowd.c - see crowd.h. */
#include "transport/crowd.h"

/* Of all sources, or of one. */
struct tally {
    struct stream *oldest[2]; /* by stream->known */
    uint32_t count[2];
};

/* Streams come from the newest on. */
static void
tally_add(struct tally *tally, struct stream *stream)
{
    tally->oldest[stream->known] = stream;
    tally->count[stream->known]++;
}

/* NULL: there are fewer than `most`. */
static struct stream *
tally_worst(const struct tally *tally, uint32_t most)
{
    if (tally->count[0] + tally->count[1] < most)
        return NULL;
    return tally->oldest[tally->count[1] > most / 2];
}

void
cairn_crowd_add(struct cairn_crowd *crowd, struct stream *stream)
{
    stream->next = crowd->newest;
    crowd->newest = stream;
}

void
cairn_crowd_remove(struct cairn_crowd *crowd, struct stream *stream)
{
    for (struct stream **at = &crowd->newest; *at; at = &(*at)->next)
        if (*at == stream) {
            *at = stream->next;
            stream->next = NULL;
            return;
        }
}

struct stream *
cairn_crowd_worst(const struct cairn_crowd *crowd, const struct in6_addr *source)
{
    struct tally all = {.count = {0}}, here = {.count = {0}};
    struct stream *worst;

    for (struct stream *stream = crowd->newest; stream; stream = stream->next) {
        tally_add(&all, stream);
        if (IN6_ARE_ADDR_EQUAL(&stream->source, source))
            tally_add(&here, stream);
    }
    worst = tally_worst(&here, CAIRN_CROWD_PER_SOURCE);
    return worst ? worst : tally_worst(&all, CAIRN_CROWD_MAX);
}

struct stream *
cairn_crowd_overdue(const struct cairn_crowd *crowd, uint64_t now_ns)
{
    struct stream *stream = crowd->newest;

    while (stream && now_ns < stream->deadline_ns)
        stream = stream->next;
    return stream;
}
