/* tests/unit/tools/test_metrics.c - a status in Prometheus' text format. */
#include "tools/metrics.h"
#include "tests/support/cmocka.h"

#include <stdlib.h>
#include <string.h>

static char *
written(const char *status, enum cairn_metrics_format format)
{
    struct cairn_tree tree;
    char *text = NULL;
    size_t text_bytes = 0;
    FILE *stream = open_memstream(&text, &text_bytes);

    assert_non_null(stream);
    assert_int_equal(cairn_tree_parse(status, strlen(status), &tree), CAIRN_OK);
    cairn_metrics_print(stream, &tree, format);
    assert_int_equal(fclose(stream), 0);
    cairn_tree_fini(&tree);
    return text;
}

static char *
page_of(const char *status)
{
    return written(status, CAIRN_METRICS_PROMETHEUS);
}

static void
has(const char *page, const char *line)
{
    if (!strstr(page, line))
        fail_msg("the page lacks \"%s\":\n%s", line, page);
}

static void
test_a_status(void **state)
{
    char *page = page_of(
        "{\"job\":\"a "
        "\\\"job\\\"\",\"health\":\"WARN\",\"checks\":[{\"code\":\"not-covered\"},{\"code\":\"no-"
        "parity\"}],"
        "\"newest\":{\"step\":30,\"age_ns\":2500000000},\"lost_now\":{\"steps\":1},"
        "\"protection\":{\"survives_nodes_per_group\":-1},"
        "\"stall\":{\"snapshots_captured\":30,\"snapshots_skipped\":2,\"snapshots_failed\":0},"
        "\"coverage\":{\"ranks_known\":2,\"ranks_reporting\":1,\"ranks_refusing\":1,"
        "\"bytes\":{\"parameter\":4294967297,\"optimizer\":8,\"buffer\":0,\"opaque\":9},"
        "\"tensors\":{\"parameter\":4,\"optimizer\":12,\"buffer\":0,\"opaque\":1},"
        "\"uncovered\":[{\"kind\":\"optimizer\"},{\"kind\":\"optimizer\"},{\"kind\":\"buffer\"}],"
        "\"left_out\":7},"
        "\"detection\":{\"ranks_seen\":3,\"records\":1000,\"records_lost\":2,\"reports_dropped\":5,"
        "\"enforcements\":{\"succeeded\":2,\"failed\":0,\"timeout\":1,\"not_started\":0,"
        "\"unknown\":0},\"verdicts\":["
        "{\"kind\":\"slow_compute\",\"open\":true,\"ranks\":[2],\"rate\":1.75},"
        "{\"kind\":\"slow_compute\",\"open\":false,\"ranks\":[1],\"rate\":3},"
        "{\"kind\":\"slow_node\",\"open\":true,\"ranks\":[2,3],\"rate\":1.5},"
        "{\"kind\":\"hang_compute\",\"open\":true,\"ranks\":[0],\"rate\":1}]}}");

    has(page, "# TYPE cairn_health gauge\ncairn_health{job=\"a \\\"job\\\"\"} 1\n");
    has(page, "cairn_check{job=\"a \\\"job\\\"\",code=\"not-covered\"} 1\n");
    has(page, "cairn_newest_age_seconds{job=\"a \\\"job\\\"\"} 2.5\n");
    has(page, "cairn_survives_nodes{job=\"a \\\"job\\\"\"} -1\n");
    has(page, "cairn_snapshots_total{job=\"a \\\"job\\\"\",result=\"skipped\"} 2\n");
    has(page, "cairn_covered_bytes{job=\"a \\\"job\\\"\",kind=\"parameter\"} 4294967297\n");
    has(page, "cairn_covered_tensors{job=\"a \\\"job\\\"\",kind=\"optimizer\"} 12\n");
    has(page, "cairn_uncovered{job=\"a \\\"job\\\"\",kind=\"optimizer\"} 2\n");
    has(page, "cairn_uncovered{job=\"a \\\"job\\\"\",kind=\"parameter\"} 0\n");
    has(page, "cairn_uncovered{job=\"a \\\"job\\\"\",kind=\"not listed\"} 7\n");
    has(page, "cairn_verdicts_open{job=\"a \\\"job\\\"\",kind=\"slow_compute\"} 1\n");
    has(page, "cairn_verdicts_open{job=\"a \\\"job\\\"\",kind=\"crash\"} 0\n");
    has(page, "cairn_straggling_rate{job=\"a \\\"job\\\"\",rank=\"2\"} 1.75\n");
    has(page, "cairn_straggling_rate{job=\"a \\\"job\\\"\",rank=\"3\"} 1.5\n");
    /* it is over */
    assert_null(strstr(page, "cairn_straggling_rate{job=\"a \\\"job\\\"\",rank=\"1\"}"));
    assert_null(strstr(page, "rank=\"2\"} 1.5\n")); /* a sample comes once */
    has(page, "cairn_timing_reports_dropped_total{job=\"a \\\"job\\\"\"} 5\n");
    has(page, "cairn_enforcements_total{job=\"a \\\"job\\\"\",result=\"succeeded\"} 2\n");
    has(page, "cairn_enforcements_total{job=\"a \\\"job\\\"\",result=\"timeout\"} 1\n");
    has(page, "cairn_enforcements_total{job=\"a \\\"job\\\"\",result=\"unknown\"} 0\n");
    has(page, "cairn_analysed_ranks{job=\"a \\\"job\\\"\"} 3\n");
    has(page, "cairn_ranks{job=\"a \\\"job\\\"\",state=\"refusing\"} 1\n");
    free(page);
}

/* Two slow ranks are two findings of one code: Prometheus refuses a page that says one sample
 * twice. */
static void
test_findings_of_one_code(void **state)
{
    char *page = page_of(
        "{\"job\":\"j\",\"health\":\"CRITICAL\",\"checks\":[{\"code\":\"slow-rank\"},{\"code\":"
        "\"rank-gone\"},"
        "{\"code\":\"slow-rank\"},{\"code\":\"slow-rank\"}],\"newest\":null,\"protection\":null}");
    const char *first = strstr(page, "cairn_check{job=\"j\",code=\"slow-rank\"}");

    has(page, "cairn_check{job=\"j\",code=\"slow-rank\"} 3\n");
    has(page, "cairn_check{job=\"j\",code=\"rank-gone\"} 1\n");
    assert_non_null(first);
    assert_null(strstr(first + 1, "cairn_check{job=\"j\",code=\"slow-rank\""));
    free(page);
}

/* What is not known is not a number. */
static void
test_nothing_yet(void **state)
{
    char *page = page_of(
        "{\"job\":\"j\",\"health\":\"OK\",\"checks\":[],\"newest\":null,\"protection\":null}");

    has(page, "cairn_health{job=\"j\"} 0\n");
    assert_null(strstr(page, "cairn_newest_step{"));
    assert_null(strstr(page, "cairn_check{"));
    assert_null(strstr(page, "nan"));
    assert_null(strstr(page, "coverage"));
    free(page);
}

/* A counter's family has no suffix, its samples have; the page ends with a mark. */
static void
test_openmetrics(void **state)
{
    const char *status = "{\"job\":\"j\",\"health\":\"OK\",\"checks\":[],\"spills_given_up\":2,"
                         "\"nodes\":[{\"node\":7,\"answers\":true,\"sent_bytes\":5},"
                         "{\"node\":8,\"answers\":false}]}";
    char *page = written(status, CAIRN_METRICS_OPENMETRICS);

    has(page, "# TYPE cairn_spills_given_up counter\ncairn_spills_given_up_total{job=\"j\"} 2\n");
    has(page, "cairn_node_sent_bytes_total{job=\"j\",node=\"7\"} 5\n");
    has(page, "cairn_node_up{job=\"j\",node=\"8\"} 0\n");
    assert_null(strstr(page, "bytes_total{job=\"j\",node=\"8\"}")); /* nobody knows */
    assert_string_equal(page + strlen(page) - 6, "# EOF\n");
    free(page);
    page = page_of(status);
    has(page, "# TYPE cairn_spills_given_up_total counter\n");
    assert_null(strstr(page, "# EOF"));
    free(page);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_status), cmocka_unit_test(test_findings_of_one_code),
        cmocka_unit_test(test_nothing_yet), cmocka_unit_test(test_openmetrics)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
