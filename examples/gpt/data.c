/*
 * examples/gpt/data.c - reads the text whole and draws windows from it by counter: which bytes a
 * step sees depends on (seed, step, micro-batch, sequence) alone, so the place in the data needs no
 * state.
 */
#include "data.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/sha.h>

#include "random.h"
#include "say.h"

static const char *const common_texts[] = {
    "/usr/share/common-licenses/GPL-3",      "/usr/share/common-licenses/GPL-2",
    "/usr/share/common-licenses/LGPL-2.1",   "/usr/share/common-licenses/MPL-2.0",
    "/usr/share/common-licenses/Apache-2.0", "/usr/share/common-licenses/Artistic",
    "/usr/share/perl/5.36/perl5db.pl",       "/etc/services",
};

enum { COMMON_TEXTS = sizeof common_texts / sizeof *common_texts };
static const size_t text_bytes_max = (size_t)1 << 32;

static cairn_err
read_all(int fd, const char *path, uint8_t *bytes, size_t count)
{
    for (size_t done = 0; done < count;) {
        ssize_t part = read(fd, bytes + done, count - done);

        if (part < 0 && errno == EINTR)
            continue;
        if (part <= 0) {
            gpt_say("cannot read the text %s: %s", path,
                    part == 0 ? "it became shorter while it was read" : strerror(errno));
            return CAIRN_IO;
        }
        done += (size_t)part;
    }
    return CAIRN_OK;
}

static const char *
common_text(void)
{
    for (size_t i = 0; i < COMMON_TEXTS; i++) {
        if (access(common_texts[i], R_OK) == 0)
            return common_texts[i];
    }
    return NULL;
}

cairn_err
gpt_data_init(const char *path, uint32_t context, struct gpt_data *out)
{
    uint8_t digest[SHA256_DIGEST_LENGTH];
    struct gpt_data data = {.path = path ? path : common_text()};
    struct stat status;
    cairn_err err = CAIRN_IO;
    int fd = -1;

    if (!data.path) {
        gpt_say("no text to train on was found on this machine: name one with --text FILE");
        goto done;
    }
    fd = open(data.path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hang us */
    if (fd < 0 || fstat(fd, &status) != 0) {
        gpt_say("cannot read the text %s: %s", data.path, strerror(errno));
        goto done;
    }
    err = CAIRN_CORRUPT;
    if (!S_ISREG(status.st_mode)) {
        gpt_say("the text %s is not a regular file: name one with --text FILE", data.path);
        goto done;
    }
    if ((uint64_t)status.st_size <= context || (uint64_t)status.st_size > text_bytes_max) {
        gpt_say("the text %s has %lld bytes, and %u to %llu are needed (--context %u and one more)",
                data.path, (long long)status.st_size, context + 1,
                (unsigned long long)text_bytes_max, context);
        goto done;
    }
    data.count = (size_t)status.st_size;
    data.bytes = malloc(data.count);
    if (!data.bytes) {
        gpt_say("no memory for the text %s (%zu bytes)", data.path, data.count);
        err = CAIRN_NOMEM;
        goto done;
    }
    err = read_all(fd, data.path, data.bytes, data.count);
    if (err)
        goto done;
    (void)SHA256(data.bytes, data.count, digest);
    for (size_t i = 0; i < 8; i++)
        data.fingerprint |= (uint64_t)digest[i] << (8 * i);
    *out = data;
    data.bytes = NULL;
done:
    free(data.bytes);
    if (fd >= 0)
        (void)close(fd);
    return err;
}

void
gpt_data_fini(struct gpt_data *data)
{
    free(data->bytes);
    *data = (struct gpt_data){0};
}

void
gpt_data_draw(const struct gpt_data *data, uint64_t seed, uint64_t step, uint32_t micro,
              uint32_t sequences, uint32_t context, uint8_t *tokens)
{
    uint64_t key = gpt_random(gpt_random(gpt_random(seed, 0x64617461), step), micro);

    for (uint32_t s = 0; s < sequences; s++) {
        uint64_t start = gpt_random(key, s) % (data->count - context);

        memcpy(tokens + (size_t)s * (context + 1), data->bytes + start, (size_t)context + 1);
    }
}
