/*
 * tests/fuzz/fuzz_certificate.c - the names in a certificate (subject alternative name), as the
 * bytes of the extension's value in a certificate that an authority of the job has signed: all that
 * stands between a node of another job and ours is what these bytes are taken for.
 *
 * The first byte chooses the kind of name that is expected. A certificate is accepted only if the
 * expected name stands in the bytes, and the reason for a refusal can be printed.
 */
#include "transport/certificate.h"

#include "tests/fuzz/require.h"
#include "tests/support/certificates.h"

#include <ctype.h>
#include <openssl/err.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { NAMES_BYTES_MAX = 2048, NODE = 1 };

/* A certificate with these bytes as its names. */
static X509 *
certificate_make(const struct authority *authority, EVP_PKEY *key, const uint8_t *names,
                 size_t names_len)
{
    X509 *certificate =
        certificate_sign(authority, key, "leaf", &(struct leaf_content){.names = NULL});
    ASN1_OCTET_STRING *value = ASN1_OCTET_STRING_new();
    X509_EXTENSION *extension;

    require(value && ASN1_OCTET_STRING_set(value, names, (int)names_len) == 1);
    extension = X509_EXTENSION_create_by_NID(NULL, NID_subject_alt_name, 0, value);
    require(extension && X509_add_ext(certificate, extension, -1) == 1);
    require(X509_sign(certificate, authority->key, EVP_sha256()) > 0);
    X509_EXTENSION_free(extension);
    ASN1_OCTET_STRING_free(value);
    return certificate;
}

static bool
contains(const uint8_t *data, size_t size, const char *text, bool any_case)
{
    size_t len = strlen(text);

    for (size_t at = 0; at + len <= size; at++) {
        size_t same = 0;

        while (same < len && (data[at + same] == (uint8_t)text[same] ||
                              (any_case && tolower(data[at + same]) == text[same])))
            same++;
        if (same == len)
            return true;
    }
    return false;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const patterns[] = {TEST_IDENTITY, "{job}-{node}.example.org"};
    static const char *const own[] = {"URI:spiffe://example.org/cairn/test/0",
                                      "DNS:test-0.example.org"};
    static struct authority authority;
    static struct cairn_certificate *certificates[2];
    static X509_STORE *store;
    static EVP_PKEY *key;
    char why[1024] = "", expected[CAIRN_IDENTITY_BYTES_MAX];
    X509_STORE_CTX *shown = X509_STORE_CTX_new();
    X509 *leaf;
    int kind;
    cairn_err err;

    if (!key) {
        authority_make("authority", NULL, &authority);
        key = EVP_EC_gen("P-256");
        store = X509_STORE_new();
        require(key && store && X509_STORE_add_cert(store, authority.certificate) == 1);
        for (int i = 0; i < 2; i++) {
            struct leaf mine;
            struct cairn_transport_certificate pem;

            leaf_make(&authority, &(struct leaf_content){.names = own[i]}, &mine);
            pem = leaf_use(&mine, authority.pem, patterns[i]);
            require(cairn_certificate_create(&pem, 0, &certificates[i], why, sizeof why) ==
                    CAIRN_OK);
        }
    }
    if (size == 0 || size > NAMES_BYTES_MAX) {
        X509_STORE_CTX_free(shown);
        return 0;
    }
    kind = data[0] & 1;
    leaf = certificate_make(&authority, key, data + 1, size - 1);
    require(shown && X509_STORE_CTX_init(shown, store, leaf, NULL) == 1);
    err = cairn_certificate_verify(certificates[kind], shown, NODE, why, sizeof why);
    cairn_identity_format(patterns[kind], "test", NODE, expected);
    require(err == CAIRN_DENIED ||
            (err == CAIRN_OK && contains(data + 1, size - 1, expected, kind)));
    for (const char *at = why; err && *at; at++)
        require(isprint((unsigned char)*at));
    X509_STORE_CTX_free(shown);
    X509_free(leaf);
    ERR_clear_error();
    return 0;
}
