/*
 * client/coverage.c - what the trainer says that it does not cover, kept for the agent.
 *
 * It is kept as it travels, cleaned and cut here, so that no agent ever has a reason to refuse it;
 * the service thread sends it, again to every agent that comes.
 */
#include "cairn/client.h"

#include "client/state.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

static bool
is_model(enum cairn_kind kind)
{
    return kind == CAIRN_PARAM || kind == CAIRN_OPTIMIZER;
}

/* Adds those of one sort, while there is room. */
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

cairn_err
cairn_client_report_coverage(struct cairn_client *client, const char *refusal,
                             const struct cairn_uncovered *items, uint32_t count)
{
    struct cairn_session_coverage *coverage, *old;

    if (!client_usable(client) || (count && !items))
        return CAIRN_INVAL;
    for (uint32_t i = 0; i < count; i++)
        if (items[i].kind < CAIRN_PARAM || items[i].kind > CAIRN_OPAQUE)
            return CAIRN_INVAL;
    coverage = calloc(1, sizeof *coverage); /* all zero: compared below */
    if (!coverage)
        return CAIRN_NOMEM;
    cairn_text_clean(coverage->refusal, sizeof coverage->refusal, refusal);
    add_items(coverage, items, count, true);
    add_items(coverage, items, count, false);
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
