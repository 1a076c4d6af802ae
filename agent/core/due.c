/*
 * agent/core/due.c - decides which steps become generations.
 *
 * The multiples of every_steps are due, and the step that an operator asked for. If the snapshot of
 * a due step is given up (the trainer's fence came before the grant, a copy failed, a member had no
 * room), or never begins, the step is owed:
 *
 *   nothing owed ─ a step is due, or asked for ──────────────────► owed
 *   owed         ─ that step or a later one is committed ────────► nothing owed
 *   owed         ─ refused for what the ranks registered
 *                  (tiling.c) ───────────────────────────────────► nothing owed, except a step that
 *                                                                  was asked for
 *
 * While a step is owed, and no generation of it or of a later step can still be committed, steps
 * after it are due too: each of the first fifteen, then every second, every fourth, and so on. So a
 * snapshot that can never be taken costs a job less and less. All agents open the same steps, since
 * these follow from the owed step and from the steps begun. An agent that learns late that a step
 * was given up joins the next one, or the one after. An agent that did not hear of a request hears
 * of it each time that a generation is given up for lack of it.
 */
#include "agent/core/core_state.h"

#include "base/log.h"

#include <inttypes.h>

enum {
    RETRIES_PER_GAP = 8 /* so many steps are tried before those between two tries are doubled */
};

/* Of every_steps * 2^stride steps one is due; never rarer than one in STRIDE_NS_MAX for it. */
static uint64_t
stride(const struct cairn_core *core, uint64_t every)
{
    uint32_t log2 = core->stride_log2;

    while (log2 > 0 && (core->step_ns * every) << log2 > STRIDE_NS_MAX)
        log2--;
    return UINT64_C(1) << log2;
}

static bool
is_multiple(const struct cairn_core *core, uint64_t step)
{
    return core->options.every_steps != 0 && step % core->options.every_steps == 0;
}

static bool
is_thinned_out(const struct cairn_core *core, uint64_t multiple)
{
    uint64_t every = core->options.every_steps;

    return multiple / every % stride(core, every) != 0;
}

/*
 * Where steps take less time than the news of a commit, agents whose slots get free at slightly
 * different times open different steps, and each gives up what the others opened: then for ever. So
 * after generations that were given up only every second, fourth, … due step is opened, by everyone
 * the same ones as soon as their strides are equal, and long enough after the one before that all
 * are ready. After STRIDE_SHORTEN_AFTER commits in a row the stride is halved. Slow steps are never
 * thinned out.
 */
static void
widen_stride(struct cairn_core *core)
{
    core->committed_in_row = 0;
    if (++core->given_up_in_row < 2)
        return;
    core->given_up_in_row = 0;
    core->stride_log2 += core->stride_log2 < STRIDE_LOG2_MAX;
}

static void
shorten_stride(struct cairn_core *core)
{
    core->given_up_in_row = 0;
    if (++core->committed_in_row < STRIDE_SHORTEN_AFTER)
        return;
    core->committed_in_row = 0;
    core->stride_log2 -= core->stride_log2 > 0;
}

/* ---- what is asked for ---- */

static void
tell_asked(struct cairn_core *core)
{
    struct cairn_message message = message_new(core, CAIRN_MSG_SNAPSHOT_AT, core->active);

    message.generation.step = core->asked_step;
    for (uint32_t a = 0; a < core->options.agent_count; a++)
        if (a != core->options.self)
            send_message(core, a, &message);
}

uint64_t
due_ask(struct cairn_core *core)
{
    uint64_t step = core->last_step + 2; /* which the trainers of others, a step ahead at most, can
                                          * still make */

    if (step > core->asked_step)
        core->asked_step = step;
    core->asked_here = true;
    core->said_asked = false;
    tell_asked(core);
    return core->asked_step;
}

void
due_message(struct cairn_core *core, const struct cairn_message *message)
{
    uint64_t step = message->generation.step;

    if (message->epoch == core->active && step > core->committed.step && step > core->asked_step)
        core->asked_step = step;
}

/* ---- how it ended ---- */

void
due_committed(struct cairn_core *core, struct cairn_generation generation)
{
    shorten_stride(core);
    if (generation.step >= core->owed_step)
        core->owed_step = 0;
    if (generation.step >= core->asked_step) {
        core->asked_step = 0;
        core->asked_here = false;
    }
}

void
due_given_up(struct cairn_core *core, struct cairn_generation generation)
{
    widen_stride(core);
    if (!core->asked_here || generation.step < core->asked_step)
        return;
    if (!core->said_asked)
        CAIRN_LOG_AT(INFO,
                     "save: step=%" PRIu64
                     " was given up, and is what a snapshot was asked for: it is tried again at "
                     "the steps that follow, until one is committed (said once)",
                     generation.step);
    core->said_asked = true;
    tell_asked(core);
}

void
due_refused(struct cairn_core *core, struct cairn_generation generation)
{
    if (generation.step >= core->owed_step)
        core->owed_step = 0;
}

void
due_forget(struct cairn_core *core)
{
    if (core->asked_here)
        CAIRN_LOG_AT(
            WARN,
            "save: the snapshot that was asked for at step=%" PRIu64
            " is not taken: a restore has begun a new epoch; ask again once the trainers run",
            core->asked_step);
    core->asked_step = core->owed_step = core->step_before = 0;
    core->asked_here = false;
}

/* ---- the steps ---- */

/*
 * Steps that jump further than the widest stride are no training loop's: a job was resumed, or
 * names its saves by the time of day. The pace of the steps before says nothing about them, nor how
 * far away one is that is owed.
 */
static void
forget_pace_at_jump(struct cairn_core *core, uint64_t step)
{
    uint64_t every = core->options.every_steps ? core->options.every_steps : 1;

    if ((step - core->last_step) / every <= UINT64_C(1) << STRIDE_LOG2_MAX)
        return;
    core->stride_log2 = core->given_up_in_row = core->committed_in_row = 0;
    core->begun_ns = core->step_ns = 0;
    if (core->owed_step != 0 && core->owed_step < step)
        core->owed_step = step;
    if (core->asked_step != 0 && core->asked_step < step)
        core->asked_step = step;
}

/*
 * The begin of that multiple has never come: the trainer was still copying; or it came to an
 * earlier start of this agent, and the others may owe it: they wait in vain for one that does not.
 * What is there of it, or is committed, is known, or heard soon.
 */
static bool
is_passed_over(const struct cairn_core *core, uint64_t multiple, uint64_t step)
{
    if (core->last_step == 0)
        return multiple > core->ready.step && multiple > core->committed.step;
    return multiple > core->last_step && step - core->last_step <= core->options.every_steps;
}

/* The newest multiple up to this step is owed from now on. */
static void
owe_multiple(struct cairn_core *core, uint64_t step)
{
    uint64_t every = core->options.every_steps, multiple = every ? step - step % every : 0;

    if (every && (multiple == step || is_passed_over(core, multiple, step)) &&
        !is_thinned_out(core, multiple))
        core->owed_step = multiple;
}

void
due_new_step(struct cairn_core *core, uint64_t step)
{
    forget_pace_at_jump(core, step);
    if (core->begun_ns != 0)
        core->step_ns = (core->now_ns - core->begun_ns) / (step - core->last_step);
    core->begun_ns = core->now_ns;
    owe_multiple(core, step);
    core->step_before = core->last_step;
    core->last_step = step;
}

/* A generation of that step or a later one has begun here and may still be committed. */
static bool
is_under_way(const struct cairn_core *core, uint64_t step)
{
    for (uint32_t i = 0; i < CAIRN_HOLDINGS_MAX; i++) {
        const struct holding *holding = &core->holdings[i];

        if ((holding->state == CAIRN_HOLDING_OPEN || holding->state == CAIRN_HOLDING_FINISHING ||
             holding->state == CAIRN_HOLDING_COMPLETE) &&
            holding->member == core->self_member && holding->generation.epoch == core->active &&
            holding->generation.step >= step && !facts_vetoed(core, holding->generation))
            return true;
    }
    return false;
}

/* Steps may be begun with gaps, so it is the first one begun of each `gap` that is tried, not its
 * multiple. */
static bool
is_retry(const struct cairn_core *core, uint64_t step)
{
    uint64_t owed = core->owed_step > core->asked_step ? core->owed_step : core->asked_step;
    uint64_t gap = stride(core, 1);

    if (owed == 0 || step <= owed || is_under_way(core, owed) || CAIRN_PLANTED(core, BUG_ASKS_ONCE))
        return false;
    while (2 * gap * RETRIES_PER_GAP <= step - owed)
        gap *= 2;
    return step / gap != core->step_before / gap;
}

bool
due_is(struct cairn_core *core, uint64_t step, bool *thinned_out)
{
    struct holding *opened =
        holding_find(core, (struct cairn_generation){core->active, step}, core->self_member);
    bool multiple = is_multiple(core, step);

    *thinned_out = multiple && is_thinned_out(core, step);
    if (step == core->asked_step || (multiple ? !*thinned_out : step == core->owed_step))
        return true;
    return (opened && opened->state == CAIRN_HOLDING_OPEN) || is_retry(core, step);
}
