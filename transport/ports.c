/* transport/ports.c - see ports.h. */
#include "transport/ports.h"

struct cairn_ports
cairn_ports_make(uint32_t number)
{
    return (struct cairn_ports){.factor = (uint16_t)(number | 1),
                                .shift = (uint16_t)(number >> 16)};
}

bool
cairn_ports_has(const struct cairn_ports *ports, uint16_t port)
{
    return (uint16_t)((uint32_t)port * ports->factor + ports->shift) < CAIRN_PORTS_COUNT;
}

uint16_t
cairn_ports_at(const struct cairn_ports *ports, uint32_t place)
{
    uint32_t inverse = ports->factor; /* right modulo 8; each step of Newton's doubles the bits */

    for (int i = 0; i < 3; i++)
        inverse *= 2 - inverse * ports->factor;
    return (uint16_t)((place - ports->shift) * inverse);
}
