/* base/output.c - see output.h. */
#include "base/output.h"

#include "base/text.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SPAN_BYTES = 4096 };

struct stream {
    int fd;
    struct cairn_output_held held;
    FILE *file;
};

static struct stream streams[2] = {{.fd = STDOUT_FILENO}, {.fd = STDERR_FILENO}};

static bool
is_steering(uint32_t value)
{
    return (value < 0x20 && value != '\n' && value != '\t') || (value >= 0x7f && value < 0xa0) ||
           value == 0x61c || value == 0x200e || value == 0x200f ||
           (value >= 0x202a && value <= 0x202e) || (value >= 0x2066 && value <= 0x2069);
}

/* The value of a character of `bytes` bytes, which cairn_utf8_bytes has checked. */
static uint32_t
value_of(const char *text, size_t bytes)
{
    uint32_t value = (unsigned char)text[0] & (bytes == 1 ? 0x7fu : 0x7fu >> bytes);

    for (size_t i = 1; i < bytes; i++)
        value = value << 6 | ((unsigned char)text[i] & 0x3fu);
    return value;
}

/* True if these bytes may be the begin of a valid character. */
static bool
may_continue(const char *text, size_t bytes_left)
{
    unsigned char first = (unsigned char)text[0];
    size_t wanted = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;

    if (first < 0xc2 || first > 0xf4 || bytes_left >= wanted)
        return false;
    for (size_t i = 1; i < bytes_left; i++)
        if (((unsigned char)text[i] & 0xc0) != 0x80)
            return false;
    return true;
}

/* Filters text[bytes_len]; returns the bytes used: all but an incomplete last character. */
static size_t
filter(const char *text, size_t bytes_len, char *out, size_t *used)
{
    size_t at = 0;

    while (at < bytes_len) {
        size_t bytes = cairn_utf8_bytes(text + at, bytes_len - at);
        uint32_t value;

        if (bytes == 0 && may_continue(text + at, bytes_len - at))
            break;
        if (bytes == 0) {
            out[(*used)++] = '?';
            at++;
            continue;
        }
        value = value_of(text + at, bytes);
        if (is_steering(value)) {
            char escape[CAIRN_OUTPUT_GROWTH + 1];

            (void)snprintf(escape, sizeof escape, "\\u%04x", (unsigned)(value & 0xffff));
            memcpy(out + *used, escape, CAIRN_OUTPUT_GROWTH);
            *used += CAIRN_OUTPUT_GROWTH;
        } else {
            memcpy(out + *used, text + at, bytes);
            *used += bytes;
        }
        at += bytes;
    }
    return at;
}

size_t
cairn_output_filter(struct cairn_output_held *held, const char *bytes, size_t bytes_len, char *out)
{
    size_t used = 0, at = 0, taken;

    while (held->count > 0 && at < bytes_len) { /* at most four times */
        held->bytes[held->count++] = bytes[at++];
        taken = filter(held->bytes, held->count, out, &used);
        held->count -= taken;
        memmove(held->bytes, held->bytes + taken, held->count);
    }
    at += filter(bytes + at, bytes_len - at, out, &used);
    if (at < bytes_len) {
        held->count = bytes_len - at;
        memcpy(held->bytes, bytes + at, held->count);
    }
    return used;
}

static bool
write_all(int fd, const char *bytes, size_t bytes_len)
{
    while (bytes_len > 0) {
        ssize_t n = write(fd, bytes, bytes_len);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        bytes += n;
        bytes_len -= (size_t)n;
    }
    return true;
}

static ssize_t
on_write(void *context, const char *bytes, size_t bytes_len)
{
    struct stream *stream = context;
    char out[CAIRN_OUTPUT_GROWTH * (SPAN_BYTES + CAIRN_OUTPUT_HELD_BYTES)];

    for (size_t at = 0; at < bytes_len;) {
        size_t span = bytes_len - at < SPAN_BYTES ? bytes_len - at : SPAN_BYTES;
        size_t used = cairn_output_filter(&stream->held, bytes + at, span, out);

        if (!write_all(stream->fd, out, used))
            return 0; /* the stream's error flag tells the caller */
        at += span;
    }
    return (ssize_t)bytes_len;
}

static struct stream *
find(FILE *file)
{
    for (size_t i = 0; i < sizeof streams / sizeof *streams; i++)
        if (streams[i].file && streams[i].file == file)
            return &streams[i];
    return NULL;
}

void
cairn_output_setup(void)
{
    cookie_io_functions_t functions = {.write = on_write};

    for (size_t i = 0; i < sizeof streams / sizeof *streams; i++)
        if (!(streams[i].file = fopencookie(&streams[i], "w", functions)))
            abort();
    (void)setvbuf(streams[0].file, NULL, isatty(STDOUT_FILENO) ? _IOLBF : _IOFBF, BUFSIZ);
    (void)setvbuf(streams[1].file, NULL, _IONBF, 0);
    stdout = streams[0].file;
    stderr = streams[1].file;
}

void
cairn_output_steer(FILE *stream, const char *sequence)
{
    struct stream *own = find(stream);

    if (!own) {
        (void)fputs(sequence, stream);
        return;
    }
    (void)fflush(stream);
    (void)write_all(own->fd, sequence, strlen(sequence));
}

bool
cairn_output_is_terminal(FILE *stream)
{
    struct stream *own = find(stream);

    return isatty(own ? own->fd : fileno(stream)) == 1;
}
