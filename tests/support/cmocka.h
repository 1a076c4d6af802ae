/* tests/support/cmocka.h - cmocka, whose own header needs four others before it. */
#ifndef CAIRN_TESTS_CMOCKA_H
#define CAIRN_TESTS_CMOCKA_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#endif
