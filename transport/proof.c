/*
 * transport/proof.c - the handshake's HMAC-SHA256 proofs: see frame.h. The only file here that
 * includes OpenSSL. Construction: RFC 2104, with challenge and response bound to a transcript of
 * both nonces and both names, so that a proof fits only one handshake.
 */
#include "transport/frame.h"

#include "base/crc.h"
#include "base/log.h"
#include "base/wire.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <string.h>
#include <sys/random.h>

enum {
    NAME_BYTES = 16,
    TRANSCRIPT_BYTES = NAME_BYTES + 2 + 8 + 4 + 4 + 8 + 8 + 2 * CAIRN_FRAME_NONCE_BYTES + 4 * 2
};

static void
transcript_pack(const char *name, const struct cairn_transcript *transcript,
                uint8_t out[TRANSCRIPT_BYTES])
{
    struct cairn_writer writer;
    uint8_t padded[NAME_BYTES] = {0};

    memcpy(padded, name, strnlen(name, NAME_BYTES - 1));
    cairn_writer_init(&writer, out, TRANSCRIPT_BYTES);
    cairn_write_bytes(&writer, padded, NAME_BYTES);
    cairn_write_u16(&writer, transcript->version);
    cairn_write_u64(&writer, transcript->job_id);
    cairn_write_u32(&writer, transcript->initiator);
    cairn_write_u32(&writer, transcript->responder);
    cairn_write_u64(&writer, transcript->initiator_incarnation);
    cairn_write_u64(&writer, transcript->responder_incarnation);
    cairn_write_bytes(&writer, transcript->nonce_initiator, CAIRN_FRAME_NONCE_BYTES);
    cairn_write_bytes(&writer, transcript->nonce_responder, CAIRN_FRAME_NONCE_BYTES);
    cairn_write_u16(&writer, transcript->initiator_versions.oldest);
    cairn_write_u16(&writer, transcript->initiator_versions.newest);
    cairn_write_u16(&writer, transcript->responder_versions.oldest);
    cairn_write_u16(&writer, transcript->responder_versions.newest);
}

cairn_err
cairn_proof_make(const void *key, size_t key_len, const char *name,
                 const struct cairn_transcript *transcript, uint8_t out[CAIRN_FRAME_PROOF_BYTES])
{
    uint8_t text[TRANSCRIPT_BYTES];
    unsigned int proof_len = 0;

    if (key_len == 0) {
        memset(out, 0, CAIRN_FRAME_PROOF_BYTES);
        return CAIRN_OK;
    }
    transcript_pack(name, transcript, text);
    if (!HMAC(EVP_sha256(), key, (int)key_len, text, sizeof text, out, &proof_len) ||
        proof_len != CAIRN_FRAME_PROOF_BYTES) {
        CAIRN_LOG_AT(ERROR, "transport: cannot compute a proof: HMAC-SHA256 failed in libcrypto");
        return CAIRN_IO;
    }
    return CAIRN_OK;
}

cairn_err
cairn_proof_check(const void *key, size_t key_len, const char *name,
                  const struct cairn_transcript *transcript,
                  const uint8_t proof[CAIRN_FRAME_PROOF_BYTES])
{
    uint8_t right[CAIRN_FRAME_PROOF_BYTES];
    cairn_err err = cairn_proof_make(key, key_len, name, transcript, right);

    if (err)
        return err;
    return CRYPTO_memcmp(right, proof, sizeof right) == 0 ? CAIRN_OK : CAIRN_DENIED;
}

cairn_err
cairn_proof_token(const void *key, size_t key_len, const struct cairn_transcript *transcript,
                  uint64_t *out)
{
    uint8_t text[TRANSCRIPT_BYTES];
    uint8_t proof[CAIRN_FRAME_PROOF_BYTES];
    struct cairn_reader reader;
    uint64_t token;
    cairn_err err;

    if (key_len == 0) {
        transcript_pack("session", transcript, text);
        token = cairn_crc64(0, text, sizeof text);
    } else {
        err = cairn_proof_make(key, key_len, "session", transcript, proof);
        if (err)
            return err;
        cairn_reader_init(&reader, proof, 8);
        token = cairn_read_u64(&reader);
    }
    *out = token ? token : 1; /* 0 marks a frame without a session */
    return CAIRN_OK;
}

cairn_err
cairn_proof_random(void *out, size_t out_len)
{
    uint8_t *at = out;
    size_t left = out_len;

    while (left) {
        ssize_t got = getrandom(at, left, 0);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            CAIRN_LOG_AT(ERROR, "transport: cannot get random bytes: %s", strerror(errno));
            return CAIRN_IO;
        }
        at += got;
        left -= (size_t)got;
    }
    return CAIRN_OK;
}
