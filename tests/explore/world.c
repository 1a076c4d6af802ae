/*
 * tests/explore/world.c - which events are possible in a state, which of them is the default one,
 * and what each does.
 *
 * The default order: answers of processes, news of sessions, control messages, bulk messages,
 * trainers' copies, the job's starts, steps; then what is stalled; then a crashed agent's start; at
 * last a tick.
 */
#include "tests/explore/explore.h"

#include "base/bitset.h"

#include <stdarg.h>
#include <stdio.h>

struct world *world;
struct agent *agents[AGENTS_MAX];
uint32_t planted_bug;
bool verbose;
char failure[512];
uint32_t dirty;

void
fail(const char *format, ...)
{
    va_list arguments;

    if (failed())
        return;
    va_start(arguments, format);
    vsnprintf(failure, sizeof failure, format, arguments);
    va_end(arguments);
}

void
say(const char *format, ...)
{
    va_list arguments;

    if (!verbose)
        return;
    va_start(arguments, format);
    printf("        ");
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
}

void
world_open(const struct setup *setup)
{
    uint32_t n = setup->agents;

    for (uint32_t i = 0; i <= n; i++)
        arena_clear(arena_number(i));
    (void)arena_use(arena_number(n));
    world = calloc(1, sizeof *world);
    world->setup = *setup;
    for (uint32_t a = 0; a < n; a++) {
        world->spares[a] = a >= n - setup->spares;
        (void)arena_use(arena_number(a));
        agents[a] = calloc(1, sizeof *agents[a]);
        agent_init(agents[a], a);
    }
    (void)arena_use(arena_number(n));
    for (uint32_t a = 0; a < n; a++) {
        if (a < n - setup->late)
            agent_start(agents[a]);
        else
            agents[a]->away = true;
    }
}

/* ---- events ---- */

/* What can wait, and be chosen to wait: numbered by kind, then by agents. */
enum {
    SOURCE_ANSWERS = AGENTS_MAX * AGENTS_MAX * CHANNELS, /* after the messages */
    SOURCE_SESSIONS = SOURCE_ANSWERS + AGENTS_MAX,
    SOURCE_TRAINERS = SOURCE_SESSIONS + AGENTS_MAX * AGENTS_MAX
};
_Static_assert(SOURCE_TRAINERS + AGENTS_MAX <= SOURCES, "too few bits for what can wait");

uint32_t
event_source(struct event event)
{
    switch (event.kind) {
    case E_MESSAGE:
        return (event.a * (uint32_t)AGENTS_MAX + event.b) * CHANNELS + event.c;
    case E_ANSWER:
        return SOURCE_ANSWERS + event.a;
    case E_UP:
    case E_DOWN:
        return SOURCE_SESSIONS + event.a * (uint32_t)AGENTS_MAX + event.b;
    case E_REGISTER:
    case E_COPY:
    case E_CAPTURED:
    case E_BEGIN:
        return SOURCE_TRAINERS + event.a;
    default:
        return SOURCES;
    }
}

uint32_t
event_agent(struct event event)
{
    switch (event.kind) {
    case E_ANSWER:
    case E_UP:
    case E_DOWN:
    case E_MESSAGE:
    case E_REGISTER:
    case E_COPY:
    case E_CAPTURED:
    case E_BEGIN:
    case E_START:
    case E_RESUME:
        return event.a;
    default:
        return UINT32_MAX;
    }
}

struct list {
    struct event *events;
    uint32_t count;
    bool stalled; /* which sources are wanted now */
};

static void
add(struct list *list, enum event_kind kind, uint32_t a, uint32_t b, uint32_t c)
{
    struct event event = {(uint8_t)kind, (uint8_t)a, (uint8_t)b, (uint8_t)c};
    uint32_t source = event_source(event);
    bool stalled = source < SOURCES && cairn_bitset_has(world->stalled, source);

    if (stalled == list->stalled && list->count < EVENTS_MAX)
        list->events[list->count++] = event;
}

bool
operator_waits(void)
{
    for (uint32_t a = 0; a < world->setup.agents; a++)
        if (world->op_pending[a] != 0)
            return true;
    return false;
}

static bool
takes_events(uint32_t a)
{
    return agents[a]->core && !agents[a]->paused;
}

static void
add_messages(struct list *list, uint32_t class)
{
    uint32_t n = world->setup.agents;

    for (uint32_t to = 0; to < n; to++)
        for (uint32_t from = 0; takes_events(to) && from < n; from++)
            if (world->channels[to][from][class].first &&
                (to == from || (world->sides[to][from].up && !world->sides[to][from].to_down)))
                add(list, E_MESSAGE, to, from, class);
}

static void
add_local(struct list *list)
{
    uint32_t n = world->setup.agents;

    for (uint32_t a = 0; a < n; a++) {
        uint32_t index = 0;

        for (const struct answer *answer = agents[a]->answers; answer && takes_events(a);
             answer = answer->next)
            add(list, E_ANSWER, a, index++, 0);
    }
    for (uint32_t a = 0; a < n; a++)
        for (uint32_t b = 0; takes_events(a) && b < n; b++) {
            if (world->sides[a][b].to_down)
                add(list, E_DOWN, a, b, 0);
            else if (world->sides[a][b].to_up)
                add(list, E_UP, a, b, 0);
        }
    add_messages(list, CHANNEL_CONTROL);
    add_messages(list, CHANNEL_BULK);
    for (uint32_t a = 0; a < n; a++) {
        if (!takes_events(a))
            continue;
        if (trainer_may_register(a))
            add(list, E_REGISTER, a, 0, 0);
        if (world->trainers[a].phase == PHASE_GRANTED)
            add(list, E_COPY, a, 0, 0);
        if (world->trainers[a].phase == PHASE_COPIED)
            add(list, E_CAPTURED, a, 0, 0);
    }
}

static void
add_steps(struct list *list)
{
    for (uint32_t a = 0; a < world->setup.agents; a++)
        if ((!agents[a]->core || takes_events(a)) && trainer_may_begin(a) &&
            world->steps < STEPS_PER_TICK * (uint32_t)__builtin_popcount(world->ranks))
            add(list, E_BEGIN, a, 0, 0);
}

/* An agent's messages to itself are never slower than time. */
static bool
has_own_mail(void)
{
    for (uint32_t a = 0; a < world->setup.agents; a++)
        for (uint32_t class = 0; class < CHANNELS; class ++)
            if (takes_events(a) && world->channels[a][a][class].first)
                return true;
    return false;
}

uint32_t
world_events(struct event *out)
{
    struct list list = {.events = out};
    bool is_late = world->ticks >= TICKS_LONG;

    add_local(&list);
    if (gang_is_broken())
        add(&list, E_KILL, 0, 0, 0);
    if (list.count == 0 && gang_may_launch())
        add(&list, E_LAUNCH, 0, 0, 0);
    add_steps(&list);
    list.stalled = true;
    add_local(&list);
    add_steps(&list);
    list.stalled = false;
    for (uint32_t a = 0; a < world->setup.agents; a++) {
        if (!agents[a]->core && (is_late || !agents[a]->away))
            add(&list, E_START, a, 0, 0);
        if (agents[a]->paused && is_late)
            add(&list, E_RESUME, a, 0, 0);
        for (uint32_t b = a + 1; b < world->setup.agents; b++)
            if (world->split[a][b] && is_late)
                add(&list, E_HEAL, a, b, 0);
    }
    if (list.count == 0 || !has_own_mail())
        add(&list, E_TICK, 0, 0, 0);
    for (uint32_t a = 0; !is_late && a < world->setup.agents; a++) {
        if (!agents[a]->core && agents[a]->away)
            add(&list, E_START, a, 0, 0);
        if (agents[a]->paused)
            add(&list, E_RESUME, a, 0, 0);
    }
    return list.count;
}

static void
add_fault(struct event *out, uint32_t *count, enum fault kind, uint32_t a, uint32_t b)
{
    if (*count < EVENTS_MAX)
        out[(*count)++] = (struct event){E_FAULT, (uint8_t)kind, (uint8_t)a, (uint8_t)b};
}

/* A tick is an event of every agent. */
static bool
is_next(struct event next, bool all, uint32_t a)
{
    return all || next.kind == E_TICK || event_agent(next) == a;
}

static bool
is_near(struct event next, bool all, uint32_t a)
{
    bool of_two = next.kind == E_MESSAGE || next.kind == E_UP || next.kind == E_DOWN;

    return is_next(next, all, a) || (of_two && next.b == a);
}

uint32_t
world_faults(struct event next, bool all, struct event *out)
{
    const uint8_t *left = world->setup.faults;
    uint32_t n = world->setup.agents, count = 0;

    for (uint32_t a = 0; a < n; a++) {
        if (!agents[a]->core)
            continue;
        for (enum fault kind = FAULT_CRASH; kind <= FAULT_DISK; kind++)
            if (left[kind] > 0 && is_near(next, all, a) &&
                (kind != FAULT_CUT || (event_agent(next) == a && next.kind != E_START)))
                add_fault(out, &count, kind, a, 0);
        for (uint32_t b = a + 1; b < n; b++)
            if (world->open[a][b] && is_near(next, all, a) && is_near(next, all, b)) {
                if (left[FAULT_BREAK])
                    add_fault(out, &count, FAULT_BREAK, a, b);
                if (left[FAULT_SPLIT])
                    add_fault(out, &count, FAULT_SPLIT, a, b);
            }
        if (left[FAULT_RESTORE] && !world->op_pending[a] && is_next(next, all, a))
            add_fault(out, &count, FAULT_RESTORE, a, 0);
        if (left[FAULT_STOP] && !operator_waits() && world->launched && is_next(next, all, a))
            add_fault(out, &count, FAULT_STOP, a, 0);
        if (left[FAULT_PAUSE] && !agents[a]->paused && is_next(next, all, a))
            add_fault(out, &count, FAULT_PAUSE, a, 0);
        if (left[FAULT_CANCEL] && world->trainers[a].phase != PHASE_IDLE && event_agent(next) == a)
            add_fault(out, &count, FAULT_CANCEL, a, 0);
        if (left[FAULT_FRESH] && !operator_waits() && world->launched && is_next(next, all, a))
            add_fault(out, &count, FAULT_FRESH, a, 0);
        if (left[FAULT_SNAPSHOT] && is_next(next, all, a))
            add_fault(out, &count, FAULT_SNAPSHOT, a, 0);
    }
    if (left[FAULT_RESTART] && world->launched)
        add_fault(out, &count, FAULT_RESTART, 0, 0);
    if (left[FAULT_DAMAGE] && next.kind == E_MESSAGE &&
        world->channels[next.a][next.b][next.c].first->payload_len > 0)
        add_fault(out, &count, FAULT_DAMAGE, next.a, next.b);
    return count;
}

/* ---- what events do ---- */

static void
give_peer(uint32_t a, uint32_t b, enum cairn_event_type type)
{
    struct cairn_event event = {.type = type};

    event.as.peer = (struct cairn_event_peer){.agent = b, .incarnation = agents[b]->incarnation};
    agent_event(agents[a], &event, NULL);
}

static void
tick(void)
{
    world->now_ns += INTERVAL_NS;
    world->ticks++;
    world->steps = 0;
    for (uint32_t a = 0; a < world->setup.agents && !failed(); a++) {
        struct cairn_event event = {.type = CAIRN_EVENT_TICK};

        if (!takes_events(a))
            continue;
        agent_event(agents[a], &event, NULL);
        network_beats();
    }
}

static void
ask_operator(uint32_t a, enum cairn_operation operation)
{
    struct cairn_event event = {.type = CAIRN_EVENT_OPERATOR};

    event.as.op =
        (struct cairn_event_operator){.operation = operation, .request = ++world->op_request};
    if (operation != CAIRN_OP_SNAPSHOT) {
        world->op_pending[a] = world->op_request;
        world->op_asked = true;
        world->op_fresh = operation == CAIRN_OP_FRESH;
        world->fresh_agent = a;
    }
    agent_event(agents[a], &event, NULL);
}

static void apply(struct event event);

static void
apply_fault(struct event fault, struct event next)
{
    uint32_t a = fault.b, b = fault.c;

    world->setup.faults[fault.a]--;
    world->ticks = 0;
    world->commits_since_fault = 0;
    switch ((enum fault)fault.a) {
    case FAULT_CRASH:
        agent_crash(agents[a], false, false);
        break;
    case FAULT_CUT:
        world->cut = true;
        apply(next);
        world->cut = false;
        world->erased_count = 0;
        break;
    case FAULT_LONG:
        agent_crash(agents[a], false, false);
        agents[a]->away = true;
        break;
    case FAULT_MEMORY:
        agent_crash(agents[a], true, false);
        break;
    case FAULT_AWAY:
        agent_crash(agents[a], true, false);
        agents[a]->away = true;
        break;
    case FAULT_DISK:
        agent_crash(agents[a], true, true);
        break;
    case FAULT_BREAK:
        network_end(a, b);
        break;
    case FAULT_SPLIT:
        network_end(a, b);
        world->split[a][b] = world->was_cut_off = true;
        break;
    case FAULT_RESTART:
        world->from_zero = true;
        gang_kill();
        break;
    case FAULT_RESTORE:
        ask_operator(a, CAIRN_OP_RESTORE);
        break;
    case FAULT_STOP:
        gang_kill();
        if (agents[a]->core)
            ask_operator(a, CAIRN_OP_RESTORE);
        break;
    case FAULT_FRESH:
        gang_kill();
        if (agents[a]->core)
            ask_operator(a, CAIRN_OP_FRESH);
        break;
    case FAULT_PAUSE:
        agents[a]->paused = world->was_cut_off = true;
        dirty |= 1u << a;
        break;
    case FAULT_CANCEL:
        trainer_cancel(a);
        break;
    case FAULT_DAMAGE:
        world->was_damaged = true;
        network_deliver(a, b, next.c, true);
        break;
    case FAULT_SNAPSHOT:
        ask_operator(a, CAIRN_OP_SNAPSHOT);
        break;
    case FAULT_KINDS:
        break;
    }
}

static void
apply(struct event event)
{
    struct side *side = &world->sides[event.a % AGENTS_MAX][event.b % AGENTS_MAX];

    switch ((enum event_kind)event.kind) {
    case E_ANSWER:
        agent_answer(agents[event.a], event.b);
        break;
    case E_DOWN:
        side->up = side->to_down = false;
        give_peer(event.a, event.b, CAIRN_EVENT_PEER_DOWN);
        break;
    case E_UP:
        side->to_up = false;
        side->up = true;
        give_peer(event.a, event.b, CAIRN_EVENT_PEER_UP);
        break;
    case E_MESSAGE:
        network_deliver(event.a, event.b, event.c, false);
        break;
    case E_REGISTER:
        trainer_register(event.a);
        break;
    case E_COPY:
        trainer_copy(event.a);
        break;
    case E_CAPTURED:
        trainer_captured(event.a);
        break;
    case E_KILL:
        gang_kill();
        break;
    case E_LAUNCH:
        gang_launch();
        break;
    case E_BEGIN:
        world->steps++;
        trainer_begin(event.a);
        break;
    case E_START:
        agent_start(agents[event.a]);
        break;
    case E_RESUME:
        agents[event.a]->paused = false;
        dirty |= 1u << event.a;
        break;
    case E_HEAL:
        world->split[event.a][event.b] = false;
        break;
    case E_TICK:
        tick();
        break;
    case E_STALL:
        cairn_bitset_add(world->stalled, event.a);
        return;
    case E_FAULT:
        break;
    }
}

void
world_apply(struct event event, struct event next)
{
    uint32_t source = event_source(event);

    (void)arena_use(arena_number(world->setup.agents));
    if (source < SOURCES)
        cairn_bitset_remove(world->stalled, source);
    if (event.kind == E_TICK && next.kind != E_TICK)
        world->was_cut_off = true; /* time passes while messages are on their way */
    if (event.kind == E_FAULT)
        apply_fault(event, next);
    else
        apply(event);
    (void)arena_use(arena_number(world->setup.agents));
    network_beats();
    network_settle();
    judge_kept();
    if (world->ticks > TICKS_MAX)
        fail("the job does not go on: no end after %u ticks", world->ticks);
}

/* ---- states ---- */

uint64_t
world_hash(void)
{
    uint64_t hash = network_hash();

    for (uint32_t a = 0; a < world->setup.agents; a++) {
        const struct trainer *trainer = &world->trainers[a];

        hash = hash_mix(hash, agent_hash(agents[a]));
        hash = hash_mix(hash, (uint64_t)trainer->alive | (uint64_t)trainer->registered << 1 |
                                  (uint64_t)trainer->phase << 2 |
                                  (uint64_t)(world->op_pending[a] != 0) << 7 | trainer->step << 8);
    }
    for (uint32_t i = 0; i < SOURCES / 64; i++)
        hash = hash_mix(hash, world->stalled[i]);
    hash = hash_mix(hash, (uint64_t)world->launched | (uint64_t)world->from_zero << 1 |
                              (uint64_t)world->op_fresh << 3 | (uint64_t)world->life << 8 |
                              (uint64_t)world->ticks << 16 | (uint64_t)world->steps << 32 |
                              (uint64_t)(world->commits > 2 ? 2 : world->commits) << 40 |
                              (uint64_t)(world->commits_since_fault > 0) << 48);
    hash = hash_mix(hash, world->gang_epoch << 8 | world->ranks);
    for (uint32_t i = 0; i < FAULT_KINDS; i += 4)
        hash = hash_mix(
            hash, (uint64_t)world->setup.faults[i] | (uint64_t)world->setup.faults[i + 1] << 8 |
                      (uint64_t)world->setup.faults[i + 2] << 16 |
                      (uint64_t)(i + 3 < FAULT_KINDS ? world->setup.faults[i + 3] : 0) << 24);
    return hash;
}

/* Faults that can still happen. Those of a capture need one, and after three commits all of its
 * steps have been tried. */
static bool
has_faults(void)
{
    for (uint32_t i = 0; i < FAULT_KINDS; i++)
        if (world->setup.faults[i] > 0 && !((i == FAULT_CANCEL || i == FAULT_DAMAGE) &&
                                            world->commits >= (world->setup.asked ? 1 : 3)))
            return true;
    return false;
}

static bool
is_quiet(struct event next)
{
    return (next.kind == E_BEGIN || next.kind == E_TICK) && !operator_waits();
}

static bool
is_whole(void)
{
    for (uint32_t a = 0; a < world->setup.agents; a++) {
        if (!takes_events(a))
            return false;
        for (uint32_t b = 0; b < world->setup.agents; b++)
            if (world->split[a][b])
                return false;
    }
    return true;
}

bool
world_wants_fault(struct event next)
{
    if (!has_faults() || !is_quiet(next) || !is_whole())
        return false;
    if (world->setup.asked)
        return world->trainers[0].step >= 2 && world->ticks >= 1 &&
               (world->commits_since_fault > 0 || world->commits == 0);
    return world->commits_since_fault > 0;
}

bool
world_is_over(struct event next)
{
    struct cairn_core_view view;

    if (has_faults() || !is_quiet(next) || !is_whole())
        return false;
    if (world->setup.untiled) {
        agent_view(agents[0], &view);
        return view.refusal[0] != '\0' && world->ticks > 20;
    }
    for (uint32_t a = 0; a < world->setup.agents; a++)
        if (world->trainers[a].phase != PHASE_IDLE)
            return false; /* it may wait for ever */
    if (world->setup.asked)
        return world->commits >= 1 && judge_is_protected();
    return world->commits >= 2 && world->commits_since_fault > 0 && judge_is_protected();
}

void
event_describe(struct event event, char *text, size_t bytes)
{
    static const char *const kinds[] = {
        "answer", "down",  "up",    "message", "register", "copy", "captured", "kill the job",
        "launch", "begin", "start", "resume",  "heal",     "tick", "stall",    "FAULT"};
    static const char *const faults[] = {"crash",
                                         "crash after a store",
                                         "long crash",
                                         "crash, memory lost",
                                         "long crash, memory lost",
                                         "crash, memory and disk lost",
                                         "session ends",
                                         "session ends for long",
                                         "trainers start again from 0",
                                         "operator restores",
                                         "trainers die, operator restores",
                                         "pause",
                                         "trainer cancels",
                                         "blocks damaged",
                                         "operator asks for a generation",
                                         "trainers die, operator begins with nothing"};
    char what[160] = "";

    switch ((enum event_kind)event.kind) {
    case E_MESSAGE:
        network_describe(event.a, event.b, event.c, what, sizeof what);
        snprintf(text, bytes, "%u -> %u %s", event.b, event.a, what);
        break;
    case E_ANSWER: {
        const struct answer *answer = agents[event.a]->answers;
        static const char *const names[] = {"sealed", "finished", "verified", "decoded", "opened"};

        for (uint32_t i = 0; answer && i < event.b; i++)
            answer = answer->next;
        snprintf(text, bytes, "agent %u: %s part %u step %llu", event.a,
                 answer ? names[answer->type - CAIRN_EVENT_SEALED] : "?", answer ? answer->part : 0,
                 answer ? (unsigned long long)answer->generation.step : 0);
        break;
    }
    case E_UP:
    case E_DOWN:
        snprintf(text, bytes, "agent %u: session with %u is %s", event.a, event.b,
                 kinds[event.kind]);
        break;
    case E_BEGIN:
        snprintf(text, bytes, "agent %u: begin step %llu", event.a,
                 (unsigned long long)world->trainers[event.a].step + 1);
        break;
    case E_FAULT:
        snprintf(text, bytes, "FAULT %s: %u %u", faults[event.a], event.b, event.c);
        break;
    case E_STALL:
        snprintf(text, bytes, "stall source %u", event.a);
        break;
    case E_TICK:
        snprintf(text, bytes, "tick %u", world->ticks + 1);
        break;
    default:
        snprintf(text, bytes, "agent %u: %s", event.a, kinds[event.kind]);
        break;
    }
}
