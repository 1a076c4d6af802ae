/* transport/certificate.c - see certificate.h. */
#include "transport/certificate.h"

#include "base/log.h"

#include <inttypes.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    CHAIN_MAX = 8,  /* certificates between a node's and an authority's */
    NAMES_MAX = 64, /* of a certificate, that are looked at */
    NAME_SHOWN_BYTES = 100,
    SECURE_HEAP_BYTES = 1 << 17,
    DUE_PARTS = 4,         /* renewal is late in the last of so many parts of its life, … */
    DUE_S_MAX = 30 * 86400 /* … or in the last 30 days of a long one */
};

struct cairn_certificate {
    X509 *leaf;
    STACK_OF(X509) * chain; /* after the leaf */
    EVP_PKEY *key;
    X509_STORE *authorities;
    char identity[CAIRN_IDENTITY_PATTERN_BYTES_MAX];
    char job[CAIRN_TRANSPORT_JOB_BYTES_MAX];
};

/* ---- names ---- */

/* The URIs and DNS names of a certificate. They lie in *owner, which sk_GENERAL_NAME_pop_free ends.
 */
static uint32_t
names_of(const X509 *leaf, struct cairn_identity_name names[NAMES_MAX], GENERAL_NAMES **owner)
{
    uint32_t count = 0;

    *owner = X509_get_ext_d2i(leaf, NID_subject_alt_name, NULL, NULL);
    for (int i = 0; *owner && i < sk_GENERAL_NAME_num(*owner) && count < NAMES_MAX; i++) {
        const GENERAL_NAME *name = sk_GENERAL_NAME_value(*owner, i);
        const ASN1_IA5STRING *text = name->d.ia5;

        if (name->type != GEN_URI && name->type != GEN_DNS)
            continue;
        names[count++] = (struct cairn_identity_name){
            .kind = name->type == GEN_URI ? CAIRN_IDENTITY_URI : CAIRN_IDENTITY_DNS,
            .bytes = ASN1_STRING_get0_data(text),
            .len = (size_t)ASN1_STRING_length(text)};
    }
    return count;
}

/* The first name of a certificate, of this kind where there is one, as printable text. */
static void
name_show(const struct cairn_identity_name *names, uint32_t count, enum cairn_identity_kind kind,
          char out[NAME_SHOWN_BYTES])
{
    const struct cairn_identity_name *name = NULL;
    size_t used = 0;

    for (uint32_t i = 0; i < count; i++)
        if (!name || (name->kind != kind && names[i].kind == kind))
            name = &names[i];
    for (; name && used < name->len && used + 1 < NAME_SHOWN_BYTES; used++)
        out[used] =
            name->bytes[used] > ' ' && name->bytes[used] < 0x7f ? (char)name->bytes[used] : '?';
    out[used] = '\0';
}

/* Whether a certificate names a node; else why[why_bytes] says whom it names. */
static bool
names_match(const struct cairn_certificate *certificate, const X509 *leaf, uint32_t node, char *why,
            size_t why_bytes)
{
    struct cairn_identity_name names[NAMES_MAX] = {0};
    GENERAL_NAMES *owner = NULL;
    uint32_t count = names_of(leaf, names, &owner);
    char expected[CAIRN_IDENTITY_BYTES_MAX], shown[NAME_SHOWN_BYTES];
    bool matches;

    cairn_identity_format(certificate->identity, certificate->job, node, expected);
    matches = cairn_identity_matches(expected, names, count);
    if (!matches) {
        name_show(names, count, cairn_identity_kind_of(expected), shown);
        if (count == 0)
            (void)snprintf(
                why, why_bytes,
                "has no URI and no DNS name (subject alternative name), and node %" PRIu32
                " is %.200s",
                node, expected);
        else
            (void)snprintf(why, why_bytes, "is made out to %s%s, and node %" PRIu32 " is %.200s",
                           shown, count > 1 ? " and others" : "", node, expected);
    }
    sk_GENERAL_NAME_pop_free(owner, GENERAL_NAME_free);
    return matches;
}

/* ---- reading ---- */

static int
no_passphrase(char *out, int out_bytes, int writing, void *context)
{
    (void)out, (void)out_bytes, (void)writing, (void)context;
    return -1;
}

/* Adds the certificates of a PEM text to a stack, at most `room`. False: out of memory, or one of
 * them is damaged. */
static bool
read_all(const struct cairn_pem *pem, int room, STACK_OF(X509) * out)
{
    BIO *bio = BIO_new_mem_buf(pem->text, (int)pem->len);
    X509 *one = NULL;
    unsigned long code;

    ERR_clear_error();
    while (bio && room-- > 0 && (one = PEM_read_bio_X509(bio, NULL, no_passphrase, NULL)) != NULL)
        if (sk_X509_push(out, one) <= 0) {
            X509_free(one);
            break;
        }
    code = ERR_peek_last_error();
    ERR_clear_error();
    BIO_free(bio);
    return bio && !one && ERR_GET_LIB(code) == ERR_LIB_PEM &&
           ERR_GET_REASON(code) == PEM_R_NO_START_LINE;
}

static cairn_err
read_chain(struct cairn_certificate *certificate, const struct cairn_pem *pem, char *why,
           size_t why_bytes)
{
    certificate->chain = sk_X509_new_null();
    if (!certificate->chain)
        return CAIRN_NOMEM;
    if (!read_all(pem, CHAIN_MAX + 1, certificate->chain) || sk_X509_num(certificate->chain) == 0) {
        (void)snprintf(why, why_bytes,
                       "%s holds no certificate, a damaged one, or more than %d; give PEM, this "
                       "node's certificate first and then those between it and an authority's",
                       pem->name, CHAIN_MAX);
        return CAIRN_CONFIG;
    }
    certificate->leaf = sk_X509_shift(certificate->chain);
    return CAIRN_OK;
}

static cairn_err
read_key(struct cairn_certificate *certificate, const struct cairn_transport_certificate *pem,
         char *why, size_t why_bytes)
{
    BIO *bio = BIO_new_mem_buf(pem->private_key.text, (int)pem->private_key.len);

    if (!bio)
        return CAIRN_NOMEM;
    certificate->key = PEM_read_bio_PrivateKey(bio, NULL, no_passphrase, NULL);
    BIO_free(bio);
    if (certificate->key && X509_check_private_key(certificate->leaf, certificate->key) == 1)
        return CAIRN_OK;
    if (certificate->key)
        (void)snprintf(why, why_bytes,
                       "%s is not the private key of the certificate in %s; replace both files "
                       "before the agent reads them",
                       pem->private_key.name, pem->chain.name);
    else
        (void)snprintf(why, why_bytes,
                       "%s holds no private key, or one with a passphrase; give PEM without one",
                       pem->private_key.name);
    ERR_clear_error();
    return CAIRN_CONFIG;
}

static cairn_err
read_authorities(struct cairn_certificate *certificate, const struct cairn_pem *pem, char *why,
                 size_t why_bytes)
{
    STACK_OF(X509) *all = sk_X509_new_null();
    cairn_err err = CAIRN_OK;

    certificate->authorities = X509_STORE_new();
    if (!all || !certificate->authorities)
        err = CAIRN_NOMEM;
    if (!err && (!read_all(pem, INT32_MAX, all) || sk_X509_num(all) == 0)) {
        (void)snprintf(why, why_bytes,
                       "%s holds no certificate, or a damaged one; give the certificates of the "
                       "authorities of all nodes as PEM",
                       pem->name);
        err = CAIRN_CONFIG;
    }
    for (int i = 0; !err && i < sk_X509_num(all); i++)
        if (X509_STORE_add_cert(certificate->authorities, sk_X509_value(all, i)) != 1)
            err = CAIRN_NOMEM;
    if (!err)
        (void)X509_STORE_set_flags(certificate->authorities, X509_V_FLAG_PARTIAL_CHAIN);
    sk_X509_pop_free(all, X509_free);
    return err;
}

/* Reads the revocation lists among the authorities. If there is one, a node's certificate counts
 * only if its authority has a list that does not name it. */
static cairn_err
read_lists(struct cairn_certificate *certificate, const struct cairn_pem *pem, char *why,
           size_t why_bytes)
{
    BIO *bio = BIO_new_mem_buf(pem->text, (int)pem->len);
    X509_CRL *list = NULL;
    unsigned long code;
    bool added = bio != NULL, any = false;

    ERR_clear_error();
    while (added && (list = PEM_read_bio_X509_CRL(bio, NULL, no_passphrase, NULL)) != NULL) {
        added = X509_STORE_add_crl(certificate->authorities, list) == 1;
        X509_CRL_free(list);
        any = true;
    }
    code = ERR_peek_last_error();
    ERR_clear_error();
    BIO_free(bio);
    if (!added)
        return CAIRN_NOMEM;
    if (ERR_GET_LIB(code) != ERR_LIB_PEM || ERR_GET_REASON(code) != PEM_R_NO_START_LINE) {
        (void)snprintf(why, why_bytes,
                       "%s holds a damaged revocation list; fetch the authority's list again",
                       pem->name);
        return CAIRN_CONFIG;
    }
    if (any)
        (void)X509_STORE_set_flags(certificate->authorities,
                                   X509_V_FLAG_CRL_CHECK | X509_V_FLAG_CRL_CHECK_ALL);
    return CAIRN_OK;
}

cairn_err
cairn_certificate_create(const struct cairn_transport_certificate *pem, uint32_t node,
                         struct cairn_certificate **out, char *why, size_t why_bytes)
{
    struct cairn_certificate *certificate = calloc(1, sizeof *certificate);
    char names[CAIRN_IDENTITY_BYTES_MAX + 2 * NAME_SHOWN_BYTES];
    cairn_err err = CAIRN_NOMEM;

    (void)snprintf(why, why_bytes, "out of memory");
    if (!certificate)
        goto done;
    if (CRYPTO_secure_malloc_initialized() == 0)
        (void)CRYPTO_secure_malloc_init(SECURE_HEAP_BYTES, 32);
    (void)snprintf(certificate->identity, sizeof certificate->identity, "%s", pem->identity);
    (void)snprintf(certificate->job, sizeof certificate->job, "%s", pem->job);
    err = cairn_identity_check(pem->identity, pem->job, why, why_bytes);
    if (!err)
        err = read_chain(certificate, &pem->chain, why, why_bytes);
    if (!err)
        err = read_key(certificate, pem, why, why_bytes);
    if (!err)
        err = read_authorities(certificate, &pem->authorities, why, why_bytes);
    if (!err)
        err = read_lists(certificate, &pem->authorities, why, why_bytes);
    if (!err && !names_match(certificate, certificate->leaf, node, names, sizeof names)) {
        (void)snprintf(why, why_bytes,
                       "the certificate in %s %s; give this node its own certificate, or mend "
                       "identity, job or node",
                       pem->chain.name, names);
        err = CAIRN_CONFIG;
    }
    if (err)
        goto done;
    *out = certificate;
    certificate = NULL;
done:
    cairn_certificate_destroy(certificate);
    return err;
}

void
cairn_certificate_destroy(struct cairn_certificate *certificate)
{
    if (!certificate)
        return;
    X509_free(certificate->leaf);
    sk_X509_pop_free(certificate->chain, X509_free);
    EVP_PKEY_free(certificate->key);
    X509_STORE_free(certificate->authorities);
    free(certificate);
}

/* ---- dates ---- */

static int64_t
time_of(const ASN1_TIME *when)
{
    struct tm parts;

    return when && ASN1_TIME_to_tm(when, &parts) == 1 ? (int64_t)timegm(&parts) : 0;
}

void
cairn_certificate_dates(const struct cairn_certificate *certificate,
                        struct cairn_certificate_dates *out)
{
    out->begins_s = time_of(X509_get0_notBefore(certificate->leaf));
    out->ends_s = time_of(X509_get0_notAfter(certificate->leaf));
}

enum cairn_certificate_state
cairn_certificate_state(const struct cairn_certificate_dates *dates, int64_t now_s)
{
    int64_t due_s = (dates->ends_s - dates->begins_s) / DUE_PARTS;

    if (due_s > DUE_S_MAX)
        due_s = DUE_S_MAX;
    if (dates->ends_s == 0)
        return CAIRN_CERTIFICATE_NONE;
    if (now_s < dates->begins_s)
        return CAIRN_CERTIFICATE_EARLY;
    if (now_s > dates->ends_s)
        return CAIRN_CERTIFICATE_EXPIRED;
    return dates->ends_s - now_s < due_s ? CAIRN_CERTIFICATE_DUE : CAIRN_CERTIFICATE_VALID;
}

void
cairn_certificate_time(int64_t time_s, char out[CAIRN_CERTIFICATE_TIME_BYTES])
{
    time_t when = (time_t)time_s;
    struct tm parts;

    if (!gmtime_r(&when, &parts) ||
        strftime(out, CAIRN_CERTIFICATE_TIME_BYTES, "%Y-%m-%d %H:%M:%SZ", &parts) == 0)
        (void)snprintf(out, CAIRN_CERTIFICATE_TIME_BYTES, "an unknown time");
}

/* ---- peers ---- */

cairn_err
cairn_certificate_use(const struct cairn_certificate *certificate, struct ssl_ctx_st *context)
{
    if (SSL_CTX_use_cert_and_key(context, certificate->leaf, certificate->key, certificate->chain,
                                 1) != 1)
        return CAIRN_IO;
    SSL_CTX_set1_cert_store(context, certificate->authorities);
    SSL_CTX_set_verify_depth(context, CHAIN_MAX);
    return CAIRN_OK;
}

static bool
is_about_authorities(int code)
{
    return code == X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT ||
           code == X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY ||
           code == X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE ||
           code == X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT ||
           code == X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN ||
           code == X509_V_ERR_CERT_SIGNATURE_FAILURE;
}

static bool
is_about_lists(int code)
{
    return code == X509_V_ERR_UNABLE_TO_GET_CRL || code == X509_V_ERR_CRL_HAS_EXPIRED ||
           code == X509_V_ERR_CRL_NOT_YET_VALID || code == X509_V_ERR_CRL_SIGNATURE_FAILURE;
}

/* Authorities need no list of their own: to end one, take it out of the file. */
static int
authority_unlisted(int good, X509_STORE_CTX *shown)
{
    if (!good && X509_STORE_CTX_get_error_depth(shown) > 0 &&
        X509_STORE_CTX_get_error(shown) == X509_V_ERR_UNABLE_TO_GET_CRL) {
        X509_STORE_CTX_set_error(shown, X509_V_OK);
        return 1;
    }
    return good;
}

/* Why a verification has rejected a certificate. */
static void
explain(X509_STORE_CTX *shown, char *why, size_t why_bytes)
{
    const X509 *at = X509_STORE_CTX_get_current_cert(shown);
    int code = X509_STORE_CTX_get_error(shown);
    const char *whose = X509_STORE_CTX_get_error_depth(shown) > 0 ? "'s authority" : "";
    char when[CAIRN_CERTIFICATE_TIME_BYTES];

    if (at && code == X509_V_ERR_CERT_HAS_EXPIRED) {
        cairn_certificate_time(time_of(X509_get0_notAfter(at)), when);
        (void)snprintf(why, why_bytes, "%s has expired at %s; renew it", whose, when);
    } else if (at && code == X509_V_ERR_CERT_NOT_YET_VALID) {
        cairn_certificate_time(time_of(X509_get0_notBefore(at)), when);
        (void)snprintf(why, why_bytes, "%s is not valid before %s; compare the nodes' clocks",
                       whose, when);
    } else if (code == X509_V_ERR_CERT_REVOKED) {
        (void)snprintf(why, why_bytes, "%s has been revoked; give the node another", whose);
    } else if (is_about_lists(code)) {
        (void)snprintf(why, why_bytes,
                       "%s cannot be looked up in a revocation list (%s); put its authority's "
                       "present list in ca_file",
                       whose, X509_verify_cert_error_string(code));
    } else if (is_about_authorities(code)) {
        (void)snprintf(why, why_bytes,
                       "%s does not lead to an authority in ca_file (%s); give all nodes the same "
                       "authorities",
                       whose, X509_verify_cert_error_string(code));
    } else {
        (void)snprintf(why, why_bytes, "%s cannot be used (%s); give the node another", whose,
                       X509_verify_cert_error_string(code));
    }
}

/* Verifies a certificate and how it leads to an authority. */
static bool
chain_good(X509_STORE_CTX *shown, char *why, size_t why_bytes)
{
    X509_STORE_CTX_set_verify_cb(shown, authority_unlisted);
    if (X509_verify_cert(shown) != 1) {
        explain(shown, why, why_bytes);
        return false;
    }
    if (X509_check_ca(X509_STORE_CTX_get0_cert(shown)) != 0) {
        (void)snprintf(why, why_bytes, " is an authority's own; give the node one that it signed");
        return false;
    }
    return true;
}

cairn_err
cairn_certificate_self_check(const struct cairn_certificate *certificate, char *why,
                             size_t why_bytes)
{
    static const char *const purposes[] = {"ssl_client", "ssl_server"};
    char reason[CAIRN_IDENTITY_BYTES_MAX];
    cairn_err err = CAIRN_OK;

    for (size_t i = 0; !err && i < sizeof purposes / sizeof *purposes; i++) {
        X509_STORE_CTX *shown = X509_STORE_CTX_new();

        if (!shown ||
            X509_STORE_CTX_init(shown, certificate->authorities, certificate->leaf,
                                certificate->chain) != 1 ||
            X509_STORE_CTX_set_default(shown, purposes[i]) != 1)
            err = CAIRN_NOMEM;
        else if (!chain_good(shown, reason, sizeof reason))
            err = CAIRN_DENIED;
        X509_STORE_CTX_free(shown);
    }
    ERR_clear_error();
    if (err)
        (void)snprintf(why, why_bytes, "this node's certificate%s",
                       err == CAIRN_DENIED ? reason : " cannot be checked: out of memory");
    return err;
}

cairn_err
cairn_certificate_verify(const struct cairn_certificate *certificate,
                         struct x509_store_ctx_st *shown, uint32_t node, char *why,
                         size_t why_bytes)
{
    const X509 *leaf = X509_STORE_CTX_get0_cert(shown);
    char reason[CAIRN_IDENTITY_BYTES_MAX + 2 * NAME_SHOWN_BYTES];
    struct cairn_identity_name names[NAMES_MAX] = {0};
    char name[NAME_SHOWN_BYTES];
    GENERAL_NAMES *owner = NULL;

    if (!chain_good(shown, reason, sizeof reason)) {
        name_show(names, names_of(leaf, names, &owner),
                  cairn_identity_kind_of(certificate->identity), name);
        sk_GENERAL_NAME_pop_free(owner, GENERAL_NAME_free);
        (void)snprintf(why, why_bytes, "the certificate of node %" PRIu32 " (%s)%s", node,
                       name[0] ? name : "without a name", reason);
        return CAIRN_DENIED;
    }
    if (!names_match(certificate, leaf, node, reason, sizeof reason)) {
        X509_STORE_CTX_set_error(shown, X509_V_ERR_APPLICATION_VERIFICATION);
        (void)snprintf(why, why_bytes, "the certificate of node %" PRIu32 " %s", node, reason);
        return CAIRN_DENIED;
    }
    return CAIRN_OK;
}
