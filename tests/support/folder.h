/*
 * tests/support/folder.h - a new folder, `root`, for the tests of one program. Included after
 * cmocka's own needs (setjmp.h, stdarg.h).
 */
#ifndef CAIRN_TESTS_FOLDER_H
#define CAIRN_TESTS_FOLDER_H

#include <stdlib.h>

#include "tests/support/remove_path.h"

static char root[64];

static int
root_make(const char *name)
{
    (void)snprintf(root, sizeof(root), "/tmp/cairn-%s-XXXXXX", name);
    return mkdtemp(root) ? 0 : -1;
}

/* The tear-down of tests that need no other. */
__attribute__((unused)) static int
root_remove(void **state)
{
    remove_path(root);
    return 0;
}

#endif
