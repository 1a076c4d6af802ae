/* agent/core/restore/watch.c - see watch.h. */
#include "agent/core/restore/watch.h"

#include <string.h>

enum {
    AHEAD_MAX = 6,    /* agents whose turn is waited for */
    BLANK_TURNS = 8,  /* blank agents that start one heartbeat after the other */
    PAUSE_FACTOR = 8, /* of claim_timeout: the longest pause */
    DOUBLINGS_MAX = 20
};

static const char *const reasons[] = {[WATCH_FENCED] = "an unfinished restore",
                                      [WATCH_FIRST] = "the first epoch",
                                      [WATCH_BLANK] = "memory is lost",
                                      [WATCH_AWAITED] = "memory is lost, and trainers wait",
                                      [WATCH_LOST] = "a part is missing",
                                      [WATCH_JOIN] =
                                          "the trainers are on other agents than the members"};

/* True if this agent is in the roster, or the record names it as the holder of a part, even if it
 * is blank now. */
static bool
is_listed(const struct env *env)
{
    const struct record *record = &env->membership->record;

    if (cairn_roster_member_of(record->roster, env->options->self) != UINT32_MAX)
        return true;
    for (uint32_t m = 0; record->ready_roster && m < record->ready_roster->member_count; m++)
        if (record->holders[m] == env->options->self)
            return true;
    return false;
}

static bool
part_is_missing(const struct env *env)
{
    const struct cairn_roster *roster = membership_ready_roster(env->membership);

    for (uint32_t m = 0; roster && m < roster->member_count; m++)
        if (!peers_maybe_alive(env, membership_holder(env->membership, m)))
            return true;
    return false;
}

static enum watch_reason
find_reason(const struct env *env, bool has_trainers, bool wants_join)
{
    const struct membership *membership = env->membership;

    if (membership->promised > membership->record.epoch)
        return WATCH_FENCED;
    if (membership->record.epoch == 0)
        return env->options->spares[env->options->self] ? WATCH_NONE : WATCH_FIRST;
    if (membership->blank && is_listed(env))
        return has_trainers ? WATCH_AWAITED : WATCH_BLANK;
    if (membership->blank)
        return WATCH_NONE;
    if (membership->self_member == UINT32_MAX)
        return WATCH_NONE;
    if (env->options->repair_after_ns != 0 && part_is_missing(env))
        return WATCH_LOST;
    if (wants_join && !CAIRN_PLANTED(env, BUG_NEVER_JOINS))
        return WATCH_JOIN;
    return WATCH_NONE;
}

/* Agents that go first: those with lower numbers; where members start, only the members. */
static uint64_t
count_ahead(const struct env *env, enum watch_reason reason)
{
    const struct membership *membership = env->membership;
    uint64_t ahead = 0;

    if (reason == WATCH_LOST) {
        for (uint32_t m = 0; m < membership->self_member && ahead < AHEAD_MAX; m++)
            ahead += peers_alive(env, membership->record.roster->members[m].agent);
        return ahead;
    }
    for (uint32_t a = 0; a < env->options->self && ahead < AHEAD_MAX; a++)
        ahead += reason == WATCH_FIRST ? !env->options->spares[a] && peers_maybe_alive(env, a)
                                       : peers_alive(env, a);
    return ahead;
}

/* How long the reason must last before the first try. */
static uint64_t
patience_ns(const struct env *env, enum watch_reason reason)
{
    const struct cairn_core_options *options = env->options;
    uint32_t claimant = epoch_claimant(env->membership->promised);
    uint64_t patience = options->heartbeat_interval_ns;

    switch (reason) {
    case WATCH_FENCED: /* the claimant goes first: two that wait equally long collide for ever */
        if (claimant == options->self)
            return patience;
        if (peers_maybe_alive(env, claimant))
            patience = options->claim_timeout_ns;
        break;
    case WATCH_BLANK:
        return patience * (1 + options->self % BLANK_TURNS);
    case WATCH_AWAITED:
        return patience * (options->self % BLANK_TURNS);
    case WATCH_LOST:
        patience = options->repair_after_ns;
        break;
    case WATCH_JOIN:
        return 0;
    case WATCH_FIRST:
    case WATCH_NONE:
        break;
    }
    return patience + count_ahead(env, reason) * options->claim_timeout_ns;
}

/* Added for each try that has not helped; different agents pause differently long, so that two that
 * refuse each other's claims do not do so for ever. */
static uint64_t
pause_ns(const struct env *env, const struct watch *watch)
{
    uint32_t doublings = watch->tries - 1 < DOUBLINGS_MAX ? watch->tries - 1 : DOUBLINGS_MAX;

    if (watch->tries == 0 || watch->reason == WATCH_FIRST) /* each try waits for those that start */
        return 0;
    return min_u64((env->options->heartbeat_interval_ns << doublings) *
                       (1 + env->options->self % BLANK_TURNS),
                   PAUSE_FACTOR * env->options->claim_timeout_ns +
                       env->options->self % BLANK_TURNS * env->options->heartbeat_interval_ns);
}

bool
watch_due(const struct env *env, struct watch *watch, bool has_trainers, bool wants_join,
          struct restore_request *out, const char **reason)
{
    enum watch_reason found = find_reason(env, has_trainers, wants_join);
    /* After a gap (this agent stood still, or a restore was under way) a reason must last again. */
    bool gap = env->now_ns - watch->looked_ns >= env->options->dead_after_ns;

    watch->looked_ns = env->now_ns;
    if (found != watch->reason) {
        watch->reason = found;
        watch->since_ns = env->now_ns;
        watch->tries = 0;
    }
    if (found == WATCH_NONE)
        return false;
    if (gap || watch->since_ns == 0)
        watch->since_ns = env->now_ns;
    if (env->now_ns - watch->since_ns < patience_ns(env, found) + pause_ns(env, watch))
        return false;
    watch->since_ns = 0;
    watch->tries++;
    *reason = reasons[found];
    *out = (struct restore_request){
        .op = {.operation = CAIRN_OP_RESTORE}, .by_itself = true, .joining = found == WATCH_JOIN};
    return true;
}

void
watch_asked(struct watch *watch)
{
    if (watch->reason == WATCH_BLANK || watch->reason == WATCH_AWAITED ||
        watch->reason == WATCH_FIRST || watch->reason == WATCH_LOST)
        watch->since_ns = 0;
}
