/* tools/convert/deepspeed_make.c - what a checkpoint of another framework has of what ZeRO needs: which tensor is
 * what to the job, and what is missing. */
#include "tools/convert/deepspeed_make.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

#define MASTER "fp32."

/* What stage3.py splits a group at, per rank, unless the job says another sub_group_size. */
static const uint64_t SUB_GROUP_ELEMENTS = 1000000000;

static const struct cairn_tensor *
tensor_at(const struct cairn_deepspeed_make *make, uint32_t tensor)
{
    return cairn_layout_tensor(make->checkpoint->layout, tensor);
}

static uint32_t
find(const struct cairn_deepspeed_make *make, const char *name)
{
    uint32_t tensor = cairn_layout_tensor_find(make->checkpoint->layout, name);

    return tensor < make->tensor_count ? tensor : UINT32_MAX;
}

/* "<key>.<parameter>"; UINT32_MAX where there is none. */
static uint32_t
find_state(const struct cairn_deepspeed_make *make, const char *key, const char *parameter)
{
    char name[CAIRN_NAME_BYTES_MAX];

    if (snprintf(name, sizeof(name), "%s.%s", key, parameter) >= (int)sizeof(name))
        return UINT32_MAX;
    return find(make, name);
}

static bool
is_floating(enum cairn_dtype dtype)
{
    return dtype == CAIRN_F64 || dtype == CAIRN_F32 || dtype == CAIRN_F16 || dtype == CAIRN_BF16;
}

static bool
same_shape(const struct cairn_tensor *a, const struct cairn_tensor *b)
{
    return a->dims == b->dims && memcmp(a->shape, b->shape, a->dims * sizeof(*a->shape)) == 0;
}

static uint64_t
elements_of(const struct cairn_tensor *tensor)
{
    uint64_t elements = 1;

    for (uint32_t d = 0; d < tensor->dims; d++)
        elements *= tensor->shape[d];
    return elements;
}

static uint32_t
past_alias(const struct cairn_checkpoint *checkpoint, uint32_t tensor)
{
    for (uint32_t i = 0; i < checkpoint->alias_count; i++)
        if (checkpoint->aliases[i].tensor == tensor)
            return checkpoint->aliases[i].of;
    return tensor;
}

/* ---- the groups ---- */

static cairn_err
add_member(struct cairn_deepspeed_make *make, uint32_t group, const struct cairn_pickle_node *node)
{
    const char *place = make->checkpoint->place.path;
    char name[CAIRN_NAME_BYTES_MAX];
    uint32_t tensor;

    if (!cairn_pickle_copy_text(node, name, sizeof(name)))
        return cairn_complain(make->complaint, CAIRN_INVAL,
                              "%s: its optimizer's groups count parameters and do not name them; say "
                              "their names with --job FILE",
                              place);
    tensor = find(make, name);
    if (tensor == UINT32_MAX || tensor_at(make, tensor)->kind != CAIRN_PARAM ||
        !is_floating(tensor_at(make, tensor)->dtype))
        return cairn_complain(make->complaint, CAIRN_CORRUPT,
                              "%s: group %" PRIu32 " of the optimizer has %s, which is no parameter "
                              "of the checkpoint; see cairn inspect for its names",
                              place, group, name);
    if (make->roles[tensor] == CAIRN_DEEPSPEED_TRAINED)
        return cairn_complain(make->complaint, CAIRN_CORRUPT,
                              "%s: the groups of the optimizer have %s twice", place, name);
    make->roles[tensor] = CAIRN_DEEPSPEED_TRAINED;
    make->members[make->member_count++] = tensor;
    return CAIRN_OK;
}

/* Adds the buffers of a group whose members are the last ones. ZeRO 3 starts a new one as soon as one holds
 * SUB_GROUP_ELEMENTS of a rank's. */
static void
cut_group(struct cairn_deepspeed_make *make, uint32_t group, uint32_t first)
{
    uint64_t all = 0, held = 0;

    for (uint32_t i = first; i < make->member_count; i++)
        all += (elements_of(tensor_at(make, make->members[i])) + make->ranks - 1) / make->ranks;
    make->slabs[make->slab_count++] = (struct cairn_deepspeed_slab){group, first, 0};
    for (uint32_t i = first; i < make->member_count; i++) {
        struct cairn_deepspeed_slab *slab = &make->slabs[make->slab_count - 1];

        slab->count++;
        held += (elements_of(tensor_at(make, make->members[i])) + make->ranks - 1) / make->ranks;
        if (make->stage == 3 && all > SUB_GROUP_ELEMENTS && held >= SUB_GROUP_ELEMENTS &&
            i + 1 < make->member_count) {
            make->slabs[make->slab_count++] = (struct cairn_deepspeed_slab){group, i + 1, 0};
            held = 0;
        }
    }
}

static cairn_err
read_groups(struct cairn_deepspeed_make *make)
{
    const struct cairn_pickle_node *groups = make->job.groups;
    cairn_err err = CAIRN_OK;

    make->members = calloc((size_t)make->tensor_count + 1, sizeof(*make->members));
    make->slabs =
        calloc((size_t)make->tensor_count + groups->count + 1, sizeof(*make->slabs));
    if (!make->members || !make->slabs)
        return CAIRN_NOMEM;
    for (uint32_t g = 0; g < groups->count && !err; g++) {
        const struct cairn_pickle_node *names = cairn_pickle_get(groups->items[g], "params");
        uint32_t first = make->member_count;

        if (!names || names->kind != CAIRN_PICKLE_LIST || names->count == 0)
            return cairn_complain(make->complaint, CAIRN_CORRUPT,
                                  "%s: group %" PRIu32 " of the optimizer has no parameters; leave it "
                                  "out of the groups with --job FILE",
                                  make->checkpoint->place.path, g);
        if (!cairn_pickle_get(groups->items[g], "lr"))
            return cairn_complain(make->complaint, CAIRN_INVAL,
                                  "%s: nothing says the lr of group %" PRIu32 " of the optimizer; say "
                                  "it and its other hyperparameters with --job FILE",
                                  make->checkpoint->place.path, g);
        for (uint32_t i = 0; i < names->count && !err; i++)
            err = add_member(make, g, names->items[i]);
        if (!err)
            cut_group(make, g, first);
    }
    return err;
}

/* ---- state of the optimizer ---- */

/* The number and key in "<prefix>state.<number>.<key>", as torch.optim counts parameters; false for other names. */
static bool
split_numbered(const char *name, uint32_t *number, const char **key)
{
    const char *state = strncmp(name, "state.", 6) == 0 ? name : strstr(name, ".state.");
    unsigned long value;
    char *end;

    if (!state)
        return false;
    state += *state == '.' ? 7 : 6;
    value = strtoul(state, &end, 10);
    if (*state < '0' || *state > '9' || *end != '.' || value > UINT32_MAX || strchr(end + 1, '.'))
        return false;
    *number = (uint32_t)value;
    *key = end + 1;
    return true;
}

/* Whether the groups that are named are as large as those that the source counts through. */
static bool
is_counted_alike(const struct cairn_deepspeed_job *job)
{
    bool alike = !job->own || job->own->count == job->groups->count;

    for (uint32_t g = 0; job->own && alike && g < job->own->count; g++) {
        const struct cairn_pickle_node *counted = cairn_pickle_get(job->own->items[g], "params");
        const struct cairn_pickle_node *named = cairn_pickle_get(job->groups->items[g], "params");

        alike = counted && named && counted->count == named->count;
    }
    return alike;
}

/* Where the source counts parameters and --job names them, its state gets their names: the optimizer counts through
 * all groups. */
static cairn_err
name_numbered(struct cairn_deepspeed_make *make)
{
    uint32_t count = make->tensor_count;
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; i < count && !err; i++) {
        const struct cairn_tensor *tensor = tensor_at(make, i);
        char name[CAIRN_NAME_BYTES_MAX];
        const char *key;
        uint32_t number;

        if (tensor->kind != CAIRN_OPTIMIZER || !split_numbered(tensor->name, &number, &key))
            continue;
        if (number >= make->member_count)
            return cairn_complain(make->complaint, CAIRN_INVAL,
                                  "%s has %s, and the groups of --job have %" PRIu32
                                  " parameters: they are not those of this optimizer",
                                  make->checkpoint->place.path, tensor->name, make->member_count);
        if (!is_counted_alike(&make->job))
            return cairn_complain(make->complaint, CAIRN_INVAL,
                                  "%s has %s, counted through the groups of its optimizer, and those of "
                                  "--job are of other sizes: say the same groups in the same order",
                                  make->checkpoint->place.path, tensor->name);
        if (snprintf(name, sizeof(name), "%s.%s", key,
                     tensor_at(make, make->members[number])->name) >= (int)sizeof(name) ||
            find(make, name) != UINT32_MAX)
            continue; /* then it stays beside */
        err = cairn_checkpoint_add_alias_as(make->checkpoint, name, CAIRN_OPTIMIZER,
                                            past_alias(make->checkpoint, i), make->complaint);
        make->roles[i] = CAIRN_DEEPSPEED_MOMENT;
    }
    return err;
}

/* All arrays by tensor have room for those that were added. */
static cairn_err
count_added(struct cairn_deepspeed_make *make)
{
    uint32_t count = cairn_layout_tensor_count(make->checkpoint->layout);
    uint8_t *grown = realloc(make->roles, (size_t)count + 1);

    if (!grown)
        return CAIRN_NOMEM;
    make->roles = grown;
    memset(grown + make->tensor_count, CAIRN_DEEPSPEED_BESIDE, count - make->tensor_count);
    make->tensor_count = count;
    make->order = cairn_deepspeed_sorted(make->checkpoint->layout);
    return make->order ? CAIRN_OK : CAIRN_NOMEM;
}

/* The step first, as torch.optim has it, then by name. */
static int
by_key(const void *left, const void *right)
{
    const struct cairn_deepspeed_key *a = left, *b = right;

    if (a->scalar != b->scalar)
        return a->scalar ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* The keys that the first parameter has state under; each is a vector as the parameter, or one number. */
static cairn_err
find_keys(struct cairn_deepspeed_make *make)
{
    const struct cairn_tensor *parameter = tensor_at(make, make->members[0]);
    uint32_t key_bytes;

    for (uint32_t i = 0; i < make->tensor_count; i++) {
        const struct cairn_tensor *tensor = tensor_at(make, i);
        struct cairn_deepspeed_key *key = &make->keys[make->key_count];

        if (cairn_checkpoint_parameter_of(make->checkpoint, i, &key_bytes) != make->members[0] ||
            strncmp(tensor->name, MASTER, strlen(MASTER)) == 0)
            continue;
        if (make->key_count == CAIRN_DEEPSPEED_STATE_KEYS_MAX || key_bytes >= sizeof(key->name))
            return cairn_complain(make->complaint, CAIRN_CORRUPT,
                                  "%s: %s is one of too many moments of a parameter, or its key is too "
                                  "long for DeepSpeed's files",
                                  make->checkpoint->place.path, tensor->name);
        memcpy(key->name, tensor->name, key_bytes);
        key->scalar = strcmp(key->name, "step") == 0 || !same_shape(tensor, parameter);
        key->dtype = tensor->dtype;
        if (key->scalar && tensor->dims > 0)
            return cairn_complain(make->complaint, CAIRN_CORRUPT,
                                  "%s: %s has not the shape of its parameter: state that is not "
                                  "elementwise cannot be cut as ZeRO cuts it; leave it out with --drop",
                                  make->checkpoint->place.path, tensor->name);
        make->has_step = make->has_step || strcmp(key->name, "step") == 0;
        make->key_count++;
    }
    qsort(make->keys, make->key_count, sizeof(*make->keys), by_key);
    for (uint32_t k = 0; k < make->key_count; k++)
        if (!make->keys[k].scalar)
            return CAIRN_OK;
    return cairn_complain(make->complaint, CAIRN_CORRUPT,
                          "%s has no exp_avg.%s, nor any other moment of %s: ZeRO's files are those of an "
                          "optimizer; convert a checkpoint that has its state, or convert the weights "
                          "alone to torch and load them before deepspeed.initialize",
                          make->checkpoint->place.path, parameter->name, parameter->name);
}

static cairn_err
check_moments(struct cairn_deepspeed_make *make, uint32_t member)
{
    const struct cairn_tensor *parameter = tensor_at(make, member);

    for (uint32_t k = 0; k < make->key_count; k++) {
        const struct cairn_deepspeed_key *key = &make->keys[k];
        uint32_t state = find_state(make, key->name, parameter->name);
        const struct cairn_tensor *found;

        if (state == UINT32_MAX)
            return cairn_complain(make->complaint, CAIRN_CORRUPT,
                                  "%s has no %s.%s, and other parameters of the optimizer have their "
                                  "%s; a parameter that is not trained is left out of the groups with "
                                  "--job FILE, and %s of all parameters with --drop '%s.*'",
                                  make->checkpoint->place.path, key->name, parameter->name, key->name,
                                  key->name, key->name);
        found = tensor_at(make, state);
        if (found->dtype != key->dtype || (key->scalar ? found->dims > 0 : !same_shape(found, parameter)))
            return cairn_complain(make->complaint, CAIRN_CORRUPT,
                                  "%s: %s has not the shape of its parameter, or not the type of other "
                                  "parameters' %s",
                                  make->checkpoint->place.path, found->name, key->name);
        make->roles[state] = CAIRN_DEEPSPEED_MOMENT;
    }
    return CAIRN_OK;
}

/* The parameter's master weights; the parameter itself where it was trained in float32. */
static cairn_err
find_master(struct cairn_deepspeed_make *make, uint32_t member)
{
    const struct cairn_tensor *parameter = tensor_at(make, member);
    uint32_t master = find_state(make, "fp32", parameter->name);
    char name[CAIRN_NAME_BYTES_MAX];

    if (master != UINT32_MAX) {
        if (tensor_at(make, master)->dtype != CAIRN_F32 || !same_shape(tensor_at(make, master), parameter))
            return cairn_complain(make->complaint, CAIRN_CORRUPT,
                                  "%s: %s is not of type F32, or not of the shape of its parameter",
                                  make->checkpoint->place.path, tensor_at(make, master)->name);
        make->roles[master] = CAIRN_DEEPSPEED_MOMENT;
        return CAIRN_OK;
    }
    if (parameter->dtype != CAIRN_F32)
        return cairn_complain(make->complaint, CAIRN_CORRUPT,
                              "%s has no fp32.%s, and %s is %s: ZeRO keeps each parameter in float32 too; "
                              "where the job trained without, convert to universal with --dtype F32 "
                              "first, and that to deepspeed with --dtype %s",
                              make->checkpoint->place.path, parameter->name, parameter->name,
                              cairn_dtype_name(parameter->dtype), cairn_dtype_name(parameter->dtype));
    if (snprintf(name, sizeof(name), MASTER "%s", parameter->name) >= (int)sizeof(name))
        return cairn_complain(make->complaint, CAIRN_CORRUPT, "%s: the name %s is too long",
                              make->checkpoint->place.path, parameter->name);
    return cairn_checkpoint_add_alias_as(make->checkpoint, name, CAIRN_OPTIMIZER,
                                         past_alias(make->checkpoint, member), make->complaint);
}

/* ---- the step ---- */

/* The one number that a tensor is; false where it does not lie in one piece, or is no count. */
static bool
load_count(const struct cairn_deepspeed_make *make, uint32_t tensor, uint64_t *count)
{
    const struct cairn_layout *layout = make->checkpoint->layout;
    enum cairn_dtype dtype = cairn_layout_tensor(layout, tensor)->dtype;
    size_t wanted = cairn_dtype_bytes(dtype), got = 0;
    uint8_t bytes[16];
    float real = -1;
    int64_t whole = -1;

    for (size_t i = 0; i < cairn_layout_piece_count(layout) && got == 0; i++) {
        const struct cairn_piece *piece = cairn_layout_piece(layout, i);
        const struct cairn_container *container;
        int fd = -1;

        if (piece->tensor != tensor || wanted > sizeof(bytes))
            continue;
        container = &make->checkpoint->containers[piece->container];
        if (!container->path ||
            cairn_place_open_file(&make->checkpoint->place, container->path, &fd, NULL) != CAIRN_OK)
            return false;
        if (cairn_file_read_at(fd, piece->offset_bytes, bytes, wanted, &got) != CAIRN_OK)
            got = 0;
        (void)cairn_file_close(fd); /* only read */
    }
    if (got != wanted || got == 0)
        return false;
    if (dtype == CAIRN_F32)
        memcpy(&real, bytes, sizeof(real));
    if (dtype == CAIRN_I64)
        memcpy(&whole, bytes, sizeof(whole));
    if (real >= 0 && real < 16777216.0f)
        whole = (int64_t)real;
    *count = (uint64_t)whole;
    return whole >= 0;
}

/* Steps of the job: as it is said, or else those of the optimizer. */
static cairn_err
find_step(struct cairn_deepspeed_make *make)
{
    uint32_t step =
        find_state(make, "step", tensor_at(make, make->members[0])->name);

    if (make->job.step_known && make->job.step > 0)
        return CAIRN_OK;
    step = step == UINT32_MAX ? step : past_alias(make->checkpoint, step);
    if (step != UINT32_MAX && load_count(make, step, &make->job.step))
        return CAIRN_OK;
    if (make->job.step_known)
        return CAIRN_OK;
    return cairn_complain(make->complaint, CAIRN_INVAL,
                          "%s does not say how many steps it has trained; say it with --job FILE: "
                          "{\"global_steps\": N}",
                          make->checkpoint->place.path);
}

/* ---- the rest ---- */

/* Whether a tensor came with an object, below whose name it then has its own: state of a random generator. */
static bool
is_of_object(const struct cairn_deepspeed_make *make, const char *name)
{
    char object[CAIRN_NAME_BYTES_MAX + 8];

    for (const char *dot = strchr(name, '.'); dot; dot = strchr(dot + 1, '.')) {
        (void)snprintf(object, sizeof(object), "%.*s.pickle", (int)(dot - name), name);
        if (find(make, object) != UINT32_MAX)
            return true;
    }
    return strchr(name, '/') != NULL; /* of a scope */
}

static enum cairn_deepspeed_role
role_of(const struct cairn_deepspeed_make *make, uint32_t tensor)
{
    const struct cairn_tensor *known = tensor_at(make, tensor);
    bool parameter = known->kind == CAIRN_PARAM && is_floating(known->dtype);

    if (make->roles[tensor] != CAIRN_DEEPSPEED_BESIDE)
        return make->roles[tensor];
    if ((known->kind != CAIRN_PARAM && known->kind != CAIRN_BUFFER) || is_of_object(make, known->name))
        return CAIRN_DEEPSPEED_BESIDE;
    if (cairn_deepspeed_job_lists(make->job.buffers, known->name))
        return CAIRN_DEEPSPEED_BUFFER;
    if (parameter && (past_alias(make->checkpoint, tensor) != tensor ||
                      cairn_pickle_get(make->job.shared, known->name)))
        return CAIRN_DEEPSPEED_SHARED;
    if (parameter)
        return CAIRN_DEEPSPEED_FROZEN;
    return make->job.buffers ? CAIRN_DEEPSPEED_BESIDE : CAIRN_DEEPSPEED_BUFFER;
}

static cairn_err
tell_roles(struct cairn_deepspeed_make *make)
{
    for (uint32_t i = 0; i < make->tensor_count; i++) {
        const struct cairn_tensor *tensor = tensor_at(make, i);

        make->roles[i] = (uint8_t)role_of(make, i);
        if (make->roles[i] == CAIRN_DEEPSPEED_FROZEN && make->stage == 3 &&
            !cairn_deepspeed_job_lists(make->job.frozen, tensor->name))
            return cairn_complain(make->complaint, CAIRN_INVAL,
                                  "%s: %s is not trained, and ZeRO 3 cuts frozen parameters into parts and "
                                  "leaves buffers whole: say with --job FILE which it is: {\"frozen\": "
                                  "[names], \"buffers\": [names], \"shared\": {name: first name}}",
                                  make->checkpoint->place.path, tensor->name);
    }
    return CAIRN_OK;
}

/* A tied parameter's first name is of one that is saved: else the files could not be read again. */
static cairn_err
check_shared(const struct cairn_deepspeed_make *make)
{
    const struct cairn_pickle_node *shared = make->job.shared;

    for (uint32_t i = 0; shared && i < shared->count; i++) {
        char name[CAIRN_NAME_BYTES_MAX] = "", of[CAIRN_NAME_BYTES_MAX] = "";
        uint32_t tensor = UINT32_MAX;

        if (cairn_pickle_copy_text(shared->items[2 * i], name, sizeof(name)) &&
            cairn_pickle_copy_text(shared->items[2 * i + 1], of, sizeof(of)))
            tensor = find(make, of);
        if (tensor == UINT32_MAX || (make->roles[tensor] != CAIRN_DEEPSPEED_TRAINED &&
                                     make->roles[tensor] != CAIRN_DEEPSPEED_FROZEN))
            return cairn_complain(make->complaint, CAIRN_INVAL,
                                  "%s: --job says that \"%s\" is tied to \"%s\", which is no parameter "
                                  "under a name of its own; see cairn inspect for its names",
                                  make->checkpoint->place.path, name, of);
    }
    return CAIRN_OK;
}

/* What the reader of the plan should know before DeepSpeed, which compares no names, loads by it. */
static cairn_err
tell_order(struct cairn_deepspeed_make *make)
{
    cairn_err err = CAIRN_OK;

    for (uint32_t s = 0; s < make->slab_count && !err; s++) {
        const struct cairn_deepspeed_slab *slab = &make->slabs[s];

        err = cairn_checkpoint_warn(
            make->checkpoint,
            "group %" PRIu32 " of DeepSpeed's optimizer shall have %" PRIu32 " parameters, from %s to %s; "
            "DeepSpeed compares no names, so the job must have them in this order",
            slab->group, slab->count, tensor_at(make, make->members[slab->first])->name,
            tensor_at(make, make->members[slab->first + slab->count - 1])->name);
    }
    return err;
}

static cairn_err
check_request(struct cairn_deepspeed_make *make)
{
    const struct cairn_parallelism *wanted = &make->options->parallelism;

    if (make->options->zero == 0)
        return cairn_complain(make->complaint, CAIRN_INVAL,
                              "%s did not come from DeepSpeed: say with --zero which optimizer shall load "
                              "it: 1, 2 or 3, or bf16 for BF16_Optimizer",
                              make->checkpoint->place.path);
    if (wanted->tp > 1 || wanted->pp > 1 || wanted->ep > 1)
        return cairn_complain(make->complaint, CAIRN_INVAL,
                              "DeepSpeed's files are made for data parallelism alone: leave out --tp, --pp "
                              "and --ep");
    make->bf16_optimizer = make->options->zero == CAIRN_ZERO_BF16;
    make->stage = make->bf16_optimizer ? 1 : (uint32_t)make->options->zero;
    make->ranks = wanted->dp ? wanted->dp : make->checkpoint->parallelism.dp;
    if (make->ranks == 0)
        make->ranks = 1;
    return CAIRN_OK;
}

/* Objects of single ranks and parts would be taken for parts of what is made here. */
static cairn_err
check_left(const struct cairn_checkpoint *checkpoint, struct cairn_complaint *complaint)
{
    for (uint32_t i = 0; i < cairn_layout_tensor_count(checkpoint->layout); i++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(checkpoint->layout, i);

        if (tensor->kind == CAIRN_OPAQUE && cairn_deepspeed_is_own(tensor->name))
            return cairn_complain(complaint, CAIRN_INVAL,
                                  "%s: %s is left of what DeepSpeed said of its own files, and of them "
                                  "nothing is in those that are made: leave it out too, with --drop "
                                  "'%s" CAIRN_DEEPSPEED_SCOPE "*'",
                                  checkpoint->place.path, tensor->name,
                                  strncmp(tensor->name, "part", 4) == 0   ? "part*/"
                                  : strncmp(tensor->name, "rank", 4) == 0 ? "rank*/"
                                                                          : "");
    }
    return CAIRN_OK;
}

static cairn_err
prepare(struct cairn_deepspeed_make *make)
{
    cairn_err err = check_request(make);

    make->tensor_count = cairn_layout_tensor_count(make->checkpoint->layout);
    make->roles = calloc((size_t)make->tensor_count + 1, sizeof(*make->roles));
    if (!err && !make->roles)
        err = CAIRN_NOMEM;
    if (!err)
        err = cairn_deepspeed_job_open(make->checkpoint, make->options->job, &make->job,
                                       make->complaint);
    if (!err)
        err = read_groups(make);
    if (!err && make->options->job)
        err = name_numbered(make);
    if (!err)
        err = count_added(make);
    if (!err)
        err = find_keys(make);
    for (uint32_t i = 0; i < make->member_count && !err; i++) {
        err = check_moments(make, make->members[i]);
        if (!err)
            err = find_master(make, make->members[i]);
    }
    if (!err)
        err = find_step(make);
    if (!err)
        err = tell_roles(make);
    if (!err)
        err = check_shared(make);
    if (!err) {
        make->checkpoint->step = make->job.step;
        make->checkpoint->step_known = true;
    }
    if (!err)
        err = cairn_deepspeed_make_objects(make);
    return err ? err : tell_order(make);
}

cairn_err
cairn_deepspeed_prepare(struct cairn_checkpoint *checkpoint, const struct cairn_output_options *options,
                        struct cairn_complaint *complaint)
{
    struct cairn_deepspeed_make make = {
        .checkpoint = checkpoint, .options = options, .complaint = complaint};
    cairn_err err;

    if (cairn_layout_tensor_find(checkpoint->layout, CAIRN_DEEPSPEED_MODEL) != UINT32_MAX) {
        if (options->zero == 0 && !options->job)
            return CAIRN_OK;
        return cairn_complain(complaint, CAIRN_INVAL,
                              "%s came from DeepSpeed and is written with the stage and groups that it "
                              "had: leave out --zero and --job, or make it anew without what DeepSpeed "
                              "said of it: --drop 'deepspeed/*'",
                              checkpoint->place.path);
    }
    err = check_left(checkpoint, complaint);
    if (!err)
        err = prepare(&make);
    cairn_deepspeed_job_fini(&make.job);
    free(make.roles);
    free(make.order);
    free(make.members);
    free(make.slabs);
    return err;
}
