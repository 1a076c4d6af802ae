/*
 * client/poison.c - keeps a state that is not finite, or that the trainer rejects, from replacing a
 * good one.
 *
 * The copy reports runs with values that are not finite (snapshot/finite.h). A slice is poisoned if
 * it was finite when it was first captured or restored. A slice that was not finite then, such as a
 * mask of infinities, never counts. A rank with a poisoned slice sends POISON instead of DONE; the
 * agent decides by `on_poison` whether to keep the generation.
 */
#include "cairn/client.h"

#include "client/state.h"

#include "base/array.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

void
client_note_rejection(struct cairn_client *client)
{
    if (client->rejection.step == 0 || client->rejection.step != client->report.generation.step)
        return;
    client->rejection.step = 0;
    client->report.rejected = true;
    client->report.held = false; /* nothing can make it good */
}

bool
client_poison_find(struct cairn_client *client, char *name)
{
    const struct client_tensors *tensors = client->tensors;
    struct client_report *report = &client->report;
    bool say;

    client_note_rejection(client);
    for (uint32_t r = 0; r < tensors->run_count && !client->keeps_poisoned; r++)
        if (atomic_load_explicit(&tensors->failing[r], memory_order_relaxed) &&
            tensors->known[tensors->run_slices[r]] == CLIENT_KNOWN_FINITE &&
            report->poisoned++ == 0)
            report->first_slice = tensors->run_slices[r];
    say = report->poisoned && !client->said_poisoned;
    if (say)
        cairn_text_clean(name, CAIRN_NAME_BYTES_MAX, tensors->slices[report->first_slice].name);
    client->said_poisoned |= say;
    return say;
}

void
client_poison_say(const struct cairn_client *client, uint64_t step, const char *name)
{
    client_say(client, CAIRN_LOG_WARN,
               "client: step=%llu is poisoned: tensor \"%s\" holds values that are not finite "
               "(logged once until a step is good again)",
               (unsigned long long)step, name);
}

cairn_err
client_put_poison(struct cairn_client *client)
{
    const struct client_report *report = &client->report;
    struct cairn_session_poison poison = {.generation = report->generation,
                                          .is_rejected = report->rejected,
                                          .tensors = report->poisoned};

    if (report->poisoned)
        cairn_text_clean(poison.name, sizeof poison.name,
                         client->tensors->slices[report->first_slice].name);
    if (poison.is_rejected)
        memcpy(poison.reason, client->rejection.reason, sizeof poison.reason);
    return cairn_session_put_poison(&client->writer, &poison);
}

void
client_put_unwatched(struct cairn_client *client)
{
    const struct client_tensors *tensors = client->tensors;
    struct cairn_session_unwatched unwatched = {0};
    cairn_err err;

    if (!client->unwatched_wanted)
        return;
    for (uint32_t i = 0; i < tensors->count; i++)
        if (tensors->known[i] == CLIENT_KNOWN_FAILING &&
            (tensors->slices[i].kind == CAIRN_PARAM ||
             tensors->slices[i].kind == CAIRN_OPTIMIZER) &&
            unwatched.tensors++ == 0)
            cairn_text_clean(unwatched.name, sizeof unwatched.name, tensors->slices[i].name);
    err = cairn_session_put_unwatched(&client->writer, &unwatched);
    client->unwatched_wanted = err == CAIRN_AGAIN;
    if (err && err != CAIRN_AGAIN)
        client->broken = true;
}

void
client_poison_learn(struct cairn_client *client)
{
    struct client_tensors *tensors = client->tensors;

    for (uint32_t r = 0; r < tensors->run_count; r++) {
        uint8_t *known = &tensors->known[tensors->run_slices[r]];

        if (!tensors->runs[r].type || *known != CLIENT_KNOWN_NOT)
            continue;
        *known = atomic_load_explicit(&tensors->failing[r], memory_order_relaxed)
                     ? CLIENT_KNOWN_FAILING
                     : CLIENT_KNOWN_FINITE;
        client->unwatched_wanted |= client->takes_poison && *known == CLIENT_KNOWN_FAILING;
    }
    client->said_poisoned = client->stop_wanted = false;
}

void
client_known_restored(struct cairn_client *client, struct client_tensors *tensors,
                      const atomic_bool *failing)
{
    pthread_mutex_lock(&client->lock);
    for (uint32_t i = 0; i < tensors->count; i++)
        tensors->known[i] = failing[i] ? CLIENT_KNOWN_FAILING : CLIENT_KNOWN_FINITE;
    client->unwatched_wanted = client->takes_poison;
    client->rejection.step = 0;
    client->said_poisoned = client->stop_wanted = false;
    pthread_mutex_unlock(&client->lock);
}

/* Ordered by name; within one name, slices that never count come first. */
struct named {
    const char *name;
    uint8_t known;
};

static int
compare_named(const void *a, const void *b)
{
    const struct named *left = a, *right = b;
    int order = strcmp(left->name, right->name);

    return order ? order : (int)right->known - (int)left->known;
}

static uint8_t
find_known(const struct named *all, uint32_t count, const char *name)
{
    uint32_t low = 0, high = count;

    CAIRN_BISECT(low, high, middle, strcmp(all[middle].name, name) < 0);
    return low < count && strcmp(all[low].name, name) == 0 ? all[low].known : CLIENT_KNOWN_NOT;
}

cairn_err
client_known_carry(const struct client_tensors *from, struct client_tensors *to)
{
    struct named *all;

    if (!from || from->count == 0)
        return CAIRN_OK;
    all = calloc(from->count, sizeof *all);
    if (!all)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < from->count; i++)
        all[i] = (struct named){from->slices[i].name, from->known[i]};
    qsort(all, from->count, sizeof *all, compare_named);
    for (uint32_t i = 0; i < to->count; i++)
        if (to->known[i] == CLIENT_KNOWN_NOT)
            to->known[i] = find_known(all, from->count, to->slices[i].name);
    free(all);
    return CAIRN_OK;
}

/* The agent has been told that this rank's part is good. */
static bool
is_reported(const struct client_report *report, uint64_t step)
{
    return report->generation.step == step && report->ended && !report->active &&
           report->result == CAIRN_OK && !report->rejected;
}

cairn_err
cairn_snapshot_reject(struct cairn_client *client, uint64_t step, const char *reason)
{
    cairn_err err = CAIRN_OK;

    if (!client_usable(client) || step == 0)
        return CAIRN_INVAL;
    pthread_mutex_lock(&client->lock);
    if (step < client->snapshot.step || is_reported(&client->report, step)) {
        err = CAIRN_STALE;
    } else {
        client->rejection.step = step;
        cairn_text_clean(client->rejection.reason, sizeof client->rejection.reason,
                         reason && *reason ? reason : "no reason given");
        if (client->report.active)
            client_note_rejection(client);
        client_wake(client);
    }
    pthread_mutex_unlock(&client->lock);
    return err;
}

bool
cairn_client_stop_wanted(const struct cairn_client *client)
{
    struct cairn_client *mutable = (struct cairn_client *)(uintptr_t)client; /* for the lock */
    bool wanted;

    if (!client_usable(client))
        return false;
    pthread_mutex_lock(&mutable->lock);
    wanted = client->stop_wanted;
    pthread_mutex_unlock(&mutable->lock);
    return wanted;
}
