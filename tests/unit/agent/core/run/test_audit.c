/*
 * tests/unit/agent/core/run/test_audit.c - the audit of layouts, message by message: good and bad
 * parts, late, lost and malformed answers, and members behind a head.
 */
#include "agent/core/run/audit.h"
#include "agent/core/epoch/tree.h"
#include "snapshot/manifest.h"
#include "tests/support/cmocka.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MEMBERS_MAX = 100, TENSORS_MAX = 8000, BLOCKS = 8 };

/* Elements [at, at + count) of a tensor of one dimension with `size` elements. */
struct box {
    char name[16];
    uint64_t size, at, count;
};

struct member {
    struct cairn_tiling *tiling;
};

/* Member 0 audits; agent numbers are 10 above members'. */
struct job {
    uint32_t count;
    struct member members[MEMBERS_MAX];
    struct cairn_message_report reports[MEMBERS_MAX + 10]; /* by agent */
    struct membership membership;
    struct cairn_core_options options;
    uint64_t up[2], epochs[MEMBERS_MAX + 10];
    struct peers peers;
    struct cairn_actions actions;
    struct env env;
    struct audit audit;
    uint32_t asked, answered;
    uint64_t run;
};

static void
set_layout(struct job *job, uint32_t m, const struct box *boxes, uint32_t count)
{
    struct cairn_manifest_entry *entries = calloc(count, sizeof *entries);
    struct cairn_manifest_rank rank = {
        .rank = m, .world = job->count, .region_bytes = BLOCKS * CAIRN_BLOCK_BYTES};
    static uint64_t crcs[BLOCKS];
    struct cairn_manifest manifest = {.job_id = 1,
                                      .generation = {.epoch = 1, .run = 1, .step = 1},
                                      .container = m,
                                      .container_count = job->count,
                                      .container_bytes = BLOCKS * CAIRN_BLOCK_BYTES,
                                      .ranks = &rank,
                                      .rank_count = 1,
                                      .entries = entries,
                                      .entry_count = count,
                                      .block_crcs = crcs,
                                      .block_count = BLOCKS};
    uint8_t *bytes = NULL;
    size_t len = 0;

    assert_non_null(entries);
    for (uint32_t i = 0; i < count; i++) {
        entries[i].slice = (struct cairn_slice){.name = boxes[i].name,
                                                .dtype = CAIRN_U8,
                                                .kind = CAIRN_PARAM,
                                                .dims = 1,
                                                .shape = {boxes[i].size},
                                                .offset = {boxes[i].at},
                                                .extent = {boxes[i].count},
                                                .device = -1,
                                                .replica_count = 1};
        entries[i].rank = m;
        entries[i].offset_bytes = (uint64_t)i * CAIRN_CAPTURE_ALIGN_BYTES;
    }
    assert_int_equal(cairn_manifest_pack(&manifest, &bytes, &len), CAIRN_OK);
    cairn_tiling_destroy(job->members[m].tiling);
    assert_int_equal(cairn_tiling_create(bytes, len, &job->members[m].tiling), CAIRN_OK);
    job->reports[m + 10].tiling_sum = cairn_tiling_sum(job->members[m].tiling);
    free(bytes);
    free(entries);
}

static struct job *
new_job(uint32_t count)
{
    struct job *job = calloc(1, sizeof *job);
    uint32_t agents[MEMBERS_MAX];

    assert_non_null(job);
    job->count = count;
    for (uint32_t m = 0; m < count; m++) {
        agents[m] = m + 10;
    }
    assert_int_equal(cairn_roster_build(agents, NULL, count, 0, 4, &job->membership.record.roster),
                     CAIRN_OK);
    job->membership.record.epoch = job->membership.promised = 5;
    job->options =
        (struct cairn_core_options){.self = 10, .agent_count = count + 10, .incarnation = 1};
    job->up[0] = job->up[1] = UINT64_MAX;
    for (uint32_t a = 0; a < count + 10; a++)
        job->epochs[a] = 5;
    job->peers = (struct peers){.up = job->up, .epochs = job->epochs};
    job->env = (struct env){.options = &job->options,
                            .membership = &job->membership,
                            .now_ns = 1,
                            .peers = &job->peers,
                            .actions = &job->actions};
    return job;
}

static void
end_job(struct job *job)
{
    for (uint32_t m = 0; m < job->count; m++)
        cairn_tiling_destroy(job->members[m].tiling);
    audit_end(&job->audit);
    cairn_actions_fini(&job->actions);
    cairn_roster_drop(job->membership.record.roster);
    free(job);
}

static enum cairn_tiling_verdict
begin(struct job *job)
{
    job->asked = job->answered = 0;
    audit_begin(&job->env, &job->audit, ++job->run, job->reports, job->count);
    return CAIRN_TILING_OPEN;
}

static enum cairn_tiling_verdict
give(struct job *job, const struct cairn_message *answer)
{
    job->answered++;
    return audit_answered(&job->env, &job->audit, answer);
}

/* The member's own env writes the answer; the caller clears `actions`. */
static struct cairn_message
answer_of(struct job *job, const struct cairn_message *question, struct cairn_actions *actions)
{
    struct cairn_core_options options = job->options;
    struct env env = job->env;

    options.self = question->as.audit.agent;
    env.options = &options;
    env.actions = actions;
    audit_reply(&env, 10, question, job->members[options.self - 10].tiling);
    assert_int_equal(actions->count, 1);
    return actions->list[0].as.send.message;
}

/* Answers every question, in the order given by `backwards`, until there are none. */
static enum cairn_tiling_verdict
run(struct job *job, enum cairn_tiling_verdict result, bool backwards)
{
    while (result == CAIRN_TILING_OPEN && job->actions.count > 0) {
        struct cairn_actions questions = job->actions;

        job->actions = (struct cairn_actions){0};
        job->env.actions = &job->actions;
        for (size_t i = 0; i < questions.count; i++) {
            size_t at = backwards ? questions.count - 1 - i : i;
            const struct cairn_message *question = &questions.list[at].as.send.message;
            struct cairn_actions actions = {0};
            struct cairn_message answer = answer_of(job, question, &actions);

            job->asked++;
            assert_int_equal(question->epoch, 5);
            assert_int_equal(question->as.audit.answer, 0);
            assert_int_equal(answer.as.audit.answer, 1);
            if (result == CAIRN_TILING_OPEN)
                result = give(job, &answer);
            cairn_actions_fini(&actions);
        }
        cairn_actions_fini(&questions);
    }
    cairn_actions_clear(&job->actions);
    return result;
}

/* One tensor in equal parts. */
static void
cut(struct job *job, uint32_t m, uint64_t at, uint64_t count)
{
    struct box box = {.name = "x", .size = 4 * (uint64_t)job->count, .at = at, .count = count};

    set_layout(job, m, &box, 1);
}

static void
a_good_one(void **unused)
{
    for (uint32_t n = 1; n <= 40; n += 13) {
        struct job *job = new_job(n);

        for (uint32_t m = 0; m < n; m++)
            cut(job, m, 4 * m, 4);
        assert_int_equal(run(job, begin(job), n % 2), CAIRN_TILING_GOOD);
        assert_int_equal(job->asked, n);
        assert_string_equal(job->audit.text, "");
        end_job(job);
    }
}

static void
a_gap(void **unused)
{
    struct job *job = new_job(4);

    for (uint32_t m = 0; m < 4; m++)
        cut(job, m, 4 * m, m == 2 ? 3 : 4);
    assert_int_equal(run(job, begin(job), false), CAIRN_TILING_BAD);
    assert_int_equal(job->asked, 4 * 2); /* sums, then pieces */
    assert_non_null(strstr(job->audit.text, "x"));
    cut(job, 2, 8, 4);
    assert_int_equal(run(job, begin(job), true), CAIRN_TILING_GOOD);
    assert_string_equal(job->audit.text, "");
    end_job(job);
}

/* Two members each hold all of a tensor: no sum shows it, the keys do. */
static void
a_double(void **unused)
{
    struct job *job = new_job(2);

    cut(job, 0, 0, 8);
    cut(job, 1, 0, 8);
    assert_int_equal(run(job, begin(job), false), CAIRN_TILING_BAD);
    assert_int_equal(job->asked, 2 * 2);
    assert_non_null(strstr(job->audit.text, "x"));
    end_job(job);
}

/* A member without tensors is asked too: its trainers answer for the run. */
static void
an_empty_shard(void **unused)
{
    struct job *job = new_job(3);

    cut(job, 0, 0, 6);
    cut(job, 2, 6, 6);
    assert_int_equal(run(job, begin(job), false), CAIRN_TILING_GOOD);
    assert_int_equal(job->asked, 3);
    end_job(job);
}

/* Many keys in one answer. */
static void
many_tensors(void **unused)
{
    static struct box boxes[TENSORS_MAX];
    struct job *job = new_job(2);

    for (uint32_t m = 0; m < 2; m++) {
        for (uint32_t i = 0; i < TENSORS_MAX; i++) {
            boxes[i] = (struct box){.size = 1, .count = 1};
            (void)snprintf(boxes[i].name, sizeof boxes[i].name, "t%u.%u", m, i);
        }
        set_layout(job, m, boxes, TENSORS_MAX);
    }
    assert_int_equal(run(job, begin(job), false), CAIRN_TILING_GOOD);
    assert_int_equal(job->asked, 2);
    end_job(job);
}

static void
what_is_not_asked_for_changes_nothing(void **unused)
{
    struct job *job = new_job(2);
    struct cairn_actions actions = {0}, others = {0};
    struct cairn_message answer, other, wrong;

    cut(job, 0, 0, 4);
    cut(job, 1, 4, 4);
    assert_int_equal(begin(job), CAIRN_TILING_OPEN);
    answer = answer_of(job, &job->actions.list[0].as.send.message, &actions);
    other = answer_of(job, &job->actions.list[1].as.send.message, &others);
    wrong = answer;
    wrong.as.audit.run++;
    assert_int_equal(give(job, &wrong), CAIRN_TILING_OPEN);
    wrong = answer;
    wrong.as.audit.question++;
    assert_int_equal(give(job, &wrong), CAIRN_TILING_OPEN);
    wrong = answer;
    wrong.as.audit.agent = 99;
    assert_int_equal(give(job, &wrong), CAIRN_TILING_OPEN);
    wrong = answer;
    wrong.bytes_len -= 1;
    assert_int_equal(give(job, &wrong), CAIRN_TILING_OPEN);
    assert_int_equal(give(job, &answer), CAIRN_TILING_OPEN); /* one of two */
    assert_int_equal(give(job, &answer), CAIRN_TILING_OPEN); /* a repeat */
    answer = other;
    assert_int_equal(give(job, &answer), CAIRN_TILING_GOOD);
    assert_int_equal(give(job, &answer), CAIRN_TILING_OPEN); /* none is under way */
    cairn_actions_fini(&actions);
    cairn_actions_fini(&others);
    end_job(job);
}

/* A member that reports again and has not answered is asked again. */
static void
questions_are_asked_again(void **unused)
{
    struct job *job = new_job(40);
    uint32_t head = tree_towards(0, 40, 20), behind = 0, asked = 0;

    for (uint32_t m = 0; m < 40; m++)
        cut(job, m, 4 * m, 4);
    for (uint32_t m = 1; m < 40; m++)
        behind += tree_towards(0, 40, m) == head;
    job->up[(head + 10) / 64] &= ~(UINT64_C(1) << ((head + 10) % 64));
    assert_int_equal(run(job, begin(job), false), CAIRN_TILING_OPEN);
    assert_int_equal(job->asked, 40 - behind);
    job->up[0] = UINT64_MAX;
    audit_ask_again(&job->env, &job->audit, 11); /* it has answered */
    audit_ask_again(&job->env, &job->audit, 5);  /* no member */
    assert_int_equal(job->actions.count, 0);
    for (uint32_t m = 0; m < 40; m++)
        audit_ask_again(&job->env, &job->audit, m + 10);
    for (size_t i = 0; i < job->actions.count; i++) {
        assert_int_equal(job->actions.list[i].as.send.message.to, head + 10);
        asked++;
    }
    assert_int_equal(asked, behind);
    assert_int_equal(run(job, CAIRN_TILING_OPEN, false), CAIRN_TILING_GOOD);
    end_job(job);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_good_one),
        cmocka_unit_test(a_gap),
        cmocka_unit_test(a_double),
        cmocka_unit_test(an_empty_shard),
        cmocka_unit_test(many_tensors),
        cmocka_unit_test(what_is_not_asked_for_changes_nothing),
        cmocka_unit_test(questions_are_asked_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
