/* Tests of base/log_json.c: what a line becomes as an object, also with hostile values. */
#include "base/log_json.h"

#include "base/text.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static char out[CAIRN_LOG_JSON_BYTES];

/* The object's end, from "fields" on; the whole is in `out`. */
static const char *write_line(const char *message, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static const char *
write_line(const char *message, const char *format, ...)
{
    const struct cairn_log_json line = {"2026-01-31T23:59:59.123Z", "info", "node 3", message};
    va_list arguments;
    size_t length;

    va_start(arguments, format);
    length = cairn_log_json_write(&line, format, arguments, out);
    va_end(arguments);
    assert_int_equal(length, strlen(out));
    assert_true(cairn_text_plain(out, length));
    return strstr(out, "\"fields\":");
}

static void
events_come_from_formats(void **state)
{
    static const struct {
        const char *format, *event;
    } cases[] = {
        {"peer: up node=%u incarnation=%llu", "peer.up"},
        {"mail: node %u takes messages too slowly: %u wait", "mail.node_takes_messages_too_slowly"},
        {"keeper: had died, a new one holds the memory now", "keeper.had_died"},
        {"keeper: path=%s is served by user=%u, not by ours", "keeper.is_served_by"},
        {"agent: serves job=%s node=%u of %u", "agent.serves"},
        {"local: %s: cannot be read (%d)", "local.cannot_be_read"},
        {"memory: the keeper's (old) one", "memory.the_keepers"},
        {"detect: verdict=%u kind=%s", "detect.verdict"},
        {"transport: %s", "transport"},
        {"%s", "log"},
        {"", "log"},
        {"no subsystem here", "log.no_subsystem_here"},
    };
    char event[CAIRN_LOG_EVENT_BYTES], format[1000] = "test:";

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cairn_log_event(cases[i].format, event);
        assert_string_equal(event, cases[i].event);
    }
    for (int i = 0; i < 100; i++)
        strcat(format, " endless");
    cairn_log_event(format, event);
    assert_int_equal(strlen(event), 4 + 9 * 8);
}

static void
fields_have_their_types(void **state)
{
    errno = ENOENT;
    assert_string_equal(
        write_line("x", "test: a=%d b=%llu c=%s d=%.3f e=%zu f=%ld g=%x: %m h=%m", -7,
                   18446744073709551615ULL, "text", 0.5, (size_t)9, -3L, 255u),
        "\"fields\":{\"a\":-7,\"b\":18446744073709551615,\"c\":\"text\",\"d\":0.5,\"e\":9,"
        "\"f\":-3,\"g\":\"ff\",\"h\":\"No such file or directory\"}}");
    write_line("test: said", "test: said");
    assert_string_equal(out, "{\"time\":\"2026-01-31T23:59:59.123Z\",\"level\":\"info\","
                             "\"source\":\"node 3\",\"event\":\"test.said\","
                             "\"message\":\"test: said\",\"fields\":{}}");
}

static void
values_end_where_they_do_in_the_text(void **state)
{
    assert_string_equal(write_line("x", "test: said file=%s/%s: %s", "dir", "name", "why"),
                        "\"fields\":{\"file\":\"dir/name\"}}");
    assert_string_equal(
        write_line("x", "test: said result=%d%% of (rest=%u), 100%% last=%u.", 5, 6u, 7u),
        "\"fields\":{\"result\":\"5%\",\"rest\":6,\"last\":7}}");
    assert_string_equal(write_line("x", "test: node %u has %u of rank %u; node %s and node %u", 1u,
                                   2u, 3u, "text", 4u),
                        "\"fields\":{\"node\":1,\"rank\":3}}");
    assert_string_equal(write_line("x", "test: %*d cut=%.3s all=%.*s", 5, 1, "abcdef", 2, "xyz"),
                        "\"fields\":{\"cut\":\"abc\",\"all\":\"xy\"}}");
    assert_string_equal(write_line("x", "test: not=%g but=%d", (double)NAN, 1),
                        "\"fields\":{\"not\":\"nan\",\"but\":1}}");
}

static void
no_value_breaks_out(void **state)
{
    char big[3000];

    assert_string_equal(
        write_line("a\"b\\c\x01\xff\xc2\x9b", "test: name=%s",
                   "\",\"event\":\"forged\"}\n{\x7f\xc3\xa4\x80"),
        "\"fields\":{\"name\":\"\\\",\\\"event\\\":\\\"forged\\\"}?{?\xc3\xa4?\"}}");
    assert_non_null(strstr(out, "\"message\":\"a\\\"b\\\\c????\""));
    /* Fields that have no room are left out, and the object is whole. */
    memset(big, '"', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    big[1023] = '\0';
    assert_non_null(write_line(big, "test: a=%s b=%s c=%s d=%s e=%u", big, big, big, big, 1u));
    assert_string_equal(out + strlen(out) - 2, "}}");
    assert_non_null(strstr(out, ",\"b\":"));
    assert_null(strstr(out, ",\"d\":"));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_come_from_formats),
        cmocka_unit_test(fields_have_their_types),
        cmocka_unit_test(values_end_where_they_do_in_the_text),
        cmocka_unit_test(no_value_breaks_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
