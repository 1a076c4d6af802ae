/* tools/convert/state/job_file.c - see state/job_file.h. */
#include "tools/convert/state/job_file.h"

#include <stdlib.h>
#include <string.h>

#include "tools/convert/pickle/json_tree.h"
#include "tools/convert/state/param_groups.h"
#include "tools/convert/state/opaque_tree.h"

static cairn_err
load_text(const char *path, uint8_t **text, size_t *bytes_len, struct cairn_complaint *complaint)
{
    struct cairn_place place = {.dir_fd = -1};
    cairn_err err = cairn_place_open(path, &place, complaint);

    if (!err && !place.name)
        err = cairn_complain(complaint, CAIRN_INVAL, "--job: %s is not a file; name a JSON file",
                             path);
    if (!err)
        err = cairn_place_load(&place, "", CAIRN_JOB_FILE_BYTES_MAX, text, bytes_len, complaint);
    cairn_place_close(&place);
    return err;
}

static bool
is_names(const struct cairn_pickle_node *node)
{
    if (node && node->kind != CAIRN_PICKLE_LIST)
        return false;
    for (uint32_t i = 0; node && i < node->count; i++)
        if (node->items[i]->kind != CAIRN_PICKLE_TEXT)
            return false;
    return true;
}

/* Takes what the file's value holds. What is wrong with it, or NULL. */
static const char *
take_root(const struct cairn_pickle_node *root, struct cairn_job_file *job)
{
    const struct cairn_pickle_node *step = NULL;
    const struct {
        const char *key;
        const struct cairn_pickle_node **value;
    } known[] = {{"param_groups", &job->groups},
                 {"frozen", &job->frozen},
                 {"buffers", &job->buffers},
                 {"shared", &job->shared},
                 {"lr_scheduler", &job->lr_scheduler},
                 {"global_steps", &step},
                 {"universal_checkpoint_info", &job->cuts}};
    const size_t known_count = sizeof(known) / sizeof(*known);

    if (root->kind != CAIRN_PICKLE_DICT)
        return "it holds no object";
    for (uint32_t i = 0; i < root->count; i++) {
        size_t k = 0;

        while (k < known_count && !cairn_pickle_is_text(root->items[2 * i], known[k].key))
            k++;
        if (k == known_count)
            return "unknown key; expected one of param_groups, frozen, buffers, shared, "
                   "lr_scheduler, global_steps and universal_checkpoint_info";
        *known[k].value = root->items[2 * i + 1];
    }
    if (job->groups && job->groups->kind != CAIRN_PICKLE_LIST)
        return "param_groups is not a list";
    for (uint32_t i = 0; job->groups && i < job->groups->count; i++)
        if (job->groups->items[i]->kind != CAIRN_PICKLE_DICT ||
            !cairn_pickle_get(job->groups->items[i], "params") ||
            !is_names(cairn_pickle_get(job->groups->items[i], "params")))
            return "a group has no \"params\" that is a list of names";
    if (!is_names(job->frozen) || !is_names(job->buffers))
        return "frozen or buffers is not a list of names";
    if (job->shared && job->shared->kind != CAIRN_PICKLE_DICT)
        return "shared must map names to names";
    for (uint32_t i = 0; job->shared && i < job->shared->count; i++)
        if (job->shared->items[2 * i + 1]->kind != CAIRN_PICKLE_TEXT)
            return "shared must map names to names";
    if (job->lr_scheduler && job->lr_scheduler->kind != CAIRN_PICKLE_DICT)
        return "lr_scheduler is not an object";
    if (job->cuts && job->cuts->kind != CAIRN_PICKLE_DICT)
        return "universal_checkpoint_info is not an object";
    job->step_known = cairn_pickle_u64(step, &job->step);
    return step && !job->step_known ? "global_steps is not a number of steps" : NULL;
}

static cairn_err
read_file(const char *path, struct cairn_job_file *job, struct cairn_complaint *complaint)
{
    struct cairn_pickle_node *root = NULL;
    const char *why = NULL;
    size_t bytes_len = 0, at = 0;
    cairn_err err = load_text(path, &job->text, &bytes_len, complaint);

    if (err)
        return err == CAIRN_NOT_FOUND ? cairn_complain(complaint, err, "%s: no such file", path)
                                      : err;
    err = cairn_json_tree_read(&job->tree, (const char *)job->text, bytes_len, &root, &why, &at);
    if (err)
        return cairn_complain(complaint, err, "%s: at byte %zu: %s", path, at,
                              err == CAIRN_CORRUPT ? why : cairn_err_text(err));
    why = take_root(root, job);
    return why ? cairn_complain(complaint, CAIRN_CORRUPT, "%s: %s", path, why) : CAIRN_OK;
}

bool
cairn_job_file_lists(const struct cairn_pickle_node *list, const char *name)
{
    for (uint32_t i = 0; list && i < list->count; i++)
        if (cairn_pickle_is_text(list->items[i], name))
            return true;
    return false;
}

/* The source's own groups; NULL where it has none. */
static cairn_err
read_own(const struct cairn_checkpoint *checkpoint, struct cairn_job_file *job,
         struct cairn_pickle_node **own)
{
    cairn_err err = cairn_opaque_read(checkpoint, CAIRN_PARAM_GROUPS_NAME,
                                      CAIRN_PARAM_GROUPS_BYTES_MAX, &job->tree, own);

    if (err == CAIRN_NOT_FOUND)
        return CAIRN_OK;
    if (!err && (*own)->kind != CAIRN_PICKLE_LIST)
        err = CAIRN_CORRUPT;
    for (uint32_t i = 0; !err && i < (*own)->count; i++)
        if ((*own)->items[i]->kind != CAIRN_PICKLE_DICT)
            err = CAIRN_CORRUPT;
    return cairn_complain_failed(checkpoint->complaint, err, "%s: %s cannot be read",
                                 checkpoint->place.path, CAIRN_PARAM_GROUPS_NAME);
}

/* A group of the file with names alone gets the source's hyperparameters of its first parameter. */
static void
complete_groups(struct cairn_job_file *job, const struct cairn_pickle_node *own)
{
    static const char *const without[] = {"params", NULL};

    for (uint32_t i = 0; own && i < job->groups->count; i++) {
        struct cairn_pickle_node *group = job->groups->items[i];
        const struct cairn_pickle_node *members = cairn_pickle_get(group, "params");
        char first[CAIRN_NAME_BYTES_MAX];

        if (group->count > 1 || members->count == 0 ||
            !cairn_pickle_copy_text(members->items[0], first, sizeof(first)))
            continue;
        for (uint32_t o = 0; o < own->count; o++) {
            const struct cairn_pickle_node *known = own->items[o];

            if (!cairn_job_file_lists(cairn_pickle_get(known, "params"), first))
                continue;
            cairn_pickle_put_all(&job->tree, group, known, without);
            break;
        }
    }
}

cairn_err
cairn_job_file_open(const struct cairn_checkpoint *checkpoint, const char *path,
                    struct cairn_job_file *job)
{
    struct cairn_pickle_node *own = NULL;
    cairn_err err;

    memset(job, 0, sizeof(*job));
    cairn_pickle_init(&job->tree, 4 * (uint64_t)CAIRN_JOB_FILE_BYTES_MAX);
    err = path ? read_file(path, job, checkpoint->complaint) : CAIRN_OK;
    if (!err)
        err = read_own(checkpoint, job, &own);
    if (err)
        return err;
    job->own = own;
    if (job->groups)
        complete_groups(job, own);
    else
        job->groups = own;
    if (!job->groups || job->groups->count == 0)
        return cairn_refuse(
            checkpoint, CAIRN_INVAL,
            "the groups of its optimizer, whose order ZeRO's buffers follow, are unknown; give "
            "them with --job FILE: {\"param_groups\": [{\"params\": [names], \"lr\": …}, …]}");
    if (!job->step_known && checkpoint->step_known) {
        job->step = checkpoint->step;
        job->step_known = true;
    }
    return cairn_pickle_done(&job->tree);
}

void
cairn_job_file_fini(struct cairn_job_file *job)
{
    cairn_pickle_fini(&job->tree);
    free(job->text);
    memset(job, 0, sizeof(*job));
}
