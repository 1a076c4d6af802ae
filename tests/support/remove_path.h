/*
 * tests/support/remove_path.h - removes a path and all below it, without starting a process: fault
 * tests do this thousands of times. Included after cmocka's own needs (setjmp.h, stdarg.h).
 */
#ifndef CAIRN_TESTS_REMOVE_PATH_H
#define CAIRN_TESTS_REMOVE_PATH_H

#include <stdio.h>
#include <unistd.h>

#include <ftw.h>

#include "tests/support/cmocka.h"

static int
remove_one(const char *path, const struct stat *found, int kind, struct FTW *walk)
{
    return remove(path);
}

static void
remove_path(const char *path)
{
    (void)nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS); /* it may not be there */
    assert_int_not_equal(access(path, F_OK), 0);
}

#endif
