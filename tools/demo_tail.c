/*
 * tools/demo_tail.c - reads lines as they are appended, and finds fields in them.
 */
#include "tools/demo_tail.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILE_BYTES_MAX = 1 << 20, KEY_BYTES = 64 };

void
demo_tail_init(struct demo_tail *tail, const char *path)
{
    tail->fd = -1;
    tail->used = 0;
    tail->taken = 0;
    snprintf(tail->path, sizeof tail->path, "%s", path);
}

void
demo_tail_fini(struct demo_tail *tail)
{
    if (tail->fd >= 0)
        close(tail->fd);
    tail->fd = -1;
}

const char *
demo_tail_line(struct demo_tail *tail)
{
    char *end;
    ssize_t got;

    if (tail->fd < 0)
        tail->fd = open(tail->path, O_RDONLY | O_CLOEXEC);
    if (tail->fd < 0)
        return NULL;
    memmove(tail->bytes, tail->bytes + tail->taken, tail->used - tail->taken);
    tail->used -= tail->taken;
    tail->taken = 0;
    end = memchr(tail->bytes, '\n', tail->used);
    if (!end && tail->used < sizeof tail->bytes - 1) {
        got = read(tail->fd, tail->bytes + tail->used, sizeof tail->bytes - 1 - tail->used);
        if (got <= 0)
            return NULL;
        tail->used += (size_t)got;
        end = memchr(tail->bytes, '\n', tail->used);
    }
    if (!end && tail->used < sizeof tail->bytes - 1)
        return NULL;
    if (!end)
        end = tail->bytes + tail->used - 1; /* too long: cut here */
    *end = '\0';
    tail->taken = (size_t)(end - tail->bytes) + 1;
    return tail->bytes;
}

/* The text after "key":, without white space; NULL without the key. */
static const char *
find_value(const char *text, const char *key)
{
    char quoted[KEY_BYTES];
    int len = snprintf(quoted, sizeof quoted, "\"%s\"", key);

    for (const char *at = strstr(text, quoted); at; at = strstr(at + 1, quoted)) {
        const char *value = at + len;

        value += strspn(value, " \t\n");
        if (*value == ':')
            return value + 1 + strspn(value + 1, " \t\n");
    }
    return NULL;
}

bool
demo_json_u64(const char *text, const char *key, uint64_t *out)
{
    const char *value = find_value(text, key);

    if (!value || *value < '0' || *value > '9')
        return false;
    *out = strtoull(value, NULL, 10);
    return true;
}

bool
demo_json_double(const char *text, const char *key, double *out)
{
    const char *value = find_value(text, key);
    char *end = NULL;
    double number = value ? strtod(value, &end) : 0;

    if (!value || end == value)
        return false;
    *out = number;
    return true;
}

/* Copies a string from its opening quote on; returns what follows it, NULL if there is no
 * string. */
static const char *
take_text(const char *at, char *out, size_t out_bytes)
{
    size_t used = 0;

    if (*at++ != '"')
        return NULL;
    for (; *at && *at != '"'; at++) {
        char c = *at;

        if (c == '\\' && at[1]) {
            at++;
            c = *at == 'n' ? '\n' : *at == 't' ? '\t' : *at == 'u' ? '?' : *at;
            for (int i = 0; *at == 'u' && i < 4 && at[1]; i++)
                at++;
        }
        if (used + 1 < out_bytes)
            out[used++] = c;
    }
    out[used] = '\0';
    return *at == '"' ? at + 1 : NULL;
}

bool
demo_json_text(const char *text, const char *key, char *out, size_t out_bytes)
{
    const char *value = find_value(text, key);

    return value && take_text(value, out, out_bytes) != NULL;
}

bool
demo_json_lines(const char *text, const char *key, char *out, size_t out_bytes)
{
    const char *at = find_value(text, key);
    size_t used = 0;

    if (!at || *at++ != '[')
        return false;
    out[0] = '\0';
    for (;;) {
        at += strspn(at, " \t\n,");
        if (*at == ']')
            return true;
        at = take_text(at, out + used, out_bytes - used);
        if (!at)
            return false;
        used += strlen(out + used);
        if (used + 2 < out_bytes && used > 0 && out[used - 1] != '\n') {
            out[used++] = '\n';
            out[used] = '\0';
        }
    }
}

uint32_t
demo_json_numbers(const char *text, const char *key, uint32_t *numbers, uint32_t numbers_max)
{
    const char *at = find_value(text, key);
    uint32_t count = 0, depth = 0;

    if (!at || *at != '[')
        return 0;
    do {
        char *end;

        depth += *at == '[';
        depth -= *at == ']';
        if (*at >= '0' && *at <= '9') {
            if (count == numbers_max)
                return numbers_max + 1;
            numbers[count++] = (uint32_t)strtoul(at, &end, 10);
            at = end;
        } else if (*at == '[' || *at == ']' || *at == ',') {
            at++;
        } else {
            return 0;
        }
    } while (depth > 0);
    return count;
}

bool
demo_log_u64(const char *line, const char *key, uint64_t *out)
{
    char word[KEY_BYTES];
    int len = snprintf(word, sizeof word, " %s=", key);
    const char *at = strstr(line, word);

    if (!at || at[len] < '0' || at[len] > '9')
        return false;
    *out = strtoull(at + len, NULL, 10);
    return true;
}

char *
demo_file_text(const char *path)
{
    char *text = NULL;
    size_t used = 0;
    ssize_t got;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return NULL;
    text = malloc(FILE_BYTES_MAX + 1);
    while (text && used < FILE_BYTES_MAX) {
        got = read(fd, text + used, FILE_BYTES_MAX - used);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        used += (size_t)got;
    }
    if (text)
        text[used] = '\0';
    close(fd);
    return text;
}
