/* client/placement.c - the rank's state machine, and its calls; see placement.h. */
#include "client/placement.h"

#include "base/clock.h"
#include "base/crc.h"
#include "client/state.h"

#include <string.h>

/* ---- the machine ---- */

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
        sum != sum_of(now->parts, now->count) || offer->stages != now->stages)
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
client_placement_filled(struct client_placement *placement, bool is_good)
{
    if (placement->state != CLIENT_PLACEMENT_ENTERED)
        return;
    placement->is_good = is_good;
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
    bool is_new =
        agreed != 0 && agreed == placement->vote && !are_same(&placement->voted, &placement->now);
    bool was_entered = placement->state >= CLIENT_PLACEMENT_ENTERED;

    placement->vote = 0;
    if (is_new && !was_entered && !are_same_layers(&placement->voted, &placement->now)) {
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
    return CAIRN_PLACEMENT_ABANDONED;
}

/* ---- the calls ---- */

/* False where the trainer's placement cannot be one. */
static bool
read_placement(uint64_t number, uint32_t replicas, const uint32_t *parts, uint32_t stages,
               const uint32_t *layers, struct cairn_session_shares *out)
{
    if (replicas == 0 || replicas > CAIRN_REPLICAS_MAX || !parts ||
        stages > CAIRN_STAGES_MAX / replicas || (stages && !layers))
        return false;
    out->number = number;
    out->count = replicas;
    memcpy(out->parts, parts, replicas * sizeof *parts);
    out->stages = stages;
    if (stages)
        memcpy(out->layers, layers, (size_t)replicas * stages * sizeof *layers);
    return sum_of(out->parts, replicas) > 0 && (!stages || sum_of(layers, replicas * stages) > 0);
}

uint64_t
cairn_placement_vote_layers(struct cairn_client *client, uint64_t number, uint32_t replicas,
                            const uint32_t *shares, uint32_t stages, const uint32_t *layers)
{
    struct cairn_session_shares now = {0};
    uint64_t vote;

    if (!client_usable(client) || !read_placement(number, replicas, shares, stages, layers, &now))
        return 0;
    pthread_mutex_lock(&client->lock);
    if (client_placement_run(&client->placement, &now)) {
        client->shares_wanted = client->takes_offers;
        client_wake(client);
    }
    vote = client_placement_vote(&client->placement);
    pthread_mutex_unlock(&client->lock);
    return vote;
}

enum cairn_placement_change
cairn_placement_take(struct cairn_client *client, uint64_t agreed, uint64_t *number,
                     uint32_t replicas, uint32_t *shares, uint32_t stages, uint32_t *layers)
{
    enum cairn_placement_change change = CAIRN_PLACEMENT_SAME;
    const struct cairn_session_shares *next;

    if (!client_usable(client) || !number || !shares || (stages && !layers))
        return change;
    pthread_mutex_lock(&client->lock);
    if (replicas == client->placement.now.count && stages == client->placement.now.stages)
        change = client_placement_decide(&client->placement, agreed);
    next = change == CAIRN_PLACEMENT_ENTER ? &client->placement.offer : &client->placement.now;
    if (change == CAIRN_PLACEMENT_TAKEN || change == CAIRN_PLACEMENT_ENTER) {
        *number = next->number;
        memcpy(shares, next->parts, replicas * sizeof *shares);
        if (stages)
            memcpy(layers, next->layers, (size_t)replicas * stages * sizeof *layers);
    }
    if (change == CAIRN_PLACEMENT_TAKEN || change == CAIRN_PLACEMENT_ABANDONED) {
        client->shares_wanted = client->takes_offers;
        client_wake(client);
    }
    pthread_mutex_unlock(&client->lock);
    return change;
}

uint64_t
cairn_placement_vote(struct cairn_client *client, uint64_t number, uint32_t replicas,
                     const uint32_t *shares)
{
    return cairn_placement_vote_layers(client, number, replicas, shares, 0, NULL);
}

bool
cairn_placement_share(struct cairn_client *client, uint64_t agreed, uint64_t *number,
                      uint32_t replicas, uint32_t *shares)
{
    return cairn_placement_take(client, agreed, number, replicas, shares, 0, NULL) ==
           CAIRN_PLACEMENT_TAKEN;
}

cairn_err
cairn_placement_fill(struct cairn_client *client, uint64_t step, const struct cairn_slice *slices,
                     uint32_t count, uint32_t timeout_ms, struct cairn_restored *out)
{
    uint64_t deadline_ns = client_now_ns() + timeout_ms * CAIRN_NS_PER_MS;
    cairn_err err;

    if (!client_usable(client) || !out)
        return CAIRN_INVAL;
    err = cairn_snapshot_await_commit(client, timeout_ms);
    if (!err)
        err = cairn_client_register(client, slices, count);
    if (!err)
        err = client_restore_until(client, deadline_ns, out);
    if (!err && out->generation.step != step)
        err = CAIRN_STALE;
    pthread_mutex_lock(&client->lock);
    client_placement_filled(&client->placement, !err);
    pthread_mutex_unlock(&client->lock);
    return err;
}
