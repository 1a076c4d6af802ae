/* tools/doctor_wire.c - `cairn doctor`'s checks of the traffic between agents: key and certificate,
 * provider, port, cipher. Connects to nobody. */
#include "tools/doctor.h"

#include "agent/process/credentials.h"
#include "base/log.h"
#include "tools/common.h"
#include "transport/certificate.h"
#include "transport/cipher.h"
#include "transport/transport.h"

#include <inttypes.h>
#include <stdio.h>
#include <time.h>

/* Whether other nodes will take this node's certificate, and until when. */
static void
check_certificate(struct doctor *doctor, const struct cairn_config *config,
                  const struct cairn_credentials *credentials)
{
    static const char renew[] =
        "renew it, and send the agent SIGHUP; see why that has not happened "
        "by itself";
    struct cairn_certificate_dates dates = credentials->dates;
    struct cairn_certificate *certificate = NULL;
    struct cairn_transport_certificate pem;
    char why[768], name[CAIRN_IDENTITY_BYTES_MAX], ends[CAIRN_CERTIFICATE_TIME_BYTES];
    int64_t now_s = (int64_t)time(NULL);
    cairn_err err =
        cairn_certificate_create(cairn_credentials_certificate(credentials, config, &pem),
                                 config->node, &certificate, why, sizeof why);

    if (!err)
        err = cairn_certificate_self_check(certificate, why, sizeof why);
    cairn_certificate_destroy(certificate);
    if (err) {
        doctor_find(doctor, DOCTOR_CRITICAL, "certificate",
                    "get one from an authority in ca_file that is valid now; other nodes refuse "
                    "this one",
                    "%s", why);
        return;
    }
    cairn_identity_format(config->identity, config->job, config->node, name);
    cairn_certificate_time(dates.ends_s, ends);
    if (cairn_certificate_state(&dates, now_s) == CAIRN_CERTIFICATE_DUE)
        doctor_find(doctor, DOCTOR_WARN, "certificate", renew,
                    "%s expires at %s, in %" PRId64 " minutes: renewal is late", name, ends,
                    (dates.ends_s - now_s) / 60);
    else
        doctor_find(doctor, DOCTOR_OK, "certificate", NULL,
                    "%s is valid until %s, for %" PRId64 " hours", name, ends,
                    (dates.ends_s - now_s) / 3600);
}

static void
check_credentials(struct doctor *doctor, const struct cairn_config *config,
                  const struct cairn_credentials *credentials)
{
    if (credentials->first.len)
        doctor_find(doctor, DOCTOR_OK, "key", NULL, "the key file is ours alone");
    else if (credentials->has_certificate)
        doctor_find(doctor, DOCTOR_OK, "key", NULL,
                    "no key: agents prove themselves by certificates; the private key is ours "
                    "alone");
    else
        doctor_find(doctor, DOCTOR_OK, "key", NULL, "no key: every node is on loopback");
    if (credentials->has_certificate)
        check_certificate(doctor, config, credentials);
}

/* Keeps the transport's last log line: it gives the reason, and lists the providers. */
static void
keep_line(void *context, enum cairn_log_level level, const char *line)
{
    if (level <= CAIRN_LOG_WARN)
        snprintf(context, 512, "%s", line);
}

/* Nobody is connected to: these are never called. */
static void
no_message(void *context, uint32_t from, const void *body, size_t body_len, const void *payload,
           size_t payload_len, uint64_t buffer)
{
    (void)context, (void)from, (void)body, (void)body_len, (void)payload, (void)payload_len,
        (void)buffer;
}

static void
no_sent(void *context, uint32_t node, uint64_t ticket, cairn_err err)
{
    (void)context, (void)node, (void)ticket, (void)err;
}

static void
no_peer(void *context, uint32_t node, bool up, uint64_t incarnation)
{
    (void)context, (void)node, (void)up, (void)incarnation;
}

static void
check_network(struct doctor *doctor, const struct cairn_config *config,
              const struct cairn_credentials *credentials, bool agent_runs)
{
    static const uint8_t no_key[CAIRN_TRANSPORT_KEY_BYTES_MIN];
    const char *address = config->nodes[config->node].address;
    struct cairn_transport_key keys[2];
    char line[512] = "", probe[32];
    const char *addresses[1] = {agent_runs ? probe : address};
    struct cairn_transport_options options = {.provider = config->provider,
                                              .bind_address = addresses[0],
                                              .addresses = addresses,
                                              .node_count = 1,
                                              .job_id = 1,
                                              .incarnation = 1,
                                              .buffer_count = 4,
                                              .window = 1,
                                              .on_message = no_message,
                                              .on_sent = no_sent,
                                              .on_peer = no_peer};
    struct cairn_transport *transport = NULL;
    cairn_err err;

    snprintf(probe, sizeof probe, "127.0.0.1:%u", cairn_free_port());
    cairn_credentials_keys(credentials, keys);
    if (keys[0].len == 0 && credentials->has_certificate) /* which was looked at; any key does */
        keys[0] = (struct cairn_transport_key){no_key, sizeof no_key};
    options.key = keys[0].bytes;
    options.key_len = keys[0].len;
    cairn_log_setup(CAIRN_LOG_WARN, keep_line, line);
    err = cairn_transport_open(&options, &transport);
    cairn_log_setup(CAIRN_LOG_WARN, NULL, NULL);
    if (err == CAIRN_OK)
        doctor_find(doctor, DOCTOR_OK, "network", NULL, "provider %s is there; %s%s",
                    config->provider,
                    agent_runs ? "the agent holds its port " : "this node can listen on ", address);
    else
        doctor_find(doctor, DOCTOR_CRITICAL, err == CAIRN_IO ? "port" : "network",
                    err == CAIRN_IO
                        ? "end what holds the port, or set another in `nodes` on every node"
                    : err == CAIRN_NOT_FOUND
                        ? "install libfabric's package"
                        : "set `provider` to one that this node has (tcp is everywhere)",
                    "%s: %s", addresses[0], line[0] ? line : cairn_err_text(err));
    cairn_transport_close(transport);
}

/* Which library protects the state on its way, and the speed of each here. */
static void
check_cipher(struct doctor *doctor, const struct cairn_config *config)
{
    enum cairn_config_protection protection = cairn_config_protection(config);
    struct cairn_cipher *cipher = NULL;
    struct cairn_cipher_speeds speeds;

    if (protection == CAIRN_CONFIG_PROTECTION_NONE)
        return;
    if (cairn_cipher_choose(protection == CAIRN_CONFIG_PROTECTION_ENCRYPT, &cipher, &speeds) !=
        CAIRN_OK) {
        doctor_find(doctor, DOCTOR_CRITICAL, "cipher", "install libssl3 of this distribution",
                    "no library can protect the state on its way");
        return;
    }
    doctor_find(doctor, DOCTOR_OK, "cipher", NULL,
                "%s protects the state on its way (%s %.1f GB/s, %s %.1f GB/s)", cipher->ops->name,
                cairn_cipher_libraries[0]->name, speeds.bytes_per_s[0] / 1e9,
                cairn_cipher_libraries[1]->name, speeds.bytes_per_s[1] / 1e9);
    cairn_cipher_close(cipher);
}

void
doctor_wire(struct doctor *doctor, const struct cairn_config *config, bool agent_runs)
{
    struct cairn_credentials *credentials = NULL;
    char error[CAIRN_CONFIG_ERROR_BYTES];

    if (cairn_credentials_read(config, &credentials, error, sizeof error) != CAIRN_OK) {
        doctor_find(doctor, DOCTOR_CRITICAL, "key",
                    "`chmod 600` it and give it to the agent's user", "%s", error);
    } else {
        check_credentials(doctor, config, credentials);
        check_network(doctor, config, credentials, agent_runs);
        check_cipher(doctor, config);
    }
    cairn_credentials_free(credentials);
}
