/* transport/identity.c - see identity.h. */
#include "transport/identity.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static const char scheme[] = "spiffe://", job_place[] = "{job}", node_place[] = "{node}";

enum { SCHEME_LEN = sizeof scheme - 1, DNS_LEN_MAX = 253, LABEL_LEN_MAX = 63 };

#define DIGITS "0123456789"
#define LOWER "abcdefghijklmnopqrstuvwxyz"
#define UPPER "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

enum cairn_identity_kind
cairn_identity_kind_of(const char *identity)
{
    return strstr(identity, "://") ? CAIRN_IDENTITY_URI : CAIRN_IDENTITY_DNS;
}

static uint32_t
occurrences(const char *text, const char *what)
{
    uint32_t count = 0;

    while ((text = strstr(text, what)) != NULL) {
        count++;
        text += strlen(what);
    }
    return count;
}

/* Why the places of a pattern do not keep names apart; NULL: they do. */
static const char *
places_wrong(const char *pattern)
{
    const char *job, *node, *behind;

    if (occurrences(pattern, job_place) != 1 || occurrences(pattern, node_place) != 1)
        return "it fits certificates of other jobs or nodes; write {job} and {node} once each";
    job = strstr(pattern, job_place);
    node = strstr(pattern, node_place);
    behind = node + strlen(node_place);
    if (behind == job || job + strlen(job_place) == node)
        return "{job} and {node} touch, so node 12 of job a and node 2 of job a1 would have one "
               "name; write something between them, as in {job}/{node}";
    if ((node > pattern && strchr(DIGITS, node[-1])) || (*behind && strchr(DIGITS, *behind)))
        return "a digit stands beside {node}, so two nodes could have one name; write / or - "
               "between them";
    return NULL;
}

/* Why a text is not a SPIFFE ID (SPIFFE-ID, section 2); NULL: it is one. */
static const char *
spiffe_wrong(const char *id)
{
    const char *domain = id + SCHEME_LEN;
    size_t domain_len;

    if (strncmp(id, scheme, SCHEME_LEN) != 0)
        return "of all URIs only those of SPIFFE are supported; begin it with spiffe://";
    domain_len = strspn(domain, LOWER DIGITS ".-_");
    if (domain_len == 0 || domain[domain_len] != '/')
        return "a SPIFFE ID is spiffe://, a trust domain in lower case, and a path; write it as "
               "spiffe://example.org/cairn/{job}/{node}";
    for (const char *at = domain + domain_len; *at;) {
        size_t len = strspn(++at, LOWER UPPER DIGITS ".-_");

        if (len == 0 || (at[len] && at[len] != '/') || strspn(at, ".") == len)
            return "each part of a SPIFFE ID's path has letters, digits and . - _ alone, and is "
                   "neither empty nor dots; mend the path, or the job's name";
        at += len;
    }
    return NULL;
}

/* Why a text is not a DNS name; NULL: it is one. */
static const char *
dns_wrong(const char *name)
{
    if (strspn(name, LOWER DIGITS ".-_") != strlen(name))
        return "a DNS name has lower-case letters, digits and . - _ alone; mend it, or the job's "
               "name, or use a SPIFFE ID";
    if (strlen(name) > DNS_LEN_MAX)
        return "the name is longer than the 253 characters of a DNS name; shorten it";
    for (const char *at = name;; at++) {
        size_t len = strcspn(at, ".");

        if (len == 0 || len > LABEL_LEN_MAX)
            return "each label of a DNS name has 1 to 63 characters; mend it, or the job's name";
        at += len;
        if (!*at)
            return NULL;
    }
}

cairn_err
cairn_identity_check(const char *pattern, const char *job, char *why, size_t why_bytes)
{
    const char *wrong = strlen(pattern) < CAIRN_IDENTITY_PATTERN_BYTES_MAX
                            ? places_wrong(pattern)
                            : "it is longer than 255 characters; shorten it";
    char name[CAIRN_IDENTITY_BYTES_MAX];

    if (!wrong) {
        cairn_identity_format(pattern, job, UINT32_C(99999), name);
        wrong = cairn_identity_kind_of(pattern) == CAIRN_IDENTITY_URI ? spiffe_wrong(name)
                                                                      : dns_wrong(name);
    }
    if (!wrong)
        return CAIRN_OK;
    (void)snprintf(why, why_bytes, "%s", wrong);
    return CAIRN_CONFIG;
}

void
cairn_identity_format(const char *pattern, const char *job, uint32_t node,
                      char out[CAIRN_IDENTITY_BYTES_MAX])
{
    size_t used = 0;

    while (*pattern && used + 1 < CAIRN_IDENTITY_BYTES_MAX) {
        size_t room = CAIRN_IDENTITY_BYTES_MAX - used;
        int len = 1;

        if (strncmp(pattern, job_place, strlen(job_place)) == 0) {
            len = snprintf(out + used, room, "%s", job);
            pattern += strlen(job_place);
        } else if (strncmp(pattern, node_place, strlen(node_place)) == 0) {
            len = snprintf(out + used, room, "%" PRIu32, node);
            pattern += strlen(node_place);
        } else {
            out[used] = *pattern++;
        }
        used += len > 0 && (size_t)len < room ? (size_t)len : room - 1;
    }
    out[used] = '\0';
}

bool
cairn_identity_matches(const char *identity, const struct cairn_identity_name *names,
                       uint32_t count)
{
    enum cairn_identity_kind kind = cairn_identity_kind_of(identity);
    size_t len = strlen(identity);
    uint32_t uris = 0;
    bool found = false;

    for (uint32_t i = 0; i < count; i++) {
        const char *name = (const char *)names[i].bytes;

        uris += names[i].kind == CAIRN_IDENTITY_URI;
        if (names[i].kind != kind || names[i].len != len || len == 0)
            continue;
        found |= kind == CAIRN_IDENTITY_URI ? memcmp(name, identity, len) == 0
                                            : strncasecmp(name, identity, len) == 0;
    }
    return found && (kind == CAIRN_IDENTITY_DNS || uris == 1);
}
