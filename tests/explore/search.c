/*
 * tests/explore/search.c - the search.
 *
 * Every state has a default event (world.c). A schedule is the default one but for deviations: at
 * most `bound` times another event is taken (Emmi, Qadeer and Rakamaric, Delay-bounded scheduling,
 * 2011), and wherever a fault makes sense it happens, which costs nothing. Level after level the
 * bound grows. A level in which the bound cut nothing is the whole space: then every interleaving
 * has been seen.
 *
 * Visited states. A state is a 64-bit hash (fingerprint.c). With it the deviations that were left
 * are kept, and a state is entered again only with more of them. Two states with one hash would
 * hide one of them: with 10^7 states the probability of that is 10^-4.
 *
 * What is left out, and why that is sound:
 *   - Another event is taken before the default one only if both are of the same agent, and the
 *     default one may be stalled, that is wait until nothing else can happen or until it is chosen.
 *     Events of two agents commute: each changes one agent's state, takes from that agent's
 *     channels and appends to others'. An event that another agent still has to cause can come
 *     first because the default one may be stalled. So every order that an agent can tell apart is
 *     reached, if with more deviations.
 *   - A fault of an agent is tried right before events of that agent and before deliveries of what
 *     it sent: in between it commutes, too. What a crash takes is the agent's state and its
 *     channels.
 *   - A tick may come before any default event.
 *
 * What is not explored: heartbeats that are slower than one interval (a pause and a split stand for
 * them), clocks that differ, and the time since when a state lasts beyond the number of ticks since
 * the last fault.
 */
#include "tests/explore/explore.h"

#include "base/bitset.h"

#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { PATH_MAX_EVENTS = 8192, IMAGES_MAX = 32 };

/* Of an entry in the table of states: the deviations that were left. */
#define BOUND_MASK UINT64_C(15)

struct image {
    size_t bytes[AGENTS_MAX + 1];
    size_t room;
    uint8_t *contents;
};

struct step {
    struct event event, next;
    bool chosen;
};

static struct step path[PATH_MAX_EVENTS], failed_path[PATH_MAX_EVENTS];
static uint32_t path_len, failed_len;
static struct setup failed_setup;
static uint64_t *table, table_mask, table_count;
static const struct search_limits *limits;
static struct search_result *result;
static double began;
static uint32_t looks; /* at the clock */
static bool stopped, cut;
static jmp_buf escape;
static bool escape_set;
static struct image root, images[IMAGES_MAX]; /* by depth of the recursion */

static double
seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

void
explore_abort(void)
{
    fail("an assertion failed");
    if (escape_set)
        longjmp(escape, 1);
    _exit(1);
}

static void
on_signal(int number)
{
    fail("the core reads or writes outside of its memory");
    longjmp(escape, 1);
}

/* ---- images ---- */

static void
image_take(struct image *image)
{
    uint32_t n = world->setup.agents;
    size_t total = 0, at = 0;

    for (uint32_t i = 0; i <= n; i++)
        total += image->bytes[i] = arena_used(arena_number(i));
    if (image->room < total) {
        if (image->contents)
            munmap(image->contents, image->room);
        image->room = total + total / 4;
        image->contents =
            mmap(NULL, image->room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (image->contents == MAP_FAILED) {
            fprintf(stderr, "explore: no memory\n");
            _exit(1);
        }
    }
    for (uint32_t i = 0; i <= n; i++) {
        arena_save(arena_number(i), image->contents + at);
        at += image->bytes[i];
    }
}

static void
image_return(const struct image *image, uint32_t changed)
{
    uint32_t n = world->setup.agents;
    size_t at = 0;

    for (uint32_t i = 0; i <= n; i++) {
        if (i == n || (changed >> i & 1))
            arena_restore(arena_number(i), image->contents + at, image->bytes[i]);
        at += image->bytes[i];
    }
}

/* ---- visited states ---- */

static void
table_make(uint64_t entries)
{
    table = mmap(NULL, entries * sizeof *table, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                 -1, 0);
    if (table == MAP_FAILED) {
        fprintf(stderr, "explore: no memory for %llu states\n", (unsigned long long)entries);
        _exit(1);
    }
    table_mask = entries - 1;
}

static void
table_empty(void)
{
    if (table)
        munmap(table, (table_mask + 1) * sizeof *table);
    table_make(1 << 16);
    table_count = 0;
}

static uint64_t
table_place(uint64_t name)
{
    uint64_t at = hash_mix(name, 7) & table_mask;

    while (table[at] != 0 && (table[at] & ~BOUND_MASK) != name)
        at = (at + 1) & table_mask;
    return at;
}

static void
table_grow(void)
{
    uint64_t *old = table, old_mask = table_mask;

    table_make(2 * (old_mask + 1));
    for (uint64_t i = 0; i <= old_mask; i++)
        if (old[i] != 0)
            table[table_place(old[i] & ~BOUND_MASK)] = old[i];
    munmap(old, (old_mask + 1) * sizeof *old);
}

/* True if the state was entered with as many deviations left. */
static bool
visited(uint64_t hash, uint32_t left)
{
    uint64_t name = (hash | UINT64_C(1) << 63) & ~BOUND_MASK, at = table_place(name);

    if (table[at] != 0 && (table[at] & BOUND_MASK) >= left)
        return true;
    if (table[at] == 0) {
        table_count++;
        result->states++;
    }
    table[at] = name | left;
    if (table_count > table_mask / 4 * 3)
        table_grow();
    return false;
}

/* ---- one step ---- */

static void
apply(struct event event, struct event next, bool chosen)
{
    if (path_len == PATH_MAX_EVENTS) {
        fail("the schedule has no end");
        return;
    }
    path[path_len++] = (struct step){event, next, chosen};
    if (path_len > result->depth_max)
        result->depth_max = path_len;
    result->events++;
    escape_set = true;
    if (_setjmp(escape) == 0)
        world_apply(event, next);
    if (failed()) {
        memcpy(failed_path, path, path_len * sizeof *path);
        failed_len = path_len;
        result->found = true;
    }
}

static bool
is_at_limit(void)
{
    if ((++looks & 255) == 0 && seconds() - began > limits->seconds)
        stopped = true;
    if (result->states >= limits->states)
        stopped = true;
    return stopped || failed();
}

/* The events that may be taken instead of the default one. */
static uint32_t
deviations(const struct event *events, uint32_t count, struct event *out)
{
    uint32_t total = 0, agent = event_agent(events[0]), source = event_source(events[0]);

    for (uint32_t i = 1; i < count; i++) {
        bool same = agent != UINT32_MAX && event_agent(events[i]) == agent;
        bool soon = events[0].kind == E_TICK || events[i].kind == E_TICK;

        if (same || soon)
            out[total++] = events[i];
    }
    if (source < SOURCES && !cairn_bitset_has(world->stalled, source))
        out[total++] = (struct event){.kind = E_STALL, .a = (uint8_t)source};
    return total;
}

static void
explore(uint32_t left, uint32_t depth)
{
    struct image *image = &images[depth];
    uint32_t outside = dirty;

    for (;;) {
        struct event events[EVENTS_MAX], branches[2 * EVENTS_MAX + 1], next;
        uint32_t count = world_events(events), faults, total;
        bool due;

        next = events[0];
        if (is_at_limit() || depth + 1 == IMAGES_MAX || world_is_over(next) ||
            visited(world_hash(), left))
            return;
        due = world_wants_fault(next);
        faults = world_faults(next, due, branches);
        total = faults;
        if (due && faults > 0)
            total--; /* the last one is taken in place of the default event */
        else if (left > 0)
            total += deviations(events, count, branches + faults);
        else
            cut = true;
        if (total > 0) {
            image_take(image);
            outside = dirty;
        }
        for (uint32_t i = 0; i < total; i++) {
            uint32_t len = path_len;

            dirty = 0;
            result->branches++;
            apply(branches[i], next, true);
            if (!failed())
                explore(i < faults ? left : left - 1, depth + 1);
            if (failed() || stopped)
                return;
            path_len = len;
            image_return(image, dirty);
        }
        if (total > 0)
            dirty = outside;
        if (due && faults > 0)
            apply(branches[faults - 1], next, true);
        else
            apply(next, next, false);
    }
}

/* ---- drawn schedules ---- */

static uint64_t draw_state;

static uint32_t
draw(uint32_t below)
{
    draw_state = draw_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((draw_state >> 33) % below);
}

static void
wander(void)
{
    uint32_t often = 4 + draw(40);

    for (;;) {
        struct event events[EVENTS_MAX], branches[2 * EVENTS_MAX + 1], next;
        uint32_t count = world_events(events), faults, total;
        bool due;

        next = events[0];
        if (is_at_limit() || world_is_over(next))
            return;
        (void)visited(world_hash(), 0);
        due = world_wants_fault(next);
        faults = world_faults(next, due, branches);
        if (due && faults > 0) {
            apply(branches[draw(faults)], next, true);
            continue;
        }
        total = faults;
        /* Later on everything takes its turn: else a job may go on too slowly to be judged. */
        if (faults == 0 || draw(30) != 0)
            total = draw(often) == 0 && world->ticks < TICKS_MAX / 2
                        ? deviations(events, count, branches)
                        : 0;
        if (total > 0)
            apply(branches[draw(total)], next, true);
        else
            apply(next, next, false);
    }
}

/* ---- a whole search ---- */

static bool
is_running(void)
{
    struct cairn_core_view view;

    for (uint32_t a = 0; a < world->setup.agents; a++) {
        if (!agents[a]->core || !has_rank(a))
            continue;
        agent_view(agents[a], &view);
        if (view.run == 0)
            return false;
    }
    return world->launched;
}

/* The state that the search begins with. */
static void
begin(const struct setup *setup)
{
    failure[0] = '\0';
    path_len = 0;
    world_open(setup);
    network_settle();
    while (!setup->from_start && !failed() && !is_running()) {
        struct event events[EVENTS_MAX];

        (void)world_events(events);
        apply(events[0], events[0], false);
        if (world->ticks > 40)
            break;
    }
}

void
search(const struct setup *setup, const struct search_limits *given, struct search_result *out)
{
    static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_NODEFER};
    uint32_t prefix;

    for (uint32_t i = 0; i < 3; i++)
        sigaction(signals[i], &action, NULL);
    memset(out, 0, sizeof *out);
    limits = given;
    result = out;
    began = seconds();
    stopped = false;
    failed_setup = *setup;
    table_empty();
    begin(setup);
    prefix = path_len;
    dirty = 0;
    image_take(&root);
    for (uint32_t bound = 0; !failed() && !stopped && !out->complete && bound <= given->bound_max;
         bound++) {
        path_len = prefix;
        cut = false;
        if (given->seed != 0) {
            draw_state = given->seed + bound * 977;
            bound = 0;
            for (uint64_t walk = 0; !failed() && !stopped; walk++) {
                path_len = prefix;
                draw_state = given->seed * 1000003 + walk;
                (void)draw(2);
                wander();
                if (!failed())
                    image_return(&root, UINT32_MAX);
            }
            break;
        }
        explore(bound, 0);
        if (failed() || stopped)
            break;
        image_return(&root, UINT32_MAX);
        out->bound = bound;
        out->complete = !cut;
    }
    out->seconds = seconds() - began;
}

static void
print_agents(void)
{
    static const char *const states[] = {"free", "open", "finishing", "complete", "rebuilding"};
    static const char *const phases[] = {"idle", "waits for an answer", "may copy", "has copied"};

    for (uint32_t a = 0; a < world->setup.agents; a++) {
        struct cairn_core_view view;
        struct cairn_part_view part;
        char text[300];

        if (!agents[a]->core) {
            printf("    agent %u does not run\n", a);
            continue;
        }
        agent_view(agents[a], &view);
        printf(
            "    agent %u promised %llx, is in %llx, run %llx next %llu committed %llu%s%s%s; its "
            "trainer is at step %llu and %s;",
            a, (unsigned long long)view.promised, (unsigned long long)view.active,
            (unsigned long long)view.run, (unsigned long long)view.next_step,
            (unsigned long long)view.committed.step, view.blank ? ", blank" : "",
            view.busy ? ", busy" : "", agents[a]->paused ? ", paused" : "",
            (unsigned long long)world->trainers[a].step, phases[world->trainers[a].phase]);
        for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++)
            if (cairn_core_look_part(agents[a]->core, i, &part))
                printf(" part %u: member %u step %llu %s;", i, part.member,
                       (unsigned long long)part.generation.step, states[part.state]);
        core_describe(agents[a]->core, text, sizeof text);
        printf("\n            %s\n", text);
    }
}

void
search_print_failure(void)
{
    char text[256], why[sizeof failure];
    uint32_t chosen = 0;

    memcpy(why, failure, sizeof why);
    for (uint32_t i = 0; i < failed_len; i++)
        chosen += failed_path[i].chosen;
    printf("    %s\n    after these %u events, %u of them (*) not the default:\n", why, failed_len,
           chosen);
    failure[0] = '\0';
    world_open(&failed_setup);
    network_settle();
    verbose = true;
    for (uint32_t i = 0; i < failed_len; i++) {
        event_describe(failed_path[i].event, text, sizeof text);
        if (i == 0 || i + 1 == failed_len || failed_path[i].event.kind != E_TICK ||
            failed_path[i - 1].event.kind != E_TICK || failed_path[i + 1].event.kind != E_TICK)
            printf("    %c %4u %s\n", failed_path[i].chosen ? '*' : ' ', i + 1, text);
        escape_set = true;
        if (_setjmp(escape) == 0)
            world_apply(failed_path[i].event, failed_path[i].next);
        if (failed())
            break;
    }
    verbose = false;
    print_agents();
    printf("    %s\n", failure);
}
