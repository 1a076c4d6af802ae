/*
 * agent/core/choose.c - which generation can be brought back, and why not the others. Pure.
 *
 * A generation is restorable when in every erasure group at most m members' parts are missing. A
 * part is there when some agent reports a complete holding of it: data, parity and the seals of the
 * whole group, compared with their checksums. A complete holding exists only after every rank of
 * that node captured the same step, and parity is complete only with the seals of all its members,
 * so what can be decoded is one consistent step of the whole job, committed or not. One that
 * certainly never was committed is passed over when an older one is whole: a trainer that died in
 * its capture costs a step, and no network.
 */
#include "agent/core/core_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { CONSIDERED_MAX = 32 };

struct text {
    char *out;
    size_t room;
    size_t used;
};

__attribute__((format(printf, 2, 3))) static void
say(struct text *text, const char *format, ...)
{
    __builtin_va_list arguments;
    int len;

    if (text->used >= text->room)
        return;
    __builtin_va_start(arguments, format);
    len = vsnprintf(text->out + text->used, text->room - text->used, format, arguments);
    __builtin_va_end(arguments);
    if (len > 0)
        text->used += (size_t)len;
}

uint32_t
choose_holder(const struct inventory *inventories, uint32_t agent_count,
              struct cairn_generation generation, uint32_t member)
{
    uint32_t best = UINT32_MAX, best_merit = 0;

    for (uint32_t a = 0; a < agent_count; a++)
        for (uint32_t h = 0; h < inventories[a].holding_count; h++) {
            const struct inventory_holding *holding = &inventories[a].holdings[h];
            uint32_t merit;

            if (!generation_is(holding->generation, generation) || holding->member != member ||
                holding->bad_count > BAD_BLOCKS_MAX)
                continue;
            merit = holding->table->members[member].agent == a ? 2 : 1;
            merit += holding->bad_count == 0 ? 2 : 0;
            if (merit > best_merit) {
                best = a;
                best_merit = merit;
            }
        }
    return best;
}

/* The distinct generations that any agent holds, newest first. */
static uint32_t
list_generations(const struct inventory *inventories, uint32_t agent_count,
                 struct cairn_generation *out, struct cairn_roster **tables)
{
    uint32_t count = 0;

    for (uint32_t a = 0; a < agent_count; a++)
        for (uint32_t h = 0; h < inventories[a].holding_count; h++) {
            const struct inventory_holding *holding = &inventories[a].holdings[h];
            uint32_t at = 0;

            while (at < count && cairn_generation_compare(out[at], holding->generation) > 0)
                at++;
            if ((at < count && generation_is(out[at], holding->generation)) ||
                count == CONSIDERED_MAX)
                continue;
            memmove(&out[at + 1], &out[at], (count - at) * sizeof *out);
            memmove(&tables[at + 1], &tables[at], (count - at) * sizeof *tables);
            out[at] = holding->generation;
            tables[at] = holding->table;
            count++;
        }
    return count;
}

static bool
known_committed(const struct inventory *inventories, uint32_t agent_count,
                struct cairn_generation generation)
{
    for (uint32_t a = 0; a < agent_count; a++)
        for (uint32_t h = 0; h < inventories[a].holding_count; h++)
            if (inventories[a].holdings[h].committed &&
                generation_is(inventories[a].holdings[h].generation, generation))
                return true;
    return false;
}

static bool
known_refused(const struct inventory *inventories, uint32_t agent_count, uint64_t combination)
{
    for (uint32_t a = 0; a < agent_count; a++)
        for (uint32_t i = 0; i < inventories[a].refused_count; i++)
            if (inventories[a].refused[i] == combination)
                return true;
    return false;
}

/*
 * True when the parts of all groups together hold every rank of the job, and every tensor evenly,
 * and nobody knows that they do not fit together; else says what is missing.
 */
static bool
covers_job(const struct inventory *inventories, uint32_t agent_count,
           struct cairn_generation generation, const struct cairn_roster *table, struct text *text)
{
    uint64_t ranks = 0, tiling_sum = 0, combination = 0;
    uint32_t world = 0;
    bool tiled;

    for (uint32_t g = 0; g < table->group_count; g++) {
        uint64_t group_sum = 0, group_layout = 0;
        uint32_t group_ranks = 0;

        for (uint32_t a = 0; a < agent_count; a++)
            for (uint32_t h = 0; h < inventories[a].holding_count; h++) {
                const struct inventory_holding *holding = &inventories[a].holdings[h];

                if (!generation_is(holding->generation, generation) ||
                    table->members[holding->member].group != g)
                    continue;
                group_ranks = holding->group_ranks;
                group_sum = holding->tiling_sum;
                group_layout = holding->layout;
                world = holding->world > world ? holding->world : world;
            }
        ranks += group_ranks;
        tiling_sum = cairn_tiling_add(tiling_sum, group_sum);
        combination = tiling_with_group(combination, group_layout);
    }
    if (world != 0 && ranks != world) {
        say(text,
            "epoch %" PRIu64 " step %" PRIu64 ": not restorable: it holds %" PRIu64
            " of the job's %u ranks\n",
            generation.epoch >> EPOCH_CLAIMANT_BITS, generation.step, ranks, world);
        return false;
    }
    tiled = tiling_sum == 0 && (known_committed(inventories, agent_count, generation) ||
                                !known_refused(inventories, agent_count, combination));
    if (!tiled)
        say(text,
            "epoch %" PRIu64 " step %" PRIu64
            ": not restorable: its ranks do not hold every element of every tensor exactly once\n",
            generation.epoch >> EPOCH_CLAIMANT_BITS, generation.step);
    return tiled;
}

/* True when every group has enough; else says which has not. */
static bool
restorable(const struct inventory *inventories, uint32_t agent_count,
           struct cairn_generation generation, const struct cairn_roster *table,
           uint32_t *lost_members, struct text *text)
{
    bool enough = true;

    *lost_members = 0;
    for (uint32_t g = 0; g < table->group_count; g++) {
        const struct cairn_roster_group *group = &table->groups[g];
        uint32_t missing = 0;
        char nodes[160] = "";
        size_t used = 0;

        for (uint32_t p = 0; p < group->count; p++) {
            uint32_t member = group->members[p];

            if (choose_holder(inventories, agent_count, generation, member) != UINT32_MAX)
                continue;
            missing++;
            if (used < sizeof nodes - 16)
                used += (size_t)snprintf(nodes + used, sizeof nodes - used, "%s%u",
                                         used ? ", " : "", table->members[member].agent);
        }
        *lost_members += missing;
        if (missing <= group->parity)
            continue;
        if (enough)
            say(text, "epoch %" PRIu64 " step %" PRIu64 ": not restorable:",
                generation.epoch >> EPOCH_CLAIMANT_BITS, generation.step);
        say(text, " group %u has lost %u of its %u nodes (%s) and survives %u;", g, missing,
            group->count, nodes, group->parity);
        enough = false;
    }
    if (!enough)
        say(text, "\n");
    return enough && covers_job(inventories, agent_count, generation, table, text);
}

static bool
is_excluded(const struct choice *choice, struct cairn_generation generation)
{
    for (uint32_t i = 0; i < choice->excluded_count; i++)
        if (generation_is(choice->excluded[i], generation))
            return true;
    return false;
}

/*
 * True when the generation certainly never was committed: each of its missing parts belongs to an
 * agent that answered and still holds its part of an older generation of the same epoch, so it
 * never said yes to this one: a yes needs the part, and the part stays, unless its record was
 * damaged, and then the agent knows up to which step it may have forgotten.
 */
static bool
never_committed(const struct inventory *inventories, uint32_t agent_count,
                struct cairn_generation generation, const struct cairn_roster *table)
{
    for (uint32_t member = 0; member < table->member_count; member++) {
        uint32_t agent = table->members[member].agent;
        bool older = false, damaged = false;

        if (choose_holder(inventories, agent_count, generation, member) != UINT32_MAX)
            continue;
        for (uint32_t h = 0; agent < agent_count && h < inventories[agent].holding_count; h++) {
            const struct inventory_holding *holding = &inventories[agent].holdings[h];

            if (holding->member != member || holding->generation.epoch != generation.epoch)
                continue;
            older |= holding->generation.step < generation.step;
            damaged |= holding->generation.step == generation.step;
        }
        if (!older || damaged || inventories[agent].active != generation.epoch ||
            generation.step < inventories[agent].forgotten_before)
            return false;
    }
    return !known_committed(inventories, agent_count, generation);
}

/* The first of these generations, all older, of which no part is missing; NULL when there is
 * none. */
static const struct cairn_generation *
find_whole(const struct inventory *inventories, uint32_t agent_count, const struct choice *choice,
           const struct cairn_generation *generations, struct cairn_roster *const *tables,
           uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct text silent = {NULL, 0, 0};
        uint32_t lost_members;

        if (!is_excluded(choice, generations[i]) &&
            restorable(inventories, agent_count, generations[i], tables[i], &lost_members,
                       &silent) &&
            lost_members == 0)
            return &generations[i];
    }
    return NULL;
}

void
choose_generation(const struct inventory *inventories, uint32_t agent_count, struct choice *out,
                  char *text_out, size_t text_bytes)
{
    struct cairn_generation generations[CONSIDERED_MAX + 1];
    struct cairn_roster *tables[CONSIDERED_MAX + 1];
    struct text text = {text_out, text_bytes, 0};
    struct cairn_generation spilled = {0, 0};
    uint32_t count = list_generations(inventories, agent_count, generations, tables);

    text_out[0] = '\0';
    out->err = CAIRN_LOST;
    out->from_files = false;
    out->generation = (struct cairn_generation){0, 0};
    out->table = NULL;
    out->lost_members = 0;
    out->passed_committed = false;
    for (uint32_t a = 0; a < agent_count; a++)
        if (inventories[a].known && cairn_generation_compare(inventories[a].spilled, spilled) > 0)
            spilled = inventories[a].spilled;
    for (uint32_t i = 0; i < count; i++) {
        const struct cairn_generation *whole;
        uint32_t lost_members;

        if (cairn_generation_compare(spilled, generations[i]) > 0)
            break; /* a spilled one is newer */
        if (is_excluded(out, generations[i])) {
            say(&text,
                "epoch %" PRIu64 " step %" PRIu64 ": not restorable: damaged beyond repair\n",
                generations[i].epoch >> EPOCH_CLAIMANT_BITS, generations[i].step);
            continue;
        }
        if (!restorable(inventories, agent_count, generations[i], tables[i], &lost_members,
                        &text)) {
            out->passed_committed |= known_committed(inventories, agent_count, generations[i]);
            continue;
        }
        whole = lost_members == 0 ? NULL
                                  : find_whole(inventories, agent_count, out, generations + i + 1,
                                               tables + i + 1, count - i - 1);
        if (whole && cairn_generation_compare(spilled, *whole) <= 0 &&
            never_committed(inventories, agent_count, generations[i], tables[i])) {
            say(&text,
                "epoch %" PRIu64 " step %" PRIu64
                ": passed over: it was never committed and would have to be rebuilt, step %" PRIu64
                " is whole\n",
                generations[i].epoch >> EPOCH_CLAIMANT_BITS, generations[i].step, whole->step);
            continue;
        }
        out->err = CAIRN_OK;
        out->generation = generations[i];
        out->table = tables[i];
        out->lost_members = lost_members;
        say(&text, "epoch %" PRIu64 " step %" PRIu64 ": taken: the newest that is whole; ",
            generations[i].epoch >> EPOCH_CLAIMANT_BITS, generations[i].step);
        if (lost_members)
            say(&text, "%u of %u members' parts are rebuilt from the others\n", lost_members,
                tables[i]->member_count);
        else
            say(&text, "all %u members' parts are in memory\n", tables[i]->member_count);
        return;
    }
    if (spilled.step == 0) {
        say(&text, count ? "no spilled generation is known\n"
                         : "no agent that answered holds a generation, and none was spilled\n");
        return;
    }
    out->err = CAIRN_OK;
    out->from_files = true;
    out->generation = spilled;
    say(&text, "epoch %" PRIu64 " step %" PRIu64 ": taken from the spilled checkpoint\n",
        spilled.epoch >> EPOCH_CLAIMANT_BITS, spilled.step);
}
