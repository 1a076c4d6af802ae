/* transport/strangers.c - see strangers.h. */
#include "transport/strangers.h"

#include "base/assert.h"

#include <string.h>

static const uint64_t second_ns = 1000000000;
static const uint64_t quiet_ns = 60000000000; /* after that an address is new */

/* Its place in the list; the list's length: it is unknown. */
static uint32_t
place_of(const struct cairn_strangers *strangers, const struct in6_addr *address)
{
    uint32_t place = 0;

    while (place < strangers->count &&
           memcmp(&strangers->list[place].address, address, sizeof *address) != 0)
        place++;
    return place;
}

/* A place for an address that is unknown; NULL: all others are ignored. */
static struct cairn_stranger *
place_take(struct cairn_strangers *strangers)
{
    struct cairn_stranger *oldest = NULL;

    if (strangers->count < CAIRN_STRANGERS_MAX)
        return &strangers->list[strangers->count++];
    for (uint32_t i = 0; i < strangers->count; i++) {
        struct cairn_stranger *stranger = &strangers->list[i];

        if (!stranger->until_ns && (!oldest || stranger->failed_ns < oldest->failed_ns))
            oldest = stranger;
    }
    return oldest;
}

bool
cairn_strangers_failed(struct cairn_strangers *strangers, const struct in6_addr *address,
                       uint64_t cost_ns, uint64_t now_ns)
{
    uint32_t place = place_of(strangers, address);
    bool known = place < strangers->count;
    struct cairn_stranger *stranger = known ? &strangers->list[place] : place_take(strangers);

    if (!stranger || (known && stranger->until_ns))
        return false;
    if (!known || now_ns - stranger->failed_ns >= quiet_ns)
        *stranger = (struct cairn_stranger){.address = *address, .begun_ns = now_ns};
    if (now_ns - stranger->begun_ns >= second_ns) {
        stranger->begun_ns = now_ns;
        stranger->cost_ns = 0;
    }
    stranger->failed_ns = now_ns;
    stranger->cost_ns += cost_ns;
    if (stranger->cost_ns < CAIRN_STRANGERS_COST_NS)
        return false;
    stranger->cost_ns = 0;
    return true;
}

bool
cairn_strangers_ignore(struct cairn_strangers *strangers, const struct in6_addr *address,
                       uint64_t now_ns)
{
    uint32_t place = place_of(strangers, address);
    struct cairn_stranger *stranger = &strangers->list[place];
    bool logged;

    CAIRN_ASSERT(place < strangers->count);
    CAIRN_ASSERT(!stranger->until_ns);
    logged = stranger->logged;
    stranger->until_ns = now_ns + CAIRN_STRANGERS_IGNORED_S * second_ns;
    stranger->logged = true;
    strangers->ignored++;
    return !logged;
}

bool
cairn_strangers_ignores(const struct cairn_strangers *strangers, const struct in6_addr *address)
{
    uint32_t place = strangers->ignored ? place_of(strangers, address) : strangers->count;

    return place < strangers->count && strangers->list[place].until_ns;
}

bool
cairn_strangers_forget(struct cairn_strangers *strangers, const struct in6_addr *address)
{
    uint32_t place = place_of(strangers, address);
    bool ignored;

    if (place == strangers->count)
        return false;
    ignored = strangers->list[place].until_ns != 0;
    strangers->ignored -= ignored;
    strangers->list[place] = strangers->list[--strangers->count];
    return ignored;
}

bool
cairn_strangers_expire(struct cairn_strangers *strangers, uint64_t now_ns)
{
    uint32_t before = strangers->ignored;

    for (uint32_t i = 0; i < strangers->count; i++) {
        struct cairn_stranger *stranger = &strangers->list[i];

        if (stranger->until_ns && now_ns >= stranger->until_ns) {
            stranger->until_ns = 0;
            stranger->failed_ns = now_ns;
            strangers->ignored--;
        }
    }
    return strangers->ignored != before;
}

uint32_t
cairn_strangers_list(const struct cairn_strangers *strangers,
                     struct in6_addr out[CAIRN_STRANGERS_MAX])
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < strangers->count; i++)
        if (strangers->list[i].until_ns)
            out[count++] = strangers->list[i].address;
    return count;
}
