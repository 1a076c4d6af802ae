/* transport/tls.c - see tls.h. Source of the construction: RFC 8446, sections 2.2 and 7.5. */
#include "transport/tls.h"

#include "transport/keys.h"

#include "base/log.h"

#include <inttypes.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IDENTITY_BYTES = 128, WHY_BYTES = 200 };

static const unsigned char suite_id[2] = {0x13, 0x01}; /* TLS_AES_128_GCM_SHA256 */

struct cairn_tls {
    SSL_CTX *context;
    struct cairn_keys *keys;
    uint64_t job_id;
    uint32_t node;
    uint32_t node_count;
    unsigned protection;
};

struct cairn_tls_link {
    struct cairn_tls *tls;
    SSL *ssl;
    BIO *in;  /* owned by ssl */
    BIO *out; /* likewise */
    bool caller;
    uint32_t peer;
    char identity[IDENTITY_BYTES];
    char why[WHY_BYTES];
};

/* ---- pre-shared keys ---- */

static void
identity_format(char out[IDENTITY_BYTES], const struct cairn_tls *tls, uint32_t key_id,
                uint32_t from, uint32_t to)
{
    (void)snprintf(out, IDENTITY_BYTES,
                   "cairn1 job=%016" PRIx64 " key=%08" PRIx32 " protection=%u from=%" PRIu32
                   " to=%" PRIu32,
                   tls->job_id, key_id, tls->protection, from, to);
}

/* A session that has nothing but the pre-shared key; NULL if the crypto library fails. */
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
           SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1;
    explicit_bzero(psk, sizeof psk);
    if (good)
        return session;
    SSL_SESSION_free(session);
    return NULL;
}

/* The caller's side: which key it offers. */
static int
psk_offer(SSL *ssl, const EVP_MD *digest, const unsigned char **id, size_t *id_len,
          SSL_SESSION **out)
{
    struct cairn_tls_link *link = SSL_get_app_data(ssl);

    (void)digest;
    *out = session_make(link->tls, ssl, cairn_keys_offered(link->tls->keys), link->tls->node,
                        link->peer);
    *id = (const unsigned char *)link->identity;
    *id_len = strlen(link->identity);
    return *out != NULL;
}

/* What is wrong with an identity that is not one of ours; the stranger is told none of this. */
static void
identity_explain(struct cairn_tls_link *link, const char *theirs)
{
    const struct cairn_tls *tls = link->tls;
    unsigned long long job = 0;
    unsigned key_id = 0, protection = 0, from = 0, to = 0;
    uint8_t psk[CAIRN_KEYS_PSK_BYTES];
    cairn_err known;

    if (sscanf(theirs, "cairn1 job=%16llx key=%8x protection=%1u from=%8u to=%8u", &job, &key_id,
               &protection, &from, &to) != 5) {
        (void)snprintf(link->why, sizeof link->why, "it is not an agent of this version");
        return;
    }
    known = cairn_keys_psk(tls->keys, key_id, from, to, psk);
    explicit_bzero(psk, sizeof psk);
    if (job != tls->job_id)
        (void)snprintf(link->why, sizeof link->why,
                       "it belongs to another job (theirs %016llx, ours %016" PRIx64
                       "): check its address and job",
                       job, tls->job_id);
    else if (to != tls->node || from >= tls->node_count || from == tls->node)
        (void)snprintf(link->why, sizeof link->why,
                       "it calls itself node %u and this node %u, which is node %" PRIu32
                       ": give all agents the same nodes in the same order",
                       from, to, tls->node);
    else if (known == CAIRN_NOT_FOUND)
        (void)snprintf(link->why, sizeof link->why,
                       "node %u offers another key (%08x, ours is %08" PRIx32
                       "): give all agents of the job the same key",
                       from, key_id, cairn_keys_offered(tls->keys));
    else
        (void)snprintf(link->why, sizeof link->why,
                       "node %u has another protection: give all agents the same", from);
}

/* The callee's side: the key that an identity names. Without one the handshake fails, for there is
 * no certificate. */
static int
psk_find(SSL *ssl, const unsigned char *id, size_t id_len, SSL_SESSION **out)
{
    struct cairn_tls_link *link = SSL_get_app_data(ssl);
    const struct cairn_tls *tls = link->tls;
    uint32_t key_id = 0;
    bool known = false;
    char theirs[IDENTITY_BYTES] = "", ours[IDENTITY_BYTES];
    const char *from_text;
    unsigned long from;

    *out = NULL;
    if (id_len >= sizeof theirs)
        return 1;
    memcpy(theirs, id, id_len);
    from_text = strstr(theirs, " from=");
    from = from_text ? strtoul(from_text + 6, NULL, 10) : tls->node_count;
    if (from >= tls->node_count)
        from = tls->node;
    for (uint32_t i = 0; !known && cairn_keys_id(tls->keys, i, &key_id); i++) {
        identity_format(ours, tls, key_id, (uint32_t)from, tls->node);
        known = strcmp(ours, theirs) == 0;
    }
    if (!known || from == tls->node) {
        identity_explain(link, theirs);
        return 1;
    }
    (void)snprintf(link->why, sizeof link->why,
                   "it calls itself node %lu, but does not hold the key that it names", from);
    link->peer = (uint32_t)from;
    *out = session_make(tls, ssl, key_id, (uint32_t)from, tls->node);
    return *out != NULL;
}

/* ---- the context ---- */

cairn_err
cairn_tls_create(const struct cairn_transport_options *options, struct cairn_tls **out)
{
    struct cairn_tls *tls = calloc(1, sizeof *tls);
    cairn_err err = CAIRN_NOMEM;

    if (!tls)
        return err;
    tls->job_id = options->job_id;
    tls->node = options->node;
    tls->node_count = options->node_count;
    tls->protection = (unsigned)options->protection;
    err = cairn_keys_create(options->job_id, &tls->keys);
    if (!err)
        err = cairn_keys_set(tls->keys, (const struct cairn_transport_key[]){
                                            {options->key, options->key_len}, options->second_key});
    if (err)
        goto done;
    tls->context = SSL_CTX_new(TLS_method());
    if (!tls->context || SSL_CTX_set_min_proto_version(tls->context, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_max_proto_version(tls->context, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_ciphersuites(tls->context, "TLS_AES_128_GCM_SHA256") != 1 ||
        SSL_CTX_set1_groups_list(tls->context, "X25519") != 1 ||
        SSL_CTX_set_num_tickets(tls->context, 0) != 1) {
        CAIRN_LOG_AT(ERROR, "transport: the crypto library has no TLS 1.3: %s",
                     ERR_reason_error_string(ERR_peek_last_error()));
        err = CAIRN_IO;
        goto done;
    }
    SSL_CTX_set_options(tls->context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
    SSL_CTX_set_session_cache_mode(tls->context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_psk_use_session_callback(tls->context, psk_offer);
    SSL_CTX_set_psk_find_session_callback(tls->context, psk_find);
    *out = tls;
    tls = NULL;
done:
    cairn_tls_destroy(tls);
    return err;
}

cairn_err
cairn_tls_rekey(struct cairn_tls *tls, const struct cairn_transport_key keys[2])
{
    return cairn_keys_set(tls->keys, keys);
}

void
cairn_tls_destroy(struct cairn_tls *tls)
{
    if (!tls)
        return;
    SSL_CTX_free(tls->context);
    cairn_keys_destroy(tls->keys);
    free(tls);
}

/* ---- one connection ---- */

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
    link->ssl = SSL_new(tls->context);
    link->in = BIO_new(BIO_s_mem());
    link->out = BIO_new(BIO_s_mem());
    if (!link->ssl || !link->in || !link->out) {
        BIO_free(link->in);
        BIO_free(link->out);
        link->in = link->out = NULL;
        cairn_tls_link_destroy(link);
        return CAIRN_NOMEM;
    }
    SSL_set_bio(link->ssl, link->in, link->out);
    SSL_set_app_data(link->ssl, link);
    if (caller) {
        identity_format(link->identity, tls, cairn_keys_offered(tls->keys), tls->node, peer);
        SSL_set_verify(link->ssl, SSL_VERIFY_PEER, NULL); /* no certificate is ever trusted */
        SSL_set_connect_state(link->ssl);
    } else {
        SSL_set_accept_state(link->ssl);
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

uint32_t
cairn_tls_link_peer(const struct cairn_tls_link *link)
{
    return link->peer;
}

cairn_err
cairn_tls_link_handshake(struct cairn_tls_link *link, const uint8_t *bytes, size_t bytes_len)
{
    unsigned long code;
    int result, reason;

    ERR_clear_error();
    if (bytes_len && BIO_write(link->in, bytes, (int)bytes_len) != (int)bytes_len)
        return CAIRN_CORRUPT;
    result = SSL_do_handshake(link->ssl);
    if (result == 1 && SSL_session_reused(link->ssl)) /* with the key, and nothing else */
        return CAIRN_OK;
    if (result != 1 && SSL_get_error(link->ssl, result) == SSL_ERROR_WANT_READ)
        return CAIRN_AGAIN;
    code = ERR_peek_error();
    reason = ERR_GET_REASON(code);
    ERR_clear_error();
    if (reason > SSL_AD_REASON_OFFSET && reason < SSL_AD_REASON_OFFSET + 256)
        return CAIRN_DENIED; /* an alert of the other side */
    if (!link->why[0])
        (void)snprintf(link->why, sizeof link->why, "%s",
                       code && ERR_reason_error_string(code) ? ERR_reason_error_string(code)
                                                             : "it is not TLS");
    return CAIRN_CORRUPT;
}

size_t
cairn_tls_link_output(struct cairn_tls_link *link, uint8_t *out, size_t out_bytes)
{
    int got = BIO_read(link->out, out, (int)out_bytes);

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
    int got;

    ERR_clear_error();
    if (BIO_write(link->in, record, (int)record_len) != (int)record_len)
        return CAIRN_CORRUPT;
    got = SSL_read(link->ssl, out, (int)out_bytes);
    if (got > 0 && SSL_pending(link->ssl) == 0) {
        *used = (size_t)got;
        return CAIRN_OK;
    }
    got = got > 0 ? SSL_ERROR_SSL : SSL_get_error(link->ssl, got);
    ERR_clear_error();
    return got == SSL_ERROR_WANT_READ ? CAIRN_AGAIN : CAIRN_CORRUPT;
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
