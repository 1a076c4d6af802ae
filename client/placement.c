/* client/placement.c - the rank's state machine; see placement.h. */
#include "client/placement.h"

#include "base/crc.h"
#include "client/placement_bugs.h"

#include <string.h>

uint64_t
client_placement_name(const struct cairn_session_shares *shares)
{
    size_t layers = (size_t)shares->count * shares->stages;
    uint64_t name = cairn_crc64(0, &shares->number, sizeof shares->number);

    name = cairn_crc64(name, &shares->count, sizeof shares->count);
    name = cairn_crc64(name, shares->parts, shares->count * sizeof *shares->parts);
    name = cairn_crc64(name, &shares->stages, sizeof shares->stages);
    name = cairn_crc64(name, shares->layers, layers * sizeof *shares->layers);
    return name ? name : 1;
}

static bool
are_same_layers(const struct cairn_session_shares *left, const struct cairn_session_shares *right)
{
    size_t layers = (size_t)left->count * left->stages;

    return left->count == right->count && left->stages == right->stages &&
           memcmp(left->layers, right->layers, layers * sizeof *left->layers) == 0;
}

static bool
are_same(const struct cairn_session_shares *left, const struct cairn_session_shares *right)
{
    return left->number == right->number && are_same_layers(left, right) &&
           memcmp(left->parts, right->parts, left->count * sizeof *left->parts) == 0;
}

/* The sum of numbers; 0 where one of them is. */
static uint64_t
sum_of(const uint32_t *numbers, uint32_t count)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < count; i++) {
        if (numbers[i] == 0)
            return 0;
        sum += numbers[i];
    }
    return sum;
}

static bool
can_follow(const struct cairn_session_shares *now, const struct cairn_session_shares *offer)
{
    uint64_t sum = sum_of(offer->parts, offer->count);

    if (now->count == 0 || offer->number <= now->number || offer->count != now->count || sum == 0 ||
        (sum != sum_of(now->parts, now->count) && !PLACEMENT_BUG(LOSES_ONE)) ||
        offer->stages != now->stages)
        return false;
    for (uint32_t r = 0; r < offer->count && offer->stages; r++) {
        sum = sum_of(offer->layers + (size_t)r * offer->stages, offer->stages);
        if (sum == 0 || sum != sum_of(now->layers + (size_t)r * now->stages, now->stages))
            return false;
    }
    return true;
}

bool
client_placement_run(struct client_placement *placement, const struct cairn_session_shares *shares)
{
    if (are_same(&placement->now, shares))
        return false;
    placement->now = *shares;
    if (placement->state != CLIENT_PLACEMENT_READY || !can_follow(shares, &placement->offer))
        placement->state = CLIENT_PLACEMENT_RUN;
    return true;
}

bool
client_placement_offer(struct client_placement *placement, const struct cairn_session_shares *offer)
{
    const struct cairn_session_shares *now = &placement->now;
    struct cairn_session_shares whole = *offer;

    if (offer->stages == 0) {
        whole.stages = now->stages;
        memcpy(whole.layers, now->layers, sizeof whole.layers);
    }
    if (placement->state >= CLIENT_PLACEMENT_ENTERED || !can_follow(now, &whole) ||
        whole.number <= placement->refused ||
        (placement->state == CLIENT_PLACEMENT_READY && whole.number <= placement->offer.number))
        return false;
    placement->offer = whole;
    placement->state = CLIENT_PLACEMENT_READY;
    return true;
}

void
client_placement_detach(struct client_placement *placement)
{
    placement->is_good = false;
    placement->state = placement->state >= CLIENT_PLACEMENT_ENTERED ? CLIENT_PLACEMENT_FILLED
                                                                    : CLIENT_PLACEMENT_RUN;
}

void
client_placement_epoch(struct client_placement *placement, uint64_t epoch)
{
    if (epoch != placement->epoch && !PLACEMENT_BUG(IGNORES_EPOCH))
        client_placement_detach(placement);
    placement->epoch = epoch;
}

void
client_placement_filled(struct client_placement *placement, bool is_good)
{
    bool is_late = placement->state == CLIENT_PLACEMENT_FILLED && PLACEMENT_BUG(VOTES_LATE);

    if (placement->state != CLIENT_PLACEMENT_ENTERED && !is_late)
        return;
    placement->is_good = is_good || PLACEMENT_BUG(FILLS_UNVERIFIED);
    placement->state = CLIENT_PLACEMENT_FILLED;
}

uint64_t
client_placement_vote(struct client_placement *placement)
{
    bool is_for_offer = placement->state == CLIENT_PLACEMENT_READY ||
                        (placement->state == CLIENT_PLACEMENT_FILLED && placement->is_good);

    placement->voted = is_for_offer ? placement->offer : placement->now;
    placement->vote = client_placement_name(&placement->voted);
    return placement->vote;
}

enum cairn_placement_change
client_placement_decide(struct client_placement *placement, uint64_t agreed)
{
    bool is_agreed = (agreed != 0 && agreed == placement->vote) || PLACEMENT_BUG(ENTERS_ALONE);
    bool is_new = is_agreed && !are_same(&placement->voted, &placement->now);
    bool was_entered = placement->state >= CLIENT_PLACEMENT_ENTERED;

    placement->vote = 0;
    if (is_new && !was_entered && !are_same_layers(&placement->voted, &placement->now) &&
        !PLACEMENT_BUG(FREES_EARLY)) {
        placement->offer = placement->voted; /* a newer one may have come since */
        placement->is_good = false;
        placement->state = CLIENT_PLACEMENT_ENTERED;
        return CAIRN_PLACEMENT_ENTER;
    }
    if (is_new) {
        (void)client_placement_run(placement, &placement->voted);
        return CAIRN_PLACEMENT_TAKEN;
    }
    if (!was_entered)
        return CAIRN_PLACEMENT_SAME;
    placement->refused = placement->offer.number;
    placement->state = CLIENT_PLACEMENT_RUN;
    if (PLACEMENT_BUG(ABORT_KEEPS_NEW))
        placement->now = placement->offer;
    return CAIRN_PLACEMENT_ABANDONED;
}
