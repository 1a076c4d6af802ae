/*
 * tests/support/certificates.h - an authority that signs certificates of any kind, as PEM in
 * memory.
 */
#ifndef TEST_CERTIFICATES_H
#define TEST_CERTIFICATES_H

#include "transport/transport.h"

#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PEM_BYTES = 8192 };

#define TEST_IDENTITY "spiffe://example.org/cairn/{job}/{node}"

struct authority {
    EVP_PKEY *key;
    X509 *certificate;
    char pem[PEM_BYTES];
};

struct leaf {
    char certificate[PEM_BYTES], private_key[PEM_BYTES];
};

/* What a certificate says. */
struct leaf_content {
    const char *names;     /* as in openssl.cnf: "URI:…, DNS:…"; NULL: none */
    long begins_s, ends_s; /* from now; both 0: the last hour and the next day */
    const char *basic;     /* NULL: "CA:FALSE" */
    const char *usage;     /* NULL: "digitalSignature" */
    const char *purposes;  /* NULL: "serverAuth, clientAuth" */
};

static inline void
certificates_must(int holds)
{
    if (!holds)
        abort();
}

static inline void
bio_text(BIO *bio, char out[PEM_BYTES])
{
    int len = BIO_read(bio, out, PEM_BYTES - 1);

    certificates_must(len > 0 && BIO_pending(bio) == 0);
    out[len] = '\0';
    BIO_free(bio);
}

static inline void
extension_add(X509 *certificate, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX context;
    X509_EXTENSION *extension;

    X509V3_set_ctx(&context, issuer, certificate, NULL, NULL, 0);
    extension = X509V3_EXT_conf_nid(NULL, &context, nid, value);
    certificates_must(extension != NULL && X509_add_ext(certificate, extension, -1) == 1);
    X509_EXTENSION_free(extension);
}

/* A certificate of a key; signed by itself where there is no authority. */
static inline X509 *
certificate_sign(const struct authority *authority, EVP_PKEY *key, const char *subject,
                 const struct leaf_content *content)
{
    static long serial;
    X509 *certificate = X509_new(), *issuer = authority ? authority->certificate : certificate;
    bool given = content->begins_s || content->ends_s;

    X509_set_version(certificate, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), ++serial);
    X509_gmtime_adj(X509_getm_notBefore(certificate), given ? content->begins_s : -3600);
    X509_gmtime_adj(X509_getm_notAfter(certificate), given ? content->ends_s : 86400);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                               (const unsigned char *)subject, -1, -1, 0);
    X509_set_issuer_name(certificate, X509_get_subject_name(issuer));
    X509_set_pubkey(certificate, key);
    extension_add(certificate, issuer, NID_basic_constraints,
                  content->basic ? content->basic : "critical,CA:FALSE");
    extension_add(certificate, issuer, NID_key_usage,
                  content->usage ? content->usage : "critical,digitalSignature");
    extension_add(certificate, issuer, NID_subject_key_identifier, "hash");
    if (authority) /* tells authorities of one name apart */
        extension_add(certificate, issuer, NID_authority_key_identifier, "keyid:always");
    if (authority)
        extension_add(certificate, issuer, NID_ext_key_usage,
                      content->purposes ? content->purposes : "serverAuth,clientAuth");
    if (content->names)
        extension_add(certificate, issuer, NID_subject_alt_name, content->names);
    certificates_must(X509_sign(certificate, authority ? authority->key : key, EVP_sha256()) > 0);
    return certificate;
}

/* An authority signed by itself, or by another (NULL: itself). Ended by authority_end. */
static inline void
authority_make(const char *name, const struct authority *above, struct authority *out)
{
    static const struct leaf_content content = {.basic = "critical,CA:TRUE",
                                                .usage = "critical,keyCertSign,cRLSign"};
    BIO *bio = BIO_new(BIO_s_mem());

    out->key = EVP_EC_gen("P-256");
    certificates_must(out->key != NULL);
    out->certificate = certificate_sign(above, out->key, name, &content);
    certificates_must(PEM_write_bio_X509(bio, out->certificate) == 1);
    bio_text(bio, out->pem);
}

static inline void
authority_end(struct authority *authority)
{
    EVP_PKEY_free(authority->key);
    X509_free(authority->certificate);
}

static inline void
leaf_make(const struct authority *authority, const struct leaf_content *content, struct leaf *out)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *certificate = certificate_sign(authority, key, "leaf", content);
    BIO *bio = BIO_new(BIO_s_mem());

    certificates_must(PEM_write_bio_X509(bio, certificate) == 1);
    bio_text(bio, out->certificate);
    bio = BIO_new(BIO_s_mem());
    certificates_must(PEM_write_bio_PrivateKey(bio, key, NULL, NULL, 0, NULL, NULL) == 1);
    bio_text(bio, out->private_key);
    X509_free(certificate);
    EVP_PKEY_free(key);
}

/* The certificate of a node of the job "test" by TEST_IDENTITY. */
static inline void
leaf_of_node(const struct authority *authority, uint32_t node, struct leaf *out)
{
    char names[128];

    snprintf(names, sizeof names, "URI:spiffe://example.org/cairn/test/%u", node);
    leaf_make(authority, &(struct leaf_content){.names = names}, out);
}

static inline struct cairn_pem
pem_of(const char *name, const char *text)
{
    return (struct cairn_pem){name, text, strlen(text)};
}

/* As the transport takes it, of the job "test". */
static inline struct cairn_transport_certificate
leaf_use(const struct leaf *leaf, const char *authorities, const char *identity)
{
    return (struct cairn_transport_certificate){.chain = pem_of("chain.pem", leaf->certificate),
                                                .private_key = pem_of("key.pem", leaf->private_key),
                                                .authorities = pem_of("ca.pem", authorities),
                                                .identity = identity,
                                                .job = "test"};
}

#endif
