/*
 * tests/unit/transport/test_tls.c - what a callee can tell of a hello: whether it names the job,
 * and whether its sender has shown the key.
 */
#include "transport/tls.h"
#include "tests/support/cmocka.h"

#include <string.h>

enum { FLIGHT_BYTES = 4096 };

static const char key[] = "the key of this job", other_key[] = "the key of nobody here";

static struct cairn_tls *
tls_make(uint64_t job_id, uint32_t node, const char *of)
{
    const struct cairn_transport_options options = {
        .node = node, .node_count = 2, .job_id = job_id, .key = of, .key_len = strlen(of)};
    struct cairn_tls *tls = NULL;

    assert_int_equal(cairn_tls_create(&options, &tls), CAIRN_OK);
    return tls;
}

/* A caller's first flight. */
static size_t
hello_of(struct cairn_tls *tls, uint8_t out[FLIGHT_BYTES])
{
    struct cairn_tls_link *link = NULL;
    size_t len;

    assert_int_equal(cairn_tls_link_create(tls, true, 0, &link), CAIRN_OK);
    assert_int_equal(cairn_tls_link_handshake(link, NULL, 0), CAIRN_AGAIN);
    len = cairn_tls_link_output(link, out, FLIGHT_BYTES);
    cairn_tls_link_destroy(link);
    return len;
}

/* Whether the callee knows the sender of this hello. */
static bool
is_known(struct cairn_tls *tls, const uint8_t *hello, size_t len, cairn_err answer)
{
    struct cairn_tls_link *link = NULL;
    bool known;

    assert_int_equal(cairn_tls_link_create(tls, false, UINT32_MAX, &link), CAIRN_OK);
    assert_false(cairn_tls_link_known(link));
    assert_int_equal(cairn_tls_link_handshake(link, hello, len), answer);
    known = cairn_tls_link_known(link);
    cairn_tls_link_destroy(link);
    return known;
}

static void
hello_of_the_job(void **state)
{
    struct cairn_tls *caller = tls_make(7, 1, key), *callee = tls_make(7, 0, key);
    uint8_t hello[FLIGHT_BYTES];
    size_t len = hello_of(caller, hello);

    assert_true(is_known(callee, hello, len, CAIRN_AGAIN));
    assert_false(is_known(callee, hello, 0, CAIRN_CORRUPT));
    assert_false(is_known(callee, hello, 40, CAIRN_CORRUPT));
    cairn_tls_destroy(caller);
    cairn_tls_destroy(callee);
}

static void
hello_of_others(void **state)
{
    struct cairn_tls *callee = tls_make(7, 0, key);
    struct cairn_tls *other_job = tls_make(8, 1, key), *stranger = tls_make(7, 1, other_key);
    uint8_t hello[FLIGHT_BYTES];
    size_t len = hello_of(other_job, hello);

    assert_false(is_known(callee, hello, len, CAIRN_CORRUPT));
    for (size_t cut = len - 200; cut < len; cut++) /* in the middle of its claim, too */
        assert_false(is_known(callee, hello, cut, CAIRN_CORRUPT));
    len = hello_of(stranger, hello);
    assert_false(is_known(callee, hello, len, CAIRN_CORRUPT));
    cairn_tls_destroy(callee);
    cairn_tls_destroy(other_job);
    cairn_tls_destroy(stranger);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hello_of_the_job),
        cmocka_unit_test(hello_of_others),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
