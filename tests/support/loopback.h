/*
 * tests/support/loopback.h - addresses for the servers of a test program that no other program
 * listens at. Test programs run side by side, and ports that were computed from process numbers
 * met; every process has an address of 127.0.0.0/8 of its own here.
 */
#ifndef TEST_LOOPBACK_H
#define TEST_LOOPBACK_H

#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>
#include <unistd.h>

enum { LOOPBACK_PORT_FIRST = 20000, LOOPBACK_PORTS = 10000, LOOPBACK_TEXT_BYTES = 32 };

/* "host:port" in text, of at least LOOPBACK_TEXT_BYTES; another one at each call. */
static inline void
loopback_address(char *text)
{
    static uint32_t next_port;
    uint32_t pid = (uint32_t)getpid(); /* below 2^22 on Linux; 127.0.0.x is left to those who listen
                                        * at 127.0.0.1 */

    snprintf(text, LOOPBACK_TEXT_BYTES, "127.%u.%u.%u:%u", 1 + (pid >> 16), pid >> 8 & 255,
             pid & 255, LOOPBACK_PORT_FIRST + next_port++ % LOOPBACK_PORTS);
}

#endif
