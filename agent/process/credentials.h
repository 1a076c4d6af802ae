/*
 * agent/process/credentials.h - the job's keys and this node's certificate, read from the files
 * that a configuration names. All but public parts are in memory of base/secret.h.
 */
#ifndef CAIRN_AGENT_PROCESS_CREDENTIALS_H
#define CAIRN_AGENT_PROCESS_CREDENTIALS_H

#include "agent/process/config.h"
#include "transport/transport.h"

enum {
    CAIRN_CREDENTIALS_KEY_BYTES_MIN = 16,
    CAIRN_CREDENTIALS_KEY_BYTES_MAX = 4096,
    CAIRN_CREDENTIALS_PRIVATE_KEY_BYTES_MAX = 16384,
    CAIRN_CREDENTIALS_CHAIN_BYTES_MAX = 1 << 16,
    CAIRN_CREDENTIALS_CA_BYTES_MAX = 1 << 20
};

struct cairn_credentials {
    struct cairn_credentials_key {
        uint8_t bytes[CAIRN_CREDENTIALS_KEY_BYTES_MAX + 1]; /* one more: too long shows */
        size_t len;                                         /* 0: none */
    } first, second;
    char private_key[CAIRN_CREDENTIALS_PRIVATE_KEY_BYTES_MAX + 1];
    size_t private_key_len;
    char *chain, *authorities; /* owned */
    size_t chain_len, authorities_len;
    bool has_certificate;
    struct cairn_certificate_dates dates; /* of the certificate; 0: none */
};

/*
 * Reads the files. A trailing newline is part of a key, and a key of more than
 * CAIRN_TRANSPORT_KEY_BYTES_MAX bytes is replaced by its SHA-256; second_key_file may be missing.
 * The files of keys, also that of the private key, must be plain files that only we can read: ours,
 * mode 0600 or less, or root's with mode 0640 or less. ca_file must be ours or root's, and writable
 * for nobody else. The certificate must be this node's; its dates are not looked at. CAIRN_DENIED,
 * CAIRN_CONFIG, CAIRN_NOT_FOUND or CAIRN_IO with the text; CAIRN_NOMEM. The caller ends *out with
 * cairn_credentials_free. Blocks on the disk. Thread: any.
 */
CAIRN_MUST_CHECK cairn_err cairn_credentials_read(const struct cairn_config *config,
                                                  struct cairn_credentials **out, char *error,
                                                  size_t error_bytes);
void cairn_credentials_free(struct cairn_credentials *credentials); /* erases; NULL is allowed */

/* The keys as the transport takes them. Borrows from credentials. */
void cairn_credentials_keys(const struct cairn_credentials *credentials,
                            struct cairn_transport_key out[2]);

/* The certificate as the transport takes it: `out`, or NULL without one. Borrows from both. */
const struct cairn_transport_certificate *
cairn_credentials_certificate(const struct cairn_credentials *credentials,
                              const struct cairn_config *config,
                              struct cairn_transport_certificate *out);

/* The problem with the certificate's dates now, as "expired at …", in out[out_bytes]; false: it is
 * valid, or there is none. */
bool cairn_credentials_not_valid(const struct cairn_certificate_dates *dates, int64_t now_s,
                                 char *out, size_t out_bytes);

#endif
