/*
 * tests/unit/transport/test_identity.c - which patterns of names tell nodes and jobs apart, and
 * which names of a certificate count.
 */
#include "transport/identity.h"
#include "tests/support/cmocka.h"

#include <string.h>

#define SPIFFE "spiffe://example.org/cairn/{job}/{node}"
#define DNS "{job}-{node}.cairn.example.org"

static void
good_patterns(void **state)
{
    static const char *const good[] = {SPIFFE,
                                       DNS,
                                       "spiffe://example.org/ns/train/pod/{job}-{node}",
                                       "{node}.{job}.cairn",
                                       "spiffe://{job}.example.org/{node}",
                                       "node{node}.{job}.cairn",
                                       "spiffe://a/{node}/{job}"};
    char why[512];

    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_int_equal(cairn_identity_check(good[i], "llama-3", why, sizeof why), CAIRN_OK);
}

static void
bad_patterns(void **state)
{
    static const struct {
        const char *pattern, *job;
    } bad[] = {
        {"", "a"},
        {"spiffe://example.org/cairn/{node}", "a"}, /* no job */
        {"spiffe://example.org/cairn/{job}", "a"},  /* no node */
        {"spiffe://example.org/{job}/{node}/{node}", "a"},
        {"spiffe://example.org/{job}{node}", "a"},
        {"spiffe://example.org/{node}{job}", "a"},
        {"spiffe://example.org/{job}/1{node}", "a"},
        {"spiffe://example.org/{job}/{node}0", "a"},
        {"https://example.org/{job}/{node}", "a"},
        {"SPIFFE://example.org/{job}/{node}", "a"},
        {"spiffe://Example.org/{job}/{node}", "a"},
        {"spiffe:///{job}/{node}", "a"},
        {"spiffe://example.org/{job}//{node}", "a"},
        {"spiffe://example.org/{job}/{node}/", "a"},
        {"spiffe://example.org/../{job}/{node}", "a"},
        {"spiffe://example.org/{job}/{node}", ".."},
        {"spiffe://example.org/{job}/{node}?x", "a"},
        {"spiffe://example.org:80/{job}/{node}", "a"},
        {"spiffe://example.org/{jobs}/{job}/{node}", "a"},
        {"{job}-{node}.cairn", "Llama"}, /* case does not count in DNS, so it must not differ */
        {"*.{job}.{node}", "a"},
        {"{job}-{node}..cairn", "a"},
        {".{job}-{node}", "a"},
        {"{job}-{node}.", "a"},
        {"{job}-{node}.cairn example", "a"},
        {"{job}-{node}", "a234567890123456789012345678901234567890123456789012345678"},
    };
    char why[512], longest[CAIRN_IDENTITY_PATTERN_BYTES_MAX + 1];

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        why[0] = '\0';
        if (cairn_identity_check(bad[i].pattern, bad[i].job, why, sizeof why) != CAIRN_CONFIG)
            fail_msg("\"%s\" is not refused", bad[i].pattern);
        assert_true(strlen(why) > 10);
    }
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    memcpy(longest, SPIFFE "/", sizeof SPIFFE);
    assert_int_equal(cairn_identity_check(longest, "a", why, sizeof why), CAIRN_CONFIG);
}

/* No two nodes of any of these jobs have one name, by any pattern that is let through. */
static void
names_differ(void **state)
{
    static const char *const patterns[] = {"{job}-{node}.x", "{node}-{job}.x", "x{node}.{job}",
                                           "{job}x{node}", "spiffe://a/{job}/{node}"};
    static const char *const jobs[] = {"a", "a1", "a-1", "1-a", "1", "1-1", "a.1", "1.a", "11"};
    enum { JOBS = sizeof jobs / sizeof *jobs, NODES = 120 };
    static char names[JOBS * NODES][CAIRN_IDENTITY_BYTES_MAX];
    char why[512];

    for (size_t p = 0; p < sizeof patterns / sizeof *patterns; p++) {
        for (uint32_t job = 0; job < JOBS; job++) {
            assert_int_equal(cairn_identity_check(patterns[p], jobs[job], why, sizeof why),
                             CAIRN_OK);
            for (uint32_t node = 0; node < NODES; node++)
                cairn_identity_format(patterns[p], jobs[job], node, names[job * NODES + node]);
        }
        for (size_t i = 0; i < JOBS * NODES; i++)
            for (size_t j = 0; j < i; j++)
                if (strcmp(names[i], names[j]) == 0)
                    fail_msg("%s is the name of two nodes", names[i]);
    }
}

static struct cairn_identity_name
uri(const char *text)
{
    return (struct cairn_identity_name){CAIRN_IDENTITY_URI, (const uint8_t *)text, strlen(text)};
}

static struct cairn_identity_name
dns(const char *text)
{
    return (struct cairn_identity_name){CAIRN_IDENTITY_DNS, (const uint8_t *)text, strlen(text)};
}

static void
a_spiffe_id_is_the_only_uri(void **state)
{
    char id[CAIRN_IDENTITY_BYTES_MAX];
    struct cairn_identity_name names[3];

    cairn_identity_format(SPIFFE, "test", 3, id);
    assert_string_equal(id, "spiffe://example.org/cairn/test/3");
    assert_false(cairn_identity_matches(id, NULL, 0));
    names[0] = uri(id);
    assert_true(cairn_identity_matches(id, names, 1));
    names[1] = dns("host7.example.org");
    assert_true(cairn_identity_matches(id, names, 2)); /* SPIRE adds DNS names */
    names[2] = uri("spiffe://example.org/other");
    assert_false(cairn_identity_matches(id, names, 3));
    names[2] = uri(id); /* even the same */
    assert_false(cairn_identity_matches(id, names, 3));
}

static void
other_names_do_not_match(void **state)
{
    static const char *const others[] = {"spiffe://example.org/cairn/test/30",
                                         "spiffe://example.org/cairn/test/",
                                         "spiffe://example.org/cairn/test/03",
                                         "spiffe://example.org/cairn/test2/3",
                                         "spiffe://example.org/cairn/TEST/3",
                                         "spiffe://example.com/cairn/test/3",
                                         "SPIFFE://example.org/cairn/test/3",
                                         "spiffe://example.org/cairn/test/3 ",
                                         ""};
    char id[CAIRN_IDENTITY_BYTES_MAX];
    struct cairn_identity_name name;

    cairn_identity_format(SPIFFE, "test", 3, id);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        name = uri(others[i]);
        assert_false(cairn_identity_matches(id, &name, 1));
    }
    name = dns(id); /* the right text as a name of the other kind */
    assert_false(cairn_identity_matches(id, &name, 1));
    name = (struct cairn_identity_name){
        CAIRN_IDENTITY_URI, (const uint8_t *)"spiffe://example.org/cairn/test/3\0.evil", 39};
    assert_false(cairn_identity_matches(id, &name, 1));
}

static void
dns_names_have_no_case_and_no_wildcards(void **state)
{
    char id[CAIRN_IDENTITY_BYTES_MAX];
    struct cairn_identity_name names[2];

    cairn_identity_format(DNS, "test", 3, id);
    assert_string_equal(id, "test-3.cairn.example.org");
    names[0] = dns("node7.example.org");
    names[1] = dns("Test-3.CAIRN.example.org");
    assert_true(cairn_identity_matches(id, names, 2));
    names[1] = dns("*.cairn.example.org");
    assert_false(cairn_identity_matches(id, names, 2));
    names[1] = dns("test-3.cairn.example.org.");
    assert_false(cairn_identity_matches(id, names, 2));
    names[1] = (struct cairn_identity_name){CAIRN_IDENTITY_DNS,
                                            (const uint8_t *)"test-3\0cairn.example.org", 24};
    assert_false(cairn_identity_matches(id, names, 2));
    names[1] = uri(id);
    assert_false(cairn_identity_matches(id, names, 2));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_patterns),
        cmocka_unit_test(bad_patterns),
        cmocka_unit_test(names_differ),
        cmocka_unit_test(a_spiffe_id_is_the_only_uri),
        cmocka_unit_test(other_names_do_not_match),
        cmocka_unit_test(dns_names_have_no_case_and_no_wildcards),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
