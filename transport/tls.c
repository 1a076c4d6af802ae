/* transport/tls.c - see tls.h. Source of the construction: RFC 8446, sections 2.2, 4.4 and 7.5. */
#include "transport/tls.h"

#include "transport/certificate.h"
#include "transport/keys.h"

#include "base/log.h"

#include <inttypes.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    IDENTITY_BYTES = 128,
    WHY_BYTES = 640,
    CLAIM_BYTES_MAX = 255, /* of a protocol's name in ALPN */
    /* Of a handshake in one record, so that it fits what a connection may keep before it is proved;
     * of all certificates of a peer. */
    HANDSHAKE_FRAGMENT_BYTES = 1536,
    CERTIFICATES_BYTES_MAX = 16384
};

#define CLAIM_MARK "cairn1 job="
#define CLAIM_BEGIN CLAIM_MARK "%016" PRIx64
static const unsigned char suite_id[2] = {0x13, 0x01}; /* TLS_AES_128_GCM_SHA256 */
static const unsigned char context_name[] = "cairn";   /* sessions must come from it */

struct cairn_tls {
    SSL_CTX *context;
    struct cairn_keys *keys;               /* may be empty */
    struct cairn_certificate *certificate; /* NULL: none */
    uint64_t job_id;
    uint32_t node;
    uint32_t node_count;
    unsigned protection;
};

struct cairn_tls_link {
    struct cairn_tls *tls;
    SSL *ssl; /* NULL: the callee has not seen a hello of this job */
    BIO *in;  /* owned by ssl */
    BIO *out; /* likewise */
    bool caller;
    bool by_key;    /* the callee knows the key that the caller names */
    bool claimed;   /* the two agree on job, protection, caller and callee */
    bool certified; /* and the peer's certificate is that of this node */
    bool refuses;   /* it is not */
    bool alert;     /* must be sent: the hello is none of this job's */
    uint32_t peer;
    uint32_t key_id; /* of the caller's key */
    char identity[IDENTITY_BYTES];
    char why[WHY_BYTES];
};

/* ---- claims ---- */

/* What a caller sends before anything is proved: with a key as the identity of the pre-shared key,
 * else (NULL) as the name of the protocol. */
static void
claim_format(char out[IDENTITY_BYTES], const struct cairn_tls *tls, const uint32_t *key_id,
             uint32_t from, uint32_t to)
{
    char key[16] = "";

    if (key_id)
        (void)snprintf(key, sizeof key, " key=%08" PRIx32, *key_id);
    (void)snprintf(out, IDENTITY_BYTES, CLAIM_BEGIN "%s protection=%u from=%" PRIu32 " to=%" PRIu32,
                   tls->job_id, key, tls->protection, from, to);
}

/* The caller that a claim names; one's own number: none that can call. */
static uint32_t
claim_caller(const struct cairn_tls *tls, const char *claim)
{
    const char *text = strstr(claim, " from=");
    unsigned long from = text ? strtoul(text + 6, NULL, 10) : tls->node_count;

    return from < tls->node_count ? (uint32_t)from : tls->node;
}

/* Why a claim is not one of ours; the stranger is not told. */
static void
claim_explain(struct cairn_tls_link *link, const char *theirs)
{
    const struct cairn_tls *tls = link->tls;
    unsigned long long job = 0;
    unsigned key_id = 0, protection = 0, from = 0, to = 0;
    uint32_t ours = 0;
    bool has_key = cairn_keys_id(tls->keys, 0, &ours);
    bool keyed = sscanf(theirs, "cairn1 job=%16llx key=%8x protection=%1u from=%8u to=%8u", &job,
                        &key_id, &protection, &from, &to) == 5;

    if (!keyed && sscanf(theirs, "cairn1 job=%16llx protection=%1u from=%8u to=%8u", &job,
                         &protection, &from, &to) != 4)
        (void)snprintf(link->why, sizeof link->why, "it is not an agent of this version");
    else if (job != tls->job_id)
        (void)snprintf(link->why, sizeof link->why,
                       "it belongs to another job (theirs %016llx, ours %016" PRIx64
                       "); check its address and job",
                       job, tls->job_id);
    else if (to != tls->node || from >= tls->node_count || from == tls->node)
        (void)snprintf(link->why, sizeof link->why,
                       "it calls itself node %u and this node %u, which is node %" PRIu32
                       "; give all agents the same nodes in the same order",
                       from, to, tls->node);
    else if (protection != tls->protection)
        (void)snprintf(link->why, sizeof link->why,
                       "node %u has another protection; give all agents the same", from);
    else if (has_key)
        (void)snprintf(link->why, sizeof link->why,
                       "node %u offers another key (%08x, ours is %08" PRIx32
                       "); give all agents of the job the same key",
                       from, key_id, ours);
    else
        (void)snprintf(link->why, sizeof link->why,
                       "node %u offers a key (%08x), and this agent has a certificate alone; give "
                       "that node one, too",
                       from, key_id);
}

/* Whether a caller's hello names this job. That proves nothing, but costs a tenth of what OpenSSL
 * takes to refuse a hello. */
static bool
names_job(struct cairn_tls_link *link, const uint8_t *hello, size_t hello_len)
{
    static const char mark[] = CLAIM_MARK;
    char ours[IDENTITY_BYTES], theirs[IDENTITY_BYTES] = "";
    size_t len = (size_t)snprintf(ours, sizeof ours, CLAIM_BEGIN, link->tls->job_id);
    const uint8_t *claim = memmem(hello, hello_len, ours, len);
    size_t left;

    if (claim)
        return true;
    claim = memmem(hello, hello_len, mark, sizeof mark - 1);
    left = claim ? hello_len - (size_t)(claim - hello) : 0;
    if (claim)
        memcpy(theirs, claim, left < sizeof theirs ? left : sizeof theirs - 1);
    claim_explain(link, theirs);
    return false;
}

/* ---- pre-shared keys ---- */

/* A session with nothing but the pre-shared key; NULL if the key is unknown, or the crypto library
 * fails. */
static SSL_SESSION *
session_make(const struct cairn_tls *tls, SSL *ssl, uint32_t key_id, uint32_t from, uint32_t to)
{
    uint8_t psk[CAIRN_KEYS_PSK_BYTES];
    SSL_SESSION *session = NULL;
    bool good = false;

    if (cairn_keys_psk(tls->keys, key_id, from, to, psk) != CAIRN_OK)
        return NULL;
    session = SSL_SESSION_new();
    good = session && SSL_SESSION_set1_master_key(session, psk, sizeof psk) == 1 &&
           SSL_SESSION_set_cipher(session, SSL_CIPHER_find(ssl, suite_id)) == 1 &&
           SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1 &&
           SSL_SESSION_set1_id_context(session, context_name, sizeof context_name) == 1;
    explicit_bzero(psk, sizeof psk);
    if (good)
        return session;
    SSL_SESSION_free(session);
    return NULL;
}

/* The caller's side: which key it offers, if it has one. */
static int
psk_offer(SSL *ssl, const EVP_MD *digest, const unsigned char **id, size_t *id_len,
          SSL_SESSION **out)
{
    struct cairn_tls_link *link = SSL_get_app_data(ssl);

    (void)digest;
    *out = NULL;
    if (!link->identity[0])
        return 1;
    *out = session_make(link->tls, ssl, link->key_id, link->tls->node, link->peer);
    *id = (const unsigned char *)link->identity;
    *id_len = strlen(link->identity);
    return *out != NULL;
}

/* The callee's side: the key that an identity names. Without one the handshake goes on with
 * certificates, or fails if there are none. */
static int
psk_find(SSL *ssl, const unsigned char *id, size_t id_len, SSL_SESSION **out)
{
    struct cairn_tls_link *link = SSL_get_app_data(ssl);
    const struct cairn_tls *tls = link->tls;
    uint32_t key_id = 0, from;
    bool known = false;
    char theirs[IDENTITY_BYTES] = "", ours[IDENTITY_BYTES];

    *out = NULL;
    if (id_len >= sizeof theirs)
        return 1;
    memcpy(theirs, id, id_len);
    from = claim_caller(tls, theirs);
    for (uint32_t i = 0; !known && cairn_keys_id(tls->keys, i, &key_id); i++) {
        claim_format(ours, tls, &key_id, from, tls->node);
        known = strcmp(ours, theirs) == 0;
    }
    if (!known || from == tls->node) {
        claim_explain(link, theirs);
        return 1;
    }
    (void)snprintf(link->why, sizeof link->why,
                   "it calls itself node %" PRIu32 ", but does not hold the key that it names",
                   from);
    link->peer = from;
    link->by_key = true;
    *out = session_make(tls, ssl, key_id, from, tls->node);
    return *out != NULL;
}

/* ---- certificates ---- */

/* The callee's side: what the caller claims. */
static int
claim_take(SSL *ssl, const unsigned char **out, unsigned char *out_len, const unsigned char *in,
           unsigned in_len, void *context)
{
    struct cairn_tls_link *link = SSL_get_app_data(ssl);
    const struct cairn_tls *tls = link->tls;
    char theirs[CLAIM_BYTES_MAX + 1] = "", ours[IDENTITY_BYTES];
    uint32_t from;

    (void)context;
    if (link->by_key || !tls->certificate)
        return SSL_TLSEXT_ERR_NOACK;
    if (in_len < 2 || in[0] >= in_len)
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    memcpy(theirs, in + 1, in[0]);
    from = claim_caller(tls, theirs);
    claim_format(ours, tls, NULL, from, tls->node);
    if (from == tls->node || strcmp(ours, theirs) != 0) {
        claim_explain(link, theirs);
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    }
    (void)snprintf(link->why, sizeof link->why,
                   "it calls itself node %" PRIu32 ", but shows no certificate", from);
    link->peer = from;
    link->claimed = true;
    *out = in + 1;
    *out_len = in[0];
    return SSL_TLSEXT_ERR_OK;
}

/* The caller's side: offers its claim. */
static bool
claim_offer(struct cairn_tls_link *link)
{
    char claim[IDENTITY_BYTES];
    unsigned char list[IDENTITY_BYTES];
    size_t len;

    claim_format(claim, link->tls, NULL, link->tls->node, link->peer);
    len = strlen(claim);
    list[0] = (unsigned char)len;
    memcpy(list + 1, claim, len);
    return SSL_set_alpn_protos(link->ssl, list, (unsigned)len + 1) == 0;
}

/* Both sides: takes the peer's certificate. Called before the peer has proved that it is its
 * own. */
static int
peer_verify(X509_STORE_CTX *shown, void *context)
{
    SSL *ssl = X509_STORE_CTX_get_ex_data(shown, SSL_get_ex_data_X509_STORE_CTX_idx());
    struct cairn_tls_link *link = SSL_get_app_data(ssl);

    (void)context;
    if (link->tls->certificate && (link->caller || link->claimed)) {
        link->certified = cairn_certificate_verify(link->tls->certificate, shown, link->peer,
                                                   link->why, sizeof link->why) == CAIRN_OK;
    } else {
        X509_STORE_CTX_set_error(shown, X509_V_ERR_APPLICATION_VERIFICATION);
        (void)snprintf(link->why, sizeof link->why, "%s",
                       link->tls->certificate ? "it is not an agent of this version"
                                              : "it shows a certificate, and this agent has a key "
                                                "alone; give this node a certificate, too");
    }
    link->refuses = !link->certified;
    if (link->certified)
        (void)snprintf(link->why, sizeof link->why,
                       "it shows the certificate of node %" PRIu32 ", but does not hold its key",
                       link->peer);
    return link->certified;
}

/* The handshake is complete: whether it has proved the peer's identity. */
static bool
is_proved(const struct cairn_tls_link *link)
{
    const unsigned char *protocol = NULL;
    unsigned protocol_len = 0;

    if (SSL_session_reused(link->ssl)) /* with the key */
        return true;
    SSL_get0_alpn_selected(link->ssl, &protocol, &protocol_len);
    return link->certified && protocol_len > 0;
}

/* ---- the context ---- */

static cairn_err
context_make(const struct cairn_certificate *certificate, SSL_CTX **out)
{
    SSL_CTX *context = SSL_CTX_new(TLS_method());

    if (!context || SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") != 1 ||
        SSL_CTX_set1_groups_list(context, "X25519") != 1 ||
        SSL_CTX_set_session_id_context(context, context_name, sizeof context_name) != 1 ||
        SSL_CTX_set_num_tickets(context, 0) != 1 ||
        (certificate && cairn_certificate_use(certificate, context) != CAIRN_OK)) {
        CAIRN_LOG_AT(ERROR, "transport: the crypto library cannot do TLS 1.3%s: %s",
                     certificate ? " with this certificate" : "",
                     ERR_reason_error_string(ERR_peek_last_error()));
        SSL_CTX_free(context);
        return CAIRN_IO;
    }
    SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_security_level(context, 2); /* no SHA-1, no RSA of less than 2048 bits */
    SSL_CTX_set_max_cert_list(context, CERTIFICATES_BYTES_MAX);
    SSL_CTX_set_psk_use_session_callback(context, psk_offer);
    SSL_CTX_set_psk_find_session_callback(context, psk_find);
    SSL_CTX_set_alpn_select_cb(context, claim_take, NULL);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    SSL_CTX_set_cert_verify_callback(context, peer_verify, NULL);
    *out = context;
    return CAIRN_OK;
}

static void
certificate_log(const struct cairn_certificate *certificate)
{
    struct cairn_certificate_dates dates;
    char when[CAIRN_CERTIFICATE_TIME_BYTES];

    cairn_certificate_dates(certificate, &dates);
    cairn_certificate_time(dates.ends_s, when);
    CAIRN_LOG_AT(INFO, "transport: the certificate that is shown is valid until %s", when);
}

cairn_err
cairn_tls_rekey(struct cairn_tls *tls, const struct cairn_transport_key keys[2],
                const struct cairn_transport_certificate *certificate)
{
    struct cairn_certificate *fresh = NULL;
    SSL_CTX *context = NULL;
    char why[WHY_BYTES];
    cairn_err err = CAIRN_OK;

    if (certificate)
        err = cairn_certificate_create(certificate, tls->node, &fresh, why, sizeof why);
    if (err)
        CAIRN_LOG_AT(ERROR, "transport: %s", why);
    if (!err)
        err = context_make(fresh, &context);
    if (!err)
        err = cairn_keys_set(tls->keys, keys);
    if (err)
        goto done;
    SSL_CTX_free(tls->context); /* links keep the one that they began with */
    cairn_certificate_destroy(tls->certificate);
    tls->context = context;
    tls->certificate = fresh;
    context = NULL;
    fresh = NULL;
    if (tls->certificate)
        certificate_log(tls->certificate);
done:
    SSL_CTX_free(context);
    cairn_certificate_destroy(fresh);
    return err;
}

cairn_err
cairn_tls_create(const struct cairn_transport_options *options, struct cairn_tls **out)
{
    struct cairn_tls *tls = calloc(1, sizeof *tls);
    const struct cairn_transport_key keys[] = {{options->key, options->key_len},
                                               options->second_key};
    cairn_err err = CAIRN_NOMEM;

    if (!tls)
        return err;
    tls->job_id = options->job_id;
    tls->node = options->node;
    tls->node_count = options->node_count;
    tls->protection = (unsigned)options->protection;
    err = cairn_keys_create(options->job_id, &tls->keys);
    if (!err)
        err = cairn_tls_rekey(tls, keys, options->certificate);
    if (err)
        goto done;
    *out = tls;
    tls = NULL;
done:
    cairn_tls_destroy(tls);
    return err;
}

bool
cairn_tls_ports(const struct cairn_tls *tls, uint32_t place, uint32_t to, struct cairn_ports *out)
{
    return cairn_keys_ports(tls->keys, place, to, out);
}

bool
cairn_tls_is_certified(const struct cairn_tls *tls)
{
    return tls->certificate != NULL;
}

void
cairn_tls_destroy(struct cairn_tls *tls)
{
    if (!tls)
        return;
    SSL_CTX_free(tls->context);
    cairn_certificate_destroy(tls->certificate);
    cairn_keys_destroy(tls->keys);
    free(tls);
}

/* ---- one connection ---- */

static cairn_err
ssl_make(struct cairn_tls_link *link)
{
    link->ssl = SSL_new(link->tls->context);
    link->in = BIO_new(BIO_s_mem());
    link->out = BIO_new(BIO_s_mem());
    if (!link->ssl || !link->in || !link->out) {
        BIO_free(link->in);
        BIO_free(link->out);
        SSL_free(link->ssl);
        link->in = link->out = NULL;
        link->ssl = NULL;
        return CAIRN_NOMEM;
    }
    SSL_set_bio(link->ssl, link->in, link->out);
    SSL_set_app_data(link->ssl, link);
    SSL_set_max_send_fragment(link->ssl, HANDSHAKE_FRAGMENT_BYTES);
    if (link->caller)
        SSL_set_connect_state(link->ssl);
    else
        SSL_set_accept_state(link->ssl);
    return CAIRN_OK;
}

cairn_err
cairn_tls_link_create(struct cairn_tls *tls, bool caller, uint32_t peer,
                      struct cairn_tls_link **out)
{
    struct cairn_tls_link *link = calloc(1, sizeof *link);

    if (!link)
        return CAIRN_NOMEM;
    link->tls = tls;
    link->caller = caller;
    link->peer = peer;
    if (caller && cairn_keys_id(tls->keys, 0, &link->key_id))
        claim_format(link->identity, tls, &link->key_id, tls->node, peer);
    if (caller && (ssl_make(link) != CAIRN_OK || (tls->certificate && !claim_offer(link)))) {
        cairn_tls_link_destroy(link);
        return CAIRN_NOMEM;
    }
    *out = link;
    return CAIRN_OK;
}

void
cairn_tls_link_destroy(struct cairn_tls_link *link)
{
    if (!link)
        return;
    SSL_free(link->ssl);
    free(link);
}

const char *
cairn_tls_link_why(const struct cairn_tls_link *link)
{
    return link->why;
}

bool
cairn_tls_link_known(const struct cairn_tls_link *link)
{
    return link->by_key || link->claimed;
}

uint32_t
cairn_tls_link_peer(const struct cairn_tls_link *link)
{
    return link->peer;
}

/* Whether an error is what the other side said. */
static bool
is_alert(int reason)
{
    return reason > SSL_AD_REASON_OFFSET && reason < SSL_AD_REASON_OFFSET + 256;
}

cairn_err
cairn_tls_link_handshake(struct cairn_tls_link *link, const uint8_t *bytes, size_t bytes_len)
{
    unsigned long code;
    int result, reason;

    if (!link->ssl && !names_job(link, bytes, bytes_len)) {
        link->alert = true;
        return CAIRN_CORRUPT;
    }
    if (!link->ssl && ssl_make(link) != CAIRN_OK)
        return CAIRN_NOMEM;
    ERR_clear_error();
    if (bytes_len && BIO_write(link->in, bytes, (int)bytes_len) != (int)bytes_len)
        return CAIRN_CORRUPT;
    result = SSL_do_handshake(link->ssl);
    if (result == 1 && is_proved(link)) {
        /* from here on a message is one record */
        if (SSL_set_max_send_fragment(link->ssl, SSL3_RT_MAX_PLAIN_LENGTH) != 1 ||
            SSL_set_split_send_fragment(link->ssl, SSL3_RT_MAX_PLAIN_LENGTH) != 1 ||
            SSL_free_buffers(link->ssl) != 1)
            return CAIRN_CORRUPT;
        return CAIRN_OK;
    }
    if (result != 1 && SSL_get_error(link->ssl, result) == SSL_ERROR_WANT_READ)
        return CAIRN_AGAIN;
    code = ERR_peek_error();
    reason = ERR_GET_REASON(code);
    ERR_clear_error();
    if (is_alert(reason))
        return CAIRN_DENIED; /* an alert of the other side */
    if (link->refuses)
        return CAIRN_DENIED;
    if (!link->why[0])
        (void)snprintf(link->why, sizeof link->why, "%s",
                       code && ERR_reason_error_string(code) ? ERR_reason_error_string(code)
                                                             : "it is not TLS");
    return CAIRN_CORRUPT;
}

size_t
cairn_tls_link_output(struct cairn_tls_link *link, uint8_t *out, size_t out_bytes)
{
    static const uint8_t alert[] = {SSL3_RT_ALERT,           3, 3, 0, 2, SSL3_AL_FATAL,
                                    SSL_AD_HANDSHAKE_FAILURE};
    int got = link->ssl ? BIO_read(link->out, out, (int)out_bytes) : 0;

    if (link->alert && out_bytes >= sizeof alert) {
        link->alert = false;
        memcpy(out, alert, sizeof alert);
        return sizeof alert;
    }
    return got > 0 ? (size_t)got : 0;
}

cairn_err
cairn_tls_link_seal(struct cairn_tls_link *link, const void *bytes, size_t bytes_len, uint8_t *out,
                    size_t out_bytes, size_t *used)
{
    ERR_clear_error();
    if (SSL_write(link->ssl, bytes, (int)bytes_len) != (int)bytes_len)
        return CAIRN_IO;
    *used = cairn_tls_link_output(link, out, out_bytes);
    return BIO_ctrl_pending(link->out) ? CAIRN_IO : CAIRN_OK;
}

cairn_err
cairn_tls_link_open(struct cairn_tls_link *link, const uint8_t *record, size_t record_len,
                    uint8_t *out, size_t out_bytes, size_t *used)
{
    int got, reason;

    ERR_clear_error();
    if (BIO_write(link->in, record, (int)record_len) != (int)record_len)
        return CAIRN_CORRUPT;
    got = SSL_read(link->ssl, out, (int)out_bytes);
    if (got > 0 && SSL_pending(link->ssl) == 0) {
        *used = (size_t)got;
        return CAIRN_OK;
    }
    got = got > 0 ? SSL_ERROR_SSL : SSL_get_error(link->ssl, got);
    reason = ERR_GET_REASON(ERR_peek_error());
    ERR_clear_error();
    if (got == SSL_ERROR_WANT_READ)
        return CAIRN_AGAIN;
    return is_alert(reason) ? CAIRN_DENIED : CAIRN_CORRUPT;
}

cairn_err
cairn_tls_link_export(struct cairn_tls_link *link, uint8_t out[CAIRN_TLS_EXPORT_BYTES])
{
    static const char label[] = "EXPORTER-cairn-payloads";

    return SSL_export_keying_material(link->ssl, out, CAIRN_TLS_EXPORT_BYTES, label,
                                      sizeof label - 1, NULL, 0, 0) == 1
               ? CAIRN_OK
               : CAIRN_IO;
}
