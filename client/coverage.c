/*
 * client/coverage.c - keeps the trainer's report of what it does not cover, for the agent.
 *
 * It keeps the report in packed form, cleaned and cut, so that no agent has a reason to refuse it.
 * The service thread sends it to every agent that it attaches to.
 */
#include "cairn/client.h"

#include "client/abi.h"
#include "client/state.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

static bool
is_model(enum cairn_kind kind)
{
    return kind == CAIRN_PARAM || kind == CAIRN_OPTIMIZER;
}

/* Adds the items of the model, or all others, while there is room, and counts the rest. */
static void
add_items(struct cairn_session_coverage *coverage, const struct cairn_uncovered *items,
          uint32_t count, bool model)
{
    for (uint32_t i = 0; i < count; i++) {
        struct cairn_session_uncovered *into = &coverage->items[coverage->count];

        if (is_model(items[i].kind) != model)
            continue;
        if (coverage->count == CAIRN_UNCOVERED_MAX) {
            coverage->left_out++;
            continue;
        }
        into->kind = items[i].kind;
        cairn_text_clean(into->name, sizeof into->name, items[i].name);
        cairn_text_clean(into->reason, sizeof into->reason, items[i].reason);
        coverage->count++;
    }
}

/* Packs the report as it will travel. */
static cairn_err
pack(const struct cairn_client *client, const char *refusal, const struct cairn_uncovered *given,
     uint32_t count, struct cairn_session_coverage *coverage)
{
    struct cairn_uncovered *items = NULL;
    cairn_err err = client_abi_take_uncovered(client, given, count, &items);

    for (uint32_t i = 0; i < count && !err; i++)
        if (items[i].kind < CAIRN_PARAM || items[i].kind > CAIRN_OPAQUE) {
            client_say(client, CAIRN_LOG_ERROR,
                       "client: struct cairn_uncovered index=%u: kind is %d; use one of enum "
                       "cairn_kind",
                       i, (int)items[i].kind);
            err = CAIRN_INVAL;
        }
    if (!err) {
        cairn_text_clean(coverage->refusal, sizeof coverage->refusal, refusal);
        add_items(coverage, items, count, true);
        add_items(coverage, items, count, false);
    }
    free(items);
    return err;
}

cairn_err
cairn_client_report_coverage(struct cairn_client *client, const char *refusal,
                             const struct cairn_uncovered *items, uint32_t count)
{
    struct cairn_session_coverage *coverage, *old;
    cairn_err err;

    if (!client_usable(client) || (count && !items))
        return CAIRN_INVAL;
    coverage = calloc(1, sizeof *coverage); /* all zero: compared below */
    if (!coverage)
        return CAIRN_NOMEM;
    err = pack(client, refusal, items, count, coverage);
    if (err) {
        free(coverage);
        return err;
    }
    pthread_mutex_lock(&client->lock);
    old = client->coverage;
    if (!old || memcmp(old, coverage, sizeof *coverage) != 0) {
        client->coverage = coverage;
        client->coverage_wanted = client->link == CLIENT_LINK_ATTACHED;
        client_wake(client);
    } else {
        old = coverage;
    }
    pthread_mutex_unlock(&client->lock);
    free(old);
    return CAIRN_OK;
}
