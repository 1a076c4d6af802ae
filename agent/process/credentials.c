/* agent/process/credentials.c - see credentials.h. */
#include "agent/process/credentials.h"

#include "agent/process/config_file.h"
#include "base/secret.h"
#include "base/sha256.h"
#include "transport/certificate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WHY_BYTES = 768 };

/* Takes `used` bytes as the key; all of a long one counts. */
static cairn_err
key_shorten(struct cairn_credentials_key *key, size_t used)
{
    struct cairn_sha256 *sha = NULL;
    cairn_err err;

    key->len = used;
    if (used <= CAIRN_TRANSPORT_KEY_BYTES_MAX)
        return CAIRN_OK;
    err = cairn_sha256_create(&sha);
    if (err)
        return err;
    cairn_sha256_update(sha, key->bytes, used);
    err = cairn_sha256_final(sha, key->bytes);
    key->len = CAIRN_SHA256_BYTES;
    cairn_sha256_destroy(sha);
    return err;
}

/* Opens the file of a key; refuses it if others than us and root can read it. */
static cairn_err
open_secret(const struct cairn_config_error *error, uint32_t line, const char *option,
            const char *path, int *out)
{
    struct stat status;
    cairn_err err = cairn_config_open(error, line, option, path, out, &status);
    mode_t others;

    if (err)
        return err;
    /* root may give its own files to a group of ours, as Kubernetes does */
    others = status.st_uid == 0 && geteuid() != 0 ? 027 : 077;
    if (status.st_uid != geteuid() && status.st_uid != 0)
        (void)cairn_config_refuse(error, line,
                                  "%s: %s belongs to user %u, but the agent runs as %u; chown it",
                                  option, path, status.st_uid, geteuid());
    else if (status.st_mode & others)
        (void)cairn_config_refuse(error, line,
                                  "%s: %s has mode %04o, so others can use the key; chmod 600 it, "
                                  "and make a new key if they may have read it",
                                  option, path, status.st_mode & 07777u);
    else
        return CAIRN_OK;
    close(*out);
    return CAIRN_DENIED;
}

static cairn_err
key_read(const struct cairn_config_error *error, uint32_t line, const char *option,
         const char *path, struct cairn_credentials_key *key)
{
    size_t used = 0;
    int fd = -1;
    cairn_err err = open_secret(error, line, option, path, &fd);

    if (err)
        return err;
    err = cairn_config_read(error, line, path, fd, key->bytes, sizeof key->bytes, &used);
    if (err)
        goto done;
    if (used < CAIRN_CREDENTIALS_KEY_BYTES_MIN || used > CAIRN_CREDENTIALS_KEY_BYTES_MAX)
        err = cairn_config_refuse(
            error, line,
            "%s: %s holds %s bytes than a key has (%d to %d); make one with \"openssl rand -out %s "
            "32\"",
            option, path, used < CAIRN_CREDENTIALS_KEY_BYTES_MIN ? "fewer" : "more",
            CAIRN_CREDENTIALS_KEY_BYTES_MIN, CAIRN_CREDENTIALS_KEY_BYTES_MAX, path);
    else
        err = key_shorten(key, used);
done:
    close(fd);
    return err;
}

/* Reads from an open file what must be at most `most` bytes. */
static cairn_err
read_whole(const struct cairn_config_error *error, uint32_t line, const char *option,
           const char *path, int fd, char *bytes, size_t most, size_t *out)
{
    cairn_err err = cairn_config_read(error, line, path, fd, bytes, most + 1, out);

    if (!err && *out > most)
        err = cairn_config_refuse(
            error, line, "%s: %s has more than %zu bytes; give a smaller file", option, path, most);
    return err;
}

/* Reads a public file into memory of its own, *out. `trusted`: writers to it decide whom we
 * trust. */
static cairn_err
public_read(const struct cairn_config_error *error, uint32_t line, const char *option,
            const char *path, size_t most, bool trusted, char **out, size_t *out_len)
{
    struct stat status;
    int fd = -1;
    cairn_err err = cairn_config_open(error, line, option, path, &fd, &status);

    if (err)
        return err;
    if (trusted && ((status.st_uid != geteuid() && status.st_uid != 0) || (status.st_mode & 022))) {
        err = CAIRN_DENIED;
        (void)cairn_config_refuse(
            error, line,
            "%s: %s belongs to user %u and has mode %04o, so others can say who is let in; chown "
            "it to the agent's user or root, and chmod go-w it",
            option, path, status.st_uid, status.st_mode & 07777u);
        goto done;
    }
    *out = malloc(most + 1);
    if (!*out) {
        err = CAIRN_NOMEM;
        (void)cairn_config_refuse(error, 0, "out of memory; free some and try again");
        goto done;
    }
    err = read_whole(error, line, option, path, fd, *out, most, out_len);
done:
    close(fd);
    return err;
}

static cairn_err
certificate_read(const struct cairn_config_error *error, const struct cairn_config *config,
                 struct cairn_credentials *credentials)
{
    uint32_t line = cairn_config_line(config, "certificate_file");
    uint32_t key_line = cairn_config_line(config, "private_key_file");
    struct cairn_transport_certificate pem;
    struct cairn_certificate *certificate = NULL;
    char why[WHY_BYTES];
    int fd = -1;
    cairn_err err = public_read(error, line, "certificate_file", config->certificate_file,
                                CAIRN_CREDENTIALS_CHAIN_BYTES_MAX, false, &credentials->chain,
                                &credentials->chain_len);

    if (!err)
        err = public_read(error, cairn_config_line(config, "ca_file"), "ca_file", config->ca_file,
                          CAIRN_CREDENTIALS_CA_BYTES_MAX, true, &credentials->authorities,
                          &credentials->authorities_len);
    if (!err)
        err = open_secret(error, key_line, "private_key_file", config->private_key_file, &fd);
    if (err)
        return err;
    err = read_whole(error, key_line, "private_key_file", config->private_key_file, fd,
                     credentials->private_key, CAIRN_CREDENTIALS_PRIVATE_KEY_BYTES_MAX,
                     &credentials->private_key_len);
    close(fd);
    if (err)
        return err;
    credentials->has_certificate = true;
    err = cairn_certificate_create(cairn_credentials_certificate(credentials, config, &pem),
                                   config->node, &certificate, why, sizeof why);
    if (err) {
        (void)cairn_config_refuse(error, line, "%s", why);
        return err;
    }
    cairn_certificate_dates(certificate, &credentials->dates);
    cairn_certificate_destroy(certificate);
    return CAIRN_OK;
}

cairn_err
cairn_credentials_read(const struct cairn_config *config, struct cairn_credentials **out,
                       char *error_text, size_t error_bytes)
{
    struct cairn_config_error error = cairn_config_error_of(config, error_text, error_bytes);
    struct cairn_credentials *credentials = cairn_secret_alloc(sizeof *credentials);
    cairn_err err = CAIRN_OK;

    if (!credentials) {
        (void)cairn_config_refuse(&error, 0, "out of memory; free some and try again");
        return CAIRN_NOMEM;
    }
    if (config->key_file[0])
        err = key_read(&error, cairn_config_line(config, "key_file"), "key_file", config->key_file,
                       &credentials->first);
    if (!err && config->key_file[0] && config->second_key_file[0]) {
        err = key_read(&error, cairn_config_line(config, "second_key_file"), "second_key_file",
                       config->second_key_file, &credentials->second);
        if (err == CAIRN_NOT_FOUND)
            err = CAIRN_OK;
    }
    if (!err && config->certificate_file[0])
        err = certificate_read(&error, config, credentials);
    if (!err) {
        *out = credentials;
        credentials = NULL;
    }
    cairn_credentials_free(credentials);
    return err;
}

void
cairn_credentials_free(struct cairn_credentials *credentials)
{
    if (!credentials)
        return;
    free(credentials->chain);
    free(credentials->authorities);
    cairn_secret_free(credentials, sizeof *credentials);
}

void
cairn_credentials_keys(const struct cairn_credentials *credentials,
                       struct cairn_transport_key out[2])
{
    const struct cairn_credentials_key *keys[] = {&credentials->first, &credentials->second};

    for (size_t i = 0; i < 2; i++)
        out[i] = (struct cairn_transport_key){keys[i]->len ? keys[i]->bytes : NULL, keys[i]->len};
}

const struct cairn_transport_certificate *
cairn_credentials_certificate(const struct cairn_credentials *credentials,
                              const struct cairn_config *config,
                              struct cairn_transport_certificate *out)
{
    if (!credentials->has_certificate)
        return NULL;
    *out = (struct cairn_transport_certificate){
        .chain = {config->certificate_file, credentials->chain, credentials->chain_len},
        .private_key = {config->private_key_file, credentials->private_key,
                        credentials->private_key_len},
        .authorities = {config->ca_file, credentials->authorities, credentials->authorities_len},
        .identity = config->identity,
        .job = config->job};
    return out;
}

bool
cairn_credentials_not_valid(const struct cairn_certificate_dates *dates, int64_t now_s, char *out,
                            size_t out_bytes)
{
    enum cairn_certificate_state state = cairn_certificate_state(dates, now_s);
    bool early = state == CAIRN_CERTIFICATE_EARLY;
    char when[CAIRN_CERTIFICATE_TIME_BYTES];

    if (!early && state != CAIRN_CERTIFICATE_EXPIRED)
        return false;
    cairn_certificate_time(early ? dates->begins_s : dates->ends_s, when);
    (void)snprintf(out, out_bytes, "%s %s", early ? "is not valid before" : "expired at", when);
    return true;
}
