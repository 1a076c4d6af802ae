/*
 * bindings/nccl/sampler.c - which operations have their kernels timed.
 *
 * Half of the share goes to the windows at the beginnings of periods. The other half is for
 * operations that get timed with them: one word switches timing for the whole process, so
 * operations of other communicators in between are timed too, and the word stays set for HOLD
 * operations after the last intended one.
 */
#include "bindings/nccl/sampler.h"

enum {
    HOLD = 64,
    SHARE_CREDIT_MAX = 100 * 512,
    TIME_CREDIT_OPERATIONS_MAX = 64, /* a step's bucket of collectives after a long computation */
    OPERATION_NS = 1000000000 / CAIRN_SAMPLER_PER_SECOND
};
/* A wish ends this long after it is read: a reader that dies leaves nothing switched on. */
#define WISH_MAX_NS (60 * UINT64_C(1000000000))

void
cairn_sampler_init(struct cairn_sampler *sampler, uint32_t percent, uint64_t now_ns)
{
    sampler->percent = percent > 100 ? 100 : percent;
    atomic_store_explicit(&sampler->operations, 0, memory_order_relaxed);
    atomic_store_explicit(&sampler->on_until, 0, memory_order_relaxed);
    atomic_store_explicit(&sampler->share_credit, SHARE_CREDIT_MAX, memory_order_relaxed);
    atomic_store_explicit(&sampler->time_credit_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&sampler->last_ns, now_ns, memory_order_relaxed);
}

/* What the time since the last operation allows. */
static bool
take_time_credit(struct cairn_sampler *sampler, uint64_t now_ns)
{
    uint64_t last_ns = atomic_exchange_explicit(&sampler->last_ns, now_ns, memory_order_relaxed);
    int64_t credit_ns = atomic_load_explicit(&sampler->time_credit_ns, memory_order_relaxed);
    const int64_t max_ns = (int64_t)TIME_CREDIT_OPERATIONS_MAX * OPERATION_NS;
    int64_t gap_ns = now_ns > last_ns ? (int64_t)(now_ns - last_ns) : 0;
    bool taken;

    credit_ns = gap_ns > max_ns || credit_ns + gap_ns > max_ns ? max_ns : credit_ns + gap_ns;
    taken = credit_ns >= OPERATION_NS;
    atomic_store_explicit(&sampler->time_credit_ns, taken ? credit_ns - OPERATION_NS : credit_ns,
                          memory_order_relaxed);
    return taken;
}

/* Whether the share of all operations allows another; each of them earns its part. */
static bool
take_share_credit(struct cairn_sampler *sampler, bool wanted)
{
    int64_t credit =
        atomic_load_explicit(&sampler->share_credit, memory_order_relaxed) + sampler->percent;
    bool taken = wanted && credit >= 100;

    if (taken)
        credit -= 100;
    if (credit > SHARE_CREDIT_MAX)
        credit = SHARE_CREDIT_MAX;
    atomic_store_explicit(&sampler->share_credit, credit, memory_order_relaxed);
    return taken;
}

bool
cairn_sampler_next(struct cairn_sampler *sampler, uint64_t next_number, uint64_t now_ns,
                   uint64_t wanted_until_ns)
{
    uint64_t operation, window;
    bool slow, meant;

    if (sampler->percent == 0 || sampler->percent >= 100)
        return sampler->percent != 0;
    if (wanted_until_ns > now_ns && wanted_until_ns - now_ns <= WISH_MAX_NS)
        return true;
    operation = atomic_fetch_add_explicit(&sampler->operations, 1, memory_order_relaxed);
    window = CAIRN_SAMPLER_PERIOD * (uint64_t)sampler->percent / 200;
    if (next_number % CAIRN_SAMPLER_PERIOD < window)
        atomic_store_explicit(&sampler->on_until, operation + HOLD, memory_order_relaxed);
    meant = operation < atomic_load_explicit(&sampler->on_until, memory_order_relaxed);
    slow = take_time_credit(sampler, now_ns);
    return take_share_credit(sampler, meant && !slow) || slow;
}
