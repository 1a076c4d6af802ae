/* base/text.c - UTF-8, and text that is safe to show. */
#include "base/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

size_t
cairn_utf8_bytes(const char *text, size_t bytes_left)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *at = (const unsigned char *)text;
    uint32_t value;
    size_t bytes;

    if (bytes_left == 0)
        return 0;
    if (at[0] < 0x80)
        return 1;
    bytes = at[0] >= 0xf0 ? 4 : at[0] >= 0xe0 ? 3 : 2;
    if (at[0] < 0xc2 || at[0] > 0xf4 || bytes_left < bytes)
        return 0;
    value = at[0] & (0x7fu >> bytes);
    for (size_t i = 1; i < bytes; i++) {
        if ((at[i] & 0xc0) != 0x80)
            return 0;
        value = value << 6 | (at[i] & 0x3fu);
    }
    if (value < least[bytes] || value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff))
        return 0;
    return bytes;
}

/* Bytes of the plain character at text, 0 where there is none. */
static size_t
plain_bytes(const char *text, size_t bytes_left)
{
    const unsigned char *at = (const unsigned char *)text;
    size_t bytes = cairn_utf8_bytes(text, bytes_left);

    if (bytes == 1 && (at[0] < 0x20 || at[0] == 0x7f))
        return 0;
    if (bytes == 2 && at[0] == 0xc2 && at[1] < 0xa0)
        return 0;
    return bytes;
}

bool
cairn_text_plain(const char *text, size_t text_bytes)
{
    size_t at = 0;

    while (at < text_bytes) {
        size_t bytes = plain_bytes(text + at, text_bytes - at);

        if (bytes == 0)
            return false;
        at += bytes;
    }
    return true;
}

bool
cairn_text_ends(const char *text, const char *end)
{
    size_t bytes = strlen(text), end_bytes = strlen(end);

    return bytes >= end_bytes && memcmp(text + bytes - end_bytes, end, end_bytes) == 0;
}

void
cairn_text_clean(char *out, size_t out_bytes, const char *text)
{
    size_t left = text ? strlen(text) : 0, used = 0;

    while (left > 0) {
        size_t bytes = plain_bytes(text, left), taken = bytes ? bytes : 1;

        if (used + taken >= out_bytes)
            break;
        if (bytes)
            memcpy(out + used, text, bytes);
        else
            out[used] = '?';
        used += taken;
        text += taken;
        left -= taken;
    }
    out[used] = '\0';
}

const char *
cairn_show_bytes(uint64_t bytes, char out[CAIRN_SHOWN_BYTES])
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};
    double value = (double)bytes / 1024.0;
    size_t unit = 0;

    if (bytes < 1024) {
        snprintf(out, CAIRN_SHOWN_BYTES, "%" PRIu64 " B", bytes);
        return out;
    }
    for (; value >= 1023.995 && unit + 1 < sizeof units / sizeof *units; unit++)
        value /= 1024.0;
    snprintf(out, CAIRN_SHOWN_BYTES, "%.*f %s",
             value < 10    ? 2
             : value < 100 ? 1
                           : 0,
             value, units[unit]);
    return out;
}
