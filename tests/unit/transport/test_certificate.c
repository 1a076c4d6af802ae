/*
 * tests/unit/transport/test_certificate.c - which certificates of peers count, over real
 * connections between ends of one process; what is refused when a node reads its own; and how a job
 * moves from a key to certificates and from one certificate to the next.
 */
#include "ends.h"

#include "transport/certificate.h"

static struct authority authority, stranger, between;
static const struct cairn_transport_key no_keys[2];
static char trusted[3 * PEM_BYTES]; /* what node 0 has in place of the authority; "": nothing */

static int
authorities_make(void **state)
{
    authority_make("authority", NULL, &authority);
    authority_make("authority", NULL, &stranger); /* of the same name */
    authority_make("between", &authority, &between);
    return 0;
}

static int
authorities_end(void **state)
{
    authority_end(&authority);
    authority_end(&stranger);
    authority_end(&between);
    return 0;
}

/* ---- a peer's certificate ---- */

/*
 * Node 1 shows this certificate; its own authorities are node 0's. The pattern of node 1 may
 * differ, so that it takes its certificate for its own.
 */
static void
pair_prepare(const struct leaf *shown, const char *pattern)
{
    static struct leaf leaf;
    static struct cairn_transport_certificate certificates[2];

    use_certificates(NULL);
    ends_prepare(2);
    leaf_of_node(&authority, 0, &leaf);
    certificates[0] = leaf_use(&leaf, trusted[0] ? trusted : authority.pem, TEST_IDENTITY);
    certificates[1] = leaf_use(shown, authority.pem, pattern);
    for (uint32_t i = 0; i < 2; i++)
        ends[i].options.certificate = &certificates[i];
}

/* Node 0 lets node 1 in, no matter which calls. */
static void
accepted(const struct leaf *shown)
{
    for (uint32_t caller = 0; caller < 2; caller++) {
        pair_prepare(shown, TEST_IDENTITY);
        end_open(0);
        end_open(1);
        ends_connect(caller, !caller);
        end_send_soon(0, 1, 1, NULL, 0);
        TURN_UNTIL(ends[1].messages == 1, 10);
        ends_close(NULL);
    }
}

/* Node 0 refuses node 1, no matter which calls, and its log has this. The caller learns it. By
 * another pattern node 1 refuses node 0, too, where it calls and so is the first to see a
 * certificate. */
static void
refused(const struct leaf *shown, const char *pattern, const char *line)
{
    uint32_t callers = strcmp(pattern, TEST_IDENTITY) == 0 ? 2 : 1;

    for (uint32_t caller = 0; caller < callers; caller++) {
        pair_prepare(shown, pattern);
        end_open(0);
        end_open(1);
        cairn_transport_connect(ends[caller].transport, !caller);
        TURN_UNTIL(state_of(caller, !caller) == CAIRN_PEER_DENIED, 10);
        TURN_UNTIL(log_has(line), 10);
        assert_int_equal(ends[0].ups + ends[1].ups, 0);
        assert_int_equal(ends[0].messages + ends[1].messages, 0);
        ends_close(NULL);
    }
}

static void
right_certificates(void **state)
{
    struct leaf leaf, chained;

    leaf_of_node(&authority, 1, &leaf);
    accepted(&leaf);
    /* through an authority between, which the node shows, too */
    leaf_of_node(&between, 1, &chained);
    strcat(chained.certificate, between.pem);
    accepted(&chained);
}

/* Adds an authority's revocation list to what node 0 trusts. It names a leaf (NULL: none). */
static void
list_add(const struct authority *of, const struct leaf *revoked, long begins_s, long ends_s)
{
    X509_CRL *list = X509_CRL_new();
    ASN1_TIME *now = X509_gmtime_adj(NULL, begins_s), *next = X509_gmtime_adj(NULL, ends_s);
    BIO *bio = BIO_new(BIO_s_mem());
    char text[PEM_BYTES];

    X509_CRL_set_version(list, 1);
    X509_CRL_set_issuer_name(list, X509_get_subject_name(of->certificate));
    X509_CRL_set1_lastUpdate(list, now);
    X509_CRL_set1_nextUpdate(list, next);
    if (revoked) {
        BIO *from = BIO_new_mem_buf(revoked->certificate, -1);
        X509 *certificate = PEM_read_bio_X509(from, NULL, NULL, NULL);
        X509_REVOKED *entry = X509_REVOKED_new();

        X509_REVOKED_set_serialNumber(entry, X509_get_serialNumber(certificate));
        X509_REVOKED_set_revocationDate(entry, now);
        X509_CRL_add0_revoked(list, entry);
        X509_free(certificate);
        BIO_free(from);
    }
    X509_CRL_sort(list);
    certificates_must(X509_CRL_sign(list, of->key, EVP_sha256()) > 0);
    certificates_must(PEM_write_bio_X509_CRL(bio, list) == 1);
    bio_text(bio, text);
    strcat(trusted, text);
    X509_CRL_free(list);
    ASN1_TIME_free(now);
    ASN1_TIME_free(next);
}

/* Node 0 has revocation lists: those of its authority count, and it needs one. */
static void
revoked_certificates(void **state)
{
    struct leaf leaf, other, chained;

    leaf_of_node(&authority, 1, &leaf);
    leaf_of_node(&authority, 1, &other);
    leaf_of_node(&between, 1, &chained);
    strcat(chained.certificate, between.pem);
    strcpy(trusted, authority.pem);
    list_add(&authority, &other, -60, 3600);
    accepted(&leaf);
    refused(&other, TEST_IDENTITY, "has been revoked");
    refused(&chained, TEST_IDENTITY, "cannot be looked up in a revocation list");
    list_add(&between, NULL, -60, 3600);
    accepted(&chained);
    strcpy(trusted, authority.pem); /* an authority needs no list of its own */
    list_add(&between, NULL, -60, 3600);
    accepted(&chained);
    strcpy(trusted, authority.pem);
    list_add(&authority, NULL, -7200, -3600);
    refused(&leaf, TEST_IDENTITY, "cannot be looked up in a revocation list");
    strcpy(trusted, authority.pem); /* a list that another authority of this name has signed */
    list_add(&stranger, NULL, -60, 3600);
    refused(&leaf, TEST_IDENTITY, "cannot be looked up in a revocation list");
    trusted[0] = '\0';
}

/* Chains of RSA are some KiB long: more than a connection keeps before its peer is proved. */
static void
long_chains(void **state)
{
    struct leaf leaf;
    static char names[3000];
    size_t used = 0;

    for (int i = 0; i < 40; i++)
        used += (size_t)snprintf(names + used, sizeof names - used,
                                 "DNS:a-name-that-makes-it-longer-%d.example.org,", i);
    snprintf(names + used, sizeof names - used, "URI:spiffe://example.org/cairn/test/1");
    leaf_make(&authority, &(struct leaf_content){.names = names}, &leaf);
    assert_true(strlen(leaf.certificate) > 2500);
    accepted(&leaf);
}

static void
wrong_dates(void **state)
{
    static const char names[] = "URI:spiffe://example.org/cairn/test/1";
    struct leaf leaf;

    leaf_make(&authority,
              &(struct leaf_content){.names = names, .begins_s = -7200, .ends_s = -3600}, &leaf);
    refused(&leaf, TEST_IDENTITY,
            "certificate of node 1 (spiffe://example.org/cairn/test/1) has expired at ");
    leaf_make(&authority, &(struct leaf_content){.names = names, .begins_s = 3600, .ends_s = 7200},
              &leaf);
    refused(&leaf, TEST_IDENTITY, "is not valid before ");
}

static void
wrong_authority(void **state)
{
    struct leaf leaf;

    leaf_of_node(&stranger, 1, &leaf);
    refused(&leaf, TEST_IDENTITY, "does not lead to an authority in ca_file");
    leaf_of_node(&between, 1, &leaf); /* which it does not show */
    refused(&leaf, TEST_IDENTITY, "does not lead to an authority in ca_file");
    strcat(leaf.certificate, stranger.pem); /* what it shows is not believed */
    refused(&leaf, TEST_IDENTITY, "does not lead to an authority in ca_file");
}

static void
wrong_names(void **state)
{
    static const struct {
        const char *names, *pattern;
    } cases[] = {
        /* by this pattern node 1's own name, but not by that of the others */
        {"URI:spiffe://example.org/cairn/test2/1", "spiffe://example.org/cairn/{job}2/{node}"},
        {"URI:spiffe://example.com/cairn/test/1", "spiffe://example.com/cairn/{job}/{node}"},
        {"DNS:test-1.example.org", "{job}-{node}.example.org"},
    };
    struct leaf leaf;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        leaf_make(&authority, &(struct leaf_content){.names = cases[i].names}, &leaf);
        refused(&leaf, cases[i].pattern,
                "is made out to "); /* and its name, and the one that was expected */
        assert_int_equal(log_has("and node 1 is spiffe://example.org/cairn/test/1"), 1);
    }
}

/* A certificate that names itself something other than a node's. */
static void
wrong_use(void **state)
{
    static const char names[] = "URI:spiffe://example.org/cairn/test/1";
    struct leaf leaf;

    leaf_make(&authority,
              &(struct leaf_content){.names = names,
                                     .basic = "critical,CA:TRUE",
                                     .usage = "critical,digitalSignature,keyCertSign"},
              &leaf);
    refused(&leaf, TEST_IDENTITY, "is an authority's own");
    leaf_make(&authority, &(struct leaf_content){.names = names, .purposes = "emailProtection"},
              &leaf);
    refused(&leaf, TEST_IDENTITY, "cannot be used (unsuitable certificate purpose)");
}

/* The certificate of one node does not open the place of another. */
static void
another_nodes_certificate(void **state)
{
    static struct leaf leaves[2];
    static struct cairn_transport_certificate certificates[3];

    use_certificates(NULL);
    ends_prepare(3);
    for (uint32_t i = 0; i < 2; i++)
        leaf_of_node(&authority, i, &leaves[i]);
    for (uint32_t i = 0; i < 3; i++)
        certificates[i] = leaf_use(&leaves[i == 2], authority.pem, TEST_IDENTITY);
    /* node 2 lies at the address of node 1 and has node 1's certificate, as node 1: what node 0
     * meets there when it asks for node 2 */
    ends[0].options.certificate = &certificates[0];
    ends[1].options.certificate = &certificates[2];
    address_list[2] = addresses[1];
    end_open(0);
    end_open(1);
    cairn_transport_connect(ends[0].transport, 2);
    TURN_UNTIL(state_of(0, 2) == CAIRN_PEER_DENIED, 10);
    assert_true(log_has("calls itself node 0 and this node 2, which is node 1"));
}

/* ---- a node's own certificate ---- */

static void
own_refused(const struct cairn_transport_certificate *pem, uint32_t node, const char *line)
{
    struct cairn_certificate *untouched = NULL;
    char why[1024];

    assert_int_equal(cairn_certificate_create(pem, node, &untouched, why, sizeof why),
                     CAIRN_CONFIG);
    assert_null(untouched);
    if (!strstr(why, line))
        fail_msg("\"%s\" has no \"%s\"", why, line);
}

static void
own_certificate_is_checked(void **state)
{
    struct leaf leaf, other;
    struct cairn_transport_certificate good, pem;
    struct cairn_certificate *certificate = NULL;
    char why[1024], damaged[PEM_BYTES];

    leaf_of_node(&authority, 1, &leaf);
    leaf_of_node(&authority, 1, &other);
    good = pem = leaf_use(&leaf, authority.pem, TEST_IDENTITY);
    assert_int_equal(cairn_certificate_create(&good, 1, &certificate, why, sizeof why), CAIRN_OK);
    assert_int_equal(cairn_certificate_self_check(certificate, why, sizeof why), CAIRN_OK);
    cairn_certificate_destroy(certificate);
    own_refused(&good, 2, "is made out to spiffe://example.org/cairn/test/1, and node 2 is");
    pem.private_key = pem_of("key.pem", other.private_key);
    own_refused(&pem, 1, "key.pem is not the private key of the certificate in chain.pem");
    pem.private_key = pem_of("key.pem", leaf.certificate);
    own_refused(&pem, 1, "key.pem holds no private key");
    pem = good;
    pem.chain = pem_of("chain.pem", leaf.private_key);
    own_refused(&pem, 1, "chain.pem holds no certificate");
    pem.chain.len = 0;
    own_refused(&pem, 1, "chain.pem holds no certificate");
    pem = good;
    pem.authorities = pem_of("ca.pem", "nothing\n");
    own_refused(&pem, 1, "ca.pem holds no certificate");
    snprintf(damaged, sizeof damaged, "%s", authority.pem);
    memset(strchr(damaged, '\n') + 40, 'A', 8);
    pem.authorities = pem_of("ca.pem", damaged);
    own_refused(&pem, 1, "ca.pem holds no certificate, or a damaged one");
    pem = good;
    pem.job = "another";
    own_refused(&pem, 1, "and node 1 is spiffe://example.org/cairn/another/1");
}

static void
own_certificate_that_others_refuse(void **state)
{
    static const char names[] = "URI:spiffe://example.org/cairn/test/1";
    struct cairn_transport_certificate pem;
    struct cairn_certificate *certificate = NULL;
    struct leaf leaf;
    char why[1024];

    leaf_make(&authority, &(struct leaf_content){.names = names, .purposes = "serverAuth"}, &leaf);
    pem = leaf_use(&leaf, authority.pem, TEST_IDENTITY);
    assert_int_equal(cairn_certificate_create(&pem, 1, &certificate, why, sizeof why), CAIRN_OK);
    assert_int_equal(cairn_certificate_self_check(certificate, why, sizeof why), CAIRN_DENIED);
    cairn_certificate_destroy(certificate);
    certificate = NULL;
    leaf_make(&stranger, &(struct leaf_content){.names = names}, &leaf);
    pem = leaf_use(&leaf, authority.pem, TEST_IDENTITY);
    assert_int_equal(cairn_certificate_create(&pem, 1, &certificate, why, sizeof why), CAIRN_OK);
    assert_int_equal(cairn_certificate_self_check(certificate, why, sizeof why), CAIRN_DENIED);
    cairn_certificate_destroy(certificate);
}

static void
dates_and_states(void **state)
{
    static const struct cairn_certificate_dates hour = {1000, 4600}, years = {0, 10 * 365 * 86400},
                                                none;
    char text[CAIRN_CERTIFICATE_TIME_BYTES];

    assert_int_equal(cairn_certificate_state(&none, 5), CAIRN_CERTIFICATE_NONE);
    assert_int_equal(cairn_certificate_state(&hour, 999), CAIRN_CERTIFICATE_EARLY);
    assert_int_equal(cairn_certificate_state(&hour, 1000), CAIRN_CERTIFICATE_VALID);
    assert_int_equal(cairn_certificate_state(&hour, 3700), CAIRN_CERTIFICATE_VALID);
    assert_int_equal(cairn_certificate_state(&hour, 3701), CAIRN_CERTIFICATE_DUE);
    assert_int_equal(cairn_certificate_state(&hour, 4600), CAIRN_CERTIFICATE_DUE);
    assert_int_equal(cairn_certificate_state(&hour, 4601), CAIRN_CERTIFICATE_EXPIRED);
    assert_int_equal(cairn_certificate_state(&years, years.ends_s - 31 * 86400),
                     CAIRN_CERTIFICATE_VALID);
    assert_int_equal(cairn_certificate_state(&years, years.ends_s - 29 * 86400),
                     CAIRN_CERTIFICATE_DUE);
    cairn_certificate_time(1795838600, text);
    assert_string_equal(text, "2026-11-28 04:03:20Z");
}

/* ---- changes ---- */

static void
talk(uint32_t caller)
{
    uint64_t before[] = {ends[0].messages, ends[1].messages};

    ends_connect(caller, !caller);
    end_send_soon(0, 1, 1, NULL, 0);
    end_send_soon(1, 0, 1, NULL, 0);
    TURN_UNTIL(ends[0].messages > before[0] && ends[1].messages > before[1], 10);
}

static void
restart(uint32_t node)
{
    uint32_t ups = ends[!node].ups;

    end_close(node);
    ends[node].options.incarnation += 10;
    end_open(node);
    ends_connect(node, !node);
    TURN_UNTIL(ends[!node].ups > ups, 10);
}

/* The authority changes: first both sides trust both, then have certificates of the new one, then
 * the old one goes. The session lives, and new ones begin at every step. */
static void
renewed_under_a_session(void **state)
{
    static char both[2 * PEM_BYTES];
    static struct leaf leaves[2][2];
    struct cairn_transport_certificate steps[4][2];

    use_certificates(NULL);
    ends_prepare(2);
    snprintf(both, sizeof both, "%s%s", authority.pem, stranger.pem);
    for (uint32_t i = 0; i < 2; i++) {
        leaf_of_node(&authority, i, &leaves[0][i]);
        leaf_of_node(&stranger, i, &leaves[1][i]);
        steps[0][i] = leaf_use(&leaves[0][i], authority.pem, TEST_IDENTITY);
        steps[1][i] = leaf_use(&leaves[0][i], both, TEST_IDENTITY);
        steps[2][i] = leaf_use(&leaves[1][i], both, TEST_IDENTITY);
        steps[3][i] = leaf_use(&leaves[1][i], stranger.pem, TEST_IDENTITY);
        ends[i].options.certificate = &steps[0][i];
        end_open(i);
    }
    talk(0);
    for (uint32_t step = 1; step < 4; step++)
        for (uint32_t i = 0; i < 2; i++) {
            uint32_t downs = ends[0].downs + ends[1].downs;

            assert_int_equal(cairn_transport_rekey(ends[i].transport, no_keys, &steps[step][i]),
                             CAIRN_OK);
            talk(0);
            assert_int_equal(ends[0].downs + ends[1].downs, downs);
            ends[!i].options.certificate = &steps[i ? step : step - 1][!i];
            restart(!i);
            talk(1);
        }
    assert_int_equal(cairn_transport_rekey(ends[0].transport, no_keys, &steps[0][0]), CAIRN_OK);
    end_close(1);
    ends[1].options.incarnation += 100;
    end_open(1); /* with the new one, which node 0 no longer trusts */
    cairn_transport_connect(ends[1].transport, 0);
    TURN_UNTIL(state_of(1, 0) == CAIRN_PEER_DENIED, 10);
}

static void
bad_one_keeps_the_old(void **state)
{
    struct leaf leaf;
    struct cairn_transport_certificate bad;

    use_certificates(NULL);
    ends_prepare(2);
    end_open(0);
    end_open(1);
    talk(0);
    leaf_of_node(&authority, 1, &leaf);
    bad = leaf_use(&leaf, authority.pem, TEST_IDENTITY); /* of node 1, and not of 0 */
    assert_int_equal(cairn_transport_rekey(ends[0].transport, no_keys, &bad), CAIRN_CONFIG);
    assert_int_equal(cairn_transport_rekey(ends[0].transport, no_keys, NULL), CAIRN_INVAL);
    restart(1);
    talk(0);
}

/* A job goes from a key to certificates: first all get a certificate, then the key goes. Sessions
 * begin at every step, no matter which of the two is further. */
static void
from_a_key_to_certificates(void **state)
{
    const struct cairn_transport_key key[2] = {{"a key of more than sixteen bytes", 32}, {0}};

    use_certificates(NULL);
    ends_prepare(2);
    for (uint32_t i = 0; i < 2; i++) {
        ends[i].options.certificate = NULL;
        ends[i].options.key = key[0].bytes;
        ends[i].options.key_len = key[0].len;
        end_open(i);
    }
    talk(0);
    for (uint32_t step = 0; step < 2; step++)
        for (uint32_t i = 0; i < 2; i++) {
            uint32_t downs = ends[0].downs + ends[1].downs;

            assert_int_equal(cairn_transport_rekey(ends[i].transport, step ? no_keys : key,
                                                   &end_certificates[i]),
                             CAIRN_OK);
            talk(0);
            assert_int_equal(ends[0].downs + ends[1].downs, downs);
            for (uint32_t again = 0; again < 2; again++) { /* each side calls once */
                end_close(again);
                ends[again].options.incarnation += 10;
                ends[again].options.certificate =
                    step || again <= i ? &end_certificates[again] : NULL;
                ends[again].options.key = step == 0 || again > i ? key[0].bytes : NULL;
                ends[again].options.key_len = ends[again].options.key ? key[0].len : 0;
                end_open(again);
                talk(again);
            }
        }
    assert_null(ends[0].options.key);
    assert_null(ends[1].options.key);
}

/* One side has a key alone and the other a certificate alone. */
static void
key_against_certificate(void **state)
{
    for (uint32_t caller = 0; caller < 2; caller++) {
        use_certificates(NULL);
        ends_prepare(2);
        ends[1].options.certificate = NULL;
        ends[1].options.key = "a key of more than sixteen bytes";
        ends[1].options.key_len = 32;
        end_open(0);
        end_open(1);
        cairn_transport_connect(ends[caller].transport, !caller);
        TURN_UNTIL(state_of(caller, !caller) == CAIRN_PEER_DENIED ||
                       state_of(caller, !caller) == CAIRN_PEER_DOWN,
                   10);
        ends_turn_for(0.2);
        assert_int_equal(ends[0].ups + ends[1].ups, 0);
        if (caller == 1)
            assert_true(log_has("this agent has a certificate alone"));
        ends_close(NULL);
    }
}

int
main(void)
{
#define TEST(function) cmocka_unit_test_teardown(function, ends_close)
    const struct CMUnitTest tests[] = {
        TEST(right_certificates),
        TEST(revoked_certificates),
        TEST(long_chains),
        TEST(wrong_dates),
        TEST(wrong_authority),
        TEST(wrong_names),
        TEST(wrong_use),
        TEST(another_nodes_certificate),
        TEST(own_certificate_is_checked),
        TEST(own_certificate_that_others_refuse),
        TEST(dates_and_states),
        TEST(renewed_under_a_session),
        TEST(bad_one_keeps_the_old),
        TEST(from_a_key_to_certificates),
        TEST(key_against_certificate),
    };

    cairn_log_setup(CAIRN_LOG_WARN, log_keep, NULL);
    return cmocka_run_group_tests(tests, authorities_make, authorities_end);
}
