/*
 * tools/convert/maps/numbers.c - see maps/numbers.h.
 *
 * All keys that the map asks for are one list of facts, filled from config.json first and then from
 * the arguments; only whole numbers above 0 and truth values count.
 */
#include "tools/convert/maps/numbers.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "tools/convert/pickle/read.h"
#include "tools/convert/state/opaque_tree.h"

#define CONFIG "config.json"

/* Where arguments are: alone, or as "args" of what a rank has beside its model. */
static const char *const argument_names[] = {"args.pickle", "common.pickle"};

enum {
    FACTS_MAX = 2 * CAIRN_MAP_NUMBERS_MAX * CAIRN_MAP_KEYS_MAX,
    CONFIG_BYTES_MAX = 1 << 24,
    KEY_BYTES_MAX = 256,
    NUMBER_MAX = 1 << 30
};

struct fact {
    const char *key; /* the map's */
    bool known;
    uint64_t value; /* 1 and 0 for true and false */
};

struct facts {
    struct fact facts[FACTS_MAX];
    uint32_t count;
};

static struct fact *
find_fact(struct facts *facts, const char *key)
{
    for (uint32_t i = 0; i < facts->count; i++)
        if (strcmp(facts->facts[i].key, key) == 0)
            return &facts->facts[i];
    return NULL;
}

static void
ask(struct facts *facts, const char *key)
{
    if (key[0] && !find_fact(facts, key))
        facts->facts[facts->count++] = (struct fact){.key = key};
}

/* The first source that says something counts. */
static void
learn(struct fact *fact, uint64_t value)
{
    if (fact->known)
        return;
    fact->known = true;
    fact->value = value;
}

/* ---- config.json ---- */

static void
read_value(struct cairn_json_reader *reader, struct fact *fact)
{
    char first = cairn_json_peek(reader);
    struct cairn_json_reader attempt = *reader;
    uint64_t value;

    if (fact && (first == 't' || first == 'f'))
        learn(fact, first == 't');
    value = cairn_json_read_u64(&attempt, NUMBER_MAX);
    if (fact && !cairn_json_reader_failed(&attempt))
        learn(fact, value);
    cairn_json_skip(reader);
}

static cairn_err
read_config(const struct cairn_checkpoint *checkpoint, struct facts *facts)
{
    struct cairn_json_reader reader;
    char key[KEY_BYTES_MAX];
    uint8_t *bytes = NULL;
    size_t bytes_len = 0;
    cairn_err err;

    err = cairn_place_load(&checkpoint->place, CONFIG, CONFIG_BYTES_MAX, &bytes, &bytes_len,
                           checkpoint->complaint);
    if (err == CAIRN_NOT_FOUND)
        return CAIRN_OK;
    if (err)
        return err;
    cairn_json_reader_init(&reader, bytes, bytes_len);
    cairn_json_object_begin(&reader);
    while (cairn_json_object_next(&reader, key, sizeof(key)))
        read_value(&reader, find_fact(facts, key));
    if (cairn_json_reader_done(&reader) != CAIRN_OK)
        err = cairn_complain(checkpoint->complaint, CAIRN_CORRUPT,
                             "%s/" CONFIG " is damaged at byte %zu: %s; take another copy, or move "
                             "it away and say the numbers with --set",
                             checkpoint->place.path, reader.at, reader.why ? reader.why : "?");
    free(bytes);
    return err;
}

/* ---- Megatron's arguments ---- */

static void
learn_argument(struct fact *fact, const struct cairn_pickle_node *node)
{
    uint64_t value;

    if (node && node->kind == CAIRN_PICKLE_BOOL)
        learn(fact, node->truth);
    else if (cairn_pickle_u64(node, &value) && value <= NUMBER_MAX)
        learn(fact, value);
}

/* Whether a name is `last`, or ends in it behind a '.' or '/'. */
static bool
ends_in(const char *name, const char *last)
{
    size_t bytes = strlen(last), name_bytes = strlen(name);

    return name_bytes >= bytes && strcmp(name + name_bytes - bytes, last) == 0 &&
           (name_bytes == bytes || strchr("./", name[name_bytes - bytes - 1]));
}

/* The name of the arguments, of any rank; NULL where there are none. */
static const char *
find_arguments(const struct cairn_layout *layout)
{
    for (size_t i = 0; i < sizeof argument_names / sizeof *argument_names; i++)
        for (uint32_t t = 0; t < cairn_layout_tensor_count(layout); t++) {
            const struct cairn_tensor *tensor = cairn_layout_tensor(layout, t);

            if (tensor->kind == CAIRN_OPAQUE && ends_in(tensor->name, argument_names[i]))
                return tensor->name;
        }
    return NULL;
}

static cairn_err
read_arguments(const struct cairn_checkpoint *checkpoint, struct facts *facts)
{
    const char *name = find_arguments(checkpoint->layout);
    struct cairn_pickle_node *root = NULL;
    struct cairn_pickle pickle;
    cairn_err err;

    if (!name)
        return CAIRN_OK;
    cairn_pickle_init(&pickle, (uint64_t)CAIRN_PICKLE_ARENA_FACTOR * CONFIG_BYTES_MAX);
    err = cairn_opaque_read(checkpoint, name, CONFIG_BYTES_MAX, &pickle, &root);
    if (!err && cairn_pickle_get(root, "args"))
        root = cairn_pickle_get(root, "args");
    for (uint32_t i = 0; !err && i < facts->count; i++) {
        const struct cairn_pickle_node *node = cairn_pickle_attribute(root, facts->facts[i].key);

        learn_argument(&facts->facts[i], node ? node : cairn_pickle_get(root, facts->facts[i].key));
    }
    cairn_pickle_fini(&pickle);
    return err;
}

/* ---- what the user says ---- */

static bool
set_choice(const struct cairn_map *map, const char *name, size_t name_bytes, const char *value,
           struct cairn_map_settings *out)
{
    for (uint32_t c = 0; c < map->choice_count; c++) {
        const struct cairn_map_choice *choice = &map->choices[c];

        if (strlen(choice->name) != name_bytes || strncmp(choice->name, name, name_bytes) != 0)
            continue;
        for (uint32_t v = 0; v < choice->count; v++)
            if (strcmp(choice->values[v], value) == 0) {
                out->choices[c] = v;
                return true;
            }
    }
    return false;
}

static bool
set_number(const struct cairn_map *map, const char *name, size_t name_bytes, const char *value,
           struct cairn_map_settings *out)
{
    size_t digits = strspn(value, "0123456789");

    if (digits == 0 || digits > 9 || value[digits] || value[0] == '0')
        return false;
    for (uint32_t n = 0; n < map->number_count; n++) {
        uint32_t symbol = map->numbers[n].symbol;
        const char *known = map->symbols[symbol].name;

        if (strlen(known) == name_bytes && strncmp(known, name, name_bytes) == 0) {
            out->values[symbol] = strtoul(value, NULL, 10);
            out->said[symbol] = true;
            return true;
        }
    }
    return false;
}

/* What may be set, for the message. */
static void
list_settings(const struct cairn_map *map, char *out, size_t out_bytes)
{
    size_t used = 0;

    out[0] = '\0';
    for (uint32_t n = 0; n < map->number_count && used + 1 < out_bytes; n++)
        used += (size_t)snprintf(out + used, out_bytes - used, "%s%s=N", used ? ", " : "",
                                 map->symbols[map->numbers[n].symbol].name);
    for (uint32_t c = 0; c < map->choice_count; c++)
        for (uint32_t v = 0; v < map->choices[c].count && used + 1 < out_bytes; v++)
            used += (size_t)snprintf(out + used, out_bytes - used, "%s%s=%s", used ? ", " : "",
                                     map->choices[c].name, map->choices[c].values[v]);
}

static cairn_err
take_sets(const struct cairn_map *map, const char *const *sets, size_t set_count,
          struct cairn_map_settings *out, struct cairn_complaint *complaint)
{
    char all[600];

    for (size_t i = 0; i < set_count; i++) {
        const char *equals = strchr(sets[i], '=');
        size_t bytes = equals ? (size_t)(equals - sets[i]) : 0;

        if (equals && (set_choice(map, sets[i], bytes, equals + 1, out) ||
                       set_number(map, sets[i], bytes, equals + 1, out)))
            continue;
        list_settings(map, all, sizeof(all));
        return cairn_complain(complaint, CAIRN_INVAL, "--set %.100s: the map takes %s", sets[i],
                              all[0] ? all : "no settings");
    }
    return CAIRN_OK;
}

/* ---- numbers ---- */

static cairn_err
calculate(const struct cairn_map *map, const struct cairn_map_number *number, uint64_t *values,
          struct cairn_complaint *complaint)
{
    uint64_t left = number->left == CAIRN_MAP_NONE ? 0 : values[number->left];
    uint64_t right = number->right == CAIRN_MAP_NONE ? 1 : values[number->right];

    if (left == 0 || right == 0)
        return CAIRN_OK;
    if (number->op == '/' && left % right != 0)
        return cairn_complain(complaint, CAIRN_INVAL,
                              "%s: cannot be %s / %s, since %" PRIu64
                              " is not a multiple of %" PRIu64
                              "; give the right numbers with --set",
                              map->symbols[number->symbol].name, map->symbols[number->left].name,
                              map->symbols[number->right].name, left, right);
    if (number->op == '/')
        values[number->symbol] = left / right;
    else if (__builtin_mul_overflow(left, right, &values[number->symbol]))
        values[number->symbol] = 0;
    return CAIRN_OK;
}

static void
look_up(const struct cairn_map_number *number, struct facts *facts, uint64_t *values)
{
    for (uint32_t k = 0; k < number->key_count && values[number->symbol] == 0; k++) {
        const struct fact *fact = find_fact(facts, number->keys[k].key);
        const struct fact *only_if =
            number->keys[k].only_if[0] ? find_fact(facts, number->keys[k].only_if) : NULL;

        if (fact->known && !(only_if && only_if->known && only_if->value == 0))
            values[number->symbol] = fact->value;
    }
}

cairn_err
cairn_map_settings_find(const struct cairn_map *map, const struct cairn_checkpoint *checkpoint,
                        const char *const *sets, size_t set_count, struct cairn_map_settings *out)
{
    struct facts *facts = calloc(1, sizeof(*facts));
    cairn_err err = facts ? CAIRN_OK : CAIRN_NOMEM;

    memset(out, 0, sizeof(*out));
    for (uint32_t s = 0; s < map->symbol_count; s++)
        out->values[s] = map->symbols[s].literal;
    for (uint32_t n = 0; !err && n < map->number_count; n++)
        for (uint32_t k = 0; k < map->numbers[n].key_count; k++) {
            ask(facts, map->numbers[n].keys[k].key);
            ask(facts, map->numbers[n].keys[k].only_if);
        }
    if (!err)
        err = take_sets(map, sets, set_count, out, checkpoint->complaint);
    if (!err)
        err = read_config(checkpoint, facts);
    if (!err)
        err = read_arguments(checkpoint, facts);
    for (uint32_t n = 0; !err && n < map->number_count; n++) {
        look_up(&map->numbers[n], facts, out->values);
        if (out->values[map->numbers[n].symbol] == 0)
            err = calculate(map, &map->numbers[n], out->values, checkpoint->complaint);
    }
    free(facts);
    return err;
}
