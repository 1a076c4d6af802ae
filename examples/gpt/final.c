/*
 * examples/gpt/final.c - gathers, hashes and writes the state.
 *
 * The stages of replica 0 hand their state towards rank 0, each passing on what later stages
 * send. Stages laid one after another are the whole model in the order of its tensor table.
 */
#include "final.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/sha.h>

#include "holders.h"
#include "say.h"

enum { GROUPS = 3 /* parameters, exp_avg, exp_avg_sq */ };

static const char *const prefixes[GROUPS] = {"", "exp_avg.", "exp_avg_sq."};

/* One tensor of the whole state. */
struct part {
    char name[GPT_NAME_BYTES + 16];
    const struct gpt_tensor *tensor;
    const float *floats;
};

struct whole {
    float *groups[GROUPS];
    size_t float_count;
    struct gpt_tensor *tensors;
    struct part *parts; /* in the order of names */
    size_t part_count;
};

typedef uint8_t digests[GROUPS][SHA256_DIGEST_LENGTH];

static void
digest_piece(const float *const own[GROUPS], const struct gpt_piece *piece, digests out)
{
    for (int i = 0; i < GROUPS; i++)
        (void)SHA256((const uint8_t *)(own[i] + piece->begin), piece->count * sizeof(float),
                     out[i]);
}

static cairn_err
compare_replicas(struct gpt_net *net, const struct gpt_plan *plan, const struct gpt_stage *stage,
                 const float *const own[GROUPS])
{
    struct gpt_piece pieces[GPT_PARTS_MAX];
    digests digest, other;
    uint32_t count = 0;
    cairn_err err;

    if (plan->replica > 0)
        count = gpt_pieces(plan, stage, plan->replica - 1, pieces);
    for (uint32_t i = 0; i < count; i++) {
        digest_piece(own, &pieces[i], digest);
        err = gpt_net_send(net, gpt_link_of(GPT_LINK_REPLICA_BEFORE, pieces[i].stage),
                           GPT_KIND_DIGEST, 0, 0, digest, sizeof digest);
        if (err)
            return err;
    }
    count = 0;
    if (!gpt_plan_is_last_replica(plan))
        count = gpt_pieces(plan, stage, plan->replica + 1, pieces);
    for (uint32_t i = 0; i < count; i++) {
        digest_piece(own, &pieces[i], digest);
        err = gpt_net_receive(net, gpt_link_of(GPT_LINK_REPLICA_AFTER, pieces[i].stage),
                              GPT_KIND_DIGEST, 0, 0, other, sizeof other);
        if (err)
            return err;
        if (memcmp(digest, other, sizeof digest) != 0) {
            gpt_say("the replicas of these layers ended with different bytes: a machine computes "
                    "wrongly, or this is a defect; the result must not be used");
            return CAIRN_INTERNAL;
        }
    }
    return CAIRN_OK;
}

/* Floats of the layers [begin, end) with what belongs to them. */
static cairn_err
count_floats(const struct gpt_shape *shape, uint32_t begin, uint32_t end, size_t *out)
{
    struct gpt_tensor *tensors = NULL;
    uint32_t count = 0;
    size_t floats = 0;
    cairn_err err = gpt_tensor_list(shape, begin, end, &tensors, &count);

    if (err)
        return err;
    for (uint32_t i = 0; i < count; i++)
        floats += tensors[i].count;
    free(tensors);
    *out = floats;
    return CAIRN_OK;
}

/*
 * Moves the state of every later stage one stage forward: into `whole` on rank 0, else through a
 * buffer of one stage's group.
 */
static cairn_err
gather(struct gpt_net *net, const struct gpt_plan *plan, const struct gpt_stage *stage,
       const float *const own[GROUPS], struct whole *whole)
{
    uint32_t begin = plan->layer_end;
    size_t at = stage->float_count;
    float *buffer = NULL;
    cairn_err err = CAIRN_OK;

    for (uint32_t group = 0; group < GROUPS && plan->stage > 0; group++) {
        err = gpt_net_send(net, GPT_LINK_STAGE_BEFORE, GPT_KIND_STATE, plan->stage, group,
                           own[group], stage->float_count * sizeof(float));
        if (err)
            return err;
    }
    for (uint32_t s = plan->stage + 1; s < plan->pp; s++) {
        size_t floats = 0;

        err = count_floats(&stage->shape, begin, begin + plan->stage_layers[plan->replica][s],
                           &floats);
        if (!err && plan->stage > 0) {
            free(buffer);
            buffer = malloc(floats * sizeof *buffer);
            err = buffer ? CAIRN_OK : CAIRN_NOMEM;
        }
        for (uint32_t group = 0; !err && group < GROUPS; group++) {
            float *target = plan->stage > 0 ? buffer : whole->groups[group] + at;

            err = gpt_net_receive(net, GPT_LINK_STAGE_AFTER, GPT_KIND_STATE, s, group, target,
                                  floats * sizeof(float));
            if (!err && plan->stage > 0)
                err = gpt_net_send(net, GPT_LINK_STAGE_BEFORE, GPT_KIND_STATE, s, group, target,
                                   floats * sizeof(float));
        }
        if (err)
            break;
        begin += plan->stage_layers[plan->replica][s];
        at += floats;
    }
    free(buffer);
    return err;
}

static int
by_name(const void *a, const void *b)
{
    return strcmp(((const struct part *)a)->name, ((const struct part *)b)->name);
}

static cairn_err
whole_init(const struct gpt_stage *stage, const float *const own[GROUPS], struct whole *whole)
{
    uint32_t tensor_count = 0;
    cairn_err err =
        gpt_tensor_list(&stage->shape, 0, stage->shape.layers, &whole->tensors, &tensor_count);

    if (err)
        return err;
    whole->part_count = (size_t)tensor_count * GROUPS;
    whole->parts = calloc(whole->part_count, sizeof *whole->parts);
    for (uint32_t i = 0; i < tensor_count; i++)
        whole->float_count += whole->tensors[i].count;
    for (int group = 0; group < GROUPS; group++) {
        whole->groups[group] = malloc(whole->float_count * sizeof(float));
        if (!whole->parts || !whole->groups[group])
            return CAIRN_NOMEM;
        memcpy(whole->groups[group], own[group], stage->float_count * sizeof(float));
        for (uint32_t i = 0; i < tensor_count; i++) {
            struct part *part = &whole->parts[(size_t)group * tensor_count + i];

            (void)snprintf(part->name, sizeof part->name, "%s%s", prefixes[group],
                           whole->tensors[i].name);
            part->tensor = &whole->tensors[i];
            part->floats = whole->groups[group] + part->tensor->begin;
        }
    }
    qsort(whole->parts, whole->part_count, sizeof *whole->parts, by_name);
    return CAIRN_OK;
}

static void
whole_fini(struct whole *whole)
{
    for (int group = 0; group < GROUPS; group++)
        free(whole->groups[group]);
    free(whole->parts);
    free(whole->tensors);
}

/* The header of a safetensors file: 8 bytes of its length, then JSON padded with spaces to 8. */
static size_t
make_header(const struct whole *whole, char *out, size_t room)
{
    size_t at = 8;
    size_t offset = 0;
    uint64_t length;

    for (size_t i = 0; i < whole->part_count; i++) {
        const struct part *part = &whole->parts[i];
        size_t bytes = part->tensor->count * sizeof(float);
        char shape[48];

        if (part->tensor->dims == 2)
            (void)snprintf(shape, sizeof shape, "%llu,%llu",
                           (unsigned long long)part->tensor->extent[0],
                           (unsigned long long)part->tensor->extent[1]);
        else
            (void)snprintf(shape, sizeof shape, "%llu",
                           (unsigned long long)part->tensor->extent[0]);
        at += (size_t)snprintf(
            out + at, room - at,
            "%c\"%s\":{\"dtype\":\"F32\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}", i ? ',' : '{',
            part->name, shape, offset, offset + bytes);
        offset += bytes;
    }
    out[at++] = '}';
    while (at % 8)
        out[at++] = ' ';
    length = at - 8;
    for (int i = 0; i < 8; i++)
        out[i] = (char)(length >> (8 * i));
    return at;
}

static bool
write_all(int fd, const void *data, size_t bytes)
{
    const char *at = data;

    while (bytes) {
        ssize_t part = write(fd, at, bytes);

        if (part < 0 && errno == EINTR)
            continue;
        if (part <= 0)
            return false;
        at += part;
        bytes -= (size_t)part;
    }
    return true;
}

/* Writes the file under another name first: a reader never sees half of it. */
static cairn_err
write_file(const struct whole *whole, const char *dir)
{
    size_t room = whole->part_count * 256 + 64;
    char *header = malloc(room);
    int dir_fd = -1;
    int fd = -1;
    bool good = false;

    if (!header)
        return CAIRN_NOMEM;
    if (mkdir(dir, 0755) != 0 && errno != EEXIST)
        goto done;
    dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir_fd < 0)
        goto done;
    fd = openat(dir_fd, "final.safetensors.new", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        goto done;
    good = write_all(fd, header, make_header(whole, header, room));
    for (size_t i = 0; good && i < whole->part_count; i++)
        good = write_all(fd, whole->parts[i].floats, whole->parts[i].tensor->count * sizeof(float));
    good = good && fsync(fd) == 0;
    good = close(fd) == 0 && good;
    good = good && renameat(dir_fd, "final.safetensors.new", dir_fd, "final.safetensors") == 0;
    good = good && fsync(dir_fd) == 0;
done:
    if (!good)
        gpt_say("cannot write final.safetensors into %s: %s", dir, strerror(errno));
    if (dir_fd >= 0)
        (void)close(dir_fd);
    free(header);
    return good ? CAIRN_OK : CAIRN_IO;
}

static void
hash(const struct whole *whole, char out[GPT_SHA256_TEXT])
{
    size_t bytes = 0;
    uint8_t digest[SHA256_DIGEST_LENGTH];
    uint8_t *all;

    for (size_t i = 0; i < whole->part_count; i++)
        bytes += whole->parts[i].tensor->count * sizeof(float);
    all = malloc(bytes);
    out[0] = 0;
    if (!all)
        return;
    bytes = 0;
    for (size_t i = 0; i < whole->part_count; i++) {
        memcpy(all + bytes, whole->parts[i].floats, whole->parts[i].tensor->count * sizeof(float));
        bytes += whole->parts[i].tensor->count * sizeof(float);
    }
    (void)SHA256(all, bytes, digest);
    gpt_hex(digest, out);
    free(all);
}

cairn_err
gpt_final(struct gpt_net *net, const struct gpt_plan *plan, const struct gpt_stage *stage,
          const float *exp_avg, const float *exp_avg_sq, const char *dir, char out[GPT_SHA256_TEXT])
{
    const float *own[GROUPS] = {stage->param, exp_avg, exp_avg_sq};
    struct whole whole = {0};
    char digest[GPT_SHA256_TEXT] = "";
    cairn_err err;

    err = compare_replicas(net, plan, stage, own);
    if (err || plan->replica != 0)
        goto done;
    if (plan->rank == 0)
        err = whole_init(stage, own, &whole);
    if (!err)
        err = gather(net, plan, stage, own, &whole);
    if (err || plan->rank != 0)
        goto done;
    hash(&whole, digest);
    if (!digest[0])
        err = CAIRN_NOMEM;
    else if (dir)
        err = write_file(&whole, dir);
done:
    if (err == CAIRN_NOMEM)
        gpt_say("no memory to gather the final state");
    if (!err)
        memcpy(out, digest, sizeof digest);
    whole_fini(&whole);
    return err;
}
