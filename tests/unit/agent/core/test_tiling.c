/*
 * tests/unit/agent/core/test_tiling.c - the audit of layouts between two members, message by
 * message: the first one finds out, with lost, late and malformed answers; the other one answers,
 * waits and asks.
 */
#include "agent/core/core.h"
#include "base/limits.h"
#include "base/wire.h"
#include "snapshot/manifest.h"
#include "snapshot/tiling.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TICK_NS = 1000000, PACKED_MAX = 4096 };

/* What an event led to. */
struct seen {
    uint32_t asks, layouts, tiled, committed;
    struct cairn_message ask, layout, verdict; /* the last of each */
    uint8_t layout_bytes[65536];
    char text[300];
};

/* One of two members, which holds elements [at, at + count) of the 4 of "x". */
struct side {
    uint32_t self;
    uint64_t at, count;
    uint8_t manifest[PACKED_MAX];
    size_t manifest_len;
    uint32_t digest;
    struct cairn_core *core;
    uint64_t now_ns;
    uint64_t epoch;
    struct seen seen;
};

static void
pack(struct side *side, uint64_t step)
{
    uint64_t crc = step;
    struct cairn_manifest_rank rank = {
        .rank = side->self, .world = 2, .region_bytes = CAIRN_BLOCK_BYTES};
    struct cairn_manifest_entry entry = {.slice = {.name = "x",
                                                   .dtype = CAIRN_F32,
                                                   .kind = CAIRN_PARAM,
                                                   .dims = 1,
                                                   .shape = {4},
                                                   .offset = {side->at},
                                                   .extent = {side->count},
                                                   .device = -1,
                                                   .replica_count = 1},
                                         .rank = side->self};
    struct cairn_manifest manifest = {.job_id = 1,
                                      .generation = {side->epoch, step},
                                      .container = side->self,
                                      .container_count = 2,
                                      .container_bytes = CAIRN_BLOCK_BYTES,
                                      .ranks = &rank,
                                      .rank_count = 1,
                                      .entry_count = 1,
                                      .entries = &entry,
                                      .block_crcs = &crc,
                                      .block_count = 1};
    uint8_t *bytes = NULL;

    assert_int_equal(cairn_manifest_pack(&manifest, &bytes, &side->manifest_len), CAIRN_OK);
    assert_true(side->manifest_len <= sizeof side->manifest);
    memcpy(side->manifest, bytes, side->manifest_len);
    side->digest = cairn_tiling_digest(bytes, side->manifest_len);
    free(bytes);
}

static void
look(struct seen *seen, const struct cairn_action *action)
{
    const struct cairn_message *message = &action->message;

    seen->committed += action->type == CAIRN_ACTION_COMMITTED;
    if (action->type != CAIRN_ACTION_SEND)
        return;
    if (message->type == CAIRN_MSG_LAYOUT_ASK) {
        seen->asks++;
        seen->ask = *message;
    } else if (message->type == CAIRN_MSG_LAYOUT) {
        seen->layouts++;
        seen->layout = *message;
        memcpy(seen->layout_bytes, message->bytes, message->bytes_len);
        seen->layout.bytes = seen->layout_bytes;
    } else if (message->type == CAIRN_MSG_TILED) {
        seen->tiled++;
        seen->verdict = *message;
        assert_true(message->bytes_len < sizeof seen->text);
        if (message->bytes_len)
            memcpy(seen->text, message->bytes, message->bytes_len);
        seen->text[message->bytes_len] = '\0';
    }
}

/* The last request of the driver's is answered by the next event. */
static void
take(struct side *side, struct cairn_event event, uint64_t *asked)
{
    struct cairn_actions actions = {0};

    event.now_ns = side->now_ns;
    if (asked)
        event.request = *asked;
    cairn_core_step(side->core, &event, &actions);
    assert_false(actions.failed);
    memset(&side->seen, 0, offsetof(struct seen, ask));
    for (size_t i = 0; i < actions.count; i++) {
        look(&side->seen, &actions.list[i]);
        if (asked && (actions.list[i].type == CAIRN_ACTION_SEAL ||
                      actions.list[i].type == CAIRN_ACTION_FINISH))
            *asked = actions.list[i].request;
    }
    cairn_actions_fini(&actions);
}

static void
tell(struct side *side, struct cairn_message message)
{
    message.from = 1 - side->self;
    message.to = side->self;
    message.epoch = side->epoch;
    take(side, (struct cairn_event){.type = CAIRN_EVENT_MESSAGE, .message = &message}, NULL);
}

static void
tick(struct side *side, uint64_t after_ns)
{
    side->now_ns += after_ns;
    take(side, (struct cairn_event){.type = CAIRN_EVENT_TICK}, NULL);
}

static struct side *
new_side(uint32_t self, uint64_t at, uint64_t count, bool with_core)
{
    const struct cairn_core_options options = {.self = self,
                                               .agent_count = 2,
                                               .group_size = 1,
                                               .slots = 2,
                                               .slot_blocks = 64,
                                               .every_steps = 1,
                                               .incarnation = 1,
                                               .heartbeat_interval_ns = 1000 * (uint64_t)TICK_NS,
                                               .dead_after_ns = 100000 * (uint64_t)TICK_NS,
                                               .resend_after_ns = 10 * (uint64_t)TICK_NS,
                                               .claim_timeout_ns = 10000 * (uint64_t)TICK_NS,
                                               .rebuild_timeout_ns = 20000 * (uint64_t)TICK_NS};
    struct cairn_bytes none = {0}, records[CAIRN_HOLDINGS_MAX] = {{0}};
    struct side *side = calloc(1, sizeof *side);
    struct cairn_core_view view;
    uint32_t dropped;

    assert_non_null(side);
    side->self = self;
    side->at = at;
    side->count = count;
    side->now_ns = TICK_NS;
    side->epoch = (UINT64_C(1) << 16) | 0xffff;
    pack(side, 1);
    if (!with_core)
        return side;
    assert_int_equal(cairn_core_create(&options, TICK_NS, none, records, &dropped, &side->core),
                     CAIRN_OK);
    cairn_core_look(side->core, &view);
    assert_int_equal(view.active, side->epoch);
    take(side, (struct cairn_event){.type = CAIRN_EVENT_RANKS, .count = 1, .blocks = 1}, NULL);
    return side;
}

static void
end_side(struct side *side)
{
    cairn_core_destroy(side->core);
    free(side);
}

/* The own part of a step is captured, and voted for. */
static void
complete(struct side *side, uint64_t step)
{
    static const uint64_t crc = 5;
    struct cairn_generation generation = {side->epoch, step};
    uint64_t asked = 0;

    side->now_ns += 1000 * (uint64_t)TICK_NS; /* steps are slow */
    pack(side, step);
    take(side, (struct cairn_event){.type = CAIRN_EVENT_BEGIN, .step = step}, NULL);
    take(side,
         (struct cairn_event){
             .type = CAIRN_EVENT_BLOCKS, .generation = generation, .count = 1, .crcs = &crc},
         NULL);
    take(side, (struct cairn_event){.type = CAIRN_EVENT_DONE, .generation = generation}, &asked);
    take(side,
         (struct cairn_event){.type = CAIRN_EVENT_SEALED,
                              .holding = (uint32_t)(step - 1) % 2,
                              .generation = generation,
                              .bytes = side->manifest,
                              .bytes_len = side->manifest_len},
         &asked);
    take(side,
         (struct cairn_event){.type = CAIRN_EVENT_FINISHED,
                              .holding = (uint32_t)(step - 1) % 2,
                              .generation = generation},
         &asked);
}

/* The other member's yes. */
static void
vote(struct side *side, const struct side *other, uint64_t step)
{
    uint8_t bytes[16 + 2 + 4];
    struct cairn_writer writer;

    cairn_writer_init(&writer, bytes, sizeof bytes);
    cairn_write_u64(&writer, UINT64_C(1) << other->self);
    cairn_write_u64(&writer, 0);
    cairn_write_u16(&writer, 1);
    cairn_write_u32(&writer, other->digest);
    tell(side, (struct cairn_message){.type = CAIRN_MSG_FACTS,
                                      .generation = {side->epoch, step},
                                      .member = 2,
                                      .bytes = bytes,
                                      .bytes_len = sizeof bytes});
}

static struct cairn_message
ask_of(const struct side *of, uint64_t step)
{
    return (struct cairn_message){.type = CAIRN_MSG_LAYOUT_ASK,
                                  .generation = {of->epoch, step},
                                  .member = of->self,
                                  .request = of->digest,
                                  .total = 1234};
}

/* What the other member, a core too, answers to the question that was asked last. */
static struct cairn_message
answer_of(const struct side *first, struct side *other)
{
    assert_true(first->seen.asks > 0);
    tell(other, first->seen.ask);
    assert_int_equal(other->seen.layouts, 1);
    return other->seen.layout;
}

static void
assert_refusal(const struct side *side, const char *text)
{
    struct cairn_core_view view;

    cairn_core_look(side->core, &view);
    assert_string_equal(view.refusal, text);
}

static void
a_new_combination_is_audited_once(void **state)
{
    struct side *first = new_side(0, 0, 2, true), *second = new_side(1, 2, 2, true);

    (void)state;
    complete(first, 1);
    complete(second, 1);
    vote(first, second, 1);
    assert_int_equal(first->seen.committed, 0);
    assert_int_equal(first->seen.asks, 1);
    assert_int_equal(first->seen.ask.request, second->digest);
    tick(first, 11 * (uint64_t)TICK_NS); /* the question was lost */
    assert_int_equal(first->seen.asks, 1);
    tell(first, answer_of(first, second));
    assert_int_equal(first->seen.committed, 1);
    assert_int_equal(first->seen.tiled, 1);
    assert_int_equal(first->seen.verdict.err, CAIRN_OK);
    vote(second, first, 1);
    assert_int_equal(second->seen.committed, 0); /* it may not know yet */
    tell(second, first->seen.verdict);
    assert_int_equal(second->seen.committed, 1);
    for (uint64_t step = 2; step <= 3; step++) {
        complete(first, step);
        vote(first, second, step);
        assert_int_equal(first->seen.committed, 1);
        assert_int_equal(first->seen.asks, 0);
    }
    end_side(first);
    end_side(second);
}

/* Both hold the same half, or all of it: as many questions as there are divisions, then pieces, and
 * names. */
/* Of the first generation a member's part is lost, so its questions are never answered: the next
 * one is looked at instead. */
static void
what_nobody_answers_makes_way(void **state)
{
    struct side *first = new_side(0, 0, 2, true), *other = new_side(1, 2, 2, true);

    (void)state;
    complete(first, 1);
    complete(first, 2);
    complete(other, 1);
    complete(other, 2);
    vote(first, other, 1);
    assert_int_equal(first->seen.asks, 1);
    assert_int_equal(first->seen.ask.generation.step, 1);
    vote(first, other, 2);
    assert_int_equal(first->seen.asks, 0); /* one after the other */
    tick(first, 10 * TICK_NS);
    assert_int_equal(first->seen.ask.generation.step, 1);
    tick(first, 10 * TICK_NS);
    assert_int_equal(first->seen.ask.generation.step, 2);
    tick(first, 30 * TICK_NS);
    assert_int_equal(first->seen.ask.generation.step, 2); /* an older one does not displace it */
    tell(first, answer_of(first, other));
    assert_true(first->seen.committed > 0);
    end_side(first);
    end_side(other);
}

static void
a_bad_combination_is_refused(void **state)
{
    static const struct {
        uint64_t at, count, questions;
        const char *text;
    } cases[] = {
        {0, 2, 4,
         "x: pieces in ranks 0 and 1 both hold [0:2]; x: 2 of 4 elements are in no piece, such as "
         "[2:4]"},
        {0, 4, 4, "x: pieces in ranks 0 and 1 both hold [0:2]"},
        {3, 1, 4, "x: 1 of 4 elements are in no piece, such as [2:3]"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct side *first = new_side(0, 0, 2, true),
                    *second = new_side(1, cases[i].at, cases[i].count, true);
        uint64_t questions = 0;

        complete(first, 1);
        complete(second, 1);
        for (vote(first, second, 1); first->seen.tiled == 0 && questions < 9; questions++)
            tell(first, answer_of(first, second));
        assert_int_equal(questions, cases[i].questions);
        assert_int_equal(first->seen.committed, 0);
        assert_int_equal(first->seen.verdict.err, CAIRN_CORRUPT);
        assert_string_equal(first->seen.text, cases[i].text);
        assert_refusal(first, cases[i].text);
        vote(second, first, 1);
        tick(second, 11 * (uint64_t)TICK_NS); /* the verdict was lost: it asks */
        assert_int_equal(second->seen.tiled, 1);
        assert_int_equal(second->seen.verdict.err, CAIRN_AGAIN);
        tell(first, second->seen.verdict);
        assert_int_equal(first->seen.tiled, 1);
        first->seen.verdict.bytes = (const uint8_t *)first->seen.text;
        tell(second, first->seen.verdict);
        assert_refusal(second, cases[i].text);
        tell(second, (struct cairn_message){.type = CAIRN_MSG_TILED,
                                            .request = 99,
                                            .err = CAIRN_OK,
                                            .generation = {second->epoch, 1}});
        assert_int_equal(second->seen.committed, 0);
        end_side(first);
        end_side(second);
    }
}

/* Both hold a tensor whole: the sums cannot say so, the keys do. */
static void
a_tensor_held_twice_is_refused(void **state)
{
    struct side *first = new_side(0, 0, 4, true), *second = new_side(1, 0, 4, true);

    (void)state;
    complete(first, 1);
    complete(second, 1);
    vote(first, second, 1);
    tell(first, answer_of(first, second));
    assert_int_equal(first->seen.ask.stripe, CAIRN_TILING_LEVELS);
    tell(first, answer_of(first, second));
    assert_string_equal(first->seen.text, "x: pieces in ranks 0 and 1 both hold [0:4]");
    assert_refusal(first, "x: pieces in ranks 0 and 1 both hold [0:4]");
    end_side(first);
    end_side(second);
}

/* What does not answer the question changes nothing. */
static void
malformed_answers(void **state)
{
    struct side *first = new_side(0, 0, 2, true), *second = new_side(1, 2, 2, true);
    uint8_t bytes[65536];
    struct cairn_message good, bad;

    (void)state;
    complete(first, 1);
    complete(second, 1);
    vote(first, second, 1);
    good = answer_of(first, second);
    for (uint32_t i = 0; i < 11; i++) {
        bad = good;
        memset(bytes, 0, sizeof bytes);
        memcpy(bytes, good.bytes, good.bytes_len);
        bad.bytes = bytes;
        switch (i) {
        case 0:
            bad.request++;
            break;
        case 1:
            bad.member = 0;
            break;
        case 2:
            bad.member = 7;
            break;
        case 3:
            bad.stripe = 1;
            break;
        case 4:
            bad.stripe = CAIRN_TILING_LEVELS;
            break;
        case 5:
            bad.first_block = 1;
            break;
        case 6:
            bad.offset = 1;
            break;
        case 7:
            bad.bytes_len = 511;
            break;
        case 8:
            bad.total = UINT64_MAX;
            break;
        case 9:
            bad.bytes_len = 65536;
            break; /* more keys than there are */
        case 10:
            memset(bytes, 0xff, 8);
            break; /* no number of the field */
        }
        tell(first, bad);
        assert_int_equal(first->seen.committed + first->seen.tiled, 0);
    }
    bad = good;
    bad.generation.step = 2;
    tell(first, bad);
    assert_int_equal(first->seen.committed, 0);
    tell(first, good);
    assert_int_equal(first->seen.committed, 1);
    tell(first, good); /* late */
    assert_int_equal(first->seen.committed, 0);
    end_side(first);
    end_side(second);
}

/* One part with more keys than are kept, two million: they are counted to the end, and the others
 * are looked at all the same. */
static void
more_keys_than_are_kept(void **state)
{
    enum { KEYS = 7168, MESSAGES = 300 };
    struct side *first = new_side(0, 0, 2, true), *second = new_side(1, 2, 2, true);
    uint8_t bytes[65536] = {0};
    struct cairn_message good, part;

    (void)state;
    complete(first, 1);
    complete(second, 1);
    vote(first, second, 1);
    good = answer_of(first, second);
    part = good;
    memcpy(bytes, good.bytes, 512);
    part.bytes = bytes;
    part.bytes_len = 512 + 8 * KEYS;
    part.total = (uint64_t)KEYS * MESSAGES;
    for (uint64_t i = 0; i < MESSAGES; i++) {
        for (uint64_t key = 0; key < KEYS; key++) {
            uint64_t value = 1000 + i * KEYS + key;

            memcpy(bytes + 512 + 8 * key, &value, 8);
        }
        assert_int_equal(first->seen.committed, 0);
        assert_int_equal(first->seen.ask.offset, i * KEYS);
        part.offset = i * KEYS;
        tell(first, part);
    }
    assert_int_equal(first->seen.committed, 1);
    end_side(first);
    end_side(second);
}

static void
questions_to_a_member(void **state)
{
    struct side *second = new_side(1, 2, 2, true);
    struct cairn_message ask;

    (void)state;
    complete(second, 1);
    ask = ask_of(second, 2); /* it has no such part */
    tell(second, ask);
    assert_int_equal(second->seen.layouts, 0);
    ask = ask_of(second, 1);
    ask.request++; /* another layout */
    tell(second, ask);
    assert_int_equal(second->seen.layouts, 0);
    ask = ask_of(second, 1);
    ask.offset = UINT64_MAX;
    ask.first_block = UINT64_MAX;
    for (ask.stripe = 0; ask.stripe < 6; ask.stripe++) {
        tell(second, ask);
        assert_int_equal(second->seen.layouts, 1);
        assert_true(second->seen.layout.bytes_len <= 512);
    }
    tell(second, (struct cairn_message){.type = CAIRN_MSG_TILED,
                                        .request = 1234,
                                        .err = CAIRN_OK,
                                        .generation = ask.generation});
    tell(second, ask_of(second, 1)); /* it knows the verdict */
    assert_int_equal(second->seen.layouts, 0);
    assert_int_equal(second->seen.tiled, 1);
    assert_int_equal(second->seen.verdict.err, CAIRN_OK);
    end_side(second);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_combination_is_audited_once),
        cmocka_unit_test(what_nobody_answers_makes_way),
        cmocka_unit_test(a_bad_combination_is_refused),
        cmocka_unit_test(a_tensor_held_twice_is_refused),
        cmocka_unit_test(malformed_answers),
        cmocka_unit_test(more_keys_than_are_kept),
        cmocka_unit_test(questions_to_a_member),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
