/* tools/convert/megatron/files.c - names of folders of Megatron-LM's checkpoints. */
#include "tools/convert/megatron/files.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/file.h"

#define RANK "mp_rank_"

/* "07", or "012" behind a '_': a number of at least so many digits. */
static bool
take_digits(const char **at, size_t digits_min, uint32_t *number)
{
    size_t digits = strspn(*at, "0123456789");

    if (digits < digits_min || digits > 6 || (digits > digits_min && **at == '0'))
        return false;
    *number = (uint32_t)strtoul(*at, NULL, 10);
    *at += digits;
    return true;
}

static bool
parse_folder(const char *name, struct cairn_megatron_folder *folder)
{
    const char *at = name + strlen(RANK);

    memset(folder, 0, sizeof(*folder));
    if (strncmp(name, RANK, strlen(RANK)) != 0 || strlen(name) >= sizeof(folder->name) ||
        !take_digits(&at, 2, &folder->numbers[0]))
        return false;
    folder->number_count = 1;
    while (*at == '_' && folder->number_count < 3) {
        at++;
        if (!take_digits(&at, 3, &folder->numbers[folder->number_count++]))
            return false;
    }
    memcpy(folder->name, name, strlen(name) + 1);
    return *at == '\0';
}

/* The folder that latest_checkpointed_iteration.txt names; "" without such a file. */
static cairn_err
read_latest(const struct cairn_place *place, char iteration[CAIRN_MEGATRON_FOLDER_BYTES],
            struct cairn_complaint *complaint)
{
    uint8_t *bytes = NULL;
    size_t bytes_len = 0;
    char text[32];
    const char *at = text;
    uint64_t number;
    cairn_err err;

    iteration[0] = '\0';
    err = cairn_place_load(place, CAIRN_MEGATRON_LATEST, sizeof(text) - 1, &bytes, &bytes_len,
                           complaint);
    if (err)
        return err == CAIRN_NOT_FOUND ? CAIRN_OK : err;
    while (bytes_len > 0 && (bytes[bytes_len - 1] == '\n' || bytes[bytes_len - 1] == ' '))
        bytes_len--;
    memcpy(text, bytes, bytes_len);
    text[bytes_len] = '\0';
    free(bytes);
    if (strcmp(text, "release") == 0) {
        memcpy(iteration, text, sizeof("release"));
        return CAIRN_OK;
    }
    if (bytes_len == 0 || bytes_len > 15 || strspn(at, "0123456789") != bytes_len)
        return cairn_complain(complaint, CAIRN_CORRUPT,
                              "%s/" CAIRN_MEGATRON_LATEST
                              " holds neither a number nor \"release\"; write the number of the "
                              "iteration into it to read",
                              place->path);
    number = strtoull(text, NULL, 10);
    (void)snprintf(iteration, CAIRN_MEGATRON_FOLDER_BYTES, "iter_%07" PRIu64, number);
    return CAIRN_OK;
}

static int
by_numbers(const void *left, const void *right)
{
    const struct cairn_megatron_folder *a = left, *b = right;

    return CAIRN_COMPARE(a->numbers[0], b->numbers[0]) ?:
           CAIRN_COMPARE(a->numbers[1], b->numbers[1]) ?:
           CAIRN_COMPARE(a->numbers[2], b->numbers[2]);
}

static cairn_err
take_folders(const struct cairn_place *place, struct cairn_megatron_folders *out,
             char *const *names, size_t count, struct cairn_complaint *complaint)
{
    out->folders = calloc(count + 1, sizeof(*out->folders));
    if (!out->folders)
        return CAIRN_NOMEM;
    for (size_t i = 0; i < count; i++)
        if (parse_folder(names[i], &out->folders[out->count]))
            out->count++;
    if (out->count == 0)
        return CAIRN_NOT_FOUND;
    for (uint32_t i = 1; i < out->count; i++)
        if (out->folders[i].number_count != out->folders[0].number_count)
            return cairn_complain(
                complaint, CAIRN_CORRUPT,
                "%s/%s: holds both %s and %s, which are of two checkpoints; separate them",
                place->path, out->iteration, out->folders[0].name, out->folders[i].name);
    qsort(out->folders, out->count, sizeof(*out->folders), by_numbers);
    return CAIRN_OK;
}

cairn_err
cairn_megatron_folders_list(const struct cairn_place *place, struct cairn_megatron_folders *out,
                            struct cairn_complaint *complaint)
{
    char **names = NULL;
    size_t count = 0;
    cairn_err err;

    memset(out, 0, sizeof(*out));
    if (place->name)
        return CAIRN_NOT_FOUND;
    err = read_latest(place, out->iteration, complaint);
    if (!err)
        err = cairn_place_list(place, out->iteration, &names, &count, complaint);
    if (!err)
        err = take_folders(place, out, names, count, complaint);
    if (names)
        cairn_dir_list_free(names, count);
    return err;
}

void
cairn_megatron_folders_fini(struct cairn_megatron_folders *folders)
{
    free(folders->folders);
    memset(folders, 0, sizeof(*folders));
}

bool
cairn_megatron_path(const char *iteration, const struct cairn_parallelism *sizes,
                    const struct cairn_megatron_rank *rank, const char *file,
                    char path[CAIRN_NAME_BYTES_MAX])
{
    char stage[16] = "", experts[16] = "";

    if (sizes->pp > 1)
        (void)snprintf(stage, sizeof(stage), "_%03" PRIu32, rank->pp);
    if (sizes->ep > 1)
        (void)snprintf(experts, sizeof(experts), "_%03" PRIu32, rank->ep);
    return snprintf(path, CAIRN_NAME_BYTES_MAX, "%s%s" RANK "%02" PRIu32 "%s%s/%s", iteration,
                    iteration[0] ? "/" : "", rank->tp, stage, experts, file) < CAIRN_NAME_BYTES_MAX;
}

bool
cairn_megatron_is_file(const struct cairn_parallelism *sizes, uint32_t tp, uint32_t ep,
                       uint32_t ranks)
{
    for (uint32_t r = 0; r < ranks; r++)
        if (r % sizes->tp == tp && r / sizes->etp % sizes->ep == ep)
            return true;
    return false;
}
