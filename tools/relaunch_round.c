/* tools/relaunch_round.c - see relaunch_round.h. */
#include "tools/relaunch_round.h"

#include "base/crc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NO_RANK = -1 };

/* ---- who is there ---- */

const struct cairn_relaunch_note *
cairn_relaunch_note_of(const struct cairn_relaunch *relaunch,
                       const struct cairn_relaunch_view *view, uint32_t node)
{
    const struct cairn_relaunch_peer *peer = &view->peers[node];

    if (node == relaunch->self)
        return &relaunch->note;
    return peer->answered && peer->has_note ? &peer->note : NULL;
}

static bool
is_in(const struct cairn_relaunch *relaunch, const struct cairn_relaunch_view *view, uint32_t node,
      enum cairn_relaunch_state state)
{
    const struct cairn_relaunch_note *note = cairn_relaunch_note_of(relaunch, view, node);

    return note && note->state == state && (node == relaunch->self || view->peers[node].attached) &&
           !view->peers[node].removed;
}

bool
cairn_relaunch_joins(const struct cairn_relaunch *relaunch, const struct cairn_relaunch_view *view,
                     uint32_t node)
{
    return is_in(relaunch, view, node, CAIRN_RELAUNCH_JOINS);
}

bool
cairn_relaunch_runs(const struct cairn_relaunch *relaunch, const struct cairn_relaunch_view *view,
                    uint32_t node)
{
    return node != relaunch->self && is_in(relaunch, view, node, CAIRN_RELAUNCH_RUNS);
}

/* Whether an approved relaunch has this node. */
static bool
is_offered(const struct cairn_relaunch_offer *offer, uint32_t node)
{
    for (uint32_t i = 0; i < offer->count; i++)
        if (offer->nodes[i] == node)
            return true;
    return false;
}

bool
cairn_relaunch_has_offer(const struct cairn_relaunch *relaunch,
                         const struct cairn_relaunch_view *view)
{
    const struct cairn_relaunch_offer *offer = view->offer;

    if (!offer || !offer->number || !offer->count)
        return false;
    for (uint32_t i = 0; i < offer->count; i++)
        if (offer->nodes[i] >= view->count ||
            !cairn_relaunch_joins(relaunch, view, offer->nodes[i]))
            return false;
    return true;
}

uint32_t
cairn_relaunch_leader(const struct cairn_relaunch *relaunch, const struct cairn_relaunch_view *view)
{
    uint32_t best = relaunch->self;
    bool is_shaped = cairn_relaunch_has_offer(relaunch, view);

    for (uint32_t i = 0; i < view->count; i++) {
        const struct cairn_relaunch_note *note,
            *against = cairn_relaunch_note_of(relaunch, view, best);

        if (i == best || !cairn_relaunch_joins(relaunch, view, i) || !view->peers[i].holds ||
            (is_shaped && !is_offered(view->offer, i)))
            continue;
        note = cairn_relaunch_note_of(relaunch, view, i);
        if (!view->peers[best].holds || (is_shaped && !is_offered(view->offer, best))) {
            best = i;
        } else if (note->term != against->term) {
            best = note->term > against->term ? i : best;
        } else if (view->peers[i].spare != view->peers[best].spare) {
            best = view->peers[best].spare ? i : best;
        } else {
            best = i < best ? i : best;
        }
    }
    return best;
}

/* ---- its seats ---- */

/* A joining node whose agent is a member of the epoch: others would have to be taken in first. */
struct wish {
    bool is_new, is_spare;
    uint32_t node;
    int64_t rank; /* that it had in the newest round, or NO_RANK */
};

static int
compare_wishes(const void *a, const void *b)
{
    const struct wish *x = a, *y = b;

    if (x->is_new != y->is_new)
        return x->is_new ? 1 : -1;
    if (x->is_spare != y->is_spare)
        return x->is_spare ? 1 : -1;
    return x->node < y->node ? -1 : x->node > y->node;
}

static int
compare_nodes(const void *a, const void *b)
{
    const struct wish *x = a, *y = b;

    return x->node < y->node ? -1 : x->node > y->node;
}

/* Nodes of the newest round keep their ranks if these still exist, since their agents hold the
 * state of those ranks; the others get the rest, in the order of nodes. */
static void
seat_all(const struct cairn_relaunch_view *view, const struct cairn_relaunch *relaunch,
         const struct wish *wishes, uint32_t count, struct cairn_relaunch_seat *seats)
{
    uint32_t next = 0;

    for (uint32_t i = 0; i < count; i++)
        seats[i].node = UINT32_MAX;
    for (uint32_t pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < count; i++) {
            const struct wish *wish = &wishes[i];
            bool keeps = wish->rank >= 0 && wish->rank < (int64_t)count &&
                         (pass == 0 ? seats[wish->rank].node == UINT32_MAX
                                    : seats[wish->rank].node == wish->node);
            struct cairn_relaunch_seat *seat;
            const struct cairn_relaunch_note *note =
                cairn_relaunch_note_of(relaunch, view, wish->node);

            if ((pass == 0) != keeps)
                continue;
            while (pass == 1 && seats[next].node != UINT32_MAX)
                next++;
            seat = &seats[keeps ? (uint32_t)wish->rank : next];
            *seat = (struct cairn_relaunch_seat){
                .node = wish->node, .port = note->port, .door = note->door};
            snprintf(seat->host, sizeof seat->host, "%s", view->peers[wish->node].host);
        }
}

/* The seats of an approved relaunch. */
static cairn_err
choose_offered(const struct cairn_relaunch *relaunch, const struct cairn_relaunch_view *view,
               struct cairn_relaunch_round *out)
{
    const struct cairn_relaunch_offer *offer = view->offer;
    struct cairn_relaunch_seat *seats = calloc(offer->count, sizeof *seats);

    if (!seats)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < offer->count; i++) {
        const struct cairn_relaunch_note *note =
            cairn_relaunch_note_of(relaunch, view, offer->nodes[i]);

        seats[i] = (struct cairn_relaunch_seat){
            .node = offer->nodes[i], .port = note->port, .door = note->door};
        snprintf(seats[i].host, sizeof seats[i].host, "%s", view->peers[offer->nodes[i]].host);
    }
    *out = (struct cairn_relaunch_round){
        .seats = seats, .count = offer->count, .shape = offer->number, .problem = view->problem};
    return CAIRN_OK;
}

cairn_err
cairn_relaunch_round_choose(const struct cairn_relaunch *relaunch,
                            const struct cairn_relaunch_view *view, uint32_t leader, uint64_t most,
                            struct cairn_relaunch_round *out)
{
    uint64_t term = cairn_relaunch_note_of(relaunch, view, leader)->term;
    struct wish *wishes = calloc(view->count, sizeof *wishes);
    struct cairn_relaunch_seat *seats = NULL;
    uint32_t count = 0;

    if (!wishes)
        return CAIRN_NOMEM;
    if (cairn_relaunch_has_offer(relaunch, view)) {
        free(wishes);
        return choose_offered(relaunch, view, out);
    }
    for (uint32_t i = 0; i < view->count; i++) {
        const struct cairn_relaunch_note *note = cairn_relaunch_note_of(relaunch, view, i);
        bool is_new;

        if (!cairn_relaunch_joins(relaunch, view, i) || !view->peers[i].holds)
            continue;
        is_new = note->term == 0 || note->term != term;
        wishes[count++] = (struct wish){.is_new = is_new && i != leader,
                                        .is_spare = view->peers[i].spare,
                                        .node = i,
                                        .rank = is_new ? NO_RANK : (int64_t)note->rank};
    }
    qsort(wishes, count, sizeof *wishes, compare_wishes);
    count = count < most ? count : (uint32_t)most;
    qsort(wishes, count, sizeof *wishes, compare_nodes);
    seats = calloc(count ? count : 1, sizeof *seats);
    if (seats)
        seat_all(view, relaunch, wishes, count, seats);
    free(wishes);
    if (!seats)
        return CAIRN_NOMEM;
    *out = (struct cairn_relaunch_round){.seats = seats, .count = count, .problem = view->problem};
    return CAIRN_OK;
}

uint64_t
cairn_relaunch_round_name(const struct cairn_relaunch_round *round, uint64_t job, uint64_t term)
{
    const uint64_t head[] = {job, term, round->count, round->shape, round->problem};
    uint64_t name = cairn_crc64(0, head, sizeof head);

    for (uint32_t i = 0; i < round->count; i++) {
        const struct cairn_relaunch_seat *seat = &round->seats[i];
        const uint64_t words[] = {seat->node, seat->port, seat->door};

        name = cairn_crc64(name, words, sizeof words);
        name = cairn_crc64(name, seat->host, strlen(seat->host));
    }
    return name ? name : 1;
}

uint32_t
cairn_relaunch_round_rank(const struct cairn_relaunch_round *round, uint32_t node)
{
    for (uint32_t i = 0; i < round->count; i++)
        if (round->seats[i].node == node)
            return i;
    return UINT32_MAX;
}
