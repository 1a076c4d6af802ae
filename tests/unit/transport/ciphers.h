/* tests/unit/transport/ciphers.h - each library's cipher, open while a program's tests run. */
#ifndef CAIRN_TESTS_TRANSPORT_CIPHERS_H
#define CAIRN_TESTS_TRANSPORT_CIPHERS_H

#include "tests/support/cmocka.h"
#include "transport/cipher.h"

static struct cairn_cipher *ciphers[CAIRN_CIPHER_LIBRARIES];

static inline int
ciphers_open(void **state)
{
    for (int i = 0; i < CAIRN_CIPHER_LIBRARIES; i++)
        assert_int_equal(cairn_cipher_libraries[i]->open(&ciphers[i]), CAIRN_OK);
    return 0;
}

static inline int
ciphers_close(void **state)
{
    for (int i = 0; i < CAIRN_CIPHER_LIBRARIES; i++)
        cairn_cipher_close(ciphers[i]);
    return 0;
}

#endif
