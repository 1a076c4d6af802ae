/* tests/placements/world.c - a schedule: who becomes slow, who dies, which message is late, lost or
 * doubled; see world.h. */
#include "tests/placements/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t
world_ns(const struct world *world)
{
    return (world->tick + 1000) * TICK_MS * UINT64_C(1000000);
}

bool
world_chance(struct world *world, uint32_t per_thousand)
{
    return per_thousand > 0 && random_chance(&world->random, per_thousand);
}

/* ---- messages ---- */

static void
queue(struct world *world, const struct message *message, uint8_t *bytes)
{
    if (world->message_count == MESSAGES_MAX) {
        free(bytes);
        return;
    }
    world->messages[world->message_count] = *message;
    world->messages[world->message_count++].bytes = bytes;
}

/* Takes message->bytes over. */
void
world_send(struct world *world, const struct message *message, bool may_be_lost)
{
    struct message again = *message;

    if (may_be_lost && world_chance(world, 5 * world->trouble)) {
        free(message->bytes);
        return;
    }
    if (may_be_lost && world_chance(world, 5 * world->trouble)) {
        uint8_t *copy = message->bytes ? malloc(message->bytes_len) : NULL;

        if (copy)
            memcpy(copy, message->bytes, message->bytes_len);
        again.due_tick += random_below(&world->random, 30);
        queue(world, &again, copy);
    }
    again = *message;
    if (may_be_lost && world_chance(world, 5 * world->trouble))
        again.due_tick += random_below(&world->random, 30);
    queue(world, &again, message->bytes);
}

/* Those that are due, in the order in which they were sent. */
static void
deliver(struct world *world)
{
    for (uint32_t i = 0; i < world->message_count && !world->is_broken;) {
        struct message message = world->messages[i];

        if (message.due_tick > world->tick) {
            i++;
            continue;
        }
        world->message_count--;
        memmove(&world->messages[i], &world->messages[i + 1],
                (world->message_count - i) * sizeof *world->messages);
        if (message.kind == MESSAGE_OFFER)
            rank_take_offer(world, &message);
        else
            agent_take(world, &message);
        free(message.bytes);
    }
}

/* ---- devices ---- */

static void
devices_tick(struct world *world)
{
    static const double rates[] = {2, 3, 4};

    for (uint32_t r = 0; r < RANKS; r++) {
        world->rate_ticks[r]++;
        world->spurious_ticks[r] -= world->spurious_ticks[r] > 0;
        if (world->rate[r] > 1 && world_chance(world, world->launch.is_there ? 2 : 6)) {
            world->rate[r] = 1;
            world->rate_ticks[r] = 0;
        } else if (world->rate[r] <= 1 && world_chance(world, launch_is_reshaped(world) ? 20 : 4)) {
            world->rate[r] = rates[random_below(&world->random, 3)];
            world->rate_ticks[r] = 0;
        }
        if (world->spurious_ticks[r] == 0 && world_chance(world, world->trouble / 4))
            world->spurious_ticks[r] = 2 + (uint32_t)random_below(&world->random, 40);
    }
}

/* ---- schedules ---- */

static void
set_up(struct world *world, uint64_t seed, bool prints)
{
    struct random *random = &world->random;

    memset(world, 0, sizeof *world);
    random->state = mix64(seed + 1);
    world->prints = prints;
    world->is_quiet = random_chance(random, 50);
    world->trouble = world->is_quiet ? 0 : 2 + (uint32_t)random_below(random, 12);
    world->several = random_chance(random, 300) && !world->is_quiet;
    world->needs_approval = random_chance(random, 400);
    world->lies = random_chance(random, 200);
    world->changes_per_day =
        random_chance(random, 500) ? 1 + (uint32_t)random_below(random, 4) : 99;
    world->standstill_per_day_ns = (random_chance(random, 500) ? 3 : 60) * UINT64_C(1000000000);
    world->end_tick = 300 + (uint32_t)random_below(random, 300);
    world->launch.is_there = random_chance(random, 300);
    world->launch.is_divided = random_chance(random, 250);
    if (world->launch.is_there) /* slow ranks must cost a relaunch first */
        world->end_tick += 300;
    if (world->launch.is_there && world->launch.is_divided) { /* and that needs time to age */
        world->end_tick += 1500;
        world->trouble = 1;
    }
    for (uint32_t r = 0; r < RANKS; r++)
        world->rate[r] = 1;
    if (!world->is_quiet && random_chance(random, 120)) {
        world->ranks[random_below(random, RANKS)].is_deaf = true;
        world->trouble = 2; /* its offers need time to age */
    }
    for (uint32_t i = 0; i < RECENT; i++)
        world->recent[i] = 80;
    for (uint32_t i = 0; i < RANKS; i++)
        agent_start(world, i);
    job_start(world);
}

static void
print_tick(const struct world *world)
{
    const struct cairn_session_shares *now = &world->ranks[0].machine.now;
    char text[PROPOSAL_TEXT_BYTES];

    printf("%4llu step %5llu  rates %g %g %g %g  %s%s  runs %llu: %s\n",
           (unsigned long long)world->tick, (unsigned long long)world->step, world->rate[0],
           world->rate[1], world->rate[2], world->rate[3], world->down_ticks ? "down " : "",
           world->moves ? "moves" : "", (unsigned long long)now->number,
           proposal_describe(now, text));
    for (uint32_t r = 0; r < RANKS; r++)
        if (world->verdicts[r].is_open || world->verdicts[r].unsure_ns)
            printf("       rank %u: called %g times slow%s%s\n", r,
                   world->verdicts[r].is_open ? world->verdicts[r].rate : 1.0,
                   world->verdicts[r].is_confirmed ? ", confirmed" : "",
                   world->verdicts[r].unsure_ns ? ", unsure" : "");
    for (uint32_t i = 0; i < RANKS; i++) {
        const struct agent *agent = &world->agents[i];
        const struct proposal_book *book = agent->analyst ? analyst_book(agent->analyst) : NULL;

        if (book && agent->analyses)
            printf("       agent %u: version %llu offer %llu (%s) for rank %llu, waiting %llu, %u "
                   "away\n",
                   i, (unsigned long long)book->version,
                   (unsigned long long)book->offer.placement.number,
                   proposal_describe(&book->offer.placement, text),
                   book->offer.slow.count ? (unsigned long long)book->offer.slow.ranks[0] : 99,
                   (unsigned long long)book->waiting.placement.number, book->away_count);
    }
}

bool
world_run(struct world *world, uint64_t seed, bool prints)
{
    set_up(world, seed, prints);
    for (; world->tick < world->end_tick && !world->is_broken; world->tick++) {
        devices_tick(world);
        deliver(world);
        agents_tick(world);
        operators_tick(world);
        job_tick(world);
        agents_turn(world);
        judge_tick(world);
        if (prints)
            print_tick(world);
    }
    for (uint32_t i = 0; i < world->message_count; i++)
        free(world->messages[i].bytes);
    for (uint32_t i = 0; i < RANKS; i++) {
        analyst_destroy(world->agents[i].analyst);
        free(world->agents[i].plans_problem.devices);
    }
    return !world->is_broken;
}
