/* agent/core/restore/choose.c - see choose.h. */
#include "agent/core/restore/choose.h"

#include "agent/core/epoch/record.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { CONSIDERED_MAX = 32, LOST_NAMED_MAX = 16 };

/* A generation that some agent holds a part of. */
struct candidate {
    struct cairn_generation_id generation;
    struct cairn_roster *roster; /* borrowed from an inventory */
};

struct listing {
    const struct inventory *inventories;
    uint32_t agent_count;
    struct candidate list[CONSIDERED_MAX + 1]; /* newest first */
    uint32_t count;
    char *text;
    size_t text_bytes;
};

void
text_add(char *text, size_t text_bytes, const char *format, ...)
{
    size_t used = strlen(text);
    __builtin_va_list arguments;

    __builtin_va_start(arguments, format);
    vsnprintf(text + used, text_bytes - used, format, arguments);
    __builtin_va_end(arguments);
}

#define explain(listing, ...) text_add((listing)->text, (listing)->text_bytes, __VA_ARGS__)

static void
name_generation(struct listing *listing, struct cairn_generation_id generation)
{
    explain(listing, "epoch %" PRIu64 " step %" PRIu64 ": ",
            generation.epoch >> EPOCH_CLAIMANT_BITS, generation.step);
}

uint32_t
choose_holder(const struct inventory *inventories, uint32_t agent_count,
              struct cairn_generation_id generation, uint32_t member)
{
    uint32_t best = UINT32_MAX, best_merit = 0;

    for (uint32_t a = 0; a < agent_count; a++) {
        const struct inventory_part *part = inventory_find(&inventories[a], generation, member);
        uint32_t merit;

        if (!part || part->bad_count > BAD_BLOCKS_MAX)
            continue;
        merit =
            (part->roster->members[member].agent == a ? 2u : 1u) + (part->bad_count == 0 ? 2u : 0u);
        if (merit > best_merit) {
            best = a;
            best_merit = merit;
        }
    }
    return best;
}

struct cairn_generation_id
choose_spilled(const struct inventory *inventories, uint32_t agent_count)
{
    struct cairn_generation_id newest = {0};

    for (uint32_t a = 0; a < agent_count; a++)
        if (inventories[a].known && cairn_generation_later(inventories[a].self.spilled, newest))
            newest = inventories[a].self.spilled;
    return newest;
}

static void
list_generations(struct listing *listing)
{
    for (uint32_t a = 0; a < listing->agent_count; a++)
        for (uint32_t i = 0; i < listing->inventories[a].part_count; i++) {
            const struct inventory_part *part = &listing->inventories[a].parts[i];
            uint32_t at = 0;

            while (at < listing->count &&
                   cairn_generation_later(listing->list[at].generation, part->generation))
                at++;
            if (at == CONSIDERED_MAX ||
                (at < listing->count &&
                 cairn_generation_is(listing->list[at].generation, part->generation)))
                continue;
            memmove(&listing->list[at + 1], &listing->list[at],
                    (listing->count - at) * sizeof listing->list[0]);
            listing->list[at] = (struct candidate){part->generation, part->roster};
            listing->count += listing->count < CONSIDERED_MAX;
        }
}

static bool
is_lost(const struct listing *listing, const struct candidate *candidate, uint32_t member)
{
    return choose_holder(listing->inventories, listing->agent_count, candidate->generation,
                         member) == UINT32_MAX;
}

/* Names the nodes whose parts are lost: of one group, or of all (UINT32_MAX). */
static void
explain_lost(struct listing *listing, const struct candidate *candidate, uint32_t group)
{
    const struct cairn_roster *roster = candidate->roster;
    uint32_t named = 0;

    for (uint32_t m = 0; m < roster->member_count && named <= LOST_NAMED_MAX; m++)
        if ((group == UINT32_MAX || roster->members[m].group == group) &&
            is_lost(listing, candidate, m) && ++named <= LOST_NAMED_MAX)
            explain(listing, "%s%u", named > 1 ? ", " : "", roster->members[m].agent);
    explain(listing, "%s)", named > LOST_NAMED_MAX ? ", ..." : "");
}

/* Counts the lost members. False if a group lacks parts; explains which. */
static bool
is_restorable(struct listing *listing, const struct candidate *candidate, uint32_t *lost_members)
{
    const struct cairn_roster *roster = candidate->roster;
    bool enough = true;

    *lost_members = 0;
    for (uint32_t g = 0; g < roster->group_count; g++) {
        const struct cairn_roster_group *group = &roster->groups[g];
        uint32_t missing = 0;

        for (uint32_t p = 0; p < group->count; p++)
            missing += is_lost(listing, candidate, group->members[p]);
        *lost_members += missing;
        if (missing <= group->parity)
            continue;
        if (enough) {
            name_generation(listing, candidate->generation);
            explain(listing, "not restorable:");
        }
        explain(listing, "%s group %u has lost %u of its %u nodes (", enough ? "" : ";", g, missing,
                group->count);
        explain_lost(listing, candidate, g);
        explain(listing, " and survives %u", group->parity);
        enough = false;
    }
    if (!enough)
        explain(listing, "\n");
    return enough;
}

/*
 * True if it is proved that the generation was not committed: a commit needs a complete part of
 * every member, and a member that is still in the generation's epoch, has forgotten nothing and
 * knows of no later commit would still have its part (R2, R3).
 */
static bool
never_committed(const struct listing *listing, const struct candidate *candidate)
{
    for (uint32_t m = 0; m < candidate->roster->member_count; m++) {
        uint32_t agent = candidate->roster->members[m].agent;
        const struct inventory *inventory;

        if (agent >= listing->agent_count)
            continue;
        inventory = &listing->inventories[agent];
        if (inventory->known && !inventory->self.blank &&
            inventory->self.active == candidate->generation.epoch &&
            cairn_generation_later(candidate->generation, inventory->self.ready) &&
            !inventory_find(inventory, candidate->generation, m))
            return true;
    }
    return false;
}

uint64_t
choose_intact(const struct inventory *inventories, uint32_t agent_count,
              struct cairn_generation_id generation)
{
    uint64_t intact = 0;

    for (uint32_t a = 0; a < agent_count; a++)
        for (uint32_t i = 0; i < inventories[a].part_count; i++)
            if (cairn_generation_is(inventories[a].parts[i].generation, generation))
                intact += UINT32_MAX - min_u64(inventories[a].parts[i].bad_count, UINT32_MAX - 1);
    return intact;
}

static bool
is_excluded(const struct listing *listing, const struct choice *choice,
            struct cairn_generation_id generation)
{
    uint64_t intact = choose_intact(listing->inventories, listing->agent_count, generation);

    for (uint32_t i = 0; i < choice->excluded_count; i++)
        if (cairn_generation_is(choice->excluded[i].generation, generation) &&
            intact <= choice->excluded[i].intact)
            return true;
    return false;
}

/* Whether some agent knows that a generation later than the choice was committed. */
static bool
passes_known_commit(const struct listing *listing, const struct choice *choice)
{
    for (uint32_t a = 0; a < listing->agent_count; a++) {
        struct cairn_generation_id ready = listing->inventories[a].self.ready;

        if (listing->inventories[a].known &&
            (choice->from_files ? cairn_generation_is_older(choice->generation, ready)
                                : cairn_generation_later(ready, choice->generation)))
            return true;
    }
    return false;
}

void
choice_clear(struct choice *choice)
{
    cairn_roster_drop(choice->roster);
    choice->roster = NULL;
    choice->err = CAIRN_LOST;
    choice->from_files = false;
    choice->generation = (struct cairn_generation_id){0};
    choice->lost_members = 0;
    choice->goes_back = false;
}

/* Chooses the candidate if it can be restored; else explains why it cannot, and is false. */
static bool
take_candidate(struct listing *listing, const struct candidate *candidate, const char *as,
               struct choice *out)
{
    uint32_t lost_members;

    if (is_excluded(listing, out, candidate->generation)) {
        name_generation(listing, candidate->generation);
        explain(listing, "not restorable: damaged beyond repair\n");
        return false;
    }
    if (!is_restorable(listing, candidate, &lost_members))
        return false;
    out->err = CAIRN_OK;
    out->generation = candidate->generation;
    out->roster = cairn_roster_hold(candidate->roster);
    out->lost_members = lost_members;
    name_generation(listing, candidate->generation);
    if (lost_members) {
        explain(listing, "chosen as %s; rebuild the parts of %u of %u members (node%s ", as,
                lost_members, out->roster->member_count, lost_members == 1 ? "" : "s");
        explain_lost(listing, candidate, UINT32_MAX);
        explain(listing, "\n");
    } else {
        explain(listing, "chosen as %s; all %u members' parts are in memory\n", as,
                out->roster->member_count);
    }
    return true;
}

static void
choose_files(struct listing *listing, struct cairn_generation_id spilled, struct choice *out)
{
    out->err = CAIRN_OK;
    out->from_files = true;
    out->generation = spilled;
    name_generation(listing, spilled);
    explain(listing, "chosen from the spilled checkpoint\n");
}

static bool
is_wanted(struct cairn_generation_id wanted, struct cairn_generation_id generation)
{
    return wanted.step == 0 || (generation.step == wanted.step &&
                                generation.epoch >> EPOCH_CLAIMANT_BITS == wanted.epoch);
}

static void
choose_from_memory(struct listing *listing, struct cairn_generation_id wanted,
                   struct cairn_generation_id spilled, struct choice *out)
{
    bool newest = wanted.step == 0;

    for (uint32_t i = 0; i < listing->count && out->err; i++) {
        const struct candidate *candidate = &listing->list[i];

        if (newest && cairn_generation_is_older(candidate->generation, spilled))
            return;
        if (is_wanted(wanted, candidate->generation) &&
            !take_candidate(listing, candidate, newest ? "the newest" : "the wanted one", out))
            out->goes_back |= newest && !never_committed(listing, candidate);
    }
}

void
choose_generation(const struct inventory *inventories, uint32_t agent_count,
                  struct cairn_generation_id wanted, struct cairn_generation_id spilled,
                  struct choice *out, char *text, size_t text_bytes)
{
    struct listing listing = {.inventories = inventories,
                              .agent_count = agent_count,
                              .text = text,
                              .text_bytes = text_bytes};

    text[0] = '\0';
    choice_clear(out);
    list_generations(&listing);
    choose_from_memory(&listing, wanted, spilled, out);
    if (out->err && spilled.step != 0)
        choose_files(&listing, spilled, out);
    if (out->err && wanted.step != 0)
        explain(&listing,
                "epoch %" PRIu64 " step %" PRIu64 ": not restorable from memory, and spill_dir "
                "has no committed files for this step\n",
                wanted.epoch, wanted.step);
    else if (out->err && listing.count > 0)
        explain(&listing, "no spilled generation is known\n");
    else if (out->err)
        explain(&listing, "no agent that answered holds a generation, and none was spilled\n");
    out->goes_back |= passes_known_commit(&listing, out);
}
