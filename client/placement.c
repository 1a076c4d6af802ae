/* client/placement.c - the rank's state machine, and its two calls; see placement.h. */
#include "client/placement.h"

#include "base/crc.h"
#include "client/state.h"

#include <string.h>

/* ---- the machine ---- */

uint64_t
client_placement_name(const struct cairn_session_shares *shares)
{
    uint64_t name = cairn_crc64(0, &shares->number, sizeof shares->number);

    name = cairn_crc64(name, &shares->count, sizeof shares->count);
    name = cairn_crc64(name, shares->parts, shares->count * sizeof *shares->parts);
    return name ? name : 1;
}

static bool
are_same(const struct cairn_session_shares *left, const struct cairn_session_shares *right)
{
    return left->number == right->number && left->count == right->count &&
           memcmp(left->parts, right->parts, left->count * sizeof *left->parts) == 0;
}

/* The sum of the parts; 0 where one of them is. */
static uint64_t
sum_of(const struct cairn_session_shares *shares)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < shares->count; i++) {
        if (shares->parts[i] == 0)
            return 0;
        sum += shares->parts[i];
    }
    return sum;
}

static bool
can_follow(const struct cairn_session_shares *now, const struct cairn_session_shares *offer)
{
    return now->count > 0 && offer->number > now->number && offer->count == now->count &&
           sum_of(offer) > 0 && sum_of(offer) == sum_of(now);
}

bool
client_placement_run(struct client_placement *placement, const struct cairn_session_shares *shares)
{
    if (are_same(&placement->now, shares))
        return false;
    placement->now = *shares;
    placement->is_ready = placement->is_ready && can_follow(shares, &placement->offer);
    return true;
}

bool
client_placement_offer(struct client_placement *placement, const struct cairn_session_shares *offer)
{
    if (!can_follow(&placement->now, offer) ||
        (placement->is_ready && offer->number <= placement->offer.number))
        return false;
    placement->offer = *offer;
    placement->is_ready = true;
    return true;
}

void
client_placement_detach(struct client_placement *placement)
{
    placement->is_ready = false;
}

uint64_t
client_placement_vote(struct client_placement *placement)
{
    placement->voted = placement->is_ready ? placement->offer : placement->now;
    placement->vote = client_placement_name(&placement->voted);
    return placement->vote;
}

bool
client_placement_decide(struct client_placement *placement, uint64_t agreed)
{
    bool is_new =
        agreed != 0 && agreed == placement->vote && !are_same(&placement->voted, &placement->now);

    placement->vote = 0;
    if (is_new)
        (void)client_placement_run(placement, &placement->voted);
    return is_new;
}

/* ---- the calls ---- */

/* False where the trainer's shares cannot be such. */
static bool
read_shares(uint64_t number, uint32_t replicas, const uint32_t *parts,
            struct cairn_session_shares *out)
{
    if (replicas == 0 || replicas > CAIRN_REPLICAS_MAX || !parts)
        return false;
    out->number = number;
    out->count = replicas;
    memcpy(out->parts, parts, replicas * sizeof *parts);
    return sum_of(out) > 0;
}

uint64_t
cairn_placement_vote(struct cairn_client *client, uint64_t number, uint32_t replicas,
                     const uint32_t *shares)
{
    struct cairn_session_shares now = {0};
    uint64_t vote;

    if (!client_usable(client) || !read_shares(number, replicas, shares, &now))
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

bool
cairn_placement_share(struct cairn_client *client, uint64_t agreed, uint64_t *number,
                      uint32_t replicas, uint32_t *shares)
{
    bool is_new;

    if (!client_usable(client) || !number || !shares)
        return false;
    pthread_mutex_lock(&client->lock);
    is_new = replicas == client->placement.now.count &&
             client_placement_decide(&client->placement, agreed);
    if (is_new) {
        *number = client->placement.now.number;
        memcpy(shares, client->placement.now.parts, replicas * sizeof *shares);
        client->shares_wanted = client->takes_offers;
        client_wake(client);
    }
    pthread_mutex_unlock(&client->lock);
    return is_new;
}
