/* tools/convert/core/numbers.c - see numbers.h. */
#include "tools/convert/core/numbers.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/text.h"

enum { NOTE_BYTES_MAX = 63 };

bool
cairn_number_take(const char **text, uint64_t max, uint64_t *out)
{
    const char *at = *text;
    uint64_t value = 0;

    if (*at < '0' || *at > '9' || (*at == '0' && at[1] >= '0' && at[1] <= '9'))
        return false;
    for (; *at >= '0' && *at <= '9'; at++)
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*at - '0'), &value))
            return false;
    if (value > max)
        return false;
    *text = at;
    *out = value;
    return true;
}

bool
cairn_number_read(const char *text, uint64_t max, uint64_t *out)
{
    uint64_t value;

    if (!cairn_number_take(&text, max, &value) || *text != '\0')
        return false;
    *out = value;
    return true;
}

bool
cairn_number_after(const char **text, const char *word, uint32_t *out)
{
    const char *at = *text;
    size_t word_bytes = strlen(word);
    uint64_t value;

    if (strncmp(at, word, word_bytes) != 0)
        return false;
    at += word_bytes;
    if (!cairn_number_take(&at, UINT32_MAX, &value))
        return false;
    *text = at;
    *out = (uint32_t)value;
    return true;
}

cairn_err
cairn_numbers_add(struct cairn_checkpoint *checkpoint, const char *name, const uint64_t *numbers,
                  size_t count)
{
    char text[NOTE_BYTES_MAX + 1];
    size_t used = 0;

    CAIRN_ASSERT(count > 0 && count * sizeof("18446744073709551615") <= sizeof(text));
    for (size_t i = 0; i < count; i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%" PRIu64, i > 0 ? " " : "",
                                 numbers[i]);
    return cairn_checkpoint_add_opaque(checkpoint, name, text, used);
}

cairn_err
cairn_numbers_load(const struct cairn_checkpoint *checkpoint, const char *name, uint64_t max,
                   uint64_t *numbers, size_t count)
{
    char shown[NOTE_BYTES_MAX + 1] = "";
    uint8_t *bytes = NULL;
    size_t bytes_len = 0;
    const char *at;
    bool good;
    cairn_err err =
        cairn_checkpoint_load_opaque(checkpoint, name, NOTE_BYTES_MAX, &bytes, &bytes_len);

    if (err)
        return err;
    at = (const char *)bytes;
    good = !memchr(bytes, 0, bytes_len);
    for (size_t i = 0; i < count && good; i++)
        good = (i == 0 || *at++ == ' ') && cairn_number_take(&at, max, &numbers[i]);
    good = good && *at == '\0';
    if (!good)
        cairn_text_clean(shown, sizeof(shown), (const char *)bytes);
    free(bytes);
    if (good)
        return CAIRN_OK;
    return cairn_refuse(checkpoint, CAIRN_CORRUPT,
                        "%s says \"%s\", expected %s of at most %" PRIu64
                        "; convert its source again",
                        name, shown, count == 1 ? "a number" : "two numbers", max);
}
