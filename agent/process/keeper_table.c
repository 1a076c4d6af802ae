/* agent/process/keeper_table.c - the sorted array of held descriptors. */
#include "agent/process/keeper_table.h"
#include "base/array.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The first index whose name is not before `name`. */
static uint32_t
find_place(const struct cairn_keeper_table *table, const char *name)
{
    uint32_t low = 0, high = table->count;

    CAIRN_BISECT(low, high, middle, strcmp(table->items[middle].name, name) < 0);
    return low;
}

static bool
is_at(const struct cairn_keeper_table *table, uint32_t place, const char *name)
{
    return place < table->count && strcmp(table->items[place].name, name) == 0;
}

uint32_t
cairn_keeper_table_behind(const struct cairn_keeper_table *table, const char *after)
{
    uint32_t place = find_place(table, after);

    return place + is_at(table, place, after);
}

static cairn_err
insert(struct cairn_keeper_table *table, uint32_t place, const struct cairn_keeper_held *item)
{
    if (table->count == CAIRN_KEEPER_ITEMS_MAX)
        return CAIRN_FULL;
    if (!cairn_array_grow(&table->items, table->count, sizeof *table->items))
        return CAIRN_NOMEM;
    memmove(table->items + place + 1, table->items + place, (table->count - place) * sizeof *item);
    table->items[place] = *item;
    table->count++;
    return CAIRN_OK;
}

cairn_err
cairn_keeper_table_put(struct cairn_keeper_table *table, const char *name, int fd, uint64_t bytes)
{
    struct cairn_keeper_held item = {.bytes = bytes, .fd = fd};
    size_t name_len = strnlen(name, CAIRN_KEEPER_NAME_BYTES_MAX);
    uint32_t place = find_place(table, name);
    struct stat status;

    if (name_len == 0 || name_len == CAIRN_KEEPER_NAME_BYTES_MAX || fstat(fd, &status) ||
        !S_ISREG(status.st_mode) || (uint64_t)status.st_size != bytes)
        return CAIRN_INVAL;
    item.device = status.st_dev;
    item.inode = status.st_ino;
    memcpy(item.name, name, name_len);
    if (!is_at(table, place, name))
        return insert(table, place, &item);
    if (table->items[place].device != item.device || table->items[place].inode != item.inode)
        return CAIRN_INVAL;
    close(fd);
    return CAIRN_OK;
}

cairn_err
cairn_keeper_table_drop(struct cairn_keeper_table *table, const char *name)
{
    uint32_t place = find_place(table, name);

    if (!is_at(table, place, name))
        return CAIRN_NOT_FOUND;
    close(table->items[place].fd);
    table->count--;
    memmove(table->items + place, table->items + place + 1,
            (table->count - place) * sizeof table->items[0]);
    return CAIRN_OK;
}

void
cairn_keeper_table_fini(struct cairn_keeper_table *table)
{
    for (uint32_t i = 0; i < table->count; i++)
        close(table->items[i].fd);
    free(table->items);
    memset(table, 0, sizeof *table);
}
