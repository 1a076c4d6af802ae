/* tests/unit/base/test_sha256.c - SHA-256 against the published vectors, in one and in many
 * updates. */
#include <string.h>

#include "base/sha256.h"
#include "tests/support/cmocka.h"

static void
expect(struct cairn_sha256 *sha, const char *expected)
{
    uint8_t digest[CAIRN_SHA256_BYTES];
    char text[CAIRN_SHA256_TEXT_BYTES];

    assert_int_equal(cairn_sha256_final(sha, digest), CAIRN_OK);
    cairn_sha256_text(digest, text);
    assert_string_equal(text, expected);
}

static void
test_vectors(void **state)
{
    static const char abc[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    struct cairn_sha256 *sha = NULL;
    char run[1000];

    assert_int_equal(cairn_sha256_create(&sha), CAIRN_OK);
    expect(sha, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    cairn_sha256_update(sha, "abc", 3);
    expect(sha, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    for (size_t cut = 0; cut <= strlen(abc);
         cut++) { /* final starts again, and updates may be cut anywhere */
        cairn_sha256_update(sha, abc, cut);
        cairn_sha256_update(sha, abc + cut, strlen(abc) - cut);
        expect(sha, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    }
    memset(run, 'a', sizeof(run));
    for (int i = 0; i < 1000; i++)
        cairn_sha256_update(sha, run, sizeof(run));
    expect(sha, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    cairn_sha256_destroy(sha);
    cairn_sha256_destroy(NULL);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_vectors)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
