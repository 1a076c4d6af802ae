/* tests/unit/agent/core/epoch/test_membership.c - promises, claims that must be refused, and
 * activations. */
#include "agent/core/epoch/membership.h"
#include "tests/support/cmocka.h"

#include <stdlib.h>
#include <string.h>

enum { AGENTS = 4, SELF = 1, COORDINATOR = 2 };
static const uint64_t incarnation = 50;

static struct cairn_core_options options = {
    .self = SELF, .agent_count = AGENTS, .incarnation = incarnation, .heartbeat_interval_ns = 1};
static struct cairn_actions actions;
static struct env env;
static struct peers peers;
static struct membership membership;

static int
setup(void **unused)
{
    memset(&membership, 0, sizeof membership);
    assert_int_equal(peers_init(&peers, &options, 1), CAIRN_OK);
    env = (struct env){
        .options = &options, .membership = &membership, .peers = &peers, .actions = &actions};
    for (uint32_t a = 0; a < AGENTS; a++)
        if (a != SELF)
            peers_up(&env, &peers, a, 10);
    assert_int_equal(membership_init(&membership, &options, (struct cairn_bytes){NULL, 0}, false),
                     CAIRN_OK);
    return 0;
}

static int
teardown(void **unused)
{
    cairn_actions_fini(&actions);
    membership_fini(&membership);
    peers_fini(&peers);
    return 0;
}

static uint64_t
epoch_of(uint64_t round, uint32_t claimant)
{
    return round << EPOCH_CLAIMANT_BITS | claimant;
}

/* A record that names everyone as this agent knows them. */
static void
make_record(struct record *record, uint64_t epoch)
{
    static const uint32_t agents[AGENTS] = {0, 1, 2, 3};

    memset(record, 0, sizeof *record);
    record->epoch = epoch;
    record->agent_count = AGENTS;
    record->seen = calloc(AGENTS, sizeof *record->seen);
    for (uint32_t a = 0; a < AGENTS; a++)
        record->seen[a].incarnation = a == SELF ? incarnation : 10;
    assert_int_equal(cairn_roster_build(agents, NULL, AGENTS, 1, AGENTS, &record->roster),
                     CAIRN_OK);
}

/* Gives a record as CLAIM or ACTIVATE; returns what the PROMISE says. */
static cairn_err
give(enum cairn_message_kind kind, uint32_t from, struct record *record, uint64_t version)
{
    struct cairn_message message = {.kind = kind, .from = from, .to = SELF, .epoch = record->epoch};
    uint8_t *bytes = NULL;
    size_t len = 0;
    cairn_err err = CAIRN_OK;

    assert_int_equal(record_pack(record, &bytes, &len), CAIRN_OK);
    message.bytes = bytes;
    message.bytes_len = (uint32_t)len;
    cairn_actions_clear(&actions);
    if (kind == CAIRN_MSG_CLAIM) {
        (void)membership_claim(&env, &membership, &peers, version, &message);
        assert_true(actions.count > 0);
        err = (cairn_err)actions.list[actions.count - 1].as.send.message.as.promise.err;
    } else {
        (void)membership_activate(&env, &membership, &message);
    }
    free(bytes);
    record_fini(record);
    return err;
}

static cairn_err
claim(uint64_t epoch, uint32_t from)
{
    struct record record;

    make_record(&record, epoch);
    return give(CAIRN_MSG_CLAIM, from, &record, 0);
}

static void
a_promise_is_stored_before_it_is_sent(void **unused)
{
    assert_int_equal(claim(epoch_of(1, COORDINATOR), COORDINATOR), CAIRN_OK);
    assert_int_equal(membership.promised, epoch_of(1, COORDINATOR));
    assert_int_equal(actions.count, 2);
    assert_int_equal(actions.list[0].type, CAIRN_ACTION_STORE_EPOCH);
    assert_int_equal(actions.list[1].type, CAIRN_ACTION_SEND);
}

static void
the_sender_must_be_the_claimant(void **unused)
{
    assert_int_equal(claim(epoch_of(1, COORDINATOR), 3), CAIRN_INVAL);
    assert_int_equal(claim(epoch_of(1, 999), 3), CAIRN_INVAL);
    assert_int_equal(membership.promised, 0);
}

static void
absurd_epochs_are_refused_and_leave_no_trace(void **unused)
{
    struct record record;

    assert_int_equal(claim(epoch_of(UINT64_C(1) << 44, COORDINATOR), COORDINATOR), CAIRN_INVAL);
    make_record(&record, epoch_of(UINT64_C(1) << 44, COORDINATOR));
    (void)give(CAIRN_MSG_ACTIVATE, COORDINATOR, &record, 0);
    assert_int_equal(membership.record.epoch, 0);
    assert_int_equal(claim(epoch_of(1, COORDINATOR), COORDINATOR), CAIRN_OK);
}

static void
older_and_equal_claims_are_refused(void **unused)
{
    assert_int_equal(claim(epoch_of(5, COORDINATOR), COORDINATOR), CAIRN_OK);
    assert_int_equal(claim(epoch_of(5, COORDINATOR), COORDINATOR), CAIRN_STALE);
    assert_int_equal(claim(epoch_of(4, 3), 3), CAIRN_STALE);
    assert_int_equal(claim(epoch_of(6, 0), 0), CAIRN_OK);
}

static void
claims_that_do_not_match_what_is_known_are_refused(void **unused)
{
    struct record record;

    make_record(&record, epoch_of(1, COORDINATOR));
    record.seen[3].incarnation = 9; /* this agent has met a newer start */
    assert_int_equal(give(CAIRN_MSG_CLAIM, COORDINATOR, &record, 0), CAIRN_AGAIN);
    make_record(&record, epoch_of(1, COORDINATOR));
    record.seen[SELF].incarnation = incarnation - 1;
    assert_int_equal(give(CAIRN_MSG_CLAIM, COORDINATOR, &record, 0), CAIRN_AGAIN);
    make_record(&record, epoch_of(1, COORDINATOR));
    assert_int_equal(give(CAIRN_MSG_CLAIM, COORDINATOR, &record, 7), CAIRN_AGAIN);
    make_record(&record, epoch_of(1, COORDINATOR));
    record.seen[3].incarnation = 0; /* not heard by the coordinator: counted as lost */
    assert_int_equal(give(CAIRN_MSG_CLAIM, COORDINATOR, &record, 0), CAIRN_OK);
}

/* An agent that promises has met those that the record names, and refuses an older view (R9). */
static void
a_promise_meets_those_that_are_named(void **unused)
{
    struct record record;

    make_record(&record, epoch_of(1, COORDINATOR));
    record.seen[3].incarnation = 12;
    assert_int_equal(give(CAIRN_MSG_CLAIM, COORDINATOR, &record, 7), CAIRN_AGAIN);
    assert_true(peers_met(&env, 3) == 10);
    make_record(&record, epoch_of(1, COORDINATOR));
    record.seen[3].incarnation = 12;
    assert_int_equal(give(CAIRN_MSG_CLAIM, COORDINATOR, &record, 0), CAIRN_OK);
    assert_true(peers_met(&env, 3) == 12);
    make_record(&record, epoch_of(2, 0));
    record.seen[3].incarnation = 10;
    assert_int_equal(give(CAIRN_MSG_CLAIM, 0, &record, 0), CAIRN_AGAIN);
}

static void
an_epoch_admits_the_start_that_its_coordinator_saw(void **unused)
{
    struct record record;

    assert_true(membership.blank);
    make_record(&record, epoch_of(1, COORDINATOR));
    record.seen[SELF].incarnation = incarnation - 1;
    (void)give(CAIRN_MSG_ACTIVATE, COORDINATOR, &record, 0);
    assert_true(membership.blank);
    assert_int_equal(membership.self_member, UINT32_MAX);
    make_record(&record, epoch_of(2, COORDINATOR));
    (void)give(CAIRN_MSG_ACTIVATE, 3, &record, 0);
    assert_false(membership.blank);
    assert_int_equal(membership.self_member, SELF);
    assert_true(membership_acts(&membership));
}

/* R10: enough others have promised an epoch that begins. A promise alone, or an epoch that others
 * have promised without this agent, does not tell it what it forgot. */
static void
an_epoch_that_was_promised_ends_forgetting(void **unused)
{
    struct record record;

    assert_false(membership.knows);
    make_record(&record, epoch_of(1, COORDINATOR));
    (void)give(CAIRN_MSG_ACTIVATE, COORDINATOR, &record, 0);
    assert_false(membership.knows);
    assert_int_equal(claim(epoch_of(2, COORDINATOR), COORDINATOR), CAIRN_OK);
    assert_false(membership.knows);
    make_record(&record, epoch_of(2, COORDINATOR));
    (void)give(CAIRN_MSG_ACTIVATE, 3, &record, 0);
    assert_true(membership.knows);
}

static void
what_is_stored_comes_back(void **unused)
{
    struct membership back;
    struct record record;
    struct cairn_bytes stored;

    assert_int_equal(claim(epoch_of(1, COORDINATOR), COORDINATOR), CAIRN_OK);
    make_record(&record, epoch_of(1, COORDINATOR));
    (void)give(CAIRN_MSG_ACTIVATE, COORDINATOR, &record, 0);
    assert_int_equal(claim(epoch_of(2, 3), 3), CAIRN_OK);
    stored =
        (struct cairn_bytes){actions.list[0].as.store.bytes, actions.list[0].as.store.bytes_len};
    assert_int_equal(membership_init(&back, &options, stored, false), CAIRN_OK);
    assert_int_equal(back.promised, epoch_of(2, 3));
    assert_int_equal(back.record.epoch, epoch_of(1, COORDINATOR));
    assert_non_null(back.promised_roster);
    assert_true(back.knows);
    assert_false(back.blank || membership_acts(&back));
    membership_fini(&back);
    assert_int_equal(membership_init(&back, &options, stored, true), CAIRN_OK);
    assert_true(back.blank); /* a part's record was damaged */
    membership_fini(&back);
    for (size_t len = 1; len < stored.len; len++) {
        struct cairn_bytes cut = {stored.bytes, len};

        assert_int_not_equal(membership_init(&back, &options, cut, false), CAIRN_OK);
    }
}

int
main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_promise_is_stored_before_it_is_sent),
        TEST(the_sender_must_be_the_claimant),
        TEST(absurd_epochs_are_refused_and_leave_no_trace),
        TEST(older_and_equal_claims_are_refused),
        TEST(claims_that_do_not_match_what_is_known_are_refused),
        TEST(a_promise_meets_those_that_are_named),
        TEST(an_epoch_admits_the_start_that_its_coordinator_saw),
        TEST(an_epoch_that_was_promised_ends_forgetting),
        TEST(what_is_stored_comes_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
