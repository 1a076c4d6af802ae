/*
 * tests/support/fakecuda_load.h - loads the fake CUDA driver (fakecuda.h), and its control
 * functions as fake_<name>. Included after cmocka's own needs (setjmp.h, stdarg.h).
 */
#ifndef CAIRN_TESTS_FAKECUDA_LOAD_H
#define CAIRN_TESTS_FAKECUDA_LOAD_H

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/cmocka.h"
#include "tests/support/fakecuda.h"

static char fake_path[4096];

#define DECLARE(name, result, arguments) static result(*fake_##name) arguments;
FAKECUDA_LIST(DECLARE)

static void
load(void *library, const char *symbol, void *function)
{
    void *found = dlsym(library, symbol);

    assert_non_null(found);
    memcpy(function, &found, sizeof found);
}

/* The library, which lies in the build folder, four names above this program; NULL if it cannot be
 * loaded. From then on the name libcuda.so.1 stands for it. */
static void *
load_fakecuda(void)
{
    void *library;
    ssize_t len = readlink("/proc/self/exe", fake_path, sizeof fake_path - 64);

    if (len < 0)
        return NULL;
    fake_path[len] = '\0';
    for (int i = 0; i < 4; i++)
        *strrchr(fake_path, '/') = '\0';
    strcat(fake_path, "/libfakecuda.so");
    library = dlopen(fake_path, RTLD_NOW | RTLD_NODELETE);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return NULL;
    }
#define LOAD(name, result, arguments) load(library, "fakecuda_" #name, &fake_##name);
    FAKECUDA_LIST(LOAD)
    return library;
}

#endif
