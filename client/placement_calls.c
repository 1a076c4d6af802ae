/* client/placement_calls.c - the calls of cairn/client.h about placements; see placement.h. */
#include "base/clock.h"
#include "client/placement.h"
#include "client/state.h"

#include <string.h>

static bool
are_all_above_0(const uint32_t *numbers, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (numbers[i] == 0)
            return false;
    return true;
}

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
    return are_all_above_0(out->parts, replicas) && are_all_above_0(out->layers, replicas * stages);
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
    uint64_t entered;

    if (!client_usable(client) || !number || !shares || (stages && !layers))
        return change;
    pthread_mutex_lock(&client->lock);
    entered =
        client->placement.state >= CLIENT_PLACEMENT_ENTERED ? client->placement.offer.number : 0;
    if (replicas == client->placement.now.count && stages == client->placement.now.stages)
        change = client_placement_decide(&client->placement, agreed);
    next = change == CAIRN_PLACEMENT_ENTER ? &client->placement.offer : &client->placement.now;
    if (change == CAIRN_PLACEMENT_TAKEN || change == CAIRN_PLACEMENT_ENTER) {
        *number = next->number;
        memcpy(shares, next->parts, replicas * sizeof *shares);
        if (stages)
            memcpy(layers, next->layers, (size_t)replicas * stages * sizeof *layers);
    }
    if (change == CAIRN_PLACEMENT_ENTER)
        client->entered_ns = client_now_ns();
    if (entered && change != CAIRN_PLACEMENT_SAME) {
        client->moved = (struct cairn_session_moved){entered, change == CAIRN_PLACEMENT_TAKEN,
                                                     client_now_ns() - client->entered_ns};
        client->moved_wanted = client->takes_moves;
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
    struct client_tensors *next = NULL;
    cairn_err err;

    if (!client_usable(client) || !out)
        return CAIRN_INVAL;
    err = client_tensors_create(client, slices, count, &next);
    if (!err)
        err = cairn_snapshot_await_commit(client, timeout_ms);
    /* While the present tensors are registered, what stays here is read in place. */
    if (!err)
        err = client_restore_until(client, next, deadline_ns, out);
    if (!err && out->generation.step != step)
        err = CAIRN_STALE;
    if (err)
        client_tensors_free(next);
    else
        err = client_tensors_register(client, next);
    pthread_mutex_lock(&client->lock);
    client_placement_filled(&client->placement, !err);
    pthread_mutex_unlock(&client->lock);
    return err;
}
