/*
 * agent/core/tiling_audit.c - the first member's audit of one combination of layouts: questions to
 * all members, until the sums say that it is good, or pieces of a few tensors what is wrong with
 * them. tiling.c has the whole way.
 *
 * Every question is answered by all members before the next is asked. What arrives is counted
 * against the question, the digest that the member voted with and the keys received so far, so that
 * repeats and late answers change nothing.
 */
#include "agent/core/core_state.h"

#include "base/log.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    ORIGINS_MAX = 1 << 21, /* of all parts: of more no double one is looked for, so that sorting
                            * them holds nothing up for long */
    SUMS_BYTES = 8 * CAIRN_TILING_FAN
};

static uint32_t
member_count(const struct cairn_core *core)
{
    return core->table->member_count;
}

static uint32_t
agent_of(const struct cairn_core *core, uint32_t member)
{
    return core->table->members[member].agent;
}

void
tiling_audit_end(struct tiling_audit *audit)
{
    free(audit->layouts);
    free(audit->received);
    free(audit->answered);
    free(audit->origins);
    cairn_tiling_pieces_fini(&audit->pieces);
    memset(audit, 0, sizeof *audit);
}

bool
tiling_audit_runs(const struct tiling_audit *audit)
{
    return audit->generation.step != 0;
}

static void
conclude(struct cairn_core *core, bool good, const char *text)
{
    struct tiling_audit *audit = &core->tiling.audit;

    tiling_remember(core, audit->combination, good, text);
    CAIRN_LOG_AT(DEBUG, "save: step=%" PRIu64 " is the first with its layouts, of %zu tensors: %s",
                 audit->generation.step, audit->origin_count, good ? "they fit together" : text);
    for (uint32_t m = 0; m < member_count(core); m++)
        if (m != core->self_member)
            tiling_send_verdict(core, agent_of(core, m), audit->generation,
                                tiling_verdict_on(core, audit->combination));
    tiling_audit_end(audit);
}

static struct cairn_message
ask_of(const struct cairn_core *core, uint32_t member)
{
    const struct tiling_audit *audit = &core->tiling.audit;
    struct cairn_message ask = message_new(core, CAIRN_MSG_LAYOUT_ASK, core->active);

    ask.generation = audit->generation;
    ask.member = member;
    ask.request = audit->layouts[member];
    ask.stripe = audit->level;
    ask.first_block = audit->prefix;
    ask.offset = audit->received[member];
    ask.total = audit->combination;
    return ask;
}

/* Keys of one answer; false without memory: the answer is asked for again. */
static bool
keep_origins(struct tiling_audit *audit, struct cairn_reader *reader, size_t count)
{
    if (audit->origin_count + count > ORIGINS_MAX) {
        audit->uncounted = true;
        return true;
    }
    if (audit->origin_count + count > audit->origin_room) {
        size_t room = 2 * (audit->origin_count + count);
        uint64_t *origins = realloc(audit->origins, room * sizeof *origins);

        if (!origins)
            return false;
        audit->origins = origins;
        audit->origin_room = room;
    }
    for (size_t i = 0; i < count; i++)
        audit->origins[audit->origin_count++] = cairn_read_u64(reader);
    return true;
}

/* Takes one part of a member's sums and keys; with the last of them it has answered. */
static void
take_sums(struct tiling_audit *audit, const struct cairn_message *answer)
{
    uint64_t sums[CAIRN_TILING_FAN];
    struct cairn_reader reader;
    size_t count = (answer->bytes_len - SUMS_BYTES) / 8;

    cairn_reader_init(&reader, answer->bytes, answer->bytes_len);
    for (uint32_t i = 0; i < CAIRN_TILING_FAN; i++) {
        sums[i] = cairn_read_u64(&reader);
        if (sums[i] >= CAIRN_TILING_FIELD)
            return;
    }
    if (count > answer->total - answer->offset || (count == 0 && answer->offset < answer->total) ||
        !keep_origins(audit, &reader, count))
        return;
    audit->received[answer->member] += (uint32_t)count;
    if (audit->received[answer->member] < answer->total)
        return;
    for (uint32_t i = 0; i < CAIRN_TILING_FAN; i++)
        audit->sums[i] = cairn_tiling_add(audit->sums[i], sums[i]);
    cairn_bitset_add(audit->answered, answer->member);
}

static void
take_part(struct cairn_core *core, const struct cairn_message *answer)
{
    struct tiling_audit *audit = &core->tiling.audit;
    uint32_t before;

    if (!tiling_audit_runs(audit) || !generation_is(answer->generation, audit->generation) ||
        answer->member >= member_count(core) || answer->from != agent_of(core, answer->member) ||
        answer->request != audit->layouts[answer->member] || answer->stripe != audit->level ||
        answer->first_block != audit->prefix || cairn_bitset_has(audit->answered, answer->member))
        return;
    before = audit->received[answer->member];
    if (audit->level == CAIRN_TILING_LEVELS) {
        if (cairn_tiling_add_pieces(&audit->pieces, answer->bytes, answer->bytes_len) !=
            CAIRN_NOMEM)
            cairn_bitset_add(audit->answered, answer->member);
    } else if (answer->bytes_len >= SUMS_BYTES && answer->bytes_len % 8 == 0 &&
               answer->total <= UINT32_MAX && answer->offset == audit->received[answer->member] &&
               answer->offset <= answer->total) {
        take_sums(audit, answer);
    }
    if (audit->received[answer->member] != before ||
        cairn_bitset_has(audit->answered, answer->member))
        audit->progress_ns = core->now_ns;
}

/* The own part answers at once. */
static void
answer_own(struct cairn_core *core)
{
    struct tiling_audit *audit = &core->tiling.audit;
    const struct seal *seal = tiling_own_seal(core, audit->generation);
    const struct cairn_tiling *tiling;
    uint8_t bytes[CAIRN_MESSAGE_PART_BYTES_MAX];
    uint32_t before;

    if (!seal || tiling_own(core, seal->manifest, seal->manifest_len, &tiling) != CAIRN_OK)
        return; /* until the next question */
    do {
        struct cairn_message ask = ask_of(core, core->self_member), answer;

        before = audit->received[core->self_member];
        tiling_answer(core, &ask, tiling, bytes, &answer);
        take_part(core, &answer);
    } while (audit->received[core->self_member] != before &&
             !cairn_bitset_has(audit->answered, core->self_member));
}

/* Asks every member that has not answered yet. */
static void
ask_all(struct cairn_core *core)
{
    struct tiling_audit *audit = &core->tiling.audit;

    audit->sent_ns = core->now_ns;
    for (uint32_t m = 0; m < member_count(core); m++) {
        struct cairn_message ask = ask_of(core, m);

        if (m != core->self_member && !cairn_bitset_has(audit->answered, m))
            send_message(core, agent_of(core, m), &ask);
    }
    if (!cairn_bitset_has(audit->answered, core->self_member))
        answer_own(core);
}

static int
compare_keys(const void *left, const void *right)
{
    const uint64_t *a = left, *b = right;

    return (*a > *b) - (*a < *b);
}

/* True when some tensor's origin is held twice; its key. */
static bool
find_double(struct tiling_audit *audit, uint64_t *key)
{
    if (audit->origin_count == 0)
        return false;
    qsort(audit->origins, audit->origin_count, sizeof *audit->origins, compare_keys);
    for (size_t i = 1; i < audit->origin_count; i++)
        if (audit->origins[i] == audit->origins[i - 1]) {
            *key = audit->origins[i];
            return true;
        }
    return false;
}

/* All members have answered: the end, or the next question. */
static void
advance(struct cairn_core *core)
{
    struct tiling_audit *audit = &core->tiling.audit;
    uint32_t division = 0;
    uint64_t key;

    if (audit->level == CAIRN_TILING_LEVELS) {
        char text[TILING_TEXT_BYTES];

        cairn_tiling_explain(&audit->pieces, text, sizeof text);
        conclude(core, false, text);
        return;
    }
    while (division < CAIRN_TILING_FAN && audit->sums[division] == 0)
        division++;
    if (division < CAIRN_TILING_FAN) {
        audit->prefix = audit->prefix << CAIRN_TILING_FAN_LOG2 | division;
        audit->level++;
    } else if (audit->level > 0) {
        conclude(
            core, false,
            "a tensor is not held exactly once, and the ranks contradict themselves about which");
        return;
    } else if (find_double(audit, &key)) {
        audit->prefix = cairn_tiling_prefix(key);
        audit->level = CAIRN_TILING_LEVELS;
    } else {
        if (audit->uncounted)
            CAIRN_LOG_AT(WARN,
                         "save: there are more than %d tensors: none is looked for that two ranks "
                         "hold whole",
                         ORIGINS_MAX);
        conclude(core, true, "");
        return;
    }
    memset(audit->answered, 0, cairn_bitset_words(member_count(core)) * sizeof(uint64_t));
    memset(audit->received, 0, member_count(core) * sizeof *audit->received);
    memset(audit->sums, 0, sizeof audit->sums);
    ask_all(core);
}

static void
audit_go_on(struct cairn_core *core)
{
    struct tiling_audit *audit = &core->tiling.audit;

    while (tiling_audit_runs(audit) && cairn_bitset_full(audit->answered, member_count(core)))
        advance(core);
}

/* Nobody waits for it any more. */
static bool
is_moot(struct cairn_core *core, struct cairn_generation generation)
{
    const struct facts *facts = facts_find(core, generation);

    return core->frozen || !facts || facts->vetoed || facts->committed ||
           cairn_generation_compare(generation, core->committed) <= 0;
}

/*
 * A member has said yes and does not answer: its agent has restarted without that part, say. It may
 * have all parts of a newer generation, and only the commit of that ends the wait for this one.
 */
static bool
makes_way(const struct cairn_core *core, struct cairn_generation newer)
{
    const struct tiling_audit *audit = &core->tiling.audit;

    return cairn_generation_compare(newer, audit->generation) > 0 &&
           core->now_ns - audit->progress_ns >= 2 * core->options.resend_after_ns;
}

void
tiling_audit_begin(struct cairn_core *core, const struct facts *facts, uint64_t combination)
{
    struct tiling_audit *audit = &core->tiling.audit;
    uint32_t n = member_count(core);

    if (tiling_audit_runs(audit) && !is_moot(core, audit->generation) &&
        !makes_way(core, facts->generation))
        return; /* one after the other */
    tiling_audit_end(audit);
    audit->layouts = calloc(n, sizeof *audit->layouts);
    audit->received = calloc(n, sizeof *audit->received);
    audit->answered = calloc(cairn_bitset_words(n), sizeof *audit->answered);
    if (!audit->layouts || !audit->received || !audit->answered) {
        tiling_audit_end(audit); /* until the next tick */
        return;
    }
    memcpy(audit->layouts, facts->layouts, n * sizeof *audit->layouts);
    audit->generation = facts->generation;
    audit->combination = combination;
    audit->progress_ns = core->now_ns;
    ask_all(core);
    audit_go_on(core);
}

void
tiling_audit_message(struct cairn_core *core, const struct cairn_message *message)
{
    struct tiling_audit *audit = &core->tiling.audit;
    uint32_t before;

    if (!tiling_audit_runs(audit) || message->member >= member_count(core))
        return;
    before = audit->received[message->member];
    take_part(core, message);
    if (audit->received[message->member] != before &&
        !cairn_bitset_has(audit->answered, message->member)) {
        struct cairn_message ask = ask_of(core, message->member);

        send_message(core, agent_of(core, message->member), &ask); /* the keys that are left */
    }
    audit_go_on(core);
    if (!tiling_audit_runs(audit))
        facts_settle_full(core);
}

void
tiling_audit_tick(struct cairn_core *core)
{
    struct tiling_audit *audit = &core->tiling.audit;

    if (tiling_audit_runs(audit) && is_moot(core, audit->generation))
        tiling_audit_end(audit);
    if (!tiling_audit_runs(audit) || core->now_ns - audit->sent_ns < core->options.resend_after_ns)
        return;
    ask_all(core);
    audit_go_on(core);
}
