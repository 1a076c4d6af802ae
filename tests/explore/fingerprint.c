/*
 * tests/explore/fingerprint.c - a hash of everything in a core that can change what it does next.
 *
 * Left out: times, the numbers of requests and of heartbeats, the order of rumors, texts, and
 * counters that only make names. So states that differ in these alone are visited once. How long
 * something has lasted is not in it either: world_hash adds how many ticks have passed without any
 * other event.
 */
#include "tests/explore/explore.h"

#include "agent/core/core_state.h"

#include <stdio.h>

static inline void
put(uint64_t *hash, uint64_t value)
{
    *hash = hash_mix(*hash, value);
}

static void
put_words(uint64_t *hash, const uint64_t *words, uint64_t count)
{
    put(hash, words ? count : UINT64_MAX);
    for (uint64_t i = 0; words && i < count; i++)
        put(hash, words[i]);
}

static void
put_set(uint64_t *hash, const uint64_t *set, uint32_t count)
{
    put_words(hash, set, cairn_bitset_words(count));
}

static void
put_generation(uint64_t *hash, struct cairn_generation_id generation)
{
    put(hash, generation.epoch);
    put(hash, generation.run);
    put(hash, generation.step);
}

static void
put_roster(uint64_t *hash, const struct cairn_roster *roster)
{
    put(hash, roster ? roster->member_count : 0);
    for (uint32_t m = 0; roster && m < roster->member_count; m++)
        put(hash, roster->members[m].agent | (uint64_t)roster->members[m].group << 32 |
                      (uint64_t)roster->members[m].position << 48);
}

static void
put_decision(uint64_t *hash, const struct cairn_decision *decision)
{
    put(hash, decision->serial);
    put(hash, decision->run);
    put(hash, decision->next);
    put_generation(hash, decision->committed);
}

static void
put_peers(uint64_t *hash, const struct cairn_core *core)
{
    for (uint32_t a = 0; a < core->options.agent_count; a++) {
        put(hash, core->peers.list[a].incarnation);
        put(hash, (uint64_t)peers_alive(&core->env, a) |
                      (uint64_t)peers_maybe_alive(&core->env, a) << 1 |
                      (uint64_t)peers_given_up(&core->env, a) << 2);
        put(hash, core->peers.epochs[a]);
    }
    put_set(hash, core->peers.up, core->options.agent_count);
}

static void
put_record(uint64_t *hash, const struct record *record)
{
    put(hash, record->epoch);
    if (record->epoch == 0)
        return;
    put(hash, record->restart_epoch);
    put_generation(hash, record->ready);
    put(hash, record->ready_from_files);
    put_roster(hash, record->ready_roster);
    for (uint32_t m = 0; record->ready_roster && m < record->ready_roster->member_count; m++)
        put(hash, record->holders[m]);
    put_roster(hash, record->roster);
    for (uint32_t a = 0; a < record->agent_count; a++) {
        put(hash, record->seen[a].incarnation);
        put(hash, record->seen[a].version);
    }
}

static void
put_membership(uint64_t *hash, const struct membership *membership)
{
    put(hash, membership->promised);
    put_record(hash, &membership->record);
    put(hash, membership->self_member);
    put(hash, (uint64_t)membership->blank | (uint64_t)membership->knows << 1);
    put_roster(hash, membership->promised_roster);
    put_generation(hash, membership->committed);
}

static void
put_flow(uint64_t *hash, const struct flow *flow)
{
    put(hash, flow->next);
    put(hash, flow->acked);
    put(hash, flow->until);
}

static void
put_capture(uint64_t *hash, const struct part *part)
{
    const struct capture *capture = &part->capture;

    put(hash, capture->blocks);
    put_set(hash, capture->captured, (uint32_t)capture->blocks);
    put_words(hash, capture->crcs, capture->blocks);
    put(hash, capture->done);
    for (uint32_t kind = 0; kind < FLOW_KINDS; kind++)
        for (uint32_t p = 0; p < part->geometry.n; p++)
            put_flow(hash, &part->flows[kind][p]);
}

static void
put_part(uint64_t *hash, const struct part *part)
{
    const struct geometry_of {
        uint32_t n, m;
    } g = {part->geometry.n, part->geometry.m};

    put(hash, part->state);
    if (part->state == CAIRN_PART_FREE)
        return;
    put_generation(hash, part->generation);
    put(hash, part->member);
    put_roster(hash, part->roster);
    put(hash, (uint64_t)part->lengths_known | (uint64_t)part->spilling << 1 |
                  (uint64_t)part->working << 2 | (uint64_t)(part->request != 0) << 3);
    for (uint32_t p = 0; p < g.n; p++) {
        const struct cairn_shard_seal *seal = &part->seals[p];

        put(hash, seal->received);
        put(hash, seal->whole);
        if (seal->whole)
            put_words(hash, seal->crcs, seal->shard_blocks);
    }
    for (uint32_t slot = 0; slot < g.m; slot++)
        put_words(hash, part->lengths_known ? part->parity_crcs[slot] : NULL,
                  part->lengths_known ? part_slot_blocks(part, slot) : 0);
    put_capture(hash, part);
    for (uint32_t kind = 0; kind < FLOW_SEAL; kind++)
        put_words(hash, part->folding.taken[kind], g.n);
    put_words(hash, part->folding.chain, g.n);
    put(hash, part->folding.touched);
    put_words(hash, part->folding.until, g.n);
    put(hash, part->folding.corrupt_in_row);
    put(hash, part->mending.missing ? part->mending.missing[0] : UINT64_MAX);
    put(hash, part->mending.missing_count);
    put(hash, part->mending.memory_ready);
    put(hash, part->checked.bad_count);
    put(hash, part->checked.record_mended);
    put(hash, part->checked.request != 0);
}

static void
put_run(uint64_t *hash, const struct run *run)
{
    const struct trainers *trainers = &run->trainers;

    put(hash, trainers->ranks | (uint64_t)trainers->world << 32);
    put(hash, trainers->blocks);
    put(hash, trainers->launch);
    put(hash, trainers->registration);
    put_decision(hash, &run->decision);
    put(hash, run->refusal[0] != '\0');
    put(hash, run->begun);
    put(hash, run->audited);
    put_generation(hash, run->aborted);
    put(hash, run->aborted.step ? run->reason : 0);
    put(hash, run->told);
    put(hash, run->asked);
    for (uint32_t r = 0; r < trainers->ranks; r++) {
        put(hash, run->steps[r].step);
        put(hash, run->steps[r].before);
        put(hash, run->steps[r].waiting);
    }
}

static void
put_report(uint64_t *hash, const struct cairn_message_report *report)
{
    put(hash, report->agent | (uint64_t)report->ranks << 32);
    put(hash, report->world);
    put(hash, report->launch);
    put(hash, report->begun);
    put(hash, report->incarnation);
    put(hash, report->registration);
    put_generation(hash, report->captured);
    put_generation(hash, report->complete0);
    put_generation(hash, report->complete1);
    put_generation(hash, report->aborted);
    put(hash, report->asked);
    put_generation(hash, report->stalled);
    put(hash, report->cause | (uint64_t)report->for_agent << 32);
}

static void
put_reports(uint64_t *hash, const struct reports *reports)
{
    put(hash, reports->count);
    for (uint32_t a = 0; a < reports->count; a++) {
        put(hash, reports->heard_ns[a] != 0);
        put_report(hash, &reports->list[a]);
    }
}

static void
put_leader(uint64_t *hash, const struct leader *leader)
{
    put_decision(hash, &leader->decision);
    put(hash, audit_under_way(&leader->audit));
    if (audit_under_way(&leader->audit)) {
        put(hash, leader->audit.run);
        put(hash, leader->audit.tiling.asks);
        put(hash, leader->audit.tiling.prefix);
        put_set(hash, leader->audit.answered, leader->audit.count);
    }
    put(hash, (uint64_t)leader->assembled | (uint64_t)leader->wants_join << 2 |
                  (uint64_t)(leader->refusal[0] != '\0') << 3);
    put(hash, leader->due.begun);
    put(hash, leader->due.passed);
    put(hash, leader->due.asked);
    put(hash, leader->due.margin | (uint64_t)leader->due.aborts_in_row << 32);
}

static void
put_repair(uint64_t *hash, const struct repair *repair)
{
    put(hash, repair->active);
    for (uint32_t i = 0; i < REPAIR_ITEMS_MAX; i++)
        put(hash, repair->decoding[i]);
    if (!repair->active)
        return;
    put(hash, repair->coordinator);
    put(hash, repair->attempt);
    put_generation(hash, repair->generation);
    put(hash, repair->failed);
    for (uint32_t m = 0; repair->plan.roster && m < repair->plan.roster->member_count; m++)
        put(hash, repair->plan.holders[m] | (uint64_t)repair->plan.targets[m] << 32);
    for (uint32_t w = 0; w < repair->worker_count; w++) {
        const struct repair_worker *worker = &repair->workers[w];

        put(hash, worker->part);
        put(hash, worker->schedule.stripe);
        put(hash, worker->schedule.line);
    }
    for (uint32_t i = 0; i < REPAIR_ITEMS_MAX; i++) {
        const struct repair_item *item = &repair->items[i];

        put(hash, item->used);
        if (!item->used)
            continue;
        put(hash, item->worker | (uint64_t)item->plan.stripe << 32);
        put(hash, item->plan.line_first);
        put(hash, item->plan.rebuild);
        put(hash, item->plan.sources);
        put(hash, item->needed);
        put(hash, item->unwritten);
        put(hash, item->decoded);
        put(hash, item->refused);
    }
}

static void
put_restore(uint64_t *hash, const struct restore *restore, uint32_t n)
{
    put(hash, restore->state);
    if (restore->state == RESTORE_IDLE)
        return;
    put(hash, restore->request.op.operation | (uint64_t)restore->request.by_itself << 32 |
                  (uint64_t)restore->request.joining << 33);
    put(hash, restore->request.op.request);
    put(hash, restore->attempts);
    for (uint32_t a = 0; a < n; a++) {
        const struct party *party = &restore->parties[a];
        const struct inventory *inventory = &restore->inventories[a];

        put(hash,
            (uint64_t)party->asked | (uint64_t)party->answered << 1 | (uint64_t)party->slow << 2);
        put(hash, inventory->known);
        if (!inventory->known)
            continue;
        put(hash, inventory->version);
        put(hash, inventory->self.incarnation);
        put(hash, inventory->self.promised);
        put(hash, inventory->self.active);
        put(hash, (uint64_t)inventory->self.blank | (uint64_t)inventory->self.knows << 1);
        put_generation(hash, inventory->self.ready);
        put(hash, inventory->self.ranks);
        for (uint32_t i = 0; i < inventory->part_count; i++) {
            put_generation(hash, inventory->parts[i].generation);
            put(hash, inventory->parts[i].member);
            put(hash, inventory->parts[i].bad_count);
        }
    }
    put(hash, (uint64_t)restore->choice.err);
    put_generation(hash, restore->choice.generation);
    put(hash, restore->choice.lost_members | (uint64_t)restore->choice.goes_back << 32 |
                  (uint64_t)restore->choice.excluded_count << 40);
    put_set(hash, restore->no_room, n);
    for (uint32_t m = 0; restore->plan.roster && m < restore->plan.roster->member_count; m++)
        put(hash, restore->plan.holders[m] | (uint64_t)restore->plan.targets[m] << 32);
    put(hash, restore->claimed);
}

uint64_t
core_fingerprint(const struct cairn_core *core)
{
    uint32_t n = core->options.agent_count;
    uint64_t hash = core->options.incarnation;

    put_peers(&hash, core);
    put_membership(&hash, &core->membership);
    put(&hash, core->parts.version);
    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++)
        put_part(&hash, &core->parts.list[i]);
    put_run(&hash, &core->run);
    put_report(&hash, &core->run.reported);
    put_reports(&hash, &core->reports);
    put_leader(&hash, &core->leader);
    put_repair(&hash, &core->repair);
    put(&hash, core->answering.attempt);
    put(&hash, core->answering.coordinator | (uint64_t)core->parts.pinned << 32);
    for (uint32_t a = 0; a < n; a++)
        put(&hash, core->answering.askers[a].attempt != 0);
    put_generation(&hash, core->parts.pinned_generation);
    put_restore(&hash, &core->restore, n);
    put(&hash, core->watch.reason | (uint64_t)core->watch.tries << 32);
    put(&hash, core->announced);
    return hash;
}

void
core_describe(const struct cairn_core *core, char *text, size_t bytes)
{
    const struct run *run = &core->run;

    (void)snprintf(text, bytes,
                   "decision %llx audited %llx%s%s, waits %u at %llu, pins %llu, reports %llu, "
                   "leads %llx%s%s next %llu, restore %u, watch %u",
                   (unsigned long long)run->decision.serial, (unsigned long long)run->audited,
                   run->aborted.step ? ", gave up" : "", run->refusal[0] ? ", refused" : "",
                   run->steps[0].waiting, (unsigned long long)run->steps[0].step,
                   core->parts.pinned ? (unsigned long long)core->parts.pinned_generation.step : 0,
                   (unsigned long long)run->reported.complete0.step,
                   (unsigned long long)core->leader.decision.serial,
                   core->leader.assembled ? ", assembled" : "",
                   audit_under_way(&core->leader.audit) ? ", auditing" : "",
                   (unsigned long long)core->leader.decision.next, (uint32_t)core->restore.state,
                   (uint32_t)core->watch.reason);
}
